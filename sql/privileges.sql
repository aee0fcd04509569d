-- Privileges: which role may call which function.

CREATE EXTENSION queue;
\set VERBOSITY sqlstate

CREATE ROLE regress_queue_nobody;
CREATE ROLE regress_queue_producer;
CREATE ROLE regress_queue_consumer;
CREATE ROLE regress_queue_owner;
CREATE ROLE regress_queue_operator;
CREATE ROLE regress_queue_admin;
CREATE ROLE regress_queue_team;
CREATE ROLE regress_queue_member;
CREATE ROLE regress_queue_monitor IN ROLE queue_monitor;
GRANT queue_producer TO regress_queue_producer, regress_queue_owner;
GRANT queue_consumer TO regress_queue_consumer;
GRANT queue_producer, queue_consumer TO regress_queue_operator, regress_queue_member;
GRANT queue_admin TO regress_queue_admin;
GRANT regress_queue_team TO regress_queue_member;

-- The result of a call by this role, which is rolled back.
CREATE FUNCTION pg_temp.try(role name, call text) RETURNS text
LANGUAGE plpgsql SET client_min_messages = warning AS $$
DECLARE
    n bigint;
BEGIN
    EXECUTE format('SET LOCAL ROLE %I', 'regress_queue_' || role);
    IF call LIKE ANY ('{queue_wait(%,queue_await(%,job_run(%}') THEN
        EXECUTE 'CALL ' || call;
    ELSE
        EXECUTE 'SELECT count(*) FROM ' || call INTO n;
    END IF;
    RAISE SQLSTATE 'OK000';
EXCEPTION
    WHEN SQLSTATE 'OK000' THEN RETURN 'ok';
    WHEN OTHERS THEN RETURN sqlstate;
END
$$;
CREATE TEMP TABLE fixture (message bigint, claimed bigint, claim text);
CREATE FUNCTION pg_temp.m() RETURNS bigint LANGUAGE sql AS 'SELECT message FROM fixture';
CREATE FUNCTION pg_temp.cm() RETURNS bigint LANGUAGE sql AS 'SELECT claimed FROM fixture';
CREATE FUNCTION pg_temp.c() RETURNS text LANGUAGE sql AS 'SELECT claim FROM fixture';
GRANT SELECT ON fixture TO PUBLIC;

-- A queue belongs to the role that created it, also if a push created it.
SET ROLE regress_queue_owner;
SELECT queue_create('q', '{"_max_claim_count": 5}');
SELECT queue_push('auto', '1') > 0 AS pushed;
SELECT cardinality(queue_push_batch('auto/batch', '{1}'));
SELECT cardinality(queue_post('auto/post', '[{"body": 1}]'));
RESET ROLE;
SELECT name, owner FROM queue_data.queue ORDER BY name;
SELECT queue_push_batch('q', '{1, 2, 3, 4}') IS NOT NULL AS pushed;
INSERT INTO fixture
    SELECT (SELECT max(id) FROM queue_messages('q')), id, claim_id
    FROM queue_claim('q', 600, 60, 1);

