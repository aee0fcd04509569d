#!/usr/bin/python3
"""Tests of queue_web.  Prints "ok" or "not ok", a name and details.

    test_queue_web.py DATA-DIRECTORY [browser | long]

With "browser", looks only at its pages in Chromium; without, at all but these.

PGHOST and PGPORT name a private server with the extension, whose pg_hba.conf this
changes, and which it restarts.  Beside it runs the program as its users start it, and
a second one in this process, with shorter times.
"""
import contextlib
import getpass
import glob
import http.client
import http.server
import importlib.machinery
import importlib.util
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from urllib.parse import urlencode

import psycopg

HERE = os.path.dirname(os.path.abspath(__file__))
DATA, LONG, BROWSER = sys.argv[1], "long" in sys.argv[2:], "browser" in sys.argv[2:]
SERVER = f"host={os.environ['PGHOST']} port={os.environ.get('PGPORT', '5432')} dbname=postgres"
ADMIN = os.environ.get("PGUSER") or getpass.getuser()
HTML = """<script>alert(1)</script><img src=x onerror="alert('2')">&amp;"""
PASSWORD = "pass word'%<&"
TIMEOUT = 180                           # seconds; nothing takes as long
QUEUES = 10000


def report(good, name, detail=""):
    print("ok" if good else "not ok", name, "" if good else " ".join(str(detail).split())[-2000:],
          sep="\t", flush=True)


def equal(got, wanted, name):
    report(got == wanted, name, f"{got!r}, not {wanted!r}" if got != wanted else "")


def has(text, wanted, name):
    report(wanted in text, name, f"no {wanted!r} in {text!r}" if wanted not in text else "")


def logs(program, wanted, name):
    until = time.monotonic() + TIMEOUT
    while wanted not in program.log() and time.monotonic() < until:
        time.sleep(0.1)
    has(program.log(), wanted, name)


def becomes(function, name):
    until = time.monotonic() + TIMEOUT
    while not function() and time.monotonic() < until:
        time.sleep(0.1)
    report(function(), name)


def comes(browser, path, text, name):
    """The page has the text, at the latest when it shows nothing that was read before."""
    until = time.monotonic() + TIMEOUT
    browser.get(path)
    while text not in browser.text and time.monotonic() < until:
        time.sleep(0.1)
        browser.get(path)
    has(browser.text, text, name)


def sql(statement, *values, dbname="postgres"):
    with psycopg.connect(SERVER, user=ADMIN, autocommit=True, dbname=dbname) as db:
        cursor = db.execute(statement, values or None)
        while cursor.nextset():         # the last one
            pass
        return cursor.fetchone()[0] if cursor.description and cursor.rowcount else None


#
# The database
#

def setup():
    sql(f"""
    CREATE ROLE boss LOGIN PASSWORD $q${PASSWORD}$q$ IN ROLE queue_admin;
    CREATE ROLE owner LOGIN PASSWORD 'owner' IN ROLE queue_producer, queue_consumer, queue_monitor;
    CREATE ROLE watcher LOGIN PASSWORD 'watcher' IN ROLE queue_monitor;
    CREATE ROLE eater LOGIN PASSWORD 'eater' IN ROLE queue_consumer;
    CREATE ROLE open LOGIN PASSWORD 'open' IN ROLE queue_admin;
    CREATE ROLE stranger LOGIN PASSWORD 'stranger';
    GRANT CREATE ON SCHEMA public TO owner""")
    sql("CREATE DATABASE empty")
    sql("""SELECT count(queue_create('q' || lpad(i::text, 5, '0')))
        FROM generate_series(1, %s) AS i""", QUEUES)
    sql("""SELECT count(queue_push('q' || lpad(i::text, 5, '0'), to_jsonb(i)))
        FROM generate_series(1, 100) AS i""")
    sql("""
    SET ROLE owner;
    SELECT queue_create('html', '{"_max_claim_count": 2, "note": "<b>x</b>"}');
    SELECT queue_create('work'), queue_create('plain'), queue_create('narrow');
    SELECT queue_grant('narrow', 'owner', 'claim')""")
    sql("""SET ROLE owner;
        SELECT queue_push('narrow', '"hidden-body"', group_key => 'hidden-group')""")
    for i in range(60):
        sql("SELECT queue_push('html', jsonb_build_object('text', %s::text, 'i', %s::int), "
            "group_key => %s || %s::int %% 30, headers => to_jsonb(%s::text))",
            HTML + "x" * 100, i, HTML, i, HTML)
    sql("""DO $$ DECLARE m queue_message; BEGIN
        FOR m IN SELECT * FROM queue_claim('html', 60, 60, 6) LOOP
            IF m.body->>'i' IN ('0', '1', '2') THEN
                PERFORM message_bury('html', m.id, m.claim_id,
                                     '<h1>buried</h1>' || (m.body->>'text'));
            ELSE
                PERFORM message_retry('html', m.id, m.claim_id, '<h1>retried</h1>', 3600);
            END IF;
        END LOOP; END $$""")
    sql("""CREATE FUNCTION slow(body jsonb) RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN
        PERFORM job_progress(3, 40, '<i>note</i>'), pg_sleep(600); RETURN true; END $$;
        ALTER FUNCTION slow OWNER TO owner""")
    sql("SET ROLE owner; SELECT job_handler('work', 'slow(jsonb)')")
    sql("SET ROLE owner; SELECT queue_push('work', '1')")
    sql(f"""SET ROLE owner; SELECT set_config('queue.project', $q${HTML}$q$, false);
        SELECT queue_push('project-queue', '1')""")
    sql(f"SET ROLE owner; SELECT batch_create($q${HTML}$q$, keep_open => true)")
    sql("SET ROLE owner; SELECT queue_push('plain', '1', batch => batch) FROM batch_list()")
    with open(os.path.join(HERE, "../../test/planted.sql"), encoding="ascii") as file:
        sql(file.read())                # functions that queue_web must not call
    with open(os.path.join(DATA, "pg_hba.conf"), "w", encoding="ascii") as file:
        file.write(f"local all {ADMIN},open trust\nlocal all all scram-sha-256\n")
    sql("SELECT pg_reload_conf()")


