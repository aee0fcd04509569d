-- message_retry: released with its error, with growing delays, until it is a
-- dead letter.

CREATE EXTENSION queue;
SET queue.min_claim_ttl = 1;
SET queue.min_claim_grace = 0;
SET queue.min_message_ttl = 1;
\set VERBOSITY sqlstate

-- With a _retry_delay of 0 it is free at once, with its old position in the
-- order.
SELECT queue_create('q', '{"_retry_delay": 0}');
SELECT queue_push_batch('q', '{1, 2, 3}') IS NOT NULL AS pushed;
SELECT id, claim_id AS claim FROM queue_claim('q', 600, 60, 1) \gset
SELECT due BETWEEN now() AND clock_timestamp() AS at_once
    FROM message_retry('q', :id, :'claim') due;
SELECT body, claim_count, id = :id AS same_id FROM queue_claim('q', 600, 60, 1);
-- the claim ends, as it has no other message
SELECT message_delete('q', :id, :'claim');
SELECT message_retry('q', :id, :'claim');
SELECT claim_renew('q', :'claim', 60) IS NULL AS not_live;

-- Other messages of the claim are not changed.
SELECT claim_id AS claim, array_agg(id ORDER BY id) AS ids
    FROM queue_claim('q', 600, 60, 2) GROUP BY 1 \gset
SELECT message_retry('q', (:'ids'::bigint[])[1], :'claim', 'first') IS NOT NULL AS retried;
SELECT body FROM claim_messages('q', :'claim');
-- one time is enough
SELECT message_retry('q', (:'ids'::bigint[])[1], :'claim', 'again');
SELECT message_delete('q', (:'ids'::bigint[])[1], :'claim');
-- nor one that is gone, or was never there, while the claim is live
SELECT message_delete('q', (:'ids'::bigint[])[1]);
SELECT message_retry('q', (:'ids'::bigint[])[1], :'claim');
SELECT message_retry('q', 1, :'claim');
SELECT claim_complete('q', :'claim');
SELECT queue_purge('q');

-- A delay.
SELECT queue_push('q', '"late"', 1000) AS id \gset
SELECT claim_id AS claim FROM queue_claim('q', 600, 60) \gset
BEGIN;
SELECT due - now() BETWEEN interval '300 s' AND interval '301 s' AS in_time
    FROM message_retry('q', :id, :'claim', 'slow', 300) due;
SELECT free, claimed, delayed FROM queue_stats('q');
SELECT count(*) FROM queue_claim('q', 600, 60);
ROLLBACK;
SELECT free, claimed, delayed FROM queue_stats('q');
SELECT message_retry('q', :id, :'claim', 'slow', 1) IS NOT NULL AS retried;
SELECT id = :id AS same_id, ttl, claim_id, claim_count FROM message_get('q', :id);
SELECT pg_sleep(1.1);
SELECT body, id = :id AS same_id, claim_count FROM queue_claim('q', 600, 60);

-- The queue's own delay grows with each attempt, and has a random part.
SELECT queue_create('b', '{"_retry_delay": 100, "_retry_backoff": 3}');
CREATE FUNCTION pg_temp.try_once() RETURNS numeric LANGUAGE plpgsql AS $$
DECLARE
    m queue_message;
    due timestamptz;
    began timestamptz := clock_timestamp();
BEGIN
    SELECT * INTO m FROM queue_claim('b', 600, 60, 1);
    BEGIN
        due := message_retry('b', m.id, m.claim_id);
        RAISE SQLSTATE 'UNDO1';
    EXCEPTION WHEN SQLSTATE 'UNDO1' THEN
        -- do not wait for it
        PERFORM message_retry('b', m.id, m.claim_id, delay => 0);
    END;
    RETURN extract(epoch FROM due - began)::numeric;
