-- Root jobs: leaves of an older one are not handed out.

CREATE EXTENSION queue;
SET queue.min_claim_ttl = 1;
\set VERBOSITY sqlstate

-- What it returns is merged into the bodies of the leaves.
SELECT job_root('q', 'refresh links of page 7') AS old \gset
SELECT jsonb_object_keys(:'old') ORDER BY 1;
SELECT :'old'::jsonb ->> 'rootJobSignature' AS signature,
       (:'old'::jsonb ->> 'rootJobTimestamp')::timestamptz
           BETWEEN now() - interval '10 s' AND now() AS server_time;

-- Five leaves of the old one and five of the new one: five run.
SELECT count(queue_push('q', jsonb_build_object('leaf', i, 'of', 'old') || :'old'))
    FROM generate_series(1, 5) i;
SELECT job_root('q', 'refresh links of page 7') AS new \gset
SELECT count(queue_push('q', jsonb_build_object('leaf', i, 'of', 'new') || :'new'))
    FROM generate_series(1, 5) i;
SELECT (:'new'::jsonb ->> 'rootJobTimestamp') > (:'old'::jsonb ->> 'rootJobTimestamp') AS later;
SELECT free FROM queue_stats('q');
SELECT body ->> 'of' AS of, count(*) FROM queue_claim('q', 600, 60, 100) GROUP BY 1;
SELECT claimed, duplicates FROM job_stats('q');
SELECT free, claimed, total FROM queue_stats('q');
-- nor does one that is pushed later
SELECT queue_push('q', jsonb_build_object('of', 'old') || :'old') > 0 AS pushed;
SELECT count(*) FROM queue_claim('q', 600, 60);
SELECT queue_push('q', jsonb_build_object('of', 'old') || :'old') > 0 AS pushed;
SELECT count(*) FROM queue_pop('q');
SELECT queue_push('q', jsonb_build_object('of', 'old') || :'old', priority => 9) > 0 AS pushed;
SELECT queue_push('q', '"other"') > 0 AS pushed;
SELECT body FROM queue_claim_any('{q}', 600, 60, 1);
SELECT claimed, duplicates FROM job_stats('q');
SELECT queue_purge('q');

-- Nothing else is changed: other signatures, other queues, other projects,
-- bodies that only resemble leaves.
SELECT job_root('q', 'other') AS other \gset
SELECT queue_push('q', '{"n": 1}'::jsonb || :'other') > 0 AS pushed;
SELECT queue_push('r', '{"n": 2}'::jsonb || :'old') > 0 AS pushed;
SELECT job_root('r', 'something') IS NOT NULL AS registered;
SELECT count(queue_push('q', body)) FROM unnest(ARRAY[
    '1', 'null', '"x"', '[]', '["rootJobSignature", "rootJobTimestamp"]', '{}',
    '{"rootJobSignature": "other"}',
    '{"rootJobTimestamp": "2001-01-01T00:00:00.000000Z"}',
    '{"rootJobSignature": "other", "rootJobTimestamp": 20010101000000}',
    '{"rootJobSignature": "other", "rootJobTimestamp": "2001-01-01"}',
    '{"rootJobSignature": "other", "rootJobTimestamp": "2001-01-01 00:00:00.000000Z"}',
    '{"rootJobSignature": ["other"], "rootJobTimestamp": "2001-01-01T00:00:00.000000Z"}',
    '{"rootJobSignature": "OTHER", "rootJobTimestamp": "2001-01-01T00:00:00.000000Z"}',
    '{"deep": {"rootJobSignature": "other", "rootJobTimestamp": "2001-01-01T00:00:00.000000Z"}}'
    ]::jsonb[]) body;
SELECT queue_push('q', '{"rootJobSignature": "other", "rootJobTimestamp": "2001-01-01T00:00:00.000000Z"}') > 0 AS the_only_leaf;
SELECT count(*) FROM queue_claim('q', 600, 60, 100);
SELECT count(*) FROM queue_claim('r', 600, 60, 100);
SET queue.project = 'p';
SELECT queue_push('q', '{"n": 3}'::jsonb || :'old') > 0 AS pushed;
SELECT job_root('q', 'other') IS NOT NULL AS registered;
SELECT count(*) FROM queue_claim('q', 600, 60, 100);
RESET queue.project;

-- Leaves that are claimed: the claim goes on, and they are not claimed again.
SELECT job_root('f', 's') AS root \gset
SELECT queue_push('f', jsonb_build_object('n', i) || :'root') > 0 AS pushed
    FROM generate_series(1, 4) i;
SELECT claim_id AS claim, array_agg(id ORDER BY id) AS ids
    FROM queue_claim('f', 600, 60, 4) GROUP BY 1 \gset
SELECT job_root('f', 's') AS newer \gset
SELECT message_delete('f', (:'ids'::bigint[])[1], :'claim');
SELECT message_retry('f', (:'ids'::bigint[])[2], :'claim', 'failed', 0) IS NOT NULL AS retried;
SELECT message_retry('f', (:'ids'::bigint[])[3], :'claim', 'failed', 1) IS NOT NULL AS retried;
SELECT claim_release('f', :'claim');
SELECT count(*) FROM queue_claim('f', 600, 60);
SELECT pg_sleep(1.1);
SELECT count(*) FROM queue_claim('f', 600, 60);
SELECT claimed, completed, duplicates FROM job_stats('f');
SELECT total FROM queue_stats('f');

