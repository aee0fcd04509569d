# No role can choose a group key that holds up another role's group: the hash
# that stands for a group is secret, and locks and rates know their queue.
#
# The library still works with the tables of version 1.1, where the hash is one
# that anyone can compute.  So the attacks are made there first, and succeed.
# The update waits for the transactions that use the old hash, keeps the rates,
# and ends the attacks.
#
# test/check -q runs it, too.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../perl";

use ClusterTest;
use PostgreSQL::Test::Utils;
use QueueTest qw($node value);
use Test::More;

my $dir = PostgreSQL::Test::Utils::tempdir;
$node = PostgreSQL::Test::Cluster->new('main');

$node->init;
$node->append_conf(
	'postgresql.conf', q{
max_prepared_transactions = 10
max_worker_processes = 16
});
$node->start;

# --- Colliding keys ---

# hashtextextended() is lookup3 of Bob Jenkins.  A key of 12 bytes is one block,
# mixed in and then mixed once more; each step can be inverted, so a block can be
# computed for any 64 bits, with 32 bits left to choose.

sub add { return ($_[0] + $_[1]) & 0xffffffff }
sub subtract { return ($_[0] - $_[1]) & 0xffffffff }
sub rotate { return (($_[0] << $_[1]) | ($_[0] >> (32 - $_[1]))) & 0xffffffff }

sub mix
{
	my ($a, $b, $c) = @_;

	$a = subtract($a, $c) ^ rotate($c, 4);  $c = add($c, $b);
	$b = subtract($b, $a) ^ rotate($a, 6);  $a = add($a, $c);
	$c = subtract($c, $b) ^ rotate($b, 8);  $b = add($b, $a);
	$a = subtract($a, $c) ^ rotate($c, 16); $c = add($c, $b);
	$b = subtract($b, $a) ^ rotate($a, 19); $a = add($a, $c);
	$c = subtract($c, $b) ^ rotate($b, 4);  $b = add($b, $a);
	return ($a, $b, $c);
}

sub unmix
{
	my ($a, $b, $c) = @_;

	$b = subtract($b, $a); $c = add($c ^ rotate($b, 4), $b);
	$a = subtract($a, $c); $b = add($b ^ rotate($a, 19), $a);
	$c = subtract($c, $b); $a = add($a ^ rotate($c, 16), $c);
	$b = subtract($b, $a); $c = add($c ^ rotate($b, 8), $b);
	$a = subtract($a, $c); $b = add($b ^ rotate($a, 6), $a);
	$c = subtract($c, $b); $a = add($a ^ rotate($c, 4), $c);
	return ($a, $b, $c);
}

sub unfinal
{
	my ($a, $b, $c) = @_;

	$c = add($c, rotate($b, 24)) ^ $b;
	$b = add($b, rotate($a, 14)) ^ $a;
	$a = add($a, rotate($c, 4)) ^ $c;
	$c = add($c, rotate($b, 16)) ^ $b;
	$b = add($b, rotate($a, 25)) ^ $a;
	$a = add($a, rotate($c, 11)) ^ $c;
	$c = add($c, rotate($b, 14)) ^ $b;
	return ($a, $b, $c);
}

