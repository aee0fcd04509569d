/* src/proxy/queue_proxy--2.0.sql */

-- complain if script is sourced in psql, rather than via CREATE EXTENSION
\echo Use "CREATE EXTENSION queue_proxy" to load this file. \quit

--
-- The functions of the extension queue, each called on the server that has the queue
--
-- The Makefile makes the update script of this one: it also makes version 2.0 of an
-- earlier one.  Functions that exist are replaced, and keep their privileges; those with
-- other arguments are dropped and made again, and get the privileges that they had.
--

-- The functions that exist, whose privileges stay as they are
SELECT pg_catalog.set_config('queue_update.before', ARRAY(
    SELECT d.objid
    FROM pg_catalog.pg_depend AS d
         JOIN pg_catalog.pg_extension AS e
             ON e.oid OPERATOR(pg_catalog.=) d.refobjid
    WHERE d.classid OPERATOR(pg_catalog.=) 'pg_catalog.pg_proc'::regclass
      AND d.refclassid OPERATOR(pg_catalog.=) 'pg_catalog.pg_extension'::regclass
      AND d.deptype OPERATOR(pg_catalog.=) 'e'
      AND e.extname OPERATOR(pg_catalog.=) 'queue_proxy')::text, true);
SELECT pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true);

-- The roles are the same as those of the extension queue.  The server of a queue checks
-- them; here they only allow to call it.
DO $$
DECLARE
    role_name name;
BEGIN
    FOREACH role_name IN ARRAY '{queue_producer,queue_consumer,queue_admin}'::name[] LOOP
        BEGIN
            IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = role_name) THEN
                EXECUTE format('CREATE ROLE %I NOLOGIN', role_name);
            END IF;
        EXCEPTION WHEN unique_violation OR duplicate_object THEN
            NULL;
        END;
        IF EXISTS (SELECT FROM pg_roles WHERE rolname = role_name AND rolcanlogin) THEN
            RAISE WARNING 'role "%" exists and can log in', role_name
                USING HINT = 'Members of this role get rights on queues; make sure that it is meant for that.';
        END IF;
    END LOOP;
    IF current_setting('queue_update.before') <> '{}' THEN
        RETURN;
    END IF;
    CREATE SCHEMA queue_proxy;
    COMMENT ON SCHEMA queue_proxy IS 'what the functions of the extension queue_proxy call';
    CREATE SCHEMA plproxy;
    COMMENT ON SCHEMA plproxy IS 'what PL/Proxy calls to find the servers of the extension queue_proxy';
    GRANT USAGE ON SCHEMA queue_proxy, plproxy TO queue_producer, queue_consumer, queue_admin;
    CREATE TYPE @extschema@.queue_message AS (
        id bigint, queue text, body jsonb, ttl integer, age integer, claim_id text,
        claim_count integer, priority integer, created_at timestamptz, group_key text,
        headers jsonb);
    COMMENT ON TYPE @extschema@.queue_message IS
        'a message: ttl is its whole lifetime and age the time since it was pushed, in seconds; claim_id is NULL when no live claim holds it; group_key and headers are those of the push';
END
$$;

--
-- Where a queue is
--

-- The shard of a queue: as queue_shard(), but any name is accepted, since the
-- server of the queue checks it.
CREATE OR REPLACE FUNCTION queue_proxy.shard(q text, project text)
RETURNS integer
LANGUAGE sql STABLE PARALLEL SAFE
AS $$
SELECT COALESCE(pg_catalog.get_byte(pg_catalog.sha256(pg_catalog.convert_to(
    pg_catalog.regexp_replace($1, '([.]dead)+$', '') OPERATOR(pg_catalog.||) ' '
        OPERATOR(pg_catalog.||) $2, 'UTF8')), 0), 0)
$$;
COMMENT ON FUNCTION queue_proxy.shard(text, text) IS
'the shard of a queue of a project; 0 if one of them is NULL';

CREATE OR REPLACE FUNCTION queue_proxy.project()
RETURNS text
LANGUAGE sql STABLE PARALLEL SAFE
AS $$
SELECT COALESCE(pg_catalog.current_setting('queue.project', true), '')
$$;
COMMENT ON FUNCTION queue_proxy.project() IS
'the session''s project: the setting queue.project, as set in the database of the router';

-- Each server that has shards, by the options p0 to p255, or partition_0 to
-- partition_255, of both of which ltrim() leaves the number.  No other option begins
-- with a p.  A regular expression would take most of the time of a call.
CREATE OR REPLACE FUNCTION queue_proxy.servers()
RETURNS TABLE (shard integer, shards integer[])
LANGUAGE sql STABLE ROWS 10
SET search_path = pg_catalog, pg_temp
AS $$
SELECT min(p.shard), array_agg(p.shard)
FROM (SELECT ltrim(o.option_name, 'partition_')::integer AS shard,
             o.option_value
      FROM pg_foreign_server AS s
           CROSS JOIN LATERAL pg_options_to_table(s.srvoptions) AS o
      WHERE s.srvname = 'queue' AND o.option_name LIKE 'p%') AS p
GROUP BY p.option_value
ORDER BY random()
$$;
COMMENT ON FUNCTION queue_proxy.servers() IS
'the servers, in random order: the lowest shard of each, and all its shards';

-- The foreign server "queue" has the connection strings of the shards.  PL/Proxy must
-- not use it as such, because it would connect as the user whom a role's user mapping
-- names, and anyone with USAGE makes one.  So our functions call on the cluster '',
-- which has no foreign server, because none can have that name.  Of such a cluster,
-- PL/Proxy reads the connection strings through the functions in schema plproxy, and
-- adds the name of the calling role.

-- Changes with each change of the foreign server, and is read at each call.
-- PL/Proxy plans the query together with its own, as it returns a set.
CREATE OR REPLACE FUNCTION plproxy.get_cluster_version(cluster_name text)
RETURNS SETOF integer
LANGUAGE sql STABLE ROWS 1
AS $$
SELECT COALESCE(
    (SELECT (s.xmin::pg_catalog.text::bigint OPERATOR(pg_catalog.-) 2147483648)::integer
     FROM pg_catalog.pg_foreign_server AS s
     WHERE s.srvname OPERATOR(pg_catalog.=) 'queue'), 0)
$$;
COMMENT ON FUNCTION plproxy.get_cluster_version(text) IS
'for PL/Proxy: the version of what the other two functions return';

CREATE OR REPLACE FUNCTION plproxy.get_cluster_config(
    cluster_name text, OUT key text, OUT val text)
RETURNS SETOF record
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
SELECT o.option_name, o.option_value
FROM pg_foreign_server AS s
     CROSS JOIN LATERAL pg_options_to_table(s.srvoptions) AS o
WHERE s.srvname = 'queue' AND o.option_name NOT LIKE 'p%'
$$;
COMMENT ON FUNCTION plproxy.get_cluster_config(text) IS
'for PL/Proxy: the options of the foreign server "queue" that are no connection strings';

CREATE OR REPLACE FUNCTION plproxy.get_cluster_partitions(cluster_name text)
RETURNS SETOF text
LANGUAGE plpgsql STABLE ROWS 256
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    server record;
    shard integer;
    connection text;
BEGIN
    IF cluster_name <> '' THEN
        RAISE EXCEPTION 'cluster "%" does not exist', cluster_name
            USING ERRCODE = 'undefined_object',
            HINT = 'Functions in LANGUAGE plproxy that are not those of queue_proxy belong into another database.';
    END IF;
    SELECT s.srvoptions, r.rolsuper INTO server
        FROM pg_foreign_server AS s
             JOIN pg_foreign_data_wrapper AS w ON w.oid = s.srvfdw
             JOIN pg_roles AS r ON r.oid = s.srvowner
        WHERE s.srvname = 'queue' AND w.fdwname = 'plproxy';
    IF NOT FOUND THEN
        RAISE EXCEPTION 'this router has no servers'
            USING ERRCODE = 'object_not_in_prerequisite_state',
            HINT = 'Call queue_proxy.set_servers() as a superuser.';
    END IF;
    -- A role that may use the foreign-data wrapper could have made it.
    IF NOT server.rolsuper THEN
        RAISE EXCEPTION 'foreign server "queue" does not belong to a superuser'
            USING ERRCODE = 'insufficient_privilege',
            HINT = 'Call queue_proxy.set_servers() as a superuser.';
    END IF;
    FOR shard, connection IN
        SELECT ltrim(o.option_name, 'partition_')::integer AS n, o.option_value
        FROM pg_options_to_table(server.srvoptions) AS o
        WHERE o.option_name LIKE 'p%'
        ORDER BY n
    LOOP
        -- PL/Proxy adds no user to one that has "user=" anywhere, and to a URI
        -- it cannot.
        IF connection ~ 'user=|^ *postgres(ql)?://' THEN
            RAISE EXCEPTION 'the connection string of shard % has a user, or is a URI', shard
                USING ERRCODE = 'invalid_parameter_value',
                HINT = 'Write it as keyword=value pairs, without "user=": each call connects as its caller.';
        END IF;
        RETURN NEXT connection;
    END LOOP;
