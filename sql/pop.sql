-- queue_pop: free messages, deleted as they are returned.

CREATE EXTENSION queue;
SET queue.min_claim_ttl = 1;
SET queue.min_message_ttl = 1;
\set VERBOSITY sqlstate

SELECT queue_push_batch('q', '{1, 2, 3, 4, 5}') IS NOT NULL AS pushed;
SELECT queue_push('q', '6', priority => 3) AS id6 \gset
SELECT queue_push('q', '7', delay => 100) > 0 AS pushed;
SELECT queue_push('q', '8', 1) > 0 AS pushed;
-- one by default; the highest priority first
SELECT id = :id6 AS id, queue, body, ttl, age BETWEEN 0 AND 600 AS age,
       claim_id, claim_count, priority, created_at <= clock_timestamp() AS created
    FROM queue_pop('q');
SELECT count(*) FROM message_get('q', :id6);
SELECT body FROM queue_pop('q', 2);
-- never claimed, delayed or expired ones
SELECT min(claim_id) AS claim FROM queue_claim('q', 600, 60, 1) \gset
SELECT pg_sleep(1.1);
SELECT body FROM queue_pop('q', 100);
SELECT count(*) FROM queue_pop('q');
SELECT body FROM queue_messages('q', include_claimed => true,
                                include_delayed => true);
-- what is free again is returned with its count
SELECT claim_release('q', :'claim');
SELECT body, claim_count, claim_id FROM queue_pop('q');
SELECT queue_push('q', '9') > 0 AS pushed;
SELECT min(claim_id) AS claim FROM queue_claim('q', 600, 60) \gset
SELECT count(*) FROM queue_pop('q');
SELECT claim_renew('q', :'claim', 1) IS NOT NULL AS shortened;
SELECT pg_sleep(1.1);
SELECT body, claim_count, claim_id FROM queue_pop('q');
SELECT free, claimed, delayed, total FROM queue_stats('q');
SELECT message_delete('q', 0, :'claim');

SELECT count(*) FROM queue_pop('unknown');
SELECT queue_exists('unknown');

-- rolled back
SELECT queue_push_batch('back', '{1, 2, 3}') IS NOT NULL AS pushed;
BEGIN;
SELECT body FROM queue_pop('back', 2);
SELECT body FROM queue_pop('back', 2);
SELECT count(*) FROM queue_pop('back');
SELECT total FROM queue_stats('back');
ROLLBACK;
BEGIN;
SAVEPOINT s;
SELECT body FROM queue_pop('back', 1);
ROLLBACK TO s;
SELECT body, claim_count FROM queue_pop('back', 1);
COMMIT;
SELECT body FROM queue_pop('back', 10);

-- bounds
SELECT count(*) FROM queue_pop('q', 0);
SELECT count(*) FROM queue_pop('q', -1);
SELECT count(*) FROM queue_pop('q', 101);
SELECT count(*) FROM queue_pop('q', 100);
SELECT count(*) FROM queue_pop('q', NULL);

-- Several pops return each message once, in order.
SELECT cardinality(queue_push_batch('all', array_agg(to_jsonb(i) ORDER BY i)))
    FROM generate_series(1, 1000) i;
\set VERBOSITY terse
DO $$
DECLARE
    page jsonb[];
    seen jsonb[] := '{}';
BEGIN
    LOOP
        page := ARRAY(SELECT body FROM queue_pop('all', 37));
        EXIT WHEN cardinality(page) = 0;
        seen := seen || page;
        COMMIT;
    END LOOP;
    RAISE INFO 'each once and in order: %',
        seen = ARRAY(SELECT to_jsonb(i) FROM generate_series(1, 1000) i);
END
$$;
\set VERBOSITY sqlstate
SELECT total FROM queue_stats('all');

-- In one transaction with the work: popped and pushed on.
SELECT queue_push_batch('from', '{1, 2}') IS NOT NULL AS pushed;
SELECT count(queue_push('to', body)) FROM queue_pop('from', 10);
SELECT body FROM queue_messages('to');
SELECT total FROM queue_stats('from');

DROP EXTENSION queue;
