# A shard that leaves or arrives, by queue_shard_move or by a plain UPDATE of the map,
# is not felt by the queues of other shards: their availability maps go on, and
# messages are not counted anew.  Sessions that wait or listen learn of it, and what has
# arrived is known at once: depths, delays, claims, rates and jobs.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../perl";

use IPC::Run qw(run);
use PostgreSQL::Test::Utils;
use StatusTest;
use Test::More;
use Time::HiRes qw(time);

my $program = "$FindBin::RealBin/../../src/bin/queue_shard_move";

plan skip_all => 'python3 with psycopg2 is not installed'
  unless run [ 'python3', '-c', 'import psycopg2' ], '2>', '/dev/null';

# --- Two databases, in place of two servers ---

# In each a function tells whether queue_status knows the depths, without reading
# messages, in a new session.
start_server('queue.runners' => 2);
my ($one, $two) = ('postgres', 'two');
value("CREATE DATABASE $two");
$node->safe_psql($two, 'CREATE EXTENSION queue; SELECT queue_shard_init(2, 2)');
value('SELECT queue_shard_init(1, 2)');
$node->safe_psql($_, q{
CREATE FUNCTION depths_are_known() RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    PERFORM FROM queue_data.queue_status;
    RETURN NOT EXISTS (SELECT FROM pg_stat_xact_user_tables
        WHERE schemaname = 'queue_data' AND relname ~ '^(message|delayed)_\d'
          AND seq_scan > 0);
END
$$}) foreach $one, $two;

sub move
{
	my ($shard, $from, $to) = @_;
	my ($out, $err);

	run [ $program, $shard, map { $node->connstr($_) } $from, $to ],
	  '>', \$out, '2>', \$err;
	is($err, '', "shard $shard moves from $from to $to");
	return;
}

# Names of n queues in one shard that is local, the nth of these
sub names
{
	my ($db, $nth, $n) = @_;
	return split /\n/, $node->safe_psql($db, qq{
		SELECT 'q' || g FROM generate_series(1, 20000) AS g
		WHERE queue_shard('q' || g) = (SELECT shard FROM queue_data.shard
			WHERE state = 'local' ORDER BY shard OFFSET $nth LIMIT 1)
		ORDER BY g LIMIT $n});
}

my ($near) = names($one, 0, 1);
my ($there) = names($two, 0, 1);
my ($q, $waited, $limited, $jobs) = names($one, 1, 4);
my $shard = value("SELECT queue_shard('$q')");

# --- Neighbors ---

# Each has messages, some of them claimed, and its map is complete.  What is known of
# it: the map, with its incarnation; and whether numbers come without counting.
my %neighbor = ($one => $near, $two => $there);
foreach my $db ($one, $two)
{
	$node->safe_psql($db, qq{
		SELECT queue_push_batch('$neighbor{$db}', array_agg(to_jsonb(g)))
		FROM generate_series(1, 200) AS g;
		SELECT count(*) FROM queue_claim('$neighbor{$db}', 600, 0, 10)});
	ok( $node->poll_query_until($db, 'SELECT depths_are_known()'),
		"$db: messages are counted");
	ok( $node->poll_query_until($db, qq{SELECT state = 'complete'
			FROM queue_data.availability_map WHERE queue = '$neighbor{$db}'}),
		"$db: the map is complete");
}

my $worker = $node->background_psql($one);
my $claim = $worker->query_safe(
	"SELECT min(claim_id) FROM claim_next('$near', NULL, 600, 0, 5)");

sub known
{
	my ($db) = @_;
	return $node->safe_psql($db, qq{
		SELECT state, incarnation FROM queue_data.availability_map
		WHERE queue = '$neighbor{$db}'});
}
my %known = map { $_ => known($_) } $one, $two;
my $recounts = recounts();

# A worker of a neighbor goes on, and nothing that is known of neighbors is forgotten.
sub not_felt
{
	my ($what) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	$claim = $worker->query_safe(
		"SELECT min(claim_id) FROM claim_next('$near', '$claim', 600, 0, 5)");
	is_deeply({ map { $_ => known($_) } $one, $two }, \%known,
		"$what: the maps of neighbors go on");
	is($node->safe_psql($_, 'SELECT depths_are_known()'), 't', "$what: $_: depths are known")
	  foreach $one, $two;
	is(recounts(), $recounts, "$what: and messages were not counted anew");
	return;
}

# --- The map is updated ---

$node->safe_psql($one, qq{
	SELECT queue_create(q) FROM unnest('{$q,$waited,$limited,$jobs}'::text[]) AS q;
	SELECT queue_push('$q', '1')});

value(q{UPDATE queue_data.shard SET peer = 'somewhere' WHERE state = 'remote'});
not_felt('peers are renamed');

my $waiter = $node->background_psql($one, on_error_stop => 0);
my $listener = $node->background_psql($one);
$listener->query_safe(qq{SELECT format('LISTEN %I', queue_channel('$waited')) \\gexec});
$waiter->query_until(qr/waits/, "\\echo waits\nCALL queue_wait('$waited', 600000);\n");
ok( $node->poll_query_until($one, qq{SELECT waiters = 1
		FROM queue_data.availability_map WHERE queue = '$waited'}),
	'a session waits');
