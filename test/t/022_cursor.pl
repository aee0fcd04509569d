# Cursors in shared memory: they say where a claim looks, and whatever comes
# free again is found again, at once where the transaction that did it tells,
# and before a claim answers that there is nothing where nobody does.

use strict;
use warnings;

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(sleep time);

my $node = PostgreSQL::Test::Cluster->new('main');
$node->init;
$node->append_conf(
	'postgresql.conf', q{
shared_preload_libraries = 'queue'
max_prepared_transactions = 40
autovacuum = off
queue.max_cursors = 64
queue.min_claim_ttl = 1
queue.min_claim_grace = 0
});
$node->start;
$node->safe_psql('postgres', 'CREATE EXTENSION queue');

my $a = $node->background_psql('postgres');
my $b = $node->background_psql('postgres');
my $names = 0;

# The bodies that a call hands out, in order
sub bodies
{
	my ($call) = @_;
	return "SELECT coalesce(string_agg(body #>> '{}', ' '), '') FROM $call";
}

sub claim
{
	my ($q, $limit, $ttl) = @_;
	$limit = 100 unless defined $limit;
	$ttl = 600 unless defined $ttl;
	return bodies("queue_claim('$q', $ttl, 0, $limit)");
}

sub push_sql
{
	my ($q, @bodies) = @_;
	return join '; ', map { "SELECT FROM queue_push('$q', '\"$_\"')" } @bodies;
}

# What session B can claim now; it gives it back by a rollback.
sub free_ones
{
	my ($q) = @_;
	$b->query_safe('BEGIN');
	my $bodies = $b->query_safe(claim($q));
	$b->query_safe('ROLLBACK');
	return $bodies;
}

# The same, where nobody tells: for a while, but not for so long that the
# queue would be looked at as a whole.
sub becomes_free
{
	my ($q, $expected, $what) = @_;
	my $until = time + 5;
	my $got;

	while (($got = free_ones($q)) ne $expected && time < $until)
	{
		sleep 0.1;
	}
	is($got, $expected, $what);
	return;
}

# A queue whose cursor has been at its end before these messages were pushed
sub fresh
{
	my (@bodies) = @_;
	my $q = 'q' . ++$names;
	$b->query_safe(push_sql($q, 'old'));
	$b->query_safe("SELECT FROM queue_pop('$q')");
	$b->query_safe(claim($q));
	$b->query_safe(push_sql($q, @bodies)) if @bodies;
	return $q;
}

# Marks all messages of a queue in front of the cursor as passed.
sub pass_all
{
	my ($q) = @_;
	$b->query_safe("DO \$\$BEGIN PERFORM queue_claim('$q', 600, 0, 100); END\$\$");
	return;
}

my $q;

# A push that ends after a claim has passed it

$q = fresh();
$a->query_safe('BEGIN');
$a->query_safe(push_sql($q, 'a1', 'a2'));
$b->query_safe(push_sql($q, 'b1'));
is(free_ones($q), 'b1', 'a claim passes a push under way');
$a->query_safe('COMMIT');
is(free_ones($q), 'a1 a2 b1', 'which is there once it is committed');

$q = fresh('b1');
$a->query_safe('BEGIN');
$a->query_safe(push_sql($q, 'a1'));
$a->query_safe('SAVEPOINT s');
$a->query_safe(push_sql($q, 'a2'));
is(free_ones($q), 'b1', 'a claim passes it in a subtransaction too');
$a->query_safe('ROLLBACK TO s');
$a->query_safe(push_sql($q, 'a3'));
is(free_ones($q), 'b1', 'and after its rollback');
$a->query_safe('COMMIT');
is(free_ones($q), 'b1 a1 a3', 'the rest is there');

# Whatever is rolled back, in whichever way

my %begin = (
	'transaction' => ['BEGIN'],
	'savepoint' => [ 'BEGIN', 'SAVEPOINT s' ],
	'savepoint in one' => [ 'BEGIN', 'SAVEPOINT s', 'SAVEPOINT t' ],
	'end of the session' => ['BEGIN']);
my %rollback = (
	'transaction' => 'ROLLBACK',
	'savepoint' => 'ROLLBACK TO s',
	'savepoint in one' => 'RELEASE t; ROLLBACK TO s');
my %act = (
	'claim' => sub { return claim($_[0], 2) },
	'pop' => sub { return bodies("queue_pop('$_[0]', 2)") },
	'delete' => sub {
		return
		  "SELECT FROM queue_messages('$_[0]', limit => 2), message_delete('$_[0]', id)";
	},
	'claim and release' => sub {
		return
		  "SELECT count(DISTINCT claim_release('$_[0]', claim_id)) FROM queue_claim('$_[0]', 600, 0, 2)";
	},
	'claim, and release with a delay' => sub {
		return
		  "SELECT count(DISTINCT claim_release('$_[0]', claim_id, 60)) FROM queue_claim('$_[0]', 600, 0, 2)";
	},
	'claim and complete' => sub {
		return
		  "SELECT count(claim_complete('$_[0]', claim_id)) FROM (SELECT claim_id FROM queue_claim('$_[0]', 600, 0, 2) LIMIT 1) AS c";
	});
