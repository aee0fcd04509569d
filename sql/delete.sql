-- message_delete and messages_delete, with a claim and without.

CREATE EXTENSION queue;
SET queue.min_claim_ttl = 1;
SET queue.min_claim_grace = 0;
SET queue.min_message_ttl = 1;
\set VERBOSITY sqlstate

-- without a claim
SELECT queue_push('q', '1') AS id1 \gset
SELECT queue_push('q', '2') AS id2 \gset
SELECT queue_push('q', '3', delay => 100) AS id3 \gset
SELECT message_delete('q', :id1);
SELECT message_delete('q', :id1);
SELECT message_delete('q', :id3);
SELECT message_delete('q', 0);
SELECT message_delete('q', -1);
SELECT message_delete('q', 9223372036854775807);
SELECT message_delete('q', :id2 + 1);
SELECT message_delete('unknown', :id2);
SELECT queue_create('other');
SELECT message_delete('other', :id2);
SELECT body FROM queue_messages('q', include_delayed => true);
SELECT message_delete('q', :id2, NULL);
SELECT total FROM queue_stats('q');

-- an expired message is none
SELECT queue_push('q', '4', 1) AS id4 \gset
SELECT pg_sleep(1.1);
SELECT message_delete('q', :id4);
SELECT messages_delete('q', ARRAY[:id4]);

-- under a claim
SELECT queue_push_batch('q', '{1, 2, 3, 4, 5, 6}') AS ids \gset
SELECT (:'ids'::bigint[])[1] AS id1, (:'ids'::bigint[])[2] AS id2,
       (:'ids'::bigint[])[3] AS id3, (:'ids'::bigint[])[4] AS id4,
       (:'ids'::bigint[])[5] AS id5, (:'ids'::bigint[])[6] AS id6 \gset
