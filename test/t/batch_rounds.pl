# What waits for a batch is handed out once: rounds in which sessions that finish
# its members roll back, are terminated or prepare their transactions, and the
# worker is terminated; at the end of some the server crashes, or a standby takes
# over.  QUEUE_BATCH_ROUNDS says how many (20; test/stress sets it).

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../perl";

use IPC::Run;
use ClusterTest;
use PostgreSQL::Test::Utils;
use QueueTest;
use Test::More;

my $rounds = $ENV{QUEUE_BATCH_ROUNDS} || 20;

$node = PostgreSQL::Test::Cluster->new('main');
$node->init(allows_streaming => 1);
$node->append_conf(
	'postgresql.conf', q(
max_prepared_transactions = 10
));
$node->start;
value(
	q{CREATE EXTENSION queue;
	CREATE TABLE taken (batch bigint);

	-- Finishes all members that it gets.  Before some transactions end, a session
	-- waits a little, so that others meet it.
	CREATE PROCEDURE work() LANGUAGE plpgsql AS $$
	DECLARE n int;
	BEGIN
		LOOP
			BEGIN
				SELECT count(*) INTO n FROM queue_pop('member', 1 + (random() * 2)::int);
				IF random() < 0.2 THEN
					RAISE EXCEPTION SQLSTATE 'ST000';
				END IF;
			EXCEPTION WHEN SQLSTATE 'ST000' THEN
				NULL;
			END;
			IF random() < 0.3 THEN PERFORM pg_sleep(0.002); END IF;
			IF random() < 0.2 THEN ROLLBACK; ELSE COMMIT; END IF;
			EXIT WHEN n = 0;
		END LOOP;
	END $$;
	CREATE PROCEDURE take() LANGUAGE plpgsql AS $$
	BEGIN
		FOR i IN 1 .. 10 LOOP
			INSERT INTO taken SELECT (body #>> '{}')::bigint FROM queue_pop('after', 10);
			COMMIT;
			PERFORM pg_sleep(0.003);
		END LOOP;
	END $$});

# Starts a session for each script; returns them.
sub begin
{
	my (@scripts) = @_;

	return map {
		IPC::Run::start([ 'psql', '-X', '-q', '-d', $node->connstr('postgres'), '-c', $_ ],
			'>', '/dev/null', '2>', '/dev/null')
	} @scripts;
}

# The standby of the present server takes its place.
my $nstandbys = 0;

sub fail_over
{
	my $standby = PostgreSQL::Test::Cluster->new('standby' . ++$nstandbys);

	$node->backup("base$nstandbys");
	$standby->init_from_backup($node, "base$nstandbys", has_streaming => 1);
	$standby->start;
	$node->wait_for_catchup($standby, 'replay', $node->lsn('insert'));
	$node->stop('immediate');
	$standby->promote;
	$node = $standby;
	return;
}

my %times = (crash => 0, failover => 0, prepared => 0);
my @wrong;
foreach my $round (1 .. $rounds)
{
	my $batch = (
		split /\n/,
		value(
			q{BEGIN; SELECT batch_create(keep_open => random() < 0.3) AS b \gset
			SELECT count(queue_push('member', to_jsonb(i), batch => :b)) FROM generate_series(1, 12) AS i;
			SELECT queue_push('after', to_jsonb(:b), after => :b); COMMIT; SELECT :b}))[-1];
	my $end = $round % 2 ? 'COMMIT' : 'ROLLBACK';
	my @sessions = begin(
		('CALL work()') x 3,
		'CALL take()',
		"BEGIN; SELECT queue_pop('member', 2); PREPARE TRANSACTION 'p'",
		"BEGIN; SELECT queue_push('member', '0', batch => $batch); SELECT pg_sleep(0.005); $end",
		q{SELECT pg_sleep(random() / 50);
		SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()
		AND (query LIKE 'CALL %' OR query LIKE 'BEGIN;%' OR backend_type = 'queue worker')
		ORDER BY random() LIMIT 1});

	if ($round % 20 == 10)
	{
		$node->stop('immediate');
		$node->start;
		$times{crash}++;
	}
	$_->finish foreach @sessions;
	value("SELECT batch_close($batch)");
	if ($round % 20 == 0)
	{
		fail_over();
		$times{failover}++;
	}
	if (value('SELECT count(*) FROM pg_prepared_xacts') eq '1')
	{
		push @wrong, "$batch has finished, though a member is claimed"
		  if value("SELECT finished_at IS NOT NULL AND unfinished > 0 FROM batch_status($batch)") eq 't';
		value("$end PREPARED 'p'");
		$times{prepared}++;
	}

	# The rest, and no more than that
	my $until = time + 60;
	until (value("SELECT count(*) FROM taken WHERE batch = $batch") eq '1' || time > $until)
	{
		value('CALL work()');
		value('CALL take()');
	}
	my $state = value(
		"SELECT finished_at IS NOT NULL, unfinished, failed, waiting, members = completed,
			members IN (12, 13) FROM batch_status($batch)");
	push @wrong, "$batch: $state" if $state ne 't|0|0|0|t|t';
}
is(join("\n", @wrong), '', 'each batch has finished, with all its members');
is( value(
		q{SELECT batch, count(*) FROM taken GROUP BY batch HAVING count(*) <> 1}),
	'',
	'what waits was handed out once');
is(value('SELECT count(*) FROM taken'), $rounds, 'for each batch');
is( value(q{SELECT total FROM queue_stats('after') UNION ALL SELECT total FROM queue_stats('member')}),
	"0\n0",
	'and nothing is left');
becomes('SELECT count(*) FROM queue_data.batch_part', '0', 'nor a part');
note "$rounds rounds, with ", join ', ', map { "$times{$_} of kind $_" } sort keys %times;
cmp_ok($times{$_}, '>', 0, $_) foreach sort keys %times;
$node->stop;
done_testing();
