-- Wrong arguments of every function: the right SQLSTATE, and nothing left
-- behind.  The wording is shown by misuse.sql.

CREATE EXTENSION queue;
SET queue.min_claim_ttl = 1;
\set VERBOSITY sqlstate

-- All that is stored, but for the sequences.  The background worker may move a
-- message to another segment at any time.
CREATE FUNCTION pg_temp.state() RETURNS text
LANGUAGE plpgsql AS $$
DECLARE
    part text;
    of_tables text;
    one text;
    whole text := '';
BEGIN
    FOR part, of_tables IN
        SELECT regexp_replace(c.relname, '_\d+$', ''),
               string_agg(format('SELECT md5(r::text) FROM queue_data.%I r', c.relname),
                          ' UNION ALL ')
            FROM pg_class c
                JOIN pg_namespace n ON n.oid = c.relnamespace
            WHERE n.nspname = 'queue_data' AND c.relkind = 'r'
                  -- the worker writes these
                  AND c.relname NOT IN ('job_counter', 'ring')
            GROUP BY 1
            ORDER BY 1
    LOOP
        EXECUTE format('SELECT md5(string_agg(m, '' '' ORDER BY m))
                        FROM (%s) AS t (m)', of_tables) INTO one;
        whole := concat_ws(' ', whole, part, one);
    END LOOP;
    RETURN md5(whole);
END
$$;
CREATE FUNCTION pg_temp.try(call text) RETURNS text
LANGUAGE plpgsql AS $$
DECLARE
    n bigint;
BEGIN
    EXECUTE 'SELECT count(*) FROM ' || call INTO n;
    RAISE SQLSTATE 'OK000';
EXCEPTION
    WHEN SQLSTATE 'OK000' THEN RETURN 'ok';
    WHEN OTHERS THEN RETURN sqlstate;
END
$$;

SELECT queue_push_batch('q', '{1, 2, 3}') IS NOT NULL AS pushed;
SELECT queue_push('q', '4', delay => 1000, dedup_key => 'k') > 0 AS pushed;
SET queue.project = 'other';
SELECT queue_push('q', '"of another project"') AS foreign_id \gset
SELECT claim_id AS foreign_claim FROM queue_claim('q', 600, 60) \gset
RESET queue.project;
CREATE TEMP TABLE fixture (message bigint, claimed bigint, claim text,
                           foreign_message bigint, foreign_claim text);
INSERT INTO fixture
    SELECT (SELECT max(id) FROM queue_messages('q')), id, claim_id,
           :foreign_id, :'foreign_claim'
    FROM queue_claim('q', 600, 60, 1);
CREATE FUNCTION pg_temp.m() RETURNS bigint LANGUAGE sql AS 'SELECT message FROM fixture';
CREATE FUNCTION pg_temp.cm() RETURNS bigint LANGUAGE sql AS 'SELECT claimed FROM fixture';
CREATE FUNCTION pg_temp.c() RETURNS text LANGUAGE sql AS 'SELECT claim FROM fixture';
CREATE FUNCTION pg_temp.fm() RETURNS bigint LANGUAGE sql AS 'SELECT foreign_message FROM fixture';
CREATE FUNCTION pg_temp.fc() RETURNS text LANGUAGE sql AS 'SELECT foreign_claim FROM fixture';
SELECT pg_temp.state() AS before \gset

-- The name of the queue: NULL, and not a name.
SELECT f AS function,
       pg_temp.try(format('%s(%s)', f, concat_ws(', ', 'NULL', args))) AS "null",
       pg_temp.try(format('%s(%s)', f, concat_ws(', ', '''''', args))) AS empty,
       pg_temp.try(format('%s(%s)', f, concat_ws(', ', quote_literal(repeat('x', 65)), args))) AS long,
       pg_temp.try(format('%s(%s)', f, concat_ws(', ', '''a b''', args))) AS blank,
       pg_temp.try(format('%s(%s)', f, concat_ws(', ', '''it''''s "quoted"''', args))) AS quotes,
       pg_temp.try(format('%s(%s)', f, concat_ws(', ', quote_literal(repeat(chr(228), 3)), args))) AS umlaut,
       pg_temp.try(format('%s(%s)', f, concat_ws(', ', quote_literal(E'q\n'), args))) AS newline
    FROM (VALUES
        ('queue_create', NULL),
        ('queue_set_metadata', $$'{}'$$),
        ('queue_update', $$'{}'$$),
        ('queue_exists', NULL),
        ('queue_drop', NULL),
        ('queue_get', NULL),
        ('queue_purge', NULL),
        ('queue_pause', NULL),
        ('queue_resume', NULL),
        ('queue_stats', NULL),
        ('queue_groups', NULL),
        ('queue_grant', $$'queue_admin', 'push'$$),
        ('queue_revoke', $$'queue_admin', 'push'$$),
        ('queue_push', $$'1'$$),
        ('queue_push_batch', $$'{1}'$$),
        ('queue_post', $$'[{"body": 1}]'$$),
        ('queue_messages', NULL),
        ('message_get', $$1$$),
        ('messages_get', $$'{1}'$$),
        ('message_delete', $$1$$),
        ('messages_delete', $$'{1}'$$),
        ('queue_pop', NULL),
        ('queue_claim', $$60, 60$$),
        ('claim_next', $$NULL, 60, 60$$),
        ('queue_step', NULL),
        ('claim_get', $$'x'$$),
        ('claim_messages', $$'x'$$),
        ('claim_renew', $$'x', 60$$),
        ('claim_release', $$'x'$$),
        ('claim_complete', $$'x'$$),
        ('queue_dead_letters', NULL),
        ('queue_redrive', NULL),
        ('queue_push_lazy', $$'1'$$),
        ('message_retry', $$1, 'x'$$),
        ('message_bury', $$1, 'x', 'e'$$),
        ('message_cancel', $$1$$),
        ('messages_cancel', $$'{1}'$$),
        ('messages_run_now', $$'{1}'$$),
        ('messages_bury', $$'{1}', 'e'$$),
        ('queue_browse', NULL),
        ('queue_cancel_where', $$'{}'$$),
        ('message_complete', $$1, 'x'$$),
        ('queue_finished', NULL),
        ('message_result', $$1$$),
        ('message_finished', $$1$$),
        ('job_errors', NULL),
        ('job_root', $$'s'$$),
        ('job_stats', NULL)
    ) AS v (f, args);
SELECT pg_temp.state() = :'before' AS unchanged;

-- All other arguments.
SELECT call, pg_temp.try(call) AS outcome FROM (VALUES
    ($$queue_create('new', NULL)$$),
    ($$queue_create('new', '[]')$$),
    ($$queue_create('new', '{"_max_claim_count": 0}')$$),
    ($$queue_create('new', 'not json')$$),
    ($$queue_set_metadata('q', NULL)$$),
    ($$queue_set_metadata('q', '1')$$),
    ($$queue_set_metadata('unknown', '{}')$$),
    ($$queue_update('q', NULL)$$),
    ($$queue_update('q', 'null')$$),
    ($$queue_update('unknown', '{}')$$),
    ($$queue_pause('unknown')$$),
    ($$queue_resume('unknown')$$),
    ($$queue_list("limit" => NULL)$$),
    ($$queue_list("limit" => 0)$$),
    ($$queue_list("limit" => -2147483648)$$),
    ($$queue_list("limit" => 10001)$$),
    ($$queue_list("limit" => 2147483647)$$),
    ($$queue_list(pattern => '[')$$),
    ($$queue_list(marker => 'not a "name"')$$),
    ($$queue_list(marker => repeat('x', 1000000))$$),
    ($$queue_groups('q', "limit" => NULL)$$),
    ($$queue_groups('q', "limit" => 0)$$),
    ($$queue_groups('q', "limit" => 10001)$$),
    ($$queue_groups('q', marker => repeat('x', 1000000))$$),
    ($$queue_grant('q', NULL, 'push')$$),
    ($$queue_grant('q', 'queue_admin', NULL)$$),
    ($$queue_grant('q', 'queue_admin', 'drop')$$),
    ($$queue_grant('q', 'regress_queue_no_such_role', 'push')$$),
    ($$queue_grant('q', '-', 'push')$$),
    ($$queue_grant('q', 4294967295::oid::regrole, 'push')$$),
    ($$queue_grant('unknown', 'queue_admin', 'push')$$),
    ($$queue_revoke('q', NULL, 'push')$$),
    ($$queue_revoke('q', 'queue_admin', NULL)$$),
    ($$queue_revoke('q', 'queue_admin', 'drop')$$),
    ($$queue_revoke('unknown', 'queue_admin', 'push')$$),
    ($$queue_push('q', NULL)$$),
    ($$queue_push('q', 'not json')$$),
    ($$queue_push('q', '1', 0)$$),
    ($$queue_push('q', '1', -1)$$),
    ($$queue_push('q', '1', 59)$$),
    ($$queue_push('q', '1', 1209601)$$),
    ($$queue_push('q', '1', 2147483647)$$),
    ($$queue_push('q', '1', -2147483648)$$),
    ($$queue_push('q', '1', delay => -1)$$),
    ($$queue_push('q', '1', delay => 1209601)$$),
    ($$queue_push('q', '1', delay => 2147483647)$$),
    ($$queue_push('q', '1', priority => NULL)$$),
    ($$queue_push('q', '1', priority => -1)$$),
    ($$queue_push('q', '1', priority => 10)$$),
    ($$queue_push('q', '1', priority => 2147483647)$$),
    ($$queue_push('q', '1', priority => 65536)$$),
    ($$queue_push('new', '1', 1)$$),
    ($$queue_push_batch('q', NULL)$$),
    ($$queue_push_batch('q', '{NULL}')$$),
    ($$queue_push_batch('q', '{1, NULL}')$$),
    ($$queue_push_batch('q', '{{1, 2}, {3, 4}}')$$),
    ($$queue_push_batch('q', '{1}', 59)$$),
    ($$queue_push_batch('q', '{1}', 1209601)$$),
    ($$queue_push_batch('q', '{1}', delay => -1)$$),
    ($$queue_push_batch('q', '{1}', delay => 1209601)$$),
    ($$queue_push_batch('q', '{1}', priority => NULL)$$),
    ($$queue_push_batch('q', '{1}', priority => -1)$$),
    ($$queue_push_batch('q', '{1}', priority => 10)$$),
    ($$queue_push_batch('q', '{}', 59)$$),
    ($$queue_post('q', NULL)$$),
    ($$queue_post('q', '{}')$$),
    ($$queue_post('q', '[1]')$$),
    ($$queue_post('q', '[{}]')$$),
    ($$queue_post('q', '[{"body": 1, "ttl": 59}]')$$),
    ($$queue_post('q', '[{"body": 1, "delay": -1}]')$$),
    ($$queue_post('q', '[{"body": 1, "priority": 10}]')$$),
    ($$queue_post('q', '[{"body": 1, "dedup_key": 1}]')$$),
    ($$queue_post('q', '[{"body": 1, "more": 1}]')$$),
    ($$queue_post('q', '[{"body": 1, "at": "nonsense"}]')$$),
    ($$queue_post('q', '[{"body": 1, "at": "2020-13-01"}]')$$),
    ($$queue_push('q', '1', after_success => NULL)$$),
    ($$queue_push_batch('q', '{1}', after_success => NULL)$$),
    ($$queue_push_once('q', 'o', 1, '1', after_success => NULL)$$),
    ($$queue_messages('q', "limit" => NULL)$$),
    ($$queue_messages('q', "limit" => 0)$$),
    ($$queue_messages('q', "limit" => -1)$$),
    ($$queue_messages('q', "limit" => 10001)$$),
    ($$queue_messages('q', echo => NULL)$$),
    ($$queue_messages('q', include_claimed => NULL)$$),
    ($$queue_messages('q', include_delayed => NULL)$$),
    ($$message_get('q', NULL)$$),
    ($$messages_get('q', NULL)$$),
    ($$messages_get('q', '{NULL}')$$),
    ($$message_delete('q', NULL)$$),
    ($$message_delete('q', NULL, pg_temp.c())$$),
    ($$message_delete('q', pg_temp.cm())$$),
    ($$message_delete('q', pg_temp.m(), pg_temp.c())$$),
    ($$message_delete('q', pg_temp.cm(), pg_temp.fc())$$),
    ($$message_delete('q', pg_temp.fm(), pg_temp.fc())$$),
    ($$message_delete('q', pg_temp.cm(), '')$$),
    ($$message_delete('q', pg_temp.cm(), upper(pg_temp.c()) || 'X')$$),
    ($$messages_delete('q', NULL)$$),
    ($$messages_delete('q', '{NULL}')$$),
    ($$messages_delete('q', ARRAY[pg_temp.m(), NULL])$$),
    ($$messages_delete('q', ARRAY[pg_temp.m(), pg_temp.cm()])$$),
    ($$messages_delete('q', ARRAY[pg_temp.cm(), pg_temp.m()], pg_temp.c())$$),
    ($$messages_delete('q', ARRAY[pg_temp.cm()], pg_temp.fc())$$),
    ($$queue_pop('q', NULL)$$),
    ($$queue_pop('q', 0)$$),
    ($$queue_pop('q', -1)$$),
    ($$queue_pop('q', 101)$$),
    ($$queue_pop('q', 2147483647)$$),
    ($$queue_claim('q', NULL, 60)$$),
    ($$queue_claim('q', 60, NULL)$$),
    ($$queue_claim('q', 0, 60)$$),
    ($$queue_claim('q', -1, 60)$$),
    ($$queue_claim('q', 43201, 60)$$),
    ($$queue_claim('q', 2147483647, 60)$$),
    ($$queue_claim('q', 60, 59)$$),
    ($$queue_claim('q', 60, -1)$$),
    ($$queue_claim('q', 60, 43201)$$),
    ($$queue_claim('q', 60, 60, 0)$$),
    ($$queue_claim('q', 60, 60, -1)$$),
    ($$queue_claim('q', 60, 60, 101)$$),
    ($$queue_claim('q', 60, 60, 2147483647)$$),
    ($$queue_claim('unknown', 60, 60, 0)$$),
    ($$queue_claim('unknown', NULL, 60)$$),
    ($$queue_claim_any('{NULL}', 60, 60)$$),
    ($$queue_claim_any('{q, NULL}', 60, 60)$$),
    ($$queue_claim_any('{q, not a name}', 60, 60)$$),
    ($$queue_claim_any('{q, ""}', 60, 60)$$),
    ($$queue_claim_any(ARRAY['q', 'it''s "quoted"'], 60, 60)$$),
    ($$queue_claim_any(ARRAY['q', chr(228)], 60, 60)$$),
    ($$queue_claim_any('{q}', NULL, 60)$$),
    ($$queue_claim_any('{q}', 60, NULL)$$),
    ($$queue_claim_any('{q}', 0, 60)$$),
    ($$queue_claim_any('{q}', 43201, 60)$$),
    ($$queue_claim_any('{q}', 60, 59)$$),
    ($$queue_claim_any('{q}', 60, 43201)$$),
    ($$queue_claim_any('{q}', 60, 60, 0)$$),
    ($$queue_claim_any('{q}', 60, 60, 101)$$),
    ($$queue_claim_any(NULL, NULL, 60)$$),
    ($$queue_claim_any('{}', 0, 60)$$),
    ($$claim_next('q', pg_temp.c(), NULL, 60)$$),
    ($$claim_next('q', pg_temp.c(), 60, NULL)$$),
    ($$claim_next('q', pg_temp.c(), 0, 60)$$),
    ($$claim_next('q', pg_temp.c(), 43201, 60)$$),
    ($$claim_next('q', pg_temp.c(), 60, 59)$$),
    ($$claim_next('q', pg_temp.c(), 60, 43201)$$),
    ($$claim_next('q', pg_temp.c(), 60, 60, 0)$$),
    ($$claim_next('q', pg_temp.c(), 60, 60, 101)$$),
    ($$claim_next('q', pg_temp.fc(), 60, 60)$$),
    ($$claim_next('q', 'x', 60, 60)$$),
    ($$claim_renew('q', pg_temp.c(), NULL)$$),
    ($$claim_renew('q', pg_temp.c(), 0)$$),
    ($$claim_renew('q', pg_temp.c(), 43201)$$),
    ($$claim_renew('q', pg_temp.c(), 60, 59)$$),
    ($$claim_renew('q', pg_temp.c(), 60, 43201)$$),
    ($$claim_release('q', pg_temp.c(), NULL)$$),
    ($$claim_release('q', pg_temp.c(), -1)$$),
    ($$claim_release('q', pg_temp.c(), 1209601)$$),
    ($$claim_complete('q', NULL)$$),
    ($$claim_complete('q', '')$$),
    ($$claim_complete('q', 'x')$$),
    ($$claim_complete('q', pg_temp.fc())$$),
    ($$queue_dead_letters('q', NULL)$$),
    ($$queue_dead_letters('q', 0)$$),
    ($$queue_dead_letters('q', 10001)$$),
    ($$queue_redrive('q', 'not a name')$$),
    ($$queue_redrive('q', 'it''s "quoted"')$$),
    ($$queue_redrive('q', chr(228))$$),
    ($$queue_redrive('q', 'q')$$),
    ($$queue_redrive('q', "limit" => 0)$$),
    ($$queue_redrive('q', "limit" => -1)$$),
    ($$queue_push_lazy('q', NULL)$$),
    ($$queue_push_lazy('q', '1', 0)$$),
    ($$queue_push_lazy('q', '1', 1209601)$$),
    ($$queue_push_lazy('q', '1', delay => -1)$$),
    ($$queue_push_lazy('q', '1', priority => 10)$$),
    ($$queue_push_lazy('q', '1', priority => NULL)$$),
    ($$queue_push_lazy('q', to_jsonb(repeat('x', 262144)))$$),
    ($$queue_push_lazy('q', 'not json')$$),
    ($$queue_dedup_key(NULL)$$),
    ($$queue_dedup_key('1', NULL)$$),
    ($$queue_dedup_key('{}', '{a, NULL}')$$),
    ($$message_retry('q', NULL, pg_temp.c())$$),
    ($$message_bury('q', NULL, pg_temp.c(), 'e')$$),
    ($$message_bury('q', pg_temp.cm(), NULL, 'e')$$),
    ($$message_cancel('q', NULL)$$),
    ($$message_cancel('q', 0)$$),
    ($$messages_cancel('q', NULL)$$),
    ($$messages_cancel('q', '{NULL}')$$),
    ($$messages_cancel('q', '{{1},{2}}')$$),
    ($$messages_run_now('q', NULL)$$),
    ($$messages_run_now('q', '{NULL}')$$),
    ($$messages_run_now('q', '{{1},{2}}')$$),
    ($$messages_bury('q', NULL, 'e')$$),
    ($$messages_bury('q', '{NULL}', 'e')$$),
    ($$messages_bury('q', '{{1},{2}}', 'e')$$),
    ($$queue_redrive('q', ids => '{NULL}')$$),
    ($$queue_redrive('q', ids => '{{1},{2}}')$$),
    ($$queue_browse('q', 'x')$$),
    ($$queue_browse('q', "limit" => 0)$$),
    ($$queue_browse('q', "limit" => NULL)$$),
    ($$queue_depth('')$$),
    ($$queue_depth('a b')$$),
    ($$message_finished('q', NULL)$$),
    ($$queue_cancel_where('q', NULL)$$),
    ($$queue_cancel_where('q', '"none"')$$),
    ($$message_complete('q', NULL, pg_temp.c())$$),
    ($$message_complete('q', pg_temp.cm(), NULL)$$),
    ($$message_complete('q', pg_temp.cm(), pg_temp.c(), to_jsonb(repeat('x', 262144)))$$),
    ($$job_result(NULL)$$),
    ($$job_result('1')$$),
    ($$queue_finished('q', "limit" => 0)$$),
    ($$queue_finished('q', "limit" => 10001)$$),
    ($$queue_finished('q', outcome => 'x')$$),
    ($$message_result('q', NULL)$$),
    ($$job_errors('q', NULL)$$),
    ($$job_errors('q', 0)$$),
    ($$topic_bind(NULL, 'q')$$),
    ($$topic_bind('a..b', 'q')$$),
    ($$topic_bind('a', NULL)$$),
    ($$topic_bind('a', 'a b')$$),
    ($$topic_bind('a', 'q', '1')$$),
    ($$topic_bind('a', 'q', NULL, '{}')$$),
    ($$topic_bind('a', 'q', NULL, '{NULL}')$$),
    ($$topic_bind('a', 'q', NULL, '{0}')$$),
    ($$topic_unbind(NULL, 'q')$$),
    ($$topic_unbind('a', NULL)$$),
    ($$topic_publish(NULL, '1')$$),
    ($$topic_publish('a', NULL)$$),
    ($$topic_publish('#', '1')$$),
    ($$topic_publish('a', '1', NULL, 1)$$),
    ($$topic_publish('a', '1', NULL, NULL, -1)$$),
    ($$topic_publish('a', '1', priority => 10)$$),
    ($$topic_publish('a', '1', priority => NULL)$$),
    ($$topic_publish('a', '1', group_key => '')$$),
    ($$topic_list(NULL, NULL)$$),
    ($$message_retry('q', pg_temp.cm(), NULL)$$),
    ($$message_retry('q', pg_temp.cm(), 'x')$$),
    ($$message_retry('q', pg_temp.cm(), '')$$),
    ($$message_retry('q', pg_temp.cm(), pg_temp.fc())$$),
    ($$message_retry('q', pg_temp.m(), pg_temp.c())$$),
    ($$message_retry('q', pg_temp.fm(), pg_temp.c())$$),
    ($$message_retry('q', 0, pg_temp.c())$$),
    ($$message_retry('q', -1, pg_temp.c())$$),
    ($$message_retry('q', 9223372036854775807, pg_temp.c())$$),
    ($$message_retry('q', pg_temp.cm(), pg_temp.c(), delay => -1)$$),
    ($$message_retry('q', pg_temp.cm(), pg_temp.c(), delay => 1209601)$$),
    ($$message_retry('unknown', 1, pg_temp.c())$$),
    ($$job_root('q', NULL)$$),
    ($$job_root('q', '')$$),
    ($$job_root('q', repeat('x', 1001))$$)
) AS v (call);
SELECT pg_temp.state() = :'before' AS unchanged;

-- Another project's ids find nothing.
SELECT (SELECT count(*) FROM message_get('q', pg_temp.fm())) AS got,
       message_delete('q', pg_temp.fm()) AS deleted,
       (SELECT count(*) FROM claim_get('q', pg_temp.fc())) AS claim,
       (SELECT count(*) FROM claim_messages('q', pg_temp.fc())) AS messages,
       claim_renew('q', pg_temp.fc(), 60) AS renewed,
       claim_release('q', pg_temp.fc()) AS released;
SELECT pg_temp.state() = :'before' AS unchanged;

-- Outside a subtransaction as well: an error takes all of its statement and
-- of its transaction back.
SELECT messages_delete('q', ARRAY(SELECT id FROM queue_messages('q', include_claimed => true)));
BEGIN;
SELECT queue_push('q', '"first"') > 0 AS pushed;
SELECT queue_push('new', '"second"') > 0 AS pushed;
SELECT queue_push('new', '"third"', 1);
COMMIT;
SELECT queue_push_batch('q', ARRAY['1', '2', NULL]::jsonb[]);
SELECT queue_post('new', '[{"body": 1}, {"body": 2, "ttl": 59}]');
SELECT pg_temp.state() = :'before' AS unchanged;

-- Bodies of 256 KiB and one byte more, as their jsonb is stored: text needs
-- 12 bytes more than it is long.
SELECT pg_column_size(to_jsonb(repeat('x', 262132)));
SELECT call, pg_temp.try(call) AS outcome FROM (VALUES
    ($$queue_push('q', to_jsonb(repeat('x', 262132)))$$),
    ($$queue_push('q', to_jsonb(repeat('x', 262133)))$$),
    ($$queue_push('q', to_jsonb(repeat('x', 10000000)))$$),
    ($$queue_push('new', to_jsonb(repeat('x', 262133)))$$),
    ($$queue_push_batch('q', ARRAY[to_jsonb(repeat('x', 262132)), '1'])$$),
    ($$queue_push_batch('q', ARRAY['1', to_jsonb(repeat('x', 262133))])$$),
    ($$queue_push_batch('q', array_fill(to_jsonb(repeat('x', 262132)), '{20}'))$$),
    ($$queue_post('q', jsonb_build_array(jsonb_build_object('body', repeat('x', 262132))))$$),
    ($$queue_post('q', jsonb_build_array(jsonb_build_object('body', repeat('x', 262133))))$$)
) AS v (call);
SELECT pg_temp.state() = :'before' AS unchanged;
-- also when the body comes compressed or out of line from a table
CREATE TEMP TABLE large (n int, body jsonb);
INSERT INTO large VALUES (1, to_jsonb(repeat('x', 262132))), (2, to_jsonb(repeat('x', 262133)));
SELECT n, pg_column_size(body) < 262144 AS compressed,
       pg_temp.try(format('queue_push(''q'', (SELECT body FROM large WHERE n = %s))', n)) AS outcome
    FROM large ORDER BY n;
ALTER TABLE large ALTER body SET STORAGE EXTERNAL;
TRUNCATE large;
INSERT INTO large VALUES (1, to_jsonb(repeat('x', 262132))), (2, to_jsonb(repeat('x', 262133)));
SELECT n, pg_temp.try(format('queue_push(''q'', (SELECT body FROM large WHERE n = %s))', n)) AS outcome
    FROM large ORDER BY n;
SELECT queue_push('large', body) AS id FROM large WHERE n = 1 \gset
SELECT m.body = l.body AS same FROM message_get('large', :id) m, large l WHERE l.n = 1;
SELECT m.body = l.body AS same FROM queue_claim('large', 60, 60) m, large l WHERE l.n = 1;
SELECT queue_drop('large');
DROP TABLE large;
SELECT pg_temp.state() = :'before' AS unchanged;

-- Ten thousand messages in one batch and one more.
SELECT cardinality(queue_push_batch('batch', array_agg(to_jsonb(i) ORDER BY i)))
    FROM generate_series(1, 10000) i;
SELECT queue_push_batch('batch', array_agg(to_jsonb(i)))
    FROM generate_series(1, 10001) i;
SELECT cardinality(queue_post('batch', jsonb_agg(jsonb_build_object('body', i) ORDER BY i)))
    FROM generate_series(1, 10000) i;
SELECT queue_post('batch', jsonb_agg(jsonb_build_object('body', i)))
    FROM generate_series(1, 10001) i;
SELECT free, total FROM queue_stats('batch');
SELECT count(*), count(DISTINCT id) FROM queue_messages('batch', "limit" => 10000);
SELECT queue_purge('batch');
SELECT queue_drop('batch');
SELECT pg_temp.state() = :'before' AS unchanged;

-- A read-only transaction reads and does not write.
CREATE TEMP TABLE calls (n serial, call text);
INSERT INTO calls (call) VALUES
    ($$queue_exists('q')$$),
    ($$queue_get('q')$$),
    ($$queue_list()$$),
    ($$queue_stats('q')$$),
    ($$queue_groups('q')$$),
    ($$queue_messages('q', NULL, 10, true, true, true)$$),
    ($$message_get('q', pg_temp.m())$$),
    ($$messages_get('q', ARRAY[pg_temp.m()])$$),
    ($$claim_get('q', pg_temp.c())$$),
    ($$claim_messages('q', pg_temp.c())$$),
    ($$queue_dead_letters('q')$$),
    ($$queue_create('new')$$),
    ($$queue_create('q')$$),
    ($$queue_set_metadata('q', '{}')$$),
    ($$queue_update('q', '{}')$$),
    ($$queue_drop('q')$$),
    ($$queue_drop('unknown')$$),
    ($$queue_purge('q')$$),
    ($$queue_pause('q')$$),
    ($$queue_resume('q')$$),
    ($$queue_grant('q', 'queue_admin', 'push')$$),
    ($$queue_revoke('q', 'queue_admin', 'push')$$),
    ($$queue_push('q', '1')$$),
    ($$queue_push('new', '1')$$),
    ($$queue_push('q', '1', delay => 100)$$),
    ($$queue_push('q', '1', dedup_key => 'new')$$),
    ($$queue_push_batch('q', '{1}')$$),
    ($$queue_post('q', '[{"body": 1}]')$$),
    ($$message_delete('q', pg_temp.m())$$),
    ($$message_delete('q', pg_temp.cm(), pg_temp.c())$$),
    ($$messages_delete('q', ARRAY[pg_temp.m()])$$),
    ($$message_cancel('q', pg_temp.m())$$),
    ($$messages_cancel('q', ARRAY[pg_temp.m()])$$),
    ($$queue_cancel_where('q', '{}')$$),
    ($$queue_pop('q')$$),
    ($$queue_claim('q', 60, 60)$$),
    ($$queue_claim('unknown', 60, 60)$$),
    ($$queue_claim_any(NULL, 60, 60)$$),
    ($$claim_next('q', NULL, 60, 60)$$),
    ($$claim_next('q', pg_temp.c(), 60, 60)$$),
    ($$claim_renew('q', pg_temp.c(), 60)$$),
    ($$claim_release('q', pg_temp.c())$$),
    ($$claim_complete('q', pg_temp.c())$$),
    ($$queue_redrive('q')$$),
    ($$queue_push_lazy('q', '1')$$),
    ($$queue_dedup_key('1')$$),
    ($$message_retry('q', pg_temp.cm(), pg_temp.c())$$),
    ($$job_root('q', 's')$$),
    ($$topic_bind('a', 'q')$$),
    ($$topic_unbind('a', 'q')$$),
    ($$topic_list()$$),
    ($$topic_publish('a', '1')$$),
    ($$job_stats('q')$$);
BEGIN READ ONLY;
SELECT call, pg_temp.try(call) AS outcome FROM calls ORDER BY n;
COMMIT;
SET default_transaction_read_only = on;
SELECT count(*) FROM queue_messages('q');
SELECT queue_push('q', '1');
SELECT count(*) FROM queue_claim('q', 60, 60);
RESET default_transaction_read_only;
BEGIN ISOLATION LEVEL SERIALIZABLE READ ONLY DEFERRABLE;
SELECT count(*) FROM queue_claim('q', 60, 60);
ROLLBACK;
-- nor does one that became read-only after it has written
BEGIN;
SELECT queue_push('q', '1') > 0 AS pushed;
SET TRANSACTION READ ONLY;
SELECT queue_push('q', '1');
ROLLBACK;
SELECT pg_temp.state() = :'before' AS unchanged;

-- Parallel query, forced: the functions stay out of its workers, so they
-- work as ever beside it.
DO $$
BEGIN
    PERFORM set_config(name, 'on', false) FROM pg_settings
        WHERE name IN ('force_parallel_mode', 'debug_parallel_query');
END
$$;
SELECT body FROM queue_messages('q');
BEGIN;
SELECT count(queue_push('q', to_jsonb(relname::text))) = count(*) AS pushed FROM pg_class;
SELECT count(*) FROM queue_claim('q', 60, 60);
ROLLBACK;
-- If they are called in parallel mode nevertheless, by a function that is
-- wrongly marked as parallel safe, each raises an error.
CREATE FUNCTION pg_temp.liar(call text) RETURNS bigint
LANGUAGE plpgsql PARALLEL SAFE AS $$
DECLARE
    n bigint;
BEGIN
    EXECUTE 'SELECT count(*) FROM ' || call INTO n;
    RETURN n;
END
$$;
SELECT pg_temp.liar($$queue_exists('q')$$);
SELECT pg_temp.liar($$queue_get('q')$$);
SELECT pg_temp.liar($$queue_list()$$);
SELECT pg_temp.liar($$queue_stats('q')$$);
SELECT pg_temp.liar($$queue_groups('q')$$);
SELECT pg_temp.liar($$queue_messages('q')$$);
SELECT pg_temp.liar($$message_get('q', 1)$$);
SELECT pg_temp.liar($$messages_get('q', '{1}')$$);
SELECT pg_temp.liar($$claim_get('q', 'x')$$);
SELECT pg_temp.liar($$claim_messages('q', 'x')$$);
SELECT pg_temp.liar($$queue_dead_letters('q')$$);
SELECT pg_temp.liar($$queue_push('q', '1')$$);
SELECT pg_temp.liar($$queue_push_batch('q', '{1}')$$);
SELECT pg_temp.liar($$queue_post('q', '[{"body": 1}]')$$);
SELECT pg_temp.liar($$queue_claim('q', 60, 60)$$);
SELECT pg_temp.liar($$queue_pop('q')$$);
SELECT pg_temp.liar($$message_delete('q', 1)$$);
SELECT pg_temp.liar($$message_cancel('q', 1)$$);
SELECT pg_temp.liar($$messages_run_now('q', '{1}')$$);
SELECT pg_temp.liar($$messages_bury('q', '{1}', 'e')$$);
SELECT pg_temp.liar($$queue_browse('q')$$);
SELECT pg_temp.liar($$queue_depth('q')$$);
SELECT pg_temp.liar($$queue_depth()$$);
SELECT pg_temp.liar($$claim_release('q', 'x')$$);
SELECT pg_temp.liar($$queue_create('new')$$);
SELECT pg_temp.liar($$queue_drop('q')$$);
SELECT pg_temp.liar($$queue_push_lazy('q', '1')$$);
SELECT pg_temp.liar($$message_retry('q', 1, 'x')$$);
SELECT pg_temp.liar($$message_complete('q', 1, 'x')$$);
SELECT pg_temp.liar($$queue_finished('q')$$);
SELECT pg_temp.liar($$message_finished('q', 1)$$);
SELECT pg_temp.liar($$job_errors('q')$$);
SELECT pg_temp.liar($$job_root('q', 's')$$);
SELECT pg_temp.liar($$job_stats('q')$$);
DO $$
BEGIN
    PERFORM set_config(name, 'off', false) FROM pg_settings
        WHERE name IN ('force_parallel_mode', 'debug_parallel_query');
END
$$;
SELECT pg_temp.state() = :'before' AS unchanged;

-- After all this, what is free can be claimed.
SELECT body FROM queue_claim('q', 60, 60);
SELECT free, claimed, delayed FROM queue_stats('q');

DROP TABLE fixture, calls;
-- The filter of the dump, of a row that does not exist
SELECT queue_data.roles_exist(NULL, 4294967295::oid::regrole, NULL, NULL, NULL);
DROP EXTENSION queue;
