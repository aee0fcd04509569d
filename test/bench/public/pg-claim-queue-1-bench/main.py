#!/usr/bin/env python3
"""Adapter of pg_claim_queue, the extension "queue", for hardbyte's benchmark
harness (postgresql-job-queue-benchmarking); README.md says how it is run.

A worker is a thread with a session.  Its cycle is one call: queue_step() completes
what the worker has claimed and claims up to CLAIM_LIMIT messages more.  It works on
them one after the other.  While nothing is free, it waits in queue_wait().  Systems
differ in CLAIM_LIMIT only: 1 and 64.

Times of messages count from when they were due: when the harness asked for them, or
when the adapter's own pace did.  So a push that is late makes latencies longer.
"""
import collections
import json
import math
import os
import pathlib
import queue
import signal
import sys
import threading
import time
from datetime import datetime, timezone

import psycopg2

WINDOW = 30         # seconds of latencies in a percentile
WAIT = 2            # seconds in queue_wait(), and so until a stop is noticed


def setting(name, default):
    return type(default)(os.environ.get(name) or default)


URL = os.environ.get("DATABASE_URL", "")
INSTANCE = setting("BENCH_INSTANCE_ID", 0)
LIMIT = setting("CLAIM_LIMIT", 1)
MODE = setting("PRODUCER_MODE", "fixed")
PACING = setting("PRODUCER_PACING", "adapter")
RATE = setting("PRODUCER_RATE", 800)
RATE_FILE = setting("PRODUCER_RATE_CONTROL_FILE", "")
BATCH_MAX = setting("PRODUCER_BATCH_MAX", 128)
BATCH_S = setting("PRODUCER_BATCH_MS", 25) / 1000
DEPTH = setting("TARGET_DEPTH", 1000)
WORKERS = setting("WORKER_COUNT", 32)
WORK_S = setting("JOB_WORK_MS", 1.0) / 1000
SAMPLE_S = setting("SAMPLE_EVERY_S", 5)
STOP_S = setting("STOP_S", 4)       # to finish when told to stop
# A claim must outlast the work on all of its messages.
CLAIM_S = setting("CLAIM_TTL_S", max(60, math.ceil(2 * LIMIT * WORK_S)))
QUEUES = [f"long_horizon_bench_{i}" for i in range(setting("BENCH_QUEUE_COUNT", 1))]

SYSTEM = f"pg-claim-queue-{LIMIT}"
MANIFEST = json.loads((pathlib.Path(__file__).resolve().parent.parent
                       / f"{SYSTEM}-bench" / "adapter.json").read_text())
# The rest of a body, so that all of it has about JOB_PAYLOAD_BYTES
PADDING = "x" * max(0, setting("JOB_PAYLOAD_BYTES", 256) - 64)

stop = threading.Event()


logged = None


def log(what, error):
    """Not what has just been logged: when the server ends, all threads say so."""
    global logged
    text = (str(error).strip() or repr(error)).splitlines()[0]
    if logged != (what, text):
        logged = what, text
        print(f"[{SYSTEM} {INSTANCE}] {what}: {text}", file=sys.stderr, flush=True)


class Session:
    """A connection, made anew when it is lost"""

    def __init__(self, waits=True):
        self.conn = None
        self.waits = waits      # for a server that does not answer, until told to stop

    def call(self, sql, *args):
        """All rows; psycopg2.Error if the statement failed or the connection was
        lost."""
        while not self.conn or self.conn.closed:
            try:
                self.conn = psycopg2.connect(URL, connect_timeout=5,
                                             application_name=SYSTEM)
                self.conn.autocommit = True
            except psycopg2.Error as error:
                log("connection", error)
                if not self.waits or stop.wait(0.2):
                    raise
        with self.conn.cursor() as cur:
            cur.execute(sql, args)
            return cur.fetchall()


class Latencies:
    """Percentiles of the last WINDOW seconds.  What is kept is how often each
    tenth of a percent was met, for each second, so memory is bounded, and three
    figures are right."""
    step = math.log(1.001)

    def __init__(self):
        self.seconds = collections.deque(maxlen=WINDOW)

    def add(self, ms, times=1):
        now = int(time.monotonic())
        if not self.seconds or self.seconds[-1][0] != now:
            self.seconds.append((now, collections.Counter()))
        self.seconds[-1][1][round(math.log(max(ms, 0.001)) / self.step)] += times

    def percentiles(self):
        """p50, p95 and p99; nothing if none was met."""
        since = time.monotonic() - WINDOW
        met = collections.Counter()
        for second, buckets in self.seconds:
            if second >= since:
                met.update(buckets)
        seen, total, wanted = 0, met.total(), [0.5, 0.95, 0.99]
        for bucket in sorted(met):
            seen += met[bucket]
            while wanted and seen >= wanted[0] * total:
                yield round(math.exp(bucket * self.step), 4)
                wanted.pop(0)


