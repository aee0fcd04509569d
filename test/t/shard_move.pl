# Shards that move between two servers under load, by queue_shard_move: nothing
# is lost, handled twice or left behind, also when the program is killed after
# any of its steps.  Claims, keys, delays, grants, counts, handlers, cancels and the
# history move along, and sessions that wait for messages are sent to the target.
#
# QUEUE_SHARD_MOVES: so many moves under load instead of six;
# QUEUE_SHARD_MESSAGES: so many messages that wait meanwhile instead of a thousand.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../perl";
use IPC::Run qw(run start finish pump timeout);
use JSON::PP;
use Test::More;

use ClusterTest;
use PostgreSQL::Test::Utils;

my $top = "$FindBin::RealBin/../..";
my $program = "$top/src/bin/queue_shard_move";
my $moves = $ENV{QUEUE_SHARD_MOVES} || 6;
my $waiting = $ENV{QUEUE_SHARD_MESSAGES} || 1000;
my @pauses;		# of all moves, in ms
my @steps = qw(leave copy prepare commit_source commit_prepared announce);

plan skip_all => 'python3 with psycopg2 is not installed'
  unless run [ 'python3', '-c', 'import psycopg2' ], '2>', '/dev/null';

# --- two servers, each with half of the shards ---

my @nodes;
foreach my $number (1, 2)
{
	my $node = PostgreSQL::Test::Cluster->new("server_$number");

	$node->init;
	$node->append_conf('postgresql.conf', qq{
max_prepared_transactions = 10
queue.runners = 2
synchronous_commit = off
wal_writer_delay = 10s
});
	$node->start;
	$node->safe_psql('postgres', qq{
		CREATE EXTENSION queue;
		CREATE ROLE mover_test_app LOGIN IN ROLE queue_producer, queue_consumer;
		CREATE TABLE handled (n int);
		CREATE FUNCTION handle(body jsonb) RETURNS boolean LANGUAGE sql AS
			\$\$ INSERT INTO handled VALUES ((body->>'n')::int) RETURNING true \$\$;
		SELECT queue_shard_init($number, 2);
	});
	push @nodes, $node;
}

sub conninfo { return $_[0]->connstr('postgres') }

# Moves the shard from server $from to the other one; returns the exit status.
sub move
{
	my ($shard, $from) = @_;
	my ($out, $err);

	run [ $program, $shard, conninfo($nodes[$from]),
		conninfo($nodes[ 1 - $from ]) ], '>', \$out, '2>', \$err;
	diag($err) if $err;
	push @pauses, $1 if $out =~ /locked for (\d+) ms/;
	return $? >> 8;
}

# The same, killed after this step.
sub move_killed
{
	my ($shard, $from, $step) = @_;
	my $python = <<'PYTHON';
import importlib.machinery, os, signal, sys
program = importlib.machinery.SourceFileLoader("program", sys.argv[1]).load_module()
step = getattr(program.Move, sys.argv[2])
def step_and_die(self, *args):
    step(self, *args)
    os.kill(os.getpid(), signal.SIGKILL)
setattr(program.Move, sys.argv[2], step_and_die)
sys.argv[1:3] = []
program.main()
PYTHON
	my ($out, $err);

	run [ 'python3', '-Wignore', '-B', '-c', $python, $program, $step, $shard,
		conninfo($nodes[$from]), conninfo($nodes[ 1 - $from ]) ],
	  '>', \$out, '2>', \$err;
	is($? & 127, 9, "killed after $step");
	return;
}

sub state
{
	my ($shard) = @_;

	return join ' ',
	  map { $_->safe_psql('postgres',
			"SELECT state FROM queue_data.shard WHERE shard = $shard") } @nodes;
}

# --- what moves ---

my $shard = $nodes[0]->safe_psql('postgres', q{
	SELECT shard FROM queue_data.shard WHERE state = 'local' LIMIT 1});
# Names of queues in the shard
my @names = split /\n/, $nodes[0]->safe_psql('postgres', qq{
	SELECT 'q' || n FROM generate_series(1, 10000) AS n
	WHERE queue_shard('q' || n) = $shard LIMIT 8});
my $q = $names[0];

$nodes[0]->safe_psql('postgres', qq{
	SELECT queue_create('$q', '{"_max_claim_count": 3, "_group_concurrency": 1}');
	SELECT queue_grant('$q', 'mover_test_app', 'push');
	SELECT queue_push('$q', '3', group_key => 'g', priority => 5);
});
my $claim = $nodes[0]->safe_psql('postgres',
	"SELECT claim_id FROM queue_claim('$q', 600, 600, 1)");
