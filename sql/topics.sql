-- Topics: a message for each queue that is bound to a pattern that matches; and
-- the rights to bind and to publish
CREATE EXTENSION queue;
SET queue.project = 'topics';
CREATE ROLE regress_topic_admin IN ROLE queue_admin;
CREATE ROLE regress_topic_app IN ROLE queue_producer;
CREATE ROLE regress_topic_billing IN ROLE queue_producer;
CREATE ROLE regress_topic_owner IN ROLE queue_producer, queue_consumer;
CREATE ROLE regress_topic_nobody IN ROLE queue_consumer;

-- what each queue has got, which is then gone
CREATE FUNCTION pg_temp.got() RETURNS TABLE (queue text, bodies jsonb) AS $$
DECLARE
    m queue_message;
BEGIN
    FOR queue IN SELECT name FROM queue_list(NULL, 100) LOOP
        bodies := NULL;
        LOOP
            SELECT * INTO m FROM queue_pop(queue);
            EXIT WHEN m.id IS NULL;
            bodies := COALESCE(bodies, '[]') || m.body;
        END LOOP;
        IF bodies IS NOT NULL THEN
            RETURN NEXT;
        END IF;
    END LOOP;
END
$$ LANGUAGE plpgsql;

-- a binding, which creates the queue
SELECT topic_bind('order.created', 'mail');
SELECT topic_bind('order.created', 'mail');
SELECT topic_publish('order.created', '1');
SELECT topic_publish('order.deleted', '2');
SELECT topic_publish('order', '3');
SELECT topic_publish('order.created.twice', '4');
SELECT * FROM pg_temp.got();

-- patterns: which of them match which topics
SELECT topic_unbind('order.created', 'mail');
SELECT topic_unbind('order.created', 'mail');
SELECT topic_publish('order.created', '5');
CREATE TEMP TABLE patterns (pattern text);
INSERT INTO patterns VALUES ('a'), ('a.b'), ('a.*'), ('*.b'), ('*'), ('*.*'), ('#'),
    ('a.#'), ('#.b'), ('a.#.b'), ('#.#'), ('#.*'), ('*.#'), ('a.*.#.b'), ('#.b.#'),
    ('a.#.#.b'), ('#.a.#.b.#'), ('ab'), ('a.b.c');
SELECT bool_and(queue_create(pattern_queue)), bool_and(topic_bind(pattern, pattern_queue)) FROM
    (SELECT pattern, 'p.' || translate(pattern, '*#', '_-') AS pattern_queue FROM patterns) AS p;
SELECT topic, topic_publish(topic, to_jsonb(topic)) FROM unnest(ARRAY['a', 'b', 'ab', 'a.b',
    'b.a', 'a.b.c', 'a.x.b', 'a.b.b', 'a.x.y.b', 'x.a.x.b.x', 'a.b.a.b']) AS topic;
SELECT translate(substr(queue, 3), '_-', '*#') AS pattern, bodies FROM pg_temp.got();
SELECT bool_and(topic_unbind(pattern, 'p.' || translate(pattern, '*#', '_-'))) FROM patterns;
SELECT count(*) FROM topic_list(NULL, 100);

-- one message if several bindings match; a filter
SELECT topic_bind('a.*', 'q'), topic_bind('#', 'q'), topic_bind('a.b', 'q2', '{"eu": true}');
SELECT topic_publish('a.b', '1');
SELECT topic_publish('a.b', '2', '{"eu": true, "more": [1]}');
SELECT topic_publish('a.b', '3', '{"eu": false}');
SELECT topic_publish('a.b', '4', '["eu"]');
SELECT * FROM pg_temp.got();

-- a binding that exists gets another filter
SELECT topic_bind('a.b', 'q2', '{"us": 1}');
SELECT topic_publish('a.b', '5', '{"eu": true}'), topic_publish('a.b', '6', '{"us": 1}');
SELECT * FROM pg_temp.got();
SELECT topic_bind('a.b', 'q2');
SELECT topic_publish('a.b', '7', '{"eu": true}');
SELECT * FROM pg_temp.got();

-- the arguments of a push, for each queue; its defaults
SELECT queue_update('q2', '{"_default_message_ttl": 77, "_default_message_delay": 99}');
SELECT topic_publish('a.b', '8', '{"h": 1}', 100, 0, 3, 'g', 'k');
SELECT body, headers, ttl, priority, group_key FROM queue_messages('q')
UNION ALL SELECT body, headers, ttl, priority, group_key FROM queue_messages('q2');
SELECT topic_publish('a.b', '9', dedup_key => 'k');
SELECT * FROM pg_temp.got();
SELECT topic_publish('a.b', '10', dedup_key => 'k');
SELECT queue, total, delayed FROM (VALUES ('q'), ('q2')) AS v (queue)
    CROSS JOIN LATERAL queue_stats(queue);
