# Nothing is preloaded.  Before PostgreSQL 17, the extension and its functions say what
# to add to which line; it can be dumped without data, and dropped.  From 17 on, a server
# that is already running has everything as soon as the extension is created: shared
# memory, the worker, wake-ups; without room for the memory each call is an error.
# Commands that need a database for themselves work in sessions that never load the
# library.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../perl";

use ClusterTest;
use DatabasesTest qw($node sql);
use MemoryTest;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(sleep time);

$node = PostgreSQL::Test::Cluster->new('main');
$node->init(allows_streaming => 1);

# The last error of a statement of psql, with its hint
sub error_of
{
	my ($sql) = @_;
	my ($ret, $stdout, $stderr) = $node->psql('postgres', $sql,
		extra_params => [ '-v', 'VERBOSITY=verbose' ]);
	return $stderr;
}

if ($node->pg_version < 17)
{
	my $must_preload =
	  qr/ERROR:  55000: .*"queue" must be loaded via "shared_preload_libraries"\nHINT:  .*shared_preload_libraries = 'queue'/;

	$node->append_conf('postgresql.conf', "shared_preload_libraries = ''");
	$node->start;
	like(error_of($_), $must_preload, $_) foreach 'CREATE EXTENSION queue', q{LOAD 'queue'};

	# Created while it was preloaded
	$node->adjust_conf('postgresql.conf', 'shared_preload_libraries', "'queue'");
	$node->restart;
	sql('postgres', q{CREATE EXTENSION queue; SELECT queue_push('q', '1')});
	$node->adjust_conf('postgresql.conf', 'shared_preload_libraries', "''");
	$node->restart;
	like(error_of($_), $must_preload, $_)
	  foreach q{SELECT queue_push('q', '2')}, q{SELECT * FROM queue_claim('q')},
	  q{SELECT 1; SELECT queue_exists('q')}, 'SELECT * FROM queue_data.queue_status',
	  q{DELETE FROM queue_data.queue};
	$node->command_ok([ 'pg_dump', '--schema-only', '-d', $node->connstr('postgres') ],
		'pg_dump --schema-only');
	$node->command_fails_like([ 'pg_dump', '-d', $node->connstr('postgres') ],
		qr/must be loaded via "shared_preload_libraries"\n.*HINT:  .*shared_preload_libraries = 'queue'/,
		'pg_dump of the messages says what to do');
	is(error_of('DROP EXTENSION queue'), '', 'DROP EXTENSION');
	is(sql('postgres', q{SELECT count(*) FROM pg_namespace WHERE nspname = 'queue_data'}), '0',
		'nothing is left');
	unlike(slurp_file($node->logfile), qr/PANIC|TRAP|signal \d+/, 'no crash');
	$node->stop;
	done_testing();
	exit;
}

$node->append_conf(
	'postgresql.conf', q{
shared_preload_libraries = ''
autovacuum = off
queue.min_claim_ttl = 1
queue.min_claim_grace = 0
queue.runners = 1
});
$node->start;
$node->safe_psql('postgres', "CREATE DATABASE $_") foreach qw(d1 d2);

# The databases that have a worker; no function of the library is called.
my $workers =
  q{SELECT string_agg(datname, ' ' ORDER BY datname) FROM pg_stat_activity WHERE backend_type = 'queue worker'};
my $launchers =
  q{SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'queue launcher'};

# In a session that does not load the library.  The server itself waits for the worker
# five seconds, and then raises an error.
sub runs
{
	my ($sql) = @_;
	my ($ret, $stdout, $stderr) = $node->psql('postgres', $sql);
	is($stderr, '', $sql);
	return;
}

sub is_after
{
	my ($query, $expected, $what) = @_;
	ok($node->poll_query_until('postgres', $query, $expected), $what);
	return;
}

sub listen_to
{
	my ($db, $q) = @_;
	my $session = $node->background_psql($db);
	my $channel = $session->query_safe("SELECT queue_channel('$q')");
	$session->query_safe(qq{LISTEN "$channel"});
	return $session;
}

