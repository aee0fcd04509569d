# A handler whose function belongs to another role than its own, or that may not run,
# waits and says why, in job_list and once in the log.  It goes on by itself.
#
# test/check -q runs it, too.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../perl";

use HandlerTest;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(sleep time);

# One runner, so that the roles take turns
start_server('queue.runners = 1');
create_two_roles();

# --- functions of others ---

my $foreign =
  'stopped|Function %s belongs neither to role "alice", which bound the handler, nor to a superuser.';

value(
	q{CREATE FUNCTION public.shared(body jsonb) RETURNS boolean LANGUAGE sql
	AS $$INSERT INTO public.seen VALUES ('shared', current_user, '', 'as bound');
	SELECT true$$;
	SET ROLE alice;
	SELECT queue_create('shared', '{"_retry_delay": 0}');
	SELECT job_handler('shared', 'public.shared(jsonb)');
	SELECT queue_push('shared', '1')});
becomes(q{SELECT role, what FROM seen}, 'alice|as bound',
	'a role may bind what a superuser has made');
value(
	q{TRUNCATE seen;
	CREATE OR REPLACE FUNCTION public.shared(body jsonb) RETURNS boolean LANGUAGE sql
	AS $$INSERT INTO public.seen VALUES ('shared', current_user, '', 'altered');
	SELECT true$$;
	SELECT queue_push('shared', '2')});
becomes(q{SELECT role, what FROM seen}, 'alice|altered', 'a superuser may alter it');
value(
	q{TRUNCATE seen; ALTER FUNCTION public.shared(jsonb) OWNER TO mallory;
	SELECT queue_push('shared', '3')});
becomes(sprintf($state, 'shared'), sprintf($foreign, 'public.shared(jsonb)'),
	'that of another role is not run');
is(value(q{SELECT count(*) FROM seen}), '0', 'not once');
is(value(q{SELECT free, claimed FROM queue_stats('shared')}), '1|0',
	'the job waits');
is(value(q{SELECT claimed FROM job_stats('shared')}), '2',
	'and was not counted as tried');
is(value(q{SELECT paused FROM queue_get('shared')}), 'f',
	'the queue is not paused');
value('ALTER FUNCTION public.shared(jsonb) OWNER TO alice');
becomes(q{SELECT role, what FROM seen}, 'alice|altered',
	'it goes on when it is its own');
value(
	q{CREATE ROLE chief SUPERUSER;
	ALTER FUNCTION public.shared(jsonb) OWNER TO chief;
	TRUNCATE seen; SELECT queue_push('shared', '4')});
becomes(q{SELECT role, what FROM seen}, 'alice|altered', 'so does one of another superuser');
value(q{ALTER ROLE chief NOSUPERUSER; SELECT queue_push('shared', '5')});
becomes(sprintf($state, 'shared'), sprintf($foreign, 'public.shared(jsonb)'),
	'but not when that is a superuser no more');
value('ALTER FUNCTION public.shared(jsonb) OWNER TO alice');
is_done('shared', 'and goes on');

# A teardown function
value(
	q{GRANT CREATE ON SCHEMA public TO alice, mallory;
	SET ROLE alice; SET search_path = public;
	CREATE FUNCTION own(body jsonb) RETURNS boolean LANGUAGE sql
	AS 'SELECT true';
	CREATE FUNCTION own_teardown(body jsonb) RETURNS void LANGUAGE sql AS '';
	SELECT queue_create('own', '{"_retry_delay": 0}');
	SELECT job_handler('own', 'own(jsonb)', teardown => 'own_teardown(jsonb)');
	RESET ROLE; ALTER FUNCTION public.own_teardown(jsonb) OWNER TO mallory;
	SELECT queue_push('own', '1')});
becomes(sprintf($state, 'own'), sprintf($foreign, 'public.own_teardown(jsonb)'),
	'a teardown function of another role');
value('ALTER FUNCTION public.own_teardown(jsonb) OWNER TO alice');
is_done('own', 'goes on when it is its own');

# A function of another role in the place of one's own
value(
	q{SET ROLE alice; SET search_path = public;
	DROP FUNCTION own(jsonb);
	SELECT queue_push('own', '1')});
becomes(sprintf($state, 'own'),
	'stopped|Function public.own(jsonb) does not exist.',
	'a function that was dropped');
value(
	q{TRUNCATE seen; SET ROLE mallory; SET search_path = public;
	CREATE FUNCTION own(body jsonb) RETURNS boolean LANGUAGE sql
	AS $$INSERT INTO public.seen VALUES ('own', current_user, '', '');
	SELECT true$$});
