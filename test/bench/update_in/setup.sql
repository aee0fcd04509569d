-- One index, on the id; a claim changes no indexed column, and fillfactor 50
-- leaves room on the page for the version that it writes, so that it is HOT.
CREATE TABLE message (
    id            bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    claimed_until timestamptz NOT NULL DEFAULT '-infinity',
    claim         bigint NOT NULL DEFAULT 0,
    body          jsonb NOT NULL
) WITH (fillfactor = 50);

-- Plans that are made while the table is small would scan it whole for ever.
ALTER DATABASE bench_update_in SET enable_seqscan = off;

CREATE VIEW bench_count AS
    SELECT n_tup_ins AS pushed,
           n_tup_del AS deleted,
           (SELECT count(*) FROM message) AS waiting
    FROM pg_stat_user_tables
    WHERE relname = 'message';

CREATE FUNCTION bench_empty() RETURNS void
LANGUAGE sql AS $$ DELETE FROM message $$;
