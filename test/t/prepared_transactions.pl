# Prepared transactions: what they pushed, claimed or deleted is neither
# there nor free until they are decided, by whichever session and after a
# restart too.

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
max_prepared_transactions = 10
});
$node->safe_psql('postgres',
	q{CREATE TABLE ids (name text, id bigint)});

# the queue anew, with messages m1 to m4
sub fresh
{
	$node->safe_psql(
		'postgres', q{
		SELECT queue_drop('q');
		SELECT queue_push_batch('q', ARRAY['"m1"', '"m2"', '"m3"', '"m4"']::jsonb[]);
		TRUNCATE ids;
		INSERT INTO ids SELECT body #>> '{}', id FROM queue_messages('q')});
	return;
}

sub prepare
{
	my ($sql) = @_;
	return $node->safe_psql('postgres', "BEGIN; $sql; PREPARE TRANSACTION 'p'");
}

sub end_prepared
{
	my ($end) = @_;
	$node->safe_psql('postgres', "$end PREPARED 'p'");
	return;
}

# The worker learns of the end a moment later.
sub soon
{
	my ($query, $expected, $name) = @_;
	my $got = $query->();

	for (my $tries = 10 * $PostgreSQL::Test::Utils::timeout_default;
		$got ne $expected && $tries > 0; $tries--)
	{
		sleep 0.1;
		$got = $query->();
	}
	is($got, $expected, $name);
	return;
}

sub free_ones
{
	return $node->safe_psql('postgres',
		q{BEGIN; SELECT coalesce(string_agg(body #>> '{}', ' '), '') FROM queue_claim('q', 600, 60, 100); ROLLBACK}
	);
}

foreach my $restart (0, 1)
{
	my $how = $restart ? 'after a restart' : 'without restart';

	foreach my $end ('COMMIT', 'ROLLBACK')
	{
		my $commit = $end eq 'COMMIT';

		# push
		fresh();
		prepare(q{SELECT queue_push('q', '"m5"'); SELECT queue_push('q', '"m0"', priority => 1)});
		$node->restart if $restart;
		is(free_ones(), 'm1 m2 m3 m4', "$how: a prepared push is not there");
		is( state_of(
				q{SET lock_timeout = '100ms'; SELECT queue_drop('q')}),
			'55P03',
			"$how: a drop waits for it");
		is( state_of(
				q{SET lock_timeout = '100ms'; SELECT queue_purge('q')}),
			'55P03',
			"$how: a purge too");
		end_prepared($end);
		soon(\&free_ones,
			$commit ? 'm0 m1 m2 m3 m4 m5' : 'm1 m2 m3 m4',
			"$how: push, $end");

		# claim
		fresh();
		my $claim =
		  (split /\n/,
			prepare(q{SELECT DISTINCT claim_id FROM queue_claim('q', 600, 60, 2)})
		  )[0];
		$node->restart if $restart;
		is(free_ones(), 'm3 m4', "$how: a prepared claim holds its messages");
		is( state_of(
				qq{SET lock_timeout = '100ms'; SELECT message_delete('q', id) FROM ids WHERE name = 'm1'}
			),
			'55P03',
			"$how: a delete by id waits for it");
		end_prepared($end);
		soon(\&free_ones, $commit ? 'm3 m4' : 'm1 m2 m3 m4', "$how: claim, $end");
		is( state_of("SELECT claim_complete('q', '$claim')"),
			$commit ? 'none' : 'QU001',
			"$how: its id, $end");

		# delete
		fresh();
		prepare(q{SELECT message_delete('q', id) FROM ids WHERE name = 'm2'});
		$node->restart if $restart;
		is(free_ones(), 'm1 m3 m4', "$how: a prepared delete hides its message");
		is( state_of(
				q{SET lock_timeout = '100ms'; SELECT message_delete('q', id) FROM ids WHERE name = 'm2'}
			),
			'55P03',
			"$how: a second delete waits for it");
		end_prepared($end);
		soon(\&free_ones,
			$commit ? 'm1 m3 m4' : 'm1 m2 m3 m4',
			"$how: delete, $end");

		# pop, and release of a claim made before
		fresh();
		$claim = $node->safe_psql('postgres',
			q{SELECT claim_id FROM queue_claim('q', 600, 60, 1)});
		prepare(
			qq{SELECT queue_pop('q'); SELECT claim_release('q', '$claim')});
		$node->restart if $restart;
		is(free_ones(), 'm3 m4', "$how: prepared pop and release");
		end_prepared($end);
		soon(\&free_ones,
			$commit ? 'm1 m3 m4' : 'm2 m3 m4',
			"$how: pop and release, $end");

		# keys
		fresh();
		$node->safe_psql('postgres',
			q{SELECT queue_push('q', '"twin"', dedup_key => 'k')});
		prepare(
			q{SELECT queue_push('q', '"dropped"', dedup_key => 'k');
			SELECT queue_push('q', '"first"', dedup_key => 'k2')});
		$node->restart if $restart;
		is(free_ones(), 'm1 m2 m3 m4',
			"$how: a prepared push that was dropped holds its twin back");
		is( state_of(
				q{SET lock_timeout = '100ms'; SELECT queue_push('q', '1', dedup_key => 'k2')}
			),
			'55P03',
			"$how: a push with a prepared key waits");
		end_prepared($end);
		soon(\&free_ones,
			$commit ? 'm1 m2 m3 m4 twin first' : 'm1 m2 m3 m4 twin',
			"$how: keys, $end");

		# a message that is replaced, and a key that holds for a time
		fresh();
		$node->safe_psql('postgres', q{SELECT queue_push('q', '"old"', dedup_key => 'k')});
		prepare(
			q{SELECT queue_push('q', '"new"', dedup_key => 'k', dedup => 'replace');
			SELECT message_delete('q', queue_push('q', '1', dedup_key => 'k2', dedup_for => 600))});
		$node->restart if $restart;
		is(free_ones(), 'm1 m2 m3 m4', "$how: a message that is being replaced is not free");
		end_prepared($end);
		soon(\&free_ones, 'm1 m2 m3 m4 ' . ($commit ? 'new' : 'old'), "$how: replaced, $end");
		is( $node->safe_psql('postgres',
				q{SELECT queue_push('q', '1', dedup_key => 'k2', dedup_for => 600) IS NULL}),
			$commit ? 't' : 'f', "$how: a key for a time, $end");

		# groups with a bound
		foreach my $bound (1, 2)
		{
			my $b = "$how, bound of $bound, $end";
			my $free = sub {
				return $node->safe_psql('postgres',
					q{BEGIN; SELECT coalesce(string_agg(body #>> '{}', ' '), '') FROM queue_claim('g', 600, 60, 100); ROLLBACK}
				);
			};
			my $anew = sub {
				$node->safe_psql(
					'postgres', qq{
					SELECT queue_drop('g');
					SELECT queue_create('g', '{"_group_concurrency": $bound}');
					SELECT queue_push_batch('g', ARRAY['"a1"', '"a2"', '"a3"', '"a4"']::jsonb[],
						group_keys => array_fill('a'::text, ARRAY[4]))});
			};

			$anew->();
			prepare(q{SELECT queue_claim('g', 600, 60, 1)});
			$node->restart if $restart;
			is($free->(), '', "$b: a prepared claim holds its group");
			end_prepared($end);
			soon($free,
				  !$commit ? ($bound == 1 ? 'a1' : 'a1 a2')
				: $bound == 1 ? ''
				: 'a2',
				"$b: its end");

			$anew->();
			prepare(q{SELECT queue_pop('g')});
			$node->restart if $restart;
			is($free->(), '', "$b: a prepared pop holds its group");
			end_prepared($end);
			soon($free,
				join(' ', map { 'a' . ($_ + $commit) } 1 .. $bound),
				"$b: its end");

			# an end of a claim makes room when it is committed
			$anew->();
			my $held = $node->safe_psql('postgres',
				q{SELECT DISTINCT claim_id FROM queue_claim('g', 600, 60, 100)});
			prepare(qq{SELECT claim_complete('g', '$held')});
			$node->restart if $restart;
			is($free->(), '', "$b: a prepared completion makes no room");
			end_prepared($end);
			soon($free,
				$commit
				? join(' ', map { 'a' . ($_ + $bound) } 1 .. $bound)
				: '',
				"$b: it does when it is committed");
		}

		# a queue that only the prepared transaction knows
		$node->safe_psql('postgres', q{SELECT queue_drop('new')});
		prepare(q{SELECT queue_push('new', '"n"')});
		$node->restart if $restart;
		is( $node->safe_psql(
				'postgres',
				q{SELECT queue_exists('new'), (SELECT count(*) FROM queue_claim('new', 600, 60))}
			),
			'f|0',
			"$how: a prepared queue is not there");
		end_prepared($end);
		is( $node->safe_psql(
				'postgres',
				q{SELECT queue_exists('new'), (SELECT count(*) FROM queue_claim('new', 600, 60))}
			),
			$commit ? 't|1' : 'f|0',
			"$how: new queue, $end");
	}
}

# The session that prepares goes on with a clean slate.
fresh();
is( $node->safe_psql(
		'postgres', q{
		BEGIN; SELECT body FROM queue_claim('q', 600, 60, 1); PREPARE TRANSACTION 'p';
		SELECT body FROM queue_claim('q', 600, 60, 1);
		ROLLBACK PREPARED 'p';
		SELECT FROM pg_sleep(1.1);
		SELECT body FROM queue_claim('q', 600, 60, 1)}),
	qq{"m1"\n"m2"\n"m1"},
	'one session prepares, claims and rolls back');

# metadata and pause
$node->safe_psql('postgres', q{SELECT count(*) FROM queue_claim('q', 600, 60)});
prepare(q{SELECT queue_pause('q')});
$node->safe_psql('postgres', q{COMMIT PREPARED 'p'; SELECT queue_push('q', '"m5"')});
is(free_ones(), '', 'a pause that was prepared');

$node->stop;
done_testing();
