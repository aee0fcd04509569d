-- queue_claim and queue_claim_any.

CREATE EXTENSION queue;
SET queue.min_claim_ttl = 1;
SET queue.min_claim_grace = 0;
SET queue.min_message_ttl = 1;
\set VERBOSITY sqlstate

SELECT queue_push('q', '1', 600) AS id1 \gset
SELECT queue_push('q', '2', 600) > 0 AS pushed;
SELECT queue_push('q', '3', 600) > 0 AS pushed;
SELECT queue_push('q', '4', 600) > 0 AS pushed;

-- oldest first, under one claim id
SELECT claim_id AS a, id = :id1 AS id, queue, body, ttl,
       age BETWEEN 0 AND 600 AS age, claim_id IS NOT NULL AS claim,
       claim_count, priority, created_at <= clock_timestamp() AS created
    FROM queue_claim('q', 300, 60, 1) \gset
SELECT :'id' AS id, :'queue' AS queue, :'body' AS body, :'ttl' AS ttl,
       :'age' AS age, :'claim' AS claim, :'claim_count' AS claim_count,
       :'priority' AS priority, :'created' AS created;
SELECT min(claim_id) AS b, count(*) AS n, count(DISTINCT claim_id) AS ids,
       array_agg(body) AS bodies
    FROM queue_claim('q', 300, 60, 2) \gset
SELECT :'n' AS n, :'ids' AS claim_ids, :'bodies' AS bodies, :'a' <> :'b' AS differ;
-- fewer than the limit when there are fewer, then none; and no error
SELECT body FROM queue_claim('q', 300, 60, 50);
SELECT count(*) FROM queue_claim('q', 300, 60);
SELECT count(*) FROM queue_claim('unknown', 300, 60);
SELECT queue_exists('unknown');

-- the highest priority first, then the oldest
SELECT count(queue_push('p', to_jsonb(format('%s/%s', p, i)), priority => p))
    FROM generate_series(1, 2) i, unnest('{0, 5, 9, 1, 8, 2, 3, 4, 6, 7}'::int[]) p;
SELECT body FROM queue_claim('p', 300, 60, 3);
SELECT array_agg(body), count(DISTINCT claim_id) FROM queue_claim('p', 300, 60, 100);
-- what is pushed later with a higher priority still comes first
SELECT queue_push('p', '"low"', priority => 1) > 0 AS pushed;
SELECT queue_push('p', '"high"', priority => 2) > 0 AS pushed;
SELECT body FROM queue_claim('p', 300, 60, 1);
SELECT queue_push('p', '"higher"', priority => 7) > 0 AS pushed;
SELECT body FROM queue_claim('p', 300, 60, 1);
SELECT body FROM queue_claim('p', 300, 60, 1);

-- no delayed and no expired ones
SELECT queue_push('d', '"delayed"', delay => 100) > 0 AS pushed;
SELECT queue_push('d', '"expired"', 1) > 0 AS pushed;
SELECT pg_sleep(1.1);
SELECT count(*) FROM queue_claim('d', 300, 60);
SELECT queue_push('d', '"free"') > 0 AS pushed;
SELECT body FROM queue_claim('d', 300, 60);

-- A claim ends when it expires, without the help of any session; and a message
-- that is free again keeps its position in the order.
SELECT queue_push_batch('e', '{1, 2, 3}') IS NOT NULL AS pushed;
SELECT claim_id AS e FROM queue_claim('e', 600, 60, 1) \gset
SELECT body, claim_count FROM queue_claim('e', 600, 60, 1);
SELECT claim_renew('e', :'e', 1) IS NOT NULL AS shortened;
SELECT pg_sleep(1.1);
SELECT body, claim_count FROM queue_claim('e', 1, 60, 1);
SELECT pg_sleep(1.1);
SELECT body, claim_count FROM queue_claim('e', 600, 60, 10);
SELECT count(*) FROM queue_claim('e', 600, 60, 10);

-- A claim that is rolled back did not happen, and was not counted.
SELECT queue_push_batch('back', '{1, 2}') IS NOT NULL AS pushed;
BEGIN;
SELECT body, claim_count FROM queue_claim('back', 300, 60, 1);
SELECT body, claim_count FROM queue_claim('back', 300, 60, 1);
SELECT count(*) FROM queue_claim('back', 300, 60, 1);
ROLLBACK;
BEGIN;
SAVEPOINT s1;
SELECT body, claim_count FROM queue_claim('back', 300, 60, 1);
SAVEPOINT s2;
SELECT body, claim_count FROM queue_claim('back', 300, 60, 1);
ROLLBACK TO s2;
SELECT body, claim_count FROM queue_claim('back', 300, 60, 1);
ROLLBACK TO s1;
SELECT body, claim_count FROM queue_claim('back', 300, 60, 1);
COMMIT;
SELECT body, claim_count FROM queue_claim('back', 300, 60);

