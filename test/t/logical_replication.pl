# A publication of all tables does not disturb the queues of the publisher, and
# carries none to the subscriber: its own queues stay as they are, it runs none
# of the publisher's jobs, and the application's tables arrive.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../perl";

use ClusterTest;
use PostgreSQL::Test::Utils;
use Test::More;

# Two servers with queues of the same names and numbers, each with a handler that
# writes into a table that is not published.
my %node;
foreach my $name ('publisher', 'subscriber')
{
	my $node = $node{$name} = PostgreSQL::Test::Cluster->new($name);

	$node->init(allows_streaming => 'logical');
	$node->append_conf(
		'postgresql.conf', q{
autovacuum = off
max_worker_processes = 20
max_logical_replication_workers = 10
max_sync_workers_per_subscription = 6
max_replication_slots = 20
max_wal_senders = 20
queue.segment_size = '64kB'
});
	$node->start;
	$node->safe_psql(
		'postgres', qq{
		CREATE EXTENSION queue;
		CREATE TABLE orders (id int PRIMARY KEY, state text);
		CREATE UNLOGGED TABLE ran (body jsonb);
		CREATE FUNCTION work(body jsonb) RETURNS boolean LANGUAGE sql AS 'INSERT INTO ran VALUES (body) RETURNING true';
		SELECT queue_push_batch('mail', array_agg(to_jsonb('$name ' || g))) FROM generate_series(1, 20) g;
		SELECT queue_push('mail', '"later"', delay => 4000, dedup_key => '$name');
		SELECT queue_push('mail', '"keyed"', dedup_key => 'k');
		SELECT queue_create('turns', '{"_group_rate": 1}');
		SELECT queue_push('turns', '1', group_key => 'a');
		SELECT queue_create('jobs');
		SELECT job_handler('jobs', 'work(jsonb)');
		SELECT queue_push_once('mail', 'orders', 1, '"once"');
		SELECT job_root('mail', 'root')});
}
my ($publisher, $subscriber) = @node{ 'publisher', 'subscriber' };

# All rows of the extension, but those that the worker writes in passing
sub rows_of
{
	my ($node) = @_;
	my @tables = split /\n/,
	  $node->safe_psql('postgres',
		q{SELECT oid::regclass FROM pg_class WHERE relnamespace = 'queue_data'::regnamespace
		AND relkind = 'r' AND relname <> 'job_counter' ORDER BY relname});

	return [ split /\n/,
		$node->safe_psql('postgres',
			join '', map { "SELECT '$_', t::text FROM $_ t ORDER BY 2;" } @tables) ];
}

my $claim = $subscriber->safe_psql('postgres',
	q{SELECT DISTINCT claim_id FROM queue_claim('mail', 3000, 60, 2)});
my $rows = rows_of($subscriber);

$publisher->safe_psql('postgres',
	q{INSERT INTO orders VALUES (1, 'before'); CREATE PUBLICATION everything FOR ALL TABLES});
$subscriber->safe_psql('postgres',
	"CREATE SUBSCRIPTION everything CONNECTION '"
	  . $publisher->connstr
	  . " dbname=postgres' PUBLICATION everything");
ok( $subscriber->poll_query_until('postgres',
		q{SELECT count(*) > 20 AND bool_and(srsubstate = 'r') FROM pg_subscription_rel}),
	'all tables are copied');
is_deeply(rows_of($subscriber), $rows, 'the copy leaves the queues as they were');

# All kinds of changes on the publisher, with enough rows that the segment is
# recycled in which the subscriber has messages
my $truncated =
  q{SELECT truncated_at FROM queue_data.segment WHERE segment = 0};
my $first = $publisher->safe_psql('postgres', $truncated);
my $work = q{
	SELECT queue_push_batch('bulk', array_agg(to_jsonb(repeat('x', 100)))) FROM generate_series(1, 300);
	SELECT FROM claim_complete('bulk', (SELECT DISTINCT claim_id FROM queue_claim('bulk', 300, 60, 100)));
	SELECT FROM claim_release('bulk', (SELECT DISTINCT claim_id FROM queue_claim('bulk', 300, 60, 100)));
	SELECT queue_purge('bulk');
	SELECT queue_push_once('bulk', 'orders', 2, '"once"');
	SELECT queue_push('jobs', '"published"');
};
my $rounds = 0;
$publisher->safe_psql('postgres', q{SELECT queue_purge(name) FROM queue_list()});
do
{
	$publisher->safe_psql('postgres', $work);
} while ($rounds++ < 300
	&& $publisher->safe_psql('postgres', "SELECT ($truncated) = '$first'") eq 't');
cmp_ok($rounds, '<', 300, 'the segment was recycled');
$publisher->safe_psql(
	'postgres', q{
	SELECT queue_push('mail', '1', delay => 3000);
	SELECT FROM message_delete('gone', queue_push('gone', '1'));
	SELECT queue_push('turns', '1', group_key => 'b');
	SELECT FROM queue_claim('turns');
	SELECT queue_update('turns', '{"_max_claim_count": 1}');
	SELECT queue_pause('turns');
	SELECT queue_push('new', '1');
	SELECT queue_drop('bulk');
	SELECT job_root('mail', 'root');
	INSERT INTO orders VALUES (2, 'after');
	UPDATE orders SET state = 'changed' WHERE id = 1});
ok( $publisher->poll_query_until('postgres',
		q{SELECT count(*) > 0 FROM ran WHERE body = '"published"'}),
	'the publisher runs jobs');

$publisher->wait_for_catchup('everything');
is($subscriber->safe_psql('postgres', 'SELECT * FROM orders ORDER BY id'),
	"1|changed\n2|after", q{the application's tables arrive});
is_deeply(rows_of($subscriber), $rows, 'the changes leave the queues as they were');

# What the subscriber does with its own queues
is( $subscriber->safe_psql('postgres',
		"SELECT body FROM claim_messages('mail', '$claim')"),
	qq{"subscriber 1"\n"subscriber 2"}, 'a claim is held');
is($subscriber->safe_psql('postgres', "SELECT claim_complete('mail', '$claim')"),
	'2', 'and completed');
is( $subscriber->safe_psql('postgres',
		q{SELECT body FROM queue_claim('mail', 300, 60, 1)}),
	'"subscriber 3"', 'the next claim');
$subscriber->safe_psql('postgres', q{SELECT queue_push('jobs', '"own"')});
ok( $subscriber->poll_query_until('postgres', q{SELECT count(*) > 0 FROM ran}),
	'its handler runs');
is($subscriber->safe_psql('postgres', 'SELECT * FROM ran'),
	'"own"', 'its own jobs only');

foreach my $name (sort keys %node)
{
	unlike(slurp_file($node{$name}->logfile),
		qr/(?:ERROR|PANIC|TRAP):/, "$name: no error in the log");
}
$subscriber->safe_psql('postgres', 'DROP SUBSCRIPTION everything');
$_->stop foreach $subscriber, $publisher;
done_testing();
