# Claims of queues with groups, with shared memory: groups take turns whatever
# the size of the claims and of the groups; in a group the order is kept; and
# no message is lost, handed out twice or hidden from claims: while many
# sessions push, claim, release, retry, delete and roll back, are terminated and
# killed, and while shared memory has no room for more groups.
#
# test/check -q runs it, too.

use strict;
use warnings;

use IPC::Run ();
use List::Util qw(max min shuffle sum0);
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(sleep time);

use FindBin;
use lib "$FindBin::RealBin/../perl";

use MapTest;

my $seconds = $ENV{QUEUE_STRESS_SECONDS} || 8;
my $room = 96;    # for groups with something free, with so few maps

# A queue with groups that has nothing; its map knows that it has groups.
my $queues = 0;

sub new_queue
{
	my ($metadata) = @_;
	my $q = 'l' . ++$queues;
	$two->query_safe("SELECT queue_create('$q', '" . ($metadata || '{}') . "')");
	push_to($q, 'first', 'x');
	$two->query_safe("SELECT FROM queue_pop('$q')");
	$two->query_safe(claim($q)) eq '' or die "$q is not empty";
	return $q;
}

# One message with this body; options: group, priority, delay, number
sub push_to
{
	my ($q, $body, $group, %options) = @_;
	my $n = $options{number} || 1;
	my $call = "queue_push('$q', '\"$body\"'";

	$call .= ", group_key => '$group'" if defined $group;
	$call .= ", $_ => $options{$_}"
	  foreach grep { defined $options{$_} } qw(priority delay);
	$two->query_safe("SELECT count($call)) FROM generate_series(1, $n)");
	return;
}

# The next message will not be close to the last one.
sub leave_gap
{
	my ($q) = @_;
	$two->query_safe(
		"BEGIN; SELECT FROM queue_push_batch('$q', array_fill('1'::jsonb, ARRAY[40])); ROLLBACK");
	return;
}

# Claims; returns the groups of the messages in the order of the rows.
sub groups_of
{
	my ($session, $q, $limit) = @_;
	return split / /,
	  $session->query_safe(
		"SELECT coalesce(string_agg(coalesce(group_key, '-'), ' '), '') FROM queue_claim('$q', 600, 0, $limit)"
	  );
}

# Claims of these sizes: while all groups have something, none gets a message
# more than another one.
sub takes_turns
{
	my ($what, $q, $left, @sizes) = @_;
	my %left = %$left;
	my %taken = map { $_ => 0 } keys %left;
	my $all = sum0(values %left);
	my ($claims, $unfair, $short) = (0, 0, 0);

	while (min(values %left) > 0)
	{
		my $size = $sizes[ $claims % @sizes ];
		my @groups = groups_of($claims % 2 ? $one : $two, $q, $size);
		$claims++;
		$short++ if @groups < min($size, sum0(values %left));
		last unless @groups;
		foreach my $group (@groups)
		{
			my @waiting = grep { $left{$_} > 0 } keys %left;
			$taken{$group}++;
			$left{$group}--;
			$unfair++
			  if $taken{$group} - min(map { $taken{$_} } @waiting) > 1;
		}
	}
	is($unfair, 0, "$what: one message of each group in a round");
	is($short, 0, "$what: claims are complete");
	my $n = sum0(values %taken);
	while (my @groups = groups_of($two, $q, 50))
	{
		$n += @groups;
	}
	is($n, $all, "$what: nothing is left out");
	note "$what: $claims claims";
	return;
}

# The worker changes the order of turns, so it does not run where that is tested.
start_server();
set_worker(0);
$_->quit foreach $one, $two;
connect_sessions();

# --- Turns ---

foreach my $sizes ([1], [2], [10], [ 1, 7, 30, 3 ])
{
	my $q = new_queue();
	push_to($q, 'big', 'big', number => 500);
	push_to($q, 'keyless', undef, number => 30);
	push_to($q, 'small', "g$_", number => 12) foreach 1 .. 8;
	takes_turns("sizes @$sizes", $q,
		{ big => 500, '-' => 30, map { ("g$_" => 12) } 1 .. 8 }, @$sizes);
}

