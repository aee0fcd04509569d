/* src/sql/queue--1.1--1.2.sql */

-- complain if script is sourced in psql, rather than via ALTER EXTENSION
\echo Use "ALTER EXTENSION queue UPDATE TO '1.2'" to load this file. \quit

-- An error with a hint if the session has loaded an older library.
SELECT queue_data.library_version('1.2');

--
-- Locks
--
-- All tables get triggers and constraints.  A session that has written to one
-- of them may be about to write to another one, which would be a deadlock with a
-- script that has locked that and waits for the first.  So all are locked before
-- anything else is done, and if that takes half a second, the update fails:
-- sessions look for deadlocks when they have waited for a second
-- (deadlock_timeout).
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
-- Groups
--
-- A lane, the hash that stands for a group in locks, rates and shared memory, is
-- a secret one from now on.  If a claim used the old one and another one the new
-- one, they could exceed the bound of a group.  That cannot happen, because a
-- claim, a pop or a push keeps its lock on a table of messages to the end of its
-- transaction, also if that is prepared, and all tables are locked here.

-- The secret of each queue.  A row of an older dump, which has none, gets a new
-- one where it is restored.  The UPDATE fires the trigger "restored": so shared
-- memory forgets the old lanes when this commits.
ALTER TABLE queue_data.queue ADD COLUMN lane_secret uuid;
UPDATE queue_data.queue SET lane_secret = pg_catalog.gen_random_uuid();
ALTER TABLE queue_data.queue
    ALTER COLUMN lane_secret SET DEFAULT pg_catalog.gen_random_uuid(),
    ALTER COLUMN lane_secret SET NOT NULL;
COMMENT ON COLUMN queue_data.queue.lane_secret IS
'the key of the hash by which groups of the queue are found: whoever knows it can choose group keys that hold up other groups of the queue';

CREATE FUNCTION queue_data.group_lane(queue_id integer, key text)
RETURNS bigint
AS 'MODULE_PATHNAME', 'sql_queue_group_lane'
LANGUAGE C STRICT VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION queue_data.group_lane(integer, text) IS
'the lane of a group: a hash of its key that is secret, and different in each queue. Errors: 42501 not the owner of the extension';
REVOKE ALL ON FUNCTION queue_data.group_lane(integer, text) FROM PUBLIC;

-- The rates: rows know their queue.  The old lane does not say of which group it
-- is, so the keys of the messages do.  If a group has none left, its row is
-- deleted, and its next message may come too early, once.
ALTER TABLE queue_data.group_rate ADD COLUMN queue_id integer;
UPDATE queue_data.group_rate AS r
SET queue_id = g.queue_id,
    lane = queue_data.group_lane(g.queue_id, g.group_key)
FROM (SELECT DISTINCT q.id AS queue_id, m.group_key
      FROM queue_data.queue AS q
           JOIN queue_data.message AS m
           ON m.project OPERATOR(pg_catalog.=) q.project
           AND m.queue OPERATOR(pg_catalog.=) q.name
      WHERE q.metadata OPERATOR(pg_catalog.?) '_group_rate'
      AND EXISTS (SELECT FROM queue_data.group_rate)) AS g
WHERE r.lane OPERATOR(pg_catalog.=)
    pg_catalog.hashtextextended(g.group_key, g.queue_id);
DELETE FROM queue_data.group_rate WHERE queue_id IS NULL;
ALTER TABLE queue_data.group_rate ALTER COLUMN queue_id SET NOT NULL;
DROP INDEX queue_data.group_rate_idx;
CREATE UNIQUE INDEX group_rate_idx ON queue_data.group_rate (queue_id, lane);
ALTER TABLE queue_data.group_rate REPLICA IDENTITY USING INDEX group_rate_idx;
COMMENT ON INDEX queue_data.group_rate_idx IS
'groups by queue and lane, a secret hash of the key';
SELECT pg_catalog.pg_extension_config_dump('queue_data.group_rate', '');

--
-- Segments
--

-- Room on the page for the row versions that claims write, whatever the length
-- of the bodies.  With 48, one row of a page too many was inserted for some
-- lengths, and its claim was not a HOT update.
DO $$
BEGIN
    FOR segment IN 0 .. 15 LOOP
        EXECUTE pg_catalog.format(
            'ALTER TABLE queue_data.message_%s SET (fillfactor = 47)', segment);
    END LOOP;
END
$$;

--
-- Shards
--

-- The moves of shards that this server knows of, for queue_shard_move.  A row is
-- written by the transaction in which the shard leaves, and copied by the one in
-- which it arrives, as are those of its earlier moves.  Dumped: a restored
-- database knows its moves.
CREATE TABLE queue_data.shard_move (
    shard    smallint NOT NULL,
    number   integer NOT NULL,
    token    uuid NOT NULL,
    moved_at timestamptz NOT NULL
) USING heap;
CREATE UNIQUE INDEX shard_move_idx ON queue_data.shard_move (shard, token);
ALTER TABLE queue_data.shard_move REPLICA IDENTITY USING INDEX shard_move_idx;
COMMENT ON INDEX queue_data.shard_move_idx IS 'moves by shard and token';
COMMENT ON TABLE queue_data.shard_move IS
'the moves of shards: number counts those of a shard, and token is in the name of the transaction that queue_shard_move prepares at the target';
REVOKE ALL ON queue_data.shard_move FROM PUBLIC;
SELECT pg_catalog.pg_extension_config_dump('queue_data.shard_move', '');
CREATE TRIGGER not_replicated
    BEFORE INSERT OR UPDATE OR DELETE ON queue_data.shard_move
    FOR EACH ROW EXECUTE FUNCTION queue_data.not_replicated();
ALTER TABLE queue_data.shard_move ENABLE ALWAYS TRIGGER not_replicated;
COMMENT ON TRIGGER not_replicated ON queue_data.shard_move IS
'leaves out the rows that a subscription writes';

-- Functions that queue_shard_move calls as a superuser.  Those that they stand
-- for are in a schema whose owner could have others called in their place.
CREATE FUNCTION queue_data.shard_of(name text, project text)
RETURNS integer
AS 'MODULE_PATHNAME', 'sql_queue_shard'
LANGUAGE C STABLE PARALLEL SAFE;
COMMENT ON FUNCTION queue_data.shard_of(text, text) IS
'queue_shard, for queue_shard_move';
REVOKE ALL ON FUNCTION queue_data.shard_of(text, text) FROM PUBLIC;

CREATE FUNCTION queue_data.channel(name text)
RETURNS text
AS 'MODULE_PATHNAME', 'sql_queue_channel'
LANGUAGE C STABLE PARALLEL RESTRICTED;
COMMENT ON FUNCTION queue_data.channel(text) IS
'queue_channel, for queue_shard_move';
REVOKE ALL ON FUNCTION queue_data.channel(text) FROM PUBLIC;

CREATE FUNCTION queue_data.drop_queue(name text)
RETURNS boolean
AS 'MODULE_PATHNAME', 'sql_queue_drop'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION queue_data.drop_queue(text) IS
'queue_drop, for queue_shard_move';
REVOKE ALL ON FUNCTION queue_data.drop_queue(text) FROM PUBLIC;

--
-- Batches
--

-- Members of a batch, and messages that wait for one, have optional columns.
-- due_at is the last column of delayed messages in version 1.1; the tables of
-- messages get it, too, so that the new columns have the same numbers in all.
-- The indexes have entries for members and for what waits, and for nothing
-- else.
DO $$
DECLARE
    part text;
    is_delayed boolean;
