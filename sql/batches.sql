-- Batches of messages (SPEC section 14).
SET client_min_messages = warning;
DROP EXTENSION IF EXISTS queue CASCADE;
CREATE EXTENSION queue;
RESET client_min_messages;

-- Wait until a batch has finished, which the worker notices a moment later.
CREATE PROCEDURE finished(b bigint, INOUT result text = NULL) LANGUAGE plpgsql AS $$
DECLARE
    s record;
BEGIN
    FOR i IN 1 .. 3000 LOOP
        SELECT * INTO s FROM batch_status(b);
        EXIT WHEN s.finished_at IS NOT NULL AND s.waiting = 0;
        COMMIT;
        PERFORM pg_sleep(0.01);
    END LOOP;
    result := format('%s of %s completed, %s failed, %s unfinished, %s waiting',
                     s.completed, s.members, s.failed, s.unfinished, s.waiting);
END
$$;
CREATE VIEW open_batches AS
SELECT b.name, s.members, s.unfinished, s.completed, s.failed, s.waiting,
       s.closed_at IS NOT NULL AS closed, s.finished_at IS NOT NULL AS finished
FROM batch_list("limit" => 1000) AS b, batch_status(b.batch) AS s;

-- members, and a message that waits for them
SELECT batch_create('import', keep_open => true) AS b \gset
SELECT queue_push('work', to_jsonb(i), batch => :b) IS NOT NULL AS pushed
FROM generate_series(1, 3) AS i;
SELECT queue_push('report', '"done"', after => :b) AS waits \gset
SELECT * FROM open_batches;
SELECT count(*) AS free FROM queue_claim('report');
SELECT state, due_at, batch, after_batch = :b AS after
FROM queue_data.message WHERE queue = 'report';
SELECT claimed, free, delayed FROM queue_stats('report');
SELECT batch_close(:b);
SELECT batch_close(:b) AS again;
SELECT count(*) AS popped FROM queue_pop('work', 2);
SELECT * FROM open_batches;
SELECT claim_id FROM queue_claim('work') \gset
SELECT claim_complete('work', :'claim_id');
CALL finished(:b);
SELECT id = :waits AS same, body, headers - '{batch}'::text[] AS others,
       (headers -> 'batch') - '{id}'::text[] AS batch, (headers -> 'batch' ->> 'id')::bigint = :b AS id
FROM queue_claim('report');
SELECT count(*) AS parts FROM queue_data.batch_part;

-- a batch that has finished takes no members, and is not waited for
SELECT queue_push('work', '1', batch => :b);
SELECT queue_push('report', '2', after => :b, headers => '{"a": 1}') IS NOT NULL AS pushed;
SELECT body, headers -> 'a' AS a, (headers -> 'batch') - '{id}'::text[] AS batch FROM queue_claim('report');

-- a batch without members finishes at once, or when it is closed
SELECT batch_create('empty') AS b \gset
CALL finished(:b);
SELECT batch_create('empty, open', true) AS b \gset
SELECT queue_push('report', '3', after => :b) IS NOT NULL AS pushed;
SELECT pg_sleep(0.1);
SELECT count(*) AS free FROM queue_claim('report');
SELECT batch_close(:b);
CALL finished(:b);
SELECT body FROM queue_pop('report');

-- all in one transaction, and what it rolls back
BEGIN;
SELECT batch_create('rolled back') AS b \gset
SELECT queue_push('work', '1', batch => :b) IS NOT NULL AS pushed;
SELECT queue_push('report', '4', after => :b) IS NOT NULL AS pushed;
SELECT members, unfinished, waiting FROM batch_status(:b);
SAVEPOINT s;
SELECT queue_push('work', '2', batch => :b) IS NOT NULL AS pushed;
SELECT members, unfinished, waiting FROM batch_status(:b);
ROLLBACK TO s;
SELECT members, unfinished, waiting FROM batch_status(:b);
SELECT queue_push('work', '3', batch => :b) IS NOT NULL AS pushed;
ROLLBACK TO s;
COMMIT;
SELECT count(*) AS popped FROM queue_pop('work', 10);
CALL finished(:b);
SELECT body, (headers -> 'batch') - '{id}'::text[] AS batch FROM queue_pop('report');
BEGIN;
SELECT batch_create('gone') AS b \gset
ROLLBACK;
SELECT * FROM batch_status(:b);

-- the completion of a member is rolled back
SELECT batch_create('again', true) AS b \gset
SELECT queue_push('work', '1', batch => :b) IS NOT NULL AS pushed;
SELECT batch_close(:b);
BEGIN;
SELECT count(*) AS popped FROM queue_pop('work');
ROLLBACK;
SELECT unfinished, completed, finished_at FROM batch_status(:b);
SELECT count(*) AS popped FROM queue_pop('work');
CALL finished(:b);

