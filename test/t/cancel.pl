# Canceled messages: a handler that works on one is interrupted, and no other; and
# of sessions that complete and cancel the same messages, one succeeds for each.
#
# QUEUE_CANCEL_MESSAGES makes it a longer one.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../perl";

use IPC::Run;
use PostgreSQL::Test::Utils;
use QueueTest;
use Test::More;

start_server(
	q{
autovacuum = off
max_prepared_transactions = 10
max_connections = 50
max_pred_locks_per_transaction = 1000
queue.min_claim_ttl = 1
});

# --- Handlers ---

# Each call draws from the sequence, also if it is rolled back.
value(
	q{
CREATE TABLE effect (body jsonb);
CREATE SEQUENCE calls;
CREATE FUNCTION work(body jsonb) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
	PERFORM nextval('calls');
	INSERT INTO effect VALUES (body);
	CASE body #>> '{}'
	WHEN 'sleep' THEN
		PERFORM pg_sleep(600);
	WHEN 'loop' THEN
		LOOP
			body := body;
		END LOOP;
	WHEN 'lock' THEN
		PERFORM pg_advisory_xact_lock(1);
	WHEN 'catch' THEN
		BEGIN
			PERFORM pg_sleep(600);
		EXCEPTION WHEN query_canceled THEN
			INSERT INTO effect VALUES ('"caught"');
		END;
	WHEN 'own' THEN
		PERFORM message_cancel('h', id) FROM queue_messages('h', include_claimed => true);
	ELSE
	END CASE;
	RETURN true;
END
$$;
CREATE FUNCTION count_up(body jsonb) RETURNS boolean LANGUAGE sql AS $$
	SELECT count(*) > 0 FROM generate_series(1, 1000000000)
$$;
SELECT queue_create('h', '{"_max_claim_count": 5, "_retry_delay": 0}');
SELECT job_handler('h', 'work(jsonb)');
SELECT queue_create('s', '{"_max_claim_count": 5, "_retry_delay": 0}');
SELECT job_handler('s', 'count_up(jsonb)')});

my $running = q{SELECT message_id FROM job_list('%s') WHERE pid IS NOT NULL};

