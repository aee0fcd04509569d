-- Groups: claims and pops take turns, _group_concurrency bounds them, and with
-- a bound of 1 a group is first in, first out.  test/isolation has what two
-- sessions show, test/t what many do.
--
-- Which group comes first is not defined, so results are shown in rounds: the
-- first message of each group, the second of each, and so on.

CREATE EXTENSION queue;
SET queue.min_claim_ttl = 1;
SET queue.min_claim_grace = 0;
SET queue.min_message_ttl = 1;
\set VERBOSITY terse
\set SHOW_CONTEXT never

-- The messages that were taken, by their bodies
CREATE TEMP TABLE taken (
    body text, id bigint, claim_id text, claim_count int, UNIQUE (body));

-- a1, a2, ... of group a; the messages without a key are n1, n2, ...
CREATE FUNCTION pg_temp.push(q text, g text, first int, last int)
RETURNS bigint LANGUAGE sql AS $$
    SELECT count(queue_push(q, to_jsonb(coalesce(g, 'n') || i), group_key => g))
    FROM generate_series(first, last) i
$$;

-- The rounds in which these messages were returned, each round sorted.  It is
-- an error if a message of one round comes before one of an earlier round.
CREATE FUNCTION pg_temp.rounds(messages queue_message[])
RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    shown text;
    sorted boolean;
