# Sessions that listen to a queue are notified of what becomes free there, by
# few notifications; not of what is rolled back, nor of a paused queue.
#
# test/check -q runs it, too.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../perl";

use List::Util qw(min);
use Test::More;
use Time::HiRes qw(sleep time);
use WorkerTest;

start_server();

# --- channel and payload ---

my $channel = value(q{SELECT queue_channel('c')});
like($channel, qr/^queue_[0-9a-f]{32}$/, 'a channel is a plain identifier');
is( value(
		q{SET queue.project = 'p'; SELECT count(DISTINCT c) FROM (VALUES (queue_channel('c')), (queue_channel('C')), (queue_channel('d')), ('}
		  . $channel
		  . q{')) AS v (c); RESET queue.project}),
	'4',
	'project and name make it');
my $long = 'x' x 60 . '-./:';
listen_to($long);
value("SELECT queue_push('$long', '1')");
ok(wait_to_hear($long), 'the payload is the name');

# --- many pushes, one notification ---

listen_to('g');
value(q{SELECT queue_create('g')});
value(q{ALTER SYSTEM SET queue.worker_naptime = '200ms'});
value(q{SELECT pg_reload_conf()});
ok( $node->poll_query_until(
		$db, q{LOAD 'queue';
		SELECT setting = '200' FROM pg_settings WHERE name = 'queue.worker_naptime'}
	),
	'naptime set');
forget_heard();
my $sent = workers('notifications');
my $began = time;
$node->safe_psql($db, "SELECT queue_push('g', '1');\n" x 500);
my @all = forget_heard();
my $n = grep { $_ eq 'g' } @all;
cmp_ok($n, '>=', 1, 'listeners are notified of 500 pushes');
cmp_ok($n, '<=', min(400, 2 + 5 * (time - $began)), 'by few notifications, five in a second at most');
cmp_ok(workers("notifications - $sent"),
	'>=', scalar(@all), 'which are counted');
note "500 pushes: $n notifications";
value(q{ALTER SYSTEM RESET queue.worker_naptime});
value(q{SELECT pg_reload_conf()});

# The worker is stopped until the transaction has ended: while it commits, the worker may
# find some of the messages before the others.
my $stopped = stop_sleeping();
value(q{SELECT count(queue_push_batch('g', (SELECT array_agg(to_jsonb(i)) FROM generate_series(1, 1000) AS i)))});
kill 'CONT', $stopped;
@all = forget_heard();
is(scalar(grep { $_ eq 'g' } @all), 1, 'one for all of a transaction');

# --- rollback ---

listen_to('h', 'h2');
value('BEGIN');
value(q{SELECT queue_push('h', '1')});
value('ROLLBACK');
value('BEGIN');
value(q{SELECT queue_push('h2', '1')});
value('SAVEPOINT s');
value(q{SELECT queue_push('h', '1')});
value('ROLLBACK TO s');
value('COMMIT');
@all = forget_heard();
is(scalar(grep { $_ eq 'h' } @all), 0, 'no notification of a push that was rolled back');
is(scalar(grep { $_ eq 'h2' } @all), 1, 'one of what else was pushed');
forget_heard();
value('BEGIN');
value(q{SELECT FROM queue_claim('h2', 600, 0)});
value('ROLLBACK');
ok(wait_to_hear('h2'), 'listeners are notified of a claim that was rolled back');

# --- pause and resume ---

listen_to('i');
value(q{SELECT queue_push('i', '1', delay => 1)});
value(q{SELECT queue_pause('i')});
forget_heard();
value(q{SELECT queue_push('i', '2')});
sleep 1.2;
is(scalar(grep { $_ eq 'i' } forget_heard()),
	0, 'no notification of a paused queue');
value(q{SELECT queue_resume('i')});
ok(wait_to_hear('i'), 'a notification when it is resumed');

stop_server();
done_testing();