-- each function on a queue of another role, by default
CREATE TEMP TABLE calls (n serial, call text);
INSERT INTO calls (call) VALUES
    ($$queue_create('new')$$),
    ($$queue_create('q')$$),
    ($$queue_push('new', '1')$$),
    ($$queue_push_batch('new', '{1}')$$),
    ($$queue_post('new', '[{"body": 1}]')$$),
    ($$queue_set_metadata('q', '{}')$$),
    ($$queue_update('q', '{}')$$),
    ($$queue_drop('q')$$),
    ($$queue_purge('q')$$),
    ($$queue_pause('q')$$),
    ($$queue_resume('q')$$),
    ($$queue_grant('q', 'regress_queue_team', 'push')$$),
    ($$queue_grant('q', 'regress_queue_team', 'claim')$$),
    ($$queue_grant('q', 'regress_queue_team', 'admin')$$),
    ($$queue_revoke('q', 'regress_queue_team', 'push')$$),
    ($$queue_set_owner('q', 'regress_queue_team')$$),
    ($$queue_exists('q')$$),
    ($$queue_get('q')$$),
    ($$queue_list()$$),
    ($$queue_stats('q')$$),
    ($$queue_depth('q')$$),
    ($$queue_depth()$$),
    ($$queue_groups('q')$$),
    ($$queue_push('q', '1')$$),
    ($$queue_push_batch('q', '{1}')$$),
    ($$queue_post('q', '[{"body": 1}]')$$),
    ($$queue_messages('q')$$),
    ($$queue_browse('q')$$),
    ($$message_get('q', pg_temp.m())$$),
    ($$messages_get('q', ARRAY[pg_temp.m()])$$),
    ($$message_delete('q', pg_temp.m())$$),
    ($$message_delete('q', pg_temp.cm(), pg_temp.c())$$),
    ($$messages_delete('q', ARRAY[pg_temp.m()])$$),
    ($$queue_pop('q')$$),
    ($$queue_claim('q', 60, 60)$$),
    ($$queue_claim_any('{q}', 60, 60)$$),
    ($$queue_claim_any(NULL, 60, 60)$$),
    ($$claim_next('q', NULL, 60, 60)$$),
    ($$claim_next('q', pg_temp.c(), 60, 60)$$),
    ($$queue_step('q')$$),
    ($$claim_get('q', pg_temp.c())$$),
    ($$claim_messages('q', pg_temp.c())$$),
    ($$claim_renew('q', pg_temp.c(), 60)$$),
    ($$claim_release('q', pg_temp.c())$$),
    ($$claim_complete('q', pg_temp.c())$$),
    ($$queue_dead_letters('q')$$),
    ($$queue_redrive('q')$$),
    ($$queue_push_lazy('q', '1')$$),
    ($$queue_push_once('q', 'o', 1, '1')$$),
    ($$queue_dedup_key('1')$$),
    ($$message_retry('q', 1, pg_temp.c())$$),
    ($$message_bury('q', 1, pg_temp.c(), 'e')$$),
    ($$message_cancel('q', 1)$$),
    ($$messages_cancel('q', '{1}')$$),
    ($$messages_run_now('q', '{1}')$$),
    ($$messages_bury('q', '{1}', 'e')$$),
    ($$queue_cancel_where('q', '{}')$$),
    ($$message_complete('q', 1, pg_temp.c())$$),
    ($$queue_finished('q')$$),
    ($$message_result('q', 1)$$),
    ($$message_finished('q', 1)$$),
    ($$queue_await('q', 1, 0)$$),
    ($$job_result('1')$$),
    ($$job_errors('q')$$),
    ($$job_root('q', 's')$$),
    ($$job_stats('q')$$),
    ($$queue_channel('q')$$),
    ($$queue_ready()$$),
    ($$queue_ready_in_projects()$$),
    ($$queue_is_empty('q')$$),
    ($$queue_wait('q', 0)$$),
    ($$job_handler('q', NULL)$$),
    ($$job_run()$$),
    ($$job_due(0)$$),
    ($$job_list()$$),
    ($$job_progress(1)$$),
    ($$queue_data.workers()$$),
    ($$queue_data.runners()$$),
    ($$queue_data.status()$$),
    ($$queue_data.segment_holders()$$),
    ($$queue_data.maps()$$),
    ($$queue_data.record_roles()$$),
    ($$queue_data.library_version()$$),
    ($$queue_data.roles_exist('q', '0', NULL, NULL, NULL)$$),
    ($$queue_data.roles_written()$$),
    ($$queue_data.segment_is_whole(0)$$),
    ($$queue_data.restored()$$),
    ($$queue_data.forget()$$),
    ($$queue_data.not_replicated()$$),
    ($$queue_shard('q')$$),
    ($$queue_shard_init(1, 2)$$),
    ($$queue_data.shard_lock(1)$$),
    ($$queue_data.count_copied(1)$$),
    ($$queue_data.counts(1)$$),
    ($$queue_data.shard_of('q', '')$$),
    ($$queue_data.channel('q')$$),
    ($$queue_data.drop_queue('q')$$),
    ($$queue_data.shard_written()$$),
    ($$queue_data.superusers_only()$$),
    ($$queue_data.handler_loaded()$$),
    ($$queue_data.handler_problem(1)$$),
    ($$batch_create('b')$$),
    ($$batch_close(1)$$),
    ($$batch_cancel(1)$$),
    ($$batch_status(1)$$),
    ($$batch_list()$$),
    ($$topic_bind('a.#', 'q')$$),
    ($$topic_unbind('a.#', 'q')$$),
    ($$topic_list()$$),
    ($$topic_publish('a', '1')$$),
    ($$queue_data.memory()$$),
    ($$queue_router.wait('q', 0)$$),
    ($$queue_router.call_settings('{}')$$),
    ($$queue_router.due(0)$$),
    ($$queue_router.push('q', '1')$$);
