# The adapter of ActiveJob and its worker, clients/activejob: what is enqueued, and that
# each job takes effect once, whatever happens to its worker, its session, the server and
# the password, and the log says what has happened.  With ActiveRecord;
# activejob_alone.pl runs this file without.
#
# ActiveJob's own tests are run by hand: clients/activejob/test/rails.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../perl";

use IPC::Run;
use ClusterTest;
use PostgreSQL::Test::Utils;
use QueueTest qw(:DEFAULT plant_functions);
use Test::More;
use Time::HiRes qw(sleep time);

sub installed
{
	my ($library) = @_;
	return system("ruby -e 'require %q($library)' >/dev/null 2>&1") == 0;
}
plan skip_all => 'ruby is not installed' if system('ruby -v >/dev/null 2>&1') != 0;
plan skip_all => 'ruby-activejob is not installed' unless installed('active_job');
our $alone;
plan skip_all => 'ruby-activerecord is not installed'
  unless $alone || installed('active_record');
plan skip_all => 'ruby-pg is not installed' unless installed('pg');

my $client = "$FindBin::RealBin/../../clients/activejob";
my $dir = PostgreSQL::Test::Utils::tempdir();
start_server("queue.min_claim_ttl = 1\n");
plant_functions();

# A role with a password, and a file that has it
value(q{CREATE ROLE app LOGIN PASSWORD 'first' IN ROLE queue_producer, queue_consumer});
my $hba = $node->data_dir . '/pg_hba.conf';
my $rest = slurp_file($hba);
unlink $hba;
append_to_file($hba, "local all app scram-sha-256\n$rest");
$node->reload;

sub password
{
	my ($password) = @_;
	open my $file, '>', "$dir/pgpass" or die $!;
	print $file "*:*:*:app:$password\n";
	close $file;
	chmod 0600, "$dir/pgpass";
	return;
}
password('first');

my %environment = (
	PGHOST => $node->host,
	PGPORT => $node->port,
	PGDATABASE => 'postgres',
	PGPASSFILE => "$dir/pgpass",
	RUBYLIB => "$client/lib",
	RUBYOPT => '-W0');
delete local @ENV{qw(PGPASSWORD PGSERVICE)};
local @ENV{ keys %environment } = values %environment;

append_to_file("$dir/jobs.rb", <<'RUBY');
require "activejob-queue"
if ENV["RECORD"]
  require "active_record"
  ActiveRecord::Base.establish_connection(adapter: "postgresql", database: ENV["PGDATABASE"])
end
ActiveJob::Base.queue_adapter = :queue
ActiveJob::Base.logger = Logger.new(nil)

def sql(text, *values)
  ActiveJob::QueueAdapters::QueueAdapter.query(ActiveJob::Base.queue_adapter.connection, text, *values)
end

class Job < ActiveJob::Base
  queue_as :work

  # "started" is seen at once, "done" when the job is completed.
  def perform(n, hold = nil)
    PG.connect { |connection| connection.exec("INSERT INTO started VALUES (#{n}, #{Process.pid})") } if hold
    sql("INSERT INTO done VALUES ($1, $2)", n, provider_job_id)
    case hold
    when Numeric then sleep hold
    when "gate" then sleep 0.02 while sql("SELECT 1 FROM gate").empty?
    when "error" then raise "no such address\0\xff"
    when "exit" then exit
    end
  end
end

class AgainJob < Job
  retry_on PG::UniqueViolation, wait: 0, attempts: 3
  retry_on ActiveRecord::RecordNotUnique, wait: 0, attempts: 3 if ENV["RECORD"]

  # An error of PostgreSQL, which ends the transaction, and then none
  def perform(n)
    sql("INSERT INTO done VALUES ($1, $2)", n, executions)
    sql("INSERT INTO once VALUES (1)") if executions < 3
  end
end

class AccountJob < Job
  def group_key = "account #{arguments.first}"

  def perform(account, seconds)
    sql("INSERT INTO span VALUES ($1, clock_timestamp())", account)
    sleep seconds
    sql("UPDATE span SET ended = clock_timestamp() WHERE account = $1 AND ended IS NULL", account)
  end
end
RUBY

# Runs Ruby in the application, which has its connection.
sub application
{
	my ($code) = @_;
	open my $file, '>', "$dir/code.rb" or die $!;
	print $file qq{require "$dir/jobs"\n},
	  qq{ActiveJob::Base.queue_adapter.connection = PG.connect unless ENV["RECORD"]\n}, $code;
	close $file;
	local $ENV{PGUSER} = 'app';
	my ($out, $error) = run_command([ 'ruby', "$dir/code.rb" ]);
	is($error, '', 'no error of the application');
	return $out;
}

