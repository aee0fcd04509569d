-- Dead letters: where messages are moved that were claimed too often.

CREATE EXTENSION queue;
SET queue.min_claim_ttl = 1;
SET queue.min_claim_grace = 0;
SET queue.min_message_ttl = 1;
\set VERBOSITY sqlstate

SELECT queue_create('q', '{"_max_claim_count": 2, "_dead_letter_queue": "morgue",
                           "_dead_letter_queue_messages_ttl": 5000}');
-- it is there from the start
SELECT queue_exists('morgue');
SELECT queue_push('q', '{"n": 1}', 600, priority => 7) AS id1 \gset
SELECT queue_push('q', '{"n": 2}') AS id2 \gset

-- Not before it was claimed that many times, and only when its claim ends.
SELECT claim_id AS claim, claim_count FROM queue_claim('q', 600, 60, 1) \gset
SELECT :claim_count;
SELECT claim_release('q', :'claim', failed => true);
SELECT total FROM queue_stats('morgue');
SELECT claim_id AS claim, claim_count FROM queue_claim('q', 600, 60, 1) \gset
SELECT :claim_count;
SELECT body FROM message_get('q', :id1);
SELECT claim_renew('q', :'claim', 600) IS NOT NULL AS renewed;
SELECT free, claimed, total FROM queue_stats('q');
SELECT total FROM queue_stats('morgue');
-- released for the last time
SELECT claim_release('q', :'claim', failed => true);
SELECT count(*) FROM message_get('q', :id1);
SELECT free, claimed, delayed, total FROM queue_stats('q');
-- a new message there: id, age, ttl; with its body, its count and its origin
SELECT id <> :id1 AS new_id, body, origin_queue,
       origin_id = :id1 AS origin_id, reason, last_error, claim_count,
       died_at BETWEEN now() - interval '1 h' AND clock_timestamp() AS died_at
    FROM queue_dead_letters('morgue');
SELECT id AS dead1 FROM queue_dead_letters('morgue') \gset
SELECT body, ttl, age BETWEEN 0 AND 60 AS age, claim_id, claim_count, priority, queue
    FROM message_get('morgue', :dead1);
SELECT queue_exists('q.dead');
-- the claim is over
SELECT message_delete('q', :id1, :'claim');
SELECT claim_renew('q', :'claim', 600);

-- By expiry: a message that is not released is moved when a claim meets it.
SELECT claim_id AS claim, body, claim_count FROM queue_claim('q', 1, 60, 1) \gset
SELECT :'body', :claim_count;
SELECT pg_sleep(1.1);
SELECT claim_id AS claim, body, claim_count FROM queue_claim('q', 1, 60, 1) \gset
SELECT :'body', :claim_count;
SELECT pg_sleep(1.1);
SELECT count(*) FROM queue_claim('q', 600, 60);
SELECT body, origin_queue, origin_id = :id2 AS origin_id, reason, claim_count
    FROM queue_dead_letters('morgue');
SELECT total FROM queue_stats('q');
-- and when a pop meets it
SELECT queue_push('q', '{"n": 3}') AS id3 \gset
SELECT claim_id AS claim FROM queue_claim('q', 600, 60) \gset
SELECT claim_release('q', :'claim', failed => true);
SELECT claim_id AS claim FROM queue_claim('q', 1, 60) \gset
SELECT pg_sleep(1.1);
SELECT count(*) FROM queue_pop('q', 10);
SELECT body, origin_id = :id3 AS origin_id FROM queue_dead_letters('morgue')
    WHERE body = '{"n": 3}';
SELECT total FROM queue_stats('q');

-- A claim skips exhausted messages and goes on to the others.
SELECT queue_push_batch('q', '{"\"dead\"", "\"dead, too\"", "\"alive\""}') IS NOT NULL AS pushed;
SELECT min(claim_id) AS claim FROM queue_claim('q', 600, 60, 2) \gset
SELECT claim_release('q', :'claim', failed => true);
SELECT min(claim_id) AS claim FROM queue_claim('q', 1, 60, 2) \gset
SELECT pg_sleep(1.1);
SELECT body, claim_count FROM queue_claim('q', 600, 60, 1);
SELECT body FROM queue_dead_letters('morgue');