#
# The program
#

class Program:
    """queue_web, as its users start it."""

    def __init__(self, directory, *arguments):
        self.file = os.path.join(directory, "log")
        with open(self.file, "a", encoding="utf8") as log:
            self.process = subprocess.Popen(
                [sys.executable, os.path.join(HERE, "queue_web"), *arguments], stderr=log,
                stdout=log)
        until = time.monotonic() + TIMEOUT
        while not (found := re.search(r"listening on http://localhost:(\d+)", self.log())):
            if self.process.poll() is not None or time.monotonic() > until:
                raise SystemExit(f"queue_web did not start: {self.log()}")
            time.sleep(0.05)
        self.port = int(found[1])

    def log(self):
        with open(self.file, encoding="utf8") as log:
            return log.read()

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(TIMEOUT)


class Visitor:
    """A browser that does what it is told."""

    def __init__(self, port, address="127.0.0.1"):
        self.host, self.cookies, self.status, self.text = f"127.0.0.1:{port}", {}, None, ""
        self.headers, self.address = {}, address

    def ask(self, method, path, form=None, follow=True, **headers):
        sent = {"Cookie": "; ".join(f"{k}={v}" for k, v in self.cookies.items())}
        if method == "POST":
            sent |= {"Origin": f"http://{self.host}",
                     "Content-Type": "application/x-www-form-urlencoded"}
        sent |= {k.replace("_", "-"): v for k, v in headers.items()}
        connection = http.client.HTTPConnection(self.host, timeout=TIMEOUT,
                                                source_address=(self.address, 0))
        connection.request(method, path, urlencode(form) if form is not None else None,
                           {k: v for k, v in sent.items() if v is not None})
        answer = connection.getresponse()
        self.text, self.status = answer.read().decode(), answer.status
        self.headers = {k.lower(): v for k, v in answer.getheaders()}
        for key, value in answer.getheaders():
            if key.lower() == "set-cookie":
                name, _, rest = value.partition("=")
                self.cookies[name] = rest.split(";")[0]
        connection.close()
        if self.status == 303 and follow:
            return self.get(self.headers["location"])
        return self.text

    def get(self, path, **values):
        return self.ask("GET", path + ("?" + urlencode(values) if values else ""))

    def token(self):
        return re.search(r'name="token" value="(\w+)"', self.text)[1]

    def login(self, user, password, wanted="/"):
        self.get("/")
        return self.ask("POST", "/login", {"token": self.token(), "user": user,
                                           "password": password, "wanted": wanted})

    def do(self, action, **values):
        """Answers "Yes" to the question."""
        self.get("/ask", action=action, **values)
        form = dict(re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)"', self.text))
        return self.ask("POST", "/do", form)


def load():
    """The program as a module."""
    loader = importlib.machinery.SourceFileLoader("queue_web", os.path.join(HERE, "queue_web"))
    sys.dont_write_bytecode = True
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("queue_web", loader))
    loader.exec_module(module)
    return module


#
# Without a browser
#

def test_login(program):
    visitor = Visitor(program.port)
    visitor.get("/")
    equal(visitor.status, 200, "there is a login form")
    has(visitor.headers["content-security-policy"], "default-src 'none'; style-src 'self'; ",
        "no script may run")
    has(visitor.headers["content-security-policy"], "frame-ancestors 'none'", "nor a frame show it")
    equal([visitor.headers[k] for k in ("x-frame-options", "x-content-type-options",
                                        "cache-control", "referrer-policy")],
          ["DENY", "nosniff", "no-store", "same-origin"], "other headers")
    has(visitor.headers["set-cookie"], "; HttpOnly; Path=/; SameSite=strict", "the cookie's flags")
    before = dict(visitor.cookies)
    visitor.login("boss", "wrong-Password")
    equal(visitor.status, 403, "a wrong password")
    has(visitor.text, "password authentication failed", "is called that")
    visitor.login("boss", "")
    equal(visitor.status, 403, "an empty password")
    visitor.login("open", "open")
    has(visitor.text, "has not asked for the password",
        "a role that PostgreSQL trusts without a password is refused")
    visitor.login("stranger", "stranger")
    equal(visitor.status, 200, "a role without privileges logs in")
    has(visitor.text, "permission denied for ", "and sees what PostgreSQL says")
    visitor.login("boss", PASSWORD, "//example.org/?")
    equal(visitor.status, 200, "the right password, and no redirection elsewhere")
    has(visitor.text, "10,006 queues", "leads to the queues")
    report(not set(before.values()) & set(visitor.cookies.values()), "the session has a new cookie")
    logs(program, "login of role 'boss' from 127.0.0.1 failed: ", "the failure is logged")
    for _ in range(7):
        visitor.login("guessed", "x")
    equal(visitor.status, 429, "too many failed logins of a role")
    visitor = Visitor(program.port)
    visitor.login("boss", PASSWORD)
    equal(visitor.status, 200, "do not stop another role")
    return visitor


