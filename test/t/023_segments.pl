# The ring of segments: what was consumed is truncated whatever old snapshots
# there are, what is left behind moves on under its id and claim, a dump is
# whole or fails, and what was in the tables before is found.
#
# One mode: the library is preloaded.

use strict;
use warnings;

use File::Path qw(rmtree);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(sleep time);

# A segment is closed when half of this was written to it.  Between two turns
# the test writes one portion, which is about as much again; claims write
# every row once more, into the other half of its page; then come the index
# and the empty tables of large bodies.
my $segment_size = 64 * 1024;
my $segments = 16;
my $bound = $segments * 4 * $segment_size;

my $node = PostgreSQL::Test::Cluster->new('main');
$node->init;
$node->append_conf(
	'postgresql.conf', qq{
shared_preload_libraries = 'queue'
autovacuum = off
max_prepared_transactions = 5
queue.segment_size = '@{[ $segment_size / 1024 ]}kB'
queue.min_claim_ttl = 1
queue.min_claim_grace = 0
queue.min_message_ttl = 1
});
$node->start;
my $db = 'postgres';
my $dir = PostgreSQL::Test::Utils::tempdir();
$node->safe_psql($db, 'CREATE EXTENSION queue');
$node->safe_psql($db,
	'CREATE TABLE effect (n int PRIMARY KEY); CREATE TABLE source (n int PRIMARY KEY)'
);

my $one = $node->background_psql($db);

sub value
{
	my ($sql) = @_;
	return $one->query_safe($sql);
}

# A column of the worker's counters
sub worker
{
	my ($what) = @_;
	return value(
		"SELECT $what FROM queue_data.queue_workers WHERE database = current_database()"
	);
}

# Wait until a query of another session gives true.
sub becomes_true
{
	my ($sql, $what) = @_;
	my $got = $node->poll_query_until($db, $sql);
	ok($got, $what) if defined $what;
	return $got;
}

sub counter_passes
{
	my ($counter, $n, $what) = @_;
	return becomes_true(
		"SELECT $counter > $n FROM queue_data.queue_workers WHERE database = current_database()",
		$what);
}

# Where the messages of a queue are
sub relations_of
{
	my ($q) = @_;
	return value(
		"SELECT coalesce(string_agg(DISTINCT relation, ' '), '') FROM queue_data.message WHERE queue = '$q'"
	);
}

my $size_query = q{
	SELECT sum(pg_total_relation_size(c.oid)) FROM pg_class c
	WHERE c.relnamespace = 'queue_data'::regnamespace AND c.relkind = 'r'
	AND c.relname LIKE 'message%'};

# Segments with pages, but for the active one
my $in_use = q{
	SELECT count(*) FROM generate_series(0, 15) AS s, queue_data.ring
	WHERE s <> active AND pg_relation_size(('queue_data.message_' || s)::regclass) > 0};

# Push, claim and complete a portion: enough for a turn, and wait for it.
sub turn_once
{
	my $turns = worker('switches');
	foreach (1 .. 2)
	{
		value(
			q{SELECT count(queue_push_batch('work', (SELECT array_agg(to_jsonb(repeat('x', 250))) FROM generate_series(1, 75))))}
		);
		value(
			q{SELECT sum(n) FROM (SELECT claim_complete('work', claim_id) AS n FROM
			(SELECT DISTINCT claim_id FROM queue_claim('work', 600, 0, 100)) AS c) AS s}
		);
	}
	return counter_passes('switches', $turns);
}

sub turn
{
	my ($times) = @_;
	turn_once() foreach (1 .. $times);
	return;
}

# Begin a transaction with a snapshot; returns the session.
sub hold_snapshot
{
	my $session = $node->background_psql($db);
	$session->query_safe(
		'BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM source');
	return $session;
}

# --- stragglers of all kinds, with a snapshot held ---

my $holder = hold_snapshot();

value(q{SELECT queue_create('dies', '{"_max_claim_count": 1}')});

# One of these goes into each segment.
my %claims;
my %ids;
my %was_in;
my $large = value(
	q{SELECT string_agg(md5(i::text), '') FROM generate_series(1, 3000) AS i});
