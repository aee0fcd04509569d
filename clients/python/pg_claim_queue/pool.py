"""The connections of a worker."""
from __future__ import annotations

import asyncio
import contextlib
import logging
import select
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg.pq import TransactionStatus

if TYPE_CHECKING:
    from .queue import Queue

logger = logging.getLogger("pg_claim_queue")

# The session's own settings end no connection that waits.  Behind a pooler, which shares
# its server connections, nothing is set or prepared.
ABOUT = "SELECT pg_catalog.pg_backend_pid(), current_setting('queue.max_claim_limit', true)"
STAY = "SELECT pg_catalog.set_config('idle_session_timeout', '0', false)"


def log_notice(notice: psycopg.errors.Diagnostic) -> None:
    logger.info("%s: %s", notice.severity, notice.message_primary)


def alive(conn: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> bool:
    """Whether an idle connection is still there: what the server sent is its end, or at
    most a notice.  So a push is never sent over a connection that is known to be lost."""
    try:
        poll = select.poll()
        poll.register(conn.pgconn.socket, select.POLLIN)
        while poll.poll(0):         # until it is read, or is the end, which raises
            conn.pgconn.consume_input()
        return not conn.closed and conn.pgconn.status == psycopg.pq.ConnStatus.OK
    except (psycopg.Error, OSError, ValueError):
        conn.pgconn.finish()
        return False


def finish(conn: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> None:
    conn.pgconn.finish()        # close() of the one is to be awaited


class Pool:
    """At most size connections for work.  Jobs with a transaction hold one each, all but
    one of them at most, so that other jobs can be completed meanwhile.  All is called in
    the loop's thread; jobs in threads get connections of psycopg's other kind (sync)."""

    def __init__(self, queue: Queue, size: int):
        if size < 2:
            raise ValueError("pool must be 2 or more")
        self.queue = queue
        self.size = size
        self.slots = asyncio.Semaphore(size)
        self.tx_slots = asyncio.Semaphore(size - 1)
        self.idle: dict[bool, list[Any]] = {False: [], True: []}
        self.busy = 0
        self.pooled = False     # PgBouncer or the like is between
        self.max_limit = 100

    async def connect(self) -> psycopg.AsyncConnection[Any]:
        conn = await psycopg.AsyncConnection.connect(
            self.queue.conninfo(application_name="pg_claim_queue"), autocommit=True)
        try:
            conn.add_notice_handler(log_notice)
            row = await (await conn.execute(ABOUT)).fetchone()
            assert row
            self.pooled = row[0] != conn.info.backend_pid
            self.max_limit = int(row[1] or 100)
            if self.pooled:
                conn.prepare_threshold = None
            else:
                await conn.execute(STAY)
        except BaseException:
            await conn.close()
            raise
        return conn

    def connect_sync(self) -> psycopg.Connection[Any]:
        conn = psycopg.connect(self.queue.conninfo(application_name="pg_claim_queue"),
                               autocommit=True,
                               prepare_threshold=None if self.pooled else 5)
        conn.add_notice_handler(log_notice)
        return conn

    async def take(self, sync: bool = False) -> Any:
        await self.slots.acquire()
        self.busy += 1
        try:
            while self.idle[sync]:
                if alive(conn := self.idle[sync].pop()):
                    return conn
            if self.busy + len(self.idle[True]) + len(self.idle[False]) > self.size:
                finish((self.idle[True] or self.idle[False]).pop(0))
            return await (asyncio.to_thread(self.connect_sync) if sync else self.connect())
        except BaseException:
            self.busy -= 1
            self.slots.release()
            raise

    def give(self, conn: Any, sync: bool = False, keep: bool = True) -> None:
        """Takes it back; one that is lost or in the middle of something is closed."""
        self.busy -= 1
        self.slots.release()
        if keep and conn.pgconn.transaction_status == TransactionStatus.IDLE:
            self.idle[sync].append(conn)
        else:
            finish(conn)

    async def take_tx(self, sync: bool) -> Any:
        """Waits until a job may have a transaction."""
        await self.tx_slots.acquire()
        try:
            return await self.take(sync)
        except BaseException:
            self.tx_slots.release()
            raise

    def give_tx(self, conn: Any, sync: bool, keep: bool) -> None:
        self.tx_slots.release()
        self.give(conn, sync, keep)

    @contextlib.asynccontextmanager
    async def connection(self) -> AsyncIterator[psycopg.AsyncConnection[Any]]:
        conn = await self.take()
        try:
            yield conn
        finally:
            self.give(conn)

    def shrink(self, leave: int = 1) -> None:
        """Closes what is idle, but for one."""
        while len(self.idle[False]) > leave:
            finish(self.idle[False].pop(0))
        while self.idle[True]:
            finish(self.idle[True].pop())
