-- generate.sql - the functions of the extension queue_proxy, from the catalog
-- of a database in which the extension queue is installed in schema public.
--
-- Each public routine of queue gets one of the same name, arguments and result,
-- with the arguments "project" and "client_id" at the end.  Below it is a
-- function of PL/Proxy in schema queue_proxy, which calls the routine on a
-- server that has a shard, or on several servers, in one statement that first
-- makes the session's settings those of its transaction there.  Its last two
-- arguments are the shard (or an array of them), and the settings.
--
-- A routine with an argument "q" is called on the server of that queue, by the
-- body that all have.  The others have a body of their own here; one that
-- has none is an error.

SET search_path = pg_catalog, pg_temp;

-- What differs from a routed call.  Where there is a hint, the routine raises an
-- error.  $$NAME(...)$$ in a body is the call below without shards and settings.
CREATE TEMP TABLE special (name text PRIMARY KEY, hint text, body text);

INSERT INTO special (name, hint) VALUES
('queue_channel', 'LISTEN on a direct connection to the server of the queue, or use queue_wait().'),
('queue_push_lazy', 'Call queue_push(), or connect to the server of the queue.'),
('job_run', 'Connect to the server of the queues.'),
('queue_ready_in_projects', 'Connect to each server and call it there.'),
('job_progress', 'Only a handler calls this function, on the server of its queue.'),
('job_result', 'Only a handler calls this function, on the server of its queue.'),
('queue_await', 'Connect to the server of the queue, or poll message_result().'),
('job_due', 'Only pg_cron calls this function, on the server of the queue.'),
('queue_shard_init', 'Connect to each server and call it there.'),
('batch_close', 'Connect to the server of the queues of the batch.'),
('batch_cancel', 'Connect to the server of the queues of the batch.'),
('batch_status', 'Connect to the server of the queues of the batch.'),
('batch_list', 'Connect to each server and call it there.'),
('topic_bind', 'The bound queues would be on several servers. Push to each queue.'),
('topic_unbind', 'Connect to the server of the queue.'),
('topic_list', 'Connect to each server and call it there.'),
('topic_publish', 'The bound queues would be on several servers. Push to each queue.'),
('queue_start_at_login', 'Connect to each server and call it there.');

INSERT INTO special (name, body) VALUES
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

('job_unschedule', $$    RETURN (SELECT pg_catalog.bool_or(b) FROM queue_proxy.job_unschedule($1,
        (SELECT pg_catalog.array_agg(s.shard) FROM queue_proxy.servers() AS s),
        _settings) AS b);$$),

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
('job_schedules', $$    RETURN QUERY SELECT * FROM queue_proxy.job_schedules(
        (SELECT pg_catalog.array_agg(s.shard) FROM queue_proxy.servers() AS s),
        _settings);$$),

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
END$$);

-- These may also be called in a transaction that has changed something: they
-- change nothing, or can be repeated if it is rolled back.
CREATE TEMP TABLE anywhere (name text PRIMARY KEY);
INSERT INTO anywhere VALUES
('claim_get'), ('claim_messages'), ('job_errors'), ('job_list'), ('job_schedules'), ('job_stats'), ('message_get'),
('message_finished'), ('message_result'), ('queue_browse'), ('queue_depth'), ('queue_finished'),
('messages_get'), ('queue_dead_letters'), ('queue_dedup_key'), ('queue_exists'),
('queue_get'), ('queue_groups'), ('queue_is_empty'), ('queue_list'), ('queue_messages'),
('queue_push_once'), ('queue_ready'), ('queue_stats');

CREATE TEMP VIEW routine AS
SELECT p.oid, p.proname AS name, p.prokind, p.proretset, p.prorows, s.hint,
       s.body, s.name IS NOT NULL AS special,
       EXISTS (SELECT FROM anywhere AS x WHERE x.name = p.proname) AS anywhere,
       p.prorettype = 'void'::regtype AS void,
       -- Does the call return rows of several columns?
       t.typtype = 'c' OR p.prorettype = 'record'::regtype AS composite,
       regexp_replace(pg_get_function_result(p.oid), '\mpublic\.',
                      '@extschema@.', 'g') AS result,
       obj_description(p.oid, 'pg_proc') AS description,
       p.proname || ' ' || p.pronargs AS sort_key,
       p.proretset AND cardinality(p.proargnames) >
           (SELECT count(DISTINCT x.name) FROM unnest(p.proargnames) AS x (name))
           AS same_name,
       a.*
