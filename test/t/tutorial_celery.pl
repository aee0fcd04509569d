# The tutorial of Celery, as a reader would do it, with a python3 that has Celery and
# psycopg2.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../perl";

use PostgreSQL::Test::Utils;
use Test::More;
use Tutorial;

my $python = find_program(['python3'], '-c', 'import celery, psycopg2')
  or plan skip_all => 'python3 with celery and psycopg2 is not installed (apt install python3-celery python3-psycopg2)';
my $bin = PostgreSQL::Test::Utils::tempdir();
symlink $python, "$bin/python3" or die $!;
append_to_file("$bin/celery", qq(#!/bin/sh\nexec python3 -m celery "\$@"\n));
chmod 0755, "$bin/celery" or die $!;

# A terminal shows each line at once; so does a pipe with the last of these.
tutorial(
	'celery',
	{
		PATH => "$bin:$ENV{PATH}",
		PYTHONDONTWRITEBYTECODE => 1,
		PYTHONUNBUFFERED => 1
	},
	sub { system_or_bail('cp', "$top/clients/celery/kombu_queue.py", $_[0]) });
done_testing();
