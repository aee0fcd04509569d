# doc/monitoring works: a role with queue_monitor alone, the real
# postgres_exporter with queries.yaml, and Prometheus' checks of the alert rules.
# The dashboard and the rules name no metric that the exporter does not give.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../perl";

use HTTP::Tiny;
use IPC::Run;
use JSON::PP;
use ClusterTest;
use PostgreSQL::Test::Utils;
use SegmentTest;
use Test::More;
use Time::HiRes qw(sleep time);

my $doc = "$FindBin::RealBin/../../doc/monitoring";

# Debian's packages start services, so the programs may be only unpacked.
my @paths = (split(/:/, $ENV{PATH}), '/usr/bin');
push @paths, "$ENV{QUEUE_SANDBOX}/unpacked/usr/bin" if $ENV{QUEUE_SANDBOX};

sub program
{
	my ($name) = @_;
	my ($found) = grep { -x } map { "$_/$name" } @paths;
	return $found;
}

my $exporter = program('prometheus-postgres-exporter')
  || program('postgres_exporter');
my $promtool = program('promtool');
plan skip_all => 'prometheus-postgres-exporter is not installed'
  unless $exporter;

# --- A database with something of everything ---

start_server();
$node->append_conf('postgresql.conf', q{max_worker_processes = 16});
$node->restart;
$one = $node->background_psql($db);

# The commands of the manual, as they stand
my $readme = slurp_file("$doc/README.md");
my @blocks = $readme =~ /^ *```sql\n(.*?)^ *```/msg;
is(scalar(@blocks), 1, 'the manual has one block of SQL');
value($_) foreach @blocks;
is( value(
		q{SELECT rolsuper, rolpassword IS NULL, (SELECT string_agg(roleid::regrole::text, ' ')
			FROM pg_auth_members WHERE member = a.oid) FROM pg_authid AS a WHERE rolname = 'prometheus'}
	),
	'f|t|queue_monitor',
	'the role is no superuser, has no password, and is in queue_monitor only');

value(
	q{SELECT queue_push_batch('mail', '{1, 2, 3}');
	SET queue.project = 'p';
	SELECT queue_push('mail', '"for ann only"');
	RESET queue.project;
	SELECT count(*) FROM queue_claim('mail', 600, 60, 1)});
value(
	q{SELECT queue_create('dead', '{"_max_claim_count": 1}');
	SELECT queue_push('dead', '1');
	SELECT message_retry('dead', id, claim_id) FROM queue_claim('dead', 600, 60)});
value(
	q{CREATE FUNCTION slow(jsonb) RETURNS boolean LANGUAGE sql AS 'SELECT pg_sleep(600) IS NOT NULL';
	SELECT queue_create('jobs');
	SELECT job_handler('jobs', 'slow(jsonb)');
	SELECT queue_push('jobs', '1')});
becomes_true(
	q{SELECT count(*) = 1 FROM queue_data.queue_runners WHERE message_id IS NOT NULL},
	'a job runs');

# A transaction that has written to the active segment, before the next one
# becomes active
my $holder = $node->background_psql($db);
$holder->query_safe(
	q{SET application_name = 'a report'; BEGIN; SELECT queue_push('mail', '4')});
switch_segments(2);
$node->safe_psql($db,
	q{BEGIN; SELECT queue_push('mail', '5'); PREPARE TRANSACTION 'a gid'});
switch_segments(1);

# --- The exporter ---

my $port = PostgreSQL::Test::Cluster::get_free_port();
my $dir = PostgreSQL::Test::Utils::tempdir();
my $log = "$dir/exporter.log";
my $process;

END
{
	local $?;
	$process->kill_kill if $process;
}

sub start_exporter
{
	my (@options) = @_;
	local $ENV{DATA_SOURCE_NAME} = 'user=prometheus host='
	  . $node->host . ' port='
	  . $node->port
	  . " dbname=$db sslmode=disable";
	local $ENV{PGPASSFILE} = "$dir/none";

	$process = IPC::Run::start(
		[
			$exporter, "--web.listen-address=127.0.0.1:$port",
			"--extend.query-path=$doc/queries.yaml", @options
		],
		'<', \undef, '>', $log, '2>&1');
	return;
}

# What the exporter says now; dies if it does not answer.
sub scrape
{
	my $until = time + $PostgreSQL::Test::Utils::timeout_default;
	my $response;

	do
	{
		$response = HTTP::Tiny->new(timeout => 30)
		  ->get("http://127.0.0.1:$port/metrics");
		return $response->{content} if $response->{success};
		sleep 0.1;
	} while (time < $until);
	die "no answer: $response->{status} $response->{content} "
	  . slurp_file($log);
}

