# After a restart the worker finds out what it does not know, without a claim:
# it sweeps messages whose claims run out then, also those behind many other
# claims, and those of prepared transactions.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../perl";

use PostgreSQL::Test::Utils;
use QueueTest;
use Test::More;

start_server(
	q{
max_prepared_transactions = 10
autovacuum = off
queue.min_claim_ttl = 1
queue.min_claim_grace = 0
queue.database_workers = 0
});

# No worker sees these, also if claims run out before the server has restarted.
$node->safe_psql(
	'postgres', q{
SELECT queue_push(q, '1') FROM unnest(ARRAY['short', 'idle', 'prepared']) q;
-- more than one sweep scans, and of all priorities
SELECT queue_push('many', '1', priority => i % 10) FROM generate_series(1, 3000) i;
SET queue.max_claim_limit = 3000;
SELECT count(*) FROM queue_claim('many', 600, 0, 2999);
SELECT count(*) FROM queue_claim('many', 6, 0, 1);
SELECT count(*) FROM queue_claim('short', 6, 0, 1);
SELECT count(*) FROM queue_claim('idle', 600, 0, 1);
BEGIN;
SELECT count(*) FROM queue_claim('prepared', 600, 0, 1);
PREPARE TRANSACTION 'p';
});
$node->adjust_conf('postgresql.conf', 'queue.database_workers', '8');
$node->restart;

# There are no claims from now on.  queue_ready() only probes queues that the
# worker has marked.
sub ready
{
	return $node->safe_psql('postgres',
		q{SELECT coalesce(string_agg(r, ' ' ORDER BY r), '') FROM queue_ready() r});
}

sub becomes_ready
{
	my ($expected, $what) = @_;
	$node->poll_query_until('postgres',
		"SELECT '$expected' = (SELECT coalesce(string_agg(r, ' ' ORDER BY r), '') FROM queue_ready() r)"
	);
	return is(ready(), $expected, $what);
}

becomes_ready('many short', 'claims that run out after a restart');
$node->poll_query_until('postgres',
	q{SELECT expired_claims = 2 FROM queue_data.queue_workers WHERE database = current_database()}
);
is( $node->safe_psql(
		'postgres',
		q{SELECT expired_claims FROM queue_data.queue_workers WHERE database = current_database()}
	),
	'2',
	'and are counted, by the worker alone');
$node->safe_psql('postgres', q{ROLLBACK PREPARED 'p'});
becomes_ready('many prepared short', 'a claim that was prepared before it');
is($node->safe_psql('postgres', q{SELECT count(*) FROM queue_claim('many', 600, 0, 100)}),
	'1', 'claims get what the worker has found');
is(ready(), 'prepared short', 'and no more is there');

# Others create shared memory for groups, which the worker has had no reason to
# attach to when it sweeps a queue without groups.
$node->safe_psql('postgres', q{SELECT queue_push('groups', '1', group_key => 'g')});
$node->poll_query_until('postgres',
	q{SELECT state = 'idle' FROM queue_data.queue_workers WHERE database = current_database()});
$node->safe_psql('postgres', q{SELECT FROM queue_pop('short');
	SELECT FROM queue_pop('prepared');
	SELECT count(*) FROM queue_claim('groups', 600, 0, 1);
	SELECT queue_push('short', '1');
	SELECT FROM queue_claim('short', 1, 0, 1);
	SELECT count(queue_push('groups', '1', group_key => 'g' || i))
	FROM generate_series(1, 3000) AS i});
ok($node->poll_query_until('postgres',
		q{SELECT expired_claims = 3 FROM queue_data.queue_workers WHERE database = current_database()}),
	'a claim that ends while others use more shared memory');
becomes_ready('groups short', 'is found');

# A claim that comes before the worker leaves it most of what is not known.
$node->adjust_conf('postgresql.conf', 'queue.database_workers', '0');
$node->restart;
$node->safe_psql(
	'postgres', q{
SELECT queue_push(q, '1', group_key => CASE WHEN q = 'behind_groups' THEN (i % 10)::text END)
FROM generate_series(1, 3000) i, unnest(ARRAY['behind', 'behind_groups']) q;
SET queue.max_claim_limit = 3000;
SELECT claim_id AS one FROM queue_claim('behind', 600, 0, 1) \gset
SELECT claim_id AS other FROM queue_claim('behind_groups', 600, 0, 1) \gset
SELECT count(*) FROM unnest(ARRAY['behind', 'behind_groups']) q, queue_claim(q, 2, 0, 2999);
SELECT claim_release('behind', :'one'), claim_release('behind_groups', :'other');
});
$node->restart;
is( $node->safe_psql('postgres',
		q{SELECT count(*) FROM unnest(ARRAY['behind', 'behind_groups']) q, queue_claim(q, 600, 0, 1)}),
	'2', 'claims without a worker');
$node->adjust_conf('postgresql.conf', 'queue.database_workers', '8');
$node->reload;
ok($node->poll_query_until('postgres',
		q{SELECT array_agg(ready) = '{2999,2999}' FROM queue_data.queue_status WHERE name ~ '^behind'}),
	'what is behind what they have scanned is swept');

$node->stop;
done_testing();