def test_strangers(module, port):
    """What a stranger does who wants to keep others out"""
    stranger = Visitor(port, "127.0.0.2")
    original, module.LOGINS = module.LOGINS, (5, 3)
    for i in range(4):
        stranger.login(f"guess{i}", "x")
    equal(stranger.status, 429, "too many failed logins from an address")
    visitor = Visitor(port)
    visitor.login("boss", PASSWORD)
    equal(visitor.status, 200, "do not stop another address")
    module.LOGINS = original

    # Connections that send nothing, or less than they promise
    with contextlib.ExitStack() as stack:
        for i in range(2 * module.THREADS):
            idle = stack.enter_context(socket.create_connection(("127.0.0.1", port), TIMEOUT))
            if i % 2:
                idle.sendall(b"POST /login HTTP/1.1\r\nHost: 127.0.0.1:%d\r\n"
                             b"Origin: http://127.0.0.1:%d\r\nContent-Length: 9\r\n"
                             b"Content-Type: application/x-www-form-urlencoded\r\n\r\n"
                             % (port, port))
        visitor = Visitor(port)
        try:
            visitor.get("/style.css")
        except OSError as error:
            visitor.status = error
    equal(visitor.status, 200, "idle connections keep nobody out")

    environ = {"REMOTE_ADDR": "127.0.0.1", "HTTP_X_FORWARDED_FOR": "192.0.2.1, 192.0.2.2"}
    equal(module.visitor_address(environ), "127.0.0.1", "the address of a visitor")
    module.forwarded = True
    equal(module.visitor_address(environ), "192.0.2.2", "and behind a proxy, with --forwarded")
    module.forwarded = False


def test_forged(program, visitor):
    form = {"action": "purge", "q": "q00001", "id": "", "project": ""}
    visitor.get("/ask", action="purge", q="q00001")
    token = visitor.token()
    other = Visitor(program.port)
    other.login("owner", "owner")
    other.get("/ask", action="purge", q="q00001")
    for name, headers, values in (
            ("a form without a token", {}, {}),
            ("a form with the token of another session", {}, {"token": other.token()}),
            ("a form with a wrong token", {}, {"token": "0" * 64}),
            ("a form from another site", {"Origin": "http://example.org"}, {"token": token}),
            ("a form from another port", {"Origin": "http://127.0.0.1:1"}, {"token": token}),
            ("a form of a page without an origin", {"Origin": "null"}, {"token": token}),
            ("a form without an Origin", {"Origin": None}, {"token": token}),
            ("a foreign Host header", {"Host": "example.org"}, {"token": token}),
            ("a foreign Host header with our port", {"Host": f"example.org:{program.port}"},
             {"token": token})):
        visitor.ask("POST", "/do", form | values, **headers)
        equal(visitor.status, 403, name)
    visitor.ask("GET", "/", Host=f"rebound.example.org:{program.port}")
    equal((visitor.status, "q00001" in visitor.text), (403, False), "a foreign Host sees nothing")
    visitor.ask("GET", "/do?" + urlencode(form | {"token": token}))
    equal(visitor.status, 405, "no change by a link")
    visitor.ask("PUT", "/do", form | {"token": token})
    equal(visitor.status, 403, "nor by another method")
    for headers in ({"Content_Type": "multipart/form-data; boundary=x"},
                    {"Transfer_Encoding": "chunked"}, {"Content_Length": "9999999"},
                    {"Content_Length": "-1"}):
        for method in ("POST", "GET"):
            if method == "POST" or "Content_Type" not in headers:
                visitor.ask(method, "/do", form | {"token": token}, **headers)
                equal(visitor.status, 403, f"nor by {method} with {headers}")
    visitor.ask("POST", "/do", form | {"token": token}, Cookie=None)
    equal(visitor.status, 403, "nor without the session")
    equal(sql("SELECT total FROM queue_stats('q00001')"), 1, "none of these has purged")
    logs(program, "refused a foreign Host header, from 127.0.0.1", "and the log says so")
    visitor.ask("GET", "/", X_Forwarded_Host="example.org")
    equal(visitor.status, 200, "a proxy's headers change nothing")
    visitor.ask("POST", "/do", form | {"token": token, "action": "pause"}, follow=False,
                X_Forwarded_Host="example.org")
    equal(visitor.headers.get("location"), "/queue?q=q00001", "not even redirections")
    equal(sql("SELECT queue_resume('q00001')"), True, "the same form with its token works")


