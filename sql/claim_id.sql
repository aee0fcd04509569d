-- What can be done with a claim: query, renew, release, complete, next.

CREATE EXTENSION queue;
SET queue.min_claim_ttl = 1;
SET queue.min_claim_grace = 0;
SET queue.min_message_ttl = 1;
\set VERBOSITY sqlstate

SELECT count(queue_push('q', to_jsonb(i), priority => i % 2))
    FROM generate_series(1, 6) i;
SELECT min(claim_id) AS a, min(id) AS id2, array_agg(body) FROM queue_claim('q', 300, 100, 4) \gset

-- query
SELECT claim_id = :'a' AS claim_id, ttl, age BETWEEN 0 AND 60 AS age, grace,
       expires_at BETWEEN now() + interval '200 s'
                  AND clock_timestamp() + interval '300 s' AS expires_at,
       message_count
    FROM claim_get('q', :'a');
SELECT body, priority, claim_id = :'a' AS claim_id, claim_count
    FROM claim_messages('q', :'a');
-- what was deleted is no longer in it
SELECT message_delete('q', id, :'a') FROM claim_messages('q', :'a') WHERE body = '1';
SELECT message_count FROM claim_get('q', :'a');
SELECT body FROM claim_messages('q', :'a');

-- age: since the claim was made or renewed
SELECT pg_sleep(1.1);
SELECT age BETWEEN 1 AND 60 AS age FROM claim_get('q', :'a');

-- renew: starts again, under its id; the count stays
SELECT claim_renew('q', :'a', 400, 50) AS until \gset
SELECT :'until' = (SELECT expires_at FROM claim_get('q', :'a')) AS told,
       :'until' BETWEEN now() + interval '300 s'
                AND clock_timestamp() + interval '400 s' AS bounds;
SELECT ttl, grace, message_count FROM claim_get('q', :'a');
SELECT body, claim_count, claim_id = :'a' AS claim_id FROM claim_messages('q', :'a');
-- grace NULL: as before
SELECT claim_renew('q', :'a', 500) > clock_timestamp() AS renewed;
SELECT ttl, grace FROM claim_get('q', :'a');
SELECT claim_renew('q', :'a', 500, NULL) > clock_timestamp() AS renewed;
SELECT ttl, grace FROM claim_get('q', :'a');
-- age again
SELECT pg_sleep(1.1);
BEGIN;
SELECT age >= 1 AS before FROM claim_get('q', :'a');
SELECT claim_renew('q', :'a', 500) IS NOT NULL AS renewed;
SELECT extract(epoch FROM expires_at - clock_timestamp()) > 400 AS after,
       ttl, age >= 0 AS not_negative FROM claim_get('q', :'a');
ROLLBACK;
-- to an earlier end
SELECT queue_push('r', '1') > 0 AS pushed;
SELECT claim_id AS r FROM queue_claim('r', 600, 60) \gset
SELECT claim_renew('r', :'r', 1) IS NOT NULL AS renewed;
SELECT pg_sleep(1.1);
SELECT count(*) FROM claim_get('r', :'r');
-- a claim that is over cannot be renewed, though its messages are free
SELECT claim_renew('r', :'r', 100);
SELECT body, claim_count FROM queue_claim('r', 1, 60);
-- renewed in time, it lives beyond its first end
SELECT queue_drop('r');
SELECT queue_push('r', '1') > 0 AS pushed;
SELECT claim_id AS r, claim_renew('r', claim_id, 100) IS NOT NULL AS renewed
    FROM queue_claim('r', 2, 60) \gset
SELECT :'renewed' AS renewed;
SELECT pg_sleep(2.1);
SELECT count(*) FROM queue_claim('r', 60, 60);
SELECT message_count, ttl FROM claim_get('r', :'r');
-- rolled back
BEGIN;
SELECT claim_renew('r', :'r', 1000) IS NOT NULL AS renewed;
ROLLBACK;
SELECT ttl FROM claim_get('r', :'r');

