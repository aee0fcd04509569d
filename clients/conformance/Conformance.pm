# Runs the cases of cases.json with the runner of a worker library.  README.md says how a
# runner is told what to do.

package Conformance;

use strict;
use warnings;

use Exporter 'import';
use File::Basename;
use lib dirname(__FILE__) . '/../../test/perl';

use ClusterTest;
use IPC::Run;
use JSON::PP;
use PoolTest;
use PostgreSQL::Test::Utils;
use QueueTest;
use Test::More;
use Time::HiRes qw(sleep time);

our @EXPORT = qw(test_conformance);

my (@command, $dir, $case, %workers, $clock);

my %actions = (
	start => \&start_worker,
	push => \&push_messages,
	sql => sub { value($_[0]) },
	becomes => sub { becomes(@{ $_[0] }, name($_[0][0])) },
	is => sub { is(value($_[0][0]), $_[0][1], name($_[0][0])) },
	signal => sub { $workers{ $_[0][0] }{run}->signal($_[0][1]) },
	ends => sub { end_worker($_[0], $_[1]{status}) },
	lives => sub { read_output($workers{ $_[0] }); ok($workers{ $_[0] }{run}->pumpable, name('the worker lives')) },
	says => \&says,
	restart => sub { $_[0] eq 'fast' ? $node->restart : do { $node->stop('immediate'); $node->start } },
	kills => \&kill_workers,
	clock => \&set_clock,
	password => \&set_password);

# A worker must not outlive a test that dies.
END
{
	local $?;
	$_->{run}->kill_kill foreach values %workers;
}

sub name
{
	my ($what) = @_;
	return "$case->{name}: " . substr($what, 0, 100);
}

sub start_worker
{
	my ($name) = @_;
	my %worker = (output => '');
	my %config = map { $_ => $case->{$_} } grep { exists $case->{$_} } qw(work ttl connections stop);
	my %environment = (
		PGHOST => $node->host,
		PGPORT => $case->{port} // $node->port,
		PGDATABASE => $case->{port} ? 'workers' : $db,
		PGUSER => $case->{role} // 'app',
		PGPASSFILE => "$dir/pgpass");

	@environment{qw(LD_PRELOAD CLOCK_OFFSET)} = ($clock, "$dir/offset") if exists $case->{clock};
	local @ENV{ keys %environment } = values %environment;
	$worker{run} = IPC::Run::start([ @command, JSON::PP->new->canonical->encode(\%config) ],
		'<', \undef, '>&', \$worker{output}, init => sub { chdir $dir or die $! });
	$workers{$name} = \%worker;
	return;
}

sub read_output
{
	my ($worker) = @_;
	my $before;
	do
	{
		$before = length $worker->{output};
		$worker->{run}->pump_nb;
	} while (length $worker->{output} > $before);
	return;
}

sub says
{
	my ($argument) = @_;
	my ($name, $pattern) = @$argument;
	my $worker = $workers{$name};
	my $until = time + $PostgreSQL::Test::Utils::timeout_default;

	do
	{
		sleep 0.01;
		read_output($worker);
	} until $worker->{output} =~ /$pattern/i || !$worker->{run}->pumpable || time > $until;
	return like($worker->{output}, qr/$pattern/i, name("it says $pattern"));
}

# Waits until it has ended; that is an error unless its status matches this pattern.
sub end_worker
{
	my ($name, $status) = @_;
	my $worker = delete $workers{$name};

	$status //= 0;
	$worker->{run}->finish;
	like($worker->{run}->full_result(0), qr/^(?:$status)$/, name("the worker $name ends well"))
	  unless $status eq 'any';
	$case->{output} .= "--- $name\n$worker->{output}";
	return;
}

sub push_messages
{
	my ($messages, $action) = @_;
	my $json = JSON::PP->new->ascii->encode($messages) =~ s/'/''/gr;
	my $times = $action->{times} // 1;

	return value(qq{SELECT count(queue_post(NULL, m))
		FROM generate_series(1, $times), CAST('$json' AS jsonb) AS m});
}

# Kills workers at random.  The numbers are the same in each run.  Messages are pushed
# before each kill, so that there is work however slow the machine is.
sub kill_workers
{
	my ($kills, $action) = @_;

	srand 4711;
	start_worker("random $_") foreach 1 .. $action->{workers};
	foreach (1 .. $kills)
	{
		my $done = value('SELECT count(*) FROM effects');
		my $name = 'random ' . (1 + int rand $action->{workers});

		push_messages($action->{messages}, $action);
		becomes("SELECT count(*) > $done FROM effects", 't', name('they work'));
		sleep rand 0.3;
		$workers{$name}{run}->signal('KILL');
		end_worker($name, 'any');
		start_worker($name);
	}
	return;
}