SELECT call, pg_temp.try('nobody', call) AS nobody,
       pg_temp.try('producer', call) AS producer,
       pg_temp.try('consumer', call) AS consumer,
       pg_temp.try('operator', call) AS both,
       pg_temp.try('owner', call) AS owner,
       pg_temp.try('admin', call) AS admin
    FROM calls ORDER BY n;
-- each was called for every role, so a function forgotten here shows
SELECT p.proname AS not_tried
    FROM pg_proc p JOIN pg_depend d
         ON d.classid = 'pg_proc'::regclass AND d.objid = p.oid
            AND d.deptype = 'e'
         JOIN pg_extension e
         ON e.oid = d.refobjid AND d.refclassid = 'pg_extension'::regclass
    WHERE e.extname = 'queue'
          AND NOT EXISTS (SELECT FROM calls
                          WHERE call LIKE p.proname || '(%'
                                OR call LIKE 'queue_data.' || p.proname || '(%'
                                OR call LIKE 'queue_router.' || p.proname || '(%')
    ORDER BY 1;
-- queue_monitor: only what is behind its views
SELECT call, pg_temp.try('monitor', call) FROM calls
    WHERE pg_temp.try('monitor', call) <> '42501' ORDER BY n;
-- on an unknown queue, reading needs the role nevertheless
SELECT call, pg_temp.try('nobody', call) AS nobody,
       pg_temp.try('producer', call) AS producer,
       pg_temp.try('consumer', call) AS consumer
    FROM (VALUES ($$queue_messages('unknown')$$),
                 ($$queue_claim('unknown', 60, 60)$$),
                 ($$queue_pop('unknown')$$),
                 ($$message_delete('unknown', 1)$$),
                 ($$queue_exists('unknown')$$),
                 ($$queue_stats('unknown')$$),
                 ($$queue_groups('unknown')$$)) AS v (call);

-- No other role can read the tables.  queue_admin can read the views that show no
-- message, queue_monitor those that monitoring needs.
SELECT c.relname, role AS can_read
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace,
         unnest('{nobody, producer, consumer, operator, owner, admin, monitor}'::text[]) role
    WHERE n.nspname = 'queue_data' AND c.relkind IN ('r', 'v')
          AND (has_table_privilege('regress_queue_' || role, c.oid,
                                   'SELECT, INSERT, UPDATE, DELETE, TRUNCATE')
               OR has_any_column_privilege('regress_queue_' || role, c.oid,
                                           'SELECT, INSERT, UPDATE'))
    ORDER BY 1, 2;
SELECT c.relname, role
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace,
         unnest('{nobody, producer, consumer, operator, owner, admin, monitor}'::text[]) role
    WHERE n.nspname = 'queue_data' AND c.relkind = 'S'
          AND has_sequence_privilege('regress_queue_' || role, c.oid,
                                     'SELECT, UPDATE, USAGE');
SELECT role, has_schema_privilege('regress_queue_' || role, 'queue_data', 'USAGE') AS usage
    FROM unnest('{nobody, operator, admin, monitor}'::text[]) role;
-- But the roles of PostgreSQL that may read, or write, all tables can do it here.
-- They are not among those that may call functions, nor may they read the views
-- that call some.
SELECT role,
       bool_and(has_table_privilege(role, c.oid, 'SELECT')) AS reads_all,
       bool_or(has_table_privilege(role, c.oid, 'SELECT')) AS reads,
       bool_or(has_table_privilege(role, c.oid, 'INSERT, UPDATE, DELETE')) AS writes,
       (SELECT bool_or(has_function_privilege(role, p.oid, 'EXECUTE'))
            FROM pg_proc p WHERE p.proname LIKE 'queue\_%') AS calls
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace,
         unnest('{pg_read_all_data, pg_write_all_data, pg_monitor, pg_database_owner}'::name[]) role
    WHERE n.nspname = 'queue_data' AND c.relkind IN ('r', 'v')
    GROUP BY role ORDER BY role;
