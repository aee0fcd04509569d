# More queues with messages than there is room for maps: claims read those without one,
# and lose nothing, neither step by step nor under load.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../perl";

use MapTest;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(sleep time);

start_server();

# More queues than places

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
is($two->query_safe(sprintf $all_of, 5), '1|1|1001', 'what is left besides');
$one->query_safe('ROLLBACK');
is(free_ones('e7'), '1000', 'free again after the rollback');
$_->quit foreach $one, $two;

# The log says so, once in an hour, and the view shows it.
my $no_room = qr/LOG:  there is no room in shared memory for all active queues/;
my $until = time + 120;
sleep 0.1 until slurp_file($node->logfile) =~ $no_room || time > $until;
like(slurp_file($node->logfile), $no_room, 'that there is no room is logged');
is( $node->safe_psql('postgres',
		q{SELECT used >= 64, places, bytes > 64000 FROM queue_data.queue_memory WHERE what = 'queues'}),
	't|128|t', 'one owner has half of the places');
is( $node->safe_psql('postgres',
		q{CREATE ROLE ann IN ROLE queue_producer;
		SET ROLE ann;
		SELECT count(queue_push('ann' || i, '1')) FROM generate_series(1, 50) AS i;
		RESET ROLE;
		SELECT count(*) FROM queue_data.availability_map WHERE queue ~ '^ann'}),
	"50\n50", 'another one gets some of the others');

# These are empty now, and others get their places.
$node->safe_psql('postgres', q{SELECT count(queue_purge('e' || g)) FROM generate_series(0, 299) AS g});
$until = time + 180;
my $maps = q{SELECT count(*) FROM queue_data.availability_map WHERE project = 'turn'};
do
{
	sleep 0.2;
	$node->safe_psql('postgres', q{SET queue.project = 'turn';
		SELECT count(queue_push('t' || i, '1')) FROM generate_series(0, 69) AS i});
} while ($node->safe_psql('postgres', $maps) < 64 && time < $until);
is($node->safe_psql('postgres', $maps), '64', 'queues without messages give their places back');

# A claim from any of these queues does not read all of them each time, and yet
# one without a map has its turn, while those that have one have more to claim than
# all the calls take.  The worker, which would give it a map, stands still.
my $pid = $node->safe_psql('postgres',
	q{SELECT pid FROM queue_data.queue_workers WHERE database = current_database()});
kill 'STOP', $pid or die "could not stop the worker: $!";
my ($mapped, $turn, $before, $after) = split /\n/,
  $node->safe_psql(
	'postgres', q{
SET queue.project = 'turn';
SELECT FROM queue_push('lonely', '0');
DO $$
BEGIN
	FOR i IN 0 .. 209 LOOP
		PERFORM queue_push_batch('t' || i % 70, array_fill('1'::jsonb, '{100}'));
		COMMIT;
	END LOOP;
END$$;
SELECT count(*) FROM queue_data.availability_map WHERE project = 'turn' AND queue = 'lonely';
DO $$
DECLARE
	n int := 0;
BEGIN
	LOOP
		n := n + 1;
		EXIT WHEN n > 10000 OR
			(SELECT queue FROM queue_claim_any(NULL, 600, 60, 1)) = 'lonely';
		COMMIT;
	END LOOP;
	PERFORM set_config('st.n', n::text, false);
END$$;
SELECT current_setting('st.n')::int;
CREATE FUNCTION rows_read() RETURNS bigint LANGUAGE sql AS $$
	SELECT sum(pg_stat_get_xact_tuples_returned(indexrelid)) FROM pg_index
	WHERE indrelid = 'queue_data.queue'::regclass $$;
BEGIN;
SELECT rows_read();
SELECT count((SELECT count(*) FROM queue_claim_any(NULL, 600, 60, 1 + i * 0)))
	FROM generate_series(1, 128) AS i \g /dev/null
SELECT rows_read();
COMMIT});
my $read = $after - $before;
kill 'CONT', $pid;
is($mapped, '0', 'a queue without a map');
cmp_ok($turn, '<=', 10000, 'has its turn');
note "in call $turn";
cmp_ok($read, '<', 128 * 70 / 5, 'and most calls do not read all queues');
note "128 calls read $read rows";

# All at once: 16 sessions, queues with few messages, which get a place and lose it all
# the time.  st.pushed and st.gone are written by the transactions that
# push and delete, so what is in the one and not in the other must be there.

$node->safe_psql(
	'postgres', q{
CREATE SCHEMA st;
CREATE TABLE st.pushed (q text, body int);
CREATE TABLE st.keyed (body int);	-- the run of a twin may cover these
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

-- the same, perhaps with an error during or after it
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
-- there always is a free one.  A claim that gave up waiting for other
-- claims proves nothing.
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

-- before another session can claim it
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

# More of them on a machine that is so slow that five prove nothing
for (my $burst = 1; $burst <= 5 || $acts <= 500 && $burst <= 100; $burst++)
{
	my ($out, $err);
	{
		local $ENV{PGOPTIONS} = '-c lock_timeout=50ms -c statement_timeout=600s -c synchronous_commit=off';
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

	# The worker moves what is due, and returns what was prepared; late if it
	# is busy.
	foreach my $q (qw(m1 m2 m3 token))
	{
		my $found;
		for my $try (1 .. 8)
		{
			sleep 0.7;
			$found = $node->safe_psql('postgres', "BEGIN; SELECT st.check('$q'); ROLLBACK");
			last if $found eq '';
		}
		is($found, '', "burst $burst: an empty claim means that nothing is free in $q");
	}
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
my @lines = slurp_file($node->logfile) =~ /$no_room/g;
is(scalar @lines, 1, 'that is logged once');
done_testing();
