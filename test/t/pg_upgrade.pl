# pg_upgrade, copying files or linking them, keeps everything in every table:
# messages that are free, claimed, canceled, delayed, in groups or dead letters, keys,
# counters, the history, handlers, grants, bindings of topics, and queues of
# queue_pgmq.  Claims are still held under their ids, new ids are above the old ones,
# and a worker comes up.
#
# From the version that is tested to itself; from an older one if $oldinstall
# names an installation of it, with the extension (see test/check).
#
# test/check -a runs it.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../perl";

use ClusterTest;
use PostgreSQL::Test::Utils;
use Test::More;

my @older = $ENV{oldinstall} ? (install_path => $ENV{oldinstall}) : ();
my $preload = "shared_preload_libraries = 'queue'";
my $no_preload = "shared_preload_libraries = ''";

# The versions differ in what initdb does by default.
sub new_cluster
{
	my ($name, @params) = @_;
	my $node = PostgreSQL::Test::Cluster->new($name, @params);
	$node->init(extra => ['--data-checksums']);
	$node->append_conf('postgresql.conf', 'autovacuum = off');
	return $node;
}

# A server, started with these settings
sub start_with
{
	my ($node, @settings) = @_;
	$node->append_conf('postgresql.conf', join("\n", @settings));
	$node->start;
	return;
}

# Every row of every table, what the functions show of them, and the objects of
# the extension (but types: it depends on the version which of them count)
sub state_of
{
	my ($node) = @_;
	my @tables = split /\n/,
	  $node->safe_psql('postgres',
		q{SELECT oid::regclass FROM pg_class WHERE relnamespace = 'queue_data'::regnamespace
		AND relkind = 'r' ORDER BY relname});

	return [ split /\n/, $node->safe_psql(
		'postgres', q{
		SELECT project, queue, id, state, expires_at FROM queue_data.message ORDER BY id;
		SELECT id, ttl, claim_id FROM queue_messages('mail', "limit" => 1000, include_claimed => true);
		SELECT * FROM job_stats('jobs');
		SELECT * FROM pgmq.q_tasks ORDER BY 1;
		SELECT * FROM pgmq.a_tasks ORDER BY 1;
		SELECT * FROM pgmq.meta;
		SELECT sequencename, last_value FROM pg_sequences WHERE schemaname = 'queue_data' ORDER BY 1;
		SELECT pg_describe_object(classid, objid, 0) FROM pg_depend
		WHERE refobjid = (SELECT oid FROM pg_extension WHERE extname = 'queue')
		AND deptype = 'e' AND classid <> 'pg_type'::regclass ORDER BY 1;}
		  . join '', map { "SELECT '$_', * FROM $_ ORDER BY 2;" } @tables) ];
}

my $old = new_cluster('old', @older);
start_with($old, $preload, 'queue.min_claim_ttl = 1', 'queue.min_claim_grace = 0');
$old->safe_psql(
	'postgres', q{
	CREATE EXTENSION queue;
	CREATE ROLE owner LOGIN IN ROLE queue_producer, queue_consumer;
	CREATE ROLE pusher IN ROLE queue_producer;
	CREATE ROLE other IN ROLE queue_producer;
	CREATE SCHEMA app AUTHORIZATION owner;
	CREATE TABLE app.done (body jsonb);
	GRANT INSERT ON app.done TO owner;

	SELECT queue_create('kept', '{"_keep_finished": 86400}');
	SELECT queue_push('kept', '1');
	SELECT queue_pop('kept');
	SELECT queue_push('kept', '2');
	SELECT message_complete('kept', id, claim_id, '17') FROM queue_claim('kept', 60, 60);
	SELECT queue_push('kept', '3');
	SELECT queue_push_batch('mail', array_agg(to_jsonb('m' || g))) FROM generate_series(1, 200) g;
	SELECT queue_push('mail', '"first"', priority => 7);
	SELECT queue_push('mail', '"later"', delay => 4000);
	SELECT queue_push('mail', '"keyed"', dedup_key => 'k', headers => '{"a": "b"}');
	SELECT queue_push('mail', to_jsonb(repeat('long ', 20000)));
	SELECT job_root('mail', 'root');
	SELECT queue_create('turns', '{"_group_concurrency": 1, "_group_rate": 1}');
	SELECT queue_push('turns', to_jsonb(g || '-' || i), group_key => g)
	FROM unnest(ARRAY['a', 'b', 'c']) g, generate_series(1, 3) i;
	SELECT queue_create('halted');
	SELECT queue_pause('halted');
	SELECT queue_push('halted', '1');
	SELECT topic_bind('orders.#', 'orders', '{"a": "b"}', ARRAY['other']::regrole[]);

	CREATE EXTENSION queue_pgmq;
	SELECT pgmq.create('tasks');
	SELECT pgmq.send('tasks', to_jsonb(i)) FROM generate_series(1, 4) AS i;
	SELECT pgmq.read('tasks', 30000, 1);
	SELECT pgmq.archive('tasks', 2);
	SELECT pgmq.bind_topic('orders.*', 'tasks');

	SET ROLE owner;
	SELECT queue_create('own', '{"_max_claim_count": 1}');
	SELECT queue_grant('own', 'pusher', 'push');
	SELECT queue_push('own', '"dead"');
	SELECT claim_release('own', claim_id, failed => true) FROM queue_claim('own', 60, 60);
	CREATE FUNCTION app.work(body jsonb) RETURNS boolean LANGUAGE plpgsql AS $$
	BEGIN
		INSERT INTO app.done VALUES (body);
		RETURN true;
	END $$;
	SELECT queue_create('jobs');
	SELECT job_handler('jobs', 'app.work(jsonb)');
	SELECT queue_push('jobs', '"before"');
});
$old->poll_query_until('postgres',
	q{SELECT (SELECT total FROM queue_stats('jobs')) = 0 AND (SELECT completed FROM job_stats('jobs')) = 1}
) or die 'the old server ran no job';
my $claim = $old->safe_psql('postgres',
	q{SELECT DISTINCT claim_id FROM queue_claim('mail', 30000, 60, 3)});
