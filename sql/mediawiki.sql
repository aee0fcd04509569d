-- What MediaWiki's own tests of its job queue check, with our functions.  Its
-- wiki is a project, its type of job a queue, its root job job_root().

CREATE EXTENSION queue;
SET queue.project = 'wiki';
\set VERBOSITY sqlstate

-- Counts through push, pop and ack: 0 and 0, two waiting, one and one, ...
SELECT free, claimed FROM queue_stats('null');
SELECT queue_push('null', '{"lives": 0, "usleep": 0}') > 0 AS pushed;
SELECT queue_push('null', '{"lives": 0, "usleep": 1}') > 0 AS pushed;
SELECT free, claimed FROM queue_stats('null');
SELECT id AS id1, claim_id AS claim1, body FROM queue_claim('null', 600, 60, 1) \gset
SELECT :'body' AS first_in_first_out;
SELECT free, claimed FROM queue_stats('null');
SELECT id AS id2, claim_id AS claim2 FROM queue_claim('null', 600, 60, 1) \gset
SELECT free, claimed FROM queue_stats('null');
SELECT message_delete('null', :id1, :'claim1');
SELECT free, claimed FROM queue_stats('null');
SELECT message_delete('null', :id2, :'claim2');
SELECT free, claimed FROM queue_stats('null');
SELECT claimed, completed FROM job_stats('null');
SELECT count(*) FROM queue_claim('null', 600, 60);

-- Pushed as a batch; the queue is empty or not
SELECT cardinality(queue_push_batch('null', '{1, 2}'));
SELECT free = 0 AS is_empty FROM queue_stats('null');
SELECT queue_purge('null');
SELECT free = 0 AS is_empty FROM queue_stats('null');

-- Three pushes of one key and three more leave one.
SELECT count(queue_push('null', '{"a": 1}', dedup_key => queue_dedup_key('{"a": 1}')))
    FROM generate_series(1, 3);
SELECT count(queue_push('null', '{"a": 1}', dedup_key => queue_dedup_key('{"a": 1}')))
    FROM generate_series(1, 3);
SELECT free FROM queue_stats('null');
SELECT id AS id1, claim_id AS claim1 FROM queue_claim('null', 600, 60) \gset
-- a twin of a claimed job is inserted, and outlives the first one's end
SELECT queue_push('null', '{"a": 1}', dedup_key => queue_dedup_key('{"a": 1}')) > 0 AS pushed;
SELECT free, claimed FROM queue_stats('null');
SELECT message_delete('null', :id1, :'claim1');
SELECT free, claimed FROM queue_stats('null');
SELECT id AS id2, claim_id AS claim2 FROM queue_claim('null', 600, 60) \gset
SELECT message_delete('null', :id2, :'claim2');
SELECT free, claimed FROM queue_stats('null');
SELECT count(*) FROM queue_claim('null', 600, 60);

-- Five old and five new leaves of one root: five run, five are duplicates.
SELECT job_root('null', 'nulljobspam:testId1') AS root1 \gset
SELECT count(queue_push('null', '{"lives": 0}'::jsonb || :'root1')) FROM generate_series(1, 5);
SELECT pg_sleep(0.01);
SELECT job_root('null', 'nulljobspam:testId1') AS root2 \gset
SELECT :'root2'::jsonb ->> 'rootJobSignature' = :'root1'::jsonb ->> 'rootJobSignature' AS same_signature,
       :'root2'::jsonb ->> 'rootJobTimestamp' > :'root1'::jsonb ->> 'rootJobTimestamp' AS later;
SELECT count(queue_push('null', '{"lives": 0}'::jsonb || :'root2')) FROM generate_series(1, 5);
SELECT free FROM queue_stats('null');
CREATE TEMP TABLE ran AS
    SELECT body FROM generate_series(1, 11) i, queue_pop('null', i - i + 1);
SELECT count(*), bool_and(body @> :'root2') AS all_new FROM ran;
SELECT duplicates - 5 AS duplicates FROM job_stats('null');
SELECT total FROM queue_stats('null');

-- First in, first out within a priority.
SELECT count(queue_push('order', to_jsonb(i))) FROM generate_series(0, 9) i;
SELECT count(*), bool_and(body = to_jsonb(i)) AS in_order
    FROM generate_series(0, 9) i, queue_pop('order', i - i + 1);

-- The types that have jobs are listed after the first push.
SELECT queue_ready();
SELECT queue_push('null', '1') > 0 AS pushed;
SELECT queue_ready();
SELECT body FROM queue_claim_any(NULL, 600, 60);
SELECT queue_ready();

-- Lazily: nothing before the commit, all after it.
BEGIN;
SELECT queue_push_lazy('lazy', '1'), queue_push_lazy('lazy', '2');
SELECT free FROM queue_stats('lazy');
COMMIT;
SELECT free FROM queue_stats('lazy');

-- Root parameters do not change the key of a job.
SELECT queue_dedup_key('{"x": "y"}'::jsonb || job_root('null', 's')) = queue_dedup_key('{"x": "y"}') AS same;

RESET queue.project;
DROP EXTENSION queue;
