-- A message is found in any segment of the ring, also in another one than that
-- in its id; and pushes go to the active one.

CREATE EXTENSION queue;
-- Only this session moves messages here: a template database has no worker.
ALTER DATABASE :"DBNAME" IS_TEMPLATE true;
DO $$
BEGIN
    SET LOCAL client_min_messages = error;  -- one may have ended already
    WHILE EXISTS (SELECT FROM pg_stat_activity
                  WHERE datname = current_database() AND backend_type LIKE 'queue %')
          OR EXISTS (SELECT FROM queue_data.queue_workers
                     WHERE database = current_database() AND state <> 'wanted')
    LOOP
        PERFORM pg_terminate_backend(pid) FROM pg_stat_activity
            WHERE datname = current_database() AND backend_type LIKE 'queue %';
        PERFORM pg_sleep(0.01);
        PERFORM pg_stat_clear_snapshot();
    END LOOP;
END
$$;

SET queue.min_claim_ttl = 1;
\set VERBOSITY sqlstate

-- moves a message, under its id
CREATE FUNCTION pg_temp.move(from_segment int, to_segment int, message bigint)
RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    EXECUTE format('INSERT INTO queue_data.message_%s
                    SELECT * FROM queue_data.message_%s WHERE id = $1',
                   to_segment, from_segment) USING message;
    EXECUTE format('DELETE FROM queue_data.message_%s WHERE id = $1',
                   from_segment) USING message;
END
$$;

-- Makes a segment the active one.  Sessions learn of it by an invalidation
-- message for the table, which a plain UPDATE does not send.
CREATE FUNCTION pg_temp.activate(segment int) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    UPDATE queue_data.ring SET active = segment;
    ALTER TABLE queue_data.ring SET (fillfactor = 100);
END
$$;

SELECT queue_push_batch('q', '{1, 2, 3, 4, 5, 6, 7, 8}') AS ids \gset
SELECT (:'ids'::bigint[])[1] AS id1, (:'ids'::bigint[])[2] AS id2,
       (:'ids'::bigint[])[3] AS id3, (:'ids'::bigint[])[4] AS id4,
       (:'ids'::bigint[])[5] AS id5, (:'ids'::bigint[])[6] AS id6,
       (:'ids'::bigint[])[7] AS id7, (:'ids'::bigint[])[8] AS id8 \gset
SELECT DISTINCT relation FROM queue_data.message;
SELECT pg_temp.move(0, 5, :id2), pg_temp.move(0, 15, :id3),
       pg_temp.move(0, 1, :id4), pg_temp.move(0, 9, :id5);
SELECT relation, body, state FROM queue_data.message ORDER BY id;

-- listed in order, got, counted
SELECT array_agg(body) FROM queue_messages('q');
SELECT array_agg(body) FROM queue_messages('q', :id2, 2);
SELECT body FROM message_get('q', :id3);
SELECT array_agg(body) FROM messages_get('q', ARRAY[:id5, :id1, :id3]);
SELECT free, total, oldest_id = :id1 AS oldest, newest_id = :id8 AS newest
    FROM queue_stats('q');
-- claimed together, in order, under one claim id, which finds all of them
SELECT min(claim_id) AS claim, array_agg(body) AS bodies, count(DISTINCT claim_id) AS claims
    FROM queue_claim('q', 600, 60, 6) \gset
SELECT :'bodies' AS bodies, :claims AS claims;
SELECT body FROM claim_messages('q', :'claim');
SELECT message_count FROM claim_get('q', :'claim');
SELECT relation, body, state FROM queue_data.message ORDER BY id;
SELECT claim_renew('q', :'claim', 500) IS NOT NULL AS renewed;
SELECT message_delete('q', :id3, :'claim');
SELECT messages_delete('q', ARRAY[:id1, :id2], :'claim');
SELECT message_delete('q', :id4);
SELECT message_delete('q', :id7, :'claim');
SELECT claim_release('q', :'claim', failed => true);
SELECT array_agg(body) FROM queue_messages('q');
SELECT min(claim_id) AS claim FROM queue_claim('q', 600, 60, 2) \gset
SELECT claim_complete('q', :'claim');
SELECT array_agg(body) FROM queue_messages('q');
-- moved while claimed
SELECT min(claim_id) AS claim FROM queue_claim('q', 600, 60, 1) \gset
SELECT pg_temp.move(0, 3, :id6);
SELECT pg_temp.activate(0);
SELECT body FROM claim_messages('q', :'claim');
SELECT message_delete('q', :id6, :'claim');
SELECT pg_temp.move(0, 7, :id7);
SELECT pg_temp.activate(0);
SELECT body FROM queue_pop('q', 10);
SELECT total FROM queue_stats('q');
-- deleted without a claim, purged and dropped
SELECT queue_push_batch('q', '{1, 2, 3}') AS ids \gset
SELECT pg_temp.move(0, 11, id) FROM queue_messages('q');
SELECT message_delete('q', (:'ids'::bigint[])[1]);
SELECT queue_purge('q');
SELECT queue_push('q', '4') AS id4 \gset
SELECT pg_temp.move(0, 12, :id4);
SELECT queue_drop('q');
SELECT count(*) FROM queue_data.message_11;
SELECT count(*) FROM queue_data.message_12;

