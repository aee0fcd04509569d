-- queue_push_lazy: written at commit, which it does not make fail.

CREATE EXTENSION queue;
SET queue.min_message_ttl = 1;
CREATE ROLE regress_queue_lazy IN ROLE queue_producer;
CREATE ROLE regress_queue_other IN ROLE queue_producer;

-- Alone in its transaction
SELECT queue_push_lazy('q', '1');
SELECT body, priority, ttl FROM queue_messages('q');
-- with all arguments
SELECT queue_push_lazy('q', '2', 600, 100, 7, 'k');
SELECT queue_push('q', '3', dedup_key => 'k') IS NULL AS dropped;
SELECT body, priority, ttl FROM queue_messages('q', include_delayed => true);
SELECT delayed FROM queue_stats('q');
SELECT queue_purge('q');

-- In a transaction: after its own work, in order, many queues.
BEGIN;
SELECT queue_push_lazy('q', '"lazy 1"');
SELECT queue_push('q', '"at once"') > 0 AS pushed;
SELECT queue_push_lazy('r', '"lazy 2"');
SELECT queue_push_lazy('q', '"lazy 3"');
SELECT queue_push_lazy('r', '"lazy 4"', delay => 100);
SELECT queue_push_lazy('q', '"lazy 5"', priority => 9);
SELECT body FROM queue_messages('q');
SELECT queue_exists('r');
COMMIT;
SELECT body, priority FROM queue_messages('q');
SELECT body FROM queue_messages('r', include_delayed => true);
SELECT queue_purge('q'), queue_purge('r');

-- Gone on rollback, and on rollback to a savepoint.
BEGIN;
SELECT queue_push_lazy('q', '"no"');
ROLLBACK;
BEGIN;
SELECT queue_push_lazy('q', '1');
SAVEPOINT a;
SELECT queue_push_lazy('q', '"no"');
SAVEPOINT b;
SELECT queue_push_lazy('q', '"no"');
RELEASE b;
ROLLBACK TO a;
SELECT queue_push_lazy('q', '2');
SAVEPOINT c;
SELECT queue_push_lazy('q', '3');
RELEASE c;
DO $$
BEGIN
    PERFORM queue_push_lazy('q', '"no"');
    RAISE 'oops';
EXCEPTION WHEN OTHERS THEN
    PERFORM queue_push_lazy('q', '4');
END
$$;
COMMIT;
SELECT body FROM queue_messages('q');
SELECT queue_purge('q');

-- Deferred triggers run before; what they push is written as well.
CREATE TABLE pages (id int);
CREATE FUNCTION page_changed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM queue_push_lazy('q', to_jsonb(NEW.id));
    RETURN NULL;
END
$$;
CREATE CONSTRAINT TRIGGER deferred AFTER INSERT ON pages
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION page_changed();
BEGIN;
INSERT INTO pages VALUES (1), (2);
SELECT queue_push_lazy('q', '0');
COMMIT;
INSERT INTO pages VALUES (3);
SELECT body FROM queue_messages('q');
-- a commit inside a procedure is one, too
DO $$
BEGIN
    PERFORM queue_push_lazy('q', '4');
    COMMIT;
    PERFORM queue_push_lazy('q', '5');
    ROLLBACK;
    PERFORM queue_push_lazy('q', '6');
END
$$;
SELECT body FROM queue_messages('q', "limit" => 100);
SELECT queue_purge('q');
DROP TABLE pages;

-- Keys: of several messages with one key, the first is pushed.
BEGIN;
SELECT queue_push_lazy('q', to_jsonb(i), dedup_key => (i % 3)::text) FROM generate_series(1, 9) i;
COMMIT;
SELECT body FROM queue_messages('q');
SELECT duplicates FROM job_stats('q');
SELECT queue_purge('q');

