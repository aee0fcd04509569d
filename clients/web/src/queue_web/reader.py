"""One thread for each role that has a session: it does the reads of all its pages."""
import threading
import time

import psycopg

from . import settings
from .data import READS
from .database import Ended, connect
from .history import History, SAMPLE
from .settings import log

shared = History()                  # the numbers that all who may read queue_status see


class Reader(threading.Thread):
    """Reads for all sessions of one role.

    Pages say what they want by keys: a function of data.py, the project, arguments.  Rounds of
    reads are at least settings.ROUND apart; in each, what is wanted meanwhile is read once,
    however many pages wait for it.  "condition" protects wanted, cache and ended; the rest
    belongs to the thread.
    """

    def __init__(self, login, db):
        super().__init__(daemon=True)
        self.login, self.db = login, db
        self.connected = time.monotonic()
        self.condition = threading.Condition()
        self.wanted, self.cache = {}, {}    # by key; cache: (value, fresh until)
        self.ended, self.failed = None, ""
        self.history = shared if db.monitor else History()
        self.between = lambda: None         # is called between two rounds

    @property
    def role(self):
        return self.login.role

    def get(self, *keys):
        """What these keys stand for."""
        now = time.monotonic()
        with self.condition:
            missing = [k for k in keys if k not in self.cache or self.cache[k][1] < now]
            self.wanted.update(dict.fromkeys(missing))
            self.condition.notify_all()
            done = self.condition.wait_for(
                lambda: self.ended or not any(k in self.wanted for k in missing), 60)
            if self.ended:
                raise Ended(self.ended)
            values = [self.cache[k][0] if done else psycopg.Error("too much is read at once")
                      for k in keys]
        for value in values:
            if isinstance(value, Exception):
                raise value
        return values

    def forget(self):
        """What was read before now is not fresh any more."""
        with self.condition:
            now = time.monotonic()
            self.cache = {k: (v[0], min(v[1], now)) for k, v in self.cache.items()}

    def end(self, why):
        with self.condition:
            self.ended = self.ended or str(why)
            self.condition.notify_all()

    def run(self):
        try:
            while not self.ended:
                self.turn()
        finally:
            self.end("queue_web has failed: see its log")
            self.db.close()
            log(f"role {self.role!r}: {self.ended}")

    def turn(self):
        """A round of reads, and the pause after it: half of the time at least."""
        self.between()
        with self.condition:
            self.condition.wait_for(lambda: self.wanted or self.ended, SAMPLE / 2)
            keys = dict(self.wanted)
        begin = time.monotonic()
        if self.db.monitor and self.history.due():
            keys[("status", "")] = None     # for the plots
        read = self.round(keys)
        with self.condition:
            self.cache = {k: v for k, v in self.cache.items() if v[1] > begin - 120} | read
            self.wanted = {k: None for k in self.wanted if k not in read}
            self.condition.notify_all()
        took = time.monotonic() - begin
        time.sleep(max(settings.ROUND - took, took) if keys else 0)

    def round(self, keys):
        """Reads these; once more if the connection turns out to be gone."""
        for _ in range(2):
            try:
                if self.db.closed or time.monotonic() - self.connected > settings.RENEW:
                    self.db.close()
                    self.db = connect(self.login)
                    self.connected = time.monotonic()
                read = {key: self.read(*key) for key in keys}
                if self.failed:
                    log(f"role {self.role!r}: connected again")
                self.failed = ""
                return read
            except Ended as error:
                self.end(error)
                return {}
            except (psycopg.Error, ValueError) as error:
                lost = psycopg.Error(str(error))
                if self.failed != str(error):
                    log(f"role {self.role!r}: connection lost: {error}")
                self.failed = str(error)
        return {key: (lost, time.monotonic() + settings.FRESH) for key in keys}

    def read(self, kind, project, *values):
        """What one key stands for, and until when it is fresh."""
        begin = time.monotonic()
        self.db.project(project)
        value = READS[kind](self.db, project, *values)
        now = time.monotonic()
        self.keep(kind, project, value)
        return value, max(begin + settings.FRESH, now + settings.SHARE * (now - begin))

    def keep(self, kind, project, value):
        """Adds numbers to the plots."""
        if kind == "status" and value and self.history.due():
            self.history.keep(value, complete=True)
        elif kind == "names" and value and "ready" in value[0]:
            self.history.keep(value, project)


def keep_history(login):
    """Keeps the numbers of the queues for good, as the role of queue_web itself."""
    said = ""
    while True:
        try:
            db = connect(login)
            while True:
                if shared.due():
                    rows = READS["status"](db, "")
                    if rows.why:
                        raise Ended(rows.why)
                    shared.keep(rows, complete=True)
                said = ""
                time.sleep(1)
        except (Ended, psycopg.Error) as error:
            if said != str(error):
                log(f"numbers for the plots, as role {login.role!r}: {error}")
            said = str(error)
            time.sleep(SAMPLE)