-- A rollback undoes the registration.
SELECT queue_push('f', '{"n": 5}'::jsonb || :'newer') > 0 AS pushed;
BEGIN;
SELECT job_root('f', 's') IS NOT NULL AS registered;
SELECT count(*) FROM queue_claim('f', 600, 60);
ROLLBACK;
BEGIN;
SAVEPOINT a;
SELECT job_root('f', 's') IS NOT NULL AS registered;
ROLLBACK TO a;
COMMIT;
SELECT body ->> 'n' AS n FROM queue_claim('f', 600, 60);

-- Many in one transaction, and a clock that stands still or steps back: each
-- is later than the one before.
BEGIN;
SELECT count(DISTINCT t), bool_and(t > before OR before IS NULL) AS grows FROM (
    SELECT t, lag(t) OVER (ORDER BY i) AS before FROM (
        SELECT i, job_root('t', 's') ->> 'rootJobTimestamp' AS t
        FROM generate_series(1, 1000) i) s) s;
COMMIT;
UPDATE queue_data.root_job SET registered_at = now() + interval '1 year';
SELECT job_root('t', 's') ->> 'rootJobTimestamp' AS a \gset
SELECT job_root('t', 's') ->> 'rootJobTimestamp' AS b \gset
SELECT :'a' > to_char(now() + interval '11 months', 'YYYY-MM-DD') AS later, :'b' > :'a' AS grows;

-- A leaf of an older root job does not keep its key: it will not run.
SELECT job_root('k', 's') AS old \gset
SELECT queue_push('k', '{"page": 7}'::jsonb || :'old',
                  dedup_key => queue_dedup_key('{"page": 7}'::jsonb || :'old')) > 0 AS pushed;
SELECT queue_push('k', '{"page": 7}'::jsonb || :'old',
                  dedup_key => queue_dedup_key('{"page": 7}'::jsonb || :'old')) > 0 AS pushed;
SELECT job_root('k', 's') AS new \gset
SELECT queue_push('k', '{"page": 7}'::jsonb || :'new',
                  dedup_key => queue_dedup_key('{"page": 7}'::jsonb || :'new')) > 0 AS pushed;
SELECT body = '{"page": 7}'::jsonb || :'new' AS new_one FROM queue_claim('k', 600, 60);
SELECT duplicates FROM job_stats('k');

-- After 28 days no leaf job is left.  Among a hundred registrations of new root
-- jobs one deletes the old ones.
SELECT count(job_root('old', s)) FROM unnest('{old, young}'::text[]) AS s;
UPDATE queue_data.root_job SET registered_at = now() - CASE digest
        WHEN encode(substr(sha256('old'), 1, 16), 'hex')::uuid
        THEN interval '673 hours' ELSE interval '671 hours' END
    WHERE queue_id = (SELECT id FROM queue_data.queue WHERE name = 'old');
SELECT count(job_root('old', i::text)) FROM generate_series(1, 100) AS i;
SELECT now() - registered_at > interval '1 hour' AS long_ago, count(*) FROM queue_data.root_job
    WHERE queue_id = (SELECT id FROM queue_data.queue WHERE name = 'old')
    GROUP BY 1 ORDER BY 1;

-- A root has a time of its own: MediaWiki's.
SET timezone = 'UTC';
SELECT job_root('m', 's', '2024-05-06 07:08:09');
SELECT job_root('m', 's', '2024-05-06 07:08:09');
SELECT count(queue_push('m', jsonb_build_object('at', at, 'rootJobSignature', 's', 'rootJobTimestamp', at)))
    FROM unnest('{20240506070808, 20240506070809, 20240506070810, 2024-05-06T07:08:08.999999Z,
                  2024-05-06T07:08:09.000000Z, 2024050607080, 2024050607080x}'::text[]) AS at;
SELECT body ->> 'at' AS at FROM queue_claim('m', 600, 60, 100);
-- an older root changes nothing, a newer one does
SELECT job_root('m', 's', '2024-05-06 07:08:08');
SELECT queue_push('m', '{"rootJobSignature": "s", "rootJobTimestamp": "20240506070809"}') > 0 AS pushed;
SELECT count(*) FROM queue_claim('m', 600, 60);
SELECT queue_push('m', '{"rootJobSignature": "s", "rootJobTimestamp": "20240506070809"}') > 0 AS pushed;
SELECT job_root('m', 's', '2024-05-06 07:08:09.000001');
SELECT count(*) FROM queue_claim('m', 600, 60);
SELECT job_root('m', 's') ->> 'rootJobTimestamp' > '2024-05-06T07:08:09' AS now;
SELECT job_root('m', 's', at) FROM unnest('{infinity, -infinity}'::timestamptz[]) AS at;
SELECT job_root('m', 's', '-infinity');
SELECT job_root('m', 's', '10000-01-01');
SELECT job_root('m', 's', '0044-03-15 BC');
SELECT job_root('m', 'early', '0001-01-01'), job_root('m', 'late', '9999-12-31 23:59:59');
SELECT queue_drop('m');

-- Dropping a queue drops its roots.
SELECT queue_drop(q) FROM unnest('{q, r, f, t, k, old}'::text[]) q;
SELECT r.digest FROM queue_data.root_job r
    WHERE queue_id NOT IN (SELECT id FROM queue_data.queue);
SELECT queue_push('q', '{"n": 1}'::jsonb || :'old') > 0 AS pushed;
SELECT count(*) FROM queue_claim('q', 600, 60);

DROP EXTENSION queue;