SELECT body, ttl FROM queue_messages('q2', include_delayed => true);
SELECT queue_purge('q2'), queue_purge('q');

-- delayed and ready copies, and many, in one call
SELECT bool_and(queue_create('many' || g)), bool_and(topic_bind('many.#', 'many' || g)) FROM generate_series(1, 100) AS g;
SELECT topic_publish('many', to_jsonb(repeat('x', 10000)), group_key => 'g');
SELECT count(*), min(length(body::text)) FROM queue_data.message
    WHERE project = 'topics' AND queue LIKE 'many%';
SELECT bool_and(queue_drop('many' || g)) FROM generate_series(1, 100) AS g;
SELECT queue_purge('q');

-- in the caller's transaction
BEGIN;
SELECT topic_bind('later', 'q2');
SELECT topic_publish('later', '11');
SAVEPOINT s;
SELECT topic_unbind('later', 'q2');
SELECT topic_publish('later', '12');
ROLLBACK TO s;
SELECT topic_publish('later', '13');
ROLLBACK;
SELECT topic_publish('later', '14');
SELECT body FROM queue_messages('q');
SELECT queue_purge('q');

-- a queue cannot refuse a publisher, but it is left out
SELECT queue_update('q2', '{"_max_messages_post_size": 40, "_default_message_delay": null}');
SELECT topic_publish('a.b', to_jsonb(repeat('x', 100))), topic_publish('a.b', '15');
SELECT queue, total FROM (VALUES ('q'), ('q2')) AS v (queue) CROSS JOIN LATERAL queue_stats(queue);
SELECT queue_pause('q2');
SELECT topic_publish('a.b', '16');
SET queue.max_message_size = 50;
SELECT topic_publish('a.b', to_jsonb(repeat('x', 100)));
RESET queue.max_message_size;

-- a queue that is dropped is bound no more, nor is another one of its name
SELECT queue_drop('q2');
SELECT queue_create('q2');
SELECT topic_publish('a.b', '17');
SELECT pattern, queue FROM topic_list();
SELECT queue_purge('q');

-- the bindings of another project are others
SET queue.project = 'topics2';
SELECT topic_bind('a.b', 'q');
SELECT topic_publish('a.b', '18');
SELECT pattern, queue FROM topic_list();
SELECT queue_drop('q');
SET queue.project = 'topics';
SELECT topic_publish('a.b', '19');
SELECT topic_publish('a.b', '20') FROM set_config('queue.project', '#', true);
SELECT * FROM pg_temp.got();

-- Rights.  A role that may not bind learns nothing of queues or bindings.
SELECT queue_create('secret'), topic_bind('secret.#', 'secret');
SELECT queue_grant('secret', 'regress_topic_owner', 'push');
SELECT queue_set_owner('secret', 'regress_topic_owner');
CREATE FUNCTION pg_temp.try(role text, call text) RETURNS text AS $$
DECLARE
    result text;
BEGIN
    PERFORM set_config('role', role, true);
    EXECUTE 'SELECT ' || call INTO result;
    RESET ROLE;
    RETURN result;
EXCEPTION WHEN OTHERS THEN
    RETURN SQLSTATE || ' ' || SQLERRM;
END
$$ LANGUAGE plpgsql;
SELECT role, call, pg_temp.try('regress_topic_' || role, call) FROM
    unnest(ARRAY['nobody', 'app', 'owner', 'admin']) AS role,
    (VALUES ($$topic_bind('#', 'secret')$$),
            ($$topic_bind('#', 'unknown')$$),
            ($$topic_unbind('secret.#', 'secret')$$),
            ($$topic_unbind('x', 'unknown')$$),
            ($$string_agg(pattern || ' ' || queue, ', ') FROM topic_list()$$),
            ($$topic_publish('secret', '1')$$),
            ($$topic_publish('none', '1')$$),
            ($$queue_push('secret', '1') > 0$$)) AS c (call);
SELECT pattern, queue FROM topic_list();
SELECT * FROM pg_temp.got();

-- publishers: the others do not reach the queue, and do not learn that
SELECT topic_bind('bill.#', 'bills', NULL, '{regress_topic_billing,regress_topic_owner}');
SELECT queue_grant('bills', 'regress_topic_admin', 'push');
SELECT role, pg_temp.try('regress_topic_' || role, $$topic_publish('bill.paid', to_jsonb(current_user))$$)
    FROM unnest(ARRAY['nobody', 'app', 'billing', 'owner', 'admin']) AS role;
