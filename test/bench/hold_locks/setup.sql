-- No row is ever updated: pages may be full.
CREATE TABLE message (
    id            bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    body          jsonb NOT NULL
);

-- Plans that are made while the table is small would scan it whole for ever.
ALTER DATABASE bench_hold_locks SET enable_seqscan = off;

CREATE VIEW bench_count AS
    SELECT n_tup_ins AS pushed,
           n_tup_del AS deleted,
           (SELECT count(*) FROM message) AS waiting
    FROM pg_stat_user_tables
    WHERE relname = 'message';

CREATE FUNCTION bench_empty() RETURNS void
LANGUAGE sql AS $$ DELETE FROM message $$;
