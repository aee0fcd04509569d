# The benchmarks run: cells of test/bench/run in a short form, in a server of the
# test, on this extension and on queues in plain SQL.  They check themselves that
# no message is lost or claimed twice; no figure is looked at.
#
# test/check -a runs it.

use strict;
use warnings;

use File::Basename;
use FindBin;
use lib "$FindBin::RealBin/../perl";

use IPC::Run;
use PostgreSQL::Test::Utils;
use QueueTest;
use Test::More;

start_server(
	q(
synchronous_commit = off
));

my $csv = PostgreSQL::Test::Utils::tempdir() . '/bench.csv';
local $ENV{PGHOST} = $node->host;
local $ENV{PGPORT} = $node->port;
local $ENV{PGUSER} = $node->safe_psql('postgres', 'SELECT current_user');
local $ENV{PGDATABASE} = 'postgres';

my ($out, $err);
IPC::Run::run(
	[
		dirname(__FILE__) . '/../bench/run', '-x', '-q',
		'-H', 4,
		'-c', 'step:2 push100:1 open breadth groups-backlog batches topics',
		'-e', 'queue queue_pgmq update_any update_queues insert solid_queue good_job',
		'-o', $csv
	],
	'>', \$out, '2>', \$err,
	IPC::Run::timeout(1800));
is($?, 0, 'exits with 0') or diag($out, $err);

# Which engine has which cells, and under which conditions
my %seen;
foreach my $line (split /\n/, slurp_file($csv))
{
	my ($cell, $engine, $round, $at, $measure, $value) = split /,/, $line;
	next if $line =~ /^(#|cell,)/;
	like($value, qr/^\d+(\.\d+)?$/, "$cell of $engine, $at: $measure")
	  unless $seen{$cell}{$engine}{$at}++;
}

is_deeply([ sort keys %{ $seen{'step:2'} } ], [qw(queue queue_pgmq update_any)], 'step');
is_deeply([ sort keys %{ $seen{'push100:1'} } ], [qw(insert queue queue_pgmq update_any)], 'push');
foreach my $cell ('open: p50', 'open: p99', 'open: the slowest', 'open: not claimed')
{
	foreach my $engine (qw(queue update_any))
	{
		is_deeply(
			[ sort keys %{ $seen{$cell}{$engine} } ],
			[ (map { "held: $_ to " . ($_ + 1) . ' s' } 0 .. 3), 'without' ],
			"$cell of $engine");
	}
}
foreach my $engine (qw(queue update_queues))
{
	foreach my $cell ('breadth: named', 'breadth: any')
	{
		is_deeply(
			[ sort keys %{ $seen{$cell}{$engine} } ],
			[ '1 queue', '1000 queues' ],
			"$cell of $engine");
	}
	is_deeply(
		[ sort keys %{ $seen{'breadth: 10 ready'}{$engine} } ],
		['1000 queues'],
		"a list of 10 of $engine");
}
foreach my $cell ('groups-backlog', 'groups-backlog:pin')
{
	is_deeply(
		[ sort keys %{ $seen{$cell}{queue} } ],
		[ '1000 groups', 'without groups' ],
		$cell);
}
foreach my $cell ('batches: finished by ', 'batches: pushed and finished by ')
{
	is_deeply(
		[ sort keys %{ $seen{ $cell . 1 } } ],
		[qw(good_job queue solid_queue)],
		"${cell}1");
	is_deeply([ sort keys %{ $seen{ $cell . 10 } } ], [qw(queue solid_queue)], "${cell}10");
	is_deeply(
		[ sort keys %{ $seen{ $cell . 10 }{$_} } ],
		[ 'in a batch', 'without a batch' ],
		"${cell}10 of $_")
	  foreach qw(queue solid_queue);
}
is_deeply(
	[ sort keys %{ $seen{topics}{$_} } ],
	[ '1 queue', '16 queues', '3 queues', '3 queues (10000 bindings)', 'a push' ],
	"topics of $_")
  foreach qw(queue queue_pgmq);
like($out, qr/^\| 1000 queues \| .*×/m, 'a table with ratios');

$node->stop;
done_testing();
