/* src/pgmq/queue_pgmq--2.0.sql */

--
-- The schema of pgmq 1.13 on queues of the extension queue
--
-- A queue of pgmq is a queue of the same name in lower case, in the session's
-- project, whose metadata has the key _pgmq_base.  A message that was read is in
-- a claim.  The tables of pgmq are views.
--
-- Everything runs as the role that calls it, with its privileges on queues,
-- except for the few functions that are SECURITY DEFINER: they make and drop
-- views whose text is fixed, and look after notifications.  The functions of
-- queue are declared here again under names of their own, since they may be in
-- any schema.
--

\echo Use "CREATE EXTENSION queue_pgmq" to load this file. \quit

-- Names in bodies that are parsed now must not be those of other schemas.
SELECT pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true);

DO $$
BEGIN
    IF EXISTS (SELECT FROM pg_catalog.pg_extension
               WHERE extname = 'queue' AND extversion ~ '^1[.]') THEN
        RAISE EXCEPTION 'the extension "queue" must be of version 2.0 or later'
            USING ERRCODE = 'object_not_in_prerequisite_state',
                  HINT = 'ALTER EXTENSION queue UPDATE first.';
    END IF;
END
$$;

-- A role that owned the schema could replace what the functions below call.
CREATE SCHEMA pgmq;

CREATE TYPE pgmq.message_record AS (
    msg_id bigint,
    read_ct integer,
    enqueued_at timestamptz,
    last_read_at timestamptz,
    vt timestamptz,
    message jsonb,
    headers jsonb);

CREATE TYPE pgmq.queue_record AS (
    queue_name varchar,
    is_partitioned boolean,
    is_unlogged boolean,
    created_at timestamptz);

CREATE TYPE pgmq.metrics_result AS (
    queue_name text,
    queue_length bigint,
    newest_msg_age_sec integer,
    oldest_msg_age_sec integer,
    total_messages bigint,
    scrape_time timestamptz,
    queue_visible_length bigint,
    default_partition_length bigint);

--
-- Functions of the library
--

CREATE FUNCTION pgmq._read(queue_name text, vt timestamptz, qty integer)
RETURNS SETOF pgmq.message_record
AS 'MODULE_PATHNAME', 'sql_visibility_read' LANGUAGE C;

CREATE FUNCTION pgmq._pop(queue_name text, qty integer)
RETURNS SETOF pgmq.message_record
AS 'MODULE_PATHNAME', 'sql_visibility_pop' LANGUAGE C;

CREATE FUNCTION pgmq._read_ids(
    queue_name text, vt timestamptz, ids bigint[], skip boolean)
RETURNS SETOF pgmq.message_record
AS 'MODULE_PATHNAME', 'sql_visibility_read_ids' LANGUAGE C;

CREATE FUNCTION pgmq._set_vt(queue_name text, ids bigint[], vt timestamptz)
RETURNS SETOF pgmq.message_record
AS 'MODULE_PATHNAME', 'sql_visibility_set' LANGUAGE C;

CREATE FUNCTION pgmq._delete(queue_name text, ids bigint[], results jsonb[])
RETURNS bigint[]
AS 'MODULE_PATHNAME', 'sql_visibility_delete' LANGUAGE C;

CREATE FUNCTION pgmq._list(
    queue_name text, ids bigint[], condition jsonb, qty integer,
    bodies boolean)
RETURNS SETOF pgmq.message_record
AS 'MODULE_PATHNAME', 'sql_visibility_list' LANGUAGE C;

CREATE FUNCTION pgmq._sent(queue_name text)
RETURNS bigint
AS 'MODULE_PATHNAME', 'sql_visibility_sent' LANGUAGE C;

CREATE FUNCTION pgmq._may(queue_name text, privilege text)
RETURNS boolean
AS 'MODULE_PATHNAME', 'sql_visibility_may' LANGUAGE C STABLE;

CREATE FUNCTION pgmq._msg_id(queue_name text, id bigint)
RETURNS bigint
AS 'MODULE_PATHNAME', 'sql_visibility_msg_id' LANGUAGE C STABLE;

CREATE FUNCTION pgmq._notifies(queue_name text)
RETURNS boolean
AS 'MODULE_PATHNAME', 'sql_visibility_notifies' LANGUAGE C STABLE;

-- Lock a group to the end of the transaction; false: another one has locked it.
CREATE FUNCTION pgmq._try_group(queue_name text, grp text)
RETURNS boolean
AS 'MODULE_PATHNAME', 'sql_visibility_try_group' LANGUAGE C;

CREATE FUNCTION pgmq._new_base(queue_name text)
RETURNS bigint
AS 'MODULE_PATHNAME', 'sql_visibility_new_base' LANGUAGE C;

CREATE FUNCTION pgmq._queue_create(q text, metadata jsonb)
RETURNS boolean
AS 'MODULE_PATHNAME', 'sql_queue_create' LANGUAGE C;

CREATE FUNCTION pgmq._queue_update(q text, patch jsonb)
RETURNS jsonb
AS 'MODULE_PATHNAME', 'sql_queue_update' LANGUAGE C;

CREATE FUNCTION pgmq._queue_get(q text)
RETURNS TABLE (name text, metadata jsonb, created_at timestamptz,
               paused boolean)
AS 'MODULE_PATHNAME', 'sql_queue_get' LANGUAGE C;

CREATE FUNCTION pgmq._queue_list(marker text, "limit" integer, pattern text)
RETURNS TABLE (name text, metadata jsonb, created_at timestamptz,
               paused boolean)
AS 'MODULE_PATHNAME', 'sql_queue_list' LANGUAGE C;

CREATE FUNCTION pgmq._queue_exists(q text)
RETURNS boolean
AS 'MODULE_PATHNAME', 'sql_queue_exists' LANGUAGE C;

CREATE FUNCTION pgmq._queue_drop(q text)
RETURNS boolean
AS 'MODULE_PATHNAME', 'sql_queue_drop' LANGUAGE C;

CREATE FUNCTION pgmq._queue_purge(q text)
RETURNS bigint
AS 'MODULE_PATHNAME', 'sql_queue_purge' LANGUAGE C;

CREATE FUNCTION pgmq._queue_stats(q text)
RETURNS TABLE (free bigint, claimed bigint, delayed bigint, total bigint,
               oldest_id bigint, oldest_age integer,
               oldest_created timestamptz, newest_id bigint,
               newest_age integer, newest_created timestamptz)
AS 'MODULE_PATHNAME', 'sql_queue_stats' LANGUAGE C;

CREATE FUNCTION pgmq._queue_finished(
    q text, marker bigint, "limit" integer, outcome text)
RETURNS TABLE (id bigint, queue text, group_key text, batch bigint,
               outcome text, pushed_at timestamptz, finished_at timestamptz,
               attempts integer, result jsonb, error text, body jsonb)
AS 'MODULE_PATHNAME', 'sql_queue_finished' LANGUAGE C;

CREATE FUNCTION pgmq._queue_push(
    q text, body jsonb, ttl integer, delay integer, priority integer,
    dedup_key text, group_key text, headers jsonb, batch bigint DEFAULT NULL,
    after bigint DEFAULT NULL, after_success boolean DEFAULT false)
RETURNS bigint
AS 'MODULE_PATHNAME', 'sql_queue_push' LANGUAGE C;

CREATE FUNCTION pgmq._queue_post(q text, messages jsonb)
RETURNS bigint[]
AS 'MODULE_PATHNAME', 'sql_queue_post' LANGUAGE C;

CREATE FUNCTION pgmq._topic_bind(
    pattern text, q text, filter jsonb, publishers regrole[])
RETURNS boolean
AS 'MODULE_PATHNAME', 'sql_topic_bind' LANGUAGE C;

CREATE FUNCTION pgmq._topic_unbind(pattern text, q text)
RETURNS boolean
AS 'MODULE_PATHNAME', 'sql_topic_unbind' LANGUAGE C;

CREATE FUNCTION pgmq._topic_list(
    marker text, "limit" integer, q text)
RETURNS TABLE (pattern text, queue text, filter jsonb, publishers regrole[],
               bound_at timestamptz)
AS 'MODULE_PATHNAME', 'sql_topic_list' LANGUAGE C;

CREATE FUNCTION pgmq._topic_publish(
    topic text, body jsonb, headers jsonb, ttl integer, delay integer,
    priority integer, group_key text, dedup_key text)
RETURNS bigint
AS 'MODULE_PATHNAME', 'sql_topic_publish' LANGUAGE C;

