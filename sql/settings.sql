-- The settings: defaults, bounds, privileges, effects.

CREATE EXTENSION queue;

-- A value that is set before the first call loads the library is kept.
SET queue.max_claim_ttl = 5000;
SET queue.client_id = 'early bird';
SELECT queue_exists('nowhere');
SELECT current_setting('queue.max_claim_ttl')::interval
           = interval '5000 s' AS kept_number,
       current_setting('queue.client_id') AS kept_text;
RESET queue.max_claim_ttl;
RESET queue.client_id;

SELECT name, setting, min_val, max_val, vartype, context
    FROM pg_settings
    WHERE name IN ('queue.project', 'queue.client_id',
          'queue.min_claim_ttl', 'queue.max_claim_ttl',
          'queue.min_claim_grace', 'queue.max_claim_grace',
          'queue.default_claim_limit', 'queue.max_claim_limit',
          'queue.min_message_ttl', 'queue.max_message_ttl',
          'queue.default_message_ttl', 'queue.max_message_delay',
          'queue.max_message_size', 'queue.max_push_count',
          'queue.auto_create', 'queue.durable_claims')
    ORDER BY name COLLATE "C";
SELECT name AS undocumented FROM pg_settings
    WHERE name LIKE 'queue.%' AND coalesce(short_desc, '') = '';

\set VERBOSITY sqlstate

-- The minima can be 1, that of grace 0, but not less.
SET queue.min_claim_ttl = 1;
SET queue.min_claim_ttl = 0;
SET queue.min_claim_grace = 0;
SET queue.min_claim_grace = -1;
SET queue.min_message_ttl = 1;
SET queue.min_message_ttl = 0;
SET queue.max_claim_limit = 10000;
SET queue.max_claim_limit = 10001;
SET queue.default_claim_limit = 0;
SET queue.max_message_size = -1;
SET queue.max_push_count = -1;
SET queue.auto_create = 'perhaps';
SET queue.max_claim_ttl = 'long';
-- No other setting may begin with the prefix.
SET queue.nonsense = 1;
RESET ALL;

-- Texts: 256 bytes at most.
SET queue.project = '';
SELECT length(set_config('queue.project', repeat('p', 256), false));
SELECT length(set_config('queue.project', repeat('p', 257), false));
SELECT length(current_setting('queue.project'));
SELECT length(set_config('queue.client_id', repeat('c', 256), false));
SELECT length(set_config('queue.client_id', repeat('c', 257), false));
SELECT length(current_setting('queue.client_id'));
-- They accept any text.
SELECT set_config('queue.project', 'it''s "quoted" \ ; %', false);
SELECT queue_create('q');
SELECT queue_exists('q');
RESET queue.project;
SELECT queue_exists('q');
RESET queue.client_id;

-- Bounds of a claim's ttl and grace.
SELECT queue_push_batch('q', '{1,2,3,4,5,6,7,8,9,10,11,12,13,14,15}')
       IS NOT NULL AS pushed;
BEGIN;
SELECT count(*) FROM queue_claim('q', 60, 60, 1);
SELECT count(*) FROM queue_claim('q', 43200, 43200, 1);
ROLLBACK;
SELECT count(*) FROM queue_claim('q', 59, 60, 1);
SELECT count(*) FROM queue_claim('q', 43201, 60, 1);
SELECT count(*) FROM queue_claim('q', 60, 59, 1);
SELECT count(*) FROM queue_claim('q', 60, 43201, 1);
SET queue.min_claim_ttl = 1;
SET queue.min_claim_grace = 0;
BEGIN;
SELECT count(*) FROM queue_claim('q', 1, 0, 1);
ROLLBACK;
SELECT count(*) FROM queue_claim('q', 0, 0, 1);
SELECT count(*) FROM queue_claim('q', 1, -1, 1);
SET queue.max_claim_ttl = 100;
SET queue.max_claim_grace = 200;
BEGIN;
SELECT count(*) FROM queue_claim('q', 100, 200, 1);
ROLLBACK;
SELECT count(*) FROM queue_claim('q', 101, 200, 1);
SELECT count(*) FROM queue_claim('q', 100, 201, 1);
SET queue.max_claim_ttl = 86400;
SET queue.max_claim_grace = 86400;
BEGIN;
SELECT count(*) FROM queue_claim('q', 86400, 86400, 1);
ROLLBACK;
RESET ALL;

