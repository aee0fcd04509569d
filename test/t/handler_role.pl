# A handler has the rights of the role that bound it and no more, and leaves
# nothing behind in the process that another job could see.
#
# test/check -q runs it, too.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../perl";

use HandlerTest;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(sleep time);

# One runner, so that the roles take turns
start_server('queue.runners = 1');
create_two_roles();

# --- its role ---

is(run_as('alice', q{INSERT INTO seen VALUES (m.queue, current_user, session_user, current_setting('is_superuser'));}),
	'done', 'a handler may do what its role may');
is(value(q{SELECT role, who FROM seen}), 'alice|alice',
	'it is the role, also as session_user');
like(run_as('alice', q{PERFORM FROM public.secret;}),
	qr/permission denied/, 'it may not do what its role may not');
like(run_as('mallory', q{PERFORM FROM alice.secret;}),
	qr/permission denied/, 'nor what another role may');

# Its settings are those of the role, which may cancel it.
value(
	q{CREATE ROLE bob;
	GRANT queue_producer, queue_consumer TO bob;
	CREATE SCHEMA bob AUTHORIZATION bob;
	ALTER ROLE bob SET work_mem = '5MB';
	ALTER ROLE bob IN DATABASE postgres SET app.hello = 'bob'});
is( run_as('bob', q{RAISE '% %', current_setting('work_mem'),
		current_setting('app.hello');}),
	'5MB bob', 'settings of the role');
value(
	q{SET ROLE bob; SET search_path = bob, public;
	CREATE FUNCTION sleep(body jsonb) RETURNS boolean LANGUAGE sql
	AS 'SELECT pg_sleep(100) IS NOT NULL';
	SELECT queue_create('sleep', '{"_max_claim_count": 1}');
	SELECT job_handler('sleep', 'sleep(jsonb)');
	CREATE TABLE sleep_id AS SELECT queue_push('sleep', '1') AS id});
$node->poll_query_until($db,
	q{SELECT EXISTS (SELECT FROM pg_stat_activity
		WHERE backend_type = 'queue runner' AND wait_event = 'PgSleep')});
my $pid = value(
	q{SELECT pid FROM pg_stat_activity
	WHERE backend_type = 'queue runner' AND wait_event = 'PgSleep'});

# pg_stat_activity shows the role to all, and the job to members of the role only.
my $job = 'job ' . value('SELECT id FROM bob.sleep_id') . ' of queue "sleep"';
my $shown = qq{SELECT usename, application_name, query
	FROM pg_stat_activity WHERE pid = $pid};
is(value($shown), "bob|queue runner|$job", 'a superuser sees its role and its job');
is(value("SET ROLE bob; $shown"), "bob|queue runner|$job", 'its role does, too');
is(value("SET ROLE mallory; $shown"),
	'bob|queue runner|<insufficient privilege>', 'another role does not see the job');