foreach my $how (sort keys %begin)
{
	foreach my $what (sort keys %act)
	{
		$q = fresh('m1', 'm2', 'm3');
		my $s =
		  $how eq 'end of the session' ? $node->background_psql('postgres') : $a;
		$s->query_safe($_) foreach @{ $begin{$how} };
		$s->query_safe($act{$what}->($q));
		is(free_ones($q), 'm3', "$what, not ended: the rest is free");
		if ($how eq 'end of the session')
		{
			$s->quit;
			becomes_free($q, 'm1 m2 m3', "$what, $how: all is free");
			next;
		}
		$a->query_safe($rollback{$how});
		is(free_ones($q), 'm1 m2 m3', "$what, rollback of a $how: all is free");
		$a->query_safe('COMMIT');
		is(free_ones($q), 'm1 m2 m3', "$what, rollback of a $how: it stays so");
	}
}

$q = fresh('m1', 'm2', 'm3');
is( $b->query_safe(
		qq{DO \$\$BEGIN
			BEGIN
				PERFORM queue_claim('$q', 600, 0, 2);
				RAISE 'no';
			EXCEPTION WHEN raise_exception THEN NULL;
			END;
		END\$\$; } . claim($q, 1)),
	'm1',
	'a block with an exception, and a claim after it');

# Release and renewal

my $id = $b->query_safe(
	"SELECT claim_id FROM queue_claim('$q', 1, 0, 1)");
$a->query_safe('BEGIN');
$a->query_safe("SELECT claim_release('$q', '$id')");
is(free_ones($q), 'm3', 'a release under way');
$a->query_safe('ROLLBACK');
$b->query_safe('SELECT pg_sleep(1)');
is(free_ones($q), 'm2 m3', 'rolled back, and the claim ran out');
$id = $b->query_safe("SELECT claim_id FROM queue_claim('$q', 600, 0, 1)");
is(free_ones($q), 'm3', 'claimed again');
$b->query_safe("SELECT claim_release('$q', '$id')");
is(free_ones($q), 'm2 m3', 'and released');
$id = $b->query_safe("SELECT claim_id FROM queue_claim('$q', 600, 0, 1)");
$b->query_safe("SELECT claim_renew('$q', '$id', 1)");
is(free_ones($q), 'm3', 'a claim that was renewed to end earlier');
$b->query_safe('SELECT pg_sleep(1)');
is(free_ones($q), 'm2 m3', 'and ran out');

# Messages of one's own that are not committed

$q = fresh('x');
$a->query_safe('BEGIN');
$a->query_safe(push_sql($q, 'a1', 'a2', 'a3'));
$b->query_safe(push_sql($q, 'y'));
is(free_ones($q), 'x y', 'others do not get them');
is($a->query_safe(claim($q, 1)), 'x', "one's own, one by one");
is($a->query_safe(claim($q, 1)), 'a1', 'the second');
is($a->query_safe(claim($q, 1)), 'a2', 'the third');
$a->query_safe('SAVEPOINT s');
is($a->query_safe(claim($q)), 'a3 y', 'the others');
$a->query_safe('ROLLBACK TO s');
is(free_ones($q), 'y', 'after rollback to a savepoint');
is($a->query_safe(claim($q)), 'a3 y', 'the others again');
$a->query_safe('ROLLBACK');
is(free_ones($q), 'x y', 'after rollback');

$q = fresh('x', 'y', 'z');
$a->query_safe('BEGIN');
$a->query_safe("SELECT claim_release('$q', claim_id) FROM (SELECT claim_id FROM queue_claim('$q', 600, 0) LIMIT 1) AS c");
is(free_ones($q), '', 'a release under way');
is($a->query_safe(claim($q, 1)), $_, "released by oneself: $_")
  foreach qw(x y z);
$a->query_safe('COMMIT');

