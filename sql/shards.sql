-- queue_shard: the first byte of the SHA-256 of the name without ".dead" at its
-- end, a space and the project.
CREATE EXTENSION queue;

CREATE FUNCTION expected_shard(q text, project text) RETURNS integer
LANGUAGE sql AS $$
    SELECT get_byte(sha256(convert_to(
        regexp_replace(q, '(\.dead)+$', '') || ' ' || project, 'UTF8')), 0)
$$;
SELECT q, queue_shard(q), queue_shard(q, 'shop') AS of_project
    FROM unnest('{mail,mail.dead,mail.dead.dead,mail.deadx,x.dead.mail,.dead,.dead.dead,a.dea,:}'::text[]) AS q;
SELECT count(*) AS wrong
    FROM generate_series(1, 2000) AS g,
         (VALUES (''), ('shop'), ('Größe'), (repeat('p', 256))) AS p (project)
    WHERE queue_shard('q' || g, project) <> expected_shard('q' || g, project)
       OR queue_shard('q' || g || '.dead', project) <>
          queue_shard('q' || g, project);
SELECT count(DISTINCT queue_shard('q' || g)) AS shards
    FROM generate_series(1, 5000) AS g;

-- Without a project: that of the session
SET queue.project = 'shop';
SELECT queue_shard('mail') = queue_shard('mail', 'shop') AS of_session,
       queue_shard('mail', NULL) = queue_shard('mail', 'shop') AS null_too,
       queue_shard('mail', '') = expected_shard('mail', '') AS without;
RESET queue.project;

\set VERBOSITY terse
SELECT queue_shard(NULL);
SELECT queue_shard('no name');
SELECT queue_shard(repeat('x', 65));

-- queue_shard_init: wrong arguments, and databases that it does not shard
SELECT queue_shard_init(NULL, 2);
SELECT queue_shard_init(1, NULL);
SELECT queue_shard_init(-1, 2);
SELECT queue_shard_init(257, 2);
SELECT queue_shard_init(1, 0);
SELECT queue_shard_init(1, 257);
\set VERBOSITY default
SELECT queue_create('here');
SELECT queue_shard_init(1, 2);
SELECT queue_drop('here');
BEGIN;
SELECT queue_shard_init(1, 2);
SELECT queue_shard_init(1, 2);
ROLLBACK;
BEGIN TRANSACTION READ ONLY;
SELECT queue_shard_init(1, 2);
ROLLBACK;
CREATE ROLE regress_shard;
GRANT queue_admin TO regress_shard;
SET ROLE regress_shard;
SELECT queue_shard('mail');
SELECT queue_shard_init(1, 2);
RESET ROLE;
DROP ROLE regress_shard;

-- The map of each of three servers, and of one that is added
CREATE FUNCTION show_map(server integer, servers integer)
RETURNS TABLE (state text, peer text, shards bigint, first smallint)
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM queue_shard_init(server, servers);
    RETURN QUERY SELECT s.state, s.peer, count(*), min(s.shard)
        FROM queue_data.shard AS s GROUP BY 1, 2 ORDER BY 2;
END
$$;
BEGIN;
SELECT * FROM show_map(1, 3);
ROLLBACK;
BEGIN;
SELECT * FROM show_map(3, 3);
ROLLBACK;
BEGIN;
SELECT * FROM show_map(0, 3);
ROLLBACK;
BEGIN;
SELECT * FROM show_map(4, 3);
ROLLBACK;
BEGIN;
SELECT * FROM show_map(1, 1);
ROLLBACK;
SELECT count(*) FROM queue_data.shard;

-- The numbers of a server: of queues, and of runs of 1024 blocks of messages
CREATE FUNCTION show_numbers(server integer)
RETURNS TABLE (queues bigint, of_queue integer, of_run bigint)
LANGUAGE plpgsql AS $$
DECLARE
    q text;
BEGIN
    PERFORM queue_shard_init(server, 1);
    UPDATE queue_data.shard SET state = 'local';
    FOR i IN 1 .. 3 LOOP
        q := 'q' || i;
        PERFORM setval('queue_data.message_id', 1024 * i - 2);
        PERFORM queue_push_batch(q, array_fill('1'::jsonb, '{100}'));
        IF (SELECT count(claim_complete(q, c)) FROM (SELECT DISTINCT claim_id
            FROM queue_claim(q, 60, 60, 100)) AS s (c)) <> 1 THEN
            RAISE 'not claimed at once';
        END IF;
        PERFORM queue_push_batch(q, array_fill('1'::jsonb, '{100}'));
    END LOOP;
    RETURN QUERY SELECT count(DISTINCT queue_id), queue_id % 256, (id >> 24) % 256
        FROM (SELECT m.*, q.id AS queue_id FROM queue_data.message AS m
              JOIN queue_data.queue AS q ON q.name = m.queue) AS m
        GROUP BY 2, 3;
END
$$;
BEGIN;
SELECT * FROM show_numbers(5);
ROLLBACK;
BEGIN;
SELECT * FROM show_numbers(256);
ROLLBACK;
BEGIN;
SELECT queue_shard_init(1, 1);
SELECT setval('queue_data.queue_id', 8388607 - 1), setval('queue_data.message_id', 2199023255551 - 1);
SELECT queue_create('last'), queue_push('last', '1') >> 24;
SAVEPOINT s;
SELECT queue_create('one-more');
ROLLBACK TO s;
SELECT queue_push_batch('last', array_fill('1'::jsonb, '{100}'));
ROLLBACK;

-- A queue of another server; also one that auto_create would not create
BEGIN;
SELECT queue_shard_init(1, 2);
SELECT queue_shard('mail');
SAVEPOINT s;
SELECT queue_push('mail', '1');
ROLLBACK TO s;
SET LOCAL queue.auto_create = off;
SELECT queue_push('mail', '1');
ROLLBACK TO s;
DELETE FROM queue_data.shard WHERE shard = 110;
SELECT queue_exists('mail');
ROLLBACK;

-- The map that SQL writes
\set VERBOSITY terse
INSERT INTO queue_data.shard VALUES (256, 'local', 'here');
INSERT INTO queue_data.shard VALUES (1, 'moving', 'here');
INSERT INTO queue_data.server VALUES (257);

DROP FUNCTION expected_shard(text, text), show_map(integer, integer),
    show_numbers(integer);
DROP EXTENSION queue;
