-- test/stress.d/ledger.sql - the load of the stress test, and its ledger
--
-- A message is identified here by the number in its body.  Every call that
-- pushes, claims, renews, releases, deletes or pops writes one row for each
-- message into stress.event, in the same transaction (and subtransaction): so
-- the ledger holds what was committed, and nothing else, whatever rolled back,
-- died or crashed.  Rows are only inserted, so that the ledger does not make a
-- transaction wait for another one, or fail at SERIALIZABLE, that would not
-- without it.
--
-- stress.violation compares the ledger with the rules that a queue must keep.
-- All its comparisons by the clock are on the safe side: "began" and "ended"
-- are the server's clock before and after the call.  The time
-- that the call used lies between them; that of a claim is "until" less "span".
-- pg_xact_commit_timestamp of an event (track_commit_timestamp must be on) is
-- taken before others can see it.

CREATE EXTENSION queue;
CREATE SCHEMA stress;

CREATE SEQUENCE stress.number;

CREATE TABLE stress.event (
    kind  text NOT NULL,        -- push, drop, claim, renew, release, delete, pop,
                                -- bare, cancel
    number bigint NOT NULL,
    id    bigint,
    queue text NOT NULL,
    claim text,                 -- claim id; of a push, its dedup_key
    tries int,                  -- claim_count as handed out
    span  interval,             -- ttl of a claim or renewal, delay of the rest
    began timestamptz NOT NULL,
    ended timestamptz NOT NULL,
    until timestamptz           -- when a claim ends that was made or renewed
);
CREATE INDEX ON stress.event (number);

-- Whether the queues have enough messages; set by the load's parent.
CREATE TABLE stress.full (yes boolean NOT NULL);
INSERT INTO stress.full VALUES (false);

-- plain and other: for everything; keyed: pushes have a dedup_key; mortal:
-- messages become dead letters; again: and these are redriven, with a new id
-- and count; brief: the queue is dropped, purged and paused; turns, single and
-- several: messages are in groups, with these bounds; after: messages also wait
-- for batches, whose members are in plain, other, turns and several.  Messages are
-- canceled in plain, other, mortal and after; plain, keyed and mortal have a history.
CREATE TABLE stress.queue (
    name       text PRIMARY KEY,
    redriven   boolean DEFAULT false,
    brief      boolean DEFAULT false,
    has_groups boolean DEFAULT false,
    bound      int,
    last_try   int,
    cancels    boolean GENERATED ALWAYS AS (name IN ('plain', 'other', 'mortal', 'after')) STORED
);
INSERT INTO stress.queue (name)
VALUES ('plain'), ('other'), ('keyed'), ('mortal'), ('mortal.dead'), ('after');
INSERT INTO stress.queue (name, redriven) VALUES ('again', true), ('again.dead', true);
INSERT INTO stress.queue (name, brief) VALUES ('brief', true);
INSERT INTO stress.queue (name, has_groups, bound, last_try)
VALUES ('turns', true, NULL, NULL), ('single', true, 1, 3), ('single.dead', true, NULL, NULL),
       ('several', true, 3, NULL);

SELECT queue_create('plain', '{"_keep_finished": 36000}'), queue_create('other'),
       queue_create('keyed', '{"_keep_finished": 36000}'), queue_create('after'),
       queue_create('mortal', '{"_max_claim_count": 3, "_keep_finished": 36000}'),
       queue_create('again', '{"_max_claim_count": 2}'),
       queue_create('turns');
SELECT queue_create(name, jsonb_strip_nulls(jsonb_build_object(
           '_group_concurrency', bound, '_max_claim_count', last_try)))
FROM stress.queue WHERE bound > 0;

-- The members of batches, and what waits for them
CREATE TABLE stress.member (
    batch  bigint NOT NULL,
    number bigint NOT NULL
);
CREATE INDEX ON stress.member (batch);
CREATE INDEX ON stress.member (number);
CREATE TABLE stress.waits (
    batch  bigint NOT NULL,
    number bigint NOT NULL
);

-- What a session knows of a claim that it works on.
CREATE TYPE stress.held AS (
    queue   text,
    claim   text,
    ttl     int,
    ids     bigint[],
    numbers bigint[]
);

CREATE FUNCTION stress.seconds(n int) RETURNS interval
LANGUAGE sql IMMUTABLE
RETURN n * interval '1 second';

CREATE FUNCTION stress.some(low int, high int) RETURNS int
LANGUAGE sql VOLATILE
RETURN low + floor(random() * (high - low + 1))::int;

CREATE FUNCTION stress.number_of(body jsonb) RETURNS bigint
LANGUAGE sql IMMUTABLE
RETURN (body->>'number')::bigint;

-- The group of a message, in a queue that has groups
CREATE FUNCTION stress.group_of(number bigint) RETURNS text
LANGUAGE sql IMMUTABLE
RETURN nullif(number % 40, 0)::text;

-- Mostly short; some long enough for TOAST, compressible or not.
CREATE FUNCTION stress.body(number bigint) RETURNS jsonb
LANGUAGE plpgsql
AS $$
BEGIN
    RETURN jsonb_build_object('number', number, 'pad',
        CASE WHEN random() < 0.02 THEN
            (SELECT string_agg(md5(random()::text), '')
             FROM generate_series(1, stress.some(50, 500)))
        WHEN random() < 0.03 THEN repeat('x', stress.some(1000, 30000))
        ELSE repeat('x', stress.some(0, 200)) END);
END
$$;

CREATE FUNCTION stress.wrong(what text) RETURNS void
LANGUAGE plpgsql
AS $$
BEGIN
    RAISE EXCEPTION 'stress: %', what;
END
$$;