my @special = (
	sub {
		# a claim of an hour over two messages
		value(q{SELECT queue_push('long', '"a"'), queue_push('long', '"b"')});
		$claims{long} =
		  value(q{SELECT DISTINCT claim_id FROM queue_claim('long', 3600, 0)});
	},
	sub {
		$ids{large} = value("SELECT queue_push('large', to_jsonb('$large'::text))");
	},
	sub { value(q{SELECT queue_push('keyed', '1', dedup_key => 'k')}); });
foreach my $what (qw(renewed deleted released))
{
	push @special, sub {
		$ids{$what} = value("SELECT queue_push('$what', '\"$what\"')");
		$claims{$what} =
		  value("SELECT claim_id FROM queue_claim('$what', 3600, 0, 1)");
	};
}
my @special_queues = qw(long large keyed renewed deleted released);

my $times = 12;
my $largest = 0;

# and in each segment an unread one, a dead letter, one that was delayed and
# one that was released with a delay
foreach my $i (1 .. $times)
{
	if ($i <= @special)
	{
		my $q = $special_queues[ $i - 1 ];

		$special[ $i - 1 ]->();
		$was_in{$q} = relations_of($q);
	}
	value("SELECT queue_push('unread', '$i', priority => $i % 3)");
	value("SELECT queue_push('dies', '$i')");
	value(
		q{SELECT claim_release('dies', claim_id) FROM queue_claim('dies', 600, 0)}
	);
	value("SELECT queue_push('delayed', '$i', delay => 1)");
	value("SELECT queue_push('returned', '$i')");
	value(
		q{SELECT claim_release('returned', claim_id, 1) FROM queue_claim('returned', 600, 0, 1)}
	);
	turn_once();
	my $size = value($size_query);
	$largest = $size if $size > $largest;
}
cmp_ok($largest, '<', $bound, 'the tables are bounded');
note "largest size: $largest";
cmp_ok(worker('truncated'), '>', 0, 'segments were truncated');
cmp_ok(worker('moved'), '>', 0, 'messages were moved');
isnt(relations_of($_), $was_in{$_}, "one of \"$_\" too")
  foreach (@special_queues[ 0 .. 3 ]);
becomes_true("SELECT ($in_use) <= 10", 'some segments stay, with stragglers');

is(value(qq{SELECT message_count FROM claim_get('long', '$claims{long}')}),
	'2', 'moved: the claim is known');
is(value(qq{SELECT string_agg(body::text, ' ' ORDER BY id) FROM claim_messages('long', '$claims{long}')}),
	'"a" "b"', 'moved: its messages are listed');
is(value(qq{SELECT claim_complete('long', '$claims{long}')}),
	'2', 'moved: it is completed');
foreach my $what (qw(renewed deleted released))
{
	is(value("SELECT body FROM message_get('$what', $ids{$what})"),
		"\"$what\"", "moved: $what: it has its id");
}
is( value(
		"SELECT claim_renew('renewed', '$claims{renewed}', 3600) > now() + interval '59 min'"
	),
	't',
	'moved: a claim is renewed');
is(value("SELECT message_delete('deleted', $ids{deleted}, '$claims{deleted}')"),
	't', 'moved: a message is deleted under its claim');
is(value("SELECT claim_release('released', '$claims{released}')"),
	'1', 'moved: a claim is released');
is(value(q{SELECT id FROM queue_claim('released', 600, 0)}),
	$ids{released}, 'moved: and its message is claimed again');
is(value("SELECT body = to_jsonb('$large'::text) FROM message_get('large', $ids{large})"),
	't', 'moved: a large body is whole');
is(value(q{SELECT queue_push('keyed', '2', dedup_key => 'k') IS NULL}),
	't', 'moved: a message has its key');
is( value(
		q{SELECT string_agg(body::text, ' ' ORDER BY id) FROM queue_messages('unread', "limit" => 100) }
	),
	join(' ', 1 .. $times),
	'moved: unread ones are listed in their order');
is(value(q{SELECT free FROM queue_stats('unread')}),
	$times, 'moved: and counted');
is(value(q{SELECT count(DISTINCT body) FROM queue_dead_letters('dies.dead', 100)}),
	$times, 'moved: dead letters are there');
