# 100,000 queues with an availability map each: every queue's message is claimed
# once, also after a rollback, a prepared transaction and a crash.
#
# QUEUE_STRESS_SECONDS makes more of them be claimed from (test/stress sets it).
#
# test/check -a runs it.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../perl";

use PostgreSQL::Test::Utils;
use QueueTest;
use Test::More;
use Time::HiRes qw(sleep time);

my $seconds = $ENV{QUEUE_STRESS_SECONDS} || 12;
my $queues = 100000;

start_server(
	q(
max_prepared_transactions = 1
autovacuum = off
synchronous_commit = off
log_statement = none
queue.max_active_queues = 210000
queue.min_claim_grace = 0
));
my $session = $node->background_psql('postgres');

my $began = time;
my $batch = 20000;
for (my $from = 1; $from <= $queues; $from += $batch)
{
	my $to = $from + $batch - 1;
	$session->query_safe("SELECT count(queue_push('z' || g, to_jsonb(g)))
		FROM generate_series($from, $to) AS g");
}
note sprintf '%d pushes took %.1f s', $queues, time - $began;

# Each of some queues, from the first on in steps, has its message, once.
sub one_each
{
	my ($first, $step, $what, $end) = @_;
	my $n = int(($queues - $first) / $step) + 1;
	my $claims = "SELECT count(*), count(DISTINCT body), count(*) FILTER
			(WHERE queue = 'z' || body::text)
		FROM generate_series($first, $queues, $step) AS g,
			queue_claim('z' || g, 600, 0, 10)";
	my $answer = $session->query_safe("BEGIN; $claims; $end");
	is($answer, "$n|$n|$n", "$what: $n queues, one message each");
	return;
}

my $step = $seconds >= 60 ? 10 : 50;
one_each(1, $step, 'first', 'COMMIT');
one_each(2, $step, 'rolled back', 'ROLLBACK');
one_each(2, $step, 'again', 'COMMIT');
one_each(3, $step, 'prepared', "PREPARE TRANSACTION 'z'");
$session->query_safe("ROLLBACK PREPARED 'z'");
one_each(3, $step, 'no more', 'COMMIT');
$session->quit;
$node->stop('immediate');
$node->start;
$session = $node->background_psql('postgres');
one_each(4, $step, 'after a crash', 'COMMIT');
is( $session->query_safe(
		"SELECT count(*) FROM generate_series(1, $queues, $step) AS g,
			queue_claim('z' || g, 600, 0, 10)"),
	'0', 'what was claimed before stays so');
$session->quit;

$node->stop;
done_testing();