def test_rights(program):
    watcher, eater, owner = (Visitor(program.port) for _ in range(3))
    watcher.login("watcher", "watcher")
    has(watcher.text, "10,006 queues", "queue_monitor sees all queues")
    watcher.get("/queue", q="html")
    has(watcher.text, "permission denied for function queue_get", "but no messages")
    report("buried" not in watcher.text and "onerror" not in watcher.text, "none at all")
    report("Purge…" not in watcher.text, "and is offered nothing")
    watcher.get("/jobs")
    has(watcher.text, "<td role=\"cell\" data-label=\"Queue name\">work</td>", "it sees what runs")
    watcher.do("purge", q="html")
    has(watcher.text, "not done: permission denied for function queue_purge", "it cannot purge")
    eater.login("eater", "eater")
    has(eater.text, "This role cannot read queue_status", "queue_consumer sees queues")
    eater.get("/", find="tml")
    has(eater.text, "/queue?q=html", "finds some of them")
    eater.get("/queue", q="html")
    has(eater.text, "&lt;script&gt;alert(1)", "and messages")
    report("Purge…" not in eater.text and "Pause…" not in eater.text, "but is offered no purge")
    eater.get("/queue", q="narrow")
    has(eater.text, "permission denied for queue", "not those of a narrowed queue")
    report("hidden-" not in eater.text, "nothing of them")
    for action in ("purge", "pause"):
        eater.do(action, q="html")
        has(eater.text, "not done: permission denied for queue", f"it cannot {action}")
    eater.do("cancel_batch", id=sql("SET ROLE owner; SELECT batch FROM batch_list()"))
    has(eater.text, "not done: permission denied for batch", "nor cancel a batch of others")
    equal(sql("SELECT paused FROM queue_get('html')"), False, "all is as it was")
    report(sql("SELECT total FROM queue_stats('html')") > 0, "with its messages")
    watcher.get("/queue", q="narrow")
    report("hidden-" not in watcher.text, "what one role sees is not kept for another")
    owner.login("owner", "owner")
    owner.get("/queue", q="narrow")
    has(owner.text, "hidden-body", "its owner sees them")
    owner.get("/", project=HTML)
    has(owner.text, "/queue?project=%3Cscript", "a project whose name is HTML")
    has(owner.text, "q=project-queue", "has a queue")
    owner.get("/jobs")
    has(owner.text, "3 of 40 &lt;i&gt;note&lt;/i&gt;", "the progress of a job")
    return owner


def test_actions(boss, owner):
    boss.get("/queue", q="q00002")
    has(boss.text, "Pause…", "queue_admin is offered a pause")
    boss.do("pause", q="q00002")
    has(boss.text, "Queue q00002 is paused.", "which works")
    equal(sql("SELECT paused FROM queue_get('q00002')"), True, "in the database, too")
    has(boss.text, "Resume…", "now it can be resumed")
    boss.do("resume", q="q00002")
    equal(sql("SELECT paused FROM queue_get('q00002')"), False, "and is")
    number = sql("SELECT id FROM queue_messages('q00002', echo => true)")
    boss.get("/message", q="q00002", id=number)
    has(boss.text, "Cancel…", "a message can be canceled")
    boss.do("cancel", q="q00002", id=number)
    has(boss.text, f"Message {number} of queue q00002: canceled.", "and is")
    boss.get("/message", q="q00002", id=number)
    has(boss.text, "There is no such message any more", "it is gone")
    boss.get("/queue", q="html", tab="dead")
    has(boss.text, "&lt;h1&gt;buried&lt;/h1&gt;", "dead letters with their errors")
    has(boss.text, "q=html.dead", "can be redriven")
    dead = sql("SELECT total FROM queue_stats('html.dead')")
    boss.do("redrive", q="html.dead")
    has(boss.text, f"{dead} dead letters of queue html.dead were redriven", "and are")
    boss.get("/queue", q="html", tab="errors")
    has(boss.text, "&lt;h1&gt;retried&lt;/h1&gt;", "errors with their texts")
    boss.do("purge", q="q00003")
    has(boss.text, "Queue q00003 is purged: 1 messages were removed.", "a purge")
    boss.get("/queue", q="html", tab="groups")
    has(boss.text, "&lt;img src=x", "groups")
    has(boss.text, "Next page", "and more of them")
    ids = []
    page = "/queue?q=html&tab=messages"
    while page:
        boss.get(page)
        ids += re.findall(r"/message\?q=html&amp;id=(\d+)", boss.text)
        found = re.search(r'<a href="([^"]*)">Next page', boss.text)
        page = found and found[1].replace("&amp;", "&")
    equal(len(set(ids)), sql("SELECT total FROM queue_stats('html')"), "pages have all messages")
    equal(len(set(ids)), len(ids), "once each")
    owner.get("/batches")
    has(owner.text, "&lt;script&gt;alert(1)", "batches")
    owner.do("cancel_batch", id=sql("SET ROLE owner; SELECT batch FROM batch_list()"))
    has(owner.text, "1 members were canceled", "one is canceled")
    for path, status in (("/queue?q=nope", 404), ("/queue?q=%3Cb%3E", 200),
                         ("/message?q=a&id=x", 404), ("/?after=99999999", 200), ("/?project=" + "x" * 300, 404),
                         ("/?find=%00%ff%5B(", 200), ("/nope", 404), ("/ask?action=drop&q=x", 404),
                         ("/queue?q=html&after=999999999999999999&tab=groups", 200),
                         ("/?path=1&self=2&every=5&auto=1", 200)):
        boss.get(path)
        equal(boss.status, status, f"{path[:40]}: {status}")
        report("<b>" not in boss.text, "without HTML of it")


