# Two servers that share queues, and a router before them: a database of the
# first server.  Roles may connect to all of them as themselves.

package ProxyTest;

use strict;
use warnings;

use Exporter 'import';
use File::Basename;
use ClusterTest;
use PostgreSQL::Test::Utils;
use Test::More;

our @EXPORT = qw($one $two
  start_servers connect_to routed state_of message_of queue_on);

our ($one, $two);

# Where the queues are: on the first server, those of odd shards
my %number = (one => 1, two => 0);

# A router in database "router" of the first server; the servers' databases are
# "postgres".
sub start_servers
{
	my $pg_config = $ENV{PG_CONFIG} || 'pg_config';
	my $shared = `$pg_config --sharedir`;
	chomp $shared;
	plan skip_all => 'PL/Proxy is not installed for this PostgreSQL'
	  unless -e "$shared/extension/plproxy.control";
	plan skip_all => 'needs Unix sockets'
	  unless $PostgreSQL::Test::Utils::use_unix_sockets;

	$one = PostgreSQL::Test::Cluster->new('one');
	$two = PostgreSQL::Test::Cluster->new('two');
	foreach my $node ($one, $two)
	{
		$node->init;
		$node->append_conf(
			'postgresql.conf', q{
autovacuum = off
queue.min_claim_ttl = 1
});
		$node->start;
		$node->safe_psql(
			'postgres', q{CREATE EXTENSION queue;
			CREATE ROLE app LOGIN IN ROLE queue_producer, queue_consumer;
			CREATE ROLE nobody LOGIN});
	}
	$one->safe_psql('postgres', 'SELECT queue_shard_init(1, 2)');
	$two->safe_psql('postgres', 'SELECT queue_shard_init(2, 2)');
	$one->safe_psql('postgres', 'CREATE DATABASE router');
	my $connections = join ', ', map { "'" . connect_to($_) . "'" } $one, $two;
	$one->safe_psql(
		'router', qq{CREATE EXTENSION queue_proxy CASCADE;
		SELECT queue_proxy.set_servers(ARRAY[$connections])});
	return;
}

# The connection string for the router
sub connect_to
{
	my ($node, $port) = @_;

	return sprintf 'host=%s port=%s dbname=postgres', $node->host,
	  $port || $node->port;
}

# What a statement returns on the router, or its error
sub routed
{
	my ($sql, %options) = @_;
	my ($status, $stdout, $stderr) = $one->psql(
		'router', "\\set VERBOSITY verbose\n$sql",
		connstr => $one->connstr($options{database} || 'router')
		  . ' user=' . ($options{role} || 'app'));

	chomp $stderr;
	return $options{both} ? ($stdout, $stderr) : $status == 0 ? $stdout : $stderr;
}

# The SQLSTATE, and the message, of the last error in a text
sub state_of
{
	my ($text) = @_;
	return $text =~ /.*ERROR:  (\w{5}): /s ? $1 : "no error: $text";
}

sub message_of
{
	my ($text) = @_;
	return $text =~ /.*ERROR:  \w{5}: ([^\n]*)/s ? $1 : "no error: $text";
}

# The name of queue number n, whose prefix is a word, on one of the servers
sub queue_on
{
	my ($server, $prefix, $n) = @_;
	my $found = 0;

	for (my $i = 1;; $i++)
	{
		my $shard = $one->safe_psql('postgres', qq{SELECT queue_shard('$prefix$i')});
		next if $shard % 2 != $number{$server} || ++$found < ($n || 1);
		return "$prefix$i";
	}
	return;
}

1;
