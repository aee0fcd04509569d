-- What the queues in plain SQL with batches have in common: tables job and batch,
-- whose rows stay with the time when they were finished.

-- Plans that are made while the tables are small would scan them whole for ever.
ALTER DATABASE :"DBNAME" SET enable_seqscan = off;

CREATE VIEW bench_count AS
    SELECT n_tup_ins AS pushed,
           n_tup_del AS deleted,
           (SELECT count(*) FROM job WHERE finished_at IS NULL) AS waiting,
           n_tup_upd AS updated,
           n_tup_hot_upd AS hot,
           pg_relation_size(relid) AS heap
    FROM pg_stat_user_tables
    WHERE relname = 'job';

CREATE FUNCTION bench_batch_left() RETURNS bigint
LANGUAGE sql AS 'SELECT count(*) FROM batch WHERE finished_at IS NULL';
