PREPARE claim AS SELECT id, body AS got FROM message ORDER BY id LIMIT 1 FOR UPDATE SKIP LOCKED;
PREPARE done (bigint) AS DELETE FROM message WHERE id = $1;
BEGIN;
\timing on
EXECUTE claim \gset
\timing off
EXECUTE done (:id);
COMMIT;