SET ROLE pg_read_all_data;
SELECT count(*) > 0 AS bodies FROM queue_data.message WHERE body IS NOT NULL;
SELECT count(*) > 0 AS keys FROM queue_data.secret;
SELECT count(*) FROM queue_data.queue_status;
SELECT count(*) > 0 AS roles FROM queue_data.queue_roles;
RESET ROLE;
SET ROLE regress_queue_admin;
SELECT count(*) FROM queue_data.queue;
SELECT count(*) FROM queue_data.message;
SELECT count(*) FROM queue_data.message_0;
RESET ROLE;

-- What they read is right, too.
SET ROLE regress_queue_consumer;
SELECT body FROM queue_claim('q', 600, 60, 1);
RESET ROLE;
SET ROLE regress_queue_producer;
SELECT queue_push('q', '5') > 0 AS pushed;
RESET ROLE;
SELECT free, claimed FROM queue_stats('q');

-- An error may contain what is in a message: only those that may claim see it.
SELECT queue_push('errors', '"ann"') > 0 AS pushed;
SELECT message_retry('errors', id, claim_id, 'not ann') IS NOT NULL AS due
    FROM queue_claim('errors', 600, 60);
SET ROLE regress_queue_producer;
SELECT retried, last_error, last_error_at FROM job_stats('errors');
SET ROLE regress_queue_consumer;
SELECT retried, last_error FROM job_stats('errors');
RESET ROLE;
SELECT queue_drop('errors');

-- grant: narrows a privilege to the roles named, and their members
SET ROLE regress_queue_owner;
SELECT queue_grant('q', 'regress_queue_team', 'push');
RESET ROLE;
SELECT call, pg_temp.try('nobody', call) AS nobody,
       pg_temp.try('producer', call) AS producer,
       pg_temp.try('consumer', call) AS consumer,
       pg_temp.try('operator', call) AS both,
       pg_temp.try('member', call) AS member,
       pg_temp.try('owner', call) AS owner,
       pg_temp.try('admin', call) AS admin
    FROM calls WHERE call ~ $$'q'.*1$$ OR call ~ 'claim\(|pop|redrive' ORDER BY n;
SELECT pg_temp.try('team', $$queue_push('q', '1')$$);
SELECT queue_grant('q', 'regress_queue_producer', 'push');
SELECT pg_temp.try('producer', $$queue_push('q', '1')$$);
-- twice is once
SELECT queue_grant('q', 'regress_queue_producer', 'push');
SELECT queue_revoke('q', 'regress_queue_producer', 'push');
SELECT pg_temp.try('producer', $$queue_push('q', '1')$$);
SELECT queue_revoke('q', 'regress_queue_producer', 'push');
SELECT pg_temp.try('member', $$queue_push('q', '1')$$);
-- the list stays when it is empty
SELECT queue_revoke('q', 'regress_queue_team', 'push');
SELECT pg_temp.try('member', $$queue_push('q', '1')$$),
       pg_temp.try('operator', $$queue_push('q', '1')$$),
       pg_temp.try('owner', $$queue_push('q', '1')$$),
       pg_temp.try('admin', $$queue_push('q', '1')$$);
-- revoking what was never granted to anyone by name is an error
SELECT queue_revoke('q', 'regress_queue_team', 'claim');
SELECT pg_temp.try('consumer', $$queue_claim('q', 60, 60)$$);
SELECT queue_grant('q', 'regress_queue_team', 'claim');
SELECT call, pg_temp.try('consumer', call) AS consumer,
       pg_temp.try('operator', call) AS both,
       pg_temp.try('member', call) AS member,
       pg_temp.try('owner', call) AS owner,
       pg_temp.try('admin', call) AS admin
    FROM calls
    WHERE call ~ '^(message|claim|queue_(messages|groups|pop|claim|dead|redrive|stats|get|exists))'
    ORDER BY n;
