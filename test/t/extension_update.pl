# The update from version 1.2: until ALTER EXTENSION UPDATE, functions and dumps raise
# 55000, on a standby, too, and no worker runs; the update keeps every row, grant and
# claim, and what waits goes on by itself; and it leads to the catalog that CREATE
# EXTENSION makes.  So do those of queue_pgmq and queue_proxy.
#
# Needs version 1.2, which is built here, from the history of the repository.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../perl";

use InstallTest;
use ClusterTest;
use PostgreSQL::Test::Utils;
use QueueTest qw($node value becomes_true);
use Test::More;

my $install = copy_installation();
my $before = source_before();
my %files = installed_files();

build($before);
install_files(built_files($before));

$node = PostgreSQL::Test::Cluster->new('main', install_path => $install);
$node->init(allows_streaming => 1);
$node->append_conf(
	'postgresql.conf', q{
shared_preload_libraries = 'queue'
autovacuum = off
max_worker_processes = 16
queue.min_claim_ttl = 1
queue.min_claim_grace = 0
});
$node->start;

my @databases = qw(postgres plain);
value('CREATE DATABASE plain');
value('CREATE EXTENSION queue; CREATE EXTENSION queue_pgmq', $_) foreach @databases;
is(value(q{SELECT extversion FROM pg_extension WHERE extname = 'queue'}),
	'1.2', 'a database with version 1.2');

# A router, where PL/Proxy is installed
my @router = -e "$sharedir/extension/plproxy.control" ? qw(router) : ();
foreach (@router)
{
	value("CREATE DATABASE $_");
	value('CREATE EXTENSION queue_proxy CASCADE', $_);
}

# --- Data of all kinds ---

