-- Wrong calls, each with the error, warning or notice that it gets.  It names
-- what is wrong, with the bound and the setting, and in the hint the next step.
-- Four errors are PostgreSQL's own, and have no hint: an invalid regular
-- expression, a function without permission, and two read-only transactions.

CREATE EXTENSION queue;
\set SHOW_CONTEXT never
-- the same of a call whose message names an id
CREATE FUNCTION pg_temp.say(call text, id bigint)
RETURNS TABLE (code text, message text, detail text, hint text)
LANGUAGE plpgsql AS $$
BEGIN
    EXECUTE 'SELECT FROM ' || call;
EXCEPTION WHEN OTHERS THEN
    GET STACKED DIAGNOSTICS code = RETURNED_SQLSTATE,
        message = MESSAGE_TEXT, detail = PG_EXCEPTION_DETAIL,
        hint = PG_EXCEPTION_HINT;
    message := replace(message, id::text, '(id)');
    RETURN NEXT;
END
$$;

SELECT queue_push_batch('q', '{1, 2, 3}') IS NOT NULL AS pushed;
SELECT id, claim_id AS claim FROM queue_claim('q', 60, 60, 1) \gset
SELECT id AS other FROM queue_claim('q', 60, 60, 1) \gset
SELECT min(id) AS free FROM queue_messages('q') \gset

-- names
SELECT queue_create(NULL);
SELECT queue_create('');
SELECT queue_create('it''s "quoted"');
SELECT queue_create(repeat('x', 65));
SELECT queue_create('a%sb%n');
-- a long one is not repeated in full
SELECT length(message) < 500 AS short, hint
    FROM pg_temp.say('queue_create(repeat(''x'', 1000000))', 0);
