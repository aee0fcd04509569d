# queue_wait: a session that waits holds nothing, and is woken when there is
# something to claim; also without a worker and without shared memory.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../perl";

use ClusterTest;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(sleep time);
use WaitTest;

start_server();

# --- with something there, and with nothing ---

value(q{SELECT queue_create('q')});
my ($ready, $ms);
is_woken('nothing comes', sub { ($ready, $ms) = result(begin_wait('q', 300)) }, 'f');
cmp_ok($ms, '>=', 300, 'not before the time is over');
is_woken('zero probes once', sub { result(begin_wait('q', 0)) }, 'f');
value(q{SELECT queue_push('q', '1')});
is_woken('something is there', sub { result(begin_wait('q', $long)) });
is(finish(begin(q{CALL queue_wait('q', 0)})), 't', 'zero finds it too');
value(q{SELECT queue_pop('q')});

# --- woken by a push ---

my $job = begin_wait('q', $long);
wait_for_waiters(1);
is( value("SELECT count(*), count(backend_xid), count(backend_xmin) $waiters"),
	'1|0|0',
	'a session that waits has neither a snapshot nor a transaction id');
is( value(
		"SELECT count(*) FROM pg_locks WHERE pid IN (SELECT pid $waiters) AND locktype <> 'virtualxid'"
	),
	'0',
	'and holds no lock');
is( value("SELECT count(*) FROM (SELECT pid $waiters) AS w, pg_blocking_pids(w.pid) AS b WHERE cardinality(b) > 0"),
	'0', 'nor waits for one');
value(q{SELECT queue_push('q', '1')});
is((result($job))[0], 't', 'a push wakes');
value(q{SELECT queue_pop('q')});

# A session waits, and this wakes it: not its own probe.
sub wakes
{
	my ($what, $before, @sql) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	is_woken(
		$what,
		sub {
			value($before);
			my $waiter = begin_wait('q', $long);
			wait_for_waiters(1);
			value($_) foreach @sql;
			my @result = result($waiter);
			value(q{SELECT FROM queue_pop('q', 10)});
			return @result;
		});
	return;
}

my $push = q{SELECT queue_push('q', '1')};
wakes('a push wakes at once', '', $push);

# not by one that is rolled back, but by the one after it
$job = begin_wait('q', $long);
wait_for_waiters(1);
value('BEGIN');
value(q{SELECT queue_push('q', '1')});
value('ROLLBACK');
still_waits($job, 'a push rolled back does not wake');
value(q{SELECT queue_push('q', '1')});
($ready) = result($job);
is($ready, 't', 'the next one does');

# in a project that is set for the call's transaction, which ends when the wait begins
$job = begin(qq{CALL queue_wait(CASE WHEN set_config('queue.project', 'p', true) IS NOT NULL
	THEN 'there' END, $long);
	SHOW queue.project});
wait_for_waiters(1);
value(q{SELECT set_config('queue.project', 'p', true), queue_push('there', '1')});
is(finish($job), "t\n", 'a push wakes in a project that is set for the transaction');

# a release, and a rollback of a claim
my $claim = value(q{SELECT claim_id FROM queue_claim('q', 600, 0)});
$job = begin_wait('q', $long);
wait_for_waiters(1);
value("SELECT claim_release('q', '$claim')");
is((result($job))[0], 't', 'a release wakes');
value('BEGIN');
value(q{SELECT FROM queue_pop('q')});
$job = begin_wait('q', $long);
wait_for_waiters(1);
value('ROLLBACK');
is((result($job))[0], 't', 'a delete rolled back wakes');

# --- what becomes due ---

sub becomes_due
{
	my ($how, @ways) = @_;
	my %ways = (
		'claim that runs out' => [ q{SELECT queue_push('q', '1'); SELECT FROM queue_claim('q', 1, 0)}, 'claimed_until' ],
		'delayed message' => [ q{SELECT queue_push('q', '1', delay => 1)}, 'due_at' ]);

	foreach my $way (@ways)
	{
		my ($sql, $column) = @{ $ways{$way} };
		my $early;

		is_woken(
			"$how: a $way",
			sub {
				value($sql);
				my $due = value("SELECT extract(epoch FROM $column) FROM queue_data.message WHERE queue = 'q'");
				my @result = result(begin_wait('q', $long));
				$early ||= time < $due;
				value(q{SELECT FROM queue_pop('q')});
				return @result;
			});
		ok(!$early, "$how: a $way: not before it is due");
	}
	return;
}

value(q{SELECT queue_pop('q')});
becomes_due('with a worker', 'claim that runs out', 'delayed message');

# --- several ---

