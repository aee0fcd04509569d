# The launcher and the workers live with the cluster: they come with the
# extension, make room for whoever needs a database for himself, and come back
# after whatever ends them; nothing is lost.
#
# One mode: the library is preloaded.

use strict;
use warnings;

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(sleep time);

my $node = PostgreSQL::Test::Cluster->new('main');
$node->init(allows_streaming => 1);
$node->append_conf(
	'postgresql.conf', q{
shared_preload_libraries = 'queue'
autovacuum = off
restart_after_crash = on
queue.min_claim_ttl = 1
queue.min_claim_grace = 0
queue.min_message_ttl = 1
});
$node->start;
my $dir = PostgreSQL::Test::Utils::tempdir();

sub sql
{
	my ($db, $sql) = @_;
	return $node->safe_psql($db, $sql);
}

# Runs a command and checks that it works, and quickly.
sub runs_quickly
{
	my ($sql, $what) = @_;
	my $start = time;
	my ($ret, $stdout, $stderr) = $node->psql('postgres', $sql);
	my $took = time - $start;

	is($stderr, '', "$what: no error");
	cmp_ok($took, '<', 5, "$what: quickly");
	note sprintf '%s: %.2f s', $what, $took;
	return;
}

# Waits, not longer than so many seconds, for this query to return true.
sub becomes_true
{
	my ($seconds, $query, $what, $server, $db) = @_;
	my $until = time + $seconds;
	my $got = '';

	while (time < $until)
	{
		my ($ret, $stdout) =
		  ($server || $node)->psql($db || 'postgres', $query);
		$got = defined $stdout ? $stdout : '';
		last if $got eq 't';
		sleep 0.05;
	}
	is($got, 't', $what);
	return $got eq 't';
}

# A query: have these databases a worker, and no others?
sub workers_are
{
	my (@dbs) = @_;
	my $expected = join ',', sort @dbs;
	return
	  qq{SELECT coalesce(string_agg(datname, ',' ORDER BY datname COLLATE "C"), '') = '$expected' FROM pg_stat_activity WHERE backend_type = 'queue worker'};
}

# The worker of a database is at rest: it has looked at all there is.
sub settle
{
	my ($db) = @_;
	return $node->poll_query_until($db,
		q{SELECT state = 'idle' FROM queue_data.queue_workers WHERE database = current_database()}
	);
}

# The background side of a database does its work: a claim that runs out is
# ended, without anybody looking.
sub works
{
	my ($db, $what, $server) = @_;
	my $on = $server || $node;
	my $count =
	  q{SELECT coalesce(sum(expired_claims), 0) FROM queue_data.queue_workers WHERE database = current_database()};
	my $before = $on->safe_psql($db, $count);
	$on->safe_psql($db,
		q{SELECT FROM queue_push('works', '1'); SELECT FROM queue_claim('works', 1, 0)});
	return becomes_true(10, "SELECT ($count) > $before",
		"$what: the worker works", $on, $db);
}

# --- it comes with the extension ---

ok( $node->poll_query_until(
		'postgres',
		q{SELECT count(*) = 1 FROM pg_stat_activity WHERE backend_type = 'queue launcher'}
	),
	'there is a launcher');
my @three = ('d1', 'd2', 'd3');
sql('postgres', 'CREATE EXTENSION queue');    # makes the roles
sql('postgres', 'DROP EXTENSION queue');
sql('postgres', "CREATE DATABASE $_") foreach @three;
becomes_true(5, workers_are(), 'DROP EXTENSION sends an idle worker away');
if (sql('postgres', workers_are()) ne 't')
{
	# for all that follows
	$node->restart;
	becomes_true(5, workers_are(), 'no worker after a restart');
}
is(sql('postgres', workers_are()), 't',
	'no worker where there is no extension');
my @sessions = map { $node->background_psql($_) } @three;
foreach my $session (@sessions)
{
	$session->query_safe('BEGIN');
	$session->query_safe('CREATE EXTENSION queue');
}
foreach my $session (@sessions)
{
	$session->query_safe('COMMIT');
}
my $start = time;
becomes_true(2, workers_are(@three),
	'CREATE EXTENSION in three databases brings three workers');
note sprintf 'three workers: after %.2f s', time - $start;
$_->quit foreach @sessions;
sql('postgres', 'BEGIN; CREATE EXTENSION queue; ROLLBACK');
sleep 0.3;
is(sql('postgres', workers_are(@three)), 't', 'none when that is rolled back');

# --- DROP and CREATE EXTENSION ---

sql('d1', q{SELECT FROM queue_push('q', '"old"', delay => 1); SELECT FROM queue_push('q', '"old"')});
sql('d1', q{SELECT FROM queue_claim('q', 1, 0)});
$start = time;
sql('d1', 'DROP EXTENSION queue');
cmp_ok(time - $start, '<', 5, 'DROP EXTENSION is quick');
becomes_true(5, workers_are('d2', 'd3'), 'and the worker leaves');
sql('d1', 'CREATE EXTENSION queue');
becomes_true(2, workers_are(@three), 'it comes back with the extension');
is(sql('d1', q{SELECT count(*) FROM queue_list()}), '0', 'which is empty');
is(sql('d1', q{SELECT count(*) FROM queue_ready()}), '0', 'nothing is ready');
works('d1', 'extension created again');
sql('d1', q{DROP EXTENSION queue; CREATE EXTENSION queue; SELECT FROM queue_push('q', '"new"')});
is(sql('d1', q{SELECT string_agg(body::text, ' ') FROM queue_claim('q', 60, 0)}),
	'"new"', 'dropped and created at once: only what is new is there');