foreach my $q (qw(delayed returned))
{
	becomes_true("SELECT free = $times FROM queue_stats('$q')",
		"all of \"$q\" have come");
	my $n = value("SELECT count(DISTINCT body) FROM queue_claim('$q', 600, 0, 100)");
	is($n, $times, "and are claimed, each once");
}
is( value(
		q{SELECT count(*) FROM (SELECT id FROM queue_data.message GROUP BY id HAVING count(*) > 1) AS twice}
	),
	'0',
	'no message is there twice');

# --- an idle ring ---

value(
	q{SELECT queue_purge(q.name) FROM queue_list("limit" => 100) AS q WHERE name <> 'renewed'}
);
becomes_true("SELECT ($in_use) <= 2",
	'what holds nothing is truncated, whatever snapshot is held');
is($holder->query_safe('SELECT count(*) FROM source'),
	'0', 'the holder of the snapshot goes on');
is($holder->query_safe(q{SELECT claimed FROM queue_stats('renewed')}),
	'1', 'also with our functions, which read what is there');
$holder->quit;

# --- a reader with a lock ---

my $reader = $node->background_psql($db);
value(q{SELECT queue_push('unread', '"first"')});
my ($table) = relations_of('unread');
$reader->query_safe("BEGIN; SELECT count(*) FROM queue_data.$table");
value(q{SELECT queue_purge('unread')});
my $truncated = worker('truncated');
turn(2);
cmp_ok(worker("truncated - $truncated"), '>=', 1, 'other segments are truncated');
cmp_ok(value("SELECT pg_relation_size('queue_data.$table')"),
	'>', 0, 'one that a reader has locked is not');
is($reader->query_safe("SELECT count(*) >= 0 FROM queue_data.$table"),
	't', 'nothing happens to the reader');
$reader->query_safe('COMMIT');
becomes_true(
	"SELECT pg_relation_size('queue_data.$table') = 0",
	'but when he is done');
$reader->quit;

# --- pg_dump under load ---

# Each message is in "source" when pushed, in "effect" when completed, in the
# same transaction: a dump of one moment has each in exactly one of two
# places.
my $producer = q{
	\set n random(1, 1000000000)
	BEGIN;
	INSERT INTO source VALUES (:n) ON CONFLICT DO NOTHING RETURNING n AS pushed \gset
	SELECT queue_push('load', to_jsonb(:n));
	COMMIT;
	BEGIN;
	WITH c AS (SELECT claim_id, body FROM queue_claim('load', 600, 0, 1)),
	d AS (SELECT claim_complete('load', claim_id) FROM c)
	INSERT INTO effect SELECT body::int FROM c, d;
	COMMIT;
};
append_to_file("$dir/load.sql", $producer);

sub begin_load
{
	my @run = (
		'pgbench', '-n', '-c', '2', '-T', '120', '-f', "$dir/load.sql",
		$node->connstr($db));
	my ($in, $out, $err) = ('', '', '');
	return IPC::Run::start(\@run, '<', \$in, '>', \$out, '2>', \$err);
}

sub end_load
{
	my ($load) = @_;
	$load->kill_kill;
	becomes_true(
		q{SELECT count(*) = 0 FROM pg_stat_activity WHERE application_name = 'pgbench'}
	);
	return;
}

my $whole = q{
	SELECT count(*) FILTER (WHERE (m.n IS NULL) = (e.n IS NULL)), count(*) > 0
	FROM source AS s LEFT JOIN effect AS e USING (n)
	LEFT JOIN (SELECT body::int AS n FROM queue_data.message WHERE queue = 'load') AS m USING (n)};

sub check_dump
{
	my ($what, $how, @restore) = @_;
	$node->safe_psql($db, "CREATE DATABASE restored");
	$node->command_ok([ @restore, '-d', $node->connstr('restored') , $how ],
		"$what: it is restored");
	is($node->safe_psql('restored', $whole),
		'0|t', "$what: each message is there, or its effect is");
	$node->safe_psql($db, 'DROP DATABASE restored WITH (FORCE)');
	return;
}

