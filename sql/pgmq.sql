-- The extension queue_pgmq: pgmq's functions on queues of queue
\set VERBOSITY terse
SET queue.project = 'pgmq';
CREATE EXTENSION queue;
CREATE EXTENSION queue_pgmq;

-- The first push of an extension may leave a gap between the ids.
SELECT queue_push('gap', '1') IS NOT NULL AS pushed;
SELECT queue_drop('gap');

-- Queues
SELECT pgmq.create('Jobs');
SELECT pgmq.create('Jobs');
SELECT queue_name, is_partitioned, is_unlogged FROM pgmq.list_queues();
SELECT name, metadata - '_pgmq_base' FROM queue_get('jobs');
SELECT pgmq.create(repeat('a', 48));
SELECT pgmq.create('semi;colon');
SELECT pgmq.create_unlogged('u');
SELECT pgmq.create_partitioned('p', '1 day');
SELECT pgmq.convert_archive_partitioned('jobs');
SELECT pgmq.detach_archive('jobs');
SELECT pgmq.create_fifo_index('jobs'), pgmq.create_fifo_indexes_all();
SELECT pgmq.drop_queue('nothing');

-- Sending: every form; ids count from 1
SELECT pgmq.send('jobs', '1');
SELECT pgmq.send('JOBS', '2', '{"a": 1}'::jsonb);
SELECT pgmq.send('jobs', '3', 0);
SELECT pgmq.send('jobs', '4', '{"a": 2}', 0);
SELECT pgmq.send('jobs', '5', now() - interval '1 h');
SELECT pgmq.send('jobs', '6', '{}', now() + interval '1 h');
SELECT pgmq.send_batch('jobs', '{7,8}');
SELECT pgmq.send_batch('jobs', '{9}', '{"{\"b\": 1}"}'::jsonb[]);
SELECT pgmq.send_batch('jobs', '{10,11}', 3600);
SELECT pgmq.send_batch('jobs', '{12}', '{NULL}', now() + interval '1 h');
SELECT pgmq.send('jobs', NULL);
SELECT pgmq.send('unknown', '1');
SELECT queue_exists('unknown');
SELECT pgmq.send_batch('jobs', NULL);
SELECT pgmq.send_batch('jobs', '{1}', '{}'::jsonb[]);

-- More than one push may have
SET queue.max_push_count = 2;
SELECT count(*) FROM pgmq.send_batch('jobs', '{14,15,16,17,18}');
RESET queue.max_push_count;

-- The views show all, and the state
SELECT msg_id, read_ct, last_read_at, vt > now() + interval '1 min' AS hidden,
       message, headers
FROM pgmq.q_jobs;

-- Reading, with any timeout, whatever bounds claims
SELECT msg_id, read_ct, message, vt - last_read_at AS vt
FROM pgmq.read('jobs', 1, 2);
SELECT msg_id, read_ct, message, vt - last_read_at AS vt
FROM pgmq.read('jobs', 0, 1);
SELECT msg_id, read_ct, vt - last_read_at > interval '999 days' AS long
FROM pgmq.read('jobs', now() + interval '1000 days', 1);
SELECT count(*) FROM queue_claim('jobs', 1);
SELECT pgmq.read('jobs', '-infinity'::timestamptz, 1);
SELECT pgmq.read('jobs', NULL::integer, 1);
SELECT count(*) FROM pgmq.read('jobs', 10, 0);
SELECT count(*) FROM pgmq.read('jobs', 10, -1);

-- With a condition
SELECT pgmq.create('kinds');
SELECT pgmq.send_batch('kinds', ARRAY(
    SELECT jsonb_build_object('k', i % 3, 'i', i)
    FROM generate_series(1, 9) AS i));
SELECT message FROM pgmq.read('kinds', 30, 2, '{"k": 1}');
SELECT message FROM pgmq.read('kinds', 30, 5, '{"k": 1}');
SELECT message FROM pgmq.read('kinds', 30, 5, '{"k": 1}');
SELECT message FROM pgmq.read_with_poll('kinds', 30, 1, 1, 10, '{"k": 2}');
SELECT count(*) FROM pgmq.read_with_poll('kinds', 30, 1, 0, 10, '{"k": 1}');
SELECT message FROM pgmq.read_with_poll('kinds', now() + interval '30 s', 1);

