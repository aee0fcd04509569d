-- What CREATE EXTENSION creates, with which privileges, and what DROP leaves.

\set VERBOSITY sqlstate

-- The four roles are created if they are missing.  They belong to the whole
-- cluster, so this is tested in transactions that are rolled back.
BEGIN;
DO $$
DECLARE
    role_name name;
BEGIN
    FOREACH role_name IN ARRAY
        '{queue_producer,queue_consumer,queue_admin,queue_monitor}'::name[]
    LOOP
        IF EXISTS (SELECT FROM pg_roles WHERE rolname = role_name) THEN
            EXECUTE format('ALTER ROLE %I RENAME TO %I',
                           role_name, 'regress_old_' || role_name);
        END IF;
    END LOOP;
END
$$;
SELECT count(*) AS roles_before FROM pg_roles
    WHERE rolname IN ('queue_producer', 'queue_consumer', 'queue_admin', 'queue_monitor');
CREATE EXTENSION queue;
SELECT rolname, rolcanlogin, rolsuper, rolcreaterole, rolcreatedb,
       rolreplication, rolbypassrls
    FROM pg_roles
    WHERE rolname IN ('queue_producer', 'queue_consumer', 'queue_admin', 'queue_monitor')
    ORDER BY rolname COLLATE "C";
ROLLBACK;

-- A role of that name that can log in is used, with a warning.
\set VERBOSITY default
BEGIN;
DO $$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'queue_consumer') THEN
        CREATE ROLE queue_consumer;
    END IF;
    ALTER ROLE queue_consumer LOGIN;
END
$$;
CREATE EXTENSION queue;
SELECT rolcanlogin AS left_alone FROM pg_roles
    WHERE rolname = 'queue_consumer';
ROLLBACK;
\set VERBOSITY sqlstate

-- Usable in the transaction that creates it; a rollback leaves nothing.
BEGIN;
CREATE EXTENSION queue;
SELECT queue_push('early', '1') > 0 AS pushed;
SELECT body FROM queue_claim('early', 60, 60);
ROLLBACK;
SELECT count(*) FROM pg_extension WHERE extname = 'queue';
SELECT count(*) FROM pg_namespace WHERE nspname = 'queue_data';

-- A schema of that name that exists already is not used.
CREATE SCHEMA queue_data;
CREATE EXTENSION queue;
DROP SCHEMA queue_data;

CREATE EXTENSION queue;
CREATE EXTENSION queue;
CREATE EXTENSION IF NOT EXISTS queue;
SELECT extname, extversion, n.nspname, extrelocatable
    FROM pg_extension e JOIN pg_namespace n ON n.oid = e.extnamespace
    WHERE extname = 'queue';

-- The functions: the names, arguments and results of the contract.
\pset format unaligned
SELECT p.proname || '(' ||
       pg_get_function_arguments(p.oid) || ')' AS function,
       pg_get_function_result(p.oid) AS result
    FROM pg_proc p JOIN pg_depend d
         ON d.classid = 'pg_proc'::regclass AND d.objid = p.oid
            AND d.deptype = 'e'
         JOIN pg_extension e
         ON e.oid = d.refobjid AND d.refclassid = 'pg_extension'::regclass
    WHERE e.extname = 'queue'
          AND p.proname IN ('queue_create', 'queue_set_metadata',
              'queue_update', 'queue_exists', 'queue_drop', 'queue_get',
              'queue_list', 'queue_purge', 'queue_pause', 'queue_resume',
              'queue_stats', 'queue_push', 'queue_push_batch', 'queue_post',
              'queue_messages', 'message_get', 'messages_get',
              'message_delete', 'messages_delete', 'queue_pop',
              'queue_claim', 'queue_claim_any', 'claim_next', 'claim_get',
              'claim_messages', 'claim_renew', 'claim_release',
              'claim_complete', 'queue_dead_letters', 'queue_redrive',
              'queue_grant', 'queue_revoke', 'queue_push_lazy',
              'queue_dedup_key', 'message_retry', 'job_root', 'job_stats',
              'job_handler', 'job_run', 'queue_shard', 'queue_shard_init', 'queue_push_once',
              'queue_is_empty', 'queue_ready_in_projects', 'job_list',
              'job_progress', 'queue_step',
              'batch_create', 'batch_close', 'batch_status', 'batch_list',
              'batch_cancel', 'message_bury', 'message_cancel',
              'messages_cancel', 'queue_cancel_where',
              'queue_finished', 'message_result', 'message_complete',
              'job_result', 'job_errors', 'queue_await', 'queue_browse',
              'queue_depth', 'messages_run_now', 'messages_bury', 'message_finished',
              'topic_bind', 'topic_unbind', 'topic_list', 'topic_publish')
    ORDER BY p.proname COLLATE "C";
\pset format aligned
\d queue_message

-- None is overloaded, so that untyped parameters resolve.
SELECT p.proname, count(*)
    FROM pg_proc p JOIN pg_depend d
         ON d.classid = 'pg_proc'::regclass AND d.objid = p.oid
            AND d.deptype = 'e'
         JOIN pg_extension e
         ON e.oid = d.refobjid AND d.refclassid = 'pg_extension'::regclass
    WHERE e.extname = 'queue'
    GROUP BY p.proname HAVING count(*) > 1
    ORDER BY p.proname COLLATE "C";