my @jobs = begin_several(5, $long);
value(q{SELECT queue_push('q', '1')});
ok($node->poll_query_until($db, "SELECT count(*) = 4 $waiters"), 'one message wakes one of five');
ok($node->poll_query_until($db, q{SELECT total = 0 FROM queue_stats('q')}), 'and that session gets it');
value(q{SELECT FROM queue_push_batch('q', ARRAY['1', '2', '3', '4']::jsonb[])});
my @results = map { [ result($_) ] } @jobs;
is(scalar(grep { $_->[0] eq 't' } @results), 5, 'four more messages wake the others');
is(scalar(grep { $_->[2] eq '1' } @results), 5, 'and each gets one');

@jobs = begin_several(3, $long);
foreach my $i (1 .. 3)
{
	value("SELECT queue_push('q', '$i')");
}
@results = map { [ result($_) ] } @jobs;
is(scalar(grep { $_->[0] eq 't' && $_->[2] eq '1' } @results),
	3, 'three pushes one after the other wake three');

# --- a queue that does not exist, is dropped, is paused ---

$job = begin_wait('unborn', $long);
wait_for_waiters(1);
value(q{SELECT queue_push('unborn', '1')});
is((result($job))[0], 't', 'a queue that is made meanwhile');
($ready, $ms) = result(begin_wait('unborn2', 200));
is($ready, 'f', 'one that is not made');

value(q{SELECT queue_create('dropped')});
$job = begin_wait('dropped', $long);
wait_for_waiters(1);
value(q{SET lock_timeout = 5000});
is(value(q{SELECT queue_drop('dropped')}), 't', 'one that is dropped');
value(q{RESET lock_timeout});
value(q{SELECT queue_push('dropped', '1')});
is((result($job))[0], 't', 'and made again');

value(q{SELECT queue_pause('q')});
$job = begin_wait('q', $long);
wait_for_waiters(1);
value($push);
still_waits($job, 'a paused queue is not ready');
value(q{SELECT queue_resume('q')});
is((result($job))[0], 't', 'a resumed one is');
value(q{SELECT queue_pop('q')});

my @pause = (q{SELECT queue_pause('q')}, $push);
my $resume = q{SELECT queue_resume('q')};
wakes('paused before it waits: resuming it wakes', $pause[0], $push, $resume);
wakes('paused with a message: resuming it wakes', "$push; $pause[0]", $resume);
wakes('paused while it waits: resuming it wakes', '', @pause, $resume);

# --- no worker ---

# What a session is told, without the prefix
sub complaint
{
	my ($sql) = @_;
	my $stderr = ($node->psql($db, $sql))[2];
	$stderr =~ s/^psql:\S+ //mg;
	return $stderr;
}

value(q{ALTER SYSTEM SET queue.database_workers = 0});
value(q{SELECT pg_reload_conf()});
ok( $node->poll_query_until(
		$db, q{SELECT count(*) = 0 FROM pg_stat_activity WHERE backend_type = 'queue worker'}
	),
	'no worker');
becomes_due('no worker', 'claim that runs out');
wakes('no worker: a push', '', $push);

# Each of many messages wakes a session.  A session that waits also probes by itself,
# after five seconds; so this takes less: not each time on a machine that is held up,
# but more often than not.
my $until = time + 90;
my $ahead = 0;
while ($ahead < 2 && time < $until)
{
	@jobs = begin_several(8, $long);
	my $start = time;
	value(q{SELECT FROM queue_push_batch('q', array_fill('1'::jsonb, '{8}'))});
	result($_) for @jobs;
	my $seconds = time - $start;
	note "eight sessions were woken in $seconds s";
	$ahead += $seconds < 2.5 ? 1 : -1;
}
is($ahead, 2, 'no worker: eight messages wake eight');

# What does not work then is said, once in a session.
value(q{CREATE FUNCTION job(jsonb) RETURNS boolean LANGUAGE sql AS 'SELECT true'});
my %without_worker = (
	q{CALL queue_wait('q', 1); SELECT queue_channel('q'), queue_channel('q')} =>
	  'no notifications are sent',
	q{SELECT job_handler('q', 'job(jsonb)'), queue_channel('q')} =>
	  'only job_run() runs jobs',
	q{SELECT job_handler('q', NULL)} => '');
foreach my $sql (sort keys %without_worker)
{
	my $effect = $without_worker{$sql};
	is( complaint($sql),
		$effect eq '' ? '' :
		  qq{NOTICE:  no background worker can be started: $effect\n}
		  . q{HINT:  Raise "queue.database_workers".},
		"no worker: $sql");
}
value(q{ALTER SYSTEM RESET queue.database_workers});

unlike(slurp_file($node->logfile), qr/(?:PANIC|TRAP|WARNING):/,
	'nothing bad in the log');
$one->quit;
$node->stop;
done_testing();
