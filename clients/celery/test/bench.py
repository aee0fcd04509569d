#!/usr/bin/env python3
"""Tasks per second through Celery, over this transport and over Redis, in turn.

    bench.py queue+postgresql://… redis://… [ROUNDS [TASKS]]
    bench.py queue+postgresql://… POOL CONCURRENCY TASKS

Each round publishes TASKS tasks that do nothing, then starts a worker with 1 process,
and again with 4, and takes the rate from the 10th part of the tasks on to the last one.

The second form, for test/bench/workers, prints the rate of one worker with this pool of
Celery, as fast as it is without losing a task when it is killed: tasks are acknowledged
when they have ended, many are fetched ahead, and there are no events.
"""
import os
import statistics
import subprocess
import sys
import tempfile
import time

from celery import Celery

import kombu_queue  # noqa: F401

app = Celery('bench', broker=os.environ.get('BROKER'))
app.conf.task_ignore_result = True
if 'LATE' in os.environ:
    app.conf.update(task_acks_late=True, worker_prefetch_multiplier=50)


@app.task
def nothing(n):
    if n >= 0:
        with open(os.environ['TIMES'], 'a') as file:
            file.write(f'{time.time()}\n')


def run(broker, processes, tasks, *options):
    """Return the rates of publishing and of working."""
    with tempfile.NamedTemporaryFile('r') as times:
        env = dict(os.environ, BROKER=broker, TIMES=times.name, PGOPTIONS='')
        sender = Celery(broker=broker)
        sender.conf.task_ignore_result = True
        signature = sender.signature('bench.nothing')
        mark = tasks // 10
        begin = time.time()
        with sender.producer_pool.acquire(block=True) as producer:
            for n in range(tasks):
                signature.clone((n if n in (mark, tasks - 1) else -1,)).apply_async(
                    producer=producer)
        published = tasks / (time.time() - begin)
        worker = subprocess.Popen(
            [sys.executable, '-W', 'ignore', '-m', 'celery', '-A', 'bench', 'worker',
             '-c', str(processes), '-l', 'ERROR', *options],
            env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while len(lines := open(times.name).read().split()) < 2:
            if worker.poll() is not None:
                sys.exit('the worker has ended')
            time.sleep(0.1)
        worker.terminate()
        worker.wait()
        first, last = sorted(map(float, lines))
        return published, (tasks - 1 - mark) / (last - first)


def durable(broker, pool, concurrency, tasks):
    """Print the rate of working.  All tasks must have been done at the end."""
    with Celery(broker=broker).connection() as connection:
        queue = connection.SimpleQueue('celery')
        queue.clear()
        os.environ['LATE'] = '1'
        os.environ['PGOPTIONS'] = '-c synchronous_commit=off'      # to publish sooner
        rate = run(broker, concurrency, int(tasks), '-P', pool, '--without-gossip',
                   '--without-mingle', '--without-heartbeat')[1]
        left = queue.qsize()
    if left:
        sys.exit(f'{left} tasks are left')
    print(round(rate))


if __name__ == '__main__' and len(sys.argv) == 5 and not sys.argv[2].startswith('redis'):
    durable(*sys.argv[1:])
elif __name__ == '__main__':
    brokers = sys.argv[1:3]
    rounds, tasks = map(int, (sys.argv[3:] + ['5', '3000'][len(sys.argv[3:]):]))
    rates = {}
    for _ in range(rounds):
        for processes in 1, 4:
            for broker in brokers:
                published, worked = run(broker, processes, tasks)
                rates.setdefault(('publish', broker), []).append(published)
                rates.setdefault((f'{processes} processes', broker), []).append(worked)
    for what in '1 processes', '4 processes', 'publish':
        medians = []
        for broker in brokers:
            values = rates[what, broker]
            medians.append(statistics.median(values))
            print(f'{what}: {broker.split(":")[0]}: median {medians[-1]:.0f} '
                  f'({min(values):.0f} to {max(values):.0f}) per second')
        print(f'{what}: ratio {medians[0] / medians[1]:.2f}')
