-- Projects: the same name in another project is another queue.

CREATE EXTENSION queue;
SET queue.min_claim_ttl = 1;
\set VERBOSITY sqlstate

SELECT queue_push('q', '"no project"') AS none1 \gset
SELECT queue_pause('q');
SET queue.project = 'red';
SELECT queue_exists('q');
SELECT queue_create('q', '{"of": "red"}');
SELECT queue_push('q', '"red"') AS red1 \gset
SELECT queue_push('only red', '1');
SELECT queue_push('only-red', '"red"') > 0 AS pushed;
SET queue.project = 'RED';
SELECT queue_exists('q');
SET queue.project = 'blue';
SELECT queue_create('q', '{"of": "blue"}');
SELECT queue_push('q', '"blue"') AS blue1 \gset

-- lists and gets its own
SELECT name, metadata, paused FROM queue_list();
SELECT body FROM queue_messages('q');
SELECT total FROM queue_stats('q');
SELECT count(*) FROM queue_get('only-red');
SELECT queue_exists('only-red');
-- ids of another project's messages are unknown
SELECT count(*) FROM message_get('q', :red1);
SELECT body FROM messages_get('q', ARRAY[:none1, :red1, :blue1]);
SELECT message_delete('q', :red1);
SELECT messages_delete('q', ARRAY[:none1, :red1]);

-- so are the ids of its claims
SELECT claim_id AS blue, body FROM queue_claim('q', 600, 60) \gset
SELECT :'body';
SET queue.project = 'red';
SELECT name, metadata, paused FROM queue_list();
SELECT count(*) FROM claim_get('q', :'blue');
SELECT count(*) FROM claim_messages('q', :'blue');
SELECT claim_renew('q', :'blue', 600);
SELECT claim_release('q', :'blue', failed => true);
SELECT claim_complete('q', :'blue');
SELECT message_delete('q', :blue1, :'blue');
SELECT message_delete('q', :red1, :'blue');
SELECT count(*) FROM claim_next('q', :'blue', 600, 60);
SELECT body, queue FROM queue_claim('q', 600, 60);
-- NULL is all of this project
SELECT body, queue FROM queue_claim_any(NULL, 600, 60);
SELECT count(*) FROM queue_claim_any(NULL, 600, 60);
SELECT count(*) FROM queue_pop('q');

-- a change of one does not change the other
SELECT queue_update('q', '{"seen": true}');
SELECT queue_pause('q');
SELECT queue_purge('q');
SELECT queue_drop('q');
SET queue.project = 'blue';
SELECT name, metadata, paused FROM queue_list();
SELECT free, claimed FROM queue_stats('q');
SELECT message_count FROM claim_get('q', :'blue');
RESET queue.project;
SELECT name, metadata, paused FROM queue_list();
SELECT free, claimed FROM queue_stats('q');

-- The project of the call is used, not that of the start of the transaction.
BEGIN;
SET LOCAL queue.project = 'green';
SELECT queue_push('q', '"green"') > 0 AS pushed;
COMMIT;
SELECT queue_resume('q');
SELECT body FROM queue_pop('q', 10);
SET queue.project = 'green';
SELECT body FROM queue_pop('q', 10);
-- a deduplication key belongs to a queue of a project
SELECT queue_push('q', '1', dedup_key => 'k') IS NOT NULL AS pushed;
SELECT queue_push('q', '1', dedup_key => 'k') IS NOT NULL AS pushed;
SET queue.project = 'blue';
SELECT queue_push('q', '1', dedup_key => 'k') IS NOT NULL AS pushed;

-- dead letters and redrives stay in the project
SET queue.project = 'red';
SELECT queue_create('q', '{"_max_claim_count": 1}');
SELECT queue_push('q', '"dies"') > 0 AS pushed;
SELECT claim_id AS claim FROM queue_claim('q', 600, 60) \gset
SELECT claim_release('q', :'claim', failed => true);
SELECT body, origin_queue FROM queue_dead_letters('q.dead');
RESET queue.project;
SELECT queue_exists('q.dead');
SELECT count(*) FROM queue_dead_letters('q.dead');
SELECT queue_redrive('q.dead');
SET queue.project = 'red';
SELECT queue_redrive('q.dead');
SELECT body FROM queue_messages('q');
SELECT project, name FROM queue_data.queue
    ORDER BY project COLLATE "C", name COLLATE "C";
RESET queue.project;

-- A project's name is any text; long ones differ to the last byte.
SELECT set_config('queue.project', 'it''s "' || chr(228) || '" \', false) IS NOT NULL AS set;
SELECT queue_create('odd');
SELECT queue_exists('odd');
SELECT set_config('queue.project', repeat('x', 255) || 'a', false) IS NOT NULL AS set;
SELECT queue_create('long');
SELECT set_config('queue.project', repeat('x', 255) || 'b', false) IS NOT NULL AS set;
SELECT queue_exists('long');
SELECT queue_exists('odd');
RESET queue.project;

DROP EXTENSION queue;
