# The schema of the extension's functions, and the database, may belong to another
# role.  What a schedule of a superuser has pg_cron execute calls no function of
# that role: neither when the schema is renamed nor when it is dropped, and with
# it the extension.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../perl";

use ClusterTest;
use PostgreSQL::Test::Utils;
use QueueTest qw($node $db value);
use Test::More;

$node = PostgreSQL::Test::Cluster->new('main');
$node->init;
$node->append_conf('postgresql.conf', q{shared_preload_libraries = 'queue'});
$node->start;

# What an earlier version has given pg_cron to execute: a function, if it belongs to the
# extension.
my $command = q{/* schedule "nightly" of queue "ticks" */ DO 'BEGIN IF NOT EXISTS (SELECT FROM pg_catalog.pg_depend AS d
	JOIN pg_catalog.pg_extension AS e
	ON e.oid OPERATOR(pg_catalog.=) d.refobjid
	WHERE d.classid OPERATOR(pg_catalog.=) ''pg_catalog.pg_proc''::pg_catalog.regclass
	AND d.objid OPERATOR(pg_catalog.=) pg_catalog.to_regprocedure(''queue_router.due(integer)'')
	AND d.refclassid OPERATOR(pg_catalog.=) ''pg_catalog.pg_extension''::pg_catalog.regclass
	AND d.deptype OPERATOR(pg_catalog.=) ''e''
	AND e.extname OPERATOR(pg_catalog.=) ''queue'')
	THEN RAISE EXCEPTION ''extension "queue" does not exist'';
	END IF; PERFORM queue_router.due(1); END'};

# Executes it in a session of the schedule's role.  Returns the error, if there is one.
sub run_job
{
	my (undef, undef, $stderr) = $node->psql($db, "SET client_min_messages = error; $command");
	return $stderr;
}

# How many messages has a run pushed?
sub pushed
{
	my $error = run_job();
	diag $error if $error ne '';
	return value(q{SELECT set_config('search_path', n.nspname, false)
		FROM pg_extension AS e JOIN pg_namespace AS n ON n.oid = e.extnamespace
		WHERE e.extname = 'queue';
		SELECT queue_purge('ticks')}) =~ s/.*\n//r;
}

# A function of the role boss that makes it a superuser, if a superuser calls it
sub plant
{
	my ($function) = @_;
	return qq{CREATE FUNCTION $function(integer) RETURNS boolean
		LANGUAGE plpgsql AS \$\$
		BEGIN ALTER ROLE boss SUPERUSER; RETURN true; END \$\$;};
}

sub boss_is_superuser
{
	my $is = value(q{SELECT rolsuper FROM pg_roles WHERE rolname = 'boss'});
	value('ALTER ROLE boss NOSUPERUSER');
	return $is;
}

value(qq{CREATE ROLE boss LOGIN; ALTER DATABASE $db OWNER TO boss;
	CREATE EXTENSION queue;
	INSERT INTO queue_data.schedule (id, role, pushed_at, project, name, queue, cron, body)
	SELECT 1, usesysid, '-infinity', '', 'nightly', 'ticks', '0 0 1 1 *', '1'
	FROM pg_user WHERE usename = current_user});
is(pushed(), '1', 'the job of a schedule runs');

# --- The schema is renamed ---

value(q{SET SESSION AUTHORIZATION boss;
	ALTER SCHEMA public RENAME TO p; CREATE SCHEMA public;} . plant('public.job_due')
	. q{CREATE FUNCTION public.queue_push(text, jsonb) RETURNS bigint LANGUAGE plpgsql AS $$
		BEGIN ALTER ROLE boss SUPERUSER; RETURN 1; END $$;
	CREATE FUNCTION p.queue_push(text, jsonb) RETURNS bigint LANGUAGE plpgsql AS $$
		BEGIN ALTER ROLE boss SUPERUSER; RETURN 1; END $$});
is(pushed(), '1', 'it runs where the schema was renamed');
is(boss_is_superuser(), 'f', 'and calls no function of the other role');

# Other operators in the search_path of the database
value(q{SET SESSION AUTHORIZATION boss; CREATE SCHEMA evil;
	CREATE FUNCTION evil.equal(oid, oid) RETURNS boolean LANGUAGE plpgsql AS $$
	BEGIN ALTER ROLE boss SUPERUSER; RETURN true; END $$;
	CREATE OPERATOR evil.= (LEFTARG = oid, RIGHTARG = oid, FUNCTION = evil.equal);
	ALTER DATABASE postgres SET search_path = evil, pg_catalog});
is(run_job(), '', 'it runs with the search_path of the database');
value(q{ALTER DATABASE postgres RESET search_path});
is(boss_is_superuser(), 'f', 'and calls none of its operators');

# --- The extension is dropped ---

value(q{SET SESSION AUTHORIZATION boss; DROP SCHEMA p CASCADE;
	CREATE SCHEMA queue_router;} . plant('queue_router.due'));
is(value(q{SELECT count(*) FROM pg_extension WHERE extname = 'queue'}), '0',
	'the extension is dropped with its schema');
like(run_job(), qr/extension "queue" does not exist/,
	'the job that it left behind fails');
is(boss_is_superuser(), 'f', 'and calls nothing');

$node->stop;
done_testing();
