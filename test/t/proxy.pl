# The router, queue_proxy: it has the functions of queue, as they are there; calls run
# on the server of the queue as their caller, with the settings of the session;
# errors are those of the server; what happens when a server does not answer; what
# does not work raises an error.

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

my $here = queue_on('one', 'q');
my $there = queue_on('two', 'q');
my $there2 = queue_on('two', 'q', 2);

# --- The functions ---

$one->safe_psql('postgres', q{CREATE DATABASE plain});
$one->safe_psql('plain', q{CREATE EXTENSION queue});
# Without the arguments at the end; a function's name is a text
my $signatures = q{SELECT p.proname, p.prokind, p.proretset,
	regexp_replace(pg_get_function_arguments(p.oid),
		'(, |^)(IN )?project text DEFAULT NULL::text, (IN )?client_id text DEFAULT NULL::text$', ''),
	pg_get_function_result(p.oid)
	FROM pg_proc AS p JOIN pg_depend AS d
	ON d.objid = p.oid AND d.classid = 'pg_proc'::regclass AND d.deptype = 'e'
	JOIN pg_extension AS e ON e.oid = d.refobjid AND e.extname ~ '^queue'
	WHERE p.pronamespace = 'public'::regnamespace
	ORDER BY p.proname COLLATE "C"};
is( $one->safe_psql('router', $signatures),
	$one->safe_psql('plain', $signatures)
	  =~ s/handler regprocedure/handler text/r
	  =~ s/teardown regprocedure DEFAULT NULL::regprocedure/teardown text DEFAULT NULL::text/r,
	'the same names, arguments and results');
my $comments = q{SELECT p.proname, obj_description(p.oid, 'pg_proc') FROM pg_proc AS p
	WHERE p.pronamespace = 'public'::regnamespace
	ORDER BY p.proname COLLATE "C"};
my %comments = map { split /\|/, $_, 2 } split /\n/, $one->safe_psql('plain', $comments);
foreach (split /\n/, $one->safe_psql('router', $comments))
{
	my ($name, $comment) = split /\|/, $_, 2;
	next unless exists $comments{$name};
	ok($comment eq $comments{$name}
		  || $comment =~ /^as \Q$name\E\(\) of the extension queue,|^raises an error, 0A000/,
		"$name: the same comment, or one that leads to it");
}
is( $one->safe_psql('router', q{
		SELECT count(*) FROM pg_proc AS p JOIN pg_depend AS d
		ON d.objid = p.oid AND d.classid = 'pg_proc'::regclass AND d.deptype = 'e'
		JOIN pg_extension AS e ON e.oid = d.refobjid AND e.extname = 'queue_proxy'
		WHERE EXISTS (SELECT FROM aclexplode(coalesce(proacl, acldefault('f', proowner)))
			WHERE grantee = 0)}),
	0, 'PUBLIC may call none of them');

# --- Where calls go ---

my $names = join ',', map { ("q$_", "q$_.dead", "a/$_.dead.dead") } 1 .. 200;
my $shards = qq{SELECT string_agg(queue_shard(q, 'Größe')::text || ' ' || queue_shard(q), ','
	ORDER BY n) FROM unnest('{$names}'::text[]) WITH ORDINALITY AS u (q, n)};
is($one->safe_psql('router', $shards), $one->safe_psql('plain', $shards),
	'queue_shard is that of queue');

routed(qq{SELECT queue_push('$_', to_jsonb('$_'::text))}) foreach $here, $there, $there2;
is($one->safe_psql('postgres', 'SELECT name FROM queue_list()'), $here, 'a queue here');
is($two->safe_psql('postgres', 'SELECT name FROM queue_list()'),
	join("\n", sort $there, $there2), 'queues there');
is(routed('SELECT name FROM queue_list()'),
	join("\n", sort $here, $there, $there2), 'a list of all');
is(routed('SELECT name FROM queue_list(NULL, 2)'),
	join("\n", (sort $here, $there, $there2)[0, 1]), 'the first of all');
is(routed('SELECT r FROM queue_ready() AS r ORDER BY r'),
	join("\n", sort $here, $there, $there2), 'queues that are ready');
