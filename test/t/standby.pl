# A streaming standby shows queues and messages and refuses to change them;
# once promoted, everything goes on where the primary left it.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../perl";

use ClusterTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $primary = PostgreSQL::Test::Cluster->new('primary');
$primary->init(allows_streaming => 1);
$primary->append_conf(
	'postgresql.conf', q{
autovacuum = off
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

# A history: one message is completed, one waits, and one is canceled while a claim
# holds it.
$primary->safe_psql(
	'postgres', q{
	SELECT queue_create('kept', '{"_keep_finished": 86400, "_keep_body": true}');
	SELECT queue_push('kept', '"done"');
	SELECT message_complete('kept', id, claim_id, '17') FROM queue_claim('kept', 600, 60);
	SELECT queue_push_batch('kept', ARRAY['"canceled"', '"waits"']::jsonb[]);
});
my ($canceled, $canceled_claim) = split /\|/, $primary->safe_psql('postgres',
	q{SELECT id, claim_id FROM queue_claim('kept', 3000, 60, 1)});
$primary->safe_psql('postgres', "SELECT message_cancel('kept', $canceled)");
my $history = q{SELECT f FROM queue_finished('kept') AS f};
my $kept = $primary->safe_psql('postgres', $history);
my ($done, $result) = split /\|/, $primary->safe_psql('postgres',
	q{SELECT id, result FROM queue_finished('kept')});
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
	't|2|f',
	'standby shows queues');
is($standby->safe_psql('postgres', $history), $kept, 'standby shows the history');
is($standby->safe_psql('postgres', "SELECT message_result('kept', $done)"),
	$result, 'standby shows a result');

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
	queue_claim        => q{queue_claim('q', 600, 60)},
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
is(state_of("CALL queue_await('kept', $done)"), '25006', 'standby refuses queue_await');

# after the promotion
$primary->stop;
$standby->promote;
is( $standby->safe_psql('postgres',
		q{SELECT body FROM queue_claim('q', 600, 60, 2)}),
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

is($standby->safe_psql('postgres', $history), $kept, 'promoted: the history is the same');
is($standby->safe_psql('postgres', "CALL queue_await('kept', $done)"),
	'{"error": null, "result": 17, "outcome": "completed"}',
	'promoted: what was finished before is known at once');
is(state_of("SELECT message_complete('kept', $canceled, '$canceled_claim')"),
	'QU004', 'promoted: what was canceled cannot be completed');
my $waits = $standby->safe_psql('postgres', q{SELECT id FROM queue_messages('kept')});
my $waiting = $standby->background_psql('postgres');
$waiting->query_until(qr/waits/, qq{\\echo waits
CALL queue_await('kept', $waits, 180000);
CALL queue_await('kept', $canceled, 180000);
});
ok($standby->poll_query_until('postgres',
		q{SELECT count(*) = 1 FROM pg_stat_activity
			WHERE query LIKE 'CALL queue_await%' AND wait_event_type = 'Extension'}),
	'promoted: a session waits');
$standby->safe_psql('postgres',
	q{SELECT message_complete('kept', id, claim_id, '18') FROM queue_claim('kept', 600, 60)});
$standby->safe_psql('postgres', "SELECT claim_release('kept', '$canceled_claim')");
is($waiting->query_safe('SELECT 1'), join("\n",
		'{"error": null, "result": 18, "outcome": "completed"}',
		'{"error": null, "result": null, "outcome": "canceled"}', '1'),
	'promoted: and is told what became of its messages');
$waiting->quit;

# The worker of the promoted server truncates.
$standby->safe_psql('postgres', q{SELECT queue_update('kept', '{"_keep_finished": 1}')});
ok($standby->poll_query_until('postgres', 'SELECT '
		  . join(' + ', map { "pg_relation_size('queue_data.finished_$_')" } 0 .. 7) . ' = 0'),
	'promoted: what is too old is truncated');

$standby->stop;
done_testing();
