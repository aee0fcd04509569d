-- What a job, its execution and its batch are made of; columns that are not
-- written here are left out, and so are indexes that no row would be in.
CREATE TABLE batch (
    id               uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    created_at       timestamptz NOT NULL DEFAULT now(),
    updated_at       timestamptz NOT NULL DEFAULT now(),
    enqueued_at      timestamptz,
    jobs_finished_at timestamptz,
    finished_at      timestamptz
);

CREATE TABLE job (
    id                uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    queue_name        text DEFAULT 'bench',
    priority          int DEFAULT 0,
    serialized_params jsonb,
    scheduled_at      timestamptz DEFAULT now(),
    performed_at      timestamptz,
    finished_at       timestamptz,
    error             text,
    created_at        timestamptz NOT NULL DEFAULT now(),
    updated_at        timestamptz NOT NULL DEFAULT now(),
    active_job_id     uuid DEFAULT gen_random_uuid(),
    batch_id          uuid,
    batch_callback_id uuid,
    executions_count  int,
    job_class         text DEFAULT 'Bench',
    locked_by_id      uuid,
    locked_at         timestamptz,
    lock_type         smallint
);
CREATE INDEX ON job (scheduled_at) WHERE finished_at IS NULL;
CREATE INDEX ON job (queue_name, scheduled_at) WHERE finished_at IS NULL;
CREATE INDEX ON job (active_job_id, created_at);
CREATE INDEX ON job (finished_at) WHERE finished_at IS NOT NULL;
CREATE INDEX ON job (priority DESC NULLS LAST, created_at) WHERE finished_at IS NULL;
CREATE INDEX ON job (priority, created_at) WHERE finished_at IS NULL;
CREATE INDEX ON job (batch_id) WHERE batch_id IS NOT NULL;
CREATE INDEX ON job (batch_callback_id) WHERE batch_callback_id IS NOT NULL;
CREATE INDEX ON job (job_class);
CREATE INDEX ON job (priority, scheduled_at)
    WHERE finished_at IS NULL AND locked_by_id IS NULL;
CREATE INDEX ON job (priority, scheduled_at, id) WHERE finished_at IS NULL;
CREATE INDEX ON job (queue_name, scheduled_at, id) WHERE finished_at IS NULL;
CREATE INDEX ON job (locked_by_id) WHERE locked_by_id IS NOT NULL;
CREATE INDEX ON job (priority, scheduled_at, id)
    WHERE finished_at IS NULL AND locked_by_id IS NULL;
CREATE INDEX ON job (queue_name);
CREATE INDEX ON job (created_at);
CREATE INDEX ON job (scheduled_at, queue_name);
CREATE INDEX ON job (id) WHERE finished_at IS NULL OR error IS NOT NULL;