-- claim_any claims only from queues that the session may claim from
SELECT queue_push('free-for-all', '"of all"') > 0 AS pushed;
SELECT count(queue_drop(name)) FROM queue_list(pattern => '^auto');
SET ROLE regress_queue_consumer;
SELECT queue, body FROM queue_claim_any(NULL, 60, 60);
SELECT queue, body FROM queue_claim_any(NULL, 60, 60);
SELECT queue, body FROM queue_claim_any('{q}', 60, 60);
RESET ROLE;
SELECT queue_revoke('q', 'regress_queue_team', 'claim');
SELECT pg_temp.try('member', $$queue_claim('q', 60, 60)$$),
       pg_temp.try('owner', $$queue_claim('q', 60, 60)$$);

-- admin: may do what the owner may
SELECT queue_create('p');
SELECT queue_push('p', '1') AS id1 \gset
SELECT claim_id AS claim FROM queue_claim('p', 600, 60) \gset
UPDATE fixture SET message = :id1, claimed = :id1, claim = :'claim';
UPDATE calls SET call = replace(call, '''q''', '''p''');
SELECT queue_grant('p', 'regress_queue_team', 'admin');
SELECT call, pg_temp.try('operator', call) AS both,
       pg_temp.try('member', call) AS member
    FROM calls WHERE call ~ '''p''' ORDER BY n;
SELECT queue_revoke('p', 'regress_queue_team', 'admin');
SELECT pg_temp.try('member', $$queue_pause('p')$$);

-- grants are part of the transaction, and of the queue
BEGIN;
SELECT queue_grant('p', 'regress_queue_team', 'claim');
SELECT pg_temp.try('operator', $$queue_claim('p', 60, 60)$$);
ROLLBACK;
SELECT pg_temp.try('operator', $$queue_claim('p', 60, 60)$$);
SELECT queue_grant('p', 'regress_queue_team', 'claim');
SELECT queue_drop('p');
SELECT queue_create('p');
SELECT pg_temp.try('operator', $$queue_claim('p', 60, 60)$$);

-- wrong arguments
SELECT queue_grant('p', 'regress_queue_team', 'read');
SELECT queue_grant('p', 'regress_queue_team', 'PUSH');
SELECT queue_grant('p', 'regress_queue_team', '');
SELECT queue_grant('p', 'regress_queue_team', NULL);
SELECT queue_grant('p', NULL, 'push');
SELECT queue_grant(NULL, 'regress_queue_team', 'push');
SELECT queue_grant('p', 'regress_queue_no_such_role', 'push');
SELECT queue_grant('p', '-', 'push');
SELECT queue_grant('p', 4294967295::oid::regrole, 'push');
SELECT queue_grant('unknown', 'regress_queue_team', 'push');
SELECT queue_grant('not a name', 'regress_queue_team', 'push');
SELECT queue_revoke('p', 'regress_queue_team', 'read');
SELECT queue_revoke('p', 'regress_queue_team', NULL);
SELECT queue_revoke('p', NULL, 'push');
SELECT queue_revoke(NULL, 'regress_queue_team', 'push');
SELECT queue_revoke('unknown', 'regress_queue_team', 'push');
SELECT push_roles, claim_roles, admin_roles FROM queue_data.queue WHERE name = 'p';

-- Privileges are checked at each call.
SET ROLE regress_queue_operator;
SELECT queue_push('p', '1') > 0 AS pushed;
SELECT body FROM queue_claim('p', 60, 60);
RESET ROLE;
REVOKE queue_producer, queue_consumer FROM regress_queue_operator;
SET ROLE regress_queue_operator;
SELECT queue_push('p', '1') > 0 AS pushed;
SELECT count(*) FROM queue_claim('p', 60, 60);
RESET ROLE;
GRANT queue_producer, queue_consumer TO regress_queue_operator;

-- The current user is checked: in a SECURITY DEFINER function, its owner.
CREATE FUNCTION regress_queue_push() RETURNS boolean
LANGUAGE sql SECURITY DEFINER SET search_path = public, pg_temp AS
$$ SELECT queue_push('definer', '1') > 0 $$;
ALTER FUNCTION regress_queue_push() OWNER TO regress_queue_producer;
SELECT pg_temp.try('nobody', 'queue_push(''definer'', ''1'')');
SET ROLE regress_queue_nobody;
SELECT regress_queue_push();
RESET ROLE;
SELECT owner FROM queue_data.queue WHERE name = 'definer';
DROP FUNCTION regress_queue_push();

