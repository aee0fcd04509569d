# With more queues than places for maps, queues without messages go without: they are
# neither probed nor visited, and no queue with messages loses its map to them.  With
# more queues with messages than places, neither queue_ready nor the worker's visit to all
# queues takes those of the others.  In each case all that is ready is found.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../perl";

use List::Util qw(min);
use PostgreSQL::Test::Utils;
use QueueTest;
use Test::More;
use Time::HiRes qw(sleep time);

my ($maps, $queues, $ready) = (64, 96, 20);
my @ready = 1 .. $ready;
my @others = $ready + 1 .. $queues;

start_server(
	qq{
max_prepared_transactions = 2
autovacuum = off
log_statement = none
log_min_messages = debug1
queue.max_active_queues = @{[ 2 * $maps ]}
});
value(q{CREATE FUNCTION rows_read() RETURNS bigint LANGUAGE sql AS
	$$ SELECT sum(pg_stat_get_xact_tuples_returned(r)) FROM (SELECT indexrelid FROM pg_index
		WHERE indrelid = 'queue_data.queue'::regclass
		UNION ALL SELECT 'queue_data.queue'::regclass) AS s (r) $$;
	CREATE FUNCTION scans() RETURNS bigint LANGUAGE sql AS
	$$ SELECT sum(pg_stat_get_xact_numscans(indexrelid)) FROM pg_index
		WHERE indrelid::regclass::text ~ '^queue_data.(message|delayed)_' $$});
my $session = $node->background_psql($db);
my $other = $node->background_psql($db);
my $listener = $node->background_psql($db);

# --- What the test does ---

my $pushed = 0;

# Push to each of these queues, in a transaction of its own.  With $finish, claim all
# that is there and complete it.
sub push_to
{
	my ($finish, @q) = @_;

	for my $q (@q)
	{
		$other->query_safe("SELECT queue_push('q$q', '1')");
		$other->query_safe(
			"SELECT claim_complete('q$q', claim_id) FROM queue_claim('q$q', 300, 60, 9) LIMIT 1")
		  if $finish;
	}
	$pushed += @q;
	return;
}

# The same, a few at a time: a map is not given back before its counters are written.
sub push_slowly
{
	my (@q) = @_;

	while (@q)
	{
		push_to(1, splice(@q, 0, min(12, scalar @q)));
		$node->poll_query_until($db,
			"SELECT sum(pushed) = $pushed FROM queue_data.job_counter")
		  or die 'the counters are not written';
	}
	return;
}

# Wait until no map has counters that are not written.
sub write_counters
{
	$node->poll_query_until($db, q{SELECT NOT EXISTS (SELECT FROM queue_data.queue_status AS s
		JOIN queue_data.queue AS q USING (name)
		LEFT JOIN queue_data.job_counter AS c ON c.queue_id = q.id
		WHERE s.pushed <> coalesce(c.pushed, 0))})
	  or die 'the counters are not written';
	return;
}

# Wait until the worker has nothing to do.
sub rests
{
	$node->poll_query_until($db, q{SELECT state = 'idle' AND NOT EXISTS (SELECT FROM
			queue_data.availability_map WHERE state = 'new' OR next_visit <= clock_timestamp())
		FROM queue_data.queue_workers WHERE database = current_database()})
	  or die 'the worker does not come to rest';
	return;
}

sub worker_pid
{
	return value(q{SELECT pid FROM queue_data.queue_workers
		WHERE database = current_database()});
}

# A new worker counts all messages at once.
sub restart_worker
{
	my $pid = worker_pid();

	value("SELECT pg_terminate_backend($pid)");
	$node->poll_query_until($db, qq{SELECT pid NOT IN (0, $pid)
		FROM queue_data.queue_workers WHERE database = current_database()})
	  or die 'there is no new worker';
	return rests();
}

# Wait until the messages of all queues are counted.  Until then the worker makes maps for
# that, and a queue that finds no room for one has it counted again.
sub counted
{
	$node->poll_query_until($db,
		'SELECT bool_and(ready IS NOT NULL) FROM queue_data.queue_status')
	  or die 'the messages are not counted';
	return rests();
}

# The worker visits all queues, since one that has no map is resumed.
sub visit_all
{
	my $q = without_map();
	my $visited = qr/visited all of \d+ queues/;
	my $until = time + 180;
	my $from = -s $node->logfile;

	$other->query_safe("SELECT queue_pause('$q'); SELECT queue_resume('$q')");
	sleep 0.05
	  until slurp_file($node->logfile, $from) =~ $visited || time > $until;
	like(slurp_file($node->logfile, $from), $visited, 'the worker visits all queues');
	return rests();
}

# --- What it compares ---

# The maps: their queues, and which incarnation they are
sub maps_now
{
	return map { split /\|/ } split /\n/,
	  $other->query_safe('SELECT queue, incarnation FROM queue_data.availability_map');
}

# A queue that has no map
sub without_map
{
	my %has = maps_now();
	return (grep { !exists $has{$_} } map { "q$_" } 1 .. $queues)[0];
}

