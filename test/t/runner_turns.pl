# Each role has its share of the runners, and its turn, whatever the handlers of
# others do: have many queues or many jobs, sleep for an hour, use up the runners of
# all databases or all background workers.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../perl";

use HandlerTest;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(sleep time);

start_server(
	q{queue.runners = 1
queue.max_runners = 2
queue.runner_idle_time = 1s});

my $make = q{
	CREATE TABLE ran (n serial, role name DEFAULT current_user,
		pid int DEFAULT pg_backend_pid());
	GRANT ALL ON ran, ran_n_seq TO PUBLIC;
	CREATE FUNCTION short(jsonb) RETURNS boolean LANGUAGE plpgsql
	AS $$BEGIN
		INSERT INTO ran DEFAULT VALUES;
		PERFORM pg_sleep(0.01);
		RETURN true;
	END$$;
	CREATE FUNCTION sleeps(jsonb) RETURNS boolean LANGUAGE plpgsql
	AS $$BEGIN
		LOOP
			BEGIN
				PERFORM pg_sleep(1000);
			EXCEPTION WHEN query_canceled THEN NULL;
			END;
		END LOOP;
	END$$;
	GRANT CREATE ON SCHEMA public TO PUBLIC;
};
value($make);
value(
	q{CREATE ROLE ann; CREATE ROLE bob; CREATE ROLE cid;
	GRANT queue_producer TO ann, bob, cid});

