-- No message is lost or handed out twice: after a long series of random calls
-- of all functions, what was pushed is what was deleted, what is there, and
-- what became a dead letter.

CREATE EXTENSION queue;
SET queue.min_claim_ttl = 1;
SET queue.min_claim_grace = 0;
\set VERBOSITY terse

SELECT queue_create('walk/1', '{"_max_claim_count": 3, "_dead_letter_queue": "walk.dead"}');
SELECT queue_create('walk/2', '{"_max_claim_count": 2, "_dead_letter_queue": "walk.dead"}');
SELECT queue_create('walk/3');
-- What happened, recorded in the transaction in which it happened.
CREATE TEMP TABLE pushed (n bigint PRIMARY KEY);
CREATE TEMP TABLE deleted (n bigint PRIMARY KEY);
CREATE TEMP TABLE claims (claim text PRIMARY KEY, q text);
-- Claimed now: the primary key shows a message that is handed out twice.
CREATE TEMP TABLE held (n bigint PRIMARY KEY, id bigint, claim text);
CREATE TEMP SEQUENCE counter;

-- Each step is a transaction, every fifth is rolled back, some steps in a
-- subtransaction.
DO $$
DECLARE
    step int;
    i int;
    q text;
    c record;
    m record;
    bodies jsonb[];
    got queue_message[];
    ids bigint[];
    done bigint[];
    n bigint;
BEGIN
    PERFORM setseed(0.25);
    FOR step IN 1 .. 5000 LOOP
        q := 'walk/' || 1 + floor(random() * 3);
        SELECT * INTO c FROM claims ORDER BY md5(claim || step) LIMIT 1;
        BEGIN
            CASE floor(random() * 13)::int
            WHEN 0, 1 THEN
                n := nextval('counter');
                INSERT INTO pushed VALUES (n);
                PERFORM queue_push(q, to_jsonb(n), priority => floor(random() * 10)::int);
            WHEN 2 THEN
                bodies := ARRAY(SELECT to_jsonb(nextval('counter'))
                                FROM generate_series(1, floor(random() * 20)::int));
                INSERT INTO pushed SELECT b::bigint FROM unnest(bodies) b;
                PERFORM queue_push_batch(q, bodies, priority => floor(random() * 3)::int);
            WHEN 3, 4, 5 THEN
                got := ARRAY(SELECT g FROM queue_claim(q, 600, 60,
                                 1 + floor(random() * 10)::int) AS g);
                INSERT INTO held SELECT body::bigint, id, claim_id FROM unnest(got);
                INSERT INTO claims SELECT DISTINCT claim_id, q FROM unnest(got);
            WHEN 6 THEN
                got := ARRAY(SELECT g FROM queue_pop(q, 1 + floor(random() * 3)::int) AS g);
                INSERT INTO deleted SELECT body::bigint FROM unnest(got);
            WHEN 7 THEN
                IF c.claim IS NOT NULL THEN
                    ASSERT claim_release(c.q, c.claim, failed => true)
                           = (SELECT count(*) FROM held WHERE claim = c.claim);
                    DELETE FROM held WHERE claim = c.claim;
                    DELETE FROM claims WHERE claim = c.claim;
                END IF;
            WHEN 8 THEN
                IF c.claim IS NOT NULL THEN
                    INSERT INTO deleted SELECT h.n FROM held h WHERE claim = c.claim;
                    ASSERT claim_complete(c.q, c.claim)
                           = (SELECT count(*) FROM held WHERE claim = c.claim);
                    DELETE FROM held WHERE claim = c.claim;
                    DELETE FROM claims WHERE claim = c.claim;
                END IF;
            WHEN 9 THEN
                IF c.claim IS NOT NULL THEN
                    FOR m IN SELECT * FROM held WHERE claim = c.claim ORDER BY id LIMIT 2 LOOP
                        ASSERT message_delete(c.q, m.id, c.claim);
                        INSERT INTO deleted VALUES (m.n);
                        DELETE FROM held h WHERE h.n = m.n;
                    END LOOP;
                    IF NOT EXISTS (SELECT FROM held WHERE claim = c.claim) THEN
                        DELETE FROM claims WHERE claim = c.claim;
                    END IF;
                END IF;
            WHEN 10 THEN
                IF c.claim IS NOT NULL THEN
                    INSERT INTO deleted SELECT h.n FROM held h WHERE claim = c.claim;
                    DELETE FROM held WHERE claim = c.claim;
                    DELETE FROM claims WHERE claim = c.claim;
                    got := ARRAY(SELECT g FROM claim_next(c.q, c.claim, 600, 60, 3) AS g);
                    INSERT INTO held SELECT body::bigint, id, claim_id FROM unnest(got);
                    INSERT INTO claims SELECT DISTINCT claim_id, c.q FROM unnest(got);
                END IF;
            WHEN 11 THEN
                IF c.claim IS NOT NULL THEN
                    ASSERT claim_renew(c.q, c.claim, 700, 60) IS NOT NULL;
                END IF;
            ELSE
                -- One is done, one has failed, the rest is given back; or all is
                -- done but one.
                IF c.claim IS NOT NULL THEN
                    ids := ARRAY(SELECT h.id FROM held h WHERE claim = c.claim ORDER BY h.id);
                    n := nextval('counter');
                    INSERT INTO pushed VALUES (n);
                    done := CASE WHEN random() < 0.5 THEN ids[2:2] END;
                    INSERT INTO deleted SELECT h.n FROM held h
                        WHERE claim = c.claim
                        AND CASE WHEN done IS NULL THEN h.id <> ids[1] ELSE h.id = ANY (done) END;
                    DELETE FROM held WHERE claim = c.claim;
                    DELETE FROM claims WHERE claim = c.claim;
                    got := ARRAY(SELECT g FROM queue_step(c.q, c.claim, done,
                                     jsonb_build_array(jsonb_build_object('id', ids[1], 'delay', 0)),
                                     jsonb_build_array(jsonb_build_object('body', n)),
                                     600, 60, floor(random() * 4)::int) AS g);
                    INSERT INTO held SELECT body::bigint, id, claim_id FROM unnest(got);
                    INSERT INTO claims SELECT DISTINCT claim_id, c.q FROM unnest(got);
                END IF;
            END CASE;
            IF random() < 0.2 THEN
                RAISE SQLSTATE 'RB000';
            END IF;
        EXCEPTION WHEN SQLSTATE 'RB000' THEN
            NULL;
        END;
        IF random() < 0.2 THEN
            ROLLBACK;
        ELSE
            COMMIT;
        END IF;
    END LOOP;
