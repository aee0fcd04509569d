\set key random(1, :queues)
SELECT queue_push('q' || :key, :body);
SELECT queue, id, claim_id AS claim, body AS got FROM queue_claim_any(NULL, 300, 60, 1) \gset
SELECT message_delete(:queue, :id, :claim);