# Binds a handler, and pushes jobs for it.
sub push_jobs
{
	my ($role, $q, $function, $n, $database) = @_;

	$node->safe_psql(
		$database || $db,
		"SET ROLE $role; SELECT queue_create('$q', '{\"_max_claim_count\": 100}');
		SELECT job_handler('$q', '$function(jsonb)', concurrency => 2);
		SELECT queue_push_batch('$q', array_fill('1'::jsonb, ARRAY[$n]))");
	return;
}

# Waits until the queue has no more jobs; longer than a machine may take.
sub ends
{
	my ($q, $what, $database) = @_;
	my $begin = time;
	my $left = '';

	while (time < $begin + 90)
	{
		$left = $node->safe_psql($database || $db,
			"SELECT total FROM queue_stats('$q')");
		last if $left eq '0';
		sleep 0.05;
	}
	is($left, '0', $what);
	note sprintf 'after %.1f s', time - $begin;
	return;
}

sub reload
{
	my ($setting, $to) = @_;

	value("ALTER SYSTEM SET $setting = $to");
	value('SELECT pg_reload_conf()');
	return;
}

my $at_work = q{SELECT string_agg(pid || ':' || message_id, ' ' ORDER BY pid)
	FROM queue_data.queue_runners WHERE role::text = 'ann' AND message_id IS NOT NULL};

# --- one role has many queues, the other one ---

push_jobs('ann', "many$_", 'short', 1000) for 1 .. 20;
push_jobs('cid', 'one', 'short', 1);
ends('one', 'a role with one queue has its turn');
cmp_ok(
	value(
		q{SELECT count(DISTINCT pid) FROM ran WHERE role = 'ann'
		AND n < (SELECT min(n) FROM ran WHERE role = 'cid')}),
	'<=', 3, 'and need not wait for each queue of another role');
value(q{SELECT queue_drop('many' || i) FROM generate_series(1, 20) i});

# --- shares ---

# Runners without a job do not count: they end when they are in the way.
my $shares = q{SELECT string_agg(role || ' ' || n, ', ' ORDER BY role)
	FROM (SELECT role::text, count(*) AS n FROM queue_data.queue_runners
		WHERE state IN ('busy', 'called', 'starting') GROUP BY role) s};
reload('queue.max_runners', 4);
reload('queue.runners', 4);
push_jobs('ann', "ann$_", 'short', 10000) for 1 .. 4;
becomes($shares, 'ann 4', 'a role may have all runners');
push_jobs('bob', "bob$_", 'short', 10000) for 1 .. 4;
becomes($shares, 'ann 2, bob 2', 'two roles have half of them each');
push_jobs('cid', 'third', 'short', 1000);
becomes("SELECT ($shares) ~ '^ann [12], bob [12], cid [12]\$'",
	't', 'a third one has its share, too');
ends('third', 'and gets its jobs done');
value("SELECT queue_drop('ann' || i), queue_drop('bob' || i) FROM generate_series(1, 4) i");
reload('queue.max_runners', 2);

# --- handlers that take an hour ---

reload('queue.runners', 2);
push_jobs('ann', 'ann', 'sleeps', 2);
becomes("SELECT array_length(string_to_array(($at_work), ' '), 1)",
	'2', 'a role holds all runners');
my $held = value($at_work);
push_jobs('bob', 'bob', 'short', 500);
push_jobs('cid', 'cid', 'short', 1);
ends('cid', 'another role has its turn, though a third one has many jobs');
cmp_ok(value(q{SELECT total FROM queue_stats('bob')}), '>', 0, 'that has not ended');
ends('bob', 'and gets them done');
cmp_ok(value('SELECT count(*) FROM queue_data.queue_runners'),
	'<=', 3, 'one runner more than the setting says is enough');
value(
	q{SET ROLE bob; SELECT job_handler('bob', 'sleeps(jsonb)', timeout => 2);
	SELECT queue_push('bob', '1')});
becomes(
	q{SELECT count(*) FROM queue_data.queue_runners
	WHERE role::text = 'bob' AND message_id IS NOT NULL},
	'1', 'a role holds the spare runner');
push_jobs('cid', 'later', 'short', 1);
ends('later', 'until the time limit of its job is over');
is(value(q{SELECT claim_count FROM queue_data.message WHERE queue = 'bob'}),
	'1', 'which was not interrupted before');
is(value($at_work), $held, 'the jobs of the first role go on');

# --- another database ---

value('CREATE DATABASE other');
$node->safe_psql('other', "CREATE EXTENSION queue; $make");
push_jobs('cid', 'there', 'short', 1, 'other');
ends('there', 'a role of another database has its turn', 'other');

# It has its share of what all databases may have.
value(q{SELECT queue_drop('ann'), queue_drop('bob'), queue_drop('cid');
	SELECT pg_terminate_backend(pid) FROM queue_data.queue_runners
	WHERE role::text = 'ann'});
reload('queue.max_runners', 4);
reload('queue.runners', 4);
push_jobs('ann', "here$_", 'short', 10000) for 1 .. 4;
becomes($shares, 'ann 4', 'a role has all runners of all databases');
push_jobs('bob', "there$_", 'short', 10000, 'other') for 1 .. 4;
becomes(
	q{SELECT count(*) FROM pg_stat_activity
	WHERE backend_type = 'queue runner' AND usename = 'bob' AND datname = 'other'},
	'2', 'one of another database gets half of them');
becomes($shares, 'ann 2', 'which leaves the other half');
$node->safe_psql('other', q{SELECT queue_drop('there' || i) FROM generate_series(1, 4) i});
value('DROP DATABASE other');
value(q{SELECT queue_drop('here' || i) FROM generate_series(1, 4) i});

# --- no more background workers ---

# Those of the server's and our launcher, the database's worker, and one runner
value("ALTER SYSTEM SET max_worker_processes = 4");
push_jobs('ann', 'many', 'short', 10000);
$node->restart;
becomes(
	q{SELECT count(*) FROM queue_data.queue_runners
	WHERE role::text = 'ann' AND message_id IS NOT NULL},
	'1', 'a role holds the last background worker');
push_jobs('cid', 'last', 'short', 2);
ends('last', 'and leaves it to another one');
cmp_ok(value(q{SELECT total FROM queue_stats('many')}), '>', 0, 'between two jobs');
unlike(slurp_file($node->logfile), qr/TRAP|PANIC|signal 11/, 'nothing failed');

$node->stop;
done_testing();
