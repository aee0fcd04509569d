PREPARE claim AS UPDATE message SET claim = (random() * 9e18)::bigint, claimed_until = now() + interval '300 s' WHERE id = ANY (ARRAY(SELECT id FROM message WHERE claimed_until <= now() ORDER BY id LIMIT 1 FOR UPDATE SKIP LOCKED)) RETURNING id, claim, body AS got;
PREPARE done (bigint, bigint) AS DELETE FROM message WHERE id = $1 AND claim = $2;
\timing on
EXECUTE claim \gset
\timing off
EXECUTE done (:id, :claim);
