-- Its schema is there by now: see the file setup.
CREATE VIEW bench_count AS
    SELECT n_tup_ins AS pushed,
           n_tup_del AS deleted,
           (SELECT count(*) FROM graphile_worker._private_jobs) AS waiting,
           n_tup_upd AS updated,
           n_tup_hot_upd AS hot,
           pg_relation_size(relid) AS heap
    FROM pg_stat_user_tables
    WHERE relid = 'graphile_worker._private_jobs'::regclass;

CREATE VIEW bench_done AS
    SELECT n_tup_del AS done
    FROM pg_stat_user_tables
    WHERE relid = 'graphile_worker._private_jobs'::regclass;

CREATE FUNCTION bench_empty() RETURNS void
LANGUAGE sql AS $$ DELETE FROM graphile_worker._private_jobs $$;