BEGIN
    FOREACH part IN ARRAY
        (SELECT pg_catalog.array_agg('message_' OPERATOR(pg_catalog.||) s::text)
         FROM pg_catalog.generate_series(0, 15) AS s)
        OPERATOR(pg_catalog.||) '{delayed_0,delayed_1,delayed_2,delayed_3}'::text[]
    LOOP
        is_delayed := part OPERATOR(pg_catalog.~~) 'delayed%';
        IF NOT is_delayed THEN
            EXECUTE pg_catalog.format(
                'ALTER TABLE queue_data.%I ADD COLUMN due_at timestamptz', part);
        END IF;
        EXECUTE pg_catalog.format('
            ALTER TABLE queue_data.%1$I
                ADD COLUMN batch bigint,
                ADD COLUMN after_batch bigint,
                ADD COLUMN after_delay integer,
                ADD COLUMN after_success boolean;
            CREATE INDEX %2$I ON queue_data.%1$I (batch, id)
                WHERE batch IS NOT NULL;
            COMMENT ON INDEX queue_data.%2$I IS ''members of batches'';',
            part, part OPERATOR(pg_catalog.||) '_batch_idx');
        IF is_delayed THEN
            EXECUTE pg_catalog.format('
                CREATE INDEX %2$I ON queue_data.%1$I (after_batch, id)
                    WHERE after_batch IS NOT NULL;
                COMMENT ON INDEX queue_data.%2$I IS
                    ''messages that wait for the end of a batch'';',
                part, part OPERATOR(pg_catalog.||) '_after_idx');
        END IF;
    END LOOP;
END
$$;

CREATE SEQUENCE queue_data.batch_id AS bigint MAXVALUE 36028797018963967;
COMMENT ON SEQUENCE queue_data.batch_id IS 'numbers of batches';
SELECT pg_catalog.pg_extension_config_dump('queue_data.batch_id', '');

-- members, completed and failed are 0 until the batch has finished.
CREATE TABLE queue_data.batch (
    id          bigint NOT NULL,
    owner       regrole NOT NULL,
    created_at  timestamptz NOT NULL,
    closed_at   timestamptz,
    finished_at timestamptz,
    members     bigint NOT NULL,
    completed   bigint NOT NULL,
    failed      bigint NOT NULL,
    shard       smallint,
    name        text COLLATE "C"
) USING heap;
CREATE UNIQUE INDEX batch_idx ON queue_data.batch (id);
ALTER TABLE queue_data.batch REPLICA IDENTITY USING INDEX batch_idx;
COMMENT ON INDEX queue_data.batch_idx IS 'batches by number';
COMMENT ON TABLE queue_data.batch IS
'batches of messages; closed_at: since when it can finish; finished_at: when all members were finished, of which so many were completed or have failed; shard: that its queues are of, in a sharded database';

-- A transaction adds one row for each batch to which it adds members, or of
-- which members fail in it.  So no two transactions write the same row.  When
-- the batch has finished, its row in queue_data.batch has the sums.
CREATE TABLE queue_data.batch_part (
    batch       bigint NOT NULL,
    members     bigint NOT NULL,
    failed      bigint NOT NULL
) USING heap;
CREATE INDEX batch_part_idx ON queue_data.batch_part (batch);
ALTER TABLE queue_data.batch_part REPLICA IDENTITY FULL;
COMMENT ON INDEX queue_data.batch_part_idx IS 'parts by batch';
COMMENT ON TABLE queue_data.batch_part IS
'how many members a transaction has added to a batch that has not finished, and how many have failed in it';
REVOKE ALL ON queue_data.batch, queue_data.batch_part FROM PUBLIC;
REVOKE ALL ON SEQUENCE queue_data.batch_id FROM PUBLIC;

-- One that has not finished is dumped even if its owner was dropped, since messages
-- wait for it.
SELECT pg_catalog.pg_extension_config_dump('queue_data.batch',
    'WHERE finished_at IS NULL OR owner IN (SELECT oid FROM pg_catalog.pg_roles)');
SELECT pg_catalog.pg_extension_config_dump('queue_data.batch_part', '');

DO $$
DECLARE
    part text;
BEGIN
    FOREACH part IN ARRAY '{batch,batch_part}'::text[] LOOP
        EXECUTE pg_catalog.format('
            CREATE TRIGGER not_replicated
                BEFORE INSERT OR UPDATE OR DELETE ON queue_data.%1$I
                FOR EACH ROW EXECUTE FUNCTION queue_data.not_replicated();
            ALTER TABLE queue_data.%1$I ENABLE ALWAYS TRIGGER not_replicated;
            COMMENT ON TRIGGER not_replicated ON queue_data.%1$I IS
                ''leaves out the rows that a subscription writes'';
            CREATE TRIGGER restored
                AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE ON queue_data.%1$I
                FOR EACH STATEMENT EXECUTE FUNCTION queue_data.restored();
            ALTER TABLE queue_data.%1$I ENABLE ALWAYS TRIGGER restored;
            COMMENT ON TRIGGER restored ON queue_data.%1$I IS
                ''notices rows that other SQL has written or deleted'';', part);
    END LOOP;
END
$$;

-- All messages and their states, as before, and the batches.
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
                   WHEN e.expires_at OPERATOR(pg_catalog.<=) c.now
                       THEN ''expired''
                   WHEN u.due_at OPERATOR(pg_catalog.>) c.now
                       THEN ''delayed''
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
                                    pg_catalog.make_interval(secs => 1209600)))
                     END)
             AS e (claimed_at, claimed_until, is_canceled, expires_at)
             CROSS JOIN LATERAL
             (SELECT pg_catalog.clock_timestamp()) AS c (now)';
END
$$;

-- The functions that push get the arguments of batches.  A function with further
-- arguments is a new one, so privileges are granted anew; also what was revoked from
-- the roles of the extension is not granted to them.
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
     CROSS JOIN LATERAL pg_catalog.format('%s(%s, bigint, bigint, boolean)',
         p.oid::pg_catalog.regproc, pg_catalog.oidvectortypes(p.proargtypes)) AS f (name)
WHERE p.oid OPERATOR(pg_catalog.=) ANY (ARRAY[
    'queue_push(text, jsonb, integer, integer, integer, text, text, jsonb)',
    'queue_push_batch(text, jsonb[], integer, integer, integer, text[])',
    'queue_push_once(text, text, bigint, jsonb, integer, integer, integer, text, text, jsonb)'
    ]::regprocedure[]::oid[]);
DROP FUNCTION queue_push(text, jsonb, integer, integer, integer, text, text, jsonb);
CREATE FUNCTION queue_push(
    q text,
    body jsonb,
    ttl integer DEFAULT NULL,
    delay integer DEFAULT NULL,
    priority integer DEFAULT 0,
    dedup_key text DEFAULT NULL,
    group_key text DEFAULT NULL,
    headers jsonb DEFAULT NULL,
    batch bigint DEFAULT NULL,
    after bigint DEFAULT NULL,
    after_success boolean DEFAULT false)
RETURNS bigint
AS 'MODULE_PATHNAME', 'sql_queue_push'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION queue_push(text, jsonb, integer, integer, integer, text, text, jsonb, bigint, bigint, boolean) IS
'pushes one message that lives ttl seconds and is handed out after delay seconds, priority 0 to 9 (higher first); returns its id, NULL when an unclaimed message with this dedup_key waits. group_key: 1 to 256 bytes, the message''s group. headers: returned with the message, counted toward the size of its body. batch: the message is a member of it. after: the message waits until that batch has finished; with after_success it becomes a dead letter if a member failed. Errors: 22023/22004 argument, 54000 body too large, 42704 unknown queue with queue.auto_create off, unknown batch, 55000 the batch has finished, 42501. Source: Zaqar, post message; MediaWiki, JobQueue::push';
REVOKE ALL ON FUNCTION queue_push(text, jsonb, integer, integer, integer, text, text, jsonb, bigint, bigint, boolean) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION queue_push(text, jsonb, integer, integer, integer, text, text, jsonb, bigint, bigint, boolean)
    TO queue_producer, queue_consumer, queue_admin;

DROP FUNCTION queue_push_batch(text, jsonb[], integer, integer, integer, text[]);
CREATE FUNCTION queue_push_batch(
    q text,
    bodies jsonb[],
    ttl integer DEFAULT NULL,
    delay integer DEFAULT NULL,
    priority integer DEFAULT 0,
    group_keys text[] DEFAULT NULL,
    batch bigint DEFAULT NULL,
    after bigint DEFAULT NULL,
    after_success boolean DEFAULT false)
