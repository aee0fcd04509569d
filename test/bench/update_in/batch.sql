INSERT INTO message (body) SELECT :body::jsonb FROM generate_series(1, :n);
\set token random(1, 9000000000000000000)
WITH c AS (UPDATE message SET claim = :token, claimed_until = now() + interval '300 s' WHERE id IN (SELECT id FROM message WHERE claimed_until <= now() ORDER BY id LIMIT :n FOR UPDATE SKIP LOCKED) RETURNING id, body) SELECT count(body) AS got, min(id) AS first, max(id) AS last FROM c \gset
\if :got > 0
DELETE FROM message WHERE id BETWEEN :first AND :last AND claim = :token;
\endif
