# The storage driver for Zaqar: zaqar-server with the driver, used by its client, while
# connections end, the server restarts, and the password changes.  zaqar_conformance.pl
# runs Zaqar's own tests.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../perl";

use HTTP::Tiny;
use IPC::Run;
use JSON::PP;
use ClusterTest;
use PostgreSQL::Test::Utils;
use QueueTest qw(:DEFAULT find_python plant_functions);
use Test::More;
use Time::HiRes qw(sleep);

my $python = find_python();
# Isolated: queue.so in this directory is not the module "queue".
foreach my $package (qw(zaqar zaqarclient sqlalchemy setuptools))
{
	plan skip_all => "package python3-$package is not installed"
	  if system("$python -I -c 'import $package' >/dev/null 2>&1") != 0;
}
plan skip_all => 'package zaqar-server is not installed' unless -x '/usr/bin/zaqar-server';

start_server('autovacuum = off');
plant_functions();
my $dir = PostgreSQL::Test::Utils::tempdir();
my $client = "$FindBin::RealBin/../../clients/zaqar";
($ENV{PGHOST}, $ENV{PGPORT}) = ($node->host, $node->port);
$ENV{HOME} = $dir;
$ENV{PYTHONDONTWRITEBYTECODE} = 1;
$ENV{PYTHONWARNINGS} = 'ignore';

my ($out, $err);

# --- zaqar-server ---

# A tree with the entry points, as after an installation
system('cp', '-R', $client, "$dir/client") == 0 or die;
system("cd $dir/client && $python -c 'from setuptools import setup; setup()' -q egg_info") == 0
  or die;
$ENV{PYTHONPATH} = "$dir/client";

sub write_password
{
	my ($password) = @_;

	unlink "$dir/pgpass";
	append_to_file("$dir/pgpass", "*:*:*:zaqar:$password\n");
	chmod 0600, "$dir/pgpass" or die;
}

value(q{
	CREATE ROLE zaqar LOGIN PASSWORD 'first' IN ROLE queue_producer, queue_consumer;
	ALTER ROLE zaqar SET search_path = earlier, public});
write_password('first');
my $hba = $node->data_dir . '/pg_hba.conf';
my $rules = slurp_file($hba);
unlink $hba;
append_to_file($hba, "local all zaqar scram-sha-256\n$rules");
$node->reload;

my (@servers, @addresses);
foreach my $n (1, 2)
{
	my $port = PostgreSQL::Test::Cluster::get_free_port();
	append_to_file("$dir/zaqar$n.conf", <<"CONF");
[DEFAULT]
enable_deprecated_api_versions = 1,1.1

[drivers]
message_store = postgresql
management_store = sqlalchemy

[drivers:transport:wsgi]
bind = 127.0.0.1
port = $port

[drivers:message_store:postgresql]
uri = postgresql://zaqar@/postgres?host=$ENV{PGHOST}&port=$ENV{PGPORT}&passfile=$dir/pgpass
CONF
	push @servers,
	  IPC::Run::start(
		[ $python, '/usr/bin/zaqar-server', '--config-file', "$dir/zaqar$n.conf" ],
		'<', \undef, '>&', "$dir/zaqar$n.log");
	push @addresses, "127.0.0.1:$port";
}

END
{
	my $status = $?;
	$_->kill_kill(grace => 5) foreach @servers;
	$? = $status;
}

my $http = HTTP::Tiny->new(
	timeout => 180,
	default_headers => {
		'Client-ID' => '3381af92-2b9e-11e3-b191-71861300734c',
		'X-Project-ID' => 'outage', 'Content-Type' => 'application/json' });

# The status of a request to the first server
sub request
{
	my ($method, $path, $body) = @_;

	return $http->request($method, "http://$addresses[0]$path",
		$body ? { content => encode_json($body) } : {})->{status};
}

# Where the log of the first server ends now, and what it says of the driver since then
sub log_end
{
	return -s "$dir/zaqar1.log";
}

sub logged
{
	my ($from) = @_;
	my $text = substr(slurp_file("$dir/zaqar1.log"), $from);

	return join "\n", $text =~ /(?:WARNING|ERROR) zaqar_postgresql\.database (?:\[.*?\] )*(.*?)(?:\e.*)?$/mg;
}

my $patience = 100 * $PostgreSQL::Test::Utils::timeout_default;
foreach my $address (@addresses)
{
	my $tries = 0;
	sleep 0.1
	  while $http->get("http://$address/")->{status} == 599 && $tries++ < $patience / 10;
}
IPC::Run::run([ $python, "$client/tests/client.py", $addresses[0] ],
	'<', \undef, '>', \$out, '2>', \$err);
