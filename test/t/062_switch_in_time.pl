# A full segment is followed by the next one in time, also if the worker is due
# much later for another segment.
#
# One mode: the library is preloaded.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../perl";

use PostgreSQL::Test::Utils;
use QueueTest;
use Test::More;
use Time::HiRes qw(sleep time);

start_server(
	q{
shared_preload_libraries = 'queue'
autovacuum = off
queue.segment_size = 256kB
});
$node->safe_psql($db, q{SELECT queue_create('q')});

sub active
{
	return value('SELECT active FROM queue_data.ring');
}

# Fill the active segment.  Returns the seconds until another one is active;
# undef: not in time.
sub fill
{
	my ($seconds) = @_;
	my $from = active();
	my $start = time;

	value(
		q{SELECT cardinality(queue_push_batch('q',
			array_fill(to_jsonb(repeat('x', 1000)), ARRAY[300])))});
	while (time < $start + $seconds)
	{
		return time - $start if active() != $from;
		sleep 0.05;
	}
	return;
}

my $first = active();
ok(defined fill(20), 'a full segment is followed by the next one');

# The worker is to check the first segment, and fails: the extension does not
# maintain such an index.  It tries again 10 seconds later.
value(
	qq{BEGIN;
	SELECT claim_complete('q', max(claim_id)) FROM queue_claim('q', "limit" => 1);
	CREATE INDEX odd ON queue_data.message_$first ((priority + 1));
	COMMIT});
ok( $node->poll_query_until(
		$db,
		q{SELECT last_error ~ 'odd' FROM queue_data.queue_workers}),
	'the worker cannot check the first segment now');

# Until the next switch is allowed, and the worker sleeps for longer
sleep 2.5;
my $took = fill(20);
cmp_ok($took // 20, '<', 4, 'the next full segment is followed at once');

value('DROP INDEX queue_data.odd');
$node->stop;
done_testing();
