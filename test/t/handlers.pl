# Handlers run jobs, each in a transaction of its own, as the role that bound
# them.  What fails is tried again and ends as a dead letter: errors, timeouts,
# cancels, terminated processes.  A teardown runs after each attempt.
#
# test/check -q runs it, too.

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
	'{"_max_claim_count": 12}',
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

picky('fails', '', '"_max_claim_count": 3');
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
value(
	q{SET ROLE app; SET search_path = app, public;
	SELECT job_handler('slow', 'picky(jsonb)', timeout => 600);
	SELECT queue_push('slow', '{"do": "sleep", "for": 0.2}')});
is_done('slow', 'what is in time is done');
value(
	q{SET ROLE app; SET search_path = app, public;
	SELECT job_handler('slow', 'picky(jsonb)', timeout => 1)});
is(value(q{SELECT body ->> 'for' FROM app.log}),
	'0.2', 'only that left an effect');
value(q{SELECT queue_push('slow', '{"do": "stubborn"}')});
becomes(q{SELECT last_error FROM queue_dead_letters('slow.dead')
	WHERE body ->> 'do' = 'stubborn'},
	'runner was terminated',
	'one that ignores each cancel is terminated');

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
my $gate = hold_waiting();
picky('mates', '', '"_max_claim_count": 2');
value(
	q{SELECT queue_pause('mates');
	SELECT queue_push_batch('mates',
		array_fill('{"do": "nothing"}'::jsonb, ARRAY[200]));
	SELECT queue_push('mates', '{"do": "wait"}');
	SELECT queue_push_batch('mates',
		array_fill('{"do": "nothing"}'::jsonb, ARRAY[20]));
	SELECT queue_resume('mates')});
becomes($waits, '1', 'one is at work');
value(q{SELECT pg_terminate_backend(pid) FROM (} . sprintf($at_work, 'mates') . ') r');
becomes(q{SELECT retried FROM job_stats('mates')}, '1', 'its runner was terminated');
$gate->quit;
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

$node->stop;
done_testing();
