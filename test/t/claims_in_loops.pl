# A transaction that makes very many changes and claims in a loop, also with
# savepoints: each claim gets what is free, first in the order of claims, and reads
# little more than that, however many changes the transaction has made before.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../perl";

use QueueTest;
use Test::More;

start_server(
	q(
autovacuum = off
));

my $queues = 0;

# Index scans of messages that this transaction has made, and entries that they read
value(
	q{CREATE FUNCTION work() RETURNS bigint LANGUAGE sql AS $$
	SELECT sum(pg_stat_get_xact_numscans(indexrelid)
		+ pg_stat_get_xact_tuples_returned(indexrelid))
	FROM pg_index
	WHERE indrelid IN (SELECT oid FROM pg_class
		WHERE relnamespace = 'queue_data'::regnamespace
		AND relname ~ '^(message|delayed)_[0-9]+$')
	$$});

# Runs a loop in one transaction, with a queue of its own; returns how much it has
# read for each cycle.
sub work_of
{
	my ($n, $cycle) = @_;
	my $q = 'loop' . ++$queues;
	my $waiting = $cycle =~ /queue_push/ ? 0 : $n;
	$cycle =~ s/LOOP/$q/g;
	my ($before, $after) = value(
		qq{SELECT FROM queue_push_batch('$q', ARRAY(
			SELECT to_jsonb(i) FROM generate_series(0, $waiting) AS i));
		SELECT FROM queue_pop('$q', 1);
		BEGIN;
		SELECT work();
		DO \$\$
		DECLARE m queue_message;
		BEGIN
			FOR i IN 1 .. $n LOOP
				$cycle
			END LOOP;
		END \$\$;
		SELECT work();
		ROLLBACK}) =~ /(\d+)/g;

	return ($after - $before) / $n;
}

my $claim = q{SELECT * INTO STRICT m FROM queue_claim('LOOP', 600, 60, 1);};
my $complete = q{PERFORM claim_complete('LOOP', m.claim_id);};
my $push = q{PERFORM queue_push('LOOP', to_jsonb(i));};
my %cycle = (
	'claim and complete' => "$claim $complete",
	'push and claim' => "$push $claim",
	'push, claim and complete' => "$push $claim $complete",
	'push and pop' => "$push PERFORM queue_pop('LOOP', 1);",
	'push and claim with a higher priority' =>
	  "PERFORM queue_push('LOOP', to_jsonb(i), priority => 9); $claim",
	'claim, and release with a delay' =>
	  "$claim PERFORM claim_release('LOOP', m.claim_id, 60);",
	'claim in a block' => "BEGIN $claim EXCEPTION WHEN others THEN RAISE; END;",
	'push, claim, and complete in a block that fails' =>
	  "$push $claim BEGIN $complete PERFORM 1 / 0; EXCEPTION WHEN division_by_zero THEN END;",
	'push, and claim in a block that fails' =>
	  "$push BEGIN $claim PERFORM 1 / 0; EXCEPTION WHEN division_by_zero THEN END;",
	'claim and complete in a block that fails' =>
	  "BEGIN $claim $complete PERFORM 1 / 0; EXCEPTION WHEN division_by_zero THEN END;");
foreach my $name (sort keys %cycle)
{
	my $few = work_of(30, $cycle{$name});
	my $many = work_of(300, $cycle{$name});

	cmp_ok($many, '<', 2 * $few + 5, "$name: a cycle of 300 reads as much as one of 30");
}

# Each tenth cycle is rolled back to a savepoint, and the next one claims the same
# message.
is( value(
		q{SELECT FROM queue_push_batch('long', ARRAY(
			SELECT to_jsonb(i) FROM generate_series(1, 5000) AS i));
		DO $$
		DECLARE
			m queue_message;
			done int := 0;
		BEGIN
			FOR i IN 1 .. 5000 LOOP
				BEGIN
					SELECT * INTO STRICT m FROM queue_claim('long', 600, 60, 1);
					ASSERT m.body = to_jsonb(done + 1), m.body;
					PERFORM claim_complete('long', m.claim_id);
					PERFORM 1 / (i % 10);
					done := done + 1;
				EXCEPTION WHEN division_by_zero THEN
				END;
			END LOOP;
		END $$;
		SELECT count(*), min(body::int) FROM queue_messages('long', "limit" => 1000)}),
	'500|4501', 'a long transaction');