-- Pushes one message for which no event is written here.
CREATE FUNCTION stress.push_one(q text, member_of bigint, waits_for bigint)
RETURNS bigint
LANGUAGE plpgsql
AS $$
DECLARE
    number bigint := nextval('stress.number');
    began  timestamptz := clock_timestamp();
BEGIN
    INSERT INTO stress.event
    SELECT 'push', number,
           queue_push(q, stress.body(number), batch => member_of, after => waits_for),
           q, NULL, NULL, '0 s', began, clock_timestamp();
    INSERT INTO stress.member SELECT member_of, number WHERE member_of IS NOT NULL;
    INSERT INTO stress.waits SELECT waits_for, number WHERE waits_for IS NOT NULL;
    RETURN number;
END
$$;

-- Pushes one message or some, in one of the three ways, perhaps as a batch, for
-- which another one waits; returns the numbers.
CREATE FUNCTION stress.push(q text) RETURNS text
LANGUAGE plpgsql
AS $$
DECLARE
    way      float := random();
    delay    int := CASE WHEN random() < 0.1 THEN stress.some(1, 2) END;
    priority int := CASE WHEN random() < 0.3 THEN stress.some(0, 9) ELSE 0 END;
    kind     stress.queue;
    key      text;
    numbers  bigint[];
    bodies   jsonb[];
    groups   text[];
    ids      bigint[];
    began    timestamptz;
    dropped  boolean;
    of_batch bigint;
BEGIN
    q := replace(q, '.dead', '');
    SELECT * INTO kind FROM stress.queue WHERE name = q;
    numbers := ARRAY(SELECT nextval('stress.number')
                     FROM generate_series(1, CASE WHEN q = 'keyed' OR way < 0.4 THEN 1
                                          WHEN kind.bound > 0 THEN stress.some(1, 2)
                                          ELSE stress.some(1, 25) END));
    bodies := ARRAY(SELECT stress.body(n) FROM unnest(numbers) AS n);
    IF kind.has_groups THEN
        groups := ARRAY(SELECT stress.group_of(n) FROM unnest(numbers) AS n);
    END IF;
    IF q = 'keyed' THEN
        key := 'key ' || stress.some(1, 30);
    END IF;
    IF q IN ('plain', 'other', 'turns', 'several') AND random() < 0.2 THEN
        of_batch := batch_create();
    END IF;

    began := clock_timestamp();
    IF key IS NOT NULL AND way < 0.5 THEN
        ids := queue_post(q, jsonb_build_array(jsonb_build_object(
            'body', bodies[1], 'delay', delay, 'priority', priority,
            'dedup_key', key)));
    ELSIF key IS NOT NULL OR way < 0.4 THEN
        ids := ARRAY[queue_push(q, bodies[1], NULL, delay, priority, key,
                                groups[1], batch => of_batch)];
    ELSIF way < 0.7 THEN
        ids := queue_push_batch(q, bodies, NULL, delay, priority,
                                group_keys => groups, batch => of_batch);
    ELSE
        ids := queue_post(q, (
            SELECT jsonb_agg(jsonb_build_object(
                'body', b, 'delay', delay, 'priority', stress.some(0, 9),
                'group_key', groups[i], 'batch', of_batch)
                ORDER BY i)
            FROM unnest(bodies) WITH ORDINALITY AS u (b, i)));
    END IF;

    dropped := key IS NOT NULL AND ids[1] IS NULL;
    IF cardinality(ids) <> cardinality(numbers) OR
       (array_position(ids, NULL) IS NOT NULL AND NOT dropped) THEN
        PERFORM stress.wrong('a push returned ' || ids::text);
    END IF;
    INSERT INTO stress.event
    SELECT CASE WHEN dropped THEN 'drop' ELSE 'push' END, n, i, q, key, NULL,
           stress.seconds(coalesce(delay, 0)), began, clock_timestamp()
    FROM unnest(numbers, ids) AS u (n, i);
    IF of_batch IS NOT NULL THEN
        INSERT INTO stress.member SELECT of_batch, n FROM unnest(numbers) AS n;
        numbers := numbers || stress.push_one('after', NULL, of_batch);
    END IF;
    RETURN CASE WHEN dropped THEN '' ELSE 'P ' || array_to_string(numbers, ' ') END;
END
$$;

-- Checks what a claim or pop returned, and records it.
CREATE FUNCTION stress.took(
    kind text, q text, messages queue_message[], ttl int, "limit" int,
    began timestamptz)
RETURNS stress.held
LANGUAGE plpgsql
AS $$
DECLARE
    ended timestamptz := clock_timestamp();
    held  stress.held;
    until timestamptz;
    m     queue_message;
    pair  record;
    key   boolean := (SELECT has_groups FROM stress.queue WHERE name = q);