-- The owner of the source needs the push privilege on the dead letter queue.
SELECT queue_create('closed');
SELECT queue_grant('closed', 'regress_queue_team', 'push');
SET ROLE regress_queue_owner;
SELECT queue_create('source', '{"_max_claim_count": 1, "_dead_letter_queue": "closed"}');
SELECT queue_create('source', '{"_max_claim_count": 1, "_dead_letter_queue": "open"}');
SELECT queue_update('source', '{"_dead_letter_queue": "closed"}');
SELECT queue_set_metadata('source', '{"_dead_letter_queue": "closed"}');
SELECT queue_update('source', '{"_dead_letter_queue": "p"}');
SELECT queue_update('source', '{"_dead_letter_queue": "open"}');
SELECT queue_push('source', '1') > 0 AS pushed;
RESET ROLE;
-- it belongs to the owner of the source, although a consumer released it
SET ROLE regress_queue_consumer;
SELECT claim_id AS claim FROM queue_claim('source', 600, 60) \gset
SELECT claim_release('source', :'claim', failed => true);
RESET ROLE;
SELECT name, owner FROM queue_data.queue WHERE name = 'open';
SELECT body, origin_queue FROM queue_dead_letters('open');

-- If that privilege was revoked meanwhile, the message stays where it is, and
-- is not handed out; if it is granted again, the message is moved.
SELECT queue_create('morgue');
SET ROLE regress_queue_owner;
SELECT queue_create('source/2', '{"_max_claim_count": 1, "_dead_letter_queue": "morgue"}');
SELECT queue_push('source/2', '1') > 0 AS pushed;
RESET ROLE;
SELECT queue_grant('morgue', 'regress_queue_team', 'push');
SET ROLE regress_queue_consumer;
SELECT claim_id AS claim FROM queue_claim('source/2', 600, 60) \gset
SELECT claim_release('source/2', :'claim', failed => true);
SET client_min_messages = error;
SELECT count(*) FROM queue_claim('source/2', 600, 60);
SELECT count(*) FROM queue_pop('source/2');
RESET client_min_messages;
RESET ROLE;
SELECT free, claimed, total FROM queue_stats('source/2');
SELECT count(*) FROM queue_dead_letters('morgue');
SELECT queue_grant('morgue', 'regress_queue_owner', 'push');
SELECT count(*) FROM queue_claim('source/2', 600, 60);
SELECT total FROM queue_stats('source/2');
SELECT body, origin_queue FROM queue_dead_letters('morgue');

-- A queue that has the default name and belongs to another role is refused,
-- but not if the metadata names it, as that is the owner's choice.
SET ROLE regress_queue_producer;
SELECT queue_create('source/3.dead');
SET ROLE regress_queue_owner;
SELECT queue_create('source/3', '{"_max_claim_count": 1}');
SELECT queue_exists('source/3');
SELECT queue_create('source/3', '{"_max_claim_count": 1, "_dead_letter_queue": "source/3.dead"}');
SELECT queue_push('source/3', '3') > 0 AS pushed;
SET ROLE regress_queue_consumer;
SELECT claim_id AS claim FROM queue_claim('source/3', 600, 60) \gset
SELECT claim_release('source/3', :'claim', failed => true);
RESET ROLE;
SELECT total FROM queue_stats('source/3');
SELECT total FROM queue_stats('source/3.dead');

-- redrive: claim on the dead letter queue, push on the target
SELECT role, pg_temp.try(role, $$queue_redrive('open')$$) AS home,
       pg_temp.try(role, $$queue_redrive('open', 'p')$$) AS other,
       pg_temp.try(role, $$queue_redrive('open', 'closed')$$) AS closed,
       pg_temp.try(role, $$queue_redrive('open', 'new')$$) AS new
    FROM unnest('{nobody, producer, consumer, operator, owner, admin}'::name[]) role;
SELECT queue_grant('open', 'regress_queue_team', 'claim');
SELECT role, pg_temp.try(role, $$queue_redrive('open')$$) AS home
    FROM unnest('{operator, member}'::name[]) role;

-- A project is a namespace, not a privilege.
SET ROLE regress_queue_consumer;
SET queue.project = 'x';
SELECT count(*) FROM queue_claim('open', 60, 60);
RESET queue.project;
SELECT count(*) FROM queue_claim('open', 60, 60);
RESET ROLE;

