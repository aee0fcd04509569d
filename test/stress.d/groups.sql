-- test/stress.d/groups.sql - what t/064_groups.pl does to groups, and how it
-- finds a bound that was exceeded or an order that was not kept
--
-- Every function writes what it did into groups.event, in the transaction that
-- did it: so the table has the history of what was committed, with the times at
-- which the calls returned, and the commit timestamps have the times from which
-- others may have seen it.  An event is earlier than a call of another
-- transaction if its commit timestamp is; a commit timestamp is taken before
-- the transaction releases its locks and becomes visible.  So a call that saw
-- that a message is finished, or that its claim is over, returns later than
-- that.  Nothing here depends on how the limits are kept.

CREATE EXTENSION queue;
CREATE SCHEMA groups;

CREATE TABLE groups.bound (queue text, bound int, max_claim_count int);

-- take: a message was claimed or popped, until that time ("infinity": popped);
-- renew: its claim lasts until that time; delete, free: the claim of this
-- message ended so, or that of all that remained in it (id is NULL)
CREATE TABLE groups.event (
    kind        text,
    queue       text,
    claim_id    text,
    id          bigint,
    group_key   text,
    claim_count int,
    at          timestamptz DEFAULT clock_timestamp(),
    until       timestamptz,
    xid         xid8 DEFAULT pg_current_xact_id()
);

-- Calls that take messages, and those that found none
CREATE SEQUENCE groups.calls;
CREATE SEQUENCE groups.empty;

-- Samples of the rows that show more than the bound
CREATE TABLE groups.sampled (
    at timestamptz, queue text, group_key text, live bigint);

-- Push so many messages, to all groups; with keys, a part of them is dropped.
CREATE FUNCTION groups.push(q text, groups int, n int, with_key boolean)
RETURNS void
LANGUAGE plpgsql
AS $$
DECLARE
    g text;
BEGIN
    FOR i IN 1 .. n LOOP
        g := 'g' || 1 + (CASE WHEN with_key THEN (random() * 1000)::int
                         ELSE i END) % groups;
        PERFORM queue_push(q, to_jsonb(i), group_key => g,
            priority => (random() * 3)::int,
            delay => (random() < 0.03)::int,
            dedup_key => CASE WHEN with_key
                         THEN g || (random() * 3)::int END);
    END LOOP;
END
$$;

CREATE FUNCTION groups.record(q text, messages queue_message[], popped boolean)
RETURNS text
LANGUAGE plpgsql
AS $$
DECLARE
    returned timestamptz := clock_timestamp();
    claim    text := '';
BEGIN
    PERFORM nextval('groups.calls');
    IF cardinality(messages) = 0 THEN
        PERFORM nextval('groups.empty');
        RETURN '';
    END IF;
    IF NOT popped THEN
        claim := messages[1].claim_id;
    END IF;
    INSERT INTO groups.event
    SELECT 'take', q, claim, id, group_key, claim_count, returned,
           CASE WHEN popped THEN 'infinity'
           ELSE (SELECT expires_at FROM claim_get(q, claim)) END
    FROM unnest(messages);
    RETURN claim;
END
$$;

CREATE FUNCTION groups.claim(q text, ttl int, n int)
RETURNS text
LANGUAGE sql
AS $$
    SELECT groups.record(q, ARRAY(SELECT m FROM queue_claim(q, ttl, 0, n) AS m),
                         false)
$$;

CREATE FUNCTION groups.pop(q text, n int)
RETURNS void
LANGUAGE sql
AS $$
    SELECT groups.record(q, ARRAY(SELECT m FROM queue_pop(q, n) AS m), true)
$$;

CREATE FUNCTION groups.next(q text, claim text, ttl int, n int)
RETURNS text
LANGUAGE plpgsql
AS $$
DECLARE
    messages queue_message[];
BEGIN
    IF claim = '' THEN
        RETURN '';
    END IF;
    messages := ARRAY(SELECT m FROM claim_next(q, claim, ttl, 0, n) AS m);

    -- It ended before the others were claimed.
    INSERT INTO groups.event (kind, queue, claim_id, at)
    VALUES ('delete', q, claim, statement_timestamp());
    RETURN groups.record(q, messages, false);
END
$$;

-- End a claim, or renew it.
CREATE FUNCTION groups.finish(q text, claim text, how text, seconds int)
RETURNS void
LANGUAGE plpgsql
AS $$
DECLARE
    message bigint;
    until   timestamptz;
