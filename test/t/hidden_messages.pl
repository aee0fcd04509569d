# No message that can be claimed stays hidden from claims, and no claim comes
# back empty while a message is free: while many sessions push, claim, renew,
# release, delete and roll back, in long transactions, with savepoints, rows
# locked by plain SQL, sessions that are canceled and terminated, claims that run out, more queues than
# availability maps, and a crash.  What is free is read from the rows themselves
# (stress.d/hidden.sql).  What waits for the worker is left out: delayed messages
# that it has not moved, and prepared transactions (prepared_transactions.pl).
#
# QUEUE_STRESS_SECONDS makes the load a longer one (test/stress sets it).

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../perl";
use ClusterTest;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(sleep time);

my $seconds = $ENV{QUEUE_STRESS_SECONDS} || 12;
my $burst = 3;
my $rounds = int($seconds / 2 / $burst + 0.5) || 1;
my $many = 200;    # queues of the load that have few messages
my $bound = 60;    # seconds, where no callback reports it

my $node = PostgreSQL::Test::Cluster->new('main');
$node->init;
$node->append_conf(
	'postgresql.conf', qq(
autovacuum = off
synchronous_commit = off
log_statement = none
queue.max_active_queues = 128
queue.min_claim_ttl = 1
queue.min_claim_grace = 0
queue.min_message_ttl = 1
));
$node->start;
$node->safe_psql('postgres',
	slurp_file("$FindBin::RealBin/../stress.d/hidden.sql"));

# hot: these are nearly empty all the time.  never: these never are; in
# "reported" callbacks report all that becomes free.
my @hot = qw(h1 h2 h3);
my @never = qw(reported unreported);
$node->safe_psql(
	'postgres', qq(
DO \$\$
BEGIN
	FOR i IN 1 .. 20000 LOOP
		PERFORM txid_current();
		COMMIT;
	END LOOP;
END
\$\$;
INSERT INTO hidden.base SELECT txid_current();
SELECT count(queue_create(name))
FROM unnest('{@{[join ',', @hot, @never]}}'::text[]) AS name;
SELECT count(queue_create('e' || g)) FROM generate_series(1, $many) AS g;
));

# A transaction that ends in one of these ways, with a pause before it does.
my $transaction = q(
BEGIN;
SELECT hidden.try(':queue');
\if :acts > 1
SAVEPOINT s;
SELECT hidden.try(':queue');
\endif
\if :acts > 2
ROLLBACK TO s;
SELECT hidden.try(':queue');
\endif
\if :acts > 3
SAVEPOINT t;
SELECT hidden.try(':queue');
RELEASE t;
ROLLBACK TO s;
\endif
\if :ms < 8
\sleep :ms ms
\endif
);
my $end = q(
\if :end <= 3
ROLLBACK;
\else
COMMIT;
\endif
);
my $vary = q(
\set acts random(1, 4)
\set ms random(0, 12)
\set end random(1, 10)
\set n random(1, 1000000000)
);
my %scripts = (
	hot => [
		6, "\\set queue random(1, 3)$vary$transaction$end", 'h:queue'
	],
	few => [
		2, "\\set queue random(1, $many)$vary$transaction$end", 'e:queue'
	],
	unreported => [ 1, "$vary$transaction$end", 'unreported' ],
	reported => [ 1, "$vary$transaction$end", 'reported' ],
	by_hand => [
		1, q(
\set queue random(1, 4)
\set ms random(0, 30)
BEGIN;
SELECT hidden.lock_by_hand(CASE :queue WHEN 4 THEN 'unreported'
	ELSE 'h:queue' END);
\sleep :ms ms
\if :ms < 15
COMMIT;
\else
ROLLBACK;
\endif
) ],
	look_hot => [ 6, q(
\set queue random(1, 3)
SELECT hidden.look('h:queue');
) ],
	look_few => [ 3, qq(
\\set queue random(1, $many)
SELECT hidden.look('e:queue');
) ]);
my $dir = PostgreSQL::Test::Utils::tempdir;
my @files;
foreach my $name (sort keys %scripts)
{
	my ($weight, $script, $queue) = @{ $scripts{$name} };
	$script =~ s/':queue'/'$queue'/g if defined $queue;
	append_to_file("$dir/$name.sql", $script);
	push @files, '-f', "$dir/$name.sql\@$weight";
}

# Statements that are cancelled wherever they are
append_to_file(
	"$dir/cancelled.sql",
	join '',
	map {
		my $queue = (@hot, @never)[ int rand(@hot + @never) ];
		"SET statement_timeout = '@{[ 1 + int rand 5 ]}ms';\nBEGIN;\n"
		  . "SELECT hidden.act('$queue');\n" x 3
		  . "SELECT FROM queue_claim('$queue', 1, 0);\nCOMMIT;\n"
	} 1 .. 2000);

my $session;
my $acts = 0;

sub connect_session
{
	$session = $node->background_psql('postgres', on_error_stop => 0);
	return;
}

# What is never to be empty
sub fill
{
	$session->query(
		qq(SELECT queue_push_batch(name,
			array_fill('"fill"'::jsonb, ARRAY[60]))
		FROM unnest('{@{[join ',', @never]}}'::text[]) AS name
		WHERE (SELECT free < 30 FROM queue_stats(name))));
	return;
}

