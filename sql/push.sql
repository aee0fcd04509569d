-- Push, one by one and in batches.

CREATE EXTENSION queue;
SET queue.min_claim_ttl = 1;
SET queue.min_message_ttl = 1;
\set VERBOSITY sqlstate

-- An unknown queue is created; ids grow with time.
SELECT queue_push('q', '{"n": 1}') AS id1 \gset
SELECT queue_push('q', '{"n": 2}') AS id2 \gset
SELECT queue_push('q', '{"n": 3}') AS id3 \gset
SELECT 0 < :id1 AS positive, :id1 < :id2 AND :id2 < :id3 AS grow;
SELECT name, metadata, paused FROM queue_list();

-- all columns of a message
SELECT id = :id1 AS id, queue, body, ttl, age BETWEEN 0 AND 600 AS age,
       claim_id, claim_count, priority,
       created_at BETWEEN now() - interval '1 h' AND clock_timestamp()
           AS created_at
    FROM message_get('q', :id1);
SELECT queue_push(q => 'q', body => '4', ttl => 300, delay => 0,
                  priority => 9, dedup_key => 'key') AS id4 \gset
SELECT body, ttl, claim_id, claim_count, priority
    FROM message_get('q', :id4);

-- by the server's clock: neither age nor created_at is that of the start of the
-- transaction, and age is never negative
BEGIN;
SELECT pg_sleep(1.1);
SELECT queue_push('clock', '1') AS id \gset
SELECT age BETWEEN 0 AND 600 AS age, created_at >= now() + interval '1.1 s' AS created
    FROM message_get('clock', :id);
SELECT pg_sleep(1.1);
SELECT age BETWEEN 1 AND 600 AS age FROM message_get('clock', :id);
COMMIT;

-- any jsonb
CREATE TEMP TABLE bodies (n int, body jsonb);
INSERT INTO bodies VALUES
    (1, 'null'), (2, 'true'), (3, 'false'), (4, '0'), (5, '-1.50e10'),
    (6, '123456789012345678901234567890.123456789'), (7, '""'),
    (8, '"it''s \"quoted\" \\ and\ttabbed"'), (9, '[]'), (10, '{}'),
    (11, '[1, [2, [3, {"a": []}]]]'), (12, '{"": {"": ""}}'),
    (13, to_jsonb('umlaut ' || chr(228))),
    (14, to_jsonb(repeat('compress me ', 10000))),
    (15, (SELECT jsonb_agg(md5(i::text)) FROM generate_series(1, 3000) i)),
    (16, (SELECT jsonb_object_agg(i, i) FROM generate_series(1, 1000) i)),
    (17, (repeat('[', 1000) || repeat(']', 1000))::jsonb);
SELECT n, (SELECT m.body = b.body
           FROM message_get('bodies', queue_push('bodies', b.body)) m) AS same
    FROM bodies b ORDER BY n;
SELECT count(*) AS same
    FROM unnest(queue_push_batch('bodies/2',
                                 (SELECT array_agg(body ORDER BY n)
                                  FROM bodies)))
         WITH ORDINALITY AS i (id, n)
         JOIN bodies b USING (n)
         CROSS JOIN LATERAL (SELECT body FROM message_get('bodies/2', i.id)) m
    WHERE m.body = b.body;
-- a claim returns them unchanged as well (out-of-line ones too)
SELECT count(*) AS same
    FROM queue_claim('bodies', 60, 60, 100) WITH ORDINALITY AS c
         JOIN bodies b ON b.n = c.ordinality AND b.body = c.body;

-- priorities
SELECT queue_push('priority', to_jsonb(p), priority => p) IS NOT NULL
    FROM generate_series(0, 9) p;
SELECT bool_and(body = to_jsonb(priority)), count(*)
    FROM queue_messages('priority');
SELECT queue_push('priority', '0', priority => -1);
SELECT queue_push('priority', '0', priority => 10);
SELECT queue_push('priority', '0', priority => NULL);

-- Its own transaction sees a push, which is gone if that rolls back.
BEGIN;
SELECT queue_push('undone', '1') > 0 AS pushed;
SELECT body FROM queue_messages('undone');
ROLLBACK;
SELECT queue_exists('undone');
BEGIN;
SELECT queue_push('half', '"kept"') > 0 AS pushed;
SAVEPOINT s1;
SELECT queue_push('half', '"lost"') > 0 AS pushed;
SAVEPOINT s2;
SELECT queue_push('half', '"lost too"') > 0 AS pushed;
RELEASE s2;
ROLLBACK TO s1;
SELECT queue_push('half', '"kept too"') > 0 AS pushed;
COMMIT;
SELECT body FROM queue_messages('half');
SELECT body FROM queue_claim('half', 60, 60);
-- pushed and claimed in one statement
BEGIN;
SELECT queue_push('half', '"both"') > 0 AS pushed;
SELECT body FROM queue_claim('half', 60, 60);
ROLLBACK;
SELECT count(*) FROM queue_messages('half', include_claimed => true)
    WHERE body = '"both"';