is($out, "ok\n", 'clients') or diag($err);

# --- The connection ends while it is idle ---

my $queue = '/v2/queues/outage';
my $post = { messages => [ { ttl => 3600, body => 1 } ] };
my $claim = { ttl => 60, grace => 60 };
is(request('PUT', $queue), 201, 'a queue');

my $from = log_end();
value(q{SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE usename = 'zaqar'});
is(request('POST', "$queue/messages", $post), 201, 'after pg_terminate_backend');
is( logged($from),
	'PostgreSQL has ended the connection: FATAL: terminating connection due to administrator command',
	'one line');

$from = log_end();
$node->restart;
is(request('POST', "$queue/messages", $post), 201, 'after a restart');
is( logged($from),
	'PostgreSQL has ended the connection: FATAL: terminating connection due to administrator command',
	'one line');

# --- while it works ---

my $purge = $node->background_psql('postgres');
$purge->query_safe(q{BEGIN; SET queue.project = 'outage'; SELECT queue_purge('outage')});
my $killer = IPC::Run::start(
	[ 'psql', '-X', '-c', <<'SQL', $node->connstr('postgres') ], '<', \undef, '>', \my $ignored);
DO $$
BEGIN
	LOOP
		PERFORM pg_stat_clear_snapshot();
		PERFORM pg_terminate_backend(pid) FROM pg_stat_activity
		WHERE usename = 'zaqar' AND wait_event_type = 'Lock';
		EXIT WHEN FOUND;
		PERFORM pg_sleep(0.01);
	END LOOP;
END
$$
SQL
$from = log_end();
is(request('POST', "$queue/messages", $post), 503, 'a push is interrupted');
$killer->finish;
like(logged($from), qr/^lost the connection to PostgreSQL during a call: [^\n]+$/,
	'one line');
$purge->query_safe('ROLLBACK');
$purge->quit;
is(request('POST', "$queue/messages", $post), 201, 'the next one succeeds');
is(value(q{SET queue.project = 'outage'; SELECT total FROM queue_stats('outage')}),
	3, 'and is the third');

# --- The server is down ---

$node->stop;
is(request('POST', "$queue/claims", $claim), 503, 'no server');
$from = log_end();
is(request('GET', '/v2/ping'), 503, 'Zaqar says so');
like(logged($from), qr/^cannot connect to PostgreSQL: connection to server [^\n]*$/, 'one line');
$node->start;
is(request('POST', "$queue/claims", $claim), 201, 'there it is');

# --- Other passwords, and no connection left ---

sub end_connections
{
	value(q{SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE usename = 'zaqar'});
}

value(q{ALTER ROLE zaqar PASSWORD 'second'});
is(request('GET', "$queue/stats"), 200, 'the password changes');
end_connections();
is(request('GET', '/v2/ping'), 503, 'a new connection needs it');
$from = log_end();
is(request('GET', "$queue/stats"), 503, 'each');
my $line = logged($from);
like($line,
	qr/^cannot connect to PostgreSQL: .*password authentication failed for user "zaqar"[^\n]*$/,
	'one line');
unlike($line, qr/first|second/, 'without the password');
write_password('second');
is(request('GET', "$queue/stats"), 200, 'the file has the password');

end_connections();
value('ALTER ROLE zaqar CONNECTION LIMIT 0');
is(request('GET', '/v2/ping'), 503, 'no connection left');
$from = log_end();
is(request('GET', "$queue/stats"), 503, 'for any request');
like(logged($from), qr/^cannot connect [^\n]*too many connections for role "zaqar"$/, 'one line');
value('ALTER ROLE zaqar CONNECTION LIMIT -1');
is(request('GET', "$queue/stats"), 200, 'there are some again');

# --- Under load ---

is(request('DELETE', $queue), 204, 'a new queue');
my $load = IPC::Run::start([ $python, "$client/tests/outage.py", 400, @addresses ],
	'<', \undef, '>&', \$out, my $timer = IPC::Run::timeout(10 * $PostgreSQL::Test::Utils::timeout_default));
foreach my $round (1 .. 6)
{
	becomes_true(sprintf(q{SET queue.project = 'outage';
		SELECT claimed >= %d FROM job_stats('outage')}, 30 * $round), "load, round $round");
	if ($round % 3 == 0)
	{
		$node->restart('immediate');
	}
	else
	{
		end_connections();
	}
}
$load->finish;
note $out;
like($out, qr/^400 pushed, .* lost: none$/m, 'nothing is lost');
diag($out) unless $out =~ /none$/;

$node->stop;
done_testing();