value("UPDATE queue_data.shard SET state = 'remote', peer = 'elsewhere' WHERE shard = $shard");
my $began = time;
$waiter->query_until(qr/woken/, "\\echo woken\n");
like($waiter->{stderr}, qr/is on another server/, 'the session gets the error');
$waiter->quit;
my $notified = '';
while ($notified !~ /notification/ && time < $began + 180)
{
	$notified .= $listener->query_safe('SELECT pg_sleep(0.05)');
}
like($notified, qr/notification.*"$waited"/, 'a session that listens is notified');
not_felt('a shard is fenced');

value("UPDATE queue_data.shard SET state = 'local' WHERE shard = $shard");
is(value("SELECT body FROM queue_claim('$q', 600, 0)"), '1', 'it is back, with its messages');
not_felt('a shard is back');

# --- A move ---

# What moves: messages that are free, claimed and delayed, jobs, a group of which one
# message in ten seconds may be handed out, and another one that has no messages left
my @dbs = ($one, $two);
$node->safe_psql($_, q{CREATE TABLE done (n int);
	CREATE FUNCTION work(body jsonb) RETURNS boolean LANGUAGE sql
	AS 'INSERT INTO done VALUES (body::int) RETURNING true'}) foreach @dbs;
$node->safe_psql($one, qq{
	SELECT queue_push('$q', to_jsonb(g)) FROM generate_series(2, 5) AS g;
	SELECT queue_push('$q', '6', delay => 4); SELECT queue_push('$q', '7', delay => 3000);
	SELECT queue_set_metadata('$limited', '{"_group_rate": 0.1}');
	SELECT queue_push('$limited', to_jsonb(g), group_key => 'g') FROM generate_series(1, 3) AS g;
	SELECT queue_push('$limited', '4', group_key => 'none left');
	SELECT queue_push('$jobs', to_jsonb(g), delay => 5) FROM generate_series(1, 3) AS g;
	SELECT job_handler('$jobs', 'work(jsonb)')});
$listener->quit;
$listener = $node->background_psql($two);
$listener->query_safe(sprintf 'LISTEN %s',
	value("SELECT quote_ident(queue_channel('$q'))"));
$waiter = $node->background_psql($one, on_error_stop => 0);
$waiter->query_until(qr/waits/, "\\echo waits\nCALL queue_wait('$waited', 600000);\n");
ok( $node->poll_query_until($one, qq{SELECT waiters = 1
		FROM queue_data.availability_map WHERE queue = '$waited'}),
	'a session waits');
my $short = value("SELECT min(claim_id) FROM queue_claim('$q', 6, 0, 1)");
is(value("SELECT string_agg(body::text, ' ' ORDER BY id) FROM queue_pop('$limited', 2)"),
	'1 4', 'one of each group with a rate');
my $rates = 'SELECT array_agg((queue_id, lane) ORDER BY lane) FROM queue_data.group_rate';
my $known_rates = value($rates);
my $delivered = time;

move($shard, $one, $two);
$began = time;
$waiter->query_until(qr/woken/, "\\echo woken\n");
like($waiter->{stderr}, qr/is on another server/, 'a session that waits gets the error');
$waiter->quit;
not_felt('a shard has moved');
is($node->safe_psql($two, $rates), $known_rates, 'the rates have moved along');
is(value('SELECT count(*) FROM queue_data.group_rate'), '0', 'and are not at the source');
$node->safe_psql($two, "SELECT queue_push('$limited', '5', group_key => 'none left')");
my $early = $node->safe_psql($two, "SELECT count(*) FROM queue_claim('$limited', 600, 0)");
SKIP:
{
	skip 'the move took too long', 1 if time > $delivered + 9;
	is($early, '0', 'groups wait as their rate says');
}

sub becomes
{
	my ($db, $sql, $expected, $what) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	ok($node->poll_query_until($db, $sql, $expected), $what);
	note sprintf '%.1f s after the move', time - $began;
	return;
}
becomes($two, qq{
	SELECT (s.ready, s.claimed, s.delayed) = (t.free, t.claimed, t.delayed)
	FROM queue_data.queue_status AS s, queue_stats('$q') AS t WHERE s.name = '$q'}, 't',
	'the depths of what has arrived');
my $depths = "SELECT ready, claimed, delayed FROM queue_data.queue_status WHERE name = '$q'";
becomes($two, $depths, '5|1|1', 'then a delay is over, and a claim ends');
$notified = '';
while ($notified !~ /notification/ && time < $began + 180)
{
	$notified .= $listener->query_safe('SELECT pg_sleep(0.05)');
}
like($notified, qr/notification.*"$q"/, 'a session that listens there is notified');

# On a slow machine they are due before the shard has moved.
my $before = value('SELECT array(SELECT n FROM done)');
becomes($two, qq{SELECT array(SELECT n FROM done
	UNION ALL SELECT unnest('$before'::int[]) ORDER BY 1)}, '{1,2,3}', 'the jobs run');
not_felt('a shard was used');

# --- And back ---

$node->safe_psql($two, "SELECT queue_push('$q', '8')");
move($shard, $two, $one);
$began = time;
not_felt('a shard has moved back');
is(value("SELECT string_agg(body::text, ' ') FROM queue_claim('$q', 600, 0, 10)"),
	'2 3 4 5 6 8', 'all its messages are there');
becomes($one, $depths, '0|7|1', 'and counted');

$_->quit foreach $worker, $listener;
$node->stop;
done_testing();
