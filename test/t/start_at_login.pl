# queue_start_at_login(): the first connection after a restart starts the worker,
# whoever connects and whatever that role may do, and no login ever fails because of
# it.  Before PostgreSQL 17 it is an error with a hint.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../perl";

use ClusterTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = PostgreSQL::Test::Cluster->new('main');
$node->init(allows_streaming => 1);
$node->append_conf(
	'postgresql.conf', q{
shared_preload_libraries = ''
autovacuum = off
});
$node->start;
$node->safe_psql('postgres', "CREATE DATABASE $_") foreach qw(one two);
sql('CREATE EXTENSION queue');

my $event_triggers = q{SELECT count(*) FROM pg_event_trigger};
my $workers =
  q{SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'queue worker' AND datname = 'one'};
my $launchers =
  q{SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'queue launcher'};

# What a query returns in database "one", of which the tests are
sub sql
{
	my ($sql, %options) = @_;
	my $on = $options{on} // $node;
	return $on->safe_psql($options{database} // 'one', $sql, %options);
}

sub error_of
{
	my ($sql) = @_;
	my ($ret, $stdout, $stderr) = $node->psql('one', $sql,
		extra_params => [ '-v', 'VERBOSITY=verbose' ]);
	return $stderr;
}

# Queries of database "postgres", which has no login trigger
sub is_after
{
	my ($query, $expected, $what, $on) = @_;
	ok(($on // $node)->poll_query_until('postgres', $query, $expected), $what);
	return;
}

# After a restart nothing runs; then this one connection brings the worker.
sub starts_by
{
	my ($what, %options) = @_;
	$node->restart;
	is(sql($launchers, database => 'postgres'), '0', "$what: nothing runs before");
	my ($ret, $stdout, $stderr) = $node->psql('one', 'SELECT 1', %options);
	is("$ret|$stdout|$stderr", '0|1|', "$what: SELECT 1");
	is_after($workers, '1', "$what: the worker is there");
	return;
}

sql(q{
	CREATE ROLE stranger LOGIN;
	CREATE ROLE boss;
	GRANT queue_admin TO boss});
like(error_of('SET ROLE boss; SELECT queue_start_at_login()'),
	qr/^.*ERROR:  42501: .*superuser/m, 'not for queue_admin');
like(error_of('SET ROLE stranger; SELECT queue_start_at_login()'),
	qr/^.*ERROR:  42501: permission denied for function/m, 'not for a stranger');
if ($node->pg_version < 17)
{
	my $error = error_of('SELECT queue_start_at_login()');
	like($error, qr/^.*ERROR:  0A000: .*PostgreSQL 17/m, 'no login event triggers');
	like($error, qr/^HINT: .*shared_preload_libraries/m, 'the hint says what to do');
	is(sql($event_triggers), '0', 'there is no event trigger');
	like(
		error_of('CREATE EVENT TRIGGER queue_start_at_login ON login EXECUTE FUNCTION queue_data.start_at_login()'),
		qr/unrecognized event name "login"/, 'nor does one of a dump work');
	$node->stop;
	done_testing();
	exit;
}

# --- On, off, and on again ---

like(error_of('SELECT queue_start_at_login(NULL)'), qr/ERROR:  22004: .*"enable"/, 'null');
like(error_of('BEGIN READ ONLY; SELECT queue_start_at_login()'), qr/ERROR:  25006: /,
	'a read-only transaction');
is(error_of('SELECT queue_start_at_login(false)'), '', 'off, when it is off');
is(error_of('SELECT queue_start_at_login()') . error_of('SELECT queue_start_at_login(true)'),
	'', 'on, twice');
is(sql('SELECT evtname, evtevent, evtfoid::regproc FROM pg_event_trigger'),
	'queue_start_at_login|login|queue_data.start_at_login', 'one event trigger');
is(error_of('SELECT queue_start_at_login(false)'), '', 'off');
is(sql($event_triggers), '0', 'there is no event trigger');
sql('SELECT queue_start_at_login()');
foreach my $state ('DISABLE', 'ENABLE REPLICA')
{
	sql("ALTER EVENT TRIGGER queue_start_at_login $state; SELECT queue_start_at_login()");
	is(sql('SELECT evtenabled FROM pg_event_trigger'), 'O', "on, after $state");
}

# --- The first connection ---

starts_by('superuser');
is(sql($launchers), '1', 'there is one launcher');

# The worker of a database that the launcher does not know yet
sql('CREATE EXTENSION queue; SELECT queue_start_at_login()', database => 'two');

my $as = $node->connstr('one') . ' user=stranger';
starts_by('a role without privileges', connstr => $as);
starts_by('with nothing in its search_path, read-only, serializable',
	connstr => "$as options='-c search_path= -c default_transaction_read_only=on "
	  . "-c default_transaction_isolation=serializable'");

# What the role has planted is not called.
sql(q{
	CREATE SCHEMA AUTHORIZATION stranger;
	SET ROLE stranger;
	CREATE TABLE stranger.called (who text);
	CREATE FUNCTION stranger.pg_is_in_recovery() RETURNS boolean LANGUAGE sql AS
		'INSERT INTO stranger.called VALUES (current_user) RETURNING true'});
starts_by('with functions of its own first',
	connstr => "$as options='-c search_path=stranger,pg_catalog'");
is(sql('SELECT count(*) FROM stranger.called'), '0', 'which are not called');
like(error_of('SET ROLE stranger; SELECT queue_data.start_worker()'),
	qr/ERROR:  42501/, 'a role cannot call it itself');

# --- No login fails ---

# The file of the library is missing; then there is no such function in it.
foreach my $broken (
	[ q{probin = '$libdir/no_such_library'}, qr/could not access file/ ],
	[ q{prosrc = 'no_such_function'}, qr/could not find function/ ])
{
	my ($change, $reason) = @$broken;
	my $where = q{WHERE oid = 'queue_data.start_worker()'::regprocedure};
	my $before = sql("SELECT prosrc || ' ' || probin FROM pg_proc $where");
	my ($prosrc, $probin) = split / /, $before;

	sql("UPDATE pg_proc SET $change $where");
	$node->restart;
	my $offset = -s $node->logfile;
	my ($ret, $stdout, $stderr) = $node->psql('one', 'SELECT 1', connstr => $as);
	is("$ret|$stdout|$stderr", '0|1|', "$change: SELECT 1");
	ok($node->wait_for_log(
			qr/LOG:  no background process for queues could be started at a login: $reason/,
			$offset), "$change: the log says why");
	sql("UPDATE pg_proc SET prosrc = '$prosrc', probin = '$probin' $where");
}
starts_by('as it was');

# --- A standby ---

$node->backup('base');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($node, 'base', has_streaming => 1);
$standby->start;
is(sql(q{SELECT count(*) FROM pg_settings WHERE name = 'queue.runners'}, on => $standby),
	'0', 'a login on a standby does not even load the library');
is(sql(q{SELECT count(*) FROM pg_settings WHERE name = 'queue.runners'}), '1',
	'one on the primary does');
$standby->promote;
is(sql('SELECT 1', on => $standby), '1', 'a login after the promotion');
is_after($workers, '1', 'starts the worker', $standby);
$standby->stop;

# --- Dump and restore ---

my $dump = $node->basedir . '/one.sql';
$node->command_ok([ 'pg_dump', '-f', $dump, '-d', $node->connstr('one') ], 'pg_dump');
like(slurp_file($dump),
	qr/^CREATE EXTENSION .*queue.*^CREATE EVENT TRIGGER queue_start_at_login ON login/ms,
	'has the event trigger, after the extension');
sql('CREATE DATABASE restored TEMPLATE template0', database => 'postgres');
$node->command_ok(
	[ 'psql', '-Xq', '-v', 'ON_ERROR_STOP=1', '-f', $dump, '-d', $node->connstr('restored') ],
	'restore');
is(sql($event_triggers, database => 'restored'), '1', 'the restored database has it, too');

# --- DROP EXTENSION ---

like(error_of('DROP EXTENSION queue'),
	qr/ERROR:  2BP01: .*event trigger queue_start_at_login depends on.*^HINT: .*CASCADE/ms,
	'DROP EXTENSION names it');
is(error_of('SELECT queue_start_at_login(false)') . error_of('DROP EXTENSION queue'),
	'', 'DROP EXTENSION without it');
sql('SET client_min_messages = warning; DROP EXTENSION queue CASCADE', database => 'two');
foreach my $database (qw(one two))
{
	is(sql('SELECT 1', database => $database, connstr => $node->connstr($database) . ' user=stranger'),
		'1', "a login to $database after it");
	is(sql($event_triggers, database => $database), '0', "nothing is left in $database");
}

my $log = slurp_file($node->logfile) . slurp_file($standby->logfile);
unlike($log, qr/(?:PANIC|TRAP|WARNING|FATAL):  (?!terminating|the database system|could not receive data from WAL|could not send|could not connect)/,
	'nothing else in the log');
$node->stop;

done_testing();
