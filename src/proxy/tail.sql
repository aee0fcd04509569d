--
-- Privileges of the functions that are new
--
DO $$
DECLARE
    routine regprocedure;
BEGIN
    FOR routine IN
        SELECT p.oid
        FROM pg_catalog.pg_proc AS p
             JOIN pg_catalog.pg_depend AS d
                 ON d.objid OPERATOR(pg_catalog.=) p.oid
             JOIN pg_catalog.pg_extension AS e
                 ON e.oid OPERATOR(pg_catalog.=) d.refobjid
        WHERE d.classid OPERATOR(pg_catalog.=) 'pg_catalog.pg_proc'::regclass
          AND d.refclassid OPERATOR(pg_catalog.=)
              'pg_catalog.pg_extension'::regclass
          AND d.deptype OPERATOR(pg_catalog.=) 'e'
          AND e.extname OPERATOR(pg_catalog.=) 'queue_proxy'
          AND p.proname OPERATOR(pg_catalog.<>) 'set_servers'
          AND p.oid OPERATOR(pg_catalog.<>) ALL
              (pg_catalog.current_setting('queue_update.routines')::oid[])
    LOOP
        EXECUTE pg_catalog.format('REVOKE ALL ON ROUTINE %s FROM PUBLIC',
                                  routine);
        EXECUTE pg_catalog.format('GRANT EXECUTE ON ROUTINE %s
            TO queue_producer, queue_consumer, queue_admin', routine);
    END LOOP;
END
$$;
