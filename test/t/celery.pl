# The transport of Kombu, clients/celery: its own tests, and a Celery worker whose
# server restarts, whose sessions are terminated, which is killed, and whose password
# changes: each task is done, and the log says what happened.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../perl";

use IPC::Run;
use ClusterTest;
use PostgreSQL::Test::Utils;
use QueueTest qw(:DEFAULT find_python plant_functions);
use Test::More;

my $python = find_python();
foreach my $module ('kombu', 'celery')
{
	plan skip_all => "python3-$module is not installed"
	  if system("$python -c 'import $module' >/dev/null 2>&1") != 0;
}

start_server(
	q{
queue.min_claim_ttl = 1
queue.min_claim_grace = 0
queue.min_message_ttl = 1
});
my $client = "$FindBin::RealBin/../../clients/celery";
my $dir = PostgreSQL::Test::Utils::tempdir();
value(q{CREATE ROLE app LOGIN PASSWORD 'first' IN ROLE queue_producer, queue_consumer});
value(q{
	CREATE TABLE started (n int, pid int, again boolean, at timestamptz DEFAULT clock_timestamp());
	CREATE TABLE done (n int);
	CREATE DATABASE unit});
value('CREATE EXTENSION queue', 'unit');
plant_functions($_) foreach 'unit', 'postgres';
value('ALTER ROLE app SET search_path = earlier, public');

# postgresql://USER@/DATABASE, with a file for the password
sub url
{
	my ($user, $database) = @_;
	return "postgresql://$user@/$database?host=" . $node->host . '&port=' . $node->port
	  . "&passfile=$dir/passwords";
}

sub set_password
{
	my ($password) = @_;

	unlink "$dir/passwords";
	append_to_file("$dir/passwords", "*:*:*:app:$password\n");
	chmod 0600, "$dir/passwords" or die;
	return;
}

local $ENV{PYTHONPATH} = $client;
local $ENV{PYTHONDONTWRITEBYTECODE} = 1;
local $ENV{C_FORCE_ROOT} = 1;
chdir "$client/test" or die;

# --- What the transport does by itself ---
{
	local $ENV{DSN} = url('app', 'unit');
	local $ENV{ADMIN} = url($node->safe_psql($db, 'SELECT current_user'), 'unit');
	my $out = '';
	my $ok = IPC::Run::run([ $python, '-W', 'ignore', '-m', 'unittest', 'test_transport' ],
		'<', \undef, '>&', \$out);
	ok($ok, 'tests of the transport') or diag $out;
	like($out, qr/^Ran [1-9][0-9]+ tests/m, 'which have run');
}

# --- A worker while its server fails ---

unlink $node->data_dir . '/pg_hba.conf';
$node->append_conf('pg_hba.conf', "local all app scram-sha-256\nlocal all all trust\n");
$node->reload;
set_password('first');
local $ENV{DSN} = url($node->safe_psql($db, 'SELECT current_user'), 'postgres');
local $ENV{BROKER} = 'queue+' . url('app', 'postgres');
local $ENV{TTL} = 2;

my $pushed = 0;

sub push_tasks
{
	my ($count, $seconds) = @_;
	my $from = $pushed;

	$pushed += $count;
	return $node->command_ok(
		[
			$python, '-W', 'ignore', '-c',
			"from app import work\nfor n in range($from, $pushed): work.delay(n, $seconds, False)"
		],
		"$count tasks are pushed");
}

sub start_worker
{
	my ($name) = @_;

	return IPC::Run::start(
		[
			$python, '-W', 'ignore', '-m', 'celery', '-A', 'app', 'worker', '-c', 2,
			'-l', 'INFO', '-n', "$name\@test", '--without-gossip', '--without-mingle',
			'-f', "$dir/$name.log" ],
		'<', \undef, '>', '/dev/null', '2>', '/dev/null');
}

# Waits until the log of the worker has this, from an offset on.
sub logs
{
	my ($name, $from, $pattern, $what) = @_;
	my $until = time + 180;
	my $log = '';

	while ($log !~ $pattern && time < $until)
	{
		sleep 0.1;
		$log = -e "$dir/$name.log" ? substr(slurp_file("$dir/$name.log"), $from) : '';
	}
	return like($log, $pattern, $what);
}

sub all_done
{
	my ($what) = @_;

	becomes('SELECT count(DISTINCT n) FROM done', $pushed, $what);
	return becomes(q{SELECT total FROM queue_stats('celery')}, 0, 'and none is left');
}

my $sessions = q{pg_stat_activity WHERE usename = 'app'};
push_tasks(6, 1);
my $worker = start_worker('one');
becomes_true('SELECT count(*) >= 2 FROM started', 'a worker works');
$node->command_like([ $python, '-W', 'ignore', '-m', 'celery', '-A', 'app', 'inspect', 'ping', '-t', 30 ],
	qr/one\@test: OK\s+pong/, 'it answers, though its role may bind no topics');

my $from = -s "$dir/one.log";
value("SELECT pg_terminate_backend(pid) FROM $sessions");
logs('one', $from, qr/Connection to broker lost/, 'its sessions are terminated');
all_done('the tasks are done nevertheless');

push_tasks(6, 1);
$from = -s "$dir/one.log";
$node->stop('immediate');
logs('one', $from, qr/Cannot connect to queue\+postgresql:\/\/app\@.* failed: /,
	'the server crashes');
$node->start;
all_done('after its restart the tasks are done');

$from = -s "$dir/one.log";
value("ALTER ROLE app PASSWORD 'second'; SELECT pg_terminate_backend(pid) FROM $sessions");
logs('one', $from, qr/Cannot connect to .* password authentication failed for user "app"/,
	'the password changes');
set_password('second');
push_tasks(4, 0);
all_done('with the new password the tasks are done');

# Tasks that the worker does not complete: it is killed, with its processes.
push_tasks(2, 3600);
becomes('SELECT count(*) FROM started WHERE n NOT IN (SELECT n FROM done)', 2, 'two tasks are worked on');
my $pids = value(q{SELECT string_agg(DISTINCT pid::text, ' ') FROM started WHERE n NOT IN (SELECT n FROM done)});
$worker->signal('KILL');
kill 'KILL', split(/ /, $pids);
$worker->finish;
value('UPDATE started SET again = NULL');
$worker = start_worker('two');
becomes('SELECT count(*) FROM started WHERE again', 2,
	'the tasks of a killed worker are delivered again');
$pids = value(q{SELECT string_agg(DISTINCT pid::text, ' ') FROM started WHERE n NOT IN (SELECT n FROM done)});
$worker->signal('KILL');
kill 'KILL', split(/ /, $pids);
$worker->finish;

$node->stop;
done_testing();
