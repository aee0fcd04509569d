# The tutorial of Django, as a reader would do it.  What the reader installs with pip is
# taken from clients/python and from a python3 that has Django and django-tasks.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../perl";

use PostgreSQL::Test::Utils;
use Test::More;
use Tutorial;

my $python = find_program(['python3'], '-c', 'import psycopg, django_tasks')
  or plan skip_all => 'python3 with psycopg, Django and django-tasks is not installed';
my $bin = PostgreSQL::Test::Utils::tempdir();
symlink $python, "$bin/python3" or die $!;
append_to_file("$bin/django-admin", qq{#!/bin/sh\nexec "$python" -m django "\$@"\n});
chmod 0755, "$bin/django-admin" or die $!;

# A terminal shows each line at once; so does a pipe with the last of these.
tutorial(
	'django',
	{
		PATH => "$bin:$ENV{PATH}",
		PYTHONPATH => "$top/clients/python",
		PYTHONDONTWRITEBYTECODE => 1,
		PYTHONUNBUFFERED => 1
	});
done_testing();