# with entries of the index in between that have no visible row, in the
# first look at a queue, too
foreach my $first (0, 1)
{
	$q = $first ? 'first' : fresh();
	$a->query_safe('BEGIN');
	$a->query_safe(push_sql($q, 'a1', 'a2', 'a3'));
	$a->query_safe(
		"SELECT message_delete('$q', id) FROM queue_messages('$q') WHERE body = '\"a2\"'"
	);
	$a->query_safe('SAVEPOINT s');
	$a->query_safe(push_sql($q, 'a4'));
	$a->query_safe('ROLLBACK TO s');
	is($a->query_safe(claim($q)), 'a1 a3', 'those that are left');
	$a->query_safe('ROLLBACK');
}
$b->query_safe("SELECT queue_create('both')");
$a->query_safe('BEGIN');
$a->query_safe(push_sql('both', 'a1'));
$b->query_safe('BEGIN');
$b->query_safe(push_sql('both', 'b1'));
$a->query_safe(push_sql('both', 'a2'));
is($a->query_safe(claim('both')), 'a1 a2', 'two push and claim: one');
is($b->query_safe(claim('both')), 'b1', 'and the other');
$a->query_safe('ROLLBACK');
$b->query_safe('COMMIT');

# Rows that somebody locks by hand

foreach my $end ('COMMIT', 'ROLLBACK')
{
	$q = fresh('m1', 'm2', 'm3');
	$a->query_safe('BEGIN');
	$a->query_safe(
		"SELECT FROM queue_data.message_0 AS m JOIN queue_data.queue AS q ON q.id = m.queue_id
			WHERE q.name = '$q' AND body = '\"m2\"' FOR UPDATE OF m");
	is($b->query_safe(claim($q)), 'm1 m3', 'a claim passes a row locked by hand');
	is($b->query_safe(claim($q)), '', 'nothing else is there');
	$a->query_safe($end);
	becomes_free($q, 'm2', "let go by $end");
}

# The twin of a push that was dropped

$q = fresh();
$b->query_safe("SELECT queue_push('$q', '\"twin\"', dedup_key => 'k')");
$a->query_safe('BEGIN');
$a->query_safe("SELECT queue_push('$q', '\"dropped\"', dedup_key => 'k')");
is(free_ones($q), '', 'a claim passes it');
$a->query_safe('COMMIT');
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
		$b->query_safe($_)
		  foreach 'BEGIN', $sql->($q), "PREPARE TRANSACTION 'p'";
		my $free = free_ones($q);
		is( $free,
			$what =~ /push/ ? 'm1 m2 m3' : 'm3',
			"$what, prepared: the rest is free");
		$a->query_safe("$end PREPARED 'p'");
		becomes_free($q, $left, "$what, $end PREPARED");
	}
}

# while other messages wait
$q = fresh(1 .. 40);
$b->query_safe($_)
  foreach 'BEGIN', "SELECT queue_push('$q', '\"high\"', priority => 9)",
  "PREPARE TRANSACTION 'p'";
is($b->query_safe(claim($q, 1)), '1', 'a claim passes a prepared push');
$b->query_safe("COMMIT PREPARED 'p'");
ok( $node->poll_query_until(
		'postgres', claim($q, 1) . ' -- until it comes', 'high'),
	'it comes before the others are used up');

$q = fresh(1 .. 60);
$b->query_safe($_)
  foreach 'BEGIN', "SELECT queue_push('$q', '\"high\"', delay => 1, priority => 9)",
  "PREPARE TRANSACTION 'p'";
is($b->query_safe(claim($q, 1)), '1', 'a claim passes a delayed one');
$b->query_safe("COMMIT PREPARED 'p'");
ok( $node->poll_query_until(
		'postgres', claim($q, 1) . ' -- until it comes', 'high'),
	'it comes before the others are used up');

# More queues than cursors

$b->query_safe(
	q{SELECT count(queue_push('e' || g % 300, to_jsonb(g))) FROM generate_series(0, 599) AS g}
);
my $all_of =
  q{SELECT count(*), count(DISTINCT c.body), sum(c.body::text::int) FROM generate_series(0, 299) AS g, queue_claim('e' || g, 600, 0, %d) AS c};
is($b->query_safe(sprintf $all_of, 1), '300|300|44850', 'one of each queue');
$a->query_safe('BEGIN');
$a->query_safe(push_sql('e7', '1000'));
is($a->query_safe(claim('e8', 1)), '308', 'a claim under way');
is( $a->query_safe(
		"SELECT queue_pop('e9') IS NOT NULL, queue_push('e10', '1001') > 0"),
	't|t', 'and others');
is($b->query_safe(sprintf $all_of, 5), '298|298|133633', 'the rest');
is($b->query_safe(sprintf $all_of, 5), '0|0|', 'no more');
$a->query_safe('COMMIT');
is(free_ones('e7'), '1000', 'a push that is committed after that');
is(free_ones('e10'), '1001', 'and another');
is(free_ones('e8'), '', 'a claim');
$a->query_safe('BEGIN');
is($a->query_safe(bodies(q{queue_pop('e7')})), '1000', 'a pop');
is($b->query_safe(sprintf $all_of, 5), '1|1|1001', 'what is left but for that');
$a->query_safe('ROLLBACK');
is(free_ones('e7'), '1000', 'is back when it is rolled back');

