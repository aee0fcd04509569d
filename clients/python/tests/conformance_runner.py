"""The runner of clients/conformance: argument 1 is sync or async, the last one says what
to do."""
import asyncio
import json
import logging
import os
import signal
import sys
import threading
import time
from collections import Counter

import psycopg

from pg_claim_queue import Message, PermanentError, Queue, Snooze

config = json.loads(sys.argv[-1])
is_async = sys.argv[1] == "async"
logging.basicConfig(level=logging.INFO)
queue = Queue("")
own = None
lock = threading.Lock()
runs: Counter[int] = Counter()


def own_execute(sql, args):
    """Over the runner's own connection, which may have been terminated."""
    global own
    with lock:
        while True:
            try:
                if own is None or own.closed:
                    own = psycopg.connect("application_name=runner", autocommit=True,
                                          prepare_threshold=None)
                cursor = own.execute(sql, args)
                return cursor.fetchall() if cursor.description else None
            except psycopg.OperationalError:
                own = None
                time.sleep(0.1)


def steps_of(job):
    run = runs[job.id] = runs[job.id] + 1
    if not isinstance(job.body, dict) or not isinstance(job.body.get("steps"), list):
        raise ValueError("the body has no steps")
    for step in job.body["steps"]:
        if not isinstance(step, dict):
            raise ValueError("a step is no object")
        step = dict(step)
        if step.pop("attempt", job.attempt) == job.attempt and step.pop("run", run) == run:
            step.pop("run", None)
            (kind, value), = step.items()
            yield kind, value


INSERT = "INSERT INTO {} (q, id, label) VALUES (%s, %s, %s)"


def in_transaction(job, kind, value):
    """The statement of a step that takes part in the job's transaction, or None."""
    if kind == "insert":
        return INSERT.format("effects"), (job.queue, job.id, value)
    if kind == "sql":
        return value, None
    if kind == "push":
        return "SELECT queue_post(NULL::text, %s::jsonb)", (json.dumps(value),)
    return None


def simple(job, kind, value):
    if kind == "note":
        own_execute(INSERT.format("notes"), (job.queue, job.id, value))
    elif kind == "throw":
        raise ValueError(value)
    elif kind == "permanent":
        raise PermanentError(value)
    elif kind == "weird" and value == "error":
        raise ValueError("a NUL \0 and \ud800")
    elif kind == "weird":
        return "a NUL \0"
    elif kind == "snooze":
        raise Snooze(value)
    elif kind == "crash":
        os.kill(os.getpid(), signal.SIGKILL)
    elif kind == "result":
        return value
    else:
        raise ValueError(f"no step {kind}")
    return None


def is_open(gate):
    return own_execute("SELECT 1 FROM gates WHERE name = %s", (gate,))


def work(job):
    result = None
    for kind, value in steps_of(job):
        if statement := in_transaction(job, kind, value):
            job.tx().execute(*statement)
        elif kind == "push_alone":
            queue.push_many([Message(**message) for message in value])
        elif kind == "wait":
            while not is_open(value):
                job.check()
                time.sleep(0.02)
        elif kind == "sleep":
            time.sleep(value)
            job.check()
        else:
            result = simple(job, kind, value) or result
    return result


async def awork(job):
    result = None
    for kind, value in steps_of(job):
        if statement := in_transaction(job, kind, value):
            await (await job.atx()).execute(*statement)
        elif kind == "push_alone":
            await queue.apush_many([Message(**message) for message in value])
        elif kind == "wait":
            while not is_open(value):
                await asyncio.sleep(0.02)
        elif kind == "sleep":
            await asyncio.sleep(value)
        else:
            result = simple(job, kind, value) or result
    return result


options = {"claim_ttl": config["ttl"]} if "ttl" in config else {}
for name, limits in config["work"].items():
    queue.job(name, **limits, **options)(awork if is_async else work)
queue.run(**{name: config[key] for name, key in
             (("pool", "connections"), ("stop_timeout", "stop")) if key in config})
