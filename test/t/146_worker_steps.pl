# A step of the worker is short, whatever there is in a queue or waits for a batch:
# the log tells what each step has read.
#
# One mode: the library is preloaded.

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
shared_preload_libraries = 'queue'
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
my @read = slurp_file($node->logfile) =~ /read (\d+) messages that wait for batch $batches[0],/g;
cmp_ok(sum0(@read), '>=', $n, 'all were read');
cmp_ok(max(0, @read), '<=', 2000, 'in steps');

# One that could not be freed for long is tried less often, another one is not.
ok(logged("batch $batches[0] is probed again after (?:1[1-9]|[2-9]\\d)\\d\\d ms"), 'the pause grows');
value("SELECT batch_close($batches[1])");
my @pauses = logged("batch $batches[1] is probed again after ([1-9]\\d*) ms");
is($pauses[0], '1000', 'but not that of another batch');
$role->query_safe('ROLLBACK');
becomes(q{SELECT free FROM queue_stats('locked')}, 2 * $n, 'all are freed');

$role->quit;
$node->stop;
done_testing();
