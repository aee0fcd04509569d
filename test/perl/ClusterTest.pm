# PostgreSQL's test servers, with an end for every wait and none for a session: a
# query may take half an hour, however many came before it, and a test file two hours.
# No working test takes that long, on however slow a machine.
#
# PostgreSQL's own limits are none for a query in a session of its own, and three
# minutes for the whole life of a session in the background, which a busy machine
# exceeds.
#
# In a session in the background, a notice that a push has created its queue is no error.

package ClusterTest;

use strict;
use warnings;

use IO::Socket::UNIX;
use PostgreSQL::Test::BackgroundPsql;
use PostgreSQL::Test::Cluster;
use Socket qw(SOL_SOCKET SO_RCVTIMEO);
use Test::More;
use Time::HiRes qw(sleep time);

my $query_limit = 1800;
my $file_limit = 7200;

my $init = \&PostgreSQL::Test::Cluster::init;
my $psql = \&PostgreSQL::Test::Cluster::psql;
my $safe_psql = \&PostgreSQL::Test::Cluster::safe_psql;
my $background_psql = \&PostgreSQL::Test::Cluster::background_psql;

{
	no warnings 'redefine';

	# The library is preloaded, unless test/check says something else.
	*PostgreSQL::Test::Cluster::init = sub {
		my ($self, @params) = @_;

		$init->($self, @params);
		$self->append_conf('postgresql.conf', "shared_preload_libraries = 'queue'")
		  unless $ENV{TEMP_CONFIG};
		return;
	};
	*PostgreSQL::Test::Cluster::psql = sub {
		my ($self, $db, $sql, %params) = @_;

		return $psql->($self, $db, $sql, timeout => $query_limit, %params);
	};
	*PostgreSQL::Test::Cluster::safe_psql = sub {
		return in_session(@_) // $safe_psql->(@_);
	};
	*PostgreSQL::Test::Cluster::background_psql = sub {
		my ($self, $db, %params) = @_;
		my $session = $background_psql->($self, $db, timeout => $query_limit, %params);

		$session->set_query_timer_restart;
		return $session;
	};
	*PostgreSQL::Test::BackgroundPsql::query_safe = sub {
		my ($self, @query) = @_;
		my $result = $self->query(@query);

		$self->{stderr} = without_creation($self->{stderr});
		die "query failed: $self->{stderr}" if $self->{stderr} ne '';
		return $result;
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

# What psql has written to stderr, without the notices that a push has created its queue
sub without_creation
{
	my ($stderr) = @_;

	return $stderr =~
	  s/^.*NOTICE:  .*queue "\S+" did not exist and was created\n(?:(?:DETAIL|HINT):  .*\n?)*//mgr;
}

# The statements in a text, at which psql would arrive; none if that needs a psql
sub statements
{
	my ($sql) = @_;
	my @statements;

	return if $sql =~ m{\\|/\*|\b(?:COPY|ATOMIC|RULE)\b|[^\x01-\xff]}i;
	push @statements, $1 while $sql =~ m{\G(?=.)((?:
			\'[^\']*\' | "[^"]*" | --[^\n]* | (\$(?:[a-z_]\w*)?\$).*?\g{-1} |
			[^;\'"\$-]++ | -(?!-) | \$(?!(?:[a-z_]\w*)?\$))*+)(?:;|\z)}gcsix;
	return if (pos($sql) // 0) < length $sql;
	@statements = grep { /\S/ } @statements;
	return @statements ? @statements : ('');
}

# What safe_psql() returns, in a session of its own as there, but without a psql, the start
# of which takes three times the processor time of the session: there are thousands.
# Returns nothing where there is no session, and for what only psql does.
sub in_session
{
	my ($self, $db, $sql, %params) = @_;

	return if %params || !defined $db || !defined $sql || $self->host !~ m{^/};
	my @statements = statements($sql) or return;
	return if grep { /^PG(?:CLIENTENCODING|DATESTYLE|GEQO|SERVICE|TZ)/ } keys %ENV;
	my $socket = IO::Socket::UNIX->new($self->host . '/.s.PGSQL.' . $self->port) or return;
	my @parameters = (
		user => $ENV{PGUSER} // scalar getpwuid($>),
		database => $db,
		application_name => $ENV{PGAPPNAME} // 'psql',
		options => $ENV{PGOPTIONS} // '');
	my ($asked, $error, @rows) = (0, '');

	# Each message of the protocol has a length, which counts itself.
	my $send = sub { print $socket $_[0], pack('N', 4 + length $_[1]), $_[1]; $socket->flush };

	local $SIG{PIPE} = 'IGNORE';
	$socket->setsockopt(SOL_SOCKET, SO_RCVTIMEO, pack('l!l!', $query_limit, 0));
	$send->('', pack('N(Z*)*x', 196608, @parameters));
	while ((read($socket, my $head, 5) // 0) == 5)
	{
		my ($type, $length) = unpack('aN', $head);
		my $data = '';

		last if $length > 4 && (read($socket, $data, $length - 4) // 0) != $length - 4;
		if ($type eq 'D')
		{
			my $columns = unpack('n', substr($data, 0, 2, ''));
			my @values;

			foreach (1 .. $columns)
			{
				my $size = unpack('l>', substr($data, 0, 4, ''));
				push @values, $size < 0 ? '' : substr($data, 0, $size, '');
			}
			push @rows, join('|', @values) if $columns;
		}
		elsif ($type eq 'E')
		{
			my %field = $data =~ /(.)([^\0]*)\0/sg;

			$error = "psql:<stdin>:1: $field{S}:  $field{M}";
			foreach ([ D => 'DETAIL' ], [ H => 'HINT' ], [ W => 'CONTEXT' ])
			{
				$error .= "\n$_->[1]:  $field{$_->[0]}" if exists $field{ $_->[0] };
			}
		}
		elsif ($type eq 'R' && $data ne "\0\0\0\0")
		{
			# It asks for a password.
			return;
		}
		elsif ($type eq 'Z')
		{
			if ($error ne '' || !@statements)
			{
				$send->('X', '');
				return join("\n", @rows) if $error eq '';
				die "error running SQL: '$error'\nwith sql '$sql'";
			}
			$send->('Q', shift(@statements) . "\0");
			$asked = 1;
		}
	}
	return unless $asked;
	die "connection error: '$error'\nwith sql '$sql'";
}

# Looks until the query returns this value, for three minutes; returns what it has
# returned at last, and its error.  After the first look it looks in one session, since one
# for each would take more time than all that the tests do besides; in another one where
# that has ended.
sub query_until
{
	my ($node, $db, $sql, $wanted) = @_;
	my $until = time + 180;
	my $got = eval { $node->safe_psql($db, $sql) };
	my $stderr = '';
	my $error = qr/(?:ERROR|FATAL|error):/;
	my $session;

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