-- Released when some become dead letters and some do not: all are counted.
SELECT queue_drop('q');
SELECT queue_create('q', '{"_max_claim_count": 2, "_dead_letter_queue": "morgue"}');
SELECT queue_purge('morgue');
SELECT queue_push('q', '"old"') > 0 AS pushed;
SELECT claim_id AS claim FROM queue_claim('q', 600, 60) \gset
SELECT claim_release('q', :'claim', failed => true);
SELECT queue_push('q', '"young"') > 0 AS pushed;
SELECT min(claim_id) AS claim FROM queue_claim('q', 600, 60) \gset
SELECT claim_release('q', :'claim', 100, failed => true);
SELECT body, claim_count FROM queue_messages('q', include_delayed => true);
SELECT free, delayed FROM queue_stats('q');
SELECT body FROM queue_dead_letters('morgue');
-- without a ttl of its own it lives as long as any message there
SELECT ttl FROM queue_messages('morgue');
-- rolled back
SELECT queue_push('q', '"back"') > 0 AS pushed;
SELECT claim_id AS claim FROM queue_claim('q', 600, 60) \gset
SELECT claim_release('q', :'claim', failed => true);
SELECT claim_id AS claim FROM queue_claim('q', 600, 60) \gset
BEGIN;
SELECT claim_release('q', :'claim', failed => true);
SELECT body FROM queue_dead_letters('morgue');
ROLLBACK;
SELECT body FROM queue_dead_letters('morgue');
SELECT message_count FROM claim_get('q', :'claim');
SELECT claim_complete('q', :'claim');

-- Where none is named, it is <q>.dead; once is enough if the count is 1.
SELECT queue_create('one', '{"_max_claim_count": 1}');
SELECT queue_push('one', '1', 700) > 0 AS pushed;
SELECT claim_id AS claim FROM queue_claim('one', 600, 60) \gset
SELECT claim_release('one', :'claim', failed => true);
SELECT name, metadata, paused FROM queue_get('one.dead');
SELECT body, origin_queue, claim_count FROM queue_dead_letters('one.dead');
SELECT body, ttl FROM queue_messages('one.dead');
-- created also where pushes create nothing
SET queue.auto_create = off;
SELECT queue_create('strict', '{"_max_claim_count": 1}');
SET queue.auto_create = on;
SELECT queue_push('strict', '1') > 0 AS pushed;
SET queue.auto_create = off;
SELECT claim_id AS claim FROM queue_claim('strict', 600, 60) \gset
SELECT claim_release('strict', :'claim', failed => true);
SELECT body FROM queue_dead_letters('strict.dead');
RESET queue.auto_create;

-- Neither a message claimed often in a queue without a bound, nor a deleted
-- one, becomes a dead letter.
SELECT queue_push('free', '1') AS id1 \gset
SELECT claim_id AS claim FROM queue_claim('free', 600, 60) \gset
SELECT claim_release('free', :'claim', failed => true);
SELECT claim_id AS claim FROM queue_claim('free', 600, 60) \gset
SELECT claim_release('free', :'claim', failed => true);
SELECT claim_id AS claim FROM queue_claim('free', 600, 60) \gset
SELECT claim_release('free', :'claim', failed => true);
SELECT body, claim_count FROM queue_messages('free');
SELECT queue_exists('free.dead');
-- a bound that is set later applies to earlier claims
SELECT queue_update('free', '{"_max_claim_count": 4}');
SELECT body, claim_count FROM queue_claim('free', 600, 60);
SELECT claim_id AS claim FROM message_get('free', :id1) \gset
SELECT claim_release('free', :'claim', failed => true);
SELECT body, claim_count FROM queue_dead_letters('free.dead');
SELECT queue_push('one', '2') > 0 AS pushed;
SELECT queue_purge('one.dead');
SELECT claim_id AS claim FROM queue_claim('one', 600, 60) \gset
SELECT claim_complete('one', :'claim');
SELECT count(*) FROM queue_dead_letters('one.dead');
-- an expired one is gone, and not a dead letter
SELECT queue_push('one', '3') AS id3 \gset
SELECT claim_count FROM queue_claim('one', 1, 0);
UPDATE queue_data.message_0
    SET created_at = claimed_until - make_interval(secs => ttl) WHERE id = :id3;