-- Equal ones are bounds, too.
SET queue.min_claim_ttl = 43200;
BEGIN;
SELECT count(*) FROM queue_claim('q', 43200, 60, 1);
ROLLBACK;
-- Where a lower bound is above its upper bound, the call says so.
\set VERBOSITY default
SET queue.min_claim_ttl = 50000;
SET queue.min_message_ttl = 1209601;
SELECT count(*) FROM queue_claim('q', 300, 60, 1);
SELECT queue_push('q', '1', 300);
\set VERBOSITY sqlstate
RESET ALL;

-- The limit of a claim: the default, and the bound.
BEGIN;
SELECT count(*) FROM queue_claim('q', 60, 60);
ROLLBACK;
BEGIN;
SELECT count(*) FROM queue_claim('q', 60, 60, NULL);
ROLLBACK;
SET queue.default_claim_limit = 3;
BEGIN;
SELECT count(*) FROM queue_claim('q', 60, 60);
SELECT count(*) FROM queue_claim_any(NULL, 60, 60);
SELECT count(*) FROM claim_next('q', NULL, 60, 60);
ROLLBACK;
RESET queue.default_claim_limit;
SELECT count(*) FROM queue_claim('q', 60, 60, 101);
BEGIN;
SELECT count(*) FROM queue_claim('q', 60, 60, 100);
ROLLBACK;
SET queue.max_claim_limit = 5;
SELECT count(*) FROM queue_claim('q', 60, 60, 6);
SELECT count(*) FROM queue_pop('q', 6);
BEGIN;
SELECT count(*) FROM queue_claim('q', 60, 60, 5);
-- the bound limits the default
SELECT count(*) FROM queue_claim('q', 60, 60);
SELECT count(*) FROM queue_pop('q', 5);
ROLLBACK;
SET queue.max_claim_limit = 10000;
BEGIN;
SELECT count(*) FROM queue_claim('q', 60, 60, 10000);
ROLLBACK;
SELECT count(*) FROM queue_claim('q', 60, 60, 10001);
RESET queue.max_claim_limit;

-- A message's ttl and delay.
SELECT queue_push('ttl', '1', 60) > 0 AS pushed;
SELECT queue_push('ttl', '2', 1209600) > 0 AS pushed;
SELECT queue_push('ttl', '3', 59);
SELECT queue_push('ttl', '4', 1209601);
SELECT queue_push('ttl', '5') > 0 AS pushed;
SET queue.default_message_ttl = 100;
SELECT queue_push('ttl', '6') > 0 AS pushed;
SET queue.min_message_ttl = 50;
SELECT queue_push('ttl', '7', 50) > 0 AS pushed;
SELECT queue_push('ttl', '8', 49);
SET queue.max_message_ttl = 200;
SELECT queue_push('ttl', '9', 200) > 0 AS pushed;
SELECT queue_push('ttl', '10', 201);
RESET ALL;
SELECT queue_push('ttl', '11', delay => 1209600) > 0 AS pushed;
SELECT queue_push('ttl', '12', delay => 1209601);
SET queue.max_message_delay = 5;
SELECT queue_push('ttl', '13', delay => 5) > 0 AS pushed;
SELECT queue_push('ttl', '14', delay => 6);
SET queue.max_message_delay = 0;
SELECT queue_push('ttl', '15', delay => 0) > 0 AS pushed;
SELECT queue_push('ttl', '16', delay => 1);
RESET queue.max_message_delay;
SELECT body, ttl FROM queue_messages('ttl', "limit" => 100,
                                     include_delayed => true);

-- The size of a body, the number of a batch.
SET queue.max_message_size = 100;
SELECT queue_push('size', to_jsonb(repeat('x', 88))) > 0 AS pushed;
SELECT queue_push('size', to_jsonb(repeat('x', 89)));
SET queue.max_message_size = 1000000;
SELECT queue_push('size', to_jsonb(repeat('x', 1000000 - 12))) > 0 AS pushed;
SELECT queue_push('size', to_jsonb(repeat('x', 1000000 - 11)));
RESET queue.max_message_size;
SET queue.max_push_count = 3;
SELECT cardinality(queue_push_batch('size', '{1,2,3}'));
SELECT queue_push_batch('size', '{1,2,3,4}');
SELECT cardinality(queue_post('size',
    '[{"body": 1}, {"body": 2}, {"body": 3}]'));
SELECT queue_post('size',
    '[{"body": 1}, {"body": 2}, {"body": 3}, {"body": 4}]');
RESET queue.max_push_count;
SELECT total FROM queue_stats('size');

