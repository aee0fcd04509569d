\set id 0
BEGIN;
SELECT id, body ->> 'message' AS message FROM message ORDER BY id LIMIT 1 FOR UPDATE SKIP LOCKED \aset
\if :id > 0
INSERT INTO bench_took VALUES (:message);
DELETE FROM message WHERE id = :id;
\endif
COMMIT;
\if :id = 0
\sleep 2 ms
\endif
