"""The servers, faults and rounds of test/ha/run.

	rounds.py DIRECTORY synchronous|asynchronous PLANT ROUNDS FAULT...

Each server has two processes of forward.py: "inside" for what it and etcd and
the other server say to each other, "outside" for its clients.  (What goes
from a leader that is cut off to the other server need not be held up: the other
server is of interest to it only when etcd says that it is the leader.)
"""
import datetime
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request

import psutil
import psycopg2
from patroni.version import __version__ as patroni_version

import oracle

HERE = os.path.dirname(os.path.abspath(__file__))
BINDIR = subprocess.run([os.environ["PG_CONFIG"], "--bindir"], check=True,
                        capture_output=True, text=True).stdout.strip()
WAITING, CLAIMED = 1000, 150    # at least, at each fault; HELD of client.py
PROMOTION = 90          # seconds that a promotion may take,
RETURN = 150            # that the old leader may take to return,
STUCK = 60              # and until all that waited at the fault was handed out

# With etcd's API 3, Patroni before 3.0.3 takes the leader's key back without
# looking whose it is by now.  With API 2 it looks.
API2 = tuple(map(int, patroni_version.split(".")[:3])) < (3, 0, 3)

# The settings of Patroni that doc/howto/patroni.md explains.
DCS = {
    "ttl": 10, "loop_wait": 1, "retry_timeout": 3,
    "primary_start_timeout": 0,
    "postgresql": {
        "use_pg_rewind": True,
        "pg_hba": ["local all all trust",
                   "host all all 127.0.0.1/32 trust",
                   "host replication all 127.0.0.1/32 trust"],
        "parameters": {
            "shared_preload_libraries": "queue",
            "max_worker_processes": 16,
            "wal_sender_timeout": "3s",
            "wal_receiver_timeout": "3s",
            "wal_retrieve_retry_interval": "1s",
            # Of this test only
            "max_connections": 60,
            "log_timezone": "UTC",
            "fsync": "off",     # processes are killed, not machines
            "wal_keep_size": "48MB",    # pg_rewind copies all of it
            "min_wal_size": "32MB",
            "queue.min_claim_ttl": 1,
            "queue.max_claim_limit": 1000,
        },
    },
}

children = []


class Failure(Exception):
    """Something took too long, or a process has ended that should not have."""


FAILURES = Failure, psycopg2.Error, subprocess.SubprocessError


def start(log, *command):
    with open(log, "ab") as out:
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL,
                                 stdout=out, stderr=out)
    children.append(child)
    return child


def wait(what, seconds, condition):
    """Waits until condition() is true, and returns what it is."""
    end = time.time() + seconds
    while True:
        value = condition()
        if value:
            return value
        for child in children:
            if (child.poll() or 0) > 0:
                children.remove(child)      # is reported once
                raise Failure("a process has failed, see its log: %s" %
                              " ".join(child.args))
        if time.time() > end:
            raise Failure("%d seconds were not enough: %s" % (seconds, what))
        time.sleep(0.05)


def free_ports(count, never_given=iter(range(64000 + os.getpid() % 50 * 30,
                                              65536))):
    """Above those that the kernel gives to clients.  A server that is down has
    ports that look free, so that another run begins elsewhere."""
    found = []
    while len(found) < count:
        port = next(never_given)
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
                found.append(port)
            except OSError:
                pass
    return found