def restart(*options):
    subprocess.run(["pg_ctl", "-s", "-w", "-D", DATA, *options], check=True,
                   stdout=subprocess.DEVNULL)


def test_lost(program, boss, owner):
    def gone(user):
        return sql(f"SELECT count(pg_terminate_backend(pid, {TIMEOUT * 1000})) FROM pg_stat_activity "
                   "WHERE application_name = 'queue_web' AND usename = %s", user)

    # That of the program in this process ends when it has been idle.
    becomes(lambda: sql("SELECT count(*) = 1 FROM pg_stat_activity "
                        "WHERE application_name = 'queue_web' AND usename = 'boss'"),
            "one connection for a role")
    gone("boss")
    time.sleep(1.1)                     # so that nothing is read from memory
    boss.get("/jobs")
    equal(boss.status, 200, "pg_terminate_backend: the next page is there")
    logs(program, "role 'boss': connection lost: consuming input failed: terminating connection "
         "due to administrator command", "a line in the log")
    logs(program, "role 'boss': connected again", "and another one")

    sql("ALTER ROLE boss CONNECTION LIMIT 0")
    gone("boss")
    comes(boss, "/jobs", "too many connections for role",
          "connections are used up: the page says so")
    logs(program, "role 'boss': connection lost: connection failed: FATAL: too many connections",
         "and so does the log")
    sql("ALTER ROLE boss CONNECTION LIMIT -1")
    time.sleep(1.1)
    boss.get("/jobs")
    equal(boss.status, 200, "later it goes on")

    # A new connection needs the password again.
    sql("ALTER ROLE owner PASSWORD 'changed'")
    gone("owner")
    comes(owner, "/jobs", "Your session has ended. PostgreSQL refuses the role: ",
          "the password was changed: the session ends")
    logs(program, "role 'owner': PostgreSQL refuses the role: ", "a line in the log")
    owner.get("/")
    has(owner.text, "Log in", "and has ended")
    owner.login("owner", "owner")
    equal(owner.status, 403, "the old password is refused")
    owner.login("owner", "changed")
    equal(owner.status, 200, "the new one is not")
    sql("ALTER ROLE owner PASSWORD 'owner'")
    owner.do("pause", q="plain")
    has(owner.text, "Your session has ended", "before a change the password is checked again")
    equal(sql("SELECT paused FROM queue_get('plain')"), False, "which does not happen")

    restart("stop", "-m", "fast")
    boss.get("/batches")
    equal(boss.status, 503, "PostgreSQL is stopped: the page says so")
    has(boss.text, "PostgreSQL does not answer", "in words")
    boss.do("pause", q="plain")
    equal(boss.status, 503, "no change, either")
    boss.login("boss", PASSWORD)
    equal(boss.status, 403, "no login")
    restart("start", "-l", os.path.join(DATA, "..", "restarted.log"))
    before = program.log().count("connected again")
    boss.login("boss", PASSWORD)
    becomes(lambda: boss.get("/batches") and boss.status == 200,
            "PostgreSQL is back: so is the page")
    becomes(lambda: program.log().count("connected again") > before, "the log says so")


