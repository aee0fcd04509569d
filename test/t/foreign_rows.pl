# Rows that no function wrote: only superusers write the tables of the extension
# with SQL, the tables have constraints, and a row that is malformed nevertheless
# is an error of the calls that meet it.  It does not end the server or the
# worker, does not stop other queues, and the error names the row.
#
# The last part breaks rows of all tables, in some of the ways of test/fuzz.d/rows;
# QUEUE_FUZZ_ROWS, which test/fuzz -R sets, makes it all of them, and
# QUEUE_FUZZ_SEED and QUEUE_FUZZ_FACTOR count as in fuzz.pl.
#
# test/check -q runs it, too.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../perl";

use HandlerTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $changes = $ENV{QUEUE_FUZZ_ROWS} ? 0 : 12;
my $seed = $ENV{QUEUE_FUZZ_ROWS} && $ENV{QUEUE_FUZZ_SEED} || 1;
my $factor = $ENV{QUEUE_FUZZ_FACTOR} || 1;

start_server('restart_after_crash = on');
my $log_start = -s $node->logfile;

# The error of a statement: its SQLSTATE, message, detail and hint
sub error_text
{
	my ($sql) = @_;
	my (undef, undef, $stderr) = $node->psql($db, $sql,
		extra_params => [ '-v', 'VERBOSITY=verbose' ]);
	return $stderr;
}

# --- Who may write ---

value(
	q{
	CREATE ROLE eve LOGIN;
	GRANT pg_write_all_data, pg_read_all_data, queue_producer, queue_consumer TO eve;
	CREATE ROLE named LOGIN;
	GRANT USAGE ON SCHEMA queue_data TO named;
	GRANT ALL ON ALL TABLES IN SCHEMA queue_data TO named;
	CREATE SCHEMA eve AUTHORIZATION eve;
	SET ROLE eve;
	CREATE FUNCTION eve.climb(body jsonb) RETURNS boolean LANGUAGE plpgsql AS $$
	BEGIN
		ALTER ROLE eve SUPERUSER;
		RETURN true;
	EXCEPTION WHEN insufficient_privilege THEN
		RETURN true;
	END $$;
	SELECT queue_create('eve');
	SELECT job_handler('eve', 'eve.climb(jsonb)')});
like(
	error_text(
		q{SET ROLE eve; UPDATE queue_data.handler SET role = 'postgres'}),
	qr/42501: permission denied for table "queue_data.handler".*superusers/s,
	'a role that may write all tables cannot bind a handler as another role');
value(q{SELECT queue_push('eve', '1')});
is_done('eve', 'its job runs');
is(value(q{SELECT rolsuper FROM pg_roles WHERE rolname = 'eve'}),
	'f', 'it has not become a superuser');

my @tables = split /\n/,
  value(q{SELECT relname FROM pg_class WHERE relkind = 'r'
	AND relnamespace = 'queue_data'::regnamespace ORDER BY 1});
cmp_ok(scalar @tables, '>', 30, 'there are tables');
# Each statement of each role is rolled back.  eve may not truncate.
is( value(
		q{CREATE FUNCTION written() RETURNS SETOF text LANGUAGE plpgsql AS $$
		DECLARE
			role text;
			statement text;
		BEGIN
			FOR role, statement IN
				SELECT r, format(s, attrelid::regclass, attname)
				FROM pg_attribute JOIN pg_class AS c ON c.oid = attrelid,
					unnest('{eve,named}'::text[]) AS r,
					unnest(ARRAY['INSERT INTO %1$s SELECT * FROM %1$s WHERE false',
						'UPDATE %1$s SET %2$I = %2$I', 'DELETE FROM %1$s', 'TRUNCATE %1$s']) AS s
				WHERE relkind = 'r' AND relnamespace = 'queue_data'::regnamespace AND attnum = 1
					AND (r <> 'eve' OR s !~ 'TRUNCATE')
			LOOP
				BEGIN
					PERFORM set_config('role', role, true);
					EXECUTE statement;
					RAISE EXCEPTION SQLSTATE 'ST000';
				EXCEPTION
					WHEN insufficient_privilege THEN
						NULL;
					WHEN OTHERS THEN
						RETURN NEXT concat_ws(': ', role, statement, SQLSTATE);
				END;
			END LOOP;
		END $$;
		SELECT written()}),
	'', 'no other table can be written either');
