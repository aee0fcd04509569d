# PostgreSQL's test servers, with an end for every wait and none for a session: a
# query may take half an hour, however many came before it, and a test file two hours.
# No working test takes that long, on however slow a machine.
#
# PostgreSQL's own limits are none for a query in a session of its own, and three
# minutes for the whole life of a session in the background, which a busy machine
# exceeds.

package ClusterTest;

use strict;
use warnings;

use PostgreSQL::Test::BackgroundPsql;
use PostgreSQL::Test::Cluster;
use Test::More;
use Time::HiRes qw(sleep time);

my $query_limit = 1800;
my $file_limit = 7200;

my $psql = \&PostgreSQL::Test::Cluster::psql;
my $background_psql = \&PostgreSQL::Test::Cluster::background_psql;

{
	no warnings 'redefine';

	*PostgreSQL::Test::Cluster::psql = sub {
		my ($self, $db, $sql, %params) = @_;

		return $psql->($self, $db, $sql, timeout => $query_limit, %params);
	};
	*PostgreSQL::Test::Cluster::background_psql = sub {
		my ($self, $db, %params) = @_;
		my $session = $background_psql->($self, $db, timeout => $query_limit, %params);

		$session->set_query_timer_restart;
		return $session;
	};
	*PostgreSQL::Test::Cluster::poll_query_until = sub {
		my ($self, $db, $sql, $wanted) = @_;
		my ($got, $error);

		# Without a query, it is only about a connection.
		$sql //= '';
		$wanted //= 't';
		($got, $error) = query_until($self, $db, $sql, $wanted);
		return 1 if $got eq $wanted && !$error;
		diag("$sql\nreturned\n$got\n$error");
		return 0;
	};
}

# Looks until the query returns this value, for three minutes; returns what it has
# returned at last, and its error.  It looks in one session, since a psql for each look
# would take more time than all that the tests do besides; in another one where that
# has ended.
sub query_until
{
	my ($node, $db, $sql, $wanted) = @_;
	my $until = time + 180;
	my (undef, $got, $stderr) = eval { $node->psql($db, $sql) };
	my $error = qr/(?:ERROR|FATAL|error):/;
	my $session;

	# A psql that finds no server may exit before all of the query was written to it.
	($got, $stderr) = ('', "error: $@") if !defined $got;

	# Each look would be a note.
	no warnings 'redefine';
	local *PostgreSQL::Test::BackgroundPsql::note = sub { };
	while (($got ne $wanted || $stderr =~ $error) && time < $until)
	{
		sleep 0.05;
		next if eval {
			$session //= $node->background_psql($db, on_error_stop => 0);
			$session->{stderr} = '';
			$got = $session->query($sql);
			$stderr = $session->{stderr};
			1;
		};
		($got, $stderr) = ('', "error: $@");
		eval { $session->{run}->kill_kill } if $session;
		$session = undef;
	}
	eval { $session->quit } if $session;
	return ($got, $stderr =~ $error ? $stderr : '');
}

# test/stress and its like tell a test how long it takes.
if (!grep { /^QUEUE_(?!SANDBOX)/ } keys %ENV)
{
	# Once more if the test has caught the error, and waits again
	$SIG{ALRM} = sub {
		alarm 60;
		die "the test takes more than $file_limit seconds";
	};
	alarm $file_limit;
}

1;
