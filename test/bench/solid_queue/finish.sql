SELECT bench_claim(1) AS jobs \gset
CALL bench_finish(:jobs);
