"""A client of test/ha/run.

	client.py ROLE NAME LOG CONNECTION-STRING

Writes a line of JSON for each call that it made: what it was, when it began
(t0) and when its result was known (t1), and the result:
  ok       the server has acknowledged it;
  failed   it has certainly had no effect: no connection, or an error of the
           server that is not about the connection;
  unknown  it may have had its effect: the connection was lost, no answer came
           in time, or the wait for the synchronous standby was canceled.
Ends at SIGTERM, when the call that it is in is over.
"""
import json
import os
import random
import select
import signal
import socket
import sys
import threading
import time

import psycopg2

TTL = 20                # of a claim, in seconds
ANSWER = 4              # how long to wait for an answer
FREE = 2500             # messages that producers keep waiting
HELD = 150              # messages that the holder keeps claimed

role, name, log_name, dsn = sys.argv[1:]


class Failed(Exception):
    """The call had no effect, or this is not known."""


class Client:
    conn = None
    guard = None        # a second handle of the connection's socket
    deadline = None     # when it is to be closed

    def __init__(self):
        self.log = open(log_name, "w", buffering=1)
        self.stopping = threading.Event()
        self.calls = 0
        signal.signal(signal.SIGTERM, lambda *_: self.stopping.set())
        threading.Thread(target=self.watch, daemon=True).start()

    def watch(self):
        """Ends calls that get no answer.  A stopped server acknowledges TCP
        packets, so that no setting of the connection does this."""
        while True:
            time.sleep(0.1)
            deadline, guard = self.deadline, self.guard
            if deadline and guard and time.time() > deadline:
                try:
                    guard.shutdown(socket.SHUT_RDWR)
                except OSError:
                    pass

    def connect(self):
        self.close()
        t0 = time.time()
        self.conn = psycopg2.connect(dsn, application_name=name)
        self.conn.autocommit = True
        self.guard = socket.socket(fileno=os.dup(self.conn.fileno()))
        self.port = self.conn.info.port
        self.write({"op": "connect", "role": role, "t0": t0, "t1": time.time(),
                    "port": self.port, "result": "ok"})

    def close(self):
        self.deadline = None
        if self.guard:
            self.guard.close()
        if self.conn:
            self.conn.close()
        self.guard = self.conn = None

    def call(self, record, sql, *args, wait=0):
        """Rows of a call, which is logged with its result."""
        record["t0"] = time.time()
        record["result"] = "failed"
        try:
            if self.conn is None:
                self.connect()
            record["port"] = self.port
            record["t0"] = time.time()
            self.deadline = time.time() + ANSWER + wait
            self.conn.notices.clear()
            with self.conn.cursor() as cur:
                record["result"] = "unknown"
                cur.execute(sql, args)
                rows = cur.fetchall()
            if not any("synchronous replication" in notice
                       for notice in self.conn.notices):
                record["result"] = "ok"
        except psycopg2.Error as error:
            record["error"] = "%s %s" % (error.pgcode, str(error).strip())
            # The server's answer, but for that it ends the connection: it may
            # do so when the transaction is committed, but not yet replicated.
            if (self.conn and not self.conn.closed and error.pgcode and
                    error.pgcode[:3] != "57P"):
                record["result"] = "failed"
            else:
                self.close()
        self.deadline = None
        record["t1"] = time.time()
        if record["result"] != "ok":
            self.write(record)
            self.stopping.wait(random.uniform(0.05, 0.2))
            raise Failed(record)
        return rows

    def write(self, record):
        self.log.write(json.dumps(record) + "\n")

    def until_stopped(self, step):
        while not self.stopping.is_set():
            try:
                step()
            except Failed:
                pass
        self.close()

    #
    # Calls
    #

    def push(self, queue, count, delay=0):
        self.calls += 1
        keys = ["%s-%d-%d" % (name, self.calls, i) for i in range(count)]
        bodies = [json.dumps({"k": key}) for key in keys]
        record = {"op": "push", "q": queue, "keys": keys}
        if count == 1:
            rows = self.call(record, "SELECT queue_push(%s, %s, delay => %s)",
                             queue, bodies[0], delay)
        else:
            rows = self.call(record, "SELECT queue_push_batch(%s, %s::jsonb[])",
                             queue, bodies)
        self.write(record)
        return keys, rows[0][0]

    def claimed(self, record, rows):
        """The claim that a call has made, or None: (id, keys)."""
        if not rows:
            return None
        record["claim"] = rows[0][2]
        record["keys"] = [key for _, key, _ in rows]
        self.write(record)
        return record["claim"], record["keys"], [id for id, _, _ in rows]

    def claim(self, queue, count):
        record = {"op": "claim", "q": queue, "ttl": TTL}
        return self.claimed(record, self.call(
            record, "SELECT id, body->>'k', claim_id"
            " FROM queue_claim(%s, %s, 60, %s)", queue, TTL, count))

    def renew(self, queue, claim):
        record = {"op": "renew", "q": queue, "ttl": TTL, "claim": claim[0]}
        rows = self.call(record, "SELECT claim_renew(%s, %s, %s)",
                         queue, claim[0], TTL)
        record["live"] = rows[0][0] is not None
        self.write(record)

    def release(self, queue, claim):
        record = {"op": "release", "q": queue, "claim": claim[0]}
        self.call(record, "SELECT claim_release(%s, %s)", queue, claim[0])
        self.write(record)

    def complete(self, queue, claim):
        """Repeats what may not have happened, as applications should."""
        record = {"op": "complete", "q": queue, "claim": claim[0],
                  "keys": claim[1]}
        while True:
            try:
                if random.random() < 0.3:
                    self.call(record, "SELECT messages_delete(%s, %s, %s)",
                              queue, claim[2], claim[0])
                else:
                    self.call(record, "SELECT claim_complete(%s, %s)",
                              queue, claim[0])
                self.write(record)
                return
            except Failed:
                if record["error"].startswith("QU001"):
                    return
                record = {key: record[key] for key in ("op", "q", "claim", "keys")}

    def repeat(self, record, sql, *args, wait=0):
        """The value that a call returns, which is repeated if it fails."""
        while True:
            try:
                return self.call(dict(record), sql, *args, wait=wait)[0][0]
            except Failed:
                pass

    def claim_next(self, queue, claim, count):
        """As complete() and claim(), in one call."""
        done = {"op": "complete", "q": queue, "claim": claim[0],
                "keys": claim[1]}
        try:
            rows = self.call(done, "SELECT id, body->>'k', claim_id"
                             " FROM claim_next(%s, %s, %s, 60, %s)",
                             queue, claim[0], TTL, count)
        except Failed:
            if not done["error"].startswith("QU001"):
                self.complete(queue, claim)
            raise
        self.write(done)
        record = {"op": "claim", "q": queue, "ttl": TTL}
        for key in ("t0", "t1", "result", "port"):
            record[key] = done[key]
        return self.claimed(record, rows)

    #
    # Roles
    #

    def producer(self):
        """Keeps messages waiting."""
        rows = self.call({"op": "stats"}, "SELECT free FROM queue_stats('work')")
        if rows[0][0] >= FREE:
            self.stopping.wait(0.2)
            return
        for count in 1, 50, 1, 100:
            self.push("work", count)

    held = None

    def worker(self):
        """Claims, works for a moment, and completes what it has claimed."""
        claim = self.held or self.claim("work", 20)
        self.held = None
        if not claim:
            self.stopping.wait(0.2)
            return
        self.stopping.wait(random.uniform(0, 0.4))
        try:
            if random.random() < 0.3:
                self.renew("work", claim)
        except Failed:
            pass
        chance = random.random()
        if chance < 0.05:
            self.release("work", claim)
        elif chance < 0.3 and not self.stopping.is_set():
            self.held = self.claim_next("work", claim, 20)
        else:
            self.complete("work", claim)

    def holder(self):
        """Keeps messages claimed, whatever happens, by renewing."""
        claim = self.claim("work", HELD)
        if self.held:
            self.complete("work", self.held)
        self.held = claim
        for _ in range(3):
            if claim and not self.stopping.wait(1.5):
                try:
                    self.renew("work", claim)
                except Failed:
                    pass
        if claim and self.stopping.is_set():
            self.complete("work", claim)

    def ticker(self):
        """Jobs, and messages for the waiter."""
        self.push("wake", 1)
        self.push("jobs", 1)
        self.stopping.wait(0.2)

    def awaiter(self):
        """Waits for a job, or cancels it before it is due."""
        cancels = random.random() < 0.3
        keys, id = self.push("jobs", 1, delay=10 * cancels)
        record = {"op": "cancel", "q": "jobs", "keys": keys, "t0": time.time()}
        if cancels:
            self.repeat(record, "SELECT message_cancel('jobs', %s)", id)
            self.write({**record, "t1": time.time(), "result": "ok"})
        record = {"op": "await", "q": "jobs", "keys": keys, "t0": time.time()}
        fate = self.repeat(record, "CALL queue_await('jobs', %s, 30000)", id,
                           wait=30)
        self.write({**record, "t1": time.time(), "result": "ok",
                    "outcome": fate and fate["outcome"]})
        self.stopping.wait(0.1)

    def waiter(self):
        record = {"op": "wait", "q": "wake"}
        rows = self.call(record, "CALL queue_wait('wake', 3000)", wait=3)
        record["ready"] = rows[0][0]
        self.write(record)
        claim = self.claim("wake", 10)
        if claim:
            self.complete("wake", claim)

    def listener(self):
        if self.conn is None:
            channel = self.call({"op": "channel"}, "SELECT queue_channel('wake')")
            with self.conn.cursor() as cur:
                self.deadline = time.time() + ANSWER
                try:
                    cur.execute('LISTEN "%s"' % channel[0][0])
                except psycopg2.Error:
                    self.close()
                    return
                self.deadline = None
            return
        if not select.select([self.conn], [], [], 2)[0]:
            self.call({"op": "alive"}, "SELECT 1")
            return
        try:
            self.conn.poll()
        except psycopg2.Error:
            self.close()
            return
        if self.conn.notifies:
            self.conn.notifies.clear()
            now = time.time()
            self.write({"op": "notified", "t0": now, "t1": now,
                        "port": self.port, "result": "ok"})


client = Client()
client.until_stopped(getattr(client, role))
