# A claim tries all groups that have a turn, however many of them it finds full or
# at their rate, before it answers that nothing is free.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../perl";

use PostgreSQL::Test::Utils;
use QueueTest;
use Test::More;
use Time::HiRes qw(sleep);
use WaitTest qw(begin finish);

start_server(q(
autovacuum = off
));

# A queue with these options whose lanes know what was delivered, since the worker
# has read it: they take turns in the order of the pushes.
sub new_queue
{
	my ($q, $options) = @_;
	my $order = join ' ', 1 .. 8;
	my $popped = '';

	value("SELECT queue_create('$q', '$options')");
	for (my $tries = 0; $popped ne $order && $tries < 1000; $tries++)
	{
		sleep 0.05;
		value(
			"SELECT count(queue_push('$q', to_jsonb(n), group_key => 'n' || n)) FROM generate_series(1, 8) AS n");
		$popped = value("SELECT string_agg(body::text, ' ') FROM queue_pop('$q', 8)");
	}
	is($popped, $order, "$q: groups take turns by lanes");
	return;
}

# Two messages of each group; one of each is claimed.
sub fill_groups
{
	my ($q, $n) = @_;

	value(
		"SELECT queue_push('$q', to_jsonb(g), group_key => 'g' || g)
		FROM generate_series(1, $n) AS g, generate_series(1, 2)");
	is( value("SELECT count(*) FROM queue_claim('$q', 600, 60, $n)"),
		$n, "$q: one of each group");
	return;
}

foreach my $n (1 .. 8, 50)
{
	my $q = "full$n";

	new_queue($q, '{"_group_concurrency": 1}');
	fill_groups($q, $n);
	value("SELECT queue_push('$q', '\"free\"', group_key => 'last')");
	is(value("SELECT body FROM queue_claim('$q', 600, 60, 1)"),
		'"free"', "$n groups are full, and the last one has a message");
}
foreach my $n (3, 8)
{
	my $q = "rate$n";

	new_queue($q, '{"_group_concurrency": 100}');
	value("SELECT queue_update('$q', '{\"_group_rate\": 0.001}')");
	fill_groups($q, $n);
	value("SELECT queue_push('$q', '\"free\"', group_key => 'last')");
	is(value("SELECT body FROM queue_claim('$q', 600, 60, 1)"),
		'"free"', "the rate of $n groups allows nothing, and the last one has a message");
}

# A claim locks no more than 100 groups.  It tries no other one then, so that the
# next claim begins with the group whose turn it is.
sub groups_of
{
	my ($q, $limit) = @_;
	return value(
		"SET queue.max_claim_limit = 1000;
		SELECT string_agg(group_key, ' ') FROM queue_claim('$q', 600, 60, $limit)");
}

sub names { return join ' ', map { "g$_" } @_ }

foreach my $n (1, 2)
{
	my $q = "many$n";

	new_queue($q, '{"_group_concurrency": 5}');
	value(
		"SELECT queue_push('$q', to_jsonb(g), group_key => 'g' || g)
		FROM generate_series(1, $n), generate_series(1, 230) AS g");
	my @first = $n == 1 ? 1 .. 100 : (1 .. 75) x 2;
	my @second = $n == 1 ? 101 .. 200 : (76 .. 150) x 2;
	is(groups_of($q, 150), names(@first), "$n of each group: a claim of 150 messages");
	is(groups_of($q, 150), names(@second), "$n of each group: the next one goes on there");
	is(groups_of($q, 1), $n == 1 ? 'g201' : 'g151', "$n of each group: and so on");
}

# A claim has begun, and waits until the worker has moved a delayed message, when
# the first messages of groups are pushed to its queue.  It takes no more of a group
# than the bound allows.  The worker waits until the tables are unlocked.
value(q(SELECT queue_create('first', '{"_group_concurrency": 2}')));
value(q(SELECT queue_push('first', '"n"', delay => 1)));
my $holder = $node->background_psql('postgres');
$holder->query_safe('BEGIN; LOCK TABLE '
	  . join(', ', map { "queue_data.delayed_$_" } 0 .. 3)
	  . ' IN SHARE ROW EXCLUSIVE MODE; SELECT pg_sleep(1.1)');
my $claim = begin(q(SELECT FROM queue_claim('first', 600, 60, 10)));
sleep 0.1;
value(
	"SELECT count(queue_push('first', to_jsonb(n), group_key => 'a')) FROM generate_series(1, 5) AS n");
$holder->query_safe('COMMIT');
finish($claim);
value(q(SELECT count(*) FROM queue_claim('first', 600, 60, 10)));
is( value(
		"SELECT count(*) FROM queue_messages('first', include_claimed => true)
		WHERE claim_id IS NOT NULL AND group_key = 'a'"),
	2,
	'a claim that has begun before there were groups');
$holder->quit;

$node->stop;
done_testing();
