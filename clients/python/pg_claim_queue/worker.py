"""A worker: one event loop, whose consumers (one for each queue) claim messages, run
their jobs, and complete them.

One connection listens for all queues, renews claims and looks for canceled messages;
a pool does the rest.  A consumer claims as many messages as it may run more jobs, and
completes what is done in the same transaction.  What is neither done nor given back is
thus never more than its concurrency, and only that runs again after a crash.
"""
from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import math
import random
import threading
import time
from collections import deque
from collections.abc import Iterable
from concurrent.futures import CancelledError
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg.pq import TransactionStatus

from .calls import dumps, seconds
from .job import (ClaimLost, Job, JobAborted, JobCanceled, JobTimeout, PermanentError,
                  Retry, Snooze, Threads, WorkerStopped, current_job, error_text)
from .pool import Pool

if TYPE_CHECKING:
    from .queue import JobType, Queue

logger = logging.getLogger("pg_claim_queue")

# What few jobs read is one column, since each takes the driver time.
COLUMNS = ("SELECT id, body::text, claim_id, pg_catalog.json_build_array(claim_count,"
           " priority, group_key, created_at, headers::text)::text FROM ")
STEP = COLUMNS + ("queue_step(%s::text, %s::text, ttl => %s::int, \"limit\" => %s::int)")
CLAIM = COLUMNS + "queue_claim(%s::text, ttl => %s::int, \"limit\" => %s::int)"
DELETE = "SELECT messages_delete(%s::text, %s::bigint[], %s::text)"
COMPLETE = "SELECT message_complete(%s::text, %s::bigint, %s::text, %s::jsonb)"
RETRY = "SELECT message_retry(%s::text, %s::bigint, %s::text, %s::text, %s::int)"
BURY = "SELECT message_bury(%s::text, %s::bigint, %s::text, %s::text)"
RELEASE = "SELECT claim_release(%s::text, %s::text, %s::int)"
RENEW = "SELECT claim_renew(%s::text, %s::text, %s::int)"
HELD = ("SELECT m.id FROM ROWS FROM (pg_catalog.unnest(%s::text[]),"
        " pg_catalog.unnest(%s::text[])) AS c (q, id), claim_messages(c.q, c.id) AS m")
SHORT = 0.01        # seconds: jobs that take less are completed together
FALLBACK = 30       # seconds between looks at the queues when nothing arrives
POLL = 0.5          # the same where no notification can arrive
CANCEL = 2          # seconds between looks for canceled messages
BACKOFF = 30        # seconds between attempts to connect, at most
OPEN = (TransactionStatus.INTRANS, TransactionStatus.INERROR)


