# A role that owns a queue or is named in its privileges cannot be dropped
# before the queue is handed over or the privilege revoked; a dump never gives
# a queue to another role.
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
$node->safe_psql('postgres', 'CREATE DATABASE source');
my $dir = PostgreSQL::Test::Utils::tempdir();

my $session = $node->background_psql('source', on_error_stop => 0);
$session->query_safe('\set VERBOSITY verbose');
$session->query_safe('SET client_min_messages = warning');
my $stderr = '';

# The last line of the answer as this role, or the SQLSTATE.
sub as
{
	my ($role, $sql) = @_;

	$session->{stderr} = '';
	my $stdout = $session->query("SET ROLE $role; $sql; RESET ROLE");
	$stderr = $session->{stderr};
	$session->{stderr} = '';
	return $1 if $stderr =~ /(?:ERROR|FATAL):\s+(\w{5}):/;
	return (split /\n/, $stdout)[-1] // '';
}

sub value
{
	my ($sql) = @_;
	return as('postgres', $sql);
}
my $superuser = $node->safe_psql('postgres', 'SELECT current_user');
$node->safe_psql('postgres', 'CREATE ROLE postgres SUPERUSER')
  if $superuser ne 'postgres';

my $role = 0;

# A new role that may push and claim
sub new_role
{
	$role++;
	value("CREATE ROLE r$role IN ROLE queue_producer, queue_consumer");
	return "r$role";
}

sub cannot_drop
{
	my ($r, $what) = @_;
	is(value("DROP ROLE $r"), '2BP01', $what);
	return;
}

sub can_drop
{
	my ($r, $what) = @_;
	is(value("DROP ROLE $r"), '', $what);
	return;
}

value('CREATE EXTENSION queue');

#
# Every way to be referred to, and the way out of each
#
my $r = new_role();
is(as($r, q{SELECT queue_create('made', '{"_max_claim_count": 1}')}), 't', 'created');
cannot_drop($r, 'a role that owns a queue');
like($stderr, qr/column role of view queue_data\.queue_roles/,
	'the detail names the view that lists them');
like($stderr,
	qr/HINT: .*queue_set_owner.*\nowner of queue "made"\nowner of queue "made\.dead"/,
	'the hint lists them');
is( value("SELECT string_agg(queue || ' ' || privilege, ', ' ORDER BY queue) FROM queue_data.queue_roles WHERE role = '$r'::regrole"),
	'made owner, made.dead owner', 'so does the view');
is(value("REASSIGN OWNED BY $r TO postgres; DROP OWNED BY $r"), '',
	'REASSIGN OWNED and DROP OWNED leave queues alone');
cannot_drop($r, 'and the role stays');
is(value(q{SELECT queue_drop('made')}), 't', 'one queue is dropped');
cannot_drop($r, 'the other one is left');
is(value(q{SELECT queue_drop('made.dead')}), 't', 'the other one is');
can_drop($r, 'now it can be dropped');

$r = new_role();
is(as($r, q{SELECT queue_push('auto', '1') IS NOT NULL}), 't', 'auto-created');
cannot_drop($r, 'an owner by a push');
is(value(q{SELECT queue_set_owner('auto', 'postgres')}), '', 'handed over');
can_drop($r, 'now it can be dropped');

foreach my $privilege (qw(push claim admin))
{
	$r = new_role();
	value("SELECT queue_grant('auto', '$r', '$privilege')");
	cannot_drop($r, "granted $privilege");
	value("SELECT queue_grant('other', '$r', 'push')")
	  if value(q{SELECT queue_create('other')});
	value("SELECT queue_revoke('auto', '$r', '$privilege')");
	cannot_drop($r, 'named in another queue');
	value("SELECT queue_revoke('other', '$r', 'push')");
	can_drop($r, "$privilege revoked");
}

$r = new_role();
value(q{BEGIN});
is(as($r, q{SELECT queue_create('undone')}), 't', 'created, not committed');
value(q{ROLLBACK});
can_drop($r, 'revoked: it can be dropped');

# in the transaction that removes the last reference, and when it removes many
$r = new_role();
as($r, q{SELECT queue_create('one')});
is(value("BEGIN; SELECT queue_drop('one'); DROP ROLE $r"), 't', 'in one transaction');
is(value("COMMIT; SELECT count(*) FROM pg_roles WHERE rolname = '$r'"), '0', 'dropped');
$r = new_role();
is( as($r, q{SELECT count(queue_create('many/' || i)) FROM generate_series(1, 250) i;
		SELECT count(queue_drop('many/' || i)) FROM generate_series(1, 249) i}),
	'249', 'many queues dropped');
