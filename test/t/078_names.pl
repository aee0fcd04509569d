# Background processes have names that tell what they are for, in
# pg_stat_activity and in the log; runners show the job that they run.  The manual
# has the names of all wait events.
#
# One mode: the library is preloaded.

use strict;
use warnings;

use FindBin;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(sleep time);

my $node = PostgreSQL::Test::Cluster->new('main');
$node->init;
$node->append_conf(
	'postgresql.conf', q{
shared_preload_libraries = 'queue'
autovacuum = off
max_worker_processes = 16
queue.database_workers = 1
log_min_messages = debug1
log_line_prefix = ''
});
$node->start;
my $db = 'postgres';

sub value
{
	my ($sql) = @_;
	return $node->safe_psql($db, $sql);
}

# Wait until the log has a line.
sub is_logged
{
	my ($pattern, $what) = @_;
	my $until = time + 30;

	while (slurp_file($node->logfile) !~ $pattern && time < $until)
	{
		sleep 0.1;
	}
	ok(slurp_file($node->logfile) =~ $pattern, $what);
	return;
}

value(
	q{CREATE EXTENSION queue;
	CREATE ROLE "Ann" IN ROLE queue_producer, queue_consumer;
	CREATE FUNCTION slow(jsonb) RETURNS boolean LANGUAGE sql AS 'SELECT pg_sleep(600) IS NOT NULL'});
my $id = value(
	q{SET ROLE "Ann";
	SET queue.project = 'wiki';
	SELECT FROM queue_create('jobs');
	SELECT FROM job_handler('jobs', 'slow(jsonb)');
	SELECT queue_push('jobs', '1')});
$id =~ s/.*\n//s;
ok( $node->poll_query_until(
		$db,
		qq{SELECT query = 'job $id of queue "jobs", project "wiki"' AND state = 'active'
			FROM pg_stat_activity WHERE backend_type = 'queue runner'}),
	'a runner shows its job')
  or diag(value('SELECT backend_type, state, query FROM pg_stat_activity'));
is( value(
		q{SELECT string_agg(application_name, ', ' ORDER BY application_name) FROM pg_stat_activity WHERE backend_type ~ '^queue '}
	),
	'queue launcher, queue runner, queue worker',
	'application_name');

is_logged(qr/process "queue worker for database postgres"/,
	'the worker is started for a database');
is_logged(
	qr/process "queue runner for database postgres, role Ann"/,
	'a runner for a role');
# Another database has no room for its worker.
$node->safe_psql($db, 'CREATE DATABASE other');
$node->safe_psql('other', 'CREATE EXTENSION queue');
is_logged(
	qr/^LOG:  no background worker can be started for database "other", and maybe others/m,
	'the database that has no worker is named');
ok(slurp_file($node->logfile) !~ /(?:for database|role) \d+\b/,
	'no database or role is named by its OID');

# --- Wait events ---

my $top = "$FindBin::RealBin/../..";
my $manual = slurp_file("$top/doc/operations.md");
my @events = map { slurp_file($_) =~ /compat_wait_event\("(\w+)"\)|\[LOCK_\w+\] = "(\w+)"/g }
  glob "$top/src/*/*.c";
@events = grep { defined } @events;
cmp_ok(scalar(@events), '>', 10, 'the source names wait events');
is(join(' ', grep { $manual !~ /`$_`/ } @events), '', 'the manual has all of them');

$node->stop;
done_testing();
