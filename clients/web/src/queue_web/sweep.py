"""An action on all messages that match, page by page.

First a thread counts them, for the question; if the answer is yes, another one acts on those
that were there then.  Each page is a transaction of its own, so what was done stays done when
it is stopped, and no lock is held for long.
"""
import threading

import psycopg

from . import settings
from .actions import ACTIONS, counted
from .database import Ended, connect, sentence
from .settings import log

PAGE = 500                          # messages in one call
running = threading.BoundedSemaphore(settings.SWEEPS)

COUNT = """
    count(*) FILTER (WHERE state = ANY (%(states)s::text[])) || ' ' || coalesce(max(id), 0) || ' '
        || count(*) FILTER (WHERE state IS NULL) + count(*) / 10000
    FROM @queue_browse(%(q)s::text, %(state)s::text, %(find)s::jsonb, %(after)s::bigint, 10000)"""
IDS = """
    coalesce(array_agg(id) FILTER (WHERE state = ANY (%(states)s::text[])), '{}')::text || ' '
        || coalesce(max(id), 0)
    FROM @queue_browse(%(q)s::text, %(state)s::text, %(find)s::jsonb, %(after)s::bigint,
        %(page)s::int)"""


class Sweep:
    """Where it is: counting, asks, acting, done, stopped or failed."""

    def __init__(self, login, name, values):
        self.login, self.name, self.values = login, name, values
        self.action = ACTIONS[name]
        self.state, self.why = "counting", ""
        self.total = self.last = self.done = self.looked = 0
        self.stopped, self.paused = threading.Event(), threading.Event()

    def wait(self, seconds):
        """Until a step has ended, but not for long."""
        self.paused.wait(seconds)

    def stop(self):
        self.stopped.set()

    def start(self, step):
        self.paused.clear()
        threading.Thread(target=self.guarded, args=[step], daemon=True).start()

    def guarded(self, step):
        """A step, on a connection of its own, for which PostgreSQL checks the password."""
        try:
            with running:
                db = connect(self.login, write=True)
                try:
                    db.project(self.values["project"])
                    step(db)
                finally:
                    db.close()
        except Ended as error:
            self.state, self.why = "failed", str(error)
        except psycopg.Error as error:
            self.state, self.why = "failed", sentence(error, self.login.role, self.action.needs)
        self.paused.set()
        if self.state in ("done", "stopped", "failed"):
            log(f"role {self.login.role!r}: {self.name} {self.values!r}: {self.state}, "
                f"{counted(self.done)} {self.why}")

    def matching(self, **more):
        """The values of a read.  A dead letter is a free message of its queue."""
        states = self.action.states - {"dead"}
        if self.values["dead"]:
            states |= {"free"}
        return self.values | {"states": sorted(states)} | more

    def count(self, db):
        """How many there are, and which one is the last."""
        after, more = 0, True
        while more and not self.stopped.is_set():
            count, last, more = map(int, db.value(COUNT, **self.matching(after=after)).split())
            self.total += count
            after = self.last = max(after, last)
        self.state = "stopped" if self.stopped.is_set() else "asks"

    def act(self, db):
        """The action, on page after page.  What came after the question stays as it is."""
        after = 0
        while after < self.last and not self.stopped.is_set():
            ids, last = db.value(IDS, **self.matching(after=after, page=PAGE)).split()
            ids = [int(i) for i in ids[1:-1].split(",") if i and int(i) <= self.last]
            if ids:
                self.done += db.value(self.action.call, **self.values | {"ids": ids})
                self.looked += len(ids)
            if int(last) <= after:
                break
            after = int(last)
        self.state = "stopped" if self.stopped.is_set() else "done"