cannot_drop($r, 'but one');
is( as($r, q{SELECT count(queue_create('many/' || i)) FROM generate_series(1, 249) i;
		SELECT count(queue_drop('many/' || i)) FROM generate_series(1, 250) i}),
	'250', 'all of them');
can_drop($r, 'now it can be dropped');

$r = new_role();
is(as($r, q{SELECT queue_create('mine')}), 't', 'created');
value(q{BEGIN; SELECT queue_drop('mine'); ROLLBACK});
cannot_drop($r, 'the drop was rolled back');

# One transaction removes the last reference while another one adds one.
my $other = $node->background_psql('source', on_error_stop => 0);
$other->query_safe("BEGIN; SET ROLE $r; SELECT queue_create('mine/2')");
is(value(q{SELECT queue_drop('mine')}), 't', 'the last committed one is dropped');
$other->query_safe('COMMIT');
cannot_drop($r, 'the new one counts');
value(q{BEGIN; SELECT queue_drop('mine/2')});
$other->query_safe("SELECT queue_create('mine/3')");
value(q{COMMIT});
cannot_drop($r, 'the other way round as well');
is(value(q{SELECT queue_drop('mine/3')}), 't', 'dropped');
can_drop($r, 'now it can be dropped');

# DROP ROLE waits for a transaction that refers to the role for the first time.
$r = new_role();
$other->query_safe("BEGIN; SET ROLE $r; SELECT queue_create('late')");
is(value("SET lock_timeout = '100ms'; DROP ROLE $r"), '55P03', 'it waits');
$other->query_safe('COMMIT; RESET ROLE');
value('RESET lock_timeout');
cannot_drop($r, 'and is refused');
value(q{SELECT queue_drop('late')});

#
# queue_set_owner
#
my $team = new_role();
my $owner = new_role();
value("GRANT $team TO $owner; GRANT queue_admin TO $r");
is( as($owner, q{SELECT queue_create('q', '{"_max_claim_count": 1}');
		SELECT queue_update('q.dead', '{"_max_claim_count": 1}') IS NOT NULL}),
	't', 'a queue with dead letters');
is(as($r, "SELECT queue_set_owner('q', '$team')"), '42501', 'not by queue_admin');
is(as($team, "SELECT queue_set_owner('q', '$team')"), '42501', 'not by another');
value("SELECT queue_grant('q', '$team', 'admin')");
is(as($team, "SELECT queue_set_owner('q', '$team')"), '42501',
	'not by a role with admin');
is(as($owner, "SELECT queue_set_owner('q', '$r')"), '42501',
	'not to a role that the owner is no member of');
is(as($owner, "SELECT queue_set_owner('q', '4242')"), '42704', 'nor to none');
is(as($owner, "SELECT queue_set_owner('q', NULL)"), '22004', 'nor to NULL');
is(as($owner, "SELECT queue_set_owner('nowhere', '$team')"), '42704', 'unknown queue');
is(as($owner, "SELECT queue_set_owner('q.dead', '$team')"), '55000',
	'a dead letter queue goes with its source');
is(as($owner, "SELECT queue_set_owner('q', '$team')"), '', 'to a team');
is( value(q{SELECT string_agg(owner::text, ',') FROM queue_data.queue WHERE name ~ '^q'}),
	"$team,$team,$team", 'with all dead letter queues that were created for it');
can_drop($owner, 'the former owner is free');
is(as($team, q{SELECT queue_update('q', '{"colour": "red"}') IS NOT NULL}), 't',
	'and the new one owns it');
is(value(q{SELECT queue_drop('q')}), 't', 'the source is dropped');
is(value(q{SELECT queue_set_owner('q.dead', 'postgres')}),
	'', 'without it a dead letter queue can be handed over');

#
# Dumps
#
my $narrow = new_role();
value("SELECT queue_set_owner('other', '$team'); SELECT queue_grant('other', '$narrow', 'claim')");
value(q{CREATE FUNCTION work(jsonb) RETURNS boolean LANGUAGE sql AS 'SELECT true'});
value(q{SELECT job_handler('other', 'work(jsonb)')});
value(q{CREATE ROLE dumper LOGIN IN ROLE pg_read_all_data});
$node->command_ok(
	[ 'pg_dump', '-U', 'dumper', '-Fc', '-f', "$dir/copy.dump", $node->connstr('source') ],
	'dumped with COPY, by a role that is no superuser');
