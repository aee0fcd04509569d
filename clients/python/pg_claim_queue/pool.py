"""The connections of callers and workers.

What a thread calls and a task awaits is written once, as a coroutine.  In a thread,
nothing in it waits, since the connection has done its work when a method returns.
"""
from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import os
import select
import threading
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, TypeVar

import psycopg
from psycopg.conninfo import conninfo_to_dict
from psycopg.pq import TransactionStatus

T = TypeVar("T")
Loop = asyncio.AbstractEventLoop | None         # None: of a thread
logger = logging.getLogger("pg_claim_queue")


def run_now(coroutine: Coroutine[Any, Any, T]) -> T:
    """Runs one in a thread, where it waits for nothing."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        return end.value        # type: ignore[no-any-return]
    raise RuntimeError("the coroutine waits")


async def done(value: Any) -> Any:
    """What a method has returned, or what it returns when it is awaited."""
    return await value if inspect.isawaitable(value) else value


def alive(conn: Any) -> bool:
    """Whether an idle connection is still there: what the server has sent is its end, or
    at most a notice.  So a push is never sent over one that is known to be lost."""
    if conn.pgconn.status != psycopg.pq.ConnStatus.OK:
        return False
    poll = select.poll()
    poll.register(conn.pgconn.socket, select.POLLIN)
    return not poll.poll(0)


def finish(conn: Any) -> None:
    conn.pgconn.finish()        # close() of the one kind is to be awaited


class Connections:
    """Those that are idle are used again: by threads, and by the same event loop."""

    def __init__(self, dsn: str | Callable[[], str]):
        self._dsn = dsn
        self._lock = threading.Lock()
        self._idle: dict[tuple[int, Loop], list[Any]] = {}
        self.pooled = False     # PgBouncer or the like is between

    async def open(self, loop: Loop) -> Any:
        dsn = self._dsn if isinstance(self._dsn, str) else self._dsn()
        info = {"connect_timeout": os.environ.get("PGCONNECT_TIMEOUT", 10),
                "keepalives_idle": 30, "fallback_application_name": "pg_claim_queue",
                **conninfo_to_dict(dsn)}
        kind: Any = psycopg.AsyncConnection if loop else psycopg.Connection
        conn = await done(kind.connect(**info, autocommit=True))
        try:
            conn.add_notice_handler(lambda notice: logger.info(
                "%s: %s", notice.severity, notice.message_primary))
            cursor = await done(conn.execute("SELECT pg_catalog.pg_backend_pid()"))
            self.pooled = (await done(cursor.fetchone()))[0] != conn.info.backend_pid
            if self.pooled:     # the server connection is shared: nothing is prepared
                conn.prepare_threshold = None
        except BaseException:
            finish(conn)
            raise
        return conn

    async def take(self, loop: Loop) -> Any:
        """An idle connection of this event loop, or a new one.  One of the parent process
        must not even be closed."""
        with self._lock:
            for pid, owner in list(self._idle):
                if owner and owner.is_closed() and pid == os.getpid():
                    for conn in self._idle.pop((pid, owner)):
                        finish(conn)
            idle = self._idle.setdefault((os.getpid(), loop), [])
            while idle:
                if alive(conn := idle.pop()):
                    return conn
                finish(conn)
        return await self.open(loop)

    def keep(self, loop: Loop, conn: Any) -> None:
        """Takes it back; one that is lost or in the middle of something is closed."""
        if conn.pgconn.transaction_status == TransactionStatus.IDLE:
            with self._lock:
                self._idle.setdefault((os.getpid(), loop), []).append(conn)
        else:
            finish(conn)

    @contextlib.contextmanager
    def connection(self) -> Iterator[psycopg.Connection[Any]]:
        """A connection with autocommit.  Open a transaction on it to do several things
        at once: with conn.transaction(): ..."""
        conn = run_now(self.take(None))
        try:
            yield conn
        finally:
            self.keep(None, conn)

    def close(self, leave: int = 0) -> None:
        """Closes what is idle, but for so many."""
        with self._lock:
            for (pid, _), idle in self._idle.items():
                while pid == os.getpid() and len(idle) > leave:
                    finish(idle.pop())
