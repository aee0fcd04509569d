-- test/stress.d/hidden.sql - what t/hidden_messages.pl does to queues, and how it
-- finds a message that is hidden
--
-- hidden.version shows the rows of all tables of messages, by plain SQL that
-- does not use availability maps.  A message is certainly free from one moment
-- to another if the same version of its row
--
-- - exists at both, committed, not claimed, due and not expired;
-- - has the same xmax at both, so that no transaction has locked or changed it
--   meanwhile, not even one that was rolled back, which leaves its xmax there;
-- - and the transactions of its xmin and xmax had ended before the first of
--   the two moments, and their callbacks had run.
--
-- A transaction is marked as ended before others see it, and releases the lock
-- of its own xid after the callbacks at its end have run, before its client
-- gets the result.  In between the map may not know yet what it made free.  The
-- xid may be that of a subtransaction, of whose end the lock says nothing if
-- it was committed, so no message counts as free while any transaction is in
-- between.
--
-- This requires that VACUUM does not run meanwhile (it clears old xmax), and
-- that xmax is not a multixact: those have small numbers here, below
-- hidden.base, and rows with such an xmax are left out.

CREATE EXTENSION queue;
CREATE SCHEMA hidden;

DO $$
DECLARE
    arms text;
BEGIN
    SELECT string_agg(format(
        'SELECT tableoid AS relation, ctid AS place, xmin AS made,
                xmax AS ended, queue_id, id,
                coalesce(claim_token, 0) AS claim_token, claimed_until,
                created_at + make_interval(secs => ttl) AS expires_at,
                %s AS due_at
         FROM %s
         WHERE covered IS NULL',   -- otherwise the next claim removes it
        CASE WHEN relname LIKE 'delayed%' THEN 'due_at'
        ELSE 'NULL::timestamptz' END, oid::regclass), ' UNION ALL ')
    INTO arms
    FROM pg_class
    WHERE relnamespace = 'queue_data'::regnamespace
      AND relname ~ '^(message|delayed)_\d+$' AND relkind = 'r';
    EXECUTE 'CREATE VIEW hidden.version AS ' || arms;
END
$$;

CREATE TABLE hidden.base (xid bigint NOT NULL);

CREATE FUNCTION hidden.number_of(xid xid) RETURNS bigint
LANGUAGE sql IMMUTABLE
AS 'SELECT xid::text::bigint';

-- A claim found nothing although these were free all the time
CREATE TABLE hidden.found (
    queue    text,
    called   timestamptz,
    returned timestamptz,
    how      text,
    version  hidden.version
);

-- Claims that were checked; those of them that could have shown a hidden
-- message; and those that gave up waiting
CREATE SEQUENCE hidden.looks;
CREATE SEQUENCE hidden.tests;
CREATE SEQUENCE hidden.gave_up;

-- Versions that are to be handed out.
CREATE TABLE hidden.watched (
    queue   text,
    since   timestamptz,
    version hidden.version
);

-- Claims; any session may end them
CREATE UNLOGGED TABLE hidden.claim (queue text, claim_id text);

-- Number of all pushes
CREATE SEQUENCE hidden.number;