-- how members end: completed, popped, deleted, a duplicate; purged, expired, a
-- dead letter
SELECT batch_create('ends', true) AS b \gset
SELECT queue_create('ends', '{"_max_claim_count": 1}');
SELECT queue_push('ends', '"deleted"', batch => :b) AS id \gset
SELECT message_delete('ends', :id);
SELECT queue_push('ends', '"completed"', batch => :b) IS NOT NULL AS pushed;
SELECT claim_id FROM queue_claim('ends') \gset
SELECT claim_complete('ends', :'claim_id');
SELECT queue_push('ends', '"popped"', batch => :b) IS NOT NULL AS pushed;
SELECT body FROM queue_pop('ends');
SELECT queue_push('ends', '"retried"', batch => :b) IS NOT NULL AS pushed;
SELECT id, claim_id FROM queue_claim('ends') \gset
SELECT message_retry('ends', :id, :'claim_id', 'broken', 0);
SELECT members, unfinished, completed, failed FROM batch_status(:b);
SELECT body, reason FROM queue_dead_letters('ends.dead');
SELECT queue_push('ends', '"purged"', batch => :b) IS NOT NULL AS pushed
FROM generate_series(1, 2);
SELECT queue_purge('ends');
SELECT members, unfinished, completed, failed FROM batch_status(:b);
SET queue.min_message_ttl = 1;
SELECT queue_push('ends', '"expires"', ttl => 1, batch => :b) IS NOT NULL AS pushed;
RESET queue.min_message_ttl;
SELECT queue_push('ends', '"key"', dedup_key => 'k', batch => :b) IS NOT NULL AS pushed;
SELECT queue_push('ends', '"key"', dedup_key => 'k', batch => :b) AS duplicate;
SELECT pg_sleep(1.5);
SELECT body FROM queue_pop('ends');
SELECT batch_close(:b);
CALL finished(:b);
SELECT queue_redrive('ends.dead');
SELECT members, completed, failed FROM batch_status(:b);
SELECT queue_purge('ends');

-- after_success
SELECT batch_create('fails', true) AS b \gset
SELECT queue_push('ends', '"purged"', batch => :b) IS NOT NULL AS pushed;
SELECT queue_push('report', '"in any case"', after => :b) IS NOT NULL AS pushed;
SELECT queue_push('report', '"if all is well"', after => :b, after_success => true)
       IS NOT NULL AS pushed;
SELECT queue_purge('ends');
SELECT batch_close(:b);
CALL finished(:b);
SELECT body, (headers -> 'batch') - '{id}'::text[] AS batch FROM queue_pop('report', 10);
SELECT body, origin_queue, reason FROM queue_dead_letters('report.dead');
SELECT queue_push('report', '"too late"', after => :b, after_success => true)
       IS NOT NULL AS pushed;
CALL finished(:b);
SELECT body, reason FROM queue_dead_letters('report.dead') ORDER BY id DESC LIMIT 1;
SELECT batch_create('succeeds', true) AS b \gset
SELECT queue_push('report', '"if all is well"', after => :b, after_success => true)
       IS NOT NULL AS pushed;
SELECT batch_close(:b);
CALL finished(:b);
SELECT body FROM queue_pop('report', 10);

-- a delay counts from the end; so do ttl and deduplication
SELECT batch_create('delay', true) AS b \gset
SELECT queue_push('report', '"later"', delay => 1, after => :b) IS NOT NULL AS pushed;
SELECT queue_push('report', '"key"', dedup_key => 'k', after => :b) IS NOT NULL AS pushed;
SELECT queue_push('report', '"key, again"', dedup_key => 'k', after => :b) IS NOT NULL AS pushed;
SET queue.min_message_ttl = 1;
SELECT queue_push('report', '"short"', ttl => 5, after => :b) AS short \gset
RESET queue.min_message_ttl;
SELECT age, ttl FROM message_get('report', :short);
SELECT batch_close(:b);
CALL finished(:b);
SELECT ttl, age < 5 AS young FROM message_get('report', :short);
SELECT state, after_batch, due_at - created_at AS delay
FROM queue_data.message WHERE queue = 'report' AND body = '"later"';
SELECT body FROM queue_pop('report', 10) ORDER BY body::text;
SELECT queue_purge('report');

-- a member of one batch that waits for an older one
SELECT batch_create('first', true) AS b1 \gset
SELECT batch_create('second', true) AS b2 \gset
SELECT :b2 > :b1 AS grows;
SELECT queue_push('work', '"second"', batch => :b2, after => :b1) IS NOT NULL AS pushed;
SELECT queue_push('work', '"third"', after => :b2) IS NOT NULL AS pushed;
SELECT queue_push('work', '"circle"', batch => :b1, after => :b2);
SELECT queue_push('work', '"circle"', batch => :b1, after => :b1);
SELECT name, members, unfinished, waiting, finished FROM open_batches
WHERE name IN ('first', 'second');
SELECT batch_close(:b1);
CALL finished(:b1);
SELECT batch_close(:b2);
SELECT body FROM queue_pop('work', 10);
CALL finished(:b2);
SELECT body FROM queue_pop('work', 10);

