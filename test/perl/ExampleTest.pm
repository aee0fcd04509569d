# What a worker of doc/examples must stand, whatever its language.
#
# The tests do with the worker what a user does: they copy it and change work()
# and what it has in seconds.  Its work can be made to take long: while the
# table "slow" has a row, a message with "sql" sleeps so many seconds in a
# statement, and one with "own" as many in the worker; one with "hold" takes as
# long as the row is there.  One with "weird" fails with an error that PostgreSQL
# cannot store as it is, and one with "leave" in a way that is no error.  One with "stop" takes until the worker is told to
# stop.

package ExampleTest;

use strict;
use warnings;

use Exporter 'import';
use File::Basename;
use HandlerTest;
use IPC::Run;
use PoolTest;
use ClusterTest;
use PostgreSQL::Test::Utils;
use QueueTest qw(becomes_true plant_functions);
use Test::More;
use Time::HiRes qw(sleep time);

our @EXPORT = qw(test_worker);

my $claim = 3;    # seconds

our @command;    # of the worker that is started
my ($dir, @patient, @workers);
my $sessions = q{FROM pg_stat_activity WHERE application_name = 'worker mail'};
my $waiting  = q{query LIKE 'CALL queue_wait%' AND state = 'active'};
my $working  = q{(wait_event = 'PgSleep'
	OR state = 'idle in transaction' AND query ~ 'FROM slow')};
my $holding  = q{state = 'idle in transaction' AND query ~ 'INTO sent|FROM slow'};
my $stepping = q{query = 'COMMIT' AND wait_event = 'PgSleep'};
my $stats = q{SELECT free || ' ' || claimed FROM queue_stats('mail')};
my $sent  = q{SELECT count(*) || ' ' || count(DISTINCT recipient) FROM sent};
my $claims = q{SELECT claimed FROM job_stats('mail')};
my $trace  = qr/Traceback|^ +at /m;

# A worker must not outlive a test that dies.
END
{
	local $?;
	$_->{run}->kill_kill foreach @workers;
}

# Starts a worker, with these variables in its environment.
sub start_worker
{
	my (%environment) = @_;
	my %worker = (output => '');

	local @ENV{qw(PGHOST PGPORT PGUSER PGDATABASE)} =
	  ($node->host, $node->port, 'app', $db);
	local @ENV{ keys %environment } = values %environment;
	$worker{run} = IPC::Run::start(
		\@command, '<', \undef, '>&', \$worker{output},
		init => sub { chdir $dir or die $! });
	push @workers, \%worker;
	return \%worker;
}

# Reads all that it has said.
sub read_output
{
	my ($worker) = @_;
	my $before;
	do
	{
		$before = length $worker->{output};
		$worker->{run}->pump_nb;
	} while (length $worker->{output} > $before);
	return;
}

# It lives, and has said nothing like this since the last call.
sub is_well
{
	my ($worker, $unexpected, $what) = @_;
	read_output($worker);
	ok($worker->{run}->pumpable, "$what: the worker lives");
	unlike($worker->{output}, $unexpected, "$what: without a complaint");
	$worker->{output} = '';
	return;
}