# The session receives a notification.
sub is_woken
{
	my ($session, $what) = @_;
	my $until = time + 180;
	my $woken = 0;

	until ($woken || time > $until)
	{
		$woken = $session->query('SELECT 1') =~ /Asynchronous notification/;
		sleep 0.02;
	}
	ok($woken, $what);
	return;
}

# --- A server that is running ---

is(sql('postgres', $launchers), '0', 'no launcher before');
sql('d1', 'CREATE EXTENSION queue');
is_after($workers, 'd1', 'CREATE EXTENSION starts the worker, without a call');
my $listener = listen_to('d1', 'mail');
sql('d1', q{SELECT queue_push('mail', '1')});
is_woken($listener, 'a listener is woken');
is_after($workers, 'd1', 'there is a worker');
is(sql('postgres', $launchers), '1', 'and a launcher');
sql('d1', q{SELECT queue_push('mail', '2')});
is_woken($listener, 'woken again');
$listener->quit;

sql('d1', q{SELECT queue_create('other')});    # one that does not exist is a NOTICE
my $waiting = $node->background_psql('d1');
$waiting->query_until(qr/begun/, "\\echo begun\nCALL queue_wait('other', 600000);\n");
sql('d1', q{SELECT queue_push('other', '1')});
like($waiting->query_safe('SELECT 1'), qr/^t?\s*1$/m, 'queue_wait is woken');
$waiting->quit;

# Sessions share the maps: what one returns, the other finds.
my ($one, $two) = map { $node->background_psql('d1') } 1 .. 2;
$one->query_safe('BEGIN');
is($one->query_safe(q{SELECT body FROM queue_claim('mail', 600, 0, 1)}), '1', 'a claim');
is($two->query_safe(q{SELECT body FROM queue_claim('mail', 600, 0, 1)}), '2', 'another one');
is($two->query_safe(q{SELECT body FROM queue_claim('mail', 600, 0, 1)}), '', 'nothing else');
$one->query_safe('ROLLBACK');
is($two->query_safe(q{SELECT body FROM queue_claim('mail', 600, 0, 1)}), '1', 'what was rolled back');
$_->quit foreach $one, $two;

# The worker ends claims, without a call.
sql('d1', q{SELECT FROM queue_push('short', '1'); SELECT FROM queue_claim('short', 1, 0)});
$listener = listen_to('d1', 'short');
is_woken($listener, 'the end of a claim');
$listener->quit;
is(sql('d1', q{SELECT current_setting('queue.runners') FROM queue_list()  LIMIT 1}),
	'1', 'settings of the server');

# Handlers run.
sql('d1', q{
	CREATE TABLE done (body jsonb);
	CREATE FUNCTION note(m queue_message) RETURNS boolean LANGUAGE sql AS
		'INSERT INTO done VALUES (m.body) RETURNING true';
	SELECT queue_create('jobs');
	SELECT job_handler('jobs', 'note(queue_message)');
	SELECT queue_push('jobs', '7');
});
ok($node->poll_query_until('d1', 'SELECT body FROM done', '7'), 'a handler');

# --- Commands that need a database for themselves ---

is_after($workers, 'd1', 'one worker');
runs('CREATE DATABASE d3 TEMPLATE d1');
sql('d3', q{SELECT queue_push('mail', '1')});
is_after($workers, 'd1 d3', 'the copy has a worker, and the other is back');
runs('ALTER DATABASE d3 RENAME TO d4');
runs('DROP DATABASE d4');
is_after($workers, 'd1', 'its worker is gone');
sql('d1', q{SELECT queue_push('jobs', '8')});
ok($node->poll_query_until('d1', 'SELECT count(*) FROM done', '2'), 'a runner works');
runs('ALTER DATABASE d1 RENAME TO d5');
sql('d5', q{SELECT queue_push('jobs', '9')});
ok($node->poll_query_until('d5', 'SELECT count(*) FROM done', '3'),
	'it works on in the renamed database');

