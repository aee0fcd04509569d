-- Deduplication keys of pushes.

CREATE EXTENSION queue;
SET queue.min_claim_ttl = 1;
SET queue.min_claim_grace = 0;
SET queue.min_message_ttl = 1;
\set VERBOSITY sqlstate

-- While an unclaimed message has the key, a push returns NULL.
SELECT queue_push('q', '1', dedup_key => 'k') AS id1 \gset
SELECT queue_push('q', '2', dedup_key => 'k') IS NULL AS dropped;
SELECT queue_push('q', '3', dedup_key => 'K') IS NULL AS dropped;
SELECT queue_push('q', '4', dedup_key => 'k ') IS NULL AS dropped;
SELECT queue_push('q', '5') IS NULL AS dropped;
SELECT queue_push('q', '6', dedup_key => NULL) IS NULL AS dropped;
SELECT queue_push('q', '7', dedup_key => NULL) IS NULL AS dropped;
SELECT queue_push('other', '8', dedup_key => 'k') IS NULL AS dropped;
SELECT queue_post('q', '[{"body": 9, "dedup_key": "k"}]');
SELECT (queue_post('q', '[{"body": 10, "dedup_key": "l"},
    {"body": 11, "dedup_key": "l"}, {"body": 12, "dedup_key": "k"},
    {"body": 13}]')) AS ids \gset
SELECT ARRAY(SELECT id IS NOT NULL FROM unnest(:'ids'::bigint[]) id);
SELECT array_agg(body) FROM queue_messages('q', "limit" => 100);
-- the dropped one changes neither priority nor delay of the twin
SELECT queue_push('q', '14', 600, 100, 9, 'k') IS NULL AS dropped;
SELECT body, priority FROM message_get('q', :id1);
SELECT delayed FROM queue_stats('q');

-- Once the twin is claimed the key is free.
SELECT claim_id AS claim FROM queue_claim('q', 600, 60, 1) \gset
SELECT queue_push('q', '"second"', dedup_key => 'k') AS id2 \gset
SELECT :id2 IS NOT NULL AS pushed;
SELECT queue_push('q', '"third"', dedup_key => 'k') IS NULL AS dropped;
-- and neither gets stuck when the first is free again
SELECT claim_release('q', :'claim', failed => true);
SELECT queue_push('q', '"third"', dedup_key => 'k') IS NULL AS dropped;
SELECT body FROM messages_get('q', ARRAY[:id1, :id2]);
SELECT queue_purge('q');

-- A message that is free again has its key again.
SELECT queue_push('r', '1', dedup_key => 'k') AS id1 \gset
SELECT claim_id AS claim FROM queue_claim('r', 600, 60) \gset
SELECT claim_release('r', :'claim', failed => true);
SELECT queue_push('r', '2', dedup_key => 'k') IS NULL AS dropped;
-- after a delay as well
SELECT claim_id AS claim FROM queue_claim('r', 600, 60) \gset
SELECT claim_release('r', :'claim', 100, failed => true);
SELECT queue_push('r', '2', dedup_key => 'k') IS NULL AS dropped;
SELECT message_delete('r', :id1);
-- and by expiry of its claim
SELECT queue_push('r', '3', dedup_key => 'k') AS id3 \gset
SELECT claim_id AS claim FROM queue_claim('r', 1, 60) \gset
SELECT pg_sleep(1.1);
SELECT queue_push('r', '4', dedup_key => 'k') IS NULL AS dropped;
SELECT body FROM queue_messages('r');
-- also if a twin had it meanwhile, but was gone by then
SELECT claim_id AS claim3 FROM queue_claim('r', 600, 60) \gset
SELECT queue_push('r', '5', dedup_key => 'k') AS id5 \gset
SELECT claim_id AS claim5 FROM queue_claim('r', 600, 60) \gset
SELECT claim_release('r', :'claim5', failed => true);
SELECT message_delete('r', :id5);
SELECT claim_release('r', :'claim3', failed => true);
SELECT queue_push('r', '6', dedup_key => 'k') IS NULL AS dropped;
SELECT queue_purge('r');
-- or was claimed
SELECT queue_push('r', '7', dedup_key => 'k') AS id7 \gset
SELECT claim_id AS claim7 FROM queue_claim('r', 600, 60) \gset
SELECT queue_push('r', '8', dedup_key => 'k') AS id8 \gset
SELECT claim_id AS claim8 FROM queue_claim('r', 600, 60) \gset
SELECT claim_release('r', :'claim7', failed => true);
SELECT queue_push('r', '9', dedup_key => 'k') IS NULL AS dropped;
SELECT claim_release('r', :'claim8', failed => true);
SELECT queue_push('r', '9', dedup_key => 'k') IS NULL AS dropped;
SELECT body FROM queue_claim('r', 600, 60);
SELECT queue_push('r', '10', dedup_key => 'k') IS NULL AS dropped;
SELECT queue_purge('r');

-- A message that is gone, in whichever way, does not keep its key.
SELECT queue_push('s', '1', dedup_key => 'k') AS id1 \gset
SELECT message_delete('s', :id1);
SELECT queue_push('s', '2', dedup_key => 'k') IS NULL AS dropped;
SELECT body FROM queue_pop('s');
SELECT queue_push('s', '3', dedup_key => 'k') IS NULL AS dropped;
SELECT claim_id AS claim FROM queue_claim('s', 600, 60) \gset
SELECT claim_complete('s', :'claim');
SELECT queue_push('s', '4', dedup_key => 'k') IS NULL AS dropped;
SELECT queue_purge('s');
SELECT queue_push('s', '5', dedup_key => 'k') IS NULL AS dropped;
SELECT queue_drop('s');
SELECT queue_push('s', '6', 1, dedup_key => 'k') IS NULL AS dropped;
SELECT pg_sleep(1.1);
SELECT queue_push('s', '7', dedup_key => 'k') IS NULL AS dropped;
SELECT body FROM queue_messages('s');
-- a dead letter left its key behind
SELECT queue_create('t', '{"_max_claim_count": 1}');
SELECT queue_push('t', '1', dedup_key => 'k') IS NULL AS dropped;
SELECT claim_id AS claim FROM queue_claim('t', 600, 60) \gset
SELECT claim_release('t', :'claim', failed => true);
SELECT body FROM queue_dead_letters('t.dead');
SELECT queue_push('t', '2', dedup_key => 'k') IS NULL AS dropped;
SELECT queue_push('t.dead', '3', dedup_key => 'k') IS NULL AS dropped;

-- A delayed message keeps its key, before and after it is due.
SELECT queue_push('u', '1', delay => 1, dedup_key => 'k') AS id1 \gset
SELECT queue_push('u', '2', delay => 1000, dedup_key => 'l') AS id2 \gset
SELECT queue_push('u', '3', dedup_key => 'l') IS NULL AS dropped;
SELECT pg_sleep(1.1);
SELECT queue_push('u', '3', dedup_key => 'k') IS NULL AS dropped;
SELECT claim_id AS claim FROM queue_claim('u', 600, 60) \gset
SELECT queue_push('u', '4', dedup_key => 'k') IS NULL AS dropped;
SELECT claim_complete('u', :'claim');
SELECT queue_push('u', '5', dedup_key => 'k') IS NULL AS dropped;
SELECT message_delete('u', :id2);
SELECT queue_push('u', '6', dedup_key => 'l') IS NULL AS dropped;
SELECT body FROM queue_messages('u');
-- when due and moved by a claim that is released
SELECT queue_push('v', '1', delay => 1, dedup_key => 'k') AS id1 \gset
SELECT pg_sleep(1.1);
SELECT claim_id AS claim FROM queue_claim('v', 600, 60) \gset
SELECT claim_release('v', :'claim', failed => true);
SELECT queue_push('v', '2', dedup_key => 'k') IS NULL AS dropped;

-- A rollback frees the key, or restores it.
BEGIN;
SELECT queue_push('w', '1', dedup_key => 'k') IS NULL AS dropped;
SELECT queue_push('w', '2', dedup_key => 'k') IS NULL AS dropped;
ROLLBACK;
SELECT queue_push('w', '3', dedup_key => 'k') IS NULL AS dropped;
BEGIN;
SAVEPOINT s;
SELECT queue_push('w', '4', dedup_key => 'l') IS NULL AS dropped;
ROLLBACK TO s;
SELECT queue_push('w', '5', dedup_key => 'l') IS NULL AS dropped;
COMMIT;
BEGIN;
SELECT body FROM queue_claim('w', 600, 60, 1);
SELECT queue_push('w', '6', dedup_key => 'k') IS NULL AS dropped;
ROLLBACK;
SELECT queue_push('w', '7', dedup_key => 'k') IS NULL AS dropped;
SELECT body FROM queue_messages('w');
-- A dropped push unlocks its twin when its transaction ends.
BEGIN;
SELECT queue_push('w', '8', dedup_key => 'k') IS NULL AS dropped;
COMMIT;
SELECT body FROM queue_claim('w', 600, 60, 1);

-- Keys are any text.
SELECT n, queue_push('x', to_jsonb(n), dedup_key => key) IS NULL AS first,
       queue_push('x', to_jsonb(n), dedup_key => key) IS NULL AS second
    FROM (VALUES (1, 'a'), (2, 'it''s "quoted" \'), (3, chr(228)),
                 (4, repeat('x', 1000000)), (5, repeat('x', 1000001)),
                 (6, E'a\nb'), (7, ' ')) AS v (n, key)
    ORDER BY n;
-- One of many messages has the key.
SELECT count(queue_push('y', to_jsonb(i), dedup_key => (i % 100)::text))
    FROM generate_series(1, 1000) i;
SELECT count(*), max((body)::int) FROM queue_messages('y', "limit" => 1000);

-- A push that fails takes no key.
SELECT queue_push('z', to_jsonb(repeat('x', 300000)), dedup_key => 'k');
SELECT queue_push('z', '1', 0, dedup_key => 'k');
SELECT queue_post('z', '[{"body": 1, "dedup_key": "k"}, {"body": 2, "ttl": -1}]');
SELECT queue_push('z', '2', dedup_key => 'k') IS NULL AS dropped;
-- and one that is dropped is checked nevertheless
SELECT queue_push('z', '3', 0, dedup_key => 'k');
SELECT queue_push('z', NULL, dedup_key => 'k');
\set VERBOSITY default

-- when a message is due
SELECT queue_create('at');
SELECT queue_push('at', '1', at => now() - interval '1 day') IS NOT NULL AS pushed;
SELECT queue_push('at', '2', at => now() + interval '1 day') IS NOT NULL AS pushed;
SELECT cardinality(queue_push_batch('at', '{3,4}', at => now() + interval '1 hour')) AS pushed;
SELECT cardinality(queue_post('at', jsonb_build_array(jsonb_build_object('body', 5, 'at', now() + interval '2 hours'), '{"body": 6, "at": "-infinity"}'::jsonb))) AS pushed;
SELECT state, body, date_trunc('minute', due_at - now() + interval '30 s') AS due FROM queue_data.message WHERE queue = 'at' ORDER BY id;
\set VERBOSITY sqlstate
SELECT queue_push('at', '1', at => now() + interval '15 days');
SELECT queue_push('at', '1', at => 'infinity');
SELECT queue_push('at', '1', delay => 0, at => now());
SELECT queue_post('at', '[{"body": 1, "at": "2020-01-01", "delay": 1}]');
SELECT queue_post('at', '[{"body": 1, "at": 1}]');
SELECT queue_post('at', '[{"body": 0}, {"body": 1, "at": "nonsense"}]');
SELECT queue_push('at', '1', dedup => 'unfinished');
SELECT queue_push('at', '1', dedup_for => 5);
SELECT queue_push('at', '1', dedup_key => 'k', dedup => 'never');
SELECT queue_push('at', '1', dedup_key => 'k', dedup => NULL);
SELECT queue_push('at', '1', dedup_key => 'k', dedup_for => 0);
SELECT queue_push('at', '1', dedup_key => 'k', dedup_for => 2592001);
\set VERBOSITY default
SELECT queue_drop('at');

-- what makes a push a duplicate: the one that arrives decides
SELECT queue_create('unique');
SELECT queue_push('unique', '1', dedup_key => 'k') IS NOT NULL AS pushed;
SELECT claim_id FROM queue_claim('unique') \gset
SELECT queue_push('unique', '2', dedup_key => 'k', dedup => 'unfinished') IS NULL AS dropped;
SELECT claim_complete('unique', :'claim_id');
SELECT queue_push('unique', '3', dedup_key => 'k', dedup => 'unfinished') IS NOT NULL AS pushed;
SELECT claim_id FROM queue_claim('unique') \gset
SELECT queue_push('unique', '4', dedup_key => 'k') IS NOT NULL AS pushed;
SELECT queue_purge('unique');

-- replacing: free to free, to delayed, and back
SELECT queue_push('unique', '1', priority => 3, group_key => 'g', ttl => 500, dedup_key => 'k') AS id \gset
SELECT queue_push('unique', '2', headers => '{"h": 1}', priority => 1, ttl => 900, dedup_key => 'k', dedup => 'replace') = :id AS same;
SELECT state, body, headers, priority, group_key FROM queue_data.message WHERE queue = 'unique';
SELECT queue_push('unique', '3', dedup_key => 'k', dedup => 'replace', delay => 600) = :id AS same;
SELECT state, body, headers, due_at > now() AS due FROM queue_data.message WHERE queue = 'unique';
SELECT queue_push('unique', '4', dedup_key => 'k', dedup => 'replace', at => now() + interval '1 hour') = :id AS same;
SELECT state, body, date_trunc('minute', due_at - now() + interval '30 s') AS due FROM queue_data.message WHERE queue = 'unique';
SELECT queue_push('unique', '5', dedup_key => 'k', dedup => 'replace') = :id AS same;
SELECT body, ttl, priority, id = :id AS same, claim_id FROM queue_claim('unique') \gset
SELECT :'body' AS body, :ttl AS ttl, :priority AS priority, :'same' AS same;
SELECT queue_push('unique', '6', dedup_key => 'k', dedup => 'replace') <> :id AS another;
SELECT queue_purge('unique');
SELECT ids[1] = ids[2] AS same, ids[3] IS NULL AS dropped FROM queue_post('unique', '[{"body": 1, "dedup_key": "k", "delay": 60},
    {"body": 2, "dedup_key": "k", "dedup": "replace"}, {"body": 3, "dedup_key": "k"}]') AS ids;
SELECT state, body FROM queue_data.message WHERE queue = 'unique';
SELECT queue_purge('unique');

-- a period, whatever became of the message
SELECT queue_push('unique', '1', dedup_key => 'k', dedup_for => 1) AS id \gset
SELECT message_delete('unique', :id);
SELECT pg_sleep(1.1);
SELECT queue_push('unique', '2', dedup_key => 'k', dedup_for => 600) IS NULL AS dropped;
SELECT queue_push('unique', '3', dedup_key => 'k', dedup_for => 1) IS NOT NULL AS pushed;
SELECT body FROM queue_pop('unique');
SELECT queue_push('unique', '4', dedup_key => 'k') IS NOT NULL AS pushed;
SELECT body FROM queue_pop('unique');
BEGIN;
SELECT queue_push('unique', '5', dedup_key => 'l', dedup_for => 600) IS NOT NULL AS pushed;
ROLLBACK;
SELECT queue_push('unique', '6', dedup_key => 'l', dedup_for => 600) IS NOT NULL AS pushed;
SELECT body FROM queue_pop('unique');
SELECT queue_push('unique', '7', dedup_key => 'l', dedup_for => 600) IS NULL AS dropped;
SELECT queue_purge('unique');
SELECT queue_push('unique', '8', dedup_key => 'l', dedup_for => 600) IS NOT NULL AS pushed;
SELECT queue_drop('unique');

-- each push has these arguments
SELECT queue_create('all');
BEGIN;
SELECT queue_push_lazy('all', '1', at => now() + interval '1 hour', dedup_key => 'k');
COMMIT;
BEGIN;
SELECT queue_push_lazy('all', '2', dedup_key => 'k', dedup => 'replace', at => now() + interval '2 hours');
SELECT queue_push_lazy('all', '3', dedup_key => 'k', dedup_for => 60, dedup => 'unfinished');
COMMIT;
SELECT state, body, date_trunc('minute', due_at - now() + interval '30 s') AS due FROM queue_data.message WHERE queue = 'all';
SELECT queue_push_once('all', 'o', 1, '4', dedup_key => 'k', dedup => 'replace', at => '2000-01-01') AS once \gset
SELECT queue_push_once('all', 'o', 1, '5', dedup_key => 'k', dedup => 'replace') = :once AS same;
SELECT id = :once AS same, body, claim_id FROM queue_claim('all') \gset
SELECT :'same' AS same, :'body' AS body;
SELECT body FROM queue_step('all', :'claim_id', push => '[{"body": 6, "dedup_key": "k", "dedup": "unfinished"},
    {"body": 7, "dedup_key": "l", "dedup_for": 60}, {"body": 8, "at": "infinity"}]');
SELECT body FROM queue_step('all', :'claim_id', push => '[{"body": 6, "dedup_key": "k", "dedup": "unfinished"},
    {"body": 7, "dedup_key": "l", "dedup_for": 60}, {"body": 8, "at": "-infinity"}]');
SELECT queue_post(NULL, '[{"queue": "all", "body": 9, "dedup_key": "l", "dedup_for": 60},
    {"queue": "all", "body": 10, "dedup_key": "k", "dedup": "unfinished"}]');
SELECT topic_bind('all', 'all');
SELECT topic_publish('all', '11', at => now() + interval '3 hours');
SELECT state, date_trunc('minute', due_at - now() + interval '30 s') AS due FROM queue_data.message WHERE queue = 'all' AND body = '11';
SELECT duplicates FROM job_stats('all');

-- what waits for a batch is due then, or when the batch has finished
SELECT batch_create('at', keep_open => true) AS b \gset
SELECT queue_purge('all');
SELECT queue_push('all', '1', after => :b, at => now() + interval '1 hour') IS NOT NULL AS pushed;
SELECT queue_push('all', '2', after => :b, at => now() - interval '1 hour') IS NOT NULL AS pushed;
SELECT queue_push('all', '3', after => :b, at => now() + interval '1 second') IS NOT NULL AS pushed;
SELECT state, due_at FROM queue_data.message WHERE queue = 'all';
SELECT pg_sleep(1.1);
SELECT batch_close(:b);
CREATE PROCEDURE finished(b bigint) LANGUAGE plpgsql AS $$
BEGIN
    FOR i IN 1 .. 3000 LOOP
        EXIT WHEN (SELECT finished_at IS NOT NULL AND waiting = 0 FROM batch_status(b));
        COMMIT;
        PERFORM pg_sleep(0.01);
    END LOOP;
END $$;
CALL finished(:b);
SELECT state, body, due_at BETWEEN now() + interval '59 minutes' AND now() + interval '61 minutes' AS due
FROM queue_data.message WHERE queue = 'all' ORDER BY body;
\set VERBOSITY sqlstate
SELECT queue_push('all', '1', after => :b, dedup_key => 'k', dedup => 'replace');
SELECT queue_push('all', '1', after => :b, dedup_key => 'k', dedup_for => 60);
\set VERBOSITY default

-- a message that is due later leaves the others of its group their turn
SELECT queue_purge('all'), queue_update('all', '{"_group_concurrency": 1}') IS NOT NULL AS bounded;
SELECT queue_push('all', '1', group_key => 'g', dedup_key => 'k') IS NOT NULL AS pushed,
    queue_push('all', '2', group_key => 'g') IS NOT NULL AS pushed;
SELECT queue_push('all', '3', delay => 600, dedup_key => 'k', dedup => 'replace') IS NOT NULL AS replaced;
SELECT body FROM queue_claim('all');

-- a message that is canceled makes no push a duplicate, though it is claimed
SELECT queue_purge('all'), queue_push('all', '1', dedup_key => 'k') AS id \gset
SELECT id = :id AS same FROM queue_claim('all');
SELECT message_cancel('all', :id);
SELECT queue_push('all', '2', dedup_key => 'k', dedup => 'unfinished') IS NOT NULL AS pushed;

-- a lifetime is over, and a message is replaced that lives for longer than it
SELECT queue_purge('all'), queue_push('all', '1', ttl => 1, dedup_key => 'k') AS id \gset
SELECT queue_push('all', '2', dedup_key => 'k', dedup => 'replace', delay => 100) = :id AS same;
SELECT pg_sleep(1.1);
SELECT queue_push('all', '3', dedup_key => 'k', dedup => 'replace') = :id AS same;
SELECT id = :id AS same, body FROM queue_claim('all');
SELECT queue_push('all', '4', ttl => 1, dedup_key => 'l') AS id \gset
SELECT pg_sleep(1.1);
SELECT queue_push('all', '5', dedup_key => 'l', dedup => 'replace') = :id AS same;

-- a role that may push replaces only if it may claim as well
SELECT queue_purge('all'), queue_push('all', '"secret"', dedup_key => 'k') IS NOT NULL AS pushed;
CREATE ROLE regress_dedup_pusher IN ROLE queue_producer, queue_consumer;
SELECT queue_grant('all', 'regress_dedup_pusher', 'push'), queue_grant('all', 'queue_admin', 'claim');
SET ROLE regress_dedup_pusher;
\set VERBOSITY sqlstate
SELECT queue_push('all', '1', dedup_key => 'k', dedup => 'replace');
SELECT queue_push('all', '1', dedup_key => 'no such key', dedup => 'replace');
SELECT queue_push_once('all', 'o', 2, '1', dedup_key => 'k', dedup => 'replace');
SELECT queue_post('all', '[{"body": 1}, {"body": 2, "dedup_key": "k", "dedup": "replace"}]');
SELECT queue_post(NULL, '[{"queue": "mine", "body": 1}, {"queue": "all", "body": 2, "dedup_key": "k", "dedup": "replace"}]');
BEGIN;
SELECT queue_push_lazy('all', '1', dedup_key => 'k', dedup => 'replace');
COMMIT;
\set VERBOSITY default
SELECT queue_push('all', '1', dedup_key => 'k', dedup => 'unfinished') IS NULL AS dropped;
SELECT queue_push('all', '1', dedup_key => 'k', dedup_for => 60) IS NULL AS dropped;
RESET ROLE;
SELECT body FROM queue_messages('all');
SELECT queue_grant('all', 'regress_dedup_pusher', 'claim');
SET ROLE regress_dedup_pusher;
SELECT queue_push('all', '"replaced"', dedup_key => 'k', dedup => 'replace') IS NOT NULL AS replaced;
RESET ROLE;
SELECT body FROM queue_messages('all');
SELECT queue_drop('all');
DROP ROLE regress_dedup_pusher;

DROP EXTENSION queue;
