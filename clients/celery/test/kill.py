#!/usr/bin/env python3
"""Kill 100 Celery workers while each works: nothing is lost, and all is delivered again.

    DSN=postgresql://…/mydb kill.py [WORKERS]

The server needs queue.min_claim_ttl = 5, and max_connections for two connections of each
worker.  Use a database of its own: the tables started and done, and the
queue celery, are dropped.
"""
import os
import signal
import sys
import time

TTL = 5
WORKERS = int(sys.argv[1]) if len(sys.argv) > 1 else 100
TASKS = 3 * WORKERS
os.environ.update(BROKER='queue+' + os.environ['DSN'], TTL=str(TTL))

import psycopg2  # noqa: E402
from app import app, record, work  # noqa: E402


def value(sql):
    with psycopg2.connect(os.environ['DSN']) as conn, conn.cursor() as cursor:
        cursor.execute(sql)
        return cursor.fetchone()[0]


def start_worker():
    pid = os.fork()
    if pid:
        return pid
    os.setsid()
    log = os.open('/dev/null', os.O_WRONLY)
    os.dup2(log, 1)
    os.dup2(log, 2)
    app.worker_main(['worker', '--pool=solo', '--concurrency=1', '--without-gossip',
                     '--without-mingle', '--without-heartbeat', f'--hostname=w{os.getpid()}@test'])
    os._exit(0)


def wait_for(sql, wanted, seconds):
    end = time.time() + seconds
    while value(sql) != wanted:
        if time.time() > end:
            sys.exit(f'not ok: {sql}: {value(sql)}, not {wanted}')
        time.sleep(0.1)


def stop(workers, signal_number):
    for pid in workers:
        os.kill(pid, signal_number)
    for pid in workers:
        os.waitpid(pid, 0)


record('DROP TABLE IF EXISTS started, done')
record('CREATE TABLE started (n int, pid int, again boolean,'
       ' at timestamptz DEFAULT clock_timestamp())')
record('CREATE TABLE done (n int)')
record("SELECT queue_drop('celery')")
app.conf.worker_enable_remote_control = False
with app.pool.acquire() as connection:
    for n in range(TASKS):
        work.apply_async((n, 3600 if n < WORKERS else 0), connection=connection)
app.pool.force_close_all()

first = [start_worker() for _ in range(WORKERS)]
wait_for('SELECT count(*)::int FROM started', WORKERS, 600)
time.sleep(2 * TTL)             # claims are renewed, so nothing is delivered twice
wait_for('SELECT count(*)::int FROM started', WORKERS, 0)
wait_for("SELECT claimed::int FROM queue_stats('celery')", WORKERS, 0)
print(f'ok: {WORKERS} workers have worked for longer than their claims last')

second = [start_worker() for _ in range(8)]
wait_for('SELECT count(*)::int FROM done', TASKS - WORKERS, 60)
killed = value('SELECT clock_timestamp()::text')
stop(first, signal.SIGKILL)
wait_for('SELECT count(DISTINCT n)::int FROM done', TASKS, 60)
wait_for("SELECT total::int FROM queue_stats('celery')", 0, 5)
soon, late = (value(f"SELECT extract(epoch FROM {f}(at) - '{killed}')::float"
                    ' FROM started WHERE again') for f in ('min', 'max'))
wait_for('SELECT count(*)::int FROM started WHERE again', WORKERS, 0)
wait_for('SELECT count(*)::int FROM done', TASKS, 0)
stop(second, signal.SIGTERM)
if late > TTL + 1:
    sys.exit(f'not ok: delivered again up to {late:.1f} s later')
print(f'ok: all {TASKS} tasks are done, none twice; those of the killed workers were delivered '
      f'again {soon:.1f} to {late:.1f} s later, with a ttl of {TTL} s')
record('DROP TABLE started, done')
