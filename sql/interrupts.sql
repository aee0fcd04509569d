-- Long calls with large arguments can be canceled.  These would take many
-- times the allowed time if they could not.

CREATE EXTENSION queue;
\set VERBOSITY sqlstate
SELECT clock_timestamp() AS began \gset
CREATE TEMP TABLE argument AS
    SELECT jsonb_object_agg('key ' || i, i) AS body,
           array_agg('ignored ' || i) AS ignore
    FROM generate_series(1, 100000) AS i;
-- five times what that took on this machine, as busy as it is
SELECT 5 * (clock_timestamp() - :'began') + interval '1 s' AS allowed \gset
SELECT queue_push('q', '1') AS id \gset
SET statement_timeout = '300ms';

SELECT clock_timestamp() AS began \gset
SELECT queue_dedup_key(body, ignore) FROM argument;
SELECT clock_timestamp() - :'began' < :'allowed' AS canceled;

SELECT clock_timestamp() AS began \gset
SELECT count(*) FROM messages_get('q', array_fill(:id::bigint, ARRAY[5000000]));
SELECT clock_timestamp() - :'began' < :'allowed' AS canceled;

RESET statement_timeout;
SELECT queue_drop('q');
DROP EXTENSION queue;
