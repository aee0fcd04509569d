# One transaction at work in very many queues does not run out of locks, and
# a drop of one of these queues still waits for it.
#
# test/check -q runs it, too.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../perl";

use ClusterTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $queues = 20000;
my $node = PostgreSQL::Test::Cluster->new('main');
$node->init;
# the default before 19
$node->append_conf('postgresql.conf',
	"autovacuum = off\nmax_locks_per_transaction = 64");
$node->start;
$node->safe_psql('postgres', 'CREATE EXTENSION queue');

sub state_of
{
	my ($sql) = @_;
	my ($ret, $stdout, $stderr) = $node->psql('postgres', $sql,
		extra_params => [ '-v', 'VERBOSITY=verbose' ]);
	return $stderr =~ /(?:ERROR|FATAL):\s+(\w{5}):/ ? $1 : 'none';
}

# pushes that make the queues, and are rolled back
is( $node->safe_psql(
		'postgres',
		qq{BEGIN;
		SELECT count(queue_push('q' || g, '1')) FROM generate_series(1, $queues) g;
		ROLLBACK;
		SELECT count(*) FROM queue_data.queue}),
	"$queues\n0",
	'pushes into many new queues, rolled back');

# Sessions that use one queue do not share a partition of the lock table.
is( $node->safe_psql(
		'postgres',
		q{SELECT queue_push('one', '1') \g /dev/null
		BEGIN;
		SELECT queue_push('one', '1') \g /dev/null
		SELECT claim_complete('one', claim_id) FROM queue_claim('one', 600, 60, 1) \g /dev/null
		SELECT string_agg(locktype || ' ' || mode, ', ') FROM pg_locks
		WHERE pid = pg_backend_pid() AND NOT fastpath AND locktype <> 'transactionid';
		COMMIT;
		SELECT queue_drop('one') \g /dev/null}),
	'',
	'all locks of a push, a claim and its end are taken by the fast path');

# and into queues that are there, in a transaction that stays open
$node->safe_psql('postgres',
	qq{SELECT count(queue_create('q' || g)) FROM generate_series(1, $queues) g});
my $pusher = $node->background_psql('postgres');
$pusher->query_safe('BEGIN');
is( $pusher->query_safe(
		qq{SELECT count(queue_push('q' || g, to_jsonb(g))) FROM generate_series(1, $queues) g}
	),
	$queues,
	'pushes into many queues');
cmp_ok($node->safe_psql('postgres', 'SELECT count(*) FROM pg_locks'),
	'<', 2000, 'with few locks');

foreach my $one (1, 50, $queues / 2, $queues)
{
	is(state_of("SET lock_timeout = '100ms'; SELECT queue_drop('q$one')"),
		'55P03', "a drop of q$one waits");
	is(state_of("SET lock_timeout = '100ms'; SELECT queue_purge('q$one')"),
		'55P03', "a purge of q$one waits");
}
is($node->safe_psql('postgres', q{SELECT queue_push('q7', '"other"') IS NOT NULL}),
	't', 'other pushes do not wait');
is($node->safe_psql('postgres', q{SELECT body FROM queue_claim('q7', 600, 60)}),
	'"other"', 'nor do claims');

# in the middle of the wait the transaction ends
my $dropper = $node->background_psql('postgres');
$dropper->query_until(qr/started/,
	"\\echo started\nSELECT 'dropped ' || queue_drop('q$queues');\n");
ok( $node->poll_query_until(
		'postgres',
		q{SELECT count(*) = 1 FROM pg_stat_activity
		WHERE wait_event_type = 'Lock' AND query ~ 'queue_drop'}),
	'a drop waits');
$pusher->query_safe('COMMIT');
like($dropper->query('SELECT 1'), qr/dropped t/, 'until the transaction ends');
$dropper->quit;
is($node->safe_psql('postgres', "SELECT queue_exists('q$queues')"),
	'f', 'then it is done');
is( $node->safe_psql('postgres',
		q{SELECT count(*) FROM queue_data.message_0 m
		WHERE NOT EXISTS (SELECT FROM queue_data.queue q WHERE q.id = m.queue_id)}),
	'0',
	'and leaves no orphan');

# claims from many queues, and drops of many, in one transaction each
$pusher->query_safe('BEGIN');
is( $pusher->query_safe(
		qq{SELECT count(c.id) FROM generate_series(1, 5000) g, queue_claim('q' || g, 600, 60) c}),
	'5000',
	'claims from many queues');
is(state_of(q{SET lock_timeout = '100ms'; SELECT queue_drop('q4999')}),
	'55P03', 'a drop waits for a claimer too');
$pusher->query_safe('ROLLBACK');
is( $pusher->query_safe(
		qq{SELECT count(*) FROM generate_series(1, 5000) g WHERE queue_drop('q' || g)}),
	'5000',
	'drops of many queues');
$pusher->quit;

$node->stop;
done_testing();