FROM pg_proc AS p
     JOIN pg_type AS t ON t.oid = p.prorettype
     JOIN pg_depend AS d ON d.classid = 'pg_proc'::regclass AND d.objid = p.oid
         AND d.deptype = 'e'
     JOIN pg_extension AS e ON d.refclassid = 'pg_extension'::regclass
         AND e.oid = d.refobjid AND e.extname = 'queue'
     LEFT JOIN special AS s ON s.name = p.proname
     CROSS JOIN LATERAL
     (SELECT count(*)::integer AS n,
             min(i) FILTER (WHERE arg = 'q') AS q,
             -- or a column of the result
             COALESCE('project' = ANY (p.proargnames), false) AS has_project,
             -- of the function for users
             string_agg(mode || arg || ' ' || outer_type || dflt, E',\n    '
                        ORDER BY i) AS arguments,
             string_agg(outer_type, ', ' ORDER BY i) AS types,
             -- of that below
             string_agg(inner_type, ', ' ORDER BY i) AS inner_types,
             string_agg(format('$%s', i) || CASE WHEN inner_type <> outer_type
                            THEN '::pg_catalog.' || inner_type ELSE '' END, ', ' ORDER BY i)
                 AS passed,
             -- and what that calls; PL/Proxy adds the types of the arguments
             string_agg(format('$%s', i) ||
                        CASE WHEN inner_type <> type THEN '::' || type ELSE '' END,
                        ', ' ORDER BY i) AS called
      FROM (SELECT i, quote_ident(COALESCE(p.proargnames[i], '')) AS arg,
                   CASE WHEN p.proargmodes[i] = 'b' THEN 'INOUT ' ELSE '' END
                       AS mode,
                   replace(COALESCE(' DEFAULT ' || pg_get_function_arg_default(p.oid, i::integer),
                                    ''), '::regprocedure', '::text') AS dflt,
                   format_type(u.type, NULL) AS type,
                   -- Functions need not exist in the router's database; roles
                   -- have other OIDs there.
                   CASE WHEN u.type = 'regprocedure'::regtype THEN 'text'
                        ELSE format_type(u.type, NULL) END AS outer_type,
                   CASE WHEN u.type IN ('regprocedure'::regtype, 'regrole'::regtype)
                        THEN 'text'
                        ELSE format_type(u.type, NULL) END AS inner_type
            FROM unnest(p.proargtypes::oid[]) WITH ORDINALITY AS u (type, i)) AS x
     ) AS a
WHERE p.pronamespace = 'public'::regnamespace;

-- A new routine needs a queue's name or a body.
DO $$
DECLARE
    missing text;
BEGIN
    SELECT string_agg(name, ', ') INTO missing
        FROM pg_temp.routine WHERE NOT special AND q IS NULL;
    IF missing IS NOT NULL THEN
        RAISE EXCEPTION 'no argument "q", and no body in generate.sql: %', missing;
    END IF;
END
$$;

-- The type of messages.  An update to 1.2 finds it.
SELECT format(E'--\n-- Functions\n--\n\n%s', CASE WHEN :'of' = 'update' THEN ''
    ELSE format(E'CREATE TYPE @extschema@.queue_message AS (\n%s\n);\nCOMMENT ON TYPE @extschema@.queue_message IS\n%L;\n',
                string_agg(format('    %I %s', attname, format_type(atttypid, atttypmod)), E',\n'
                           ORDER BY attnum),
                obj_description('public.queue_message'::regtype, 'pg_type')) END)
FROM pg_attribute
WHERE attrelid = 'public.queue_message'::regclass AND attnum > 0
AND NOT attisdropped;

-- What calls a routine on servers.  The settings come first, as arguments are
-- evaluated before the call.  A routine without arguments gets none.
CREATE FUNCTION pg_temp.inner_function(r pg_temp.routine) RETURNS text
LANGUAGE sql AS $f$
SELECT format($t$CREATE FUNCTION queue_proxy.%I(%s)
RETURNS %s
LANGUAGE plproxy VOLATILE PARALLEL UNSAFE%s
AS $$
CLUSTER '';
RUN ON %s;
SELECT %s
$$;
$t$,
    r.name, concat_ws(', ', r.inner_types,
                      CASE WHEN r.special THEN 'integer[]' ELSE 'integer' END, 'text[]'),
    CASE WHEN r.special AND NOT r.proretset THEN 'SETOF ' ELSE '' END || r.result,
    CASE WHEN r.proretset THEN format(' ROWS %s', r.prorows) ELSE '' END,
    CASE WHEN r.special THEN format('pg_catalog.unnest($%s)', r.n + 1)
         ELSE format('$%s', r.n + 1) END,
    CASE WHEN r.n = 0 THEN
             format(E'@extschema@.%I() AS r\nFROM (SELECT queue_router.call_settings($%s) OFFSET 0) AS s;',
                    r.name, r.n + 2)
         ELSE CASE WHEN r.composite THEN 'f.* FROM ' ELSE '' END ||
             format(E'@extschema@.%I(\n    %s) AS %s;', r.name,
                    regexp_replace(r.called, '^[^,]+',
                        format('CASE WHEN queue_router.call_settings($%s) THEN \& END',
                               r.n + 2)),
                    CASE WHEN r.composite THEN 'f' ELSE 'r' END)
    END);
$f$;

