# What the tests of segments share: a server with small segments, a session, and what
# makes the segments switch.

package SegmentTest;

use strict;
use warnings;

use Exporter 'import';
use PostgreSQL::Test::Utils;
use QueueTest qw($node $db $one value);
use Test::More;
use Time::HiRes qw(sleep time);

our @EXPORT = qw($node $db $one $bound $size_query $in_use
  start_server value worker becomes_true counter_passes relations_of relations_query
  switch_segment switch_segments hold_snapshot);

# A segment is closed when half of this was written to it.  Between two switches
# the test writes one portion, which is about as much again; claims write
# every row once more, into the other half of its page; then come the index
# and the empty tables of large bodies.
my $segment_size = 64 * 1024;
my $segments = 16;
our $bound = $segments * 4 * $segment_size;

sub start_server
{
	QueueTest::start_server(
		qq{
autovacuum = off
max_prepared_transactions = 5
queue.segment_size = '@{[ $segment_size / 1024 ]}kB'
queue.min_claim_ttl = 1
queue.min_claim_grace = 0
queue.min_message_ttl = 1
});
	$node->safe_psql($db,
		'CREATE TABLE effect (n int PRIMARY KEY); CREATE TABLE source (n int PRIMARY KEY)'
	);
	$one = $node->background_psql($db);
	return;
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
sub relations_query
{
	my ($q) = @_;
	return
	  "SELECT coalesce(string_agg(DISTINCT relation, ' '), '') FROM queue_data.message WHERE queue = '$q'";
}

sub relations_of
{
	return value(relations_query(@_));
}

our $size_query = q{
	SELECT sum(pg_total_relation_size(c.oid)) FROM pg_class c
	WHERE c.relnamespace = 'queue_data'::regnamespace AND c.relkind = 'r'
	AND c.relname LIKE 'message%'};

# Segments with pages, but for the active one
our $in_use = q{
	SELECT count(*) FROM generate_series(0, 15) AS s, queue_data.ring
	WHERE s <> active AND pg_relation_size(('queue_data.message_' || s)::regclass) > 0};

# Pushes, claims and completes enough messages that new ones go to the next
# segment, and waits for it.
sub switch_segment
{
	my $switches = worker('switches');
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
	return counter_passes('switches', $switches);
}

sub switch_segments
{
	my ($times) = @_;
	switch_segment() foreach (1 .. $times);
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

1;