BEGIN
    IF claim = '' THEN
        RETURN;
    END IF;
    CASE how
        WHEN 'complete' THEN
            PERFORM claim_complete(q, claim);
            INSERT INTO groups.event (kind, queue, claim_id)
            VALUES ('delete', q, claim);
        WHEN 'release' THEN
            IF claim_release(q, claim, seconds) > 0 THEN
                INSERT INTO groups.event (kind, queue, claim_id)
                VALUES ('free', q, claim);
            END IF;
        WHEN 'renew' THEN
            until := claim_renew(q, claim, seconds);
            IF until IS NOT NULL THEN
                INSERT INTO groups.event (kind, queue, claim_id, until)
                VALUES ('renew', q, claim, until);
            END IF;
        ELSE
            FOR message IN SELECT id FROM claim_messages(q, claim) LOOP
                IF how = 'retry' THEN
                    PERFORM message_retry(q, message, claim, 'error', seconds);
                    INSERT INTO groups.event (kind, queue, claim_id, id)
                    VALUES ('free', q, claim, message);
                ELSIF message_delete(q, message, claim) THEN
                    INSERT INTO groups.event (kind, queue, claim_id, id)
                    VALUES ('delete', q, claim, message);
                END IF;
            END LOOP;
    END CASE;
END
$$;

-- What the rows themselves say, in one snapshot.  A claim that is live when its
-- row is read was so at the time of the snapshot.
CREATE FUNCTION groups.sample()
RETURNS void
LANGUAGE sql
AS $$
    INSERT INTO groups.sampled
    SELECT clock_timestamp(), queue, group_key, count(*)
    FROM queue_data.message JOIN groups.bound USING (queue)
    WHERE state = 'claimed' AND group_key IS NOT NULL
    GROUP BY queue, group_key, bound
    HAVING count(*) > bound
$$;

-- Claim and delete until nothing is left; what remained
CREATE FUNCTION groups.drain(q text)
RETURNS bigint
LANGUAGE plpgsql
AS $$
DECLARE
    claim text;
BEGIN
    LOOP
        claim := groups.claim(q, 60, 100);
        EXIT WHEN claim = '';
        PERFORM groups.finish(q, claim, 'complete', 0);
    END LOOP;
    RETURN (SELECT total FROM queue_stats(q));
END
$$;

---
-- The history, for the checks
---

-- What was taken: when the call returned, when that was committed, and its end:
-- at a time (until), or by a transaction.  A pop counts until its transaction
-- ends.
CREATE FUNCTION groups.judge()
RETURNS void
LANGUAGE sql
AS $$
    CREATE TABLE groups.taken AS
    WITH event AS (
        SELECT *, pg_xact_commit_timestamp(xid::xid) AS committed
        FROM groups.event)
    SELECT t.queue, t.group_key, t.id, t.claim_id, t.claim_count, t.at, t.xid,
           t.committed, b.bound, t.claim_count = b.max_claim_count AS is_last,
           coalesce((SELECT r.until FROM event AS r
                     WHERE r.kind = 'renew' AND r.claim_id = t.claim_id
                     ORDER BY r.at DESC LIMIT 1), t.until) AS until,
           coalesce(e.kind = 'delete', t.claim_id = '') AS is_deleted,
           CASE t.claim_id WHEN '' THEN t.committed ELSE e.committed END AS ended,
           e.xid AS end_xid, e.at AS end_at
    FROM event AS t JOIN groups.bound AS b USING (queue)
         LEFT JOIN event AS e
         ON t.claim_id <> '' AND e.claim_id = t.claim_id
            AND e.kind IN ('delete', 'free')
            AND (e.id = t.id
                 OR e.id IS NULL AND NOT EXISTS (
                     SELECT FROM event AS o
                     WHERE o.claim_id = t.claim_id AND o.id = t.id
                           AND o.kind IN ('delete', 'free')))
    WHERE t.kind = 'take';
    CREATE INDEX ON groups.taken (queue, group_key, at);
    ANALYZE groups.taken;
$$;

-- Had the claim of one ended when the other one was taken?
CREATE FUNCTION groups.was_over(until timestamptz, ended timestamptz, end_xid xid8,
                                end_at timestamptz, xid xid8, at timestamptz)
RETURNS boolean
LANGUAGE sql IMMUTABLE
AS $$
    SELECT coalesce(until <= at, false) OR coalesce(ended <= at, false)
           OR coalesce(end_xid = xid AND end_at < at, false)
$$;
