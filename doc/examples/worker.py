#!/usr/bin/env python3
"""A worker for one queue: copy it, and change QUEUE and work().

Needs psycopg2 2.9 or later.  PGHOST, PGDATABASE and so on name the database;
PgBouncer in transaction mode may be in between.  Run as many as you like.  The
queue decides what becomes of messages that fail; after so many attempts they
are dead letters:

    SELECT queue_create('mail', '{"_max_claim_count": 12}');
"""
import logging
import random
import signal
import sys
import threading
import time
from contextlib import closing, suppress

import psycopg2

QUEUE = "mail"
BATCH = 10      # messages in one claim; 1 where each of them takes long
CLAIM = 60      # seconds until the messages of a killed worker are free again
WAIT = 30       # seconds until the next claim when nothing arrives
STOP = 0.3      # seconds to finish a message in, when told to stop
ANSWER = 3      # seconds to wait for the answer to a claim then


def work(cur, message_id, body):
    """Handle a message.  What is done through cur commits together with the
    deletion of the message, or not at all.  If this raises, it is retried."""
    cur.execute("INSERT INTO sent VALUES (%s, %s)", (message_id, body["to"]))


def connect():
    conn = psycopg2.connect("", application_name=f"worker {QUEUE}",
                            connect_timeout=5, keepalives_idle=30)
    conn.autocommit = True      # but "with conn" is a transaction
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
    claim = None                # while it has messages
    claiming = threading.Lock() # until it knows what it has claimed
    stopping = threading.Event()

    def run(self):
        delay = 0.5
        while not self.stopping.is_set():
            try:
                with closing(connect()) as self.conn:
                    # What a lost connection left.  NULL releases nothing.
                    call(self.conn, "SELECT claim_release(%s, %s)",
                         QUEUE, self.claim)
                    self.claim = None
                    while not self.stopping.is_set():
                        self.claim_and_work()
                        delay = 0.5
            except psycopg2.Error as error:
                if not self.stopping.is_set():
                    logging.warning("will reconnect: %s", error)
                    self.stopping.wait(delay * random.uniform(0.5, 1))
                    delay = min(delay * 2, 30)

    def claim_and_work(self):
        with self.claiming:
            messages = call(self.conn, "SELECT id, body, claim_count, claim_id"
                            " FROM queue_claim(%s, %s, 60, %s)",
                            QUEUE, CLAIM, BATCH)
            self.claim = messages[0][3] if messages else None
        if self.stopping.is_set():
            return
        if not messages:
            call(self.conn, "CALL queue_wait(%s, %s)", QUEUE, WAIT * 1000)
            return
        for message_id, body, attempt, _ in messages:
            self.handle(message_id, body, attempt)
            if self.stopping.is_set():
                return
        self.claim = None

    def handle(self, message_id, body, attempt):
        try:
            with self.conn, self.conn.cursor() as cur:
                work(cur, message_id, body)
                cur.execute("SELECT message_delete(%s, %s, %s)",
                            (QUEUE, message_id, self.claim))
        except Exception as error:
            # QU001: the claim has expired, and others may have the messages.
            if self.conn.closed or getattr(error, "pgcode", "") == "QU001":
                raise
            if not self.stopping.is_set():
                self.retry(message_id, attempt, error)

    def retry(self, message_id, attempt, error):
        due = call(self.conn, "SELECT message_retry(%s, %s, %s, %s)",
                   QUEUE, message_id, self.claim, repr(error))[0][0]
        if due is None:
            logging.error("message %s: attempt %s failed, now a dead letter: %r",
                          message_id, attempt, error)
        # Not each time: it may fail for days.  1, 2, 4, 8 and so on.
        elif attempt & (attempt - 1) == 0:
            logging.warning("message %s: attempt %s failed, next one at %s: %r",
                            message_id, attempt, due, error,
                            exc_info=attempt == 1)


def main():
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s")
    for signum in signal.SIGTERM, signal.SIGINT:
        signal.signal(signum, lambda *_: sys.exit())
    worker = Worker(daemon=True)
    worker.start()
    try:
        while worker.is_alive():
            time.sleep(CLAIM / 3)
            if worker.claim:
                call_aside("SELECT claim_renew(%s, %s, %s)",
                           QUEUE, worker.claim, CLAIM)
        sys.exit(1)
    finally:
        worker.stopping.set()
        worker.join(STOP if worker.claim else 0)
        with suppress(AttributeError, psycopg2.Error):
            worker.conn.cancel()        # queue_wait, or a statement of work()
        worker.claiming.acquire(timeout=ANSWER)     # it claims no more
        if worker.claim:
            call_aside("SELECT claim_release(%s, %s)", QUEUE, worker.claim)


if __name__ == "__main__":
    main()
