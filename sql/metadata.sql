-- Metadata of queues, and the reserved keys in it.

CREATE EXTENSION queue;
\set VERBOSITY sqlstate

-- The result of a call, which is rolled back.
CREATE FUNCTION pg_temp.try(call text) RETURNS text
LANGUAGE plpgsql AS $$
BEGIN
    EXECUTE 'SELECT count(*) FROM ' || call;
    RAISE SQLSTATE 'OK000';
EXCEPTION
    WHEN SQLSTATE 'OK000' THEN RETURN 'ok';
    WHEN OTHERS THEN RETURN sqlstate;
END
$$;

-- replace and merge; both return the new metadata
SELECT queue_create('q', '{"a": 1, "b": {"x": 1, "y": 2}, "_mine": []}');
SELECT queue_update('q', '{"c": "new", "a": 2}');
SELECT metadata FROM queue_get('q');
SELECT queue_update('q', '{"a": null, "nothing": null}');
SELECT queue_update('q', '{}');
-- an object inside is replaced as a whole, with the nulls in it
SELECT queue_update('q', '{"b": {"z": null}}');
SELECT queue_set_metadata('q', '{"only": true, "deep": {"null": null}}');
SELECT metadata FROM queue_get('q');
SELECT queue_set_metadata('q', '{}');
SELECT metadata FROM queue_get('q');
-- the user's own keys may have any value; a key that begins with _ and is not
-- reserved raises a warning
SELECT queue_set_metadata('q',
    '{"_own": "x", "max_claim_count": "many", "": 1, "\"quoted\" ''": null}');
BEGIN;
SELECT queue_set_metadata('q', '{"undone": 1}');
ROLLBACK;
BEGIN;
SAVEPOINT s;
SELECT queue_update('q', '{"undone": 1}');
ROLLBACK TO s;
COMMIT;
SELECT metadata ? 'undone' AS undone FROM queue_get('q');

-- an unknown queue is an error, and is not created
SELECT queue_set_metadata('unknown', '{}');
SELECT queue_update('unknown', '{}');
SELECT queue_exists('unknown');

-- metadata is an object
SELECT what, pg_temp.try(format('queue_create(''new'', %L)', what)) AS create,
       pg_temp.try(format('queue_set_metadata(''q'', %L)', what)) AS set,
       pg_temp.try(format('queue_update(''q'', %L)', what)) AS update
    FROM unnest('{"{}","[]","[{}]","1","\"text\"","true","null",NULL}'::text[])
         AS what;
SELECT queue_set_metadata('q', '{}');
-- of at most 65,536 bytes as text: this one has 9 bytes beside the value
SELECT size, pg_temp.try(format('queue_create(''new'', %L)', m)) AS create,
       pg_temp.try(format('queue_set_metadata(''q'', %L)', m)) AS set,
       pg_temp.try(format('queue_update(''q'', %L)', m)) AS update
    FROM (SELECT size, jsonb_build_object('k', repeat('x', size))
          FROM unnest('{10, 60000, 65527, 65528, 1000000}'::int[]) AS size)
         AS s (size, m);
-- Counted are the bytes that PostgreSQL prints.  Zaqar's test_custom_metadata
-- stores the first document, and its test_too_much_metadata has the fourth one
-- refused.
SELECT octet_length(d.doc) AS given, octet_length(d.doc::jsonb::text) AS printed,
       pg_column_size(d.doc::jsonb) AS stored,
       pg_temp.try(format('queue_create(''new'', %L)', d.doc)) AS create
    FROM (VALUES ('{"messages": {"ttl": 600}, "padding": "%s"}', 'x', 65488),
                 ('{"messages": {"ttl": 600}, "padding": "%s"}', 'x', 65495),
                 ('{"messages": {"ttl": 600}, "padding": "%s"}', 'x', 65496),
                 ('{"messages": {"ttl": 600}, "padding": "%s"}', 'x', 65497),
                 ('{"k":"%s"}', 'x', 65528),
                 ('{"k":"%sx"}', chr(228), 32763),
                 ('{"k":"%s"}', '\u00e4', 32764)) AS v (doc, padding, length),
         format(v.doc, repeat(padding, length)) AS d (doc)
    ORDER BY length < 40000, length, given;
-- also when a patch makes it too large
SELECT length(queue_set_metadata('q',
    jsonb_build_object('one', repeat('x', 40000))) ->> 'one');
SELECT length(queue_update('q',
    jsonb_build_object('two', repeat('x', 40000))) ->> 'two');