# A large group between the messages of which those of others lie, far apart
{
	my $q = new_queue();
	foreach my $i (1 .. 12)
	{
		push_to($q, 'big', 'big', number => 40);
		push_to($q, 'small', "g$_") foreach 1 .. 3;
	}
	takes_turns('far apart', $q,
		{ big => 480, map { ("g$_" => 12) } 1 .. 3 },
		10, 6, 1);
}

# Messages side by side are read by one index scan, not by one for each group.
{
	my $q = new_queue();
	push_to($q, 'side by side', "g$_") foreach 1 .. 40;
	my $scans = sub {
		return $two->query_safe(
			"SELECT sum(idx_scan) FROM pg_stat_xact_user_tables WHERE schemaname = 'queue_data' AND relname ~ '^message_'"
		);
	};
	$two->query_safe('BEGIN');
	my $before = $scans->() || 0;
	is(scalar groups_of($two, $q, 30), 30, 'one message of each of 30 groups');
	cmp_ok($scans->() - $before, '<', 10, 'by few index scans');
	$two->query_safe('ROLLBACK');
	is(scalar groups_of($two, $q, 50), 40, 'all after a rollback');
}

# Groups that have nothing any more, though that was not reported
{
	my $q = new_queue();
	push_to($q, 'one', "g$_") foreach 1 .. 6;
	push_to($q, 'many', "h$_", number => 20) foreach 1 .. 2;
	$one->query_safe(
		"SELECT count(message_delete('$q', id)) FROM queue_messages('$q', \"limit\" => 100) WHERE group_key ~ 'g'"
	);
	takes_turns('groups that are empty', $q, { h1 => 20, h2 => 20 }, 10, 3);
}

# What is pushed later begins at the end of the round.
{
	my $q = new_queue();
	push_to($q, 'big', 'big', number => 50);
	push_to($q, 'a', 'a', number => 3);
	my @got = groups_of($two, $q, 1);
	push_to($q, 'late', 'late');
	push @got, groups_of($one, $q, 1) foreach 1 .. 4;
	is("@got", 'big a big late a', 'a new group waits for one round');
}

# --- Order in a group ---

{
	my $q = new_queue();
	push_to($q, "$_->[0]$_->[1]", $_->[0], priority => $_->[1])
	  foreach [ 'a', 1 ], [ 'a', 5 ], [ 'b', 0 ], [ 'a', 9 ], [ 'b', 5 ];
	push_to($q, "-$_", undef, priority => $_) foreach 3, 7;
	my %order;
	push @{ $order{ substr $_, 0, 1 } }, substr $_, 1
	  foreach split / /, $two->query_safe(claim($q));
	is( join(', ', map { join ' ', @{ $order{$_} || [] } } 'a', 'b', '-'),
		'9 5 1, 5 0, 7 3', 'the higher priority comes first in its group');
}

# Claims that end in any order, and messages that are far apart
foreach my $end ('release', 'rollback', 'retry')
{
	my $n = 150;
	my $q = new_queue();
	foreach my $i (1 .. $n)
	{
		push_to($q, $i, 'g');
		leave_gap($q);
	}
	if ($end eq 'rollback')
	{
		$one->query_safe('BEGIN');
		$one->query_safe(claim($q, 1)) foreach 1 .. $n;
		$one->query_safe('ROLLBACK');
	}
	else
	{
		my @claimed = map {
			$two->query_safe("SELECT id, claim_id FROM queue_claim('$q', 600, 0, 1)")
		} 1 .. $n;
		foreach (shuffle @claimed)
		{
			my ($id, $claim) = split /\|/;
			$two->query_safe(
				$end eq 'retry'
				? "SELECT message_retry('$q', $id, '$claim', 'error', 0)"
				: "SELECT claim_release('$q', '$claim', failed => true)");
		}
	}
	is( join(' ', map { $two->query_safe(claim($q, 1)) } 1 .. $n),
		"@{[1 .. $n]}", "$end: messages return to their places");
}

# --- What becomes free ---

