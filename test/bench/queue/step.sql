\set id 0
SELECT id, claim_id AS claim, body AS got FROM queue_step('bench', nullif(:claim, 'none'), push => jsonb_build_array(jsonb_build_object('body', :body::jsonb)), "limit" => 1) \aset
\if :id = 0
SELECT 'none' AS claim \gset
\endif
