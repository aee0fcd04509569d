/* src/sql/queue--2.0.sql */

-- complain if script is sourced in psql, rather than via CREATE EXTENSION
\echo Use "CREATE EXTENSION queue" to load this file. \quit

--
-- CONTENTS
--		Roles
--		Tables
--		Views of messages and roles
--		Functions for users
--		Functions for routers and tools
--		Views of what runs
--		Triggers, and what pg_dump calls
--		What pg_dump writes
--		Privileges
--
-- What is here is also in the last queue--A--B.sql: an update leads to the same
-- catalog.
--

-- ---------------------------------------------------------------------------
-- Roles
-- ---------------------------------------------------------------------------

-- Roles belong to the cluster, not to the database: they are created if they
-- are missing, and DROP EXTENSION keeps them.  A check before would not do: a
-- session in another database may create one at the same time.
DO $$
DECLARE
    role_name name;
BEGIN
    FOREACH role_name IN ARRAY
        '{queue_producer,queue_consumer,queue_admin,queue_monitor}'::name[]
    LOOP
        BEGIN
            EXECUTE pg_catalog.format('CREATE ROLE %I NOLOGIN', role_name);
        EXCEPTION WHEN unique_violation OR duplicate_object THEN
            NULL;
        END;
        IF EXISTS (SELECT FROM pg_catalog.pg_roles
                   WHERE rolname OPERATOR(pg_catalog.=) role_name
                   AND rolcanlogin) THEN
            RAISE WARNING 'role "%" exists and can log in', role_name
                USING HINT = 'Members of this role get rights on queues; make sure that it is meant for that.';
        END IF;
    END LOOP;
END
$$;

-- ---------------------------------------------------------------------------
-- Tables
-- ---------------------------------------------------------------------------

-- Only the owner has privileges on them.  The functions read and write them
-- directly, and check the caller's privileges on the queue.  They write without
-- the executor, so neither triggers nor constraints cost them anything: those
-- are for other SQL, such as a restore.  The constraints say what the C code
-- relies on (row_check.c, message_row.c), which finds columns by number.
--
-- Queues are not replicated logically: a subscription writes no rows here.  An
-- UPDATE that is published needs a replica identity nevertheless, or the
-- subscriber cannot apply what else is in its publication.
CREATE SCHEMA queue_data;
COMMENT ON SCHEMA queue_data IS 'tables of the extension queue';

CREATE FUNCTION queue_data.library_version(required text DEFAULT NULL)
RETURNS text
AS 'MODULE_PATHNAME', 'sql_queue_library_version'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION queue_data.library_version(text) IS
'the version of the library that this session has loaded. Errors: 55000 it is older than the version required, 22023 no version';

-- An error with a hint if the session has loaded an older library.
SELECT queue_data.library_version('2.0');

--
-- Queues
--
CREATE SEQUENCE queue_data.queue_id AS integer;
COMMENT ON SEQUENCE queue_data.queue_id IS 'numbers of queues';

CREATE TABLE queue_data.queue (
    id          integer NOT NULL DEFAULT pg_catalog.nextval('queue_data.queue_id')
        CONSTRAINT queue_id CHECK (id OPERATOR(pg_catalog.>) 0),
    owner       regrole NOT NULL,
    paused      boolean NOT NULL DEFAULT false,
    created_at  timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(),
    project     text COLLATE "C" NOT NULL
        CONSTRAINT queue_project CHECK (
            pg_catalog.octet_length(project) OPERATOR(pg_catalog.<=) 256),
    name        text COLLATE "C" NOT NULL
        CONSTRAINT queue_name CHECK (
            name OPERATOR(pg_catalog.~) '^[A-Za-z0-9_.:/-]{1,64}$'),
    metadata    jsonb NOT NULL DEFAULT '{}'
        CONSTRAINT queue_metadata CHECK (
            pg_catalog.jsonb_typeof(metadata) OPERATOR(pg_catalog.=) 'object'),
    push_roles  regrole[],
    claim_roles regrole[],
    admin_roles regrole[],
    dead_queue_id integer,
    source_id   integer,
    lane_secret uuid NOT NULL DEFAULT pg_catalog.gen_random_uuid(),
    CONSTRAINT queue_roles CHECK (
        COALESCE(pg_catalog.array_ndims(push_roles), 1) OPERATOR(pg_catalog.=) 1
        AND COALESCE(pg_catalog.array_ndims(claim_roles), 1) OPERATOR(pg_catalog.=) 1
        AND COALESCE(pg_catalog.array_ndims(admin_roles), 1) OPERATOR(pg_catalog.=) 1
        AND pg_catalog.array_position(push_roles, NULL::pg_catalog.regrole) IS NULL
        AND pg_catalog.array_position(claim_roles, NULL::pg_catalog.regrole) IS NULL
        AND pg_catalog.array_position(admin_roles, NULL::pg_catalog.regrole) IS NULL),
    CONSTRAINT queue_source CHECK (source_id OPERATOR(pg_catalog.<>) id)
) USING heap;
CREATE UNIQUE INDEX queue_id_idx ON queue_data.queue (id);
CREATE UNIQUE INDEX queue_name_idx ON queue_data.queue (project, name);
CREATE INDEX queue_owner_idx ON queue_data.queue (owner);
CREATE INDEX queue_dead_queue_idx ON queue_data.queue (dead_queue_id);
CREATE INDEX queue_source_idx ON queue_data.queue (source_id);
ALTER TABLE queue_data.queue REPLICA IDENTITY USING INDEX queue_id_idx;
COMMENT ON TABLE queue_data.queue IS
'one row for each queue; push_roles and claim_roles are NULL if every producer or consumer has the privilege; dead_queue_id is the dead letter queue that the metadata requires; source_id is the queue for whose dead letters this one was created: claim and admin are those of that queue until they are granted on this one';
COMMENT ON COLUMN queue_data.queue.lane_secret IS
'the key of the hash by which groups of the queue are found: whoever knows it can choose group keys that hold up other groups of the queue';
COMMENT ON INDEX queue_data.queue_id_idx IS 'queues by number';
COMMENT ON INDEX queue_data.queue_name_idx IS 'queues by project and name';
COMMENT ON INDEX queue_data.queue_owner_idx IS 'queues by owner';
COMMENT ON INDEX queue_data.queue_dead_queue_idx IS
'queues by their dead letter queue';
COMMENT ON INDEX queue_data.queue_source_idx IS
'dead letter queues by the queue for which they were created';

--
-- Messages
--
-- Blocks of 32 message numbers; the step is one block.
CREATE SEQUENCE queue_data.message_id AS bigint MAXVALUE 562949953421311;
COMMENT ON SEQUENCE queue_data.message_id IS
'blocks of 32 message numbers, the high bits of message ids';

-- Which segments take new messages.  Not dumped: a restored database begins
-- with the first ones, and scans cover every segment that holds messages.
CREATE TABLE queue_data.ring (
    active              smallint NOT NULL,
    switched_at         timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(),
    delayed             smallint NOT NULL,
    delayed_switched_at timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(),
    CONSTRAINT ring_segments CHECK (
        active OPERATOR(pg_catalog.>=) 0 AND active OPERATOR(pg_catalog.<=) 15
        AND delayed OPERATOR(pg_catalog.>=) 16
        AND delayed OPERATOR(pg_catalog.<=) 19)
) USING heap;
ALTER TABLE queue_data.ring REPLICA IDENTITY FULL;
COMMENT ON TABLE queue_data.ring IS
'the segments that take new messages; delayed: 16 for delayed_0, and so on';
INSERT INTO queue_data.ring (active, delayed) VALUES (0, 16);

-- When each segment was last truncated.  A snapshot that does not see that
-- row does not see what was in the segment either.  Not dumped.
CREATE TABLE queue_data.segment (
    segment      smallint NOT NULL
        CONSTRAINT segment_number CHECK (
            segment OPERATOR(pg_catalog.>=) 0
            AND segment OPERATOR(pg_catalog.<=) 19),
    truncated_at timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp()
) USING heap;
ALTER TABLE queue_data.segment REPLICA IDENTITY FULL;
COMMENT ON TABLE queue_data.segment IS 'when each segment of the ring was last emptied';
INSERT INTO queue_data.segment (segment)
SELECT s FROM pg_catalog.generate_series(0, 19) AS s;

-- The segments of the ring.  C code (message_row.c) reads the fixed-width
-- columns in place, so their order and types are fixed.  Those of a claim are
-- all null or none is; most messages have nothing in the columns after them.
-- Where the last columns are null, the row ends before them.
--
-- The fillfactor leaves room on the page for the row version that a claim
-- writes, whatever the length of the body.  With 48, one row of a page too many
-- was inserted for some lengths, and its claim was not a HOT update.
--
-- An id has the priority above the segment; 31 is all bits of that.  twins,
-- twins_joined and covered belong to deduplication (dedup.c); they are NULL for
-- a message whose key no other message has.  due_at is that of delayed messages,
-- whose tables have the same columns.  Members of a batch, and messages that
-- wait for one, have the last four; the index has entries for members only.
DO $$
BEGIN
    FOR segment IN 0 .. 15 LOOP
        EXECUTE pg_catalog.format('
            CREATE TABLE queue_data.message_%1$s (
                id               bigint NOT NULL,
                created_at       timestamptz NOT NULL,
                queue_id         integer NOT NULL,
                priority         smallint NOT NULL,
                body             jsonb NOT NULL,
                ttl              integer NOT NULL,
                claim_token      bigint,
                claimed_until    timestamptz,
                claim_ttl        integer,
                claim_grace      integer,
                claim_offset     integer,
                claim_span       integer,
                claim_count      integer,
                claim_priorities smallint,
                client_id        text COLLATE "C",
                dedup            uuid,
                attributes       jsonb,
                twins            bigint[],
                twins_joined     bigint,
                covered          boolean,
                group_key        text COLLATE "C",
                headers          jsonb,
                due_at           timestamptz,
                batch            bigint,
                after_batch      bigint,
                after_delay      integer,
                after_success    boolean,
                CONSTRAINT message_id CHECK (
                    id OPERATOR(pg_catalog.>) 0
                    AND priority OPERATOR(pg_catalog.>=) 0
                    AND priority OPERATOR(pg_catalog.<=) 9
                    AND (id OPERATOR(pg_catalog.>>) 5) OPERATOR(pg_catalog.&) 15
                        OPERATOR(pg_catalog.=) priority
                    AND id OPERATOR(pg_catalog.&) 31 OPERATOR(pg_catalog.<=) 19),
                CONSTRAINT message_lifetime CHECK (
                    pg_catalog.isfinite(created_at)
                    AND ttl OPERATOR(pg_catalog.>=) 0),
                CONSTRAINT claim_columns CHECK (pg_catalog.num_nulls(
                    claim_token, claimed_until, claim_ttl, claim_grace,
                    claim_offset, claim_span, claim_count, claim_priorities)
                    OPERATOR(pg_catalog.=) ANY (''{0,8}'')),
                CONSTRAINT message_claim CHECK (
                    claim_count OPERATOR(pg_catalog.>=) 0
                    AND (claim_token OPERATOR(pg_catalog.=) 0
                         OR pg_catalog.isfinite(claimed_until)
                            AND claim_ttl OPERATOR(pg_catalog.>=) 0
                            AND claim_grace OPERATOR(pg_catalog.>=) 0
                            AND claim_offset OPERATOR(pg_catalog.>=) 0
                            AND claim_offset OPERATOR(pg_catalog.<=) claim_span)),
                CONSTRAINT message_twins CHECK (
                    COALESCE(pg_catalog.array_ndims(twins), 1)
                        OPERATOR(pg_catalog.=) 1
                    AND pg_catalog.array_position(twins, NULL::bigint) IS NULL)
            ) USING heap WITH (fillfactor = 47);
            CREATE UNIQUE INDEX message_%1$s_idx ON queue_data.message_%1$s
                (queue_id, priority DESC, id);
            CREATE INDEX message_%1$s_batch_idx ON queue_data.message_%1$s
                (batch, id) WHERE batch IS NOT NULL;
            ALTER TABLE queue_data.message_%1$s
                REPLICA IDENTITY USING INDEX message_%1$s_idx;
            COMMENT ON TABLE queue_data.message_%1$s IS
                ''messages, segment %1$s of the ring'';
            COMMENT ON INDEX queue_data.message_%1$s_idx IS
                ''messages in the order in which they are handed out'';
            COMMENT ON INDEX queue_data.message_%1$s_batch_idx IS
                ''members of batches''', segment);
    END LOOP;
END
$$;

-- Delayed messages have a small ring of their own.
DO $$
BEGIN
    FOR segment IN 0 .. 3 LOOP
        EXECUTE pg_catalog.format('
            CREATE TABLE queue_data.delayed_%1$s (
                LIKE queue_data.message_0 INCLUDING CONSTRAINTS
            ) USING heap;
            ALTER TABLE queue_data.delayed_%1$s ALTER COLUMN due_at SET NOT NULL;
            CREATE UNIQUE INDEX delayed_%1$s_id_idx ON queue_data.delayed_%1$s
                (queue_id, id);
            CREATE INDEX delayed_%1$s_due_idx ON queue_data.delayed_%1$s
                (queue_id, priority DESC, due_at);
            CREATE INDEX delayed_%1$s_batch_idx ON queue_data.delayed_%1$s
                (batch, id) WHERE batch IS NOT NULL;
            CREATE INDEX delayed_%1$s_after_idx ON queue_data.delayed_%1$s
                (after_batch, id) WHERE after_batch IS NOT NULL;
            ALTER TABLE queue_data.delayed_%1$s
                REPLICA IDENTITY USING INDEX delayed_%1$s_id_idx;
            COMMENT ON TABLE queue_data.delayed_%1$s IS
                ''delayed messages; each moves to a segment of the ring, with its id, when it is due'';
            COMMENT ON INDEX queue_data.delayed_%1$s_id_idx IS
                ''delayed messages by id'';
            COMMENT ON INDEX queue_data.delayed_%1$s_due_idx IS
                ''delayed messages by priority and the time they are due'';
            COMMENT ON INDEX queue_data.delayed_%1$s_batch_idx IS
                ''members of batches'';
            COMMENT ON INDEX queue_data.delayed_%1$s_after_idx IS
                ''messages that wait for the end of a batch''', segment);
    END LOOP;
