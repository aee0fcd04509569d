# What the tests of queue_wait share: a server, a session, and others that wait.

package WaitTest;

use strict;
use warnings;

use Exporter 'import';
use IPC::Run ();
use ClusterTest;
use PostgreSQL::Test::Utils;
use QueueTest qw($node $db $one value);
use Test::More;
use Time::HiRes qw(sleep time);

our @EXPORT = qw($node $db $one $waiters $long
  start_server value begin finish wait_sql begin_wait begin_several result
  wait_for_waiters still_waits waiter_pid is_woken state_of);

sub start_server
{
	$node = PostgreSQL::Test::Cluster->new('main');
	$node->init(allows_streaming => 1);
	$node->append_conf(
		'postgresql.conf', q{
autovacuum = off
queue.min_claim_ttl = 1
queue.min_claim_grace = 0
queue.min_message_ttl = 1
});
	$node->start;
	$node->safe_psql($db, 'CREATE EXTENSION queue');
	$one = $node->background_psql($db);
	return;
}

# Starts a psql that runs these commands; finish() returns its output.
sub begin
{
	my ($sql, %options) = @_;
	my %job = (in => "$sql\n;\n", out => '', err => '');
	my @command = (
		'psql', '-XAtq', '-v', 'VERBOSITY=verbose', '-d',
		($options{node} || $node)->connstr($db));

	$job{run} = IPC::Run::start(\@command, '<', \$job{in}, '>', \$job{out},
		'2>', \$job{err}, IPC::Run::timeout(1800));
	$job{run}->pump while length $job{in};
	return \%job;
}

sub finish
{
	my ($job) = @_;
	eval { $job->{run}->finish; 1 } or diag "psql: $@";
	chomp $job->{out};
	return $job->{out};
}

# Waits for a message; prints whether there is one, and how long it took in
# milliseconds.
sub wait_sql
{
	my ($q, $timeout) = @_;
	return "SELECT extract(epoch FROM clock_timestamp()) AS start \\gset\n"
	  . "CALL queue_wait('$q', $timeout);\n"
	  . "SELECT round((extract(epoch FROM clock_timestamp()) - :start) * 1000);\n";
}

sub begin_wait
{
	my ($q, $timeout, %options) = @_;
	return begin(($options{before} || '') . wait_sql($q, $timeout)
		  . ($options{after} || ''),
		%options);
}

# Whether it was woken, and after how long
sub result
{
	my ($job) = @_;
	my @lines = split /\n/, finish($job);
	return ($lines[0], $lines[1], @lines[ 2 .. $#lines ]);
}

# So many sessions wait.
sub wait_for_waiters
{
	my ($n, $server) = @_;
	return ($server || $node)->poll_query_until(
		$db, qq{
		SELECT count(*) = $n FROM pg_stat_activity
		WHERE query LIKE 'CALL queue_wait%' AND state = 'active'
		AND wait_event_type = 'Extension'});
}

our $waiters = q{FROM pg_stat_activity WHERE query LIKE 'CALL queue_wait%' AND state = 'active'};
our $long = 600000;    # ms, a timeout that no test waits for

# A session that nothing wakes probes after five seconds.  One that is woken is back
# before that, but on a busy machine not each time.  A try returns what result() does.
sub is_woken
{
	my ($what, $try, $ready) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my @result;

	foreach (1 .. 20)
	{
		@result = $try->();
		last if $result[1] < 5000 || $result[0] ne ($ready // 't');
	}
	note "$what: $result[1] ms";
	return is($result[0], $ready // 't', $what)
	  && cmp_ok($result[1], '<', 5000, "$what, before it probes");
}

sub still_waits
{
	my ($job, $what) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	sleep 0.3;
	$job->{run}->pump_nb if $job->{run}->pumpable;
	return ok($job->{run}->pumpable && $job->{out} eq '', $what);
}

sub state_of
{
	my ($sql, %options) = @_;
	my ($ret, $stdout, $stderr) = ($options{node} || $node)->psql(
		$db, $sql,
		extra_params => [
			'-v', 'VERBOSITY=verbose',
			$options{user} ? ('-U', $options{user}) : ()
		]);
	return $stderr =~ /(?:ERROR|FATAL):\s+(\w{5}):/ ? $1 : 'none';
}

sub waiter_pid
{
	return value("SELECT pid $waiters ORDER BY backend_start LIMIT 1");
}

# Each takes a message when it is woken.
sub begin_several
{
	my ($n, $timeout) = @_;
	my @jobs =
	  map { begin_wait('q', $timeout, after => q{SELECT count(*) FROM queue_pop('q')}) }
	  (1 .. $n);
	wait_for_waiters($n);
	return @jobs;
}

1;
