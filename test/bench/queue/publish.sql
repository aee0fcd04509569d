SELECT 1 / (topic_publish('a.b', :body) = :queues)::int;
