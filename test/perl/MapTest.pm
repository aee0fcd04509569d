# What the tests of availability maps share: a server with room for few queues and groups,
# half of it for one owner, which takes preloading; and two sessions.

package MapTest;

use strict;
use warnings;

use Exporter 'import';
use PostgreSQL::Test::Utils;
use QueueTest qw($node);
use Test::More;
use Time::HiRes qw(sleep time);

our @EXPORT = qw($node $one $two %act
  start_server connect_sessions set_worker bodies claim push_sql free_ones becomes_free fresh);

our ($one, $two);
my $names = 0;

sub start_server
{
	QueueTest::start_server(
		q{
shared_preload_libraries = 'queue'
max_prepared_transactions = 40
autovacuum = off
queue.max_active_queues = 128
queue.max_active_groups = 192
queue.min_claim_ttl = 1
queue.min_claim_grace = 0
});
	connect_sessions();
	return;
}

sub connect_sessions
{
	$_ = $node->background_psql('postgres') foreach $one, $two;
	return;
}

# Whether a worker runs; waits until that is so.
sub set_worker
{
	my ($runs) = @_;
	$node->safe_psql('postgres', $_)
	  foreach $runs ? 'ALTER SYSTEM RESET queue.database_workers' :
	  'ALTER SYSTEM SET queue.database_workers = 0', 'SELECT pg_reload_conf()';
	$node->poll_query_until('postgres',
		"SELECT count(*) = $runs FROM pg_stat_activity WHERE backend_type = 'queue worker'")
	  or die 'the worker does not begin or end';
	return 1;
}

# The bodies that a call hands out, in order
sub bodies
{
	my ($call) = @_;
	return "SELECT coalesce(string_agg(body #>> '{}', ' '), '') FROM $call";
}

sub claim
{
	my ($q, $limit, $ttl) = @_;
	$limit = 100 unless defined $limit;
	$ttl = 600 unless defined $ttl;
	return bodies("queue_claim('$q', $ttl, 0, $limit)");
}

sub push_sql
{
	my ($q, @bodies) = @_;
	return join '; ', map { "SELECT FROM queue_push('$q', '\"$_\"')" } @bodies;
}

# What session two can claim now; it gives it back by a rollback.
sub free_ones
{
	my ($q) = @_;
	$two->query_safe('BEGIN');
	my $bodies = $two->query_safe(claim($q));
	$two->query_safe('ROLLBACK');
	return $bodies;
}

# The same, where no callback reports it: waits for a while, but not until a
# full scan of the queue.
sub becomes_free
{
	my ($q, $expected, $what) = @_;
	my $until = time + 5;
	my $got;

	while (($got = free_ones($q)) ne $expected && time < $until)
	{
		sleep 0.1;
	}
	is($got, $expected, $what);
	return;
}

# A queue whose map had reached its end before these messages were pushed
sub fresh
{
	my (@bodies) = @_;
	my $q = 'q' . ++$names;
	$two->query_safe(push_sql($q, 'old'));
	$two->query_safe("SELECT FROM queue_pop('$q')");
	$two->query_safe(claim($q));
	$two->query_safe(push_sql($q, @bodies)) if @bodies;
	return $q;
}

# What takes two messages of a queue, or gives them back
our %act = (
	'claim' => sub { return claim($_[0], 2) },
	'pop' => sub { return bodies("queue_pop('$_[0]', 2)") },
	'delete' => sub {
		return
		  "SELECT FROM queue_messages('$_[0]', \"limit\" => 2), message_delete('$_[0]', id)";
	},
	'claim and release' => sub {
		return
		  "SELECT count(DISTINCT claim_release('$_[0]', claim_id)) FROM queue_claim('$_[0]', 600, 0, 2)";
	},
	'claim, and release with a delay' => sub {
		return
		  "SELECT count(DISTINCT claim_release('$_[0]', claim_id, 60)) FROM queue_claim('$_[0]', 600, 0, 2)";
	},
	'claim and complete' => sub {
		return
		  "SELECT count(claim_complete('$_[0]', claim_id)) FROM (SELECT claim_id FROM queue_claim('$_[0]', 600, 0, 2) LIMIT 1) AS c";
	});

1;
