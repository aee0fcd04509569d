# With wal_consistency_checking = 'all', replay compares each page that a record
# changes with the primary's.  A standby that replays a mixed load, a server that
# recovers from a crash during it, and that standby again, find no difference, and
# have the same rows.  Without the setting, no record is larger for it.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../perl";

use IPC::Run;
use ClusterTest;
use PostgreSQL::Test::Utils;
use QueueTest qw($node value wal_since);
use Test::More;
use Time::HiRes qw(sleep time);

my $timeout = $PostgreSQL::Test::Utils::timeout_default;
my $primary = $node = PostgreSQL::Test::Cluster->new('primary');
$primary->init(allows_streaming => 1);
$primary->append_conf(
	'postgresql.conf', q{
wal_consistency_checking = 'all'
wal_keep_size = '1GB'
checkpoint_timeout = '1h'
max_wal_size = '2GB'
max_worker_processes = 16
queue.min_claim_ttl = 1
queue.min_claim_grace = 0
});
$primary->start;
$primary->backup('base');

my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($primary, 'base', has_streaming => 1);
my %log_start = map { $_->name => -s $_->logfile // 0 } $primary, $standby;
$standby->start;

# What replay found in a page that differs
sub difference
{
	my ($node) = @_;
	my ($found) = slurp_file($node->logfile, $log_start{ $node->name }) =~
	  /(.*inconsistent page.*\n.*)/;
	return $found // '';
}

# Queues with counters, groups, a rate of groups, and a rate of a handler
value(
	q{CREATE EXTENSION queue;
	SELECT queue_create('rate', '{"_group_rate": 10000}');
	SELECT queue_create('mix', '{"_max_claim_count": 3}');
	CREATE FUNCTION handler(jsonb) RETURNS boolean LANGUAGE sql AS 'SELECT $1 <> ''7''';
	SELECT queue_create('jobs', '{"_retry_delay": 0, "_retry_backoff": 1}');
	SELECT job_handler('jobs', 'handler(jsonb)', rate => 10000);
	CREATE FUNCTION work(q text, what int) RETURNS void LANGUAGE plpgsql AS $$
	DECLARE
		m queue_message;
	BEGIN
		FOR m IN SELECT * FROM queue_claim(q, CASE WHEN what = 0 THEN 1 ELSE 600 END, 600, 2) LOOP
			CASE what % 8
				WHEN 0 THEN NULL;	-- it expires, or is not finished at the crash
				WHEN 1 THEN PERFORM message_delete(q, m.id, m.claim_id);
				WHEN 2 THEN PERFORM claim_renew(q, m.claim_id, 1000);
				WHEN 3 THEN PERFORM claim_release(q, m.claim_id, failed => true);
				WHEN 4 THEN PERFORM message_retry(q, m.id, m.claim_id, 'error ' || m.id, 0);
				WHEN 6 THEN PERFORM message_bury(q, m.id, m.claim_id, 'error');
				WHEN 7 THEN PERFORM message_cancel(q, m.id, 'reason');
				WHEN 5 THEN PERFORM claim_complete(q, m.claim_id); EXIT;
			END CASE;
		END LOOP;
	END $$;
	CREATE FUNCTION digest(c regclass) RETURNS text LANGUAGE plpgsql AS $$
	DECLARE
		d text;
	BEGIN
		EXECUTE format(
			$q$SELECT count(*) || ' ' || md5(string_agg(t::text, ',' ORDER BY t::text)) FROM %s AS t$q$, c)
			INTO d;
		RETURN d;
	END $$});

my $load = PostgreSQL::Test::Utils::tempdir . '/load.sql';
append_to_file(
	$load, q{
\set what random(0, 7)
\set i random(1, 20)
SELECT queue_push('mix', to_jsonb(:i), group_key => 'g' || :i % 5, dedup_key => nullif('k' || :i, 'k7'));
SELECT queue_push_batch('rate', '{1, 2}', group_keys => ARRAY['g' || :i, NULL]);
SELECT queue_push('jobs', to_jsonb(:i));
SELECT queue_push('mix', '1', delay => :what);
BEGIN;
SELECT work('mix', :what);
SELECT work('rate', :what);
END;
BEGIN;
SELECT work('mix', 3);
SELECT count(*) FROM queue_pop('rate');
ROLLBACK;
});

sub begin_load
{
	my ($transactions) = @_;
	return IPC::Run::start(
		[
			'pgbench', '-h', $primary->host, '-p', $primary->port, '-n', '-c', 3,
			'-t', $transactions, '-f', $load, 'postgres'
		],
		'>', '/dev/null', '2>', '/dev/null');
}

# The tables with their rows; the transaction is at the end of replay.
sub digests
{
	my ($node) = @_;
	return $node->safe_psql('postgres',
		q{SELECT relname, digest(oid) FROM pg_class
		WHERE relnamespace = 'queue_data'::regnamespace AND relkind = 'r' ORDER BY 1});
}

# Does the standby get the rows of the primary, whose worker may not have finished?
sub standby_is_equal
{
	my ($what) = @_;
	my $until = time + $timeout;
	my ($left, $right, $lsn) = ('', '-');

	while ($left ne $right && time < $until)
	{
		$left = digests($primary);
		$lsn = $primary->lsn('insert');
		sleep 0.1
		  until time > $until
		  || ($standby->psql('postgres',
				"SELECT pg_last_wal_replay_lsn() >= '$lsn'"))[1] ne 'f';
		$right = eval { digests($standby) } // 'the standby has stopped';
		last if $right =~ /stopped/;
	}
	is($right, $left, "$what: the standby has the same rows");
	is(difference($standby), '', "$what: and the same pages");
	return;
}

# The tables that are changed in place; the number of a segment is left out.
my @in_place = qw(group_rate handler job_counter message);

# The tables of generic WAL records from there on: how many records of each have an
# image of the page, or none
sub generic_records
{
	my ($start) = @_;
	my %name = reverse map { split /\|/ } split /\n/,
	  value(
		q{SELECT relname, pg_relation_filenode(oid) FROM pg_class
		WHERE relnamespace = 'queue_data'::regnamespace AND relkind = 'r'});
	my $out = wal_since($primary, $start, '--rmgr=Generic', '-b');
	my %records;

	foreach ($out =~ /^\tblkref .*$/mg)
	{
		my ($node) = m{rel \d+/\d+/(\d+)};
		my $image = /FPW/ ? 'image' : 'none';
		$records{ ($name{$node} // $node) =~ s/^message\K_\d+$//r }{$image}++;
	}
	return \%records;
}

# --- A load, and the standby ---

my $start = $primary->lsn('insert');
ok(begin_load(40)->finish, 'the load has no error');
ok( $primary->poll_query_until('postgres',
		q{SELECT free + claimed = 0 FROM queue_stats('jobs')}),
	'all jobs have run');
ok( $primary->poll_query_until('postgres',
		q{SELECT bool_and(claimed_total > 0) FROM queue_data.queue_status
		WHERE name IN ('mix', 'rate', 'jobs')}), 'all queues were worked on');
value(q{SELECT queue_push('ends', '1'); SELECT work('ends', 0)});
ok( $primary->poll_query_until('postgres',
		q{SELECT ready = 1 FROM queue_data.queue_status WHERE name = 'ends'}),
	'the end of a claim was counted');

# The worker inserts the counters of a queue, and changes them in place from then on.
my $counters = q{SELECT c::text FROM queue_data.job_counter AS c
	JOIN queue_data.queue AS q ON q.id = c.queue_id WHERE q.name = 'mix'};
ok($primary->poll_query_until('postgres', "SELECT EXISTS ($counters)"), 'events were counted');
my $before = value($counters);
value(q{SELECT queue_push('mix', '1')});
ok($primary->poll_query_until('postgres', "SELECT ($counters) <> '$before'"), 'once more');
standby_is_equal('a load');
my $records = generic_records($start);
is(join(' ', grep { $records->{$_} } @in_place),
	"@in_place", 'rows of all tables were changed in place');

# --- A crash ---

my $pgbench = begin_load(100000);
my $before = $primary->lsn('insert');
ok( $primary->poll_query_until('postgres',
		"SELECT pg_current_wal_insert_lsn() - '$before'::pg_lsn > 4000000"),
	'the load goes on');
$primary->stop('immediate');
$pgbench->finish;
ok($primary->start(fail_ok => 1), 'the server recovers from a crash');
is(difference($primary), '', 'with the same pages');
SKIP:
{
	skip 'the server did not recover', 7 unless defined $primary->{_pid};
	standby_is_equal('after the crash');

	# --- Without the setting ---

	value(q{ALTER SYSTEM SET wal_consistency_checking = ''});
	$primary->reload;
	ok( $primary->poll_query_until('postgres',
			q{SELECT current_setting('wal_consistency_checking') = ''}),
		'nothing is to be compared');
	value(q{SELECT queue_purge('rate')});
	my $deliver =
	  q{SELECT queue_push('rate', '1', group_key => 'one'); SELECT work('rate', 1)};
	value($deliver);
	$start = $primary->lsn('insert');
	value($deliver) for 1 .. 5;
	$records = generic_records($start)->{group_rate};
	cmp_ok($records->{none} // 0, '>=', 4, 'a change in place is logged');
	is($records->{image} // 0, 0, 'without an image of the page');
	standby_is_equal('without the setting');
}

$_->stop('immediate', fail_ok => 1) foreach $standby, $primary;
done_testing();
