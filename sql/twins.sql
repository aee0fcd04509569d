-- The run of a message covers its twins: a job is a duplicate if a run of the
-- same key began after it was pushed, and was completed.

CREATE EXTENSION queue;
SET queue.min_claim_ttl = 1;
SET queue.min_claim_grace = 0;
SET queue.min_message_ttl = 1;
\set VERBOSITY sqlstate

-- Two messages with one key: the second was pushed while the first one was
-- claimed, and that claim failed.  Neither is claimed.
CREATE FUNCTION pg_temp.twins(q text, OUT first bigint, OUT second bigint)
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM queue_purge(q);
    first := queue_push(q, '"first"', dedup_key => 'k');
    PERFORM claim_id FROM queue_claim(q, 600, 60);
    second := queue_push(q, '"second"', dedup_key => 'k');
    PERFORM claim_release(q, claim_id, failed => true)
        FROM queue_messages(q, include_claimed => true) WHERE claim_id IS NOT NULL;
END
$$;
CREATE FUNCTION pg_temp.claim(q text) RETURNS text
LANGUAGE sql AS 'SELECT claim_id FROM queue_claim(q, 600, 60, 1)';

-- The one that runs first covers the other, however it is completed.
SELECT * FROM pg_temp.twins('q') \gset
SELECT body FROM queue_messages('q');
SELECT claim_complete('q', pg_temp.claim('q'));
SELECT total FROM queue_stats('q');
SELECT duplicates FROM job_stats('q');

SELECT * FROM pg_temp.twins('q') \gset
SELECT message_delete('q', :first, pg_temp.claim('q'));
SELECT total FROM queue_stats('q');

SELECT * FROM pg_temp.twins('q') \gset
SELECT messages_delete('q', ARRAY[:first]::bigint[], pg_temp.claim('q'));
SELECT total FROM queue_stats('q');

SELECT * FROM pg_temp.twins('q') \gset
SELECT count(*) FROM claim_next('q', pg_temp.claim('q'), 600, 60);
SELECT total FROM queue_stats('q');

SELECT * FROM pg_temp.twins('q') \gset
SELECT body FROM queue_pop('q');
SELECT total FROM queue_stats('q');

