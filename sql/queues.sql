-- Queues: create, list, pause, count, purge, drop.

CREATE EXTENSION queue;
SET queue.min_message_ttl = 1;
\set VERBOSITY sqlstate

-- All rows of all messages, orphans too: the view shows only those of a
-- queue.
DO $$
BEGIN
    EXECUTE (SELECT 'CREATE TEMP VIEW raw AS '
             || string_agg(format('SELECT queue_id, id FROM queue_data.%I', t),
                           ' UNION ALL ')
             FROM (SELECT 'message_' || s FROM generate_series(0, 15) s
                   UNION ALL SELECT 'delayed_' || i FROM generate_series(0, 3) AS i) AS tables (t));
END
$$;

-- create: true; then false, and the queue is not changed
SELECT queue_create('mail', '{"colour": "red"}');
SELECT queue_create('mail', '{"colour": "blue"}');
SELECT queue_create('plain');
SELECT queue_create(q => 'named', metadata => '{"a": [1, {"b": null}]}');
SELECT name, metadata, paused,
       created_at BETWEEN now() - interval '1 h' AND clock_timestamp()
           AS created_lately
    FROM queue_get('mail');
SELECT name, metadata FROM queue_get('plain');
SELECT name, metadata FROM queue_get('named');
SELECT count(*) FROM queue_get('unknown');
SELECT queue_exists('mail'), queue_exists('unknown'), queue_exists('MAIL');

-- created_at is the server's clock, not the start of the transaction
BEGIN;
SELECT pg_sleep(0.01);
SELECT queue_create('late');
SELECT created_at > now() AS by_the_clock FROM queue_get('late');
ROLLBACK;

-- A creation that is rolled back did not happen.
BEGIN;
SELECT queue_create('undone');
SELECT queue_exists('undone');
ROLLBACK;
SELECT queue_exists('undone');
BEGIN;
SAVEPOINT s;
SELECT queue_create('undone');
ROLLBACK TO s;
SELECT queue_exists('undone');
SELECT queue_create('undone');
COMMIT;
SELECT queue_exists('undone');
SELECT queue_drop('undone');

-- names
SELECT queue_create('azAZ09_-.:/');
SELECT queue_create('/');
SELECT queue_create('-1');
SELECT queue_create('Mail');
SELECT queue_create(repeat('n', 64));
SELECT length(name) FROM queue_get(repeat('n', 64));
SELECT queue_create(repeat('n', 65));
SELECT queue_create('');
SELECT queue_create(' ');
SELECT queue_create('a b');
SELECT queue_create('a"b');
SELECT queue_create('a''b');
SELECT queue_create('a;b');
SELECT queue_create('a\b');
SELECT queue_create('a,b');
SELECT queue_create('a@b');
SELECT queue_create('a+b');
SELECT queue_create('a*');
SELECT queue_create('a%');
SELECT queue_create(E'a\n');
SELECT queue_create(E'\ta');
SELECT queue_create(E'a\x7f');
SELECT queue_create('a' || chr(228));
SELECT queue_create(repeat(chr(228), 40));
SELECT queue_create(repeat('n', 1000000));
SELECT queue_create(NULL);
SELECT count(*) FROM queue_data.queue;

-- list: by name (as bytes), after the marker, 10 by default
SELECT count(queue_create(format('list/%s', to_char(i, 'FM00'))))
    FROM generate_series(1, 14) i;
SELECT name FROM queue_list("limit" => 100);
SELECT count(*) FROM queue_list();
SELECT count(*), min(name COLLATE "C"), max(name COLLATE "C") FROM queue_list('list/');
SELECT name, metadata, paused, created_at IS NOT NULL AS created
    FROM queue_list('list/13');
SELECT name FROM queue_list('list/13', 1);
-- the marker need not be a queue
SELECT name FROM queue_list('list/13x', 2);
SELECT name FROM queue_list('zzz');
SELECT name FROM queue_list('', 2);
SELECT count(*) FROM queue_list(NULL, 1);
SELECT count(*) FROM queue_list(NULL, 10000);
SELECT count(*) FROM queue_list(NULL, 0);
SELECT count(*) FROM queue_list(NULL, -1);
SELECT count(*) FROM queue_list(NULL, 10001);
SELECT count(*) FROM queue_list(NULL, NULL);
-- the pattern is a regular expression; the limit counts what matches
SELECT name FROM queue_list(pattern => '^list/0[1-3]$');
SELECT name FROM queue_list(pattern => 'ail');
SELECT name FROM queue_list(pattern => 'MAIL|plain');
SELECT name FROM queue_list(pattern => '^list/1', "limit" => 2);
SELECT name FROM queue_list('list/11', 2, '^list/1');
SELECT name FROM queue_list(pattern => 'no such queue');
SELECT count(*) FROM queue_list(NULL, 100, '');
SELECT count(*) FROM queue_list(pattern => '(');
SELECT count(*) FROM queue_list(pattern => '*');
-- page by page
\set VERBOSITY terse
DO $$
DECLARE
    page text[];
    seen text[] := '{}';
    last text;
