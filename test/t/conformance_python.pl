# The worker library of Python, clients/python: the cases of clients/conformance, with
# jobs in threads.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../perl", "$FindBin::RealBin/../../clients/conformance";

use Conformance;
use PythonClient;
use Test::More;

test_conformance([
	python_with('psycopg'), '-W', 'error::ResourceWarning', "$client/tests/conformance_runner.py", 'sync' ]);

done_testing();
