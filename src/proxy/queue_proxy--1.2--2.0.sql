/* src/proxy/queue_proxy--1.2--2.0.sql */

-- complain if script is sourced in psql, rather than via ALTER EXTENSION
\echo Use "ALTER EXTENSION queue_proxy UPDATE TO '2.0'" to load this file. \quit

-- What the servers' functions do since 2.0
COMMENT ON FUNCTION @extschema@.queue_post(text, jsonb, text, text) IS
'pushes an array of {"body", "ttl", "delay", "priority", "dedup_key", "group_key", "headers", "batch", "after", "after_success", "at", "dedup", "dedup_for"} (only body is required), all or nothing, and returns the ids in that order, NULL where one was dropped as a duplicate. If q is NULL, each object has a field "queue", too. Errors: as queue_push; 22004 a message without a queue. Source: Zaqar, post messages; MediaWiki, JobQueueGroup::push';
COMMENT ON FUNCTION @extschema@.queue_stats(text, text, text) IS
'exact counts of the messages of queue q, and its oldest and newest one (ages in seconds); an unknown queue counts 0. Takes time in proportion to the queue. Errors: 22023/22004 name, 42501 no privilege on the queue. Source: Zaqar, get queue stats';
COMMENT ON FUNCTION @extschema@.queue_step(text, text, bigint[], jsonb, jsonb, integer, integer, integer, text, text) IS
'a worker''s cycle in one call, all or nothing: of the claim (NULL: none yet), deletes the messages in done (NULL: all that are not in failed), retries those in failed ([{"id", "error", "delay", "bury"}, ...], only id, a number or a string, is required; true in bury makes it a dead letter) and gives the rest back; pushes the messages in push (as queue_post; without a field queue, to q); and claims the next as queue_claim; a limit of 0 claims nothing. Errors: QU001 the claim is not live, QU002 a message is not in it, QU004 one was canceled, 22023/22004 argument, among them a message that is named twice, 42501, those of queue_push, and with bury of message_bury. Source: claim_next';

--
-- Functions with further arguments
--
-- Each is a new one, so privileges are granted anew, at the end of this file; also what
-- was revoked from the roles of the extension is not granted to them.
SELECT pg_catalog.set_config('queue_update.grants', pg_catalog.string_agg(
    pg_catalog.format('REVOKE EXECUTE ON FUNCTION %1$s
        FROM queue_producer, queue_consumer, queue_admin; %2$s', f.new,
        (SELECT pg_catalog.string_agg(
             pg_catalog.format('GRANT EXECUTE ON FUNCTION %s TO %s%s;', f.new,
                 CASE WHEN a.grantee OPERATOR(pg_catalog.=) 0::oid THEN 'PUBLIC'
                      ELSE a.grantee::pg_catalog.regrole::text END,
                 CASE WHEN a.is_grantable THEN ' WITH GRANT OPTION' ELSE '' END), '')
         FROM pg_catalog.aclexplode(p.proacl) AS a
         WHERE a.grantee OPERATOR(pg_catalog.<>) p.proowner)), ''), true)
FROM (VALUES
    ('@extschema@.claim_release(text, text, integer, text, text)', '@extschema@.claim_release(text, text, integer, boolean, text, text)'),
    ('queue_proxy.claim_release(text, text, integer, integer, text[])', 'queue_proxy.claim_release(text, text, integer, boolean, integer, text[])'),
    ('@extschema@.job_root(text, text, text, text)', '@extschema@.job_root(text, text, timestamp with time zone, text, text)'),
    ('queue_proxy.job_root(text, text, integer, text[])', 'queue_proxy.job_root(text, text, timestamp with time zone, integer, text[])'),
    ('@extschema@.queue_push(text, jsonb, integer, integer, integer, text, text, jsonb, bigint, bigint, boolean, text, text)',
     '@extschema@.queue_push(text, jsonb, integer, integer, integer, text, text, jsonb, bigint, bigint, boolean, timestamp with time zone, text, integer, text, text)'),
    ('queue_proxy.queue_push(text, jsonb, integer, integer, integer, text, text, jsonb, bigint, bigint, boolean, integer, text[])',
     'queue_proxy.queue_push(text, jsonb, integer, integer, integer, text, text, jsonb, bigint, bigint, boolean, timestamp with time zone, text, integer, integer, text[])'),
    ('@extschema@.queue_push_batch(text, jsonb[], integer, integer, integer, text[], bigint, bigint, boolean, text, text)',
     '@extschema@.queue_push_batch(text, jsonb[], integer, integer, integer, text[], bigint, bigint, boolean, timestamp with time zone, text, text)'),
    ('queue_proxy.queue_push_batch(text, jsonb[], integer, integer, integer, text[], bigint, bigint, boolean, integer, text[])',
     'queue_proxy.queue_push_batch(text, jsonb[], integer, integer, integer, text[], bigint, bigint, boolean, timestamp with time zone, integer, text[])'),
    ('@extschema@.queue_push_lazy(text, jsonb, integer, integer, integer, text, text, jsonb, text, text)',
     '@extschema@.queue_push_lazy(text, jsonb, integer, integer, integer, text, text, jsonb, timestamp with time zone, text, integer, text, text)'),
    ('@extschema@.queue_push_once(text, text, bigint, jsonb, integer, integer, integer, text, text, jsonb, bigint, bigint, boolean, text, text)',
     '@extschema@.queue_push_once(text, text, bigint, jsonb, integer, integer, integer, text, text, jsonb, bigint, bigint, boolean, timestamp with time zone, text, integer, text, text)'),
    ('queue_proxy.queue_push_once(text, text, bigint, jsonb, integer, integer, integer, text, text, jsonb, bigint, bigint, boolean, integer, text[])',
     'queue_proxy.queue_push_once(text, text, bigint, jsonb, integer, integer, integer, text, text, jsonb, bigint, bigint, boolean, timestamp with time zone, text, integer, integer, text[])'),
    ('@extschema@.topic_publish(text, jsonb, jsonb, integer, integer, integer, text, text, text, text)',
     '@extschema@.topic_publish(text, jsonb, jsonb, integer, integer, integer, text, text, timestamp with time zone, text, text)'),
    ('@extschema@.queue_dead_letters(text, integer, text, text)',
     '@extschema@.queue_dead_letters(text, integer, bigint, text, text)'),
    ('queue_proxy.queue_dead_letters(text, integer, integer, text[])',
     'queue_proxy.queue_dead_letters(text, integer, bigint, integer, text[])'),
    ('@extschema@.queue_redrive(text, text, integer, text, text)',
     '@extschema@.queue_redrive(text, text, integer, bigint[], text, text)'),
    ('queue_proxy.queue_redrive(text, text, integer, integer, text[])',
     'queue_proxy.queue_redrive(text, text, integer, bigint[], integer, text[])'),
    ('@extschema@.job_errors(text, integer, text, text)',
     '@extschema@.job_errors(text, integer, timestamp with time zone, text, text)'),
    ('queue_proxy.job_errors(text, integer, integer, text[])',
     'queue_proxy.job_errors(text, integer, timestamp with time zone, integer, text[])')) AS f (old, new)
     JOIN pg_catalog.pg_proc AS p
         ON p.oid OPERATOR(pg_catalog.=) f.old::regprocedure::oid;

