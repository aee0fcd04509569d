# The job queue of MediaWiki, clients/mediawiki: its operations in an installed wiki, as
# an ordinary role and, if it is installed, through PgBouncer; and its runners.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../perl";

use IPC::Run;
use ClusterTest;
use PoolTest;
use PostgreSQL::Test::Utils;
use QueueTest qw(:DEFAULT plant_functions);
use Test::More;

my $mediawiki = '/usr/share/mediawiki';
plan skip_all => 'package mediawiki is not installed' unless -d "$mediawiki/includes";
plan skip_all => 'package php-pgsql is not installed'
  if system(q{php -r 'exit(function_exists("pg_connect") ? 0 : 1);' >/dev/null 2>&1}) != 0;
plan skip_all => 'package phpunit is not installed'
  if system(q{php -r 'require "PHPUnit/Autoload.php";' >/dev/null 2>&1}) != 0;

start_server('queue.min_claim_ttl = 1');
my $dir = PostgreSQL::Test::Utils::tempdir();
my $client = "$FindBin::RealBin/../../clients/mediawiki";

# As the README says; and the role's settings are those that MediaWiki makes in a session,
# which is not the same one each time behind PgBouncer.
value($_)
  foreach 'CREATE ROLE wikiuser LOGIN',
  'GRANT CREATE ON DATABASE postgres TO wikiuser',
  'GRANT queue_producer, queue_consumer TO wikiuser',
  'ALTER ROLE wikiuser SET search_path = mediawiki, earlier, public',
  q{ALTER ROLE wikiuser SET bytea_output = 'escape'};
plant_functions();

sub php
{
	my ($file, @arguments) = @_;
	my $log = "$dir/php.log";

	IPC::Run::run([ 'php', $file, @arguments ], '<', \undef, '>&', $log);
	return ($?, slurp_file($log));
}

my ($status, $out) = php(
	"$mediawiki/maintenance/install.php", '--dbtype', 'postgres', '--dbserver',
	$node->host, '--dbport', $node->port, '--dbname', 'postgres', '--dbuser', 'wikiuser',
	'--dbpass', 'x', '--installdbuser', 'wikiuser', '--installdbpass', 'x', '--confpath', $dir,
	'--pass', 'a long enough password', '--scriptpath', '/w', 'Wiki', 'Admin');
is($status, 0, 'a wiki is installed') or BAIL_OUT($out);
append_to_file("$dir/LocalSettings.php", <<"PHP");
wfLoadExtension( 'JobQueuePgClaim', '$client/extension.json' );
\$wgJobTypeConf['default'] = [ 'class' => 'JobQueuePgClaim', 'claimTTL' => 3600 ];
require '$client/tests/wiki.php';
\$wgCacheDirectory = '$dir';
\$wgDBerrorLog = false;
\$wgDBport = getenv( 'WIKI_PORT' );
PHP
$ENV{MW_CONFIG_FILE} = "$dir/LocalSettings.php";

# --- Each operation ---

$PoolTest::role = 'wikiuser';
my $pool = pgbouncer() ? start_pool($node, postgres => 3) : $node->port;
$ENV{WIKI_PORT} = $pool;
($status, $out) = php("$client/tests/run.php");
is($status, 0, 'the tests pass') or diag($out);
like($out, qr/^OK \([3-9]\d tests/m, 'all of them') or diag($out);

($status, $out) = php("$client/maintenance/waitAndRunJobs.php", '--type', 'nothing');
isnt($status, 0, 'a runner of jobs that there are not ends');
like($out, qr/Stopped: none-possible/, 'and says why');

# --- Pages are edited while four runners work, one of them through the pool; one is killed, and one ends
# at a signal ---

value(q{CREATE TABLE public.runs (id serial, n int, pid int,
	since timestamptz DEFAULT clock_timestamp(), until timestamptz);
	GRANT ALL ON public.runs, public.runs_id_seq TO wikiuser});

my @runners = map {
	$ENV{WIKI_PORT} = $_ == 1 ? $pool : $node->port;
	IPC::Run::start(
		[ 'php', "$client/maintenance/waitAndRunJobs.php", '--type', 'note' ],
		'<', \undef, '>&', "$dir/runner$_.log")
} 1 .. 4;

END
{
	my $status = $?;
	$_->kill_kill(grace => 1) foreach @runners;
	$? = $status;
}

my $editor = IPC::Run::start([ 'php', "$client/tests/edit.php" ],
	'<', \undef, '>&', "$dir/edit.log");
becomes_true(q{SELECT count(*) > 0 FROM public.runs WHERE n = 7}, 'a runner has page 7');
my $killed = value(q{SELECT pid FROM public.runs WHERE n = 7});
is(kill('KILL', $killed), 1, 'it is killed');

# The claim would last an hour.
is( value(q{SET queue.project = 'postgres-mediawiki-';
	SELECT claim_renew('note'::text, claim_id, 1::int) IS NOT NULL
	FROM queue_messages('note'::text, "limit" => 10000, include_claimed => true)
	WHERE body->'params'->>'n' = '7' AND claim_id IS NOT NULL}),
	't', 'its claim ends');

becomes_true(q{SELECT count(*) > 0 FROM public.runs WHERE n = 9}, 'a runner has page 9');
my $stopped = value(q{SELECT pid FROM public.runs WHERE n = 9});
my ($runner) = grep { $_->{KIDS}[0]{PID} == $stopped } @runners;
$runner->signal('TERM');
$runner->finish;
is($runner->full_result(0), 0, 'it ends when it is told to, after the job');
$editor->finish;
is($editor->result(0), 0, 'pages are edited') or diag(slurp_file("$dir/edit.log"));
becomes_true(q{SELECT count(DISTINCT n) = 30 FROM public.runs WHERE until IS NOT NULL},
	'no job is lost') or diag(map { slurp_file($_) } glob "$dir/runner*.log");
is( value(q{SELECT string_agg(format('%s %s', n, runs), ',') FROM (
		SELECT n, count(*) AS runs FROM public.runs GROUP BY n HAVING count(*) > 1) AS again}),
	'7 2', 'only the one of the killed runner has run again');
is( value(qq{SELECT count(*) FROM public.runs AS a JOIN public.runs AS b
		ON a.n = b.n AND a.id < b.id AND b.since < a.until}),
	0, 'none was in two runners at once');

$node->stop;
done_testing();
