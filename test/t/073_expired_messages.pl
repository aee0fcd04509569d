# Messages that expire unclaimed: the worker logs how many which queue has lost,
# at once and then no more than once a minute.
#
# One mode: the library is preloaded.

use strict;
use warnings;

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = PostgreSQL::Test::Cluster->new('main');
$node->init;
$node->append_conf(
	'postgresql.conf', q{
autovacuum = off
shared_preload_libraries = 'queue'
queue.min_message_ttl = 1
});
$node->start;
my $db = 'postgres';
$node->safe_psql($db, 'CREATE EXTENSION queue');

# What the worker has logged since the last call, without the prefixes
my $offset = 0;

sub logged
{
	my $log = slurp_file($node->logfile, $offset);
	$offset += length($log);
	return join("\n",
		map { s/^.*?\b(LOG|DETAIL|HINT):  /$1: /r }
		  grep { /expired unclaimed|project is|loses|"expired"/ } split(/\n/, $log));
}

# The worker removes it.
$node->safe_psql($db,
	q{SET queue.project = 'wiki'; SELECT queue_push('mail', '1', 1)});
$node->wait_for_log(qr/expired unclaimed.*\n.*\n.*HINT.*\n/, $offset);
is( logged(),
	q{LOG: 1 message of queue "mail" expired unclaimed
DETAIL: The queue's project is "wiki".
HINT: Have more workers claim from it, or give its messages a longer ttl. job_stats counts what it loses.},
	'a message that is lost is logged');

# A claim of another session removes them.
$node->safe_psql($db, 'ALTER SYSTEM SET queue.database_workers = 0');
$node->reload;
my $workers =
  q{SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'queue worker'};
$node->poll_query_until($db, $workers, '0') or die 'the worker did not end';
$node->safe_psql(
	$db, q{
	SELECT queue_push_batch('orders', '{1, 2, 3}', 1);
	SELECT pg_sleep(1.1);
	SELECT FROM queue_claim('orders')});
is($node->safe_psql($db, q{SELECT expired FROM job_stats('orders')}),
	'3', 'those that a claim meets are counted');
is(logged(), '', 'and nothing is logged without a worker');
$node->safe_psql($db, 'ALTER SYSTEM RESET queue.database_workers');
$node->reload;
$node->wait_for_log(qr/expired unclaimed.*\n.*HINT.*\n/, $offset);
like(logged(), qr/^LOG: 3 messages of queue "orders" expired unclaimed\nHINT/,
	'they are logged when there is a worker');

# More follow, in many queues; they are logged together, after a minute.
foreach my $round (1 .. 2)
{
	$node->safe_psql($db,
		q{SELECT queue_push('q' || i, '1', 1) FROM generate_series(1, 25) AS i});
	$node->poll_query_until($db,
		"SELECT sum(s.expired) = 25 * $round FROM generate_series(1, 25) AS i, job_stats('q' || i) AS s"
	) or die 'the worker did not remove them';
}
is(logged(), '', 'what follows soon is not logged');
$node->wait_for_log(qr/more queues expired unclaimed\n.*HINT.*\n/, $offset);
my $report = logged();
is(scalar(() = $report =~ /^LOG: 2 messages of queue "q\d+" expired unclaimed$/mg),
	20, 'after a minute twenty queues are named');
like(
	$report,
	qr/^LOG: 10 messages of 5 more queues expired unclaimed\nHINT: See "expired" in queue_data.queue_status/m,
	'and others are not');
is( $node->safe_psql($db,
		q{SELECT sum(expired) FROM queue_data.queue_status}),
	54, 'queue_status shows all');

$node->stop;
done_testing();