# How many of these queues have no longer the map that they had then, or (without
# queues) how many have another one
sub lost_since
{
	my ($before, @q) = @_;
	my %now = maps_now();
	my @names = @q ? map { "q$_" } @q : keys %now;

	return scalar grep { ($now{$_} // '') ne ($before->{$_} // '') } @names;
}

my $list = q{(SELECT string_agg(r, ' ' ORDER BY r) FROM queue_ready() AS r)};

sub names
{
	return join ' ', sort map { "q$_" } @_;
}

# These queues are ready, now.
sub is_ready
{
	my ($what, @q) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	return is($session->query_safe("SELECT $list"), names(@q), $what);
}

# The second of two calls reads no more rows of the table of queues than that; a list
# of all queues takes more.  The worker may have to make the maps known first, which it
# does at most once in a second.
sub reads_few
{
	my ($call, $rows, $what) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my $until = time + 180;
	my @n;

	do
	{
		@n = split /[\n|]/,
		  $session->query_safe("BEGIN; SELECT $call \\g /dev/null
			SELECT rows_read(), scans(); SELECT $call \\g /dev/null
			SELECT rows_read(), scans(); ROLLBACK");
	} while ($n[2] - $n[0] > $rows && time < $until && sleep 0.2);
	note "$what: $call reads ", $n[2] - $n[0], ' rows, and scans messages ',
	  $n[3] - $n[1], ' times';
	return cmp_ok($n[2] - $n[0], '<=', $rows, $what);
}

# --- Fewer queues with messages than maps ---

push_to(1, @ready, @others);
push_to(0, @ready);
write_counters();
restart_worker();
counted();
is_ready('queues with a message', @ready);
my %before = maps_now();
is(scalar keys %before, $maps, 'each map is in use');
reads_few($list, $ready, 'queue_ready reads no other queues');
reads_few('(SELECT count(*) FROM queue_claim_any(NULL, 300, 60, 1))',
	$ready, 'nor does queue_claim_any');
visit_all();
is_ready('after a visit to all queues', @ready);
is(lost_since(\%before), 0, 'none of these makes a map');

# Queues without a map get one for a push, and those with messages keep theirs.
write_counters();
$pushed = value('SELECT sum(pushed) FROM queue_data.job_counter');
my $wrong = 0;
for (1 .. 10)
{
	my $q = substr without_map(), 1;
	push_to(0, $q);
	$wrong++ if $session->query_safe("SELECT $list") ne names(@ready, $q);
	push_slowly($q);
}
is($wrong, 0, 'a push to a queue without a map is seen');
push_slowly(@others);
is_ready('the others are empty again', @ready);
is(lost_since(\%before, @ready), 0, 'queues with messages have kept their maps');
rests();
reads_few($list, $ready, 'queue_ready still reads no other queues');

# What ends after its map was given back
my ($open, $prepared) = @others;
$listener->query_safe(
	"SELECT format('LISTEN %I', queue_channel('q$_')) \\gexec") foreach $open, $prepared;
$session->query_safe("BEGIN; SELECT queue_push('q$open', '1')");
$other->query_safe(
	"BEGIN; SELECT queue_push('q$prepared', '1'); PREPARE TRANSACTION 'p'");
$pushed++;

# Which map goes first is chance.
my %now;
for (1 .. 20)
{
	push_slowly(@others[2 .. $#others]) for 1 .. 2;
	%now = maps_now();
	last unless grep { exists $now{"q$_"} } $open, $prepared;
}
ok(!exists $now{"q$_"}, "the map of queue $_ was given back") foreach $open, $prepared;
$session->query_safe('COMMIT');
is_ready('a push that is committed then', @ready, $open);
$other->query_safe("COMMIT PREPARED 'p'");
becomes("SELECT $list", names(@ready, $open, $prepared), 'and one that was prepared');
my $heard = '';
foreach my $q ($open, $prepared)
{
	my $until = time + 180;

	sleep 0.05
	  while ($heard .= $listener->query_safe('SELECT')) !~ /notification.*"q$q"/ && time < $until;
	like($heard, qr/notification.*"q$q"/, "listeners of queue $q are notified");
}

# --- More queues with messages than maps ---

push_to(0, @others);
restart_worker();
my $pid = worker_pid();
kill 'STOP', $pid or die "could not stop the worker: $!";
%before = maps_now();
is_ready('all queues', @ready, @others) for 1 .. 2;
is(lost_since(\%before), 0, 'queue_ready takes no map');
kill 'CONT', $pid;
visit_all();
my $lost = lost_since(\%before);
note "a visit to all queues takes $lost maps";
cmp_ok($lost, '<', $maps / 4, 'a visit to all queues takes few maps');

# --- Nearly as many ---

$other->query_safe("SELECT queue_purge('q$_')") foreach $maps .. $queues;
restart_worker();
is_ready('queues with messages', 1 .. $maps - 1);
reads_few($list, $maps, 'queue_ready reads no queues without a map');

$_->quit foreach $session, $other, $listener;
$node->stop;
done_testing();