set_worker(1);
{
	my $q = new_queue();
	push_to($q, 'late', 'g', delay => 600);
	push_to($q, "o$_", "h") foreach 1 .. 3;
	my $claim = $two->query_safe(
		"SELECT DISTINCT claim_id FROM queue_claim('$q', 600, 0, 3)");
	is($two->query_safe(claim($q)), '', 'nothing but delayed and claimed ones');
	push_to($q, "d$_", 'g', delay => 1, priority => $_ % 3) foreach 1 .. 6;
	$two->query_safe("SELECT claim_renew('$q', '$claim', 1)");
	ok($node->poll_query_until('postgres', "SELECT free = 9 FROM queue_stats('$q')"), 'all are due');
	my @got;
	for (my $tries = 0; @got < 9 && $tries < 1000; $tries++)
	{
		push @got, split / /, $two->query_safe(claim($q));
		sleep 0.1 if @got < 9;
	}
	is("@{[grep { /d/ } @got]}, @{[grep { /o/ } @got]}",
		'd2 d5 d1 d4 d3 d6, o1 o2 o3', 'both are due, in the order of their groups');
}

# A claim of delayed messages that is rolled back, while another session claims
{
	my $q = new_queue();
	push_to($q, "d$_", "g$_", delay => 1) foreach 1 .. 3;
	becomes_free($q, 'd1 d2 d3', 'they are due');
	$one->query_safe('BEGIN; SAVEPOINT s');
	my @first = split / /, $one->query_safe(claim($q, 2));
	$one->query_safe('ROLLBACK TO s');
	my @got = map { $_->query_safe(claim($q, 1)) } $two, $one, $one, $one;
	is("@{[sort @got]}", ' d1 d2 d3', 'each of them is found once');
	$one->query_safe('COMMIT');
}

set_worker(0);

# The same with messages that are not delayed
foreach my $end ('COMMIT', 'ROLLBACK')
{
	my $q = new_queue();
	push_to($q, "m$_", "g$_") foreach 1 .. 6;
	$one->query_safe('BEGIN');
	my @got = $one->query_safe(claim($q, 1));
	$one->query_safe('SAVEPOINT s');
	$one->query_safe(claim($q, 3));
	$one->query_safe('ROLLBACK TO s');
	push @got, split / /, $two->query_safe(claim($q));
	is("@{[sort @got]}", 'm1 m2 m3 m4 m5 m6',
		'what a savepoint gives back is found by others');
	$one->query_safe($end);
	is($two->query_safe(claim($q)), $end eq 'COMMIT' ? '' : $got[0], "then $end");
}

# Claims that are canceled, wherever they are
{
	my $q = new_queue();
	my $n = 900;
	$two->query_safe(
		"SELECT count(queue_push('$q', to_jsonb(repeat('x', 5000)), group_key => 'g' || g % 45)) FROM generate_series(1, $n) AS g"
	);
	my ($ret, $out, $err) = $node->psql(
		'postgres',
		join(";\n", 'SET queue.max_claim_limit = 10000',
			map { "SET statement_timeout = '${_}ms'; SELECT FROM queue_claim('$q', 600, 0, 450)" }
			map { (1, 1, 2, 2, 3) } 1 .. 10),
		on_error_stop => 0);
	$two->query_safe('SET queue.max_claim_limit = 10000');
	while ($two->query_safe("SELECT count(*) FROM queue_claim('$q', 600, 0, 450)") > 0)
	{
	}
	$two->query_safe('RESET queue.max_claim_limit');
	is($two->query_safe("SELECT free FROM queue_stats('$q')"),
		'0', 'nothing is hidden after claims that were canceled');
	like($err, qr/statement timeout/, 'some were canceled');
}

