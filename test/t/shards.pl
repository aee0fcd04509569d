# Shards: ids of several servers do not clash, also after a dump is restored, which keeps
# the map.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../perl";

use Digest::SHA qw(sha256);
use ClusterTest;
use DatabasesTest qw($node sql);
use PostgreSQL::Test::Utils;
use Test::More;

$node = PostgreSQL::Test::Cluster->new('main');
$node->init;
$node->append_conf('postgresql.conf', 'autovacuum = off');
$node->start;

# --- A database becomes one of several ---

sql('postgres', "CREATE DATABASE $_") foreach qw(fresh third one two copy);
sql($_, 'CREATE EXTENSION queue') foreach qw(fresh third);
is(sql('third', q{SELECT queue_push('q', '1') > 0; SELECT queue_drop('q')}), "t\nt", 'not sharded');
my $connected = $node->background_psql('third', on_error_stop => 0);
$connected->query_safe(q{SELECT queue_exists('q')});
sql('third', q{SELECT queue_shard_init(queue_shard('q') % 2 + 1, 2)});
$connected->query(q{SELECT queue_push('q', '3')});
like($connected->{stderr}, qr/queue "q" is on another server/,
	'sharded: a session that was connected before');
$connected->quit;

# --- Shards ---

my @names = map { ("q$_", "q$_.dead", "a/$_.dead.dead") } 1 .. 200;
my $names = join ',', @names;
is( sql('fresh', qq{SELECT string_agg(queue_shard(q, 'shop')::text, ',' ORDER BY n)
		FROM unnest('{$names}'::text[]) WITH ORDINALITY AS u (q, n)}),
	join(',', map { ord sha256(s/(?:\.dead)+$//r . ' shop') } @names),
	'queue_shard is what other languages compute');

# --- Numbers ---

# Numbers that this database gave before are not given again.
my ($earlier) = split /\n/, sql('two', q{CREATE EXTENSION queue;
	SELECT queue_push('q', '1'); SELECT queue_drop('q')});
sql('one', 'CREATE EXTENSION queue; SELECT queue_shard_init(1, 2)');
sql('two', 'SELECT queue_shard_init(2, 2)');

# Two queues in each database, of shards that it has
my $local = q{(SELECT array_agg(q) FROM (
	SELECT 'q' || g AS q FROM generate_series(1, 100) AS g
	WHERE EXISTS (SELECT FROM queue_data.shard
		WHERE state = 'local' AND shard = queue_shard('q' || g))
	ORDER BY g LIMIT 2) AS u)};

sub push_some
{
	my ($db) = @_;
	sql($db, qq{SELECT queue_push(q, '1'), queue_push_batch(q, array_fill('1'::jsonb, '{100}'))
		FROM unnest($local) AS q});
	return;
}

# The server that is in the ids of queues and in those of messages
my $remainders = q{SELECT array(SELECT DISTINCT id % 256 FROM queue_data.queue),
	array(SELECT DISTINCT (id >> 24) % 256 FROM queue_data.message)};

push_some($_) foreach qw(one two);
is(sql('one', $remainders), '{1}|{1}', 'numbers of server 1');
is(sql('two', $remainders), '{2}|{2}', 'numbers of server 2');
cmp_ok(sql('two', 'SELECT min(id) FROM queue_data.message'),
	'>', $earlier, 'numbers that were given before are not given again');

# --- Keys of claim ids ---

# Each key in the table is valid; the oldest signs.
my $claim = q{SELECT queue_push('k', '1') > 0;
	SELECT DISTINCT claim_id FROM queue_claim('k', 600, 60)};
my $live = sub {
	return sql('fresh', join ';', map { "SELECT claim_renew('k', '$_', 600) > now()" } @_);
};
my ($own) = sql('fresh', $claim) =~ /(\w{10,})/;
sql('fresh', q{INSERT INTO queue_data.secret VALUES ('2000-01-01',
	sha256('the key of another server'))});
my ($others) = sql('fresh', $claim) =~ /(\w{10,})/;
is($live->($own, $others), "t\nt", 'ids signed with either key are valid');
sql('fresh', q{DELETE FROM queue_data.secret WHERE created_at < '2001-01-01'});
is($live->($own, $others), "t\n", 'the oldest key had signed: without it, not valid');

# --- A restored dump ---

my $dir = PostgreSQL::Test::Utils::tempdir();
my $state = q{SELECT * FROM queue_data.server;
	SELECT * FROM queue_data.shard ORDER BY shard;
	SELECT id, queue, body FROM queue_data.message ORDER BY id};
my $state_of_two = sql('two', $state);
$node->command_ok(
	[ 'pg_dump', '-Fc', '-f', "$dir/dump", $node->connstr('two') ], 'pg_dump');
$node->command_ok(
	[ 'pg_restore', '--exit-on-error', '-d', $node->connstr('copy'), "$dir/dump" ],
	'pg_restore');
is(sql('copy', $state), $state_of_two, 'restored: the map is kept');
my $last = sql('two', 'SELECT max(id) FROM queue_data.message');
push_some('copy');
is(sql('copy', $remainders), '{2}|{2}', 'restored: numbers of server 2 go on');
is( sql('copy', qq{SELECT count(*) FROM queue_data.message WHERE id > $last}),
	202, 'restored: and are higher');
sql('copy', q{SELECT queue_create('q' || g) FROM generate_series(201, 300) AS g
	WHERE EXISTS (SELECT FROM queue_data.shard
		WHERE state = 'local' AND shard = queue_shard('q' || g))});
is(sql('copy', 'SELECT array(SELECT DISTINCT id % 256 FROM queue_data.queue)'),
	'{2}', 'restored: numbers of queues too');

$node->stop;
done_testing();
