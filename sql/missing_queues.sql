-- What reads from a queue that does not exist says so, once in a session.

CREATE EXTENSION queue;
SELECT FROM queue_claim('mial');
SELECT FROM queue_claim('mial');
SELECT FROM queue_pop('mial');
-- each of them does
SELECT FROM queue_pop('a');
SELECT FROM claim_next('b', NULL);
SELECT FROM queue_claim_any('{c,c}');
CALL queue_wait('e', 0);
SELECT free FROM queue_stats('f');
SELECT claimed FROM job_stats('g');
SELECT FROM queue_groups('h');
SELECT FROM queue_messages('i');
SELECT FROM message_get('j', 1);
SELECT FROM messages_get('k', '{1}');
SELECT FROM queue_dead_letters('l');
SELECT queue_is_empty('m');
SELECT FROM queue_browse('s');
SELECT FROM queue_depth('t');
SELECT messages_run_now('u', '{1}');
SELECT messages_bury('v', '{1}', 'e');
SELECT FROM message_finished('w', 1);
SELECT queue_purge('x'), queue_redrive('y');
-- but not what asks for the queue itself, or finds all
SELECT queue_exists('n'), queue_get('n');
SELECT FROM queue_claim_any();
-- in another project it is another one
SET queue.project = 'wiki';
SELECT FROM queue_claim('mial');
SELECT FROM queue_claim('mial');
RESET queue.project;
-- one that was dropped
SELECT queue_push('o', '1') > 0 AS pushed;
SELECT FROM queue_claim('o');
SELECT queue_drop('o');
SELECT FROM queue_claim('o');
-- what reads from a paused queue would find it empty
SELECT queue_push('s', '1') > 0 AS pushed;
SELECT queue_pause('s');
SELECT FROM queue_claim('s');
SELECT FROM queue_pop('s');
SELECT queue_resume('s');
SELECT FROM queue_claim('s');
-- a push that creates its queue says so, and again if it was rolled back
BEGIN;
SELECT queue_push('new', '1') > 0 AS pushed;
ROLLBACK;
SELECT queue_push('new', '1') > 0 AS pushed;
SELECT queue_push('new', '2') > 0 AS pushed;
SELECT array_length(queue_push_batch('new2', array_fill('1'::jsonb, ARRAY[1000])), 1);
SELECT array_length(queue_post('new3', '[{"body": 1}, {"body": 2}]'), 1);
SELECT array_length(queue_post(NULL, '[{"queue": "new4", "body": 1}, {"queue": "new5", "body": 2}, {"queue": "new4", "body": 3}]'), 1);
SELECT FROM queue_step('new', push => '[{"queue": "new6", "body": 1}, {"queue": "new6", "body": 2}]');
SELECT queue_push_once('new7', 'o', 1, '1') > 0 AS pushed;
BEGIN;
SELECT queue_push_lazy('new8', '1'), queue_push_lazy('new8', '2');
COMMIT;
SELECT count(*) FROM generate_series(1, 1000) i, queue_push('new9', to_jsonb(i));
-- where it may not create one, it is an error
SET queue.auto_create = off;
SELECT queue_push('new10', '1') > 0 AS pushed;
RESET queue.auto_create;
-- a handler's queue is created
SET client_min_messages = warning;
CREATE FUNCTION handle(b jsonb) RETURNS boolean LANGUAGE sql AS 'SELECT true';
SELECT job_handler('p', 'handle(jsonb)');
SELECT name, metadata FROM queue_list() WHERE name = 'p';
SELECT job_handler('p', NULL);
SET queue.auto_create = off;
SELECT job_handler('r', 'handle(jsonb)');
RESET queue.auto_create;
RESET client_min_messages;
DROP FUNCTION handle(jsonb);
DROP EXTENSION queue;
