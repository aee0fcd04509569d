"""What a job function gets, and what it may raise."""
from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import threading
import time
import traceback
from contextvars import ContextVar
from datetime import datetime
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from psycopg.pq import TransactionStatus

from .pool import done, finish, run_now

if TYPE_CHECKING:
    import psycopg

    from .worker import Claim, Consumer

T = TypeVar("T")
COMPLETE = "SELECT message_complete(%s::text, %s::bigint, %s::text, %s::jsonb)"

#: The job that runs in this thread or task.
current_job: ContextVar[Job[Any] | None] = ContextVar("current_job", default=None)


class PermanentError(Exception):
    """No retry mends this: the message becomes a dead letter."""


class Retry(Exception):
    """Try again after so many seconds (None: as the queue's metadata says)."""

    def __init__(self, delay: float | None = None, reason: str = "retry"):
        super().__init__(reason)
        self.delay = delay


class Snooze(Retry):
    """Run again after so many seconds.  This is no failure."""


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

    def __init__(self, consumer: Consumer, claim: Claim, row: list[Any]):
        (self.id, self._body, self.claim_id, self.attempt, self.priority, self.group_key,
         self._created_at, self._headers) = row
        self.queue = consumer.name
        self.aborted: JobAborted | None = None      # why the job is to end, if it is
        # done, committed; failed and then, when it is written, retry or dead; snooze,
        # canceled, lost, returned
        self.outcome = ""
        self.error: BaseException | None = None
        self.result: str | None = None
        self.claim = claim
        self.started = self.ended = 0.0
        self._consumer = consumer
        self._payload: Any = None
        self._task: asyncio.Task[Any] | None = None
        self._conn: Any = None          # of its transaction
        self._exit: Any = None          # ends that transaction
        self._completed = False         # in a transaction of the caller

    @property
    def body(self) -> T:
        """The payload.  One that cannot be read fails the job, not the worker."""
        if self._payload is None:
            value = json.loads(self._body)
            decode = self._consumer.type.decode
            self._payload = decode(value) if decode else value
        return self._payload            # type: ignore[no-any-return]

    @property
    def created_at(self) -> datetime:
        return datetime.fromisoformat(self._created_at)

    @property
    def headers(self) -> dict[str, Any]:
        return json.loads(self._headers or "{}")        # type: ignore[no-any-return]

    @property
    def traceparent(self) -> str | None:
        """OpenTelemetry's, of the headers."""
        return self.headers.get("traceparent")

    def check(self) -> None:
        """Raises JobAborted when the job is to end.  Call it in long loops."""
        if self.aborted:
            raise self.aborted

    def progress(self, done: int, total: int | None = None,
                 note: str | None = None) -> None:
        """Tells the hooks how far it is."""
        self.check()
        self._consumer.worker.queue.emit(
            "progress", self, progress={"done": done, "total": total, "note": note})

    def tx(self) -> psycopg.Connection[Any]:
        """A connection in a transaction that the job's completion commits with.  It is
        rolled back if the job fails."""
        return run_now(self.atx())      # type: ignore[arg-type]

    async def atx(self) -> psycopg.AsyncConnection[Any]:
        """The same for an asynchronous job."""
        self.check()
        if not self._conn:
            worker, is_async = self._consumer.worker, self._consumer.type.is_async
            slots = worker.slots[is_async]
            if is_async:
                await slots.acquire()
            else:
                while not slots.acquire(timeout=1):
                    self.check()
            try:
                self._conn = await worker.queue.take(self._consumer.loop)
            except BaseException:
                slots.release()
                raise
            block = self._conn.transaction()
            self._exit = block.__aexit__ if is_async else block.__exit__
            await done(block.__aenter__() if is_async else block.__enter__())
            self.check()
        return self._conn               # type: ignore[no-any-return]

    def complete(self, result: Any = None, *, tx: Any) -> None:
        """Completes the message in the caller's own transaction (of psycopg, Django or
        SQLAlchemy's driver), which the job commits before it returns."""
        self.check()
        self.result = None if result is None else dumps(result)
        tx.cursor().execute(COMPLETE, self.key() + (self.result,))
        self._completed = True

    def __repr__(self) -> str:
        return f"<Job {self.queue} {self.id}, attempt {self.attempt}>"

    # --- For the worker ---

    def key(self) -> tuple[str, int, str]:
        return (self.queue, self.id, self.claim_id)

    def abort(self, reason: JobAborted) -> None:
        """Has the job end."""
        if self.aborted or self.outcome:
            return
        self.aborted = reason
        if self._task:
            self._consumer.worker.loop.call_soon_threadsafe(self._cancel_task)
        elif self._conn:
            # Its statement may take long.  The connection is not used again, so that
            # a late cancel cannot hit what comes next.
            threading.Thread(target=self._conn.cancel, daemon=True).start()

    def _cancel_task(self) -> None:
        if self._task and not self.outcome:     # it does the next job after this one
            self._task.cancel()

    async def call(self) -> None:
        """Runs the function, and keeps the outcome."""
        type, queue = self._consumer.type, self._consumer.worker.queue
        token = current_job.set(self)
        try:
            if queue.hooks:
                queue.emit("start", self)
            if type.is_async:
                self._task = asyncio.current_task()
            self.check()
            self.body       # what cannot be read fails before the job begins
            result = type.function(self)
            if type.is_async:
                result = await result
            if not self._completed:
                self.result = None if result is None else dumps(result)
            if self._conn:
                if not self._completed:
                    await done(self._conn.execute(COMPLETE, self.key() + (self.result,)))
                await done(self._exit(None, None, None))
            self.outcome = "committed" if self._completed or self._conn else "done"
        except BaseException as error:
            self.fail(error, self._conn is not None)
        if self._conn:
            await self._end()
        if self.aborted and self._task:
            self._task.uncancel()
        current_job.reset(token)
        self.ended = time.monotonic()

    def fail(self, error: BaseException, in_transaction: bool = True) -> None:
        """Whatever the job raised is its own failure, SystemExit and an error of its
        connection too."""
        lost = end_of_claim(error) if in_transaction else None
        self.error = error = self.aborted or lost or error
        self.result = None
        self.outcome = ("canceled" if isinstance(error, JobCanceled)
                        else "lost" if isinstance(error, ClaimLost)
                        else "returned" if isinstance(error, WorkerStopped)
                        else "snooze" if isinstance(error, Snooze) else "failed")

    async def _end(self) -> None:
        """Gives the connection back."""
        worker, conn, self._conn = self._consumer.worker, self._conn, None
        if conn.pgconn.transaction_status in (TransactionStatus.INTRANS,
                                              TransactionStatus.INERROR):
            with contextlib.suppress(Exception):
                await done(self._exit(JobAborted, JobAborted(), None))
        if self.aborted:
            finish(conn)
        worker.queue.keep(self._consumer.loop, conn)
        worker.slots[self._consumer.type.is_async].release()


def dumps(value: Any) -> str:
    """JSON; dataclasses and models of pydantic are objects."""
    return json.dumps(value, allow_nan=False, default=as_json)


def as_json(value: Any) -> Any:
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    raise TypeError(f"{type(value).__name__} is not JSON serializable")


def end_of_claim(error: BaseException) -> JobAborted | None:
    """What an error of the extension says about the claim of a job."""
    state = getattr(error, "sqlstate", None)
    if state == "QU004":
        return JobCanceled("the message was canceled")
    if state in ("QU001", "QU002"):
        return ClaimLost("the claim has expired")
    return None


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
        with contextlib.suppress(BaseException):
            text += "\n" + "".join(traceback.format_tb(error.__traceback__, -20))
    # Without NUL and halves of surrogates, and what the extension keeps
    data = text.replace("\0", "\ufffd").encode("utf-8", "replace")
    return data[:8000].decode("utf-8", "ignore")
