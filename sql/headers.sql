-- Headers and group keys: given with a push, returned with the message, kept
-- through everything that happens to it.

CREATE EXTENSION queue;
SET queue.min_claim_ttl = 1;
SET queue.min_message_ttl = 1;

CREATE FUNCTION pg_temp.shown(m queue_message) RETURNS text
LANGUAGE sql AS $$ SELECT concat_ws(' ', m.body, m.group_key, m.headers) $$;

SELECT queue_push('q', '1', group_key => 'ann', headers => '{"traceparent": "00-1"}') > 0 AS pushed;
SELECT queue_push('q', '2', headers => '{}') > 0 AS pushed;
SELECT queue_push('q', '3', group_key => 'ben') > 0 AS pushed;
SELECT queue_push('q', '4', group_key => NULL, headers => NULL) > 0 AS pushed;
SELECT queue_push('q', '5', headers => 'null') > 0 AS pushed;
SELECT count(*) FROM queue_push_batch('q', ARRAY['6', '7', '8']::jsonb[],
                                      group_keys => ARRAY['ann', NULL, 'cid']) AS ids, unnest(ids);
SELECT count(*) FROM queue_post('q', '[
    {"body": 9, "group_key": "ann", "headers": {"a": [1, 2]}},
    {"body": 10, "group_key": null, "headers": null}]') AS ids, unnest(ids);
BEGIN;
SELECT queue_push_lazy('q', '11', group_key => 'ann', headers => '{"lazy": true}');
COMMIT;
SELECT pg_temp.shown(m) FROM queue_messages('q', "limit" => 100) AS m;
-- Which group comes first is not defined.
SELECT m.id, pg_temp.shown(m) AS shown INTO TEMP TABLE got
    FROM queue_claim('q', 60, 60, 3) AS m;
INSERT INTO got SELECT m.id, pg_temp.shown(m) FROM queue_pop('q', 8) AS m;
SELECT shown FROM got ORDER BY id;

-- A large one is stored outside of the row, and returned whole.
SELECT queue_push('large', '1', headers => jsonb_build_object('h',
    (SELECT string_agg(md5(i::text), '') FROM generate_series(1, 1000) i))) > 0 AS pushed;
SELECT length(headers ->> 'h') AS h FROM queue_claim('large', 60, 60);

-- The lengths of keys are in bytes.
SELECT queue_push('q', '1', group_key => '');
SELECT queue_push('q', '1', group_key => repeat('k', 257));
SELECT queue_push('q', '1', group_key => repeat('k', 256)) > 0 AS pushed;
SELECT queue_push_batch('q', ARRAY['1', '2']::jsonb[], group_keys => ARRAY['a']);
SELECT queue_push_batch('q', ARRAY['1', '2']::jsonb[], group_keys => '{}');
SELECT queue_push_batch('q', ARRAY['1', '2']::jsonb[], group_keys => ARRAY['a', '']);
SELECT queue_push_batch('q', ARRAY['1', '2']::jsonb[], group_keys => '{{a},{b}}');
SELECT queue_push_batch('q', '{}', group_keys => '{}');
SELECT queue_post('q', '[{"body": 1, "group_key": 5}]');
SELECT queue_post('q', '[{"body": 1, "group_key": ""}]');

-- Headers count toward the size of the body.
SET queue.max_message_size = 1024;
SELECT queue_push('q', to_jsonb(repeat('b', 500)),
                  headers => to_jsonb(repeat('h', 400))) > 0 AS pushed;
\set VERBOSITY terse
SELECT queue_push('q', to_jsonb(repeat('b', 500)), headers => to_jsonb(repeat('h', 600)));
SELECT queue_push_lazy('q', to_jsonb(repeat('b', 500)), headers => to_jsonb(repeat('h', 600)));
SELECT queue_post('q', jsonb_build_array(jsonb_build_object(
    'body', repeat('b', 500), 'headers', repeat('h', 600))));
\set VERBOSITY default
RESET queue.max_message_size;
SELECT queue_create('post', '{"_max_messages_post_size": 100}');
\set VERBOSITY terse
SELECT queue_post('post', jsonb_build_array(
    jsonb_build_object('body', 1, 'headers', repeat('h', 40)),
    jsonb_build_object('body', 1, 'headers', repeat('h', 40))));
BEGIN;
SELECT queue_push_lazy('post', '1', headers => to_jsonb(repeat('h', 200)));
COMMIT;
\set VERBOSITY default

-- Delayed, due, claimed, renewed, released with a delay, retried, dead, redriven
SELECT queue_create('work', '{"_max_claim_count": 2, "_dead_letter_queue": "dead", "_retry_delay": 0}');
SELECT queue_push('work', '"w"', delay => 1, group_key => 'ann', headers => '{"h": 1}') AS id \gset
SELECT pg_temp.shown(m) FROM queue_messages('work', include_delayed => true) AS m;
SELECT pg_sleep(1.1);
SELECT pg_temp.shown(m), m.claim_id AS claim FROM queue_claim('work', 60, 60) AS m \gset
\echo :shown
SELECT claim_renew('work', :'claim', 100) IS NOT NULL AS renewed;
SELECT claim_release('work', :'claim', 1, failed => true);
SELECT pg_sleep(1.1);
SELECT pg_temp.shown(m), m.claim_id AS claim FROM queue_claim('work', 60, 60) AS m \gset
\echo :shown
SELECT message_retry('work', :id, :'claim', 'no luck') IS NULL AS dead;
SELECT pg_temp.shown(m) FROM queue_messages('dead') AS m;
SELECT queue_redrive('dead');
SELECT pg_temp.shown(m) FROM queue_claim('work', 60, 60) AS m;

-- A handler gets them.
CREATE TABLE seen (what text);
CREATE FUNCTION see(m queue_message) RETURNS boolean
LANGUAGE sql AS $$ INSERT INTO public.seen VALUES (concat_ws(' ', m.body, m.group_key, m.headers)) RETURNING true $$;
SELECT queue_create('jobs');
SELECT job_handler('jobs', 'see(queue_message)');
SELECT queue_push('jobs', '"j"', group_key => 'ann', headers => '{"h": 2}') > 0 AS pushed;
CALL job_run(ARRAY['jobs'], 1, 10, NULL) \gset
-- A background process may have been first, and be still at it.
DO $$
BEGIN
    FOR i IN 1..1000 LOOP
        EXIT WHEN EXISTS (SELECT FROM seen);
        PERFORM pg_sleep(0.01);
    END LOOP;
END
$$;
SELECT * FROM seen;

-- The view of all messages
SELECT DISTINCT group_key, headers FROM queue_data.message WHERE queue = 'work';

DROP TABLE seen;
DROP FUNCTION see(queue_message), pg_temp.shown(queue_message);
DROP EXTENSION queue;
