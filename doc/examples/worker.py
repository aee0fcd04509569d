#!/usr/bin/env python3
"""A worker for one queue: copy it, and change QUEUE and work().

Needs psycopg2 2.9 or later.  PGHOST, PGDATABASE and so on name the database;
PgBouncer in transaction mode may be in between.  Run as many as you like.  The
queue decides what becomes of messages that fail; after so many attempts they
are dead letters:

    SELECT queue_create('mail', '{"_max_claim_count": 12}');
"""
import json
import logging
import random
import signal
import sys
import threading
import time
from contextlib import closing, suppress

import psycopg2
from psycopg2.extras import Json

QUEUE = "mail"
CLAIM = 60      # seconds until the message of a killed worker is free again
WAIT = 30       # seconds until the next claim when nothing arrives
STOP = 0.3      # seconds to finish a message in, when told to stop
ANSWER = 3      # seconds to wait for the answer to a step then


class Permanent(Exception):
    """An error of work() that no retry mends."""


def work(cur, message_id, body):
    """Handle a message.  What is done through cur commits together with the
    completion of the message, or not at all.  If this raises, it is retried; or,
    if that is Permanent, it is a dead letter at once."""
    cur.execute("INSERT INTO sent VALUES (%s, %s)", (message_id, body["to"]))


def text(error):
    """What it says, as PostgreSQL can store it."""
    return repr(error).replace("\0", "").encode("utf-8", "replace").decode()


def connect():
    conn = psycopg2.connect("", application_name=f"worker {QUEUE}",
                            connect_timeout=5, keepalives_idle=30)
    conn.autocommit = True      # except while a message is handled
    return conn


def call(conn, sql, *args):
    with conn.cursor() as cur:
        cur.execute(sql, args)
        return cur.fetchall()


def call_aside(sql, *args):
    """The same from the main thread, over a connection of its own."""
    try:
        with closing(connect()) as conn:
            call(conn, sql, *args)
    except psycopg2.Error as error:
        logging.warning("%s: %s", sql, error)


class Worker(threading.Thread):
    conn = None
    message = None              # that it has claimed: id, body, claim_count, claim_id
    stepping = threading.Lock() # until it knows what it has claimed
    stopping = threading.Event()

    def run(self):
        delay, lost = 0.5, None
        while not self.stopping.is_set():
            try:
                with closing(connect()) as self.conn:
                    self.retry(lost)
                    while not self.stopping.is_set():
                        self.handle()
                        delay = 0.5
            except BaseException as error:      # also SystemExit, of work()
                lost = error
                if not self.stopping.is_set():
                    logging.warning("%swill reconnect: %s", "message %s: " %
                                    self.message[0] if self.message else "", error)
                    self.stopping.wait(delay * random.uniform(0.5, 1))
                    delay = min(delay * 2, 30)

    def retry(self, error):
        """Retry the message, if any, whose work has lost the connection: it may be
        the reason, as with idle_in_transaction_session_timeout."""
        if not self.message:
            return
        try:
            call(self.conn, "SELECT message_retry(%s::text, %s::bigint, %s::text,"
                 " %s::text)", QUEUE, self.message[0], self.message[3], text(error))
        except psycopg2.Error as ended:
            if ended.pgcode not in ("QU001", "QU004"):
                raise
            # The claim has expired, or the message was canceled and goes now.
            call(self.conn, "SELECT claim_release(%s::text, %s::text)",
                 QUEUE, self.message[3])
        self.message = None

    def handle(self):
        """Handle the message, if any, and claim the next one."""
        self.conn.autocommit = False
        try:
            if self.message:
                work(self.conn.cursor(), self.message[0], json.loads(self.message[1]))
            self.step()
        except BaseException as error:
            # QU001: the claim has expired, and others may have the message.
            # QU004: it was canceled.
            if (not self.message or self.conn.closed
                    or getattr(error, "pgcode", "") in ("QU001", "QU004")):
                raise
            self.conn.rollback()
            self.step(error)
        self.conn.autocommit = True
        if not self.message and not self.stopping.is_set():
            call(self.conn, "CALL queue_wait(%s::text, %s::int)", QUEUE, WAIT * 1000)

    def step(self, error=None):
        """Complete the message, or retry it, and claim the next one."""
        message = self.message
        failed = error and Json([{"id": message[0], "error": text(error),
                                  "bury": isinstance(error, Permanent)}])
        with self.stepping:
            # The body is text until it is handled, so that one which cannot be
            # parsed costs its message an attempt.
            claimed = call(
                self.conn, 'SELECT id, body::text, claim_count, claim_id FROM'
                ' queue_step(%s::text, %s::text, failed => %s::jsonb, ttl => %s::int,'
                ' "limit" => %s::int)', QUEUE, message and message[3], failed, CLAIM,
                int(not self.stopping.is_set()))
            dead = error and not call(
                self.conn, "SELECT id FROM message_get(%s::text, %s::bigint)",
                QUEUE, message[0])
            self.conn.commit()
            self.message = claimed[0] if claimed else None
        if dead:
            logging.error("message %s: attempt %s failed, now a dead letter: %r",
                          message[0], message[2], error)
        # Not each time: it may fail for days.  1, 2, 4, 8 and so on.
        elif error and message[2] & (message[2] - 1) == 0:
            logging.warning("message %s: attempt %s failed: %r", message[0],
                            message[2], error, exc_info=message[2] == 1)


def main():
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s")
    for signum in signal.SIGTERM, signal.SIGINT:
        signal.signal(signum, lambda *_: sys.exit())
    worker = Worker(daemon=True)
    worker.start()
    try:
        while worker.is_alive():
            time.sleep(CLAIM / 3)
            if message := worker.message:
                call_aside("SELECT claim_renew(%s::text, %s::text, %s::int)",
                           QUEUE, message[3], CLAIM)
        sys.exit(1)
    finally:
        worker.stopping.set()
        worker.join(STOP if worker.message else 0)
        stepped = worker.stepping.acquire(timeout=ANSWER)   # no more steps
        with suppress(AttributeError, psycopg2.Error):
            worker.conn.cancel()        # queue_wait, or a statement of work()
        if stepped and worker.message:
            call_aside("SELECT claim_release(%s::text, %s::text)",
                       QUEUE, worker.message[3])


if __name__ == "__main__":
    main()
