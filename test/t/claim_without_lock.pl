# With an availability map, a claim marks its messages without locking them
# first.  It writes one WAL record for each, which a standby replays to the same
# page; and it leaves out what another transaction was the first to lock or
# change, without waiting for it.
#
# test/check -q runs it, too.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../perl";

use IPC::Run;
use ClusterTest;
use PostgreSQL::Test::Utils;
use QueueTest qw(wal_since);
use Test::More;

my $node = PostgreSQL::Test::Cluster->new('primary');
$node->init(allows_streaming => 1);
$node->append_conf(
	'postgresql.conf', q{
autovacuum = off
queue.database_workers = 0
wal_consistency_checking = 'all'
wal_keep_size = '1GB'
});
$node->start;
$node->backup('base');
$node->safe_psql('postgres', 'CREATE EXTENSION queue');

# replay fails if it does not make the same page
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($node, 'base', has_streaming => 1);
$standby->start;

sub claim
{
	my ($q, $limit, $function) = @_;
	return "SELECT coalesce(string_agg(left(body #>> '{}', 3), ' '), '') FROM "
	  . (defined $function ? "queue_pop('$q', $limit)" : "queue_claim('$q', 300, 60, $limit)");
}

# How many records of each kind of heap change the statements write
sub records
{
	my (@sql) = @_;
	my $start = $node->lsn('insert');
	my %n = (LOCK => 0, HOT_UPDATE => 0, UPDATE => 0, DELETE => 0);

	$node->safe_psql('postgres', $_) foreach @sql;
	$n{$_}++
	  foreach wal_since($node, $start, '--rmgr=Heap') =~ /desc: (\w+)/g;
	return join ' ', map { "$_ $n{$_}" } qw(LOCK HOT_UPDATE UPDATE DELETE);
}

sub push_sql
{
	my ($q, $n) = @_;
	return "SELECT queue_push_batch('$q', array_agg(to_jsonb('b' || i))) FROM generate_series(1, $n) i";
}

# The records.  The pages have been written to since the checkpoint, so each
# new version is logged as what differs.

$node->safe_psql('postgres', push_sql('one', 20));
is(records((claim('one', 1)) x 3),
	'LOCK 0 HOT_UPDATE 3 UPDATE 0 DELETE 0', 'claims of one message');
is(records(claim('one', 10)),
	'LOCK 0 HOT_UPDATE 10 UPDATE 0 DELETE 0', 'a claim of ten');
is(records(claim('one', 5, 'pop')),
	'LOCK 0 HOT_UPDATE 0 UPDATE 0 DELETE 5', 'a pop');
is(records(push_sql('own', 3) . '; ' . claim('own', 3)),
	'LOCK 0 HOT_UPDATE 3 UPDATE 0 DELETE 0',
	'a claim of what the transaction has pushed');

# Messages of all kinds, claimed and given back in all ways.
$node->safe_psql(
	'postgres', q{
	SELECT queue_push('all', to_jsonb(repeat('x', n)), priority => n % 10, dedup_key => CASE WHEN n % 3 = 0 THEN n::text END, ttl => CASE WHEN n % 5 = 0 THEN 4000 END)
		FROM generate_series(1, 4000, 97) n;
	SELECT queue_push('all', (SELECT to_jsonb(string_agg(md5(i::text), '')) FROM generate_series(1, 400) i));
	SELECT queue_push('all', '"delayed"', delay => 0)});
$node->safe_psql('postgres', $_) foreach (
	"BEGIN; @{[claim('all', 9)]}; ROLLBACK",
	"BEGIN; SAVEPOINT s; @{[claim('all', 9)]}; ROLLBACK TO s; @{[claim('all', 7)]}; COMMIT",
	"SELECT claim_release('all', claim_id) FROM (SELECT DISTINCT claim_id FROM queue_claim('all', 300, 60, 20)) c",
	'VACUUM (FREEZE) queue_data.message_0',
	claim('all', 12), 'CHECKPOINT',
	"BEGIN ISOLATION LEVEL SERIALIZABLE; @{[claim('all', 5)]}; COMMIT",
	claim('all', 3, 'pop'), claim('all', 100));