# The values of a metric, with those of some labels
sub values_of
{
	my ($text, $metric, @labels) = @_;
	my @found;

	foreach ($text =~ /^\Q$metric\E(\{.*\} .*| .*)$/mg)
	{
		my ($all, $value) = /^(?:\{(.*)\})? (\S+)$/;
		my %label = ($all // '') =~ /(\w+)="((?:[^"\\]|\\.)*)"/g;
		push @found, join '|', (map { $label{$_} // '' } @labels), $value;
	}
	return join "\n", sort @found;
}

# Wait until some metric is there.
sub scrape_with
{
	my ($metric, $n) = @_;
	my $until = time + $PostgreSQL::Test::Utils::timeout_default;
	my $text;

	do
	{
		$text = scrape();
		return $text if (() = $text =~ /^\Q$metric\E\{/mg) >= $n;
		sleep 0.5;
	} while (time < $until);
	return $text;
}

# A function that the owner of the database has planted
$node->safe_psql($db, qq{CREATE FUNCTION public.current_database() RETURNS name LANGUAGE plpgsql AS \$\$
	BEGIN
		IF current_user = 'prometheus' THEN
			RAISE EXCEPTION 'planted';
		END IF;
		RETURN pg_catalog.current_database();
	END \$\$;
	ALTER DATABASE "$db" SET search_path = public, pg_catalog});
start_exporter();
my $text = scrape_with('queue_segment_holder_age_seconds', 2);

is(values_of($text, 'pg_exporter_last_scrape_error'), '0', 'no query fails');
is(values_of($text, 'pg_exporter_user_queries_load_error', 'none') =~ s/.*\|//r,
	'0', 'queries.yaml is understood');
unlike(slurp_file($log), qr/level=error.*queue/i, 'no error in the log');
unlike(slurp_file($log), qr/planted/, 'no function of the owner of the database is called');
unlike($text, qr/for ann only/, 'no body');
is( values_of($text, 'queue_ready', 'database', 'project', 'queue') =~
	  s/^(?!.*\|mail\|).*\n?//mgr =~ s/\n\z//r,
	"$db|p|mail|1\n$db||mail|2",
	'ready messages');
like(values_of($text, 'queue_claimed', 'project', 'queue'),
	qr/^\|mail\|1$/m, 'claimed messages');
like(values_of($text, 'queue_pushed_total', 'project', 'queue'),
	qr/^p\|mail\|1$/m, 'pushed messages');
like($text, qr/^# TYPE queue_pushed_total counter$/m, 'which is a counter');
is( values_of($text, 'queue_dead_letter_queue', 'queue'),
	"dead.dead|1\ndead|0\njobs.dead|1\njobs|0\nmail|0\nmail|0\nwork|0",
	'which queues are dead letter queues');
is(values_of($text, 'queue_worker_up', 'database'), "$db|1", 'the worker');
like(values_of($text, 'queue_handler_running', 'queue'),
	qr/^jobs\|1$/m, 'the handler runs');
like(values_of($text, 'queue_runner_running', 'queue'),
	qr/^jobs\|1$/m, 'and its job');
is( join("\n", values_of($text, 'queue_segment_active', 'relation') =~ /^(.*)\|1$/mg),
	"delayed_0\nmessage_" . value('SELECT active FROM queue_data.ring'),
	'the active segments');
like( values_of($text, 'queue_segment_holder_segments',
		'application_name', 'state', 'holder'),
	qr/^a report\|idle in transaction\|\d+\|1$/m,
	'a session that holds a segment back');
like( values_of($text, 'queue_segment_holder_segments', 'state', 'holder'),
	qr/^prepared\|prepared transaction a gid\|1$/m,
	'a prepared transaction that does');

# --- What the dashboard and the rules name ---

sub expressions
{
	my ($what) = @_;
	return map { expressions($_) } @$what if ref $what eq 'ARRAY';
	return () unless ref $what eq 'HASH';
	return (
		(map { $what->{$_} } grep { !ref $what->{$_} } grep { $_ eq 'expr' || $_ eq 'definition' } keys %$what),
		(map { expressions($what->{$_}) } keys %$what));
}

my $dashboard = decode_json(slurp_file("$doc/dashboard.json"));
my $rules = slurp_file("$doc/alerts.yaml");
my %exported = map { $_ => 1 } $text =~ /^([a-z]\w*)(?:\{.*\})? \S+$/mg;
foreach ([ 'dashboard.json', expressions($dashboard) ],
	[ 'alerts.yaml', $rules =~ /^ *expr: (.*)$/mg ])
{
	my ($file, @expressions) = @$_;
	my %named =
	  map { $_ => 1 } map { /\b((?:queue|pg)_\w+)/g } map { s/"[^"]*"//gr } @expressions;

	cmp_ok(scalar(keys %named), '>', 5, "$file names metrics");
	is(join(' ', grep { !$exported{$_} } sort keys %named),
		'', "$file: the exporter has all of them");
}
my @own = grep { /^queue_/ } sort keys %exported;
is(join(' ', grep {
			my $metric = $_;
			$readme !~ /`$metric`/ && !($metric =~ /^queue_worker_\w+_total$/)
		} @own),
	'', 'the manual has all metrics');
is(join(' ', grep { $readme !~ /^\| `$_` \|/m } $rules =~ /alert: (\w+)/g),
	'', 'and all alerts');

# --- For queues alone; and without the privilege ---

$process->kill_kill;
start_exporter('--disable-default-metrics', '--disable-settings-metrics');
$text = scrape();
is( join(' ', grep { $text !~ /^\Q$_\E[ {]/m } @own, 'pg_up'),
	'', 'the same with only the metrics of queues');
value('REVOKE queue_monitor FROM prometheus');
is(values_of(scrape(), 'pg_exporter_last_scrape_error'),
	'1', 'the metric of the alert says that queries fail');

# --- Prometheus ---

SKIP:
{
	skip 'promtool is not installed (apt install prometheus)', 2
	  unless $promtool;
	foreach ([ 'check', "$doc/alerts.yaml" ],
		[ 'test', "$doc/alerts_test.yaml" ])
	{
		my ($what, $file) = @$_;
		my $output;

		ok( IPC::Run::run(
				[ $promtool, $what, 'rules', $file ],
				'>&', \$output),
			"promtool $what rules") or diag($output);
	}
}

$node->safe_psql($db, q{ROLLBACK PREPARED 'a gid'});
$node->stop('immediate');
done_testing();