--
-- Names and times
--

CREATE FUNCTION pgmq.format_table_name(queue_name text, prefix text)
RETURNS text LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF queue_name ~ '\$|;|--|''' THEN
        RAISE EXCEPTION 'queue name contains invalid characters: $, ;, --, or \'''
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    RETURN lower(prefix || '_' || queue_name);
END
$$;
COMMENT ON FUNCTION pgmq.format_table_name(text, text) IS
'the name of the view that shows a queue: prefix is q, or a for its archive. Errors: 22023 characters that no name has';

CREATE FUNCTION pgmq.validate_queue_name(queue_name text)
RETURNS void LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF length(queue_name) > 47 THEN
        RAISE EXCEPTION 'queue name is too long, maximum length is 47 characters'
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
END
$$;
COMMENT ON FUNCTION pgmq.validate_queue_name(text) IS
'checks the length of a name. Errors: 22023 more than 47 characters';

-- The name of the queue in the extension queue: in lower case, and what names
-- there do not have as the hexadecimal bytes of the character between colons
CREATE FUNCTION pgmq._escape(queue_name text)
RETURNS text LANGUAGE sql IMMUTABLE
RETURN (
    SELECT string_agg(
        CASE WHEN c ~ '[a-z0-9_.:/-]' COLLATE "C" THEN c
             ELSE ':' || encode(convert_to(c, 'UTF8'), 'hex') || ':' END, ''
        ORDER BY i)
    FROM regexp_split_to_table(queue_name, '') WITH ORDINALITY AS t (c, i));

CREATE FUNCTION pgmq._name(queue_name text)
RETURNS text LANGUAGE sql IMMUTABLE
RETURN CASE WHEN lower(queue_name) ~ '^[a-z0-9_.:/-]+$' COLLATE "C"
            THEN lower(queue_name)
            ELSE pgmq._escape(lower(queue_name)) END;

CREATE FUNCTION pgmq._is_queue(q text)
RETURNS boolean LANGUAGE sql
RETURN EXISTS (SELECT FROM pgmq._queue_get(q) WHERE metadata ? '_pgmq_base');

-- The same, of a queue that exists
CREATE FUNCTION pgmq._existing(queue_name text)
RETURNS text LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF NOT pgmq._is_queue(pgmq._name(queue_name)) THEN
        RAISE EXCEPTION 'Queue "%" does not exist. Create the queue first using pgmq.create()', queue_name
            USING ERRCODE = 'undefined_object';
    END IF;
    RETURN pgmq._name(queue_name);
END
$$;

-- No function of the library may have loaded it yet.
CREATE FUNCTION pgmq._project()
RETURNS text LANGUAGE sql STABLE
RETURN COALESCE(current_setting('queue.project', true), '');

CREATE FUNCTION pgmq._later(seconds integer)
RETURNS timestamptz LANGUAGE sql
RETURN clock_timestamp() + make_interval(secs => seconds);

-- A delay of queue is in whole seconds.
CREATE FUNCTION pgmq._seconds(until timestamptz)
RETURNS integer LANGUAGE sql
RETURN GREATEST(0, ceil(EXTRACT(epoch FROM until - clock_timestamp())))::integer;

--
-- Queues
--

-- The name of a view, or NULL: the server would cut a longer one, to that of
-- another queue perhaps.
CREATE FUNCTION pgmq._view(prefix text, queue_name text)
RETURNS text LANGUAGE sql STABLE
RETURN CASE WHEN octet_length(prefix || lower(queue_name)) < 64
            THEN format('pgmq.%I', prefix || lower(queue_name)) END;

-- Views belong to the role that has created the extension, so that no other
-- role needs CREATE on the schema; what they show is read as the role that
-- queries them.  A role with DELETE or with UPDATE of all columns may LOCK a table
-- or view in any mode, and so stop all others.  So roles read the views, and change
-- their column vt; the functions delete.
CREATE FUNCTION pgmq._create_views(queue_name text)
RETURNS void LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    q text := pgmq._name(queue_name);
    queue_view text := pgmq._view('q_', queue_name);
    archive_view text := pgmq._view('a_', queue_name);
BEGIN
    IF queue_view IS NULL OR NOT pgmq._is_queue(q) THEN
        RETURN;
    END IF;

    -- One that exists stays to the end of this transaction.  One that another
    -- transaction drops or creates meanwhile is waited for: that is for a queue
    -- of the same name in another project.
    BEGIN
        EXECUTE format('LOCK TABLE %s IN ACCESS SHARE MODE', queue_view);
        RETURN;
    EXCEPTION WHEN undefined_table THEN
        NULL;
    END;
    BEGIN
        EXECUTE format($view$
            CREATE VIEW %s WITH (security_invoker) AS
            SELECT msg_id, read_ct, enqueued_at, last_read_at, vt, message, headers
            FROM pgmq._messages(%L)$view$, queue_view, q);
        EXECUTE format($view$
            CREATE VIEW %s WITH (security_invoker) AS
            SELECT msg_id, read_ct, enqueued_at, last_read_at, archived_at, vt,
                   message, headers
            FROM pgmq._archived(%L)$view$, archive_view, q);
        EXECUTE format($view$
            CREATE TRIGGER write INSTEAD OF UPDATE OR DELETE ON %s
            FOR EACH ROW EXECUTE FUNCTION pgmq._write_view(%L)$view$,
            queue_view, q);
        EXECUTE format('GRANT SELECT, UPDATE (vt) ON %s TO queue_consumer, queue_admin',
            queue_view);
        EXECUTE format('GRANT SELECT ON %s TO queue_consumer, queue_admin',
            archive_view);
    EXCEPTION WHEN duplicate_table OR unique_violation THEN
        NULL;
    END;
END
$$;

-- The views of a name are those of all projects that have such a queue.  They are
-- dropped if that is possible at once: if another session has locked one, or has
-- made a view on it, it stays, and shows the next queue of that name.
CREATE FUNCTION pgmq._drop_views(queue_name text)
RETURNS void LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET lock_timeout = '10ms'
AS $$
DECLARE
    q text := pgmq._name(queue_name);
BEGIN
    DELETE FROM pgmq.notify_throttle AS n
    WHERE n.queue = q AND NOT EXISTS (
        SELECT FROM queue_data.queue AS o
        WHERE o.name = q AND o.project = n.project);
    IF pgmq._view('q_', queue_name) IS NOT NULL
        AND NOT EXISTS (SELECT FROM queue_data.queue AS o WHERE o.name = q) THEN
        EXECUTE format('DROP VIEW IF EXISTS %s, %s',
            pgmq._view('q_', queue_name), pgmq._view('a_', queue_name));
    END IF;
EXCEPTION WHEN lock_not_available OR dependent_objects_still_exist THEN
    NULL;
END
$$;

CREATE FUNCTION pgmq.create(queue_name text)
RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    q text := pgmq._name(queue_name);
    old jsonb;
    new jsonb;
BEGIN
    PERFORM pgmq.format_table_name(queue_name, 'q');
    PERFORM pgmq.validate_queue_name(queue_name);
    SELECT metadata INTO old FROM pgmq._queue_get(q);
    IF old IS NULL THEN
        PERFORM pgmq._queue_create(q, '{}');
    END IF;

    -- A queue of other clients becomes one of pgmq, too, and keeps its options.
    IF NOT COALESCE(old ? '_pgmq_base', false) THEN
        new := jsonb_build_object(
            '_default_message_ttl',
            EXTRACT(epoch FROM current_setting('queue.max_message_ttl')::interval)::integer,
            '_keep_finished', 2592000,
            '_keep_body', true,
            'queue_name', queue_name);
        PERFORM pgmq._queue_update(q, new || COALESCE(old, '{}')
            || jsonb_build_object('_pgmq_base',
                CASE WHEN old IS NULL THEN pgmq._new_base(q) ELSE 0 END));
    END IF;
    PERFORM pgmq._create_views(queue_name);
END
$$;
COMMENT ON FUNCTION pgmq.create(text) IS
'creates a queue, or opens one that exists to these functions; without effect where that was done. Errors: 22023 name, 42501 not a member of queue_producer or queue_admin, or no admin privilege on the queue that exists. Source: pgmq';

CREATE FUNCTION pgmq.create_non_partitioned(queue_name text)
RETURNS void LANGUAGE sql
BEGIN ATOMIC
    SELECT pgmq.create(queue_name);
