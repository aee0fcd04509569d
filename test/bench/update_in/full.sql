\if :made = 0
SELECT array_fill(:body::jsonb, ARRAY[:n::int])::text AS bodies \gset
\set made 1
\endif
INSERT INTO message (body) SELECT unnest(:bodies::jsonb[]) RETURNING id;
\set id 0
\set token random(1, 9000000000000000000)
WITH c AS (UPDATE message SET claim = :token, claimed_until = now() + interval '300 s' WHERE id IN (SELECT id FROM message WHERE claimed_until <= now() ORDER BY id LIMIT :n FOR UPDATE SKIP LOCKED) RETURNING id, body) SELECT id, body AS got, min(id) OVER () AS first, max(id) OVER () AS last FROM c \aset
\if :id > 0
DELETE FROM message WHERE id BETWEEN :first AND :last AND claim = :token;
\endif
