# Shards that move while servers fail: a source that crashed, or that a backup or a
# standby has taken the place of, may not know of a move any more, and its
# transaction ids are those of other transactions.  A copy that a killed run has
# left is used only if the source has committed that very move; and a shard that is
# on two servers after a failover gets one owner again, by queue_shard_move -d.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../perl";
use IPC::Run qw(run);
use Test::More;

use ClusterTest;
use PostgreSQL::Test::Utils;

my $program = "$FindBin::RealBin/../../src/bin/queue_shard_move";

plan skip_all => 'python3 with psycopg2 is not installed'
  unless run [ 'python3', '-c', 'import psycopg2' ], '2>', '/dev/null';

# --- Three servers: a node, and two databases of another one ---

my $first = PostgreSQL::Test::Cluster->new('first');
my $others = PostgreSQL::Test::Cluster->new('others');
$first->init(allows_streaming => 1);
$others->init;
foreach my $node ($first, $others)
{
	$node->append_conf('postgresql.conf', q{
max_prepared_transactions = 4
autovacuum = off
synchronous_commit = off
wal_writer_delay = 10s
wal_buffers = 16MB
shared_buffers = 32MB
});
	$node->start;
}
$others->safe_psql('postgres', "CREATE DATABASE $_") foreach qw(two three);

# The node and the database of each server
my %place = (one => [ $first, 'postgres' ], two => [ $others, 'two' ], three => [ $others, 'three' ]);
my $number = 0;

sub sql
{
	my ($server, $sql) = @_;
	my ($node, $db) = @{ $place{$server} };

	return $node->safe_psql($db, $sql);
}

foreach my $server (qw(one two three))
{
	$number++;
	sql($server, "CREATE EXTENSION queue; SELECT queue_shard_init($number, 3)");
}
my $q = sql('one', q{SELECT min('q' || g) FROM generate_series(1, 100) AS g
	WHERE queue_shard('q' || g) % 3 = 1});
my $shard = sql('one', "SELECT queue_shard('$q')");

# Runs the program, and kills it after a step, or first the server with this process
# id; returns what it prints.
my $with_hook = <<'PYTHON';
import importlib.machinery, os, signal, sys
path, step, server = sys.argv[1:4]
program = importlib.machinery.SourceFileLoader("program", path).load_module()
original = getattr(program.Move, step)
def hooked(self, *args):
    original(self, *args)
    if int(server):
        os.kill(int(server), signal.SIGQUIT)
        try:
            while True:
                program.rows(self.reader, "SELECT 1")
        except program.psycopg2.Error:
            pass
    os.kill(os.getpid(), signal.SIGKILL)
setattr(program.Move, step, hooked)
sys.argv[1:4] = []
program.main()
PYTHON

sub move
{
	my ($from, $to, %option) = @_;
	my @conninfo = map { my ($node, $db) = @{ $place{$_} }; $node->connstr($db) } $from, $to;
	my @command = $option{killed} ?
	  ('python3', '-Wignore', '-B', '-c', $with_hook, $program, $option{killed}, $option{server} // 0) : ($program);
	my $out;

	run [ @command, @{ $option{options} || [] }, $shard, @conninfo ], '>', \$out, '2>&1';
	return $out;
}

# What each server has: the bodies, or "-" if the shard is elsewhere
sub messages
{
	return join ' | ', map {
		sql($_, "SELECT CASE state WHEN 'local' THEN coalesce((
				SELECT string_agg(body::text, ' ' ORDER BY body::text) FROM queue_data.message
				WHERE queue = '$q'), '') ELSE '-' END
			FROM queue_data.shard WHERE shard = $shard")
	} qw(one two three);
}

sub push_messages
{
	my ($server, @bodies) = @_;

	sql($server, "SELECT queue_push('$q', '$_')") foreach @bodies;
	return;
}

# Other transactions get the ids that those of the lost ones were.
sub burn_transactions
{
	sql('one', join ';', ('SELECT txid_current()') x 30);
	return;
}

sub prepared
{
	return $others->safe_psql('postgres', 'SELECT count(*) FROM pg_prepared_xacts');
}

my $moved = qr/has moved; its queues were locked/;

# --- A source that crashed, and one that is restored from a backup ---

# Nothing writes the log of the source's transaction to disk: neither the walwriter,
# nor a process that evicts a buffer.
push_messages('one', 1, 2);
move(@$_) foreach ([ 'one', 'two' ], [ 'two', 'one' ]);
my ($postmaster) = slurp_file($first->data_dir . '/postmaster.pid') =~ /^(\d+)/;
my $walwriter = sql('one', q{SELECT pid FROM pg_stat_activity WHERE backend_type = 'walwriter'});
kill 'STOP', $walwriter;
move('one', 'two', killed => 'prepare', server => $postmaster);
kill 'CONT', $walwriter;
$first->stop('immediate', fail_ok => 1);
$first->start;
is(messages(), '1 2 | - | -', 'a crash: the source has the shard');
burn_transactions();
like(move('one', 'three'), $moved, 'a crash: to a third server');
unlike(move('one', 'two'), qr/has moved/, 'a crash: the run is repeated');
is(messages(), '- | - | 1 2', 'a crash: each message is there once');
is(prepared(), 0, 'a crash: the stale copy is gone');
like(move('three', 'one'), $moved, 'back');