END;
COMMENT ON FUNCTION pgmq.create_non_partitioned(text) IS
'as create. Source: pgmq';

CREATE FUNCTION pgmq._not_supported(feature text, hint text)
RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RAISE EXCEPTION 'there are no % queues', feature
        USING ERRCODE = 'feature_not_supported', HINT = hint;
END
$$;

CREATE FUNCTION pgmq.create_unlogged(queue_name text)
RETURNS void LANGUAGE sql
BEGIN ATOMIC
    SELECT pgmq._not_supported('unlogged',
        'Call pgmq.create: all queues share logged tables. SET synchronous_commit TO off makes pushes as fast, and survives a crash.');
END;
COMMENT ON FUNCTION pgmq.create_unlogged(text) IS
'raises 0A000: all queues are logged. Source: pgmq';

CREATE FUNCTION pgmq.create_partitioned(
    queue_name text,
    partition_interval text DEFAULT '10000',
    retention_interval text DEFAULT '100000',
    premake integer DEFAULT 4)
RETURNS void LANGUAGE sql
BEGIN ATOMIC
    SELECT pgmq._not_supported('partitioned',
        'Call pgmq.create: the tables that all queues share are truncated as they empty, and the archive by its age.');
END;
COMMENT ON FUNCTION pgmq.create_partitioned(text, text, text, integer) IS
'raises 0A000: all queues share one ring of tables. Source: pgmq';

CREATE FUNCTION pgmq.convert_archive_partitioned(
    table_name text,
    partition_interval text DEFAULT '10000',
    retention_interval text DEFAULT '100000',
    leading_partition integer DEFAULT 10)
RETURNS void LANGUAGE sql
BEGIN ATOMIC
    SELECT pgmq._not_supported('partitioned',
        'The archive is truncated by its age: see _keep_finished of the queue.');
END;
COMMENT ON FUNCTION pgmq.convert_archive_partitioned(text, text, text, integer) IS
'raises 0A000: the archive is a ring of tables already. Source: pgmq';

CREATE FUNCTION pgmq.detach_archive(queue_name text)
RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RAISE WARNING 'detach_archive(queue_name) is deprecated and is a no-op';
END
$$;
COMMENT ON FUNCTION pgmq.detach_archive(text) IS
'without effect, with a warning. Source: pgmq';

CREATE FUNCTION pgmq.create_fifo_index(queue_name text)
RETURNS void LANGUAGE sql
RETURN NULL;
COMMENT ON FUNCTION pgmq.create_fifo_index(text) IS
'without effect: grouped reads need no index. Source: pgmq';

CREATE FUNCTION pgmq.create_fifo_indexes_all()
RETURNS void LANGUAGE sql
RETURN NULL;
COMMENT ON FUNCTION pgmq.create_fifo_indexes_all() IS
'without effect: grouped reads need no index. Source: pgmq';

-- _drop_views removes what the queue had of notify_throttle.
CREATE FUNCTION pgmq.drop_queue(queue_name text)
RETURNS boolean LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    q text := pgmq._name(queue_name);
BEGIN
    PERFORM pgmq.format_table_name(queue_name, 'q');
    IF NOT pgmq._is_queue(q) OR NOT pgmq._queue_drop(q) THEN
        RAISE NOTICE 'pgmq queue `%` does not exist', queue_name;
        RETURN false;
    END IF;
    PERFORM pgmq._drop_views(queue_name);
    RETURN true;
END
$$;
COMMENT ON FUNCTION pgmq.drop_queue(text) IS
'drops a queue, its messages, its archive and its bindings; false: there was none. Errors: 22023 name, 42501 no admin privilege, 2BP01 another queue sends its dead letters there. Source: pgmq';

CREATE FUNCTION pgmq.drop_queue(queue_name text, partitioned boolean)
RETURNS boolean LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RAISE WARNING 'drop_queue(queue_name, partitioned) is deprecated and will be removed in PGMQ v2.0. Use drop_queue(queue_name) instead';
    RETURN pgmq.drop_queue(queue_name);
END
$$;
COMMENT ON FUNCTION pgmq.drop_queue(text, boolean) IS
'as drop_queue(text), with a warning. Source: pgmq';

CREATE FUNCTION pgmq.purge_queue(queue_name text)
RETURNS bigint LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RETURN pgmq._queue_purge(pgmq._existing(queue_name));
END
$$;
COMMENT ON FUNCTION pgmq.purge_queue(text) IS
'removes all messages of a queue and returns their number. Errors: 42704 no queue of pgmq, 42501 no admin privilege. Source: pgmq';

-- The queues of the project, in pages as queue_list returns them.
CREATE FUNCTION pgmq._queues()
RETURNS TABLE (queue_name varchar, q text, created_at timestamptz)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    listed record;
    n integer;
    marker text;
BEGIN
    LOOP
        n := 0;
        FOR listed IN SELECT * FROM pgmq._queue_list(marker, 10000, NULL) LOOP
            n := n + 1;
            marker := listed.name;
            IF listed.metadata ? '_pgmq_base' THEN
                queue_name := CASE
                    WHEN pgmq._name(listed.metadata ->> 'queue_name') = listed.name
                    THEN listed.metadata ->> 'queue_name' ELSE listed.name END;
                q := listed.name;
                created_at := listed.created_at;
                RETURN NEXT;
            END IF;
        END LOOP;
        EXIT WHEN n < 10000;
    END LOOP;
END
$$;

CREATE VIEW pgmq.meta WITH (security_invoker) AS
SELECT queue_name, false AS is_partitioned, false AS is_unlogged, created_at
FROM pgmq._queues();
COMMENT ON VIEW pgmq.meta IS
'the queues of the project that pgmq.create has made';

CREATE FUNCTION pgmq.list_queues()
RETURNS SETOF pgmq.queue_record LANGUAGE sql
BEGIN ATOMIC
    SELECT queue_name, is_partitioned, is_unlogged, created_at FROM pgmq.meta;
END;
COMMENT ON FUNCTION pgmq.list_queues() IS
'the queues of the project that pgmq.create has made. Source: pgmq';

--
-- Notifications: a row whose interval is NULL stands for none
--

CREATE UNLOGGED TABLE pgmq.notify_throttle (
    queue text COLLATE "C",
    project text COLLATE "C",
    operation text,
    throttle_interval_ms integer
        CONSTRAINT throttle_is_not_negative CHECK (throttle_interval_ms >= 0),
    last_notified_at timestamptz NOT NULL DEFAULT to_timestamp(0),
    PRIMARY KEY (queue, project, operation)
);
COMMENT ON TABLE pgmq.notify_throttle IS
'queues of which each INSERT or DELETE is notified, but at most once in so many milliseconds';
SELECT pg_catalog.pg_extension_config_dump('pgmq.notify_throttle', '');

-- An admin of the queue may change the interval, and a role that may push or
-- claim the time.
ALTER TABLE pgmq.notify_throttle ENABLE ROW LEVEL SECURITY;
CREATE POLICY notify ON pgmq.notify_throttle FOR ALL
    USING (project = pgmq._project()
           AND (pgmq._may(queue, 'push') OR pgmq._may(queue, 'claim')))
    WITH CHECK (project = pgmq._project());
CREATE POLICY add ON pgmq.notify_throttle AS RESTRICTIVE FOR INSERT
    WITH CHECK (pgmq._may(queue, 'admin'));
GRANT SELECT, INSERT, UPDATE (throttle_interval_ms, last_notified_at)
    ON pgmq.notify_throttle TO queue_producer, queue_consumer, queue_admin;

-- Whatever a role writes, it is now; and an admin alone changes the interval.
CREATE FUNCTION pgmq._notified_now()
RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF NEW.throttle_interval_ms IS DISTINCT FROM OLD.throttle_interval_ms THEN
        IF NOT pgmq._may(OLD.queue, 'admin') THEN
            RETURN NULL;
        END IF;
        NEW.last_notified_at := to_timestamp(0);
    ELSE
        NEW.last_notified_at := clock_timestamp();
    END IF;
    RETURN NEW;
END
$$;

CREATE TRIGGER now BEFORE UPDATE ON pgmq.notify_throttle
FOR EACH ROW EXECUTE FUNCTION pgmq._notified_now();

-- Notify of what the caller has just done.  It waits for no other transaction:
-- if one that has notified is still open, so that it may be rolled back, this
-- one notifies, too.
CREATE FUNCTION pgmq._notify(operation text, q text)
RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    here text := pgmq._project();
    throttle integer;
