
--
-- Privileges on the functions that push
--
DO $$
DECLARE
    before pg_catalog.pg_init_privs[] := ARRAY(
        SELECT i FROM pg_catalog.pg_init_privs AS i
        WHERE i.classoid OPERATOR(pg_catalog.=) 'pg_catalog.pg_proc'::regclass);
BEGIN
    EXECUTE pg_catalog.current_setting('queue_update.grants');

    -- They are no part of the extension: pg_dump has to write them.
    UPDATE pg_catalog.pg_init_privs AS i SET initprivs = b.initprivs
    FROM pg_catalog.unnest(before) AS b
    WHERE i.objoid OPERATOR(pg_catalog.=) b.objoid
      AND i.classoid OPERATOR(pg_catalog.=) b.classoid;
END
$$;