# A dump that connects while a truncation is being committed fails, and is to
# be run again.
sub run_dump
{
	my ($what, @options) = @_;
	my $stderr;

	foreach (1 .. 5)
	{
		rmtree("$dir/load.d");
		my $ok =
		  IPC::Run::run([ 'pg_dump', @options, $node->connstr($db) ],
			'>', \my $stdout, '2>', \$stderr);
		return pass("$what under load") if $ok;
		last unless $stderr =~ /was emptied since the snapshot was taken/;
		note 'once more';
	}
	fail("$what under load");
	diag $stderr;
	return;
}

my $load = begin_load();
counter_passes('switches', worker('switches'), 'the ring turns under load');

# A session of that name, as pg_dump's, keeps all as it is
my $named = $node->background_psql($db);
$named->query_safe(q{SET application_name = 'pg_dump'});
counter_passes('switches', worker('switches'), 'the ring turns on');
my $allowed = worker('truncated');
counter_passes('switches', worker('switches'));
is(worker('truncated'), $allowed,
	'but nothing is truncated while a pg_dump is connected');
$named->quit;
counter_passes('truncated', $allowed, 'and again after that');

run_dump('pg_dump', '-Fc', '-f', "$dir/load.dump");
run_dump('pg_dump with jobs', '-Fd', '-j2', '-f', "$dir/load.d");
check_dump('pg_dump', "$dir/load.dump", 'pg_restore', '--exit-on-error');
check_dump('pg_dump with jobs', "$dir/load.d", 'pg_restore',
	'--exit-on-error', '-j2');

# one with an older snapshot
my $exporter = $node->background_psql($db);
my $snapshot = $exporter->query_safe(
	'BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT pg_export_snapshot()');
$snapshot =~ s/\s//g;
counter_passes('truncated', worker('truncated'),
	'truncated since the snapshot');
{
	local $ENV{PGAPPNAME} = 'other';
	foreach my $how ([], [ '--inserts' ])
	{
		my ($stdout, $stderr);
		my $ok = IPC::Run::run(
			[
				'pg_dump', "--snapshot=$snapshot", @$how, '-f', "$dir/old.sql",
				$node->connstr($db)
			],
			'>', \$stdout, '2>', \$stderr);
		ok(!$ok, "a dump with an older snapshot fails (@$how)");
		like($stderr, qr/was emptied since the snapshot was taken/, 'says why');
		like($stderr, qr/HINT: .*Run the dump again/, 'and what to do');
	}
}
my ($ret, $stdout, $stderr) = $node->psql(
	$db,
	"BEGIN ISOLATION LEVEL REPEATABLE READ; SET TRANSACTION SNAPSHOT '$snapshot';
	SELECT queue_data.segment_is_whole(s) FROM generate_series(0, 15) AS s",
	extra_params => [ '-v', 'VERBOSITY=verbose' ]);
like($stderr, qr/ERROR:  55000/, 'with its own code');
$exporter->quit;
end_load($load);

# The filter of the dump is evaluated though a table has no row.
like(
	value(
		q{EXPLAIN (ANALYZE, COSTS off, TIMING off, SUMMARY off) SELECT * FROM queue_data.message_15 WHERE queue_data.segment_is_whole(15)}
	),
	qr/One-Time Filter/,
	'the filter is evaluated once');

# --- restart, with closed segments in use ---

value(q{SELECT queue_purge('load')});
my @kept;
foreach my $i (1 .. 2)
{
	push @kept, value("SELECT queue_push('kept', '$i')");
	turn_once();
}
push @kept, value("SELECT queue_push('kept', '$_')") foreach (3, 4);
my $spread = relations_of('kept');
cmp_ok(scalar(split ' ', $spread), '>=', 3, "in several segments: $spread");
my $kept_claim =
  value(q{SELECT DISTINCT claim_id FROM queue_claim('kept', 3600, 0, 3)});

# a message whose transaction is prepared
value(
	q{BEGIN; SELECT queue_push('kept', '5'); PREPARE TRANSACTION 'ring'});
$one->quit;
$node->stop('immediate');
$node->start;
$one = $node->background_psql($db);

is(value("SELECT string_agg(body::text, ' ' ORDER BY id) FROM messages_get('kept', ARRAY[@{[ join ',', @kept ]}])"),
	'1 2 3 4', 'restart: all are found by id');
is(value("SELECT message_count FROM claim_get('kept', '$kept_claim')"),
	'3', 'restart: so is the claim');
