\ir pgmq.sql
\ir tables.sql
