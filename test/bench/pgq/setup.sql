CREATE EXTENSION pgq;
SELECT pgq.create_queue('bench');
-- A tick whenever the ticker is called and there is something.
SELECT pgq.set_queue_config('bench', 'ticker_max_count', '1');
SELECT pgq.register_consumer('bench', 'bench');

-- What comes after the last batch that the consumer has finished.
CREATE FUNCTION bench_waiting() RETURNS bigint
LANGUAGE sql AS $$
    SELECT count(*)
    FROM pgq.event_1
    WHERE NOT txid_visible_in_snapshot(ev_txid,
        (SELECT tick_snapshot
         FROM pgq.subscription JOIN pgq.tick
              ON tick_queue = sub_queue AND tick_id = sub_last_tick))
$$;

CREATE VIEW bench_count AS
    SELECT pushed, pushed - waiting AS deleted, waiting, updated, hot, heap
    FROM (SELECT sum(n_tup_ins)::bigint AS pushed, bench_waiting() AS waiting,
                 sum(n_tup_upd) AS updated, sum(n_tup_hot_upd) AS hot,
                 sum(pg_relation_size(relid)) AS heap
          FROM pg_stat_user_tables
          WHERE relname ~ '^event_1_\d+$') AS statistics;

-- The same without a look at all events; messages of transactions that ran
-- beside the tick may be missing or be too many.
CREATE VIEW bench_done AS
    SELECT tick_event_seq AS done
    FROM pgq.subscription JOIN pgq.tick
         ON tick_queue = sub_queue AND tick_id = sub_last_tick;

-- No events, and the consumer begins at a new tick.
CREATE FUNCTION bench_empty() RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pgq.unregister_consumer('bench', 'bench');
    TRUNCATE pgq.event_1;
    PERFORM pgq.force_tick('bench');
    PERFORM pgq.ticker('bench');
    PERFORM pgq.register_consumer('bench', 'bench');
END
$$;

-- When a message was claimed: what open_take.sql has seen
CREATE UNLOGGED TABLE bench_took (
    message bigint,
    at      timestamptz DEFAULT clock_timestamp()
);
