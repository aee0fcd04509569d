-- What queue_web --demo begins with; demo_tick() is called every second.

CREATE SCHEMA queue;
CREATE EXTENSION queue SCHEMA queue;
GRANT USAGE ON SCHEMA queue TO queue_producer, queue_consumer, queue_admin;
ALTER DATABASE postgres SET search_path = public, queue;
CREATE ROLE demo LOGIN IN ROLE queue_producer, queue_consumer, queue_monitor;
CREATE ROLE guest LOGIN IN ROLE queue_monitor;
GRANT CREATE ON SCHEMA public TO demo;
SET search_path = public, queue;
SET ROLE demo;
CREATE FUNCTION demo_pages(body jsonb) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    FOR i IN 1 .. 20 LOOP
        PERFORM job_progress(i, 20, 'page ' || i), pg_sleep(0.2);
    END LOOP;
    RETURN true;
END $$;
SELECT queue_create('mail', '{"_max_claim_count": 3, "_retry_delay": 20, "_keep_finished": 86400}'),
    queue_create('orders', '{"_group_concurrency": 1}'), queue_create('import'),
    job_handler('pages', 'demo_pages(jsonb)');
CREATE FUNCTION demo_tick() RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    m queue_message;
    b bigint;
    c bigint;
BEGIN
    PERFORM queue_push('mail', jsonb_build_object('to', 'user' || i || '@example.org'))
    FROM generate_series(1, (10 * random())::int) AS i;
    PERFORM queue_push('orders', jsonb_build_object('item', i), group_key => 'customer ' || i)
    FROM generate_series(1, (4 * random())::int) AS i;
    IF random() < 0.2 THEN
        PERFORM queue_push('pages', '{"book": "a"}');
    END IF;
    FOR m IN SELECT * FROM queue_claim('mail', 60, 60, (10 * random())::int + 1) LOOP
        IF m.body->>'to' LIKE 'user9%' AND random() < 0.7 THEN
            PERFORM message_retry('mail', m.id, m.claim_id, 'SMTP: 450 <mailbox> is "busy"');
        ELSE
            PERFORM message_delete('mail', m.id, m.claim_id);
        END IF;
    END LOOP;
    FOR m IN SELECT * FROM queue_claim('orders', 60, 60, 2) LOOP
        PERFORM message_delete('orders', m.id, m.claim_id);
    END LOOP;
    IF queue_is_empty('import') THEN
        b := batch_create('import');
        PERFORM queue_push('import', to_jsonb(i), batch => b) FROM generate_series(1, 60) AS i;
        c := batch_create('reports of the import');
        PERFORM queue_push('import', '"totals"', batch => c, after => b);
        PERFORM queue_push('import', '"tell all"', after => c);
    END IF;
    PERFORM FROM queue_pop('import', 3);
END $$;
RESET ROLE;
