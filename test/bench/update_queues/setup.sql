-- A queue is a value in a column.
CREATE TABLE message (
    id            bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    claimed_until timestamptz NOT NULL DEFAULT '-infinity',
    claim         bigint NOT NULL DEFAULT 0,
    queue         text NOT NULL DEFAULT 'bench',
    body          jsonb NOT NULL
) WITH (fillfactor = 50);
CREATE INDEX ON message (queue, id);

\ir ../table.sql

CREATE PROCEDURE bench_queues(first int, last int, body jsonb)
LANGUAGE sql AS '';

CREATE PROCEDURE bench_ready(ready int, queues int, body jsonb)
LANGUAGE plpgsql AS $$
BEGIN
    IF ready = 0 THEN
        DELETE FROM message;
    ELSE
        INSERT INTO message (queue, body)
            SELECT 'q' || 1 + k * (queues / ready), bench_ready.body
            FROM generate_series(0, ready - 1) AS k;
    END IF;
END
$$;
