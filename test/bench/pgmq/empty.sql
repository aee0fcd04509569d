SELECT msg_id, message FROM pgmq.read('bench', 300, 1);
