INSERT INTO pgq.event_1_0 (ev_time, ev_type, ev_data) SELECT now(), 'mail', :body FROM generate_series(1, :n);
