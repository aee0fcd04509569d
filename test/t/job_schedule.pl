# Recurring jobs through pg_cron: pushed when they are due, once for each due
# time, as the role that made the schedule; and without pg_cron an error that
# says what is missing.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../perl";

use ClusterTest;
use PostgreSQL::Test::Utils;
use QueueTest qw($node $db value);
use Test::More;
use Time::HiRes qw(sleep time);

$node = PostgreSQL::Test::Cluster->new('main');
$node->init;
$node->start;

sub error_of
{
	my ($sql) = @_;
	my ($ret, $stdout, $stderr) = $node->psql($db, $sql,
		extra_params => [ '-v', 'VERBOSITY=verbose' ]);
	return $stderr;
}

# --- without pg_cron ---

value(
	q{CREATE EXTENSION queue;
	CREATE ROLE app LOGIN; CREATE ROLE other LOGIN;
	GRANT queue_producer, queue_consumer TO app, other});
my $error = error_of(q{SELECT job_schedule('tick', '* * * * *', 'q', '1')});
like($error, qr/55000: job_schedule\(\) needs the extension "pg_cron"/,
	'without pg_cron: an error');
like($error, qr/package postgresql-\d+-cron.*cron\.use_background_workers/,
	'that names the package, and what to set');
is(value(q{SELECT job_unschedule('tick')}), 'f', 'nothing was scheduled');
is(value(q{SELECT queue_exists('q')}), 'f', 'and no queue made');

my $there = value(
	q{SELECT count(*) FROM pg_available_extensions WHERE name = 'pg_cron'});
if (!$there)
{
	$node->stop;
	note 'pg_cron is not installed: the rest is not tested';
	done_testing();
	exit;
}

# --- with it, as Debian installs it ---

$node->append_conf(
	'postgresql.conf', qq{
shared_preload_libraries = 'queue, pg_cron'
cron.database_name = '$db'
max_worker_processes = 16
});
$node->restart;
value(q{CREATE EXTENSION pg_cron});
my $schedule = q{SELECT job_schedule('tick', '* * * * *', 'ticks', '1')};
like(error_of("SET ROLE app; $schedule"),
	qr/42501: .*\n.*HINT:  A superuser can run: GRANT USAGE ON SCHEMA cron TO app;/s,
	'a role that may not use pg_cron');
value(q{GRANT USAGE ON SCHEMA cron TO app, other;
	CREATE ROLE mute IN ROLE queue_producer; GRANT USAGE ON SCHEMA cron TO mute});
like(error_of("SET ROLE mute; BEGIN; $schedule; ROLLBACK"),
	qr/WARNING: .*role mute may not log in.*\n.*HINT:  Run ALTER ROLE mute LOGIN/,
	'a role as which pg_cron cannot run');
like(error_of(q{SET ROLE app; SELECT job_schedule('bad', 'now and then', 'q', '1')}),
	qr/ERROR: .*now and then\n.*HINT:  Give minute, hour/, 'a malformed time');
is(value(q{SELECT count(*) FROM queue_data.schedule WHERE name = 'bad'}),
	'0', 'makes no schedule');
like(
	error_of("SET ROLE app; $schedule"),
	qr/WARNING: .*role app can connect.*\n.*localhost.*\n.*HINT:  Set "cron.use_background_workers" to on.*job_stats\('ticks'\)/,
	'it is said what to set');

# It cannot connect, which takes up to a minute.
my $stats = q{SELECT last_error FROM job_stats('ticks')};
$node->poll_query_until($db, $stats,
	'schedule "tick" failed: connection failed ("cron.use_background_workers" is off)'
  )
  or diag value(q{SELECT string_agg(status || ' ' || return_message, '; ')
	FROM cron.job_run_details});
like(value("SET ROLE app; $stats"), qr/connection failed/,
	'the failure is in job_stats');
value(q{CREATE ROLE reader IN ROLE queue_consumer});
like(
	value("SET ROLE reader; SET row_security = off; BEGIN READ ONLY; $stats; COMMIT"),
	qr/connection failed/,
	'for a role that may not use pg_cron, too');
is(value("SET ROLE mute; $stats"), '', 'but not for one that may not claim');
my $schedules = 'SELECT * FROM job_schedules()';
my $failed =
  'tick|* * * * *|ticks|1||connection failed ("cron.use_background_workers" is off)';
is(value("SET ROLE $_; $schedules"), $failed, "job_schedules shows it to $_")
  foreach 'app', value('SELECT current_user');
is(value("SET ROLE $_; $schedules"), '', "not to $_") foreach qw(other reader mute);
value(q{SET ROLE app; SELECT queue_grant('ticks', 'reader', 'admin')});
is(value("SET ROLE reader; BEGIN READ ONLY; $schedules; COMMIT"),
	$failed, 'but to a role with admin on the queue');
is(value("SET ROLE app; SET queue.project = 'p'; $schedules"),
	'', 'not in another project');
like(value('SELECT command FROM cron.job'),
	qr{^/\* schedule "tick" of queue "ticks" \*/ DO }, "pg_cron's table names it");
is(value(q{SELECT last_error FROM job_stats('other')}), '', 'nor in other queues');
value(q{SET ROLE app; SELECT job_unschedule('tick')});
is(value($stats), '', 'nor when the schedule is gone');

