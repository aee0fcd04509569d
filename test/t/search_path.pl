# The functions use the right tables, types, functions and operators under
# any search_path, and the extension lives in any schema.
#
# test/check -q runs it, too.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../perl";

use ClusterTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = PostgreSQL::Test::Cluster->new('main');
$node->init;
$node->append_conf('postgresql.conf', 'autovacuum = off');
$node->start;

# A schema that has what an attacker would put there: each function and
# operator leaves a trace when it is called.
sub make_trap
{
	my ($db, $schema) = @_;
	my $sql = qq{
		CREATE SCHEMA $schema;
		CREATE SEQUENCE $schema.fell_for_it;
		GRANT ALL ON SEQUENCE $schema.fell_for_it TO PUBLIC;
		GRANT USAGE ON SCHEMA $schema TO PUBLIC;
		CREATE TABLE $schema.queue (id integer, name text);
		CREATE TABLE $schema.delayed (id integer);
		CREATE TABLE $schema.message (id integer);
		CREATE TABLE $schema.message_0 (id integer);
		CREATE TABLE $schema.dedup_key (id integer);
		CREATE TABLE $schema.secret (key integer);
		CREATE TABLE $schema.ring (active integer);
		CREATE TABLE $schema.pg_class (LIKE pg_catalog.pg_class);
		CREATE TABLE $schema.pg_roles (rolname name, rolcanlogin boolean);
		CREATE SEQUENCE $schema.queue_id;
		CREATE SEQUENCE $schema.message_id;
		CREATE DOMAIN $schema.jsonb AS text;
		CREATE DOMAIN $schema.regrole AS text;
		CREATE DOMAIN $schema.timestamptz AS text;
	};
	my %function = (
		'now()' => 'timestamptz',
		'clock_timestamp()' => 'timestamptz',
		'nextval(regclass)' => 'int8',
		'format(text, name)' => 'text',
		'format(text, integer, text)' => 'text',
		'to_jsonb(text)' => 'jsonb',
		'current_setting(text)' => 'text',
		'regexp_replace(text, text, text)' => 'text',
		'generate_series(integer, integer)' => 'int4',
		'has_function_privilege(text, text, text)' => 'bool');
	foreach my $signature (sort keys %function)
	{
		my $type = $function{$signature};
		$sql .= qq{
			CREATE FUNCTION $schema.$signature RETURNS pg_catalog.$type LANGUAGE sql
			SET search_path = pg_catalog AS
			'SELECT nextval(''$schema.fell_for_it''); SELECT NULL::$type';};
	}
	foreach my $type (qw(int2 int4 int8 text name jsonb bool oid timestamptz uuid))
	{
		$sql .= qq{
			CREATE FUNCTION $schema.trap(pg_catalog.$type, pg_catalog.$type) RETURNS boolean
			LANGUAGE sql SET search_path = pg_catalog AS
			'SELECT nextval(''$schema.fell_for_it''); SELECT false';};
		foreach my $operator (qw(= <> > <= ~))
		{
			$sql .= qq{
			CREATE OPERATOR $schema.$operator (FUNCTION = $schema.trap,
				LEFTARG = pg_catalog.$type, RIGHTARG = pg_catalog.$type);};
		}
	}
	$node->safe_psql($db, $sql);
	return;
}

sub caught
{
	my ($db, $schema) = @_;
	return $node->safe_psql($db,
		"SELECT is_called FROM $schema.fell_for_it");
}