DROP FUNCTION @extschema@.claim_release(text, text, integer, text, text);
DROP FUNCTION queue_proxy.claim_release(text, text, integer, integer, text[]);
CREATE FUNCTION queue_proxy.claim_release(text, text, integer, boolean, integer, text[])
RETURNS bigint
LANGUAGE plproxy VOLATILE PARALLEL UNSAFE
AS $$
CLUSTER '';
RUN ON $5;
SELECT @extschema@.claim_release(
    CASE WHEN queue_router.call_settings($6) THEN $1 END, $2, $3, $4) AS r;
$$;

CREATE FUNCTION @extschema@.claim_release(
    q text,
    claim_id text,
    delay integer DEFAULT 0,
    failed boolean DEFAULT false,
    project text DEFAULT NULL,
    client_id text DEFAULT NULL)
RETURNS bigint
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
AS $$
DECLARE
    _settings pg_catalog.text[] := queue_proxy.settings($5, $6);
    _message pg_catalog.text;
    _detail pg_catalog.text;
    _hint pg_catalog.text;
BEGIN
    IF pg_catalog.pg_current_xact_id_if_assigned() IS NOT NULL THEN
        PERFORM queue_proxy.refuse_transaction('claim_release');
    END IF;
    RETURN queue_proxy.claim_release($1, $2, $3, $4,
        queue_proxy.shard($1, _settings[1]), _settings);
EXCEPTION WHEN OTHERS OR query_canceled THEN
    GET STACKED DIAGNOSTICS _message = MESSAGE_TEXT,
        _detail = PG_EXCEPTION_DETAIL, _hint = PG_EXCEPTION_HINT;
    PERFORM queue_proxy.reraise(SQLSTATE, _message, _detail, _hint);
END
$$;
COMMENT ON FUNCTION @extschema@.claim_release(text, text, integer, boolean, text, text) IS
'gives the remaining messages of a claim back, free after delay seconds, and removes those that were canceled. The claim does not count as an attempt at them, unless failed is true: then those that have had as many attempts as the queue allows become dead letters. Returns the number of messages without those that were canceled, 0 when there is no such live claim. Errors: 22023/22004 argument, 42501. Source: Zaqar, release claim';
REVOKE ALL ON FUNCTION @extschema@.claim_release(text, text, integer, boolean, text, text) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION @extschema@.claim_release(text, text, integer, boolean, text, text)
    TO queue_producer, queue_consumer, queue_admin;
REVOKE ALL ON FUNCTION queue_proxy.claim_release(text, text, integer, boolean, integer, text[]) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION queue_proxy.claim_release(text, text, integer, boolean, integer, text[])
    TO queue_producer, queue_consumer, queue_admin;

DROP FUNCTION @extschema@.job_root(text, text, text, text);
DROP FUNCTION queue_proxy.job_root(text, text, integer, text[]);
CREATE FUNCTION queue_proxy.job_root(text, text, timestamp with time zone, integer, text[])
RETURNS jsonb
LANGUAGE plproxy VOLATILE PARALLEL UNSAFE
AS $$
CLUSTER '';
RUN ON $4;
SELECT @extschema@.job_root(
    CASE WHEN queue_router.call_settings($5) THEN $1 END, $2, $3) AS r;
$$;

CREATE FUNCTION @extschema@.job_root(
    q text,
    signature text,
    at timestamp with time zone DEFAULT NULL::timestamp with time zone,
    project text DEFAULT NULL,
    client_id text DEFAULT NULL)
RETURNS jsonb
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
AS $$
DECLARE
    _settings pg_catalog.text[] := queue_proxy.settings($4, $5);
    _message pg_catalog.text;
    _detail pg_catalog.text;
    _hint pg_catalog.text;
BEGIN
    IF pg_catalog.pg_current_xact_id_if_assigned() IS NOT NULL THEN
        PERFORM queue_proxy.refuse_transaction('job_root');
    END IF;
    RETURN queue_proxy.job_root($1, $2, $3,
        queue_proxy.shard($1, _settings[1]), _settings);
EXCEPTION WHEN OTHERS OR query_canceled THEN
    GET STACKED DIAGNOSTICS _message = MESSAGE_TEXT,
        _detail = PG_EXCEPTION_DETAIL, _hint = PG_EXCEPTION_HINT;
    PERFORM queue_proxy.reraise(SQLSTATE, _message, _detail, _hint);
END
$$;
COMMENT ON FUNCTION @extschema@.job_root(text, text, timestamp with time zone, text, text) IS
'registers a new root job and returns {"rootJobSignature", "rootJobTimestamp"} for the bodies of its leaves; once this transaction has committed, leaves of earlier roots with that signature are dropped as duplicates instead of being handed out. at: the time that the root job has itself, which is kept as it is; equal times are one root, and a time before that of the last root changes nothing. Errors: 22023/22004 argument, 42704 unknown queue with queue.auto_create off, 42501 no right to push. Source: MediaWiki, Job::newRootJobParams';
REVOKE ALL ON FUNCTION @extschema@.job_root(text, text, timestamp with time zone, text, text) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION @extschema@.job_root(text, text, timestamp with time zone, text, text)
    TO queue_producer, queue_consumer, queue_admin;
REVOKE ALL ON FUNCTION queue_proxy.job_root(text, text, timestamp with time zone, integer, text[]) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION queue_proxy.job_root(text, text, timestamp with time zone, integer, text[])
    TO queue_producer, queue_consumer, queue_admin;

