# The adapter for the public harness, test/bench/public, with claims of 1 and of 64
# messages: its lines are as the harness wants them, what they say agrees with what the
# server counts, and the messages of a killed worker are completed by others.  And
# that the runner notices lines that are wrong.
#
# test/check -a runs it.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../perl";

use IPC::Run;
use JSON::PP;
use PostgreSQL::Test::Utils;
use QueueTest qw(:DEFAULT find_python);
use Test::More;

my $python = find_python();

start_server(
	q{
max_connections = 100
queue.min_claim_ttl = 1
queue.min_claim_grace = 0
});
$ENV{PGHOST} = $node->host;
$ENV{PGPORT} = $node->port;
$ENV{PYTHONDONTWRITEBYTECODE} = 1;

# However slow the machine is
$ENV{STOP_S} = 60;
my $public = "$FindBin::RealBin/../bench/public";
my $dir = PostgreSQL::Test::Utils::tempdir();

# Runs the phases; returns the exit code, the output and the lines of the adapter.
sub run_phases
{
	my ($system, @arguments) = @_;
	my ($out, $err);

	unlink "$dir/lines";
	IPC::Run::run(
		[
			$python, "$public/harness.py", '-s', 1, '-w', 3, '-r', 100,
			'--stop', 90, '-o', "$dir/lines", @arguments[ 0 .. $#arguments - 1 ], $system,
			split(' ', $arguments[-1]) ],
		'<', \undef, '>', \$out, '2>', \$err);
	my $status = $? >> 8;
	note $out, $err;
	return ($status, $out, map { decode_json($_) } split(/\n/, slurp_file("$dir/lines")));
}

# By metric, the sum of its values times their windows
sub count_of
{
	my ($metric, @lines) = @_;
	my $count = 0;

	$count += $_->{value} * $_->{window_s}
	  foreach grep { ($_->{metric} // '') eq $metric } @lines;
	return sprintf '%.0f', $count;
}

sub counted
{
	my ($limit, $what) = @_;

	return value("SELECT sum($what)::int8 FROM queue_data.queue_status",
		"pg_claim_queue_${limit}_bench");
}

foreach my $limit (1, 64)
{
	my $system = "pg-claim-queue-$limit";
	my ($status, $out, @lines) =
	  run_phases($system, 'warmup=warmup:1 clean=clean:2 idle=idle-in-tx:2 end=recovery:2');

	is($status, 0, "$system: the lines obey the contract");
	my %metrics = map { $_->{metric} => 1 } grep { $_->{metric} } @lines;
	my @wanted = ('completion_rate', 'enqueue_rate', 'producer_target_rate', 'queue_depth');
	foreach my $kind (qw(claim end_to_end producer subscriber))
	{
		push @wanted, map { "${kind}_p${_}_ms" } 50, 95, 99;
	}
	is(join(' ', grep { !$metrics{$_} } @wanted), '', "$system: all metrics are there");
	like($out, qr/^\| $_ \([a-z-]+, 2 s\) \|/m,
		"$system: the summary has phase $_")
	  foreach qw(clean idle end);
	unlike($out, qr/^\| warmup/m, "$system: it does not have the phase that warms up");

	my $pushed = counted($limit, 'pushed');
	cmp_ok($pushed, '>', 0, "$system: messages were pushed");
	is(count_of('enqueue_rate', @lines), $pushed, "$system: so many the lines say");
	is(counted($limit, $_), $pushed, "$system: so many were $_")
	  foreach qw(claimed_total completed);
	is(count_of('completion_rate', @lines), $pushed, "$system: so many the lines say");
}

# What the runner says of the lines of the last run, after they were changed
sub complaint
{
	my ($code) = @_;
	my ($out, $err);

	IPC::Run::run([ $python, '-c', <<PYTHON, $public, "$dir/lines" ], '>', \$out, '2>', \$err);
import json, sys
sys.path.insert(0, sys.argv[1])
import harness
manifest = json.load(open(sys.argv[1] + "/pg-claim-queue-64-bench/adapter.json"))
said = []
checker = harness.Checker(manifest, 0, said.append)
lines = [json.loads(line) for line in open(sys.argv[2])]
last = lines[-1]
$code
for line in lines:
    checker.read(json.dumps(line))
checker.end_tick()
print(said[0] if said else "")
PYTHON
	die $err if $err;
	return $out;
}
is(complaint(''), "\n", 'the lines as they are');
foreach my $wrong (
	[ 'del lines[0]', qr/^a sample before the descriptor/ ],
	[ 'lines.append(lines[0])', qr/^a second descriptor/ ],
	[ 'lines[0]["extensions"] = []', qr/^extensions of adapter.json are missing/ ],
	[ 'lines[0]["version"] = None', qr/^version is no text/ ],
	[ 'last["system"] = "queue"', qr/^another system/ ],
	[ 'last["instance_id"] = 1', qr/^another instance/ ],
	[ 'last["kind"] = "sample"', qr/^unknown kind/ ],
	[ 'del last["window_s"]', qr/^KeyError\('window_s'\)/ ],
	[ 'last["value"] = "1"', qr/no number, or one below 0: '1'/ ],
	[ 'last["value"] = None', qr/no number, or one below 0: None/ ],
	[ 'last["value"] = -1', qr/no number, or one below 0: -1/ ],
	[ 'last["t"] = "2026-01-01T00:00:00.000Z"', qr/^time goes back/ ],
	[ 'lines.append(last)', qr/ twice at / ],
	[ 'lines.remove([l for l in lines if l.get("metric") == "queue_depth"][-1])',
		qr/^missing at .*'queue_depth'/ ],
	[ '[l for l in lines if l.get("metric") == "claim_p95_ms"][-1]["value"] = 1e9',
		qr/^claim: percentiles fall/ ],
	[ '[l for l in lines if l.get("metric") == "claim_p95_ms"][-1]["window_s"] = 5',
		qr/^claim_p95_ms: its window is 5/ ],
	[ '[l for l in lines if l.get("metric") == "enqueue_rate"][0]["value"] += 0.1',
		qr/^enqueue_rate: .* is no whole number/ ])
{
	like(complaint($wrong->[0]), $wrong->[1], "noticed: $wrong->[0]");
}

{
	my ($status, undef, @lines) =
	  run_phases('pg-claim-queue-64', '-d', 50, 'warmup=warmup:1 clean=clean:3');
	my ($deepest) = sort { $b <=> $a }
	  map { $_->{value} } grep { ($_->{metric} // '') eq 'queue_depth' } @lines;

	is($status, 0, 'a target depth');
	cmp_ok($deepest, '<=', 50, 'no more are free than that');
}

# There is more work than the workers can do, so the one that is killed has messages.
{
	local $ENV{JOB_WORK_MS} = 2000;
	local $ENV{CLAIM_TTL_S} = 3;
	my ($status, $out, @lines) = run_phases('pg-claim-queue-1', '-n', 2, '-r', 2,
		'warmup=warmup:1 clean=clean:3 kill=kill-worker(instance=0):2'
		  . ' start=start-worker(instance=0):2');

	is($status, 0, 'a worker is killed');
	is(scalar(grep { $_->{kind} eq 'descriptor' } @lines), 3, 'it is started again');
	cmp_ok(counted(1, 'claimed_total'), '>', counted(1, 'completed'),
		'it had claimed a message');
	is(counted(1, 'completed'), counted(1, 'pushed'), 'it was completed by another');
}

# What a worker claimed when its connection was lost is free again after the claim's
# time, in which the server is back.
{
	local $ENV{CLAIM_TTL_S} = 20;
	my ($status) = run_phases('pg-claim-queue-64',
		'warmup=warmup:1 kills=pg-backend-kill(rate=5):2 restart=postgres-restart:2');

	is($status, 0, 'sessions are terminated, and the server is restarted');
}

$node->stop;
done_testing();
