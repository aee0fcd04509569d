# No role that can use a router chooses as whom, or where, a call runs: not by user
# mappings, foreign servers, functions, settings or objects of its own.  Servers let
# the router in, and no other client, by its certificate or by passwords: as application
# roles only.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../perl";

use PoolTest;
use ClusterTest;
use PostgreSQL::Test::Utils;
use ProxyTest;
use Test::More;

start_servers();

my $superuser = $one->safe_psql('postgres', 'SELECT current_user');
foreach my $node ($one, $two)
{
	$node->safe_psql('postgres', q{
		CREATE ROLE eve LOGIN IN ROLE queue_producer, queue_consumer;
		CREATE ROLE keeper LOGIN CREATEROLE;
		GRANT queue_producer TO keeper WITH ADMIN OPTION});
}
$one->safe_psql('router', q{
	GRANT CREATE ON DATABASE router TO eve;
	GRANT CREATE ON SCHEMA public TO eve});

my $connections = join ', ', map { "'" . connect_to($_) . "'" } $one, $two;

# Names of queues of the second server, each for one call
my @names = split /\n/, $one->safe_psql('postgres',
	q{SELECT name FROM (SELECT 'who' || g AS name FROM generate_series(1, 200) AS g) AS n
		WHERE queue_shard(name) % 2 = 0});

# As whom a call runs on its server, or its SQLSTATE.  It is %s in the statements.
sub runs_as
{
	my ($sql, %options) = @_;
	my $name = shift @names;
	my $call = "queue_create('$name')";
	my $result = routed(sprintf($sql || 'SELECT %s', $call), role => 'eve', %options);

	return state_of($result) if $result =~ /ERROR: /;
	return $two->safe_psql('postgres', "SELECT owner FROM queue_data.queue WHERE name = '$name'");
}

# What a superuser does in the router's database
sub as_superuser
{
	my ($sql) = @_;
	return $one->safe_psql('router', $sql);
}

# --- What a superuser's call runs ---

# Objects of a role in a schema before pg_catalog on the search_path, which the owner
# of a database can set: an error where one is used.
as_superuser('CREATE SCHEMA evil AUTHORIZATION eve');
as_superuser(q{SET SESSION AUTHORIZATION eve;
	SET search_path = pg_catalog;
	CREATE FUNCTION evil.planted(anyelement) RETURNS boolean LANGUAGE plpgsql AS
		$$BEGIN RAISE EXCEPTION 'planted: domain over %', pg_typeof($1); END$$;
	DO $do$
	DECLARE
		types text := '{text,text[],integer,integer[],bigint,boolean,name,bytea,numeric,
			timestamptz,interval,double precision,jsonb,xid,oid}';
		r record;
	BEGIN
		FOR r IN SELECT proname, format('evil.%I(%s) RETURNS %s', proname,
				pg_get_function_identity_arguments(p.oid), prorettype::regtype) AS f
			FROM pg_proc AS p WHERE pronamespace = 'pg_catalog'::regnamespace
			AND prokind = 'f' AND NOT proretset AND prorettype::regtype = ANY (types::regtype[])
			AND proargtypes::oid[] <@ types::regtype[]::oid[]
		LOOP
			EXECUTE format('CREATE FUNCTION %s LANGUAGE plpgsql AS %L', r.f,
				format('BEGIN RAISE EXCEPTION USING MESSAGE = %L; END', 'planted: function ' || r.proname));
		END LOOP;
		FOR r IN SELECT o.oid, oprname, oprleft::regtype AS l, oprright::regtype AS r, oprresult::regtype AS t
			FROM pg_operator AS o WHERE oprnamespace = 'pg_catalog'::regnamespace
			AND oprleft = ANY (types::regtype[]) AND oprright = ANY (types::regtype[])
		LOOP
			EXECUTE format('CREATE FUNCTION evil.op%s(%s, %s) RETURNS %s LANGUAGE plpgsql AS %L',
				r.oid, r.l, r.r, r.t,
				format('BEGIN RAISE EXCEPTION USING MESSAGE = %L; END', 'planted: operator ' || r.oprname));
			EXECUTE format('CREATE OPERATOR evil.%s (LEFTARG = %s, RIGHTARG = %s, FUNCTION = evil.op%s)',
				r.oprname, r.l, r.r, r.oid);
		END LOOP;
	END
	$do$});
