\set number :number + 1
SELECT pgq.insert_event('bench', 'mail', :body, (:client_id * 10000000 + :number)::text, NULL, NULL, NULL);