BEGIN
    SELECT n.throttle_interval_ms INTO throttle
    FROM pgmq.notify_throttle AS n
    WHERE n.queue = q AND n.project = here AND n.operation = _notify.operation
        AND clock_timestamp() >= n.last_notified_at +
            n.throttle_interval_ms * interval '1 ms';
    IF NOT FOUND THEN
        RETURN;
    END IF;
    PERFORM pg_notify('pgmq.q_' || q || '.' || operation, '');
    IF throttle > 0 THEN
        UPDATE pgmq.notify_throttle AS n
        SET last_notified_at = clock_timestamp()
        WHERE n.ctid = ANY (ARRAY(
            SELECT l.ctid
            FROM pgmq.notify_throttle AS l
            WHERE l.queue = q AND l.project = here
                AND l.operation = _notify.operation
            FOR NO KEY UPDATE SKIP LOCKED));
    END IF;
END
$$;

CREATE FUNCTION pgmq._enable_notify(
    operation text, queue_name text, throttle_interval_ms integer)
RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    q text := pgmq._existing(queue_name);
BEGIN
    IF throttle_interval_ms IS NULL OR throttle_interval_ms < 0 THEN
        RAISE EXCEPTION 'throttle_interval_ms must be non-negative, got: %', throttle_interval_ms
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF octet_length('pgmq.q_' || q || '.' || operation) > 63 THEN
        RAISE EXCEPTION 'the name of queue "%" is too long for a channel', queue_name
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    PERFORM pgmq._disable_notify(operation, queue_name);
    PERFORM pgmq._queue_update(q, '{"_pgmq_notify": true}');
    INSERT INTO pgmq.notify_throttle AS n (queue, project, operation, throttle_interval_ms)
    VALUES (q, pgmq._project(), _enable_notify.operation, _enable_notify.throttle_interval_ms)
    ON CONFLICT (queue, project, operation)
    DO UPDATE SET throttle_interval_ms = EXCLUDED.throttle_interval_ms;
END
$$;

-- Returns whether there was something to disable.
CREATE FUNCTION pgmq._disable_notify(operation text, queue_name text)
RETURNS boolean LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    UPDATE pgmq.notify_throttle AS n
    SET throttle_interval_ms = NULL
    WHERE n.queue = pgmq._name(queue_name)
        AND n.project = pgmq._project()
        AND n.operation = _disable_notify.operation
        AND n.throttle_interval_ms IS NOT NULL;
    RETURN FOUND;
END
$$;

CREATE FUNCTION pgmq._update_notify(
    operation text, queue_name text, throttle_interval_ms integer)
RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    q text := pgmq._existing(queue_name);
BEGIN
    IF NOT EXISTS (
        SELECT FROM pgmq.notify_throttle AS n
        WHERE n.queue = q
            AND n.project = pgmq._project()
            AND n.operation = _update_notify.operation
            AND n.throttle_interval_ms IS NOT NULL) THEN
        RAISE EXCEPTION 'Queue "%" does not have notify_% enabled. Enable it first using pgmq.enable_notify_%()',
            queue_name, lower(operation), lower(operation)
            USING ERRCODE = 'object_not_in_prerequisite_state';
    END IF;
    PERFORM pgmq._enable_notify(operation, queue_name, throttle_interval_ms);
END
$$;

CREATE FUNCTION pgmq._list_notify(operation text)
RETURNS TABLE (queue_name text, throttle_interval_ms integer,
               last_notified_at timestamptz)
LANGUAGE sql
BEGIN ATOMIC
    SELECT q.queue_name, n.throttle_interval_ms, n.last_notified_at
    FROM pgmq._queues() AS q
    JOIN pgmq.notify_throttle AS n ON n.queue = q.q
        AND n.project = pgmq._project()
    WHERE n.operation = _list_notify.operation
        AND n.throttle_interval_ms IS NOT NULL
    ORDER BY q.queue_name;
END;

CREATE FUNCTION pgmq.enable_notify_insert(
    queue_name text, throttle_interval_ms integer DEFAULT 250)
RETURNS void LANGUAGE sql
BEGIN ATOMIC
    SELECT pgmq._enable_notify('INSERT', queue_name, throttle_interval_ms);
END;
COMMENT ON FUNCTION pgmq.enable_notify_insert(text, integer) IS
'from now on, pgmq notifies the channel pgmq.q_<queue>.INSERT when a message is sent to the queue by these functions, at most once in throttle_interval_ms (0: always). Errors: 42704 no queue of pgmq, 22023 interval, 42501 no admin privilege. Source: pgmq';

CREATE FUNCTION pgmq.disable_notify_insert(queue_name text)
RETURNS void LANGUAGE sql
BEGIN ATOMIC
    SELECT pgmq._disable_notify('INSERT', queue_name);
END;
COMMENT ON FUNCTION pgmq.disable_notify_insert(text) IS
'undoes enable_notify_insert; without effect for a role without admin on the queue. Source: pgmq';

CREATE FUNCTION pgmq.update_notify_insert(
    queue_name text, throttle_interval_ms integer)
RETURNS void LANGUAGE sql
BEGIN ATOMIC
    SELECT pgmq._update_notify('INSERT', queue_name, throttle_interval_ms);
END;
COMMENT ON FUNCTION pgmq.update_notify_insert(text, integer) IS
'changes the interval of enable_notify_insert. Errors: as that, 55000 it is not enabled. Source: pgmq';

CREATE FUNCTION pgmq.list_notify_insert_throttles()
RETURNS TABLE (queue_name text, throttle_interval_ms integer,
               last_notified_at timestamptz)
LANGUAGE sql
BEGIN ATOMIC
    SELECT * FROM pgmq._list_notify('INSERT');
END;
COMMENT ON FUNCTION pgmq.list_notify_insert_throttles() IS
'the queues for which enable_notify_insert was called. Source: pgmq';

CREATE FUNCTION pgmq.enable_notify_delete(
    queue_name text, throttle_interval_ms integer DEFAULT 250)
RETURNS void LANGUAGE sql
BEGIN ATOMIC
    SELECT pgmq._enable_notify('DELETE', queue_name, throttle_interval_ms);
END;
COMMENT ON FUNCTION pgmq.enable_notify_delete(text, integer) IS
'from now on, pgmq notifies the channel pgmq.q_<queue>.DELETE when a message is deleted from the queue by these functions, at most once in throttle_interval_ms (0: always). Errors: 42704 no queue of pgmq, 22023 interval, 42501 no admin privilege. Source: pgmq';

CREATE FUNCTION pgmq.disable_notify_delete(queue_name text)
RETURNS void LANGUAGE sql
BEGIN ATOMIC
    SELECT pgmq._disable_notify('DELETE', queue_name);
END;
COMMENT ON FUNCTION pgmq.disable_notify_delete(text) IS
'undoes enable_notify_delete; without effect for a role without admin on the queue. Source: pgmq';

CREATE FUNCTION pgmq.update_notify_delete(
    queue_name text, throttle_interval_ms integer)
RETURNS void LANGUAGE sql
BEGIN ATOMIC
    SELECT pgmq._update_notify('DELETE', queue_name, throttle_interval_ms);
END;
COMMENT ON FUNCTION pgmq.update_notify_delete(text, integer) IS
'changes the interval of enable_notify_delete. Errors: as that, 55000 it is not enabled. Source: pgmq';

CREATE FUNCTION pgmq.list_notify_delete_throttles()
RETURNS TABLE (queue_name text, throttle_interval_ms integer,
               last_notified_at timestamptz)
LANGUAGE sql
BEGIN ATOMIC
    SELECT * FROM pgmq._list_notify('DELETE');
END;
COMMENT ON FUNCTION pgmq.list_notify_delete_throttles() IS
'the queues for which enable_notify_delete was called. Source: pgmq';

--
-- Messages as rows
--

CREATE FUNCTION pgmq._messages(queue_name text)
RETURNS SETOF pgmq.message_record LANGUAGE sql
BEGIN ATOMIC
    SELECT * FROM pgmq._list(queue_name, NULL, NULL, NULL, true);
END;

-- What archive() has left in the history
CREATE FUNCTION pgmq._archived(queue_name text)
RETURNS TABLE (msg_id bigint, read_ct integer, enqueued_at timestamptz,
               last_read_at timestamptz, archived_at timestamptz,
               vt timestamptz, message jsonb, headers jsonb)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    f record;
    n integer;
    marker bigint;
    kept jsonb;