# Messages whose work fails in ways that no step can tell as it is, that cannot be
# parsed, or whose work loses the connection: each costs its message an attempt, the
# message waits, and the worker names it and handles the others.
sub test_unfit
{
	my ($name) = @_;

	value(q{SELECT queue_update('mail', '{"_retry_delay": 3600}'::jsonb);
		ALTER ROLE app SET idle_in_transaction_session_timeout = '2s'});
	my $worker = start_worker();
	are(1, $waiting, 'unfit: it waits');
	value('ALTER ROLE app RESET idle_in_transaction_session_timeout');
	set_slow(1);
	my @ids = map { value("SELECT queue_push('mail', '$_'::jsonb)") }
	  '{"to": "x", "own": 3}', '{"to": "x", "weird": true}', '{"to": "x", "leave": true}', 'null';

	# Node can parse this one.
	push @ids, value(sprintf q{SELECT queue_push('mail', '{"deep": %s%s}'::jsonb)},
		'[' x 3000, ']' x 3000)
	  if $name =~ /py$/;
	push_messages(3);
	becomes($sent, '3 3', 'unfit: the others are handled');
	value('DELETE FROM sent');
	becomes(q{SELECT count(*) FILTER (WHERE claim_count = 1), count(*)
		FROM queue_messages('mail', include_delayed => true)},
		@ids . '|' . @ids, 'unfit: each waits after one attempt');
	becomes_true(q{SELECT bool_and(coalesce(delayed = total, false)) FROM queue_stats('mail')},
		'unfit: none is free');
	set_slow(0);
	read_output($worker);
	my @named = grep { $worker->{output} =~ /message $_: / } @ids;
	is("@named", "@ids", 'unfit: it has named each') or diag($worker->{output});
	end_worker($worker, 'TERM');
	value(q{SELECT queue_purge('mail');
		SELECT queue_update('mail', '{"_retry_delay": 0}'::jsonb)});
	return;
}

# Signals it if told to, and waits until it has ended; returns how.
sub end_worker
{
	my ($worker, $signal) = @_;
	$worker->{run}->signal($signal) if $signal;
	$worker->{run}->finish;
	@workers = grep { $_ != $worker } @workers;
	return $worker->{run}->full_result(0);
}

# The same; returns also how long it took until no message was claimed, by the
# server's clock.
sub end_claim
{
	my ($worker, $signal) = @_;
	my $watch = IPC::Run::start(
		[ 'psql', '-XqAt', '-d', $node->connstr($db), '-f', '-' ],
		'<', \q{
			DO $$BEGIN
				WHILE (SELECT claimed > 0 FROM queue_stats('mail')) LOOP
					PERFORM pg_sleep(0.01);
				END LOOP;
			END$$;
			SELECT extract(epoch FROM clock_timestamp())},
		'>', \my $freed);
	$watch->pump_nb;
	becomes(q{SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'DO %' AND state = 'active'},
		1, 'claims are watched');
	my $start = time;
	my $status = end_worker($worker, $signal);
	$watch->finish;
	return ($status, $freed - $start);
}

sub push_messages
{
	my ($n, $more) = @_;

	$more ||= '{}';
	value(
		qq{SELECT queue_push_batch('mail',
			array_agg(jsonb_build_object('to', gen_random_uuid()) || '$more'))
		FROM generate_series(1, $n)});
	return;
}

# Each of so many messages has been handled once.
sub is_sent
{
	my ($n, $what) = @_;
	becomes($sent, "$n $n", "$what: everything is done once");
	becomes($stats, '0 0', "$what: nothing is left");
	value('DELETE FROM sent');
	return;
}

# So many workers are in this state.
sub are
{
	my ($n, $state, $what) = @_;
	becomes("SELECT count(*) $sessions AND $state", $n, $what);
	return;
}

sub set_slow
{
	my ($on) = @_;
	value('DELETE FROM slow' . ($on ? '; INSERT INTO slow VALUES (1)' : ''));
	return;
}

sub terminate
{
	my ($state) = @_;
	value("SELECT pg_terminate_backend(pid) $sessions AND $state");
	return;
}

# --- the tests ---

sub test_work
{
	push_messages(25);
	my $worker = start_worker();
	is_sent(25, 'what was there');
	are(1, $waiting, 'it waits, and has the name that is expected');
	push_messages(25);
	is_sent(25, 'what arrives');
	is_well($worker, qr/\S/, 'work');

	my $id = value(q{SELECT queue_push('mail', '{"to": "nobody", "fail": true}'::jsonb)});
	push_messages(5);
	becomes(q{SELECT last_error ~ 'no such address' FROM queue_dead_letters('mail.dead')},
		't', 'a failure is retried, and its error is kept');
	is_sent(5, 'beside a failure');
	is_told($worker, $id);
	test_fate($worker);
	return $worker;
}