my $rows = q{SELECT ctid, xmin, xmax, m.* FROM queue_data.message_0 m ORDER BY ctid};
$node->wait_for_catchup($standby, 'replay', $node->lsn('flush'));
is($standby->safe_psql('postgres', $rows),
	$node->safe_psql('postgres', $rows), 'the standby has the same rows');

# An index that was added covers columns that a claim changes.
$node->safe_psql('postgres', push_sql('indexed', 4));
$node->safe_psql('postgres',
	'CREATE INDEX added ON queue_data.message_0 (claim_count)');
$node->safe_psql('postgres', claim('indexed', 3));
is( $node->safe_psql(
		'postgres', q{
	SET enable_seqscan = off;
	SELECT count(*) FROM queue_data.message_0
		WHERE claim_count = 1 AND queue_id = (SELECT id FROM queue_data.queue WHERE name = 'indexed')}),
	'3', 'an added index');
$node->safe_psql('postgres', 'DROP INDEX queue_data.added');

# Another transaction locks or changes a message that was chosen.  The claim is
# held up while it marks the first one, whose deduplication key it looks up.

my $holder = $node->background_psql('postgres');
my $other = $node->background_psql('postgres');

# A delete by other SQL has a trigger, which opens all tables the first time.
$other->query_safe(q{SELECT queue_exists('q')});

# A session that has opened all tables before, so that its claim is held up in
# no other place.
sub connect_session
{
	my ($name) = @_;
	my %session = (name => $name, in => "SELECT 'open' FROM queue_exists('q');\n", out => '', err => '');

	$session{run} = IPC::Run::start(
		[ 'psql', '-XqAt', '-d', $node->connstr('postgres') . " application_name=$name" ],
		'<', \$session{in}, '>', \$session{out}, '2>', \$session{err},
		IPC::Run::timeout($PostgreSQL::Test::Utils::timeout_default));
	$session{run}->pump until $session{out} =~ /open\s/;
	$session{out} = '';
	return \%session;
}

# Begin a claim.  True: it is held up.
sub begin_claim
{
	my ($session, $claim) = @_;
	my $state = "FROM pg_stat_activity WHERE application_name = '$session->{name}' AND (wait_event_type = 'Lock' OR query LIKE 'COMMIT%')";

	$session->{in} = "BEGIN; $claim; SELECT pg_sleep(0.2); COMMIT;\n";
	$session->{run}->pump_nb;
	$node->poll_query_until('postgres', "SELECT count(*) = 1 $state")
	  or die "unknown state of $session->{name}";
	return $node->safe_psql('postgres', "SELECT query NOT LIKE 'COMMIT%' $state") eq 't';
}

sub end_claim
{
	my ($session) = @_;

	$session->{run}->finish;
	$session->{out} =~ s/\s+$//;
	return "$session->{out}$session->{err}";
}

# $act is SQL, or a function
sub race
{
	my ($q, $act, $claim) = @_;
	my $session = connect_session($q);

	$node->safe_psql('postgres',
		"SELECT queue_push('$q', '\"key\"', dedup_key => 'k'); " . push_sql($q, 2));
	$holder->query_safe(
		'BEGIN; LOCK TABLE queue_data.dedup_key IN ACCESS EXCLUSIVE MODE');
	begin_claim($session, $claim) or die "the claim of $q is not held up";
	if (ref $act)
	{
		$act->();
	}
	else
	{
		$other->query_safe("BEGIN; $act");
	}
	$holder->query_safe('COMMIT');
	return end_claim($session);
}

sub message
{
	my ($q, $body) = @_;
	return "queue_data.message_0 WHERE body = '\"$body\"' AND queue_id = (SELECT id FROM queue_data.queue WHERE name = '$q')";
}

