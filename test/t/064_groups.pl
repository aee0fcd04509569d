# Groups under load: never more messages of a group under live claims than its
# bound, and with a bound of 1 none is handed out while one that was handed out
# earlier is not finished.  Sessions claim, pop, renew, retry, release and
# delete at all isolation levels, with rollbacks, savepoints, prepared
# transactions that other sessions end, claims that run out, duplicates, dead
# letters that are redriven, backends that are terminated, and a crash.  The
# checks use the rows, and a history that the sessions write
# (stress.d/groups.sql).
#
# QUEUE_STRESS_SECONDS makes the load a longer one, QUEUE_STRESS_SESSIONS a larger
# one (test/stress sets them).
#
# One mode: the library is preloaded.

use strict;
use warnings;

use FindBin;
use POSIX ();
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(sleep time);

my $seconds = $ENV{QUEUE_STRESS_SECONDS} || 12;
my $sessions = $ENV{QUEUE_STRESS_SESSIONS} || 16;
my %groups = (one => 3, three => 2);

my $node = PostgreSQL::Test::Cluster->new('main');
$node->init;
$node->append_conf(
	'postgresql.conf', qq(
shared_preload_libraries = 'queue'
max_connections = @{[ $sessions + 20 ]}
max_prepared_transactions = 100
track_commit_timestamp = on
autovacuum = off
synchronous_commit = off
log_statement = none
queue.min_claim_ttl = 1
queue.min_claim_grace = 0
));
$node->start;
$node->safe_psql('postgres',
	slurp_file("$FindBin::RealBin/../stress.d/groups.sql"));
$node->safe_psql(
	'postgres', q(
INSERT INTO groups.bound VALUES ('one', 1, 4), ('three', 3, 4);
SELECT queue_create(queue, jsonb_build_object('_group_concurrency', bound,
	'_max_claim_count', max_claim_count))
FROM groups.bound));

my $dir = PostgreSQL::Test::Utils::tempdir;
my $session;

sub pick
{
	return $_[ int rand @_ ];
}

# How a claim ends.  Few block their group for a second.
sub finish
{
	my ($q) = @_;
	my $chance = rand;
	my $call = sub { "SELECT groups.finish('$q', :'claim', '$_[0]', $_[1]);\n" };
	my $end = $call->(pick('complete', 'complete', 'delete', 'retry', 'release'), 0);

	return '' if $chance < 0.005;
	return $call->('renew', 1) if $chance < 0.01;
	return $call->(pick('retry', 'release'), 1) if $chance < 0.015;
	return $call->('renew', pick(1, 2)) . $end if $chance < 0.1;
	return $end;
}

sub take
{
	my ($q) = @_;
	my $n = pick(1, 1, 2, 5);

	return "SELECT groups.pop('$q', $n);\n" if rand() < 0.1;
	return "SELECT groups.next('$q', :'claim', 1, $n) AS claim \\gset\n"
	  if rand() < 0.15;
	return "SELECT groups.claim('$q', @{[pick(1, 1, 2)]}, $n) AS claim \\gset\n";
}

my $prepared = 0;

sub transaction
{
	my $q = pick(keys %groups);
	my $script = "\\set claim ''\n";
	my $pause = sub { sprintf "SELECT pg_sleep(%.4f);\n", rand 0.01 };

	if (rand() < 0.5)
	{
		return $script . take($q) . $pause->() . finish($q);
	}
	$script .= 'BEGIN ISOLATION LEVEL '
	  . pick('READ COMMITTED', 'REPEATABLE READ', 'SERIALIZABLE') . ";\n";
	$script .= "SELECT groups.push('$q', $groups{$q}, 1, true);\n" if rand() < 0.2;
	if (rand() < 0.3)
	{
		$script .= "SAVEPOINT s;\n" . take($q);
		$script .= finish($q) if rand() < 0.3;
		$script .= "ROLLBACK TO s;\n\\set claim ''\n";
	}
	$script .= take($q);
	$script .= $pause->() if rand() < 0.5;
	$script .= finish($q) . take($q) if rand() < 0.2;
	my $end = rand;
	return $script . "ROLLBACK;\n" if $end < 0.2;
	return $script . "PREPARE TRANSACTION 'p" . ++$prepared . "';\n"
	  if $end < 0.25;
	return $script . "COMMIT;\n" . $pause->() . finish($q);
}

# A psql that runs such transactions
my $scripts = 0;

sub start_session
{
	my $file = "$dir/" . ++$scripts . '.sql';
	append_to_file($file, join '', map { transaction() } 1 .. 200);
	my $pid = fork;
	die "cannot fork: $!" unless defined $pid;
	return $pid if $pid;
	local $ENV{PGAPPNAME} = 'groups';
	open STDIN, '<', '/dev/null';
	open STDOUT, '>', '/dev/null';
	open STDERR, '>>', "$dir/errors";
	exec 'psql', '-X', '-q', '-v', 'VERBOSITY=verbose', '-f', $file,
	  $node->connstr('postgres')
	  or POSIX::_exit(1);
}

sub connect_session
{
	$session = $node->background_psql('postgres', on_error_stop => 0);
	return;
}

# Another session ends some of the prepared transactions, sooner or later.
sub end_prepared
{
	my ($which) = @_;
	$session->query(
		qq(SELECT format('%s PREPARED %L', CASE WHEN random() < 0.6
				THEN 'COMMIT' ELSE 'ROLLBACK' END, gid)
		FROM pg_prepared_xacts WHERE $which \\gexec));
	return;
}