class Server:
    patroni = None

    def __init__(self, number, directory, etcd):
        self.name = "s%d" % number
        self.dir = os.path.join(directory, self.name)
        self.data = os.path.join(self.dir, "data")
        self.log = os.path.join(directory, "log", self.name)
        os.mkdir(self.dir)
        (self.pg, self.rest, inside_pg, inside_rest, inside_etcd,
         self.port) = free_ports(6)
        forward = [sys.executable, os.path.join(HERE, "forward.py")]
        self.inside = start(self.log + ".inside", *forward, *map(str, [
            inside_pg, self.pg, inside_rest, self.rest, inside_etcd, etcd]))
        self.outside = start(self.log + ".outside", *forward,
                             str(self.port), str(self.pg))
        self.config = os.path.join(self.dir, "patroni.yml")
        with open(self.config, "w") as file:
            json.dump({         # which is YAML
                "scope": "ha", "name": self.name,
                "restapi": {"listen": "127.0.0.1:%d" % self.rest,
                            "connect_address": "127.0.0.1:%d" % inside_rest},
                "etcd" if API2 else "etcd3": {
                    "hosts": "127.0.0.1:%d" % inside_etcd, "use_proxies": True},
                "bootstrap": {"dcs": DCS, "initdb": [
                    {"encoding": "UTF8"}, {"locale": "C.UTF-8"}, "no-sync"]},
                "postgresql": {
                    "listen": "127.0.0.1:%d" % self.pg,
                    "connect_address": "127.0.0.1:%d" % inside_pg,
                    "data_dir": self.data, "bin_dir": BINDIR,
                    "use_unix_socket": True,
                    "remove_data_directory_on_rewind_failure": True,
                    "remove_data_directory_on_diverged_timelines": True,
                    "authentication": {"superuser": {"username": "postgres"},
                                       "replication": {"username": "postgres"}},
                    "parameters": {"unix_socket_directories": self.dir},
                }}, file, indent=1)

    def start(self):
        self.patroni = start(self.log, sys.executable, "-m", "patroni",
                             self.config)

    def query(self, sql, *args):
        """Rows, past the network; None if the server does not answer."""
        try:
            conn = psycopg2.connect(host=self.dir, port=self.pg,
                                    user="postgres", dbname="postgres",
                                    connect_timeout=2)
        except psycopg2.OperationalError:
            return None
        try:
            conn.autocommit = True
            with conn.cursor() as cur:
                cur.execute(sql, args)
                return cur.fetchall() if cur.description else []
        except psycopg2.OperationalError:
            return None
        finally:
            conn.close()

    def leads(self):
        return self.query("SELECT NOT pg_is_in_recovery()") == [(True,)]

    def promoted(self):
        """When it was asked to be a primary last."""
        with open(self.log, errors="replace") as file:
            lines = [line for line in file if "received promote request" in line]
        return datetime.datetime.fromisoformat(
            lines[-1][:23] + "+00:00").timestamp()

    def processes(self, patroni=True):
        """Patroni and PostgreSQL, with all that they have started."""
        roots = []
        if patroni and self.patroni and self.patroni.poll() is None:
            roots.append(self.patroni.pid)
        try:
            with open(os.path.join(self.data, "postmaster.pid")) as file:
                roots.append(int(file.readline()))
        except (OSError, ValueError):
            pass
        found = {}
        for pid in roots:
            try:
                process = psutil.Process(pid)
                if not (self.patroni and pid == self.patroni.pid or
                        process.name() == "postgres"):
                    continue        # another process has that number now
                for each in [process] + process.children(recursive=True):
                    found[each.pid] = each
            except psutil.NoSuchProcess:
                pass
        return list(found.values())

    def signal(self, number, patroni=True):
        """Those that are started meanwhile get it, too."""
        done = set()
        while new := [process for process in self.processes(patroni)
                      if process.pid not in done]:
            for process in new:
                done.add(process.pid)
                try:
                    process.send_signal(number)
                except psutil.NoSuchProcess:
                    pass

    def kill(self):
        for number in signal.SIGSTOP, signal.SIGKILL:
            self.signal(number)
        if self.patroni:
            self.patroni.wait()

    def end(self):
        """For good, so that PostgreSQL removes its shared memory."""
        if self.patroni:
            self.patroni.kill()
            self.patroni.wait()
        self.signal(signal.SIGCONT)
        lock = os.path.join(self.data, "postmaster.pid")
        for process in self.processes()[:1]:
            process.send_signal(signal.SIGQUIT)
            end = time.time() + 10
            while os.path.exists(lock) and time.time() < end:
                time.sleep(0.05)
        self.kill()


def accepts(port):
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
        return True
    except OSError:
        return False


