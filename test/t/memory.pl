# Shared memory is allocated as queues and groups are used, not when the server
# starts; and where there is none, queues work without it, and the log says so.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../perl";

use List::Util qw(sum0);
use PostgreSQL::Test::Utils;
use QueueTest;
use Test::More;

start_server(
	q{
dynamic_shared_memory_type = mmap
queue.database_workers = 0
autovacuum = off
});

# Segments of dynamic shared memory are files here.
my $segments = $node->data_dir . '/pg_dynshmem';

sub dynamic_memory
{
	return sum0(map { -s $_ } glob("$segments/*"));
}

# --- As queues are used ---

my $at_start = dynamic_memory();
cmp_ok(
	value(q{SELECT sum(allocated_size) FROM pg_shmem_allocations WHERE name LIKE 'queue%'}),
	'<', 1024 * 1024, 'shared memory at the start of the server');
is(value(q{SELECT count(queue_push('q' || g, '1')) FROM generate_series(1, 50) AS g}),
	'50', '50 queues');
my $fifty = dynamic_memory() - $at_start;
cmp_ok($fifty, '>', 0, 'they have got memory');
cmp_ok($fifty, '<', 128 * 1024, 'as much as they need');
is(value(q{SELECT count(queue_push('q' || g, '1')) FROM generate_series(51, 2000) AS g}),
	'1950', '2,000 queues');
my $thousands = dynamic_memory() - $at_start;
cmp_ok($thousands, '>', 20 * $fifty, 'they have got more');
cmp_ok($thousands, '<', 8 * 1024 * 1024, 'as much as they need, at most doubled');
is( value(q{SELECT count(*), sum(n) FROM generate_series(1, 2000) AS g,
		LATERAL (SELECT count(*) AS n FROM queue_claim('q' || g)) AS c}),
	'2000|2000', 'each of them is found again');
is(dynamic_memory() - $at_start, $thousands, 'claims need no more');

# --- As groups are used ---

is( value(q{SELECT count(queue_push('groups', '1', group_key => 'g' || g)) FROM generate_series(1, 20) AS g}),
	'20', '20 groups');
my $groups = dynamic_memory() - $at_start - $thousands;
cmp_ok($groups, '>', 0, 'they have got memory');
cmp_ok($groups, '<', 128 * 1024, 'as much as they need');
is( value(q{SELECT count(queue_push('groups', '1', group_key => 'g' || g)) FROM generate_series(21, 5000) AS g}),
	'4980', '5,000 groups');
is( value(q{SELECT count(DISTINCT group_key) FROM generate_series(1, 50) AS g, queue_claim('groups', 300 + g, "limit" => 100)}),
	'5000', 'each of them is found again');
cmp_ok(dynamic_memory() - $at_start - $thousands,
	'<', 16 * 1024 * 1024, 'they need at most two or three times as much');

# --- Where there is none ---

$node->stop;
$node->start;
chmod 0500, $segments or die "cannot change $segments: $!";
is(value(q{SELECT count(queue_push('new', to_jsonb(g))) FROM generate_series(1, 3) AS g}),
	'3', 'a push');
is(value(q{SELECT body FROM queue_claim('new', "limit" => 1)}), '1', 'a claim');
is(value(q{SELECT body FROM queue_pop('new')}), '2', 'a pop');
is(value(q{SELECT free FROM queue_stats('new')}), '1', 'what is left');
is( value(q{SELECT count(queue_push('keys', to_jsonb(g), group_key => 'g' || g % 2)) FROM generate_series(1, 4) AS g}),
	'4', 'a push to groups');
is( value(q{SELECT string_agg(body::text, ' ' ORDER BY body) FROM queue_claim('keys', "limit" => 2)}),
	'1 2', 'a claim of one of each');
is(value(q{SELECT count(*) FROM queue_claim('new')}), '1', 'another claim');
is(value(q{SELECT count(*) FROM queue_claim('new')}), '0', 'nothing is left');
my $log = slurp_file($node->logfile);
my $said = () = $log =~ /could not allocate shared memory for queues/g;
is($said, 1, 'the log says so, once');
like($log, qr/HINT: .*make more shared memory available/i, 'and what to do');

chmod 0700, $segments or die "cannot change $segments: $!";
$node->stop;
$node->start;
is(value(q{SELECT count(*) FROM queue_claim('new')}), '0', 'claims hold');
value(q{SELECT queue_push('new', '4')});
is(value(q{SELECT body FROM queue_claim('new')}), '4', 'and all is well again');

done_testing();
