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
queue.max_availability_maps = 64
queue.min_claim_ttl = 1
queue.min_claim_grace = 0
});
$node->start;
$node->safe_psql('postgres', 'CREATE EXTENSION queue');

my $one = $node->background_psql('postgres');
my $two = $node->background_psql('postgres');
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

# What session two can claim now; it gives it back by a rollback.
sub free_ones
{
	my ($q) = @_;
	$two->query_safe('BEGIN');
	my $bodies = $two->query_safe(claim($q));
	$two->query_safe('ROLLBACK');
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
	$two->query_safe(push_sql($q, 'old'));
	$two->query_safe("SELECT FROM queue_pop('$q')");
	$two->query_safe(claim($q));
	$two->query_safe(push_sql($q, @bodies)) if @bodies;
	return $q;
}

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
my %act = (
	'claim' => sub { return claim($_[0], 2) },
	'pop' => sub { return bodies("queue_pop('$_[0]', 2)") },
	'delete' => sub {
		return
		  "SELECT FROM queue_messages('$_[0]', \"limit\" => 2), message_delete('$_[0]', id)";
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

# with entries of the index in between that have no visible row, in the
# first look at a queue, too
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

# Rows that somebody locks by hand

foreach my $end ('COMMIT', 'ROLLBACK')
{
	$q = fresh('m1', 'm2', 'm3');
	$one->query_safe('BEGIN');
	$one->query_safe(
		"SELECT FROM queue_data.message_0 AS m JOIN queue_data.queue AS q ON q.id = m.queue_id
			WHERE q.name = '$q' AND body = '\"m2\"' FOR UPDATE OF m");
	is($two->query_safe(claim($q)), 'm1 m3', 'a claim passes a row locked by hand');
	is($two->query_safe(claim($q)), '', 'nothing else is there');
	$one->query_safe($end);
	becomes_free($q, 'm2', "let go by $end");
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

# More queues than cursors

$two->query_safe(
	q{SELECT count(queue_push('e' || g % 300, to_jsonb(g))) FROM generate_series(0, 599) AS g}
);
my $all_of =
  q{SELECT count(*), count(DISTINCT c.body), sum(c.body::text::int) FROM generate_series(0, 299) AS g, queue_claim('e' || g, 600, 0, %d) AS c};
is($two->query_safe(sprintf $all_of, 1), '300|300|44850', 'one of each queue');
$one->query_safe('BEGIN');
$one->query_safe(push_sql('e7', '1000'));
is($one->query_safe(claim('e8', 1)), '308', 'a claim under way');
is( $one->query_safe(
		"SELECT (SELECT body FROM queue_pop('e9')), queue_push('e10', '1001') > 0"),
	'309|t', 'and others');
is($two->query_safe(sprintf $all_of, 5), '298|298|134233', 'the rest');
is($two->query_safe(sprintf $all_of, 5), '0|0|', 'no more');
$one->query_safe('COMMIT');
is(free_ones('e7'), '1000', 'a push that is committed after that');
is(free_ones('e10'), '1001', 'and another');
is(free_ones('e8'), '', 'a claim');
$one->query_safe('BEGIN');
is($one->query_safe(bodies(q{queue_pop('e7')})), '1000', 'a pop');
is($two->query_safe(sprintf $all_of, 5), '1|1|1001', 'what is left but for that');
$one->query_safe('ROLLBACK');
is(free_ones('e7'), '1000', 'is back when it is rolled back');

# Claims that end at twelve different times, with nobody there to end them

my @ttls = (1, 2, 3, 60, 120, 300, 600, 1200, 2400, 3600, 7200, 14400);
$q = fresh(1 .. 48);
$two->query_safe(claim($q, 1, $ttls[ $_ % 12 ])) foreach 0 .. 47;
my $soon = join ' ', grep { ($_ - 1) % 12 < 3 } 1 .. 48;
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
	"SELECT count(*) > 0 FROM queue_data.message WHERE queue = '$q' AND claimed_at > clock_timestamp() - interval '8 s'"
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
$two->query_safe("SELECT queue_push('$q', '\"d$_\"', delay => $_)") foreach 1, 100;
is(free_ones($q), 'now', 'one is not due');
$one->query_safe('BEGIN');
$one->query_safe("SELECT queue_push('$q', '\"e1\"', delay => 1, priority => 5)");
$one->query_safe('SELECT pg_sleep(1.1)');
is(free_ones($q), 'now d1', 'one is due');
is($one->query_safe(claim($q)), 'e1 now d1', "one's own too");
is(free_ones($q), '', 'all are being claimed');
$one->query_safe('ROLLBACK');
is(free_ones($q), 'now d1', 'rolled back');
$id = $two->query_safe(
	"SELECT DISTINCT claim_id FROM queue_claim('$q', 600, 0)");
$one->query_safe('BEGIN');
$one->query_safe("SELECT claim_release('$q', '$id', 1)");
$one->query_safe('ROLLBACK');
$two->query_safe("SELECT claim_release('$q', '$id', 1)");
is(free_ones($q), '', 'released with a delay');
$two->query_safe('SELECT pg_sleep(1.1)');
is(free_ones($q), 'now d1', 'which is over');

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
$one = $node->background_psql('postgres');
$two = $node->background_psql('postgres');
is($two->query_safe(claim($q, 1)), '3', 'after a crash, one by one');
is($two->query_safe(claim($q, 1)), '4', 'the second');
is($two->query_safe(claim($q)), '5 6', 'the rest');
$two->query_safe(push_sql($q, '7'));
is(free_ones($q), '7', 'a new one');
$two->query_safe("COMMIT PREPARED 'p'");
becomes_free($q, 'prepared 7', 'and a prepared one from before');
$_->quit foreach $one, $two;

# All at once: 16 sessions, queues with few messages, cursors that are evicted
# all the time.  st.pushed and st.gone are written by the transactions that
# push and delete, so what is in the one and not in the other must be there.

$node->safe_psql(
	'postgres', q{
CREATE SCHEMA st;
CREATE TABLE st.pushed (q text, body int);
CREATE TABLE st.keyed (body int);	-- the run of a twin may stand for these
CREATE TABLE st.gone (q text, body int);
CREATE TABLE st.claim (q text, claim_id text);
CREATE SEQUENCE st.number;
CREATE SEQUENCE st.empty;	-- not undone by a rollback
CREATE SEQUENCE st.twice;
CREATE SEQUENCE st.lost;

CREATE FUNCTION st.push(q text) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
	n int := nextval('st.number');
	key text := CASE WHEN random() < 0.15 THEN (3 * random())::int::text END;
BEGIN
	IF queue_push(q, to_jsonb(n), delay => (random() < 0.1)::int,
		priority => (9 * random() * random())::int,
		dedup_key => key) > 0
	THEN
		INSERT INTO st.pushed VALUES (q, n);
		INSERT INTO st.keyed SELECT n WHERE key IS NOT NULL;
	END IF;
END$$;

CREATE FUNCTION st.act(q text) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
	r float := random();
	c text;
	message queue_message;
BEGIN
	IF r < 0.3 THEN
		PERFORM st.push(q);
	ELSIF r < 0.55 THEN
		INSERT INTO st.claim
			SELECT DISTINCT q, claim_id FROM queue_claim(q, 1, 0, 1 + (3 * random())::int);
	ELSIF r < 0.65 THEN
		INSERT INTO st.gone
			SELECT q, body::int FROM queue_pop(q, 1 + random()::int);
	ELSIF r < 0.75 THEN
		PERFORM FROM queue_data.message_0 AS m JOIN queue_data.queue AS k ON k.id = m.queue_id
			WHERE k.name = q ORDER BY random() LIMIT 1 FOR UPDATE OF m SKIP LOCKED;
	ELSE
		DELETE FROM st.claim AS t WHERE ctid = (SELECT ctid FROM st.claim AS s
			WHERE s.q = act.q ORDER BY random() LIMIT 1 FOR UPDATE SKIP LOCKED)
			RETURNING claim_id INTO c;
		IF c IS NULL THEN
			NULL;
		ELSIF r < 0.85 THEN
			PERFORM claim_release(q, c, (random() < 0.2)::int);
		ELSIF r < 0.9 THEN
			PERFORM claim_renew(q, c, 1);
			INSERT INTO st.claim VALUES (q, c);
		ELSE
			FOR message IN SELECT * FROM claim_messages(q, c) LOOP
				IF message_delete(q, message.id, c) THEN
					INSERT INTO st.gone VALUES (q, message.body::int);
				END IF;
			END LOOP;
		END IF;
	END IF;
END$$;

-- with an error in the midst of it, or after it
CREATE FUNCTION st.try(q text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	PERFORM st.act(q);
	IF random() < 0.15 THEN
		RAISE division_by_zero;
	END IF;
EXCEPTION
	WHEN division_by_zero OR lock_not_available OR deadlock_detected
		OR SQLSTATE 'QU001' OR SQLSTATE 'QU002' OR SQLSTATE 'QU003' THEN NULL;
END$$;

-- One of more tokens than there are sessions, each of which has one at most:
-- there always is a free one.  A claim that gave up waiting for others to
-- look says nothing about that.
CREATE FUNCTION st.take_token() RETURNS void LANGUAGE plpgsql AS $$
DECLARE
	began timestamptz := clock_timestamp();
	m queue_message;
BEGIN
	SELECT * INTO m FROM queue_claim('token', 600, 0, 1);
	PERFORM set_config('st.claim_id', coalesce(m.claim_id, ''), false),
		set_config('st.body', coalesce(m.body::text, ''), false);
	IF m.id IS NULL THEN
		IF clock_timestamp() < began + interval '0.9 s' THEN
			PERFORM nextval('st.empty');
		END IF;
	ELSIF NOT pg_try_advisory_lock(m.body::int) THEN
		PERFORM nextval('st.twice');
	END IF;
END$$;

-- before it is anybody else's
CREATE FUNCTION st.loosen_token() RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	claim_id text := current_setting('st.claim_id');
BEGIN
	IF claim_id <> '' THEN
		PERFORM pg_advisory_unlock(current_setting('st.body')::int);
	END IF;
	RETURN claim_id;
END$$;

CREATE FUNCTION st.release_token() RETURNS void LANGUAGE plpgsql AS $$
DECLARE
	c text := st.loosen_token();
BEGIN
	IF c <> '' AND claim_release('token', c) <> 1 THEN
		PERFORM nextval('st.lost');
	END IF;
END$$;

CREATE FUNCTION st.replace_token() RETURNS void LANGUAGE plpgsql AS $$
DECLARE
	c text := st.loosen_token();
BEGIN
	IF c <> '' THEN
		PERFORM claim_complete('token', c),
			queue_push('token', to_jsonb(nextval('st.number')::int));
	END IF;
END$$;

-- What is wrong with what a session finds that is alone: what is free must
-- be claimed before a claim is empty, all of it, each once.
CREATE FUNCTION st.check(which text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	now timestamptz := clock_timestamp();
	free int[];
	all_of_it int[];
	claimed int[] := '{}';
	batch int[];
BEGIN
	SELECT coalesce(array_agg(body::int), '{}'), coalesce(array_agg(body::int) FILTER (WHERE
			(claimed_until IS NULL OR claimed_until <= now) AND (due_at IS NULL OR due_at <= now)
			AND id NOT IN (SELECT id FROM queue_data.message_0 WHERE covered
				UNION ALL SELECT id FROM queue_data.delayed_0 WHERE covered)), '{}')
		INTO all_of_it, free FROM queue_data.message AS m WHERE m.queue = which;
	LOOP
		SELECT array_agg(body::int) INTO batch FROM queue_claim(which, 600, 0, 1 + (3 * random())::int);
		EXIT WHEN batch IS NULL;
		claimed := claimed || batch;
	END LOOP;
	RETURN concat_ws(', ',
		(SELECT 'hidden: ' || string_agg(body::text, ' ') FROM unnest(free) AS body WHERE body <> ALL (claimed)),
		(SELECT 'unknown: ' || string_agg(body::text, ' ') FROM unnest(claimed) AS body WHERE body <> ALL (all_of_it)),
		(SELECT 'twice: ' || string_agg(body::text, ' ') FROM
			(SELECT body FROM unnest(claimed) AS body GROUP BY body HAVING count(*) > 1) AS d));
END$$;

SELECT queue_create(name) FROM unnest(ARRAY['m1', 'm2', 'm3', 'token']) AS name;
SELECT queue_push('token', to_jsonb(nextval('st.number')::int)) FROM generate_series(1, 17);
SELECT st.push('m' || g % 3 + 1) FROM generate_series(1, 60) AS g;
});

my %scripts = (
	mixed => q{
\set q random(1, 3)
\set acts random(1, 3)
\set end random(1, 10)
BEGIN;
SELECT st.try('m:q');
\if :acts > 1
SAVEPOINT s;
SELECT st.try('m:q');
\endif
\if :acts > 2
ROLLBACK TO s;
SELECT st.try('m:q');
\endif
\if :end <= 2
ROLLBACK;
\elif :end = 3
PREPARE TRANSACTION 'p:client_id';
COMMIT PREPARED 'p:client_id';
\elif :end = 4
PREPARE TRANSACTION 'p:client_id';
\sleep 3 ms
ROLLBACK PREPARED 'p:client_id';
\else
COMMIT;
\endif
},
	token => q{
\set end random(1, 4)
\set ms random(0, 2)
BEGIN;
SELECT st.take_token();
\sleep :ms ms
\if :end = 1
SELECT st.loosen_token();
ROLLBACK;
\elif :end = 2
SELECT st.replace_token();
COMMIT;
\else
COMMIT;
SELECT st.release_token();
\endif
},
	others => q{
\set e random(0, 299)
SELECT count(*) FROM queue_claim('e:e', 600, 0, 1);
});
my $dir = PostgreSQL::Test::Utils::tempdir;
my @files;
my %weight = (mixed => 5, token => 4, others => 1);
foreach my $name (sort keys %scripts)
{
	append_to_file("$dir/$name.sql", $scripts{$name});
	push @files, '-f', "$dir/$name.sql\@$weight{$name}";
}
my $acts = 0;
foreach my $burst (1 .. 5)
{
	my ($out, $err);
	{
		local $ENV{PGOPTIONS} = '-c lock_timeout=50ms -c statement_timeout=10s -c synchronous_commit=off';
		($out, $err) = run_command(
			[
				'pgbench', '-h', $node->host, '-p', $node->port, '-n', '-c', 16,
				'-j', 2, '-T', 3, @files, 'postgres'
			]);
	}
	unlike($err, qr/error|aborted/i, "burst $burst: no unexpected error");
	$acts += $1 if $out =~ /actually processed: (\d+)/;
	$node->poll_query_until('postgres',
		q{SELECT count(*) = 0 FROM pg_stat_activity WHERE application_name = 'pgbench'}
	) or die 'sessions do not end';
	is( $node->safe_psql('postgres', "BEGIN; SELECT st.check('$_'); ROLLBACK"),
		'', "burst $burst: an empty claim means that nothing is free in $_")
	  foreach qw(m1 m2 m3 token);
}
cmp_ok($acts, '>', 500, 'the load was one');
note "$acts transactions; "
  . $node->safe_psql('postgres',
	'SELECT (SELECT count(*) FROM st.pushed), (SELECT count(*) FROM st.gone)');
is( $node->safe_psql('postgres', "SELECT is_called FROM st.$_"),
	'f', "no token was $_")
  foreach qw(empty twice lost);

# All claims have run out, and all delays, in two seconds.
sleep 2.1;
is( $node->safe_psql(
		'postgres', q{BEGIN;
		CREATE TEMP TABLE claimed AS SELECT name AS q, 0 AS body FROM unnest(ARRAY['m1']) AS name WHERE false;
		DO $$
		DECLARE
			n bigint := 1;
		BEGIN
			WHILE n > 0 LOOP
				INSERT INTO claimed SELECT name, body::int
					FROM unnest(ARRAY['m1', 'm2', 'm3']) AS name, queue_claim(name, 600, 0, 5);
				GET DIAGNOSTICS n = ROW_COUNT;
			END LOOP;
		END$$;
		SELECT 'hidden', * FROM (SELECT * FROM st.pushed EXCEPT ALL SELECT * FROM st.gone EXCEPT ALL SELECT * FROM claimed) AS h
			WHERE body NOT IN (SELECT body FROM st.keyed);
		SELECT 'too many', * FROM (SELECT * FROM claimed EXCEPT ALL (SELECT * FROM st.pushed EXCEPT ALL SELECT * FROM st.gone)) AS t;
		SELECT 'gone too often', * FROM (SELECT * FROM st.gone EXCEPT ALL SELECT * FROM st.pushed) AS g;
		ROLLBACK}),
	'',
	'what was pushed and not deleted can be claimed, each once');
is( $node->safe_psql('postgres',
		q{SELECT count(*), count(DISTINCT body) FROM queue_claim('token', 600, 0, 100)}),
	'17|17',
	'so can all tokens');

$node->stop;
done_testing();