value(q{
CREATE ROLE app LOGIN IN ROLE queue_producer, queue_consumer;
CREATE ROLE other IN ROLE queue_producer, queue_consumer;
CREATE ROLE pusher;
CREATE ROLE auditor;
GRANT CREATE ON SCHEMA public TO app;
CREATE TABLE done (body jsonb);
CREATE TABLE claims (q text, id bigint, claim_id text);
GRANT ALL ON done, claims TO app;
GRANT EXECUTE ON FUNCTION queue_channel(text), queue_stats(text) TO auditor;
GRANT EXECUTE ON FUNCTION queue_push TO pusher WITH GRANT OPTION;
GRANT SELECT ON queue_data.availability_map TO pusher;
REVOKE SELECT ON queue_data.availability_map FROM queue_monitor;
GRANT EXECUTE ON FUNCTION queue_data.maps() TO pusher;
REVOKE EXECUTE ON FUNCTION queue_push_batch, queue_drop FROM queue_consumer;

SET ROLE app;
SELECT queue_create('mail', '{"_keep_finished": 86400, "_max_claim_count": 2, "note": "mine"}');
SELECT queue_grant('mail', 'other', 'push');
SELECT queue_push_batch('mail', array_agg(to_jsonb(i))) FROM generate_series(1, 100) AS i;
SET queue.client_id = 'me';
SELECT queue_push('mail', '"first"', priority => 9, headers => '{"a": "b"}', ttl => 100000);
RESET queue.client_id;
SELECT queue_push('mail', to_jsonb(repeat('long ', 50000)));
SELECT queue_push('mail', '"keyed"', dedup_key => 'k');
SELECT queue_push('mail', '"later"', delay => 100000);
SELECT queue_push_once('mail', 'here', 17, '"once"');
SELECT job_root('mail', 'root');
INSERT INTO claims SELECT 'mail', id, claim_id FROM queue_claim('mail', 30000, 60, 5);
SELECT message_complete('mail', id, claim_id, '17') FROM queue_claim('mail', 60, 60, 1);
SELECT message_retry('mail', id, claim_id, 'it failed', 100000) FROM queue_claim('mail', 60, 60, 1);
SELECT message_bury('mail', id, claim_id, 'it is bad') FROM queue_claim('mail', 60, 60, 1);
INSERT INTO claims SELECT 'canceled', id, claim_id FROM queue_claim('mail', 30000, 60, 1);
SELECT message_cancel('mail', id) FROM claims WHERE q = 'canceled';

SELECT queue_create('turns', '{"_group_concurrency": 1}');
SELECT queue_push('turns', to_jsonb(g || i), group_key => g) FROM unnest('{a,b}'::text[]) AS g, generate_series(1, 3) AS i;
INSERT INTO claims SELECT 'turns', id, claim_id FROM queue_claim('turns', 30000, 60, 1);
SELECT queue_create('rates', '{"_group_rate": 0.00001}');
SELECT queue_push('rates', to_jsonb(i), group_key => 'g') FROM generate_series(1, 2) AS i;
SELECT claim_complete('rates', claim_id) FROM queue_claim('rates', 60, 60, 1);

SELECT batch_create('open', keep_open => true);
SELECT queue_push('members', '1', batch => 1), queue_push('waits', '"after"', after => 1), batch_close(1);
BEGIN;
SELECT batch_create('finished');
SELECT queue_push('members', '2', batch => 2);
COMMIT;
SELECT message_delete('members', id) FROM queue_messages('members') WHERE body = '2';

SET queue.project = 'wiki';
SELECT queue_push('mail', '"of another project"');
RESET queue.project;
SELECT queue_create('halted'), queue_pause('halted'), queue_push('halted', '1');

CREATE FUNCTION work(body jsonb) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
	INSERT INTO done VALUES (body);
	RETURN true;
END $$;
SELECT queue_create('jobs', '{"_keep_finished": 86400}'), job_handler('jobs', 'work(jsonb)', concurrency => 3);
SELECT queue_push('jobs', '"before"');
CREATE FUNCTION gone(body jsonb) RETURNS boolean LANGUAGE sql AS 'SELECT true';
SELECT queue_create('stops'), job_handler('stops', 'gone(jsonb)');
DROP FUNCTION gone(jsonb);
SELECT queue_push('stops', '1');

RESET ROLE;
CREATE FUNCTION "Lent"(body jsonb) RETURNS boolean LANGUAGE sql AS 'SELECT true';
ALTER FUNCTION "Lent" OWNER TO other;
SET ROLE app;
SELECT queue_create('borrows'), job_handler('borrows', '"Lent"(jsonb)');
RESET ROLE;
INSERT INTO queue_data.schedule
VALUES (7, 'app', '-infinity', 'wiki', 'nightly', 'mail', '30 3 * * *', '"it''s"');
SELECT topic_bind('t.#', 'bound', '{"a": "b"}', '{app}');
SELECT pgmq.create('tasks');
SELECT pgmq.send('tasks', to_jsonb(i)) FROM generate_series(1, 3) AS i;
SELECT pgmq.read('tasks', 30000, 1);
SELECT pgmq.archive('tasks', 2);
SELECT pgmq.bind_topic('orders.*', 'tasks');
});
becomes_true(q{SELECT count(*) = 1 FROM done}, 'a job has run');
becomes_true(q{SELECT stopped IS NOT NULL FROM queue_data.handler WHERE function_name = 'gone'},
	'a handler that cannot run is stopped, and its queue paused');
becomes_true(q{SELECT finished_at IS NOT NULL FROM batch_status(2)}, 'a batch has finished');

# --- The library of this version ---

my $standby = PostgreSQL::Test::Cluster->new('standby', install_path => $install);
$node->backup('copy');
$node->stop;
install_files(%files);
my $logged = -s $node->logfile;
$node->start;
$standby->init_from_backup($node, 'copy', has_streaming => 1);
$standby->start;

# The SQLSTATE and the hint of an error
sub refused
{
	my ($server, $statement) = @_;
	my $error = ($server->psql('postgres', $statement,
			extra_params => [ '-v', 'VERBOSITY=verbose' ]))[2];

	return $error =~ /ERROR:  55000: .*HINT:  .*run ALTER EXTENSION queue UPDATE/s ? 'update' : $error;
}

is(refused($node, "SELECT * FROM $_"), 'update', "not updated: $_") foreach (
	q{queue_push('mail', '1')},
	q{queue_push_batch('mail', '{1}')},
	q{queue_push_once('mail', 'here', 1, '1')},
	q{queue_push_lazy('mail', '1')},
	q{queue_claim('mail')},
	q{claim_release('mail', NULL)},
	q{claim_renew('mail', NULL, 60)},
	q{job_root('mail', 's')},
	q{job_errors('mail')},
	q{queue_dead_letters('mail.dead')},
	q{queue_redrive('mail.dead')},
	q{topic_publish('t.x', '1')},
	q{batch_status(1)},
	q{queue_list()},
	q{queue_data.queue_status},
	q{pgmq.send('tasks', '1')});
