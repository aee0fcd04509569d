INSERT INTO message (body) SELECT :body::jsonb FROM generate_series(1, :n);
BEGIN;
SELECT count(body) AS got, array_agg(id) AS ids FROM (SELECT id, body FROM message ORDER BY id LIMIT :n FOR UPDATE SKIP LOCKED) AS locked \gset
\if :got > 0
DELETE FROM message WHERE id = ANY (:ids::bigint[]);
\endif
COMMIT;
