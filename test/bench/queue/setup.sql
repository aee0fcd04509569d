-- Claims of up to 1000 messages; the default bound is 100.
CREATE EXTENSION queue;
ALTER DATABASE :"DBNAME" SET queue.max_claim_limit = 1000;
SELECT queue_create('bench');

CREATE VIEW bench_count AS
    SELECT sum(n_tup_ins) AS pushed,
           sum(n_tup_del) AS deleted,
           (SELECT total FROM queue_stats('bench')) AS waiting,
           sum(n_tup_upd) AS updated,
           sum(n_tup_hot_upd) AS hot,
           sum(pg_relation_size(relid)) AS heap
    FROM pg_stat_user_tables
    WHERE schemaname = 'queue_data' AND relname ~ '^(message|delayed)_\d+$';

CREATE FUNCTION bench_empty() RETURNS bigint
LANGUAGE sql AS $$ SELECT queue_purge('bench') $$;

CREATE PROCEDURE bench_fill(k int, body jsonb)
LANGUAGE plpgsql AS $$
BEGIN
    FOR pushed IN 0 .. k - 1 BY 1000 LOOP
        PERFORM queue_push_batch('bench',
                                 array_fill(body, ARRAY[least(1000, k - pushed)]));
        COMMIT;
    END LOOP;
END
$$;