-- also the younger one for the older one, a delayed one, another priority
SELECT * FROM pg_temp.twins('q') \gset
SELECT claim_id AS claim FROM queue_claim('q', 600, 60, 1) \gset
SELECT claim_id AS claim2 FROM queue_claim('q', 600, 60, 1) \gset
SELECT claim_release('q', :'claim', 100, failed => true);
SELECT claim_complete('q', :'claim2');
SELECT total FROM queue_stats('q');
-- (it was claimed when the other one's run began, and is marked as covered)
SELECT duplicates FROM job_stats('q');
SELECT queue_push('q', '1', dedup_key => 'k') IS NOT NULL AS key_is_free;
SELECT queue_purge('q');
SELECT queue_push('q', '"first"', dedup_key => 'k') > 0 AS pushed;
SELECT pg_temp.claim('q') AS claim \gset
SELECT queue_push('q', '"second"', delay => 1000, priority => 5, dedup_key => 'k') > 0 AS pushed;
SELECT claim_release('q', :'claim', failed => true);
SELECT claim_complete('q', pg_temp.claim('q'));
SELECT total FROM queue_stats('q');

-- A claimed row has the ids of the messages that its run covers; each claim
-- writes them anew.  Other rows have none.
CREATE VIEW pg_temp.columns AS
    SELECT id, twins, twins_joined, covered FROM queue_data.message_0
    UNION ALL
    SELECT id, twins, twins_joined, covered FROM queue_data.delayed_0;
SELECT queue_purge('p');
SELECT queue_push('p', '"no key"', priority => 1) > 0 AS pushed;
SELECT queue_push('p', '"other key"', priority => 1, dedup_key => 'l') > 0 AS pushed;
SELECT count(*) FROM queue_claim('p', 600, 60, 2);
SELECT * FROM queue_push('p', '"first"', dedup_key => 'k') AS first \gset
SELECT pg_temp.claim('p') AS claim \gset
SELECT queue_push('p', '"second"', dedup_key => 'k') AS second \gset
SELECT count(*), count(twins), count(twins_joined), count(covered) FROM pg_temp.columns;
SELECT claim_release('p', :'claim', 1, failed => true);
SELECT pg_temp.claim('p') AS claim \gset
SELECT twins = ARRAY[:first]::bigint[] AS the_first, twins_joined, covered
    FROM pg_temp.columns WHERE id = :second;
SELECT message_delete('p', :second, :'claim');
SELECT count(*) FROM pg_temp.columns WHERE id = :first;
-- the second one is covered, and is not a twin any more
SELECT * FROM pg_temp.twins('p') \gset
SELECT pg_temp.claim('p') AS one \gset
SELECT pg_temp.claim('p') AS two \gset
SELECT claim_complete('p', :'one');
SELECT twins = ARRAY[:first]::bigint[] AS the_first, covered
    FROM pg_temp.columns WHERE id = :second;
SELECT claim_complete('p', :'two');
-- a claim that finds no twin
SELECT * FROM pg_temp.twins('p') \gset
SELECT claim_id AS claim FROM queue_claim('p', 600, 60, 1) \gset
SELECT count(twins) FROM pg_temp.columns WHERE id = :first;
SELECT claim_release('p', :'claim', failed => true);
SELECT message_delete('p', :second);
SELECT count(*) FROM queue_claim('p', 600, 60, 1);
SELECT count(twins), count(twins_joined) FROM pg_temp.columns WHERE id = :first;
SELECT queue_purge('p');
DROP VIEW pg_temp.columns;

-- A run that began before the twin was pushed does not cover it: it runs.
SELECT queue_push('r', '"first"', dedup_key => 'k') > 0 AS pushed;
SELECT pg_temp.claim('r') AS claim \gset
SELECT queue_push('r', '"second"', dedup_key => 'k') > 0 AS pushed;
SELECT claim_renew('r', :'claim', 600) IS NOT NULL AS renewed;
SELECT claim_complete('r', :'claim');
SELECT body FROM queue_claim('r', 600, 60);
SELECT duplicates FROM job_stats('r');

-- Nor does one that is not completed: released, expired, deleted without a
-- claim, moved to the dead letter queue, or rolled back.
SELECT * FROM pg_temp.twins('s') \gset
SELECT claim_release('s', pg_temp.claim('s'), failed => true);
SELECT total FROM queue_stats('s');
SELECT message_delete('s', :first);
SELECT total FROM queue_stats('s');
SELECT * FROM pg_temp.twins('s') \gset
SELECT count(*) FROM queue_claim('s', 1, 0, 1);
SELECT pg_sleep(1.1);
SELECT message_delete('s', :first);
SELECT body FROM queue_messages('s');
SELECT * FROM pg_temp.twins('s') \gset
BEGIN;
SELECT claim_complete('s', pg_temp.claim('s'));
SELECT total FROM queue_stats('s');
ROLLBACK;
SELECT total FROM queue_stats('s');
SELECT queue_update('s', '{"_max_claim_count": 2}');
SELECT message_retry('s', :first, pg_temp.claim('s'), 'no') IS NULL AS dead;
SELECT body FROM queue_messages('s');
SELECT queue_update('s', '{"_max_claim_count": null}');
SELECT duplicates, abandoned FROM job_stats('s');

-- A run that began anew, after a failure, does.
SELECT * FROM pg_temp.twins('s') \gset
SELECT message_retry('s', :first, pg_temp.claim('s'), 'no', 0) IS NOT NULL AS again;
SELECT total FROM queue_stats('s');
SELECT claim_complete('s', pg_temp.claim('s'));
SELECT total FROM queue_stats('s');

-- A twin that is claimed goes on, and is not claimed again.
SELECT * FROM pg_temp.twins('t') \gset
SELECT pg_temp.claim('t') AS one \gset
SELECT pg_temp.claim('t') AS two \gset
SELECT claim_complete('t', :'two');
SELECT body FROM claim_messages('t', :'one');
SELECT message_retry('t', :first, :'one', 'no', 0) IS NOT NULL AS given_back;
-- it does not keep its key, either
SELECT queue_push('t', '"third"', dedup_key => 'k') IS NOT NULL AS pushed;
SELECT body FROM queue_claim('t', 600, 60);
SELECT duplicates, completed FROM job_stats('t');
-- but when it completes, all is well
SELECT * FROM pg_temp.twins('t') \gset
SELECT pg_temp.claim('t') AS one \gset
SELECT pg_temp.claim('t') AS two \gset
SELECT claim_complete('t', :'two');
SELECT claim_complete('t', :'one');
SELECT total FROM queue_stats('t');
SELECT duplicates, completed FROM job_stats('t');

-- The run of a twin that waits sees the changes of a push that was dropped
-- because of it; a run that has begun does not.
SELECT * FROM pg_temp.twins('u') \gset
SELECT pg_temp.claim('u') AS one \gset
SELECT queue_push('u', '"third"', dedup_key => 'k') IS NULL AS joined_the_second;
SELECT claim_complete('u', :'one');
SELECT body FROM queue_claim('u', 600, 60);
-- one that begins later covers both
SELECT * FROM pg_temp.twins('u') \gset
SELECT pg_temp.claim('u') AS one \gset
SELECT queue_push('u', '"third"', dedup_key => 'k') IS NULL AS joined_the_second;
SELECT claim_release('u', :'one', failed => true);
SELECT claim_complete('u', pg_temp.claim('u'));
SELECT total FROM queue_stats('u');

-- Three of them; two in one claim.
SELECT * FROM pg_temp.twins('v') \gset
SELECT claim_id AS both FROM queue_claim('v', 600, 60, 2) LIMIT 1 \gset
SELECT queue_push('v', '"third"', dedup_key => 'k') > 0 AS pushed;
SELECT claim_complete('v', :'both');
SELECT body FROM queue_messages('v');
SELECT duplicates FROM job_stats('v');
SELECT * FROM pg_temp.twins('v') \gset
SELECT claim_id AS both FROM queue_claim('v', 600, 60, 2) LIMIT 1 \gset
SELECT message_delete('v', :first, :'both');
SELECT message_retry('v', :second, :'both', 'no', 0) IS NOT NULL AS given_back;
SELECT count(*) FROM queue_claim('v', 600, 60);
SELECT body FROM queue_pop('v', 2);
SELECT * FROM pg_temp.twins('v') \gset
SELECT body FROM queue_pop('v', 2);
SELECT total FROM queue_stats('v');

-- A pop whose run covers a message that the pop itself removes: one that was
-- claimed too often becomes a dead letter,
SELECT * FROM pg_temp.twins('va') \gset
BEGIN;
SELECT queue_update('va', '{"_max_claim_count": 1}');
SELECT body FROM queue_pop('va');
COMMIT;
SELECT total FROM queue_stats('va');
SELECT body, origin_id = :first AS the_first FROM queue_dead_letters('va.dead');
SELECT completed, duplicates, abandoned FROM job_stats('va');
-- and one that another run has covered is a duplicate once.
BEGIN;
SELECT * FROM pg_temp.twins('vb') \gset
SELECT pg_temp.claim('vb') AS one \gset
SELECT pg_temp.claim('vb') AS two \gset
SELECT queue_push('vb', '"third"', dedup_key => 'k') > 0 AS pushed;
SELECT claim_complete('vb', :'one');
SELECT claim_release('vb', :'two', failed => true);
SELECT body FROM queue_pop('vb');
COMMIT;
SELECT total FROM queue_stats('vb');
SELECT completed, duplicates FROM job_stats('vb');

-- Other keys, other queues, and messages without a key are not covered.
SELECT * FROM pg_temp.twins('w') \gset
SELECT queue_push('w', '"other key"', dedup_key => 'l') > 0 AS pushed;
SELECT queue_push('w', '"no key"') > 0 AS pushed;
SELECT claim_complete('w', pg_temp.claim('w'));
SELECT body FROM queue_messages('w');

-- At other isolation levels a run sees no more than its snapshot does.
SELECT * FROM pg_temp.twins('x') \gset
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT body FROM queue_pop('x');
COMMIT;
SELECT total FROM queue_stats('x');

-- A message that did not have its key when another one took it, and runs
-- nevertheless, covers no message: it does not know which pushes were dropped.
-- One had been claimed too often for a while;
SELECT queue_push('y', '"first"', dedup_key => 'k') > 0 AS pushed;
SELECT claim_release('y', pg_temp.claim('y'), failed => true);
SELECT queue_update('y', '{"_max_claim_count": 1}');
SELECT queue_push('y', '"second"', dedup_key => 'k') > 0 AS pushed;
SELECT queue_update('y', '{"_max_claim_count": null}');
SELECT pg_temp.claim('y') AS one \gset
SELECT queue_push('y', '"third"', dedup_key => 'k') IS NULL AS joined_the_second;
SELECT claim_complete('y', :'one');
SELECT body FROM queue_messages('y');
-- another was running when a newer root job was registered.
SELECT job_root('z', 's') AS root \gset
SELECT queue_push('z', '{"first": true}'::jsonb || :'root', dedup_key => 'k') > 0 AS pushed;
SELECT pg_temp.claim('z') AS one \gset
SELECT queue_push('z', '"second"', dedup_key => 'k') > 0 AS pushed;
SELECT claim_release('z', :'one', failed => true);
SELECT pg_temp.claim('z') AS one \gset
SELECT job_root('z', 's') IS NOT NULL AS newer;
SELECT pg_temp.claim('z') AS two \gset
SELECT queue_push('z', '"third"', dedup_key => 'k') AS third \gset
SELECT message_delete('z', :third);
SELECT claim_release('z', :'two', failed => true);
SELECT queue_push('z', '"fourth"', dedup_key => 'k') IS NULL AS joined_the_second;
SELECT claim_complete('z', :'one');
SELECT body FROM queue_messages('z');

-- Nothing stays behind.
SELECT count(queue_purge(name)) > 0 AS purged FROM queue_list("limit" => 100);
SELECT count(*) FROM queue_data.dedup_key;

-- Nor does one command that deletes several messages of a key leave its row:
-- a pop,
SELECT * FROM pg_temp.twins('q') \gset
SELECT body FROM queue_pop('q', 2);
SELECT count(*) FROM queue_data.dedup_key;
-- the completion of a claim,
SELECT * FROM pg_temp.twins('q') \gset
SELECT claim_id AS both FROM queue_claim('q', 600, 60, 2) LIMIT 1 \gset
SELECT claim_complete('q', :'both');
SELECT count(*) FROM queue_data.dedup_key;
-- deletes by id, in a claim and in none,
SELECT * FROM pg_temp.twins('q') \gset
SELECT claim_id AS both FROM queue_claim('q', 600, 60, 2) LIMIT 1 \gset
SELECT messages_delete('q', ARRAY[:first, :second]::bigint[], :'both');
SELECT count(*) FROM queue_data.dedup_key;
SELECT * FROM pg_temp.twins('q') \gset
SELECT messages_delete('q', ARRAY[:first, :second]::bigint[]);
SELECT count(*) FROM queue_data.dedup_key;
-- a claim that meets expired messages,
SELECT queue_push('q', '"first"', 1, dedup_key => 'k') > 0 AS pushed;
SELECT count(*) FROM queue_claim('q', 1, 0, 1);
SELECT queue_push('q', '"second"', 1, dedup_key => 'k') > 0 AS pushed;
SELECT pg_sleep(1.1);
SELECT count(*) FROM queue_claim('q', 600, 60);
SELECT total, (SELECT count(*) FROM queue_data.dedup_key) AS keys FROM queue_stats('q');
-- or messages that another run has covered,
SELECT * FROM pg_temp.twins('q') \gset
SELECT pg_temp.claim('q') AS one \gset
SELECT pg_temp.claim('q') AS two \gset
SELECT queue_push('q', '"third"', dedup_key => 'k') > 0 AS pushed;
SELECT claim_complete('q', pg_temp.claim('q'));
SELECT claim_release('q', :'one', failed => true), claim_release('q', :'two', failed => true);
SELECT count(*) FROM queue_claim('q', 600, 60);
SELECT total, (SELECT count(*) FROM queue_data.dedup_key) AS keys FROM queue_stats('q');
-- a move of messages that were claimed too often.
SELECT * FROM pg_temp.twins('q') \gset
SELECT claim_id AS both FROM queue_claim('q', 600, 60, 2) LIMIT 1 \gset
SELECT queue_update('q', '{"_max_claim_count": 1}');
SELECT claim_release('q', :'both', failed => true);
SELECT total, (SELECT count(*) FROM queue_data.dedup_key) AS keys FROM queue_stats('q');
SELECT queue_update('q', '{"_max_claim_count": null}');
-- The row of a key keeps the message that is left.
SELECT * FROM pg_temp.twins('q') \gset
SELECT claim_id AS both FROM queue_claim('q', 600, 60, 2) LIMIT 1 \gset
SELECT queue_push('q', '"third"', dedup_key => 'k') AS third \gset
SELECT claim_complete('q', :'both');
SELECT message_ids = ARRAY[:third]::bigint[] AS the_third FROM queue_data.dedup_key;
-- A push of the key in the same command takes it anew.
SELECT * FROM pg_temp.twins('q') \gset
SELECT count(body), queue_push('q', '"third"', dedup_key => 'k') > 0 AS pushed
    FROM queue_pop('q', 2);
SELECT array_length(message_ids, 1) FROM queue_data.dedup_key;
SELECT queue_purge('q');

-- Keys of bodies: what is equal as jsonb has the same one.
SELECT queue_dedup_key('{"a": 1, "b": {"c": [1, "x", null, true]}}') AS key \gset
SELECT length(:'key'), :'key' ~ '^[0-9a-f]+$' AS hexadecimal;
SELECT body, queue_dedup_key(body::jsonb) = :'key' AS same FROM (VALUES
    ('{"b": {"c": [1, "x", null, true]}, "a": 1}'),
    ('{"a": 2, "a": 1.00, "b": {"c": [1.0, "\u0078", null, true]}}'),
    ('{"a": 1, "b": {"c": [1, "x", null, true]}, "rootJobTimestamp": "2001-01-01T00:00:00.000000Z", "rootJobSignature": "s", "rootJobIsSelf": true}'),
    ('{"a": "1", "b": {"c": [1, "x", null, true]}}'),
    ('{"a": 1, "b": {"c": ["x", 1, null, true]}}'),
    ('{"a": 1, "b": {"c": [1, "x", null, true], "rootJobSignature": "s"}}'),
    ('{"a": 1, "b": {"c": [1, "x", null]}, "d": true}'),
    ('{"a": 1}')) AS v (body);
SELECT queue_dedup_key('{"a": 1, "at": "now", "by": {"x": [1, {"y": 2}]}}', '{at, by, none}')
    = queue_dedup_key('{"a": 1}') AS ignored;
SELECT queue_dedup_key('{"a": 1, "at": "now"}', '{a}') = queue_dedup_key('{"at": "now"}') AS ignored;
SELECT count(DISTINCT queue_dedup_key(body)), count(*) FROM unnest(ARRAY[
    '1', '"1"', '[1]', '[[1]]', '{}', '[]', '[{}]', 'null', '[null]', 'true',
    '"true"', '""', '{"a": {}}', '{"a": []}', '[1, 2]', '[[1, 2]]', '[[1], 2]',
    '"{}"', '{"a": "b"}', '{"a:": "b"}', '{"a": "b,"}']::jsonb[]) body;
-- the same in every release
SELECT queue_dedup_key('{"page": 7, "type": "links"}');

DROP EXTENSION queue;
