# Handlers are contained: what a role binds cannot become another role through
# a session that runs it, and waits while the role lacks what binding takes.
#
# test/check -q runs it, too.

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
queue.runners = 0
});

value(
	q{CREATE ROLE mallory LOGIN;
	GRANT queue_producer, queue_consumer TO mallory;
	CREATE SCHEMA mallory AUTHORIZATION mallory;
	GRANT USAGE ON SCHEMA mallory TO PUBLIC;
	SET ROLE mallory; SET search_path = mallory, public;
	CREATE TABLE seen (what text);
	CREATE FUNCTION pwn() RETURNS boolean LANGUAGE plpgsql AS $$
	BEGIN
		IF (SELECT rolsuper FROM pg_roles WHERE rolname = current_user) THEN
			ALTER ROLE mallory SUPERUSER;
		END IF;
		RETURN true;
	END $$});

# A queue with one job, whose handler has this body
my $number = 0;

sub bind_job
{
	my ($body, $declare) = @_;
	my $q = 'q' . ++$number;

	$declare //= '';
	value(
		"SET ROLE mallory; SET search_path = mallory, public;
		CREATE FUNCTION f$number(body jsonb) RETURNS boolean LANGUAGE plpgsql
		AS \$f\$ DECLARE temp text := 'pg_temp'; $declare
		BEGIN $body RETURN true; END \$f\$;
		SELECT queue_create('$q', '{\"_max_claim_count\": 1}');
		SELECT job_handler('$q', 'f$number(jsonb)');
		SELECT queue_push('$q', '1')");
	return $q;
}

sub outcome
{
	my ($q) = @_;
	return value("SELECT coalesce((SELECT last_error
		FROM queue_dead_letters('$q.dead')), 'done ' ||
		(SELECT total FROM queue_stats('$q')))");
}

# --- a superuser runs the job, as the README once advised ---

