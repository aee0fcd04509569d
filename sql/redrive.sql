-- queue_redrive: dead letters are moved back to their origin, or elsewhere.

CREATE EXTENSION queue;
SET queue.min_claim_ttl = 1;
SET queue.min_message_ttl = 1;
\set VERBOSITY sqlstate

-- makes n messages of queue q dead letters
CREATE FUNCTION pg_temp.kill(q text, n int) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    claim text;
BEGIN
    PERFORM queue_create(q, '{"_max_claim_count": 1, "_dead_letter_queue": "dead"}');
    PERFORM queue_push(q, to_jsonb(format('%s %s', q, i)), 5000, priority => i % 10)
        FROM generate_series(1, n) i;
    SELECT min(claim_id) INTO claim FROM queue_claim(q, 600, 60, n);
    RETURN claim_release(q, claim, failed => true);
END
$$;

SELECT pg_temp.kill('a', 3), pg_temp.kill('b', 2);
SELECT body, origin_queue FROM queue_dead_letters('dead');
SELECT queue_push('dead', '"visitor"') > 0 AS pushed;
SELECT origin_queue, max(origin_id) AS id INTO TEMP last FROM queue_dead_letters('dead') GROUP BY 1;
-- back to its origin: a new message there, with the count reset
SELECT queue_redrive('dead');
SELECT queue, body, m.id > l.id AS new_id, claim_count, claim_id, priority, ttl,
       age BETWEEN 0 AND 60 AS age
    FROM last l, queue_messages(origin_queue) m ORDER BY queue, m.id;
SELECT count(*) FROM queue_dead_letters('dead');
-- what is not a dead letter stays
SELECT body FROM queue_messages('dead');
SELECT queue_redrive('dead');
-- the origin is removed: they are not dead letters any more
SELECT count(*) FROM queue_dead_letters('a');
SELECT queue_redrive('a');
-- the count begins with one, and it can become a dead letter again
SELECT min(claim_id) AS claim, max(claim_count) FROM queue_claim('a', 600, 60) \gset
SELECT :max;
SELECT claim_release('a', :'claim', failed => true);
SELECT body, origin_queue, claim_count FROM queue_dead_letters('dead');

-- some of them, oldest first
SELECT queue_redrive('dead', NULL, 2);
SELECT count(*) FROM queue_dead_letters('dead');
SELECT count(*) FROM queue_messages('a');
SELECT queue_redrive('dead', "limit" => 10000);
SELECT count(*) FROM queue_messages('a');

-- to a target, which exists
SELECT pg_temp.kill('c', 2);
\set VERBOSITY default
SELECT queue_redrive('dead', 'hopsital');
\set VERBOSITY sqlstate
SELECT queue_exists('hopsital'), count(*) FROM queue_dead_letters('dead');
SELECT queue_create('hospital');
SELECT queue_redrive('dead', 'hospital');
SELECT body, claim_count FROM queue_messages('hospital');
SELECT total FROM queue_stats('c');
SELECT pg_temp.kill('c', 1);
SELECT queue_redrive('dead', 'hospital');
-- no dead letter is not an error
SELECT queue_redrive('dead', 'hospital');
-- the origin was dropped
SELECT pg_temp.kill('d', 2);
SELECT queue_drop('d');
SET queue.auto_create = off;
SELECT queue_redrive('dead');
SELECT count(*) FROM queue_dead_letters('dead');
RESET queue.auto_create;
SELECT queue_redrive('dead');
SELECT body FROM queue_messages('d');

-- of several origins one was dropped, and one belongs to another role now
SELECT pg_temp.kill('gone', 2), pg_temp.kill('b', 1), pg_temp.kill('other', 1);
SELECT queue_purge('a');
SELECT pg_temp.kill('a', 1);
SELECT queue_drop('gone'), queue_drop('other');
CREATE ROLE regress_redrive IN ROLE queue_producer;
SET ROLE regress_redrive;
SELECT queue_create('other');
RESET ROLE;
SET queue.auto_create = off;
\set VERBOSITY default
SELECT queue_redrive('dead');
\set VERBOSITY sqlstate
SELECT (SELECT count(*) FROM queue_messages('a')) AS a, count(*) AS b FROM queue_messages('b');
SELECT body FROM queue_dead_letters('dead');
RESET queue.auto_create;
SELECT queue_redrive('dead', 'hospital');
SELECT queue_drop('other');
DROP ROLE regress_redrive;

-- a selection, in its order; those that are gone or not there do not matter
SELECT pg_temp.kill('a', 4);
SELECT queue_purge('a');
SELECT array_agg(id ORDER BY id DESC) AS ids FROM queue_dead_letters('dead')
    WHERE body IN ('"a 1"', '"a 3"', '"a 4"') \gset
