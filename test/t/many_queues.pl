# What others have does not cost much: queue_ready and queue_claim_any need neither
# memory nor time for queues that the caller may not use, and yet miss none that it
# may use from now on.  After a restart, what is due comes before the first visits to
# all other queues; and the worker goes on while all messages are counted.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../perl";

use PostgreSQL::Test::Utils;
use QueueTest;
use Test::More;
use Time::HiRes qw(sleep time);

my $strangers = 300;
my $db = 'postgres';

start_server(
	q{
autovacuum = off
log_statement = none
});

value(
	qq{CREATE ROLE boss IN ROLE queue_consumer; CREATE ROLE team;
	CREATE ROLE app IN ROLE queue_consumer;
	SELECT count(queue_create('s' || i, jsonb_build_object('x', repeat('y', 64000))))
	FROM generate_series(1, $strangers) AS i;
	SELECT count(queue_push('s' || i, '1')) FROM generate_series(1, $strangers) AS i;
	SELECT count(queue_grant('s' || i, 'boss', 'claim')) FROM generate_series(1, $strangers) AS i;
	SELECT count(queue_push('mine' || i, to_jsonb(i))) FROM generate_series(1, 3) AS i;
	CREATE FUNCTION peak_memory() RETURNS int LANGUAGE sql SECURITY DEFINER AS
	\$\$ SELECT substring(pg_read_file('/proc/self/status') from 'VmHWM:\\s*(\\d+)')::int \$\$;
	CREATE FUNCTION rows_read() RETURNS bigint LANGUAGE sql SECURITY DEFINER AS
	\$\$ SELECT sum(pg_stat_get_xact_numscans(indexrelid)) FROM pg_index
	WHERE indrelid = 'queue_data.queue'::regclass \$\$});

my $ready = q{(SELECT string_agg(r, ' ' ORDER BY r) FROM queue_ready() AS r)};

# --- Memory ---

# Kilobytes by which the most memory of a session grows, and the result of the call
sub growth
{
	my ($call) = @_;
	my ($before, $result, $after) = split /\n/,
	  value(qq{SET ROLE app; SELECT count(*) FROM queue_stats('mine1') \\g /dev/null
		SELECT peak_memory(); SELECT $call; SELECT peak_memory()});
	note "$call: ", $after - $before, ' kB';
	return ($after - $before, $result);
}

SKIP:
{
	skip 'the most memory of a process is not known here', 8 unless -r '/proc/self/status';
	for my $mode ('with a worker', 'without')
	{
		if ($mode eq 'without')
		{
			value('ALTER SYSTEM SET queue.database_workers = 0');
			value('SELECT pg_reload_conf()');
		}
		$node->poll_query_until(
			$db,
			q{SELECT count(*) FROM pg_stat_activity
			WHERE backend_type = 'queue worker'},
			$mode eq 'without' ? 0 : 1) or die;
		my ($kb, $result) = growth($ready);
		is($result, 'mine1 mine2 mine3', "$mode: queue_ready names what one may use");
		cmp_ok($kb, '<', 8 * 1024, "$mode: queue_ready needs no memory for all others");
		($kb, $result) = growth('(SELECT count(*) FROM queue_claim_any(NULL, 300, 60, 1))');
		is($result, 1, "$mode: queue_claim_any finds something");
		($kb, $result) = growth(
			q{(SELECT sum((SELECT count(*) FROM queue_claim_any(NULL, 300, 60, 1 + i * 0)))
			FROM generate_series(1, 5) AS i)});
		cmp_ok($kb, '<', 8 * 1024, "$mode: queue_claim_any needs none either");
		value(q{SELECT count(queue_purge('mine' || i)), count(queue_push('mine' || i, to_jsonb(i)))
			FROM generate_series(1, 3) AS i});
	}
	value('ALTER SYSTEM RESET queue.database_workers');
	value('SELECT pg_reload_conf()');
	$node->poll_query_until(
		$db, q{SELECT state = 'idle' FROM queue_data.queue_workers
		WHERE database = current_database()}) or die;
}

# --- Rows that are read ---

my $session = $node->background_psql($db);
$session->query_safe('SET ROLE app');