is(state_of(q{SET SESSION AUTHORIZATION eve; COPY queue_data.secret FROM stdin}),
	'42501', 'nor by COPY');
value(
	q{CREATE FUNCTION as_owner() RETURNS void LANGUAGE sql SECURITY DEFINER
	AS 'UPDATE queue_data.schedule SET pushed_at = pushed_at';
	SET ROLE eve; SELECT as_owner()});
pass('a function of a superuser may write, whoever calls it');

# --- What may be written ---

value(
	q{
	CREATE FUNCTION ok(body jsonb) RETURNS boolean LANGUAGE sql AS 'SELECT true';
	CREATE FUNCTION teardown(body jsonb) RETURNS void LANGUAGE sql AS '';
	SELECT queue_create(q), job_handler(q, 'ok(jsonb)') FROM unnest('{good,bad}'::text[]) AS q;
	SELECT queue_push('plain', '1', dedup_key => 'k'), job_root('plain', 'r')});
my %refused = (
	queue => [
		'id = 0', q{name = 'no name'}, q{metadata = '[]'},
		q{push_roles = '{NULL}'}, 'source_id = id' ],
	message_0 => [
		'priority = 3', 'id = -id', q{created_at = 'infinity'},
		'claim_token = 1', q{twins = '{NULL}'} ],
	handler => [
		q{teardown_name = 'x'}, 'concurrency = 0', q{rate = 'NaN'},
		'timeout = -1' ],
	dedup_key => [ q{message_ids = '{NULL}'} ],
	root_job => [ q{registered_at = 'infinity'} ],
	ring => [ 'active = 16' ],
	segment => [ 'segment = 20' ],
	secret => [ q{key = ''} ]);
my @accepted;
foreach my $table (sort keys %refused)
{
	push @accepted, map { "$table: $_" }
	  grep { state_of("UPDATE queue_data.$table SET $_") ne '23514' }
	  @{ $refused{$table} };
}
is(join("\n", @accepted), '', 'constraints refuse malformed rows');

# --- What is read ---

my $worker = value(
	q{SELECT pid FROM pg_stat_activity WHERE backend_type = 'queue worker'});
my $id_of = q{(SELECT id FROM queue_data.queue WHERE name = '%s')};

# The function of a handler has no name.
value(
	q{ALTER TABLE queue_data.handler ALTER COLUMN function_name DROP NOT NULL;
	UPDATE queue_data.handler SET function_name = NULL WHERE queue_id = }
	  . sprintf $id_of, 'bad');
value(q{SELECT queue_push('bad', '1'), queue_push('good', '1')});
is_done('good', 'the handler of another queue runs');
like(
	error_text(q{SELECT * FROM job_list('bad')}),
	qr/XX001: a row of table "queue_data.handler" is malformed.*"function_name".*ctid = '\(\d+,\d+\)'/s,
	'the error names the row');
value('DELETE FROM queue_data.handler WHERE queue_id = '
	  . sprintf($id_of, 'bad'));
value(q{SELECT job_handler('bad', 'ok(jsonb)')});
is_done('bad', 'without it, the handler is bound again and runs');

# The queue of a handler has a null.
value(
	q{ALTER TABLE queue_data.queue ALTER COLUMN paused DROP NOT NULL;
	SELECT queue_push('bad', '1');
	UPDATE queue_data.queue SET paused = NULL WHERE name = 'bad';
	SELECT queue_push('good', '1')});
is_done('good', 'the handler of another queue runs beside a malformed queue');
is( value(
		q{SET client_min_messages = error; SELECT count(*) FROM queue_list(pattern => '^(good|bad)$')}
	),
	'1',
	'a list leaves it out');
value(q{UPDATE queue_data.queue SET paused = false WHERE paused IS NULL});
is_done('bad', 'its jobs run when it is corrected');

