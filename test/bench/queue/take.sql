\set id 0
SELECT id, claim_id AS claim, body AS got FROM claim_next('bench', nullif(:claim, 'none'), 300, 60, 1) \aset
\if :id = 0
SELECT 'none' AS claim \gset
\endif
