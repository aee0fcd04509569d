-- For each function of the extension, functions of its name and in its schema that
-- take other types: what a role that may create functions there would do to be called
-- in place of them.  A client that does not cast what it passes calls one, and fails.
-- The schema "earlier" has functions with the same types, for clients that set their
-- search_path: give their role one that begins with it.

CREATE SCHEMA earlier;
GRANT USAGE ON SCHEMA earlier TO PUBLIC;
SET client_min_messages = warning;
SET check_function_bodies = off;

DO $$
DECLARE
    f record;
    types text[];
    planted text[];
    n int;
BEGIN
    FOR f IN
        SELECT p.oid, proname, nspname, prokind, pronargs, pronargs - pronargdefaults AS least,
            ARRAY(SELECT format_type(t, NULL)
                  FROM unnest(proargtypes::oid[]) WITH ORDINALITY AS u (t, i) ORDER BY i) AS types,
            CASE prokind WHEN 'f' THEN ' RETURNS ' || pg_get_function_result(p.oid) ELSE '' END
                AS result,
            proargnames AS names
        FROM pg_proc AS p
            JOIN pg_depend ON classid = 'pg_proc'::regclass AND objid = p.oid AND deptype = 'e'
            JOIN pg_extension AS e ON e.oid = refobjid AND extname = 'queue'
            JOIN pg_namespace AS s ON s.oid = pronamespace AND s.oid = extnamespace
        WHERE pronargs > 0
    LOOP
        FOR types IN
            SELECT ARRAY(SELECT CASE t WHEN 'integer' THEN small WHEN 'bigint' THEN big
                                       WHEN 'text' THEN t ELSE coalesce(other, t) END
                         FROM unnest(f.types) WITH ORDINALITY AS u (t, i) ORDER BY i)
            FROM (VALUES ('smallint', 'smallint'), ('smallint', 'integer'),
                         ('integer', 'integer'), ('bigint', 'bigint'), ('text', 'text'),
                         ('numeric', 'numeric')) AS v (small, big),
                 (VALUES (NULL), ('text')) AS w (other)
            UNION SELECT f.types
        LOOP
            FOR n IN f.least .. f.pronargs LOOP
                CONTINUE WHEN n = 0;
                planted := ARRAY(SELECT format('%I %s', f.names[i], types[i])
                                 FROM generate_series(1, n) AS i);
                BEGIN
                    EXECUTE format('CREATE %s %I.%I (%s)%s LANGUAGE plpgsql AS %L',
                        CASE f.prokind WHEN 'f' THEN 'FUNCTION' ELSE 'PROCEDURE' END,
                        CASE WHEN types[:n] = f.types[:n] THEN 'earlier' ELSE f.nspname END,
                        f.proname, array_to_string(planted, ', '), f.result,
                        'BEGIN RAISE EXCEPTION ''planted function: %'', '
                        || quote_literal(f.proname || ' ' || planted::text) || '; END');
                EXCEPTION WHEN duplicate_function THEN
                    NULL;
                END;
            END LOOP;
        END LOOP;
    END LOOP;
END
$$;
