# A message that is free again keeps its position in the order, also without a
# worker that sweeps.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../perl";

use PostgreSQL::Test::Utils;
use QueueTest;
use Test::More;
use Time::HiRes qw(sleep);

start_server(
	q{
autovacuum = off
queue.database_workers = 0
queue.min_claim_ttl = 1
queue.min_claim_grace = 0
});

sub claim
{
	my ($q, $ttl) = @_;
	return "SELECT body #>> '{}' FROM queue_claim('$q', $ttl, 0, 1)";
}

# Claims one message and deletes it, and lets the claims of the
# next ones, which are made a little later, run out: these come first then.
sub comes_back
{
	my ($q, $n, @priorities) = @_;
	my $sql = join '; ',
	  map { "SELECT FROM queue_push('$q', '\"m$_\"', priority => $priorities[$_])" }
	  0 .. $#priorities;

	$node->safe_psql('postgres', "$sql; SELECT queue_push('$q', '\"rest\"') FROM generate_series(1, 20)");
	$node->safe_psql('postgres',
		"SELECT FROM queue_claim('$q', 1, 0, 1) c, message_delete('$q', c.id, c.claim_id)");
	is($node->safe_psql('postgres', claim($q, 600)), "m$_", "$q: claim of m$_")
	  foreach 1 .. $n;
	foreach my $i (1 .. $n)
	{
		sleep 0.15;
		$node->safe_psql('postgres',
			"SELECT claim_renew('$q', claim_id, 1) FROM queue_messages('$q', include_claimed => true) WHERE body = '\"m$i\"'");
	}
	sleep 1.1;
	is($node->safe_psql('postgres', claim($q, 600)), "m$_", "$q: m$_ is first again")
	  foreach 1 .. $n;
	is($node->safe_psql('postgres', claim($q, 600)),
		$n < $#priorities ? 'm' . ($n + 1) : 'rest', "$q: then the next one");
	return;
}

comes_back('priorities', 1, 9, 8, 3);
comes_back('same', 2, 0, 0, 0);
comes_back('several', 3, 9, 8, 7, 6);

$node->stop;
done_testing();
