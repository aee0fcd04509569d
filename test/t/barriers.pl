# DROP DATABASE waits until every process has taken notice of it, by a signal and
# the latch.  A process of the extension that resets its latch takes notice
# first, also if its sleep ended by the clock at that moment.
#
# A process that is stopped until its sleep is over, and gets the signal
# meanwhile, is at that moment when it goes on.
#
# test/check -q runs it, too.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../perl";

use PostgreSQL::Test::Utils;
use QueueTest;
use Test::More;
use Time::HiRes qw(sleep);

start_server(
	q{
autovacuum = off
queue.runners = 1
});


# Does the process of which this is true take notice of DROP DATABASE?
sub takes_notice
{
	my ($name, $where, $longest_sleep) = @_;
	my $session = $node->background_psql('postgres', on_error_stop => 0);

	value('CREATE DATABASE other');
	becomes_true("SELECT count(*) = 1 FROM pg_stat_activity WHERE $where", "there is $name");
	my $pid = value("SELECT pid FROM pg_stat_activity WHERE $where");

	kill 'STOP', $pid or die $!;
	sleep $longest_sleep + 0.2;
	$session->query_until(qr/begun/,
		"\\echo begun\nSET statement_timeout = '180s';\nDROP DATABASE other;\n");
	becomes_true(q{SELECT count(*) = 1 FROM pg_stat_activity WHERE wait_event = 'ProcSignalBarrier'},
		"DROP DATABASE waits for $name");
	kill 'CONT', $pid or die $!;
	$session->query('SELECT 1');
	is($session->{stderr}, '', "$name takes notice of it");
	$session->quit;
	value('DROP DATABASE IF EXISTS other');
	return;
}

# Nothing is due for an hour.  Until then the worker sleeps for five seconds at a
# time.
value(q{SELECT queue_push('later', '1', delay => 3600)});
becomes_true(q{SELECT state = 'idle' AND next_run > clock_timestamp() + interval '30 s'
	FROM queue_data.queue_workers WHERE database = 'postgres'}, 'nothing is due');
takes_notice('the worker', q{backend_type = 'queue worker'}, 5);
takes_notice('the launcher', q{backend_type = 'queue launcher'}, 0);

# One session waits for messages of a queue, and one polls, since its queue does
# not exist.
value(q{
	CREATE FUNCTION handle(m queue_message) RETURNS boolean LANGUAGE sql AS
		'SELECT true';
	SELECT queue_create('jobs');
	SELECT job_handler('jobs', 'handle(queue_message)');
	SELECT queue_push('jobs', '1');
});
my @waiting = map { $node->background_psql('postgres') } 1 .. 2;
$waiting[0]->query_until(qr/begun/, "\\echo begun\nCALL queue_wait('jobs', 600000);\n");
$waiting[1]->query_until(qr/begun/, "\\echo begun\nCALL queue_wait('none', 600000);\n");

my $waits = q{wait_event IN ('QueueWait', 'Extension')};
takes_notice('a runner', q{backend_type = 'queue runner' AND state = 'idle'}, 0);
takes_notice('a session in queue_wait', "query LIKE 'CALL queue_wait(''jobs''%' AND $waits", 0.1);
takes_notice('a session that polls', "query LIKE 'CALL queue_wait(''none''%' AND $waits", 0.1);

value(q{SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE 'CALL queue_wait%'});
$node->stop;
done_testing();