BEGIN
    IF messages IS NULL THEN
        RETURN NULL;
    END IF;
    held := (q, messages[1].claim_id, ttl, NULL, NULL);
    -- None, if the claim has ended already.
    SELECT c.expires_at INTO until FROM claim_get(q, held.claim) AS c;
    IF until - stress.seconds(ttl) NOT BETWEEN began AND ended THEN
        PERFORM stress.wrong(
            format('claimed at %s for %s until %s',
                   began, ttl, until));
    END IF;
    FOREACH m IN ARRAY messages LOOP
        IF m.queue <> q THEN
            PERFORM stress.wrong(
                format('%s of %s returned a message of %s',
                       kind, q, m.queue));
        END IF;
        IF m.group_key IS DISTINCT FROM
           (CASE WHEN key THEN stress.group_of(stress.number_of(m.body)) END) THEN
            PERFORM stress.wrong(format('%s returned %s', kind, m));
        END IF;
        IF (kind = 'claim' AND m.claim_id IS DISTINCT FROM held.claim) OR
           (kind = 'claim') <> (m.claim_id IS NOT NULL) THEN
            PERFORM stress.wrong(
                format('%s returned claim id %s',
                       kind, m.claim_id));
        END IF;
        held.ids := held.ids || m.id;
        held.numbers := held.numbers || stress.number_of(m.body);
        INSERT INTO stress.event
        VALUES (kind, stress.number_of(m.body), m.id, q, m.claim_id,
                m.claim_count, stress.seconds(coalesce(ttl, 0)), began, ended,
                until);
    END LOOP;
    SELECT * INTO pair
    FROM (SELECT messages[i] AS m,
                 lag(messages[i]) OVER (PARTITION BY (messages[i]).group_key
                                        ORDER BY i) AS last
          FROM generate_subscripts(messages, 1) AS i) AS rows
    WHERE (rows.last).priority < (rows.m).priority
       OR (rows.last).priority = (rows.m).priority AND (rows.last).id >= (rows.m).id;
    IF FOUND THEN
        PERFORM stress.wrong(format('%s returned %s after %s', kind, pair.m, pair.last));
    END IF;
    IF cardinality(messages) > "limit" THEN
        PERFORM stress.wrong(
            format('%s took %s, limit %s',
                   kind, cardinality(messages), "limit"));
    END IF;
    RETURN held;
END
$$;

-- Claims some; returns them as text (stress.held), '' when there were none.
CREATE FUNCTION stress.claim(q text, ttl int, "limit" int) RETURNS text
LANGUAGE plpgsql
AS $$
DECLARE
    began    timestamptz := clock_timestamp();
    messages queue_message[];
BEGIN
    IF q <> 'keyed' AND random() < 0.1 THEN
        SELECT array_agg(m) INTO messages
        FROM queue_claim_any(ARRAY[q, 'keyed'], ttl, 0, "limit") AS m;
        q := coalesce(messages[1].queue, q);
    ELSE
        SELECT array_agg(m) INTO messages
        FROM queue_claim(q, ttl, 0, "limit") AS m;
    END IF;
    RETURN coalesce(stress.took('claim', q, messages, ttl, "limit", began)::text, '');
END
$$;

CREATE FUNCTION stress.pop(q text, "limit" int) RETURNS text
LANGUAGE plpgsql
AS $$
DECLARE
    began    timestamptz := clock_timestamp();
    messages queue_message[];
    popped   stress.held;
BEGIN
    SELECT array_agg(m) INTO messages FROM queue_pop(q, "limit") AS m;
    popped := stress.took('pop', q, messages, NULL, "limit", began);
    RETURN coalesce('D ' || array_to_string(popped.numbers, ' '), '');
END
$$;

-- Records that these messages of a claim are gone.
CREATE FUNCTION stress.deleted(held stress.held, ids bigint[], began timestamptz)
RETURNS text
LANGUAGE plpgsql
AS $$
DECLARE
    numbers bigint[];
BEGIN
    WITH gone AS (
        INSERT INTO stress.event
        SELECT 'delete', n, i, held.queue, held.claim, NULL, NULL, began,
               clock_timestamp()
        FROM unnest(held.numbers, held.ids) AS u (n, i)
        WHERE i = ANY (deleted.ids)
        RETURNING number)
    SELECT array_agg(number) INTO numbers FROM gone;
    RETURN 'D ' || array_to_string(numbers, ' ');
END
$$;

-- Does something with the rest of a claim.  Returns what was deleted.
CREATE FUNCTION stress.finish(held_text text, how text) RETURNS text
LANGUAGE plpgsql
AS $$
DECLARE
    held    stress.held;
    rest    bigint[];
    part    bigint[];
    n       bigint;
    span    int;
    until   timestamptz;
    began   timestamptz;
    result  text := '';
