# A server that is stopped in the middle of everything: after each restart
# every committed push is there once, every committed delete stays deleted, and
# amcheck finds tables and indexes in order.  QUEUE_CRASH_ROUNDS says how often
# (test/stress sets it).

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../perl";

use ClusterTest;
use PostgreSQL::Test::Utils;
use StatusTest;
use Test::More;
use Time::HiRes qw(sleep);

my $rounds = $ENV{QUEUE_CRASH_ROUNDS} || 3;
my $sessions = $ENV{QUEUE_STRESS_SESSIONS} || 16;
my $dir = "$FindBin::RealBin/../stress.d";

$node = PostgreSQL::Test::Cluster->new('main');
$node->init;
$node->append_conf(
	'postgresql.conf', qq(
max_connections = @{[ $sessions + 20 ]}
synchronous_commit = on
track_commit_timestamp = on
jit = off
work_mem = 256MB
max_pred_locks_per_transaction = 1000
queue.min_claim_ttl = 1
queue.min_claim_grace = 0
));
$node->start;
$node->safe_psql('postgres', slurp_file("$dir/ledger.sql"));
use_server($node);
$node->safe_psql(
	'postgres', q(
CREATE EXTENSION amcheck;
CREATE TABLE acknowledged (what text, number bigint);));

$ENV{PGHOST} = $node->host;
$ENV{PGPORT} = $node->port;
$ENV{PGDATABASE} = 'postgres';

for my $round (1 .. $rounds)
{
	my $acknowledged = PostgreSQL::Test::Utils::tempdir() . '/acknowledged';
	my ($out, $err) = ('', '');
	my $load = IPC::Run::start(
		[ $^X, "$dir/load", '-s', 60, '-c', $sessions, '-a', $acknowledged ],
		'>', \$out, '2>', \$err);
	my $until = time + 180;
	sleep 0.1
	  while 2 > keys %{ { map { $_ => 1 } map { slurp_file($_) =~ /^([PD])\b/mg } glob "$acknowledged.*" } }
	  && time < $until;
	sleep rand 2;
	$node->stop('immediate');
	$load->finish;
	note $out;
	diag $err if $err ne '';
	is(join("\n", grep { /^unexpected/ } split /\n/, $out),
		'', "round $round: no error but those that such a load explains");
	$node->start;
	status_is_right("round $round: every row of queue_status is right");
	$node->safe_psql('postgres', 'ANALYZE');

	# What psql reported as committed; what is uncertain is left out.
	my $reported = '';
	for my $file (glob "$acknowledged.*")
	{
		for (split /\n/, slurp_file($file))
		{
			my ($what, @numbers) = split ' ';
			$reported .= "$what\t$_\n" for @numbers;
		}
	}
	my $file = PostgreSQL::Test::Utils::tempdir() . '/reported';
	append_to_file($file, $reported);
	$node->safe_psql('postgres', "\\copy acknowledged FROM '$file'");
	for my $what ('P', 'D')
	{
		like($reported, qr/^$what\t/m, "round $round: $what was acknowledged");
	}
	is( $node->safe_psql(
			'postgres', q(
SELECT number, there, gone
FROM acknowledged AS a
LEFT JOIN (SELECT number, count(*) AS gone FROM stress.gone GROUP BY 1) AS g
     USING (number)
LEFT JOIN (SELECT number, times AS there FROM stress.waiting) AS w
     USING (number)
WHERE what = 'P' AND coalesce(there, 0) + coalesce(gone, 0) <> 1
  AND number NOT IN (SELECT number FROM stress.event WHERE queue = 'brief')
  AND number NOT IN (SELECT number FROM stress.covered)
LIMIT 10)),
		'',
		"round $round: each acknowledged push is there once, or was deleted once");
	is( $node->safe_psql(
			'postgres', q(
SELECT number FROM acknowledged
WHERE what = 'D'
  AND (number IN (SELECT number FROM stress.waiting)
       OR number NOT IN (SELECT number FROM stress.gone))
LIMIT 10)),
		'',
		"round $round: each acknowledged delete stays deleted");
	is( $node->safe_psql('postgres', 'SELECT * FROM stress.violation LIMIT 5'),
		'',
		"round $round: the ledger keeps the rules");
	is( $node->safe_psql(
			'postgres', q(
SELECT c.relname, v.*
FROM pg_class AS c, verify_heapam(c.oid, check_toast => true) AS v
WHERE c.relnamespace = 'queue_data'::regnamespace AND c.relkind = 'r')),
		'',
		"round $round: amcheck finds the tables in order");
	is( $node->safe_psql(
			'postgres', q(
SELECT count(bt_index_parent_check(i.indexrelid, true, true)) > 17
FROM pg_index AS i JOIN pg_class AS c ON c.oid = i.indrelid
WHERE c.relnamespace = 'queue_data'::regnamespace)),
		't',
		"round $round: amcheck finds the indexes in order");
}

is($node->safe_psql('postgres', 'CALL stress.drain(60)'),
	'', 'no message is stuck');
is($node->safe_psql('postgres', 'SELECT * FROM stress.violation LIMIT 5'),
	'', 'the ledger keeps the rules after all');
is($node->safe_psql('postgres', 'SELECT * FROM stress.wrong_batch LIMIT 5'),
	'', 'all batches have finished, with all their members');

$node->stop;
done_testing();
