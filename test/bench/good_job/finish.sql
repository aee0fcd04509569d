SELECT bench_claim() AS job \gset
CALL bench_finish(:job);