# How many rows of the table of queues the second of two calls reads
sub reads_again
{
	my ($call) = @_;
	my ($first, $second, $third) = split /\n/,
	  $session->query_safe(
		"BEGIN; SELECT rows_read(); SELECT $call \\g /dev/null
		SELECT rows_read(); SELECT $call \\g /dev/null
		SELECT rows_read(); COMMIT");
	note "$call: ", $second - $first, ' and ', $third - $second;
	return $third - $second;
}

cmp_ok(reads_again($ready), '<', 20,
	'queue_ready does not read again what one may not use');
cmp_ok(reads_again('count(*) FROM queue_claim_any(NULL, 300, 60, 1)'), '<', 20,
	'nor does queue_claim_any');

# --- And yet none is missed ---

# What the session sees, which passes over the queues of others
sub ready_becomes
{
	my ($sql, $expected, $what) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	value($sql);
	is($session->query_safe("SELECT $ready"), $expected, $what);
	return;
}

value(q{SELECT count(queue_purge('mine' || i)), count(queue_push('mine' || i, to_jsonb(i)))
	FROM generate_series(1, 3) AS i});
my $mine = 'mine1 mine2 mine3';
ready_becomes('SELECT 1', $mine, 'those that one may use');
ready_becomes(q{SELECT queue_grant('s7', 'app', 'claim')}, "$mine s7", 'a grant');
ready_becomes(q{SELECT queue_revoke('s7', 'app', 'claim')}, $mine, 'and its end');
ready_becomes(q{SELECT queue_grant('s8', 'team', 'claim')}, $mine, 'a grant to a role');
ready_becomes('GRANT team TO app', "$mine s8", 'of which one becomes a member');
ready_becomes('REVOKE team FROM app', $mine, 'and is none any more');
ready_becomes(q{SELECT queue_pause('mine1')}, 'mine2 mine3', 'a pause');
ready_becomes(q{SELECT queue_resume('mine1')}, $mine, 'and its end');
ready_becomes(q{SELECT queue_push('new', '1')}, "$mine new", 'a new queue');
ready_becomes(q{BEGIN; SELECT queue_push('late', '1'); SELECT queue_ready(); COMMIT},
	"late $mine new", 'one that was not visible at first');
$session->query_safe(q{SET queue.project = 'p'});
ready_becomes(q{SET queue.project = 'p'; SELECT queue_push('other', '1')},
	'other', 'another project');
$session->query_safe('RESET queue.project');
ready_becomes(q{SELECT queue_drop('late'), queue_drop('new')}, $mine, 'and back');
is($session->query_safe('SET ROLE boss; SELECT count(*) FROM queue_ready()'),
	$strangers + 3, 'another role, which may use all of them');
is($session->query_safe("SET ROLE app; SELECT $ready"), $mine, 'and back');

# A transaction that is rolled back
is($session->query_safe(
		qq{RESET ROLE; BEGIN; SELECT queue_grant('mine1', 'boss', 'claim') \\g /dev/null
		SET ROLE app; SELECT $ready; ROLLBACK; SET ROLE app; SELECT $ready}),
	"mine2 mine3\n$mine", 'a grant to another role that is rolled back');
$session->quit;

# Queues get the maps of those that were passed over.
value(qq{SELECT count(queue_drop('s' || i)) FROM generate_series(1, $strangers - 10) AS i;
	SELECT count(queue_drop('mine' || i)) FROM generate_series(1, 3) AS i});
$session = $node->background_psql($db);
$session->query_safe('SET ROLE app');
my ($missed, $here) = (0, '');
for my $i (1 .. 20)
{
	$here .= ($i == 1 ? '' : ' ') . sprintf 'here%02d', $i;
	value(sprintf q{SELECT queue_push('here%02d', '1')}, $i);
	$missed++ if $session->query_safe("SELECT $ready") ne $here;
}
is($missed, 0, 'queues that get the maps of others are not missed');
cmp_ok(reads_again($ready), '<=', 20, 'and found by these');
$session->quit;

# --- What is due comes first ---

# Due when the server is back are some delayed messages and a claim.  There are many
# queues with messages that are free.
$node->safe_psql($db, q{
	ALTER SYSTEM SET queue.min_claim_ttl = 1;
	ALTER SYSTEM SET queue.min_claim_grace = 0;
	ALTER SYSTEM SET log_min_messages = debug2;
	ALTER SYSTEM SET queue.database_workers = 0});
$node->restart;
my @due = map { "d$_" } 1 .. 10;
value(q{SELECT count(queue_push('o' || i, '1')) FROM generate_series(1, 2000) AS i});
value(q{SELECT queue_push('d10', '1'); SELECT count(*) FROM queue_claim('d10', 4);
	SELECT count(queue_push('d' || i, '1', delay => 4)) FROM generate_series(1, 9) AS i});
sleep 4;
value('ALTER SYSTEM RESET queue.database_workers');
$node->stop('immediate');
my $log_begin = -s $node->logfile;
$node->start;
$node->poll_query_until($db, q{SELECT state = 'idle' AND rounds > 0
	FROM queue_data.queue_workers WHERE database = current_database()})
  or die;
my %name = map { split /\|/ } split /\n/, value('SELECT id, name FROM queue_data.queue');
my @visits = map { $name{$_} }
  slurp_file($node->logfile, $log_begin) =~ /visits queue number (\d+)/g;
cmp_ok(scalar @visits, '>', 2000, 'after a restart each queue is visited');
is(join(' ', sort @visits[ 0 .. $#due ]), join(' ', sort @due),
	'those in which something is due come first');

# --- While all messages are counted ---

# Nothing waits for a process that cannot begin to count, because a table that it
# needs for its start is locked.
value(q{SELECT queue_create('big');
	SELECT count(queue_push_batch('big', array_fill('{"body": "a message of some length"}'::jsonb, '{1000}')))
	FROM generate_series(1, 200)});
my ($one, $owner) = map { $node->background_psql($db) } 1 .. 2;
my $listener = $node->background_psql($db);
$listener->query_safe(q{SELECT format('LISTEN %I', queue_channel('later')) \gexec});

sub returns_soon
{
	my ($session, $sql, $expected, $what) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my $until = time + 180;
	my $got;

	sleep 0.05
	  while ($got = $session->query_safe($sql)) !~ $expected && time < $until;
	like($got, $expected, $what);
	return;
}

# These queues cannot be visited, so that their maps know nothing.
$owner->query_safe(q{BEGIN; SELECT count(queue_purge('o' || i)) FROM generate_series(1, 1000) AS i});
$one->query_safe('DELETE FROM queue_data.message_0 WHERE false');
$one->query_safe(q{SELECT queue_push('later', '1', delay => 1)});
returns_soon($listener, 'SELECT', qr/notification.*"later"/,
	'while messages are counted a delay ends');

# Scans of indexes of messages, and of their tables, by queue_status.
my $scans = q{SELECT sum(pg_stat_get_xact_numscans(i.indexrelid)) AS indexes,
		sum(pg_stat_get_xact_numscans(c.oid)) AS tables
	FROM pg_class AS c JOIN pg_index AS i ON i.indrelid = c.oid
	WHERE relname ~ '^(message|delayed)_\d'};
my $status = "BEGIN; $scans \\gset
	SELECT count(*) FROM queue_data.queue_status \\g /dev/null
	SELECT s.indexes - :indexes || ' ' || s.tables - :tables FROM ($scans) AS s; COMMIT";
returns_soon($one, 'SELECT bool_and(ready IS NOT NULL) FROM queue_data.queue_status',
	qr/^t$/, 'the messages are counted');
my ($n, $tables) = $one->query_safe($status) =~ /^(\d+) (\d+)/;
is($tables, 0, 'queue_status reads no table of messages');
note "queue_status scans indexes $n times";
cmp_ok($n, '<', 10000, 'it does not search for long in queues of which nothing is known');
my $wrong = q{SELECT coalesce(string_agg(s.name, ' '), 'none')
	FROM queue_data.queue_status AS s, queue_stats(s.name) AS t
	WHERE s.project = '' AND ((s.ready, s.claimed, s.delayed) <> (t.free, t.claimed, t.delayed)
		OR (s.oldest_ready_age IS NULL) <> (t.free = 0))};
returns_soon($one, $wrong, qr/^none$/, 'and all numbers are right');
$_->quit foreach $one, $owner, $listener;

# Without room for that process the worker counts.
value('ALTER SYSTEM SET max_worker_processes = 3');
$node->restart;
$one = $node->background_psql($db);
returns_soon($one, $status, qr/ 0$/, 'where there is no room for another process too');
returns_soon($one, $wrong, qr/^none$/, 'the numbers are right');
$one->quit;
unlike(slurp_file($node->logfile, $log_begin), qr/^.*(?:PANIC|TRAP|WARNING|queue.*ERROR):.*$/m,
	'nothing has failed in the background');

$node->stop;
done_testing();
