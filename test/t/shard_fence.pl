# The fence: a call that names a queue of another server has no effect and raises
# QU010, in every function, also after the map has changed; sessions that wait
# get it too; and the background processes skip what is not here.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../perl";

use ClusterTest;
use PostgreSQL::Test::Utils;
use QueueTest qw($node value);
use Test::More;
use Time::HiRes qw(time);

$node = PostgreSQL::Test::Cluster->new('main');
$node->init;
$node->append_conf(
	'postgresql.conf', q{
autovacuum = off
max_prepared_transactions = 4
log_min_messages = warning
});
$node->start;

# SQLSTATE and detail of the error in which a command ends
sub error_of
{
	my ($ret, $stdout, $stderr) = $node->psql('postgres', $_[0],
		extra_params => [ '-v', 'VERBOSITY=verbose' ]);
	my ($state) = $stderr =~ /(?:ERROR|WARNING):  (\w{5}):/;
	my ($detail) = $stderr =~ /DETAIL:  (.*)/;
	return join ' ', grep { defined } $state, $detail;
}

# --- A database that becomes one of two servers ---

value('CREATE EXTENSION queue');

# It waits for a session that creates a queue, and sessions that create one wait
# for it.
my $first = $node->background_psql('postgres', on_error_stop => 0);
my $second = $node->background_psql('postgres', on_error_stop => 0);
my $waits = q{SELECT count(*) > 0 FROM pg_stat_activity WHERE wait_event_type = 'Lock'};
$first->query_safe(q{BEGIN; SELECT queue_create('early')});
$second->query_until(qr/begun/, "\\echo begun\nSELECT queue_shard_init(1, 2);\n");
ok($node->poll_query_until('postgres', $waits), 'waits for a session that creates a queue');
$first->query_safe('COMMIT');
$second->query_until(qr/ended/, "\\echo ended\n");
like($second->{stderr}, qr/this database has queues/, 'and finds the queue');
$second->{stderr} = '';

value(q{SELECT queue_drop('early')});
$second->query_safe(
	q{BEGIN; SELECT queue_shard_init(queue_shard('q1') % 2 + 1, 2)});
$first->query_until(qr/begun/, "\\echo begun\nSELECT queue_push('q1', '1');\n");
ok($node->poll_query_until('postgres', $waits), 'a session that creates a queue waits');
$second->query_safe('COMMIT');
$first->query_until(qr/ended/, "\\echo ended\n");
like($first->{stderr}, qr/queue "q1" is on another server/, 'and then gets the error');
$first->{stderr} = '';
is(value('SELECT count(*) FROM queue_data.queue'), '0', 'the queue was not created');
$_->quit foreach $first, $second;

# --- Every function ---

my ($here, $there) = split /\n/, value(q{
	SELECT q FROM (SELECT DISTINCT ON (state) state, q
		FROM generate_series(1, 1000) AS g, concat('n', g) AS q
			JOIN queue_data.shard ON shard = queue_shard(q)
		ORDER BY state, g) AS s ORDER BY state});
