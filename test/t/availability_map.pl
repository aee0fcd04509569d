# Availability maps, which say where a claim scans: what a transaction frees
# is found at once, however the transaction ends; a transaction claims its own
# messages; priorities, delays and the ends of claims are heeded.  The view
# queue_data.availability_map shows what they say.
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

my $q;

# A push that ends after a claim has passed it

$q = fresh();
$one->query_safe('BEGIN');
$one->query_safe(push_sql($q, 'a1', 'a2'));
$two->query_safe(push_sql($q, 'b1'));
is(free_ones($q), 'b1', 'a claim passes a push under way');
$one->query_safe('COMMIT');
is(free_ones($q), 'a1 a2 b1', 'which is there once it is committed');

$q = fresh('b1');
$one->query_safe('BEGIN');
$one->query_safe(push_sql($q, 'a1'));
$one->query_safe('SAVEPOINT s');
$one->query_safe(push_sql($q, 'a2'));
is(free_ones($q), 'b1', 'a claim passes it in a subtransaction too');
$one->query_safe('ROLLBACK TO s');
$one->query_safe(push_sql($q, 'a3'));
is(free_ones($q), 'b1', 'and after its rollback');
$one->query_safe('COMMIT');
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
foreach my $how (sort keys %begin)
{
	foreach my $what (sort keys %act)
	{
		$q = fresh('m1', 'm2', 'm3');
		my $s =
		  $how eq 'end of the session' ? $node->background_psql('postgres') : $one;
		$s->query_safe($_) foreach @{ $begin{$how} };
		$s->query_safe($act{$what}->($q));
		is(free_ones($q), 'm3', "$what, not ended: the rest is free");
		if ($how eq 'end of the session')
		{
			$s->quit;
			becomes_free($q, 'm1 m2 m3', "$what, $how: all is free");
			next;
		}
		$one->query_safe($rollback{$how});
		is(free_ones($q), 'm1 m2 m3', "$what, rollback of a $how: all is free");
		next if $how eq 'transaction';
		$one->query_safe('COMMIT');
		is(free_ones($q), 'm1 m2 m3', "$what, rollback of a $how: it stays so");
	}
}

