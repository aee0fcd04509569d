"""What a job function gets, and what it may raise."""
from __future__ import annotations

import json
import threading
import traceback
from collections.abc import Callable
from contextvars import ContextVar
from datetime import datetime
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    import psycopg

    from .worker import Run

T = TypeVar("T")
MAX_ERROR = 8000        # bytes of an error that the extension keeps

#: The job that runs in this thread or task.
current_job: ContextVar[Job[Any] | None] = ContextVar("current_job", default=None)


class PermanentError(Exception):
    """No retry mends this: the message becomes a dead letter."""


class Retry(Exception):
    """Try again after so many seconds (None: as the queue's metadata says)."""

    def __init__(self, delay: float | None = None, reason: str = "retry"):
        super().__init__(reason)
        self.delay = delay


class Snooze(Exception):
    """Run again after so many seconds.  This is no failure."""

    def __init__(self, delay: float):
        super().__init__(f"snooze {delay} s")
        self.delay = delay


class JobAborted(Exception):
    """The job is to end: what it does no longer takes effect.  Raised by every call
    of the job's methods; an asynchronous job is canceled."""


class JobCanceled(JobAborted):
    """message_cancel() has canceled the message."""


class ClaimLost(JobAborted):
    """The claim has expired, and another worker may have the message."""


class JobTimeout(JobAborted):
    """The job has run longer than its timeout.  It is retried."""


class WorkerStopped(JobAborted):
    """The worker stops, and gives the message back."""


class Job(Generic[T]):
    """A message that is worked on."""

    __slots__ = ("id", "queue", "claim_id", "_body", "_rest", "_decode", "_run",
                 "_payload")

    def __init__(self, queue: str, row: tuple[Any, ...],
                 decode: Callable[[Any], T] | None = None, run: Run | None = None):
        self.id, self._body, self.claim_id, self._rest = row
        self.queue = queue
        self._decode = decode
        self._run = run

    @property
    def body(self) -> T:
        """The payload.  One that cannot be read fails the job, not the worker."""
        try:
            return self._payload        # type: ignore[no-any-return, has-type]
        except AttributeError:
            value = json.loads(self._body)
            self._payload = self._decode(value) if self._decode else value
            return self._payload        # type: ignore[no-any-return]

    def _field(self, index: int) -> Any:
        return json.loads(self._rest)[index]

    @property
    def attempt(self) -> int:
        return self._field(0)           # type: ignore[no-any-return]

    @property
    def priority(self) -> int:
        return self._field(1)           # type: ignore[no-any-return]

    @property
    def group_key(self) -> str | None:
        return self._field(2)           # type: ignore[no-any-return]

    @property
    def created_at(self) -> datetime:
        return datetime.fromisoformat(self._field(3))

    @property
    def headers(self) -> dict[str, Any]:
        return json.loads(self._field(4) or "{}")       # type: ignore[no-any-return]

    @property
    def traceparent(self) -> str | None:
        """OpenTelemetry's, of the headers."""
        return self.headers.get("traceparent")

    @property
    def aborted(self) -> JobAborted | None:
        """Why the job is to end, if it is."""
        return self._run.abort_reason if self._run else None

    def check(self) -> None:
        """Raises JobAborted when the job is to end.  Call it in long loops."""
        if self._run and self._run.abort_reason:
            raise self._run.abort_reason

    def progress(self, done: int, total: int | None = None,
                 note: str | None = None) -> None:
        """Tells the hooks how far it is."""
        self.check()
        if self._run:
            self._run.consumer.worker.queue.emit(
                "progress", self, progress={"done": done, "total": total, "note": note})

    def tx(self) -> psycopg.Connection[Any]:
        """A connection in a transaction that the job's completion commits with.  It is
        rolled back if the job fails."""
        self.check()
        if not self._run:
            raise RuntimeError("no worker runs this job")
        return self._run.begin()

    async def atx(self) -> psycopg.AsyncConnection[Any]:
        """The same for an asynchronous job."""
        self.check()
        if not self._run:
            raise RuntimeError("no worker runs this job")
        return await self._run.abegin()

    def complete(self, result: Any = None, *, tx: Any) -> None:
        """Completes the message in the caller's own transaction (of psycopg, Django or
        SQLAlchemy's driver), which the job commits before it returns."""
        self.check()
        if not self._run:
            raise RuntimeError("no worker runs this job")
        self._run.complete_with(tx, result)

    def __repr__(self) -> str:
        return f"<Job {self.queue} {self.id}, attempt {self.attempt}>"


def class_path(error: BaseException) -> str:
    kind = type(error)
    return (kind.__qualname__ if kind.__module__ == "builtins"
            else f"{kind.__module__}.{kind.__qualname__}")


def error_text(error: BaseException) -> str:
    """The error and where it was raised, as PostgreSQL can store it."""
    if isinstance(error, PermanentError) and not error.args and error.__cause__:
        error = error.__cause__         # raise PermanentError from error
    try:
        text = f"{class_path(error)}: {error}"
    except BaseException:       # its __str__ fails
        text = class_path(error)
    if not isinstance(error, (JobAborted, Retry)):
        try:
            text += "\n" + "".join(traceback.format_tb(error.__traceback__, -20))
        except BaseException:
            pass
    return storable(text)


def storable(text: str) -> str:
    """Without NUL and halves of surrogates, and not too long."""
    data = text.replace("\0", "\ufffd").encode("utf-8", "replace")
    return data[:MAX_ERROR].decode("utf-8", "ignore")


class Threads:
    """Threads that run synchronous jobs.  They are daemons, so that a job that does not
    end cannot keep the process."""

    def __init__(self) -> None:
        self._items: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._count = 0

    def submit(self, item: Callable[[], None], running: int) -> None:
        """Calls it in a thread; running: of how many, with it, the end is not known."""
        self._items.put(item)
        if self._count < running:
            self._count += 1
            threading.Thread(target=self._work, daemon=True, name="job").start()

    def _work(self) -> None:
        while item := self._items.get():
            item()

    def close(self) -> None:
        for _ in range(self._count):
            self._items.put(None)
