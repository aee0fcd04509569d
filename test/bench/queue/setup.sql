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

CREATE PROCEDURE bench_fill(k int, body jsonb, groups int DEFAULT 0)
LANGUAGE plpgsql AS $$
DECLARE
    n int;
    keys text[];
BEGIN
    FOR pushed IN 0 .. k - 1 BY 1000 LOOP
        n := least(1000, k - pushed);
        IF groups > 0 THEN
            keys := ARRAY(SELECT 'g' || i % groups
                          FROM generate_series(pushed, pushed + n - 1) AS i);
        END IF;
        PERFORM queue_push_batch('bench', array_fill(body, ARRAY[n]),
                                 group_keys => keys);
        COMMIT;
    END LOOP;
END
$$;

-- A queue to which a message with a key was pushed has groups from then on.
CREATE FUNCTION bench_groups(groups int, bound int) RETURNS boolean
LANGUAGE sql AS $$
    SELECT queue_purge('bench');
    SELECT queue_drop('bench');
    SELECT queue_create('bench', jsonb_strip_nulls(
        jsonb_build_object('_group_concurrency', bound)))
$$;

-- What worker.sql has measured
CREATE UNLOGGED TABLE bench_wait (ms float8);

-- When a message was claimed: what open_take.sql has seen
CREATE UNLOGGED TABLE bench_took (
    message bigint,
    at      timestamptz DEFAULT clock_timestamp()
);

-- Queues that have had a message, those from the first to the last.  At the end a
-- claim finds all empty, as a worker's last one does; without it the next calls
-- of queue_ready read each of them.
CREATE PROCEDURE bench_queues(first int, last int, body jsonb)
LANGUAGE plpgsql AS $$
BEGIN
    FOR i IN first .. last BY 1000 LOOP
        PERFORM queue_push('q' || k, body)
        FROM generate_series(i, least(i + 999, last)) AS k;
        PERFORM claim_complete('q' || k, claim_id)
        FROM generate_series(i, least(i + 999, last)) AS k,
             LATERAL queue_claim('q' || k, 300, 60, 1);
        COMMIT;
    END LOOP;
    PERFORM queue_claim_any(NULL);
END
$$;

-- A message in so many of the first queues, or none.
CREATE PROCEDURE bench_ready(ready int, queues int, body jsonb)
LANGUAGE plpgsql AS $$
BEGIN
    FOR i IN 0 .. ready - 1 BY 1000 LOOP
        PERFORM queue_push('q' || 1 + k * (queues / ready), body)
        FROM generate_series(i, least(i + 999, ready - 1)) AS k;
        COMMIT;
    END LOOP;
    IF ready = 0 THEN
        PERFORM queue_purge(q) FROM queue_ready() AS q;
        PERFORM queue_claim_any(NULL);
    END IF;
END
$$;

CREATE PROCEDURE bench_topics(queues int, others int)
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM queue_purge(name), queue_drop(name)
    FROM queue_list("limit" => 100, pattern => '^t[0-9]+$');
    PERFORM topic_bind('a.*', 't' || i) FROM generate_series(1, queues) AS i;
    PERFORM topic_bind('b.' || i || '.#', 't1') FROM generate_series(1, others) AS i;
END
$$;

-- Messages of no batch, or of one, for which another message waits.
CREATE PROCEDURE bench_loop(k int) LANGUAGE plpgsql AS $$
BEGIN
    FOR i IN 1 .. k LOOP
        PERFORM claim_complete('bench', claim_id)
        FROM queue_claim('bench', 300, 60, 1);
    END LOOP;
END
$$;

CREATE PROCEDURE bench_members(k int, body jsonb, batched boolean)
LANGUAGE plpgsql AS $$
DECLARE
    new_batch bigint;
BEGIN
    IF batched THEN
        new_batch := batch_create(keep_open => true);
        PERFORM queue_push('bench_end', '{}', after => new_batch);
        COMMIT;
    END IF;
    FOR pushed IN 0 .. k - 1 BY 1000 LOOP
        PERFORM queue_push_batch('bench',
                                 array_fill(body, ARRAY[least(1000, k - pushed)]),
                                 batch => new_batch);
        COMMIT;
    END LOOP;
    IF batched THEN
        PERFORM batch_close(new_batch);
    END IF;
END
$$;

-- A batch has ended when what waits for it is free, too.
CREATE FUNCTION bench_batch_left() RETURNS bigint
LANGUAGE sql AS $$
    SELECT count(*)
    FROM batch_list("limit" => 10000) AS b, batch_status(b.batch) AS s
    WHERE s.finished_at IS NULL OR s.waiting > 0
$$;