SELECT pg_sleep(1.1);
SELECT count(*) FROM queue_claim('one', 600, 60);
SELECT count(*) FROM queue_dead_letters('one.dead');
SELECT total FROM queue_stats('one');

-- Dead letters can be claimed, listed and deleted as other messages are.
SELECT queue_purge('morgue');
SELECT queue_update('q', '{"_max_claim_count": 1}');
SELECT queue_purge('q');
SELECT count(queue_push('q', to_jsonb(i))) FROM generate_series(1, 12) i;
SELECT min(claim_id) AS claim FROM queue_claim('q', 600, 60, 100) \gset
SELECT claim_release('q', :'claim', failed => true);
SELECT array_agg(body) FROM queue_dead_letters('morgue');
SELECT array_agg(body) FROM queue_dead_letters('morgue', 3);
SELECT array_agg(body) FROM queue_dead_letters('morgue', 10000);
-- page by page
SELECT max(id) AS last FROM queue_dead_letters('morgue') \gset
SELECT array_agg(body) FROM queue_dead_letters('morgue', marker => :last);
SELECT array_agg(body) FROM queue_dead_letters('morgue', 1, :last);
SELECT count(*) FROM queue_dead_letters('morgue', marker => 9223372036854775807);
SELECT count(*) FROM queue_dead_letters('morgue', marker => -9223372036854775808);
SELECT claim_id AS claim, body, claim_count FROM queue_claim('morgue', 600, 60, 1) \gset
SELECT :'body', :claim_count;
-- the claimed one is still a dead letter
SELECT count(*) FROM queue_dead_letters('morgue', 100);
SELECT claim_complete('morgue', :'claim');
SELECT message_delete('morgue', id) FROM queue_dead_letters('morgue', 1);
SELECT array_agg(body) FROM queue_dead_letters('morgue', 2);
-- what was pushed there is no dead letter
SELECT queue_push('morgue', '"visitor"') > 0 AS pushed;
SELECT count(*) FROM queue_dead_letters('morgue', 100);
SELECT count(*) FROM queue_messages('morgue', "limit" => 100);
SELECT count(*) FROM queue_dead_letters('q');
SELECT count(*) FROM queue_dead_letters('unknown');
SELECT count(*) FROM queue_dead_letters('morgue', 0);
SELECT count(*) FROM queue_dead_letters('morgue', -1);
SELECT count(*) FROM queue_dead_letters('morgue', 10001);
SELECT count(*) FROM queue_dead_letters('morgue', NULL);

-- A dead letter queue may have one of its own.
SELECT queue_create('s1', '{"_max_claim_count": 1, "_dead_letter_queue": "s2"}');
SELECT queue_update('s2', '{"_max_claim_count": 2, "_dead_letter_queue": "s3"}');
SELECT queue_push('s1', '1') > 0 AS pushed;
SELECT claim_id AS claim FROM queue_claim('s1', 600, 60) \gset
SELECT claim_release('s1', :'claim', failed => true);
SELECT body, origin_queue, claim_count FROM queue_dead_letters('s2');
SELECT claim_id AS claim FROM queue_claim('s2', 600, 60) \gset
SELECT claim_release('s2', :'claim', failed => true);
-- it has as many attempts there as that queue allows
SELECT claim_id AS claim FROM queue_claim('s2', 600, 60) \gset
SELECT claim_release('s2', :'claim', failed => true);
SELECT total FROM queue_stats('s2');
SELECT body, origin_queue FROM queue_dead_letters('s3');

