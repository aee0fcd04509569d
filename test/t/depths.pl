# The depths in queue_status are those of queue_stats, although no session reads the
# messages: after claims have ended, in whatever way their messages are met, and
# after all messages were counted anew while others changed them.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../perl";

use PostgreSQL::Test::Utils;
use StatusTest;
use Test::More;
use Time::HiRes qw(sleep time);

start_server();
my $one = $node->background_psql('postgres');
my $two = $node->background_psql('postgres');

sub query
{
	my ($session, $sql) = @_;
	return $session->query_safe($sql);
}

# A queue with messages 1 to n
sub queue
{
	my ($name, $n, $metadata) = @_;
	value("SELECT queue_create('$name', '" . ($metadata || '{}') . "')");
	value(
		"SELECT queue_push_batch('$name', array_agg(to_jsonb(i))) FROM generate_series(1, $n) AS i"
	);
	return;
}

sub claim
{
	my ($session, $name, $n, $ttl) = @_;
	return query($session,
		"SELECT min(claim_id) FROM queue_claim('$name', $ttl, 0, $n)");
}

#
# Claims that end
#

# In one range of the map, some messages are free at once, and no session claims them:
# the worker does not sweep it.
queue('mixed', 10);
my $claim = claim($one, 'mixed', 5, 600);
query($one, "SELECT message_retry('mixed', id, claim_id, delay => 0)
	FROM claim_messages('mixed', '$claim') ORDER BY id LIMIT 1");
is(depths('mixed'), '6|4|0', 'some of a claim are given back');
query($one, "SELECT claim_renew('mixed', '$claim', 1, 0)");
depths_become('mixed', '10|0|0', 'the rest of it ends');

# The map has no room for two ranges of each priority, so that it unites those that are
# free at once with others.
value(q{SELECT count(queue_push('united', '1', priority => i % 10)) FROM generate_series(1, 20) AS i});
$claim = claim($one, 'united', 20, 600);
query($one, "SELECT count(message_retry('united', id, '$claim', delay => 0))
	FROM (SELECT min(id) AS id FROM claim_messages('united', '$claim') GROUP BY priority) AS m");
is(depths('united'), '10|10|0', 'some of a claim are given back in each priority');
query($one, "SELECT claim_renew('united', '$claim', 1, 0)");
depths_become('united', '20|0|0', 'the rest of it ends');

# Nobody may claim from a paused queue, and a claim goes on.
queue('paused', 4);
$claim = claim($one, 'paused', 2, 600);
value("SELECT queue_pause('paused'); SELECT claim_renew('paused', '$claim', 1, 0)");
depths_become('paused', '4|0|0', 'a claim ends while its queue is paused');

# One that is renewed, and a part of one
queue('renewed', 4);
$claim = query($one, q{SELECT claim_id FROM
	(SELECT min(claim_id) AS claim_id FROM queue_claim('renewed', 1, 0, 3)) AS c,
	claim_renew('renewed', claim_id, 600, 0)});
sleep 1.5;
is(depths('renewed'), '1|3|0', 'a claim that was renewed goes on');
query($one, "SELECT claim_renew('renewed', '$claim', 1, 0)");
depths_become('renewed', '4|0|0', 'and ends');

# A row is locked while its claim ends, by plain SQL, and the transaction is
# rolled back; and one that was deleted then.
queue('locked', 4);
$claim = claim($one, 'locked', 4, 5);
query($one, 'BEGIN');
query($one, q{SELECT count(*) FROM (SELECT FROM queue_data.message_0
	WHERE (body#>>'{}') IN ('1', '2')
	  AND queue_id = (SELECT id FROM queue_data.queue WHERE name = 'locked')
	FOR UPDATE) AS m});
query($two, 'BEGIN');
query($two, "SELECT message_delete('locked', max(id), '$claim')
	FROM claim_messages('locked', '$claim')");
sleep 5.5;
is(depths('locked'), '1|3|0', 'claims end, of which others have locked messages');
query($_, 'ROLLBACK') for $one, $two;
depths_become('locked', '4|0|0', 'they are counted when they are unlocked');

# Messages whose claim has ended are claimed again, in a transaction that is
# rolled back, deleted, popped and moved.
queue('again', 6);
for my $end ('ROLLBACK', 'COMMIT')
{
	claim($one, 'again', 6, 1);
	sleep 1.2;
	query($one, 'BEGIN');
	claim($one, 'again', 2, 1);
	query($one, "SELECT FROM queue_pop('again')");
	query($one, "SELECT message_delete('again', max(id)) FROM queue_messages('again')");
	query($one, $end);
	status_is_right("messages of a claim that has ended are changed: $end");
}
depths_become('again', '4|0|0', 'what is left');

# A claim that ends in the same moment as it is read: many short ones
queue('short', 200);
query($one, q{DO $$ BEGIN FOR i IN 1..40 LOOP
	PERFORM queue_claim('short', 1, 0, 5); COMMIT; PERFORM pg_sleep(0.05);
	END LOOP; END $$});
depths_become('short', '200|0|0', 'claims that end one after the other');

# A message that is claimed too often, and cannot become a dead letter now
queue('dead', 2, '{"_max_claim_count": 1}');
query($one, 'BEGIN');
query($one, "SELECT queue_purge('dead.dead')");
$claim = claim($two, 'dead', 2, 600);
query($two, "SELECT claim_release('dead', '$claim', failed => true)");
status_is_right('messages that wait for the dead letter queue');
query($one, 'COMMIT');
ok( $node->poll_query_until(
		'postgres',
		q{SELECT dead_letters = 2 FROM queue_data.queue_status WHERE name = 'dead'}),
	'they come there');
status_is_right('and are counted there');

# Claims end in all priorities while others go on, which are more ranges than an
# availability map and the worker have room for.  The worker finds all of them
# when it starts, and is done with them once.
value(q{SELECT count(queue_push('many', '1')) FROM generate_series(1, 1500);
	SELECT count(queue_push('many', '1', priority => 1 + i % 9)) FROM generate_series(1, 90) AS i});
value(q{DO $$ BEGIN
	PERFORM queue_claim('many', 4, 0, 90);
	FOR i IN 0..149 LOOP
		PERFORM queue_claim('many', ('{4, 300, 3000}'::int[])[1 + i % 3], 0, 10);
	END LOOP; END $$;
	SELECT count(queue_push('many', '1', priority => 8 + i % 2)) FROM generate_series(1, 10) AS i;
	SELECT count(*) FROM queue_claim('many', 3000, 0, 10)});
kill_worker();
depths_become('many', '590|1010|0', 'claims end in all priorities');
ok( $node->poll_query_until(
		'postgres', q{SELECT state = 'idle' FROM queue_data.queue_workers}),
	'and the worker sleeps then');

#
# Delayed messages that a claim has given to their groups, and not taken
#

value(q{SELECT queue_push('groups', to_jsonb(i), delay => 3, group_key => (i % 3)::text)
	FROM generate_series(1, 30) AS i});
is(depths('groups'), '0|0|30', 'delayed messages of groups');
query($one, q{DO $$ BEGIN FOR i IN 1..6000 LOOP
	EXIT WHEN (SELECT count(*) FROM queue_claim('groups', 600, 0, 1)) > 0;
	COMMIT; PERFORM pg_sleep(0.01); END LOOP; END $$});
status_is_right('are due, and one of them is claimed');
depths_become('groups', '29|1|0', 'the others are ready');

#
# All messages are counted while transactions change them.  One queue is large, so
# that it is counted in parts.
#

value(q{CREATE TABLE stop (); CREATE PROCEDURE work() LANGUAGE plpgsql AS $$
DECLARE
    q text;
    first bigint := (SELECT min(id) FROM large);
    step bigint := (SELECT (max(id) - min(id)) / 11999 FROM large);
BEGIN
    WHILE NOT EXISTS (SELECT FROM stop) LOOP
        q := 'w' || floor(random() * 5);
        PERFORM queue_push_batch(q, ARRAY(SELECT to_jsonb(g) FROM generate_series(1, 3) AS g));
        IF random() < 0.2 THEN PERFORM queue_push(q, '1', delay => 1); END IF;
        IF random() < 0.2 THEN ROLLBACK; ELSE COMMIT; END IF;
        PERFORM queue_claim(q, 1 + (random() * 3)::int, 0, 4);
        COMMIT;
        BEGIN
            PERFORM message_delete('w0', first + (random() * 12000)::int * step);
        EXCEPTION
            WHEN SQLSTATE 'QU003' THEN NULL;    -- it is claimed
        END;
        IF random() < 0.2 THEN PERFORM queue_push('w0', '1', priority => 5); END IF;
        IF random() < 0.1 THEN PERFORM pg_sleep(0.05); END IF;
        COMMIT;
        PERFORM queue_pop(q, 1);
        PERFORM count(claim_complete(q, claim_id))
        FROM (SELECT DISTINCT claim_id FROM queue_claim(q, 600, 0, 2)) AS c;
        IF random() < 0.2 THEN ROLLBACK; ELSE COMMIT; END IF;
        PERFORM count(claim_release(q, claim_id, failed => true))
        FROM (SELECT DISTINCT claim_id FROM queue_claim(q, 600, 0, 2)) AS c;
        COMMIT;
    END LOOP;
END
$$});
value("SELECT count(queue_create('w' || i)) FROM generate_series(0, 4) AS i");
value(q{CREATE TABLE large AS SELECT unnest(queue_push_batch('w0', array_fill('1'::jsonb, '{1000}'))) AS id
	FROM generate_series(1, 12)});
my @workers = map { $node->background_psql('postgres') } 1 .. 4;

for my $round (1 .. 5)
{
	my $before = recounts();
	for my $session (@workers)
	{
		$session->{stdin} .= "CALL work();\n";
		$session->{run}->pump_nb;
	}

	# The worker counts when it starts.
	ok( $node->poll_query_until(
			'postgres',
			q{SELECT count(*) = 4 FROM pg_stat_activity WHERE query ~ '^CALL work'}),
		"round $round: sessions change messages");
	my $until = time + 60;
	kill_worker();
	while (recounts() == $before && time < $until)
	{
		sleep 0.02;
	}
	ok(recounts() > $before, "round $round: all messages are counted meanwhile");
	value('INSERT INTO stop DEFAULT VALUES');
	$_->query_safe('SELECT 1') for @workers;
	value('DELETE FROM stop');
	my $after = recounts();
	status_is_right("round $round: the counts are right");
	is(recounts(), $after, "round $round: and messages were not counted again");
}
$_->quit for @workers;

#
# A crash
#

$_->quit for $one, $two;
$node->stop('immediate');
$node->start;
status_is_right('after a crash');
value(q{SELECT queue_push('mixed', '1')});
status_is_right('and goes on from there');

$node->stop;
done_testing();
