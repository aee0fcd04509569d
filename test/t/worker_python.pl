# doc/examples/worker.py, with psycopg2.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../perl";

use ExampleTest;
use PostgreSQL::Test::Utils;
use QueueTest qw(find_python);
use Test::More;

my $python = find_python();

test_worker([$python], 'worker.py', <<'PYTHON');
    if "sql" in body:
        cur.execute("SELECT pg_sleep(%s) FROM slow", (body["sql"],))
    if "own" in body:
        cur.execute("SELECT FROM slow")
        if cur.rowcount:
            time.sleep(body["own"])
    while "stop" in body and not Worker.stopping.is_set():
        time.sleep(0.01)
    while "hold" in body:
        cur.execute("SELECT FROM slow")
        if not cur.rowcount:
            break
        time.sleep(0.01)
    if "weird" in body:
        raise ValueError("\0 \ud800")
    if "leave" in body:
        sys.exit()
    if "bad" in body:
        raise Permanent("no address")
    if "fail" in body:
        raise ValueError("no such address")
PYTHON

done_testing();
