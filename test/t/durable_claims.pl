# queue.durable_claims: what is on disk when a claim has been committed, and what
# is there after a crash.  With the setting off, a transaction that has written
# nothing but claims does not wait for the disk.  After a crash it is as if a
# lost claim had not been made: its messages are free with their old count, and
# its worker gets QU001.  QUEUE_CRASH_ROUNDS says how often the server crashes
# under load (test/stress sets it).

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../perl";

use IPC::Run;
use PostgreSQL::Test::Utils;
use QueueTest qw($node $one start_server value);
use Test::More;
use Time::HiRes qw(sleep);

my $rounds = $ENV{QUEUE_CRASH_ROUNDS} || 3;
my $sessions = 6;

start_server(
	q(
synchronous_commit = on
wal_writer_delay = 10s
wal_writer_flush_after = 2GB
checkpoint_timeout = 1h
autovacuum = off
jit = off
log_statement = none
max_prepared_transactions = 2
queue.durable_claims = off
queue.min_claim_ttl = 1
));

# Nothing else writes WAL or flushes it.
$node->append_conf('postgresql.conf', 'queue.database_workers = 0');
$node->restart;
$node->safe_psql(
	'postgres', q(
SELECT queue_create('plain'), queue_create('second'), queue_create('jobs'),
	queue_create('load');
SELECT queue_create('limited', '{"_max_claim_count": 5}'),
	queue_create('bounded', '{"_group_concurrency": 5}');
CREATE TABLE effect (id bigint);
CREATE UNLOGGED TABLE unlogged (id bigint);
CREATE SEQUENCE numbers;

CREATE FUNCTION insert_effect() RETURNS bigint LANGUAGE sql
AS 'INSERT INTO effect VALUES (1) RETURNING id';
CREATE FUNCTION only_claims() RETURNS bigint LANGUAGE plpgsql
AS $$ BEGIN RETURN (SELECT count(*) FROM queue_claim('plain')); END $$;
CREATE FUNCTION claims_in_block() RETURNS bigint LANGUAGE plpgsql
AS $$
BEGIN
	RETURN (SELECT count(*) FROM queue_claim('plain'));
EXCEPTION WHEN division_by_zero THEN
	RETURN 0;
END $$;
CREATE FUNCTION inserts_then_claims() RETURNS bigint LANGUAGE plpgsql
AS $$
BEGIN
	INSERT INTO effect VALUES (1);
	RETURN (SELECT count(*) FROM queue_claim('plain'));
END $$;
CREATE FUNCTION claims_then_inserts() RETURNS bigint LANGUAGE plpgsql
AS $$
BEGIN
	PERFORM * FROM queue_claim('plain');
	INSERT INTO effect VALUES (1);
	RETURN 1;
END $$;
CREATE FUNCTION insert_when_deferred() RETURNS trigger LANGUAGE plpgsql
AS $$ BEGIN INSERT INTO effect VALUES (1); RETURN NULL; END $$;
CREATE FUNCTION sleeps(body jsonb) RETURNS boolean LANGUAGE plpgsql
AS $$
BEGIN
	IF body = '1' THEN
		PERFORM pg_sleep(1.5), queue_push('jobs', '2');
	ELSE
		PERFORM pg_sleep(180);
	END IF;
	RETURN true;
END $$;));


sub connect_session
{
	$one = $node->background_psql('postgres');
	$one->query_safe(q(
CREATE TEMP TABLE temporary (id bigint);
CREATE TEMP TABLE deferred (id bigint);
CREATE CONSTRAINT TRIGGER deferred AFTER INSERT ON deferred
	DEFERRABLE INITIALLY DEFERRED
	FOR EACH ROW EXECUTE FUNCTION insert_when_deferred()));
	return;
}

# The header of a page may lie between the ends of what was written and flushed.
sub is_flushed
{
	return value(
		'SELECT pg_current_wal_insert_lsn() - pg_current_wal_flush_lsn() <= 40')
	  eq 't';
}

# Looking up functions may prune pages of catalogs, which is not flushed.
sub flush
{
	foreach (1 .. 20)
	{
		return if is_flushed();
		value(q(SELECT queue_push('second', '1')));
	}
	die 'a push is not flushed';
}

