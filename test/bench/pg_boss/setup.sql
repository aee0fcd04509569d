-- Its schema is there by now: see the file setup.
CREATE VIEW bench_count AS
    SELECT pushed, pushed - waiting AS deleted, waiting, updated, hot, heap
    FROM (SELECT sum(n_tup_ins)::bigint AS pushed,
                 (SELECT count(*) FROM pgboss.job
                  WHERE state < 'completed') AS waiting,
                 sum(n_tup_upd) AS updated,
                 sum(n_tup_hot_upd) AS hot,
                 sum(pg_relation_size(relid)) AS heap
          FROM pg_stat_user_tables
          WHERE schemaname = 'pgboss'
            AND relname LIKE 'job%' AND relname NOT IN ('job', 'job_dependency')) AS statistics;

CREATE VIEW bench_done AS SELECT pushed - waiting AS done FROM bench_count;

CREATE FUNCTION bench_empty() RETURNS void
LANGUAGE sql AS $$ TRUNCATE pgboss.job $$;
