/* src/proxy/queue_proxy--1.1--1.2.sql; made by src/proxy/generate, do not edit */

-- complain if script is sourced in psql, rather than via ALTER EXTENSION
\echo Use "ALTER EXTENSION queue_proxy UPDATE TO '1.2'" to load this file. \quit

--
-- The foreign server
--
-- PL/Proxy does not use it as such any more, so it needs no user mappings and no
-- USAGE.  With USAGE, each role could make a user mapping that named another user.
--
DO $$
DECLARE
    r record;
BEGIN
    FOR r IN
        SELECT CASE WHEN m.umuser OPERATOR(pg_catalog.=) 0 THEN 'PUBLIC'
                    ELSE pg_catalog.quote_ident(
                        pg_catalog.pg_get_userbyid(m.umuser)) END AS role_name,
               m.umoptions IS NOT NULL AS has_options
        FROM pg_catalog.pg_user_mapping AS m
             JOIN pg_catalog.pg_foreign_server AS s
                 ON s.oid OPERATOR(pg_catalog.=) m.umserver
             JOIN pg_catalog.pg_foreign_data_wrapper AS w
                 ON w.oid OPERATOR(pg_catalog.=) s.srvfdw
        WHERE s.srvname OPERATOR(pg_catalog.=) 'queue'
          AND w.fdwname OPERATOR(pg_catalog.=) 'plproxy'
    LOOP
        EXECUTE pg_catalog.format('DROP USER MAPPING FOR %s SERVER queue', r.role_name);
        IF r.has_options THEN
            RAISE WARNING 'the user mapping of % for foreign server "queue" is dropped',
                r.role_name
                USING DETAIL = 'Its options had a user or a password.',
                HINT = 'If it was not you who made it, find out what that user has done on the servers. Passwords belong into a password file: see "The router" in doc/scaling.md.';
        END IF;
    END LOOP;
    FOR r IN
        SELECT DISTINCT CASE WHEN a.grantee OPERATOR(pg_catalog.=) 0 THEN 'PUBLIC'
                    ELSE pg_catalog.quote_ident(
                        pg_catalog.pg_get_userbyid(a.grantee)) END AS role_name
        FROM pg_catalog.pg_foreign_server AS s
             JOIN pg_catalog.pg_foreign_data_wrapper AS w
                 ON w.oid OPERATOR(pg_catalog.=) s.srvfdw
             CROSS JOIN LATERAL pg_catalog.aclexplode(s.srvacl) AS a
        WHERE s.srvname OPERATOR(pg_catalog.=) 'queue'
          AND w.fdwname OPERATOR(pg_catalog.=) 'plproxy'
          AND a.grantee OPERATOR(pg_catalog.<>) s.srvowner
    LOOP
        EXECUTE pg_catalog.format(
            'REVOKE ALL ON FOREIGN SERVER queue FROM %s CASCADE', r.role_name);
    END LOOP;
END
$$;

--
-- The privileges of the functions that exist stay as they are.
--
SELECT pg_catalog.set_config('queue_update.routines', ARRAY(
    SELECT d.objid
    FROM pg_catalog.pg_depend AS d
         JOIN pg_catalog.pg_extension AS e
             ON e.oid OPERATOR(pg_catalog.=) d.refobjid
    WHERE d.classid OPERATOR(pg_catalog.=) 'pg_catalog.pg_proc'::regclass
      AND d.refclassid OPERATOR(pg_catalog.=) 'pg_catalog.pg_extension'::regclass
      AND d.deptype OPERATOR(pg_catalog.=) 'e'
      AND e.extname OPERATOR(pg_catalog.=) 'queue_proxy')::text, true);

--
-- The functions that push
--
-- They get the arguments of batches.  A function with further arguments is a new
-- one, so privileges are granted anew, at the end of this file; also what was revoked
-- from the roles of the extension is not granted to them.
--
SELECT pg_catalog.set_config('queue_update.grants', pg_catalog.string_agg(
    pg_catalog.format('REVOKE EXECUTE ON FUNCTION %1$s
        FROM queue_producer, queue_consumer, queue_admin; %2$s', f.name,
        (SELECT pg_catalog.string_agg(
             pg_catalog.format('GRANT EXECUTE ON FUNCTION %s TO %s%s;', f.name,
                 CASE WHEN a.grantee OPERATOR(pg_catalog.=) 0::oid THEN 'PUBLIC'
                      ELSE a.grantee::pg_catalog.regrole::text END,
                 CASE WHEN a.is_grantable THEN ' WITH GRANT OPTION' ELSE '' END), '')
         FROM pg_catalog.aclexplode(p.proacl) AS a
         WHERE a.grantee OPERATOR(pg_catalog.<>) p.proowner)), ''), true)
FROM pg_catalog.pg_proc AS p
     CROSS JOIN LATERAL pg_catalog.format('%s(%s)', p.oid::pg_catalog.regproc,
         pg_catalog.regexp_replace(pg_catalog.oidvectortypes(p.proargtypes),
             '(, [^,]+, [^,]+)$', ', bigint, bigint, boolean\1')) AS f (name)
WHERE p.oid OPERATOR(pg_catalog.=) ANY (ARRAY[
    '@extschema@.queue_push(text, jsonb, integer, integer, integer, text, text, jsonb, text, text)',
    '@extschema@.queue_push_batch(text, jsonb[], integer, integer, integer, text[], text, text)',
    '@extschema@.queue_push_once(text, text, bigint, jsonb, integer, integer, integer, text, text, jsonb, text, text)',
    'queue_proxy.queue_push(text, jsonb, integer, integer, integer, text, text, jsonb, integer, text[])',
    'queue_proxy.queue_push_batch(text, jsonb[], integer, integer, integer, text[], integer, text[])',
    'queue_proxy.queue_push_once(text, text, bigint, jsonb, integer, integer, integer, text, text, jsonb, integer, text[])'
    ]::regprocedure[]::oid[]);
DROP FUNCTION @extschema@.queue_push(text, jsonb, integer, integer, integer, text, text, jsonb, text, text);
DROP FUNCTION @extschema@.queue_push_batch(text, jsonb[], integer, integer, integer, text[], text, text);
DROP FUNCTION @extschema@.queue_push_once(text, text, bigint, jsonb, integer, integer, integer, text, text, jsonb, text, text);
DROP FUNCTION queue_proxy.queue_push(text, jsonb, integer, integer, integer, text, text, jsonb, integer, text[]);
DROP FUNCTION queue_proxy.queue_push_batch(text, jsonb[], integer, integer, integer, text[], integer, text[]);
DROP FUNCTION queue_proxy.queue_push_once(text, text, bigint, jsonb, integer, integer, integer, text, text, jsonb, integer, text[]);

CREATE SCHEMA plproxy;
COMMENT ON SCHEMA plproxy IS 'what PL/Proxy calls to find the servers of the extension queue_proxy';
GRANT USAGE ON SCHEMA plproxy
    TO queue_producer, queue_consumer, queue_admin;

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
REVOKE ALL ON FUNCTION queue_proxy.set_servers(text[]) FROM PUBLIC;

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


CREATE OR REPLACE FUNCTION @extschema@.batch_cancel(
    batch bigint,
    project text DEFAULT NULL,
    client_id text DEFAULT NULL)
RETURNS bigint
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
AS $$
BEGIN
    RAISE EXCEPTION 'batch_cancel() cannot be called through a router'
        USING ERRCODE = 'feature_not_supported',
        HINT = 'Connect to the server of the queues of the batch.';
END
$$;
COMMENT ON FUNCTION @extschema@.batch_cancel(bigint, text, text) IS
'raises an error, 0A000: it cannot be called through a router';

CREATE OR REPLACE FUNCTION @extschema@.batch_close(
    batch bigint,
    project text DEFAULT NULL,
    client_id text DEFAULT NULL)
RETURNS boolean
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
AS $$
BEGIN
    RAISE EXCEPTION 'batch_close() cannot be called through a router'
        USING ERRCODE = 'feature_not_supported',
        HINT = 'Connect to the server of the queues of the batch.';
END
$$;
COMMENT ON FUNCTION @extschema@.batch_close(bigint, text, text) IS
'raises an error, 0A000: it cannot be called through a router';

CREATE OR REPLACE FUNCTION queue_proxy.batch_create(text, boolean, text, integer, text[])
RETURNS bigint
LANGUAGE plproxy VOLATILE PARALLEL UNSAFE
AS $$
CLUSTER '';
RUN ON $4;
SELECT @extschema@.batch_create(
    CASE WHEN queue_router.call_settings($5) THEN $1 END, $2, $3) AS r;
$$;

CREATE OR REPLACE FUNCTION @extschema@.batch_create(
    name text DEFAULT NULL::text,
    keep_open boolean DEFAULT false,
    q text DEFAULT NULL::text,
    project text DEFAULT NULL,
    client_id text DEFAULT NULL)
RETURNS bigint
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
AS $$
DECLARE
    _settings pg_catalog.text[] := queue_proxy.settings($4, $5);
    _message pg_catalog.text;
    _detail pg_catalog.text;
    _hint pg_catalog.text;
BEGIN
    IF pg_catalog.pg_current_xact_id_if_assigned() IS NOT NULL THEN
        PERFORM queue_proxy.refuse_transaction('batch_create');
    END IF;
    RETURN queue_proxy.batch_create($1, $2, $3,
        queue_proxy.shard($3, _settings[1]), _settings);
EXCEPTION WHEN OTHERS OR query_canceled THEN
    GET STACKED DIAGNOSTICS _message = MESSAGE_TEXT,
        _detail = PG_EXCEPTION_DETAIL, _hint = PG_EXCEPTION_HINT;
    PERFORM queue_proxy.reraise(SQLSTATE, _message, _detail, _hint);
END
$$;
COMMENT ON FUNCTION @extschema@.batch_create(text, boolean, text, text, text) IS
'makes a batch of the current role and returns its id, higher than that of any batch before. It finishes when no member is left that is not finished: with keep_open not before batch_close, or 14 days. name: up to 256 bytes, for people. q: only in a sharded database, and required there: a queue of the shard that the batch belongs to. Errors: 22023/22004 argument. Source: Sidekiq Pro, Batch';

CREATE OR REPLACE FUNCTION @extschema@.batch_list(
    marker bigint DEFAULT NULL::bigint,
    "limit" integer DEFAULT 10,
    project text DEFAULT NULL,
    client_id text DEFAULT NULL)
RETURNS TABLE(batch bigint, name text, created_at timestamp with time zone, closed_at timestamp with time zone, finished_at timestamp with time zone)
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE ROWS 10
AS $$
BEGIN
    RAISE EXCEPTION 'batch_list() cannot be called through a router'
        USING ERRCODE = 'feature_not_supported',
        HINT = 'Connect to each server and call it there.';
END
$$;
COMMENT ON FUNCTION @extschema@.batch_list(bigint, integer, text, text) IS
'raises an error, 0A000: it cannot be called through a router';

CREATE OR REPLACE FUNCTION @extschema@.batch_status(
    batch bigint,
    project text DEFAULT NULL,
    client_id text DEFAULT NULL)
RETURNS TABLE(name text, members bigint, unfinished bigint, completed bigint, failed bigint, waiting bigint, created_at timestamp with time zone, closed_at timestamp with time zone, finished_at timestamp with time zone)
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE ROWS 1
AS $$
BEGIN
    RAISE EXCEPTION 'batch_status() cannot be called through a router'
        USING ERRCODE = 'feature_not_supported',
        HINT = 'Connect to the server of the queues of the batch.';
END
$$;
COMMENT ON FUNCTION @extschema@.batch_status(bigint, text, text) IS
'raises an error, 0A000: it cannot be called through a router';

CREATE OR REPLACE FUNCTION queue_proxy.claim_complete(text, text, integer, text[])
RETURNS bigint
LANGUAGE plproxy VOLATILE PARALLEL UNSAFE
AS $$
CLUSTER '';
RUN ON $3;
SELECT @extschema@.claim_complete(
    CASE WHEN queue_router.call_settings($4) THEN $1 END, $2) AS r;
$$;

CREATE OR REPLACE FUNCTION @extschema@.claim_complete(
    q text,
    claim_id text,
    project text DEFAULT NULL,
    client_id text DEFAULT NULL)
RETURNS bigint
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
AS $$
DECLARE
    _settings pg_catalog.text[] := queue_proxy.settings($3, $4);
    _message pg_catalog.text;
    _detail pg_catalog.text;
    _hint pg_catalog.text;
BEGIN
    IF pg_catalog.pg_current_xact_id_if_assigned() IS NOT NULL THEN
        PERFORM queue_proxy.refuse_transaction('claim_complete');
    END IF;
    RETURN queue_proxy.claim_complete($1, $2,
        queue_proxy.shard($1, _settings[1]), _settings);
EXCEPTION WHEN OTHERS OR query_canceled THEN
    GET STACKED DIAGNOSTICS _message = MESSAGE_TEXT,
        _detail = PG_EXCEPTION_DETAIL, _hint = PG_EXCEPTION_HINT;
    PERFORM queue_proxy.reraise(SQLSTATE, _message, _detail, _hint);
END
$$;
COMMENT ON FUNCTION @extschema@.claim_complete(text, text, text, text) IS
'deletes the remaining messages of a claim and returns their number. Errors: QU001 the claim is not live, QU004 a message of it was canceled, 42501. Source: MediaWiki, JobQueue::ack, for a batch';

CREATE OR REPLACE FUNCTION queue_proxy.claim_get(text, text, integer, text[])
RETURNS TABLE(claim_id text, ttl integer, age integer, grace integer, expires_at timestamp with time zone, message_count integer)
LANGUAGE plproxy VOLATILE PARALLEL UNSAFE ROWS 1
AS $$
CLUSTER '';
RUN ON $3;
SELECT f.* FROM @extschema@.claim_get(
    CASE WHEN queue_router.call_settings($4) THEN $1 END, $2) AS f;
$$;

CREATE OR REPLACE FUNCTION queue_proxy.claim_get_call(text, text, text, text)
RETURNS TABLE(claim_id text, ttl integer, age integer, grace integer, expires_at timestamp with time zone, message_count integer)
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE ROWS 1
AS $$
DECLARE
    _settings pg_catalog.text[] := queue_proxy.settings($3, $4);
    _message pg_catalog.text;
    _detail pg_catalog.text;
    _hint pg_catalog.text;
BEGIN
    RETURN QUERY SELECT * FROM queue_proxy.claim_get($1, $2,
        queue_proxy.shard($1, _settings[1]), _settings);
EXCEPTION WHEN OTHERS OR query_canceled THEN
    GET STACKED DIAGNOSTICS _message = MESSAGE_TEXT,
        _detail = PG_EXCEPTION_DETAIL, _hint = PG_EXCEPTION_HINT;
    PERFORM queue_proxy.reraise(SQLSTATE, _message, _detail, _hint);
END
$$;

CREATE OR REPLACE FUNCTION @extschema@.claim_get(
    q text,
    claim_id text,
    project text DEFAULT NULL,
    client_id text DEFAULT NULL)
RETURNS TABLE(claim_id text, ttl integer, age integer, grace integer, expires_at timestamp with time zone, message_count integer)
LANGUAGE sql VOLATILE PARALLEL UNSAFE ROWS 1
AS $$
SELECT * FROM queue_proxy.claim_get_call($1, $2, $3, $4)
$$;
COMMENT ON FUNCTION @extschema@.claim_get(text, text, text, text) IS
'describes a live claim in one row: for how many seconds it was claimed or renewed, how many have passed since, its grace in seconds, when it ends, how many messages it has, without those that were canceled. No row: the id is NULL, malformed, unknown or not live. Errors: 42501. Source: Zaqar, query claim';

CREATE OR REPLACE FUNCTION queue_proxy.claim_messages(text, text, integer, text[])
RETURNS SETOF @extschema@.queue_message
LANGUAGE plproxy VOLATILE PARALLEL UNSAFE ROWS 10
AS $$
CLUSTER '';
RUN ON $3;
SELECT f.* FROM @extschema@.claim_messages(
    CASE WHEN queue_router.call_settings($4) THEN $1 END, $2) AS f;
$$;

CREATE OR REPLACE FUNCTION @extschema@.claim_messages(
    q text,
    claim_id text,
    project text DEFAULT NULL,
    client_id text DEFAULT NULL)
RETURNS SETOF @extschema@.queue_message
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE ROWS 10
AS $$
DECLARE
    _settings pg_catalog.text[] := queue_proxy.settings($3, $4);
    _message pg_catalog.text;
    _detail pg_catalog.text;
    _hint pg_catalog.text;