END
$$;

--
-- Claims
--
-- The key with which claim ids are signed, so that a forged one is detected
-- without reading any message.  The oldest row counts: a restored database has
-- two, and the claims in it were signed with the key in the dump.
CREATE TABLE queue_data.secret (
    created_at  timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(),
    key         bytea NOT NULL
        CONSTRAINT secret_key CHECK (
            pg_catalog.octet_length(key) OPERATOR(pg_catalog.=) 32)
) USING heap;
ALTER TABLE queue_data.secret REPLICA IDENTITY FULL;
COMMENT ON TABLE queue_data.secret IS 'the key with which claim ids are signed';
INSERT INTO queue_data.secret (key)
SELECT pg_catalog.uuid_send(pg_catalog.gen_random_uuid())
       OPERATOR(pg_catalog.||) pg_catalog.uuid_send(pg_catalog.gen_random_uuid());

--
-- Duplicates
--
-- The messages that may hold a deduplication key, the newest first.  If each
-- of them is gone or claimed, the key is free: so a claim need not change this
-- table.  joined counts the pushes that were dropped while one of the messages
-- may have been running already, without the dropped push's changes.  A key can
-- hold for a time as well, whatever becomes of the message.
--
-- The newest version of a row is the last one in the index, so that it is found as fast
-- while an old snapshot keeps the others.
CREATE TABLE queue_data.dedup_key (
    queue_id    integer NOT NULL,
    digest      uuid NOT NULL,
    message_ids bigint[] NOT NULL
        CONSTRAINT dedup_key_ids CHECK (
            COALESCE(pg_catalog.array_ndims(message_ids), 1) OPERATOR(pg_catalog.=) 1
            AND pg_catalog.array_position(message_ids, NULL::bigint) IS NULL),
    joined      bigint NOT NULL DEFAULT 0,
    pushed_at   timestamptz,
    kept_until  timestamptz,
    version     bigint NOT NULL DEFAULT 1,
    CONSTRAINT dedup_key_times CHECK (
        (pushed_at IS NULL) OPERATOR(pg_catalog.=) (kept_until IS NULL))
) USING heap;
CREATE UNIQUE INDEX dedup_key_idx ON queue_data.dedup_key (queue_id, digest, version);
CREATE INDEX dedup_key_time_idx ON queue_data.dedup_key (kept_until)
    WHERE kept_until IS NOT NULL;
ALTER TABLE queue_data.dedup_key REPLICA IDENTITY USING INDEX dedup_key_idx;
COMMENT ON TABLE queue_data.dedup_key IS
'deduplication keys, and the messages that may hold them; pushed_at: when the last push with dedup_for took the key; kept_until: how long the row stays for that; version: greater in each later version of a row, and in a later row of the key';
COMMENT ON INDEX queue_data.dedup_key_idx IS
'one row for each key of a queue, with its version';
COMMENT ON INDEX queue_data.dedup_key_time_idx IS
'rows that hold a key for a time, to delete them when it is over';

-- The newest root job of each signature
CREATE TABLE queue_data.root_job (
    queue_id      integer NOT NULL,
    digest        uuid NOT NULL,
    registered_at timestamptz NOT NULL
        CONSTRAINT root_job_time CHECK (pg_catalog.isfinite(registered_at))
) USING heap;
CREATE UNIQUE INDEX root_job_idx ON queue_data.root_job (queue_id, digest);
ALTER TABLE queue_data.root_job REPLICA IDENTITY USING INDEX root_job_idx;
COMMENT ON TABLE queue_data.root_job IS
'the newest root job of each signature; leaves of older ones are no-ops';
COMMENT ON INDEX queue_data.root_job_idx IS 'root jobs by queue and signature';

-- What queue_push_once has pushed, so that it does not push it again.  The
-- message's id is NULL if it was dropped as a duplicate.
CREATE TABLE queue_data.push_origin (
    origin_id  bigint NOT NULL,
    message_id bigint,
    pushed_at  timestamptz NOT NULL,
    queue_id   integer NOT NULL,
    origin     text COLLATE "C" NOT NULL
) USING heap;
CREATE UNIQUE INDEX push_origin_idx
    ON queue_data.push_origin (queue_id, origin, origin_id);
CREATE INDEX push_origin_time_idx
    ON queue_data.push_origin (queue_id, pushed_at);
ALTER TABLE queue_data.push_origin REPLICA IDENTITY USING INDEX push_origin_idx;
COMMENT ON TABLE queue_data.push_origin IS
'what queue_push_once has pushed within the last 28 days: the origin and its id, and the message';
COMMENT ON INDEX queue_data.push_origin_idx IS
'pushes by queue, origin and id';
COMMENT ON INDEX queue_data.push_origin_time_idx IS
'pushes of a queue by age';

--
-- Groups
--
-- The queues to which a message with a group key was ever pushed.  A queue may
-- have more than one row.
CREATE TABLE queue_data.grouped (
    queue_id integer NOT NULL
) USING heap;
CREATE INDEX grouped_idx ON queue_data.grouped (queue_id);
ALTER TABLE queue_data.grouped REPLICA IDENTITY FULL;
COMMENT ON TABLE queue_data.grouped IS
'queues to which a message with a group key was ever pushed';
COMMENT ON INDEX queue_data.grouped_idx IS 'queues with groups';

-- When each group of a queue with _group_rate may go on.  A row is overwritten
-- in place, and removed when its time has come.
CREATE TABLE queue_data.group_rate (
    lane         bigint NOT NULL,
    delivered_at timestamptz NOT NULL,
    next_at      timestamptz NOT NULL,
    queue_id     integer NOT NULL
) USING heap;
CREATE UNIQUE INDEX group_rate_idx ON queue_data.group_rate (queue_id, lane);
ALTER TABLE queue_data.group_rate REPLICA IDENTITY USING INDEX group_rate_idx;
COMMENT ON TABLE queue_data.group_rate IS
'groups with a rate: the last delivery, and the earliest time of the next one';
COMMENT ON INDEX queue_data.group_rate_idx IS
'groups by queue and lane, a secret hash of the key';

--
-- Batches
--
CREATE SEQUENCE queue_data.batch_id AS bigint MAXVALUE 36028797018963967;
COMMENT ON SEQUENCE queue_data.batch_id IS 'numbers of batches';

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
COMMENT ON TABLE queue_data.batch IS
'batches of messages; closed_at: since when it can finish; finished_at: when all members were finished, of which so many were completed or have failed; shard: that its queues are of, in a sharded database';
COMMENT ON INDEX queue_data.batch_idx IS 'batches by number';

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
COMMENT ON TABLE queue_data.batch_part IS
'how many members a transaction has added to a batch that has not finished, and how many have failed in it';
COMMENT ON INDEX queue_data.batch_part_idx IS 'parts by batch';

