SELECT id, claim_id, body FROM queue_claim('bench', 300, 60, 1);