class Metrics:
    """What happened since the adapter was started."""

    def __init__(self):
        self.lock = threading.Lock()
        self.enqueued = self.completed = 0
        self.latencies = {name: Latencies() for name in (
            "producer_call", "producer", "subscriber", "end_to_end")}

    def push(self, messages, ms):
        with self.lock:
            self.enqueued += messages
            self.latencies["producer_call"].add(ms)
            self.latencies["producer"].add(ms / messages, messages)

    def start(self, due):
        with self.lock:
            self.latencies["subscriber"].add((time.time() - due) * 1000)

    def complete(self, dues):
        now = time.time()
        with self.lock:
            self.completed += len(dues)
            for due in dues:
                self.latencies["end_to_end"].add((now - due) * 1000)


metrics = Metrics()


# Producer

def target_rate():
    """Of the harness's file, which it may change; 0 if nothing has a rate."""
    if MODE != "fixed":
        return 0.0
    try:
        return float(pathlib.Path(RATE_FILE).read_text())
    except (OSError, ValueError):
        return float(RATE)


def read_orders(orders):
    """The harness asks for messages: ENQUEUE and their number, in lines."""
    rest = b""
    while True:
        # Not sys.stdin: its lock would be held when the process ends.
        data = os.read(0, 65536)
        if not data:
            return
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            word, _, number = line.strip().partition(b" ")
            if word == b"ENQUEUE" and number.isdigit() and int(number) > 0:
                orders.put((int(number), time.time()))


def make_orders(orders):
    """The adapter asks itself: as many as are due by the time that has passed."""
    due, last = 0.0, time.monotonic()
    while not stop.wait(BATCH_S):
        now = time.monotonic()
        due += target_rate() * (now - last)
        last = now
        if due >= 1:
            orders.put((int(due), time.time()))
            due -= int(due)


def fill_up(session):
    """How many messages are missing from TARGET_DEPTH, as soon as some are."""
    while not stop.wait(BATCH_S):
        free = sum(session.call("SELECT free FROM queue_stats(%s)", name)[0][0]
                   for name in QUEUES)
        if free < DEPTH:
            return DEPTH - free, time.time()
    return 0, 0


def produce(orders):
    session = Session()
    pushed = batches = missing = 0
    while not stop.is_set():
        try:
            if missing == 0:
                missing, due = (fill_up(session) if MODE == "depth-target"
                                else orders.get(timeout=0.5))
            bodies = [
                f'{{"seq": {pushed + i}, "due": {due:.6f}, "padding": "{PADDING}"}}'
                for i in range(min(missing, BATCH_MAX))]
            if not bodies:
                continue
            # Each message is tried once: a push whose connection was lost may have
            # been committed.
            missing -= len(bodies)
            began = time.monotonic()
            session.call("SELECT queue_push_batch(%s, %s::jsonb[])",
                         QUEUES[batches % len(QUEUES)], bodies)
            metrics.push(len(bodies), (time.monotonic() - began) * 1000)
            pushed += len(bodies)
            batches += 1
        except queue.Empty:
            pass
        except psycopg2.Error as error:
            log("producer", error)


# Workers

class Worker:
    def __init__(self, name):
        self.queue = name
        self.session = Session()
        self.claim = None
        self.ends = 0           # the claim, at the earliest
        self.dues = []          # of what is claimed and done

    def run(self):
        while self.claim or not stop.is_set():
            try:
                self.work(self.step())
            except psycopg2.Error as error:
                log("worker", error)
                self.recover(error.pgcode)

    def step(self):
        """Completes the claim and makes the next one."""
        began = time.monotonic()
        messages = self.session.call(
            'SELECT body, claim_id FROM queue_step(%s, %s, ttl => %s, "limit" => %s)',
            self.queue, self.claim, CLAIM_S, 0 if stop.is_set() else LIMIT)
        metrics.complete(self.dues)
        self.claim = messages[0][1] if messages else None
        self.dues = []
        self.ends = began + CLAIM_S
        return messages

    def work(self, messages):
        for body, _ in messages:
            metrics.start(body["due"])
            time.sleep(WORK_S)
            self.dues.append(body["due"])
        if not messages and not stop.is_set():
            self.session.call("CALL queue_wait(%s, %s)", self.queue, WAIT * 1000)

    def recover(self, state):
        """Gives the claim back, unless it has been lost (QU001).  If there is none
        any more, the step completed it before the connection was lost; the claim
        that it made then is not known, and its time has to pass."""
        while self.claim and state != "QU001":
            try:
                back = self.session.call("SELECT claim_release(%s, %s)",
                                         self.queue, self.claim)[0][0]
                if back == 0 and time.monotonic() < self.ends:
                    metrics.complete(self.dues)
                break
            except psycopg2.Error as error:
                log("worker", error)
                if stop.is_set():
                    break
        self.claim, self.dues = None, []


