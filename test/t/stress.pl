# Many sessions at once, with rollbacks, expiries and terminated backends: no
# message is lost, held twice at once, handed out after it was deleted, or
# stuck.  QUEUE_STRESS_SCRIPTS, which test/check -a sets, QUEUE_STRESS_SECONDS and
# QUEUE_STRESS_SESSIONS (test/stress) make it a longer one.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../perl";

use ClusterTest;
use PostgreSQL::Test::Utils;
use StatusTest;
use Test::More;

my $seconds = $ENV{QUEUE_STRESS_SECONDS} || 10;
my $scripts = $ENV{QUEUE_STRESS_SCRIPTS} || 20;
my $sessions = $ENV{QUEUE_STRESS_SESSIONS} || 16;
my $dir = "$FindBin::RealBin/../stress.d";

$node = PostgreSQL::Test::Cluster->new('main');
$node->init;
$node->append_conf(
	'postgresql.conf', qq(
max_connections = @{[ $sessions + 20 ]}
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

$ENV{PGHOST} = $node->host;
$ENV{PGPORT} = $node->port;
$ENV{PGDATABASE} = 'postgres';

# What the ledger saw of it
my %events = (
	'messages waited for batches, and were handed out' =>
	  "stress.waits JOIN stress.event USING (number) WHERE kind = 'claim'",
	'members made other members' =>
	  "(SELECT batch FROM stress.member JOIN stress.event USING (number)
		WHERE kind = 'push' GROUP BY batch HAVING count(DISTINCT queue) > 1) AS b",
	'claims ran out, and their messages were handed out again' =>
	  'stress.succession
		WHERE last_claim IS NOT NULL AND last_release_committed IS NULL',
	'dead letters were handed out' =>
	  "stress.event WHERE queue = 'mortal.dead' AND kind = 'claim'",
	'dead letters were sent back, and handed out' =>
	  "stress.event AS p JOIN stress.event AS c USING (number)
		WHERE p.queue = 'again' AND p.kind = 'push'
		  AND c.queue = 'again' AND c.kind = 'claim' AND p.id <> c.id",
	'messages were taken from groups with a bound of 1' =>
	  'stress.crowd WHERE n = 1 AND bound = 1',
	'groups had as many claims as a higher bound' =>
	  'stress.crowd WHERE n = bound AND bound > 1',
	'dead letters of groups were handed out' =>
	  "stress.event WHERE queue = 'single.dead' AND kind = 'claim'",
	'messages went with their queue' =>
	  "stress.event WHERE queue = 'brief' AND kind = 'push'
		AND number NOT IN (SELECT number FROM stress.gone)
		AND number NOT IN (SELECT number FROM stress.waiting)");
foreach my $kind (qw(push drop claim renew release delete pop bare cancel))
{
	$events{"there were events of the kind $kind"} = "stress.event WHERE kind = '$kind'";
}

# The load is short, and goes on until it has shown everything.
my $out = '';
for (my $round = 1; $round <= 10; $round++)
{
	my ($printed, $err) = run_command(
		[ $^X, "$dir/load", '-s', $seconds, '-n', $scripts, '-c', $sessions ]);
	note $printed;
	diag $err if $err ne '';
	$out .= "$printed\n";
	$node->safe_psql('postgres', 'ANALYZE');
	last if $out =~ /^unexpected/m
	  || !grep { $node->safe_psql('postgres', "SELECT count(*) FROM $events{$_}") == 0 } keys %events;
}
is(join("\n", grep { /^unexpected/ } split /\n/, $out),
	'', 'no error but those that such a load explains');
cmp_ok(($out =~ /^calls \(20 each\) +(\d+)/m ? $1 : 0),
	'>', $seconds, 'the load was one');
ok($out =~ /^lost connections +[1-9]/m, 'backends were terminated');
ok($out =~ /^error QU001 +[1-9]/m, 'claims ran out under their workers');

status_is_right('every row of queue_status is soon right');

for my $what (sort keys %events)
{
	cmp_ok(
		$node->safe_psql('postgres', "SELECT count(*) FROM $events{$what}"),
		'>', 0, $what);
}
note $node->safe_psql('postgres',
	"SELECT kind, count(*) FROM stress.event GROUP BY kind ORDER BY kind");

note $node->safe_psql(
	'postgres', q(
SELECT queue, count(*) FILTER (WHERE kind = 'push') AS pushed,
	count(*) FILTER (WHERE kind = 'claim') AS claimed
FROM stress.event GROUP BY 1 ORDER BY 1));
my $violations = 'SELECT * FROM stress.violation LIMIT 5';
is($node->safe_psql('postgres', $violations),
	'', 'the ledger keeps the rules after the load');

is($node->safe_psql('postgres', 'CALL stress.drain(60)'),
	'', 'no message is stuck');
is( $node->safe_psql(
		'postgres', 'SELECT sum(s.total) FROM stress.queue, queue_stats(name) AS s'),
	'0',
	'the queues are empty by their own counts');
is( $node->safe_psql(
		'postgres', q(SELECT count(*) FROM stress.event AS p
			WHERE kind = 'push' AND queue <> 'brief' AND
			(SELECT count(*) FROM stress.gone AS g WHERE g.number = p.number) <> 1 AND
			number NOT IN (SELECT number FROM stress.covered))),
	'0',
	'each message that was pushed was removed once, or covered by a twin');
is($node->safe_psql('postgres', 'SELECT * FROM stress.wrong_batch LIMIT 5'),
	'', 'all batches have finished, with all their members');
status_is_right('every row of queue_status is right when the queues are empty');
is($node->safe_psql('postgres', $violations),
	'', 'the ledger keeps the rules after all');

$node->stop;
done_testing();
