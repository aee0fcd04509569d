"""Who has logged in, how often one may try, and forms that nobody else can send."""
import hmac
import secrets
import threading
import time
from collections import OrderedDict
from dataclasses import dataclass, field

from . import settings
from .reader import Reader

SECRET = secrets.token_bytes(32)    # of this process
QUESTIONS = 100                     # that a session can have open

lock = threading.Lock()             # protects these
sessions, readers = {}, {}          # by cookie; by login
failures = []                       # failed logins: (time, who: an address or a browser, role)


@dataclass(eq=False)
class Session:
    """A visitor who has logged in."""
    reader: Reader
    born: float
    seen: float
    notice: str | None = None       # what the next page says first
    sweep: object = None            # an action on all that match (sweep.py)
    questions: OrderedDict = field(default_factory=OrderedDict)
    forms: OrderedDict = field(default_factory=OrderedDict)     # keys, by what they push to

    def ask(self, question):
        """Remembers a question; its form carries what this returns."""
        key = secrets.token_urlsafe(12)
        self.questions[key] = question
        while len(self.questions) > QUESTIONS:
            self.questions.popitem(last=False)
        return key

    def answer(self, key):
        """The question, once: a form that is sent again finds none."""
        return self.questions.pop(key, None)

    def form(self, *target):
        """The key of a form that pages show again and again: the same until it is sent."""
        key = self.forms.setdefault(target, secrets.token_urlsafe(12))
        while len(self.forms) > QUESTIONS:
            self.forms.popitem(last=False)
        return key

    def sent(self, key, *target):
        """Whether a form is sent for the first time; of two at once, one is."""
        return self.forms.get(target) == key and self.forms.pop(target, None) == key


def token(cookie):
    """What all forms of a session carry, so that no other site can send them."""
    return hmac.digest(SECRET, cookie.encode(), "sha256").hex()


def same(given, wanted):
    return hmac.compare_digest(given.encode(), wanted.encode())


def expire():
    """Ends the sessions whose time is over, and readers without a session."""
    now = time.monotonic()
    with lock:
        for key, session in list(sessions.items()):
            if now - session.seen > settings.IDLE or now - session.born > settings.LONGEST:
                end(key)
        used = {session.reader for session in sessions.values()}
        for key, reader in list(readers.items()):
            if reader not in used:
                readers.pop(key).end("the last session has ended")


def end(cookie):
    session = sessions.pop(cookie, None)
    if session and session.sweep:
        session.sweep.stop()


def begin(login, db, cookie):
    """A session for this login; its connection serves if the role has none yet."""
    now = time.monotonic()
    with lock:
        reader = readers.get(login)
        if reader and not reader.ended:
            db.close()
        else:
            reader = readers[login] = Reader(login, db)
            reader.between = expire
            reader.start()
        own = [key for key, session in sessions.items() if session.reader is reader]
        if len(own) >= settings.SESSIONS:
            end(own[0])
        sessions[cookie] = Session(reader, now, now)
    return sessions[cookie]


#
# Failed logins are counted for the address of a visitor, so that a flood from elsewhere keeps
# nobody out, and a browser that the role has used before counts for itself, so that one from
# the same address does not, either.
#

def known_browser(role):
    """A mark for a browser in which this role has logged in."""
    return hmac.digest(SECRET, f"browser of {role}".encode(), "sha256").hex()


def may_try(role, address, mark):
    """Whether another login may be tried; it counts as failed until it has succeeded."""
    now = time.monotonic()
    known = same(mark, known_browser(role))
    who = ("browser", role) if known else ("address", address)
    with lock:
        failures[:] = [f for f in failures if f[0] > now - settings.LOGINS[2]]
        own = [f[2] for f in failures if f[1] == who]
        if len(own) >= settings.LOGINS[1] or own.count(role) >= settings.LOGINS[0]:
            return None
        attempt = now, who, role
        failures.append(attempt)
    return attempt


def succeeded(attempt):
    with lock:
        failures.remove(attempt)
