#!/usr/bin/env python3
"""Runs an adapter of this directory as the harness does, in one database of the
server that PGHOST and so on name, and prints a summary by phase.

A phase is LABEL=TYPE:SECONDS or LABEL=TYPE(NAME=VALUE):SECONDS, as there:
    warmup, clean, recovery     nothing more happens; warmup is left out of figures
    idle-in-tx                  a transaction with an xid is held
    kill-worker(instance=0), start-worker(instance=0)
                                a replica is killed, or started again
    repeated-kill(instance=0,period=20)
                                it is killed and started again each 20 seconds
    pg-backend-kill(rate=2)     as often in a second the sessions that are active
                                are terminated
    pool-exhaustion(idle_conns=300)
                                so many more sessions; max_connections must allow them
    postgres-restart            the server stands still for half of the time; not in a
                                run in which a replica is killed, since then it would
                                not be known what was completed

In the end nothing more is asked for, and what waits is worked off.  Exits with 1 if
a line is not as the harness wants it, or if a message was lost.
"""
import argparse
import collections
import contextlib
import datetime
import json
import math
import os
import pathlib
import re
import signal
import statistics
import subprocess
import sys
import threading
import time

import psycopg2

HERE = pathlib.Path(__file__).resolve().parent
KINDS = "producer", "subscriber", "claim", "end_to_end"
LATENCIES = {f"{kind}_p{p}_ms" for kind in KINDS for p in (50, 95, 99)}
RATES = {"enqueue_rate", "completion_rate"}
QUIET_S = 10        # without a push, after which none is under way
OF_ONE = {"queue_depth", "producer_target_rate"}    # the first replica says them


def connect(database):
    conn = psycopg2.connect(dbname=database, application_name="harness")
    conn.autocommit = True
    return conn


def query(conn, sql, *args):
    with conn.cursor() as cur:
        cur.execute(sql, args)
        return cur.fetchall() if cur.description else []


# The contract

class Checker:
    """Of the lines of one process, in their order"""

    def __init__(self, manifest, instance, complain, asks=True):
        self.manifest, self.instance = manifest, instance
        self.complain = complain
        self.asks = asks            # the server for the depth, at any time
        self.described = False
        self.tick = None            # time of the lines that are being read
        self.metrics = {}           # what they have said
        self.counts = dict.fromkeys(RATES, 0)   # since the start

    def read(self, text):
        """The record; None if it is none."""
        try:
            record = json.loads(text, parse_constant=float)
            kind = record["kind"]
            if record["system"] != self.manifest["system"]:
                self.complain(f"another system: {text}")
            if record["instance_id"] != self.instance:
                self.complain(f"another instance: {text}")
            if kind == "descriptor":
                self.read_descriptor(record)
            elif kind == "adapter":
                self.read_sample(record)
            else:
                self.complain(f"unknown kind: {text}")
            return record
        except (ValueError, KeyError, TypeError) as error:
            self.complain(f"{error!r}: {text}")
            return None

    def read_descriptor(self, record):
        if self.described:
            self.complain("a second descriptor")
        self.described = True
        for field in "event_tables", "extensions":
            missing = set(self.manifest[field]) - set(record[field])
            if missing:
                self.complain(f"{field} of adapter.json are missing: {missing}")
        for field in "version", "schema_version", "db_name":
            if not isinstance(record[field], str) or not record[field]:
                self.complain(f"{field} is no text: {record[field]!r}")
        parse_time(record["started_at"])

    def read_sample(self, record):
        if not self.described:
            self.complain("a sample before the descriptor")
        metric, value, window = record["metric"], record["value"], record["window_s"]
        if record["subject_kind"] != "adapter" or record["subject"] != "":
            self.complain(f"another subject: {record}")
        for number in value, window:
            if (type(number) not in (int, float) or not math.isfinite(number)
                    or number < 0):
                self.complain(f"{metric}: no number, or one below 0: {number!r}")
                return
        if record["t"] != self.tick:
            self.end_tick()
            if self.tick and parse_time(record["t"]) <= parse_time(self.tick):
                self.complain(f"time goes back to {record['t']}")
            self.tick = record["t"]
        if metric in self.metrics:
            self.complain(f"{metric} twice at {self.tick}")
        self.metrics[metric] = value
        if metric in LATENCIES and window != 30:
            self.complain(f"{metric}: its window is {window}")
        if metric in RATES:
            count = value * window
            if abs(count - round(count)) > 1e-3:
                self.complain(f"{metric}: {value}/s for {window} s is no whole number")
            self.counts[metric] += round(count)

    def end_tick(self):
        """What was said at one time is complete, and agrees."""
        if not self.tick:
            return
        wanted = set(RATES)
        if self.instance == 0:
            wanted |= OF_ONE if self.asks else OF_ONE - {"queue_depth"}
        # A latency that was not measured within the window is left out.
        for kind in KINDS:
            names = [f"{kind}_p{p}_ms" for p in (50, 95, 99)]
            values = [self.metrics[name] for name in names if name in self.metrics]
            if values:
                wanted |= set(names)
            if values != sorted(values):
                self.complain(f"{kind}: percentiles fall at {self.tick}: {values}")
        if wanted - set(self.metrics):
            self.complain(f"missing at {self.tick}: {wanted - set(self.metrics)}")
        self.metrics = {}


