-- queue_push_once: a push that takes effect once however often it is repeated
SET client_min_messages = warning;
CREATE EXTENSION queue;

-- It returns what the first call has returned, whatever the other arguments
SELECT queue_push_once('once', 'orders', 1, '"first"', ttl => 3600, priority => 2,
    group_key => 'g', headers => '{"h": 1}') AS id \gset
SELECT queue_push_once('once', 'orders', 1, '"again"') = :id AS same;
SELECT body, ttl, priority, group_key, headers FROM queue_messages('once');

-- Another id, another origin, another queue and another project are others
SELECT queue_push_once('once', 'orders', 2, '2') <> :id AS other;
SELECT queue_push_once('once', 'invoices', 1, '3') <> :id AS other;
SELECT queue_push_once('once/2', 'orders', 1, '4') <> :id AS other;
SET queue.project = 'shop';
SELECT queue_push_once('once', 'orders', 1, '5') <> :id AS other;
RESET queue.project;
SELECT count(*) FROM queue_messages('once');

-- Nor does it push again when the message is gone
SELECT count(*) FROM queue_pop('once', 10);
SELECT queue_push_once('once', 'orders', 1, '"again"') = :id AS same;
SELECT queue_push_once('once', 'orders', 6, '6') AS id \gset
SELECT queue_purge('once');
SELECT queue_push_once('once', 'orders', 6, '6') = :id AS same;
SELECT total FROM queue_stats('once');

-- A duplicate remains one
SELECT queue_push('once', '7', dedup_key => 'k') > 0 AS pushed;
SELECT queue_push_once('once', 'orders', 7, '7', dedup_key => 'k') IS NULL AS dropped;
SELECT count(*) FROM queue_pop('once');
SELECT queue_push_once('once', 'orders', 7, '7', dedup_key => 'k') IS NULL AS dropped;
SELECT total FROM queue_stats('once');

-- A rollback leaves it to the next call; within a transaction it counts too
BEGIN;
SELECT queue_push_once('once', 'orders', 8, '"rolled back"') > 0 AS pushed;
ROLLBACK;
BEGIN;
SAVEPOINT s;
SELECT queue_push_once('once', 'orders', 8, '"rolled back"') > 0 AS pushed;
ROLLBACK TO s;
SELECT queue_push_once('once', 'orders', 8, '"kept"') AS id \gset
SELECT queue_push_once('once', 'orders', 8, '"again"') = :id AS same;
COMMIT;
SELECT body FROM queue_pop('once', 10);

-- One statement
SELECT count(DISTINCT queue_push_once('once', 'orders', g % 3, to_jsonb(g)))
    FROM generate_series(30, 38) AS g;
SELECT count(*) FROM queue_messages('once');

-- Errors leave nothing behind
SELECT queue_push_once('once', NULL, 1, '1');
SELECT queue_push_once('once', 'orders', NULL, '1');
SELECT queue_push_once('once', 'orders', 9, NULL);
SELECT queue_push_once('once', 'orders', 9, '1', priority => 10);
SELECT queue_push_once('once', 'orders', 9, '1', ttl => 1);
SELECT queue_push_once('once', '', 9, '1');
SELECT queue_push_once('once', repeat('x', 257), 9, '1');
SELECT queue_push_once('once', repeat('x', 256), 9, '1') > 0 AS pushed;
SET queue.max_message_size = 1024;
SELECT queue_push_once('once', 'orders', 9, to_jsonb(repeat('x', 2000)));
RESET queue.max_message_size;
SET queue.auto_create = off;
SELECT queue_push_once('unknown', 'orders', 9, '1');
RESET queue.auto_create;
SELECT queue_push_once('once', 'orders', 9, '"9"') > 0 AS pushed;
BEGIN READ ONLY;
SELECT queue_push_once('once', 'orders', 9, '1');
ROLLBACK;

-- Rows older than 28 days are removed by later pushes to the queue.  Hours, since a
-- day has 25 of them when daylight saving time ends.
UPDATE queue_data.push_origin SET pushed_at = now() - interval '671 hours'
    WHERE origin = 'invoices';
UPDATE queue_data.push_origin AS o SET pushed_at = now() - interval '672 hours 1 second'
    FROM queue_data.queue AS q WHERE q.id = queue_id AND origin = 'orders'
    AND q.name = 'once' AND q.project = '';
SELECT count(queue_push_once('once', 'later', g, '1')) FROM generate_series(1, 1000) AS g;
SELECT q.project, q.name, left(o.origin, 10) AS origin, count(*)
    FROM queue_data.push_origin AS o JOIN queue_data.queue AS q ON q.id = o.queue_id
    GROUP BY 1, 2, 3 ORDER BY 1, 2, 3;

-- They go with the queue; one created anew knows none
SELECT queue_drop('once'), queue_drop('once/2');
SELECT count(*) FROM queue_data.push_origin;
SELECT queue_push_once('once', 'later', 1, '1') > 0 AS pushed;
SELECT total FROM queue_stats('once');
SELECT queue_drop('once');
SET queue.project = 'shop';
SELECT queue_drop('once');
SELECT count(*) FROM queue_data.push_origin;

DROP EXTENSION queue;
