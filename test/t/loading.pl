# The library preloaded, or on PostgreSQL 17 and later loaded by the first session that
# needs it: loops of workers get each message once, claims outlive a restart, and
# settings made before it was loaded are held to its rules.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../perl";

use ClusterTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = PostgreSQL::Test::Cluster->new('main');
$node->init;
$node->append_conf(
	'postgresql.conf', q{
autovacuum = off
shared_preload_libraries = 'queue'
});
$node->start;
$node->safe_psql(
	'postgres', q{
	CREATE EXTENSION queue;
	CREATE ROLE worker LOGIN IN ROLE queue_producer, queue_consumer;
	CREATE TABLE seen (id bigint, n int);
	GRANT INSERT ON seen TO worker;
});

# Runs commands in a session of their own; the bounds that a test must lower
# are set first.
sub run_sql
{
	my ($sql) = @_;
	return $node->safe_psql(
		'postgres', qq{
		SET queue.min_claim_ttl = 1;
		SET queue.min_claim_grace = 0;
		SET queue.min_message_ttl = 1;
		$sql});
}

# SQLSTATE of the error that a command ends in
sub state_of
{
	my ($sql, $user) = @_;
	my @as = $user ? ('-U', $user) : ();
	my ($ret, $stdout, $stderr) = $node->psql('postgres', $sql,
		extra_params => [ '-v', 'VERBOSITY=verbose', @as ]);
	return $stderr =~ /(?:ERROR|FATAL):\s+(\w{5}):/ ? $1 : 'none';
}

# Claims and deletes in small bites until nothing is left; every message has
# to come once.
sub worker_loop
{
	my ($queue) = @_;
	$node->safe_psql('postgres', qq{
		DO \$\$
		DECLARE
			m queue_message;
			got int;
			claim text;
			next_claim text;
		BEGIN
			LOOP
				got := 0;
				FOR m IN SELECT * FROM queue_claim('$queue', 600, 60, 7) LOOP
					got := got + 1;
					INSERT INTO seen VALUES (m.id, (m.body ->> 'n')::int);
					IF NOT message_delete('$queue', m.id, m.claim_id) THEN
						RAISE 'message % was gone', m.id;
					END IF;
				END LOOP;
				COMMIT;
				EXIT WHEN got = 0;
			END LOOP;
		END \$\$});
	return;
}

# The same with claim_next, which completes one claim and makes the next
sub next_loop
{
	my ($queue) = @_;
	$node->safe_psql('postgres', qq{
		DO \$\$
		DECLARE
			m queue_message;
			claim text;
			held text;
		BEGIN
			LOOP
				held := NULL;
				FOR m IN SELECT * FROM claim_next('$queue', claim, 60, 60, 9) LOOP
					held := m.claim_id;
					INSERT INTO seen VALUES (m.id, (m.body ->> 'n')::int);
				END LOOP;
				COMMIT;
				claim := held;
				EXIT WHEN claim IS NULL;
			END LOOP;
		END \$\$});
	return;
}

foreach my $preload ('queue', $node->pg_version >= 17 ? '' : ())
{
	my $how = $preload ? 'preloaded' : 'not preloaded';

	$node->adjust_conf('postgresql.conf', 'shared_preload_libraries',
		"'$preload'");
	$node->restart;
	is($node->safe_psql('postgres', 'SHOW shared_preload_libraries'),
		$preload, "$how: as meant");

	# loops, over enough messages to fill some pages
	foreach my $loop (\&worker_loop, \&next_loop)
	{
		run_sql(
			q{TRUNCATE seen;
			SELECT cardinality(queue_push_batch('loop',
				array_agg(jsonb_build_object('n', g)))) FROM generate_series(1, 500) g});
		$loop->('loop');
		is( run_sql(
				q{SELECT count(*), count(DISTINCT n), min(n), max(n) FROM seen}),
			'500|500|1|500',
			"$how: each message came once");
		is(run_sql(q{SELECT total FROM queue_stats('loop')}),
			'0', "$how: none is left");
	}

	# claims and messages outlive a restart
	run_sql(q{SELECT queue_push_batch('basic', ARRAY['"m1"','"m2"']::jsonb[])});
	my $kept =
	  run_sql(q{SELECT claim_id FROM queue_claim('basic', 600, 60, 1)});
	$node->restart;
	is(run_sql(q{SELECT body FROM queue_claim('basic', 600, 60)}),
		'"m2"', "$how: a claim holds through a restart");
	is(run_sql(qq{SELECT claim_complete('basic', '$kept')}),
		'1', "$how: and its id is still good");
	run_sql(q{SELECT queue_drop('basic'), queue_drop('loop')});

	# A setting made before the library was loaded is held to the same rules.
	is( state_of(
			q{SET queue.min_claim_ttl = 1;
			SELECT queue_exists('x');
			SELECT * FROM queue_claim('x', 1, 60)}, 'worker'),
		$preload ? '42501' : '22023',
		"$how: only a superuser may lower a bound");
	is( state_of(
			q{SELECT queue_exists('x'); SET queue.no_such_setting = 1}),
		'42602',
		"$how: a misspelt setting raises a warning");
}

$node->stop;
done_testing();
