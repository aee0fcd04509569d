# Jobs and other things: calls during running jobs,
# clocks, settings that are not text, and what the views show.

use strict;
use warnings;

use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(sleep time);

use FindBin;
use lib "$FindBin::RealBin/../perl";

use HandlerTest qw($node $db start_server value becomes);

start_server('');

sub error_of
{
	my ($sql, %options) = @_;
	my ($ret, $stdout, $stderr) = $node->psql($db, $sql,
		extra_params => [ '-v', 'VERBOSITY=verbose' ], %options);
	return $stderr;
}

value(
	q{CREATE FUNCTION done(jsonb) RETURNS boolean LANGUAGE sql AS 'SELECT true'});

# --- binding anew while jobs run ---

value(
	q{SELECT queue_create('rated');
	SELECT job_handler('rated', 'done(jsonb)', 4, NULL, 100000);
	SELECT queue_push_batch('rated', array_fill('1'::jsonb, ARRAY[10000]))});
my $binder = $node->background_psql($db, on_error_stop => 0);
$binder->query(
	q{DO $$ BEGIN FOR i IN 1..400 LOOP
		PERFORM job_handler('rated', 'done(jsonb)', 4, NULL, 100000);
		COMMIT; PERFORM queue_push('rated', '1');
	END LOOP; END $$});
is($binder->{stderr}, '', 'job_handler does not conflict with the jobs');
becomes(q{SELECT total FROM queue_stats('rated')}, '0', 'which all run');

# What is written for each batch leaves no dead rows.
my $place = q{SELECT ctid FROM queue_data.handler};
my $before = value($place);
my $next_at = value(q{SELECT next_at FROM queue_data.handler});
value(q{SELECT queue_push('rated', '1')});
becomes(q{SELECT total FROM queue_stats('rated')}, '0', 'another one runs');
is(value($place), $before, 'the time of the next one is written in place');
isnt(value(q{SELECT next_at FROM queue_data.handler}),
	$next_at, 'but it is written');

# --- more ready queues than the worker handles in one step ---

value(
	q{SELECT queue_create(q), job_handler(q, 'done(jsonb)'),
		i % 7 <> 0 OR queue_pause(q), queue_push(q, '1')
	FROM (SELECT i, 'many' || i AS q FROM generate_series(1, 700) AS i) AS m});
my $waiting = q{SELECT count(*) FROM queue_data.message
	WHERE queue LIKE 'many%'};
becomes($waiting, '100', 'jobs of many queues, but of those that are paused');
value(q{SELECT queue_resume('many' || i) FROM generate_series(7, 700, 7) AS i});
becomes($waiting, '0', 'and of those when they are resumed');

# --- a clock that has stepped back by an hour ---

value(
	q{SELECT job_handler('rated', 'done(jsonb)', 1, NULL, 2);
	UPDATE queue_data.handler SET next_at = now() + interval '1 hour'
	WHERE rate > 0;
	SELECT queue_push('rated', '1')});
becomes(q{SELECT total FROM queue_stats('rated')},
	'0', 'a rated handler continues after one interval');

# --- what the views show ---

my $failed = 0;
for my $i (1 .. 20)
{
	my ($ret) = $node->psql($db,
		q{SELECT queue_pause('rated'); SELECT queue_resume('rated');
		SELECT * FROM queue_data.queue_workers;
		SELECT * FROM queue_data.queue_runners});
	$failed++ if $ret != 0;
}
is($failed, 0, 'queue_workers right after pause and resume');

value(q{SELECT queue_create('long')});

# --- settings with bytes that are no text ---

$node->safe_psql('template1',
	q{CREATE DATABASE utf8 ENCODING 'UTF8' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0});
$db = 'utf8';
value('CREATE EXTENSION queue');
{
	local $ENV{PGOPTIONS} = "-c queue.project=a\xff -c client_min_messages=error";
	my $stderr = error_of(q{SELECT queue_update('nope', '{}')});

	like($stderr, qr/invalid byte sequence/, 'a project that is no text');
	unlike($stderr, qr/\xff/, 'is not shown');
	local $ENV{PGOPTIONS} = "-c queue.client_id=a\xc3";
	like(error_of('SELECT 1'), qr/invalid byte sequence/, 'nor a client id');
	local $ENV{PGOPTIONS} = "-c queue.project=\xc3\xa4";
	is(value('SHOW queue.project'), "\xc3\xa4", 'one that is');
}
$db = 'postgres';

# --- no room for a worker ---

$node->append_conf('postgresql.conf', 'max_worker_processes = 2');
my $start_of_log = -s $node->logfile;
$node->restart;
value(q{SELECT queue_push('long', '1')});
ok($node->poll_query_until($db,
	q{SELECT true FROM queue_data.queue_workers WHERE database = 'postgres'}),
	'the database is known');
ok($node->wait_for_log(qr/Raise "max_worker_processes"/, $start_of_log), 'the log says why');
is(value(q{SELECT state FROM queue_data.queue_workers
	WHERE database = 'postgres'}), 'wanted', 'a worker that cannot be started');

$node->stop;
done_testing();
