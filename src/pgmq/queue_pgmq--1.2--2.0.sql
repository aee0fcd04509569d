/* src/pgmq/queue_pgmq--1.2--2.0.sql */

-- complain if script is sourced in psql, rather than via ALTER EXTENSION
\echo Use "ALTER EXTENSION queue_pgmq UPDATE TO '2.0'" to load this file. \quit

-- Names in bodies that are parsed now must not be those of other schemas.
SELECT pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true);

--
-- Who may lock what.  A role with DELETE or with UPDATE of all columns may LOCK a
-- table or view in any mode, and so stop all others.  So roles read the views, and
-- change their column vt; the functions delete.
--

REVOKE DELETE ON pgmq.topic_bindings
    FROM queue_producer, queue_consumer, queue_admin;
REVOKE DELETE ON pgmq.notify_throttle
    FROM queue_producer, queue_consumer, queue_admin;
DO $$
DECLARE
    v regclass;
BEGIN
    FOR v IN
        SELECT c.oid
        FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
        WHERE n.nspname = 'pgmq' AND c.relkind = 'v' AND c.relname ~ '^q_'
    LOOP
        EXECUTE format('REVOKE UPDATE, DELETE ON %s FROM queue_consumer, queue_admin', v);
        EXECUTE format('GRANT UPDATE (vt) ON %s TO queue_consumer, queue_admin', v);
    END LOOP;
END
$$;

--
-- Views of queues
--

-- Lock a group to the end of the transaction; false: another one has locked it.
CREATE FUNCTION pgmq._try_group(queue_name text, grp text)
RETURNS boolean
AS 'MODULE_PATHNAME', 'sql_visibility_try_group' LANGUAGE C;
REVOKE ALL ON FUNCTION pgmq._try_group(text, text) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION pgmq._try_group(text, text)
    TO queue_producer, queue_consumer, queue_admin;

-- The name of a view, or NULL: the server would cut a longer one, to that of
-- another queue perhaps.
CREATE FUNCTION pgmq._view(prefix text, queue_name text)
RETURNS text LANGUAGE sql STABLE
RETURN CASE WHEN octet_length(prefix || lower(queue_name)) < 64
            THEN format('pgmq.%I', prefix || lower(queue_name)) END;
REVOKE ALL ON FUNCTION pgmq._view(text, text) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION pgmq._view(text, text)
    TO queue_producer, queue_consumer, queue_admin;

CREATE OR REPLACE FUNCTION pgmq._create_views(queue_name text)
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
CREATE OR REPLACE FUNCTION pgmq._drop_views(queue_name text)
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

-- A year of history was too much for a default: all queues share its tables.
CREATE OR REPLACE FUNCTION pgmq.create(queue_name text)
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

-- _drop_views removes what the queue had of notify_throttle.
CREATE OR REPLACE FUNCTION pgmq.drop_queue(queue_name text)
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

--
-- Notifications: a row whose interval is NULL stands for none
--

ALTER TABLE pgmq.notify_throttle ALTER throttle_interval_ms DROP NOT NULL;
DROP POLICY remove ON pgmq.notify_throttle;
GRANT UPDATE (throttle_interval_ms) ON pgmq.notify_throttle
    TO queue_producer, queue_consumer, queue_admin;

-- Whatever a role writes, it is now; and an admin alone changes the interval.
CREATE OR REPLACE FUNCTION pgmq._notified_now()
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

CREATE OR REPLACE FUNCTION pgmq._enable_notify(
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

CREATE OR REPLACE FUNCTION pgmq._disable_notify(operation text, queue_name text)
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

CREATE OR REPLACE FUNCTION pgmq._update_notify(
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

CREATE OR REPLACE FUNCTION pgmq._list_notify(operation text)
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

--
-- Reading groups: the lock of a group is one that no other role can take
--

CREATE OR REPLACE FUNCTION pgmq._read_groups(
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

--
-- The archive: a claim that gave the message back was no attempt, but it was read
--

CREATE OR REPLACE FUNCTION pgmq._archived(queue_name text)
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

CREATE OR REPLACE FUNCTION pgmq.archive(queue_name text, msg_ids bigint[])
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
