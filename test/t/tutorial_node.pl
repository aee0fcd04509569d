# The tutorial of Node, as a reader would do it.  What the reader installs with npm is built
# from clients/node, and taken from the distribution (pg); npx is a program that runs what
# is installed, as npx does.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../perl";

use NodeClient;
use PostgreSQL::Test::Utils;
use Test::More;
use Tutorial;

my $dir = PostgreSQL::Test::Utils::tempdir();
build_client($dir);
mkdir "$dir/bin" or die $!;
symlink $program, "$dir/bin/node" or die $!;
append_to_file("$dir/bin/npx", qq(#!/bin/sh\nprogram=\$1\nshift\nexec node node_modules/.bin/"\$program" "\$@"\n));
chmod 0755, "$dir/bin/npx" or die $!;

sub install
{
	my ($home) = @_;

	system_or_bail('mkdir', '-p', "$home/node_modules/.bin");
	symlink $pg, "$home/node_modules/pg" or die $!;
	symlink "$dir/node", "$home/node_modules/pg-claim-queue" or die $!;
	symlink '../pg-claim-queue/dist/cli.js', "$home/node_modules/.bin/pg-claim-queue" or die $!;
	return;
}
tutorial('node', { PATH => "$dir/bin:$ENV{PATH}" }, \&install);
done_testing();