--
-- History
--
-- What became of messages, where the metadata asks for it.  The tables are
-- rings: rows are appended to the active one, and a table is truncated when its
-- rows are too old.  There is a ring for each step of _keep_finished, so that
-- what one queue keeps for a year does not hold the tables of others.  A row
-- whose outcome is 6 is an attempt that has failed.
DO $$
BEGIN
    FOR part IN 0 .. 17 LOOP
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
            COMMENT ON TABLE queue_data.finished_%1$s IS
                ''history of finished messages, table %1$s of the rings; outcome: 0 completed, 1 dead, 2 expired, 3 canceled, 4 duplicate, 5 deleted, 6 a failed attempt'';
            COMMENT ON INDEX queue_data.finished_%1$s_idx IS
                ''finished messages, and failed attempts, by queue and id''', part);
    END LOOP;
END
$$;

-- A row for each ring.  Not dumped.
CREATE TABLE queue_data.finished_ring (
    active      smallint NOT NULL
        CONSTRAINT finished_ring_active CHECK (
            active OPERATOR(pg_catalog.>=) 0 AND active OPERATOR(pg_catalog.<=) 17),
    switched_at timestamptz NOT NULL DEFAULT pg_catalog.now()
) USING heap;
ALTER TABLE queue_data.finished_ring REPLICA IDENTITY FULL;
COMMENT ON TABLE queue_data.finished_ring IS
'which table of each ring of the history takes new rows, and since when';
INSERT INTO queue_data.finished_ring (active) VALUES (0), (8), (11), (14), (16);

--
-- Topics
--
CREATE TABLE queue_data.topic (
    queue_id   integer NOT NULL,
    project    text COLLATE "C" NOT NULL,
    pattern    text COLLATE "C" NOT NULL
        CONSTRAINT topic_pattern CHECK (
            pattern OPERATOR(pg_catalog.~)
                '^([A-Za-z0-9_:/-]+|[*#])([.]([A-Za-z0-9_:/-]+|[*#]))*$'),
    filter     jsonb,
    publishers regrole[]
        CONSTRAINT topic_publishers CHECK (
            COALESCE(pg_catalog.array_ndims(publishers), 1) OPERATOR(pg_catalog.=) 1
            AND pg_catalog.array_position(publishers, NULL::pg_catalog.regrole) IS NULL),
    bound_at   timestamptz NOT NULL DEFAULT pg_catalog.now()
) USING heap;
CREATE UNIQUE INDEX topic_idx ON queue_data.topic (queue_id, pattern);
ALTER TABLE queue_data.topic REPLICA IDENTITY USING INDEX topic_idx;
COMMENT ON TABLE queue_data.topic IS
'bindings of queues to topics: what is published to a topic of the project that matches the pattern, with headers that contain the filter, by a member of one of the publishers (NULL: by any role) is pushed to the queue';
COMMENT ON INDEX queue_data.topic_idx IS 'bindings by queue and pattern';

--
-- Jobs
--
-- What runs the jobs of a queue.  Functions are stored by name, which stays
-- valid through a dump and pg_upgrade.  One that does not take jsonb takes a
-- queue_message.
CREATE TABLE queue_data.handler (
    queue_id        integer NOT NULL,
    role            regrole NOT NULL,
    concurrency     integer NOT NULL,
    timeout         integer NOT NULL,
    rate            real NOT NULL,
    next_at         timestamptz NOT NULL,
    bound_at        timestamptz NOT NULL,
    takes_jsonb     boolean NOT NULL,
    logs_in         boolean NOT NULL,
    loaded_by       timestamptz,
    function_schema text COLLATE "C" NOT NULL,
    function_name   text COLLATE "C" NOT NULL,
    search_path     text COLLATE "C" NOT NULL,
    teardown_takes_jsonb boolean,
    teardown_schema text COLLATE "C",
    teardown_name   text COLLATE "C",
    stopped         text,
    CONSTRAINT handler_options CHECK (
        concurrency OPERATOR(pg_catalog.>) 0
        AND timeout OPERATOR(pg_catalog.>=) 0
        AND rate OPERATOR(pg_catalog.>=) 0::real
        AND rate OPERATOR(pg_catalog.<) 'Infinity'::real),
    CONSTRAINT handler_teardown CHECK (
        pg_catalog.num_nulls(teardown_takes_jsonb, teardown_schema,
                             teardown_name) OPERATOR(pg_catalog.=) ANY ('{0,3}'))
) USING heap WITH (fillfactor = 80);
CREATE UNIQUE INDEX handler_idx ON queue_data.handler (queue_id);
ALTER TABLE queue_data.handler REPLICA IDENTITY USING INDEX handler_idx;
COMMENT ON TABLE queue_data.handler IS
'the functions that run the jobs of queues; timeout: seconds (0: none); rate: jobs per second (0: no limit); next_at: when the next job may start at that rate; logs_in: whether the role could log in when it bound them; loaded_by: when the session began that has written the row with SQL, as a restore does';
COMMENT ON INDEX queue_data.handler_idx IS 'one row for each queue that has a handler';

-- Recurring jobs of earlier versions, see job_due
CREATE TABLE queue_data.schedule (
    id          integer NOT NULL,
    role        regrole NOT NULL,
    pushed_at   timestamptz NOT NULL,
    project     text COLLATE "C" NOT NULL,
    name        text COLLATE "C" NOT NULL,
    queue       text COLLATE "C" NOT NULL,
    cron        text COLLATE "C" NOT NULL,
    body        jsonb NOT NULL
) USING heap;
CREATE UNIQUE INDEX schedule_id_idx ON queue_data.schedule (id);
CREATE UNIQUE INDEX schedule_name_idx ON queue_data.schedule (project, name);
ALTER TABLE queue_data.schedule REPLICA IDENTITY USING INDEX schedule_id_idx;
COMMENT ON TABLE queue_data.schedule IS
'recurring jobs of earlier versions: what is pushed to which queue; pg_cron has a job "queue <id>" for each, which calls job_due';
COMMENT ON INDEX queue_data.schedule_id_idx IS 'schedules by number';
COMMENT ON INDEX queue_data.schedule_name_idx IS 'schedules by project and name';

--
-- Counters
--
-- What became of each queue's messages.  Shared memory or sessions have the
-- latest counts, which are not written yet.
CREATE TABLE queue_data.job_counter (
    queue_id      integer NOT NULL,
    claimed       bigint NOT NULL,
    completed     bigint NOT NULL,
    retried       bigint NOT NULL,
    abandoned     bigint NOT NULL,
    duplicates    bigint NOT NULL,
    expired       bigint NOT NULL,
    pushed        bigint NOT NULL,
    since         timestamptz NOT NULL,
    last_error_at timestamptz NOT NULL,
    last_error    bytea
        CONSTRAINT job_counter_error CHECK (
            pg_catalog.octet_length(last_error) OPERATOR(pg_catalog.=) 1000)
) USING heap;
ALTER TABLE queue_data.job_counter ALTER COLUMN last_error SET STORAGE PLAIN;
CREATE UNIQUE INDEX job_counter_idx ON queue_data.job_counter (queue_id);
ALTER TABLE queue_data.job_counter REPLICA IDENTITY USING INDEX job_counter_idx;
COMMENT ON TABLE queue_data.job_counter IS
'counters of each queue since that time, and its last error, padded with zero bytes; job_stats adds what is not written yet';
COMMENT ON INDEX queue_data.job_counter_idx IS 'counters by queue';

--
-- Several servers
--
-- The number of this server, in a sharded database.  It is part of all ids, so
-- that those of queues and messages are unique across servers.
CREATE TABLE queue_data.server (
    number smallint NOT NULL,
    CONSTRAINT server_number CHECK (number OPERATOR(pg_catalog.>=) 1
                                    AND number OPERATOR(pg_catalog.<=) 256)
) USING heap;
ALTER TABLE queue_data.server REPLICA IDENTITY FULL;
COMMENT ON TABLE queue_data.server IS
'the number of this server among several, in one row, or none';

-- Which shards are in this database, and which server has the others.  There
-- are 256 rows, or none in a database that is not sharded.  Dumped: a restored
-- database has the same shards.
CREATE TABLE queue_data.shard (
    shard smallint NOT NULL,
    state text COLLATE "C" NOT NULL,
    peer  text COLLATE "C" NOT NULL,
    CONSTRAINT shard_number CHECK (shard OPERATOR(pg_catalog.>=) 0
                                   AND shard OPERATOR(pg_catalog.<=) 255),
    CONSTRAINT shard_state CHECK (state OPERATOR(pg_catalog.=) 'local'
                                  OR state OPERATOR(pg_catalog.=) 'remote')
) USING heap;
CREATE UNIQUE INDEX shard_idx ON queue_data.shard (shard);
ALTER TABLE queue_data.shard REPLICA IDENTITY USING INDEX shard_idx;
COMMENT ON TABLE queue_data.shard IS
'the map of the 256 shards of a sharded database: state is local or remote; peer is the name of the server that has the shard';
COMMENT ON INDEX queue_data.shard_idx IS 'shards by number';

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
COMMENT ON TABLE queue_data.shard_move IS
'the moves of shards: number counts those of a shard, and token is in the name of the transaction that queue_shard_move prepares at the target';
COMMENT ON INDEX queue_data.shard_move_idx IS 'moves by shard and token';

-- ---------------------------------------------------------------------------
-- Views of messages and roles
-- ---------------------------------------------------------------------------

-- All messages and their states, for people.  Programs use the functions.
-- expires_at is computed as in message_row.c; 1209600 is QUEUE_LIFETIME_MAX.  A
-- delayed message does not expire; it lives for at least a minute after it can be
-- claimed.
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
        CREATE VIEW queue_data.message
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
               COALESCE(u.claim_count, 0) OPERATOR(pg_catalog.-)
               COALESCE((u.attributes OPERATOR(pg_catalog.->>)
                         ''given_back'')::integer, 0),
               u.due_at, u.client_id,
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
COMMENT ON VIEW queue_data.message IS
'every message and its state: free, claimed, canceled, delayed or expired';

-- The roles to which queues refer.  DROP ROLE is refused for them: each is
-- recorded in pg_shdepend as if it had a privilege on the first column of
-- this view.
CREATE VIEW queue_data.queue_roles AS
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

-- ---------------------------------------------------------------------------
-- Functions for users
-- ---------------------------------------------------------------------------

-- Each is documented above its C function.  The C code checks privileges on the
-- queue; EXECUTE only excludes roles that are members of none of the three.
CREATE TYPE queue_message AS (
    id          bigint,
    queue       text,
    body        jsonb,
    ttl         integer,
    age         integer,
    claim_id    text,
    claim_count integer,
    priority    integer,
    created_at  timestamptz,
    group_key   text,
    headers     jsonb
);
COMMENT ON TYPE queue_message IS
'a message: ttl is its whole lifetime and age the time since it was pushed, in seconds; claim_id is NULL when no live claim holds it; group_key and headers are those of the push';

--
-- Queues
--
CREATE FUNCTION queue_create(q text, metadata jsonb DEFAULT '{}')
RETURNS boolean
AS 'MODULE_PATHNAME', 'sql_queue_create'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION queue_create(text, jsonb) IS
'creates queue q with this metadata, and the dead letter queue that the metadata requires; true: created, false: it exists and is unchanged. Errors: 22023 name or reserved key, 54000 metadata over 65536 bytes, 42501 not a member of queue_producer or queue_admin, or the dead letter queue does not allow the push. Source: Zaqar, create queue';

CREATE FUNCTION queue_set_metadata(q text, metadata jsonb)
RETURNS jsonb
AS 'MODULE_PATHNAME', 'sql_queue_set_metadata'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION queue_set_metadata(text, jsonb) IS
'replaces the metadata of queue q and returns it. Errors: 42704 unknown queue, 22023 reserved key, 54000 over 65536 bytes, 42501 no admin privilege, or the dead letter queue does not allow the push. Source: Zaqar, set queue metadata';

CREATE FUNCTION queue_update(q text, patch jsonb)
RETURNS jsonb
AS 'MODULE_PATHNAME', 'sql_queue_update'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION queue_update(text, jsonb) IS
'merges patch into the metadata of queue q (a null removes a key) and returns the whole. Errors: as queue_set_metadata. Source: Zaqar, update queue';

CREATE FUNCTION queue_exists(q text)
RETURNS boolean
AS 'MODULE_PATHNAME', 'sql_queue_exists'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION queue_exists(text) IS
'true when queue q exists in the session''s project. Source: Zaqar, check queue existence';

CREATE FUNCTION queue_drop(q text)
RETURNS boolean
AS 'MODULE_PATHNAME', 'sql_queue_drop'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION queue_drop(text) IS
'drops queue q and its messages; false: it did not exist. Waits for transactions that push or claim; honors lock_timeout. Errors: 42501 no admin privilege, 2BP01 another queue sends its dead letters there. Source: Zaqar, delete queue';

CREATE FUNCTION queue_get(q text)
RETURNS TABLE (
    name text,
    metadata jsonb,
    created_at timestamptz,
    paused boolean)
AS 'MODULE_PATHNAME', 'sql_queue_get'
LANGUAGE C VOLATILE PARALLEL UNSAFE ROWS 1;
COMMENT ON FUNCTION queue_get(text) IS
'one row that describes queue q; no row when it is unknown. Source: Zaqar, get queue metadata';

CREATE FUNCTION queue_list(
    marker text DEFAULT NULL,
    "limit" integer DEFAULT 10,
    pattern text DEFAULT NULL)
RETURNS TABLE (
    name text,
    metadata jsonb,
    created_at timestamptz,
    paused boolean)
AS 'MODULE_PATHNAME', 'sql_queue_list'
LANGUAGE C VOLATILE PARALLEL UNSAFE ROWS 10;
COMMENT ON FUNCTION queue_list(text, integer, text) IS
'queues of the session''s project by name, after the marker, at most limit (1 to 10000) of them, names matching the regular expression pattern. Errors: 22023/22004 limit, 2201B pattern. Source: Zaqar, list queues';

CREATE FUNCTION queue_purge(q text)
RETURNS bigint
AS 'MODULE_PATHNAME', 'sql_queue_purge'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION queue_purge(text) IS
'removes all messages of queue q, claimed and delayed ones too, and returns their number. Waits for transactions that push or claim; honors lock_timeout. Errors: 42501 no admin privilege. Source: Zaqar, purge queue';

CREATE FUNCTION queue_pause(q text)
RETURNS boolean
AS 'MODULE_PATHNAME', 'sql_queue_pause'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION queue_pause(text) IS
'pauses queue q: it accepts pushes but allows no claims; true: now paused, false: it was paused already. Errors: 42704 unknown queue, 42501 no admin privilege';

CREATE FUNCTION queue_resume(q text)
RETURNS boolean
AS 'MODULE_PATHNAME', 'sql_queue_resume'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION queue_resume(text) IS
'ends the pause of queue q; true: now running, false: it was not paused. Errors: 42704 unknown queue, 42501 no admin privilege';

CREATE FUNCTION queue_is_empty(q text)
RETURNS boolean
AS 'MODULE_PATHNAME', 'sql_queue_is_empty'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION queue_is_empty(text) IS
'whether a claim of queue q would find nothing now; also true for an unknown or a paused queue. Errors: 22023/22004 argument, 42501. Source: MediaWiki, JobQueue::isEmpty';

CREATE FUNCTION queue_stats(q text)
RETURNS TABLE (
    free bigint,
    claimed bigint,
    delayed bigint,
    total bigint,
    oldest_id bigint,
    oldest_age integer,
    oldest_created timestamptz,
    newest_id bigint,
    newest_age integer,
    newest_created timestamptz)
AS 'MODULE_PATHNAME', 'sql_queue_stats'
LANGUAGE C VOLATILE PARALLEL UNSAFE ROWS 1;
COMMENT ON FUNCTION queue_stats(text) IS
'exact counts of the messages of queue q, and its oldest and newest one (ages in seconds); an unknown queue counts 0. Takes time in proportion to the queue. Errors: 22023/22004 name, 42501 no privilege on the queue. Source: Zaqar, get queue stats';

CREATE FUNCTION queue_groups(
    q text,
    marker text DEFAULT NULL,
    "limit" integer DEFAULT 10)
RETURNS TABLE (
    group_key text,
    free bigint,
    claimed bigint,
    delayed bigint,
    oldest_age integer)
AS 'MODULE_PATHNAME', 'sql_queue_groups'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION queue_groups(text, text, integer) IS
'the groups of queue q that have messages, by key, after marker, at most limit (1 to 10000): exact counts, and the age in seconds of the message with the lowest id; messages without a key are the first group, with a NULL key (the marker '''' begins after it); reads every message of the queue. Errors: 22023/22004 name or limit, 42501 no right to claim';

CREATE FUNCTION queue_depth(q text DEFAULT NULL)
RETURNS TABLE (
    queue text, free bigint, claimed bigint, delayed bigint,
    dead_letters bigint, oldest_age integer, paused boolean,
    last_error text, last_error_at timestamptz)
AS 'MODULE_PATHNAME', 'sql_queue_depth'
LANGUAGE C VOLATILE PARALLEL UNSAFE ROWS 100;
COMMENT ON FUNCTION queue_depth(text) IS
'a row for queue q, or (NULL) for each queue of the session''s project that the caller may claim from, by name: its messages and those in its dead letter queue, counted as they change and at most two seconds late, NULL while they are not known; the age in seconds of the oldest free one, NULL if none is found; whether it is paused; and the last error that was reported. Errors: 22023 argument, 42501 no right to claim from q';

CREATE FUNCTION queue_grant(q text, role regrole, privilege text)
RETURNS void
AS 'MODULE_PATHNAME', 'sql_queue_grant'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION queue_grant(text, regrole, text) IS
'grants role a privilege on queue q: ''push'' or ''claim'', which roles that were not named then lose, or ''admin'', all that the owner can do. Errors: 42704 unknown queue or role, 22023 privilege, 42501 no admin privilege';

CREATE FUNCTION queue_revoke(q text, role regrole, privilege text)
RETURNS void
AS 'MODULE_PATHNAME', 'sql_queue_revoke'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION queue_revoke(text, regrole, text) IS
'revokes from role the privilege ''push'', ''claim'' or ''admin'' on queue q that queue_grant granted; when no role is left, only the owner and the roles with admin have the privilege. Errors: as queue_grant; 55000 the privilege was granted to no role by name';

CREATE FUNCTION queue_set_owner(q text, role regrole)
RETURNS void
AS 'MODULE_PATHNAME', 'sql_queue_set_owner'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION queue_set_owner(text, regrole) IS
'changes the owner of queue q, and of the dead letter queues that were created for it. Errors: 42704 unknown queue or role, 42501 neither a superuser nor an owner that can SET ROLE to the new one, 55000 the queue was created for the dead letters of another one, whose owner is to be changed';

--
-- Pushing
--
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
    after_success boolean DEFAULT false,
    at timestamp with time zone DEFAULT NULL,
    dedup text DEFAULT 'waiting',
    dedup_for integer DEFAULT NULL)
RETURNS bigint
AS 'MODULE_PATHNAME', 'sql_queue_push'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION queue_push(text, jsonb, integer, integer, integer, text, text, jsonb, bigint, bigint, boolean, timestamp with time zone, text, integer) IS
'pushes one message that lives ttl seconds and is handed out after delay seconds, priority 0 to 9 (higher first); returns its id, NULL when an unclaimed message with this dedup_key waits; with dedup unfinished also when a claimed one has it; with dedup replace, a message that waits gets body, headers and due time instead, which needs claim on the queue, and its id is returned. dedup_for: 1 to 2592000 seconds; NULL also when a push with dedup_for had the key in the last so many, whatever became of its message; that one counts for as long as it said, and an hour at least. at: when it is due, instead of delay. group_key: 1 to 256 bytes, the message''s group. headers: returned with the message, counted toward the size of its body. batch: the message is a member of it. after: the message waits until that batch has finished; with after_success it becomes a dead letter if a member failed. Errors: 22023/22004 argument, 54000 body too large, 42704 unknown queue with queue.auto_create off, unknown batch, 55000 the batch has finished, 42501. Source: Zaqar, post message; MediaWiki, JobQueue::push';