is(sql('d1', q{SELECT count(*) FROM queue_ready()}), '0', 'and claimed');
becomes_true(3, workers_are(@three), 'dropped and created at once: a worker');
works('d1', 'dropped and created at once');

# while the worker is at work
sql('d1', q{SELECT count(queue_push('q' || i % 50, '1')) FROM generate_series(1, 3000) AS i;
	SELECT FROM generate_series(1, 50) AS i, queue_claim('q' || i % 50, 1, 0)});
sleep 0.9;
runs_quickly('\c d1
	SET lock_timeout = 5000;
	DROP EXTENSION queue', 'DROP EXTENSION with work to do');
sql('d1', 'CREATE EXTENSION queue');
works('d1', 'after that');

# --- who needs a database for himself ---

mkdir "$dir/space" or die $!;
foreach my $db (@three)
{
	sql($db, q{SELECT FROM queue_push('q', '1'); SELECT FROM queue_push('q', '2', delay => 2); SELECT FROM queue_claim('q', 3, 0)});
	my $listener = $node->background_psql($db);
	$listener->query_safe('LISTEN '
		  . $listener->query_safe(q{SELECT queue_channel('q')}));
	$listener->quit;
	settle($db);
}
becomes_true(2, workers_are(@three), 'three workers');
runs_quickly('DROP DATABASE d3', 'DROP DATABASE');
runs_quickly('ALTER DATABASE d2 RENAME TO d4', 'ALTER DATABASE RENAME');
runs_quickly("CREATE TABLESPACE space LOCATION '$dir/space'", 'tablespace');
runs_quickly('ALTER DATABASE d1 SET TABLESPACE space', 'SET TABLESPACE');
runs_quickly('CREATE DATABASE d5 TEMPLATE d1', 'CREATE DATABASE ... TEMPLATE');
is(sql('d5', q{SELECT total FROM queue_stats('q')}), '2', 'a copy has all');
sql('d5', q{SELECT FROM queue_push('q', '3')});
becomes_true(15, workers_are('d1', 'd4', 'd5'),
	'the copy gets a worker, and the others their own again');
works($_, $_) foreach ('d1', 'd4', 'd5');
runs_quickly('ALTER DATABASE d5 SET TABLESPACE space', 'once more');
runs_quickly('DROP DATABASE d5 WITH (FORCE)', 'DROP DATABASE WITH (FORCE)');
is( sql('d1',
		q{SELECT count(*) FROM queue_data.queue_workers WHERE database = 'd5'}),
	'0',
	'no trace of it');

# somebody who may not do it does not send the worker away
sql('postgres', 'CREATE ROLE stranger LOGIN');
becomes_true(12, workers_are('d1', 'd4'), 'the workers of the others');
my $pid = sql('postgres',
	q{SELECT pid FROM pg_stat_activity WHERE backend_type = 'queue worker' AND datname = 'd4'});
foreach my $command (
	'DROP DATABASE d4',
	'ALTER DATABASE d4 RENAME TO d6',
	'ALTER DATABASE d4 SET TABLESPACE space',
	'CREATE DATABASE d6 TEMPLATE d4')
{
	my ($ret, $stdout, $stderr) = $node->psql('postgres', $command,
		extra_params => [ '-U', 'stranger' ]);
	like($stderr, qr/permission denied|must be owner/, "a stranger: $command");
}
sleep 0.3;
is( sql('postgres',
		q{SELECT pid FROM pg_stat_activity WHERE backend_type = 'queue worker' AND datname = 'd4'}
	),
	$pid,
	'and the worker stays');

# --- dump and restore ---

sql('d1', q{SELECT FROM queue_purge('q'); SELECT FROM queue_drop('works');
	SELECT FROM queue_push('free', '1');
	SELECT FROM queue_push('delayed', '1', delay => 4);
	SELECT FROM queue_push('claimed', '1'); SELECT FROM queue_claim('claimed', 4, 0)});
$node->command_ok(
	[ 'pg_dump', '-Fc', '-f', "$dir/d1.dump", $node->connstr('d1') ],
	'pg_dump with a worker running');
sql('postgres', 'CREATE DATABASE d7');
$node->command_ok(
	[ 'pg_restore', '--exit-on-error', '-d', $node->connstr('d7'), "$dir/d1.dump" ],
	'pg_restore');
becomes_true(2, workers_are('d1', 'd4', 'd7'), 'a worker runs there');
is(sql('d7', q{SELECT string_agg(r, ' ') FROM queue_ready() AS r}),
	'free', 'restored: what is ready is known');
my $listener = $node->background_psql('d7');
my $channel = $listener->query_safe(q{SELECT queue_channel('delayed')});
$listener->query_safe("LISTEN $channel");
my $heard = 0;
my $until = time + 8;
while (!$heard && time < $until)
{
	$heard = 1 if $listener->query_safe('SELECT') =~ /payload "delayed"/;
	sleep 0.05;
}
ok($heard, 'restored: a delayed message is told of when it is due');
$listener->quit;
becomes_true(8,
	q{SELECT string_agg(r, ' ' ORDER BY r) = 'claimed delayed free' FROM queue_ready() AS r},
	'restored: what became due is ready', $node, 'd7');
works('d7', 'restored');

# into a database whose extension and worker are there before
sql('postgres', 'CREATE DATABASE d8');
sql('d8', 'CREATE EXTENSION queue');
becomes_true(2, workers_are('d1', 'd4', 'd7', 'd8'), 'one more worker');
settle('d8');
$node->command_ok(
	[
		'pg_restore', '--data-only', '-d', $node->connstr('d8'), "$dir/d1.dump"
	],
	'pg_restore of the data, with a worker running');
is(sql('d8', q{SELECT string_agg(r, ' ' ORDER BY r) FROM queue_ready() AS r}),
	'claimed delayed free', 'restored: all is ready');
runs_quickly("DROP DATABASE $_", "DROP DATABASE $_") foreach ('d7', 'd8');

runs_quickly('ALTER DATABASE d1 SET TABLESPACE pg_default', 'and back');
runs_quickly('DROP TABLESPACE space', 'nothing is left in the tablespace');

# --- templates ---

sql('template1', q{CREATE EXTENSION queue; SELECT FROM queue_push('q', '1')});
sql('postgres', 'ALTER DATABASE d4 IS_TEMPLATE true');
$node->restart;
becomes_true(5, workers_are('d1'), 'no worker in templates');
is(sql('template1', q{SELECT string_agg(r, ' ') FROM queue_ready() AS r}),
	'q', 'a template without worker: queue_ready');
runs_quickly('CREATE DATABASE d9', 'CREATE DATABASE with the extension in it');
sql('d9', q{SELECT FROM queue_push('q', '1')});
becomes_true(2, workers_are('d1', 'd9'), 'the first push brings its worker');
sql('postgres', 'ALTER DATABASE d4 IS_TEMPLATE false; DROP DATABASE d9');
sql('template1', 'DROP EXTENSION queue');
sql('d4', q{SELECT FROM queue_push('q', '1')});
becomes_true(5, workers_are('d1', 'd4'), 'a database that is no template any more');

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
	becomes_true(8,
		q{SELECT count(*) = 1 FROM pg_stat_activity WHERE backend_type = 'queue launcher'},
		"$what: a launcher");
	becomes_true(8, workers_are('d1', 'd4'), "$what: the workers");
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
becomes_true(5, workers_are('d1', 'd4'), 'after a crash: the workers');
works('d4', 'after a crash');
is(sql('d4', qq{SELECT message_count FROM claim_get('q', '$held')}),
	'1', 'claims made before all this hold');
$start = time;
$node->stop('fast');
cmp_ok(time - $start, '<', 5, 'the server stops quickly');
$node->start;
becomes_true(5, workers_are('d1', 'd4'), 'after a restart: the workers');
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
becomes_true(5, workers_are('d1', 'd4'), 'promoted: the workers come',
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
becomes_true(5,
	q{SELECT count(*) = 1 FROM pg_stat_activity WHERE backend_type = 'queue worker'},
	'one worker for two databases');
$until = time + 3;
do
{
	sleep 0.1;
	$log = slurp_file($node->logfile, $offset);
} while ($log !~ /no background worker can be started/ && time < $until);
@lines = $log =~ /(LOG:  no background worker can be started.*)/g;
is(scalar(@lines), 1, 'which one line in the log says');
like($log, qr/HINT:  .*queue\.database_workers/, 'and what to do');
sql('postgres', 'ALTER SYSTEM SET queue.database_workers = 8');
$node->reload;
becomes_true(5, workers_are('d1', 'd4'), 'raised and reloaded: both');
sql('postgres', 'ALTER SYSTEM SET queue.database_workers = 0');
$node->reload;
becomes_true(5, workers_are(), 'lowered to nothing: none');
sql('postgres', 'ALTER SYSTEM RESET queue.database_workers');
$node->reload;
becomes_true(5,
	q{SELECT count(*) = 1 FROM pg_stat_activity WHERE backend_type = 'queue worker'},
	'as the file says: one');

# --- nothing else in the log ---

$log = slurp_file($node->logfile);
unlike($log, qr/(?:PANIC|TRAP):/, 'no crash of our own');
my %seen;
$seen{$1}++
  while $log =~ /^[^\n]*\[\d+\] ((?:ERROR|WARNING|FATAL):  [^\n]*)/mg;
is(join("\n", grep { !/terminating background worker|the database system is|by administrator command|crash of another/ } sort keys %seen),
	'', 'no errors of the background side in the log');
$node->stop;

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