# A message whose error is permanent is a dead letter at once; one that is canceled
# has no effect, and the worker goes on.
sub test_fate
{
	my ($worker) = @_;

	push_messages(1, '{"bad": true}');
	becomes(
		q{SELECT claim_count, last_error ~ 'no address' FROM queue_dead_letters('mail.dead')
		WHERE reason = 'buried'},
		'1|t', 'a permanent error is not retried');
	set_slow(1);
	push_messages(1, '{"hold": true}');
	are(1, $holding, 'to be canceled: it works');
	is(value(q{SELECT message_cancel('mail', id) FROM queue_messages('mail', include_claimed => true)}),
		'pending', 'to be canceled: it has the message');
	set_slow(0);
	push_messages(5);
	is_sent(5, 'beside a canceled message');
	is_well($worker, $trace, 'a canceled message');
	return;
}

# It has told of the failures of this message, five of five attempts, with their
# count and not each time; with a traceback once.
sub is_told
{
	my ($worker, $id) = @_;

	# The dead letter is there a moment before the worker knows.
	my $until = time + $PostgreSQL::Test::Utils::timeout_default;
	do
	{
		sleep 0.01;
		read_output($worker);
	} until $worker->{output} =~ /dead letter/ || time > $until;
	my @told = $worker->{output} =~
	  /message $id: (attempt \d+ failed(?:, now a dead letter)?)(?=: .*no such address)/g;
	is_deeply(
		\@told,
		[ map({ "attempt $_ failed" } 1, 2, 4), 'attempt 5 failed, now a dead letter' ],
		'it tells of a failure with its count, and not at each attempt');
	my @traces = $worker->{output} =~ /^Traceback|(?:^ +at .*\n)+/mg;
	is(scalar(@traces), 1, 'with one traceback');
	$worker->{output} = '';
	return;
}

# The worker comes back when its session is terminated, and when the server is
# restarted.

sub test_reconnect
{
	my ($worker) = @_;
	my %events = (
		'pg_terminate_backend' => sub { terminate($_[0]) },
		'a restart' => sub { $node->restart },
		'a crash' => sub { $node->stop('immediate'); $node->start });

	foreach my $event (sort keys %events)
	{
		are(1, $waiting, "$event: it waits");
		$events{$event}->($waiting);
		push_messages(2);
		is_sent(2, "$event in a wait");
		is_well($worker, $trace, "$event in a wait");

		foreach my $how ('sql', 'own')
		{
			# The second time it is not slow.
			set_slow(1);
			push_messages(3, qq({"$how": 2}));
			are(1, $working, "$event: it works");
			set_slow(0);
			$events{$event}->($working);
			is_sent(3, "$event in work ($how)");
			is_well($worker, $trace, "$event in work ($how)");
		}
	}
	return;
}

# Nobody else gets a message while its worker works, however long.
sub test_renewal
{
	my ($worker) = @_;
	my $other = start_worker();
	my $before = value($claims);

	are(2, $waiting, 'two wait');
	set_slow(1);
	foreach my $how ('sql', 'own')
	{
		push_messages(1, sprintf '{"%s": %d}', $how, $claim + 2);
		is_sent(1, "long work ($how)");
	}
	is(value($claims) - $before, 2, 'long work: each message is claimed once');
	is_well($_, qr/\S/, 'long work') foreach $worker, $other;
	end_worker($other, 'TERM');
	return;
}

# Told to stop, a worker gives its messages back at once.
sub test_stop
{
	my ($name, %environment) = @_;

	set_slow(1);
	foreach my $how ('sql', 'own')
	{
		my $worker = start_worker(%environment);

		are(1, $waiting, "$name: it waits");
		push_messages(3, qq({"$how": 600}));
		becomes($stats, '2 1', "$name: it has a claim");
		are(1, $working, "$name: it works");
		my ($status, $took) = end_claim($worker, 'TERM');
		is(value($stats), '3 0', "$name: messages are free again ($how)");
		is($status, 0, "$name: it ends well ($how)");
		note sprintf '%s (%s): %.2f s', $name, $how, $took;
		unlike($worker->{output}, qr/\S/, "$name: without a complaint ($how)");
		are(0, $working, "$name: its statement does not go on ($how)");
		value(q{SELECT queue_purge('mail')});
	}

	my $worker = start_worker(%environment);
	are(1, $waiting, "$name: it waits");
	is(end_worker($worker, 'TERM'), 0, "$name: it ends while it waits");
	unlike($worker->{output}, qr/\S/, "$name: without a complaint");
	return;
}

