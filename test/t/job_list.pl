# The owner of a queue, and a role with admin on it, see in job_list what runs
# there, in which process, since when, and how far it is; other roles see no row.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../perl";

use HandlerTest;
use PostgreSQL::Test::Utils;
use Test::More;

start_server(
	q{queue.runners = 4
queue.runner_idle_time = 2s});
create_app();
value(
	q{CREATE ROLE stranger LOGIN IN ROLE queue_producer, queue_consumer;
	CREATE ROLE lead LOGIN IN ROLE queue_consumer;
	CREATE ROLE boss LOGIN IN ROLE queue_admin;
	CREATE TABLE gate (is_open boolean); INSERT INTO gate VALUES (false);
	GRANT SELECT ON gate TO app;
	SET ROLE app; SET search_path = app, public;
	CREATE FUNCTION steps(body jsonb) RETURNS boolean LANGUAGE plpgsql AS $$
	BEGIN
		PERFORM job_progress((body ->> 'done')::bigint, (body ->> 'total')::bigint,
			body ->> 'note') WHERE body ? 'done';
		WHILE NOT (SELECT is_open FROM public.gate) LOOP
			PERFORM pg_sleep(0.01);
		END LOOP;
		RETURN true;
	END $$;
	SELECT queue_create('work'), queue_create('other');
	SELECT job_handler('work', 'steps(jsonb)', concurrency => 3);
	SELECT job_handler('other', 'steps(jsonb)')});

my $list = q{SELECT queue, handler, state, reason, concurrency, running,
	message_id IS NULL, progress FROM job_list() ORDER BY queue, progress};
is( value("SET ROLE app; $list"),
	"other|app.steps(jsonb)|idle||1|0|t|\nwork|app.steps(jsonb)|idle||3|0|t|",
	'a row for each handler of which no job runs');
is(value("SET ROLE $_; $list"), '', "$_ sees none of it") foreach qw(stranger lead);
is(value("SET ROLE $_; SELECT count(*) FROM job_list()"),
	'2', "$_ sees all") foreach qw(boss postgres);
is(value(q{SET ROLE app; SET queue.project = 'p'; SELECT count(*) FROM job_list()}),
	'0', 'nothing in another project');
value(q{SET ROLE app; SELECT queue_grant('work', 'lead', 'admin')});
is(value("SET ROLE lead; SELECT queue FROM job_list()"),
	'work', 'admin on a queue suffices for that');
is(state_of("SET ROLE stranger; SELECT job_list('work')"),
	'42501', 'asked for by name, it is an error');
is(value(q{SET ROLE app; SELECT count(*) FROM job_list('unknown')}),
	'0', 'an unknown queue has no row');
is(value(q{SET ROLE app; SELECT queue_create('plain');
	SELECT count(*) FROM job_list('plain')}),
	"t\n0", 'nor has one without a handler');

# --- while jobs run ---

my $note = 'x' x 256;
value(
	qq{SET ROLE app;
	SELECT queue_push('work', '{}');
	SELECT queue_push('work', '{"done": 3}');
	SELECT queue_push('work', '{"done": 0, "total": 40, "note": "$note"}')});
becomes(q{SET ROLE app; SELECT count(*) FROM job_list('work')
	WHERE progress IS NOT NULL}, '2', 'what handlers report is shown at once');
becomes(q{SET ROLE app; SELECT count(*) FROM job_list('work')}, '3',
	'a row for each job that runs');
is( value(
		q{SET ROLE app; SELECT state, running, count(*), count(DISTINCT message_id),
		count(DISTINCT pid), bool_and(running_since BETWEEN now() - interval '1 hour'
			AND now()), bool_and(message_id > 0)
		FROM job_list() WHERE queue = 'work' GROUP BY 1, 2}),
	'running|3|3|3|3|t|t',
	'with its message, process and time');
is( value(q{SET ROLE app; SELECT progress FROM job_list('work')
		WHERE progress ? 'done' ORDER BY progress -> 'done'}),
	qq({"done": 0, "note": "@{['x' x 255]}", "total": 40}\n{"done": 3}),
	'a long note is cut');
is( value(
		q{SELECT count(*) FROM job_list('work') AS j
		JOIN queue_data.queue_runners AS r ON r.pid = j.pid
		AND r.message_id = j.message_id}),
	'3',
	'as the view of runners shows it');
is(value("SET ROLE stranger; $list"), '', 'a stranger sees none of that');

