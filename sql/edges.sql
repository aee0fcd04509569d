-- Situations that once went wrong and that the other files do not test.
SET client_min_messages = warning;
DROP EXTENSION IF EXISTS queue CASCADE;
RESET client_min_messages;
-- default privileges of the installer do not open the tables
ALTER DEFAULT PRIVILEGES GRANT SELECT ON TABLES TO PUBLIC;
ALTER DEFAULT PRIVILEGES GRANT USAGE ON SCHEMAS TO PUBLIC;
ALTER DEFAULT PRIVILEGES GRANT USAGE ON SEQUENCES TO PUBLIC;
CREATE EXTENSION queue;
ALTER DEFAULT PRIVILEGES REVOKE SELECT ON TABLES FROM PUBLIC;
ALTER DEFAULT PRIVILEGES REVOKE USAGE ON SCHEMAS FROM PUBLIC;
ALTER DEFAULT PRIVILEGES REVOKE USAGE ON SEQUENCES FROM PUBLIC;
CREATE ROLE regress_edges_a;
CREATE ROLE regress_edges_b;
GRANT queue_producer, queue_consumer TO regress_edges_a, regress_edges_b;
SELECT count(*) AS open
FROM pg_class
WHERE relnamespace = 'queue_data'::regnamespace AND relkind IN ('r', 'v', 'S')
AND (CASE relkind WHEN 'S' THEN has_sequence_privilege('regress_edges_a', oid, 'USAGE')
     ELSE has_table_privilege('regress_edges_a', oid, 'SELECT') END);
SELECT has_schema_privilege('regress_edges_a', 'queue_data', 'USAGE') AS open;
SET queue.max_claim_limit = 1000;
SET queue.min_claim_ttl = 1;
SET queue.min_claim_grace = 0;

-- a redrive over dead letters with gaps between them
SELECT queue_create('gaps', '{"_max_claim_count": 1}');
SELECT count(queue_push('gaps', to_jsonb(i))) FROM generate_series(1, 300) i;
SELECT claim_release('gaps', claim_id, failed => true)
FROM queue_claim('gaps', 60, 60, 300) LIMIT 1;
SELECT count(message_delete('gaps.dead', id))
FROM (SELECT id, row_number() OVER () AS n
      FROM queue_dead_letters('gaps.dead', 1000)) d
WHERE n % 3 <> 1;
SELECT queue_redrive('gaps.dead');
SELECT free, total FROM queue_stats('gaps');
SELECT total FROM queue_stats('gaps.dead');

-- many due messages, and one of a higher priority that is due last
SELECT count(queue_push('due', to_jsonb(i), delay => 1))
FROM generate_series(1, 1100) i;
SELECT queue_push('due', '"first"', delay => 1, priority => 9) > 0 AS pushed;
SELECT pg_sleep(1.2);
SELECT body FROM queue_claim('due', 60, 60, 2);
SELECT count(*) FROM queue_claim('due', 60, 60, 1000);
SELECT count(*) FROM queue_claim('due', 60, 60, 1000);
SELECT free, claimed, delayed FROM queue_stats('due');

-- a dead letter has no client id
SET queue.client_id = 'me';
SELECT queue_create('own', '{"_max_claim_count": 1}');
SELECT queue_push('own', '"x"') > 0 AS pushed;
SELECT claim_release('own', claim_id, failed => true) FROM queue_claim('own', 60, 60);
SELECT body FROM queue_messages('own.dead');
SELECT queue_redrive('own.dead');
SELECT body FROM queue_messages('own');
RESET queue.client_id;

-- deleting nothing under a claim that is over
SELECT queue_push('none', '1') > 0 AS pushed;
SELECT claim_id FROM queue_claim('none', 60, 60) \gset
SELECT messages_delete('none', '{}', :'claim_id');
SELECT claim_complete('none', :'claim_id');
\set VERBOSITY sqlstate
SELECT messages_delete('none', '{}', :'claim_id');
\set VERBOSITY default

-- dead letters of a queue with restricted claims are not open to all roles
SELECT queue_create('narrow', '{"_max_claim_count": 1}');
SELECT queue_grant('narrow', 'regress_edges_a', 'claim');
SELECT queue_push('narrow', '"secret"') > 0 AS pushed;
SET ROLE regress_edges_a;
SELECT claim_release('narrow', claim_id, failed => true) FROM queue_claim('narrow', 60, 60);
SELECT body FROM queue_dead_letters('narrow.dead');
SET ROLE regress_edges_b;
\set VERBOSITY sqlstate
SELECT body FROM queue_dead_letters('narrow.dead');
\set VERBOSITY default
RESET ROLE;

-- no role gets them by creating the dead letter queue first: it exists
SELECT queue_create('squat', '{"_max_claim_count": 1}');
SELECT queue_grant('squat', 'regress_edges_a', 'claim');
SET ROLE regress_edges_b;
SELECT queue_create('squat.dead');
RESET ROLE;
SELECT queue_push('squat', '"secret"') > 0 AS pushed;
SELECT claim_id FROM queue_claim('squat', 60, 60) \gset
SELECT claim_release('squat', :'claim_id', failed => true);
SELECT count(*) FROM queue_claim('squat', 60, 60);
SELECT total FROM queue_stats('squat');
SELECT total FROM queue_stats('squat.dead');
-- a dead letter queue that is named may be another role's
SELECT queue_update('squat', '{"_dead_letter_queue": "squat.dead"}');
SELECT count(*) FROM queue_claim('squat', 60, 60);
SELECT total FROM queue_stats('squat');
SELECT total FROM queue_stats('squat.dead');

-- of many that were claimed too often, one claim moves a hundred
SELECT queue_push_batch('many', array_agg(to_jsonb(i))) IS NOT NULL AS pushed
FROM generate_series(1, 250) i;
SELECT claim_release('many', claim_id, failed => true)
FROM queue_claim('many', 60, 60, 250) LIMIT 1;
SELECT queue_update('many', '{"_max_claim_count": 1}');
SELECT count(*) FROM queue_claim('many', 60, 60, 1);
SELECT total FROM queue_stats('many.dead');
SELECT count(*) FROM queue_claim('many', 60, 60, 1);
SELECT count(*) FROM queue_claim('many', 60, 60, 1);
SELECT total FROM queue_stats('many.dead');
SELECT total FROM queue_stats('many');

DROP EXTENSION queue CASCADE;
DROP ROLE regress_edges_a, regress_edges_b;
