\set kind random(1, 20)
\if :kind = 1
INSERT INTO message (body, claimed_until) VALUES (:body, now() + interval '1 s');
\else
INSERT INTO message (body) VALUES (:body);
\endif
\if :kind = 2
\set id 0
\set token random(1, 9000000000000000000)
UPDATE message SET claim = :token, claimed_until = now() + interval '300 s' WHERE id = ANY (ARRAY(SELECT id FROM message WHERE claimed_until <= now() ORDER BY id LIMIT 1 FOR UPDATE SKIP LOCKED)) RETURNING id, claim, body AS got \aset
\if :id > 0
UPDATE message SET claimed_until = now() + interval '1 s' WHERE id = :id AND claim = :token;
\endif
\endif
\set id 0
\set token random(1, 9000000000000000000)
UPDATE message SET claim = :token, claimed_until = now() + interval '300 s' WHERE id = ANY (ARRAY(SELECT id FROM message WHERE claimed_until <= now() ORDER BY id LIMIT 1 FOR UPDATE SKIP LOCKED)) RETURNING id, claim, body AS got \aset
\if :id > 0
DELETE FROM message WHERE id = :id AND claim = :token;
\endif