-- A message keeps its deduplication key in any segment.
SELECT queue_push('k', '1', dedup_key => 'k') AS id1 \gset
SELECT pg_temp.move(0, 4, :id1);
SELECT queue_push('k', '2', dedup_key => 'k') IS NULL AS dropped;
SELECT claim_id AS claim FROM queue_claim('k', 600, 60) \gset
SELECT queue_push('k', '3', dedup_key => 'k') IS NULL AS dropped;
SELECT queue_drop('k');

-- Pushes go to the active segment, at once and in the same session.
SELECT queue_push('a', '0') > 0 AS pushed;
SELECT pg_temp.activate(5);
SELECT queue_push('a', '5') > 0 AS pushed;
SELECT cardinality(queue_push_batch('a', '{6, 7}'));
SELECT cardinality(queue_post('a', '[{"body": 8}]'));
SELECT relation, body FROM queue_data.message ORDER BY id;
SELECT pg_temp.activate(15);
SELECT queue_push('a', '15') > 0 AS pushed;
SELECT pg_temp.activate(0);
SELECT queue_push('a', '16') > 0 AS pushed;
SELECT relation, body FROM queue_data.message WHERE body >= '15' ORDER BY id;
SELECT array_agg(body) FROM queue_messages('a');
SELECT array_agg(body), count(DISTINCT claim_id) AS claims FROM queue_claim('a', 600, 60);
SELECT claim_id AS claim FROM queue_messages('a', "limit" => 1, include_claimed => true) \gset
SELECT claim_complete('a', :'claim');
SELECT total FROM queue_stats('a');
-- dead letters go to the active segment, too
SELECT queue_create('b', '{"_max_claim_count": 1}');
SELECT queue_push('b', '1') AS id1 \gset
SELECT relation FROM queue_data.message;
SELECT pg_temp.activate(8);
SELECT id = :id1 AS same_id, claim_id AS claim FROM queue_claim('b', 600, 60) \gset
SELECT :'same_id' AS same_id;
SELECT relation, state FROM queue_data.message;
SELECT claim_release('b', :'claim', failed => true);
SELECT relation, queue, state, attributes - 'origin_id' - 'died_at' AS attributes
    FROM queue_data.message;
SELECT queue_redrive('b.dead');
SELECT relation, queue, state, attributes FROM queue_data.message;
SELECT queue_purge('b');
SELECT pg_temp.activate(0);

-- A segment that was empty when it became active, and into which other sessions
-- have pushed since, is scanned as well.
SELECT queue_push_batch('f', '{1, 2, 3, 4, 5, 6}') AS ids \gset
SELECT (:'ids'::bigint[])[4] AS id4, (:'ids'::bigint[])[5] AS id5,
       (:'ids'::bigint[])[6] AS id6 \gset
SELECT min(claim_id) AS claim FROM queue_claim('f', 600, 60, 1) \gset
SELECT pg_temp.activate(14);
SELECT array_agg(body) FROM queue_messages('f');
SELECT pg_temp.move(0, 14, (:'ids'::bigint[])[1]), pg_temp.move(0, 14, :id4),
       pg_temp.move(0, 14, :id5), pg_temp.move(0, 14, :id6);
SELECT body FROM claim_messages('f', :'claim');
SELECT message_count FROM claim_get('f', :'claim');
SELECT array_agg(body) FROM queue_messages('f');
SELECT body FROM message_get('f', :id6);
SELECT free, claimed FROM queue_stats('f');
SELECT claim_renew('f', :'claim', 600) IS NOT NULL AS renewed;
SELECT claim_complete('f', :'claim');
SELECT message_delete('f', :id5);
SELECT array_agg(body) FROM queue_claim('f', 600, 60);
SELECT queue_drop('f');
SELECT pg_temp.activate(0);