BEGIN
    RETURN QUERY SELECT * FROM queue_proxy.claim_messages($1, $2,
        queue_proxy.shard($1, _settings[1]), _settings);
EXCEPTION WHEN OTHERS OR query_canceled THEN
    GET STACKED DIAGNOSTICS _message = MESSAGE_TEXT,
        _detail = PG_EXCEPTION_DETAIL, _hint = PG_EXCEPTION_HINT;
    PERFORM queue_proxy.reraise(SQLSTATE, _message, _detail, _hint);
END
$$;
COMMENT ON FUNCTION @extschema@.claim_messages(text, text, text, text) IS
'the messages that are still in a live claim, without those that were canceled, highest priority first, oldest first. No row: the id is NULL, malformed, unknown or not live. Errors: 42501. Source: Zaqar, query claim';

CREATE OR REPLACE FUNCTION queue_proxy.claim_next(text, text, integer, integer, integer, integer, text[])
RETURNS SETOF @extschema@.queue_message
LANGUAGE plproxy VOLATILE PARALLEL UNSAFE ROWS 10
AS $$
CLUSTER '';
RUN ON $6;
SELECT f.* FROM @extschema@.claim_next(
    CASE WHEN queue_router.call_settings($7) THEN $1 END, $2, $3, $4, $5) AS f;
$$;

CREATE OR REPLACE FUNCTION @extschema@.claim_next(
    q text,
    claim_id text,
    ttl integer DEFAULT 300,
    grace integer DEFAULT 60,
    "limit" integer DEFAULT NULL::integer,
    project text DEFAULT NULL,
    client_id text DEFAULT NULL)
RETURNS SETOF @extschema@.queue_message
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE ROWS 10
AS $$
DECLARE
    _settings pg_catalog.text[] := queue_proxy.settings($6, $7);
    _message pg_catalog.text;
    _detail pg_catalog.text;
    _hint pg_catalog.text;
BEGIN
    IF pg_catalog.pg_current_xact_id_if_assigned() IS NOT NULL THEN
        PERFORM queue_proxy.refuse_transaction('claim_next');
    END IF;
    RETURN QUERY SELECT * FROM queue_proxy.claim_next($1, $2, $3, $4, $5,
        queue_proxy.shard($1, _settings[1]), _settings);
EXCEPTION WHEN OTHERS OR query_canceled THEN
    GET STACKED DIAGNOSTICS _message = MESSAGE_TEXT,
        _detail = PG_EXCEPTION_DETAIL, _hint = PG_EXCEPTION_HINT;
    PERFORM queue_proxy.reraise(SQLSTATE, _message, _detail, _hint);
END
$$;
COMMENT ON FUNCTION @extschema@.claim_next(text, text, integer, integer, integer, text, text) IS
'deletes the remaining messages of a claim (NULL: there is none yet) and claims the next messages as queue_claim does, in one call. Errors: QU001 the claim is not live, QU004 a message of it was canceled; as queue_claim';

CREATE OR REPLACE FUNCTION queue_proxy.claim_release(text, text, integer, integer, text[])
RETURNS bigint
LANGUAGE plproxy VOLATILE PARALLEL UNSAFE
AS $$
CLUSTER '';
RUN ON $4;
SELECT @extschema@.claim_release(
    CASE WHEN queue_router.call_settings($5) THEN $1 END, $2, $3) AS r;
$$;

CREATE OR REPLACE FUNCTION @extschema@.claim_release(
    q text,
    claim_id text,
    delay integer DEFAULT 0,
    project text DEFAULT NULL,
    client_id text DEFAULT NULL)
RETURNS bigint
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
AS $$
DECLARE
    _settings pg_catalog.text[] := queue_proxy.settings($4, $5);
    _message pg_catalog.text;
    _detail pg_catalog.text;
    _hint pg_catalog.text;
BEGIN
    IF pg_catalog.pg_current_xact_id_if_assigned() IS NOT NULL THEN
        PERFORM queue_proxy.refuse_transaction('claim_release');
    END IF;
    RETURN queue_proxy.claim_release($1, $2, $3,
        queue_proxy.shard($1, _settings[1]), _settings);
EXCEPTION WHEN OTHERS OR query_canceled THEN
    GET STACKED DIAGNOSTICS _message = MESSAGE_TEXT,
        _detail = PG_EXCEPTION_DETAIL, _hint = PG_EXCEPTION_HINT;
    PERFORM queue_proxy.reraise(SQLSTATE, _message, _detail, _hint);
END
$$;
COMMENT ON FUNCTION @extschema@.claim_release(text, text, integer, text, text) IS
'gives the remaining messages of a claim back, free after delay seconds, and removes those that were canceled; those that were claimed as often as the queue allows become dead letters. Returns the number of messages without those that were canceled, 0 when there is no such live claim. Errors: 22023/22004 argument, 42501. Source: Zaqar, release claim';

CREATE OR REPLACE FUNCTION queue_proxy.claim_renew(text, text, integer, integer, integer, text[])
RETURNS timestamp with time zone
LANGUAGE plproxy VOLATILE PARALLEL UNSAFE
AS $$
CLUSTER '';
RUN ON $5;
SELECT @extschema@.claim_renew(
    CASE WHEN queue_router.call_settings($6) THEN $1 END, $2, $3, $4) AS r;
$$;

CREATE OR REPLACE FUNCTION @extschema@.claim_renew(
    q text,
    claim_id text,
    ttl integer,
    grace integer DEFAULT NULL::integer,
    project text DEFAULT NULL,
    client_id text DEFAULT NULL)
RETURNS timestamp with time zone
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
AS $$
DECLARE
    _settings pg_catalog.text[] := queue_proxy.settings($5, $6);
    _message pg_catalog.text;
    _detail pg_catalog.text;
    _hint pg_catalog.text;
BEGIN
    IF pg_catalog.pg_current_xact_id_if_assigned() IS NOT NULL THEN
        PERFORM queue_proxy.refuse_transaction('claim_renew');
    END IF;
    RETURN queue_proxy.claim_renew($1, $2, $3, $4,
        queue_proxy.shard($1, _settings[1]), _settings);
EXCEPTION WHEN OTHERS OR query_canceled THEN
    GET STACKED DIAGNOSTICS _message = MESSAGE_TEXT,
        _detail = PG_EXCEPTION_DETAIL, _hint = PG_EXCEPTION_HINT;
    PERFORM queue_proxy.reraise(SQLSTATE, _message, _detail, _hint);
END
$$;
COMMENT ON FUNCTION @extschema@.claim_renew(text, text, integer, integer, text, text) IS
'restarts a claim: it ends ttl seconds from now, and the lifetime of its messages is extended to at least grace seconds (NULL: as before) beyond that; returns when it ends, NULL when there is no such live claim, or all that it has was canceled. Errors: 22023/22004 argument, 42501. Source: Zaqar, update (renew) claim';

CREATE OR REPLACE FUNCTION @extschema@.job_due(
    schedule integer,
    project text DEFAULT NULL,
    client_id text DEFAULT NULL)
RETURNS boolean
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
AS $$
BEGIN
    RAISE EXCEPTION 'job_due() cannot be called through a router'
        USING ERRCODE = 'feature_not_supported',
        HINT = 'Only pg_cron calls this function, on the server of the queue.';
END
$$;
COMMENT ON FUNCTION @extschema@.job_due(integer, text, text) IS
'raises an error, 0A000: it cannot be called through a router';

CREATE OR REPLACE FUNCTION queue_proxy.job_errors(text, integer, integer, text[])
RETURNS TABLE(message_id bigint, attempt integer, at timestamp with time zone, error text)
LANGUAGE plproxy VOLATILE PARALLEL UNSAFE ROWS 100
AS $$
CLUSTER '';
RUN ON $3;
SELECT f.* FROM @extschema@.job_errors(
    CASE WHEN queue_router.call_settings($4) THEN $1 END, $2) AS f;
$$;

CREATE OR REPLACE FUNCTION @extschema@.job_errors(
    q text,
    "limit" integer DEFAULT 100,
    project text DEFAULT NULL,
    client_id text DEFAULT NULL)
RETURNS TABLE(message_id bigint, attempt integer, at timestamp with time zone, error text)
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE ROWS 100
AS $$
DECLARE
    _settings pg_catalog.text[] := queue_proxy.settings($3, $4);
    _message pg_catalog.text;
    _detail pg_catalog.text;
    _hint pg_catalog.text;
BEGIN
    RETURN QUERY SELECT * FROM queue_proxy.job_errors($1, $2,
        queue_proxy.shard($1, _settings[1]), _settings);
EXCEPTION WHEN OTHERS OR query_canceled THEN
    GET STACKED DIAGNOSTICS _message = MESSAGE_TEXT,
        _detail = PG_EXCEPTION_DETAIL, _hint = PG_EXCEPTION_HINT;
    PERFORM queue_proxy.reraise(SQLSTATE, _message, _detail, _hint);
END
$$;
COMMENT ON FUNCTION @extschema@.job_errors(text, integer, text, text) IS
'the attempts at messages of queue q that have failed with an error in the last _keep_finished seconds, the latest first, at most limit (1 to 10000). No row without _keep_finished. Errors: 22023/22004 argument, 42501 neither owner nor admin of q. Source: Oban, the errors of a job';

CREATE OR REPLACE FUNCTION queue_proxy.job_handler(text, text, integer, integer, real, text, integer, text[])
RETURNS void
LANGUAGE plproxy VOLATILE PARALLEL UNSAFE
AS $$
CLUSTER '';
RUN ON $7;
SELECT @extschema@.job_handler(
    CASE WHEN queue_router.call_settings($8) THEN $1 END, $2::regprocedure, $3, $4, $5, $6::regprocedure) AS r;
$$;

CREATE OR REPLACE FUNCTION @extschema@.job_handler(
    q text,
    handler text,
    concurrency integer DEFAULT 1,
    timeout integer DEFAULT NULL::integer,
    rate real DEFAULT NULL::real,
    teardown text DEFAULT NULL::text,
    project text DEFAULT NULL,
    client_id text DEFAULT NULL)
RETURNS void
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
AS $$
DECLARE
    _settings pg_catalog.text[] := queue_proxy.settings($7, $8);
    _message pg_catalog.text;
    _detail pg_catalog.text;
    _hint pg_catalog.text;
BEGIN
    IF pg_catalog.pg_current_xact_id_if_assigned() IS NOT NULL THEN
        PERFORM queue_proxy.refuse_transaction('job_handler');
    END IF;
    PERFORM queue_proxy.job_handler($1, $2, $3, $4, $5, $6,
        queue_proxy.shard($1, _settings[1]), _settings);
EXCEPTION WHEN OTHERS OR query_canceled THEN
    GET STACKED DIAGNOSTICS _message = MESSAGE_TEXT,
        _detail = PG_EXCEPTION_DETAIL, _hint = PG_EXCEPTION_HINT;
    PERFORM queue_proxy.reraise(SQLSTATE, _message, _detail, _hint);
END
$$;
COMMENT ON FUNCTION @extschema@.job_handler(text, text, integer, integer, real, text, text, text) IS
'binds queue q, which is created as by a push, to a function (queue_message) or (jsonb) that returns boolean, to be called for each message as the current role, at most concurrency at a time, for at most timeout seconds each (NULL: queue.max_handler_time, which bounds it), at most rate per second; teardown is called after each attempt; sets _max_claim_count 12 where the metadata has none; a NULL handler unbinds. Errors: 42704 unknown queue with queue.auto_create off, 42883 no such function, 22023/22004 argument, 42501 not the owner, or no privilege to execute the function. Source: MediaWiki, Job::run, Job::tearDown';

CREATE OR REPLACE FUNCTION queue_proxy.job_list(text, integer[], text[])
RETURNS TABLE(queue text, handler text, state text, reason text, concurrency integer, running integer, message_id bigint, pid integer, running_since timestamp with time zone, progress jsonb)
LANGUAGE plproxy VOLATILE PARALLEL UNSAFE ROWS 1000
AS $$
CLUSTER '';
RUN ON pg_catalog.unnest($2);
SELECT f.* FROM @extschema@.job_list(
    CASE WHEN queue_router.call_settings($3) THEN $1 END) AS f;
$$;

CREATE OR REPLACE FUNCTION @extschema@.job_list(
    q text DEFAULT NULL::text,
    project text DEFAULT NULL,
    client_id text DEFAULT NULL)
RETURNS TABLE(queue text, handler text, state text, reason text, concurrency integer, running integer, message_id bigint, pid integer, running_since timestamp with time zone, progress jsonb)
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE ROWS 1000
AS $$
DECLARE
    _settings pg_catalog.text[] := queue_proxy.settings($2, $3);
    _shard integer;
    _answered boolean := false;
    _message pg_catalog.text;
    _detail pg_catalog.text;
    _hint pg_catalog.text;
BEGIN
    RETURN QUERY SELECT * FROM queue_proxy.job_list($1,
        CASE WHEN $1 IS NULL
             THEN (SELECT pg_catalog.array_agg(s.shard) FROM queue_proxy.servers() AS s)
             ELSE ARRAY[queue_proxy.shard($1, _settings[1])] END,
        _settings);
EXCEPTION WHEN OTHERS OR query_canceled THEN
    GET STACKED DIAGNOSTICS _message = MESSAGE_TEXT,
        _detail = PG_EXCEPTION_DETAIL, _hint = PG_EXCEPTION_HINT;
    PERFORM queue_proxy.reraise(SQLSTATE, _message, _detail, _hint);
END
$$;
COMMENT ON FUNCTION @extschema@.job_list(text, text, text) IS
'what the handler of queue q runs, or those of all queues of the project whose owner or admin the caller is: a row for each job that runs, or one with NULL from message_id on; state: idle, running, paused or stopped, which reason explains; concurrency: jobs that may run at once; running: that do; pid: of the process, to be canceled with pg_cancel_backend; running_since: of the attempt; progress: done, total and note of job_progress. Errors: 22023 name, 42501 neither owner nor admin of q. Source: MediaWiki, showJobs';

CREATE OR REPLACE FUNCTION @extschema@.job_progress(
    done bigint,
    total bigint DEFAULT NULL::bigint,
    note text DEFAULT NULL::text,
    project text DEFAULT NULL,
    client_id text DEFAULT NULL)
RETURNS void
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
AS $$
BEGIN
    RAISE EXCEPTION 'job_progress() cannot be called through a router'
        USING ERRCODE = 'feature_not_supported',
        HINT = 'Only a handler calls this function, on the server of its queue.';
END
$$;
COMMENT ON FUNCTION @extschema@.job_progress(bigint, bigint, text, text, text) IS
'raises an error, 0A000: it cannot be called through a router';

CREATE OR REPLACE FUNCTION @extschema@.job_result(
    result jsonb,
    project text DEFAULT NULL,
    client_id text DEFAULT NULL)
RETURNS void
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
AS $$
BEGIN
    RAISE EXCEPTION 'job_result() cannot be called through a router'
        USING ERRCODE = 'feature_not_supported',
        HINT = 'Only a handler calls this function, on the server of its queue.';
END
$$;
COMMENT ON FUNCTION @extschema@.job_result(jsonb, text, text) IS
'raises an error, 0A000: it cannot be called through a router';

CREATE OR REPLACE FUNCTION queue_proxy.job_root(text, text, integer, text[])
RETURNS jsonb
LANGUAGE plproxy VOLATILE PARALLEL UNSAFE
AS $$
CLUSTER '';
RUN ON $3;
SELECT @extschema@.job_root(
    CASE WHEN queue_router.call_settings($4) THEN $1 END, $2) AS r;
$$;

CREATE OR REPLACE FUNCTION @extschema@.job_root(
    q text,
    signature text,
    project text DEFAULT NULL,
    client_id text DEFAULT NULL)
RETURNS jsonb
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
AS $$
DECLARE
    _settings pg_catalog.text[] := queue_proxy.settings($3, $4);
    _message pg_catalog.text;
    _detail pg_catalog.text;
    _hint pg_catalog.text;
BEGIN
    IF pg_catalog.pg_current_xact_id_if_assigned() IS NOT NULL THEN
        PERFORM queue_proxy.refuse_transaction('job_root');
    END IF;
    RETURN queue_proxy.job_root($1, $2,
        queue_proxy.shard($1, _settings[1]), _settings);
EXCEPTION WHEN OTHERS OR query_canceled THEN
    GET STACKED DIAGNOSTICS _message = MESSAGE_TEXT,
        _detail = PG_EXCEPTION_DETAIL, _hint = PG_EXCEPTION_HINT;
    PERFORM queue_proxy.reraise(SQLSTATE, _message, _detail, _hint);