# Has the work been flushed when it has been committed?  Three messages are free
# in each queue before, and a claim of one more, :claim of message :id, is held.
# The WAL writer flushes now and then, so it is asynchronous if it is not flushed
# once in five times.
sub waits_for_disk
{
	my ($work) = @_;

	foreach (1 .. 5)
	{
		value(
			q(SET queue.durable_claims = on;
SELECT queue_purge(q) FROM unnest('{plain,second,limited,bounded}'::text[]) AS q;
SELECT queue_push(q, to_jsonb(i))
	FROM unnest('{plain,second,limited,bounded}'::text[]) AS q, generate_series(1, 4) AS i;
SELECT id, claim_id AS claim FROM queue_claim('plain', 300, 60, 1) \gset
RESET queue.durable_claims));
		flush();
		value($work);
		my $flushed = is_flushed();
		value(q(ROLLBACK PREPARED 'p')) if $work =~ /PREPARE TRANSACTION 'p'$/;
		die 'the setting is not restored'
		  if value('SHOW synchronous_commit') ne 'on';
		return 0 if !$flushed;
	}
	return 1;
}

connect_session();

# --- what waits for the disk ---

my $claim = q(SELECT count(*) FROM queue_claim('plain', 300, 60, 1););
my %asynchronous = (
	'a claim' => $claim,
	'queue_claim_any' => q(SELECT count(*) FROM queue_claim_any()),
	'queue_claim_any of some' =>
	  q(SELECT count(*) FROM queue_claim_any('{second,plain}')),
	'claim_next without a claim' => q(SELECT count(*) FROM claim_next('plain', NULL)),
	'a block of a claim' => "BEGIN; $claim COMMIT",
	'a block of two claims' =>
	  "BEGIN; $claim SELECT count(*) FROM queue_claim('second'); COMMIT",
	'a claim, and one that finds nothing' =>
	  "BEGIN; SELECT count(*) FROM queue_claim('plain'); $claim COMMIT",
	'a claim in a savepoint' => "BEGIN; SAVEPOINT s; $claim RELEASE s; COMMIT",
	'a claim in a function' => 'SELECT only_claims()',
	'a claim in an exception block' => 'SELECT claims_in_block()',
	'a claim after reading' => "BEGIN; SELECT count(*) FROM effect; $claim COMMIT",
	'a claim, then reading' => "BEGIN; $claim SELECT count(*) FROM effect; COMMIT",
	'a claim at SERIALIZABLE' => "BEGIN ISOLATION LEVEL SERIALIZABLE; $claim COMMIT",
	'a claim kept in a temporary table' =>
	  q(INSERT INTO temporary SELECT id FROM queue_claim('plain')),
	'a claim kept in an unlogged table' =>
	  q(INSERT INTO unlogged SELECT id FROM queue_claim('plain')),
	'a claim after SET LOCAL' =>
	  "BEGIN; SET LOCAL synchronous_commit = local; $claim COMMIT",
	'a claim after SET' => qq(BEGIN; SET synchronous_commit = local; $claim COMMIT;
SELECT 1 / (current_setting('synchronous_commit') = 'local')::int;
RESET synchronous_commit),
	'a claim with the setting off in its block' =>
	  "SET queue.durable_claims = on; BEGIN; SET LOCAL queue.durable_claims = off; $claim COMMIT; RESET queue.durable_claims");
