-- Groups: _group_rate, as one session sees it.  The rates are so slow that
-- nothing more is due before the test ends.  test/t/group_rate.pl has loads.

CREATE EXTENSION queue;
SET queue.min_claim_ttl = 1;
SET queue.min_claim_grace = 0;
\set VERBOSITY terse
\set SHOW_CONTEXT never

-- A queue with a rate, and messages "a1", "a2", ... of each of these groups
CREATE FUNCTION pg_temp.make(q text, metadata jsonb, n int, VARIADIC keys text[])
RETURNS bigint LANGUAGE plpgsql AS $$
BEGIN
    PERFORM queue_drop(q);
    PERFORM queue_create(q, metadata);
    RETURN (SELECT count(queue_push(q, to_jsonb(coalesce(g, 'n') || i), group_key => g))
            FROM unnest(keys) AS g, generate_series(1, n) AS i);
END
$$;

CREATE FUNCTION pg_temp.take(q text, n int = 10)
RETURNS text LANGUAGE sql AS $$
    SELECT string_agg(body #>> '{}', ' ' ORDER BY body #>> '{}')
    FROM queue_claim(q, 300, 0, n)
$$;

CREATE FUNCTION pg_temp.pop(q text, n int = 10)
RETURNS text LANGUAGE sql AS $$
    SELECT string_agg(body #>> '{}', ' ' ORDER BY body #>> '{}') FROM queue_pop(q, n)
$$;

---
-- One message of each group; those without a key have no rate
---

SELECT pg_temp.make('q', '{"_group_rate": 0.01}', 3, 'a', 'b', NULL);
SELECT pg_temp.take('q');
SELECT pg_temp.take('q');
SELECT count(*) FROM queue_push('q', '"c1"', group_key => 'c');
SELECT pg_temp.take('q');
CALL queue_wait('q', 0);
SELECT group_key, free, claimed FROM queue_groups('q');

-- The row says when the group may go on: 1 % later than the rate says
SELECT count(*), bool_and(next_at - delivered_at BETWEEN '100.9 s' AND '101.1 s') AS far
FROM queue_data.group_rate;

---
-- What counts: each delivery that is committed
---

-- a claim that is rolled back, also to a savepoint, does not
SELECT pg_temp.make('q', '{"_group_rate": 0.01}', 3, 'a');
BEGIN;
SELECT pg_temp.take('q');
ROLLBACK;
BEGIN;
SAVEPOINT s;
SELECT pg_temp.take('q');
ROLLBACK TO s;
SELECT pg_temp.take('q');
SELECT pg_temp.take('q');
COMMIT;
SELECT pg_temp.take('q');

-- The row says how many were counted: next_at is so many intervals after a tenth of
-- a second before the delivery.  One of two is rolled back, and counts no more; of
-- two that are committed both count, once.  (The worker may have removed the row.)
SELECT pg_temp.make('q', '{"_group_rate": 11}', 3, 'a');
BEGIN;
SELECT pg_temp.take('q', 1);
SAVEPOINT s;
SELECT pg_temp.take('q', 1);
ROLLBACK TO s;
COMMIT;
SELECT coalesce(bool_and(next_at < delivered_at), true) AS one FROM queue_data.group_rate;
SELECT pg_temp.make('q', '{"_group_rate": 11}', 3, 'a');
BEGIN;
SELECT pg_temp.take('q', 1);
SAVEPOINT s;
SELECT pg_temp.take('q', 1);
RELEASE s;
COMMIT;
SELECT coalesce(bool_and(next_at - delivered_at BETWEEN '0.08 s' AND '0.09 s'), true) AS two
FROM queue_data.group_rate;

-- a claim that is released, and the next delivery of the same message
SELECT pg_temp.make('q', '{"_group_rate": 0.01}', 3, 'a');
SELECT claim_id FROM queue_claim('q', 300, 0, 10) \gset
SELECT claim_renew('q', :'claim_id', 300) IS NOT NULL AS renewed;
SELECT claim_release('q', :'claim_id');
SELECT pg_temp.take('q');

-- a pop
SELECT pg_temp.make('q', '{"_group_rate": 0.01}', 3, 'a', 'b');
SELECT pg_temp.pop('q', 1) IS NOT NULL AS popped;
SELECT pg_temp.pop('q', 10) IS NOT NULL AS popped;
SELECT pg_temp.pop('q', 10);
SELECT free FROM queue_stats('q');

-- claim_next completes, but its delivery counts too
SELECT pg_temp.make('q', '{"_group_rate": 0.01}', 3, 'a', 'b');
SELECT claim_id FROM queue_claim('q', 300, 0, 1) \gset
SELECT count(*), min(claim_id) AS claim_id FROM claim_next('q', :'claim_id', 300, 0, 10) \gset
SELECT :count AS taken;
SELECT count(*) FROM claim_next('q', :'claim_id', 300, 0, 10);
SELECT free, claimed FROM queue_stats('q');

-- queue_claim_any
SELECT count(*) FROM queue_claim_any(ARRAY['q'], 300, 0, 10);

---
-- A rate above what one claim takes
---

-- not more than a tenth of a second's worth, and one
SELECT pg_temp.make('q', '{"_group_rate": 100}', 50, 'a');
SELECT count(*) BETWEEN 1 AND 11 AS few FROM queue_claim('q', 300, 0, 50);

---
-- With a bound, and changed
---

SELECT pg_temp.make('q', '{"_group_rate": 1000000, "_group_concurrency": 2}', 5, 'a');
SELECT pg_temp.take('q');
SELECT pg_temp.take('q');
SELECT queue_update('q', '{"_group_concurrency": null, "_group_rate": 0.01}') ->> '_group_rate' AS rate;
SELECT pg_temp.take('q');
SELECT pg_temp.take('q');
SELECT queue_update('q', '{"_group_rate": null}') ->> '_group_rate' AS rate;
SELECT pg_temp.take('q');

-- What SQL has written makes the library forget when a group may go on, which it else
-- remembers for ten seconds; the rows have it.
CREATE FUNCTION pg_temp.forget() RETURNS void LANGUAGE sql AS
    'UPDATE queue_data.message_0 SET body = body';

-- A rate that is raised counts from the last delivery.
SELECT pg_temp.make('q', '{"_group_rate": 0.01}', 3, 'a');
SELECT pg_temp.take('q');
SELECT pg_temp.forget();
SELECT pg_temp.take('q');
SELECT queue_update('q', '{"_group_rate": 1000000}') ->> '_group_rate' AS rate;
SELECT pg_temp.forget();
SELECT pg_temp.take('q', 1);

-- The last delivery is in the future: the clock was set back.
SELECT pg_temp.make('q', '{"_group_rate": 0.01}', 3, 'a');
SELECT pg_temp.take('q');
UPDATE queue_data.group_rate
SET delivered_at = now() + interval '1 h', next_at = now() + interval '2 h';
SELECT pg_temp.forget();
SELECT pg_temp.take('q');

-- The smallest rate: one message
SELECT pg_temp.make('q', '{"_group_rate": 1e-300}', 2, 'a');
SELECT pg_temp.take('q');
SELECT pg_temp.take('q');
SELECT max(next_at) > now() + interval '99 years' AS far FROM queue_data.group_rate;

-- A row that is locked cannot be overwritten in place
SELECT pg_temp.make('q', '{"_group_rate": 1000000}', 3, 'a');
SELECT pg_temp.take('q', 1);
BEGIN;
SELECT count(*) > 0 AS locked FROM (SELECT FROM queue_data.group_rate FOR UPDATE) AS r;
SELECT pg_temp.take('q', 1);
COMMIT;
SELECT pg_temp.take('q', 1);

-- First in, first out: a message that is tried again waits for the rate, too
SELECT pg_temp.make('q', '{"_group_rate": 0.01, "_group_concurrency": 1}', 2, 'a');
SELECT id, claim_id FROM queue_claim('q', 300, 0, 10) \gset
SELECT message_retry('q', :id, :'claim_id', 'error', 0) IS NOT NULL AS retried;
SELECT pg_temp.take('q');

-- Nothing is left of a queue that is dropped
SELECT (SELECT count(*) FROM queue_data.grouped) AS grouped,
       (SELECT count(*) FROM queue_data.group_rate) AS rates;
SELECT queue_drop('q');
SELECT (SELECT count(*) FROM queue_data.grouped) AS grouped,
       (SELECT count(*) FROM queue_data.group_rate) AS rates;
DROP EXTENSION queue;
