/* src/sql/queue--1.2--2.0.sql */

-- complain if script is sourced in psql, rather than via ALTER EXTENSION
\echo Use "ALTER EXTENSION queue UPDATE TO '2.0'" to load this file. \quit

-- An error with a hint if the session has loaded an older library.
SELECT queue_data.library_version('2.0');

-- The functions that exist, whose privileges stay as they are
SELECT pg_catalog.set_config('queue_update.before', pg_catalog.array_agg(d.objid)::text, true)
FROM pg_catalog.pg_depend AS d
     JOIN pg_catalog.pg_extension AS e ON e.oid OPERATOR(pg_catalog.=) d.refobjid
WHERE d.classid OPERATOR(pg_catalog.=) 'pg_catalog.pg_proc'::regclass
  AND d.refclassid OPERATOR(pg_catalog.=) 'pg_catalog.pg_extension'::regclass
  AND d.deptype OPERATOR(pg_catalog.=) 'e'
  AND e.extname OPERATOR(pg_catalog.=) 'queue';

--
-- Locks
--
-- A session that has written to one of the tables may be about to write to another one,
-- which would be a deadlock with a script that has locked that and waits for the first.
-- So all are locked before anything else is done, and if that takes half a second, the
-- update fails: sessions look for deadlocks when they have waited for a second
-- (deadlock_timeout).
--
DO $$
DECLARE
    part text;
    before text := pg_catalog.current_setting('lock_timeout');
    until timestamptz := pg_catalog.clock_timestamp()
                         OPERATOR(pg_catalog.+) '500 ms'::interval;
BEGIN
    FOR part IN
        SELECT c.relname FROM pg_catalog.pg_class AS c
        WHERE c.relnamespace OPERATOR(pg_catalog.=) 'queue_data'::pg_catalog.regnamespace
        AND c.relkind OPERATOR(pg_catalog.=) 'r'
        ORDER BY c.oid
    LOOP
        PERFORM pg_catalog.set_config('lock_timeout',
            GREATEST(pg_catalog.round(1000 OPERATOR(pg_catalog.*)
                                      EXTRACT(epoch FROM until OPERATOR(pg_catalog.-)
                                              pg_catalog.clock_timestamp())),
                     1)::text, true);
        EXECUTE pg_catalog.format('LOCK TABLE queue_data.%I', part);
    END LOOP;
    PERFORM pg_catalog.set_config('lock_timeout', before, true);
END
$$;

--
-- Deduplication keys
--
-- Keys that hold for a time, whatever became of the message
ALTER TABLE queue_data.dedup_key
    ADD COLUMN pushed_at timestamptz,
    ADD COLUMN kept_until timestamptz,
    ADD COLUMN version bigint NOT NULL DEFAULT 1,
    ADD CONSTRAINT dedup_key_times CHECK (
        (pushed_at IS NULL) OPERATOR(pg_catalog.=) (kept_until IS NULL));
CREATE INDEX dedup_key_time_idx ON queue_data.dedup_key (kept_until)
    WHERE kept_until IS NOT NULL;
COMMENT ON INDEX queue_data.dedup_key_time_idx IS
'rows that hold a key for a time, to delete them when it is over';
COMMENT ON TABLE queue_data.dedup_key IS
'deduplication keys, and the messages that may hold them; pushed_at: when the last push with dedup_for took the key; kept_until: how long the row stays for that; version: greater in each later version of a row, and in a later row of the key';

-- The newest version of a row is the last one in the index, so that it is found as fast
-- while an old snapshot keeps the others.
DROP INDEX queue_data.dedup_key_idx;
CREATE UNIQUE INDEX dedup_key_idx ON queue_data.dedup_key (queue_id, digest, version);
ALTER TABLE queue_data.dedup_key REPLICA IDENTITY USING INDEX dedup_key_idx;
COMMENT ON INDEX queue_data.dedup_key_idx IS
'one row for each key of a queue, with its version';

