# queue_web in Chromium: its pages on a narrow and on a wide screen, with the keyboard.
#
# test/check -a runs it.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../perl";

# It has an INIT block, so it cannot be loaded later.
use ClusterTest;

our $browser = 1;
do "$FindBin::RealBin/queue_web.pl";
die $@ if $@;
