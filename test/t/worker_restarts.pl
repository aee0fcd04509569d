# The launcher and the workers come back after whatever ends them, and nothing
# is lost: terminated, killed, a crash, a restart, a promotion, and limits of
# processes.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../perl";

use DatabasesTest;
use ClusterTest;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(sleep time);

start_server();
my $dir = PostgreSQL::Test::Utils::tempdir();
foreach my $db ('d1', 'd4')
{
	sql('postgres', "CREATE DATABASE $db");
	sql($db, q{CREATE EXTENSION queue; SELECT queue_create('q')});
}
becomes_true(workers_are('d1', 'd4'), 'two workers');

# --- terminated ---

sub pid_of
{
	my ($type, $server) = @_;
	return ($server || $node)->safe_psql('postgres',
		"SELECT min(pid) FROM pg_stat_activity WHERE backend_type = '$type'");
}

sub all_back
{
	my ($old, $what) = @_;
	my $alive = $node->poll_query_until('postgres',
		"SELECT count(*) = 0 FROM pg_stat_activity WHERE pid = $old");
	ok($alive, "$what: the server goes on");
	becomes_true(q{SELECT count(*) = 1 FROM pg_stat_activity WHERE backend_type = 'queue launcher'},
		"$what: a launcher");
	becomes_true(workers_are('d1', 'd4'), "$what: the workers");
	works('d1', $what);
	return;
}

foreach my $type ('queue worker', 'queue launcher')
{
	my $old = pid_of($type);
	sql('postgres', "SELECT pg_terminate_backend($old)");
	all_back($old, "$type terminated");
}
sql('d4', q{SELECT queue_push('q', '"kept"')});
my $held = sql('d4', q{SELECT claim_id FROM queue_claim('q', 600, 0, 1)});
foreach my $type ('queue worker', 'queue launcher')
{
	my $old = pid_of($type);
	sql('d4', 'CHECKPOINT');
	kill 'KILL', $old;
	sleep 0.2;
	all_back($old, "$type killed");
}

# --- stopped ---

$node->stop('immediate');
$node->start;
becomes_true(workers_are('d1', 'd4'), 'after a crash: the workers');
works('d4', 'after a crash');
is(sql('d4', qq{SELECT message_count FROM claim_get('q', '$held')}),
	'1', 'claims made before all this hold');

# A busy machine may take longer, but not each time.
my ($start, $took);
foreach (1 .. 20)
{
	$start = time;
	$node->stop('fast');
	$took = time - $start;
	$node->start;
	becomes_true(workers_are('d1', 'd4'), 'after a restart: the workers');
	last if $took < 5;
}
cmp_ok($took, '<', 5, 'the server stops quickly');
$node->stop('smart');
$node->start;

# --- a standby ---

$node->backup('base');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($node, 'base', has_streaming => 1);
$standby->start;
sql('d4', q{SELECT queue_purge('q'), queue_drop('works'); SELECT FROM queue_push_batch('q', ARRAY['1', '2', '3', '4']::jsonb[])});
sql('d4', q{SELECT FROM queue_push('later', '1', delay => 3)});
my $long = sql('d4', q{SELECT claim_id FROM queue_claim('q', 600, 0, 1)});
my $short = sql('d4', q{SELECT claim_id FROM queue_claim('q', 3, 0, 1)});
$node->wait_for_catchup($standby, 'replay', $node->lsn('flush'));
is( $standby->safe_psql('postgres',
		q{SELECT count(*) FROM pg_stat_activity WHERE backend_type LIKE 'queue%'}),
	'0',
	'a standby has no launcher and no worker');
my ($ret, $stdout, $stderr) = $standby->psql('d4', q{SELECT queue_push('q', '1')},
	extra_params => [ '-v', 'VERBOSITY=verbose' ]);
like($stderr, qr/ERROR:  25006/, 'it takes no push');
is($standby->safe_psql('d4', q{SELECT count(*) FROM queue_data.queue_workers}),
	'0', 'its view of workers is empty');
$node->stop;
$standby->promote;
$start = time;
becomes_true(workers_are('d1', 'd4'), 'promoted: the workers come',
	$standby);