CREATE FUNCTION queue_push_batch(
    q text,
    bodies jsonb[],
    ttl integer DEFAULT NULL,
    delay integer DEFAULT NULL,
    priority integer DEFAULT 0,
    group_keys text[] DEFAULT NULL,
    batch bigint DEFAULT NULL,
    after bigint DEFAULT NULL,
    after_success boolean DEFAULT false,
    at timestamp with time zone DEFAULT NULL)
RETURNS bigint[]
AS 'MODULE_PATHNAME', 'sql_queue_push_batch'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION queue_push_batch(text, jsonb[], integer, integer, integer, text[], bigint, bigint, boolean, timestamp with time zone) IS
'pushes one message for each body, all or nothing, and returns their ids in that order; group_keys has one element for each. Arguments and errors: as queue_push; at most queue.max_push_count bodies. Source: MediaWiki, JobQueue::batchPush';

CREATE FUNCTION queue_post(q text, messages jsonb)
RETURNS bigint[]
AS 'MODULE_PATHNAME', 'sql_queue_post'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION queue_post(text, jsonb) IS
'pushes an array of {"body", "ttl", "delay", "priority", "dedup_key", "group_key", "headers", "batch", "after", "after_success", "at", "dedup", "dedup_for"} (only body is required), all or nothing, and returns the ids in that order, NULL where one was dropped as a duplicate. If q is NULL, each object has a field "queue", too. Errors: as queue_push; 22004 a message without a queue. Source: Zaqar, post messages; MediaWiki, JobQueueGroup::push';

CREATE FUNCTION queue_push_lazy(
    q text,
    body jsonb,
    ttl integer DEFAULT NULL,
    delay integer DEFAULT NULL,
    priority integer DEFAULT 0,
    dedup_key text DEFAULT NULL,
    group_key text DEFAULT NULL,
    headers jsonb DEFAULT NULL,
    at timestamp with time zone DEFAULT NULL,
    dedup text DEFAULT 'waiting',
    dedup_for integer DEFAULT NULL)
RETURNS void
AS 'MODULE_PATHNAME', 'sql_queue_push_lazy'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION queue_push_lazy(text, jsonb, integer, integer, integer, text, text, jsonb, timestamp with time zone, text, integer) IS
'pushes one message when the transaction commits, after its own work; a push that fails then is logged as a warning and does not fail the transaction. Arguments: as queue_push. Errors, at once: 22023/22004 argument, 54000 body too large. Source: MediaWiki, JobQueueGroup::lazyPush';

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
    after_success boolean DEFAULT false,
    at timestamp with time zone DEFAULT NULL,
    dedup text DEFAULT 'waiting',
    dedup_for integer DEFAULT NULL)
RETURNS bigint
AS 'MODULE_PATHNAME', 'sql_queue_push_once'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION queue_push_once(text, text, bigint, jsonb, integer, integer, integer, text, text, jsonb, bigint, bigint, boolean, timestamp with time zone, text, integer) IS
'pushes one message, unless a call with this queue, origin (1 to 256 bytes) and origin_id did so in the last 28 days, and returns what that call has returned: the id, NULL when it was dropped as a duplicate. A call that is in progress is waited for. Other arguments and errors: as queue_push';

CREATE FUNCTION queue_dedup_key(body jsonb, ignore text[] DEFAULT '{}')
RETURNS text
AS 'MODULE_PATHNAME', 'sql_queue_dedup_key'
LANGUAGE C IMMUTABLE PARALLEL SAFE;
COMMENT ON FUNCTION queue_dedup_key(jsonb, text[]) IS
'a digest of body, to be used as dedup_key: the same for all bodies that are equal as jsonb. Keys of body that begin with rootJob, and those in ignore, are left out. Errors: 22004 argument. Source: MediaWiki, Job::getDeduplicationInfo';

CREATE FUNCTION job_root(q text, signature text, at timestamp with time zone DEFAULT NULL)
RETURNS jsonb
AS 'MODULE_PATHNAME', 'sql_job_root'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION job_root(text, text, timestamp with time zone) IS
'registers a new root job and returns {"rootJobSignature", "rootJobTimestamp"} for the bodies of its leaves; once this transaction has committed, leaves of earlier roots with that signature are dropped as duplicates instead of being handed out. at: the time that the root job has itself, which is kept as it is; equal times are one root, and a time before that of the last root changes nothing. Errors: 22023/22004 argument, 42704 unknown queue with queue.auto_create off, 42501 no right to push. Source: MediaWiki, Job::newRootJobParams';

--
-- Looking at messages, and deleting them
--
CREATE FUNCTION queue_messages(
    q text,
    marker bigint DEFAULT NULL,
    "limit" integer DEFAULT 10,
    echo boolean DEFAULT false,
    include_claimed boolean DEFAULT false,
    include_delayed boolean DEFAULT false)
RETURNS SETOF queue_message
AS 'MODULE_PATHNAME', 'sql_queue_messages'
LANGUAGE C VOLATILE PARALLEL UNSAFE ROWS 10;
COMMENT ON FUNCTION queue_messages(text, bigint, integer, boolean, boolean, boolean) IS
'messages of queue q by id, after the marker, at most limit (1 to 10000) of them; without echo not those pushed under the session''s own queue.client_id. Errors: 22023/22004 argument, 42501. Source: Zaqar, list messages';

CREATE FUNCTION queue_browse(
    q text,
    state text DEFAULT NULL,
    filter jsonb DEFAULT NULL,
    marker bigint DEFAULT NULL,
    "limit" integer DEFAULT 100)
RETURNS TABLE (
    id bigint, state text, body jsonb, headers jsonb, priority integer,
    group_key text, dedup_key text, batch bigint, after bigint,
    claim_count integer, created_at timestamptz, due_at timestamptz,
    claimed_until timestamptz, expires_at timestamptz, last_error text)
AS 'MODULE_PATHNAME', 'sql_queue_browse'
LANGUAGE C VOLATILE PARALLEL UNSAFE ROWS 100;
COMMENT ON FUNCTION queue_browse(text, text, jsonb, bigint, integer) IS
'messages of queue q by id, after marker, at most limit (1 to 10000): those that are free, claimed, delayed, waiting (for a batch) or canceled (while a claim holds them), as state says (NULL: any), and whose bodies contain filter. dedup_key: its digest. due_at: of a delayed one; expires_at: if it stays as it is. One that waits has no times. A call reads at most 10,000 messages; if there are more, the last row has only the id to continue from, as marker. Errors: 22023/22004 argument, 42501 no right to claim';

CREATE FUNCTION message_get(q text, id bigint)
RETURNS SETOF queue_message
AS 'MODULE_PATHNAME', 'sql_message_get'
LANGUAGE C VOLATILE PARALLEL UNSAFE ROWS 1;
COMMENT ON FUNCTION message_get(text, bigint) IS
'the message with this id; no row when there is none. Errors: 22023/22004 argument, 42501. Source: Zaqar, get a specific message';

CREATE FUNCTION messages_get(q text, ids bigint[])
RETURNS SETOF queue_message
AS 'MODULE_PATHNAME', 'sql_messages_get'
LANGUAGE C VOLATILE PARALLEL UNSAFE ROWS 10;
COMMENT ON FUNCTION messages_get(text, bigint[]) IS
'the messages with these ids that exist, in the order requested. Errors: 22004 ids or one of them is NULL, 22023 an array of more than one dimension, 42501. Source: Zaqar, get a set of messages by id';

CREATE FUNCTION message_delete(q text, id bigint, claim_id text DEFAULT NULL)
RETURNS boolean
AS 'MODULE_PATHNAME', 'sql_message_delete'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION message_delete(text, bigint, text) IS
'deletes one message, with claim_id only as part of that claim; false: there is no such message. Errors: QU001 the claim is not live, QU002 the message is not in that claim, QU003 the message is claimed and no claim_id was given, QU004 it was canceled, 22004 id is NULL, 42501. Source: Zaqar, delete a specific message';

CREATE FUNCTION messages_delete(
    q text,
    ids bigint[],
    claim_id text DEFAULT NULL)
RETURNS bigint
AS 'MODULE_PATHNAME', 'sql_messages_delete'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION messages_delete(text, bigint[], text) IS
'deletes these messages, all or nothing, and returns the number of messages deleted; a repeated id counts once. Errors: as message_delete; 22004 also for a NULL among the ids, 22023 an array of more than one dimension. Source: Zaqar, delete a set of messages by id';

CREATE FUNCTION queue_pop(q text, "limit" integer DEFAULT 1)
RETURNS SETOF queue_message
AS 'MODULE_PATHNAME', 'sql_queue_pop'
LANGUAGE C VOLATILE PARALLEL UNSAFE ROWS 10;
COMMENT ON FUNCTION queue_pop(text, integer) IS
'deletes and returns up to limit (1 to queue.max_claim_limit) free messages, highest priority first, oldest first; delivery is at most once. Errors: 22023/22004 argument, 42501. Source: Zaqar, pop messages';

CREATE FUNCTION messages_run_now(q text, ids bigint[])
RETURNS bigint
AS 'MODULE_PATHNAME', 'sql_messages_run_now'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION messages_run_now(text, bigint[]) IS
'makes these messages free, those that are delayed, and returns how many there were. Errors: 22023/22004 argument, 42501 no right to claim. Source: Sidekiq, add to queue; Oban, retry now';

CREATE FUNCTION message_cancel(
    q text,
    id bigint,
    reason text DEFAULT NULL)
RETURNS text
AS 'MODULE_PATHNAME', 'sql_message_cancel'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION message_cancel(text, bigint, text) IS
'cancels one message and stores the reason as its last error; canceled: no claim held it, and it is removed; pending: it is removed when its claim ends, nothing that completes, retries or buries it succeeds any more (QU004), and a handler that works on it is interrupted after the commit; NULL: there is no such message. Errors: 22004 id, 42501 no right to claim. Source: Procrastinate and Oban, canceling a job';

CREATE FUNCTION messages_cancel(q text, ids bigint[], reason text DEFAULT NULL)
RETURNS bigint
AS 'MODULE_PATHNAME', 'sql_messages_cancel'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION messages_cancel(text, bigint[], text) IS
'cancels these messages as message_cancel does, all with this reason, and returns how many of them there were; a repeated id counts once. Errors: 22004 ids or one of them, 22023 more than one dimension, 42501 no right to claim. Source: River, canceling many jobs';

CREATE FUNCTION queue_cancel_where(q text, filter jsonb, reason text DEFAULT NULL)
RETURNS bigint
AS 'MODULE_PATHNAME', 'sql_queue_cancel_where'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION queue_cancel_where(text, jsonb, text) IS
'cancels the messages whose bodies contain the filter (the operator @>), as message_cancel does, all with this reason, and returns how many there were; it reads the whole queue, and locks nothing before it has. Errors: 22004 filter, 42501 no right to claim. Source: River, canceling many jobs';

--
-- Claims
--
CREATE FUNCTION queue_claim(
    q text,
    ttl integer DEFAULT 300,
    grace integer DEFAULT 60,
    "limit" integer DEFAULT NULL)
RETURNS SETOF queue_message
AS 'MODULE_PATHNAME', 'sql_queue_claim'
LANGUAGE C VOLATILE PARALLEL UNSAFE ROWS 10;
COMMENT ON FUNCTION queue_claim(text, integer, integer, integer) IS
'claims up to limit (NULL: queue.default_claim_limit) free messages, highest priority first, oldest first, for ttl seconds, and extends their lifetime to at least grace seconds beyond that; all of them have one claim_id. No row: nothing is free, or the queue is unknown or paused. Errors: 22023/22004 argument, 42501. Source: Zaqar and Cloud Queues, claim messages';

CREATE FUNCTION queue_claim_any(
    queues text[] DEFAULT NULL,
    ttl integer DEFAULT 300,
    grace integer DEFAULT 60,
    "limit" integer DEFAULT NULL)
RETURNS SETOF queue_message
AS 'MODULE_PATHNAME', 'sql_queue_claim_any'
LANGUAGE C VOLATILE PARALLEL UNSAFE ROWS 10;
COMMENT ON FUNCTION queue_claim_any(text[], integer, integer, integer) IS
'claims as queue_claim does from the first of these queues (NULL: all of the session''s project that it may claim from) that has something free; each call starts with another queue. Errors: as queue_claim. Source: MediaWiki, JobQueueGroup::pop';

CREATE FUNCTION claim_next(
    q text,
    claim_id text,
    ttl integer DEFAULT 300,
    grace integer DEFAULT 60,
    "limit" integer DEFAULT NULL)