END
$$;
COMMENT ON FUNCTION @extschema@.job_root(text, text, text, text) IS
'registers a new root job and returns {"rootJobSignature", "rootJobTimestamp"} for the bodies of its leaves; once this transaction has committed, leaves of earlier roots with that signature are dropped as duplicates instead of being handed out. Errors: 22023/22004 argument, 42704 unknown queue with queue.auto_create off, 42501 no right to push. Source: MediaWiki, Job::newRootJobParams';

CREATE OR REPLACE PROCEDURE @extschema@.job_run(
    queues text[] DEFAULT NULL::text[],
    max_jobs integer DEFAULT NULL::integer,
    max_time integer DEFAULT NULL::integer,
    INOUT result jsonb DEFAULT NULL::jsonb,
    project text DEFAULT NULL,
    client_id text DEFAULT NULL)
LANGUAGE plpgsql
AS $$
BEGIN
    RAISE EXCEPTION 'job_run() cannot be called through a router'
        USING ERRCODE = 'feature_not_supported',
        HINT = 'Connect to the server of the queues.';
END
$$;
COMMENT ON PROCEDURE @extschema@.job_run(text[], integer, integer, jsonb, text, text) IS
'raises an error, 0A000: it cannot be called through a router';

CREATE OR REPLACE FUNCTION queue_proxy.job_schedule(text, text, text, jsonb, integer, text[])
RETURNS void
LANGUAGE plproxy VOLATILE PARALLEL UNSAFE
AS $$
CLUSTER '';
RUN ON $5;
SELECT @extschema@.job_schedule(
    CASE WHEN queue_router.call_settings($6) THEN $1 END, $2, $3, $4) AS r;
$$;

CREATE OR REPLACE FUNCTION @extschema@.job_schedule(
    name text,
    cron text,
    q text,
    body jsonb,
    project text DEFAULT NULL,
    client_id text DEFAULT NULL)
RETURNS void
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
AS $$
DECLARE
    _settings pg_catalog.text[] := queue_proxy.settings($5, $6);
    _message pg_catalog.text;
    _detail pg_catalog.text;
    _hint pg_catalog.text;
BEGIN
    IF pg_catalog.pg_current_xact_id_if_assigned() IS NOT NULL THEN
        PERFORM queue_proxy.refuse_transaction('job_schedule');
    END IF;
    PERFORM queue_proxy.job_schedule($1, $2, $3, $4,
        queue_proxy.shard($3, _settings[1]), _settings);
EXCEPTION WHEN OTHERS OR query_canceled THEN
    GET STACKED DIAGNOSTICS _message = MESSAGE_TEXT,
        _detail = PG_EXCEPTION_DETAIL, _hint = PG_EXCEPTION_HINT;
    PERFORM queue_proxy.reraise(SQLSTATE, _message, _detail, _hint);
END
$$;
COMMENT ON FUNCTION @extschema@.job_schedule(text, text, text, jsonb, text, text) IS
'pushes body to queue q at the times of the cron expression, through pg_cron, at most once for each time, as the current role; replaces a schedule of that name; a WARNING if pg_cron may be unable to run it. Errors: 55000 pg_cron is not in this database, 22023/22004 argument, 42501 may not push or use pg_cron, or the schedule belongs to another role';

CREATE OR REPLACE FUNCTION queue_proxy.job_schedules(integer[], text[])
RETURNS TABLE(name text, cron text, queue text, body jsonb, last_run timestamp with time zone, last_error text)
LANGUAGE plproxy VOLATILE PARALLEL UNSAFE ROWS 1000
AS $$
CLUSTER '';
RUN ON pg_catalog.unnest($1);
SELECT @extschema@.job_schedules() AS r
FROM (SELECT queue_router.call_settings($2) OFFSET 0) AS s;
$$;

CREATE OR REPLACE FUNCTION @extschema@.job_schedules(
    project text DEFAULT NULL,
    client_id text DEFAULT NULL)
RETURNS TABLE(name text, cron text, queue text, body jsonb, last_run timestamp with time zone, last_error text)
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE ROWS 1000
AS $$
DECLARE
    _settings pg_catalog.text[] := queue_proxy.settings($1, $2);
    _shard integer;
    _answered boolean := false;
    _message pg_catalog.text;
    _detail pg_catalog.text;
    _hint pg_catalog.text;
BEGIN
    RETURN QUERY SELECT * FROM queue_proxy.job_schedules(
        (SELECT pg_catalog.array_agg(s.shard) FROM queue_proxy.servers() AS s),
        _settings);
EXCEPTION WHEN OTHERS OR query_canceled THEN
    GET STACKED DIAGNOSTICS _message = MESSAGE_TEXT,
        _detail = PG_EXCEPTION_DETAIL, _hint = PG_EXCEPTION_HINT;
    PERFORM queue_proxy.reraise(SQLSTATE, _message, _detail, _hint);
END
$$;
COMMENT ON FUNCTION @extschema@.job_schedules(text, text) IS
'the schedules of the project that the caller has made, or that push to a queue whose owner or admin it is; last_run: when a message was last pushed; last_error: of the latest run, NULL if that has not failed. Source: pg_cron, cron.job and cron.job_run_details';

CREATE OR REPLACE FUNCTION queue_proxy.job_stats(text, integer, text[])
RETURNS TABLE(claimed bigint, completed bigint, retried bigint, abandoned bigint, duplicates bigint, expired bigint, since timestamp with time zone, last_error text, last_error_at timestamp with time zone)
LANGUAGE plproxy VOLATILE PARALLEL UNSAFE ROWS 1
AS $$
CLUSTER '';
RUN ON $2;
SELECT f.* FROM @extschema@.job_stats(
    CASE WHEN queue_router.call_settings($3) THEN $1 END) AS f;
$$;

CREATE OR REPLACE FUNCTION @extschema@.job_stats(
    q text,
    project text DEFAULT NULL,
    client_id text DEFAULT NULL)
RETURNS TABLE(claimed bigint, completed bigint, retried bigint, abandoned bigint, duplicates bigint, expired bigint, since timestamp with time zone, last_error text, last_error_at timestamp with time zone)
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE ROWS 1
AS $$
DECLARE
    _settings pg_catalog.text[] := queue_proxy.settings($2, $3);
    _message pg_catalog.text;
    _detail pg_catalog.text;
    _hint pg_catalog.text;
BEGIN
    RETURN QUERY SELECT * FROM queue_proxy.job_stats($1,
        queue_proxy.shard($1, _settings[1]), _settings);
EXCEPTION WHEN OTHERS OR query_canceled THEN
    GET STACKED DIAGNOSTICS _message = MESSAGE_TEXT,
        _detail = PG_EXCEPTION_DETAIL, _hint = PG_EXCEPTION_HINT;
    PERFORM queue_proxy.reraise(SQLSTATE, _message, _detail, _hint);
END
$$;
COMMENT ON FUNCTION @extschema@.job_stats(text, text, text) IS
'one row: what became of the messages of queue q since that time, and its last error, or that of a schedule whose latest run has failed (NULL without the right to claim); an unknown queue counts 0. Source: MediaWiki, counts of a job runner';

CREATE OR REPLACE FUNCTION queue_proxy.job_unschedule(text, integer[], text[])
RETURNS SETOF boolean
LANGUAGE plproxy VOLATILE PARALLEL UNSAFE
AS $$
CLUSTER '';
RUN ON pg_catalog.unnest($2);
SELECT @extschema@.job_unschedule(
    CASE WHEN queue_router.call_settings($3) THEN $1 END) AS r;
$$;

CREATE OR REPLACE FUNCTION @extschema@.job_unschedule(
    name text,
    project text DEFAULT NULL,
    client_id text DEFAULT NULL)
RETURNS boolean
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
AS $$
DECLARE
    _settings pg_catalog.text[] := queue_proxy.settings($2, $3);
    _shard integer;
    _answered boolean := false;
    _message pg_catalog.text;
    _detail pg_catalog.text;
    _hint pg_catalog.text;
BEGIN
    IF pg_catalog.pg_current_xact_id_if_assigned() IS NOT NULL THEN
        PERFORM queue_proxy.refuse_transaction('job_unschedule');
    END IF;
    RETURN (SELECT pg_catalog.bool_or(b) FROM queue_proxy.job_unschedule($1,
        (SELECT pg_catalog.array_agg(s.shard) FROM queue_proxy.servers() AS s),
        _settings) AS b);
EXCEPTION WHEN OTHERS OR query_canceled THEN
    GET STACKED DIAGNOSTICS _message = MESSAGE_TEXT,
        _detail = PG_EXCEPTION_DETAIL, _hint = PG_EXCEPTION_HINT;
    PERFORM queue_proxy.reraise(SQLSTATE, _message, _detail, _hint);
END
$$;
COMMENT ON FUNCTION @extschema@.job_unschedule(text, text, text) IS
'ends a schedule; false: there was none. Errors: 42501 it belongs to another role';

CREATE OR REPLACE FUNCTION queue_proxy.message_bury(text, bigint, text, text, integer, text[])
RETURNS void
LANGUAGE plproxy VOLATILE PARALLEL UNSAFE
AS $$
CLUSTER '';
RUN ON $5;
SELECT @extschema@.message_bury(
    CASE WHEN queue_router.call_settings($6) THEN $1 END, $2, $3, $4) AS r;
$$;

CREATE OR REPLACE FUNCTION @extschema@.message_bury(
    q text,
    id bigint,
    claim_id text,
    error text,
    project text DEFAULT NULL,
    client_id text DEFAULT NULL)
RETURNS void
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
AS $$
DECLARE
    _settings pg_catalog.text[] := queue_proxy.settings($5, $6);
    _message pg_catalog.text;
    _detail pg_catalog.text;
    _hint pg_catalog.text;
BEGIN
    IF pg_catalog.pg_current_xact_id_if_assigned() IS NOT NULL THEN
        PERFORM queue_proxy.refuse_transaction('message_bury');
    END IF;
    PERFORM queue_proxy.message_bury($1, $2, $3, $4,
        queue_proxy.shard($1, _settings[1]), _settings);
EXCEPTION WHEN OTHERS OR query_canceled THEN
    GET STACKED DIAGNOSTICS _message = MESSAGE_TEXT,
        _detail = PG_EXCEPTION_DETAIL, _hint = PG_EXCEPTION_HINT;
    PERFORM queue_proxy.reraise(SQLSTATE, _message, _detail, _hint);
END
$$;
COMMENT ON FUNCTION @extschema@.message_bury(text, bigint, text, text, text, text) IS
'makes one claimed message a dead letter at once, however often it was claimed, and stores error with it (NULL: keeps the last one); a queue without a dead letter queue gets the one that it would have by default; a duplicate is dropped instead. Errors: QU001 the claim is not live, QU002 the message is not in that claim, QU004 it was canceled, 22023/22004 argument, or no room for the name of the dead letter queue, 42501 no right to claim, or the dead letter queue belongs to another role or does not accept it, 55P03 the dead letter queue is locked. Source: Graphile Worker, permanent failures';

CREATE OR REPLACE FUNCTION queue_proxy.message_cancel(text, bigint, text, integer, text[])
RETURNS text
LANGUAGE plproxy VOLATILE PARALLEL UNSAFE
AS $$
CLUSTER '';
RUN ON $4;
SELECT @extschema@.message_cancel(
    CASE WHEN queue_router.call_settings($5) THEN $1 END, $2, $3) AS r;
$$;

CREATE OR REPLACE FUNCTION @extschema@.message_cancel(
    q text,
    id bigint,
    reason text DEFAULT NULL::text,
    project text DEFAULT NULL,
    client_id text DEFAULT NULL)
RETURNS text
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
AS $$
DECLARE
    _settings pg_catalog.text[] := queue_proxy.settings($4, $5);
    _message pg_catalog.text;
    _detail pg_catalog.text;
    _hint pg_catalog.text;
BEGIN
    IF pg_catalog.pg_current_xact_id_if_assigned() IS NOT NULL THEN
        PERFORM queue_proxy.refuse_transaction('message_cancel');
    END IF;
    RETURN queue_proxy.message_cancel($1, $2, $3,
        queue_proxy.shard($1, _settings[1]), _settings);
EXCEPTION WHEN OTHERS OR query_canceled THEN
    GET STACKED DIAGNOSTICS _message = MESSAGE_TEXT,
        _detail = PG_EXCEPTION_DETAIL, _hint = PG_EXCEPTION_HINT;
    PERFORM queue_proxy.reraise(SQLSTATE, _message, _detail, _hint);
END
$$;
COMMENT ON FUNCTION @extschema@.message_cancel(text, bigint, text, text, text) IS
'cancels one message and stores the reason as its last error; canceled: no claim held it, and it is removed; pending: it is removed when its claim ends, nothing that completes, retries or buries it succeeds any more (QU004), and a handler that works on it is interrupted after the commit; NULL: there is no such message. Errors: 22004 id, 42501 no right to claim. Source: Procrastinate and Oban, canceling a job';

CREATE OR REPLACE FUNCTION queue_proxy.message_complete(text, bigint, text, jsonb, integer, text[])
RETURNS boolean
LANGUAGE plproxy VOLATILE PARALLEL UNSAFE
AS $$
CLUSTER '';
RUN ON $5;
SELECT @extschema@.message_complete(
    CASE WHEN queue_router.call_settings($6) THEN $1 END, $2, $3, $4) AS r;
$$;

CREATE OR REPLACE FUNCTION @extschema@.message_complete(
    q text,
    id bigint,
    claim_id text,
    result jsonb DEFAULT NULL::jsonb,
    project text DEFAULT NULL,
    client_id text DEFAULT NULL)
RETURNS boolean
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
AS $$
DECLARE
    _settings pg_catalog.text[] := queue_proxy.settings($5, $6);
    _message pg_catalog.text;
    _detail pg_catalog.text;
    _hint pg_catalog.text;
BEGIN
    IF pg_catalog.pg_current_xact_id_if_assigned() IS NOT NULL THEN
        PERFORM queue_proxy.refuse_transaction('message_complete');
    END IF;
    RETURN queue_proxy.message_complete($1, $2, $3, $4,
        queue_proxy.shard($1, _settings[1]), _settings);
EXCEPTION WHEN OTHERS OR query_canceled THEN
    GET STACKED DIAGNOSTICS _message = MESSAGE_TEXT,
        _detail = PG_EXCEPTION_DETAIL, _hint = PG_EXCEPTION_HINT;
    PERFORM queue_proxy.reraise(SQLSTATE, _message, _detail, _hint);
END
$$;
COMMENT ON FUNCTION @extschema@.message_complete(text, bigint, text, jsonb, text, text) IS
'deletes one claimed message, as message_delete, and keeps result, where the queue has _keep_finished; true: deleted, false: there is no such message. Errors: QU001 the claim is not live, QU002 the message is not in that claim, QU004 it was canceled, 54000 result too large, 22023/22004 argument, 42501 no right to claim. Source: Celery, the result of a task';

CREATE OR REPLACE FUNCTION queue_proxy.message_delete(text, bigint, text, integer, text[])
RETURNS boolean
LANGUAGE plproxy VOLATILE PARALLEL UNSAFE
AS $$
CLUSTER '';
RUN ON $4;
SELECT @extschema@.message_delete(
    CASE WHEN queue_router.call_settings($5) THEN $1 END, $2, $3) AS r;
$$;

CREATE OR REPLACE FUNCTION @extschema@.message_delete(
    q text,
    id bigint,
    claim_id text DEFAULT NULL::text,
    project text DEFAULT NULL,
    client_id text DEFAULT NULL)
RETURNS boolean
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
AS $$
DECLARE
    _settings pg_catalog.text[] := queue_proxy.settings($4, $5);
    _message pg_catalog.text;
    _detail pg_catalog.text;
    _hint pg_catalog.text;
BEGIN
    IF pg_catalog.pg_current_xact_id_if_assigned() IS NOT NULL THEN
        PERFORM queue_proxy.refuse_transaction('message_delete');
    END IF;
    RETURN queue_proxy.message_delete($1, $2, $3,
        queue_proxy.shard($1, _settings[1]), _settings);
EXCEPTION WHEN OTHERS OR query_canceled THEN
    GET STACKED DIAGNOSTICS _message = MESSAGE_TEXT,
        _detail = PG_EXCEPTION_DETAIL, _hint = PG_EXCEPTION_HINT;
    PERFORM queue_proxy.reraise(SQLSTATE, _message, _detail, _hint);
