# What most tests share: a server with the extension, queries, and waiting for
# what a query returns.

package QueueTest;

use strict;
use warnings;

use Exporter 'import';
use ClusterTest;
use FindBin;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(sleep time);

our @EXPORT = qw($node $db start_server value state_of becomes becomes_true);
our @EXPORT_OK = qw(wal_since find_python plant_functions $end_claims $one);

our $db = 'postgres';
our $node;

# The session that value() uses, if there is one
our $one;

# Has the claim of a message end as a worker of the manual writes that the message was
# sent, before it completes it
our $end_claims = q{
	CREATE FUNCTION end_claim() RETURNS trigger LANGUAGE plpgsql AS $$
	BEGIN
		PERFORM claim_release('mail', m.claim_id)
		FROM message_get('mail', NEW.message_id) AS m;
		RETURN NEW;
	END $$;
	CREATE TRIGGER end_claim AFTER INSERT ON sent
		FOR EACH ROW EXECUTE FUNCTION end_claim()};

# Starts a server with these lines in its configuration, and creates the
# extension.
sub start_server
{
	my ($settings) = @_;

	$node = PostgreSQL::Test::Cluster->new('main');
	$node->init;
	$node->append_conf('postgresql.conf', $settings);
	$node->start;
	$one = undef;
	value('CREATE EXTENSION queue');
	return;
}

# What a statement returns, in $one, or in a session of its own
sub value
{
	my ($sql, $database) = @_;

	return $one->query_safe($sql) if $one && !defined $database;
	return $node->safe_psql($database // $db, $sql);
}

# The SQLSTATE of the error that it raises, or "none"
sub state_of
{
	my ($sql, %options) = @_;
	my ($ret, $stdout, $stderr) = $node->psql($options{database} // $db, $sql,
		extra_params => [
			'-v', 'VERBOSITY=verbose',
			$options{user} ? ('-U', $options{user}) : () ]);

	return $stderr =~ /(?:ERROR|FATAL):\s+(\w{5}):/ ? $1 : 'none';
}

# What pg_waldump prints of a server's WAL from an LSN on, with these options
sub wal_since
{
	my ($server, $start, @options) = @_;

	# It is told the files, since the one that it would choose to learn the size
	# of all files may be the next one, which is empty.
	my $end = $server->safe_psql($db, 'SELECT pg_switch_wal()');
	my @files = map { $server->safe_psql($db, "SELECT pg_walfile_name('$_')") }
	  $start, $end;
	my ($out) = run_command(
		[
			'pg_waldump', @options, '-s', $start, '-e', $end,
			'-p', $server->data_dir . '/pg_wal', @files
		]);

	return $out;
}

# Tests that a query returns this value soon, also if sessions end meanwhile.
sub becomes
{
	my ($query, $wanted, $what, %options) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my ($got, $error) =
	  ClusterTest::query_until($node, $options{database} // $db, $query, $wanted);

	die $error if $error;
	return is($got, $wanted, $what);
}

sub becomes_true
{
	my ($query, $what) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	return becomes($query, 't', $what);
}

# Creates the functions of test/planted.sql in a database, where they are never to be
# called: a client that calls one fails.
sub plant_functions
{
	my ($database) = @_;

	return value(slurp_file("$FindBin::RealBin/../planted.sql"), $database);
}

# The first python3 that has psycopg2.  Without one, all tests of the file are
# skipped.
sub find_python
{
	my ($python) = grep {
		-x && system("$_ -c 'import psycopg2' >/dev/null 2>&1") == 0
	} map { "$_/python3" } split(/:/, $ENV{PATH});

	plan skip_all => 'python3 with psycopg2 is not installed' unless $python;
	return $python;
}

1;