# Claims that end at twelve different times, with nobody there to end them

my @ttls = (1, 2, 3, 60, 120, 300, 600, 1200, 2400, 3600, 7200, 14400);
$q = fresh(1 .. 48);
$b->query_safe(claim($q, 1, $ttls[ $_ % 12 ])) foreach 0 .. 47;
my $soon = join ' ', grep { ($_ - 1) % 12 < 3 } 1 .. 48;
my $found;
do
{
	my $over =
	  "SELECT body #>> '{}' FROM queue_data.message WHERE queue = '$q' AND claimed_until <= clock_timestamp()";
	my %over = map { $_ => 1 } split /\n/, $b->query_safe($over);
	$found = free_ones($q);
	delete $over{$_} foreach split / /, $found;
	is(join(' ', sort keys %over), '', 'claims that ran out are over')
	  if %over || $found eq $soon;
	sleep 0.2;
  } while ($found ne $soon && $node->safe_psql('postgres',
	"SELECT count(*) > 0 FROM queue_data.message WHERE queue = '$q' AND claimed_at > clock_timestamp() - interval '8 s'"
  ) eq 't');
is($found, $soon, 'all of those that ran out, and no others');

# Priorities

$q = fresh();
$a->query_safe('BEGIN');
foreach my $p (3, 9, 0)
{
	$a->query_safe("SELECT queue_push('$q', '\"a$p\"', priority => $p)");
	$b->query_safe("SELECT queue_push('$q', '\"b$p\"', priority => $p)");
}
is(free_ones($q), 'b9 b3 b0', 'priorities, others passed');
$a->query_safe('COMMIT');
is(free_ones($q), 'a9 b9 a3 b3 a0 b0', 'priorities, all');
$a->query_safe('BEGIN');
is($a->query_safe(claim($q, 3)), 'a9 b9 a3', 'three of them claimed');
is($b->query_safe(claim($q, 1)), 'b3', 'the next');
$a->query_safe('ROLLBACK');
is(free_ones($q), 'a9 b9 a3 a0 b0', 'the higher ones first again');

# Delayed messages

$q = fresh('now');
$b->query_safe("SELECT queue_push('$q', '\"d$_\"', delay => $_)") foreach 1, 100;
is(free_ones($q), 'now', 'one is not due');
$a->query_safe('BEGIN');
$a->query_safe("SELECT queue_push('$q', '\"e1\"', delay => 1, priority => 5)");
$a->query_safe('SELECT pg_sleep(1.1)');
is(free_ones($q), 'now d1', 'one is due');
is($a->query_safe(claim($q)), 'e1 now d1', "one's own too");
is(free_ones($q), '', 'all are being claimed');
$a->query_safe('ROLLBACK');
is(free_ones($q), 'now d1', 'rolled back');
$id = $b->query_safe(
	"SELECT DISTINCT claim_id FROM queue_claim('$q', 600, 0)");
$a->query_safe('BEGIN');
$a->query_safe("SELECT claim_release('$q', '$id', 1)");
$a->query_safe('ROLLBACK');
$b->query_safe("SELECT claim_release('$q', '$id', 1)");
is(free_ones($q), '', 'released with a delay');
$b->query_safe('SELECT pg_sleep(1.1)');
is(free_ones($q), 'now d1', 'which is over');

# After the server was killed, and with a prepared transaction from before

$q = fresh(1 .. 6);
$b->query_safe("SELECT FROM queue_pop('$q')");
is($b->query_safe(claim($q, 1)), '2', 'claimed before the crash');
$a->query_safe($_)
  foreach 'BEGIN', push_sql($q, 'prepared'), "PREPARE TRANSACTION 'p'";
$a->query_safe('BEGIN');
$a->query_safe(claim($q, 1));
$a->query_safe(push_sql($q, 'lost'));
$node->safe_psql('postgres', 'SET synchronous_commit = on; SELECT pg_switch_wal()');
$node->stop('immediate');
$_->quit foreach $a, $b;
$node->start;
$a = $node->background_psql('postgres');
$b = $node->background_psql('postgres');
is($b->query_safe(claim($q, 1)), '3', 'after a crash, one by one');
is($b->query_safe(claim($q, 1)), '4', 'the second');
is($b->query_safe(claim($q)), '5 6', 'the rest');
$b->query_safe(push_sql($q, '7'));
is(free_ones($q), '7', 'a new one');
$b->query_safe("COMMIT PREPARED 'p'");
becomes_free($q, 'prepared 7', 'and a prepared one from before');
$_->quit foreach $a, $b;
