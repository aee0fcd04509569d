# Queues with groups, while shared memory has no room for all groups in which
# something is free: claims, queue_ready() and queue_claim_any() find all of it,
# in the order of the groups; no group waits for good; and neither claims nor
# the worker read the whole queue again and again.

use strict;
use warnings;

use List::Util qw(max sum0);
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(sleep time);

use FindBin;
use lib "$FindBin::RealBin/../perl";

use MapTest;

my $room = 96;    # for lanes, of one owner

my $queues = 0;

sub new_queue
{
	my ($metadata) = @_;
	my $q = 'r' . ++$queues;
	$two->query_safe("SELECT queue_create('$q', '" . ($metadata || '{}') . "')");

	# Its map knows that it has groups, and that it is empty; and the worker
	# has read it, so that claims count what is under a claim by the lanes.
	$two->query_safe("SELECT queue_push('$q', '0', group_key => 'x')");
	$two->query_safe("SELECT FROM queue_pop('$q')");
	$two->query_safe(claim($q)) eq '' or die "$q is not empty";
	$node->poll_query_until('postgres',
		"SELECT state = 'complete' FROM queue_data.availability_map WHERE queue = '$q'")
	  or die "the worker does not read $q";
	return $q;
}

# One message for each group from "first" to "last", so many times; the bodies
# are numbers that rise.
my $body = 0;

sub push_to
{
	my ($q, $first, $last, $times, %options) = @_;
	my $more = join '', map { ", $_ => $options{$_}" } sort keys %options;

	foreach (1 .. $times || 1)
	{
		$two->query_safe(
			"SELECT count(queue_push('$q', to_jsonb($body + g), group_key => 'g' || g$more)) FROM generate_series($first, $last) AS g"
		);
		$body += $last + 1;
	}
	return;
}

# [group, body] of each message of a claim, which is completed.
sub take
{
	my ($session, $q, $limit) = @_;
	return map { [ split / / ] } split /,/,
	  $session->query_safe(
		"SELECT coalesce(string_agg(group_key || ' ' || (body #>> '{}'), ','), '') FROM queue_pop('$q', $limit)"
	  );
}

# Rows and index entries that the session reads meanwhile
sub reads
{
	my ($session, $sql) = @_;
	my $count = q{SELECT sum(pg_stat_get_xact_tuples_returned(indexrelid)
		+ pg_stat_get_xact_tuples_fetched(indexrelid)) FROM pg_index AS i
		JOIN pg_class AS c ON c.oid = indexrelid
		WHERE relnamespace = 'queue_data'::regnamespace};
	my $before = $session->query_safe("BEGIN; $count");
	$session->query_safe($sql);
	return $session->query_safe("$count; COMMIT") - $before;
}

# New sessions, which know nothing of the queues
sub reconnect
{
	$_->quit foreach $one, $two;
	connect_sessions();
	return;
}

start_server();

# Another queue has all the room, and keeps it.
my $hog = new_queue();
my @queues = map { new_queue($_) } '{}', '{"_group_concurrency": 1}';
push_to($hog, 1, $room);
$one->query_safe("SELECT queue_pause('$hog')");

# --- Nothing is missed ---

foreach my $q (@queues)
{
	my $metadata = $q eq $queues[0] ? 'no bound' : 'a bound';
	my $is_ready = "SELECT count(*) FROM queue_ready() AS q WHERE q = '$q'";
	push_to($q, 1, 3);
	is($two->query_safe($is_ready), 1, "$metadata: queue_ready, call $_")
	  foreach 1 .. 3;
	is( $two->query_safe(
			"SELECT count(*) FROM queue_claim_any(ARRAY['$q'], 600, 0, 1)"),
		1, "$metadata: queue_claim_any, call $_")
	  foreach 1 .. 3;
	is($two->query_safe($is_ready), 0, "$metadata: queue_ready, then");
}

# --- No queue is read as a whole by each claim ---

{
	my $q = new_queue();
	push_to($q, 1, 200, 25);
	take($two, $q, 1);
	my $most = max map { reads($two, "SELECT FROM queue_pop('$q')") } 1 .. 150;
	cmp_ok($most, '<', 1500, 'no lane at all: what a claim reads');
	$two->query_safe("SELECT FROM queue_drop('$q')");
}

$one->query_safe("SELECT FROM queue_drop('$hog')");

foreach my $metadata ('{}', '{"_group_concurrency": 1}')
{
	# Far more messages of far more groups than there is room for
	my $q = new_queue($metadata);
	push_to($q, 1, 200, 25);
	take($two, $q, 1);
	my @reads = map { reads($two, "SELECT FROM queue_pop('$q')") } 1 .. 600;
	cmp_ok(max(@reads), '<', 4000, "$metadata: what one claim reads");
	cmp_ok(sum0(@reads) / @reads, '<', 200, "$metadata: what claims read");
	$two->query_safe("SELECT FROM queue_drop('$q')");
}

# --- No group waits for good, and the order in each is kept ---

reconnect();

foreach my $metadata ('{}', '{"_group_concurrency": 1}')
{
	my $q = new_queue($metadata);
	my (%last, %waits);
	my ($late, $unsorted, $turns) = (0, 0, 0);

	push_to($q, 1, 2 * $room, 3);
	push_to($q, 1001, 1050);
	$waits{"g$_"} = 1 foreach 1001 .. 1050;

	# What is taken is replaced.
	my $most = 2 * 3 * 2 * $room;
	while (%waits && $turns++ < $most)
	{
		foreach my $message (take($turns % 2 ? $one : $two, $q, 1))
		{
			my ($group, $n) = @$message;
			$unsorted++ if defined $last{$group} && $last{$group} > $n;
			$last{$group} = $n;
			delete $waits{$group};
			push_to($q, $1, $1) if $group =~ /^g(\d{1,3})$/;
		}
	}
	is(scalar(keys %waits), 0,
		"$metadata: groups that came last have their turns");
	note "$metadata: after $turns claims";
	while (my @messages = take($two, $q, 10))
	{
		foreach (@messages)
		{
			my ($group, $n) = @$_;
			$unsorted++ if defined $last{$group} && $last{$group} > $n;
			$last{$group} = $n;
		}
	}
	is($unsorted, 0, "$metadata: the order in each group");
	is($two->query_safe("SELECT total FROM queue_stats('$q')"),
		0, "$metadata: all messages");
}

