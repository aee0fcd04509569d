# The worker library of Python, clients/python, with asynchronous jobs: those cases of
# clients/conformance in which they differ from jobs in threads.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../perl", "$FindBin::RealBin/../../clients/conformance";

use Conformance;
use PythonClient;
use Test::More;

test_conformance(
	[ python_with('psycopg'), '-W', 'error::ResourceWarning', "$client/tests/conformance_runner.py", 'async' ],
	'commit together', 'result', 'time limit', 'poison', 'idle', 'connection', 'lost',
	'canceled', 'SIGTERM', 'PgBouncer', 'restart');

done_testing();
