/* src/sql/queue--1.2--2.0.sql */

-- complain if script is sourced in psql, rather than via ALTER EXTENSION
\echo Use "ALTER EXTENSION queue UPDATE TO '2.0'" to load this file. \quit

-- An error with a hint if the session has loaded an older library.
SELECT queue_data.library_version('2.0');

--
-- Locks: all tables first, as in the update to 1.2, so that no session gets a
-- deadlock; if that takes half a second, the update fails.
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
-- History
--
-- One ring of tables for each step of _keep_finished, so that what one queue
-- keeps for a year does not hold the tables of others.  The first eight tables
-- are the ring of what is kept longer than 31 days; their rows stay.
DO $$
BEGIN
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
               COALESCE(u.claim_count, 0), u.due_at, u.client_id,
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
