\set id 0
\set token random(1, 9000000000000000000)
UPDATE message SET claim = :token, claimed_until = now() + interval '300 s' WHERE id = ANY (ARRAY(SELECT id FROM message WHERE claimed_until <= now() ORDER BY id LIMIT 1 FOR UPDATE SKIP LOCKED)) RETURNING id, claim, body ->> 'message' AS message \aset
\if :id > 0
INSERT INTO bench_took VALUES (:message);
DELETE FROM message WHERE id = :id AND claim = :token;
\else
\sleep 2 ms
\endif
