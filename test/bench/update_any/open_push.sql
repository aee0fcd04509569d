\set number :number + 1
INSERT INTO message (body) VALUES (:body::jsonb || jsonb_build_object('message', :client_id * 10000000 + :number));