BEGIN
    IF held_text = '' THEN
        RETURN '';
    END IF;
    held := held_text::stress.held;
    SELECT array_agg(m.id) INTO rest
    FROM claim_messages(held.queue, held.claim) AS m;
    IF NOT rest <@ held.ids THEN
        PERFORM stress.wrong(
            format('claim %s of %s holds %s',
                   held.claim, held.ids, rest));
    END IF;
    SELECT c.expires_at INTO until FROM claim_get(held.queue, held.claim) AS c;

    CASE how
    WHEN 'complete' THEN
        -- A member of a batch makes another one.  If the claim has run out
        -- meanwhile, the batch may have finished.
        SELECT batch INTO n FROM stress.member WHERE number = ANY (held.numbers) LIMIT 1;
        IF n IS NOT NULL AND random() < 0.3 THEN
            BEGIN
                result := 'P ' || stress.push_one('other', n, NULL) || E'\n';
            EXCEPTION WHEN object_not_in_prerequisite_state THEN
                NULL;
            END;
        END IF;
        began := clock_timestamp();
        n := claim_complete(held.queue, held.claim);
        IF n <> cardinality(rest) THEN
            PERFORM stress.wrong(format('completed %s of %s', n, rest));
        END IF;
        result := result || stress.deleted(held, rest, began);

    -- Some of them, or all, in a random order.
    WHEN 'deletes' THEN
        part := ARRAY(SELECT i FROM unnest(held.ids) AS i
                      WHERE i = held.ids[1] OR random() < 0.7 ORDER BY random());
        began := clock_timestamp();
        n := messages_delete(held.queue, part, held.claim);
        IF n <> (SELECT count(*) FROM unnest(part) AS i WHERE i = ANY (rest)) THEN
            PERFORM stress.wrong(
                format('deleted %s of %s out of %s',
                       n, part, rest));
        END IF;
        part := ARRAY(SELECT i FROM unnest(part) AS i WHERE i = ANY (rest));
        result := stress.deleted(held, part, began);

    WHEN 'delete' THEN
        began := clock_timestamp();
        IF message_delete(held.queue, held.ids[1], held.claim) THEN
            result := stress.deleted(held, held.ids[1:1], began);
        ELSIF held.ids[1] = ANY (rest) THEN
            PERFORM stress.wrong(
                format('%s was in the claim and could not be deleted',
                       held.ids[1]));
        END IF;

    WHEN 'release' THEN
        span := CASE WHEN random() < 0.2 THEN 1 ELSE 0 END;
        began := clock_timestamp();
        n := claim_release(held.queue, held.claim, span, failed => true);
        -- None, if the claim ran out or the queue was purged just now; some of them
        -- may have been canceled.
        IF n <> coalesce(cardinality(rest), 0) AND
           NOT (n = 0 AND (until <= clock_timestamp() OR held.queue = 'brief')) AND
           NOT (n < cardinality(rest) AND
                (SELECT cancels FROM stress.queue WHERE name = held.queue)) THEN
            PERFORM stress.wrong(format('released %s of %s', n, rest));
        END IF;
        IF n > 0 THEN
            INSERT INTO stress.event
            SELECT 'release', u.number, i, held.queue, held.claim, NULL,
                   stress.seconds(span), began, clock_timestamp()
            FROM unnest(held.numbers, held.ids) AS u (number, i)
            WHERE i = ANY (rest);
        END IF;

    WHEN 'retry' THEN
        span := CASE WHEN random() < 0.2 THEN 1 ELSE 0 END;
        IF held.ids[1] = ANY (rest) THEN
            began := clock_timestamp();
            -- A retry may make it a dead letter as well.
            IF held.queue IN ('mortal', 'again') AND random() < 0.5 THEN
                PERFORM message_bury(held.queue, held.ids[1], held.claim, 'error');
            ELSE
                PERFORM message_retry(held.queue, held.ids[1], held.claim, 'error', span);
            END IF;
            INSERT INTO stress.event
            VALUES ('release', held.numbers[1], held.ids[1], held.queue, held.claim,
                    NULL, stress.seconds(span), began, clock_timestamp());
        END IF;

    WHEN 'renew' THEN
        span := stress.some(1, 3);
        began := clock_timestamp();
        until := claim_renew(held.queue, held.claim, span);
        IF until IS NOT NULL THEN
            IF until NOT BETWEEN began + stress.seconds(span)
               AND clock_timestamp() + stress.seconds(span) THEN
                PERFORM stress.wrong(
                    format('renewed at %s by %s until %s',
                           began, span, until));
            END IF;
            INSERT INTO stress.event
            SELECT 'renew', u.number, i, held.queue, held.claim, NULL,
                   stress.seconds(span), began, clock_timestamp(), until
            FROM unnest(held.numbers, held.ids) AS u (number, i)
            WHERE i = ANY (rest);
        END IF;

    -- Completes them, takes the next ones, and completes those.
    WHEN 'next' THEN
        DECLARE
            messages queue_message[];
        BEGIN
            began := clock_timestamp();
            IF random() < 0.5 THEN
                SELECT array_agg(m) INTO messages
                FROM claim_next(held.queue, held.claim, 2, 0, 5) AS m;
            ELSE
                SELECT array_agg(m) INTO messages
                FROM queue_step(held.queue, held.claim, ttl => 2, grace => 0, "limit" => 5) AS m;
            END IF;
            result := stress.deleted(held, rest, began);
            held := stress.took('claim', held.queue, messages, 2, 5, began);
            IF held IS NOT NULL THEN
                began := clock_timestamp();
                PERFORM claim_complete(held.queue, held.claim);
                result := result || ' ' ||
                    substr(stress.deleted(held, held.ids, began), 3);
            END IF;
        END;

    -- Too late: the worker must get an error.
    WHEN 'stale' THEN
        PERFORM pg_sleep(greatest(extract(epoch FROM until - clock_timestamp()), 0) + 0.05);
        PERFORM messages_delete(held.queue, held.ids, held.claim);
        PERFORM stress.wrong(
            format('claim %s is over, and deleted a message',
                   held.claim));

    -- The same, and the transaction survives it.
    WHEN 'late' THEN
        PERFORM pg_sleep(greatest(extract(epoch FROM until - clock_timestamp()), 0) + 0.05);
        BEGIN
            PERFORM message_delete(held.queue, held.ids[1], held.claim);
            PERFORM stress.wrong(
                format('claim %s is over, and deleted a message',
                       held.claim));
        EXCEPTION WHEN SQLSTATE 'QU001' THEN
            NULL;
        END;

    -- A message of another session, with a claim that it is not in.
    WHEN 'foreign' THEN
        SELECT m.id INTO n
        FROM queue_messages(held.queue, held.ids[1], 20, true, true) AS m
        WHERE m.id <> ALL (held.ids) ORDER BY random() LIMIT 1;
        IF n IS NOT NULL AND message_delete(held.queue, n, held.claim) THEN
            PERFORM stress.wrong(
                format('claim %s of %s deleted %s',
                       held.claim, held.ids, n));
        END IF;

    -- Or without a claim: right if the message is in none.
    WHEN 'bare' THEN
        DECLARE
            m queue_message;
        BEGIN
            SELECT * INTO m
            FROM queue_messages(held.queue, held.ids[1], 20, true, true)
            ORDER BY random() LIMIT 1;
            began := clock_timestamp();
            IF m.id IS NOT NULL AND message_delete(held.queue, m.id) THEN
                INSERT INTO stress.event
                VALUES ('bare', stress.number_of(m.body), m.id, held.queue, NULL,
                        NULL, NULL, began, clock_timestamp());
                result := 'D ' || stress.number_of(m.body);
            END IF;
        END;

    -- A message of the claim, or any other one.
    WHEN 'cancel' THEN
        DECLARE
            m queue_message;
        BEGIN
            SELECT * INTO m
            FROM queue_messages(held.queue, held.ids[1] - 1, 20, true, true, true)
            ORDER BY random() LIMIT 1;
            began := clock_timestamp();
            IF m.id IS NOT NULL AND (SELECT cancels FROM stress.queue WHERE name = held.queue)
               AND message_cancel(held.queue, m.id, 'canceled') IS NOT NULL THEN
                INSERT INTO stress.event
                VALUES ('cancel', stress.number_of(m.body), m.id, held.queue, NULL,
                        NULL, NULL, began, clock_timestamp());
                result := 'D ' || stress.number_of(m.body);
            END IF;
        END;

    WHEN 'nothing' THEN
        NULL;
    END CASE;
    RETURN result;
