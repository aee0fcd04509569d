# Limits of handlers: none runs forever, holds up those of other roles, fills
# the log, or tries a message again and again without a pause.
#
# test/check -q runs it, too.

use strict;
use warnings;

use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(sleep time);

use FindBin;
use lib "$FindBin::RealBin/../perl";

use HandlerTest qw($node $db start_server value becomes);

# New sessions know the settings.
start_server(q{
shared_preload_libraries = 'queue'
queue.runners = 2
queue.max_runners = 2});

value(
	q{CREATE ROLE alice LOGIN; CREATE ROLE mallory LOGIN;
	GRANT queue_producer, queue_consumer TO alice, mallory;
	CREATE SCHEMA alice AUTHORIZATION alice;
	CREATE SCHEMA mallory AUTHORIZATION mallory;
	SET ROLE alice;
	CREATE FUNCTION alice.done(jsonb) RETURNS boolean LANGUAGE sql
	AS 'SELECT true';
	SET ROLE mallory;
	CREATE FUNCTION mallory.endless(jsonb) RETURNS boolean LANGUAGE plpgsql
	AS $$BEGIN PERFORM pg_sleep(1000); RETURN true; END$$;
	CREATE FUNCTION mallory.short(jsonb) RETURNS boolean LANGUAGE plpgsql
	AS $$BEGIN PERFORM pg_sleep(0.01); RETURN true; END$$;
	CREATE FUNCTION mallory.fails(jsonb) RETURNS boolean LANGUAGE plpgsql
	AS $$BEGIN RAISE EXCEPTION '%', repeat('x', 100000)
		USING DETAIL = repeat('y', 100000), HINT = repeat('z', 100000);
	END$$});

# --- one endless handler, and roles that take turns ---

value(
	q{SET ROLE mallory;
	SELECT queue_create('endless', '{"_max_claim_count": 1}');
	SELECT job_handler('endless', 'mallory.endless(jsonb)');
	SELECT queue_push('endless', '1')});
becomes(
	q{SELECT count(*) FROM queue_data.queue_runners WHERE queue = 'endless'},
	'1', 'an endless handler runs');
value(
	q{SET ROLE mallory; SELECT queue_create('busy');
	SELECT job_handler('busy', 'mallory.short(jsonb)');
	SELECT queue_push_batch('busy', array_fill('1'::jsonb, ARRAY[8000]))});
becomes(
	q{SELECT count(*) FROM queue_data.queue_runners WHERE queue = 'busy'},
	'1', 'the other runner is busy');
value(
	q{SET ROLE alice; SELECT queue_create('patient');
	SELECT job_handler('patient', 'alice.done(jsonb)');
	SELECT queue_push('patient', '1')});
becomes(q{SELECT total FROM queue_stats('patient')},
	'0', 'another role has its turn');
is(value(q{SELECT free > 0 FROM queue_stats('busy')}),
	't', 'though the first one still has jobs');

value(
	q{SELECT queue_purge('busy');
	SELECT pg_terminate_backend(pid, 10000) FROM queue_data.queue_runners});

# --- queues that their owner keeps locked ---

value(
	q{SET ROLE mallory;
	SELECT queue_create(q), job_handler(q, 'mallory.short(jsonb)'),
		queue_push(q, '1')
	FROM unnest('{kept1,kept2,kept3}'::text[]) AS q});
becomes(
	q{SELECT count(*) FROM queue_data.message WHERE queue LIKE 'kept%'},
	'0', 'jobs of three queues');
my $holder = $node->background_psql($db);
$holder->query_safe(
	q{SET ROLE mallory;
	SELECT cardinality(queue_push_batch(q, array_fill('1'::jsonb, ARRAY[500])))
	FROM unnest('{kept1,kept2,kept3}'::text[]) AS q;
	BEGIN; SELECT queue_purge(q) FROM unnest('{kept1,kept2,kept3}'::text[]) AS q});
sleep 1;
value(q{SELECT queue_push('patient', '1')});
becomes(q{SELECT total FROM queue_stats('patient')},
	'0', 'other roles have their turn');
is( value(q{SELECT count(*) FROM pg_stat_activity
	WHERE backend_type = 'queue runner' AND wait_event_type = 'Lock'
	AND query_start < now() - interval '3 s'}),
	'0', 'no runner waits for a lock for long');
$holder->query_safe('ROLLBACK');
$holder->quit;
value(q{SELECT queue_drop(q) FROM unnest('{kept1,kept2,kept3}'::text[]) AS q});