is(refused($standby, "SELECT * FROM $_"), 'update', "not updated, a standby: $_") foreach (
	q{queue_stats('mail')},
	q{job_errors('mail')},
	q{queue_messages('mail')});
foreach my $server ($node, $standby)
{
	my ($out, $err);

	ok(!IPC::Run::run([ "$install/bin/pg_dump", '-f', "$tree/dump", $server->connstr('postgres') ],
			'>', \$out, '2>', \$err), 'not updated: a dump fails');
	like($err, qr/HINT:  .*ALTER EXTENSION queue UPDATE/, 'and says what to do');
}
my $runs = q{SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'queue worker'};
becomes_true("SELECT ($runs) = 0", 'no worker runs');
$node->wait_for_log(qr/LOG:  the background worker of database "$_" does not run before/, $logged)
  foreach @databases;
$standby->stop;

# --- The update ---

# Every row of every table that there was, without the columns that the update changes
value(q{
CREATE TABLE parts AS SELECT oid::regclass AS part FROM pg_class
	WHERE relnamespace = 'queue_data'::regnamespace AND relkind = 'r'
	AND relname <> 'prepared_count';
CREATE FUNCTION rows_now() RETURNS TABLE (what text) LANGUAGE plpgsql AS $$
DECLARE
	part regclass;
BEGIN
	FOR part IN SELECT p.part FROM parts AS p LOOP
		RETURN QUERY EXECUTE format(
			'SELECT %L || '' '' || (to_jsonb(t) - %L::text[])::text FROM ONLY %s AS t', part,
			CASE part::text
				WHEN 'queue_data.dedup_key' THEN '{pushed_at,kept_until,version}'
				WHEN 'queue_data.handler' THEN '{stopped,digest,loaded_by}'
				WHEN 'queue_data.finished_ring' THEN '{active,switched_at}'
				ELSE '{}' END, part);
	END LOOP;
END $$;
CREATE VIEW grants AS
SELECT format('%s %s', p.proname, (SELECT string_agg(a::text, ' ' ORDER BY a::text)
	FROM unnest(proacl) AS a)) AS what
FROM pg_proc AS p JOIN pg_depend AS d ON d.objid = p.oid AND d.classid = 'pg_proc'::regclass
	AND d.deptype = 'e' AND d.refobjid = (SELECT oid FROM pg_extension WHERE extname = 'queue')
WHERE proname NOT IN ('group_lane', 'job_schedule', 'job_unschedule', 'job_schedules',
	'queue_start_at_login', 'start_at_login', 'start_worker')
UNION ALL
SELECT format('%s %s', c.oid::regclass, (SELECT string_agg(a::text, ' ' ORDER BY a::text)
	FROM unnest(relacl) AS a)) FROM pg_class AS c
WHERE relnamespace = 'queue_data'::regnamespace AND relname NOT IN ('schedule_id', 'prepared_count');
CREATE TABLE rows_before AS SELECT * FROM rows_now();
CREATE TABLE grants_before AS SELECT * FROM grants;
});
cmp_ok(value('SELECT count(*) FROM rows_before'), '>', 150, 'rows of all kinds');
my (undef, undef, $warnings) = $node->psql('postgres', q{BEGIN;
	ALTER EXTENSION queue UPDATE;
	CREATE TABLE rows_after AS SELECT * FROM rows_now();
	CREATE TABLE grants_after AS SELECT * FROM grants;
	COMMIT});