END
$$;

-- What a session does next with its claim.
CREATE FUNCTION stress.how() RETURNS text
LANGUAGE plpgsql
AS $$
DECLARE
    dice float := random();
BEGIN
    RETURN CASE
        WHEN dice < 0.35 THEN 'complete'
        WHEN dice < 0.50 THEN 'deletes'
        WHEN dice < 0.55 THEN 'delete'
        WHEN dice < 0.58 THEN 'retry'
        WHEN dice < 0.70 THEN 'release'
        WHEN dice < 0.76 THEN 'renew'
        WHEN dice < 0.86 THEN 'next'
        WHEN dice < 0.87 THEN 'stale'
        WHEN dice < 0.88 THEN 'late'
        WHEN dice < 0.90 THEN 'foreign'
        WHEN dice < 0.92 THEN 'bare'
        WHEN dice < 0.97 THEN 'cancel'
        ELSE 'nothing' END;
END
$$;

-- What happens to whole queues.
CREATE FUNCTION stress.manage(q text) RETURNS void
LANGUAGE plpgsql
AS $$
BEGIN
    IF q = 'again.dead' THEN
        PERFORM queue_redrive(q, NULL, stress.some(1, 30));
    ELSE
        -- Do not wait for slow transactions.
        PERFORM set_config('lock_timeout', '300ms', true);
        CASE stress.some(1, 5)
            WHEN 1 THEN PERFORM queue_drop(q);
            WHEN 2 THEN PERFORM queue_purge(q);
            WHEN 3 THEN PERFORM queue_pause(q);
            ELSE PERFORM queue_resume(q);
        END CASE;
    END IF;
EXCEPTION WHEN undefined_object THEN
    NULL;   -- dropped
END
$$;

-- Several transactions in one call, so that the time between two of them does
-- not include clients and the network.
CREATE PROCEDURE stress.work(steps int)
LANGUAGE plpgsql
AS $$
DECLARE
    q      text;
    dice   float;
    held   text;
    enough boolean;
BEGIN
    FOR step IN 1 .. steps LOOP
        enough := (SELECT yes FROM stress.full);
        q := (SELECT (ARRAY['plain', 'plain', 'plain', 'other', 'mortal',
                            'mortal.dead', 'keyed', 'again', 'again.dead',
                            'brief', 'turns', 'single', 'single', 'single.dead',
                            'several', 'after'])[stress.some(1, 16)]);
        dice := random();
        IF dice < (CASE WHEN enough THEN 0.1 ELSE 0.4 END) THEN
            FOR i IN 1 .. stress.some(1, 3) LOOP
                PERFORM stress.push(q);
            END LOOP;
        ELSIF dice < 0.5 THEN
            PERFORM stress.pop(q, stress.some(1, 5));
        ELSIF (q = 'again.dead' AND dice < 0.7) OR (q = 'brief' AND dice < 0.6) THEN
            PERFORM stress.manage(q);
        ELSE
            held := stress.claim(q, CASE WHEN random() < 0.5 THEN 1 ELSE 3 END,
                                 stress.some(1, 30));
            IF random() < 0.8 THEN
                COMMIT;
            ELSIF random() < 0.3 THEN
                ROLLBACK;
                CONTINUE;
            END IF;
            -- A subtransaction that is rolled back.
            IF random() < 0.15 THEN
                BEGIN
                    PERFORM stress.finish(held,
                        (ARRAY['complete', 'deletes', 'release', 'next',
                               'renew'])[stress.some(1, 5)]);
                    RAISE EXCEPTION SQLSTATE 'ST000';
                EXCEPTION WHEN SQLSTATE 'ST000' THEN
                    NULL;
                END;
            END IF;
            PERFORM stress.finish(held, stress.how());
            IF random() < 0.3 THEN
                PERFORM stress.push(q);
            END IF;
        END IF;
        IF random() < 0.1 THEN
            ROLLBACK;
        ELSE
            COMMIT;
        END IF;
    END LOOP;
END
$$;

-- While no other session is active: takes all messages, and returns those that
-- it could not get within so many seconds.  A message that counts as free must
-- be handed out at the next call, unless it can become a dead letter, or has to wait for another one
-- of its group.
CREATE PROCEDURE stress.drain(seconds int, INOUT stuck text = NULL)
LANGUAGE plpgsql
AS $$
DECLARE
    until timestamptz := clock_timestamp() + stress.seconds(seconds);
    q     text;
    free  bigint;
    held  text;
    total bigint;