my $second = $old->safe_psql('postgres',
	q{SELECT DISTINCT claim_id FROM queue_claim('mail', 30000, 60, 2)});
my $member = $old->safe_psql('postgres',
	qq{SELECT id FROM claim_messages('mail', '$claim') LIMIT 1});
my ($group, $key) = split /\|/, $old->safe_psql('postgres',
	q{SELECT claim_id, group_key FROM queue_claim('turns', 30000, 60, 1)});
my ($canceled, $canceled_claim) = split /\|/, $old->safe_psql('postgres',
	q{SELECT id, claim_id FROM queue_claim('kept', 30000, 60, 1)});
$old->safe_psql('postgres', "SELECT message_cancel('kept', $canceled)");
# This claim ends while no server runs.
$old->safe_psql('postgres',
	q{SELECT FROM queue_push('over', '1'); SELECT FROM queue_claim('over', 1, 0)});
$old->stop;

start_with($old, 'queue.database_workers = 0');
$old->safe_psql('postgres',
	q{SELECT pg_sleep(1); SELECT queue_push('jobs', '"after"')});
my $before = state_of($old);
my $last_id =
  $old->safe_psql('postgres', 'SELECT max(id) FROM queue_data.message');
$old->stop;

# Upgrades the old cluster to a new one.
sub upgrade
{
	my ($new, $how, @options) = @_;
	my @args = (
		'pg_upgrade', '--no-sync',
		'-d', $old->data_dir, '-D', $new->data_dir,
		'-b', $old->config_data('--bindir'), '-B', $new->config_data('--bindir'),
		'-p', $old->port, '-P', $new->port,
		'-s', $new->host, @options);
	my $dir = PostgreSQL::Test::Utils::tempdir();

	# It writes into the current directory.
	$new->command_ok([ 'sh', '-c', 'cd "$1" && shift && exec "$@"', 'sh', $dir, @args ],
		"$how: pg_upgrade");
	return;
}

