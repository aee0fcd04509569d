# Version 1.1 and shards: an updated extension has the same objects as a new one,
# and 1.0 works with this library; ids of several servers do not clash, also
# after a dump is restored, which keeps the map.

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

# --- Versions ---

# All that belongs to the extension, with what describes it.
my $objects = q{
WITH member AS (
	SELECT classid, objid FROM pg_depend
	WHERE refclassid = 'pg_extension'::regclass AND deptype = 'e'
	AND refobjid = (SELECT oid FROM pg_extension WHERE extname = 'queue')
), relation AS (
	SELECT objid AS oid FROM member WHERE classid = 'pg_class'::regclass
	UNION
	SELECT indexrelid FROM pg_index JOIN member ON objid = indrelid
), what AS (
	SELECT concat_ws(' ', pg_describe_object(classid, objid, 0),
		obj_description(objid, classid::regclass::name)) AS line FROM member
	UNION ALL
	SELECT pg_get_functiondef(p.oid) || coalesce(proacl::text, 'none')
	FROM pg_proc AS p JOIN member ON objid = p.oid
	UNION ALL
	SELECT concat_ws(' ', oid::regclass, relkind, relacl, reloptions, relreplident,
		relpersistence, obj_description(oid, 'pg_class'),
		CASE relkind WHEN 'v' THEN pg_get_viewdef(oid)
			WHEN 'i' THEN pg_get_indexdef(oid) END)
	FROM pg_class JOIN relation USING (oid)
	UNION ALL
	SELECT concat_ws(' ', attrelid::regclass, attnum, attname, attnotnull,
		format_type(atttypid, atttypmod), attcollation::regcollation, attstorage,
		attacl, pg_get_expr(adbin, adrelid))
	FROM pg_attribute JOIN relation ON attrelid = oid
		LEFT JOIN pg_attrdef ON adrelid = attrelid AND adnum = attnum
	WHERE attnum > 0
	UNION ALL
	SELECT concat_ws(' ', pg_get_triggerdef(t.oid), tgenabled,
		obj_description(t.oid, 'pg_trigger'))
	FROM pg_trigger AS t JOIN relation AS r ON r.oid = tgrelid
	UNION ALL
	SELECT concat_ws(' ', conrelid::regclass, conname, pg_get_constraintdef(c.oid))
	FROM pg_constraint AS c JOIN relation AS r ON r.oid = conrelid
	UNION ALL
	SELECT concat_ws(' ', seqrelid::regclass, format_type(seqtypid, NULL), seqstart,
		seqincrement, seqmin, seqmax, seqcache)
	FROM pg_sequence JOIN relation ON oid = seqrelid
	UNION ALL
	SELECT concat_ws(' ', 'dumped', c.table_oid::regclass, c.condition)
	FROM pg_extension, unnest(extconfig, extcondition) AS c (table_oid, condition)
	WHERE extname = 'queue'
)
SELECT line FROM what ORDER BY line COLLATE "C"};

sql('postgres', "CREATE DATABASE $_") foreach qw(fresh old one two copy);
sql('fresh', 'CREATE EXTENSION queue');
sql('old', q{CREATE EXTENSION queue VERSION '1.0'});
my $objects_of_old = sql('old', $objects);
unlike($objects_of_old, qr/queue_data\.shard/, '1.0 has no map');
is( sql('old', q{SELECT queue_push('q', '1') > 0;
		SELECT body FROM queue_claim('q', 60, 60);
		SELECT queue_exists('no'), queue_drop('no'), queue_create('other');
		SELECT name FROM queue_list();}),
	"t\n1\nf|f|t\nother\nq",
	'1.0 works with this library');
my $connected = $node->background_psql('old', on_error_stop => 0);
$connected->query_safe(q{SELECT queue_push('q', '2')});
sql('old', 'ALTER EXTENSION queue UPDATE');
is(sql('old', $objects), sql('fresh', $objects),
	'an updated extension has the same objects as a new one');
cmp_ok(length(sql('fresh', $objects)), '>', length($objects_of_old),
	'and more than 1.0');
is( sql('old', q{SELECT queue_shard('q') = 256, free + claimed FROM queue_stats('q')}),
	'f|2', 'updated: what was there is there');
is( $connected->query_safe(q{SELECT queue_push_once('q', 'o', 1, '1')
		= queue_push_once('q', 'o', 1, '1')}),
	't', 'a session that was connected before finds the new table');
sql('old', q{SELECT queue_drop(name) FROM queue_list();
	SELECT queue_shard_init(queue_shard('q') % 2 + 1, 2)});
$connected->query(q{SELECT queue_push('q', '3')});
like($connected->{stderr}, qr/queue "q" is on another server/,
	'updated and sharded: a session that was connected before');
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
