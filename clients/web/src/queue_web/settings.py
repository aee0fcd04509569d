"""What the command line says.  There is one program in a process, so one of these."""
import sys
import time
from dataclasses import dataclass, field

# Times are in seconds.
IDLE, LONGEST = 1800, 12 * 3600     # a session ends so long after its last request, its login
ROUND = 0.1                         # least time between two rounds of reads for a role
FRESH, SHARE = 0.9, 20              # what took t to read is kept for FRESH, or for SHARE * t
REFRESH = 5                         # a page is read again
RENEW = 600                         # a new connection: PostgreSQL checks the password again
REFUSED = 60                        # what a role may not read is not tried again before
OLD = 600                           # a message that has waited so long needs a person
LOGINS = 5, 30, 60                  # failed ones from an address: of a role, of all, in so long
SESSIONS, THREADS = 100, 100        # most sessions of a role; most connections at once
SWEEPS = 4                          # actions on all that match, at once
FORM, BODY = 65536, 400000          # most bytes of a form; most characters of a body to push
PUSH = 10 * BODY                    # and bytes of its form: a character has up to 9 there
ROWS, QUEUES = 25, 50               # rows of a page; of the page of queues


@dataclass
class Site:
    """The database, and how browsers reach the program."""
    dsn: str = ""
    prefix: str = ""                # "/queues": the path that it is mounted under
    cookie: str = "queue_web"
    cookie_path: str = "/"
    secure: bool = False
    forwarded: bool = False         # a proxy sets X-Forwarded-For
    hosts: set = field(default_factory=set)         # what the Host header may say
    origins: set = field(default_factory=set)       # and the Origin header
    own_role: str = ""              # a role that the program itself logs in as
    proxy_roles: frozenset = frozenset()            # whom the proxy may name
    proxy_header: str = "X-Remote-User"
    proxy_secret: str = ""          # what the header X-Queue-Web-Secret must say


site = Site()


def log(line):
    """One line.  What visitors have typed is in it by repr() only."""
    print(time.strftime("%F %T"), "queue_web:", *str(line).split(), file=sys.stderr, flush=True)