DROP FUNCTION @extschema@.queue_push(text, jsonb, integer, integer, integer, text, text, jsonb, bigint, bigint, boolean, text, text);
DROP FUNCTION queue_proxy.queue_push(text, jsonb, integer, integer, integer, text, text, jsonb, bigint, bigint, boolean, integer, text[]);
CREATE FUNCTION queue_proxy.queue_push(text, jsonb, integer, integer, integer, text, text, jsonb, bigint, bigint, boolean, timestamp with time zone, text, integer, integer, text[])
RETURNS bigint
LANGUAGE plproxy VOLATILE PARALLEL UNSAFE
AS $$
CLUSTER '';
RUN ON $15;
SELECT @extschema@.queue_push(
    CASE WHEN queue_router.call_settings($16) THEN $1 END, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14) AS r;
$$;

CREATE FUNCTION @extschema@.queue_push(
    q text,
    body jsonb,
    ttl integer DEFAULT NULL::integer,
    delay integer DEFAULT NULL::integer,
    priority integer DEFAULT 0,
    dedup_key text DEFAULT NULL::text,
    group_key text DEFAULT NULL::text,
    headers jsonb DEFAULT NULL::jsonb,
    batch bigint DEFAULT NULL::bigint,
    after bigint DEFAULT NULL::bigint,
    after_success boolean DEFAULT false,
    at timestamp with time zone DEFAULT NULL::timestamp with time zone,
    dedup text DEFAULT 'waiting'::text,
    dedup_for integer DEFAULT NULL::integer,
    project text DEFAULT NULL,
    client_id text DEFAULT NULL)
RETURNS bigint
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
AS $$
DECLARE
    _settings pg_catalog.text[] := queue_proxy.settings($15, $16);
    _message pg_catalog.text;
    _detail pg_catalog.text;
    _hint pg_catalog.text;
BEGIN
    IF pg_catalog.pg_current_xact_id_if_assigned() IS NOT NULL THEN
        PERFORM queue_proxy.refuse_transaction('queue_push');
    END IF;
    RETURN queue_proxy.queue_push($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14,
        queue_proxy.shard($1, _settings[1]), _settings);
EXCEPTION WHEN OTHERS OR query_canceled THEN
    GET STACKED DIAGNOSTICS _message = MESSAGE_TEXT,
        _detail = PG_EXCEPTION_DETAIL, _hint = PG_EXCEPTION_HINT;
    PERFORM queue_proxy.reraise(SQLSTATE, _message, _detail, _hint);
END
$$;
COMMENT ON FUNCTION @extschema@.queue_push(text, jsonb, integer, integer, integer, text, text, jsonb, bigint, bigint, boolean, timestamp with time zone, text, integer, text, text) IS
'pushes one message that lives ttl seconds and is handed out after delay seconds, priority 0 to 9 (higher first); returns its id, NULL when an unclaimed message with this dedup_key waits; with dedup unfinished also when a claimed one has it; with dedup replace, a message that waits gets body, headers and due time instead, which needs claim on the queue, and its id is returned. dedup_for: 1 to 2592000 seconds; NULL also when a push with dedup_for had the key in the last so many, whatever became of its message; that one counts for as long as it said, and an hour at least. at: when it is due, instead of delay. group_key: 1 to 256 bytes, the message''s group. headers: returned with the message, counted toward the size of its body. batch: the message is a member of it. after: the message waits until that batch has finished; with after_success it becomes a dead letter if a member failed. Errors: 22023/22004 argument, 54000 body too large, 42704 unknown queue with queue.auto_create off, unknown batch, 55000 the batch has finished, 42501. Source: Zaqar, post message; MediaWiki, JobQueue::push';
REVOKE ALL ON FUNCTION @extschema@.queue_push(text, jsonb, integer, integer, integer, text, text, jsonb, bigint, bigint, boolean, timestamp with time zone, text, integer, text, text) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION @extschema@.queue_push(text, jsonb, integer, integer, integer, text, text, jsonb, bigint, bigint, boolean, timestamp with time zone, text, integer, text, text)
    TO queue_producer, queue_consumer, queue_admin;
REVOKE ALL ON FUNCTION queue_proxy.queue_push(text, jsonb, integer, integer, integer, text, text, jsonb, bigint, bigint, boolean, timestamp with time zone, text, integer, integer, text[]) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION queue_proxy.queue_push(text, jsonb, integer, integer, integer, text, text, jsonb, bigint, bigint, boolean, timestamp with time zone, text, integer, integer, text[])
    TO queue_producer, queue_consumer, queue_admin;

DROP FUNCTION @extschema@.queue_push_batch(text, jsonb[], integer, integer, integer, text[], bigint, bigint, boolean, text, text);
DROP FUNCTION queue_proxy.queue_push_batch(text, jsonb[], integer, integer, integer, text[], bigint, bigint, boolean, integer, text[]);
CREATE FUNCTION queue_proxy.queue_push_batch(text, jsonb[], integer, integer, integer, text[], bigint, bigint, boolean, timestamp with time zone, integer, text[])
RETURNS bigint[]
LANGUAGE plproxy VOLATILE PARALLEL UNSAFE
AS $$
CLUSTER '';
RUN ON $11;
SELECT @extschema@.queue_push_batch(
    CASE WHEN queue_router.call_settings($12) THEN $1 END, $2, $3, $4, $5, $6, $7, $8, $9, $10) AS r;
$$;

CREATE FUNCTION @extschema@.queue_push_batch(
    q text,
    bodies jsonb[],
    ttl integer DEFAULT NULL::integer,
    delay integer DEFAULT NULL::integer,
    priority integer DEFAULT 0,
    group_keys text[] DEFAULT NULL::text[],
    batch bigint DEFAULT NULL::bigint,
    after bigint DEFAULT NULL::bigint,
    after_success boolean DEFAULT false,
    at timestamp with time zone DEFAULT NULL::timestamp with time zone,
    project text DEFAULT NULL,
    client_id text DEFAULT NULL)
RETURNS bigint[]
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
AS $$
DECLARE
    _settings pg_catalog.text[] := queue_proxy.settings($11, $12);
    _message pg_catalog.text;
    _detail pg_catalog.text;
    _hint pg_catalog.text;
BEGIN
    IF pg_catalog.pg_current_xact_id_if_assigned() IS NOT NULL THEN
        PERFORM queue_proxy.refuse_transaction('queue_push_batch');
    END IF;
    RETURN queue_proxy.queue_push_batch($1, $2, $3, $4, $5, $6, $7, $8, $9, $10,
        queue_proxy.shard($1, _settings[1]), _settings);