my %synchronous = (
	'a claim with the setting on' =>
	  "BEGIN; SET LOCAL queue.durable_claims = on; $claim COMMIT",
	'one of two claims with the setting on' =>
	  "BEGIN; $claim SET LOCAL queue.durable_claims = on; $claim COMMIT",
	'the other of two claims with the setting on' =>
	  "BEGIN; SET LOCAL queue.durable_claims = on; $claim SET LOCAL queue.durable_claims = off; $claim COMMIT",
	'a claim of a queue with _max_claim_count' =>
	  q(SELECT count(*) FROM queue_claim('limited')),
	'a claim of a queue with _group_concurrency' =>
	  q(SELECT count(*) FROM queue_claim('bounded')),
	'queue_claim_any of that' => q(SELECT count(*) FROM queue_claim_any('{limited}')),
	'such a claim before another one' =>
	  "BEGIN; SELECT count(*) FROM queue_claim('limited'); $claim COMMIT",
	'such a claim after another one' =>
	  "BEGIN; $claim SELECT count(*) FROM queue_claim('limited'); COMMIT",
	'an insert before a claim' => "BEGIN; INSERT INTO effect VALUES (1); $claim COMMIT",
	'a logical message before a claim' =>
	  "BEGIN; SELECT pg_logical_emit_message(false, 'test', 'x'); $claim COMMIT",
	'an insert after a claim' => "BEGIN; $claim INSERT INTO effect VALUES (1); COMMIT",
	'an insert between claims' =>
	  "BEGIN; $claim INSERT INTO effect VALUES (1); $claim COMMIT",
	'an insert in a savepoint after a claim' =>
	  "BEGIN; $claim SAVEPOINT s; INSERT INTO effect VALUES (1); RELEASE s; COMMIT",
	'an insert after a claim that was rolled back' =>
	  "BEGIN; SAVEPOINT s; $claim ROLLBACK TO s; INSERT INTO effect VALUES (1); COMMIT",
	'a function that inserts, then claims' => 'SELECT inserts_then_claims()',
	'a function that claims, then inserts' => 'SELECT claims_then_inserts()',
	'a statement that inserts in a WITH query' =>
	  q(WITH x AS (INSERT INTO effect VALUES (1)) SELECT count(*) FROM queue_claim('plain')),
	'a statement that inserts in a WITH query that it reads first' =>
	  q(WITH x AS MATERIALIZED (INSERT INTO effect VALUES (1) RETURNING id)
		SELECT (SELECT max(id) FROM x), count(*) FROM queue_claim('plain', 300, (SELECT 59 + max(id) FROM x)::int)),
	'a statement that inserts what it claims' =>
	  q(INSERT INTO effect SELECT id FROM queue_claim('plain')),
	'a statement that inserts in a WITH query what it claims' =>
	  q(WITH c AS (SELECT id FROM queue_claim('plain')), x AS (INSERT INTO effect SELECT id FROM c RETURNING id) SELECT count(*) FROM x),
	'a statement that inserts for each message' =>
	  q(SELECT insert_effect() FROM queue_claim('plain')),
	'a statement whose argument inserts' =>
	  q(SELECT count(*) FROM queue_claim('plain', 299 + insert_effect()::int)),
	'a deferred trigger that inserts' =>
	  "BEGIN; $claim INSERT INTO deferred VALUES (1); COMMIT",
	'a claim and a lazy push' => "BEGIN; $claim SELECT queue_push_lazy('second', '1'); COMMIT",
	'a lazy push and a claim' => "BEGIN; SELECT queue_push_lazy('second', '1'); $claim COMMIT",
	'a claim and a table' => "BEGIN; $claim CREATE TABLE t (); DROP TABLE t; COMMIT",
	'a claim and a row lock' => "BEGIN; $claim SELECT * FROM locked FOR UPDATE; COMMIT",
	'a claim and a sequence' => "BEGIN; $claim SELECT setval('numbers', 1); COMMIT",
	'a claim and a large object' =>
	  "BEGIN; $claim SELECT lo_unlink(lo_create(0)); COMMIT",
	'a claim and a push' => "BEGIN; $claim SELECT queue_push('second', '1'); COMMIT",
	'a claim and its completion' =>
	  q(SELECT claim_complete('plain', max(claim_id)) FROM queue_claim('plain')),
	'a prepared claim' => "BEGIN; $claim PREPARE TRANSACTION 'p'",
	'its commit' => "BEGIN; $claim PREPARE TRANSACTION 'p'; COMMIT PREPARED 'p'",
	'claim_next' => q(SELECT count(*) FROM claim_next('plain', :'claim')),
	'claim_complete' => q(SELECT claim_complete('plain', :'claim')),
	'claim_renew' => q(SELECT claim_renew('plain', :'claim', 300)),
	'claim_release' => q(SELECT claim_release('plain', :'claim', failed => true)),
	'message_delete' => q(SELECT message_delete('plain', :id, :'claim')),
	'messages_delete' => q(SELECT messages_delete('plain', ARRAY[:id], :'claim')),
	'message_retry' => q(SELECT message_retry('plain', :id, :'claim', 'failed', 0)),
	'queue_pop' => q(SELECT count(*) FROM queue_pop('plain')),
	'queue_push' => q(SELECT queue_push('plain', '1')));
