# One of two servers is killed under load, with synchronous commits: no
# acknowledged message is missing, none is stored that was refused, and the queues
# of the other server go on meanwhile, by direct connections and through a router.
#
# QUEUE_SERVER_KILLS: so many kills instead of one.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../perl";

use IPC::Run qw(run start finish pump timeout);
use JSON::PP;
use ClusterTest;
use PostgreSQL::Test::Utils;
use ProxyTest;
use Test::More;
use Time::HiRes qw(sleep);

my $top = "$FindBin::RealBin/../..";
my $kills = $ENV{QUEUE_SERVER_KILLS} || 1;
# How many messages the other server gets while one is down
my $meanwhile = 100;

plan skip_all => 'python3 with psycopg2 is not installed'
  unless run [ 'python3', '-c', 'import psycopg2' ], '2>', '/dev/null';
start_servers();
foreach my $node ($one, $two)
{
	$node->append_conf('postgresql.conf', 'fsync = on');
	$node->reload;
}
my $here = queue_on('one', 'q');
my $there = queue_on('two', 'q');

# How many messages the server that goes on has
sub pushed_here
{
	return $one->safe_psql('postgres', "SELECT total FROM queue_stats('$here')");
}

# Waits until it has so many more.
sub wait_for_pushes
{
	my ($what, $before) = @_;
	my $wanted = $before + $meanwhile;

	ok($one->poll_query_until('postgres', "SELECT total >= $wanted FROM queue_stats('$here')"),
		$what);
	return;
}

my ($out, $err) = ('', '');
my $load = start [
	"$top/test/shards.d/kills", $one->connstr('postgres'), $two->connstr('postgres'),
	$one->connstr('router'), $here, $there ],
  '<pipe', \*INPUT, '>', \$out, '2>', \$err, timeout(600);
pump $load until $out =~ /running/ || !$load->pumpable;
wait_for_pushes("$_: all servers are up", pushed_here()) foreach 1 .. $kills;

# From here on there may be kills.
syswrite INPUT, "\n";
foreach my $n (1 .. $kills)
{
	my @pids = split /\n/, $two->safe_psql('postgres', 'SELECT pid FROM pg_stat_activity');
	$two->kill9;
	kill 'KILL', @pids;
	wait_for_pushes("$n: the other server goes on", pushed_here());
	sleep 0.1 while kill 0, @pids;
	$two->start;
	my $before = $two->safe_psql('postgres', "SELECT total FROM queue_stats('$there')");
	ok( $two->poll_query_until('postgres', "SELECT total > $before + 20 FROM queue_stats('$there')"),
		"$n: the server is back");
}
close INPUT;
finish $load;

my $found = decode_json($out =~ s/^running\n//r);
note $out;
is_deeply($found->{errors}, [], 'no error of the other server') or diag($err);
is($found->{missing}, 0, 'no acknowledged message is missing');
is($found->{stored}, 0, 'none that was refused is stored');
is($found->{twice}, 0, 'none is stored twice');
cmp_ok($found->{acknowledged}, '>', 2 * $kills * $meanwhile, 'many were acknowledged');
cmp_ok($found->{refused}, '>', $kills, 'and some refused');

$_->stop foreach $one, $two;
done_testing();
