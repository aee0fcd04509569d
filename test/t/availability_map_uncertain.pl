# What becomes free without a callback in any session is found too: rows
# that plain SQL had locked, twins, prepared transactions, and what was there
# before a crash.
#
# test/check -q runs it, too.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../perl";

use MapTest;
use Test::More;
use Time::HiRes qw(sleep time);

start_server();

my ($q, $id);

# Rows that are locked with plain SQL

foreach my $end ('COMMIT', 'ROLLBACK')
{
	$q = fresh('m1', 'm2', 'm3');
	$one->query_safe('BEGIN');
	$one->query_safe(
		"SELECT FROM queue_data.message_0 AS m JOIN queue_data.queue AS q ON q.id = m.queue_id
			WHERE q.name = '$q' AND body = '\"m2\"' FOR UPDATE OF m");
	is($two->query_safe(claim($q)), 'm1 m3', 'a claim skips a row that plain SQL has locked');
	is($two->query_safe(claim($q)), '', 'nothing else is there');
	$one->query_safe($end);
	becomes_free($q, 'm2', "unlocked by $end");
}

# The twin of a push that was dropped

$q = fresh();
$two->query_safe("SELECT queue_push('$q', '\"twin\"', dedup_key => 'k')");
$one->query_safe('BEGIN');
$one->query_safe("SELECT queue_push('$q', '\"dropped\"', dedup_key => 'k')");
is(free_ones($q), '', 'a claim passes it');
$one->query_safe('COMMIT');
is(free_ones($q), 'twin', 'after commit it is there');

# Prepared transactions

my %prepared = (
	'push' => [ sub { return push_sql($_[0], 'm4') }, 'm1 m2 m3 m4', 'm1 m2 m3' ],
	'push and rollback of another' => [
		sub {
			return push_sql($_[0], 'm4')
			  . '; SAVEPOINT s; '
			  . push_sql($_[0], 'm5')
			  . '; ROLLBACK TO s';
		},
		'm1 m2 m3 m4',
		'm1 m2 m3'
	],
	'claim' => [ sub { return claim($_[0], 2) }, 'm3', 'm1 m2 m3' ],
	'pop' => [ sub { return bodies("queue_pop('$_[0]', 2)") }, 'm3', 'm1 m2 m3' ],
	'delete' => [ $act{'delete'}, 'm3', 'm1 m2 m3' ],
	'release' => [ $act{'claim and release'}, 'm1 m2 m3', 'm1 m2 m3' ]);
foreach my $what (sort keys %prepared)
{
	my ($sql, @left) = @{ $prepared{$what} };
	foreach my $end ('COMMIT', 'ROLLBACK')
	{
		my $left = shift @left;
		$q = fresh('m1', 'm2', 'm3');
		$two->query_safe($_)
		  foreach 'BEGIN', $sql->($q), "PREPARE TRANSACTION 'p'";
		my $free = free_ones($q);
		is( $free,
			$what =~ /push/ ? 'm1 m2 m3' : 'm3',
			"$what, prepared: the rest is free");
		$one->query_safe("$end PREPARED 'p'");
		becomes_free($q, $left, "$what, $end PREPARED");
	}
}

# a release of a claim from before
foreach my $end ('COMMIT', 'ROLLBACK')
{
	$q = fresh('m1', 'm2', 'm3');
	$id = $two->query_safe(
		"SELECT DISTINCT claim_id FROM queue_claim('$q', 600, 0, 2)");
	$two->query_safe($_)
	  foreach 'BEGIN', "SELECT claim_release('$q', '$id')",
	  "PREPARE TRANSACTION 'p'";
	is(free_ones($q), 'm3', 'release of an earlier claim, prepared');
	$one->query_safe("$end PREPARED 'p'");
	becomes_free(
		$q,
		$end eq 'COMMIT' ? 'm1 m2 m3' : 'm3',
		"release of an earlier claim, $end PREPARED");
}

# while other messages wait
foreach my $delay (0, 1)
{
	$q = fresh(1 .. 60);
	$two->query_safe($_)
	  foreach 'BEGIN',
	  "SELECT queue_push('$q', '\"high\"', delay => $delay, priority => 9)",
	  "PREPARE TRANSACTION 'p'";
	is($two->query_safe(claim($q, 1)),
		'1', "a claim passes a prepared push, delay $delay");
	$two->query_safe("COMMIT PREPARED 'p'");
	my ($body, $n) = ('', 0);
	while ($body ne 'high' && $n++ < 40)
	{
		sleep 0.1;
		$body = $two->query_safe(claim($q, 1));
	}
	is($body, 'high', 'it is found although the queue never seemed empty');
}

# After the server was killed, and with a prepared transaction from before

$q = fresh(1 .. 6);
$two->query_safe("SELECT FROM queue_pop('$q')");
is($two->query_safe(claim($q, 1)), '2', 'claimed before the crash');
$one->query_safe($_)
  foreach 'BEGIN', push_sql($q, 'prepared'), "PREPARE TRANSACTION 'p'";
$one->query_safe('BEGIN');
$one->query_safe(claim($q, 1));
$one->query_safe(push_sql($q, 'lost'));
$node->safe_psql('postgres', 'SET synchronous_commit = on; SELECT pg_switch_wal()');
$node->stop('immediate');
$_->quit foreach $one, $two;
$node->start;
connect_sessions();
is($two->query_safe(claim($q, 1)), '3', 'after a crash, one by one');
is($two->query_safe(claim($q, 1)), '4', 'the second');
is($two->query_safe(claim($q)), '5 6', 'the rest');
$two->query_safe(push_sql($q, '7'));
is(free_ones($q), '7', 'a new one');
$two->query_safe("COMMIT PREPARED 'p'");
becomes_free($q, 'prepared 7', 'and a prepared one from before');
$_->quit foreach $one, $two;

$node->stop;
done_testing();