value('CREATE TABLE locked AS SELECT 1 AS id');

foreach (sort keys %asynchronous)
{
	ok(!waits_for_disk($asynchronous{$_}), "$_ does not wait for the disk");
}
foreach (sort keys %synchronous)
{
	ok(waits_for_disk($synchronous{$_}), "$_: that waits for the disk");
}

# --- what a crash leaves ---

# What an error leaves of a claim that is not live
sub refuses
{
	my ($call) = @_;

	my ($rc, $out, $err) =
	  $node->psql('postgres', "\\set VERBOSITY sqlstate\nSELECT $call");
	return $err =~ /QU001/;
}

sub crash
{
	$node->stop('immediate');
	$one->{run}->kill_kill;
	$node->start;
	connect_session();
	return;
}

# The position up to which the WAL was written does not include the last commit.
# The WAL writer may still write it before the server stops, so try again then.
my ($durable, $followed, $lost, $id, $count);
my ($counted, $made);

foreach (1 .. 3)
{
	$made = 2;
	$counted = value(q(SELECT claimed FROM job_stats('plain')));
	value(
		q(SELECT queue_purge('plain');
SELECT queue_push('plain', to_jsonb(i)) FROM generate_series(1, 6) AS i));
	$durable = value(
		q(WITH x AS (INSERT INTO effect VALUES (1))
		SELECT claim_id FROM queue_claim('plain', 300, 60, 1)));
	$followed = value(q(SELECT claim_id FROM queue_claim('plain', 300, 60, 1)));
	$node->safe_psql('postgres', q(SELECT queue_push('second', '1')));
	foreach (1 .. 5)
	{
		$made += 2;
		value(
			q(SELECT claim_release('plain', claim_id, failed => true)
			FROM queue_claim('plain', 300, 60, 1)));
		($lost, $id, $count) = split /\|/, value(
			q(SELECT claim_id, id, claim_count
			FROM queue_claim('plain', 300, 60, 1)));
		last if value(
			'SELECT pg_current_wal_insert_lsn() - pg_current_wal_lsn() > 40') eq 't';
		value("SELECT claim_release('plain', '$lost', failed => true)");
	}
	crash();
	last
	  if value("SELECT count(*) FROM claim_get('plain', '$lost')") eq '0';
}
is(value(qq(SELECT message_count FROM claim_get('plain', '$durable'))),
	'1', 'a claim with other work is there after a crash');
is(value(qq(SELECT message_count FROM claim_get('plain', '$followed'))),
	'1', 'and so is a claim that a commit of another session followed');
is( value(qq(SELECT claim_id, claim_count FROM message_get('plain', $id))),
	'|' . ($count - 1),
	'a claim that was lost has left its message free, with the old count');
cmp_ok(value(q(SELECT claimed FROM job_stats('plain'))),
	'<=', $counted + $made, 'no claim is counted that was not made');
is(value(q(SELECT free, claimed, total FROM queue_stats('plain'))),
	'4|2|6', 'no message was lost');
is( value(qq(SELECT claim_release('plain', '$lost', failed => true), claim_renew('plain', '$lost', 300))),
	'0|',
	'the lost claim is as an unknown one');
ok(refuses($_), "$_ with it is refused")
  foreach (
	"claim_complete('plain', '$lost')",
	"claim_next('plain', '$lost')",
	"message_delete('plain', $id, '$lost')",
	"messages_delete('plain', ARRAY[$id], '$lost')",
	"message_retry('plain', $id, '$lost')");
my $again = value(q(SELECT claim_id, id, claim_count FROM queue_claim('plain', 300, 60, 1)));
like($again, qr/^\w+\|$id\|$count$/, 'the message is claimed again');
unlike($again, qr/^$lost\|/, 'with another claim id');
ok(refuses("message_delete('plain', $id, '$lost')"),
	'the holder of the lost claim is still refused');
