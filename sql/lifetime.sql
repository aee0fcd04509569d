-- Lifetimes: expired messages do not exist; claims prolong lifetimes.

CREATE EXTENSION queue;
SET queue.min_claim_ttl = 1;
SET queue.min_claim_grace = 0;
SET queue.min_message_ttl = 1;
\set VERBOSITY sqlstate

-- No function finds an expired message, although its row was not removed yet.
SELECT queue_push('q', '"short"', 1, dedup_key => 'k') AS short \gset
SELECT queue_push('q', '"long"') AS long \gset
SELECT queue_push('only', '"short"', 1) > 0 AS pushed;
SELECT pg_sleep(1.1);
SELECT body FROM queue_messages('q', include_claimed => true, include_delayed => true);
SELECT count(*) FROM message_get('q', :short);
SELECT body FROM messages_get('q', ARRAY[:short, :long]);
SELECT message_delete('q', :short);
SELECT messages_delete('q', ARRAY[:short]);
SELECT free, claimed, delayed, total, oldest_id = :long AS oldest,
       newest_id = :long AS newest
    FROM queue_stats('q');
SELECT * FROM queue_stats('only');
SELECT count(*) FROM queue_claim('only', 60, 60);
SELECT count(*) FROM queue_claim_any('{only}', 60, 60);
SELECT count(*) FROM claim_next('only', NULL, 60, 60);
SELECT count(*) FROM queue_pop('only');
SELECT queue_purge('only');
-- nor does it keep its key
SELECT queue_push('q', '"new"', dedup_key => 'k') IS NOT NULL AS pushed;
SELECT body FROM queue_pop('q', 10);

-- Claiming makes it live to the claim's end plus grace, at least.
SELECT queue_push('q', '1', 60) AS id1 \gset
SELECT queue_push('q', '2', 500) AS id2 \gset
SELECT queue_push('q', '3', 159) AS id3 \gset
SELECT min(claim_id) AS claim FROM queue_claim('q', 100, 60) \gset
SELECT body, CASE body WHEN '2' THEN ttl = 500
                       ELSE ttl BETWEEN 160 AND 220 END AS ttl
    FROM claim_messages('q', :'claim');
-- renewing does the same, and never shortens
SELECT claim_renew('q', :'claim', 300, 100) IS NOT NULL AS renewed;
SELECT body, CASE body WHEN '2' THEN ttl = 500
                       ELSE ttl BETWEEN 400 AND 460 END AS ttl
    FROM claim_messages('q', :'claim');
SELECT claim_renew('q', :'claim', 1, 0) IS NOT NULL AS renewed;
SELECT body, CASE body WHEN '2' THEN ttl = 500
                       ELSE ttl BETWEEN 400 AND 460 END AS ttl
    FROM messages_get('q', ARRAY[:id1, :id2, :id3]);
SELECT pg_sleep(1.1);
SELECT min(claim_id) AS claim FROM queue_claim('q', 300, 100) \gset
-- with grace NULL the former grace applies
SELECT claim_renew('q', :'claim', 600) IS NOT NULL AS renewed;
SELECT body, ttl BETWEEN 700 AND 760 AS ttl FROM claim_messages('q', :'claim');
-- releasing does not shorten it again
SELECT claim_release('q', :'claim');
SELECT body, ttl BETWEEN 700 AND 760 AS ttl, claim_id
    FROM messages_get('q', ARRAY[:id1, :id2, :id3]);
-- rolling back does
SELECT queue_push('back', '1', 60) AS id \gset
BEGIN;
SELECT ttl > 60 AS longer FROM queue_claim('back', 100, 60);
ROLLBACK;
SELECT ttl FROM message_get('back', :id);

-- It does not expire under a claim, however old it is.
SELECT queue_push('grace', '1') AS id \gset
SELECT claim_id AS claim FROM queue_claim('grace', 100, 0) \gset
UPDATE queue_data.message_0
    SET created_at = created_at - interval '1000 h',
        ttl = 3600
    WHERE id = :id;
