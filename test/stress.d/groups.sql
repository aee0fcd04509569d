-- test/stress.d/groups.sql - what t/groups.pl does to groups, and how it
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

-- push: a message without a dedup_key or a delay was pushed; take: one was
-- claimed or popped, until that time ("infinity": popped);
-- renew: its claim lasts until that time; delete, free: the claim of this
-- message ended so, or that of all that remained in it (id is NULL)
CREATE TABLE groups.event (
    kind        text,
    queue       text,
    claim_id    text,
    id          bigint,
    group_key   text,
    claim_count int,
    priority    int,
    began       timestamptz DEFAULT now(),
    at          timestamptz DEFAULT clock_timestamp(),
    until       timestamptz,
    xid         xid8 DEFAULT pg_current_xact_id()
);

-- Calls that take messages, and those that found none
CREATE SEQUENCE groups.calls;
CREATE SEQUENCE groups.empty;

-- Prepared transactions, as they are ended
CREATE SEQUENCE groups.prepared;

-- Samples of the rows that show more than the bound
CREATE TABLE groups.sampled (
    at timestamptz, queue text, group_key text, live bigint);

-- Push so many messages, to all groups; with keys, a part of them is dropped.
CREATE FUNCTION groups.push(q text, groups int, n int, with_key boolean)
RETURNS void
LANGUAGE plpgsql
AS $$
DECLARE
    g        text;
    priority int;
    delay    int;
    id       bigint;
BEGIN
    FOR i IN 1 .. n LOOP
        g := 'g' || 1 + (CASE WHEN with_key THEN (random() * 1000)::int
                         ELSE i END) % groups;
        priority := (random() * 3)::int;
        delay := (random() < 0.03)::int;
        id := queue_push(q, to_jsonb(i), group_key => g, priority => priority,
            delay => delay,
            dedup_key => CASE WHEN with_key
                         THEN g || (random() * 3)::int END);
        IF NOT with_key AND delay = 0 THEN
            INSERT INTO groups.event (kind, queue, id, group_key, priority)
            VALUES ('push', q, id, g, priority);
        END IF;
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
    INSERT INTO groups.event (kind, queue, claim_id, id, group_key, claim_count,
                              at, until)
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
-- Claims that write no history, as many as possible
---

-- Calls that ended well
CREATE TABLE groups.work_done (calls int, empty int, taken int);

-- A group of which more was taken than its bound; a claim that a session worked
-- on after its end.
CREATE TABLE groups.exceeded (
    queue text, group_key text, at timestamptz DEFAULT clock_timestamp());
CREATE TABLE groups.overdue (
    queue text, group_key text, since timestamptz,
    until timestamptz DEFAULT clock_timestamp());

-- Take an advisory lock for each message, out of as many as the bound of its
-- group.  The group of which there is none left, if any
CREATE FUNCTION groups.enter(q text, messages queue_message[])
RETURNS text
LANGUAGE plpgsql
AS $$
DECLARE
    places int := (SELECT bound FROM groups.bound WHERE queue = q);
    m      queue_message;
    lock   bigint;
    held   bigint[];
BEGIN
    FOREACH m IN ARRAY messages LOOP
        FOR place IN 1 .. places LOOP
            lock := hashtextextended(q || m.group_key, place);
            EXIT WHEN coalesce(lock <> ALL (held), true)
                      AND pg_try_advisory_lock(lock);
            lock := NULL;
        END LOOP;
        IF lock IS NULL THEN
            RETURN m.group_key;
        END IF;
        held := held || lock;
    END LOOP;
    RETURN NULL;
END
$$;

-- Claim or pop so often, and put a new message in the place of each that is
-- deleted, so that all groups always have as many.  The session has the locks
-- only while the claim is live: it unlocks before the end can be seen.  If it
-- is terminated, they are gone, and the claim is still live.
CREATE PROCEDURE groups.work(q text, calls int)
LANGUAGE plpgsql
AS $$
DECLARE
    messages  queue_message[];
    claim     text;
    its_end   timestamptz;
    empty     int := 0;
    taken     int := 0;
    exceeded  text;