BEGIN
    PERFORM queue_resume(name) FROM stress.queue WHERE brief AND queue_exists(name);
    LOOP
        FOR q IN SELECT name FROM stress.queue LOOP
            LOOP
                SELECT s.free INTO free FROM queue_stats(q) AS s;
                IF random() < 0.2 THEN
                    held := stress.pop(q, 100);
                ELSE
                    held := stress.claim(q, 30, 100);
                    PERFORM stress.finish(held, 'complete');
                END IF;
                COMMIT;
                -- Duplicates count as free until a claim meets them.
                IF held = '' AND free > 0 THEN
                    SELECT s.free INTO free FROM queue_stats(q) AS s;
                END IF;
                IF held = '' AND free > 0 AND q NOT IN ('mortal', 'again')
                   AND (SELECT bound IS NULL FROM stress.queue WHERE name = q) THEN
                    stuck := format('%s: %s messages are free, none is handed out',
                                    q, free);
                    RETURN;
                END IF;
                EXIT WHEN held = '';
            END LOOP;
        END LOOP;
        SELECT sum(s.total) INTO total
        FROM stress.queue, queue_stats(name) AS s;
        EXIT WHEN total = 0;
        IF clock_timestamp() > until THEN
            SELECT string_agg(format('%s: %s', name, to_jsonb(s)), E'\n') INTO stuck
            FROM stress.queue, queue_stats(name) AS s;
            RETURN;
        END IF;
        PERFORM pg_sleep(0.1);
    END LOOP;
    SELECT string_agg(to_jsonb(m)::text, E'\n') INTO stuck
    FROM (SELECT * FROM queue_data.message LIMIT 10) AS m;
END
$$;

CREATE VIEW stress.happened AS
SELECT e.*, pg_xact_commit_timestamp(e.xmin) AS committed
FROM stress.event AS e;

-- A message leaves a queue in one of four ways.  One that a claim holds can be
-- canceled more than once.
CREATE VIEW stress.gone AS
SELECT * FROM stress.happened WHERE kind IN ('delete', 'pop', 'bare')
UNION ALL
(SELECT DISTINCT ON (number) * FROM stress.happened WHERE kind = 'cancel'
 ORDER BY number, committed);

-- One with a key may also leave because the run of a twin covers it: one that
-- began after it was pushed, and was completed.
CREATE VIEW stress.covered AS
SELECT p.number
FROM stress.happened AS p
WHERE p.kind = 'push' AND p.queue = 'keyed'
  AND EXISTS (SELECT
              FROM stress.event AS twin
              JOIN stress.event AS run USING (number)
              JOIN stress.gone AS done USING (number)
              WHERE twin.kind = 'push' AND twin.queue = p.queue
                AND twin.claim = p.claim AND twin.number <> p.number
                AND run.ended >= p.committed
                AND (run.kind = 'claim' AND done.kind = 'delete'
                     AND done.claim = run.claim
                     OR run.kind = 'pop' AND done.kind = 'pop'));

-- Those that are there; a canceled one that is not removed yet is gone.
CREATE VIEW stress.waiting AS
SELECT stress.number_of(body) AS number, count(*) AS times
FROM queue_data.message
WHERE state NOT IN ('canceled', 'expired')
GROUP BY 1;

-- How long each message was in a claim: until its end or that of the last
-- renewal, unless it was released before.
CREATE VIEW stress.hold AS
SELECT c.number, c.queue, c.claim, c.tries, c.began, c.ended,
       coalesce(r.until, c.until, c.began + c.span) AS least_until,
       coalesce(r.until, c.until, c.ended + c.span) AS most_until,
       b.began AS release_began, b.committed AS release_committed
FROM stress.happened AS c
LEFT JOIN (SELECT DISTINCT ON (claim, number) *
           FROM stress.happened WHERE kind = 'renew'
           ORDER BY claim, number, began DESC) AS r
     ON r.claim = c.claim AND r.number = c.number
LEFT JOIN (SELECT DISTINCT ON (claim, number) *
           FROM stress.happened WHERE kind = 'release'
           ORDER BY claim, number, began DESC) AS b
     ON b.claim = c.claim AND b.number = c.number
WHERE c.kind = 'claim';

-- Everything that takes a message, after what took it before.
CREATE VIEW stress.succession AS
SELECT t.*,
       coalesce(t.until - t.span, t.ended) AS moment,
       lag(t.claim) OVER w AS last_claim,
       lag(t.tries) OVER w AS last_tries,
       lag(h.least_until) OVER w AS last_until,
       lag(h.release_began) OVER w AS last_release_began,
       lag(h.release_committed) OVER w AS last_release_committed,
       q.redriven
FROM stress.happened AS t
JOIN stress.queue AS q ON q.name = t.queue
LEFT JOIN stress.hold AS h
     ON t.kind = 'claim' AND h.claim = t.claim AND h.number = t.number
WHERE t.kind IN ('claim', 'pop', 'bare')
WINDOW w AS (PARTITION BY t.number
             ORDER BY CASE WHEN q.redriven THEN 0 ELSE t.tries END NULLS LAST,
                      CASE WHEN q.redriven THEN '' ELSE t.kind END, t.ended);

-- What is taken from groups with a bound: from when the call had returned until it
-- may be over.  A claim is over when it expires, or when the transaction that ends
-- it commits; that transaction itself may take others before.  A pop is over
-- when it is committed.
CREATE VIEW stress.taken AS
SELECT t.number, t.queue, stress.group_of(t.number) AS group_key, q.bound, t.ended AS since,
       CASE WHEN t.kind = 'pop' THEN t.committed
       ELSE least(h.least_until, CASE WHEN own.committed IS NULL THEN e.committed
                                 ELSE e.began END) END AS until,
       t.kind = 'pop' OR e.kind = 'delete' OR t.tries = q.last_try AS is_last