class Run:
    """A job that runs, and then its outcome."""

    __slots__ = ("consumer", "claim", "job", "abort_reason", "outcome", "error", "result",
                 "task", "timer", "started", "duration", "conn", "block", "by_caller")

    def __init__(self, consumer: Consumer, claim: Claim, row: tuple[Any, ...]):
        self.consumer = consumer
        self.claim = claim
        self.job: Job[Any] = Job(consumer.name, row, consumer.type.decode, self)
        self.abort_reason: JobAborted | None = None
        self.outcome = ""       # done, committed, failed, snooze, canceled, lost, returned
        self.error: BaseException | None = None
        self.result: str | None = None
        self.task: asyncio.Task[Any] | None = None      # in a thread: waits for conn
        self.timer: asyncio.TimerHandle | None = None
        self.started = self.duration = 0.0
        self.conn: Any = None           # of its transaction
        self.block: Any = None
        self.by_caller = False          # has completed it in a transaction of its own

    def abort(self, reason: JobAborted) -> None:
        """Has the job end, in the loop's thread."""
        if self.abort_reason or self.outcome:
            return
        self.abort_reason = reason
        if self.task:
            self.task.cancel()
        elif (conn := self.conn) and not self.outcome:
            # Its statement may take long.  The connection is not used again, so that
            # a late cancel cannot hit what comes next.
            threading.Thread(target=conn.cancel, daemon=True).start()

    # --- The job's own code: in a thread ---

    def call(self) -> None:
        token = current_job.set(self.job)
        try:
            if self.consumer.worker.queue.hooks:
                self.consumer.worker.queue.emit("start", self.job)
            self.job.check()
            self.job.body       # what cannot be read fails before the job begins
            self.succeed(self.consumer.type.function(self.job))
            if self.block:
                if not self.by_caller:
                    self.conn.execute(COMPLETE, self.key() + (self.result,))
                self.block.__exit__(None, None, None)
                self.outcome = "committed"
        except BaseException as error:
            self.fail(error)
        current_job.reset(token)
        self.duration = time.monotonic() - self.started

    def begin(self) -> psycopg.Connection[Any]:
        if not self.conn:
            try:
                self.conn = asyncio.run_coroutine_threadsafe(
                    self.take(), self.consumer.worker.loop).result()
            except CancelledError:
                self.job.check()
                raise
            self.block = self.conn.transaction()
            self.block.__enter__()
            self.job.check()
        return self.conn        # type: ignore[no-any-return]

    async def take(self) -> Any:
        self.job.check()
        self.task = asyncio.current_task()
        try:
            return await self.consumer.worker.pool.take_tx(True)
        finally:
            self.task = None

    def end_in_thread(self) -> None:
        """Gives the connection back."""
        if not self.conn:
            return
        worker, conn, self.conn = self.consumer.worker, self.conn, None
        if conn.pgconn.transaction_status in OPEN:
            with contextlib.suppress(Exception):
                self.block.__exit__(JobAborted, JobAborted(), None)
        try:
            worker.loop.call_soon_threadsafe(worker.pool.give_tx, conn, True,
                                             not self.abort_reason)
        except RuntimeError:    # the loop has ended
            conn.close()

    # --- The same as a task ---

    async def acall(self) -> None:
        current_job.set(self.job)
        try:
            if self.consumer.worker.queue.hooks:
                self.consumer.worker.queue.emit("start", self.job)
            self.job.body
            self.succeed(await self.consumer.type.function(self.job))
            if self.block:
                if not self.by_caller:
                    await self.conn.execute(COMPLETE, self.key() + (self.result,))
                await self.block.__aexit__(None, None, None)
                self.outcome = "committed"
        except BaseException as error:
            self.fail(error)
        if self.conn:
            await self.aend()
        self.duration = time.monotonic() - self.started

    async def abegin(self) -> psycopg.AsyncConnection[Any]:
        if not self.conn:
            self.conn = await self.consumer.worker.pool.take_tx(False)
            self.block = self.conn.transaction()
            await self.block.__aenter__()
        return self.conn        # type: ignore[no-any-return]

    async def aend(self) -> None:
        conn, self.conn = self.conn, None
        try:
            if conn.pgconn.transaction_status in OPEN:
                with contextlib.suppress(Exception):
                    await self.block.__aexit__(JobAborted, JobAborted(), None)
        finally:
            self.consumer.worker.pool.give_tx(conn, False, True)

    # --- The outcome ---

    def complete_with(self, tx: Any, result: Any) -> None:
        with contextlib.closing(tx.cursor()) as cursor:
            cursor.execute(COMPLETE, self.key() + (
                None if result is None else dumps(result),))
        self.by_caller = True

    def key(self) -> tuple[Any, ...]:
        return (self.job.queue, self.job.id, self.job.claim_id)

    def succeed(self, result: Any) -> None:
        if result is not None:
            self.result = dumps(result)
        self.outcome = "committed" if self.by_caller else "done"

    def fail(self, error: BaseException) -> None:
        """Whatever the job raised is its own failure, SystemExit and an error of its
        connection too."""
        state = getattr(error, "sqlstate", None) if self.block else None
        if self.abort_reason:
            error = self.abort_reason
        elif state == "QU004":
            error = JobCanceled("the message was canceled")
        elif state in ("QU001", "QU002"):
            error = ClaimLost("the claim has expired")
        self.error = error
        self.outcome = ("canceled" if isinstance(error, JobCanceled)
                        else "lost" if isinstance(error, ClaimLost)
                        else "returned" if isinstance(error, WorkerStopped)
                        else "snooze" if isinstance(error, Snooze) else "failed")


@dataclass(slots=True)
class Claim:
    """A claim, and what of it is neither finished nor given back."""

    id: str
    renewed: float
    runs: dict[int, Run] = field(default_factory=dict)
    snoozed: list[Run] = field(default_factory=list)
    canceled: bool = False      # has messages that go when it is released


