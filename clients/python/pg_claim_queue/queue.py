"""Queue: where jobs are registered, messages are pushed, and workers start."""
from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import inspect
import logging
import os
import signal
import threading
import typing
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Generic, TypeVar

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.pq import TransactionStatus

from .calls import Call, Calls, Connection, Functions, Headers, awaited, called
from .job import Job, JobAborted
from .pool import alive, finish

T = TypeVar("T")
logger = logging.getLogger("pg_claim_queue")


@dataclass(slots=True)
class Event:
    """What a hook gets.  name: start, complete, retry, dead, snooze, canceled, lost,
    returned or progress of a job; connected, disconnected, stopping of the worker."""

    name: str
    job: Job[Any] | None = None
    error: BaseException | None = None
    duration: float | None = None       # seconds that the job took
    progress: dict[str, Any] | None = None


class JobFailed(Exception):
    """run_waiting() had a job that failed."""


class JobType(Calls, Generic[T]):
    """What @queue.job makes of a function.  It can be called as before."""

    def __init__(self, queue: Queue, name: str, function: Callable[[Job[T]], Any], *,
                 concurrency: int, prefetch: int | None, timeout: float | None, claim_ttl: int,
                 payload: Callable[[Any], T] | None):
        self.queue = queue
        self.name = name
        self.function = function
        self.concurrency = concurrency
        self.prefetch = prefetch
        self.timeout = timeout
        self.claim_ttl = claim_ttl
        self.decode = payload or decoder_of(function)
        self.is_async = (inspect.iscoroutinefunction(function)
                         or inspect.iscoroutinefunction(getattr(function, "__call__")))

    def __call__(self, job: Job[T]) -> Any:
        return self.function(job)

    def run_call(self, call: Call[Any]) -> Any:
        return self.queue.run_call(call)

    async def arun_call(self, call: Call[Any]) -> Any:
        return await self.queue.arun_call(call)

    def _push(self, body: T, *, ttl: float | None = None, delay: float | None = None,
              at: datetime | None = None, priority: int = 0,
              group_key: str | None = None, dedup_key: str | None = None,
              dedup: str | None = None, dedup_for: float | None = None,
              batch: int | None = None, after: int | None = None,
              after_success: bool = False, headers: Headers | None = None,
              tx: Connection | None = None) -> Call[int | None]:
        """As Queue.push(), to this job's queue."""
        return self.queue._push(
            self.name, body, ttl=ttl, delay=delay, at=at, priority=priority,
            group_key=group_key, dedup_key=dedup_key, dedup=dedup, dedup_for=dedup_for,
            batch=batch, after=after, after_success=after_success, headers=headers, tx=tx)

    push, apush = called(_push), awaited(_push)


class Register(typing.Protocol):
    """What Queue.job() returns."""

    def __call__(self, function: Callable[[Job[T]], Any], /) -> JobType[T]: ...


def decoder_of(function: Callable[..., Any]) -> Callable[[Any], Any] | None:
    """Job[Mail], where Mail is a dataclass or a model of pydantic, gets one as its body.
    Other types are what JSON gives."""
    try:
        hints = typing.get_type_hints(function)
    except Exception:           # names that exist for the type checker only
        return None
    hints.pop("return", None)
    kind: Any = next(iter(typing.get_args(next(iter(hints.values()), None))), None)
    if hasattr(kind, "model_validate"):
        return typing.cast(Callable[[Any], Any], kind.model_validate)
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        return lambda value: kind(**value)
    return None


