\set id 0
SELECT msg_id AS id, message ->> 'message' AS message FROM pgmq.read('bench', 300, 1) \aset
\if :id > 0
INSERT INTO bench_took VALUES (:message);
SELECT pgmq.delete('bench', :id::bigint);
\else
\sleep 2 ms
\endif