is( value(q(SELECT queue_claim IS NULL FROM queue_claim('plain', 300, 60, 10) LIMIT 1)),
	'f', 'the others are free');

# A claim for a handler counts its attempts before they begin.  The first claim
# of a run is always durable, so the second one is tested.
value(q(SET client_min_messages = warning;
	SELECT job_handler('jobs', 'sleeps(jsonb)');
SELECT queue_push('jobs', '1')));
my ($out, $err) = ('', '');
my $run = IPC::Run::start(
	[ 'psql', '-XAtq', '-d', $node->connstr('postgres'), '-c', q(CALL job_run('{jobs}')) ],
	'<', \undef, '>', \$out, '2>', \$err);
$node->poll_query_until('postgres',
	q(SELECT count(*) = 1 FROM queue_data.message
	WHERE queue = 'jobs' AND state = 'claimed' AND body = '2'));
crash();
$run->finish;
is( value(
		q(SELECT body, claim_count FROM queue_data.message WHERE queue = 'jobs')),
	'2|1', 'an attempt to run a job that a crash has ended is counted');
value(q(SELECT job_handler('jobs', NULL)));

# --- crashes under load ---

# A session pushes and claims until the server is gone.  It writes lines: P and
# messages that it has pushed, C, a claim and the messages that it has got, T
# and messages that it is going to delete, D and those that are deleted, E and
# those that are deleted with an effect in the same transaction.
my $claims = q(
SELECT coalesce(max(claim_id), '') AS claim,
	coalesce(string_agg(id::text, ' '), '') AS ids, count(*) > 0 AS got
FROM queue_claim('load', 3000, 60, 2) \gset
);
my @work = (
	q(
SELECT string_agg(i::text, ' ') AS ids
FROM unnest(queue_push_batch('load', array_fill('1'::jsonb, ARRAY[8]))) AS i \gset
\echo P :ids
),
	qq($claims
\\echo C :claim :ids
),
	qq(BEGIN; $claims COMMIT;
\\echo C :claim :ids
),
	qq($claims
\\echo C :claim :ids
\\if :got
\\echo T :ids
SELECT claim_complete('load', :'claim') \\g /dev/null
\\echo D :ids
\\endif
),
	qq($claims
\\echo C :claim :ids
\\if :got
\\echo T :ids
\\set old :ids
SELECT coalesce(max(claim_id), '') AS claim,
	coalesce(string_agg(id::text, ' '), '') AS ids
FROM claim_next('load', :'claim', 3000, 60, 2) \\gset
\\echo D :old
\\echo C :claim :ids
\\endif
),
	qq($claims
\\echo C :claim :ids
\\if :got
\\echo T :ids
BEGIN;
INSERT INTO effect SELECT id FROM claim_messages('load', :'claim');
SELECT claim_complete('load', :'claim') \\g /dev/null
COMMIT;
\\echo E :ids
\\endif
));

# For two seconds all of that, then only claims, so that no commit flushes the
# claims of other sessions.
sub load_script
{
	my $script = "SELECT now() + interval '2 s' AS until \\gset\n\\set late f\n";

	foreach (1 .. 3000)
	{
		$script .= "\\if :late\n" . $work[ 1 + int rand 2 ] . "\\else\n";
		$script .= $work[ rand @work ] foreach 1 .. 4;
		$script .=
		  "SELECT clock_timestamp() > :'until' AS late \\gset\n\\endif\n";
	}
	return $script;
}

my %there;    # what is known of the messages: how often each was claimed
my %held;     # the claim that held it after the last crash
my %gone;     # those that were deleted
my $losses = 0;

value('TRUNCATE effect');

