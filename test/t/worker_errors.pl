# Whatever fails for the worker, it is tried again after a pause that grows: the
# worker neither fills the log nor uses a CPU meanwhile, and goes on when the
# cause is gone.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../perl";

use PostgreSQL::Test::Utils;
use StatusTest;
use Test::More;
use Time::HiRes qw(sleep time);

# Clock ticks of CPU time that a process has used
sub ticks
{
	my ($pid) = @_;
	my $stat = slurp_file("/proc/$pid/stat");
	my @field = split / /, $stat =~ s/.*\) //sr;
	return $field[11] + $field[12];
}

sub worker_pid
{
	$node->poll_query_until('postgres',
		q{SELECT count(*) = 1 FROM pg_stat_activity WHERE backend_type = 'queue worker'})
	  or die 'there is no worker';
	return value(q{SELECT pid FROM pg_stat_activity WHERE backend_type = 'queue worker'});
}

# What the worker does in four seconds
sub is_calm
{
	my ($what) = @_;
	my $pid = worker_pid();
	my $offset = -s $node->logfile;
	my $used = ticks($pid);

	sleep 4;
	my $lines = () = slurp_file($node->logfile, $offset) =~ /ERROR:/g;
	cmp_ok(ticks($pid) - $used, '<', 100, "$what: a quarter of a CPU at most");

	# Each kind of task (PostponedTask) fails six times, if its pause begins with 0.1 s
	# and doubles; without a pause that grows, it would fail 40 times.
	cmp_ok($lines, '<=', 6 * 11, "$what: errors in the log");
	return;
}

start_server();
value(q{SELECT queue_push('q', to_jsonb(i)) FROM generate_series(1, 10) AS i;
	SELECT count(*) FROM queue_claim('q', 600, 0, 3)});

foreach my $break (
	[
		'the extension is about to be dropped',
		q{BEGIN; DROP EXTENSION queue; PREPARE TRANSACTION 'drop'},
		q{ROLLBACK PREPARED 'drop'}
	])
{
	my ($what, $break, $mend) = @$break;

	value($break);
	$node->restart;
	is_calm($what);
	value($mend);
	status_is_right("$what: the worker goes on");
}

# A table is missing while the worker runs.
value('ALTER TABLE queue_data.root_job RENAME TO other');
is_calm('a running worker');
value('ALTER TABLE queue_data.other RENAME TO root_job');
status_is_right('a running worker goes on');
like(slurp_file($node->logfile), qr/ERROR:  .*queue_data/, 'there were errors');

$node->stop;
done_testing();
