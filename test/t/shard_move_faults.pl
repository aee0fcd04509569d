# queue_shard_move where something is in its way: an unfinished move to another
# server, another run, settings of the database, databases that do not match.
# A shard never has two owners, and the reason is told.
#
# The servers are databases of one server here.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../perl";
use IPC::Run qw(run start timeout);
use Test::More;

use ClusterTest;
use DatabasesTest qw($node sql);
use PostgreSQL::Test::Utils;

my $program = "$FindBin::RealBin/../../src/bin/queue_shard_move";

plan skip_all => 'python3 with psycopg2 is not installed'
  unless run [ 'python3', '-c', 'import psycopg2' ], '2>', '/dev/null';

$node = PostgreSQL::Test::Cluster->new('main');
$node->init;
$node->append_conf('postgresql.conf', 'max_prepared_transactions = 10');
$node->start;

# Has a command done before or after a step of the program, which goes on, stops
# or ends then.
my $with_hook = <<'PYTHON';
import importlib.machinery, os, signal, subprocess, sys
path, step, when, command = sys.argv[1:5]
program = importlib.machinery.SourceFileLoader("program", path).load_module()
original = getattr(program.Move, step)
def hooked(self, *args):
    if when == "after":
        result = original(self, *args)
    setattr(program.Move, step, original)
    if command.startswith("SIG"):
        os.kill(os.getpid(), getattr(signal, command))
    else:
        subprocess.run(command, shell=True, check=True, stdout=2)
    return result if when == "after" else original(self, *args)
setattr(program.Move, step, hooked)
sys.argv[1:5] = []
program.main()
PYTHON

sub command
{
	my ($hook, @args) = @_;

	return $hook ? ('python3', '-Wignore', '-B', '-c', $with_hook, $program,
		@$hook, @args) : ($program, @args);
}

# Moves the shard between databases; returns what the program prints.
my $shard;

sub move
{
	my ($from, $to, %option) = @_;
	my $out;

	run [ command($option{hook}, @{ $option{options} || [] }, $shard,
			$node->connstr($from), $node->connstr($to)) ], '>', \$out, '2>&1';
	return $out;
}

# The databases in which the shard is
sub owners
{
	return join ' ', grep {
		sql($_, "SELECT state = 'local' FROM queue_data.shard WHERE shard = $shard") eq 't'
	} qw(one two three);
}

my $number = 0;
foreach my $db (qw(one two three))
{
	$number++;
	sql('postgres', "CREATE DATABASE $db TEMPLATE template0 ENCODING utf8 LOCALE 'C'");
	sql($db, "CREATE EXTENSION queue; SELECT queue_shard_init($number, 3)");
}
my ($q, $other) = split /\n/, sql('one', q{
	SELECT DISTINCT ON (queue_shard(q)) q FROM generate_series(1, 1000) AS g, concat('q', g) AS q
	WHERE queue_shard(q) % 3 = 1 LIMIT 2});
$shard = sql('one', "SELECT queue_shard('$q')");
sql('one', "SELECT queue_push('$q', '1')");
my $moved = qr/has moved; its queues were locked/;

# --- Moves that are not finished ---

move('one', 'two', hook => [qw(prepare after SIGKILL)]);
is(owners(), 'one', 'killed with a copy in another server');
like(move('one', 'three'), $moved, 'a move to a third server');
unlike(move('one', 'two'), $moved, 'a run of the first move');
is(owners(), 'three', 'does not use the old copy');
is(sql('postgres', 'SELECT count(*) FROM pg_prepared_xacts'), 0, 'but removes it');
like(move('three', 'one'), $moved, 'back');

move('one', 'two', hook => [qw(prepare after SIGKILL)]);
like(move('two', 'one'), qr/an earlier move of shard $shard to this source is not finished/,
	'not finished: the opposite direction');
like(move('one', 'three'), $moved, 'to a third server');
like(move('three', 'two'), qr/an earlier move of shard $shard from server 1 to this target is not/,
	'not finished: from a third server');
like(move('three', 'one'), $moved, 'back');
like(move('one', 'two'), $moved, 'it is undone, and begun anew');
is(owners(), 'two', 'one owner');
like(move('two', 'one'), $moved, 'back');

move('one', 'two', hook => [qw(commit_source after SIGKILL)]);
is(owners(), '', 'killed when the source has committed');
like(move('one', 'three'), qr/is on neither of these servers/, 'to a third server');
like(move('one', 'two'), qr/had moved already/, 'it is finished');
is(sql('two', "SELECT body FROM queue_messages('$q')"), 1, 'with the message');
like(move('two', 'one'), $moved, 'back');

# --- A copy of which nothing is known ---

