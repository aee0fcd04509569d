\set key random(1, :queues)
SELECT queue_push('q' || :key, :body);
SELECT id, claim_id AS claim, body AS got FROM queue_claim('q' || :key, 300, 60, 1) \gset
SELECT message_delete('q' || :key, :id, :claim);