EXCEPTION WHEN OTHERS OR query_canceled THEN
    GET STACKED DIAGNOSTICS _message = MESSAGE_TEXT,
        _detail = PG_EXCEPTION_DETAIL, _hint = PG_EXCEPTION_HINT;
    PERFORM queue_proxy.reraise(SQLSTATE, _message, _detail, _hint);
END
$$;
COMMENT ON FUNCTION @extschema@.queue_push_batch(text, jsonb[], integer, integer, integer, text[], bigint, bigint, boolean, timestamp with time zone, text, text) IS
'pushes one message for each body, all or nothing, and returns their ids in that order; group_keys has one element for each. Arguments and errors: as queue_push; at most queue.max_push_count bodies. Source: MediaWiki, JobQueue::batchPush';
REVOKE ALL ON FUNCTION @extschema@.queue_push_batch(text, jsonb[], integer, integer, integer, text[], bigint, bigint, boolean, timestamp with time zone, text, text) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION @extschema@.queue_push_batch(text, jsonb[], integer, integer, integer, text[], bigint, bigint, boolean, timestamp with time zone, text, text)
    TO queue_producer, queue_consumer, queue_admin;
REVOKE ALL ON FUNCTION queue_proxy.queue_push_batch(text, jsonb[], integer, integer, integer, text[], bigint, bigint, boolean, timestamp with time zone, integer, text[]) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION queue_proxy.queue_push_batch(text, jsonb[], integer, integer, integer, text[], bigint, bigint, boolean, timestamp with time zone, integer, text[])
    TO queue_producer, queue_consumer, queue_admin;

DROP FUNCTION @extschema@.queue_push_lazy(text, jsonb, integer, integer, integer, text, text, jsonb, text, text);
CREATE FUNCTION @extschema@.queue_push_lazy(
    q text,
    body jsonb,
    ttl integer DEFAULT NULL::integer,
    delay integer DEFAULT NULL::integer,
    priority integer DEFAULT 0,
    dedup_key text DEFAULT NULL::text,
    group_key text DEFAULT NULL::text,
    headers jsonb DEFAULT NULL::jsonb,
    at timestamp with time zone DEFAULT NULL::timestamp with time zone,
    dedup text DEFAULT 'waiting'::text,
    dedup_for integer DEFAULT NULL::integer,
    project text DEFAULT NULL,
    client_id text DEFAULT NULL)
RETURNS void
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
AS $$
BEGIN
    RAISE EXCEPTION 'queue_push_lazy() cannot be called through a router'
        USING ERRCODE = 'feature_not_supported',
        HINT = 'Call queue_push(), or connect to the server of the queue.';
END
$$;
COMMENT ON FUNCTION @extschema@.queue_push_lazy(text, jsonb, integer, integer, integer, text, text, jsonb, timestamp with time zone, text, integer, text, text) IS
'raises an error, 0A000: it cannot be called through a router';
REVOKE ALL ON FUNCTION @extschema@.queue_push_lazy(text, jsonb, integer, integer, integer, text, text, jsonb, timestamp with time zone, text, integer, text, text) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION @extschema@.queue_push_lazy(text, jsonb, integer, integer, integer, text, text, jsonb, timestamp with time zone, text, integer, text, text)
    TO queue_producer, queue_consumer, queue_admin;

DROP FUNCTION @extschema@.queue_push_once(text, text, bigint, jsonb, integer, integer, integer, text, text, jsonb, bigint, bigint, boolean, text, text);
DROP FUNCTION queue_proxy.queue_push_once(text, text, bigint, jsonb, integer, integer, integer, text, text, jsonb, bigint, bigint, boolean, integer, text[]);
CREATE FUNCTION queue_proxy.queue_push_once(text, text, bigint, jsonb, integer, integer, integer, text, text, jsonb, bigint, bigint, boolean, timestamp with time zone, text, integer, integer, text[])
RETURNS bigint
LANGUAGE plproxy VOLATILE PARALLEL UNSAFE
AS $$
CLUSTER '';
RUN ON $17;
SELECT @extschema@.queue_push_once(
    CASE WHEN queue_router.call_settings($18) THEN $1 END, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16) AS r;
$$;

CREATE FUNCTION @extschema@.queue_push_once(
    q text,
    origin text,
    origin_id bigint,
    body jsonb,
    ttl integer DEFAULT NULL::integer,
    delay integer DEFAULT NULL::integer,
    priority integer DEFAULT 0,
    dedup_key text DEFAULT NULL::text,
    group_key text DEFAULT NULL::text,
    headers jsonb DEFAULT NULL::jsonb,
    batch bigint DEFAULT NULL::bigint,
    after bigint DEFAULT NULL::bigint,
    after_success boolean DEFAULT false,
    at timestamp with time zone DEFAULT NULL::timestamp with time zone,
    dedup text DEFAULT 'waiting'::text,
    dedup_for integer DEFAULT NULL::integer,
    project text DEFAULT NULL,
    client_id text DEFAULT NULL)
RETURNS bigint
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
AS $$
DECLARE
    _settings pg_catalog.text[] := queue_proxy.settings($17, $18);
    _message pg_catalog.text;
    _detail pg_catalog.text;
    _hint pg_catalog.text;
BEGIN
    RETURN queue_proxy.queue_push_once($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16,
        queue_proxy.shard($1, _settings[1]), _settings);
EXCEPTION WHEN OTHERS OR query_canceled THEN
    GET STACKED DIAGNOSTICS _message = MESSAGE_TEXT,
        _detail = PG_EXCEPTION_DETAIL, _hint = PG_EXCEPTION_HINT;
    PERFORM queue_proxy.reraise(SQLSTATE, _message, _detail, _hint);
END
$$;
COMMENT ON FUNCTION @extschema@.queue_push_once(text, text, bigint, jsonb, integer, integer, integer, text, text, jsonb, bigint, bigint, boolean, timestamp with time zone, text, integer, text, text) IS
'pushes one message, unless a call with this queue, origin (1 to 256 bytes) and origin_id did so in the last 28 days, and returns what that call has returned: the id, NULL when it was dropped as a duplicate. A call that is in progress is waited for. Other arguments and errors: as queue_push';
REVOKE ALL ON FUNCTION @extschema@.queue_push_once(text, text, bigint, jsonb, integer, integer, integer, text, text, jsonb, bigint, bigint, boolean, timestamp with time zone, text, integer, text, text) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION @extschema@.queue_push_once(text, text, bigint, jsonb, integer, integer, integer, text, text, jsonb, bigint, bigint, boolean, timestamp with time zone, text, integer, text, text)
    TO queue_producer, queue_consumer, queue_admin;
