-- queue_messages, message_get, messages_get: reading without claiming.

CREATE EXTENSION queue;
SET queue.min_claim_ttl = 1;
SET queue.min_claim_grace = 0;
SET queue.min_message_ttl = 1;
\set VERBOSITY sqlstate

SELECT queue_push_batch('q', (SELECT array_agg(to_jsonb(i) ORDER BY i)
                              FROM generate_series(1, 12) i)) AS ids \gset
SELECT (:'ids'::bigint[])[1] AS id1, (:'ids'::bigint[])[2] AS id2,
       (:'ids'::bigint[])[3] AS id3, (:'ids'::bigint[])[12] AS id12 \gset
SELECT queue_push('q', '13', 600, 100, 5) AS id13 \gset
SELECT queue_push('q', '14', 601, 0, 9) AS id14 \gset

-- oldest first, whatever their priority; 10 by default; no delayed ones
SELECT array_agg(body) FROM queue_messages('q');
SELECT array_agg(body) FROM queue_messages('q', "limit" => 100);
SELECT array_agg(body) FROM queue_messages('q', "limit" => 3);
SELECT array_agg(body) FROM queue_messages('q', "limit" => 10000);
SELECT count(*) FROM queue_messages('q', "limit" => 0);
SELECT count(*) FROM queue_messages('q', "limit" => -1);
SELECT count(*) FROM queue_messages('q', "limit" => 10001);
SELECT count(*) FROM queue_messages('q', "limit" => NULL);
SELECT queue, body, ttl, age BETWEEN 0 AND 600 AS age, claim_id, claim_count,
       priority, created_at <= clock_timestamp() AS created
    FROM queue_messages('q', :id12, 100, true, true, true);

-- after the marker, which need not be a message
SELECT array_agg(body) FROM queue_messages('q', :id3);
SELECT array_agg(body) FROM queue_messages('q', :id3, 2);
SELECT array_agg(body) FROM queue_messages('q', :id14);
SELECT array_agg(body) FROM queue_messages('q', 0, 2);
SELECT array_agg(body) FROM queue_messages('q', -1, 2);
SELECT array_agg(body) FROM queue_messages('q', -9223372036854775808, 2);
SELECT array_agg(body) FROM queue_messages('q', 9223372036854775807, 2);
SELECT array_agg(body) FROM queue_messages('q', :id3 - 1, 1);
SELECT array_agg(body) FROM queue_messages('q', :id3 + 1, 1);
-- page by page
\set VERBOSITY terse
DO $$
DECLARE
    last bigint;
    page jsonb[];
    seen jsonb[] := '{}';
BEGIN
    LOOP
        SELECT array_agg(body ORDER BY id), max(id) INTO page, last
            FROM queue_messages('q', last, 5, include_delayed => true);
        EXIT WHEN page IS NULL;
        seen := seen || page;
    END LOOP;
    RAISE INFO '%', seen;
END
$$;
\set VERBOSITY sqlstate

-- delayed and claimed ones on request, in the same order
SELECT array_agg(body) FROM queue_messages('q', :id12, include_delayed => true);
SELECT min(claim_id) AS claim FROM queue_claim('q', 60, 60, 3) \gset
SELECT array_agg(body) FROM queue_messages('q');
SELECT body, claim_id = :'claim' AS this_claim, claim_count
    FROM queue_messages('q', include_claimed => true, "limit" => 3);
SELECT body, claim_id = :'claim' AS this_claim
    FROM queue_messages('q', include_claimed => true,
                        include_delayed => true, "limit" => 4, marker => :id12);
SELECT array_agg(body) FROM queue_messages('q', :id2, 2);

-- get: also claimed and delayed ones, in the order asked
SELECT body, claim_id = :'claim' AS this_claim, claim_count, ttl
    FROM message_get('q', :id14);
SELECT body, claim_id, claim_count, ttl FROM message_get('q', :id13);
SELECT body, claim_id = :'claim' AS this_claim
    FROM messages_get('q', ARRAY[:id14, :id3, :id1, :id13]);
SELECT body FROM messages_get('q', ARRAY[:id3, 0, :id1, -1, :id2 + 1]);
SELECT count(*) FROM messages_get('q', '{}');
SELECT count(*) FROM message_get('q', 0);
SELECT count(*) FROM message_get('q', -1);
SELECT count(*) FROM message_get('q', :id12 + 512 * 1000);
SELECT count(*) FROM message_get('q', :id12 + 32);
SELECT count(*) FROM message_get('q', 9223372036854775807);
SELECT count(*) FROM message_get('q', -9223372036854775808);
SELECT count(*) FROM message_get('q', NULL);
SELECT count(*) FROM messages_get('q', NULL);

