# ALTER EXTENSION UPDATE under load, and nothing is lost.
#
# The first update is from version 1.2: with the new library, the server is restarted, and
# calls are refused until the update has run.  Sessions connect again and repeat what has
# failed; claims hold, and the handler goes on.  From there on, each message that is
# finished is in the history of its queue.
#
# The second update is to a next version, whose script does what one may do (see "Upgrade
# scripts" in doc/contributing.md): no session gets an error; those that stay connected go
# on with their prepared statements, their views and their grants; and sessions wait for
# messages meanwhile.
#
# Needs version 1.2, which is built here, from the history of the repository.
#
# test/check -a runs it.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../perl";

use InstallTest;
use IPC::Run;
use ClusterTest;
use PostgreSQL::Test::Utils;
use QueueTest qw($node value becomes_true);
use Test::More;
use Time::HiRes qw(sleep time);

my $install = copy_installation();
my $before = source_before();
my %files = installed_files();
my ($version) = $files{"$sharedir/extension/queue.control"} =~ /^default_version = '(.*)'$/m;

build($before);
install_files(built_files($before));

$node = PostgreSQL::Test::Cluster->new('main', install_path => $install);
$node->init;
$node->append_conf(
	'postgresql.conf', q{
max_worker_processes = 16
log_min_messages = warning
log_statement = none
});
$node->start;
value('CREATE EXTENSION queue; CREATE EXTENSION queue_pgmq');

# --- The load ---

value(q{
CREATE ROLE app LOGIN;
GRANT queue_producer, queue_consumer TO app;
GRANT CREATE ON SCHEMA public TO app;
CREATE SEQUENCE n;
CREATE TABLE pushed (n bigint);
CREATE TABLE done (n bigint);
CREATE TABLE held (g text PRIMARY KEY, id bigint, claim_id text);
CREATE TABLE awaited (id bigint, result jsonb);
GRANT ALL ON pushed, done, held, awaited, n TO app;
});
my $keep = '{"_keep_finished": 86400, "_keep_body": true}';
value(qq{
SET ROLE app;
SELECT queue_create('mine'), queue_create('waits'), queue_create('work', '$keep'),
	queue_create('awaited', '$keep'), queue_create('groups', '{"_group_concurrency": 1}');
CREATE FUNCTION handle(body jsonb) RETURNS boolean LANGUAGE plpgsql AS \$\$
BEGIN
	INSERT INTO done VALUES (body::bigint);
	RETURN true;
END \$\$;
SELECT queue_create('jobs', '$keep'), job_handler('jobs', 'handle(jsonb)', concurrency => 2)});
my $worker = q{(SELECT pid FROM pg_stat_activity
	WHERE backend_type = 'queue worker' AND datname = 'postgres')};

# Producers push twice in a transaction, claimers delete what they record in a
# table, both with prepared statements.  In a queue with groups of which one
# message at a time may be claimed, claimers record each, so that a second claim
# of a group is an error.  Sessions wait for messages that others complete or cancel.
my $push = 'INSERT INTO pushed SELECT n FROM (SELECT nextval(\'n\') AS n) AS s'
  . " WHERE queue_push('%s', to_jsonb(n), dedup_key => n::text) > 0;\n";
my %script = (
	push => "BEGIN;\n" . sprintf($push, 'work') . sprintf($push, 'jobs') . "COMMIT;\n",
	claim => 'WITH m AS MATERIALIZED (SELECT * FROM queue_claim(\'work\', 60, 60, 5))'
	  . ' INSERT INTO done SELECT body::bigint FROM m'
	  . " WHERE message_delete('work', id, claim_id);\n",
	group => "SELECT queue_push('groups', '1', group_key => 'g' || n % 3) FROM nextval('n') AS n;\n"
	  . 'WITH m AS MATERIALIZED (SELECT * FROM queue_claim(\'groups\', 600, 60, 2))'
	  . " INSERT INTO held SELECT group_key, id, claim_id FROM m;\n"
	  . 'WITH h AS (DELETE FROM held WHERE g = (SELECT g FROM held LIMIT 1 FOR UPDATE SKIP LOCKED) RETURNING *)'
	  . " SELECT message_delete('groups', id, claim_id) FROM h;\n",
	await => "SELECT queue_push('awaited', '1') AS id \\gset\n"
	  . "CALL queue_await('awaited', :id) \\gset\n"
	  . "INSERT INTO awaited VALUES (:id, :result);\n",
	finish => 'WITH m AS MATERIALIZED (SELECT * FROM queue_claim(\'awaited\', 60, 60, 1))'
	  . " SELECT CASE WHEN hashint8(id) % 2 = 0 THEN message_complete('awaited', id, claim_id, to_jsonb(id))::text"
	  . " ELSE message_cancel('awaited', id) || claim_release('awaited', claim_id) END FROM m;\n");