END
$$;
COMMENT ON FUNCTION @extschema@.message_delete(text, bigint, text, text, text) IS
'deletes one message, with claim_id only as part of that claim; false: there is no such message. Errors: QU001 the claim is not live, QU002 the message is not in that claim, QU003 the message is claimed and no claim_id was given, QU004 it was canceled, 22004 id is NULL, 42501. Source: Zaqar, delete a specific message';

CREATE OR REPLACE FUNCTION queue_proxy.message_get(text, bigint, integer, text[])
RETURNS SETOF @extschema@.queue_message
LANGUAGE plproxy VOLATILE PARALLEL UNSAFE ROWS 1
AS $$
CLUSTER '';
RUN ON $3;
SELECT f.* FROM @extschema@.message_get(
    CASE WHEN queue_router.call_settings($4) THEN $1 END, $2) AS f;
$$;

CREATE OR REPLACE FUNCTION @extschema@.message_get(
    q text,
    id bigint,
    project text DEFAULT NULL,
    client_id text DEFAULT NULL)
RETURNS SETOF @extschema@.queue_message
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE ROWS 1
AS $$
DECLARE
    _settings pg_catalog.text[] := queue_proxy.settings($3, $4);
    _message pg_catalog.text;
    _detail pg_catalog.text;
    _hint pg_catalog.text;
BEGIN
    RETURN QUERY SELECT * FROM queue_proxy.message_get($1, $2,
        queue_proxy.shard($1, _settings[1]), _settings);
EXCEPTION WHEN OTHERS OR query_canceled THEN
    GET STACKED DIAGNOSTICS _message = MESSAGE_TEXT,
        _detail = PG_EXCEPTION_DETAIL, _hint = PG_EXCEPTION_HINT;
    PERFORM queue_proxy.reraise(SQLSTATE, _message, _detail, _hint);
END
$$;
COMMENT ON FUNCTION @extschema@.message_get(text, bigint, text, text) IS
'the message with this id; no row when there is none. Errors: 22023/22004 argument, 42501. Source: Zaqar, get a specific message';

CREATE OR REPLACE FUNCTION queue_proxy.message_result(text, bigint, integer, text[])
RETURNS jsonb
LANGUAGE plproxy VOLATILE PARALLEL UNSAFE
AS $$
CLUSTER '';
RUN ON $3;
SELECT @extschema@.message_result(
    CASE WHEN queue_router.call_settings($4) THEN $1 END, $2) AS r;
$$;

CREATE OR REPLACE FUNCTION @extschema@.message_result(
    q text,
    id bigint,
    project text DEFAULT NULL,
    client_id text DEFAULT NULL)
RETURNS jsonb
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
AS $$
DECLARE
    _settings pg_catalog.text[] := queue_proxy.settings($3, $4);
    _message pg_catalog.text;
    _detail pg_catalog.text;
    _hint pg_catalog.text;
BEGIN
    RETURN queue_proxy.message_result($1, $2,
        queue_proxy.shard($1, _settings[1]), _settings);
EXCEPTION WHEN OTHERS OR query_canceled THEN
    GET STACKED DIAGNOSTICS _message = MESSAGE_TEXT,
        _detail = PG_EXCEPTION_DETAIL, _hint = PG_EXCEPTION_HINT;
    PERFORM queue_proxy.reraise(SQLSTATE, _message, _detail, _hint);
END
$$;
COMMENT ON FUNCTION @extschema@.message_result(text, bigint, text, text) IS
'the result with which a message was completed; NULL if it had none, or is not in the history. Errors: 22023/22004 argument, 42501 as queue_finished. Source: Celery, AsyncResult.result';

CREATE OR REPLACE FUNCTION queue_proxy.message_retry(text, bigint, text, text, integer, integer, text[])
RETURNS timestamp with time zone
LANGUAGE plproxy VOLATILE PARALLEL UNSAFE
AS $$
CLUSTER '';
RUN ON $6;
SELECT @extschema@.message_retry(
    CASE WHEN queue_router.call_settings($7) THEN $1 END, $2, $3, $4, $5) AS r;
$$;

CREATE OR REPLACE FUNCTION @extschema@.message_retry(
    q text,
    id bigint,
    claim_id text,
    error text DEFAULT NULL::text,
    delay integer DEFAULT NULL::integer,
    project text DEFAULT NULL,
    client_id text DEFAULT NULL)
RETURNS timestamp with time zone
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
AS $$
DECLARE
    _settings pg_catalog.text[] := queue_proxy.settings($6, $7);
    _message pg_catalog.text;
    _detail pg_catalog.text;
    _hint pg_catalog.text;
BEGIN
    IF pg_catalog.pg_current_xact_id_if_assigned() IS NOT NULL THEN
        PERFORM queue_proxy.refuse_transaction('message_retry');
    END IF;
    RETURN queue_proxy.message_retry($1, $2, $3, $4, $5,
        queue_proxy.shard($1, _settings[1]), _settings);
EXCEPTION WHEN OTHERS OR query_canceled THEN
    GET STACKED DIAGNOSTICS _message = MESSAGE_TEXT,
        _detail = PG_EXCEPTION_DETAIL, _hint = PG_EXCEPTION_HINT;
    PERFORM queue_proxy.reraise(SQLSTATE, _message, _detail, _hint);
END
$$;
COMMENT ON FUNCTION @extschema@.message_retry(text, bigint, text, text, integer, text, text) IS
'gives one claimed message back, to be handed out after delay seconds (NULL: 1 s, doubled by each further attempt up to queue.max_retry_delay, unless _retry_delay or _retry_backoff of the queue say otherwise), extends its lifetime as a claim does, and stores error with it; returns when it is due, NULL when it was claimed _max_claim_count times and became a dead letter. Errors: QU001 the claim is not live, QU002 the message is not in that claim, QU004 it was canceled, 22023/22004 argument, 42501. Source: MediaWiki, retries of a job';

CREATE OR REPLACE FUNCTION queue_proxy.messages_cancel(text, bigint[], integer, text[])
RETURNS bigint
LANGUAGE plproxy VOLATILE PARALLEL UNSAFE
AS $$
CLUSTER '';
RUN ON $3;
SELECT @extschema@.messages_cancel(
    CASE WHEN queue_router.call_settings($4) THEN $1 END, $2) AS r;
$$;

CREATE OR REPLACE FUNCTION @extschema@.messages_cancel(
    q text,
    ids bigint[],
    project text DEFAULT NULL,
    client_id text DEFAULT NULL)
RETURNS bigint
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
AS $$
DECLARE
    _settings pg_catalog.text[] := queue_proxy.settings($3, $4);
    _message pg_catalog.text;
    _detail pg_catalog.text;
    _hint pg_catalog.text;
BEGIN
    IF pg_catalog.pg_current_xact_id_if_assigned() IS NOT NULL THEN
        PERFORM queue_proxy.refuse_transaction('messages_cancel');
    END IF;
    RETURN queue_proxy.messages_cancel($1, $2,
        queue_proxy.shard($1, _settings[1]), _settings);
EXCEPTION WHEN OTHERS OR query_canceled THEN
    GET STACKED DIAGNOSTICS _message = MESSAGE_TEXT,
        _detail = PG_EXCEPTION_DETAIL, _hint = PG_EXCEPTION_HINT;
    PERFORM queue_proxy.reraise(SQLSTATE, _message, _detail, _hint);
END
$$;
COMMENT ON FUNCTION @extschema@.messages_cancel(text, bigint[], text, text) IS
'cancels these messages as message_cancel does, and returns how many of them there were; a repeated id counts once. Errors: 22004 ids or one of them, 22023 more than one dimension, 42501 no right to claim. Source: River, canceling many jobs';

CREATE OR REPLACE FUNCTION queue_proxy.messages_delete(text, bigint[], text, integer, text[])
RETURNS bigint
LANGUAGE plproxy VOLATILE PARALLEL UNSAFE
AS $$
CLUSTER '';
RUN ON $4;
SELECT @extschema@.messages_delete(
    CASE WHEN queue_router.call_settings($5) THEN $1 END, $2, $3) AS r;
$$;

CREATE OR REPLACE FUNCTION @extschema@.messages_delete(
    q text,
    ids bigint[],
    claim_id text DEFAULT NULL::text,
    project text DEFAULT NULL,
    client_id text DEFAULT NULL)
RETURNS bigint
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
AS $$
DECLARE
    _settings pg_catalog.text[] := queue_proxy.settings($4, $5);
    _message pg_catalog.text;
    _detail pg_catalog.text;
    _hint pg_catalog.text;
BEGIN
    IF pg_catalog.pg_current_xact_id_if_assigned() IS NOT NULL THEN
        PERFORM queue_proxy.refuse_transaction('messages_delete');
    END IF;
    RETURN queue_proxy.messages_delete($1, $2, $3,
        queue_proxy.shard($1, _settings[1]), _settings);
EXCEPTION WHEN OTHERS OR query_canceled THEN
    GET STACKED DIAGNOSTICS _message = MESSAGE_TEXT,
        _detail = PG_EXCEPTION_DETAIL, _hint = PG_EXCEPTION_HINT;
    PERFORM queue_proxy.reraise(SQLSTATE, _message, _detail, _hint);
END
$$;
COMMENT ON FUNCTION @extschema@.messages_delete(text, bigint[], text, text, text) IS
'deletes these messages, all or nothing, and returns the number of messages deleted; a repeated id counts once. Errors: as message_delete; 22004 also for a NULL among the ids, 22023 an array of more than one dimension. Source: Zaqar, delete a set of messages by id';

CREATE OR REPLACE FUNCTION queue_proxy.messages_get(text, bigint[], integer, text[])
RETURNS SETOF @extschema@.queue_message
LANGUAGE plproxy VOLATILE PARALLEL UNSAFE ROWS 10
AS $$
CLUSTER '';
RUN ON $3;
SELECT f.* FROM @extschema@.messages_get(
    CASE WHEN queue_router.call_settings($4) THEN $1 END, $2) AS f;
$$;

CREATE OR REPLACE FUNCTION @extschema@.messages_get(
    q text,
    ids bigint[],
    project text DEFAULT NULL,
    client_id text DEFAULT NULL)
RETURNS SETOF @extschema@.queue_message
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE ROWS 10
AS $$
DECLARE
    _settings pg_catalog.text[] := queue_proxy.settings($3, $4);
    _message pg_catalog.text;
    _detail pg_catalog.text;
    _hint pg_catalog.text;
BEGIN
    RETURN QUERY SELECT * FROM queue_proxy.messages_get($1, $2,
        queue_proxy.shard($1, _settings[1]), _settings);
EXCEPTION WHEN OTHERS OR query_canceled THEN
    GET STACKED DIAGNOSTICS _message = MESSAGE_TEXT,
        _detail = PG_EXCEPTION_DETAIL, _hint = PG_EXCEPTION_HINT;
    PERFORM queue_proxy.reraise(SQLSTATE, _message, _detail, _hint);
END
$$;
COMMENT ON FUNCTION @extschema@.messages_get(text, bigint[], text, text) IS
'the messages with these ids that exist, in the order requested. Errors: 22004 ids or one of them is NULL, 22023 an array of more than one dimension, 42501. Source: Zaqar, get a set of messages by id';

CREATE OR REPLACE PROCEDURE @extschema@.queue_await(
    q text,
    id bigint,
    timeout_ms integer DEFAULT NULL::integer,
    INOUT result jsonb DEFAULT NULL::jsonb,
    project text DEFAULT NULL,
    client_id text DEFAULT NULL)
LANGUAGE plpgsql
AS $$
BEGIN
    RAISE EXCEPTION 'queue_await() cannot be called through a router'
        USING ERRCODE = 'feature_not_supported',
        HINT = 'Connect to the server of the queue, or poll message_result().';
END
$$;
COMMENT ON PROCEDURE @extschema@.queue_await(text, bigint, integer, jsonb, text, text) IS
'raises an error, 0A000: it cannot be called through a router';

CREATE OR REPLACE FUNCTION queue_proxy.queue_cancel_where(text, jsonb, integer, text[])
RETURNS bigint
LANGUAGE plproxy VOLATILE PARALLEL UNSAFE
AS $$
CLUSTER '';
RUN ON $3;
SELECT @extschema@.queue_cancel_where(
    CASE WHEN queue_router.call_settings($4) THEN $1 END, $2) AS r;
$$;

CREATE OR REPLACE FUNCTION @extschema@.queue_cancel_where(
    q text,
    filter jsonb,
    project text DEFAULT NULL,
    client_id text DEFAULT NULL)
RETURNS bigint
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
AS $$
DECLARE
    _settings pg_catalog.text[] := queue_proxy.settings($3, $4);
    _message pg_catalog.text;
    _detail pg_catalog.text;
    _hint pg_catalog.text;
BEGIN
    IF pg_catalog.pg_current_xact_id_if_assigned() IS NOT NULL THEN
        PERFORM queue_proxy.refuse_transaction('queue_cancel_where');
    END IF;
    RETURN queue_proxy.queue_cancel_where($1, $2,
        queue_proxy.shard($1, _settings[1]), _settings);
EXCEPTION WHEN OTHERS OR query_canceled THEN
    GET STACKED DIAGNOSTICS _message = MESSAGE_TEXT,
        _detail = PG_EXCEPTION_DETAIL, _hint = PG_EXCEPTION_HINT;
    PERFORM queue_proxy.reraise(SQLSTATE, _message, _detail, _hint);
END
$$;
COMMENT ON FUNCTION @extschema@.queue_cancel_where(text, jsonb, text, text) IS
'cancels the messages whose bodies contain the filter (the operator @>), as message_cancel does, and returns how many there were; it reads the whole queue, and locks nothing before it has. Errors: 22004 filter, 42501 no right to claim. Source: River, canceling many jobs';

CREATE OR REPLACE FUNCTION @extschema@.queue_channel(
    q text,
    project text DEFAULT NULL,
    client_id text DEFAULT NULL)
RETURNS text
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
AS $$
BEGIN
    RAISE EXCEPTION 'queue_channel() cannot be called through a router'
        USING ERRCODE = 'feature_not_supported',
        HINT = 'LISTEN on a direct connection to the server of the queue, or use queue_wait().';
END
$$;
COMMENT ON FUNCTION @extschema@.queue_channel(text, text, text) IS
'raises an error, 0A000: it cannot be called through a router';

CREATE OR REPLACE FUNCTION queue_proxy.queue_claim(text, integer, integer, integer, integer, text[])
RETURNS SETOF @extschema@.queue_message
LANGUAGE plproxy VOLATILE PARALLEL UNSAFE ROWS 10
AS $$
CLUSTER '';
RUN ON $5;
SELECT f.* FROM @extschema@.queue_claim(
    CASE WHEN queue_router.call_settings($6) THEN $1 END, $2, $3, $4) AS f;
$$;

CREATE OR REPLACE FUNCTION @extschema@.queue_claim(
    q text,
    ttl integer DEFAULT 300,
    grace integer DEFAULT 60,
    "limit" integer DEFAULT NULL::integer,
    project text DEFAULT NULL,
    client_id text DEFAULT NULL)
RETURNS SETOF @extschema@.queue_message
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE ROWS 10
AS $$
DECLARE
    _settings pg_catalog.text[] := queue_proxy.settings($5, $6);
    _message pg_catalog.text;
    _detail pg_catalog.text;
    _hint pg_catalog.text;
BEGIN
    IF pg_catalog.pg_current_xact_id_if_assigned() IS NOT NULL THEN
        PERFORM queue_proxy.refuse_transaction('queue_claim');
    END IF;
    RETURN QUERY SELECT * FROM queue_proxy.queue_claim($1, $2, $3, $4,
        queue_proxy.shard($1, _settings[1]), _settings);
EXCEPTION WHEN OTHERS OR query_canceled THEN
    GET STACKED DIAGNOSTICS _message = MESSAGE_TEXT,
        _detail = PG_EXCEPTION_DETAIL, _hint = PG_EXCEPTION_HINT;
    PERFORM queue_proxy.reraise(SQLSTATE, _message, _detail, _hint);
END
$$;
COMMENT ON FUNCTION @extschema@.queue_claim(text, integer, integer, integer, text, text) IS
'claims up to limit (NULL: queue.default_claim_limit) free messages, highest priority first, oldest first, for ttl seconds, and extends their lifetime to at least grace seconds beyond that; all of them have one claim_id. No row: nothing is free, or the queue is unknown or paused. Errors: 22023/22004 argument, 42501. Source: Zaqar and Cloud Queues, claim messages';