CREATE TABLE execution (
    id                uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    active_job_id     uuid NOT NULL,
    job_class         text DEFAULT 'Bench',
    queue_name        text DEFAULT 'bench',
    serialized_params jsonb,
    scheduled_at      timestamptz,
    finished_at       timestamptz,
    process_id        uuid DEFAULT '00000000-0000-0000-0000-000000000000',
    duration          interval,
    created_at        timestamptz NOT NULL DEFAULT now(),
    updated_at        timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX ON execution (active_job_id, created_at);
CREATE INDEX ON execution (process_id, created_at);

\ir ../batches.sql

CREATE FUNCTION bench_empty() RETURNS void
LANGUAGE sql AS 'TRUNCATE job, execution, batch';

-- The key of an advisory lock
CREATE FUNCTION bench_key(of_table text, id uuid) RETURNS bigint
LANGUAGE sql IMMUTABLE AS $$
    SELECT ('x' || substr(md5(of_table || '-' || id::text), 1, 16))::bit(64)::bigint
$$;

-- What each completion does for its batch, and the end of a push.
CREATE PROCEDURE bench_look(of_batch uuid)
LANGUAGE plpgsql AS $$
DECLARE
    b batch;
BEGIN
    PERFORM pg_advisory_xact_lock(bench_key('batch', of_batch));
    SELECT * FROM batch WHERE id = of_batch INTO b;
    IF b.enqueued_at IS NULL OR b.finished_at IS NOT NULL THEN
        RETURN;
    END IF;
    PERFORM FROM job WHERE batch_id = of_batch AND finished_at IS NULL LIMIT 1;
    IF NOT FOUND THEN
        UPDATE batch SET jobs_finished_at = now(), updated_at = now()
        WHERE id = of_batch;
        PERFORM FROM job
        WHERE batch_callback_id = of_batch AND finished_at IS NULL LIMIT 1;
        IF NOT FOUND THEN
            UPDATE batch SET finished_at = now(), updated_at = now()
            WHERE id = of_batch;
        END IF;
    END IF;
END
$$;

CREATE PROCEDURE bench_members(k int, body jsonb, batched boolean)
LANGUAGE plpgsql AS $$
DECLARE
    new_batch uuid;
BEGIN
    IF batched THEN
        INSERT INTO batch DEFAULT VALUES RETURNING id INTO new_batch;
        COMMIT;
    END IF;
    FOR pushed IN 0 .. k - 1 BY 1000 LOOP
        INSERT INTO job (serialized_params, batch_id)
            SELECT body, new_batch FROM generate_series(1, least(1000, k - pushed));
        COMMIT;
    END LOOP;
    IF batched THEN
        PERFORM pg_advisory_xact_lock(bench_key('batch', new_batch));
        UPDATE batch SET enqueued_at = now(), updated_at = now() WHERE id = new_batch;
        CALL bench_look(new_batch);
    END IF;
END
$$;

-- The id of a job that no other session has locked, or ''.
CREATE FUNCTION bench_claim() RETURNS text
LANGUAGE plpgsql AS $$
DECLARE
    j job;
BEGIN
    WITH candidate AS MATERIALIZED (
        SELECT id FROM job
        WHERE finished_at IS NULL AND scheduled_at <= now()
        ORDER BY priority, created_at LIMIT 1000)
    SELECT * FROM job
    WHERE id IN (SELECT id FROM candidate
                 WHERE pg_try_advisory_lock(bench_key('job', id)) LIMIT 1)
    INTO j;
    IF NOT FOUND THEN
        RETURN '';
    END IF;

    -- It may have been finished before it was locked.
    PERFORM FROM job WHERE id = j.id AND finished_at IS NULL;
    IF NOT FOUND THEN
        PERFORM pg_advisory_unlock(bench_key('job', j.id));
        RETURN '';
    END IF;
    INSERT INTO execution (active_job_id, serialized_params, scheduled_at)
        VALUES (j.active_job_id, j.serialized_params, j.scheduled_at);
    UPDATE job
    SET performed_at = now(), executions_count = coalesce(executions_count, 0) + 1,
        locked_by_id = '00000000-0000-0000-0000-000000000000', locked_at = now(),
        lock_type = 0, updated_at = now()
    WHERE id = j.id;
    RETURN j.id;
END
$$;

CREATE PROCEDURE bench_finish(claimed text)
LANGUAGE plpgsql AS $$
DECLARE
    j job;
BEGIN
    IF claimed = '' THEN
        RETURN;
    END IF;
    SELECT * FROM job WHERE id = claimed::uuid INTO j;
    UPDATE execution
    SET finished_at = now(), duration = now() - created_at, updated_at = now()
    WHERE active_job_id = j.active_job_id;
    UPDATE job
    SET finished_at = now(), locked_by_id = NULL, locked_at = NULL,
        lock_type = NULL, updated_at = now()
    WHERE id = j.id;
    COMMIT;
    IF j.batch_id IS NOT NULL THEN
        CALL bench_look(j.batch_id);
        COMMIT;
    END IF;
    PERFORM pg_advisory_unlock(bench_key('job', j.id));
END
$$;
