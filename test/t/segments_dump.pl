# A dump is whole or fails, whatever is truncated meanwhile, and is restored
# into a database whose worker switches segments.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../perl";

use File::Path qw(rmtree);
use IPC::Run ();
use PostgreSQL::Test::Utils;
use SegmentTest;
use Test::More;
use Time::HiRes qw(sleep time);

start_server();
my $dir = PostgreSQL::Test::Utils::tempdir();
$node->safe_psql($db, 'CREATE SEQUENCE number');

# --- pg_dump under load ---

# Each message is in "source" when pushed, in "effect" when completed, in the
# same transaction: a dump of one moment has each in exactly one of two
# places.
my $producer = q{
	BEGIN;
	INSERT INTO source VALUES (nextval('number')) RETURNING n \gset
	SELECT queue_push('load', to_jsonb(:n));
	COMMIT;
	BEGIN;
	WITH c AS (SELECT claim_id, body FROM queue_claim('load', 600, 0, 1)),
	d AS (SELECT claim_complete('load', claim_id) FROM c)
	INSERT INTO effect SELECT body::int FROM c, d;
	COMMIT;
};
append_to_file("$dir/load.sql", $producer);

sub begin_load
{
	my @run = (
		'pgbench', '-n', '-c', '2', '-T', '3600', '-f', "$dir/load.sql",
		$node->connstr($db));
	my ($in, $out, $err) = ('', '', '');
	local $ENV{PGAPPNAME} = 'pgbench';
	return IPC::Run::start(\@run, '<', \$in, '>', \$out, '2>', \$err);
}

sub end_load
{
	my ($load) = @_;
	my $sessions =
	  q{FROM pg_stat_activity WHERE application_name = 'pgbench'};
	is(value("SELECT count(*) $sessions"), 2, 'both clients still run');
	$load->kill_kill;
	becomes_true("SELECT count(*) = 0 $sessions");
	return;
}

my $whole = q{
	SELECT count(*) FILTER (WHERE (m.n IS NULL) = (e.n IS NULL)), count(*) > 0
	FROM source AS s LEFT JOIN effect AS e USING (n)
	LEFT JOIN (SELECT body::int AS n FROM queue_data.message WHERE queue = 'load') AS m USING (n)};

sub check_dump
{
	my ($what, $how, @restore) = @_;
	$node->safe_psql($db, "CREATE DATABASE restored");
	$node->command_ok([ @restore, '-d', $node->connstr('restored') , $how ],
		"$what: it is restored");
	is($node->safe_psql('restored', $whole),
		'0|t', "$what: each message is there, or its effect is");
	$node->safe_psql($db, 'DROP DATABASE restored WITH (FORCE)');
	return;
}

# A dump that connects while a truncation is being committed fails, and is to
# be run again.
sub run_dump
{
	my ($what, @options) = @_;
	my $stderr;

	# The name under which pg_dump connects is its own.
	delete local $ENV{PGAPPNAME};
	foreach (1 .. 5)
	{
		rmtree("$dir/load.d");
		my $ok =
		  IPC::Run::run([ 'pg_dump', @options, $node->connstr($db) ],
			'>', \my $stdout, '2>', \$stderr);
		return pass("$what under load") if $ok;
		last unless $stderr =~ /was emptied since the snapshot was taken/;
		note 'once more';
	}
	fail("$what under load");
	diag $stderr;
	return;
}

my $load = begin_load();
counter_passes('switches', worker('switches'), 'segments switch under load');

# A session of that name, as pg_dump's, keeps all as it is
my $named = $node->background_psql($db);
$named->query_safe(q{SET application_name = 'pg_dump'});
counter_passes('switches', worker('switches'), 'and go on');
my $allowed = worker('truncated');
counter_passes('switches', worker('switches'));
is(worker('truncated'), $allowed,
	'but nothing is truncated while a pg_dump is connected');
like(slurp_file($node->logfile), qr/LOG:  tables of messages are not truncated while pg_dump is connected/,
	'which is in the log');
$named->quit;
counter_passes('truncated', $allowed, 'and again after that');

# pg_dump --role sets a role that may read them: the one that has logged in may
# not, by itself.
$node->safe_psql(
	$db, 'CREATE ROLE dumper LOGIN NOINHERIT; GRANT pg_read_all_data TO dumper');
my $other = $node->background_psql($db, extra_params => [ '-U', 'dumper' ]);
$other->query_safe(q{SET application_name = 'pg_dump'});
counter_passes('switches', worker('switches'));
$allowed = worker('truncated');
counter_passes('switches', worker('switches'));
is(worker('truncated'), $allowed,
	'nor while that of a member of pg_read_all_data is');
$other->quit;
counter_passes('truncated', $allowed);

run_dump('pg_dump', '-Fc', '-f', "$dir/load.dump");
run_dump('pg_dump with jobs', '-Fd', '-j2', '-f', "$dir/load.d");
check_dump('pg_dump', "$dir/load.dump", 'pg_restore', '--exit-on-error');
check_dump('pg_dump with jobs', "$dir/load.d", 'pg_restore',
	'--exit-on-error', '-j2');