END
$$;

SELECT count(*) > 1000 AS much_was_pushed FROM pushed;
SELECT count(*) > 300 AS much_was_deleted FROM deleted;
SELECT (SELECT count(*) FROM pushed)
       - (SELECT count(*) FROM deleted)
       - (SELECT sum(total) FROM unnest('{walk/1, walk/2, walk/3}'::text[]) q, queue_stats(q))
       - (SELECT total FROM queue_stats('walk.dead')) AS lost;
SELECT (SELECT count(*) FROM queue_dead_letters('walk.dead', 10000)) > 0 AS some_died,
       (SELECT count(*) FROM queue_dead_letters('walk.dead', 10000))
       = (SELECT total FROM queue_stats('walk.dead')) AS all_known;
-- message by message
SELECT count(*) AS wrong
    FROM (SELECT n FROM deleted
          UNION ALL
          SELECT body::bigint FROM unnest('{walk/1, walk/2, walk/3, walk.dead}'::text[]) q,
               queue_messages(q, "limit" => 10000, include_claimed => true) m) AS s (n)
         FULL JOIN pushed USING (n)
    WHERE pushed.n IS NULL OR s.n IS NULL;
SELECT count(*) - count(DISTINCT n) AS twice
    FROM (SELECT n FROM deleted
          UNION ALL
          SELECT body::bigint FROM queue_data.message) AS s (n);
-- what is claimed is claimed
SELECT sum(claimed) = (SELECT count(*) FROM held) AS held
    FROM unnest('{walk/1, walk/2, walk/3}'::text[]) q, queue_stats(q);
SELECT count(*) AS wrong FROM held h JOIN claims c USING (claim)
    WHERE NOT EXISTS (SELECT FROM message_get(c.q, h.id) m WHERE m.claim_id = h.claim);
-- no message is stuck: when all claims are released, everything can be claimed
SELECT count(claim_release(q, claim, failed => true)) > 0 AS released FROM claims;
SELECT sum(free) - sum(total) AS not_free
    FROM unnest('{walk/1, walk/2, walk/3, walk.dead}'::text[]) q, queue_stats(q);
DO $$
DECLARE
    q text;
    rows int;
BEGIN
    FOREACH q IN ARRAY '{walk/1, walk/2, walk/3, walk.dead}'::text[] LOOP
        LOOP
            INSERT INTO deleted SELECT body::bigint FROM queue_pop(q, 17);
            GET DIAGNOSTICS rows = ROW_COUNT;
            EXIT WHEN rows = 0;
            COMMIT;
        END LOOP;
    END LOOP;
END
$$;
SELECT count(*) AS wrong FROM pushed FULL JOIN deleted USING (n)
    WHERE pushed.n IS NULL OR deleted.n IS NULL;
SELECT sum(total) FROM unnest('{walk/1, walk/2, walk/3, walk.dead}'::text[]) q, queue_stats(q);
SELECT count(*) FROM queue_data.message;

DROP TABLE pushed, deleted, claims, held;
DROP SEQUENCE counter;
DROP EXTENSION queue;
