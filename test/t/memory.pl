# Shared memory has a fixed size, which two settings give and a view shows; the manual says
# what it is.  Queues and groups take places of it, and give them back; those that find none
# work all the same.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../perl";

use PostgreSQL::Test::Utils;
use QueueTest;
use Test::More;

start_server(
	q{
autovacuum = off
max_prepared_transactions = 2
});

sub allocated
{
	return value(q{SELECT sum(allocated_size) FROM pg_shmem_allocations WHERE name LIKE 'queue%'});
}

sub used
{
	my ($what) = @_;
	return value("SELECT used FROM queue_data.queue_memory WHERE what = '$what'");
}

# --- The size ---

SKIP:
{
	skip 'the library is not preloaded', 1 if value('SHOW shared_preload_libraries') !~ /queue/;
	my $default = allocated();
	note "$default bytes by default";
	cmp_ok($default, '<=', 64 * 1024 * 1024, 'shared memory with the default settings');
}
is(value(q{SELECT string_agg(what || ' ' || places, ', ') FROM queue_data.queue_memory}),
	value(q{SELECT format('queues %s, groups %s, stretches %s', q, g, 10 * g)
		FROM current_setting('queue.max_active_queues') AS q,
			(SELECT current_setting('queue.max_active_groups')::int) AS s (g)}),
	'the places are those of the settings');

# --- Places that are used, and given back ---

my $before = used('queues');
is(value(q{SELECT count(queue_push('q' || g, '1')) FROM generate_series(1, 500) AS g}),
	'500', '500 queues');
is(used('queues') - $before, 500, 'have a place each');
value(q{SELECT count(queue_drop('q' || g)) FROM generate_series(1, 500) AS g});
is(used('queues'), $before, 'which they give back when they are dropped');

# The map of the queue learns by a claim that there are groups.
value(q{SELECT FROM queue_push('groups', '0', group_key => 'g'); SELECT FROM queue_pop('groups');
	SELECT FROM queue_pop('groups')});
is( value(q{SELECT count(queue_push('groups', '1', group_key => 'g' || g)) FROM generate_series(1, 200) AS g}),
	'200', '200 groups');
is(used('groups'), 200, 'have a place each');
cmp_ok(used('stretches'), '>=', 200, 'and their messages');
value(q{SELECT FROM queue_pop('groups', 100); SELECT FROM queue_pop('groups', 100)});
is(used('groups') . ' ' . used('stretches'), '0 0', 'which they give back when they are empty');
value('CREATE DATABASE other');
value(q{CREATE EXTENSION queue; SELECT count(queue_push('q' || g, '1')) FROM generate_series(1, 100) AS g}, 'other');
value('DROP DATABASE other');
becomes(q{SELECT used FROM queue_data.queue_memory WHERE what = 'queues'}, $before + 1,
	'a database that is dropped gives back its places');

# --- No room ---

SKIP:
{
	skip 'the library is not preloaded', 13 if value('SHOW shared_preload_libraries') !~ /queue/;

	$node->append_conf('postgresql.conf', q{
queue.max_active_queues = 64
queue.max_active_groups = 64
queue.database_workers = 0
});
	$node->restart;
	cmp_ok(allocated(), '<', 4 * 1024 * 1024, 'little memory');
	value(q{SELECT count(queue_push('q' || g, '1')) FROM generate_series(1, 40) AS g});
	is(used('queues'), 32, 'one owner has half of the places');
	is(value(q{SELECT count(queue_push('new', to_jsonb(g))) FROM generate_series(1, 3) AS g}),
		'3', 'a push to a queue without a place');
	is(value(q{SELECT body FROM queue_claim('new', "limit" => 1)}), '1', 'a claim');
	is(value(q{SELECT body FROM queue_pop('new')}), '2', 'a pop');
	is(value(q{SELECT free FROM queue_stats('new')}), '1', 'what is left');
	is( value(q{SELECT count(queue_push('keys', to_jsonb(g), group_key => 'g' || g % 2)) FROM generate_series(1, 4) AS g}),
		'4', 'a push to groups');
	is( value(q{SELECT string_agg(body::text, ' ' ORDER BY body) FROM queue_claim('keys', "limit" => 2)}),
		'1 2', 'a claim of one of each');
	is(value(q{SELECT count(*) FROM queue_claim('new')}), '1', 'another claim');
	is(value(q{SELECT count(*) FROM queue_claim('new')}), '0', 'nothing is left');
	value(q{BEGIN; SELECT queue_push('new', '4'); PREPARE TRANSACTION 'p'});
	is(value(q{SELECT count(*) FROM queue_claim('new')}), '0', 'what is prepared is not there');
	value(q{COMMIT PREPARED 'p'});
	is(value(q{SELECT body FROM queue_claim('new')}), '4', 'before it is committed');
	like(value(q{SELECT string_agg(g || ':' || n, ' ') FROM generate_series(1, 40) AS g,
		LATERAL (SELECT count(*) AS n FROM queue_claim('q' || g)) AS c WHERE n <> 1}),
		qr/^$/, 'each queue has its message');
}
$node->stop;
done_testing();