# one with an older snapshot
my $exporter = $node->background_psql($db);
my $snapshot = $exporter->query_safe(
	'BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT pg_export_snapshot()');
$snapshot =~ s/\s//g;
counter_passes('truncated', worker('truncated'),
	'truncated since the snapshot');
{
	local $ENV{PGAPPNAME} = 'other';
	foreach my $how ([], [ '--inserts' ])
	{
		my ($stdout, $stderr);
		my $ok = IPC::Run::run(
			[
				'pg_dump', "--snapshot=$snapshot", @$how, '-f', "$dir/old.sql",
				$node->connstr($db)
			],
			'>', \$stdout, '2>', \$stderr);
		ok(!$ok, "a dump with an older snapshot fails (@$how)");
		like($stderr, qr/was emptied since the snapshot was taken/, 'says why');
		like($stderr, qr/HINT: .*Run the dump again/, 'and what to do');
	}
}
my ($ret, $stdout, $stderr) = $node->psql(
	$db,
	"BEGIN ISOLATION LEVEL REPEATABLE READ; SET TRANSACTION SNAPSHOT '$snapshot';
	SELECT queue_data.segment_is_whole(s) FROM generate_series(0, 15) AS s",
	extra_params => [ '-v', 'VERBOSITY=verbose' ]);
like($stderr, qr/ERROR:  55000/, 'with its own code');
$exporter->quit;
end_load($load);

# The filter of the dump is evaluated though a table has no row.
like(
	value(
		q{EXPLAIN (ANALYZE, COSTS off, TIMING off, SUMMARY off) SELECT * FROM queue_data.message_15 WHERE queue_data.segment_is_whole(15)}
	),
	qr/One-Time Filter/,
	'the filter is evaluated once');

# --- restore into a database with a worker ---

$node->safe_psql($db, 'CREATE DATABASE source');
$node->safe_psql('source', 'CREATE EXTENSION queue');
$node->safe_psql('source',
	q{SELECT queue_push_batch('q', array_agg(to_jsonb(i))) FROM generate_series(1, 20) AS i}
);
my $claim = $node->safe_psql('source',
	q{SELECT DISTINCT claim_id FROM queue_claim('q', 3600, 0, 5)});
my $id = $node->safe_psql('source',
	q{SELECT max(id) FROM queue_messages('q', "limit" => 100)});
my $to = q{
	INSERT INTO queue_data.message_7 SELECT * FROM queue_data.message_0 WHERE (id >> 9) % 2 = 0;
	DELETE FROM queue_data.message_0 WHERE (id >> 9) % 2 = 0};
$node->safe_psql('source', $to);
foreach my $how ('COPY', 'INSERT')
{
	$node->safe_psql($db, 'CREATE DATABASE target');
	$node->safe_psql('target',
		q{CREATE EXTENSION queue; SELECT queue_pop('q', 1) FROM queue_push('q', '0')});
	ok( $node->poll_query_until(
			'target',
			q{SELECT state = 'idle' FROM queue_data.queue_workers WHERE database = 'target'}
		),
		"$how: there is a worker");
	my $session = $node->background_psql('target');
	$session->query_safe(q{SELECT queue_drop('q')});
	$node->command_ok(
		[
			'pg_dump', '--data-only',
			($how eq 'INSERT' ? '--inserts' : ()),
			'-f', "$dir/$how.sql", $node->connstr('source')
		],
		"$how: dumped");
	$node->command_ok(
		[
			'psql', '-X', '-q', '-v', 'ON_ERROR_STOP=1', '-o', "$dir/psql.out",
			'-d', $node->connstr('target'), '-f', "$dir/$how.sql"
		],
		"$how: restored into a database with a worker");
	is($session->query_safe(q{SELECT free, claimed FROM queue_stats('q')}),
		'15|5', "$how: counted");
	is($session->query_safe("SELECT body FROM message_get('q', $id)"),
		'20', "$how: got");
	is($session->query_safe("SELECT message_delete('q', $id)"),
		't', "$how: deleted");
	is($session->query_safe("SELECT message_count FROM claim_get('q', '$claim')"),
		'5', "$how: the claim is known");
	is($session->query_safe("SELECT claim_complete('q', '$claim')"),
		'5', "$how: the claim is completed as a whole");
	is( $session->query_safe(
			q{SELECT string_agg(body::text, ' ' ORDER BY id) FROM queue_claim('q', 600, 0, 100)}
		),
		join(' ', 6 .. 19),
		"$how: the others are claimed at once");
	$session->quit;
	$node->safe_psql($db, 'DROP DATABASE target WITH (FORCE)');
}

is(worker('last_error'), '', 'no error');
my $log = slurp_file($node->logfile);
unlike($log, qr/(?:PANIC|TRAP):/, 'nothing broke');

$one->quit;
$node->stop;
done_testing();
