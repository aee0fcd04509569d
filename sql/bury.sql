-- message_bury: a message becomes a dead letter at once, whatever its attempts; and
-- so does the job of a handler that raises QU005, and a message that failed in
-- queue_step with "bury".

CREATE EXTENSION queue;
SET client_min_messages = warning;
CREATE VIEW letters AS
SELECT q.name, d.body, d.origin_queue, d.reason, d.last_error, d.claim_count
FROM queue_list("limit" => 100) AS q, queue_dead_letters(q.name, 100) AS d
ORDER BY 1, d.id;

-- The queue has no dead letter queue, and no limit of attempts.
SELECT queue_push('q', to_jsonb(i)) IS NOT NULL AS pushed FROM generate_series(1, 3) AS i;
SELECT id AS m1, claim_id AS c FROM queue_claim('q', "limit" => 3) LIMIT 1 \gset
SELECT metadata FROM queue_get('q');
SELECT message_bury('q', :m1, :'c', 'no such address');
TABLE letters;
SELECT metadata FROM queue_get('q');
SELECT body FROM claim_messages('q', :'c');
SELECT abandoned, retried, last_error FROM job_stats('q');

-- The others can be finished, or buried with the error of the last attempt.
SELECT max(id) AS m3 FROM claim_messages('q', :'c') \gset
SELECT message_retry('q', :m3, :'c', 'busy', 0) IS NOT NULL AS retried;
SELECT claim_complete('q', :'c');
SELECT claim_id AS c FROM queue_claim('q') \gset
SELECT message_bury('q', :m3, :'c', NULL);
TABLE letters;

-- It is not under that claim any more, and the claim has no others.
SELECT message_bury('q', :m3, :'c', 'again');
SELECT queue_push('q', '4') AS m4 \gset
SELECT message_bury('q', :m4, NULL, 'no claim');
SELECT message_bury('q', :m4, 'nonsense', 'no claim');
SELECT message_bury('q', NULL, :'c', 'no id');
SELECT message_bury(NULL, :m4, :'c', 'no queue');
SELECT message_bury('unknown', :m4, :'c', 'no queue');
SELECT queue_push('q', '5') AS m5 \gset
SELECT claim_id AS c FROM queue_claim('q', "limit" => 1) \gset
\set VERBOSITY sqlstate
SELECT message_bury('q', :m5, :'c', 'another message');
SELECT message_bury('q', 1, :'c', 'no message');
\set VERBOSITY default
BEGIN READ ONLY;
SELECT message_bury('q', :m4, :'c', 'read only');
ROLLBACK;

-- All or nothing
BEGIN;
SELECT message_bury('q', :m4, :'c', 'rolled back');
SELECT count(*) FROM letters;
ROLLBACK;
SELECT count(*) FROM letters;
SELECT claim_complete('q', :'c');

-- A redriven message is a new one.
SELECT queue_redrive('q.dead');
SELECT body, claim_count FROM queue_messages('q') ORDER BY body;
SELECT queue_purge('q');

-- To the dead letter queue that the metadata names
SELECT queue_create('named', '{"_max_claim_count": 5, "_dead_letter_queue": "morgue"}');
SELECT queue_push('named', '"n"') AS m \gset
SELECT claim_id AS c FROM queue_claim('named') \gset
SELECT message_bury('named', :m, :'c', 'unknown format');
SELECT * FROM letters WHERE name = 'morgue';

-- Where there would be no room for its name, or that is the name of a queue of
-- another role
SELECT repeat('x', 60) AS long \gset
SELECT queue_push(:'long', '1') AS m \gset
SELECT claim_id AS c FROM queue_claim(:'long') \gset
SELECT message_bury(:'long', :m, :'c', 'no name');
CREATE ROLE regress_bury_owner;
CREATE ROLE regress_bury_other;
GRANT queue_producer, queue_consumer TO regress_bury_owner, regress_bury_other;
SET ROLE regress_bury_other;
SELECT queue_create('taken.dead');
SET ROLE regress_bury_owner;
SELECT queue_push('taken', '1') AS m \gset
SELECT claim_id AS c FROM queue_claim('taken') \gset
SELECT message_bury('taken', :m, :'c', 'not mine');
SELECT count(*) AS stays FROM queue_messages('taken', include_claimed => true);

-- The owner has created it before, or it is another one by then.
SELECT queue_create('early.dead');
SELECT queue_push('early', '1') AS m \gset
SELECT claim_id AS c FROM queue_claim('early') \gset
SELECT message_bury('early', :m, :'c', 'mine');

-- A dead letter that is buried
SELECT id AS m, claim_id AS c FROM queue_claim('early.dead') \gset
SELECT message_bury('early.dead', :m, :'c', 'twice');
RESET ROLE;
SELECT * FROM letters WHERE name LIKE 'early%';
SET ROLE regress_bury_owner;

-- Dead letters must not come back.
SELECT queue_create('there'), queue_create('there.dead', '{"_dead_letter_queue": "there"}');
SELECT queue_push('there', '1') AS m \gset
SELECT claim_id AS c FROM queue_claim('there') \gset
SELECT message_bury('there', :m, :'c', 'in a circle');

