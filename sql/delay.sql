-- Delayed messages.

CREATE EXTENSION queue;
SET queue.min_claim_ttl = 1;
SET queue.min_claim_grace = 0;
SET queue.min_message_ttl = 1;
\set VERBOSITY sqlstate

SELECT queue_push('q', '"later"', delay => 1) AS later \gset
SELECT queue_push('q', '"much later"', delay => 1000) AS much \gset
SELECT queue_push('q', '"now"') AS now \gset
SELECT queue_push('q', '"now, too"', delay => 0) AS now2 \gset
SELECT cardinality(queue_push_batch('q', '{"\"batch, later\""}', delay => 1000));
SELECT cardinality(queue_post('q', '[{"body": "post, later", "delay": 1000}]'));
SELECT :later < :much AND :much < :now AND :now < :now2 AS ids_grow;
-- Before it is due, it is neither claimed nor popped, and listed only on
-- request.  It can be read by its id, and deleted.
SELECT queue_push('never', '1', delay => 1000) AS never \gset
SELECT count(*) FROM queue_claim('never', 60, 60);
SELECT count(*) FROM queue_claim_any('{never}', 60, 60);
SELECT count(*) FROM claim_next('never', NULL, 60, 60);
SELECT count(*) FROM queue_pop('never');
SELECT count(*) FROM queue_messages('never');
SELECT count(*) FROM queue_messages('never', include_claimed => true);
SELECT body, claim_id, claim_count FROM queue_messages('never', include_delayed => true);
SELECT body FROM message_get('never', :never);
SELECT free, claimed, delayed, total, oldest_id = :never AS oldest
    FROM queue_stats('never');
SELECT message_delete('never', :never);
SELECT message_delete('never', :never);
SELECT total FROM queue_stats('never');

-- When due, it is like any other, with its id and so with its position in the
-- order, also before the first claim.
SELECT pg_sleep(1.1);
SELECT body FROM queue_messages('q');
SELECT free, delayed, total FROM queue_stats('q');
SELECT body FROM message_get('q', :later);
SELECT id = :later AS same_id, body, claim_count FROM queue_claim('q', 600, 60);
SELECT claim_id IS NOT NULL AS claimed FROM message_get('q', :later);
SELECT claimed, delayed, total FROM queue_stats('q');
-- deleted when due, without a claim in between
SELECT queue_push('q2', '1', delay => 1) AS id1 \gset
SELECT queue_push('q2', '2', delay => 1) AS id2 \gset
SELECT queue_push('q2', '3', delay => 1, priority => 1) AS id3 \gset
SELECT pg_sleep(1.1);
SELECT message_delete('q2', :id1);
SELECT body FROM queue_messages('q2', include_delayed => true);
-- popped when due
SELECT body FROM queue_pop('q2', 10);
SELECT total FROM queue_stats('q2');

-- A claim that moves due messages and is rolled back leaves them.
SELECT queue_push('q3', '1', delay => 1) AS id1 \gset
SELECT queue_push('q3', '2', delay => 1) > 0 AS pushed;
SELECT pg_sleep(1.1);
BEGIN;
SELECT body FROM queue_claim('q3', 60, 60, 1);
ROLLBACK;
SELECT free, delayed FROM queue_stats('q3');
BEGIN;
SAVEPOINT s;
SELECT body FROM queue_pop('q3', 1);
ROLLBACK TO s;
SELECT body, claim_count FROM queue_claim('q3', 60, 60, 1);
COMMIT;
SELECT id = :id1 AS first, claim_id IS NOT NULL AS claimed
    FROM queue_messages('q3', include_claimed => true);

-- many due at once
SELECT cardinality(queue_push_batch('q4', array_agg(to_jsonb(i) ORDER BY i), delay => 1))
    FROM generate_series(1, 2500) i;
SELECT pg_sleep(1.1);
SELECT free, delayed FROM queue_stats('q4');
SET queue.max_claim_limit = 10000;
SELECT array_agg(body) FROM queue_claim('q4', 600, 60, 3);
\set VERBOSITY terse
DO $$
DECLARE
    page jsonb[];
    seen jsonb[] := '{}';
BEGIN
    LOOP
        page := ARRAY(SELECT body FROM queue_pop('q4', 300));
        EXIT WHEN cardinality(page) = 0;
        seen := seen || page;
        COMMIT;
    END LOOP;
    RAISE INFO 'the others, each once and in order: %',
        seen = ARRAY(SELECT to_jsonb(i) FROM generate_series(4, 2500) i);
END
$$;
\set VERBOSITY sqlstate
RESET queue.max_claim_limit;
SELECT free, claimed, delayed FROM queue_stats('q4');

-- In the order of their ids, not in that in which they become due.
SELECT queue_push('q5', '"pushed first, due last"', delay => 2) > 0 AS pushed;
SELECT queue_push('q5', '"pushed last, due first"', delay => 1) > 0 AS pushed;
SELECT pg_sleep(2.1);
SELECT body FROM queue_claim('q5', 60, 60);

DROP EXTENSION queue;
