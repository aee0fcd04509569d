# Sessions that only probe for something to claim, and the worker, do not hide
# messages from a concurrent claim: it gets the first message, not the one
# behind it.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../perl";

use IPC::Run;
use PostgreSQL::Test::Utils;
use QueueTest;
use Test::More;
use Time::HiRes qw(sleep);

my $delayed = 100;    # queues with a message that becomes due

start_server(
	q{
autovacuum = off
queue.min_claim_ttl = 1
queue.min_claim_grace = 0
});

# Each writes down what is wrong, and how often it has claimed.
$node->safe_psql(
	'postgres', q{
CREATE TABLE wrong (what text, n int, first bigint, got bigint);
CREATE TABLE counts (what text, n int);
CREATE TABLE stop ();

CREATE PROCEDURE fresh(times int) LANGUAGE plpgsql AS $$
DECLARE
	first bigint;
	got bigint;
	n int := 0;
BEGIN
	WHILE n < times LOOP
		first := queue_push('fresh', '1');
		COMMIT;
		PERFORM queue_push('fresh', '2');
		COMMIT;
		SELECT id INTO got FROM queue_claim('fresh', 60, 0, 1);
		COMMIT;
		n := n + 1;
		IF got IS DISTINCT FROM first THEN
			INSERT INTO wrong VALUES ('fresh', n, first, got);
		END IF;
		PERFORM queue_purge('fresh');
		COMMIT;
	END LOOP;
	INSERT INTO counts VALUES ('fresh', n);
END $$;

-- Messages whose delays and claims are over, before one that is always free
CREATE PROCEDURE due(q text, first bigint, due timestamptz, times int)
LANGUAGE plpgsql AS $$
DECLARE
	began timestamptz;
	got bigint;
	n int := 0;
BEGIN
	WHILE n < times LOOP
		began := clock_timestamp();
		SELECT id INTO got FROM queue_claim(q, 60, 0, 1);
		ROLLBACK;
		CONTINUE WHEN began <= due;
		n := n + 1;
		IF got IS DISTINCT FROM first THEN
			INSERT INTO wrong VALUES (q, n, first, got);
			COMMIT;
		END IF;
	END LOOP;
	INSERT INTO counts VALUES (q, n);
END $$;

CREATE FUNCTION probes() RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
	n bigint := 0;
BEGIN
	WHILE NOT EXISTS (SELECT FROM stop) LOOP
		PERFORM queue_ready();
		n := n + 1;
	END LOOP;
	RETURN n;
END $$;
});

my @probers;

sub begin_probing
{
	foreach (1 .. 3)
	{
		my %prober;

		$prober{run} = IPC::Run::start(
			[
				'psql', '-XqAt', '-d', $node->connstr('postgres'),
				'-c', 'SELECT probes()'
			],
			'<', '/dev/null', '>', \$prober{times});
		push @probers, \%prober;
	}
	becomes(q{SELECT count(*) FROM pg_stat_activity WHERE query = 'SELECT probes()'},
		3, 'three sessions probe');
	return;
}

sub end_probing
{
	$node->safe_psql('postgres', 'INSERT INTO stop DEFAULT VALUES');
	foreach my $prober (@probers)
	{
		ok($prober->{run}->finish, 'a session probed without an error');
		cmp_ok($prober->{times}, '>', 1, 'again and again');
	}
	@probers = ();
	$node->safe_psql('postgres', 'TRUNCATE stop');
	return;
}

# So many claims got the first message.
sub is_in_order
{
	my ($what, $times) = @_;

	is( $node->safe_psql(
			'postgres',
			"SELECT what, n, first, got FROM wrong WHERE what LIKE '$what%' LIMIT 5"
		),
		'',
		"$what: each claim got the first one");
	is($node->safe_psql('postgres', "SELECT sum(n) FROM counts WHERE what LIKE '$what%'"),
		$times, "$what: so many claims");
	return;
}

# What was pushed just now

begin_probing();
$node->safe_psql('postgres', 'CALL fresh(1000)');
end_probing();
is_in_order('fresh', 1000);

# Delays: many queues, each with a message that is due in the same second

my $claims = $node->safe_psql(
	'postgres', qq{
	SELECT format('CALL due(%L, %s, clock_timestamp(), 100);', 'delay' || i,
				  queue_push('delay' || i, '1', delay => 1)),
		queue_push('delay' || i, '2')
	FROM generate_series(1, $delayed) i});
$claims =~ s/\|.*//mg;
sleep 1.1;
begin_probing();
$node->safe_psql('postgres', $claims);
end_probing();
is_in_order('delay', $delayed * 100);
is( $node->safe_psql(
		'postgres',
		"SELECT count(*), min(n) FROM counts WHERE what LIKE 'delay%'"),
	"$delayed|100",
	'all of them');

# Claims that run out, which the worker sweeps: fifty of a hundred messages
# each, one after the other.  All are made before the first of them can run out,
# however long that takes.

$node->safe_psql(
	'postgres', q{
	SELECT queue_push_batch('claims', array_agg('1'::jsonb))
	FROM generate_series(1, 5000);
	SELECT queue_push('claims', '2');
	CREATE TABLE claims AS SELECT 0 AS i, id, claim_id
	FROM queue_claim('claims', 600, 0, 1)});
my $id = $node->safe_psql('postgres', 'SELECT id FROM claims');
$node->safe_psql(
	'postgres', join '', map {
		"INSERT INTO claims SELECT $_, min(id), claim_id
		FROM queue_claim('claims', 600, 0, 100) GROUP BY claim_id;"
	} 1 .. 50);
my $due = $node->safe_psql('postgres',
	q{SELECT claim_renew('claims', claim_id, 1, 0) FROM claims WHERE i = 0});
$node->safe_psql(
	'postgres', join '', map {
		"SELECT pg_sleep(0.005);
		SELECT claim_renew('claims', claim_id, 1, 0) FROM claims WHERE i = $_;"
	} 1 .. 50);
begin_probing();
$node->safe_psql('postgres', "CALL due('claims', $id, '$due', 4000)");
end_probing();
is_in_order('claims', 4000);

done_testing();
