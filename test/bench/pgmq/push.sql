SELECT count(*) FROM pgmq.send_batch('bench', array_fill(:body::jsonb, ARRAY[:n::int]));