RETURNS SETOF queue_message
AS 'MODULE_PATHNAME', 'sql_claim_next'
LANGUAGE C VOLATILE PARALLEL UNSAFE ROWS 10;
COMMENT ON FUNCTION claim_next(text, text, integer, integer, integer) IS
'deletes the remaining messages of a claim (NULL: there is none yet) and claims the next messages as queue_claim does, in one call. Errors: QU001 the claim is not live, QU004 a message of it was canceled; as queue_claim';

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
'a worker''s cycle in one call, all or nothing: of the claim (NULL: none yet), deletes the messages in done (NULL: all that are not in failed), retries those in failed ([{"id", "error", "delay", "bury"}, ...], only id, a number or a string, is required; true in bury makes it a dead letter) and gives the rest back; pushes the messages in push (as queue_post; without a field queue, to q); and claims the next as queue_claim; a limit of 0 claims nothing. Errors: QU001 the claim is not live, QU002 a message is not in it, QU004 one was canceled, 22023/22004 argument, among them a message that is named twice, 42501, those of queue_push, and with bury of message_bury. Source: claim_next';

CREATE FUNCTION claim_get(q text, claim_id text)
RETURNS TABLE (
    claim_id text,
    ttl integer,
    age integer,
    grace integer,
    expires_at timestamptz,
    message_count integer)
AS 'MODULE_PATHNAME', 'sql_claim_get'
LANGUAGE C VOLATILE PARALLEL UNSAFE ROWS 1;
COMMENT ON FUNCTION claim_get(text, text) IS
'describes a live claim in one row: for how many seconds it was claimed or renewed, how many have passed since, its grace in seconds, when it ends, how many messages it has, without those that were canceled. No row: the id is NULL, malformed, unknown or not live. Errors: 42501. Source: Zaqar, query claim';

CREATE FUNCTION claim_messages(q text, claim_id text)
RETURNS SETOF queue_message
AS 'MODULE_PATHNAME', 'sql_claim_messages'
LANGUAGE C VOLATILE PARALLEL UNSAFE ROWS 10;
COMMENT ON FUNCTION claim_messages(text, text) IS
'the messages that are still in a live claim, without those that were canceled, highest priority first, oldest first. No row: the id is NULL, malformed, unknown or not live. Errors: 42501. Source: Zaqar, query claim';

CREATE FUNCTION claim_renew(
    q text,
    claim_id text,
    ttl integer,
    grace integer DEFAULT NULL)
RETURNS timestamptz
AS 'MODULE_PATHNAME', 'sql_claim_renew'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION claim_renew(text, text, integer, integer) IS
'restarts a claim: it ends ttl seconds from now, and the lifetime of its messages is extended to at least grace seconds (NULL: as before) beyond that; returns when it ends, NULL when there is no such live claim, or all that it has was canceled. Errors: 22023/22004 argument, 42501. Source: Zaqar, update (renew) claim';

CREATE FUNCTION claim_release(q text, claim_id text, delay integer DEFAULT 0, failed boolean DEFAULT false)
RETURNS bigint
AS 'MODULE_PATHNAME', 'sql_claim_release'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION claim_release(text, text, integer, boolean) IS
'gives the remaining messages of a claim back, free after delay seconds, and removes those that were canceled. The claim does not count as an attempt at them, unless failed is true: then those that have had as many attempts as the queue allows become dead letters. Returns the number of messages without those that were canceled, 0 when there is no such live claim. Errors: 22023/22004 argument, 42501. Source: Zaqar, release claim';

CREATE FUNCTION claim_complete(q text, claim_id text)
RETURNS bigint
AS 'MODULE_PATHNAME', 'sql_claim_complete'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION claim_complete(text, text) IS
'deletes the remaining messages of a claim and returns their number. Errors: QU001 the claim is not live, QU004 a message of it was canceled, 42501. Source: MediaWiki, JobQueue::ack, for a batch';

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

CREATE FUNCTION message_retry(
    q text,
    id bigint,
    claim_id text,
    error text DEFAULT NULL,
    delay integer DEFAULT NULL)
RETURNS timestamptz
AS 'MODULE_PATHNAME', 'sql_message_retry'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION message_retry(text, bigint, text, text, integer) IS
'gives one claimed message back, to be handed out after delay seconds (NULL: 1 s, doubled by each further attempt up to queue.max_retry_delay, unless _retry_delay or _retry_backoff of the queue say otherwise), extends its lifetime as a claim does, and stores error with it; returns when it is due, NULL when it was claimed _max_claim_count times and became a dead letter. Errors: QU001 the claim is not live, QU002 the message is not in that claim, QU004 it was canceled, 22023/22004 argument, 42501. Source: MediaWiki, retries of a job';

CREATE FUNCTION message_bury(q text, id bigint, claim_id text, error text)
RETURNS void
AS 'MODULE_PATHNAME', 'sql_message_bury'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION message_bury(text, bigint, text, text) IS
'makes one claimed message a dead letter at once, however often it was claimed, and stores error with it (NULL: keeps the last one); a queue without a dead letter queue gets the one that it would have by default; a duplicate is dropped instead. Errors: QU001 the claim is not live, QU002 the message is not in that claim, QU004 it was canceled, 22023/22004 argument, or no room for the name of the dead letter queue, 42501 no right to claim, or the dead letter queue belongs to another role or does not accept it, 55P03 the dead letter queue is locked. Source: Graphile Worker, permanent failures';

--
-- Dead letters
--
CREATE FUNCTION queue_dead_letters(q text, "limit" integer DEFAULT 10, marker bigint DEFAULT NULL)
RETURNS TABLE (
    id bigint, body jsonb, origin_queue text, origin_id bigint, reason text,
    last_error text, claim_count integer, died_at timestamptz)
AS 'MODULE_PATHNAME', 'sql_queue_dead_letters'
LANGUAGE C VOLATILE PARALLEL UNSAFE ROWS 10;
COMMENT ON FUNCTION queue_dead_letters(text, integer, bigint) IS
'dead letters in queue q, oldest first, after marker (an id), at most limit (1 to 10000) of them: where each came from and why. A NOTICE names the queue that has those of q itself, if q has none. Errors: 22023/22004 argument, 42501. Source: Zaqar, dead letter queue';

CREATE FUNCTION queue_redrive(
    q text,
    target text DEFAULT NULL,
    "limit" integer DEFAULT NULL,
    ids bigint[] DEFAULT NULL)
RETURNS bigint
AS 'MODULE_PATHNAME', 'sql_queue_redrive'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION queue_redrive(text, text, integer, bigint[]) IS
'moves up to limit (NULL: all) dead letters of queue q, oldest first, or those with these ids in that order, back to the queues that they came from or to target, as new messages with claim_count 0; returns their number. Passes over those whose origin is gone, and a NOTICE says how many: it was dropped, and queue.auto_create is off, or another role has created a queue of that name. Errors: 22023/22004 argument, 42704 unknown target, 42501 no right to claim from q or to push to where they are sent. Source: Amazon SQS, redrive';

CREATE FUNCTION messages_bury(q text, ids bigint[], error text)
RETURNS bigint
AS 'MODULE_PATHNAME', 'sql_messages_bury'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION messages_bury(text, bigint[], text) IS
'makes these messages dead letters, those that are free or delayed, and returns how many there were; error is stored with them, NULL keeps the last one. Errors: 22023/22004 argument, 42501 no right to claim, or the dead letter queue does not accept them, 55P03 it is locked. Source: Sidekiq, kill';

--
-- Batches
--
CREATE FUNCTION batch_create(
    name text DEFAULT NULL,
    keep_open boolean DEFAULT false,
    q text DEFAULT NULL)
RETURNS bigint
AS 'MODULE_PATHNAME', 'sql_batch_create'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION batch_create(text, boolean, text) IS
'makes a batch of the current role and returns its id, higher than that of any batch before. It finishes when no member is left that is not finished: with keep_open not before batch_close, or 14 days. name: up to 256 bytes, for people. q: only in a sharded database, and required there: a queue of the shard that the batch belongs to. Errors: 22023/22004 argument. Source: Sidekiq Pro, Batch';

CREATE FUNCTION batch_close(batch bigint)
RETURNS boolean
AS 'MODULE_PATHNAME', 'sql_batch_close'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION batch_close(bigint) IS
'lets a batch that was made with keep_open finish; true: done, false: it could finish before. Errors: 42704 no such batch, 42501 not its owner, 22004 argument. Source: Oban Pro, Batch';

CREATE FUNCTION batch_cancel(batch bigint)
RETURNS bigint
AS 'MODULE_PATHNAME', 'sql_batch_cancel'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION batch_cancel(bigint) IS
'cancels the members of the batch that are not finished now, as message_cancel does, whatever the privileges on their queues, and returns how many there were; they have failed. Errors: 42704 no such batch, 42501 not its owner, 22004 argument. Source: Sidekiq Pro, Batch';

CREATE FUNCTION batch_status(batch bigint)
RETURNS TABLE (
    name text, members bigint, unfinished bigint, completed bigint,
    failed bigint, waiting bigint, created_at timestamptz,
    closed_at timestamptz, finished_at timestamptz)
AS 'MODULE_PATHNAME', 'sql_batch_status'
LANGUAGE C VOLATILE PARALLEL UNSAFE ROWS 1;
COMMENT ON FUNCTION batch_status(bigint) IS
'the state of a batch in one row, exact as of now: how many members it has, how many of them are not finished, were completed (popped, deleted and dropped as duplicates included), and have failed (dead letters, expired, purged), and how many messages wait for it; closed_at: since when it can finish. Errors: 42704 no such batch, 42501 not its owner, 22004 argument. Source: Sidekiq Pro, Batch::Status';

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

--
-- Topics
--
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

CREATE FUNCTION topic_unbind(pattern text, q text)
RETURNS boolean
AS 'MODULE_PATHNAME', 'sql_topic_unbind'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION topic_unbind(text, text) IS
'removes the binding of queue q to the pattern; true: removed, false: there was none. Errors: 22023/22004 argument, 42501 not a member of queue_admin. Source: AMQP, queue.unbind';

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

CREATE FUNCTION topic_publish(
    topic text,
    body jsonb,
    headers jsonb DEFAULT NULL,
    ttl integer DEFAULT NULL,
    delay integer DEFAULT NULL,
    priority integer DEFAULT 0,
    group_key text DEFAULT NULL,
    dedup_key text DEFAULT NULL,
    at timestamp with time zone DEFAULT NULL)
RETURNS bigint
AS 'MODULE_PATHNAME', 'sql_topic_publish'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION topic_publish(text, jsonb, jsonb, integer, integer, integer, text, text, timestamp with time zone) IS
'pushes one message to each queue that is bound to the topic, whatever the caller''s privileges on the queue; returns how many have it now, also as a duplicate. Other arguments: as queue_push, for each queue. A queue that does not take the message (_max_messages_post_size, or it is being purged or dropped) is left out, and the server logs that. Errors: 22023/22004 argument, 54000 body too large, 42501 not a member of queue_producer. Source: AMQP, basic.publish';

--
-- Waiting
--
CREATE FUNCTION queue_channel(q text)
RETURNS text
AS 'MODULE_PATHNAME', 'sql_queue_channel'
LANGUAGE C STABLE PARALLEL RESTRICTED;
COMMENT ON FUNCTION queue_channel(text) IS
'the channel to LISTEN on for queue q of the session''s project: a notification with the queue''s name follows whenever it gets something to claim, where the library is preloaded. Errors: 22004 and 22023 name';

CREATE PROCEDURE queue_wait(q text, timeout_ms integer, INOUT ready boolean DEFAULT NULL)
AS 'MODULE_PATHNAME', 'sql_queue_wait'
LANGUAGE C;
COMMENT ON PROCEDURE queue_wait(text, integer, boolean) IS
'waits until queue q has something to claim, at most timeout_ms milliseconds (0 checks once); ready: whether it has. Errors: 22004 and 22023 arguments, 42501 no right to claim, 25006 read-only, 25001 unless timeout_ms is 0: called in a transaction block, a pipeline, a function, or a procedure with SECURITY DEFINER or SET. Source: Amazon SQS, long polling';

CREATE FUNCTION queue_ready()
RETURNS SETOF text
AS 'MODULE_PATHNAME', 'sql_queue_ready'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION queue_ready() IS
'the names of the queues of the session''s project that have something to claim. Source: MediaWiki, JobQueueAggregator';

CREATE FUNCTION queue_ready_in_projects()
RETURNS TABLE (project text, queue text)
AS 'MODULE_PATHNAME', 'sql_queue_ready_in_projects'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION queue_ready_in_projects() IS
'the queues of all projects that have something to claim, as far as the caller may claim from them. Source: MediaWiki, JobQueueAggregator';

--
-- Results and history
--
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

CREATE FUNCTION message_finished(q text, id bigint)
RETURNS TABLE (
    id bigint, queue text, group_key text, batch bigint, outcome text,
    pushed_at timestamptz, finished_at timestamptz, attempts integer,
    result jsonb, error text, body jsonb)
AS 'MODULE_PATHNAME', 'sql_message_finished'
LANGUAGE C VOLATILE PARALLEL UNSAFE ROWS 1;
COMMENT ON FUNCTION message_finished(text, bigint) IS
'what became of a message: its row of queue_finished; no row if it is not in the history. Errors: 22023/22004 argument, 42501 as queue_finished. Source: Oban, jobs that are kept';

CREATE FUNCTION message_result(q text, id bigint)
RETURNS jsonb
AS 'MODULE_PATHNAME', 'sql_message_result'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION message_result(text, bigint) IS
'the result with which a message was completed; NULL if it had none, or is not in the history. Errors: 22023/22004 argument, 42501 as queue_finished. Source: Celery, AsyncResult.result';

CREATE PROCEDURE queue_await(
    q text,
    id bigint,
    timeout_ms integer DEFAULT NULL,
    INOUT result jsonb DEFAULT NULL)
