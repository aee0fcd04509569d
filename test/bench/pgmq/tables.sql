SELECT pgmq.create('bench');

-- The second condition is for queue_pgmq, which uses these scripts, too.
CREATE VIEW bench_count AS
    SELECT sum(n_tup_ins) AS pushed,
           sum(n_tup_del) AS deleted,
           (SELECT count(*) FROM pgmq.q_bench) AS waiting,
           sum(n_tup_upd) AS updated,
           sum(n_tup_hot_upd) AS hot,
           sum(pg_relation_size(relid)) AS heap
    FROM pg_stat_user_tables
    WHERE relid = 'pgmq.q_bench'::regclass
    OR schemaname = 'queue_data' AND relname ~ '^(message|delayed)_\d+$';

CREATE FUNCTION bench_empty() RETURNS void
LANGUAGE sql AS $$ DELETE FROM pgmq.q_bench $$;

CREATE PROCEDURE bench_fill(k int, body jsonb)
LANGUAGE sql AS $$
    SELECT count(*) FROM pgmq.send_batch('bench', array_fill(body, ARRAY[k]))
$$;

-- pgmq has topics since 1.11.
CREATE PROCEDURE bench_topics(queues int, others int)
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pgmq.drop_queue(queue_name) FROM pgmq.list_queues()
    WHERE queue_name <> 'bench';
    PERFORM pgmq.create('t' || i), pgmq.bind_topic('a.*', 't' || i)
    FROM generate_series(1, queues) AS i;
    PERFORM pgmq.bind_topic('b.' || i || '.#', 't1')
    FROM generate_series(1, others) AS i;
END
$$;

CREATE UNLOGGED TABLE bench_took (
    message bigint,
    at      timestamptz DEFAULT clock_timestamp()
);