-- The claim is a mark that other sessions compare with the clock: also in a
-- transaction as old as this one, and at every isolation level.
SELECT queue_push_batch('levels', '{1, 2, 3, 4}') IS NOT NULL AS pushed;
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT 1 AS snapshot;
SELECT claim_id AS claim FROM queue_claim('levels', 600, 60, 1) \gset
SELECT body FROM queue_claim('levels', 600, 60, 1);
SELECT claim_renew('levels', :'claim', 1) IS NOT NULL AS shortened;
SELECT pg_sleep(1.1);
SELECT body, claim_count FROM queue_claim('levels', 600, 60, 1);
COMMIT;
BEGIN ISOLATION LEVEL SERIALIZABLE;
SELECT 1 AS snapshot;
SELECT body FROM queue_claim('levels', 600, 60, 1);
SELECT body FROM queue_claim('levels', 600, 60, 1);
COMMIT;
SELECT claimed, total FROM queue_stats('levels');

-- A claim returns no row only if nothing is free: claims of seven get all of
-- it, each message once, in the order of priorities and ids.
SELECT count(queue_push(CASE i % 3 WHEN 0 THEN 'noise' ELSE 'all' END,
                        to_jsonb(i), priority => i % 10))
    FROM generate_series(1, 1500) i;
CREATE TEMP TABLE got (n serial, id bigint, priority int);
DO $$
DECLARE
    rows int;
BEGIN
    LOOP
        INSERT INTO got (id, priority)
            SELECT id, priority FROM queue_claim('all', 600, 60, 7);
        GET DIAGNOSTICS rows = ROW_COUNT;
        EXIT WHEN rows = 0;
        COMMIT;
    END LOOP;
END
$$;
SELECT count(*), count(DISTINCT id) FROM got;
SELECT count(*) AS out_of_order
    FROM (SELECT priority, id, lag(priority) OVER w AS before, lag(id) OVER w AS id_before
          FROM got WINDOW w AS (ORDER BY n)) AS s
    WHERE (before, -id_before) < (priority, -id);
SELECT free, claimed FROM queue_stats('all');
SELECT free, claimed FROM queue_stats('noise');
-- also in one transaction
BEGIN;
SELECT sum((SELECT count(*) FROM queue_claim('noise', 600, 60, 20 + i % 10)))
    FROM generate_series(1, 30) i;
SELECT free, claimed FROM queue_stats('noise');
ROLLBACK;
SELECT free, claimed FROM queue_stats('noise');
DROP TABLE got;

-- More than one page and more than the default bound.
SET queue.max_claim_limit = 10000;
SELECT cardinality(queue_push_batch('large', array_agg(to_jsonb(i) ORDER BY i)))
    FROM generate_series(1, 5000) i;
SELECT count(*), count(DISTINCT claim_id) AS claims, bool_and(body = to_jsonb(n)) AS in_order
    FROM (SELECT *, row_number() OVER () AS n
          FROM queue_claim('large', 600, 60, 5000)) AS s;
SELECT free, claimed FROM queue_stats('large');
RESET queue.max_claim_limit;

-- Ids that lie far apart.
SELECT queue_push('gap', '"near"') > 0 AS pushed;
SELECT setval('queue_data.message_id', nextval('queue_data.message_id') + 100000000) > 0 AS moved;
\c -
SET queue.min_claim_ttl = 1;
SET queue.min_claim_grace = 0;
\set VERBOSITY sqlstate
SELECT queue_push('gap', '"far"') > 0 AS pushed;
SELECT body FROM queue_claim('gap', 300, 60, 1);
SELECT body FROM queue_claim('gap', 300, 60, 1);
SELECT count(*) FROM queue_claim('gap', 300, 60, 1);

-- In the select list, with a filter, from a prepared statement.
SELECT queue_push_batch('forms', '{1, 2, 3, 4, 5, 6, 7}') IS NOT NULL AS pushed;
SELECT (queue_claim('forms', 300, 60, 2)).body;
SELECT body FROM queue_claim('forms', 300, 60, 1) WHERE body = '"none"';
SELECT free, claimed FROM queue_stats('forms');
PREPARE claim AS SELECT body FROM queue_claim($1, $2, $3, $4);
EXECUTE claim('forms', 300, 60, 1);
EXECUTE claim('forms', 300, 60, 1);
DEALLOCATE claim;
-- claim, then complete by what was returned, in one statement
WITH c AS MATERIALIZED (SELECT * FROM queue_claim('forms', 300, 60))
SELECT claim_complete('forms', claim_id) FROM (SELECT DISTINCT claim_id FROM c) AS d;
SELECT free, claimed FROM queue_stats('forms');

