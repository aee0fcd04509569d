# Each database with the extension has a worker, which comes and goes with the
# extension, and makes room for a command that needs the database for itself.

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
becomes_true(workers_are(), 'DROP EXTENSION sends an idle worker away');
if (sql('postgres', workers_are()) ne 't')
{
	# for all that follows
	$node->restart;
	becomes_true(workers_are(), 'no worker after a restart');
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
becomes_true(workers_are(@three),
	'CREATE EXTENSION in three databases brings three workers');
note sprintf 'three workers: after %.2f s', time - $start;
$_->quit foreach @sessions;
sql('postgres', 'BEGIN; CREATE EXTENSION queue; ROLLBACK');
sleep 0.3;
is(sql('postgres', workers_are(@three)), 't', 'none when that is rolled back');

# --- DROP and CREATE EXTENSION ---

sql('d1', q{SELECT FROM queue_push('q', '"old"', delay => 1); SELECT FROM queue_push('q', '"old"')});
sql('d1', q{SELECT FROM queue_claim('q', 1, 0)});
runs('\c d1
	SET lock_timeout = 60000;
	DROP EXTENSION queue', 'DROP EXTENSION');
becomes_true(workers_are('d2', 'd3'), 'and the worker leaves');
sql('d1', 'CREATE EXTENSION queue');
becomes_true(workers_are(@three), 'it comes back with the extension');
is(sql('d1', q{SELECT count(*) FROM queue_list()}), '0', 'which is empty');
is(sql('d1', q{SELECT count(*) FROM queue_ready()}), '0', 'nothing is ready');
works('d1', 'extension created again');
sql('d1', q{DROP EXTENSION queue; CREATE EXTENSION queue; SELECT FROM queue_push('q', '"new"')});
is(sql('d1', q{SELECT string_agg(body::text, ' ') FROM queue_claim('q', 60, 0)}),
	'"new"', 'dropped and created at once: only what is new is there');
is(sql('d1', q{SELECT count(*) FROM queue_ready()}), '0', 'and claimed');
becomes_true(workers_are(@three), 'dropped and created at once: a worker');
works('d1', 'dropped and created at once');

# while the worker is at work
sql('d1', q{SELECT count(queue_push('q' || i % 50, '1')) FROM generate_series(1, 3000) AS i;
	SELECT FROM generate_series(1, 50) AS i, queue_claim('q' || i % 50, 1, 0)});
sleep 0.9;
runs('\c d1
	SET lock_timeout = 60000;
	DROP EXTENSION queue', 'DROP EXTENSION with work to do');
sql('d1', 'CREATE EXTENSION queue');
works('d1', 'after that');

# --- commands that need a database without other sessions ---

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
becomes_true(workers_are(@three), 'three workers');
runs('DROP DATABASE d3', 'DROP DATABASE');
runs('ALTER DATABASE d2 RENAME TO d4', 'ALTER DATABASE RENAME');
runs("CREATE TABLESPACE space LOCATION '$dir/space'", 'tablespace');
runs('ALTER DATABASE d1 SET TABLESPACE space', 'SET TABLESPACE');
runs('CREATE DATABASE d5 TEMPLATE d1', 'CREATE DATABASE ... TEMPLATE');
is(sql('d5', q{SELECT total FROM queue_stats('q')}), '2', 'a copy has all');
sql('d5', q{SELECT FROM queue_push('q', '3')});
becomes_true(workers_are('d1', 'd4', 'd5'),
	'the copy gets a worker, and the others their own again');
works($_, $_) foreach ('d1', 'd4', 'd5');
runs('ALTER DATABASE d5 SET TABLESPACE space', 'once more');
runs('DROP DATABASE d5 WITH (FORCE)', 'DROP DATABASE WITH (FORCE)');
is( sql('d1',
		q{SELECT count(*) FROM queue_data.queue_workers WHERE database = 'd5'}),
	'0',
	'no trace of it');

# a role without the privilege does not make the worker exit
sql('postgres', 'CREATE ROLE stranger LOGIN');
becomes_true(workers_are('d1', 'd4'), 'the workers of the others');
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

# The delay and the claim have to last until all is restored, however long that
# takes.
sql('d1', q{SELECT FROM queue_drop('q'); SELECT FROM queue_drop('works')});
my $delay = 4;
my ($listener, $ready);
for (;; $delay *= 4)
{
	my $pushed = time;

	sql('d1', qq{SELECT queue_purge(name) FROM queue_list();
		SELECT FROM queue_push('free', '1');
		SELECT FROM queue_push('delayed', '1', delay => $delay);
		SELECT FROM queue_push('claimed', '1');
		SELECT FROM queue_claim('claimed', $delay, 0)});
	$node->command_ok(
		[ 'pg_dump', '-Fc', '-f', "$dir/d1.dump", $node->connstr('d1') ],
		'pg_dump with a worker running');
	sql('postgres', 'CREATE DATABASE d7');
	$node->command_ok(
		[
			'pg_restore', '--exit-on-error',
			'-d', $node->connstr('d7'),
			"$dir/d1.dump"
		],
		'pg_restore');
	becomes_true(workers_are('d1', 'd4', 'd7'), 'a worker runs there');
	$ready = sql('d7', q{SELECT string_agg(r, ' ') FROM queue_ready() AS r});
	$listener = $node->background_psql('d7');
	my $channel = $listener->query_safe(q{SELECT queue_channel('delayed')});
	$listener->query_safe("LISTEN $channel");
	last if time - $pushed < $delay - 1;
	$listener->quit;
	sql('postgres', 'DROP DATABASE d7');
}
is($ready, 'free', 'restored: what is ready is known');
my $heard = 0;
my $until = time + $delay + 60;
while (!$heard && time < $until)
{
	$heard = 1 if $listener->query_safe('SELECT') =~ /payload "delayed"/;
	sleep 0.05;
}
ok($heard, 'restored: listeners are notified when a delayed message is due');
$listener->quit;
becomes_true(q{SELECT string_agg(r, ' ' ORDER BY r) = 'claimed delayed free' FROM queue_ready() AS r},
	'restored: what became due is ready', $node, 'd7');
works('d7', 'restored');

# into a database whose extension and worker are there before
sql('postgres', 'CREATE DATABASE d8');
sql('d8', 'CREATE EXTENSION queue');
becomes_true(workers_are('d1', 'd4', 'd7', 'd8'), 'one more worker');
settle('d8');
$node->command_ok(
	[
		'pg_restore', '--data-only', '-d', $node->connstr('d8'), "$dir/d1.dump"
	],
	'pg_restore of the data, with a worker running');
becomes_true(q{SELECT string_agg(r, ' ' ORDER BY r) = 'claimed delayed free' FROM queue_ready() AS r},
	'restored: all is ready', $node, 'd8');
runs("DROP DATABASE $_", "DROP DATABASE $_") foreach ('d7', 'd8');

runs('ALTER DATABASE d1 SET TABLESPACE pg_default', 'and back');
runs('DROP TABLESPACE space', 'nothing is left in the tablespace');

# --- templates ---

sql('template1', q{CREATE EXTENSION queue; SELECT FROM queue_push('q', '1')});
sql('postgres', 'ALTER DATABASE d4 IS_TEMPLATE true');
$node->restart;
becomes_true(workers_are('d1'), 'no worker in templates');
is(sql('template1', q{SELECT string_agg(r, ' ') FROM queue_ready() AS r}),
	'q', 'a template without worker: queue_ready');
runs('CREATE DATABASE d9', 'CREATE DATABASE with the extension in it');
sql('d9', q{SELECT FROM queue_push('q', '1')});
becomes_true(workers_are('d1', 'd9'), 'the first push brings its worker');
sql('postgres', 'ALTER DATABASE d4 IS_TEMPLATE false; DROP DATABASE d9');
sql('template1', 'DROP EXTENSION queue');
sql('d4', q{SELECT FROM queue_push('q', '1')});
becomes_true(workers_are('d1', 'd4'), 'a database that is no template any more');

# --- settings of a database ---

# They say as which role sessions work, but not the worker, which moves to the dead
# letter queue what only the owner and admins may.
sql('d4', q{CREATE ROLE limited; SELECT FROM queue_create('once', '{"_max_claim_count": 1}');
	SELECT FROM queue_push('once', '1'); ALTER DATABASE d4 SET role = 'limited'});
$node->restart;
{
	local $ENV{PGOPTIONS} = '-c role=none';
	becomes_true(workers_are('d1', 'd4'), 'a database has a worker after a restart');
	sql('d4', q{SELECT FROM queue_claim('once', 1, 0, 1)});
	ok($node->poll_query_until('d4', q{SELECT ready = 1 FROM queue_data.queue_status WHERE name = 'once.dead'}),
		'which works whatever role the database sets');
	is(sql('d4', q{SELECT last_error FROM queue_data.queue_workers WHERE database = 'd4'}),
		'', 'without an error');
	sql('d4', 'ALTER DATABASE d4 RESET role');
}

stop_server();
done_testing();