my $domains = join '', map {
	"CREATE DOMAIN %s.$_ AS pg_catalog.$_ CHECK (evil.planted(NULL::pg_catalog.$_));\n"
} qw(text name jsonb timestamptz bytea oid regprocedure regrole);
as_superuser("SET SESSION AUTHORIZATION eve;\n" . $domains =~ s/%s/evil/gr);

# A call of each function, and some that find something
my $calls = as_superuser(q{SELECT string_agg(format('%s public.%s(%s);',
		CASE p.prokind WHEN 'p' THEN 'CALL' ELSE 'SELECT' END, p.proname,
		(SELECT string_agg('NULL::' || CASE WHEN t::regtype IN ('text', 'jsonb', 'bytea', 'regrole')
			THEN 'pg_catalog.' ELSE '' END || format_type(t, NULL), ', ' ORDER BY i)
		FROM unnest(p.proargtypes::oid[]) WITH ORDINALITY AS u (t, i))), E'\n')
	FROM pg_proc AS p JOIN pg_depend AS d
	ON d.objid = p.oid AND d.classid = 'pg_proc'::regclass AND d.deptype = 'e'
	JOIN pg_extension AS e ON e.oid = d.refobjid AND e.extname = 'queue_proxy'
	WHERE p.pronamespace = 'public'::regnamespace}) . "
SELECT public.queue_push('planted', '1');
SELECT public.queue_claim_any('{planted,$names[0]}');
SELECT public.queue_claim_any();
SELECT public.queue_list();
SELECT public.queue_ready();
CALL public.queue_wait('planted', 0);
CALL public.queue_wait('planted', 10);
CALL public.queue_wait('$names[0]', 10);
BEGIN;
SAVEPOINT s;
CALL public.queue_wait('$names[0]', 10);
ROLLBACK TO s;
SELECT pg_catalog.pg_current_xact_id();
SELECT public.queue_push('planted', '1');
ROLLBACK;
SELECT * FROM queue_proxy.servers();
SET queue.project = 'a';
SET lock_timeout = 1000;
SELECT public.queue_grant('planted', 'app', 'push');
SELECT public.queue_drop('planted');
SELECT queue_proxy.set_servers(ARRAY[$connections]);
";
foreach my $path ('pg_temp', 'evil')
{
	my $set = $path eq 'evil' ? 'SET search_path = evil, pg_catalog;' : $domains =~ s/%s/pg_temp/gr;
	my $used = "SELECT ''::text;\n" . ($path eq 'evil' ? "SELECT pg_catalog.current_user = 'a', upper('a');\n" : '');
	my (undef, undef, $stderr) = $one->psql('router', "$set\n$used\\warn ---\n$calls", on_error_stop => 0);
	my ($before, $after) = split /^---$/m, $stderr, 2;

	like($before, qr/planted: /, "$path: an object that is planted is found");
	is(join("\n", $after =~ /.*(?:planted: |syntax error|(?:type|function|operator|collation) .*does not exist).*/g),
		'', "$path: calls find none");
	cmp_ok(scalar(() = $after =~ /ERROR: /g), '>', 30, "$path: they are made");
}

# --- As whom a call runs ---

is(runs_as(), 'eve', 'a call runs as its caller');

my $mapping = "CREATE USER MAPPING FOR eve SERVER queue OPTIONS (user '$superuser')";
is(state_of(routed($mapping, role => 'eve')), '42501', 'a role may not make its own user mapping');
is(runs_as(), 'eve', 'and is itself still');