-- what was claimed is counted
SELECT claimed FROM job_stats('kinds');
SELECT message FROM pgmq.read('kinds', 30, 1, '{"k": 0}');
SELECT claimed FROM job_stats('kinds');

-- neither leaves of a root job that was replaced, nor what a queue has that is paused
SELECT job_root('kinds', 'r') AS old \gset
SELECT queue_push('kinds', '{"leaf": 1}'::jsonb || :'old') AS leaf \gset
SELECT job_root('kinds', 'r') AS new \gset
SELECT queue_push('kinds', '{"leaf": 2}'::jsonb || :'new') > 0 AS pushed;
SELECT message -> 'leaf' AS leaf FROM pgmq.read('kinds', 30, 5, jsonb_build_object('rootJobSignature', 'r'));
SELECT count(*) FROM pgmq._read_ids('kinds', now() + interval '30 s',
                                    ARRAY[pgmq._msg_id('kinds', :leaf)], true);
SELECT queue_push('kinds', '"free"') AS free \gset
SELECT queue_pause('kinds');
SELECT count(*) FROM pgmq._read_ids('kinds', now() + interval '30 s',
                                    ARRAY[pgmq._msg_id('kinds', :free)], true);
SELECT queue_resume('kinds');
SELECT count(*) FROM pgmq._read_ids('kinds', now() + interval '30 s',
                                    ARRAY[pgmq._msg_id('kinds', :free)], true);

-- What waits for a batch is not shown before that has finished.
SELECT batch_create('b', keep_open => true) AS b \gset
SELECT queue_push('kinds', '{"k": "member"}', batch => :b) > 0 AS pushed;
SELECT queue_push('kinds', '{"k": "after"}', after => :b) > 0 AS pushed;
SELECT count(*) FROM pgmq.q_kinds AS m, pgmq.set_vt('kinds', m.msg_id, 0)
WHERE m.message @> '{"k": "after"}';
SELECT count(*) FROM pgmq.read('kinds', 30, 1, '{"k": "after"}');

-- Visibility, of one message of several read at once
SELECT pgmq.create('v');
SELECT pgmq.send_batch('v', '{1,2,3,4}');
SELECT msg_id FROM pgmq.read('v', 300, 3);
SELECT msg_id, read_ct, vt > now() + interval '599 s' AS later
FROM pgmq.set_vt('v', 2, 600);
SELECT msg_id, read_ct FROM pgmq.set_vt('v', 1, 0);
SELECT msg_id, read_ct FROM pgmq.read('v', 300, 1);
SELECT msg_id FROM pgmq.set_vt('v', 1, now() + interval '555600 hours');
SELECT msg_id, vt = now() + interval '555500 hours' AS exact
FROM pgmq.set_vt('v', 1, now() + interval '555500 hours');

-- One that was never read, one that is delayed, and none
SELECT msg_id, read_ct, last_read_at FROM pgmq.set_vt('v', 4, 600);
SELECT msg_id, read_ct, vt > now() + interval '899 s' AS later
FROM pgmq.set_vt('v', 4, 900);
SELECT count(*) FROM pgmq.read('v', 1, 10);
SELECT msg_id, read_ct FROM pgmq.set_vt('v', '{4,4,99,-1}'::bigint[], 0);
SELECT msg_id, read_ct FROM pgmq.read('v', 300, 10);
SELECT * FROM pgmq.set_vt('v', 99, 0);
UPDATE pgmq.q_v SET vt = now() - interval '1 s' WHERE msg_id IN (2, 3);
UPDATE pgmq.q_v SET message = '1';
SELECT msg_id, read_ct FROM pgmq.read('v', 300, 10);

