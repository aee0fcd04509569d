-- What test/fuzz.d/rows uses in the database: queues with rows in every table,
-- and functions that break one of the rows and put all of them back.

CREATE EXTENSION queue;
SELECT queue_shard_init(1, 1);
CREATE ROLE rows_app LOGIN IN ROLE queue_producer, queue_consumer;
CREATE ROLE rows_own IN ROLE queue_producer;
CREATE SCHEMA rows;
GRANT USAGE ON SCHEMA rows TO PUBLIC;
CREATE FUNCTION rows.job(body jsonb) RETURNS boolean
LANGUAGE sql AS 'SELECT true';
CREATE FUNCTION rows.after(body jsonb) RETURNS void
LANGUAGE sql AS '';

-- Without a handler, of all kinds; the rows of "healthy", of "runs" with a handler,
-- and of "own", the only queue that the role rows_own may use, are left alone.
SELECT queue_create(q, metadata::jsonb)
FROM (VALUES ('healthy', '{}'), ('plain', '{}'), ('keyed', '{}'),
             ('mortal', '{"_max_claim_count": 1, "_keep_finished": 3600, "_keep_body": true}'),
             ('grouped', '{"_group_concurrency": 2}'),
             ('rated', '{"_group_rate": 2}')) AS v (q, metadata);
SET ROLE rows_own;
SELECT queue_push('own', '1');
RESET ROLE;
SELECT queue_push(q, to_jsonb(q || i), 86400, d, i % 3,
                  CASE WHEN q = 'keyed' THEN 'k' || i % 4 END,
                  CASE WHEN q IN ('grouped', 'rated') THEN 'g' || i % 3 END)
FROM unnest('{healthy,plain,keyed,mortal,grouped,rated}'::text[]) AS q,
     generate_series(1, 12) AS i, unnest('{0,0,3600}'::int[]) AS d;
SELECT count(*) FROM unnest('{plain,keyed,mortal,grouped,rated}'::text[]) AS q,
    queue_claim(q, 600, 60, 4);
-- a key's message is claimed, and gets a twin
SELECT queue_push('keyed', '"again"', dedup_key => 'k' || i)
FROM generate_series(0, 3) AS i;
SELECT count(*) FROM queue_claim('keyed', 600, 60, 4);
-- dead letters, and an error
SELECT message_retry('mortal', id, claim_id, 'broken', 0)
FROM queue_messages('mortal', include_claimed => true, echo => true, "limit" => 100)
WHERE claim_id IS NOT NULL;
SELECT job_root('plain', 'root ' || i) FROM generate_series(1, 3) AS i;
SELECT queue_push('plain', jsonb_build_object('x', i) || job_root('plain', 'root ' || i))
FROM generate_series(1, 3) AS i;
SELECT queue_push_once('plain', 'rows', i, '1') FROM generate_series(1, 3) AS i;
SELECT queue_grant('plain', 'rows_app', p) FROM unnest('{push,claim,admin}'::text[]) AS p;
SELECT queue_create(q), job_handler(q, 'rows.job(jsonb)', rate => 1000, teardown => 'rows.after(jsonb)')
FROM unnest('{handled,handled2}'::text[]) AS q;
SELECT queue_create('runs'), job_handler('runs', 'rows.job(jsonb)');
SELECT queue_pause('handled2');
SELECT queue_push('handled2', '1');
INSERT INTO queue_data.schedule
SELECT i, 'rows_app', '-infinity', '', 's' || i, 'plain', '* * * * *', '1'
FROM generate_series(1, 2) AS i;

INSERT INTO queue_data.topic
SELECT id, project, 't.' || w, '{}', '{rows_app}'
FROM queue_data.queue, unnest('{a,*,#}'::text[]) AS w
WHERE name IN ('plain', 'keyed');

-- Nothing but the library looks at rows from here on.
SET allow_system_table_mods = on;
DO $$
DECLARE
    c record;
BEGIN
    -- From 18 on, a column of a replica identity keeps its constraint.
    FOR c IN SELECT oid::regclass AS rel FROM pg_class
             WHERE relnamespace = 'queue_data'::regnamespace AND relkind = 'r'
    LOOP
        EXECUTE format('ALTER TABLE %s REPLICA IDENTITY NOTHING', c.rel);
    END LOOP;
    FOR c IN SELECT conrelid::regclass AS rel, conname FROM pg_constraint
             WHERE connamespace = 'queue_data'::regnamespace AND contype IN ('c', 'n')
    LOOP
        EXECUTE format('ALTER TABLE %s DROP CONSTRAINT %I', c.rel, c.conname);
    END LOOP;
END
$$;
UPDATE pg_attribute SET attnotnull = false
WHERE attrelid IN (SELECT oid FROM pg_class
                   WHERE relnamespace = 'queue_data'::regnamespace AND relkind = 'r');

-- The tables, and a copy of each
CREATE VIEW rows.part AS
SELECT oid, relname::text AS name FROM pg_class
WHERE relnamespace = 'queue_data'::regnamespace AND relkind = 'r';
DO $$
DECLARE
    part record;
BEGIN
    FOR part IN SELECT * FROM rows.part LOOP
        EXECUTE format('CREATE TABLE rows.%1$I AS SELECT * FROM queue_data.%1$I', part.name);
    END LOOP;
END
$$;

