# Handlers in the database: they run as the role that bound them, each job in
# a transaction of its own; what fails is tried again and ends as a dead
# letter; timeouts, cancels, teardown, concurrency and rate.
#
# One mode: the library is preloaded.

use strict;
use warnings;

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(sleep time);

my $node = PostgreSQL::Test::Cluster->new('main');
$node->init;
$node->append_conf(
	'postgresql.conf', q{
shared_preload_libraries = 'queue'
autovacuum = off
max_worker_processes = 16
queue.runners = 4
queue.max_runners = 6
queue.runner_idle_time = 2s
});
$node->start;
my $db = 'postgres';

sub value
{
	my ($sql) = @_;
	return $node->safe_psql($db, $sql);
}

sub error_of
{
	my ($sql) = @_;
	my ($ret, $stdout, $stderr) = $node->psql($db, $sql,
		extra_params => [ '-v', 'VERBOSITY=verbose' ]);
	return $stderr =~ /(?:ERROR|FATAL):\s+(\w{5}):/ ? $1 : 'none';
}

# Waits until the query gives this value; says what it gave if it does not.
sub becomes
{
	my ($query, $wanted, $what) = @_;
	my $until = time + 30;
	my $got = '';

	while (time < $until)
	{
		$got = value($query);
		last if $got eq $wanted;
		sleep 0.02;
	}
	is($got, $wanted, $what);
	return;
}

my $empty =
  q{SELECT free || ' ' || claimed || ' ' || delayed FROM queue_stats('%s')};

sub is_done
{
	my ($q, $what) = @_;
	becomes(sprintf($empty, $q), '0 0 0', $what);
	return;
}

value(
	q{
	CREATE EXTENSION queue;
	CREATE ROLE app LOGIN;
	GRANT queue_producer, queue_consumer TO app;
	CREATE SCHEMA app AUTHORIZATION app;
	SET ROLE app;
	CREATE TABLE app.log (
		q text, body jsonb, tries int, who text, session text, path text,
		at timestamptz DEFAULT clock_timestamp(),
		pid int DEFAULT pg_backend_pid());
	SET search_path = app, public;
	CREATE FUNCTION note(m queue_message) RETURNS boolean LANGUAGE plpgsql
	AS $$
	BEGIN
		INSERT INTO log (q, body, tries, who, session, path)
		VALUES (m.queue, m.body, m.claim_count, current_user, session_user,
				current_setting('search_path'));
		RETURN true;
	END $$;
	CREATE FUNCTION picky(body jsonb) RETURNS boolean LANGUAGE plpgsql
	AS $$
	BEGIN
		INSERT INTO log (body) VALUES (body);
		CASE body ->> 'do'
			WHEN 'raise' THEN RAISE EXCEPTION 'no such luck';
			WHEN 'false' THEN RETURN false;
			WHEN 'null' THEN RETURN NULL;
			WHEN 'sleep' THEN PERFORM pg_sleep((body ->> 'for')::float);
			WHEN 'stubborn' THEN
				LOOP
					BEGIN
						PERFORM pg_sleep(100);
					EXCEPTION WHEN query_canceled THEN NULL;
					END;
				END LOOP;
			WHEN 'catch' THEN
				BEGIN
					PERFORM pg_sleep(100);
				EXCEPTION WHEN query_canceled THEN NULL;
				END;
			WHEN 'spin' THEN LOOP END LOOP;
			ELSE NULL;
		END CASE;
		RETURN true;
	END $$;
	CREATE FUNCTION bye(m queue_message) RETURNS void LANGUAGE plpgsql
	AS $$
	BEGIN
		INSERT INTO log (q, body, tries, who)
		VALUES ('teardown', m.body, m.claim_count, concat_ws(' ',
			current_user, (SELECT 'holds it' FROM message_get(m.queue, m.id)
				WHERE claim_id IS NOT NULL)));
		IF m.body ? 'teardown fails' THEN
			RAISE EXCEPTION 'no teardown';
		END IF;
	END $$;
});

# --- binding, and the first job ---

value(
	q{SET ROLE app; SET search_path = app, public;
	SELECT queue_create('first');
	SELECT job_handler('first', 'note(queue_message)');
	SELECT queue_push('first', '{"n": 1}')});
is_done('first', 'a job is run');
is(value(q{SELECT q, body, tries, who, session, path FROM app.log}),
	'first|{"n": 1}|1|app|app|app, public',
	'as the role that bound the handler, with its search_path');
is(value(q{SELECT metadata FROM queue_get('first')}),
	'{"_max_claim_count": 3}',
	'binding sets _max_claim_count where the metadata does not say');
value(
	q{SET ROLE app; SET search_path = app, public;
	SELECT queue_create('own', '{"_max_claim_count": 7}');
	SELECT job_handler('own', 'note(queue_message)')});
