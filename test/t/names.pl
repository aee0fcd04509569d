# What a DBA reads: background processes have names that tell what they are for, in
# pg_stat_activity and in the log; runners show the job that they run; messages of
# DEBUG1 and DEBUG2 say what becomes of segments and availability maps.  The manual
# has the names of all wait events.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../perl";
use PostgreSQL::Test::Utils;
use QueueTest;
use Test::More;
use Time::HiRes qw(sleep time);

start_server(
	q{
autovacuum = off
max_worker_processes = 16
queue.database_workers = 1
log_min_messages = debug2
queue.segment_size = '64kB'
queue.max_active_queues = 200
log_line_prefix = ''
});

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
	q{CREATE ROLE "Ann" IN ROLE queue_producer, queue_consumer;
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
		qq{SELECT count(*) = 1 FROM pg_stat_activity
			WHERE backend_type = 'queue runner' AND state = 'active'
			  AND query = 'job $id of queue "jobs", project "wiki"'}),
	'a runner shows its job')
  or diag(value('SELECT backend_type, state, query FROM pg_stat_activity'));
is( value(
		q{SELECT string_agg(DISTINCT application_name, ', ' ORDER BY application_name) FROM pg_stat_activity WHERE backend_type ~ '^queue '}
	),
	'queue launcher, queue runner, queue worker',
	'application_name');

is_logged(qr/process "queue worker for database postgres"/,
	'the worker is started for a database');
is_logged(
	qr/process "queue runner for database postgres, role Ann"/,
	'a runner for a role');

# --- Segments ---

# Write more than fits into the active segment, and consume it.
sub switch_from
{
	my ($segment) = @_;
	value(
		q{SELECT FROM queue_push_batch('work', (SELECT array_agg(to_jsonb(repeat('x', 250))) FROM generate_series(1, 200)))}
	);
	value(q{SELECT count(*) FROM queue_pop('work', 100)}) foreach (1 .. 2);
	is_logged(
		qr/DEBUG:  segment @{[ $segment + 1 ]} becomes active: about \d+ bytes were written to segment $segment$/m,
		"segment $segment is full");
	return;
}

switch_from(0);
is_logged(qr/DEBUG:  segment 0 is not truncated: it still has messages$/m,
	'the job keeps a segment from being truncated');
my $holder = $node->background_psql($db);
$holder->query_safe(q{BEGIN; SELECT queue_push('kept', '1')});
switch_from(1);
is_logged(
	qr/DEBUG:  segment 1 is not truncated: another transaction has locked it$/m,
	'and so does a transaction');
$holder->query_safe('ROLLBACK');
is_logged(qr/DEBUG:  truncating segment 1, which has \d+ pages$/m,
	'it is truncated after that');

# --- Availability maps ---

my $debug = 'SET client_min_messages = debug2;';

sub said
{
	my ($sql) = @_;
	my ($ret, $stdout, $stderr) = $node->psql($db, $debug . $sql);
	return $stderr;
}

like(said(q{SELECT queue_create('new')}),
	qr/made the availability map of queue number \d+$/m, 'a map is made');
said(q{SELECT queue_push('new', '1', group_key => 'g')});
like(said(q{SELECT queue_claim('new')}),
	qr/the availability map of queue number \d+ has forgotten all: the queue has groups/,
	'it forgets');
value(q{SELECT count(queue_push('q' || i, '1')) FROM generate_series(1, 200) AS i});
like(said(q{SELECT queue_create('last')}),
	qr/no room for an availability map of queue number \d+$/m, 'there is no room for one');
value(q{SELECT count(queue_drop('q' || i)) FROM generate_series(1, 200) AS i});

# --- Other databases ---

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