REVOKE ALL ON FUNCTION queue_proxy.queue_push_once(text, text, bigint, jsonb, integer, integer, integer, text, text, jsonb, bigint, bigint, boolean, timestamp with time zone, text, integer, integer, text[]) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION queue_proxy.queue_push_once(text, text, bigint, jsonb, integer, integer, integer, text, text, jsonb, bigint, bigint, boolean, timestamp with time zone, text, integer, integer, text[])
    TO queue_producer, queue_consumer, queue_admin;

DROP FUNCTION @extschema@.topic_publish(text, jsonb, jsonb, integer, integer, integer, text, text, text, text);
CREATE FUNCTION @extschema@.topic_publish(
    topic text,
    body jsonb,
    headers jsonb DEFAULT NULL::jsonb,
    ttl integer DEFAULT NULL::integer,
    delay integer DEFAULT NULL::integer,
    priority integer DEFAULT 0,
    group_key text DEFAULT NULL::text,
    dedup_key text DEFAULT NULL::text,
    at timestamp with time zone DEFAULT NULL::timestamp with time zone,
    project text DEFAULT NULL,
    client_id text DEFAULT NULL)
RETURNS bigint
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
AS $$
BEGIN
    RAISE EXCEPTION 'topic_publish() cannot be called through a router'
        USING ERRCODE = 'feature_not_supported',
        HINT = 'The bound queues would be on several servers. Push to each queue.';
END
$$;
COMMENT ON FUNCTION @extschema@.topic_publish(text, jsonb, jsonb, integer, integer, integer, text, text, timestamp with time zone, text, text) IS
'raises an error, 0A000: it cannot be called through a router';
REVOKE ALL ON FUNCTION @extschema@.topic_publish(text, jsonb, jsonb, integer, integer, integer, text, text, timestamp with time zone, text, text) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION @extschema@.topic_publish(text, jsonb, jsonb, integer, integer, integer, text, text, timestamp with time zone, text, text)
    TO queue_producer, queue_consumer, queue_admin;

DROP FUNCTION @extschema@.queue_dead_letters(text, integer, text, text);
DROP FUNCTION queue_proxy.queue_dead_letters(text, integer, integer, text[]);
CREATE FUNCTION queue_proxy.queue_dead_letters(text, integer, bigint, integer, text[])
RETURNS TABLE(id bigint, body jsonb, origin_queue text, origin_id bigint, reason text, last_error text, claim_count integer, died_at timestamp with time zone)
LANGUAGE plproxy VOLATILE PARALLEL UNSAFE ROWS 10
AS $$
CLUSTER '';
RUN ON $4;
SELECT f.* FROM @extschema@.queue_dead_letters(
    CASE WHEN queue_router.call_settings($5) THEN $1 END, $2, $3) AS f;
$$;

CREATE FUNCTION @extschema@.queue_dead_letters(
    q text,
    "limit" integer DEFAULT 10,
    marker bigint DEFAULT NULL::bigint,
    project text DEFAULT NULL,
    client_id text DEFAULT NULL)
RETURNS TABLE(id bigint, body jsonb, origin_queue text, origin_id bigint, reason text, last_error text, claim_count integer, died_at timestamp with time zone)
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE ROWS 10
AS $$
DECLARE
    _settings pg_catalog.text[] := queue_proxy.settings($4, $5);
    _message pg_catalog.text;
    _detail pg_catalog.text;
    _hint pg_catalog.text;
BEGIN
    RETURN QUERY SELECT * FROM queue_proxy.queue_dead_letters($1, $2, $3,
        queue_proxy.shard($1, _settings[1]), _settings);
EXCEPTION WHEN OTHERS OR query_canceled THEN
    GET STACKED DIAGNOSTICS _message = MESSAGE_TEXT,
        _detail = PG_EXCEPTION_DETAIL, _hint = PG_EXCEPTION_HINT;
    PERFORM queue_proxy.reraise(SQLSTATE, _message, _detail, _hint);
END
$$;
COMMENT ON FUNCTION @extschema@.queue_dead_letters(text, integer, bigint, text, text) IS
'dead letters in queue q, oldest first, after marker (an id), at most limit (1 to 10000) of them: where each came from and why. Errors: 22023/22004 argument, 42501. Source: Zaqar, dead letter queue';
REVOKE ALL ON FUNCTION @extschema@.queue_dead_letters(text, integer, bigint, text, text) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION @extschema@.queue_dead_letters(text, integer, bigint, text, text)
    TO queue_producer, queue_consumer, queue_admin;
REVOKE ALL ON FUNCTION queue_proxy.queue_dead_letters(text, integer, bigint, integer, text[]) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION queue_proxy.queue_dead_letters(text, integer, bigint, integer, text[])
    TO queue_producer, queue_consumer, queue_admin;

DROP FUNCTION @extschema@.queue_redrive(text, text, integer, text, text);
DROP FUNCTION queue_proxy.queue_redrive(text, text, integer, integer, text[]);
CREATE FUNCTION queue_proxy.queue_redrive(text, text, integer, bigint[], integer, text[])
RETURNS bigint
LANGUAGE plproxy VOLATILE PARALLEL UNSAFE
AS $$
CLUSTER '';
RUN ON $5;
SELECT @extschema@.queue_redrive(
    CASE WHEN queue_router.call_settings($6) THEN $1 END, $2, $3, $4) AS r;
$$;

CREATE FUNCTION @extschema@.queue_redrive(
    q text,
    target text DEFAULT NULL::text,
    "limit" integer DEFAULT NULL::integer,
    ids bigint[] DEFAULT NULL::bigint[],
    project text DEFAULT NULL,
    client_id text DEFAULT NULL)
RETURNS bigint
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
AS $$
DECLARE
    _settings pg_catalog.text[] := queue_proxy.settings($5, $6);
    _message pg_catalog.text;
    _detail pg_catalog.text;
    _hint pg_catalog.text;
