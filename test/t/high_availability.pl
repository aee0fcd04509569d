# The leader of two servers under Patroni fails while clients push, claim, wait
# and complete: nothing that was acknowledged is lost, held by two claims, or
# stuck; and a loss and a duplicate that are planted are found.  This is the short
# form of test/ha/run.
#
# test/check -a runs it.

use strict;
use warnings;

use FindBin;
use IPC::Run qw(run);
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(sleep);

plan skip_all => 'needs Unix sockets'
  unless $PostgreSQL::Test::Utils::use_unix_sockets;

# Debian's packages start services, so they may be only unpacked; what they need
# is for Debian's Python.
my $python = -x '/usr/bin/python3' ? '/usr/bin/python3' : 'python3';
my $unpacked = ($ENV{QUEUE_SANDBOX} || '') . '/unpacked/usr';
$ENV{PYTHONPATH} = "$unpacked/lib/python3/dist-packages";
$ENV{PYTHONDONTWRITEBYTECODE} = 1;
$ENV{PATH} .= ":$unpacked/bin";

# Not here, where queue.so hides a module of Python.
sub runs
{
	return eval
	{
		run \@_, '>', '/dev/null', '2>', '/dev/null', init => sub { chdir '/' };
	};
}

plan skip_all => 'no etcd, Patroni or psycopg2'
  unless runs('etcd', '--version')
  && runs($python, '-c', 'import etcd, patroni, psutil, psycopg2');
plan skip_all => 'Patroni needs semaphores: no usable /dev/shm'
  unless runs($python, '-c', 'import multiprocessing; multiprocessing.Lock()');

$ENV{PG_CONFIG} ||= 'pg_config';
my $dir = PostgreSQL::Test::Utils::tempdir_short() . '/ha';
my $out = '';
my $good = run [
	$python, "$FindBin::RealBin/../ha/rounds.py",
	$dir, 'synchronous', 'yes', 1, 'crash' ], '>&', \$out;
note $out;
ok($good, 'nothing is lost, held twice, or stuck');
like($out, qr/^the planted loss and duplicate were found, and nothing else$/m,
	'a planted loss and a planted duplicate are found');
unless ($good)
{
	diag $out;
	foreach my $log (glob "$dir/log/s?")
	{
		diag "$log:\n" . substr(slurp_file($log), -4000);
	}
}
# All of them work in that directory.
my @left;
foreach (1 .. 100)
{
	@left = grep { (readlink "$_/cwd" || '') =~ /^\Q$dir\E/ } glob '/proc/[0-9]*';
	last unless @left;
	sleep 0.1;
}
is(scalar(@left), 0, 'no process is left');

done_testing();