END
$$;
COMMENT ON FUNCTION plproxy.get_cluster_partitions(text) IS
'for PL/Proxy: the connection strings of the shards, in their order. Errors: 55000 the router has no servers; 42501 they are not those of a superuser; 22023 a connection string with a user; 42704 another cluster';

CREATE OR REPLACE FUNCTION queue_proxy.set_servers(connections text[])
RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    n integer := cardinality(connections);
    options text;
BEGIN
    IF COALESCE(n, 0) NOT BETWEEN 1 AND 256
        OR array_position(connections, NULL) IS NOT NULL THEN
        RAISE EXCEPTION 'parameter "connections" must have a connection string for each server'
            USING ERRCODE = 'invalid_parameter_value',
            HINT = 'Give them in the order of the servers'' numbers, as in queue_shard_init().';
    END IF;
    SELECT string_agg(format('p%s %L', s,
                             connections[CASE WHEN s % n = 0 THEN n ELSE s % n END]),
                      ', ')
        INTO options
        FROM generate_series(0, 255) AS s;
    IF EXISTS (SELECT FROM pg_foreign_server WHERE srvname = 'queue') THEN
        DROP SERVER queue CASCADE;
    END IF;
    EXECUTE 'CREATE SERVER queue FOREIGN DATA WRAPPER plproxy OPTIONS ('
        || options || ')';
    -- An error if a connection string cannot be used
    PERFORM plproxy.get_cluster_partitions('');
END
$$;
COMMENT ON FUNCTION queue_proxy.set_servers(text[]) IS
'defines which server has which shard, as after queue_shard_init(1, n), queue_shard_init(2, n), ...: one connection string for each server, without a user, since each call connects as its caller. For superusers. Errors: 22023 no connection strings, or one that names a user';

--
-- Errors
--

-- Raise an error that a call has raised: one of the queue's server as it was
-- there, without what PL/Proxy puts before the texts.
CREATE OR REPLACE FUNCTION queue_proxy.reraise(
    state text, message text, detail text, hint text)
RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    m text := COALESCE(substring(message,
        '^queue_proxy\.\w+\(\d+\): \[[^]]*\] REMOTE [^:]*: (.*)$'), message);
    d text := regexp_replace(detail, '^Remote detail: ', '');
    h text := regexp_replace(hint, '^Remote hint: ', '');
BEGIN
    -- Neither may be empty.
    IF d <> '' AND h <> '' THEN
        RAISE EXCEPTION USING ERRCODE = state, MESSAGE = m, DETAIL = d, HINT = h;
    ELSIF d <> '' THEN
        RAISE EXCEPTION USING ERRCODE = state, MESSAGE = m, DETAIL = d;
    ELSIF h <> '' THEN
        RAISE EXCEPTION USING ERRCODE = state, MESSAGE = m, HINT = h;
    END IF;
    RAISE EXCEPTION USING ERRCODE = state, MESSAGE = m;
END
$$;
COMMENT ON FUNCTION queue_proxy.reraise(text, text, text, text) IS
'raises an error with this SQLSTATE, without what PL/Proxy puts before its texts';

-- A call commits on its server, so it cannot become part of a transaction that
-- has done other work.
CREATE OR REPLACE FUNCTION queue_proxy.refuse_transaction(name text)
RETURNS void
LANGUAGE plpgsql
AS $$
BEGIN
    RAISE EXCEPTION '%() cannot be called in a transaction that has changed something', name
        USING ERRCODE = 'active_sql_transaction',
        DETAIL = 'Through a router, it is a transaction of its own on the server of the queue.',
        HINT = 'Connect to the server of the queue, or call it in a transaction of its own.';
END
$$;
COMMENT ON FUNCTION queue_proxy.refuse_transaction(text) IS
'raises an error, 25001: the transaction has changed something in the database of the router';

-- Such errors are PL/Proxy's own, or come from a server that ends, or from a
-- connection pooler.
CREATE OR REPLACE FUNCTION queue_proxy.is_down(state text, message text)
RETURNS boolean
LANGUAGE sql IMMUTABLE
SET search_path = pg_catalog, pg_temp
AS $$
SELECT state ~ '^(08|57P)' OR state = '53300'
       OR state = 'XX000'
          AND message ~ '^PL/Proxy function |\] REMOTE (FATAL|\(null\)): '
$$;
COMMENT ON FUNCTION queue_proxy.is_down(text, text) IS
'true: an error with this SQLSTATE and message means that a server does not answer';

--
-- What calls need
--

-- The settings that change what a call does; they become those of the call's
-- transaction on the server, by queue_router.call_settings().  NULL: as they are for
-- the role there.
CREATE OR REPLACE FUNCTION queue_proxy.settings(project text, client_id text)
RETURNS text[]
LANGUAGE sql STABLE
AS $$
SELECT ARRAY[
    COALESCE($1, queue_proxy.project()),
    COALESCE($2, pg_catalog.current_setting('queue.client_id', true)),
    pg_catalog.current_setting('queue.durable_claims', true),
    CASE WHEN pg_catalog.current_setting('lock_timeout')
              OPERATOR(pg_catalog.<>) '0'
         THEN pg_catalog.current_setting('lock_timeout') END,
    CASE WHEN pg_catalog.current_setting('transaction_read_only')
              OPERATOR(pg_catalog.<>) 'off'
         THEN 'on' END]
$$;
COMMENT ON FUNCTION queue_proxy.settings(text, text) IS
'the session''s settings that change what a call does: project, client id, durable_claims, lock_timeout, transaction_read_only';

-- Is this no array of names?
CREATE OR REPLACE FUNCTION queue_proxy.is_invalid(queues text[])
RETURNS boolean
LANGUAGE sql IMMUTABLE
SET search_path = pg_catalog, pg_temp
AS $$
SELECT queues IS NOT NULL
       AND (cardinality(queues) = 0
            OR EXISTS (SELECT FROM unnest(queues) AS name
                       WHERE name IS NULL OR name !~ '^[A-Za-z0-9_.:/-]{1,64}$'))
$$;
COMMENT ON FUNCTION queue_proxy.is_invalid(text[]) IS
'true: this is not an array of names of queues, or an empty one';

-- One wait on the server of the queue
CREATE OR REPLACE FUNCTION queue_proxy.queue_wait(text, integer, integer, text[])
RETURNS boolean
LANGUAGE plproxy VOLATILE PARALLEL UNSAFE
AS $$
CLUSTER '';
RUN ON $3;
SELECT queue_router.wait(
    CASE WHEN queue_router.call_settings($4) THEN $1 END, $2) AS r;
$$;

CREATE OR REPLACE FUNCTION queue_proxy.wait(q text, timeout_ms integer, project text)
RETURNS boolean
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
AS $$
DECLARE
    _settings pg_catalog.text[] := queue_proxy.settings($3, NULL);
    _message pg_catalog.text;
    _detail pg_catalog.text;
    _hint pg_catalog.text;
BEGIN
    RETURN queue_proxy.queue_wait($1, $2,
        queue_proxy.shard($1, _settings[1]), _settings);
EXCEPTION WHEN OTHERS OR query_canceled THEN
    GET STACKED DIAGNOSTICS _message = MESSAGE_TEXT,
        _detail = PG_EXCEPTION_DETAIL, _hint = PG_EXCEPTION_HINT;
    PERFORM queue_proxy.reraise(SQLSTATE, _message, _detail, _hint);
END
$$;
COMMENT ON FUNCTION queue_proxy.wait(text, integer, text) IS
'waits on the server of a queue for at most timeout_ms milliseconds; for queue_wait';

CREATE OR REPLACE FUNCTION queue_proxy.commit_error()
RETURNS text
LANGUAGE plpgsql
AS $$
BEGIN
    COMMIT;
EXCEPTION WHEN invalid_transaction_termination THEN
    RETURN SQLERRM;
