SELECT 1 / (pgmq.send_topic('a.b', :body::jsonb) = :queues)::int;
