# What the worker of a database does when it is due, and how soon: claims that
# run out, dead letters, lifetimes, delays.  It sleeps when nothing is due.
#
# test/check -q runs it, too.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../perl";

use Test::More;
use Time::HiRes qw(sleep time);
use WorkerTest;

start_server();

# --- processes ---

ok( $node->poll_query_until(
		$db, q{SELECT count(*) = 1 FROM pg_stat_activity WHERE backend_type = 'queue worker' AND datname = 'postgres'}
	),
	'one worker');
is( value(
		q{SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'queue launcher'}),
	'1',
	'one launcher');
ok(wait_until_idle(), 'the worker is idle');
is(workers('pid'), worker_pid(), 'the view names its process');
is( workers(
		'last_error IS NULL AND last_error_at IS NULL AND last_run <= now() AND rounds > 0 AND next_run IS NULL'
	),
	't',
	'the view: nothing happened and nothing is due');

# Once it has nothing else to do, it will run then.
sub is_due
{
	my ($condition, $when) = @_;

	ok( $node->poll_query_until($db,
			"SELECT $condition FROM queue_data.queue_workers WHERE database = current_database()"),
		"the worker will run when $when");
	return;
}

# --- claims that run out ---

listen_to('a');
value(q{SELECT queue_push('a', '"a1"')});
ok(wait_to_hear('a'), 'listeners are notified of a push');
forget_heard();
my $ended = workers('expired_claims');
my $claim = value(q{SELECT claim_id FROM queue_claim('a', 600, 0)});
my $expires = qq{(SELECT expires_at FROM claim_get('a', '$claim'))};
is_due("next_run - $expires BETWEEN interval '0' AND interval '100 ms'", 'the claim has run out');
my $expiry = value("SELECT claim_renew('a', '$claim', 1, 0); SELECT extract(epoch FROM $expires)");
$expiry =~ s/.*\n//;
my $heard_at = wait_to_hear('a');
cmp_ok($heard_at, '>=', $expiry, 'no notification before a claim has run out');
note sprintf 'claim run out: notified after %.1f ms', ($heard_at - $expiry) * 1000;
is(workers("expired_claims - $ended"), '1', 'one expired claim is counted');
is(value(q{SELECT body FROM queue_pop('a')}), '"a1"', 'the message is free');

# A claim that was renewed, one that was released and one that was completed
listen_to('b');
value(q{SELECT FROM queue_push_batch('b', ARRAY['1', '2', '3']::jsonb[])});
forget_heard();
my @claims = map {
	value("SELECT claim_id FROM queue_claim('b', $_, 0, 1)")
} 10, 600, 600;
value("SELECT claim_renew('b', '$claims[0]', 3000), claim_complete('b', '$claims[1]')");
value("SELECT claim_release('b', '$claims[2]', failed => true)");
ok(wait_to_hear('b'), 'listeners are notified of a release');
forget_heard();

# One that runs out between two that do later
value(q{SELECT FROM queue_push_batch('between', ARRAY['1', '2', '3']::jsonb[])});
listen_to('between');
forget_heard();
$ended = workers('expired_claims');
my @between = map { value("SELECT claim_id FROM queue_claim('between', $_, 0, 1)") } 600, 1, 600;
ok(wait_to_hear('between'), 'listeners are notified when the first runs out');
is(workers("expired_claims - $ended"), '1', 'and counted');
value("SELECT claim_renew('between', '$_', 1, 0)") foreach @between[ 0, 2 ];
ok( $node->poll_query_until(
		$db, "SELECT free = 3 FROM queue_stats('between')"),
	'the others run out');
wait_until_idle();
is(workers("expired_claims - $ended"), '3', 'each claim is counted once');

# --- dead letters ---

value(q{SELECT queue_create('d', '{"_max_claim_count": 1}')});
listen_to('d', 'd.dead');
value(q{SELECT queue_push('d', '"d1"')});
forget_heard();
my $dead = workers('dead_letters');
value(q{SELECT FROM queue_claim('d', 1, 0)});
ok(wait_to_hear('d.dead'),
	'a claim that was the last one makes a dead letter by itself');
is( value(
		q{SELECT body, origin_queue, reason, claim_count FROM queue_dead_letters('d.dead')}),
	'"d1"|d|max_claim_count|1',
	'which says where it came from');
is(value(q{SELECT total FROM queue_stats('d')}),
	'0', 'and has left its queue');
is(workers("dead_letters - $dead"), '1', 'one dead letter is counted');
is(times_heard('d'), 0, 'no notification there');

