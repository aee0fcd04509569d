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

-- Named queues, whose bound is always 1.  They are there before their first
-- job, as those that have had one and are not cleaned up.
CREATE FUNCTION bench_groups(groups int, bound int) RETURNS void
LANGUAGE sql AS $$
    DELETE FROM graphile_worker._private_jobs;
    DELETE FROM graphile_worker._private_job_queues;
    INSERT INTO graphile_worker._private_job_queues (queue_name)
        SELECT 'g' || i FROM generate_series(1, groups) AS i
$$;
