/* src/sql/queue--1.0.sql */

-- complain if script is sourced in psql, rather than via CREATE EXTENSION
\echo Use "CREATE EXTENSION queue" to load this file. \quit

--
-- Roles
--
-- Roles belong to the cluster, not to the database: they are created if they
-- are missing, and DROP EXTENSION keeps them.  A session in another database
-- may create them at the same time, hence the exception block.
--
DO $$
DECLARE
    role_name name;
BEGIN
    FOREACH role_name IN ARRAY
        '{queue_producer,queue_consumer,queue_admin,queue_monitor}'::name[]
    LOOP
        BEGIN
            IF NOT EXISTS (SELECT FROM pg_catalog.pg_roles
                           WHERE rolname OPERATOR(pg_catalog.=) role_name) THEN
                EXECUTE pg_catalog.format('CREATE ROLE %I NOLOGIN', role_name);
            END IF;
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

--
-- Tables
--
-- Only the owner has privileges on them.  The functions read and write them
-- directly, and check the caller's privileges on the queue.
--
CREATE SCHEMA queue_data;
COMMENT ON SCHEMA queue_data IS 'tables of the extension queue';

CREATE FUNCTION queue_data.library_version(required text DEFAULT NULL)
RETURNS text
AS 'MODULE_PATHNAME', 'sql_queue_library_version'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION queue_data.library_version(text) IS
'the version of the library that this session has loaded. Errors: 55000 it is older than the version required, 22023 no version';
REVOKE ALL ON FUNCTION queue_data.library_version(text) FROM PUBLIC;

CREATE SEQUENCE queue_data.queue_id AS integer;
COMMENT ON SEQUENCE queue_data.queue_id IS 'numbers of queues';

-- Blocks of 32 message numbers; the step is one block.
CREATE SEQUENCE queue_data.message_id AS bigint MAXVALUE 562949953421311;
COMMENT ON SEQUENCE queue_data.message_id IS
'blocks of 32 message numbers, the high bits of message ids';

CREATE TABLE queue_data.queue (
    id          integer NOT NULL DEFAULT pg_catalog.nextval('queue_data.queue_id'),
    owner       regrole NOT NULL,
    paused      boolean NOT NULL DEFAULT false,
    created_at  timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(),
    project     text COLLATE "C" NOT NULL,
    name        text COLLATE "C" NOT NULL,
    metadata    jsonb NOT NULL DEFAULT '{}',
    push_roles  regrole[],
    claim_roles regrole[],
    admin_roles regrole[],
    dead_queue_id integer,
    source_id   integer
) USING heap;
CREATE UNIQUE INDEX queue_id_idx ON queue_data.queue (id);
CREATE UNIQUE INDEX queue_name_idx ON queue_data.queue (project, name);
CREATE INDEX queue_owner_idx ON queue_data.queue (owner);
CREATE INDEX queue_dead_queue_idx ON queue_data.queue (dead_queue_id);
CREATE INDEX queue_source_idx ON queue_data.queue (source_id);
ALTER TABLE queue_data.queue REPLICA IDENTITY USING INDEX queue_id_idx;
COMMENT ON INDEX queue_data.queue_id_idx IS 'queues by number';
COMMENT ON INDEX queue_data.queue_name_idx IS 'queues by project and name';
COMMENT ON INDEX queue_data.queue_owner_idx IS 'queues by owner';
COMMENT ON INDEX queue_data.queue_dead_queue_idx IS
'queues by their dead letter queue';
COMMENT ON INDEX queue_data.queue_source_idx IS
'dead letter queues by the queue for which they were created';
COMMENT ON TABLE queue_data.queue IS
'one row for each queue; push_roles and claim_roles are NULL if every producer or consumer has the privilege; dead_queue_id is the dead letter queue that the metadata requires; source_id is the queue for whose dead letters this one was created: claim and admin are those of that queue until they are granted on this one';

-- The roles to which queues refer.  DROP ROLE is refused for them: each is
-- recorded in pg_shdepend as if it had a privilege on the first column of
-- this view.  The trigger records the roles when a restore writes the table.
CREATE VIEW queue_data.queue_roles AS
SELECT q.owner AS role, q.project, q.name AS queue, 'owner'::text AS privilege
FROM queue_data.queue AS q
UNION ALL
SELECT r.role, q.project, q.name, p.privilege
FROM queue_data.queue AS q
     CROSS JOIN LATERAL
     (VALUES ('push', q.push_roles), ('claim', q.claim_roles),
             ('admin', q.admin_roles)) AS p (privilege, roles)
     CROSS JOIN LATERAL pg_catalog.unnest(p.roles) AS r (role);
COMMENT ON VIEW queue_data.queue_roles IS
'the roles that own queues, or that push, claim or admin on a queue was granted to; they cannot be dropped before queue_set_owner or queue_revoke';

CREATE FUNCTION queue_data.record_roles()
RETURNS void
AS 'MODULE_PATHNAME', 'sql_queue_record_roles'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION queue_data.record_roles() IS
'records the roles in queue_data.queue_roles in pg_shdepend, so that they cannot be dropped; call it after pg_upgrade';
REVOKE ALL ON FUNCTION queue_data.record_roles() FROM PUBLIC;