# --- with background workers ---

$node->append_conf('postgresql.conf', 'cron.use_background_workers = on');
$node->restart;
is(error_of("SET ROLE app; BEGIN; $schedule; ROLLBACK"), '', 'no warning');
value(
	q{SET ROLE app; SET queue.project = 'wiki';
	SELECT job_schedule('tick', '* * * * *', 'ticks', '{"n": 1}')});
is( value(
		q{SELECT schedule, username, database FROM cron.job
		WHERE command ~ 'queue_router.due'}),
	"* * * * *|app|$db",
	'pg_cron has the job');
value(
	q{SET ROLE app; SET queue.project = 'wiki';
	SELECT job_schedule('tick', '*/1 * * * *', 'ticks', '{"n": 2}')});
is(value(q{SELECT count(*), min(schedule) FROM cron.job}),
	'1|*/1 * * * *', 'a schedule of the same name is replaced');
my $id = value(q{SELECT id FROM queue_data.schedule});

# Twice for one due time, by two sessions at once
sub minute_is_young
{
	value(q{SELECT pg_sleep(61 - extract(second FROM clock_timestamp()))
		WHERE extract(second FROM clock_timestamp()) > 50});
	return;
}

my $pushed = q{SET queue.project = 'wiki'; SELECT total FROM queue_stats('ticks')};
minute_is_young();
value("UPDATE queue_data.schedule SET pushed_at = '-infinity'");
value(q{SET queue.project = 'wiki'; SELECT queue_purge('ticks')});
is(value("SET ROLE app; SELECT job_due($id)"), 't', 'when it is due it is pushed');
is(value("SET ROLE app; SELECT job_due($id)"), 'f', 'once');
is(value($pushed), '1', 'for this minute');
value(q{UPDATE queue_data.schedule SET pushed_at = pushed_at - interval '1 min'});
my $one = $node->background_psql($db);
$one->query_safe("BEGIN; SET ROLE app; SELECT job_due($id)");
my $two = $node->background_psql($db);
$two->query_until(qr/waiting/, "\\echo waiting\nSET ROLE app; SELECT job_due($id);\n");
$one->query_safe('COMMIT');
$two->query_safe('SELECT');
is(value($pushed), '2', 'two at once push one');
$two->quit;

# A schedule that is not committed yet, first in the index
$one->query_safe(
	q{SET queue.project = 'wiki'; BEGIN;
	SELECT job_schedule('a', '0 0 1 1 *', 'ticks', '1')});
value(
	q{SET queue.project = 'wiki'; SET lock_timeout = '5s';
	SELECT job_schedule('b', '0 0 1 1 *', 'ticks', '1');
	SELECT job_unschedule('b')});
pass('does not make those with other names wait');
$one->query_safe('ROLLBACK');
$one->quit;
is(value(q{SET queue.project = 'wiki';
	SELECT DISTINCT body FROM queue_messages('ticks')}), '{"n": 2}',
	'the message is that of the schedule');

like(error_of("SET ROLE other; SELECT job_due($id)"),
	qr/42501/, 'it is not for others');
like(error_of(q{SET ROLE other; SET queue.project = 'wiki';
	SELECT job_unschedule('tick')}), qr/42501/, 'nor to be ended by them');
like(error_of(q{SET ROLE other; SET queue.project = 'wiki';
	SELECT job_schedule('tick', '* * * * *', 'x', '1')}),
	qr/42501/, 'nor replaced');

# What pg_cron does by itself, which takes up to a minute
value(q{SET queue.project = 'wiki'; SELECT queue_purge('ticks')});
$node->poll_query_until($db,
	q{SELECT count(*) >= 1 FROM queue_data.message WHERE queue = 'ticks'})
  or diag 'pg_cron did not push: '
  . value(q{SELECT string_agg(status || ' ' || return_message, '; ')
	FROM cron.job_run_details});
is( value(
		q{SELECT count(*) - count(DISTINCT date_trunc('minute', created_at))
		FROM queue_data.message WHERE queue = 'ticks'}),
	'0',
	'pg_cron has it pushed, once a minute');
is( value(q{SET ROLE app; SET queue.project = 'wiki';
		SELECT name, last_run > now() - interval '1 hour', last_error FROM job_schedules()}),
	'tick|t|',
	'and job_schedules shows when');
value(
	q{SET queue.project = 'wiki';
	SELECT job_schedule('tick', '* * * * *', 'ticks', '{"n": 3}')});
is(value(q{SELECT count(*), min(username) FROM cron.job}),
	'1|' . value('SELECT current_user'),
	'a superuser may take it over');
is(value(q{SET queue.project = 'wiki'; SELECT job_unschedule('tick')}),
	't', 'a schedule is ended');
is(value(q{SELECT count(*) FROM cron.job}), '0', 'and removed from pg_cron');
is(value(q{SET ROLE app; SET queue.project = 'wiki'; SELECT job_unschedule('tick')}),
	'f', 'once');
is(value("SET ROLE app; SELECT job_due($id)"), 'f',
	'what pg_cron may still run does nothing');

$node->stop;
done_testing();