SELECT length(queue_update('q',
    jsonb_build_object('one', null, 'two', repeat('x', 40000))) ->> 'two');
SELECT length(metadata ->> 'one') AS one, length(metadata ->> 'two') AS two
    FROM queue_get('q');
SELECT queue_set_metadata('q', '{}');

-- Reserved keys: types and bounds are checked however they are set.  Settings
-- bound a ttl and a delay.
SELECT key, value,
       pg_temp.try(format('queue_create(''new'', jsonb_build_object(%L, %L::jsonb))',
                          key, value)) AS create,
       pg_temp.try(format('queue_set_metadata(''q'', jsonb_build_object(%L, %L::jsonb))',
                          key, value)) AS set,
       pg_temp.try(format('queue_update(''q'', jsonb_build_object(%L, %L::jsonb))',
                          key, value)) AS update
    FROM (VALUES
        ('_default_message_ttl', '60'),
        ('_default_message_ttl', '1209600'),
        ('_default_message_ttl', '59'),
        ('_default_message_ttl', '1209601'),
        ('_default_message_ttl', '0'),
        ('_default_message_ttl', '-1'),
        ('_default_message_ttl', '100.5'),
        ('_default_message_ttl', '1e30'),
        ('_default_message_ttl', '4294967396'),
        ('_default_message_ttl', '"100"'),
        ('_default_message_ttl', 'true'),
        ('_default_message_ttl', '[100]'),
        ('_default_message_ttl', '{"s": 100}'),
        ('_default_message_delay', '0'),
        ('_default_message_delay', '1209600'),
        ('_default_message_delay', '-1'),
        ('_default_message_delay', '1209601'),
        ('_default_message_delay', '0.5'),
        ('_default_message_delay', '"0"'),
        ('_default_message_delay', 'false'),
        ('_default_message_delay', '[]'),
        ('_max_messages_post_size', '1'),
        ('_max_messages_post_size', '262144'),
        ('_max_messages_post_size', '0'),
        ('_max_messages_post_size', '-1'),
        ('_max_messages_post_size', '1e30'),
        ('_max_messages_post_size', '1.5'),
        ('_max_messages_post_size', '"1"'),
        ('_max_messages_post_size', '{}'),
        ('_max_claim_count', '1'),
        ('_max_claim_count', '1000'),
        ('_max_claim_count', '0'),
        ('_max_claim_count', '-1'),
        ('_max_claim_count', '2.5'),
        ('_max_claim_count', '1e30'),
        ('_max_claim_count', '"3"'),
        ('_max_claim_count', 'true'),
        ('_max_claim_count', '2147483648'),
        ('_dead_letter_queue', '"other"'),
        ('_dead_letter_queue', '"q.dead"'),
        ('_dead_letter_queue', '"q"'),
        ('_dead_letter_queue', '""'),
        ('_dead_letter_queue', '"not a name"'),
        ('_dead_letter_queue', '"' || repeat('x', 65) || '"'),
        ('_dead_letter_queue', '1'),
        ('_dead_letter_queue', 'false'),
        ('_dead_letter_queue', '["other"]'),
        ('_dead_letter_queue_messages_ttl', '60'),
        ('_dead_letter_queue_messages_ttl', '1209600'),
        ('_dead_letter_queue_messages_ttl', '59'),
        ('_dead_letter_queue_messages_ttl', '1209601'),
        ('_dead_letter_queue_messages_ttl', '60.5'),
        ('_dead_letter_queue_messages_ttl', '"60"'),
        ('_dead_letter_queue_messages_ttl', '[]'),
        ('_retry_delay', '10'),
        ('_retry_delay', '-1'),
        ('_retry_delay', '1e30'),
        ('_retry_delay', '"soon"'),
        ('_retry_backoff', '2'),
        ('_retry_backoff', '-1'),
        ('_retry_backoff', '1e300'),
        ('_retry_backoff', '"steep"'),
        ('_group_concurrency', '1'),
        ('_group_concurrency', '10000'),
        ('_group_concurrency', '0'),
        ('_group_concurrency', '10001'),
        ('_group_concurrency', '"1"'),
        ('_group_rate', '0.5'),
        ('_group_rate', '1000000'),
        ('_group_rate', '0'),
        ('_group_rate', '-1'),
        ('_group_rate', '1e7'),
        ('_group_rate', '"fast"')
    ) AS v (key, value);

