# What rows cost: claims are HOT updates, at every size of body; a claim does
# not write a large body again; a new message takes little room.  Rows of full
# width, as VACUUM FULL and a restore write them, work like short ones.
#
# Each database has only the table of one segment in use.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../perl";

use PostgreSQL::Test::Utils;
use QueueTest;
use Test::More;
use Time::HiRes qw(sleep);

start_server(
	q{
	autovacuum = off
	queue.segment_size = 0
	queue.min_claim_ttl = 1
	queue.min_message_ttl = 1
	queue.min_claim_grace = 0
	queue.max_message_size = '1MB'
});

# A counter of the segment, or of its TOAST table, as soon as it is reported
sub counter
{
	my ($column, $toast) = @_;
	my $relid = "'queue_data.message_0'::regclass";
	$relid = "(SELECT reltoastrelid FROM pg_class WHERE oid = $relid)" if $toast;
	return value("SELECT $column FROM pg_stat_all_tables WHERE relid = $relid");
}

# Wait for what has been reported of the segment.
sub statistics_become
{
	my ($condition, $name) = @_;
	ok( $node->poll_query_until(
			'postgres',
			"$condition FROM pg_stat_all_tables WHERE relid = 'queue_data.message_0'::regclass"),
		$name);
	return;
}

# A body of so many bytes as jsonb, and not to be compressed
sub body
{
	my ($size) = @_;
	return qq{(SELECT to_jsonb(left(string_agg(encode(sha256(i::text::bytea), 'base64'), ''), $size - 12))
		FROM generate_series(1, $size / 44 + 1) AS i)};
}

# --- HOT updates ---

# A transaction that holds xmin keeps old versions from being pruned, so all
# have to have room beside the new ones.
my $inserted = 0;
my $holder = $node->background_psql('postgres');
$holder->query_safe('BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1');

foreach my $size (20, 100, 165, 175, 218, 300, 700, 1300, 1900, 2100, 4000, 65000)
{
	my $n = $size > 10000 ? 100 : 1000;
	my $updated = counter('n_tup_upd');
	my $hot = counter('n_tup_hot_upd');
	my $pages = value(q{SELECT pg_relation_size('queue_data.message_0')});
	my $pieces;

	value(qq{SELECT count(queue_push_batch('size$size', array_fill(${\ body($size)}, '{100}')))
		FROM generate_series(1, $n / 100)});
	$pages = value(q{SELECT pg_relation_size('queue_data.message_0')}) - $pages;
	$inserted += $n;
	statistics_become("SELECT n_tup_ins >= $inserted", "pushes of $size bytes are counted");
	$pieces = counter('n_tup_ins', 1);
	is( value(qq{SELECT count(*) FROM generate_series(1, $n / 100) AS i,
			queue_claim('size$size', 600 + i, 60, 100)}),
		$n,
		"$size bytes: all are claimed");
	statistics_become("SELECT n_tup_upd >= $updated + $n", "claims of $size bytes are counted");
	is(counter('n_tup_upd') - $updated, $n, "$size bytes: with one update each");
	cmp_ok(counter('n_tup_hot_upd') - $hot,
		'>=', 0.9 * $n, "$size bytes: 90 % are HOT");
	is(counter('n_tup_ins', 1), $pieces, "$size bytes: no body is stored again");

	# 13 on a page, with room for their new versions
	cmp_ok($pages / $n, '<=', 640, 'a message of 218 bytes takes 640') if $size == 218;
}

# Nor headers that together with the body nearly fill a row.
value(qq{SELECT count(queue_push('headers', ${\ body(300)}, headers => ${\ body(1640)}))
	FROM generate_series(1, 100)});
$inserted += 100;
statistics_become("SELECT n_tup_ins >= $inserted", 'pushes with headers are counted');
my $before = counter('n_tup_ins', 1);
my $updated = counter('n_tup_upd');
is(value(q{SELECT count(*) FROM queue_claim('headers', 600, 60, 100)}), '100', 'messages with headers are claimed');
statistics_become("SELECT n_tup_upd >= $updated + 100", 'claims with headers are counted');
is(counter('n_tup_ins', 1), $before, 'no headers are stored again');
$holder->query_safe('COMMIT');
$holder->quit;

# --- a page that is all-visible ---

