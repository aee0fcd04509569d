# Read-only transactions may look, and are refused every change, before
# anything has happened.

use strict;
use warnings;

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = PostgreSQL::Test::Cluster->new('main');
$node->init;
$node->append_conf('postgresql.conf', 'autovacuum = off');
$node->start;
$node->safe_psql(
	'postgres', q{
	CREATE EXTENSION queue;
	SELECT queue_push_batch('q', ARRAY['"m1"', '"m2"', '"m3"']::jsonb[]);
	SELECT queue_create('paused');
	SELECT queue_pause('paused');
});
my $claim = $node->safe_psql('postgres',
	q{SELECT claim_id FROM queue_claim('q', 3000, 60, 1)});
my $free_id = $node->safe_psql('postgres',
	q{SELECT id FROM queue_messages('q', "limit" => 1)});

sub state_of
{
	my ($sql) = @_;
	my ($ret, $stdout, $stderr) = $node->psql('postgres', $sql,
		extra_params => [ '-v', 'VERBOSITY=verbose' ]);
	return $stderr =~ /(?:ERROR|FATAL):\s+(\w{5}):/ ? $1 : 'none';
}

# everything that can be seen from outside
sub fingerprint
{
	return $node->safe_psql(
		'postgres', q{
		SELECT * FROM queue_data.queue ORDER BY id;
		SELECT relation, queue, id, state, claimed_at, claimed_until, claim_count
		FROM queue_data.message ORDER BY id;
		SELECT last_value FROM queue_data.message_id});
}

my $before = fingerprint();
my %change = (
	queue_create       => q{queue_create('new')},
	create_old         => q{queue_create('q')},
	queue_set_metadata => q{queue_set_metadata('q', '{"a": 1}')},
	queue_update       => q{queue_update('q', '{"a": 1}')},
	queue_drop         => q{queue_drop('q')},
	queue_purge        => q{queue_purge('q')},
	queue_pause        => q{queue_pause('q')},
	queue_resume       => q{queue_resume('paused')},
	queue_grant        => q{queue_grant('q', 'queue_admin', 'push')},
	queue_revoke       => q{queue_revoke('q', 'queue_admin', 'push')},
	queue_push         => q{queue_push('q', '1')},
	push_new           => q{queue_push('new', '1')},
	push_delayed       => q{queue_push('q', '1', delay => 100)},
	push_keyed         => q{queue_push('q', '1', dedup_key => 'k')},
	queue_push_batch   => q{queue_push_batch('q', ARRAY['1']::jsonb[])},
	queue_post         => q{queue_post('q', '[{"body": 1}]')},
	message_delete     => qq{message_delete('q', $free_id)},
	messages_delete    => qq{messages_delete('q', ARRAY[$free_id])},
	queue_pop          => q{queue_pop('q')},
	queue_claim        => q{queue_claim('q', 60, 60)},
	queue_claim_any    => q{queue_claim_any(NULL, 60, 60)},
	claim_next         => qq{claim_next('q', '$claim', 60, 60)},
	claim_next_fresh   => q{claim_next('q', NULL, 60, 60)},
	claim_renew        => qq{claim_renew('q', '$claim', 60)},
	claim_release      => qq{claim_release('q', '$claim')},
	claim_complete     => qq{claim_complete('q', '$claim')},
	queue_redrive      => q{queue_redrive('q')});
foreach my $name (sort keys %change)
{
	is(state_of("BEGIN READ ONLY; SELECT $change{$name};"),
		'25006', "read-only transaction refuses $name");
}
is(state_of(q{SET default_transaction_read_only = on; SELECT queue_push('q', '1')}),
	'25006', 'so does a session that is read-only by default');
is( state_of(
		q{BEGIN ISOLATION LEVEL SERIALIZABLE READ ONLY DEFERRABLE; SELECT queue_claim('q', 60, 60)}
	),
	'25006',
	'and a deferrable one');

# a transaction that became read-only after it has written
is( state_of(
		q{BEGIN; SELECT queue_push('q', '"gone"'); SET TRANSACTION READ ONLY;
		SELECT queue_push('q', '"gone"'); COMMIT}),
	'25006',
	'and one that has become read-only');
$node->safe_psql('postgres', q{SELECT 1});
is( $node->safe_psql(
		'postgres',
		q{SELECT count(*) FROM queue_data.message WHERE body = '"gone"'}),
	'0',
	'whose earlier push is gone with it');

# looking
is( $node->safe_psql(
		'postgres', qq{
		BEGIN READ ONLY;
		SELECT free, claimed, total FROM queue_stats('q');
		SELECT body FROM queue_messages('q', include_claimed => true);
		SELECT body FROM message_get('q', $free_id);
		SELECT body FROM messages_get('q', ARRAY[$free_id]);
		SELECT message_count FROM claim_get('q', '$claim');
		SELECT body FROM claim_messages('q', '$claim');
		SELECT queue_exists('q');
		SELECT name, paused FROM queue_get('paused');
		SELECT name FROM queue_list();
		SELECT count(*) FROM queue_dead_letters('q');
		COMMIT}),
	join("\n",
		'2|1|3', '"m1"', '"m2"', '"m3"', '"m2"', '"m2"', '1', '"m1"',
		't', 'paused|t', 'paused', 'q', '0'),
	'read-only transactions may look');

# the sequence alone may have moved, for the push that was allowed
my $after = fingerprint();
s/\n\d+$// foreach ($before, $after);
is($after, $before, 'nothing is left behind');

$node->stop;
done_testing();