-- What a routed routine does.  The messages of queue_post may name the queues.
-- All messages of a call have to be on one server: that of the first one.
CREATE FUNCTION pg_temp.routed_call(r pg_temp.routine) RETURNS text
LANGUAGE sql AS $f$
SELECT format('    %squeue_proxy.%I(%s,
        queue_proxy.shard(%s, _settings[1]), _settings);',
    CASE WHEN r.proretset THEN 'RETURN QUERY SELECT * FROM '
         WHEN r.void THEN 'PERFORM ' ELSE 'RETURN ' END,
    r.name, r.passed,
    CASE WHEN r.name = 'queue_post'
         THEN $$COALESCE($1, ($2 OPERATOR(pg_catalog.->) 0) OPERATOR(pg_catalog.->>) 'queue')$$
         ELSE format('$%s', r.q) END);
$f$;

CREATE FUNCTION pg_temp.outer_body(r pg_temp.routine) RETURNS text
LANGUAGE sql AS $f$
SELECT CASE
    WHEN r.hint IS NOT NULL THEN format($t$BEGIN
    RAISE EXCEPTION '%s() cannot be called through a router'
        USING ERRCODE = 'feature_not_supported',
        HINT = '%s';
END$t$, r.name, r.hint)
    WHEN r.body LIKE 'BEGIN%' THEN r.body
    WHEN r.prokind = 'p' THEN E'DECLARE\n' || r.body
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
END$t$, r.n + 1, r.n + 2,
    CASE WHEN r.body LIKE '%_shard%' THEN E'\n    _shard integer;\n    _answered boolean := false;' ELSE '' END ||
    CASE WHEN r.body LIKE '%_queues%' THEN E'\n    _queues pg_catalog.text[];\n    _one boolean := queue_proxy.is_invalid($1);' ELSE '' END,
    CASE WHEN r.anywhere THEN '' ELSE format($t$    IF pg_catalog.pg_current_xact_id_if_assigned() IS NOT NULL THEN
        PERFORM queue_proxy.refuse_transaction('%s');
    END IF;
$t$, r.name) END,
    COALESCE(r.body, pg_temp.routed_call(r))) END;
$f$;

-- A routine with this name, and these arguments in parentheses
CREATE FUNCTION pg_temp.outer_routine(
    r pg_temp.routine, name text, arguments text, language text, body text)
RETURNS text
LANGUAGE sql AS $f$
SELECT format($t$CREATE %s %s(%s)
%sLANGUAGE %s%s
AS $$
%s
$$;
$t$,
    CASE r.prokind WHEN 'p' THEN 'PROCEDURE' ELSE 'FUNCTION' END,
    name, arguments,
    CASE r.prokind WHEN 'p' THEN '' ELSE format(E'RETURNS %s\n', r.result) END,
    language,
    CASE WHEN r.prokind = 'p' THEN ''
         WHEN r.name = 'queue_shard' THEN ' STABLE PARALLEL SAFE'
         ELSE ' VOLATILE PARALLEL UNSAFE' END ||
    CASE WHEN r.proretset THEN format(' ROWS %s', r.prorows) ELSE '' END,
    body);
$f$;

-- The routines.  PL/pgSQL does not allow an argument and a column of the result
-- to have the same name, so that takes a function of SQL around it.
SELECT CASE WHEN r.hint IS NULL AND r.name NOT IN ('queue_shard', 'queue_wait')
            THEN pg_temp.inner_function(r) || E'\n' ELSE '' END ||
       CASE WHEN r.same_name
            THEN pg_temp.outer_routine(r, format('queue_proxy.%I', r.name || '_call'),
                     types.list, 'plpgsql', pg_temp.outer_body(r)) || E'\n' ||
                 pg_temp.outer_routine(r, format('@extschema@.%I', r.name),
                     arguments.list, 'sql',
                     format('SELECT * FROM queue_proxy.%I(%s)', r.name || '_call',
                            numbers.list))
            ELSE pg_temp.outer_routine(r, format('@extschema@.%I', r.name),
                     arguments.list, 'plpgsql', pg_temp.outer_body(r))
       END ||
       format(E'COMMENT ON %s @extschema@.%I(%s) IS\n%L;\n',
              CASE r.prokind WHEN 'p' THEN 'PROCEDURE' ELSE 'FUNCTION' END,
              r.name, types.list,
              CASE WHEN r.hint IS NULL THEN r.description
                   ELSE 'raises an error, 0A000: it cannot be called through a router'
              END)
FROM pg_temp.routine AS r
     CROSS JOIN LATERAL
     (SELECT CASE WHEN r.has_project THEN '' ELSE concat(CASE WHEN r.n > 0 THEN ',' END,
                 E'\n    project text DEFAULT NULL,\n    client_id text DEFAULT NULL') END)
     AS more (arguments)
     CROSS JOIN LATERAL
     (SELECT concat(E'\n    ' || r.arguments, more.arguments)) AS arguments (list)
     CROSS JOIN LATERAL
     (SELECT concat_ws(', ', r.types, CASE WHEN NOT r.has_project THEN 'text, text' END))
     AS types (list)
     CROSS JOIN LATERAL
     (SELECT string_agg('$' || i, ', ' ORDER BY i)
      FROM generate_series(1, CASE WHEN r.has_project THEN r.n ELSE r.n + 2 END) AS i)
     AS numbers (list)
ORDER BY r.sort_key COLLATE "C";
