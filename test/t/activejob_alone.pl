# What activejob.pl tests, without ActiveRecord.
#
# test/check -a runs it.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../perl";

# It has an INIT block, so it cannot be loaded later.
use ClusterTest;

our $alone = 1;
do "$FindBin::RealBin/activejob.pl";
die $@ if $@;
