"""A worker: a consumer for each queue, whose thread claims messages and completes them.

A consumer claims as many messages as it may run more jobs, and completes what is done in
the same transaction.  What is neither done nor given back is thus never more than its
concurrency, and only that runs again after a crash.  The functions run in other threads,
or, if they are asynchronous, as tasks of the event loop.  One more thread listens for
all queues, renews claims and looks for canceled messages.
"""
from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import random
import select
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import psycopg

from .calls import seconds
from .job import (COMPLETE, ClaimLost, Job, JobAborted, JobCanceled, JobTimeout,
                  PermanentError, Retry, Snooze, WorkerStopped, end_of_claim, error_text)
from .pool import run_now

if TYPE_CHECKING:
    from .queue import JobType, Queue

logger = logging.getLogger("pg_claim_queue")

# All messages are one value, since each takes the driver time.
STEP = ("SELECT pg_catalog.json_agg(pg_catalog.json_build_array(id, body::text, claim_id,"
        " claim_count, priority, group_key, created_at, headers::text))::text"
        " FROM queue_step(%s::text, %s::text, ttl => %s::int, \"limit\" => least(%s::int,"
        " pg_catalog.current_setting('queue.max_claim_limit', true)::int))")
DELETE = "SELECT messages_delete(%s::text, %s::bigint[], %s::text)"
RETRY = "SELECT message_retry(%s::text, %s::bigint, %s::text, %s::text, %s::int)"
BURY = "SELECT message_bury(%s::text, %s::bigint, %s::text, %s::text)"
RELEASE = "SELECT claim_release(%s::text, %s::text, %s::int)"
RENEW = "SELECT claim_renew(%s::text, %s::text, %s::int)"
HELD = ("SELECT m.id FROM ROWS FROM (pg_catalog.unnest(%s::text[]),"
        " pg_catalog.unnest(%s::text[])) AS c (q, id), claim_messages(c.q, c.id) AS m")
CLAIM_OF = "SELECT claim_id FROM message_get(%s::text, %s::bigint)"
STAY = "SELECT pg_catalog.set_config('idle_session_timeout', '0', false)"
SHORT = 0.01        # seconds: jobs that take less are completed together
INSTANT = 0.0002    # seconds: jobs that take less are run by one thread
LONG = 0.5          # seconds after which somebody looks at a claim
FALLBACK = 30       # seconds between looks at the queues when nothing arrives
POLL = 0.5          # the same where no notification can arrive
LOOK = 1            # seconds between looks for canceled messages, and at the clock
BACKOFF = 30        # seconds between attempts to connect, at most


@dataclass(slots=True, eq=False)
class Claim:
    """A claim, and what of it is neither finished nor given back."""

    id: str
    renewed: float
    jobs: dict[int, Job[Any]] = field(default_factory=dict)
    delay: int | None = None    # it ends by its release, with this delay


