-- message_cancel: a message is removed, or if a claim holds it, nothing that is
-- done for it takes effect any more.

CREATE EXTENSION queue;
SET client_min_messages = warning;
SET queue.min_claim_ttl = 1;
-- DETAIL has ids of messages.
CREATE FUNCTION refused(command text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    detail text;
    m bigint;
    place integer := 0;
BEGIN
    EXECUTE command;
    RETURN 'not refused';
EXCEPTION WHEN SQLSTATE 'QU004' THEN
    GET STACKED DIAGNOSTICS detail = PG_EXCEPTION_DETAIL;
    FOR m IN SELECT (queue_message).id FROM m ORDER BY 1 LOOP
        place := place + 1;
        detail := replace(detail, m::text, 'm' || place);
    END LOOP;
    RETURN SQLERRM || ': ' || detail;
END
$$;
CREATE TABLE m (body jsonb, queue_message queue_message);

-- No claim holds it.
SELECT queue_push('q', '1') AS m1, queue_push('q', '2', delay => 60) AS m2 \gset
SELECT message_cancel('q', :m1), message_cancel('q', :m2, 'not needed');
SELECT message_cancel('q', :m1), message_cancel('q', 1), message_cancel('unknown', 1);
SELECT count(*) FROM queue_messages('q', include_delayed => true);
SELECT completed, expired FROM job_stats('q');

-- A claim holds it: all that would complete it is refused, once and again.
SELECT count(queue_push('q', to_jsonb(i))) FROM generate_series(1, 5) AS i;
INSERT INTO m SELECT c.body, c FROM queue_claim('q', "limit" => 5) AS c;
SELECT (queue_message).id AS m1, (queue_message).claim_id AS c FROM m WHERE body = '1' \gset
SELECT (queue_message).id AS m2 FROM m WHERE body = '2' \gset
SELECT (queue_message).id AS m3 FROM m WHERE body = '3' \gset
SELECT message_cancel('q', :m2, 'not needed'), message_cancel('q', :m2);
SELECT refused(format('SELECT message_delete(''q'', %s, %L)', :m2, :'c'));
SELECT refused(format('SELECT messages_delete(''q'', ARRAY[%s, %s], %L)', :m1, :m2, :'c'));
SELECT refused(format('SELECT message_retry(''q'', %s, %L)', :m2, :'c'));
SELECT refused(format('SELECT message_bury(''q'', %s, %L, ''bad'')', :m2, :'c'));
SELECT refused(format('SELECT claim_complete(''q'', %L)', :'c'));
SELECT refused(format('SELECT claim_next(''q'', %L)', :'c'));
SELECT refused(format('SELECT queue_step(''q'', %L)', :'c'));
SELECT refused(format('SELECT queue_step(''q'', %L, ARRAY[%s])', :'c', :m1));
SELECT refused(format('SELECT queue_step(''q'', %L, ''{}'', ''[{"id": %s}]'')', :'c', :m1));
\set VERBOSITY sqlstate
SELECT message_delete('q', :m2);
\set VERBOSITY default
-- Nothing was completed, and the claim does not show it.
SELECT message_count FROM claim_get('q', :'c');
SELECT body FROM claim_messages('q', :'c');
SELECT body, claimed FROM (SELECT body, claim_id IS NOT NULL AS claimed FROM message_get('q', :m2)) AS g;
SELECT body, state, expires_at = claimed_until AS ends FROM queue_data.message ORDER BY body;

-- The others can be finished one by one, or given back; the rest is renewed.
SELECT message_delete('q', :m1, :'c');
SELECT claim_renew('q', :'c', 600) IS NOT NULL AS renewed;
SELECT message_count, ttl FROM claim_get('q', :'c');
SELECT messages_cancel('q', ARRAY[:m2, :m3, :m3, :m1]);
SELECT refused(format('SELECT claim_complete(''q'', %L)', :'c'));
SELECT claim_release('q', :'c');
SELECT body, claim_count FROM queue_messages('q') ORDER BY body;
\set VERBOSITY sqlstate
SELECT message_delete('q', :m2, :'c');
\set VERBOSITY default

-- A claim of which nothing else is left
SELECT id AS m4, claim_id AS c FROM queue_claim('q', "limit" => 1) \gset
SELECT message_cancel('q', :m4);
SELECT claim_renew('q', :'c', 600), claim_release('q', :'c');
SELECT claim_release('q', :'c');

-- Rolled back, it never was canceled.
SELECT id AS m5, claim_id AS c FROM queue_claim('q', "limit" => 1) \gset
BEGIN;
SELECT message_cancel('q', :m5);
SAVEPOINT s;
SELECT refused(format('SELECT claim_complete(''q'', %L)', :'c')) LIKE 'message was canceled%' AS refused;
ROLLBACK;
SELECT claim_complete('q', :'c');

-- It is removed when its claim ends, by the next claim where there is no worker.
SELECT queue_push('q', '6') AS m6 \gset
SELECT claim_id AS c FROM queue_claim('q', 1, 600) \gset
SELECT message_cancel('q', :m6);
SELECT pg_sleep(1.1);
SELECT count(*) FROM queue_claim('q');
\set VERBOSITY sqlstate
SELECT message_delete('q', :m6, :'c');
\set VERBOSITY default
SELECT count(*) FROM queue_messages('q', include_claimed => true);
SELECT expired FROM job_stats('q');

-- An error of at most 8 kB is kept with it.
SELECT queue_push('q', '7') AS m7 \gset
SELECT claim_id AS c FROM queue_claim('q') \gset
SELECT message_cancel('q', :m7, repeat('x', 1000000));
SELECT state, length(attributes ->> 'last_error') FROM queue_data.message;
SELECT claim_release('q', :'c');

-- A message that covers twins: its cancel is not their completion.
SELECT queue_push('d', '1', dedup_key => 'twin') AS d1 \gset
SELECT claim_id AS c FROM queue_claim('d') \gset
SELECT queue_push('d', '1', dedup_key => 'twin') AS d2 \gset
SELECT claim_release('d', :'c');
SELECT id AS d1, claim_id AS c FROM queue_claim('d', "limit" => 1) \gset
SELECT message_cancel('d', :d1);
SELECT claim_release('d', :'c');
SELECT id = :d2 AS twin, message_delete('d', id, claim_id) FROM queue_claim('d');

-- A queue of groups: until its claim ends it counts toward the bound.
SELECT queue_create('g', '{"_group_concurrency": 1}');
SELECT queue_push('g', '1', group_key => 'a') AS g1, queue_push('g', '2', group_key => 'a') AS g2 \gset
SELECT claim_id AS c FROM queue_claim('g') \gset
SELECT message_cancel('g', :g1);
SELECT count(*) FROM queue_claim('g');
SELECT claim_release('g', :'c');
SELECT body, claim_id AS c FROM queue_claim('g') \gset
SELECT :body, claim_complete('g', :'c');

-- A deduplication key is free again.
SELECT queue_push('d', '1', dedup_key => 'k') AS d1 \gset
SELECT message_cancel('d', :d1);
SELECT queue_push('d', '1', dedup_key => 'k') AS d2 \gset
SELECT :d1 <> :d2 AS is_new;
SELECT claim_id AS c FROM queue_claim('d') \gset
SELECT message_cancel('d', :d2);
SELECT claim_release('d', :'c');
SELECT queue_push('d', '1', dedup_key => 'k') NOT IN (:d1, :d2) AS is_new;

-- By body
SELECT count(queue_push('w', jsonb_build_object('user', i % 3, 'n', i))) FROM generate_series(1, 30) AS i;
SELECT claim_id AS c FROM queue_claim('w', "limit" => 5) LIMIT 1 \gset
SELECT queue_cancel_where('w', '{"user": 1}');
SELECT queue_cancel_where('w', '{"user": 7}'), queue_cancel_where('unknown', '{}');
SELECT count(*), count(*) FILTER (WHERE claim_id IS NOT NULL) AS claimed
FROM queue_messages('w', include_claimed => true, "limit" => 100);
SELECT claim_release('w', :'c');
SELECT body -> 'user' AS "user", count(*) FROM queue_messages('w', "limit" => 100) GROUP BY 1 ORDER BY 1;
SELECT queue_cancel_where('w', '{}');

-- Many, with a reason
SELECT queue_create('why', '{"_keep_finished": 60}');
SELECT queue_push('why', '1') AS m1, queue_push('why', '2') AS m2, queue_push('why', '3') AS m3,
    queue_push('why', '4') AS m4, queue_push('why', '5') AS m5 \gset
SELECT count(*) FROM queue_claim('why', "limit" => 1);
SELECT messages_cancel('why', ARRAY[:m1, :m2], 'by id'), queue_cancel_where('why', '3', 'by body');
SELECT messages_cancel('why', ARRAY[:m4], NULL), queue_cancel_where('why', '5');
SELECT id = :m1 AS is_claimed, state, last_error FROM queue_browse('why');
SELECT outcome, error FROM queue_finished('why');

-- Batches: a canceled member has failed, and the batch finishes when its claim ends.
SELECT queue_create('b1'), queue_create('b2');
BEGIN;
SELECT batch_create() AS b \gset
SELECT count(queue_push('b1', to_jsonb(i), batch => :b)) FROM generate_series(1, 3) AS i;
SELECT queue_push('b2', '4', batch => :b) AS m4 \gset
COMMIT;
SELECT claim_id AS c FROM queue_claim('b1', "limit" => 1) \gset
SELECT message_cancel('b2', :m4);
SELECT members, unfinished, completed, failed FROM batch_status(:b);
SELECT claim_complete('b1', :'c');
SELECT claim_id AS c FROM queue_claim('b1', "limit" => 1) \gset
SET queue.project = 'another';
SELECT batch_cancel(:b);
SHOW queue.project;
RESET queue.project;
SELECT members, unfinished, completed, failed FROM batch_status(:b);
SELECT claim_release('b1', :'c');
SELECT members, unfinished, completed, failed FROM batch_status(:b);
SELECT batch_cancel(:b);
-- The owner of the batch may do that without claim on the queues.
CREATE ROLE regress_cancel_owner;
CREATE ROLE regress_cancel_other;
GRANT queue_producer TO regress_cancel_owner, regress_cancel_other;
SELECT queue_grant('b1', 'regress_cancel_owner', 'push');
SET ROLE regress_cancel_owner;
SELECT batch_create(keep_open => true) AS b \gset
SELECT queue_push('b1', '5', batch => :b) AS m5 \gset
SELECT message_cancel('b1', :m5);
SET ROLE regress_cancel_other;
\set VERBOSITY terse
SELECT batch_cancel(:b);
\set VERBOSITY default
SET ROLE regress_cancel_owner;
SELECT batch_cancel(:b);
RESET ROLE;
-- What waits for a batch can be canceled, too.
SELECT batch_create(keep_open => true) AS b \gset
SELECT queue_push('b1', '6', after => :b) AS m6 \gset
SELECT message_cancel('b1', :m6);
SELECT waiting FROM batch_status(:b);

-- The history has what was canceled, with the reason, from when it is removed.
SELECT queue_create('hist', '{"_keep_finished": 600}');
SELECT queue_push('hist', '1') AS m1, queue_push('hist', '2') AS m2 \gset
SELECT claim_id AS c FROM queue_claim('hist', "limit" => 1) \gset
SELECT message_cancel('hist', :m1, 'pending'), message_cancel('hist', :m2, 'at once');
SELECT outcome, attempts, error FROM queue_finished('hist');
SELECT claim_release('hist', :'c');
SELECT outcome, attempts, error FROM queue_finished('hist');
SELECT queue_push('hist', '3') AS m3 \gset
SELECT claim_id AS c FROM queue_claim('hist', 1) \gset
SELECT message_cancel('hist', :m3, 'ran out');
SELECT refused(format('SELECT message_complete(''hist'', %s, %L, ''1'')', :m3, :'c')) LIKE 'message was canceled%' AS refused;
SELECT pg_sleep(1.2);
SELECT count(*) FROM queue_claim('hist');
SELECT outcome, attempts, error FROM queue_finished('hist', outcome => 'canceled');

-- What is canceled while it waits for a batch was not pushed in the future.
SELECT batch_create(keep_open => true) AS b \gset
SELECT queue_push('hist', '4', after => :b) AS m4 \gset
SELECT message_cancel('hist', :m4);
SELECT outcome, pushed_at <= finished_at AS in_order FROM queue_finished('hist', :m4 - 1);
SELECT batch_cancel(:b);

-- Its claim has run out, and a purge comes before it is removed: it has not expired.
SELECT queue_push('purged', '1') AS m1 \gset
SELECT body FROM queue_claim('purged', 1, 60);
SELECT message_cancel('purged', :m1);
BEGIN;
SELECT body FROM queue_data.message_0 WHERE id = :m1 FOR UPDATE;
SELECT pg_sleep_until(claimed_until + interval '1 ms') FROM queue_data.message WHERE id = :m1;
SELECT queue_purge('purged');
COMMIT;
SELECT expired FROM job_stats('purged');

-- Wrong calls
SELECT message_cancel('q', NULL);
SELECT message_cancel(NULL, 1);
SELECT messages_cancel('q', ARRAY[NULL::bigint]);
SELECT messages_cancel('q', NULL);
SELECT queue_cancel_where('q', NULL);
SELECT batch_cancel(NULL);
SELECT batch_cancel(0);
BEGIN READ ONLY;
SELECT message_cancel('q', 1);
ROLLBACK;

-- Where a handler works on it, t/cancel.pl
SELECT queue_revoke('b1', 'regress_cancel_owner', 'push');
DROP TABLE m;
DROP EXTENSION queue CASCADE;
DROP FUNCTION refused(text);
DROP OWNED BY regress_cancel_owner, regress_cancel_other;
DROP ROLE regress_cancel_owner, regress_cancel_other;
