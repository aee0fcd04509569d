# The process that counts all messages may still run when its worker has gone.  The
# next worker waits for its end, and then counts; and if the database takes no
# connections, the process ends without harm to others.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../perl";

use ClusterTest;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(sleep time);

my $node = PostgreSQL::Test::Cluster->new('main');
$node->init;
$node->append_conf(
	'postgresql.conf', q{
autovacuum = off
queue.min_claim_ttl = 1
});
$node->start;
$node->safe_psql('postgres', 'CREATE DATABASE other');
$node->safe_psql('other', q{CREATE EXTENSION queue; SELECT queue_create('big');
	SELECT count(queue_push_batch('big', array_fill('{"body": "a message of some length"}'::jsonb, '{1000}')))
	FROM generate_series(1, 100)});

my $stopped;
END { kill 'CONT', $stopped if $stopped }

# Restarts the server, and stops the process while it counts and waits for a lock, so
# that it holds nothing that others wait for.  It waits for a moment only, again and
# again.
sub stop_counter
{
	my $waits = q{SELECT pid FROM pg_stat_activity WHERE backend_type = 'queue counter'
		AND backend_xmin IS NOT NULL AND wait_event = 'relation'};
	my $until = time + 180;

	$node->safe_psql('postgres', 'ALTER SYSTEM SET queue.database_workers = 0');
	$node->restart;
	my $locker = $node->background_psql('other');
	$locker->query_safe('BEGIN; LOCK TABLE queue_data.prepared_count IN SHARE MODE');
	$node->safe_psql('postgres', $_)
	  foreach 'ALTER SYSTEM RESET queue.database_workers', 'SELECT pg_reload_conf()';
	my $session = $node->background_psql('postgres');
	while (!$stopped && time < $until)
	{
		my ($still, $hangs) = ('');

		$stopped = $session->query_safe($waits) or sleep(0.02), next;
		kill 'STOP', $stopped;
		$node->psql('postgres', $waits, stdout => \$still, timeout => 60, timed_out => \$hangs);
		next if !$hangs && $still eq $stopped;

		# It was stopped a moment too late.
		kill 'CONT', $stopped;
		$stopped = undef;
	}
	$_->quit foreach $session, $locker;
	return $stopped;
}

sub continue_counter
{
	my $pid = $stopped;
	kill 'CONT', $pid;
	$stopped = undef;
	return $node->poll_query_until('postgres', "SELECT count(*) = 0 FROM pg_stat_activity WHERE pid = $pid");
}

my $worker = q{SELECT pid FROM pg_stat_activity WHERE backend_type = 'queue worker' AND datname = 'other'};

# The worker is gone; its database takes no connections, so that it gets no other,
# and the launcher forgets it.
ok(stop_counter(), 'a process that counts is stopped');
my $pid = $node->safe_psql('postgres', $worker);
$node->safe_psql('postgres', "ALTER DATABASE other ALLOW_CONNECTIONS false; SELECT pg_terminate_backend($pid)");
ok($node->poll_query_until('postgres', "SELECT count(*) = 0 FROM pg_stat_activity WHERE pid = $pid"),
	'its worker ends');
sleep 4;
ok(continue_counter(), 'the process ends');
unlike(slurp_file($node->logfile), qr/signal 11|terminating any other/, 'without a crash');
$node->safe_psql('postgres', 'ALTER DATABASE other ALLOW_CONNECTIONS true');

# A worker that meets the process of an earlier one
ok(stop_counter(), 'it is stopped again');
$pid = $node->safe_psql('postgres', $worker);
$node->safe_psql('postgres', "SELECT pg_terminate_backend($pid)");
ok($node->poll_query_until('postgres', "SELECT count(*) = 1 FROM ($worker) AS w WHERE pid <> $pid"),
	'there is another worker');
ok(continue_counter(), 'the process ends');

# Until the messages are counted, queue_status reads them.
my $scans = q{SELECT sum(pg_stat_get_xact_numscans(oid)) AS n FROM pg_class WHERE relname ~ '^message_\d+$'};
my $counted = '';
for (my $until = time + 180; $counted ne 't' && time < $until; sleep 0.2)
{
	$counted = $node->safe_psql('other',
		"BEGIN; $scans \\gset
		SELECT count(*) FROM queue_data.queue_status \\g /dev/null
		SELECT n = :n FROM ($scans) AS s; COMMIT");
}
is($counted, 't', 'the messages are counted');
is($node->safe_psql('other', q{SELECT ready FROM queue_data.queue_status}), '100000', 'all of them');

# The worker learns from the process when claims end.
foreach my $round (1 .. 3)
{
	$node->safe_psql('other', q{SELECT count(*) FROM queue_claim('big', 3, 60, 5)});
	$node->restart;
	ok($node->poll_query_until('other', q{SELECT claimed = 0 AND ready = 100000 FROM queue_data.queue_status}),
		"round $round: claims that have ended are counted");
}

$node->stop;
done_testing();
