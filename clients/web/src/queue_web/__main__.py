"""queue_web - a web page for the queues of a database

    queue_web [OPTION...] "host=… dbname=…"
    queue_web --demo

A visitor logs in as a role of the database.  The password goes to PostgreSQL, which
decides what the role may see and do.  It and the sessions are in memory only.
"""
import argparse
import re
import signal
import subprocess
import sys
import threading

import psycopg
from psycopg.conninfo import conninfo_to_dict

from .database import Login
from .demo import demo
from .reader import keep_history
from .server import make_server
from .settings import site


def options():
    parser = argparse.ArgumentParser(
        prog="queue_web", description="A web page for the queues of a database.")
    parser.add_argument("dsn", nargs="?", help='the database, as "host=… dbname=…"')
    parser.add_argument("--listen", default="127.0.0.1:8432", metavar="ADDRESS:PORT",
                        help="or unix:PATH, a socket for a proxy")
    parser.add_argument("--origin", metavar="URL",
                        help="what browsers call it, as https://queues.example.org")
    parser.add_argument("--prefix", default="", metavar="/PATH",
                        help="the path that it is mounted under")
    parser.add_argument("--forwarded", action="store_true", help="behind a proxy that sets "
                        "X-Forwarded-For, whose last address is the visitor's")
    parser.add_argument("--role", default="", help="a role that queue_web itself logs in as: it "
                        "keeps the numbers for the plots, and becomes the roles of --proxy-login")
    parser.add_argument("--proxy-login", default="", metavar="ROLE,...", help="the proxy says who "
                        "the visitor is, one of these roles, in the header X-Remote-User")
    parser.add_argument("--proxy-header", default="X-Remote-User", metavar="NAME",
                        help="another header")
    parser.add_argument("--proxy-secret", metavar="FILE", help="a file with what the proxy sends "
                        "in the header X-Queue-Web-Secret; not needed with --listen unix:PATH")
    parser.add_argument("--demo", action="store_true", help="a private server with a little load")
    return parser, parser.parse_args()


def fill(parser, given):
    """Checks the options, and fills in what the program goes by."""
    address, _, port = given.listen.rpartition(":")
    unix = given.listen.startswith("unix:")
    if unix:
        address, port = given.listen, "0"
    if not port.isdigit() or address in ("", "0.0.0.0") and not given.origin:
        parser.error("--listen needs an address and a port; for all addresses, --origin, too")
    if unix and not given.origin:
        parser.error("--listen unix:PATH needs --origin")
    if given.prefix and not re.fullmatch(r"(/[\w.~-]+)+", given.prefix):
        parser.error("--prefix is a path, as /queues, without a / at its end")
    site.prefix, site.forwarded, site.own_role = given.prefix, given.forwarded, given.role
    if given.proxy_login:
        if not given.role:
            parser.error("--proxy-login needs --role")
        if not unix and not given.proxy_secret:
            parser.error("--proxy-login needs --listen unix:PATH or --proxy-secret: otherwise "
                         "everyone could say who they are")
        site.proxy_roles = frozenset(given.proxy_login.split(","))
        site.proxy_header = given.proxy_header
    if given.proxy_secret:
        with open(given.proxy_secret, encoding="utf8") as file:
            site.proxy_secret = file.read().strip()
        if len(site.proxy_secret) < 16:
            parser.error("the secret of the proxy has at least 16 characters")
    return address, int(port)


def main():
    parser, given = options()
    for signum in signal.SIGTERM, signal.SIGHUP, signal.SIGINT:
        signal.signal(signum, lambda *_: sys.exit(0))
    try:
        address, port = fill(parser, given)
        if given.demo:
            return demo(address, port)
        if not given.dsn or {"user", "password"} & set(conninfo_to_dict(given.dsn)):
            parser.error("name the database, but neither role nor password: visitors do that, "
                         "and --role")
        server = make_server(given.dsn, address, port, given.origin)
        if given.role:
            threading.Thread(target=keep_history, args=[Login(given.role)], daemon=True).start()
        return server.serve_forever()
    except subprocess.CalledProcessError as error:
        return f"queue_web: {error.cmd[0]} failed"
    except (OSError, psycopg.Error) as error:
        return f"queue_web: {error}"


if __name__ == "__main__":
    sys.exit(main())
