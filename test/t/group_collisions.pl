# No role can choose a group key that holds up another role's group: the hash that
# stands for a group has a secret key, which each queue has of its own, and locks and
# rates know their queue.
#
# test/check -q runs it, too.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../perl";

use PostgreSQL::Test::Utils;
use QueueTest;
use Test::More;

my $dir = PostgreSQL::Test::Utils::tempdir;

start_server(
	q{
max_prepared_transactions = 10
max_worker_processes = 16
});

# --- The hash ---

# SipHash-2-4 of Aumasson and Bernstein, written here a second time
sub rotate
{
	my ($x, $n) = @_;
	return ($x << $n) | ($x >> (64 - $n));
}

sub add
{
	my ($x, $y) = @_;
	my $low = ($x & 0xffffffff) + ($y & 0xffffffff);
	return (((($x >> 32) + ($y >> 32) + ($low >> 32)) & 0xffffffff) << 32) | ($low & 0xffffffff);
}

sub siphash
{
	no warnings 'portable';
	my ($key, $text) = @_;
	my @k = unpack('Q<2', $key);
	my @v = ($k[0] ^ 0x736f6d6570736575, $k[1] ^ 0x646f72616e646f6d,
		$k[0] ^ 0x6c7967656e657261, $k[1] ^ 0x7465646279746573);
	my $rounds = sub {
		foreach (1 .. $_[0])
		{
			$v[0] = add($v[0], $v[1]); $v[2] = add($v[2], $v[3]);
			$v[1] = rotate($v[1], 13) ^ $v[0]; $v[3] = rotate($v[3], 16) ^ $v[2];
			$v[0] = rotate($v[0], 32);
			$v[2] = add($v[2], $v[1]); $v[0] = add($v[0], $v[3]);
			$v[1] = rotate($v[1], 17) ^ $v[2]; $v[3] = rotate($v[3], 21) ^ $v[0];
			$v[2] = rotate($v[2], 32);
		}
	};
	my $length = length $text;

	$text .= "\0" x (7 - $length % 8) . chr($length % 256);
	foreach my $word (unpack 'Q<*', $text)
	{
		$v[3] ^= $word;
		$rounds->(2);
		$v[0] ^= $word;
	}
	$v[2] ^= 0xff;
	$rounds->(4);
	return $v[0] ^ $v[1] ^ $v[2] ^ $v[3];
}

is(sprintf('%x', siphash(pack('C*', 0 .. 15), pack('C*', 0 .. 14))),
	'a129ca6149be45e5', 'the example of the paper');

# The lanes of groups are in the rows of rates.
sub lanes
{
	my ($queue, $database) = @_;

	return value("SELECT r.lane FROM queue_data.group_rate AS r JOIN queue_data.queue AS q ON q.id = r.queue_id
		WHERE q.name = '$queue' ORDER BY r.lane", $database);
}

my $secret = pack 'C*', map { 31 * $_ % 256 } 1 .. 16;
my @keys = ('a', 'seven b', 'eight by', 'nine byte', 'sixteen bytes ab', 'Größe', 'x' x 256);
value(qq{
CREATE ROLE collisions_victim IN ROLE queue_producer, queue_consumer;
CREATE ROLE collisions_stranger IN ROLE queue_producer, queue_consumer;
SET ROLE collisions_victim;
SELECT queue_create('calls', '{"_group_rate": 0.0001}');
SELECT queue_create('rated', '{"_group_rate": 0.0001}');
SELECT queue_create('orders', '{"_group_concurrency": 1}')});
value("UPDATE queue_data.queue SET lane_secret = '" . unpack('H*', $secret) . "' WHERE name = 'calls'");
value("SELECT queue_push('calls', '1', group_key => k) FROM unnest('{" . join(',', map { "\"$_\"" } @keys) . "}'::text[]) AS k;
	SELECT count(*) FROM queue_pop('calls', 100)");
is(lanes('calls'), join("\n", sort { $a <=> $b } map { unpack('q<', pack('Q<', siphash($secret, $_))) } @keys),
	'lanes are SipHash-2-4 of the keys, with the secret of the queue');

# --- The secret ---

foreach my $what (q{SELECT lane_secret FROM queue_data.queue}, q{SELECT lane FROM queue_data.group_rate})
{
	is(state_of("SET ROLE collisions_stranger; $what"), '42501', "no role may read: $what");
}
is(value('SELECT count(DISTINCT lane_secret) FROM queue_data.queue'), '3', 'each queue has one of its own');

# What is known of a key is of no use: even in a queue with the same id and a group with
# the same key, the lane is another one.
my $pass = q{SELECT queue_push('rated', '1', group_key => 'customer'); SELECT count(*) FROM queue_pop('rated')};
value('CREATE DATABASE other');
value(q{CREATE EXTENSION queue; SELECT queue_create('calls'), queue_create('rated', '{"_group_rate": 0.0001}')}, 'other');
my $id = "SELECT id FROM queue_data.queue WHERE name = 'rated'";
is(value($id, 'other'), value($id), 'another database with a queue of the same id');
value($pass, $_) foreach $db, 'other';
isnt(lanes('rated', 'other'), lanes('rated'), 'the lane is another one');

# A session whose first look at the tables has failed looks again.
my $locker = $node->background_psql($db);
my $late = $node->background_psql($db, on_error_stop => 0);
$locker->query_safe('BEGIN; LOCK TABLE queue_data.queue');
$late->query(q{SET lock_timeout = '10ms'; SELECT queue_exists('rated')});
like($late->{stderr}, qr/lock timeout/, 'the first call of a session fails');
$locker->query_safe('ROLLBACK');
$late->{stderr} = '';
is($late->query_safe($pass) =~ s/.*\n//sr, '0', 'and yet it uses the secret: the group waits');
$_->quit foreach $locker, $late;

# --- Locks ---

value(q{BEGIN;
	SELECT queue_push('orders', '1', group_key => 'customer');
	COMMIT;
	BEGIN;
	SELECT FROM queue_claim('orders', 3000, 60, 1);
	PREPARE TRANSACTION 'held'});
like(value(q{SELECT string_agg(format('%s %s %s', classid, objid, objsubid), ', ')
		FROM pg_locks WHERE mode = 'ExclusiveLock' AND locktype = 'userlock'}),
	qr/^${\value("SELECT id FROM queue_data.queue WHERE name = 'orders'")} \d+ -?\d+$/,
	'the tag of a lock has the queue');
value(q{COMMIT PREPARED 'held'});

# --- Dumps ---

$node->command_ok([ 'pg_dump', '-Fc', '-f', "$dir/dump", $node->connstr($db) ], 'a dump');
value('CREATE DATABASE restored');
$node->command_ok([ 'pg_restore', '--exit-on-error', '-d', $node->connstr('restored'), "$dir/dump" ],
	'is restored');
is(lanes('rated', 'restored'), lanes('rated'), 'with the rates of groups, also of those without messages');
is(value($pass, 'restored') =~ s/.*\n//sr, '0', 'and the secrets: the group waits');
value(q{SELECT queue_drop('rated')}, 'restored');
is(lanes('rated', 'restored') . value(q{SELECT count(*) FROM queue_data.group_rate
	WHERE queue_id NOT IN (SELECT id FROM queue_data.queue)}, 'restored'),
	'0', 'a queue is dropped with its rates');

$node->stop;
done_testing();
