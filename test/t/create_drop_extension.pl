# CREATE EXTENSION in two databases at once, with roles that may or may not
# exist; DROP EXTENSION leaves the roles and nothing else; and again.

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
$node->safe_psql('postgres', "CREATE DATABASE $_") foreach (qw(one two));

my $roles_query =
  q{SELECT string_agg(rolname, ' ' ORDER BY rolname) FROM pg_roles WHERE rolname ~ '^queue_'};
my $all_roles = 'queue_admin queue_consumer queue_monitor queue_producer';

# Two databases at once.  The second has to wait for the first, which is
# creating the same roles, and continues whether that commits or not.
foreach my $end ('COMMIT', 'ROLLBACK')
{
	is($node->safe_psql('postgres', $roles_query), '', "$end: no role before");

	my $first = $node->background_psql('one', on_error_stop => 0);
	my $second = $node->background_psql('two', on_error_stop => 0);

	$first->query_safe('BEGIN');
	$first->query_safe('CREATE EXTENSION queue');
	$second->query_until(
		qr/started/, q{\echo started
		CREATE EXTENSION queue;
});
	ok( $node->poll_query_until(
			'postgres',
			q{SELECT count(*) = 1 FROM pg_stat_activity
			WHERE datname = 'two' AND wait_event_type = 'Lock'}),
		"$end: the second one waits");
	$first->query_safe($end);
	$second->query('SELECT 1');
	$first->quit;
	$second->quit;

	is($node->safe_psql('postgres', $roles_query),
		$all_roles, "$end: the roles are there");
	is( $node->safe_psql('two',
			q{SELECT queue_push('q', '1') IS NOT NULL}),
		't',
		"$end: the second database works");
	is( $node->safe_psql('one',
			q{SELECT count(*) FROM pg_extension WHERE extname = 'queue'}),
		$end eq 'COMMIT' ? '1' : '0',
		"$end: the first one is as it should be");

	$node->safe_psql($_, 'DROP EXTENSION IF EXISTS queue') foreach (qw(one two));
	$node->safe_psql('postgres',
		'DROP ROLE queue_producer, queue_consumer, queue_admin, queue_monitor');
}

# roles that exist
$node->safe_psql('postgres',
	'CREATE ROLE queue_producer NOLOGIN; CREATE ROLE queue_consumer LOGIN');
my ($ret, $stdout, $stderr) = $node->psql('one', 'CREATE EXTENSION queue');
is($ret, 0, 'roles that exist are used');
like(
	$stderr,
	qr/WARNING:.*"queue_consumer".*log in/,
	'a role that can log in is warned of');
unlike($stderr, qr/queue_producer|queue_admin|queue_monitor/, 'and no other');
is($node->safe_psql('one', $roles_query), $all_roles, 'the missing one is made');
is( $node->safe_psql(
		'one',
		q{SELECT string_agg(rolname, ' ' ORDER BY rolname) FROM pg_roles
		WHERE rolname ~ '^queue_' AND rolcanlogin}),
	'queue_consumer',
	'new ones cannot log in');

# everything but the roles goes
my $objects_query = q{
	SELECT string_agg(what, ' ' ORDER BY what) FROM (
		SELECT 'schema ' || nspname FROM pg_namespace WHERE nspname ~ 'queue'
		UNION ALL
		SELECT 'relation ' || relname FROM pg_class WHERE relname ~ '(queue|claim|delayed|dedup_key)'
		UNION ALL
		SELECT 'function ' || proname FROM pg_proc WHERE proname ~ '^(queue|message|messages|claim)_'
		UNION ALL
		SELECT 'type ' || typname FROM pg_type WHERE typname ~ 'queue'
		UNION ALL
		SELECT 'sequence ' || seqrelid FROM pg_sequence
		UNION ALL
		SELECT 'depend ' || count(*) FROM pg_depend WHERE deptype = 'e' AND refclassid = 'pg_extension'::regclass
	) AS o (what)};
