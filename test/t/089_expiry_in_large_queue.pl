# Messages that expire one after the other in a large queue are removed soon,
# although reading all of the queue each time would take too long; also one
# whose push commits late.
#
# One mode: the library is preloaded.

use strict;
use warnings;

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(sleep time);

my $node = PostgreSQL::Test::Cluster->new('main');
$node->init;
$node->append_conf(
	'postgresql.conf', q{
shared_preload_libraries = 'queue'
autovacuum = off
queue.min_message_ttl = 1
});
$node->start;
my $db = 'postgres';

sub value
{
	my ($sql) = @_;
	return $node->safe_psql($db, $sql);
}

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

value(q{CREATE EXTENSION queue;
	SELECT queue_create('big');
	SELECT count(queue_push_batch('big', array_fill('{}'::jsonb, '{10000}'), ttl => 600))
	FROM generate_series(1, 40)});

# How long does it take to read all of it?
my $began = time;
rows('big');
my $scan = time - $began;

# A message each half second expires, in all parts of the queue.
value(q{SELECT count(queue_push('big', '1', ttl => 2 + s / 2))
	FROM generate_series(0, 19) AS s});
value(q{SELECT count(queue_push_batch('big', array_fill('{}'::jsonb, '{10000}'), ttl => 600))
	FROM generate_series(1, 20)});
my $pushed = time;
my $most = 0;
my $first = removed();
while (time < $pushed + 25)
{
	# Of ttl t there are two.
	my $n = removed() - $first;
	last if $n == 20;
	my $lag = time - $pushed - (2 + int($n / 2));
	$most = $lag if $lag > $most;
	sleep 0.05;
}
note sprintf('a scan takes %.3f s, the most that a removal was late is %.3f s',
	$scan, $most);
is(removed() - $first, 20, 'all that have expired are removed');
cmp_ok($most, '<', 2 + 10 * $scan, 'soon');
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
