# The worker comes to rest: after the last handler is gone, while a handler in a
# session takes longer than it may, while no runner can connect, and while the
# history has rows from before the clock was set back.  Runners that end after their
# database leave nothing behind.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../perl";

use HandlerTest;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(sleep);

start_server(
	q{queue.runners = 0
queue.runner_idle_time = 1s});
value(
	q{CREATE FUNCTION ok(jsonb) RETURNS boolean LANGUAGE sql AS 'SELECT true';
	CREATE FUNCTION stays(jsonb) RETURNS boolean LANGUAGE plpgsql AS $$
	BEGIN
		LOOP
			BEGIN
				PERFORM pg_sleep(1000);
			EXCEPTION WHEN query_canceled THEN NULL;
			END;
		END LOOP;
	END $$});

# Rounds of the worker in three seconds.  It has some to do each second; one that
# does not sleep makes thousands.
my $counter = q{SELECT rounds FROM queue_data.queue_workers WHERE database = current_database()};

sub rounds
{
	my $before = value($counter);
	sleep 3;
	my $n = value($counter) - $before;
	note "$n rounds";
	return $n;
}

# --- the last handler ---

value(q{SELECT queue_create('a'); SELECT job_handler('a', 'ok(jsonb)'); SELECT queue_push('a', '1')});
rounds();    # so that it has found no room for a runner
value(q{SELECT queue_drop('a')});
cmp_ok(rounds(), '<', 200, 'the worker rests when the last handler is gone');

# --- a session ---

value(q{SELECT queue_create('b'); SELECT job_handler('b', 'stays(jsonb)', timeout => 1); SELECT queue_push('b', '1')});
my $session = $node->background_psql($db, on_error_stop => 0);
$session->query_until(qr/begun/, "\\echo begun\nCALL job_run('{b}');\n");
becomes(q{SELECT count(*) FROM pg_locks AS l JOIN pg_stat_activity AS a USING (pid)
	WHERE l.locktype = 'object' AND l.objsubid >= 16 AND a.query_start < now() - interval '3 s'},
	'1', 'a session runs a job for longer than it may');
cmp_ok(rounds(), '<', 200, 'the worker rests meanwhile');
value(q{SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query ~ '^CALL job_run'});
eval { $session->quit };
value(q{SELECT queue_drop('b')});

# --- a clock that was set back ---

value(q{SELECT queue_create('h', '{"_keep_finished": 60}'); SELECT queue_push('h', '1')});
value(q{SELECT count(*) FROM queue_pop('h')});
value(q{UPDATE queue_data.finished_ring SET switched_at = now() + interval '1 h' WHERE active = 16;
	UPDATE queue_data.finished_16 SET finished_at = finished_at + interval '1 h';
	INSERT INTO queue_data.finished_17 SELECT * FROM queue_data.finished_16;
	ALTER TABLE queue_data.finished_ring SET (fillfactor = 100)}); # its rows are cached
sleep 3;    # so that the worker has met the rows
cmp_ok(rounds(), '<', 200, 'the worker rests while the history has rows from the future');
becomes("SELECT ($counter) > " . value($counter), 't', 'and goes on');
value(q{SELECT queue_drop('h')});

# --- runners that cannot connect ---

value('ALTER SYSTEM SET queue.runners = 2');
value('SELECT pg_reload_conf()');
value('CREATE DATABASE other');
my $make = q{CREATE EXTENSION queue;
	CREATE FUNCTION ok(jsonb) RETURNS boolean LANGUAGE sql AS 'SELECT true';
	CREATE FUNCTION sleeps(jsonb) RETURNS boolean LANGUAGE sql AS 'SELECT pg_sleep(1000) IS NULL';
	SELECT queue_create('c')};
$node->safe_psql('other', "$make; SELECT job_handler('c', 'ok(jsonb)')");
becomes(q{SELECT count(*) FROM pg_stat_activity WHERE datname = 'other' AND backend_type = 'queue worker'},
	'1', 'there is a worker');
my $log = -s $node->logfile;
$node->safe_psql('other', q{SELECT queue_push('c', '1', delay => 3)});
value('ALTER DATABASE other ALLOW_CONNECTIONS false');

sub failures
{
	return scalar(() = slurp_file($node->logfile, $log) =~ /FATAL:.*"other" is not currently accepting/g);
}
for (1 .. 1800)
{
	last if failures() > 0;
	sleep 0.1;
}
cmp_ok(failures(), '>', 0, 'a runner cannot connect');
sleep 5;
cmp_ok(failures(), '<', 20, 'it is not started again and again');
value('ALTER DATABASE other ALLOW_CONNECTIONS true');
ok($node->poll_query_until('other', q{SELECT total = 0 FROM queue_stats('c')}),
	'the job runs when one can');
value('DROP DATABASE other');

# --- runners that end after their database ---

for my $n (1, 2)
{
	value("CREATE DATABASE db$n");
	$node->safe_psql("db$n", "$make; SELECT job_handler('c', 'sleeps(jsonb)', concurrency => 2);
		SELECT queue_push_batch('c', '{1,2}')");
	ok($node->poll_query_until("db$n",
			q{SELECT count(*) = 2 FROM queue_data.queue_runners WHERE message_id IS NOT NULL}),
		'two runners are at work');
	value("DROP DATABASE db$n");
}
ok($node->poll_query_until($db,
		q{SELECT count(*) = 0 FROM queue_data.runners() AS r
			WHERE database NOT IN (SELECT oid FROM pg_database)}),
	'they leave nothing behind');

$node->stop;
done_testing();
