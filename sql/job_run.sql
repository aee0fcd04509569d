-- Handlers, and job_run in a session: what it runs, where it ends, and what
-- it refuses.  test/t has what background processes do.

CREATE EXTENSION queue;
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
-- Runs that succeed raise no message; ids and times are left out.
\set VERBOSITY terse
\set SHOW_CONTEXT never

CREATE TABLE done (n serial, queue text, body jsonb, tries int, who name);
CREATE FUNCTION by_message(m queue_message) RETURNS boolean LANGUAGE plpgsql
AS $$
BEGIN
    INSERT INTO done (queue, body, tries, who)
    VALUES (m.queue, m.body, m.claim_count, current_user);
    IF m.claim_id IS NULL OR m.ttl IS NULL OR m.created_at IS NULL
       OR m.priority IS NULL OR m.id IS NULL OR m.age IS NULL THEN
        RAISE EXCEPTION 'incomplete: %', m;
    END IF;
    RETURN true;
END
$$;
CREATE FUNCTION by_body(b jsonb) RETURNS boolean LANGUAGE plpgsql
AS $$
BEGIN
    INSERT INTO done (body) VALUES (b);
    IF b = '"no"' THEN
        RETURN false;
    END IF;
    RETURN b <> '"null"' OR NULL;
END
$$;
CREATE PROCEDURE run(queues text[] = NULL, max_jobs int = NULL,
                     max_time int = NULL) LANGUAGE plpgsql
AS $$
DECLARE
    r jsonb;
BEGIN
    CALL job_run(queues, max_jobs, max_time, r);
    RAISE INFO 'ok %, failed %, %', r -> 'ok', r -> 'failed', r ->> 'reached';
    IF (r ->> 'elapsed')::numeric NOT BETWEEN 0 AND 60 THEN
        RAISE EXCEPTION '%', r;
    END IF;
END
$$;

-- no handler, nothing to do
CALL run();
SELECT queue_create('a', '{"_max_claim_count": 3, "_retry_delay": 0}'),
       queue_create('b', '{"_max_claim_count": 3, "_retry_delay": 0}'), queue_create('c');
CALL run();
CALL run('{a}');
CALL run('{nix}');
CALL run('{a,NULL}');
CALL run('{}');
SELECT job_handler('a', 'by_message(queue_message)');
SELECT job_handler('b', 'by_body(jsonb)');
SELECT queue, handler, concurrency, timeout, rate, teardown, state
    FROM queue_data.queue_handlers ORDER BY queue COLLATE "C";
SELECT name, metadata FROM queue_list() ORDER BY name;

-- first in, first out within a priority
SELECT queue_push_batch('a', '{1, 2, 3}') IS NOT NULL,
       queue_push('a', '4', priority => 9) > 0;
CALL run();
SELECT queue, body, tries, who = current_user AS as_me FROM done ORDER BY n;
CALL run();

-- the limits
TRUNCATE done;
SELECT queue_push_batch('a', array_agg(to_jsonb(i))) IS NOT NULL
    FROM generate_series(1, 100) i;
CALL run(NULL, 30);
SELECT count(*) FROM done;
CALL run(NULL, NULL, 0);
CALL run('{b}');
CALL run('{a}', 70);
SELECT count(*), count(DISTINCT body), max(tries) FROM done;
CALL run(NULL, 1);
CALL run(NULL, 0);
CALL run(NULL, NULL, -1);

-- what fails is tried again, and leaves nothing but a warning
TRUNCATE done;
SET client_min_messages = error;
SELECT queue_push('b', '"no"') > 0, queue_push('b', '"null"') > 0,
       queue_push('b', '"yes"') > 0;
CALL run();
SELECT body FROM done;
SELECT body, reason, last_error, claim_count FROM queue_dead_letters('b.dead');
-- (not what was counted: the launcher has what belongs to a template database forgotten)
SELECT last_error FROM job_stats('b');
RESET client_min_messages;

-- a handler of one queue pushes to another one
TRUNCATE done;
CREATE FUNCTION chain(b jsonb) RETURNS boolean LANGUAGE sql
    AS $$SELECT queue_push('a', b) > 0$$;
