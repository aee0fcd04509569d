\timing on
CALL bench_loop(:k);
