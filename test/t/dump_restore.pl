# pg_dump and pg_restore keep queues, messages, claims, grants, delays,
# deduplication keys, the history and cancels, bindings of topics and queues of
# queue_pgmq, and ids go on above the old ones: in the cluster of the dump and in
# another one, with the pg_dump of either.  The first one is of an older version if
# $oldinstall names an installation of it (see test/check).

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../perl";

use ClusterTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = PostgreSQL::Test::Cluster->new('main',
	$ENV{oldinstall} ? (install_path => $ENV{oldinstall}) : ());
# An older server does not start in a copy of what the initdb of this version has made.
$node->init($ENV{oldinstall} ? (extra => []) : ());
$node->append_conf('postgresql.conf', 'autovacuum = off');
$node->start;
my $dir = PostgreSQL::Test::Utils::tempdir();

$node->safe_psql('postgres', 'CREATE DATABASE source');
$node->safe_psql(
	'source', q{
	CREATE EXTENSION queue;
	CREATE ROLE "Odd ""owner""" IN ROLE queue_producer, queue_consumer;
	CREATE ROLE outsider IN ROLE queue_producer, queue_consumer;
	SET ROLE "Odd ""owner""";
	SELECT queue_create('own', '{"_max_claim_count": 1, "note": "ü"}');
	SELECT queue_grant('own', '"Odd ""owner"""', 'push');
	SELECT queue_push('own', '"dead"');
	SELECT claim_release('own', claim_id, failed => true) FROM queue_claim('own', 60, 60);
	SELECT queue_push('own', '"alive"', priority => 3, ttl => 5000);
	RESET ROLE;
	CREATE ROLE gone IN ROLE queue_producer, queue_consumer;
	SET ROLE gone;
	SELECT batch_create(keep_open => true);
	RESET ROLE;
	DROP ROLE gone;
	SELECT queue_push('waits', '"freed"', after => 1);
	SELECT queue_create('halted');
	SELECT queue_pause('halted');
	SELECT queue_push_batch('q', array_agg(to_jsonb('m' || g))) FROM generate_series(1, 300) g;
	SELECT queue_push('q', '"later"', delay => 4000);
	SELECT queue_push('q', '"soon"', delay => 3);
	SELECT job_root('q', 'root');
	SELECT queue_push_once('once', 'orders', 1, '"once"');
	SELECT queue_push_once('once', 'orders', 2, '2', dedup_key => 'k');
	SELECT queue_push_once('once', 'orders', 3, '2', dedup_key => 'k');
	SELECT queue_push('q', '"keyed"', dedup_key => 'k');
	SELECT queue_push('q', '"keyed later"', dedup_key => 'k2', delay => 4000);
	SELECT message_delete('q', queue_push('q', '1', dedup_key => 'held', dedup_for => 100000));
	SELECT queue_create('kept', '{"_keep_finished": 86400, "_keep_body": true}');
	SELECT queue_push('kept', '"done"');
	SELECT queue_pop('kept');
	SELECT queue_push('kept', '"complete"');
	SELECT message_complete('kept', id, claim_id, '17') FROM queue_claim('kept', 60, 60);
	SELECT queue_push('kept', '"cancel"');
	SELECT topic_bind('t.*', 'own', '{"f": 1}', ARRAY['"Odd ""owner"""']::regrole[]);
	CREATE EXTENSION queue_pgmq;
	SELECT pgmq.create('tasks'), pgmq.bind_topic('t.x', 'tasks'), pgmq.send('tasks', '1');
	SET queue.project = 'other';
	SELECT queue_push('q', '"elsewhere"');
});
my $claim = $node->safe_psql('source',
	q{SELECT DISTINCT claim_id FROM queue_claim('q', 30000, 60, 3)});
my $second = $node->safe_psql('source',
	q{SELECT DISTINCT claim_id FROM queue_claim('q', 30000, 60, 2)});
my $first_id = $node->safe_psql('source',
	qq{SELECT id FROM claim_messages('q', '$claim') LIMIT 1});
my ($canceled, $canceled_claim) = split /\|/, $node->safe_psql('source',
	q{SELECT id, claim_id FROM queue_claim('kept', 30000, 60)});
$node->safe_psql('source', "SELECT message_cancel('kept', $canceled)");
my $last_id = $node->safe_psql('source', q{SELECT max(id) FROM queue_data.message});