# The owner may cancel what it sees.  The other two are not disturbed.
my ($canceled) = value(q{SET ROLE app; SELECT message_id FROM job_list('work')
	WHERE progress ->> 'done' = '3'});
value(q{SET ROLE app; SELECT pg_cancel_backend(pid) FROM job_list('work')
	WHERE progress ->> 'done' = '3'});
becomes(
	q{SET ROLE app; SELECT last_error FROM job_stats('work')},
	'canceling statement due to user request',
	'the owner cancels an attempt');
becomes(q{SET ROLE app; SELECT count(*) FROM job_list('work')
	WHERE message_id <> } . $canceled, '2', 'the others still run');

# A pause does not hide what still runs.
value(q{SET ROLE app; SELECT queue_pause('work')});
is(value(q{SET ROLE app; SELECT DISTINCT state, reason FROM job_list('work')
	WHERE message_id IS NOT NULL}), 'paused|', 'a paused queue, whose jobs go on');
value(q{SET ROLE app; SELECT queue_resume('work')});
value(q{UPDATE gate SET is_open = true});
is_done('work', 'the jobs are done');
is( value(q{SET ROLE app; SELECT state, running, message_id, pid, running_since,
	progress FROM job_list('work')}),
	'idle|0||||', 'and gone from the list');

# The progress of one job is not that of the next, in the same process.
value(q{UPDATE gate SET is_open = false; SET ROLE app; SELECT queue_push('work', '{}')});
becomes(q{SET ROLE app; SELECT state, progress FROM job_list('work')},
	'running|', 'a job begins without progress');
value(q{UPDATE gate SET is_open = true});
is_done('work', 'it is done');

# --- a job in a session; what cannot run ---

value(q{UPDATE gate SET is_open = false; SET ROLE app;
	SELECT queue_create('session'); SELECT queue_pause('session');
	SET search_path = app, public; SELECT job_handler('session', 'steps(jsonb)')});
$node->append_conf('postgresql.conf', 'queue.runners = 0');
$node->reload;
becomes(q{SET ROLE app; SELECT reason ~ 'no background process' FROM job_list('other')},
	't', 'that no process may run jobs is a reason');
value(q{SET ROLE app; SELECT queue_resume('session');
	SELECT queue_push('session', '{"done": 1, "total": 2}')});
my $session = $node->background_psql($db);
my $pid = $session->query('SET ROLE app; SELECT pg_backend_pid()');
$session->query_until(qr/begins/, "\\echo begins\nCALL job_run('{session}');\n");
becomes(q{SET ROLE app; SELECT pid, progress FROM job_list('session')},
	qq($pid|{"done": 1, "total": 2}), 'job_run shows its job, too');
value(q{UPDATE gate SET is_open = true});
$session->quit;
is_done('session', 'it is done');

value(q{SET ROLE app; DROP FUNCTION app.steps; SELECT queue_push('work', '{}')});
$node->adjust_conf('postgresql.conf', 'queue.runners', '4');
$node->reload;
becomes(q{SET ROLE app; SELECT state, reason ~ 'steps' FROM job_list('work')},
	'stopped|t', 'the owner sees why its handler cannot run');

# Once it can, a pause by a command is one: it has no reason, and lasts.
value(q{SET ROLE app; SET search_path = app, public;
	CREATE FUNCTION steps(body jsonb) RETURNS boolean LANGUAGE sql AS 'SELECT true'});
is_done('work', 'with a function again it goes on');
value(q{SET ROLE app; SELECT queue_pause('work')});
is(value(q{SET ROLE app; SELECT state, reason FROM job_list('work')}),
	'paused|', 'a pause by a command, later');
value(q{SET ROLE app; SET search_path = app, public;
	SELECT job_handler('work', 'steps(jsonb)')});
is(value(q{SELECT paused FROM queue_get('work')}),
	't', 'binding a handler does not end that');

# --- outside a handler ---

is(state_of(q{SET ROLE app; SELECT job_progress(1, 2, 'by hand')}),
	'none', 'job_progress does nothing outside a handler');
is(state_of(q{SET ROLE app; SELECT job_progress(-1)}), '22023', 'done is negative');
is(state_of(q{SET ROLE app; SELECT job_progress(1, -1)}), '22023', 'so is total');
is(state_of(q{SET ROLE app; SELECT job_progress(NULL)}), '22004', 'done is required');

$node->stop;
done_testing();
