--
-- Where a queue is
--

-- The shard of a queue: as queue_shard(), but any name is accepted, since the
-- server of the queue checks it.
CREATE FUNCTION queue_proxy.shard(q text, project text)
RETURNS integer
LANGUAGE sql STABLE PARALLEL SAFE
AS $$
SELECT COALESCE(pg_catalog.get_byte(pg_catalog.sha256(pg_catalog.convert_to(
    pg_catalog.regexp_replace($1, '([.]dead)+$', '') OPERATOR(pg_catalog.||) ' '
        OPERATOR(pg_catalog.||) $2, 'UTF8')), 0), 0)
$$;
COMMENT ON FUNCTION queue_proxy.shard(text, text) IS
'the shard of a queue of a project; 0 if one of them is NULL';

CREATE FUNCTION queue_proxy.project()
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
CREATE FUNCTION queue_proxy.servers()
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
CREATE FUNCTION plproxy.get_cluster_version(cluster_name text)
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

CREATE FUNCTION plproxy.get_cluster_config(
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

CREATE FUNCTION plproxy.get_cluster_partitions(cluster_name text)
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

CREATE FUNCTION queue_proxy.set_servers(connections text[])
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
CREATE FUNCTION queue_proxy.reraise(
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
CREATE FUNCTION queue_proxy.refuse_transaction(name text)
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
CREATE FUNCTION queue_proxy.is_down(state text, message text)
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
CREATE FUNCTION queue_proxy.settings(project text, client_id text)
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
CREATE FUNCTION queue_proxy.is_invalid(queues text[])
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
CREATE FUNCTION queue_proxy.queue_wait(text, integer, integer, text[])
RETURNS boolean
LANGUAGE plproxy VOLATILE PARALLEL UNSAFE
AS $$
CLUSTER '';
RUN ON $3;
SELECT queue_router.wait(
    CASE WHEN queue_router.call_settings($4) THEN $1 END, $2) AS r;
$$;

CREATE FUNCTION queue_proxy.wait(q text, timeout_ms integer, project text)
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

CREATE FUNCTION queue_proxy.commit_error()
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