--
-- History
--
-- One ring of tables for each step of _keep_finished, so that what one queue
-- keeps for a year does not hold the tables of others.  The first eight tables
-- are the ring of what is kept longer than 31 days; their rows stay.
DO $$
BEGIN
    FOR part IN 0 .. 7 LOOP
        EXECUTE pg_catalog.format('
            COMMENT ON TABLE queue_data.finished_%1$s IS
                ''history of finished messages, table %1$s of the rings; outcome: 0 completed, 1 dead, 2 expired, 3 canceled, 4 duplicate, 5 deleted, 6 a failed attempt''', part);
    END LOOP;
    FOR part IN 8 .. 17 LOOP
        EXECUTE pg_catalog.format('
            CREATE TABLE queue_data.finished_%1$s (
                LIKE queue_data.finished_0 INCLUDING CONSTRAINTS
            ) USING heap;
            CREATE INDEX finished_%1$s_idx ON queue_data.finished_%1$s
                (queue_id, is_attempt, id);
            ALTER TABLE queue_data.finished_%1$s REPLICA IDENTITY FULL;
            COMMENT ON INDEX queue_data.finished_%1$s_idx IS
                ''finished messages, and failed attempts, by queue and id'';
            COMMENT ON TABLE queue_data.finished_%1$s IS
                ''history of finished messages, table %1$s of the rings; outcome: 0 completed, 1 dead, 2 expired, 3 canceled, 4 duplicate, 5 deleted, 6 a failed attempt'';
            REVOKE ALL ON queue_data.finished_%1$s FROM PUBLIC;
            CREATE TRIGGER not_replicated
                BEFORE INSERT OR UPDATE OR DELETE ON queue_data.finished_%1$s
                FOR EACH ROW EXECUTE FUNCTION queue_data.not_replicated();
            ALTER TABLE queue_data.finished_%1$s ENABLE ALWAYS TRIGGER not_replicated;
            COMMENT ON TRIGGER not_replicated ON queue_data.finished_%1$s IS
                ''leaves out the rows that a subscription writes'';
            CREATE TRIGGER superusers_only
                BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE ON queue_data.finished_%1$s
                FOR EACH STATEMENT EXECUTE FUNCTION queue_data.superusers_only();
            ALTER TABLE queue_data.finished_%1$s ENABLE ALWAYS TRIGGER superusers_only;
            COMMENT ON TRIGGER superusers_only ON queue_data.finished_%1$s IS
                ''refuses SQL of roles that are not superusers'';', part);
        PERFORM pg_catalog.pg_extension_config_dump(
            pg_catalog.format('queue_data.finished_%s', part)::regclass, '');
    END LOOP;
END
$$;
ALTER TABLE queue_data.finished_ring
    DROP CONSTRAINT finished_ring_active,
    ADD CONSTRAINT finished_ring_active CHECK (
        active OPERATOR(pg_catalog.>=) 0 AND active OPERATOR(pg_catalog.<=) 17);
INSERT INTO queue_data.finished_ring (active) VALUES (8), (11), (14), (16);
COMMENT ON TABLE queue_data.finished_ring IS
'which table of each ring of the history takes new rows, and since when';

--
-- Depths
--
-- What prepared transactions have written to it is not needed: the worker counts all
-- messages after the update.
DROP TABLE queue_data.prepared_count;

--
-- Messages
--
-- All messages and their states, as before.  A delayed one does not expire; it lives
-- for at least a minute after it can be claimed.
DO $$
DECLARE
    arms text := '';
    part text;
BEGIN
    FOREACH part IN ARRAY
        (SELECT pg_catalog.array_agg('message_' OPERATOR(pg_catalog.||) s::text)
         FROM pg_catalog.generate_series(0, 15) AS s)
        OPERATOR(pg_catalog.||) '{delayed_0,delayed_1,delayed_2,delayed_3}'::text[]
    LOOP
        arms := arms OPERATOR(pg_catalog.||) pg_catalog.format('
            UNION ALL
            SELECT %L::text, m.id, m.queue_id, m.created_at, m.ttl,
                   m.claim_ttl, m.claim_grace, m.claimed_until,
                   m.claim_token, m.claim_count, m.claim_priorities,
                   m.priority, m.client_id, m.attributes, m.group_key,
                   m.headers, m.body, m.due_at, m.batch, m.after_batch
            FROM queue_data.%I m', part, part);
    END LOOP;
    EXECUTE '
        CREATE OR REPLACE VIEW queue_data.message
            (relation, project, queue, id, state, priority, created_at,
             expires_at, claimed_at, claimed_until, claim_count, due_at,
             client_id, group_key, headers, attributes, body, batch,
             after_batch) AS
        SELECT u.relation, q.project, q.name, u.id,
               CASE
                   WHEN u.claim_token OPERATOR(pg_catalog.<>) 0
                        AND u.claimed_until OPERATOR(pg_catalog.>) c.now
                       THEN CASE WHEN e.is_canceled THEN ''canceled''
                                 ELSE ''claimed'' END
                   WHEN u.due_at OPERATOR(pg_catalog.>) c.now
                       THEN ''delayed''
                   WHEN u.due_at IS NULL
                        AND e.expires_at OPERATOR(pg_catalog.<=) c.now
                       THEN ''expired''
                   ELSE ''free''
               END,
               u.priority, u.created_at, e.expires_at,
               e.claimed_at, e.claimed_until,
               COALESCE(u.claim_count, 0) OPERATOR(pg_catalog.-)
               COALESCE((u.attributes OPERATOR(pg_catalog.->>)
                         ''given_back'')::integer, 0),
               u.due_at, u.client_id,
               u.group_key, u.headers, u.attributes, u.body, u.batch,
               u.after_batch
        FROM (' OPERATOR(pg_catalog.||)
        pg_catalog.regexp_replace(arms, 'UNION ALL', '') OPERATOR(pg_catalog.||) ')
             AS u (relation, id, queue_id, created_at, ttl, claim_ttl,
                   claim_grace, claimed_until, claim_token, claim_count,
                   claim_priorities, priority, client_id, attributes, group_key,
                   headers, body, due_at, batch, after_batch)
             JOIN queue_data.queue q ON q.id OPERATOR(pg_catalog.=) u.queue_id
             CROSS JOIN LATERAL
             (SELECT CASE WHEN u.claim_token OPERATOR(pg_catalog.<>) 0
                          THEN u.claimed_until OPERATOR(pg_catalog.-)
                               pg_catalog.make_interval(secs => u.claim_ttl)
                     END,
                     CASE WHEN u.claim_token OPERATOR(pg_catalog.<>) 0
                          THEN u.claimed_until END,
                     u.claim_token OPERATOR(pg_catalog.<>) 0
                     AND u.claim_priorities OPERATOR(pg_catalog.&) 8192::smallint
                         OPERATOR(pg_catalog.<>) 0)
             AS t (claimed_at, claimed_until, is_canceled)
             CROSS JOIN LATERAL
             (SELECT t.claimed_at, t.claimed_until, t.is_canceled,
                     CASE WHEN t.is_canceled THEN t.claimed_until
                     ELSE GREATEST(u.created_at OPERATOR(pg_catalog.+)
                              pg_catalog.make_interval(secs => u.ttl),
                              LEAST(t.claimed_until OPERATOR(pg_catalog.+)
                                    pg_catalog.make_interval(secs => u.claim_grace),
                                    t.claimed_at OPERATOR(pg_catalog.+)
                                    pg_catalog.make_interval(secs => 1209600)),
                              u.due_at OPERATOR(pg_catalog.+)
                              pg_catalog.make_interval(secs => 60))
                     END)
             AS e (claimed_at, claimed_until, is_canceled, expires_at)
             CROSS JOIN LATERAL
             (SELECT pg_catalog.clock_timestamp()) AS c (now)';
END
$$;

--
-- Handlers
--
-- One that cannot run waits, and goes on by itself: why is found out when it is
-- looked at, no longer stored, and its queue is not paused for that.
CREATE FUNCTION queue_data.handler_problem(queue_id integer)
RETURNS text
AS 'MODULE_PATHNAME', 'sql_queue_handler_problem'
LANGUAGE C VOLATILE STRICT PARALLEL UNSAFE;
COMMENT ON FUNCTION queue_data.handler_problem(integer) IS
'why the handler of a queue cannot run; NULL if it can, is paused, or there is none';
GRANT EXECUTE ON FUNCTION queue_data.handler_problem(integer)
    TO queue_admin, queue_monitor;

CREATE OR REPLACE VIEW queue_data.queue_handlers AS
SELECT q.project, q.name AS queue, h.role,
       pg_catalog.format('%I.%I(%s)', h.function_schema, h.function_name,
                         CASE WHEN h.takes_jsonb THEN 'jsonb'
                              ELSE 'queue_message' END) AS handler,
       h.concurrency,
       CASE WHEN h.timeout OPERATOR(pg_catalog.>) 0 THEN h.timeout END
           AS timeout,
       CASE WHEN h.rate OPERATOR(pg_catalog.>) 0::real THEN h.rate END AS rate,
       CASE WHEN h.teardown_name IS NOT NULL THEN
           pg_catalog.format('%I.%I(%s)', h.teardown_schema, h.teardown_name,
                             CASE WHEN h.teardown_takes_jsonb THEN 'jsonb'
                                  ELSE 'queue_message' END)
       END AS teardown,
       h.search_path, h.bound_at,
       CASE WHEN q.paused THEN 'paused'
            WHEN p.reason IS NULL THEN 'active'
            ELSE 'stopped'
       END AS state,
       p.reason
FROM queue_data.handler AS h
     JOIN queue_data.queue AS q ON q.id OPERATOR(pg_catalog.=) h.queue_id
     CROSS JOIN LATERAL queue_data.handler_problem(h.queue_id) AS p (reason);
COMMENT ON VIEW queue_data.queue_handlers IS
'the handlers of queues: active, paused by a command, or stopped because the handler cannot run now, with the reason';

CREATE OR REPLACE VIEW queue_data.queue_status AS
WITH s AS MATERIALIZED (SELECT * FROM queue_data.status())
SELECT q.project, q.name, q.owner, q.paused, s.ready, s.claimed, s.delayed,
       CASE WHEN d.queue_id IS NULL THEN 0
            ELSE d.ready OPERATOR(pg_catalog.+) d.claimed
                 OPERATOR(pg_catalog.+) d.delayed
       END AS dead_letters,
       s.oldest_ready_age, s.pushed, s.claimed_total, s.completed, s.retried,
       s.abandoned, s.duplicates, s.expired,
       CASE WHEN h.queue_id IS NULL THEN 'none'
            WHEN q.paused THEN 'paused'
            WHEN queue_data.handler_problem(h.queue_id) IS NOT NULL THEN 'stopped'
            WHEN s.running THEN 'running'
            ELSE 'idle'
       END AS handler_state,
       q.source_id IS NOT NULL
       OR EXISTS (SELECT FROM queue_data.queue AS o
                  WHERE o.dead_queue_id OPERATOR(pg_catalog.=) q.id)
           AS is_dead_letter_queue
FROM queue_data.queue AS q
     JOIN s ON s.queue_id OPERATOR(pg_catalog.=) q.id
     LEFT JOIN s AS d ON d.queue_id OPERATOR(pg_catalog.=) q.dead_queue_id
     LEFT JOIN queue_data.handler AS h
         ON h.queue_id OPERATOR(pg_catalog.=) q.id;
COMMENT ON VIEW queue_data.queue_status IS
'one row for each queue of all projects: its messages by state, counted as they change and at most two seconds late (five for claims that have run out; NULL while they are not known: there is no background worker, or it has not counted the messages yet), and those in its dead letter queue, the age in seconds of the oldest ready one, what was counted since job_stats.since, and its handler: none, idle, running, paused by a command, or stopped because it cannot run now; is_dead_letter_queue: whether a queue sends its dead letters there, or the queue was created for those of another one';

-- No definition is compared any more.  The column that had the digest of it says
-- which handlers a restore has loaded, which wait until it has ended.
ALTER TABLE queue_data.handler
    ALTER COLUMN digest DROP NOT NULL,
    ALTER COLUMN digest TYPE timestamptz USING NULL;
ALTER TABLE queue_data.handler RENAME COLUMN digest TO loaded_by;

-- The triggers on these tables read them with the library, so all columns are there.
UPDATE queue_data.queue AS q SET paused = false
FROM queue_data.handler AS h
WHERE h.queue_id OPERATOR(pg_catalog.=) q.id AND q.paused AND h.stopped IS NOT NULL;
UPDATE queue_data.handler SET stopped = NULL WHERE stopped IS NOT NULL;

-- A function belongs to the role that has bound it, or to a superuser.
DO $$
DECLARE
    handler record;
BEGIN
    FOR handler IN
        SELECT q.name AS queue, h.role,
               pg_catalog.format('%I.%I(%s)', n.schema, n.name, t.name) AS function
        FROM queue_data.handler AS h
             JOIN queue_data.queue AS q ON q.id OPERATOR(pg_catalog.=) h.queue_id
             JOIN pg_catalog.pg_roles AS r ON r.oid OPERATOR(pg_catalog.=) h.role
             CROSS JOIN LATERAL
             (VALUES (h.function_schema, h.function_name, h.takes_jsonb),
                     (h.teardown_schema, h.teardown_name, h.teardown_takes_jsonb))
             AS n (schema, name, takes_jsonb)
             CROSS JOIN LATERAL
             (SELECT CASE WHEN n.takes_jsonb THEN 'jsonb'
                     ELSE pg_catalog.format('%I.queue_message',
                                            pg_catalog.current_schema()) END)
             AS t (name)
             JOIN pg_catalog.pg_namespace AS s
                 ON s.nspname OPERATOR(pg_catalog.=) n.schema
             JOIN pg_catalog.pg_proc AS f
                 ON f.pronamespace OPERATOR(pg_catalog.=) s.oid
                 AND f.proname OPERATOR(pg_catalog.=) n.name
                 AND f.proargtypes::text OPERATOR(pg_catalog.=)
                     t.name::regtype::oid::text
             JOIN pg_catalog.pg_roles AS o ON o.oid OPERATOR(pg_catalog.=) f.proowner
        WHERE o.oid OPERATOR(pg_catalog.<>) r.oid AND NOT o.rolsuper
        ORDER BY h.queue_id
    LOOP
        RAISE WARNING USING
            MESSAGE = pg_catalog.format('handler of queue "%s" cannot run',
                                        handler.queue),
            DETAIL = pg_catalog.format(
                'Function %s belongs neither to role %s, which bound the handler, nor to a superuser.',
                handler.function, handler.role),
            HINT = pg_catalog.format('Run: ALTER FUNCTION %s OWNER TO %s;',
                                     handler.function, handler.role);
    END LOOP;
END
$$;

COMMENT ON TABLE queue_data.handler IS
'the functions that run the jobs of queues; timeout: seconds (0: none); rate: jobs per second (0: no limit); next_at: when the next job may start at that rate; logs_in: whether the role could log in when it bound them; loaded_by: when the session began that has written the row with SQL, as a restore does';
CREATE FUNCTION queue_data.handler_loaded()
RETURNS trigger
AS 'MODULE_PATHNAME', 'sql_queue_handler_loaded'
LANGUAGE C;
COMMENT ON FUNCTION queue_data.handler_loaded() IS
'trigger of queue_data.handler: other SQL than the extension''s functions, such as a restore, has written the row, which counts from the end of the session on';
CREATE TRIGGER handler_loaded
    BEFORE INSERT OR UPDATE ON queue_data.handler
    FOR EACH ROW EXECUTE FUNCTION queue_data.handler_loaded();
ALTER TABLE queue_data.handler ENABLE ALWAYS TRIGGER handler_loaded;
COMMENT ON TRIGGER handler_loaded ON queue_data.handler IS
'notices rows that other SQL has written';

--
-- Groups
--
-- Only the update to 1.2 has called it.
DROP FUNCTION queue_data.group_lane(integer, text);

--
-- Recurring jobs
--
-- They are jobs of pg_cron and nothing else.  Schedules that were made before still push,
-- through job_due(), until each is replaced.
DROP FUNCTION job_schedule(text, text, text, jsonb);
DROP FUNCTION job_unschedule(text);
DROP FUNCTION job_schedules();
ALTER EXTENSION queue DROP SEQUENCE queue_data.schedule_id;
DROP SEQUENCE queue_data.schedule_id;
COMMENT ON TABLE queue_data.schedule IS
'recurring jobs of earlier versions: what is pushed to which queue; pg_cron has a job "queue <id>" for each, which calls job_due';

CREATE VIEW queue_router.schedules WITH (security_barrier) AS
SELECT s.id, r.rolname AS role, s.project, s.name, s.queue, s.body,
       pg_catalog.format('SELECT cron.schedule(%L, %L, %L); SELECT cron.unschedule(%L);',
           CASE WHEN s.project OPERATOR(pg_catalog.=) '' THEN s.name
                ELSE pg_catalog.format('%s (%s)', s.name, s.project) END,
           s.cron,
           pg_catalog.format('SELECT %I.queue_push(%L, %L)', n.nspname, s.queue, s.body)
           OPERATOR(pg_catalog.||)
           CASE WHEN s.project OPERATOR(pg_catalog.=) '' THEN ''
                ELSE pg_catalog.format(
                    ' FROM pg_catalog.set_config(''queue.project'', %L, true)',
                    s.project) END,
           pg_catalog.format('queue %s', s.id)) AS replacement
FROM queue_data.schedule AS s
     JOIN pg_catalog.pg_roles AS r ON r.oid OPERATOR(pg_catalog.=) s.role
     JOIN pg_catalog.pg_roles AS u ON u.rolname OPERATOR(pg_catalog.=) CURRENT_USER
     CROSS JOIN pg_catalog.pg_extension AS e
     JOIN pg_catalog.pg_namespace AS n
         ON n.oid OPERATOR(pg_catalog.=) e.extnamespace
WHERE e.extname OPERATOR(pg_catalog.=) 'queue'
      AND (r.oid OPERATOR(pg_catalog.=) u.oid OR u.rolsuper);
COMMENT ON VIEW queue_router.schedules IS
'recurring jobs of earlier versions that belong to the current role (all for a superuser), and the calls of pg_cron that replace each';
REVOKE ALL ON queue_router.schedules FROM PUBLIC;
GRANT SELECT ON queue_router.schedules TO queue_producer, queue_consumer, queue_admin;

-- queue_push, where no other role can put another function of that name
CREATE FUNCTION queue_router.push(
    q text, body jsonb, ttl integer DEFAULT NULL, delay integer DEFAULT NULL,
    priority integer DEFAULT 0, dedup_key text DEFAULT NULL,
    group_key text DEFAULT NULL, headers jsonb DEFAULT NULL,
    batch bigint DEFAULT NULL, after bigint DEFAULT NULL,
    after_success boolean DEFAULT false)
RETURNS bigint
AS 'MODULE_PATHNAME', 'sql_queue_push'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION queue_router.push IS
'queue_push, for job_due';

CREATE OR REPLACE FUNCTION queue_router.due(schedule integer)
RETURNS boolean
AS $$
DECLARE
    due record;
BEGIN
    SELECT * INTO due FROM queue_router.schedules AS s
    WHERE s.id OPERATOR(pg_catalog.=) $1;
    IF NOT FOUND THEN
        RAISE undefined_object USING
            MESSAGE = pg_catalog.format(
                'schedule %s does not exist, or belongs to another role', $1),
            HINT = 'End its job with cron.unschedule.';
    END IF;
    IF due.role OPERATOR(pg_catalog.<>) CURRENT_USER THEN
        RAISE insufficient_privilege USING
            MESSAGE = pg_catalog.format('permission denied for schedule "%s"', due.name),
            HINT = pg_catalog.format('It pushes as role %I: SET ROLE, or log in as that.',
                                     due.role);
    END IF;
    PERFORM pg_catalog.set_config('queue.project', due.project, true);
    PERFORM queue_router.push(due.queue, due.body);
    RAISE WARNING USING
        MESSAGE = pg_catalog.format(
            'schedule "%s" has to be replaced before version 3.0', due.name),
        HINT = pg_catalog.format('As role %I, run: %s', due.role, due.replacement);
    RETURN true;
END
$$ LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE;
CREATE OR REPLACE FUNCTION job_due(schedule integer)
RETURNS boolean
LANGUAGE sql VOLATILE PARALLEL UNSAFE
RETURN queue_router.due(schedule);
COMMENT ON FUNCTION job_due(integer) IS
'called by pg_cron for a schedule that an earlier version has made: pushes its message, with a WARNING that says what replaces it. Errors: 42704 no such schedule, 42501 it belongs to another role; as queue_push';
COMMENT ON FUNCTION job_stats(text) IS
'one row: what became of the messages of queue q since that time, and its last error (NULL without the right to claim); an unknown queue counts 0. Source: MediaWiki, counts of a job runner';

DO $$
DECLARE
    schedule record;
BEGIN
    FOR schedule IN SELECT * FROM queue_router.schedules AS s ORDER BY s.id LOOP
        RAISE WARNING USING
            MESSAGE = pg_catalog.format(
                'schedule "%s" of queue "%s" has to be replaced before version 3.0',
                schedule.name, schedule.queue),
            DETAIL = pg_catalog.format(
                'Until then it pushes as before. Its times are in the time zone %s (cron.timezone).',
                COALESCE(pg_catalog.current_setting('cron.timezone', true), 'GMT')),
            HINT = pg_catalog.format('As role %I, in database %I, run: %s',
                                     schedule.role, pg_catalog.current_database(),
                                     schedule.replacement);
    END LOOP;
END
$$;

--
-- Starting the background processes at a login
--
-- The event trigger is no part of the extension: queue_start_at_login() has made it.
DO $$
DECLARE
    trigger name;
BEGIN
    FOR trigger IN
        SELECT t.evtname FROM pg_catalog.pg_event_trigger AS t
        WHERE t.evtfoid OPERATOR(pg_catalog.=)
              'queue_data.start_at_login()'::pg_catalog.regprocedure
    LOOP
        EXECUTE pg_catalog.format('DROP EVENT TRIGGER %I', trigger);
    END LOOP;
END
$$;
DROP FUNCTION queue_start_at_login(boolean);
DROP FUNCTION queue_data.start_at_login();
DROP FUNCTION queue_data.start_worker();

--
-- What is known is forgotten
--
CREATE FUNCTION queue_data.forget()
RETURNS void
AS 'MODULE_PATHNAME', 'sql_queue_forget'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION queue_data.forget() IS
'for superusers, after rows of the extension''s tables were written or deleted while their triggers were disabled: at commit, sessions and the background worker discard what they have cached of these tables. Errors: none';

--
-- How much of shared memory is used
--
CREATE FUNCTION queue_data.memory(
    OUT what text, OUT used bigint, OUT places bigint, OUT bytes bigint)
RETURNS SETOF record
AS 'MODULE_PATHNAME', 'sql_queue_memory'
LANGUAGE C VOLATILE PARALLEL RESTRICTED;
COMMENT ON FUNCTION queue_data.memory() IS
'the rows of the view queue_memory';

CREATE VIEW queue_data.queue_memory AS
SELECT m.what, m.used, m.places, m.bytes FROM queue_data.memory() AS m;
COMMENT ON VIEW queue_data.queue_memory IS
'the places in shared memory, of all databases, and how many are used: of queues with messages, of groups, and of stretches of the messages of groups';
REVOKE ALL ON queue_data.queue_memory FROM PUBLIC;
GRANT EXECUTE ON FUNCTION queue_data.memory() TO queue_admin, queue_monitor;
GRANT SELECT ON queue_data.queue_memory TO queue_admin, queue_monitor;

--
-- Functions that do more than before
--
COMMENT ON FUNCTION queue_post(text, jsonb) IS
'pushes an array of {"body", "ttl", "delay", "priority", "dedup_key", "group_key", "headers", "batch", "after", "after_success", "at", "dedup", "dedup_for"} (only body is required), all or nothing, and returns the ids in that order, NULL where one was dropped as a duplicate. If q is NULL, each object has a field "queue", too. Errors: as queue_push; 22004 a message without a queue. Source: Zaqar, post messages; MediaWiki, JobQueueGroup::push';
COMMENT ON FUNCTION queue_stats(text) IS
'exact counts of the messages of queue q, and its oldest and newest one (ages in seconds); an unknown queue counts 0. Takes time in proportion to the queue. Errors: 22023/22004 name, 42501 no privilege on the queue. Source: Zaqar, get queue stats';
COMMENT ON FUNCTION queue_step(text, text, bigint[], jsonb, jsonb, integer, integer, integer) IS
'a worker''s cycle in one call, all or nothing: of the claim (NULL: none yet), deletes the messages in done (NULL: all that are not in failed), retries those in failed ([{"id", "error", "delay", "bury"}, ...], only id, a number or a string, is required; true in bury makes it a dead letter) and gives the rest back; pushes the messages in push (as queue_post; without a field queue, to q); and claims the next as queue_claim; a limit of 0 claims nothing. Errors: QU001 the claim is not live, QU002 a message is not in it, QU004 one was canceled, 22023/22004 argument, among them a message that is named twice, 42501, those of queue_push, and with bury of message_bury. Source: claim_next';

--
-- Functions with further arguments
--
-- Each is a new one, so privileges are granted anew, at the end of this file; also what
-- was revoked from the roles of the extension is not granted to them.  So it is with a
-- view that has lost a column.
SELECT pg_catalog.set_config('queue_update.grants', pg_catalog.string_agg(
    pg_catalog.format('REVOKE EXECUTE ON FUNCTION %1$s
        FROM queue_producer, queue_consumer, queue_admin, queue_monitor; %2$s', f.new,
        (SELECT pg_catalog.string_agg(
             pg_catalog.format('GRANT EXECUTE ON FUNCTION %s TO %s%s;', f.new,
                 CASE WHEN a.grantee OPERATOR(pg_catalog.=) 0::oid THEN 'PUBLIC'
                      ELSE a.grantee::pg_catalog.regrole::text END,
                 CASE WHEN a.is_grantable THEN ' WITH GRANT OPTION' ELSE '' END), '')
         FROM pg_catalog.aclexplode(p.proacl) AS a
         WHERE a.grantee OPERATOR(pg_catalog.<>) p.proowner)), '')
    OPERATOR(pg_catalog.||) (
        SELECT pg_catalog.concat('REVOKE SELECT ON queue_data.availability_map
                   FROM queue_admin, queue_monitor;',
               pg_catalog.string_agg(
                   pg_catalog.format('GRANT %s ON queue_data.availability_map TO %s%s;',
                       a.privilege_type,
                       CASE WHEN a.grantee OPERATOR(pg_catalog.=) 0::oid THEN 'PUBLIC'
                            ELSE a.grantee::pg_catalog.regrole::text END,
                       CASE WHEN a.is_grantable THEN ' WITH GRANT OPTION' ELSE '' END), ''))
        FROM pg_catalog.pg_class AS c, pg_catalog.aclexplode(c.relacl) AS a
        WHERE c.oid OPERATOR(pg_catalog.=) 'queue_data.availability_map'::regclass
          AND a.grantee OPERATOR(pg_catalog.<>) c.relowner), true)
FROM (VALUES
    ('queue_data.maps()', 'queue_data.maps()'),
    ('claim_release(text, text, integer)', 'claim_release(text, text, integer, boolean)'),
    ('job_root(text, text)', 'job_root(text, text, timestamp with time zone)'),
    ('queue_push(text, jsonb, integer, integer, integer, text, text, jsonb, bigint, bigint, boolean)',
     'queue_push(text, jsonb, integer, integer, integer, text, text, jsonb, bigint, bigint, boolean, timestamp with time zone, text, integer)'),
    ('queue_push_batch(text, jsonb[], integer, integer, integer, text[], bigint, bigint, boolean)',
     'queue_push_batch(text, jsonb[], integer, integer, integer, text[], bigint, bigint, boolean, timestamp with time zone)'),
    ('queue_push_once(text, text, bigint, jsonb, integer, integer, integer, text, text, jsonb, bigint, bigint, boolean)',
     'queue_push_once(text, text, bigint, jsonb, integer, integer, integer, text, text, jsonb, bigint, bigint, boolean, timestamp with time zone, text, integer)'),
    ('queue_push_lazy(text, jsonb, integer, integer, integer, text, text, jsonb)',
     'queue_push_lazy(text, jsonb, integer, integer, integer, text, text, jsonb, timestamp with time zone, text, integer)'),
    ('topic_publish(text, jsonb, jsonb, integer, integer, integer, text, text)',
     'topic_publish(text, jsonb, jsonb, integer, integer, integer, text, text, timestamp with time zone)'),
    ('messages_cancel(text, bigint[])', 'messages_cancel(text, bigint[], text)'),
    ('queue_cancel_where(text, jsonb)', 'queue_cancel_where(text, jsonb, text)'),
    ('queue_dead_letters(text, integer)', 'queue_dead_letters(text, integer, bigint)'),
    ('queue_redrive(text, text, integer)', 'queue_redrive(text, text, integer, bigint[])'),
    ('job_errors(text, integer)', 'job_errors(text, integer, timestamp with time zone)')) AS f (old, new)
     JOIN pg_catalog.pg_proc AS p
         ON p.oid OPERATOR(pg_catalog.=) f.old::regprocedure::oid;

-- Claims do not read all of a queue now and then any more.
DROP VIEW queue_data.availability_map;
DROP FUNCTION queue_data.maps();
CREATE FUNCTION queue_data.maps(
    OUT queue_id integer, OUT state text, OUT ready boolean,
    OUT unscanned bigint, OUT ranges integer, OUT numbers bigint,
    OUT uncertain boolean, OUT lanes integer, OUT reservations integer,
    OUT claims_wait boolean, OUT waiters integer, OUT incarnation bigint,
    OUT next_visit timestamptz)
RETURNS SETOF record
AS 'MODULE_PATHNAME', 'sql_queue_maps'
LANGUAGE C VOLATILE PARALLEL RESTRICTED;
COMMENT ON FUNCTION queue_data.maps() IS
'the rows of the view availability_map, with the queues'' numbers';

CREATE VIEW queue_data.availability_map AS
SELECT q.project, q.name AS queue, m.state, m.ready, m.unscanned, m.ranges,
       m.numbers, m.uncertain, m.lanes, m.reservations, m.claims_wait,
       m.waiters, m.incarnation, m.next_visit
FROM queue_data.maps() AS m
     JOIN queue_data.queue AS q ON q.id OPERATOR(pg_catalog.=) m.queue_id;
COMMENT ON VIEW queue_data.availability_map IS
'the availability maps of the queues of this database: what claims have to scan, the scans and waits under way, and when the background worker visits the queue';
REVOKE ALL ON queue_data.availability_map FROM PUBLIC;
GRANT EXECUTE ON FUNCTION queue_data.maps() TO queue_admin, queue_monitor;
GRANT SELECT ON queue_data.availability_map TO queue_admin, queue_monitor;

DROP FUNCTION claim_release(text, text, integer);
CREATE FUNCTION claim_release(q text, claim_id text, delay integer DEFAULT 0, failed boolean DEFAULT false)
RETURNS bigint
AS 'MODULE_PATHNAME', 'sql_claim_release'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION claim_release(text, text, integer, boolean) IS
'gives the remaining messages of a claim back, free after delay seconds, and removes those that were canceled. The claim does not count as an attempt at them, unless failed is true: then those that have had as many attempts as the queue allows become dead letters. Returns the number of messages without those that were canceled, 0 when there is no such live claim. Errors: 22023/22004 argument, 42501. Source: Zaqar, release claim';

DROP FUNCTION job_root(text, text);
CREATE FUNCTION job_root(q text, signature text, at timestamp with time zone DEFAULT NULL)
RETURNS jsonb
AS 'MODULE_PATHNAME', 'sql_job_root'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION job_root(text, text, timestamp with time zone) IS
'registers a new root job and returns {"rootJobSignature", "rootJobTimestamp"} for the bodies of its leaves; once this transaction has committed, leaves of earlier roots with that signature are dropped as duplicates instead of being handed out. at: the time that the root job has itself, which is kept as it is; equal times are one root, and a time before that of the last root changes nothing. Errors: 22023/22004 argument, 42704 unknown queue with queue.auto_create off, 42501 no right to push. Source: MediaWiki, Job::newRootJobParams';

DROP FUNCTION queue_push(text, jsonb, integer, integer, integer, text, text, jsonb, bigint, bigint, boolean);
CREATE FUNCTION queue_push(
    q text,
    body jsonb,
    ttl integer DEFAULT NULL,
    delay integer DEFAULT NULL,
    priority integer DEFAULT 0,
    dedup_key text DEFAULT NULL,
    group_key text DEFAULT NULL,
    headers jsonb DEFAULT NULL,
    batch bigint DEFAULT NULL,
    after bigint DEFAULT NULL,
    after_success boolean DEFAULT false,
    at timestamp with time zone DEFAULT NULL,
    dedup text DEFAULT 'waiting',
    dedup_for integer DEFAULT NULL)
RETURNS bigint
AS 'MODULE_PATHNAME', 'sql_queue_push'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION queue_push(text, jsonb, integer, integer, integer, text, text, jsonb, bigint, bigint, boolean, timestamp with time zone, text, integer) IS
'pushes one message that lives ttl seconds and is handed out after delay seconds, priority 0 to 9 (higher first); returns its id, NULL when an unclaimed message with this dedup_key waits; with dedup unfinished also when a claimed one has it; with dedup replace, a message that waits gets body, headers and due time instead, which needs claim on the queue, and its id is returned. dedup_for: 1 to 2592000 seconds; NULL also when a push with dedup_for had the key in the last so many, whatever became of its message; that one counts for as long as it said, and an hour at least. at: when it is due, instead of delay. group_key: 1 to 256 bytes, the message''s group. headers: returned with the message, counted toward the size of its body. batch: the message is a member of it. after: the message waits until that batch has finished; with after_success it becomes a dead letter if a member failed. Errors: 22023/22004 argument, 54000 body too large, 42704 unknown queue with queue.auto_create off, unknown batch, 55000 the batch has finished, 42501. Source: Zaqar, post message; MediaWiki, JobQueue::push';

DROP FUNCTION queue_push_batch(text, jsonb[], integer, integer, integer, text[], bigint, bigint, boolean);
CREATE FUNCTION queue_push_batch(
    q text,
    bodies jsonb[],
    ttl integer DEFAULT NULL,
    delay integer DEFAULT NULL,
    priority integer DEFAULT 0,
    group_keys text[] DEFAULT NULL,
    batch bigint DEFAULT NULL,
    after bigint DEFAULT NULL,
    after_success boolean DEFAULT false,
    at timestamp with time zone DEFAULT NULL)
RETURNS bigint[]
AS 'MODULE_PATHNAME', 'sql_queue_push_batch'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION queue_push_batch(text, jsonb[], integer, integer, integer, text[], bigint, bigint, boolean, timestamp with time zone) IS
'pushes one message for each body, all or nothing, and returns their ids in that order; group_keys has one element for each. Arguments and errors: as queue_push; at most queue.max_push_count bodies. Source: MediaWiki, JobQueue::batchPush';

DROP FUNCTION queue_push_once(text, text, bigint, jsonb, integer, integer, integer, text, text, jsonb, bigint, bigint, boolean);
CREATE FUNCTION queue_push_once(
    q text,
    origin text,
    origin_id bigint,
    body jsonb,
    ttl integer DEFAULT NULL,
    delay integer DEFAULT NULL,
    priority integer DEFAULT 0,
    dedup_key text DEFAULT NULL,
    group_key text DEFAULT NULL,
    headers jsonb DEFAULT NULL,
    batch bigint DEFAULT NULL,
    after bigint DEFAULT NULL,
    after_success boolean DEFAULT false,
    at timestamp with time zone DEFAULT NULL,
    dedup text DEFAULT 'waiting',
    dedup_for integer DEFAULT NULL)
RETURNS bigint
AS 'MODULE_PATHNAME', 'sql_queue_push_once'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION queue_push_once(text, text, bigint, jsonb, integer, integer, integer, text, text, jsonb, bigint, bigint, boolean, timestamp with time zone, text, integer) IS
'pushes one message, unless a call with this queue, origin (1 to 256 bytes) and origin_id did so in the last 28 days, and returns what that call has returned: the id, NULL when it was dropped as a duplicate. A call that is in progress is waited for. Other arguments and errors: as queue_push';

DROP FUNCTION queue_push_lazy(text, jsonb, integer, integer, integer, text, text, jsonb);
CREATE FUNCTION queue_push_lazy(
    q text,
    body jsonb,
    ttl integer DEFAULT NULL,
    delay integer DEFAULT NULL,
    priority integer DEFAULT 0,
    dedup_key text DEFAULT NULL,
    group_key text DEFAULT NULL,
    headers jsonb DEFAULT NULL,
    at timestamp with time zone DEFAULT NULL,
    dedup text DEFAULT 'waiting',
    dedup_for integer DEFAULT NULL)
RETURNS void
AS 'MODULE_PATHNAME', 'sql_queue_push_lazy'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION queue_push_lazy(text, jsonb, integer, integer, integer, text, text, jsonb, timestamp with time zone, text, integer) IS
'pushes one message when the transaction commits, after its own work; a push that fails then is logged as a warning and does not fail the transaction. Arguments: as queue_push. Errors, at once: 22023/22004 argument, 54000 body too large. Source: MediaWiki, JobQueueGroup::lazyPush';

DROP FUNCTION topic_publish(text, jsonb, jsonb, integer, integer, integer, text, text);
CREATE FUNCTION topic_publish(
    topic text,
    body jsonb,
    headers jsonb DEFAULT NULL,
    ttl integer DEFAULT NULL,
    delay integer DEFAULT NULL,
    priority integer DEFAULT 0,
    group_key text DEFAULT NULL,
    dedup_key text DEFAULT NULL,
    at timestamp with time zone DEFAULT NULL)
RETURNS bigint
AS 'MODULE_PATHNAME', 'sql_topic_publish'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION topic_publish(text, jsonb, jsonb, integer, integer, integer, text, text, timestamp with time zone) IS
'pushes one message to each queue that is bound to the topic, whatever the caller''s privileges on the queue; returns how many have it now, also as a duplicate. Other arguments: as queue_push, for each queue. A queue that does not take the message (_max_messages_post_size, or it is being purged or dropped) is left out, and the server logs that. Errors: 22023/22004 argument, 54000 body too large, 42501 not a member of queue_producer. Source: AMQP, basic.publish';

DROP FUNCTION messages_cancel(text, bigint[]);
CREATE FUNCTION messages_cancel(q text, ids bigint[], reason text DEFAULT NULL)
RETURNS bigint
AS 'MODULE_PATHNAME', 'sql_messages_cancel'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION messages_cancel(text, bigint[], text) IS
'cancels these messages as message_cancel does, all with this reason, and returns how many of them there were; a repeated id counts once. Errors: 22004 ids or one of them, 22023 more than one dimension, 42501 no right to claim. Source: River, canceling many jobs';

DROP FUNCTION queue_cancel_where(text, jsonb);
CREATE FUNCTION queue_cancel_where(q text, filter jsonb, reason text DEFAULT NULL)
RETURNS bigint
AS 'MODULE_PATHNAME', 'sql_queue_cancel_where'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION queue_cancel_where(text, jsonb, text) IS
'cancels the messages whose bodies contain the filter (the operator @>), as message_cancel does, all with this reason, and returns how many there were; it reads the whole queue, and locks nothing before it has. Errors: 22004 filter, 42501 no right to claim. Source: River, canceling many jobs';

DROP FUNCTION queue_dead_letters(text, integer);
CREATE FUNCTION queue_dead_letters(q text, "limit" integer DEFAULT 10, marker bigint DEFAULT NULL)
RETURNS TABLE (
    id bigint, body jsonb, origin_queue text, origin_id bigint, reason text,
    last_error text, claim_count integer, died_at timestamptz)
AS 'MODULE_PATHNAME', 'sql_queue_dead_letters'
LANGUAGE C VOLATILE PARALLEL UNSAFE ROWS 10;
COMMENT ON FUNCTION queue_dead_letters(text, integer, bigint) IS
'dead letters in queue q, oldest first, after marker (an id), at most limit (1 to 10000) of them: where each came from and why. A NOTICE names the queue that has those of q itself, if q has none. Errors: 22023/22004 argument, 42501. Source: Zaqar, dead letter queue';

DROP FUNCTION queue_redrive(text, text, integer);
CREATE FUNCTION queue_redrive(
    q text,
    target text DEFAULT NULL,
    "limit" integer DEFAULT NULL,
    ids bigint[] DEFAULT NULL)
RETURNS bigint
AS 'MODULE_PATHNAME', 'sql_queue_redrive'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION queue_redrive(text, text, integer, bigint[]) IS
'moves up to limit (NULL: all) dead letters of queue q, oldest first, or those with these ids in that order, back to the queues that they came from or to target, as new messages with claim_count 0; returns their number. Passes over those whose origin is gone, and a NOTICE says how many: it was dropped, and queue.auto_create is off, or another role has created a queue of that name. Errors: 22023/22004 argument, 42704 unknown target, 42501 no right to claim from q or to push to where they are sent. Source: Amazon SQS, redrive';

DROP FUNCTION job_errors(text, integer);
CREATE FUNCTION job_errors(q text, "limit" integer DEFAULT 100, marker timestamptz DEFAULT NULL)
RETURNS TABLE (message_id bigint, attempt integer, at timestamptz, error text)
AS 'MODULE_PATHNAME', 'sql_job_errors'
LANGUAGE C VOLATILE PARALLEL UNSAFE ROWS 100;
COMMENT ON FUNCTION job_errors(text, integer, timestamptz) IS
'the attempts at messages of queue q that have failed with an error in the last _keep_finished seconds, or without that in the last day, the latest first: those before marker (a time; NULL: all), at most limit (1 to 10000). Errors: 22023/22004 argument, 42501 neither owner nor admin of q. Source: Oban, the errors of a job';

--
-- For people, and pages
--
CREATE FUNCTION queue_browse(
    q text,
    state text DEFAULT NULL,
    filter jsonb DEFAULT NULL,
    marker bigint DEFAULT NULL,
    "limit" integer DEFAULT 100)
RETURNS TABLE (
    id bigint, state text, body jsonb, headers jsonb, priority integer,
    group_key text, dedup_key text, batch bigint, after bigint,
    claim_count integer, created_at timestamptz, due_at timestamptz,
    claimed_until timestamptz, expires_at timestamptz, last_error text)
AS 'MODULE_PATHNAME', 'sql_queue_browse'
LANGUAGE C VOLATILE PARALLEL UNSAFE ROWS 100;
COMMENT ON FUNCTION queue_browse(text, text, jsonb, bigint, integer) IS
'messages of queue q by id, after marker, at most limit (1 to 10000): those that are free, claimed, delayed, waiting (for a batch) or canceled (while a claim holds them), as state says (NULL: any), and whose bodies contain filter. dedup_key: its digest. due_at: of a delayed one; expires_at: if it stays as it is. One that waits has no times. A call reads at most 10,000 messages; if there are more, the last row has only the id to continue from, as marker. Errors: 22023/22004 argument, 42501 no right to claim';

CREATE FUNCTION queue_depth(q text DEFAULT NULL)
RETURNS TABLE (
    queue text, free bigint, claimed bigint, delayed bigint,
    dead_letters bigint, oldest_age integer, paused boolean,
    last_error text, last_error_at timestamptz)
AS 'MODULE_PATHNAME', 'sql_queue_depth'
LANGUAGE C VOLATILE PARALLEL UNSAFE ROWS 100;
COMMENT ON FUNCTION queue_depth(text) IS
'a row for queue q, or (NULL) for each queue of the session''s project that the caller may claim from, by name: its messages and those in its dead letter queue, counted as they change and at most two seconds late, NULL while they are not known; the age in seconds of the oldest free one, NULL if none is found; whether it is paused; and the last error that was reported. Errors: 22023 argument, 42501 no right to claim from q';

CREATE FUNCTION messages_run_now(q text, ids bigint[])
RETURNS bigint
AS 'MODULE_PATHNAME', 'sql_messages_run_now'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION messages_run_now(text, bigint[]) IS
'makes these messages free, those that are delayed, and returns how many there were. Errors: 22023/22004 argument, 42501 no right to claim. Source: Sidekiq, add to queue; Oban, retry now';

CREATE FUNCTION messages_bury(q text, ids bigint[], error text)
RETURNS bigint
AS 'MODULE_PATHNAME', 'sql_messages_bury'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION messages_bury(text, bigint[], text) IS
'makes these messages dead letters, those that are free or delayed, and returns how many there were; error is stored with them, NULL keeps the last one. Errors: 22023/22004 argument, 42501 no right to claim, or the dead letter queue does not accept them, 55P03 it is locked. Source: Sidekiq, kill';

CREATE FUNCTION message_finished(q text, id bigint)
RETURNS TABLE (
    id bigint, queue text, group_key text, batch bigint, outcome text,
    pushed_at timestamptz, finished_at timestamptz, attempts integer,
    result jsonb, error text, body jsonb)
AS 'MODULE_PATHNAME', 'sql_message_finished'
LANGUAGE C VOLATILE PARALLEL UNSAFE ROWS 1;
COMMENT ON FUNCTION message_finished(text, bigint) IS
'what became of a message: its row of queue_finished; no row if it is not in the history. Errors: 22023/22004 argument, 42501 as queue_finished. Source: Oban, jobs that are kept';

--
-- Privileges of the functions that are new
--
DO $$
DECLARE
    f record;
    before pg_catalog.pg_init_privs[];
BEGIN
    FOR f IN
        SELECT p.oid::regprocedure AS routine,
               p.pronamespace OPERATOR(pg_catalog.<>) 'queue_data'::regnamespace
                   AS is_for_users
        FROM pg_catalog.pg_proc AS p
             JOIN pg_catalog.pg_depend AS d ON d.objid OPERATOR(pg_catalog.=) p.oid
             JOIN pg_catalog.pg_extension AS e ON e.oid OPERATOR(pg_catalog.=) d.refobjid
        WHERE d.classid OPERATOR(pg_catalog.=) 'pg_catalog.pg_proc'::regclass
          AND d.refclassid OPERATOR(pg_catalog.=) 'pg_catalog.pg_extension'::regclass
          AND d.deptype OPERATOR(pg_catalog.=) 'e'
          AND e.extname OPERATOR(pg_catalog.=) 'queue'
          AND p.oid OPERATOR(pg_catalog.<>) ALL (
              pg_catalog.current_setting('queue_update.before')::oid[])
    LOOP
        EXECUTE pg_catalog.format('REVOKE ALL ON ROUTINE %s FROM PUBLIC', f.routine);
        IF f.is_for_users THEN
            EXECUTE pg_catalog.format('GRANT EXECUTE ON ROUTINE %s
                TO queue_producer, queue_consumer, queue_admin', f.routine);
        END IF;
    END LOOP;

    -- Those that the old ones had are no part of the extension: pg_dump has to write
    -- them.
    before := ARRAY(SELECT i FROM pg_catalog.pg_init_privs AS i);
    EXECUTE pg_catalog.current_setting('queue_update.grants');
    UPDATE pg_catalog.pg_init_privs AS i SET initprivs = b.initprivs
    FROM pg_catalog.unnest(before) AS b
    WHERE i.objoid OPERATOR(pg_catalog.=) b.objoid
      AND i.classoid OPERATOR(pg_catalog.=) b.classoid
      AND i.objsubid OPERATOR(pg_catalog.=) b.objsubid;
END
$$;
