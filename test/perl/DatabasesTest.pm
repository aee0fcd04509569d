# What the tests of workers and databases share: a server, and what its workers do.

package DatabasesTest;

use strict;
use warnings;

use Exporter 'import';
use ClusterTest;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(sleep time);

our @EXPORT = qw($node
  start_server stop_server sql runs becomes_true workers_are settle
  works);

our $node;

sub start_server
{
	$node = PostgreSQL::Test::Cluster->new('main');
	$node->init(allows_streaming => 1);
	$node->append_conf(
		'postgresql.conf', q{
autovacuum = off
restart_after_crash = on
queue.min_claim_ttl = 1
queue.min_claim_grace = 0
queue.min_message_ttl = 1
});
	$node->start;
	return;
}

# Nothing has gone wrong in the background.
sub stop_server
{
	my $log = slurp_file($node->logfile);
	unlike($log, qr/(?:PANIC|TRAP):/, 'no crash of our own');
	my %seen;
	$seen{$1}++
	  while $log =~ /^[^\n]*\[\d+\] ((?:ERROR|WARNING|FATAL):  [^\n]*)/mg;
	is(join("\n", grep { !/terminating background worker|the database system is|by administrator command|crash of another/ } sort keys %seen),
		'', 'no errors of the background side in the log');
	$node->stop;
	return;
}

sub sql
{
	my ($db, $sql) = @_;
	return $node->safe_psql($db, $sql);
}

# Runs a command and checks that it works.  Most take less than a second; for one that
# needs the database for itself the server waits five, and then raises an error.
sub runs
{
	my ($sql, $what) = @_;
	my $start = time;
	my ($ret, $stdout, $stderr) = $node->psql('postgres', $sql);
	my $took = time - $start;

	is($stderr, '', "$what: no error");
	note sprintf '%s: %.2f s', $what, $took;
	return;
}

# Waits for this query to return true.
sub becomes_true
{
	my ($query, $what, $server, $db) = @_;
	my ($got) = ClusterTest::query_until($server || $node, $db || 'postgres', $query, 't');

	is($got, 't', $what);
	return $got eq 't';
}

# A query: have these databases a worker, and no others?
sub workers_are
{
	my (@dbs) = @_;
	my $expected = join ',', sort @dbs;
	return
	  qq{SELECT coalesce(string_agg(datname, ',' ORDER BY datname COLLATE "C"), '') = '$expected' FROM pg_stat_activity WHERE backend_type = 'queue worker'};
}

# The worker of a database is idle: it has done all that is due.
sub settle
{
	my ($db) = @_;
	return $node->poll_query_until($db,
		q{SELECT state = 'idle' FROM queue_data.queue_workers WHERE database = current_database()}
	);
}

# The background processes of a database do their work: a claim that runs out is
# ended without a call.
sub works
{
	my ($db, $what, $server) = @_;
	my $on = $server || $node;
	my $count =
	  q{SELECT coalesce(sum(expired_claims), 0) FROM queue_data.queue_workers WHERE database = current_database()};
	my $before = $on->safe_psql($db, $count);
	$on->safe_psql($db,
		q{SELECT FROM queue_push('works', '1'); SELECT FROM queue_claim('works', 1, 0)});
	return becomes_true("SELECT ($count) > $before",
		"$what: the worker works", $on, $db);
}

1;