AS 'MODULE_PATHNAME', 'sql_queue_await'
LANGUAGE C;
COMMENT ON PROCEDURE queue_await(text, bigint, integer, jsonb) IS
'waits until a message of queue q is finished, at most timeout_ms milliseconds (NULL: without end, 0 looks once); result: {"outcome", "result", "error"} as in queue_finished, {"outcome": "unknown"} if neither the message nor its history is there, NULL after the timeout. Errors: 22023/22004 argument, 42501 as queue_finished, 25001 inside a transaction block unless timeout_ms is 0. Source: Celery, AsyncResult.get';

--
-- Jobs
--
CREATE FUNCTION job_handler(
    q text,
    handler regprocedure,
    concurrency integer DEFAULT 1,
    timeout integer DEFAULT NULL,
    rate real DEFAULT NULL,
    teardown regprocedure DEFAULT NULL)
RETURNS void
AS 'MODULE_PATHNAME', 'sql_job_handler'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION job_handler(text, regprocedure, integer, integer, real, regprocedure) IS
'binds queue q, which is created as by a push, to a function (queue_message) or (jsonb) that returns boolean, to be called for each message as the current role, at most concurrency at a time, for at most timeout seconds each (NULL: queue.max_handler_time, which bounds it), at most rate per second; teardown is called after each attempt; sets _max_claim_count 12 where the metadata has none; a NULL handler unbinds. Errors: 42704 unknown queue with queue.auto_create off, 42883 no such function, 22023/22004 argument, 42501 not the owner, or no privilege to execute the function. Source: MediaWiki, Job::run, Job::tearDown';

CREATE PROCEDURE job_run(
    queues text[] DEFAULT NULL,
    max_jobs integer DEFAULT NULL,
    max_time integer DEFAULT NULL,
    INOUT result jsonb DEFAULT NULL)
AS 'MODULE_PATHNAME', 'sql_job_run'
LANGUAGE C;
COMMENT ON PROCEDURE job_run(text[], integer, integer, jsonb) IS
'runs jobs of these queues (NULL: all that have a handler whose role the caller may act as), at most max_jobs, and starts none after max_time seconds; result: ok and failed (numbers of attempts), elapsed (seconds), reached (none-ready, job-limit or time-limit). Errors: 42704 unknown queue or no handler, 22023/22004 argument, 42501 may not act as the role, 25001 inside a transaction block, 55000 open cursors or advisory locks in a session of another role. Source: MediaWiki, JobRunner::run';

CREATE FUNCTION job_list(q text DEFAULT NULL)
RETURNS TABLE (
    queue text, handler text, state text, reason text, concurrency integer,
    running integer, message_id bigint, pid integer,
    running_since timestamp with time zone, progress jsonb)
AS 'MODULE_PATHNAME', 'sql_job_list'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION job_list(text) IS
'what the handler of queue q runs, or those of all queues of the project whose owner or admin the caller is: a row for each job that runs, or one with NULL from message_id on; state: idle, running, paused or stopped, which reason explains; concurrency: jobs that may run at once; running: that do; pid: of the process, to be canceled with pg_cancel_backend; running_since: of the attempt; progress: done, total and note of job_progress. Errors: 22023 name, 42501 neither owner nor admin of q. Source: MediaWiki, showJobs';

CREATE FUNCTION job_progress(
    done bigint, total bigint DEFAULT NULL, note text DEFAULT NULL)
RETURNS void
AS 'MODULE_PATHNAME', 'sql_job_progress'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION job_progress(bigint, bigint, text) IS
'for handlers: shows in job_list, at once and without a write, how much of the job is done, out of a total in the same unit (NULL: unknown), and a note of at most 255 bytes (more is cut off); without effect outside a handler. Errors: 22023/22004 done or total. Source: Celery, update_state; Sidekiq, at';

CREATE FUNCTION job_result(result jsonb)
RETURNS void
AS 'MODULE_PATHNAME', 'sql_job_result'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION job_result(jsonb) IS
'for handlers: the result of the job, which the history keeps if the attempt succeeds and the queue has _keep_finished; the last call counts. Errors: 55000 no handler runs, 54000 result too large, 22004 argument. Source: Celery, the result of a task';

CREATE FUNCTION job_stats(q text)
RETURNS TABLE (
    claimed bigint,
    completed bigint,
    retried bigint,
    abandoned bigint,
    duplicates bigint,
    expired bigint,
    since timestamptz,
    last_error text,
    last_error_at timestamptz)
AS 'MODULE_PATHNAME', 'sql_job_stats'
LANGUAGE C VOLATILE PARALLEL UNSAFE ROWS 1;
COMMENT ON FUNCTION job_stats(text) IS
'one row: what became of the messages of queue q since that time, and its last error (NULL without the right to claim); an unknown queue counts 0. Source: MediaWiki, counts of a job runner';

CREATE FUNCTION job_errors(q text, "limit" integer DEFAULT 100, marker timestamptz DEFAULT NULL)
RETURNS TABLE (message_id bigint, attempt integer, at timestamptz, error text)
AS 'MODULE_PATHNAME', 'sql_job_errors'
LANGUAGE C VOLATILE PARALLEL UNSAFE ROWS 100;
COMMENT ON FUNCTION job_errors(text, integer, timestamptz) IS
'the attempts at messages of queue q that have failed with an error in the last _keep_finished seconds, or without that in the last day, the latest first: those before marker (a time; NULL: all), at most limit (1 to 10000). Errors: 22023/22004 argument, 42501 neither owner nor admin of q. Source: Oban, the errors of a job';

--
-- Shards
--
CREATE FUNCTION queue_shard(q text, project text DEFAULT NULL)
RETURNS integer
AS 'MODULE_PATHNAME', 'sql_queue_shard'
LANGUAGE C STABLE PARALLEL SAFE;
COMMENT ON FUNCTION queue_shard(text, text) IS
'the shard of a queue of a project (NULL: the session''s), 0 to 255, whether or not the queue exists: the first byte of the SHA-256 of the name without all trailing ".dead", a space and the project, in UTF-8. Errors: 22004/22023 argument';

CREATE FUNCTION queue_shard_init(server integer, servers integer)
RETURNS void
AS 'MODULE_PATHNAME', 'sql_queue_shard_init'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION queue_shard_init(integer, integer) IS
'makes a database without queues one of several servers: the shards with shard % servers = server % servers are in it, or none if server is greater than servers. For superusers and the owner of the extension. Errors: 55000 the database is sharded or has queues, 22004/22023 argument, 42501 not the owner, 25006 read-only';

-- ---------------------------------------------------------------------------
-- Functions for routers and tools
-- ---------------------------------------------------------------------------

-- For queue_proxy: the roles that the router calls for have no privilege on
-- schema queue_data.
CREATE SCHEMA queue_router;
COMMENT ON SCHEMA queue_router IS
'functions of the extension queue for routers (queue_proxy) and for jobs of pg_cron';

CREATE FUNCTION queue_router.wait(q text, timeout_ms integer)
RETURNS boolean
AS 'MODULE_PATHNAME', 'sql_queue_wait_in_statement'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION queue_router.wait(text, integer) IS
'waits within the statement until queue q has something to claim, at most timeout_ms milliseconds; whether it has. For the extension queue_proxy; others call queue_wait. Errors: 22004 and 22023 arguments, 42501 no right to claim, 25006 read-only';

CREATE FUNCTION queue_router.call_settings(settings text[])
RETURNS boolean
AS 'MODULE_PATHNAME', 'sql_queue_call_settings'
LANGUAGE C VOLATILE STRICT PARALLEL UNSAFE;
COMMENT ON FUNCTION queue_router.call_settings(text[]) IS
'sets queue.project, queue.client_id, queue.durable_claims, lock_timeout and transaction_read_only to these values until the transaction ends; NULL leaves one as it is. For the extension queue_proxy. Errors: those of SET; 22023 another number of values';

--
-- Recurring jobs of earlier versions
--
-- pg_cron calls queue_router.due().  Unlike the schema of the functions for users, this
-- one belongs to the extension, and so cannot be renamed by another role.
CREATE VIEW queue_router.schedules WITH (security_barrier) AS
SELECT s.id, r.rolname AS role, s.project, s.name, s.queue, s.body,
       pg_catalog.format('SELECT cron.schedule(%L, %L, %L); SELECT cron.unschedule(%L);',
           CASE WHEN s.project OPERATOR(pg_catalog.=) '' THEN s.name
                ELSE pg_catalog.format('%s (%s)', s.name, s.project) END,
           s.cron,
           pg_catalog.format('SELECT %I.queue_push(%L, %L)', n.nspname, s.queue, s.body)
           OPERATOR(pg_catalog.||)
           CASE WHEN s.project OPERATOR(pg_catalog.=) '' THEN ''
                ELSE pg_catalog.format(
                    ' FROM pg_catalog.set_config(''queue.project'', %L, true)',
                    s.project) END,
           pg_catalog.format('queue %s', s.id)) AS replacement
FROM queue_data.schedule AS s
     JOIN pg_catalog.pg_roles AS r ON r.oid OPERATOR(pg_catalog.=) s.role
     JOIN pg_catalog.pg_roles AS u ON u.rolname OPERATOR(pg_catalog.=) CURRENT_USER
     CROSS JOIN pg_catalog.pg_extension AS e
     JOIN pg_catalog.pg_namespace AS n
         ON n.oid OPERATOR(pg_catalog.=) e.extnamespace
WHERE e.extname OPERATOR(pg_catalog.=) 'queue'
      AND (r.oid OPERATOR(pg_catalog.=) u.oid OR u.rolsuper);
COMMENT ON VIEW queue_router.schedules IS
'recurring jobs of earlier versions that belong to the current role (all for a superuser), and the calls of pg_cron that replace each';

-- queue_push, where no other role can put another function of that name
CREATE FUNCTION queue_router.push(
    q text, body jsonb, ttl integer DEFAULT NULL, delay integer DEFAULT NULL,
    priority integer DEFAULT 0, dedup_key text DEFAULT NULL,
    group_key text DEFAULT NULL, headers jsonb DEFAULT NULL,
    batch bigint DEFAULT NULL, after bigint DEFAULT NULL,
    after_success boolean DEFAULT false)
RETURNS bigint
AS 'MODULE_PATHNAME', 'sql_queue_push'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION queue_router.push IS
'queue_push, for job_due';

CREATE FUNCTION queue_router.due(schedule integer)
RETURNS boolean
AS $$
DECLARE
    due record;
BEGIN
    SELECT * INTO due FROM queue_router.schedules AS s
    WHERE s.id OPERATOR(pg_catalog.=) $1;
    IF NOT FOUND THEN
        RAISE undefined_object USING
            MESSAGE = pg_catalog.format(
                'schedule %s does not exist, or belongs to another role', $1),
            HINT = 'End its job with cron.unschedule.';
    END IF;
    IF due.role OPERATOR(pg_catalog.<>) CURRENT_USER THEN
        RAISE insufficient_privilege USING
            MESSAGE = pg_catalog.format('permission denied for schedule "%s"', due.name),
            HINT = pg_catalog.format('It pushes as role %I: SET ROLE, or log in as that.',
                                     due.role);
    END IF;
    PERFORM pg_catalog.set_config('queue.project', due.project, true);
    PERFORM queue_router.push(due.queue, due.body);
    RAISE WARNING USING
        MESSAGE = pg_catalog.format(
            'schedule "%s" has to be replaced before version 3.0', due.name),
        HINT = pg_catalog.format('As role %I, run: %s', due.role, due.replacement);
    RETURN true;
END
$$ LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION queue_router.due(integer) IS
'job_due, for jobs of pg_cron';

CREATE FUNCTION job_due(schedule integer)
RETURNS boolean
LANGUAGE sql VOLATILE PARALLEL UNSAFE
RETURN queue_router.due(schedule);
COMMENT ON FUNCTION job_due(integer) IS
'called by pg_cron for a schedule that an earlier version has made: pushes its message, with a WARNING that says what replaces it. Errors: 42704 no such schedule, 42501 it belongs to another role; as queue_push';

--
-- Moving shards
--
-- Functions that queue_shard_move calls as a superuser.  The last three stand for
-- functions in a schema whose owner could have others called in their place.
CREATE FUNCTION queue_data.shard_lock(shard integer)
RETURNS void
AS 'MODULE_PATHNAME', 'sql_queue_shard_lock'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION queue_data.shard_lock(integer) IS
'locks a shard until the transaction ends, so that no queue is created in it: for queue_shard_move. Errors: 22004/22023 argument, 42501 not the owner, 25006 read-only';

CREATE FUNCTION queue_data.counts(queue_id integer)
RETURNS bigint[]
AS 'MODULE_PATHNAME', 'sql_queue_counts'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION queue_data.counts(integer) IS
'what was counted of a queue, in the order of the columns of job_counter: for queue_shard_move. Errors: 22004 argument, 42501 not the owner';

CREATE FUNCTION queue_data.count_copied(queue_id integer)
RETURNS void
AS 'MODULE_PATHNAME', 'sql_queue_count_copied'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION queue_data.count_copied(integer) IS
'counts the messages of a queue, which COPY has written in this transaction: for queue_shard_move. Errors: 22004 argument, 42501 not the owner, 25006 read-only';

CREATE FUNCTION queue_data.shard_of(name text, project text)
RETURNS integer
AS 'MODULE_PATHNAME', 'sql_queue_shard'
LANGUAGE C STABLE PARALLEL SAFE;
COMMENT ON FUNCTION queue_data.shard_of(text, text) IS
'queue_shard, for queue_shard_move';