CREATE OR REPLACE FUNCTION queue_proxy.queue_claim_any(text[], integer, integer, integer, integer[], text[])
RETURNS SETOF @extschema@.queue_message
LANGUAGE plproxy VOLATILE PARALLEL UNSAFE ROWS 10
AS $$
CLUSTER '';
RUN ON pg_catalog.unnest($5);
SELECT f.* FROM @extschema@.queue_claim_any(
    CASE WHEN queue_router.call_settings($6) THEN $1 END, $2, $3, $4) AS f;
$$;

CREATE OR REPLACE FUNCTION @extschema@.queue_claim_any(
    queues text[] DEFAULT NULL::text[],
    ttl integer DEFAULT 300,
    grace integer DEFAULT 60,
    "limit" integer DEFAULT NULL::integer,
    project text DEFAULT NULL,
    client_id text DEFAULT NULL)
RETURNS SETOF @extschema@.queue_message
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE ROWS 10
AS $$
DECLARE
    _settings pg_catalog.text[] := queue_proxy.settings($5, $6);
    _shard integer;
    _answered boolean := false;
    _queues pg_catalog.text[];
    _one boolean := queue_proxy.is_invalid($1);
    _message pg_catalog.text;
    _detail pg_catalog.text;
    _hint pg_catalog.text;
BEGIN
    IF pg_catalog.pg_current_xact_id_if_assigned() IS NOT NULL THEN
        PERFORM queue_proxy.refuse_transaction('queue_claim_any');
    END IF;
    FOR _shard, _queues IN
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
    END IF;
EXCEPTION WHEN OTHERS OR query_canceled THEN
    GET STACKED DIAGNOSTICS _message = MESSAGE_TEXT,
        _detail = PG_EXCEPTION_DETAIL, _hint = PG_EXCEPTION_HINT;
    PERFORM queue_proxy.reraise(SQLSTATE, _message, _detail, _hint);
END
$$;
COMMENT ON FUNCTION @extschema@.queue_claim_any(text[], integer, integer, integer, text, text) IS
'claims as queue_claim does from the first of these queues (NULL: all of the session''s project that it may claim from) that has something free; each call starts with another queue. Errors: as queue_claim. Source: MediaWiki, JobQueueGroup::pop';

CREATE OR REPLACE FUNCTION queue_proxy.queue_create(text, jsonb, integer, text[])
RETURNS boolean
LANGUAGE plproxy VOLATILE PARALLEL UNSAFE
AS $$
CLUSTER '';
RUN ON $3;
SELECT @extschema@.queue_create(
    CASE WHEN queue_router.call_settings($4) THEN $1 END, $2) AS r;
$$;

CREATE OR REPLACE FUNCTION @extschema@.queue_create(
    q text,
    metadata jsonb DEFAULT '{}'::jsonb,
    project text DEFAULT NULL,
    client_id text DEFAULT NULL)
RETURNS boolean
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
AS $$
DECLARE
    _settings pg_catalog.text[] := queue_proxy.settings($3, $4);
    _message pg_catalog.text;
    _detail pg_catalog.text;
    _hint pg_catalog.text;
BEGIN
    IF pg_catalog.pg_current_xact_id_if_assigned() IS NOT NULL THEN
        PERFORM queue_proxy.refuse_transaction('queue_create');
    END IF;
    RETURN queue_proxy.queue_create($1, $2,
        queue_proxy.shard($1, _settings[1]), _settings);
EXCEPTION WHEN OTHERS OR query_canceled THEN
    GET STACKED DIAGNOSTICS _message = MESSAGE_TEXT,
        _detail = PG_EXCEPTION_DETAIL, _hint = PG_EXCEPTION_HINT;
    PERFORM queue_proxy.reraise(SQLSTATE, _message, _detail, _hint);
END
$$;
COMMENT ON FUNCTION @extschema@.queue_create(text, jsonb, text, text) IS
'creates queue q with this metadata, and the dead letter queue that the metadata requires; true: created, false: it exists and is unchanged. Errors: 22023 name or reserved key, 54000 metadata over 65536 bytes, 42501 not a member of queue_producer or queue_admin, or the dead letter queue does not allow the push. Source: Zaqar, create queue';

CREATE OR REPLACE FUNCTION queue_proxy.queue_dead_letters(text, integer, integer, text[])
RETURNS TABLE(id bigint, body jsonb, origin_queue text, origin_id bigint, reason text, last_error text, claim_count integer, died_at timestamp with time zone)
LANGUAGE plproxy VOLATILE PARALLEL UNSAFE ROWS 10
AS $$
CLUSTER '';
RUN ON $3;
SELECT f.* FROM @extschema@.queue_dead_letters(
    CASE WHEN queue_router.call_settings($4) THEN $1 END, $2) AS f;
$$;

CREATE OR REPLACE FUNCTION @extschema@.queue_dead_letters(
    q text,
    "limit" integer DEFAULT 10,
    project text DEFAULT NULL,
    client_id text DEFAULT NULL)
RETURNS TABLE(id bigint, body jsonb, origin_queue text, origin_id bigint, reason text, last_error text, claim_count integer, died_at timestamp with time zone)
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE ROWS 10
AS $$
DECLARE
    _settings pg_catalog.text[] := queue_proxy.settings($3, $4);
    _message pg_catalog.text;
    _detail pg_catalog.text;
    _hint pg_catalog.text;
BEGIN
    RETURN QUERY SELECT * FROM queue_proxy.queue_dead_letters($1, $2,
        queue_proxy.shard($1, _settings[1]), _settings);
EXCEPTION WHEN OTHERS OR query_canceled THEN
    GET STACKED DIAGNOSTICS _message = MESSAGE_TEXT,
        _detail = PG_EXCEPTION_DETAIL, _hint = PG_EXCEPTION_HINT;
    PERFORM queue_proxy.reraise(SQLSTATE, _message, _detail, _hint);
END
$$;
COMMENT ON FUNCTION @extschema@.queue_dead_letters(text, integer, text, text) IS
'dead letters in queue q, oldest first, at most limit (1 to 10000) of them: where each came from and why. Errors: 22023/22004 argument, 42501. Source: Zaqar, dead letter queue';

CREATE OR REPLACE FUNCTION queue_proxy.queue_dedup_key(jsonb, text[], integer[], text[])
RETURNS SETOF text
LANGUAGE plproxy VOLATILE PARALLEL UNSAFE
AS $$
CLUSTER '';
RUN ON pg_catalog.unnest($3);
SELECT @extschema@.queue_dedup_key(
    CASE WHEN queue_router.call_settings($4) THEN $1 END, $2) AS r;
$$;

CREATE OR REPLACE FUNCTION @extschema@.queue_dedup_key(
    body jsonb,
    ignore text[] DEFAULT '{}'::text[],
    project text DEFAULT NULL,
    client_id text DEFAULT NULL)
RETURNS text
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
AS $$
DECLARE
    _settings pg_catalog.text[] := queue_proxy.settings($3, $4);
    _shard integer;
    _answered boolean := false;
    _message pg_catalog.text;
    _detail pg_catalog.text;
    _hint pg_catalog.text;
BEGIN
    RETURN (SELECT k FROM queue_proxy.queue_dedup_key($1, $2,
        (SELECT ARRAY[s.shard] FROM queue_proxy.servers() AS s LIMIT 1),
        _settings) AS k);
EXCEPTION WHEN OTHERS OR query_canceled THEN
    GET STACKED DIAGNOSTICS _message = MESSAGE_TEXT,
        _detail = PG_EXCEPTION_DETAIL, _hint = PG_EXCEPTION_HINT;
    PERFORM queue_proxy.reraise(SQLSTATE, _message, _detail, _hint);
END
$$;
COMMENT ON FUNCTION @extschema@.queue_dedup_key(jsonb, text[], text, text) IS
'a digest of body, to be used as dedup_key: the same for all bodies that are equal as jsonb. Keys of body that begin with rootJob, and those in ignore, are left out. Errors: 22004 argument. Source: MediaWiki, Job::getDeduplicationInfo';

CREATE OR REPLACE FUNCTION queue_proxy.queue_drop(text, integer, text[])
RETURNS boolean
LANGUAGE plproxy VOLATILE PARALLEL UNSAFE
AS $$
CLUSTER '';
RUN ON $2;
SELECT @extschema@.queue_drop(
    CASE WHEN queue_router.call_settings($3) THEN $1 END) AS r;
$$;

CREATE OR REPLACE FUNCTION @extschema@.queue_drop(
    q text,
    project text DEFAULT NULL,
    client_id text DEFAULT NULL)
RETURNS boolean
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
AS $$
DECLARE
    _settings pg_catalog.text[] := queue_proxy.settings($2, $3);
    _message pg_catalog.text;
    _detail pg_catalog.text;
    _hint pg_catalog.text;
BEGIN
    IF pg_catalog.pg_current_xact_id_if_assigned() IS NOT NULL THEN
        PERFORM queue_proxy.refuse_transaction('queue_drop');
    END IF;
    RETURN queue_proxy.queue_drop($1,
        queue_proxy.shard($1, _settings[1]), _settings);
EXCEPTION WHEN OTHERS OR query_canceled THEN
    GET STACKED DIAGNOSTICS _message = MESSAGE_TEXT,
        _detail = PG_EXCEPTION_DETAIL, _hint = PG_EXCEPTION_HINT;
    PERFORM queue_proxy.reraise(SQLSTATE, _message, _detail, _hint);
END
$$;
COMMENT ON FUNCTION @extschema@.queue_drop(text, text, text) IS
'drops queue q and its messages; false: it did not exist. Waits for transactions that push or claim; honors lock_timeout. Errors: 42501 no admin privilege, 2BP01 another queue sends its dead letters there. Source: Zaqar, delete queue';

CREATE OR REPLACE FUNCTION queue_proxy.queue_exists(text, integer, text[])
RETURNS boolean
LANGUAGE plproxy VOLATILE PARALLEL UNSAFE
AS $$
CLUSTER '';
RUN ON $2;
SELECT @extschema@.queue_exists(
    CASE WHEN queue_router.call_settings($3) THEN $1 END) AS r;
$$;

CREATE OR REPLACE FUNCTION @extschema@.queue_exists(
    q text,
    project text DEFAULT NULL,
    client_id text DEFAULT NULL)
RETURNS boolean
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
AS $$
DECLARE
    _settings pg_catalog.text[] := queue_proxy.settings($2, $3);
    _message pg_catalog.text;
    _detail pg_catalog.text;
    _hint pg_catalog.text;
BEGIN
    RETURN queue_proxy.queue_exists($1,
        queue_proxy.shard($1, _settings[1]), _settings);
EXCEPTION WHEN OTHERS OR query_canceled THEN
    GET STACKED DIAGNOSTICS _message = MESSAGE_TEXT,
        _detail = PG_EXCEPTION_DETAIL, _hint = PG_EXCEPTION_HINT;
    PERFORM queue_proxy.reraise(SQLSTATE, _message, _detail, _hint);
END
$$;
COMMENT ON FUNCTION @extschema@.queue_exists(text, text, text) IS
'true when queue q exists in the session''s project. Source: Zaqar, check queue existence';

CREATE OR REPLACE FUNCTION queue_proxy.queue_finished(text, bigint, integer, text, integer, text[])
RETURNS TABLE(id bigint, queue text, group_key text, batch bigint, outcome text, pushed_at timestamp with time zone, finished_at timestamp with time zone, attempts integer, result jsonb, error text, body jsonb)
LANGUAGE plproxy VOLATILE PARALLEL UNSAFE ROWS 10
AS $$
CLUSTER '';
RUN ON $5;
SELECT f.* FROM @extschema@.queue_finished(
    CASE WHEN queue_router.call_settings($6) THEN $1 END, $2, $3, $4) AS f;
$$;

CREATE OR REPLACE FUNCTION queue_proxy.queue_finished_call(text, bigint, integer, text, text, text)
RETURNS TABLE(id bigint, queue text, group_key text, batch bigint, outcome text, pushed_at timestamp with time zone, finished_at timestamp with time zone, attempts integer, result jsonb, error text, body jsonb)
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE ROWS 10
AS $$
DECLARE
    _settings pg_catalog.text[] := queue_proxy.settings($5, $6);
    _message pg_catalog.text;
    _detail pg_catalog.text;
    _hint pg_catalog.text;
BEGIN
    RETURN QUERY SELECT * FROM queue_proxy.queue_finished($1, $2, $3, $4,
        queue_proxy.shard($1, _settings[1]), _settings);
EXCEPTION WHEN OTHERS OR query_canceled THEN
    GET STACKED DIAGNOSTICS _message = MESSAGE_TEXT,
        _detail = PG_EXCEPTION_DETAIL, _hint = PG_EXCEPTION_HINT;
    PERFORM queue_proxy.reraise(SQLSTATE, _message, _detail, _hint);
END
$$;

CREATE OR REPLACE FUNCTION @extschema@.queue_finished(
    q text,
    marker bigint DEFAULT NULL::bigint,
    "limit" integer DEFAULT 10,
    outcome text DEFAULT NULL::text,
    project text DEFAULT NULL,
    client_id text DEFAULT NULL)
RETURNS TABLE(id bigint, queue text, group_key text, batch bigint, outcome text, pushed_at timestamp with time zone, finished_at timestamp with time zone, attempts integer, result jsonb, error text, body jsonb)
LANGUAGE sql VOLATILE PARALLEL UNSAFE ROWS 10
AS $$
SELECT * FROM queue_proxy.queue_finished_call($1, $2, $3, $4, $5, $6)
$$;
COMMENT ON FUNCTION @extschema@.queue_finished(text, bigint, integer, text, text, text) IS
'what became of messages of queue q in the last _keep_finished seconds, by id, after marker, at most limit (1 to 10000); outcome: only those that are completed, dead, expired, canceled, duplicate or deleted; result: of message_complete or job_result; error: the last one, NULL if completed; body: with _keep_body. No row without _keep_finished. Errors: 22023/22004 argument, 42501 no right to claim, or with _results_for_producers to push. Source: Oban, jobs that are kept';

CREATE OR REPLACE FUNCTION queue_proxy.queue_get(text, integer, text[])
RETURNS TABLE(name text, metadata jsonb, created_at timestamp with time zone, paused boolean)
LANGUAGE plproxy VOLATILE PARALLEL UNSAFE ROWS 1
AS $$
CLUSTER '';
RUN ON $2;
SELECT f.* FROM @extschema@.queue_get(
    CASE WHEN queue_router.call_settings($3) THEN $1 END) AS f;
$$;

CREATE OR REPLACE FUNCTION @extschema@.queue_get(
    q text,
    project text DEFAULT NULL,
    client_id text DEFAULT NULL)
RETURNS TABLE(name text, metadata jsonb, created_at timestamp with time zone, paused boolean)
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE ROWS 1
AS $$
DECLARE
    _settings pg_catalog.text[] := queue_proxy.settings($2, $3);
    _message pg_catalog.text;
    _detail pg_catalog.text;
    _hint pg_catalog.text;
BEGIN
    RETURN QUERY SELECT * FROM queue_proxy.queue_get($1,
        queue_proxy.shard($1, _settings[1]), _settings);
EXCEPTION WHEN OTHERS OR query_canceled THEN
    GET STACKED DIAGNOSTICS _message = MESSAGE_TEXT,
        _detail = PG_EXCEPTION_DETAIL, _hint = PG_EXCEPTION_HINT;
    PERFORM queue_proxy.reraise(SQLSTATE, _message, _detail, _hint);
END
$$;
COMMENT ON FUNCTION @extschema@.queue_get(text, text, text) IS
'one row that describes queue q; no row when it is unknown. Source: Zaqar, get queue metadata';

CREATE OR REPLACE FUNCTION queue_proxy.queue_grant(text, text, text, integer, text[])
RETURNS void
LANGUAGE plproxy VOLATILE PARALLEL UNSAFE
AS $$
CLUSTER '';
RUN ON $4;
SELECT @extschema@.queue_grant(
    CASE WHEN queue_router.call_settings($5) THEN $1 END, $2::regrole, $3) AS r;
$$;

CREATE OR REPLACE FUNCTION @extschema@.queue_grant(
    q text,
    role regrole,
    privilege text,
    project text DEFAULT NULL,
    client_id text DEFAULT NULL)
RETURNS void
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
AS $$
DECLARE
    _settings pg_catalog.text[] := queue_proxy.settings($4, $5);
    _message pg_catalog.text;
    _detail pg_catalog.text;
    _hint pg_catalog.text;
BEGIN
    IF pg_catalog.pg_current_xact_id_if_assigned() IS NOT NULL THEN
        PERFORM queue_proxy.refuse_transaction('queue_grant');
    END IF;
    PERFORM queue_proxy.queue_grant($1, $2::pg_catalog.text, $3,
        queue_proxy.shard($1, _settings[1]), _settings);
