# Whatever changes a message, the row of its queue in queue_status soon says the
# same as queue_stats.  With shared memory, no message is read for that.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../perl";

use PostgreSQL::Test::Utils;
use StatusTest;
use Test::More;
use Time::HiRes qw(sleep time);

start_server('queue.segment_size' => '1MB');

# Runs statements, and compares all rows afterwards.
sub change
{
	my ($what, $sql) = @_;
	value($sql);
	status_is_right($what);
	return;
}

sub push_messages
{
	my ($queue, $n, $arguments) = @_;
	return "SELECT count(queue_push('$queue', to_jsonb(i)"
	  . ($arguments || '') . ")) FROM generate_series(1, $n) AS i;";
}

# Claims n messages, and uses columns claim_id, id (the first), and last.
sub with_claim
{
	my ($queue, $n, $then) = @_;
	return "WITH m AS MATERIALIZED (SELECT * FROM queue_claim('$queue', 600, 0, $n)),
		c AS MATERIALIZED (SELECT claim_id, min(id) AS id, max(id) AS last FROM m GROUP BY 1)
		SELECT $then FROM c;";
}

# --- One transaction ---

change('a queue is created', q{SELECT queue_create('q')});
is(depths('q'), '0|0|0', 'and has a row');
change('pushes',
	push_messages('q', 50) . q{
	SELECT queue_push('q', '0', priority => 9), queue_push('q', '0', delay => 600);
	SELECT queue_post('q', '[{"body": 1, "delay": 1}, {"body": 2, "priority": 3}]');
	SELECT queue_push_lazy('q', '1', delay => 1)});
change('a claim', q{SELECT count(*) FROM queue_claim('q', 600, 0, 10)});
change('a claim is completed',
	with_claim('q', 3, q{claim_complete('q', claim_id)}));
change('a claim is released',
	with_claim('q', 3, q{claim_release('q', claim_id, failed => true)}));
change('a claim is released with a delay',
	with_claim('q', 3, q{claim_release('q', claim_id, 1, failed => true)}));
change('a claim is renewed',
	with_claim('q', 3, q{claim_renew('q', claim_id, 700)}));
change('a message is deleted under its claim',
	with_claim('q', 3, q{message_delete('q', id, claim_id)}));
change(
	'messages are retried, at once and later',
	with_claim('q', 3,
		q{message_retry('q', id, claim_id, 'e', 0), message_retry('q', last, claim_id, 'e', 1)}
	));
change('the next claim',
	with_claim('q', 3,
		q{(SELECT count(*) FROM claim_next('q', claim_id, "limit" => 4))}));
change('pops and deletes',
	q{SELECT count(*) FROM queue_pop('q', 3);
	SELECT message_delete('q', id) FROM queue_messages('q', "limit" => 2)});
change(
	'all of it in one transaction, with subtransactions',
	'BEGIN;' . push_messages('q', 5) . with_claim('q', 4, 'claim_id') . q{
	SAVEPOINT a;} . push_messages('q', 7) . q{
	SELECT count(*) FROM queue_pop('q', 3);
	ROLLBACK TO a;} . with_claim('q', 2, q{claim_complete('q', claim_id)}) . q{
	SAVEPOINT b;} . with_claim('q', 2, q{claim_release('q', claim_id, failed => true)}) . q{
	RELEASE b; COMMIT});
change('a delete under a claim, which runs out before the rollback',
	q{SELECT queue_push('ends', '1');
	SELECT claim_id, id FROM queue_claim('ends', 1, 0) \gset
	BEGIN; SELECT message_delete('ends', :id, :'claim_id');
	SELECT pg_sleep(2.5); SELECT count(*) FROM queue_claim('ends', 60, 0); ROLLBACK});
is(depths('ends'), '1|0|0', 'and is counted');
change('and rolled back',
	'BEGIN;' . push_messages('q', 5) . with_claim('q', 4, 'claim_id') . 'ROLLBACK');
is( value(
		'BEGIN;' . push_messages('uncommitted', 3) . q{
	SELECT ready FROM queue_data.queue_status WHERE name = 'uncommitted'; ROLLBACK}),
	"3\n3",
	'a transaction sees what it has changed itself');
change('a purge', q{SELECT queue_purge('q')});
is(depths('q'), '0|0|0', 'leaves nothing');
change('other SQL deletes messages', push_messages('q', 5) . q{
	SELECT count(*) FROM queue_claim('q', 600, 0, 2);
	DELETE FROM queue_data.message_0 WHERE body IN ('1', '4')});
change('other SQL truncates a table',
	q{TRUNCATE queue_data.message_0});
is(depths('q'), '0|0|0', 'which leaves nothing');
change('a queue is dropped, and created again',
	push_messages('q', 5) . q{SELECT queue_drop('q');} . push_messages('q', 2));
is(depths('q'), '2|0|0', 'it has the new messages');

# --- The clock ---