CREATE FUNCTION queue_data.channel(name text)
RETURNS text
AS 'MODULE_PATHNAME', 'sql_queue_channel'
LANGUAGE C STABLE PARALLEL RESTRICTED;
COMMENT ON FUNCTION queue_data.channel(text) IS
'queue_channel, for queue_shard_move';

CREATE FUNCTION queue_data.drop_queue(name text)
RETURNS boolean
AS 'MODULE_PATHNAME', 'sql_queue_drop'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION queue_data.drop_queue(text) IS
'queue_drop, for queue_shard_move';

-- ---------------------------------------------------------------------------
-- Views of what runs
-- ---------------------------------------------------------------------------

--
-- Background processes, and what they run
--
CREATE FUNCTION queue_data.workers(
    OUT database oid, OUT state text, OUT pid integer,
    OUT last_run timestamptz, OUT next_run timestamptz,
    OUT rounds bigint, OUT expired_claims bigint, OUT dead_letters bigint,
    OUT removed bigint, OUT notifications bigint,
    OUT switches bigint, OUT truncated bigint, OUT moved bigint,
    OUT last_error text, OUT last_error_at timestamptz)
RETURNS SETOF record
AS 'MODULE_PATHNAME', 'sql_queue_workers'
LANGUAGE C VOLATILE PARALLEL RESTRICTED;
COMMENT ON FUNCTION queue_data.workers() IS
'the rows of the view queue_workers, with the database''s OID';

CREATE VIEW queue_data.queue_workers AS
SELECT d.datname AS database, w.state, w.pid, w.last_run, w.next_run, w.rounds,
       w.expired_claims, w.dead_letters, w.removed, w.notifications,
       w.switches, w.truncated, w.moved, w.last_error, w.last_error_at
FROM queue_data.workers() AS w
     JOIN pg_catalog.pg_database AS d
         ON d.oid OPERATOR(pg_catalog.=) w.database;
COMMENT ON VIEW queue_data.queue_workers IS
'the background workers, one row for each database: state, last and next run, what it has done since the server started, last error';

CREATE FUNCTION queue_data.runners(
    OUT database oid, OUT role oid, OUT pid integer, OUT state text,
    OUT since timestamptz, OUT queue_id integer, OUT message_id bigint)
RETURNS SETOF record
AS 'MODULE_PATHNAME', 'sql_queue_runners'
LANGUAGE C VOLATILE PARALLEL RESTRICTED;
COMMENT ON FUNCTION queue_data.runners() IS
'the rows of the view queue_runners, of all databases, with OIDs';

CREATE VIEW queue_data.queue_runners AS
SELECT r.pid, r.role::regrole AS role, r.state, r.since, q.project,
       q.name AS queue, r.message_id
FROM queue_data.runners() AS r
     JOIN pg_catalog.pg_database AS d
         ON d.oid OPERATOR(pg_catalog.=) r.database
     LEFT JOIN queue_data.queue AS q
         ON q.id OPERATOR(pg_catalog.=) r.queue_id
WHERE d.datname OPERATOR(pg_catalog.=) pg_catalog.current_database();
COMMENT ON VIEW queue_data.queue_runners IS
'the background processes and the sessions in job_run that run jobs in this database';

-- A handler that cannot run waits, and goes on by itself: why is found out when
-- it is looked at.
CREATE FUNCTION queue_data.handler_problem(queue_id integer)
RETURNS text
AS 'MODULE_PATHNAME', 'sql_queue_handler_problem'
LANGUAGE C VOLATILE STRICT PARALLEL UNSAFE;
COMMENT ON FUNCTION queue_data.handler_problem(integer) IS
'why the handler of a queue cannot run; NULL if it can, is paused, or there is none';

CREATE VIEW queue_data.queue_handlers AS
SELECT q.project, q.name AS queue, h.role,
       pg_catalog.format('%I.%I(%s)', h.function_schema, h.function_name,
                         CASE WHEN h.takes_jsonb THEN 'jsonb'
                              ELSE 'queue_message' END) AS handler,
       h.concurrency,
       CASE WHEN h.timeout OPERATOR(pg_catalog.>) 0 THEN h.timeout END
           AS timeout,
       CASE WHEN h.rate OPERATOR(pg_catalog.>) 0::real THEN h.rate END AS rate,
       CASE WHEN h.teardown_name IS NOT NULL THEN
           pg_catalog.format('%I.%I(%s)', h.teardown_schema, h.teardown_name,
                             CASE WHEN h.teardown_takes_jsonb THEN 'jsonb'
                                  ELSE 'queue_message' END)
       END AS teardown,
       h.search_path, h.bound_at,
       CASE WHEN q.paused THEN 'paused'
            WHEN p.reason IS NULL THEN 'active'
            ELSE 'stopped'
       END AS state,
       p.reason
FROM queue_data.handler AS h
     JOIN queue_data.queue AS q ON q.id OPERATOR(pg_catalog.=) h.queue_id
     CROSS JOIN LATERAL queue_data.handler_problem(h.queue_id) AS p (reason);
COMMENT ON VIEW queue_data.queue_handlers IS
'the handlers of queues: active, paused by a command, or stopped because the handler cannot run now, with the reason';

--
-- Queues in numbers, without any message
--
CREATE FUNCTION queue_data.status(
    OUT queue_id integer, OUT ready bigint, OUT claimed bigint,
    OUT delayed bigint, OUT oldest_ready_age integer, OUT running boolean,
    OUT claimed_total bigint, OUT completed bigint, OUT retried bigint,
    OUT abandoned bigint, OUT duplicates bigint, OUT expired bigint,
    OUT pushed bigint)
RETURNS SETOF record
AS 'MODULE_PATHNAME', 'sql_queue_status'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION queue_data.status() IS
'the rows of the view queue_status, with the queues'' numbers';

-- A dead letter waits for a person, so the age of the oldest one is no reason for
-- an alert.
CREATE VIEW queue_data.queue_status AS
WITH s AS MATERIALIZED (SELECT * FROM queue_data.status())
SELECT q.project, q.name, q.owner, q.paused, s.ready, s.claimed, s.delayed,
       CASE WHEN d.queue_id IS NULL THEN 0
            ELSE d.ready OPERATOR(pg_catalog.+) d.claimed
                 OPERATOR(pg_catalog.+) d.delayed
       END AS dead_letters,
       s.oldest_ready_age, s.pushed, s.claimed_total, s.completed, s.retried,
       s.abandoned, s.duplicates, s.expired,
       CASE WHEN h.queue_id IS NULL THEN 'none'
            WHEN q.paused THEN 'paused'
            WHEN queue_data.handler_problem(h.queue_id) IS NOT NULL THEN 'stopped'
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
'one row for each queue of all projects: its messages by state, counted as they change and at most two seconds late (five for claims that have run out; NULL while they are not known: there is no background worker, or it has not counted the messages yet), and those in its dead letter queue, the age in seconds of the oldest ready one, what was counted since job_stats.since, and its handler: none, idle, running, paused by a command, or stopped because it cannot run now; is_dead_letter_queue: whether a queue sends its dead letters there, or the queue was created for those of another one';

--
-- Segments
--
-- Locks are all that holds a segment back, and dumps.  This function shows more
-- of the sessions that do than its caller may see in pg_stat_activity: their
-- state, and when their transactions began.
CREATE FUNCTION queue_data.segment_holders(
    OUT segment integer, OUT pid integer, OUT prepared text, OUT role name,
    OUT application_name text, OUT state text, OUT since timestamptz)
RETURNS SETOF record
LANGUAGE sql VOLATILE PARALLEL RESTRICTED SECURITY DEFINER ROWS 20
SET search_path = pg_catalog, pg_temp
AS $$
WITH segments AS MATERIALIZED (
    SELECT s AS segment, c.oid, c.reltoastrelid, c.relowner
    FROM generate_series(0, 19) AS s
         JOIN pg_class AS c
             ON c.oid = (CASE WHEN s < 16 THEN 'queue_data.message_' || s
                              ELSE 'queue_data.delayed_' || s - 16
                         END)::regclass
), all_locks AS MATERIALIZED (
    SELECT * FROM pg_locks AS l WHERE l.granted
), locks AS MATERIALIZED (
    SELECT DISTINCT s.segment, l.pid, l.virtualtransaction
    FROM all_locks AS l
         JOIN segments AS s ON l.relation IN (s.oid, s.reltoastrelid)
    WHERE l.locktype = 'relation'
          AND l.database = (SELECT d.oid FROM pg_database AS d
                            WHERE d.datname = current_database())
), sessions AS MATERIALIZED (
    SELECT * FROM pg_stat_activity AS a
    WHERE a.datname = current_database() AND a.pid <> pg_backend_pid()
          AND a.backend_type <> 'queue worker'
)
SELECT l.segment, a.pid, NULL::text, a.usename, a.application_name, a.state,
       a.xact_start
FROM locks AS l JOIN sessions AS a USING (pid)
UNION ALL
SELECT l.segment, NULL, p.gid, p.owner, NULL, 'prepared', p.prepared
FROM locks AS l
     JOIN all_locks AS own USING (virtualtransaction)
     JOIN pg_prepared_xacts AS p ON p.transaction = own.transactionid
WHERE l.pid IS NULL AND own.pid IS NULL
      AND own.locktype = 'transactionid' AND own.mode = 'ExclusiveLock'
UNION ALL
SELECT s.segment, a.pid, NULL, a.usename, a.application_name, a.state,
       a.backend_start
FROM segments AS s
     JOIN sessions AS a
         ON has_table_privilege(a.usesysid, s.oid, 'SELECT')
            OR pg_has_role(a.usesysid, s.relowner, 'MEMBER')
WHERE a.application_name = 'pg_dump'
$$;
COMMENT ON FUNCTION queue_data.segment_holders() IS
'the sessions and prepared transactions that keep segments from being truncated: those that have locked one, and dumps; since: when the transaction or the dump began';

CREATE VIEW queue_data.segment_status AS
WITH h AS MATERIALIZED (SELECT * FROM queue_data.segment_holders())
SELECT s.segment::integer AS segment, c.relname AS relation,
       CASE WHEN s.segment OPERATOR(pg_catalog.=) r.active
                 OR s.segment OPERATOR(pg_catalog.=) r.delayed THEN 'active'
            WHEN pg_catalog.pg_relation_size(c.oid) OPERATOR(pg_catalog.=) 0
                THEN 'empty'
            ELSE 'used'
       END AS state,
       pg_catalog.pg_total_relation_size(c.oid) AS size,
       pg_catalog.pg_stat_get_live_tuples(c.oid) AS messages,
       s.truncated_at, COALESCE(o.holders, 0) AS holders,
       o.pid AS holder_pid, o.prepared AS holder_prepared,
       o.role AS holder_role, o.application_name AS holder_application_name,
       o.state AS holder_state, o.since AS holder_since
FROM queue_data.segment AS s
     CROSS JOIN queue_data.ring AS r
     JOIN pg_catalog.pg_class AS c
         ON c.relnamespace OPERATOR(pg_catalog.=) 'queue_data'::regnamespace
            AND c.relname OPERATOR(pg_catalog.=) (CASE
                WHEN s.segment OPERATOR(pg_catalog.<) 16
                    THEN pg_catalog.format('message_%s', s.segment)
                ELSE pg_catalog.format('delayed_%s',
                         s.segment OPERATOR(pg_catalog.-) 16)
                END)::name
     LEFT JOIN LATERAL
     (SELECT pg_catalog.count(*) OVER () AS holders, h.*
      FROM h
      WHERE h.segment OPERATOR(pg_catalog.=) s.segment::integer
      ORDER BY h.since
      LIMIT 1) AS o ON true;
COMMENT ON VIEW queue_data.segment_status IS
'the segments: active, used or empty; bytes with indexes; messages, an estimate; when it was truncated last; how many sessions and prepared transactions keep it from being truncated, and the oldest of them';

--
-- Where claims scan, and why one takes long
--
CREATE FUNCTION queue_data.maps(
    OUT queue_id integer, OUT state text, OUT ready boolean,
    OUT unscanned bigint, OUT ranges integer, OUT numbers bigint,
    OUT uncertain boolean, OUT lanes integer, OUT reservations integer,
    OUT claims_wait boolean, OUT waiters integer, OUT incarnation bigint,
    OUT next_visit timestamptz)
RETURNS SETOF record
AS 'MODULE_PATHNAME', 'sql_queue_maps'
LANGUAGE C VOLATILE PARALLEL RESTRICTED;
COMMENT ON FUNCTION queue_data.maps() IS
'the rows of the view availability_map, with the queues'' numbers';

CREATE VIEW queue_data.availability_map AS
SELECT q.project, q.name AS queue, m.state, m.ready, m.unscanned, m.ranges,
       m.numbers, m.uncertain, m.lanes, m.reservations, m.claims_wait,
       m.waiters, m.incarnation, m.next_visit
FROM queue_data.maps() AS m
     JOIN queue_data.queue AS q ON q.id OPERATOR(pg_catalog.=) m.queue_id;
COMMENT ON VIEW queue_data.availability_map IS
'the availability maps of the queues of this database: what claims have to scan, the scans and waits under way, and when the background worker visits the queue';

--
-- How much of shared memory is used
--
CREATE FUNCTION queue_data.memory(
    OUT what text, OUT used bigint, OUT places bigint, OUT bytes bigint)
RETURNS SETOF record
AS 'MODULE_PATHNAME', 'sql_queue_memory'
LANGUAGE C VOLATILE PARALLEL RESTRICTED;
COMMENT ON FUNCTION queue_data.memory() IS
'the rows of the view queue_memory';