$q = fresh('m1', 'm2', 'm3');
is( $two->query_safe(
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

my $id = $two->query_safe(
	"SELECT claim_id FROM queue_claim('$q', 1, 0, 1)");
$one->query_safe('BEGIN');
$one->query_safe("SELECT claim_release('$q', '$id')");
is(free_ones($q), 'm3', 'a release under way');
$one->query_safe('ROLLBACK');
$two->query_safe('SELECT pg_sleep(1)');
is(free_ones($q), 'm2 m3', 'rolled back, and the claim ran out');
$id = $two->query_safe("SELECT claim_id FROM queue_claim('$q', 600, 0, 1)");
is(free_ones($q), 'm3', 'claimed again');
$two->query_safe("SELECT claim_release('$q', '$id')");
is(free_ones($q), 'm2 m3', 'and released');
$id = $two->query_safe("SELECT claim_id FROM queue_claim('$q', 600, 0, 1)");
$two->query_safe("SELECT claim_renew('$q', '$id', 1)");
is(free_ones($q), 'm3', 'a claim that was renewed to end earlier');
$two->query_safe('SELECT pg_sleep(1)');
is(free_ones($q), 'm2 m3', 'and ran out');

# Messages of one's own that are not committed

$q = fresh('x');
$one->query_safe('BEGIN');
$one->query_safe(push_sql($q, 'a1', 'a2', 'a3'));
$two->query_safe(push_sql($q, 'y'));
is(free_ones($q), 'x y', 'others do not get them');
is($one->query_safe(claim($q, 1)), 'x', "one's own, one by one");
is($one->query_safe(claim($q, 1)), 'a1', 'the second');
is($one->query_safe(claim($q, 1)), 'a2', 'the third');
$one->query_safe('SAVEPOINT s');
is($one->query_safe(claim($q)), 'a3 y', 'the others');
$one->query_safe('ROLLBACK TO s');
is(free_ones($q), 'y', 'after rollback to a savepoint');
is($one->query_safe(claim($q)), 'a3 y', 'the others again');
$one->query_safe('ROLLBACK');
is(free_ones($q), 'x y', 'after rollback');

$q = fresh('x', 'y', 'z');
$one->query_safe('BEGIN');
$one->query_safe("SELECT claim_release('$q', claim_id) FROM (SELECT claim_id FROM queue_claim('$q', 600, 0) LIMIT 1) AS c");
is(free_ones($q), '', 'a release under way');
is($one->query_safe(claim($q, 1)), $_, "released by oneself: $_")
  foreach qw(x y z);
$one->query_safe('COMMIT');

# with entries of the index in between that have no visible row, also in the
# first scan of a queue
foreach my $first (0, 1)
{
	$q = $first ? 'first' : fresh();
	$one->query_safe('BEGIN');
	$one->query_safe(push_sql($q, 'a1', 'a2', 'a3'));
	$one->query_safe(
		"SELECT message_delete('$q', id) FROM queue_messages('$q') WHERE body = '\"a2\"'"
	);
	$one->query_safe('SAVEPOINT s');
	$one->query_safe(push_sql($q, 'a4'));
	$one->query_safe('ROLLBACK TO s');
	is($one->query_safe(claim($q)), 'a1 a3', 'those that are left');
	$one->query_safe('ROLLBACK');
}
$two->query_safe("SELECT queue_create('both')");
$one->query_safe('BEGIN');
$one->query_safe(push_sql('both', 'a1'));
$two->query_safe('BEGIN');
$two->query_safe(push_sql('both', 'b1'));
$one->query_safe(push_sql('both', 'a2'));
is($one->query_safe(claim('both')), 'a1 a2', 'two push and claim: one');
is($two->query_safe(claim('both')), 'b1', 'and the other');
$one->query_safe('ROLLBACK');
$two->query_safe('COMMIT');

# Claims that end at twelve different times, without a worker

my @ttls = (1, 2, 3, 900, 1000, 1100, 1150, 1200, 2400, 3600, 7200, 14400);
$q = fresh(1 .. 48);
$two->query_safe(claim($q, 1, $ttls[ $_ % 12 ])) foreach 0 .. 47;

# On a slow machine the first claims run out meanwhile, and the next ones take
# their messages.
my $soon = $two->query_safe(
	"SELECT string_agg(body #>> '{}', ' ' ORDER BY id) FROM queue_data.message
	WHERE queue = '$q' AND coalesce(claimed_until < clock_timestamp() + interval '100 s', true)"
);
my $found;
do
{
	my $over =
	  "SELECT body #>> '{}' FROM queue_data.message WHERE queue = '$q' AND claimed_until <= clock_timestamp()";
	my %over = map { $_ => 1 } split /\n/, $two->query_safe($over);
	$found = free_ones($q);
	delete $over{$_} foreach split / /, $found;
	is(join(' ', sort keys %over), '', 'claims that ran out are over')
	  if %over || $found eq $soon;
	sleep 0.2;
  } while ($found ne $soon && $node->safe_psql('postgres',
	"SELECT max(claimed_at) > clock_timestamp() - interval '5 min' FROM queue_data.message WHERE queue = '$q'"
  ) eq 't');
is($found, $soon, 'all of those that ran out, and no others');

# Priorities

$q = fresh();
$one->query_safe('BEGIN');
foreach my $p (3, 9, 0)
{
	$one->query_safe("SELECT queue_push('$q', '\"a$p\"', priority => $p)");
	$two->query_safe("SELECT queue_push('$q', '\"b$p\"', priority => $p)");
}
is(free_ones($q), 'b9 b3 b0', 'priorities, others passed');
$one->query_safe('COMMIT');
is(free_ones($q), 'a9 b9 a3 b3 a0 b0', 'priorities, all');
$one->query_safe('BEGIN');
is($one->query_safe(claim($q, 3)), 'a9 b9 a3', 'three of them claimed');
is($two->query_safe(claim($q, 1)), 'b3', 'the next');
$one->query_safe('ROLLBACK');
is(free_ones($q), 'a9 b9 a3 a0 b0', 'the higher ones first again');

# Delayed messages

$q = fresh('now');
$two->query_safe("SELECT queue_push('$q', '\"d100\"', delay => 600)");
is(free_ones($q), 'now', 'one is not due');
$two->query_safe("SELECT queue_push('$q', '\"d1\"', delay => 1)");
$one->query_safe('BEGIN');
$one->query_safe("SELECT queue_push('$q', '\"e1\"', delay => 1, priority => 5)");
$one->query_safe('SELECT pg_sleep(1.1)');
is(free_ones($q), 'now d1', 'one is due');
is($one->query_safe(claim($q)), 'now d1', "one's own is not claimable before the commit");
is(free_ones($q), '', 'all are being claimed');
$one->query_safe('ROLLBACK');
is(free_ones($q), 'now d1', 'rolled back');
$id = $two->query_safe(
	"SELECT DISTINCT claim_id FROM queue_claim('$q', 600, 0)");
$one->query_safe('BEGIN');
$one->query_safe("SELECT claim_release('$q', '$id', 1)");
$one->query_safe('ROLLBACK');
my $far = fresh('far');
$two->query_safe(
	"SELECT claim_release('$far', claim_id, 600) FROM queue_claim('$far', 600, 0)");
is(free_ones($far), '', 'released with a delay');
$two->query_safe("SELECT claim_release('$q', '$id', 1)");
$two->query_safe('SELECT pg_sleep(1.1)');
is(free_ones($q), 'now d1', 'which is over');

# The view of the maps, without a worker that learns what they do not know

sub map_of
{
	my ($queue) = @_;
	return $two->query_safe(
		"SELECT state, ready, unscanned, ranges, numbers, lanes, reservations, claims_wait, waiters FROM queue_data.availability_map WHERE queue = '$queue'"
	);
}

$_->quit foreach $one, $two;
$node->append_conf('postgresql.conf', 'queue.database_workers = 0');
$node->restart;
connect_sessions();

$q = fresh();
is(map_of($q), 'complete|f|0|0|0||0|f|0', 'the map of a queue that is new');
$one->query_safe("SELECT queue_push_batch('$q', '{1, 2, 3, 4}')");
is(map_of($q), 'complete|t|4|0|0||0|f|0', 'what was pushed is not scanned yet');
$two->query_safe(claim($q, 3));
is(map_of($q), 'complete|t|1|1|3||0|f|0',
	'what is claimed is a range, and one message is not scanned');
is( $two->query_safe(
		"SELECT next_visit = (SELECT max(claimed_until) FROM queue_data.message WHERE queue = '$q' AND state = 'claimed') FROM queue_data.availability_map WHERE queue = '$q'"
	),
	't',
	'the worker has to come when the claim ends');
is($two->query_safe(claim($q)), '4', 'the rest');
is(free_ones($q), '', 'nothing is left');
like(map_of($q), qr/^complete\|f\|0\|1\|4\|/, 'nothing is ready');
$one->query_until(qr/waiting/, "\\echo waiting\nCALL queue_wait('$q', 600000);\n");
ok( $node->poll_query_until(
		'postgres',
		"SELECT waiters = 1 FROM queue_data.availability_map WHERE queue = '$q'"),
	'a session waits');
$two->query_safe(push_sql($q, 'wake'));
$one->query_safe('SELECT');
like(map_of($q), qr/\|0$/, 'and waits no more');

$_->quit foreach $one, $two;
$node->restart;
connect_sessions();
is(map_of($q), '', 'after a restart there is no map');
$two->query_safe(push_sql($q, 'x'));
like(map_of($q), qr/^new\|t\|\|0\|\|\|/, 'a new one knows nothing');
is(free_ones($q), 'wake x', 'a claim scans all');
like(map_of($q), qr/^complete\|t\|0\|/, 'then it knows all');

# With groups
my $grouped = fresh();
$one->query_safe(
	"SELECT count(queue_push('$grouped', to_jsonb(g), group_key => 'g' || g % 2)) FROM generate_series(1, 4) AS g"
);
is(free_ones($grouped), '1 2 3 4', 'groups');
like(map_of($grouped), qr/^complete\|t\|0\|0\|0\|2\|/, 'two lanes');
$one->query_safe("SELECT queue_update('$grouped', '{\"_group_concurrency\": 1}')");
is(length free_ones($grouped), 3, 'one of each group');
like(map_of($grouped), qr/^new\|/,
	'a bound, and no worker that reads what was delivered');
$grouped = fresh();
$one->query_safe(
	"SELECT count(queue_push('$grouped', to_jsonb(g), group_key => 'g' || g)) FROM generate_series(1, 10000) AS g"
);
$two->query_safe(claim($grouped, 1));
like(map_of($grouped), qr/^full\|/, 'there is no room for all groups');

is( $two->query_safe(
		'SELECT count(*) - count(DISTINCT queue) FROM queue_data.availability_map'
	),
	'0',
	'one row for each queue');
$node->safe_psql('postgres', 'CREATE DATABASE other');
$node->safe_psql('other', 'CREATE EXTENSION queue');
is($node->safe_psql('other', 'SELECT count(*) FROM queue_data.availability_map'),
	'0', 'none of other databases');

$_->quit foreach $one, $two;
$node->stop;
done_testing();
