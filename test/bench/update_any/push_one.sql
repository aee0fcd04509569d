INSERT INTO message (body) VALUES (:body);
