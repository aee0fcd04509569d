# What the tests of the worker share: a server, a session, one that listens, and what
# the worker's views show.

package WorkerTest;

use strict;
use warnings;

use Exporter 'import';
use PostgreSQL::Test::Utils;
use QueueTest qw($node $db $one value);
use Test::More;
use Time::HiRes qw(sleep time);

our @EXPORT = qw($node $db $one $listener
  start_server connect_sessions stop_server value listen_to times_heard
  wait_to_hear forget_heard workers worker_pid wait_until_idle rests stop_sleeping ready
  becomes_ready);

our $listener;

my @heard;    # payloads, in the order in which they came

sub start_server
{
	QueueTest::start_server(
		q{
autovacuum = off
queue.min_claim_ttl = 1
queue.min_claim_grace = 0
queue.min_message_ttl = 1
queue.max_claim_limit = 10000
});
	connect_sessions();
	return;
}

sub connect_sessions
{
	$one = $node->background_psql($db);
	$listener = $node->background_psql($db);
	@heard = ();
	return;
}

# Nothing has gone wrong in the background.
sub stop_server
{
	is(workers('last_error'), '', 'no error');
	unlike(slurp_file($node->logfile),
		qr/^.*(?:PANIC|TRAP|ERROR|WARNING):.*$/m,
		'no error in the log');
	$_->quit foreach $one, $listener;
	$node->stop;
	return;
}

sub listen_to
{
	foreach my $q (@_)
	{
		my $channel = value("SELECT queue_channel('$q')");
		hear("LISTEN $channel");
	}
	return;
}

# psql shows notifications after a command.
sub hear
{
	my ($sql) = @_;
	my $output = $listener->query_safe(defined $sql ? $sql : 'SELECT');
	push @heard, $1
	  while $output =~ /notification "\w+" with payload "([^"]*)"/g;
	return;
}

sub times_heard
{
	my ($q) = @_;
	return scalar(grep { $_ eq $q } @heard);
}

# Waits for a notification of this queue; returns when it came, 0 if it did not.
sub wait_to_hear
{
	my ($q, $seconds) = @_;
	my $until = time + (defined $seconds ? $seconds : 180);

	for (;;)
	{
		hear();
		return time if times_heard($q) > 0;
		return 0 if time >= $until;
		sleep 0.01;
	}
}

# All notifications of what happened up to now have come.  The worker may have passed a
# queue before it saw the first sentinel, but then visits it with the second one.
my $sentinels = 0;

sub forget_heard
{
	foreach (1 .. 2)
	{
		my $q = 'sentinel' . ++$sentinels;
		listen_to($q);
		value("SELECT queue_push('$q', '1')");
		wait_to_hear($q) or die "no notification of $q";
	}
	my @all = @heard;
	@heard = ();
	return @all;
}

sub workers
{
	my ($column) = @_;
	return value(
		"SELECT $column FROM queue_data.queue_workers WHERE database = current_database()"
	);
}

sub worker_pid
{
	return value(
		q{SELECT pid FROM pg_stat_activity WHERE backend_type = 'queue worker' AND datname = current_database()}
	);
}

# The worker sleeps, and nothing will be due soon.
sub wait_until_idle
{
	return $node->poll_query_until(
		$db, q{
		SELECT state = 'idle' AND coalesce(next_run > now() + interval '10 s', true)
		FROM queue_data.queue_workers WHERE database = current_database()});
}

# The worker comes to rest: for three seconds it makes no round.
sub rests
{
	my ($what) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my ($before, $after) = (-1, workers('rounds'));

	for (my $tries = 0; $before != $after && $tries < 60; $tries++)
	{
		$before = $after;
		sleep 3;
		$after = workers('rounds');
	}
	return is($after, $before, $what);
}

# Stops the worker while it sleeps, when it holds no lock; returns its process.
sub stop_sleeping
{
	my $sleeps = q{SELECT pid FROM pg_stat_activity WHERE backend_type = 'queue worker'
		AND datname = current_database() AND wait_event_type = 'Extension'};
	my $until = time + 180;

	while (time < $until)
	{
		my $pid = value($sleeps) || next;
		kill 'STOP', $pid;
		return $pid if value($sleeps) eq $pid;
		kill 'CONT', $pid;
	}
	die 'the worker does not sleep';
}

# Which queues queue_ready() names, of those with this prefix
sub ready
{
	return value(
		q{SELECT coalesce(string_agg(r, ' ' ORDER BY r), '') FROM queue_ready() AS r WHERE r ~ '^r\d'}
	);
}

sub becomes_ready
{
	my ($expected, $what) = @_;
	my $until = time + 180;
	my $got;

	while (($got = ready()) ne $expected && time < $until)
	{
		sleep 0.02;
	}
	is($got, $expected, $what);
	return;
}

1;