is($warnings =~ s/^psql:<stdin>:\d+: //gmr, q{WARNING:  handler of queue "borrows" cannot run
DETAIL:  Function public."Lent"(jsonb) belongs neither to role app, which bound the handler, nor to a superuser.
HINT:  Run: ALTER FUNCTION public."Lent"(jsonb) OWNER TO app;
WARNING:  schedule "nightly" of queue "mail" has to be replaced before version 3.0
DETAIL:  Until then it pushes as before. Its times are in the time zone GMT (cron.timezone).
HINT:  As role app, in database postgres, run: SELECT cron.schedule('nightly (wiki)', '30 3 * * *', 'SELECT public.queue_push(''mail'', ''"it''''s"'') FROM pg_catalog.set_config(''queue.project'', ''wiki'', true)'); SELECT cron.unschedule('queue 7');},
	'what has to be done is listed');
is( value(q{SELECT string_agg(what, E'\n') FROM
	((TABLE rows_before EXCEPT ALL TABLE rows_after) UNION ALL
	(TABLE rows_after EXCEPT ALL TABLE rows_before)) AS r
	WHERE NOT (what LIKE 'queue_data.queue %"stops"%') AND NOT (what = 'queue_data.finished_ring {}')}),
	'', 'all rows are as they were');
is(value(q{SELECT string_agg(what, E'\n') FROM (TABLE grants_before EXCEPT ALL TABLE grants_after) AS g}),
	'', 'all grants are as they were');
is(value(q{SELECT count(*) FROM pg_init_privs WHERE initprivs::text LIKE '%pusher%'}),
	'0', 'pg_dump writes those that a user has made');

# --- What waits goes on by itself ---

becomes_true("SELECT ($runs) > 0", 'a worker runs again, without another call');
value(q{SET ROLE app; SELECT queue_push('jobs', '"after"')});
becomes_true(q{SELECT count(*) = 2 FROM done}, 'the handler runs jobs');
is(value(q{SELECT state FROM queue_data.queue_handlers WHERE queue = 'stops'}),
	'stopped', 'the handler that cannot run waits');
value(q{SET ROLE app; CREATE FUNCTION gone(body jsonb) RETURNS boolean LANGUAGE sql AS 'SELECT true'});
becomes_true(q{SELECT total = 0 FROM queue_stats('stops')}, 'and goes on when it can');
value(q{SET ROLE app; SELECT queue_push('borrows', '1'), job_due(7)});
like(value(q{SELECT reason FROM job_list('borrows')}), qr/belongs neither/,
	'so does one whose function is of another role');
value('ALTER FUNCTION public."Lent"(jsonb) OWNER TO app');
becomes_true(q{SELECT total = 0 FROM queue_stats('borrows')}, 'until that is mended');
is(value(q{SELECT count(*) FROM queue_data.message WHERE queue = 'mail' AND project = 'wiki' AND body = '"it''s"'}),
	'1', 'a schedule pushes');
value(q{SELECT message_delete('members', id) FROM queue_messages('members')});
becomes_true(q{SELECT free = 1 FROM queue_stats('waits')}, 'what waited for a batch is free');

is( value(q{SELECT count(*) FROM claims AS c, message_get(c.q, c.id) AS m
	WHERE c.q IN ('mail', 'turns') AND m.claim_id = c.claim_id}),
	'6', 'claims hold under their ids');
is( value(q{SELECT count(*), bool_or(m.group_key = o.group_key)
		FROM queue_claim('turns', 60, 60, 9) AS m,
			claims AS c, message_get('turns', c.id) AS o WHERE c.q = 'turns'}),
	'1|f', 'the bound of groups holds');
is(value(q{SELECT count(*) FROM queue_claim('rates', 60, 60, 9)}), '0', 'and the rate');
is(value(q{SELECT claim_complete('mail', claim_id) FROM claims WHERE q = 'mail' LIMIT 1}),
	'5', 'a claim is completed');
is(value(q{SELECT message_get('mail', id) FROM claims WHERE q = 'canceled'}),
	value(q{SELECT NULL::text}), 'a canceled message stays canceled')
  if value(q{SELECT claim_release('mail', claim_id) FROM claims WHERE q = 'canceled'}) eq '0';
is(value(q{SELECT queue_push('mail', '1', dedup_key => 'k') IS NULL,
		queue_push_once('mail', 'here', 17, '1') IS NOT NULL}), 't|t', 'keys hold');
is(value(q{SELECT string_agg(outcome || coalesce(result::text, ''), ' ' ORDER BY outcome)
		FROM queue_finished('mail', "limit" => 100) WHERE outcome IN ('completed', 'dead') AND (result = '17' OR outcome = 'dead')}),
	'completed17 dead', 'the history');
is(value(q{SELECT last_error FROM queue_dead_letters('mail.dead')}), 'it is bad', 'dead letters');
is(value(q{SELECT last_error FROM queue_browse('mail', 'delayed') WHERE last_error IS NOT NULL}),
	'it failed', 'errors');
is(value(q{SELECT finished_at IS NOT NULL FROM batch_status(2)}), 't', 'batches');
is(value(q{SET ROLE app; SELECT topic_publish('t.x', '1', '{"a": "b"}')}), '1', 'topics');
is(value(q{SELECT count(*) FROM queue_messages('mail', "limit" => 1000)}), '95', 'messages');
value('ALTER EXTENSION queue_pgmq UPDATE');
is( value(q{SELECT pgmq.archive('tasks', 1), count(*) FROM pgmq.a_tasks;
	SELECT msg_id FROM pgmq.read('tasks', 60, 9)}),
	"t|1\n3", 'queue_pgmq');

# --- The router ---

my %updated = (queue => 'plain', queue_pgmq => 'plain');
foreach (@router)
{
	value(q{GRANT EXECUTE ON FUNCTION queue_push TO pusher WITH GRANT OPTION;
		REVOKE EXECUTE ON FUNCTION queue_push, queue_drop FROM queue_consumer;
		CREATE VIEW pushed AS SELECT queue_push('q', '1')}, $_);
	like(($node->psql($_, 'ALTER EXTENSION queue_proxy UPDATE'))[2],
		qr/cannot drop function (?:public\.)?queue_push.*DETAIL:  view (?:public\.)?pushed depends on/s,
		'a view on a function that gets further arguments stops the update, and is named');
	value('DROP VIEW pushed; ALTER EXTENSION queue_proxy UPDATE', $_);
	is( value(q{SELECT has_function_privilege('pusher', f, 'EXECUTE WITH GRANT OPTION'),
			has_function_privilege('queue_consumer', f, 'EXECUTE'),
			has_function_privilege('queue_consumer', 'queue_drop(text, text, text)', 'EXECUTE'),
			has_function_privilege('queue_consumer', 'queue_depth(text, text, text)', 'EXECUTE'),
			has_function_privilege('public', 'queue_depth(text, text, text)', 'EXECUTE')
			FROM CAST('queue_push' AS regproc) AS f}, $_),
		't|f|f|t|f', 'what was granted and revoked stays, and new functions are granted');
	is(value(q{SELECT count(*) FROM pg_init_privs WHERE initprivs::text LIKE '%pusher%'}, $_),
		'0', 'pg_dump writes it');
	value(q{REVOKE EXECUTE ON FUNCTION queue_push FROM pusher;
		GRANT EXECUTE ON FUNCTION queue_push, queue_drop TO queue_consumer}, $_);
	$updated{queue_proxy} = $_;
}

# --- The catalogs ---

value('ALTER EXTENSION queue UPDATE; ALTER EXTENSION queue_pgmq UPDATE', 'plain');
foreach my $extension (sort keys %updated)
{
	my $new = "new_$extension";
	my $database = $updated{$extension};
	my %in;

	value("CREATE DATABASE $new");
	value("CREATE EXTENSION $extension CASCADE", $new);
	foreach ($new, $database)
	{
		$in{$_} = { map { $_ => 1 } split /\n/, catalog_of($node, $_, $extension) };
	}
	cmp_ok(scalar keys %{ $in{$new} }, '>', 100, "$extension: the catalog");
	is(join("\n", map { substr $_, 0, 200 } grep { !$in{$new}{$_} } sort keys %{ $in{$database} }),
		'', "$extension: nothing is left of version 1.2");
	is(join("\n", map { substr $_, 0, 200 } grep { !$in{$database}{$_} } sort keys %{ $in{$new} }),
		'', "$extension: the update makes all that CREATE EXTENSION makes");
}

my $log = substr(slurp_file($node->logfile), $logged);
my %errors;
$errors{$1}++ while $log =~ /\b((?:WARNING|FATAL|PANIC|TRAP): [^\n]*)/g;
is(join("\n", grep { !/ has to be replaced / && !/"borrows" cannot run/ } sort keys %errors),
	'', 'no other warning in the log');
$node->stop;
done_testing();