CREATE FUNCTION queue_data.roles_written()
RETURNS trigger
AS 'MODULE_PATHNAME', 'sql_queue_roles_written'
LANGUAGE C;
COMMENT ON FUNCTION queue_data.roles_written() IS
'calls record_roles when SQL, such as that of a restore, has written to queue_data.queue';
REVOKE ALL ON FUNCTION queue_data.roles_written() FROM PUBLIC;
CREATE TRIGGER roles_written
    AFTER INSERT OR UPDATE OR DELETE ON queue_data.queue
    FOR EACH STATEMENT EXECUTE FUNCTION queue_data.roles_written();
ALTER TABLE queue_data.queue ENABLE ALWAYS TRIGGER roles_written;
COMMENT ON TRIGGER roles_written ON queue_data.queue IS
'records roles so that they cannot be dropped';

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
REVOKE ALL ON FUNCTION queue_data.roles_exist(text, regrole, regrole[], regrole[], regrole[]) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION queue_data.roles_exist(text, regrole, regrole[], regrole[], regrole[])
    TO pg_read_all_data;

-- Which segments take new messages.  Not dumped: a restored database begins
-- with the first ones, and scans cover every segment that holds messages.
CREATE TABLE queue_data.ring (
    active              smallint NOT NULL,
    switched_at         timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(),
    delayed             smallint NOT NULL,
    delayed_switched_at timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp()
) USING heap;
COMMENT ON TABLE queue_data.ring IS
'the segments that take new messages; delayed: 16 for delayed_0, and so on';
INSERT INTO queue_data.ring (active, delayed) VALUES (0, 16);

-- When each segment was last truncated.  A snapshot that does not see that
-- row does not see what was in the segment either.  Not dumped.
CREATE TABLE queue_data.segment (
    segment      smallint NOT NULL,
    truncated_at timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp()
) USING heap;
COMMENT ON TABLE queue_data.segment IS 'when each segment of the ring was last emptied';
INSERT INTO queue_data.segment (segment)
SELECT s FROM pg_catalog.generate_series(0, 19) AS s;

CREATE FUNCTION queue_data.segment_is_whole(segment integer)
RETURNS boolean
AS 'MODULE_PATHNAME', 'sql_queue_segment_is_whole'
LANGUAGE C STABLE STRICT PARALLEL UNSAFE; -- it takes the latest snapshot
COMMENT ON FUNCTION queue_data.segment_is_whole(integer) IS
'true, or an error (55000) if the segment of the ring was emptied since the statement''s snapshot was taken; the filter with which pg_dump reads it';
REVOKE ALL ON FUNCTION queue_data.segment_is_whole(integer) FROM PUBLIC;
-- A role that may read all tables may dump these too.
GRANT EXECUTE ON FUNCTION queue_data.segment_is_whole(integer)
    TO pg_read_all_data;

-- The segments of the ring.  C code (message_row.c) reads the fixed-width
-- columns in place, so their order and types are fixed.  Those of a claim are
-- all null or none is; most messages have nothing in the columns after them.
-- Where the last columns are null, the row ends before them.
-- The fillfactor leaves room on the page for the row version that a claim
-- writes.  twins, twins_joined and covered belong to deduplication (dedup.c);
-- they are NULL for a message whose key no other message has.
DO $$
DECLARE
    segment integer;
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
                CONSTRAINT claim_columns CHECK (pg_catalog.num_nulls(
                    claim_token, claimed_until, claim_ttl, claim_grace,
                    claim_offset, claim_span, claim_count, claim_priorities)
                    OPERATOR(pg_catalog.=) ANY (''{0,8}''))
            ) USING heap WITH (fillfactor = 48);
            CREATE UNIQUE INDEX message_%1$s_idx ON queue_data.message_%1$s
                (queue_id, priority DESC, id);
            ALTER TABLE queue_data.message_%1$s
                REPLICA IDENTITY USING INDEX message_%1$s_idx;
            COMMENT ON INDEX queue_data.message_%1$s_idx IS
                ''messages in the order in which they are handed out'';
            COMMENT ON TABLE queue_data.message_%1$s IS
                %2$L;', segment,
            'messages, segment ' OPERATOR(pg_catalog.||) segment::text
            OPERATOR(pg_catalog.||) ' of the ring');
        PERFORM pg_catalog.pg_extension_config_dump(
            ('queue_data.message_' OPERATOR(pg_catalog.||) segment::text)::regclass,
            pg_catalog.format('WHERE queue_data.segment_is_whole(%s)', segment));
    END LOOP;
END
$$;

-- Delayed messages: the same columns, and the time when they are due.  They
-- have a small ring of their own.
DO $$
DECLARE
    segment integer;