$nodes[0]->safe_psql('postgres', qq{
	SELECT queue_push('$q', '1', dedup_key => 'one');
	SELECT message_delete('$q', queue_push('$q', '1', dedup_key => 'held', dedup_for => 100000));
	SELECT queue_push('$q', '2', delay => 3600);
	SELECT queue_push('$names[2]', '8', delay => 2);
	SELECT queue_push('$q', '4', group_key => 'g', ttl => 1000);
	SELECT queue_push_once('$q.dead', 'orders', 5, '5');
	SELECT queue_create('$names[1]');
	SELECT job_handler('$names[1]', 'handle(jsonb)');
	SELECT queue_pause('$names[1]');
	SELECT queue_push('$names[1]', '{"n": 1}');
	SELECT queue_update('$q', '{"_keep_finished": 86400}');
	SELECT message_delete('$q', queue_push('$q', '9', delay => 60));
});

# Without the one whose delay may end meanwhile
my $messages = qq{SELECT string_agg(m::text, E'\\n' ORDER BY m.id)
	FROM (SELECT id, queue, state, priority, created_at, expires_at,
		claimed_at, claimed_until, claim_count, due_at, group_key, body
		FROM queue_data.message WHERE queue <> '$names[2]') AS m};
my $counts = "SELECT to_jsonb(s) FROM job_stats('$q') AS s";
my $history = "SELECT string_agg(f::text, ' ') FROM queue_finished('$q') AS f";
my @before = map { $nodes[0]->safe_psql('postgres', $_) } $messages, $counts, $history;

my $listener = $nodes[0]->background_psql('postgres');
$listener->query_safe(qq{SELECT format('LISTEN %I', queue_channel('$q')) \\gexec});

is(move($shard, 0), 0, 'a shard moves');
like($listener->query_safe('SELECT 1'), qr/notification.*"$q"/,
	'a session that listens is notified');
$listener->quit;
is(state($shard), 'remote local', 'to the other server');
is_deeply([ map { $nodes[1]->safe_psql('postgres', $_) } $messages, $counts, $history ],
	\@before, 'with all messages, counts and the history');
is($nodes[0]->safe_psql('postgres', 'SELECT count(*) FROM queue_data.message'),
	'0', 'which are gone at the source');
my ($status, $out, $err) =
  $nodes[0]->psql('postgres', qq{\\set VERBOSITY verbose\nSELECT queue_push('$q', '6')});
like($err, qr/QU010.*server 2/s, 'the source names the target');
is($nodes[1]->safe_psql('postgres', qq{
	SELECT body, claim_count FROM claim_renew('$q', '$claim', 600),
		claim_messages('$q', '$claim')}) , '3|1', 'the claim is valid there')
  or diag $nodes[1]->safe_psql('postgres', "SELECT * FROM queue_data.message");
is($nodes[1]->safe_psql('postgres', "SELECT queue_push('$q', '1', dedup_key => 'one') IS NULL"),
	't', 'a key is still taken');
is($nodes[1]->safe_psql('postgres',
		"SELECT queue_push('$q', '1', dedup_key => 'held', dedup_for => 100000) IS NULL"),
	't', 'and one without a message, for its time');
is($nodes[1]->safe_psql('postgres', qq{
	SELECT queue_push_once('$q.dead', 'orders', 5, '5') = id FROM queue_messages('$q.dead')}),
	't', 'what was pushed once is not pushed again');
is($nodes[1]->safe_psql('postgres', "SELECT count(*) FROM queue_claim('$q', 600, 600, 10)"),
	'1', 'a group waits for its claimed message');
ok($nodes[1]->poll_query_until('postgres',
		"SELECT count(*) = 1 FROM queue_claim('$names[2]', 600, 600, 10)"),
	'a delayed message is due');
like($nodes[1]->safe_psql('postgres', "SELECT push_roles FROM queue_data.queue WHERE name = '$q'"),
	qr/mover_test_app/, 'a grant');
$nodes[1]->safe_psql('postgres', "SELECT queue_resume('$names[1]')");
ok($nodes[1]->poll_query_until('postgres', 'SELECT count(*) = 1 FROM handled'),
	'a handler runs');
$nodes[1]->safe_psql('postgres', 'DELETE FROM handled');
my $newest = $nodes[1]->safe_psql('postgres', "SELECT max(id) FROM queue_data.message");
cmp_ok($nodes[1]->safe_psql('postgres', "SELECT queue_push('$q', '7')"), '>', $newest,
	'new messages have higher ids');
is(move($shard, 0), 0, 'another run finds it moved');
is(move($shard, 1), 0, 'it moves back');
is($nodes[0]->safe_psql('postgres', qq{
	SELECT body FROM claim_renew('$q', '$claim', 600),
		claim_messages('$q', '$claim')}) , '3', 'with the claim');
