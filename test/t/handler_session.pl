# A handler of another role in a session that calls job_run: it leaves nothing
# behind, and finds nothing of the session's.
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

# --- in a runner ---

# Nor does a job leave anything to the next one of its own role.
value(
	q{SET ROLE mallory; SET search_path = mallory, public;
	CREATE FUNCTION litter(body jsonb) RETURNS boolean LANGUAGE plpgsql AS $$
	BEGIN
		INSERT INTO public.seen SELECT 'litter', current_user, '', concat_ws(' ',
			(SELECT count(*) FROM pg_prepared_statements),
			(SELECT count(*) FROM pg_locks
			WHERE locktype = 'advisory' AND pid = pg_backend_pid()));
		EXECUTE 'PREPARE litter AS SELECT 1';
		PERFORM pg_advisory_lock(3);
		RETURN true;
	END $$;
	SELECT queue_create('litter', '{"_max_claim_count": 1}');
	SELECT job_handler('litter', 'litter(jsonb)');
	SELECT queue_push_batch('litter', '{1, 2, 3}')});
is_done('litter', 'jobs that leave something');
is(value('SELECT string_agg(what, \', \') FROM seen'), '0 0, 0 0, 0 0',
	'do not find it in their turn');
value('TRUNCATE seen');

# --- in a session ---

# A superuser runs another role's handler, which can leave nothing behind.
my $s = $node->background_psql($db, on_error_stop => 0,
	extra_params => [ '-v', 'VERBOSITY=verbose' ]);
$s->query('SET client_min_messages = error');

my $number = 0;

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
	# No runner shall run it.
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
		"refused in a session of another role: $command");
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

# Nor are its locks.
my $locks = q{SELECT string_agg(objid::text, ' ' ORDER BY objid) FROM pg_locks
	WHERE locktype = 'advisory' AND pid = pg_backend_pid()};
for my $how ('pg_advisory_lock', 'pg_advisory_lock_shared')
{
	$s->query_safe("SELECT $how(4711)");
	in_session('PERFORM pg_advisory_unlock_all(), pg_advisory_lock(4712);');
	like( $s->{stderr}, qr/55000:.*while the session holds advisory locks/,
		"a session that has locked with $how has to unlock");
	like($s->{stderr}, qr/pg_advisory_unlock_all\(\), or log in/, 'and is told so');
	$s->{stderr} = '';
	is($s->query_safe($locks), '4711', 'it keeps its lock, and gets no other');
	$s->query_safe('SELECT pg_advisory_unlock_all()');
}
is( in_session(
		'PERFORM pg_advisory_lock(4713), pg_advisory_lock_shared(4714),
		pg_advisory_xact_lock(4715);'),
	'done', 'a handler that locks');
is($s->query_safe($locks), '', 'leaves no lock behind');
in_session(q{PERFORM pg_advisory_lock(4716); RAISE EXCEPTION 'no';});
is($s->query_safe($locks), '', 'nor does one that fails');
value(
	q{SET ROLE mallory; SET search_path = mallory, public;
	CREATE FUNCTION locks(jsonb) RETURNS boolean LANGUAGE sql
	AS 'SELECT pg_advisory_lock(4717) IS NOT NULL';
	CREATE FUNCTION knows(jsonb) RETURNS void LANGUAGE plpgsql
	AS $$BEGIN
		IF NOT pg_advisory_unlock(4717) THEN RAISE 'no lock'; END IF;
		PERFORM pg_try_advisory_lock(4718);
	END$$;
	SELECT queue_create('locks');
	SELECT job_handler('locks', 'locks(jsonb)', teardown => 'knows(jsonb)');
	SELECT queue_push_batch('locks', '{1,2}'::jsonb[])});
$s->{stderr} = '';
like($s->query(q{SET client_min_messages = warning; CALL job_run('{locks}')}),
	qr/"ok": 2, "failed": 0/, 'a handler and its teardown share locks');
is($s->{stderr}, '', 'until the attempt is over');
is($s->query_safe($locks), '', 'and leave none behind');
$s->query_safe('SET client_min_messages = error');
value(q{SELECT queue_push('locks', '3')});
is( $node->safe_psql(
		$db,
		"SELECT pg_advisory_lock(4711); CALL job_run('{locks}', 1); $locks",
		extra_params => [ '-U', 'mallory' ]) =~ s/"elapsed": [0-9.]+, //r,
	qq{\n{"ok": 1, "failed": 0, "reached": "job-limit"}\n4711 4718},
	'a session of the role itself keeps its own locks, and the handler\'s');

# Nor does the commit run what is left of its cursors, as the session's role.
SKIP:
{
	skip 'there is no PL/Perl', 3
	  if value(q{SELECT count(*) FROM pg_available_extensions WHERE name = 'plperl'}) eq '0';
	value('CREATE EXTENSION plperl');
	value(
		q{SET ROLE mallory; SET search_path = mallory, public;
		CREATE TABLE ran (role name);
		CREATE FUNCTION late() RETURNS int LANGUAGE sql
		AS 'INSERT INTO mallory.ran SELECT current_user RETURNING 1';
		CREATE FUNCTION pins(jsonb) RETURNS boolean LANGUAGE plperl
		AS $$ $_SHARED{cursor} = spi_query('SELECT mallory.late()'); return 'true'; $$;
		SELECT queue_create('pins', '{"_max_claim_count": 1}');
		SELECT job_handler('pins', 'pins(jsonb)');
		SELECT queue_push('pins', '1')});
	like($s->query(q{CALL job_run('{pins}')}),
		qr/"ok": 0, "failed": 1/, 'a handler that leaves a pinned cursor has failed');
	is(value('SELECT count(*) FROM mallory.ran'), '0', 'and runs nothing later');
	like(value(q{SELECT last_error FROM queue_dead_letters('pins.dead')}),
		qr/pinned portal/, 'the error says why');
}

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
