SELECT pgmq.send('bench', :body::jsonb);