is( value("SET ROLE mallory; SELECT count(*) FROM pg_stat_activity AS a
		WHERE pid = $pid AND a::text LIKE '%sleep%'"),
	'0', 'in no column');
like( state_of("SET ROLE mallory; SELECT pg_cancel_backend($pid)"),
	qr/42501/, 'another role may not cancel it');
value("SET ROLE bob; SELECT pg_cancel_backend($pid)");
becomes(q{SELECT last_error FROM queue_dead_letters('sleep.dead')},
	'canceling statement due to user request', 'its own may');

# --- climbing out ---

my $refused =
  qr/cannot set parameter|cannot be executed from a function|permission denied/;

for my $command (
	'SET ROLE postgres', 'SET ROLE alice', 'RESET ROLE', 'SET ROLE NONE',
	'SET SESSION AUTHORIZATION postgres',
	'SET SESSION AUTHORIZATION DEFAULT', 'RESET SESSION AUTHORIZATION',
	'SET LOCAL ROLE NONE', 'DISCARD ALL')
{
	like(run_as('mallory', "EXECUTE '$command'; PERFORM FROM public.secret;"),
		$refused, "refused: $command");
}
like(
	run_as('mallory',
		q{PERFORM set_config('session_authorization', 'postgres', false);}),
	$refused, 'refused: set_config');
like(
	run_as('mallory',
		q{PERFORM set_config('queue.max_claim_limit', '9', false);}),
	$refused, 'refused: a setting of superusers');
isnt(run_as('mallory', q{COMMIT;}), 'done', 'a handler cannot commit');
isnt(run_as('mallory', q{ROLLBACK;}), 'done', 'nor roll back');

# After the handler, before the transaction is over
value(
	q{SET ROLE mallory; SET search_path = mallory, public;
	CREATE TABLE t (a int);
	CREATE FUNCTION climb() RETURNS trigger LANGUAGE plpgsql AS $$
	BEGIN
		INSERT INTO seen VALUES ('trigger', current_user, session_user,
			has_table_privilege('public.secret', 'SELECT'));
		BEGIN
			RESET SESSION AUTHORIZATION;
			INSERT INTO seen VALUES ('trigger', current_user, session_user,
				'escaped');
		EXCEPTION WHEN OTHERS THEN NULL;
		END;
		RETURN NULL;
	END $$;
	CREATE CONSTRAINT TRIGGER late AFTER INSERT ON t
		DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION climb();
	CREATE FUNCTION climb_late() RETURNS int LANGUAGE plpgsql AS $$
	BEGIN
		INSERT INTO seen VALUES ('cursor', current_user, session_user, '');
		RESET SESSION AUTHORIZATION;
		INSERT INTO seen VALUES ('cursor', current_user, session_user,
			'escaped');
		RETURN 1;
	EXCEPTION WHEN OTHERS THEN RETURN 2;
	END $$});
is(run_as('mallory', q{INSERT INTO t VALUES (1);}),
	'done', 'a handler with a deferred trigger');
is(value(q{SELECT role, who, what FROM seen WHERE q = 'trigger'}),
	'mallory|mallory|false', 'it fires as the role, which cannot climb');
run_as('mallory',
	q{EXECUTE 'DECLARE c CURSOR WITH HOLD FOR SELECT climb_late()';});
is(value(q{SELECT count(*) FROM seen WHERE what = 'escaped'}), '0',
	'a cursor WITH HOLD does not either');

# What is deferred once more by what was deferred
value(
	q{TRUNCATE seen; SET ROLE mallory; SET search_path = mallory, public;
	CREATE TABLE again (a int);
	CREATE TABLE once_more (a int);
	CREATE FUNCTION defer_again() RETURNS trigger LANGUAGE plpgsql AS $$
	BEGIN
		SET CONSTRAINTS ALL DEFERRED;
		INSERT INTO mallory.once_more VALUES (1);
		RETURN NULL;
	END $$;
	CREATE FUNCTION leave() RETURNS trigger LANGUAGE plpgsql AS $$
	BEGIN
		CREATE TEMP TABLE left_behind (a int);
		EXECUTE 'DECLARE left_behind CURSOR WITH HOLD FOR SELECT 1';
		INSERT INTO seen VALUES ('again', current_user, '', '');
		RETURN NULL;
	END $$;
	CREATE CONSTRAINT TRIGGER again AFTER INSERT ON again
		DEFERRABLE INITIALLY DEFERRED
		FOR EACH ROW EXECUTE FUNCTION defer_again();
	CREATE CONSTRAINT TRIGGER leave AFTER INSERT ON once_more
		DEFERRABLE INITIALLY DEFERRED
		FOR EACH ROW EXECUTE FUNCTION leave()});
is(run_as('mallory', q{INSERT INTO again VALUES (1);}),
	'done', 'a trigger that defers another one');
is( run_as(
		'mallory', q{INSERT INTO seen SELECT 'next', current_user, '',
			(SELECT count(*) FROM pg_class WHERE relname = 'left_behind')
			+ (SELECT count(*) FROM pg_cursors WHERE name = 'left_behind');}),
	'done', 'and the next job');
is(value(q{SELECT q, what FROM seen ORDER BY q}), "again|\nnext|0",
	'finds nothing of that');

value(
	q{SET ROLE mallory; SET search_path = mallory, public;
	CREATE TABLE v (a int PRIMARY KEY);
	CREATE TABLE u (a int REFERENCES v DEFERRABLE INITIALLY DEFERRED)});
like(run_as('mallory', q{INSERT INTO u VALUES (1);}),
	qr/violates foreign key/, 'a deferred constraint makes a job fail');
is(run_as('mallory', q{INSERT INTO u VALUES (1); INSERT INTO v VALUES (1);}),
	'done', 'unless it is satisfied at the end');

# --- one that changes its own message ---

# Were the message left in its claim, the time of run_as would be over.
for my $call (
	'message_delete(m.queue, m.id, m.claim_id)',
	'message_retry(m.queue, m.id, m.claim_id)',
	'claim_release(m.queue, m.claim_id, failed => true)',
	'claim_complete(m.queue, m.claim_id)',
	'queue_purge(m.queue)', 'queue_drop(m.queue)')
{
	is(run_as('mallory', "PERFORM $call;"),
		'handler has ended the claim of its own message',
		"fails at once: $call");
}
is(run_as('mallory', 'PERFORM claim_renew(m.queue, m.claim_id, 100);'),
	'done', 'renewing does no harm');

# --- what is left behind ---

# The process has a number, and the next job has the same process.
value('TRUNCATE seen');
is( run_as('mallory',
		q{INSERT INTO seen VALUES ('left', current_user, pg_backend_pid()::text, '');
		SET work_mem = '77MB'; SET search_path = mallory;
		PERFORM set_config('mallory.was', 'here', false);
		SET lock_timeout = '7s'; SET default_transaction_read_only = on;
		SET synchronous_commit = off;
		CREATE TEMP TABLE secret AS SELECT 'of mallory'::text AS key;
		CREATE FUNCTION pg_temp.now() RETURNS int LANGUAGE sql AS 'SELECT 1';
		EXECUTE 'PREPARE p AS SELECT 1';
		PERFORM pg_advisory_lock(4711), pg_advisory_lock_shared(4711, 1);
		CREATE SEQUENCE s CACHE 10; PERFORM nextval('s');
		EXECUTE 'DECLARE c CURSOR WITH HOLD FOR SELECT 1';}),
	'done', 'a job leaves all that it can');
my $process = value(q{SELECT who FROM seen WHERE q = 'left'});
like(run_as('mallory', q{EXECUTE 'LISTEN mallory';}),
	qr/LISTEN/, 'refused: LISTEN');
my $look = q{BEGIN
		INSERT INTO seen VALUES ('', current_user, 'sequence', lastval()::text);
	EXCEPTION WHEN object_not_in_prerequisite_state THEN
		INSERT INTO seen VALUES ('', current_user, 'sequence', 'none');
	END;
	INSERT INTO seen SELECT m.queue, current_user, x, v FROM (VALUES
	('process', pg_backend_pid()::text),
	('work_mem', current_setting('work_mem')),
	('search_path', current_setting('search_path')),
	('custom', coalesce(current_setting('mallory.was', true), '')),
	('lock_timeout', current_setting('lock_timeout')),
	('read_only', current_setting('default_transaction_read_only')),
	('synchronous_commit', current_setting('synchronous_commit')),
	('temp', (SELECT count(*)::text FROM pg_class
		WHERE pg_table_is_visible(oid) AND relpersistence = 't')),
	('prepared', (SELECT count(*)::text FROM pg_prepared_statements)),
	('listening', (SELECT count(*)::text FROM pg_listening_channels())),
	('cursors', (SELECT count(*)::text FROM pg_cursors
		WHERE name = 'c')),
	('locks', (SELECT count(*)::text FROM pg_locks
		WHERE pid = pg_backend_pid() AND locktype = 'advisory'))) AS l (x, v);};
is(run_as('mallory', $look), 'done', 'the next job of the role reads them');
my $wanted =
  "cursors 0, custom , listening 0, lock_timeout 0, locks 0, prepared 0, process $process, read_only off, search_path %s, public, sequence none, synchronous_commit on, temp 0, work_mem 4MB";
my $got = q{SELECT string_agg(who || ' ' || what, ', ' ORDER BY who)
	FROM seen WHERE role = '%s' AND q <> 'left'};
is(value(sprintf($got, 'mallory')), sprintf($wanted, 'mallory'),
	'it finds nothing');
is(run_as('alice', $look), 'done', 'the next job of another role reads them');
is(value(sprintf($got, 'alice') . q{ AND who <> 'process'}), sprintf($wanted =~ s{ process \d+,}{}r, 'alice'),
	'nor does that');
value('TRUNCATE seen');
is( run_as(
		'alice', q{INSERT INTO seen SELECT m.queue, current_user, key, '' FROM secret;}
	),
	'done',
	'a table that another role has a temporary one for');
is(value(q{SELECT who FROM seen}), 'of alice', 'is the right one');

# In the temporary schema, by its name: the server does not record that.
is(run_as('mallory', 'CREATE TEMP TABLE first (a int);'),
	'done', 'a job that has a temporary schema made');
is( run_as(
		'mallory', q{EXECUTE (SELECT format('CREATE FUNCTION %I.lower(text)
			RETURNS text LANGUAGE sql AS ''SELECT $1''', nspname)
			FROM pg_namespace WHERE oid = pg_my_temp_schema());}),
	'done',
	'one that makes a function there');
is( run_as(
		'mallory', q{IF EXISTS (SELECT FROM pg_depend
			WHERE refclassid = 'pg_namespace'::regclass
			AND refobjid = pg_my_temp_schema())
			THEN RAISE 'left behind'; END IF;}),
	'done', 'the next one finds nothing of that');

$node->stop;
done_testing();
