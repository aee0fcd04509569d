\set id 0
SELECT id, claim_id AS claim, group_key <> 'g0' AS quiet, extract(epoch FROM clock_timestamp() - created_at) * 1000 AS ms FROM queue_claim('bench', 300, 60, 1) \aset
\if :id = 0
CALL queue_wait('bench', 1000);
\else
SELECT message_delete('bench', :id, :claim);
\if :quiet
INSERT INTO bench_wait VALUES (:ms);
\endif
\sleep :work ms
\endif
