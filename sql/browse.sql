-- What people and pages ask for: queue_browse, queue_depth, messages_run_now,
-- messages_bury.

CREATE EXTENSION queue;
SET queue.min_claim_ttl = 1;
SET queue.min_claim_grace = 0;
SET queue.min_message_ttl = 1;
SET timezone = 'UTC';
\set VERBOSITY terse

-- Each state, in the order of the ids.
BEGIN;
SELECT batch_create('b') AS batch \gset
SELECT queue_push('q', '{"n": 1, "tag": "a"}', 600, priority => 3, group_key => 'g',
                  dedup_key => 'k', headers => '{"h": 1}', batch => :batch) AS id1 \gset
SELECT queue_push('q', '{"n": 2, "tag": "b"}', 600, 300) AS id2 \gset
SELECT queue_push('q', '{"n": 3}', after => :batch) AS id3 \gset
SELECT queue_push('q', '{"n": 4, "tag": "a"}', 600) AS id4 \gset
SELECT queue_push('q', '{"n": 5}', 600) AS id5 \gset
SELECT queue_push('q', '{"n": 6}', 600, priority => 9) AS id6 \gset
SELECT queue_push('q', '{"n": 7}', 1) AS id7 \gset
COMMIT;
SELECT claim_id AS claim, array_agg(body -> 'n' ORDER BY id) FROM queue_claim('q', 100, 700, 2) GROUP BY 1 \gset
SELECT :'array_agg' AS claimed;
SELECT message_cancel('q', :id6, 'no more');
SELECT message_retry('q', id, claim_id, 'it broke', 300) IS NOT NULL AS retried
    FROM queue_claim('q', 100, 60, 1);
SELECT pg_sleep(1.1);
SELECT body ->> 'n' AS n, state, priority, group_key, dedup_key, batch = :batch AS batch,
       after = :batch AS after, claim_count, headers, last_error
    FROM queue_browse('q');
-- the times
SELECT body ->> 'n' AS n, now() - created_at < interval '1 minute' AS created,
       round(extract(epoch FROM due_at - now()) / 100) AS due,
       round(extract(epoch FROM claimed_until - now()) / 100) AS claimed,
       round(extract(epoch FROM expires_at - now()) / 100) AS expires
    FROM queue_browse('q');
-- a delayed message expires no earlier than a minute after it is due
SELECT queue_push('due', '1', 1, 300) > 0 AS pushed;
SELECT expires_at - due_at AS kept FROM queue_browse('due');
-- the digest of a key is the same for the same key
SELECT queue_push('r', '1', dedup_key => 'k') > 0 AS pushed;
SELECT count(DISTINCT dedup_key) FROM (SELECT * FROM queue_browse('q')
    UNION ALL SELECT * FROM queue_browse('r')) AS b;

-- By state, and by what the body contains.
SELECT s, (SELECT array_agg(body -> 'n') FROM queue_browse('q', s)) AS n
    FROM unnest('{free, claimed, delayed, waiting, canceled, NULL}'::text[]) AS s;
SELECT body -> 'n' AS n FROM queue_browse('q', filter => '{"tag": "a"}');
SELECT body -> 'n' AS n FROM queue_browse('q', 'delayed', '{"tag": "a"}');
SELECT body -> 'n' AS n FROM queue_browse('q', filter => '{"tag": "z"}');
-- page by page
SELECT body -> 'n' AS n FROM queue_browse('q', "limit" => 2);
SELECT body -> 'n' AS n FROM queue_browse('q', marker => :id2, "limit" => 2);
SELECT count(*) FROM queue_browse('q', marker => :id7);
SELECT m, (SELECT count(*) FROM queue_browse('q', marker => m))
    FROM unnest('{-9223372036854775808, -1, 0, 9223372036854775807}'::bigint[]) AS m;

-- What one call does not read.
SELECT count(*) FROM (SELECT queue_push_batch('big', array_agg(to_jsonb(i)), 6000, i / 1000 % 2 * 300, i % 10)
    FROM generate_series(1, 10001) i GROUP BY i / 1000 % 2, i % 10) AS p;
SELECT count(*), count(state), count(body) FROM queue_browse('big', filter => '10002');
SELECT count(*), count(state) FROM queue_browse('big', filter => '10002',
    marker => (SELECT max(id) FROM queue_browse('big', filter => '10002')));
WITH RECURSIVE page AS (
    SELECT 0::bigint AS marker, ARRAY[]::jsonb[] AS found
    UNION ALL
    SELECT (SELECT max(id) FROM queue_browse('big', 'free', '1', marker)),
           (SELECT array_agg(body) FILTER (WHERE state IS NOT NULL) FROM queue_browse('big', 'free', '1', marker))
    FROM page WHERE marker IS NOT NULL)
SELECT count(*) AS pages, count(*) FILTER (WHERE found = '{1}') AS found FROM page;
SELECT count(*), count(state) FROM queue_browse('big', "limit" => 10000);
SELECT queue_purge('big');
-- a body and headers that are stored apart from the row
SELECT queue_push('big', to_jsonb(string_agg(md5(i::text), '')), headers => jsonb_build_object('h', string_agg(md5(i::text), ''))) > 0 AS pushed
    FROM generate_series(1, 1000) i;