# --- DROP EXTENSION ---

sql('d2', q{CREATE EXTENSION queue; SELECT queue_push('q', '1')});
is_after($workers, 'd2 d5', 'two workers');
sql('d2', 'DROP EXTENSION queue');
is_after($workers, 'd5', 'the worker leaves');

# Longer than it takes a worker to find out that there is no extension; then at
# once after that has found out that it is gone.
sql('d2', q{BEGIN; CREATE EXTENSION queue; SELECT pg_sleep(1); COMMIT});
is_after($workers, 'd2 d5', 'created in a transaction block');
sql('d2', "DROP EXTENSION queue; CREATE EXTENSION queue") foreach 1 .. 5;
is_after($workers, 'd2 d5', 'created anew');
sql('d2', 'DROP EXTENSION queue');
is_after($workers, 'd5', 'the worker leaves a database without the extension');

# --- The first that a server hears of the extension ---

$node->restart;
sql('postgres', 'CREATE DATABASE d6');
sql('d6', q{BEGIN; CREATE EXTENSION queue; SELECT pg_sleep(1); COMMIT});
is_after($workers, 'd5 d6', 'it is created in a transaction block');
runs('DROP DATABASE d6');

# --- Restarts ---

foreach my $mode (qw(fast immediate))
{
	$node->stop($mode);
	$node->start;
	is(sql('postgres', $launchers), '0', "$mode restart: nobody has called yet");
	sql('d5', q{SELECT queue_channel('mail')});
	is_after($workers, 'd5', 'queue_channel() starts the worker');
}

# A crash: the server starts by itself, and the launcher too.
my $pid = sql('postgres',
	q{SELECT pid FROM pg_stat_activity WHERE backend_type = 'queue worker'});
$node->append_conf('postgresql.conf', 'restart_after_crash = on');
$node->reload;
kill 'KILL', $pid;
my $is_back;
until (defined $is_back)
{
	# Meanwhile psql may end before it has read the query, which raises an error.
	$is_back = eval { $node->poll_query_until('postgres',
		"SELECT pid <> $pid FROM pg_stat_activity WHERE backend_type = 'queue worker'") };
}
ok($is_back, 'a worker after a crash');

# Terminated, the launcher comes back.
sql('postgres', q{SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE backend_type = 'queue launcher'});
is_after($launchers, '1', 'the launcher comes back');

my $log = slurp_file($node->logfile);
unlike($log, qr/(?:PANIC|TRAP|WARNING|FATAL):  (?!terminating|the database system|could not)/, 'nothing else in the log');
$node->stop;

# --- There is no room for the memory ---

SKIP:
{
	skip 'no C compiler', 6 unless can_refuse();
	$node = PostgreSQL::Test::Cluster->new('full');
	$node->init;
	$node->append_conf('postgresql.conf', "shared_preload_libraries = ''");
	start_refusing($node);
	refuse();
	my $no_room = qr/ERROR:  53200: there is no shared memory for queues: .*No space left.*\nHINT:  Make more/;
	like(error_of('CREATE EXTENSION queue'), $no_room, 'no room');
	like(error_of('SELECT 1; CREATE EXTENSION queue'), $no_room, 'again');
	my $session = $node->background_psql('postgres', on_error_stop => 0);
	$session->query('CREATE EXTENSION queue');
	like($session->{stderr}, qr/there is no shared memory for queues/, 'in a session');
	allow();
	$session->{stderr} = '';
	is($session->query(q{CREATE EXTENSION queue; SELECT count(queue_push('q', '1'))}), '1',
		'which finds room later');
	$session->quit;
	is(sql('postgres', q{SELECT count(*) FROM queue_claim('q')}), '1', 'as others do');
	unlike(slurp_file($node->logfile), qr/PANIC|TRAP|signal \d+/, 'no crash');
	$node->stop;
}

done_testing();