def parse_time(text):
    if not text.endswith("Z"):
        raise ValueError("no UTC")
    return datetime.datetime.fromisoformat(text[:-1])


# Replicas

class Replica:
    """A process of the adapter, which may be killed and started again"""

    def __init__(self, run, instance):
        self.run, self.instance = run, instance
        self.checkers = []
        self.process = self.orders = None
        self.asked = 0

    def start(self):
        run = self.run
        self.process = subprocess.Popen(
            [sys.executable, run.program], text=True, bufsize=1,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            env={**os.environ, **run.settings, "BENCH_INSTANCE_ID": str(self.instance)})
        self.checkers.append(Checker(run.manifest, self.instance, run.complain,
                                     not run.kinds & DISTURB))
        self.reader = threading.Thread(target=self.read, daemon=True)
        self.reader.start()
        while not self.checkers[-1].described and self.process.poll() is None:
            time.sleep(0.05)
        if self.process.poll() is not None:
            sys.exit(f"the adapter ended with {self.process.returncode}")
        if run.args.depth is None:
            self.orders = threading.Thread(target=self.order, daemon=True)
            self.orders.start()

    def read(self):
        checker = self.checkers[-1]
        for line in self.process.stdout:
            record = checker.read(line)
            if record:
                self.run.save(line, record)
        checker.end_tick()

    def order(self):
        """Asks for messages at the rate, by the time that has passed."""
        stdin, due, last = self.process.stdin, 0.0, time.monotonic()
        with contextlib.suppress(OSError, ValueError):
            while not self.run.draining.wait(0.025):
                now = time.monotonic()
                due += self.run.args.rate * (now - last)
                last = now
                while due >= 1:
                    number = min(int(due), 128)
                    stdin.write(f"ENQUEUE {number}\n")
                    self.asked += number
                    due -= number
                stdin.flush()

    def end(self, signum):
        self.process.send_signal(signum)
        try:
            self.process.wait(self.run.args.stop)
        except subprocess.TimeoutExpired:
            self.run.complain(f"instance {self.instance} did not end in time")
            self.process.kill()
            self.process.wait()
        self.reader.join()
        if signum == signal.SIGTERM and self.process.returncode != 0:
            self.run.complain(f"instance {self.instance} ended with"
                              f" {self.process.returncode}")
        self.process = None


# Phases: what happens while one lasts

@contextlib.contextmanager
def background(step, period):
    """step() after each period, in a thread"""
    stop = threading.Event()

    def loop():
        while not stop.wait(period):
            step()
    thread = threading.Thread(target=loop, daemon=True)
    thread.start()
    yield
    stop.set()
    thread.join()


@contextlib.contextmanager
def idle_in_tx(run, params):
    with contextlib.closing(connect(run.database)) as conn:
        conn.autocommit = False
        query(conn, "SELECT txid_current()")
        yield


@contextlib.contextmanager
def kill_worker(run, params):
    run.replicas[int(params.get("instance", 0))].end(signal.SIGKILL)
    yield


@contextlib.contextmanager
def start_worker(run, params):
    run.replicas[int(params.get("instance", 0))].start()
    yield


@contextlib.contextmanager
def repeated_kill(run, params):
    replica = run.replicas[int(params.get("instance", 0))]

    def step():
        replica.end(signal.SIGKILL)
        replica.start()
    with background(step, float(params.get("period", "20").rstrip("s"))):
        yield


@contextlib.contextmanager
def pg_backend_kill(run, params):
    with contextlib.closing(connect("postgres")) as conn, background(
            lambda: query(conn, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                          " WHERE datname = %s AND state IN"
                          " ('active', 'idle in transaction')", run.database),
            1 / float(params.get("rate", 2))):
        yield


@contextlib.contextmanager
def pool_exhaustion(run, params):
    with contextlib.ExitStack() as stack:
        for _ in range(int(params.get("idle_conns", 300))):
            stack.enter_context(contextlib.closing(connect(run.database)))
        yield


