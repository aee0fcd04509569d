# A PgBouncer in transaction mode before a server.

package PoolTest;

use strict;
use warnings;

use Exporter 'import';
use IPC::Run;
use ClusterTest;
use PostgreSQL::Test::Utils;

our @EXPORT = qw(pgbouncer start_pool stop_pool);

# More lines of the pool's configuration
our $settings = '';

my @pools;

# A test that dies leaves nothing behind.
END
{
	local $?;
	$_->{run}->kill_kill foreach @pools;
}

# The program, if it is installed
sub pgbouncer
{
	my ($program) =
	  grep { -x } map { "$_/pgbouncer" } (split(/:/, $ENV{PATH}), '/usr/sbin');
	return $program;
}

# The role of its server connections, if it is not the superuser
our $role;

# If not everyone may connect: the roles that may.  Server connections are theirs then,
# over TCP.
our @clients;

# Starts one with these databases: name => number of its server connections, to
# which any role may connect through a socket beside the server's.  Returns its
# port once it answers.
sub start_pool
{
	my ($node, %databases) = @_;
	my $dir  = PostgreSQL::Test::Utils::tempdir();
	my $port = PostgreSQL::Test::Cluster::get_free_port();
	my $user = $role || $node->safe_psql('postgres', 'SELECT current_user');
	my $host = @clients ? '127.0.0.1' : $node->host . " user=$user";
	my $entries = join '', map {
		"$_ = host=$host port=" . $node->port
		  . " dbname=postgres pool_size=$databases{$_}\n"
	} sort keys %databases;
	my %pool = (log => '');

	append_to_file("$dir/users", join '', map { qq{"$_" ""\n} } @clients);
	append_to_file(
		"$dir/pgbouncer.ini", "
[databases]
$entries
[pgbouncer]
listen_addr =
listen_port = $port
unix_socket_dir = " . $node->host . "
auth_type = " . (@clients ? 'trust' : 'any') . "
auth_file = $dir/users
pool_mode = transaction
server_login_retry = 1
logfile = $dir/pgbouncer.log
$settings
");
	$pool{run} = IPC::Run::start([ pgbouncer(), "$dir/pgbouncer.ini" ],
		'<', \undef, '>&', \$pool{log});
	push @pools, \%pool;

	my ($any) = keys %databases;
	foreach (1 .. 10 * $PostgreSQL::Test::Utils::timeout_default)
	{
		return $port
		  if IPC::Run::run(
			[
				'psql', '-XqAt', '-c', 'SELECT 1', '-d',
				'host=' . $node->host . " port=$port dbname=$any"
				  . (@clients ? " user=$clients[0]" : '')
			],
			'>', \my $out, '2>', \my $err);
		select(undef, undef, undef, 0.1);
	}
	die "PgBouncer does not answer: $pool{log}";
}

# Ends all of them.
sub stop_pool
{
	while (my $pool = pop @pools)
	{
		$pool->{run}->signal('INT');
		$pool->{run}->finish;
	}
	return;
}

1;