FROM stress.happened AS t
JOIN stress.queue AS q ON q.name = t.queue
LEFT JOIN stress.hold AS h USING (claim, number)
LEFT JOIN stress.happened AS e
     ON e.kind IN ('release', 'delete') AND e.claim = t.claim AND e.number = t.number
LEFT JOIN (SELECT DISTINCT committed FROM stress.happened
           WHERE kind IN ('claim', 'pop')) AS own
     ON own.committed = e.committed
WHERE t.kind IN ('claim', 'pop') AND q.bound > 0
  AND stress.group_of(t.number) IS NOT NULL;

-- What counts toward the bound of its group.  With a bound of 1 that is each message
-- that was taken, until it is finished: until it is deleted, or its last claim is
-- over.
CREATE VIEW stress.counted AS
SELECT number, queue, group_key, bound, since, until
FROM stress.taken
WHERE bound > 1
UNION ALL
SELECT t.number, t.queue, t.group_key, 1, min(t.since),
       least(min(t.until) FILTER (WHERE t.is_last), min(g.began))
FROM stress.taken AS t
LEFT JOIN stress.gone AS g ON g.number = t.number AND g.kind = 'bare'
WHERE t.bound = 1
GROUP BY t.number, t.queue, t.group_key;

-- How many there were when another one was added.
CREATE VIEW stress.crowd AS
SELECT *
FROM (SELECT *, sum(step) OVER (PARTITION BY queue, group_key ORDER BY at, step) AS n
      FROM (SELECT number, queue, group_key, bound, since AS at, 1 AS step
            FROM stress.counted WHERE until IS NULL OR until > since
            UNION ALL
            SELECT number, queue, group_key, bound, until, -1
            FROM stress.counted WHERE until > since) AS s) AS c
WHERE step = 1;

-- The history, without attempts that have failed
DO $$
BEGIN
    EXECUTE 'CREATE VIEW stress.finished AS '
        || (SELECT string_agg('SELECT * FROM queue_data.finished_' || i
                              || ' WHERE NOT is_attempt', ' UNION ALL ')
            FROM generate_series(0, 17) AS i);
END
$$;

