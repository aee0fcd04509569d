# The history: its tables are truncated by age whatever old snapshots there are,
# what is to live longer is kept, a row costs little, and sessions that wait for a
# message are woken when it is finished.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../perl";

use IPC::Run ();
use ClusterTest;
use PostgreSQL::Test::Utils;
use QueueTest;
use Test::More;
use Time::HiRes qw(sleep time);

my $waiting = 500;

start_server(
	qq{
autovacuum = off
max_connections = @{[ $waiting + 50 ]}
max_prepared_transactions = 5
queue.min_claim_ttl = 1
queue.min_claim_grace = 0
queue.max_claim_limit = 10000
});
my $one = $node->background_psql($db);

sub in_one { return $one->query_safe($_[0]) }

# Of all tables of the history
sub history
{
	my ($expression) = @_;
	return value(
		qq{SELECT $expression FROM pg_class AS c
			LEFT JOIN pg_stat_all_tables AS s ON s.relid = c.oid
			WHERE c.relnamespace = 'queue_data'::regnamespace AND c.relkind = 'r'
			AND c.relname ~ '^finished_[0-9]+\$'});
}
my $size = 'sum(pg_table_size(c.oid))::bigint';
my $rows = join ' + ', map { "(SELECT count(*) FROM queue_data.finished_$_)" } 0 .. 17;

# Push and complete n messages.
sub finish_messages
{
	my ($q, $n) = @_;
	in_one(qq{SELECT queue_push_batch('$q', ARRAY(SELECT to_jsonb(i)
		FROM generate_series(1, $n) AS i)) IS NOT NULL});
	in_one(qq{SELECT claim_complete('$q', claim_id) FROM (SELECT DISTINCT claim_id
		FROM queue_claim('$q', 600, 0, $n)) AS c});
	return;
}

# --- WAL ---

value(q{SELECT queue_create('kept', '{"_keep_finished": 3600}'), queue_create('plain')});
my %wal;
foreach my $round (1 .. 3)
{
	foreach my $q (qw(kept plain))
	{
		in_one(qq{SELECT queue_push_batch('$q', ARRAY(SELECT to_jsonb(i)
			FROM generate_series(1, 1000) AS i)) IS NOT NULL});
		my $claim = in_one(qq{SELECT DISTINCT claim_id FROM queue_claim('$q', 600, 0, 1000)});
		my $start = value('SELECT pg_current_wal_insert_lsn()');
		in_one(qq{SELECT claim_complete('$q', '$claim')});
		my $wal = value("SELECT pg_current_wal_insert_lsn() - '$start'");
		$wal{$q} = $wal if !$wal{$q} || $wal < $wal{$q};
	}
}
my $bytes = ($wal{kept} - $wal{plain}) / 1000;
note "WAL of a row: $bytes bytes";
cmp_ok($bytes, '<=', 250, 'a row without body takes at most 250 bytes of WAL');
cmp_ok($bytes, '>', 0, 'and is written');

# --- The ring, while an old snapshot is held ---

is(value(q{SELECT queue_update('kept', '{"_keep_finished": null}') IS NOT NULL}), 't', 'no queue has a history');
finish_messages('kept', 10);
value(q{SELECT queue_create('short', '{"_keep_finished": 2}')});
my $holder = $node->background_psql($db);
$holder->query_safe('BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM queue_data.queue');

