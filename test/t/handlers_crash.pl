# Runners and the life of a cluster: a handler that brings the server down
# ends as a dead letter, one that loops or leaks harms no others, roles take
# turns, and DROP EXTENSION, DROP DATABASE, restarts and dumps work while jobs
# are run.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../perl";

use ClusterTest;
use PostgreSQL::Test::Utils;
use QueueTest qw($node $db becomes);
use Test::More;
use Time::HiRes qw(sleep time);

$node = PostgreSQL::Test::Cluster->new('main');
$node->init;
$node->append_conf(
	'postgresql.conf', q{
autovacuum = off
restart_after_crash = on
max_worker_processes = 16
queue.runners = 2
queue.max_runners = 4
queue.min_claim_ttl = 1
});
$node->start;

# What a statement returns, also while the server is coming back: a psql that finds no server may exit
# before all of the query was written to it, which is an error here.
sub attempt
{
	my ($sql, $database) = @_;
	my ($ret, $stdout, $stderr) = eval {
		$node->psql($database || $db, $sql, on_error_die => 0)
	};
	$stderr = $@ if !defined $ret;
	note $stderr if $stderr ne '';
	return defined $ret && $ret == 0 ? $stdout : '';
}

my $make = q{
	CREATE EXTENSION queue;
	CREATE TABLE done (q text, id bigint, body jsonb, tries int);
	CREATE FUNCTION run(m queue_message) RETURNS boolean LANGUAGE plpgsql
	AS $$
	BEGIN
		INSERT INTO done VALUES (m.queue, m.id, m.body, m.claim_count);
		IF m.body ? 'wait' THEN
			PERFORM pg_advisory_xact_lock_shared(1);
		END IF;
		IF m.body ? 'sleep' THEN
			PERFORM pg_sleep((m.body ->> 'sleep')::float);
		END IF;
		IF m.body ? 'kill' THEN
			-- The way a segmentation fault ends it
			EXECUTE format('COPY (SELECT 1) TO PROGRAM %L',
						   'kill -9 ' || pg_backend_pid());
			PERFORM pg_sleep(10);
		END IF;
		IF m.body ? 'leak' THEN
			PERFORM set_config('leak.a' || m.id, repeat('x', 1000000), false);
		END IF;
		RETURN true;
	END $$;
};
attempt($make);

# --- a crash of the server ---

attempt(
	q{SELECT queue_create('killer', '{"_max_claim_count": 2}');
	SELECT queue_pause('killer');
	SELECT job_handler('killer', 'run(queue_message)', timeout => 1);
	SELECT queue_push_batch('killer', array_fill('{}'::jsonb, ARRAY[20]));
	SELECT queue_push('killer', '{"kill": true}');
	SELECT queue_push_batch('killer', array_fill('{}'::jsonb, ARRAY[20]));
	SELECT queue_resume('killer')});
becomes(
	q{SELECT body, claim_count, reason FROM queue_dead_letters('killer.dead')},
	'{"kill": true}|2|max_claim_count',
	'a job that brings the server down twice is a dead letter');
becomes(q{SELECT total FROM queue_stats('killer')}, '0',
	'those that were claimed with it are run');
is(attempt(q{SELECT count(*), count(DISTINCT id) FROM done}),
	'40|40', 'once each');
is(attempt(q{SELECT count(*) FROM done WHERE body ? 'kill'}), '0',
	'it left no effect');
my $log = slurp_file($node->logfile);
my $crashes = () = $log =~ /terminated by signal 9/g;
is($crashes, 2, 'the server came down as often as that was tried');
unlike($log, qr/TRAP|signal 6|signal 11/, 'and for no other reason');

# A crash loses commits that were not waited for; but not the attempts.  The
# push is waited for: a lost message would never reach the dead letter queue.
# Its job may crash the server before the session can send another command, so
# one statement pushes all.
attempt(q{TRUNCATE done; ALTER SYSTEM SET synchronous_commit = off});
attempt(q{ALTER SYSTEM SET wal_writer_delay = '10s'});
attempt(q{SELECT pg_reload_conf()});
attempt(
	q{SELECT queue_create('hasty', '{"_max_claim_count": 2}');
	SELECT job_handler('hasty', 'run(queue_message)', timeout => 1);
	CHECKPOINT;
	SET synchronous_commit = on;
	SELECT queue_push('hasty', '{"kill": true}'),
		queue_push_batch('hasty', array_fill('{}'::jsonb, ARRAY[20]))});
becomes(
	q{SELECT body, claim_count, reason FROM queue_dead_letters('hasty.dead')},
	'{"kill": true}|2|max_claim_count',
	'so it is with synchronous_commit off');
becomes(q{SELECT total FROM queue_stats('hasty')}, '0', 'the others are run');
is(attempt(q{SELECT count(*), count(DISTINCT id) FROM done}),
	'20|20', 'once each');
