UPDATE message SET claim = 1, claimed_until = now() + interval '300 s' WHERE id IN (SELECT id FROM message WHERE claimed_until <= now() ORDER BY id LIMIT 1 FOR UPDATE SKIP LOCKED) RETURNING id;