BEGIN
    IF pg_catalog.pg_current_xact_id_if_assigned() IS NOT NULL THEN
        PERFORM queue_proxy.refuse_transaction('queue_redrive');
    END IF;
    RETURN queue_proxy.queue_redrive($1, $2, $3, $4,
        queue_proxy.shard($1, _settings[1]), _settings);
EXCEPTION WHEN OTHERS OR query_canceled THEN
    GET STACKED DIAGNOSTICS _message = MESSAGE_TEXT,
        _detail = PG_EXCEPTION_DETAIL, _hint = PG_EXCEPTION_HINT;
    PERFORM queue_proxy.reraise(SQLSTATE, _message, _detail, _hint);
END
$$;
COMMENT ON FUNCTION @extschema@.queue_redrive(text, text, integer, bigint[], text, text) IS
'moves up to limit (NULL: all) dead letters of queue q, oldest first, or those with these ids in that order, back to the queues that they came from or to target, as new messages with claim_count 0; returns their number. Passes over those whose origin is gone, and a NOTICE says how many: it was dropped, and queue.auto_create is off, or another role has created a queue of that name. Errors: 22023/22004 argument, 42704 unknown target with queue.auto_create off, 42501 no right to claim from q or to push to where they are sent. Source: Amazon SQS, redrive';
REVOKE ALL ON FUNCTION @extschema@.queue_redrive(text, text, integer, bigint[], text, text) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION @extschema@.queue_redrive(text, text, integer, bigint[], text, text)
    TO queue_producer, queue_consumer, queue_admin;
REVOKE ALL ON FUNCTION queue_proxy.queue_redrive(text, text, integer, bigint[], integer, text[]) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION queue_proxy.queue_redrive(text, text, integer, bigint[], integer, text[])
    TO queue_producer, queue_consumer, queue_admin;

DROP FUNCTION @extschema@.job_errors(text, integer, text, text);
DROP FUNCTION queue_proxy.job_errors(text, integer, integer, text[]);
CREATE FUNCTION queue_proxy.job_errors(text, integer, timestamp with time zone, integer, text[])
RETURNS TABLE(message_id bigint, attempt integer, at timestamp with time zone, error text)
LANGUAGE plproxy VOLATILE PARALLEL UNSAFE ROWS 100
AS $$
CLUSTER '';
RUN ON $4;
SELECT f.* FROM @extschema@.job_errors(
    CASE WHEN queue_router.call_settings($5) THEN $1 END, $2, $3) AS f;
$$;

CREATE FUNCTION @extschema@.job_errors(
    q text,
    "limit" integer DEFAULT 100,
    marker timestamp with time zone DEFAULT NULL::timestamp with time zone,
    project text DEFAULT NULL,
    client_id text DEFAULT NULL)
RETURNS TABLE(message_id bigint, attempt integer, at timestamp with time zone, error text)
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE ROWS 100
AS $$
DECLARE
    _settings pg_catalog.text[] := queue_proxy.settings($4, $5);
    _message pg_catalog.text;
    _detail pg_catalog.text;
    _hint pg_catalog.text;
BEGIN
    RETURN QUERY SELECT * FROM queue_proxy.job_errors($1, $2, $3,
        queue_proxy.shard($1, _settings[1]), _settings);
EXCEPTION WHEN OTHERS OR query_canceled THEN
    GET STACKED DIAGNOSTICS _message = MESSAGE_TEXT,
        _detail = PG_EXCEPTION_DETAIL, _hint = PG_EXCEPTION_HINT;
    PERFORM queue_proxy.reraise(SQLSTATE, _message, _detail, _hint);
END
$$;
COMMENT ON FUNCTION @extschema@.job_errors(text, integer, timestamp with time zone, text, text) IS
'the attempts at messages of queue q that have failed with an error in the last _keep_finished seconds, or without that in the last day, the latest first: those before marker (a time; NULL: all), at most limit (1 to 10000). Errors: 22023/22004 argument, 42501 neither owner nor admin of q. Source: Oban, the errors of a job';
REVOKE ALL ON FUNCTION @extschema@.job_errors(text, integer, timestamp with time zone, text, text) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION @extschema@.job_errors(text, integer, timestamp with time zone, text, text)
    TO queue_producer, queue_consumer, queue_admin;
REVOKE ALL ON FUNCTION queue_proxy.job_errors(text, integer, timestamp with time zone, integer, text[]) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION queue_proxy.job_errors(text, integer, timestamp with time zone, integer, text[])
    TO queue_producer, queue_consumer, queue_admin;

--
-- New functions
--
CREATE FUNCTION queue_proxy.queue_browse(text, text, jsonb, bigint, integer, integer, text[])
RETURNS TABLE(id bigint, state text, body jsonb, headers jsonb, priority integer, group_key text, dedup_key text, batch bigint, after bigint, claim_count integer, created_at timestamp with time zone, due_at timestamp with time zone, claimed_until timestamp with time zone, expires_at timestamp with time zone, last_error text)
LANGUAGE plproxy VOLATILE PARALLEL UNSAFE ROWS 100
AS $$
CLUSTER '';
RUN ON $6;
SELECT f.* FROM @extschema@.queue_browse(
    CASE WHEN queue_router.call_settings($7) THEN $1 END, $2, $3, $4, $5) AS f;
$$;

CREATE FUNCTION queue_proxy.queue_browse_call(text, text, jsonb, bigint, integer, text, text)
RETURNS TABLE(id bigint, state text, body jsonb, headers jsonb, priority integer, group_key text, dedup_key text, batch bigint, after bigint, claim_count integer, created_at timestamp with time zone, due_at timestamp with time zone, claimed_until timestamp with time zone, expires_at timestamp with time zone, last_error text)
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE ROWS 100
AS $$
DECLARE
    _settings pg_catalog.text[] := queue_proxy.settings($6, $7);
    _message pg_catalog.text;
    _detail pg_catalog.text;
    _hint pg_catalog.text;
BEGIN
    RETURN QUERY SELECT * FROM queue_proxy.queue_browse($1, $2, $3, $4, $5,
        queue_proxy.shard($1, _settings[1]), _settings);
EXCEPTION WHEN OTHERS OR query_canceled THEN
    GET STACKED DIAGNOSTICS _message = MESSAGE_TEXT,
        _detail = PG_EXCEPTION_DETAIL, _hint = PG_EXCEPTION_HINT;
    PERFORM queue_proxy.reraise(SQLSTATE, _message, _detail, _hint);
END
$$;