-- A role that owns a queue or has privileges on it cannot be dropped; the
-- detail names the view that lists these queues.
CREATE ROLE regress_queue_leaver;
GRANT queue_producer TO regress_queue_leaver;
SET ROLE regress_queue_leaver;
SELECT queue_create('left', '{"_max_claim_count": 1}');
RESET ROLE;
SELECT queue_grant('p', 'regress_queue_leaver', 'push');
\set VERBOSITY terse
DROP ROLE regress_queue_leaver;
\set VERBOSITY sqlstate
SELECT * FROM queue_data.queue_roles WHERE role = 'regress_queue_leaver'::regrole
    ORDER BY queue;
SELECT queue_set_owner('left', 'regress_queue_owner');
DROP ROLE regress_queue_leaver;
SELECT queue_revoke('p', 'regress_queue_leaver', 'push');
DROP ROLE regress_queue_leaver;
SELECT name, owner FROM queue_data.queue WHERE name ~ '^left' ORDER BY name;
SELECT queue_drop('left'), queue_drop('left.dead');

-- Safe with any search_path: objects that a user puts there are not used.
CREATE SCHEMA regress_queue_trap;
CREATE TABLE regress_queue_trap.queue (id int, name text);
CREATE TABLE regress_queue_trap.message_0 (id int);
CREATE TABLE regress_queue_trap.ring (active int);
CREATE TYPE regress_queue_trap.queue_message AS (id text);
CREATE FUNCTION regress_queue_trap.trap(anyelement, anyelement) RETURNS boolean
    LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'trapped'; END $$;
CREATE OPERATOR regress_queue_trap.= (FUNCTION = regress_queue_trap.trap,
    LEFTARG = anyelement, RIGHTARG = anyelement);
CREATE FUNCTION regress_queue_trap.clock_timestamp() RETURNS timestamptz
    LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'trapped'; END $$;
CREATE FUNCTION regress_queue_trap.nextval(regclass) RETURNS bigint
    LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'trapped'; END $$;
SET search_path = regress_queue_trap, pg_catalog;
SELECT public.queue_create('trap', '{"_max_claim_count": 1}');
SELECT public.queue_push('trap', '1', 600, 0, 0, 'k') OPERATOR(pg_catalog.>) 0 AS pushed;
SELECT public.queue_push('trap', '1', 600, 0, 0, 'k') IS NULL AS dropped;
SELECT claim_id AS claim FROM public.queue_claim('trap', 60, 60) \gset
SELECT public.claim_release('trap', :'claim', failed => true);
SELECT body FROM public.queue_dead_letters('trap.dead');
SELECT public.queue_redrive('trap.dead');
SELECT body FROM public.queue_pop('trap', 1);
SELECT name FROM public.queue_list(NULL, 1, '^trap$');
SELECT public.queue_drop('trap');
SELECT count(*) FROM queue_data.message
    WHERE state OPERATOR(pg_catalog.=) 'free'
          AND queue OPERATOR(pg_catalog.=) 'trap';
SET search_path = '';
SELECT public.queue_push('trap', '1') > 0 AS pushed;
SELECT body FROM public.queue_claim('trap', 60, 60);
RESET search_path;
SET client_min_messages = warning;
DROP SCHEMA regress_queue_trap CASCADE;
RESET client_min_messages;

-- A queue that is passed over for a role, which may not claim from it, is found by
-- the next one.
SELECT queue_create('passed') IS NOT NULL AS created;
SELECT queue_grant('passed', 'regress_queue_member', 'claim');
SELECT queue_push('passed', '1') > 0 AS pushed;
SET ROLE regress_queue_operator;
SELECT 'passed' IN (SELECT queue_ready()) AS ready;
SET ROLE regress_queue_member;
SELECT 'passed' IN (SELECT queue_ready()) AS ready;
RESET ROLE;

DROP TABLE fixture;
DROP TABLE calls;
DROP EXTENSION queue;
DROP ROLE regress_queue_monitor;
DROP ROLE regress_queue_nobody, regress_queue_producer, regress_queue_consumer,
    regress_queue_owner, regress_queue_operator, regress_queue_admin,
    regress_queue_member, regress_queue_team;