@contextlib.contextmanager
def postgres_restart(run, params):
    with contextlib.closing(connect("postgres")) as conn:
        data = query(conn, "SHOW data_directory")[0][0]
    pg_ctl = "pg_ctl", "-D", data, "-s", "-w"
    subprocess.run([*pg_ctl, "-m", "fast", "stop"], check=True)
    start = threading.Timer(run.seconds / 2, subprocess.run, [[
        *pg_ctl, "-l", f"{data}/restart.log", "start"]])
    start.start()
    yield
    start.join()


KILL = {"kill-worker", "repeated-kill"}
DISTURB = {"pg-backend-kill", "postgres-restart"}
EVENTS = {"warmup": None, "clean": None, "recovery": None, "idle-in-tx": idle_in_tx,
          "kill-worker": kill_worker, "start-worker": start_worker,
          "repeated-kill": repeated_kill, "pg-backend-kill": pg_backend_kill,
          "pool-exhaustion": pool_exhaustion, "postgres-restart": postgres_restart}


def parse_phase(text):
    match = re.fullmatch(r"(\w+)=([a-z-]+)(?:\((.*)\))?:(\d+)s?", text)
    if not match or match[2] not in EVENTS:
        raise argparse.ArgumentTypeError(f"no phase: {text}")
    params = dict(pair.split("=") for pair in (match[3] or "").split(",") if pair)
    return match[1], match[2], params, int(match[4])


# A run