BEGIN
    LOOP
        n := 0;
        FOR f IN SELECT *
                 FROM pgmq._queue_finished(_archived.queue_name, marker, 10000,
                                           'completed')
        LOOP
            n := n + 1;
            marker := f.id;
            CONTINUE WHEN NOT f.result ? 'pgmq' IS TRUE;
            kept := f.result -> 'pgmq';
            msg_id := pgmq._msg_id(_archived.queue_name, f.id);

            -- Before version 2.0 all reads were attempts.
            read_ct := COALESCE((kept -> 'read_ct')::integer, f.attempts);
            enqueued_at := f.pushed_at;
            last_read_at := kept ->> 'last_read_at';
            archived_at := f.finished_at;
            vt := kept ->> 'vt';
            message := NULLIF(f.body, 'null');
            headers := NULLIF(kept -> 'headers', 'null');
            RETURN NEXT;
        END LOOP;
        EXIT WHEN n < 10000;
    END LOOP;
END
$$;

-- Of the view of a queue, the column vt can be changed and rows deleted.
CREATE FUNCTION pgmq._write_view()
RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF TG_OP = 'DELETE' THEN
        PERFORM pgmq._delete(TG_ARGV[0], ARRAY[OLD.msg_id], NULL);
        RETURN OLD;
    END IF;
    IF (NEW.msg_id, NEW.read_ct, NEW.enqueued_at, NEW.last_read_at,
        NEW.message, NEW.headers)
        IS DISTINCT FROM (OLD.msg_id, OLD.read_ct, OLD.enqueued_at,
                          OLD.last_read_at, OLD.message, OLD.headers) THEN
        RAISE EXCEPTION 'only column "vt" of "%" can be changed', TG_TABLE_NAME
            USING ERRCODE = 'feature_not_supported';
    END IF;
    PERFORM FROM pgmq._set_vt(TG_ARGV[0], ARRAY[NEW.msg_id], NEW.vt);
    RETURN NEW;
END
$$;

CREATE FUNCTION pgmq.metrics(queue_name text)
RETURNS pgmq.metrics_result LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    q text := pgmq._existing(queue_name);
    result pgmq.metrics_result;
BEGIN
    SELECT metrics.queue_name, s.total, s.newest_age, s.oldest_age,
           pgmq._sent(q), now(), s.free, NULL
    INTO result
    FROM pgmq._queue_stats(q) AS s;
    RETURN result;
END
$$;
COMMENT ON FUNCTION pgmq.metrics(text) IS
'the numbers of messages of a queue, their ages in seconds, and how many were ever sent, which lags by up to 2 s. Errors: 42704 no queue of pgmq, 42501 no right to claim. Source: pgmq';

CREATE FUNCTION pgmq.metrics_all()
RETURNS SETOF pgmq.metrics_result LANGUAGE sql
BEGIN ATOMIC
    SELECT m.*
    FROM pgmq._queues() AS q, LATERAL pgmq.metrics(q.queue_name) AS m
    WHERE pgmq._may(q.q, 'claim');
END;
COMMENT ON FUNCTION pgmq.metrics_all() IS
'metrics of the queues of the project from which the caller may claim. Source: pgmq';

--
-- Sending
--

CREATE FUNCTION pgmq._group(headers jsonb)
RETURNS text LANGUAGE sql IMMUTABLE
RETURN NULLIF(headers ->> 'x-pgmq-group', '');

CREATE FUNCTION pgmq._send(
    queue_name text, msg jsonb, headers jsonb, delay integer)
RETURNS bigint LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    q text := pgmq._name(queue_name);
    id bigint := pgmq._queue_push(q, COALESCE(msg, 'null'), NULL,
        GREATEST(delay, 0), 0, NULL, pgmq._group(headers), headers);
BEGIN
    -- If there was no such queue, the push has created one: the error takes it
    -- back.
    IF pgmq._notifies(q) THEN
        PERFORM pgmq._notify('INSERT', q);
    END IF;
    RETURN pgmq._msg_id(q, id);
END
$$;

CREATE FUNCTION pgmq._check_batch(msgs jsonb[], headers jsonb[])
RETURNS void LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF COALESCE(cardinality(msgs), 0) = 0 THEN
        RAISE EXCEPTION 'msgs cannot be NULL or empty'
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF cardinality(headers) <> cardinality(msgs) THEN
        RAISE EXCEPTION 'headers array length (%) must match msgs array length (%)',
            cardinality(headers), cardinality(msgs)
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
END
$$;

-- queue.max_push_count bounds one push, so that many are several.
CREATE FUNCTION pgmq._send_batch(
    queue_name text, msgs jsonb[], headers jsonb[], delay integer)
RETURNS SETOF bigint LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    q text := pgmq._name(queue_name);
    size integer := COALESCE(current_setting('queue.max_push_count', true), '10000');
    n integer := cardinality(msgs);
BEGIN
    PERFORM pgmq._check_batch(msgs, headers);
    IF array_lower(msgs, 1) <> 1 OR array_lower(headers, 1) <> 1 THEN
        msgs := ARRAY(SELECT unnest(msgs));
        headers := CASE WHEN headers IS NOT NULL
            THEN ARRAY(SELECT unnest(headers)) END;
    END IF;
    FOR i IN 1 .. n BY size LOOP
        RETURN QUERY
        SELECT pgmq._msg_id(q, id)
        FROM unnest(pgmq._queue_post(q, (
            SELECT jsonb_agg(jsonb_build_object(
                'body', COALESCE(m.msg, 'null'),
                'headers', m.h,
                'group_key', pgmq._group(m.h),
                'delay', GREATEST(delay, 0)) ORDER BY m.place)
            FROM unnest(msgs[i : i + size - 1], headers[i : i + size - 1])
                 WITH ORDINALITY AS m (msg, h, place)))) AS id;
    END LOOP;
    IF pgmq._notifies(q) THEN
        PERFORM pgmq._notify('INSERT', q);
    END IF;
END
$$;

-- Without and with headers; without a delay, with one in seconds, or until a time
DO $do$
DECLARE
    r record;
BEGIN
    FOR r IN
        SELECT f.name, f.result, f.call || h.value || ', ' || d.value AS call,
               f.arguments || h.argument || d.argument AS arguments,
               format(f.comment, h.comment || CASE WHEN d.comment = '' THEN ''
                   WHEN h.comment = '' THEN ', ' ELSE '; ' END || d.comment) AS comment
        FROM (VALUES
                 ('send', 'queue_name text, msg jsonb', 'SETOF bigint',
                  'RETURN NEXT pgmq._send(queue_name, msg, ',
                  'sends a message%s, and returns its id. Errors: 42704 no queue of pgmq, 42501 no right to push, 54000 too large, 22023 delay. Source: pgmq'),
                 ('send_batch', 'queue_name text, msgs jsonb[]', 'SETOF bigint',
                  'RETURN QUERY SELECT * FROM pgmq._send_batch(queue_name, msgs, ',
                  'sends messages%s, and returns their ids. Errors: 42704 no queue of pgmq, 42501 no right to push, 54000 too large, 22023 delay, arrays. Source: pgmq'),
                 ('send_batch_topic', 'routing_key text, msgs jsonb[]',
                  'TABLE (queue_name text, msg_id bigint)',
                  E'RETURN QUERY SELECT * FROM pgmq._send_batch_topic(routing_key, msgs,\n        ',
                  'sends messages to each queue that is bound to the routing key, all or nothing, and returns the queues and the ids; it does not heed filters and publishers of topic_bind. Errors: as send_batch, 22023 routing key, 42501 not a member of queue_admin. Source: pgmq'))
             AS f (name, arguments, result, call, comment)
             CROSS JOIN LATERAL (VALUES
                 ('', 'NULL', ''),
                 (', headers ' || substring(f.arguments, 'jsonb.*'), 'headers',
                  ' with headers; x-pgmq-group is the group key'))
             AS h (argument, value, comment)
             CROSS JOIN (VALUES
                 ('', '0', ''),
                 (', delay integer', 'delay', 'readable after delay seconds'),
                 (', delay timestamptz', 'pgmq._seconds(delay)',
                  'readable from the time delay on, to the next second'))
             AS d (argument, value, comment)
    LOOP
        EXECUTE format($f$CREATE FUNCTION pgmq.%s(%s)
RETURNS %s LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    %s);
END
$$$f$, r.name, r.arguments, r.result, r.call);
        EXECUTE format('COMMENT ON FUNCTION pgmq.%s(%s) IS %L', r.name, r.arguments, r.comment);
    END LOOP;