# What a transaction has pushed itself comes to the lanes when it commits.
{
	my $q = new_queue();
	push_to($q, "o$_", "g$_") foreach 1 .. 3;
	$one->query_safe('BEGIN');
	$one->query_safe("SELECT queue_push('$q', '\"own$_\"', group_key => 'g$_')")
	  foreach 1 .. 3;
	my @own = split / /, $one->query_safe(claim($q));
	is("@{[sort @own]}", 'o1 o2 o3', 'a transaction finds what others have pushed');
	is($two->query_safe(claim($q)), '', 'others find nothing meanwhile');
	$one->query_safe('ROLLBACK');
	my @got = split / /, $two->query_safe(claim($q));
	is("@{[sort @got]}", 'o1 o2 o3', 'what it had not pushed is free again');
	$one->query_safe("BEGIN; SELECT queue_push('$q', '\"own\"', group_key => 'g1')");
	is($one->query_safe(claim($q)), '', 'its own message is not in a lane yet');
	$one->query_safe('COMMIT');
	is($one->query_safe(claim($q)), 'own', '... but after the commit');
}

# Whether groups have a bound may change while a queue is in use.
{
	my $q = new_queue();
	push_to($q, "m$_", "g" . $_ % 4) foreach 1 .. 16;
	my $get = sub { return scalar split / /, $two->query_safe(claim($q)) };
	my $released = $two->query_safe("SELECT DISTINCT claim_id FROM queue_claim('$q', 600, 0, 4)");
	$one->query_safe("SELECT FROM queue_update('$q', '{\"_group_concurrency\": 2}')");
	is($get->(), 4, 'up to a bound that is set');
	push_to($q, "n$_", "g" . $_ % 4) foreach 1 .. 4;
	is($two->query_safe("SELECT claim_release('$q', '$released', failed => true)"),
		4, 'some are released meanwhile');
	$one->query_safe("SELECT FROM queue_update('$q', '{\"_group_concurrency\": null}')");
	is($get->(), 16, 'all when it is dropped');
}

# A queue gets its first key while a transaction is using it.
{
	my $q = fresh('old1', 'old2');
	$one->query_safe('BEGIN ISOLATION LEVEL REPEATABLE READ');
	is($one->query_safe(claim($q, 1)), 'old1', 'without keys');
	push_to($q, "new$_", "g$_") foreach 1 .. 2;
	is($two->query_safe(claim($q, 1)) ne '', 1, 'a session that knows of keys');
	my @got = split / /, $one->query_safe(claim($q));
	is(scalar @got, 2, 'and one whose transaction is older');
	$one->query_safe('COMMIT');
}

# A prepared transaction
set_worker(1);
foreach my $end ('COMMIT', 'ROLLBACK')
{
	my $q = new_queue();
	push_to($q, "m$_", "g$_") foreach 1 .. 6;
	my @got = split / /, $one->query_safe("BEGIN; " . claim($q, 3));
	$one->query_safe(
		"SELECT queue_push('$q', '\"new\"', group_key => 'new'); PREPARE TRANSACTION 'p'");
	push @got, split / /, $two->query_safe(claim($q));
	is("@{[sort @got]}", join(' ', map { "m$_" } 1 .. 6),
		'others pass over what is prepared');
	$two->query_safe("$end PREPARED 'p'");
	my $expected = $end eq 'COMMIT' ? 'new' : join(' ', sort @got[ 0 .. 2 ]);
	my @free;
	for (my $tries = 0; "@{[sort @free]}" ne $expected && $tries < 1000; $tries++)
	{
		sleep 0.1;
		push @free, split / /, $two->query_safe(claim($q));
	}
	is("@{[sort @free]}", $expected, "$end PREPARED: what became free is found");
}
set_worker(0);

# --- No room for all groups ---

# Another queue takes all of it, and keeps it; then nothing may be hidden, and
# groups still take turns.
{
	my $hog = new_queue();
	my $q = new_queue();
	my $locked = new_queue();
	push_to($hog, 'hog', "h$_") foreach 1 .. $room;
	$one->query_safe("SELECT queue_pause('$hog')");
	push_to($locked, "d$_", "g$_") foreach 1 .. 3;
	foreach my $i (1 .. 5)
	{
		$two->query_safe(
			"SELECT count(queue_push('$q', to_jsonb($i), group_key => 'g' || g)) FROM generate_series(1, 20) AS g"
		);
	}
	takes_turns('no room', $q, { map { ("g$_" => 5) } 1 .. 20 }, 7, 1, 30);

	# Messages are locked by plain SQL for a while.
	my $first = $two->query_safe(claim($locked, 1));
	$one->query_safe('BEGIN');
	$one->query_safe("SELECT FROM queue_data.message_$_ WHERE body #>> '{}' LIKE 'd%' FOR UPDATE")
	  foreach 0 .. 15;
	is($two->query_safe(claim($locked)), '', 'locked');
	$one->query_safe('ROLLBACK');
	becomes_free($locked,
		join(' ', grep { $_ ne $first } map { "d$_" } 1 .. 3),
		'when the lock is gone it is found');

	# Room is found again.
	$two->query_safe("SELECT FROM queue_resume('$hog')");
	is(scalar(split / /, $two->query_safe(claim($hog))),
		$room, 'the other queue has lost nothing');
}