is($nodes[0]->safe_psql('postgres', $history), $before[2], 'and each row of the history once');
$_->safe_psql('postgres', "SELECT set_config('queue.project', project, false), queue_drop(name) FROM queue_data.queue ORDER BY source_id NULLS FIRST")
  foreach $nodes[0];

# --- killed ---

foreach my $step (@steps)
{
	$nodes[0]->safe_psql('postgres', "SELECT queue_push('$q', '1')");
	move_killed($shard, 0, $step);
	isnt(state($shard), 'local local', 'never two owners');
	is(move($shard, 0), 0, 'another run');
	is(state($shard), 'remote local', 'finishes it');
	is($nodes[1]->safe_psql('postgres', 'SELECT count(*) FROM pg_prepared_xacts'),
		'0', 'nothing is left prepared');
	is($nodes[1]->safe_psql('postgres', "SELECT count(*) FROM queue_pop('$q', 2)"),
		'1', 'the message is there once');
	is(move($shard, 1), 0, 'back');
}

# --- under load ---

$nodes[0]->safe_psql('postgres', qq{SELECT queue_create('$_', '{"_keep_finished": 86400, "_keep_body": true}')})
  foreach @names[ 1 .. $#names ];
$nodes[0]->safe_psql('postgres', "SELECT job_handler('$names[1]', 'handle(jsonb)')");
$nodes[0]->safe_psql('postgres', "SELECT queue_push_batch('$q', array_agg(to_jsonb(n)))
	FROM generate_series(1, $waiting) AS n GROUP BY n / 1000");
@pauses = ();
my ($in, $json) = ('', '');
my @load = ("$top/test/shards.d/load", (map { conninfo($_) } @nodes),
	@names[ 1 .. $#names ]);
my $load = start \@load, '<', \$in, '>', \$json, timeout(600);
pump $load until $json =~ /running/;
foreach my $n (0 .. $moves - 1)
{
	my $from = $n % 2;

	if ($n % 3 == 1)
	{
		my $step = $steps[ $n / 3 % @steps ];

		move_killed($shard, $from, $step);
	}
	is(move($shard, $from), 0, 'a move under load');
	select(undef, undef, undef, 0.5);
}
my $killed = int(($moves + 1) / 3);
@pauses = sort { $a <=> $b } @pauses;
note "$moves moves, $killed of them killed first; $waiting messages wait; ",
  "queues locked for $pauses[ $#pauses / 2 ] ms (median), at most $pauses[-1]";
is($nodes[ $moves % 2 ]->safe_psql('postgres', qq{
	SELECT count(*), count(DISTINCT body), queue_purge('$q') FROM queue_data.message
	WHERE queue = '$q'}), "$waiting|$waiting|$waiting", 'what waited is there');
finish $load;
$json =~ s/.*running\n//s;
my $result = eval { decode_json($json) } || {};
note $json;
is_deeply([ @$result{qw(lost twice unknown both stranded)} ], [ (0) x 5 ],
	'under load nothing is lost, handled twice, handled though canceled, or left');
is($result->{history}, 0, 'the history has each message once');
is_deeply($result->{errors}, [], 'no session fails');
cmp_ok($result->{$_}, '>', 0, "there is something to see: $_")
  foreach qw(pushed refused claims canceled awaited);
foreach (0, 1)
{
	ok($nodes[$_]->poll_query_until('postgres', q{
		SELECT coalesce(bool_and((s.ready, s.claimed, s.delayed) =
			(t.free, t.claimed, t.delayed)), true)
		FROM queue_data.queue_status AS s, queue_stats(s.name) AS t}),
		"the depths at server $_ are right");
}

# --- several at once, in both directions ---

foreach my $round (1 .. 4)
{
	my @out = ('') x 4;
	my @runs = map {
		start [ $program, $shard, conninfo($nodes[ $_ % 2 ]),
			conninfo($nodes[ 1 - $_ % 2 ]) ], '>', \$out[$_], '2>&1',
		  timeout(60)
	} 0 .. 3;

	ok((eval { finish $_ foreach @runs; 1 }), 'four moves at once come to an end');
	note join '', @out;
	like(state($shard), qr/^(?:local remote|remote local)$/, 'with one owner');
}

# --- a crash of the source, which commits asynchronously ---

move($shard, 1) unless state($shard) eq 'local remote';
$nodes[0]->safe_psql('postgres', 'CHECKPOINT');
is(move($shard, 0), 0, 'a move');
$nodes[0]->stop('immediate');
$nodes[0]->start;
is(state($shard), 'remote local', 'after a crash of the source the shard has one owner');

done_testing();
