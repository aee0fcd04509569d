# Dynamic shared memory cannot be had.  A session that has not got any works on
# without it, and can be canceled and terminated as before.  One that cannot attach
# to what others have created loses nothing when its transaction ends.
#
# One mode: it starts servers in both modes.
#
# test/check -q runs it, too.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../perl";

use MemoryTest;
use ClusterTest;
use PostgreSQL::Test::Utils;
use QueueTest qw($node value);
use Test::More;
use Time::HiRes qw(sleep);

plan skip_all => 'no C compiler' unless can_refuse();

$node = PostgreSQL::Test::Cluster->new('main');
$node->init;
$node->append_conf(
	'postgresql.conf', q{
shared_preload_libraries = 'queue'
queue.database_workers = 0
autovacuum = off
wal_level = replica
max_wal_senders = 1
});
start_refusing($node);
$node->safe_psql('postgres', 'CREATE EXTENSION queue');
restart_refusing($node);

sub pid_of
{
	my ($session) = @_;
	return $session->query_safe('SELECT pg_backend_pid()');
}

sub descriptors
{
	my ($pid) = @_;
	my @open = glob("/proc/$pid/fd/*");
	return scalar @open;
}

# Waits for a condition; false: for too long.
sub wait_until
{
	my ($condition) = @_;

	foreach (1 .. 1800)
	{
		return 1 if $condition->();
		sleep 0.1;
	}
	return 0;
}

# --- Nothing can be created ---

# In each of these ways a statement of a session is ended that has asked for
# memory and got none.  Any error would make good what was wrong, so each session
# is ended in one way only.  Memory is asked for once a minute, so each has a
# server that was just started.
my %ways = (
	'statement_timeout' => sub { },
	'pg_cancel_backend()' => sub { value("SELECT pg_cancel_backend($_[0])") },
	'pg_terminate_backend()' => sub { value("SELECT pg_terminate_backend($_[0])") },
	'a fast shutdown' => sub { kill 'INT', $node->{_pid} });

foreach my $way (sort keys %ways)
{
	my $log = -s $node->logfile;
	my $session = $node->background_psql('postgres', on_error_stop => 0);
	my $pid = pid_of($session);
	my $query = qq{SELECT query FROM pg_stat_activity WHERE pid = $pid};

	refuse('create');
	is($session->query_safe(q{SELECT count(queue_push('full', '1'));
			SELECT sum(claim_complete('full', claim_id)) FROM queue_claim('full')}),
		"1\n1", 'a queue works without shared memory');
	like(slurp_file($node->logfile, $log),
		qr/could not allocate shared memory for queues.*No space left/,
		'which is logged');
	$session->query_safe(q{SET statement_timeout = '1s'}) if $way eq 'statement_timeout';
	$session->query_safe('SELECT pg_sleep(0)');
	my $before = descriptors($pid);
	$session->query_until(qr/begun/, "\\echo begun\nSELECT pg_sleep(1000);\nSELECT 'ended';\n");
	wait_until(sub { value("$query AND query ~ '1000|ended'") });
	$ways{$way}->($pid);
	ok( wait_until(
			sub {
				$way =~ /shutdown|terminate/ ? !-e "/proc/$pid" :
				  value("$query AND state = 'idle'") =~ /ended/;
			}),
		"$way ends a statement");
	cmp_ok(descriptors($pid), '<=', $before, 'no descriptor is left open');
	allow('create');
	$node->stop('immediate', fail_ok => 1);
	$session->{run}->kill_kill;
	start_refusing($node);
}

# --- Others have created what a session cannot attach to ---

# What another session claims, at once
sub claim
{
	return value(q{SELECT string_agg(body::text, ' ') FROM queue_claim('q', 60, 60, 10)});
}

# The session has many queues, more than it remembers where their maps are; and
# messages of groups, which are in lanes.
my $queues = 300;
my $claim = qq{SELECT count(*) FROM generate_series(1, $queues) AS i,
	queue_claim('q' || i, 600, 600, 1)};