# Many claims that end one after the other within seconds; every second one was the
# last, the messages between become free.
value(q{SELECT queue_create('m', '{"_max_claim_count": 2}')});
value(q{SELECT count(queue_push_batch('m', (SELECT array_agg(to_jsonb(i)) FROM generate_series(1, 2000) AS i)))}
);
$dead = workers('dead_letters');
value(
	q{CREATE TEMP TABLE ending (i int, claim text);
	DO $$
	DECLARE
		c text;
	BEGIN
		FOR i IN 1 .. 2000 LOOP
			SELECT claim_id INTO c FROM queue_claim('m', 600, 0, 1);
			IF i % 2 = 0 THEN
				PERFORM claim_release('m', c, failed => true);
				SELECT claim_id INTO c FROM queue_claim('m', 600, 0, 1);
			END IF;
			INSERT INTO ending VALUES (i, c);
			IF i % 20 = 0 THEN
				COMMIT;
			END IF;
		END LOOP;
		FOR n IN 0 .. 99 LOOP
			PERFORM claim_renew('m', claim, 1, 0) FROM ending
			WHERE i > 20 * n AND i <= 20 * n + 20;
			COMMIT;
			PERFORM pg_sleep(0.005);
		END LOOP;
	END $$});
my $until = time + 180;
while (workers("dead_letters - $dead") < 1000 && time < $until)
{
	sleep 0.1;
}
is(workers("dead_letters - $dead"),
	'1000', 'so do many claims, between messages that become free');
is( value(
		q{SELECT count(*), count(DISTINCT body) FROM queue_dead_letters('m.dead', 2000)}
	),
	'1000|1000',
	'each once');

# --- claims made above that are still live ---

forget_heard();
is( value(qq{SELECT message_count FROM claim_get('b', '$claims[0]')}),
	'1',
	'a renewed claim goes on');
is(times_heard('b'), 0, 'and there is no other notification');

# --- lifetimes ---

my $rows = q{SELECT count(*) FROM queue_data.message WHERE queue = 'e'};
my $removed = workers('removed');
value(q{SELECT queue_push('e', '"short"', ttl => 1)});
value(q{SELECT queue_push('e', '"long"', ttl => 600)});
my $held = value(q{BEGIN; SELECT queue_push('e', '"claimed"', ttl => 1, priority => 9) > 0;
	SELECT claim_id FROM queue_claim('e', 4, 0, 1); COMMIT});
$held =~ s/^t\n//;
my $ends = value(qq{SELECT extract(epoch FROM expires_at) FROM claim_get('e', '$held')});
ok($node->poll_query_until($db, "SELECT count(*) = 0 FROM queue_data.message WHERE queue = 'e' AND body = '\"short\"'"),
	'an expired message is removed');
sleep 1;
is( value(qq{SELECT EXISTS (SELECT FROM claim_messages('e', '$held') WHERE body = '"claimed"')
		OR extract(epoch FROM clock_timestamp()) >= $ends}),
	't', 'one that is claimed is not, and is still in the claim');
ok($node->poll_query_until($db, $rows, '1'),
	'which ends without grace, and the message with it');
cmp_ok(time, '>=', $ends, 'not before');
is(workers("removed - $removed"), '2', 'two removed messages are counted');
is(value(q{SELECT body FROM queue_messages('e')}), '"long"', 'the other stays');

# one that is pushed while nothing else is due
value(q{SELECT queue_push('e2', '"long"')});
ok(wait_until_idle(), 'idle again');
value(q{SELECT queue_push('e2', '"short"', ttl => 1)});
ok( $node->poll_query_until(
		$db, q{SELECT count(*) = 1 FROM queue_data.message WHERE queue = 'e2'}),
	'a message that expires when nothing else happens is removed');

# --- delays ---

listen_to('f');
forget_heard();
my $far = value(q{SELECT queue_push('f', '0', delay => 20)});
is_due(qq{next_run - (SELECT due_at FROM queue_data.message WHERE queue = 'f')
	BETWEEN interval '0' AND interval '100 ms'}, 'a message is due');
value("SELECT message_delete('f', $far)");
value(q{SELECT queue_push('f', '1', delay => 1)});
my $due = value(
	q{SELECT extract(epoch FROM due_at) FROM queue_data.message WHERE queue = 'f'}
);
$heard_at = wait_to_hear('f');
cmp_ok($heard_at, '>=', $due, 'listeners are notified of a delayed message when it is due');
note sprintf 'delay over: notified after %.1f ms', ($heard_at - $due) * 1000;
is(scalar(grep { $_ eq 'f' } forget_heard()), 1, 'once');
is(value(q{SELECT count(*) FROM queue_claim('f', 600, 0)}), '1', 'it is free');

# a release with a delay
$held = value(
	q{SELECT queue_push('f', '2'); SELECT claim_id FROM queue_claim('f', 600, 0)});
$held =~ s/^\d+\n//;
forget_heard();
my $before = time;
value("SELECT claim_release('f', '$held', 1, failed => true)");
$heard_at = wait_to_hear('f');
cmp_ok($heard_at - $before, '>=', 1, 'no notification at once of a release with a delay, but when it is due');

stop_server();
done_testing();
