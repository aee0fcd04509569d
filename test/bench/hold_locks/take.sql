\set id 0
BEGIN;
SELECT id, body AS got FROM message ORDER BY id LIMIT 1 FOR UPDATE SKIP LOCKED \aset
\if :id > 0
DELETE FROM message WHERE id = :id;
\endif
COMMIT;
