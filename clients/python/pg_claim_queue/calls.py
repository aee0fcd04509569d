"""The extension's functions.  Each is written once, as a Call, and offered as a method
that runs it (push) and one that is awaited (apush).

Every argument is cast, so that no function that a schema in the search path has with
other types is chosen.  JSON goes both ways as text: the driver of tx may be another one.
"""
from __future__ import annotations

import asyncio
import functools
import json
import math
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar

from .job import current_job, dumps
from .pool import Connections, Loop, done, run_now

T = TypeVar("T")
P = ParamSpec("P")
C = TypeVar("C", bound=Connections)
Rows = list[tuple[Any, ...]]
Headers = Mapping[str, Any]


class Connection(Protocol):
    """The caller's own connection, whose transaction a call is part of: of psycopg (for
    the methods that are awaited an AsyncConnection), or of Django."""

    def cursor(self) -> Any: ...


@dataclass(slots=True)
class Call(Generic[T]):
    sql: str
    args: Sequence[Any]
    read: Callable[[Rows], T]
    tx: Any = None


async def execute(connections: Connections, call: Call[T], loop: Loop) -> T:
    conn = await connections.take(loop) if call.tx is None else call.tx
    try:
        cursor = conn.cursor()
        await done(cursor.execute(call.sql, call.args))
        return call.read(list(await done(cursor.fetchall())))
    finally:
        if call.tx is None:
            connections.keep(loop, conn)


