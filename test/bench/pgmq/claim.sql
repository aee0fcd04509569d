PREPARE claim AS SELECT msg_id AS id, message AS got FROM pgmq.read('bench', 300, 1);
PREPARE done (bigint) AS SELECT pgmq.delete('bench', $1);
\timing on
EXECUTE claim \gset
\timing off
EXECUTE done (:id);
