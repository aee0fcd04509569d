-- job_stats: what became of a queue's messages.

CREATE EXTENSION queue;
SET queue.min_claim_ttl = 1;
SET queue.min_claim_grace = 0;
SET queue.min_message_ttl = 1;
\set VERBOSITY sqlstate
CREATE ROLE regress_queue_producer IN ROLE queue_producer;

-- One row, whatever the queue.
SELECT * FROM job_stats('unknown');
SELECT queue_create('q');
SELECT claimed, completed, retried, abandoned, duplicates, expired,
       since <= clock_timestamp() AND since >= (SELECT created_at FROM queue_get('q')) AS since,
       last_error, last_error_at
    FROM job_stats('q');

-- claimed: handed out; completed: deleted under the claim.
SELECT queue_push_batch('q', '{1, 2, 3, 4, 5, 6, 7, 8, 9}') IS NOT NULL AS pushed;
SELECT claim_id AS claim, array_agg(id ORDER BY id) AS ids
    FROM queue_claim('q', 600, 60, 4) GROUP BY 1 \gset
SELECT claimed, completed FROM job_stats('q');
SELECT message_delete('q', (:'ids'::bigint[])[1], :'claim');
SELECT messages_delete('q', (:'ids'::bigint[])[2:3], :'claim');
SELECT claim_complete('q', :'claim');
SELECT claimed, completed FROM job_stats('q');
SELECT claim_id AS claim FROM queue_claim('q', 600, 60, 1) \gset
SELECT claim_id AS claim FROM claim_next('q', :'claim', 600, 60, 1) \gset
SELECT body FROM queue_pop('q');
SELECT claimed, completed FROM job_stats('q');
-- neither a release nor a delete without a claim
SELECT claim_release('q', :'claim', failed => true);
SELECT messages_delete('q', array_agg(id)) FROM queue_messages('q');
SELECT queue_push('q', '1') > 0 AS pushed;
SELECT queue_purge('q');
SELECT claimed, completed, retried, abandoned, duplicates, expired FROM job_stats('q');

-- A rollback counts nothing, also of a part.
SELECT queue_push_batch('q', '{1, 2, 3}') IS NOT NULL AS pushed;
BEGIN;
SELECT count(*) FROM queue_claim('q', 600, 60, 1);
SAVEPOINT a;
SELECT count(*) FROM queue_pop('q', 1);
SELECT claimed, completed FROM job_stats('q');
ROLLBACK TO a;
SELECT claimed, completed FROM job_stats('q');
SAVEPOINT b;
SELECT count(*) FROM queue_pop('q', 1);
RELEASE b;
COMMIT;
SELECT claimed, completed FROM job_stats('q');
BEGIN;
SELECT count(*) FROM queue_pop('q', 1);
ROLLBACK;
SELECT claimed, completed FROM job_stats('q');
SELECT queue_purge('q');

-- duplicates: dropped as they are pushed; expired: not claimed in time.
SELECT queue_push('d', '1', 1, dedup_key => 'k') > 0 AS pushed;
SELECT queue_push('d', '1', dedup_key => 'k') IS NULL AS dropped;
SELECT queue_post('d', '[{"body": 1, "dedup_key": "k"}, {"body": 2, "ttl": 1}]') IS NOT NULL AS posted;
SELECT pg_sleep(1.1);
SELECT count(*) FROM queue_claim('d', 600, 60);
SELECT claimed, duplicates, expired FROM job_stats('d');
-- expired, whatever has removed it: the worker, a pop, a claim in a queue with
-- groups, or with a bound of them, or a purge
SELECT queue_create('bound', '{"_group_concurrency": 1}');
SELECT queue_push('pop', '1', 1), queue_push('any', '1', 1),
       queue_push('purge', '1', 1),
       queue_push('groups', '1', 1, group_key => 'a'), queue_push('groups', '2', 1),
       queue_push('bound', '1', 1, group_key => 'a') \gset