-- Values of a type that the functions do not write
CREATE FUNCTION rows.extremes(type regtype) RETURNS SETOF text
LANGUAGE sql AS $$
    SELECT v FROM (VALUES
        ('smallint', '-32768'), ('smallint', '-1'), ('smallint', '0'), ('smallint', '10'), ('smallint', '32767'),
        ('integer', '-2147483648'), ('integer', '-1'), ('integer', '0'), ('integer', '2147483647'),
        ('bigint', '-9223372036854775808'), ('bigint', '-1'), ('bigint', '0'), ('bigint', '31'), ('bigint', '9223372036854775807'),
        ('real', 'NaN'), ('real', 'Infinity'), ('real', '-Infinity'), ('real', '-1'), ('real', '1e-45'),
        ('timestamptz', '-infinity'), ('timestamptz', 'infinity'), ('timestamptz', '4714-11-24 00:00:00+00 BC'),
        ('timestamptz', '294276-12-31 23:59:59.999999+00'),
        ('boolean', 'true'), ('boolean', 'false'),
        ('text', ''), ('text', repeat('x', 70)), ('text', repeat('long ', 20000)), ('text', 'Ünsafe "name''; %s'),
        ('jsonb', 'null'), ('jsonb', '[]'), ('jsonb', '"x"'), ('jsonb', '{}'),
        ('jsonb', '{"_max_claim_count": -5, "_dead_letter_queue": 7, "_group_rate": 1e300, "_retry_delay": "x", "origin_queue": "no such; name", "claim_count": 1e30}'),
        ('bytea', ''), ('bytea', '\xff'), ('bytea', repeat('\xff', 1) || repeat('ff', 1999)),
        ('uuid', '00000000-0000-0000-0000-000000000000'),
        ('regrole', '0'), ('regrole', '4294967295'),
        ('regrole[]', '{}'), ('regrole[]', '{NULL}'), ('regrole[]', '{{10,10},{10,10}}'), ('regrole[]', '{4242}'),
        ('bigint[]', '{}'), ('bigint[]', '{NULL}'), ('bigint[]', '{{1,2},{3,4}}'), ('bigint[]', '{-1,0,9223372036854775807}')
        ) AS x (t, v) WHERE t::regtype = type
$$;

-- All changes: a table, a column, and an expression for its new value.  All
-- segments of a ring have the same columns.
CREATE VIEW rows.change AS
SELECT p.name AS part, a.attname::text AS col, x.value
FROM rows.part AS p
     JOIN pg_attribute AS a ON a.attrelid = p.oid AND a.attnum > 0 AND NOT a.attisdropped
     CROSS JOIN LATERAL (
         SELECT 'NULL' AS value
         UNION ALL
         SELECT format('%L', v) FROM rows.extremes(a.atttypid) AS v
         UNION ALL
         SELECT format('(SELECT o.%1$I FROM rows.%2$I AS o WHERE o.%1$I IS DISTINCT FROM t.%1$I LIMIT 1)',
                       a.attname, p.name)
         UNION ALL
         SELECT format('(SELECT max(o.%1$I) FROM rows.%2$I AS o)', a.attname, p.name)
         WHERE a.atttypid IN ('integer'::regtype, 'bigint'::regtype, 'timestamptz'::regtype)) AS x
WHERE p.name !~ '^(message|delayed)_([1-9]|1[0-9])$';

-- Has all sessions forget what they know of the tables.
CREATE FUNCTION rows.invalidate() RETURNS void
LANGUAGE sql AS $$ ALTER TABLE queue_data.queue SET (fillfactor = 100); $$;

-- All rows as they were
CREATE FUNCTION rows.put_back() RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    part record;
BEGIN
    FOR part IN SELECT * FROM rows.part ORDER BY name LOOP
        EXECUTE format('DELETE FROM queue_data.%I', part.name);
        EXECUTE format('INSERT INTO queue_data.%1$I SELECT * FROM rows.%1$I', part.name);
    END LOOP;
    PERFORM rows.invalidate();
END
$$;

-- Changes some rows of a table, none of the queues to leave alone; returns how many.
CREATE FUNCTION rows.break(part text, col text, value text, seed float) RETURNS integer
LANGUAGE plpgsql AS $$
DECLARE
    n integer;
    healthy text := (SELECT string_agg(id::text, ',') FROM rows.queue
                     WHERE name IN ('healthy', 'runs', 'runs.dead', 'own'));
BEGIN
    PERFORM setseed(seed);
    BEGIN
        EXECUTE format(
            'UPDATE queue_data.%1$I AS t SET %2$I = %3$s WHERE ctid IN
                (SELECT ctid FROM queue_data.%1$I AS s WHERE %4$s ORDER BY random() LIMIT %5$s)',
            part, col, value,
            CASE WHEN part = 'queue' THEN format('s.id NOT IN (%s)', healthy)
                 WHEN EXISTS (SELECT FROM pg_attribute
                              WHERE attrelid = ('queue_data.' || part)::regclass
                              AND attname = 'queue_id')
                 THEN format('s.queue_id NOT IN (%s)', healthy) ELSE 'true' END,
            1 + floor(random() * 3));
        GET DIAGNOSTICS n = ROW_COUNT;
    EXCEPTION WHEN unique_violation THEN
        n := 0;
    END;
    PERFORM rows.invalidate();
    RETURN n;
END
$$;
