# Messages that expire unclaimed: the worker logs how many, at once and then no
# more than once a minute; queue_status has the queues.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../perl";

use List::Util qw(sum0);
use PostgreSQL::Test::Utils;
use QueueTest;
use Test::More;
use Time::HiRes qw(sleep);

start_server(
	q{
autovacuum = off
queue.min_message_ttl = 1
log_timezone = 'UTC'
});

# What the worker has logged since the last call, without the prefixes
my $offset = 0;

sub logged
{
	my $log = slurp_file($node->logfile, $offset);
	$offset += length($log);
	return join("\n",
		map { s/^.*?\b(LOG|HINT):  /$1: /r }
		  grep { /expired unclaimed|"expired"/ } split(/\n/, $log));
}

# The worker removes it.
$node->safe_psql($db,
	q{SET queue.project = 'wiki'; SELECT queue_push('mail', '1', 1)});
$node->wait_for_log(qr/expired unclaimed.*\n.*HINT.*\n/, $offset);
is( logged(),
	q{LOG: 1 message expired unclaimed
HINT: See "expired" in queue_data.queue_status for their queues. Have more workers claim from these, or give their messages a longer ttl.},
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
like(logged(), qr/^LOG: 3 messages expired unclaimed\nHINT/,
	'they are logged when there is a worker');

# More follow, in many queues; their sum is logged when a minute is over.
foreach my $round (1 .. 2)
{
	$node->safe_psql($db,
		q{SELECT queue_push('q' || i, '1', 1) FROM generate_series(1, 25) AS i});
	$node->poll_query_until($db,
		"SELECT sum(s.expired) = 25 * $round FROM generate_series(1, 25) AS i, job_stats('q' || i) AS s"
	) or die 'the worker did not remove them';
}
my (@times, $sum);
for (1 .. 10 * $PostgreSQL::Test::Utils::timeout_default)
{
	my @lines = grep { /expired unclaimed/ } split /\n/, slurp_file($node->logfile);
	@times = map { /^(\S+ \S+)/ } @lines;
	$sum = sum0(map { /LOG:  (\d+)/ } @lines);
	last if $sum >= 54;
	sleep 0.1;
}
is($sum, 54, 'all are logged');
shift @times;    # of the first worker
is( $node->safe_psql($db,
		"SELECT min(gap) >= interval '59 s' FROM (SELECT t - lag(t) OVER (ORDER BY t) AS gap FROM unnest('{"
		  . join(',', map { "\"$_\"" } @times)
		  . "}'::timestamp[]) AS t) AS g"),
	't',
	'once in a minute');
is( $node->safe_psql($db,
		q{SELECT sum(expired) FROM queue_data.queue_status}),
	54, 'queue_status shows all');

$node->stop;
done_testing();