my %load;

# Where sessions may be ended or refused, a shell begins again.
sub start_load
{
	my ($name, $may_fail) = @_;
	my %run = (output => '');
	my @pgbench = (
		"$install/bin/pgbench", '-n', '-M', 'prepared',
		'-c', '2', '-j', '2', '-T', '600', '-R', '400', '-U', 'app',
		'-h', $node->host, '-p', $node->port, '-f', "$tree/$name.sql",
		'postgres');

	local $ENV{PGAPPNAME} = 'pgbench';

	write_file("$tree/$name.sql", $script{$name});
	@pgbench = (
		'sh', '-c', 'exec >"$1" 2>&1; shift; while [ ! -e "$0" ]; do "$@" || sleep 0.1; done',
		"$tree/stop", "$tree/$name.log", @pgbench)
	  if $may_fail;
	$run{process} = IPC::Run::start(\@pgbench, '<', \undef, '>&', \$run{output});
	$load{$name} = \%run;
	return;
}

sub ends
{
	becomes_true(q{SELECT count(*) = 0 FROM pg_stat_activity
		WHERE application_name = 'pgbench'}, 'the load has ended');
	return;
}

# --- The update from version 1.2 ---

start_load($_, 1) foreach qw(push claim group);
becomes_true('SELECT count(*) > 200 FROM done', 'the load runs');

my $began = time;
$node->stop('fast');
install_files(%files);
my $logged = -s $node->logfile;
$node->start;
my $started = time;

my $updated;

# As doc/operations.md says: give up before anyone's deadlock_timeout, and try again.
sub update_to
{
	my ($to) = @_;
	my $done = value('SELECT count(*) FROM done');
	my $tries = 0;
	my ($ret, $stdout, $stderr);

	do
	{
		($ret, $stdout, $stderr) = $node->psql('postgres',
			"SET lock_timeout = '200ms'; ALTER EXTENSION queue UPDATE TO '$to'");
		sleep 0.1 if $ret;
	} while ($ret && $stderr =~ /lock timeout/ && ++$tries < 100);
	$updated = time;
	is($stderr, '', "$to: the extension is updated under load");
	note "$tries tries failed by lock_timeout";
	becomes_true("SELECT count(*) > $done + 1000 FROM done", "$to: the load goes on");
	is( value(q{SELECT extversion FROM pg_extension WHERE extname = 'queue'}),
		$to, 'the new version');
	return;
}

update_to($version);
note sprintf('the server was away for %.1f s, and calls were refused for %.1f s more',
	$started - $began, $updated - $started);
value('ALTER EXTENSION queue_pgmq UPDATE');
becomes_true("SELECT $worker IS NOT NULL", 'a worker runs');
append_to_file("$tree/stop", '');
value(q{SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'pgbench'});
$_->{process}->finish foreach values %load;
ends();

