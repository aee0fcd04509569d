# The slot of a handler ends with the process that holds it: a runner that is
# terminated between two transactions leaves no lock behind, a cancel between
# two transactions does not end it, and the queue's jobs go on.
#
# test/check -q runs it, too.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../perl";

use HandlerTest;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(sleep time);

# Commits take long.  So most signals arrive during one, and are processed
# after it: between two transactions of a batch.
start_server(
	q{queue.runners = 1
fsync = on
commit_delay = 20000
commit_siblings = 0});
create_app();

my $log = -s $node->logfile;
my $done = q{SELECT completed FROM job_stats('%s')};

# Slots that are held by a process that does not exist
my $slots = q{SELECT count(*) FROM pg_locks
	WHERE locktype = 'object' AND classid = 'queue_data.queue'::regclass
	AND objsubid >= 16};
my $ghosts = "$slots AND pid NOT IN (SELECT pid FROM pg_stat_activity)";

# Calls the function for the runner of a queue with jobs, again and again.
# Returns the number of times after which jobs went on.
sub survives
{
	my ($q, $function) = @_;
	my $times = 15;

	picky($q, undef, '"_max_claim_count": 1000');
	my $push = "SELECT queue_push_batch('$q',
			array_fill('{\"do\": \"nothing\"}'::jsonb, ARRAY[200]))";
	value($push);
	becomes($slots, '1', "a slot for queue $q is held");
	for my $round (0 .. $times)
	{
		my $before = value("$push; " . sprintf $done, $q) =~ s/.*\n//r;
		my $until = time + 60;

		while (value(sprintf $done, $q) == $before)
		{
			return $round if time > $until || value($ghosts) > 0;
			sleep 0.02;
		}
		value("SELECT $function(pid) FROM queue_data.queue_runners")
		  if $round < $times;
	}
	value("SELECT queue_purge('$q')");
	return 'all';
}

is(survives('terminated', 'pg_terminate_backend'),
	'all', 'jobs go on after runners were terminated');
is(value($ghosts), '0', 'which leave no slot behind');
is(survives('canceled', 'pg_cancel_backend'),
	'all', 'jobs go on after cancels');
my $text = slurp_file($node->logfile, $log);
unlike($text, qr/already held|TRAP/,
	'no process meets a lock that is not its own');
unlike($text, qr/ERROR:  canceling statement due to user request/,
	'no cancel between two jobs is an error of the runner');

$node->stop;
done_testing();