END
$$;
SELECT queue_push('b', '1') > 0 AS pushed;
SELECT try, delay BETWEEN 100 * 3 ^ (try - 1) AND 100 * 3 ^ (try - 1) * 1.25 + 10 AS as_told
    FROM (SELECT try, pg_temp.try_once() AS delay FROM generate_series(1, 5) try) s;
-- the setting bounds it
SET queue.max_message_delay = 5000;
SELECT due BETWEEN 5000 AND 6260 AS bounded FROM pg_temp.try_once() due;
RESET queue.max_message_delay;
SELECT queue_purge('b');
SELECT queue_push_batch('b', array_agg(to_jsonb(i))) IS NOT NULL AS pushed
    FROM generate_series(1, 20) i;
SELECT count(DISTINCT due - now()) > 15 AS differ
    FROM (SELECT message_retry('b', id, claim_id) AS due
          FROM queue_claim('b', 600, 60, 20)) s;
-- one that is given overrides it
SELECT queue_purge('b');
SELECT queue_push('b', '1') > 0 AS pushed;
SELECT message_retry('b', id, claim_id, delay => 0) <= clock_timestamp() AS at_once
    FROM queue_claim('b', 600, 60);

-- The last error is kept, shown, and moves to the dead letter queue as well.
SELECT queue_create('d', '{"_max_claim_count": 3, "_retry_delay": 0}');
SELECT queue_push('d', '"fails"', priority => 4) AS id \gset
SELECT message_retry('d', id, claim_id, 'first error') IS NOT NULL AS again
    FROM queue_claim('d', 600, 60);
SELECT attributes FROM queue_data.message WHERE queue = 'd';
SELECT last_error, last_error_at <= clock_timestamp() AS then FROM job_stats('d');
-- NULL keeps the former one
SELECT message_retry('d', id, claim_id) IS NOT NULL AS again
    FROM queue_claim('d', 600, 60);
SELECT attributes FROM queue_data.message WHERE queue = 'd';
SELECT message_retry('d', id, claim_id, E'third "error"\n with ''quotes'' and \\', 100) IS NULL AS dead
    FROM queue_claim('d', 600, 60);
SELECT count(*) FROM queue_claim('d', 600, 60);
SELECT body, origin_queue, origin_id = :id AS origin, reason, last_error, claim_count
    FROM queue_dead_letters('d.dead');
SELECT claimed, completed, retried, abandoned, last_error FROM job_stats('d');
-- a redrive removes it
SELECT queue_redrive('d.dead');
SELECT body, claim_count, priority FROM queue_claim('d', 600, 60);
SELECT attributes FROM queue_data.message WHERE queue = 'd';

-- allowRetries that is false: one attempt
SELECT queue_create('once', '{"_max_claim_count": 1, "_dead_letter_queue": "graves"}');
SELECT queue_push('once', '1') > 0 AS pushed;
SELECT message_retry('once', id, claim_id, 'no') IS NULL AS dead
    FROM queue_claim('once', 600, 60);
SELECT origin_queue, last_error FROM queue_dead_letters('graves');
-- in the dead letter queue attempts are counted from the move on
SELECT queue_update('graves', '{"_max_claim_count": 2, "_retry_delay": 0}');
SELECT message_retry('graves', id, claim_id, 'still no') IS NULL AS dead
    FROM queue_claim('graves', 600, 60);
SELECT message_retry('graves', id, claim_id, 'never') IS NULL AS dead
    FROM queue_claim('graves', 600, 60);
SELECT origin_queue, last_error, claim_count FROM queue_dead_letters('graves.dead');

-- A claim that has run out cannot give back its message.
SELECT queue_push('x', '1') AS id \gset
SELECT claim_id AS claim FROM queue_claim('x', 1, 0) \gset
SELECT pg_sleep(1.1);
SELECT message_retry('x', :id, :'claim', 'too late');
SELECT claim_id AS other FROM queue_claim('x', 600, 60) \gset
SELECT message_retry('x', :id, :'claim', 'too late');
SELECT message_retry('x', :id, :'other', 'in time') IS NOT NULL AS again;
SELECT retried, last_error FROM job_stats('x');

