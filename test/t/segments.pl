# Segments: what was consumed is truncated whatever old snapshots there are;
# what is left in a segment moves on under its id and claim.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../perl";

use PostgreSQL::Test::Utils;
use SegmentTest;
use Test::More;
use Time::HiRes qw(sleep time);

start_server();

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
		q{SELECT claim_release('dies', claim_id, failed => true) FROM queue_claim('dies', 600, 0)}
	);
	value("SELECT queue_push('delayed', '$i', delay => 1)");
	value("SELECT queue_push('returned', '$i')");
	value(
		q{SELECT claim_release('returned', claim_id, 1, failed => true) FROM queue_claim('returned', 600, 0, 1)}
	);
	switch_segment();
	my $size = value($size_query);
	$largest = $size if $size > $largest;
}
cmp_ok($largest, '<', $bound, 'the tables are bounded');
note "largest size: $largest";
cmp_ok(worker('truncated'), '>', 0, 'segments were truncated');
cmp_ok(worker('moved'), '>', 0, 'messages were moved');
becomes_true("SELECT (${\relations_query($_)}) <> '$was_in{$_}'", "one of \"$_\" too")
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
is(value("SELECT claim_release('released', '$claims{released}', failed => true)"),
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
	'an empty segment is truncated in spite of a snapshot');
is($holder->query_safe('SELECT count(*) FROM source'),
	'0', 'the session with the snapshot is not affected');
is($holder->query_safe(q{SELECT claimed FROM queue_stats('renewed')}),
	'1', 'nor are its calls of functions of the extension');
$holder->quit;

# --- a reader with a lock ---

my $reader = $node->background_psql($db);
value(q{SELECT queue_push('unread', '"first"')});
my ($table) = relations_of('unread');
$reader->query_safe("BEGIN; SELECT count(*) FROM queue_data.$table");
value(q{SELECT queue_purge('unread')});
my $truncated = worker('truncated');
switch_segments(2);
becomes_true(
	"SELECT truncated > $truncated FROM queue_data.queue_workers WHERE database = current_database()",
	'other segments are truncated');
cmp_ok(value("SELECT pg_relation_size('queue_data.$table')"),
	'>', 0, 'one that a reader has locked is not');
is($reader->query_safe("SELECT count(*) >= 0 FROM queue_data.$table"),
	't', 'nothing happens to the reader');

# On a busy machine, it may be the active one again before we look at its size.
my $truncation =
  "SELECT truncated_at > '%s' FROM queue_data.segment WHERE 'message_' || segment = '%s'";
my $before = value('SELECT clock_timestamp()');
$reader->query_safe('COMMIT');
becomes_true(sprintf($truncation, $before, $table), 'but when he is done');

# So is one in whose truncation an error has occurred.
value(q{SELECT queue_push('unread', '"first"')});
($table) = relations_of('unread');
switch_segment();
$reader->query_safe('BEGIN; SELECT count(*) FROM (SELECT FROM queue_data.segment FOR UPDATE) AS s');
$before = value('SELECT clock_timestamp()');
value(q{SELECT queue_purge('unread')});
becomes_true(
	q{SELECT count(*) > 0 FROM pg_stat_activity WHERE backend_type = 'queue worker' AND wait_event_type = 'Lock'},
	'the worker waits, not for long');
$reader->query_safe('COMMIT');
becomes_true(sprintf($truncation, $before, $table),
	'nor does an error keep one for ever');

# The next segment that is free is locked, as by ALTER TABLE.
$reader->query_safe('BEGIN');
$reader->query_safe("LOCK TABLE queue_data.message_$_")
  foreach (split ' ', value(q{SELECT string_agg(((active + i) % 16)::text, ' ')
	FROM queue_data.ring, generate_series(1, 3) AS i}));
ok(switch_segment(), 'a locked segment is passed over');
$reader->query_safe('COMMIT');
$reader->quit;

# --- restart, with closed segments in use ---

value(q{SELECT queue_create('load'), queue_purge('load')});
my @kept;
foreach my $i (1 .. 2)
{
	push @kept, value("SELECT queue_push('kept', '$i')");
	switch_segment();
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
switch_segments(1);
value(q{COMMIT PREPARED 'ring'});
is(value(q{SELECT free + claimed FROM queue_stats('kept')}),
	'5', 'restart: what was prepared is not lost');
is(value("SELECT claim_complete('kept', '$kept_claim')"),
	'3', 'restart: the claim is completed as a whole');
my $got = '';

# The worker learns of the end a moment later.
for (my $tries = 1000; $got ne '4 5' && $tries > 0; $tries--)
{
	value(q{SELECT count(*) FROM queue_claim('kept', 600, 0)});
	$got = value(
		q{SELECT string_agg(body::text, ' ' ORDER BY id)
		FROM queue_messages('kept', include_claimed => true) WHERE claim_id IS NOT NULL});
	sleep 0.1;
}
is($got, '4 5', 'restart: and the others are claimed');

# --- autovacuum has little to do ---

value(q{SELECT queue_purge(q.name) FROM queue_list("limit" => 100) AS q});
switch_segments(1);
becomes_true("SELECT ($in_use) = 0", 'no closed segment holds anything');

# --- silence ---

my $rounds = -1;
my $silent = 0;
foreach (1 .. 360)
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
