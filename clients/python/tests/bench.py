"""What test/bench/workers measures of this library, one figure at a time:

    python3 tests/bench.py rate NAME CONCURRENCY JOBS   jobs per second that do nothing
    python3 tests/bench.py latency NAME PUSHES          p50 and p99 from a push to its job, ms
    python3 tests/bench.py idle NAME SECONDS            CPU of this process and of its sessions
                                                        in percent, connections
    python3 tests/bench.py memory NAME JOBS             after each tenth: jobs, resident MB

NAME is threads for functions, asyncio for asynchronous ones, or bare for a loop over
queue_step().  PGHOST and so on name the database, as a superuser."""
import asyncio
import itertools
import json
import os
import sys
import time
from contextlib import asynccontextmanager

import psycopg

from pg_claim_queue import Queue

STEP = ("SELECT id, body::text, claim_id, claim_count FROM queue_step(%s::text, %s::text,"
        " \"limit\" => %s::int)")
db = psycopg.connect("", autocommit=True)


def value(sql, *args):
    return db.execute(sql, args).fetchone()[0]


def fill(jobs):
    """The numbers from 1 to jobs"""
    db.execute("SELECT queue_drop('bench')")
    db.execute("SELECT queue_create('bench', '{\"_max_claim_count\": 12}')")
    for first in range(1, jobs + 1, 10000):
        db.execute("SELECT queue_push_batch('bench', array_agg(to_jsonb(n))) FROM"
                   " generate_series(%s::int, %s::int) n GROUP BY n / 1000",
                   (first, min(first + 9999, jobs)))
    db.execute("CHECKPOINT")


def bare(done, concurrency):
    claim = None
    with psycopg.connect("", autocommit=True) as conn:
        while rows := conn.execute(STEP, ("bench", claim, concurrency)).fetchall():
            for id, body, claim, attempt in rows:
                done(json.loads(body))


@asynccontextmanager
async def working(name, queues, concurrency, done):
    """A worker, whose connections have its name as their application_name"""
    queue = Queue(f"application_name={name}")

    def work(job):
        done(job.body)

    async def awork(job):
        done(job.body)

    for each in queues:
        queue.job(each, concurrency=concurrency)({"threads": work, "asyncio": awork}[name])
    task = asyncio.create_task(queue.work())
    yield queue
    task.cancel()
    await asyncio.wait([task])


async def until(condition):
    while not condition():
        await asyncio.sleep(0.01)


async def rate(name, concurrency, jobs):
    """From the first job to the last one.  Each must be done once, and none left."""
    seen, times = bytearray(jobs + 1), []

    def done(n):
        seen[n] += 1
        times.append(time.perf_counter())

    fill(jobs)
    if name == "bare":
        bare(done, concurrency)
    else:
        async with working(name, ["bench"], concurrency, done):
            await until(lambda: len(times) >= jobs)
    assert seen[1:] == b"\1" * jobs
    assert value("SELECT total FROM queue_stats('bench')") == 0
    print(round(jobs / (times[-1] - times[0])))


async def latency(name, pushes):
    times, arrived = [], []
    db.execute("SELECT queue_create('bench_latency')")
    async with working(name, ["bench_latency"], 1,
                       lambda n: arrived.append(time.perf_counter())) as queue:
        await asyncio.sleep(0.5)
        for n in range(-10, pushes):
            start = time.perf_counter()
            if name == "asyncio":
                await queue.apush("bench_latency", n)
            else:
                queue.push("bench_latency", n)
            await until(lambda: arrived)
            if n >= 0:
                times.append((arrived[0] - start) * 1000)
            arrived.clear()
            await asyncio.sleep(0.02)
    times.sort()
    print(*(f"{times[-int(-p * pushes // 1) - 1]:.2f}" for p in (0.5, 0.99)))


def sessions(name):
    return [pid for pid, in db.execute("SELECT pid FROM pg_stat_activity WHERE"
                                       " application_name = %s ORDER BY pid", (name,))]


def cpu_of(pid):
    """Seconds of CPU time of a process, from Linux"""
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rpartition(") ")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def idle(name, seconds):
    queues = [f"bench_idle{n}" for n in range(20)]
    for each in queues:
        db.execute("SELECT queue_create(%s)", (each,))
    async with working(name, queues, 1, None):
        await asyncio.sleep(35)     # it closes connections that are not needed after 30 s
        pids = sessions(name)
        before, server = time.process_time(), sum(map(cpu_of, pids))
        await asyncio.sleep(seconds)
        own, server = time.process_time() - before, sum(map(cpu_of, pids)) - server
        assert sessions(name) == pids, "its connections have changed"
    print(f"{own / seconds * 100:.2f} {server / seconds * 100:.2f} {len(pids)}")


def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


async def memory(name, jobs):
    counter, ended = itertools.count(1), asyncio.Event()
    loop = asyncio.get_running_loop()

    def done(n):
        count = next(counter)
        if count % (jobs // 10) == 0:
            print(count, f"{resident():.1f}", flush=True)
        if count == jobs:
            loop.call_soon_threadsafe(ended.set)

    fill(jobs)
    async with working(name, ["bench"], 20, done):
        await ended.wait()
    assert value("SELECT total FROM queue_stats('bench')") == 0


part, name, *numbers = sys.argv[1:]
asyncio.run({"rate": rate, "latency": latency, "idle": idle, "memory": memory}[part](
    name, *map(int, numbers)))