-- release: all of it, with its old position in the order, and with the count
SELECT min(claim_id) AS b FROM queue_claim('q', 300, 100, 1) \gset
SELECT claim_release('q', :'a');
SELECT count(*) FROM claim_get('q', :'a');
SELECT count(*) FROM claim_messages('q', :'a');
SELECT claim_renew('q', :'a', 300);
SELECT claim_release('q', :'a');
SELECT body, claim_count FROM queue_messages('q');
SELECT free, claimed FROM queue_stats('q');
SELECT min(claim_id) AS a FROM queue_claim('q', 300, 100, 10) \gset
SELECT body, claim_count, claim_id = :'a' AS claim_id FROM claim_messages('q', :'a');
-- the other claim is not affected
SELECT message_count, ttl, grace FROM claim_get('q', :'b');
-- rolled back
BEGIN;
SELECT claim_release('q', :'a');
SELECT free, claimed FROM queue_stats('q');
ROLLBACK;
SELECT message_count FROM claim_get('q', :'a');
BEGIN;
SAVEPOINT s;
SELECT claim_release('q', :'a');
ROLLBACK TO s;
COMMIT;
SELECT message_count FROM claim_get('q', :'a');
-- after a delay
SELECT claim_release('q', :'a', 100);
SELECT free, claimed, delayed FROM queue_stats('q');
SELECT count(*) FROM queue_claim('q', 60, 60);
SELECT body, claim_count, claim_id FROM queue_messages('q', include_delayed => true);
SELECT queue_push_batch('r2', '{1, 2}') AS ids \gset
SELECT claim_id AS r FROM queue_claim('r2', 300, 60, 1) \gset
SELECT claim_release('r2', :'r', 1);
SELECT body FROM queue_claim('r2', 300, 60);
SELECT pg_sleep(1.1);
SELECT body, claim_count, id = (:'ids'::bigint[])[1] AS same_id
    FROM queue_claim('r2', 300, 60);
SELECT claim_release('r2', NULL, -1);
SELECT claim_release('r2', 'x', 1209601);
SELECT claim_release('r2', 'x', 1209600);
SELECT claim_release('r2', 'x', 0);

-- complete: the whole rest at once
SELECT queue_drop('q');
SELECT count(queue_push('q', to_jsonb(i), priority => i % 2))
    FROM generate_series(1, 6) i;
SELECT min(claim_id) AS a FROM queue_claim('q', 300, 100, 3) \gset
SELECT min(claim_id) AS b FROM queue_claim('q', 300, 100, 2) \gset
SELECT message_delete('q', id, :'a') FROM claim_messages('q', :'a') WHERE body = '3';
BEGIN;
SELECT claim_complete('q', :'a');
SELECT claim_complete('q', :'a');
ROLLBACK;
SELECT message_count FROM claim_get('q', :'a');
SELECT claim_complete('q', :'a');
SELECT claim_complete('q', :'a');
SELECT free, claimed FROM queue_stats('q');
SELECT message_count FROM claim_get('q', :'b');
SELECT claim_release('q', :'b');
SELECT claim_complete('q', :'b');
SELECT min(claim_id) AS c FROM queue_claim('q', 1, 100, 10) \gset
SELECT pg_sleep(1.1);
SELECT claim_complete('q', :'c');
SELECT body FROM queue_messages('q');

-- next: completes one and makes another
SELECT min(claim_id) AS a, count(*) AS n FROM claim_next('q', NULL, 300, 60, 1) \gset
SELECT :n, message_count, ttl, grace FROM claim_get('q', :'a');
SELECT min(claim_id) AS b, count(*) AS n, count(DISTINCT claim_id) AS claims
    FROM claim_next('q', :'a', 200, 70, 10) \gset
SELECT :n, :claims, :'a' <> :'b' AS differ, message_count, ttl, grace
    FROM claim_get('q', :'b');
SELECT count(*) FROM claim_get('q', :'a');
SELECT free, claimed, total FROM queue_stats('q');
-- nothing more to claim: the old one is completed nevertheless
SELECT count(*) FROM claim_next('q', :'b', 200, 70);
SELECT total FROM queue_stats('q');
SELECT count(*) FROM claim_next('q', NULL, 200, 70);
-- not live: nothing is claimed
SELECT queue_push_batch('q', '{1, 2}') IS NOT NULL AS pushed;
SELECT count(*) FROM claim_next('q', :'b', 200, 70);
SELECT count(*) FROM claim_next('q', 'no such claim', 200, 70);
SELECT count(*) FROM claim_next('q', '', 200, 70);
SELECT count(*) FROM claim_next('unknown', 'no such claim', 200, 70);
SELECT count(*) FROM claim_next('unknown', NULL, 200, 70);
SELECT free, claimed FROM queue_stats('q');
-- wrong ttl: nothing is completed
SELECT min(claim_id) AS c FROM queue_claim('q', 300, 60, 1) \gset
SELECT count(*) FROM claim_next('q', :'c', 0, 70);
SELECT count(*) FROM claim_next('q', :'c', NULL, 70);
SELECT count(*) FROM claim_next('q', :'c', 300, NULL);
SELECT count(*) FROM claim_next('q', :'c', 300, -1);
SELECT count(*) FROM claim_next('q', :'c', 300, 60, 0);
SELECT count(*) FROM claim_next('q', :'c', 300, 60, 101);
SELECT message_count FROM claim_get('q', :'c');
-- rolled back
BEGIN;
SELECT body FROM claim_next('q', :'c', 300, 60);
ROLLBACK;
SELECT message_count FROM claim_get('q', :'c');
SELECT free, claimed FROM queue_stats('q');
-- A worker that loops over claim_next gets every message once.
SELECT cardinality(queue_push_batch('loop', array_agg(to_jsonb(i) ORDER BY i)))
    FROM generate_series(1, 200) i;
