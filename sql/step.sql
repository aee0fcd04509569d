-- queue_step: completes, retries, gives back, pushes and claims in one call, all
-- or nothing.

CREATE EXTENSION queue;
\set VERBOSITY terse
CREATE VIEW s AS SELECT free, claimed, delayed, total FROM queue_stats('q');
CREATE FUNCTION step(q text, claim_id text = NULL, done text[] = NULL,
    failed jsonb = NULL, push jsonb = NULL, "limit" int = 3) RETURNS text
LANGUAGE plpgsql AS $$
DECLARE
    r text;
BEGIN
    -- Messages are named by their bodies, and so are those that are claimed.
    SELECT coalesce(string_agg(m.body::text, ' '), '-') INTO r
    FROM queue_step(q, claim_id,
        (SELECT array_agg(m.id) FROM queue_messages('q', NULL, 100, true, true, true) AS m
         WHERE m.body #>> '{}' = ANY (done)
         HAVING done IS NOT NULL AND count(*) > 0),
        (SELECT jsonb_agg(f - 'm' || jsonb_build_object('id', m.id))
         FROM jsonb_array_elements(failed) AS f
              JOIN queue_messages('q', NULL, 100, true, true, true) AS m ON m.body = f -> 'm'),
        push, 300, 60, "limit") AS m;
    RETURN r;
END $$;
CREATE FUNCTION claim() RETURNS text LANGUAGE sql AS
    'SELECT max(claim_id) FROM queue_messages(''q'', NULL, 100, true, true, true)';

-- The first step has no claim, and may push before it claims.
SELECT step('q', push => '[{"body": "a"}, {"body": "b"}, {"body": "c"}, {"body": "d"}]');
TABLE s;

-- All that has not failed is done; the next messages are claimed.
SELECT step('q', claim(), failed => '[{"m": "b", "error": "no luck", "delay": 600}]',
            push => '[{"body": "e"}, {"body": "f", "delay": 600}, {"body": "g", "queue": "r"}]');
TABLE s;
SELECT last_error FROM job_stats('q');
SELECT body, queue FROM queue_messages('r');

-- done says which ones are, and the rest is given back.
SELECT step('q', claim(), '{d}', "limit" => 0);
TABLE s;
SELECT step('q', "limit" => 1);

-- Done, failed and given back in one step
SELECT queue_post('q', '[{"body": "h"}, {"body": "i"}, {"body": "j"}]') IS NOT NULL;
SELECT step('q', claim(), "limit" => 3);
SELECT step('q', claim(), '{h}', '[{"m": "i", "delay": 0}]', "limit" => 0);
SELECT body, claim_count FROM queue_messages('q');

-- An empty array: nothing is done.
SELECT step('q', "limit" => 2);
SELECT count(*) FROM queue_step('q', claim(), '{}', "limit" => 0);
TABLE s;

-- All failed
SELECT step('q', "limit" => 2);
SELECT step('q', claim(), NULL, '[{"m": "i", "delay": 600}, {"m": "j", "delay": 700}]', "limit" => 1);
TABLE s;
SELECT count(*) FROM queue_messages('q', include_delayed => true);

-- Dead letters
SELECT queue_update('q', '{"_max_claim_count": 1}');
SELECT step('q', push => '[{"body": "k"}]', "limit" => 1);
SELECT step('q', claim(), NULL, '[{"m": "k", "error": "bad"}]');
SELECT body, last_error FROM queue_dead_letters('q.dead');
SELECT queue_update('q', '{"_max_claim_count": null}');

-- Groups: completing makes room for the next message of the group.  Here the call
-- may leave what it has pushed itself to the next one.
SELECT queue_update('q', '{"_group_concurrency": 1}');
SELECT step('q', push => '[{"body": "x", "group_key": "g"}, {"body": "y", "group_key": "g"}]', "limit" => 0);
SELECT step('q');
SELECT step('q', claim());
SELECT step('q', claim());
SELECT queue_update('q', '{"_group_concurrency": null}');

-- All or nothing
SELECT step('q', push => '[{"body": "l"}, {"body": "m"}]', "limit" => 0);
SELECT step('q');
SELECT claim() AS claim \gset
SELECT max(id) AS id FROM queue_messages('q', include_claimed => true) \gset
\set VERBOSITY default
SELECT queue_step('q', :'claim', push => '[{"body": 1}, {"body": 2, "ttl": 0}]');
SELECT queue_step('q', :'claim', push => '[{"body": 1}, {"ttl": 90}]');
SELECT queue_step('q', :'claim', push => '{"body": 1}');
SELECT queue_step('q', :'claim', ARRAY[:id], '[{"id": 1}]');
-- (the message would name ids, which are others each time)
\set VERBOSITY sqlstate
SELECT queue_step('q', :'claim', NULL, jsonb_build_array(jsonb_build_object('id', :id),
    jsonb_build_object('id', :id)));
SELECT queue_step('q', :'claim', ARRAY[:id], jsonb_build_array(jsonb_build_object('id', :id)));
\set VERBOSITY default
SELECT queue_step('q', :'claim', ARRAY[:id, NULL]);
SELECT queue_step('q', :'claim', NULL, '[{"id": 1}]');
SELECT queue_step('q', :'claim', NULL, '[{"error": "no id"}]');
SELECT queue_step('q', :'claim', NULL, '[{"id": "1"}]');
SELECT queue_step('q', :'claim', NULL, '[{"id": 1.5}]');
SELECT queue_step('q', :'claim', NULL, '[{"id": 1, "error": 5}]');
SELECT queue_step('q', :'claim', NULL, '[{"id": 1, "delay": -1}]');
SELECT queue_step('q', :'claim', NULL, '[{"id": 1, "reason": "x"}]');
SELECT queue_step('q', :'claim', NULL, '[1]');
SELECT queue_step('q', :'claim', NULL, '1');
SELECT queue_step('q', :'claim', NULL, '[{"id": "x"}]');
SELECT queue_step('q', :'claim', NULL, '[{"id": ""}]');
SELECT queue_step('q', :'claim', NULL, '[{"id": "1.0"}]');
SELECT queue_step('q', :'claim', NULL, '[{"id": "99999999999999999999"}]');
SELECT queue_step('q', :'claim', NULL, '[{"id": 1}, {"id": 2}, {"id": "1"}]');
SELECT queue_step('q', :'claim', '{1,2,1}');
SELECT queue_step('q', NULL, '{1}');
SELECT queue_step('q', NULL, NULL, '[{"id": 1}]');
SELECT queue_step('q', :'claim', ttl => 0);
SELECT queue_step('q', :'claim', "limit" => -1);
TABLE s;
SELECT count(*) FROM claim_messages('q', :'claim');

-- Like message_delete, it is no error that a message in done does not exist.
SELECT queue_step('q', :'claim', '{1}', jsonb_build_array(jsonb_build_object('id', :'id', 'delay', 600)), "limit" => 0);
TABLE s;

-- A claim that is not live
SELECT count(*) FROM queue_step('q', :'claim', "limit" => 0);
SELECT queue_step('q', :'claim', push => '[{"body": "lost"}]');
SELECT queue_step('q', :'claim', '{}');
SELECT queue_step('q', 'no such claim');
SELECT queue_step('never', 'no such claim');
SELECT count(*) FROM queue_messages('q') WHERE body = '"lost"';

-- A queue that does not exist
SELECT queue_step('never');
SELECT queue_step('never', "limit" => 0);
SELECT body, queue FROM queue_step('new', push => '[{"body": 1}]');

DROP FUNCTION step;
DROP FUNCTION claim;
DROP VIEW s;
DROP EXTENSION queue CASCADE;
