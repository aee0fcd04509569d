PREPARE claim (text) AS SELECT id, claim_id AS claim, body AS got FROM queue_claim($1, 300, 60, 1);
PREPARE done (text, bigint, text) AS SELECT message_delete($1, $2, $3);
\timing on
EXECUTE claim (:'q') \gset
EXECUTE done (:'q', :id, :'claim');
\timing off