is(value(q{SELECT metadata FROM queue_get('own')}),
	'{"_max_claim_count": 7}', 'and leaves what it says');
is(value(q{SELECT claimed, completed, retried FROM job_stats('first')}),
	'1|1|0', 'it is counted');

# --- what fails ---

sub picky
{
	my ($q, $options, $metadata) = @_;
	value(
		"SET ROLE app; SET search_path = app, public; TRUNCATE app.log;
		SELECT queue_create('$q', '{\"_retry_delay\": 0"
		  . ($metadata ? ", $metadata" : '') . "}');
		SELECT job_handler('$q', 'picky(jsonb)'"
		  . ($options ? ", $options" : '') . ')');
	return;
}

my $dead = q{SELECT reason, last_error, claim_count
	FROM queue_dead_letters('%s.dead')};

picky('fails');
value(q{SELECT queue_push('fails', '{"do": "raise"}')});
becomes(sprintf($dead, 'fails'),
	'max_claim_count|no such luck|3', 'an exception: tried three times');
value(q{SELECT queue_push('fails', '{"do": "false"}')});
is_done('fails', 'false is a failure');
becomes(q{SELECT last_error FROM queue_dead_letters('fails.dead')
	WHERE body ->> 'do' = 'false'}, 'handler returned false', 'and says so');
value(q{SELECT queue_push('fails', '{"do": "null"}')});
is_done('fails', 'so is NULL');
is(value(q{SELECT count(*) FROM queue_dead_letters('fails.dead')}),
	'3', 'all are dead letters');
is(value(q{SELECT count(*) FROM app.log}), '0', 'none left an effect');
is( value(
		q{SELECT claimed, completed, retried, abandoned, last_error
		FROM job_stats('fails')}),
	'9|0|6|3|handler returned false',
	'all of it is counted');

picky('once', '', '"_max_claim_count": 1');
value(q{SELECT queue_push('once', '{"do": "raise"}')});
becomes(sprintf($dead, 'once'),
	'max_claim_count|no such luck|1', 'a job that allows no retries');

# --- timeouts and cancels ---

picky('slow', 'timeout => 1', '"_max_claim_count": 1');
for my $how ('sleep', 'spin', 'catch')
{
	value(qq{SELECT queue_push('slow', '{"do": "$how", "for": 100}')});
	becomes(qq{SELECT last_error FROM queue_dead_letters('slow.dead')
		WHERE body ->> 'do' = '$how'},
		'timeout of 1 s', "a timeout cancels a handler: $how");
}
value(q{SELECT queue_push('slow', '{"do": "sleep", "for": 0.2}')});
is_done('slow', 'what is in time is done');
is(value(q{SELECT body ->> 'for' FROM app.log}),
	'0.2', 'only that left an effect');
value(q{SELECT queue_push('slow', '{"do": "stubborn"}')});
becomes(q{SELECT last_error FROM queue_dead_letters('slow.dead')
	WHERE body ->> 'do' = 'stubborn'},
	'runner was terminated',
	'one that goes on after each cancel is terminated');

my $at_work = q{SELECT pid FROM queue_data.queue_runners
	WHERE queue = '%s' AND message_id IS NOT NULL};

picky('ended', '', '"_max_claim_count": 2');
value(q{SELECT queue_push('ended', '{"do": "sleep", "for": 100}')});
$node->poll_query_until($db, 'SELECT EXISTS (' . sprintf($at_work, 'ended') . ')');
value(q{SELECT pg_cancel_backend(pid) FROM (} . sprintf($at_work, 'ended') . ') r');
becomes(q{SELECT retried FROM job_stats('ended')}, '1',
	'a cancel is a try that failed');
$node->poll_query_until($db, 'SELECT EXISTS (' . sprintf($at_work, 'ended') . ')');
value(q{SELECT pg_terminate_backend(pid) FROM (} . sprintf($at_work, 'ended') . ') r');
becomes(sprintf($dead, 'ended'),
	'max_claim_count|runner was terminated|2',
	'so is the termination of a runner');
is(value(q{SELECT count(*) FROM app.log}), '0', 'neither left an effect');

# Those that were claimed with it do not count as tried.
picky('mates', '', '"_max_claim_count": 2');
value(
	q{SELECT queue_pause('mates');
	SELECT queue_push_batch('mates',
		array_fill('{"do": "nothing"}'::jsonb, ARRAY[200]));
	SELECT queue_push('mates', '{"do": "sleep", "for": 1}');
	SELECT queue_push_batch('mates',
		array_fill('{"do": "nothing"}'::jsonb, ARRAY[20]));
	SELECT queue_resume('mates')});
$node->poll_query_until($db,
	q{SELECT EXISTS (SELECT FROM pg_stat_activity
	WHERE backend_type = 'queue runner' AND wait_event = 'PgSleep')});
value(q{SELECT pg_terminate_backend(pid) FROM (} . sprintf($at_work, 'mates') . ') r');
is_done('mates', 'what was claimed with a job whose runner was terminated');
is(value(q{SELECT count(*) FROM app.log}), '221', 'is run, as is that job');
is(value(q{SELECT retried, abandoned FROM job_stats('mates')}), '1|0',
	'and only that one was tried twice');

# Nor do they wait for one that takes long.
picky('behind', 'concurrency => 2');
value(
	q{SELECT queue_pause('behind');
	SELECT queue_push_batch('behind',
		array_fill('{"do": "nothing"}'::jsonb, ARRAY[200]));
	SELECT queue_push('behind', '{"do": "sleep", "for": 100}');
	SELECT queue_push_batch('behind',
		array_fill('{"do": "nothing"}'::jsonb, ARRAY[20]));
	SELECT queue_resume('behind')});
becomes(q{SELECT count(*) FROM app.log}, '220',
	'what was claimed with a job that takes long is run by others');
value(q{SELECT queue_drop('behind')});
value(q{SELECT pg_cancel_backend(pid) FROM pg_stat_activity
	WHERE backend_type = 'queue runner' AND wait_event = 'PgSleep'});

# --- teardown ---

value(
	q{SET ROLE app; SET search_path = app, public; TRUNCATE app.log;
	SELECT queue_create('torn', '{"_retry_delay": 0, "_max_claim_count": 2}');
	SELECT job_handler('torn', 'picky(jsonb)',
		teardown => 'bye(queue_message)');
	SELECT queue_push('torn', '{"do": "raise"}');
	SELECT queue_push('torn', '{"do": "nothing", "teardown fails": 1}');
	SELECT queue_push('torn', '{"do": "nothing"}')});
is_done('torn', 'jobs with a teardown');
becomes(
	q{SELECT string_agg(concat_ws(' ', body ->> 'do', tries, who), ', '
		ORDER BY body, tries) FROM app.log WHERE q = 'teardown'},
	'nothing 1 app, raise 1 app holds it, raise 2 app holds it',
	'it runs after each try, before the next, and its errors are ignored');
is(value(q{SELECT count(*) FROM app.log WHERE q IS NULL}), '2',
	'and change nothing for the job');

# --- concurrency ---

picky('wide', 'concurrency => 3');
value(
	q{SELECT queue_push_batch('wide',
		array_fill('{"do": "sleep", "for": 0.5}'::jsonb, ARRAY[9]))});
my $most = 0;
my $until = time + 30;
while (value(q{SELECT total FROM queue_stats('wide')}) > 0 && time < $until)
{
	my $now = value(
		q{SELECT count(*) FROM pg_stat_activity
		WHERE backend_type = 'queue runner' AND wait_event = 'PgSleep'});
	$most = $now if $now > $most;
}
is($most, 3, 'as many at a time as the handler says');

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
value(
	q{SELECT queue_push_batch('rated',
		array_fill('{"do": "nothing"}'::jsonb, ARRAY[21]))});
is_done('rated', 'jobs at a rate');
my $took =
  value(q{SELECT extract(epoch FROM max(at) - min(at)) FROM app.log});
cmp_ok($took, '>=', 1.9, "21 jobs at 10 per second take 2 seconds: $took");
cmp_ok($took, '<', 10, 'and not much longer');

# --- what others do meanwhile ---

picky('gone');
value(q{SELECT queue_push('gone', '{"do": "sleep", "for": 1.5}')});
$node->poll_query_until($db, 'SELECT EXISTS (' . sprintf($at_work, 'gone') . ')');
value(q{SELECT queue_drop('gone')});
$node->poll_query_until($db,
	q{SELECT NOT EXISTS (SELECT FROM pg_stat_activity
	WHERE backend_type = 'queue runner' AND wait_event = 'PgSleep')});
is(value(q{SELECT count(*) FROM app.log}), '0',
	'a job whose queue is dropped meanwhile leaves no effect');
is(value(q{SELECT count(*) FROM queue_data.handler h
	WHERE queue_id NOT IN (SELECT id FROM queue_data.queue)}), '0',
	'a queue that is dropped takes its handler along');

value(
	q{SET ROLE app; SET search_path = app, public; TRUNCATE app.log;
	SELECT job_handler('first', NULL);
	SELECT queue_push('first', '{"n": 2}')});
sleep 0.3;
is(value(q{SELECT free FROM queue_stats('first')}), '1',
	'nobody runs the jobs of a queue that was unbound');
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

# The worker is woken by the commit, before it hears what has changed.
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
			late := clock_timestamp() + interval '20 s';
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
