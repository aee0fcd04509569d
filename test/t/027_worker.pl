# What the worker of a database does by itself, and whom it tells: claims that
# run out, dead letters, lifetimes, delays, pauses; and that it sleeps when
# nothing is due.

use strict;
use warnings;

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(sleep time);

# Seconds after which what is due must be done; alone on a machine it takes a
# few milliseconds.
my $bound = 1;

my $node = PostgreSQL::Test::Cluster->new('main');
$node->init;
$node->append_conf(
	'postgresql.conf', q{
shared_preload_libraries = 'queue'
autovacuum = off
queue.min_claim_ttl = 1
queue.min_claim_grace = 0
queue.min_message_ttl = 1
queue.max_claim_limit = 10000
});
$node->start;
$node->safe_psql('postgres', 'CREATE EXTENSION queue');

my $db = 'postgres';
my $one = $node->background_psql($db);
my $listener = $node->background_psql($db);
my @heard;    # payloads, in the order in which they came

sub value
{
	my ($sql) = @_;
	return $one->query_safe($sql);
}

sub listen_to
{
	foreach my $q (@_)
	{
		my $channel = value("SELECT queue_channel('$q')");
		hear("LISTEN $channel");
	}
	return;
}

# psql shows notifications after a command.
sub hear
{
	my ($sql) = @_;
	my $output = $listener->query_safe(defined $sql ? $sql : 'SELECT');
	push @heard, $1
	  while $output =~ /notification "\w+" with payload "([^"]*)"/g;
	return;
}

sub times_heard
{
	my ($q) = @_;
	return scalar(grep { $_ eq $q } @heard);
}

# Waits until this queue was told of; returns when it was, 0 if it was not.
sub wait_to_hear
{
	my ($q, $seconds) = @_;
	my $until = time + (defined $seconds ? $seconds : 20);

	for (;;)
	{
		hear();
		return time if times_heard($q) > 0;
		return 0 if time >= $until;
		sleep 0.01;
	}
}

# All notifications of what happened up to now have come.
my $sentinels = 0;

sub forget_heard
{
	my $q = 'sentinel' . ++$sentinels;
	listen_to($q);
	value("SELECT queue_push('$q', '1')");
	wait_to_hear($q) or die "no notification of $q";
	my @all = @heard;
	@heard = ();
	return @all;
}

sub workers
{
	my ($column) = @_;
	return value(
		"SELECT $column FROM queue_data.queue_workers WHERE database = current_database()"
	);
}

sub worker_pid
{
	return value(
		q{SELECT pid FROM pg_stat_activity WHERE backend_type = 'queue worker' AND datname = current_database()}
	);
}

# The worker sleeps, and nothing will be due soon.
sub wait_until_idle
{
	return $node->poll_query_until(
		$db, q{
		SELECT state = 'idle' AND coalesce(next_run > now() + interval '10 s', true)
		FROM queue_data.queue_workers WHERE database = current_database()});
}

# Which queues queue_ready() names, of those with this prefix
sub ready
{
	return value(
		q{SELECT coalesce(string_agg(r, ' ' ORDER BY r), '') FROM queue_ready() AS r WHERE r ~ '^r\d'}
	);
}

sub becomes_ready
{
	my ($expected, $what) = @_;
	my $until = time + 10;
	my $got;

	while (($got = ready()) ne $expected && time < $until)
	{
		sleep 0.02;
	}
	is($got, $expected, $what);
	return;
}

# --- who is there ---

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

# --- claims that run out ---

listen_to('a');
value(q{SELECT queue_push('a', '"a1"')});
ok(wait_to_hear('a'), 'a push is told');
forget_heard();
my $ended = workers('expired_claims');
my $expiry = value(
	q{SELECT extract(epoch FROM expires_at) FROM (SELECT claim_id FROM queue_claim('a', 1, 0)) AS c, claim_get('a', c.claim_id)}
);
is(workers('next_run BETWEEN now() AND now() + interval \'1 s\''),
	't', 'the view says when the worker will run');
