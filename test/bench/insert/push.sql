INSERT INTO message (body) SELECT :body::jsonb FROM generate_series(1, :n);
