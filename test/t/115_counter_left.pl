# The process that counts all messages may still run when its worker has gone.  The
# next worker waits for its end, and then counts; and if the database takes no
# connections, the process ends without harm to others.
#
# One mode: the library is preloaded.

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
shared_preload_libraries = 'queue'
autovacuum = off
queue.min_claim_ttl = 1
});
$node->start;
$node->safe_psql('postgres', 'CREATE DATABASE other');
$node->safe_psql('other', q{CREATE EXTENSION queue; SELECT queue_create('big');
	SELECT count(queue_push_batch('big', array_fill('{"body": "a message of some length"}'::jsonb, '{1000}')))
	FROM generate_series(1, 400)});

my $stopped;
END { kill 'CONT', $stopped if $stopped }

# Restarts the server, and stops the process while it counts.  The session that
# looks for it is there before it, since counting takes a fraction of a second.
sub stop_counter
{
	my $counter = q{FROM pg_stat_activity WHERE backend_type = 'queue counter' AND backend_xmin IS NOT NULL};

	for (1 .. 20)
	{
		$node->safe_psql('postgres', 'ALTER SYSTEM SET queue.database_workers = 0');
		$node->restart;
		my $session = $node->background_psql('postgres');
		$session->query_safe($_)
		  foreach 'ALTER SYSTEM RESET queue.database_workers', 'SELECT pg_reload_conf()';
		for (my $until = time + 10; time < $until && !$stopped;)
		{
			$stopped = $session->query_safe("SELECT pid $counter");
			kill 'STOP', $stopped if $stopped;
		}
		$session->quit;
		my ($still, $hangs);
		$node->psql(
			'postgres', "SELECT count(*) $counter",
			stdout => \$still,
			timeout => 20,
			timed_out => \$hangs);
		return 1 if $stopped && !$hangs && $still;

		# It has ended its transaction before it was stopped, or it was stopped
		# where others wait for it.
		kill 'CONT', $stopped if $stopped;
		$stopped = undef;
	}
	return 0;
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
is($node->safe_psql('other', q{SELECT ready FROM queue_data.queue_status}), '400000', 'all of them');

# The worker learns from the process when claims end.
foreach my $round (1 .. 3)
{
	$node->safe_psql('other', q{SELECT count(*) FROM queue_claim('big', 3, 60, 5)});
	$node->restart;
	ok($node->poll_query_until('other', q{SELECT claimed = 0 AND ready = 400000 FROM queue_data.queue_status}),
		"round $round: claims that have ended are counted");
}

$node->stop;
done_testing();
