\set key random(1, :queues)
INSERT INTO message (queue, body) VALUES ('q' || :key, :body);
\set token random(1, 9000000000000000000)
UPDATE message SET claim = :token, claimed_until = now() + interval '300 s' WHERE id = ANY (ARRAY(SELECT id FROM message WHERE claimed_until <= now() ORDER BY id LIMIT 1 FOR UPDATE SKIP LOCKED)) RETURNING id, claim, body AS got \gset
DELETE FROM message WHERE id = :id AND claim = :token;