foreach my $kind ('claim', 'pop')
{
	my $function = $kind eq 'pop' ? 'pop' : undef;
	my %act = (
		share => sub { 'SELECT FROM ' . message($_[0], 'b1') . ' FOR SHARE' },
		key_share => sub { 'SELECT FROM ' . message($_[0], 'b1') . ' FOR KEY SHARE' },
		delete => sub { 'DELETE FROM ' . message($_[0], 'b1') });

	foreach my $act (sort keys %act)
	{
		my $q = "${kind}_$act";
		my $is_left = $act eq 'key_share' && $kind eq 'claim' ? 'key b1 b2' : 'key b2';

		is(race($q, $act{$act}->($q), claim($q, 3, $function)),
			$is_left, "$q: one message is left out");
		$other->query_safe('ROLLBACK');
		is($node->safe_psql('postgres', claim($q, 3, $function)),
			$is_left eq 'key b2' ? 'b1' : '', "$q: and found after a rollback");
	}

	# it has ended before the claim comes to the message
	my $q = "${kind}_unlocked";
	is(race($q, $act{share}->($q) . '; COMMIT', claim($q, 3, $function)),
		'key b1 b2', "$q: none is left out");
	$q = "${kind}_deleted";
	is(race($q, $act{delete}->($q) . '; COMMIT', claim($q, 3, $function)),
		'key b2', "$q: one message is left out");
	is($node->safe_psql('postgres', claim($q, 3, $function)), '', "$q: and gone");

	# all that was chosen is lost: the claim goes on to the next message
	$q = "${kind}_all";
	is( race($q, 'SELECT FROM ' . message($q, 'key') . ' FOR SHARE', claim($q, 1, $function)),
		'b1', "$q: the next message is claimed");
	is($node->safe_psql('postgres', claim($q, 3, $function)), 'b2', "$q: the first one is locked");
	$other->query_safe('ROLLBACK');
	is($node->safe_psql('postgres', claim($q, 3, $function)), 'key', "$q: the first one is found");
}

# What a claim has chosen and not marked yet is free for others: a claim that
# comes in between is not empty, but waits for the same lock.
foreach my $kind ('claim', 'pop')
{
	my $q = "${kind}_between";
	my $claim = claim($q, 3, $kind eq 'pop' ? 'pop' : undef);
	my $between = connect_session("another_$kind");

	is( race(
			$q,
			sub {
				ok(begin_claim($between, $claim), "$q: another one is not empty");
			},
			$claim),
		'', "$q: all that was chosen is lost");
	is(end_claim($between), 'key b1 b2', "$q: to the one in between");
}
$_->quit foreach $holder, $other;

$node->wait_for_catchup($standby, 'replay', $node->lsn('flush'));
is($standby->safe_psql('postgres', $rows),
	$node->safe_psql('postgres', $rows), 'the standby has the same rows again');

# An administrator's index over columns of the claim, which is built while
# messages are claimed, finds them.
$node->safe_psql('postgres',
	q{SELECT count(queue_push_batch('index', array_fill('1'::jsonb, ARRAY[100])))
	FROM generate_series(1, 1000)});
my $file = PostgreSQL::Test::Utils::tempdir . '/claims.sql';
append_to_file($file, "SELECT count(*) FROM queue_claim('index', 300, 60, 5);\n");
my $claims = IPC::Run::start(
	[
		'pgbench', '-n', '-c', 2, '-T', 3600, '-f', $file,
		$node->connstr('postgres')
	],
	'>', '/dev/null', '2>', '/dev/null');
$node->safe_psql('postgres',
	'CREATE INDEX CONCURRENTLY added ON queue_data.message_0 (claim_token)');
$claims->kill_kill;
$node->safe_psql('postgres', 'CREATE EXTENSION amcheck');
is( ($node->psql('postgres',
		q{SELECT bt_index_check('queue_data.added', true)}))[2],
	'', 'an index that is built during claims has all rows');
$standby->stop;
$node->stop;
done_testing();
