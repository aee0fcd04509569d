UPDATE message SET claim = 1, claimed_until = now() + interval '1 hour' WHERE id IN (SELECT id FROM message ORDER BY id LIMIT :k);
