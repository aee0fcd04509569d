/* src/proxy/queue_proxy--1.1--1.2.sql; made by src/proxy/generate, do not edit */

-- complain if script is sourced in psql, rather than via ALTER EXTENSION
\echo Use "ALTER EXTENSION queue_proxy UPDATE TO '1.2'" to load this file. \quit

--
-- The foreign server
--
-- PL/Proxy does not use it as such any more, so it needs no user mappings and no
-- USAGE.  With USAGE, each role could make a user mapping that named another user.
--
DO $$
DECLARE
    r record;
BEGIN
    FOR r IN
        SELECT CASE WHEN m.umuser OPERATOR(pg_catalog.=) 0 THEN 'PUBLIC'
                    ELSE pg_catalog.quote_ident(
                        pg_catalog.pg_get_userbyid(m.umuser)) END AS role_name,
               m.umoptions IS NOT NULL AS has_options
        FROM pg_catalog.pg_user_mapping AS m
             JOIN pg_catalog.pg_foreign_server AS s
                 ON s.oid OPERATOR(pg_catalog.=) m.umserver
             JOIN pg_catalog.pg_foreign_data_wrapper AS w
                 ON w.oid OPERATOR(pg_catalog.=) s.srvfdw
        WHERE s.srvname OPERATOR(pg_catalog.=) 'queue'
          AND w.fdwname OPERATOR(pg_catalog.=) 'plproxy'
    LOOP
        EXECUTE pg_catalog.format('DROP USER MAPPING FOR %s SERVER queue', r.role_name);
        IF r.has_options THEN
            RAISE WARNING 'the user mapping of % for foreign server "queue" is dropped',
                r.role_name
                USING DETAIL = 'Its options had a user or a password.',
                HINT = 'If it was not you who made it, find out what that user has done on the servers. Passwords belong into a password file: see "The router" in doc/scaling.md.';
        END IF;
    END LOOP;
    FOR r IN
        SELECT DISTINCT CASE WHEN a.grantee OPERATOR(pg_catalog.=) 0 THEN 'PUBLIC'
                    ELSE pg_catalog.quote_ident(
                        pg_catalog.pg_get_userbyid(a.grantee)) END AS role_name
        FROM pg_catalog.pg_foreign_server AS s
             JOIN pg_catalog.pg_foreign_data_wrapper AS w
                 ON w.oid OPERATOR(pg_catalog.=) s.srvfdw
             CROSS JOIN LATERAL pg_catalog.aclexplode(s.srvacl) AS a
        WHERE s.srvname OPERATOR(pg_catalog.=) 'queue'
          AND w.fdwname OPERATOR(pg_catalog.=) 'plproxy'
          AND a.grantee OPERATOR(pg_catalog.<>) s.srvowner
    LOOP
        EXECUTE pg_catalog.format(
            'REVOKE ALL ON FOREIGN SERVER queue FROM %s CASCADE', r.role_name);
    END LOOP;
END
$$;

--
-- The privileges of the functions that exist stay as they are.
--
SELECT pg_catalog.set_config('queue_update.routines', ARRAY(
    SELECT d.objid
    FROM pg_catalog.pg_depend AS d
         JOIN pg_catalog.pg_extension AS e
             ON e.oid OPERATOR(pg_catalog.=) d.refobjid
    WHERE d.classid OPERATOR(pg_catalog.=) 'pg_catalog.pg_proc'::regclass
      AND d.refclassid OPERATOR(pg_catalog.=) 'pg_catalog.pg_extension'::regclass
      AND d.deptype OPERATOR(pg_catalog.=) 'e'
      AND e.extname OPERATOR(pg_catalog.=) 'queue_proxy')::text, true);

--
-- The functions that push
--
-- They get the arguments of batches.  A function with further arguments is a new
-- one, so privileges are granted anew, at the end of this file; also what was revoked
-- from the roles of the extension is not granted to them.
--
SELECT pg_catalog.set_config('queue_update.grants', pg_catalog.string_agg(
    pg_catalog.format('REVOKE EXECUTE ON FUNCTION %1$s
        FROM queue_producer, queue_consumer, queue_admin; %2$s', f.name,
        (SELECT pg_catalog.string_agg(
             pg_catalog.format('GRANT EXECUTE ON FUNCTION %s TO %s%s;', f.name,
                 CASE WHEN a.grantee OPERATOR(pg_catalog.=) 0::oid THEN 'PUBLIC'
                      ELSE a.grantee::pg_catalog.regrole::text END,
                 CASE WHEN a.is_grantable THEN ' WITH GRANT OPTION' ELSE '' END), '')
         FROM pg_catalog.aclexplode(p.proacl) AS a
         WHERE a.grantee OPERATOR(pg_catalog.<>) p.proowner)), ''), true)
FROM pg_catalog.pg_proc AS p
     CROSS JOIN LATERAL pg_catalog.format('%s(%s)', p.oid::pg_catalog.regproc,
         pg_catalog.regexp_replace(pg_catalog.oidvectortypes(p.proargtypes),
             '(, [^,]+, [^,]+)$', ', bigint, bigint, boolean\1')) AS f (name)
WHERE p.oid OPERATOR(pg_catalog.=) ANY (ARRAY[
    '@extschema@.queue_push(text, jsonb, integer, integer, integer, text, text, jsonb, text, text)',
    '@extschema@.queue_push_batch(text, jsonb[], integer, integer, integer, text[], text, text)',
    '@extschema@.queue_push_once(text, text, bigint, jsonb, integer, integer, integer, text, text, jsonb, text, text)',
    'queue_proxy.queue_push(text, jsonb, integer, integer, integer, text, text, jsonb, integer, text[])',
    'queue_proxy.queue_push_batch(text, jsonb[], integer, integer, integer, text[], integer, text[])',
    'queue_proxy.queue_push_once(text, text, bigint, jsonb, integer, integer, integer, text, text, jsonb, integer, text[])'
    ]::regprocedure[]::oid[]);
DROP FUNCTION @extschema@.queue_push(text, jsonb, integer, integer, integer, text, text, jsonb, text, text);
DROP FUNCTION @extschema@.queue_push_batch(text, jsonb[], integer, integer, integer, text[], text, text);
DROP FUNCTION @extschema@.queue_push_once(text, text, bigint, jsonb, integer, integer, integer, text, text, jsonb, text, text);
DROP FUNCTION queue_proxy.queue_push(text, jsonb, integer, integer, integer, text, text, jsonb, integer, text[]);
DROP FUNCTION queue_proxy.queue_push_batch(text, jsonb[], integer, integer, integer, text[], integer, text[]);
DROP FUNCTION queue_proxy.queue_push_once(text, text, bigint, jsonb, integer, integer, integer, text, text, jsonb, integer, text[]);

