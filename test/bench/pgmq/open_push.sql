\set number :number + 1
SELECT pgmq.send('bench', :body::jsonb || jsonb_build_object('message', :client_id * 10000000 + :number));