my $told = wait_to_hear('a');
cmp_ok($told, '>=', $expiry, 'nobody is told before a claim is over');
cmp_ok($told - $expiry, '<', $bound, 'and soon after it is');
note sprintf 'claim over: told after %.1f ms', ($told - $expiry) * 1000;
is(workers("expired_claims - $ended"), '1', 'one expired claim is counted');
is(value(q{SELECT body FROM queue_pop('a')}), '"a1"', 'the message is free');

# A claim that was renewed, one that was released and one that was completed
listen_to('b');
value(q{SELECT FROM queue_push_batch('b', ARRAY['1', '2', '3']::jsonb[])});
forget_heard();
my @claims = map {
	value(q{SELECT claim_id FROM queue_claim('b', 1, 0, 1)})
} (1 .. 3);
value("SELECT claim_renew('b', '$claims[0]', 3000), claim_complete('b', '$claims[1]')");
value("SELECT claim_release('b', '$claims[2]')");
ok(wait_to_hear('b'), 'a release is told');
forget_heard();

# One that runs out between two that do later
value(q{SELECT FROM queue_push_batch('between', ARRAY['1', '2', '3']::jsonb[])});
listen_to('between');
forget_heard();
$ended = workers('expired_claims');
value("SELECT FROM queue_claim('between', $_, 0, 1)") foreach 3, 1, 3;
ok(wait_to_hear('between'), 'the first to run out is told');
is(workers("expired_claims - $ended"), '1', 'and counted');
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
is(times_heard('d'), 0, 'nothing came free there');

# Many claims that end one after the other within a second; every second one
# was the last, those between come free.
value(q{SELECT queue_create('m', '{"_max_claim_count": 2}')});
value(q{SELECT count(queue_push_batch('m', (SELECT array_agg(to_jsonb(i)) FROM generate_series(1, 2000) AS i)))}
);
$dead = workers('dead_letters');
value(
	q{DO $$
	DECLARE
		until timestamptz := clock_timestamp() + interval '3 s';
		ttl int;
		claim text;
	BEGIN
		FOR i IN 1 .. 2000 LOOP
			ttl := greatest(1, ceil(extract(epoch FROM until - clock_timestamp())));
			SELECT claim_id INTO claim FROM queue_claim('m', ttl, 0, 1);
			IF i % 2 = 0 THEN
				PERFORM claim_release('m', claim), queue_claim('m', ttl, 0, 1);
			END IF;
			IF i % 20 = 0 THEN
				COMMIT;
				PERFORM pg_sleep(0.005);
			END IF;
		END LOOP;
	END $$});
my $until = time + 8;
while (workers("dead_letters - $dead") < 1000 && time < $until)
{
	sleep 0.1;
}
is(workers("dead_letters - $dead"),
	'1000', 'so do many claims, between messages that come free');
is( value(
		q{SELECT count(*), count(DISTINCT body) FROM queue_dead_letters('m.dead', 2000)}
	),
	'1000|1000',
	'each once');

# --- what was claimed above and lives on ---

forget_heard();
is( value(qq{SELECT message_count FROM claim_get('b', '$claims[0]')}),
	'1',
	'a renewed claim goes on');
is(times_heard('b'), 0, 'and nobody is told otherwise');

# --- lifetimes ---

my $rows = q{SELECT count(*) FROM queue_data.message WHERE queue = 'e'};
my $removed = workers('removed');
value(q{SELECT queue_push('e', '"short"', ttl => 1)});
value(q{SELECT queue_push('e', '"long"', ttl => 600)});
value(q{SELECT queue_push('e', '"claimed"', ttl => 1, priority => 9)});
my $held = value(q{SELECT claim_id FROM queue_claim('e', 4, 0, 1)});
ok($node->poll_query_until($db, $rows, '2'), 'an expired message is removed');
sleep 1;
is(value($rows), '2', 'one that is claimed is not');
is(value(qq{SELECT body FROM claim_messages('e', '$held')}),
	'"claimed"', 'it is still in the claim');