-- A role that may claim buries, and the owner owns the dead letters.
RESET ROLE;
CREATE ROLE regress_bury_worker;
GRANT queue_consumer TO regress_bury_worker;
SET ROLE regress_bury_owner;
SELECT queue_push('mine', '1') AS m \gset
SET ROLE regress_bury_worker;
SELECT claim_id AS c FROM queue_claim('mine') \gset
SELECT message_bury('mine', :m, :'c', 'by a worker');
RESET ROLE;
SELECT name, owner FROM queue_data.queue_status WHERE name LIKE 'mine%' ORDER BY 1;
SELECT * FROM letters WHERE name = 'mine.dead';
SET ROLE regress_bury_owner;
SELECT queue_grant('mine', 'regress_bury_owner', 'claim');
SELECT queue_push('mine', '2') AS m \gset
SELECT claim_id AS c FROM queue_claim('mine') \gset
SET ROLE regress_bury_worker;
SELECT message_bury('mine', :m, :'c', 'may not claim');
RESET ROLE;

-- The dead letter queue does not accept it: the message stays in its claim.  The
-- warning comes once in a minute.
SET client_min_messages = error;
SELECT queue_create('vault'), queue_create('full', '{"_dead_letter_queue": "vault"}');
SELECT queue_set_owner('full', 'regress_bury_owner');
SELECT queue_grant('vault', 'regress_bury_other', 'push');
SELECT queue_push('full', '"n"') AS m \gset
SELECT claim_id AS c FROM queue_claim('full') \gset
\set VERBOSITY sqlstate
SELECT message_bury('full', :m, :'c', 'refused');
\set VERBOSITY default
SELECT claim_complete('full', :'c');
SET client_min_messages = warning;

-- queue_step
SELECT queue_push('s', to_jsonb(i)) IS NOT NULL AS pushed FROM generate_series(1, 4) AS i;
SELECT claim_id AS c, array_agg(id ORDER BY id) AS ids FROM queue_claim('s', "limit" => 4)
GROUP BY 1 \gset
SELECT count(*) FROM queue_step('s', :'c', failed => jsonb_build_array(
    jsonb_build_object('id', (:'ids'::bigint[])[1], 'bury', 1)));
SELECT count(*) FROM queue_step('s', :'c', failed => jsonb_build_array(
    jsonb_build_object('id', (:'ids'::bigint[])[1], 'bury', true, 'error', 'broken'),
    jsonb_build_object('id', (:'ids'::bigint[])[2], 'bury', true),
    jsonb_build_object('id', (:'ids'::bigint[])[3], 'bury', false, 'error', 'later', 'delay', 0)));
SELECT * FROM letters WHERE name = 's.dead';
SELECT abandoned, retried, completed FROM job_stats('s');
SELECT count(*) AS retried FROM queue_pop('s', 10);

-- A member of a batch has failed.
SELECT batch_create('b', keep_open => true) AS b \gset
SELECT queue_push('s', '5', batch => :b) AS m \gset
SELECT claim_id AS c FROM queue_claim('s') \gset
SELECT message_bury('s', :m, :'c', 'broken');
SELECT members, unfinished, completed, failed FROM batch_status(:b);

-- A duplicate is dropped: here a leaf whose root job was started again.
SELECT job_root('leaves', 'r') AS root \gset
SELECT queue_push('leaves', :'root') AS m \gset
SELECT claim_id AS c FROM queue_claim('leaves') \gset
SELECT job_root('leaves', 'r') IS NOT NULL AS newer;
SELECT message_bury('leaves', :m, :'c', 'superseded');
SELECT count(*) FROM letters WHERE name = 'leaves.dead';
SELECT count(*) FROM queue_claim('leaves');
SELECT abandoned, duplicates FROM job_stats('leaves');

-- The next message of a group with bound 1 has its turn.
SELECT queue_create('g', '{"_group_concurrency": 1}');
SELECT queue_push('g', to_jsonb(i), group_key => 'k') IS NOT NULL AS pushed FROM generate_series(1, 2) AS i;
SELECT id AS m, claim_id AS c FROM queue_claim('g') \gset
SELECT count(*) FROM queue_claim('g');
SELECT message_bury('g', :m, :'c', 'broken');
SELECT body FROM queue_claim('g');

-- Handlers
CREATE FUNCTION handle(b jsonb) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    IF b = '"bad"' THEN
        RAISE EXCEPTION 'cannot parse %', b USING ERRCODE = 'QU005';
    END IF;
    RETURN true;
END
$$;
CREATE PROCEDURE run(q text) LANGUAGE plpgsql AS $$
DECLARE
    r jsonb;
BEGIN
    CALL job_run(ARRAY[q], 10, 60, r);
    RAISE INFO 'ok %, failed %', r -> 'ok', r -> 'failed';
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
SELECT queue_create('h', '{"_max_claim_count": 3, "_retry_delay": 0}');
SELECT job_handler('h', 'handle(jsonb)');
SELECT queue_push('h', b) IS NOT NULL AS pushed FROM unnest('{"\"good\"", "\"bad\""}'::jsonb[]) AS b;
-- The message about the failure has the id of the job.
SET client_min_messages = error;
CALL run('h');
SELECT * FROM letters WHERE name = 'h.dead';
SELECT completed, retried, abandoned, last_error FROM job_stats('h');

-- If it cannot become a dead letter, it is retried as after any error.
SET ROLE regress_bury_owner;
SELECT job_handler('full', 'handle(jsonb)');
SELECT queue_push('full', '"bad"') IS NOT NULL AS pushed;
RESET ROLE;
CALL run('full');
SELECT retried, abandoned, last_error FROM job_stats('full');
ALTER DATABASE :"DBNAME" IS_TEMPLATE false;

DROP EXTENSION queue CASCADE;
DROP PROCEDURE run;
DROP FUNCTION handle;
DROP ROLE regress_bury_owner, regress_bury_other, regress_bury_worker;
