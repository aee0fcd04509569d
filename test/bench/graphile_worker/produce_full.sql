\if :made = 0
SELECT array_fill(:body::text, ARRAY[:n::int])::text AS bodies \gset
\set made 1
\endif
SELECT id FROM (SELECT pg_advisory_xact_lock_shared(1)) AS gate, graphile_worker.add_jobs(ARRAY(SELECT ('bench', body::json, NULL, NULL, NULL, NULL, NULL, NULL)::graphile_worker.job_spec FROM unnest(:bodies::text[]) AS body));
