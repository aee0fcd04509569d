# What 084_extension_update.pl tests, with an update from version 1.2.

use strict;
use warnings;

use FindBin;

# It has an INIT block, so it cannot be loaded later.
use PostgreSQL::Test::Cluster;

our $from = '1.2';
do "$FindBin::RealBin/084_extension_update.pl";
die $@ if $@;