class Consumer:
    """Of one queue."""

    def __init__(self, worker: Worker, type: JobType[Any]):
        self.worker = worker
        self.type = type
        self.name: str = type.name
        self.claims: dict[str, Claim] = {}
        self.outcomes: list[Run] = []
        self.ending: list[Claim] = []           # have only what is snoozed or canceled
        self.pending: deque[Run] = deque()      # that no thread or task has begun
        self.running = 0            # jobs whose end is not known
        self.active = 0             # threads or tasks that take them
        self.ready = True           # a claim may find something
        self.mean = SHORT           # seconds that jobs take
        self.wake = asyncio.Event()
        self.wake.set()
        self.timer: asyncio.TimerHandle | None = None
        self.topping: asyncio.TimerHandle | None = None
        self.from_threads: deque[Run | None] = deque()
        self.collecting = False

    def make_ready(self) -> None:
        self.ready = True
        self.wake.set()

    async def run(self) -> None:
        while True:
            await self.wake.wait()
            self.wake.clear()
            worker = self.worker
            # Also what is done and not yet completed counts as running, until this step.
            free = self.type.concurrency + self.ahead() - self.running
            limit = (min(max(free, 0), worker.pool.max_limit)
                     if self.ready and not worker.stopping else 0)
            if self.outcomes or limit or self.ending:
                try:
                    await self.cycle(limit)
                    if worker.problems:
                        worker.recovered(self.name)
                except Exception as error:
                    self.make_ready()
                    await worker.back_off(self.name, error)
            if not self.running and not self.outcomes and not self.ending and (
                    worker.stopping or worker.until_empty and not self.ready):
                return

    def ahead(self) -> int:
        """How many more are claimed than can run: where jobs are short, what takes one
        another SHORT, so that a claim and a commit are for several."""
        if self.type.prefetch is not None:
            return self.type.prefetch
        return min(50, int(SHORT / self.mean)) if self.mean < SHORT / 5 else 0

    def give_back(self) -> None:
        """What waits behind a job that takes unexpectedly long is for other workers.
        It is a retry, and counts as one, since the claim goes on."""
        with contextlib.suppress(IndexError):
            while self.type.prefetch is None and self.active >= self.type.concurrency:
                run = self.pending.popleft()
                self.running -= 1
                run.outcome = "returned"
                self.outcomes.append(run)
                self.mean = CANCEL          # claims no more ahead
                self.wake.set()

    async def cycle(self, limit: int) -> None:
        """Completes what is done, and claims as many as may run more."""
        outcomes, self.outcomes = self.outcomes, []
        if limit:
            self.ready = False
        try:
            async with self.worker.pool.connection() as conn:
                try:
                    sent = time.monotonic()
                    if rows := await self.together(conn, outcomes, limit):
                        # There may be more, though a claim may return fewer than it could.
                        self.ready = True
                        self.start(rows, sent)
                except psycopg.Error:
                    if conn.closed or conn.broken or not outcomes:
                        raise
                    # One of them is the reason.  The next cycle claims.
                    await self.one_by_one(conn, outcomes)
                    self.make_ready()
                await self.release_rest(conn)
        except BaseException:
            self.outcomes = [run for run in outcomes if run.job.id in run.claim.runs
                             and run not in self.outcomes] + self.outcomes
            raise

    async def together(self, conn: psycopg.AsyncConnection[Any], outcomes: list[Run],
                       limit: int) -> list[tuple[Any, ...]]:
        """In one transaction."""
        last = outcomes[0].claim if outcomes else None
        if not last:
            cursor = await conn.execute(CLAIM, (self.name, self.type.claim_ttl, limit))
            return await cursor.fetchall()
        if (len(outcomes) == len(last.runs) and not last.canceled and not last.snoozed
                and all(run.claim is last and run.outcome == "done" and run.result is None
                        for run in outcomes)):
            cursor = await conn.execute(STEP, (self.name, last.id, self.type.claim_ttl,
                                               limit))
            rows = await cursor.fetchall()
            self.settle(outcomes)
            return rows
        done: dict[str, list[int]] = {}
        rows = []
        dead: list[Run] = []
        async with conn.transaction():
            for run in outcomes:
                if run.outcome == "done" and run.result is None:
                    done.setdefault(run.claim.id, []).append(run.job.id)
                elif await self.write(conn, run):
                    dead.append(run)
            for claim_id, ids in done.items():
                await conn.execute(DELETE, (self.name, ids, claim_id))
            if limit:
                cursor = await conn.execute(CLAIM, (self.name, self.type.claim_ttl, limit))
                rows = await cursor.fetchall()
        self.settle(outcomes, dead)
        return rows

    async def write(self, conn: psycopg.AsyncConnection[Any], run: Run) -> bool:
        """The outcome of one; whether it is a dead letter."""
        if run.outcome == "done":
            await conn.execute(COMPLETE, run.key() + (run.result,))
        elif run.outcome == "failed":
            assert run.error
            text = error_text(run.error)
            if isinstance(run.error, PermanentError):
                await conn.execute(BURY, run.key() + (text,))
                return True
            delay = run.error.delay if isinstance(run.error, Retry) else None
            row = await (await conn.execute(
                RETRY, run.key() + (text, seconds(delay)))).fetchone()
            return row is not None and row[0] is None
        elif run.outcome == "returned":
            await conn.execute(RETRY, run.key() + (None, 0))
        return False

    async def one_by_one(self, conn: psycopg.AsyncConnection[Any],
                         outcomes: list[Run]) -> None:
        """Each by itself, so that one which fails does not hold up others."""
        problem: psycopg.Error | None = None
        for run in outcomes:
            try:
                dead = await self.write(conn, run)
                if run.outcome == "done" and run.result is None:
                    await conn.execute(DELETE, (self.name, [run.job.id], run.claim.id))
            except psycopg.Error as error:
                if conn.closed or conn.broken:
                    raise
                if error.sqlstate in ("QU001", "QU002"):
                    run.outcome, run.error = "lost", ClaimLost("the claim has expired")
                elif error.sqlstate == "QU004":
                    run.outcome, run.error = "canceled", JobCanceled("was canceled")
                else:
                    if run.result is not None and (error.sqlstate or "")[:2] in ("22", "54"):
                        run.outcome, run.error = "failed", error    # cannot be stored
                    elif isinstance(run.error, PermanentError):
                        # It cannot be buried, such as without the right to create the
                        # dead letter queue.
                        run.error = Retry(None, f"{error_text(run.error)} ({error})")
                    else:
                        problem = error
                    self.outcomes.append(run)
                    continue
                dead = False
            self.settle([run], [run] if dead else [])
        if problem:     # may go away: a lock timeout, a missing privilege
            raise problem

    def settle(self, outcomes: list[Run], dead: Iterable[Run] = ()) -> None:
        """What was written is no longer held."""
        hooks = self.worker.queue.hooks
        for run in outcomes:
            claim = run.claim
            claim.runs.pop(run.job.id, None)
            if run.outcome == "canceled":
                claim.canceled = True
            elif run.outcome == "snooze":
                claim.snoozed.append(run)
            if not claim.runs and (claim.canceled or claim.snoozed):
                self.ending.append(claim)
            elif not claim.runs:
                self.claims.pop(claim.id, None)
            if run.error and run.outcome != "returned":
                log_failure(run, run in dead)
            if hooks:
                name = {"done": "complete", "committed": "complete",
                        "failed": "dead" if run in dead else "retry"
                        }.get(run.outcome, run.outcome)
                self.worker.queue.emit(name, run.job, error=run.error,
                                       duration=run.duration)

    async def release_rest(self, conn: psycopg.AsyncConnection[Any]) -> None:
        """Ends the claims that have only what goes, or waits, when they end.  A release
        has one delay; what is to wait shorter is retried, which counts an attempt."""
        while self.ending:
            claim = self.ending[-1]
            delays = {run: math.ceil(run.error.delay) for run in claim.snoozed
                      if isinstance(run.error, Snooze)}
            longest = max(delays.values(), default=0)
            for run, delay in delays.items():
                if delay < longest:
                    try:
                        await conn.execute(RETRY, run.key() + (None, delay))
                    except psycopg.Error as error:
                        if not (error.sqlstate or "").startswith("QU"):
                            raise       # but it was canceled, or the claim has expired
            await conn.execute(RELEASE, (self.name, claim.id, longest))
            self.ending.pop()
            del self.claims[claim.id]

    def start(self, rows: list[tuple[Any, ...]], sent: float) -> None:
        worker = self.worker
        claim = self.claims[rows[0][2]] = Claim(rows[0][2], sent)
        runs = [Run(self, claim, row) for row in rows]
        for run in runs:
            claim.runs[run.job.id] = run
        if worker.stopping:     # meanwhile: they are given back
            return
        self.running += len(runs)
        self.pending.extend(runs)
        # One thread does many short jobs before another one is awake.
        self.begin(1 if self.mean < SHORT and not self.type.is_async else len(runs))
        if self.pending and not self.topping:
            self.topping = worker.loop.call_later(SHORT, self.top_up)
        worker.watch_claims()

    def top_up(self) -> None:
        """The first one was not as short."""
        self.topping = None
        self.begin(len(self.pending))

    def begin(self, count: int) -> None:
        """Has so many threads or tasks more take jobs, as far as there is room."""
        for _ in range(min(count, self.type.concurrency - self.active)):
            if not self.type.is_async:
                self.worker.in_threads += 1
                self.worker.threads.submit(self.work, self.worker.in_threads)
            elif run := self.take():
                run.task = self.worker.loop.create_task(run.acall())
                run.task.add_done_callback(functools.partial(self.task_ended, run))
            self.active += 1

    def work(self) -> None:
        """In a thread."""
        while run := self.take():
            run.call()
            run.end_in_thread()
            self.tell(run)
        self.tell(None)

    def task_ended(self, run: Run, task: asyncio.Task[None]) -> None:
        if not run.outcome:     # canceled before it began
            run.fail(asyncio.CancelledError())
        self.active -= 1
        self.finished(run)
        self.begin(min(1, len(self.pending)))

    def finished(self, run: Run) -> None:
        """In the loop.  Short jobs are completed together."""
        if run.timer:
            run.timer.cancel()
        self.running -= 1
        self.mean += (run.duration + 1e-6 - self.mean) / 8
        if run.outcome in ("lost", "committed"):
            self.settle([run])
        elif run.outcome != "returned":     # that stays in its claim until the end
            self.outcomes.append(run)
        if len(self.outcomes) == 0 or not self.running or self.mean >= SHORT:
            self.wake.set()
        elif not self.timer:
            self.timer = self.worker.loop.call_later(SHORT, self.end_timer)

    def end_timer(self) -> None:
        self.timer = None
        self.wake.set()

    def take(self) -> Run | None:
        try:
            run = self.pending.popleft()
        except IndexError:
            return None
        run.started = time.monotonic()
        if self.type.timeout:
            self.worker.loop.call_soon_threadsafe(self.limit, run, self.type.timeout)
        return run

    def limit(self, run: Run, timeout: float) -> None:
        if not run.outcome:
            run.timer = self.worker.loop.call_later(
                timeout, run.abort, JobTimeout(f"ran longer than {timeout} s"))

    def stop(self) -> None:
        """What was not begun stays in its claim, which is given back at the end."""
        while self.pending:
            with contextlib.suppress(IndexError):
                self.pending.popleft()
                self.running -= 1
        self.wake.set()

    def tell(self, run: Run | None) -> None:
        """The loop, from a thread: a job, or the thread's work, has ended."""
        self.from_threads.append(run)
        if not self.collecting:
            self.collecting = True
            with contextlib.suppress(RuntimeError):     # the loop has ended
                self.worker.loop.call_soon_threadsafe(self.collect)

    def collect(self) -> None:
        self.collecting = False
        while self.from_threads:
            if run := self.from_threads.popleft():
                self.finished(run)
            else:
                self.active -= 1
                self.worker.in_threads -= 1
                self.begin(len(self.pending))

    async def release_all(self, conn: psycopg.AsyncConnection[Any]) -> None:
        for claim in self.claims.values():
            await conn.execute(RELEASE, (self.name, claim.id, 0))
            for run in claim.runs.values():
                self.worker.queue.emit("returned", run.job, error=run.error)
        self.claims.clear()