# There is always something that waits.
sub fill
{
	foreach my $q (keys %groups)
	{
		$session->query(
			"SELECT groups.push('$q', $groups{$q}, 60, false)
			FROM queue_stats('$q') WHERE free < 60");
	}
	return;
}

# All kinds of load at once; "crash": the server is stopped meanwhile.
sub load
{
	my ($crash) = @_;
	my $until = time + $seconds / 2;
	my %running = map { start_session() => 1 } 1 .. $sessions;

	while (time < $until)
	{
		end_prepared('random() < 0.4');
		fill();
		$session->query('SELECT groups.sample()');
		$session->query(
			q(SELECT pg_terminate_backend(pid) FROM pg_stat_activity
			WHERE application_name = 'groups' ORDER BY random() LIMIT 1))
		  if rand() < 0.04;
		$session->query(q(SELECT queue_redrive('one.dead')))
		  if rand() < 0.05;
		foreach my $pid (keys %running)
		{
			next if waitpid($pid, POSIX::WNOHANG) == 0;
			delete $running{$pid};
			$running{ start_session() } = 1;
		}
		sleep 0.01;
	}
	if ($crash)
	{
		$node->stop('immediate');
		eval { $session->quit };
	}
	else
	{
		kill 'TERM', keys %running;
	}
	waitpid $_, 0 foreach keys %running;
	if ($crash)
	{
		$node->start;
		connect_session();
	}
	return;
}

sub value
{
	my ($sql) = @_;
	return $node->safe_psql('postgres', $sql);
}

connect_session();
fill();
load(1);
load(0);

# Sessions may wait for the keys of prepared transactions.  When both have ended,
# the claims and delays are over after a while.
my $open = q{SELECT (SELECT count(*) FROM pg_stat_activity WHERE application_name = 'groups')
	+ (SELECT count(*) FROM pg_prepared_xacts)};
my $deadline = time + 30;
while (value($open) > 0 && time < $deadline)
{
	end_prepared('true');
	sleep 0.05;
}
is(value($open), '0', 'all sessions and prepared transactions have ended');
sleep 2.5;
foreach my $q (sort keys %groups)
{
	my $left = -1;
	for (my $tries = 0; $left != 0 && $tries < 20; $tries++)
	{
		sleep 0.1 if $tries;
		$left = value("SELECT groups.drain('$q')");
	}
	is($left, '0', "$q: no group is blocked when all claims are over");
}

my %expected = map { $_ => 1 } qw(QU001 QU002 25P02 3B001 40001 57P01);
my @unexpected = grep { /(?:ERROR|PANIC):\s+(\w{5})/ && !$expected{$1} }
  split /\n/, slurp_file("$dir/errors");
is(scalar @unexpected, 0, 'no unexpected error');
diag join "\n", @unexpected[ 0 .. ($#unexpected > 9 ? 9 : $#unexpected) ]
  if @unexpected;

my ($calls, $empty) =
  split /\|/, value('SELECT c.last_value, e.last_value FROM groups.calls c, groups.empty e');
note "$calls calls, $empty of them found nothing";
cmp_ok($empty, '>', $calls * 0.3, 'claims often find the limit reached');

value('SELECT groups.judge()');
note value(q{SELECT queue || ': ' || count(*) || ' taken, ' || count(DISTINCT id)
	|| ' messages, ' || count(*) FILTER (WHERE is_last) || ' for the last time'
	FROM groups.taken GROUP BY queue});
is( value('SELECT count(*) FROM groups.taken WHERE committed IS NULL'),
	'0', 'all commit times are known');

is(value('SELECT * FROM groups.sampled LIMIT 5'),
	'', 'the rows never show more than the bound under live claims');

# The most of them are live when one is taken.
is( value(
		q{
	SELECT d.queue, d.group_key, d.at, count(*), d.bound
	FROM groups.taken AS d JOIN groups.taken AS o USING (queue, group_key)
	WHERE o.at BETWEEN d.at - interval '10 s' AND d.at
		AND NOT groups.was_over(o.until, o.ended, o.end_xid, o.end_at, d.xid, d.at)
	GROUP BY d.queue, d.group_key, d.at, d.id, d.bound
	HAVING count(*) > d.bound LIMIT 5}),
	'',
	'the history never has more than the bound under live claims');

is( value(
		q{
	SELECT d.queue, d.group_key, d.at, d.id, o.at, o.id
	FROM groups.taken AS d JOIN groups.taken AS o USING (queue, group_key)
	WHERE o.xid <> d.xid AND d.at > o.at AND d.at < o.committed LIMIT 5}),
	'',
	'a group from which an open transaction has taken something has nothing for others');

# A message is not finished from when it was first taken until one of its claims
# ended with a delete, or was the last that it may have.
is( value(
		q{
	SELECT d.group_key, d.at, d.id, o.id, o.first
	FROM groups.taken AS d JOIN (
		SELECT group_key, id, min(at) AS first,
			min(until) FILTER (WHERE is_last) AS until,
			min(ended) FILTER (WHERE is_last OR is_deleted) AS ended,
			min(end_xid::text) FILTER (WHERE is_last OR is_deleted) AS end_xid,
			min(end_at) FILTER (WHERE is_last OR is_deleted) AS end_at
		FROM groups.taken WHERE queue = 'one' GROUP BY group_key, id) AS o
		USING (group_key)
	WHERE d.queue = 'one' AND o.id <> d.id AND o.first < d.at
		AND NOT groups.was_over(o.until, o.ended, o.end_xid::xid8, o.end_at, d.xid, d.at)
	LIMIT 5}),
	'',
	'first in, first out: none is taken while an earlier one is not finished');

$node->stop;
done_testing();