def test_reads(module, port, seconds):
    """Many viewers at once, of one role."""
    rounds, keys = [], []
    original = module.Reader.round

    def counted(reader, wanted):
        if wanted:
            rounds.append(time.monotonic())
            keys.append(len(wanted))
        return original(reader, wanted)

    module.Reader.round = counted
    viewers = [Visitor(port) for _ in range(20)]
    for viewer in viewers:
        viewer.login("boss", PASSWORD)
    equal(sql("SELECT count(*) FROM pg_stat_activity WHERE application_name = 'queue_web' "
              "AND usename = 'boss' AND datname = 'postgres'"), 2,
          "twenty sessions of a role have one connection in each program")
    until, pages = time.monotonic() + seconds, []

    def view(viewer, n):
        while time.monotonic() < until:
            viewer.get("/" if n % 2 else "/queue", **({} if n % 2 else {"q": f"q{n + 1:05d}"}))
            pages.append(viewer.status)
            time.sleep(0.05)

    threads = [threading.Thread(target=view, args=pair)
               for pair in zip(viewers, range(len(viewers)))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    module.Reader.round = original
    equal(set(pages), {200}, "twenty viewers see their pages")
    gaps = [b - a for a, b in zip(rounds, rounds[1:])]
    report(gaps and min(gaps) >= module.ROUND * 0.99, "rounds of reads are a second apart",
           f"{min(gaps or [0])}")
    report(max(keys) <= 11, "and read what twenty viewers want once", max(keys))


def cpu_of(pid):
    with open(f"/proc/{pid}/stat", encoding="ascii") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure(program, seconds=20):
    """What viewers cost, with 10,000 queues: each loads the page of queues every second."""
    viewers = [Visitor(program.port) for _ in range(20)]
    for viewer in viewers:
        viewer.login("owner", "owner")
    pids = program.process.pid, sql("SELECT pid FROM pg_stat_activity WHERE application_name = "
                                    "'queue_web' AND usename = 'owner'")
    found = {}

    def view(viewer, until, times):
        while time.monotonic() < until:
            begin = time.monotonic()
            viewer.get("/")
            times.append(time.monotonic() - begin)
            time.sleep(max(0, 1 - (time.monotonic() - begin)))

    for number in (0, 1, 20) * 3:
        times, until = [], time.monotonic() + seconds
        before = [cpu_of(pid) for pid in pids]
        threads = [threading.Thread(target=view, args=(viewer, until, times))
                   for viewer in viewers[:number]]
        for thread in threads:
            thread.start()
        time.sleep(seconds)
        for thread in threads:
            thread.join()
        found.setdefault(number, []).append(
            [100 * (cpu_of(pid) - b) / seconds for pid, b in zip(pids, before)]
            + ([1000 * sorted(times)[len(times) // 2], 1000 * max(times)] if times else []))
    for number, rounds in found.items():
        print(f"# {number} viewers:", "; ".join(
            f"{name} {sorted(values)[1]:.1f} ({min(values):.1f} to {max(values):.1f})"
            for name, values in zip(("CPU % of queue_web", "of the backend", "page, ms: median",
                                     "page, ms: most"), zip(*rounds))), flush=True)


def test_idle(module, port):
    visitor = Visitor(port)
    visitor.login("eater", "eater")
    visitor.get("/jobs")
    pid = sql("SELECT pid FROM pg_stat_activity WHERE usename = 'eater' "
              "AND application_name = 'queue_web' ORDER BY backend_start DESC LIMIT 1")
    module.IDLE = 3
    until = time.monotonic() + TIMEOUT
    while "Log out" in visitor.text and time.monotonic() < until:
        visitor.get("/", auto=1)
        time.sleep(0.2)
    report("Log out" not in visitor.text, "a page that refreshes itself does not keep a session")
    becomes(lambda: not sql("SELECT count(*) FROM pg_stat_activity WHERE pid = %s", pid),
            "its connection is closed")
    module.IDLE = 1800
    original, module.SESSIONS = module.SESSIONS, 3
    visitors = [Visitor(port) for _ in range(5)]
    for visitor in visitors:
        visitor.login("eater", "eater")
    equal(["Log out" in visitor.get("/ask?action=pause&q=x") for visitor in visitors],
          [False, False, True, True, True], "a role has so many sessions, the latest ones")
    module.SESSIONS = original


def test_elsewhere(directory):
    for arguments, wanted in (
            ([SERVER + " user=boss"], "neither role nor password"),
            ([SERVER + " password=x"], "neither role nor password"),
            ([], "name the database"), (["--listen", "0.0.0.0:1", SERVER], "--origin"),
            (["host=", "extra", "x"], "unrecognized arguments"), (["nonsense"], "nonsense")):
        done = subprocess.run([sys.executable, os.path.join(HERE, "queue_web"), *arguments],
                              capture_output=True, text=True, timeout=TIMEOUT, check=False)
        report(done.returncode and wanted in done.stderr and "Traceback" not in done.stderr,
               f"refused: {' '.join(arguments)[-30:]}", done.stderr)
    os.mkdir(os.path.join(directory, "empty"))
    program = Program(os.path.join(directory, "empty"), "--listen", "127.0.0.1:0",
                      SERVER.replace("dbname=postgres", "dbname=empty"))
    visitor = Visitor(program.port)
    visitor.login("boss", PASSWORD)
    has(visitor.text, "no extension &quot;queue&quot;", "a database without the extension")
    program.stop()


def test_secrets(program, visitors):
    log = program.log()
    words = [PASSWORD, "wrong-Password", *(v for visitor in visitors
                                           for v in visitor.cookies.values())]
    equal([w for w in words if w in log], [], "no password and no cookie is in the log")
    report("Traceback" not in log, "and no traceback", log)
    files = [os.readlink(f"/proc/{program.process.pid}/fd/{fd}")
             for fd in os.listdir(f"/proc/{program.process.pid}/fd")]
    equal([f for f in files if f.startswith("/") and f not in (program.file, "/dev/null")], [],
          "it has no file open but its log")


#
# In a browser
#

class Browser:
    def __init__(self, directory):
        from selenium import webdriver
        from selenium.webdriver.chrome.service import Service

        options = webdriver.ChromeOptions()
        for argument in ("--headless=new", "--no-sandbox", "--disable-gpu",
                         "--disable-dev-shm-usage", "--hide-scrollbars",
                         f"--user-data-dir={directory}/profile",
                         "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"):
            options.add_argument(argument)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        self.driver = webdriver.Chrome(service=Service("/usr/bin/chromedriver"), options=options)
        self.driver.set_page_load_timeout(TIMEOUT)

    def size(self, width, scheme, height=800):
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", {
            "width": width, "height": height, "deviceScaleFactor": 1, "mobile": False})
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {
            "features": [{"name": "prefers-color-scheme", "value": scheme}]})

    def run(self, script, *values):
        return self.driver.execute_script(script, *values)

    def press(self, *keys):
        from selenium.webdriver import ActionChains

        for key in keys:
            ActionChains(self.driver).send_keys(key).perform()

    def tab_to(self, wanted, keys=400):
        """Moves the focus by the keyboard; to an element by its text, id, or link."""
        from selenium.webdriver.common.keys import Keys

        for _ in range(keys):
            self.press(Keys.TAB)
            found = self.run("""const e = document.activeElement;
                return [e.textContent.trim(), e.id, e.getAttribute('href') || '',
                    getComputedStyle(e).outlineStyle, getComputedStyle(e).outlineWidth]""")
            if wanted in found[:3]:
                self.outlines.add(tuple(found[3:]))
                return True
        return False

    outlines = set()

    def enter(self, wanted):
        """Presses Enter on that element, and waits for the next page."""
        from selenium.webdriver.common.keys import Keys

        if not self.tab_to(wanted):
            report(False, f"the keyboard reaches {wanted!r}", self.driver.title)
            return
        self.run("window.old = true")
        self.press(Keys.ENTER)
        until = time.monotonic() + TIMEOUT
        while time.monotonic() < until:
            with contextlib.suppress(Exception):
                if self.run("return !window.old && document.readyState === 'complete'"):
                    return
            time.sleep(0.05)
        report(False, f"{wanted!r} leads to a page", self.driver.title)

    def text(self):
        return self.run("return document.body.innerText")

    def examine(self, name, width):
        """What must hold for every page."""
        wrong = self.run("""
            const wrong = [];
            if (innerWidth !== arguments[0] || document.documentElement.scrollWidth > innerWidth)
                wrong.push('width ' + document.documentElement.scrollWidth);
            for (const e of document.querySelectorAll(
                    'script, iframe, object, embed, img, b, i, [onerror], [style]'))
                wrong.push(e.outerHTML);
            for (const e of document.querySelectorAll('input:not([type=hidden]), select, button'))
                if (!e.textContent.trim() && !e.labels.length || e.type !== 'hidden' &&
                        e.tagName !== 'BUTTON' && !e.labels.length)
                    wrong.push('no label: ' + e.outerHTML);
            for (const e of document.querySelectorAll('svg'))
                if (e.getAttribute('role') !== 'img' || !e.getAttribute('aria-label'))
                    wrong.push('no words: ' + e.outerHTML);
            if (!document.documentElement.lang || document.querySelectorAll('h1').length !== 1 ||
                    document.querySelectorAll('main').length !== 1)
                wrong.push('structure');
            const levels = c => c.match(/[0-9.]+/g).map(Number);
            const light = c => { const [r, g, b] = levels(c).map(v => {
                v /= 255; return v <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4; });
                return .2126 * r + .7152 * g + .0722 * b; };
            const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
            while (walk.nextNode()) {
                const e = walk.currentNode.parentElement;
                if (!walk.currentNode.textContent.trim() || !e.checkVisibility()) continue;
                let back = e;
                while (back && levels(getComputedStyle(back).backgroundColor)[3] === 0)
                    back = back.parentElement;
                const one = light(getComputedStyle(e).color);
                const two = light(back ? getComputedStyle(back).backgroundColor : 'rgb(255,255,255)');
                const ratio = (Math.max(one, two) + .05) / (Math.min(one, two) + .05);
                if (ratio < 4.5)
                    wrong.push('contrast ' + ratio.toFixed(1) + ': ' + walk.currentNode.textContent);
            }
            return wrong.slice(0, 5)""", width)
        report(not wrong, f"{name}, width {width}", wrong)

    def console(self):
        return [e["message"] for e in self.driver.get_log("browser")
                if e["level"] in ("SEVERE", "WARNING")]


def test_browser(browser, program, width, scheme):
    from selenium.webdriver.common.keys import Keys

    base = f"http://127.0.0.1:{program.port}"
    browser.driver.delete_all_cookies()
    browser.size(width, scheme)
    browser.driver.get(base + "/")
    browser.examine("the login form", width)
    browser.tab_to("user")
    browser.press("boss", Keys.TAB, PASSWORD)
    browser.enter("Log in")
    has(browser.driver.title, "Queues", f"a login with the keyboard, width {width}")
    browser.examine("the queues", width)
    report(not browser.run("return document.cookie"), "no script could read the cookie")
    browser.tab_to("find")
    browser.press("tml")
    browser.enter("Show")
    has(browser.text(), "2 queues", "a filter")
    browser.enter("html")
    browser.examine("messages that are HTML", width)
    has(browser.text(), "<script>alert(1)</script>", "are shown as text")
    if browser.tab_to("no such element", 20):
        report(False, "tab_to fails")
    browser.run("document.activeElement.blur()")
    summary = browser.run("return document.querySelector('td summary').textContent.trim()")
    browser.tab_to(summary)
    browser.press(Keys.ENTER)
    report(browser.run("return document.querySelector('td details').open"),
           "the keyboard opens a long body")
    for label in ("Groups", "Dead letters", "Errors"):
        browser.enter(label)
        browser.examine(f"{label} that are HTML", width)
    for label in ("Jobs", "Batches", "Queues"):
        browser.enter(label)
        browser.examine(label, width)
    browser.enter("Next page")
    browser.enter("/queue?q=q00060")
    browser.enter("Purge…")
    browser.examine("a question", width)
    equal(sql("SELECT total FROM queue_stats('q00060')"), 1, "it is only asked so far")
    browser.enter("No, go back")
    equal(sql("SELECT total FROM queue_stats('q00060')"), 1, "the answer was no")
    browser.enter("Purge…")
    browser.enter("Yes")
    has(browser.text(), "Queue q00060 is purged: 1 messages were removed.", "the answer was yes")
    equal(sql("SELECT total FROM queue_stats('q00060')"), 0, "it is purged")
    sql("SELECT queue_push('q00060', '1'::jsonb)")
    browser.enter("Refresh every 5 seconds")
    until = time.monotonic() + TIMEOUT
    while "auto=1" not in browser.driver.current_url and time.monotonic() < until:
        time.sleep(0.2)
    has(browser.driver.current_url, "auto=1", "the page refreshes itself")
    browser.enter("Stop refreshing")
    report("every" not in browser.driver.current_url, "until it is told not to")
    equal(browser.console(), [], "the console has no errors")
    equal([o for o in browser.outlines if o[0] == "none" or o[1] == "0px"], [],
          "one sees where the focus is")


def test_attacker(browser, program):
    """A page on another port, which for cookies is the same site."""
    base = f"http://127.0.0.1:{program.port}"
    token = "0" * 64
    page = (f'<form id=f method=post action="{base}/do">'
            + "".join(f'<input name="{k}" value="{v}">' for k, v in (
                ("token", token), ("action", "purge"), ("q", "q00005"), ("id", ""),
                ("project", ""))) + f'</form><iframe id=i src="{base}/"></iframe>')

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(page.encode())

        def log_message(self, *args):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        browser.driver.get(f"http://127.0.0.1:{server.server_port}/")
        refused = " ".join(browser.console())
        has(refused, "frame-ancestors 'none'", "another site cannot show it in a frame")
        browser.run("document.getElementById('f').submit()")
        until = time.monotonic() + TIMEOUT
        while "Refused" not in browser.text() and time.monotonic() < until:
            time.sleep(0.1)
        has(browser.text(), "Refused: a foreign Origin", "nor send a form to it")
        equal(sql("SELECT total FROM queue_stats('q00005')"), 1, "nothing was purged")
        server.shutdown()
    browser.console()


def test_pages(directory, program):
    browser = Browser(directory)
    try:
        test_browser(browser, program, 360, "light")
        test_browser(browser, program, 1280, "dark")
        test_attacker(browser, program)
    finally:
        browser.driver.quit()


def test_demo(directory):
    """The demonstration; in the long form for two minutes, with pictures for the manual."""
    before = set(glob.glob("/tmp/queue_web.*"))
    os.mkdir(os.path.join(directory, "demo"))
    program = Program(os.path.join(directory, "demo"), "--demo", "--listen", "127.0.0.1:0")
    becomes(lambda: "log in as guest" in program.log(), "the demonstration starts")
    passwords = dict(re.findall(r"log in as (\w+), password (\S+)", program.log()))
    guest, visitor = Visitor(program.port), Visitor(program.port)
    guest.login("guest", passwords["guest"])
    has(guest.text, "q=mail.dead", "it has queues")
    visitor.login("demo", passwords["demo"])

    def pushed():
        return int(re.search(r"<dt>Pushed</dt><dd>([0-9,]+)",
                             visitor.get("/queue", q="mail"))[1].replace(",", ""))

    first = pushed()
    becomes(lambda: pushed() > first, "which change")
    where, = set(glob.glob("/tmp/queue_web.*")) - before
    with psycopg.connect(host=where, port=5432, dbname="postgres", user="demo",
                         password=passwords["demo"]) as db:
        db.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                   "WHERE query ~ 'demo_tick' AND pid <> pg_backend_pid()")
    becomes(lambda: "the load has lost its connection" in program.log(), "the load is cut off")
    first = pushed()
    becomes(lambda: pushed() > first, "and goes on")
    if LONG:
        time.sleep(150)
        browser = Browser(directory)
        try:
            browser.driver.get(f"http://127.0.0.1:{program.port}/")
            browser.driver.add_cookie({"name": next(iter(visitor.cookies)),
                                       "value": next(iter(visitor.cookies.values()))})
            for width, path, name in ((1280, "/", "web-queues"),
                                      (360, "/queue?q=mail", "web-queue"),
                                      (1280, "/queue?q=mail&tab=dead", "web-dead")):
                browser.size(width, "light", 640)
                browser.driver.get(f"http://127.0.0.1:{program.port}{path}")
                browser.driver.save_screenshot(os.path.join(
                    os.environ.get("TMPDIR", directory), name + ".png"))
        finally:
            browser.driver.quit()
    equal(program.stop(), 0, "SIGTERM ends it")
    equal(set(glob.glob("/tmp/queue_web.*")) - before, set(), "and nothing of it is left")
    equal("Traceback" in program.log(), False, "its log has no traceback")


def main():
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    setup()
    with tempfile.TemporaryDirectory() as directory:
        if BROWSER:
            program = Program(directory, "--listen", "127.0.0.1:0", SERVER)
            try:
                test_pages(directory, program)
            finally:
                equal(program.stop(), 0, "SIGTERM ends it")
            return
        test_elsewhere(directory)
        test_demo(directory)
        program = Program(directory, "--listen", "127.0.0.1:0", SERVER)
        module = load()
        module.log = lambda line: None
        server = module.make_server(SERVER, "127.0.0.1", 0)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            boss = test_login(program)
            test_forged(program, boss)
            owner = test_rights(program)
            test_actions(boss, owner)
            test_strangers(module, server.server_port)
            test_reads(module, server.server_port, 5)
            if LONG:
                measure(program)
            test_idle(module, server.server_port)
            if LONG:
                test_pages(directory, program)
            test_lost(program, boss, owner)
            test_secrets(program, (boss, owner))
        finally:
            equal(program.stop(), 0, "SIGTERM ends it")


if __name__ == "__main__":
    main()
