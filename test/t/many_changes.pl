# A transaction that has made very many changes records no more of them, and the maps of
# the queues that it changes from then on begin anew when it ends.  However it ends, what
# is free afterwards is found, no group exceeds its bound, and waiting sessions are woken.
# Its own claims find what it has made free.  Other maps know as much as before, unless
# the transaction was prepared.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../perl";

use MapTest qw($one $two %act connect_sessions claim push_sql free_ones fresh);
use PostgreSQL::Test::Utils;
use QueueTest qw($node start_server value becomes);
use Test::More;
use Time::HiRes qw(sleep time);

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

sub make_queues
{
	%queue = map { $_ => fresh('m1', 'm2', 'm3') } keys %act, 'short claim',
	  'two claims';
	$queue{$_} = fresh('old') foreach 'push', 'late';
	$queue{'other'} = fresh('m1', 'm2', 'm3');
	foreach my $what ('groups', 'full groups')
	{
		my $q = $queue{$what} = fresh();
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
	is($one->query_safe($too_many), '100100', 'too much');
	$one->query_safe(claim($queue{'short claim'}, 2, 1));
	$one->query_safe(claim($queue{'two claims'}, 1));
	$one->query_safe(push_sql($queue{'push'}, 'p2', 'p3'));
	$one->query_safe(claim($queue{$_}, 2)) foreach 'groups', 'full groups';
	is($one->query_safe(claim($queue{'full groups'})),
		'', 'the transaction finds its groups full');
	is($one->query_safe(claim($queue{'push'}, 2)),
		'old p1', 'the transaction finds what it has pushed');

	my $late = $queue{'late'};
	$one->query_safe(push_sql($late, 'l1', 'l2'));
	is(free_ones($late), 'old', 'a claim of others passes that');
	is($one->query_safe(claim($late, 2)), 'old l1', '... and what it has not recorded');
	$one->query_safe(push_sql($late, 'l3'));
	is($one->query_safe(claim($late, 1)), 'l2', '... the rest of it');
	is( $one->query_safe(
			"SELECT string_agg(body #>> '{}', ' '), count(DISTINCT claim_release('$late', claim_id))
			FROM queue_claim('$late', 600, 0, 1)"),
		'l3|1', '... what it has pushed since');
	is($one->query_safe(claim($late)), 'l3', '... and what it has given back');
	$one->query_safe(
		"SELECT queue_push('$late', '\"low\"', priority => 0), queue_push('$late', '\"high\"', priority => 9)");
	is(free_ones($late), '', 'others pass it');
	is($one->query_safe(claim($late, 1)), $_, "... $_ priority") foreach 'high', 'low';
	is($one->query_safe(claim($late)), '', '... and no more');
	$one->query_safe(push_sql($late, 'l4'));
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
	is(free_ones($queue{'late'}), $committed ? 'l4' : 'old', "$how: what was not recorded");
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

# Of the maps of the queues that are changed at first, and of one that is not
sub incarnations
{
	my $queues = join ',', map { "'$queue{$_}'" } keys %act, 'other';
	return $two->query_safe(
		"SELECT string_agg(queue || ' ' || incarnation, ',' ORDER BY queue)
		FROM queue_data.availability_map WHERE queue IN ($queues)");
}

# Until the transaction ends, others find the rest only; afterwards what $check says.
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
	is(incarnations(), $before, "$how: no other map has begun anew")
	  if $end !~ /^PREPARE/;
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
		is($one->query_safe(claim($queue{'late'})), 'old', 'savepoint: to itself as well');
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

# A session that waits for a message is woken.
my $q = fresh();
$one->query_safe('BEGIN');
$one->query_safe($too_many);
$one->query_safe(push_sql($q, 'w'));
$two->query_until(qr/waiting/, "\\echo waiting\nCALL queue_wait('$q', 60000);\n");
ok( $node->poll_query_until(
		'postgres',
		"SELECT waiters = 1 FROM queue_data.availability_map WHERE queue = '$q'"),
	'a session waits');
my $began = time;
$one->query_safe('COMMIT');
is(free_ones($q), 'w', 'it finds the message');
cmp_ok(time - $began, '<', 55, 'before its time is over');

my @queues = slurp_file($node->logfile) =~
  /DEBUG:  the transaction has made (\d+) records of changes to messages: it is to forget/mg;
is_deeply([ grep { $_ != 100_000 } @queues ], [], 'so many changes are recorded');
cmp_ok(scalar @queues, '>=', 7 + 6 * 4, 'all of them had too much');

$_->quit foreach $one, $two;
$node->stop;
done_testing();
