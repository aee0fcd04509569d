-- queue_status: the state of each queue, the same as queue_stats says, after
-- each thing that changes it.

CREATE EXTENSION queue;
SET queue.min_claim_ttl = 1;
SET queue.min_claim_grace = 0;
SET queue.min_message_ttl = 1;
\set VERBOSITY sqlstate

-- Columns, in this order.
SELECT string_agg(attname || ' ' || format_type(atttypid, atttypmod), ', ' ORDER BY attnum)
    FROM pg_attribute
    WHERE attrelid = 'queue_data.queue_status'::regclass AND attnum > 0;
SELECT count(*) FROM queue_data.queue_status;

-- The counts of all queues, once they are those of queue_stats; if that is not
-- so within a minute, which are not.  One query reads both: the worker may find
-- at any time that the extension is a new one, and count all messages again.
CREATE FUNCTION pg_temp.counts(OUT wrong text, OUT shown text) LANGUAGE sql AS $$
    SELECT string_agg(format('%s: %s %s %s is %s %s %s', s.name, s.ready, s.claimed,
                             s.delayed, t.free, t.claimed, t.delayed), ', ')
               FILTER (WHERE (s.ready, s.claimed, s.delayed)
                             IS DISTINCT FROM (t.free, t.claimed, t.delayed)),
           string_agg(format('%s %s %s %s', s.name, s.ready, s.claimed, s.delayed),
                      ', ' ORDER BY s.name)
               FILTER (WHERE s.ready + s.claimed + s.delayed > 0)
    FROM queue_data.queue_status AS s, queue_stats(s.name) AS t
$$;
CREATE PROCEDURE pg_temp.counted(INOUT queues text = NULL) LANGUAGE plpgsql AS $$
DECLARE
    c record;
BEGIN
    FOR i IN 1 .. 600 LOOP
        SELECT * INTO c FROM pg_temp.counts();
        EXIT WHEN c.wrong IS NULL;
        PERFORM pg_sleep(0.1);
    END LOOP;
    queues := COALESCE('wrong: ' || c.wrong, c.shown);
END
$$;

-- Each change of a message's state.  Pushes:
SELECT queue_create('a');
CALL pg_temp.counted();
SELECT queue_push('a', '1') > 0 AS pushed;
SELECT cardinality(queue_push_batch('a', '{2, 3, 4, 5}'));
SELECT cardinality(queue_post('a', '[{"body": 6, "priority": 3}, {"body": 7, "delay": 3600}]'));
SELECT queue_push_lazy('a', '8', delay => 3600);
CALL pg_temp.counted();
SELECT pushed FROM queue_data.queue_status;
-- claims:
SELECT array_agg(body ORDER BY id) FROM queue_claim('a', 600, 60, 2);
SELECT claim_id AS claim, min(id) AS id FROM queue_claim('a', 600, 60, 2) GROUP BY 1 \gset
CALL pg_temp.counted();
SELECT claim_renew('a', :'claim', 600) > now() AS renewed;
CALL pg_temp.counted();
-- what becomes of them:
SELECT message_delete('a', :id, :'claim');
CALL pg_temp.counted();
SELECT claim_release('a', :'claim', failed => true);
CALL pg_temp.counted();
SELECT claim_id AS claim, min(id) AS id FROM queue_claim('a', 600, 60, 2) GROUP BY 1 \gset
SELECT message_retry('a', :id, :'claim', delay => 0) IS NOT NULL AS again;
CALL pg_temp.counted();
SELECT claim_release('a', :'claim', 3600, failed => true);
CALL pg_temp.counted();
SELECT claim_id AS claim FROM queue_claim('a', 600, 60, 1) \gset
SELECT claim_id AS claim FROM claim_next('a', :'claim', 600, 60, 1) \gset
CALL pg_temp.counted();
SELECT claim_complete('a', :'claim');
CALL pg_temp.counted();
SELECT queue_push_batch('a', '{9, 10, 11}') IS NOT NULL AS pushed;
SELECT body FROM queue_pop('a', 1);
SELECT message_delete('a', min(id)) FROM queue_messages('a');
CALL pg_temp.counted();
SELECT claimed_total, completed, retried, pushed FROM queue_data.queue_status;
SELECT queue_purge('a');
CALL pg_temp.counted();

-- The end of a claim, of a delay, of a lifetime
SELECT queue_push_batch('a', '{1, 2, 3}') IS NOT NULL AS pushed;
SELECT count(*) FROM queue_claim('a', 1, 0, 2);
SELECT queue_push('a', '4', delay => 1) IS NOT NULL AS pushed;
SELECT queue_push('b', '5', ttl => 1) IS NOT NULL AS pushed;
CALL pg_temp.counted();
SELECT pg_sleep(1.1);
CALL pg_temp.counted();
-- A message whose claim has ended is claimed again, popped, deleted.
SELECT array_agg(body ORDER BY id) FROM queue_claim('a', 1, 0, 4);
SELECT pg_sleep(1.1);
SELECT array_agg(body ORDER BY id) FROM queue_claim('a', 600, 60, 1);
SELECT body FROM queue_pop('a');
SELECT message_delete('a', max(id)) FROM queue_messages('a');
CALL pg_temp.counted();
SELECT queue_purge('a');

-- Duplicates, dropped by the push or by a claim
SELECT queue_push('a', '1', dedup_key => 'k') IS NOT NULL AS pushed;
SELECT queue_push('a', '1', dedup_key => 'k') IS NULL AS dropped;
SELECT claim_id AS claim FROM queue_claim('a', 600, 60) \gset
SELECT queue_push('a', '1', dedup_key => 'k') IS NOT NULL AS pushed;
CALL pg_temp.counted();
SELECT claim_complete('a', :'claim');
CALL pg_temp.counted();
SELECT queue_purge('a');
SELECT pushed, duplicates FROM queue_data.queue_status WHERE name = 'a';

