-- The history of finished messages: what is written where the metadata asks for
-- it, results, and the errors of attempts.

CREATE EXTENSION queue;
SET client_min_messages = warning;
SET queue.min_message_ttl = 1;
SET queue.min_claim_ttl = 1;
SET queue.min_claim_grace = 0;

-- The keys of the metadata
SELECT queue_create('q', '{"_keep_finished": 0}');
SELECT queue_create('q', '{"_keep_finished": 31536001}');
SELECT queue_create('q', '{"_keep_finished": 1.5}');
SELECT queue_create('q', '{"_keep_body": 1}');
SELECT queue_create('q', '{"_results_for_producers": "yes"}');
SELECT queue_create('q', '{"_keep_finished": 3600, "_results_for_producers": false}');
SELECT queue_create('quiet');

-- What is shown of the rows that there are
CREATE VIEW history AS
SELECT f.id - (SELECT min(id) FROM queue_finished('q', "limit" => 10000)) AS n, f.queue,
       f.group_key, f.batch IS NOT NULL AS in_batch, f.outcome,
       f.pushed_at <= f.finished_at AND f.finished_at <= clock_timestamp() AS times,
       f.attempts, f.result, f.error, f.body
FROM queue_finished('q', "limit" => 10000) AS f;

-- Without _keep_finished nothing is written.
SELECT queue_push('quiet', '1') AS m \gset
SELECT claim_id AS c FROM queue_claim('quiet') \gset
SET client_min_messages = notice;
SELECT message_complete('quiet', :m, :'c', '1');
-- It was thrown away: a notice says so once for a queue.
SELECT queue_push_batch('quiet', '{1, 2}') IS NOT NULL AS pushed;
SELECT message_complete('quiet', id, claim_id, '1') FROM queue_claim('quiet', "limit" => 1);
SELECT message_complete('quiet', id, claim_id) FROM queue_claim('quiet');
SELECT queue_push_batch('other', '{1, 2}') IS NOT NULL AS pushed;
SELECT message_complete('other', id, claim_id) FROM queue_claim('other', "limit" => 1);
SELECT message_complete('other', id, claim_id, 'null') FROM queue_claim('other');
SET client_min_messages = warning;
SELECT count(*) FROM queue_finished('quiet');
SELECT message_result('quiet', :m);
SELECT sum(pg_relation_size(oid)) AS bytes FROM pg_class
    WHERE relnamespace = 'queue_data'::regnamespace AND relname ~ '^finished_[0-9]+$';

-- Completed, in four ways; deleted; popped
SELECT (queue_push_batch('q', ARRAY(SELECT to_jsonb(i) FROM generate_series(1, 7) AS i)))[1] AS m \gset
SELECT claim_id AS c FROM queue_claim('q', "limit" => 5) LIMIT 1 \gset
SELECT message_delete('q', :m, :'c');
SELECT message_complete('q', :m + 512, :'c', '{"sum": 3}');
SELECT message_complete('q', :m + 2 * 512, :'c');
SELECT messages_delete('q', ARRAY[:m + 3 * 512], :'c');
SELECT claim_complete('q', :'c');
SELECT message_delete('q', :m + 5 * 512);
SELECT body FROM queue_pop('q');
TABLE history;
SELECT message_result('q', :m) AS none, message_result('q', :m + 512) AS result,
       message_result('q', 1) AS unknown;

-- As message_delete with a claim: errors roll the history back.
SELECT message_complete('q', :m, :'c', '1');
SELECT message_complete('q', :m, NULL, '1');
SELECT queue_push('q', '8') AS m \gset
SELECT claim_id AS c FROM queue_claim('q') \gset
SELECT message_complete('q', :m + 512, :'c', '1');
BEGIN;
SELECT message_complete('q', :m, :'c', '1');
ROLLBACK;
SELECT count(*) FROM queue_finished('q', :m - 1);
SELECT message_complete('q', :m, :'c', '[1, 2]');
SELECT message_result('q', :m);

