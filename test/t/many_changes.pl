# A transaction with changes to more messages than it can keep apart unites what it
# has recorded of each queue.  However it ends, what is free afterwards is found, and
# the availability maps know as much as before: those of the queues that it has
# changed, except where it has claimed from several groups, and those of all others.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../perl";

use MapTest qw($one $two %act connect_sessions claim push_sql free_ones fresh);
use PostgreSQL::Test::Utils;
use QueueTest qw($node start_server value becomes);
use Test::More;
use Time::HiRes qw(sleep);

start_server(
	q{
max_prepared_transactions = 1
autovacuum = off
queue.max_active_queues = 2000
queue.min_claim_ttl = 1
queue.min_claim_grace = 0
});
connect_sessions();
$one->query_safe('SET log_min_messages = debug2');

# Each of these delays ends at a time of its own, so none is recorded with another.
my $too_many = q{SELECT count(queue_push('delayed', '0', delay => 3600))
	FROM generate_series(1, 100100) AS g};

# Queues with free messages: "m3" of each, and with two groups of two, of which one
# message each may be claimed.
my %queue;
my @grouped;

sub make_queues
{
	%queue = map { $_ => fresh('m1', 'm2', 'm3') } keys %act, 'short claim',
	  'two claims';
	$queue{'push'} = fresh('old');
	$queue{'other'} = fresh('m1', 'm2', 'm3');
	foreach my $what ('groups', 'full groups')
	{
		my $q = $queue{$what} = fresh();
		push @grouped, $q;
		my $bound = $what eq 'groups' ? -1 : 1;
		$two->query_safe("SELECT queue_update('$q', '{\"_group_concurrency\": $bound}')")
		  if $bound > 0;
		$two->query_safe(
			"SELECT queue_push('$q', to_jsonb(k || n), group_key => k)
			FROM generate_series(1, 2) AS n, unnest(ARRAY['a', 'b']) AS k");

		# Its claims take lanes from now on.
		$two->query_safe('BEGIN');
		$two->query_safe(claim($q, 1));
		$two->query_safe('ROLLBACK');
		becomes(
			"SELECT state FROM queue_data.availability_map WHERE queue = '$q'",
			'complete', "$what: the map knows all");
	}
	return;
}

# What a transaction does in these queues, at first and after it was too much
sub change_first
{
	$one->query_safe($act{$_}->($queue{$_})) foreach keys %act;
	$one->query_safe(push_sql($queue{'push'}, 'p1'));
	$one->query_safe(claim($queue{'two claims'}, 1));
	return;
}

sub change_then
{
	$one->query_safe(claim($queue{'short claim'}, 2, 1));
	$one->query_safe(claim($queue{'two claims'}, 1));
	$one->query_safe(push_sql($queue{'push'}, 'p2', 'p3'));
	$one->query_safe(claim($queue{$_}, 2)) foreach 'groups', 'full groups';
	is($one->query_safe($too_many), '100100', 'too much');
	is($one->query_safe(claim($queue{'push'}, 2)),
		'old p1', 'the transaction finds what it has pushed');
	return;
}

# In whichever order groups take turns
sub free_of_groups
{
	my ($what) = @_;
	return join ' ', sort split / /, free_ones($queue{$what});
}

# The worker returns what was prepared a moment later.
sub is_soon
{
	my ($q, $expected, $name) = @_;
	my $got = free_ones($q);
	for (my $tries = 1000; $got ne $expected && $tries > 0; $tries--)
	{
		sleep 0.1;
		$got = free_ones($q);
	}
	is($got, $expected, $name);
	return;
}

sub check_changed
{
	my ($how) = @_;

	is_soon($queue{$_}, $_ eq 'claim and release' ? 'm1 m2 m3' : 'm3', "$how: $_")
	  foreach sort keys %act;
	return;
}

sub check_free
{
	my ($how, $committed) = @_;

	is(free_ones($queue{'push'}), $committed ? 'p2 p3' : 'old', "$how: push");
	is(free_of_groups('groups'), $committed ? 'a2 b2' : 'a1 a2 b1 b2',
		"$how: groups");
	is(free_of_groups('full groups'), $committed ? '' : 'a1 b1',
		"$how: groups with a bound");
	sleep 1.1 if $committed;
	is(free_ones($queue{'short claim'}), 'm1 m2 m3', "$how: short claims that ran out");
	return;
}

sub check_rolled_back
{
	my ($how) = @_;

	is_soon($queue{$_}, 'm1 m2 m3', "$how: $_ was rolled back") foreach sort keys %act;
	return;
}

# Of the maps of all queues without groups
sub incarnations
{
	my $without = join ',', map { "'$_'" } 'delayed', @grouped;
	return $two->query_safe(
		"SELECT string_agg(queue || ' ' || incarnation, ',' ORDER BY queue)
		FROM queue_data.availability_map WHERE queue NOT IN ($without)");
}

# Until the transaction ends, others find the rest only; afterwards what $check says,
# and no map has begun anew.
sub try_end
{
	my ($how, $begin, $end, $check) = @_;

	make_queues();
	my $before = incarnations();
	$one->query_safe('BEGIN');
	change_first() if $how ne 'savepoint in one';
	$one->query_safe($begin) if $begin;
	change_first() if $how eq 'savepoint in one';
	change_then();
	is(free_ones($queue{$_}), 'm3', "$how, under way: $_") foreach sort keys %act;
	$one->query_safe($end);
	$check->();
	is(incarnations(), $before, "$how: no map has begun anew");
	is(free_ones($queue{'other'}), 'm1 m2 m3', "$how: another queue");
	return;
}

try_end('commit', '', 'COMMIT',
	sub { check_changed('commit'); check_free('commit', 1) });
try_end('rollback', '', 'ROLLBACK',
	sub { check_rolled_back('rollback'); check_free('rollback', 0) });
try_end(
	'savepoint',
	'SAVEPOINT s',
	'ROLLBACK TO s',
	sub {
		is(free_ones($queue{$_}), 'm3', "savepoint: $_ is not rolled back")
		  foreach sort keys %act;
		is(free_ones($queue{'two claims'}),
			'm2 m3', 'savepoint: the second claim is rolled back');
		check_free('savepoint', 0);
		$one->query_safe('COMMIT');
		check_changed('savepoint');
		is(free_ones($queue{'two claims'}), 'm2 m3', 'savepoint: the first claim stays');
		is(free_ones($queue{'push'}), 'old p1', 'savepoint: so does the first push');
	});
try_end(
	'savepoint in one',
	'SAVEPOINT s; SAVEPOINT t',
	'RELEASE t; ROLLBACK TO s',
	sub {
		check_rolled_back('savepoint in one');
		check_free('savepoint in one', 0);
		$one->query_safe('COMMIT');
		check_rolled_back('savepoint in one, later');
		check_free('savepoint in one, later', 0);
	});
foreach my $end ('COMMIT PREPARED', 'ROLLBACK PREPARED')
{
	my $how = lc $end;
	my $committed = $end eq 'COMMIT PREPARED';
	try_end(
		$how, '',
		"PREPARE TRANSACTION 'p'",
		sub {
			is(free_ones($queue{$_}), 'm3', "$how, prepared: $_")
			  foreach sort keys %act;
			value("$end 'p'");
			$committed ? check_changed($how) : check_rolled_back($how);
			check_free($how, $committed);
		});
}
my @united = slurp_file($node->logfile) =~
  /DEBUG:  the transaction has made \d+ records of changes to messages: they were united to \d+$/mg;
is(scalar @united, 6, 'so all of them had too much');

$_->quit foreach $one, $two;
$node->stop;
done_testing();