for my $become ('SET ROLE mallory', 'SET SESSION AUTHORIZATION mallory', '')
{
	my $q = bind_job(
		q{EXECUTE 'CREATE DOMAIN pg_temp.text AS pg_catalog.text
			CHECK (mallory.pwn())';});

	$node->psql($db,
		"$become; CALL job_run('{$q}'); RESET ROLE;
		RESET SESSION AUTHORIZATION; SELECT 'x'::text");
	is( value(q{SELECT rolsuper FROM pg_roles WHERE rolname = 'mallory'}),
		'f', "a domain for the superuser to fall over: $become");
	value('ALTER ROLE mallory NOSUPERUSER');
}

# --- what a handler may leave behind in the session of another role ---

my $s = $node->background_psql($db, on_error_stop => 0);
$s->query('SET client_min_messages = error');
$s->query_safe(
	q{CREATE TEMP TABLE mine (a int); GRANT ALL ON mine TO PUBLIC;
	CREATE FUNCTION pg_temp.mine() RETURNS int LANGUAGE sql AS 'SELECT 1'});
my $left = q{SELECT count(*) FROM pg_depend WHERE refclassid =
	'pg_namespace'::regclass AND refobjid = pg_my_temp_schema()};
my $before = $s->query_safe($left);

# By the alias of the schema, and by its name
my $by_name = q{SELECT nspname INTO temp FROM pg_namespace
	WHERE oid = pg_my_temp_schema();};
my $make = q{EXECUTE format(%L, temp);};
my %objects = (
	'domain' => 'CREATE DOMAIN %1$s.text AS pg_catalog.text',
	'enum' => q{CREATE TYPE %1$s.bool AS ENUM ('t')},
	'composite type' => 'CREATE TYPE %1$s.pair AS (a int)',
	'shell type' => 'CREATE TYPE %1$s.shell',
	'range' => 'CREATE TYPE %1$s.span AS RANGE (subtype = int)',
	'function' => q{CREATE FUNCTION %1$s.lower(text) RETURNS text
		LANGUAGE sql AS 'SELECT $1'},
	'procedure' => q{CREATE PROCEDURE %1$s.p() LANGUAGE sql AS 'SELECT 1'},
	'operator' => 'CREATE OPERATOR %1$s.= (FUNCTION = int4eq, LEFTARG = int, RIGHTARG = int)',
	'aggregate' => 'CREATE AGGREGATE %1$s.sum (int) (SFUNC = int4pl, STYPE = int)',
	'collation' => 'CREATE COLLATION %1$s.c FROM "C"',
	'conversion' => q{CREATE CONVERSION %1$s.c FOR 'LATIN1' TO 'UTF8' FROM iso8859_1_to_utf8},
	'text search configuration' => 'CREATE TEXT SEARCH CONFIGURATION %1$s.c (COPY = pg_catalog.simple)',
	'text search dictionary' => 'CREATE TEXT SEARCH DICTIONARY %1$s.d (TEMPLATE = pg_catalog.simple)',
	'table' => 'CREATE TABLE %1$s.t (a int)',
	'view' => 'CREATE VIEW %1$s.v AS SELECT 1 AS a',
	'sequence' => 'CREATE SEQUENCE %1$s.s',
	'row of a table' => 'INSERT INTO %1$s.mine VALUES (1)',
	'schema of a type' => 'ALTER TYPE mallory.moved SET SCHEMA %1$s',
	'subtransaction' => 'DO $x$BEGIN BEGIN CREATE FUNCTION %1$s.f() RETURNS int LANGUAGE sql AS $$SELECT 1$$; EXCEPTION WHEN OTHERS THEN RAISE; END; END$x$');
value('SET ROLE mallory; CREATE TYPE mallory.moved AS (a int)');
for my $what (sort keys %objects)
{
	for my $how ('', $by_name)
	{
		my $q = bind_job($how . "EXECUTE format(\$o\$$objects{$what}\$o\$, temp);");

		$s->query("CALL job_run('{$q}')");
		unlike(outcome($q), qr/^done/,
			"refused: $what" . ($how ? ', by the name of the schema' : ''));
	}
}
is($s->query_safe($left), $before, 'nothing was left');
is($s->query_safe('SELECT count(*) FROM mine'), '0', 'nor in the session\'s own');

# Deferred to the end, and in what runs after each attempt
value(
	q{SET ROLE mallory; SET search_path = mallory, public;
	CREATE FUNCTION late() RETURNS trigger LANGUAGE plpgsql AS $$
	BEGIN
		EXECUTE 'CREATE FUNCTION pg_temp.late() RETURNS int LANGUAGE sql
			AS ''SELECT 1''';
		RETURN NULL;
	END $$;
	CREATE TABLE t (a int);
	CREATE CONSTRAINT TRIGGER late AFTER INSERT ON t
		DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION late()});
my $late = bind_job('INSERT INTO mallory.t VALUES (1);');
$s->query("CALL job_run('{$late}')");
unlike(outcome($late), qr/^done/, 'refused: in a deferred trigger');
$late = bind_job('');
value(
	qq{SET ROLE mallory; SET search_path = mallory, public;
	CREATE FUNCTION down(jsonb) RETURNS void LANGUAGE plpgsql AS \$\$
	BEGIN
		EXECUTE 'CREATE FUNCTION pg_temp.down() RETURNS int LANGUAGE sql
			AS ''SELECT 1''';
	END \$\$;
	SELECT job_handler('$late', 'f$number(jsonb)', teardown => 'down(jsonb)')});
$s->query("CALL job_run('{$late}')");
is(outcome($late), 'done 0', 'an attempt is done whatever its teardown does');
is($s->query_safe($left), $before, 'nothing was left by either');

# What the handler calls setseed() with says nothing about the session's random().
my $seeds = bind_job('PERFORM setseed(0.5);');
$s->query("CALL job_run('{$seeds}')");
is(outcome($seeds), 'done 0', 'a job sets the seed');
my $random = $s->query_safe('SELECT random()');
isnt($random, value(q{DO 'BEGIN PERFORM setseed(0.5); END'; SELECT random()}),
	'not that of the session');

# By the role that logged in, a job may use the session.
my $own = bind_job('CREATE TEMP TABLE own (a int); DROP TABLE own;');
$node->safe_psql($db, "CALL job_run('{$own}')",
	extra_params => [ '-U', 'mallory' ]);
is(outcome($own), 'done 0', 'a session of the role itself is its own');
$s->quit;

# --- rights that are taken away ---

my $state = q{SELECT coalesce(reason, state) FROM queue_data.queue_handlers
	WHERE queue = '%s'};
for my $case (
	[   'REVOKE queue_producer, queue_consumer FROM mallory',
		'GRANT queue_producer, queue_consumer TO mallory',
		'may not execute job_handler.' ],
	[   'ALTER ROLE mallory NOLOGIN', 'ALTER ROLE mallory LOGIN',
		'may not log in.' ],
	[   q{ALTER ROLE mallory VALID UNTIL '2001-01-01'},
		q{ALTER ROLE mallory VALID UNTIL 'infinity'},
		'is no longer valid (VALID UNTIL).' ],
	[   "REVOKE CONNECT ON DATABASE $db FROM PUBLIC",
		"GRANT CONNECT ON DATABASE $db TO PUBLIC",
		'may not connect to the database.' ])
{
	my ($take, $give, $why) = @$case;
	my $q = bind_job('');

	value($take);
	my (undef, undef, $warned) = $node->psql($db, "CALL job_run('{$q}')");
	like($warned, qr/handler of queue "$q" cannot run\nDETAIL: .* \Q$why\E/,
		'job_run says so');
	is(value(sprintf $state, $q),
		"Role \"mallory\", which bound the handler, $why", $take);
	is(value("SELECT claimed FROM job_stats('$q')"),
		'0', 'no job was tried');
	value($give);
	value("CALL job_run('{$q}')");
	is(outcome($q), 'done 0', "goes on: $give");
}

# While it runs: the next batch is not claimed.
my $many = bind_job('');
value(
	qq{SELECT queue_push_batch('$many', array_fill('1'::jsonb, ARRAY[50]));
	CALL job_run('{$many}', 2);
	REVOKE queue_producer, queue_consumer FROM mallory;
	CALL job_run('{$many}')});
is(value("SELECT completed FROM job_stats('$many')"),
	'2', 'taken away between two batches');
value('GRANT queue_producer, queue_consumer TO mallory');

# A role that could not log in when it bound need not.
value(
	q{CREATE ROLE crew; GRANT queue_producer TO crew;
	GRANT USAGE, CREATE ON SCHEMA mallory TO crew;
	SET ROLE crew; SET search_path = mallory, public;
	CREATE FUNCTION crew(jsonb) RETURNS boolean LANGUAGE sql AS 'SELECT true';
	SELECT queue_create('crew'); SELECT job_handler('crew', 'crew(jsonb)');
	SELECT queue_push('crew', '1')});
value(q{CALL job_run('{crew}')});
is(outcome('crew'), 'done 0', 'a role that never could log in');

$node->stop;
done_testing();
