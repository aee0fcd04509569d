SELECT bench_claim(:n) AS jobs \gset
CALL bench_finish(:jobs);