BEGIN
    LOOP
        page := ARRAY(SELECT name FROM queue_list(last, 4));
        EXIT WHEN cardinality(page) = 0;
        seen := seen || page;
        last := page[cardinality(page)];
    END LOOP;
    RAISE INFO 'pages show all, in order: %',
        seen = ARRAY(SELECT name FROM queue_data.queue ORDER BY name);
END
$$;
\set VERBOSITY sqlstate

-- pause and resume
SELECT queue_push_batch('mail', '{1, 2, 3, 4}') IS NOT NULL AS pushed;
SELECT claim_id AS claim, id AS claimed FROM queue_claim('mail', 60, 60, 1) \gset
SELECT queue_pause('mail');
SELECT queue_pause('mail');
SELECT paused FROM queue_get('mail');
SELECT name FROM queue_list(pattern => '^(mail|plain)$') WHERE paused;
-- pushes are allowed, nothing is handed out
SELECT queue_push('mail', '5') > 0 AS pushed;
SELECT cardinality(queue_push_batch('mail', '{6}'));
SELECT cardinality(queue_post('mail', '[{"body": 7}]'));
SELECT count(*) FROM queue_claim('mail', 60, 60);
SELECT count(*) FROM queue_claim_any('{mail}', 60, 60);
SELECT count(*) FROM queue_claim_any(NULL, 60, 60);
SELECT count(*) FROM claim_next('mail', NULL, 60, 60);
SELECT count(*) FROM queue_pop('mail', 10);
-- everything else goes on, also what needs a claim
SELECT array_agg(body) FROM queue_messages('mail', include_claimed => true);
SELECT free, claimed, total FROM queue_stats('mail');
SELECT message_count FROM claim_get('mail', :'claim');
SELECT claim_renew('mail', :'claim', 120) > clock_timestamp() AS renewed;
SELECT message_delete('mail', :claimed, :'claim');
SELECT queue_resume('mail');
SELECT queue_resume('mail');
SELECT paused FROM queue_get('mail');
SELECT array_agg(body) FROM queue_claim('mail', 60, 60);
-- claim_next completes the given claim, also if it gets nothing new
SELECT queue_push_batch('next', '{1, 2}') IS NOT NULL AS pushed;
SELECT claim_id AS claim FROM queue_claim('next', 60, 60, 1) \gset
SELECT queue_pause('next');
SELECT count(*) FROM claim_next('next', :'claim', 60, 60);
SELECT free, claimed FROM queue_stats('next');
SELECT queue_drop('next');
-- rolled back
BEGIN;
SELECT queue_pause('mail');
ROLLBACK;
SELECT paused FROM queue_get('mail');
SELECT queue_pause('unknown');
SELECT queue_resume('unknown');

-- stats: exact
SELECT * FROM queue_stats('plain');
SELECT * FROM queue_stats('unknown');
SELECT queue_push('stats', '1') AS id1 \gset
SELECT queue_push('stats', '2') AS id2 \gset
SELECT queue_push('stats', '3', delay => 100) AS id3 \gset
SELECT free, claimed, delayed, total, oldest_id = :id1 AS oldest_id,
       newest_id = :id3 AS newest_id
    FROM queue_stats('stats');
SELECT queue_push('stats', '4', 1) > 0 AS pushed;
SELECT count(*) FROM queue_claim('stats', 100, 100, 1);
SELECT pg_sleep(1.1);
-- 4 has expired and is not counted
SELECT free, claimed, delayed, total, oldest_id = :id1 AS oldest_id,
       newest_id = :id3 AS newest_id,
       oldest_age BETWEEN 1 AND 600 AS oldest_age,
       newest_age BETWEEN 1 AND 600 AS newest_age,
       oldest_created < newest_created AS created,
       oldest_created = (SELECT created_at FROM message_get('stats', :id1))
           AS oldest_created,
       newest_created = (SELECT created_at FROM message_get('stats', :id3))
           AS newest_created
    FROM queue_stats('stats');