SELECT min(claim_id) AS a, count(*) FROM queue_claim('q', 600, 60, 2) \gset
SELECT min(claim_id) AS b, count(*) FROM queue_claim('q', 600, 60, 2) \gset
SELECT :'a' <> :'b' AS differ;
-- the message is claimed, and no claim is named
SELECT message_delete('q', :id1);
SELECT message_delete('q', :id1, NULL);
SELECT messages_delete('q', ARRAY[:id1]);
-- the claim is live, the message is in another claim, or in none
SELECT message_delete('q', :id1, :'b');
SELECT message_delete('q', :id3, :'a');
SELECT message_delete('q', :id5, :'a');
-- the claim is unknown or malformed; whether or not the message is there
SELECT message_delete('q', :id1, 'no such claim');
SELECT message_delete('q', :id5, 'no such claim');
SELECT message_delete('q', 0, 'no such claim');
SELECT message_delete('q', :id1, '');
SELECT message_delete('q', :id1, ' ' || :'a');
SELECT message_delete('q', :id1, :'a' || 'a');
SELECT message_delete('q', :id1, left(:'a', -1));
SELECT message_delete('q', :id1, repeat('0', length(:'a')));
SELECT message_delete('q', :id1, repeat('f', length(:'a')));
SELECT message_delete('q', :id1, reverse(:'a'));
SELECT message_delete('q', :id1, 'x' || chr(228) || '''"\');
SELECT message_delete('other', :id1, :'a');
SELECT message_delete('unknown', :id1, :'a');
SELECT free, claimed, total FROM queue_stats('q');
-- the right claim
SELECT message_delete('q', :id1, :'a');
-- the claim is live, and the message gone
SELECT message_delete('q', :id1, :'a');
SELECT message_delete('q', :id1);
SELECT message_delete('q', 0, :'a');
-- the claim ends with its last message
SELECT message_delete('q', :id2, :'a');
SELECT message_delete('q', :id2, :'a');
SELECT message_delete('q', :id5, :'a');
SELECT message_delete('q', :id3, :'a');
-- released
SELECT claim_release('q', :'b');
SELECT message_delete('q', :id3, :'b');
SELECT body FROM message_get('q', :id3);
-- released, and claimed by another
SELECT min(claim_id) AS c, count(*) FROM queue_claim('q', 1, 60, 2) \gset
SELECT message_delete('q', :id3, :'b');
-- expired: with the claim id the worker gets an error; without it any session
-- can delete the message
SELECT pg_sleep(1.1);
SELECT message_delete('q', :id3, :'c');
SELECT message_delete('q', :id3);
-- expired, and claimed by another
SELECT min(claim_id) AS d, count(*) FROM queue_claim('q', 600, 60, 1) \gset
SELECT message_delete('q', :id4, :'c');
SELECT message_delete('q', :id4);
SELECT message_delete('q', :id4, :'d');
SELECT body FROM queue_messages('q', include_claimed => true);

-- QU001 rolls back the worker's own work.
CREATE TABLE effects (n int);
SELECT min(claim_id) AS e FROM queue_claim('q', 1, 60, 1) \gset
SELECT pg_sleep(1.1);
BEGIN;
INSERT INTO effects VALUES (1);
SELECT message_delete('q', :id5, :'e');
COMMIT;
SELECT count(*) FROM effects;
SELECT min(claim_id) AS f FROM queue_claim('q', 600, 60, 1) \gset
BEGIN;
INSERT INTO effects VALUES (2);
SELECT message_delete('q', :id5, :'f');
COMMIT;
SELECT n FROM effects;
DROP TABLE effects;

-- A delete that is rolled back did not happen.
SELECT min(claim_id) AS g FROM queue_claim('q', 600, 60, 1) \gset
BEGIN;
SELECT message_delete('q', :id6, :'g');
SELECT count(*) FROM message_get('q', :id6);
SELECT message_delete('q', :id6, :'g');
ROLLBACK;
SELECT claim_id = :'g' AS claimed FROM message_get('q', :id6);
BEGIN;
SAVEPOINT s;
SELECT message_delete('q', :id6, :'g');
ROLLBACK TO s;
SELECT message_delete('q', :id6, :'g');
COMMIT;
SELECT total FROM queue_stats('q');

-- several: a number, all or nothing
SELECT queue_push_batch('m', '{1, 2, 3, 4, 5, 6, 7, 8}') AS ids \gset
SELECT (:'ids'::bigint[])[1] AS id1, (:'ids'::bigint[])[2] AS id2,
       (:'ids'::bigint[])[3] AS id3, (:'ids'::bigint[])[4] AS id4,
       (:'ids'::bigint[])[5] AS id5, (:'ids'::bigint[])[6] AS id6,
       (:'ids'::bigint[])[7] AS id7, (:'ids'::bigint[])[8] AS id8 \gset
SELECT min(claim_id) AS a, count(*) FROM queue_claim('m', 600, 60, 3) \gset
SELECT min(claim_id) AS b, count(*) FROM queue_claim('m', 600, 60, 1) \gset
SELECT messages_delete('m', ARRAY[:id5, :id6, :id1]);
SELECT messages_delete('m', ARRAY[:id1, :id2, :id4], :'a');
SELECT messages_delete('m', ARRAY[:id1, :id2, :id5], :'a');
SELECT messages_delete('m', ARRAY[:id1, :id2], 'no such claim');
SELECT messages_delete('m', ARRAY[0], 'no such claim');
SELECT messages_delete('m', '{}', 'no such claim');
SELECT free, claimed FROM queue_stats('m');
SELECT messages_delete('m', '{}');
SELECT messages_delete('m', '{}', :'a');
SELECT messages_delete('unknown', ARRAY[:id1]);
SELECT messages_delete('unknown', ARRAY[:id1], :'a');
SELECT messages_delete('other', ARRAY[:id5]);
-- those that are gone do not count; nor does one count twice
SELECT messages_delete('m', ARRAY[:id6, 0, :id6, :id5, -1, 9223372036854775807]);
SELECT messages_delete('m', ARRAY[:id1, :id1, 0, :id5], :'a');
SELECT messages_delete('m', ARRAY[:id1, :id2], :'a');
SELECT messages_delete('m', ARRAY[:id3, :id3], :'a');
SELECT messages_delete('m', ARRAY[:id3], :'a');
SELECT messages_delete('m', ARRAY[:id4], :'b');
SELECT body FROM queue_messages('m', include_claimed => true);
-- after the claims' end
SELECT min(claim_id) AS c, count(*) FROM queue_claim('m', 1, 60) \gset
SELECT pg_sleep(1.1);
SELECT messages_delete('m', ARRAY[:id7, :id8], :'c');
SELECT messages_delete('m', ARRAY[:id7, :id8]);

-- NULL
SELECT message_delete('m', NULL);
SELECT messages_delete('m', NULL);
SELECT messages_delete('m', NULL, 'no such claim');

-- many, in whichever order
SELECT queue_push_batch('many', (SELECT array_agg(to_jsonb(i))
                                 FROM generate_series(1, 3000) i)) AS ids \gset
SELECT messages_delete('many', (SELECT array_agg(i ORDER BY i DESC)
                                FROM unnest(:'ids'::bigint[]) i
                                WHERE i <> (:'ids'::bigint[])[1234]));
SELECT body FROM queue_messages('many');

-- Claimed and deleted in one statement.
SELECT queue_push_batch('one', '{1, 2, 3}') IS NOT NULL AS pushed;
SELECT body, message_delete('one', id, claim_id) FROM queue_claim('one', 60, 60);
SELECT total FROM queue_stats('one');
-- pushed and deleted in one transaction
BEGIN;
SELECT queue_push('one', '4') AS id4 \gset
SELECT message_delete('one', :id4);
SELECT message_delete('one', :id4);
COMMIT;
SELECT total FROM queue_stats('one');

DROP EXTENSION queue;