# While the table "slow" has a row, the commit of a step waits, as for a slow
# disk: a request to cancel it comes too late.
sub delay_steps
{
	value(
		q{
		CREATE SCHEMA late;
		GRANT USAGE ON SCHEMA late TO app;
		CREATE TABLE late.steps ();
		GRANT INSERT ON late.steps TO app;
		CREATE FUNCTION late.queue_step(q text, claim_id text, failed jsonb, ttl int, "limit" int)
			RETURNS SETOF public.queue_message LANGUAGE plpgsql AS $$
		BEGIN
			INSERT INTO late.steps DEFAULT VALUES;
			RETURN QUERY SELECT * FROM public.queue_step(q, claim_id,
				failed => failed, ttl => ttl, "limit" => "limit");
		END$$;
		CREATE FUNCTION late.wait() RETURNS trigger LANGUAGE plpgsql AS $$
		BEGIN
			WHILE EXISTS (SELECT FROM slow) LOOP
				BEGIN
					PERFORM pg_sleep(0.01);
				EXCEPTION WHEN query_canceled THEN
				END;
			END LOOP;
			RETURN NULL;
		END$$;
		CREATE CONSTRAINT TRIGGER wait AFTER INSERT ON late.steps
			DEFERRABLE INITIALLY DEFERRED
			FOR EACH ROW EXECUTE FUNCTION late.wait();
		ALTER ROLE app SET search_path = late, public});
	return;
}

# Signals a worker that is in a late step, and lets the step end later than a
# worker has to finish a message in.
sub end_in_late_step
{
	my ($worker, $what) = @_;
	my $until = time + 1;

	$worker->{run}->signal('TERM');
	while (time < $until && $worker->{run}->pumpable)
	{
		$worker->{run}->pump_nb;
		sleep 0.01;
	}
	set_slow(0);
	is(end_worker($worker), 0, "$what: it ends well");
	unlike($worker->{output}, qr/\S/, "$what: without a complaint");
	are(0, 'true', "$what: its sessions have ended");
	return;
}

# Told to stop while it is in a step, a worker gives back what it gets, if the
# answer comes within seconds.
sub test_stop_in_step
{
	delay_steps();
	foreach my $n (3, 0)
	{
		my $what = "$n in a late claim";

		set_slow(1);
		push_messages($n) if $n;
		my $worker = start_worker();
		are(1, $stepping, "$what: it claims");
		end_in_late_step($worker, $what);
		is(value($stats), "$n 0", "$what: messages are free again");
		value(q{SELECT queue_purge('mail')});
	}

	# Of two messages, one is done or given back, and the other one is not claimed.
	my $account = q{SELECT (SELECT count(*) FROM sent) + free, claimed FROM queue_stats('mail')};
	foreach my $answer ('a late answer', 'no answer')
	{
		my $worker = start_worker();

		are(1, $waiting, "$answer: it waits");
		push_messages(2, '{"stop": true}');
		are(1, $holding, "$answer: it works");
		set_slow(1);
		if ($answer eq 'no answer')
		{
			is(end_worker($worker, 'TERM'), 0, "$answer: it ends");
			set_slow(0);
			are(0, 'true', "$answer: its session has ended");
		}
		else
		{
			end_in_late_step($worker, $answer);
		}
		is(value($account), '2|0', "$answer: nothing is lost");
		value(q{DELETE FROM sent; SELECT queue_purge('mail')});
	}

	set_slow(1);
	my $worker = start_worker();
	are(1, $stepping, 'no answer to a claim: it claims');
	is(end_worker($worker, 'TERM'), 0, 'no answer to a claim: it ends');
	set_slow(0);
	are(0, 'true', 'no answer to a claim: its session has ended');
	value('ALTER ROLE app RESET search_path');
	return;
}

