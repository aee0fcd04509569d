CREATE EXTENSION queue_pgmq CASCADE;
\ir ../pgmq/tables.sql