# Pushes a message and returns its id when its job runs.
sub run
{
	my ($q, $body, $more) = @_;
	my $id = value("SELECT queue_push('$q', '\"$body\"'" . ($more // '') . ')');
	becomes(sprintf($running, $q), $id, "$body: it runs");
	return $id;
}

my $retries = '0|0';    # so far, and dead letters

sub is_gone
{
	my ($q, $what) = @_;

	becomes(
		"SELECT count(*) FROM queue_messages('$q', NULL, 100, true, true, true)",
		'0', "$what: the message is gone");
	is(value("SELECT retried || '|' || abandoned FROM job_stats('$q')"),
		$retries, "$what: it was not retried");
	return;
}

for my $body ('sleep', 'loop', 'lock', 'catch')
{
	my $locker = $node->background_psql($db);
	$locker->query_safe('SELECT pg_advisory_lock(1)');
	my $id = run('h', $body);
	is(value("SELECT message_cancel('h', $id, 'not needed')"), 'pending', "$body: canceled");
	is_gone('h', $body);
	value("SELECT count(queue_push('h', '\"after\"')) FROM generate_series(1, 20)");
	becomes(q{SELECT string_agg(DISTINCT body #>> '{}', ' '), count(*) FROM effect},
		'after|20', "$body: only the jobs after it had an effect");
	value('TRUNCATE effect');
	$locker->quit;
}
my $id = run('s', 'count');
is(value("SELECT message_cancel('s', $id)"), 'pending', 'SQL: canceled');
is_gone('s', 'SQL');

# A queue with a bound goes on with its group.
value(q{SELECT queue_update('h', '{"_group_concurrency": 1}')});
$id = run('h', 'sleep', q{, group_key => 'g'});
value(q{SELECT queue_push('h', '"next"', group_key => 'g')});
value("SELECT message_cancel('h', $id)");
becomes(q{SELECT string_agg(body #>> '{}', ' ') FROM effect}, 'next', 'the group goes on');
value('TRUNCATE effect');

# It is not interrupted when the cancel is rolled back, or prepared; and that of a
# prepared transaction counts at the end.
my $locker = $node->background_psql($db);
$locker->query_safe('SELECT pg_advisory_lock(1)');
$id = run('h', 'lock');
value("BEGIN; SELECT message_cancel('h', $id); ROLLBACK");
value("BEGIN; SELECT message_cancel('h', $id); PREPARE TRANSACTION 'p'");
is(value(sprintf($running, 'h')), $id, 'it runs on');
value(q{COMMIT PREPARED 'p'});
is(value(sprintf($running, 'h')), $id, 'and after the commit, too');
$locker->query_safe('SELECT pg_advisory_unlock(1)');
is_gone('h', 'prepared');
is(value('SELECT count(*) FROM effect'), '0', 'prepared: there is no effect');

# A runner that exits does not give the message back.
$locker->query_safe('SELECT pg_advisory_lock(1)');
$id = run('h', 'lock');
value("BEGIN; SELECT message_cancel('h', $id); PREPARE TRANSACTION 'p'; COMMIT PREPARED 'p'");
value(q{SELECT pg_terminate_backend(pid) FROM job_list('h') WHERE pid IS NOT NULL});
is_gone('h', 'terminated');
$locker->query_safe('SELECT pg_advisory_unlock(1)');

# One that waits in the batch of a runner is not begun.
value(q{ALTER SYSTEM SET queue.runners = 1; SELECT pg_reload_conf()});
value(
	q{CREATE SEQUENCE torn_down;
	CREATE FUNCTION tear_down(body jsonb) RETURNS bigint LANGUAGE sql AS $$SELECT nextval('torn_down')$$;
	SELECT job_handler('h', 'work(jsonb)', teardown => 'tear_down(jsonb)')});
value(q{SELECT count(queue_push('h', '"quick"')) FROM generate_series(1, 300)});
is_gone('h', 'quick');
$locker->query_safe('SELECT pg_advisory_lock(1)');
value('TRUNCATE effect');
my $before = value('SELECT last_value FROM calls');
my $torn_down = value('SELECT last_value FROM torn_down');
my @ids = split /\n/, value(
	q{SELECT queue_push('h', CASE i WHEN 1 THEN '"lock"' ELSE '"behind"' END::jsonb)
	FROM generate_series(1, 4) AS i});
becomes(sprintf($running, 'h'), $ids[0], 'the first one runs');
is( value(qq{SELECT message_cancel('h', $ids[2])}), 'pending', 'one behind it is canceled');
$locker->query_safe('SELECT pg_advisory_unlock(1)');
is_gone('h', 'behind');
is( value(q{SELECT string_agg(body #>> '{}', ' ' ORDER BY ctid) FROM effect}),
	'lock behind behind', 'the others were run');
is( value('SELECT last_value FROM calls') - $before, 3, 'the canceled one was not');
is(value('SELECT last_value FROM torn_down') - $torn_down, 3, 'nor is there anything to be torn down');
value('TRUNCATE effect');

# A session that cancels a message, and does not commit, keeps neither the claim of
# the job before it from being renewed nor the other messages from other runners.
value(q{SELECT job_handler('h', 'work(jsonb)', concurrency => 2)});
value(q{SELECT count(queue_push('h', '"quick"')) FROM generate_series(1, 300)});
is_gone('h', 'quick again');
value('TRUNCATE effect');
$locker->query_safe('SELECT pg_advisory_lock(1)');
@ids = split /\n/, value(
	q{SELECT queue_push('h', CASE i WHEN 1 THEN '"lock"' ELSE '"behind"' END::jsonb)
	FROM generate_series(1, 4) AS i});
becomes(sprintf($running, 'h'), $ids[0], 'the first one runs again');
my $canceler = $node->background_psql($db);
like($canceler->query_safe("BEGIN; SELECT message_cancel('h', $ids[2])"),
	qr/pending/, 'one behind it is being canceled');
value(q{ALTER SYSTEM SET queue.runners = 2; SELECT pg_reload_conf()});
becomes(q{SELECT string_agg(body #>> '{}', ' ') FROM effect}, 'behind behind', 'others get what waits behind it');
my $ends = "SELECT claimed_until FROM queue_data.message WHERE id = $ids[0]";
my $first = value($ends);
becomes("SELECT ($ends) > '$first'", 't', 'the claim of the first one is renewed');
$canceler->query_safe('COMMIT');
$locker->query_safe('SELECT pg_advisory_unlock(1)');
becomes('SELECT count(*) FROM effect', '3', 'all but the canceled one are run');
value('TRUNCATE effect');
value(q{ALTER SYSTEM SET queue.runners = 1; SELECT pg_reload_conf()});

# A handler cannot cancel its own message.
value(q{SELECT queue_push('h', '"own"')});
becomes(q{SELECT last_error FROM queue_dead_letters('h.dead')},
	'handler has canceled its own message', 'a handler that cancels its own message is told');
$retries = '4|1';
is_gone('h', 'its own');

# A session in job_run goes on, too.
value(q{ALTER SYSTEM SET queue.runners = 0; SELECT pg_reload_conf()});
my ($said, $err) = ('', '');
$id = value(q{SELECT queue_push('h', '"sleep"')});
value(q{SELECT count(queue_push('h', '"after"')) FROM generate_series(1, 20)});
my $session = IPC::Run::start(
	[ 'psql', '-X', '-At', '-d', $node->connstr($db),
		'-c', q{CALL job_run('{h}', 100, 600)} ],
	'>', \$said, '2>', \$err);
becomes(sprintf($running, 'h'), $id, 'job_run: the first job runs');
value("SELECT message_cancel('h', $id)");
becomes('SELECT count(*) FROM effect', '20', 'job_run goes on');
$session->finish;
like($said, qr/"ok": 20\b/, 'and returns');
unlike($err, qr/ERROR/, 'without an error');
is_gone('h', 'job_run');

# --- Cancel against complete ---

my $n = $ENV{QUEUE_CANCEL_MESSAGES} // 1000;

value(
	qq{
CREATE TABLE message (id bigint);
CREATE TABLE done (id bigint);
CREATE TABLE canceled (id bigint, result text);
SELECT queue_create('q', '{"_group_concurrency": 1, "_max_claim_count": 1000}');
CREATE TABLE batch AS SELECT batch_create(keep_open => true) AS id;
INSERT INTO message SELECT queue_push('q', to_jsonb(i),
	group_key => CASE WHEN i % 4 = 0 THEN (i % 32)::text END, batch => batch.id)
FROM generate_series(1, $n) AS i, batch;
SELECT batch_close(id) FROM batch;
SELECT queue_pause('q')});
value(
	q{
CREATE PROCEDURE complete(worker integer) LANGUAGE plpgsql AS $$
DECLARE
	levels text[] := '{read committed, repeatable read, serializable}';
	m queue_message[];
BEGIN
	PERFORM set_config('default_transaction_isolation', levels[1 + worker % 3], false);
	COMMIT;
	WHILE (SELECT total FROM queue_stats('q')) > 0 LOOP
		COMMIT;
		m := ARRAY(SELECT c FROM queue_claim('q', 5, 60, CASE worker % 2 WHEN 0 THEN 1 ELSE 30 END) AS c);
		COMMIT;
		CONTINUE WHEN m = '{}';
		BEGIN
			INSERT INTO done SELECT u.id FROM unnest(m) AS u;
			PERFORM pg_sleep(random() * 0.02);
			PERFORM claim_complete('q', m[1].claim_id);
		EXCEPTION WHEN SQLSTATE 'QU004' THEN
			PERFORM claim_release('q', m[1].claim_id, failed => true);
		END;
		COMMIT;
	END LOOP;
END
$$;
CREATE PROCEDURE cancel(worker integer) LANGUAGE plpgsql AS $$
DECLARE
	m bigint;
BEGIN
	FOR m IN SELECT id FROM message WHERE (id >> 9) % 2 = 0 OR random() < 0.2 ORDER BY random() LOOP
		INSERT INTO canceled VALUES (m, message_cancel('q', m));
		COMMIT;
	END LOOP;
END
$$});

# At SERIALIZABLE, any statement may fail: then the claim runs out.
my $retry = q{until said=$("$@" 2>&1); do
	case $said in *'could not serialize'*) ;; *) break ;; esac
done
echo "$said"};
my @workers;

# That the queue is paused at first is said in a NOTICE.
local $ENV{PGOPTIONS} = '-c client_min_messages=warning';
for my $worker (1 .. 16, 'cancel', 'cancel')
{
	my $call = $worker eq 'cancel' ? 'CALL cancel(1)' : "CALL complete($worker)";
	my $output = '';
	my @psql = ('psql', '-X', '-At', '-v', 'ON_ERROR_STOP=1', '-d', $node->connstr($db), '-c', $call);

	push @workers,
	  [ IPC::Run::start([ 'sh', '-c', $retry, 'sh', @psql ], '>', \$output), \$output ];
}
becomes('SELECT count(*) > 0 FROM canceled', 't', 'the first one is canceled');
value(q{SELECT queue_resume('q')});
foreach my $worker (@workers)
{
	$worker->[0]->finish;
	is(${ $worker->[1] }, "CALL\n", 'a session has finished');
}
is( value(
		q{SELECT count(*) FROM message
		WHERE (SELECT count(*) FROM done WHERE done.id = message.id) +
			(SELECT count(DISTINCT id) FROM canceled WHERE canceled.id = message.id AND result IS NOT NULL) <> 1}),
	'0', 'each message was either completed or canceled');
isnt(value('SELECT count(*) FROM done'), '0', 'some were completed');
isnt(value(q{SELECT count(*) FROM canceled WHERE result = 'canceled'}), '0', 'some were removed');
note(
	value(
		q{SELECT format('%s completed, %s removed, %s marked', (SELECT count(*) FROM done),
		count(*) FILTER (WHERE result = 'canceled'), count(*) FILTER (WHERE result = 'pending'))
		FROM canceled}));
becomes(
	q{SELECT s.unfinished, s.completed = (SELECT count(*) FROM done), s.members = s.completed + s.failed
	FROM batch, batch_status(batch.id) AS s},
	'0|t|t', 'the batch has counted each of them');

$node->stop;
done_testing();