SELECT length(body #>> '{}'), length(headers ->> 'h') FROM queue_browse('big');

-- Arguments, and a queue that is not there.
SELECT * FROM queue_browse('q', 'dead');
SELECT * FROM queue_browse('q', '');
SELECT * FROM queue_browse('q', "limit" => 0);
SELECT * FROM queue_browse('q', "limit" => 10001);
SELECT * FROM queue_browse('q', "limit" => NULL);
SELECT * FROM queue_browse(NULL);
SELECT * FROM queue_browse('no such queue');
SELECT count(*) FROM queue_browse('missing');
-- It needs the privilege claim.
CREATE ROLE regress_browser IN ROLE queue_producer;
SET ROLE regress_browser;
SELECT count(*) FROM queue_browse('q');
RESET ROLE;
GRANT queue_consumer TO regress_browser;
SET ROLE regress_browser;
SELECT count(*) FROM queue_browse('q');
RESET ROLE;
SELECT queue_grant('q', current_user::regrole, 'claim');
SET ROLE regress_browser;
SELECT count(*) FROM queue_browse('q');
RESET ROLE;
DROP ROLE regress_browser;

-- queue_depth: the numbers depend on a background worker (depths.pl).
SELECT queue_create('s', '{"_max_claim_count": 1}');
SELECT queue_push('s', '1') > 0 AS pushed;
SELECT message_bury('s', id, claim_id, 'it broke') FROM queue_claim('s');
SELECT queue_pause('s');
SET client_min_messages = warning;
SELECT queue, paused, last_error, last_error_at <= now() AS before FROM queue_depth('s');
SELECT queue, paused, last_error, last_error_at IS NOT NULL AS at FROM queue_depth() ORDER BY queue COLLATE "C";
SELECT count(*) FROM queue_depth('missing');
RESET client_min_messages;
-- the queues that the caller may claim from, as admin too
CREATE ROLE regress_browser IN ROLE queue_producer;
SET ROLE regress_browser;
SELECT count(*) FROM queue_depth();
SELECT count(*) FROM queue_depth('s');
SELECT total FROM queue_stats('s');
RESET ROLE;
SELECT queue_grant('s', 'regress_browser', 'admin');
SELECT queue_grant('r', current_user::regrole, 'push');
SET ROLE regress_browser;
SELECT queue, paused FROM queue_depth();
SELECT count(*) FROM queue_depth('s');
SELECT total FROM queue_stats('s');
-- queue_stats needs some privilege
SELECT total FROM queue_stats('r');
SELECT total FROM queue_stats('none of that name');
SELECT total FROM queue_stats('none');
RESET ROLE;
-- and those of the session's project
SET queue.project = 'other';
SELECT count(*) FROM queue_depth();
RESET queue.project;

-- Messages that are delayed run now.
SELECT body -> 'n' AS n, state FROM queue_browse('q');
SELECT messages_run_now('q', array_agg(id) || id2 || id2 || 0::bigint)
    FROM queue_browse('q'), CAST(:id2 AS bigint) AS id2 GROUP BY id2;
SELECT body -> 'n' AS n, state, due_at, expires_at > now() + interval '50 s' AS kept, last_error
    FROM queue_browse('q', 'free');
SELECT messages_run_now('q', ARRAY[:id2]);
SELECT messages_run_now('q', '{}'), messages_run_now('missing', '{1}');
SELECT body -> 'n' AS n FROM queue_claim('q', 100, 60, 1);
BEGIN;
SELECT messages_run_now('due', array_agg(id)) FROM queue_browse('due');
ROLLBACK;
SELECT state FROM queue_browse('due');

-- Messages that no claim holds become dead letters.
SELECT queue_push('b', to_jsonb(i), delay => CASE WHEN i = 2 THEN 300 ELSE 0 END, priority => i, dedup_key => i::text) > 0 AS pushed
    FROM generate_series(1, 4) AS i;
SELECT claim_id AS claim FROM queue_claim('b', 100, 60, 1) \gset
SELECT messages_bury('b', array_agg(id) || array_agg(id), 'wrong address') FROM queue_browse('b');
SELECT body, state FROM queue_browse('b');
SELECT body, reason, last_error, claim_count, origin_queue FROM queue_dead_letters('b.dead');
-- their keys are free
SELECT queue_push('b', '2', dedup_key => '2') > 0 AS pushed, queue_push('b', '4', dedup_key => '4') > 0 AS pushed;
-- the error stays if none is given
SELECT message_retry('b', id, claim_id, 'it broke', 300) IS NOT NULL AS retried FROM claim_messages('b', :'claim');
SELECT messages_bury('b', array_agg(id), NULL) FROM queue_browse('b', 'delayed');
SELECT body, last_error FROM queue_dead_letters('b.dead') ORDER BY id DESC LIMIT 1;
SELECT messages_bury('b', '{}', 'e'), messages_bury('missing', '{1}', 'e');
BEGIN;
SELECT messages_bury('b', array_agg(id), 'e') FROM queue_browse('b');
ROLLBACK;
SELECT body, state FROM queue_browse('b');
-- one that waits for a batch stays
BEGIN;
SELECT batch_create('b') AS batch \gset
SELECT queue_push('b', '5', batch => :batch) AS m, queue_push('b', '6', after => :batch) AS after \gset
COMMIT;
SELECT messages_bury('b', ARRAY[:after], 'e'), messages_run_now('b', ARRAY[:after]);
SELECT state FROM queue_browse('b', 'waiting');
-- both need the privilege claim
SELECT queue_grant('b', 'regress_browser', 'push');
SET ROLE regress_browser;
SELECT messages_bury('b', ARRAY[:m], 'e');
SELECT messages_run_now('b', ARRAY[:m]);
RESET ROLE;

DROP EXTENSION queue;
DROP ROLE regress_browser;