SELECT body, claim_id = :'claim' AS claimed, ttl > 3600000 AS kept, age >= 3600000 AS old
    FROM message_get('grace', :id);
SELECT free, claimed FROM queue_stats('grace');
SELECT count(*) FROM queue_messages('grace', include_claimed => true);
SELECT message_count FROM claim_get('grace', :'claim');
SELECT message_delete('grace', :id, :'claim');
SELECT free, claimed FROM queue_stats('grace');

-- It lives for grace after the claim's end.
CREATE FUNCTION pg_temp.push_and_claim(body jsonb, ttl int, claim_ttl int, grace int)
RETURNS queue_message
LANGUAGE plpgsql AS $$
DECLARE
    m queue_message;
BEGIN
    PERFORM queue_push('grace', body, ttl);
    SELECT * INTO STRICT m FROM queue_claim('grace', claim_ttl, grace);
    RETURN m;
END
$$;
SELECT id FROM pg_temp.push_and_claim('2', 1, 1, 60) \gset
SELECT pg_sleep(1.1);
SELECT body, claim_id, claim_count, ttl BETWEEN 61 AND 120 AS ttl
    FROM message_get('grace', :id);
SELECT body, claim_count FROM queue_claim('grace', 1, 0);
SELECT queue_purge('grace');
-- without grace, it ends with the claim
SELECT id, claim_id AS claim, ttl BETWEEN 1 AND 60 AS ttl
    FROM pg_temp.push_and_claim('3', 1, 1, 0) \gset
SELECT :'ttl' AS ttl;
SELECT pg_sleep(1.1);
SELECT count(*) FROM message_get('grace', :id);
SELECT count(*) FROM queue_claim('grace', 60, 60);
SELECT free, claimed, total FROM queue_stats('grace');
SELECT message_delete('grace', :id, :'claim');
-- released early, it lives as long as the claim would have made it
SELECT id, claim_id AS claim FROM pg_temp.push_and_claim('4', 1, 100, 0) \gset
SELECT claim_release('grace', :'claim');
SELECT pg_sleep(1.1);
SELECT body, ttl BETWEEN 100 AND 160 AS ttl FROM queue_pop('grace');

-- 1209600 s from the moment of claiming or renewing, and no further
SET queue.max_claim_ttl = 1209600;
SET queue.max_claim_grace = 1209600;
SELECT queue_push('cap', '1', 60) > 0 AS pushed;
SELECT claim_id AS claim, ttl BETWEEN 1209600 AND 1209660 AS capped
    FROM queue_claim('cap', 1209600, 1209600) \gset
SELECT :'capped' AS capped;
SELECT claim_release('cap', :'claim');
SELECT claim_id AS claim, ttl BETWEEN 1209600 AND 1209660 AS capped
    FROM queue_claim('cap', 10, 1209600) \gset
SELECT :'capped' AS capped;
SELECT claim_renew('cap', :'claim', 1209600, 1209600) IS NOT NULL AS renewed;
SELECT ttl BETWEEN 1209600 AND 1209660 AS capped FROM claim_messages('cap', :'claim');
SELECT queue_purge('cap');
-- but never shorter than it was
SET queue.max_message_ttl = 3000000;
SELECT queue_push('cap', '2', 2000000) > 0 AS pushed;
SELECT claim_id AS claim, ttl FROM queue_claim('cap', 1209600, 1209600) \gset
SELECT :'ttl' AS ttl;
SELECT claim_renew('cap', :'claim', 10, 0) IS NOT NULL AS renewed;
SELECT ttl FROM claim_messages('cap', :'claim');
RESET queue.max_claim_ttl;
RESET queue.max_claim_grace;
RESET queue.max_message_ttl;

