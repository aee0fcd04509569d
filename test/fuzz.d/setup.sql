-- What test/fuzz.d/load uses in the database.

CREATE EXTENSION queue;
CREATE EXTENSION amcheck;

CREATE ROLE fuzz_producer LOGIN IN ROLE queue_producer;
CREATE ROLE fuzz_consumer LOGIN IN ROLE queue_consumer;
CREATE ROLE fuzz_both LOGIN IN ROLE queue_producer, queue_consumer;
CREATE ROLE fuzz_admin LOGIN IN ROLE queue_admin;
CREATE ROLE fuzz_none LOGIN;

CREATE SCHEMA fuzz;
GRANT USAGE ON SCHEMA fuzz TO PUBLIC;

-- Handlers
CREATE FUNCTION fuzz.handler(body jsonb) RETURNS boolean
LANGUAGE sql AS 'SELECT random() < 0.7';
CREATE FUNCTION fuzz.handler(message queue_message) RETURNS boolean
LANGUAGE sql AS 'SELECT random() < 0.7';
CREATE FUNCTION fuzz.broken(body jsonb) RETURNS boolean
LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'broken'; END $$;
CREATE FUNCTION fuzz.not_boolean(body jsonb) RETURNS integer
LANGUAGE sql AS 'SELECT 1';

-- The rows of a project: each with its relation, its key, and those columns that
-- only calls change.
CREATE FUNCTION fuzz.state(project text)
RETURNS TABLE (relation text, key text, value text)
LANGUAGE sql AS $$
    SELECT 'message', m.id::text,
           format('queue %s expires %s priority %s body %s claimed %s until %s count %s client %s note %s',
                  m.queue, ceil(extract(epoch FROM m.expires_at)), m.priority,
                  md5(m.body::text), m.claimed_at, m.claimed_until,
                  m.claim_count, m.client_id, md5(m.attributes::text))
    FROM queue_data.message AS m WHERE m.project = $1
    UNION ALL
    SELECT 'due', m.id::text, floor(extract(epoch FROM m.due_at))::text
    FROM queue_data.message AS m
    WHERE m.project = $1 AND m.due_at > clock_timestamp()
    UNION ALL
    SELECT 'queue', q.name, md5(q::text)
    FROM queue_data.queue AS q WHERE q.project = $1
    UNION ALL
    SELECT 'root', r.queue_id || ' ' || r.digest, r.registered_at::text
    FROM queue_data.root_job AS r JOIN queue_data.queue AS q ON q.id = r.queue_id
    WHERE q.project = $1
$$;

-- When queues of a project last had a handler
CREATE TABLE fuzz.handled (project text PRIMARY KEY, at timestamptz NOT NULL);

-- Why rows of a project may have changed by themselves: messages became dead
-- letters, or handlers ran.
CREATE FUNCTION fuzz.explained(project text) RETURNS SETOF text
LANGUAGE sql AS $$
    SELECT unnest(ARRAY['letter ' || m.id, 'origin ' || (m.attributes ->> 'origin_id')])
    FROM queue_data.message AS m
    WHERE m.project = $1 AND m.attributes ? 'origin_id'
    UNION ALL
    SELECT 'handlers'
    WHERE EXISTS (SELECT FROM queue_data.handler AS h
                  JOIN queue_data.queue AS q ON q.id = h.queue_id
                  WHERE q.project = $1)
       OR EXISTS (SELECT FROM fuzz.handled AS h
                  WHERE h.project = $1 AND h.at > clock_timestamp() - interval '20 s')
$$;

-- Messages of a project, as lines "id|queue|claim id".
CREATE FUNCTION fuzz.held(project text) RETURNS SETOF text
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM set_config('queue.project', project, true);
    RETURN QUERY
    SELECT concat_ws('|', m.id, m.queue, m.claim_id, '')
    FROM queue_list("limit" => 20) AS q,
         LATERAL (SELECT * FROM queue_messages(q.name, "limit" => 20, echo => true,
                                  include_claimed => true, include_delayed => true)
                  ORDER BY claim_id IS NULL LIMIT 3) AS m;
END
$$;

-- Prepare a project for calls: its queues exist, have messages, some of them
-- claimed, but not too many, and no handlers.
CREATE FUNCTION fuzz.refill(project text) RETURNS SETOF text
LANGUAGE plpgsql AS $$
DECLARE
    q record;
    one text;
