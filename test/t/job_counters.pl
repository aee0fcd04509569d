# Counts: what is written again and again leaves no dead rows, so a snapshot
# that is held for long does not let the table grow; nothing is counted twice
# or lost on the way there.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../perl";

use PostgreSQL::Test::Utils;
use QueueTest;
use Test::More;
use Time::HiRes qw(sleep time);

start_server('autovacuum = off');

value(
	q{SELECT queue_create(q) FROM unnest('{a,b}'::text[]) AS q});

# One message at a time, from a session of its own; those of b fail.
sub work
{
	value(
		q{SELECT queue_push(q, '1') FROM unnest('{a,b}'::text[]) AS q;
		SELECT claim_complete('a', claim_id) FROM queue_claim('a', 300, 60, 1);
		SELECT message_retry('b', id, claim_id, 'failed ' || id, 0)
		FROM queue_claim('b', 300, 60, 1)});
	return;
}

# Versions of rows that there were so far: where the rows are now.
my $rows = q{SELECT string_agg(ctid::text, ' ' ORDER BY queue_id)
	FROM queue_data.job_counter};
my $written = q{SELECT string_agg(claimed::text, ' ' ORDER BY queue_id)
	FROM queue_data.job_counter};

my $holder = $node->background_psql($db);
$holder->query_safe('BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1');

work();
work();
becomes($written, '2 2', 'counts come to the table');
my $before = value($rows);
for my $i (3 .. 6)
{
	work();
	becomes($written, "$i $i", "and again: $i");
}
is(value($rows), $before, 'in the same version of each row');
is( value(q{SELECT claimed, completed, retried, last_error FROM job_stats('a')}),
	'6|6|0|', 'counts of one queue');
like(
	value(q{SELECT claimed, completed, retried, last_error,
		last_error_at BETWEEN now() - interval '1 min' AND now()
		FROM job_stats('b')}),
	qr/^6\|0\|6\|failed \d+\|t$/, 'counts of the other, and its last error');

# A short error after a long one, characters of several bytes cut as a whole.
value(
	q{SELECT message_retry('b', id, claim_id, repeat('ä', 900), 0)
	FROM queue_claim('b', 300, 60, 1)});
is( value(q{SELECT last_error = repeat('ä', 500) FROM job_stats('b')}),
	't', 'a long error is clipped');
value(
	q{SELECT message_retry('b', id, claim_id, 'short', 0)
	FROM queue_claim('b', 300, 60, 1)});
is(value(q{SELECT last_error FROM job_stats('b')}), 'short', 'a short one');

# What a transaction counted is gone with it.
value(
	q{BEGIN; SELECT message_retry('b', id, claim_id, 'never')
	FROM queue_claim('b', 300, 60, 1); ROLLBACK});
is(value(q{SELECT claimed, retried, last_error FROM job_stats('b')}),
	'8|8|short', 'a transaction that is rolled back does not count');
$holder->quit;

# Many sessions at once, with job_stats read meanwhile: never less than before.
my @sessions = map { $node->background_psql($db) } 1 .. 3;
$_->query_safe(q{SELECT queue_push('c', '0')}) for @sessions;
for my $session (@sessions)
{
	$session->{stdin} .=
	  q{DO $$ BEGIN FOR i IN 1..100 LOOP
		PERFORM queue_push('c', '1');
		PERFORM claim_complete('c', claim_id) FROM queue_claim('c', 300, 60, 1);
		COMMIT; PERFORM pg_sleep(0.005); END LOOP; END $$;} . "\n";
	$session->{run}->pump_nb;
}
my ($last, $went_back) = (0, 0);
my $until = time + 30;
while ($last < 150 && time < $until)
{
	my $now = value(q{SELECT completed FROM job_stats('c')});

	$went_back++ if $now < $last;
	$last = $now;
	$_->{run}->pump_nb for @sessions;
}
$_->query_safe('SELECT 1') for @sessions;
$_->quit for @sessions;
is($went_back, 0, 'counts never go back');
becomes(q{SELECT claimed, completed FROM job_stats('c')},
	'300|300', 'all was counted, once');

# A restart keeps them, also the first ones of a queue.
value(q{SELECT queue_push('fresh', '1'); SELECT count(*) FROM queue_pop('fresh')});
$node->restart;
is(value(q{SELECT claimed, completed FROM job_stats('fresh')}), '1|1',
	'a restart keeps the first counts of a queue');
is(value(q{SELECT claimed, completed FROM job_stats('c')}),
	'300|300', 'a restart loses none');
is(value(q{SELECT claimed, retried, last_error FROM job_stats('b')}),
	'8|8|short', 'nor an error');

$node->stop;
done_testing();
