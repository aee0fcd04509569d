# The worker with much to do, and with nothing: with a thousand queues it
# sleeps while nothing is due; a queue in which twenty thousand claims run out at
# once is visited several times, so that others have their turn; and a queue in which
# fifty thousand delayed messages are due does not delay those of other queues.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../perl";

use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time);
use WorkerTest;

start_server();
$node->append_conf('postgresql.conf', 'log_min_messages = debug2');
$node->reload;

# --- a thousand queues, and nothing due ---

value(q{SELECT count(queue_push('many' || i, '1')) FROM generate_series(1, 1000) AS i});
ok(wait_until_idle(), 'idle with a thousand queues');
is(value('SELECT count(*) FROM queue_ready()'),
	value(q{SELECT count(DISTINCT queue) FROM queue_data.message WHERE state = 'free' AND project = ''}),
	'all of them are ready');
rests('nothing runs while nothing is due');

# also while a new worker still visits all queues
$_->quit foreach ($one, $listener);
$node->restart;
connect_sessions();
my %counts;
my $until = time + 1;
while (time < $until)
{
	$counts{ value('SELECT count(*) FROM queue_ready()') } = 1;
}
is( join(' ', keys %counts),
	value(
		q{SELECT count(DISTINCT queue) FROM queue_data.message WHERE state = 'free' AND project = ''}
	),
	'all of them are ready while a worker starts');

# --- twenty thousand claims that run out at once ---

value(q{SELECT queue_create('big')});
value(
	q{SELECT count(queue_push_batch('big', (SELECT array_agg(to_jsonb(i)) FROM generate_series(1, 2000) AS i))) FROM generate_series(1, 10)}
);

# All are claimed, and then renewed so that they run out together.  The worker stops
# until they have.
value(
	q{CREATE TEMP TABLE claims (i int, claim text);
	DO $$ BEGIN
		FOR i IN 1 .. 20000 LOOP
			INSERT INTO claims SELECT i, claim_id FROM queue_claim('big', 6000, 0, 1);
			IF i % 100 = 0 THEN COMMIT; END IF;
		END LOOP;
	END $$});
is(value(q{SELECT claimed FROM queue_stats('big')}),
	'20000', 'twenty thousand claims');
my $worker = stop_sleeping();
value(
	q{DO $$ BEGIN
		FOR n IN 0 .. 199 LOOP
			PERFORM claim_renew('big', claim, 1, 0)
			FROM claims WHERE i > 100 * n AND i <= 100 * n + 100;
			COMMIT;
		END LOOP;
	END $$;
	SELECT pg_sleep(1.1)});
my $size = -s $node->logfile;
kill 'CONT', $worker;
ok(wait_until_idle(), 'all are worked off');
my $big = value(q{SELECT id FROM queue_data.queue WHERE name = 'big'});
my @visits = slurp_file($node->logfile, $size) =~ /visits queue number $big$/mg;
cmp_ok(scalar(@visits), '>', 1, 'in several visits, between which other queues have their turn');
is(value(q{SELECT free FROM queue_stats('big')}), '20000', 'all are free');
is(value(q{SELECT body FROM queue_claim('big', 60, 0, 1)}),
	'1', 'in their old order');

# --- fifty thousand delayed messages that are due, and one elsewhere ---

# The worker stops until all are due.  The large queue has the older map, so that
# the worker meets it first.
value(q{SELECT queue_push('flood', '1'), queue_push('other', '1');
	SELECT FROM queue_pop('flood'); SELECT FROM queue_pop('other')});
ok(wait_until_idle(), 'idle');
$worker = stop_sleeping();
value(q{SELECT FROM generate_series(1, 50) AS i,
	LATERAL queue_push_batch('flood', array_fill(i::text::jsonb, '{1000}'), delay => 1) AS ids;
	SELECT queue_push('other', '1', delay => 1); SELECT pg_sleep(1.1)});
kill 'CONT', $worker;

# What is due counts as free before it is moved.
my $delayed = join(' UNION ALL ', map { "SELECT queue_id FROM queue_data.delayed_$_" } 0 .. 3);
ok( $node->poll_query_until($db,
		qq{SELECT count(*) = 0 FROM ($delayed) AS d
		JOIN queue_data.queue AS q ON q.id = d.queue_id WHERE q.name IN ('flood', 'other')}),
	'all are moved');

# The transaction in which each was moved
my $arms = join(' UNION ALL ',
	map { "SELECT queue_id, xmin::text::bigint AS moved FROM queue_data.message_$_" } 0 .. 15);
is( value(
		qq{WITH m AS (SELECT q.name, m.moved FROM ($arms) AS m
			JOIN queue_data.queue AS q ON q.id = m.queue_id
			WHERE q.name IN ('flood', 'other'))
		SELECT min(moved) FILTER (WHERE name = 'other')
			< max(moved) FILTER (WHERE name = 'flood') FROM m}),
	't', 'the one does not wait for all of the others');

stop_server();
done_testing();