$first->backup('earlier');
push_messages('one', 3);
move('one', 'two', killed => 'prepare');
$first->stop('immediate');
my $restored = PostgreSQL::Test::Cluster->new('restored');
$restored->init_from_backup($first, 'earlier');
$restored->start;
$place{one} = [ $restored, 'postgres' ];
burn_transactions();
like(move('one', 'three'), $moved, 'restored: to a third server');
unlike(move('one', 'two'), qr/has moved/, 'restored: the run is repeated');
is(messages(), '- | - | 1 2', 'restored: each message is there once');
is(prepared(), 0, 'restored: the stale copy is gone');
like(move('three', 'one'), $moved, 'back');

# --- An asynchronous standby of the source, promoted after a finished move ---

sql('one', "SELECT queue_purge('$q')");
push_messages('one', 11, 12, 13);
$restored->backup('standby');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($restored, 'standby', has_streaming => 1);
$standby->start;
$restored->wait_for_catchup($standby, 'replay');
$standby->stop;
push_messages('one', 14);
like(move('one', 'two'), $moved, 'a move that the standby does not receive');
sql('two', "SELECT message_delete('$q', id) FROM queue_messages('$q') WHERE body = '11'");
push_messages('two', 15);
$restored->stop('immediate');
$standby->start;
$standby->promote;
$place{one} = [ $standby, 'postgres' ];
push_messages('one', 16);
my $both = '11 12 13 16 | 12 13 14 15 | -';
is(messages(), $both, 'promoted: two servers have the shard');

my $out = move('one', 'two');
like($out, qr/the newer copy is the one at TARGET/, 'both: which is newer');
like($out, qr/"$q": 2 messages on both\n  2 only at SOURCE, 1 of them pushed since/,
	'both: what only the older one has');
like($out, qr/  2 only at TARGET, 1 of them pushed since/, 'and what only the newer one has');
my @ids = split /\n/, sql('one', "SELECT id FROM queue_data.message
	WHERE body IN ('11', '16') ORDER BY id");
like($out, qr/ids of those at SOURCE: $ids[0], $ids[1]\n/, 'with ids');
like($out, qr/is on both of these servers.*queue_shard_move -d FILE $shard OLDER NEWER/s,
	'both: and what to do');
like(move('two', 'one'), qr/the newer copy is the one at SOURCE.*on both of these servers/s,
	'in the other direction');

my $dir = PostgreSQL::Test::Utils::tempdir();
my @drop = ('-d', "$dir/dropped");
like(move('two', 'one', options => \@drop), qr/SOURCE has the newer copy: nothing was dropped/,
	'the newer copy is not dropped');
move('one', 'two', options => \@drop, killed => 'compare');
ok(!-e "$dir/dropped", 'killed before anything is saved');
move('one', 'two', options => \@drop, killed => 'save');
is(messages(), $both, 'killed before the commit: nothing was dropped');
like(move('one', 'two', options => \@drop), qr/File exists/, 'a file is not overwritten');
is(messages(), $both, 'and nothing was dropped');
@drop = ('-d', "$dir/dropped.2");
like(move('one', 'two', options => \@drop), qr/saved 2 messages; shard $shard was dropped at SOURCE/,
	'the older copy is dropped');
is(messages(), '- | 12 13 14 15 | -', 'one server has the shard');
is(sql('one', "SELECT peer FROM queue_data.shard WHERE shard = $shard"), 'server 2',
	'the other one knows which');
is((stat("$dir/dropped.2"))[2] & 0777, 0600, 'only its owner can read the file');
like(move('one', 'two', options => \@drop), qr/is not on both of these servers/, 'again');

# What was saved can be pushed again.
sql('two', qq{CREATE TEMP TABLE kept (m jsonb);
	\\copy kept FROM '$dir/dropped.2'
	SELECT queue_push(m->>'queue', m->'body', priority => (m->>'priority')::int,
			group_key => m->>'group_key')
		FROM kept WHERE (m->>'pushed_since_move')::boolean ORDER BY m->>'created_at'});
is(messages(), '- | 12 13 14 15 16 | -', 'what was saved is pushed again');
like(move('two', 'one'), $moved, 'the shard moves on');
is(messages(), '12 13 14 15 16 | - | -', 'with all messages');

$_->stop foreach $standby, $others;
done_testing();