# Many more groups than there is room for, in one queue
{
	my $q = new_queue();
	my $groups = 3 * $room;
	foreach (1 .. 4)
	{
		$two->query_safe(
			"SELECT count(queue_push('$q', to_jsonb(g), group_key => 'g' || g)) FROM generate_series(1, $groups) AS g"
		);
	}
	my (%seen, $calls);
	while (my @groups = groups_of($calls++ % 2 ? $one : $two, $q, 1 + $calls % 20))
	{
		$seen{$_}++ foreach @groups;
	}
	is(scalar(grep { $_ == 4 } values %seen),
		$groups, 'all messages of all groups are handed out before a claim is empty');
}

# --- Handlers ---

# A job that is retried runs alone; its group has its turn all the same.
{
	my $q = new_queue('{"_max_claim_count": 5, "_retry_delay": 0}');
	$two->query_safe(
		q{
CREATE TABLE ran (n int GENERATED ALWAYS AS IDENTITY, body text, attempt int);
CREATE FUNCTION run(m queue_message) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
	INSERT INTO ran (body, attempt) VALUES (m.body #>> '{}', m.claim_count);
	RETURN m.body <> '"again"' OR m.claim_count > 2;
END
$$});
	$two->query_safe("SET client_min_messages = warning;
		SELECT job_handler('$q', 'run(queue_message)'::regprocedure)");
	push_to($q, 'job', "g$_", number => 60) foreach 1 .. 5;
	push_to($q, 'again', 'again');
	$node->safe_psql('postgres', "CALL job_run('{$q}', 150)");
	is($two->query_safe(q{SELECT attempt FROM ran WHERE body = 'again'}),
		'3', 'a job that is retried does not wait for all other groups');
	$two->query_safe("SELECT FROM job_handler('$q', NULL)");
}

# --- Under load ---

# pushed and gone are written by the transactions that push and delete: what is
# in the one and not in the other has to be there.
$_->quit foreach $one, $two;
$node->safe_psql(
	'postgres', q{
CREATE SCHEMA lanes;
CREATE TABLE lanes.pushed (n int);
CREATE TABLE lanes.gone (n int);
CREATE TABLE lanes.claim (q text, claim_id text);
CREATE SEQUENCE lanes.number;
CREATE SEQUENCE lanes.empty;	-- not undone by a rollback
CREATE SEQUENCE lanes.twice;
CREATE SEQUENCE lanes.tokens;

-- A few groups have most of the messages.
CREATE FUNCTION lanes.push(q text, groups int) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
	number int := nextval('lanes.number');
BEGIN
	PERFORM queue_push(q, to_jsonb(number), delay => (random() < 0.1)::int,
		priority => (9 * random() ^ 4)::int,
		group_key => CASE WHEN random() < 0.95
			THEN 'g' || floor(groups * random() ^ 3) END);
	INSERT INTO lanes.pushed VALUES (number);
END
$$;

CREATE FUNCTION lanes.finish(q text, claim_id text, way float) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
	m queue_message;
BEGIN
	IF way < 0.2 THEN
		PERFORM claim_release(q, claim_id, (random() < 0.3)::int);
	ELSIF way < 0.3 THEN
		PERFORM claim_renew(q, claim_id, 1);
		INSERT INTO lanes.claim VALUES (q, claim_id);
	ELSE
		FOR m IN SELECT * FROM claim_messages(q, claim_id) LOOP
			IF way < 0.5 THEN
				PERFORM message_retry(q, m.id, claim_id, 'error',
					(random() < 0.2)::int);
			ELSIF message_delete(q, m.id, claim_id) THEN
				INSERT INTO lanes.gone VALUES (m.body::int);
			END IF;
		END LOOP;
	END IF;
END
$$;

CREATE FUNCTION lanes.act(q text, groups int) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
	way float := random();
	c text;
BEGIN
	IF way < 0.3 THEN
		FOR i IN 1 .. 1 + (3 * random())::int LOOP
			PERFORM lanes.push(q, groups);
		END LOOP;
	ELSIF way < 0.6 THEN
		INSERT INTO lanes.claim
		SELECT DISTINCT q, claim_id
		FROM queue_claim(q, 1, 0, 1 + (8 * random())::int);
	ELSIF way < 0.7 THEN
		INSERT INTO lanes.gone
		SELECT body::int FROM queue_pop(q, 1 + (3 * random())::int);
	ELSE
		DELETE FROM lanes.claim
		WHERE ctid = (SELECT ctid FROM lanes.claim AS l WHERE l.q = act.q
			ORDER BY random() LIMIT 1 FOR UPDATE SKIP LOCKED)
		RETURNING claim_id INTO c;
		IF c IS NOT NULL THEN
			PERFORM lanes.finish(q, c, random());
		END IF;
	END IF;
END
$$;

-- The same, perhaps with an error during or after it
CREATE FUNCTION lanes.try(q text, groups int) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
	PERFORM lanes.act(q, groups);
	IF random() < 0.15 THEN
		RAISE division_by_zero;
	END IF;
EXCEPTION
	WHEN division_by_zero OR SQLSTATE 'QU001' OR SQLSTATE 'QU002'
		OR SQLSTATE 'QU003' THEN NULL;
END
$$;

-- One of more tokens than there are sessions, each of which has one at most:
-- there always is a free one.  A claim that gave up waiting for other
-- claims proves nothing.
CREATE FUNCTION lanes.take_token() RETURNS void LANGUAGE plpgsql AS $$
DECLARE
	began timestamptz := clock_timestamp();
	m queue_message;
BEGIN
	SELECT * INTO m FROM queue_claim('token', 600, 0, 1);
	PERFORM set_config('lanes.claim_id', coalesce(m.claim_id, ''), false),
		set_config('lanes.body', coalesce(m.body::text, ''), false),
		nextval('lanes.tokens');
	IF m.id IS NULL THEN
		IF clock_timestamp() < began + interval '0.9 s' THEN
			PERFORM nextval('lanes.empty');
		END IF;
	ELSIF NOT pg_try_advisory_lock(m.body::int) THEN
		PERFORM nextval('lanes.twice');
	END IF;
END
$$;

-- before another session can claim it
CREATE FUNCTION lanes.loosen_token() RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	claim_id text := current_setting('lanes.claim_id');
BEGIN
	IF claim_id <> '' THEN
		PERFORM pg_advisory_unlock(current_setting('lanes.body')::int);
	END IF;
	RETURN claim_id;
END
$$;

CREATE FUNCTION lanes.release_token() RETURNS void LANGUAGE plpgsql AS $$
DECLARE
	c text := lanes.loosen_token();
BEGIN
	IF c <> '' THEN
		PERFORM claim_release('token', c, failed => true);
	END IF;
END
$$;

CREATE FUNCTION lanes.replace_token() RETURNS void LANGUAGE plpgsql AS $$
DECLARE
	c text := lanes.loosen_token();
BEGIN
	IF c <> '' THEN
		PERFORM claim_complete('token', c),
			queue_push('token', to_jsonb(nextval('lanes.number')::int),
				group_key => 'g' || (8 * random())::int);
	END IF;
END
$$;

-- No other session is active.  What is free and is not claimed before a claim
-- is empty, or is claimed twice?
CREATE FUNCTION lanes.check(which text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	now timestamptz := clock_timestamp();
	free int[];
	batch int[];
	claimed int[] := '{}';
BEGIN
	SELECT coalesce(array_agg(body::int), '{}') INTO free
	FROM queue_data.message AS m
	WHERE m.queue = which AND (claimed_until IS NULL OR claimed_until <= now)
		AND (due_at IS NULL OR due_at <= now);
	LOOP
		SELECT array_agg(body::int) INTO batch
		FROM queue_claim(which, 600, 0, 1 + (20 * random())::int);
		EXIT WHEN batch IS NULL;
		claimed := claimed || batch;
	END LOOP;
	RETURN concat_ws(', ',
		(SELECT 'hidden: ' || string_agg(n::text, ' ')
		FROM unnest(free) AS n WHERE n <> ALL (claimed)),
		(SELECT 'twice: ' || string_agg(n::text, ' ') FROM (
			SELECT n FROM unnest(claimed) AS n GROUP BY n
			HAVING count(*) > 1) AS t));
END
$$;

SELECT queue_create(name) FROM unnest('{few,many,token}'::text[]) AS name;
SELECT queue_push('token', to_jsonb(nextval('lanes.number')::int),
	group_key => 'g' || g % 5) FROM generate_series(1, 16) AS g;
});

my %scripts = (
	mixed => [
		6, q{
\set few random(0, 1)
\if :few
\set q few
\set groups 6
\else
\set q many
\set groups 300
\endif
\set acts random(1, 3)
\set end random(1, 10)
BEGIN;
SELECT lanes.try(CASE :few WHEN 1 THEN 'few' ELSE 'many' END, :groups);
\if :acts > 1
SAVEPOINT s;
SELECT lanes.try(CASE :few WHEN 1 THEN 'few' ELSE 'many' END, :groups);
\endif
\if :acts > 2
ROLLBACK TO s;
SELECT lanes.try(CASE :few WHEN 1 THEN 'few' ELSE 'many' END, :groups);
\endif
\if :end <= 2
ROLLBACK;
\elif :end = 3
PREPARE TRANSACTION 'p:client_id';
COMMIT PREPARED 'p:client_id';
\elif :end = 4
PREPARE TRANSACTION 'p:client_id';
\sleep 3 ms
ROLLBACK PREPARED 'p:client_id';
\else
COMMIT;
\endif
} ],
	token => [
		4, q{
\set end random(1, 4)
\set ms random(0, 2)
BEGIN;
SELECT lanes.take_token();
\sleep :ms ms
\if :end = 1
SELECT lanes.loosen_token();
ROLLBACK;
\elif :end = 2
SELECT lanes.replace_token();
COMMIT;
\else
COMMIT;
SELECT lanes.release_token();
\endif
} ]);
$scripts{mixed}[1] =~ s/\\set q \w+\n//g;
my $dir = PostgreSQL::Test::Utils::tempdir;
my @files;
foreach my $name (sort keys %scripts)
{
	append_to_file("$dir/$name.sql", $scripts{$name}[1]);
	push @files, '-f', "$dir/$name.sql\@$scripts{$name}[0]";
}

# "crash": a session is killed at the end, so that all others end too, however long
# they would go on.
sub load
{
	my ($what, $crash) = @_;
	my ($out, $err) = ('', '');
	my $pgbench;
	{
		local $ENV{PGAPPNAME} = 'pgbench';
		$pgbench = IPC::Run::start(
			[
				'pgbench', '-h', $node->host, '-p', $node->port, '-n', '-c', 12,
				'-j', 2, '-T', $crash ? 1800 : $seconds / 2, @files, 'postgres'
			],
			'>', \$out, '2>', \$err);
	}
	my $until = time + $seconds / ($crash ? 3 : 2);
	my $is_connected = q{FROM pg_stat_activity WHERE application_name = 'pgbench'};

	$node->poll_query_until('postgres', "SELECT count(*) > 0 $is_connected") if $crash;
	while (time < $until)
	{
		my ($q, $groups) = rand() < 0.5 ? ('few', 6) : ('many', 300);
		$node->psql('postgres',
			"BEGIN; SELECT lanes.act('$q', $groups), lanes.act('$q', $groups);
			SELECT pg_terminate_backend(pg_backend_pid())");
		sleep 0.05;
	}
	kill 'KILL', $node->safe_psql('postgres',
		"SELECT pid $is_connected LIMIT 1")
	  if $crash;
	$pgbench->finish;
	if ($crash)
	{
		# Only a connection: psql may end before it has read a query.
		$node->poll_query_until('postgres', undef, '')
		  or die 'the server does not come back';
	}
	else
	{
		unlike($err, qr/error|aborted/i, "$what: no unexpected error");
		note "$what: $1 transactions" if $out =~ /actually processed: (\d+)/;
	}
	$node->poll_query_until('postgres', "SELECT count(*) = 0 $is_connected")
	  or die 'sessions do not end';
	$node->safe_psql('postgres', "ROLLBACK PREPARED '$_'")
	  foreach split /\n/,
	  $node->safe_psql('postgres', 'SELECT gid FROM pg_prepared_xacts');
	return;
}

sub quiet
{
	my ($what) = @_;
	my $both = q{unnest('{few,many}'::text[]) AS q};

	# It claims everything, and gives it back by a rollback.  The worker notices the end
	# of prepared transactions a moment later.
	my $until = time + $PostgreSQL::Test::Utils::timeout_default;
	my $wrong;
	do
	{
		$wrong = $node->safe_psql('postgres',
			"BEGIN; SELECT q || ': ' || d FROM $both, lanes.check(q) AS d WHERE d <> ''; ROLLBACK");
	} while ($wrong ne '' && time < $until && sleep 0.2);
	is($wrong, '', "$what: all that is free is claimed, once");
	is( $node->safe_psql('postgres',
			q{SELECT 'twice: ' || n FROM lanes.gone GROUP BY n HAVING count(*) > 1}),
		'', "$what: nothing was deleted twice");
	is( $node->safe_psql('postgres', q{
			WITH there AS (SELECT body::int AS n FROM queue_data.message
				WHERE queue IN ('few', 'many')),
			expected AS (SELECT n FROM lanes.pushed EXCEPT SELECT n FROM lanes.gone)
			(SELECT 'lost: ' || n FROM (TABLE expected EXCEPT TABLE there) AS l LIMIT 5)
			UNION ALL
			(SELECT 'too many: ' || n FROM (TABLE there EXCEPT TABLE expected) AS m LIMIT 5)}),
		'', "$what: what was pushed and not deleted is there, and nothing else");
	is( $node->safe_psql('postgres',
			q{SELECT coalesce(pg_sequence_last_value('lanes.empty'), 0),
				coalesce(pg_sequence_last_value('lanes.twice'), 0),
				pg_sequence_last_value('lanes.tokens') > 100}),
		'0|0|t', "$what: no claim came back empty, or with what another one has");
	return;
}

# until there were claims enough, on a slow machine
my $rounds = 0;
do
{
	load('without the worker', 0);
} until ($node->safe_psql('postgres', q{SELECT last_value > 100 FROM lanes.tokens}) eq 't'
	  || ++$rounds == 20);

# What is delayed, or was prepared, waits for it.
set_worker(1);
$node->poll_query_until('postgres',
	"BEGIN; SELECT count(*) = 0 FROM unnest('{few,many}'::text[]) AS q, lanes.check(q) AS d WHERE d <> ''; ROLLBACK");
quiet('without the worker');

$node->append_conf('postgresql.conf', 'restart_after_crash = on');
$node->restart;
load('a session is killed', 1);
quiet('a session is killed');

# What is claimed or delayed becomes free in the end, and all of it is taken.
is( $node->safe_psql('postgres', q{
		SELECT count(queue_push('few', to_jsonb(n), group_key => 'last'))
		FROM generate_series(-50, -1) AS n}),
	'50', 'some more');
sleep 1.2;
my $taken = $node->safe_psql('postgres', q{
	DO $$
	DECLARE
		n int;
	BEGIN
		FOR i IN 1 .. 100000 LOOP
			SELECT count(*) INTO n FROM queue_pop('few', 7);
			EXIT WHEN n = 0;
		END LOOP;
	END
	$$;
	SELECT free || ' ' || total FROM queue_stats('few')});
is($taken, '0 0', 'all of it is taken');

$node->stop;
done_testing();