-- metadata
SELECT queue_create('new', NULL);
SELECT queue_create('new', '[]');
SELECT queue_create('new', jsonb_build_object('k', repeat('x', 70000)));
SELECT queue_create('new', '{"_default_message_ttl": "60"}');
SELECT queue_create('new', '{"_default_message_ttl": 59}');
SELECT queue_create('new', '{"_default_message_ttl": 1209601}');
SELECT queue_create('new', '{"_default_message_delay": -1}');
SELECT queue_create('new', '{"_default_message_delay": 1209601}');
SELECT queue_create('new', '{"_max_messages_post_size": 0}');
SELECT queue_create('new', '{"_max_claim_count": 0}');
SELECT queue_create('new', '{"_max_claim_count": 1.5}');
SELECT queue_create('new', '{"_max_claim_count": 99999999999999999999}');
SELECT queue_create('new', '{"_dead_letter_queue": 1}');
SELECT queue_create('new', '{"_dead_letter_queue": "not a name"}');
SELECT queue_create('new', '{"_dead_letter_queue": "new"}');
SELECT queue_create('a', '{"_dead_letter_queue": "b"}');
SELECT queue_update('b', '{"_dead_letter_queue": "a"}');
SELECT queue_create('new', '{"_dead_letter_queue_messages_ttl": 0}');
SELECT queue_create('new', '{"_retry_delay": "x"}');
SELECT queue_create('new', '{"_retry_backoff": "x"}');
SELECT queue_set_metadata('unknown', '{}');
SELECT queue_update('unknown', '{}');
SELECT queue_update('q', '[]');
SELECT queue_pause('unknown');
SELECT queue_resume('unknown');
-- a typo, and metadata that has no effect
SELECT queue_create('typo', '{"_max_claim_cuont": 3}');
SELECT queue_create('typo', '{"_max_claim_count": 3}');
-- no room for the name of a dead letter queue
SELECT queue_create(repeat('x', 60), '{"_max_claim_count": 3}');
SELECT queue_create('new', '{"_group_concurrency": 0}');
SELECT queue_create('new', '{"_group_rate": 0}');
-- listings
SELECT * FROM queue_list("limit" => 0);
SELECT * FROM queue_list("limit" => NULL);
SELECT * FROM queue_list(pattern => '(');
SELECT * FROM queue_messages('q', "limit" => 10001);
SELECT * FROM queue_messages('q', echo => NULL);
SELECT * FROM queue_dead_letters('q', 0);
-- grants
SELECT queue_grant('q', 'queue_admin', 'read');
SELECT queue_grant('q', NULL, 'push');
SELECT queue_grant('unknown', 'queue_admin', 'push');
SELECT queue_grant('q', '-', 'push');
SELECT queue_revoke('q', 'queue_admin', 'push');
SELECT queue_revoke('q', 'queue_admin', 'admin');
-- pushes
SELECT queue_push('q', NULL);
SELECT queue_push('q', '1', 59);
SELECT queue_push('q', '1', 1209601);
SELECT queue_push('q', '1', delay => -1);
SELECT queue_push('q', '1', delay => 1209601);
SELECT queue_push('q', '1', priority => NULL);
SELECT queue_push('q', '1', priority => 10);
SELECT queue_push('q', to_jsonb(repeat('x', 262133)));
SET queue.auto_create = off;
SELECT queue_push('unknown', '1');
RESET queue.auto_create;
SELECT queue_push_batch('q', NULL);
SELECT queue_push_batch('q', '{1, NULL}');
SELECT queue_push_batch('q', '{{1, 2}}');
SET queue.max_push_count = 2;
SELECT queue_push_batch('q', '{1, 2, 3}');
SELECT queue_post('q', '[{"body": 1}, {"body": 2}, {"body": 3}]');
RESET queue.max_push_count;
SELECT queue_post('q', NULL);
SELECT queue_post('q', '{"body": 1}');
SELECT queue_post('q', '[{"body": 1}, 2]');
SELECT queue_post('q', '[{"body": 1}, {"ttl": 60}]');
SELECT queue_post('q', '[{"body": 1, "tll": 60}]');
SELECT queue_post('q', '[{"body": 1, "ttl": "60"}]');
SELECT queue_post('q', '[{"body": 1, "ttl": 59}]');
SELECT queue_post('q', '[{"body": 1, "delay": 0.5}]');
SELECT queue_post('q', '[{"body": 1, "priority": 10}]');
SELECT queue_post('q', '[{"body": 1, "dedup_key": 1}]');
SELECT queue_push('q', '1', group_key => '');
SELECT queue_push_batch('q', '{1, 2}', group_keys => '{a}');
SELECT queue_update('q', '{"_max_messages_post_size": 30}');
SELECT queue_push_batch('q', '{1, 2, 3}');
-- messages
SELECT * FROM message_get('q', NULL);
SELECT * FROM messages_get('q', NULL);
SELECT * FROM messages_get('q', '{{1, 2}}');
SELECT message_delete('q', NULL);
\pset expanded on
SELECT * FROM pg_temp.say(format('message_delete(''q'', %s)', :id), :id);
SELECT * FROM pg_temp.say(format('message_delete(''q'', %s, %L)', :free, :'claim'), :free);
SELECT * FROM pg_temp.say(format('messages_delete(''q'', ''{%s}'', %L)', :other, :'claim'), :other);
\pset expanded off
SELECT message_delete('q', :free, 'no such claim');
SELECT messages_delete('q', NULL);
SELECT messages_delete('q', '{{1, 2}}');
-- claims
SELECT * FROM queue_claim('q', NULL, 60);
SELECT * FROM queue_claim('q', 60, NULL);
SELECT * FROM queue_claim('q', 59, 60);
SELECT * FROM queue_claim('q', 43201, 60);
SELECT * FROM queue_claim('q', 60, 59);
SELECT * FROM queue_claim('q', 60, 43201);
SELECT * FROM queue_claim('q', 60, 60, 0);
SELECT * FROM queue_claim('q', 60, 60, 101);
SELECT * FROM queue_pop('q', 101);
SELECT * FROM queue_pop('q', NULL);
SELECT * FROM queue_claim_any('{q, NULL}', 60, 60);
SELECT * FROM claim_next('q', 'no such claim', 60, 60);
SELECT claim_renew('q', :'claim', NULL);
SELECT claim_renew('q', :'claim', 59);
SELECT claim_renew('q', :'claim', 60, 43201);
SELECT claim_release('q', :'claim', NULL, failed => true);
SELECT claim_release('q', :'claim', -1, failed => true);
SELECT claim_complete('q', NULL);
SELECT claim_complete('q', 'no such claim');
SELECT queue_create('d', '{"_max_claim_count": 1}');
SELECT queue_push('d', '1') > 0 AS pushed;
SELECT claim_id AS dead FROM queue_claim('d', 60, 60) \gset
SELECT claim_release('d', :'dead', failed => true);
SET queue.auto_create = off;
SELECT queue_redrive('d.dead', 'unknown');
RESET queue.auto_create;
SELECT queue_redrive('d.dead', "limit" => 0);
SELECT queue_redrive('d.dead', 'd.dead');
SELECT queue_drop('d.dead');
SELECT queue_set_owner('d.dead', 'queue_admin');
-- waiting and running jobs
BEGIN;
CALL queue_wait('q', 1000);
ROLLBACK;
CALL queue_wait('q', -1);
SELECT queue_wait('q', 1000);
CALL queue_push('q', '1');
BEGIN;
CALL job_run();
ROLLBACK;
CALL job_run('{q}');
CALL job_run('{unknown}');
CALL job_run(max_jobs => 0);
SELECT job_handler('unknown', 'jsonb_typeof(jsonb)');
SELECT job_handler('q', 'jsonb_typeof(jsonb)');
SELECT job_handler('q', 'pg_sleep(float8)');
SELECT job_handler('q', 'jsonb_typeof(jsonb)', 0);
SELECT job_handler('q', 'jsonb_typeof(jsonb)', rate => 0);
SELECT job_handler('q', 0::regprocedure);
SELECT job_root('q', '');
-- rights
CREATE ROLE regress_queue_user;
SET ROLE regress_queue_user;
-- this one has no hint; the reference says what to grant
SELECT queue_push('q', '1');
RESET ROLE;
GRANT queue_consumer TO regress_queue_user;
SET ROLE regress_queue_user;
SELECT queue_create('new');
SELECT queue_push('q', '1');
SELECT queue_push('new', '1');
SELECT queue_drop('q');
SELECT queue_grant('q', 'regress_queue_user', 'admin');
-- not a grant of admin, which would not be enough
SELECT queue_set_owner('q', 'regress_queue_user');
RESET ROLE;
SELECT queue_grant('q', 'queue_admin', 'claim');
SELECT queue_revoke('q', 'regress_queue_user', 'claim');
SET ROLE regress_queue_user;
SELECT * FROM queue_claim('q', 60, 60);
SELECT * FROM queue_messages('q');
RESET ROLE;

