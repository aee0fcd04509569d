SELECT count(pgq.insert_event('bench', 'mail', :body)) FROM generate_series(1, :n);