# It was committed at the source, whose map was changed since then
move('one', 'two', hook => [qw(commit_source after SIGKILL)]);
sql('one', "UPDATE queue_data.shard SET state = 'local' WHERE shard = $shard");
my $by_hand = qr/changed by hand after the shard had left: the copy is not used, nor removed/;
like(move('one', 'two'), $by_hand, 'the map was changed by hand');
like(move('one', 'three'), $moved, 'and the empty shard has moved on');
like(move('one', 'two'), $by_hand, 'the copy is the only one, and stays');
like(move('three', 'one'), $moved, 'back');
sql('one', "UPDATE queue_data.shard SET state = 'remote' WHERE shard = $shard");
sql('two', sql('two', q{SELECT format('COMMIT PREPARED %L', gid) FROM pg_prepared_xacts}));
is(sql('two', "SELECT body FROM queue_messages('$q')"), 1, 'it has the message');
like(move('two', 'one'), $moved, 'back');

# Two servers that have the shard, of which none is known to be the newer one: two
# runs, each of which drops a copy, do not drop both.
move(@$_) foreach ([ 'one', 'two' ], [ 'two', 'one' ]);
sql('two', "UPDATE queue_data.shard SET state = 'local' WHERE shard = $shard;
	SELECT queue_push('$q', '2')");
like(move('one', 'two'), qr/which copy is newer is not known.*is on both of these servers/s,
	'on both, and none is newer');
my $dir = PostgreSQL::Test::Utils::tempdir();
my @dropped;
my @drops = map {
	my ($from, $to) = @$_;
	start [ $program, '-w', '2', '-d', "$dir/$from", $shard, $node->connstr($from), $node->connstr($to) ],
	  '>', \$dropped[@dropped], '2>&1', timeout(180)
} [ 'one', 'two' ], [ 'two', 'one' ];
$_->finish foreach @drops;
note @dropped;
isnt(owners(), '', 'two runs do not drop both copies');
if (owners() eq 'one two')
{
	like(move('two', 'one', options => [ '-d', "$dir/again" ]), qr/was dropped at SOURCE/, 'dropped');
}
like(move('two', 'one'), $moved, 'back') if owners() eq 'two';
is(owners(), 'one', 'one owner');
sql('one', "SELECT queue_purge('$q'), queue_push('$q', '1')");

# --- Other runs ---

my $path = join ' ', map { "'$_'" } $program, $shard, $node->connstr('one'),
  $node->connstr('three');
like(move('one', 'two', hook => [ 'leave', 'before', $path ]),
	qr/another run has moved shard $shard/, 'another run moves it meanwhile');
is(owners(), 'three', 'one owner');
like(move('three', 'one'), $moved, 'back');

my $stopped = start [ command([qw(copy after SIGSTOP)], $shard, $node->connstr('one'),
		$node->connstr('two')) ], timeout(60);
ok($node->poll_query_until('postgres', q{SELECT count(*) > 0 FROM pg_stat_activity
		WHERE application_name = 'queue_shard_move' AND datname = 'one'
		AND query = 'COMMIT' AND state = 'idle'}),
	'a run that does not go on');
like(move('one', 'two', options => [qw(-w 0.2)]), qr/shard $shard is locked: another run moves it/,
	'another one says so');
$stopped->signal('KILL');
$stopped->finish;

# --- A deadlock with a transaction that uses two of the queues ---

sql('one', qq{SELECT queue_update('$q', '{"_dead_letter_queue": "$q.dead"}')});
sql('postgres', "ALTER DATABASE one SET deadlock_timeout = '20ms'");
my $user = $node->background_psql('one');
$user->query_safe("SET deadlock_timeout = '1min'; BEGIN; SELECT queue_push('$q.dead', '1')");
$user->query_until(qr/begun/, qq{\\echo begun
DO \$\$ BEGIN
	WHILE NOT EXISTS (SELECT FROM pg_locks WHERE locktype = 'relation' AND NOT granted) LOOP
		PERFORM pg_sleep(0.001);
	END LOOP;
	PERFORM queue_push('$q', '1');
END \$\$;
COMMIT;
});
like(move('one', 'two'), $moved, 'the move tries again');
$user->quit;
like(move('two', 'one'), $moved, 'back');
is(sql('one', "SELECT count(*) FROM queue_messages('$q')"), 2, 'the transaction has committed');
sql('one', qq{SELECT queue_update('$q', '{"_dead_letter_queue": null}'), queue_drop('$q.dead');
	SELECT queue_pop('$q')});
sql('postgres', 'ALTER DATABASE one RESET ALL');

# --- A queue and its dead letter queue ---

my $separate = "psql -X -q -d '" . $node->connstr('one') . "' -c "
  . "\"SELECT queue_create('$other'), queue_update('$q', '{\\\"_dead_letter_queue\\\": \\\"$other\\\"}')\"";
like(move('one', 'two', hook => [ 'refuse_to_separate', 'after', $separate ]),
	qr/would be separated/, 'a dead letter queue in another shard, at the last moment');
is(owners(), 'one', 'nothing has moved');
sql('one', qq{SELECT queue_update('$q', '{"_dead_letter_queue": null}'), queue_drop('$other')});

# --- Counts ---

my $pushed = "SELECT pushed FROM queue_data.queue_status WHERE name = '$q'";
my $pushed_before = sql('one', $pushed);
foreach (1 .. 2)
{
	sql('one', "SELECT queue_push('$q', '1')");
	move(@$_) foreach ([ 'one', 'two' ], [ 'two', 'one' ]);
}
is(sql('one', $pushed), $pushed_before + 2, 'what is counted is counted once');

# --- Settings of databases ---

foreach my $db (qw(one two))
{
	sql('postgres', "ALTER DATABASE $db SET $_") foreach (
		'search_path = nowhere', 'idle_in_transaction_session_timeout = 1',
		'client_encoding = latin1', 'default_transaction_isolation = serializable');
}
sql('one', "SELECT public.queue_push('$q', to_jsonb(U&'\\00e9'::text))");
like(move('one', 'two'), $moved, 'settings of the databases do not matter');
is(sql('two', "SELECT ascii(body->>0) FROM public.queue_messages('$q') WHERE body <> '1'"),
	233, 'nor an encoding');
sql('postgres', "ALTER DATABASE $_ RESET ALL") foreach qw(one two);

# --- What the owner of a database has planted ---

# Functions and operators that the program could mean, each of which would run as
# the superuser that moves the shard, and settings that lead to them.
my $plant = q{
SET search_path = pg_catalog, pg_temp;
CREATE FUNCTION pg_temp.plant(name text, args text, result text) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
	EXECUTE format('CREATE FUNCTION public.%s(%s) RETURNS %s LANGUAGE plpgsql AS %L',
		name, args, result, format('BEGIN RAISE EXCEPTION %L; END',
			format('planted: %s(%s)', name, args)));
END $$;
SELECT pg_temp.plant(proname, oidvectortypes(proargtypes),
		CASE WHEN proretset THEN 'SETOF ' ELSE '' END || format_type(prorettype, NULL))
	FROM pg_proc
	WHERE pronamespace = 'pg_catalog'::regnamespace AND prokind = 'f' AND provariadic = 0
	AND proname IN ('clock_timestamp', 'current_database', 'format', 'hashtextextended',
		'pg_notify', 'quote_ident', 'set_config', 'setval', 'to_regclass', 'txid_current',
		'txid_status', 'unnest');
SELECT pg_temp.plant('quote_ident', 'name', 'text'),
	pg_temp.plant('setval', 'text, bigint', 'bigint'),
	pg_temp.plant('txid_status', 'integer', 'text'),
	pg_temp.plant('hashtextextended', 'text, integer', 'bigint'),
	pg_temp.plant('format', 'text, text, name', 'text'),
	pg_temp.plant('queue_shard', 'name, name', 'integer'),
	pg_temp.plant('queue_drop', 'name', 'boolean');
DO $$
DECLARE
	types text[] := '{smallint,integer,bigint,text,name,oid,regnamespace,regclass,uuid,jsonb,timestamptz,interval}';
	l text;
	r text;
	operator text;
	number int := 0;
BEGIN
	FOREACH l IN ARRAY types LOOP
		FOREACH r IN ARRAY types LOOP
			FOREACH operator IN ARRAY '{=,<>,<,<=,>,>=,~~,?,+,-,*,/,||}'::text[] LOOP
				number := number + 1;
				PERFORM pg_temp.plant('operator_' || number, l || ',' || r,
					CASE WHEN operator IN ('+', '-', '*', '/', '||') THEN l ELSE 'boolean' END);
				EXECUTE format('CREATE OPERATOR public.%s (FUNCTION = public.operator_%s, LEFTARG = %s, RIGHTARG = %s)',
					operator, number, l, r);
			END LOOP;
		END LOOP;
	END LOOP;
END $$};
sql('postgres', 'CREATE ROLE mover_test_owner');
foreach my $db (qw(one two))
{
	sql('postgres', "ALTER DATABASE $db OWNER TO mover_test_owner;
		SET SESSION AUTHORIZATION mover_test_owner;
		ALTER DATABASE $db SET search_path = public, pg_catalog;
		ALTER DATABASE $db SET role = mover_test_owner;
		ALTER DATABASE $db SET default_transaction_read_only = on");
	local $ENV{PGOPTIONS} = '-c role=none -c search_path=pg_catalog -c default_transaction_read_only=off';
	sql($db, "SET SESSION AUTHORIZATION mover_test_owner; $plant");
}
like(move('two', 'one'), $moved, 'nothing that the owners of the databases have planted is used');
move('one', 'two', hook => [qw(commit_source after SIGKILL)]);
like(move('one', 'two'), qr/had moved already/, 'nor to finish a move');
foreach my $db (qw(one two))
{
	sql('postgres', "ALTER DATABASE $db RESET ALL");
	sql($db, 'SET search_path = pg_catalog; DROP OWNED BY mover_test_owner');
	sql('postgres', "ALTER DATABASE $db OWNER TO CURRENT_USER");
}
is(owners(), 'two', 'one owner');
sql('postgres', 'CREATE DATABASE fake OWNER mover_test_owner TEMPLATE template0');
sql('fake', q{SET SESSION AUTHORIZATION mover_test_owner;
	CREATE SCHEMA queue_data;
	CREATE FUNCTION queue_data.planted() RETURNS text LANGUAGE plpgsql AS
		$$ BEGIN RAISE EXCEPTION 'planted'; END $$;
	CREATE VIEW queue_data.server AS SELECT queue_data.planted()::int AS number;
	CREATE VIEW queue_data.shard AS
		SELECT g AS shard, queue_data.planted() AS state, 'a'::text AS peer FROM generate_series(0, 255) AS g});
unlike(move('fake', 'fake'), qr/planted/, 'a schema that is not the extension\'s');
sql('postgres', 'DROP DATABASE fake; DROP ROLE mover_test_owner');

# With the schema of the extension's functions, which is theirs, owners could drop the
# extension, and create tables of the same names with triggers.
foreach my $db (qw(one two))
{
	my $drop = "! psql -X -d '" . $node->connstr($db) . "' -c \"SET lock_timeout = '100ms'\" "
	  . "-c 'DROP EXTENSION queue CASCADE'";

	like(move('two', 'one', hook => [ 'leave', 'before', $drop ]), $moved,
		"the extension is not dropped meanwhile: $db");
	like(move('one', 'two'), $moved, 'back');
}

# Any role may prepare a transaction of any name.
sql('postgres', 'CREATE ROLE mover_test_other');
sql('one', "SET ROLE mover_test_other; BEGIN; SELECT txid_current();
	PREPARE TRANSACTION 'queue_shard_$shard 2 x'");
like(move('two', 'one'), $moved, 'a transaction that another role has prepared');
sql('one', "ROLLBACK PREPARED 'queue_shard_$shard 2 x'; DROP ROLE mover_test_other");
like(move('one', 'two'), $moved, 'back');

# --- Passwords ---

foreach ([ 'one', 'host', "password=secret " . $node->connstr('one') ],
	[ 'an URI', 'URI', 'postgresql://:secret@/one?host=' . $node->host . '&port=' . $node->port ])
{
	my ($what, undef, $conninfo) = @$_;
	my $out;

	run [ $program, $shard, $node->connstr('two'), $conninfo ], '>', \$out, '2>&1';
	like($out, qr/warning: the password of TARGET .* password file.*$moved/s,
		"a password in the arguments: $what");
	unlike($out, qr/secret/, 'is not printed');
	unlike(move('one', 'two'), qr/warning/, 'none');
}

# --- Databases that do not match ---

sql('postgres', q{CREATE DATABASE latin TEMPLATE template0 ENCODING latin1 LOCALE 'C'});
sql('latin', 'CREATE EXTENSION queue; SELECT queue_shard_init(4, 3)');
sql('postgres', q{CREATE DATABASE old TEMPLATE template0 ENCODING utf8 LOCALE 'C'});
sql('old', q{CREATE EXTENSION queue;
	UPDATE pg_extension SET extversion = '1.2' WHERE extname = 'queue'});
my %refused = (
	latin => qr/must have the same encoding/,
	two => qr/source and target are the same server/,
	old => qr/same version of the extension/,
	postgres => qr/same version of the extension/);
like(move('two', $_), $refused{$_}, "refused: $_") foreach sort keys %refused;
like(move('old', 'old'), qr/must be sharded/, 'refused: not sharded');
like(move('two', 'three', options => [ '-w', '0' ]), qr/usage/, 'refused: no time to wait');
is(owners(), 'two', 'nothing has moved');
is(sql('postgres', 'SELECT count(*) FROM pg_prepared_xacts'), 0, 'nothing is left prepared');

$node->stop;
done_testing();