# Told to stop, a worker that has time to end its work does so, and completes or
# retries the message; and it claims nothing more.
sub test_last_step
{
	my %ends = (
		'done'   => [ '{"stop": true}', '1 1', '{0}', qr/^\z/ ],
		'failed' => [
			'{"stop": true, "fail": true}', '0 0', '{0,1}', qr/attempt 1 failed/ ]);

	foreach my $end (sort keys %ends)
	{
		my ($more, $done, $counts, $says) = @{ $ends{$end} };
		local @command = @patient;
		my $worker = start_worker();

		are(1, $waiting, "last step, $end: it waits");
		push_messages(2, $more);
		are(1, $holding, "last step, $end: it works");
		is(end_worker($worker, 'TERM'), 0, "last step, $end: it ends well");
		is(value($sent), $done, "last step, $end: what it has done");
		is( value(
				q{SELECT array_agg(claim_count ORDER BY claim_count)
				FROM queue_messages('mail')}),
			$counts, "last step, $end: nothing more is claimed");
		like($worker->{output}, $says, "last step, $end: what it says");
		value(q{DELETE FROM sent; SELECT queue_purge('mail')});
	}
	return;
}

# If the claim is lost, the step raises QU001, also where it would retry the
# message: the work rolls back, and the message is claimed again.
sub test_lost_claim
{
	my $worker = start_worker();
	my %ends = (
		'{"hold": true}'               => [ 2, '' ],
		'{"hold": true, "fail": true}' =>
		  [ 5, 'attempt 2 failed, attempt 4 failed, attempt 5 failed' ]);

	foreach my $more (sort keys %ends)
	{
		my ($n, $told) = @{ $ends{$more} };
		my $before = value($claims);

		are(1, $waiting, 'lost claim: it waits');
		set_slow(1);
		push_messages(1, $more);
		are(1, $holding, 'lost claim: it works');
		is( value(
				q{SELECT claim_release('mail', claim_id, failed => true)
				FROM queue_messages('mail', include_claimed => true)}),
			1, 'lost claim: it is released');
		set_slow(0);
		becomes($stats, '0 0', 'lost claim: nothing is left');
		are(1, $waiting, 'lost claim: it waits again');
		is(value($claims) - $before, $n, 'lost claim: how often it is claimed');
		is_sent($more =~ /fail/ ? 0 : 1, 'lost claim');
		read_output($worker);
		like($worker->{output}, qr/claim is not live/, 'lost claim: it says so');
		is(join(', ', $worker->{output} =~ /attempt \d+ failed/g),
			$told, 'lost claim: it does not tell of what rolled back');
		$worker->{output} = '';
	}
	end_worker($worker, 'TERM');
	return;
}

# Killed, it leaves its messages to others when its claim expires.
sub test_kill
{
	my $worker = start_worker();
	my $before = value($claims);

	are(1, $waiting, 'one waits');
	set_slow(1);
	push_messages(3, '{"own": 600}');
	are(1, $working, 'it works');
	set_slow(0);
	end_worker($worker, 'KILL');
	$worker = start_worker();
	are(1, $waiting, 'kill: another one waits');
	is_sent(3, 'kill: another one');
	is(value($claims) - $before, 4, 'kill: one was claimed twice');
	end_worker($worker, 'TERM');
	return;
}

# One that was suspended for longer than its claim does nothing twice, and goes
# on.
sub test_suspended
{
	my $worker = start_worker();

	are(1, $waiting, 'one waits');
	set_slow(1);
	push_messages(3, '{"own": 1}');
	are(1, $working, 'it works');
	$worker->{run}->signal('STOP');
	set_slow(0);
	my $other = start_worker();
	becomes($sent, '3 3', 'suspended: another worker has done it');
	$worker->{run}->signal('CONT');
	are(2, $waiting, 'suspended: it goes on');
	is_sent(3, 'suspended');
	read_output($worker);
	like($worker->{output}, qr/claim is not live/, 'suspended: its claim has expired');
	is_well($worker, $trace, 'suspended');
	end_worker($_, 'TERM') foreach $worker, $other;
	return;
}