-- Dead letters, by a retry, a release, and the end of a claim
SELECT queue_create('m', '{"_max_claim_count": 1}');
SELECT queue_push_batch('m', '{1, 2, 3}') IS NOT NULL AS pushed;
SELECT message_retry('m', id, claim_id) IS NULL AS dead FROM queue_claim('m', 600, 60, 1);
SELECT claim_release('m', claim_id, failed => true) FROM queue_claim('m', 600, 60, 1);
SELECT count(*) FROM queue_claim('m', 1, 0, 1);
CALL pg_temp.counted();
SELECT pg_sleep(1.1);
SELECT count(*) FROM queue_claim('m', 600, 60);
CALL pg_temp.counted();
SELECT name, dead_letters, abandoned, pushed FROM queue_data.queue_status ORDER BY name;
SELECT queue_redrive('m.dead', NULL, 2);
CALL pg_temp.counted();
SELECT name, dead_letters, abandoned, pushed FROM queue_data.queue_status ORDER BY name;
SELECT count(*) FROM queue_claim('m', 600, 60);
CALL pg_temp.counted();

-- Which are dead letter queues: one that was created for that, also without its
-- source, and one that is named
BEGIN;
SELECT name, is_dead_letter_queue FROM queue_data.queue_status ORDER BY name;
SELECT queue_update('m', '{"_dead_letter_queue": "a"}') IS NOT NULL AS renamed;
SELECT name, is_dead_letter_queue FROM queue_data.queue_status ORDER BY name;
SELECT queue_drop('m');
SELECT name, is_dead_letter_queue FROM queue_data.queue_status ORDER BY name;
ROLLBACK;

-- Transactions: its own changes are seen at once, and gone with it.
BEGIN;
SELECT queue_push('b', '1') IS NOT NULL AS pushed;
SAVEPOINT s;
SELECT queue_push_batch('b', '{2, 3}') IS NOT NULL AS pushed;
SELECT count(*) FROM queue_claim('b', 600, 60, 1);
SELECT ready, claimed, pushed FROM queue_data.queue_status WHERE name = 'b';
ROLLBACK TO s;
SELECT ready, claimed, pushed FROM queue_data.queue_status WHERE name = 'b';
COMMIT;
BEGIN;
SELECT queue_purge('b');
SELECT queue_drop('m');
SELECT name, ready, claimed FROM queue_data.queue_status ORDER BY name;
ROLLBACK;
CALL pg_temp.counted();

-- Groups
SELECT queue_create('g', '{"_group_concurrency": 1}');
SELECT cardinality(queue_push_batch('g', '{1, 2, 3}', group_keys => '{x, x, y}'));
SELECT count(*) FROM queue_claim('g', 1, 0);
CALL pg_temp.counted();
SELECT pg_sleep(1.1);
CALL pg_temp.counted();
SELECT count(*) FROM queue_claim('g', 600, 60);
CALL pg_temp.counted();

-- Age: that of the oldest message that is ready, whatever its priority
SELECT queue_push('o', '1', priority => 1) IS NOT NULL AS pushed;
SELECT oldest_ready_age IN (0, 1) FROM queue_data.queue_status WHERE name = 'o';
SELECT pg_sleep(1.1);
SELECT queue_push('o', '2', priority => 9) IS NOT NULL AS pushed;
SELECT oldest_ready_age >= 1 FROM queue_data.queue_status WHERE name = 'o';
SELECT body FROM queue_pop('o');
SELECT count(*) FROM queue_claim('o', 600, 60);
SELECT oldest_ready_age FROM queue_data.queue_status WHERE name = 'o';

-- All projects; paused queues; their owners
SET queue.project = 'p';
SELECT queue_push('a', '1') IS NOT NULL AS pushed;
RESET queue.project;
SELECT queue_pause('b');
SELECT project, name, owner = current_user::regrole AS mine, paused, ready, claimed
    FROM queue_data.queue_status ORDER BY project, name;

-- The state of a handler
CREATE FUNCTION handler(jsonb) RETURNS boolean LANGUAGE sql AS 'SELECT true';
SELECT queue_create('h');
SELECT handler_state FROM queue_data.queue_status WHERE name = 'h';
SELECT job_handler('h', 'handler(jsonb)');
SELECT handler_state FROM queue_data.queue_status WHERE name = 'h';
SELECT queue_pause('h');
SELECT handler_state FROM queue_data.queue_status WHERE name = 'h';
DROP FUNCTION handler(jsonb);
SELECT queue_resume('h');
SELECT queue_push('h', '1') IS NOT NULL AS pushed;
\set VERBOSITY terse
SET client_min_messages = error;
CALL job_run('{h}') \gset
RESET client_min_messages;
SELECT handler_state FROM queue_data.queue_status WHERE name = 'h';

-- queue_monitor may read this view, and those of processes; privileges.sql has
-- what it may not.
CREATE ROLE regress_queue_monitor IN ROLE queue_monitor;
SET ROLE regress_queue_monitor;
SELECT count(*) > 0 AS some FROM queue_data.queue_status;
SELECT count(*) >= 0 AS some FROM queue_data.queue_workers;
SELECT count(*) >= 0 AS some FROM queue_data.queue_runners;
SELECT count(*) FROM queue_data.message;
SELECT count(*) FROM queue_stats('a');
RESET ROLE;
DROP ROLE regress_queue_monitor;

DROP EXTENSION queue;
SELECT count(*) FROM pg_roles WHERE rolname = 'queue_monitor';