-- Errors of any length are accepted, and cut; large bodies are not changed.
SELECT queue_push('x', jsonb_build_object('big', string_agg(md5(i::text), '')), priority => 9) AS id
    FROM generate_series(1, 2000) i \gset
SELECT md5(body::text) AS body FROM message_get('x', :id) \gset
SELECT message_retry('x', id, claim_id, repeat(chr(228), 10000), 1) IS NOT NULL AS again
    FROM queue_claim('x', 600, 60, 1);
SELECT octet_length(attributes ->> 'last_error') BETWEEN 8000 AND 8192 AS cut,
       attributes ->> 'last_error' ~ '^(.)\1*$' AS whole_characters
    FROM queue_data.message WHERE id = :id;
SELECT length(last_error) > 400 AS shown FROM job_stats('x');
SELECT pg_sleep(1.1);
SELECT md5(body::text) = :'body' AS same FROM queue_claim('x', 600, 60, 1);

-- A retried message has its deduplication key again.
SELECT queue_push('k', '1', dedup_key => 'k') > 0 AS pushed;
SELECT message_retry('k', id, claim_id, 'no', 100) IS NOT NULL AS again
    FROM queue_claim('k', 600, 60);
SELECT queue_push('k', '2', dedup_key => 'k') IS NULL AS dropped;

-- Without metadata it is a second, twice as long with each further attempt, up to
-- a bound.
CREATE FUNCTION pg_temp.attempts(q text, n int, OUT delay numeric)
RETURNS SETOF numeric LANGUAGE plpgsql AS $$
DECLARE
    m queue_message;
    began timestamptz;
BEGIN
    FOR i IN 1 .. n LOOP
        SELECT * INTO m FROM queue_claim(q, 600, 60, 1);
        began := clock_timestamp();
        BEGIN
            delay := extract(epoch FROM message_retry(q, m.id, m.claim_id) - began);
            RETURN NEXT;
            RAISE SQLSTATE 'UNDO1';
        EXCEPTION WHEN SQLSTATE 'UNDO1' THEN
            PERFORM message_retry(q, m.id, m.claim_id, delay => 0);
        END;
    END LOOP;
END
$$;
SELECT queue_push('n', '1') > 0 AS pushed;
SELECT array_agg(n) AS as_told
    FROM (SELECT delay, row_number() OVER () AS n FROM pg_temp.attempts('n', 14)) a
    WHERE delay BETWEEN least(2 ^ (n - 1), 3600) AND 1.25 * least(2 ^ (n - 1), 3600) + 10;
SET queue.max_retry_delay = 20;
SELECT delay BETWEEN 20 AND 35 AS bounded FROM pg_temp.attempts('n', 1);
RESET queue.max_retry_delay;
-- if only one of the two is set, the other one is what it was before 1.2
SELECT queue_create('o', '{"_retry_backoff": 3}'), queue_push('o', '1') > 0 AS pushed;
SELECT delay < 10 AS at_once FROM pg_temp.attempts('o', 3);
SELECT queue_create('p', '{"_retry_delay": 100}'), queue_push('p', '1') > 0 AS pushed;
SELECT delay BETWEEN 100 AND 135 AS the_same FROM pg_temp.attempts('p', 3);

-- A message that waits for its next attempt does not expire.
SELECT queue_push('l', '1', 60) AS id \gset
SELECT message_retry('l', id, claim_id, delay => 1000) AS due
    FROM queue_claim('l', 60, 100, 1) \gset
SELECT expires_at - :'due'::timestamptz BETWEEN interval '99 s' AND interval '102 s' AS for_as_long_as_a_claim
    FROM queue_data.message WHERE id = :id;

DROP EXTENSION queue;