class Consumer:
    """Of one queue.  Its lock guards what follows the lock here."""

    def __init__(self, worker: Worker, type: JobType[Any]):
        self.worker = worker
        self.type = type
        self.name: str = type.name
        self.loop: asyncio.AbstractEventLoop | None = None      # of asynchronous jobs
        lock = threading.RLock()
        self.lock = threading.Condition(lock)
        self.jobs = threading.Condition(lock)       # for threads that wait for a job
        self.claims: dict[str, Claim] = {}
        self.pending: deque[Job[Any]] = deque()     # that no thread or task has begun
        self.outcomes: list[Job[Any]] = []          # that are to be written
        self.running = 0            # jobs that have not ended, also those not begun
        self.takers = 0             # threads or tasks that take them
        self.waiting = 0            # threads of these that have nothing to run
        self.ready = True           # a claim may find something
        self.cycling = False
        self.mean = SHORT           # seconds that jobs take

    def make_ready(self) -> None:
        with self.lock:
            self.ready = True
            self.lock.notify()

    def is_busy(self) -> bool:
        with self.lock:
            return bool(self.running or self.outcomes or self.cycling
                        or self.ready and not self.worker.stopping.is_set())

    def held(self) -> list[Claim]:
        with self.lock:
            return list(self.claims.values())

    # --- In the consumer's own thread ---

    def run(self) -> None:
        while not self.worker.ended.is_set():
            with self.lock:
                self.cycling = self.is_due()
                if not self.cycling:
                    self.rest()
                    continue
                outcomes = list(self.outcomes)
                limit = min(self.room(), 100)
                self.ready = self.ready and not limit
            try:
                self.cycle(outcomes, limit)
                if self.worker.problems:
                    self.worker.recovered(self.name)
            except Exception as error:
                self.make_ready()
                self.worker.back_off(self.name, error)

    def rest(self) -> None:
        """Waits until there is something to do."""
        self.lock.wait(SHORT if self.pending or self.outcomes else None)
        if self.pending and time.monotonic() - self.pending[0].claim.renewed > SHORT:
            self.begin(len(self.pending))       # the first ones are not as short

    def is_due(self) -> bool:
        """Whether to complete what is done, or to claim.  Short jobs are completed
        together: when nothing is left to begin, or a moment later."""
        if self.outcomes:
            return (not self.pending or self.mean >= SHORT
                    or time.monotonic() - self.outcomes[0].ended > SHORT)
        return self.ready and not self.pending and self.room() > 0

    def room(self) -> int:
        """How many to claim: as many as can run and, where jobs are short, what takes
        one another SHORT, so that a claim and a commit are for several."""
        if self.worker.stopping.is_set():
            return 0
        ahead = self.type.prefetch
        if ahead is None:
            ahead = min(50, int(SHORT / self.mean)) if self.mean < SHORT / 5 else 0
        return max(self.type.concurrency + ahead - self.running, 0)

    def cycle(self, outcomes: list[Job[Any]], limit: int) -> None:
        """Completes what is done, and claims as many as may run more."""
        with self.worker.cycles, self.worker.queue.connection() as conn:
            sent = time.monotonic()
            try:
                rows = self.together(conn, outcomes, limit)
            except psycopg.Error:
                if conn.closed or conn.broken or not outcomes:
                    raise
                # One of them is the reason.  The next cycle claims.
                self.make_ready()
                return self.one_by_one(conn, outcomes)
        if rows:
            self.start(rows, sent)
        if limit and len(rows) == limit:
            self.make_ready()       # there may be more

    def together(self, conn: psycopg.Connection[Any], outcomes: list[Job[Any]],
                 limit: int) -> list[Any]:
        """In one transaction; returns the messages of the new claim."""
        done: dict[Claim, list[int]] = {}
        others = []
        for job in outcomes:
            if job.outcome == "done" and job.result is None:
                done.setdefault(job.claim, []).append(job.id)
            elif job.outcome not in ("committed", "lost"):
                others.append(job)
        # One claim that is done altogether is completed by the step.
        whole = next((claim for claim, ids in done.items()
                      if claim.delay is None and len(ids) == len(claim.jobs)), None)
        many = others or len(done) > (whole is not None)
        with conn.transaction() if many else contextlib.nullcontext():
            for job in others:
                self.write(conn, job)
            for claim, ids in done.items():
                if claim is not whole:
                    conn.execute(DELETE, (self.name, ids, claim.id))
            row = None
            if whole or limit:
                row = conn.execute(STEP, (self.name, whole and whole.id,
                                          self.type.claim_ttl, limit)).fetchone()
        for claim in self.settle(outcomes):
            with contextlib.suppress(psycopg.Error):    # otherwise it expires
                conn.execute(RELEASE, (self.name, claim.id, claim.delay))
        return list(json.loads(row[0])) if row and row[0] else []

    def write(self, conn: psycopg.Connection[Any], job: Job[Any]) -> None:
        """The outcome of one."""
        if job.outcome == "done":
            conn.execute(COMPLETE, job.key() + (job.result,))
        elif job.outcome == "canceled":
            job.claim.delay = job.claim.delay or 0      # a release removes it
        elif job.outcome == "returned":
            conn.execute(RETRY, job.key() + (None, 0))
        elif isinstance(job.error, Snooze):
            # A release counts no attempt, but has one delay for all.
            delay = seconds(job.error.delay) or 0
            if job.claim.delay and job.claim.delay != delay:
                conn.execute(RETRY, job.key() + (None, delay))
            else:
                job.claim.delay = delay
        elif isinstance(job.error, PermanentError):
            conn.execute(BURY, job.key() + (error_text(job.error),))
            job.outcome = "dead"
        elif job.error:
            after = job.error.delay if isinstance(job.error, Retry) else None
            row = conn.execute(RETRY, job.key() + (
                error_text(job.error), seconds(after))).fetchone()
            job.outcome = "retry" if row and row[0] else "dead"

    def one_by_one(self, conn: psycopg.Connection[Any], outcomes: list[Job[Any]]) -> None:
        """Each by itself, so that one which fails does not hold up others."""
        problem: psycopg.Error | None = None
        for job in outcomes:
            try:
                self.together(conn, [job], 0)
            except psycopg.Error as error:
                if conn.closed or conn.broken:
                    raise
                if end_of_claim(error) or (     # or the result cannot be stored
                        job.result is not None and (error.sqlstate or "")[:2] in ("22", "54")):
                    job.fail(error)
                elif isinstance(job.error, PermanentError):
                    # It cannot be buried, such as without the right to create the
                    # dead letter queue.
                    job.error = Retry(None, f"{error_text(job.error)} ({error})")
                else:
                    problem = error
        if problem:     # may go away: a lock timeout, a missing privilege
            raise problem

    def settle(self, outcomes: list[Job[Any]]) -> list[Claim]:
        """What was written is no longer held; returns the claims to release."""
        with self.lock:
            for job in outcomes:
                del job.claim.jobs[job.id]
            ended = {job.claim for job in outcomes if not job.claim.jobs}
            for claim in ended:
                del self.claims[claim.id]
            self.outcomes = [job for job in self.outcomes if job.id in job.claim.jobs]
        queue = self.worker.queue
        for job in outcomes:
            if job.error:
                log_failure(job, job.error)
            if queue.hooks:
                queue.emit("complete" if job.outcome in ("done", "committed")
                           else job.outcome, job, error=job.error,
                           duration=job.ended - job.started)
        return [claim for claim in ended if claim.delay is not None]

    def start(self, rows: list[Any], sent: float) -> None:
        claim = Claim(rows[0][2], sent)
        jobs = [Job[Any](self, claim, row) for row in rows]
        claim.jobs = {job.id: job for job in jobs}
        with self.lock:
            self.claims[claim.id] = claim
            if self.worker.stopping.is_set():        # meanwhile: they are given back
                return
            self.running += len(jobs)
            self.pending.extend(jobs)
            # One thread does many such jobs before another one is awake.
            self.begin(1 if self.mean < INSTANT else len(jobs))

    def begin(self, count: int) -> None:
        """Has so many threads or tasks more take jobs, as far as there is room."""
        self.jobs.notify(count)
        for _ in range(min(count - self.waiting, self.type.concurrency - self.takers)):
            self.takers += 1
            if loop := self.loop:
                loop.call_soon_threadsafe(loop.create_task, self.work())
            else:
                start_thread(lambda: run_now(self.work()))

    # --- In threads and tasks ---

    async def work(self) -> None:
        while job := self.take():
            await job.call()
            self.finished(job)

    def take(self) -> Job[Any] | None:
        """The next one.  A thread waits for it, until the worker is over."""
        with self.lock:
            while not self.pending:
                if self.loop or self.worker.ended.is_set():
                    self.takers -= 1
                    return None
                self.waiting += 1
                self.jobs.wait()
                self.waiting -= 1
            job = self.pending.popleft()
        job.started = time.monotonic()
        return job

    def finished(self, job: Job[Any]) -> None:
        with self.lock:
            self.running -= 1
            self.mean += (job.ended - job.started + 1e-6 - self.mean) / 8
            if job.outcome != "returned":       # that stays in its claim until the end
                self.outcomes.append(job)
            if not self.pending or self.mean >= SHORT:
                self.lock.notify()

    # --- In other threads ---

    def give_back(self) -> None:
        """What waits behind a job that takes unexpectedly long is for other workers.
        It is a retry, and counts as one, since the claim goes on."""
        with self.lock:
            begun = self.running - len(self.pending)
            if self.type.prefetch is None and begun >= self.type.concurrency:
                for job in self.pending:
                    job.outcome = "returned"
                    self.mean = LOOK            # claims no more ahead
                self.running -= len(self.pending)
                self.outcomes += self.pending
                self.pending.clear()
                self.lock.notify()

    def stop(self) -> None:
        """What was not begun stays in its claim, which is given back at the end."""
        with self.lock:
            self.running -= len(self.pending)
            self.pending.clear()
            self.lock.notify()
            self.jobs.notify_all()

    def abort(self, reason: type[JobAborted], text: str, after: float = 0) -> None:
        """Ends the jobs that have run for so long."""
        now = time.monotonic()
        with self.lock:
            jobs = [job for claim in self.claims.values() for job in claim.jobs.values()
                    if job.started and now - job.started >= after]
        for job in jobs:
            job.abort(reason(text))

    def release_all(self, conn: psycopg.Connection[Any]) -> None:
        for claim in self.held():
            conn.execute(RELEASE, (self.name, claim.id, claim.delay or 0))
            for job in claim.jobs.values():
                self.worker.queue.emit("returned", job, error=job.error)
        self.claims.clear()