def log_failure(run: Run, dead: bool) -> None:
    """Not each time, since a message may fail for days: 1, 2, 4, 8 and so on."""
    job, error = run.job, run.error
    assert error
    if run.outcome == "snooze":
        return
    if run.outcome in ("canceled", "lost"):
        logger.warning("%r: %s", job, error)
    elif dead:
        logger.error("%r failed, now a dead letter: %s", job, error_text(error))
    elif job.attempt & (job.attempt - 1) == 0:
        logger.warning("%r failed: %s", job, error_text(error))


class Worker:
    def __init__(self, queue: Queue, names: Iterable[str] | None = None, *, pool: int = 10,
                 stop_timeout: float = 30, until_empty: bool = False):
        self.queue = queue
        names = list(queue.jobs if names is None else names)
        if unknown := [name for name in names if name not in queue.jobs]:
            raise ValueError(f"no job for queue {', '.join(unknown)}")
        if not names:
            raise ValueError("there is no job")
        self.types = [queue.jobs[name] for name in names]
        self.pool_size = pool
        self.stop_timeout = stop_timeout
        self.until_empty = until_empty
        self.stopping = False
        self.threads = Threads()
        self.in_threads = 0
        self.problems: dict[str, tuple[str, float]] = {}    # of which part; when again
        # Seconds between looks at the claims: each is renewed before half of its ttl.
        self.interval = min([CANCEL] + [type.claim_ttl / 6 for type in self.types])

    async def run(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.pool = Pool(self.queue, self.pool_size)
        self.signaled = asyncio.Event()         # for the connection that waits
        self.stopped = asyncio.Event()
        self.waits_long = False
        self.consumers = {type.name: Consumer(self, type) for type in self.types}
        self.tasks: list[asyncio.Task[None]] = []
        watcher = self.loop.create_task(self.watch())
        ready = set(self.consumers)
        try:
            while ready:
                for name in ready:
                    self.consumers[name].make_ready()
                self.tasks = [self.loop.create_task(self.consumers[name].run())
                              for name in ready]
                await asyncio.wait(self.tasks)
                # Jobs push others, also to queues whose consumer has ended already.
                ready = set() if self.stopping else set(self.consumers) & await self.look()
        except asyncio.CancelledError:
            self.stop()
            await asyncio.wait(self.tasks)
            raise
        finally:
            watcher.cancel()
            await asyncio.wait([watcher])
            await self.close()

    async def look(self) -> set[str]:
        """The queues that have something."""
        async with self.pool.connection() as conn:
            cursor = await conn.execute("SELECT queue_ready()")
            return {row[0] for row in await cursor.fetchall()}

    def stop(self) -> None:
        """Claims nothing more.  At the second call, waits for nothing, either."""
        if self.stopping:
            self.abort_all()
            return
        self.stopping = True
        logger.info("stopping: what runs has %s s", self.stop_timeout)
        self.queue.emit("stopping")
        self.stopped.set()
        for consumer in self.consumers.values():
            consumer.stop()
        self.loop.call_later(self.stop_timeout, self.abort_all)

    def abort_all(self) -> None:
        for consumer in self.consumers.values():
            for claim in consumer.claims.values():
                for run in claim.runs.values():
                    run.abort(WorkerStopped("the worker stops"))
        self.loop.call_later(1, self.leave)

    def leave(self) -> None:
        """Neither threads that have not ended nor a lost server hold up the worker."""
        for task in self.tasks:
            task.cancel()

    async def close(self) -> None:
        try:
            if any(consumer.claims for consumer in self.consumers.values()):
                async with asyncio.timeout(5), self.pool.connection() as conn:
                    for consumer in self.consumers.values():
                        await consumer.release_all(conn)
        except (psycopg.Error, OSError, TimeoutError) as error:
            logger.warning("claims are left until they expire: %s", error)
        self.threads.close()
        self.pool.shrink(0)

    # --- Errors ---

    async def back_off(self, part: str, error: BaseException) -> None:
        """Waits, longer each time.  One problem is logged once."""
        text = str(error).partition("\n")[0]
        if text not in [problem for problem, delay in self.problems.values()]:
            logger.warning("%s: %s", part, text)
            self.queue.emit("disconnected", error=error)
        delay = self.problems.get(part, ("", 0.5))[1]
        self.problems[part] = text, min(delay * 2, BACKOFF)
        delay *= random.uniform(0.5, 1)
        if self.stopping:
            await asyncio.sleep(min(delay, 1))
        else:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.stopped.wait(), delay)

    def recovered(self, part: str) -> None:
        if self.problems.pop(part, None) and not self.problems:
            logger.info("works again")
            self.queue.emit("connected")

    # --- The connection that waits ---

    def watch_claims(self) -> None:
        """A claim was made while that connection waits for long."""
        if self.waits_long:
            self.waits_long = False
            self.signaled.set()

    async def watch(self) -> None:
        told = False
        while True:
            try:
                conn = await self.pool.connect()
                try:
                    if self.pool.pooled and not told:
                        logger.warning("a pooler such as PgBouncer is between, which passes"
                                       " on no notifications: polls every %s s", POLL)
                        told = True
                    await self.watch_with(conn)
                finally:
                    await conn.close()
            except Exception as error:
                await self.back_off("waiting", error)

    async def watch_with(self, conn: psycopg.AsyncConnection[Any]) -> None:
        conn.add_notify_handler(lambda notify: self.notified(notify.payload))
        if not self.pool.pooled:
            for name in self.consumers:
                row = await (await conn.execute("SELECT queue_channel(%s::text)",
                                                (name,))).fetchone()
                assert row
                await conn.execute(f"LISTEN {row[0]}")
        for consumer in self.consumers.values():
            consumer.make_ready()       # what came meanwhile
        pause = POLL if self.pool.pooled else FALLBACK
        looked = time.monotonic()
        while True:
            busy = any(consumer.claims for consumer in self.consumers.values())
            self.waits_long = not busy
            await self.wait_for_notify(conn, min(self.interval, pause) if busy else pause)
            self.waits_long = False
            await self.look_at_claims(conn)
            self.recovered("waiting")
            if time.monotonic() - looked >= pause * 0.9:
                looked = time.monotonic()
                cursor = await conn.execute("SELECT queue_ready()")
                for row in await cursor.fetchall():
                    self.notified(row[0])
                if not self.pool.pooled:
                    self.pool.shrink()

    def notified(self, name: str) -> None:
        if consumer := self.consumers.get(name):
            consumer.make_ready()

    async def wait_for_notify(self, conn: psycopg.AsyncConnection[Any],
                              timeout: float) -> None:
        """Until the time is over, or watch_claims(); notifications are passed on."""
        pgconn = conn.pgconn

        def read() -> None:
            try:
                pgconn.consume_input()
                while notify := pgconn.notifies():
                    self.notified(notify.extra.decode())
            except psycopg.Error:
                pass
            if pgconn.status != psycopg.pq.ConnStatus.OK:
                self.loop.remove_reader(socket)
                self.signaled.set()

        socket = pgconn.socket
        self.signaled.clear()
        self.loop.add_reader(socket, read)
        try:
            read()      # what came with the last result
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.signaled.wait(), timeout)
        finally:
            self.loop.remove_reader(socket)

    async def look_at_claims(self, conn: psycopg.AsyncConnection[Any]) -> None:
        """Renews claims, and aborts the jobs whose messages were canceled."""
        now = time.monotonic()
        old = [(consumer, claim) for consumer in self.consumers.values()
               for claim in consumer.claims.values() if now - claim.renewed > SHORT * 50]
        for consumer in {consumer for consumer, claim in old}:
            consumer.give_back()
        for consumer, claim in old:
            ttl = consumer.type.claim_ttl
            if now - claim.renewed > ttl / 4 and claim.id in consumer.claims:
                row = await (await conn.execute(
                    RENEW, (consumer.name, claim.id, ttl))).fetchone()
                if row and row[0] is not None:
                    claim.renewed = now
        running = [(consumer, claim, list(claim.runs)) for consumer, claim in old
                   if claim.runs]
        if not running:
            return
        cursor = await conn.execute(HELD, ([item[0].name for item in running],
                                           [item[1].id for item in running]))
        held = {row[0] for row in await cursor.fetchall()}
        for consumer, claim, ids in running:
            for id in ids:
                run = claim.runs.get(id)
                if id not in held and run and not run.outcome:
                    run.abort(await self.why_gone(conn, run))

    async def why_gone(self, conn: psycopg.AsyncConnection[Any], run: Run) -> JobAborted:
        """Asks for the error that completing it would get."""
        try:
            async with conn.transaction(force_rollback=True):
                await conn.execute(DELETE, (run.job.queue, [run.job.id],
                                            run.job.claim_id))
        except psycopg.Error as error:
            if conn.closed or conn.broken:
                raise
            if error.sqlstate == "QU004":
                return JobCanceled("the message was canceled")
        return ClaimLost("the claim has expired")
