# What extension_update.pl tests, with an update from version 1.1.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../perl";

# It has an INIT block, so it cannot be loaded later.
use ClusterTest;

our $from = '1.1';
do "$FindBin::RealBin/extension_update.pl";
die $@ if $@;
