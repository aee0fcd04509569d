\set id 0
SELECT id, claim_id AS claim, body AS got FROM queue_claim('bench', 300, 60, 1) \aset
\if :id > 0
SELECT message_delete('bench', :id, :claim);
\endif
