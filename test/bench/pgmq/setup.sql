\ir pgmq.sql
SELECT pgmq.create('bench');

CREATE VIEW bench_count AS
    SELECT n_tup_ins AS pushed,
           n_tup_del AS deleted,
           (SELECT count(*) FROM pgmq.q_bench) AS waiting,
           n_tup_upd AS updated,
           n_tup_hot_upd AS hot,
           pg_relation_size(relid) AS heap
    FROM pg_stat_user_tables
    WHERE relid = 'pgmq.q_bench'::regclass;

CREATE FUNCTION bench_empty() RETURNS void
LANGUAGE sql AS $$ DELETE FROM pgmq.q_bench $$;

CREATE PROCEDURE bench_fill(k int, body jsonb)
LANGUAGE sql AS $$
    SELECT count(*) FROM pgmq.send_batch('bench', array_fill(body, ARRAY[k]))
$$;

CREATE UNLOGGED TABLE bench_took (
    message bigint,
    at      timestamptz DEFAULT clock_timestamp()
);