# Everything that the extension does, called by full names; what is shown is
# computed outside the reach of the search_path.
sub cycle
{
	my ($db, $schema, $path, $setup) = @_;
	my $out = $node->safe_psql(
		$db, qq{
		$setup
		SET search_path = $path;
		SELECT $schema.queue_create('q', '{"_max_claim_count": 1}');
		SELECT $schema.queue_update('q', '{"a": 1}');
		SELECT $schema.queue_set_metadata('q', '{"_max_claim_count": 1}');
		SELECT name, paused FROM $schema.queue_list(pattern => '^q');
		SELECT pg_catalog.cardinality($schema.queue_push_batch('q', ARRAY['"m1"', '"m2"']::pg_catalog.jsonb[]));
		SELECT $schema.queue_push('q', '"m3"', dedup_key => 'k') IS NULL;
		SELECT $schema.queue_push('q', '"m3"', dedup_key => 'k') IS NULL;
		SELECT pg_catalog.cardinality($schema.queue_post('q', '[{"body": "m4", "delay": 100}]'));
		SELECT free, claimed, delayed, total FROM $schema.queue_stats('q');
		SELECT body, claim_count FROM $schema.queue_messages('q');
		SELECT body, claim_count FROM $schema.queue_claim('q', 60, 60, 2);
		SELECT $schema.claim_release('q', claim_id, failed => true)
			FROM $schema.queue_messages('q', include_claimed => true) LIMIT 1;
		SELECT body, reason FROM $schema.queue_dead_letters('q.dead');
		SELECT $schema.queue_redrive('q.dead');
		SELECT body FROM $schema.queue_claim_any(NULL, 60, 60, 1);
		SELECT body FROM $schema.queue_pop('q');
		SELECT $schema.queue_pause('q'), $schema.queue_resume('q'), $schema.queue_exists('q');
		SELECT $schema.queue_grant('q', 'queue_admin', 'push');
		SELECT $schema.queue_revoke('q', 'queue_admin', 'push');
		SELECT $schema.queue_purge('q');
		SELECT $schema.queue_drop('q'), $schema.queue_drop('q.dead')});
	return $out;
}

my $expected = join("\n",
	't', '{"a": 1, "_max_claim_count": 1}', '{"_max_claim_count": 1}',
	'q|f', 'q.dead|f', '2', 'f', 't', '1', '3|0|1|4', '"m1"|0', '"m2"|0', '"m3"|0',
	'"m1"|1', '"m2"|1', '2', '"m1"|max_claim_count', '"m2"|max_claim_count',
	'2', '"m3"', '"m1"', 't|t|t', '', '', '3', 't|t');

make_trap('postgres', 'evil');
$node->safe_psql(
	'postgres', q{
	CREATE EXTENSION queue;
	CREATE ROLE worker IN ROLE queue_producer, queue_consumer;
});
my $worker = 'SET ROLE worker;';
foreach my $path ('evil, public', 'evil, pg_catalog', 'evil', q{''},
	'evil, pg_temp, pg_catalog, public')
{
	is(cycle('postgres', 'public', $path, ''),
		$expected, "superuser, search_path $path");
	is(cycle('postgres', 'public', $path, $worker),
		$expected, "worker, search_path $path");
}

# temporary objects come before everything else
my $temp = q{
	CREATE TEMP TABLE queue (id integer);
	CREATE TEMP TABLE message_0 (id integer);
	CREATE TEMP TABLE delayed (id integer);
	CREATE TYPE pg_temp.queue_message AS (a integer);
	CREATE DOMAIN pg_temp.jsonb AS text;};
is(cycle('postgres', 'public', 'public', $temp),
	$expected, 'temporary objects of the same names');
is( cycle('postgres', 'public', 'pg_temp, evil, public', "$worker $temp"),
	$expected, 'temporary objects of the same names, worker');
is(caught('postgres', 'evil'), 'f', 'no trap was called');

# created where the trap is, with the trap in the path
$node->safe_psql('postgres', 'CREATE DATABASE other');
make_trap('other', 'evil');
$node->safe_psql('other',
	'SET search_path = evil, pg_catalog; CREATE EXTENSION queue SCHEMA evil');
is(cycle('other', 'evil', 'pg_catalog', ''),
	$expected, 'created in the schema of the trap');
is(cycle('other', 'evil', 'evil, pg_catalog', ''),
	$expected, 'and with the trap in front');
is(caught('other', 'evil'), 'f', 'no trap was called there');

# in a schema of its own, with a name that needs quotes
$node->safe_psql('postgres', 'CREATE DATABASE third');
$node->safe_psql('third',
	'CREATE SCHEMA "Odd ""schema"; CREATE EXTENSION queue SCHEMA "Odd ""schema"');
$node->safe_psql('third', 'GRANT USAGE ON SCHEMA "Odd ""schema" TO worker');
foreach my $path ('public', '"Odd ""schema"', q{''})
{
	is(cycle('third', '"Odd ""schema"', $path, $worker),
		$expected, "extension elsewhere, search_path $path");
}
is( $node->safe_psql(
		'third',
		q{SELECT count(*) FROM pg_proc WHERE pronamespace = 'public'::regnamespace}),
	'0',
	'nothing of it is in public');

$node->stop;
done_testing();