--
-- queue_claim_any
--
SELECT queue_push_batch('any/1', '{11, 12}') IS NOT NULL AS pushed;
SELECT queue_push_batch('any/2', '{21, 22}') IS NOT NULL AS pushed;
-- from one of the queues at a time
SELECT count(*), count(DISTINCT queue) AS queues, count(DISTINCT claim_id) AS claims
    FROM queue_claim_any('{any/1, any/2}', 300, 60, 10);
SELECT count(*), count(DISTINCT queue) AS queues, count(DISTINCT claim_id) AS claims
    FROM queue_claim_any('{any/1, any/2}', 300, 60, 10);
SELECT count(*) FROM queue_claim_any('{any/1, any/2}', 300, 60, 10);
SELECT q, free, claimed FROM (VALUES ('any/1'), ('any/2')) AS v (q), queue_stats(q)
    ORDER BY q;
-- whatever else is in the list
SELECT queue_push('any/3', '31') > 0 AS pushed;
SET client_min_messages = warning;
SELECT queue, body FROM queue_claim_any('{any/1, unknown, any/3, any/3}', 300, 60);
SELECT queue_exists('unknown');
SELECT count(*) FROM queue_claim_any('{}', 300, 60);
SELECT count(*) FROM queue_claim_any('{unknown}', 300, 60);
RESET client_min_messages;
-- never from others
SELECT queue_push('any/4', '41') > 0 AS pushed;
SELECT count(*) FROM queue_claim_any('{any/1, any/2, any/3}', 300, 60);
-- its claim is a claim like any other
SELECT queue AS q, claim_id AS claim, id FROM queue_claim_any('{any/4}', 300, 60) \gset
SELECT message_count FROM claim_get('any/4', :'claim');
SELECT message_delete('any/1', :id, :'claim');
SELECT message_delete(:'q', :id, :'claim');
-- highest priority and oldest first
SELECT queue_push('any/5', to_jsonb(p), priority => p) > 0
    FROM unnest('{1, 3, 2}'::int[]) p;
SELECT body FROM queue_claim_any('{any/5}', 300, 60, 2);
-- fairly: none of three starves, though each has enough for all calls
SELECT count(queue_push('fair/' || q, to_jsonb(i)))
    FROM generate_series(1, 3) q, generate_series(1, 150) i;
CREATE TEMP TABLE got (queue text);
DO $$
BEGIN
    FOR i IN 1 .. 150 LOOP
        INSERT INTO got SELECT queue
            FROM queue_claim_any('{fair/1, fair/2, fair/3}', 300, 60, 1);
        COMMIT;
    END LOOP;
END
$$;
SELECT queue, count(*) >= 10 AS served FROM got GROUP BY queue ORDER BY queue;
SELECT count(*) FROM got;
DROP TABLE got;
-- NULL: all there are (in this project)
SELECT count(queue_drop(name)) > 0 AS dropped FROM queue_list("limit" => 1000);
SELECT queue_push('any/6', '61') > 0 AS pushed;
SELECT queue_push('any/7', '71') > 0 AS pushed;
SELECT queue_push('any/8', '81', delay => 100) > 0 AS pushed;
CREATE TEMP TABLE got (queue text, body jsonb);
INSERT INTO got SELECT queue, body FROM queue_claim_any(NULL, 300, 60);
INSERT INTO got SELECT queue, body FROM queue_claim_any(NULL, 300, 60);
INSERT INTO got SELECT queue, body FROM queue_claim_any(NULL, 300, 60);
SELECT * FROM got ORDER BY queue;
DROP TABLE got;

-- ttl and grace default to 300 and 60 seconds
SELECT count(queue_push('defaults', to_jsonb(i))) FROM generate_series(1, 30) i;
SELECT c.ttl, c.grace, c.message_count
    FROM (SELECT DISTINCT claim_id FROM queue_claim('defaults')) m,
         claim_get('defaults', m.claim_id) c;
SELECT c.ttl, c.grace, c.message_count
    FROM (SELECT DISTINCT claim_id FROM claim_next('defaults', NULL)) m,
         claim_get('defaults', m.claim_id) c;
SELECT m.queue, c.ttl, c.grace
    FROM (SELECT DISTINCT queue, claim_id FROM queue_claim_any('{defaults}')) m,
         claim_get('defaults', m.claim_id) c;
-- renewed without a grace, a claim keeps that which it has
SELECT queue_push('defaults', '"renewed"') > 0 AS pushed;
SELECT claim_id FROM queue_claim('defaults', 300, 70, 1) \gset
SELECT claim_renew('defaults', :'claim_id', 400) IS NOT NULL AS renewed;
SELECT ttl, grace FROM claim_get('defaults', :'claim_id');
SELECT queue_drop('defaults');

DROP EXTENSION queue;
