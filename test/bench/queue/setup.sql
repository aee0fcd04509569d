-- Claims of up to 1000 messages; the default bound is 100.
CREATE EXTENSION queue;
ALTER DATABASE bench_queue SET queue.max_claim_limit = 1000;
SELECT queue_create('bench');

CREATE VIEW bench_count AS
    SELECT sum(n_tup_ins) AS pushed,
           sum(n_tup_del) AS deleted,
           (SELECT total FROM queue_stats('bench')) AS waiting
    FROM pg_stat_user_tables
    WHERE schemaname = 'queue_data' AND relname ~ '^(message_\d+|parked)$';

CREATE FUNCTION bench_empty() RETURNS bigint
LANGUAGE sql AS $$ SELECT queue_purge('bench') $$;