-- Messages of several priorities over several segments: one order.
SELECT queue_push_batch('p', '{"\"5/1\"", "\"5/2\""}', priority => 5) AS high \gset
SELECT queue_push_batch('p', '{"\"0/1\"", "\"0/2\""}') AS low \gset
SELECT pg_temp.move(0, 6, (:'high'::bigint[])[1]), pg_temp.move(0, 2, (:'low'::bigint[])[1]);
SELECT pg_temp.activate(3);
SELECT queue_push('p', '"5/3"', priority => 5) > 0 AS pushed;
SELECT queue_push('p', '"0/3"') > 0 AS pushed;
SELECT body FROM queue_messages('p');
SELECT body FROM queue_claim('p', 600, 60, 2);
SELECT body FROM queue_pop('p', 2);
SELECT body FROM queue_claim('p', 600, 60);
SELECT queue_drop('p');
SELECT pg_temp.activate(0);

-- What users add to the tables: an index is kept up to date, although the
-- executor is not used; what is not supported is refused.
CREATE INDEX regress_queue_index ON queue_data.message_0 (created_at, id);
SELECT queue_push('i', '1') AS id1 \gset
SELECT count(queue_push('i', to_jsonb(i))) FROM generate_series(2, 500) i;
SELECT min(claim_id) AS claim FROM queue_claim('i', 600, 60, 100) \gset
SELECT claim_complete('i', :'claim');
SET enable_seqscan = off;
SET enable_bitmapscan = off;
SELECT count(*), sum(body::int) FROM queue_data.message_0
    WHERE created_at > '-infinity';
SET enable_indexscan = off;
SET enable_seqscan = on;
SELECT count(*), sum(body::int) FROM queue_data.message_0
    WHERE created_at > '-infinity';
RESET enable_seqscan;
RESET enable_bitmapscan;
RESET enable_indexscan;
DROP INDEX queue_data.regress_queue_index;
CREATE INDEX regress_queue_index ON queue_data.message_0 ((body ->> 'x'));
SELECT queue_push('i', '501');
DROP INDEX queue_data.regress_queue_index;
CREATE FUNCTION regress_queue_trigger() RETURNS trigger
LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END';
CREATE TRIGGER regress_queue_trigger BEFORE INSERT ON queue_data.message_0
    FOR EACH ROW EXECUTE FUNCTION regress_queue_trigger();
SELECT queue_push('i', '501');
SELECT count(*) FROM queue_claim('i', 600, 60);
DROP TRIGGER regress_queue_trigger ON queue_data.message_0;
DROP FUNCTION regress_queue_trigger();
SELECT queue_push('i', '501') > 0 AS pushed;
SELECT total FROM queue_stats('i');
SELECT queue_drop('i');
SELECT queue_drop('a'), queue_drop('b'), queue_drop('b.dead');

-- The fillfactor leaves room on the page for the row versions that claims write: all
-- of these are HOT updates, but perhaps for those on the first page.
SELECT cardinality(queue_push_batch('hot',
           array_fill(to_jsonb(repeat('x', 206)), ARRAY[1000]))) AS pushed;
SELECT pg_stat_force_next_flush();
BEGIN;
SELECT sum((SELECT count(*) FROM queue_claim('hot', 600 + call, 60, 100))) AS claimed
    FROM generate_series(1, 10) AS call;
SELECT sum(pg_stat_get_xact_tuples_updated(oid)) AS updates,
       sum(pg_stat_get_xact_tuples_hot_updated(oid)) > 990 AS hot
    FROM pg_class WHERE relnamespace = 'queue_data'::regnamespace
    AND relname LIKE 'message\_%' AND relkind = 'r';
COMMIT;
SELECT queue_drop('hot');

-- The view shows the privileges as text.
SELECT queue_push('v', '"free"', 600, 0, 3) AS free \gset
SELECT queue_push('v', '"delayed"', delay => 1000) > 0 AS pushed;
SET queue.client_id = 'me';
SET queue.project = 'mine';
SELECT queue_push('v', '"claimed"') > 0 AS pushed;
SELECT count(*) FROM queue_claim('v', 600, 60);
SELECT queue_push('v', '"expired"') AS expired \gset
RESET queue.client_id;
RESET queue.project;
UPDATE queue_data.message_0
    SET created_at = now() - make_interval(secs => ttl) WHERE id = :expired;
SELECT relation, project, queue, body, state, priority, claim_count, client_id,
       claimed_at < claimed_until AS claimed, due_at > created_at AS due
    FROM queue_data.message ORDER BY id;

DROP EXTENSION queue;
ALTER DATABASE :"DBNAME" IS_TEMPLATE false;