-- What the hint says to run is what is missing, whichever that is.
CREATE FUNCTION pg_temp.obey(role text, call text) RETURNS SETOF text
LANGUAGE plpgsql AS $$
DECLARE
    hint text;
    command text;
BEGIN
    EXECUTE format('SET ROLE %I', role);
    EXECUTE 'SELECT FROM ' || call;
    RAISE 'nothing is missing';
EXCEPTION WHEN insufficient_privilege THEN
    GET STACKED DIAGNOSTICS hint = PG_EXCEPTION_HINT;
    RESET ROLE;
    FOR command IN SELECT (regexp_matches(hint,
        'can run: ((?:SET [^;]*; )?[^;]*;)', 'g'))[1]
    LOOP
        EXECUTE command;
        RETURN NEXT command;
    END LOOP;
    EXECUTE format('SET ROLE %I', role);
    EXECUTE 'SELECT FROM ' || call;
    RESET ROLE;
END
$$;
CREATE ROLE "regress_queue ann" IN ROLE queue_producer;
CREATE ROLE regress_queue_bob IN ROLE queue_consumer;
CREATE SCHEMA regress_queue;
CREATE FUNCTION regress_queue.job(jsonb) RETURNS boolean LANGUAGE sql AS 'SELECT true';
REVOKE EXECUTE ON FUNCTION regress_queue.job FROM PUBLIC;
SELECT queue_create('source', '{"_max_claim_count": 1}');
SELECT queue_grant('source', 'regress_queue_bob', 'claim');
SELECT pg_temp.obey('regress_queue ann', $$queue_claim('q')$$);
SELECT pg_temp.obey('regress_queue_bob', $$queue_create('bobs')$$);
-- on the source queue, since a grant on its dead letter queue would exclude bob
SELECT pg_temp.obey('regress_queue ann', $$queue_messages('source.dead')$$);
SET ROLE regress_queue_bob;
SELECT * FROM queue_messages('source.dead');
RESET ROLE;
SELECT pg_temp.obey('regress_queue ann', $$queue_pause('source.dead')$$);
GRANT USAGE ON SCHEMA regress_queue TO regress_queue_bob;
SELECT pg_temp.obey('regress_queue_bob', $$job_handler('bobs', 'regress_queue.job(jsonb)')$$);
SET queue.project = 'it''s';
SELECT queue_create('q');
SELECT pg_temp.obey('regress_queue_bob', $$queue_drop('q')$$);
RESET queue.project;
-- to name a dead letter queue of another role
SELECT queue_create('closed');
SELECT queue_grant('closed', 'queue_admin', 'push');
SELECT pg_temp.obey('regress_queue_bob', $$queue_update('bobs', '{"_dead_letter_queue": "closed"}')$$);
-- as the owner may, so must the caller
SELECT queue_update('bobs', '{"_dead_letter_queue": null}');
SELECT queue_grant('bobs', '"regress_queue ann"', 'admin');
SELECT pg_temp.obey('regress_queue ann', $$queue_update('bobs', '{"_dead_letter_queue": "closed"}')$$);
-- settings
DO $$ BEGIN PERFORM set_config('queue.project', repeat('x', 257), false); END $$;
DO $$ BEGIN PERFORM set_config('queue.client_id', repeat('x', 257), false); END $$;
-- read-only
BEGIN READ ONLY;
SELECT queue_push('q', '1');
ROLLBACK;
BEGIN READ ONLY;
SELECT * FROM queue_claim('q', 60, 60);
ROLLBACK;
-- a session that has not read the key yet
\c -
BEGIN;
DELETE FROM queue_data.secret;
SELECT queue_push('new', '1') > 0 AS pushed;
SELECT * FROM queue_claim('new', 60, 60);
ROLLBACK;

DROP EXTENSION queue;
DROP FUNCTION regress_queue.job;
DROP SCHEMA regress_queue;
DROP ROLE regress_queue_user, "regress_queue ann", regress_queue_bob;