-- a message has one queue
SELECT queue_push('other', '1') AS other1 \gset
SELECT count(*) FROM message_get('q', :other1);
SELECT count(*) FROM message_get('other', :id2);
SELECT body FROM messages_get('other', ARRAY[:id2, :other1]);
SELECT array_agg(body) FROM queue_messages('other');

-- unknown queue: nothing, and no error
SELECT count(*) FROM queue_messages('unknown');
SELECT count(*) FROM message_get('unknown', :id1);
SELECT count(*) FROM messages_get('unknown', ARRAY[:id1]);
SELECT queue_exists('unknown');

-- a claim is shown while it is live
SELECT min(claim_id) AS claim FROM queue_claim('other', 600, 60) \gset
SELECT claim_id IS NULL AS free FROM message_get('other', :other1);
SELECT claim_renew('other', :'claim', 1) IS NOT NULL AS shortened;
SELECT pg_sleep(1.1);
SELECT claim_id IS NULL AS free, claim_count FROM message_get('other', :other1);
SELECT claim_id, claim_count FROM queue_messages('other');
SELECT claim_id AS claim FROM queue_claim('other', 60, 60) \gset
SELECT claim_id = :'claim' AS claimed FROM message_get('other', :other1);
SELECT claim_release('other', :'claim');
SELECT claim_id, claim_count FROM message_get('other', :other1);

-- Without echo, not what this client pushed, in whichever way.
SET queue.client_id = 'ann';
SELECT queue_push('echo', '"ann 1"') > 0 AS pushed;
SELECT cardinality(queue_push_batch('echo', '{"\"ann 2\""}'));
SELECT cardinality(queue_post('echo', '[{"body": "ann 3"}]'));
SELECT queue_push('echo', '"ann later"', delay => 100) > 0 AS pushed;
SET queue.client_id = 'bob';
SELECT queue_push('echo', '"bob 1"') > 0 AS pushed;
SET queue.client_id = '';
SELECT queue_push('echo', '"nobody"') > 0 AS pushed;
SELECT body FROM queue_messages('echo');
SET queue.client_id = 'ann';
SELECT body FROM queue_messages('echo');
SELECT body FROM queue_messages('echo', echo => true);
SELECT body FROM queue_messages('echo', include_delayed => true);
SELECT body FROM queue_messages('echo', echo => true, include_delayed => true);
-- the limit counts what is shown
SELECT body FROM queue_messages('echo', "limit" => 1);
SET queue.client_id = 'bob';
SELECT body FROM queue_messages('echo');
SET queue.client_id = 'ANN';
SELECT count(*) FROM queue_messages('echo');
SET queue.client_id = 'an';
SELECT count(*) FROM queue_messages('echo');
SELECT set_config('queue.client_id', 'it''s "' || chr(228) || '" \', false) IS NOT NULL AS set;
SELECT queue_push('echo', '"odd"') > 0 AS pushed;
SELECT count(*) FROM queue_messages('echo');
RESET queue.client_id;
SELECT count(*) FROM queue_messages('echo');
-- claiming and getting by id ignore this
SET queue.client_id = 'ann';
SELECT body FROM queue_claim('echo', 60, 60);
RESET queue.client_id;
-- and a delayed message keeps its client id when it is due
SET queue.client_id = 'ann';
SELECT queue_push('due', '1', delay => 1) > 0 AS pushed;
SELECT pg_sleep(1.1);
SELECT count(*) FROM queue_messages('due');
SELECT count(*) FROM queue_messages('due', echo => true);
SELECT claim_id AS claim FROM queue_claim('due', 60, 60) \gset
SELECT claim_release('due', :'claim');
SELECT count(*) FROM queue_messages('due');
SELECT count(*) FROM queue_messages('due', echo => true);
RESET queue.client_id;

-- NULL is not a valid flag
SELECT count(*) FROM queue_messages('q', echo => NULL);
SELECT count(*) FROM queue_messages('q', include_claimed => NULL);
SELECT count(*) FROM queue_messages('q', include_delayed => NULL);

-- from inside queries: in the select list, per row of a table, by a cursor
SELECT (queue_messages('q', "limit" => 2)).body;
SELECT w.n, m.body FROM (VALUES (1, 'q'), (2, 'other'), (3, 'unknown')) w (n, q),
       LATERAL queue_messages(w.q, "limit" => 1) m
    ORDER BY w.n;
BEGIN;
DECLARE c CURSOR FOR SELECT body FROM queue_messages('q');
FETCH 1 FROM c;
SELECT queue_purge('q') > 0 AS purged;
SELECT count(*) FROM queue_messages('q', include_claimed => true);
CLOSE c;
ROLLBACK;
SELECT count(*) FROM queue_messages('q');

DROP EXTENSION queue;