# The clock of the workers is the machine's with the seconds in a file added.  The
# monotonic clock goes on.
sub make_clock
{
	append_to_file("$dir/clock.c", q{
		#define _GNU_SOURCE
		#include <fcntl.h>
		#include <stdlib.h>
		#include <sys/mman.h>
		#include <sys/syscall.h>
		#include <sys/time.h>
		#include <time.h>
		#include <unistd.h>

		int clock_gettime(clockid_t id, struct timespec *ts)
		{
			static volatile long long *offset = 0;

			if (offset == 0)
			{
				int fd = open(getenv("CLOCK_OFFSET"), O_RDONLY);

				offset = mmap(0, sizeof(*offset), PROT_READ, MAP_SHARED, fd, 0);
				close(fd);
			}
			if (syscall(SYS_clock_gettime, id, ts) != 0)
				return -1;
			if (id == CLOCK_REALTIME)
				ts->tv_sec += *offset;
			return 0;
		}

		int gettimeofday(struct timeval *restrict tv, void *restrict tz)
		{
			struct timespec ts;

			clock_gettime(CLOCK_REALTIME, &ts);
			tv->tv_sec = ts.tv_sec;
			tv->tv_usec = ts.tv_nsec / 1000;
			return 0;
		}
	});
	$clock = "$dir/clock.so";
	set_clock(0);
	return system_or_bail($ENV{CC} || 'cc', '-shared', '-fPIC', '-o', $clock, "$dir/clock.c");
}

# Written in place, since the workers have mapped the file
sub set_clock
{
	my ($seconds) = @_;
	open my $file, (-e "$dir/offset" ? '+<' : '>'), "$dir/offset" or die $!;
	print $file pack('q', $seconds);
	close $file;
	return;
}

sub set_password
{
	my ($password) = @_;
	value("ALTER ROLE secret PASSWORD '$password'");
	open my $file, '>', "$dir/pgpass" or die $!;
	print $file "*:*:*:secret:$password\n";
	close $file;
	chmod 0600, "$dir/pgpass";
	return;
}

sub compiler
{
	return grep { -x "$_/" . ($ENV{CC} || 'cc') || -x ($ENV{CC} || '') } split /:/, $ENV{PATH};
}

# The server, and the tables that jobs write into
sub prepare
{
	$dir = PostgreSQL::Test::Utils::tempdir();
	start_server("queue.min_claim_ttl = 1\nmax_connections = 200");
	value(q{
		CREATE ROLE app LOGIN IN ROLE queue_producer, queue_consumer;
		CREATE ROLE secret LOGIN IN ROLE queue_producer, queue_consumer;
		CREATE TABLE effects (seq bigserial, q text, id bigint, label text, at timestamptz DEFAULT clock_timestamp());
		CREATE TABLE notes (LIKE effects INCLUDING DEFAULTS);
		CREATE TABLE gates (name text);
		CREATE TABLE saved (at timestamptz);
		GRANT ALL ON effects, notes, gates TO app, secret;
		GRANT ALL ON SEQUENCE effects_seq_seq TO app, secret});
	set_password('first');
	my $hba = $node->data_dir . '/pg_hba.conf';
	my $rest = slurp_file($hba);
	unlink $hba;
	append_to_file($hba, "local all secret scram-sha-256\n$rest");
	$node->reload;
	return;
}

# A server as at the start
sub clean
{
	my %queues = (mail => {}, %{ $case->{queues} // {} });

	value(q{
		SELECT queue_drop(name) FROM queue_list("limit" => 1000) ORDER BY name ~ '\.dead$';
		TRUNCATE effects, notes, gates, saved});
	foreach my $q (sort keys %queues)
	{
		my $metadata = JSON::PP->new->encode($queues{$q});
		value("SELECT queue_create('$q', '$metadata')");
	}
	return;
}

sub run_case
{
	$case->{output} = '';
	clean();
	local $PoolTest::role = 'app';
	$case->{port} = start_pool($node, workers => $case->{pool}) if $case->{pool};
	set_clock(0) if exists $case->{clock};
	foreach my $action (@{ $case->{script} })
	{
		my ($kind) = grep { $actions{$_} } keys %$action;
		$actions{$kind}->($action->{$kind}, $action);
	}
	foreach my $name (sort keys %workers)
	{
		$workers{$name}{run}->signal('TERM');

		# One that has just been started may not handle the signal yet.
		end_worker($name, $name =~ /^random/ ? '0|15' : 0);
	}
	is(value($_->[0]), $_->[1], name("at the end, $_->[0]")) foreach @{ $case->{end} // [] };
	stop_pool() if $case->{pool};
	return;
}

# test_conformance(COMMAND, [PATTERN...]): all cases with this runner, or those whose
# names match one of the patterns, or of those in the environment variable CASES, which
# commas separate.  The server is left running.
sub test_conformance
{
	my ($command, @patterns) = @_;
	@patterns = split(/,/, $ENV{CASES} // '') unless @patterns;
	my $cases = decode_json(slurp_file(dirname(__FILE__) . '/cases.json'));

	@command = @$command;
	prepare();
	make_clock() if compiler();
	foreach (@$cases)
	{
		$case = $_;
		next if @patterns && !grep { $case->{name} =~ /$_/ } @patterns;
	  SKIP:
		{
			skip 'pgbouncer is not installed', 1 if $case->{pool} && !pgbouncer();
			skip 'no C compiler', 1 if exists $case->{clock} && !$clock;
			my $start = time;
			my $failed = grep { !$_ } Test::More->builder->summary;
			run_case();
			note sprintf '%s: %.1f s', $case->{name}, time - $start;
			diag($case->{output}) if $failed < grep { !$_ } Test::More->builder->summary;
		}
	}
	return;
}

1;
