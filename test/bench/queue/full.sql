\if :made = 0
SELECT array_fill(:body::jsonb, ARRAY[:n::int])::text AS bodies \gset
\set made 1
\endif
SELECT queue_push_batch('bench', :bodies::jsonb[]);
\set id 0
SELECT id, claim_id AS claim, body AS got FROM queue_claim('bench', 300, 60, :n) \aset
\if :id > 0
SELECT claim_complete('bench', :claim);
\endif