value(
	push_messages('ends', 20) . q{
	SELECT count(*) FROM queue_claim('ends', 1, 0, 3);
	SELECT count(*) FROM queue_claim('ends', 2, 0, 3)});
depths_become('ends', '20|0|0', 'claims end');
change('the messages are claimed again', q{SELECT count(*) FROM queue_claim('ends', 600, 0, 6)});
value(push_messages('due', 5, ', delay => 1'));
depths_become('due', '5|0|0', 'delayed messages are due');
value(q{SET queue.min_message_ttl = 1;} . push_messages('expire', 4, ', ttl => 1')
	  . push_messages('expire', 4));
depths_become('expire', '4|0|0', 'messages expire');
value(q{SET queue.min_message_ttl = 1;
	SELECT queue_push('early', '1', ttl => 1, delay => 600), queue_push('early', '1', delay => 300)});
depths_become('early', '0|0|2', 'no delayed message expires before it is due');

# --- Dead letters, settings, duplicates, root jobs and handlers ---

change('a message is buried', with_claim('q', 3, q{message_bury('q', id, claim_id, 'e')}));
change('messages are canceled', with_claim('q', 3, q{message_cancel('q', id), claim_release('q', claim_id, failed => true)})
	  . q{SELECT messages_cancel('q', ARRAY(SELECT id FROM queue_messages('q', "limit" => 2)))});
change('a message is published to several queues',
	q{SELECT topic_bind('t', 'q'), topic_bind('t', 'r'), topic_bind('t', 's');
	SELECT topic_publish('t', to_jsonb(i), delay => i % 2) FROM generate_series(1, 3) AS i;
	SELECT topic_unbind('t', 'q')});
value(q{SELECT queue_create('dead', '{"_max_claim_count": 2}')});
change(
	'messages that are claimed too often',
	push_messages('dead', 4)
	  . with_claim('dead', 4, q{claim_release('dead', claim_id, failed => true)})
	  . with_claim('dead', 1, q{claim_release('dead', claim_id, failed => true)})
	  . with_claim('dead', 1, q{message_retry('dead', id, claim_id)})
	  . with_claim('dead', 1, q{message_delete('dead', id, claim_id)}));
depths_become('dead.dead', '2|0|0', 'become dead letters');
change('a redrive', q{SELECT queue_redrive('dead.dead', "limit" => 1)});
change('a lower bound of claims',
	q{SELECT queue_update('dead', '{"_max_claim_count": 1}')});
value(with_claim('dead', 10, q{claim_release('dead', claim_id, failed => true)}));
depths_become('dead', '0|0|0', 'ends what was claimed before');
change('a paused queue', push_messages('paused', 4)
	  . q{SELECT count(*) FROM queue_claim('paused', 1, 0, 2);
	SELECT queue_pause('paused')});
depths_become('paused', '4|0|0', 'has claims that end');
change(
	'duplicates', q{
	SELECT queue_push('keys', '1', dedup_key => 'k'), queue_push('keys', '2', dedup_key => 'k');
	CREATE TABLE c AS SELECT claim_id FROM queue_claim('keys');
	SELECT queue_push('keys', '3', dedup_key => 'k');
	SELECT claim_release('keys', claim_id, failed => true) FROM c;} . with_claim('keys', 1, q{claim_complete('keys', claim_id)})
	  . q{SELECT count(*) FROM queue_claim('keys')});
change(
	'jobs of an old root', q{
	CREATE TABLE r AS SELECT job_root('leaves', 's') AS root;
	SELECT queue_push('leaves', jsonb_build_object('n', i) || root) FROM generate_series(1, 5) AS i, r;
	SELECT job_root('leaves', 's');
	SELECT count(*) FROM queue_claim('leaves')});
is(depths('leaves'), '0|0|0', 'are gone');
value(q{CREATE FUNCTION handle(body jsonb) RETURNS boolean LANGUAGE sql AS 'SELECT $1 <> ''3''';
	SELECT queue_create('jobs', '{"_max_claim_count": 1}'); SELECT queue_pause('jobs');
	SELECT job_handler('jobs', 'handle(jsonb)')});
change('jobs', push_messages('jobs', 5) . q{SELECT queue_resume('jobs'); CALL job_run('{jobs}')});
depths_become('jobs.dead', '1|0|0', 'are run by their handler');

# --- Groups ---

value(q{SELECT queue_create('groups', '{"_group_concurrency": 1}')});
change('messages of groups',
	push_messages('groups', 30, q{, group_key => (i % 4)::text, delay => 10 * (i % 2)}));
change(
	'are claimed',
	with_claim('groups', 4, q{claim_complete('groups', claim_id)})
	  . with_claim('groups', 4, q{claim_release('groups', claim_id, 1, failed => true)})
	  . q{SELECT count(*) FROM queue_claim('groups', 1, 0, 4)});
depths_become('groups', '28|0|0', 'and these claims end');

# --- Prepared transactions ---

