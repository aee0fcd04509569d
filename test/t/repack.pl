# From PostgreSQL 19 on REPACK (CONCURRENTLY) writes a table anew while others
# use it, and takes their changes from the WAL, which is that of logical decoding
# until then.  A snapshot that is older than the new table sees nothing in it.
# Messages that are pushed, claimed and deleted meanwhile are each handed out
# once, and every delete finds its message.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../perl";

use ClusterTest;
use IPC::Run;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = PostgreSQL::Test::Cluster->new('main');
plan skip_all => 'PostgreSQL 19 or later only'
  if $node->pg_version < '19devel';
$node->init(allows_streaming => 1);
$node->append_conf(
	'postgresql.conf', q{
autovacuum = off
queue.segment_size = 0
});
$node->start;

my $load = $node->basedir . '/load.sql';
append_to_file(
	$load, q{
SELECT queue_push_batch('q', ARRAY['1', '2', '3']::jsonb[]);
INSERT INTO claimed SELECT :client_id, id, claim_id FROM queue_claim('q', 3600, 60, 3);
WITH mine AS (DELETE FROM claimed WHERE client = :client_id RETURNING id, claim_id)
	INSERT INTO ended SELECT id FROM mine WHERE message_delete('q', id, claim_id);
});
$node->safe_psql(
	'postgres', q{
	CREATE EXTENSION queue;
	CREATE TABLE claimed (client int, id bigint, claim_id text);
	CREATE TABLE ended (id bigint PRIMARY KEY);
	SELECT queue_push_batch('q', array_agg('0'::jsonb)) FROM generate_series(1, 100)});

# Until the load has ended, so that they meet
my $clients = IPC::Run::start(
	[
		'pgbench', '-n', '-c', '4', '-t', '250', '-f', $load, '-h',
		$node->host, '-p', $node->port, 'postgres'
	],
	'>',
	\my $out,
	'2>',
	\my $err);
my $repacked = 0;
while ($clients->pumpable)
{
	$node->safe_psql('postgres',
		'REPACK (CONCURRENTLY) queue_data.message_0');
	$repacked++;
	$node->safe_psql('postgres', 'REPACK queue_data.message_0');
	$clients->pump_nb;
}
ok($clients->finish, 'the clients meet no error') or diag $err;
note "$repacked times";
$node->safe_psql(
	'postgres', q{
	DO $$
	DECLARE n int := 1;
	BEGIN
		WHILE n > 0 LOOP
			INSERT INTO ended SELECT id FROM queue_pop('q', 100);
			GET DIAGNOSTICS n = ROW_COUNT;
			COMMIT;
		END LOOP;
	END $$});
is( $node->safe_psql(
		'postgres',
		q{SELECT count(*), (SELECT count(*) FROM claimed), (SELECT total FROM queue_stats('q')) FROM ended}
	),
	'3100|0|0',
	'each message was handed out once, and deleted');
is($node->safe_psql('postgres', 'SELECT count(*) FROM queue_data.message_0'),
	0, 'no row is left');

done_testing();