is( routed(qq{SELECT claim_id FROM queue_claim('$there', 60) \\gset
		SELECT claim_renew('$there', :'claim_id', 60) > now(), claim_complete('$there', :'claim_id')}),
	't|1', 'claim, renew, complete');
is( routed(qq{SELECT queue FROM queue_claim_any(ARRAY['$there', '$there2', '$here']);
		SELECT queue FROM queue_claim_any(ARRAY['$there', '$there2', '$here']);
		SELECT queue FROM queue_claim_any(ARRAY['$there', '$there2', '$here']);
		SELECT count(*) FROM queue_claim_any()})
	  =~ s/(.*)\n(.*)\n/join "\n", (sort $1, $2), ''/er,
	join("\n", (sort $here, $there2), 0), 'queue_claim_any takes from all');
is( state_of(routed($_)), '22004', "an element of an array that is NULL: $_")
  foreach 'SELECT queue_claim_any(ARRAY[NULL])',
  "SELECT queue_claim_any(ARRAY['$here', '$there', NULL])";

# Messages that name their queues, which have to be on one server
foreach my $queues ([$here], [ $there, $there2 ])
{
	my $messages = join ',', map { qq({"queue": "$_", "body": 1}) } @$queues;
	my $popped = join ' + ', map { "(SELECT count(*) FROM queue_pop('$_'))" } @$queues;

	is(routed("SELECT cardinality(queue_post(NULL, '[$messages]')); SELECT $popped"),
		@$queues . "\n" . @$queues, "queue_post to @$queues");
}
foreach my $call (
	qq{queue_post(NULL, '[{"queue": "$there", "body": 1}, {"queue": "$here", "body": 2}]')},
	qq{queue_step('$there', push => '[{"body": 1}, {"queue": "$here", "body": 2}]')})
{
	is(state_of(routed("SELECT $call")), 'QU010', "to two servers: $call");
}
is(state_of(routed("SELECT queue_post(NULL, '$_')")), '22023', "queue_post: $_")
  foreach '{"queue": 1}', '1', '[{"queue": 1}]', '["queue"]';
is(routed('SELECT queue_ready()'), '', 'they have pushed nothing');

# --- Whose calls they are, and with what settings ---

is( $two->safe_psql('postgres',
		qq{SELECT owner FROM queue_data.queue WHERE name = '$there'}),
	'app', 'a call runs as the calling role');