RETURNS bigint[]
AS 'MODULE_PATHNAME', 'sql_queue_push_batch'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION queue_push_batch(text, jsonb[], integer, integer, integer, text[], bigint, bigint, boolean) IS
'pushes one message for each body, all or nothing, and returns their ids in that order; group_keys has one element for each. Arguments and errors: as queue_push; at most queue.max_push_count bodies. Source: MediaWiki, JobQueue::batchPush';
REVOKE ALL ON FUNCTION queue_push_batch(text, jsonb[], integer, integer, integer, text[], bigint, bigint, boolean) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION queue_push_batch(text, jsonb[], integer, integer, integer, text[], bigint, bigint, boolean)
    TO queue_producer, queue_consumer, queue_admin;

DROP FUNCTION queue_push_once(text, text, bigint, jsonb, integer, integer, integer, text, text, jsonb);
CREATE FUNCTION queue_push_once(
    q text,
    origin text,
    origin_id bigint,
    body jsonb,
    ttl integer DEFAULT NULL,
    delay integer DEFAULT NULL,
    priority integer DEFAULT 0,
    dedup_key text DEFAULT NULL,
    group_key text DEFAULT NULL,
    headers jsonb DEFAULT NULL,
    batch bigint DEFAULT NULL,
    after bigint DEFAULT NULL,
    after_success boolean DEFAULT false)
RETURNS bigint
AS 'MODULE_PATHNAME', 'sql_queue_push_once'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION queue_push_once(text, text, bigint, jsonb, integer, integer, integer, text, text, jsonb, bigint, bigint, boolean) IS
'pushes one message, unless a call with this queue, origin (1 to 256 bytes) and origin_id did so in the last 28 days, and returns what that call has returned: the id, NULL when it was dropped as a duplicate. A call that is in progress is waited for. Other arguments and errors: as queue_push';
REVOKE ALL ON FUNCTION queue_push_once(text, text, bigint, jsonb, integer, integer, integer, text, text, jsonb, bigint, bigint, boolean) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION queue_push_once(text, text, bigint, jsonb, integer, integer, integer, text, text, jsonb, bigint, bigint, boolean)
    TO queue_producer, queue_consumer, queue_admin;

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

CREATE FUNCTION batch_create(
    name text DEFAULT NULL,
    keep_open boolean DEFAULT false,
    q text DEFAULT NULL)
RETURNS bigint
AS 'MODULE_PATHNAME', 'sql_batch_create'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION batch_create(text, boolean, text) IS
'makes a batch of the current role and returns its id, higher than that of any batch before. It finishes when no member is left that is not finished: with keep_open not before batch_close, or 14 days. name: up to 256 bytes, for people. q: only in a sharded database, and required there: a queue of the shard that the batch belongs to. Errors: 22023/22004 argument. Source: Sidekiq Pro, Batch';
REVOKE ALL ON FUNCTION batch_create(text, boolean, text) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION batch_create(text, boolean, text)
    TO queue_producer, queue_consumer, queue_admin;

CREATE FUNCTION batch_close(batch bigint)
RETURNS boolean
AS 'MODULE_PATHNAME', 'sql_batch_close'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION batch_close(bigint) IS
'lets a batch that was made with keep_open finish; true: done, false: it could finish before. Errors: 42704 no such batch, 42501 not its owner, 22004 argument. Source: Oban Pro, Batch';
REVOKE ALL ON FUNCTION batch_close(bigint) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION batch_close(bigint)
    TO queue_producer, queue_consumer, queue_admin;

CREATE FUNCTION batch_cancel(batch bigint)
RETURNS bigint
AS 'MODULE_PATHNAME', 'sql_batch_cancel'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION batch_cancel(bigint) IS
'cancels the members of the batch that are not finished now, as message_cancel does, whatever the privileges on their queues, and returns how many there were; they have failed. Errors: 42704 no such batch, 42501 not its owner, 22004 argument. Source: Sidekiq Pro, Batch';
REVOKE ALL ON FUNCTION batch_cancel(bigint) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION batch_cancel(bigint)
    TO queue_producer, queue_consumer, queue_admin;

CREATE FUNCTION batch_status(batch bigint)
RETURNS TABLE (
    name text, members bigint, unfinished bigint, completed bigint,
    failed bigint, waiting bigint, created_at timestamptz,
    closed_at timestamptz, finished_at timestamptz)
AS 'MODULE_PATHNAME', 'sql_batch_status'
LANGUAGE C VOLATILE PARALLEL UNSAFE ROWS 1;
COMMENT ON FUNCTION batch_status(bigint) IS
'the state of a batch in one row, exact as of now: how many members it has, how many of them are not finished, were completed (popped, deleted and dropped as duplicates included), and have failed (dead letters, expired, purged), and how many messages wait for it; closed_at: since when it can finish. Errors: 42704 no such batch, 42501 not its owner, 22004 argument. Source: Sidekiq Pro, Batch::Status';
REVOKE ALL ON FUNCTION batch_status(bigint) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION batch_status(bigint)
    TO queue_producer, queue_consumer, queue_admin;

CREATE FUNCTION batch_list(
    marker bigint DEFAULT NULL,
    "limit" integer DEFAULT 10)
RETURNS TABLE (
    batch bigint, name text, created_at timestamptz, closed_at timestamptz,
    finished_at timestamptz)
AS 'MODULE_PATHNAME', 'sql_batch_list'
LANGUAGE C VOLATILE PARALLEL UNSAFE ROWS 10;
COMMENT ON FUNCTION batch_list(bigint, integer) IS
'the batches of the current role, and of roles that it is a member of, by id, after the marker, at most limit (1 to 10000). Errors: 22023/22004 argument. Source: Sidekiq Pro, BatchSet';
REVOKE ALL ON FUNCTION batch_list(bigint, integer) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION batch_list(bigint, integer)
    TO queue_producer, queue_consumer, queue_admin;

--
-- History
--