# A scan does not look at the rows of such a page one by one, so a claim that left
# the page so would have its messages seen twice.
SKIP:
{
	skip 'pg_visibility is not installed', 4
	  if value(q{SELECT count(*) FROM pg_available_extensions WHERE name = 'pg_visibility'}) eq '0';
	value(q{CREATE EXTENSION pg_visibility;
		SELECT queue_push_batch('visible', ARRAY(SELECT to_jsonb(i) FROM generate_series(1, 20) AS i))});
	my $blocks = q{SELECT DISTINCT (ctid::text::point)[0]::bigint AS b FROM queue_data.message_0
		WHERE queue_id = (SELECT id FROM queue_data.queue WHERE name = 'visible')};
	my $all_visible = qq{SELECT bool_and(m.all_visible AND m.pd_all_visible) FROM ($blocks) AS blocks,
		pg_visibility('queue_data.message_0', b) AS m};

	# VACUUM marks no page that a transaction in progress may see otherwise.
	my $until = time + 180;
	value('VACUUM queue_data.message_0') while value($all_visible) ne 't' && time < $until;
	is(value($all_visible), 't', 'new messages are on pages that are all-visible');
	is(value(q{SELECT count(*) FROM queue_claim('visible', 600, 60, 6)}), '6', 'some are claimed');
	is( value(q{SET enable_indexscan = off; SET enable_bitmapscan = off; SET enable_indexonlyscan = off;
			SELECT count(*) FROM queue_data.message_0
			WHERE queue_id = (SELECT id FROM queue_data.queue WHERE name = 'visible')}),
		'20',
		'and a scan of the table sees each once');
	is(value(q{SELECT count(*) FROM pg_check_visible('queue_data.message_0')}),
		'0', 'the visibility map is right');
}

# --- rows of full width ---

my $medium = body(300);
value(qq{SELECT queue_push('wide', $medium, group_key => 'g', headers => '{"h": 1}');
	SELECT claim_count FROM queue_claim('wide', 600, 60, 1);
	SELECT queue_push('wide', $medium);
	SELECT queue_push('wide', $medium, delay => 3600);
	VACUUM FULL queue_data.message_0;
	VACUUM FULL queue_data.delayed_0});
is( value(q{SELECT count(*), min(ttl) FROM queue_messages('wide', include_claimed => true, include_delayed => true)}),
	'3|1209600',
	'all messages after VACUUM FULL');
is( value(q{SELECT claim_count, group_key, headers, length(body #>> '{}') FROM queue_claim('wide', 1, 0)}),
	'1|||288',
	'the one that was short is claimed');
sleep 1.1;
is( value(q{SELECT claim_count, ttl FROM queue_claim('wide', 600, 60)}),
	'2|1209600', 'and again when its claim has run out');

# --- large values that move to another table ---

my $large = body(65000);
value(qq{SELECT queue_push('moved', $large, delay => 1, headers => to_jsonb(repeat('h', 100000)))});
foreach my $how ('delayed', 'released with a delay')
{
	sleep 1.1;
	is( value(qq{SELECT claim_release('moved', claim_id, 1), body = $large, headers = to_jsonb(repeat('h', 100000))
			FROM queue_claim('moved', 600, 60)}),
		'1|t|t',
		"a large message that was $how is whole");
}

# --- lifetimes ---

# Each claim keeps what an earlier one has added, also after a release, when
# another one takes its place, and when it has run out.
value(q{SELECT queue_push('life', '1', 60)});
is(value(q{SELECT ttl >= 1000 FROM queue_claim('life', 900, 100)}), 't', 'a claim extends a lifetime');
is( value(q{SELECT claim_renew('life', claim_id, 60, 60) IS NOT NULL, ttl BETWEEN 1000 AND 1010
		FROM queue_messages('life', include_claimed => true)}),
	't|t',
	'which a renewal does not shorten');
is( value(q{SELECT claim_release('life', claim_id), ttl BETWEEN 1000 AND 1010
		FROM queue_messages('life', include_claimed => true)}),
	'1|t',
	'nor a release');
is(value(q{SELECT ttl BETWEEN 1000 AND 1010 FROM queue_claim('life', 1, 0)}), 't', 'nor the next claim');
sleep 1.1;
is(value(q{SELECT ttl BETWEEN 1000 AND 1010 FROM queue_claim('life', 1, 0)}), 't', 'nor the one after');
is( value(q{SELECT extract(epoch FROM expires_at - created_at) BETWEEN 1000 AND 1010 FROM queue_data.message WHERE queue = 'life'}),
	't',
	'the view shows it');

# --- rows that are not whole ---

value("SELECT queue_push('part', $medium)");
my ($result, $stdout, $stderr) = $node->psql('postgres',
	q{UPDATE queue_data.message_0 SET claim_count = 3
		WHERE queue_id = (SELECT id FROM queue_data.queue WHERE name = 'part')});
like($stderr, qr/violates check constraint "claim_columns"/,
	'some columns of a claim without the others are refused');

$node->stop;
done_testing();