BEGIN
    FOR i IN 1 .. calls LOOP
        its_end := clock_timestamp() + interval '2 s';
        IF random() < 0.1 THEN
            claim := NULL;
            messages := ARRAY(SELECT m FROM queue_pop(q, 1 + i % 2) AS m);
        ELSE
            messages := ARRAY(SELECT m FROM queue_claim(q, 2, 0, 1 + i % 3) AS m);
            claim := messages[1].claim_id;
            IF random() < 0.01 THEN
                PERFORM pg_sleep(random() * 0.002);
            END IF;
            COMMIT;
        END IF;
        IF cardinality(messages) = 0 THEN
            empty := empty + 1;
            COMMIT;
            CONTINUE;
        END IF;
        taken := taken + cardinality(messages);

        exceeded := groups.enter(q, messages);
        IF random() < 0.1 THEN
            PERFORM pg_sleep(random() * 0.002);
        END IF;
        PERFORM pg_advisory_unlock_all();
        IF exceeded IS NOT NULL THEN
            ROLLBACK;
            INSERT INTO groups.exceeded VALUES (q, exceeded);
        ELSIF claim IS NOT NULL AND clock_timestamp() > its_end THEN
            INSERT INTO groups.overdue
            SELECT q, m.group_key, its_end FROM unnest(messages) AS m;
        ELSIF random() < 0.1 THEN
            IF claim IS NULL THEN
                ROLLBACK;
            ELSE
                PERFORM claim_release(q, claim);
            END IF;
        ELSE
            IF claim IS NOT NULL THEN
                PERFORM claim_complete(q, claim);
            END IF;
            PERFORM queue_push(q, m.body, group_key => m.group_key)
            FROM unnest(messages) AS m;
        END IF;
        COMMIT;
    END LOOP;
    INSERT INTO groups.work_done VALUES (calls, empty, taken);
END
$$;

---
-- The history, for the checks
---

-- What was taken: when the call returned, when that was committed, and its end:
-- at a time (until), or by a transaction.  A pop counts until its transaction
-- ends.  "held" is all that time, in which it may be over for its own
-- transaction already.
CREATE PROCEDURE groups.judge()
LANGUAGE plpgsql
AS $$
BEGIN
    CREATE INDEX ON groups.event (claim_id);
    ANALYZE groups.event;
    CREATE TABLE groups.taken AS
    SELECT *, tstzrange(at, greatest(at, coalesce(least(until, ended), 'infinity')))
              AS held,
           tstzrange(at, greatest(at, committed), '()') AS uncommitted
    FROM (SELECT t.queue, t.group_key, t.id, t.claim_id, t.claim_count, t.began,
                 t.at, t.xid,
                 pg_xact_commit_timestamp(t.xid::xid) AS committed, b.bound,
                 t.claim_count = b.max_claim_count AS is_last,
                 coalesce((SELECT r.until FROM groups.event AS r
                           WHERE r.kind = 'renew' AND r.claim_id = t.claim_id
                           ORDER BY r.at DESC LIMIT 1), t.until) AS until,
                 coalesce(e.kind = 'delete', t.claim_id = '') AS is_deleted,
                 pg_xact_commit_timestamp(CASE t.claim_id WHEN '' THEN t.xid
                                          ELSE e.xid END::xid) AS ended,
                 e.xid AS end_xid, e.at AS end_at
          FROM groups.event AS t JOIN groups.bound AS b USING (queue)
               LEFT JOIN groups.event AS e
               ON t.claim_id <> '' AND e.claim_id = t.claim_id
                  AND e.kind IN ('delete', 'free')
                  AND (e.id = t.id
                       OR e.id IS NULL AND NOT EXISTS (
                           SELECT FROM groups.event AS o
                           WHERE o.claim_id = t.claim_id AND o.id = t.id
                                 AND o.kind IN ('delete', 'free')))
          WHERE t.kind = 'take') AS t;
    CREATE INDEX ON groups.taken USING gist (held);
    CREATE INDEX ON groups.taken USING gist (uncommitted);
    ANALYZE groups.taken;

    -- A message is not finished from when it was first taken until one of its
    -- claims ended with a delete, or was the last that it may have.
    CREATE TABLE groups.unfinished AS
    SELECT *, tstzrange(first, greatest(first, coalesce(least(until, ended), 'infinity')))
              AS held
    FROM (SELECT queue, group_key, id, min(at) AS first, min(began) AS began,
                 min(until) FILTER (WHERE is_last) AS until,
                 min(ended) FILTER (WHERE is_last OR is_deleted) AS ended,
                 min(end_xid::text) FILTER (WHERE is_last OR is_deleted)::xid8 AS end_xid,
                 min(end_at) FILTER (WHERE is_last OR is_deleted) AS end_at
          FROM groups.taken WHERE bound = 1 GROUP BY queue, group_key, id) AS u;
    CREATE INDEX ON groups.unfinished USING gist (held);
    ANALYZE groups.unfinished;

    -- A message waits from when it can be claimed until it is taken.  One session
    -- pushes them, so it has committed when it pushes the next ones.
    CREATE TABLE groups.waiting AS
    SELECT p.queue, p.group_key, p.id, p.priority, s.since, u.first, u.began,
           tstzrange(s.since, greatest(s.since, coalesce(u.first, 'infinity'))) AS held
    FROM groups.event AS p
    JOIN groups.bound AS b ON b.queue = p.queue AND b.bound = 1
    JOIN (SELECT xid, lead(min(at)) OVER (ORDER BY min(at)) AS since
          FROM groups.event WHERE kind = 'push' GROUP BY xid) AS s USING (xid)
    LEFT JOIN groups.unfinished AS u ON u.queue = p.queue AND u.id = p.id
    WHERE p.kind = 'push';
    CREATE INDEX ON groups.waiting USING gist (held);
    ANALYZE groups.waiting;
END
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
