# queue_wait: who waits is woken when there is something to claim, holds
# nothing meanwhile, and can be cancelled; and where it cannot wait it raises an
# error.
#
# One mode: the library is preloaded.

use strict;
use warnings;

use IPC::Run ();
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(sleep time);

my $node = PostgreSQL::Test::Cluster->new('main');
$node->init(allows_streaming => 1);
$node->append_conf(
	'postgresql.conf', q{
shared_preload_libraries = 'queue'
autovacuum = off
queue.min_claim_ttl = 1
queue.min_claim_grace = 0
queue.min_message_ttl = 1
});
$node->start;
my $db = 'postgres';
$node->safe_psql($db, 'CREATE EXTENSION queue');
my $one = $node->background_psql($db);

sub value
{
	my ($sql) = @_;
	return $one->query_safe($sql);
}

# Starts a psql that runs these commands; finish() tells what came of them.
sub begin
{
	my ($sql, %options) = @_;
	my %job = (in => "$sql\n;\n", out => '', err => '');
	my @command = (
		'psql', '-XAtq', '-v', 'VERBOSITY=verbose', '-d',
		($options{node} || $node)->connstr($db));

	$job{run} = IPC::Run::start(\@command, '<', \$job{in}, '>', \$job{out},
		'2>', \$job{err}, IPC::Run::timer(60));
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

# Whether it was told, and after how long
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

my $waiters = q{FROM pg_stat_activity WHERE query LIKE 'CALL queue_wait%' AND state = 'active'};
my $bound = 1000;    # ms, for what takes a few

sub is_quick
{
	my ($ms, $what) = @_;
	cmp_ok($ms, '<', $bound, $what);
	note sprintf '%s: %.1f ms', $what, $ms;
	return;
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

# --- with something there, and with nothing ---

value(q{SELECT queue_create('q')});
my ($ready, $ms) = result(begin_wait('q', 300));
is($ready, 'f', 'nothing comes');
cmp_ok($ms, '>=', 300, 'not before the time is over');
cmp_ok($ms, '<', 300 + $bound, 'nor much later');
($ready, $ms) = result(begin_wait('q', 0));
is($ready, 'f', 'zero looks once');
is_quick($ms, 'and does not wait');
value(q{SELECT queue_push('q', '1')});
($ready, $ms) = result(begin_wait('q', 20000));
is($ready, 't', 'something is there');
is_quick($ms, 'at once when something is there');
is(finish(begin(q{CALL queue_wait('q', 0)})), 't', 'zero finds it too');
value(q{SELECT queue_pop('q')});

# --- woken by a push ---

my $job = begin_wait('q', 20000);
wait_for_waiters(1);
is( value("SELECT count(*), count(backend_xid), count(backend_xmin) $waiters"),
	'1|0|0',
	'who waits has neither a snapshot nor a transaction id');
is( value(
		"SELECT count(*) FROM pg_locks WHERE pid IN (SELECT pid $waiters) AND locktype <> 'virtualxid'"
	),
	'0',
	'and holds no lock');
is( value("SELECT count(*) FROM (SELECT pid $waiters) AS w, pg_blocking_pids(w.pid) AS b WHERE cardinality(b) > 0"),
	'0', 'nor waits for one');
my $start = time;
value(q{SELECT queue_push('q', '1')});
($ready) = result($job);
is($ready, 't', 'a push wakes');
is_quick((time - $start) * 1000, 'a push wakes at once');
value(q{SELECT queue_pop('q')});

# not by one that is rolled back, but by the one after it
$job = begin_wait('q', 20000);
wait_for_waiters(1);
value('BEGIN');
value(q{SELECT queue_push('q', '1')});
value('ROLLBACK');
sleep 0.3;
ok($job->{run}->pumpable, 'a push rolled back does not wake');
value(q{SELECT queue_push('q', '1')});
($ready) = result($job);
is($ready, 't', 'the next one does');

# a release, and a rollback of a claim
my $claim = value(q{SELECT claim_id FROM queue_claim('q', 60, 0)});
$job = begin_wait('q', 20000);
wait_for_waiters(1);
value("SELECT claim_release('q', '$claim')");
is((result($job))[0], 't', 'a release wakes');
value('BEGIN');
value(q{SELECT FROM queue_pop('q')});
$job = begin_wait('q', 20000);
wait_for_waiters(1);
value('ROLLBACK');
is((result($job))[0], 't', 'a delete rolled back wakes');

# --- what becomes due ---

value(q{SELECT FROM queue_claim('q', 2, 0)});
my $expiry = value(
	q{SELECT extract(epoch FROM claimed_until) FROM queue_data.message WHERE queue = 'q'}
);
($ready) = result(begin_wait('q', 20000));
is($ready, 't', 'a claim that runs out wakes');
is_quick((time - $expiry) * 1000, 'a claim that runs out wakes at once');
value(q{SELECT queue_pop('q')});
value(q{SELECT queue_push('q', '1', delay => 1)});
$expiry = value(
	q{SELECT extract(epoch FROM due_at) FROM queue_data.message WHERE queue = 'q'}
);
($ready) = result(begin_wait('q', 20000));
is($ready, 't', 'a delayed message wakes');
cmp_ok(time, '>=', $expiry, 'not before it is due');
is_quick((time - $expiry) * 1000, 'a delayed message wakes at once');
value(q{SELECT queue_pop('q')});

# --- several ---

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

my @jobs = begin_several(5, 4000);
value(q{SELECT queue_push('q', '1')});
my @results = map { [ result($_) ] } @jobs;
my @woken = grep { $_->[0] eq 't' } @results;
is(scalar(@woken), 1, 'one message wakes one of five');
is($woken[0][2], '1', 'who gets it');
is(scalar(grep { $_->[0] eq 'f' && $_->[1] >= 4000 } @results),
	4, 'the others wait until their time is over');

@jobs = begin_several(5, 20000);
value(q{SELECT FROM queue_push_batch('q', ARRAY['1', '2', '3', '4', '5']::jsonb[])});
@results = map { [ result($_) ] } @jobs;
is(scalar(grep { $_->[0] eq 't' } @results), 5, 'five messages wake five');
is(scalar(grep { $_->[2] eq '1' } @results), 5, 'and each gets one');

@jobs = begin_several(3, 20000);
foreach my $i (1 .. 3)
{
	value("SELECT queue_push('q', '$i')");
}
@results = map { [ result($_) ] } @jobs;
is(scalar(grep { $_->[0] eq 't' && $_->[2] eq '1' } @results),
	3, 'three pushes one after the other wake three');

# --- cancelled ---

sub waiter_pid
{
	return value("SELECT pid $waiters ORDER BY backend_start LIMIT 1");
}

$job = begin("SET statement_timeout = 300;\n" . wait_sql('q', 20000));
finish($job);
like($job->{err}, qr/ERROR:  57014: .*statement timeout/,
	'a statement timeout ends the wait');
@jobs = begin_several(1, 20000);
value('SELECT pg_cancel_backend(' . waiter_pid() . ')');
finish($jobs[0]);
like($jobs[0]->{err}, qr/ERROR:  57014: .*user request/,
	'pg_cancel_backend does');
@jobs = begin_several(1, 20000);
value('SELECT pg_terminate_backend(' . waiter_pid() . ')');
finish($jobs[0]);
like($jobs[0]->{err}, qr/FATAL:  57P01: /, 'pg_terminate_backend does');

# Who was before in the line goes; those behind are woken all the same.
@jobs = begin_several(1, 20000);
my $pid = waiter_pid();
push @jobs, begin_wait('q', 20000, after => q{SELECT count(*) FROM queue_pop('q')});
wait_for_waiters(2);
value("SELECT pg_cancel_backend($pid)");
finish($jobs[0]);
value(q{SELECT queue_push('q', '1')});
is((result($jobs[1]))[0], 't', 'others are woken after a cancel');
@jobs = begin_several(1, 20000);
$pid = waiter_pid();
push @jobs, begin_wait('q', 20000, after => q{SELECT count(*) FROM queue_pop('q')});
wait_for_waiters(2);
value("SELECT queue_push('q', '1'), pg_terminate_backend($pid)");
finish($jobs[0]);
is((result($jobs[1]))[0], 't', 'and after a termination together with a push');
is(value(q{SELECT total FROM queue_stats('q')}), '0', 'nothing is left');

# --- where it cannot wait ---

value(
	q{CREATE PROCEDURE plain(INOUT r boolean) LANGUAGE plpgsql AS 'BEGIN CALL queue_wait(''q'', 200, r); END'}
);
my %nowhere = (
	'transaction block' => q{BEGIN; CALL queue_wait('q', 20000); COMMIT},
	'several in one message' => q{SELECT 1\; CALL queue_wait('q', 20000)},
	'function' =>
	  q{CREATE FUNCTION pg_temp.f() RETURNS boolean LANGUAGE plpgsql AS 'DECLARE r boolean; BEGIN CALL queue_wait(''q'', 20000, r); RETURN r; END'; SELECT pg_temp.f()},
	'procedure with SECURITY DEFINER' =>
	  q{CREATE PROCEDURE pg_temp.p(INOUT r boolean) LANGUAGE plpgsql SECURITY DEFINER AS 'BEGIN CALL queue_wait(''q'', 20000, r); END'; CALL pg_temp.p(NULL)},
	'procedure with SET' =>
	  q{CREATE PROCEDURE pg_temp.p(INOUT r boolean) LANGUAGE plpgsql SET work_mem = '1MB' AS 'BEGIN CALL queue_wait(''q'', 20000, r); END'; CALL pg_temp.p(NULL)},
	'block with an exception handler' =>
	  q{DO $$DECLARE r boolean; BEGIN CALL queue_wait('q', 20000, r); EXCEPTION WHEN division_by_zero THEN NULL; END$$},
	'DO in a transaction block' =>
	  q{BEGIN; DO $$DECLARE r boolean; BEGIN CALL queue_wait('q', 20000, r); END$$; COMMIT});
foreach my $where (sort keys %nowhere)
{
	is(state_of($nowhere{$where}), '25001', "$where: it cannot wait");
	is(state_of($nowhere{$where} =~ s/20000|200/0/r),
		'none', "$where: it can look once");
}
like(
	($node->psql($db, q{BEGIN; CALL queue_wait('q', 1)}))[2],
	qr/HINT:  Call it by itself, with autocommit, or with a timeout of 0/,
	'a hint says what to do');
value(q{SELECT queue_push('q', '1')});
is(state_of(q{BEGIN; CALL queue_wait('q', 20000); COMMIT}),
	'25001', 'whether or not something is there');
is(finish(begin(q{BEGIN; CALL queue_wait('q', 0); COMMIT})),
	't', 'which it finds when it only looks');
value(q{SELECT queue_pop('q')});

# A procedure, or DO, that is no transaction of its own can
is(state_of(q{DO $$DECLARE r boolean; BEGIN CALL queue_wait('q', 200, r); END$$}),
	'none', 'DO waits');
$job = begin(q{DO $$DECLARE r boolean; BEGIN CALL queue_wait('q', 20000, r); RAISE NOTICE 'ready: %', r; END$$});
$node->poll_query_until($db,
	q{SELECT count(*) = 1 FROM pg_stat_activity WHERE query LIKE 'DO %' AND wait_event_type = 'Extension'}
);
is( value(
		q{SELECT count(*), count(backend_xid), count(backend_xmin) FROM pg_stat_activity WHERE query LIKE 'DO %' AND wait_event_type = 'Extension'}
	),
	'1|0|0',
	'a procedure holds nothing while it waits');
value(q{SELECT queue_push('q', '1')});
finish($job);
like($job->{err}, qr/ready: t/, 'a procedure is woken');
value(q{SELECT queue_pop('q')});
is(finish(begin('CALL plain(NULL)')), 'f', 'one in another');

# --- a queue that is not there, that goes, that stands still ---

$job = begin_wait('unborn', 20000);
wait_for_waiters(1);
$start = time;
value(q{SELECT queue_push('unborn', '1')});
is((result($job))[0], 't', 'a queue that is made meanwhile');
is_quick((time - $start) * 1000, 'is seen');
($ready, $ms) = result(begin_wait('unborn2', 200));
is($ready, 'f', 'one that is not made');

value(q{SELECT queue_create('dropped')});
$job = begin_wait('dropped', 20000);
wait_for_waiters(1);
value(q{SET lock_timeout = 5000});
is(value(q{SELECT queue_drop('dropped')}), 't', 'one that is dropped');
value(q{RESET lock_timeout});
value(q{SELECT queue_push('dropped', '1')});
is((result($job))[0], 't', 'and made again');

value(q{SELECT queue_pause('q')});
$job = begin_wait('q', 20000);
wait_for_waiters(1);
value(q{SELECT queue_push('q', '1')});
sleep 0.3;
ok($job->{run}->pumpable, 'a paused queue is not ready');
value(q{SELECT queue_resume('q')});
is((result($job))[0], 't', 'one that goes on is');
value(q{SELECT queue_pop('q')});

$job = begin_wait('q', 20000);
wait_for_waiters(1);
value(q{SELECT queue_pause('q')});
value(q{SELECT queue_push('q', '1')});
sleep 0.3;
ok($job->{run}->pumpable, 'nor one that is paused meanwhile');
value(q{SELECT queue_resume('q')});
is((result($job))[0], 't', 'until it goes on');
value(q{SELECT queue_pop('q')});

# --- arguments and rights ---

is(state_of(q{CALL queue_wait(NULL, 0)}), '22004', 'no name');
is(state_of(q{CALL queue_wait('a b', 0)}), '22023', 'a bad name');
is(state_of(q{CALL queue_wait('q', NULL)}), '22004', 'no timeout');
is(state_of(q{CALL queue_wait('q', -1)}), '22023', 'a negative one');
value(q{CREATE ROLE nobody LOGIN; CREATE ROLE producer LOGIN IN ROLE queue_producer; CREATE ROLE consumer LOGIN IN ROLE queue_consumer}
);
is(state_of(q{CALL queue_wait('q', 0)}, user => 'nobody'), '42501', 'a role without rights');
is(state_of(q{CALL queue_wait('q', 0)}, user => 'producer'), '42501', 'one that only pushes');
is(state_of(q{CALL queue_wait('q', 0)}, user => 'consumer'), 'none', 'one that claims');
is(state_of(q{SET default_transaction_read_only = on; CALL queue_wait('q', 1000)}),
	'25006', 'read-only');
is(state_of(q{SET default_transaction_isolation = 'serializable'; CALL queue_wait('q', 100)}),
	'none', 'serializable');
is(state_of(q{SET default_transaction_isolation = 'repeatable read'; CALL queue_wait('q', 100)}),
	'none', 'repeatable read');

# A right that is taken away meanwhile
$job = begin_wait('q', 20000, before => "SET SESSION AUTHORIZATION consumer;\n");
wait_for_waiters(1);
value(q{SELECT queue_grant('q', 'producer', 'claim')});
value(q{SELECT queue_push('q', '1')});
finish($job);
like($job->{err}, qr/ERROR:  42501/, 'a right taken away meanwhile');
value(q{SELECT queue_revoke('q', 'producer', 'claim')});
value(q{SELECT FROM queue_pop('q')});

# Another project
$job = begin_wait('q', 20000, before => "SET queue.project = 'p';\n");
wait_for_waiters(1);
value(q{SELECT queue_push('q', '1')});
sleep 0.3;
ok($job->{run}->pumpable, 'of another project nothing wakes');
value(q{SET queue.project = 'p'; SELECT queue_push('q', '1'); RESET queue.project});
is((result($job))[0], 't', 'of the own something does');
value(q{SELECT FROM queue_pop('q')});

# --- no worker ---

sub becomes_due
{
	my ($how) = @_;

	value(q{SELECT queue_push('q', '1')});
	value(q{SELECT FROM queue_claim('q', 1, 0)});
	my $t = value(
		q{SELECT extract(epoch FROM claimed_until) FROM queue_data.message WHERE queue = 'q'}
	);
	is((result(begin_wait('q', 20000)))[0], 't', "$how: a claim that runs out");
	is_quick((time - $t) * 1000, "$how: after a claim");
	value(q{SELECT FROM queue_pop('q')});
	value(q{SELECT queue_push('q', '1', delay => 1)});
	$t = value(
		q{SELECT extract(epoch FROM due_at) FROM queue_data.message WHERE queue = 'q'}
	);
	is((result(begin_wait('q', 20000)))[0], 't', "$how: a delayed message");
	is_quick((time - $t) * 1000, "$how: after a delay");
	value(q{SELECT FROM queue_pop('q')});
	my $j = begin_wait('q', 20000);
	wait_for_waiters(1);
	$t = time;
	value(q{SELECT queue_push('q', '1')});
	is((result($j))[0], 't', "$how: a push");
	is_quick((time - $t) * 1000, "$how: after a push");
	value(q{SELECT FROM queue_pop('q')});
	return;
}

value(q{ALTER SYSTEM SET queue.database_workers = 0});
value(q{SELECT pg_reload_conf()});
ok( $node->poll_query_until(
		$db, q{SELECT count(*) = 0 FROM pg_stat_activity WHERE backend_type = 'queue worker'}
	),
	'no worker');
becomes_due('no worker');
value(q{ALTER SYSTEM RESET queue.database_workers});

# --- standby ---

$node->backup('base');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($node, 'base', has_streaming => 1);
$standby->start;
$node->wait_for_catchup($standby);
is(state_of(q{CALL queue_wait('q', 1000)}, node => $standby),
	'25006', 'standby: it is refused');
is($standby->safe_psql($db, q{SELECT queue_channel('q')}),
	value(q{SELECT queue_channel('q')}), 'standby: the channel is told');
$standby->stop;

# --- not preloaded ---

$one->quit;
$node->append_conf('postgresql.conf', q{shared_preload_libraries = ''});
$node->restart;
$one = $node->background_psql($db);
value(q{SET queue.min_claim_ttl = 1; SET queue.min_claim_grace = 0});
becomes_due('not preloaded');
($ready, $ms) = result(begin_wait('q', 300));
is($ready, 'f', 'not preloaded: nothing comes');
cmp_ok($ms, '>=', 300, 'not preloaded: not before the time is over');
$job = begin_wait('q', 20000);
wait_for_waiters(1);
is( value("SELECT count(*), count(backend_xid), count(backend_xmin) $waiters"),
	'1|0|0',
	'not preloaded: nothing is held');
value('SELECT pg_cancel_backend(' . waiter_pid() . ')');
finish($job);
like($job->{err}, qr/ERROR:  57014: /, 'not preloaded: cancelled');
is(value('SELECT queue_ready()'),
	"dropped\nunborn", 'not preloaded: queue_ready');

unlike(slurp_file($node->logfile), qr/(?:PANIC|TRAP|WARNING):/,
	'nothing bad in the log');
$one->quit;
$node->stop;
done_testing();