ok($node->poll_query_until($db, $rows, '1'),
	'which ends without grace, and the message with it');
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
value(q{SELECT queue_push('f', '1', delay => 1)});
my $due = value(
	q{SELECT extract(epoch FROM due_at) FROM queue_data.message WHERE queue = 'f'}
);
$told = wait_to_hear('f');
cmp_ok($told, '>=', $due, 'a delayed message is told when it is due');
cmp_ok($told - $due, '<', $bound, 'and soon');
note sprintf 'delay over: told after %.1f ms', ($told - $due) * 1000;
is(scalar(grep { $_ eq 'f' } forget_heard()), 1, 'once');
is(value(q{SELECT count(*) FROM queue_claim('f', 60, 0)}), '1', 'it is free');

# a release with a delay
$held = value(
	q{SELECT queue_push('f', '2'); SELECT claim_id FROM queue_claim('f', 60, 0)});
$held =~ s/^\d+\n//;
forget_heard();
value("SELECT claim_release('f', '$held', 1)");
my $before = time;
$told = wait_to_hear('f');
cmp_ok($told - $before, '>', 0.5, 'a release with a delay is not told at once');
cmp_ok($told - $before, '<', 1 + $bound, 'but when it is due');

# --- many pushes, one notification ---

listen_to('g');
value(q{SELECT queue_create('g')});
value(q{ALTER SYSTEM SET queue.worker_naptime = '200ms'});
value(q{SELECT pg_reload_conf()});
ok( $node->poll_query_until(
		$db, q{SELECT setting = '200' FROM pg_settings WHERE name = 'queue.worker_naptime'}
	),
	'naptime set');
forget_heard();
my $sent = workers('notifications');
$node->safe_psql($db, "SELECT queue_push('g', '1');\n" x 500);
my @all = forget_heard();
my $n = grep { $_ eq 'g' } @all;
cmp_ok($n, '>=', 1, '500 pushes are told');
cmp_ok($n, '<', 100, 'by few notifications');
cmp_ok(workers("notifications - $sent"),
	'>=', scalar(@all), 'which are counted');
note "500 pushes: $n notifications";
value(q{ALTER SYSTEM RESET queue.worker_naptime});
value(q{SELECT pg_reload_conf()});

value(q{SELECT count(queue_push_batch('g', (SELECT array_agg(to_jsonb(i)) FROM generate_series(1, 1000) AS i)))});
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
is(scalar(grep { $_ eq 'h' } @all), 0, 'a push rolled back is not told');
is(scalar(grep { $_ eq 'h2' } @all), 1, 'what else was pushed is');
forget_heard();
value('BEGIN');
value(q{SELECT FROM queue_claim('h2', 60, 0)});
value('ROLLBACK');
ok(wait_to_hear('h2'), 'a claim rolled back is told');

# --- pause and resume ---

listen_to('i');
value(q{SELECT queue_push('i', '1', delay => 1)});
value(q{SELECT queue_pause('i')});
forget_heard();
value(q{SELECT queue_push('i', '2')});
sleep 1.2;
is(scalar(grep { $_ eq 'i' } forget_heard()),
	0, 'of a paused queue nobody is told');
value(q{SELECT queue_resume('i')});
ok(wait_to_hear('i'), 'of one that goes on, listeners are');

# --- queue_ready ---

is(ready(), '', 'no queue is ready yet');
value(q{SELECT queue_create('r1')});
value(q{SELECT queue_push('r2', '1')});
is(ready(), 'r2', 'a push makes one ready');
value('BEGIN');
value(q{SELECT queue_push('r3', '1')});
is(ready(), 'r2 r3', 'a push of the own transaction too');
value('ROLLBACK');
is(ready(), 'r2', 'until it is rolled back');
value(q{SET queue.project = 'p'});
is(ready(), '', 'not in another project');
value(q{SELECT queue_push('r4', '1')});
is(ready(), 'r4', 'which has its own');
value(q{RESET queue.project});
is(ready(), 'r2', 'and this one has not');
value(q{SELECT FROM queue_claim('r2', 1, 0)});
is(ready(), '', 'a claim takes the last message');
becomes_ready('r2', 'and gives it back when it is over');
value(q{SELECT FROM queue_push_batch('r1', ARRAY['1', '2']::jsonb[])});
is(ready(), 'r1 r2', 'two are ready');
value(q{SELECT FROM queue_pop('r1')});
is(ready(), 'r1 r2', 'one of two messages is gone');
value(q{SELECT FROM queue_pop('r1')});
is(ready(), 'r2', 'both are');
value(q{SELECT queue_pause('r2')});
is(ready(), '', 'a paused queue is not ready');
value(q{SELECT queue_push('r2', '2')});
is(ready(), '', 'whatever is pushed');
value(q{SELECT queue_resume('r2')});
is(ready(), 'r2', 'one that goes on is');
value(q{SELECT queue_push('r5', '1', delay => 1)});
is(ready(), 'r2', 'a delayed message does not count');
becomes_ready('r2 r5', 'until it is due');
value(q{SELECT queue_push('r6', '1', ttl => 1)});
is(ready(), 'r2 r5 r6', 'a message that will expire');
$node->poll_query_until($db,
	q{SELECT total = 0 FROM queue_stats('r6')});