my $error = routed("SELECT queue_push('$there', '1')", role => 'nobody');
is(state_of($error), '42501', 'a role without privileges on the router');
$one->safe_psql('router',
	'GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA public, queue_proxy, plproxy TO nobody;
	GRANT USAGE ON SCHEMA queue_proxy, plproxy TO nobody');
$error = routed("SELECT queue_push('$there', '1')", role => 'nobody');
is(state_of($error), '42501', 'a role without privileges on the server');
unlike($error, qr/REMOTE/, 'the error is as it is there');
is( $one->safe_psql('router', qq{SET ROLE app; SELECT queue_create('set/$there')})
	  . $one->safe_psql('postgres', qq{SELECT owner FROM queue_data.queue WHERE name = 'set/$there'})
	  . $two->safe_psql('postgres', qq{SELECT owner FROM queue_data.queue WHERE name = 'set/$there'}),
	'tapp', 'SET ROLE');

my $of_shop = 'SELECT name FROM queue_list()';
routed(qq{SET queue.project = 'shop'; SELECT queue_push(q, '1') FROM unnest('{a,b,c,d}'::text[]) AS q});
is(routed("SET queue.project = 'shop'; $of_shop"), "a\nb\nc\nd", 'a project');
is(routed($of_shop =~ s/\(\)/(project => 'shop')/r),
	"a\nb\nc\nd", 'a project that is an argument');
is( join(' ', sort map { split /\n/, $_->safe_psql('postgres', "SET queue.project = 'shop'; $of_shop") } $one, $two),
	'a b c d', 'on its servers');
is( routed(qq{SET queue.client_id = 'me'; SELECT queue_push('echo', '1') > 0;
		SELECT count(*) FROM queue_messages('echo');
		SELECT count(*) FROM queue_messages('echo', client_id => 'you')}),
	"t\n0\n1", 'a client id');
is( routed(qq{SELECT count(*) FROM queue_messages('echo'); SELECT count(*) FROM queue_list(NULL, 100)}),
	"1\n5", 'both are only of the session');
is( state_of(routed("BEGIN READ ONLY; SELECT queue_push('$there', '1')")),
	'25006', 'a read-only transaction');
is(routed("BEGIN READ ONLY; SELECT free FROM queue_stats('echo')"), 1,
	'which may read');

# Bounds are those of the server.
$two->safe_psql('postgres', 'ALTER ROLE app SET queue.max_claim_ttl = 100');
is(state_of(routed("SELECT queue_claim('$there', 101)")), '22023',
	'a bound of the server');

my $holder = $two->background_psql('postgres');
$holder->query_safe(qq{BEGIN; SELECT queue_push('$there', '1')});
is(state_of(routed("SET lock_timeout = 100; SELECT queue_drop('$there')")),
	'55P03', 'lock_timeout');
is(state_of(routed("SET statement_timeout = 500; SELECT queue_drop('$there')")),
	'57014', 'statement_timeout');
ok( $two->poll_query_until('postgres',
		q{SELECT count(*) = 0 FROM pg_stat_activity WHERE query ~ 'queue_drop' AND state = 'active' AND pid <> pg_backend_pid()}),
	'which cancels the call on the server');
$holder->query_safe('ROLLBACK');
$holder->quit;

# --- Rows of two functions ---

routed(qq{SELECT queue_push_batch(q, array_agg(to_jsonb(g)))
	FROM unnest(ARRAY['two/$here', 'two/$there']) AS q, generate_series(1, 3) AS g GROUP BY q});
is( routed(qq{SELECT (a).body, (b).body FROM (SELECT queue_messages('two/$here') AS a,
		queue_messages('two/$there', "limit" => 2) AS b) AS u}),
	"1|1\n2|2\n3|", 'functions that return sets in one list');

# --- Errors ---

my $unknown = sprintf q{SELECT queue_pause('%s')}, queue_on('two', 'gone');
$error = routed($unknown);
my $direct = ($two->psql('postgres', "\\set VERBOSITY verbose\n$unknown"))[2];
is(message_of($error), message_of($direct), 'the message of an error');
is( ($error =~ /^HINT:  (.*)/m)[0], ($direct =~ /^HINT:  (.*)/m)[0],
	'its hint');
is( routed(qq{DO \$\$ BEGIN
		PERFORM queue_pause('unknown');
	EXCEPTION WHEN undefined_object THEN NULL; END \$\$;
	SELECT queue_exists('$there')}),
	't', 'an error that is caught');

# --- What a transaction has to do with it ---

is( routed(qq{BEGIN; SELECT queue_push('rolled', '1') > 0; ROLLBACK;
		SELECT total FROM queue_stats('rolled')}),
	"t\n1", 'ROLLBACK does not undo a push');
$one->safe_psql('router', 'CREATE TABLE work (i int); GRANT ALL ON work TO app');
$error = routed(q{BEGIN; INSERT INTO work VALUES (1); SELECT queue_push('rolled', '2')});
is(state_of($error), '25001', 'one transaction with other work');
like($error, qr/^HINT: /m, 'a hint');
is( routed(q{BEGIN; INSERT INTO work VALUES (1); SELECT total FROM queue_stats('rolled')}),
	1, 'which may read');

foreach my $call (q{SELECT queue_channel('q')}, q{SELECT queue_push_lazy('q', '1')},
	'CALL job_run()', 'SELECT job_due(1)', 'SELECT queue_shard_init(1, 2)')
{
	$error = routed($call);
	is(state_of($error), '0A000', $call);
	like($error, qr/^HINT: /m, "$call: a hint");
}

# --- A function that only the server has ---

$_->safe_psql(
	'postgres', q{
	CREATE FUNCTION work(jsonb) RETURNS boolean LANGUAGE sql AS 'SELECT true'}) foreach $one, $two;
is( routed(qq{SELECT job_handler('$there', 'work(jsonb)')}), '', 'a handler');
is( $two->safe_psql('postgres',
		q{SELECT queue, role, handler FROM queue_data.queue_handlers}),
	"$there|app|public.work(jsonb)", 'is bound on the server');
is(state_of(routed(qq{SELECT job_handler('$there', 'missing(jsonb)')})),
	'42883', 'one that is missing there');
is( routed(qq{SELECT queue_grant('$there', 'queue_admin', 'claim')})
	  . $two->safe_psql('postgres', qq{SELECT claim_roles FROM queue_data.queue WHERE name = '$there'}),
	'{queue_admin}', 'a role goes by its name');

# --- A server that does not answer ---

# Hung: its process is stopped.  Only the pool in between ends the call.
SKIP:
{
	skip 'pgbouncer is not installed', 2 unless pgbouncer();
	local $PoolTest::settings = 'query_timeout = 1';
	my $port = start_pool($two, postgres => 1);
	my @options = map { $_ % 2 ? () : "SET p$_ '" . connect_to($two, $port) . "'" } 0 .. 255;
	$one->safe_psql('router', 'ALTER SERVER queue OPTIONS (' . join(', ', @options) . ')');
	is(routed("SELECT queue_exists('$there')"), 't', 'through a pool');
	my $pid = $two->safe_psql('postgres',
		q{SELECT pid FROM pg_stat_activity WHERE query ~ 'queue_exists' AND pid <> pg_backend_pid()});
	kill 'STOP', $pid or die $!;
	$error = routed("SELECT queue_exists('$there')");
	kill 'CONT', $pid or die $!;
	like($error, qr/ERROR:  08P01: .*query[_ ]timeout/, 'a server that hangs');
	stop_pool();
	$one->safe_psql('router', 'ALTER SERVER queue OPTIONS ('
		  . join(', ', map { s/port=\d+/'port=' . $two->port/er } @options) . ')');
}

# The connection is lost in a call.
$holder = $two->background_psql('postgres');
$holder->query_safe(qq{BEGIN; SELECT queue_push('$there', '1')});
my $caller = $one->background_psql('router', on_error_stop => 0);
$caller->query_until(qr/start/, "\\set VERBOSITY verbose\n\\echo start\nSELECT queue_drop('$there');\n");
$two->poll_query_until('postgres',
	q{SELECT count(*) = 1 FROM pg_stat_activity WHERE query ~ 'queue_drop' AND wait_event_type = 'Lock'});
$two->stop('immediate');
(undef) = $caller->query('SELECT 1');
$error = $caller->{stderr};
like($error, qr/ERROR:  (?:XX000|57P0\d): /, 'a connection that is lost');
note $error;
$caller->quit;
eval { $holder->quit };

$error = routed("SELECT queue_exists('$there')");
is(state_of($error), 'XX000', 'a server that is down');
like($error, qr/PQconnect/, 'the message says that there was no connection');
routed("SELECT queue_push('$here', '1')");
is(state_of(routed('SELECT * FROM queue_list()')), 'XX000', 'lists fail');
my $warning = qr/^(?:psql:.*?)?WARNING:  \w+: the server of shard \d+ does not answer/m;
(my $out, $error) = routed(q{SELECT r FROM queue_ready() AS r WHERE NOT r ~ $$\W$$
	ORDER BY r COLLATE "C" DESC LIMIT 1}, both => 1);
is($out, $here, 'queues of the rest are ready');
like($error, $warning, 'with a warning');
is(routed("SELECT queue FROM queue_claim_any(ARRAY['$there', '$here'])") =~ s/.*\n//sr,
	$here, 'queue_claim_any claims from the rest');
# Nothing is free there, so all servers are asked.
($out, $error) = routed("SELECT count(*) FROM queue_claim_any(ARRAY['$there', '$here'])", both => 1);
is($out, 0, 'or nothing');
like($error, $warning, 'with a warning');
is(state_of(routed("SELECT queue FROM queue_claim_any(ARRAY['$there'])")),
	'XX000', 'unless there is no rest');
$two->start;
is(routed("SELECT queue_exists('$there')"), 't', 'it is back');

$_->stop foreach $one, $two;
done_testing();
