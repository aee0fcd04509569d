\if :made = 0
SELECT array_fill(:body::jsonb, ARRAY[:n::int])::text AS bodies \gset
\set made 1
\endif
SELECT pgmq.send_batch('bench', :bodies::jsonb[]);
\set got 0
SELECT message, count(*) OVER () AS got, array_agg(msg_id) OVER () AS ids FROM pgmq.read('bench', 300, :n) \aset
\if :got > 0
SELECT count(*) FROM pgmq.delete('bench', :ids::bigint[]);
\endif