END
$do$;

--
-- Reading
--

-- Messages that contain a condition, the first ones that no other session reads
-- at the same time
CREATE FUNCTION pgmq._read_where(
    queue_name text, vt timestamptz, qty integer, conditional jsonb)
RETURNS SETOF pgmq.message_record LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    tried bigint[] := '{}';
    ids bigint[];
    n integer;
BEGIN
    WHILE qty > 0 LOOP
        ids := ARRAY(
            SELECT l.msg_id
            FROM pgmq._list(queue_name, NULL, conditional,
                            LEAST(qty + cardinality(tried), 10000),
                            false) AS l
            WHERE l.msg_id <> ALL (tried)
            ORDER BY l.msg_id
            LIMIT qty);
        EXIT WHEN ids = '{}';
        RETURN QUERY SELECT * FROM pgmq._read_ids(queue_name, vt, ids, true);
        GET DIAGNOSTICS n = ROW_COUNT;
        qty := qty - n;
        tried := tried || ids;
    END LOOP;
END
$$;

-- First in, first out within each group: only messages before which nothing of
-- their group is hidden.  how says in which order: "grouped" fills up with one
-- group after the other, "rr" takes turns, "head" takes one of each.
--
-- A group that another open transaction reads is left to it.  What is free is
-- read again when the groups are locked, since that transaction may have ended
-- meanwhile.
CREATE FUNCTION pgmq._candidates(
    how text, queue_name text, qty integer, groups text[])
RETURNS TABLE (msg_id bigint, grp text, place bigint)
LANGUAGE sql
BEGIN ATOMIC
    WITH listed AS (
        SELECT l.msg_id, COALESCE(pgmq._group(l.headers), '') AS grp,
               l.vt <= clock_timestamp() AS visible
        FROM pgmq._list(queue_name, NULL, NULL, NULL, false) AS l
    ), ranked AS (
        SELECT l.msg_id, l.grp,
               bool_and(l.visible) OVER earlier AS visible,
               row_number() OVER earlier AS rank,
               min(l.msg_id) OVER (PARTITION BY l.grp) AS head
        FROM listed AS l
        WHERE groups IS NULL OR l.grp = ANY (groups)
        WINDOW earlier AS (PARTITION BY l.grp ORDER BY l.msg_id)
    )
    SELECT r.msg_id, r.grp,
           row_number() OVER (
               ORDER BY CASE WHEN how = 'rr' THEN r.rank END, r.head, r.rank)
               AS place
    FROM ranked AS r
    WHERE r.visible AND (how <> 'head' OR r.rank = 1)
    ORDER BY place
    LIMIT qty;
END;

CREATE FUNCTION pgmq._read_groups(
    how text, queue_name text, vt timestamptz, qty integer)
RETURNS SETOF pgmq.message_record LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    q text := pgmq._name(queue_name);
    groups text[];
    taken pgmq.message_record[] := '{}';
    places bigint[] := '{}';
    g record;
BEGIN
    groups := ARRAY(
        SELECT c.grp
        FROM (SELECT c.grp
              FROM pgmq._candidates(how, q, qty, NULL) AS c
              GROUP BY c.grp ORDER BY min(c.place) LIMIT 500) AS c
        WHERE pgmq._try_group(q, c.grp));
    FOR g IN
        SELECT array_agg(c.msg_id ORDER BY c.place) AS ids,
               array_agg(c.place ORDER BY c.place) AS places
        FROM pgmq._candidates(how, q, qty, groups) AS c
        GROUP BY c.grp
    LOOP
        -- In order, up to the first one that another transaction has locked
        taken := taken || ARRAY(
            SELECT m FROM pgmq._read_ids(q, vt, g.ids, false) AS m);
        places := places || g.places[: cardinality(taken) - cardinality(places)];
    END LOOP;
    RETURN QUERY
    SELECT t.msg_id, t.read_ct, t.enqueued_at, t.last_read_at, t.vt,
           t.message, t.headers
    FROM ROWS FROM (unnest(taken), unnest(places))
         AS t (msg_id, read_ct, enqueued_at, last_read_at, vt, message,
               headers, place)
    ORDER BY t.place;
END
$$;

-- All reads: how is "any" or one of the above.
CREATE FUNCTION pgmq._take(
    how text, queue_name text, vt timestamptz, qty integer, conditional jsonb)
RETURNS SETOF pgmq.message_record LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    -- As LIMIT has it, NULL is no limit.
    qty := COALESCE(qty, 10000);
    IF qty < 1 THEN
        RETURN;
    END IF;
    IF how <> 'any' THEN
        RETURN QUERY SELECT * FROM pgmq._read_groups(how, queue_name, vt, qty);
    ELSIF conditional <> '{}' THEN
        RETURN QUERY
        SELECT * FROM pgmq._read_where(pgmq._name(queue_name), vt, qty, conditional);
    ELSE
        RETURN QUERY
        SELECT * FROM pgmq._read(pgmq._name(queue_name), vt, LEAST(qty, 10000));
    END IF;
END
$$;

-- Reads until there is something; at, or seconds from then on.
CREATE FUNCTION pgmq._poll(
    how text, queue_name text, at timestamptz, seconds integer, qty integer,
    conditional jsonb, max_poll_seconds integer, poll_interval_ms integer)
RETURNS SETOF pgmq.message_record LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    stop_at timestamptz := pgmq._later(max_poll_seconds);
BEGIN
    WHILE clock_timestamp() < stop_at LOOP
        RETURN QUERY
        SELECT * FROM pgmq._take(how, queue_name,
            COALESCE(at, pgmq._later(seconds)), qty, conditional);
        EXIT WHEN FOUND;
        PERFORM pg_sleep(poll_interval_ms / 1000.0);
    END LOOP;
END
$$;

-- In each order, for seconds or until a time, at once or by polling
DO $do$
DECLARE
    r record;
BEGIN
    FOR r IN
        SELECT f.name || p.suffix AS name,
               concat_ws(', ', 'queue_name text, vt ' || v.type || ', qty integer', p.options,
                         f.options) AS arguments,
               format(p.call, f.how, CASE p.suffix WHEN '' THEN v.value ELSE v.values END,
                      CASE f.how WHEN 'any' THEN 'conditional' ELSE 'NULL' END) AS call,
               format(f.comment, v.comment) || p.comment
               || '. Errors: 42704 no queue of pgmq, 42501 no right to claim, 22023 vt'
               || CASE f.how WHEN 'any' THEN '' ELSE ', 55000 its groups have bounds' END
               || '. Source: pgmq' AS comment
        FROM (VALUES
                 ('read', 'any', 'conditional jsonb DEFAULT ''{}''',
                  'reads messages, oldest first, groups in turn, and hides them %s; with conditional only those that contain it'),
                 ('read_grouped', 'grouped', NULL,
                  'reads messages first in, first out within each group, one group after the other, and hides them %s'),
                 ('read_grouped_rr', 'rr', NULL,
                  'reads messages first in, first out within each group, groups in turn, and hides them %s'),
                 ('read_grouped_head', 'head', NULL,
                  'reads the first message of each group, unless that is hidden, of qty groups at most, and hides it %s'))
             AS f (name, how, options, comment)
             CROSS JOIN (VALUES
                 ('integer', 'pgmq._later(vt)', 'NULL, vt', 'for vt seconds'),
                 ('timestamptz', 'vt', 'vt, NULL', 'until the time vt'))
             AS v (type, value, values, comment)
             CROSS JOIN (VALUES
                 ('', NULL, 'pgmq._take(%L, queue_name, %s, qty, %s)', ''),
                 ('_with_poll',
                  'max_poll_seconds integer DEFAULT 5, poll_interval_ms integer DEFAULT 100',
                  E'pgmq._poll(%L, queue_name, %s, qty, %s,\n'
                  '        max_poll_seconds, poll_interval_ms)',
                  '; waits up to max_poll_seconds for one, and looks every poll_interval_ms'))
             AS p (suffix, options, call, comment)
    LOOP
        EXECUTE format($f$CREATE FUNCTION pgmq.%s(%s)
RETURNS SETOF pgmq.message_record LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RETURN QUERY SELECT * FROM %s;
END
$$$f$, r.name, r.arguments, r.call);
        EXECUTE format('COMMENT ON FUNCTION pgmq.%s(%s) IS %L', r.name,
            regexp_replace(r.arguments, ' DEFAULT [^,]+', '', 'g'), r.comment);
    END LOOP;
