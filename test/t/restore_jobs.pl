# Jobs of a restored database run when the restore has ended, not before, whatever
# loads it: psql, pg_restore, pg_restore -1, pg_restore -j.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../perl";

use PostgreSQL::Test::Utils;
use QueueTest;
use Test::More;

start_server(
	q{
autovacuum = off
max_worker_processes = 16
queue.runners = 0
});
my $dir = PostgreSQL::Test::Utils::tempdir();

# A database as the README makes it, with a job of a role, which needs grants that
# pg_restore restores last, and one of a superuser.  Each writes down how many indexes
# its table has: a restore creates them after the data, and takes two seconds for one.
value('CREATE DATABASE source');
value(
	q{CREATE SCHEMA queue;
	CREATE EXTENSION queue SCHEMA queue;
	GRANT USAGE ON SCHEMA queue TO queue_producer, queue_consumer, queue_admin;
	CREATE ROLE app LOGIN;
	GRANT queue_producer, queue_consumer TO app;
	CREATE SCHEMA app AUTHORIZATION app;
	SET search_path = app, queue;
	SET ROLE app;
	CREATE TABLE done (id int PRIMARY KEY, indexes bigint);
	INSERT INTO done VALUES (1), (2);
	GRANT INSERT ON done TO PUBLIC;
	CREATE FUNCTION work(body jsonb) RETURNS boolean LANGUAGE sql AS $$
		INSERT INTO app.done
		SELECT body::int, count(*) FROM pg_catalog.pg_index AS i
		WHERE i.indrelid = 'app.done'::regclass AND i.indisvalid;
		SELECT true $$;
	CREATE FUNCTION slow(id int) RETURNS int IMMUTABLE LANGUAGE plpgsql AS $$
	BEGIN
		PERFORM pg_catalog.pg_sleep(CASE id WHEN 1 THEN 2 ELSE 0 END);
		RETURN id;
	END $$;
	CREATE INDEX slow ON done (app.slow(id));
	SELECT job_handler('of_role', 'work(jsonb)'), queue_push('of_role', '3');
	RESET ROLE;
	CREATE FUNCTION work_of_superuser(body jsonb) RETURNS boolean LANGUAGE sql AS $$
		SELECT app.work(body) $$;
	SELECT job_handler('of_superuser', 'work_of_superuser(jsonb)'),
		queue_push('of_superuser', '4')},
	'source');
$node->command_ok([ 'pg_dump', '-Fc', '-f', "$dir/dump", $node->connstr('source') ],
	'dumped');
$node->command_ok([ 'pg_dump', '-f', "$dir/dump.sql", $node->connstr('source') ],
	'dumped as SQL');
value('DROP DATABASE source');
$node->adjust_conf('postgresql.conf', 'queue.runners', '4');
$node->reload;

my $jobs = q{SELECT string_agg(id || ' ' || indexes, ', ' ORDER BY id)
	FROM app.done WHERE id > 2};
for my $how ([ 'psql', '-X', '-q', '-o', "$dir/out", '-v', 'ON_ERROR_STOP=1',
		'-f', "$dir/dump.sql", '-d' ],
	[ 'pg_restore', "$dir/dump", '-d' ],
	[ 'pg_restore', '-1', "$dir/dump", '-d' ],
	[ 'pg_restore', '-j', '4', "$dir/dump", '-d' ])
{
	my @command = @$how;
	my $name = join ' ', grep { /^(psql|pg_restore|-[1j])$/ } @command;

	value('CREATE DATABASE target');
	$node->command_ok([ @command, $node->connstr('target') ], "restored: $name");
	ok($node->poll_query_until('target', $jobs, '3 2, 4 2'),
		"$name: both jobs run after it has ended")
	  or diag value("$jobs; SELECT * FROM queue_data.queue_handlers", 'target');
	value('DROP DATABASE target WITH (FORCE)');
}

# --- which sessions count ---

my $state = q{SELECT state, reason ~ 'loaded with SQL' FROM job_list('q')};
my $left = q{SELECT total FROM queue_stats('q')};
value(
	q{CREATE FUNCTION work(body jsonb) RETURNS boolean LANGUAGE sql AS 'SELECT true';
	SELECT job_handler('q', 'work(jsonb)')});
is(value($state), 'idle|', 'a handler that was bound does not wait');

sub load
{
	my $session = $node->background_psql($db);

	$session->query_safe('UPDATE queue_data.handler SET bound_at = bound_at');
	return $session;
}
my $loader = load();
value(q{SELECT queue_push('q', '1')});
is(value($state), 'stopped|t', 'one that was written with SQL waits');
my ($result, undef, $warned) = $node->psql($db, q{CALL job_run('{q}')});
like($warned, qr/WARNING:  handler of queue "q" cannot run/, 'also in job_run');

# A superuser called pg_restore may be of the same restore; anybody else is not.
local $ENV{PGAPPNAME} = 'pg_restore';
my $sibling = $node->background_psql($db);
my $app = $node->background_psql($db, extra_params => [ '-U', 'app' ]);
my $elsewhere = $node->background_psql('template1');
delete $ENV{PGAPPNAME};
$loader->quit;
is(value($state), 'stopped|t', 'and for another session called pg_restore');
is(value($left), '1', 'no job has run');
$sibling->quit;
becomes($left, '0', 'it goes on when that has ended');
is(value(q{SELECT count(*) FROM queue_data.queue_handlers WHERE state = 'active'}),
	'1', 'though other roles and databases have one');
$app->quit;
$elsewhere->quit;

# A crash of the server ends all sessions.
$loader = load();
value(q{SELECT queue_push('q', '2')});
is(value($state), 'stopped|t', 'loaded again');
$node->stop('immediate');
$node->start;
becomes($left, '0', 'it goes on after a crash');
$loader->quit;

# Binding it needs no end of a session.
$loader = load();
value(q{SELECT job_handler('q', 'work(jsonb)'); SELECT queue_push('q', '3')});
becomes($left, '0', 'it goes on when it is bound again');
$loader->quit;

$node->stop;
done_testing();