SELECT job_handler('c', 'chain(jsonb)');
SELECT queue_push_batch('c', '{1, 2}') IS NOT NULL;
CALL run();
SELECT queue, body FROM done ORDER BY n;

-- a paused queue, a delayed job, a queue without a handler any more
SELECT queue_push('a', '1') > 0, queue_push('b', '1', delay => 100) > 0,
       queue_pause('a');
CALL run();
SELECT queue_resume('a'), job_handler('a', NULL);
CALL run();
SELECT free FROM queue_stats('a');
SELECT job_handler('a', 'by_message(queue_message)', 2, 10, 1000,
                   'by_body(jsonb)');
SELECT queue, handler, concurrency, timeout, rate, teardown, state
    FROM queue_data.queue_handlers WHERE queue = 'a';
TRUNCATE done;
CALL run();
SELECT queue, body FROM done ORDER BY n;

-- a handler that is gone pauses its queue
SELECT queue_push('a', '2') > 0;
DROP FUNCTION by_message(queue_message);
CALL run();
SELECT queue, state, reason FROM queue_data.queue_handlers WHERE queue = 'a';
SELECT paused FROM queue_get('a');
CALL run();
SELECT free FROM queue_stats('a');

-- a timeout
CREATE FUNCTION slow(b jsonb) RETURNS boolean LANGUAGE sql
    AS $$SELECT pg_sleep(60) IS NOT NULL$$;
SELECT queue_create('slow', '{"_max_claim_count": 1}');
SELECT job_handler('slow', 'slow(jsonb)', timeout => 1);
SELECT queue_push('slow', '1') > 0;
SET client_min_messages = error;
CALL run('{slow}');
RESET client_min_messages;
SELECT last_error FROM queue_dead_letters('slow.dead');
-- the setting bounds it
SELECT job_handler('slow', 'slow(jsonb)', timeout => 30);
SELECT queue_push('slow', '1') > 0;
SET queue.max_handler_time = 1;
SET client_min_messages = error;
CALL run('{slow}');
RESET client_min_messages;
RESET queue.max_handler_time;
SELECT last_error, count(*) FROM queue_dead_letters('slow.dead') GROUP BY 1;
SELECT queue_purge('slow.dead');

-- a handler that runs the jobs of its own queue fails, and each is attempted once
CREATE FUNCTION nested(b jsonb) RETURNS boolean LANGUAGE plpgsql
    AS $$DECLARE r jsonb; BEGIN CALL job_run('{nested}', NULL, NULL, r); RETURN true; END$$;
SELECT queue_create('nested', '{"_max_claim_count": 1}');
SELECT job_handler('nested', 'nested(jsonb)', concurrency => 2);
SELECT queue_push_batch('nested', '{1, 2}') IS NOT NULL;
SET client_min_messages = error;
CALL run('{nested}');
RESET client_min_messages;
SELECT body, claim_count, last_error FROM queue_dead_letters('nested.dead') ORDER BY body;
SELECT queue_drop('nested'), queue_drop('nested.dead');

-- a handler that raises what a cancel of the session would ends no more than its attempt
CREATE FUNCTION raises(b jsonb) RETURNS boolean LANGUAGE plpgsql
    AS $$BEGIN RAISE query_canceled; END$$;
SELECT queue_create('raises', '{"_max_claim_count": 1}');
SELECT job_handler('raises', 'raises(jsonb)');
SELECT queue_push_batch('raises', '{1, 2}') IS NOT NULL;
SET client_min_messages = error;
CALL run('{raises}');
RESET client_min_messages;
SELECT queue_drop('raises'), queue_drop('raises.dead');

-- a job after which its handler cannot run: what was claimed with it is given back
CREATE FUNCTION leaves(b jsonb) RETURNS boolean LANGUAGE plpgsql
    AS $$
BEGIN
    IF b = '2' THEN
        ALTER FUNCTION leaves(jsonb) RENAME TO left_behind;
    END IF;
    RETURN true;
