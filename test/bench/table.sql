-- What the queues in plain SQL have in common: a table message with a body,
-- which exists by now, in a database of their own.

-- Plans that are made while the table is small would scan it whole for ever.
ALTER DATABASE :"DBNAME" SET enable_seqscan = off;

CREATE VIEW bench_count AS
    SELECT n_tup_ins AS pushed,
           n_tup_del AS deleted,
           (SELECT count(*) FROM message) AS waiting,
           n_tup_upd AS updated,
           n_tup_hot_upd AS hot,
           pg_relation_size(relid) AS heap
    FROM pg_stat_user_tables
    WHERE relname = 'message';

CREATE FUNCTION bench_empty() RETURNS void
LANGUAGE sql AS $$ DELETE FROM message $$;

CREATE PROCEDURE bench_fill(k int, body jsonb)
LANGUAGE sql AS $$
    INSERT INTO message (body) SELECT bench_fill.body FROM generate_series(1, k)
$$;

-- When a message was claimed: what open_take.sql has seen
CREATE UNLOGGED TABLE bench_took (
    message bigint,
    at      timestamptz DEFAULT clock_timestamp()
);
