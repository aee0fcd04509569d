SELECT count(*) FROM pgmq.read('bench', 3600, :k);