END
$$;
SELECT queue_create('leaves');
SELECT job_handler('leaves', 'leaves(jsonb)');
SELECT queue_push_batch('leaves', '{1, 2, 3}') IS NOT NULL;
SET client_min_messages = error;
CALL run('{leaves}');
RESET client_min_messages;
SELECT free, claimed FROM queue_stats('leaves');
SELECT queue_drop('leaves');

-- what a handler defers is done while its settings last
CREATE TABLE deferred (a int);
CREATE FUNCTION note_path() RETURNS trigger LANGUAGE plpgsql
    AS $$BEGIN INSERT INTO public.done (body) VALUES (to_jsonb(current_setting('search_path'))); RETURN NULL; END$$;
CREATE CONSTRAINT TRIGGER late AFTER INSERT ON deferred INITIALLY DEFERRED
    FOR EACH ROW EXECUTE FUNCTION note_path();
CREATE FUNCTION defers(b jsonb) RETURNS boolean LANGUAGE sql
    AS 'INSERT INTO deferred VALUES (1); SELECT true';
TRUNCATE done;
SELECT queue_create('defers');
SET search_path = public, pg_catalog;
SELECT job_handler('defers', 'defers(jsonb)');
RESET search_path;
SELECT queue_push('defers', '1') > 0;
CALL run('{defers}');
SELECT body FROM done;
SELECT queue_drop('defers');
DROP TABLE deferred;

-- a rate does not make up for all the time in which nothing was run
CREATE FUNCTION slowly(b jsonb) RETURNS boolean LANGUAGE sql AS 'SELECT true';
SELECT queue_create('slowly');
SELECT job_handler('slowly', 'slowly(jsonb)', rate => 0.001);
-- its trigger would have the handler wait for the end of this session
ALTER TABLE queue_data.handler DISABLE TRIGGER handler_loaded;
UPDATE queue_data.handler SET next_at = now() - interval '1 day'
    WHERE queue_id = (SELECT id FROM queue_data.queue WHERE name = 'slowly');
ALTER TABLE queue_data.handler ENABLE ALWAYS TRIGGER handler_loaded;
SELECT queue_push_batch('slowly', '{1, 2, 3, 4, 5, 6, 7, 8}') IS NOT NULL;
CALL run('{slowly}');
SELECT queue_drop('slowly');

-- the claim lasts for the teardown, too
CREATE FUNCTION takes(m queue_message) RETURNS boolean LANGUAGE plpgsql
    AS $$
BEGIN
    INSERT INTO done (body) SELECT to_jsonb(c.ttl >= 2 * 100) FROM claim_get(m.queue, m.claim_id) AS c;
    RETURN true;
END
$$;
CREATE FUNCTION undoes(b jsonb) RETURNS void LANGUAGE sql AS '';
TRUNCATE done;
SELECT queue_create('takes');
SELECT job_handler('takes', 'takes(queue_message)', teardown => 'undoes(jsonb)', timeout => 100);
SELECT queue_push('takes', '1') > 0;
CALL run('{takes}');
SELECT body FROM done;
SELECT queue_drop('takes');
DROP FUNCTION takes(queue_message);

-- the timeout of the statement ends all, and counts as an attempt of the job
SELECT job_handler('slow', 'slow(jsonb)');
SELECT queue_push('slow', '1') > 0;
SET client_min_messages = error;
SET statement_timeout = '300ms';
CALL job_run('{slow}');
RESET statement_timeout;
RESET client_min_messages;
SELECT count(*) FROM queue_dead_letters('slow.dead');
SELECT count(*) AS slots_taken FROM pg_locks
    WHERE locktype = 'object' AND objsubid >= 16;

-- where a job cannot have its own transaction
\set VERBOSITY sqlstate
BEGIN;
CALL job_run();
ROLLBACK;
CREATE FUNCTION inside() RETURNS void LANGUAGE plpgsql
    AS $$DECLARE r jsonb; BEGIN CALL job_run(NULL, NULL, NULL, r); END$$;
