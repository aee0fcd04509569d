# The tutorial of Python, as a reader would do it.  What the reader installs with pip is
# taken from clients/python and from a python3 that has psycopg.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../perl";

use PostgreSQL::Test::Utils;
use Test::More;
use Tutorial;

my $python = find_program(['python3'], '-c', 'import psycopg')
  or plan skip_all => 'python3 with psycopg is not installed (apt install python3-psycopg)';
my $bin = PostgreSQL::Test::Utils::tempdir();
symlink $python, "$bin/python3" or die $!;

# A terminal shows each line at once; so does a pipe with the last of these.
tutorial(
	'python',
	{
		PATH => "$bin:$ENV{PATH}",
		PYTHONPATH => "$top/clients/python",
		PYTHONDONTWRITEBYTECODE => 1,
		PYTHONUNBUFFERED => 1
	});
done_testing();