-- They read the clock and write: volatile, and parallel unsafe.
SELECT p.proname, p.provolatile, p.proparallel, p.prosecdef
    FROM pg_proc p JOIN pg_depend d
         ON d.classid = 'pg_proc'::regclass AND d.objid = p.oid
            AND d.deptype = 'e'
         JOIN pg_extension e
         ON e.oid = d.refobjid AND d.refclassid = 'pg_extension'::regclass
    WHERE e.extname = 'queue'
          AND (p.provolatile <> 'v' OR p.proparallel <> 'u' OR p.prosecdef)
    ORDER BY p.proname COLLATE "C";

-- Everything has a comment.
SELECT pg_describe_object(d.classid, d.objid, 0) AS without_comment
    FROM pg_depend d JOIN pg_extension e
         ON e.oid = d.refobjid AND d.refclassid = 'pg_extension'::regclass
    WHERE e.extname = 'queue' AND d.deptype = 'e'
          AND (d.classid <> 'pg_type'::regclass
               OR (SELECT typname FROM pg_type t WHERE t.oid = d.objid)
                  = 'queue_message')
          AND coalesce(obj_description(d.objid, d.classid::regclass::name), '')
              = ''
    ORDER BY 1;

-- PUBLIC can execute nothing, and only the owner can read a table.
SELECT p.oid::regprocedure AS open_to_public
    FROM pg_proc p JOIN pg_depend d
         ON d.classid = 'pg_proc'::regclass AND d.objid = p.oid
            AND d.deptype = 'e'
         JOIN pg_extension e
         ON e.oid = d.refobjid AND d.refclassid = 'pg_extension'::regclass
    WHERE e.extname = 'queue'
          AND (p.proacl IS NULL
               OR EXISTS (SELECT FROM aclexplode(p.proacl) a
                          WHERE a.grantee = 0))
    ORDER BY p.proname COLLATE "C";
SELECT c.relname AS open_to_others
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE n.nspname = 'queue_data'
          AND EXISTS (SELECT FROM aclexplode(c.relacl) a
                      WHERE a.grantee <> c.relowner)
    ORDER BY 1;
SELECT count(*) AS grants_on_schema
    FROM pg_namespace n, aclexplode(n.nspacl) a
    WHERE n.nspname = 'queue_data' AND a.grantee <> n.nspowner;

-- Every function is open to each of the three roles, as the C code does the
-- rest.
SELECT r.rolname, p.oid::regprocedure AS closed_to_role
    FROM pg_proc p JOIN pg_depend d
         ON d.classid = 'pg_proc'::regclass AND d.objid = p.oid
            AND d.deptype = 'e'
         JOIN pg_extension e
         ON e.oid = d.refobjid AND d.refclassid = 'pg_extension'::regclass
         CROSS JOIN pg_roles r
    WHERE e.extname = 'queue'
          AND r.rolname IN ('queue_producer', 'queue_consumer', 'queue_admin')
          AND NOT has_function_privilege(r.oid, p.oid, 'EXECUTE')
          AND (p.proname LIKE 'queue\_%' OR p.proname LIKE 'message%'
               OR p.proname LIKE 'claim\_%' OR p.proname LIKE 'job\_%')
    ORDER BY r.rolname, p.proname COLLATE "C";

-- It cannot be moved to another schema, and its members cannot be dropped.
CREATE SCHEMA regress_queue_schema;
ALTER EXTENSION queue SET SCHEMA regress_queue_schema;
DROP FUNCTION queue_exists(text);
DROP TABLE queue_data.message_3;

-- DROP removes all but the roles, also in a session that has used it.
SELECT queue_push('work', '"first"') > 0 AS pushed;
SELECT body, claim_count FROM queue_claim('work', 60, 60);
DROP EXTENSION queue;
SELECT count(*) FROM pg_namespace WHERE nspname = 'queue_data';
SELECT queue_push('work', '1');
SELECT rolname FROM pg_roles
    WHERE rolname IN ('queue_producer', 'queue_consumer', 'queue_admin', 'queue_monitor')
    ORDER BY rolname COLLATE "C";

-- Created again, in another schema, it starts empty, and this session does not
-- confuse it with the former one.
CREATE SCHEMA "Regress ""queue""";
CREATE EXTENSION queue SCHEMA "Regress ""queue""";
SELECT n.nspname, count(*)
    FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace
    WHERE p.proname IN ('queue_push', 'queue_claim', 'queue_message')
    GROUP BY 1;
SELECT queue_exists('work');
SET search_path = '';
SELECT "Regress ""queue""".queue_exists('work');
SELECT "Regress ""queue""".queue_push('work', '"second"') > 0 AS pushed;
SELECT body, claim_count
    FROM "Regress ""queue""".queue_claim('work', 60, 60);
SELECT relation, queue, state, body FROM queue_data.message;
RESET search_path;

-- A DROP that is rolled back leaves all as it was.
BEGIN;
DROP EXTENSION queue;
ROLLBACK;
SELECT (m).body, (m).claim_count FROM (SELECT
    "Regress ""queue""".queue_messages('work', include_claimed => true)) AS s (m);

-- Only a superuser can install it.
DROP EXTENSION queue;
CREATE ROLE regress_queue_user;
SET ROLE regress_queue_user;
CREATE EXTENSION queue SCHEMA public;
RESET ROLE;

DROP ROLE regress_queue_user;
DROP SCHEMA regress_queue_schema;
DROP SCHEMA "Regress ""queue""";
