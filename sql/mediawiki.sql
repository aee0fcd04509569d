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
-- Is a queue empty?  Whether a claim would find nothing.
SELECT queue_is_empty('nothing') AS unknown;
SELECT queue_push('e', '1') > 0 AS pushed;
SELECT queue_is_empty('e') AS has_one;
SELECT queue_pause('e'), queue_is_empty('e') AS paused;
SELECT queue_resume('e'), queue_is_empty('e') AS resumed;
BEGIN READ ONLY;
SELECT queue_is_empty('e') AS read_only;
COMMIT;
SELECT claim_id AS claim FROM queue_claim('e', 600, 60) \gset
SELECT queue_is_empty('e') AS claimed;
SELECT claim_release('e', :'claim', 600), queue_is_empty('e') AS delayed;

-- Jobs of several types in one call, all or nothing.
SELECT cardinality(ids) AS ids, ids[1] IS NULL OR ids[3] IS NULL AS duplicate, ids[2] < ids[5] AS in_order
    FROM queue_post(NULL, '[{"queue": "t2", "body": 1, "dedup_key": "k"}, {"queue": "t1", "body": 2},
        {"queue": "t2", "body": 3, "dedup_key": "k"}, {"queue": "t3", "body": null, "priority": 4},
        {"body": 5, "queue": "t1", "delay": 0}]') AS ids;
SELECT q, queue_pop.body, priority FROM unnest('{t1,t2,t3}'::text[]) AS q, queue_pop(q, 10) ORDER BY q, id;
SELECT queue_post(NULL, '[]');
\set VERBOSITY default
SELECT queue_post(NULL, '[{"queue": "t1", "body": 1}, {"body": 2}]');
SELECT queue_post(NULL, '[{"queue": "t1", "body": 1}, {"queue": "not a name", "body": 2}]');
SELECT queue_post(NULL, '[{"queue": "t1", "body": 1}, {"queue": 2, "body": 2}]');
SELECT queue_post(NULL, '[{"queue": "t1", "body": 1}, {"queue": "t2", "body": 2, "color": 3}]');
SELECT queue_post('t1', '[{"queue": "t1", "body": 1}]');
SELECT queue_post(NULL, '[{"queue": "t1", "body": 1}, {"queue": "t4", "body": 2, "priority": 10}]');
\set VERBOSITY sqlstate
SELECT free FROM queue_stats('t1');
SELECT queue_exists('t4');

-- The wikis of a farm that have jobs.
SELECT * FROM queue_ready_in_projects();
SELECT queue_push('null', '1') > 0 AS pushed;
SET queue.project = 'other';
SELECT queue_push('null', '1') > 0 AS pushed, queue_push('late', '1', delay => 600) > 0 AS pushed;
SET queue.project = '';
SELECT queue_push('null', '1') > 0 AS pushed, queue_push('stopped', '1') > 0 AS pushed, queue_pause('stopped');
SELECT * FROM queue_ready_in_projects() ORDER BY 1, 2;
BEGIN;
SELECT count(*) FROM queue_ready_in_projects();
SELECT current_setting('queue.project') AS unchanged, queue_ready();
COMMIT;

DROP EXTENSION queue;
