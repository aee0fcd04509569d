# Recurring jobs: what doc/howto/recurring-jobs.md shows makes pg_cron push, as the role that has
# scheduled it; schedules of version 1.2 still push, until they are replaced.

use strict;
use warnings;

use File::Basename;
use FindBin;
use lib "$FindBin::RealBin/../perl";

use ClusterTest;
use PostgreSQL::Test::Utils;
use QueueTest qw($node $db value becomes);
use Test::More;

my $manual = slurp_file(dirname(__FILE__) . '/../../doc/howto/recurring-jobs.md');

my ($settings, $create, $schedule, @schedules) = $manual =~ /^```text\n(.*?)^```/msg;

$node = PostgreSQL::Test::Cluster->new('main');
$node->init;
$node->append_conf('postgresql.conf', $settings =~ s/'mydb'/'$db'/r);
$node->append_conf('postgresql.conf', 'max_worker_processes = 16');
if (!eval { $node->start(fail_ok => 1) })
{
	plan skip_all => 'pg_cron is not installed';
}
value("CREATE EXTENSION queue;
	CREATE ROLE app LOGIN IN ROLE queue_producer;
	$create");

# --- What is scheduled ---

# As the manual says
is(value("SET ROLE app; $schedule"), '1', 'a job is scheduled');
is(value('SELECT jobname, schedule, username FROM cron.job'),
	'nightly|30 3 * * *|app', 'as its role');
value(q{SET ROLE app; SELECT cron.unschedule('nightly')});

# What else it shows can be scheduled, here for a time that does not come, and pushes.
value('SET ROLE app; ' . s/'(?:30|\*) \* \* \* \*'/'1 1 1 1 *'/r) foreach @schedules;
is(value(q{SELECT string_agg(jobname, ' ' ORDER BY jobname) FROM cron.job}),
	'often vienna', 'all that the manual schedules');
value('SET ROLE app; ' . value("SELECT command FROM cron.job WHERE jobname = '$_'"))
  foreach qw(often vienna);
is(value(q{SELECT free, delayed FROM queue_stats('index')}), '1|5',
	'a minute has six messages')
  if value(q{SELECT extract(hour FROM now() AT TIME ZONE 'Europe/Vienna') <> 3}) eq 't';
value(q{SET ROLE app; SELECT cron.unschedule('often'), cron.unschedule('vienna');
	RESET ROLE; SELECT queue_purge('index')});
value('SET ROLE app; ' . $schedule =~ s/30 3 \* \* \*/* * * * */r);

# A schedule of version 1.2, and one that was replaced as it says, before it came
value(
	q{INSERT INTO queue_data.schedule (id, role, pushed_at, project, name, queue, cron, body)
	VALUES (1, 'app', now(), 'wiki', 'often', 'ticks', '* * * * *', '"it''s"'),
		(2, 'app', now(), 'wiki', 'oftener', 'tocks', '* * * * *', '"it''s"');
	SET ROLE app;
	SELECT cron.schedule('queue 1', '* * * * *', 'SELECT job_due(1)'),
		cron.schedule('queue 2', '1 1 1 1 *', 'SELECT job_due(2)')});
value('SET ROLE app; '
	  . value('SET ROLE app; SELECT replacement FROM queue_router.schedules WHERE id = 2'));
is( value(q{SELECT string_agg(jobname || ' ' || schedule || ' ' || username, ', ' ORDER BY jobname)
		FROM cron.job WHERE jobname <> 'nightly'}),
	'oftener (wiki) * * * * * app, queue 1 * * * * * app', 'a job in the place of a schedule');

# --- What is pushed ---

my $pushed = q{SELECT string_agg(q.owner || ' ' || m.body, ', ') FROM queue_data.message AS m
	JOIN queue_data.queue AS q ON q.name = m.queue AND q.project = m.project
	WHERE m.queue = '%s' AND m.project = '%s'};
becomes(sprintf($pushed, 'index', ''), 'app {"all": true}', 'the job pushes');
becomes(sprintf($pushed, 'ticks', 'wiki'), q{app "it's"}, 'so does the schedule');
becomes(sprintf($pushed, 'tocks', 'wiki'), q{app "it's"}, 'and what has replaced one');
like(slurp_file($node->logfile), qr/WARNING:  schedule "often" has to be replaced/,
	'the schedule warns');
unlike(slurp_file($node->logfile), qr/WARNING:  schedule "oftener" has to be replaced/,
	'the job does not');
value(q{SET ROLE app; SELECT cron.schedule('nightly', '1 1 1 1 *', command)
	FROM cron.job WHERE jobname = 'nightly'});
value("SET ROLE app; " . value(q{SELECT command FROM cron.job WHERE jobname = 'nightly'}));
is(value(sprintf($pushed, 'index', '')), 'app {"all": true}',
	'no second message while one waits');

$node->stop;
done_testing();