-- Whether a push creates its queue.
SET queue.auto_create = off;
SELECT queue_push('unborn', '1');
SELECT queue_push_batch('unborn', '{1}');
SELECT queue_post('unborn', '[{"body": 1}]');
SELECT queue_exists('unborn');
SELECT queue_create('unborn');
SELECT queue_push('unborn', '1') > 0 AS pushed;
SET queue.auto_create = on;
SELECT queue_push('born/1', '1') > 0 AS pushed;
SELECT cardinality(queue_push_batch('born/2', '{1}'));
SELECT cardinality(queue_post('born/3', '[{"body": 1}]'));
SELECT name, metadata, paused FROM queue_list(pattern => '^born');

-- Only superusers and roles with the SET privilege can set bounds; any role can
-- set the project and the client id.
CREATE ROLE regress_queue_user;
SET ROLE regress_queue_user;
SET queue.min_claim_ttl = 1;
SET queue.max_claim_ttl = 100000;
SET queue.min_claim_grace = 1;
SET queue.max_claim_grace = 100000;
SET queue.default_claim_limit = 1;
SET queue.max_claim_limit = 10000;
SET queue.min_message_ttl = 1;
SET queue.max_message_ttl = 3000000;
SET queue.default_message_ttl = 100;
SET queue.max_message_delay = 3000000;
SET queue.max_message_size = 1000000;
SET queue.max_push_count = 100000;
SET queue.auto_create = off;
SET queue.project = 'mine';
SET queue.client_id = 'me';
RESET queue.project;
RESET queue.client_id;
RESET ROLE;
-- unless it was granted to
DO $$
BEGIN
    EXECUTE 'GRANT SET ON PARAMETER queue.min_claim_ttl TO regress_queue_user';
    SET ROLE regress_queue_user;
    SET queue.min_claim_ttl = 7;
    IF (SELECT setting <> '7' FROM pg_settings
        WHERE name = 'queue.min_claim_ttl') THEN
        RAISE EXCEPTION 'not set';
    END IF;
    RESET queue.min_claim_ttl;
    RESET ROLE;
    EXECUTE 'REVOKE SET ON PARAMETER queue.min_claim_ttl FROM regress_queue_user';
END
$$;
-- nor by setting it before the library is loaded
\c -
\set VERBOSITY sqlstate
SET client_min_messages = error;
SET ROLE regress_queue_user;
DO $$
BEGIN
    SET queue.max_claim_ttl = 100000;
EXCEPTION WHEN insufficient_privilege THEN
    NULL;
END
$$;
RESET ROLE;
SELECT queue_exists('q');
SELECT setting FROM pg_settings WHERE name = 'queue.max_claim_ttl';
RESET client_min_messages;
DROP ROLE regress_queue_user;

-- Per database, in a session where nothing was called yet.
SELECT current_database() AS db \gset
ALTER DATABASE :"db" SET queue.max_claim_ttl = 77;
ALTER DATABASE :"db" SET queue.project = 'of this database';
\c -
\set VERBOSITY sqlstate
SELECT count(*) FROM queue_claim('q', 78, 60);
SELECT queue_exists('q');
SELECT queue_create('q');
SELECT setting FROM pg_settings WHERE name = 'queue.max_claim_ttl';
ALTER DATABASE :"db" RESET queue.max_claim_ttl;
ALTER DATABASE :"db" RESET queue.project;
\c -
SELECT count(*) FROM queue_claim('q', 78, 60);
SELECT setting FROM pg_settings WHERE name = 'queue.max_claim_ttl';

-- Bounds of a database are set one by one, and those of a session may come before
-- the library.
ALTER DATABASE :"db" SET queue.max_message_ttl = 30;
ALTER DATABASE :"db" SET queue.min_message_ttl = 20;
ALTER DATABASE :"db" SET queue.min_claim_grace = 50000;
\c -
SET queue.max_claim_ttl = 60000;
SET queue.min_claim_ttl = 50000;
SELECT queue_exists('q');
SELECT setting FROM pg_settings WHERE name ~ '^queue.m.._(claim|message)_ttl' ORDER BY name;
SELECT count(*) FROM queue_claim('q', 55000, 50000, 1);
SELECT queue_push('q', '1', 25) > 0 AS pushed;
ALTER DATABASE :"db" RESET queue.max_message_ttl;
ALTER DATABASE :"db" RESET queue.min_message_ttl;
ALTER DATABASE :"db" RESET queue.min_claim_grace;

DROP EXTENSION queue;
