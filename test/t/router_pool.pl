# Forty sessions of a router use no more connections of each server than the pool
# of a PgBouncer in between allows, and each message arrives once.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../perl";

use IPC::Run;
use List::Util qw(max sum);
use PoolTest;
use ClusterTest;
use PostgreSQL::Test::Utils;
use ProxyTest;
use Test::More;

my $sessions = 40;
my $transactions = 25;
my $pool_size = 5;

plan skip_all => 'pgbouncer is not installed' unless pgbouncer();
start_servers();
$PoolTest::role = 'app';
$PoolTest::settings = 'max_client_conn = 200';
my @servers = ($one, $two);
my @pools = map { connect_to($_, start_pool($_, postgres => $pool_size)) } @servers;
my $connections = join ', ', map { "'$_'" } @pools;
$one->safe_psql('router', "SELECT queue_proxy.set_servers(ARRAY[$connections])");

# Each transaction pushes to a queue, then takes one message of any queue, and writes
# down which, and whether it was there to be deleted.
$one->safe_psql('router', q{CREATE TABLE taken (q text, id bigint, deleted boolean);
	GRANT INSERT ON taken TO app});
my $script = PostgreSQL::Test::Utils::tempdir() . '/script.sql';
append_to_file($script, q{
\set n random(1, 20)
SELECT queue_push('q' || :n, '1');
\set id 0
SELECT id, queue AS q, claim_id AS claim FROM queue_claim_any(ARRAY['q' || :n], 300, 60, 1) \aset
\if :id > 0
INSERT INTO taken SELECT :q, :id, message_delete(:q, :id, :claim);
\endif
});
my $out = '';
my $load = IPC::Run::start(
	[
		'pgbench', '-n', '-M', 'extended', '-c', $sessions, '-t', $transactions, '-f', $script,
		'-d', $one->connstr('router') . ' user=app'
	],
	'<', \undef, '>&', \$out);

# The most connections that the pool has had to each server
my $connected = q{SELECT count(*) FROM pg_stat_activity
	WHERE usename = 'app' AND datname = 'postgres'};
my @most = (0, 0);
while ($load->pumpable)
{
	$load->pump_nb;
	@most = map { max($most[$_], $servers[$_]->safe_psql('postgres', $connected)) } 0, 1;
}
ok($load->finish, 'all calls succeed') or diag($out);
is_deeply(\@most, [ $pool_size, $pool_size ], 'each server had as many connections as its pool may have');

sub of_all
{
	my ($sql) = @_;
	return sum(map { $_->safe_psql('postgres', $sql) } @servers);
}
is(of_all('SELECT sum(pushed) FROM queue_data.queue_status'),
	$sessions * $transactions, 'each message arrives once');
my $taken = $one->safe_psql('router', 'SELECT count(*) FROM taken');
is($one->safe_psql('router', 'SELECT count(DISTINCT (q, id)) FROM taken WHERE deleted'),
	$taken, 'and is taken once');
is($taken + of_all('SELECT count(*) FROM queue_data.message'),
	$sessions * $transactions, 'or is left');
stop_pool();
$_->stop foreach @servers;
done_testing();