my $there_shard = value("SELECT queue_shard('$there')");
my $remote = value("SELECT format('QU010 Shard %s is on \"%s\".', shard, peer)
	FROM queue_data.shard WHERE shard = $there_shard");
value(q{CREATE FUNCTION handle(jsonb) RETURNS boolean LANGUAGE sql AS 'SELECT true'});

my %call = (
	batch_create => 'NULL, false, %s',
	queue_create => '%s',
	queue_set_metadata => q{%s, '{}'},
	queue_update => q{%s, '{}'},
	queue_exists => '%s',
	queue_drop => '%s',
	queue_get => '%s',
	queue_purge => '%s',
	queue_pause => '%s',
	queue_resume => '%s',
	queue_stats => '%s',
	queue_groups => '%s',
	queue_depth => '%s',
	queue_grant => q{%s, 'queue_admin', 'push'},
	queue_revoke => q{%s, 'queue_admin', 'push'},
	queue_set_owner => q{%s, 'queue_admin'},
	queue_push => q{%s, '1'},
	queue_push_batch => q{%s, '{1}'},
	queue_post => q{%s, '[{"body": 1}]'},
	queue_push_lazy => q{%s, '1'},
	queue_push_once => q{%s, 'o', 1, '1'},
	queue_messages => '%s',
	queue_browse => '%s',
	message_get => '%s, 1',
	messages_get => q{%s, '{1}'},
	message_delete => '%s, 1',
	messages_delete => q{%s, '{1}'},
	message_retry => q{%s, 1, 'x'},
	message_bury => q{%s, 1, 'x', 'e'},
	message_cancel => '%s, 1',
	messages_cancel => q{%s, '{1}'},
	messages_run_now => q{%s, '{1}'},
	messages_bury => q{%s, '{1}', 'e'},
	queue_cancel_where => q{%s, '{}'},
	message_complete => q{%s, 1, 'x'},
	message_result => '%s, 1',
	message_finished => '%s, 1',
	queue_finished => '%s',
	job_errors => '%s',
	queue_pop => '%s',
	queue_claim => '%s, 60, 60',
	claim_next => '%s, NULL, 60, 60',
	queue_step => '%s',
	claim_get => q{%s, 'x'},
	claim_messages => q{%s, 'x'},
	claim_renew => q{%s, 'x', 60},
	claim_release => q{%s, 'x'},
	claim_complete => q{%s, 'x'},
	queue_dead_letters => '%s',
	queue_redrive => '%s',
	queue_channel => '%s',
	queue_is_empty => '%s',
	'queue_router.push' => q{%s, '1'},
	'queue_router.wait' => '%s, 10000',
	topic_bind => q{'a', %s},
	topic_unbind => q{'a', %s},
	topic_list => 'NULL, 10, %s',
	job_root => q{%s, 's'},
	job_stats => '%s',
	job_list => '%s',
	job_handler => q{%s, 'handle(jsonb)'});
is( join(' ', sort keys %call),
	value(q{SELECT string_agg(name, ' ' ORDER BY name COLLATE "C")
		FROM pg_proc, CAST(pg_proc.oid::regproc AS text) AS name
		WHERE 'q' = ANY (proargnames) AND probin LIKE '%/queue' AND prokind = 'f'
		AND proname <> 'queue_shard'}),
	'every function that takes a queue is called');
foreach (sort keys %call)
{
	is(error_of("SELECT * FROM $_(" . sprintf($call{$_}, "'$there'") . ')'),
		$remote, $_);
}
is(error_of($_), $remote, $_) foreach (
	"CALL queue_wait('$there', 0)",
	"CALL queue_wait('$there', 10000)",
	"CALL queue_await('$there', 1, 0)",
	"CALL queue_await('$there', 1)",
	"CALL job_run('{$there}')",
	"SELECT queue_claim_any('{$here,$there}')",
	"SELECT queue_redrive('$here', '$there')",
	"SELECT queue_create('$here', '{\"_dead_letter_queue\": \"$there\"}')",
	"SELECT queue_push('$there.dead', '1')");
is(value('SELECT count(*) FROM queue_data.queue'), '0', 'no queue was created');
value("SELECT queue_create('$here')");
is( error_of("SELECT queue_update('$here', '{\"_dead_letter_queue\": \"$there\"}')"),
	$remote, 'metadata that names a dead letter queue on another server');

is(error_of("SELECT topic_bind('a', '$here')") =~ /^0A000/, 1, 'topic_bind');

# A lazy push whose queue moves before the commit is logged, and dropped.
is( error_of("BEGIN; SELECT queue_push_lazy('$here', '1');
	UPDATE queue_data.shard SET state = 'remote' WHERE shard = queue_shard('$here'); COMMIT")
	  =~ /^QU010/, 1, 'a lazy push at commit');
value(q{UPDATE queue_data.shard SET state = 'local' WHERE shard = queue_shard(}
	  . "'$here')");

# What is here works, in all other functions too.
is( value("SELECT queue_create('$here.dead'), queue_push('$here', '1') > 0,
	queue_exists('$here'); SELECT body FROM queue_claim('$here', 600, 60);
	SELECT body, claim_count FROM queue_claim_any('{$here,$here.dead}')"),
	"t|t|t\n1", 'what is here works');
my $lock = q{SELECT count(*) FROM pg_locks WHERE locktype = 'object' AND objsubid = 4
	AND classid = 'queue_data.queue'::regclass};
is(value("BEGIN; SELECT queue_push('$here', '2') > 0; $lock"),
	"t\n0", 'a push locks no shard');
is( value("BEGIN; SELECT queue_push('$here.dead.dead', '2') > 0; $lock AND objid = queue_shard('$here')"),
	"t\n1", 'creating a queue does');

# --- The map changes ---

sub move
{
	my ($state) = @_;
	value("UPDATE queue_data.shard SET state = '$state', peer = 'elsewhere'
		WHERE shard = queue_shard('$here')");
	return;
}

my $connected = $node->background_psql('postgres', on_error_stop => 0);
my $claim = $connected->query_safe(
	"SELECT queue_push('$here', '3') > 0; SELECT DISTINCT claim_id FROM queue_claim('$here', 600, 60)")
  =~ s/^t\n//r;
my $prepared = "PREPARE p AS SELECT claim_renew('$here', '$claim', 60) > now()";
is($connected->query_safe("$prepared; EXECUTE p"), 't', 'a claim, in a connected session');
value(qq{BEGIN; SELECT queue_push('$here', '4'); PREPARE TRANSACTION 'prepared'});

# Three sessions wait, in a queue in which they find nothing.
value("SELECT queue_create('$here.dead.dead')");
value("SELECT queue_purge('$here.dead.dead')");
my ($took, $log_size);

# A session that nothing wakes probes after five seconds.  One that is woken ends before
# that, but on a busy machine not each time.
foreach my $try (1 .. 20)
{
	my @waiting = map { $node->background_psql('postgres', on_error_stop => 0) } 1 .. 3;
	my $began = time;
	$_->query_until(qr/waits/,
		"SET client_min_messages = warning; \\echo waits\nCALL queue_wait('$here.dead.dead', 600000);\n")
	  foreach @waiting;
	ok( $node->poll_query_until(
			'postgres', q{SELECT count(*) = 3 FROM pg_stat_activity
			WHERE query ~ '^CALL queue_wait' AND state = 'active'
			AND wait_event IN ('QueueWait', 'Extension')}),
		'three sessions wait');
	$log_size = -s $node->logfile;
	move('remote');
	foreach (@waiting)
	{
		$_->query_until(qr/woken/, "\\echo woken\n");
		like($_->{stderr}, qr/is on another server.*Shard \d+ is on "elsewhere"/s,
			'a session that waits gets the error');
		$_->quit;
	}
	$took = time - $began;
	last if $took < 5;
	move('local') if $try < 20;
}
cmp_ok($took, '<', 5, 'before it probes');
$connected->query('EXECUTE p');
like($connected->{stderr}, qr/queue "$here" is on another server/,
	'a connected session, with a claim');
$connected->{stderr} = '';
my $elsewhere = qr/^QU010 Shard \d+ is on "elsewhere"/;
like(error_of("SELECT queue_push('$here', '5')"), $elsewhere, 'a new session');
is(value(q{SELECT count(*) FROM queue_list()}), '0', 'lists have only what is here');
is(value(q{SELECT count(*) FROM queue_ready()}), '0', 'queue_ready');
is(value(q{SELECT count(*) FROM queue_claim_any()}), '0', 'queue_claim_any');
value(q{COMMIT PREPARED 'prepared'});

# A session that reads without a lock, in a transaction in which it has found the
# queue, learns nothing of the map until it looks again.
foreach (sort grep { /^(?:queue_(?:exists|get|messages|stats|groups|dead_letters)|messages?_get|claim_(?:get|messages)|job_stats)$/ }
	keys %call)
{
	my $read = "SELECT count(*) FROM $_(" . sprintf($call{$_}, "'$here'") . ')';

	move('local');
	$connected->query_safe("BEGIN; $read");
	move('remote');
	$connected->query($read);
	like($connected->{stderr}, qr/queue "$here" is on another server/,
		"$_ in a transaction that has begun before");
	$connected->{stderr} = '';
	$connected->query('ROLLBACK');
}

move('local');
is($connected->query_safe('EXECUTE p'), 't', 'it is here again: the claim is live');
is($connected->query_safe("SELECT body FROM queue_claim('$here', 600, 60)"),
	'4', 'and what was pushed is there');
is(value(q{SELECT string_agg(name, ' ') FROM queue_list()}),
	"$here $here.dead $here.dead.dead", 'and in the list');

# --- Background processes ---

# The queue has a handler, and much that is due at any moment.
value(qq{CREATE TABLE done (n bigint);
	CREATE FUNCTION work(body jsonb) RETURNS boolean LANGUAGE plpgsql AS \$\$
	BEGIN INSERT INTO done VALUES (body::bigint); RETURN true; END \$\$;
	SELECT queue_purge('$here'), queue_pause('$here'), job_handler('$here', 'work(jsonb)')});
value(qq{SELECT queue_push_batch('$here', array_agg(to_jsonb(g)))
		FROM generate_series(1, 100) AS g;
	BEGIN;
	SELECT queue_resume('$here');
	UPDATE queue_data.shard SET state = 'remote' WHERE shard = queue_shard('$here');
	COMMIT});
$log_size = -s $node->logfile;
my $before = value('SELECT count(*) FROM done');

# The worker looks, and after a second it would look again.
my $visited = q{SELECT rounds FROM queue_data.queue_workers WHERE database = 'postgres'};
my $rounds = value($visited);
value(q{SELECT queue_push('other' || g, '1') FROM generate_series(1, 20) AS g
	WHERE EXISTS (SELECT FROM queue_data.shard
		WHERE shard = queue_shard('other' || g) AND state = 'local')});
ok($node->poll_query_until('postgres', "SELECT ($visited) > $rounds + 1"),
	'the worker goes on');
is(value('SELECT count(*) FROM done'), $before, 'no job of a queue that is not here runs');
is(substr(slurp_file($node->logfile), $log_size) =~ /^.*(?:ERROR|WARNING): .*$/m ? $& : '',
	'', 'and nothing is logged');
move('local');
ok($node->poll_query_until('postgres', 'SELECT count(*) = 100 FROM done'),
	'it is here again: its jobs run');
is( value(q{SELECT last_error FROM queue_data.queue_workers WHERE database = 'postgres'}),
	'', 'the worker has had no error');

$connected->quit;
$node->stop;
done_testing();
