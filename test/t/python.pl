# Workers written in Python with psycopg2, several processes at once, some of
# which fail or die: the effect of each message happens once.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../perl";

use IPC::Run;
use PostgreSQL::Test::Utils;
use QueueTest qw(:DEFAULT find_python);
use Test::More;

my $python = find_python();

start_server(
	q{
autovacuum = off
queue.min_claim_ttl = 1
queue.min_claim_grace = 0
});
my $messages = 400;
$node->safe_psql(
	'postgres', q{
	CREATE ROLE worker LOGIN IN ROLE queue_producer, queue_consumer;
	CREATE TABLE done (id bigint, n int, worker text);
	GRANT ALL ON done TO worker});

my $dir = PostgreSQL::Test::Utils::tempdir();
append_to_file("$dir/worker.py", <<'PYTHON');
import json
import os
import random
import sys

import psycopg2
import psycopg2.extras

dsn, name, role, messages = sys.argv[1:]
db = psycopg2.connect(dsn)

if role == 'producer':
    with db, db.cursor() as cur:
        # untyped parameters, as every driver sends them
        cur.execute("SELECT queue_post(%s, %s)",
                    ('work', json.dumps([{'body': {'n': n}}
                                         for n in range(int(messages))])))
        ids = cur.fetchone()[0]
    assert len(set(ids)) == int(messages)
    assert ids == sorted(ids)
    sys.exit(0)

random.seed(name)
# all begin together
with db, db.cursor() as cur:
    cur.execute("SELECT pg_advisory_xact_lock_shared(1)")
idle = 0
turns = 0
while idle < 4:
    # the claim is committed before the work begins
    with db, db.cursor() as cur:
        cur.execute("SELECT id, body, claim_id FROM queue_claim(%s, %s, %s, %s)",
                    ('work', 2, 60, 10))
        rows = cur.fetchall()
    turns += 1
    if role == 'mortal' and turns == 3:
        os._exit(9)
    if not rows:
        # what others hold may come back: wait longer than a claim lasts
        idle += 1
        with db, db.cursor() as cur:
            cur.execute("SELECT pg_sleep(0.7)")
        continue
    idle = 0
    for (id, body, claim_id) in rows:
        try:
            with db, db.cursor() as cur:
                cur.execute("INSERT INTO done VALUES (%s, %s, %s)",
                            (id, body['n'], name))
                if random.random() < 0.05:
                    raise RuntimeError('a try that fails')
                cur.execute("SELECT message_delete(%s, %s, %s)",
                            ('work', id, claim_id))
                assert cur.fetchone()[0] is True
        except RuntimeError:
            pass
        except psycopg2.Error as e:
            # the claim ran out: another worker claims it
            assert e.pgcode == 'QU001', (e.pgcode, str(e))
PYTHON

my $dsn = $node->connstr('postgres') . ' user=worker';
$node->command_ok([ $python, "$dir/worker.py", $dsn, 'p', 'producer', $messages ],
	'producer');
my @workers;
my $gate = $node->background_psql('postgres');
$gate->query_safe('SELECT pg_advisory_lock(1)');
foreach my $role ('steady', 'steady', 'steady', 'mortal', 'mortal')
{
	my $name = "$role " . scalar(@workers);
	my $output = '';
	push @workers, { name => $name, output => \$output };
	$workers[-1]->{run} =
	  IPC::Run::start(
		[ $python, "$dir/worker.py", $dsn, $name, $role, $messages ],
		'<', \undef, '>&', \$output);
}
$node->poll_query_until('postgres',
	q{SELECT count(*) = 5 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted}
);
$gate->quit;
foreach my $worker (@workers)
{
	my $ok = $worker->{run}->finish;
	is(${ $worker->{output} }, '', "$worker->{name} had no complaint");
	ok($worker->{name} =~ /mortal/ ? 1 : $ok, "$worker->{name} ended");
}

# If a worker has died after all others had ended, its claim has run out by the
# time this one ends.
$node->command_ok([ $python, "$dir/worker.py", $dsn, 'last', 'steady', $messages ],
	'last worker');
is( $node->safe_psql(
		'postgres',
		q{SELECT count(*), count(DISTINCT n), count(DISTINCT id), (SELECT total FROM queue_stats('work')) FROM done}
	),
	"$messages|$messages|$messages|0",
	'the effect of each message happened once');
cmp_ok(
	$node->safe_psql('postgres',
		q{SELECT count(DISTINCT worker) FROM done WHERE worker ~ 'steady'}),
	'>', 1, 'by several workers');

$node->stop;
done_testing();
