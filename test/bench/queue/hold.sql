SELECT format('SELECT count(*) FROM queue_claim(''bench'', 3600, 60, %s)', least(1000, :k - claimed)) FROM generate_series(0, :k - 1, 1000) AS claimed \gexec