SELECT pg_sleep(1.1);
SELECT count(*) FROM queue_pop('pop');
SELECT count(*) FROM queue_claim_any('{any}');
SELECT count(*) FROM queue_claim('groups');
SELECT count(*) FROM queue_claim('bound');
SELECT queue_purge('purge');
-- The worker may be removing one just now.
DO $$
BEGIN
    FOR i IN 1 .. 1000 LOOP
        EXIT WHEN (SELECT sum(s.expired) = 6
                   FROM unnest('{pop,any,groups,bound,purge}'::text[]) AS q,
                        job_stats(q) AS s);
        PERFORM pg_sleep(0.01);
    END LOOP;
END
$$;
SELECT q, (job_stats(q)).expired
    FROM unnest('{pop,any,groups,bound,purge}'::text[]) AS q;

-- abandoned: moved to the dead letter queue, for whichever reason
SELECT queue_create('a', '{"_max_claim_count": 1}');
SELECT queue_push_batch('a', '{1, 2, 3}') IS NOT NULL AS pushed;
SELECT message_retry('a', id, claim_id, 'failed') IS NULL AS dead FROM queue_claim('a', 600, 60, 1);
SELECT claim_release('a', claim_id, failed => true) FROM queue_claim('a', 600, 60, 1);
SELECT count(*) FROM queue_claim('a', 1, 0, 1);
SELECT pg_sleep(1.1);
SELECT count(*) FROM queue_claim('a', 600, 60, 1);
SELECT claimed, retried, abandoned, last_error FROM job_stats('a');
SELECT claimed, abandoned FROM job_stats('a.dead');

-- A role without the claim privilege can read counters, but not errors.
SET ROLE regress_queue_producer;
SELECT claimed, abandoned, last_error, last_error_at FROM job_stats('a');
RESET ROLE;

-- last_error is the most recent one.
SELECT queue_push_batch('e', '{1, 2, 3}') IS NOT NULL AS pushed;
SELECT claim_id AS claim, array_agg(id ORDER BY id) AS ids
    FROM queue_claim('e', 600, 60) GROUP BY 1 \gset
SELECT message_retry('e', (:'ids'::bigint[])[1], :'claim', 'one', 0) IS NOT NULL AS again;
SELECT retried, last_error, last_error_at BETWEEN now() - interval '1 minute' AND now() AS at FROM job_stats('e');
BEGIN;
SELECT message_retry('e', (:'ids'::bigint[])[2], :'claim', 'two', 0) IS NOT NULL AS again;
SELECT retried, last_error FROM job_stats('e');
ROLLBACK;
SELECT retried, last_error FROM job_stats('e');
SELECT message_retry('e', (:'ids'::bigint[])[2], :'claim', NULL, 0) IS NOT NULL AS again;
SELECT retried, last_error FROM job_stats('e');
SELECT message_retry('e', (:'ids'::bigint[])[3], :'claim', '', 0) IS NOT NULL AS again;
SELECT retried, last_error = '' AS empty FROM job_stats('e');

-- Each project has its own counters; many queues in one transaction.
SET queue.project = 'p';
SELECT claimed FROM job_stats('q');
RESET queue.project;
BEGIN;
SELECT count(queue_create('n' || i)), count(queue_push('n' || i, '1')) FROM generate_series(1, 100) i;
SELECT count(c.body) FROM generate_series(1, 100) i, queue_pop('n' || i) c;
COMMIT;
SELECT count(*), sum(claimed), sum(completed)
    FROM generate_series(1, 100) i, job_stats('n' || i);

-- Read-only transactions read them; a dropped queue's are gone.
BEGIN READ ONLY;
SELECT claimed > 0 AS some FROM job_stats('q');
COMMIT;
BEGIN ISOLATION LEVEL SERIALIZABLE;
SELECT claimed > 0 AS some FROM job_stats('q');
SELECT count(*) FROM queue_claim('e', 600, 60);
COMMIT;
SELECT claimed FROM job_stats('e');
SELECT bool_and(queue_drop(name)) AS dropped FROM queue_list("limit" => 1000);
SELECT count(*) FROM queue_data.job_counter;
SELECT * FROM job_stats('q');

DROP EXTENSION queue;
DROP ROLE regress_queue_producer;