$log = slurp_file($node->logfile);
$crashes = () = $log =~ /terminated by signal 9/g;
cmp_ok($crashes, '<=', 5, 'at most once more than it had attempts');
attempt(q{SELECT queue_drop('hasty'), queue_drop('hasty.dead')});
attempt(q{ALTER SYSTEM RESET synchronous_commit});
attempt(q{ALTER SYSTEM RESET wal_writer_delay});
attempt(q{SELECT pg_reload_conf()});

# Where there is one attempt only, those behind the job that crashes the server, which
# are claimed many at a time by then, have theirs when it is back.
attempt(
	q{TRUNCATE done;
	SELECT queue_create('once', '{"_max_claim_count": 1}');
	SELECT job_handler('once', 'run(queue_message)', timeout => 1);
	SELECT queue_push_batch('once', array_fill('{}'::jsonb, ARRAY[60])
		|| '{"kill": true}'::jsonb || array_fill('{}'::jsonb, ARRAY[60]))});
becomes(
	q{SELECT body, claim_count, reason FROM queue_dead_letters('once.dead')},
	'{"kill": true}|1|max_claim_count',
	'one attempt: the job that brings the server down is a dead letter');
becomes(q{SELECT total FROM queue_stats('once')}, '0', 'and no other');
is(attempt(q{SELECT count(*), count(DISTINCT id), max(tries) FROM done}),
	'120|120|1', 'they are run, once each');
attempt(q{SELECT queue_drop('once'), queue_drop('once.dead')});

# --- handlers that loop, or leak ---

attempt(
	q{TRUNCATE done;
	CREATE FUNCTION loop(body jsonb) RETURNS boolean LANGUAGE plpgsql
	AS $$BEGIN LOOP END LOOP; END$$;
	SELECT queue_create('loops', '{"_max_claim_count": 1}');
	SELECT queue_create('others');
	SELECT job_handler('loops', 'loop(jsonb)', timeout => 600);
	SELECT job_handler('others', 'run(queue_message)');
	SELECT queue_push('loops', '1');
	SELECT queue_push_batch('others', array_fill('{}'::jsonb, ARRAY[100]))});
becomes(q{SELECT count(*) FROM done}, '100',
	'other queues go on');
is( attempt(
		q{SELECT count(pg_cancel_backend(pid)) FROM queue_data.queue_runners
		WHERE queue = 'loops' AND message_id IS NOT NULL}),
	'1', 'while a handler loops');
becomes(q{SELECT count(*) FROM queue_dead_letters('loops.dead')}, '1', 'which is canceled');
attempt(
	q{SELECT job_handler('loops', 'loop(jsonb)', timeout => 3);
	SELECT queue_push('loops', '2')});
becomes(q{SELECT last_error FROM queue_dead_letters('loops.dead') WHERE body = '2'},
	'timeout of 3 s', 'another one is ended by its timeout');

attempt(
	q{TRUNCATE done;
	SELECT queue_push_batch('others',
		array_fill('{"leak": true}'::jsonb, ARRAY[400]))});
becomes(q{SELECT count(*) FROM done}, '400', 'a handler that leaks');
my $memory = $^O eq 'linux' ? attempt(
	q{SELECT coalesce(max((regexp_match(
		pg_read_file('/proc/' || pid || '/status'),
		'RssAnon:\s+(\d+) kB'))[1]::bigint), 0)
	FROM queue_data.queue_runners}) : 0;
cmp_ok($memory, '<', 400000, "does not make a runner grow forever: $memory kB");

# --- renewal ---

my $gate = $node->background_psql($db);
$gate->query_safe('SELECT pg_advisory_lock(1)');
attempt(
	q{TRUNCATE done;
	SELECT queue_create('long', '{"_max_claim_count": 1}');
	SELECT job_handler('long', 'run(queue_message)', timeout => 600);
	SELECT queue_push('long', '{"wait": true}')});
$node->poll_query_until($db,
	q{SELECT claimed = 1 FROM queue_stats('long')});
my $first = attempt(
	q{SELECT claimed_until FROM queue_data.message WHERE queue = 'long'});
ok( $node->poll_query_until(
		$db,
		qq{SELECT claimed_until > '$first' FROM queue_data.message
		WHERE queue = 'long' AND state = 'claimed'}),
	'the claim of a handler at work is renewed');
$gate->quit;
becomes(q{SELECT total FROM queue_stats('long')}, '0', 'until it is done');
is(attempt(q{SELECT count(*) FROM done}), '1', 'once');

# --- roles take turns ---

attempt(
	q{TRUNCATE done; GRANT INSERT ON done TO PUBLIC;
	ALTER SYSTEM SET queue.runners = 1; SELECT pg_reload_conf();
	GRANT CREATE ON SCHEMA public TO PUBLIC;
	CREATE ROLE one; CREATE ROLE two; CREATE ROLE three;
	GRANT queue_producer TO one, two, three});