-- Dead letters are also moved to a paused queue.
SELECT queue_push('s1', '2') > 0 AS pushed;
SELECT claim_id AS claim FROM queue_claim('s1', 600, 60) \gset
SELECT queue_pause('s1');
SELECT queue_pause('s2');
SELECT claim_release('s1', :'claim', failed => true);
SELECT body FROM queue_dead_letters('s2');

-- What is given back without having failed is no attempt, however often; that it
-- was delivered stays known.
SELECT queue_create('deploys', '{"_max_claim_count": 2}');
SELECT queue_push_batch('deploys', '{1, 2, 3}') IS NOT NULL AS pushed;
SELECT claim_id AS claim FROM queue_claim('deploys', 600, 60, 3) LIMIT 1 \gset
SELECT claim_release('deploys', :'claim');
SELECT claim_id AS claim FROM queue_claim('deploys', 600, 60, 3) LIMIT 1 \gset
SELECT claim_release('deploys', :'claim', 0, false);
SELECT claim_id AS claim, min(id) AS first FROM queue_claim('deploys', 600, 60, 3) GROUP BY 1 \gset
SELECT count(*) FROM queue_step('deploys', :'claim', ARRAY[:first], "limit" => 0);
SELECT body, claim_count FROM queue_messages('deploys');
SELECT body, claim_count, attributes FROM queue_data.message
    WHERE queue = 'deploys' ORDER BY id;
SELECT claim_id AS claim, claim_count FROM queue_claim('deploys', 600, 60, 1) \gset
SELECT :claim_count;
-- a failed attempt counts, and keeps what was given back
SELECT message_retry('deploys', id, claim_id, 'e', 0) IS NOT NULL AS retried
    FROM claim_messages('deploys', :'claim');
SELECT body, claim_count, attributes FROM queue_data.message
    WHERE queue = 'deploys' ORDER BY id;
SELECT claim_id AS claim, claim_count FROM queue_claim('deploys', 600, 60, 1) \gset
SELECT :claim_count, claim_release('deploys', :'claim', failed => true);
SELECT body, reason, last_error, claim_count FROM queue_dead_letters('deploys.dead');
-- so does one that a transaction takes back
BEGIN;
SELECT claim_release('deploys', claim_id) FROM queue_claim('deploys', 600, 60, 1);
ROLLBACK;
SELECT claim_count, attributes FROM queue_data.message WHERE queue = 'deploys';
-- of a dead letter, too
SELECT claim_release('deploys.dead', claim_id) FROM queue_claim('deploys.dead', 600, 60, 1);
SELECT body, claim_count FROM queue_dead_letters('deploys.dead');
SELECT claim_release('deploys', 'x', 0, NULL);

-- A worker that claims ten, fails at the first one, and gives the others back: they
-- were never tried, so none of them dies with it.
SELECT queue_create('ten', '{"_max_claim_count": 3}');
SELECT queue_push_batch('ten', ARRAY(SELECT to_jsonb(i) FROM generate_series(1, 10) AS i)) IS NOT NULL AS pushed;
DO $$
DECLARE
    c text;
    first bigint;
    n int;
BEGIN
    FOR attempt IN 1 .. 3 LOOP
        SELECT max(claim_id), min(id), count(*) INTO c, first, n FROM queue_claim('ten', 600, 60, 10);
        ASSERT n = 10;
        IF attempt = 2 THEN     -- the two calls that do this
            PERFORM message_retry('ten', first, c, 'fails', 0);
            PERFORM claim_release('ten', c);
        ELSE
            PERFORM queue_step('ten', c, '{}', jsonb_build_array(
                jsonb_build_object('id', first, 'error', 'fails', 'delay', 0)), "limit" => 0);
        END IF;
    END LOOP;
END $$;
SELECT body, claim_count FROM queue_dead_letters('ten.dead');
SELECT count(*), max(claim_count) FROM queue_messages('ten', "limit" => 100);

DROP EXTENSION queue;