class Run:
    def __init__(self, args):
        self.args = args
        self.manifest = json.loads(
            (HERE / f"{args.system}-bench" / "adapter.json").read_text())
        self.program = HERE / "pg-claim-queue-1-bench" / "main.py"
        self.database = self.manifest["db_name"]
        self.settings = {
            "DATABASE_URL": f"postgresql:///{self.database}",
            "SCENARIO": "long_horizon",
            "PRODUCER_MODE": "fixed" if args.depth is None else "depth-target",
            "PRODUCER_PACING": "harness",
            "PRODUCER_RATE": str(args.rate),
            "TARGET_DEPTH": str(args.depth or 0),
            "WORKER_COUNT": str(args.workers),
            "SAMPLE_EVERY_S": str(args.sample),
            "CLAIM_LIMIT": args.system.rsplit("-", 1)[1],
        }
        self.complaints = []
        self.lock = threading.Lock()
        self.draining = threading.Event()
        self.phase, self.seconds = "", 0
        self.kinds = {kind for _, kind, _, _ in args.phases}
        self.samples = collections.defaultdict(list)    # by phase, instance, metric
        self.replicas = [Replica(self, i) for i in range(args.replicas)]

    def complain(self, text):
        with self.lock:
            if not self.complaints:
                print(f"{self.args.system}: {text}", file=sys.stderr)
            self.complaints.append(text)

    def save(self, line, record):
        with self.lock:
            if self.args.output:
                self.args.output.write(line)
                self.args.output.flush()
            if record["kind"] == "adapter":
                self.samples[self.phase, record["instance_id"],
                             record["metric"]].append(record["value"])

    def prepare(self):
        with contextlib.closing(connect("postgres")) as conn:
            query(conn, f'DROP DATABASE IF EXISTS "{self.database}"')
            query(conn, f'CREATE DATABASE "{self.database}"')
        with contextlib.closing(connect(self.database)) as conn:
            for extension in self.manifest["extensions"]:
                query(conn, f'CREATE EXTENSION "{extension}"')

    def poll(self):
        """Dead rows and size of the tables; not while the server stands still"""
        with contextlib.suppress(psycopg2.Error), \
                contextlib.closing(connect(self.database)) as conn:
            dead, size = query(
                conn, "SELECT sum(n_dead_tup)::float8,"
                " sum(pg_total_relation_size(relid))::float8 / 1048576"
                " FROM pg_stat_user_tables"
                " WHERE schemaname || '.' || relname = ANY (%s)",
                self.manifest["event_tables"])[0]
            self.samples[self.phase, 0, "dead"].append(dead)
            self.samples[self.phase, 0, "MB"].append(size)

    def go(self):
        self.prepare()
        self.phase = self.args.phases[0][0]
        for replica in self.replicas:
            replica.start()
        with background(self.poll, self.args.sample):
            for label, kind, params, self.seconds in self.args.phases:
                self.phase = label
                event = EVENTS[kind]
                with event(self, params) if event else contextlib.nullcontext():
                    time.sleep(self.seconds)
                    for replica in self.replicas:
                        if replica.process and replica.process.poll() is not None:
                            sys.exit(f"the adapter ended with"
                                     f" {replica.process.returncode} in {label}")
        self.phase = "end"
        self.draining.set()
        if self.args.depth is None:
            self.drain()
        for replica in self.replicas:
            if replica.process:
                replica.end(signal.SIGTERM)
        self.count()
        self.summarize()

    def waiting(self):
        with contextlib.closing(connect(self.database)) as conn:
            return query(conn, "SELECT coalesce(sum(s.total), 0)::int8"
                         " FROM queue_list() AS q, queue_stats(q.name) AS s")[0][0]

    def said(self, name):
        return sum(checker.counts[name]
                   for replica in self.replicas for checker in replica.checkers)

    def drain(self):
        """Until all that was asked for has been pushed, and nothing waits.  What
        killed workers had claimed is free when their claims have ended; what they
        were asked for, and what was pushed when the connection was lost, nobody
        says: then all was pushed if nothing more was for some time."""
        until = time.monotonic() + self.args.drain
        for replica in self.replicas:
            replica.orders.join()
        asked = sum(replica.asked for replica in self.replicas)
        pushed, since = -1, 0
        while time.monotonic() < until:
            if self.said("enqueue_rate") > pushed:
                pushed, since = self.said("enqueue_rate"), time.monotonic()
            if ((pushed >= asked or time.monotonic() - since > QUIET_S)
                    and not self.waiting()):
                break
            time.sleep(0.2)

    def count(self):
        """What the lines have said, and what the server has counted"""
        said = [self.said(name) for name in ("enqueue_rate", "completion_rate")]
        # When the server ends, counts of the last moment are lost.
        counted = said
        if "postgres-restart" not in self.kinds:
            with contextlib.closing(connect(self.database)) as conn:
                counted = list(query(
                    conn, "SELECT sum(pushed)::int8, sum(completed)::int8"
                    " FROM queue_data.queue_status")[0])
        # A process that was killed did not say all, and a push after which the
        # connection was lost may have been committed.
        if (said != counted if not self.kinds & (KILL | DISTURB)
                else said[0] > counted[0] or said[1] > counted[1]):
            self.complain(f"pushed and completed: {said}, and counted: {counted}")
        pushed, completed = counted
        waiting = self.waiting()
        lost = pushed - completed - waiting
        if lost > 0:
            self.complain(f"{lost} messages were lost")
        if waiting and self.args.depth is None:
            self.complain(f"{waiting} messages were not worked off")
        print(f"\n{self.args.system}: {pushed} messages pushed, {completed} completed,"
              f" {waiting} left")

    def median(self, phase, metric, reduce):
        """Over time; of several replicas' samples at one time, their sum or their
        maximum, as in the harness"""
        series = [self.samples[phase, i, metric] for i in range(self.args.replicas)]
        series = [values for values in series if values]
        length = max(map(len, series), default=0)
        if not length:
            return None
        return statistics.median(
            reduce(values[i] for values in series if i < len(values))
            for i in range(length))

    def summarize(self):
        print("\n| Phase | pushed/s | completed/s | free | claim p50, ms | p99"
              " | end to end p50, ms | p99 | dead rows | most | MB |")
        print("|---|---|---|---|---|---|---|---|---|---|---|")
        for label, kind, _, seconds in self.args.phases:
            if kind == "warmup":
                continue
            cells = [self.median(label, name, sum)
                     for name in ("enqueue_rate", "completion_rate")]
            cells += [self.median(label, name, max) for name in (
                "queue_depth", "claim_p50_ms", "claim_p99_ms", "end_to_end_p50_ms",
                "end_to_end_p99_ms", "dead")]
            cells += [max(self.samples[label, 0, name], default=None)
                      for name in ("dead", "MB")]
            print(f"| {label} ({kind}, {seconds} s) |", " | ".join(
                "" if cell is None else f"{cell:,.1f}" if cell < 100 else f"{cell:,.0f}"
                for cell in cells), "|")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("-r", "--rate", type=int, default=800)
    parser.add_argument("-d", "--depth", type=int, help="in place of a rate")
    parser.add_argument("-w", "--workers", type=int, default=32)
    parser.add_argument("-n", "--replicas", type=int, default=1)
    parser.add_argument("-s", "--sample", type=int, default=5, help="seconds")
    parser.add_argument("-o", "--output", type=argparse.FileType("a"),
                        help="file to which the lines are added")
    parser.add_argument("--stop", type=int, default=5,
                        help="seconds in which an adapter has to end")
    parser.add_argument("--drain", type=int, default=120, help="seconds at most")
    parser.add_argument("system")
    parser.add_argument("phases", type=parse_phase, nargs="+")
    run = Run(parser.parse_args())
    if "postgres-restart" in run.kinds and run.kinds & KILL:
        parser.error("the server is restarted, and a replica is killed")
    try:
        run.go()
    finally:
        for replica in run.replicas:
            if replica.process:
                replica.process.kill()
    sys.exit(1 if run.complaints else 0)


if __name__ == "__main__":
    main()