my $largest = 0;
my $finished = 0;
my $until = time + 12;
while (time < $until)
{
	finish_messages('short', 200);
	$finished += 200;
	my $now = history($size);
	$largest = $now if $now > $largest;
	sleep 0.1;
}
note "$finished messages, at most $largest bytes";
cmp_ok(value("SELECT count(*) FROM queue_finished('short', NULL, 10000)
		WHERE finished_at < clock_timestamp() - interval '3 s'"),
	'==', 0, 'what is too old is not shown');
cmp_ok(value("SELECT $rows"), '<', $finished, 'and is removed');
# On a busy machine two seconds may pass before it is looked at, but not each time.
my $left = 0;
for (my $tries = 0; $left == 0 && $tries < 20; $tries++)
{
	finish_messages('short', 10);
	$left = in_one("SELECT $rows");
}
cmp_ok($left, '>', 0, 'what is not stays');
is(history('sum(n_tup_upd + n_tup_del + n_dead_tup)'), '0', 'nothing is updated or deleted, and no row is dead');
becomes("SELECT $rows", '0', 'when it is idle, all rows are removed after their time');
is(history('sum(pg_relation_size(c.oid))'), '0', 'and all tables are empty');
my $log = slurp_file($node->logfile);
unlike($log, qr/ERROR|WARNING/, 'without an error');

# --- What lives longer, in another queue, does not hold what does not ---

value(q{SELECT queue_create('long', '{"_keep_finished": 31536000, "_keep_body": true}')});
in_one(q{SELECT count(queue_push('long', to_jsonb((SELECT string_agg(md5(i::text || n), '')
	FROM generate_series(1, 1000) AS i)))) FROM generate_series(1, 300) AS n});
in_one(q{SELECT count(*) FROM queue_pop('long', 150)});
finish_messages('short', 1000);
in_one(q{SELECT count(*) FROM queue_pop('long', 150)});
my $long = q{SELECT md5(string_agg(f::text, ' ')) FROM queue_finished('long', NULL, 1000) AS f};
my $before = value($long);
becomes("SELECT $rows", '300', 'what is kept for 2 s goes beside what is kept for a year');
is(value($long), $before, 'which stays');

# A queue that asks for less time than before, in tables that it had for more
value(q{SELECT queue_create('changed', '{"_keep_finished": 7200}')});
finish_messages('changed', 10);
value(q{SELECT queue_update('changed', '{"_keep_finished": 3600}') IS NOT NULL});
finish_messages('short', 10);
becomes("SELECT $rows", '310', 'rows that it still asks for stay');
is(value(q{SELECT count(*) FROM queue_finished('changed')}), '10', 'and are shown');
value(q{SELECT queue_update('changed', '{"_keep_finished": 1}') IS NOT NULL});
finish_messages('short', 10);
becomes("SELECT $rows", '300', 'the others go');

# --- A dump ---

my $dump = $node->background_psql($db);
$dump->query_safe(q{SET application_name = 'pg_dump'});
finish_messages('short', 10);
sleep 5;
my $kept = value("SELECT $rows");
cmp_ok($kept, '>=', 310, 'nothing is truncated while pg_dump is connected');
$dump->quit;
$node->safe_psql($db, 'CREATE DATABASE restored');
my $file = PostgreSQL::Test::Utils::tempdir() . '/dump.sql';
delete local $ENV{PGAPPNAME};
$node->command_ok([ 'pg_dump', '-f', $file, '-d', $node->connstr($db) ], 'pg_dump');
$node->command_ok([ 'psql', '-Xq', '-v', 'ON_ERROR_STOP=1', '-f', $file, '-d', $node->connstr('restored') ], 'restore');
is(value($long, 'restored'), $before, 'a restored database has the history');
$holder->quit;

# --- Waiting ---

value(q{SELECT queue_create('q', '{"_keep_finished": 3600}')});
my $waiters = q{FROM pg_stat_activity WHERE query LIKE 'CALL queue_await%' AND state = 'active'
	AND wait_event_type = 'Extension'};

# Starts a session that waits for this message.
sub begin_await
{
	my ($q, $id, $timeout) = @_;
	my %job = (in => "CALL queue_await('$q', $id, $timeout);\n;\n", out => '', err => '');
	$job{run} = IPC::Run::start([ 'psql', '-XAtq', '-d', $node->connstr($db) ],
		'<', \$job{in}, '>', \$job{out}, '2>', \$job{err}, IPC::Run::timeout(1800));
	$job{run}->pump while length $job{in};
	return \%job;
}

sub still_waits
{
	my ($await, $what) = @_;

	sleep 0.3;
	$await->{run}->pump_nb if $await->{run}->pumpable;
	return is($await->{out} . $await->{err}, '', $what);
}

sub awaited
{
	my ($job) = @_;
	eval { $job->{run}->finish; 1 } or diag "psql: $@";
	chomp($job->{out}, $job->{err});
	return $job->{out} . $job->{err};
}

my $id = value(q{SELECT queue_push('q', '1')});
my $other = value(q{SELECT queue_push('q', '2')});
my $job = begin_await('q', $id, 600000);
becomes_true("SELECT count(*) = 1 $waiters", 'a session waits');
is(value("SELECT count(backend_xid) || ' ' || count(backend_xmin) $waiters"), '0 0',
	'without a snapshot or a transaction id');
is(value("SELECT count(*) FROM pg_locks WHERE pid IN (SELECT pid $waiters) AND locktype <> 'virtualxid'"),
	'0', 'and without a lock');
value("BEGIN; SELECT message_delete('q', $id); ROLLBACK");
value("SELECT message_delete('q', $other)");
still_waits($job, 'neither a rollback nor another message wakes it');
value("SELECT message_complete('q', $id, claim_id, '{\"done\": true}') FROM queue_claim('q')");
is(awaited($job), '{"error": null, "result": {"done": true}, "outcome": "completed"}', 'its own does');

# A session that nothing wakes looks after five seconds.  One that is woken is back
# before that, but on a busy machine not each time.
my $took;
foreach (1 .. 20)
{
	$id = value(q{SELECT queue_push('q', '1')});
	my $start = time;
	$job = begin_await('q', $id, 600000);
	becomes_true("SELECT count(*) = 1 $waiters", 'a session waits');
	value("SELECT message_delete('q', $id)");
	awaited($job);
	$took = time - $start;
	last if $took < 5;
}
cmp_ok($took, '<', 5, 'at once');

$id = value(q{SELECT queue_push('q', '1')});
$job = begin_await('q', $id, 600000);
becomes_true("SELECT count(*) = 1 $waiters", 'a session waits');
value("SELECT pg_cancel_backend(pid) $waiters");
like(awaited($job), qr/canceling statement/, 'it can be canceled');
$job = begin_await('q', $id, 600000);
becomes_true("SELECT count(*) = 1 $waiters", 'a session waits');
value("SELECT pg_terminate_backend(pid) $waiters");
like(awaited($job), qr/terminating connection/, 'and terminated');
is(awaited(begin_await('q', $id, 300)), '', 'the time passes');
$job = begin_await('q', $id, 600000);
becomes_true("SELECT count(*) = 1 $waiters", 'a session waits');
value("BEGIN; SELECT message_delete('q', $id); PREPARE TRANSACTION 'p'");
still_waits($job, 'PREPARE does not wake it');
value("COMMIT PREPARED 'p'");
like(awaited($job), qr/deleted/, 'COMMIT PREPARED is noticed');
$id = value(q{SELECT queue_push('q', '1')});
$job = begin_await('q', $id, 600000);
becomes_true("SELECT count(*) = 1 $waiters", 'a session waits');
value(q{SELECT queue_purge('q')});
is(awaited($job), '{"outcome": "unknown"}', 'a purge leaves nothing');

# In a queue without a history
$id = value(q{SELECT queue_push('plain', '1')});
$job = begin_await('plain', $id, 600000);
becomes_true("SELECT count(*) = 1 $waiters", 'a session waits');
value("SELECT message_delete('plain', $id)");
like(awaited($job), qr/^\{"outcome": "unknown"\}.*queue "plain" keeps no history/s,
	'without a history, it is only known that the message is gone');

# --- Many at once ---

value(qq{CREATE TABLE woken (id bigint, at timestamptz);
	CREATE TABLE numbered AS SELECT n, (ids)[n] AS id FROM generate_series(1, $waiting) AS n,
		(SELECT queue_push_batch('q', ARRAY(SELECT to_jsonb(i) FROM generate_series(1, $waiting) AS i)) AS ids) AS p;
	CREATE SEQUENCE next});
my $dir = PostgreSQL::Test::Utils::tempdir();
append_to_file("$dir/wait.sql", q{
SELECT id FROM numbered WHERE n = :client_id + 1 \gset
CALL queue_await('q', :id);
INSERT INTO woken VALUES (:id, clock_timestamp());
});
append_to_file("$dir/finish.sql", q{
SELECT nextval('next') AS k \gset
SELECT id FROM numbered WHERE n = :k \gset
SELECT message_delete('q', :id);
\sleep 4 ms
});
my ($out, $err) = ('', '');
my $run = IPC::Run::start(
	[ 'pgbench', '-n', '-c', $waiting, '-j', '2', '-t', '1', '-f', "$dir/wait.sql", $node->connstr($db) ],
	'>', \$out, '2>', \$err, IPC::Run::timeout(1800));
becomes_true("SELECT count(*) = $waiting $waiters", "$waiting sessions wait");
$node->command_ok([ 'pgbench', '-n', '-c', '1', '-t', $waiting, '-f', "$dir/finish.sql", $node->connstr($db) ],
	'their messages are finished one after the other');
$run->finish;
is(value('SELECT count(DISTINCT id) FROM woken'), $waiting, 'all are woken');
my ($p50, $p99) = split /\|/, value(q{
	SELECT round((1000 * percentile_cont(0.5) WITHIN GROUP (ORDER BY ms))::numeric, 2),
		round((1000 * percentile_cont(0.99) WITHIN GROUP (ORDER BY ms))::numeric, 2)
	FROM (SELECT extract(epoch FROM w.at - f.finished_at) AS ms FROM woken AS w
		JOIN queue_finished('q', NULL, 10000) AS f USING (id)) AS l});
note "from the end of a message to the next statement of the session: p50 $p50 ms, p99 $p99 ms";
cmp_ok($p50, '<', 5000 / 4, 'they are woken: half of them would take 2.5 seconds to look by themselves');

$one->quit;
$node->stop;
done_testing();
