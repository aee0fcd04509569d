# Listeners are notified of everything: of delayed messages one after the other,
# also when they claim only one each time; of queues without a map;
# after a notification that failed; and of what other SQL has written.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../perl";

use ClusterTest;
use PostgreSQL::Test::Utils;
use QueueTest qw($node $db $one value);
use Test::More;
use Time::HiRes qw(sleep time);

my $queues = 400;
$node = PostgreSQL::Test::Cluster->new('main');
$node->init(allows_streaming => 1);
$node->append_conf(
	'postgresql.conf', q{
autovacuum = off
queue.max_active_queues = 128
queue.min_claim_ttl = 1
queue.min_claim_grace = 0
});
$node->start;
$node->safe_psql($db, 'CREATE EXTENSION queue');
$one = $node->background_psql($db);
my $listener = $node->background_psql($db);
my %heard;

sub listen_to
{
	my (@names) = @_;
	my $names = join ',', @names;
	my @channels = split /\n/,
	  value("SELECT queue_channel(q) FROM unnest('{$names}'::text[]) AS q");
	$listener->query_safe(join ';', map { "LISTEN $_" } @channels);
	return;
}

sub hear
{
	my $output = $listener->query_safe('SELECT');
	$heard{$_}++ foreach $output =~ /with payload "([^"]*)"/g;
	return;
}

# Waits for notifications of so many of these queues; returns of how many.
sub wait_to_hear
{
	my ($pattern, $n) = @_;
	my $until = time + 180;
	my $got = 0;

	for (;;)
	{
		hear();
		$got = grep { /^(?:$pattern)$/ } keys %heard;
		return $got if $got >= $n || time >= $until;
		sleep 0.02;
	}
}

# --- one delayed message after the other ---

listen_to('d');
value(q{SELECT queue_push('d', to_jsonb(i), delay => i) FROM generate_series(1, 3) AS i});
foreach my $i (1 .. 3)
{
	my $body = '';

	# On a busy machine, one notification may be for two.
	while ($body eq '')
	{
		is(wait_to_hear('d', 1), 1, "a notification of a delayed message: $i") || last
		  if value(q{SELECT free FROM queue_stats('d')}) eq '0';
		%heard = ();
		$body = value(q{SELECT body FROM queue_claim('d', 600, 0, 1)});
	}
	is($body, $i, 'and claimed by itself');
}

# three that are due at once
value(q{SELECT queue_push('d', to_jsonb(i), delay => 1) FROM generate_series(4, 6) AS i});
is(wait_to_hear('d', 1), 1, 'some that are due at once');
is( value(q{SELECT string_agg(body::text, ' ' ORDER BY id) FROM queue_claim('d', 600, 0, 9)}),
	'4 5 6', 'are there at once');
%heard = ();

# --- many more queues than maps ---

my @names = map { "n$_" } 1 .. $queues;
listen_to(@names);
value("SELECT count(queue_create('n' || i)) FROM generate_series(1, $queues) AS i");
value("SELECT count(queue_push('n' || i, '1')) FROM generate_series(1, $queues) AS i");
is(wait_to_hear('n\d+', $queues),
	$queues, 'pushes of one transaction to all of them');
%heard = ();
value("SELECT count(c.id) FROM generate_series(1, $queues) AS i, queue_claim('n' || i, 1, 0) AS c");
is(wait_to_hear('n\d+', $queues), $queues, 'claims that run out');
%heard = ();
value("SELECT sum(queue_purge('n' || i)) FROM generate_series(1, $queues) AS i");
value("SELECT count(queue_push('n' || i, '2', delay => 2)) FROM generate_series(1, $queues) AS i");
is(wait_to_hear('n\d+', $queues), $queues, 'delays that elapse');
is( value(q{SELECT count(*) FROM queue_ready() AS r WHERE r ~ '^n\d'}),
	$queues, 'all of them are known to be ready');

# Listeners are not notified of a queue that gets the map of one with arrivals.
value("SELECT sum(queue_purge('n' || i)) FROM generate_series(1, $queues) AS i");
foreach (1 .. 20)
{
	# What was on its way before the purge may still come.
	%heard = ();
	sleep 2;
	hear();
	last unless %heard;
}
%heard = ();
value("SELECT count(c.id) FROM generate_series(1, $queues) AS i, queue_claim('n' || i, 1, 0) AS c");
sleep 1;
hear();

# The worker may take a claimed message for a free one, so there may be a few
# notifications, on a busy machine ten; but not of most queues, which got the map of
# another one.
cmp_ok(scalar(keys %heard), '<', $queues / 4, 'listeners are not notified of empty queues')
  or diag(join ' ', keys %heard);

# --- notifications that fail ---

# A commit that waits for a standby holds the lock that every transaction with
# notifications takes; the worker gives up after a moment.
%heard = ();
listen_to('f1', 'f2');
value(q{SELECT queue_create('f1'), queue_create('f2')});
value(q{SET synchronous_commit = local});
value(q{ALTER SYSTEM SET synchronous_standby_names = 'nobody'});
value(q{SELECT pg_reload_conf()});
$node->poll_query_until($db,
	q{SELECT setting = 'nobody' FROM pg_settings WHERE name = 'synchronous_standby_names'});
my $waiting = $node->background_psql($db);
$waiting->query_until(qr/started/, "\\echo started\nBEGIN; CREATE TABLE waits (); NOTIFY other; COMMIT;\n");
ok( $node->poll_query_until(
		$db, q{SELECT count(*) = 1 FROM pg_stat_activity WHERE wait_event = 'SyncRep'}),
	'no notification can be sent');
value(q{SELECT queue_push('f1', '1'), queue_push('f2', '1')});
ok( $node->poll_query_until(
		$db, q{SELECT count(*) > 0 FROM pg_locks WHERE NOT granted AND pid =
			(SELECT pid FROM pg_stat_activity WHERE backend_type = 'queue worker')}),
	'the worker tries');
sleep 0.5;
hear();
is(join(' ', keys %heard), '', 'in vain');
value(q{ALTER SYSTEM RESET synchronous_standby_names});
value(q{SELECT pg_reload_conf()});
is(wait_to_hear('f\d', 2), 2, 'and again, until it succeeds');
%heard = ();
$waiting->quit;

# --- rows that other SQL has written ---

listen_to('sql');
value(q{SELECT queue_create('sql')});
sleep 0.5;
my $copy = value(
	q{SELECT queue_push('n1', '"copied"'); SELECT id FROM queue_claim('n1', 600, 0)});
$copy =~ s/^\d+\n//;
value(
	qq{INSERT INTO queue_data.message_0 SELECT (jsonb_populate_record(m, jsonb_build_object(
		'queue_id', (SELECT id FROM queue_data.queue WHERE name = 'sql'),
		'claim_token', 0))).* FROM queue_data.message_0 AS m WHERE id = $copy});
is(wait_to_hear('sql', 1, 20), 1, 'a row that was inserted');
is(value(q{SELECT body FROM queue_claim('sql', 600, 0)}),
	'"copied"', 'which can be claimed');

is( value(
		q{SELECT last_error IS NULL FROM queue_data.queue_workers WHERE database = current_database()}
	),
	't',
	'no error');
$_->quit foreach ($one, $listener);
$node->stop;
done_testing();