turn(1);
value(q{COMMIT PREPARED 'ring'});
is(value(q{SELECT free + claimed FROM queue_stats('kept')}),
	'5', 'restart: what was prepared is not lost');
is(value("SELECT claim_complete('kept', '$kept_claim')"),
	'3', 'restart: the claim is completed as a whole');
my $got = '';
becomes_true(q{SELECT free = 2 FROM queue_stats('kept')});
$got = value(
	q{SELECT string_agg(body::text, ' ' ORDER BY id) FROM queue_claim('kept', 600, 0)}
);
is($got, '4 5', 'restart: and the others are claimed');

# --- restore into a database with a worker ---

$node->safe_psql($db, 'CREATE DATABASE source');
$node->safe_psql('source', 'CREATE EXTENSION queue');
$node->safe_psql('source',
	q{SELECT queue_push_batch('q', array_agg(to_jsonb(i))) FROM generate_series(1, 20) AS i}
);
my $claim = $node->safe_psql('source',
	q{SELECT DISTINCT claim_id FROM queue_claim('q', 3600, 0, 5)});
my $id = $node->safe_psql('source',
	q{SELECT max(id) FROM queue_messages('q', "limit" => 100)});
my $to = q{
	INSERT INTO queue_data.message_7 SELECT * FROM queue_data.message_0 WHERE (id >> 9) % 2 = 0;
	DELETE FROM queue_data.message_0 WHERE (id >> 9) % 2 = 0};
$node->safe_psql('source', $to);
foreach my $how ('COPY', 'INSERT')
{
	$node->safe_psql($db, 'CREATE DATABASE target');
	$node->safe_psql('target',
		q{CREATE EXTENSION queue; SELECT queue_pop('q', 1) FROM queue_push('q', '0')});
	ok( $node->poll_query_until(
			'target',
			q{SELECT state = 'idle' FROM queue_data.queue_workers WHERE database = 'target'}
		),
		"$how: there is a worker");
	my $session = $node->background_psql('target');
	$session->query_safe(q{SELECT queue_drop('q')});
	$node->command_ok(
		[
			'pg_dump', '--data-only',
			($how eq 'INSERT' ? '--inserts' : ()),
			'-f', "$dir/$how.sql", $node->connstr('source')
		],
		"$how: dumped");
	$node->command_ok(
		[
			'psql', '-X', '-q', '-v', 'ON_ERROR_STOP=1', '-o', "$dir/psql.out",
			'-d', $node->connstr('target'), '-f', "$dir/$how.sql"
		],
		"$how: restored into a database with a worker");
	is($session->query_safe(q{SELECT free, claimed FROM queue_stats('q')}),
		'15|5', "$how: counted");
	is($session->query_safe("SELECT body FROM message_get('q', $id)"),
		'20', "$how: got");
	is($session->query_safe("SELECT message_delete('q', $id)"),
		't', "$how: deleted");
	is($session->query_safe("SELECT message_count FROM claim_get('q', '$claim')"),
		'5', "$how: the claim is known");
	is($session->query_safe("SELECT claim_complete('q', '$claim')"),
		'5', "$how: the claim is completed as a whole");
	is( $session->query_safe(
			q{SELECT string_agg(body::text, ' ' ORDER BY id) FROM queue_claim('q', 600, 0, 100)}
		),
		join(' ', 6 .. 19),
		"$how: the others are claimed at once");
	$session->quit;
	$node->safe_psql($db, 'DROP DATABASE target WITH (FORCE)');
}

# --- autovacuum has little to do ---

value(q{SELECT queue_purge(q.name) FROM queue_list("limit" => 100) AS q});
turn(1);
becomes_true("SELECT ($in_use) = 0", 'no closed segment holds anything');
# --- silence ---

my $rounds = -1;
my $silent = 0;
foreach (1 .. 60)
{
	my $now = worker('rounds');
	$silent = $now == $rounds ? $silent + 1 : 0;
	last if $silent == 4;
	$rounds = $now;
	sleep 0.5;
}
is($silent, 4, 'an idle ring costs nothing');

is(worker('last_error'), '', 'no error');
my $log = slurp_file($node->logfile);
unlike($log, qr/(?:PANIC|TRAP):/, 'nothing broke');

$one->quit;
$node->stop;
done_testing();
