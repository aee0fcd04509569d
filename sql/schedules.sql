-- job_due: what pg_cron calls for a schedule that an earlier version has made.

CREATE EXTENSION queue;
\set SHOW_CONTEXT never

CREATE ROLE regress_queue_app IN ROLE queue_producer;
CREATE ROLE "regress_queue'\" IN ROLE queue_producer;
INSERT INTO queue_data.schedule (id, role, pushed_at, project, name, queue, cron, body) VALUES
    (1, 'regress_queue_app', '-infinity', '', 'nightly', 'index', '30 3 * * *', '{"all": true}'),
    (2, 'regress_queue_app', now(), 'wiki', 'often', 'index', '10 seconds', '"it''s \\ "'),
    (3, '"regress_queue''\"', '-infinity', '', 'yearly', 'other', '0 0 1 1 *', 'null'),
    (4, 'regress_queue_app', '-infinity', '', 'refused', 'closed', '* * * * *', '1');
SELECT queue_create('closed'), queue_grant('closed', CURRENT_USER::regrole, 'push');

-- It pushes as the role of the schedule, each time that it is called.
SET ROLE regress_queue_app;
SELECT job_due(1);
SELECT job_due(1);
SELECT queue_router.due(2);
SELECT current_setting('queue.project');
RESET ROLE;
SELECT project, name, owner::text ~ 'regress' AS is_of_role FROM queue_data.queue ORDER BY project, name;
SELECT project, queue, body FROM queue_data.message ORDER BY project, queue, id;
SELECT id, pushed_at FROM queue_data.schedule WHERE id = 1;

-- What replaces a schedule does the same.
SELECT replacement FROM queue_router.schedules WHERE id = 3 \gset
CREATE SCHEMA cron;
CREATE FUNCTION cron.schedule(name text, cron text, command text) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    RAISE NOTICE '% at %: %', name, cron, command;
    EXECUTE command;
END
$$;
CREATE FUNCTION cron.unschedule(name text) RETURNS boolean
LANGUAGE plpgsql AS $$
BEGIN
    RAISE NOTICE 'not any more: %', name;
    RETURN true;
END
$$;
SELECT queue_purge('index');
SELECT replacement FROM queue_router.schedules ORDER BY id \gexec
SELECT project, queue, body FROM queue_data.message ORDER BY project, queue, id;
DROP SCHEMA cron CASCADE;

-- not of another role, not even as a superuser
SELECT job_due(1);
SET ROLE regress_queue_app;
SELECT job_due(3);
SELECT id, name FROM queue_router.schedules ORDER BY id;
SELECT * FROM queue_data.schedule;
-- with no more rights than that has
SELECT job_due(4);
-- none
SELECT job_due(5);
RESET ROLE;

-- no function of another schema
CREATE FUNCTION pg_temp.queue_push(text, jsonb) RETURNS bigint
    LANGUAGE plpgsql AS $$BEGIN RAISE 'planted'; END$$;
CREATE FUNCTION pg_temp.equal(int, int) RETURNS boolean
    LANGUAGE plpgsql AS $$BEGIN RAISE 'planted'; END$$;
CREATE OPERATOR pg_temp.= (LEFTARG = int, RIGHTARG = int, FUNCTION = pg_temp.equal);
SET search_path = pg_temp, pg_catalog;
SET client_min_messages = error;
SET ROLE regress_queue_app;
SELECT queue_router.due(1);
RESET ROLE;
RESET search_path;

DROP EXTENSION queue;
DROP ROLE regress_queue_app, "regress_queue'\";
