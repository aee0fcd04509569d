/* src/proxy/queue_proxy--1.2.sql; made by src/proxy/generate, do not edit */

-- complain if script is sourced in psql, rather than via CREATE EXTENSION
\echo Use "CREATE EXTENSION queue_proxy" to load this file. \quit

SELECT pg_catalog.set_config('queue_update.routines', '{}', true);

--
-- Roles
--
-- The same as those of the extension queue.  The server of a queue checks them;
-- here they only allow to call it.
--
DO $$
DECLARE
    role_name name;
BEGIN
    FOREACH role_name IN ARRAY
        '{queue_producer,queue_consumer,queue_admin}'::name[]
    LOOP
        BEGIN
            IF NOT EXISTS (SELECT FROM pg_catalog.pg_roles
                           WHERE rolname OPERATOR(pg_catalog.=) role_name) THEN
                EXECUTE pg_catalog.format('CREATE ROLE %I NOLOGIN', role_name);
            END IF;
        EXCEPTION WHEN unique_violation OR duplicate_object THEN
            NULL;
        END;
        IF EXISTS (SELECT FROM pg_catalog.pg_roles
                   WHERE rolname OPERATOR(pg_catalog.=) role_name
                   AND rolcanlogin) THEN
            RAISE WARNING 'role "%" exists and can log in', role_name
                USING HINT = 'Members of this role get rights on queues; make sure that it is meant for that.';
        END IF;
    END LOOP;
END
$$;

CREATE SCHEMA queue_proxy;
COMMENT ON SCHEMA queue_proxy IS 'what the functions of the extension queue_proxy call';
GRANT USAGE ON SCHEMA queue_proxy
    TO queue_producer, queue_consumer, queue_admin;

