SELECT count(body) AS got, max(claim_id) AS claim FROM queue_claim('bench', 300, 60, :n) \gset
\if :got > 0
SELECT claim_complete('bench', :claim);
\endif
