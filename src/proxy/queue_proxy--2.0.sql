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

-- Names in bodies that are parsed now must not be those of other schemas.
SELECT pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true);

-- The functions that exist, whose privileges stay as they are
SELECT set_config('queue_update.before', ARRAY(
    SELECT d.objid FROM pg_depend AS d JOIN pg_extension AS e ON e.oid = d.refobjid
    WHERE d.classid = 'pg_proc'::regclass AND d.refclassid = 'pg_extension'::regclass
    AND d.deptype = 'e' AND e.extname = 'queue_proxy')::text, true);

-- The roles are the same as those of the extension queue.  The server of a queue checks
-- them; here they only allow to call it.
DO $$
DECLARE
    role_name name;
BEGIN
    FOREACH role_name IN ARRAY '{queue_producer,queue_consumer,queue_admin}'::name[] LOOP
        BEGIN
            EXECUTE format('CREATE ROLE %I NOLOGIN', role_name);
        EXCEPTION WHEN unique_violation OR duplicate_object THEN
            NULL;
        END;
        IF EXISTS (SELECT FROM pg_roles WHERE rolname = role_name AND rolcanlogin) THEN
            RAISE WARNING 'role "%" exists and can log in', role_name
                USING HINT = 'Members of this role get rights on queues; make sure that it is meant for that.';
        END IF;
    END LOOP;
    IF current_setting('queue_update.before') <> '{}' THEN
        DROP FUNCTION queue_proxy.project(), queue_proxy.refuse_transaction(text),
            queue_proxy.is_invalid(text[]), queue_proxy.wait(text, integer, text);
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

-- As queue_shard(), but any name is accepted, since the server of the queue checks it.
CREATE OR REPLACE FUNCTION queue_proxy.shard(q text, project text)
RETURNS integer LANGUAGE sql STABLE PARALLEL SAFE
RETURN COALESCE(get_byte(sha256(convert_to(
    regexp_replace(q, '([.]dead)+$', '') || ' ' || project, 'UTF8')), 0), 0);
COMMENT ON FUNCTION queue_proxy.shard(text, text) IS
'the shard of a queue of a project; 0 if one of them is NULL';

CREATE OR REPLACE FUNCTION @extschema@.queue_shard(q text, project text = NULL)
RETURNS integer LANGUAGE plpgsql STABLE PARALLEL SAFE
AS $$
BEGIN
    IF q IS NULL THEN
        RAISE EXCEPTION 'parameter "q" must not be null'
            USING ERRCODE = 'null_value_not_allowed', HINT = 'Give a value for "q".';
    ELSIF q OPERATOR(pg_catalog.!~) '^[A-Za-z0-9_.:/-]{1,64}$' THEN
        RAISE EXCEPTION 'parameter "q" is not a valid queue name: "%"', q
            USING ERRCODE = 'invalid_parameter_value',
            HINT = 'A name is 1 to 64 characters out of letters, digits, and the signs _ - . : / only.';
    END IF;
    RETURN queue_proxy.shard(q, (queue_proxy.settings(project, NULL))[1]);
END
$$;
COMMENT ON FUNCTION @extschema@.queue_shard(text, text) IS
'the shard of a queue of a project (NULL: the session''s), 0 to 255, whether or not the queue exists: the first byte of the SHA-256 of the name without all trailing ".dead", a space and the project, in UTF-8. Errors: 22004/22023 argument';

-- The options of the shards are p0 to p255, or partition_0 to partition_255, of both of
-- which ltrim() leaves the number.  No other option begins with a p.  A regular expression
-- would take most of the time of a call.
CREATE OR REPLACE FUNCTION queue_proxy.servers()
RETURNS TABLE (shard integer, shards integer[]) LANGUAGE sql STABLE ROWS 10
BEGIN ATOMIC
    SELECT min(p.shard), array_agg(p.shard)
    FROM (SELECT ltrim(o.option_name, 'partition_')::integer AS shard, o.option_value
          FROM pg_foreign_server AS s
               CROSS JOIN LATERAL pg_options_to_table(s.srvoptions) AS o
          WHERE s.srvname = 'queue' AND o.option_name LIKE 'p%') AS p
    GROUP BY p.option_value
    ORDER BY random();
END;
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
RETURNS SETOF integer LANGUAGE sql STABLE ROWS 1
RETURN COALESCE((SELECT (s.xmin::text::bigint - 2147483648)::integer
                 FROM pg_foreign_server AS s WHERE s.srvname = 'queue'), 0);
COMMENT ON FUNCTION plproxy.get_cluster_version(text) IS
'for PL/Proxy: the version of what the other two functions return';

