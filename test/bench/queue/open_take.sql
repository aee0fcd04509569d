\set id 0
SELECT id, claim_id AS claim, body ->> 'message' AS message FROM claim_next('bench', nullif(:claim, 'none'), 300, 60, 1) \aset
\if :id > 0
INSERT INTO bench_took VALUES (:message);
\else
SELECT 'none' AS claim \gset
\sleep 2 ms
\endif