SELECT queue_redrive('dead', "limit" => 2, ids => :'ids'::bigint[] || 1::bigint);
SELECT array_agg(body ORDER BY id) FROM queue_messages('a');
SELECT queue_redrive('dead', 'hospital', ids => :'ids'), queue_redrive('dead', ids => :'ids'), queue_redrive('dead', ids => '{}');
SELECT array_agg(body ORDER BY id) FROM queue_dead_letters('dead');
SELECT body FROM queue_pop('hospital', 100) ORDER BY body;
SELECT queue_redrive('dead');
-- an id twice, one of another queue, and one that is no dead letter
SELECT pg_temp.kill('a', 1);
SELECT queue_push('dead', '"visitor 2"') AS visitor, queue_push('elsewhere', '1') AS elsewhere \gset
SELECT queue_redrive('dead', ids => ARRAY[id, id, :visitor, :elsewhere, -1, NULL]) FROM queue_dead_letters('dead');
SELECT queue_redrive('dead', ids => ARRAY[id, id, :visitor, :elsewhere, -1]) FROM queue_dead_letters('dead');
SELECT message_delete('dead', :visitor);
-- whose origin is gone
SELECT queue_create('gone', '{"_max_claim_count": 1, "_dead_letter_queue": "dead"}');
SELECT pg_temp.kill('gone', 2);
SELECT queue_drop('gone');
SET queue.auto_create = off;
\set VERBOSITY default
SELECT queue_redrive('dead', ids => ARRAY(SELECT id FROM queue_dead_letters('dead')));
\set VERBOSITY sqlstate
RESET queue.auto_create;
SELECT queue_redrive('dead');

-- one that is claimed stays with its claim
SELECT pg_temp.kill('a', 2);
SELECT claim_id AS claim, body FROM queue_claim('dead', 600, 60, 1)
    WHERE body <> '"visitor"' \gset
SELECT queue_redrive('dead', 'hospital');
SELECT count(*) FROM queue_dead_letters('dead');
SELECT message_count FROM claim_get('dead', :'claim');
SELECT claim_release('dead', :'claim', failed => true);
SELECT queue_redrive('dead', 'hospital');
SELECT count(*) FROM queue_dead_letters('dead');

-- an expired one is gone
SELECT queue_create('e', '{"_max_claim_count": 1, "_dead_letter_queue_messages_ttl": 1}');
SELECT queue_push('e', '1') > 0 AS pushed;
SELECT claim_id AS claim FROM queue_claim('e', 600, 60) \gset
SELECT claim_release('e', :'claim', failed => true);
SELECT pg_sleep(1.1);
SELECT count(*) FROM queue_dead_letters('e.dead');
SELECT queue_redrive('e.dead');
SELECT total FROM queue_stats('e');

-- rolled back
SELECT queue_create('hospital/2');
SELECT pg_temp.kill('f', 2);
BEGIN;
SELECT queue_redrive('dead', 'hospital/2');
SELECT count(*) FROM queue_dead_letters('dead');
ROLLBACK;
SELECT count(*) FROM queue_dead_letters('dead');
SELECT total FROM queue_stats('hospital/2');
BEGIN;
SAVEPOINT s;
SELECT queue_redrive('dead', 'hospital/2');
ROLLBACK TO s;
COMMIT;
SELECT count(*) FROM queue_dead_letters('dead');

-- not to itself
SELECT queue_redrive('dead', 'dead');
SELECT count(*) FROM queue_dead_letters('dead');
SELECT body, claim_count FROM queue_messages('dead');

-- many
SELECT queue_purge('dead');
SET queue.max_claim_limit = 10000;
SELECT pg_temp.kill('many', 3000);
SELECT queue_redrive('dead', "limit" => 1000);
SELECT queue_redrive('dead');
SELECT free, total FROM queue_stats('many');
RESET queue.max_claim_limit;

-- where they are not: the queue that has them is named, once
\set VERBOSITY default
SELECT pg_temp.kill('c', 1);
SELECT count(*) FROM queue_dead_letters('c');
SELECT queue_redrive('c');
SELECT queue_redrive('b', ids => '{1}');
SELECT count(*) FROM queue_dead_letters('b');
SELECT queue_redrive('dead') > 0 AS sent, queue_redrive('dead') AS none_left;
SELECT queue_redrive('unknown');
\set VERBOSITY sqlstate

-- bounds; an unknown queue has none
SELECT queue_redrive('unknown');
SELECT queue_redrive('unknown', 'hospital');
SELECT queue_redrive('dead', "limit" => 0);
SELECT queue_redrive('dead', "limit" => -1);
SELECT queue_redrive('dead', 'not a name');
SELECT queue_redrive('dead', '');
SELECT queue_redrive(NULL);

DROP EXTENSION queue;
