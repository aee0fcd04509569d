# Lazy pushes, counts, roots and twins across PREPARE TRANSACTION, restarts,
# crashes, sessions and dumps.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../perl";

use ClusterTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $dir = PostgreSQL::Test::Utils::tempdir();

sub stats
{
	my ($node, $queue, $columns, $db) = @_;
	return $node->safe_psql($db || 'postgres',
		"SELECT $columns FROM job_stats('$queue')");
}

# Waits until the counts of all queues are in the table.
sub written
{
	my ($node, $claimed) = @_;
	return $node->poll_query_until('postgres',
		"SELECT coalesce(sum(claimed), 0) = $claimed FROM queue_data.job_counter");
}

my $node = PostgreSQL::Test::Cluster->new('main');
$node->init;
$node->append_conf('postgresql.conf', "max_prepared_transactions = 10\nqueue.min_claim_ttl = 1");
$node->start;
$node->safe_psql('postgres', 'CREATE EXTENSION queue');

# a lazy push is part of the prepared transaction
$node->safe_psql(
	'postgres', q{
	BEGIN;
	SELECT queue_push_lazy('lazy', '1', dedup_key => 'k');
	SELECT queue_push_lazy('lazy', '2', dedup_key => 'k');
	PREPARE TRANSACTION 'one';
	BEGIN;
	SELECT queue_push_lazy('other', '3');
	PREPARE TRANSACTION 'two';
	SELECT queue_push_lazy('lazier', '4')});
is( $node->safe_psql('postgres',
		q{SELECT total FROM unnest('{lazy,other,lazier}'::text[]) q, queue_stats(q)}),
	"0\n0\n1",
	'not there before COMMIT PREPARED');
$node->restart;
$node->safe_psql('postgres', q{COMMIT PREPARED 'one'});
$node->safe_psql('postgres', q{ROLLBACK PREPARED 'two'});
is( $node->safe_psql('postgres',
		q{SELECT total FROM unnest('{lazy,other,lazier}'::text[]) q, queue_stats(q)}),
	"1\n0\n1",
	'COMMIT PREPARED and ROLLBACK PREPARED');

# a crash after the commit keeps what was pushed lazily
$node->safe_psql('postgres',
	q{SELECT queue_push_lazy('crash', to_jsonb(i)) FROM generate_series(1, 100) i});
$node->stop('immediate');
$node->start;
is($node->safe_psql('postgres', q{SELECT total FROM queue_stats('crash')}),
	'100', 'lazy pushes survive a crash');
is( $node->safe_psql('postgres',
		q{SELECT count(*) FROM generate_series(1, 10) i, queue_pop('crash', 10 + i - i)}),
	'100',
	'and can be had');

# other sessions see counters, which are written in the end
is(stats($node, 'crash', 'claimed, completed'), '100|100',
	'counts of a session that ended');
ok(written($node, 100), 'they get to the table');
is(stats($node, 'crash', 'claimed, completed'),
	'100|100', 'and are counted once');
# the worker does not wait for the disk, the next session that commits does
$node->safe_psql('postgres', q{SELECT queue_create('any')});
$node->stop('immediate');
$node->start;
is( stats($node, 'crash', q{claimed, completed, since > now() - interval '1 hour'}),
	'100|100|t', 'what is written survives a crash');
$node->safe_psql('postgres',
	q{SELECT queue_push_batch('crash', '{1, 2, 3}');
	SELECT message_retry('crash', id, claim_id, 'told by ' || body::text, 0) FROM queue_claim('crash', 600, 60, 3)});
is( stats($node, 'crash', 'claimed, retried, last_error'),
	'103|3|told by 3', 'the last error can be read at once');
ok($node->poll_query_until('postgres',
		q{SELECT count(last_error) = 1 FROM queue_data.job_counter}), 'it gets to the table');
$node->safe_psql('postgres', q{SELECT queue_create('some')});
$node->stop('immediate');
$node->start;
is(stats($node, 'crash', 'last_error'),
	'told by 3', 'and survives a crash');

# counts of a prepared transaction
$node->safe_psql(
	'postgres', q{
	SELECT queue_push_batch('prepared', '{1, 2, 3}');
	BEGIN;
	SELECT count(*) FROM queue_pop('prepared', 2);
	PREPARE TRANSACTION 'one'});
is(stats($node, 'prepared', 'claimed'),
	'2', 'a prepared transaction counts as done');
$node->safe_psql('postgres', q{COMMIT PREPARED 'one'});

# A run that has begun covers its twin after a restart, too.  There is no
# worker, which might drop the leaves before the crash and lose its counts.
$node->append_conf('postgresql.conf', 'queue.database_workers = 0');
$node->reload;
$node->poll_query_until('postgres',
	q{SELECT count(*) = 0 FROM pg_stat_activity WHERE backend_type = 'queue worker'})
  or die 'the worker does not end';
$node->safe_psql(
	'postgres', q{
	SELECT queue_push('twins', '"first"', dedup_key => 'k');
	CREATE TABLE claims AS SELECT claim_id FROM queue_claim('twins', 600, 60);
	SELECT queue_push('twins', '"second"', dedup_key => 'k');
	SELECT claim_release('twins', claim_id) FROM claims;
	DELETE FROM claims;
	INSERT INTO claims SELECT claim_id FROM queue_claim('twins', 600, 60, 1);
	CREATE TABLE roots AS SELECT job_root('leaves', 's') AS root;
	SELECT queue_push('leaves', jsonb_build_object('n', i) || root) FROM generate_series(1, 5) i, roots;
	SELECT job_root('leaves', 's')});

# all of it is in a dump
$node->command_ok(
	[ 'pg_dump', '-Fc', '-f', "$dir/dump", $node->connstr('postgres') ],
	'pg_dump');
$node->safe_psql('postgres', 'CREATE DATABASE restored');
$node->command_ok(
	[
		'pg_restore', '--exit-on-error', '-d',
		$node->connstr('restored'), "$dir/dump"
	],
	'pg_restore');
$node->stop('immediate');
$node->start;
foreach my $db ('postgres', 'restored')
{
	is( $node->safe_psql(
			$db, q{SELECT claim_complete('twins', claim_id) FROM claims;
			SELECT total FROM queue_stats('twins')}),
		"1\n0",
		"$db: the run stands for its twin");
	is($node->safe_psql($db, q{SELECT count(*) FROM queue_claim('leaves', 600, 60)}),
		'0', "$db: leaves of the older root are dropped");
	is(stats($node, 'leaves', 'duplicates', $db),
		'5', "$db: and counted");
	is(stats($node, 'crash', 'last_error', $db),
		'told by 3', "$db: the last error");
}
is( $node->safe_psql('restored',
		q{SELECT count(*) FROM queue_data.job_counter c
		WHERE NOT EXISTS (SELECT FROM queue_data.queue q WHERE q.id = c.queue_id)}),
	'0',
	'no counts of unknown queues');

# a clean stop, at once
$node->adjust_conf('postgresql.conf', 'queue.database_workers', undef);
$node->reload;
$node->safe_psql('postgres',
	q{SELECT queue_push_batch('last', '{1, 2}');
	SELECT count(*) FROM queue_pop('last')});
$node->safe_psql('postgres', q{SELECT count(*) FROM queue_pop('last')});
$node->restart;
is(stats($node, 'last', 'claimed, completed'),
	'2|2', 'a restart keeps counts');
$node->stop;

done_testing();