# A queue that is its own source
value(
	q{ALTER TABLE queue_data.queue DROP CONSTRAINT queue_source;
	SELECT queue_create('circle');
	UPDATE queue_data.queue SET source_id = id WHERE name = 'circle'});
is(state_of(q{SET statement_timeout = '60s'; SELECT queue_push('circle', '1')}),
	'XX001', 'a circle of sources has an end');
value(
	q{CREATE ROLE other IN ROLE queue_producer;
	SELECT queue_create('source', '{"_max_claim_count": 1}');
	ALTER TABLE queue_data.queue DROP CONSTRAINT queue_roles;
	UPDATE queue_data.queue SET claim_roles = '{NULL}' WHERE name = 'source';
	SET ROLE other; SELECT queue_push('others', '1')});
for my $call ('queue_ready()', 'queue_claim_any(NULL, 60, 60, 1)')
{
	is(value("SET client_min_messages = error; SET ROLE other; SELECT count(*) FROM $call"),
		'1', "neither this nor a malformed source stops $call of another role");
}
value(q{UPDATE queue_data.queue SET claim_roles = NULL WHERE name = 'source'});
value(q{UPDATE queue_data.queue SET source_id = NULL WHERE name = 'circle'});

# A claim of which a part is missing
value(
	q{ALTER TABLE queue_data.message_0 DROP CONSTRAINT claim_columns, DROP CONSTRAINT message_claim;
	SELECT queue_push_batch('half', array_agg(to_jsonb(g))) FROM generate_series(1, 3) AS g;
	SELECT count(*) FROM queue_claim('half', 600, 60, 1);
	UPDATE queue_data.message_0 SET claimed_until = NULL WHERE claim_token <> 0});
is(state_of(q{SELECT queue_claim('half', 600, 60, 10)}),
	'XX001', 'a claim meets a message with half a claim');
is( value(
		q{SELECT queue_push('other', '1') > 0; SELECT count(*) FROM queue_claim('other', 60, 60)}
	),
	"t\n1",
	'other queues go on');
value('DELETE FROM queue_data.message_0 WHERE claimed_until IS NULL AND claim_token IS NOT NULL');
is(value(q{SELECT count(*) FROM queue_claim('half', 600, 60, 10)}),
	'2', 'without it, the rest is handed out');

# The name of the queue to which a dead letter is to go back
value(
	q{SELECT queue_push('letters', '1');
	UPDATE queue_data.message_0 SET attributes = '{"origin_queue": "; no name"}'
	WHERE queue_id = } . sprintf $id_of, 'letters');
is(state_of(q{SELECT queue_redrive('letters')}),
	'22023', 'a dead letter does not make a queue of a name that is none');

# --- All columns ---

value('DROP EXTENSION queue');
$node->safe_psql($db, slurp_file("$FindBin::RealBin/../fuzz.d/rows.sql"));
becomes(q{SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'queue worker'},
	'1', 'there is a worker');
$worker = value(
	q{SELECT pid FROM pg_stat_activity WHERE backend_type = 'queue worker'});
$ENV{PGHOST} = $node->host;
$ENV{PGPORT} = $node->port;
$ENV{PGDATABASE} = $db;
my ($out, $err) = run_command(
	[
		$^X, "$FindBin::RealBin/../fuzz.d/rows", '-n', $changes, '-r', $seed,
		'-x', $factor
	]);
note $out;
is(join("\n", grep { /^defect/ } split /\n/, $out) . $err,
	'', "no defect was found (seed $seed)");
like($out, qr/^changes +[1-9]/m, 'rows were changed');
like($out, qr/^error XX001 +[1-9]/m, 'some calls have met malformed rows');
is( value(
		q{SELECT pid FROM pg_stat_activity WHERE backend_type = 'queue worker'}),
	$worker,
	'the worker is the same one');

$node->stop;
my @log = grep { /PANIC|TRAP|terminated by signal|XX000/ } split /\n/,
  slurp_file($node->logfile, $log_start);
is(join("\n", @log[ 0 .. ($#log > 9 ? 9 : $#log) ]),
	'', 'nothing in the log is against the server');

done_testing();