is(ready(), 'r2 r5', 'and one that has');
value(q{SELECT queue_purge('r5')});
is(ready(), 'r2', 'a purged queue');
value(q{SELECT queue_push('r7', '1'), queue_drop('r7')});
is(ready(), 'r2', 'a dropped one');
value(q{SELECT queue_push('r8', '1', delay => 3), queue_push('r9', '1')});
value(q{SELECT FROM queue_claim('r9', 3, 0)});
value(q{CREATE ROLE outsider; CREATE ROLE consumer IN ROLE queue_consumer});
value(q{SELECT queue_push('r10', '1')});
value(q{SELECT queue_grant('r10', 'outsider', 'claim')});
value(q{SET ROLE consumer});
is(ready(), 'r2', 'of the others only those that one may claim from');
value(q{RESET ROLE});
value(q{SELECT queue_drop('r10')});

# --- restart ---

sub reconnect
{
	$one = $node->background_psql($db);
	$listener = $node->background_psql($db);
	@heard = ();
	return;
}

$_->quit foreach ($one, $listener);
$node->restart;
reconnect();
is(ready(), 'r2', 'after a restart, at once');
ok( $node->poll_query_until(
		$db, q{SELECT state IN ('idle', 'busy') FROM queue_data.queue_workers WHERE database = 'postgres'}
	),
	'the worker is back');
becomes_ready('r2 r8 r9', 'what was due is seen to');
value(q{SELECT queue_purge('r2'), queue_purge('r8'), queue_purge('r9')});
is(ready(), '', 'nothing is left');

# --- termination ---

sub comes_back
{
	my ($pid, $what) = @_;
	ok( $node->poll_query_until(
			$db,
			"SELECT count(*) = 1 FROM pg_stat_activity WHERE backend_type = 'queue worker' AND datname = 'postgres' AND pid <> $pid"
		),
		$what);
	return;
}

my $pid = worker_pid();
listen_to('t');
value(q{SELECT queue_push('t', '1', delay => 1)});
value("SELECT pg_terminate_backend($pid)");
value(q{SELECT queue_push('r1', '1')});
is(ready(), 'r1', 'queue_ready without a worker');
comes_back($pid, 'a worker that was terminated comes back');
ok(wait_to_hear('t'), 'and tells what has become due');
value(q{SELECT queue_purge('r1')});

# --- no workers ---

value(q{ALTER SYSTEM SET queue.database_workers = 0});
value(q{SELECT pg_reload_conf()});
ok( $node->poll_query_until(
		$db, q{SELECT count(*) = 0 FROM pg_stat_activity WHERE backend_type = 'queue worker'}
	),
	'queue.database_workers = 0 sends the worker away');
value(q{SELECT queue_push('r1', '1'), queue_push('r2', '1', delay => 1)});
value(q{SELECT FROM queue_claim('r1', 1, 0)});
is(ready(), '', 'without a worker: nothing is ready');
becomes_ready('r1 r2', 'without a worker: what is due is');
value(q{SELECT queue_pop('r1'), queue_pop('r2')});
is(ready(), '', 'without a worker: nothing is left');
value(q{ALTER SYSTEM RESET queue.database_workers});
value(q{SELECT pg_reload_conf()});
comes_back(0, 'and back');

# --- a thousand queues, and nothing due ---