value(
	push_messages('p', 40) . q{
	CREATE TABLE given AS SELECT DISTINCT claim_id FROM queue_claim('p', 600, 0, 5)});
for my $end ('ROLLBACK', 'COMMIT')
{
	my $n = 0;

	for my $sql (push_messages('p', 6), push_messages('new', 3),
		push_messages('p', 2, ', delay => 600'),
		q{SELECT count(*) FROM queue_claim('p', 600, 0, 3)},
		q{SELECT count(*) FROM queue_claim('p', 1, 0, 3)},
		q{SELECT count(*) FROM queue_pop('p', 2)},
		q{SELECT claim_release('p', claim_id, failed => true) FROM given},
		'SAVEPOINT s;' . push_messages('p', 3) . 'ROLLBACK TO s;' . push_messages('p', 1))
	{
		value("BEGIN; $sql; PREPARE TRANSACTION 'p" . $n++ . q{'});
	}
	status_is_right("prepared transactions, before $end");
	value(join ';', map { "$end PREPARED 'p$_'" } 0 .. $n - 1);
	status_is_right("and after it");
}

# The list of what prepared transactions have changed has no room for that.
my $before = recounts();
value(q{
	BEGIN;
	DO $$
	BEGIN
		FOR i IN 1..2500 LOOP
			BEGIN
				PERFORM queue_push('large', '1');
			EXCEPTION WHEN division_by_zero THEN
			END;
		END LOOP;
	END $$;
	PREPARE TRANSACTION 'large'});
sleep 2;
value(q{COMMIT PREPARED 'large'});
depths_become('large', '2500|0|0', 'a prepared transaction with very many changes');
ok(recounts() > $before, 'for which all messages were counted');

value(q{BEGIN; SELECT queue_push('p', '1'); DROP EXTENSION queue;
	PREPARE TRANSACTION 'drop'; ROLLBACK PREPARED 'drop'});
status_is_right('a prepared transaction that drops the extension');

# --- Segments ---

value(push_messages('segments', 10) . q{SELECT count(*) FROM queue_claim('segments', 600, 0, 3)});
my $recounts = recounts();

# When the worker switches depends on what was written by then, so one round
# may not be enough.  What each leaves has to move to another segment.
my $end = time + $PostgreSQL::Test::Utils::timeout_default;
my ($truncated, $moved) = (0, 0);
while ($truncated == 0 || $moved == 0)
{
	last if time > $end;
	change('segments switch', q{
		SELECT queue_push_batch('bulk', array_agg(to_jsonb(body)))
		FROM (SELECT string_agg(md5((i * j)::text), '') AS body
			FROM generate_series(1, 1000) AS i, generate_series(1, 60) AS j GROUP BY i) AS b;
		SELECT count(queue_push('segments', '1')) FROM generate_series(1, 10);
		SELECT count(*) FROM generate_series(1, 20) AS i, queue_pop('bulk', 60 + 0 * i)});
	($truncated, $moved) = split /\|/,
	  value('SELECT truncated, moved FROM queue_data.queue_workers');
}
cmp_ok($truncated, '>', 0, 'one is truncated');
cmp_ok($moved, '>', 0, 'messages are moved');
status_is_right('and messages have moved');
is(recounts(), $recounts, 'that needs no recount');

# --- Other SQL than the functions ---

value(push_messages('sql', 5));
change('messages are deleted with SQL', q{DO $$ BEGIN FOR i IN 0..15 LOOP
	EXECUTE format('DELETE FROM queue_data.message_%s WHERE body IN (''1'', ''2'')
		AND queue_id = (SELECT id FROM queue_data.queue WHERE name = ''sql'')', i);
	END LOOP; END $$});
is(depths('sql'), '3|0|0', 'and do not count');

# --- A crash, and the end of the worker ---

value(push_messages('crash', 10)
	  . q{SELECT count(*) FROM queue_claim('crash', 2, 0, 3);
	BEGIN; SELECT count(*) FROM queue_pop('crash', 2); PREPARE TRANSACTION 'crash'});
$node->stop('immediate');
$node->start;
status_is_right('after a crash');
value(q{COMMIT PREPARED 'crash'});
depths_become('crash', '8|0|0', 'and what was in progress then');
value(push_messages('crash', 2));
kill_worker();
value(push_messages('crash', 2) . q{SELECT count(*) FROM queue_claim('crash', 600, 0, 3)});
status_is_right('after the worker was terminated');

# --- No room for maps ---

$node->append_conf('postgresql.conf', 'queue.max_active_queues = 200');
$node->restart;
value(q{SELECT count(queue_push('many' || i, '1')) FROM generate_series(1, 300) AS i});
value(q{SELECT count(*) FROM generate_series(1, 300) AS i, queue_pop('many' || i) WHERE i % 3 = 0});
is(value(q{SELECT count(*), count(ready) FROM queue_data.queue_status WHERE name ~ '^many'}),
	'300|0', 'more queues than there is room for: the numbers are not known');

$node->stop;
done_testing();
