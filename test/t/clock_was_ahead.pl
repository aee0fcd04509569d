# A clock that stepped back leaves rows whose times lie in the future: ages
# are never negative, and everything can be worked off.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../perl";

use ClusterTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = PostgreSQL::Test::Cluster->new('main');
$node->init;
$node->append_conf('postgresql.conf', 'autovacuum = off');
$node->start;
$node->safe_psql(
	'postgres', q{
	CREATE EXTENSION queue;
	SELECT queue_push_batch('q', ARRAY['"m1"', '"m2"', '"m3"']::jsonb[])});
my $claim = $node->safe_psql('postgres',
	q{SELECT claim_id FROM queue_claim('q', 600, 60, 1)});

# what a clock one day fast would have written
$node->safe_psql(
	'postgres', q{
	UPDATE queue_data.message_0 SET
		created_at = created_at + interval '1 day',
		claimed_until = CASE WHEN claim_token <> 0 THEN claimed_until + interval '1 day' ELSE claimed_until END});

is( $node->safe_psql(
		'postgres',
		q{SELECT body, age, ttl > 0 FROM queue_messages('q', include_claimed => true)}),
	qq{"m1"|0|t\n"m2"|0|t\n"m3"|0|t},
	'messages from the future are of age 0');
is( $node->safe_psql(
		'postgres',
		q{SELECT free, claimed, oldest_age, newest_age FROM queue_stats('q')}),
	'2|1|0|0',
	'in the counts too');
is( $node->safe_psql(
		'postgres', qq{SELECT ttl, age, grace FROM claim_get('q', '$claim')}),
	'600|0|60',
	'a claim from the future is of age 0');
is( $node->safe_psql('postgres',
		q{SELECT body, age FROM queue_claim('q', 600, 60, 1)}),
	'"m2"|0',
	'they can be claimed');
is( $node->safe_psql('postgres', q{SELECT body, age FROM queue_pop('q')}),
	'"m3"|0', 'and popped');

# A renewed claim uses the clock as it is now.
is( $node->safe_psql(
		'postgres',
		qq{SELECT claim_renew('q', '$claim', 60) BETWEEN now() AND now() + interval '70 seconds',
		(SELECT age FROM claim_get('q', '$claim'))}),
	't|0',
	'a renewal puts the claim right');
is( $node->safe_psql('postgres', qq{SELECT claim_release('q', '$claim')}),
	'1', 'it can be released');

# The other way round, when all times are past at once: a message whose lifetime
# is over is gone, unless it is in a live claim.
$claim = $node->safe_psql('postgres',
	q{SELECT claim_id FROM queue_claim('q', 600, 60, 1)});
$node->safe_psql('postgres', q{SELECT queue_push('q', '"old"')});
$node->safe_psql(
	'postgres', q{
	UPDATE queue_data.message_0 SET created_at = created_at - interval '30 days'
	WHERE body IN ('"old"', '"m1"')});
is( $node->safe_psql(
		'postgres',
		qq{SELECT count(*) FROM queue_messages('q') WHERE body = '"old"'}),
	'0',
	'past its lifetime');
is( $node->safe_psql(
		'postgres', qq{SELECT body FROM claim_messages('q', '$claim')}),
	'"m1"',
	'a live claim keeps its message');
is( $node->safe_psql('postgres', qq{SELECT claim_complete('q', '$claim')}),
	'1', 'until it is done');

# Ids grow whatever the clock does: order is by id.
$node->safe_psql('postgres', q{SELECT queue_purge('q')});
$node->safe_psql(
	'postgres', q{
	SELECT queue_push('q', '"a"');
	UPDATE queue_data.message_0 SET created_at = created_at + interval '1 hour' WHERE body = '"a"';
	SELECT queue_push('q', '"b"')});
is( $node->safe_psql('postgres', q{SELECT body FROM queue_claim('q', 600, 60)}),
	qq{"a"\n"b"}, 'the order is that of the pushes');

$node->stop;
done_testing();