# A crash need not lose a claim; go on until one does.
for (my $round = 1; $round <= $rounds || ($losses == 0 && $round <= $rounds + 10); $round++)
{
	my @problems;
	my (%claim_of, %maybe);
	my @load = map {
		my $file = PostgreSQL::Test::Utils::tempdir() . '/load.sql';
		append_to_file($file, load_script());
		my $load = { out => '', err => '' };
		$load->{run} = IPC::Run::start(
			[
				'psql', '-XAtq', '-v', 'ON_ERROR_STOP=1', '-d',
				$node->connstr('postgres'), '-f', $file
			],
			'<', \undef, '>', \$load->{out}, '2>', \$load->{err});
		$load;
	} 1 .. $sessions;
	sleep 2.2 + rand 0.3;
	crash();
	$_->{run}->finish foreach @load;

	foreach my $load (@load)
	{
		push @problems, $load->{err}
		  if $load->{err} =~ /ERROR/;
		foreach (split /\n/, $load->{out})
		{
			my ($what, @ids) = split ' ';
			my $claim = $what eq 'C' ? shift @ids : undef;

			foreach my $id (@ids)
			{
				$there{$id} //= 0 if $what eq 'P';
				$maybe{$id} = 1 if $what eq 'T';
				$gone{$id} = 1 if $what =~ /[DE]/;
				next if $what ne 'C';
				push @problems, "$id was in two claims at once"
				  if $claim_of{$id} || $held{$id};
				$claim_of{$id} = $claim;
			}
		}
	}

	my %now;
	foreach (
		split /\n/,
		value(
			q(SELECT id, claim_count, coalesce(claim_id, '')
			FROM messages_get('load', ARRAY(SELECT id FROM queue_data.message
				WHERE queue = 'load')))))
	{
		my ($id, $count, $claim) = split /\|/, $_, -1;

		push @problems, "$id is there twice" if $now{$id};
		$now{$id} = [ $count, $claim ];
	}
	my %lost;
	foreach my $id (keys %{ { %there, %now } })
	{
		if ($gone{$id})
		{
			push @problems, "$id was deleted and is there" if $now{$id};
			next;
		}
		if (!$now{$id})
		{
			push @problems, "$id is lost" if !$maybe{$id};
			$gone{$id} = 1;
			next;
		}
		my ($count, $claim) = @{ $now{$id} };
		my $before = $there{$id} // 0;

		# Of a claim that no session has reported nothing is known.
		push @problems, "$id is not in the claim $held{$id} any more"
		  if $held{$id} && $claim ne $held{$id};
		push @problems, "$id was claimed $before times before, and is now $count"
		  if $count != $before + ($claim ne '' && !$held{$id});
		if ($claim_of{$id})
		{
			push @problems, "$id is in another claim than $claim_of{$id}"
			  if $claim ne '' && $claim ne $claim_of{$id};
			push @{ $lost{ $claim_of{$id} } }, $id if $claim eq '';
		}
		$there{$id} = $count;
		$held{$id} = $claim if $claim ne '';
	}
	delete @there{ keys %gone };
	delete @held{ keys %gone };

	# A lost claim is lost as a whole.
	foreach my $id (keys %claim_of)
	{
		push @problems, "$claim_of{$id} was lost, but $id is in it"
		  if $lost{ $claim_of{$id} } && $held{$id};
		push @problems, "$claim_of{$id} was lost, but $id was deleted"
		  if $lost{ $claim_of{$id} } && $gone{$id};
	}
	foreach (keys %lost)
	{
		push @problems, "$_ was lost, and is live"
		  if !refuses("claim_complete('load', '$_')");
	}
	$losses += keys %lost;

	# An effect comes with the delete of its message.
	my %effect = map { $_ => 1 } split /\n/, value('SELECT id FROM effect');
	push @problems, 'an effect came twice'
	  if value('SELECT count(*) = count(DISTINCT id) FROM effect') ne 't';
	push @problems, map { "$_ has its effect and is there" }
	  grep { $now{$_} } keys %effect;
	foreach (map { split /\n/, $_->{out} } @load)
	{
		my ($what, @ids) = split ' ';
		push @problems, map { "the effect of $_ is lost" }
		  grep { $what eq 'E' && !$effect{$_} } @ids;
	}

	my $claimed = keys %claim_of;
	is( join("\n", @problems[ 0 .. ($#problems > 9 ? 9 : $#problems) ]),
		'', "round $round: after $claimed claimed messages, "
		  . keys(%lost) . ' claims lost');
}
cmp_ok($losses, '>', 0, 'the crashes have lost claims');

$one->quit;
$node->stop;
done_testing();
