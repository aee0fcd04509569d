# A streaming standby shows queues and messages and refuses to change them;
# once promoted, everything goes on where the primary left it.
#
# One mode: the library is preloaded.

use strict;
use warnings;

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $primary = PostgreSQL::Test::Cluster->new('primary');
$primary->init(allows_streaming => 1);
$primary->append_conf(
	'postgresql.conf', q{
autovacuum = off
shared_preload_libraries = 'queue'
});
$primary->start;
$primary->backup('base');

my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($primary, 'base', has_streaming => 1);
$standby->start;

$primary->safe_psql(
	'postgres', q{
	CREATE EXTENSION queue;
	SELECT queue_push_batch('q', ARRAY['"m1"', '"m2"', '"m3"', '"m4"']::jsonb[]);
	SELECT queue_push('q', '"later"', delay => 1000);
	SELECT queue_push('q', '"keyed"', dedup_key => 'k');
});
my $claim = $primary->safe_psql('postgres',
	q{SELECT DISTINCT claim_id FROM queue_claim('q', 3000, 60, 2)});
my $free_id = $primary->safe_psql('postgres',
	q{SELECT id FROM queue_messages('q', "limit" => 1)});
my $last_id =
  $primary->safe_psql('postgres', q{SELECT newest_id FROM queue_stats('q')});
$primary->wait_for_catchup($standby, 'replay', $primary->lsn('flush'));

sub state_of
{
	my ($sql) = @_;
	my ($ret, $stdout, $stderr) = $standby->psql('postgres', $sql,
		extra_params => [ '-v', 'VERBOSITY=verbose' ]);
	return $stderr =~ /(?:ERROR|FATAL):\s+(\w{5}):/ ? $1 : 'none';
}

# reading
is( $standby->safe_psql('postgres',
		q{SELECT free, claimed, delayed, total FROM queue_stats('q')}),
	'3|2|1|6',
	'standby counts');
is( $standby->safe_psql('postgres',
		q{SELECT group_key IS NULL, free, claimed, delayed FROM queue_groups('q')}
	),
	't|3|2|1',
	'standby counts groups');
is( $standby->safe_psql('postgres', q{SELECT body FROM queue_messages('q')}),
	qq{"m3"\n"m4"\n"keyed"},
	'standby lists');
is( $standby->safe_psql('postgres', qq{SELECT body FROM message_get('q', $free_id)}),
	'"m3"', 'standby gets a message');
is( $standby->safe_psql('postgres',
		qq{SELECT ttl, message_count FROM claim_get('q', '$claim')}),
	'3000|2',
	'standby describes a claim');
is( $standby->safe_psql('postgres',
		qq{SELECT body FROM claim_messages('q', '$claim')}),
	qq{"m1"\n"m2"},
	'standby lists a claim');
is( $standby->safe_psql('postgres',
		q{SELECT queue_exists('q'), (SELECT count(*) FROM queue_list()), (SELECT paused FROM queue_get('q'))}
	),
	't|1|f',
	'standby shows queues');

# changing
my %change = (
	queue_create       => q{queue_create('new')},
	queue_set_metadata => q{queue_set_metadata('q', '{}')},
	queue_update       => q{queue_update('q', '{}')},
	queue_drop         => q{queue_drop('q')},
	queue_purge        => q{queue_purge('q')},
	queue_pause        => q{queue_pause('q')},
	queue_resume       => q{queue_resume('q')},
	queue_grant        => q{queue_grant('q', 'queue_admin', 'push')},
	queue_revoke       => q{queue_revoke('q', 'queue_admin', 'push')},
	queue_push         => q{queue_push('q', '1')},
	push_new           => q{queue_push('new', '1')},
	queue_push_batch   => q{queue_push_batch('q', ARRAY['1']::jsonb[])},
	queue_post         => q{queue_post('q', '[{"body": 1}]')},
	message_delete     => qq{message_delete('q', $free_id)},
	message_complete   => qq{message_complete('q', $free_id, '$claim')},
	messages_delete    => qq{messages_delete('q', ARRAY[$free_id])},
	message_cancel     => qq{message_cancel('q', $free_id)},
	messages_cancel    => qq{messages_cancel('q', ARRAY[$free_id])},
	queue_cancel_where => q{queue_cancel_where('q', '{}')},
	batch_cancel       => q{batch_cancel(1)},
	queue_pop          => q{queue_pop('q')},
	topic_bind         => q{topic_bind('a', 'q')},
	topic_unbind       => q{topic_unbind('a', 'q')},
	topic_publish      => q{topic_publish('a', '1')},
	queue_start        => q{queue_start_at_login()},
	queue_claim        => q{queue_claim('q', 60, 60)},
	queue_claim_any    => q{queue_claim_any(NULL, 60, 60)},
	claim_next         => qq{claim_next('q', '$claim', 60, 60)},
	claim_renew        => qq{claim_renew('q', '$claim', 60)},
	claim_release      => qq{claim_release('q', '$claim')},
	claim_complete     => qq{claim_complete('q', '$claim')},
	queue_redrive      => q{queue_redrive('q')});
foreach my $name (sort keys %change)
{
	is(state_of("SELECT $change{$name}"), '25006', "standby refuses $name");
}

# after the promotion
$primary->stop;
$standby->promote;
is( $standby->safe_psql('postgres',
		q{SELECT body FROM queue_claim('q', 60, 60, 2)}),
	qq{"m3"\n"m4"},
	'promoted: claims made before hold');
is($standby->safe_psql('postgres', qq{SELECT claim_complete('q', '$claim')}),
	'2', 'promoted: and their ids are good');
cmp_ok(
	$standby->safe_psql('postgres', q{SELECT queue_push('q', '"new"')}),
	'>', $last_id, 'promoted: ids go on growing');
is( $standby->safe_psql('postgres',
		q{SELECT queue_push('q', '"twin"', dedup_key => 'k') IS NULL}),
	't',
	'promoted: keys are still taken');
is( $standby->safe_psql('postgres', q{SELECT body FROM queue_pop('q', 10)}),
	qq{"keyed"\n"new"},
	'promoted: all free messages are there');

$standby->stop;
done_testing();
