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
SELECT queue_shard_init(1024, 2);
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
GRANT EXECUTE ON FUNCTION queue_shard_init(integer, integer) TO regress_shard;
SET ROLE regress_shard;
SELECT queue_shard_init(1, 2);
RESET ROLE;
REVOKE EXECUTE ON FUNCTION queue_shard_init(integer, integer) FROM regress_shard;
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

-- The numbers of a server
BEGIN;
SELECT queue_shard_init(5, 1023 / 4);
SELECT nextval('queue_data.queue_id') % 1024 AS queue,
       nextval('queue_data.message_id') % 1024 AS message
    FROM generate_series(1, 3);
SELECT seqrelid::regclass, seqincrement FROM pg_sequence
    WHERE seqrelid IN ('queue_data.queue_id'::regclass,
                       'queue_data.message_id'::regclass) ORDER BY 1;
ROLLBACK;

-- The map that SQL writes
\set VERBOSITY terse
INSERT INTO queue_data.shard VALUES (256, 'local', 'here');
INSERT INTO queue_data.shard VALUES (1, 'moving', 'here');

DROP FUNCTION expected_shard(text, text), show_map(integer, integer);
DROP EXTENSION queue;