value(q{SELECT count(queue_push('many' || i, '1')) FROM generate_series(1, 1000) AS i});
ok(wait_until_idle(), 'idle with a thousand queues');
is(value('SELECT count(*) FROM queue_ready()'),
	value(q{SELECT count(DISTINCT queue) FROM queue_data.message WHERE state = 'free' AND project = ''}),
	'all of them are ready');
sleep 1.5;    # what is doubtful is looked at once a second
my $rounds = workers('rounds');
sleep 3;
is(workers('rounds'), $rounds, 'nothing runs while nothing is due');

# also while a new worker is still looking
$_->quit foreach ($one, $listener);
$node->restart;
reconnect();
my %counts;
$until = time + 1;
while (time < $until)
{
	$counts{ value('SELECT count(*) FROM queue_ready()') } = 1;
}
is( join(' ', keys %counts),
	value(
		q{SELECT count(DISTINCT queue) FROM queue_data.message WHERE state = 'free' AND project = ''}
	),
	'all of them are ready while a worker starts');

# --- twenty thousand claims that run out within a second ---

# What it takes to push, claim and complete elsewhere: milliseconds, as many
# times as were asked for
sub latencies
{
	my ($times) = @_;
	my @ms;

	foreach (1 .. $times)
	{
		my $start = time;
		value(
			q{SELECT FROM queue_push('quick', '1'); SELECT claim_complete('quick', claim_id) FROM queue_claim('quick', 60, 0, 1)}
		);
		push @ms, (time - $start) * 1000;
	}
	@ms = sort { $a <=> $b } @ms;
	return @ms;
}

value(q{SELECT queue_create('big')});
value(
	q{SELECT count(queue_push_batch('big', (SELECT array_agg(to_jsonb(i)) FROM generate_series(1, 2000) AS i))) FROM generate_series(1, 10)}
);
my @normal = latencies(100);
$ended = workers('expired_claims');
my $target = value(q{SELECT extract(epoch FROM clock_timestamp())}) + 5;
my $claimers = 'DO $$
	BEGIN
		FOR i IN 1 .. 20000 LOOP
			PERFORM FROM queue_claim(\'big\', greatest(1, ceil('
  . $target
  . ' - extract(epoch FROM clock_timestamp()))::int), 0, 1);
			IF i % 100 = 0 THEN COMMIT; END IF;
		END LOOP;
	END $$';
value($claimers);
cmp_ok(value(q{SELECT extract(epoch FROM clock_timestamp())}),
	'<', $target + 20, 'claims made');
is(value(q{SELECT claimed FROM queue_stats('big')}),
	'20000', 'twenty thousand claims');
my @during;
my $start = time;
my $began = 0;
my $last_seen = 0;

while (time < $start + 30)
{
	push @during, latencies(10);
	my $so_far = workers("expired_claims - $ended");
	$began = time if $so_far > 0 && !$began;
	last if $so_far >= 20000;
	last if $began && $so_far == $last_seen && time > $began + 5;
	$last_seen = $so_far;
	@during = () if $so_far == 0;
}
is(workers("expired_claims - $ended"), '20000', 'all are worked off');
note sprintf 'worked off in %.2f s', time - $began;
@during = sort { $a <=> $b } @during;
note sprintf 'elsewhere, ms: p50 %.2f, max %.2f; before: p50 %.2f, max %.2f',
  $during[ @during / 2 ], $during[-1], $normal[ @normal / 2 ], $normal[-1];
cmp_ok($during[-1], '<', 1000, 'and hold up nobody');
cmp_ok($during[ @during / 2 ],
	'<', 4 * $normal[ @normal / 2 ] + 10,
	'nor slow down');
is(value(q{SELECT free FROM queue_stats('big')}), '20000', 'all are free');
is(value(q{SELECT body FROM queue_claim('big', 60, 0, 1)}),
	'1', 'in their old order');

# --- nothing else in the log ---

is(workers('last_error'), '', 'no error');
my $log = slurp_file($node->logfile);
unlike($log, qr/^.*(?:PANIC|TRAP|ERROR|WARNING):.*$/m, 'no error in the log');

$_->quit foreach ($one, $listener);
$node->stop;
done_testing();
