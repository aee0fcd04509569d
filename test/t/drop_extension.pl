# DROP EXTENSION while jobs run and sessions wait: the runners end and log
# nothing, and the sessions are told that the extension is gone.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../perl";

use ClusterTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = PostgreSQL::Test::Cluster->new('main');
$node->init;
$node->append_conf(
	'postgresql.conf', q{
autovacuum = off
});
$node->start;
my $db = 'postgres';
my $gone = qr/extension "queue" does not exist in this database/;
my $runners =
  q{SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'queue runner'};

$node->safe_psql($db, q{CREATE SEQUENCE started});
foreach my $round (1 .. 3)
{
	$node->safe_psql(
		$db, q{
		SELECT setval('started', 1);
		CREATE EXTENSION queue;
		CREATE OR REPLACE FUNCTION job(body jsonb) RETURNS boolean
		LANGUAGE plpgsql AS $$
		BEGIN
			PERFORM nextval('started'), pg_sleep(0.002 * random());
			RETURN true;
		END
		$$;
		CREATE FUNCTION job(message queue_message) RETURNS boolean
			LANGUAGE sql AS 'SELECT job(message.body)';
		SELECT queue_create(q) FROM unnest('{a,b,c}'::text[]) q;
		SELECT job_handler('a', 'job(jsonb)', 4);
		SELECT job_handler('b', 'job(queue_message)', 2, teardown => 'job(jsonb)');
		SELECT queue_push_batch(q, array_agg(to_jsonb(i)))
			FROM unnest('{a,b}'::text[]) q, generate_series(1, 5000) i
			GROUP BY q});
	my $wait = $node->background_psql($db, on_error_stop => 0);
	$wait->query_until(qr/waiting/,
		qq{\\echo waiting\nCALL queue_wait('c', 60000);\n});
	my $run = $node->background_psql($db, on_error_stop => 0);
	$run->query_until(qr/running/, qq{\\echo running\nCALL job_run();\n});
	$node->poll_query_until($db, "SELECT last_value > 100 FROM started")
	  or die 'jobs did not run';
	$node->safe_psql($db, 'DROP EXTENSION queue CASCADE');

	ok($node->poll_query_until($db, $runners, '0'), "round $round: runners end");
	foreach my $session ($run, $wait)
	{
		$session->query('SELECT 1');
		like($session->{stderr},
			qr/$gone.*\n.*HINT:  Create it with CREATE EXTENSION queue/,
			"round $round: a session learns why");
		unlike($session->{stderr}, qr/WARNING/, "round $round: and no more");
		$session->quit;
	}
}

# --- The order of locks ---

# DROP EXTENSION locks the table of queues before that of handlers, and so do a
# runner and a session that read these again.
my $waits = q{
	SELECT count(*) = 1 FROM pg_stat_activity
	WHERE wait_event_type = 'Lock' AND };
foreach my $reader ('runner', 'session')
{
	$node->safe_psql(
		$db, q{
		CREATE EXTENSION queue;
		SELECT setval('started', 1);
		SELECT queue_create('a');
		SELECT job_handler('a', 'job(jsonb)');
		SELECT queue_push('a', '1')});
	ok( $node->poll_query_until(
			$db,
			"SELECT count(*) = 1 FROM queue_data.queue_runners WHERE state = 'idle'"),
		"$reader: no job is left")
	  or diag(
		$node->safe_psql(
			$db, q{
		SELECT 'runner', r.* FROM queue_data.queue_runners AS r;
		SELECT 'handler', h.* FROM queue_data.queue_handlers AS h;
		SELECT 'worker', w.* FROM queue_data.queue_workers AS w;
		SELECT 'status', s.* FROM queue_data.queue_status AS s}));
	my $session = $node->background_psql($db, on_error_stop => 0);
	$session->query_safe('SELECT job_list()');
	my $first = $node->background_psql($db);
	$first->query_safe(
		'BEGIN; LOCK TABLE queue_data.handler IN ACCESS EXCLUSIVE MODE');
	if ($reader eq 'runner')
	{
		$node->safe_psql($db, 'CREATE ROLE other; SELECT pg_reload_conf()');
	}
	else
	{
		$session->query_until(qr/runs/, "\\echo runs\nCALL job_run('{a}');\n");
	}
	my $type = $reader eq 'runner' ? 'queue runner' : 'client backend';
	ok($node->poll_query_until($db, "$waits backend_type = '$type'"),
		"$reader: it waits for the handlers");
	my $drop = $node->background_psql($db, on_error_stop => 0);
	$drop->query_until(qr/drops/, qq{\\echo drops\nDROP EXTENSION queue CASCADE;\n});
	ok($node->poll_query_until($db, "$waits query LIKE 'DROP%'"),
		"$reader: so does DROP EXTENSION");
	$first->query_safe('COMMIT');
	foreach ($drop, $session)
	{
		$_->query('SELECT 1');
		unlike($_->{stderr}, qr/deadlock/, "$reader: there is no deadlock");
	}
	$_->quit foreach $drop, $session, $first;
}

my @complaints = grep { /ERROR|WARNING|FATAL|failed|could not|backup/ && !/$gone/ }
  split(/\n/, slurp_file($node->logfile));
is(join("\n", @complaints), '', 'nothing else is in the log');

$node->stop;
done_testing();