BEGIN
    PERFORM set_config('queue.project', project, true),
            set_config('lock_timeout', '1s', true);
    FOR q IN SELECT * FROM queue_data.queue AS d WHERE d.project = $1 LOOP
        IF EXISTS (SELECT FROM queue_data.handler WHERE queue_id = q.id) THEN
            PERFORM job_handler(q.name, NULL);
            INSERT INTO fuzz.handled VALUES (project, clock_timestamp())
            ON CONFLICT ON CONSTRAINT handled_pkey
            DO UPDATE SET at = excluded.at;
        END IF;
        IF q.push_roles IS NOT NULL OR q.claim_roles IS NOT NULL
           OR q.name NOT IN ('plain', 'keyed', 'mortal', 'mortal.dead', 'paused')
        THEN
            -- One that another queue needs stays.
            BEGIN
                PERFORM queue_drop(q.name);
            EXCEPTION WHEN dependent_objects_still_exist THEN
                NULL;
            END;
        ELSIF (SELECT total FROM queue_stats(q.name)) > 200 THEN
            PERFORM queue_purge(q.name);
        END IF;
    END LOOP;
    FOREACH one IN ARRAY '{plain,keyed,mortal,mortal.dead,paused}'::text[] LOOP
        IF NOT queue_exists(one) THEN
            PERFORM queue_create(one);
        END IF;
        PERFORM queue_set_metadata(one,
            CASE one WHEN 'mortal' THEN '{"_max_claim_count": 2, "_retry_delay": 1}'
                     ELSE '{}' END::jsonb);
        PERFORM queue_push(one, to_jsonb(random()), delay => d)
        FROM unnest('{0,0,0,0,5000}'::int[]) AS d;
        PERFORM queue_resume(one);
        PERFORM queue_claim(one, 600, 60, 2);
    END LOOP;
    PERFORM queue_push('keyed', '1', dedup_key => k) FROM unnest('{k,k2,x}'::text[]) AS k;
    PERFORM queue_pause('paused');
    RETURN QUERY SELECT fuzz.held(project);
END
$$;

-- What all sessions use, and do not change.
DO $$
DECLARE
    q text;
BEGIN
    SET LOCAL queue.project = 'keep';
    FOREACH q IN ARRAY '{plain,keyed,mortal,mortal.dead,paused}'::text[] LOOP
        PERFORM queue_create(q, CASE q
            WHEN 'mortal' THEN '{"_max_claim_count": 5}' ELSE '{}' END::jsonb);
        FOR i IN 1 .. 60 LOOP
            PERFORM queue_push(q, to_jsonb(q || i), 1209600,
                               CASE WHEN i % 6 = 0 THEN 1000000 + i ELSE 0 END, i % 3,
                               CASE WHEN q = 'keyed' THEN 'key ' || i END);
        END LOOP;
        PERFORM queue_claim(q, 43200, 60, 5);
        PERFORM queue_claim(q, 43200, 60, 5);
    END LOOP;
    PERFORM queue_pause('paused');
END
$$;
CREATE TABLE fuzz.kept AS SELECT * FROM fuzz.state('keep');

-- Is it unchanged?  The numbers of free messages are left out; instead, every
-- free one must be handed out.
CREATE FUNCTION fuzz.drain() RETURNS TABLE (queue text, free bigint, claimed bigint)
LANGUAGE plpgsql AS $$
DECLARE
    got bigint;
BEGIN
    PERFORM set_config('queue.project', 'keep', true);
    FOREACH queue IN ARRAY '{plain,keyed,mortal,mortal.dead}'::text[] LOOP
        SELECT s.free INTO free FROM queue_stats(queue) AS s;
        claimed := 0;
        LOOP
            SELECT count(DISTINCT id) INTO got FROM queue_claim(queue, 600, 60, 7);
            EXIT WHEN got = 0;
            claimed := claimed + got;
        END LOOP;
        RETURN NEXT;
    END LOOP;
END
$$;
CREATE VIEW fuzz.violation (rule, detail) AS
SELECT 'changed', to_jsonb(c)
FROM (SELECT 'after' AS side, a.* FROM (SELECT * FROM fuzz.state('keep')
                                        EXCEPT ALL TABLE fuzz.kept) AS a
      UNION ALL
      SELECT 'before', b.* FROM (TABLE fuzz.kept
                                 EXCEPT ALL SELECT * FROM fuzz.state('keep')) AS b) AS c
UNION ALL
SELECT 'doubled', to_jsonb(d)
FROM (SELECT id, array_agg(relation) FROM queue_data.message
      GROUP BY id HAVING count(*) > 1) AS d;

-- Rows of queues that were dropped
CREATE FUNCTION fuzz.orphans() RETURNS TABLE (relation regclass, orphans bigint)
LANGUAGE plpgsql AS $$
BEGIN
    FOR relation IN
        SELECT attrelid FROM pg_attribute JOIN pg_class AS c ON c.oid = attrelid
        WHERE attname = 'queue_id' AND relkind = 'r'
          AND relnamespace = 'queue_data'::regnamespace
    LOOP
        EXECUTE format('SELECT count(*) FROM %s AS r WHERE NOT EXISTS
            (SELECT FROM queue_data.queue AS q WHERE q.id = r.queue_id)', relation)
        INTO orphans;
        IF orphans > 0 THEN
            RETURN NEXT;
        END IF;
    END LOOP;
END
$$;