-- a null removes a reserved key in a patch; otherwise it is not an integer
SELECT queue_set_metadata('q', '{"_max_claim_count": null}');
SELECT queue_set_metadata('q', '{"_default_message_ttl": 100, "_max_claim_count": 3}');
SELECT queue_update('q', '{"_default_message_ttl": null}');
-- one wrong key makes the whole call fail
SELECT queue_update('q', '{"_default_message_ttl": 200, "_max_claim_count": "x"}');
SELECT metadata FROM queue_get('q');
SELECT queue_create('spoilt', '{"fine": 1, "_max_claim_count": 0}');
SELECT queue_exists('spoilt');

-- a typo raises a warning that lists the reserved keys when it is written, but
-- not when it is removed, nor at each later change;
\set VERBOSITY terse
SELECT queue_create('typo', '{"_max_claim_counts": 3, "_x": {"_y": 1}, "__": []}');
SELECT queue_update('typo', '{"_max_claim_counts": null, "_retry_delay": 1}');
SELECT queue_update('typo', '{"_z": 1}');
-- so does a key that lacks the underscore
SELECT queue_update('typo', '{"max_claim_count": 3, "keep_finished": null, "count": 1}');
SELECT queue_update('typo', '{"max_claim_count": null, "count": null}');
SELECT queue_set_metadata('typo', '{"_x": 1, "x_": 1, "x": {"_z": 1}}');
-- creating a queue that exists with other metadata raises a notice
SELECT queue_create('typo', '{"x_": 1, "_x": 1, "x": {"_z": 1}}');
SELECT queue_create('typo', '{"_x": 2}');
SELECT queue_create('typo');
SELECT metadata FROM queue_get('typo');
SELECT queue_drop('typo');
\set VERBOSITY sqlstate

-- the bounds follow the settings
SET queue.min_message_ttl = 10;
SET queue.max_message_ttl = 50;
SET queue.max_message_delay = 20;
SELECT queue_create('new', '{"_default_message_ttl": 51}');
SELECT queue_create('new', '{"_default_message_delay": 21}');
SELECT queue_create('new', '{"_default_message_ttl": 10, "_default_message_delay": 5}');
SELECT queue_push('new', '1') > 0 AS pushed;
SELECT ttl FROM queue_messages('new', include_delayed => true);
SET queue.min_message_ttl = 1;
SET queue.max_message_ttl = 7;
SELECT queue_push('new', '2') > 0 AS pushed;
SELECT body, ttl FROM queue_messages('new', include_delayed => true);
RESET ALL;
SELECT queue_drop('new');

-- _default_message_ttl: used by a push without a ttl
SELECT queue_set_metadata('q', '{"_default_message_ttl": 100}');
SELECT queue_push('q', '"default"') > 0 AS pushed;
SELECT queue_push('q', '"named"', 300) > 0 AS pushed;
SELECT queue_push('q', '"null"', NULL) > 0 AS pushed;
SELECT cardinality(queue_push_batch('q', '{"\"batch\""}'));
SELECT cardinality(queue_push_batch('q', '{"\"batch, named\""}', 301));
SELECT cardinality(queue_post('q',
    '[{"body": "post"}, {"body": "post, named", "ttl": 302}]'));
SELECT queue_update('q', '{"_default_message_ttl": 200}');
SELECT queue_push('q', '"changed"') > 0 AS pushed;
SELECT queue_update('q', '{"_default_message_ttl": null}');
SELECT queue_push('q', '"none"') > 0 AS pushed;
SELECT body, ttl FROM queue_messages('q');
SELECT queue_purge('q');
-- only what was committed counts
BEGIN;
SELECT queue_update('q', '{"_default_message_ttl": 100}');
SELECT queue_push('q', '"inside"') > 0 AS pushed;
SELECT body, ttl FROM queue_messages('q');
ROLLBACK;
SELECT queue_push('q', '"outside"') > 0 AS pushed;
SELECT body, ttl FROM queue_messages('q');
SELECT queue_purge('q');

-- _default_message_delay
SELECT queue_set_metadata('q', '{"_default_message_delay": 100}');
SELECT queue_push('q', '"default"') > 0 AS pushed;
SELECT queue_push('q', '"now"', delay => 0) > 0 AS pushed;
SELECT cardinality(queue_push_batch('q', '{"\"batch\""}'));
SELECT cardinality(queue_push_batch('q', '{"\"batch, now\""}', delay => 0));
SELECT cardinality(queue_post('q',
    '[{"body": "post"}, {"body": "post, now", "delay": 0}]'));
SELECT body FROM queue_messages('q');
SELECT free, delayed FROM queue_stats('q');
SELECT body FROM queue_claim('q', 60, 60);
SELECT queue_purge('q');