CREATE VIEW queue_data.queue_memory AS
SELECT m.what, m.used, m.places, m.bytes FROM queue_data.memory() AS m;
COMMENT ON VIEW queue_data.queue_memory IS
'the places in shared memory, of all databases, and how many are used: of queues with messages, of groups, and of stretches of the messages of groups';

-- ---------------------------------------------------------------------------
-- Triggers, and what pg_dump calls
-- ---------------------------------------------------------------------------

--
-- Roles: those that queues name are recorded when a restore writes the tables.
--
CREATE FUNCTION queue_data.record_roles()
RETURNS void
AS 'MODULE_PATHNAME', 'sql_queue_record_roles'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION queue_data.record_roles() IS
'records the roles in queue_data.queue_roles in pg_shdepend, so that they cannot be dropped; call it after pg_upgrade. Errors: 25006 read-only';

CREATE FUNCTION queue_data.roles_written()
RETURNS trigger
AS 'MODULE_PATHNAME', 'sql_queue_roles_written'
LANGUAGE C;
COMMENT ON FUNCTION queue_data.roles_written() IS
'calls record_roles when SQL, such as that of a restore, has written to queue_data.queue';
CREATE TRIGGER roles_written
    AFTER INSERT OR UPDATE OR DELETE ON queue_data.queue
    FOR EACH STATEMENT EXECUTE FUNCTION queue_data.roles_written();
ALTER TABLE queue_data.queue ENABLE ALWAYS TRIGGER roles_written;
COMMENT ON TRIGGER roles_written ON queue_data.queue IS
'records roles so that they cannot be dropped';
CREATE TRIGGER roles_written
    AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE ON queue_data.topic
    FOR EACH STATEMENT EXECUTE FUNCTION queue_data.roles_written();
ALTER TABLE queue_data.topic ENABLE ALWAYS TRIGGER roles_written;
COMMENT ON TRIGGER roles_written ON queue_data.topic IS
'records roles so that they cannot be dropped';

-- The filters with which pg_dump reads tables, see below.
CREATE FUNCTION queue_data.roles_exist(
    name text,
    owner regrole,
    push_roles regrole[],
    claim_roles regrole[],
    admin_roles regrole[])
RETURNS boolean
AS 'MODULE_PATHNAME', 'sql_queue_roles_exist'
LANGUAGE C STABLE PARALLEL SAFE;
COMMENT ON FUNCTION queue_data.roles_exist(text, regrole, regrole[], regrole[], regrole[]) IS
'true, or an error (55000) if one of the roles does not exist; the filter with which pg_dump reads queue_data.queue';

CREATE FUNCTION queue_data.segment_is_whole(segment integer)
RETURNS boolean
AS 'MODULE_PATHNAME', 'sql_queue_segment_is_whole'
LANGUAGE C STABLE STRICT PARALLEL UNSAFE; -- it takes the latest snapshot
COMMENT ON FUNCTION queue_data.segment_is_whole(integer) IS
'true, or an error (55000) if the segment of the ring was emptied since the statement''s snapshot was taken; the filter with which pg_dump reads it';

--
-- The extension's functions write without firing triggers.  The triggers
-- "restored" notice other SQL, such as a restore, because shared memory knows
-- nothing of the rows that it writes or deletes.
--
CREATE FUNCTION queue_data.restored()
RETURNS trigger
AS 'MODULE_PATHNAME', 'sql_queue_restored'
LANGUAGE C;
COMMENT ON FUNCTION queue_data.restored() IS
'trigger of the tables of queues, messages and handlers: other SQL than the extension''s functions has written or deleted rows; at commit, sessions and the background worker discard what they have cached of these tables';
DO $$
DECLARE
    part text;
BEGIN
    FOREACH part IN ARRAY
        (SELECT pg_catalog.array_agg('message_' OPERATOR(pg_catalog.||) s::text)
         FROM pg_catalog.generate_series(0, 15) AS s)
        OPERATOR(pg_catalog.||)
        '{delayed_0,delayed_1,delayed_2,delayed_3,queue,handler,batch,batch_part}'::text[]
    LOOP
        EXECUTE pg_catalog.format('
            CREATE TRIGGER restored
                AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE ON queue_data.%1$I
                FOR EACH STATEMENT EXECUTE FUNCTION queue_data.restored();
            ALTER TABLE queue_data.%1$I ENABLE ALWAYS TRIGGER restored;
            COMMENT ON TRIGGER restored ON queue_data.%1$I IS
                ''notices rows that other SQL has written or deleted''', part);
    END LOOP;
END
$$;

CREATE FUNCTION queue_data.forget()
RETURNS void
AS 'MODULE_PATHNAME', 'sql_queue_forget'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION queue_data.forget() IS
'for superusers, after rows of the extension''s tables were written or deleted while their triggers were disabled: at commit, sessions and the background worker discard what they have cached of these tables. Errors: none';

-- Handlers that a restore has loaded wait until it has ended.
CREATE FUNCTION queue_data.handler_loaded()
RETURNS trigger
AS 'MODULE_PATHNAME', 'sql_queue_handler_loaded'
LANGUAGE C;
COMMENT ON FUNCTION queue_data.handler_loaded() IS
'trigger of queue_data.handler: other SQL than the extension''s functions, such as a restore, has written the row, which counts from the end of the session on';
CREATE TRIGGER handler_loaded
    BEFORE INSERT OR UPDATE ON queue_data.handler
    FOR EACH ROW EXECUTE FUNCTION queue_data.handler_loaded();
ALTER TABLE queue_data.handler ENABLE ALWAYS TRIGGER handler_loaded;
COMMENT ON TRIGGER handler_loaded ON queue_data.handler IS
'notices rows that other SQL has written';

-- The map of shards
CREATE FUNCTION queue_data.shard_written()
RETURNS trigger
AS 'MODULE_PATHNAME', 'sql_queue_shard_written'
LANGUAGE C;
COMMENT ON FUNCTION queue_data.shard_written() IS
'trigger of queue_data.shard and queue_data.server: SQL, such as that of a restore, has written the map; at commit, all sessions read it again, and those that wait for a queue whose shard has come or gone are woken';
DO $$
DECLARE
    part text;
BEGIN
    FOREACH part IN ARRAY '{server,shard}'::text[] LOOP
        EXECUTE pg_catalog.format('
            CREATE TRIGGER shard_written
                AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE ON queue_data.%1$I
                FOR EACH STATEMENT EXECUTE FUNCTION queue_data.shard_written();
            ALTER TABLE queue_data.%1$I ENABLE ALWAYS TRIGGER shard_written;
            COMMENT ON TRIGGER shard_written ON queue_data.%1$I IS
                ''has all sessions read the map again''', part);
    END LOOP;
END
$$;
CREATE TRIGGER shard_changed
    AFTER UPDATE ON queue_data.shard
    FOR EACH ROW WHEN (OLD.state OPERATOR(pg_catalog.<>) NEW.state)
    EXECUTE FUNCTION queue_data.shard_written();
ALTER TABLE queue_data.shard ENABLE ALWAYS TRIGGER shard_changed;
COMMENT ON TRIGGER shard_changed ON queue_data.shard IS
'has what is known of the queues of the shard forgotten';

--
-- All tables
--
CREATE FUNCTION queue_data.not_replicated()
RETURNS trigger
AS 'MODULE_PATHNAME', 'sql_queue_not_replicated'
LANGUAGE C;
COMMENT ON FUNCTION queue_data.not_replicated() IS
'trigger of all tables of the extension: leaves out the rows that a subscription writes';

CREATE FUNCTION queue_data.superusers_only()
RETURNS trigger
AS 'MODULE_PATHNAME', 'sql_queue_superusers_only'
LANGUAGE C;
COMMENT ON FUNCTION queue_data.superusers_only() IS
'trigger of all tables of the extension: refuses SQL of roles that are not superusers, such as members of pg_write_all_data. Errors: 42501 not a superuser';
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
            CREATE TRIGGER not_replicated
                BEFORE INSERT OR UPDATE OR DELETE ON queue_data.%1$I
                FOR EACH ROW EXECUTE FUNCTION queue_data.not_replicated();
            ALTER TABLE queue_data.%1$I ENABLE ALWAYS TRIGGER not_replicated;
            COMMENT ON TRIGGER not_replicated ON queue_data.%1$I IS
                ''leaves out the rows that a subscription writes'';
            CREATE TRIGGER superusers_only
                BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE ON queue_data.%1$I
                FOR EACH STATEMENT EXECUTE FUNCTION queue_data.superusers_only();
            ALTER TABLE queue_data.%1$I ENABLE ALWAYS TRIGGER superusers_only;
            COMMENT ON TRIGGER superusers_only ON queue_data.%1$I IS
                ''refuses SQL of roles that are not superusers''', part);
    END LOOP;
END
$$;

-- ---------------------------------------------------------------------------
-- What pg_dump writes
-- ---------------------------------------------------------------------------

DO $$
DECLARE
    part text;
BEGIN
    FOREACH part IN ARRAY '{queue_id,message_id,secret,dedup_key,root_job,push_origin,grouped,group_rate,batch_id,batch_part,job_counter,server,shard,shard_move}'::text[]
    LOOP
        PERFORM pg_catalog.pg_extension_config_dump(
            ('queue_data.' OPERATOR(pg_catalog.||) part)::pg_catalog.regclass, '');
    END LOOP;
    FOR i IN 0 .. 17 LOOP
        PERFORM pg_catalog.pg_extension_config_dump(
            pg_catalog.format('queue_data.finished_%s', i)::pg_catalog.regclass, '');
    END LOOP;
    FOR i IN 0 .. 19 LOOP
        PERFORM pg_catalog.pg_extension_config_dump(
            pg_catalog.format(CASE WHEN i OPERATOR(pg_catalog.<) 16
                                   THEN 'queue_data.message_%s'
                                   ELSE 'queue_data.delayed_%s' END,
                              i OPERATOR(pg_catalog.%) 16)::pg_catalog.regclass,
            pg_catalog.format('WHERE queue_data.segment_is_whole(%s)', i));
    END LOOP;
END
$$;

SELECT pg_catalog.pg_extension_config_dump('queue_data.queue',
    'WHERE queue_data.roles_exist(name, owner, push_roles, claim_roles, admin_roles)');
SELECT pg_catalog.pg_extension_config_dump('queue_data.topic',
    'WHERE queue_data.roles_exist(COALESCE('
    '(SELECT q.name FROM queue_data.queue AS q'
    ' WHERE q.id OPERATOR(pg_catalog.=) queue_id), pattern),'
    ' NULL, publishers, NULL, NULL)');

-- Without those of roles that do not exist any more: in the dump they are
-- numbers, which may belong to another role where it is restored.
SELECT pg_catalog.pg_extension_config_dump('queue_data.handler',
    'WHERE role IN (SELECT oid FROM pg_catalog.pg_roles)');
SELECT pg_catalog.pg_extension_config_dump('queue_data.schedule',
    'WHERE role IN (SELECT oid FROM pg_catalog.pg_roles)');

-- One that has not finished is dumped even if its owner was dropped, since messages
-- wait for it.
SELECT pg_catalog.pg_extension_config_dump('queue_data.batch',
    'WHERE finished_at IS NULL OR owner IN (SELECT oid FROM pg_catalog.pg_roles)');

-- ---------------------------------------------------------------------------
-- Privileges
-- ---------------------------------------------------------------------------

-- Whatever the default privileges of the database are
REVOKE ALL ON SCHEMA queue_data, queue_router FROM PUBLIC;
REVOKE ALL ON ALL TABLES IN SCHEMA queue_data, queue_router FROM PUBLIC;
REVOKE ALL ON ALL SEQUENCES IN SCHEMA queue_data FROM PUBLIC;
REVOKE ALL ON ALL ROUTINES IN SCHEMA queue_data, queue_router FROM PUBLIC;

-- Every function outside of queue_data is for users, except for queue_shard_init.
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
          AND e.extname OPERATOR(pg_catalog.=) 'queue'
          AND p.pronamespace OPERATOR(pg_catalog.<>) 'queue_data'::regnamespace
    LOOP
        EXECUTE pg_catalog.format('REVOKE ALL ON ROUTINE %s FROM PUBLIC',
                                  routine);
        EXECUTE pg_catalog.format('GRANT EXECUTE ON ROUTINE %s
            TO queue_producer, queue_consumer, queue_admin', routine);
    END LOOP;
END
$$;
REVOKE EXECUTE ON FUNCTION queue_shard_init(integer, integer)
    FROM queue_producer, queue_consumer, queue_admin;
GRANT USAGE ON SCHEMA queue_router
    TO queue_producer, queue_consumer, queue_admin;
GRANT SELECT ON queue_router.schedules
    TO queue_producer, queue_consumer, queue_admin;

-- queue_monitor may read numbers of queues and processes, no message.
GRANT USAGE ON SCHEMA queue_data TO queue_admin, queue_monitor;
GRANT EXECUTE ON FUNCTION queue_data.workers(), queue_data.runners(),
    queue_data.handler_problem(integer), queue_data.status(),
    queue_data.segment_holders(), queue_data.maps(), queue_data.memory()
    TO queue_admin, queue_monitor;
GRANT SELECT ON queue_data.queue_workers, queue_data.queue_runners,
    queue_data.queue_status, queue_data.segment_status,
    queue_data.availability_map, queue_data.queue_memory
    TO queue_admin, queue_monitor;
GRANT SELECT ON queue_data.queue_roles, queue_data.queue_handlers TO queue_admin;

-- A role that may read all tables may dump them.
GRANT EXECUTE ON FUNCTION
    queue_data.roles_exist(text, regrole, regrole[], regrole[], regrole[]),
    queue_data.segment_is_whole(integer) TO pg_read_all_data;