END
$do$;

CREATE FUNCTION pgmq.pop(queue_name text, qty integer DEFAULT 1)
RETURNS SETOF pgmq.message_record LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    q text := pgmq._name(queue_name);
BEGIN
    IF qty < 1 THEN
        RETURN;
    END IF;
    RETURN QUERY
    SELECT * FROM pgmq._pop(q, LEAST(COALESCE(qty, 10000), 10000));
    IF FOUND AND pgmq._notifies(q) THEN
        PERFORM pgmq._notify('DELETE', q);
    END IF;
END
$$;
COMMENT ON FUNCTION pgmq.pop(text, integer) IS
'reads messages and deletes them at once. Errors: as read. Source: pgmq';

--
-- Messages that were read
--

CREATE FUNCTION pgmq.set_vt(
    queue_name text, msg_id bigint, vt timestamptz)
RETURNS SETOF pgmq.message_record LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RETURN QUERY SELECT * FROM pgmq._set_vt(pgmq._name(queue_name),
        array_remove(ARRAY[msg_id], NULL), vt);
END
$$;
COMMENT ON FUNCTION pgmq.set_vt(text, bigint, timestamptz) IS
'hides a message until the time vt, whether or not it was read; no longer in the future: shows it. Errors: as read. Source: pgmq';

CREATE FUNCTION pgmq.set_vt(
    queue_name text, msg_id bigint, vt integer)
RETURNS SETOF pgmq.message_record LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RETURN QUERY SELECT * FROM pgmq._set_vt(pgmq._name(queue_name),
        array_remove(ARRAY[msg_id], NULL), pgmq._later(vt));
END
$$;
COMMENT ON FUNCTION pgmq.set_vt(text, bigint, integer) IS
'hides a message for vt seconds, whether or not it was read; no longer in the future: shows it. Errors: as read. Source: pgmq';

CREATE FUNCTION pgmq.set_vt(
    queue_name text, msg_ids bigint[], vt timestamptz)
RETURNS SETOF pgmq.message_record LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RETURN QUERY SELECT * FROM pgmq._set_vt(pgmq._name(queue_name),
        pgmq._in_order(msg_ids), vt);
END
$$;
COMMENT ON FUNCTION pgmq.set_vt(text, bigint[], timestamptz) IS
'hides messages until the time vt, whether or not they were read; no longer in the future: shows them. Errors: as read. Source: pgmq';

CREATE FUNCTION pgmq.set_vt(
    queue_name text, msg_ids bigint[], vt integer)
RETURNS SETOF pgmq.message_record LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RETURN QUERY SELECT * FROM pgmq._set_vt(pgmq._name(queue_name),
        pgmq._in_order(msg_ids), pgmq._later(vt));
END
$$;
COMMENT ON FUNCTION pgmq.set_vt(text, bigint[], integer) IS
'hides messages for vt seconds, whether or not they were read; no longer in the future: shows them. Errors: as read. Source: pgmq';

-- In the order in which all functions lock messages: by priority, then by id
CREATE FUNCTION pgmq._in_order(ids bigint[])
RETURNS bigint[] LANGUAGE sql IMMUTABLE
RETURN ARRAY(
    SELECT i FROM unnest(ids) AS i WHERE i IS NOT NULL
    GROUP BY i ORDER BY i >> 58 DESC, i);

CREATE FUNCTION pgmq.delete(queue_name text, msg_ids bigint[])
RETURNS SETOF bigint LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    q text := pgmq._name(queue_name);
BEGIN
    RETURN QUERY
    SELECT unnest(pgmq._delete(q, pgmq._in_order(msg_ids), NULL));
    IF FOUND AND pgmq._notifies(pgmq._name(queue_name)) THEN
        PERFORM pgmq._notify('DELETE', q);
    END IF;
END
$$;
COMMENT ON FUNCTION pgmq.delete(text, bigint[]) IS
'deletes messages, and returns the ids of those that there were. Errors: 42704 no queue of pgmq, 42501 no right to claim. Source: pgmq';

CREATE FUNCTION pgmq.delete(queue_name text, msg_id bigint)
RETURNS boolean LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    q text := pgmq._name(queue_name);
    deleted boolean := msg_id IS NOT NULL
        AND pgmq._delete(q, ARRAY[msg_id], NULL) <> '{}';
BEGIN
    IF deleted AND pgmq._notifies(q) THEN
        PERFORM pgmq._notify('DELETE', q);
    END IF;
    RETURN deleted;
END
$$;
COMMENT ON FUNCTION pgmq.delete(text, bigint) IS
'deletes a message; false: there was none. Errors: 42704 no queue of pgmq, 42501 no right to claim. Source: pgmq';

CREATE FUNCTION pgmq.archive(queue_name text, msg_ids bigint[])
RETURNS SETOF bigint LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    q text := pgmq._name(queue_name);
    ids bigint[];
    results jsonb[];
BEGIN
    SELECT array_agg(l.msg_id ORDER BY l.place),
           array_agg(jsonb_build_object('pgmq', jsonb_build_object(
               'headers', l.headers, 'read_ct', l.read_ct,
               'last_read_at', l.last_read_at, 'vt', l.vt)) ORDER BY l.place)
    INTO ids, results
    FROM pgmq._list(q, pgmq._in_order(msg_ids), NULL, NULL, false)
         WITH ORDINALITY AS l (msg_id, read_ct, enqueued_at, last_read_at, vt,
                               message, headers, place);
    IF ids IS NULL THEN
        RETURN;
    END IF;
    RETURN QUERY SELECT unnest(pgmq._delete(q, ids, results));
    IF FOUND AND pgmq._notifies(pgmq._name(queue_name)) THEN
        PERFORM pgmq._notify('DELETE', q);
    END IF;
END
$$;
COMMENT ON FUNCTION pgmq.archive(text, bigint[]) IS
'deletes messages and keeps them in the archive, for _keep_finished seconds; returns the ids of those that there were. Errors: 42704 no queue of pgmq, 42501 no right to claim. Source: pgmq';

CREATE FUNCTION pgmq.archive(queue_name text, msg_id bigint)
RETURNS boolean LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM FROM pgmq.archive(queue_name, ARRAY[msg_id]);
    RETURN FOUND;
END
$$;
COMMENT ON FUNCTION pgmq.archive(text, bigint) IS
'deletes a message and keeps it in the archive, for _keep_finished seconds; false: there was none. Errors: 42704 no queue of pgmq, 42501 no right to claim. Source: pgmq';

--
-- Topics
--

-- To pgmq, # among other words stands for one word at least; to topic_bind, for
-- none or more.  The sole # stands for any topic in both.
CREATE FUNCTION pgmq._pattern_to_queue(pattern text)
RETURNS text LANGUAGE sql IMMUTABLE
RETURN CASE WHEN pattern = '#' THEN pattern ELSE replace(pattern, '#', '*.#') END;

CREATE FUNCTION pgmq._pattern_of_queue(pattern text)
RETURNS text LANGUAGE sql IMMUTABLE
RETURN replace(pattern, '*.#', '#');

CREATE FUNCTION pgmq._regex(pattern text)
RETURNS text LANGUAGE sql IMMUTABLE
RETURN '^' || replace(replace(
    regexp_replace(pattern, '([.+?{}()|\[\]\\^$])', '\\\1', 'g'),
    '*', '[^.]+'), '#', '.*') || '$';

-- The checks that routing keys and patterns have in common
CREATE FUNCTION pgmq._check_words(what text, given text, characters text)
RETURNS void LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    problem text := CASE
        WHEN given IS NULL OR given = '' THEN 'cannot be NULL or empty'
        WHEN length(given) > 255 THEN format(
            'length cannot exceed 255 characters, got %s characters',
            length(given))
        WHEN given !~ ('^[' || characters || ']+$') THEN format(
            'contains invalid characters. Got: %s', given)
        WHEN given ~ '^\.' THEN format('cannot start with a dot. Got: %s', given)
        WHEN given ~ '\.$' THEN format('cannot end with a dot. Got: %s', given)
        WHEN given ~ '\.\.' THEN format(
            'cannot contain consecutive dots. Got: %s', given)
        WHEN given ~ '[*#][*#]' THEN format(
            'cannot contain adjacent wildcards. Separate wildcards with dots. Got: %s',
            given)
    END;
BEGIN
    IF problem IS NOT NULL THEN
        RAISE EXCEPTION '% %', what, problem
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
END
$$;

