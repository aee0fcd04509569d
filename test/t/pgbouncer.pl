# Through PgBouncer in transaction mode, where one client's statements run in
# any of several server processes: nothing may depend on the session.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../perl";

use IPC::Run;
use PoolTest;
use ClusterTest;
use PostgreSQL::Test::Utils;
use Test::More;

plan skip_all => 'pgbouncer is not installed' unless pgbouncer();
plan skip_all => 'needs Unix sockets'
  unless $PostgreSQL::Test::Utils::use_unix_sockets;

my $node = PostgreSQL::Test::Cluster->new('main');
$node->init;
$node->append_conf('postgresql.conf', 'autovacuum = off');
$node->start;
$node->safe_psql(
	'postgres', q{
	CREATE EXTENSION queue;
	CREATE TABLE done (n int, worker int)});

my $pooled = 'host=' . $node->host . ' port='
  . start_pool($node, postgres => 2) . ' dbname=postgres';

# Two statements of one call go through the pool one by one, in one psql.
sub through_pool
{
	my (@sql) = @_;
	my ($stdout, $stderr) = ('', '');
	IPC::Run::run(
		[
			'psql', '-XqAt', '-v', 'ON_ERROR_STOP=1', '-d', $pooled,
			map { ('-c', $_) } @sql
		],
		'>', \$stdout, '2>', \$stderr);
	chomp $stdout;
	return $stdout . ClusterTest::without_creation($stderr);
}

through_pool(
	q{SELECT queue_push_batch('q', ARRAY['"m1"', '"m2"', '"m3"']::jsonb[])});

# What one client claims, another one's transaction may get the process of.
my $claim = through_pool(q{SELECT claim_id FROM queue_claim('q', 600, 60, 1)});
is( through_pool(
		'BEGIN', q{SELECT body FROM queue_claim('q', 600, 60, 1)}, 'ROLLBACK',
		q{SELECT body FROM queue_claim('q', 600, 60, 1)}),
	qq{"m2"\n"m2"},
	'rolled back and claimed again');
is(through_pool(qq{SELECT claim_complete('q', '$claim')}),
	'1', 'completed by another session');
is( through_pool(
		'BEGIN', q{SET LOCAL queue.project = 'p'},
		q{SELECT queue_push('q', '1') IS NOT NULL}, 'COMMIT',
		q{SELECT body FROM queue_pop('q')}),
	qq{t\n"m3"},
	'a project set for one transaction');
$node->safe_psql('postgres', q{SELECT queue_drop('q')});
is(through_pool(q{SELECT queue_push('q', '"again"') IS NOT NULL}),
	't', 'every process in the pool learns of a drop');

# Several workers at once, more than there are server processes
my $messages = 300;
$node->safe_psql('postgres',
	qq{SELECT queue_push_batch('work', array_agg(to_jsonb(g))) FROM generate_series(1, $messages) g}
);
my @workers;
foreach my $worker (1 .. 5)
{
	# Each round: claim, do the work and delete under the claim in one
	# transaction, with the claim made in another one before.
	my $turn = q{
SELECT coalesce(min(claim_id), '') AS claim FROM queue_claim('work', 600, 60, 3) \gset
BEGIN;
INSERT INTO done SELECT (body #>> '{}')::int, } . $worker
	  . q{ FROM claim_messages('work', :'claim');
SELECT CASE WHEN :'claim' <> '' THEN claim_complete('work', :'claim') END;
COMMIT;
};
	my $input = $turn x 80;
	my $stderr = '';
	my %job = (err => \$stderr);
	$job{run} = IPC::Run::start(
		[ 'psql', '-XqAt', '-v', 'ON_ERROR_STOP=1', '-d', $pooled ],
		'<', \$input, '>', \my $ignored, '2>', \$stderr);
	push @workers, \%job;
}
foreach my $job (@workers)
{
	$job->{run}->finish;
	is(${ $job->{err} }, '', 'worker ended well');
}
is( $node->safe_psql(
		'postgres',
		q{SELECT count(*), count(DISTINCT n), (SELECT total FROM queue_stats('work')) FROM done}
	),
	"$messages|$messages|0",
	'each message was worked on once');
is( $node->safe_psql(
		'postgres',
		q{SELECT count(*) <= 2 FROM pg_stat_activity
		WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()}),
	't',
	'by two server processes');

stop_pool();
$node->stop;
done_testing();