-- ttl counts from the push, also for a delayed message; but it does not expire
-- before it was due
SELECT queue_push('delayed', '1', 1, 100) > 0 AS pushed;
SELECT queue_push('delayed', '2', 100, 1) > 0 AS pushed;
SELECT pg_sleep(1.1);
SELECT body, ttl, age >= 1 AS aged FROM queue_claim('delayed', 10, 0);
SELECT total FROM queue_stats('delayed');
SELECT state, expires_at - due_at AS lives FROM queue_data.message
WHERE queue = 'delayed' AND body = '1';

-- What was pushed with a delay, given back with one, or retried lives for at least
-- a minute after it can be claimed, whatever its lifetime and the claim say.
DO $$
DECLARE
    b text;
    m queue_message;
BEGIN
    FOREACH b IN ARRAY '{released, delayed retry, retry}'::text[] LOOP
        PERFORM queue_push('due', to_jsonb(b), 1);
        SELECT * INTO STRICT m FROM queue_claim('due', 5, 0, 1);
        IF b = 'released' THEN
            PERFORM claim_release('due', m.claim_id, 2);
        ELSE
            PERFORM message_retry('due', m.id, m.claim_id, 'fails',
                                  CASE b WHEN 'retry' THEN 0 ELSE 2 END);
        END IF;
    END LOOP;
    PERFORM queue_push('due', '"pushed"', 1, 2);
END $$;
SELECT pg_sleep(2.3);
SELECT body, ttl >= 60 AS lives FROM queue_claim('due', 1, 0, 10) ORDER BY id;
SELECT pg_sleep(1.2);
SELECT body, ttl >= 60 AS lives FROM queue_claim('due', 1, 0, 10) ORDER BY id;

-- Nor do the 14 days that bound a claim end its lifetime.
DO $$
DECLARE
    m queue_message;
BEGIN
    PERFORM queue_push_batch('far', '{1, 2, 3}', 60);
    FOR m IN SELECT * FROM queue_claim('far', 5, 0) LOOP
        IF m.body = '1' THEN
            PERFORM message_retry('far', m.id, m.claim_id, 'fails', 1209600);
        ELSIF m.body = '2' THEN
            PERFORM queue_step('far', m.claim_id, '{}', jsonb_build_array(
                jsonb_build_object('id', m.id, 'delay', 1209600)), "limit" => 0);
        END IF;
    END LOOP;
    PERFORM claim_release('far', c.claim_id, 1209600) FROM queue_claim('far', 5, 0) AS c;
    PERFORM queue_post('far', '[{"body": 4, "ttl": 60, "delay": 1209600}]');
    FOR i IN 0 .. 3 LOOP
        EXECUTE format('UPDATE queue_data.delayed_%s
            SET created_at = created_at - interval ''1209605 s'',
                due_at = due_at - interval ''1209605 s''
            WHERE queue_id = (SELECT id FROM queue_data.queue WHERE name = ''far'')', i);
    END LOOP;
END $$;
CALL queue_wait('far', 600);
SELECT body, ttl >= 1209660 AS lives FROM queue_claim('far', 10, 0) ORDER BY body;

-- So does one that was due long ago, since no worker ran, nor was anything claimed.
SELECT queue_push('late', '1', 60, 3600) > 0 AS pushed;
DO $$
BEGIN
    FOR i IN 0 .. 3 LOOP
        EXECUTE format('UPDATE queue_data.delayed_%s
            SET created_at = created_at - interval ''2 hours'',
                due_at = due_at - interval ''2 hours''
            WHERE body = ''1'' AND ttl = 60', i);
    END LOOP;
END $$;
SELECT free, total FROM queue_stats('late');
CALL queue_wait('late', 600);
SELECT ttl >= 7260 AS lives FROM queue_claim('late', 10, 0);

DROP FUNCTION pg_temp.push_and_claim(jsonb, int, int, int);
DROP EXTENSION queue;