my $warm = $node->background_psql('one', on_error_stop => 0);
is( $warm->query_safe(
		q{SELECT queue_push('q', '"old"') IS NOT NULL;
		SELECT count(*) FROM queue_claim('q', 60, 60)}),
	"t\n1",
	'a session at work');
my $plain = $node->safe_psql('two', $objects_query);
$node->safe_psql('one', 'DROP EXTENSION queue');
is($node->safe_psql('one', $objects_query),
	$plain, 'DROP EXTENSION leaves nothing in the database');
is($node->safe_psql('one', $roles_query), $all_roles, 'but the roles');
$warm->query(q{SELECT queue_push('q', '"nowhere"')});
like($warm->{stderr}, qr/queue_push.*does not exist/,
	'a session that has used it gets an error');
$warm->{stderr} = '';

# and again, in another schema too: the session goes on with the new one
foreach my $schema ('public', 'elsewhere')
{
	$node->safe_psql('one',
		"SET client_min_messages = error; CREATE SCHEMA IF NOT EXISTS $schema;
		CREATE EXTENSION queue SCHEMA $schema");
	is( $warm->query_safe(
			qq{SELECT $schema.queue_exists('q'), $schema.queue_push('q', '"new"') IS NOT NULL;
			SELECT body FROM $schema.queue_claim('q', 60, 60)}),
		qq{f|t\n"new"},
		"$schema: created again, the session sees the new one");
	$node->safe_psql('one', 'DROP EXTENSION queue');
}

# rolled back half way
$node->safe_psql('postgres', 'ALTER ROLE queue_consumer NOLOGIN');
$warm->query_safe('BEGIN');
$warm->query_safe('CREATE EXTENSION queue');
is($warm->query_safe(q{SELECT queue_push('q', '1') IS NOT NULL}),
	't', 'used in the transaction that creates it');
$warm->query_safe('ROLLBACK');
is($warm->query_safe($objects_query), $plain, 'and nothing is left of it');
$warm->query_safe('CREATE EXTENSION queue');
is( $warm->query_safe(
		q{SELECT queue_push('q', '1') IS NOT NULL;
		SELECT count(*) FROM queue_claim('q', 60, 60)}),
	"t\n1",
	'created after all');
$warm->query_safe('BEGIN; DROP EXTENSION queue');
$warm->query_safe('ROLLBACK');
is($warm->query_safe(q{SELECT total FROM queue_stats('q')}),
	'1', 'a drop rolled back');
$warm->quit;

# Another role's schema of that name is not used.
$node->safe_psql('two', 'CREATE ROLE mallory; CREATE SCHEMA queue_data AUTHORIZATION mallory');
($ret, $stdout, $stderr) = $node->psql('two', 'CREATE EXTENSION queue');
isnt($ret, 0, 'a schema queue_data that exists is refused');
like($stderr, qr/schema "queue_data" already exists/, 'and named');

# no right to create it
$node->safe_psql('postgres',
	'CREATE ROLE nobody LOGIN; CREATE DATABASE three OWNER nobody');
($ret, $stdout, $stderr) = $node->psql('three', 'CREATE EXTENSION queue',
	extra_params => [ '-U', 'nobody' ]);
like($stderr, qr/permission denied to create extension/,
	'only a superuser may create it');

# The script needs PL/pgSQL.
$node->safe_psql('three', 'DROP EXTENSION plpgsql');
($ret, $stdout, $stderr) = $node->psql('three', 'CREATE EXTENSION queue');
like($stderr, qr/required extension "plpgsql" is not installed\s+HINT:.*CASCADE/,
	'PL/pgSQL is required');
is( $node->safe_psql('three',
		q{CREATE EXTENSION queue CASCADE; SELECT queue_push('q', '1') IS NOT NULL}),
	't', 'and created with CASCADE');

$node->stop;
done_testing();