def start_thread(target: Callable[[], None]) -> None:
    """A daemon, so that a job that does not end cannot keep the process."""
    threading.Thread(target=target, daemon=True).start()


def log_failure(job: Job[Any], error: BaseException) -> None:
    """Not each time, since a message may fail for days: 1, 2, 4, 8 and so on."""
    if job.outcome == "dead":
        logger.error("%r failed, now a dead letter: %s", job, error_text(error))
    elif job.outcome in ("canceled", "lost") or (
            job.outcome == "retry" and job.attempt & (job.attempt - 1) == 0):
        logger.warning("%r failed: %s", job, error_text(error))


class Worker:
    def __init__(self, queue: Queue, names: Iterable[str] | None = None, *, pool: int = 10,
                 stop_timeout: float = 30, until_empty: bool = False):
        names = list(queue.jobs if names is None else names)
        if not names or not queue.jobs.keys() >= set(names):
            raise ValueError(f"not each queue has a job: {', '.join(names)}")
        if pool < 2:
            raise ValueError("pool must be 2 or more")
        self.queue = queue
        self.stop_timeout = stop_timeout
        self.until_empty = until_empty
        self.stopping = threading.Event()
        self.leaving = False
        self.problems: dict[str, tuple[str, float]] = {}    # of which part; when again
        types = [queue.jobs[name] for name in names]
        # A quarter of the connections is for what is short; transactions of functions and
        # of asynchronous functions share the rest.
        short = max(pool // 4, 1)
        share = max((pool - short) // len({type.is_async for type in types}), 1)
        self.cycles: threading.Semaphore = threading.Semaphore(short)
        self.slots: dict[bool, Any] = {False: threading.Semaphore(share),
                                       True: asyncio.Semaphore(share)}
        # Seconds between looks at the claims: each is renewed before half of its ttl.
        self.interval = min([LOOK] + [type.claim_ttl / 6 for type in types]
                            + [type.timeout / 4 for type in types if type.timeout])
        self.consumers = {type.name: Consumer(self, type) for type in types}

    async def run(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.ended = asyncio.Event()
        for consumer in self.consumers.values():
            consumer.loop = self.loop if consumer.type.is_async else None
            start_thread(consumer.run)
        start_thread(self.watch)
        try:
            await self.ended.wait()
        except asyncio.CancelledError:
            self.stop()
            await self.ended.wait()
            raise
        finally:
            self.ended.set()
            for consumer in self.consumers.values():
                consumer.stop()
                if consumer.claims:
                    logger.warning("%s: a claim is left until it expires", consumer.name)
            self.queue.close()

    def stop(self) -> None:
        """Claims nothing more.  At the second call, waits for nothing, either."""
        if self.stopping.is_set():
            self.abort_all()
            return
        self.stopping.set()
        logger.info("stopping: what runs has %s s", self.stop_timeout)
        self.queue.emit("stopping")
        for consumer in self.consumers.values():
            consumer.stop()
        self.loop.call_later(self.stop_timeout, self.abort_all)

    def abort_all(self) -> None:
        for consumer in self.consumers.values():
            consumer.abort(WorkerStopped, "the worker stops")
        self.loop.call_later(1, self.leave)

    def leave(self) -> None:
        """Neither threads that have not ended nor a lost server hold up the worker."""
        self.leaving = True
        self.loop.call_later(5, self.ended.set)

    # --- Errors ---

    def back_off(self, part: str, error: BaseException) -> None:
        """Waits, longer each time.  One problem is logged once."""
        text = str(error).partition("\n")[0]
        if text not in [problem for problem, delay in list(self.problems.values())]:
            logger.warning("%s: %s", part, text)
            self.queue.emit("disconnected", error=error)
        delay = self.problems.get(part, ("", 0.5))[1]
        self.problems[part] = text, min(delay * 2, BACKOFF)
        delay *= random.uniform(0.5, 1)
        if self.stopping.wait(delay):
            time.sleep(min(delay, 1))

    def recovered(self, part: str) -> None:
        if self.problems.pop(part, None) and not self.problems:
            logger.info("works again")
            self.queue.emit("connected")

    # --- In the thread that watches ---

    def watch(self) -> None:
        while not self.ended.is_set():
            try:
                with contextlib.closing(run_now(self.queue.open(None))) as conn:
                    self.watch_with(conn)
                self.loop.call_soon_threadsafe(self.ended.set)
                return
            except Exception as error:
                self.back_off("waiting", error)

    def watch_with(self, conn: psycopg.Connection[Any]) -> None:
        """Until the worker has stopped."""
        conn.add_notify_handler(lambda notify: self.notified(notify.payload))
        if not self.queue.pooled:
            conn.execute(STAY)
            for name in self.consumers:
                row = conn.execute("SELECT queue_channel(%s::text)", (name,)).fetchone()
                assert row
                conn.execute(f"LISTEN {row[0]}")
        else:
            logger.warning("a pooler such as PgBouncer is between, which passes on no"
                           " notifications: polls every %s s", POLL)
        for consumer in self.consumers.values():
            consumer.make_ready()       # what came meanwhile
        pause = POLL if self.queue.pooled else FALLBACK
        poll = select.poll()
        poll.register(conn.pgconn.socket, select.POLLIN)
        looked = asked = time.monotonic()
        while True:
            soon = self.stopping.is_set() or self.until_empty
            if poll.poll(1000 * (SHORT if soon else min(self.interval, pause))):
                conn.pgconn.consume_input()
                while notify := conn.pgconn.notifies():
                    self.notified(notify.extra.decode())
            now = time.monotonic()
            if now - looked >= self.interval:
                looked = now
                self.look_at_claims(conn)
                self.recovered("waiting")
            busy = any(consumer.is_busy() for consumer in self.consumers.values())
            if self.stopping.is_set() and (self.leaving or not busy):
                for consumer in self.consumers.values():
                    consumer.release_all(conn)
                return
            idle = self.until_empty and not busy
            if idle or now - asked >= pause:
                asked = now
                ready = [name for name, in conn.execute("SELECT queue_ready()")]
                # Jobs push others, also to queues whose consumer had nothing left.
                for name in ready:
                    self.notified(name)
                if idle and not self.consumers.keys() & set(ready):
                    self.loop.call_soon_threadsafe(self.stop)
                if not self.queue.pooled:
                    self.queue.close(1)

    def notified(self, name: str) -> None:
        if consumer := self.consumers.get(name):
            consumer.make_ready()

    def look_at_claims(self, conn: psycopg.Connection[Any]) -> None:
        """Renews claims, and aborts the jobs whose messages were canceled."""
        now = time.monotonic()
        for consumer in self.consumers.values():
            if timeout := consumer.type.timeout:
                consumer.abort(JobTimeout, f"ran longer than {timeout} s", timeout)
        old = [(consumer, claim) for consumer in self.consumers.values()
               for claim in consumer.held() if now - claim.renewed > LONG]
        for consumer in {consumer for consumer, claim in old}:
            consumer.give_back()
        for consumer, claim in old:
            ttl = consumer.type.claim_ttl
            if now - claim.renewed > ttl / 4:
                row = conn.execute(RENEW, (consumer.name, claim.id, ttl)).fetchone()
                if row and row[0] is not None:
                    claim.renewed = now
        if not old:
            return
        held = {id for id, in conn.execute(HELD, ([item[0].name for item in old],
                                                  [item[1].id for item in old]))}
        for consumer, claim in old:
            with consumer.lock:
                gone = [job for id, job in claim.jobs.items() if id not in held]
            for job in gone:
                row = conn.execute(CLAIM_OF, (job.queue, job.id)).fetchone()
                job.abort(JobCanceled("the message was canceled")
                          if row and row[0] == claim.id
                          else ClaimLost("the claim has expired"))
