/* src/sql/queue--1.0--1.1.sql */

-- complain if script is sourced in psql, rather than via ALTER EXTENSION
\echo Use "ALTER EXTENSION queue UPDATE TO '1.1'" to load this file. \quit

-- An error with a hint if the session has loaded an older library.
SELECT queue_data.library_version('1.1');

--
-- Comments: errors and results that those of 1.0 leave out
--

COMMENT ON FUNCTION queue_list(text, integer, text) IS
'queues of the session''s project by name, after the marker, at most limit (1 to 10000) of them, names matching the regular expression pattern. Errors: 22023/22004 limit, 2201B pattern. Source: Zaqar, list queues';
COMMENT ON FUNCTION queue_redrive(text, text, integer) IS
'moves up to limit (NULL: all) dead letters of queue q, oldest first, back to the queues that they came from or to target, as new messages with claim_count 0; returns their number. Errors: 22023/22004 argument, 42704 unknown target with queue.auto_create off, 42501 no right to claim from q or to push to the target; without a target also if the original queue was dropped and another role has created one of that name. Source: Amazon SQS, redrive';
COMMENT ON FUNCTION job_handler(text, regprocedure, integer, integer, real, regprocedure) IS
'binds queue q to a function (queue_message) or (jsonb) that returns boolean, to be called for each message as the current role, at most concurrency at a time, for at most timeout seconds each (NULL: queue.max_handler_time, which bounds it), at most rate per second; teardown is called after each attempt; a NULL handler unbinds. Errors: 42704 unknown queue, 42883 no such function, 22023/22004 argument, 42501 not the owner, or no privilege to execute the function. Source: MediaWiki, Job::run, Job::tearDown';
COMMENT ON PROCEDURE job_run(text[], integer, integer, jsonb) IS
'runs jobs of these queues (NULL: all that have a handler whose role the caller may act as), at most max_jobs, and starts none after max_time seconds; result: ok and failed (numbers of attempts), elapsed (seconds), reached (none-ready, job-limit or time-limit). Errors: 42704 unknown queue or no handler, 22023/22004 argument, 42501 may not act as the role, 25001 inside a transaction block, 55000 open cursors in a session of another role. Source: MediaWiki, JobRunner::run';
COMMENT ON FUNCTION job_due(integer) IS
'called by pg_cron for a schedule: pushes its message, unless that was done for this time; true: pushed, false: it was done, or there is no such schedule. Errors: 22004 schedule, 42501 it belongs to another role; as queue_push';
COMMENT ON FUNCTION queue_data.record_roles() IS
'records the roles in queue_data.queue_roles in pg_shdepend, so that they cannot be dropped; call it after pg_upgrade. Errors: 25006 read-only';

--
-- Shards
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
REVOKE ALL ON queue_data.server FROM PUBLIC;
SELECT pg_catalog.pg_extension_config_dump('queue_data.server', '');

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
COMMENT ON INDEX queue_data.shard_idx IS 'shards by number';
COMMENT ON TABLE queue_data.shard IS
'the map of the 256 shards of a sharded database: state is local or remote; peer is the name of the server that has the shard';
REVOKE ALL ON queue_data.shard FROM PUBLIC;
SELECT pg_catalog.pg_extension_config_dump('queue_data.shard', '');

CREATE FUNCTION queue_data.shard_written()
RETURNS trigger
AS 'MODULE_PATHNAME', 'sql_queue_shard_written'
LANGUAGE C;
COMMENT ON FUNCTION queue_data.shard_written() IS
'trigger of queue_data.shard and queue_data.server: SQL, such as that of a restore, has written the map; at commit, all sessions read it again, and those that wait for a queue whose shard has come or gone are woken';
REVOKE ALL ON FUNCTION queue_data.shard_written() FROM PUBLIC;
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
                ''has all sessions read the map again'';
            CREATE TRIGGER not_replicated
                BEFORE INSERT OR UPDATE OR DELETE ON queue_data.%1$I
                FOR EACH ROW EXECUTE FUNCTION queue_data.not_replicated();
            ALTER TABLE queue_data.%1$I ENABLE ALWAYS TRIGGER not_replicated;
            COMMENT ON TRIGGER not_replicated ON queue_data.%1$I IS
                ''leaves out the rows that a subscription writes'';', part);
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

CREATE FUNCTION queue_shard(q text, project text DEFAULT NULL)
RETURNS integer
AS 'MODULE_PATHNAME', 'sql_queue_shard'
LANGUAGE C STABLE PARALLEL SAFE;
COMMENT ON FUNCTION queue_shard(text, text) IS
'the shard of a queue of a project (NULL: the session''s), 0 to 255, whether or not the queue exists: the first byte of the SHA-256 of the name without all trailing ".dead", a space and the project, in UTF-8. Errors: 22004/22023 argument';
REVOKE ALL ON FUNCTION queue_shard(text, text) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION queue_shard(text, text)
    TO queue_producer, queue_consumer, queue_admin;

CREATE FUNCTION queue_shard_init(server integer, servers integer)
RETURNS void
AS 'MODULE_PATHNAME', 'sql_queue_shard_init'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION queue_shard_init(integer, integer) IS
'makes a database without queues one of several servers: the shards with shard % servers = server % servers are in it, or none if server is greater than servers. For superusers and the owner of the extension. Errors: 55000 the database is sharded or has queues, 22004/22023 argument, 42501 not the owner, 25006 read-only';
REVOKE ALL ON FUNCTION queue_shard_init(integer, integer) FROM PUBLIC;