# all that is to be kept, as text
my $state_query = q{
	SELECT project, name, metadata, owner, paused, created_at, push_roles, claim_roles, admin_roles
	FROM queue_data.queue ORDER BY 1, 2;
	SELECT project, queue, id, state, priority, created_at, expires_at,
		claimed_at, claimed_until, claim_count, CASE state WHEN 'delayed' THEN due_at END,
		client_id, attributes, body
	FROM queue_data.message ORDER BY id;
	SELECT k::text FROM queue_data.dedup_key k ORDER BY 1;
	SELECT r::text FROM queue_data.root_job r ORDER BY 1;
	SELECT o::text FROM queue_data.push_origin o ORDER BY 1;
	SELECT f::text FROM queue_finished('kept') AS f;
	SELECT t::text FROM queue_data.topic AS t ORDER BY 1;
	SELECT t::text FROM pgmq.q_tasks AS t;
	SELECT id, ttl, claim_id FROM queue_messages('q', "limit" => 1000, include_claimed => true)};

# "soon" must be due in both states or in none.  Once it is due, a worker may
# move it to another table, without its due time.
$node->safe_psql('source', 'SELECT pg_sleep(3)');
my $before = $node->safe_psql('source', $state_query);

# A session that waits for a message holds up no dump, and waits on.
my $waiting = $node->background_psql('source', on_error_stop => 0);
$waiting->query_until(qr/waits/, "\\echo waits\nCALL queue_await('kept', $canceled);\n");

$node->command_ok(
	[ 'pg_dump', '-Fc', '-f', "$dir/q.dump", $node->connstr('source') ],
	'pg_dump, custom format');
is( $node->safe_psql('source',
		q{SELECT pg_cancel_backend(pid) FROM pg_stat_activity
		WHERE query LIKE 'CALL queue_await%' AND wait_event_type = 'Extension'}),
	't', 'a session waits meanwhile');
$waiting->quit;
$node->command_ok([ 'pg_dumpall', '--roles-only', '-f', "$dir/roles.sql" ],
	'pg_dumpall, roles');