# As a dump of 1.1 brings them
as_superuser("GRANT USAGE ON FOREIGN SERVER queue TO eve; $mapping");
is(runs_as(), 'eve', 'a user mapping has no effect');
as_superuser("DROP USER MAPPING FOR eve SERVER queue;
	DROP USER MAPPING IF EXISTS FOR public SERVER queue;
	CREATE USER MAPPING FOR public SERVER queue OPTIONS (user '$superuser')");
is(runs_as(), 'eve', 'nor has one for all roles');
as_superuser('DROP USER MAPPING FOR public SERVER queue;
	REVOKE USAGE ON FOREIGN SERVER queue FROM eve');
is(runs_as(), 'eve', 'and none is needed');

# A session keeps its connections.
my $as_many = join '; ', map { "SET ROLE $_; SELECT queue_create('$names[$_ eq 'eve']')" } 'app', 'eve';
as_superuser($as_many);
is( $two->safe_psql('postgres', "SELECT string_agg(owner::text, ' ' ORDER BY owner::text)
		FROM queue_data.queue WHERE name IN ('$names[0]', '$names[1]')"),
	'app eve', 'a session that changes its role has a connection for each');
splice @names, 0, 2;
as_superuser(q{CREATE FUNCTION public.of_app(q text) RETURNS boolean SECURITY DEFINER
		LANGUAGE sql AS 'SELECT public.queue_create(q)';
	ALTER FUNCTION of_app(text) OWNER TO app});
my ($first, $second) = splice @names, 0, 2;
routed("SELECT of_app('$first'), queue_create('$second')", role => 'eve');
is( $two->safe_psql('postgres', "SELECT string_agg(owner::text, ' ' ORDER BY name = '$second')
		FROM queue_data.queue WHERE name IN ('$first', '$second')"),
	'app eve', 'and so has a function with SECURITY DEFINER');

# A name is no part of the connection string.
my $injection = "x' user='$superuser";
as_superuser(qq{CREATE ROLE "$injection" IN ROLE queue_producer});
like( ($one->psql('router', qq{SET ROLE "$injection"; SELECT queue_create('$names[0]')}))[2],
	qr/role "\Q$injection\E" does not exist/, 'a role with a name that looks like an option');

# --- Where it runs ---

my $elsewhere = "OPTIONS (SET p0 'host=/nowhere')";
is(state_of(routed($_, role => 'eve')), '42501', "refused: $_")
  foreach "ALTER SERVER queue $elsewhere",
  'ALTER SERVER queue OWNER TO eve',
  'DROP SERVER queue CASCADE',
  q{SELECT queue_proxy.set_servers('{host=/nowhere}')},
  q{CREATE FUNCTION f() RETURNS text LANGUAGE plproxy AS $$ CONNECT 'user=postgres'; $$},
  q{CREATE FUNCTION plproxy.get_cluster_partitions(name) RETURNS SETOF text
	LANGUAGE sql AS $$SELECT 'user=postgres'$$},
  'ALTER FUNCTION queue_proxy.shard(text, text) OWNER TO eve',
  'UPDATE pg_foreign_server SET srvoptions = NULL',
  q{CREATE SERVER queue2 FOREIGN DATA WRAPPER plproxy OPTIONS (p0 'host=/nowhere')};
$one->safe_psql('router', 'GRANT pg_write_all_data TO eve');
is(state_of(routed('UPDATE pg_foreign_server SET srvoptions = NULL', role => 'eve')), '42501',
	'nor has pg_write_all_data the right');
$one->safe_psql('router', 'REVOKE pg_write_all_data FROM eve');

# With the right to make foreign servers of PL/Proxy
as_superuser('GRANT USAGE ON FOREIGN DATA WRAPPER plproxy TO eve');
my @clusters = split /\n/, as_superuser(q{SELECT DISTINCT substring(prosrc, $$CLUSTER '(.*?)'$$)
	FROM pg_proc WHERE prolang = (SELECT oid FROM pg_language WHERE lanname = 'plproxy')});
foreach my $cluster (@clusters ? @clusters : '')
{
	like( routed(qq{CREATE SERVER "$cluster" FOREIGN DATA WRAPPER plproxy
			OPTIONS (p0 'host=/nowhere')}, role => 'eve'),
		qr/ERROR:  (?:42601|42710): /, "no server can have the name of the cluster, '$cluster'");
}
as_superuser('DROP SERVER queue CASCADE');
routed(q{CREATE SERVER queue FOREIGN DATA WRAPPER plproxy OPTIONS (p0 'host=/nowhere');
	GRANT USAGE ON FOREIGN SERVER queue TO PUBLIC;
	CREATE USER MAPPING FOR eve SERVER queue}, role => 'eve');
is(runs_as(undef, role => 'app'), '42501', 'the server must be a superuser\'s');
as_superuser("REVOKE USAGE ON FOREIGN DATA WRAPPER plproxy FROM eve CASCADE;
	SELECT queue_proxy.set_servers(ARRAY[$connections])");
is(runs_as(), 'eve', 'set_servers() puts its own in its place');

# --- When the servers change ---

my $name = shift @names;
my $exists = "SELECT queue_exists('$name')";
my $shard = as_superuser("SELECT queue_shard('$name')");
my $reader = $one->background_psql('router', on_error_stop => 0);
$reader->query_safe("SET ROLE eve; BEGIN ISOLATION LEVEL REPEATABLE READ; $exists");
as_superuser("ALTER SERVER queue OPTIONS (SET p$shard 'host=/nowhere')");
# It learns of the change when it locks a table.
$reader->query_safe('SELECT count(*) FROM pg_user_mappings');
is($reader->query_safe($exists), 'f', 'a transaction with an older snapshot uses the older servers');
$reader->query_safe('COMMIT');
$reader->query($exists);
like($reader->{stderr}, qr/PQconnect/, 'and its session the new ones after that');
as_superuser("ALTER SERVER queue OPTIONS (SET p$shard '" . connect_to($two) . "')");
$reader->{stderr} = '';
is($reader->query_safe($exists), 'f', 'as they are at each call');
$reader->quit;

foreach my $wrong ("user=$superuser dbname=postgres", "postgresql://$superuser\@/postgres")
{
	as_superuser("ALTER SERVER queue OPTIONS (SET p0 '$wrong')");
	is(runs_as(), '22023', "a connection string that is refused: $wrong");
	like( ($one->psql('router', "\\set VERBOSITY verbose\nSELECT queue_proxy.set_servers('{\"$wrong\"}')"))[2],
		qr/ERROR:  22023/, 'also by set_servers()');
}
as_superuser('DROP SERVER queue CASCADE');
is(runs_as(), '55000', 'a router that has no servers');
is(state_of(routed("SELECT $_()")), '55000', "which $_ says, too")
  foreach qw(queue_claim_any queue_list queue_ready);
as_superuser("SELECT queue_proxy.set_servers(ARRAY[$connections])");

# --- Servers without trust ---

# On the servers, roles that the router may be are members of routed.  The boss is a
# superuser of the second server.
foreach my $node ($one, $two)
{
	$node->safe_psql('postgres', q{CREATE ROLE routed; GRANT routed TO app, eve;
		SET password_encryption = 'scram-sha-256';
		ALTER ROLE app PASSWORD 'of app'; ALTER ROLE eve PASSWORD 'of eve';
		ALTER ROLE keeper PASSWORD 'of keeper'});
}
$two->safe_psql('postgres', q{CREATE ROLE boss LOGIN SUPERUSER PASSWORD 'of boss'});
# With CREATEROLE on the router, keeper makes a role of that name there.
is(routed('CREATE ROLE boss LOGIN IN ROLE queue_producer', role => 'keeper'), '',
	'a role with CREATEROLE makes a role of the name of a superuser of the servers');

# Both servers let in these over TCP, and their own superusers over the socket.
# Clients of the router log in there, which is not what this is about.
sub let_in
{
	my ($hba, $ident) = @_;

	foreach my $node ($one, $two)
	{
		my $dir = $node->data_dir;

		unlink "$dir/pg_hba.conf", "$dir/pg_ident.conf";
		append_to_file("$dir/pg_hba.conf", "local router all trust\n"
			  . "local all $superuser peer\n$hba\n");
		append_to_file("$dir/pg_ident.conf", $ident || '');
		$node->reload;
	}
	return;
}

# Members of routed call as themselves, and others get this error.
sub only_routed
{
	my ($what, $refused) = @_;

	is(runs_as(undef, role => 'eve'), 'eve', "$what: a call runs as its caller");
	is(runs_as(undef, role => 'app'), 'app', "$what: also that of another role");
	like(routed("SELECT queue_create('$names[0]')", role => $_), $refused, "$what: $_ is refused")
	  foreach $superuser, 'boss', 'keeper';
	return;
}

# An error of a direct connection to the second server
sub direct
{
	my ($options) = @_;
	my (undef, undef, $stderr) = $two->psql('postgres', 'SELECT current_user',
		connstr => 'host=127.0.0.1 dbname=postgres port=' . $two->port . " $options");
	return $stderr;
}

sub use_servers
{
	my ($options) = @_;
	my $strings = join ', ', map {
		"'host=127.0.0.1 dbname=postgres connect_timeout=60 port=" . $_->port . " $options'"
	} $one, $two;

	as_superuser("SELECT queue_proxy.set_servers(ARRAY[$strings])");
	return;
}

# Passwords: the router has those of the roles in a file.
$_->append_conf('postgresql.conf', "listen_addresses = '127.0.0.1'"), $_->restart foreach $one, $two;
let_in('host postgres +routed 127.0.0.1/32 scram-sha-256');
my $files = PostgreSQL::Test::Utils::tempdir();
append_to_file("$files/passwords", join '', map { "127.0.0.1:*:postgres:$_:of $_\n" } qw(app eve keeper boss));
chmod 0600, "$files/passwords" or die $!;
use_servers("passfile=$files/passwords");
only_routed('passwords', qr/XX000: .*no pg_hba.conf entry/);
like(direct("user=app password='of eve'"), qr/password authentication failed/, 'passwords: each role has its own');
like(direct("user=boss password='of boss'"), qr/no pg_hba.conf entry/, 'passwords: nor a superuser');

# The router's certificate
my $pg_config = $ENV{PG_CONFIG} || 'pg_config';
SKIP:
{
	skip 'needs openssl, and a PostgreSQL with it', 9
	  unless `$pg_config --configure` =~ /--with-(?:ssl=)?openssl/
	  && `openssl version 2>&1` =~ /SSL/;

	my $key = '-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2';
	append_to_file("$files/names", "subjectAltName = IP:127.0.0.1\n");
	system_or_bail('sh', '-c', "umask 077; cd '$files' && exec 2>&1 &&
		openssl req -x509 $key -subj /CN=ca -keyout ca.key -out ca.crt &&
		for name in server router other; do
			openssl req -new $key -subj /CN=\$name -keyout \$name.key -out \$name.csr &&
			openssl x509 -req -in \$name.csr -CA ca.crt -CAkey ca.key -CAcreateserial \\
				-days 2 -extfile names -out \$name.crt || exit 1
		done");
	foreach my $node ($one, $two)
	{
		$node->append_conf('postgresql.conf', qq{ssl = on
ssl_ca_file = '$files/ca.crt'
ssl_cert_file = '$files/server.crt'
ssl_key_file = '$files/server.key'
});
	}
	let_in('hostssl postgres +routed 127.0.0.1/32 cert map=router',
		join '', map { "router router $_\n" } 'app', 'eve', 'keeper', 'boss', $superuser);
	my $verify = "sslmode=verify-full sslrootcert=$files/ca.crt";
	my %as = map { $_ => "$verify sslcert=$files/$_.crt sslkey=$files/$_.key" } qw(router other);
	use_servers($as{router});
	only_routed('a certificate', qr/XX000: .*no pg_hba.conf entry/);
	like(direct("$verify user=app password='of app'"), qr/requires a valid client certificate/,
		'a certificate: none without it');
	like(direct("$as{other} user=app"), qr/certificate authentication failed/, 'nor with another one');
	like(direct("$as{router} user=$_"), qr/no pg_hba.conf entry/, "a certificate: not as $_")
	  foreach $superuser, 'boss';

	# A PgBouncer on the router's machine, with a socket that only the router's user
	# can reach, has the certificate instead.
	skip 'pgbouncer is not installed', 5 unless pgbouncer();
	local @PoolTest::clients = qw(app eve);
	local $PoolTest::settings = "server_tls_sslmode = verify-full
server_tls_ca_file = $files/ca.crt
server_tls_cert_file = $files/router.crt
server_tls_key_file = $files/router.key";
	my $pools = join ', ', map { "'" . connect_to($_, start_pool($_, postgres => 5)) . "'" } $one, $two;
	as_superuser("SELECT queue_proxy.set_servers(ARRAY[$pools])");
	only_routed('PgBouncer', qr/XX000: .*FATAL:  .*(?:authentication failed|no such user)/);
	stop_pool();
}

$_->stop foreach $one, $two;
done_testing();
