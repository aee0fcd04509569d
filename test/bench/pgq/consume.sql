SELECT coalesce(pgq.next_batch('bench', 'bench'), 0) AS batch \gset
\if :batch > 0
BEGIN;
SELECT count(ev_data) FROM pgq.get_batch_events(:batch);
SELECT pgq.finish_batch(:batch);
COMMIT;
\else
\sleep :idle ms
\endif
