\if :made = 0
SELECT array_fill(:body::text, ARRAY[:n::int])::text AS bodies \gset
\set made 1
\endif
INSERT INTO pgq.event_1_0 (ev_time, ev_type, ev_data) SELECT now(), 'mail', body FROM unnest(:bodies::text[]) AS body RETURNING ev_id;