# What an upgraded database must be able to do
sub check_upgraded
{
	my ($new, $how) = @_;
	my $value = sub { return $new->safe_psql('postgres', $_[0]) };

	is( $value->(
			qq{SELECT ttl, grace, message_count FROM claim_get('mail', '$claim')}),
		'30000|60|3',
		"$how: the old claim is known");
	is($value->(q{SELECT body FROM queue_claim('mail', 60, 60, 3)}),
		qq{"m5"\n"m6"\n"m7"}, "$how: what was claimed is held");
	is($value->("SELECT message_delete('mail', $member, '$claim')"),
		't', "$how: a delete under the old claim");
	is($value->("SELECT claim_complete('mail', '$claim')"),
		'2', "$how: the old claim completed");
	is( $value->(
			"SELECT claim_renew('mail', '$second', 60) IS NOT NULL, claim_release('mail', '$second', failed => true)"
		),
		't|2',
		"$how: another one renewed and released");
	is($value->(q{SELECT body FROM queue_claim('over', 60, 60)}),
		'1', "$how: a claim that has ended is over");
	cmp_ok($value->(q{SELECT queue_push('mail', '"new"')}),
		'>', $last_id, "$how: new ids are above the old ones");
	is( $value->(
			q{SELECT queue_push('mail', '1', dedup_key => 'k') IS NULL, job_root('mail', 'root') IS NOT NULL}
		),
		't|t',
		"$how: keys are taken as before");
	is( $value->(q{SELECT count(*) FROM queue_claim('halted', 60, 60)}),
		'0', "$how: paused");
	is( $value->(
			q{SELECT string_agg(body #>> '{}', ' ' ORDER BY id) FROM queue_claim('turns', 60, 60)}
		),
		join(' ', map { "$_-1" } grep { $_ ne $key } qw(a b c)),
		"$how: groups keep their bound");
	is($value->("SELECT claim_complete('turns', '$group')"),
		'1', "$how: the claim in a group completed");
	is( $value->(
			q{SET ROLE owner; SELECT body, reason FROM queue_dead_letters('own.dead')}),
		'"dead"|max_claim_count',
		"$how: dead letters");

	my $as = sub {
		my ($ret, $stdout, $stderr) = $new->psql('postgres', $_[0],
			extra_params => [ '-v', 'VERBOSITY=verbose' ]);
		return $stderr =~ /ERROR:\s+(\w{5}):/ ? $1 : $stdout;
	};
	is( $value->(
			q{SELECT format('CALL queue_await(%L, %s)', 'kept', id) FROM queue_finished('kept') ORDER BY id \\gexec}
		),
		join("\n", map { '{"error": null, "result": ' . $_ . ', "outcome": "completed"}' } 'null', 17),
		"$how: what became of messages is known at once");
	is($as->("SELECT message_complete('kept', $canceled, '$canceled_claim')"),
		'QU004', "$how: what was canceled cannot be completed");
	my $waiting = $new->background_psql('postgres');
	$waiting->query_until(qr/waits/, "\\echo waits\nCALL queue_await('kept', $canceled);\n");
	ok( $new->poll_query_until('postgres',
			q{SELECT count(*) = 1 FROM pg_stat_activity
				WHERE query LIKE 'CALL queue_await%' AND wait_event_type = 'Extension'}),
		"$how: a session waits for its end");
	$value->("SELECT claim_release('kept', '$canceled_claim', failed => true)");
	is($waiting->query_safe('SELECT 1'),
		qq{{"error": null, "result": null, "outcome": "canceled"}\n1},
		"$how: and is told of it");
	$waiting->quit;
	is($as->(q{SET ROLE pusher; SELECT queue_push('own', '1') IS NOT NULL}),
		't', "$how: a privilege was granted to a role");
	is($as->(q{SET ROLE other; SELECT queue_push('own', '1')}),
		'42501', "$how: to no other role");
	is($as->(q{SET ROLE other; SELECT topic_publish('orders.new', '5', '{"a": "b"}')}),
		'2', "$how: queues are bound to topics");
	is($as->(q{SET ROLE owner; SELECT topic_publish('orders.new', '6', '{"a": "b"}')}),
		'1', "$how: one of them for a role");
	is( $value->(
			q{SELECT string_agg(message::text, ' ' ORDER BY msg_id) FROM pgmq.read('tasks', 60, 9)}),
		'3 4 5 6',
		"$how: queue_pgmq reads");
	is($value->(q{SELECT pgmq.delete('tasks', 1), pgmq.send('tasks', '7') > 6}),
		't|t', "$how: and goes on with the ids that it had");

	# what pg_upgrade leaves to the administrator
	$value->('SELECT queue_data.record_roles()');
	is($as->("DROP ROLE $_"), '2BP01', "$how: a role that is named is kept")
	  foreach qw(pusher other);

	ok( $new->poll_query_until('postgres',
			q{SELECT string_agg(body #>> '{}', ' ' ORDER BY body) = 'after before' FROM app.done}),
		"$how: the worker runs the job that waited");
	is( $value->(
			q{SELECT count(*), count(DISTINCT body) FROM queue_messages('mail', "limit" => 1000)
			WHERE body #>> '{}' ~ '^m\d+$'}),
		'195|195',
		"$how: no message twice, none missing");
	is( $value->(
			q{SELECT length(body #>> '{}') FROM queue_messages('mail', "limit" => 1000) WHERE body #>> '{}' ~ '^long'}
		),
		'100000',
		"$how: long bodies");
	is($as->('DROP EXTENSION queue CASCADE'), '', "$how: the extension can be dropped");
	return;
}

# Neither cluster may start background processes of ours while pg_upgrade runs:
# they would write to it.
$old->append_conf('postgresql.conf', 'queue.database_workers = 8');
foreach my $how ('copy', 'link')
{
	my $new = new_cluster($how);

	# From 17 on pg_upgrade needs no preloading.
	$new->append_conf('postgresql.conf',
		$how eq 'copy' && $new->pg_version >= 17 ? $no_preload : $preload);
	upgrade($new, $how, $how eq 'link' ? '--link' : ());
	start_with($new, 'queue.database_workers = 0');
	is_deeply(state_of($new), $before, "$how: every row is there");
	$new->stop;

	start_with($new, $preload, 'queue.database_workers = 8');
	check_upgraded($new, $how);
	$new->stop;
}

done_testing();