# Several, behind a pool with less room than they would like, alongside
# producers, while sessions are terminated and the server is restarted.
sub test_pool
{
	my %pooled = (
		PGPORT => start_pool($node, workers => 5, producers => 2),
		PGDATABASE => 'workers');
	my $producers = 4;
	my $rounds = 50;
	my (@producers, @here);

	test_stop('PgBouncer', %pooled);
	set_slow(0);
	push @here, start_worker(%pooled) foreach 1 .. 3;
	are(3, $waiting, 'PgBouncer: three wait');
	append_to_file(
		"$dir/producer.sql", qq{
SELECT queue_push('mail', jsonb_build_object('to', gen_random_uuid()));
SELECT pg_sleep(0.05);
} x $rounds);
	foreach my $producer (1 .. $producers)
	{
		my %job = (error => '');
		$job{run} = IPC::Run::start(
			[
				'psql', '-XqAt', '-f', "$dir/producer.sql", '-d',
				'host=' . $node->host . " port=$pooled{PGPORT} dbname=producers"
			],
			'<', \undef, '>', \my $ids, '2>', \$job{error});
		push @producers, \%job;
	}
	foreach my $n (1 .. 4)
	{
		becomes("SELECT count(*) >= $n * 30 FROM sent", 't', 'PgBouncer: they work');
		terminate('true');
	}
	foreach my $job (@producers)
	{
		$job->{run}->finish;
		is($job->{error}, '', 'PgBouncer: a producer has no complaint');
	}
	becomes($sent, ($producers * $rounds) . ' ' . ($producers * $rounds),
		'PgBouncer: everything is done once');
	$node->restart;
	push_messages(50);
	is_sent($producers * $rounds + 50, 'PgBouncer');
	is_well($_, $trace, 'PgBouncer') foreach @here;
	are(3, $waiting, 'PgBouncer: three wait again');
	end_worker($_, 'TERM') foreach @here;
	stop_pool();
	return;
}

# test_worker(COMMAND, FILE, CODE, [INSTALL]): the worker in doc/examples/FILE,
# which is run by COMMAND.  CODE is what its work() does after the line with
# INSERT.  INSTALL gets the directory of its copy.
sub test_worker
{
	my ($command, $file, $code, $install) = @_;
	my $top    = dirname(__FILE__) . '/../..';
	my $worker = slurp_file("$top/doc/examples/$file");

	$dir = PostgreSQL::Test::Utils::tempdir();
	@command = (@$command, "$dir/$file");
	is($worker =~ s/^(.*INSERT INTO sent.*\n)/$1$code/gm,
		1, "$file has one function to change");
	is($worker =~ s/^((?:const )?CLAIM = )60\b/$1$claim/gm,
		1, 'and says how long a claim is');
	append_to_file("$dir/$file", $worker);
	@patient = (@$command, "$dir/patient.$file");
	is($worker =~ s/^((?:const )?STOP = )0\.3\b/${1}600/gm,
		1, 'and how long it has to finish a message');
	append_to_file("$dir/patient.$file", $worker);
	$install->($dir) if $install;

	start_server('queue.min_claim_ttl = 1');
	plant_functions();
	value(
		q{
		CREATE ROLE app LOGIN IN ROLE queue_producer, queue_consumer;
		CREATE TABLE sent (message_id bigint, recipient text);
		CREATE TABLE slow (n int);
		GRANT ALL ON sent, slow TO app;
		SELECT queue_create('mail', '{"_max_claim_count": 5, "_retry_delay": 0}'::jsonb)});
	my $first = test_work();
	test_reconnect($first);
	test_renewal($first);
	end_worker($first, 'TERM');
	test_stop('SIGTERM');
	test_stop_in_step();
	test_last_step();
	test_lost_claim();
	test_kill();
	test_suspended();
	test_unfit($file);
  SKIP:
	{
		skip 'pgbouncer is not installed', 1 unless pgbouncer();
		test_pool();
	}
	$node->stop;
	return;
}

1;
