-- queue_post: several messages in one jsonb array, as Zaqar takes them.

CREATE EXTENSION queue;
SET queue.min_message_ttl = 1;
\set VERBOSITY sqlstate

SELECT queue_post('q', '[
    {"body": "plain"},
    {"body": {"event": "BackupStarted"}, "ttl": 300},
    {"body": [1, 2], "priority": 9},
    {"body": "later", "delay": 100},
    {"body": "once", "dedup_key": "k"},
    {"body": "twice", "dedup_key": "k"},
    {"body": null},
    {"body": "nulls", "ttl": null, "delay": null, "priority": null,
     "dedup_key": null},
    {"dedup_key": "all", "priority": 1, "delay": 0, "ttl": 400, "body": "all"}
]') AS ids \gset
-- one id for each, in that order, NULL for the duplicate
SELECT n, id IS NOT NULL AS pushed,
       id > max(id) OVER (ORDER BY n ROWS BETWEEN UNBOUNDED PRECEDING
                                          AND 1 PRECEDING) AS grows
    FROM unnest(:'ids'::bigint[]) WITH ORDINALITY AS i (id, n);
SELECT n, body, ttl, priority, claim_count
    FROM (SELECT * FROM unnest(:'ids'::bigint[]) WITH ORDINALITY AS i (id, n)
          WHERE id IS NOT NULL OFFSET 0) AS i,
         LATERAL (SELECT body, ttl, priority, claim_count
                  FROM message_get('q', i.id)) AS m
    ORDER BY n;
SELECT free, delayed, total FROM queue_stats('q');
SELECT body FROM queue_claim('q', 60, 60);

SELECT queue_post('q', '[]');
-- a single message is an array of one
SELECT cardinality(queue_post('q', '[{"body": 1}]'));
-- the order is the order of claims
SELECT cardinality(queue_post('order',
    (SELECT jsonb_agg(jsonb_build_object('body', i) ORDER BY i)
     FROM generate_series(1, 1000) i)));
SELECT count(*), bool_and(body = to_jsonb(n)) AS in_order
    FROM (SELECT body, row_number() OVER (ORDER BY id) AS n
          FROM queue_messages('order', "limit" => 1000)) AS s;

-- Large and nested bodies are not changed.
CREATE TEMP TABLE posted AS
    SELECT i AS n, CASE i % 3
               WHEN 0 THEN to_jsonb(repeat(md5(i::text), i))
               WHEN 1 THEN (SELECT jsonb_object_agg('key ' || j, ARRAY[j, i])
                            FROM generate_series(1, i) j)
               ELSE to_jsonb(i) END AS body
    FROM generate_series(1, 300) i;
SELECT queue_post('whole',
    (SELECT jsonb_agg(jsonb_build_object('body', body) ORDER BY n)
     FROM posted)) AS ids \gset
SELECT count(*) AS same
    FROM unnest(:'ids'::bigint[]) WITH ORDINALITY AS i (id, n)
         JOIN posted p USING (n), LATERAL message_get('whole', i.id) AS m
    WHERE m.body = p.body;
DROP TABLE posted;

-- If one message is wrong, none is pushed.
CREATE FUNCTION pg_temp.try(call text) RETURNS text
LANGUAGE plpgsql SET client_min_messages = warning AS $$
BEGIN
    EXECUTE 'SELECT count(*) FROM ' || call;
    RAISE SQLSTATE 'OK000';
EXCEPTION
    WHEN SQLSTATE 'OK000' THEN RETURN 'ok';
    WHEN OTHERS THEN RETURN sqlstate;
END
$$;
SELECT element, pg_temp.try(format('queue_post(''bad'', %L)',
                                   '[{"body": 1}, ' || element || ']')) AS outcome
    FROM (VALUES
        ('{"body": 2}'),
        ('{}'),
        ('{"ttl": 60}'),
        ('{"Body": 2}'),
        ('{"body": 2, "extra": 1}'),
        ('{"body": 2, "id": 1}'),
        ('{"body": 2, "": 1}'),
        ('null'),
        ('2'),
        ('"body"'),
        ('true'),
        ('[]'),
        ('[{"body": 2}]'),
        ('{"body": 2, "ttl": 1}'),
        ('{"body": 2, "ttl": 0}'),
        ('{"body": 2, "ttl": -1}'),
        ('{"body": 2, "ttl": 1209600}'),
        ('{"body": 2, "ttl": 1209601}'),
        ('{"body": 2, "ttl": 1e10}'),
        ('{"body": 2, "ttl": 1e300}'),
        ('{"body": 2, "ttl": 4294967396}'),
        ('{"body": 2, "ttl": 60.5}'),
        ('{"body": 2, "ttl": "60"}'),
        ('{"body": 2, "ttl": true}'),
        ('{"body": 2, "ttl": [60]}'),
        ('{"body": 2, "ttl": {}}'),
        ('{"body": 2, "delay": 0}'),
        ('{"body": 2, "delay": -1}'),
        ('{"body": 2, "delay": 1209600}'),
        ('{"body": 2, "delay": 1209601}'),
        ('{"body": 2, "delay": 0.5}'),
        ('{"body": 2, "delay": "0"}'),
        ('{"body": 2, "delay": 1e300}'),
        ('{"body": 2, "priority": 0}'),
        ('{"body": 2, "priority": 9}'),
        ('{"body": 2, "priority": 10}'),
        ('{"body": 2, "priority": -1}'),
        ('{"body": 2, "priority": 1.5}'),
        ('{"body": 2, "priority": "1"}'),
        ('{"body": 2, "priority": 1e300}'),
        ('{"body": 2, "dedup_key": "text"}'),
        ('{"body": 2, "dedup_key": 1}'),
        ('{"body": 2, "dedup_key": true}'),
        ('{"body": 2, "dedup_key": {}}'),
        ('{"body": 2, "dedup_key": ["k"]}')
    ) AS v (element);
SELECT messages, pg_temp.try(format('queue_post(''bad'', %L)', messages)) AS outcome
    FROM unnest('{"{\"body\": 1}", "{}", "1", "\"text\"", "null", "true"}'::text[])
         AS messages;
SELECT pg_temp.try('queue_post(''bad'', NULL)');
SELECT queue_post('bad', '[{"body": 1}, {"body": 2, "dedup_key": "k"}, {"ttl": 60}]');
SELECT queue_exists('bad');
SELECT count(*) FROM queue_data.dedup_key
    WHERE queue_id NOT IN (SELECT id FROM queue_data.queue);

-- The bound of one body, 262144 bytes of jsonb, holds for each.
SELECT size, pg_temp.try(format('queue_post(''size'', %L)',
           jsonb_build_array('{"body": 1}'::jsonb,
               jsonb_build_object('body', repeat('x', size))))) AS outcome
    FROM unnest('{262132, 262133}'::int[]) AS size;

DROP EXTENSION queue;
