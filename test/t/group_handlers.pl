# Handlers and groups: runners keep the bounds, the order and the turns of
# groups, whatever the concurrency of the handler.
#
# test/check -q runs it, too.

use strict;
use warnings;

use PostgreSQL::Test::Utils;
use Test::More;

use FindBin;
use lib "$FindBin::RealBin/../perl";

use HandlerTest qw($node $db start_server value becomes is_done);

start_server(q{
queue.runners = 4
queue.max_runners = 6});

# A run that fails is not in the log; its message comes first, then.
value(
	q{CREATE TABLE log (q text, g text, n int, tries int,
		began timestamptz, ended timestamptz, pid int DEFAULT pg_backend_pid());
	CREATE FUNCTION run(m queue_message) RETURNS boolean LANGUAGE plpgsql AS $$
	DECLARE
		began timestamptz := clock_timestamp();
	BEGIN
		PERFORM pg_sleep(random() * 0.006);
		IF random() < 0.15 THEN
			RETURN false;
		END IF;
		INSERT INTO log VALUES (m.queue, m.group_key, m.body::int, m.claim_count,
			began, clock_timestamp());
		RETURN true;
	END $$});

# How many runs of one group there were at the same time, at most
my $at_once = q{
	SELECT max(n) FROM (SELECT count(*) AS n FROM log AS a JOIN log AS b USING (q, g)
		WHERE q = '%s' AND b.began <= a.began AND b.ended > a.began
		GROUP BY a.ctid) AS counts};

foreach my $bound (1, 2)
{
	my $q = "q$bound";

	value(
		qq{SELECT queue_create('$q', '{"_group_concurrency": $bound,
			"_retry_delay": 0, "_max_claim_count": 1000}');
		SELECT queue_push('$q', to_jsonb(n), group_key => g)
		FROM generate_series(1, 60) AS n, unnest('{a,b,c}'::text[]) AS g
		ORDER BY n;
		SELECT job_handler('$q', 'run(queue_message)', concurrency => 6)});
	is_done($q, "bound of $bound: all jobs are done");
	is(value("SELECT count(*), count(DISTINCT (g, n)) FROM log WHERE q = '$q'"),
		'180|180', "bound of $bound: each once");
	cmp_ok(value(sprintf $at_once, $q),
		'<=', $bound, "bound of $bound: never more runs of a group at once");
	cmp_ok(value("SELECT max(tries) FROM log WHERE q = '$q'"),
		'>', 1, "bound of $bound: some were tried again");
}
cmp_ok(value(q{SELECT count(DISTINCT pid) FROM log WHERE q = 'q1'}),
	'>', 1, 'groups are handled at the same time');
is( value(
		q{SELECT count(*) FROM (SELECT n - lag(n) OVER (PARTITION BY g ORDER BY began) AS step
		FROM log WHERE q = 'q1') AS steps WHERE step <> 1}),
	'0', 'first in, first out, though some fail');

# A job that waits for its next attempt keeps those behind it waiting, and no
# other group; its claim_count lasts.
value(
	q{CREATE FUNCTION fail_once(m queue_message) RETURNS boolean LANGUAGE plpgsql AS $$
	BEGIN
		IF m.claim_count = 1 AND m.body = '1' THEN
			RETURN false;
		END IF;
		INSERT INTO log VALUES (m.queue, m.group_key, m.body::int, m.claim_count,
			clock_timestamp(), clock_timestamp());
		RETURN true;
	END $$;
	SELECT queue_create('late', '{"_group_concurrency": 1, "_retry_delay": 2}');
	SELECT queue_push('late', to_jsonb(n), group_key => g)
	FROM generate_series(1, 3) AS n, unnest('{a,b}'::text[]) AS g ORDER BY g, n;
	SELECT queue_push('late', '2', group_key => 'c');
	SELECT job_handler('late', 'fail_once(queue_message)', concurrency => 2)});
becomes(q{SELECT string_agg(g || n, ' ' ORDER BY g, n) FROM log WHERE q = 'late'},
	'c2', 'a group that has no failure is done at once');
is_done('late', 'the others later');
is( value(
		q{SELECT g, string_agg(n::text, ' ' ORDER BY began), min(tries), max(tries)
		FROM log WHERE q = 'late' AND g <> 'c' GROUP BY g ORDER BY g}),
	"a|1 2 3|1|2\nb|1 2 3|1|2",
	'in order, after the failure');

# A small group has its turn while a large one has many jobs.
value(
	q{CREATE FUNCTION slow(m queue_message) RETURNS boolean LANGUAGE plpgsql AS $$
	BEGIN
		PERFORM pg_sleep(0.002);
		INSERT INTO log VALUES (m.queue, m.group_key, m.body::int, m.claim_count,
			clock_timestamp(), clock_timestamp());
		RETURN true;
	END $$;
	SELECT queue_create('turns');
	SELECT count(queue_push('turns', to_jsonb(n), group_key => 'large'))
	FROM generate_series(1, 2000) AS n;
	SELECT queue_push('turns', to_jsonb(n), group_key => 'small') FROM generate_series(1, 3) AS n;
	SELECT job_handler('turns', 'slow(queue_message)')});
becomes(q{SELECT count(*) FROM log WHERE q = 'turns' AND g = 'small'},
	'3', 'the jobs of a small group are done');
cmp_ok(
	value(
		q{SELECT count(*) FROM log WHERE q = 'turns' AND g = 'large'
		AND began < (SELECT max(began) FROM log WHERE q = 'turns' AND g = 'small')}),
	'<', 20, 'after a few of the large one');

# The rate of a group, beside that of the handler: two groups at 20 messages per
# second, and a handler that is to run no more than 30.
foreach my $rate (0, 30)
{
	my $q = "rate$rate";
	my $handler_rate = $rate > 0 ? ", rate => $rate" : '';

	# A busy machine may be slower, but not each time.
	my $expected = $rate > 0 ? 120 / $rate : 60 / 20;
	my ($took, $n);
	foreach (1 .. 10)
	{
		value(
			qq{SELECT queue_drop('$q'); DELETE FROM log WHERE q = '$q';
			SELECT queue_create('$q', '{"_group_rate": 20}');
			SELECT count(queue_push('$q', to_jsonb(n), group_key => g))
			FROM generate_series(1, 60) AS n, unnest('{a,b}'::text[]) AS g;
			SELECT job_handler('$q', 'slow(queue_message)', concurrency => 4$handler_rate)});
		is_done($q, "$q: all jobs are done");
		($took, $n) = split /\|/, value(
			qq{SELECT extract(epoch FROM max(began) - min(began)), count(*)
			FROM log WHERE q = '$q'});
		is($n, '120', "$q: each once");
		cmp_ok($took, '>', 0.9 * $expected, "$q: not faster than the rates allow");
		last if $took < 3 * $expected;
	}
	cmp_ok($took, '<', 3 * $expected, "$q: and not much slower");
	note "$q: $took s, expected $expected";
}

$node->stop;
done_testing();