# What a restored database must be able to do
sub check_restored
{
	my ($server, $db, $how) = @_;

	is($server->safe_psql($db, $state_query), $before, "$how: all is as it was");
	is( $server->safe_psql($db,
			qq{SELECT ttl, grace, message_count FROM claim_get('q', '$claim')}),
		'30000|60|3',
		"$how: the old claim is known");
	is($server->safe_psql($db, q{SELECT body FROM queue_claim('q', 30000, 60, 2)}),
		qq{"m6"\n"m7"}, "$how: what was claimed is held");
	is( $server->safe_psql($db, qq{SELECT message_delete('q', $first_id, '$claim')}),
		't', "$how: a delete under the old claim");
	is($server->safe_psql($db, qq{SELECT claim_complete('q', '$claim')}),
		'2', "$how: the old claim completed");
	is( $server->safe_psql($db,
			qq{SELECT claim_renew('q', '$second', 60) IS NOT NULL, claim_release('q', '$second', failed => true)}),
		't|2',
		"$how: another one renewed and released");
	cmp_ok($server->safe_psql($db, q{SELECT queue_push('q', '"new"')}),
		'>', $last_id, "$how: new ids are above the old ones");
	is( $server->safe_psql(
			$db,
			q{SELECT queue_push('q', '1', dedup_key => 'k') IS NULL,
			queue_push('q', '1', dedup_key => 'k2') IS NULL,
			queue_push('q', '"fresh"', dedup_key => 'k3') IS NULL}),
		't|t|f',
		"$how: keys are taken as before");
	is( $server->safe_psql($db, q{SELECT count(*) FROM queue_claim('halted', 60, 60)}),
		'0', "$how: paused");
	is( $server->safe_psql(
			$db,
			q{SELECT queue_create('more'), (SELECT count(DISTINCT id) = count(*) FROM queue_data.queue)}
		),
		't|t',
		"$how: a new queue gets a number of its own");

	my ($ret, $stdout, $stderr) = $server->psql($db,
		q{SET ROLE outsider; SELECT queue_push('own', '1')},
		extra_params => [ '-v', 'VERBOSITY=verbose' ]);
	like($stderr, qr/42501/, "$how: grants hold");
	is( $server->safe_psql(
			$db,
			q{SET ROLE "Odd ""owner""";
			SELECT queue_push('own', '1') IS NOT NULL, queue_redrive('own.dead')}),
		't|1',
		"$how: the owner may");
	is( $server->safe_psql(
			$db,
			q{SET ROLE "Odd ""owner"""; SELECT topic_publish('t.x', '2', '{"f": 1}');
			SET ROLE outsider; SELECT topic_publish('t.x', '3', '{"f": 1}')}),
		"2\n1",
		"$how: queues are bound to topics as before");
	is( $server->safe_psql(
			$db, q{SELECT string_agg(message::text, ' ' ORDER BY msg_id) FROM pgmq.read('tasks', 60, 9)}),
		'1 2 3',
		"$how: one of them belongs to queue_pgmq");
	is( $server->safe_psql(
			$db,
			q{SET queue.project = 'other'; SELECT body FROM queue_messages('q')}),
		'"elsewhere"',
		"$how: projects are apart");
	is( $server->safe_psql($db,
			q{SELECT format('CALL queue_await(%L, %s)', 'kept', id) FROM queue_finished('kept') ORDER BY id \\gexec}
		),
		join("\n", map { '{"error": null, "result": ' . $_ . ', "outcome": "completed"}' } 'null', 17),
		"$how: what became of messages is known at once");
	($ret, $stdout, $stderr) = $server->psql($db,
		"SELECT message_complete('kept', $canceled, '$canceled_claim')",
		extra_params => [ '-v', 'VERBOSITY=verbose' ]);
	like($stderr, qr/QU004/, "$how: what was canceled cannot be completed");
	is( $server->safe_psql($db, "SELECT claim_release('kept', '$canceled_claim', failed => true);
			CALL queue_await('kept', $canceled)"),
		qq{0\n{"error": null, "result": null, "outcome": "canceled"}},
		"$how: it is in the history when its claim has ended");
	is( $server->safe_psql(
			$db,
			q{SELECT count(*), count(DISTINCT body) FROM queue_messages('q', "limit" => 1000)
			WHERE body #>> '{}' ~ '^m\d+$'}),
		'295|295',
		"$how: no message twice, none missing");
	is( $server->safe_psql($db, 'SELECT batch_close(1)'),
		't', "$how: a batch that messages wait for is there, though its owner is not");
	ok( $server->poll_query_until($db,
			q{SELECT count(*) = 1 FROM queue_claim('waits', 30000, 60)}),
		"$how: what waits is freed at its end");
	return;
}

# a fresh database of the same cluster
$node->safe_psql('postgres', 'CREATE DATABASE restored');
$node->command_ok(
	[ 'pg_restore', '--exit-on-error', '-d', $node->connstr('restored'), "$dir/q.dump" ],
	'pg_restore into a fresh database');
check_restored($node, 'restored', 'same cluster');

# another cluster
my $other = PostgreSQL::Test::Cluster->new('other');
$other->init;
$other->append_conf('postgresql.conf', 'autovacuum = off');
$other->start;
$other->psql('postgres', undef, extra_params => [ '-f', "$dir/roles.sql" ],
	on_error_stop => 0);
$other->safe_psql('postgres', 'CREATE DATABASE restored');
$other->command_ok(
	[ 'pg_restore', '--exit-on-error', '-d', $other->connstr('restored'), "$dir/q.dump" ],
	'pg_restore into another cluster');
check_restored($other, 'restored', 'other cluster');

$other->command_ok(
	[ 'pg_dump', '-f', "$dir/q.sql", $node->connstr('source') ],
	'pg_dump of the other cluster, plain format');
$other->safe_psql('postgres', 'CREATE DATABASE plain');
$other->command_ok(
	[ 'psql', '-X', '-q', '-v', 'ON_ERROR_STOP=1', '-o', "$dir/psql.out", '-d',
		$other->connstr('plain'), '-f', "$dir/q.sql" ],
	'plain dump into another cluster');
check_restored($other, 'plain', 'other cluster, plain');
$other->stop;

# copied as a template
$node->safe_psql('postgres', 'CREATE DATABASE copied TEMPLATE source');
check_restored($node, 'copied', 'template');

# and a dump of what was restored and worked with
$node->command_ok(
	[ 'pg_dump', '-Fc', '-f', "$dir/again.dump", $node->connstr('restored') ],
	'dumped again');
$node->safe_psql('postgres', 'CREATE DATABASE twice');
$node->command_ok(
	[ 'pg_restore', '--exit-on-error', '-d', $node->connstr('twice'), "$dir/again.dump" ],
	'restored again');
is( $node->safe_psql('twice', $state_query),
	$node->safe_psql('restored', $state_query),
	'second generation: all is as it was');

is($node->safe_psql('source', $state_query), $before, 'the source is untouched');
$node->safe_psql('postgres', 'DROP DATABASE source');

$node->stop;
done_testing();