$node->command_ok(
	[ 'pg_dump', '--rows-per-insert=10', '-f', "$dir/inserts.sql", $node->connstr('source') ],
	'dumped with INSERT');
$node->safe_psql('postgres', 'CREATE DATABASE copied; CREATE DATABASE inserted');
$node->command_ok(
	[ 'pg_restore', '--exit-on-error', '-d', $node->connstr('copied'), "$dir/copy.dump" ],
	'restored from COPY');
$node->command_ok(
	[ 'psql', '-X', '-q', '-v', 'ON_ERROR_STOP=1', '-o', "$dir/psql.out", '-d',
		$node->connstr('inserted'), '-f', "$dir/inserts.sql" ],
	'restored from INSERT');
is( $node->safe_psql($_,
		q{SELECT string_agg(role::text || ' ' || privilege, ', ' ORDER BY privilege)
		FROM queue_data.queue_roles WHERE queue = 'other'}),
	"$narrow claim, $team owner", "$_: the same roles")
  foreach (qw(copied inserted));

# A role that is gone, as after a loss of the record: its number is not dumped.
value(q{UPDATE queue_data.handler SET role = '4242'});
value(q{UPDATE queue_data.queue SET owner = '4242' WHERE name = 'other'});
$node->command_fails_like(
	[ 'pg_dump', '-f', "$dir/gone.sql", $node->connstr('source') ],
	qr/queue "other" refers to role 4242, which does not exist/,
	'an owner that does not exist: no dump');
is(value("SELECT queue_set_owner('other', '$team')"), '', 'a superuser hands it over');
value("UPDATE queue_data.queue SET push_roles = ARRAY['4242', '$team']::regrole[] WHERE name = 'other'");
$node->command_fails_like(
	[ 'pg_dump', '-f', "$dir/gone.sql", $node->connstr('source') ],
	qr/queue "other" refers to role 4242/,
	'a role that was granted push does not exist: no dump');
is(value(q{SELECT queue_revoke('other', '4242', 'push')}), '', 'revoked');
$node->command_ok(
	[ 'pg_dump', '-f', "$dir/gone.sql", $node->connstr('source') ],
	'then there is one');
unlike(slurp_file("$dir/gone.sql"), qr/\b4242\b/,
	'without the handler of a role that does not exist');

# The roles are recorded in what was restored.
$_->quit foreach ($session, $other);
$node->safe_psql('postgres', 'DROP DATABASE source');
foreach my $name (qw(copied inserted))
{
	$session = $node->background_psql($name, on_error_stop => 0);
	$session->query_safe('\set VERBOSITY verbose');
	$session->query_safe('SET client_min_messages = warning');
	cannot_drop($_, "$name: $_") foreach ($team, $narrow);

	# pg_upgrade does not keep the entries.
	value(q{SET allow_system_table_mods = on;
		DELETE FROM pg_shdepend WHERE objid = 'queue_data.queue_roles'::regclass});
	if ($name eq 'copied')
	{
		value(q{SELECT queue_data.record_roles()});
	}
	else
	{
		as($team, q{SELECT queue_create('any')});
	}
	cannot_drop($_, "$name, recorded anew: $_") foreach ($team, $narrow);
	is( value(q{SELECT count(*) FROM pg_shdepend WHERE objid = 'queue_data.queue_roles'::regclass}),
		value(q{SELECT count(DISTINCT role) FROM queue_data.queue_roles WHERE role::oid >= 16384}),
		"$name: one entry for each role");
	value('DROP EXTENSION queue CASCADE');
	$session->quit;
}
is( $node->safe_psql('copied',
		q{SELECT count(*) FROM pg_shdepend WHERE deptype = 'a' AND classid = 'pg_class'::regclass}),
	$node->safe_psql('template1',
		q{SELECT count(*) FROM pg_shdepend WHERE deptype = 'a' AND classid = 'pg_class'::regclass}),
	'DROP EXTENSION leaves no entry');
is( ($node->psql('postgres', "DROP ROLE $team, $narrow"))[0],
	0, 'and the roles can be dropped');

$node->stop;
done_testing();