EXCEPTION WHEN OTHERS OR query_canceled THEN
    GET STACKED DIAGNOSTICS _message = MESSAGE_TEXT,
        _detail = PG_EXCEPTION_DETAIL, _hint = PG_EXCEPTION_HINT;
    PERFORM queue_proxy.reraise(SQLSTATE, _message, _detail, _hint);
END
$$;
COMMENT ON FUNCTION @extschema@.queue_grant(text, regrole, text, text, text) IS
'grants role a privilege on queue q: ''push'' or ''claim'', which roles that were not named then lose, or ''admin'', all that the owner can do. Errors: 42704 unknown queue or role, 22023 privilege, 42501 no admin privilege';

CREATE OR REPLACE FUNCTION queue_proxy.queue_groups(text, text, integer, integer, text[])
RETURNS TABLE(group_key text, free bigint, claimed bigint, delayed bigint, oldest_age integer)
LANGUAGE plproxy VOLATILE PARALLEL UNSAFE ROWS 1000
AS $$
CLUSTER '';
RUN ON $4;
SELECT f.* FROM @extschema@.queue_groups(
    CASE WHEN queue_router.call_settings($5) THEN $1 END, $2, $3) AS f;
$$;

CREATE OR REPLACE FUNCTION @extschema@.queue_groups(
    q text,
    marker text DEFAULT NULL::text,
    "limit" integer DEFAULT 10,
    project text DEFAULT NULL,
    client_id text DEFAULT NULL)
RETURNS TABLE(group_key text, free bigint, claimed bigint, delayed bigint, oldest_age integer)
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE ROWS 1000
AS $$
DECLARE
    _settings pg_catalog.text[] := queue_proxy.settings($4, $5);
    _message pg_catalog.text;
    _detail pg_catalog.text;
    _hint pg_catalog.text;
BEGIN
    RETURN QUERY SELECT * FROM queue_proxy.queue_groups($1, $2, $3,
        queue_proxy.shard($1, _settings[1]), _settings);
EXCEPTION WHEN OTHERS OR query_canceled THEN
    GET STACKED DIAGNOSTICS _message = MESSAGE_TEXT,
        _detail = PG_EXCEPTION_DETAIL, _hint = PG_EXCEPTION_HINT;
    PERFORM queue_proxy.reraise(SQLSTATE, _message, _detail, _hint);