# All kinds of load at once, for a while; "crash": the server is stopped during
# the load.
sub load
{
	my ($what, $crash) = @_;
	my ($out, $err) = ('', '');
	my ($pgbench, $psql);
	{
		local $ENV{PGOPTIONS} =
		  '-c lock_timeout=30ms -c statement_timeout=30s';
		$pgbench = IPC::Run::start(
			[
				'pgbench', '-h', $node->host, '-p', $node->port, '-n', '-c', 14,
				'-j', 2, '-T', $burst, @files, 'postgres'
			],
			'>', \$out, '2>', \$err);
		local $ENV{PGAPPNAME} = 'pgbench';
		$psql = IPC::Run::start(
			[
				'psql', '-h', $node->host, '-p', $node->port, '-X', '-q', '-f',
				"$dir/cancelled.sql", 'postgres'
			],
			'>', '/dev/null', '2>', "$dir/cancelled.err");
	}
	my $until = time + ($crash ? $burst * 0.6 : $burst);
	while (time < $until)
	{
		fill();
		if (rand() < 0.2)
		{
			my $queue = (@hot, @never)[ int rand(@hot + @never) ];
			$node->psql('postgres',
				"SET lock_timeout = '30ms';
				BEGIN; SELECT hidden.act('$queue'), hidden.act('$queue');
				SELECT pg_terminate_backend(pg_backend_pid())");
		}
		sleep 0.02;
	}
	if ($crash)
	{
		$node->stop('immediate');
		$pgbench->finish;
		$psql->finish;
		eval { $session->quit };
		$node->start;
		connect_session();
		return;
	}
	$pgbench->finish;
	$psql->kill_kill;
	$node->poll_query_until(
		'postgres', q{SELECT count(*) = 0 FROM pg_stat_activity
		WHERE application_name = 'pgbench'}) or die 'sessions do not end';
	unlike($err, qr/error|aborted/i, "$what: no unexpected error");
	like(slurp_file("$dir/cancelled.err"),
		qr/statement timeout/, "$what: statements were cancelled");
	$acts += $1 if $out =~ /actually processed: (\d+)/;
	return;
}

# No other session is active now.
sub quiet
{
	my ($what) = @_;
	my $all = "SELECT unnest('{@{[join ',', @hot]}}'::text[]) AS name
		UNION ALL SELECT 'e' || g FROM generate_series(1, $many) AS g";

	is($node->safe_psql('postgres', 'SELECT * FROM hidden.found LIMIT 5'),
		'', "$what: no claim came back empty while something was free");

	$node->safe_psql('postgres', 'TRUNCATE hidden.found');

	# If the queue does not become empty: those that exist at first are
	# handed out before many others that are pushed later.
	foreach my $queue (@never)
	{
		my $reported = $queue eq 'reported' ? 't' : 'f';
		my $watch = "SELECT hidden.watch('$queue', '$reported')";
		fill();
		my $n = $session->query_safe($watch);

		# On a slow machine, the claims of all that is free may have run out.
		$session->query_safe(
			qq(SELECT queue_push_batch('$queue',
				array_fill('"fill"'::jsonb, ARRAY[60])))) if $n == 0;
		my $began = time;
		while ($n == 0 && time < $began + 10)
		{
			$n = $session->query_safe($watch);
		}
		$began = time;
		my $left;
		cmp_ok($n, '>', 0, "$what: there is something in $queue");
		do
		{
			my $all = $session->query_safe(
				"SELECT 2 * total + 20 FROM queue_stats('$queue')");
			$session->query_safe("CALL hidden.turn('$queue', $all)");
			$left = $session->query_safe("SELECT hidden.waiting('$queue')");
		} while ($left > 0 && $queue eq 'unreported' && time < $began + $bound);
		is($left, '0',
			"$what: all that was free in $queue was handed out");
		$bound = 2 if $left > 0;    # no need to wait for it again
		note sprintf '%s: %d of %s took %.1f s', $what, $n, $queue,
		  time - $began;
	}

	# The next load begins with what the last of these claims left.
	foreach my $end ('ROLLBACK', 'COMMIT')
	{
		is( $node->safe_psql(
				'postgres', "BEGIN;
				SELECT d FROM ($all) AS q, hidden.drain(name) AS d
				WHERE d IS NOT NULL;
				$end"),
			'', "$what: all that is free is claimed before a claim is empty");
	}
	is( $node->safe_psql(
			'postgres', "SELECT d FROM ($all) AS q, hidden.drain(name) AS d
				WHERE d IS NOT NULL"),
		'', "$what: what they left too");
	$node->safe_psql('postgres', 'VACUUM');
	return;
}

connect_session();
foreach my $round (1 .. $rounds)
{
	load("few maps, $round");
	quiet("few maps, $round");
}

$node->append_conf('postgresql.conf', q(
queue.max_active_queues = 200000
queue.database_workers = 8
));
$session->quit;
$node->restart;
connect_session();
foreach my $round (1 .. $rounds)
{
	load("many maps, $round");
	quiet("many maps, $round");
	next if $round > 1;
	load('crash', 1);
	quiet('after a crash');
}

my ($looks, $tests, $gave_up) = map {
	$node->safe_psql('postgres',
		"SELECT coalesce(pg_sequence_last_value('hidden.$_'), 0)")
} qw(looks tests gave_up);
note "$acts transactions; $looks checks, $tests with something free for "
  . "certain, $gave_up gave up after a second";
cmp_ok($acts, '>', 100 * $rounds, 'the load was one');
cmp_ok($tests, '>', 20 * $rounds, 'claims were made while something was free');
cmp_ok($looks - $tests, '>', 20 * $rounds, 'and while nothing was');
$node->safe_psql('postgres', 'CHECKPOINT');
is( $node->safe_psql('postgres',
		'SELECT next_multixact_id::text::bigint < xid
		FROM hidden.base, pg_control_checkpoint()'),
	't', 'no multixact has the number of a transaction');

$session->quit;
$node->stop;
done_testing();