BEGIN
    WITH taken AS (
        SELECT m.body #>> '{}' AS body, n,
               row_number() OVER (PARTITION BY m.group_key ORDER BY n) AS round
        FROM unnest(messages) WITH ORDINALITY AS
             m (id, queue, body, ttl, age, claim_id, claim_count, priority,
                created_at, group_key, headers, n)),
    rounds AS (
        SELECT round, min(n) AS first, max(n) AS last,
               string_agg(body, ' ' ORDER BY body COLLATE "C") AS bodies
        FROM taken GROUP BY round)
    SELECT string_agg(r.bodies, ' | ' ORDER BY r.round),
           bool_and(r.first > coalesce(b.last, 0))
    INTO shown, sorted
    FROM rounds r LEFT JOIN rounds b ON b.round = r.round - 1;
    IF NOT sorted THEN
        RAISE EXCEPTION 'not in turn: %',
            (SELECT string_agg(body #>> '{}', ' ') FROM unnest(messages));
    END IF;
    RETURN shown;
END
$$;

-- Claims of these sizes, one after the other: a round goes on with the next
-- claim.
CREATE FUNCTION pg_temp.take(q text, VARIADIC sizes int[])
RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    messages queue_message[] := '{}';
BEGIN
    FOR i IN 1 .. cardinality(sizes) LOOP
        messages := messages || ARRAY(
            SELECT m FROM queue_claim(q, 300, 0, sizes[i]) AS m);
    END LOOP;
    INSERT INTO taken
        SELECT body #>> '{}', id, claim_id, claim_count FROM unnest(messages)
    ON CONFLICT (body) DO UPDATE
        SET id = excluded.id, claim_id = excluded.claim_id,
            claim_count = excluded.claim_count;
    RETURN pg_temp.rounds(messages);
END
$$;
CREATE FUNCTION pg_temp.pop(q text, VARIADIC sizes int[])
RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    messages queue_message[] := '{}';
BEGIN
    FOR i IN 1 .. cardinality(sizes) LOOP
        messages := messages || ARRAY(SELECT m FROM queue_pop(q, sizes[i]) AS m);
    END LOOP;
    RETURN pg_temp.rounds(messages);
END
$$;

-- The ends of the claims of these messages
CREATE FUNCTION pg_temp.release(q text, VARIADIC bodies text[])
RETURNS bigint LANGUAGE sql AS $$
    SELECT sum(claim_release(q, claim_id, failed => true))
    FROM (SELECT DISTINCT claim_id FROM taken WHERE body = ANY (bodies)) AS c
$$;
CREATE FUNCTION pg_temp.complete(q text, VARIADIC bodies text[])
RETURNS bigint LANGUAGE sql AS $$
    SELECT sum(claim_complete(q, claim_id))
    FROM (SELECT DISTINCT claim_id FROM taken WHERE body = ANY (bodies)) AS c
$$;
CREATE FUNCTION pg_temp.retry(q text, of text, delay int = 0)
RETURNS boolean LANGUAGE sql AS $$
    SELECT message_retry(q, id, claim_id, 'error', delay) IS NOT NULL
    FROM taken WHERE body = of
$$;

-- What is under a live claim, by group
CREATE FUNCTION pg_temp.live(q text)
RETURNS text LANGUAGE sql AS $$
    SELECT string_agg(messages, ' | ' ORDER BY messages COLLATE "C")
    FROM (SELECT string_agg(body #>> '{}', ' ' ORDER BY id) AS messages
          FROM queue_data.message
          WHERE queue = q AND state = 'claimed' GROUP BY group_key) AS g
$$;

---
-- Turns
---
-- one message of each group in a round, in one claim
SELECT pg_temp.push('t1', 'a', 1, 4), pg_temp.push('t1', 'b', 1, 2),
       pg_temp.push('t1', 'c', 1, 1), pg_temp.push('t1', NULL, 1, 3);
SELECT pg_temp.take('t1', 100);
SELECT pg_temp.take('t1', 100);
SELECT count(DISTINCT claim_id) AS claims FROM taken;
-- and in several, of one message and of more
SELECT pg_temp.push('t2', 'a', 1, 4), pg_temp.push('t2', NULL, 1, 3),
       pg_temp.push('t2', 'b', 1, 2), pg_temp.push('t2', 'c', 1, 1);
SELECT pg_temp.take('t2', 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1);
SELECT pg_temp.push('t3', 'c', 1, 1), pg_temp.push('t3', 'b', 1, 2),
       pg_temp.push('t3', 'a', 1, 4), pg_temp.push('t3', NULL, 1, 3);
SELECT pg_temp.take('t3', 3, 2, 1, 4, 3);
-- in several transactions
SELECT pg_temp.push('t4', 'a', 1, 2), pg_temp.push('t4', 'b', 1, 2),
       pg_temp.push('t4', 'c', 1, 2), pg_temp.push('t4', NULL, 1, 2);
SELECT array_length(array_agg(m), 1) AS n, array_agg(m) AS m1 FROM queue_claim('t4', 300, 0, 3) m \gset
SELECT array_agg(m) AS m2 FROM queue_claim('t4', 300, 0, 2) m \gset
SELECT array_agg(m) AS m3 FROM queue_claim('t4', 300, 0, 3) m \gset
SELECT pg_temp.rounds(:'m1'::queue_message[] || :'m2'::queue_message[] || :'m3'::queue_message[]);
-- pops too, and both together
SELECT pg_temp.push('t5', 'a', 1, 4), pg_temp.push('t5', 'b', 1, 2),
       pg_temp.push('t5', 'c', 1, 1), pg_temp.push('t5', NULL, 1, 3);
SELECT pg_temp.pop('t5', 100);
SELECT pg_temp.push('t5', 'a', 1, 4), pg_temp.push('t5', 'b', 1, 2),
       pg_temp.push('t5', 'c', 1, 1), pg_temp.push('t5', NULL, 1, 3);
SELECT pg_temp.pop('t5', 1, 1, 1, 2, 3, 1, 1);
SELECT pg_temp.push('t5', 'a', 1, 3), pg_temp.push('t5', 'b', 1, 3),
       pg_temp.push('t5', 'c', 1, 3);
SELECT array_agg(m) AS m1 FROM queue_claim('t5', 300, 0, 1) m \gset
SELECT array_agg(m) AS m2 FROM queue_pop('t5', 1) m \gset
SELECT array_agg(m) AS m3 FROM claim_next('t5', NULL, 300, 0, 3) m \gset
SELECT array_agg(m) AS m4 FROM queue_claim_any('{t5}', 300, 0, 3) m \gset
SELECT array_agg(m) AS m5 FROM queue_pop('t5', 1) m \gset
SELECT pg_temp.rounds(:'m1'::queue_message[] || :'m2'::queue_message[] || :'m3'::queue_message[]
                      || :'m4'::queue_message[] || :'m5'::queue_message[]);

-- A small group does not wait for a large one: whenever its message arrives,
-- it has its turn within one round.
SELECT pg_temp.push('many', 'a', 1, 2000), pg_temp.push('many', 'b', 1, 2000),
       pg_temp.push('many', NULL, 1, 2000);
SELECT cardinality(regexp_split_to_array(pg_temp.take('many', 10, 10, 10, 1), '[ |]+')) AS taken;
CREATE FUNCTION pg_temp.claims_to(q text, wanted text)
RETURNS int LANGUAGE plpgsql AS $$
BEGIN
    FOR i IN 1 .. 100 LOOP
        IF pg_temp.take(q, 1) = wanted THEN
            RETURN i;
        END IF;
    END LOOP;
    RETURN NULL;
END
$$;
SELECT unnest(ARRAY[format('SELECT pg_temp.push(''many'', %L, 1, 1)', g),
                    format('SELECT pg_temp.claims_to(''many'', %L) <= 4 AS soon', g || '1')])
    FROM unnest('{c,d,e,f,g,h}'::text[]) g \gexec

-- Priority and age order the messages of one group only.
SELECT count(queue_push('p', to_jsonb(body), group_key => nullif(left(body, 1), 'n'), priority => priority))
    FROM (VALUES ('a1', 0), ('a2', 9), ('a3', 5), ('b1', 1), ('n1', 3), ('n2', 4),
                 ('a4', 9), ('c1', 0)) v (body, priority);
SELECT pg_temp.take('p', 4, 2, 1, 10);

-- queue_claim_any rotates queues, then groups.
SELECT pg_temp.push('any/1', 'a', 1, 2), pg_temp.push('any/1', 'b', 1, 1),
       pg_temp.push('any/2', 'c', 1, 1), pg_temp.push('any/2', NULL, 1, 2);
CREATE TEMP TABLE got (n serial, m queue_message);
INSERT INTO got (m) SELECT m FROM queue_claim_any('{any/1,any/2}', 300, 0, 1) m;
INSERT INTO got (m) SELECT m FROM queue_claim_any('{any/1,any/2}', 300, 0, 1) m;
INSERT INTO got (m) SELECT m FROM queue_claim_any('{any/1,any/2}', 300, 0, 1) m;
INSERT INTO got (m) SELECT m FROM queue_claim_any('{any/1,any/2}', 300, 0, 1) m;
INSERT INTO got (m) SELECT m FROM queue_claim_any('{any/1,any/2}', 300, 0, 1) m;
INSERT INTO got (m) SELECT m FROM queue_claim_any('{any/1,any/2}', 300, 0, 1) m;
INSERT INTO got (m) SELECT m FROM queue_claim_any('{any/1,any/2}', 300, 0, 1) m;
SELECT (m).queue, pg_temp.rounds(array_agg(m ORDER BY n)) FROM got GROUP BY 1 ORDER BY 1;
DROP TABLE got;

-- Keys may be long, and differ only at the end.
SELECT count(queue_push('long', to_jsonb(body || i), group_key => repeat('k', 255) || body))
    FROM unnest('{x,y,z}'::text[]) body, generate_series(1, 2) i;
SELECT count(queue_push('long', '"k1"', group_key => repeat('k', 255)));
SELECT pg_temp.take('long', 1, 1, 2, 1, 5);

-- A claim that is rolled back leaves its messages where they were.
SELECT pg_temp.push('back', 'a', 1, 2), pg_temp.push('back', 'b', 1, 2);
BEGIN;
SELECT pg_temp.take('back', 100);
ROLLBACK;
BEGIN;
SELECT pg_temp.pop('back', 100);
ROLLBACK;
SELECT pg_temp.take('back', 100);

---
-- A bound
---
SELECT queue_create('b', '{"_group_concurrency": 2}');
SELECT pg_temp.push('b', 'a', 1, 5), pg_temp.push('b', 'b', 1, 1), pg_temp.push('b', NULL, 1, 4);
SELECT pg_temp.take('b', 1, 1, 1);
SELECT pg_temp.take('b', 100);
SELECT pg_temp.take('b', 100);
SELECT pg_temp.pop('b', 100), (SELECT count(*) FROM queue_claim_any('{b}', 300, 0)) AS any,
       (SELECT count(*) FROM claim_next('b', NULL, 300, 0)) AS next;
SELECT pg_temp.live('b');
SELECT pg_temp.complete('b', 'b1') > 0 AS done;
SELECT pg_temp.live('b') !~ 'b' AS done, pg_temp.take('b', 100);
SELECT queue_drop('b');

-- Whatever ends a claim makes room.
SELECT queue_create('b', '{"_group_concurrency": 2}');
SELECT pg_temp.push('b', 'a', 1, 5), pg_temp.push('b', NULL, 1, 1);
SELECT pg_temp.take('b', 1, 1, 1, 1);
SELECT pg_temp.release('b', 'a1');
SELECT pg_temp.take('b', 10);
SELECT pg_temp.complete('b', 'a1');
SELECT pg_temp.take('b', 10);
SELECT message_delete('b', id, claim_id) FROM taken WHERE body = 'a2';
SELECT pg_temp.take('b', 10);
SELECT messages_delete('b', ARRAY[id], claim_id) FROM taken WHERE body = 'a3';
SELECT pg_temp.take('b', 10);
SELECT pg_temp.retry('b', 'a4');
SELECT pg_temp.take('b', 10);
-- a message that waits for its next attempt is not under a claim
SELECT pg_temp.push('b', 'a', 6, 9);
SELECT pg_temp.retry('b', 'a4', 1000);
SELECT pg_temp.take('b', 10);
SELECT claim_release('b', claim_id, 1000, failed => true) FROM taken WHERE body = 'a5';
SELECT pg_temp.take('b', 10);
SELECT claim_renew('b', claim_id, 1) IS NOT NULL AS shorter FROM taken WHERE body = 'a6';
SELECT pg_temp.take('b', 10);
SELECT pg_sleep(1.1);
SELECT pg_temp.take('b', 10);
SELECT pg_temp.take('b', 10);
-- claim_next completes before it counts
SELECT body FROM claim_next('b', (SELECT claim_id FROM taken WHERE body = 'a6'), 300, 0, 10);
SELECT pg_temp.live('b');
SELECT queue_drop('b');

-- The caller's own claims count, until they end.
SELECT queue_create('own', '{"_group_concurrency": 2}');
SELECT pg_temp.push('own', 'a', 1, 5);
BEGIN;
SELECT pg_temp.take('own', 1);
SELECT pg_temp.take('own', 10);
SELECT pg_temp.take('own', 10);
SAVEPOINT s;
SELECT pg_temp.complete('own', 'a1');
SELECT pg_temp.take('own', 10);
SELECT pg_temp.take('own', 10);
ROLLBACK TO s;
SELECT pg_temp.take('own', 10);
SELECT pg_temp.release('own', 'a1', 'a2');
SELECT pg_temp.take('own', 10);
COMMIT;
SELECT pg_temp.take('own', 10), pg_temp.live('own');
SELECT pg_temp.complete('own', 'a1', 'a2');
BEGIN;
SAVEPOINT s;
SELECT pg_temp.take('own', 10);
ROLLBACK TO s;
SELECT pg_temp.take('own', 10);
ROLLBACK;
SELECT pg_temp.take('own', 10);
SELECT queue_drop('own');

-- A pop counts until its transaction ends, for that transaction too.
SELECT queue_create('pop', '{"_group_concurrency": 2}');
SELECT pg_temp.push('pop', 'a', 1, 5), pg_temp.push('pop', NULL, 1, 3);
SELECT pg_temp.pop('pop', 100);
SELECT pg_temp.take('pop', 1);
SELECT pg_temp.pop('pop', 100);
SELECT pg_temp.pop('pop', 100);
BEGIN;
SELECT pg_temp.complete('pop', 'a3');
SELECT pg_temp.pop('pop', 100);
ROLLBACK;
SELECT pg_temp.live('pop');
SELECT pg_temp.complete('pop', 'a3'), pg_temp.push('pop', 'a', 6, 9);
BEGIN;
SELECT pg_temp.pop('pop', 1);
SAVEPOINT s;
SELECT pg_temp.pop('pop', 1);
SELECT pg_temp.pop('pop', 1), pg_temp.take('pop', 1);
ROLLBACK TO s;
SELECT pg_temp.take('pop', 10);
SELECT pg_temp.pop('pop', 1), pg_temp.take('pop', 1);
COMMIT;
SELECT pg_temp.pop('pop', 10), pg_temp.live('pop');
SELECT queue_drop('pop');
-- and toward the bound of no other group, nor of the same one in another queue
SELECT queue_create('pop', '{"_group_concurrency": 1}'), queue_create('pop2', '{"_group_concurrency": 1}');
SELECT pg_temp.push('pop', 'a', 1, 2), pg_temp.push('pop', 'b', 1, 2), pg_temp.push('pop2', 'a', 1, 2);
BEGIN;
SELECT ARRAY(SELECT pg_temp.pop('pop', 1) AS body FROM generate_series(1, 3) ORDER BY body) AS popped;
SELECT pg_temp.pop('pop', 10);
SELECT pg_temp.take('pop2', 10);
COMMIT;
SELECT queue_drop('pop'), queue_drop('pop2');

-- The bound is changed.
SELECT queue_create('c', '{"_group_concurrency": 3}');
SELECT pg_temp.push('c', 'a', 1, 9);
SELECT pg_temp.take('c', 1, 1, 1, 1);
SELECT queue_update('c', '{"_group_concurrency": 2}') ->> '_group_concurrency' AS bound;
SELECT pg_temp.complete('c', 'a1'), pg_temp.take('c', 10);
SELECT pg_temp.complete('c', 'a2');
SELECT pg_temp.take('c', 10);
SELECT pg_temp.take('c', 10);
SELECT queue_update('c', '{"_group_concurrency": 4}') ->> '_group_concurrency' AS bound;
SELECT pg_temp.take('c', 10);
SELECT queue_update('c', '{"_group_concurrency": null}');
SELECT pg_temp.take('c', 1);
SELECT pg_temp.take('c', 1);
-- a bound of 1, when several were delivered: the first of them first
SELECT queue_update('c', '{"_group_concurrency": 1}') ->> '_group_concurrency' AS bound;
SELECT pg_temp.live('c');
SELECT pg_temp.release('c', 'a4');
SELECT pg_temp.take('c', 10);
SELECT pg_temp.release('c', 'a5', 'a6', 'a7', 'a8');
SELECT pg_temp.take('c', 10);
SELECT pg_temp.complete('c', 'a3'), pg_temp.take('c', 10), pg_temp.live('c');
SELECT pg_temp.take('c', 10);
SELECT queue_set_metadata('c', '{}');
SELECT pg_temp.take('c', 100);
-- set by replacing all of the metadata
SELECT queue_set_metadata('c', '{"_group_concurrency": 1}') ->> '_group_concurrency' AS bound;
SELECT pg_temp.push('c', 'a', 10, 10), pg_temp.push('c', 'b', 1, 2);
SELECT pg_temp.take('c', 100);
SELECT queue_drop('c');

-- Another queue's groups with the same keys have nothing to do with it, and a
-- queue that is dropped leaves nothing behind.
SELECT queue_create('x', '{"_group_concurrency": 1}'), queue_create('y', '{"_group_concurrency": 1}');
SELECT pg_temp.push('x', 'a', 1, 2), pg_temp.push('y', 'a', 1, 2);
BEGIN;
SELECT pg_temp.take('x', 10), pg_temp.take('y', 10);
SELECT queue_drop('x'), queue_create('x', '{"_group_concurrency": 1}'), pg_temp.push('x', 'a', 3, 4);
SELECT pg_temp.take('x', 10);
COMMIT;
SELECT queue_purge('y'), pg_temp.push('y', 'a', 5, 6);
SELECT pg_temp.take('y', 10);
-- queue_claim_any takes what it can get
SELECT pg_temp.push('z', 'a', 1, 1);
SELECT queue, body FROM queue_claim_any('{x,y,z}', 300, 0, 10);
SELECT queue, body FROM queue_claim_any('{x,y,z}', 300, 0, 10);
-- a queue that is paused
SELECT pg_temp.complete('y', 'a5'), queue_pause('y'), pg_temp.take('y', 10);
SELECT queue_resume('y'), pg_temp.take('y', 10);
SELECT queue_drop('x'), queue_drop('y'), queue_drop('z');

-- As many groups as there are messages in one claim
SET queue.max_claim_limit = 10000;
SELECT queue_create('wide', '{"_group_concurrency": 1}');
SELECT count(*) FROM unnest(queue_push_batch('wide',
    array_fill('"first"'::jsonb, ARRAY[10000]), group_keys => ARRAY(SELECT 'g' || i FROM generate_series(1, 10000) i))) AS ids;
SELECT count(*) FROM unnest(queue_push_batch('wide',
    array_fill('"next"'::jsonb, ARRAY[10000]), group_keys => ARRAY(SELECT 'g' || i FROM generate_series(1, 10000) i))) AS ids;
SELECT count(*) > 0 AS some, count(*) = count(DISTINCT group_key) AS one_of_each,
       count(*) FILTER (WHERE body = '"next"') AS too_soon
    FROM queue_claim('wide', 300, 0, 10000);
DO $$
BEGIN
    WHILE EXISTS (SELECT FROM queue_claim('wide', 300, 0, 10000)) LOOP
        COMMIT;
    END LOOP;
END
$$;
SELECT state, count(*), count(DISTINCT group_key) FROM queue_data.message WHERE queue = 'wide' GROUP BY 1;
SELECT queue_drop('wide');
RESET queue.max_claim_limit;

---
-- First in, first out
---
SELECT queue_create('f', '{"_group_concurrency": 1}');
SELECT pg_temp.push('f', 'a', 1, 3), pg_temp.push('f', 'b', 1, 1), pg_temp.push('f', NULL, 1, 2);
SELECT pg_temp.take('f', 1, 1, 1, 1, 1);
-- What was delivered comes first, whatever the priority of later ones.
SELECT queue_push('f', '"a8"', priority => 8, group_key => 'a') > 0 AS pushed;
SELECT pg_temp.take('f', 10);
SELECT pg_temp.release('f', 'a1');
SELECT pg_temp.take('f', 10);
SELECT pg_temp.retry('f', 'a1');
SELECT pg_temp.take('f', 10);
SELECT claim_renew('f', claim_id, 1) IS NOT NULL AS shorter FROM taken WHERE body = 'a1';
SELECT pg_sleep(1.1);
SELECT pg_temp.take('f', 10);
SELECT claim_count FROM taken WHERE body = 'a1';
SELECT pg_temp.complete('f', 'a1');
SELECT pg_temp.take('f', 10);
SELECT pg_temp.take('f', 10);
-- a pop takes it first as well
SELECT pg_temp.complete('f', 'a8'), pg_temp.take('f', 10);
SELECT queue_push('f', '"a9"', priority => 9, group_key => 'a') > 0 AS pushed;
SELECT pg_temp.pop('f', 10);
SELECT pg_temp.release('f', 'a2');
SELECT pg_temp.pop('f', 10);
SELECT pg_temp.pop('f', 10);
SELECT pg_temp.pop('f', 10);
SELECT pg_temp.pop('f', 10);
-- one that was rolled back was not delivered
SELECT pg_temp.push('f', 'c', 1, 1);
BEGIN;
SELECT pg_temp.take('f', 10);
ROLLBACK;
SELECT queue_push('f', '"c9"', priority => 9, group_key => 'c') > 0 AS pushed;
SELECT pg_temp.take('f', 10);
SELECT queue_drop('f');

-- It blocks its group until it is due again.
SELECT queue_create('f', '{"_group_concurrency": 1}');
SELECT pg_temp.push('f', 'a', 1, 2), pg_temp.push('f', 'b', 1, 2);
SELECT pg_temp.take('f', 1, 1);
SELECT pg_temp.retry('f', 'a1', 2), claim_release('f', claim_id, 2, failed => true) FROM taken WHERE body = 'b1';
SELECT queue_push('f', '"a9"', priority => 9, group_key => 'a') > 0 AS pushed;
SELECT pg_temp.push('f', 'c', 1, 1);
SELECT pg_temp.take('f', 10), pg_temp.pop('f', 10);
SELECT pg_sleep(2.1);
SELECT pg_temp.take('f', 1, 1);
SELECT pg_temp.complete('f', 'a1'), pg_temp.retry('f', 'b1', 1000);
SELECT pg_temp.take('f', 10);
-- until it is deleted
SELECT message_delete('f', id) FROM taken WHERE body = 'b1';
SELECT pg_temp.take('f', 10);
SELECT queue_drop('f');
-- the queue's own delay
SELECT queue_create('f', '{"_group_concurrency": 1, "_retry_delay": 1000}');
SELECT pg_temp.push('f', 'a', 1, 2);
SELECT pg_temp.take('f', 10), pg_temp.retry('f', 'a1', NULL), pg_temp.take('f', 10);
SELECT queue_drop('f');
-- with a higher bound it does not block
SELECT queue_create('f', '{"_group_concurrency": 2}');
SELECT pg_temp.push('f', 'a', 1, 3);
SELECT pg_temp.take('f', 1), pg_temp.retry('f', 'a1', 1000), pg_temp.take('f', 10);
-- until the bound is 1
SELECT pg_temp.release('f', 'a2', 'a3');
SELECT queue_update('f', '{"_group_concurrency": 1}') ->> '_group_concurrency' AS bound;
SELECT pg_temp.take('f', 10);
SELECT message_delete('f', id) FROM taken WHERE body = 'a1';
SELECT pg_temp.take('f', 10);
SELECT queue_drop('f');

-- A delayed message that was never delivered blocks nothing, and takes its
-- place when it is due.
SELECT queue_create('f', '{"_group_concurrency": 1}');
SELECT queue_push('f', '"a1"', delay => 2, group_key => 'a') > 0 AS pushed;
SELECT pg_temp.push('f', 'a', 2, 3);
SELECT pg_temp.take('f', 10);
SELECT pg_sleep(2.1);
SELECT pg_temp.take('f', 10);
SELECT pg_temp.complete('f', 'a2');
SELECT pg_temp.take('f', 10);
SELECT pg_temp.complete('f', 'a1'), pg_temp.take('f', 10);
SELECT queue_drop('f');

-- A message that has expired is finished.
SELECT queue_create('f', '{"_group_concurrency": 1}');
SELECT queue_push('f', '"a1"', 1, group_key => 'a') > 0 AS pushed;
SELECT pg_temp.push('f', 'a', 2, 2);
SELECT body FROM queue_claim('f', 1, 0, 10);
SELECT pg_sleep(1.1);
SELECT pg_temp.take('f', 10);
SELECT queue_drop('f');
-- but not while it waits for its next attempt
SELECT queue_create('f', '{"_group_concurrency": 1}');
SELECT queue_push('f', '"a1"', 2, group_key => 'a') > 0 AS pushed;
SELECT pg_temp.push('f', 'a', 2, 2);
SELECT claim_release('f', claim_id, 1000, failed => true), body FROM queue_claim('f', 1, 0, 10);
SELECT pg_temp.take('f', 10);
SELECT pg_sleep(2.1);
SELECT pg_temp.take('f', 10);
SELECT queue_drop('f');

-- One that was claimed as often as it may be is finished, and the dead letter
-- queue has groups of its own.
SELECT queue_create('f', '{"_group_concurrency": 1, "_max_claim_count": 2}');
SELECT pg_temp.push('f', 'a', 1, 3);
SELECT queue_push('f', '"a9"', priority => 9, group_key => 'a') > 0 AS pushed;
SELECT queue_update('f.dead', '{"_group_concurrency": 1}') AS dead;
SELECT pg_temp.take('f', 10);
SELECT pg_temp.release('f', 'a9');
SELECT pg_temp.take('f', 10);
SELECT pg_temp.retry('f', 'a9') AS again, pg_temp.take('f', 10);
SELECT pg_temp.release('f', 'a1');
SELECT pg_temp.take('f', 10);
SELECT claim_renew('f', claim_id, 1) IS NOT NULL AS shorter FROM taken WHERE body = 'a1';
SELECT pg_sleep(1.1);
SELECT pg_temp.take('f', 10);
-- A redriven message is new: the last of its group.  A dead letter that was
-- delivered from the dead letter queue comes first there, and no other one.
SELECT queue_push('f.dead', '"a0"', group_key => 'a') > 0 AS pushed;
SELECT body FROM queue_messages('f.dead');
SELECT pg_temp.take('f.dead', 10);
SELECT queue_push('f.dead', '"a10"', priority => 9, group_key => 'a') > 0 AS pushed;
SELECT pg_temp.take('f.dead', 10);
SELECT pg_temp.release('f.dead', 'a9');
SELECT pg_temp.take('f.dead', 10);
SELECT pg_temp.complete('f.dead', 'a9'), pg_temp.take('f.dead', 10);
SELECT pg_temp.release('f.dead', 'a10');
SELECT pg_temp.take('f.dead', 10);
SELECT pg_temp.complete('f.dead', 'a10'), pg_temp.live('f.dead');
SELECT queue_redrive('f.dead');
SELECT pg_temp.take('f', 10), pg_temp.complete('f', 'a2');
SELECT pg_temp.take('f', 10), pg_temp.complete('f', 'a3');
SELECT pg_temp.take('f', 10);
SELECT claim_count FROM taken WHERE body = 'a1';
SELECT queue_update('f.dead', '{"_group_concurrency": null}');
SELECT pg_temp.take('f.dead', 10);
SELECT queue_drop('f'), queue_drop('f.dead');

-- It is finished even while it cannot be moved.
CREATE ROLE regress_queue_grouper;
GRANT queue_producer, queue_consumer TO regress_queue_grouper;
SELECT queue_create('morgue');
SELECT queue_grant('morgue', 'regress_queue_grouper', 'push');
SET ROLE regress_queue_grouper;
SELECT queue_create('f', '{"_group_concurrency": 1, "_max_claim_count": 1, "_dead_letter_queue": "morgue"}');
RESET ROLE;
SELECT queue_revoke('morgue', 'regress_queue_grouper', 'push');
SET client_min_messages = error;
SELECT pg_temp.push('f', 'a', 1, 3);
SELECT pg_temp.take('f', 10), pg_temp.take('f', 10), pg_temp.release('f', 'a1');
SELECT pg_temp.take('f', 10);
SELECT claim_renew('f', claim_id, 1) IS NOT NULL AS shorter FROM taken WHERE body = 'a2';
SELECT pg_sleep(1.1);
SELECT pg_temp.pop('f', 10);
SELECT count(*) FROM queue_data.message WHERE queue = 'f';
SELECT count(*) FROM queue_messages('morgue');
-- also while it is delayed
SELECT pg_temp.push('f', 'b', 1, 2);
SELECT pg_temp.take('f', 10);
SELECT claim_release('f', claim_id, 1000, failed => true) FROM taken WHERE body = 'b1';
SELECT pg_temp.take('f', 10);
SELECT queue_update('f', '{"_max_claim_count": 9}') IS NOT NULL AS more;
SELECT pg_temp.release('f', 'b2');
SELECT pg_temp.take('f', 10);
SELECT queue_update('f', '{"_max_claim_count": 1}') IS NOT NULL AS less;
SELECT pg_temp.take('f', 10), pg_temp.push('f', 'a', 4, 4), pg_temp.push('f', 'b', 3, 3);
SELECT pg_temp.take('f', 10);
RESET client_min_messages;
SELECT queue_drop('f'), queue_drop('morgue');
DROP ROLE regress_queue_grouper;

-- Duplicates.  A key is the queue's, not the group's.
SELECT queue_create('f', '{"_group_concurrency": 1}');
SELECT queue_push('f', '"a1"', dedup_key => 'k', group_key => 'a') > 0 AS pushed;
SELECT queue_push('f', '"b1"', dedup_key => 'k', group_key => 'b') IS NULL AS duplicate;
SELECT pg_temp.take('f', 10);
-- accepted, as the first one is claimed, and a duplicate when its turn comes
SELECT queue_push('f', '"a2"', dedup_key => 'k', group_key => 'a') > 0 AS pushed;
SELECT pg_temp.push('f', 'a', 3, 4);
SELECT pg_temp.take('f', 10);
SELECT pg_temp.release('f', 'a1');
SELECT pg_temp.take('f', 10);
SELECT pg_temp.complete('f', 'a1');
SELECT pg_temp.take('f', 10);
SELECT pg_temp.complete('f', 'a3'), pg_temp.take('f', 10);
SELECT pg_temp.complete('f', 'a4'), pg_temp.take('f', 10);
SELECT total, (SELECT duplicates FROM job_stats('f')) FROM queue_stats('f');
-- A message that was delivered becomes a duplicate by a run in another group.
SELECT queue_push('f', '"a1"', dedup_key => 'l', group_key => 'a') > 0 AS pushed;
SELECT pg_temp.take('f', 10);
SELECT queue_push('f', '"b1"', dedup_key => 'l', group_key => 'b') > 0 AS pushed;
SELECT pg_temp.push('f', 'a', 5, 5);
SELECT pg_temp.take('f', 10), pg_temp.release('f', 'a1'), pg_temp.complete('f', 'b1');
SELECT pg_temp.take('f', 10), pg_temp.complete('f', 'a5');
-- Leaves of an older root
SELECT job_root('f', 'r') AS old \gset
SELECT queue_push('f', jsonb_build_object('n', 1) || :'old', group_key => 'a') > 0 AS pushed;
SELECT job_root('f', 'r') AS new \gset
SELECT queue_push('f', jsonb_build_object('n', 2) || :'new', group_key => 'a') > 0 AS pushed;
SELECT body -> 'n' AS n FROM queue_claim('f', 300, 0, 10);
SELECT queue_drop('f');
-- one that was delivered
SELECT queue_create('f', '{"_group_concurrency": 1}');
SELECT job_root('f', 'r') AS old \gset
SELECT queue_push('f', jsonb_build_object('n', 1) || :'old', group_key => 'a') > 0 AS pushed;
SELECT queue_push('f', '{"n": 2}', group_key => 'a') > 0 AS pushed;
SELECT claim_id AS claim, body -> 'n' AS n FROM queue_claim('f', 300, 0, 10) \gset
SELECT :'n' AS n, job_root('f', 'r') IS NOT NULL AS newer, claim_release('f', :'claim', failed => true);
SELECT body -> 'n' AS n FROM queue_claim('f', 300, 0, 10);
SELECT queue_drop('f');

---
-- queue_wait and queue_ready: a queue whose groups are all at their bounds has
-- nothing for the caller.
---
SELECT queue_create('w', '{"_group_concurrency": 1}');
SELECT pg_temp.push('w', 'a', 1, 2), pg_temp.push('w', 'b', 1, 1);
CALL queue_wait('w', 0);
SELECT pg_temp.take('w', 1) IS NOT NULL AS one;
CALL queue_wait('w', 0);
SELECT 'w' IN (SELECT queue_ready()) AS ready;
SELECT pg_temp.take('w', 1, 1) IS NOT NULL AS other;
CALL queue_wait('w', 0);
SELECT 'w' IN (SELECT queue_ready()) AS ready;
SELECT pg_temp.complete('w', 'b1');
CALL queue_wait('w', 0);
SELECT 'w' IN (SELECT queue_ready()) AS ready;
SELECT pg_temp.retry('w', 'a1', 1000);
CALL queue_wait('w', 0);
SELECT 'w' IN (SELECT queue_ready()) AS ready;
SELECT message_delete('w', id) FROM taken WHERE body = 'a1';
CALL queue_wait('w', 0);
SELECT 'w' IN (SELECT queue_ready()) AS ready;
SELECT pg_temp.take('w', 10);
CALL queue_wait('w', 0);
SELECT pg_temp.push('w', NULL, 1, 1);
CALL queue_wait('w', 0);
SELECT 'w' IN (SELECT queue_ready()) AS ready;
-- A bound of 2 leaves room for one more.
SELECT pg_temp.take('w', 10), pg_temp.push('w', 'a', 3, 4);
CALL queue_wait('w', 0);
SELECT queue_update('w', '{"_group_concurrency": 2}') ->> '_group_concurrency' AS bound;
CALL queue_wait('w', 0);
SELECT pg_temp.take('w', 10);
CALL queue_wait('w', 0);
SELECT queue_drop('w');

---
-- Handlers keep turns, order and bounds.
---
-- Only this session runs jobs here: a template database has no worker.
ALTER DATABASE :"DBNAME" IS_TEMPLATE true;
DO $$
BEGIN
    SET LOCAL client_min_messages = error;  -- one may have ended already
    WHILE EXISTS (SELECT FROM pg_stat_activity
                  WHERE datname = current_database() AND backend_type LIKE 'queue %')
          OR EXISTS (SELECT FROM queue_data.queue_workers
                     WHERE database = current_database() AND state <> 'wanted')
    LOOP
        PERFORM pg_terminate_backend(pid) FROM pg_stat_activity
            WHERE datname = current_database() AND backend_type LIKE 'queue %';
        PERFORM pg_sleep(0.01);
        PERFORM pg_stat_clear_snapshot();
    END LOOP;
END
$$;
CREATE TABLE ran (n serial, body text, group_key text, tries int, live bigint);
-- notes how many messages of the group are under live claims meanwhile; fails
-- when the body says so
CREATE FUNCTION handle(m queue_message) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO ran (body, group_key, tries, live)
        SELECT m.body #>> '{}', m.group_key, m.claim_count, count(*)
        FROM queue_data.message AS l
        WHERE l.queue = m.queue AND l.group_key = m.group_key AND l.state = 'claimed';
    RETURN m.body NOT IN ('"a2"');
END
$$;
CREATE PROCEDURE pg_temp.run(q text, max_jobs int = NULL) LANGUAGE plpgsql AS $$
DECLARE
    r jsonb;
BEGIN
    CALL job_run(ARRAY[q], max_jobs, 60, r);
    RAISE INFO 'ok %, failed %, %', r -> 'ok', r -> 'failed', r ->> 'reached';
END
$$;
-- Rows that failed are rolled back with the handler's effects.
CREATE FUNCTION pg_temp.ran() RETURNS text LANGUAGE sql AS $$
    SELECT pg_temp.rounds(array_agg(
        (n, '', to_jsonb(body), 0, 0, '', tries, 0, now(), group_key, NULL)::queue_message
        ORDER BY n)) FROM ran
$$;
SELECT queue_create('h', '{"_max_claim_count": 3, "_retry_delay": 0}'), job_handler('h', 'handle(queue_message)');
SELECT pg_temp.push('h', 'b', 1, 30), pg_temp.push('h', 'c', 1, 1), pg_temp.push('h', NULL, 1, 2);
CALL pg_temp.run('h', 8);
SELECT pg_temp.ran();
TRUNCATE ran;
SELECT queue_purge('h');
SELECT queue_update('h', '{"_group_concurrency": 2, "_retry_delay": 0}') IS NOT NULL AS bound;
SELECT pg_temp.push('h', 'b', 1, 9), pg_temp.push('h', 'c', 1, 2), pg_temp.push('h', NULL, 1, 4);
CALL pg_temp.run('h');
SELECT count(*), max(live) <= 2 AS bounded FROM ran WHERE group_key IS NOT NULL;
SELECT group_key, string_agg(body, ' ' ORDER BY n) FROM ran GROUP BY 1 ORDER BY 1 NULLS FIRST;
TRUNCATE ran;
-- first in, first out: what fails comes first until it is a dead letter
SELECT queue_update('h', '{"_group_concurrency": 1, "_retry_delay": 0}') IS NOT NULL AS bound;
SELECT pg_temp.push('h', 'a', 1, 4), pg_temp.push('h', 'b', 1, 3);
SELECT queue_push('h', '"a9"', priority => 9, group_key => 'a') > 0 AS pushed;
SET client_min_messages = error;
CALL pg_temp.run('h');
RESET client_min_messages;
SELECT group_key, string_agg(body, ' ' ORDER BY n), max(live) FROM ran GROUP BY 1 ORDER BY 1;
SELECT body, claim_count FROM queue_dead_letters('h.dead');
TRUNCATE ran;
-- or until it is due again
SELECT queue_update('h', '{"_retry_delay": 1000, "_max_claim_count": 9}') IS NOT NULL AS bound;
SELECT pg_temp.push('h', 'a', 1, 4), pg_temp.push('h', 'b', 1, 3);
SET client_min_messages = error;
CALL pg_temp.run('h');
RESET client_min_messages;
SELECT group_key, string_agg(body, ' ' ORDER BY n) FROM ran GROUP BY 1 ORDER BY 1;
CALL pg_temp.run('h');
SELECT body, state, claim_count FROM queue_data.message WHERE queue = 'h' ORDER BY id;
-- a claim by hand counts as well
TRUNCATE ran;
SELECT queue_purge('h'), pg_temp.push('h', 'b', 1, 2), pg_temp.push('h', 'c', 1, 1);
SELECT pg_temp.take('h', 1, 1);
CALL pg_temp.run('h');
SELECT pg_temp.release('h', 'b1');
CALL pg_temp.run('h');
SELECT string_agg(body, ' ' ORDER BY n) FROM ran;
ALTER DATABASE :"DBNAME" IS_TEMPLATE false;

SET client_min_messages = warning;

-- A transaction may claim from 1,000 groups with a bound, and a claim from 100.
SELECT queue_create('thousand', '{"_group_concurrency": 1}');
SELECT count(*) FROM generate_series(1, 1100) AS i, queue_push('thousand', '1', group_key => i::text);
SET queue.max_claim_limit = 200;
SELECT count(*) FROM queue_claim('thousand', 60, 60, 200);
BEGIN;
DO $$
BEGIN
    FOR i IN 1 .. 10 LOOP
        ASSERT (SELECT count(*) FROM queue_claim('thousand', 60, 60, 100)) = 100;
    END LOOP;
END
$$;
ROLLBACK;
SELECT count(queue_push('thousand', '1', group_key => 'more' || i)) FROM generate_series(1, 100) AS i;
BEGIN;
DO $$
BEGIN
    FOR i IN 1 .. 11 LOOP
        PERFORM FROM queue_claim('thousand', 60, 60, 100);
    END LOOP;
END
$$;
ROLLBACK;
-- Locks that were rolled back do not count.
DO $$
BEGIN
    FOR i IN 1 .. 11 LOOP
        BEGIN
            ASSERT (SELECT count(*) FROM queue_claim('thousand', 60, 60, 100)) = 100;
            RAISE EXCEPTION 'undo';
        EXCEPTION WHEN raise_exception THEN
        END;
    END LOOP;
END
$$;
RESET queue.max_claim_limit;

---
-- What SQL has written makes the library forget what it knows of the queue: what was
-- claimed before counts nevertheless.
---

SELECT queue_create('forgotten', '{"_group_concurrency": 1}') IS NOT NULL AS created;
SELECT pg_temp.push('forgotten', 'a', 1, 3);
SELECT body FROM queue_claim('forgotten', 300, 60, 1);
CALL queue_wait('forgotten', 0);
SELECT count(*) FROM queue_claim('forgotten', 300, 60, 10);
UPDATE queue_data.message_0 SET body = body WHERE body = '"a3"';
SELECT count(*) FROM queue_claim('forgotten', 300, 60, 10);
SELECT queue_drop('forgotten');

---
-- A claim whose messages lie far apart: the session that has made it reads only
-- these.
---

CREATE FUNCTION pg_temp.reads() RETURNS bigint LANGUAGE sql AS $$
    SELECT sum(idx_tup_fetch)::bigint FROM pg_stat_xact_all_tables
    WHERE schemaname = 'queue_data'
$$;
SELECT count(queue_push('far', to_jsonb(i), group_key => 'g' || i / 500, priority => i % 2))
FROM generate_series(0, 4999) AS i;
SELECT min(claim_id) AS claim_id FROM queue_claim('far', 300, 60, 10) \gset
BEGIN;
SELECT pg_temp.reads() AS before \gset
SELECT string_agg(body::text, ' ' ORDER BY id) FROM claim_messages('far', :'claim_id');
SELECT message_count FROM claim_get('far', :'claim_id');
SELECT claim_renew('far', :'claim_id', 300) IS NOT NULL AS renewed;
SELECT message_delete('far', min(id), :'claim_id') FROM claim_messages('far', :'claim_id');
SELECT claim_release('far', :'claim_id', failed => true);
SELECT pg_temp.reads() - :before < 500 AS few;
SELECT count(*) FROM claim_messages('far', :'claim_id');
ROLLBACK;
SELECT count(*) FROM claim_next('far', :'claim_id', 300, 60, 10);

DROP EXTENSION queue CASCADE;
DROP TABLE ran;