def both(make: Callable[Concatenate[C, P], Call[T]]
         ) -> tuple[Callable[Concatenate[C, P], T],
                    Callable[Concatenate[C, P], Coroutine[Any, Any, T]]]:
    """The method that runs what make returns, and the one that is awaited."""
    @functools.wraps(make)
    def method(self: C, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return run_now(execute(self, make(self, *args, **kwargs), None))

    @functools.wraps(make)
    async def amethod(self: C, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await execute(self, make(self, *args, **kwargs),
                             asyncio.get_running_loop())
    return method, amethod


def loads(text: str | None) -> Any:
    return None if text is None else json.loads(text)


def seconds(value: float | None) -> int | None:
    """Whole seconds, as the extension wants them, and not less."""
    return None if value is None else math.ceil(value)


@dataclass
class Message:
    """One of push_many()."""

    queue: str
    body: Any
    ttl: float | None = None
    delay: float | None = None
    at: datetime | None = None
    priority: int = 0
    group_key: str | None = None
    dedup_key: str | None = None
    dedup: str | None = None
    dedup_for: float | None = None
    batch: int | None = None
    after: int | None = None
    after_success: bool = False
    headers: Headers | None = None

    def fields(self, traceparent: str | None) -> dict[str, Any]:
        """Those of queue_post()."""
        values = dict(vars(self))
        for name in ("ttl", "delay", "dedup_for"):
            values[name] = seconds(values[name])
        values["at"] = self.at and self.at.astimezone().isoformat()
        if traceparent and "traceparent" not in (self.headers or {}):
            values["headers"] = {**(self.headers or {}), "traceparent": traceparent}
        return {name: value for name, value in values.items()
                if value is not None or name == "body"}


@dataclass(frozen=True, slots=True)
class Finished:
    """How a message has ended.  Only a queue with _keep_finished in its metadata keeps
    that; otherwise outcome is "unknown"."""

    outcome: str        # completed, dead, expired, canceled, duplicate, deleted, unknown
    result: Any = None
    error: str | None = None
    id: int | None = None
    attempts: int | None = None
    pushed_at: datetime | None = None
    finished_at: datetime | None = None
    body: Any = None


@dataclass(frozen=True, slots=True)
class DeadLetter:
    id: int
    body: Any
    origin_queue: str | None
    origin_id: int | None
    reason: str | None
    last_error: str | None
    claim_count: int
    died_at: datetime


@dataclass(frozen=True, slots=True)
class BatchStatus:
    name: str | None
    members: int
    unfinished: int
    completed: int
    failed: int
    waiting: int
    created_at: datetime
    closed_at: datetime | None
    finished_at: datetime | None


@dataclass(frozen=True, slots=True)
class Depth:
    queue: str
    free: int | None            # None: not known yet, after a crash
    claimed: int | None
    delayed: int | None
    dead_letters: int | None
    oldest_age: int | None
    paused: bool
    last_error: str | None


def first(rows: Rows) -> Any:
    return rows[0][0]


def traceparent_of_job() -> str | None:
    job = current_job.get()
    return job.traceparent if job else None


class Functions(Connections):
    """The methods of Queue that work with messages."""

    #: What pushes carry in their headers.  Assign a function for a tracer of your own.
    traceparent: Callable[[], str | None] = staticmethod(traceparent_of_job)

    def _push(self, queue: str, body: Any, *, ttl: float | None = None,
              delay: float | None = None, at: datetime | None = None, priority: int = 0,
              group_key: str | None = None, dedup_key: str | None = None,
              dedup: str | None = None, dedup_for: float | None = None,
              batch: int | None = None, after: int | None = None,
              after_success: bool = False, headers: Headers | None = None,
              tx: Connection | None = None) -> Call[int | None]:
        """Pushes a message; its id, or None if it was dropped as a duplicate."""
        message = Message(queue, body, ttl, delay, at, priority, group_key, dedup_key,
                          dedup, dedup_for, batch, after, after_success, headers)
        many = self._push_many([message], tx=tx)
        return Call(many.sql, many.args, lambda rows: many.read(rows)[0], tx)

    push, apush = both(_push)

    def _push_many(self, messages: Iterable[Message], *,
                   tx: Connection | None = None) -> Call[list[int | None]]:
        """Pushes all of them or none; their ids, None where one was a duplicate."""
        trace = self.traceparent()
        return Call("SELECT queue_post(NULL::text, %s::jsonb)",
                    [dumps([message.fields(trace) for message in messages])], first, tx)

    push_many, apush_many = both(_push_many)

    def _create(self, queue: str, metadata: Mapping[str, Any] | None = None, *,
                tx: Connection | None = None) -> Call[bool]:
        """Creates a queue; False: it is there, and stays as it is."""
        return Call("SELECT queue_create(%s::text, %s::jsonb)",
                    [queue, dumps(metadata or {})], first, tx)

    create, acreate = both(_create)

    def _cancel(self, queue: str, id: int, reason: str | None = None, *,
                tx: Connection | None = None) -> Call[str | None]:
        """"canceled"; "pending": a worker has it; None: there is no such message."""
        return Call("SELECT message_cancel(%s::text, %s::bigint, %s::text)",
                    [queue, id, reason], first, tx)

    cancel, acancel = both(_cancel)

    def _outcome(self, queue: str, id: int, timeout: float | None = None
              ) -> Call[Finished | None]:
        """Waits until the message is finished; None: it is not after timeout seconds."""
        def read(rows: Rows) -> Finished | None:
            value = loads(rows[0][0]) if isinstance(rows[0][0], str) else rows[0][0]
            return value and Finished(value["outcome"], value.get("result"),
                                      value.get("error"), id)
        return Call("CALL queue_await(%s::text, %s::bigint, %s::int)",
                    [queue, id, None if timeout is None else math.ceil(timeout * 1000)],
                    read)

    outcome, aoutcome = both(_outcome)

    def _finished(self, queue: str, id: int, *, tx: Connection | None = None
                  ) -> Call[Finished | None]:
        """How a message has ended, with its body where the queue keeps it; None: it has
        not, or the queue does not keep that."""
        def read(rows: Rows) -> Finished | None:
            if not rows:
                return None
            outcome, result, error, found, attempts, pushed_at, finished_at, body = rows[0]
            return Finished(outcome, loads(result), error, found, attempts, pushed_at,
                            finished_at, loads(body))
        return Call("SELECT outcome, result::text, error, id, attempts, pushed_at,"
                    " finished_at, body::text FROM message_finished(%s::text,"
                    " %s::bigint)", [queue, id], read, tx)

    finished, afinished = both(_finished)

    def _dead_letters(self, queue: str, limit: int = 10, *, tx: Connection | None = None
                      ) -> Call[list[DeadLetter]]:
        """The dead letters in a queue such as mail.dead."""
        return Call("SELECT id, body::text, origin_queue, origin_id, reason, last_error,"
                    " claim_count, died_at FROM queue_dead_letters(%s::text, %s::int)",
                    [queue, limit], lambda rows: [
                        DeadLetter(row[0], loads(row[1]), *row[2:]) for row in rows], tx)

    dead_letters, adead_letters = both(_dead_letters)

    def _redrive(self, queue: str, target: str | None = None, limit: int | None = None,
                 *, tx: Connection | None = None) -> Call[int]:
        """Moves dead letters back to their queues, or to target; how many."""
        return Call("SELECT queue_redrive(%s::text, %s::text, %s::int)",
                    [queue, target, limit], first, tx)

    redrive, aredrive = both(_redrive)

    def _batch(self, name: str | None = None, *, keep_open: bool = False,
               tx: Connection | None = None) -> Call[int]:
        """Creates a batch.  Without keep_open it can finish as soon as its transaction
        has ended: push its members in the same one."""
        return Call("SELECT batch_create(%s::text, %s::boolean)", [name, keep_open],
                    first, tx)

    batch, abatch = both(_batch)

    def _close_batch(self, batch: int, *, tx: Connection | None = None) -> Call[bool]:
        """Lets a batch that is kept open finish."""
        return Call("SELECT batch_close(%s::bigint)", [batch], first, tx)

    close_batch, aclose_batch = both(_close_batch)

    def _batch_status(self, batch: int, *, tx: Connection | None = None
                      ) -> Call[BatchStatus]:
        return Call("SELECT name, members, unfinished, completed, failed, waiting,"
                    " created_at, closed_at, finished_at FROM batch_status(%s::bigint)",
                    [batch], lambda rows: BatchStatus(*rows[0]), tx)

    batch_status, abatch_status = both(_batch_status)

    def _status(self, *, tx: Connection | None = None) -> Call[list[Depth]]:
        """What is in the queues that the role may claim from; a few seconds old."""
        return Call("SELECT queue, free, claimed, delayed, dead_letters, oldest_age, paused,"
                    " last_error FROM queue_depth(NULL::text) ORDER BY queue", [],
                    lambda rows: [Depth(*row) for row in rows], tx)

    status, astatus = both(_status)
