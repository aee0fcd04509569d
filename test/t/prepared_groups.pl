# Prepared transactions and groups with a bound of 1, with shared memory.  No
# callback reports the end of such a transaction.  All the same the next claim
# keeps the order of the group, and finds the room in it.
#
# test/check -q runs it, too.

use strict;
use warnings;

use Test::More;
use Time::HiRes qw(sleep);

use FindBin;
use lib "$FindBin::RealBin/../perl";

use MapTest;

my $queues = 0;

# A queue whose lanes know what was delivered, since the worker has read it: they
# take turns in the order of the pushes.  With messages m1 to m3 of a group.
sub new_queue
{
	my $q = 'q' . ++$queues;
	my $order = '1 2 3 4 5 6 7 8';
	my $popped = '';

	$two->query_safe("SELECT queue_create('$q', '{\"_group_concurrency\": 1}')");
	for (my $tries = 0; $popped ne $order && $tries < 1000; $tries++)
	{
		sleep 0.05;
		$two->query_safe(
			"SELECT count(queue_push('$q', to_jsonb(n), group_key => 'g' || n)) FROM generate_series(1, 8) AS n");
		$popped = $two->query_safe(bodies("queue_pop('$q', 8)"));
	}
	die "the worker does not read $q" if $popped ne $order;
	$two->query_safe(
		"SELECT count(queue_push('$q', to_jsonb('m' || n), group_key => 'g')) FROM generate_series(1, 3) AS n");
	return $q;
}

start_server();

# What this call returns.  The worker learns of the end of a prepared transaction a
# moment later.
sub soon
{
	my ($sql) = @_;
	my $got = '';

	for (my $tries = 10 * $PostgreSQL::Test::Utils::timeout_default; $got eq '' && $tries > 0; $tries--)
	{
		$got = $two->query_safe($sql);
		sleep 0.1 if $got eq '';
	}
	return $got;
}

# What was claimed was never delivered, and still comes first.
foreach my $call ('claim', 'pop')
{
	my $q = new_queue();
	my $sql = $call eq 'pop' ? bodies("queue_pop('$q')") : claim($q, 1);
	is($one->query_safe("BEGIN; $sql; PREPARE TRANSACTION 'p'"),
		'm1', "a $call that is prepared");
	$two->query_safe("ROLLBACK PREPARED 'p'");
	is(soon(claim($q)), 'm1', "a $call that is rolled back: no other message comes first");
	is($two->query_safe(claim($q)), '', 'and it is the only one');
}

# A message that was delivered and is delayed blocks its group.
foreach my $end ('COMMIT', 'ROLLBACK')
{
	my $q = new_queue();
	my $m1 = $two->query_safe("SELECT id FROM queue_claim('$q', 600, 0, 1)");
	$two->query_safe(
		"SELECT message_retry('$q', id, claim_id, 'error', 1000) FROM queue_messages('$q', include_claimed => true) WHERE id = $m1");
	is($two->query_safe(claim($q)), '', 'a delayed message blocks its group')
	  foreach 1 .. 2;
	$one->query_safe(
		"BEGIN; SELECT message_delete('$q', $m1); PREPARE TRANSACTION 'p'");
	is($two->query_safe(claim($q)), '', 'also while its deletion is prepared');
	$two->query_safe("$end PREPARED 'p'");

	# The worker learns of the end a moment later.
	my $expected = $end eq 'COMMIT' ? 'm2' : '';
	my $got = $two->query_safe(claim($q));
	for (my $tries = 10 * $PostgreSQL::Test::Utils::timeout_default;
		$got ne $expected && $tries > 0; $tries--)
	{
		sleep 0.1;
		$got = $two->query_safe(claim($q));
	}
	is($got, $expected, "$end PREPARED: the group is free or blocked");
}

# Without a worker it is not returned, and claims find it by themselves.
{
	my $q = new_queue();

	ok(set_worker(0), 'no worker runs');
	is($one->query_safe("BEGIN; @{[claim($q, 1)]}; PREPARE TRANSACTION 'p'"),
		'm1', 'a claim that is prepared');
	$two->query_safe("ROLLBACK PREPARED 'p'");
	is($two->query_safe(claim($q)), 'm1', 'and rolled back: it is found');
}

$node->stop;
done_testing();