CREATE FUNCTION @extschema@.queue_browse(
    q text,
    state text DEFAULT NULL::text,
    filter jsonb DEFAULT NULL::jsonb,
    marker bigint DEFAULT NULL::bigint,
    "limit" integer DEFAULT 100,
    project text DEFAULT NULL,
    client_id text DEFAULT NULL)
RETURNS TABLE(id bigint, state text, body jsonb, headers jsonb, priority integer, group_key text, dedup_key text, batch bigint, after bigint, claim_count integer, created_at timestamp with time zone, due_at timestamp with time zone, claimed_until timestamp with time zone, expires_at timestamp with time zone, last_error text)
LANGUAGE sql VOLATILE PARALLEL UNSAFE ROWS 100
AS $$
SELECT * FROM queue_proxy.queue_browse_call($1, $2, $3, $4, $5, $6, $7)
$$;
COMMENT ON FUNCTION @extschema@.queue_browse(text, text, jsonb, bigint, integer, text, text) IS
'messages of queue q by id, after marker, at most limit (1 to 10000): those that are free, claimed, delayed, waiting (for a batch) or canceled (while a claim holds them), as state says (NULL: any), and whose bodies contain filter. dedup_key: its digest. due_at: of a delayed one; expires_at: if it stays as it is. One that waits has no times. A call reads at most 10,000 messages; if there are more, the last row has only the id to continue from, as marker. Errors: 22023/22004 argument, 42501 no right to claim';
REVOKE ALL ON FUNCTION queue_proxy.queue_browse(text, text, jsonb, bigint, integer, integer, text[]) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION queue_proxy.queue_browse(text, text, jsonb, bigint, integer, integer, text[])
    TO queue_producer, queue_consumer, queue_admin;
REVOKE ALL ON FUNCTION queue_proxy.queue_browse_call(text, text, jsonb, bigint, integer, text, text) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION queue_proxy.queue_browse_call(text, text, jsonb, bigint, integer, text, text)
    TO queue_producer, queue_consumer, queue_admin;
REVOKE ALL ON FUNCTION @extschema@.queue_browse(text, text, jsonb, bigint, integer, text, text) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION @extschema@.queue_browse(text, text, jsonb, bigint, integer, text, text)
    TO queue_producer, queue_consumer, queue_admin;

CREATE FUNCTION queue_proxy.queue_depth(text, integer[], text[])
RETURNS TABLE(queue text, free bigint, claimed bigint, delayed bigint, dead_letters bigint, oldest_age integer, paused boolean, last_error text, last_error_at timestamp with time zone)
LANGUAGE plproxy VOLATILE PARALLEL UNSAFE ROWS 100
AS $$
CLUSTER '';
RUN ON pg_catalog.unnest($2);
SELECT f.* FROM @extschema@.queue_depth(
    CASE WHEN queue_router.call_settings($3) THEN $1 END) AS f;
$$;

CREATE FUNCTION @extschema@.queue_depth(
    q text DEFAULT NULL::text,
    project text DEFAULT NULL,
    client_id text DEFAULT NULL)
RETURNS TABLE(queue text, free bigint, claimed bigint, delayed bigint, dead_letters bigint, oldest_age integer, paused boolean, last_error text, last_error_at timestamp with time zone)
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE ROWS 100
AS $$
DECLARE
    _settings pg_catalog.text[] := queue_proxy.settings($2, $3);
    _shard integer;
    _answered boolean := false;
    _message pg_catalog.text;
    _detail pg_catalog.text;
    _hint pg_catalog.text;
BEGIN
    RETURN QUERY SELECT * FROM queue_proxy.queue_depth($1,
        CASE WHEN $1 IS NULL
             THEN (SELECT pg_catalog.array_agg(s.shard) FROM queue_proxy.servers() AS s)
             ELSE ARRAY[queue_proxy.shard($1, _settings[1])] END,
        _settings) AS d ORDER BY d.queue COLLATE pg_catalog."C";
EXCEPTION WHEN OTHERS OR query_canceled THEN
    GET STACKED DIAGNOSTICS _message = MESSAGE_TEXT,
        _detail = PG_EXCEPTION_DETAIL, _hint = PG_EXCEPTION_HINT;
    PERFORM queue_proxy.reraise(SQLSTATE, _message, _detail, _hint);
END
$$;
COMMENT ON FUNCTION @extschema@.queue_depth(text, text, text) IS
'a row for queue q, or (NULL) for each queue of the session''s project that the caller may claim from, by name: its messages and those in its dead letter queue, counted as they change and at most two seconds late, NULL while they are not known; the age in seconds of the oldest free one, NULL if none is found; whether it is paused; and the last error that was reported. Errors: 22023 argument, 42501 no right to claim from q';
REVOKE ALL ON FUNCTION queue_proxy.queue_depth(text, integer[], text[]) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION queue_proxy.queue_depth(text, integer[], text[])
    TO queue_producer, queue_consumer, queue_admin;
REVOKE ALL ON FUNCTION @extschema@.queue_depth(text, text, text) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION @extschema@.queue_depth(text, text, text)
    TO queue_producer, queue_consumer, queue_admin;

CREATE FUNCTION queue_proxy.messages_run_now(text, bigint[], integer, text[])
RETURNS bigint
LANGUAGE plproxy VOLATILE PARALLEL UNSAFE
AS $$
CLUSTER '';
RUN ON $3;
SELECT @extschema@.messages_run_now(
    CASE WHEN queue_router.call_settings($4) THEN $1 END, $2) AS r;
$$;

CREATE FUNCTION @extschema@.messages_run_now(
    q text,
    ids bigint[],
    project text DEFAULT NULL,
    client_id text DEFAULT NULL)
RETURNS bigint
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
AS $$
DECLARE
    _settings pg_catalog.text[] := queue_proxy.settings($3, $4);
    _message pg_catalog.text;
    _detail pg_catalog.text;
    _hint pg_catalog.text;
BEGIN
    IF pg_catalog.pg_current_xact_id_if_assigned() IS NOT NULL THEN
        PERFORM queue_proxy.refuse_transaction('messages_run_now');
    END IF;
    RETURN queue_proxy.messages_run_now($1, $2,
        queue_proxy.shard($1, _settings[1]), _settings);
EXCEPTION WHEN OTHERS OR query_canceled THEN
    GET STACKED DIAGNOSTICS _message = MESSAGE_TEXT,
        _detail = PG_EXCEPTION_DETAIL, _hint = PG_EXCEPTION_HINT;
    PERFORM queue_proxy.reraise(SQLSTATE, _message, _detail, _hint);