END
$$;
COMMENT ON FUNCTION @extschema@.queue_groups(text, text, integer, text, text) IS
'the groups of queue q that have messages, by key, after marker, at most limit (1 to 10000): exact counts, and the age in seconds of the message with the lowest id; messages without a key are the first group, with a NULL key (the marker '''' begins after it); reads every message of the queue. Errors: 22023/22004 name or limit, 42501 no right to claim';

CREATE OR REPLACE FUNCTION queue_proxy.queue_is_empty(text, integer, text[])
RETURNS boolean
LANGUAGE plproxy VOLATILE PARALLEL UNSAFE
AS $$
CLUSTER '';
RUN ON $2;
SELECT @extschema@.queue_is_empty(
    CASE WHEN queue_router.call_settings($3) THEN $1 END) AS r;
$$;

CREATE OR REPLACE FUNCTION @extschema@.queue_is_empty(
    q text,
    project text DEFAULT NULL,
    client_id text DEFAULT NULL)
RETURNS boolean
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
AS $$
DECLARE
    _settings pg_catalog.text[] := queue_proxy.settings($2, $3);
    _message pg_catalog.text;
    _detail pg_catalog.text;
    _hint pg_catalog.text;
BEGIN
    RETURN queue_proxy.queue_is_empty($1,
        queue_proxy.shard($1, _settings[1]), _settings);
EXCEPTION WHEN OTHERS OR query_canceled THEN
    GET STACKED DIAGNOSTICS _message = MESSAGE_TEXT,
        _detail = PG_EXCEPTION_DETAIL, _hint = PG_EXCEPTION_HINT;
    PERFORM queue_proxy.reraise(SQLSTATE, _message, _detail, _hint);
END
$$;
COMMENT ON FUNCTION @extschema@.queue_is_empty(text, text, text) IS
'whether a claim of queue q would find nothing now; also true for an unknown or a paused queue. Errors: 22023/22004 argument, 42501. Source: MediaWiki, JobQueue::isEmpty';

CREATE OR REPLACE FUNCTION queue_proxy.queue_list(text, integer, text, integer[], text[])
RETURNS TABLE(name text, metadata jsonb, created_at timestamp with time zone, paused boolean)
LANGUAGE plproxy VOLATILE PARALLEL UNSAFE ROWS 10
AS $$
CLUSTER '';
RUN ON pg_catalog.unnest($4);
SELECT f.* FROM @extschema@.queue_list(
    CASE WHEN queue_router.call_settings($5) THEN $1 END, $2, $3) AS f;
$$;

CREATE OR REPLACE FUNCTION @extschema@.queue_list(
    marker text DEFAULT NULL::text,
    "limit" integer DEFAULT 10,
    pattern text DEFAULT NULL::text,
    project text DEFAULT NULL,
    client_id text DEFAULT NULL)
RETURNS TABLE(name text, metadata jsonb, created_at timestamp with time zone, paused boolean)
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE ROWS 10
AS $$
DECLARE
    _settings pg_catalog.text[] := queue_proxy.settings($4, $5);
    _shard integer;
    _answered boolean := false;
    _message pg_catalog.text;
    _detail pg_catalog.text;
    _hint pg_catalog.text;
BEGIN
    RETURN QUERY
        SELECT * FROM queue_proxy.queue_list($1, $2, $3,
            (SELECT pg_catalog.array_agg(s.shard) FROM queue_proxy.servers() AS s),
            _settings) AS l
        ORDER BY l.name COLLATE pg_catalog."C" LIMIT GREATEST($2, 1);
EXCEPTION WHEN OTHERS OR query_canceled THEN
    GET STACKED DIAGNOSTICS _message = MESSAGE_TEXT,
        _detail = PG_EXCEPTION_DETAIL, _hint = PG_EXCEPTION_HINT;
    PERFORM queue_proxy.reraise(SQLSTATE, _message, _detail, _hint);
END
$$;
COMMENT ON FUNCTION @extschema@.queue_list(text, integer, text, text, text) IS
'queues of the session''s project by name, after the marker, at most limit (1 to 10000) of them, names matching the regular expression pattern. Errors: 22023/22004 limit, 2201B pattern. Source: Zaqar, list queues';

CREATE OR REPLACE FUNCTION queue_proxy.queue_messages(text, bigint, integer, boolean, boolean, boolean, integer, text[])
RETURNS SETOF @extschema@.queue_message
LANGUAGE plproxy VOLATILE PARALLEL UNSAFE ROWS 10
AS $$
CLUSTER '';
RUN ON $7;
SELECT f.* FROM @extschema@.queue_messages(
    CASE WHEN queue_router.call_settings($8) THEN $1 END, $2, $3, $4, $5, $6) AS f;
$$;

CREATE OR REPLACE FUNCTION @extschema@.queue_messages(
    q text,
    marker bigint DEFAULT NULL::bigint,
    "limit" integer DEFAULT 10,
    echo boolean DEFAULT false,
    include_claimed boolean DEFAULT false,
    include_delayed boolean DEFAULT false,
    project text DEFAULT NULL,
    client_id text DEFAULT NULL)
RETURNS SETOF @extschema@.queue_message
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE ROWS 10
AS $$
DECLARE
    _settings pg_catalog.text[] := queue_proxy.settings($7, $8);
    _message pg_catalog.text;
    _detail pg_catalog.text;
    _hint pg_catalog.text;
BEGIN
    RETURN QUERY SELECT * FROM queue_proxy.queue_messages($1, $2, $3, $4, $5, $6,
        queue_proxy.shard($1, _settings[1]), _settings);
EXCEPTION WHEN OTHERS OR query_canceled THEN
    GET STACKED DIAGNOSTICS _message = MESSAGE_TEXT,
        _detail = PG_EXCEPTION_DETAIL, _hint = PG_EXCEPTION_HINT;
    PERFORM queue_proxy.reraise(SQLSTATE, _message, _detail, _hint);
END
$$;
COMMENT ON FUNCTION @extschema@.queue_messages(text, bigint, integer, boolean, boolean, boolean, text, text) IS
'messages of queue q by id, after the marker, at most limit (1 to 10000) of them; without echo not those pushed under the session''s own queue.client_id. Errors: 22023/22004 argument, 42501. Source: Zaqar, list messages';

CREATE OR REPLACE FUNCTION queue_proxy.queue_pause(text, integer, text[])
RETURNS boolean
LANGUAGE plproxy VOLATILE PARALLEL UNSAFE
AS $$
CLUSTER '';
RUN ON $2;
SELECT @extschema@.queue_pause(
    CASE WHEN queue_router.call_settings($3) THEN $1 END) AS r;
$$;

CREATE OR REPLACE FUNCTION @extschema@.queue_pause(
    q text,
    project text DEFAULT NULL,
    client_id text DEFAULT NULL)
RETURNS boolean
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
AS $$
DECLARE
    _settings pg_catalog.text[] := queue_proxy.settings($2, $3);
    _message pg_catalog.text;
    _detail pg_catalog.text;
    _hint pg_catalog.text;
BEGIN
    IF pg_catalog.pg_current_xact_id_if_assigned() IS NOT NULL THEN
        PERFORM queue_proxy.refuse_transaction('queue_pause');
    END IF;
    RETURN queue_proxy.queue_pause($1,
        queue_proxy.shard($1, _settings[1]), _settings);
EXCEPTION WHEN OTHERS OR query_canceled THEN
    GET STACKED DIAGNOSTICS _message = MESSAGE_TEXT,
        _detail = PG_EXCEPTION_DETAIL, _hint = PG_EXCEPTION_HINT;
    PERFORM queue_proxy.reraise(SQLSTATE, _message, _detail, _hint);
END
$$;
COMMENT ON FUNCTION @extschema@.queue_pause(text, text, text) IS
'pauses queue q: it accepts pushes but allows no claims; true: now paused, false: it was paused already. Errors: 42704 unknown queue, 42501 no admin privilege';

CREATE OR REPLACE FUNCTION queue_proxy.queue_pop(text, integer, integer, text[])
RETURNS SETOF @extschema@.queue_message
LANGUAGE plproxy VOLATILE PARALLEL UNSAFE ROWS 10
AS $$
CLUSTER '';
RUN ON $3;
SELECT f.* FROM @extschema@.queue_pop(
    CASE WHEN queue_router.call_settings($4) THEN $1 END, $2) AS f;
$$;

CREATE OR REPLACE FUNCTION @extschema@.queue_pop(
    q text,
    "limit" integer DEFAULT 1,
    project text DEFAULT NULL,
    client_id text DEFAULT NULL)
RETURNS SETOF @extschema@.queue_message
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE ROWS 10
AS $$
DECLARE
    _settings pg_catalog.text[] := queue_proxy.settings($3, $4);
    _message pg_catalog.text;
    _detail pg_catalog.text;
    _hint pg_catalog.text;
BEGIN
    IF pg_catalog.pg_current_xact_id_if_assigned() IS NOT NULL THEN
        PERFORM queue_proxy.refuse_transaction('queue_pop');
    END IF;
    RETURN QUERY SELECT * FROM queue_proxy.queue_pop($1, $2,
        queue_proxy.shard($1, _settings[1]), _settings);
EXCEPTION WHEN OTHERS OR query_canceled THEN
    GET STACKED DIAGNOSTICS _message = MESSAGE_TEXT,
        _detail = PG_EXCEPTION_DETAIL, _hint = PG_EXCEPTION_HINT;
    PERFORM queue_proxy.reraise(SQLSTATE, _message, _detail, _hint);
END
$$;
COMMENT ON FUNCTION @extschema@.queue_pop(text, integer, text, text) IS
'deletes and returns up to limit (1 to queue.max_claim_limit) free messages, highest priority first, oldest first; delivery is at most once. Errors: 22023/22004 argument, 42501. Source: Zaqar, pop messages';

CREATE OR REPLACE FUNCTION queue_proxy.queue_post(text, jsonb, integer, text[])
RETURNS bigint[]
LANGUAGE plproxy VOLATILE PARALLEL UNSAFE
AS $$
CLUSTER '';
RUN ON $3;
SELECT @extschema@.queue_post(
    CASE WHEN queue_router.call_settings($4) THEN $1 END, $2) AS r;
$$;

CREATE OR REPLACE FUNCTION @extschema@.queue_post(
    q text,
    messages jsonb,
    project text DEFAULT NULL,
    client_id text DEFAULT NULL)
RETURNS bigint[]
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
AS $$
DECLARE
    _settings pg_catalog.text[] := queue_proxy.settings($3, $4);
    _message pg_catalog.text;
    _detail pg_catalog.text;
    _hint pg_catalog.text;
BEGIN
    IF pg_catalog.pg_current_xact_id_if_assigned() IS NOT NULL THEN
        PERFORM queue_proxy.refuse_transaction('queue_post');
    END IF;
    RETURN queue_proxy.queue_post($1, $2,
        queue_proxy.shard(COALESCE($1, ($2 OPERATOR(pg_catalog.->) 0) OPERATOR(pg_catalog.->>) 'queue'), _settings[1]), _settings);
EXCEPTION WHEN OTHERS OR query_canceled THEN
    GET STACKED DIAGNOSTICS _message = MESSAGE_TEXT,
        _detail = PG_EXCEPTION_DETAIL, _hint = PG_EXCEPTION_HINT;
    PERFORM queue_proxy.reraise(SQLSTATE, _message, _detail, _hint);
END
$$;
COMMENT ON FUNCTION @extschema@.queue_post(text, jsonb, text, text) IS
'pushes an array of {"body", "ttl", "delay", "priority", "dedup_key", "group_key", "headers", "batch", "after", "after_success"} (only body is required), all or nothing, and returns the ids in that order, NULL where one was dropped as a duplicate. If q is NULL, each object has a field "queue", too. Errors: as queue_push; 22004 a message without a queue. Source: Zaqar, post messages; MediaWiki, JobQueueGroup::push';

CREATE OR REPLACE FUNCTION queue_proxy.queue_purge(text, integer, text[])
RETURNS bigint
LANGUAGE plproxy VOLATILE PARALLEL UNSAFE
AS $$
CLUSTER '';
RUN ON $2;
SELECT @extschema@.queue_purge(
    CASE WHEN queue_router.call_settings($3) THEN $1 END) AS r;
$$;

CREATE OR REPLACE FUNCTION @extschema@.queue_purge(
    q text,
    project text DEFAULT NULL,
    client_id text DEFAULT NULL)
RETURNS bigint
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
AS $$
DECLARE
    _settings pg_catalog.text[] := queue_proxy.settings($2, $3);
    _message pg_catalog.text;
    _detail pg_catalog.text;
    _hint pg_catalog.text;
BEGIN
    IF pg_catalog.pg_current_xact_id_if_assigned() IS NOT NULL THEN
        PERFORM queue_proxy.refuse_transaction('queue_purge');
    END IF;
    RETURN queue_proxy.queue_purge($1,
        queue_proxy.shard($1, _settings[1]), _settings);
EXCEPTION WHEN OTHERS OR query_canceled THEN
    GET STACKED DIAGNOSTICS _message = MESSAGE_TEXT,
        _detail = PG_EXCEPTION_DETAIL, _hint = PG_EXCEPTION_HINT;
    PERFORM queue_proxy.reraise(SQLSTATE, _message, _detail, _hint);
END
$$;
COMMENT ON FUNCTION @extschema@.queue_purge(text, text, text) IS
'removes all messages of queue q, claimed and delayed ones too, and returns their number. Waits for transactions that push or claim; honors lock_timeout. Errors: 42501 no admin privilege. Source: Zaqar, purge queue';

CREATE OR REPLACE FUNCTION queue_proxy.queue_push(text, jsonb, integer, integer, integer, text, text, jsonb, bigint, bigint, boolean, integer, text[])
RETURNS bigint
LANGUAGE plproxy VOLATILE PARALLEL UNSAFE
AS $$
CLUSTER '';
RUN ON $12;
SELECT @extschema@.queue_push(
    CASE WHEN queue_router.call_settings($13) THEN $1 END, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11) AS r;
$$;

CREATE OR REPLACE FUNCTION @extschema@.queue_push(
    q text,
    body jsonb,
    ttl integer DEFAULT NULL::integer,
    delay integer DEFAULT NULL::integer,
    priority integer DEFAULT 0,
    dedup_key text DEFAULT NULL::text,
    group_key text DEFAULT NULL::text,
    headers jsonb DEFAULT NULL::jsonb,
    batch bigint DEFAULT NULL::bigint,
    after bigint DEFAULT NULL::bigint,
    after_success boolean DEFAULT false,
    project text DEFAULT NULL,
    client_id text DEFAULT NULL)
RETURNS bigint
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
AS $$
DECLARE
    _settings pg_catalog.text[] := queue_proxy.settings($12, $13);
    _message pg_catalog.text;
    _detail pg_catalog.text;
    _hint pg_catalog.text;
BEGIN
    IF pg_catalog.pg_current_xact_id_if_assigned() IS NOT NULL THEN
        PERFORM queue_proxy.refuse_transaction('queue_push');
    END IF;
    RETURN queue_proxy.queue_push($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11,
        queue_proxy.shard($1, _settings[1]), _settings);
EXCEPTION WHEN OTHERS OR query_canceled THEN
    GET STACKED DIAGNOSTICS _message = MESSAGE_TEXT,
        _detail = PG_EXCEPTION_DETAIL, _hint = PG_EXCEPTION_HINT;
    PERFORM queue_proxy.reraise(SQLSTATE, _message, _detail, _hint);
END
$$;
COMMENT ON FUNCTION @extschema@.queue_push(text, jsonb, integer, integer, integer, text, text, jsonb, bigint, bigint, boolean, text, text) IS
'pushes one message that lives ttl seconds and is handed out after delay seconds, priority 0 to 9 (higher first); returns its id, NULL when an unclaimed message with this dedup_key waits. group_key: 1 to 256 bytes, the message''s group. headers: returned with the message, counted toward the size of its body. batch: the message is a member of it. after: the message waits until that batch has finished; with after_success it becomes a dead letter if a member failed. Errors: 22023/22004 argument, 54000 body too large, 42704 unknown queue with queue.auto_create off, unknown batch, 55000 the batch has finished, 42501. Source: Zaqar, post message; MediaWiki, JobQueue::push';

CREATE OR REPLACE FUNCTION queue_proxy.queue_push_batch(text, jsonb[], integer, integer, integer, text[], bigint, bigint, boolean, integer, text[])
RETURNS bigint[]
LANGUAGE plproxy VOLATILE PARALLEL UNSAFE
AS $$
CLUSTER '';
RUN ON $10;
SELECT @extschema@.queue_push_batch(
    CASE WHEN queue_router.call_settings($11) THEN $1 END, $2, $3, $4, $5, $6, $7, $8, $9) AS r;
$$;

CREATE OR REPLACE FUNCTION @extschema@.queue_push_batch(
    q text,
    bodies jsonb[],
    ttl integer DEFAULT NULL::integer,
    delay integer DEFAULT NULL::integer,
    priority integer DEFAULT 0,
    group_keys text[] DEFAULT NULL::text[],
    batch bigint DEFAULT NULL::bigint,
    after bigint DEFAULT NULL::bigint,
    after_success boolean DEFAULT false,
    project text DEFAULT NULL,
    client_id text DEFAULT NULL)
RETURNS bigint[]
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
AS $$
DECLARE
    _settings pg_catalog.text[] := queue_proxy.settings($10, $11);
    _message pg_catalog.text;
    _detail pg_catalog.text;
    _hint pg_catalog.text;
BEGIN
    IF pg_catalog.pg_current_xact_id_if_assigned() IS NOT NULL THEN
        PERFORM queue_proxy.refuse_transaction('queue_push_batch');
    END IF;
    RETURN queue_proxy.queue_push_batch($1, $2, $3, $4, $5, $6, $7, $8, $9,
        queue_proxy.shard($1, _settings[1]), _settings);
EXCEPTION WHEN OTHERS OR query_canceled THEN
    GET STACKED DIAGNOSTICS _message = MESSAGE_TEXT,
        _detail = PG_EXCEPTION_DETAIL, _hint = PG_EXCEPTION_HINT;
    PERFORM queue_proxy.reraise(SQLSTATE, _message, _detail, _hint);
END
$$;
COMMENT ON FUNCTION @extschema@.queue_push_batch(text, jsonb[], integer, integer, integer, text[], bigint, bigint, boolean, text, text) IS
'pushes one message for each body, all or nothing, and returns their ids in that order; group_keys has one element for each. Arguments and errors: as queue_push; at most queue.max_push_count bodies. Source: MediaWiki, JobQueue::batchPush';

CREATE OR REPLACE FUNCTION @extschema@.queue_push_lazy(
    q text,
    body jsonb,
    ttl integer DEFAULT NULL::integer,
    delay integer DEFAULT NULL::integer,
    priority integer DEFAULT 0,
    dedup_key text DEFAULT NULL::text,
    group_key text DEFAULT NULL::text,
    headers jsonb DEFAULT NULL::jsonb,
    project text DEFAULT NULL,
    client_id text DEFAULT NULL)
RETURNS void
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
AS $$
BEGIN
    RAISE EXCEPTION 'queue_push_lazy() cannot be called through a router'
        USING ERRCODE = 'feature_not_supported',
        HINT = 'Call queue_push(), or connect to the server of the queue.';
END
$$;
COMMENT ON FUNCTION @extschema@.queue_push_lazy(text, jsonb, integer, integer, integer, text, text, jsonb, text, text) IS
'raises an error, 0A000: it cannot be called through a router';

CREATE OR REPLACE FUNCTION queue_proxy.queue_push_once(text, text, bigint, jsonb, integer, integer, integer, text, text, jsonb, bigint, bigint, boolean, integer, text[])
RETURNS bigint
LANGUAGE plproxy VOLATILE PARALLEL UNSAFE
AS $$
CLUSTER '';
RUN ON $14;
SELECT @extschema@.queue_push_once(
    CASE WHEN queue_router.call_settings($15) THEN $1 END, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13) AS r;
$$;

CREATE OR REPLACE FUNCTION @extschema@.queue_push_once(
    q text,
    origin text,
    origin_id bigint,
    body jsonb,
    ttl integer DEFAULT NULL::integer,
    delay integer DEFAULT NULL::integer,
    priority integer DEFAULT 0,
    dedup_key text DEFAULT NULL::text,
    group_key text DEFAULT NULL::text,
    headers jsonb DEFAULT NULL::jsonb,
    batch bigint DEFAULT NULL::bigint,
    after bigint DEFAULT NULL::bigint,
    after_success boolean DEFAULT false,
    project text DEFAULT NULL,
    client_id text DEFAULT NULL)
RETURNS bigint
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
AS $$
DECLARE
    _settings pg_catalog.text[] := queue_proxy.settings($14, $15);
    _message pg_catalog.text;
    _detail pg_catalog.text;
    _hint pg_catalog.text;
BEGIN
    RETURN queue_proxy.queue_push_once($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13,
        queue_proxy.shard($1, _settings[1]), _settings);
EXCEPTION WHEN OTHERS OR query_canceled THEN
    GET STACKED DIAGNOSTICS _message = MESSAGE_TEXT,
        _detail = PG_EXCEPTION_DETAIL, _hint = PG_EXCEPTION_HINT;
    PERFORM queue_proxy.reraise(SQLSTATE, _message, _detail, _hint);
END
$$;
COMMENT ON FUNCTION @extschema@.queue_push_once(text, text, bigint, jsonb, integer, integer, integer, text, text, jsonb, bigint, bigint, boolean, text, text) IS
'pushes one message, unless a call with this queue, origin (1 to 256 bytes) and origin_id did so in the last 28 days, and returns what that call has returned: the id, NULL when it was dropped as a duplicate. A call that is in progress is waited for. Other arguments and errors: as queue_push';

CREATE OR REPLACE FUNCTION queue_proxy.queue_ready(integer[], text[])
RETURNS SETOF text
LANGUAGE plproxy VOLATILE PARALLEL UNSAFE ROWS 1000
AS $$
CLUSTER '';
RUN ON pg_catalog.unnest($1);
SELECT @extschema@.queue_ready() AS r
FROM (SELECT queue_router.call_settings($2) OFFSET 0) AS s;
$$;

CREATE OR REPLACE FUNCTION @extschema@.queue_ready(
    project text DEFAULT NULL,
    client_id text DEFAULT NULL)
RETURNS SETOF text
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE ROWS 1000
AS $$
DECLARE
    _settings pg_catalog.text[] := queue_proxy.settings($1, $2);
    _shard integer;
    _answered boolean := false;
    _message pg_catalog.text;
    _detail pg_catalog.text;
    _hint pg_catalog.text;
BEGIN
    BEGIN
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
    END IF;
EXCEPTION WHEN OTHERS OR query_canceled THEN
    GET STACKED DIAGNOSTICS _message = MESSAGE_TEXT,
        _detail = PG_EXCEPTION_DETAIL, _hint = PG_EXCEPTION_HINT;
    PERFORM queue_proxy.reraise(SQLSTATE, _message, _detail, _hint);
END
$$;
COMMENT ON FUNCTION @extschema@.queue_ready(text, text) IS
'the names of the queues of the session''s project that have something to claim. Source: MediaWiki, JobQueueAggregator';

CREATE OR REPLACE FUNCTION @extschema@.queue_ready_in_projects()
RETURNS TABLE(project text, queue text)
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE ROWS 1000
AS $$
BEGIN
    RAISE EXCEPTION 'queue_ready_in_projects() cannot be called through a router'
        USING ERRCODE = 'feature_not_supported',
        HINT = 'Connect to each server and call it there.';
END
$$;
COMMENT ON FUNCTION @extschema@.queue_ready_in_projects() IS
'raises an error, 0A000: it cannot be called through a router';

CREATE OR REPLACE FUNCTION queue_proxy.queue_redrive(text, text, integer, integer, text[])
RETURNS bigint
LANGUAGE plproxy VOLATILE PARALLEL UNSAFE
AS $$
CLUSTER '';
RUN ON $4;
SELECT @extschema@.queue_redrive(
    CASE WHEN queue_router.call_settings($5) THEN $1 END, $2, $3) AS r;
$$;

CREATE OR REPLACE FUNCTION @extschema@.queue_redrive(
    q text,
    target text DEFAULT NULL::text,
    "limit" integer DEFAULT NULL::integer,
    project text DEFAULT NULL,
    client_id text DEFAULT NULL)
RETURNS bigint
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
AS $$
DECLARE
    _settings pg_catalog.text[] := queue_proxy.settings($4, $5);
    _message pg_catalog.text;
    _detail pg_catalog.text;
    _hint pg_catalog.text;
BEGIN
    IF pg_catalog.pg_current_xact_id_if_assigned() IS NOT NULL THEN
        PERFORM queue_proxy.refuse_transaction('queue_redrive');
    END IF;
    RETURN queue_proxy.queue_redrive($1, $2, $3,
        queue_proxy.shard($1, _settings[1]), _settings);
EXCEPTION WHEN OTHERS OR query_canceled THEN
    GET STACKED DIAGNOSTICS _message = MESSAGE_TEXT,
        _detail = PG_EXCEPTION_DETAIL, _hint = PG_EXCEPTION_HINT;
    PERFORM queue_proxy.reraise(SQLSTATE, _message, _detail, _hint);
END
$$;
COMMENT ON FUNCTION @extschema@.queue_redrive(text, text, integer, text, text) IS
'moves up to limit (NULL: all) dead letters of queue q, oldest first, back to the queues that they came from or to target, as new messages with claim_count 0; returns their number. Errors: 22023/22004 argument, 42704 unknown target with queue.auto_create off, 42501 no right to claim from q or to push to the target; without a target also if the original queue was dropped and another role has created one of that name. Source: Amazon SQS, redrive';

CREATE OR REPLACE FUNCTION queue_proxy.queue_resume(text, integer, text[])
RETURNS boolean
LANGUAGE plproxy VOLATILE PARALLEL UNSAFE
AS $$
CLUSTER '';
RUN ON $2;
SELECT @extschema@.queue_resume(
    CASE WHEN queue_router.call_settings($3) THEN $1 END) AS r;
$$;

CREATE OR REPLACE FUNCTION @extschema@.queue_resume(
    q text,
    project text DEFAULT NULL,
    client_id text DEFAULT NULL)
RETURNS boolean
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
AS $$
DECLARE
    _settings pg_catalog.text[] := queue_proxy.settings($2, $3);
    _message pg_catalog.text;
    _detail pg_catalog.text;
    _hint pg_catalog.text;
BEGIN
    IF pg_catalog.pg_current_xact_id_if_assigned() IS NOT NULL THEN
        PERFORM queue_proxy.refuse_transaction('queue_resume');
    END IF;
    RETURN queue_proxy.queue_resume($1,
        queue_proxy.shard($1, _settings[1]), _settings);
EXCEPTION WHEN OTHERS OR query_canceled THEN
    GET STACKED DIAGNOSTICS _message = MESSAGE_TEXT,
        _detail = PG_EXCEPTION_DETAIL, _hint = PG_EXCEPTION_HINT;
    PERFORM queue_proxy.reraise(SQLSTATE, _message, _detail, _hint);
END
$$;
COMMENT ON FUNCTION @extschema@.queue_resume(text, text, text) IS
'ends the pause of queue q; true: now running, false: it was not paused. Errors: 42704 unknown queue, 42501 no admin privilege';

CREATE OR REPLACE FUNCTION queue_proxy.queue_revoke(text, text, text, integer, text[])
RETURNS void
LANGUAGE plproxy VOLATILE PARALLEL UNSAFE
AS $$
CLUSTER '';
RUN ON $4;
SELECT @extschema@.queue_revoke(
    CASE WHEN queue_router.call_settings($5) THEN $1 END, $2::regrole, $3) AS r;
$$;

CREATE OR REPLACE FUNCTION @extschema@.queue_revoke(
    q text,
    role regrole,
    privilege text,
    project text DEFAULT NULL,
    client_id text DEFAULT NULL)
RETURNS void
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
AS $$
DECLARE
    _settings pg_catalog.text[] := queue_proxy.settings($4, $5);
    _message pg_catalog.text;
    _detail pg_catalog.text;
    _hint pg_catalog.text;
BEGIN
    IF pg_catalog.pg_current_xact_id_if_assigned() IS NOT NULL THEN
        PERFORM queue_proxy.refuse_transaction('queue_revoke');
    END IF;
    PERFORM queue_proxy.queue_revoke($1, $2::pg_catalog.text, $3,
        queue_proxy.shard($1, _settings[1]), _settings);
EXCEPTION WHEN OTHERS OR query_canceled THEN
    GET STACKED DIAGNOSTICS _message = MESSAGE_TEXT,
        _detail = PG_EXCEPTION_DETAIL, _hint = PG_EXCEPTION_HINT;
    PERFORM queue_proxy.reraise(SQLSTATE, _message, _detail, _hint);
END
$$;
COMMENT ON FUNCTION @extschema@.queue_revoke(text, regrole, text, text, text) IS
'revokes from role the privilege ''push'', ''claim'' or ''admin'' on queue q that queue_grant granted; when no role is left, only the owner and the roles with admin have the privilege. Errors: as queue_grant; 55000 the privilege was granted to no role by name';

CREATE OR REPLACE FUNCTION queue_proxy.queue_set_metadata(text, jsonb, integer, text[])
RETURNS jsonb
LANGUAGE plproxy VOLATILE PARALLEL UNSAFE
AS $$
CLUSTER '';
RUN ON $3;
SELECT @extschema@.queue_set_metadata(
    CASE WHEN queue_router.call_settings($4) THEN $1 END, $2) AS r;
$$;

CREATE OR REPLACE FUNCTION @extschema@.queue_set_metadata(
    q text,
    metadata jsonb,
    project text DEFAULT NULL,
    client_id text DEFAULT NULL)
RETURNS jsonb
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
AS $$
DECLARE
    _settings pg_catalog.text[] := queue_proxy.settings($3, $4);
    _message pg_catalog.text;
    _detail pg_catalog.text;
    _hint pg_catalog.text;
BEGIN
    IF pg_catalog.pg_current_xact_id_if_assigned() IS NOT NULL THEN
        PERFORM queue_proxy.refuse_transaction('queue_set_metadata');
    END IF;
    RETURN queue_proxy.queue_set_metadata($1, $2,
        queue_proxy.shard($1, _settings[1]), _settings);
EXCEPTION WHEN OTHERS OR query_canceled THEN
    GET STACKED DIAGNOSTICS _message = MESSAGE_TEXT,
        _detail = PG_EXCEPTION_DETAIL, _hint = PG_EXCEPTION_HINT;
    PERFORM queue_proxy.reraise(SQLSTATE, _message, _detail, _hint);
END
$$;
COMMENT ON FUNCTION @extschema@.queue_set_metadata(text, jsonb, text, text) IS
'replaces the metadata of queue q and returns it. Errors: 42704 unknown queue, 22023 reserved key, 54000 over 65536 bytes, 42501 no admin privilege, or the dead letter queue does not allow the push. Source: Zaqar, set queue metadata';

CREATE OR REPLACE FUNCTION queue_proxy.queue_set_owner(text, text, integer, text[])
RETURNS void
LANGUAGE plproxy VOLATILE PARALLEL UNSAFE
AS $$
CLUSTER '';
RUN ON $3;
SELECT @extschema@.queue_set_owner(
    CASE WHEN queue_router.call_settings($4) THEN $1 END, $2::regrole) AS r;
$$;

CREATE OR REPLACE FUNCTION @extschema@.queue_set_owner(
    q text,
    role regrole,
    project text DEFAULT NULL,
    client_id text DEFAULT NULL)
RETURNS void
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
AS $$
DECLARE
    _settings pg_catalog.text[] := queue_proxy.settings($3, $4);
    _message pg_catalog.text;
    _detail pg_catalog.text;
    _hint pg_catalog.text;
BEGIN
    IF pg_catalog.pg_current_xact_id_if_assigned() IS NOT NULL THEN
        PERFORM queue_proxy.refuse_transaction('queue_set_owner');
    END IF;
    PERFORM queue_proxy.queue_set_owner($1, $2::pg_catalog.text,
        queue_proxy.shard($1, _settings[1]), _settings);
EXCEPTION WHEN OTHERS OR query_canceled THEN
    GET STACKED DIAGNOSTICS _message = MESSAGE_TEXT,
        _detail = PG_EXCEPTION_DETAIL, _hint = PG_EXCEPTION_HINT;
    PERFORM queue_proxy.reraise(SQLSTATE, _message, _detail, _hint);
END
$$;
COMMENT ON FUNCTION @extschema@.queue_set_owner(text, regrole, text, text) IS
'changes the owner of queue q, and of the dead letter queues that were created for it. Errors: 42704 unknown queue or role, 42501 neither a superuser nor an owner that can SET ROLE to the new one, 55000 the queue was created for the dead letters of another one, whose owner is to be changed';

CREATE OR REPLACE FUNCTION @extschema@.queue_shard(
    q text,
    project text DEFAULT NULL::text)
RETURNS integer
LANGUAGE plpgsql STABLE PARALLEL SAFE
AS $$
BEGIN
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
END
$$;
COMMENT ON FUNCTION @extschema@.queue_shard(text, text) IS
'the shard of a queue of a project (NULL: the session''s), 0 to 255, whether or not the queue exists: the first byte of the SHA-256 of the name without all trailing ".dead", a space and the project, in UTF-8. Errors: 22004/22023 argument';

CREATE OR REPLACE FUNCTION @extschema@.queue_shard_init(
    server integer,
    servers integer,
    project text DEFAULT NULL,
    client_id text DEFAULT NULL)
RETURNS void
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
AS $$
BEGIN
    RAISE EXCEPTION 'queue_shard_init() cannot be called through a router'
        USING ERRCODE = 'feature_not_supported',
        HINT = 'Connect to each server and call it there.';
END
$$;
COMMENT ON FUNCTION @extschema@.queue_shard_init(integer, integer, text, text) IS
'raises an error, 0A000: it cannot be called through a router';

CREATE OR REPLACE FUNCTION @extschema@.queue_start_at_login(
    enable boolean DEFAULT true,
    project text DEFAULT NULL,
    client_id text DEFAULT NULL)
RETURNS void
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
AS $$
BEGIN
    RAISE EXCEPTION 'queue_start_at_login() cannot be called through a router'
        USING ERRCODE = 'feature_not_supported',
        HINT = 'Connect to each server and call it there.';
END
$$;
COMMENT ON FUNCTION @extschema@.queue_start_at_login(boolean, text, text) IS
'raises an error, 0A000: it cannot be called through a router';

CREATE OR REPLACE FUNCTION queue_proxy.queue_stats(text, integer, text[])
RETURNS TABLE(free bigint, claimed bigint, delayed bigint, total bigint, oldest_id bigint, oldest_age integer, oldest_created timestamp with time zone, newest_id bigint, newest_age integer, newest_created timestamp with time zone)
LANGUAGE plproxy VOLATILE PARALLEL UNSAFE ROWS 1
AS $$
CLUSTER '';
RUN ON $2;
SELECT f.* FROM @extschema@.queue_stats(
    CASE WHEN queue_router.call_settings($3) THEN $1 END) AS f;
$$;

CREATE OR REPLACE FUNCTION @extschema@.queue_stats(
    q text,
    project text DEFAULT NULL,
    client_id text DEFAULT NULL)
RETURNS TABLE(free bigint, claimed bigint, delayed bigint, total bigint, oldest_id bigint, oldest_age integer, oldest_created timestamp with time zone, newest_id bigint, newest_age integer, newest_created timestamp with time zone)
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE ROWS 1
AS $$
DECLARE
    _settings pg_catalog.text[] := queue_proxy.settings($2, $3);
    _message pg_catalog.text;
    _detail pg_catalog.text;
    _hint pg_catalog.text;
BEGIN
    RETURN QUERY SELECT * FROM queue_proxy.queue_stats($1,
        queue_proxy.shard($1, _settings[1]), _settings);
EXCEPTION WHEN OTHERS OR query_canceled THEN
    GET STACKED DIAGNOSTICS _message = MESSAGE_TEXT,
        _detail = PG_EXCEPTION_DETAIL, _hint = PG_EXCEPTION_HINT;
    PERFORM queue_proxy.reraise(SQLSTATE, _message, _detail, _hint);
END
$$;
COMMENT ON FUNCTION @extschema@.queue_stats(text, text, text) IS
'exact counts of the messages of queue q, and its oldest and newest one (ages in seconds); an unknown queue counts 0. Takes time in proportion to the queue. Errors: 22023/22004 name. Source: Zaqar, get queue stats';

CREATE OR REPLACE FUNCTION queue_proxy.queue_step(text, text, bigint[], jsonb, jsonb, integer, integer, integer, integer, text[])
RETURNS SETOF @extschema@.queue_message
LANGUAGE plproxy VOLATILE PARALLEL UNSAFE ROWS 10
AS $$
CLUSTER '';
RUN ON $9;
SELECT f.* FROM @extschema@.queue_step(
    CASE WHEN queue_router.call_settings($10) THEN $1 END, $2, $3, $4, $5, $6, $7, $8) AS f;
$$;

CREATE OR REPLACE FUNCTION @extschema@.queue_step(
    q text,
    claim_id text DEFAULT NULL::text,
    done bigint[] DEFAULT NULL::bigint[],
    failed jsonb DEFAULT NULL::jsonb,
    push jsonb DEFAULT NULL::jsonb,
    ttl integer DEFAULT 300,
    grace integer DEFAULT 60,
    "limit" integer DEFAULT NULL::integer,
    project text DEFAULT NULL,
    client_id text DEFAULT NULL)
RETURNS SETOF @extschema@.queue_message
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE ROWS 10
AS $$
DECLARE
    _settings pg_catalog.text[] := queue_proxy.settings($9, $10);
    _message pg_catalog.text;
    _detail pg_catalog.text;
    _hint pg_catalog.text;
BEGIN
    IF pg_catalog.pg_current_xact_id_if_assigned() IS NOT NULL THEN
        PERFORM queue_proxy.refuse_transaction('queue_step');
    END IF;
    RETURN QUERY SELECT * FROM queue_proxy.queue_step($1, $2, $3, $4, $5, $6, $7, $8,
        queue_proxy.shard($1, _settings[1]), _settings);
EXCEPTION WHEN OTHERS OR query_canceled THEN
    GET STACKED DIAGNOSTICS _message = MESSAGE_TEXT,
        _detail = PG_EXCEPTION_DETAIL, _hint = PG_EXCEPTION_HINT;
    PERFORM queue_proxy.reraise(SQLSTATE, _message, _detail, _hint);
END
$$;
COMMENT ON FUNCTION @extschema@.queue_step(text, text, bigint[], jsonb, jsonb, integer, integer, integer, text, text) IS
'a worker''s cycle in one call, all or nothing: of the claim (NULL: none yet), deletes the messages in done (NULL: all that are not in failed), retries those in failed ([{"id", "error", "delay", "bury"}, ...], only id is required; true in bury makes it a dead letter) and gives the rest back; pushes the messages in push (as queue_post; without a field queue, to q); and claims the next as queue_claim; a limit of 0 claims nothing. Errors: QU001 the claim is not live, QU002 a message is not in it, QU004 one was canceled, 22023/22004 argument, 42501, those of queue_push, and with bury of message_bury. Source: claim_next';

CREATE OR REPLACE FUNCTION queue_proxy.queue_update(text, jsonb, integer, text[])
RETURNS jsonb
LANGUAGE plproxy VOLATILE PARALLEL UNSAFE
AS $$
CLUSTER '';
RUN ON $3;
SELECT @extschema@.queue_update(
    CASE WHEN queue_router.call_settings($4) THEN $1 END, $2) AS r;
$$;

CREATE OR REPLACE FUNCTION @extschema@.queue_update(
    q text,
    patch jsonb,
    project text DEFAULT NULL,
    client_id text DEFAULT NULL)
RETURNS jsonb
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
AS $$
DECLARE
    _settings pg_catalog.text[] := queue_proxy.settings($3, $4);
    _message pg_catalog.text;
    _detail pg_catalog.text;
    _hint pg_catalog.text;
BEGIN
    IF pg_catalog.pg_current_xact_id_if_assigned() IS NOT NULL THEN
        PERFORM queue_proxy.refuse_transaction('queue_update');
    END IF;
    RETURN queue_proxy.queue_update($1, $2,
        queue_proxy.shard($1, _settings[1]), _settings);
EXCEPTION WHEN OTHERS OR query_canceled THEN
    GET STACKED DIAGNOSTICS _message = MESSAGE_TEXT,
        _detail = PG_EXCEPTION_DETAIL, _hint = PG_EXCEPTION_HINT;
    PERFORM queue_proxy.reraise(SQLSTATE, _message, _detail, _hint);
END
$$;
COMMENT ON FUNCTION @extschema@.queue_update(text, jsonb, text, text) IS
'merges patch into the metadata of queue q (a null removes a key) and returns the whole. Errors: as queue_set_metadata. Source: Zaqar, update queue';

CREATE OR REPLACE PROCEDURE @extschema@.queue_wait(
    q text,
    timeout_ms integer,
    INOUT ready boolean DEFAULT NULL::boolean,
    project text DEFAULT NULL,
    client_id text DEFAULT NULL)
LANGUAGE plpgsql
AS $$
DECLARE
    _until timestamp with time zone := pg_catalog.clock_timestamp()
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
END
$$;
COMMENT ON PROCEDURE @extschema@.queue_wait(text, integer, boolean, text, text) IS
'waits until queue q has something to claim, at most timeout_ms milliseconds (0 checks once); ready: whether it has. Errors: 22004 and 22023 arguments, 42501 no right to claim, 25006 read-only, 25001 unless timeout_ms is 0: called in a transaction block, a pipeline, a function, or a procedure with SECURITY DEFINER or SET. Source: Amazon SQS, long polling';

CREATE OR REPLACE FUNCTION @extschema@.topic_bind(
    pattern text,
    q text,
    filter jsonb DEFAULT NULL::jsonb,
    publishers regrole[] DEFAULT NULL::regrole[],
    project text DEFAULT NULL,
    client_id text DEFAULT NULL)
RETURNS boolean
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
AS $$
BEGIN
    RAISE EXCEPTION 'topic_bind() cannot be called through a router'
        USING ERRCODE = 'feature_not_supported',
        HINT = 'The bound queues would be on several servers. Push to each queue.';
END
$$;
COMMENT ON FUNCTION @extschema@.topic_bind(text, text, jsonb, regrole[], text, text) IS
'raises an error, 0A000: it cannot be called through a router';

CREATE OR REPLACE FUNCTION @extschema@.topic_list(
    marker text DEFAULT NULL::text,
    "limit" integer DEFAULT 10,
    q text DEFAULT NULL::text,
    project text DEFAULT NULL,
    client_id text DEFAULT NULL)
RETURNS TABLE(pattern text, queue text, filter jsonb, publishers regrole[], bound_at timestamp with time zone)
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE ROWS 10
AS $$
BEGIN
    RAISE EXCEPTION 'topic_list() cannot be called through a router'
        USING ERRCODE = 'feature_not_supported',
        HINT = 'Connect to each server and call it there.';
END
$$;
COMMENT ON FUNCTION @extschema@.topic_list(text, integer, text, text, text) IS
'raises an error, 0A000: it cannot be called through a router';

CREATE OR REPLACE FUNCTION @extschema@.topic_publish(
    topic text,
    body jsonb,
    headers jsonb DEFAULT NULL::jsonb,
    ttl integer DEFAULT NULL::integer,
    delay integer DEFAULT NULL::integer,
    priority integer DEFAULT 0,
    group_key text DEFAULT NULL::text,
    dedup_key text DEFAULT NULL::text,
    project text DEFAULT NULL,
    client_id text DEFAULT NULL)
RETURNS bigint
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
AS $$
BEGIN
    RAISE EXCEPTION 'topic_publish() cannot be called through a router'
        USING ERRCODE = 'feature_not_supported',
        HINT = 'The bound queues would be on several servers. Push to each queue.';
END
$$;
COMMENT ON FUNCTION @extschema@.topic_publish(text, jsonb, jsonb, integer, integer, integer, text, text, text, text) IS
'raises an error, 0A000: it cannot be called through a router';

CREATE OR REPLACE FUNCTION @extschema@.topic_unbind(
    pattern text,
    q text,
    project text DEFAULT NULL,
    client_id text DEFAULT NULL)
RETURNS boolean
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
AS $$
BEGIN
    RAISE EXCEPTION 'topic_unbind() cannot be called through a router'
        USING ERRCODE = 'feature_not_supported',
        HINT = 'Connect to the server of the queue.';
END
$$;
COMMENT ON FUNCTION @extschema@.topic_unbind(text, text, text, text) IS
'raises an error, 0A000: it cannot be called through a router';

--
-- Privileges of the functions that are new
--
DO $$
DECLARE
    routine regprocedure;
BEGIN
    FOR routine IN
        SELECT p.oid
        FROM pg_catalog.pg_proc AS p
             JOIN pg_catalog.pg_depend AS d
                 ON d.objid OPERATOR(pg_catalog.=) p.oid
             JOIN pg_catalog.pg_extension AS e
                 ON e.oid OPERATOR(pg_catalog.=) d.refobjid
        WHERE d.classid OPERATOR(pg_catalog.=) 'pg_catalog.pg_proc'::regclass
          AND d.refclassid OPERATOR(pg_catalog.=)
              'pg_catalog.pg_extension'::regclass
          AND d.deptype OPERATOR(pg_catalog.=) 'e'
          AND e.extname OPERATOR(pg_catalog.=) 'queue_proxy'
          AND p.proname OPERATOR(pg_catalog.<>) 'set_servers'
          AND p.oid OPERATOR(pg_catalog.<>) ALL
              (pg_catalog.current_setting('queue_update.routines')::oid[])
    LOOP
        EXECUTE pg_catalog.format('REVOKE ALL ON ROUTINE %s FROM PUBLIC',
                                  routine);
        EXECUTE pg_catalog.format('GRANT EXECUTE ON ROUTINE %s
            TO queue_producer, queue_consumer, queue_admin', routine);
    END LOOP;
END
$$;

--
-- Privileges on the functions that push
--
DO $$
DECLARE
    before pg_catalog.pg_init_privs[] := ARRAY(
        SELECT i FROM pg_catalog.pg_init_privs AS i
        WHERE i.classoid OPERATOR(pg_catalog.=) 'pg_catalog.pg_proc'::regclass);
BEGIN
    EXECUTE pg_catalog.current_setting('queue_update.grants');

    -- They are no part of the extension: pg_dump has to write them.
    UPDATE pg_catalog.pg_init_privs AS i SET initprivs = b.initprivs
    FROM pg_catalog.unnest(before) AS b
    WHERE i.objoid OPERATOR(pg_catalog.=) b.objoid
      AND i.classoid OPERATOR(pg_catalog.=) b.classoid;
END
$$;