# Lines for the harness

def emit(**fields):
    print(json.dumps({**fields, "system": SYSTEM, "instance_id": INSTANCE}), flush=True)


def now_iso():
    now = datetime.now(timezone.utc).isoformat(timespec="milliseconds")
    return now.replace("+00:00", "Z")


def describe(session):
    version, database = session.call(
        "SELECT extversion, current_database() FROM pg_extension"
        " WHERE extname = 'queue'")[0]
    emit(kind="descriptor", event_tables=MANIFEST["event_tables"],
         event_indexes=MANIFEST["event_indexes"], extensions=MANIFEST["extensions"],
         version=f"pg_claim_queue {version}", schema_version=version,
         db_name=database, started_at=now_iso())


class Sampler:
    def __init__(self, session):
        self.session = session
        self.last = time.monotonic()
        self.enqueued = self.completed = 0

    def sample(self):
        """All lines of one moment.  Without lines: latencies that nobody measured
        within their window, and depths if the server does not answer."""
        at = now_iso()
        with metrics.lock:
            now = time.monotonic()
            window = now - self.last
            enqueued, completed = metrics.enqueued, metrics.completed
            values = [("enqueue_rate", (enqueued - self.enqueued) / window, window),
                      ("completion_rate", (completed - self.completed) / window,
                       window)]
            self.last, self.enqueued, self.completed = now, enqueued, completed
            for name, latencies in metrics.latencies.items():
                for percent, ms in zip((50, 95, 99), latencies.percentiles()):
                    values.append((f"{name}_p{percent}_ms", ms, WINDOW))
                    # The harness's older name of the same thing
                    if name == "subscriber":
                        values.append((f"claim_p{percent}_ms", ms, WINDOW))
        # What all instances would say is said by the first one.
        if INSTANCE == 0:
            values += [("producer_target_rate", target_rate(), 0)] + self.depths()
        for metric, value, window in values:
            emit(kind="adapter", t=at, subject_kind="adapter", subject="",
                 metric=metric, value=value, window_s=window)

    def depths(self):
        try:
            free, claimed, total = map(sum, zip(*(self.session.call(
                "SELECT free, claimed, total FROM queue_stats(%s)", name)[0]
                for name in QUEUES)))
        except psycopg2.Error as error:
            log("sampler", error)
            return []
        return [("queue_depth", free, 0), ("running_depth", claimed, 0),
                ("total_backlog", total, 0)]

    def run(self):
        """At the multiples of SAMPLE_EVERY_S by the clock; not at the first one,
        since in the harness's sums a short window counts as much as a whole one"""
        tick = time.time() // SAMPLE_S + 2
        while not stop.wait(max(0, tick * SAMPLE_S - time.time())):
            self.sample()
            tick = max(tick, time.time() // SAMPLE_S) + 1


def main():
    scenario = setting("SCENARIO", "long_horizon")
    if scenario not in ("long_horizon", "migrate_only"):
        sys.exit(f"{SYSTEM}: there is no scenario {scenario!r} here")
    if len(QUEUES) > WORKERS:
        sys.exit(f"{SYSTEM}: WORKER_COUNT must not be below BENCH_QUEUE_COUNT")
    for signum in signal.SIGTERM, signal.SIGINT:
        signal.signal(signum, lambda *_: stop.set())
    # The lines come in time, whether or not the server answers.
    session = Session(waits=False)
    for name in QUEUES:
        session.call("SELECT queue_create(%s)", name)
    if scenario == "migrate_only":
        return

    describe(session)
    orders = queue.SimpleQueue()
    source = read_orders if PACING == "harness" else make_orders
    if MODE == "fixed":
        threading.Thread(target=source, args=(orders,), daemon=True).start()
    threads = [threading.Thread(target=produce, args=(orders,), daemon=True)]
    workers = [Worker(QUEUES[i % len(QUEUES)]) for i in range(WORKERS)]
    threads += [threading.Thread(target=worker.run, daemon=True) for worker in workers]
    for thread in threads:
        thread.start()
    sampler = Sampler(session)
    sampler.run()
    deadline = time.monotonic() + STOP_S
    for thread in threads:
        thread.join(max(0, deadline - time.monotonic()))
    sampler.sample()


if __name__ == "__main__":
    main()
