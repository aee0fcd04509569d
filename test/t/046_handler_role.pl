# Handlers and rights: a handler has those of the role that bound it and no
# more, nothing of one role reaches another, and what can no longer run, or
# was altered by somebody else, stops its queue and says why.
#
# One mode: the library is preloaded.

use strict;
use warnings;

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(sleep time);

my $node = PostgreSQL::Test::Cluster->new('main');
$node->init;
$node->append_conf(
	'postgresql.conf', q{
shared_preload_libraries = 'queue'
autovacuum = off
max_worker_processes = 16
queue.runners = 1
});
$node->start;
my $db = 'postgres';

sub value
{
	my ($sql) = @_;
	return $node->safe_psql($db, $sql);
}

sub error_of
{
	my ($sql) = @_;
	my ($ret, $stdout, $stderr) = $node->psql($db, $sql,
		extra_params => [ '-v', 'VERBOSITY=verbose' ]);
	return $stderr =~ /(?:ERROR|FATAL):\s+(\w{5}):/ ? $1 : 'none';
}

sub becomes
{
	my ($query, $wanted, $what) = @_;
	my $until = time + 30;
	my $got = '';

	while (time < $until)
	{
		$got = value($query);
		last if $got eq $wanted;
		sleep 0.02;
	}
	is($got, $wanted, $what);
	return;
}

# Two roles that know nothing of each other; runners are one, so that they
# have to take turns.
value(
	q{
	CREATE EXTENSION queue;
	CREATE TABLE secret (key text);
	INSERT INTO secret VALUES ('of the superuser');
	CREATE TABLE seen (q text, role name, who text, what text);
	GRANT INSERT ON seen TO PUBLIC;
	CREATE ROLE alice LOGIN;
	CREATE ROLE mallory LOGIN;
	CREATE ROLE nobody;
	GRANT queue_producer, queue_consumer TO alice, mallory;
	CREATE SCHEMA alice AUTHORIZATION alice;
	CREATE SCHEMA mallory AUTHORIZATION mallory;
	GRANT USAGE ON SCHEMA alice, mallory TO PUBLIC;
	SET ROLE alice;
	CREATE TABLE alice.secret (key text);
	INSERT INTO alice.secret VALUES ('of alice');
});

# Binds a function with this body, runs one job and tells what came of it:
# done, or the error with which it ended.
my $number = 0;

sub run_as
{
	my ($role, $body, %options) = @_;
	my $q = "$role-" . ++$number;
	my $argument = $options{argument} || 'm queue_message';
	my $until = time + 30;

	value(
		"SET ROLE $role; SET search_path = $role, public;
		CREATE FUNCTION f$number($argument) RETURNS boolean
		LANGUAGE plpgsql AS \$f\$ BEGIN $body RETURN true; END \$f\$;
		SELECT queue_create('$q', '{\"_max_claim_count\": 1}');
		SELECT job_handler('$q', 'f$number(queue_message)');
		SELECT queue_push('$q', '1')");
	while (time < $until)
	{
		my ($total, $error) = split /\|/,
		  value("SELECT total, coalesce((SELECT last_error
			FROM queue_dead_letters('$q.dead')), 'done')
			FROM queue_stats('$q')");
		return $error if $total == 0;
		sleep 0.02;
	}
	return 'nothing';
}

# --- who it is ---

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
	SELECT queue_push('sleep', '1')});
$node->poll_query_until($db,
	q{SELECT EXISTS (SELECT FROM pg_stat_activity
		WHERE backend_type = 'queue runner' AND wait_event = 'PgSleep')});
my $pid = value(
	q{SELECT pid FROM pg_stat_activity
	WHERE backend_type = 'queue runner' AND wait_event = 'PgSleep'});
like( error_of("SET ROLE mallory; SELECT pg_cancel_backend($pid)"),
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
	'done', 'unless it holds in the end');

# --- one that sees to its own message ---