-- By id, after the marker, with one outcome
SELECT count(*) FROM queue_finished('q', :m - 1);
SELECT count(*) FROM queue_finished('q', :m);
SELECT outcome, result FROM queue_finished('q', outcome => 'deleted');
SELECT outcome, attempts FROM queue_finished('q', "limit" => 2);
SELECT queue_finished('q', outcome => 'lost');
SELECT queue_finished('q', outcome => 'failed');

-- Bodies, groups and batches
SELECT queue_update('q', '{"_keep_body": true}') ->> '_keep_body' AS keep_body;
SELECT batch_create(keep_open => true) AS b \gset
SELECT queue_push('q', '{"a": "body"}', group_key => 'g', batch => :b) AS m \gset
SELECT claim_id AS c FROM queue_claim('q') \gset
SELECT claim_complete('q', :'c');
SELECT group_key, batch = :b AS in_batch, body FROM queue_finished('q', :m - 1);
-- a large one, which is stored out of line
SELECT queue_push('q', to_jsonb((SELECT string_agg(md5(i::text), '') FROM generate_series(1, 1000) AS i))) AS m \gset
SELECT count(*) FROM queue_pop('q');
SELECT length(body #>> '{}') FROM queue_finished('q', :m - 1);

-- Attempts that fail, and a dead letter: the last error is the same everywhere.
SELECT queue_update('q', '{"_max_claim_count": 2, "_retry_delay": 0, "_keep_body": false}') IS NOT NULL AS updated;
SELECT queue_push('q', '10') AS m \gset
SELECT claim_id AS c FROM queue_claim('q') \gset
SELECT message_retry('q', :m, :'c', 'first') IS NOT NULL AS retried;
SELECT count(*) FROM queue_finished('q', :m - 1);
SELECT claim_id AS c FROM queue_claim('q') \gset
SELECT message_retry('q', :m, :'c', 'second') IS NOT NULL AS retried;
SELECT outcome, attempts, error FROM queue_finished('q', :m - 1);
SELECT message_id = :m AS same, attempt, error FROM job_errors('q');
SELECT attempt, error FROM job_errors('q', 1);
-- page by page
SELECT at FROM job_errors('q', 1) \gset
SELECT attempt, error FROM job_errors('q', marker => :'at');
SELECT attempt, error FROM job_errors('q', 1, '-infinity');
SELECT count(*) FROM job_errors('q', 1, 'infinity');
SELECT last_error FROM queue_dead_letters('q.dead');
-- completed in the second attempt: no error
SELECT queue_push('q', '11') AS m \gset
SELECT claim_id AS c FROM queue_claim('q') \gset
SELECT message_retry('q', :m, :'c', 'third') IS NOT NULL AS retried;
SELECT claim_id AS c FROM queue_claim('q') \gset
SELECT claim_complete('q', :'c');
SELECT outcome, attempts, error FROM queue_finished('q', :m - 1);
-- buried
SELECT queue_push('q', '12') AS m \gset
SELECT claim_id AS c FROM queue_claim('q') \gset
SELECT message_bury('q', :m, :'c', 'no such address');
SELECT outcome, attempts, error FROM queue_finished('q', :m - 1);
SELECT attempt, error FROM job_errors('q');
-- the one row of it
SELECT message_finished('q', :m) = queue_finished('q', :m - 1, 1) AS same;
SELECT count(*) FROM message_finished('q', :m + 1);
SELECT count(*) FROM message_finished('q', NULL);

-- A duplicate: a run covers its twin.
SELECT queue_push('q', '13', dedup_key => 'k') AS m \gset
BEGIN;
SELECT claim_id AS c FROM queue_claim('q') \gset
SELECT queue_push('q', '14', dedup_key => 'k') IS NOT NULL AS twin;
SELECT message_retry('q', :m, :'c', NULL, 0) IS NOT NULL AS retried;
COMMIT;
SELECT claim_id AS c FROM queue_claim('q', "limit" => 1) \gset
SELECT claim_complete('q', :'c');
SELECT outcome FROM queue_finished('q', :m - 1);

-- Expired
SELECT queue_push('q', '15', ttl => 1) AS m \gset
SELECT pg_sleep(1.1);
SELECT count(*) FROM queue_claim('q');
SELECT outcome FROM queue_finished('q', :m - 1);

-- A dead letter that is sent back is finished where it was.
SELECT queue_update('q.dead', '{"_keep_finished": 60}') IS NOT NULL AS updated;
SELECT queue_create('again'), queue_redrive('q.dead', 'again');
SELECT outcome, error FROM queue_finished('q.dead');

-- The result of a job, the last one that the handler gives
CREATE FUNCTION handle(body jsonb) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    PERFORM job_result('"not this"');
    PERFORM job_result(jsonb_build_object('twice', body));
    IF body = '2' THEN
        RAISE EXCEPTION 'no twos';
    END IF;
    RETURN true;
END
$$;
-- Only this session runs jobs here.
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
SELECT queue_create('jobs', '{"_keep_finished": 60, "_max_claim_count": 1}');
SELECT job_handler('jobs', 'handle(jsonb)');
SELECT queue_push_batch('jobs', '{1, 2, 3}') IS NOT NULL AS pushed;
-- The message about the failure has the id of the job.
SET client_min_messages = error;
CALL job_run('{jobs}', 3, 10, NULL) \gset
-- Results of jobs without a history are thrown away, too.
SELECT queue_create('lost');
SELECT job_handler('lost', 'handle(jsonb)');
SELECT queue_push_batch('lost', '{1, 3}') IS NOT NULL AS pushed;
SET client_min_messages = notice;
CALL job_run('{lost}', 2, 10, NULL) \gset lost_
SET client_min_messages = warning;
SELECT :'lost_result'::jsonb - '{elapsed,reached}'::text[] AS result;
SELECT job_handler('lost', NULL);
ALTER DATABASE :"DBNAME" IS_TEMPLATE false;
SELECT :'result'::jsonb - '{elapsed,reached}'::text[] AS result;
SELECT outcome, attempts, result, error FROM queue_finished('jobs');
SELECT attempt, error FROM job_errors('jobs');
SELECT job_handler('jobs', NULL);
-- Only a handler has one, and it is no larger than a body.
SELECT job_result('1');
SELECT job_result(NULL);
SET queue.max_message_size = 1024;
SELECT message_complete('q', :m, 'c', to_jsonb(repeat('x', 2000)));
RESET queue.max_message_size;

-- Waiting for the end of a message
SELECT queue_push('q', '17') AS m \gset
CALL queue_await('q', :m, 0);
CALL queue_await('q', :m, 20);
SELECT claim_id AS c FROM queue_claim('q') \gset
CALL queue_await('q', :m, 0);
SELECT message_complete('q', :m, :'c', '{"n": 17}');
CALL queue_await('q', :m);
CALL queue_await('q', :m, 0);
SELECT queue_push('q', '18') AS m \gset
SELECT claim_id AS c FROM queue_claim('q') \gset
SELECT message_bury('q', :m, :'c', 'no');
CALL queue_await('q', :m, 60000);
CALL queue_await('q', 1);
CALL queue_await('unknown', 1);
SELECT queue_push('quiet', '1') AS m \gset
CALL queue_await('quiet', :m, 20);
SELECT message_delete('quiet', :m);
CALL queue_await('quiet', :m);
CALL queue_await('q', NULL);
CALL queue_await('q', 1, -1);
BEGIN;
CALL queue_await('q', 1, 0);
CALL queue_await('q', 1, 1);
ROLLBACK;
DO $$ DECLARE r jsonb; BEGIN CALL queue_await('q', 1, 0, r); RAISE INFO '%', r; END $$;

-- Large values are fetched while their table is open.
SELECT queue_create('large', '{"_keep_finished": 3600, "_keep_body": true}');
SELECT queue_push('large', to_jsonb((SELECT string_agg(md5(i::text), '') FROM generate_series(1, 1000) AS i))) AS m \gset
SELECT message_complete('large', id, claim_id,
    to_jsonb((SELECT string_agg(md5(i::text), '') FROM generate_series(1001, 3000) AS i)))
FROM queue_claim('large');
SELECT length(message_result('large', :m) #>> '{}') AS result;
DO $$
DECLARE
    r jsonb;
    m bigint := (SELECT id FROM queue_finished('large'));
BEGIN
    CALL queue_await('large', m, 0, r);
    RAISE INFO '%', length(r ->> 'result');
    RAISE INFO '%', (SELECT length(body #>> '{}') FROM queue_finished('large'));
END
$$;

-- Privileges: claim, or with _results_for_producers push; for errors admin
CREATE ROLE regress_history_producer IN ROLE queue_producer;
CREATE ROLE regress_history_consumer IN ROLE queue_consumer;
SET ROLE regress_history_producer;
SELECT count(*) FROM queue_finished('q', "limit" => 1);
SELECT message_result('q', :m);
CALL queue_await('q', 1, 0);
SELECT count(*) FROM job_errors('q');
RESET ROLE;
SET ROLE regress_history_consumer;
SELECT count(*) FROM queue_finished('q', "limit" => 1);
SELECT count(*) FROM job_errors('q');
RESET ROLE;
SELECT queue_update('q', '{"_results_for_producers": true}') IS NOT NULL AS updated;
SET ROLE regress_history_producer;
SELECT count(*) FROM queue_finished('q', "limit" => 1);
SELECT message_result('q', :m);
CALL queue_await('q', 1, 0);
RESET ROLE;
DROP ROLE regress_history_producer;
DROP ROLE regress_history_consumer;

-- A purge writes none; what is too old is left out, and a queue without
-- _keep_finished shows nothing.
SELECT queue_push('q', '16') AS m \gset
SELECT queue_purge('q');
SELECT count(*) FROM queue_finished('q', :m - 1);
UPDATE queue_data.finished_14 SET finished_at = finished_at - interval '2 hours' WHERE outcome <> 5;
SELECT outcome FROM queue_finished('q');
SELECT count(*) FROM job_errors('q');
SELECT queue_update('q', '{"_keep_finished": 86400}') IS NOT NULL AS updated;
SELECT count(*) > 10 AS more FROM queue_finished('q', "limit" => 100);
SELECT queue_update('q', '{"_keep_finished": null}') IS NOT NULL AS updated;
SELECT count(*) FROM queue_finished('q');
SELECT count(*) FROM message_finished('q', :m);

-- The errors of attempts are kept for a day without it.
SELECT count(*) > 0 AS kept FROM job_errors('q');
SELECT queue_push('plain', '1') AS m \gset
DO $$
BEGIN
    FOR i IN 1 .. 12 LOOP
        PERFORM message_retry('plain', id, claim_id, 'try ' || i, 0) FROM queue_claim('plain');
    END LOOP;
END
$$;
SELECT message_id = :m AS same, attempt, error FROM job_errors('plain', 3);
SELECT count(*) FROM job_errors('plain');
SELECT message_bury('plain', id, claim_id, 'no use') FROM queue_claim('plain');
SELECT attempt, error FROM job_errors('plain', 1);
SELECT count(*) FROM queue_finished('plain');
UPDATE queue_data.finished_11 SET finished_at = finished_at - interval '25 hours';
SELECT count(*) FROM job_errors('plain');
-- for as long as _keep_finished says, if it is there
SELECT queue_update('plain', '{"_keep_finished": 172800}') IS NOT NULL AS updated;
SELECT count(*) FROM job_errors('plain');

DROP EXTENSION queue CASCADE;
DROP FUNCTION handle(jsonb);
