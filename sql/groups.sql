-- queue_groups: the groups of a queue, with exact counts.

CREATE EXTENSION queue;
SET queue.min_message_ttl = 1;
\pset null '(null)'

SELECT * FROM queue_groups('unknown');
SELECT queue_create('q');
SELECT * FROM queue_groups('q');

-- Each state is counted.
SELECT queue_push('q', '1', group_key => 'ann') > 0 AS pushed;
SELECT count(*) FROM queue_claim('q', 600, 60);
SELECT count(*) FROM queue_push_batch('q', '{2, 3, 4, 5, 6, 7}',
    group_keys => '{ann, ann, Ben, NULL, ben, NULL}') AS ids, unnest(ids);
SELECT queue_push('q', '8', delay => 600, group_key => 'ann') > 0 AS pushed;
SELECT queue_push('q', '9', delay => 600, group_key => 'later') > 0 AS pushed;
SELECT queue_push('q', '10', delay => 600) > 0 AS pushed;
-- Similar keys are different groups, and the key 'NULL' is one.
SELECT count(*) FROM queue_push_batch('q', '{11, 12, 13}',
    group_keys => ARRAY['be', 'ben ', 'NULL']) AS ids, unnest(ids);
SELECT group_key, free, claimed, delayed FROM queue_groups('q', "limit" => 100);

-- Expired messages are not counted, and a group that has no others is none.
SELECT queue_push('q', '14', 1, group_key => 'ben') > 0 AS pushed;
SELECT queue_push('q', '15', 1, group_key => 'expired') > 0 AS pushed;
SELECT pg_sleep(1.1);
SELECT group_key, free, claimed, delayed, oldest_age BETWEEN 1 AND 600 AS aged
    FROM queue_groups('q', "limit" => 100);
-- The age is that of the message with the lowest id, whatever its state.
SELECT queue_push('q', '16', priority => 9, group_key => 'ann') > 0 AS pushed;
SELECT queue_push('q', '17', group_key => 'new') > 0 AS pushed;
SELECT group_key, rank() OVER (ORDER BY oldest_age DESC)
    FROM queue_groups('q', "limit" => 100) WHERE group_key IN ('ann', 'new');
-- Together they are what queue_stats counts.
SELECT sum(g.free) = s.free AS free, sum(g.claimed) = s.claimed AS claimed,
       sum(g.delayed) = s.delayed AS delayed,
       abs(max(g.oldest_age) - s.oldest_age) <= 1 AS oldest_age
    FROM queue_groups('q', "limit" => 100) AS g, queue_stats('q') AS s
    GROUP BY s.free, s.claimed, s.delayed, s.oldest_age;

-- after the marker, which need not be a key
SELECT group_key FROM queue_groups('q', "limit" => 2);
SELECT group_key FROM queue_groups('q', NULL, 1);
SELECT group_key FROM queue_groups('q', '', 2);
SELECT group_key FROM queue_groups('q', 'Ben', 2);
SELECT group_key FROM queue_groups('q', 'b', 2);
SELECT group_key FROM queue_groups('q', 'new');
SELECT count(*) FROM queue_groups('q');
SELECT group_key FROM queue_groups('q', repeat('a', 100000), 1);
SELECT group_key FROM queue_groups('unknown', 'ann');
SELECT * FROM queue_groups('q', "limit" => 0);
SELECT * FROM queue_groups('q', "limit" => 10001);
SELECT * FROM queue_groups('q', "limit" => NULL);
SELECT * FROM queue_groups(NULL);

-- A queue without keys has one group.
SELECT queue_push_batch('plain', '{1, 2}') IS NOT NULL AS pushed;
SELECT group_key, free FROM queue_groups('plain');
SELECT group_key, free FROM queue_groups('plain', '');

-- What this transaction did is counted.
BEGIN;
SELECT queue_push('plain', '3', group_key => 'own') > 0 AS pushed;
SELECT count(*) FROM queue_pop('plain', 3);
SELECT queue_push('plain', '4', group_key => 'own') > 0 AS pushed;
SELECT group_key, free FROM queue_groups('plain');
ROLLBACK;
SELECT group_key, free FROM queue_groups('plain');

-- Another project has other queues.
SET queue.project = 'other';
SELECT * FROM queue_groups('q');
SELECT queue_push('q', '1', group_key => 'of the other project') > 0 AS pushed;
SELECT group_key, free FROM queue_groups('q');
RESET queue.project;
-- A paused queue is counted as any other.
SELECT queue_pause('plain');
SELECT group_key, free FROM queue_groups('plain');

-- Many groups, page by page, in the order of the keys' bytes
SELECT count(*) FROM queue_push_batch('many',
    (SELECT array_agg(to_jsonb(i)) FROM generate_series(1, 9000) AS i),
    group_keys => (SELECT array_agg(CASE WHEN i % 4 > 0 THEN md5((i % 3000)::text) END)
                   FROM generate_series(1, 9000) AS i)) AS ids, unnest(ids);
SELECT queue_push('many', '1', group_key => repeat(k, 256)) > 0 AS pushed
    FROM unnest('{z, Z}'::text[]) AS k;
CREATE TEMP TABLE expected AS
    SELECT row_number() OVER (ORDER BY group_key COLLATE "C" NULLS FIRST) AS n,
           group_key, count(*) AS free
        FROM queue_data.message WHERE queue = 'many' GROUP BY group_key;
SELECT count(*), sum(free) FROM expected;
CREATE FUNCTION pg_temp.pages(page_size int)
RETURNS TABLE (n bigint, group_key text, free bigint) LANGUAGE plpgsql AS $$
DECLARE
    marker text;
    page text[];
BEGIN
    n := 0;
    LOOP
        page := '{}';
        FOR group_key, free IN
            SELECT g.group_key, g.free
                FROM queue_groups('many', marker, page_size) AS g
        LOOP
            n := n + 1;
            page := page || COALESCE(group_key, '');
            RETURN NEXT;
        END LOOP;
        EXIT WHEN cardinality(page) < page_size;
        marker := page[page_size];
    END LOOP;
END
$$;
SELECT page_size, count(*),
       count(*) = (SELECT count(*) FROM expected) AND bool_and(e.n IS NOT NULL) AS same
    FROM unnest('{101, 2253, 10000}'::int[]) AS page_size,
         pg_temp.pages(page_size) AS p
         LEFT JOIN expected AS e
             ON e.n = p.n AND e.free = p.free
                AND e.group_key IS NOT DISTINCT FROM p.group_key
    GROUP BY page_size ORDER BY page_size;

DROP EXTENSION queue CASCADE;