# Were the message left in its claim, the time of run_as would be over.
for my $call (
	'message_delete(m.queue, m.id, m.claim_id)',
	'message_retry(m.queue, m.id, m.claim_id)',
	'claim_release(m.queue, m.claim_id)',
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

value('TRUNCATE seen');
run_as('mallory',
	q{SET work_mem = '77MB'; SET search_path = mallory;
	PERFORM set_config('mallory.was', 'here', false);
	SET lock_timeout = '7s'; SET default_transaction_read_only = on;
	SET synchronous_commit = off;
	CREATE TEMP TABLE secret AS SELECT 'of mallory'::text AS key;
	CREATE FUNCTION pg_temp.now() RETURNS int LANGUAGE sql AS 'SELECT 1';
	EXECUTE 'PREPARE p AS SELECT 1'; EXECUTE 'LISTEN mallory';
	PERFORM pg_advisory_lock(4711);
	CREATE SEQUENCE IF NOT EXISTS s; PERFORM nextval('s');
	EXECUTE 'DECLARE c CURSOR WITH HOLD FOR SELECT 1';});
my $look = q{INSERT INTO seen SELECT m.queue, current_user, x, v FROM (VALUES
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
is(run_as('mallory', $look), 'done', 'the next job of the role looks');
my $wanted =
  'cursors 0, custom , listening 0, lock_timeout 0, locks 0, prepared 0, read_only off, search_path %s, public, synchronous_commit on, temp 0, work_mem 4MB';
my $got = q{SELECT string_agg(who || ' ' || what, ', ' ORDER BY who)
	FROM seen WHERE role = '%s'};
is(value(sprintf($got, 'mallory')), sprintf($wanted, 'mallory'),
	'it finds nothing');
is(run_as('alice', $look), 'done', 'the next job of another role looks');
is(value(sprintf($got, 'alice')), sprintf($wanted, 'alice'),
	'nor does that');
value('TRUNCATE seen');
is( run_as(
		'alice', q{INSERT INTO seen SELECT m.queue, current_user, key, '' FROM secret;}
	),
	'done',
	'a table that another role has a temporary one for');
is(value(q{SELECT who FROM seen}), 'of alice', 'is the right one');

# In the temporary schema, by its name: the server does not note that.
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

# --- functions of others ---

value(
	q{SET ROLE mallory; SET search_path = mallory, public;
	CREATE FUNCTION shared(body jsonb) RETURNS boolean LANGUAGE sql
	AS $$INSERT INTO public.seen VALUES ('shared', current_user, '', 'as bound');
	SELECT true$$;
	RESET ROLE; TRUNCATE seen;
	SET ROLE alice;
	SELECT queue_create('shared', '{"_retry_delay": 0}');
	SELECT job_handler('shared', 'mallory.shared(jsonb)');
	SELECT queue_push('shared', '1')});
becomes(q{SELECT role, what FROM seen}, 'alice|as bound',
	'a role may bind what another one has made');
value(
	q{SET ROLE mallory; SET search_path = mallory, public;
	CREATE OR REPLACE FUNCTION shared(body jsonb) RETURNS boolean LANGUAGE sql
	AS $$INSERT INTO public.seen SELECT 'shared', current_user, '', key
	FROM alice.secret; SELECT true$$;
	RESET ROLE; TRUNCATE seen;
	SELECT queue_push('shared', '2')});
my $state = q{SELECT state, reason FROM queue_data.queue_handlers
	WHERE queue = '%s'};
becomes(
	sprintf($state, 'shared'),
	'stopped|function mallory.shared(jsonb) belongs to somebody else than role "alice", and was altered since that bound it',
	'what that one makes of it later is not run');
is(value(q{SELECT count(*) FROM seen}), '0', 'not once');
is(value(q{SELECT free, claimed FROM queue_stats('shared')}), '1|0',
	'the job waits');
is(value(q{SELECT claimed FROM job_stats('shared')}), '1',
	'and was not counted as tried');
is(value(q{SELECT paused FROM queue_get('shared')}), 't',
	'the queue is paused');
value(q{SET ROLE alice; SELECT queue_resume('shared')});
becomes(sprintf('SELECT state FROM (' . $state . ') s', 'shared'),
	'stopped', 'resuming it does not help');
value(
	q{SET ROLE mallory; SET search_path = mallory, public;
	CREATE OR REPLACE FUNCTION shared(body jsonb) RETURNS boolean LANGUAGE sql
	AS $$INSERT INTO public.seen VALUES ('shared', current_user, '', 'as bound');
	SELECT true$$;
	SET ROLE alice; SELECT queue_resume('shared')});
becomes(q{SELECT role, what FROM seen}, 'alice|as bound',
	'unless it is again what was bound');
value(
	q{ALTER FUNCTION mallory.shared(jsonb) SET search_path = mallory;
	SELECT queue_push('shared', '3')});
becomes('SELECT state FROM (' . sprintf($state, 'shared') . ') s',
	'stopped', 'settings of the function count too');

# Another one's function in the place of one's own
value(
	q{GRANT CREATE ON SCHEMA public TO alice, mallory;
	SET ROLE alice; SET search_path = public;
	CREATE FUNCTION own(body jsonb) RETURNS boolean LANGUAGE sql
	AS 'SELECT true';
	SELECT queue_create('own', '{"_retry_delay": 0}');
	SELECT job_handler('own', 'own(jsonb)');
	DROP FUNCTION own(jsonb);
	SELECT queue_push('own', '1')});
becomes(sprintf($state, 'own'),
	'stopped|function public.own(jsonb) does not exist',
	'a function that was dropped stops its queue');
value(
	q{TRUNCATE seen; SET ROLE mallory; SET search_path = public;
	CREATE FUNCTION own(body jsonb) RETURNS boolean LANGUAGE sql
	AS $$INSERT INTO public.seen VALUES ('own', current_user, '', '');
	SELECT true$$;
	SET ROLE alice; SELECT queue_resume('own')});
becomes(
	sprintf($state, 'own'),
	'stopped|function public.own(jsonb) belongs to somebody else than role "alice", and was altered since that bound it',
	'one that somebody else makes in its place is not run');
is(value(q{SELECT count(*) FROM seen}), '0', 'not once');
value(
	q{DROP FUNCTION public.own(jsonb); SET ROLE alice; SET search_path = public;
	CREATE FUNCTION own(body jsonb) RETURNS boolean LANGUAGE sql
	AS 'SELECT body = ''1''';
	SELECT job_handler('own', 'own(jsonb)')});
becomes(q{SELECT total FROM queue_stats('own')}, '0',
	'binding it anew makes it go on');

# One's own, but no handler any more
for my $other (
	[ 'FUNCTION', q{RETURNS text LANGUAGE sql AS 'SELECT ''no''::text'} ],
	[ 'FUNCTION', q{RETURNS SETOF boolean LANGUAGE sql AS 'SELECT true'} ],
	[ 'PROCEDURE', q{LANGUAGE plpgsql AS 'BEGIN COMMIT; END'} ])
{
	my ($kind, $definition) = @$other;

	value(
		"SET ROLE alice; SET search_path = alice, public;
		CREATE FUNCTION turns(body jsonb) RETURNS boolean LANGUAGE sql
		AS 'SELECT true';
		SELECT queue_create('turns'); SELECT job_handler('turns', 'turns(jsonb)');
		DROP FUNCTION turns(jsonb); CREATE $kind turns(body jsonb) $definition;
		SELECT queue_push('turns', '1')");
	becomes(
		sprintf($state, 'turns'),
		'stopped|alice.turns(jsonb) is not a function that returns boolean any more',
		"a handler that became something else: $kind $definition");
	is(value(q{SELECT claimed FROM job_stats('turns')}), '0',
		'its job was not counted as tried');
	value("SELECT queue_drop('turns'); DROP $kind alice.turns(jsonb)");
}

# What its definition is does not depend on who looks.
my $words = q{INSERT INTO public.seen VALUES ('words', current_user, '',
	'2020-02-01'::date || E'a\\\\b' || 0.1::float || interval '1 day'
	|| money '1' || '2020-02-01 UTC'::timestamptz || bytea 'x'); SELECT true};
value(
	qq{TRUNCATE seen; SET ROLE mallory; SET search_path = mallory, public;
	CREATE FUNCTION "Words"(body jsonb) RETURNS boolean LANGUAGE sql
	BEGIN ATOMIC $words; END});
value(
	q{SET ROLE alice;
	SET DateStyle = 'German'; SET quote_all_identifiers = on;
	SET IntervalStyle = iso_8601; SET extra_float_digits = 0;
	SET bytea_output = escape; SET TimeZone = 'Asia/Tokyo';
	SET standard_conforming_strings = off;
	SELECT queue_create('words');
	SELECT job_handler('words', 'mallory."Words"(jsonb)');
	SELECT queue_push('words', '1')});
becomes(q{SELECT role FROM seen}, 'alice',
	'bound in a session with other settings');

# While it is at work, with more of the same claim to follow
value(
	q{SET ROLE mallory; SET search_path = mallory, public;
	CREATE FUNCTION later(body jsonb) RETURNS boolean LANGUAGE plpgsql
	AS $$BEGIN PERFORM pg_sleep((body #>> '{}')::float); RETURN true; END$$;
	SET ROLE alice;
	SELECT queue_create('later', '{"_retry_delay": 0}');
	SELECT job_handler('later', 'mallory.later(jsonb)');
	SELECT queue_pause('later');
	SELECT queue_push_batch('later', array_fill('0'::jsonb, ARRAY[63]));
	SELECT queue_push_batch('later', array_fill('0.6'::jsonb, ARRAY[1]));
	SELECT queue_push_batch('later', array_fill('0'::jsonb, ARRAY[5]));
	RESET ROLE; TRUNCATE seen; SET ROLE alice;
	SELECT queue_resume('later')});
$node->poll_query_until($db,
	q{SELECT EXISTS (SELECT FROM pg_stat_activity
	WHERE backend_type = 'queue runner' AND wait_event = 'PgSleep')});
value(
	q{SET ROLE mallory; SET search_path = mallory, public;
	CREATE OR REPLACE FUNCTION later(body jsonb) RETURNS boolean
	LANGUAGE sql AS $$INSERT INTO public.seen VALUES ('later', current_user, '', '');
	SELECT true$$});
becomes('SELECT state FROM (' . sprintf($state, 'later') . ') s',
	'stopped', 'altered while it is at work: the next job is not run');
is(value(q{SELECT count(*) FROM seen}), '0', 'not once');
is(value(q{SELECT free, claimed FROM queue_stats('later')}), '5|0',
	'the rest of the claim waits');
is(value(q{SELECT max(claim_count) FROM queue_data.message
	WHERE queue = 'later'}), '0', 'and does not count as tried');

# --- rights that are taken away ---

sub bind_alice
{
	my ($q) = @_;
	value(
		"SET ROLE alice; SET search_path = alice, public;
		CREATE FUNCTION \"$q\"(body jsonb) RETURNS boolean LANGUAGE sql
		AS 'SELECT true';
		SELECT queue_create('$q', '{\"_retry_delay\": 0}');
		SELECT job_handler('$q', '\"$q\"(jsonb)')");
	return;
}

bind_alice('execute');
value(
	q{REVOKE EXECUTE ON FUNCTION alice.execute(jsonb) FROM PUBLIC, alice;
	SELECT queue_push('execute', '1')});
becomes(
	sprintf($state, 'execute'),
	'stopped|role "alice" may not execute function alice.execute(jsonb)',
	'the right to execute the function');
value(
	q{CREATE SCHEMA lent; GRANT USAGE ON SCHEMA lent TO alice;
	CREATE FUNCTION lent.f(body jsonb) RETURNS boolean LANGUAGE sql
	AS 'SELECT true';
	SET ROLE alice; SELECT queue_create('usage');
	SELECT job_handler('usage', 'lent.f(jsonb)');
	RESET ROLE; REVOKE USAGE ON SCHEMA lent FROM alice;
	SELECT queue_push('usage', '1')});
becomes(
	sprintf($state, 'usage'),
	'stopped|role "alice" may not use the schema of function lent.f(jsonb)',
	'the right to use its schema');
value(
	q{CREATE ROLE boss; GRANT boss TO alice; GRANT queue_producer TO boss;
	SET ROLE boss; SELECT queue_create('lent');
	SET ROLE alice; SET search_path = alice, public;
	CREATE FUNCTION lent(body jsonb) RETURNS boolean LANGUAGE sql
	AS 'SELECT true';
	SELECT job_handler('lent', 'lent(jsonb)');
	RESET ROLE; REVOKE boss FROM alice;
	SELECT queue_push('lent', '1')});
becomes(
	sprintf($state, 'lent'),
	'stopped|role "alice", which bound it, has no right to that on queue "lent" any more',
	'the right to the queue');
value(
	q{CREATE ROLE short LOGIN; GRANT queue_producer TO short;
	SET ROLE short; SELECT queue_create('short');
	SELECT job_handler('short', 'alice.lent(jsonb)');
	RESET ROLE; ALTER FUNCTION alice.lent(jsonb) OWNER TO postgres;
	SELECT queue_set_owner('short', 'postgres');
	DROP OWNED BY short; DROP ROLE short;
	SELECT queue_push('short', '1')});
becomes(
	q{SELECT state, reason ~ '^role \d+, which bound it, does not exist$'
	FROM queue_data.queue_handlers WHERE queue = 'short'},
	'stopped|t', 'the role itself');

# --- who may bind what ---

value(q{SET ROLE alice; SELECT queue_create('bind');
	CREATE FUNCTION alice.takes_text(text) RETURNS boolean LANGUAGE sql AS 'SELECT true';
	CREATE FUNCTION alice.gives_int(jsonb) RETURNS int LANGUAGE sql AS 'SELECT 1';
	CREATE FUNCTION alice.gives_many(jsonb) RETURNS SETOF boolean LANGUAGE sql AS 'SELECT true';
	CREATE FUNCTION alice.fine(jsonb) RETURNS boolean LANGUAGE sql AS 'SELECT true';
	REVOKE EXECUTE ON FUNCTION alice.fine(jsonb) FROM PUBLIC;
	CREATE TYPE alice.queue_message AS (id int);
	CREATE FUNCTION alice.fake(alice.queue_message) RETURNS boolean LANGUAGE sql AS 'SELECT true';
	CREATE PROCEDURE alice.proc(jsonb) LANGUAGE sql AS 'SELECT true'});
my $closed = value(
	q{CREATE SCHEMA closed;
	CREATE FUNCTION closed.f(jsonb) RETURNS boolean SECURITY DEFINER
	LANGUAGE sql AS 'SELECT true';
	SELECT 'closed.f(jsonb)'::regprocedure::oid});
my %errors = (
	"SET ROLE alice; SELECT job_handler('bind', $closed)" => '42501',
	q{SET ROLE mallory; SELECT job_handler('bind', 'alice.lent(jsonb)')} => '42501',
	q{SET ROLE mallory; SELECT queue_create('hers'); SELECT job_handler('hers', 'alice.fine(jsonb)')} => '42501',
	q{SELECT job_handler('nix', 'alice.fine(jsonb)')} => '42704',
	q{SELECT job_handler('bind', 'alice.nix(jsonb)')} => '42883',
	q{SELECT job_handler('bind', 0)} => '42883',
	q{SELECT job_handler('bind', 'alice.takes_text(text)')} => '22023',
	q{SELECT job_handler('bind', 'alice.gives_int(jsonb)')} => '22023',
	q{SELECT job_handler('bind', 'alice.gives_many(jsonb)')} => '22023',
	q{SELECT job_handler('bind', 'alice.fake(alice.queue_message)')} => '22023',
	q{SELECT job_handler('bind', 'alice.proc(jsonb)')} => '22023',
	q{SELECT job_handler('bind', 'pg_catalog.max(int)')} => '22023',
	q{SELECT job_handler('bind', 'alice.fine(jsonb)', NULL)} => '22004',
	q{SELECT job_handler('bind', 'alice.fine(jsonb)', 0)} => '22023',
	q{SELECT job_handler('bind', 'alice.fine(jsonb)', 257)} => '22023',
	q{SELECT job_handler('bind', 'alice.fine(jsonb)', 1, 0)} => '22023',
	q{SELECT job_handler('bind', 'alice.fine(jsonb)', 1, 1, 0)} => '22023',
	q{SELECT job_handler('bind', 'alice.fine(jsonb)', 1, 1, 'NaN')} => '22023',
	q{SELECT job_handler('bind', 'alice.fine(jsonb)', 1, 1, -1)} => '22023',
	q{SELECT job_handler('bind', 'alice.fine(jsonb)', 1, 1, 1, 'alice.takes_text(text)')} => '22023',
	q{SET ROLE nobody; SELECT job_handler('bind', 'alice.lent(jsonb)')} => '42501',
	q{CREATE FUNCTION pg_temp.f(jsonb) RETURNS boolean LANGUAGE sql AS 'SELECT true'; SELECT job_handler('bind', 'pg_temp.f(jsonb)')} => '22023',
	q{BEGIN READ ONLY; SELECT job_handler('bind', 'alice.fine(jsonb)')} => '25006',
	q{SELECT job_handler(NULL, 'alice.fine(jsonb)')} => '22004',
	q{SET ROLE mallory; SELECT * FROM queue_data.queue_handlers} => '42501',
	q{SET ROLE mallory; SELECT * FROM queue_data.handler} => '42501',
	q{SET ROLE mallory; SELECT * FROM queue_data.runners()} => '42501',
	q{SET ROLE nobody; CALL job_run()} => '42501');
foreach my $sql (sort keys %errors)
{
	is(error_of($sql), $errors{$sql}, "$errors{$sql}: $sql");
}
is(value(q{SELECT count(*) FROM queue_data.queue_handlers WHERE queue = 'bind'}),
	'0', 'none of these bound anything');

# --- in a session ---

# The superuser runs somebody's handler: it can leave nothing for him.
my $s = $node->background_psql($db, on_error_stop => 0);
$s->query('SET client_min_messages = error');

sub in_session
{
	my ($body) = @_;
	my $q = 'session' . ++$number;
	value(
		"SET ROLE mallory; SET search_path = mallory, public;
		CREATE FUNCTION f$number(m queue_message) RETURNS boolean
		LANGUAGE plpgsql AS \$f\$ BEGIN $body RETURN true; END \$f\$;
		SELECT queue_create('$q', '{\"_max_claim_count\": 1}');
		SELECT queue_pause('$q');
		SELECT queue_push('$q', '1')");
	# Nobody else shall run it.
	value("ALTER SYSTEM SET queue.runners = 0; SELECT pg_reload_conf()");
	$node->poll_query_until($db,
		q{SELECT NOT EXISTS (SELECT FROM queue_data.queue_runners)
		OR pg_terminate_backend((SELECT min(pid) FROM queue_data.queue_runners)) IS NULL});
	value("SET ROLE mallory; SET search_path = mallory, public;
		SELECT job_handler('$q', 'f$number(queue_message)'); SELECT queue_resume('$q')");
	$s->query("CALL job_run('{$q}')");
	return value("SELECT coalesce((SELECT last_error
		FROM queue_dead_letters('$q.dead')), 'done')");
}

for my $command (
	'CREATE TEMP TABLE trap (a int)', 'PREPARE trap AS SELECT 1',
	'DECLARE trap CURSOR WITH HOLD FOR SELECT 1', 'LISTEN trap',
	'SET ROLE postgres', 'RESET SESSION AUTHORIZATION')
{
	isnt(in_session("EXECUTE '$command';"), 'done',
		"refused in a session of somebody else: $command");
}

# Its temporary tables are nothing to them.
value('SET ROLE mallory; CREATE TABLE mallory.mine (a int)');
$s->query_safe(
	'CREATE TEMP TABLE mine (a int); GRANT ALL ON mine TO PUBLIC');
is(in_session('INSERT INTO mine VALUES (1);'),
	'done', 'a session that has a temporary table of the same name');
is(value('SELECT count(*) FROM mallory.mine'), '1', 'is not in the way');
is($s->query_safe('SELECT count(*) FROM pg_temp.mine'), '0',
	'nor gets what was meant for the other one');

# Nor are its cursors.
$s->query_safe('DECLARE open CURSOR WITH HOLD FOR SELECT * FROM secret');
in_session('PERFORM 1;');
like( $s->{stderr}, qr/while the session has open cursors/,
	'a session that has a cursor open has to close it');
$s->{stderr} = '';
$s->query_safe('CLOSE ALL');

# One that says that it was cancelled has failed, and that is all.
is(in_session(q{RAISE EXCEPTION 'no' USING ERRCODE = '57014';}),
	'no', 'a handler that raises what a cancel would');
is( $s->query_safe(q{SELECT count(*) FROM pg_class WHERE relname = 'mine'
	AND relpersistence = 't'}), '1', 'leaves the session alone');
value(
	q{SET ROLE mallory; SET search_path = mallory, public;
	CREATE FUNCTION no(jsonb) RETURNS boolean LANGUAGE plpgsql
	AS $$BEGIN RAISE EXCEPTION 'no' USING ERRCODE = '57014'; END$$;
	SELECT queue_create('no', '{"_max_claim_count": 1}');
	SELECT job_handler('no', 'no(jsonb)');
	SELECT queue_push_batch('no', '{1,2,3}'::jsonb[])});
is($s->query_safe(q{CALL job_run('{no}')}) =~ s/"elapsed": [0-9.]+, //r,
	'{"ok": 0, "failed": 3, "reached": "none-ready"}',
	'and does not end job_run');
is(in_session(q{SET search_path = mallory; SET work_mem = '77MB';}),
	'done', 'settings in a session');
is($s->query_safe(q{SELECT current_setting('search_path') || ' '
	|| current_setting('work_mem') || ' ' || current_user}),
	'"$user", public 4MB postgres', 'are taken back');
is( $s->query_safe(
		q{SELECT (SELECT count(*) FROM pg_prepared_statements)
		+ (SELECT count(*) FROM pg_listening_channels())
		+ (SELECT count(*) FROM pg_cursors WHERE is_holdable)}),
	'0',
	'nothing else is left');
$s->quit;

$node->stop;
done_testing();
