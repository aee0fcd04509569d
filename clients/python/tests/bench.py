"""Jobs that do nothing, per second, of one process: this library, and a bare loop over
queue_step(), in turns.

    python3 tests/bench.py [jobs [rounds]]

PGHOST and so on name the database, as a superuser.  The ratios are those of one round."""
import asyncio
import json
import statistics
import sys
import time

import psycopg

from pg_claim_queue import Queue

STEP = ("SELECT id, body::text, claim_id, claim_count FROM queue_step(%s::text, %s::text,"
        " \"limit\" => %s::int)")
jobs, rounds = [int(n) for n in sys.argv[1:]] + [20000, 7][len(sys.argv) - 1:]


def fill():
    with psycopg.connect("", autocommit=True) as conn:
        conn.execute("SELECT queue_drop('bench')")
        conn.execute("SELECT queue_create('bench')")
        conn.execute("SELECT queue_push_batch('bench', array_agg(to_jsonb(n))) FROM"
                     " generate_series(1, %s) n GROUP BY n / 1000", (jobs,))


def bare(concurrency):
    claim, count = None, 0
    with psycopg.connect("", autocommit=True) as conn:
        start = time.perf_counter()
        while rows := conn.execute(STEP, ("bench", claim, concurrency)).fetchall():
            for id, body, claim, attempt in rows:
                json.loads(body)
                count += 1
        assert count == jobs
        return time.perf_counter() - start


def library(concurrency, is_async):
    queue, times = Queue(""), []

    def work(job):
        times.append(time.perf_counter())

    async def awork(job):
        times.append(time.perf_counter())

    queue.job("bench", concurrency=concurrency)(awork if is_async else work)

    async def run():
        task = asyncio.create_task(queue.work())
        while len(times) < jobs:
            await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.wait([task])

    asyncio.run(run())
    with psycopg.connect("") as conn:
        assert conn.execute("SELECT total FROM queue_stats('bench')").fetchone() == (0,)
    return times[-1] - times[0]


for concurrency in 1, 20:
    rates = {"bare loop": [], "functions": [], "async functions": []}
    for _ in range(rounds):
        for name, run in (("bare loop", lambda: bare(concurrency)),
                          ("functions", lambda: library(concurrency, False)),
                          ("async functions", lambda: library(concurrency, True))):
            fill()
            rates[name].append(jobs / run())
    for name, list in rates.items():
        ratios = [rate / base for rate, base in zip(list, rates["bare loop"])]
        print(f"{name}, {concurrency} at a time: {statistics.median(list):.0f} jobs/s,"
              f" {statistics.median(ratios):.2f} ({min(ratios):.2f}-{max(ratios):.2f})"
              " of the bare loop", flush=True)
