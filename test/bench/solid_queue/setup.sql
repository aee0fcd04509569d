-- What a job, its executions and its batch are made of; columns that are not
-- written here are left out.
CREATE TABLE batch (
    id             bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    total_jobs     int NOT NULL DEFAULT 0,
    completed_jobs int NOT NULL DEFAULT 0,
    enqueued_at    timestamptz,
    finished_at    timestamptz
);
CREATE INDEX ON batch (finished_at);

CREATE TABLE job (
    id            bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    queue_name    text NOT NULL DEFAULT 'bench',
    class_name    text NOT NULL DEFAULT 'Bench',
    arguments     text,
    priority      int NOT NULL DEFAULT 0,
    active_job_id text DEFAULT gen_random_uuid(),
    scheduled_at  timestamptz DEFAULT now(),
    finished_at   timestamptz,
    batch_id      bigint,
    created_at    timestamptz NOT NULL DEFAULT now(),
    updated_at    timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX ON job (active_job_id);
CREATE INDEX ON job (class_name);
CREATE INDEX ON job (finished_at);
CREATE INDEX ON job (queue_name, finished_at);
CREATE INDEX ON job (scheduled_at, finished_at);
CREATE INDEX ON job (batch_id);

CREATE TABLE ready_execution (
    id         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    job_id     bigint NOT NULL UNIQUE REFERENCES job ON DELETE CASCADE,
    queue_name text NOT NULL DEFAULT 'bench',
    priority   int NOT NULL DEFAULT 0,
    created_at timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX ON ready_execution (priority, job_id);
CREATE INDEX ON ready_execution (queue_name, priority, job_id);

CREATE TABLE claimed_execution (
    id         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    job_id     bigint NOT NULL UNIQUE REFERENCES job ON DELETE CASCADE,
    process_id bigint,
    created_at timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX ON claimed_execution (process_id, job_id);

CREATE TABLE batch_execution (
    id         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    job_id     bigint NOT NULL UNIQUE REFERENCES job ON DELETE CASCADE,
    batch_id   bigint NOT NULL REFERENCES batch ON DELETE CASCADE,
    created_at timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX ON batch_execution (batch_id);

\ir ../batches.sql

CREATE FUNCTION bench_empty() RETURNS void
LANGUAGE sql AS $$
    TRUNCATE job, ready_execution, claimed_execution, batch, batch_execution
$$;

CREATE PROCEDURE bench_members(k int, body jsonb, batched boolean)
LANGUAGE plpgsql AS $$
DECLARE
    new_batch bigint;
    jobs bigint[];
BEGIN
    IF batched THEN
        INSERT INTO batch DEFAULT VALUES RETURNING id INTO new_batch;
        COMMIT;
    END IF;
    FOR pushed IN 0 .. k - 1 BY 1000 LOOP
        WITH new AS (
            INSERT INTO job (arguments, batch_id)
                SELECT body, new_batch
                FROM generate_series(1, least(1000, k - pushed))
                RETURNING id)
        SELECT array_agg(id) FROM new INTO jobs;
        IF batched THEN
            UPDATE batch SET total_jobs = total_jobs + cardinality(jobs)
            WHERE id = new_batch AND finished_at IS NULL;
            INSERT INTO batch_execution (job_id, batch_id)
                SELECT unnest(jobs), new_batch;
        END IF;
        INSERT INTO ready_execution (job_id) SELECT unnest(jobs);
        COMMIT;
    END LOOP;
    UPDATE batch SET enqueued_at = now()
    WHERE id = new_batch AND enqueued_at IS NULL;
END
$$;

CREATE FUNCTION bench_claim(n int) RETURNS bigint[]
LANGUAGE plpgsql AS $$
DECLARE
    ready bigint[];
    jobs bigint[];
BEGIN
    SELECT array_agg(id), array_agg(job_id) INTO ready, jobs
    FROM (SELECT id, job_id FROM ready_execution
          ORDER BY priority, job_id LIMIT n FOR UPDATE SKIP LOCKED) AS r;
    INSERT INTO claimed_execution (job_id, process_id)
        SELECT unnest(jobs), pg_backend_pid();
    DELETE FROM ready_execution WHERE id = ANY(ready);
    PERFORM arguments FROM job WHERE id = ANY(jobs);
    RETURN coalesce(jobs, '{}');
END
$$;

CREATE PROCEDURE bench_finish(jobs bigint[])
LANGUAGE plpgsql AS $$
DECLARE
    job_of bigint;
    of_batch bigint;
BEGIN
    FOREACH job_of IN ARRAY jobs LOOP
        PERFORM FROM claimed_execution WHERE job_id = job_of FOR UPDATE;
        UPDATE job SET finished_at = now(), updated_at = now()
        WHERE id = job_of RETURNING batch_id INTO of_batch;
        IF of_batch IS NOT NULL THEN
            DELETE FROM batch_execution WHERE job_id = job_of;
        END IF;
        DELETE FROM claimed_execution WHERE job_id = job_of;
        COMMIT;

        -- What is left is looked for after the commit: of the last two, the one
        -- that commits later finds nothing.
        CONTINUE WHEN of_batch IS NULL;
        PERFORM FROM batch
        WHERE id = of_batch AND finished_at IS NULL AND enqueued_at IS NOT NULL;
        CONTINUE WHEN NOT FOUND;
        PERFORM FROM batch_execution WHERE batch_id = of_batch LIMIT 1;
        CONTINUE WHEN FOUND;
        UPDATE batch SET finished_at = now()
        WHERE id = of_batch AND finished_at IS NULL AND enqueued_at IS NOT NULL
          AND NOT EXISTS (SELECT FROM batch_execution WHERE batch_id = of_batch);
        IF FOUND THEN
            UPDATE batch SET completed_jobs = total_jobs WHERE id = of_batch;
        END IF;
        COMMIT;
    END LOOP;
END
$$;
