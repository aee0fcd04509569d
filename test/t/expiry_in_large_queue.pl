# Messages that expire one after the other in a large queue are removed soon,
# although reading all of the queue each time would take too long; also one
# whose push commits late.

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
queue.min_message_ttl = 1
});

sub removed
{
	return value('SELECT removed FROM queue_data.queue_workers');
}

sub rows
{
	my ($q) = @_;
	return value(
		qq{SELECT count(*) FROM queue_data.message WHERE queue = '$q'});
}

value(q{SELECT queue_create('big');
	SELECT count(queue_push_batch('big', array_fill('{}'::jsonb, '{10000}'), ttl => 600))
	FROM generate_series(1, 40)});

# Index entries of messages that anybody has read
sub reads
{
	return value(
		q{SELECT sum(pg_stat_get_tuples_returned(indexrelid))
		FROM pg_index AS i JOIN pg_class AS c ON c.oid = indexrelid
		WHERE relnamespace = 'queue_data'::regnamespace AND relname ~ '^message'});
}

# A message each half second expires, in all parts of the queue.
my $first = removed();
value(q{SELECT count(queue_push('big', '1', ttl => 2 + s / 2))
	FROM generate_series(0, 19) AS s});
value(q{SELECT count(queue_push_batch('big', array_fill('{}'::jsonb, '{10000}'), ttl => 600))
	FROM generate_series(1, 20)});
my $before = reads();
my %steps;
for (my $until = time + 180; !$steps{20} && time < $until; sleep 0.05)
{
	$steps{ removed() - $first } = 1;
}
ok($steps{20}, 'all that have expired are removed');
$node->poll_query_until($db, "SELECT state = 'idle' FROM queue_data.queue_workers")
  or die 'the worker does not come to an end';

# They are side by side, so a pass over all of the queue removes those that have
# expired in one step.
my $times = (reads() - $before) / 600000;
delete $steps{0};
my $steps = keys %steps;
note sprintf('%d steps; the queue was read %.1f times', $steps, $times);
cmp_ok($steps, '>', $times, 'without reading all of the queue for each');
is(rows('big'), 600000, 'and no other message');

# A message whose push commits after the parts around it were read
value(q{SELECT count(queue_push_batch('late', array_fill('{}'::jsonb, '{10000}'), ttl => 600))
	FROM generate_series(1, 3);
	SELECT queue_push('late', '1', ttl => 1)});
my $late = $node->background_psql($db);
$late->query_safe(q{BEGIN; SELECT queue_push('late', '1', ttl => 4)});
value(q{SELECT queue_push('late', '1', ttl => s) FROM generate_series(1, 8) AS s;
	SELECT count(queue_push_batch('late', array_fill('{}'::jsonb, '{10000}'), ttl => 600))
	FROM generate_series(1, 2)});
$first += 20;
ok( $node->poll_query_until(
		$db, "SELECT removed >= $first + 4 FROM queue_data.queue_workers"),
	'others expire meanwhile');
$late->query_safe('COMMIT');
ok( $node->poll_query_until(
		$db, "SELECT removed = $first + 10 FROM queue_data.queue_workers"),
	'one that was committed late is removed, too');
$late->quit;
is(rows('late'), 50000, 'and no other message');

$node->stop;
done_testing();