-- Until a time before it was read: it can be read at once.
SELECT pgmq.create('w');
SELECT pgmq.send('w', '1');
SELECT msg_id FROM pgmq.read('w', 300, 1);
SELECT msg_id, vt <= now() AS past FROM pgmq.set_vt('w', 1, now() - interval '1 day');
SELECT min(claim_ttl) >= 0 AS is_valid FROM queue_data.message_0 WHERE claim_token <> 0;
SELECT msg_id, read_ct FROM pgmq.read('w', 300, 1);

-- A hidden message lives until it is shown again, and a minute; one that is free and
-- is shown stays as it is.
SET queue.min_message_ttl = 1;
SELECT id FROM queue_push('w', '"short"', 30) AS id \gset
SELECT count(*) FROM pgmq.q_w AS m, pgmq.set_vt('w', m.msg_id, 0) WHERE m.message = '"short"';
SELECT free, delayed FROM queue_stats('w');
SELECT ttl < 60 AS unchanged FROM message_get('w', :id);
SELECT count(*) FROM pgmq.q_w AS m, pgmq.set_vt('w', m.msg_id, 900) WHERE m.message = '"short"';
SELECT ttl BETWEEN 960 AND 1960 AS kept FROM message_get('w', :id);

-- What is deleted does not come into the history.
SELECT queue_update('w', '{"_keep_finished": 3600}') IS NOT NULL AS updated;
SELECT pgmq.send('w', '"deleted"'), pgmq.send('w', '"archived"');
SELECT pgmq.delete('w', 3), pgmq.archive('w', 4);
SELECT body, outcome FROM queue_finished('w');
SELECT pgmq.drop_queue('w');

-- Deleting and archiving, of messages that are read, free or delayed
SELECT pgmq.delete('v', 1), pgmq.delete('v', 1), pgmq.delete('v', -5);
SELECT pgmq.delete('v', '{4,2,99,2}'::bigint[]);
SELECT pgmq.send('v', '5', '{"h": 1}'::jsonb), pgmq.send('v', '6', 600);
SELECT pgmq.archive('v', 5), pgmq.archive('v', 5);
SELECT pgmq.archive('v', '{99,6,3}'::bigint[]);
SELECT msg_id, read_ct, archived_at >= enqueued_at AS after, message, headers
FROM pgmq.a_v;
SELECT count(*) FROM pgmq.q_v;
SELECT pgmq.send_batch('v', '{7,8,9}');
SELECT msg_id, read_ct, last_read_at, message FROM pgmq.pop('v');
SELECT msg_id FROM pgmq.pop('v', 5);
SELECT count(*) FROM pgmq.a_v;
SELECT pgmq.send('v', '10');
DELETE FROM pgmq.q_v;
SELECT queue_name, queue_length, oldest_msg_age_sec, queue_visible_length,
       default_partition_length
FROM pgmq.metrics('v');
SELECT queue_name, queue_length FROM pgmq.metrics_all() ORDER BY 1;
SELECT pgmq.metrics('unknown');
SELECT pgmq.purge_queue('jobs'), pgmq.purge_queue('unknown');

-- First in, first out in groups
SELECT pgmq.create('fifo');
SELECT count(*)
FROM generate_series(1, 3) AS i, unnest('{a,b,NULL}'::text[]) AS g,
     pgmq.send('fifo', to_jsonb(i), jsonb_build_object('x-pgmq-group', g));
SELECT group_key, free FROM queue_groups('fifo');
BEGIN;
SELECT message, headers FROM pgmq.read_grouped('fifo', 30, 4);
SELECT message, headers FROM pgmq.read_grouped('fifo', 30, 9);
ROLLBACK;
BEGIN;
SELECT message, headers FROM pgmq.read_grouped_rr('fifo', 30, 4);
SELECT message, headers FROM pgmq.read_grouped_rr('fifo', 30, 4);
ROLLBACK;
BEGIN;
SELECT message, headers FROM pgmq.read_grouped_head('fifo', 30, 2);
SELECT message, headers FROM pgmq.read_grouped_head_with_poll('fifo', 30, 2);
SELECT message, headers
FROM pgmq.read_grouped_head_with_poll('fifo', now() + interval '1 h', 2, 0);
ROLLBACK;
SELECT message, headers
FROM pgmq.read_grouped_rr_with_poll('fifo', now() + interval '1 h', 1);
SELECT count(*) FROM pgmq.read_grouped_with_poll('fifo', 30, 9);
SELECT queue_update('fifo', '{"_group_concurrency": 1}') IS NOT NULL;
SELECT count(*) FROM pgmq.send('fifo', '4', '{"x-pgmq-group": "c"}'::jsonb);
SELECT pgmq.read_grouped('fifo', 30, 1);
SELECT pgmq.read('fifo', 30, 1, '{"k": 1}');
SELECT message FROM pgmq.read('fifo', 30, 1);