\set VERBOSITY terse
DO $$
DECLARE
    claim text;
    page jsonb[];
    seen jsonb[] := '{}';
BEGIN
    LOOP
        SELECT array_agg(body), min(claim_id) INTO page, claim
            FROM claim_next('loop', claim, 300, 60, 9);
        EXIT WHEN page IS NULL;
        seen := seen || page;
        COMMIT;
    END LOOP;
    RAISE INFO 'each once and in order: %',
        seen = ARRAY(SELECT to_jsonb(i) FROM generate_series(1, 200) i);
END
$$;
\set VERBOSITY sqlstate
SELECT total FROM queue_stats('loop');

-- Ids that are NULL, malformed, unknown or another queue's: ignored by query,
-- renew and release, QU001 for complete.
SELECT queue_push_batch('x', '{1, 2, 3}') IS NOT NULL AS pushed;
SELECT min(claim_id) AS x FROM queue_claim('x', 300, 60, 2) \gset
CREATE TEMP TABLE wrong (n serial, what text, q text, claim text);
INSERT INTO wrong (what, q, claim) VALUES
    ('NULL', 'x', NULL),
    ('empty', 'x', ''),
    ('blank', 'x', ' '),
    ('text', 'x', 'no such claim'),
    ('quotes', 'x', '"it''s"'),
    ('not ASCII', 'x', repeat(chr(228), 52)),
    ('zeros', 'x', repeat('0', 52)),
    ('all bits', 'x', repeat('f', 52)),
    ('minus', 'x', '-' || left(:'x', -1)),
    ('upper case', 'x', upper(:'x')),
    ('blank before', 'x', ' ' || :'x'),
    ('blank after', 'x', :'x' || ' '),
    ('blank for a digit', 'x', left(:'x', -1) || ' '),
    ('one more', 'x', :'x' || '0'),
    ('one less', 'x', left(:'x', -1)),
    ('without its first', 'x', substr(:'x', 2)),
    ('twice', 'x', :'x' || :'x'),
    ('megabyte', 'x', repeat('0', 1000000)),
    ('reversed', 'x', reverse(:'x')),
    ('other queue', 'q', :'x'),
    ('unknown queue', 'unknown', :'x');
CREATE FUNCTION pg_temp.complete(q text, claim text) RETURNS text
LANGUAGE plpgsql AS $$
BEGIN
    RETURN claim_complete(q, claim);
EXCEPTION WHEN OTHERS THEN
    RETURN sqlstate;
END
$$;
SELECT what, (SELECT count(*) FROM claim_get(q, claim)) AS get,
       (SELECT count(*) FROM claim_messages(q, claim)) AS messages,
       claim_renew(q, claim, 100, 60) AS renew,
       claim_release(q, claim) AS release,
       pg_temp.complete(q, claim) AS complete
    FROM wrong ORDER BY n;
-- An id cannot be guessed from another one: an id that differs in one digit is
-- not valid for anything.
SELECT count(*) > 200 AS tried,
       sum((SELECT count(*) FROM claim_get('x', forged))) AS get,
       sum((SELECT count(*) FROM claim_messages('x', forged))) AS messages,
       count(claim_renew('x', forged, 100, 60)) AS renew,
       sum(claim_release('x', forged)) AS release,
       count(*) FILTER (WHERE pg_temp.complete('x', forged) <> 'QU001') AS complete
    FROM (SELECT overlay(:'x' PLACING to_hex(digit) FROM place FOR 1) AS forged
          FROM generate_series(1, length(:'x')) AS place,
               generate_series(0, 15, 3) AS digit) AS s
    WHERE forged <> :'x';
-- nor is one made of halves of two ids
SELECT min(claim_id) AS y FROM queue_claim('x', 300, 60, 1) \gset
SELECT count(*) > 20 AS tried,
       sum((SELECT count(*) FROM claim_get('x', mixed))) AS get
    FROM (SELECT left(:'x', place) || substr(:'y', place + 1) AS mixed
          FROM generate_series(1, length(:'x') - 1) AS place) AS s
    WHERE mixed <> :'x' AND mixed <> :'y';
SELECT message_count, ttl FROM claim_get('x', :'x');
SELECT message_count, ttl FROM claim_get('x', :'y');
SELECT queue_exists('unknown');

-- renew checks its bounds for every claim
SELECT claim_renew('x', :'x', NULL);
SELECT claim_renew('x', :'x', 0);
SELECT claim_renew('x', :'x', -1);
SELECT claim_renew('x', :'x', 43201);
SELECT claim_renew('x', :'x', 100, -1);
SELECT claim_renew('x', :'x', 100, 43201);
SELECT claim_renew('x', NULL, NULL);
SELECT claim_renew('x', 'no such claim', 0);
SELECT ttl, grace FROM claim_get('x', :'x');

DROP TABLE wrong;
DROP EXTENSION queue;
