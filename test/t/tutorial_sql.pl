# The tutorial of plain SQL, as a reader would do it.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../perl";

use Test::More;
use Tutorial;

tutorial('sql');
done_testing();