-- what this transaction did is counted
BEGIN;
SELECT queue_push('stats', '5') > 0 AS pushed;
SELECT message_delete('stats', :id2);
SELECT free, claimed, delayed, total FROM queue_stats('stats');
ROLLBACK;
SELECT free, claimed, delayed, total FROM queue_stats('stats');

-- purge: claimed and delayed messages too; expired ones are not counted
SELECT claim_id AS claim FROM claim_get('stats',
    (SELECT claim_id FROM message_get('stats', :id1))) \gset
BEGIN;
SELECT queue_purge('stats');
SELECT free, claimed, delayed, total FROM queue_stats('stats');
ROLLBACK;
SELECT free, claimed, delayed, total FROM queue_stats('stats');
SELECT queue_purge('stats');
SELECT * FROM queue_stats('stats');
SELECT queue_exists('stats');
SELECT queue_purge('stats');
SELECT queue_purge('unknown');
-- the claim ends with its messages
SELECT count(*) FROM claim_get('stats', :'claim');
SELECT claim_renew('stats', :'claim', 100);
SELECT claim_release('stats', :'claim');
SELECT message_delete('stats', :id1, :'claim');
SELECT message_delete('stats', :id1);
-- and the queue works as before
SELECT queue_push('stats', '6') > 0 AS pushed;
SELECT body FROM queue_claim('stats', 60, 60);

-- drop deletes the messages
SELECT queue_push('drop', '1', dedup_key => 'k') > 0 AS pushed;
SELECT queue_push('drop', '2', delay => 100, dedup_key => 'l') > 0 AS pushed;
SELECT queue_push('drop', '3') AS id3 \gset
SELECT claim_id AS claim FROM queue_claim('drop', 100, 100, 1) \gset
SELECT queue_pause('drop');
BEGIN;
SELECT queue_drop('drop');
SELECT queue_drop('drop');
SELECT queue_exists('drop');
SELECT count(*) FROM queue_get('drop');
SELECT * FROM queue_stats('drop');
SELECT count(*) FROM queue_messages('drop');
ROLLBACK;
SELECT free, claimed, delayed, total FROM queue_stats('drop');
SELECT queue_drop('drop');
SELECT queue_exists('drop');
SELECT queue_drop('drop');
SELECT queue_drop('unknown');
SELECT message_delete('drop', :id3);
SELECT message_delete('drop', :id3, :'claim');
SELECT claim_renew('drop', :'claim', 100);
-- a queue of that name is another queue
SELECT queue_push('drop', '4', dedup_key => 'k') > 0 AS pushed;
SELECT paused FROM queue_get('drop');
SELECT body FROM queue_messages('drop', include_claimed => true,
                                include_delayed => true);
SELECT body, claim_count FROM queue_claim('drop', 60, 60);
-- drop, create and push in one transaction
BEGIN;
SELECT queue_drop('drop');
SELECT queue_create('drop', '{"new": true}');
SELECT queue_push('drop', '5') > 0 AS pushed;
COMMIT;
SELECT metadata FROM queue_get('drop');
SELECT body FROM queue_claim('drop', 60, 60);
BEGIN;
SELECT queue_create('drop/2');
SELECT queue_push('drop/2', '1') > 0 AS pushed;
SELECT queue_drop('drop/2');
COMMIT;
SELECT queue_exists('drop/2');
BEGIN;
SAVEPOINT s;
SELECT queue_drop('drop');
ROLLBACK TO s;
SELECT queue_push('drop', '6') > 0 AS pushed;
COMMIT;
SELECT body FROM queue_claim('drop', 60, 60);

-- no orphan
SELECT count(*) AS orphans FROM raw
    WHERE queue_id NOT IN (SELECT id FROM queue_data.queue);
SELECT count(*) AS orphaned_keys FROM queue_data.dedup_key
    WHERE queue_id NOT IN (SELECT id FROM queue_data.queue);
SELECT count(queue_drop(name)) > 20 AS dropped_all
    FROM queue_list("limit" => 10000);
SELECT count(*) FROM queue_list();
SELECT count(*) FROM raw;
SELECT count(*) FROM queue_data.dedup_key;

DROP VIEW raw;
DROP EXTENSION queue;