# The errors of the sessions: only those that come from the update.
foreach my $name (sort keys %load)
{
	my %told;

	my $log = slurp_file("$tree/$name.log");
	$told{$1}++ while $log =~ /((?:ERROR|FATAL|PANIC):  [^\n]*)/g;
	is(join("\n", grep {
				!/terminating connection|the database system is|dedup_key_time_idx" does not exist$/ }
			sort keys %told),
		'', "$name: sessions were ended or refused, and had no other error");
}
%load = ();

# --- The scripts ---

sub write_script
{
	my ($from, $to, $script) = @_;
	write_file("$sharedir/extension/queue--$from--$to.sql", $script);
	return;
}

write_script(
	$version, "$version.next", qq{
SELECT queue_data.library_version('$version');

CREATE FUNCTION queue_next(q text) RETURNS boolean
AS 'MODULE_PATHNAME', 'sql_queue_exists' LANGUAGE C;
REVOKE ALL ON FUNCTION queue_next(text) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION queue_next(text) TO queue_consumer;

CREATE TABLE queue_data.next_table (queue_id integer);
SELECT pg_catalog.pg_extension_config_dump('queue_data.next_table', '');

ALTER TABLE queue_data.ring ADD COLUMN next_column integer;

-- The library knows the OID of this index.
DROP INDEX queue_data.dedup_key_idx;
CREATE UNIQUE INDEX dedup_key_idx ON queue_data.dedup_key (queue_id, digest, version);

DO \$\$
BEGIN
	EXECUTE pg_catalog.format(
		'CREATE OR REPLACE VIEW queue_data.queue_roles AS
			SELECT v.*, 1 AS next_column FROM (%s) AS v',
		pg_catalog.rtrim(
			pg_catalog.pg_get_viewdef('queue_data.queue_roles'), ';'));
END
\$\$;
});

# What a script must not do
write_script(
	$version, "$version.wrong", q{
ALTER TYPE queue_message ADD ATTRIBUTE next_column integer;
ALTER EXTENSION queue DROP FUNCTION queue_channel(text);
DROP FUNCTION queue_channel(text) CASCADE;
CREATE FUNCTION queue_channel(q text) RETURNS text
AS 'MODULE_PATHNAME', 'sql_queue_channel' LANGUAGE C;
});

value(q{
CREATE ROLE auditor;
GRANT EXECUTE ON FUNCTION queue_channel(text), queue_stats(text) TO auditor;
CREATE VIEW depth AS
	SELECT s.*, queue_channel('work') FROM queue_stats('work') AS s;
CREATE VIEW owners AS SELECT * FROM queue_data.queue_roles;
GRANT SELECT ON depth, owners TO app;

CREATE ROLE pusher;
GRANT EXECUTE ON FUNCTION queue_push TO pusher WITH GRANT OPTION;
REVOKE EXECUTE ON FUNCTION queue_push_batch, queue_drop FROM queue_consumer;
CREATE VIEW kept AS
WITH member AS (
	SELECT classid, objid FROM pg_depend
	WHERE refclassid = 'pg_extension'::regclass AND deptype = 'e'
	AND refobjid = (SELECT oid FROM pg_extension WHERE extname = 'queue'))
SELECT p.oid, format('%s returns %s %s', p.oid::regprocedure,
	pg_get_function_result(p.oid), p.proacl) AS what
FROM pg_proc AS p JOIN member ON objid = p.oid AND classid = 'pg_proc'::regclass
UNION ALL
SELECT c.oid, format('%s %s', c.oid::regclass, c.relacl)
FROM pg_class AS c JOIN member ON objid = c.oid AND classid = 'pg_class'::regclass
UNION ALL
SELECT a.attrelid, format('%s.%s %s %s', a.attrelid::regclass, attname, attnum,
	format_type(atttypid, atttypmod))
FROM pg_attribute AS a JOIN pg_class AS c ON c.oid = attrelid
	JOIN member ON objid IN (c.oid, c.reltype)
	AND classid IN ('pg_class'::regclass, 'pg_type'::regclass)
WHERE attnum > 0
UNION ALL
SELECT oid, format('queue_message has %s attributes', relnatts)
FROM pg_class WHERE relname = 'queue_message'
UNION ALL
SELECT oid, oid::regclass::text FROM pg_class WHERE relname IN ('depth', 'owners');
CREATE TABLE before AS SELECT * FROM kept;
});
my $lost = q{SELECT coalesce(string_agg(what, E'\n' ORDER BY what), '') FROM
	(SELECT * FROM before EXCEPT SELECT * FROM kept) AS l};
cmp_ok(value('SELECT count(*) FROM before'), '>', 300, 'what is to be kept');

# --- Sessions that stay connected ---

my $connected = $node->background_psql('postgres',
	extra_params => [ '-U', 'app' ]);
$connected->query_safe('SET client_min_messages = warning');
my @prepared = (
	q{SELECT * FROM queue_push('mine', '"x"', dedup_key => 'x')},
	q{SELECT * FROM queue_messages('mine')},
	q{SELECT * FROM queue_claim('mine', 60, 60)},
	q{SELECT queue_pop('mine')},
	q{SELECT * FROM queue_stats('mine')},
	q{SELECT count(*) > 0 FROM depth},
	q{SELECT count(*) > 0 FROM owners},
	q{SELECT sum(claim_release('mine', claim_id)) FROM queue_messages('mine', include_claimed => true)}
);
$connected->query_safe("PREPARE p$_ AS $prepared[$_]") foreach 0 .. $#prepared;

sub execute_all
{
	my ($what) = @_;
	my $row = qr/\d+\|mine\|"x"\|/;
	my @expected = (
		qr/^\d+$/, qr/^$row/, qr/^$row/, qr/^$/, qr/^0\|1\|/, qr/^t$/, qr/^t$/,
		qr/^1$/);

	foreach (0 .. $#prepared)
	{
		like($connected->query_safe("EXECUTE p$_"),
			$expected[$_], "$what: $prepared[$_]");
	}
	$connected->query_safe(q{SELECT queue_purge('mine')});
	return;
}

execute_all('before');

# The session sleeps in queue_wait during the update.
my $waiting = $node->background_psql('postgres',
	extra_params => [ '-U', 'app' ]);
$waiting->query_until(qr/waiting/,
	"SET client_min_messages = warning;\n\\echo waiting\nCALL queue_wait('waits', 600000);\n");

my $worker_pid = value("SELECT $worker");

# --- The update to the next version ---

start_load($_) foreach qw(push claim group);
becomes_true('SELECT count(*) > 200 FROM done', 'the load runs');

# An update that keeps the wrong things shows.
{
	my $wrong = $node->background_psql('postgres', on_error_stop => 0);
	$wrong->query_safe(q{PREPARE p AS SELECT * FROM queue_messages('mine')});
	$wrong->query_safe('EXECUTE p');
	$wrong->query_safe("BEGIN; ALTER EXTENSION queue UPDATE TO '$version.wrong'");
	like($wrong->query($lost), qr/^depth\nqueue_channel\(text\) .*queue_message has/s,
		'a wrong update: what is lost is seen');
	$wrong->{stderr} = '';
	$wrong->query('DISCARD PLANS; EXECUTE p');
	like($wrong->{stderr}, qr/cached plan must not change result type/,
		'a wrong update: a prepared statement fails');
	$wrong->query('ROLLBACK');
	$wrong->quit;
}
is(value($lost), '', 'rolled back: nothing is lost');

value(q{SELECT pgmq.create('work'), pgmq.create('bound'),
		topic_bind('t.#', 'bound', NULL, '{app}'), topic_bind('t.*', 'also')});
my $topics = q{SET ROLE app; SELECT topic_publish('t.x', '1');
	SELECT pgmq.delete('bound', msg_id) FROM pgmq.read('bound', 60, 9)};
is(value($topics), "2\nt", 'topics and queue_pgmq work under load');
my $last = value('SELECT last_value FROM n');
start_load($_) foreach qw(await finish);
becomes_true('SELECT count(*) > 20 FROM awaited', 'sessions wait for messages');
update_to("$version.next");
is(value($lost), '', 'all is kept: functions, types, columns, grants, views');
is(value(q{SET ROLE app; SELECT queue_next('mine')}), 't', 'what is new works');
is( value(q{SELECT has_function_privilege('auditor', 'queue_channel(text)', 'EXECUTE')}),
	't', 'a grant of a user');
is(value(q{SELECT count(*) FROM pg_init_privs WHERE initprivs::text LIKE '%pusher%'}),
	'0', 'pg_dump writes it');
execute_all('updated');
is(value($topics), "2\nt", 'topics and queue_pgmq work after the next update');
my $awaited = value('SELECT count(*) FROM awaited');
becomes_true("SELECT count(*) > $awaited + 20 FROM awaited", 'and so do sessions that wait');

value(q{SET ROLE app; SELECT queue_push('waits', '1')});
$waiting->query_until(qr/woken/, "\\echo woken\n");
is($waiting->query_safe(q{SELECT free FROM queue_stats('waits')}),
	'1', 'a session that waited during the update is woken, and goes on');

# --- Nothing is lost ---

cmp_ok(value(q{SELECT sum(completed) FROM job_stats('groups')}),
	'>', 100, 'groups were claimed, one message at a time');

# pgbench says at once which client has ended.
foreach my $name (sort keys %load)
{
	my $process = $load{$name}{process};

	ok($process->pumpable, "$name: the load has run until now");
	$process->kill_kill;
	unlike($load{$name}{output}, qr/error|abort/i,
		"$name: no session has had an error")
	  or diag($load{$name}{output});
}
ends();
value(q{SET ROLE app;
	WITH m AS MATERIALIZED (SELECT * FROM queue_claim('work', 60, 60, 100))
	INSERT INTO done SELECT body::bigint FROM m
	WHERE message_delete('work', id, claim_id)})
  while value(q{SELECT total > 0 FROM queue_stats('work')}) eq 't';
becomes_true(q{SELECT total = 0 FROM queue_stats('jobs')}, 'all jobs are done');
is( value(q{SELECT count(*) FROM (
		(SELECT n FROM pushed EXCEPT ALL SELECT n FROM done) UNION ALL
		(SELECT n FROM done EXCEPT ALL SELECT n FROM pushed)) AS d}),
	'0', 'each message was handed out and deleted once');
note value('SELECT count(*) FROM pushed'), ' messages';
value(q{
CREATE FUNCTION history(q text) RETURNS SETOF bigint LANGUAGE plpgsql AS $$
DECLARE
	last bigint = 0;
	n bigint;
BEGIN
	LOOP
		FOR last, n IN SELECT id, body FROM queue_finished(q, last, 1000, 'completed') LOOP
			RETURN NEXT n;
		END LOOP;
		EXIT WHEN NOT FOUND;
	END LOOP;
END $$});
is( value(qq{WITH p AS (SELECT n FROM pushed WHERE n > $last),
		h AS (SELECT n FROM unnest('{work,jobs}'::text[]) AS q,
			history(q) AS n WHERE n > $last)
		SELECT count(*) > 0, (SELECT count(*) FROM (
			(TABLE p EXCEPT ALL TABLE h) UNION ALL (TABLE h EXCEPT ALL TABLE p)) AS d)
		FROM p}),
	't|0', 'each message that was pushed after the first update is in the history once');
is( value(q{SELECT bool_or(hashint8(id) % 2 = 0), bool_or(hashint8(id) % 2 <> 0),
		count(*) FILTER (WHERE result IS DISTINCT FROM CASE WHEN hashint8(id) % 2 = 0
			THEN jsonb_build_object('outcome', 'completed', 'result', id, 'error', NULL)
			ELSE '{"outcome": "canceled", "result": null, "error": null}' END)
		FROM awaited}),
	't|t|0', 'each session that waited was told of its message');
is(value("SELECT $worker"), $worker_pid, 'the worker is the same');
is( value(q{SELECT last_error FROM queue_data.queue_workers
	WHERE database = 'postgres'}),
	'', 'and has had no error');
$connected->quit;
$waiting->quit;

my $log = substr(slurp_file($node->logfile), $logged);
my %seen;
$seen{$1}++
  while $log =~ /\b((?:ERROR|WARNING|FATAL|PANIC):  [^\n]*)/g;
delete @seen{ grep { /dedup_key_time_idx" does not exist$/ } keys %seen };    # refused
delete @seen{
	'FATAL:  connection to client lost',    # pgbench was ended
	'FATAL:  terminating connection due to administrator command',
	'FATAL:  the database system is starting up',
	'ERROR:  cached plan must not change result type',
	'ERROR:  canceling statement due to lock timeout'
};
is(join("\n", sort keys %seen), '', 'no error in the log');

$node->stop;
done_testing();
