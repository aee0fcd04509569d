SELECT count(*) FROM pgmq.send_batch('bench', array_fill(:body::jsonb, ARRAY[:n::int]));
SELECT count(message) AS got, array_agg(msg_id) AS ids FROM pgmq.read('bench', 300, :n) \gset
\if :got > 0
SELECT count(*) FROM pgmq.delete('bench', :ids::bigint[]);
\endif