END
$$;
COMMENT ON FUNCTION @extschema@.messages_run_now(text, bigint[], text, text) IS
'makes these messages free, those that are delayed, and returns how many there were. Errors: 22023/22004 argument, 42501 no right to claim. Source: Sidekiq, add to queue; Oban, retry now';
REVOKE ALL ON FUNCTION queue_proxy.messages_run_now(text, bigint[], integer, text[]) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION queue_proxy.messages_run_now(text, bigint[], integer, text[])
    TO queue_producer, queue_consumer, queue_admin;
REVOKE ALL ON FUNCTION @extschema@.messages_run_now(text, bigint[], text, text) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION @extschema@.messages_run_now(text, bigint[], text, text)
    TO queue_producer, queue_consumer, queue_admin;

CREATE FUNCTION queue_proxy.messages_bury(text, bigint[], text, integer, text[])
RETURNS bigint
LANGUAGE plproxy VOLATILE PARALLEL UNSAFE
AS $$
CLUSTER '';
RUN ON $4;
SELECT @extschema@.messages_bury(
    CASE WHEN queue_router.call_settings($5) THEN $1 END, $2, $3) AS r;
$$;

CREATE FUNCTION @extschema@.messages_bury(
    q text,
    ids bigint[],
    error text,
    project text DEFAULT NULL,
    client_id text DEFAULT NULL)
RETURNS bigint
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
AS $$
DECLARE
    _settings pg_catalog.text[] := queue_proxy.settings($4, $5);
    _message pg_catalog.text;
    _detail pg_catalog.text;
    _hint pg_catalog.text;
BEGIN
    IF pg_catalog.pg_current_xact_id_if_assigned() IS NOT NULL THEN
        PERFORM queue_proxy.refuse_transaction('messages_bury');
    END IF;
    RETURN queue_proxy.messages_bury($1, $2, $3,
        queue_proxy.shard($1, _settings[1]), _settings);
EXCEPTION WHEN OTHERS OR query_canceled THEN
    GET STACKED DIAGNOSTICS _message = MESSAGE_TEXT,
        _detail = PG_EXCEPTION_DETAIL, _hint = PG_EXCEPTION_HINT;
    PERFORM queue_proxy.reraise(SQLSTATE, _message, _detail, _hint);
END
$$;
COMMENT ON FUNCTION @extschema@.messages_bury(text, bigint[], text, text, text) IS
'makes these messages dead letters, those that are free or delayed, and returns how many there were; error is stored with them, NULL keeps the last one. Errors: 22023/22004 argument, 42501 no right to claim, or the dead letter queue does not accept them, 55P03 it is locked. Source: Sidekiq, kill';
REVOKE ALL ON FUNCTION queue_proxy.messages_bury(text, bigint[], text, integer, text[]) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION queue_proxy.messages_bury(text, bigint[], text, integer, text[])
    TO queue_producer, queue_consumer, queue_admin;
REVOKE ALL ON FUNCTION @extschema@.messages_bury(text, bigint[], text, text, text) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION @extschema@.messages_bury(text, bigint[], text, text, text)
    TO queue_producer, queue_consumer, queue_admin;

CREATE FUNCTION queue_proxy.message_finished(text, bigint, integer, text[])
RETURNS TABLE(id bigint, queue text, group_key text, batch bigint, outcome text, pushed_at timestamp with time zone, finished_at timestamp with time zone, attempts integer, result jsonb, error text, body jsonb)
LANGUAGE plproxy VOLATILE PARALLEL UNSAFE ROWS 1
AS $$
CLUSTER '';
RUN ON $3;
SELECT f.* FROM @extschema@.message_finished(
    CASE WHEN queue_router.call_settings($4) THEN $1 END, $2) AS f;
$$;

CREATE FUNCTION queue_proxy.message_finished_call(text, bigint, text, text)
RETURNS TABLE(id bigint, queue text, group_key text, batch bigint, outcome text, pushed_at timestamp with time zone, finished_at timestamp with time zone, attempts integer, result jsonb, error text, body jsonb)
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE ROWS 1
AS $$
DECLARE
    _settings pg_catalog.text[] := queue_proxy.settings($3, $4);
    _message pg_catalog.text;
    _detail pg_catalog.text;
    _hint pg_catalog.text;
BEGIN
    RETURN QUERY SELECT * FROM queue_proxy.message_finished($1, $2,
        queue_proxy.shard($1, _settings[1]), _settings);
EXCEPTION WHEN OTHERS OR query_canceled THEN
    GET STACKED DIAGNOSTICS _message = MESSAGE_TEXT,
        _detail = PG_EXCEPTION_DETAIL, _hint = PG_EXCEPTION_HINT;
    PERFORM queue_proxy.reraise(SQLSTATE, _message, _detail, _hint);
END
$$;

CREATE FUNCTION @extschema@.message_finished(
    q text,
    id bigint,
    project text DEFAULT NULL,
    client_id text DEFAULT NULL)
RETURNS TABLE(id bigint, queue text, group_key text, batch bigint, outcome text, pushed_at timestamp with time zone, finished_at timestamp with time zone, attempts integer, result jsonb, error text, body jsonb)
LANGUAGE sql VOLATILE PARALLEL UNSAFE ROWS 1
AS $$
SELECT * FROM queue_proxy.message_finished_call($1, $2, $3, $4)
$$;
COMMENT ON FUNCTION @extschema@.message_finished(text, bigint, text, text) IS
'what became of a message: its row of queue_finished; no row if it is not in the history. Errors: 22023/22004 argument, 42501 as queue_finished. Source: Oban, jobs that are kept';
REVOKE ALL ON FUNCTION queue_proxy.message_finished(text, bigint, integer, text[]) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION queue_proxy.message_finished(text, bigint, integer, text[])
    TO queue_producer, queue_consumer, queue_admin;
REVOKE ALL ON FUNCTION queue_proxy.message_finished_call(text, bigint, text, text) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION queue_proxy.message_finished_call(text, bigint, text, text)
    TO queue_producer, queue_consumer, queue_admin;
REVOKE ALL ON FUNCTION @extschema@.message_finished(text, bigint, text, text) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION @extschema@.message_finished(text, bigint, text, text)
    TO queue_producer, queue_consumer, queue_admin;

--
-- Privileges on the functions with further arguments
--
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