GRANT regress_topic_billing TO regress_topic_app;
SELECT pg_temp.try('regress_topic_app', $$topic_publish('bill.paid', '"as a member"')$$);
REVOKE regress_topic_billing FROM regress_topic_app;
SELECT pg_temp.try('regress_topic_app', $$topic_publish('bill.paid', '"not any more"')$$);
SELECT * FROM pg_temp.got();
SELECT pattern, queue, filter, publishers FROM topic_list(q => 'bills');

-- what is logged of a queue that is left out is not shown to the client
SELECT queue_update('bills', '{"_max_messages_post_size": 1}') IS NOT NULL AS updated;
SET ROLE regress_topic_billing;
SET client_min_messages = log;
SELECT topic_publish('bill.paid', '1');
RESET client_min_messages;
RESET ROLE;

-- they are recorded as grants are
SELECT role, queue, privilege FROM queue_data.queue_roles
    WHERE privilege = 'publish' ORDER BY role::text;
\set VERBOSITY terse
DROP ROLE regress_topic_billing;
SELECT topic_bind('bill.#', 'bills', NULL, '{regress_topic_owner}');
DROP ROLE regress_topic_billing;
CREATE ROLE regress_topic_billing IN ROLE queue_producer;
SELECT topic_bind('bill.#', 'bills', NULL, '{regress_topic_billing}');
SELECT topic_bind('bill.twice', 'bills', NULL, '{regress_topic_billing}');
SELECT topic_unbind('bill.#', 'bills');
SELECT topic_bind('bill.twice', 'bills', NULL, '{regress_topic_billing}');
DROP ROLE regress_topic_billing;
SELECT queue_drop('bills');
DROP ROLE regress_topic_billing;
SELECT topic_bind('bill.#', 'bills', NULL, '{regress_topic_app}');
SELECT topic_unbind('bill.#', 'bills');
SELECT queue_drop('bills');
DROP ROLE regress_topic_app;
\set VERBOSITY default

-- lists
SELECT topic_bind('l.b', 'q2'), topic_bind('l.b', 'mail'), topic_bind('l.*', 'q2'),
       topic_bind('l', 'q2', '{"a": 1}');
SELECT pattern, queue, filter, publishers FROM topic_list(NULL, 2, 'q2');
SELECT pattern, queue, filter, publishers FROM topic_list('l.* q2', 2, 'q2');
SELECT pattern, queue, filter, publishers FROM topic_list('l.b', 1, 'mail');
SELECT pattern, queue, filter, publishers FROM topic_list('l.b q2');

-- what is not well-formed
SELECT topic_bind('a.', 'q2');
SELECT topic_publish('a..b', '1');
SELECT left(w, 10) AS w, pg_temp.try('regress_topic_admin', format('topic_bind(%L, %L)', w, 'q2'))::varchar(60) AS bind,
       pg_temp.try('regress_topic_admin', format('topic_publish(%L, %L)', w, '1'))::varchar(60) AS publish
    FROM unnest(ARRAY['', '.', 'a.', '.a', 'a..b', 'a b', 'a*', '*a', '##', '**', '#.a', 'ä',
        repeat('x', 255), repeat('x', 256), NULL]) WITH ORDINALITY AS u (w, n) ORDER BY n;
SELECT topic_bind('a', 'q2', '[]');
SELECT topic_bind('a', 'q2', jsonb_build_object('a', repeat('x', 4096)));
SELECT topic_bind('a', 'q2', NULL, '{}');
SELECT topic_bind('a', 'q2', NULL, '{NULL}');
SELECT topic_bind('a', 'q2', NULL, '{{queue_admin},{queue_consumer}}');
SELECT topic_bind('a', 'q2', NULL, '{1}');
SELECT topic_bind('a', 'no such name');
SELECT topic_publish('a', NULL);
SELECT topic_publish('a', '1', ttl => 0);
SELECT topic_publish('a', '1', group_key => '');
SELECT topic_list("limit" => 0);
SELECT count(*) FROM topic_list(q => 'no.such.queue');
SET queue.auto_create = off;
SELECT topic_bind('a', 'not.there');
RESET queue.auto_create;
BEGIN READ ONLY;
SELECT topic_publish('a', '1');
ROLLBACK;

SELECT bool_and(queue_drop(name)) FROM queue_list(NULL, 100);
SELECT count(*) FROM queue_data.topic;
DROP ROLE regress_topic_admin, regress_topic_owner, regress_topic_nobody;
DROP EXTENSION queue;