-- Dead letters are those of queue
SELECT pgmq.create('d');
SELECT queue_update('d', '{"_max_claim_count": 1}') IS NOT NULL;
SELECT pgmq.send('d', '"last"');
SELECT read_ct FROM pgmq.read('d', 0, 1);
SELECT count(*) FROM pgmq.read('d', 0, 1);
SELECT body, origin_queue FROM queue_dead_letters('d.dead');

-- What a worker of queue has given back is no attempt; but it was read.
SELECT pgmq.create('given');
SELECT pgmq.send('given', '1');
SELECT claim_release('given', claim_id) FROM queue_claim('given');
SELECT read_ct FROM pgmq.q_given;
SELECT read_ct FROM pgmq.read('given', 0, 1);
SELECT claim_count FROM queue_messages('given');
SELECT pgmq.archive('given', msg_id) FROM pgmq.q_given;
SELECT read_ct, message FROM pgmq.a_given;

-- A queue of other clients becomes one of pgmq
SELECT queue_push('old', '1', priority => 3) IS NOT NULL,
       queue_push('old', '2') IS NOT NULL;
SELECT pgmq.read('old', 1, 1);
SELECT pgmq.create('old');
SELECT msg_id > 0 AS positive, msg_id >> 58 AS priority, message
FROM pgmq.read('old', 30, 5);
SELECT pgmq.delete('old', msg_id) FROM pgmq.q_old;

-- Names that the extension queue does not have
SELECT pgmq.create('Name @1%');
SELECT pgmq.send('name @1%', '1');
SELECT message FROM pgmq."q_name @1%";
SELECT name FROM queue_list(pattern => '^name');
SELECT queue_update('d', '{"queue_name": "Jobs"}') IS NOT NULL;
SELECT queue_name FROM pgmq.meta ORDER BY created_at;
SELECT pgmq.drop_queue('Name @1%'), queue_create('ordinary');
SELECT pgmq.drop_queue('ordinary'), queue_drop('ordinary');

-- Topics
SELECT pgmq.bind_topic('logs.#', 'jobs'), pgmq.bind_topic('#.error', 'v'),
       pgmq.bind_topic('#', 'd');
SELECT pgmq.bind_topic('logs.#', 'unknown');
SELECT pgmq.bind_topic('a..b', 'jobs'), pgmq.bind_topic('a.*#', 'jobs');
SELECT pattern, queue_name, compiled_regex FROM pgmq.topic_bindings
ORDER BY queue_name;
SELECT pattern, queue FROM topic_list();
SELECT pattern, queue_name FROM pgmq.test_routing('logs.x.error');
SELECT pgmq.send_topic('logs.x.error', '1'), pgmq.send_topic('logs', '2'),
       pgmq.send_topic('error', '3', '{"h": 1}', 0),
       pgmq.send_topic('logs.x', '4', 600);
SELECT message, headers FROM pgmq.q_d;
SELECT pgmq.send_topic('logs', NULL);
SELECT pgmq.send_topic('logs', '1', -1);
SELECT pgmq.send_topic('logs.*', '1');
SELECT queue_name, count(*)
FROM pgmq.send_batch_topic('logs.a', '{1,2}') GROUP BY 1 ORDER BY 1;
SELECT pattern, queue_name FROM pgmq.list_topic_bindings('JOBS');
SELECT pgmq.unbind_topic('#', 'd'), pgmq.unbind_topic('#', 'd');
DELETE FROM pgmq.topic_bindings;
SELECT count(*) FROM pgmq.list_topic_bindings();

