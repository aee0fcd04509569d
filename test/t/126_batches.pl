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
my $has_worker = $node->pg_version >= 17 || value('SHOW shared_preload_libraries') =~ /queue/;

# What is free in the queue "after", without a claim that would look for the end
# of batches itself where there is a worker
my $freed = q{SELECT string_agg(body #>> '{}', ' ' ORDER BY id) FROM queue_messages('after')};
$freed = q{BEGIN; SELECT string_agg(body #>> '{}', ' ' ORDER BY id) FROM queue_claim('after', 60, 60, 100);
	ROLLBACK} if !$has_worker;

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
	is(value('SELECT count(*) FROM queue_data.batch_part'), '0', "$what: no parts are left");
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
value(
	q{BEGIN; SELECT set_config('test.b', batch_create()::text, false);
	SELECT queue_push('after', '"freed"', after => current_setting('test.b')::bigint);
	SELECT queue_purge('after.dead'); PREPARE TRANSACTION 'p'});
is(value('SELECT count(*) FROM batch_list() WHERE finished_at IS NULL'),
	'0', 'a batch that was created by a prepared transaction is not there');
value(q{SELECT queue_pop('after', 10)});
value(q{COMMIT PREPARED 'p'});
becomes($freed, 'freed', 'it finishes when that is committed');

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

SKIP:
{
	skip 'there is no worker', 1 if !$has_worker;

	# The worker finds all batches when it starts.
	$batch = fresh(1);
	value(q{SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity
		WHERE backend_type = 'queue worker'});
	value(q{SELECT count(*) FROM queue_pop('member')});
	is_finished($batch, 'the worker was terminated');
}

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
SKIP:
{
	skip 'there is no worker', 2 if !$has_worker;
	becomes(q{SELECT free FROM queue_stats('after')}, $n, 'all batches have finished');
	is( value(q{SELECT count(*), count(DISTINCT id) FROM queue_messages('after', "limit" => 10000)}),
		"$n|$n",
		'and what waits was freed once');
	is(value('SELECT count(*) FROM queue_data.batch_part'), '0', 'no parts are left');
}
done_testing();
