\if :made = 0
SELECT array_fill(:body::text, ARRAY[:n::int])::text AS bodies \gset
\set made 1
\endif
SELECT pgq.insert_event('bench', 'mail', body) FROM unnest(:bodies::text[]) AS body;