# --- More groups under claims than there is room for ---

reconnect();

{
	my $q = new_queue('{"_group_concurrency": 1}');
	my $pop = "SELECT FROM queue_pop('$q')";
	my ($until, $reads);

	push_to($q, 1, 2 * $room, 10);
	my @claims = map {
		$two->query_safe("SELECT claim_id FROM queue_claim('$q', 600, 0, 1)")
	} 1 .. 2 * $room;
	is(scalar(grep { $_ ne '' } @claims), 2 * $room, 'one claim of each group');
	is($two->query_safe(claim($q)), '', 'all of them are full');
	$two->query_safe("SELECT claim_complete('$q', '$_')") foreach @claims;

	# The worker tries every ten seconds, unless it is kept from that.
	$until = time + 120;
	do
	{
		sleep 0.5;
		$reads = reads($two, $pop);
	} while ($reads > 300 && time < $until);
	cmp_ok($reads, '<=', 300, 'what a claim reads when there is room again');
	$two->query_safe("SELECT FROM queue_drop('$q')");
}

# --- A transaction that pushes to very many groups ---

reconnect();

foreach my $metadata ('{}', '{"_group_concurrency": 2}')
{
	my $q = new_queue($metadata);
	my $n = 101000;

	push_to($q, 1, 10);
	$two->query_safe(
		qq{
DO \$\$
BEGIN
	FOR i IN 1 .. $n / 1000 LOOP
		PERFORM FROM queue_push_batch('$q', array_fill('1'::jsonb, ARRAY[1000]),
			group_keys => (SELECT array_agg(i || '-' || j)
				FROM generate_series(1, 1000) AS j));
	END LOOP;
END
\$\$});
	my $until = time + 120;
	my @reads;

	# More has changed than one transaction records, so the lanes are given all
	# of it first, and the worker learns what was delivered of groups with a bound.
	do
	{
		@reads = map { reads($two, "SELECT FROM queue_pop('$q')") } 1 .. 3;
	} while (max(@reads) >= 10000 && time < $until);
	cmp_ok(max(@reads), '<', 10000, "$metadata: what claims read then");
	$two->query_safe(
		qq{
DO \$\$
DECLARE
	n int;
BEGIN
	LOOP
		SELECT count(*) INTO n FROM queue_pop('$q', 100);
		EXIT WHEN n = 0;
		COMMIT;
	END LOOP;
END
\$\$});
	is($two->query_safe("SELECT total FROM queue_stats('$q')"),
		0, "$metadata: all messages");
	$two->query_safe("SELECT FROM queue_drop('$q')");
}

# --- What is dropped gives its room back ---

# While there is room, groups take turns; else their messages are in one line.
sub has_room
{
	my $q = new_queue();
	push_to($q, 1, 1, 3);
	push_to($q, 2, 2);
	my @messages = take($two, $q, 2);
	$two->query_safe("SELECT FROM queue_drop('$q')");
	return $messages[1][0] eq 'g2';
}

$node->safe_psql('postgres', 'CREATE DATABASE other');
foreach my $drop (
	[ 'the extension', 'other', 'DROP EXTENSION queue' ],
	[ 'the extension, which is created anew', 'other',
		'DROP EXTENSION queue; CREATE EXTENSION queue' ],
	[ 'the database', 'postgres', 'DROP DATABASE other' ])
{
	my ($what, $database, $sql) = @$drop;
	my $until = time + 180;

	$node->safe_psql(
		'other', qq{
CREATE EXTENSION IF NOT EXISTS queue;
SELECT queue_create('hog'), queue_push('hog', '0', group_key => 'x');
SELECT FROM queue_pop('hog');
SELECT FROM queue_pop('hog');
SELECT count(queue_push('hog', '1', group_key => 'g' || g))
FROM generate_series(1, $room) AS g});
	ok(!has_room(), "$what: another database has all the room");
	$node->safe_psql($database, $sql);
	sleep 0.1 while !has_room() && time < $until;
	ok(has_room(), "$what: not when that is dropped");
}

# --- The worker does not read the queue while nothing changes ---

reconnect();

foreach my $metadata ('{}', '{"_group_concurrency": 1}')
{
	my $q = new_queue($metadata);
	my $scans = q{SELECT sum(pg_stat_get_tuples_returned(indexrelid))
		FROM pg_index AS i JOIN pg_class AS c ON c.oid = indexrelid
		WHERE relnamespace = 'queue_data'::regnamespace AND relname ~ '^message'};
	push_to($q, 1, 200, 20);
	take($two, $q, 1) foreach 1 .. 3;

	# It may not have begun yet; but it comes to an end.
	my $reads = 2000;
	for (my $until = time + 120; $reads >= 2000 && time < $until;)
	{
		my $before = $one->query_safe($scans);
		sleep 4;
		$reads = $one->query_safe($scans) - $before;
	}
	cmp_ok($reads, '<', 2000, "$metadata: what the worker reads in four seconds");
	$two->query_safe("SELECT FROM queue_drop('$q')");
}

$node->stop;
done_testing();