CREATE FUNCTION hidden.queue_id(q text) RETURNS int
LANGUAGE sql STABLE
AS 'SELECT id FROM queue_data.queue WHERE project = '''' AND name = q';

-- Is it marked as ended?  0: there is no transaction.
CREATE FUNCTION hidden.has_ended(xid xid) RETURNS boolean
LANGUAGE sql
AS $$
    SELECT hidden.number_of(xid) = 0 OR
           txid_status(hidden.number_of(xid)) IN ('committed', 'aborted')
$$;

-- What is certainly free now.  The order of these statements matters.
CREATE FUNCTION hidden.free(q text) RETURNS hidden.version[]
LANGUAGE plpgsql
AS $$
DECLARE
    now      timestamptz := clock_timestamp();
    wanted   int := hidden.queue_id(q);
    versions hidden.version[];
    holders  xid[];
BEGIN
    SELECT array_agg(r) INTO versions
    FROM hidden.version AS r
    WHERE queue_id = wanted
      AND (claim_token = 0 OR claimed_until <= now)
      AND due_at IS NULL
      -- no call here takes long enough for it to expire
      AND expires_at > now + interval '30 s'
      AND (hidden.number_of(ended) = 0 OR
           hidden.number_of(ended) >= (SELECT xid FROM hidden.base));
    SELECT array_agg(v) INTO versions
    FROM unnest(versions) AS v
    WHERE hidden.has_ended(v.made) AND hidden.has_ended(v.ended);
    IF versions IS NULL THEN
        RETURN '{}';
    END IF;
    SELECT array_agg(transactionid) INTO holders
    FROM pg_locks
    WHERE locktype = 'transactionid' AND mode = 'ExclusiveLock';
    IF EXISTS (SELECT FROM unnest(holders) AS h
               WHERE hidden.has_ended(h)) THEN
        RETURN '{}';
    END IF;
    RETURN versions;
END
$$;

-- Those that still exist, unchanged
CREATE FUNCTION hidden.still(versions hidden.version[])
RETURNS SETOF hidden.version
LANGUAGE sql
AS $$
    SELECT r::hidden.version
    FROM unnest(versions) AS v
    JOIN hidden.version AS r
         ON r.queue_id = v.queue_id AND r.id = v.id
    WHERE r.relation = v.relation AND r.place = v.place AND
          r.made = v.made AND r.ended = v.ended
$$;

-- The result of a claim or pop was empty.
CREATE FUNCTION hidden.judge(
    q text, how text, versions hidden.version[], called timestamptz,
    returned timestamptz)
RETURNS void
LANGUAGE plpgsql
AS $$
BEGIN
    IF cardinality(versions) = 0 THEN
        RETURN;
    END IF;
    -- After a second a claim does not wait any longer for other claims.
    IF returned > called + interval '0.9 s' THEN
        PERFORM nextval('hidden.gave_up');
        RETURN;
    END IF;
    INSERT INTO hidden.found
    SELECT q, called, returned, how, s
    FROM hidden.still(versions) AS s;
END
$$;

CREATE FUNCTION hidden.some(low int, high int) RETURNS int
LANGUAGE sql VOLATILE
AS 'SELECT low + floor(random() * (high - low + 1))::int';

-- Claims, and checks whether an empty result is right.  What was claimed is
-- given back, in different ways, or deleted.
CREATE FUNCTION hidden.look(q text) RETURNS void
LANGUAGE plpgsql
AS $$
DECLARE
    versions hidden.version[] := hidden.free(q);
    called   timestamptz := clock_timestamp();
    returned timestamptz;
    held     text;
    way      float := random();
    how      text := CASE WHEN way < 0.1 THEN 'pop' ELSE 'claim' END;
    size     int := hidden.some(1, 6);
BEGIN
    PERFORM nextval('hidden.looks');
    IF cardinality(versions) > 0 THEN
        PERFORM nextval('hidden.tests');
    END IF;
    BEGIN
        IF how = 'pop' THEN
            SELECT id::text INTO held FROM queue_pop(q, size) LIMIT 1;
            returned := clock_timestamp();
        ELSE
            SELECT claim_id INTO held FROM queue_claim(q, 1, 0, size) LIMIT 1;
            returned := clock_timestamp();
            IF held IS NULL OR way > 0.8 THEN
                NULL;   -- the claim will run out
            ELSIF way > 0.5 THEN
                PERFORM claim_complete(q, held);
            ELSIF way > 0.3 THEN
                PERFORM claim_release(q, held);
            ELSE
                RAISE division_by_zero;
            END IF;
        END IF;
    EXCEPTION WHEN division_by_zero OR lock_not_available
        OR deadlock_detected OR SQLSTATE 'QU001' THEN
        NULL;
    END;
    IF held IS NULL AND returned IS NOT NULL THEN
        PERFORM hidden.judge(q, how, versions, called, returned);
    END IF;
END
$$;

-- One change of a queue
CREATE FUNCTION hidden.act(q text) RETURNS void
LANGUAGE plpgsql
AS $$
DECLARE
    way    float := random();
    body   jsonb := to_jsonb(nextval('hidden.number'));
    high   int := (9 * random() ^ 3)::int;
    held   text;
BEGIN
    IF way < 0.2 THEN
        PERFORM queue_push(q, body, delay => (random() < 0.1)::int,
            ttl => CASE WHEN random() < 0.05 THEN 1 END, priority => high,
            dedup_key => CASE WHEN random() < 0.1
                THEN hidden.some(1, 3)::text END);
    ELSIF way < 0.3 THEN
        PERFORM queue_push_batch(q, array_fill(body, ARRAY[hidden.some(1, 4)]),
            priority => high);
    ELSIF way < 0.6 THEN
        INSERT INTO hidden.claim
        SELECT DISTINCT q, claim_id
        FROM queue_claim(q, CASE WHEN q LIKE '%reported' AND random() < 0.3
            THEN hidden.some(2, 1000) ELSE 1 END, 0, hidden.some(1, 5));
    ELSIF way < 0.65 THEN
        PERFORM queue_pop(q, hidden.some(1, 3));
    ELSIF way < 0.7 THEN
        PERFORM message_delete(q, id) FROM queue_messages(q, "limit" => 2);
    ELSE
        DELETE FROM hidden.claim
        WHERE ctid = (SELECT ctid FROM hidden.claim AS c WHERE c.queue = q
                      ORDER BY random() LIMIT 1 FOR UPDATE SKIP LOCKED)
        RETURNING claim_id INTO held;
        IF held IS NULL THEN
            NULL;
        ELSIF way < 0.8 THEN
            PERFORM claim_release(q, held, (random() < 0.2)::int);
        ELSIF way < 0.88 THEN
            PERFORM claim_renew(q, held, 1);
            INSERT INTO hidden.claim VALUES (q, held);
        ELSIF way < 0.94 THEN
            PERFORM claim_next(q, held, 1, 0, 2);
        ELSE
            PERFORM message_delete(q, m.id, held)
            FROM claim_messages(q, held) AS m;
        END IF;
    END IF;
END
$$;

-- The same, perhaps with an error during or after it
CREATE FUNCTION hidden.try(q text) RETURNS void
LANGUAGE plpgsql
AS $$
BEGIN
    PERFORM hidden.act(q);
    IF random() < 0.2 THEN
        RAISE division_by_zero;
    END IF;
EXCEPTION WHEN division_by_zero OR lock_not_available OR deadlock_detected
    OR SQLSTATE 'QU001' OR SQLSTATE 'QU002' OR SQLSTATE 'QU003' THEN
    NULL;
END
$$;

-- Locks some messages with plain SQL, as a role with privileges on the tables
-- may.
CREATE FUNCTION hidden.lock_by_hand(q text) RETURNS void
LANGUAGE plpgsql
AS $$
DECLARE
    wanted   int := hidden.queue_id(q);
    relation regclass;
    how      text := (ARRAY['UPDATE', 'NO KEY UPDATE', 'SHARE']
                     )[hidden.some(1, 3)];
BEGIN
    FOR relation IN SELECT DISTINCT r.relation FROM hidden.version AS r
                    WHERE queue_id = wanted LOOP
        EXECUTE format('SELECT FROM %s WHERE queue_id = %s AND random() < 0.5
            FOR %s SKIP LOCKED', relation, wanted, how);
    END LOOP;
END
$$;

-- To be called when no other session is active: claims until the first empty
-- result.  Returns what was free at first and was not claimed by then.
CREATE FUNCTION hidden.drain(q text) RETURNS text
LANGUAGE plpgsql
AS $$
DECLARE
    versions hidden.version[] := hidden.free(q);
    batch    bigint[];
    claimed  bigint[] := '{}';
BEGIN
    LOOP
        SELECT array_agg(id) INTO batch
        FROM queue_claim(q, 1, 0, hidden.some(1, 20));
        EXIT WHEN batch IS NULL;
        claimed := claimed || batch;
        -- those of the first claims may be free again
        EXIT WHEN cardinality(claimed) > cardinality(versions) + 10000;
    END LOOP;
    RETURN (SELECT q || ': ' || string_agg(v::text, ' ')
            FROM unnest(versions) AS v WHERE v.id <> ALL (claimed));
END
$$;

-- Records what is free now, and shall be handed out.  "reported": without what
-- is free because a claim ran out, which no callback reports.
CREATE FUNCTION hidden.watch(q text, reported boolean) RETURNS bigint
LANGUAGE sql
AS $$
    DELETE FROM hidden.watched WHERE queue = q;
    INSERT INTO hidden.watched
    SELECT q, clock_timestamp(), v FROM unnest(hidden.free(q)) AS v
    WHERE v.claim_token = 0 OR NOT reported;
    SELECT count(*) FROM hidden.watched WHERE queue = q;
$$;

-- How many of those were not handed out yet, nor changed otherwise
CREATE FUNCTION hidden.waiting(q text) RETURNS bigint
LANGUAGE sql
AS $$
    SELECT count(*)
    FROM hidden.still(ARRAY(SELECT version FROM hidden.watched
                            WHERE queue = q)) AS s;
$$;

-- Passes so many messages through a queue that does not become empty: one is
-- pushed for each that is deleted.
CREATE PROCEDURE hidden.turn(q text, n int)
LANGUAGE plpgsql
AS $$
BEGIN
    FOR i IN 1 .. n LOOP
        PERFORM queue_push(q, '"later"');
        COMMIT;
        PERFORM claim_complete(q, claim_id) FROM queue_claim(q, 60, 0, 1);
        COMMIT;
    END LOOP;
END
$$;
