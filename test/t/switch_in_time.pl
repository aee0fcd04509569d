# A full segment is followed by the next one in time, also if the worker is due
# much later for another segment.

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
autovacuum = off
queue.segment_size = 256kB
});
$node->safe_psql($db, q{SELECT queue_create('q')});

sub active
{
	return value('SELECT active FROM queue_data.ring');
}

# Fill the active segment.  Returns whether another one becomes active.
sub fill
{
	my $from = active();
	my $until = time + 180;

	value(
		q{SELECT cardinality(queue_push_batch('q',
			array_fill(to_jsonb(repeat('x', 1000)), ARRAY[300])))});
	while (time < $until)
	{
		return 1 if active() != $from;
		sleep 0.05;
	}
	return 0;
}

my $first = active();
ok(fill(), 'a full segment is followed by the next one');

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

# Until the next switch is allowed, and the worker sleeps for longer.  It does not sleep
# until it tries the check again; on a busy machine that may come first by chance.
my $last_try = q{SELECT last_error_at FROM queue_data.queue_workers};
my ($before, $after) = ('', 'none');
foreach (1 .. 20)
{
	sleep 2.5;
	$before = value($last_try);
	$after = fill() ? value($last_try) : 'none';
	last if $after eq $before;
}
is($after, $before, 'the next full segment is followed before the first one is checked again');

value('DROP INDEX queue_data.odd');
$node->stop;
done_testing();
