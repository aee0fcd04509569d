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

use PostgreSQL::Test::Cluster;

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