class Rounds:
    heal = None             # what undoes the fault
    planted = None

    def __init__(self, directory, synchronous):
        self.dir = directory
        self.log = os.path.join(directory, "log")
        self.synchronous = synchronous
        self.clients = {}
        self.rounds = []
        os.makedirs(self.log)
        os.chdir(directory)     # where no queue.so hides Python's queue
        DCS["synchronous_mode"] = synchronous
        client, peer = free_ports(2)
        url = "http://127.0.0.1:%d"
        start(os.path.join(self.log, "etcd"), "etcd",
              *["--enable-v2"] * API2, "--data-dir", os.path.join(directory, "etcd"),
              "--listen-client-urls", url % client,
              "--advertise-client-urls", url % client,
              "--listen-peer-urls", url % peer,
              "--initial-advertise-peer-urls", url % peer,
              "--initial-cluster", "default=" + url % peer)
        wait("etcd", 30, lambda: accepts(client))
        self.servers = [Server(number, directory, client) for number in (1, 2)]
        self.dsn = ("host=127.0.0.1,127.0.0.1 port=%d,%d dbname=postgres"
                    " user=postgres target_session_attrs=read-write"
                    " connect_timeout=2" %
                    tuple(server.port for server in self.servers))

    def other(self, server):
        return self.servers[1 - self.servers.index(server)]

    def leader(self):
        leaders = [server for server in self.servers if server.leads()]
        return leaders[0] if len(leaders) == 1 else None

    def replicated(self):
        """The leader, if the other server follows it."""
        leader = self.leader()
        rows = leader and leader.query(
            "SELECT 1 FROM pg_stat_replication WHERE state = 'streaming'"
            " AND (sync_state = 'sync' OR NOT %s) AND application_name = %s",
            self.synchronous, self.other(leader).name)
        # The one that may be promoted is in etcd, too.
        if not rows or (self.synchronous and
                        "sync_standby" not in self.cluster(leader)):
            return None
        return leader

    def cluster(self, server):
        try:
            with urllib.request.urlopen("http://127.0.0.1:%d/cluster" %
                                        server.rest, timeout=5) as answer:
                return answer.read().decode()
        except OSError:
            return ""

    def begin(self):
        self.servers[0].start()
        leader = wait("the first server", 120, self.leader)
        self.servers[1].start()
        wait("replication", 120, self.replicated)
        leader.query(
            "CREATE EXTENSION queue;"
            "SELECT queue_create('work', '{\"_max_claim_count\": 10000,"
            " \"_keep_finished\": 86400, \"_keep_body\": true}');"
            "SELECT queue_create('wake', '{\"_max_claim_count\": 10000}');"
            "SELECT queue_create('jobs', '{\"_max_claim_count\": 10000,"
            " \"_keep_finished\": 86400, \"_keep_body\": true}');"
            "CREATE TABLE ran (k text, at timestamptz DEFAULT clock_timestamp(),"
            " port int DEFAULT current_setting('port')::int);"
            "CREATE FUNCTION run(body jsonb) RETURNS boolean LANGUAGE sql AS"
            " $$INSERT INTO ran VALUES (body->>'k'); SELECT true$$;"
            "SELECT job_handler('jobs', 'run(jsonb)', 2)")
        for role, count in (("producer", 2), ("worker", 4), ("holder", 1),
                            ("ticker", 1), ("awaiter", 2), ("waiter", 1),
                            ("listener", 1)):
            for number in range(count):
                name = role + str(number)
                log = os.path.join(self.log, name)
                self.clients[name] = start(
                    log + ".error", sys.executable,
                    os.path.join(HERE, "client.py"), role, name, log + ".json",
                    self.dsn)

    def alive(self):
        for name, client in self.clients.items():
            if client.poll() is not None:
                raise Failure("client %s has ended" % name)

    def full(self):
        """(waiting, claimed) before a fault, if they are enough."""
        self.alive()
        leader = self.replicated()
        rows = leader and leader.query(
            "SELECT free, claimed FROM queue_stats('work')")
        if rows and rows[0][0] >= WAITING and rows[0][1] >= CLAIMED:
            return leader
        return None

    def round(self, fault):
        leader = wait("%d messages that wait, %d claimed, a standby" %
                      (WAITING, CLAIMED), RETURN, self.full)
        other = self.other(leader)
        row = {"fault": fault, "old": leader.port, "new": other.port,
               "t0": time.time()}
        newest = leader.query("SELECT newest_id FROM queue_stats('work')")[0][0]
        self.heal = getattr(self, fault)(leader)
        wait("promotion", PROMOTION, other.leads)
        row["promoted"] = other.promoted()
        time.sleep(3)           # how long the fault lasts after that
        self.undo()
        wait("old messages are handed out", STUCK, lambda: self.beyond(newest))
        row["worked_off"] = time.time()
        wait("return of the old leader", RETURN, self.replicated)
        row["returned"] = time.time()
        self.alive()
        self.rounds.append(row)
        print("round %d: %s of %s; promoted after %.1f s, has worked off what"
              " waited after %.1f s, the old leader is back after %.1f s" %
              (len(self.rounds), fault, leader.name,
               *(row[key] - row["t0"]
                 for key in ("promoted", "worked_off", "returned"))), flush=True)

    def undo(self):
        heal, self.heal = self.heal, None
        if heal:
            heal()

    def beyond(self, newest):
        leader = self.leader()
        rows = leader and leader.query(
            "SELECT oldest_id FROM queue_stats('work')")
        return rows and (rows[0][0] is None or rows[0][0] > newest)

    #
    # Faults; each returns what undoes it
    #

    def kill(self, leader):
        leader.kill()
        return leader.start

    def crash(self, leader):
        for number in signal.SIGSTOP, signal.SIGKILL:
            leader.signal(number, patroni=False)
        return lambda: None

    def stop(self, leader):
        leader.signal(signal.SIGSTOP)
        return lambda: leader.signal(signal.SIGCONT)

    def cut(self, leader):
        return self.stopped(leader.inside, leader.outside)

    def split(self, leader):
        return self.stopped(leader.inside)

    def stopped(self, *forwarders):
        for forwarder in forwarders:
            forwarder.send_signal(signal.SIGSTOP)

        def heal():
            for forwarder in forwarders:
                forwarder.send_signal(signal.SIGCONT)
        return heal

    def switchover(self, leader):
        subprocess.run(
            [sys.executable, "-c", "from patroni.ctl import ctl; ctl()",
             "-c", leader.config, "switchover", "ha", "--leader", leader.name,
             "--candidate", self.other(leader).name, "--force"],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, check=True)
        return lambda: None

    def plant(self):
        """A loss and a duplicate that the oracle has to find."""
        leader = wait("a leader", RETURN, self.full)
        id, lost = leader.query(
            "SELECT id, body->>'k' FROM queue_messages('work', NULL, 10000, true)"
            " ORDER BY id DESC LIMIT 1")[0]
        leader.query("SELECT message_delete('work', %s)", id)
        released = 0
        while not released:     # the claim may have been completed meanwhile
            claim, keys = leader.query(
                "SELECT claim_id, array_agg(body->>'k') FROM"
                " queue_messages('work', NULL, 10000, true, true)"
                " WHERE claim_id IS NOT NULL"
                " GROUP BY claim_id ORDER BY count(*) DESC LIMIT 1")[0]
            released = leader.query("SELECT claim_release('work', %s)", claim)[0][0]
        self.planted = {"lost": lost, "claim": claim, "keys": keys}

    #
    # The end
    #

    def stop_clients(self, *roles):
        """Returns whether they all ended as they should."""
        names = [name for name in self.clients if name.startswith(roles)]
        for name in names:
            self.clients[name].terminate()
        good = True
        for name in names:
            if self.clients.pop(name).wait(60):
                print("client %s has failed" % name)
                good = False
        return good

    def drained(self):
        leader = self.leader()
        rows = leader and leader.query(
            "SELECT sum(total) FROM unnest('{work,wake,jobs}'::text[]) q,"
            " queue_stats(q)")
        return rows and rows[0][0] == 0

    def end(self):
        """Has the queues worked off.  Returns whether the clients were well, which
        messages are left in the queues, what the jobs have done, and the history."""
        self.undo()
        good = self.stop_clients("producer", "ticker", "awaiter")
        good = self.stop_clients("holder") and good
        end = time.time() + STUCK
        while not self.drained() and time.time() < end:
            time.sleep(0.2)
        good = self.stop_clients("worker", "waiter", "listener") and good
        leader = wait("a leader", RETURN, self.leader)
        left = leader.query(
            "SELECT body->>'k' FROM unnest('{work,wake,jobs}'::text[]) q,"
            " queue_messages(q, NULL, 10000, true, true, true)")
        ran = leader.query("SELECT k, extract(epoch FROM at)::float8, port FROM ran")
        history = []
        for queue in "work", "jobs":
            rows = [(None,)]
            while rows:
                rows = leader.query(
                    "SELECT id, body->>'k', outcome FROM"
                    " queue_finished(%s, %s, 10000)", queue, rows[-1][0])
                if left is None or ran is None or rows is None:
                    raise Failure("the leader does not answer")
                history += [row[1:] for row in rows]
        return good, {key for key, in left}, ran, history

    def clear(self):
        for server in self.servers:
            server.end()
        for child in children:
            for number in signal.SIGCONT, signal.SIGKILL:
                child.send_signal(number)
            child.wait()


def main(directory, mode, plant, count, *faults):
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    rounds = Rounds(directory, mode == "synchronous")
    good, left, ran, history = True, None, None, None
    try:
        rounds.begin()
        try:
            for number in range(int(count)):
                rounds.round(faults[number % len(faults)])
                if plant == "yes" and number == 0:
                    rounds.plant()
        except FAILURES as failure:
            good = False
            print("round %d: %s" % (len(rounds.rounds) + 1, failure), flush=True)
        well, left, ran, history = rounds.end()
        good = good and well
    except FAILURES as failure:
        good = False
        print(failure, flush=True)
    finally:
        rounds.clear()
    failed = oracle.main(rounds.log, rounds.rounds, left, ran, history, mode,
                         rounds.planted)
    good = good and not failed and (plant != "yes" or rounds.planted)
    print("passed" if good else "FAILED")
    return int(not good)


sys.exit(main(*sys.argv[1:]))
