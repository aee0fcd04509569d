"""A private server with a little load (demo.sql), gone when the program ends."""
import os
import secrets
import subprocess
import sys
import tempfile
import threading

import psycopg

from .server import make_server
from .settings import log, site


def load(password, stopped):
    """Calls demo_tick() every second."""
    while not stopped.wait(1):
        try:
            with psycopg.connect(site.dsn, user="demo", password=password,
                                 autocommit=True) as db:
                while not stopped.wait(1):
                    db.execute("SELECT demo_tick()")
        except psycopg.Error as error:
            if not stopped.is_set():
                log(f"the load has lost its connection: {error}")


def start(where, password, bin_):
    """A server in this directory, which only a password opens."""
    with open(f"{where}/password", "w", encoding="ascii") as file:
        file.write(password)
    subprocess.run([f"{bin_}/initdb", "-D", f"{where}/data", "-U", "postgres", "-N", "-A",
                    "scram-sha-256", "--pwfile", f"{where}/password", "-E", "UTF8",
                    "--locale=C.UTF-8"], check=True, stdout=subprocess.DEVNULL)
    subprocess.run([f"{bin_}/pg_ctl", "start", "-s", "-w", "-D", f"{where}/data", "-o",
                    f"-c listen_addresses= -c unix_socket_directories={where} "
                    "-c port=5432 -c fsync=off -c log_min_messages=fatal "
                    "-c shared_preload_libraries=queue"], check=True, stdout=sys.stderr)


def fill(where, roles):
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "demo.sql"),
              encoding="utf8") as file, \
            psycopg.connect(site.dsn, user="postgres", password=roles["postgres"]) as db:
        db.execute(file.read())
        for role in ("demo", "guest"):
            db.execute(f"ALTER ROLE {role} PASSWORD '{roles[role]}'")
            log(f"log in as {role}, password {roles[role]}")
    log(f"its database: psql -h {where} -U demo postgres")


def demo(address, port):
    if os.geteuid() == 0:
        sys.exit("queue_web: PostgreSQL does not run as root: use another user")
    roles = {role: secrets.token_urlsafe(9) for role in ("postgres", "demo", "guest")}
    bin_ = subprocess.check_output([os.environ.get("PG_CONFIG", "pg_config"), "--bindir"],
                                   text=True).strip()
    stopped = threading.Event()
    with tempfile.TemporaryDirectory(prefix="queue_web.", dir="/tmp",
                                     ignore_cleanup_errors=True) as where:
        try:
            start(where, roles["postgres"], bin_)
            server = make_server(f"host={where} port=5432 dbname=postgres", address, port)
            fill(where, roles)
            threading.Thread(target=load, args=[roles["demo"], stopped], daemon=True).start()
            server.serve_forever()
        finally:
            stopped.set()
            subprocess.run([f"{bin_}/pg_ctl", "stop", "-s", "-m", "immediate", "-D",
                            f"{where}/data"], stderr=subprocess.DEVNULL, check=False)