CREATE FUNCTION pgmq.validate_routing_key(routing_key text)
RETURNS boolean LANGUAGE plpgsql IMMUTABLE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM pgmq._check_words('routing_key', routing_key, 'a-zA-Z0-9._-');
    RETURN true;
END
$$;
COMMENT ON FUNCTION pgmq.validate_routing_key(text) IS
'true. Errors: 22023 it is no routing key. Source: pgmq';

CREATE FUNCTION pgmq.validate_topic_pattern(pattern text)
RETURNS boolean LANGUAGE plpgsql IMMUTABLE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM pgmq._check_words('pattern', pattern, 'a-zA-Z0-9._*#-');
    RETURN true;
END
$$;
COMMENT ON FUNCTION pgmq.validate_topic_pattern(text) IS
'true. Errors: 22023 it is no pattern. Source: pgmq';

CREATE FUNCTION pgmq.bind_topic(pattern text, queue_name text)
RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM pgmq.validate_topic_pattern(pattern);
    PERFORM pgmq._topic_bind(pgmq._pattern_to_queue(pattern),
                             pgmq._existing(queue_name), NULL, NULL);
END
$$;
COMMENT ON FUNCTION pgmq.bind_topic(text, text) IS
'the queue gets what is sent to routing keys that match the pattern: * stands for one word, # for one or more, and alone for any. A word is a wildcard or has none. Errors: 22023 pattern, 42704 no queue of pgmq, 42501 not a member of queue_admin. Source: pgmq';

CREATE FUNCTION pgmq.unbind_topic(pattern text, queue_name text)
RETURNS boolean LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM pgmq.validate_topic_pattern(pattern);
    RETURN pgmq._topic_unbind(pgmq._pattern_to_queue(pattern),
                              pgmq._name(queue_name));
END
$$;
COMMENT ON FUNCTION pgmq.unbind_topic(text, text) IS
'undoes bind_topic; false: there was no such binding. Errors: 22023 pattern, 42501 not a member of queue_admin. Source: pgmq';

-- The bindings of the project of which the caller may know, in pages as
-- topic_list returns them.
CREATE FUNCTION pgmq._bindings()
RETURNS TABLE (pattern text, queue_name text, bound_at timestamptz)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    listed record;
    n integer;
    marker text;
BEGIN
    LOOP
        n := 0;
        FOR listed IN SELECT * FROM pgmq._topic_list(marker, 10000, NULL) LOOP
            n := n + 1;
            marker := listed.pattern || ' ' || listed.queue;
            pattern := pgmq._pattern_of_queue(listed.pattern);
            queue_name := listed.queue;
            bound_at := listed.bound_at;
            RETURN NEXT;
        END LOOP;
        EXIT WHEN n < 10000;
    END LOOP;
END
$$;

CREATE VIEW pgmq.topic_bindings WITH (security_invoker) AS
SELECT pattern, queue_name, bound_at, pgmq._regex(pattern) AS compiled_regex
FROM pgmq._bindings();
COMMENT ON VIEW pgmq.topic_bindings IS
'the bindings of queues of which the caller is owner or admin; DELETE unbinds';

CREATE FUNCTION pgmq._delete_binding()
RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RETURN CASE WHEN pgmq.unbind_topic(OLD.pattern, OLD.queue_name) THEN OLD END;
END
$$;

CREATE TRIGGER unbind INSTEAD OF DELETE ON pgmq.topic_bindings
FOR EACH ROW EXECUTE FUNCTION pgmq._delete_binding();

CREATE FUNCTION pgmq.list_topic_bindings()
RETURNS TABLE (pattern text, queue_name text, bound_at timestamptz,
               compiled_regex text)
LANGUAGE sql
BEGIN ATOMIC
    SELECT b.pattern, b.queue_name, b.bound_at, b.compiled_regex
    FROM pgmq.topic_bindings AS b
    ORDER BY b.bound_at DESC, b.pattern, b.queue_name;
END;
COMMENT ON FUNCTION pgmq.list_topic_bindings() IS
'the bindings of queues of which the caller is owner or admin, latest first. Source: pgmq';

CREATE FUNCTION pgmq.list_topic_bindings(queue_name text)
RETURNS TABLE (pattern text, queue_name text, bound_at timestamptz,
               compiled_regex text)
LANGUAGE sql
BEGIN ATOMIC
    SELECT b.pattern, b.queue_name, b.bound_at, b.compiled_regex
    FROM pgmq.topic_bindings AS b
    WHERE b.queue_name = pgmq._name($1)
    ORDER BY b.bound_at DESC, b.pattern;
END;
COMMENT ON FUNCTION pgmq.list_topic_bindings(text) IS
'the bindings of one queue, latest first, if the caller is its owner or admin. Source: pgmq';

CREATE FUNCTION pgmq.test_routing(routing_key text)
RETURNS TABLE (pattern text, queue_name text, compiled_regex text)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM pgmq.validate_routing_key(routing_key);
    RETURN QUERY
    SELECT b.pattern, b.queue_name, b.compiled_regex
    FROM pgmq.topic_bindings AS b
    WHERE routing_key ~ b.compiled_regex
    ORDER BY b.pattern;
END
$$;
COMMENT ON FUNCTION pgmq.test_routing(text) IS
'the bindings that match a routing key, of queues of which the caller is owner or admin. Errors: 22023 routing key. Source: pgmq';

CREATE FUNCTION pgmq.send_topic(
    routing_key text, msg jsonb, headers jsonb, delay integer)
RETURNS integer LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM pgmq.validate_routing_key(routing_key);
    IF msg IS NULL THEN
        RAISE EXCEPTION 'msg cannot be NULL'
            USING ERRCODE = 'null_value_not_allowed';
    END IF;
    IF delay < 0 THEN
        RAISE EXCEPTION 'delay cannot be negative, got: %', delay
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    RETURN pgmq._topic_publish(routing_key, msg, headers, NULL, delay, 0,
                               pgmq._group(headers), NULL);
END
$$;
COMMENT ON FUNCTION pgmq.send_topic(text, jsonb, jsonb, integer) IS
'sends a message to each queue that is bound to the routing key, readable after delay seconds, and returns how many there were; one that does not accept it is left out. Errors: 22023/22004 argument, 42501 not a member of queue_producer. Source: pgmq';

CREATE FUNCTION pgmq.send_topic(routing_key text, msg jsonb)
RETURNS integer LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RETURN pgmq.send_topic(routing_key, msg, NULL, 0);
END
$$;
COMMENT ON FUNCTION pgmq.send_topic(text, jsonb) IS
'as send_topic with headers and a delay. Source: pgmq';

CREATE FUNCTION pgmq.send_topic(routing_key text, msg jsonb, delay integer)
RETURNS integer LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RETURN pgmq.send_topic(routing_key, msg, NULL, delay);
END
$$;
COMMENT ON FUNCTION pgmq.send_topic(text, jsonb, integer) IS
'as send_topic with headers and a delay. Source: pgmq';

-- For send_batch_topic, which is made with send and send_batch
CREATE FUNCTION pgmq._send_batch_topic(
    routing_key text, msgs jsonb[], headers jsonb[], delay integer)
RETURNS TABLE (queue_name text, msg_id bigint)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM pgmq.validate_routing_key(routing_key);
    PERFORM pgmq._check_batch(msgs, headers);
    IF NOT pg_has_role('queue_admin', 'MEMBER') THEN
        RAISE EXCEPTION 'permission denied to see which queues are bound'
            USING ERRCODE = 'insufficient_privilege',
                  HINT = 'Call pgmq.send_topic for each message, or become a member of queue_admin.';
    END IF;
    RETURN QUERY
    SELECT b.queue_name, s
    FROM (SELECT DISTINCT t.queue_name
          FROM pgmq.test_routing(routing_key) AS t
          ORDER BY t.queue_name) AS b,
         LATERAL pgmq._send_batch(b.queue_name, msgs, headers, delay) AS s;
END
$$;

--
-- Privileges: those on queues decide, so what the roles of queue may call is all
--

REVOKE ALL ON ALL FUNCTIONS IN SCHEMA pgmq FROM PUBLIC;
GRANT USAGE ON SCHEMA pgmq
    TO queue_producer, queue_consumer, queue_admin;
GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA pgmq
    TO queue_producer, queue_consumer, queue_admin;
GRANT SELECT ON pgmq.meta
    TO queue_producer, queue_consumer, queue_admin;
GRANT SELECT ON pgmq.topic_bindings
    TO queue_producer, queue_consumer, queue_admin;
