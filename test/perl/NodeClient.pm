# What the tests of clients/node share: the packages of the distribution, and a copy of the
# library, built.

package NodeClient;

use strict;
use warnings;

use Exporter 'import';
use File::Basename;
use PostgreSQL::Test::Utils;
use Test::More;

our @EXPORT = qw($program $pg $types find_package build_client);

# The node that has the packages, and the directories of two of them
our ($program, $pg, $types);

# Where the first node that has it finds a package
sub find_package
{
	my ($name) = @_;
	foreach my $node ($program // grep { -x } map { ("$_/node", "$_/nodejs") } split(/:/, $ENV{PATH}))
	{
		my $path = `$node -p 'require.resolve("$name/package.json")' 2>/dev/null`;
		next unless $path;
		$program = $node;
		chomp $path;
		return dirname($path);
	}
	return;
}

# Builds a copy of the library in $dir/node, as "npm run build" does; returns what the
# compiler prints, and the directory of the compiler.  Where a package is missing, all tests
# of the file are skipped.
sub build_client
{
	my ($dir) = @_;

	$pg = find_package('pg') or plan skip_all => 'no node with pg (apt install node-pg)';
	my $typescript = find_package('typescript')
	  or plan skip_all => 'typescript is not installed (apt install node-typescript)';
	plan skip_all => 'node is older than 18' if `$program -p 'parseInt(process.versions.node)'` < 18;

	system_or_bail('cp', '-r', dirname(__FILE__) . '/../../clients/node', $dir);
	my $modules = "$dir/node/node_modules";
	system_or_bail('rm', '-rf', $modules, "$dir/node/dist");
	mkdir $modules or die $!;
	symlink $pg, "$modules/pg" or die $!;
	$types = find_package('@types/node');
	my @options = ($types ? ('--typeRoots', dirname($types)) : (), '--skipLibCheck');
	my ($out) = run_command([ $program, "$typescript/bin/tsc", '-p', "$dir/node", @options ]);
	BAIL_OUT($out) unless -e "$dir/node/dist/index.js";
	return ($out, $typescript);
}

1;
