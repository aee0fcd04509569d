\if :made = 0
SELECT array_fill(:body::jsonb, ARRAY[:n::int])::text AS bodies \gset
\set made 1
\endif
INSERT INTO message (body) SELECT unnest(:bodies::jsonb[]) RETURNING id;
BEGIN;
SELECT count(*) AS got, array_agg(id) AS ids, array_agg(body) AS returned FROM (SELECT id, body FROM message ORDER BY id LIMIT :n FOR UPDATE SKIP LOCKED) AS locked \gset
\if :got > 0
DELETE FROM message WHERE id = ANY (:ids::bigint[]);
\endif
COMMIT;
