# What the tests of handlers share: a server with processes that run jobs, and roles
# with handlers.

package HandlerTest;

use strict;
use warnings;

use Exporter 'import';
use PostgreSQL::Test::Utils;
use QueueTest qw($node $db value state_of becomes);
use Test::More;
use Time::HiRes qw(sleep time);

our @EXPORT = qw($node $db $dead $at_work $state
  start_server value state_of becomes is_done
  create_app picky create_two_roles run_as hold_waiting $waits);

# Starts a server with these settings.
sub start_server
{
	my ($settings) = @_;

	QueueTest::start_server(
		qq{
autovacuum = off
max_worker_processes = 16
$settings
});
	return;
}

my $empty =
  q{SELECT free || ' ' || claimed || ' ' || delayed FROM queue_stats('%s')};

sub is_done
{
	my ($q, $what) = @_;
	becomes(sprintf($empty, $q), '0 0 0', $what);
	return;
}

# Dead letters of a queue, jobs of a queue that are being run, and why the
# handler of a queue is stopped
our $dead = q{SELECT reason, last_error, claim_count
	FROM queue_dead_letters('%s.dead')};
our $at_work = q{SELECT pid FROM queue_data.queue_runners
	WHERE queue = '%s' AND message_id IS NOT NULL};
our $state = q{SELECT state, reason FROM queue_data.queue_handlers
	WHERE queue = '%s'};

# A role "app" with a log and several handlers
sub create_app
{
	value(
	q{
	CREATE ROLE app LOGIN;
	GRANT queue_producer, queue_consumer TO app;
	CREATE SCHEMA app AUTHORIZATION app;
	SET ROLE app;
	CREATE TABLE app.log (
		q text, body jsonb, tries int, who text, session text, path text,
		at timestamptz DEFAULT clock_timestamp(),
		pid int DEFAULT pg_backend_pid());
	SET search_path = app, public;
	CREATE FUNCTION note(m queue_message) RETURNS boolean LANGUAGE plpgsql
	AS $$
	BEGIN
		INSERT INTO log (q, body, tries, who, session, path)
		VALUES (m.queue, m.body, m.claim_count, current_user, session_user,
				current_setting('search_path'));
		RETURN true;
	END $$;
	CREATE FUNCTION picky(body jsonb) RETURNS boolean LANGUAGE plpgsql
	AS $$
	BEGIN
		INSERT INTO log (body) VALUES (body);
		CASE body ->> 'do'
			WHEN 'raise' THEN RAISE EXCEPTION 'no such luck';
			WHEN 'false' THEN RETURN false;
			WHEN 'null' THEN RETURN NULL;
			WHEN 'sleep' THEN PERFORM pg_sleep((body ->> 'for')::float);
			WHEN 'wait' THEN PERFORM pg_advisory_xact_lock_shared(1);
			WHEN 'stubborn' THEN
				LOOP
					BEGIN
						PERFORM pg_sleep(100);
					EXCEPTION WHEN query_canceled THEN NULL;
					END;
				END LOOP;
			WHEN 'catch' THEN
				BEGIN
					PERFORM pg_sleep(100);
				EXCEPTION WHEN query_canceled THEN NULL;
				END;
			WHEN 'spin' THEN LOOP END LOOP;
			ELSE NULL;
		END CASE;
		RETURN true;
	END $$;
	CREATE FUNCTION bye(m queue_message) RETURNS void LANGUAGE plpgsql
	AS $$
	BEGIN
		INSERT INTO log (q, body, tries, who)
		VALUES ('teardown', m.body, m.claim_count, concat_ws(' ',
			current_user, (SELECT 'holds it' FROM message_get(m.queue, m.id)
				WHERE claim_id IS NOT NULL)));
		IF m.body ? 'teardown fails' THEN
			RAISE EXCEPTION 'no teardown';
		END IF;
	END $$;
});
	return;
}

# A queue of app with the handler picky, and an empty log
sub picky
{
	my ($q, $options, $metadata) = @_;
	value(
		"SET ROLE app; SET search_path = app, public; TRUNCATE app.log;
		SELECT queue_create('$q', '{\"_retry_delay\": 0"
		  . ($metadata ? ", $metadata" : '') . "}');
		SELECT job_handler('$q', 'picky(jsonb)'"
		  . ($options ? ", $options" : '') . ')');
	return;
}

# Jobs with "wait" wait until the session that this returns has ended.
sub hold_waiting
{
	my $gate = $node->background_psql($db);

	$gate->query_safe('SELECT pg_advisory_lock(1)');
	return $gate;
}

our $waits = q{SELECT count(*) FROM pg_stat_activity
	WHERE backend_type = 'queue runner' AND wait_event = 'advisory'};

# Two roles that know nothing of each other
sub create_two_roles
{
	value(
	q{
	CREATE TABLE secret (key text);
	INSERT INTO secret VALUES ('of the superuser');
	CREATE TABLE seen (q text, role name, who text, what text);
	GRANT INSERT ON seen TO PUBLIC;
	CREATE ROLE alice LOGIN;
	CREATE ROLE mallory LOGIN;
	CREATE ROLE nobody;
	GRANT queue_producer, queue_consumer TO alice, mallory;
	CREATE SCHEMA alice AUTHORIZATION alice;
	CREATE SCHEMA mallory AUTHORIZATION mallory;
	GRANT USAGE ON SCHEMA alice, mallory TO PUBLIC;
	SET ROLE alice;
	CREATE TABLE alice.secret (key text);
	INSERT INTO alice.secret VALUES ('of alice');
});
	return;
}

# Binds a function with this body, and runs one job.  Returns "done", or the
# error with which the job ended.
my $number = 0;

sub run_as
{
	my ($role, $body, %options) = @_;
	my $q = "$role-" . ++$number;
	my $argument = $options{argument} || 'm queue_message';
	my $until = time + 180;

	value(
		"SET ROLE $role; SET search_path = $role, public;
		CREATE FUNCTION f$number($argument) RETURNS boolean
		LANGUAGE plpgsql AS \$f\$ BEGIN $body RETURN true; END \$f\$;
		SELECT queue_create('$q', '{\"_max_claim_count\": 1}');
		SELECT job_handler('$q', 'f$number(queue_message)');
		SELECT queue_push('$q', '1')");
	while (time < $until)
	{
		my ($total, $error) = split /\|/,
		  value("SELECT total, coalesce((SELECT last_error
			FROM queue_dead_letters('$q.dead')), 'done')
			FROM queue_stats('$q')");
		return $error if $total == 0;
		sleep 0.02;
	}
	return 'nothing';
}

1;