CREATE FUNCTION queue_data.shard_lock(shard integer)
RETURNS void
AS 'MODULE_PATHNAME', 'sql_queue_shard_lock'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION queue_data.shard_lock(integer) IS
'locks a shard until the transaction ends, so that no queue is created in it: for queue_shard_move. Errors: 22004/22023 argument, 42501 not the owner, 25006 read-only';
REVOKE ALL ON FUNCTION queue_data.shard_lock(integer) FROM PUBLIC;

CREATE FUNCTION queue_data.counts(queue_id integer)
RETURNS bigint[]
AS 'MODULE_PATHNAME', 'sql_queue_counts'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION queue_data.counts(integer) IS
'what was counted of a queue, in the order of the columns of job_counter: for queue_shard_move. Errors: 22004 argument, 42501 not the owner';
REVOKE ALL ON FUNCTION queue_data.counts(integer) FROM PUBLIC;

CREATE FUNCTION queue_data.count_copied(queue_id integer)
RETURNS void
AS 'MODULE_PATHNAME', 'sql_queue_count_copied'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION queue_data.count_copied(integer) IS
'counts the messages of a queue, which COPY has written in this transaction: for queue_shard_move. Errors: 22004 argument, 42501 not the owner, 25006 read-only';
REVOKE ALL ON FUNCTION queue_data.count_copied(integer) FROM PUBLIC;

--
-- For queue_proxy
--
-- The roles that the router calls for have no privilege on schema queue_data.
--
CREATE SCHEMA queue_router;
COMMENT ON SCHEMA queue_router IS
'functions of the extension queue for routers (queue_proxy)';
REVOKE ALL ON SCHEMA queue_router FROM PUBLIC;
GRANT USAGE ON SCHEMA queue_router
    TO queue_producer, queue_consumer, queue_admin;

CREATE FUNCTION queue_router.wait(q text, timeout_ms integer)
RETURNS boolean
AS 'MODULE_PATHNAME', 'sql_queue_wait_in_statement'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION queue_router.wait(text, integer) IS
'waits within the statement until queue q has something to claim, at most timeout_ms milliseconds; whether it has. For the extension queue_proxy; others call queue_wait. Errors: 22004 and 22023 arguments, 42501 no right to claim, 25006 read-only';
REVOKE ALL ON FUNCTION queue_router.wait(text, integer) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION queue_router.wait(text, integer)
    TO queue_producer, queue_consumer, queue_admin;

CREATE FUNCTION queue_router.call_settings(settings text[])
RETURNS boolean
AS 'MODULE_PATHNAME', 'sql_queue_call_settings'
LANGUAGE C VOLATILE STRICT PARALLEL UNSAFE;
COMMENT ON FUNCTION queue_router.call_settings(text[]) IS
'sets queue.project, queue.client_id, queue.durable_claims, lock_timeout and transaction_read_only to these values until the transaction ends; NULL leaves one as it is. For the extension queue_proxy. Errors: those of SET; 22023 another number of values';
REVOKE ALL ON FUNCTION queue_router.call_settings(text[]) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION queue_router.call_settings(text[])
    TO queue_producer, queue_consumer, queue_admin;

--
-- Pushes that take effect once
--

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
COMMENT ON INDEX queue_data.push_origin_idx IS
'pushes by queue, origin and id';
COMMENT ON INDEX queue_data.push_origin_time_idx IS
'pushes of a queue by age';
COMMENT ON TABLE queue_data.push_origin IS
'what queue_push_once has pushed within the last 28 days: the origin and its id, and the message';
REVOKE ALL ON queue_data.push_origin FROM PUBLIC;
SELECT pg_catalog.pg_extension_config_dump('queue_data.push_origin', '');
CREATE TRIGGER not_replicated
    BEFORE INSERT OR UPDATE OR DELETE ON queue_data.push_origin
    FOR EACH ROW EXECUTE FUNCTION queue_data.not_replicated();
ALTER TABLE queue_data.push_origin ENABLE ALWAYS TRIGGER not_replicated;
COMMENT ON TRIGGER not_replicated ON queue_data.push_origin IS
'leaves out the rows that a subscription writes';

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
    headers jsonb DEFAULT NULL)
RETURNS bigint
AS 'MODULE_PATHNAME', 'sql_queue_push_once'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION queue_push_once(text, text, bigint, jsonb, integer, integer, integer, text, text, jsonb) IS
'pushes one message, unless a call with this queue, origin (1 to 256 bytes) and origin_id did so in the last 28 days, and returns what that call has returned: the id, NULL when it was dropped as a duplicate. A call that is in progress is waited for. Other arguments and errors: as queue_push';
REVOKE ALL ON FUNCTION queue_push_once(text, text, bigint, jsonb, integer, integer, integer, text, text, jsonb)
    FROM PUBLIC;
GRANT EXECUTE ON FUNCTION queue_push_once(text, text, bigint, jsonb, integer, integer, integer, text, text, jsonb)
    TO queue_producer, queue_consumer, queue_admin;
