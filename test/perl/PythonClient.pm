# What the tests of clients/python share.

package PythonClient;

use strict;
use warnings;

use Cwd 'abs_path';
use Exporter 'import';
use File::Basename;
use Test::More;

our @EXPORT = qw($client find_python_with python_with);

our $client = abs_path(dirname(__FILE__) . '/../../clients/python');

# Not in the directory of the tests, where queue.so would be Python's module queue
chdir $client or die "$client: $!";
$ENV{PYTHONPATH} = $client;
$ENV{PYTHONDONTWRITEBYTECODE} = 1;

# The first python3 that has these modules
sub find_python_with
{
	my (@modules) = @_;
	my $import = join ', ', @modules;
	my ($python) =
	  grep { -x && system("$_ -c 'import $import' >/dev/null 2>&1") == 0 }
	  map { "$_/python3" } split(/:/, $ENV{PATH});
	return $python;
}

# The same; without one, all tests of the file are skipped.
sub python_with
{
	my (@modules) = @_;
	return find_python_with(@modules)
	  // plan skip_all => "python3 with @modules is not installed";
}

1;