-- Notifications
SELECT pgmq.enable_notify_insert('jobs'), pgmq.enable_notify_delete('jobs', 0);
SELECT pgmq.enable_notify_insert('jobs', -1);
SELECT pgmq.update_notify_insert('jobs', 100);
SELECT pgmq.update_notify_insert('v', 100);
SELECT queue_name, throttle_interval_ms, last_notified_at = to_timestamp(0)
FROM pgmq.list_notify_insert_throttles();
SELECT count(*) FROM pgmq.send('jobs', '1') AS a, pgmq.send('jobs', '2') AS b;
SELECT queue_name, last_notified_at = to_timestamp(0)
FROM pgmq.list_notify_insert_throttles();
SELECT pgmq.disable_notify_insert('jobs'), pgmq.disable_notify_delete('jobs');
SELECT count(*) FROM pgmq.list_notify_delete_throttles();

-- Privileges are those on queues
CREATE ROLE regress_pgmq_stranger;
CREATE ROLE regress_pgmq_producer;
CREATE ROLE regress_pgmq_consumer;
GRANT queue_producer TO regress_pgmq_producer;
GRANT queue_consumer TO regress_pgmq_consumer;
SET ROLE regress_pgmq_stranger;
SELECT pgmq.send('v', '1');
RESET ROLE;
SET ROLE regress_pgmq_producer;
SELECT count(*) FROM pgmq.send('v', '"p"');
SELECT pgmq.read('v', 1, 1);
SELECT pgmq.delete('v', 1);
SELECT * FROM pgmq.q_v;
SELECT pgmq.drop_queue('v');
SELECT pgmq.purge_queue('v');
SELECT pgmq.bind_topic('#', 'v');
SELECT pgmq.enable_notify_insert('v');
SELECT pgmq.create('v');
SELECT pgmq.create('mine');
SELECT pgmq.drop_queue('mine');
SELECT pgmq._drop_views('v');
RESET ROLE;
SET ROLE regress_pgmq_consumer;
SELECT message FROM pgmq.read('v', 30, 1);
SELECT message FROM pgmq.q_v;
SELECT count(*) FROM pgmq.a_v;
SELECT count(*) FROM queue_claim('v', 1);
SELECT pgmq.send('v', '1');
SELECT pgmq.create('other');
INSERT INTO pgmq.notify_throttle VALUES ('v', 'pgmq', 'INSERT', 0);
DELETE FROM pgmq.notify_throttle;
UPDATE pgmq.q_v SET vt = now() WHERE msg_id = 0;
UPDATE pgmq.q_v SET message = '1';
DELETE FROM pgmq.q_v;
SELECT pgmq._delete('v', '{10}', ARRAY[to_jsonb(repeat('x', 263000))]) = '{10}';
SELECT pgmq._delete('v', '{10}', ARRAY[to_jsonb(repeat('x', 264000))]);
-- It keeps no other role from using them.
BEGIN; LOCK TABLE pgmq.q_v IN SHARE MODE; ROLLBACK;
BEGIN; LOCK TABLE pgmq.a_v IN SHARE MODE; ROLLBACK;
BEGIN; LOCK TABLE pgmq.meta IN SHARE MODE; ROLLBACK;
BEGIN; LOCK TABLE pgmq.topic_bindings IN SHARE MODE; ROLLBACK;
BEGIN; LOCK TABLE pgmq.notify_throttle IN SHARE MODE; ROLLBACK;
RESET ROLE;
SELECT queue_grant('v', 'queue_admin', 'claim');
SET ROLE regress_pgmq_consumer;
SELECT pgmq.read('v', 1, 1);
SELECT * FROM pgmq.q_v;
RESET ROLE;

-- The end
SELECT pgmq.drop_queue(queue_name) FROM pgmq.meta;
SELECT queue_drop('d.dead');
SELECT count(*) FROM pg_views WHERE schemaname = 'pgmq';
DROP EXTENSION queue_pgmq;
DROP EXTENSION queue;
DROP ROLE regress_pgmq_stranger, regress_pgmq_producer, regress_pgmq_consumer;
