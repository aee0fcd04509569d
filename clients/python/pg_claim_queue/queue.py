"""Queue: where jobs are registered, messages are pushed, and workers start."""
from __future__ import annotations

import asyncio
import dataclasses
import functools
import inspect
import logging
import signal
import typing
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

from .calls import Functions
from .job import Job
from .worker import Worker

T = TypeVar("T")
P = ParamSpec("P")
R = TypeVar("R")
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


class ToQueue(Generic[P, R]):
    """A method that pushes, for the queue and the payload of a job."""

    def __init__(self, push: Callable[Concatenate[Functions, str, Any, P], R]):
        self.push = push

    def __get__(self, job: JobType[T], kind: Any = None) -> Callable[Concatenate[T, P], R]:
        return functools.partial(self.push, job.queue, job.name)


@dataclass(eq=False)
class JobType(Generic[T]):
    """What @queue.job makes of a function.  It can be called as before."""

    queue: Queue
    name: str
    function: Callable[[Job[T]], Any]
    concurrency: int
    prefetch: int | None
    timeout: float | None
    claim_ttl: int
    decode: Callable[[Any], T] | None

    def __post_init__(self) -> None:
        self.decode = self.decode or decoder_of(self.function)
        self.is_async = (inspect.iscoroutinefunction(self.function)
                         or inspect.iscoroutinefunction(type(self.function).__call__))

    def __call__(self, job: Job[T]) -> Any:
        return self.function(job)

    push = ToQueue(Functions.push)
    apush = ToQueue(Functions.apush)


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
        super().__init__(dsn)
        self.jobs: dict[str, JobType[Any]] = {}
        self.hooks: list[Callable[[Event], object]] = []

    # --- Jobs ---

    def job(self, name: str, *, concurrency: int = 1, prefetch: int | None = None,
            timeout: float | None = None, claim_ttl: int = 60,
            payload: Callable[[Any], Any] | None = None
            ) -> Callable[[Callable[[Job[T]], Any]], JobType[T]]:
        """Makes a function the job of a queue.

        concurrency: how many of it a worker runs at a time; prefetch: how many more it
        claims (None: for 10 ms of work, where jobs take less than 2 ms); timeout: seconds;
        claim_ttl: seconds until what a killed worker had is free again (a worker that
        lives renews its claims); payload: makes the body of what JSON gives."""
        if not 1 <= concurrency <= 1000:
            raise ValueError("concurrency must be from 1 to 1000")

        def register(function: Callable[[Job[T]], Any]) -> JobType[T]:
            if name in self.jobs:
                raise ValueError(f"queue {name} has a job already")
            self.jobs[name] = job = JobType(self, name, function, concurrency, prefetch,
                                            timeout, claim_ttl, payload)
            return job
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
        waits.  Three quarters of them can be in transactions of jobs."""
        asyncio.run(self.work(queues, pool=pool, stop_timeout=stop_timeout,
                              signals=True))

    async def work(self, queues: Iterable[str] | None = None, *, pool: int = 10,
                   stop_timeout: float = 30, signals: bool = False) -> None:
        """The same in a program that has an event loop; it stops when it is canceled."""
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
        worker = Worker(self, queues, until_empty=True)
        done: list[Event] = []
        failed: list[Event] = []

        def count(event: Event) -> None:
            if event.name == "complete":
                done.append(event)
            if event.name in ("retry", "dead") and raise_errors and not failed:
                failed.append(event)
                worker.loop.call_soon_threadsafe(worker.stop)

        self.hooks.append(count)
        try:
            asyncio.run(worker.run())
        finally:
            self.hooks.remove(count)
        if failed:
            raise JobFailed(f"{failed[0].job!r} failed: {failed[0].error}"
                            ) from failed[0].error
        return len(done)
