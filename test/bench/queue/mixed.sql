\set kind random(1, 20)
\if :kind = 1
SELECT queue_push('bench', :body, NULL, 1);
\else
SELECT queue_push('bench', :body);
\endif
\if :kind = 2
\set id 0
SELECT id, claim_id AS claim, body AS got FROM queue_claim('bench', 300, 60, 1) \aset
\if :id > 0
SELECT claim_release('bench', :claim, 1);
\endif
\endif
\set id 0
SELECT id, claim_id AS claim, body AS got FROM queue_claim('bench', 300, 60, 1) \aset
\if :id > 0
SELECT message_delete('bench', :id, :claim);
\endif