SELECT inside();
DO $$
DECLARE
    r jsonb;
BEGIN
    CALL job_run(NULL, NULL, NULL, r);
EXCEPTION WHEN OTHERS THEN
    RAISE;
END
$$;
SET default_transaction_read_only = on;
CALL job_run();
RESET default_transaction_read_only;
\set VERBOSITY terse

-- inside a loop over a query, which goes on
DO $$
DECLARE
    r jsonb;
    i int;
BEGIN
    FOR i IN SELECT g FROM generate_series(1, 3) g LOOP
        PERFORM queue_push('b', to_jsonb(i));
        COMMIT;
        CALL job_run('{b}', NULL, NULL, r);
        RAISE INFO '% %', i, r -> 'ok';
    END LOOP;
END
$$;

-- as another role: a member of the role may, others may not
CREATE ROLE regress_queue_worker;
CREATE ROLE regress_queue_runner;
GRANT queue_consumer TO regress_queue_worker, regress_queue_runner;
GRANT queue_producer TO regress_queue_worker;
GRANT SELECT, INSERT ON done TO regress_queue_worker;
GRANT USAGE ON SEQUENCE done_n_seq TO regress_queue_worker;
SET ROLE regress_queue_worker;
SELECT queue_create('w');
SELECT job_handler('w', 'by_body(jsonb)');
SELECT queue_push_batch('w', '{1, 2}') IS NOT NULL;
SET ROLE regress_queue_runner;
CALL job_run('{w}');
CALL run();
RESET ROLE;
GRANT regress_queue_worker TO regress_queue_runner;
SET ROLE regress_queue_runner;
CALL run('{w}');
SELECT current_user;
RESET ROLE;

-- a role that is set is not the one to which the session belongs
CREATE FUNCTION temporary(b jsonb) RETURNS boolean LANGUAGE plpgsql
    AS $$BEGIN CREATE TEMP TABLE trap (a int); RETURN true; END$$;
SET ROLE regress_queue_worker;
SELECT queue_create('temporary', '{"_max_claim_count": 1}');
SELECT job_handler('temporary', 'temporary(jsonb)');
SELECT queue_push('temporary', '1') > 0;
SET client_min_messages = error;
CALL run('{temporary}');
RESET client_min_messages;
SELECT last_error FROM queue_dead_letters('temporary.dead');
SELECT queue_drop('temporary'), queue_drop('temporary.dead');
RESET ROLE;

-- the project is the session's
SET queue.project = 'wiki';
CALL run();
SELECT queue_create('w');
SELECT job_handler('w', 'by_body(jsonb)');
SELECT queue_push('w', '3') > 0;
RESET queue.project;
CALL run();
SET queue.project = 'wiki';
CALL run();
RESET queue.project;

-- Jobs of a claim that come after one that takes a second are given back, and were
-- not attempted.
CREATE FUNCTION slow_one(m queue_message) RETURNS boolean LANGUAGE plpgsql
AS $$
BEGIN
    INSERT INTO done (queue, tries) VALUES (m.queue, m.claim_count);
    PERFORM pg_sleep(1.1) WHERE m.body = '40';
    RETURN true;
END
$$;
SELECT queue_create('rest'), job_handler('rest', 'slow_one(queue_message)');
SELECT queue_push_batch('rest', array_agg(to_jsonb(i))) IS NOT NULL AS pushed
FROM generate_series(1, 70) AS i;
CALL run('{rest}');
SELECT count(*), max(tries) FROM done WHERE queue = 'rest';
SELECT queue_drop('rest');
DROP FUNCTION slow_one(queue_message);

-- dropping a queue drops its handler
SELECT queue_drop('w');
SELECT project, queue FROM queue_data.queue_handlers
    ORDER BY project COLLATE "C", queue COLLATE "C";
DROP EXTENSION queue CASCADE;
DROP TABLE done;
DROP OWNED BY regress_queue_worker, regress_queue_runner;
DROP ROLE regress_queue_worker, regress_queue_runner;
ALTER DATABASE :"DBNAME" IS_TEMPLATE false;