-- What became of messages, where the metadata asks for it.  The tables are a
-- ring: rows are appended to the active one, and a table is truncated when its
-- rows are too old.  A row whose outcome is 6 is an attempt that has failed.
-- Dumped: a restored database has the history.
DO $$
BEGIN
    FOR part IN 0 .. 7 LOOP
        EXECUTE pg_catalog.format('
            CREATE TABLE queue_data.finished_%1$s (
                id          bigint NOT NULL,
                pushed_at   timestamptz NOT NULL,
                finished_at timestamptz NOT NULL
                    CONSTRAINT finished_time CHECK (pg_catalog.isfinite(finished_at)),
                queue_id    integer NOT NULL,
                attempts    integer NOT NULL,
                outcome     smallint NOT NULL
                    CONSTRAINT finished_outcome CHECK (
                        outcome OPERATOR(pg_catalog.>=) 0
                        AND outcome OPERATOR(pg_catalog.<=) 6),
                is_attempt  boolean NOT NULL,
                batch       bigint,
                group_key   text COLLATE "C",
                result      jsonb,
                error       text COLLATE "C",
                body        jsonb
            ) USING heap;
            CREATE INDEX finished_%1$s_idx ON queue_data.finished_%1$s
                (queue_id, is_attempt, id);
            ALTER TABLE queue_data.finished_%1$s REPLICA IDENTITY FULL;
            COMMENT ON INDEX queue_data.finished_%1$s_idx IS
                ''finished messages, and failed attempts, by queue and id'';
            COMMENT ON TABLE queue_data.finished_%1$s IS
                ''history of finished messages, table %1$s of the ring; outcome: 0 completed, 1 dead, 2 expired, 3 canceled, 4 duplicate, 5 deleted, 6 a failed attempt'';
            REVOKE ALL ON queue_data.finished_%1$s FROM PUBLIC;', part);
        PERFORM pg_catalog.pg_extension_config_dump(
            pg_catalog.format('queue_data.finished_%s', part)::regclass, '');
    END LOOP;
END
$$;
CREATE TABLE queue_data.finished_ring (
    active      smallint NOT NULL
        CONSTRAINT finished_ring_active CHECK (
            active OPERATOR(pg_catalog.>=) 0 AND active OPERATOR(pg_catalog.<=) 7),
    switched_at timestamptz NOT NULL DEFAULT pg_catalog.now()
) USING heap;
ALTER TABLE queue_data.finished_ring REPLICA IDENTITY FULL;
COMMENT ON TABLE queue_data.finished_ring IS
'which table of the history takes new rows, and since when';
INSERT INTO queue_data.finished_ring (active) VALUES (0);
REVOKE ALL ON queue_data.finished_ring FROM PUBLIC;
DO $$
DECLARE
    part text;
BEGIN
    FOREACH part IN ARRAY
        (SELECT pg_catalog.array_agg('finished_' OPERATOR(pg_catalog.||) s::text)
         FROM pg_catalog.generate_series(0, 7) AS s)
        OPERATOR(pg_catalog.||) 'finished_ring'::text
    LOOP
        EXECUTE pg_catalog.format('
            CREATE TRIGGER not_replicated
                BEFORE INSERT OR UPDATE OR DELETE ON queue_data.%1$I
                FOR EACH ROW EXECUTE FUNCTION queue_data.not_replicated();
            ALTER TABLE queue_data.%1$I ENABLE ALWAYS TRIGGER not_replicated;
            COMMENT ON TRIGGER not_replicated ON queue_data.%1$I IS
                ''leaves out the rows that a subscription writes'';', part);
    END LOOP;
END
$$;

CREATE FUNCTION queue_finished(
    q text,
    marker bigint DEFAULT NULL,
    "limit" integer DEFAULT 10,
    outcome text DEFAULT NULL)
RETURNS TABLE (
    id bigint, queue text, group_key text, batch bigint, outcome text,
    pushed_at timestamptz, finished_at timestamptz, attempts integer,
    result jsonb, error text, body jsonb)
AS 'MODULE_PATHNAME', 'sql_queue_finished'
LANGUAGE C VOLATILE PARALLEL UNSAFE ROWS 10;
COMMENT ON FUNCTION queue_finished(text, bigint, integer, text) IS
'what became of messages of queue q in the last _keep_finished seconds, by id, after marker, at most limit (1 to 10000); outcome: only those that are completed, dead, expired, canceled, duplicate or deleted; result: of message_complete or job_result; error: the last one, NULL if completed; body: with _keep_body. No row without _keep_finished. Errors: 22023/22004 argument, 42501 no right to claim, or with _results_for_producers to push. Source: Oban, jobs that are kept';
REVOKE ALL ON FUNCTION queue_finished(text, bigint, integer, text) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION queue_finished(text, bigint, integer, text)
    TO queue_producer, queue_consumer, queue_admin;

CREATE FUNCTION message_result(q text, id bigint)
RETURNS jsonb
AS 'MODULE_PATHNAME', 'sql_message_result'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION message_result(text, bigint) IS
'the result with which a message was completed; NULL if it had none, or is not in the history. Errors: 22023/22004 argument, 42501 as queue_finished. Source: Celery, AsyncResult.result';
REVOKE ALL ON FUNCTION message_result(text, bigint) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION message_result(text, bigint)
    TO queue_producer, queue_consumer, queue_admin;

CREATE PROCEDURE queue_await(
    q text,
    id bigint,
    timeout_ms integer DEFAULT NULL,
    INOUT result jsonb DEFAULT NULL)
AS 'MODULE_PATHNAME', 'sql_queue_await'
LANGUAGE C;
COMMENT ON PROCEDURE queue_await(text, bigint, integer, jsonb) IS
'waits until a message of queue q is finished, at most timeout_ms milliseconds (NULL: without end, 0 looks once); result: {"outcome", "result", "error"} as in queue_finished, {"outcome": "unknown"} if neither the message nor its history is there, NULL after the timeout. Errors: 22023/22004 argument, 42501 as queue_finished, 25001 inside a transaction block unless timeout_ms is 0. Source: Celery, AsyncResult.get';
REVOKE ALL ON PROCEDURE queue_await(text, bigint, integer, jsonb) FROM PUBLIC;
GRANT EXECUTE ON PROCEDURE queue_await(text, bigint, integer, jsonb)
    TO queue_producer, queue_consumer, queue_admin;

CREATE FUNCTION message_complete(
    q text,
    id bigint,
    claim_id text,
    result jsonb DEFAULT NULL)
RETURNS boolean
AS 'MODULE_PATHNAME', 'sql_message_complete'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION message_complete(text, bigint, text, jsonb) IS
'deletes one claimed message, as message_delete, and keeps result, where the queue has _keep_finished; true: deleted, false: there is no such message. Errors: QU001 the claim is not live, QU002 the message is not in that claim, QU004 it was canceled, 54000 result too large, 22023/22004 argument, 42501 no right to claim. Source: Celery, the result of a task';
REVOKE ALL ON FUNCTION message_complete(text, bigint, text, jsonb) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION message_complete(text, bigint, text, jsonb)
    TO queue_producer, queue_consumer, queue_admin;

CREATE FUNCTION job_result(result jsonb)
RETURNS void
AS 'MODULE_PATHNAME', 'sql_job_result'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION job_result(jsonb) IS
'for handlers: the result of the job, which the history keeps if the attempt succeeds and the queue has _keep_finished; the last call counts. Errors: 55000 no handler runs, 54000 result too large, 22004 argument. Source: Celery, the result of a task';
REVOKE ALL ON FUNCTION job_result(jsonb) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION job_result(jsonb)
    TO queue_producer, queue_consumer, queue_admin;

CREATE FUNCTION job_errors(q text, "limit" integer DEFAULT 100)
RETURNS TABLE (
    message_id bigint, attempt integer, at timestamptz, error text)
AS 'MODULE_PATHNAME', 'sql_job_errors'
LANGUAGE C VOLATILE PARALLEL UNSAFE ROWS 100;
COMMENT ON FUNCTION job_errors(text, integer) IS
'the attempts at messages of queue q that have failed with an error in the last _keep_finished seconds, the latest first, at most limit (1 to 10000). No row without _keep_finished. Errors: 22023/22004 argument, 42501 neither owner nor admin of q. Source: Oban, the errors of a job';
REVOKE ALL ON FUNCTION job_errors(text, integer) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION job_errors(text, integer)
    TO queue_producer, queue_consumer, queue_admin;

--
-- Topics
--

CREATE TABLE queue_data.topic (
    queue_id   integer NOT NULL,
    project    text COLLATE "C" NOT NULL,
    pattern    text COLLATE "C" NOT NULL,
    filter     jsonb,
    publishers regrole[],
    bound_at   timestamptz NOT NULL DEFAULT pg_catalog.now()
) USING heap;
CREATE UNIQUE INDEX topic_idx ON queue_data.topic (queue_id, pattern);
ALTER TABLE queue_data.topic REPLICA IDENTITY USING INDEX topic_idx;
COMMENT ON INDEX queue_data.topic_idx IS 'bindings by queue and pattern';
COMMENT ON TABLE queue_data.topic IS
'bindings of queues to topics: what is published to a topic of the project that matches the pattern, with headers that contain the filter, by a member of one of the publishers (NULL: by any role) is pushed to the queue';
REVOKE ALL ON queue_data.topic FROM PUBLIC;
SELECT pg_catalog.pg_extension_config_dump('queue_data.topic',
    'WHERE queue_data.roles_exist(COALESCE('
    '(SELECT q.name FROM queue_data.queue AS q'
    ' WHERE q.id OPERATOR(pg_catalog.=) queue_id), pattern),'
    ' NULL, publishers, NULL, NULL)');
CREATE TRIGGER not_replicated
    BEFORE INSERT OR UPDATE OR DELETE ON queue_data.topic
    FOR EACH ROW EXECUTE FUNCTION queue_data.not_replicated();
ALTER TABLE queue_data.topic ENABLE ALWAYS TRIGGER not_replicated;
COMMENT ON TRIGGER not_replicated ON queue_data.topic IS
'leaves out the rows that a subscription writes';
CREATE TRIGGER roles_written
    AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE ON queue_data.topic
    FOR EACH STATEMENT EXECUTE FUNCTION queue_data.roles_written();
ALTER TABLE queue_data.topic ENABLE ALWAYS TRIGGER roles_written;
COMMENT ON TRIGGER roles_written ON queue_data.topic IS
'records roles so that they cannot be dropped';

-- The publishers, too
CREATE OR REPLACE VIEW queue_data.queue_roles AS
SELECT q.owner AS role, q.project, q.name AS queue, 'owner'::text AS privilege
FROM queue_data.queue AS q
UNION ALL
SELECT r.role, q.project, q.name, p.privilege
FROM queue_data.queue AS q
     CROSS JOIN LATERAL
     (VALUES ('push', q.push_roles), ('claim', q.claim_roles),
             ('admin', q.admin_roles)) AS p (privilege, roles)
     CROSS JOIN LATERAL pg_catalog.unnest(p.roles) AS r (role)
UNION ALL
SELECT r.role, q.project, q.name, 'publish'::text
FROM queue_data.topic AS t
     JOIN queue_data.queue AS q ON q.id OPERATOR(pg_catalog.=) t.queue_id
     CROSS JOIN LATERAL pg_catalog.unnest(t.publishers) AS r (role);
COMMENT ON VIEW queue_data.queue_roles IS
'the roles that own queues, that push, claim or admin on a queue was granted to, or that a binding of a queue to topics names as publishers; they cannot be dropped before queue_set_owner, queue_revoke or topic_bind';

CREATE FUNCTION topic_bind(
    pattern text,
    q text,
    filter jsonb DEFAULT NULL,
    publishers regrole[] DEFAULT NULL)
RETURNS boolean
AS 'MODULE_PATHNAME', 'sql_topic_bind'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION topic_bind(text, text, jsonb, regrole[]) IS
'binds queue q, which is created as by a push, to the topics that match the pattern: words with dots between them, * for one word, # for any number. It gets a message of each topic_publish to one of them, if the headers contain the filter (NULL: any), by a member of one of the publishers (NULL: by any role). true: bound; false: it was, and the filter and the publishers are replaced. Errors: 22023/22004 argument, 54000 filter too large, 42704 unknown role, unknown queue with queue.auto_create off, 42501 not a member of queue_admin, 0A000 sharded database. Source: AMQP, queue.bind';
REVOKE ALL ON FUNCTION topic_bind(text, text, jsonb, regrole[]) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION topic_bind(text, text, jsonb, regrole[])
    TO queue_producer, queue_consumer, queue_admin;

CREATE FUNCTION topic_unbind(pattern text, q text)
RETURNS boolean
AS 'MODULE_PATHNAME', 'sql_topic_unbind'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION topic_unbind(text, text) IS
'removes the binding of queue q to the pattern; true: removed, false: there was none. Errors: 22023/22004 argument, 42501 not a member of queue_admin. Source: AMQP, queue.unbind';
REVOKE ALL ON FUNCTION topic_unbind(text, text) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION topic_unbind(text, text)
    TO queue_producer, queue_consumer, queue_admin;

CREATE FUNCTION topic_list(
    marker text DEFAULT NULL,
    "limit" integer DEFAULT 10,
    q text DEFAULT NULL)
RETURNS TABLE (
    pattern text,
    queue text,
    filter jsonb,
    publishers regrole[],
    bound_at timestamptz)
AS 'MODULE_PATHNAME', 'sql_topic_list'
LANGUAGE C VOLATILE PARALLEL UNSAFE ROWS 10;
COMMENT ON FUNCTION topic_list(text, integer, text) IS
'the bindings of the project, by pattern and queue, of queues whose owner or admin the caller is, after marker (pattern and queue, with a space between them), only those of queue q unless that is NULL, at most limit (1 to 10000). Errors: 22023/22004 argument. Source: RabbitMQ, list_bindings';
REVOKE ALL ON FUNCTION topic_list(text, integer, text) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION topic_list(text, integer, text)
    TO queue_producer, queue_consumer, queue_admin;

CREATE FUNCTION topic_publish(
    topic text,
    body jsonb,
    headers jsonb DEFAULT NULL,
    ttl integer DEFAULT NULL,
    delay integer DEFAULT NULL,
    priority integer DEFAULT 0,
    group_key text DEFAULT NULL,
    dedup_key text DEFAULT NULL)
RETURNS bigint
AS 'MODULE_PATHNAME', 'sql_topic_publish'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION topic_publish(text, jsonb, jsonb, integer, integer, integer, text, text) IS
'pushes one message to each queue that is bound to the topic, whatever the caller''s privileges on the queue; returns how many have it now, also as a duplicate. Other arguments: as queue_push, for each queue. A queue that does not take the message (_max_messages_post_size, or it is being purged or dropped) is left out, and the server logs that. Errors: 22023/22004 argument, 54000 body too large, 42501 not a member of queue_producer. Source: AMQP, basic.publish';
REVOKE ALL ON FUNCTION topic_publish(text, jsonb, jsonb, integer, integer, integer, text, text) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION topic_publish(text, jsonb, jsonb, integer, integer, integer, text, text)
    TO queue_producer, queue_consumer, queue_admin;

--
-- Rows that no function wrote
--
-- The functions write without the executor, so neither triggers nor constraints
-- cost them anything.
--
CREATE FUNCTION queue_data.superusers_only()
RETURNS trigger
AS 'MODULE_PATHNAME', 'sql_queue_superusers_only'
LANGUAGE C;
COMMENT ON FUNCTION queue_data.superusers_only() IS
'trigger of all tables of the extension: refuses SQL of roles that are not superusers, such as members of pg_write_all_data. Errors: 42501 not a superuser';
REVOKE ALL ON FUNCTION queue_data.superusers_only() FROM PUBLIC;
DO $$
DECLARE
    part text;
BEGIN
    FOR part IN
        SELECT c.relname FROM pg_catalog.pg_class AS c
        WHERE c.relnamespace OPERATOR(pg_catalog.=) 'queue_data'::pg_catalog.regnamespace
        AND c.relkind OPERATOR(pg_catalog.=) 'r'
    LOOP
        EXECUTE pg_catalog.format('
            CREATE TRIGGER superusers_only
                BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE ON queue_data.%1$I
                FOR EACH STATEMENT EXECUTE FUNCTION queue_data.superusers_only();
            ALTER TABLE queue_data.%1$I ENABLE ALWAYS TRIGGER superusers_only;
            COMMENT ON TRIGGER superusers_only ON queue_data.%1$I IS
                ''refuses SQL of roles that are not superusers'';', part);
    END LOOP;
END
$$;

-- What the C code relies on (row_check.c, message_row.c).  It checks that also
-- as it reads a row: rows that are there already may be malformed, and are no
-- reason to refuse the update, nor to read all messages while sessions wait.
-- Hence NOT VALID.
ALTER TABLE queue_data.queue
    ADD CONSTRAINT queue_id CHECK (id OPERATOR(pg_catalog.>) 0) NOT VALID,
    ADD CONSTRAINT queue_name CHECK (
        name OPERATOR(pg_catalog.~) '^[A-Za-z0-9_.:/-]{1,64}$') NOT VALID,
    ADD CONSTRAINT queue_project CHECK (
        pg_catalog.octet_length(project) OPERATOR(pg_catalog.<=) 256) NOT VALID,
    ADD CONSTRAINT queue_metadata CHECK (
        pg_catalog.jsonb_typeof(metadata) OPERATOR(pg_catalog.=) 'object')
        NOT VALID,
    ADD CONSTRAINT queue_roles CHECK (
        COALESCE(pg_catalog.array_ndims(push_roles), 1) OPERATOR(pg_catalog.=) 1
        AND COALESCE(pg_catalog.array_ndims(claim_roles), 1) OPERATOR(pg_catalog.=) 1
        AND COALESCE(pg_catalog.array_ndims(admin_roles), 1) OPERATOR(pg_catalog.=) 1
        AND pg_catalog.array_position(push_roles, NULL::pg_catalog.regrole) IS NULL
        AND pg_catalog.array_position(claim_roles, NULL::pg_catalog.regrole) IS NULL
        AND pg_catalog.array_position(admin_roles, NULL::pg_catalog.regrole) IS NULL)
        NOT VALID,
    ADD CONSTRAINT queue_source CHECK (
        source_id OPERATOR(pg_catalog.<>) id) NOT VALID;
ALTER TABLE queue_data.ring
    ADD CONSTRAINT ring_segments CHECK (
        active OPERATOR(pg_catalog.>=) 0 AND active OPERATOR(pg_catalog.<=) 15
        AND delayed OPERATOR(pg_catalog.>=) 16
        AND delayed OPERATOR(pg_catalog.<=) 19) NOT VALID;
ALTER TABLE queue_data.segment
    ADD CONSTRAINT segment_number CHECK (
        segment OPERATOR(pg_catalog.>=) 0
        AND segment OPERATOR(pg_catalog.<=) 19) NOT VALID;
ALTER TABLE queue_data.dedup_key
    ADD CONSTRAINT dedup_key_ids CHECK (
        COALESCE(pg_catalog.array_ndims(message_ids), 1) OPERATOR(pg_catalog.=) 1
        AND pg_catalog.array_position(message_ids, NULL::bigint) IS NULL)
        NOT VALID;
ALTER TABLE queue_data.root_job
    ADD CONSTRAINT root_job_time CHECK (
        pg_catalog.isfinite(registered_at)) NOT VALID;
ALTER TABLE queue_data.job_counter
    ADD CONSTRAINT job_counter_error CHECK (
        pg_catalog.octet_length(last_error) OPERATOR(pg_catalog.=) 1000)
        NOT VALID;
ALTER TABLE queue_data.prepared_count
    ADD CONSTRAINT prepared_count_priorities CHECK (
        priorities OPERATOR(pg_catalog.>=) 0
        AND priorities OPERATOR(pg_catalog.<) 1024) NOT VALID;
ALTER TABLE queue_data.topic
    ADD CONSTRAINT topic_pattern CHECK (
        pattern OPERATOR(pg_catalog.~)
            '^([A-Za-z0-9_:/-]+|[*#])([.]([A-Za-z0-9_:/-]+|[*#]))*$') NOT VALID,
    ADD CONSTRAINT topic_publishers CHECK (
        COALESCE(pg_catalog.array_ndims(publishers), 1) OPERATOR(pg_catalog.=) 1
        AND pg_catalog.array_position(publishers, NULL::pg_catalog.regrole) IS NULL)
        NOT VALID;
ALTER TABLE queue_data.handler
    ADD CONSTRAINT handler_options CHECK (
        concurrency OPERATOR(pg_catalog.>) 0
        AND timeout OPERATOR(pg_catalog.>=) 0
        AND rate OPERATOR(pg_catalog.>=) 0::real
        AND rate OPERATOR(pg_catalog.<) 'Infinity'::real) NOT VALID,
    ADD CONSTRAINT handler_teardown CHECK (
        pg_catalog.num_nulls(teardown_takes_jsonb, teardown_schema,
                             teardown_name) OPERATOR(pg_catalog.=) ANY ('{0,3}'))
        NOT VALID;
ALTER TABLE queue_data.secret
    ADD CONSTRAINT secret_key CHECK (
        pg_catalog.octet_length(key) OPERATOR(pg_catalog.=) 32) NOT VALID;
DO $$
DECLARE
    part text;
BEGIN
    FOREACH part IN ARRAY
        (SELECT pg_catalog.array_agg('message_' OPERATOR(pg_catalog.||) s::text)
         FROM pg_catalog.generate_series(0, 15) AS s)
        OPERATOR(pg_catalog.||) '{delayed_0,delayed_1,delayed_2,delayed_3}'::text[]
    LOOP
        -- An id has the priority above the segment; 31 is all bits of that.
        EXECUTE pg_catalog.format('
            ALTER TABLE queue_data.%I
                ADD CONSTRAINT message_id CHECK (
                    id OPERATOR(pg_catalog.>) 0
                    AND priority OPERATOR(pg_catalog.>=) 0
                    AND priority OPERATOR(pg_catalog.<=) 9
                    AND (id OPERATOR(pg_catalog.>>) 5) OPERATOR(pg_catalog.&) 15
                        OPERATOR(pg_catalog.=) priority
                    AND id OPERATOR(pg_catalog.&) 31 OPERATOR(pg_catalog.<=) 19)
                    NOT VALID,
                ADD CONSTRAINT message_lifetime CHECK (
                    pg_catalog.isfinite(created_at)
                    AND ttl OPERATOR(pg_catalog.>=) 0) NOT VALID,
                ADD CONSTRAINT message_claim CHECK (
                    claim_count OPERATOR(pg_catalog.>=) 0
                    AND (claim_token OPERATOR(pg_catalog.=) 0
                         OR pg_catalog.isfinite(claimed_until)
                            AND claim_ttl OPERATOR(pg_catalog.>=) 0
                            AND claim_grace OPERATOR(pg_catalog.>=) 0
                            AND claim_offset OPERATOR(pg_catalog.>=) 0
                            AND claim_offset OPERATOR(pg_catalog.<=) claim_span))
                    NOT VALID,
                ADD CONSTRAINT message_twins CHECK (
                    COALESCE(pg_catalog.array_ndims(twins), 1)
                        OPERATOR(pg_catalog.=) 1
                    AND pg_catalog.array_position(twins, NULL::bigint) IS NULL)
                    NOT VALID;', part);
    END LOOP;
END
$$;

--
-- Schedules
--

-- What jobs of pg_cron call.  Unlike the schema of the other functions, this one
-- belongs to the extension, and so cannot be renamed by another role.
COMMENT ON SCHEMA queue_router IS
'functions of the extension queue for routers (queue_proxy) and for jobs of pg_cron';
CREATE FUNCTION queue_router.due(schedule integer)
RETURNS boolean
AS 'MODULE_PATHNAME', 'sql_job_due'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION queue_router.due(integer) IS
'job_due, for jobs of pg_cron';
REVOKE ALL ON FUNCTION queue_router.due(integer) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION queue_router.due(integer)
    TO queue_producer, queue_consumer, queue_admin;

-- The jobs that there are.  The text is that of cron.c, which says why.
DO $$
BEGIN
    IF EXISTS (SELECT FROM pg_catalog.pg_extension
               WHERE extname OPERATOR(pg_catalog.=) 'pg_cron') THEN
        UPDATE cron.job AS j
        SET command = pg_catalog.format(
            '/* schedule "%s" of queue "%s" */ DO %L', s.name, s.queue,
            'BEGIN IF NOT EXISTS (SELECT FROM pg_catalog.pg_depend AS d'
            ' JOIN pg_catalog.pg_extension AS e'
            ' ON e.oid OPERATOR(pg_catalog.=) d.refobjid'
            ' WHERE d.classid OPERATOR(pg_catalog.=) ''pg_catalog.pg_proc''::pg_catalog.regclass'
            ' AND d.objid OPERATOR(pg_catalog.=) pg_catalog.to_regprocedure(''queue_router.due(integer)'')'
            ' AND d.refclassid OPERATOR(pg_catalog.=) ''pg_catalog.pg_extension''::pg_catalog.regclass'
            ' AND d.deptype OPERATOR(pg_catalog.=) ''e'''
            ' AND e.extname OPERATOR(pg_catalog.=) ''queue'')'
            ' THEN RAISE EXCEPTION ''extension "queue" does not exist'';'
            ' END IF; PERFORM queue_router.due('
            OPERATOR(pg_catalog.||) s.id::text OPERATOR(pg_catalog.||) '); END')
        FROM queue_data.schedule AS s
             JOIN pg_catalog.pg_roles AS r ON r.oid OPERATOR(pg_catalog.=) s.role
        WHERE j.jobname::text OPERATOR(pg_catalog.=)
              ('queue ' OPERATOR(pg_catalog.||) s.id::text)
        AND j.username::text OPERATOR(pg_catalog.=) r.rolname::text
        AND j.database::text OPERATOR(pg_catalog.=)
            pg_catalog.current_database()::text;
    END IF;
END
$$;

--
-- Functions and views
--

COMMENT ON FUNCTION message_retry(text, bigint, text, text, integer) IS
'gives one claimed message back, to be handed out after delay seconds (NULL: 1 s, doubled by each further attempt up to queue.max_retry_delay, unless _retry_delay or _retry_backoff of the queue say otherwise), extends its lifetime as a claim does, and stores error with it; returns when it is due, NULL when it was claimed _max_claim_count times and became a dead letter. Errors: QU001 the claim is not live, QU002 the message is not in that claim, QU004 it was canceled, 22023/22004 argument, 42501. Source: MediaWiki, retries of a job';

COMMENT ON FUNCTION job_handler(text, regprocedure, integer, integer, real, regprocedure) IS
'binds queue q, which is created as by a push, to a function (queue_message) or (jsonb) that returns boolean, to be called for each message as the current role, at most concurrency at a time, for at most timeout seconds each (NULL: queue.max_handler_time, which bounds it), at most rate per second; teardown is called after each attempt; sets _max_claim_count 12 where the metadata has none; a NULL handler unbinds. Errors: 42704 unknown queue with queue.auto_create off, 42883 no such function, 22023/22004 argument, 42501 not the owner, or no privilege to execute the function. Source: MediaWiki, Job::run, Job::tearDown';

COMMENT ON FUNCTION queue_groups(text, text, integer) IS
'the groups of queue q that have messages, by key, after marker, at most limit (1 to 10000): exact counts, and the age in seconds of the message with the lowest id; messages without a key are the first group, with a NULL key (the marker '''' begins after it); reads every message of the queue. Errors: 22023/22004 name or limit, 42501 no right to claim';

-- A dead letter waits for a person, so the age of the oldest one is no reason for
-- an alert.
CREATE OR REPLACE VIEW queue_data.queue_status AS
WITH s AS MATERIALIZED (SELECT * FROM queue_data.status())
SELECT q.project, q.name, q.owner, q.paused, s.ready, s.claimed, s.delayed,
       COALESCE(d.ready OPERATOR(pg_catalog.+) d.claimed
                OPERATOR(pg_catalog.+) d.delayed, 0) AS dead_letters,
       s.oldest_ready_age, s.pushed, s.claimed_total, s.completed, s.retried,
       s.abandoned, s.duplicates, s.expired,
       CASE WHEN h.queue_id IS NULL THEN 'none'
            WHEN q.paused AND h.stopped IS NOT NULL THEN 'stopped'
            WHEN q.paused THEN 'paused'
            WHEN s.running THEN 'running'
            ELSE 'idle'
       END AS handler_state,
       q.source_id IS NOT NULL
       OR EXISTS (SELECT FROM queue_data.queue AS o
                  WHERE o.dead_queue_id OPERATOR(pg_catalog.=) q.id)
           AS is_dead_letter_queue
FROM queue_data.queue AS q
     JOIN s ON s.queue_id OPERATOR(pg_catalog.=) q.id
     LEFT JOIN s AS d ON d.queue_id OPERATOR(pg_catalog.=) q.dead_queue_id
     LEFT JOIN queue_data.handler AS h
         ON h.queue_id OPERATOR(pg_catalog.=) q.id;
COMMENT ON VIEW queue_data.queue_status IS
'one row for each queue of all projects: its messages by state, counted as they change and at most two seconds late, and those in its dead letter queue, the age in seconds of the oldest ready one, what was counted since job_stats.since, and its handler: none, idle, running, paused by a command, or stopped because it cannot run; is_dead_letter_queue: whether a queue sends its dead letters there, or the queue was created for those of another one';

COMMENT ON PROCEDURE job_run(text[], integer, integer, jsonb) IS
'runs jobs of these queues (NULL: all that have a handler whose role the caller may act as), at most max_jobs, and starts none after max_time seconds; result: ok and failed (numbers of attempts), elapsed (seconds), reached (none-ready, job-limit or time-limit). Errors: 42704 unknown queue or no handler, 22023/22004 argument, 42501 may not act as the role, 25001 inside a transaction block, 55000 open cursors or advisory locks in a session of another role. Source: MediaWiki, JobRunner::run';

COMMENT ON FUNCTION queue_post(text, jsonb) IS
'pushes an array of {"body", "ttl", "delay", "priority", "dedup_key", "group_key", "headers", "batch", "after", "after_success"} (only body is required), all or nothing, and returns the ids in that order, NULL where one was dropped as a duplicate. If q is NULL, each object has a field "queue", too. Errors: as queue_push; 22004 a message without a queue. Source: Zaqar, post messages; MediaWiki, JobQueueGroup::push';

CREATE FUNCTION queue_is_empty(q text)
RETURNS boolean
AS 'MODULE_PATHNAME', 'sql_queue_is_empty'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION queue_is_empty(text) IS
'whether a claim of queue q would find nothing now; also true for an unknown or a paused queue. Errors: 22023/22004 argument, 42501. Source: MediaWiki, JobQueue::isEmpty';
REVOKE ALL ON FUNCTION queue_is_empty(text) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION queue_is_empty(text)
    TO queue_producer, queue_consumer, queue_admin;

CREATE FUNCTION queue_ready_in_projects()
RETURNS TABLE (project text, queue text)
AS 'MODULE_PATHNAME', 'sql_queue_ready_in_projects'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION queue_ready_in_projects() IS
'the queues of all projects that have something to claim, as far as the caller may claim from them. Source: MediaWiki, JobQueueAggregator';
REVOKE ALL ON FUNCTION queue_ready_in_projects() FROM PUBLIC;
GRANT EXECUTE ON FUNCTION queue_ready_in_projects()
    TO queue_producer, queue_consumer, queue_admin;

CREATE FUNCTION job_list(q text DEFAULT NULL)
RETURNS TABLE (
    queue text, handler text, state text, reason text, concurrency integer,
    running integer, message_id bigint, pid integer,
    running_since timestamp with time zone, progress jsonb)
AS 'MODULE_PATHNAME', 'sql_job_list'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION job_list(text) IS
'what the handler of queue q runs, or those of all queues of the project whose owner or admin the caller is: a row for each job that runs, or one with NULL from message_id on; state: idle, running, paused or stopped, which reason explains; concurrency: jobs that may run at once; running: that do; pid: of the process, to be canceled with pg_cancel_backend; running_since: of the attempt; progress: done, total and note of job_progress. Errors: 22023 name, 42501 neither owner nor admin of q. Source: MediaWiki, showJobs';
REVOKE ALL ON FUNCTION job_list(text) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION job_list(text)
    TO queue_producer, queue_consumer, queue_admin;

CREATE FUNCTION job_schedules()
RETURNS TABLE (
    name text, cron text, queue text, body jsonb,
    last_run timestamp with time zone, last_error text)
AS 'MODULE_PATHNAME', 'sql_job_schedules'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION job_schedules() IS
'the schedules of the project that the caller has made, or that push to a queue whose owner or admin it is; last_run: when a message was last pushed; last_error: of the latest run, NULL if that has not failed. Source: pg_cron, cron.job and cron.job_run_details';
REVOKE ALL ON FUNCTION job_schedules() FROM PUBLIC;
GRANT EXECUTE ON FUNCTION job_schedules()
    TO queue_producer, queue_consumer, queue_admin;

CREATE FUNCTION job_progress(
    done bigint, total bigint DEFAULT NULL, note text DEFAULT NULL)
RETURNS void
AS 'MODULE_PATHNAME', 'sql_job_progress'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION job_progress(bigint, bigint, text) IS
'for handlers: shows in job_list, at once and without a write, how much of the job is done, out of a total in the same unit (NULL: unknown), and a note of at most 255 bytes (more is cut off); without effect outside a handler. Errors: 22023/22004 done or total. Source: Celery, update_state; Sidekiq, at';
REVOKE ALL ON FUNCTION job_progress(bigint, bigint, text) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION job_progress(bigint, bigint, text)
    TO queue_producer, queue_consumer, queue_admin;

CREATE FUNCTION queue_step(
    q text,
    claim_id text DEFAULT NULL,
    done bigint[] DEFAULT NULL,
    failed jsonb DEFAULT NULL,
    push jsonb DEFAULT NULL,
    ttl integer DEFAULT 300,
    grace integer DEFAULT 60,
    "limit" integer DEFAULT NULL)
RETURNS SETOF queue_message
AS 'MODULE_PATHNAME', 'sql_queue_step'
LANGUAGE C VOLATILE PARALLEL UNSAFE ROWS 10;
COMMENT ON FUNCTION queue_step(text, text, bigint[], jsonb, jsonb, integer, integer, integer) IS
'a worker''s cycle in one call, all or nothing: of the claim (NULL: none yet), deletes the messages in done (NULL: all that are not in failed), retries those in failed ([{"id", "error", "delay", "bury"}, ...], only id is required; true in bury makes it a dead letter) and gives the rest back; pushes the messages in push (as queue_post; without a field queue, to q); and claims the next as queue_claim; a limit of 0 claims nothing. Errors: QU001 the claim is not live, QU002 a message is not in it, QU004 one was canceled, 22023/22004 argument, 42501, those of queue_push, and with bury of message_bury. Source: claim_next';
REVOKE ALL ON FUNCTION queue_step(text, text, bigint[], jsonb, jsonb, integer, integer, integer) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION queue_step(text, text, bigint[], jsonb, jsonb, integer, integer, integer)
    TO queue_producer, queue_consumer, queue_admin;

CREATE FUNCTION message_bury(q text, id bigint, claim_id text, error text)
RETURNS void
AS 'MODULE_PATHNAME', 'sql_message_bury'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION message_bury(text, bigint, text, text) IS
'makes one claimed message a dead letter at once, however often it was claimed, and stores error with it (NULL: keeps the last one); a queue without a dead letter queue gets the one that it would have by default; a duplicate is dropped instead. Errors: QU001 the claim is not live, QU002 the message is not in that claim, QU004 it was canceled, 22023/22004 argument, or no room for the name of the dead letter queue, 42501 no right to claim, or the dead letter queue belongs to another role or does not accept it, 55P03 the dead letter queue is locked. Source: Graphile Worker, permanent failures';
REVOKE ALL ON FUNCTION message_bury(text, bigint, text, text) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION message_bury(text, bigint, text, text)
    TO queue_producer, queue_consumer, queue_admin;

COMMENT ON FUNCTION message_delete(text, bigint, text) IS
'deletes one message, with claim_id only as part of that claim; false: there is no such message. Errors: QU001 the claim is not live, QU002 the message is not in that claim, QU003 the message is claimed and no claim_id was given, QU004 it was canceled, 22004 id is NULL, 42501. Source: Zaqar, delete a specific message';
COMMENT ON FUNCTION claim_get(text, text) IS
'describes a live claim in one row: for how many seconds it was claimed or renewed, how many have passed since, its grace in seconds, when it ends, how many messages it has, without those that were canceled. No row: the id is NULL, malformed, unknown or not live. Errors: 42501. Source: Zaqar, query claim';
COMMENT ON FUNCTION claim_messages(text, text) IS
'the messages that are still in a live claim, without those that were canceled, highest priority first, oldest first. No row: the id is NULL, malformed, unknown or not live. Errors: 42501. Source: Zaqar, query claim';
COMMENT ON FUNCTION claim_renew(text, text, integer, integer) IS
'restarts a claim: it ends ttl seconds from now, and the lifetime of its messages is extended to at least grace seconds (NULL: as before) beyond that; returns when it ends, NULL when there is no such live claim, or all that it has was canceled. Errors: 22023/22004 argument, 42501. Source: Zaqar, update (renew) claim';
COMMENT ON FUNCTION claim_release(text, text, integer) IS
'gives the remaining messages of a claim back, free after delay seconds, and removes those that were canceled; those that were claimed as often as the queue allows become dead letters. Returns the number of messages without those that were canceled, 0 when there is no such live claim. Errors: 22023/22004 argument, 42501. Source: Zaqar, release claim';
COMMENT ON VIEW queue_data.message IS
'every message and its state: free, claimed, canceled, delayed or expired';
COMMENT ON FUNCTION claim_complete(text, text) IS
'deletes the remaining messages of a claim and returns their number. Errors: QU001 the claim is not live, QU004 a message of it was canceled, 42501. Source: MediaWiki, JobQueue::ack, for a batch';
COMMENT ON FUNCTION claim_next(text, text, integer, integer, integer) IS
'deletes the remaining messages of a claim (NULL: there is none yet) and claims the next messages as queue_claim does, in one call. Errors: QU001 the claim is not live, QU004 a message of it was canceled; as queue_claim';

CREATE FUNCTION message_cancel(
    q text,
    id bigint,
    reason text DEFAULT NULL)
RETURNS text
AS 'MODULE_PATHNAME', 'sql_message_cancel'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION message_cancel(text, bigint, text) IS
'cancels one message and stores the reason as its last error; canceled: no claim held it, and it is removed; pending: it is removed when its claim ends, nothing that completes, retries or buries it succeeds any more (QU004), and a handler that works on it is interrupted after the commit; NULL: there is no such message. Errors: 22004 id, 42501 no right to claim. Source: Procrastinate and Oban, canceling a job';
REVOKE ALL ON FUNCTION message_cancel(text, bigint, text) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION message_cancel(text, bigint, text)
    TO queue_producer, queue_consumer, queue_admin;

CREATE FUNCTION messages_cancel(q text, ids bigint[])
RETURNS bigint
AS 'MODULE_PATHNAME', 'sql_messages_cancel'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION messages_cancel(text, bigint[]) IS
'cancels these messages as message_cancel does, and returns how many of them there were; a repeated id counts once. Errors: 22004 ids or one of them, 22023 more than one dimension, 42501 no right to claim. Source: River, canceling many jobs';
REVOKE ALL ON FUNCTION messages_cancel(text, bigint[]) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION messages_cancel(text, bigint[])
    TO queue_producer, queue_consumer, queue_admin;

CREATE FUNCTION queue_cancel_where(q text, filter jsonb)
RETURNS bigint
AS 'MODULE_PATHNAME', 'sql_queue_cancel_where'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION queue_cancel_where(text, jsonb) IS
'cancels the messages whose bodies contain the filter (the operator @>), as message_cancel does, and returns how many there were; it reads the whole queue, and locks nothing before it has. Errors: 22004 filter, 42501 no right to claim. Source: River, canceling many jobs';
REVOKE ALL ON FUNCTION queue_cancel_where(text, jsonb) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION queue_cancel_where(text, jsonb)
    TO queue_producer, queue_consumer, queue_admin;

--
-- Starting the background processes at a login
--

CREATE FUNCTION queue_data.start_worker()
RETURNS void
AS 'MODULE_PATHNAME', 'sql_queue_start_worker'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION queue_data.start_worker() IS
'has the background processes started, for start_at_login';
REVOKE ALL ON FUNCTION queue_data.start_worker() FROM PUBLIC;

-- An error would refuse the login, and a message might confuse the client.  The
-- roles that log in may have no privilege on the schema, hence SECURITY DEFINER.
-- A standby has no worker, and does not even load the library.
CREATE FUNCTION queue_data.start_at_login()
RETURNS event_trigger
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET client_min_messages = error
AS $$
BEGIN
    IF NOT pg_catalog.pg_is_in_recovery() THEN
        PERFORM queue_data.start_worker();
    END IF;
EXCEPTION WHEN OTHERS THEN
    RAISE LOG 'no background process for queues could be started at a login: %', SQLERRM;
END
$$;
COMMENT ON FUNCTION queue_data.start_at_login() IS
'event trigger of queue_start_at_login: starts the background processes, and raises no error';
REVOKE ALL ON FUNCTION queue_data.start_at_login() FROM PUBLIC;

CREATE FUNCTION queue_start_at_login(enable boolean = true)
RETURNS void
AS 'MODULE_PATHNAME', 'sql_queue_start_at_login'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION queue_start_at_login(boolean) IS
'makes the first connection to this database after a restart start the background processes, by the event trigger queue_start_at_login; false drops that. Not needed where the library is preloaded. Errors: 42501 not a superuser, 0A000 PostgreSQL 15 and 16, 22004 argument';
REVOKE ALL ON FUNCTION queue_start_at_login(boolean) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION queue_start_at_login(boolean)
    TO queue_producer, queue_consumer, queue_admin;