my $push = qq{SELECT count(queue_push('q' || i, '1')) FROM generate_series(1, $queues) AS i};
my $push_groups = q{SELECT count(queue_push('g', to_jsonb(i), group_key => 'g' || i))
	FROM generate_series(1, 3) AS i};
my $log = -s $node->logfile;
my $n = 0;
foreach my $end ('ROLLBACK', 'ROLLBACK TO a', 'COMMIT')
{
	my $session = $node->background_psql('postgres', on_error_stop => 0);
	my $pid = pid_of($session);

	value("$push; $push_groups");
	$session->query_safe('BEGIN; SAVEPOINT a');
	is($session->query_safe("$claim; SELECT count(*) FROM queue_claim('g', 600, 600, 10)"),
		"$queues\n3", "$end: all messages are claimed");
	is(value($claim), '0', 'so that others find nothing');

	# So many queues and groups that the tables grow
	refuse("attach.$pid");
	my $more = 1000 << $n++;
	value(qq{SELECT count(queue_push('more' || i, '1')) FROM generate_series(1, $more) AS i;
		SELECT count(queue_push('groups', '1', group_key => 'g$n' || i))
		FROM generate_series(1, $more) AS i});

	# A commit attaches before it is one, and fails.
	$session->query($end);
	$session->query('SELECT 1');
	is(value("$claim; SELECT count(*) FROM queue_claim('g', 600, 600, 10)"),
		"$queues\n3", "$end: they are free again, at once");
	allow("attach.$pid");
	$session->query('ROLLBACK');
	$session->{stderr} = '';
	is($session->query_safe($push), $queues, 'the session works on');
	is(value($claim), $queues, 'and others find what it pushes');
	$session->quit;
}

# --- Others create some while a transaction commits ---

# It waits for a standby that there is not, after it has attached to all.
value('ALTER DATABASE postgres SET synchronous_commit = local');
value(q{SELECT queue_create('late')});
$node->append_conf('postgresql.conf', "synchronous_standby_names = 'nobody'");
$node->reload;
my $session = $node->background_psql('postgres');
$session->query_safe(q{SET synchronous_commit = on; SELECT count(*) FROM queue_stats('late')});
my $pid = pid_of($session);
$session->query_until(qr/begun/, "\\echo begun\nSELECT queue_push('late', '1', group_key => 'g');\n");
ok($node->poll_query_until('postgres',
		"SELECT wait_event = 'SyncRep' FROM pg_stat_activity WHERE pid = $pid"),
	'a commit waits');
my $more = 1000 << $n;
value(qq{SELECT count(queue_push('more' || i, '1')) FROM generate_series(1, $more) AS i;
	SELECT count(queue_push('groups', '1', group_key => 'late' || i))
	FROM generate_series(1, $more) AS i});
$node->append_conf('postgresql.conf', "synchronous_standby_names = ''");
$node->reload;
$session->query('SELECT 1');
is(value(q{SELECT pushed FROM queue_data.queue_status WHERE name = 'late'}), '1', 'what it has counted is not lost');
is(value(q{SELECT count(*) FROM queue_claim('late')}), '1', 'nor what it has pushed');
$session->quit;

unlike(slurp_file($node->logfile, $log), qr/PANIC|TRAP|signal \d+|already committed/,
	'no crash');
$node->stop;

# --- Not preloaded, without any shared memory ---