my $number = 0;

sub worker
{
	my (@options) = @_;
	my $worker = { log => "$dir/log." . ++$number };
	local $ENV{PGUSER} = 'app';
	$worker->{run} = IPC::Run::start(
		[ 'ruby', "$client/exe/activejob-queue", '-r', "$dir/jobs", '--threads', 1, '--claim', '5', @options ],
		'<', \undef, '&>', $worker->{log});
	$worker->{pid} = $worker->{run}->{KIDS}->[0]->{PID};
	logs($worker, 'performs the jobs of');
	return $worker;
}

sub logs
{
	my ($worker, $wanted, $name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my $until = time + 60;
	my $log = '';

	while (time < $until)
	{
		$log = -e $worker->{log} ? slurp_file($worker->{log}) : '';
		last if $log =~ /$wanted/;
		sleep 0.05;
	}
	return like($log, qr/$wanted/, $name // "the log of a worker: $wanted");
}

sub stop
{
	my ($worker, $signal) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	$worker->{run}->signal($signal // 'TERM');
	$worker->{run}->finish;
	return is($worker->{run}->full_result(0), defined $signal ? 9 : 0, 'the worker has ended');
}

my $undone = q{SELECT count(*) FROM queue_messages('work', NULL::bigint, 1000, true, true, true)};

sub once
{
	my ($numbers, $name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	becomes("$undone", 0, "$name: no message is left");
	return is(value('SELECT string_agg(n::text, \' \' ORDER BY n) FROM done'),
		$numbers, "$name: each job has taken effect once");
}

sub fresh
{
	my ($metadata) = @_;
	value(qq{
		DROP TABLE IF EXISTS started, done, gate, once, span;
		CREATE TABLE started (n int, pid int);
		CREATE TABLE done (n int, id bigint);
		CREATE TABLE gate ();
		CREATE TABLE once (n int PRIMARY KEY);
		INSERT INTO once VALUES (1);
		CREATE TABLE span (account int, started timestamptz, ended timestamptz);
		GRANT ALL ON started, done, gate, once, span TO app;
		SELECT queue_drop('work'), queue_drop('work.dead'), queue_drop('other');
		SELECT queue_create('work', '{"_max_claim_count": 8, "_retry_delay": 0, "_keep_finished": 3600}'::jsonb),
			queue_create('other', '{"_max_claim_count": 8}'::jsonb), queue_update('work', '$metadata'::jsonb)});
	return;
}

sub test_client
{
	my ($mode) = @_;
	my $transaction =
	  $mode eq 'ActiveRecord'
	  ? 'ActiveRecord::Base.transaction do |*| %s; raise ActiveRecord::Rollback; end'
	  : 'sql("BEGIN"); %s; sql("ROLLBACK")';
	note "with $mode";

	# --- What is enqueued ---

	fresh('{}');
	application(sprintf($transaction, 'Job.perform_later(0)') . <<'RUBY');

Job.perform_later(1)
Job.set(priority: 9).perform_later(2)
Job.set(priority: 0).perform_later(3)
Job.set(priority: -20).perform_later(4)
Job.set(priority: 4, wait: 100, queue: "other").perform_later(5)
jobs = [AccountJob.new(7, 0), AccountJob.new(8, 0), Job.new(6)]
jobs[2].priority = 7
ActiveJob::Base.queue_adapter.enqueue_all(jobs)
raise "not enqueued" unless jobs.all? { |job| job.provider_job_id.is_a?(Integer) }
bad = Job.new(10)
bad.queue_name = "no name"
begin
  ActiveJob::Base.queue_adapter.enqueue_all([Job.new(9), bad])
rescue => error
  raise unless error.message.include?("no name")
end
RUBY
	is( value(q{SELECT string_agg(concat_ws(' ', body->>'job_class', body->'arguments'->0, priority, group_key), ', '
			ORDER BY priority DESC, id) FROM queue_messages('work', NULL::bigint, 100)}),
		'Job 3 9, Job 4 9, Job 1 4, AccountJob 7 4 account 7, AccountJob 8 4 account 8, Job 6 2, Job 2 0',
		'jobs as messages; none of what was rolled back');
	is( value(q{SELECT body->'arguments', priority FROM queue_messages('other', NULL::bigint, 10, include_delayed => true)
			WHERE id NOT IN (SELECT id FROM queue_messages('other'))}),
		'[5]|5', 'a delayed job');

	# --- Order, two queues, groups ---

	value(q{SELECT queue_purge('other'); SELECT queue_cancel_where('work', '{"job_class": "AccountJob"}'::jsonb)});
	my $worker = worker('work', 'other');
	once('1 2 3 4 6', 'a worker of two queues');
	is( value(q{SELECT string_agg(n::text, ' ' ORDER BY ctid) FROM done}),
		'3 4 1 6 2', 'which performs them by priority');
	application('Job.set(queue: "other").perform_later(11); Job.perform_later(12)');
	becomes(q{SELECT count(*) FROM done WHERE n > 10}, 2, 'and is notified of both');
	stop($worker);

	fresh('{"_group_concurrency": 1}');
	application('ActiveJob::Base.queue_adapter.enqueue_all((1..6).map { |n| AccountJob.new(n % 2, 0.2) })');
	my @workers = map { worker('work') } 1 .. 2;
	becomes($undone, 0, 'two workers and two accounts');
	is( value(q{SELECT count(*) FROM span AS a, span AS b WHERE a.ctid <> b.ctid
			AND a.account = b.account AND a.started < b.ended AND b.started < a.ended}),
		0, 'no two jobs of one account at a time');
	is(value('SELECT count(*) FROM span'), 6, 'all were performed');

	# --- Errors ---

	fresh('{"_max_claim_count": 2}');
	application('AgainJob.perform_later(1); Job.perform_later(2, "error"); Job.perform_later(3, "exit")');
	value(q{SELECT queue_push('work', '"no job"'::jsonb), queue_push('work', '{"job_class": "Kernel"}'::jsonb)});
	once(1, 'jobs that fail');
	is(value('SELECT id FROM done'), 3, 'retry_on after an error of PostgreSQL, in the third execution');
	is( value(q{SELECT string_agg(concat_ws(' ', body->'arguments'->0, reason, claim_count, last_error), ', '
			ORDER BY last_error) FROM queue_dead_letters('work.dead')}),
		join(', ',
			'2 max_claim_count 2 RuntimeError: no such address?',
			'3 max_claim_count 2 SystemExit: exit',
			'buried 1 Worker::NotAJob: The body names no class of jobs',
			'buried 1 Worker::NotAJob: The body names no class of jobs'),
		'dead letters with their errors');
	my $log = join '', map { slurp_file($_->{log}) } @workers;
	my @attempts = $log =~ /attempt \d failed.*RuntimeError: no such address/g;
	is(scalar @attempts, 2, 'each attempt is in the log');
	like($log, qr/attempt 2 failed, now a dead letter: RuntimeError/, 'so is the dead letter');

	# --- Renewed claims, lost claims, canceled messages ---

	fresh('{}');
	application('Job.perform_later(1, 7)');
	once(1, 'a job that takes longer than its claim');
	is(value(q{SELECT outcome, attempts FROM queue_finished('work')}), 'completed|1', 'in one attempt');

	my $held = q{SELECT claim_id FROM queue_messages('work', include_claimed => true)};
	fresh('{}');
	application('Job.perform_later(1, "gate")');
	becomes('SELECT count(*) FROM started', 1, 'a job is performed');
	value("SELECT claim_release('work', claim_id, failed => true) FROM ($held) AS held");
	becomes('SELECT count(*) FROM started', 2, 'its claim ends, and the other worker performs it, too');
	value('INSERT INTO gate DEFAULT VALUES');
	once(1, 'a job whose claim has ended');

	# The one that has lost its claim may notice that last.
	my $until = time + 60;
	my @lines;
	do
	{
		sleep 0.05;
		@lines = (join '', map { slurp_file($_->{log}) } @workers) =~ /not completed: .*claim is not live/g;
	} while (!@lines && time < $until);
	is(scalar @lines, 1, 'one line in the log');

	fresh('{}');
	application('Job.perform_later(1, "gate"); Job.perform_later(2)');
	becomes('SELECT count(*) FROM started', 1, 'a job is performed');
	value(q{SELECT message_cancel('work', id) FROM queue_messages('work', include_claimed => true)
		WHERE claim_id IS NOT NULL});
	value('INSERT INTO gate DEFAULT VALUES');
	once(2, 'a job that was canceled');
	is( () = (join '', map { slurp_file($_->{log}) } @workers) =~ /not completed: .*was canceled/g,
		1, 'one line in the log');

	# --- The server, sessions, the password ---

	stop(pop @workers);
	$worker = $workers[0];
	my %events = (
		'a restart' => sub { $node->restart('fast') },
		'a crash' => sub { $node->stop('immediate'); sleep 1; $node->start },
		'pg_terminate_backend' =>
		  sub { value(q{SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'app'}) },
		'a password that changed' => sub {
			value(q{ALTER ROLE app PASSWORD 'second';
				SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'app'});
			logs($worker, 'will connect again: .*password authentication failed');
			sleep 3;
			password('second');
		},
		'connections used up' => sub {
			value(q{ALTER ROLE app CONNECTION LIMIT 0;
				SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'app'});
			logs($worker, 'will connect again: .*too many connections');
			value('ALTER ROLE app CONNECTION LIMIT -1');
		});
	foreach my $event (sort keys %events)
	{
		fresh('{}');
		application('Job.perform_later(1, "gate"); Job.perform_later(2)');
		becomes('SELECT count(*) FROM started', 1, "$event while a job is performed");
		my $length = -s $worker->{log};
		$events{$event}->();
		value('INSERT INTO gate DEFAULT VALUES');
		once('1 2', $event);
		becomes_true(q{SELECT count(*) = 1 FROM pg_stat_activity WHERE usename = 'app' AND query LIKE 'CALL queue_wait%'},
			'the worker waits again');
		my @lines = grep { /activejob-queue/ } split /\n/, substr(slurp_file($worker->{log}), $length);
		# The thread that renews the claim may have found it first, with a WARN.
		like((grep { /ERROR: / } @lines)[0], qr/ERROR: message \d+: will connect again: /, 'it names the message');
		is(scalar(grep { /connected again/ } @lines), 1, 'it says that it is connected again');
		my %seen;
		is(scalar(grep { s/^.*?ERROR: // && $seen{$_}++ } @lines), 0, 'and each error once')
		  or diag(join "\n", @lines);
		# The session ends; the server shuts down, is gone, refuses, starts, recovers; the
		# thread; the end.
		cmp_ok(scalar(@lines), '<=', 8, 'in a few lines') or diag(join "\n", @lines);
	}

	# An error that comes after the worker has connected
	my $length = -s $worker->{log};
	value(q{REVOKE queue_consumer FROM app;
		SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'app'});
	logs($worker, 'will connect again: .*permission denied');
	sleep 3;
	value('GRANT queue_consumer TO app');
	fresh('{}');
	application('Job.perform_later(1)');
	once(1, 'a privilege that was missing');
	my $lines = substr(slurp_file($worker->{log}), $length);
	is(() = $lines =~ /permission denied/g, 1, 'is one line in the log') or diag($lines);
	is(() = $lines =~ /connected again/g, 1, 'it is connected again when it can work') or diag($lines);

	# --- An end ---

	my $began = time;
	stop($worker);
	cmp_ok(time - $began, '<', 20, 'SIGTERM while it waits');

	fresh('{}');
	application('Job.perform_later(1, "gate"); Job.perform_later(2)');
	$worker = worker('work');
	becomes('SELECT count(*) FROM started', 1, 'a job is performed');
	$worker->{run}->signal('TERM');
	logs($worker, 'stopping');
	value('INSERT INTO gate DEFAULT VALUES');
	stop($worker);
	is(value('SELECT string_agg(n::text, \' \') FROM done'), 1, 'SIGTERM: the job is completed');
	is(value("SELECT count(*) FROM ($held) AS held WHERE claim_id IS NOT NULL"), 0, 'nothing is claimed');

	fresh('{}');
	application('Job.perform_later(1, "gate")');
	$worker = worker('--stop', '1', 'work');
	becomes('SELECT count(*) FROM started', 1, 'a job is performed');
	stop($worker);
	logs($worker, 'given back before its job has ended');
	is(value("SELECT count(*) FROM ($held) AS held WHERE claim_id IS NULL"), 1, 'its message is free at once');

	$worker = worker('work');
	becomes('SELECT count(*) FROM started', 2, 'a worker performs it again');
	stop($worker, 'KILL');
	value('INSERT INTO gate DEFAULT VALUES');
	$worker = worker('--no-transaction', 'work');
	once(1, 'the worker was killed');

	# What a job has done stays if it fails, without a transaction.
	application('Job.perform_later(2, "error")');
	becomes('SELECT count(*) FROM done WHERE n = 2', 8, '--no-transaction');
	stop($worker);
	password('first');
	value(q{ALTER ROLE app PASSWORD 'first'});
	return;
}

my $result = IPC::Run::run([ 'ruby', "$client/exe/activejob-queue", '-r', "$dir/nothing" ],
	'<', \undef, '>&', \my $said);
ok(!$result, 'no file of jobs');
is($said, "activejob-queue: there is no file $dir/nothing: name the file of the jobs with -r\n",
	'is one line');

local $ENV{RECORD} = 1 unless $alone;
test_client($alone ? 'PG' : 'ActiveRecord');

$node->stop;
done_testing();