BEGIN
    FOR segment IN 0 .. 3 LOOP
        EXECUTE pg_catalog.format('
            CREATE TABLE queue_data.delayed_%1$s (
                LIKE queue_data.message_0 INCLUDING CONSTRAINTS,
                due_at           timestamptz NOT NULL
            ) USING heap;
            CREATE UNIQUE INDEX delayed_%1$s_id_idx ON queue_data.delayed_%1$s
                (queue_id, id);
            CREATE INDEX delayed_%1$s_due_idx ON queue_data.delayed_%1$s
                (queue_id, priority DESC, due_at);
            ALTER TABLE queue_data.delayed_%1$s
                REPLICA IDENTITY USING INDEX delayed_%1$s_id_idx;
            COMMENT ON INDEX queue_data.delayed_%1$s_id_idx IS
                ''delayed messages by id'';
            COMMENT ON INDEX queue_data.delayed_%1$s_due_idx IS
                ''delayed messages by priority and the time they are due'';
            COMMENT ON TABLE queue_data.delayed_%1$s IS
                ''delayed messages; each moves to a segment of the ring, with its id, when it is due''',
            segment);
        PERFORM pg_catalog.pg_extension_config_dump(
            ('queue_data.delayed_' OPERATOR(pg_catalog.||) segment::text)::regclass,
            pg_catalog.format('WHERE queue_data.segment_is_whole(%s)',
                              16 OPERATOR(pg_catalog.+) segment));
    END LOOP;
END
$$;

-- The messages that may hold a deduplication key, the newest first.  If each
-- of them is gone or claimed, the key is free: so a claim need not change this
-- table.  joined counts the pushes that were dropped while one of the messages
-- may have been running already, without the dropped push's changes.
CREATE TABLE queue_data.dedup_key (
    queue_id    integer NOT NULL,
    digest      uuid NOT NULL,
    message_ids bigint[] NOT NULL,
    joined      bigint NOT NULL DEFAULT 0
) USING heap;
CREATE UNIQUE INDEX dedup_key_idx ON queue_data.dedup_key (queue_id, digest);
ALTER TABLE queue_data.dedup_key REPLICA IDENTITY USING INDEX dedup_key_idx;
COMMENT ON INDEX queue_data.dedup_key_idx IS 'one row for each key of a queue';
COMMENT ON TABLE queue_data.dedup_key IS
'deduplication keys, and the messages that may hold them';

-- The newest root job of each signature
CREATE TABLE queue_data.root_job (
    queue_id      integer NOT NULL,
    digest        uuid NOT NULL,
    registered_at timestamptz NOT NULL
) USING heap;
CREATE UNIQUE INDEX root_job_idx ON queue_data.root_job (queue_id, digest);
ALTER TABLE queue_data.root_job REPLICA IDENTITY USING INDEX root_job_idx;
COMMENT ON INDEX queue_data.root_job_idx IS 'root jobs by queue and signature';
COMMENT ON TABLE queue_data.root_job IS
'the newest root job of each signature; leaves of older ones are no-ops';

-- The queues to which a message with a group key was ever pushed.  A queue may
-- have more than one row.
CREATE TABLE queue_data.grouped (
    queue_id integer NOT NULL
) USING heap;
CREATE INDEX grouped_idx ON queue_data.grouped (queue_id);
ALTER TABLE queue_data.grouped REPLICA IDENTITY FULL;
COMMENT ON INDEX queue_data.grouped_idx IS 'queues with groups';
COMMENT ON TABLE queue_data.grouped IS
'queues to which a message with a group key was ever pushed';

-- When each group of a queue with _group_rate may go on.  A row is overwritten
-- in place, and removed when its time has come.
CREATE TABLE queue_data.group_rate (
    lane         bigint NOT NULL,
    delivered_at timestamptz NOT NULL,
    next_at      timestamptz NOT NULL
) USING heap;
CREATE UNIQUE INDEX group_rate_idx ON queue_data.group_rate (lane);
ALTER TABLE queue_data.group_rate REPLICA IDENTITY USING INDEX group_rate_idx;
COMMENT ON INDEX queue_data.group_rate_idx IS 'groups by the hash of queue and key';
COMMENT ON TABLE queue_data.group_rate IS
'groups with a rate: the last delivery, and the earliest time of the next one';

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
) USING heap;
ALTER TABLE queue_data.job_counter ALTER COLUMN last_error SET STORAGE PLAIN;
CREATE UNIQUE INDEX job_counter_idx ON queue_data.job_counter (queue_id);
ALTER TABLE queue_data.job_counter REPLICA IDENTITY USING INDEX job_counter_idx;
COMMENT ON INDEX queue_data.job_counter_idx IS 'counters by queue';
COMMENT ON TABLE queue_data.job_counter IS
'counters of each queue since that time, and its last error, padded with zero bytes; job_stats adds what is not written yet';

-- How prepared transactions change the numbers of ready, claimed and delayed
-- messages, to be counted when they are committed; and where the messages are
-- that they have claimed.
CREATE TABLE queue_data.prepared_count (
    queue_id      integer NOT NULL,
    ready         bigint NOT NULL,
    claimed       bigint NOT NULL,
    delayed       bigint NOT NULL,
    claims_end    timestamptz NOT NULL,
    first_claimed bigint NOT NULL,
    last_claimed  bigint NOT NULL,
    priorities    integer NOT NULL
) USING heap;
ALTER TABLE queue_data.prepared_count REPLICA IDENTITY FULL;
COMMENT ON TABLE queue_data.prepared_count IS
'how prepared transactions change the numbers of messages: visible when they are committed, and then counted by the background worker';

-- What runs the jobs of a queue.  Functions are stored by name, which stays
-- valid through a dump and pg_upgrade, with a digest of their definition at
-- the time of binding.  One that does not take jsonb takes a queue_message.
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
    digest          uuid NOT NULL,
    function_schema text COLLATE "C" NOT NULL,
    function_name   text COLLATE "C" NOT NULL,
    search_path     text COLLATE "C" NOT NULL,
    teardown_takes_jsonb boolean,
    teardown_schema text COLLATE "C",
    teardown_name   text COLLATE "C",
    stopped         text
) USING heap WITH (fillfactor = 80);
CREATE UNIQUE INDEX handler_idx ON queue_data.handler (queue_id);
ALTER TABLE queue_data.handler REPLICA IDENTITY USING INDEX handler_idx;
COMMENT ON INDEX queue_data.handler_idx IS 'one row for each queue that has a handler';
COMMENT ON TABLE queue_data.handler IS
'the functions that run the jobs of queues; timeout: seconds (0: none); rate: jobs per second (0: no limit); next_at: when the next job may start at that rate; logs_in: whether the role could log in when it bound them; stopped: why the queue was paused';

-- Recurring jobs, and when pg_cron last pushed each
CREATE SEQUENCE queue_data.schedule_id AS integer;
COMMENT ON SEQUENCE queue_data.schedule_id IS 'numbers of schedules';
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
COMMENT ON INDEX queue_data.schedule_id_idx IS 'schedules by number';
COMMENT ON INDEX queue_data.schedule_name_idx IS 'schedules by project and name';
COMMENT ON TABLE queue_data.schedule IS
'recurring jobs: what is pushed to which queue, and when that was last done; pg_cron has a job "queue <id>" for each';

-- The key with which claim ids are signed, so that a forged one is detected
-- without reading any message.  The oldest row counts: a restored database has
-- two, and the claims in it were signed with the key in the dump.
CREATE TABLE queue_data.secret (
    created_at  timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(),
    key         bytea NOT NULL
) USING heap;
COMMENT ON TABLE queue_data.secret IS 'the key with which claim ids are signed';
INSERT INTO queue_data.secret (key)
SELECT pg_catalog.uuid_send(pg_catalog.gen_random_uuid())
       OPERATOR(pg_catalog.||) pg_catalog.uuid_send(pg_catalog.gen_random_uuid());

SELECT pg_catalog.pg_extension_config_dump('queue_data.queue_id', '');
SELECT pg_catalog.pg_extension_config_dump('queue_data.message_id', '');
SELECT pg_catalog.pg_extension_config_dump('queue_data.queue',
    'WHERE queue_data.roles_exist(name, owner, push_roles, claim_roles, admin_roles)');
SELECT pg_catalog.pg_extension_config_dump('queue_data.dedup_key', '');
-- Without those of roles that do not exist any more: in the dump they are
-- numbers, which may belong to another role where it is restored.
SELECT pg_catalog.pg_extension_config_dump('queue_data.handler',
    'WHERE role IN (SELECT oid FROM pg_catalog.pg_roles)');
SELECT pg_catalog.pg_extension_config_dump('queue_data.schedule_id', '');
SELECT pg_catalog.pg_extension_config_dump('queue_data.schedule',
    'WHERE role IN (SELECT oid FROM pg_catalog.pg_roles)');
SELECT pg_catalog.pg_extension_config_dump('queue_data.secret', '');
SELECT pg_catalog.pg_extension_config_dump('queue_data.root_job', '');
SELECT pg_catalog.pg_extension_config_dump('queue_data.grouped', '');
SELECT pg_catalog.pg_extension_config_dump('queue_data.job_counter', '');

-- The extension's functions write without firing triggers.  These triggers
-- notice other SQL, such as a restore, because shared memory knows nothing of
-- the rows that it writes or deletes.
CREATE FUNCTION queue_data.restored()
RETURNS trigger
AS 'MODULE_PATHNAME', 'sql_queue_restored'
LANGUAGE C;
COMMENT ON FUNCTION queue_data.restored() IS
'trigger of the tables of queues, messages and handlers: other SQL than the extension''s functions has written or deleted rows; at commit, sessions and the background worker discard what they have cached of these tables';
REVOKE ALL ON FUNCTION queue_data.restored() FROM PUBLIC;
DO $$
DECLARE
    part text;
BEGIN
    FOREACH part IN ARRAY
        (SELECT pg_catalog.array_agg('message_' OPERATOR(pg_catalog.||) s::text)
         FROM pg_catalog.generate_series(0, 15) AS s)
        OPERATOR(pg_catalog.||)
        '{delayed_0,delayed_1,delayed_2,delayed_3,queue,handler}'::text[]
    LOOP
        EXECUTE pg_catalog.format('
            CREATE TRIGGER restored
                AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE ON queue_data.%1$I
                FOR EACH STATEMENT EXECUTE FUNCTION queue_data.restored();
            ALTER TABLE queue_data.%1$I ENABLE ALWAYS TRIGGER restored;
            COMMENT ON TRIGGER restored ON queue_data.%1$I IS
                ''notices rows that other SQL has written or deleted'';', part);
    END LOOP;
END
$$;

-- Queues are not replicated logically: a subscription writes no rows here.  An
-- UPDATE that is published needs a replica identity nevertheless, or the
-- subscriber cannot apply what else is in its publication.
ALTER TABLE queue_data.ring REPLICA IDENTITY FULL;
ALTER TABLE queue_data.segment REPLICA IDENTITY FULL;
ALTER TABLE queue_data.secret REPLICA IDENTITY FULL;
CREATE FUNCTION queue_data.not_replicated()
RETURNS trigger
AS 'MODULE_PATHNAME', 'sql_queue_not_replicated'
LANGUAGE C;
COMMENT ON FUNCTION queue_data.not_replicated() IS
'trigger of all tables of the extension: leaves out the rows that a subscription writes';
REVOKE ALL ON FUNCTION queue_data.not_replicated() FROM PUBLIC;
DO $$
DECLARE
    part text;
BEGIN
    FOR part IN
        SELECT c.relname FROM pg_catalog.pg_class AS c
        WHERE c.relnamespace OPERATOR(pg_catalog.=) 'queue_data'::regnamespace
        AND c.relkind OPERATOR(pg_catalog.=) 'r'
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

-- All messages and their states, for people.  Programs use the functions.
-- expires_at is computed as in message_row.c; 1209600 is QUEUE_LIFETIME_MAX.
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
                   m.claim_token, m.claim_count,
                   m.priority, m.client_id, m.attributes, m.group_key,
                   m.headers, m.body, %s
            FROM queue_data.%I m',
            part,
            CASE WHEN part OPERATOR(pg_catalog.~~) 'delayed%'
                 THEN 'm.due_at' ELSE 'NULL::timestamptz' END,
            part);
    END LOOP;
    EXECUTE '
        CREATE VIEW queue_data.message
            (relation, project, queue, id, state, priority, created_at,
             expires_at, claimed_at, claimed_until, claim_count, due_at,
             client_id, group_key, headers, attributes, body) AS
        SELECT u.relation, q.project, q.name, u.id,
               CASE
                   WHEN u.claim_token OPERATOR(pg_catalog.<>) 0
                        AND u.claimed_until OPERATOR(pg_catalog.>) c.now
                       THEN ''claimed''
                   WHEN e.expires_at OPERATOR(pg_catalog.<=) c.now
                       THEN ''expired''
                   WHEN u.due_at OPERATOR(pg_catalog.>) c.now
                       THEN ''delayed''
                   ELSE ''free''
               END,
               u.priority, u.created_at, e.expires_at,
               e.claimed_at, e.claimed_until,
               COALESCE(u.claim_count, 0), u.due_at, u.client_id,
               u.group_key, u.headers, u.attributes, u.body
        FROM (' OPERATOR(pg_catalog.||)
        pg_catalog.regexp_replace(arms, 'UNION ALL', '') OPERATOR(pg_catalog.||) ')
             AS u (relation, id, queue_id, created_at, ttl, claim_ttl,
                   claim_grace, claimed_until, claim_token, claim_count, priority,
                   client_id, attributes, group_key, headers, body, due_at)
             JOIN queue_data.queue q ON q.id OPERATOR(pg_catalog.=) u.queue_id
             CROSS JOIN LATERAL
             (SELECT CASE WHEN u.claim_token OPERATOR(pg_catalog.<>) 0
                          THEN u.claimed_until OPERATOR(pg_catalog.-)
                               pg_catalog.make_interval(secs => u.claim_ttl)
                     END,
                     CASE WHEN u.claim_token OPERATOR(pg_catalog.<>) 0
                          THEN u.claimed_until END) AS t (claimed_at, claimed_until)
             CROSS JOIN LATERAL
             (SELECT t.claimed_at, t.claimed_until,
                     GREATEST(u.created_at OPERATOR(pg_catalog.+)
                              pg_catalog.make_interval(secs => u.ttl),
                              LEAST(t.claimed_until OPERATOR(pg_catalog.+)
                                    pg_catalog.make_interval(secs => u.claim_grace),
                                    t.claimed_at OPERATOR(pg_catalog.+)
                                    pg_catalog.make_interval(secs => 1209600))))
             AS e (claimed_at, claimed_until, expires_at)
             CROSS JOIN LATERAL
             (SELECT pg_catalog.clock_timestamp()) AS c (now)';
END
$$;
COMMENT ON VIEW queue_data.message IS
'every message and its state: free, claimed, delayed or expired';

--
-- Functions
--
-- Each is documented above its C function.  The C code checks privileges on the
-- queue; EXECUTE only excludes roles that are members of none of the three.
--
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
'queues of the session''s project by name, after the marker, at most limit (1 to 10000) of them, names matching the regular expression pattern. Source: Zaqar, list queues';

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
'exact counts of the messages of queue q, and its oldest and newest one (ages in seconds); an unknown queue counts 0. Takes time in proportion to the queue. Errors: 22023/22004 name. Source: Zaqar, get queue stats';

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
'the groups of queue q that have messages, by key, after marker, at most limit (1 to 10000): exact counts, and the age in seconds of the message with the lowest id; messages without a key are the first group, with a NULL key (the marker '''' begins after it); reads every message of the queue. Errors: 22023/22004 name or limit';

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

CREATE FUNCTION queue_push(
    q text,
    body jsonb,
    ttl integer DEFAULT NULL,
    delay integer DEFAULT NULL,
    priority integer DEFAULT 0,
    dedup_key text DEFAULT NULL,
    group_key text DEFAULT NULL,
    headers jsonb DEFAULT NULL)
RETURNS bigint
AS 'MODULE_PATHNAME', 'sql_queue_push'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION queue_push(text, jsonb, integer, integer, integer, text, text, jsonb) IS
'pushes one message that lives ttl seconds and is handed out after delay seconds, priority 0 to 9 (higher first); returns its id, NULL when an unclaimed message with this dedup_key waits. group_key: 1 to 256 bytes, the message''s group. headers: returned with the message, counted toward the size of its body. Errors: 22023/22004 argument, 54000 body too large, 42704 unknown queue with queue.auto_create off, 42501. Source: Zaqar, post message; MediaWiki, JobQueue::push';

CREATE FUNCTION queue_push_batch(
    q text,
    bodies jsonb[],
    ttl integer DEFAULT NULL,
    delay integer DEFAULT NULL,
    priority integer DEFAULT 0,
    group_keys text[] DEFAULT NULL)
RETURNS bigint[]
AS 'MODULE_PATHNAME', 'sql_queue_push_batch'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION queue_push_batch(text, jsonb[], integer, integer, integer, text[]) IS
'pushes one message for each body, all or nothing, and returns their ids in that order; group_keys has one element for each. Arguments and errors: as queue_push; at most queue.max_push_count bodies. Source: MediaWiki, JobQueue::batchPush';

CREATE FUNCTION queue_post(q text, messages jsonb)
RETURNS bigint[]
AS 'MODULE_PATHNAME', 'sql_queue_post'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION queue_post(text, jsonb) IS
'pushes an array of {"body", "ttl", "delay", "priority", "dedup_key", "group_key", "headers"} (only body is required), all or nothing, and returns the ids in that order, NULL where one was dropped as a duplicate. Errors: as queue_push. Source: Zaqar, post messages';

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
'deletes one message, with claim_id only as part of that claim; false: there is no such message. Errors: QU001 the claim is not live, QU002 the message is not in that claim, QU003 the message is claimed and no claim_id was given, 22004 id is NULL, 42501. Source: Zaqar, delete a specific message';

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
'deletes the remaining messages of a claim (NULL: there is none yet) and claims the next messages as queue_claim does, in one call. Errors: QU001 the claim is not live; as queue_claim';

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
'describes a live claim in one row: for how many seconds it was claimed or renewed, how many have passed since, its grace in seconds, when it ends, how many messages it has. No row: the id is NULL, malformed, unknown or not live. Errors: 42501. Source: Zaqar, query claim';

CREATE FUNCTION claim_messages(q text, claim_id text)
RETURNS SETOF queue_message
AS 'MODULE_PATHNAME', 'sql_claim_messages'
LANGUAGE C VOLATILE PARALLEL UNSAFE ROWS 10;
COMMENT ON FUNCTION claim_messages(text, text) IS
'the messages that are still in a live claim, highest priority first, oldest first. No row: the id is NULL, malformed, unknown or not live. Errors: 42501. Source: Zaqar, query claim';

CREATE FUNCTION claim_renew(
    q text,
    claim_id text,
    ttl integer,
    grace integer DEFAULT NULL)
RETURNS timestamptz
AS 'MODULE_PATHNAME', 'sql_claim_renew'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION claim_renew(text, text, integer, integer) IS
'restarts a claim: it ends ttl seconds from now, and the lifetime of its messages is extended to at least grace seconds (NULL: as before) beyond that; returns when it ends, NULL when there is no such live claim. Errors: 22023/22004 argument, 42501. Source: Zaqar, update (renew) claim';

CREATE FUNCTION claim_release(q text, claim_id text, delay integer DEFAULT 0)
RETURNS bigint
AS 'MODULE_PATHNAME', 'sql_claim_release'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION claim_release(text, text, integer) IS
'gives the remaining messages of a claim back, free after delay seconds; those that were claimed as often as the queue allows become dead letters. Returns the number of messages, 0 when there is no such live claim. Errors: 22023/22004 argument, 42501. Source: Zaqar, release claim';

CREATE FUNCTION claim_complete(q text, claim_id text)
RETURNS bigint
AS 'MODULE_PATHNAME', 'sql_claim_complete'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION claim_complete(text, text) IS
'deletes the remaining messages of a claim and returns their number. Errors: QU001 the claim is not live, 42501. Source: MediaWiki, JobQueue::ack, for a batch';

CREATE FUNCTION queue_dead_letters(q text, "limit" integer DEFAULT 10)
RETURNS TABLE (
    id bigint,
    body jsonb,
    origin_queue text,
    origin_id bigint,
    reason text,
    last_error text,
    claim_count integer,
    died_at timestamptz)
AS 'MODULE_PATHNAME', 'sql_queue_dead_letters'
LANGUAGE C VOLATILE PARALLEL UNSAFE ROWS 10;
COMMENT ON FUNCTION queue_dead_letters(text, integer) IS
'dead letters in queue q, oldest first, at most limit (1 to 10000) of them: where each came from and why. Errors: 22023/22004 argument, 42501. Source: Zaqar, dead letter queue';

CREATE FUNCTION queue_redrive(
    q text,
    target text DEFAULT NULL,
    "limit" integer DEFAULT NULL)
RETURNS bigint
AS 'MODULE_PATHNAME', 'sql_queue_redrive'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION queue_redrive(text, text, integer) IS
'moves up to limit (NULL: all) dead letters of queue q, oldest first, back to the queues that they came from or to target, as new messages with claim_count 0; returns their number. Errors: 42704 no such queue, 42501 no right to claim from q or to push to the target; without a target also if the original queue was dropped and another role has created one of that name. Source: Amazon SQS, redrive';

CREATE FUNCTION queue_push_lazy(
    q text,
    body jsonb,
    ttl integer DEFAULT NULL,
    delay integer DEFAULT NULL,
    priority integer DEFAULT 0,
    dedup_key text DEFAULT NULL,
    group_key text DEFAULT NULL,
    headers jsonb DEFAULT NULL)
RETURNS void
AS 'MODULE_PATHNAME', 'sql_queue_push_lazy'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION queue_push_lazy(text, jsonb, integer, integer, integer, text, text, jsonb) IS
'pushes one message when the transaction commits, after its own work; a push that fails then is logged as a warning and does not fail the transaction. Arguments: as queue_push. Errors, at once: 22023/22004 argument, 54000 body too large. Source: MediaWiki, JobQueueGroup::lazyPush';

CREATE FUNCTION queue_dedup_key(body jsonb, ignore text[] DEFAULT '{}')
RETURNS text
AS 'MODULE_PATHNAME', 'sql_queue_dedup_key'
LANGUAGE C IMMUTABLE PARALLEL SAFE;
COMMENT ON FUNCTION queue_dedup_key(jsonb, text[]) IS
'a digest of body, to be used as dedup_key: the same for all bodies that are equal as jsonb. Keys of body that begin with rootJob, and those in ignore, are left out. Errors: 22004 argument. Source: MediaWiki, Job::getDeduplicationInfo';

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
'gives one claimed message back, to be handed out after delay seconds (NULL: as _retry_delay and _retry_backoff of the queue say), and stores error with it; returns when it is due, NULL when it was claimed _max_claim_count times and became a dead letter. Errors: QU001 the claim is not live, QU002 the message is not in that claim, 22023/22004 argument, 42501. Source: MediaWiki, retries of a job';

CREATE FUNCTION job_root(q text, signature text)
RETURNS jsonb
AS 'MODULE_PATHNAME', 'sql_job_root'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION job_root(text, text) IS
'registers a new root job and returns {"rootJobSignature", "rootJobTimestamp"} for the bodies of its leaves; once this transaction has committed, leaves of earlier roots with that signature are dropped as duplicates instead of being handed out. Errors: 22023/22004 argument, 42704 unknown queue with queue.auto_create off, 42501 no right to push. Source: MediaWiki, Job::newRootJobParams';

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
'one row: what became of the messages of queue q since that time, and its last error, or that of a schedule whose latest run has failed (NULL without the right to claim); an unknown queue counts 0. Source: MediaWiki, counts of a job runner';

-- Whatever the default privileges of the database are
REVOKE ALL ON SCHEMA queue_data FROM PUBLIC;
REVOKE ALL ON ALL TABLES IN SCHEMA queue_data FROM PUBLIC;
REVOKE ALL ON ALL SEQUENCES IN SCHEMA queue_data FROM PUBLIC;

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
'binds queue q to a function (queue_message) or (jsonb) that returns boolean, to be called for each message as the current role, at most concurrency at a time, for at most timeout seconds each (NULL: queue.max_handler_time, which bounds it), at most rate per second; teardown is called after each attempt; a NULL handler unbinds. Errors: 42704 unknown queue, 22023/22004 argument, 42501 not the owner, or no privilege to execute the function. Source: MediaWiki, Job::run, Job::tearDown';

CREATE FUNCTION job_schedule(name text, cron text, q text, body jsonb)
RETURNS void
AS 'MODULE_PATHNAME', 'sql_job_schedule'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION job_schedule(text, text, text, jsonb) IS
'pushes body to queue q at the times of the cron expression, through pg_cron, at most once for each time, as the current role; replaces a schedule of that name; a WARNING if pg_cron may be unable to run it. Errors: 55000 pg_cron is not in this database, 22023/22004 argument, 42501 may not push or use pg_cron, or the schedule belongs to another role';

CREATE FUNCTION job_unschedule(name text)
RETURNS boolean
AS 'MODULE_PATHNAME', 'sql_job_unschedule'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION job_unschedule(text) IS
'ends a schedule; false: there was none. Errors: 42501 it belongs to another role';

CREATE FUNCTION job_due(schedule integer)
RETURNS boolean
AS 'MODULE_PATHNAME', 'sql_job_due'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION job_due(integer) IS
'called by pg_cron for a schedule: pushes its message, unless that was done for this time';

CREATE PROCEDURE job_run(
    queues text[] DEFAULT NULL,
    max_jobs integer DEFAULT NULL,
    max_time integer DEFAULT NULL,
    INOUT result jsonb DEFAULT NULL)
AS 'MODULE_PATHNAME', 'sql_job_run'
LANGUAGE C;
COMMENT ON PROCEDURE job_run(text[], integer, integer, jsonb) IS
'runs jobs of these queues (NULL: all that have a handler whose role the caller may act as), at most max_jobs, and starts none after max_time seconds; result: ok and failed (numbers of attempts), elapsed (seconds), reached (none-ready, job-limit or time-limit). Errors: 42704 unknown queue or no handler, 22023/22004 argument, 42501 may not act as the role, 25001 inside a transaction block. Source: MediaWiki, JobRunner::run';

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
REVOKE ALL ON FUNCTION queue_data.workers() FROM PUBLIC;
GRANT EXECUTE ON FUNCTION queue_data.workers() TO queue_admin;

CREATE VIEW queue_data.queue_workers AS
SELECT d.datname AS database, w.state, w.pid, w.last_run, w.next_run, w.rounds,
       w.expired_claims, w.dead_letters, w.removed, w.notifications,
       w.switches, w.truncated, w.moved, w.last_error, w.last_error_at
FROM queue_data.workers() AS w
     JOIN pg_catalog.pg_database AS d
         ON d.oid OPERATOR(pg_catalog.=) w.database;
COMMENT ON VIEW queue_data.queue_workers IS
'the background workers, one row for each database: state, last and next run, what it has done since the server started, last error';
GRANT USAGE ON SCHEMA queue_data TO queue_admin;
REVOKE ALL ON queue_data.queue_workers FROM PUBLIC;
GRANT SELECT ON queue_data.queue_workers TO queue_admin;
GRANT SELECT ON queue_data.queue_roles TO queue_admin;

CREATE FUNCTION queue_data.runners(
    OUT database oid, OUT role oid, OUT pid integer, OUT state text,
    OUT since timestamptz, OUT queue_id integer, OUT message_id bigint)
RETURNS SETOF record
AS 'MODULE_PATHNAME', 'sql_queue_runners'
LANGUAGE C VOLATILE PARALLEL RESTRICTED;
COMMENT ON FUNCTION queue_data.runners() IS
'the rows of the view queue_runners, of all databases, with OIDs';
REVOKE ALL ON FUNCTION queue_data.runners() FROM PUBLIC;
GRANT EXECUTE ON FUNCTION queue_data.runners() TO queue_admin;

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
REVOKE ALL ON queue_data.queue_runners FROM PUBLIC;
GRANT SELECT ON queue_data.queue_runners TO queue_admin;

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
       CASE WHEN NOT q.paused THEN 'active'
            WHEN h.stopped IS NULL THEN 'paused'
            ELSE 'stopped'
       END AS state,
       CASE WHEN q.paused THEN h.stopped END AS reason
FROM queue_data.handler AS h
     JOIN queue_data.queue AS q ON q.id OPERATOR(pg_catalog.=) h.queue_id;
COMMENT ON VIEW queue_data.queue_handlers IS
'the handlers of queues: active, paused by a command, or stopped because the handler cannot run, with the reason';
REVOKE ALL ON queue_data.queue_handlers FROM PUBLIC;
GRANT SELECT ON queue_data.queue_handlers TO queue_admin;

-- What queue_monitor may read: numbers of queues and processes, no message.
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
REVOKE ALL ON FUNCTION queue_data.status() FROM PUBLIC;

CREATE VIEW queue_data.queue_status AS
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
       END AS handler_state
FROM queue_data.queue AS q
     JOIN s ON s.queue_id OPERATOR(pg_catalog.=) q.id
     LEFT JOIN s AS d ON d.queue_id OPERATOR(pg_catalog.=) q.dead_queue_id
     LEFT JOIN queue_data.handler AS h
         ON h.queue_id OPERATOR(pg_catalog.=) q.id;
COMMENT ON VIEW queue_data.queue_status IS
'one row for each queue of all projects: its messages by state, counted as they change and at most two seconds late, and those in its dead letter queue, the age in seconds of the oldest ready one, what was counted since job_stats.since, and its handler: none, idle, running, paused by a command, or stopped because it cannot run';
REVOKE ALL ON queue_data.queue_status FROM PUBLIC;

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
REVOKE ALL ON FUNCTION queue_data.segment_holders() FROM PUBLIC;

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
REVOKE ALL ON queue_data.segment_status FROM PUBLIC;

-- Where claims scan, and why one takes long.
CREATE FUNCTION queue_data.maps(
    OUT queue_id integer, OUT state text, OUT ready boolean,
    OUT unscanned bigint, OUT ranges integer, OUT numbers bigint,
    OUT uncertain boolean, OUT lanes integer, OUT reservations integer,
    OUT claims_wait boolean, OUT waiters integer, OUT incarnation bigint,
    OUT next_visit timestamptz, OUT full_scan_at timestamptz)
RETURNS SETOF record
AS 'MODULE_PATHNAME', 'sql_queue_maps'
LANGUAGE C VOLATILE PARALLEL RESTRICTED;
COMMENT ON FUNCTION queue_data.maps() IS
'the rows of the view availability_map, with the queues'' numbers';
REVOKE ALL ON FUNCTION queue_data.maps() FROM PUBLIC;

CREATE VIEW queue_data.availability_map AS
SELECT q.project, q.name AS queue, m.state, m.ready, m.unscanned, m.ranges,
       m.numbers, m.uncertain, m.lanes, m.reservations, m.claims_wait,
       m.waiters, m.incarnation, m.next_visit, m.full_scan_at
FROM queue_data.maps() AS m
     JOIN queue_data.queue AS q ON q.id OPERATOR(pg_catalog.=) m.queue_id;
COMMENT ON VIEW queue_data.availability_map IS
'the availability maps of the queues of this database: what claims have to scan, the scans and waits under way, and when the background worker visits the queue';
REVOKE ALL ON queue_data.availability_map FROM PUBLIC;

GRANT USAGE ON SCHEMA queue_data TO queue_monitor;
GRANT EXECUTE ON FUNCTION queue_data.status(), queue_data.workers(),
    queue_data.runners(), queue_data.segment_holders(), queue_data.maps()
    TO queue_monitor;
GRANT SELECT ON queue_data.queue_status, queue_data.queue_workers,
    queue_data.queue_runners, queue_data.segment_status,
    queue_data.availability_map TO queue_monitor;
GRANT EXECUTE ON FUNCTION queue_data.status(), queue_data.segment_holders(),
    queue_data.maps() TO queue_admin;
GRANT SELECT ON queue_data.queue_status, queue_data.segment_status,
    queue_data.availability_map TO queue_admin;

--
-- Privileges
--

-- Every function outside of queue_data is for users.
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