END
$$;
COMMENT ON FUNCTION queue_proxy.commit_error() IS
'the message of the error that COMMIT raises where the transaction cannot end';

--
-- Functions
--
-- Each public routine of queue gets one of the same name, arguments and result, with the
-- arguments "project" and "client_id" at the end.  Below it is a function of PL/Proxy in
-- schema queue_proxy, which calls the routine on a server that has a shard, or on several
-- servers, in one statement that first makes the session's settings those of its
-- transaction there.  Its last two arguments are the shard (or an array of them), and the
-- settings.
--
-- "how": a routine that is called "alone" cannot become part of a transaction that has
-- changed something.  One that may be called "anywhere" changes nothing, or can be repeated
-- if the transaction is rolled back.  Others cannot be called; "how" is the hint of the
-- error then.
--
-- A routine with an argument "q" is called on the server of that queue, unless it has a
-- body of its own in the second table.
--
DO $do$
DECLARE
    r record;
    old record;
    made oid[] := ARRAY['queue_proxy.queue_wait(text, integer, integer, text[])'::regprocedure];
    grants text := '';
BEGIN
    FOR r IN
    WITH signature (how, signature, comment) AS (VALUES
    ('Connect to the server of the queues of the batch.', $$batch_cancel(batch bigint)
        RETURNS bigint$$, NULL),
    ('Connect to the server of the queues of the batch.', $$batch_close(batch bigint)
        RETURNS boolean$$, NULL),
    ('alone', $$batch_create(name text = NULL, keep_open boolean = false, q text = NULL)
        RETURNS bigint$$,
     'makes a batch of the current role and returns its id, higher than that of any batch before. It finishes when no member is left that is not finished: with keep_open not before batch_close, or 14 days. name: up to 256 bytes, for people. q: only in a sharded database, and required there: a queue of the shard that the batch belongs to. Errors: 22023/22004 argument. Source: Sidekiq Pro, Batch'),
    ('Connect to each server and call it there.', $$batch_list(marker bigint = NULL,
        "limit" integer = 10) RETURNS TABLE (batch bigint, name text, created_at timestamptz,
        closed_at timestamptz, finished_at timestamptz) ROWS 10$$, NULL),
    ('Connect to the server of the queues of the batch.', $$batch_status(batch bigint) RETURNS
        TABLE (name text, members bigint, unfinished bigint, completed bigint, failed bigint,
        waiting bigint, created_at timestamptz, closed_at timestamptz, finished_at timestamptz)
        ROWS 1$$, NULL),
    ('alone', $$claim_complete(q text, claim_id text) RETURNS bigint$$,
     'deletes the remaining messages of a claim and returns their number. Errors: QU001 the claim is not live, QU004 a message of it was canceled, 42501. Source: MediaWiki, JobQueue::ack, for a batch'),
    ('anywhere', $$claim_get(q text, claim_id text) RETURNS TABLE (claim_id text, ttl integer,
        age integer, grace integer, expires_at timestamptz, message_count integer) ROWS 1$$,
     'describes a live claim in one row: for how many seconds it was claimed or renewed, how many have passed since, its grace in seconds, when it ends, how many messages it has, without those that were canceled. No row: the id is NULL, malformed, unknown or not live. Errors: 42501. Source: Zaqar, query claim'),
    ('anywhere', $$claim_messages(q text, claim_id text) RETURNS SETOF @extschema@.queue_message
        ROWS 10$$,
     'the messages that are still in a live claim, without those that were canceled, highest priority first, oldest first. No row: the id is NULL, malformed, unknown or not live. Errors: 42501. Source: Zaqar, query claim'),
    ('alone', $$claim_next(q text, claim_id text, ttl integer = 300, grace integer = 60,
        "limit" integer = NULL) RETURNS SETOF @extschema@.queue_message ROWS 10$$,
     'deletes the remaining messages of a claim (NULL: there is none yet) and claims the next messages as queue_claim does, in one call. Errors: QU001 the claim is not live, QU004 a message of it was canceled; as queue_claim'),
    ('alone', $$claim_release(q text, claim_id text, delay integer = 0, failed boolean = false)
        RETURNS bigint$$,
     'gives the remaining messages of a claim back, free after delay seconds, and removes those that were canceled. The claim does not count as an attempt at them, unless failed is true: then those that have had as many attempts as the queue allows become dead letters. Returns the number of messages without those that were canceled, 0 when there is no such live claim. Errors: 22023/22004 argument, 42501. Source: Zaqar, release claim'),
    ('alone', $$claim_renew(q text, claim_id text, ttl integer, grace integer = NULL)
        RETURNS timestamptz$$,
     'restarts a claim: it ends ttl seconds from now, and the lifetime of its messages is extended to at least grace seconds (NULL: as before) beyond that; returns when it ends, NULL when there is no such live claim, or all that it has was canceled. Errors: 22023/22004 argument, 42501. Source: Zaqar, update (renew) claim'),
    ('Only pg_cron calls this function, on the server of the queue.', $$job_due(schedule integer)
        RETURNS boolean$$, NULL),
    ('anywhere', $$job_errors(q text, "limit" integer = 100, marker timestamptz = NULL) RETURNS
        TABLE (message_id bigint, attempt integer, at timestamptz, error text) ROWS 100$$,
     'the attempts at messages of queue q that have failed with an error in the last _keep_finished seconds, or without that in the last day, the latest first: those before marker (a time; NULL: all), at most limit (1 to 10000). Errors: 22023/22004 argument, 42501 neither owner nor admin of q. Source: Oban, the errors of a job'),
    ('alone', $$job_handler(q text, handler regprocedure, concurrency integer = 1,
        timeout integer = NULL, rate real = NULL, teardown regprocedure = NULL) RETURNS void$$,
     'binds queue q, which is created as by a push, to a function (queue_message) or (jsonb) that returns boolean, to be called for each message as the current role, at most concurrency at a time, for at most timeout seconds each (NULL: queue.max_handler_time, which bounds it), at most rate per second; teardown is called after each attempt; sets _max_claim_count 12 where the metadata has none; a NULL handler unbinds. Errors: 42704 unknown queue with queue.auto_create off, 42883 no such function, 22023/22004 argument, 42501 not the owner, or no privilege to execute the function. Source: MediaWiki, Job::run, Job::tearDown'),
    ('anywhere', $$job_list(q text = NULL) RETURNS TABLE (queue text, handler text, state text,
        reason text, concurrency integer, running integer, message_id bigint, pid integer,
        running_since timestamptz, progress jsonb)$$,
     'what the handler of queue q runs, or those of all queues of the project whose owner or admin the caller is: a row for each job that runs, or one with NULL from message_id on; state: idle, running, paused or stopped, which reason explains; concurrency: jobs that may run at once; running: that do; pid: of the process, to be canceled with pg_cancel_backend; running_since: of the attempt; progress: done, total and note of job_progress. Errors: 22023 name, 42501 neither owner nor admin of q. Source: MediaWiki, showJobs'),
    ('Only a handler calls this function, on the server of its queue.',
        $$job_progress(done bigint, total bigint = NULL, note text = NULL) RETURNS void$$, NULL),
    ('Only a handler calls this function, on the server of its queue.',
        $$job_result(result jsonb) RETURNS void$$, NULL),
    ('alone', $$job_root(q text, signature text, at timestamptz = NULL) RETURNS jsonb$$,
     'registers a new root job and returns {"rootJobSignature", "rootJobTimestamp"} for the bodies of its leaves; once this transaction has committed, leaves of earlier roots with that signature are dropped as duplicates instead of being handed out. at: the time that the root job has itself, which is kept as it is; equal times are one root, and a time before that of the last root changes nothing. Errors: 22023/22004 argument, 42704 unknown queue with queue.auto_create off, 42501 no right to push. Source: MediaWiki, Job::newRootJobParams'),
    ('Connect to the server of the queues.', $$job_run(queues text[] = NULL,
        max_jobs integer = NULL, max_time integer = NULL, INOUT result jsonb = NULL)$$, NULL),
    ('anywhere', $$job_stats(q text) RETURNS TABLE (claimed bigint, completed bigint,
        retried bigint, abandoned bigint, duplicates bigint, expired bigint, since timestamptz,
        last_error text, last_error_at timestamptz) ROWS 1$$,
     'one row: what became of the messages of queue q since that time, and its last error (NULL without the right to claim); an unknown queue counts 0. Source: MediaWiki, counts of a job runner'),
    ('alone', $$message_bury(q text, id bigint, claim_id text, error text) RETURNS void$$,
     'makes one claimed message a dead letter at once, however often it was claimed, and stores error with it (NULL: keeps the last one); a queue without a dead letter queue gets the one that it would have by default; a duplicate is dropped instead. Errors: QU001 the claim is not live, QU002 the message is not in that claim, QU004 it was canceled, 22023/22004 argument, or no room for the name of the dead letter queue, 42501 no right to claim, or the dead letter queue belongs to another role or does not accept it, 55P03 the dead letter queue is locked. Source: Graphile Worker, permanent failures'),
    ('alone', $$message_cancel(q text, id bigint, reason text = NULL) RETURNS text$$,
     'cancels one message and stores the reason as its last error; canceled: no claim held it, and it is removed; pending: it is removed when its claim ends, nothing that completes, retries or buries it succeeds any more (QU004), and a handler that works on it is interrupted after the commit; NULL: there is no such message. Errors: 22004 id, 42501 no right to claim. Source: Procrastinate and Oban, canceling a job'),
    ('alone', $$message_complete(q text, id bigint, claim_id text, result jsonb = NULL)
        RETURNS boolean$$,
     'deletes one claimed message, as message_delete, and keeps result, where the queue has _keep_finished; true: deleted, false: there is no such message. Errors: QU001 the claim is not live, QU002 the message is not in that claim, QU004 it was canceled, 54000 result too large, 22023/22004 argument, 42501 no right to claim. Source: Celery, the result of a task'),
    ('alone', $$message_delete(q text, id bigint, claim_id text = NULL) RETURNS boolean$$,
     'deletes one message, with claim_id only as part of that claim; false: there is no such message. Errors: QU001 the claim is not live, QU002 the message is not in that claim, QU003 the message is claimed and no claim_id was given, QU004 it was canceled, 22004 id is NULL, 42501. Source: Zaqar, delete a specific message'),
    ('anywhere', $$message_finished(q text, id bigint) RETURNS TABLE (id bigint, queue text,
        group_key text, batch bigint, outcome text, pushed_at timestamptz,
        finished_at timestamptz, attempts integer, result jsonb, error text, body jsonb)
        ROWS 1$$,
     'what became of a message: its row of queue_finished; no row if it is not in the history. Errors: 22023/22004 argument, 42501 as queue_finished. Source: Oban, jobs that are kept'),
    ('anywhere', $$message_get(q text, id bigint) RETURNS SETOF @extschema@.queue_message
        ROWS 1$$,
     'the message with this id; no row when there is none. Errors: 22023/22004 argument, 42501. Source: Zaqar, get a specific message'),
    ('anywhere', $$message_result(q text, id bigint) RETURNS jsonb$$,
     'the result with which a message was completed; NULL if it had none, or is not in the history. Errors: 22023/22004 argument, 42501 as queue_finished. Source: Celery, AsyncResult.result'),
    ('alone', $$message_retry(q text, id bigint, claim_id text, error text = NULL,
        delay integer = NULL) RETURNS timestamptz$$,
     'gives one claimed message back, to be handed out after delay seconds (NULL: 1 s, doubled by each further attempt up to queue.max_retry_delay, unless _retry_delay or _retry_backoff of the queue say otherwise), extends its lifetime as a claim does, and stores error with it; returns when it is due, NULL when it was claimed _max_claim_count times and became a dead letter. Errors: QU001 the claim is not live, QU002 the message is not in that claim, QU004 it was canceled, 22023/22004 argument, 42501. Source: MediaWiki, retries of a job'),
    ('alone', $$messages_bury(q text, ids bigint[], error text) RETURNS bigint$$,
     'makes these messages dead letters, those that are free or delayed, and returns how many there were; error is stored with them, NULL keeps the last one. Errors: 22023/22004 argument, 42501 no right to claim, or the dead letter queue does not accept them, 55P03 it is locked. Source: Sidekiq, kill'),
    ('alone', $$messages_cancel(q text, ids bigint[], reason text = NULL) RETURNS bigint$$,
     'cancels these messages as message_cancel does, all with this reason, and returns how many of them there were; a repeated id counts once. Errors: 22004 ids or one of them, 22023 more than one dimension, 42501 no right to claim. Source: River, canceling many jobs'),
    ('alone', $$messages_delete(q text, ids bigint[], claim_id text = NULL) RETURNS bigint$$,
     'deletes these messages, all or nothing, and returns the number of messages deleted; a repeated id counts once. Errors: as message_delete; 22004 also for a NULL among the ids, 22023 an array of more than one dimension. Source: Zaqar, delete a set of messages by id'),
    ('anywhere', $$messages_get(q text, ids bigint[]) RETURNS SETOF @extschema@.queue_message
        ROWS 10$$,
     'the messages with these ids that exist, in the order requested. Errors: 22004 ids or one of them is NULL, 22023 an array of more than one dimension, 42501. Source: Zaqar, get a set of messages by id'),
    ('alone', $$messages_run_now(q text, ids bigint[]) RETURNS bigint$$,
     'makes these messages free, those that are delayed, and returns how many there were. Errors: 22023/22004 argument, 42501 no right to claim. Source: Sidekiq, add to queue; Oban, retry now'),
    ('Connect to the server of the queue, or poll message_result().', $$queue_await(q text,
        id bigint, timeout_ms integer = NULL, INOUT result jsonb = NULL)$$, NULL),
    ('anywhere', $$queue_browse(q text, state text = NULL, filter jsonb = NULL,
        marker bigint = NULL, "limit" integer = 100) RETURNS TABLE (id bigint, state text,
        body jsonb, headers jsonb, priority integer, group_key text, dedup_key text,
        batch bigint, after bigint, claim_count integer, created_at timestamptz,
        due_at timestamptz, claimed_until timestamptz, expires_at timestamptz, last_error text)
        ROWS 100$$,
     'messages of queue q by id, after marker, at most limit (1 to 10000): those that are free, claimed, delayed, waiting (for a batch) or canceled (while a claim holds them), as state says (NULL: any), and whose bodies contain filter. dedup_key: its digest. due_at: of a delayed one; expires_at: if it stays as it is. One that waits has no times. A call reads at most 10,000 messages; if there are more, the last row has only the id to continue from, as marker. Errors: 22023/22004 argument, 42501 no right to claim'),
    ('alone', $$queue_cancel_where(q text, filter jsonb, reason text = NULL)
        RETURNS bigint$$,
     'cancels the messages whose bodies contain the filter (the operator @>), as message_cancel does, all with this reason, and returns how many there were; it reads the whole queue, and locks nothing before it has. Errors: 22004 filter, 42501 no right to claim. Source: River, canceling many jobs'),
    ('LISTEN on a direct connection to the server of the queue, or use queue_wait().',
        $$queue_channel(q text) RETURNS text$$, NULL),
    ('alone', $$queue_claim(q text, ttl integer = 300, grace integer = 60,
        "limit" integer = NULL) RETURNS SETOF @extschema@.queue_message ROWS 10$$,
     'claims up to limit (NULL: queue.default_claim_limit) free messages, highest priority first, oldest first, for ttl seconds, and extends their lifetime to at least grace seconds beyond that; all of them have one claim_id. No row: nothing is free, or the queue is unknown or paused. Errors: 22023/22004 argument, 42501. Source: Zaqar and Cloud Queues, claim messages'),
    ('alone', $$queue_claim_any(queues text[] = NULL, ttl integer = 300, grace integer = 60,
        "limit" integer = NULL) RETURNS SETOF @extschema@.queue_message ROWS 10$$,
     'claims as queue_claim does from the first of these queues (NULL: all of the session''s project that it may claim from) that has something free; each call starts with another queue. Errors: as queue_claim. Source: MediaWiki, JobQueueGroup::pop'),
    ('alone', $$queue_create(q text, metadata jsonb = '{}') RETURNS boolean$$,
     'creates queue q with this metadata, and the dead letter queue that the metadata requires; true: created, false: it exists and is unchanged. Errors: 22023 name or reserved key, 54000 metadata over 65536 bytes, 42501 not a member of queue_producer or queue_admin, or the dead letter queue does not allow the push. Source: Zaqar, create queue'),
    ('anywhere', $$queue_dead_letters(q text, "limit" integer = 10, marker bigint = NULL) RETURNS
        TABLE (id bigint, body jsonb, origin_queue text, origin_id bigint, reason text,
        last_error text, claim_count integer, died_at timestamptz) ROWS 10$$,
     'dead letters in queue q, oldest first, after marker (an id), at most limit (1 to 10000) of them: where each came from and why. A NOTICE names the queue that has those of q itself, if q has none. Errors: 22023/22004 argument, 42501. Source: Zaqar, dead letter queue'),
    ('anywhere', $$queue_dedup_key(body jsonb, ignore text[] = '{}') RETURNS text$$,
     'a digest of body, to be used as dedup_key: the same for all bodies that are equal as jsonb. Keys of body that begin with rootJob, and those in ignore, are left out. Errors: 22004 argument. Source: MediaWiki, Job::getDeduplicationInfo'),
    ('anywhere', $$queue_depth(q text = NULL) RETURNS TABLE (queue text, free bigint,
        claimed bigint, delayed bigint, dead_letters bigint, oldest_age integer, paused boolean,
        last_error text, last_error_at timestamptz) ROWS 100$$,
     'a row for queue q, or (NULL) for each queue of the session''s project that the caller may claim from, by name: its messages and those in its dead letter queue, counted as they change and at most two seconds late, NULL while they are not known; the age in seconds of the oldest free one, NULL if none is found; whether it is paused; and the last error that was reported. Errors: 22023 argument, 42501 no right to claim from q'),
    ('alone', $$queue_drop(q text) RETURNS boolean$$,
     'drops queue q and its messages; false: it did not exist. Waits for transactions that push or claim; honors lock_timeout. Errors: 42501 no admin privilege, 2BP01 another queue sends its dead letters there. Source: Zaqar, delete queue'),
    ('anywhere', $$queue_exists(q text) RETURNS boolean$$,
     'true when queue q exists in the session''s project. Source: Zaqar, check queue existence'),
    ('anywhere', $$queue_finished(q text, marker bigint = NULL, "limit" integer = 10,
        outcome text = NULL) RETURNS TABLE (id bigint, queue text, group_key text, batch bigint,
        outcome text, pushed_at timestamptz, finished_at timestamptz, attempts integer,
        result jsonb, error text, body jsonb) ROWS 10$$,
     'what became of messages of queue q in the last _keep_finished seconds, by id, after marker, at most limit (1 to 10000); outcome: only those that are completed, dead, expired, canceled, duplicate or deleted; result: of message_complete or job_result; error: the last one, NULL if completed; body: with _keep_body. No row without _keep_finished. Errors: 22023/22004 argument, 42501 no right to claim, or with _results_for_producers to push. Source: Oban, jobs that are kept'),
    ('anywhere', $$queue_get(q text) RETURNS TABLE (name text, metadata jsonb,
        created_at timestamptz, paused boolean) ROWS 1$$,
     'one row that describes queue q; no row when it is unknown. Source: Zaqar, get queue metadata'),
    ('alone', $$queue_grant(q text, role regrole, privilege text) RETURNS void$$,
     'grants role a privilege on queue q: ''push'' or ''claim'', which roles that were not named then lose, or ''admin'', all that the owner can do. Errors: 42704 unknown queue or role, 22023 privilege, 42501 no admin privilege'),
    ('anywhere', $$queue_groups(q text, marker text = NULL, "limit" integer = 10) RETURNS
        TABLE (group_key text, free bigint, claimed bigint, delayed bigint,
        oldest_age integer)$$,
     'the groups of queue q that have messages, by key, after marker, at most limit (1 to 10000): exact counts, and the age in seconds of the message with the lowest id; messages without a key are the first group, with a NULL key (the marker '''' begins after it); reads every message of the queue. Errors: 22023/22004 name or limit, 42501 no right to claim'),
    ('anywhere', $$queue_is_empty(q text) RETURNS boolean$$,
     'whether a claim of queue q would find nothing now; also true for an unknown or a paused queue. Errors: 22023/22004 argument, 42501. Source: MediaWiki, JobQueue::isEmpty'),
    ('anywhere', $$queue_list(marker text = NULL, "limit" integer = 10, pattern text = NULL)
        RETURNS TABLE (name text, metadata jsonb, created_at timestamptz, paused boolean)
        ROWS 10$$,
     'queues of the session''s project by name, after the marker, at most limit (1 to 10000) of them, names matching the regular expression pattern. Errors: 22023/22004 limit, 2201B pattern. Source: Zaqar, list queues'),
    ('anywhere', $$queue_messages(q text, marker bigint = NULL, "limit" integer = 10,
        echo boolean = false, include_claimed boolean = false, include_delayed boolean = false)
        RETURNS SETOF @extschema@.queue_message ROWS 10$$,
     'messages of queue q by id, after the marker, at most limit (1 to 10000) of them; without echo not those pushed under the session''s own queue.client_id. Errors: 22023/22004 argument, 42501. Source: Zaqar, list messages'),
    ('alone', $$queue_pause(q text) RETURNS boolean$$,
     'pauses queue q: it accepts pushes but allows no claims; true: now paused, false: it was paused already. Errors: 42704 unknown queue, 42501 no admin privilege'),
    ('alone', $$queue_pop(q text, "limit" integer = 1) RETURNS SETOF @extschema@.queue_message
        ROWS 10$$,
     'deletes and returns up to limit (1 to queue.max_claim_limit) free messages, highest priority first, oldest first; delivery is at most once. Errors: 22023/22004 argument, 42501. Source: Zaqar, pop messages'),
    ('alone', $$queue_post(q text, messages jsonb) RETURNS bigint[]$$,
     'pushes an array of {"body", "ttl", "delay", "priority", "dedup_key", "group_key", "headers", "batch", "after", "after_success", "at", "dedup", "dedup_for"} (only body is required), all or nothing, and returns the ids in that order, NULL where one was dropped as a duplicate. If q is NULL, each object has a field "queue", too. Errors: as queue_push; 22004 a message without a queue. Source: Zaqar, post messages; MediaWiki, JobQueueGroup::push'),
    ('alone', $$queue_purge(q text) RETURNS bigint$$,
     'removes all messages of queue q, claimed and delayed ones too, and returns their number. Waits for transactions that push or claim; honors lock_timeout. Errors: 42501 no admin privilege. Source: Zaqar, purge queue'),
    ('alone', $$queue_push(q text, body jsonb, ttl integer = NULL, delay integer = NULL,
        priority integer = 0, dedup_key text = NULL, group_key text = NULL, headers jsonb = NULL,
        batch bigint = NULL, after bigint = NULL, after_success boolean = false,
        at timestamptz = NULL, dedup text = 'waiting', dedup_for integer = NULL)
        RETURNS bigint$$,
     'pushes one message that lives ttl seconds and is handed out after delay seconds, priority 0 to 9 (higher first); returns its id, NULL when an unclaimed message with this dedup_key waits; with dedup unfinished also when a claimed one has it; with dedup replace, a message that waits gets body, headers and due time instead, which needs claim on the queue, and its id is returned. dedup_for: 1 to 2592000 seconds; NULL also when a push with dedup_for had the key in the last so many, whatever became of its message; that one counts for as long as it said, and an hour at least. at: when it is due, instead of delay. group_key: 1 to 256 bytes, the message''s group. headers: returned with the message, counted toward the size of its body. batch: the message is a member of it. after: the message waits until that batch has finished; with after_success it becomes a dead letter if a member failed. Errors: 22023/22004 argument, 54000 body too large, 42704 unknown queue with queue.auto_create off, unknown batch, 55000 the batch has finished, 42501. Source: Zaqar, post message; MediaWiki, JobQueue::push'),
    ('alone', $$queue_push_batch(q text, bodies jsonb[], ttl integer = NULL,
        delay integer = NULL, priority integer = 0, group_keys text[] = NULL,
        batch bigint = NULL, after bigint = NULL, after_success boolean = false,
        at timestamptz = NULL) RETURNS bigint[]$$,
     'pushes one message for each body, all or nothing, and returns their ids in that order; group_keys has one element for each. Arguments and errors: as queue_push; at most queue.max_push_count bodies. Source: MediaWiki, JobQueue::batchPush'),
    ('Call queue_push(), or connect to the server of the queue.', $$queue_push_lazy(q text,
        body jsonb, ttl integer = NULL, delay integer = NULL, priority integer = 0,
        dedup_key text = NULL, group_key text = NULL, headers jsonb = NULL,
        at timestamptz = NULL, dedup text = 'waiting', dedup_for integer = NULL) RETURNS void$$,
        NULL),
    ('anywhere', $$queue_push_once(q text, origin text, origin_id bigint, body jsonb,
        ttl integer = NULL, delay integer = NULL, priority integer = 0, dedup_key text = NULL,
        group_key text = NULL, headers jsonb = NULL, batch bigint = NULL, after bigint = NULL,
        after_success boolean = false, at timestamptz = NULL, dedup text = 'waiting',
        dedup_for integer = NULL) RETURNS bigint$$,
     'pushes one message, unless a call with this queue, origin (1 to 256 bytes) and origin_id did so in the last 28 days, and returns what that call has returned: the id, NULL when it was dropped as a duplicate. A call that is in progress is waited for. Other arguments and errors: as queue_push'),
    ('anywhere', $$queue_ready() RETURNS SETOF text$$,
     'the names of the queues of the session''s project that have something to claim. Source: MediaWiki, JobQueueAggregator'),
    ('Connect to each server and call it there.', $$queue_ready_in_projects() RETURNS
        TABLE (project text, queue text)$$, NULL),
    ('alone', $$queue_redrive(q text, target text = NULL, "limit" integer = NULL,
        ids bigint[] = NULL) RETURNS bigint$$,
     'moves up to limit (NULL: all) dead letters of queue q, oldest first, or those with these ids in that order, back to the queues that they came from or to target, as new messages with claim_count 0; returns their number. Passes over those whose origin is gone, and a NOTICE says how many: it was dropped, and queue.auto_create is off, or another role has created a queue of that name. Errors: 22023/22004 argument, 42704 unknown target, 42501 no right to claim from q or to push to where they are sent. Source: Amazon SQS, redrive'),
    ('alone', $$queue_resume(q text) RETURNS boolean$$,
     'ends the pause of queue q; true: now running, false: it was not paused. Errors: 42704 unknown queue, 42501 no admin privilege'),
    ('alone', $$queue_revoke(q text, role regrole, privilege text) RETURNS void$$,
     'revokes from role the privilege ''push'', ''claim'' or ''admin'' on queue q that queue_grant granted; when no role is left, only the owner and the roles with admin have the privilege. Errors: as queue_grant; 55000 the privilege was granted to no role by name'),
    ('alone', $$queue_set_metadata(q text, metadata jsonb) RETURNS jsonb$$,
     'replaces the metadata of queue q and returns it. Errors: 42704 unknown queue, 22023 reserved key, 54000 over 65536 bytes, 42501 no admin privilege, or the dead letter queue does not allow the push. Source: Zaqar, set queue metadata'),
    ('alone', $$queue_set_owner(q text, role regrole) RETURNS void$$,
     'changes the owner of queue q, and of the dead letter queues that were created for it. Errors: 42704 unknown queue or role, 42501 neither a superuser nor an owner that can SET ROLE to the new one, 55000 the queue was created for the dead letters of another one, whose owner is to be changed'),
    ('alone', $$queue_shard(q text, project text = NULL) RETURNS integer$$,
     'the shard of a queue of a project (NULL: the session''s), 0 to 255, whether or not the queue exists: the first byte of the SHA-256 of the name without all trailing ".dead", a space and the project, in UTF-8. Errors: 22004/22023 argument'),
    ('Connect to each server and call it there.', $$queue_shard_init(server integer,
        servers integer) RETURNS void$$, NULL),
    ('anywhere', $$queue_stats(q text) RETURNS TABLE (free bigint, claimed bigint,
        delayed bigint, total bigint, oldest_id bigint, oldest_age integer,
        oldest_created timestamptz, newest_id bigint, newest_age integer,
        newest_created timestamptz) ROWS 1$$,
     'exact counts of the messages of queue q, and its oldest and newest one (ages in seconds); an unknown queue counts 0. Takes time in proportion to the queue. Errors: 22023/22004 name, 42501 no privilege on the queue. Source: Zaqar, get queue stats'),
    ('alone', $$queue_step(q text, claim_id text = NULL, done bigint[] = NULL,
        failed jsonb = NULL, push jsonb = NULL, ttl integer = 300, grace integer = 60,
        "limit" integer = NULL) RETURNS SETOF @extschema@.queue_message ROWS 10$$,
     'a worker''s cycle in one call, all or nothing: of the claim (NULL: none yet), deletes the messages in done (NULL: all that are not in failed), retries those in failed ([{"id", "error", "delay", "bury"}, ...], only id, a number or a string, is required; true in bury makes it a dead letter) and gives the rest back; pushes the messages in push (as queue_post; without a field queue, to q); and claims the next as queue_claim; a limit of 0 claims nothing. Errors: QU001 the claim is not live, QU002 a message is not in it, QU004 one was canceled, 22023/22004 argument, among them a message that is named twice, 42501, those of queue_push, and with bury of message_bury. Source: claim_next'),
    ('alone', $$queue_update(q text, patch jsonb) RETURNS jsonb$$,
     'merges patch into the metadata of queue q (a null removes a key) and returns the whole. Errors: as queue_set_metadata. Source: Zaqar, update queue'),
    ('alone', $$queue_wait(q text, timeout_ms integer, INOUT ready boolean = NULL)$$,
     'waits until queue q has something to claim, at most timeout_ms milliseconds (0 checks once); ready: whether it has. Errors: 22004 and 22023 arguments, 42501 no right to claim, 25006 read-only, 25001 unless timeout_ms is 0: called in a transaction block, a pipeline, a function, or a procedure with SECURITY DEFINER or SET. Source: Amazon SQS, long polling'),
    ('The bound queues would be on several servers. Push to each queue.',
        $$topic_bind(pattern text, q text, filter jsonb = NULL, publishers regrole[] = NULL)
        RETURNS boolean$$, NULL),
    ('Connect to each server and call it there.', $$topic_list(marker text = NULL,
        "limit" integer = 10, q text = NULL) RETURNS TABLE (pattern text, queue text,
        filter jsonb, publishers regrole[], bound_at timestamptz) ROWS 10$$, NULL),
    ('The bound queues would be on several servers. Push to each queue.',
        $$topic_publish(topic text, body jsonb, headers jsonb = NULL, ttl integer = NULL,
        delay integer = NULL, priority integer = 0, group_key text = NULL, dedup_key text = NULL,
        at timestamptz = NULL) RETURNS bigint$$, NULL),
    ('Connect to the server of the queue.', $$topic_unbind(pattern text, q text)
        RETURNS boolean$$, NULL)
    ), special (name, body) AS (VALUES
    ('queue_shard', $$BEGIN
    IF $1 IS NULL THEN
        RAISE EXCEPTION 'parameter "q" must not be null'
            USING ERRCODE = 'null_value_not_allowed',
            HINT = 'Give a value for "q".';
    ELSIF $1 OPERATOR(pg_catalog.!~) '^[A-Za-z0-9_.:/-]{1,64}$' THEN
        RAISE EXCEPTION 'parameter "q" is not a valid queue name: "%"', $1
            USING ERRCODE = 'invalid_parameter_value',
            HINT = 'A name is 1 to 64 characters out of letters, digits, and the signs _ - . : / only.';
    END IF;
    RETURN queue_proxy.shard($1, COALESCE($2, queue_proxy.project()));
END$$),
    -- The first of all servers' names.  They are asked even if the limit is too low.
    ('queue_list', $$    RETURN QUERY
        SELECT * FROM queue_proxy.queue_list($1, $2, $3,
            (SELECT pg_catalog.array_agg(s.shard) FROM queue_proxy.servers() AS s),
            _settings) AS l
        ORDER BY l.name COLLATE pg_catalog."C" LIMIT GREATEST($2, 1);$$),
    -- Those of the servers that answer: of all at once, or else of one after the
    -- other.
    ('queue_ready', $$    BEGIN
        RETURN QUERY SELECT queue_proxy.queue_ready(
            (SELECT pg_catalog.array_agg(s.shard) FROM queue_proxy.servers() AS s),
            _settings);
        RETURN;
    EXCEPTION WHEN OTHERS THEN
        IF NOT queue_proxy.is_down(SQLSTATE, SQLERRM) THEN
            RAISE;
        END IF;
    END;
    FOR _shard IN SELECT s.shard FROM queue_proxy.servers() AS s LOOP
        BEGIN
            RETURN QUERY SELECT queue_proxy.queue_ready(ARRAY[_shard], _settings);
            _answered := true;
        EXCEPTION WHEN OTHERS THEN
            GET STACKED DIAGNOSTICS _message = MESSAGE_TEXT;
            IF NOT queue_proxy.is_down(SQLSTATE, _message) THEN
                RAISE;
            END IF;
            RAISE WARNING 'the server of shard % does not answer', _shard
                USING DETAIL = _message;
        END;
    END LOOP;
    IF NOT _answered THEN
        RAISE EXCEPTION 'no server answers'
            USING ERRCODE = 'internal_error', DETAIL = _message;
    END IF;$$),
    -- From the first server that has something free, beginning with any.  An array
    -- that no server accepts goes to one as it is, for the error.
    ('queue_claim_any', $$    FOR _shard, _queues IN
        SELECT s.shard, CASE WHEN _one THEN $1 ELSE n.names END
        FROM queue_proxy.servers() AS s
             CROSS JOIN LATERAL
             (SELECT pg_catalog.array_agg(u.name ORDER BY u.n)
              FROM pg_catalog.unnest($1) WITH ORDINALITY AS u (name, n)
              WHERE NOT _one
              AND queue_proxy.shard(u.name, _settings[1])
                  OPERATOR(pg_catalog.=) ANY (s.shards)) AS n (names)
        WHERE _one OR $1 IS NULL OR n.names IS NOT NULL
    LOOP
        BEGIN
            RETURN QUERY SELECT * FROM queue_proxy.queue_claim_any(_queues,
                $2, $3, $4, ARRAY[_shard], _settings);
            _answered := true;
            IF FOUND OR _one THEN
                RETURN;
            END IF;
        EXCEPTION WHEN OTHERS THEN
            GET STACKED DIAGNOSTICS _message = MESSAGE_TEXT;
            IF NOT queue_proxy.is_down(SQLSTATE, _message) THEN
                RAISE;
            END IF;
            RAISE WARNING 'the server of shard % does not answer', _shard
                USING DETAIL = _message;
        END;
    END LOOP;
    IF NOT _answered THEN
        RAISE EXCEPTION 'no server answers'
            USING ERRCODE = 'internal_error', DETAIL = _message;
    END IF;$$),
    -- From the server of the queue, or from all
    ('job_list', $$    RETURN QUERY SELECT * FROM queue_proxy.job_list($1,
        CASE WHEN $1 IS NULL
             THEN (SELECT pg_catalog.array_agg(s.shard) FROM queue_proxy.servers() AS s)
             ELSE ARRAY[queue_proxy.shard($1, _settings[1])] END,
        _settings);$$),
    ('queue_depth', $$    RETURN QUERY SELECT * FROM queue_proxy.queue_depth($1,
        CASE WHEN $1 IS NULL
             THEN (SELECT pg_catalog.array_agg(s.shard) FROM queue_proxy.servers() AS s)
             ELSE ARRAY[queue_proxy.shard($1, _settings[1])] END,
        _settings) AS d ORDER BY d.queue COLLATE pg_catalog."C";$$),
    -- The same on every server
    ('queue_dedup_key', $$    RETURN (SELECT k FROM queue_proxy.queue_dedup_key($1, $2,
        (SELECT ARRAY[s.shard] FROM queue_proxy.servers() AS s LIMIT 1),
        _settings) AS k);$$),
    -- Waits on the server for two seconds at a time, so that nothing is left there
    -- for longer if this session ends.  A COMMIT fails in a transaction block for
    -- the same reason as in a function; else because of the exception block.
    ('queue_wait', $$    _until timestamp with time zone := pg_catalog.clock_timestamp()
        OPERATOR(pg_catalog.+) pg_catalog.make_interval(secs => $2 OPERATOR(pg_catalog./) 1000.0);
    _ms integer := $2;
    _in_transaction boolean := false;
BEGIN
    IF $2 OPERATOR(pg_catalog.>) 0 THEN
        BEGIN
            COMMIT;
        EXCEPTION WHEN invalid_transaction_termination THEN
            _in_transaction := SQLERRM OPERATOR(pg_catalog.=) queue_proxy.commit_error();
        END;
        IF _in_transaction THEN
            RAISE EXCEPTION 'queue_wait() cannot wait here'
                USING ERRCODE = 'active_sql_transaction',
                DETAIL = 'It cannot be called inside a transaction block, a function, or a procedure with SECURITY DEFINER or SET.',
                HINT = 'Call it by itself, with autocommit, or with a timeout of 0 to check once.';
        END IF;
    END IF;
    LOOP
        $3 := queue_proxy.wait($1, LEAST(_ms, 2000), $4);
        _ms := pg_catalog.ceil(1000 OPERATOR(pg_catalog.*) EXTRACT(epoch FROM
            _until OPERATOR(pg_catalog.-) pg_catalog.clock_timestamp()));
        EXIT WHEN $3 OR _ms OPERATOR(pg_catalog.<=) 0;
        COMMIT;
    END LOOP;
END$$)
    ), routine AS (
        SELECT s.how, s.comment, m.name, m.result, s.how IN ('alone', 'anywhere') AS is_called,
               b.name IS NOT NULL AS is_special, b.body,
               m.result IS NULL AS is_procedure,
               m.result ~ '^(TABLE|SETOF) ' AS is_set,
               -- Does the call return rows of several columns?
               m.result ~ '^TABLE |[.]queue_message' AS is_composite,
               -- PL/pgSQL does not allow an argument and a column of the result to have
               -- the same name, so that takes a function of SQL around it.
               c.names && a.names AS same_name,
               'project' = ANY (c.names || a.names) AS has_project,
               a.*
        FROM signature AS s
             CROSS JOIN LATERAL
             (SELECT m[1], m[2], m[3]
              FROM regexp_match(s.signature, '^(\w+)\((.*?)\)(?:\s+RETURNS\s+(.*))?$') AS m)
             AS m (name, arguments, result)
             LEFT JOIN special AS b ON b.name = m.name
             CROSS JOIN LATERAL
             (SELECT ARRAY(SELECT x.name[1] FROM regexp_matches(
                  substring(m.result, '^TABLE (.*)'), '[(,]\s*(\S+)', 'g') AS x (name))) AS c (names)
             CROSS JOIN LATERAL
             (SELECT count(*)::integer AS n, min(i) FILTER (WHERE x.name = 'q') AS q,
                     COALESCE(array_agg(x.name), '{}') AS names,
                     -- of the function for users
                     string_agg(replace(arg, 'regprocedure', 'text'), ', ' ORDER BY i) AS arguments,
                     string_agg(replace(type, 'regprocedure', 'text'), ', ' ORDER BY i) AS types,
                     -- of that below: functions need not exist in the router's database,
                     -- and roles have other OIDs there
                     string_agg(replace(replace(type, 'regprocedure', 'text'), 'regrole', 'text'),
                                ', ' ORDER BY i) AS inner_types,
                     string_agg('$' || i || CASE type WHEN 'regrole' THEN '::pg_catalog.text' ELSE '' END,
                                ', ' ORDER BY i) AS passed,
                     -- and what that calls; PL/Proxy adds the types of the arguments
                     string_agg('$' || i || CASE WHEN type ~ '^reg' THEN '::' || type ELSE '' END,
                                ', ' ORDER BY i) AS called
              FROM regexp_split_to_table(m.arguments, ',\s+') WITH ORDINALITY AS u (arg, i)
                   CROSS JOIN LATERAL regexp_match(arg, '^(?:INOUT )?(\S+) ([^=]*\S)(?: =.*)?$') AS y (m)
                   CROSS JOIN LATERAL (SELECT y.m[1], y.m[2]) AS x (name, type)
              WHERE arg <> '') AS a
    ), body AS (
        SELECT *,
               CASE WHEN has_project THEN arguments
                    ELSE concat_ws(', ', arguments, 'project text = NULL, client_id text = NULL') END
                   AS all_arguments,
               CASE WHEN has_project THEN types ELSE concat_ws(', ', types, 'text, text') END
                   AS all_types,
               concat_ws(', ', inner_types, CASE WHEN is_special THEN 'integer[]' ELSE 'integer' END,
                         'text[]') AS below_types,
               substring(result, '\s+ROWS \d+$') AS nrows,
               regexp_replace(result, '\s+ROWS \d+$', '') AS returns,
               CASE
                   WHEN NOT is_called THEN format($t$BEGIN
    RAISE EXCEPTION '%s() cannot be called through a router'
        USING ERRCODE = 'feature_not_supported',
        HINT = '%s';
END$t$, name, how)
                   WHEN body LIKE 'BEGIN%' THEN body
                   WHEN is_procedure THEN E'DECLARE\n' || body
                   ELSE format($t$DECLARE
    _settings pg_catalog.text[] := queue_proxy.settings($%s, $%s);%s
    _message pg_catalog.text;
    _detail pg_catalog.text;
    _hint pg_catalog.text;
BEGIN
%s%s
EXCEPTION WHEN OTHERS OR query_canceled THEN
    GET STACKED DIAGNOSTICS _message = MESSAGE_TEXT,
        _detail = PG_EXCEPTION_DETAIL, _hint = PG_EXCEPTION_HINT;
    PERFORM queue_proxy.reraise(SQLSTATE, _message, _detail, _hint);
END$t$, n + 1, n + 2,
    CASE WHEN body LIKE '%_shard%' THEN E'\n    _shard integer;\n    _answered boolean := false;' ELSE '' END ||
    CASE WHEN body LIKE '%_queues%' THEN E'\n    _queues pg_catalog.text[];\n    _one boolean := queue_proxy.is_invalid($1);' ELSE '' END,
    CASE WHEN how = 'anywhere' THEN '' ELSE format($t$    IF pg_catalog.pg_current_xact_id_if_assigned() IS NOT NULL THEN
        PERFORM queue_proxy.refuse_transaction('%s');
    END IF;
$t$, name) END,
    -- The messages of queue_post may name the queues.  All messages of a call have to be
    -- on one server: that of the first one.
    COALESCE(body, format('    %squeue_proxy.%I(%s,
        queue_proxy.shard(%s, _settings[1]), _settings);',
        CASE WHEN is_set THEN 'RETURN QUERY SELECT * FROM '
             WHEN result = 'void' THEN 'PERFORM ' ELSE 'RETURN ' END, name, passed,
        CASE WHEN name = 'queue_post'
             THEN $$COALESCE($1, ($2 OPERATOR(pg_catalog.->) 0) OPERATOR(pg_catalog.->>) 'queue')$$
             ELSE '$' || q END)))
               END AS outer_body,
               -- The settings come first, as arguments are evaluated before the call.  A
               -- routine without arguments gets none.
               format(E'CLUSTER \'\';\nRUN ON %s;\nSELECT %s',
                   CASE WHEN is_special THEN format('pg_catalog.unnest($%s)', n + 1)
                        ELSE format('$%s', n + 1) END,
                   CASE WHEN n = 0 THEN
                            format(E'@extschema@.%I() AS r\nFROM (SELECT queue_router.call_settings($%s) OFFSET 0) AS s;',
                                   name, n + 2)
                        ELSE CASE WHEN is_composite THEN 'f.* FROM ' ELSE '' END ||
                            format(E'@extschema@.%I(\n    %s) AS %s;', name,
                                   regexp_replace(called, '^[^,]+', format(
                                       'CASE WHEN queue_router.call_settings($%s) THEN \& END', n + 2)),
                                   CASE WHEN is_composite THEN 'f' ELSE 'r' END) END) AS inner_body
        FROM routine)
    -- What is created: the function below, that of SQL around, the one for users
    SELECT v.*, b.nrows, '' AS routine,
           v.schema = '@extschema@' AS is_last,
           CASE WHEN is_called THEN b.comment
                ELSE 'raises an error, 0A000: it cannot be called through a router' END AS comment
    FROM body AS b CROSS JOIN LATERAL (VALUES
        (1, 'FUNCTION', 'queue_proxy', b.name, b.below_types, b.below_types,
         CASE WHEN is_special AND NOT is_set THEN 'SETOF ' ELSE '' END || returns,
         'plproxy VOLATILE PARALLEL UNSAFE', inner_body),
        (2, CASE WHEN is_procedure THEN 'PROCEDURE' ELSE 'FUNCTION' END,
         CASE WHEN same_name THEN 'queue_proxy' ELSE '@extschema@' END,
         CASE WHEN same_name THEN b.name || '_call' ELSE b.name END, all_types,
         CASE WHEN same_name THEN all_types ELSE all_arguments END, returns,
         CASE WHEN is_procedure THEN 'plpgsql' WHEN b.name = 'queue_shard' THEN 'plpgsql STABLE PARALLEL SAFE'
              ELSE 'plpgsql VOLATILE PARALLEL UNSAFE' END, outer_body),
        (3, 'FUNCTION', '@extschema@', b.name, all_types, all_arguments, returns,
         'sql VOLATILE PARALLEL UNSAFE',
         format('SELECT * FROM queue_proxy.%I(%s)', b.name || '_call',
                (SELECT string_agg('$' || i, ', ' ORDER BY i)
                 FROM generate_series(1, n + 2) AS i))))
        AS v (place, kind, schema, name, types, arguments, returns, language, source)
    WHERE CASE place WHEN 1 THEN is_called AND b.name NOT IN ('queue_shard', 'queue_wait')
                     WHEN 3 THEN same_name ELSE true END
    ORDER BY b.name, v.place
    LOOP
        r.routine := format('%s.%I(%s)', r.schema, r.name, r.types);

        -- One with other arguments, unless something else depends on it
        FOR old IN
            SELECT p.oid::regprocedure AS routine, p.proacl, p.proowner
            FROM unnest(current_setting('queue_update.before')::oid[]) AS b (oid)
                 JOIN pg_proc AS p ON p.oid = b.oid
            WHERE p.pronamespace = r.schema::regnamespace AND p.proname = r.name
            AND p.oid IS DISTINCT FROM to_regprocedure(r.routine)
        LOOP
            EXECUTE format('DROP ROUTINE %s', old.routine);
            SELECT grants || concat(format('REVOKE EXECUTE ON ROUTINE %s
                       FROM queue_producer, queue_consumer, queue_admin; ', r.routine),
                   string_agg(format('GRANT EXECUTE ON ROUTINE %s TO %s%s; ', r.routine,
                       CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE a.grantee::regrole::text END,
                       CASE WHEN a.is_grantable THEN ' WITH GRANT OPTION' ELSE '' END), ''))
            INTO grants
            FROM aclexplode(old.proacl) AS a
            WHERE a.grantee <> old.proowner;
        END LOOP;
        EXECUTE format(E'CREATE OR REPLACE %s %s.%I(%s)%s LANGUAGE %s%s AS $$\n%s\n$$', r.kind,
            r.schema, r.name, r.arguments, ' RETURNS ' || r.returns, r.language, r.nrows, r.source);
        made := made || r.routine::regprocedure::oid;
        IF r.is_last THEN
            EXECUTE format('COMMENT ON ROUTINE %s IS %L', r.routine, r.comment);
        END IF;
    END LOOP;
    PERFORM set_config('queue_update.grants', grants, true);

    -- Those of an earlier version that there are no more
    FOR old IN
        SELECT p.oid::regprocedure AS routine
        FROM unnest(current_setting('queue_update.before')::oid[]) AS b (oid)
             JOIN pg_proc AS p ON p.oid = b.oid
             JOIN pg_language AS l ON l.oid = p.prolang
        WHERE p.oid <> ALL (made)
        AND (p.pronamespace = '@extschema@'::regnamespace OR l.lanname = 'plproxy' OR p.proname ~ '_call$')
    LOOP
        EXECUTE format('DROP ROUTINE %s', old.routine);
    END LOOP;
END
$do$;

--
-- Privileges of the functions that are new, and those that dropped ones had
--
DO $$
DECLARE
    routine regprocedure;
    before pg_init_privs[];
BEGIN
    FOR routine IN
        SELECT d.objid
        FROM pg_depend AS d JOIN pg_extension AS e ON e.oid = d.refobjid
        WHERE d.classid = 'pg_proc'::regclass AND d.refclassid = 'pg_extension'::regclass
        AND d.deptype = 'e' AND e.extname = 'queue_proxy'
        AND d.objid <> ALL (current_setting('queue_update.before')::oid[])
    LOOP
        EXECUTE format('REVOKE ALL ON ROUTINE %s FROM PUBLIC', routine);
        IF routine <> 'queue_proxy.set_servers(text[])'::regprocedure THEN
            EXECUTE format('GRANT EXECUTE ON ROUTINE %s
                TO queue_producer, queue_consumer, queue_admin', routine);
        END IF;
    END LOOP;

    -- The latter are no part of the extension: pg_dump has to write them.
    before := ARRAY(SELECT i FROM pg_init_privs AS i WHERE i.classoid = 'pg_proc'::regclass);
    EXECUTE current_setting('queue_update.grants');
    UPDATE pg_init_privs AS i SET initprivs = b.initprivs
    FROM unnest(before) AS b
    WHERE i.objoid = b.objoid AND i.classoid = b.classoid;
END
$$;
