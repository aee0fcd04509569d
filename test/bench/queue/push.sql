SELECT cardinality(queue_push_batch('bench', array_fill(:body::jsonb, ARRAY[:n::int])));
