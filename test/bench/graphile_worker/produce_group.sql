\set key random(1, :groups)
SELECT id FROM (SELECT pg_advisory_xact_lock_shared(1)) AS gate, graphile_worker.add_job('bench', :body::json, queue_name => 'g' || :key);