-- many in one statement, and an error rolls back all of them
SELECT count(queue_push('many', to_jsonb(i))) FROM generate_series(1, 500) i;
SELECT count(*), count(DISTINCT id),
       array_agg(body ORDER BY id) = array_agg(body ORDER BY body) AS in_order
    FROM queue_messages('many', "limit" => 10000);
SELECT count(queue_push('many', to_jsonb(1 / (i - 400))))
    FROM generate_series(1, 500) i;
SELECT total FROM queue_stats('many');

-- a batch: ids in the order of the bodies, which is the order of claims
SELECT queue_push_batch('batch', '{"\"a\"", "\"b\"", "\"c\"", "\"d\""}') AS ids \gset
SELECT cardinality(:'ids'::bigint[]),
       :'ids'::bigint[] = (SELECT array_agg(i ORDER BY i)
                           FROM unnest(:'ids'::bigint[]) i) AS grow;
SELECT body, ttl, priority FROM messages_get('batch', :'ids');
SELECT body FROM queue_claim('batch', 60, 60);
SELECT queue_push_batch(q => 'batch', bodies => '{1}', ttl => 200,
                        delay => 50, priority => 7) AS ids \gset
SELECT body, ttl, priority FROM messages_get('batch', :'ids');
SELECT free, claimed, delayed FROM queue_stats('batch');
SELECT queue_push_batch('batch', '{}');
-- more than fits one page or one multi-insert
SELECT array_length(queue_push_batch('batch/2',
    (SELECT array_agg(jsonb_build_object('n', i, 'text', repeat('x', i % 3000))
                      ORDER BY i)
     FROM generate_series(1, 2500) i)), 1);
SELECT count(*), bool_and((body ->> 'n')::int = n) AS in_order,
       bool_and(length(body ->> 'text') = n % 3000) AS whole
    FROM (SELECT body, row_number() OVER (ORDER BY id) AS n
          FROM queue_messages('batch/2', "limit" => 10000)) AS s;
-- a part of a larger array, with bounds of its own
SELECT cardinality(queue_push_batch('batch/3',
    ('[5:7]={10,11,12}'::jsonb[])[6:7]));
SELECT cardinality(queue_push_batch('batch/3', '[0:1]={13,14}'));
SELECT body FROM queue_messages('batch/3');
-- all or nothing
SELECT queue_push_batch('batch/4', ARRAY['1', NULL, '3']::jsonb[]);
SELECT queue_push_batch('batch/4',
    ARRAY['1', to_jsonb(repeat('x', 262144)), '3']);
SELECT queue_exists('batch/4');

-- at every isolation level
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT 1 AS snapshot;
SELECT queue_push('levels', '1') > 0 AS pushed;
SELECT body FROM queue_messages('levels');
SELECT body FROM queue_claim('levels', 60, 60);
COMMIT;
BEGIN ISOLATION LEVEL SERIALIZABLE;
SELECT 1 AS snapshot;
SELECT queue_push('levels', '2') > 0 AS pushed;
SELECT body FROM queue_claim('levels', 60, 60);
COMMIT;
SELECT claimed, total FROM queue_stats('levels');

-- from a prepared statement with untyped parameters, many times
PREPARE push AS SELECT queue_push($1, $2, $3) > 0 AS pushed;
EXECUTE push('prepared', '1', 100);
EXECUTE push('prepared', '2', 100);
EXECUTE push('prepared', '3', 100);
EXECUTE push('prepared', '4', 100);
EXECUTE push('prepared', '5', 100);
EXECUTE push('prepared', '6', 100);
EXECUTE push('prepared', '7', NULL);
DEALLOCATE push;
SELECT count(*) FROM queue_messages('prepared');

-- from a trigger, as part of the work
CREATE TABLE orders (n int);
CREATE FUNCTION order_trigger() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM queue_push('orders', to_jsonb(NEW));
    RETURN NEW;
END
$$;
CREATE TRIGGER push AFTER INSERT ON orders
    FOR EACH ROW EXECUTE FUNCTION order_trigger();
INSERT INTO orders VALUES (1), (2), (3);
INSERT INTO orders SELECT 1 / (n - 3) FROM orders ORDER BY n;
SELECT body FROM queue_messages('orders');
DROP TABLE orders;
DROP FUNCTION order_trigger();

DROP TABLE bodies;
DROP EXTENSION queue;