class Queue(Functions):
    """The queues of a database.

    dsn: a connection string of libpq, or a function that returns one, called for each
    connection; what it does not say, PGHOST, PGDATABASE and so on do."""

    def __init__(self, dsn: str | Callable[[], str] = "") -> None:
        self._dsn = dsn
        self.jobs: dict[str, JobType[Any]] = {}
        self.hooks: list[Callable[[Event], object]] = []
        self._lock = threading.Lock()
        self._idle: list[tuple[int, asyncio.AbstractEventLoop | None, Any]] = []

    # --- Jobs ---

    def job(self, name: str, *, concurrency: int = 1, prefetch: int | None = None,
            timeout: float | None = None, claim_ttl: int = 60,
            payload: Callable[[Any], Any] | None = None) -> Register:
        """Makes a function the job of a queue.

        concurrency: how many of it a worker runs at a time; prefetch: how many more it
        claims (None: for 10 ms of work, where jobs take less than 2 ms); timeout: seconds;
        claim_ttl: seconds until what a killed worker had is free again (a worker that
        lives renews its claims); payload: makes the body of what JSON gives."""
        if not 1 <= concurrency <= 1000:
            raise ValueError("concurrency must be from 1 to 1000")

        def register(function: Callable[[Job[T]], Any], /) -> JobType[T]:
            if name in self.jobs:
                raise ValueError(f"queue {name} has a job already")
            self.jobs[name] = type = JobType(
                self, name, function, concurrency=concurrency, prefetch=prefetch,
                timeout=timeout, claim_ttl=claim_ttl, payload=payload)
            return type
        return register

    def hook(self, function: Callable[[Event], object]) -> Callable[[Event], object]:
        """Has the function called with each Event, for logs and metrics.  Some come from
        the threads of jobs."""
        self.hooks.append(function)
        return function

    def emit(self, name: str, job: Job[Any] | None = None, **values: Any) -> None:
        for hook in self.hooks:
            try:
                hook(Event(name, job, **values))
            except Exception:
                logger.exception("a hook failed")

    # --- Work ---

    def run(self, queues: Iterable[str] | None = None, *, pool: int = 10,
            stop_timeout: float = 30) -> None:
        """Works until SIGTERM or SIGINT.  Then it claims nothing more, gives what runs
        stop_timeout seconds, and gives back the rest; a second signal ends that time.

        queues: only these; pool: connections for the work, at most, beside the one that
        waits.  All but one can be in transactions of jobs."""
        asyncio.run(self.work(queues, pool=pool, stop_timeout=stop_timeout,
                              signals=True))
        self.close()

    async def work(self, queues: Iterable[str] | None = None, *, pool: int = 10,
                   stop_timeout: float = 30, signals: bool = False) -> None:
        """The same in a program that has an event loop; it stops when it is canceled."""
        from .worker import Worker
        worker = Worker(self, queues, pool=pool, stop_timeout=stop_timeout)
        if signals:
            for number in signal.SIGTERM, signal.SIGINT:
                asyncio.get_running_loop().add_signal_handler(number, worker.stop)
        await worker.run()

    def run_waiting(self, queues: Iterable[str] | None = None, *,
                    raise_errors: bool = True) -> int:
        """For tests: runs what is waiting now, and what these jobs push, in this process;
        returns how many were completed.  At the first one that fails it stops, and raises
        JobFailed."""
        from .worker import Worker
        worker = Worker(self, queues, until_empty=True)
        done, failed = 0, []

        def count(event: Event) -> None:
            nonlocal done
            done += event.name == "complete"
            if event.name in ("retry", "dead") and raise_errors:
                failed.append(event)
                worker.stop()

        self.hooks.append(count)
        try:
            asyncio.run(worker.run())
        finally:
            self.hooks.remove(count)
        if failed:
            raise JobFailed(f"{failed[0].job!r} failed: {failed[0].error}"
                            ) from failed[0].error
        return done

    # --- Connections ---

    def conninfo(self, **defaults: Any) -> str:
        dsn = self._dsn if isinstance(self._dsn, str) else self._dsn()
        values = {"connect_timeout": 10, "keepalives_idle": 30, **defaults}
        if "PGCONNECT_TIMEOUT" in os.environ:
            del values["connect_timeout"]
        if "PGAPPNAME" in os.environ:
            values.pop("application_name", None)
        return make_conninfo("", **{**values, **conninfo_to_dict(dsn)})

    def _pop(self, loop: asyncio.AbstractEventLoop | None) -> Any:
        """An idle connection of this process and event loop, or None."""
        with self._lock:
            idle, self._idle, found = self._idle, [], None
            for item in idle:
                pid, owner, conn = item
                if pid != os.getpid() or owner is not loop or found:
                    if owner and owner.is_closed():
                        finish(conn)
                    else:       # of the parent process it must not even be closed
                        self._idle.append(item)
                elif alive(conn):
                    found = conn
            return found

    def _keep(self, loop: asyncio.AbstractEventLoop | None, conn: Any) -> None:
        if conn.pgconn.transaction_status == TransactionStatus.IDLE:
            self._idle.append((os.getpid(), loop, conn))
        else:
            finish(conn)

    @contextlib.contextmanager
    def connection(self) -> Iterator[psycopg.Connection[Any]]:
        """A connection with autocommit, for calls that name none.  Open a transaction
        on it to do several things at once: with conn.transaction(): ..."""
        conn = self._pop(None) or psycopg.connect(self.conninfo(), autocommit=True,
                                                  prepare_threshold=None)
        try:
            yield conn
        finally:
            self._keep(None, conn)

    @contextlib.asynccontextmanager
    async def aconnection(self) -> AsyncIterator[psycopg.AsyncConnection[Any]]:
        loop = asyncio.get_running_loop()
        conn = self._pop(loop) or await psycopg.AsyncConnection.connect(
            self.conninfo(), autocommit=True, prepare_threshold=None)
        try:
            yield conn
        finally:
            self._keep(loop, conn)

    def close(self) -> None:
        """Closes the connections of pushes."""
        while self._idle:
            pid, _, conn = self._idle.pop()
            if pid == os.getpid():
                finish(conn)

    def run_call(self, call: Call[T]) -> T:
        if call.tx is None:
            with self.connection() as conn:
                return call.read(conn.execute(call.sql, call.args).fetchall())
        with contextlib.closing(call.tx.cursor()) as cursor:
            cursor.execute(call.sql, call.args)
            return call.read(list(cursor.fetchall()))

    async def arun_call(self, call: Call[T]) -> T:
        if call.tx is None:
            async with self.aconnection() as conn:
                cursor = await conn.execute(call.sql, call.args)
                return call.read(await cursor.fetchall())
        cursor = call.tx.cursor()
        await cursor.execute(call.sql, call.args)
        return call.read(await cursor.fetchall())
