# The functions do not use the executor, so triggers and some indexes that a
# user adds to the tables would silently be ignored: they raise an error
# instead.
#
# test/check -q runs it, too.

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
	CREATE FUNCTION nothing() RETURNS trigger LANGUAGE plpgsql AS
		'BEGIN RETURN coalesce(new, old); END';
	SELECT queue_push_batch('q', ARRAY['"m1"', '"m2"', '"m3"', '"m4"']::jsonb[])});
my $claim = $node->safe_psql('postgres',
	q{SELECT claim_id FROM queue_claim('q', 600, 60, 1)});
my $id = $node->safe_psql('postgres',
	q{SELECT id FROM queue_messages('q', "limit" => 1)});

# a session that has used the tables before they were changed
my $warm = $node->background_psql('postgres', on_error_stop => 0);
$warm->query_safe(q{\set VERBOSITY verbose});
$warm->query_safe(q{SELECT queue_create('warm'); SELECT queue_push('warm', '1'); SELECT count(*) FROM queue_pop('warm')});

sub error_of
{
	my ($sql, $session) = @_;
	my ($ret, $stdout, $stderr);
	if ($session)
	{
		$session->query($sql);
		$stderr = $session->{stderr};
		$session->{stderr} = '';
	}
	else
	{
		($ret, $stdout, $stderr) = $node->psql('postgres', $sql,
			extra_params => [ '-v', 'VERBOSITY=verbose' ]);
	}
	return $stderr =~ /(?:ERROR|FATAL):\s+(\w{5}: .*)/ ? $1 : 'none';
}

my %change = (
	'trigger' => [
		'CREATE TRIGGER mine BEFORE INSERT OR UPDATE OR DELETE ON queue_data.message_0 FOR EACH ROW EXECUTE FUNCTION nothing()',
		'DROP TRIGGER mine ON queue_data.message_0', 'message_0' ],
	'statement trigger' => [
		'CREATE TRIGGER mine AFTER INSERT ON queue_data.message_0 EXECUTE FUNCTION nothing()',
		'DROP TRIGGER mine ON queue_data.message_0', 'message_0' ],
	'index over an expression' => [
		q{CREATE INDEX mine ON queue_data.message_0 ((body->>'a'))},
		'DROP INDEX queue_data.mine', 'message_0' ],
	'partial index' => [
		'CREATE INDEX mine ON queue_data.message_0 (id) WHERE priority > 0',
		'DROP INDEX queue_data.mine', 'message_0' ],
	'hash index' => [
		'CREATE INDEX mine ON queue_data.message_0 USING hash (id)',
		'DROP INDEX queue_data.mine', 'message_0' ]);
my %work = (
	queue_push => q{SELECT queue_push('q', '1')},
	queue_push_batch => q{SELECT queue_push_batch('q', ARRAY['1']::jsonb[])},
	queue_post => q{SELECT queue_post('q', '[{"body": 1}]')},
	queue_claim => q{SELECT queue_claim('q', 600, 60, 1)},
	queue_claim_any => q{SELECT queue_claim_any(NULL, 60, 60, 1)},
	queue_pop => q{SELECT queue_pop('q')},
	message_delete => qq{SELECT message_delete('q', $id)},
	messages_delete => qq{SELECT messages_delete('q', ARRAY[$id])},
	messages_cancel => qq{SELECT messages_cancel('q', ARRAY[$id])},
	claim_renew => qq{SELECT claim_renew('q', '$claim', 600)},
	claim_release => qq{SELECT claim_release('q', '$claim')},
	claim_complete => qq{SELECT claim_complete('q', '$claim')},
	claim_next => qq{SELECT claim_next('q', '$claim', 60, 60)},
	queue_purge => q{SELECT queue_purge('q')},
	queue_drop => q{SELECT queue_drop('q')});

foreach my $what (sort keys %change)
{
	my ($do, $undo, $table) = @{ $change{$what} };
	$node->safe_psql('postgres', $do);
	foreach my $function (sort keys %work)
	{
		like(error_of("BEGIN; $work{$function}; ROLLBACK"),
			qr/^55000: .*$table/, "$what: $function refuses and names the table");
	}
	like(error_of($work{queue_push}, $warm),
		qr/^55000/, "$what: so does a session that knew the table before");
	like(error_of($work{queue_claim}, $warm),
		qr/^55000/, "$what: in a claim too");

	# and all is well again without it
	$node->safe_psql('postgres', $undo);
	foreach my $function (sort keys %work)
	{
		is(error_of("BEGIN; $work{$function}; ROLLBACK"),
			'none', "$what removed: $function works");
	}
	is(error_of(qq{BEGIN; $work{queue_claim}; ROLLBACK}, $warm),
		'none', "$what removed: the old session works");
}

