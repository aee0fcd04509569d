# queue_wait through the router waits on the server of the queue: a push wakes it,
# a cancel request ends it on both sides, and nothing is left on the server when the
# router's session ends.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../perl";

use ClusterTest;
use PostgreSQL::Test::Utils;
use ProxyTest;
use Test::More;
use Time::HiRes qw(sleep time);

start_servers();

my $there = queue_on('two', 'q');
my $waits = q{SELECT count(*) FROM pg_stat_activity
	WHERE query ~ 'queue_router.wait' AND state = 'active' AND pid <> pg_backend_pid()};

# A session of the router that waits; its process id
sub start_wait
{
	my ($what, $ms) = @_;
	my $session = $one->background_psql('router', on_error_stop => 0);
	my $pid = $session->query('SELECT pg_backend_pid()');

	$session->query_until(qr/start/, "\\echo start\nCALL queue_wait('$there', $ms);\n");
	ok($two->poll_query_until('postgres', "SELECT ($waits) = 1"), "$what: it waits on the server");
	return ($session, $pid);
}

# Ends on the server, an hour before its own end
sub ends
{
	my ($what) = @_;

	ok($two->poll_query_until('postgres', "SELECT ($waits) = 0"), "$what: nothing waits on the server");
	return;
}

my ($session, $pid) = start_wait('push', 3_600_000);
$two->safe_psql('postgres', "SELECT queue_push('$there', '1')");
is($session->query('SELECT 1'), "t\n1", 'push: it is woken');
ends('push');

is(routed("CALL queue_wait('$there', 600000)"), 't', 'something is there');
$two->safe_psql('postgres', "SELECT queue_purge('$there')");
my $start = time;
is(routed("CALL queue_wait('$there', 300)"), 'f', 'a timeout');
cmp_ok(time - $start, '>=', 0.3, 'which is waited for');

# A project, and longer than one wait on the server
$start = time;
is(routed("SET queue.project = 'p'; CALL queue_wait('$there', 2300)"), 'f', 'a longer one');
cmp_ok(time - $start, '>=', 2.3, 'which is waited for');

# A name that is on that server in both projects
my $both = $one->safe_psql('postgres', q{SELECT 'p' || g FROM generate_series(1, 100) AS g
	WHERE queue_shard('p' || g) % 2 = 0 AND queue_shard('p' || g, 'p') % 2 = 0 LIMIT 1});
$two->safe_psql('postgres', "SET queue.project = 'p'; SELECT queue_push('$both', '1')");
is(routed("CALL queue_wait('$both', 0)"), 'f', 'it is for the session\'s project');
is(routed("SET queue.project = 'p'; CALL queue_wait('$both', 100)"), 't', 'another one');
is(routed("CALL queue_wait('$both', 100, project => 'p')"), 't', 'or the argument\'s');

($session, $pid) = start_wait('cancel', 3_600_000);
$one->safe_psql('postgres', "SELECT pg_cancel_backend($pid)");
$session->query('SELECT 1');
like($session->{stderr}, qr/canceling statement due to user request/, 'cancel: the error');
ends('cancel');
$session->quit;

($session, $pid) = start_wait('terminate', 3_600_000);
$one->safe_psql('postgres', "SELECT pg_terminate_backend($pid)");
ends('terminate');
eval { $session->quit };

$one->safe_psql('postgres',
	q{ALTER DATABASE router SET client_connection_check_interval = '100ms'});
($session) = start_wait('client gone', 3_600_000);
$session->{run}->kill_kill;
ends('client gone');

ok( $two->poll_query_until('postgres',
		q{SELECT count(*) = 0 FROM pg_stat_activity WHERE query ~ 'queue_router.wait'
			AND backend_xmin IS NOT NULL AND pid <> pg_backend_pid()}),
	'no snapshot is left');
is( $two->safe_psql('postgres',
		q{SELECT coalesce(sum(waiters), 0) FROM queue_data.availability_map}),
	0, 'no waiter is left');

$_->stop foreach $one, $two;
done_testing();
