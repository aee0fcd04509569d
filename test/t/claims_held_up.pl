# A claim that waits for the lock on a table, or whose scan takes long, does not
# make the results of other claims empty.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../perl";

use IPC::Run;
use PostgreSQL::Test::Utils;
use QueueTest;
use Test::More;
use Time::HiRes qw(sleep time);

start_server(
	q{
autovacuum = off
queue.database_workers = 0
});

# A session that runs in the background; its result comes with finish().
sub start_sql
{
	my ($name, $sql) = @_;
	my ($out, $err) = ('', '');
	my $run = IPC::Run::start(
		[
			'psql', '-XqAt', '-d',
			$node->connstr('postgres') . " application_name=$name",
			'-c', $sql
		],
		'<', '/dev/null', '>', \$out, '2>', \$err);

	return sub {
		$run->finish;
		chomp $out;
		return $err eq '' ? $out : "$out $err";
	};
}

# Wait until as many sessions of that name wait for a lock.
sub wait_for_lock
{
	my ($name, $n) = @_;
	$n = 1 unless defined $n;
	$node->poll_query_until('postgres',
		"SELECT count(*) >= $n FROM pg_stat_activity WHERE application_name LIKE '$name%' AND wait_event_type = 'Lock'"
	) or die "$name does not wait";
	return;
}

sub claim
{
	my ($q, $limit) = @_;
	return
	  "SELECT string_agg(body #>> '{}', ' ') FROM queue_claim('$q', 300, 60, $limit)";
}

my $holder = $node->background_psql('postgres');

# Index builds and LOCK TABLE keep writers away from a segment.

my %locks = (
	message => 'LOCK TABLE queue_data.message_0 IN SHARE MODE',
	index => 'CREATE INDEX i ON queue_data.message_0 (created_at)');
foreach my $lock (sort keys %locks)
{
	my $q = "lock_$lock";

	$node->safe_psql('postgres',
		"SELECT queue_push('$q', to_jsonb(i)) FROM generate_series(1, 8) i");

	# Returned ranges are reserved in larger pieces than new ones.
	$node->safe_psql('postgres',
		"SELECT count(claim_release('$q', claim_id)) FROM (SELECT DISTINCT claim_id FROM queue_claim('$q', 300, 60, 8)) c"
	);
	$holder->query_safe('BEGIN');
	$holder->query_safe($locks{$lock});
	my $first = start_sql("first_$lock", claim($q, 4));
	wait_for_lock("first_$lock");
	my $second = start_sql("second_$lock", claim($q, 4));

	# Long enough for one that gives up, which must not answer
	sleep 1.5;
	$holder->query_safe('ROLLBACK');
	my @got = sort { $a cmp $b } $first->(), $second->();
	is(join(', ', @got), '1 2 3 4, 5 6 7 8',
		"$lock: both claims get what is free");
}

# A claim that waits for one segment does not keep others from another one,
# whose messages have higher numbers.  The segment that was active when the server
# started may hold any number, so it is neither.

my $turn =
  q{UPDATE queue_data.ring SET active = %d; ALTER TABLE queue_data.ring SET (fillfactor = 100)};
$node->safe_psql('postgres', sprintf $turn, 1);
$node->safe_psql('postgres',
	q{SELECT queue_push('apart', to_jsonb(i)) FROM generate_series(1, 32) i;
	SELECT nextval('queue_data.message_id') FROM generate_series(1, 40)});
$node->safe_psql('postgres', sprintf $turn, 2);
my $high = q{SELECT queue_push('apart', '"high"', priority => 9)};
$node->safe_psql('postgres', "$high; SELECT queue_pop('apart')");
$holder->query_safe('BEGIN');
$holder->query_safe('LOCK TABLE queue_data.message_1 IN SHARE MODE');
my $blocked = start_sql('apart', claim('apart', 4));
wait_for_lock('apart');
$node->safe_psql('postgres', $high);
is( $node->safe_psql(
		'postgres', "SET lock_timeout = '3s'; " . claim('apart', 1)),
	'high',
	'a claim that waits for one segment keeps no other from claims');
$holder->query_safe('ROLLBACK');
is($blocked->(), '1 2 3 4', 'and gets its messages in the end');
$node->safe_psql('postgres', sprintf $turn, 0);

# A claim that takes long while it has a range reserved: here because it has to
# read a root job, whose table is locked.

$node->safe_psql('postgres', q{SELECT queue_create('slow')});
$node->safe_psql('postgres',
	q{SELECT queue_push('slow', '{"n": 1}' || job_root('slow', 's'))});
$node->safe_psql('postgres',
	q{SELECT queue_push('slow', jsonb_build_object('n', i)) FROM generate_series(2, 8) i});
$node->safe_psql('postgres',
	"SELECT count(claim_release('slow', claim_id)) FROM (SELECT DISTINCT claim_id FROM queue_claim('slow', 300, 60, 8)) c");
my $slow_claim =
  q{SELECT string_agg(body->>'n', ' ') FROM queue_claim('slow', 300, 60, 4)};
$holder->query_safe('BEGIN');
$holder->query_safe('LOCK TABLE queue_data.root_job');
my $first = start_sql('slow_first', $slow_claim);
wait_for_lock('slow_first');
my $second = start_sql('slow_second', $slow_claim);
sleep 1.5;
$holder->query_safe('ROLLBACK');
my @got = sort { $a cmp $b } $first->(), $second->();
is(join(', ', @got), '1 2 3 4, 5 6 7 8', 'a slow claim: both get what is free');

# A claim whose process is stopped while it has a range reserved: after a
# second, other claims scan without the map.

$node->safe_psql('postgres',
	q{SELECT queue_push('slow', jsonb_build_object('n', i) || CASE WHEN i = 1 THEN job_root('slow', 's') ELSE '{}' END)
	FROM generate_series(1, 8) i;
	SELECT count(claim_release('slow', claim_id)) FROM (SELECT DISTINCT claim_id FROM queue_claim('slow', 300, 60, 8)) c});
$holder->query_safe('BEGIN');
$holder->query_safe('LOCK TABLE queue_data.root_job');
$first = start_sql('stopped', $slow_claim);
wait_for_lock('stopped');
my $pid = $node->safe_psql('postgres',
	q{SELECT pid FROM pg_stat_activity WHERE application_name = 'stopped'});
kill 'STOP', $pid;
$holder->query_safe('ROLLBACK');
my $other = $node->safe_psql('postgres', $slow_claim);
kill 'CONT', $pid;
is($other, '1 2 3 4', 'a stopped claim: another one gets what is free');
is($first->(), '5 6 7 8', 'and the first one the rest, when it goes on');

# The statement timeout ends a claim that waits.

$node->safe_psql('postgres', q{SELECT queue_push('timeout', '1')});
$holder->query_safe('BEGIN');
$holder->query_safe($locks{message});
$first = start_sql('timeout_first', claim('timeout', 1));
wait_for_lock('timeout_first');
my ($ret, $stdout, $stderr) = $node->psql('postgres',
	"SET statement_timeout = '300ms'; " . claim('timeout', 1));
like($stderr, qr/statement timeout/, 'a claim that waits can be canceled');
$holder->query_safe('ROLLBACK');
is($first->(), '1', 'and leaves the message to others');

$holder->quit;
$node->stop;
done_testing();