# A session that exits writes what it has counted.  It cannot be canceled then, so it
# must not wait for a standby.
if ($node->pg_version < 17)
{
	$node = PostgreSQL::Test::Cluster->new('without');
	$node->init(allows_streaming => 1);
	$node->append_conf('postgresql.conf', "shared_preload_libraries = ''\nautovacuum = off\n");
	$node->start;
	$node->safe_psql('postgres', q{CREATE EXTENSION queue;
		SELECT queue_push(q, '1') FROM unnest('{a,b}'::text[]) AS q;
		ALTER DATABASE postgres SET synchronous_commit = local});
	$node->append_conf('postgresql.conf', "synchronous_standby_names = 'nobody'");
	$node->reload;

	# The second count comes too soon after the first one to be written at once.
	my $session = $node->background_psql('postgres');
	my $pid = $session->query_safe('SELECT pg_backend_pid()');
	$session->query_safe(q{SELECT count(*) FROM queue_claim('a'); SELECT count(*) FROM queue_claim('b');
		SET synchronous_commit = on});
	$session->quit;
	ok($node->poll_query_until('postgres', "SELECT count(*) = 0 FROM pg_stat_activity WHERE pid = $pid"),
		'a session exits without waiting for a standby');
	is($node->safe_psql('postgres', q{SELECT claimed FROM job_stats('b')}), '1', 'and has written its counts');
	$node->stop;
}

# --- Not preloaded: there is no room for any shared memory ---

if ($node->pg_version >= 17)
{
	$node = PostgreSQL::Test::Cluster->new('later');
	$node->init;
	$node->append_conf('postgresql.conf', "shared_preload_libraries = ''\nautovacuum = off\n");
	start_refusing($node);
	refuse('create');
	my ($ret, $stdout, $stderr) =
	  $node->psql('postgres', 'CREATE EXTENSION queue; SELECT queue_create($$q$$)');
	is($ret, 0, 'the extension is created');
	like($stderr, qr/WARNING:  there is no shared memory for queues.*No space left.*HINT:  Make more/s,
		'with a warning');
	is(() = $stderr =~ /WARNING/g, 1, 'only one');

	my ($one, $two) = map { $node->background_psql('postgres', on_error_stop => 0) } 1 .. 2;
	my $push_one = q{SELECT count(queue_push('q', '1'))};
	my $claim_all = q{SELECT count(*) FROM queue_claim('q', 600, 600, 100)};
	foreach my $session ($one, $two)
	{
		is($session->query($push_one), '1', 'a push');
		like($session->{stderr}, qr/WARNING:  there is no shared memory/, 'each session warns');
		$session->{stderr} = '';
	}
	is($one->query_safe("BEGIN; $claim_all"), '2', 'a claim');
	is($two->query_safe($claim_all), '0', 'which others respect');
	is($one->query_safe("ROLLBACK; $claim_all"), '2', 'and which is rolled back');

	# One session pushes and cannot know that the other one has got memory before
	# the commit; and one is going to roll back what it has claimed.
	my $three = $node->background_psql('postgres', on_error_stop => 0);
	$three->query($push_one);
	$three->{stderr} = '';
	is($three->query_safe("BEGIN; $claim_all"), '1', 'a claim that is open');
	is($one->query_safe("BEGIN; $push_one"), '1', 'a push that is open');
	allow('create');
	is($two->query_safe("$push_one; $claim_all; $claim_all"), "1\n1\n0", 'another session');
	is($two->query_safe(q{SELECT count(*) FROM queue_data.availability_map}), '1',
		'has got shared memory');
	$one->query_safe('COMMIT');
	is($two->query_safe($claim_all), '1', 'it finds what was pushed, at once');
	$three->query_safe('ROLLBACK');
	ok($node->poll_query_until('postgres', "$claim_all", '1'), 'and what was claimed');
	ok($node->poll_query_until('postgres',
			q{SELECT count(*) = 1 FROM pg_stat_activity WHERE backend_type = 'queue worker'}),
		'there is a worker');
	is($three->query_safe("BEGIN; $push_one; COMMIT; $claim_all"), "1\n1",
		'all sessions use it');
	$_->quit foreach $one, $two, $three;
	unlike(slurp_file($node->logfile), qr/PANIC|TRAP|signal \d+/, 'no crash there');
	$node->stop;
}
done_testing();