-- _max_messages_post_size: the sum of the bodies of one call
SELECT queue_set_metadata('q', '{"_max_messages_post_size": 300}');
SELECT queue_push('q', to_jsonb(repeat('x', 288))) > 0 AS pushed;
SELECT queue_push('q', to_jsonb(repeat('x', 289)));
SELECT cardinality(queue_push_batch('q',
    ARRAY[to_jsonb(repeat('x', 138)), to_jsonb(repeat('x', 138))]));
SELECT queue_push_batch('q',
    ARRAY[to_jsonb(repeat('x', 138)), to_jsonb(repeat('x', 139))]);
SELECT cardinality(queue_post('q', jsonb_build_array(
    jsonb_build_object('body', repeat('x', 138)),
    jsonb_build_object('body', repeat('x', 138)))));
SELECT queue_post('q', jsonb_build_array(
    jsonb_build_object('body', repeat('x', 138)),
    jsonb_build_object('body', repeat('x', 139))));
SELECT total FROM queue_stats('q');
SELECT queue_purge('q');
SELECT queue_set_metadata('q', '{}');

-- A dead letter queue is created when the metadata names it, or requires one;
-- and it stays when the metadata no longer does so.
SELECT queue_create('c1', '{"_dead_letter_queue": "c2"}');
SELECT name, metadata FROM queue_get('c2');
SELECT queue_create('e', '{"_max_claim_count": 1}');
SELECT name, metadata FROM queue_get('e.dead');
SELECT queue_update('e', '{"_max_claim_count": null}');
SELECT queue_exists('e.dead');
SELECT queue_update('e', '{"_max_claim_count": 2}');
BEGIN;
SELECT queue_update('e', '{"_dead_letter_queue": "undone"}');
ROLLBACK;
SELECT queue_exists('undone');
-- a queue whose name leaves no room for .dead has to name one
SELECT queue_create(repeat('n', 59), '{"_max_claim_count": 1}');
SELECT queue_exists(repeat('n', 59) || '.dead');
SELECT queue_create(repeat('n', 60), '{"_max_claim_count": 1}');
SELECT queue_exists(repeat('n', 60));
SELECT queue_create(repeat('n', 60), '{"_max_claim_count": 1, "_dead_letter_queue": "n.dead"}');
SELECT queue_update(repeat('n', 60), '{"_dead_letter_queue": null}');
-- It cannot be dropped while it is required; its source can, and it stays.
SELECT queue_drop('c2');
SELECT queue_drop('e.dead');
SELECT queue_update('c1', '{"_dead_letter_queue": "c3"}');
SELECT queue_drop('c2');
SELECT queue_drop('c3');
SELECT queue_drop('c1');
SELECT queue_exists('c3');
SELECT queue_drop('c3');

-- Dead letter queues must not form a circle, of whatever length.
SELECT queue_create('c1', '{"_dead_letter_queue": "c2"}');
SELECT queue_update('c2', '{"_dead_letter_queue": "c1"}');
SELECT queue_update('c2', '{"_dead_letter_queue": "c3"}');
SELECT queue_set_metadata('c3', '{"_dead_letter_queue": "c1"}');
SELECT queue_update('c3', '{"_dead_letter_queue": "c2"}');
SELECT queue_update('c3', '{"_dead_letter_queue": "c3"}');
SELECT queue_create('c0', '{"_dead_letter_queue": "c0"}');
SELECT queue_exists('c0');
SELECT metadata FROM queue_get('c3');
SELECT queue_update('c3', '{"_dead_letter_queue": "c4"}');
-- nor with the default name
SELECT queue_update('e.dead', '{"_dead_letter_queue": "e"}');
-- two may share one; and without the middle there is no circle
SELECT queue_create('d1', '{"_dead_letter_queue": "c4"}');
SELECT queue_update('c2', '{"_dead_letter_queue": null}');
SELECT queue_update('c3', '{"_dead_letter_queue": "c1"}');
-- a queue of that name in another project is another queue
SET queue.project = 'other';
SELECT queue_create('c2', '{"_dead_letter_queue": "c1"}');
RESET queue.project;
-- the length of a chain is limited
DO $$
BEGIN
    FOR i IN REVERSE 101 .. 2 LOOP
        PERFORM queue_create('l' || i - 1,
                             jsonb_build_object('_dead_letter_queue', 'l' || i));
    END LOOP;
END
$$;
SELECT queue_create('l0', '{"_dead_letter_queue": "l1"}');

DROP EXTENSION queue;
