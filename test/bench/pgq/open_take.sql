SELECT coalesce(pgq.next_batch('bench', 'bench'), 0) AS batch \gset
\if :batch > 0
BEGIN;
INSERT INTO bench_took SELECT ev_extra1::bigint FROM pgq.get_batch_events(:batch);
SELECT pgq.finish_batch(:batch);
COMMIT;
\else
\sleep 2 ms
\endif