CREATE OR REPLACE FUNCTION plproxy.get_cluster_config(
    cluster_name text, OUT key text, OUT val text)
RETURNS SETOF record LANGUAGE sql STABLE
BEGIN ATOMIC
    SELECT o.option_name, o.option_value
    FROM pg_foreign_server AS s
         CROSS JOIN LATERAL pg_options_to_table(s.srvoptions) AS o
    WHERE s.srvname = 'queue' AND o.option_name NOT LIKE 'p%';
END;
COMMENT ON FUNCTION plproxy.get_cluster_config(text) IS
'for PL/Proxy: the options of the foreign server "queue" that are no connection strings';

CREATE OR REPLACE FUNCTION plproxy.get_cluster_partitions(cluster_name text)
RETURNS SETOF text LANGUAGE plpgsql STABLE ROWS 256
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
        WHERE o.option_name LIKE 'p%' ORDER BY n
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
RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
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
    -- As queue_shard_init(): shard s is on server k if s % n = k % n.
    SELECT string_agg(format('p%s %L', s, connections[(s + n - 1) % n + 1]), ', ')
        INTO options FROM generate_series(0, 255) AS s;
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
-- What calls need
--

-- An error of the queue's server is raised as it was there.
CREATE OR REPLACE FUNCTION queue_proxy.reraise(state text, message text, detail text, hint text)
RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
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

-- Such errors are PL/Proxy's own, or come from a server that ends, or from a pooler.
CREATE OR REPLACE FUNCTION queue_proxy.is_down(state text, message text)
RETURNS boolean LANGUAGE sql IMMUTABLE
RETURN state ~ '^(08|57P)' OR state = '53300'
    OR state = 'XX000' AND message ~ '^PL/Proxy function |\] REMOTE (FATAL|\(null\)): ';
COMMENT ON FUNCTION queue_proxy.is_down(text, text) IS
'true: an error with this SQLSTATE and message means that a server does not answer';

-- They become those of the call's transaction on the server, by
-- queue_router.call_settings().  NULL: as they are for the role there.
CREATE OR REPLACE FUNCTION queue_proxy.settings(project text, client_id text)
RETURNS text[] LANGUAGE sql STABLE
RETURN ARRAY[
    COALESCE(project, current_setting('queue.project', true), ''),
    COALESCE(client_id, current_setting('queue.client_id', true)),
    current_setting('queue.durable_claims', true),
    NULLIF(current_setting('lock_timeout'), '0'),
    NULLIF(current_setting('transaction_read_only'), 'off')];
COMMENT ON FUNCTION queue_proxy.settings(text, text) IS
'the session''s settings that change what a call does: project, client id, durable_claims, lock_timeout, transaction_read_only';

CREATE OR REPLACE FUNCTION queue_proxy.commit_error()
RETURNS text LANGUAGE plpgsql
AS $$
BEGIN
    COMMIT;
EXCEPTION WHEN invalid_transaction_termination THEN
    RETURN SQLERRM;
END
$$;
COMMENT ON FUNCTION queue_proxy.commit_error() IS
'the message of the error that COMMIT raises where the transaction cannot end';

-- Waits on the server for two seconds at a time, so that nothing is left there for longer
-- if this session ends.  A COMMIT fails in a transaction block for the same reason as in a
-- function; else because of the exception block.
CREATE OR REPLACE PROCEDURE @extschema@.queue_wait(q text, timeout_ms integer,
    INOUT ready boolean = NULL, project text = NULL, client_id text = NULL)
LANGUAGE plpgsql
AS $$
DECLARE
    _until timestamp with time zone := pg_catalog.clock_timestamp()
        OPERATOR(pg_catalog.+) pg_catalog.make_interval(secs => $2 OPERATOR(pg_catalog./) 1000.0);
    _ms integer := $2;
BEGIN
    IF $2 OPERATOR(pg_catalog.>) 0 THEN
        BEGIN
            COMMIT;
        EXCEPTION WHEN invalid_transaction_termination THEN
            IF SQLERRM OPERATOR(pg_catalog.=) queue_proxy.commit_error() THEN
                RAISE EXCEPTION 'queue_wait() cannot wait here'
                    USING ERRCODE = 'active_sql_transaction',
                    DETAIL = 'It cannot be called inside a transaction block, a function, or a procedure with SECURITY DEFINER or SET.',
                    HINT = 'Call it by itself, with autocommit, or with a timeout of 0 to check once.';
            END IF;
        END;
    END IF;
    LOOP
        $3 := queue_proxy.wait_call($1, LEAST(_ms, 2000), $4, $5);
        _ms := pg_catalog.ceil(1000 OPERATOR(pg_catalog.*) EXTRACT(epoch FROM
            _until OPERATOR(pg_catalog.-) pg_catalog.clock_timestamp()));
        EXIT WHEN $3 OR _ms OPERATOR(pg_catalog.<=) 0;
        COMMIT;
    END LOOP;
