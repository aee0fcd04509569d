# How many jobs of a queue run at once, how fast and how soon; what runs after
# the queue is dropped, unbound, bound again or resumed; and when the processes
# that run jobs end.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../perl";

use HandlerTest;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(sleep time);

start_server(
	q{queue.runners = 4
queue.max_runners = 6
queue.runner_idle_time = 2s});
create_app();

# --- concurrency ---

my $gate = hold_waiting();
picky('wide', 'concurrency => 3');
value(
	q{SELECT queue_push_batch('wide',
		array_fill('{"do": "wait"}'::jsonb, ARRAY[9]))});
becomes($waits, '3', 'as many at a time as the handler says');
sleep 1;
is(value($waits), '3', 'and no more');
$gate->quit;
is_done('wide', 'all are done');

picky('narrow');
value(
	q{SELECT queue_push_batch('narrow',
		array_fill('{"do": "sleep", "for": 0.1}'::jsonb, ARRAY[10]))});
is_done('narrow', 'one at a time');
is( value(
		q{SELECT count(*) FROM app.log a JOIN app.log b
		ON b.at > a.at AND b.at < a.at + '0.09 s'}),
	'0',
	'no two overlap');

# --- rate ---

picky('rated', 'rate => 10, concurrency => 4');
my $took;

# A busy machine may take longer, but not each time.
foreach (1 .. 10)
{
	value(
		q{TRUNCATE app.log; SELECT queue_push_batch('rated',
			array_fill('{"do": "nothing"}'::jsonb, ARRAY[21]))});
	is_done('rated', 'jobs at a rate');
	$took =
	  value(q{SELECT extract(epoch FROM max(at) - min(at)) FROM app.log});
	cmp_ok($took, '>=', 1.9, "21 jobs at 10 per second take 2 seconds: $took");
	last if $took < 10;
}
cmp_ok($took, '<', 10, 'and not much longer');

# --- what others do meanwhile ---

$gate = hold_waiting();
picky('gone');
value(q{SELECT queue_push('gone', '{"do": "wait"}')});
becomes($waits, '1', 'a job is at work');
value(q{SELECT queue_drop('gone')});
$gate->quit;
$node->poll_query_until($db,
	'SELECT NOT EXISTS (SELECT FROM queue_data.queue_runners WHERE message_id IS NOT NULL)');
is(value(q{SELECT count(*) FROM app.log}), '0',
	'a job whose queue is dropped meanwhile leaves no effect');
is(value(q{SELECT count(*) FROM queue_data.handler h
	WHERE queue_id NOT IN (SELECT id FROM queue_data.queue)}), '0',
	'dropping a queue drops its handler');

value(
	q{SET ROLE app; SET search_path = app, public; TRUNCATE app.log;
	SELECT queue_create('first');
	SELECT job_handler('first', 'note(queue_message)');
	SELECT job_handler('first', NULL);
	SELECT queue_push('first', '{"n": 2}')});
sleep 0.3;
is(value(q{SELECT free FROM queue_stats('first')}), '1',
	'no process runs the jobs of a queue that was unbound');
value(
	q{SET ROLE app; SET search_path = app, public;
	SELECT job_handler('first', 'note(queue_message)')});
is_done('first', 'until it is bound again');

# A job that pushes the next one, of another queue, in a project
value(
	q{SET ROLE app; SET search_path = app, public; SET queue.project = 'wiki';
	CREATE FUNCTION chain(body jsonb) RETURNS boolean LANGUAGE sql
	AS $$SELECT queue_push('second', body) IS NOT NULL$$;
	SELECT queue_create('first'), queue_create('second');
	SELECT job_handler('first', 'chain(jsonb)');
	SELECT job_handler('second', 'note(queue_message)');
	SELECT queue_push('first', '{"n": 3}')});
becomes(q{SELECT count(*) FROM app.log WHERE q = 'second'}, '1',
	'a job pushes another one, in its own project');

# --- latency ---

my $probe = $node->background_psql($db);
$probe->query_safe(q{SELECT queue_push('first', '{"warm": true}')});
is_done('first', 'warm');
value('TRUNCATE app.log');
for my $i (1 .. 100)
{
	$probe->query_safe(
		q{SELECT queue_push('first',
			jsonb_build_object('at', clock_timestamp()))});
	sleep 0.01;
}
is_done('first', 'jobs one by one');
my $p50 = value(
	q{SELECT percentile_cont(0.5) WITHIN GROUP (ORDER BY
		1000 * extract(epoch FROM at - (body ->> 'at')::timestamptz))
		FROM app.log});
note "from push to handler: $p50 ms (p50)";
$probe->quit;

# --- pauses ---

# The commit wakes the worker before it has the invalidation message.
value(
	q{CREATE TABLE ran (n int);
	CREATE FUNCTION ran(body jsonb) RETURNS boolean LANGUAGE sql
	AS $$INSERT INTO ran VALUES (body::int) RETURNING true$$;
	SELECT queue_create('resumed');
	SELECT job_handler('resumed', 'ran(jsonb)');
	CREATE PROCEDURE resume_often() LANGUAGE plpgsql AS $$
	DECLARE
		late timestamptz;
	BEGIN
		FOR i IN 1..300 LOOP
			PERFORM queue_pause('resumed');
			PERFORM queue_push('resumed', to_jsonb(i));
			COMMIT;
			PERFORM pg_sleep(0.003);
			PERFORM queue_resume('resumed');
			COMMIT;
			late := clock_timestamp() + interval '180 s';
			WHILE NOT EXISTS (SELECT FROM ran WHERE n = i) LOOP
				IF clock_timestamp() > late THEN
					RAISE 'job % does not run', i;
				END IF;
				PERFORM pg_sleep(0.001);
				COMMIT;
			END LOOP;
		END LOOP;
	END $$});
value('CALL resume_often()');
is(value('SELECT count(*), count(DISTINCT n) FROM ran'),
	'300|300', 'jobs of a queue that is resumed run at once');

# --- ending ---

value(q{ALTER SYSTEM SET queue.runners = 0; SELECT pg_reload_conf()});
becomes(q{SELECT count(*) FROM queue_data.queue_runners},
	'0', 'runners end when there shall be fewer');
value(q{SELECT queue_push('resumed', '0')});
sleep 0.5;
is(value(q{SELECT count(*) FROM ran WHERE n = 0}), '0', 'and none is started');
value(q{ALTER SYSTEM RESET queue.runners; SELECT pg_reload_conf()});
becomes(q{SELECT count(*) FROM ran WHERE n = 0}, '1', 'until there may be');

becomes(
	q{SELECT count(*) FROM pg_stat_activity
	WHERE backend_type = 'queue runner'},
	'0', 'runners end when there is nothing to do');
is(value(q{SELECT count(*) FROM queue_data.queue_runners}), '0',
	'and leave nothing behind');
is(value(q{SELECT count(*) FROM pg_locks WHERE locktype = 'object'
	AND pid NOT IN (SELECT pid FROM pg_stat_activity)}), '0', 'no lock either');

$node->stop;
done_testing();