for my $role ('one', 'two', 'three')
{
	attempt(
		"SET ROLE $role; SELECT queue_create('$role');
		SELECT job_handler('$role', 'run(queue_message)')");
}
attempt(
	q{SELECT queue_push_batch(q, array_fill('{"sleep": 0.01}'::jsonb, ARRAY[1000]))
	FROM unnest('{one,two,three}'::text[]) q});
my $turns = q{SELECT string_agg(q, ' ' ORDER BY at)
	FROM (SELECT q, ctid AS at, lag(q) OVER (ORDER BY ctid) AS before FROM done) t
	WHERE before IS DISTINCT FROM q};
becomes("SELECT array_length(string_to_array(($turns), ' '), 1) >= 6",
	't', 'three roles and one runner: there are six turns');
is(attempt(q{SELECT count(DISTINCT q) FROM done}), '3', 'each role has its own');
is(attempt(q{SELECT count(*) > 0 FROM queue_ready()}), 't',
	'while all have more to do');
attempt(q{SELECT queue_purge(q) FROM unnest('{one,two,three}'::text[]) q});
becomes(
	q{SELECT sum(total) FROM unnest('{one,two,three}'::text[]) q,
	LATERAL queue_stats(q)}, '0', 'purged while they run');
attempt(q{ALTER SYSTEM SET queue.runners = 2; SELECT pg_reload_conf()});

# --- restart, dump ---

attempt(
	q{TRUNCATE done; SELECT queue_push_batch('others',
		array_fill('{"sleep": 0.05}'::jsonb, ARRAY[20]))});
$node->poll_query_until($db, q{SELECT count(*) > 0 FROM done});
$node->restart;
becomes(q{SELECT count(*) FROM done}, '20',
	'runners at work go on when the server is back');
is( attempt(
		q{SELECT count(*) FILTER (WHERE tries = 1) >= 18, max(tries) <= 2
		FROM done}),
	't|t',
	'only the jobs that were at work are tried again');

my $dump = $node->backup_dir . '/dump.sql';
$node->command_ok([ 'pg_dump', '-f', $dump, '-d', $db ], 'pg_dump');
attempt('CREATE DATABASE restored');
$node->command_ok(
	[ 'psql', '-XqAt', '-v', 'ON_ERROR_STOP=1', '-f', $dump, '-d', 'restored' ],
	'restore');
is( attempt(
		q{SELECT queue, role, handler, timeout, state
		FROM queue_data.queue_handlers ORDER BY queue COLLATE "C" LIMIT 3},
		'restored'),
	"killer|postgres|public.run(queue_message)|1|active\n"
	  . "long|postgres|public.run(queue_message)|600|active\n"
	  . "loops|postgres|public.loop(jsonb)|3|active",
	'handlers are dumped and restored');
attempt(q{TRUNCATE done; SELECT queue_push('others', '{}')}, 'restored');
becomes(q{SELECT count(*) FROM done}, '1', 'and run',
	database => 'restored');

# --- drops ---

attempt(q{SELECT queue_push('others', '{"sleep": 60}')}, 'restored');
$node->poll_query_until('restored',
	q{SELECT claimed = 1 FROM queue_stats('others')});
is($node->psql($db, 'DROP DATABASE restored'), 0, 'DROP DATABASE with a job at work');

attempt(q{SELECT queue_push('others', '{"sleep": 3}')});
$node->poll_query_until($db,
	q{SELECT claimed = 1 FROM queue_stats('others')});
attempt('TRUNCATE done');
attempt('DROP EXTENSION queue CASCADE');
is(attempt(q{SELECT count(*) FROM pg_extension WHERE extname = 'queue'}),
	'0', 'DROP EXTENSION with a job at work');
becomes(
	q{SELECT count(*) FROM pg_stat_activity
	WHERE backend_type IN ('queue runner', 'queue worker')
	AND datname = current_database()},
	'0', 'processes that ran jobs end');
is(attempt('SELECT count(*) FROM done'), '0', 'and the job has no effect');

attempt($make =~ s/CREATE TABLE done.*?;/TRUNCATE done;/r
	  =~ s/CREATE FUNCTION/CREATE OR REPLACE FUNCTION/r);
attempt(
	q{SELECT queue_create('anew');
	SELECT job_handler('anew', 'run(queue_message)');
	SELECT queue_push('anew', '{}')});
becomes(q{SELECT count(*) FROM done}, '1', 'made anew, it runs jobs again');

$log = slurp_file($node->logfile);
unlike($log, qr/TRAP|signal 6|signal 11|PANIC/, 'nothing failed');
$node->stop;
done_testing();