END
$$;
COMMENT ON PROCEDURE @extschema@.queue_wait(text, integer, boolean, text, text) IS
'waits until queue q has something to claim, at most timeout_ms milliseconds (0 checks once); ready: whether it has. Errors: 22004 and 22023 arguments, 42501 no right to claim, 25006 read-only, 25001 unless timeout_ms is 0: called in a transaction block, a pipeline, a function, or a procedure with SECURITY DEFINER or SET. Source: Amazon SQS, long polling';

--
-- Functions
--
-- Each public routine of queue gets one of the same name, arguments and result, with the
-- arguments "project" and "client_id" at the end.  Below it is a function of PL/Proxy in
-- schema queue_proxy, which calls the routine on a server that has a shard, or on several
-- servers, in one statement that first makes the session's settings those of its
-- transaction there.  Its first two arguments are the settings, and the shard or shards.
--
-- "how": a routine that is called "alone" cannot become part of a transaction that has
-- changed something.  One that may be called "anywhere" changes nothing, or can be repeated
-- if the transaction is rolled back.  Others cannot be called; "how" is the error's hint.
--
-- A routine with an argument "q" is called on the server of that queue, and another one on
-- any server, unless it has a body of its own in the second table.  One with "variables" is
-- a loop over servers, whose end passes over those that do not answer.
--
DO $do$
DECLARE
    before oid[] := current_setting('queue_update.before');
    made oid[] := ARRAY['@extschema@.queue_shard(text, text)',
        '@extschema@.queue_wait(text, integer, boolean, text, text)']::regprocedure[];
    grants text := '';
    init_privs pg_init_privs[];
    r record;
