# A step of the worker is short, whatever there is in a queue or waits for a batch:
# the log tells what each step has read.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../perl";

use List::Util qw(max sum0);
use PostgreSQL::Test::Utils;
use QueueTest;
use Test::More;
use Time::HiRes qw(sleep time);

start_server(
	q{
autovacuum = off
log_min_messages = debug2
});
my $role = $node->background_psql($db);

# Waits for a line of the log that matches; returns what it captures.
sub logged
{
	my ($pattern) = @_;
	my $until = time + 180;
	my @found;

	sleep 0.1 while !(@found = slurp_file($node->logfile) =~ /$pattern/g) && time < $until;
	return @found;
}

# Waits until the steps that are logged, each after its commit, have read so much in
# all; returns how much each has.
sub read_in_steps
{
	my ($all, $pattern, $offset) = @_;
	my $until = time + 180;
	my @read;

	do
	{
		sleep 0.1;
		@read = slurp_file($node->logfile, $offset // 0) =~ /$pattern/g;
	} while sum0(@read) < $all && time < $until;
	return @read;
}

# --- What waits for a batch, and cannot be freed ---

my $n = 5000;
value(q{SELECT queue_create(q) FROM unnest('{member, locked, free}'::text[]) AS q});

# Two batches that are the same: for each, n messages of a queue that will be locked
# wait, and one behind them.
my @batches = map {
	value(
		qq{SELECT batch_create(keep_open => true) AS b \\gset
		SELECT queue_push_batch('locked', ARRAY(SELECT to_jsonb(i) FROM generate_series(1, $n) AS i),
			after => :b) IS NOT NULL \\g /dev/null
		SELECT queue_push('free', to_jsonb(:b), after => :b) \\g /dev/null
		SELECT :b})
} 1 .. 2;
$role->query_safe(q{BEGIN; SELECT queue_drop('locked')});
value("SELECT batch_close($batches[0])");
becomes(q{SELECT body FROM queue_pop('free')}, $batches[0], 'what is behind them is freed');
my @read = read_in_steps($n, qr/read (\d+) messages that wait for batch $batches[0],/);
cmp_ok(sum0(@read), '>=', $n, 'all were read');
cmp_ok(max(0, @read), '<=', 2000, 'in steps');

# One that could not be freed for long is tried less often, another one is not.
ok(logged("batch $batches[0] is probed again after (?:1[1-9]|[2-9]\\d)\\d\\d ms"), 'the pause grows');
value("SELECT batch_close($batches[1])");
my @pauses = logged("batch $batches[1] is probed again after ([1-9]\\d*) ms");
is($pauses[0], '1000', 'but not that of another batch');
$role->query_safe('ROLLBACK');
becomes(q{SELECT free FROM queue_stats('locked')}, 2 * $n, 'all are freed');

# --- The lanes of groups with a bound ---

# The log has a line for each step in which the worker reads the queue for them.
value(
	q{SELECT queue_create('bound', '{"_group_concurrency": 1}');
	SELECT queue_push_batch('bound', ARRAY(SELECT to_jsonb(i) FROM generate_series(1, 10000) AS i),
		group_keys => ARRAY(SELECT (i % 100)::text FROM generate_series(1, 10000) AS i)) IS NOT NULL
	FROM generate_series(1, 2)});
my $learns = sub {
	my $id = value(q{SELECT id FROM queue_data.queue WHERE name = 'bound'});
	return scalar(() = slurp_file($node->logfile) =~ /reading all of queue number $id to learn/g);
};
my $before = $learns->();
is(value(q{SELECT queue_update('bound', '{"_group_concurrency": 2}') IS NOT NULL}), 't', 'another bound');
is(value(q{SELECT count(*) FROM queue_claim('bound', 600, 60, 10)}), '10', 'a claim finds messages at once');
my $until = time + 180;
sleep 0.1 while $learns->() - $before < 8 && time < $until;
cmp_ok($learns->() - $before, '>=', 8, 'the worker reads the queue in steps');
is( value(
		q{DO $$ BEGIN FOR i IN 1 .. 30 LOOP PERFORM queue_claim('bound', 600, 60, 10); END LOOP; END $$;
		SELECT max(n) FROM (SELECT count(*) AS n FROM queue_messages('bound', NULL, 1000, true, true)
			WHERE claim_count > 0 GROUP BY group_key) AS g}),
	'2',
	'and the bound holds');

# Delayed messages are in none of the lanes; they are read at the end.
my $delayed = 10000;
value(
	qq{SELECT queue_create('delayed', '{"_group_concurrency": 1}');
	SELECT queue_push_batch('delayed', ARRAY(SELECT to_jsonb(i) FROM generate_series(1, $delayed) AS i),
		delay => 3600, group_keys => ARRAY(SELECT (i % 100)::text FROM generate_series(1, $delayed) AS i)) IS NOT NULL});
my $size = -s $node->logfile;
is(value(q{SELECT queue_update('delayed', '{"_group_concurrency": 2}') IS NOT NULL}), 't', 'a bound of delayed messages');
my $id = value(q{SELECT id FROM queue_data.queue WHERE name = 'delayed'});
my @read_delayed = read_in_steps($delayed, qr/read (\d+) delayed messages of queue number $id/, $size);
is(sum0(@read_delayed), $delayed, 'all are read once');
cmp_ok(max(0, @read_delayed), '<=', 4000, 'in steps');

$role->quit;

# --- A table of the history ---

# It has the rows of a queue that keeps them for two seconds.  The next one becomes active.
value(
	q{SELECT queue_create('history', '{"_keep_finished": 2}');
	INSERT INTO queue_data.finished_17 (id, queue_id, pushed_at, finished_at, attempts, outcome, is_attempt)
	SELECT i, q.id, now(), now() - interval '1 day', 1, 1, false
	FROM queue_data.queue AS q, generate_series(1, 20000) AS i WHERE q.name = 'history'});
my $pages = value(q{SELECT pg_relation_size('queue_data.finished_17') / 8192});
value(q{SELECT queue_push('history', '1'); SELECT count(*) FROM queue_pop('history')});
becomes(q{SELECT pg_relation_size('queue_data.finished_17')}, 0, 'rows that are too old are removed');
my @read_pages = read_in_steps($pages, qr/read (\d+) pages of table 17 of the history/);
cmp_ok(max(0, @read_pages), '<=', 100, 'their table is read in steps');
is(sum0(@read_pages), $pages, 'and once');

# --- Rates of groups ---

# Behind many that are still needed there are as many that are not.
my $rates = 20000;
value(
	qq{INSERT INTO queue_data.group_rate SELECT i, now(), now() + interval '1 day', id
		FROM queue_data.queue, generate_series(1, $rates) AS i WHERE name = 'bound';
	INSERT INTO queue_data.group_rate SELECT i + $rates, now(), now() - interval '1 day', id
		FROM queue_data.queue, generate_series(1, $rates) AS i WHERE name = 'bound'});
my $log = -s $node->logfile;
$node->restart;
becomes('SELECT count(*) FROM queue_data.group_rate', $rates, 'those that are not needed are removed');
my @rates = read_in_steps(2 * $rates, qr/read (\d+) rates of groups/, $log);
cmp_ok(max(0, @rates), '<=', 2000, 'in steps');
is(sum0(@rates), 2 * $rates, 'and each was read once');

$node->stop;
done_testing();