# delayed messages have a table of their own
$node->safe_psql('postgres',
	'CREATE INDEX mine ON queue_data.delayed_0 ((id + 1))');
like(error_of(q{SELECT queue_push('q', '1', delay => 100)}),
	qr/^55000: .*delayed/, 'delayed messages: refused');
$node->safe_psql('postgres', 'DROP INDEX queue_data.mine');
is(error_of(q{SELECT queue_push('q', '1', delay => 100)}),
	'none', 'delayed messages: works without it');

# A plain index of the administrator's is kept up to date: also one with
# columns that claims change, and with more columns in its leaves.
$node->safe_psql(
	'postgres', q{
	CREATE EXTENSION amcheck;
	CREATE INDEX mine ON queue_data.message_0 (created_at);
	CREATE UNIQUE INDEX yours ON queue_data.message_0 (id)
		INCLUDE (claimed_until, client_id);
	CREATE INDEX delayed_mine ON queue_data.delayed_0 (created_at);
	CREATE INDEX key_mine ON queue_data.dedup_key (message_ids);
	SELECT queue_push_batch('plain', array_agg(to_jsonb(i)))
		FROM generate_series(1, 300) i;
	SELECT queue_push('plain', '0', dedup_key => 'k' || i),
		   queue_push('plain', '0', delay => 100)
		FROM generate_series(1, 30) i;
	BEGIN;
	SELECT set_config('test.b', batch_create()::text, false);
	SELECT queue_push('plain', '0', batch => current_setting('test.b')::bigint),
		   queue_push('plain', '0', after => current_setting('test.b')::bigint)
		FROM generate_series(1, 30) i;
	COMMIT;
	SELECT claim_complete('plain', min(claim_id))
		FROM queue_claim('plain', 600, 60, 100);
	SELECT claim_release('plain', min(claim_id), 100)
		FROM queue_claim('plain', 600, 60, 50)});
$node->safe_psql('postgres', 'REINDEX TABLE CONCURRENTLY queue_data.message_0');
$warm->query_safe(q{SELECT queue_push('plain', '1')});
is( $node->safe_psql(
		'postgres', q{
	SELECT count(bt_index_parent_check(indexrelid, true))
	FROM pg_index WHERE indrelid IN ('queue_data.message_0'::regclass,
		'queue_data.delayed_0'::regclass, 'queue_data.dedup_key'::regclass)}),
	'12',
	'plain indexes: all entries are there');
$node->safe_psql(
	'postgres', q{
	SELECT queue_drop('plain');
	DROP INDEX queue_data.mine, queue_data.yours, queue_data.delayed_mine,
		queue_data.key_mine});

# Columns are found by their number.
$node->safe_psql('postgres',
	'ALTER TABLE queue_data.message_0 ADD COLUMN mine int');
like(error_of(q{SELECT queue_push('q', '1')}),
	qr/^55000: .*message_0/, 'added column: refused');

# (A dropped column keeps its number, so only a new database helps.)
$node->safe_psql('postgres', 'DROP EXTENSION queue CASCADE; CREATE EXTENSION queue');
$node->safe_psql('postgres',
	q{SELECT queue_push_batch('q', ARRAY['"m1"', '"m2"', '"m3"', '"m4"']::jsonb[])});
$claim = $node->safe_psql('postgres',
	q{SELECT claim_id FROM queue_claim('q', 600, 60, 1)});
$id = $node->safe_psql('postgres',
	q{SELECT id FROM queue_messages('q', "limit" => 1)});

# Rewriting and analyzing the tables is allowed, and moves every row.
$node->safe_psql(
	'postgres', q{
	VACUUM FULL queue_data.message_0;
	CLUSTER queue_data.message_0 USING message_0_idx;
	REINDEX TABLE queue_data.message_0;
	ANALYZE queue_data.message_0});
is( $node->safe_psql(
		'postgres',
		qq{SELECT message_delete('q', $id), claim_complete('q', '$claim')}),
	't|1',
	'rewritten tables: ids and claims hold');
is($warm->query_safe(q{SELECT body FROM queue_claim('q', 600, 60)}),
	qq{"m3"\n"m4"}, 'rewritten tables: the old session finds the rest');
$warm->quit;

$node->stop;
done_testing();