# A key with this hash in the queue with this id
sub colliding_key
{
	my ($queue_id, $hash) = @_;
	my $start = (0x9e3779b9 + 12 + 3923095) & 0xffffffff;
	my @start = mix($start, add($start, $queue_id), $start);

	for my $free (0 .. 1_000_000)
	{
		my @end = unmix(unfinal($free, $hash >> 32, $hash & 0xffffffff));
		my $key = pack 'L3', map { subtract($end[$_], $start[$_]) } 0 .. 2;

		return $key if $key =~ /^[!-#%&(-~]{12}$/;
	}
	die 'no key found';
}

# --- Two roles, with a queue each ---

value(q{
CREATE EXTENSION queue VERSION '1.1';
CREATE ROLE collisions_victim LOGIN IN ROLE queue_producer, queue_consumer;
CREATE ROLE collisions_stranger LOGIN IN ROLE queue_producer, queue_consumer;
SET ROLE collisions_victim;
SELECT queue_create('orders', '{"_group_concurrency": 1}');
SELECT queue_create('calls', '{"_group_rate": 0.001}');
SET ROLE collisions_stranger;
SELECT queue_create('mine', '{"_group_concurrency": 1}');
SELECT queue_create('slow', '{"_group_rate": 1e-9}')});

my %id = map { split /\|/ }
  split /\n/, value('SELECT name, id FROM queue_data.queue');
my %key;
foreach (['mine', 'orders'], ['slow', 'calls'])
{
	my ($queue, $other) = @$_;
	my $hash = "hashtextextended('customer', $id{$other})";

	$key{$queue} = colliding_key($id{$queue}, value("SELECT $hash") + 0);
	is( value("SELECT hashtextextended(\$\$$key{$queue}\$\$, $id{$queue}) = $hash"),
		't', "a colliding key for queue $queue: $key{$queue}");
}

# The stranger prepares a claim of a group of its own, and delivers a message of a
# group with a rate of its own.
sub attack
{
	value(qq{SET ROLE collisions_stranger;
		BEGIN;
		SELECT queue_push('mine', '1', group_key => \$\$$key{mine}\$\$);
		COMMIT;
		BEGIN;
		SELECT FROM queue_claim('mine', 3000, 60, 1);
		PREPARE TRANSACTION 'held'});
	value(qq{SET ROLE collisions_stranger;
		SELECT queue_push('slow', '1', group_key => \$\$$key{slow}\$\$);
		SELECT count(*) FROM queue_pop('slow')});
	return;
}

# How many messages does the victim get?
sub claimed
{
	my ($queue) = @_;

	return value(qq{SET ROLE collisions_victim;
		SELECT queue_purge('$queue');
		SELECT queue_push('$queue', '1', group_key => 'customer');
		SELECT count(*) FROM queue_pop('$queue')}) =~ s/.*\n//sr;
}

sub locks
{
	return value(q{SELECT string_agg(format('%s %s %s', classid, objid, objsubid), ', ')
		FROM pg_locks WHERE mode = 'ExclusiveLock' AND (locktype = 'userlock'
			OR classid = 'queue_data.grouped'::regclass)});
}

attack();
my %lock = (before => locks());
is(claimed('orders'), '0', '1.1: a prepared claim of another queue holds up a group');
is(claimed('calls'), '0', '1.1: and so does a rate of another queue');

# --- The update ---

# Groups of a queue with a rate: of "left" there are messages, of "gone" none
value(q{
SELECT queue_create('rated', '{"_group_rate": 0.001}');
SELECT queue_push('rated', '1', group_key => k) FROM unnest('{left,gone,left}'::text[]) AS k;
SELECT count(*) FROM queue_pop('rated', 2)});
is(value('SELECT count(*) FROM queue_claim(\'rated\')'), '0', '1.1: a rate');
is(value("SELECT count(*) FROM queue_data.group_rate WHERE next_at > now()"),
	'3', '1.1: groups that wait');

my $update = "SET lock_timeout = '100ms'; ALTER EXTENSION queue UPDATE";
like(($node->psql('postgres', $update))[2],
	qr/lock timeout/, 'the update does not go past a prepared claim');
value(q{ROLLBACK PREPARED 'held';
	SELECT queue_purge(q) FROM unnest('{orders,calls}'::text[]) AS q});

# A session that stays connected, and its claims
my $session = $node->background_psql('postgres');
$session->query_safe(q{
	SELECT queue_push('orders', '2', group_key => 'a'), queue_push('orders', '3', group_key => 'a');
	BEGIN; SELECT FROM queue_claim('orders', 3000, 60, 1)});
like(($node->psql('postgres', $update))[2],
	qr/lock timeout/, 'nor past a claim that has not ended');
$session->query_safe('COMMIT');

my $before = value(q{SELECT array_agg(next_at ORDER BY next_at) FROM queue_data.group_rate
	WHERE lane = hashtextextended('left', (SELECT id FROM queue_data.queue WHERE name = 'rated'))});
$node->command_ok([ 'pg_dump', '-Fc', '-f', "$dir/old.dump",
	$node->connstr('postgres') ], 'a dump of 1.1');
is(($node->psql('postgres', $update))[2], '', 'then it is updated');

my $left = q{queue_data.group_lane((SELECT id FROM queue_data.queue WHERE name = 'rated'), 'left')};
is(value("SELECT array_agg(next_at) FROM queue_data.group_rate WHERE lane = $left"),
	$before, 'a group with messages keeps its time to wait');
is(value('SELECT count(*) FROM queue_data.group_rate'),
	'1', 'rows of groups without messages are gone');
is(value('SELECT count(*) FROM queue_claim(\'rated\')'), '0', 'the rate goes on');
is($session->query_safe(q{SELECT count(*) FROM queue_claim('orders', 3000, 60, 1)}),
	'0', 'and so does a bound, in a session that stays connected');
is($session->query_safe(q{SELECT body FROM queue_messages('orders', include_claimed => true)}),
	"2\n3", 'nothing is lost');

is( $session->query_safe(q{
	SELECT sum(claim_complete('orders', claim_id))
	FROM queue_messages('orders', include_claimed => true) WHERE claim_id IS NOT NULL;
	SELECT body FROM queue_pop('orders')}),
	"1\n3", 'the next message of a group comes when the first one is done');

# --- The attacks fail ---

attack();
$lock{after} = locks();
is(claimed('orders'), '1', 'a prepared claim of another queue holds up nothing');
is(claimed('calls'), '1', 'nor does a rate of another queue');
value(q{ROLLBACK PREPARED 'held'});
note "the tags: $lock{before}; $lock{after}";
like($lock{after}, qr/^$id{mine} \d+ -?\d+$/, 'the tag of a lock has the queue');

# What is known of a key is of no use: even in a queue with the same id and a
# group with the same key, the lane is another one.
value('CREATE DATABASE other');
value(q{CREATE EXTENSION queue; SELECT queue_create('orders')}, 'other');
my $lane = "SELECT queue_data.group_lane($id{orders}, 'customer')";
is(value('SELECT id FROM queue_data.queue', 'other'), $id{orders},
	'another database with a queue of the same id');
isnt(value($lane, 'other'), value($lane), 'the lane is another one');
like(($node->psql('postgres', "SET ROLE collisions_stranger; $lane"))[2],
	qr/permission denied/, 'and not told to everybody');

# A session whose first look at the tables has failed looks again.
my $locker = $node->background_psql('postgres');
my $late = $node->background_psql('postgres', on_error_stop => 0);
$locker->query_safe('BEGIN; LOCK TABLE queue_data.queue');
$late->query(q{SET lock_timeout = '10ms'; SELECT queue_exists('orders')});
like($late->{stderr}, qr/lock timeout/, 'the first call of a session fails');
$locker->query_safe('ROLLBACK');
$late->{stderr} = '';
is($late->query_safe($lane), value($lane), 'and yet it uses the secret');
$_->quit foreach $locker, $late;

# --- The hash ---

# The vectors of the paper, and as other programs compute them
value(q{
UPDATE queue_data.queue SET lane_secret = '00010203-0405-0607-0809-0a0b0c0d0e0f';
CREATE FUNCTION lane(queue_id int, key bytea) RETURNS bigint
AS '$libdir/queue', 'sql_queue_group_lane' LANGUAGE C STRICT}, 'other');
is( value(qq{SELECT string_agg(reverse_bytes, ' ' ORDER BY n) FROM
	(SELECT n, (SELECT string_agg(substr(h, 15 - 2 * i, 2), '' ORDER BY i)
			FROM generate_series(0, 7) AS i) AS reverse_bytes
		FROM unnest('{0,1,7,8,9,15,16,31,63}'::int[]) AS n,
			LATERAL (SELECT lpad(to_hex(lane($id{orders}, coalesce((SELECT
				string_agg(set_byte('\\x00', 0, b), '' ORDER BY b)
				FROM generate_series(0, n - 1) AS b), ''))), 16, '0') AS h) AS l) AS v},
		'other'),
	'310e0edd47db6f72 fd67dc93c539f874 37d1018bf50002ab 6224939a79f5f593'
	  . ' b0e4a90bdf82009e e545be4961ca29a1 db9bc2577fcc2a3f 42c341d8fa92d832'
	  . ' 724506eb4c328a95',
	'SipHash-2-4');

# --- Dumps ---

# One of 1.1 has no secrets; one of this version keeps them.
sub restored
{
	my ($dump) = @_;

	value("CREATE DATABASE $dump");
	$node->command_ok([ 'pg_restore', '--exit-on-error', '-d',
		$node->connstr($dump), "$dir/$dump.dump" ], "$dump: a dump is restored");
	return;
}
restored('old');
is(value('SELECT count(DISTINCT lane_secret) = count(*) FROM queue_data.queue', 'old'),
	't', 'old: each queue has a secret');
is(value(q{SELECT count(*) FROM queue_claim('orders', 3000, 60, 1)}, 'old'),
	'0', 'old: a bound is kept');

value(q{
SELECT queue_push('rated', '4', group_key => 'new');
SELECT count(*) FROM queue_pop('rated')});
$node->command_ok([ 'pg_dump', '-Fc', '-f', "$dir/new.dump",
	$node->connstr('postgres') ], 'a dump');
restored('new');
is(value($lane, 'new'), value($lane), 'a restored queue has its secret');
value(q{SELECT queue_push('rated', '5', group_key => 'new')}, 'new');
is(value(q{SELECT count(*) FROM queue_claim('rated')}, 'new'),
	'0', 'and the rates of its groups, also of those without messages');

value(q{SELECT queue_drop('rated')}, 'new');
is(value(qq{SELECT count(*) FROM queue_data.group_rate
	WHERE queue_id NOT IN (SELECT id FROM queue_data.queue)}, 'new'),
	'0', 'a queue is dropped with its rates');

$session->quit;
$node->stop;
done_testing();
