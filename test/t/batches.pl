# The end of a batch: exactly once, whatever becomes of the sessions that finish
# its members, and without any other session having to act.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../perl";

use PostgreSQL::Test::Utils;
use QueueTest;
use Test::More;

start_server(
	q{
autovacuum = off
max_prepared_transactions = 10
});

# What is free in the queue "after"
my $freed = q{SELECT string_agg(body #>> '{}', ' ' ORDER BY id) FROM queue_messages('after')};

# Makes a batch with n members, for which a message waits; returns its id.
sub fresh
{
	my ($n) = @_;

	return value(
		qq{
		SELECT queue_drop('member'), queue_drop('after'), queue_drop('after.dead');
		BEGIN;
		SELECT set_config('test.b', batch_create()::text, false);
		SELECT count(queue_push('member', to_jsonb(i), batch => current_setting('test.b')::bigint))
		FROM generate_series(1, $n) AS i;
		SELECT queue_push('after', '"freed"', after => current_setting('test.b')::bigint);
		COMMIT;
		SELECT current_setting('test.b')}) =~ /(\d+)$/ ? $1 : die;
}

sub is_finished
{
	my ($batch, $what) = @_;

	becomes($freed, 'freed', "$what: what waits is free");
	is( value("SELECT members = completed + failed AND unfinished = 0 AND waiting = 0
			AND finished_at IS NOT NULL FROM batch_status($batch)"),
		't',
		"$what: the batch has finished");
	becomes('SELECT count(*) FROM queue_data.batch_part', '0', "$what: no parts are left");
	return;
}

sub is_open
{
	my ($batch, $unfinished, $what) = @_;

	is( value("SELECT unfinished, finished_at IS NULL FROM batch_status($batch)"),
		"$unfinished|t", "$what: the batch has not finished");
	is(value($freed), '', "$what: and nothing is free");
	return;
}

# --- One after the other ---

my $batch = fresh(3);
value(q{SELECT count(*) FROM queue_pop('member', 2)});
is_open($batch, 1, 'two of three');
value(q{BEGIN; SELECT count(*) FROM queue_pop('member'); ROLLBACK});
is_open($batch, 1, 'a rollback');
value(q{SELECT count(*) FROM queue_pop('member')});
is_finished($batch, 'the third one');

# --- Two at once ---

$batch = fresh(2);
my @sessions = map { $node->background_psql('postgres') } 1 .. 2;
$_->query_safe(q{BEGIN; SELECT count(*) FROM queue_pop('member')}) foreach @sessions;
is_open($batch, 2, 'two are about to finish');
$_->query_safe('COMMIT') foreach @sessions;
is_finished($batch, 'two at once');

# --- A member that is being added ---

$batch = fresh(1);
$sessions[0]->query_safe("BEGIN; SELECT queue_push('member', '2', batch => $batch)");
value(q{SELECT count(*) FROM queue_pop('member')});
is_open($batch, 0, 'one more is being added');
$sessions[0]->query_safe('COMMIT');
is_open($batch, 1, 'it was added');
value(q{SELECT count(*) FROM queue_pop('member')});
is_finished($batch, 'it is finished');

$batch = fresh(1);
$sessions[0]->query_safe("BEGIN; SELECT queue_push('member', '2', batch => $batch)");
value(q{SELECT count(*) FROM queue_pop('member')});
is_open($batch, 0, 'one more is being added');
$sessions[0]->query_safe('ROLLBACK');
is_finished($batch, 'it was not');

$batch = fresh(1);
$sessions[0]
  ->query_safe("BEGIN; SAVEPOINT s; SELECT queue_push('member', '2', batch => $batch)");
value(q{SELECT count(*) FROM queue_pop('member')});
is_open($batch, 0, 'one more is being added in a savepoint');
$sessions[0]->query_safe('ROLLBACK TO s; COMMIT');
is_finished($batch, 'it was rolled back to');

# --- Prepared transactions ---

foreach my $restart (0, 1)
{
	my $how = $restart ? 'prepared, restarted' : 'prepared';

	foreach my $end ('COMMIT', 'ROLLBACK')
	{
		$batch = fresh(1);
		value(q{BEGIN; SELECT count(*) FROM queue_pop('member'); PREPARE TRANSACTION 'p'});
		$node->restart if $restart;
		is_open($batch, 1, "$how: a member is about to finish");
		value("$end PREPARED 'p'");
		if ($end eq 'ROLLBACK')
		{
			is_open($batch, 1, "$how: it is not");
			becomes(q{SELECT count(*) FROM queue_pop('member')}, '1', "$how: it is free");
		}
		is_finished($batch, "$how: $end");

		$batch = fresh(1);
		value("BEGIN; SELECT queue_push('member', '2', batch => $batch); PREPARE TRANSACTION 'p'");
		$node->restart if $restart;
		value(q{SELECT count(*) FROM queue_pop('member')});
		is_open($batch, 0, "$how: a member is being added");
		value("$end PREPARED 'p'");
		if ($end eq 'COMMIT')
		{
			is_open($batch, 1, "$how: it was added");
			becomes(q{SELECT count(*) FROM queue_pop('member')}, '1', "$how: it is free");
		}
		is_finished($batch, "$how: adding, $end");
	}
}
foreach my $restart (0, 1)
{
	my $how = $restart ? 'prepared, restarted' : 'prepared';

	value(q{SELECT queue_purge('after')});
	value(
		q{BEGIN; SELECT set_config('test.b', batch_create()::text, false);
		SELECT queue_push('after', '"freed"', after => current_setting('test.b')::bigint);
		SELECT queue_purge('after.dead'); PREPARE TRANSACTION 'p'});
	$node->restart if $restart;
	becomes(q{SELECT state FROM queue_data.queue_workers WHERE database = current_database()},
		'idle', "$how: the worker has looked");
	is(value('SELECT count(*) FROM batch_list() WHERE finished_at IS NULL'),
		'0', "$how: a batch that was created is not there");
	value(q{COMMIT PREPARED 'p'});
	becomes($freed, 'freed', "$how: it finishes when that is committed");
}

# --- Crashes ---

$batch = fresh(2);
value(q{SELECT count(*) FROM queue_pop('member', 1)});
$node->stop('immediate');
$node->start;
is_open($batch, 1, 'a crash');
value(q{SELECT count(*) FROM queue_pop('member')});
is_finished($batch, 'after a crash');

$batch = fresh(2);
$_->quit foreach @sessions;
@sessions = map { $node->background_psql('postgres') } 1 .. 2;
$sessions[0]->query_safe(q{BEGIN; SELECT count(*) FROM queue_pop('member', 2)});
my $pid = $sessions[0]->query_safe('SELECT pg_backend_pid()');
value("SELECT pg_terminate_backend($pid, 60000)");
becomes("SELECT unfinished FROM batch_status($batch)", '2', 'a session was terminated');
becomes(q{SELECT count(*) FROM queue_pop('member', 2)}, '2', 'its members are free');
is_finished($batch, 'after that');
$_->quit foreach $sessions[1];

# --- What is in the way ---

# A transaction with the deduplication key of a message that waits
@sessions = map { $node->background_psql('postgres') } 1 .. 2;
$batch = fresh(1);
value(qq{SELECT queue_push('after', '"keyed"', dedup_key => 'k', after => $batch)});
$sessions[0]->query_safe(q{BEGIN; SELECT queue_push('after', '"other"', dedup_key => 'k')});
value(q{SELECT count(*) FROM queue_pop('member')});
becomes($freed, 'freed', 'a key is being taken: others are free');
is(value("SELECT waiting FROM batch_status($batch)"), '1', 'and the message with the key waits');
$sessions[0]->query_safe('COMMIT');
becomes("SELECT waiting FROM batch_status($batch)", '0', 'until that has ended');
becomes(q{SELECT count(*) FROM queue_pop('after', 10)}, '2', 'it is a duplicate');

# A role that locks the queue in which messages wait
$batch = fresh(1);
$sessions[0]->query_safe(q{SET client_min_messages = warning; BEGIN; SELECT queue_purge('after.dead'), queue_purge('after')});
value(q{SELECT count(*) FROM queue_pop('member')});
becomes("SELECT finished_at IS NOT NULL FROM batch_status($batch)", 't',
	'a queue is locked: the batch has finished');
is(value("SELECT waiting FROM batch_status($batch)"), '1', 'and what waits is locked');
$sessions[0]->query_safe('ROLLBACK');
is_finished($batch, 'a queue was locked');
$_->quit foreach @sessions;

# A queue without a dead letter queue gets it, as its owner's, when a message that
# waits becomes a dead letter.  Until that is possible, the message stays.
value(
	q{CREATE ROLE rich IN ROLE queue_producer, queue_consumer;
	CREATE ROLE poor IN ROLE queue_producer, queue_consumer;
	SET ROLE rich; SELECT queue_create('vault'), queue_grant('vault', 'rich', 'claim');
	SET ROLE poor; SELECT queue_create('vault.dead'), queue_create('open')});

# A batch whose only member fails, for which messages in both queues wait
sub failing
{
	return value(
		q{SET ROLE poor;
		SELECT set_config('test.b', batch_create(keep_open => true)::text, false);
		SELECT queue_push('open', '"member"', batch => current_setting('test.b')::bigint);
		SELECT queue_push('vault', '"in vain"', after => current_setting('test.b')::bigint, after_success => true);
		SELECT queue_purge('open');
		SELECT queue_push('open', '"freed"', after => current_setting('test.b')::bigint);
		SELECT batch_close(current_setting('test.b')::bigint);
		SELECT current_setting('test.b')}) =~ /(\d+)$/ ? $1 : die;
}

# Only the message in the queue "open" becomes free.
sub is_stuck
{
	my ($how) = @_;

	becomes("SELECT waiting FROM batch_status($batch)", '1', "$how: others are freed");
	is( value(q{SELECT string_agg(body #>> '{}', ' ') FROM queue_pop('open', 10)}),
		'freed', "$how: they can be claimed");
	is( value(q{SELECT metadata FROM queue_get('vault')}),
		'{"a": 1}', "$how: the metadata of the queue is unchanged");
	return;
}

# Then the other one becomes a dead letter.
sub is_dead_letter
{
	my ($how) = @_;

	becomes("SELECT waiting FROM batch_status($batch)", '0', "$how: until that has ended");
	is( value(
			q{SELECT d.owner, q.metadata->>'_dead_letter_queue', l.body, l.reason
			FROM queue_data.queue AS q JOIN queue_data.queue AS d ON d.source_id = q.id,
				queue_dead_letters(d.name) AS l
			WHERE q.name = 'vault'}),
		'rich|vault.dead|"in vain"|batch',
		"$how: it is a dead letter in the queue of the owner");
	value(
		q{SELECT queue_set_metadata('vault', '{"a": 1}'); SELECT queue_drop('vault.dead')});
	return;
}

value(q{SELECT queue_set_metadata('vault', '{"a": 1}')});
my $log_offset = -s $node->logfile;
$batch = failing();
is_stuck('the name is taken by another role');
ok( $node->wait_for_log(
		qr/WARNING: .*"vault" .*dead letter queue: queue "vault.dead" belongs to another role/,
		$log_offset),
	'a warning says so');
sleep 2;    # Meanwhile the worker tries again.
is(() = substr(slurp_file($node->logfile), $log_offset) =~ /WARNING: .*"vault" .*dead letter queue/g,
	1, 'once a minute');
value(q{SELECT queue_drop('vault.dead')});
is_dead_letter('the name is taken by another role');

# Locks that users hold are not waited for.
foreach my $lock (q{SELECT queue_update('vault', '{"a": 1}')},
	q{SET ROLE poor; SELECT queue_create('vault.dead')})
{
	my $session = $node->background_psql('postgres');

	$session->query_safe("BEGIN; $lock");
	$batch = failing();
	is_stuck($lock);
	$session->query_safe('ROLLBACK');
	$session->quit;
	is_dead_letter($lock);
}

# Rows that are restored before the sequence
$node->safe_psql('postgres', 'CREATE DATABASE restored');
value(q{CREATE EXTENSION queue; SELECT queue_push('q', '1')}, 'restored');
value(
	q{INSERT INTO queue_data.batch (id, owner, created_at, closed_at, members, completed, failed)
	VALUES (5, 10, now(), now(), 0, 0, 0)}, 'restored');
my $rounds = value(q{SELECT rounds FROM queue_data.queue_workers WHERE database = 'restored'});
$node->poll_query_until('postgres',
	"SELECT rounds > $rounds + 2 FROM queue_data.queue_workers WHERE database = 'restored'");
is(value('SELECT finished_at IS NULL FROM queue_data.batch', 'restored'),
	't', 'a batch does not finish while a dump is being restored');
value(q{SELECT setval('queue_data.batch_id', 5)}, 'restored');
$node->poll_query_until('restored', 'SELECT finished_at IS NOT NULL FROM queue_data.batch');
is(value('SELECT finished_at IS NOT NULL FROM queue_data.batch', 'restored'),
	't', 'but afterwards');

# The worker finds all batches when it starts.
$batch = fresh(1);
value(q{SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity
	WHERE backend_type = 'queue worker'});
value(q{SELECT count(*) FROM queue_pop('member')});
is_finished($batch, 'the worker was terminated');

# What has waited for too long becomes a dead letter; also if the row of its batch
# was lost, and there is a younger batch.
my $late = fresh(1);
my $lost = value('SELECT batch_create(keep_open => true)');
value('SELECT batch_create(keep_open => true)');
value(qq{SET queue.max_message_delay = 1; SELECT queue_push('after', '"late"', after => $late),
	queue_push('after', '"lost"', after => $lost)});
value("DELETE FROM queue_data.batch WHERE id = $lost");
value('SELECT pg_sleep(1.1)');
value(q{SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity
	WHERE backend_type = 'queue worker'});
becomes(
	q{SELECT string_agg(body #>> '{}', ' ' ORDER BY id) FROM queue_dead_letters('after.dead')
	WHERE reason = 'batch'},
	'late lost',
	'what has waited for too long becomes a dead letter');
value(q{SELECT count(*) FROM queue_pop('member')});
becomes($freed, 'freed', 'the rest is freed at the end of the batch');

# --- Many ---

# More batches than there is room for in shared memory, whose members end in any
# order
my $n = 9000;
value(
	qq{SELECT queue_drop('member'), queue_drop('after'), queue_drop('after.dead');
	CREATE TABLE ids AS SELECT batch_create(keep_open => true) AS b FROM generate_series(1, $n)});
value(
	q{SELECT count(queue_push('member', to_jsonb(b), batch => b)) FROM ids;
	SELECT count(queue_push('after', to_jsonb(b), after => b)) FROM ids});
value('SELECT count(batch_close(b)) FROM ids');
value(q{DO $$ BEGIN WHILE EXISTS (SELECT FROM queue_pop('member', 100)) LOOP COMMIT; END LOOP; END $$});
becomes(q{SELECT free FROM queue_stats('after')}, $n, 'all batches have finished');
is( value(q{SELECT count(*), count(DISTINCT id) FROM queue_messages('after', "limit" => 10000)}),
	"$n|$n",
	'and what waits was freed once');
becomes('SELECT count(*) FROM queue_data.batch_part', '0', 'no parts are left');
done_testing();