-- every push takes them
SELECT batch_create('pushes', true) AS b \gset
SELECT array_length(queue_push_batch('work', ARRAY['1', '2']::jsonb[], batch => :b), 1);
SELECT queue_push_once('work', 'table', 1, '3', batch => :b) IS NOT NULL AS pushed;
SELECT queue_push_once('work', 'table', 1, '3', batch => :b) IS NOT NULL AS again;
SELECT array_length(queue_post('work', jsonb_build_array(
    jsonb_build_object('body', 4, 'batch', :b),
    jsonb_build_object('body', 5, 'after', :b, 'after_success', true),
    jsonb_build_object('body', 6))), 1);
SELECT array_length(queue_post(NULL, jsonb_build_array(
    jsonb_build_object('queue', 'work', 'body', 7, 'batch', :b))), 1);
SELECT body FROM queue_step('work', push => jsonb_build_array(
    jsonb_build_object('body', 8, 'batch', :b)), "limit" => 1);
SELECT members, unfinished, waiting FROM batch_status(:b);
SELECT queue_post('work', '[{"body": 1, "batch": "x"}]');
SELECT queue_post('work', '[{"body": 1, "after_success": 1}]');
SELECT queue_purge('work');
SELECT batch_close(:b);
CALL finished(:b);
SELECT queue_purge('work.dead');

-- a queue is dropped with members, and with what waits
SELECT batch_create('dropped', true) AS b \gset
SELECT queue_push('drop', '1', batch => :b) IS NOT NULL AS pushed;
SELECT queue_push('drop', '2', after => :b) IS NOT NULL AS pushed;
SELECT queue_drop('drop');
SELECT batch_close(:b);
CALL finished(:b);

-- roles
CREATE ROLE regress_batches_a;
CREATE ROLE regress_batches_b;
CREATE ROLE regress_batches_c;
GRANT queue_producer, queue_consumer TO regress_batches_a, regress_batches_b;
GRANT regress_batches_a TO regress_batches_c;
SET ROLE regress_batches_a;
SELECT batch_create('private', true) AS b \gset
SELECT queue_push('work', '1', batch => :b) IS NOT NULL AS pushed;
SELECT name FROM batch_list();
SET ROLE regress_batches_b;
SELECT name FROM batch_list();
SELECT queue_push('work', '1', batch => :b);
SELECT queue_push('work', '1', after => :b);
SELECT batch_close(:b);
SELECT * FROM batch_status(:b);
SELECT count(*) AS others_complete FROM queue_pop('work', 10);
SET ROLE regress_batches_c;
SELECT name FROM batch_list();
SELECT members, unfinished FROM batch_status(:b);
SELECT batch_close(:b);
RESET ROLE;
CALL finished(:b);
DROP OWNED BY regress_batches_a, regress_batches_b, regress_batches_c;

-- lists
SELECT name FROM batch_list("limit" => 3);
SELECT name FROM batch_list((SELECT batch FROM batch_list("limit" => 2) ORDER BY batch DESC LIMIT 1), 2);

-- wrong arguments
SELECT batch_create(keep_open => NULL);
SELECT batch_create(repeat('x', 257));
SELECT batch_close(NULL);
SELECT batch_close(0);
SELECT batch_status(NULL);
SELECT batch_status(-1);
SELECT batch_list("limit" => 0);
SELECT queue_push('work', '1', batch => 0);
SELECT queue_push('work', '1', after => 1000000);
BEGIN READ ONLY;
SELECT batch_create();
ROLLBACK;
BEGIN READ ONLY;
SELECT members, completed FROM batch_status(:b);
ROLLBACK;

-- Messages of no batch have no entry in the indexes.
SELECT sum(pg_relation_size(c.oid)) <= 20 * 8192 * 3 AS small
FROM pg_class AS c
WHERE relnamespace = 'queue_data'::regnamespace AND relname ~ '(batch|after)_idx$'
AND relname ~ '^(message|delayed)';

-- A batch that was never committed, before one that was
BEGIN;
SELECT batch_create() AS gone \gset
ROLLBACK;
SELECT batch_create(keep_open => true) AS b \gset
\set VERBOSITY sqlstate
SELECT members FROM batch_status(:gone);
\set VERBOSITY default
SELECT batch_cancel(:b) AS canceled;

-- The extension is dropped in the transaction that adds a member.
DROP ROLE regress_batches_a, regress_batches_b, regress_batches_c;
SET client_min_messages = warning;
BEGIN;
SELECT batch_create() AS b \gset
SELECT queue_push('work', '1', batch => :b) IS NOT NULL AS pushed;
DROP EXTENSION queue CASCADE;
COMMIT;
DROP PROCEDURE finished;
