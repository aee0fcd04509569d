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
$node->append_conf(
	'postgresql.conf', qq{
shared_preload_libraries = 'queue, pg_cron'
cron.database_name = '$db'
cron.use_background_workers = on
cron.launch_active_jobs = off
max_worker_processes = 16
});
if (!eval { $node->start(fail_ok => 1) })
{
	plan skip_all => 'pg_cron is not installed';
}

# Execute the command of the schedule's job, as pg_cron does, in a session of its
# role.  Returns the error, if there is one.
sub run_job
{
	my ($command) = @_;
	$command //= value('SELECT command FROM cron.job');
	my (undef, undef, $stderr) = $node->psql($db, $command);
	return $stderr;
}

# How many messages has a run pushed?  It may be the second one of this minute.
sub pushed
{
	value(q{UPDATE queue_data.schedule SET pushed_at = '-infinity'});
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

my $schedule = q{SELECT job_schedule('nightly', '0 0 1 1 *', 'ticks', '1')};

# --- The schema is renamed ---

value(qq{CREATE ROLE boss LOGIN; ALTER DATABASE $db OWNER TO boss;
	CREATE EXTENSION pg_cron SCHEMA pg_catalog;
	CREATE EXTENSION queue; $schedule});
is(pushed(), '1', 'a job runs');
value(q{SET SESSION AUTHORIZATION boss;
	ALTER SCHEMA public RENAME TO p; CREATE SCHEMA public;} . plant('public.job_due'));
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