-- Rows of queues that were dropped.  Those of the history go with their table, when all
-- of that is too old.
CREATE FUNCTION stress.orphans() RETURNS TABLE (relation regclass, orphans bigint)
LANGUAGE plpgsql
AS $$
BEGIN
    FOR relation IN
        SELECT attrelid FROM pg_attribute JOIN pg_class AS c ON c.oid = attrelid
        WHERE attname = 'queue_id' AND relkind = 'r'
          AND relnamespace = 'queue_data'::regnamespace AND relname !~ '^finished_\d'
    LOOP
        EXECUTE format('SELECT count(*) FROM %s AS r WHERE NOT EXISTS
            (SELECT FROM queue_data.queue AS q WHERE q.id = r.queue_id)', relation)
        INTO orphans;
        IF orphans > 0 THEN
            RETURN NEXT;
        END IF;
    END LOOP;
END
$$;

-- Batches that have not finished with all their members, when all are gone.  A
-- canceled member has failed.
CREATE VIEW stress.wrong_batch AS
SELECT w.batch, to_jsonb(s) AS status, w.n
FROM (SELECT batch, count(m.number) AS n,
             count(*) FILTER (WHERE g.kind = 'cancel') AS canceled
      FROM (SELECT DISTINCT batch FROM stress.waits) AS w
           LEFT JOIN stress.member AS m USING (batch)
           LEFT JOIN stress.gone AS g USING (number)
      GROUP BY batch) AS w
CROSS JOIN LATERAL batch_status(w.batch) AS s
WHERE s.finished_at IS NULL OR s.members <> w.n OR s.waiting > 0
   OR s.failed <> w.canceled OR s.completed + s.failed <> w.n;

-- All that breaks the rules; no row, if all is well.  To be read while no
-- transaction is open.
CREATE VIEW stress.violation (rule, number, detail) AS
-- Nothing is lost ...
SELECT 'lost', p.number, to_jsonb(p)
FROM stress.happened AS p
JOIN stress.queue AS q ON q.name = p.queue
WHERE p.kind = 'push' AND NOT q.brief
  AND p.number NOT IN (SELECT number FROM stress.gone)
  AND p.number NOT IN (SELECT number FROM stress.waiting)
  AND p.number NOT IN (SELECT number FROM stress.covered)
UNION ALL
-- ... is pushed twice,
SELECT 'doubled', w.number, to_jsonb(w)
FROM stress.waiting AS w WHERE w.times > 1
UNION ALL
SELECT 'deleted twice', number, jsonb_agg(to_jsonb(g))
FROM stress.gone AS g GROUP BY number HAVING count(*) > 1
UNION ALL
-- ... is handed out after it was deleted,
SELECT 'back', w.number, to_jsonb(w)
FROM stress.waiting AS w JOIN stress.gone USING (number)
UNION ALL
SELECT 'handed out after it was deleted', t.number,
       jsonb_build_array(to_jsonb(g), to_jsonb(t))
FROM stress.happened AS t JOIN stress.gone AS g USING (number)
WHERE t.began > g.ended
  AND (t.kind IN ('claim', 'pop', 'bare')
       OR t.kind IN ('renew', 'release') AND g.kind <> 'cancel')
UNION ALL
SELECT 'orphans', NULL, to_jsonb(o) FROM stress.orphans() AS o
UNION ALL
-- ... or was never pushed.
SELECT 'never pushed', n.number, NULL
FROM (SELECT number FROM stress.waiting
      UNION SELECT number FROM stress.event WHERE kind <> 'drop') AS n
WHERE n.number NOT IN (SELECT number FROM stress.event WHERE kind = 'push')
UNION ALL
SELECT 'handed out before its push was committed', t.number,
       jsonb_build_array(to_jsonb(p), to_jsonb(t))
FROM stress.happened AS t JOIN stress.happened AS p USING (number)
WHERE t.kind IN ('claim', 'pop', 'bare') AND p.kind = 'push'
  AND t.ended < p.committed AND t.committed <> p.committed
UNION ALL
SELECT 'another id', t.number, jsonb_build_array(to_jsonb(p), to_jsonb(t))
FROM stress.event AS t JOIN stress.event AS p USING (number)
JOIN stress.queue AS q ON q.name = p.queue
WHERE p.kind = 'push' AND t.kind <> 'push' AND t.queue = p.queue
  AND t.id <> p.id AND NOT q.redriven
UNION ALL
SELECT 'not due', t.number, jsonb_build_array(to_jsonb(p), to_jsonb(t))
FROM stress.event AS t JOIN stress.event AS p USING (number, id)
WHERE t.kind IN ('claim', 'pop') AND p.kind IN ('push', 'release')
  AND t.began > p.ended AND t.ended < p.began + p.span
UNION ALL
-- A message is in one claim at a time, and no other session takes it meanwhile,
SELECT 'held twice at once', s.number, to_jsonb(s)
FROM stress.succession AS s
-- A transaction sees its own release before the commit.
WHERE s.moment < s.last_until
  AND (s.last_release_committed IS NULL
       OR s.ended < CASE WHEN s.last_release_committed = s.committed
                    THEN s.last_release_began ELSE s.last_release_committed END)
UNION ALL
-- ... each claim adds one to its count,
SELECT 'claim_count', s.number, to_jsonb(s)
FROM stress.succession AS s
WHERE s.tries IS NOT NULL AND NOT s.redriven
  AND s.tries <> coalesce(s.last_tries, 0) + CASE s.kind WHEN 'claim' THEN 1 ELSE 0 END
UNION ALL
-- ... only the last claim deletes, while it lasts,
SELECT 'deleted by a claim that was over', d.number,
       jsonb_build_array(to_jsonb(d), to_jsonb(h))
FROM stress.happened AS d
JOIN stress.queue AS q ON q.name = d.queue
LEFT JOIN stress.hold AS h USING (claim, number)
WHERE d.kind = 'delete'
  AND (h.claim IS NULL OR d.began > h.most_until OR
       NOT q.redriven AND h.tries <> (SELECT max(t.tries) FROM stress.event AS t
                   WHERE t.number = d.number AND t.kind = 'claim'))
UNION ALL
-- ... and no two claims have one id.
SELECT 'claim id used twice', min(number), to_jsonb(claim)
FROM stress.event WHERE kind = 'claim'
GROUP BY claim HAVING count(DISTINCT began) > 1
UNION ALL
-- A group never has more than its bound in claims; with a bound of 1, nothing is
-- taken from it while a message that was taken before is not finished.
SELECT 'bound', c.number, to_jsonb(c)
FROM stress.crowd AS c WHERE c.n > c.bound
UNION ALL
-- What leaves a queue that has a history has one row there; a canceled message
-- when it is removed.
SELECT 'no history', g.number, to_jsonb(g)
FROM stress.gone AS g
WHERE g.queue IN ('plain', 'keyed', 'mortal')
  AND NOT EXISTS (SELECT FROM stress.finished AS f
                  WHERE f.id = g.id
                    AND f.outcome = CASE g.kind WHEN 'cancel' THEN 3 WHEN 'bare' THEN 5 ELSE 0 END)
  AND NOT (g.kind = 'cancel' AND g.id IN (SELECT id FROM queue_data.message))
UNION ALL
SELECT 'another history', NULL, jsonb_agg(to_jsonb(f))
FROM stress.finished AS f
GROUP BY f.id
HAVING count(*) > 1
    OR min(f.outcome) IN (0, 3, 5) AND f.id NOT IN (SELECT id FROM stress.gone WHERE id IS NOT NULL)
UNION ALL
-- What waits for a batch is handed out when all members are finished.  Without a
-- worker, that may be in the transaction that finishes the last one.
SELECT 'freed early', t.number, jsonb_build_array(to_jsonb(t), to_jsonb(m))
FROM stress.waits AS w
JOIN stress.happened AS t ON t.number = w.number AND t.kind IN ('claim', 'pop', 'bare')
JOIN stress.member AS m ON m.batch = w.batch
LEFT JOIN stress.gone AS g ON g.number = m.number
WHERE g.number IS NULL OR (g.committed > t.ended AND g.committed <> t.committed)
UNION ALL
-- Of two messages with one key, the earlier was claimed or gone before the
-- push of the later returned,
SELECT 'duplicate', b.number, jsonb_build_array(to_jsonb(a), to_jsonb(b))
FROM stress.event AS a
JOIN stress.event AS b
     ON b.kind = 'push' AND b.claim = a.claim AND a.ended < b.ended
WHERE a.kind = 'push' AND a.claim IS NOT NULL
  AND NOT EXISTS (SELECT FROM stress.event AS t
                  WHERE t.number = a.number AND t.kind IN ('claim', 'pop', 'bare')
                    AND t.began < b.ended)
  AND a.number NOT IN (SELECT number FROM stress.covered)
UNION ALL
-- ... and a push was dropped only because of a message that existed.
SELECT 'dropped without a twin', b.number, to_jsonb(b)
FROM stress.happened AS b
WHERE b.kind = 'drop'
  AND NOT EXISTS (SELECT FROM stress.happened AS a
                  LEFT JOIN stress.gone AS g USING (number)
                  WHERE a.kind = 'push' AND a.claim = b.claim
                    AND a.began < b.ended
                    AND (g.committed > b.began OR g.committed IS NULL));