# --- the longest time that a handler may run ---

is( value(q{SELECT setting || unit FROM pg_settings
	WHERE name = 'queue.max_handler_time'}), '3600s', 'an hour');
value(
	q{ALTER SYSTEM SET queue.max_handler_time = 1; SELECT pg_reload_conf()});
becomes('SHOW queue.max_handler_time', '1s', 'set to a second');

# Those at work have begun before.
value(
	q{SELECT pg_terminate_backend(pid, 10000) FROM queue_data.queue_runners});
value(
	q{SET ROLE mallory;
	SELECT queue_create('forever', '{"_max_claim_count": 1}');
	SELECT job_handler('forever', 'mallory.endless(jsonb)');
	SELECT queue_push('forever', '1')});
becomes(q{SELECT last_error FROM queue_dead_letters('forever.dead')},
	'timeout of 1 s', 'a handler without a timeout ends');
my ($ret, $stdout, $stderr) = $node->psql($db,
	q{SET ROLE mallory;
	SELECT job_handler('forever', 'mallory.endless(jsonb)', timeout => 3)},
	extra_params => [ '-v', 'VERBOSITY=verbose' ]);
like( $stderr,
	qr/22023: parameter "timeout" must be at most 1 s \(queue.max_handler_time\)/,
	'a longer timeout is refused');
isnt(
	$node->psql($db, q{SET ROLE mallory; SET queue.max_handler_time = 10}),
	0, 'a role cannot set it for itself');
value(
	q{SET ROLE mallory; SELECT queue_push('forever', '2');
	SELECT queue_pause('forever')});
$node->psql($db, q{SELECT queue_resume('forever'); CALL job_run('{forever}')});
becomes(q{SELECT total FROM queue_stats('forever.dead')},
	'2', 'nor does it run longer in a session');
value(
	q{ALTER SYSTEM RESET queue.max_handler_time; SELECT pg_reload_conf()});

# --- a handler that always fails ---

my $log = -s $node->logfile;
my $began = time;
value(
	q{SET ROLE mallory;
	SELECT queue_create('fails', '{"_max_claim_count": 1000000, "_retry_delay": 0}');
	SELECT job_handler('fails', 'mallory.fails(jsonb)');
	SELECT queue_push('fails', '1')});
becomes(q{SELECT claimed > 10 FROM job_stats('fails')}, 't', 'a message is tried again at once');
sleep 2;
my $tries = value(q{SELECT claimed FROM job_stats('fails')});
cmp_ok($tries, '<', 28 + time - $began, 'a few times, then it waits');
value(
	q{SELECT queue_push_batch('fails', array_fill('1'::jsonb, ARRAY[200]))});
becomes(q{SELECT claimed > 2000 FROM job_stats('fails')},
	't', 'many fail');
value(q{SELECT queue_drop('fails')});

# Each of the two runners logs 20 in 10 seconds, of at most 2,000 bytes and the
# text around them.
my $most = 2 * 20 * (2 + int((time - $began) / 10));
cmp_ok((-s $node->logfile) - $log, '<', 5000 * $most, 'the log stays small');
my $text = slurp_file($node->logfile, $log);
like($text, qr/job \d+ of queue "fails" failed: x{400,500}\.\.\.\n/,
	'what the handler says is clipped');
unlike($text, qr/x{600}|y{600}|z{600}/, 'all of it');
my $lines = () = $text =~ /job \d+ of queue "fails" failed/g;
cmp_ok($lines, '<=', $most, "and no more than some are logged");
unlike($text, qr/you don't own a lock/,
	'a runner knows that a failure has taken its slot');

# In a session too, which says how many were left out.
$node->append_conf('postgresql.conf', 'queue.runners = 0');
$node->restart;
value(
	q{SET ROLE mallory;
	SELECT queue_create('many', '{"_max_claim_count": 1}');
	SELECT job_handler('many', 'mallory.fails(jsonb)');
	SELECT queue_push_batch('many', array_fill('1'::jsonb, ARRAY[50]))});
($ret, $stdout, $stderr) = $node->psql($db, q{CALL job_run('{many}')});
like($stdout, qr/"failed": 50/, 'a session runs them all');
$lines = () = $stderr =~ /of queue "many" failed/g;
is($lines, 20, 'and gets a warning for some');
like($stderr, qr/30 more failures of jobs were not logged/,
	'and of how many more there were');

$node->stop;
done_testing();