BEGIN
    FOR r IN
    WITH signatures (how, list) AS (VALUES
    ('alone', $$
    batch_create(name text = NULL, keep_open boolean = false, q text = NULL) RETURNS bigint;
    claim_complete(q text, claim_id text) RETURNS bigint;
    claim_next(q text, claim_id text, ttl integer = 300, grace integer = 60,
        "limit" integer = NULL) RETURNS SETOF queue_message;
    claim_release(q text, claim_id text, delay integer = 0, failed boolean = false)
        RETURNS bigint;
    claim_renew(q text, claim_id text, ttl integer, grace integer = NULL) RETURNS timestamptz;
    job_handler(q text, handler regprocedure, concurrency integer = 1, timeout integer = NULL,
        rate real = NULL, teardown regprocedure = NULL) RETURNS void;
    job_root(q text, signature text, at timestamptz = NULL) RETURNS jsonb;
    message_bury(q text, id bigint, claim_id text, error text) RETURNS void;
    message_cancel(q text, id bigint, reason text = NULL) RETURNS text;
    message_complete(q text, id bigint, claim_id text, result jsonb = NULL) RETURNS boolean;
    message_delete(q text, id bigint, claim_id text = NULL) RETURNS boolean;
    message_retry(q text, id bigint, claim_id text, error text = NULL, delay integer = NULL)
        RETURNS timestamptz;
    messages_bury(q text, ids bigint[], error text) RETURNS bigint;
    messages_cancel(q text, ids bigint[], reason text = NULL) RETURNS bigint;
    messages_delete(q text, ids bigint[], claim_id text = NULL) RETURNS bigint;
    messages_run_now(q text, ids bigint[]) RETURNS bigint;
    queue_cancel_where(q text, filter jsonb, reason text = NULL) RETURNS bigint;
    queue_claim(q text, ttl integer = 300, grace integer = 60, "limit" integer = NULL)
        RETURNS SETOF queue_message;
    queue_claim_any(queues text[] = NULL, ttl integer = 300, grace integer = 60,
        "limit" integer = NULL) RETURNS SETOF queue_message;
    queue_create(q text, metadata jsonb = '{}') RETURNS boolean;
    queue_drop(q text) RETURNS boolean;
    queue_grant(q text, role regrole, privilege text) RETURNS void;
    queue_pause(q text) RETURNS boolean;
    queue_pop(q text, "limit" integer = 1) RETURNS SETOF queue_message;
    queue_post(q text, messages jsonb) RETURNS bigint[];
    queue_purge(q text) RETURNS bigint;
    queue_push(q text, body jsonb, ttl integer = NULL, delay integer = NULL,
        priority integer = 0, dedup_key text = NULL, group_key text = NULL, headers jsonb = NULL,
        batch bigint = NULL, after bigint = NULL, after_success boolean = false,
        at timestamptz = NULL, dedup text = 'waiting', dedup_for integer = NULL) RETURNS bigint;
    queue_push_batch(q text, bodies jsonb[], ttl integer = NULL, delay integer = NULL,
        priority integer = 0, group_keys text[] = NULL, batch bigint = NULL, after bigint = NULL,
        after_success boolean = false, at timestamptz = NULL) RETURNS bigint[];
    queue_redrive(q text, target text = NULL, "limit" integer = NULL, ids bigint[] = NULL)
        RETURNS bigint;
    queue_resume(q text) RETURNS boolean;
    queue_revoke(q text, role regrole, privilege text) RETURNS void;
    queue_set_metadata(q text, metadata jsonb) RETURNS jsonb;
    queue_set_owner(q text, role regrole) RETURNS void;
    queue_step(q text, claim_id text = NULL, done bigint[] = NULL, failed jsonb = NULL,
        push jsonb = NULL, ttl integer = 300, grace integer = 60, "limit" integer = NULL)
        RETURNS SETOF queue_message;
    queue_update(q text, patch jsonb) RETURNS jsonb;$$),
    ('anywhere', $$
    claim_get(q text, claim_id text) RETURNS TABLE (claim_id text, ttl integer, age integer,
        grace integer, expires_at timestamptz, message_count integer);
    claim_messages(q text, claim_id text) RETURNS SETOF queue_message;
    job_errors(q text, "limit" integer = 100, marker timestamptz = NULL)
        RETURNS TABLE (message_id bigint, attempt integer, at timestamptz, error text);
    job_list(q text = NULL) RETURNS TABLE (queue text, handler text, state text, reason text,
        concurrency integer, running integer, message_id bigint, pid integer,
        running_since timestamptz, progress jsonb);
    job_stats(q text) RETURNS TABLE (claimed bigint, completed bigint, retried bigint,
        abandoned bigint, duplicates bigint, expired bigint, since timestamptz, last_error text,
        last_error_at timestamptz);
    message_finished(q text, id bigint) RETURNS TABLE (id bigint, queue text, group_key text,
        batch bigint, outcome text, pushed_at timestamptz, finished_at timestamptz,
        attempts integer, result jsonb, error text, body jsonb);
    message_get(q text, id bigint) RETURNS SETOF queue_message;
    message_result(q text, id bigint) RETURNS jsonb;
    messages_get(q text, ids bigint[]) RETURNS SETOF queue_message;
    queue_browse(q text, state text = NULL, filter jsonb = NULL, marker bigint = NULL,
        "limit" integer = 100) RETURNS TABLE (id bigint, state text, body jsonb, headers jsonb,
        priority integer, group_key text, dedup_key text, batch bigint, after bigint,
        claim_count integer, created_at timestamptz, due_at timestamptz,
        claimed_until timestamptz, expires_at timestamptz, last_error text);
    queue_dead_letters(q text, "limit" integer = 10, marker bigint = NULL)
        RETURNS TABLE (id bigint, body jsonb, origin_queue text, origin_id bigint, reason text,
        last_error text, claim_count integer, died_at timestamptz);
    queue_dedup_key(body jsonb, ignore text[] = '{}') RETURNS text;
    queue_depth(q text = NULL) RETURNS TABLE (queue text, free bigint, claimed bigint,
        delayed bigint, dead_letters bigint, oldest_age integer, paused boolean, last_error text,
        last_error_at timestamptz);
    queue_exists(q text) RETURNS boolean;
    queue_finished(q text, marker bigint = NULL, "limit" integer = 10, outcome text = NULL)
        RETURNS TABLE (id bigint, queue text, group_key text, batch bigint, outcome text,
        pushed_at timestamptz, finished_at timestamptz, attempts integer, result jsonb,
        error text, body jsonb);
    queue_get(q text) RETURNS TABLE (name text, metadata jsonb, created_at timestamptz,
        paused boolean);
    queue_groups(q text, marker text = NULL, "limit" integer = 10) RETURNS TABLE (group_key text,
        free bigint, claimed bigint, delayed bigint, oldest_age integer);
    queue_is_empty(q text) RETURNS boolean;
    queue_list(marker text = NULL, "limit" integer = 10, pattern text = NULL)
        RETURNS TABLE (name text, metadata jsonb, created_at timestamptz, paused boolean);
    queue_messages(q text, marker bigint = NULL, "limit" integer = 10, echo boolean = false,
        include_claimed boolean = false, include_delayed boolean = false)
        RETURNS SETOF queue_message;
    queue_push_once(q text, origin text, origin_id bigint, body jsonb, ttl integer = NULL,
        delay integer = NULL, priority integer = 0, dedup_key text = NULL, group_key text = NULL,
        headers jsonb = NULL, batch bigint = NULL, after bigint = NULL,
        after_success boolean = false, at timestamptz = NULL, dedup text = 'waiting',
        dedup_for integer = NULL) RETURNS bigint;
    queue_ready() RETURNS SETOF text;
    queue_router.wait(q text, timeout_ms integer) RETURNS boolean;
    queue_stats(q text) RETURNS TABLE (free bigint, claimed bigint, delayed bigint, total bigint,
        oldest_id bigint, oldest_age integer, oldest_created timestamptz, newest_id bigint,
        newest_age integer, newest_created timestamptz);$$),
    ('Connect to the server of the queues of the batch.', $$
    batch_cancel(batch bigint) RETURNS bigint;
    batch_close(batch bigint) RETURNS boolean;
    batch_status(batch bigint) RETURNS TABLE (name text, members bigint, unfinished bigint,
        completed bigint, failed bigint, waiting bigint, created_at timestamptz,
        closed_at timestamptz, finished_at timestamptz);$$),
    ('Connect to each server and call it there.', $$
    batch_list(marker bigint = NULL, "limit" integer = 10) RETURNS TABLE (batch bigint,
        name text, created_at timestamptz, closed_at timestamptz, finished_at timestamptz);
    queue_ready_in_projects() RETURNS TABLE (project text, queue text);
    queue_shard_init(server integer, servers integer) RETURNS void;$$),
    ('Only pg_cron calls this function, on the server of the queue.', $$
    job_due(schedule integer) RETURNS boolean;$$),
    ('Only a handler calls this function, on the server of its queue.', $$
    job_progress(done bigint, total bigint = NULL, note text = NULL) RETURNS void;
    job_result(result jsonb) RETURNS void;$$),
    ('Connect to the server of the queues.', $$
    job_run(queues text[] = NULL, max_jobs integer = NULL, max_time integer = NULL,
        INOUT result jsonb = NULL);$$),
    ('Connect to the server of the queue, or poll message_result().', $$
    queue_await(q text, id bigint, timeout_ms integer = NULL, INOUT result jsonb = NULL);$$),
    ('LISTEN on a direct connection to the server of the queue, or use queue_wait().', $$
    queue_channel(q text) RETURNS text;$$),
    ('Call queue_push(), or connect to the server of the queue.', $$
    queue_push_lazy(q text, body jsonb, ttl integer = NULL, delay integer = NULL,
        priority integer = 0, dedup_key text = NULL, group_key text = NULL, headers jsonb = NULL,
        at timestamptz = NULL, dedup text = 'waiting', dedup_for integer = NULL) RETURNS void;$$),
    ('The bound queues would be on several servers. Push to each queue.', $$
    topic_bind(pattern text, q text, filter jsonb = NULL, publishers regrole[] = NULL)
        RETURNS boolean;
    topic_list(marker text = NULL, "limit" integer = 10, q text = NULL)
        RETURNS TABLE (pattern text, queue text, filter jsonb, publishers regrole[],
        bound_at timestamptz);
    topic_publish(topic text, body jsonb, headers jsonb = NULL, ttl integer = NULL,
        delay integer = NULL, priority integer = 0, group_key text = NULL, dedup_key text = NULL,
        at timestamptz = NULL) RETURNS bigint;
    topic_unbind(pattern text, q text) RETURNS boolean;$$)
    ), special (name, variables, body) AS (VALUES
    -- The messages may name the queues.  All messages of a call have to be on one
    -- server: that of the first one.
    ('queue_post', NULL, $$RETURN (SELECT p FROM queue_proxy.queue_post(_settings,
        ARRAY[queue_proxy.shard(COALESCE($1, ($2 OPERATOR(pg_catalog.->) 0)
            OPERATOR(pg_catalog.->>) 'queue'), _settings[1])], $1, $2) AS p);$$),
    -- The first of all servers' names.  They are asked even if the limit is too low.
    ('queue_list', NULL, $$RETURN QUERY SELECT * FROM queue_proxy.queue_list(_settings,
        ARRAY(SELECT s.shard FROM queue_proxy.servers() AS s), $1, $2, $3) AS l
        ORDER BY l.name COLLATE pg_catalog."C" LIMIT GREATEST($2, 1);$$),
    -- From the server of the queue, or from all
    ('job_list', NULL, $$RETURN QUERY SELECT * FROM queue_proxy.job_list(_settings,
        CASE WHEN $1 IS NULL THEN ARRAY(SELECT s.shard FROM queue_proxy.servers() AS s)
             ELSE ARRAY[queue_proxy.shard($1, _settings[1])] END, $1);$$),
    ('queue_depth', NULL, $$RETURN QUERY SELECT * FROM queue_proxy.queue_depth(_settings,
        CASE WHEN $1 IS NULL THEN ARRAY(SELECT s.shard FROM queue_proxy.servers() AS s)
             ELSE ARRAY[queue_proxy.shard($1, _settings[1])] END, $1) AS d
        ORDER BY d.queue COLLATE pg_catalog."C";$$),
    -- Those of the servers that answer: of all at once, or else of one after the other
    ('queue_ready', '', $$BEGIN
        RETURN QUERY SELECT queue_proxy.queue_ready(_settings,
            ARRAY(SELECT s.shard FROM queue_proxy.servers() AS s));
        RETURN;
    EXCEPTION WHEN OTHERS THEN
        IF NOT queue_proxy.is_down(SQLSTATE, SQLERRM) THEN
            RAISE;
        END IF;
    END;
    FOR _shard IN SELECT s.shard FROM queue_proxy.servers() AS s LOOP
        BEGIN
            RETURN QUERY SELECT queue_proxy.queue_ready(_settings, ARRAY[_shard]);
            _answered := true;$$),
    -- From the first server that has something free, beginning with any.  An array
    -- that no server accepts goes to one as it is, for the error.
    ('queue_claim_any', '_queues pg_catalog.text[];
    _one boolean := $1 IS NOT NULL
        AND (pg_catalog.cardinality($1) OPERATOR(pg_catalog.=) 0
             OR EXISTS (SELECT FROM pg_catalog.unnest($1) AS u (name)
                        WHERE u.name IS NULL OR u.name OPERATOR(pg_catalog.!~)
                              ''^[A-Za-z0-9_.:/-]{1,64}$''));', $$FOR _shard, _queues IN
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
            RETURN QUERY SELECT * FROM queue_proxy.queue_claim_any(_settings,
                ARRAY[_shard], _queues, $2, $3, $4);
            _answered := true;
            IF FOUND OR _one THEN
                RETURN;
            END IF;$$)
    ), routine AS (
        SELECT s.how, s.how IN ('alone', 'anywhere') AS is_called, m.schema, m.name, m.returns,
               m.returns ~ '^(TABLE|SETOF) ' AS is_set, a.*,
               concat_ws(', ', NULLIF(replace(m.arguments, 'regprocedure', 'text'), ''),
                         'project text = NULL, client_id text = NULL') AS all_arguments,
               concat_ws(', ', a.types, 'text, text') AS all_types,
               -- PL/pgSQL does not allow an argument and a column of the result to have
               -- the same name, so that takes a function of SQL around it.  So does what
               -- is not for users.
               m.schema = 'queue_router'
               OR a.names && ARRAY(SELECT c[1] FROM regexp_matches(m.returns, '[(,] ?(\S+) ', 'g')
                                   AS c) AS is_below,
               '_shard integer; _answered boolean := false; ' || b.variables AS variables,
               b.body || CASE WHEN b.variables IS NULL THEN '' ELSE $$
        EXCEPTION WHEN OTHERS THEN
            _message := SQLERRM;
            IF NOT queue_proxy.is_down(SQLSTATE, _message) THEN
                RAISE;
            END IF;
            RAISE WARNING 'the server of shard % does not answer', _shard
                USING DETAIL = _message;
        END;
    END LOOP;
    IF NOT _answered THEN
        PERFORM plproxy.get_cluster_partitions(''); -- an error if there are none
        RAISE EXCEPTION 'no server answers'
            USING ERRCODE = 'internal_error', DETAIL = _message;
    END IF;$$ END AS body
        FROM signatures AS s
             CROSS JOIN LATERAL
             (SELECT COALESCE(m[1], '@extschema@'), m[2], m[3],
                     replace(m[4], 'queue_message', '@extschema@.queue_message')
              FROM regexp_matches(regexp_replace(s.list, '\s+', ' ', 'g'),
                                  '(?:(\w+)\.)?(\w+)\(([^)]*)\)(?: RETURNS ([^;]+))?;', 'g')
              AS m) AS m (schema, name, arguments, returns)
             LEFT JOIN special AS b ON b.name = m.name
             CROSS JOIN LATERAL
             (SELECT array_agg(m[1]) || '{project,client_id}' AS names,
                     -- Functions need not exist in the router's database.  PL/Proxy adds
                     -- the types that its function has to the arguments of the call.
                     string_agg(replace(m[2], 'regprocedure', 'text'), ', ' ORDER BY i) AS types,
                     string_agg(concat('$', i + 2, '::' || substring(m[2], 'regprocedure')), ', '
                                ORDER BY i) AS called,
                     string_agg('$' || i, ', ' ORDER BY i) AS passed,
                     format('queue_proxy.settings($%s, $%s)', count(*) + 1, count(*) + 2) AS settings,
                     COALESCE('queue_proxy.shard($' || min(i) FILTER (WHERE m[1] = 'q')
                                  || ', _settings[1])',
                              '(SELECT s.shard FROM queue_proxy.servers() AS s LIMIT 1)')
                         AS shard
              FROM regexp_matches(m.arguments, '(?:INOUT )?(\S+) (\S+?)(?: = [^,]+)?(?:, |$)', 'g')
                   WITH ORDINALITY AS x (m, i)) AS a)
    -- What is created: the function below, the one for users, that of SQL around it
    SELECT b.how, v.*, format('%s.%s(%s)', v.schema, v.name, v.types) AS routine,
           CASE WHEN b.returns IS NULL THEN 'PROCEDURE' ELSE 'FUNCTION' END AS kind
    FROM routine AS b CROSS JOIN LATERAL (VALUES
        -- The settings come first, as arguments are evaluated before the call.  A routine
        -- without arguments gets none.
        (1, b.is_called, 'queue_proxy', b.name,
         concat_ws(', ', 'text[]', CASE WHEN b.body IS NULL THEN 'integer' ELSE 'integer[]' END,
                   b.types), NULL,
         CASE WHEN b.body IS NULL OR b.is_set THEN '' ELSE 'SETOF ' END || b.returns, 'plproxy',
         format(CASE WHEN b.types IS NULL THEN $t$CLUSTER '';
RUN ON %s;
SELECT %s.%s() FROM (SELECT queue_router.call_settings($1) OFFSET 0) AS s;$t$ ELSE $t$CLUSTER '';
RUN ON %s;
SELECT f.* FROM %s.%s(%s) AS f;$t$ END,
                CASE WHEN b.body IS NULL THEN '$2' ELSE 'pg_catalog.unnest($2)' END,
                b.schema, b.name, regexp_replace(b.called, '^[^,]+',
                    'CASE WHEN queue_router.call_settings($1) THEN \& END'))),
        (2, true, CASE WHEN b.is_below THEN 'queue_proxy' ELSE '@extschema@' END,
         b.name || CASE WHEN b.is_below THEN '_call' ELSE '' END, b.all_types,
         CASE WHEN b.is_below THEN b.all_types ELSE b.all_arguments END, b.returns, 'plpgsql',
         format($t$DECLARE
    _settings pg_catalog.text[] := %s;
    _message pg_catalog.text; _detail pg_catalog.text; _hint pg_catalog.text;
    %s
BEGIN
%s    %s
EXCEPTION WHEN OTHERS OR query_canceled THEN
    GET STACKED DIAGNOSTICS _message = MESSAGE_TEXT,
        _detail = PG_EXCEPTION_DETAIL, _hint = PG_EXCEPTION_HINT;
    PERFORM queue_proxy.reraise(SQLSTATE, _message, _detail, _hint);
END$t$, b.settings, b.variables,
    -- A call commits on its server, so it cannot become part of a transaction that has
    -- done other work.
    CASE b.how WHEN 'alone' THEN format(
$t$    IF pg_catalog.pg_current_xact_id_if_assigned() IS NOT NULL THEN
        RAISE EXCEPTION '%s() cannot be called in a transaction that has changed something'
            USING ERRCODE = 'active_sql_transaction',
            DETAIL = 'Through a router, it is a transaction of its own on the server of the queue.',
            HINT = 'Connect to the server of the queue, or call it in a transaction of its own.';
    END IF;
$t$, b.name) END,
    CASE WHEN NOT b.is_called
    THEN format($t$RAISE EXCEPTION '%s() cannot be called through a router'
        USING ERRCODE = 'feature_not_supported', HINT = '%s';$t$, b.name, b.how)
    ELSE COALESCE(b.body, format('%squeue_proxy.%s(%s);',
        CASE WHEN b.is_set THEN 'RETURN QUERY SELECT * FROM '
             WHEN b.returns = 'void' THEN 'PERFORM ' ELSE 'RETURN ' END,
        b.name, concat_ws(', ', '_settings', b.shard, b.passed))) END)),
        (3, b.is_below AND b.schema = '@extschema@', '@extschema@', b.name, b.all_types,
         b.all_arguments, b.returns, 'sql',
         format('SELECT * FROM queue_proxy.%s_call(%s)', b.name,
                concat_ws(', ', b.passed, 'project, client_id'))))
        AS v (place, is_made, schema, name, types, arguments, returns, language, source)
    WHERE v.is_made ORDER BY b.name, v.place
    LOOP
        EXECUTE format(E'CREATE OR REPLACE %s %s.%s(%s)%s LANGUAGE %s%s AS $$\n%s\n$$', r.kind,
            r.schema, r.name, COALESCE(r.arguments, r.types), ' RETURNS ' || r.returns, r.language,
            CASE WHEN r.returns ~ '^(TABLE|SETOF) ' THEN ' ROWS 10' END, r.source);
        made := made || r.routine::regprocedure::oid;
        IF r.schema = '@extschema@' THEN
            EXECUTE format('COMMENT ON %s %s IS %L', r.kind, r.routine, CASE
                WHEN r.how NOT IN ('alone', 'anywhere')
                THEN 'raises an error, 0A000: it cannot be called through a router'
                ELSE format('as %s() of the extension queue, called through a router; project, client_id: of this call (NULL: of the session). Errors: as there%s', r.name,
                    CASE r.how WHEN 'alone' THEN '; 25001 the transaction has changed something' END) END);
        END IF;
    END LOOP;

    -- Those of an earlier version.  One of the same name gets the privileges that they had.
    FOR r IN
        SELECT p.oid::regprocedure AS routine, n.oid::regprocedure AS new, a.grants
        FROM unnest(before) AS b (oid)
             JOIN pg_proc AS p ON p.oid = b.oid
             JOIN pg_language AS l ON l.oid = p.prolang
             LEFT JOIN pg_proc AS n ON n.oid = ANY (made) AND n.oid <> ALL (before)
                 AND n.pronamespace = p.pronamespace AND n.proname = p.proname
             CROSS JOIN LATERAL
             (SELECT string_agg(format(
                         'GRANT EXECUTE ON ROUTINE %s TO %s%s; ', n.oid::regprocedure,
                         CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE a.grantee::regrole::text END,
                         CASE WHEN a.is_grantable THEN ' WITH GRANT OPTION' END), '')
              FROM aclexplode(p.proacl) AS a WHERE a.grantee <> p.proowner) AS a (grants)
        WHERE p.oid <> ALL (made)
        AND (p.pronamespace = '@extschema@'::regnamespace OR l.lanname = 'plproxy'
             OR p.proname ~ '_call$')
    LOOP
        EXECUTE format('DROP ROUTINE %s', r.routine);
        IF r.new IS NOT NULL THEN
            grants := concat(grants, format('REVOKE EXECUTE ON ROUTINE %s
                FROM queue_producer, queue_consumer, queue_admin; ', r.new), r.grants);
        END IF;
    END LOOP;

    -- Privileges of the functions that are new
    FOR r IN
        SELECT d.objid::regprocedure AS routine
        FROM pg_depend AS d JOIN pg_extension AS e ON e.oid = d.refobjid
        WHERE d.classid = 'pg_proc'::regclass AND d.refclassid = 'pg_extension'::regclass
        AND d.deptype = 'e' AND e.extname = 'queue_proxy' AND d.objid <> ALL (before)
    LOOP
        EXECUTE format('REVOKE ALL ON ROUTINE %s FROM PUBLIC', r.routine);
        CONTINUE WHEN r.routine = 'queue_proxy.set_servers(text[])'::regprocedure;
        EXECUTE format('GRANT EXECUTE ON ROUTINE %s
            TO queue_producer, queue_consumer, queue_admin', r.routine);
    END LOOP;

    -- Those that earlier ones had are no part of the extension: pg_dump has to write them.
    init_privs := ARRAY(SELECT i FROM pg_init_privs AS i WHERE i.classoid = 'pg_proc'::regclass);
    EXECUTE grants;
    UPDATE pg_init_privs AS i SET initprivs = b.initprivs
    FROM unnest(init_privs) AS b
    WHERE i.objoid = b.objoid AND i.classoid = b.classoid;
END
$do$;
