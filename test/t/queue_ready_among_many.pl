# The aggregator: among 20,000 queues that are mostly empty, the ready ones
# are found at once, also after a restart, and none of them has to wait for
# one that is flooded.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../perl";

use PostgreSQL::Test::Utils;
use QueueTest;
use Test::More;
use Time::HiRes qw(time);

start_server(
	q{
autovacuum = off
});

# Milliseconds that a call takes in a session that has made it before, and those that
# it takes to read the table of queues: the medians of 21.  Visiting all queues takes
# ten times as long as the latter.
sub medians
{
	my ($call) = @_;
	return split /\|/, value(
		qq{CREATE TEMP TABLE took (ms float, reading float);
		DO \$\$
		DECLARE
			start timestamptz;
			called timestamptz;
		BEGIN
			FOR i IN 1 .. 21 LOOP
				start = clock_timestamp();
				PERFORM $call;
				called = clock_timestamp();
				PERFORM count(name) FROM queue_data.queue;
				INSERT INTO took SELECT 1000 * extract(epoch FROM called - start),
					1000 * extract(epoch FROM clock_timestamp() - called);
				COMMIT;
			END LOOP;
		END \$\$;
		SELECT percentile_cont(0.5) WITHIN GROUP (ORDER BY ms),
			percentile_cont(0.5) WITHIN GROUP (ORDER BY reading) FROM took});
}

value(q{SELECT count(queue_create('q' || i)) FROM generate_series(1, 20000) i});
value(q{SELECT count(queue_push('q' || i * 1999, '1'))
	FROM generate_series(1, 10) i});
my $wanted = value(
	q{SELECT string_agg('q' || i * 1999, ' ' ORDER BY i)
	FROM generate_series(1, 10) i});
my $ready = q{SELECT string_agg(r, ' ' ORDER BY substr(r, 2)::int)
	FROM queue_ready() r};

for my $when ('at first', 'after a restart')
{
	$node->restart if $when ne 'at first';

	# The worker visits each queue once.
	ok( $node->poll_query_until($db,
			q{SELECT state = 'idle' AND rounds > 1 AND coalesce(next_run > now() + interval '10 s', true)
			FROM queue_data.queue_workers
			WHERE database = current_database()}),
		"$when: the worker is idle");
	is(value($ready), $wanted, "$when: the ready queues");
	my ($ms, $reading) = medians('queue_ready()');
	note "$when: queue_ready among 20,000 queues: $ms ms; reading them: $reading ms";
	cmp_ok($ms, '<', $reading, "$when: found without a visit to all");
	($ms, $reading) = medians("FROM queue_claim_any(NULL, 300, 60, 1)");
	note "$when: queue_claim_any among 20,000 queues: $ms ms";
	cmp_ok($ms, '<', $reading, "$when: claimed without a visit to all");
	value(q{SELECT count(queue_purge('q' || i * 1999)),
		count(queue_push('q' || i * 1999, '1')) FROM generate_series(1, 10) i});
}

# One is flooded.
value(q{SELECT queue_push_batch('q1', array_fill('1'::jsonb, ARRAY[5000]))});
my $claims = value(
	q{SELECT string_agg((SELECT queue FROM queue_claim_any(NULL, 300, 60, 1 + i * 0)),
		' ' ORDER BY i) FROM generate_series(1, 25) i});
my @first = (split / /, $claims)[ 0 .. 12 ];
is(scalar(grep { $_ ne 'q1' } @first), 10,
	'each slow queue has had its turn after a few claims');
cmp_ok(scalar(grep { $_ eq 'q1' } split(/ /, $claims)),
	'>=', 10, 'and the flooded one the others');
note $claims;

# What this transaction has pushed
is( value(
		q{SELECT FROM queue_purge('q1'); BEGIN; SELECT queue_push('q5', '1') > 0;
		SELECT queue FROM queue_claim_any(NULL, 300, 60); ROLLBACK}),
	"t\nq5",
	'a transaction claims what it has pushed');
is(value(q{SELECT count(*) FROM queue_claim_any(NULL, 300, 60)}), '0',
	'nothing is left');

# Not what one may not claim
value(
	q{CREATE ROLE app; CREATE ROLE boss; GRANT queue_consumer TO app;
	SELECT queue_grant('q7', 'boss', 'claim');
	SELECT queue_push('q7', '1'); SELECT queue_pause('q8');
	SELECT queue_push('q8', '1');
	SET queue.project = 'wiki'; SELECT queue_push('q9', '1')});
is(value(q{SET ROLE app; SELECT count(*) FROM queue_claim_any(NULL, 300, 60)}),
	'0', 'other roles, projects and paused queues are left alone');
is(value(q{SELECT queue FROM queue_claim_any(NULL, 300, 60)}), 'q7',
	'a role with the claim privilege gets it');

$node->stop;
done_testing();