note sprintf 'promoted: workers after %.2f s', time - $start;
is($standby->safe_psql('d4', qq{SELECT message_count FROM claim_get('q', '$long')}),
	'1', 'promoted: a claim holds');
$standby->poll_query_until(
	'd4', q{
	SELECT free = 3 AND (SELECT count(*) = 2 FROM queue_ready())
	FROM queue_stats('q')});
is( $standby->safe_psql('d4',
		q{SELECT string_agg(r, ' ' ORDER BY r) FROM queue_ready() AS r}),
	'later q',
	'promoted: what became due is ready');
is( $standby->safe_psql('d4',
		q{SELECT string_agg(body::text, ' ' ORDER BY id) FROM queue_pop('q', 10)}),
	'2 3 4', 'promoted: nothing is lost');
is($standby->safe_psql('d4', qq{SELECT claim_complete('q', '$long')}),
	'1', 'promoted: nor handed out twice');
works('d4', 'promoted', $standby);
$standby->stop;

# --- too few processes ---

$node->append_conf('postgresql.conf', 'max_worker_processes = 2');
my $offset = -s $node->logfile;
$node->start;
sql('d4', q{SELECT FROM queue_push('q', '1')});
ok($node->wait_for_log(qr/no background worker can be started/, $offset), 'too few processes');
sleep 2;
sql('d1', q{SELECT FROM queue_push('q', '1')});
sleep 0.5;
my $log = slurp_file($node->logfile, $offset);
my @lines = $log =~ /(LOG:  no background worker can be started.*)/g;
is(scalar(@lines), 1, 'too few processes: one line in the log');
like($log, qr/HINT:  .*max_worker_processes/, 'which says what to do');
my @others = grep { !/statement:|no background worker can be started/ && /LOG:/ }
  split /\n/, $log;
cmp_ok(scalar(@others), '<', 20, 'and no loop');
is(sql('d4', q{SELECT count(*) > 0 FROM queue_claim('q', 60, 0)}),
	't', 'too few processes: queues work');

# --- the limit of workers ---

$node->append_conf('postgresql.conf', 'max_worker_processes = 8');
$node->append_conf('postgresql.conf', 'queue.database_workers = 1');
$offset = -s $node->logfile;
$node->restart;
becomes_true(q{SELECT count(*) = 1 FROM pg_stat_activity WHERE backend_type = 'queue worker'},
	'one worker for two databases');
$node->wait_for_log(qr/no background worker can be started/, $offset);
$log = slurp_file($node->logfile, $offset);
@lines = $log =~ /(LOG:  no background worker can be started.*)/g;
is(scalar(@lines), 1, 'which one line in the log says');
like($log, qr/HINT:  .*queue\.database_workers/, 'and what to do');
sql('postgres', 'ALTER SYSTEM SET queue.database_workers = 8');
$node->reload;
becomes_true(workers_are('d1', 'd4'), 'raised and reloaded: both');
sql('postgres', 'ALTER SYSTEM SET queue.database_workers = 0');
$node->reload;
becomes_true(workers_are(), 'lowered to nothing: none');
sql('postgres', 'ALTER SYSTEM RESET queue.database_workers');
$node->reload;
becomes_true(q{SELECT count(*) = 1 FROM pg_stat_activity WHERE backend_type = 'queue worker'},
	'as the file says: one');
stop_server();

# --- binary upgrade mode ---

$node->adjust_conf('postgresql.conf', 'queue.database_workers', '8');
my $output = $dir . '/upgrade.log';
SKIP:
{
	my $ok = run_log(
		[
			'pg_ctl', '-w', '-D', $node->data_dir, '-l', $output, '-o', '-b',
			'start'
		]);
	skip 'the server does not start in this mode', 1 unless $ok;
	is( sql('postgres',
			q{SELECT count(*) FROM pg_stat_activity WHERE backend_type LIKE 'queue%'}),
		'0',
		'binary upgrade: no launcher and no worker');
	run_log([ 'pg_ctl', '-w', '-D', $node->data_dir, 'stop' ]);
}

done_testing();