becomes(sprintf($state, 'own'), sprintf($foreign, 'public.own(jsonb)'),
	'one that another role creates with its name is not run');
is(value(q{SELECT count(*) FROM seen}), '0', 'not once');
value(
	q{DROP FUNCTION public.own(jsonb); SET ROLE alice; SET search_path = public;
	CREATE FUNCTION own(body jsonb) RETURNS boolean LANGUAGE sql
	AS 'SELECT body = ''1'''});
is_done('own', 'it goes on with one that its role creates');

# A function of the same role that cannot be a handler any more
for my $other (
	[ 'FUNCTION', q{RETURNS text LANGUAGE sql AS 'SELECT ''no''::text'} ],
	[ 'FUNCTION', q{RETURNS SETOF boolean LANGUAGE sql AS 'SELECT true'} ],
	[ 'PROCEDURE', q{LANGUAGE plpgsql AS 'BEGIN COMMIT; END'} ])
{
	my ($kind, $definition) = @$other;

	value(
		"SET ROLE alice; SET search_path = alice, public;
		CREATE FUNCTION turns(body jsonb) RETURNS boolean LANGUAGE sql
		AS 'SELECT true';
		SELECT queue_create('turns'); SELECT job_handler('turns', 'turns(jsonb)');
		DROP FUNCTION turns(jsonb); CREATE $kind turns(body jsonb) $definition;
		SELECT queue_push('turns', '1')");
	becomes(
		sprintf($state, 'turns'),
		'stopped|alice.turns(jsonb) is no longer a function that returns boolean.',
		"a handler that became something else: $kind $definition");
	is(value(q{SELECT claimed FROM job_stats('turns')}), '0',
		'its job was not counted as tried');
	value("SELECT queue_drop('turns'); DROP $kind alice.turns(jsonb)");
}

# While it is at work, until this lock is released, with more of the same claim to
# follow
my $gate = $node->background_psql($db);
$gate->query_safe('SELECT pg_advisory_lock(47)');
value(
	q{SET ROLE alice; SET search_path = alice, public;
	CREATE FUNCTION later(body jsonb) RETURNS boolean LANGUAGE plpgsql
	AS $$BEGIN PERFORM pg_advisory_xact_lock(47) WHERE body = '1'; RETURN true; END$$;
	SELECT queue_create('later', '{"_retry_delay": 0}');
	SELECT job_handler('later', 'later(jsonb)');
	SELECT queue_pause('later');
	SELECT queue_push_batch('later', array_fill('0'::jsonb, ARRAY[63]));
	SELECT queue_push_batch('later', '{1}'::jsonb[]);
	SELECT queue_push_batch('later', array_fill('0'::jsonb, ARRAY[5]));
	RESET ROLE; TRUNCATE seen; SET ROLE alice;
	SELECT queue_resume('later')});
$node->poll_query_until($db,
	q{SELECT EXISTS (SELECT FROM pg_stat_activity
	WHERE backend_type = 'queue runner' AND wait_event = 'advisory')});
value(
	q{ALTER FUNCTION alice.later(jsonb) OWNER TO mallory;
	CREATE OR REPLACE FUNCTION alice.later(body jsonb) RETURNS boolean
	LANGUAGE sql AS $$INSERT INTO public.seen VALUES ('later', current_user, '', '');
	SELECT true$$});
$gate->quit;
becomes('SELECT state FROM (' . sprintf($state, 'later') . ') s',
	'stopped', 'altered while it is at work: the next job is not run');
is(value(q{SELECT count(*) FROM seen}), '0', 'not once');
becomes(q{SELECT free, claimed FROM queue_stats('later')}, '5|0',
	'the rest of the claim waits');
is(value(q{SELECT max(claim_count) FROM queue_data.message
	WHERE queue = 'later'}), '0', 'and does not count as tried');

# --- rights that are taken away ---

sub bind_alice
{
	my ($q) = @_;
	value(
		"SET ROLE alice; SET search_path = alice, public;
		CREATE FUNCTION \"$q\"(body jsonb) RETURNS boolean LANGUAGE sql
		AS 'SELECT true';
		SELECT queue_create('$q', '{\"_retry_delay\": 0}');
		SELECT job_handler('$q', '\"$q\"(jsonb)')");
	return;
}

my $begin = -s $node->logfile;
bind_alice('execute');
value(
	q{REVOKE EXECUTE ON FUNCTION alice.execute(jsonb) FROM PUBLIC, alice;
	SELECT queue_push('execute', '1')});
becomes(
	sprintf($state, 'execute'),
	'stopped|Role "alice" has no privilege EXECUTE on function alice.execute(jsonb).',
	'the right to execute the function');
is( value(q{SET ROLE alice; SELECT state, reason FROM job_list('execute')}),
	'stopped|Role "alice" has no privilege EXECUTE on function alice.execute(jsonb).',
	'its role sees that in job_list');
my $logged = qr/handler of queue "execute" cannot run/;
ok($node->wait_for_log($logged, $begin), 'the log has it');
sleep 2.5;						# it is checked each second
value('GRANT EXECUTE ON FUNCTION alice.execute(jsonb) TO alice');
is_done('execute', 'given back: it goes on');
is(scalar(() = slurp_file($node->logfile, $begin) =~ /$logged/g), 1, 'logged once');
value(
	q{CREATE SCHEMA lent; GRANT USAGE ON SCHEMA lent TO alice;
	CREATE FUNCTION lent.f(body jsonb) RETURNS boolean LANGUAGE sql
	AS 'SELECT true';
	SET ROLE alice; SELECT queue_create('usage');
	SELECT job_handler('usage', 'lent.f(jsonb)');
	RESET ROLE; REVOKE USAGE ON SCHEMA lent FROM alice;
	SELECT queue_push('usage', '1')});
becomes(
	sprintf($state, 'usage'),
	'stopped|Role "alice" has no privilege USAGE on the schema of function lent.f(jsonb).',
	'the right to use its schema');
value('GRANT USAGE ON SCHEMA lent TO alice');
is_done('usage', 'given back: it goes on');
value(
	q{CREATE ROLE boss; GRANT boss TO alice; GRANT queue_producer TO boss;
	SET ROLE boss; SELECT queue_create('lent');
	SET ROLE alice; SET search_path = alice, public;
	CREATE FUNCTION lent(body jsonb) RETURNS boolean LANGUAGE sql
	AS 'SELECT true';
	SELECT job_handler('lent', 'lent(jsonb)');
	RESET ROLE; REVOKE boss FROM alice;
	SELECT queue_push('lent', '1')});
becomes(
	sprintf($state, 'lent'),
	'stopped|Role "alice", which bound the handler, may not bind one to queue "lent".',
	'the right to the queue');
value('GRANT boss TO alice');
is_done('lent', 'given back: it goes on');
value(
	q{CREATE ROLE short LOGIN; GRANT queue_producer TO short;
	GRANT USAGE ON SCHEMA lent TO short;
	SET ROLE short; SELECT queue_create('short');
	SELECT job_handler('short', 'lent.f(jsonb)');
	RESET ROLE; SELECT queue_set_owner('short', 'postgres');
	DROP OWNED BY short; DROP ROLE short;
	SELECT queue_push('short', '1')});
becomes(
	q{SELECT state, reason ~ '^Role \d+, which bound the handler, does not exist\.$'
	FROM queue_data.queue_handlers WHERE queue = 'short'},
	'stopped|t', 'the role itself');

# --- bound anew while job_run waits ---

value(
	q{CREATE FUNCTION public.former(body jsonb) RETURNS boolean LANGUAGE sql
	AS $$INSERT INTO public.seen VALUES ('anew', current_user, '', 'former'); SELECT true$$;
	CREATE FUNCTION public.later(body jsonb) RETURNS boolean LANGUAGE sql
	AS $$INSERT INTO public.seen VALUES ('anew', current_user, '', 'later'); SELECT true$$});
value(
	q{TRUNCATE seen;
	SELECT queue_create('anew');
	SELECT job_handler('anew', 'public.former(jsonb)')});
my $owner = $node->background_psql($db);
$owner->query_safe(
	q{BEGIN; SELECT queue_purge('anew');
	SELECT job_handler('anew', 'public.later(jsonb)');
	SELECT queue_push('anew', '1')});
my $run = $node->background_psql($db);
$run->query_until(qr/begins/, "\\echo begins\nCALL job_run('{anew}');\n");
becomes(
	q{SELECT count(*) FROM pg_stat_activity
	WHERE query LIKE 'CALL job_run%' AND wait_event_type = 'Lock'},
	'1', 'job_run waits for the queue');
$owner->query_safe('COMMIT');
$owner->quit;
$run->quit;
is(value('SELECT what FROM seen'), 'later',
	'it runs the function that was bound meanwhile');

$node->stop;
done_testing();