-- More than one batch may have is written in parts.
SET queue.max_push_count = 100;
BEGIN;
SELECT count(queue_push_lazy('q', to_jsonb(i))) FROM generate_series(1, 1050) i;
COMMIT;
SELECT count(*), count(DISTINCT body), bool_and(body::int = n) AS in_order
    FROM (SELECT body, row_number() OVER (ORDER BY id) AS n
          FROM queue_messages('q', "limit" => 10000)) s;
RESET queue.max_push_count;
SELECT queue_purge('q');

-- Wrong arguments are errors at once.
\set VERBOSITY sqlstate
SELECT queue_push_lazy('no name', '1');
SELECT queue_push_lazy('q', NULL);
SELECT queue_push_lazy('q', '1', 0);
SELECT queue_push_lazy('q', to_jsonb(repeat('x', 262144)));
BEGIN READ ONLY;
SELECT queue_push_lazy('q', '1');
ROLLBACK;
\set VERBOSITY default

-- What fails later raises a warning, and the transaction commits without it.
CREATE TABLE work (n int);
SELECT queue_create('tight', '{"_max_messages_post_size": 100}');
SELECT queue_create('closed');
SELECT queue_grant('closed', 'regress_queue_other', 'push');
GRANT INSERT ON work TO regress_queue_lazy;
SET ROLE regress_queue_lazy;
BEGIN;
INSERT INTO work VALUES (1);
SELECT queue_push_lazy('closed', '1');
SELECT queue_push_lazy('closed', '2');
SELECT queue_push_lazy('q', '"in between"');
SELECT queue_push_lazy('tight', to_jsonb(repeat('x', 100)));
SELECT queue_push_lazy('tight', '"fits"');
COMMIT;
RESET ROLE;
SET queue.auto_create = off;
BEGIN;
INSERT INTO work VALUES (2);
SELECT queue_push_lazy('unknown', '1');
COMMIT;
RESET queue.auto_create;
-- Two roles push to one queue, and one of them may not.
BEGIN;
SELECT queue_push_lazy('closed', '"of the owner"');
SET LOCAL ROLE regress_queue_lazy;
SELECT queue_push_lazy('closed', '"of the other"');
RESET ROLE;
COMMIT;
SELECT body FROM queue_messages('closed');
SELECT queue_purge('closed');
SELECT n FROM work ORDER BY n;
SELECT q, total FROM unnest('{closed, q, tight, unknown}'::text[]) q, queue_stats(q);
SELECT body FROM queue_messages('tight');
-- also if the queue, or the extension, is gone by then
BEGIN;
SELECT queue_push_lazy('tight', '1');
SELECT queue_drop('tight');
SET LOCAL queue.auto_create = off;
INSERT INTO work VALUES (3);
COMMIT;
SELECT count(*) FROM work;
BEGIN;
SELECT queue_push_lazy('q', '1');
DROP EXTENSION queue;
COMMIT;
CREATE EXTENSION queue;

-- Each is pushed as the role, in the project and with the client id of the call.
BEGIN;
SET LOCAL queue.client_id = 'alice';
SELECT queue_push_lazy('q', '"of alice"');
SET LOCAL queue.project = 'p';
SELECT queue_push_lazy('q', '"in p"');
SET LOCAL ROLE regress_queue_lazy;
SELECT queue_push_lazy('his', '1');
RESET ROLE;
SET LOCAL queue.project = '';
SET LOCAL queue.client_id = 'bob';
SELECT queue_push_lazy('q', '"of bob"');
COMMIT;
SHOW queue.project;
SHOW queue.client_id;
SELECT project, queue, client_id, body FROM queue_data.message ORDER BY 1, 2, 3;
SELECT project, name, owner = 'regress_queue_lazy'::regrole AS his FROM queue_data.queue ORDER BY 1, 2;

DROP TABLE work;
DROP FUNCTION page_changed();
DROP EXTENSION queue;
DROP ROLE regress_queue_lazy, regress_queue_other;