# A claim or a pop gets what is free by the rows, in the order of claims.
value(
	q{CREATE TABLE held (claim_id text);
	CREATE FUNCTION free(n int) RETURNS bigint[] LANGUAGE sql AS $$
		SELECT ARRAY(SELECT id FROM queue_data.message
			WHERE queue = 'random' AND state = 'free'
			ORDER BY priority DESC, id LIMIT n) $$;
	CREATE FUNCTION try_claim(n int, pops boolean) RETURNS void
	LANGUAGE plpgsql AS $$
	DECLARE
		wanted bigint[] := free(n);
		got queue_message[];
	BEGIN
		got := CASE WHEN pops THEN ARRAY(SELECT m FROM queue_pop('random', n) AS m)
			ELSE ARRAY(SELECT m FROM queue_claim('random', 600, 60, n) AS m) END;
		IF ARRAY(SELECT id FROM unnest(got)) <> wanted THEN
			RAISE EXCEPTION 'free: %, got: %', wanted,
				ARRAY(SELECT id FROM unnest(got));
		END IF;
		INSERT INTO held SELECT claim_id FROM unnest(got)
			WHERE claim_id IS NOT NULL LIMIT 1;
	END $$;
	CREATE FUNCTION try_any(depth int, n int) RETURNS void LANGUAGE plpgsql AS $$
	DECLARE
		kind float;
		c text;
	BEGIN
		FOR i IN 1 .. n LOOP
			kind := random();
			SELECT claim_id INTO c FROM held ORDER BY random() LIMIT 1;
			IF kind < 0.3 THEN
				PERFORM queue_push('random', to_jsonb(i), priority => (random() * 2)::int,
					delay => CASE WHEN kind < 0.02 THEN 3600 END);
			ELSIF kind < 0.6 THEN
				PERFORM try_claim((random() * 3)::int + 1, kind < 0.35);
			ELSIF kind < 0.65 THEN
				PERFORM message_delete('random', u) FROM unnest(free(1)) AS u;
			ELSIF kind < 0.9 THEN
				DELETE FROM held WHERE claim_id = c;
				IF kind < 0.7 THEN
					PERFORM claim_release('random', c,
						CASE WHEN kind < 0.67 THEN 3600 ELSE 0 END);
				ELSIF kind < 0.8 AND c IS NOT NULL THEN
					PERFORM claim_complete('random', c);
				END IF;
			ELSIF depth < 4 THEN
				BEGIN
					PERFORM try_any(depth + 1, n / 3);
					PERFORM 1 / (random() * 2)::int;
				EXCEPTION WHEN division_by_zero THEN
				END;
			END IF;
		END LOOP;
	END $$});
foreach my $seed (1 .. 8)
{
	my $end = $seed % 2 ? 'COMMIT' : 'ROLLBACK';

	is( value(
			"SELECT setseed(0.$seed);
			BEGIN;
			SELECT FROM try_any(0, 60);
			$end;
			SELECT FROM try_claim(100, false)"),
		'', "random calls, seed $seed, then $end");
}

# What is claimed and rolled back to a savepoint is found again, though another
# session has looked for it where the map says, and has seen nothing.
my $one = $node->background_psql($db);
value(
	q{SELECT FROM queue_push('back', '0'); SELECT FROM queue_pop('back', 1);
	SELECT FROM queue_pop('back', 1)});
$one->query_safe(
	q{BEGIN; SELECT FROM queue_push_batch('back', '{1,2}');
	SAVEPOINT s; SELECT FROM queue_claim('back', 600, 60, 1); ROLLBACK TO s});
is(value(q{SELECT count(*) FROM queue_claim('back', 600, 60, 2)}),
	'0', 'others find nothing');
is($one->query_safe(q{SELECT body FROM queue_claim('back', 600, 60, 2)}),
	"1\n2", 'the transaction finds both');
$one->quit;

# Messages that it has claimed itself are free again when the claim ends.
is( value(
		q{SET queue.min_claim_ttl = 1;
		SET queue.min_claim_grace = 0;
		BEGIN;
		SELECT FROM queue_push_batch('short', '{1,2}');
		SELECT body FROM queue_claim('short', 1, 0, 1);
		SAVEPOINT s;
		SELECT pg_sleep(1.1);
		SELECT body FROM queue_claim('short', 600, 0, 1);
		SELECT body FROM queue_claim('short', 600, 0, 2);
		ROLLBACK TO s;
		SELECT body FROM queue_claim('short', 600, 0, 2);
		SELECT count(*) FROM queue_claim('short', 600, 0, 2)}),
	"1\n\n1\n2\n1\n2\n0", 'claims that end in the transaction');

$node->stop;
done_testing();
