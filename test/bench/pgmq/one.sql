SELECT pgmq.send('bench', :body::jsonb);
\set id 0
SELECT msg_id AS id, message AS got FROM pgmq.read('bench', 300, 1) \aset
\if :id > 0
SELECT pgmq.delete('bench', :id::bigint);
\endif
