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
import html
import http.client
import http.server
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import tracemalloc
import types
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
RTL = "\u202eשלום\u2066 مرحبا"           # it would turn around what comes after it


def axe():
    """The program axe-core, if node would find it; npm has it."""
    for where in os.environ.get("NODE_PATH", "").split(":"):
        file = os.path.join(where, "axe-core", "axe.min.js")
        if where and os.path.exists(file):
            with open(file, encoding="utf8") as text:
                return text.read()
    return None


AXE = axe() if BROWSER or LONG else None


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

# Seconds that are shown as "10 d" for the next two hours, and a claim that lasts as long
SOON, CLAIM = 10 * 86400 + 3600, 7200

MAKE = f"""
    SELECT queue_create('fate', '{{"_max_claim_count": 2, "_keep_finished": 86400}}');
    SELECT queue_push('fate', '{{"n": "delayed"}}', delay => {SOON}),
        queue_push('fate', '{{"n": "retried"}}'), queue_push('fate', '{{"n": "buried"}}'),
        queue_push('fate', '{{"n": "claimed"}}', group_key => 'g', headers => '{{"h": 1}}'),
        queue_push('fate', '{{"n": "waiting"}}', after => (SELECT batch_create('b', true))),
        queue_push('fate', '{{"n": "done"}}');
    DO $$ DECLARE m queue_message; BEGIN
        FOR m IN SELECT * FROM queue_claim('fate', {CLAIM}, 60, 10) LOOP
            CASE m.body->>'n'
                WHEN 'retried' THEN PERFORM message_retry('fate', m.id, m.claim_id, 'broken once',
                    {SOON});
                WHEN 'buried' THEN PERFORM message_bury('fate', m.id, m.claim_id, 'broken for good');
                WHEN 'done' THEN PERFORM message_complete('fate', m.id, m.claim_id, '{{"sum": 42}}');
                ELSE NULL;
            END CASE;
        END LOOP; END $$;
    SELECT queue_push('fate', '{{"n": "free again"}}')"""


def setup():
    sql(f"""
    CREATE ROLE boss LOGIN PASSWORD $q${PASSWORD}$q$ IN ROLE queue_admin;
    CREATE ROLE owner LOGIN PASSWORD 'owner' IN ROLE queue_producer, queue_consumer, queue_monitor;
    CREATE ROLE watcher LOGIN PASSWORD 'watcher' IN ROLE queue_monitor;
    CREATE ROLE eater LOGIN PASSWORD 'eater' IN ROLE queue_consumer;
    CREATE ROLE open LOGIN PASSWORD 'open' IN ROLE queue_admin;
    CREATE ROLE stranger LOGIN PASSWORD 'stranger';
    CREATE ROLE doorman LOGIN NOINHERIT PASSWORD 'doorman' IN ROLE eater, queue_monitor;
    CREATE ROLE chief SUPERUSER;
    GRANT chief TO doorman;
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
    sql(f"""DO $$ DECLARE m queue_message; BEGIN
        FOR m IN SELECT * FROM queue_claim('html', 60, 60, 6) LOOP
            IF m.body->>'i' IN ('0', '1', '2') THEN
                PERFORM message_bury('html', m.id, m.claim_id,
                                     '<h1>buried</h1>' || (m.body->>'text'));
            ELSE
                PERFORM message_retry('html', m.id, m.claim_id, '<h1>retried</h1>', {SOON});
            END IF;
        END LOOP; END $$""")
    sql(f"""CREATE FUNCTION slow(body jsonb) RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN
        PERFORM job_progress(3, 40, '<i>note</i>'), pg_sleep({CLAIM}); RETURN true; END $$;
        ALTER FUNCTION slow OWNER TO owner""")
    sql("SET ROLE owner; SELECT job_handler('work', 'slow(jsonb)')")
    sql("SET ROLE owner; SELECT queue_push('work', '1')")
    for name in HTML, RTL:
        sql(f"""SET ROLE owner; SELECT set_config('queue.project', $q${name}$q$, false);
            SELECT queue_push('project-queue', '1')""")
    sql(f"SET ROLE owner; SELECT batch_create($q${HTML}$q$, keep_open => true)")
    sql("SET ROLE owner; SELECT queue_push('plain', '1', batch => batch) FROM batch_list()")
    sql("CREATE FUNCTION vanishes(body jsonb) RETURNS boolean LANGUAGE sql AS 'SELECT true';"
        " ALTER FUNCTION vanishes OWNER TO owner")
    sql("SET ROLE owner; SELECT job_handler('stopped', 'vanishes(jsonb)')")
    sql("DROP FUNCTION vanishes; SELECT queue_push('stopped', '1'), queue_create('halted'),"
        " queue_pause('halted')")
    sql(MAKE)
    if LONG:                            # a million messages
        for i in range(100):
            sql("SELECT queue_push_batch('q' || lpad(%s::text, 5, '0'), array_agg(to_jsonb(i)))"
                " FROM generate_series(1, 10000) AS i", QUEUES - i)
    sql("SELECT queue_create('many', '{\"_max_claim_count\": 3}')")
    sql("SELECT queue_push_batch('many', array_agg(jsonb_build_object('n', i, 'even', i % 2 = 0)))"
        " FROM generate_series(1, 9000) AS i")
    sql("SELECT queue_create('odd')")
    sql("SELECT queue_push('odd', to_jsonb(repeat('x', 262100)))")
    sql("SELECT queue_push('odd', to_jsonb(%s::text), group_key => %s)", RTL, RTL)
    sql(f"SET ROLE boss; SELECT batch_create($q${RTL}$q$, keep_open => true)")
    sql("DO $$ DECLARE m queue_message; BEGIN FOR m IN SELECT * FROM queue_claim('odd') LOOP"
        " PERFORM message_retry('odd', m.id, m.claim_id, repeat('שגיאה ', 40000), %d);"
        " END LOOP; END $$" % SOON)
    sql("""CREATE SCHEMA cron; GRANT USAGE ON SCHEMA cron TO PUBLIC;
        CREATE VIEW cron.job AS SELECT 1 AS jobid, 'planted' AS command;
        GRANT SELECT ON cron.job TO PUBLIC""")
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

    def __init__(self, directory, *arguments, **environ):
        self.file = os.path.join(directory, "log")
        with open(self.file, "a", encoding="utf8") as log:
            self.process = subprocess.Popen(
                [sys.executable, os.path.join(HERE, "queue_web"), *arguments], stderr=log,
                stdout=log, env=os.environ | environ)
        until = time.monotonic() + TIMEOUT
        while not (found := re.search(r"listening on (?:http://localhost:(\d+)|unix:)", self.log())):
            if self.process.poll() is not None or time.monotonic() > until:
                raise SystemExit(f"queue_web did not start: {self.log()}")
            time.sleep(0.05)
        self.port = int(found[1] or 0)

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
        connection = self.connection()
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

    def form(self, action="/do"):
        """The values of a form of the page."""
        found = re.search(f'<form method="post" action="[^"]*{action}".*?</form>', self.text, re.S)
        return dict(re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)"',
                               found[0] if found else ""))

    def yes(self, prefix=""):
        """Answers the question."""
        return self.ask("POST", prefix + "/do", self.form())

    def words(self):
        """What the page says, without its HTML."""
        return " ".join(html.unescape(re.sub("<[^>]+>", " ", self.text)).split())

    def connection(self):
        return http.client.HTTPConnection(self.host, timeout=TIMEOUT,
                                          source_address=(self.address, 0))

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
        return self.yes()


def load():
    """The program as modules, in this process."""
    sys.dont_write_bytecode = True
    sys.path.insert(0, os.path.join(HERE, "src"))
    from queue_web import history, reader, server, sessions, settings, show, sweep, web

    for module in (reader, server, web, sweep):
        if hasattr(module, "log"):
            module.log = lambda line: None
    return types.SimpleNamespace(history=history, reader=reader, server=server, sessions=sessions,
                                 settings=settings, show=show, sweep=sweep, web=web)


#
# Without a browser
#

def test_login(program):
    visitor = Visitor(program.port)
    visitor.get("/")
    equal(visitor.status, 200, "there is a login form")
    has(visitor.headers["content-security-policy"], "default-src 'none'; style-src 'self'; script-src 'self'; ",
        "no script may run but ours")
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
    has(visitor.words(), "The role stranger may not see this. It needs ",
        "and reads a sentence where it sees nothing")
    report("permission denied" not in visitor.text, "no error of SQL")
    visitor.login("boss", PASSWORD, "//example.org/?")
    equal(visitor.status, 200, "the right password, and no redirection elsewhere")
    has(visitor.text, "10,009 queues", "leads to the queues")
    report(not set(before.values()) & set(visitor.cookies.values()), "the session has a new cookie")
    logs(program, "login of role 'boss' from 127.0.0.1 failed: ", "the failure is logged")
    becomes(lambda: visitor.login("guessed", "x") and visitor.status == 429,
            "too many failed logins of a role")
    visitor = Visitor(program.port)
    visitor.login("boss", PASSWORD)
    equal(visitor.status, 200, "do not stop another role")
    return visitor


def test_strangers(module, port):
    """What a stranger does who wants to keep others out"""
    stranger = Visitor(port, "127.0.0.2")
    original, module.settings.LOGINS = module.settings.LOGINS, (5, 3, 10 * TIMEOUT)
    for i in range(4):
        stranger.login(f"guess{i}", "x")
    equal(stranger.status, 429, "too many failed logins from an address")
    visitor = Visitor(port)
    visitor.login("boss", PASSWORD)
    equal(visitor.status, 200, "do not stop another address")
    for i in range(4):
        Visitor(port).login("boss", f"guess{i}")
    new = Visitor(port)
    new.login("boss", PASSWORD)
    equal(new.status, 429, "a flood from one's own address stops browsers that are new")
    visitor.ask("POST", "/logout", {"token": visitor.token()})
    visitor.login("boss", PASSWORD)
    equal(visitor.status, 200, "but not one in which the role has logged in before")
    module.settings.LOGINS = original
    module.sessions.failures.clear()

    # Connections that send nothing, or less than they promise
    with contextlib.ExitStack() as stack:
        for i in range(2 * module.settings.THREADS):
            idle = stack.enter_context(socket.create_connection(("127.0.0.1", port), TIMEOUT))
            if i % 2:
                idle.sendall(b"POST /login HTTP/1.1\r\nHost: 127.0.0.1:%d\r\n"
                             b"Origin: http://127.0.0.1:%d\r\nContent-Length: 9\r\n"
                             b"Content-Type: application/x-www-form-urlencoded\r\n\r\n"
                             % (port, port))
        visitor = Visitor(port)
        try:
            visitor.get("/static/style.css")
        except OSError as error:
            visitor.status = error
    equal(visitor.status, 200, "idle connections keep nobody out")

    environ = {"REMOTE_ADDR": "127.0.0.1", "HTTP_X_FORWARDED_FOR": "192.0.2.1, 192.0.2.2"}
    equal(module.web.visitor_address(environ), "127.0.0.1", "the address of a visitor")
    module.settings.site.forwarded = True
    equal(module.web.visitor_address(environ), "192.0.2.2", "and behind a proxy, with --forwarded")
    module.settings.site.forwarded = False


def test_forged(program, visitor):
    """Forms that come from elsewhere, or say something else, or come twice"""
    visitor.get("/ask", action="purge", q="q00001")
    form, token = visitor.form(), visitor.token()
    form.pop("token")
    other = Visitor(program.port)
    other.login("owner", "owner")
    other.get("/ask", action="pause", q="plain")
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
    other.ask("POST", "/do", form | {"token": other.token()})
    equal(other.status, 409, "a question that another session was asked")
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
    visitor.get("/ask", action="pause", q="q00001")
    paused = visitor.form()
    visitor.ask("POST", "/do", paused | {"q": "q00002", "action": "purge"}, follow=False,
                X_Forwarded_Host="example.org")
    equal(visitor.headers.get("location"), "/queue?q=q00001", "not even redirections")
    equal(sql("SELECT total FROM queue_stats('q00002')"), 1,
          "a form does what was asked, whatever else it says")
    equal(sql("SELECT queue_resume('q00001')"), True, "that was done")
    visitor.ask("POST", "/do", paused)
    equal(visitor.status, 409, "a form that is sent again")
    has(visitor.words(), "This was answered already", "says so")
    equal(sql("SELECT paused FROM queue_get('q00001')"), False, "and changes nothing")


def test_rights(program):
    """Roles that may do little, each page of them"""
    watcher, eater, owner, stranger = (Visitor(program.port) for _ in range(4))
    watcher.login("watcher", "watcher")
    has(watcher.text, "10,009 queues", "queue_monitor sees all queues")
    watcher.get("/queue", q="html")
    has(watcher.words(), "The role watcher may not see this. It needs membership in ",
        "but no messages")
    report("buried" not in watcher.text and "onerror" not in watcher.text, "none at all")
    report("Purge…" not in watcher.text, "and is offered nothing")
    watcher.get("/jobs")
    has(watcher.text, "q=work", "it sees what runs")
    watcher.do("purge", q="html")
    has(watcher.words(), "Not done. The role watcher may not do this: it needs to own the queue",
        "it cannot purge")
    eater.login("eater", "eater")
    has(eater.text, "Membership in queue_monitor shows all", "queue_consumer sees queues")
    eater.get("/", find="tml")
    has(eater.text, "/queue?q=html", "finds some of them")
    eater.get("/queue", q="html", tab="all")
    has(eater.text, "&lt;script&gt;alert(1)", "and messages")
    eater.get("/queue", q="html")
    report("Purge…" not in eater.text and "Pause…" not in eater.text, "but is offered no purge")
    eater.get("/queue", q="narrow", tab="all")
    has(eater.words(), "The role eater may not see this. It needs the privilege to claim",
        "not those of a narrowed queue")
    report("hidden-" not in eater.text, "nothing of them")
    for action in ("purge", "pause"):
        eater.do(action, q="html")
        has(eater.words(), "Not done. The role eater may not do this", f"it cannot {action}")
    eater.do("cancel", q="narrow", ids=sql("SELECT id FROM queue_messages('narrow', echo => true)"))
    has(eater.words(), "Not done. The role eater may not do this: it needs the privilege to claim",
        "nor cancel a message there")
    eater.do("cancel_batch", id=sql("SET ROLE owner; SELECT batch FROM batch_list()"))
    has(eater.words(), "Not done. The role eater may not do this: it needs to own the batch",
        "nor cancel a batch of others")
    equal(sql("SELECT paused FROM queue_get('html')"), False, "all is as it was")
    report(sql("SELECT total FROM queue_stats('html')") > 0, "with its messages")
    watcher.get("/queue", q="narrow")
    report("hidden-" not in watcher.text, "what one role sees is not kept for another")
    stranger.login("stranger", "stranger")
    number = sql("SELECT id FROM queue_messages('html', echo => true)")
    paths = ["/", "/jobs", "/batches", "/schedules", "/queue?q=html", f"/message?q=html&id={number}",
             "/batch?id=1"] + [f"/queue?q=html&tab={tab}" for tab in (
                 "all", "free", "waiting", "dead", "finished", "failures", "groups")]
    seen = {}

    def read(visitor):
        for path in paths:
            visitor.get(path)
            seen[visitor, path] = visitor.status, [w for w in (
                "permission denied", "42501", "does not exist", "CONTEXT", "LINE 1", "SELECT",
                "function ") if w in visitor.words()]

    visitors = stranger, watcher, eater
    threads = [threading.Thread(target=read, args=[visitor]) for visitor in visitors]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for visitor, name in zip(visitors, ("stranger", "watcher", "eater")):
        equal({path: v for (who, path), v in seen.items() if who is visitor and v != (200, [])}, {},
              f"{name} reads sentences on every page, and no SQL")
    owner.login("owner", "owner")
    owner.get("/queue", q="narrow", tab="free")
    has(owner.text, "hidden-body", "its owner sees them")
    owner.get("/", project=HTML)
    has(owner.text, "/queue?project=%3Cscript", "a project whose name is HTML")
    has(owner.text, "q=project-queue", "has a queue")
    owner.get("/jobs")
    has(owner.words(), "3 of 40 <i>note</i>", "the progress of a job")
    has(owner.text, "3 of 40 <bdi>&lt;i&gt;note&lt;/i&gt;", "as text")
    return owner


def test_queue(boss, owner):
    """What is done with a queue, and its lists"""
    boss.get("/queue", q="q00002")
    has(boss.text, "Pause…", "queue_admin is offered a pause")
    boss.do("pause", q="q00002")
    has(boss.text, "Queue q00002 is paused.", "which works")
    equal(sql("SELECT paused FROM queue_get('q00002')"), True, "in the database, too")
    has(boss.text, "Resume…", "now it can be resumed")
    boss.do("resume", q="q00002")
    equal(sql("SELECT paused FROM queue_get('q00002')"), False, "and is")
    boss.do("purge", q="q00003")
    has(boss.text, "Queue q00003 is purged: 1 message removed.", "a purge")
    boss.get("/queue", q="html", tab="failures")
    has(boss.text, "&lt;h1&gt;retried&lt;/h1&gt;", "errors with their texts")
    boss.get("/queue", q="html")
    has(boss.words(), "Last failure <h1>", "the last one stands out")
    boss.get("/schedules")
    has(boss.words(), "This database has no extension pg_cron.", "no schedules")
    report("planted" not in boss.text, "but for those of the extension pg_cron")
    boss.get("/queue", q="html", tab="groups")
    has(boss.text, "&lt;img src=x", "groups")
    has(boss.text, "Next page", "and more of them")
    equal(len(set(all_ids(boss, "/queue?q=html&tab=all"))),
          sql("SELECT total FROM queue_stats('html')"), "pages have all messages")
    boss.get("/queue", q="html", tab="all", find='{"i": 7}')
    equal(len(set(ids_of(boss))), 1, "a search by body")
    boss.get("/queue", q="html", tab="all", find="i=7")
    equal(len(set(ids_of(boss))), 1, "or by name and value")
    boss.get("/queue", q="html", tab="all", find="[")
    has(boss.words(), "neither JSON nor", "or a sentence, if it is none")
    owner.get("/batches")
    has(owner.text, "&lt;script&gt;alert(1)", "batches")
    batch = sql("SET ROLE owner; SELECT batch FROM batch_list()")
    owner.get("/batch", id=batch)
    has(owner.words(), "0 of 1", "the progress of one")
    has(owner.text, "/message?q=plain", "and its member")
    owner.do("cancel_batch", id=batch)
    has(owner.text, f"Batch {batch}: 1 member canceled", "one is canceled")
    for path, status in (("/queue?q=nope", 404), ("/queue?q=%3Cb%3E", 200),
                         ("/message?q=a&id=x", 404), ("/?after=99999999", 200),
                         ("/?project=" + "x" * 300, 404), ("/?find=%00%ff%5B(", 200),
                         ("/nope", 404), ("/ask?action=drop&q=x", 404),
                         ("/ask?action=cancel&q=x&ids=1&ids=y", 404), ("/static/nope.css", 404),
                         ("/static/..%2fdata.py", 404), ("/batch?id=999", 200),
                         ("/queue?q=html&after=999999999999999999&tab=groups", 200),
                         ("/queue?q=html&after=%22&tab=failures", 200),
                         ("/message?q=html&id=999999999999999999", 200),
                         ("/?path=1&self=2&every=5&auto=1", 200)):
        boss.get(path)
        equal(boss.status, status, f"{path[:40]}: {status}")
        report("<b>&" not in boss.text and "<b></b>" not in boss.text, "without HTML of it")


def test_push(program, boss, owner):
    """The form that pushes a message: what it pushes, and what it refuses"""
    def form(**values):
        boss.get("/queue", q="q00070", **values)
        return boss.form("q=q00070") | {"body": "1", "priority": "0", "delay": "", "group": ""}

    def push(sent, visitor=boss, q="q00070", **headers):
        return visitor.ask("POST", f"/queue?q={q}", sent, **headers)

    def typed(visitor):
        return html.unescape(re.search("<textarea[^>]*>(.*?)</textarea>|$", visitor.text, re.S)[1] or "")

    def total(q="q00070"):
        return sql("SELECT total FROM queue_stats(%s)", q)

    body = '{"n": 1.50, "text": "' + HTML.replace('"', '\\"') + RTL + '"}'
    sent = form() | {"body": body, "priority": "7", "delay": "864000", "group": HTML}
    push(sent)
    has(boss.words(), "was pushed to queue q00070. Message ", "a push leads to the message")
    has(boss.words(), "◷ delayed in queue q00070 , due in 10 d", "which has its delay")
    has(boss.words(), f"Priority 7 Group {HTML}", "its priority and group")
    has(boss.words(), HTML.replace('"', '\\"'), "and its body")
    report(HTML not in boss.text and "<img" not in boss.text, "as text", boss.text)
    equal(sql("SELECT array[body = %s::jsonb, priority = 7, group_key = %s, headers IS NULL] FROM"
              " queue_browse('q00070'::text, 'delayed'::text)", body, HTML), [True] * 4, "all as typed")
    push(sent)
    equal((boss.status, total()), (409, 2), "a form that is sent again pushes nothing")
    has(boss.words(), "Not pushed. This form was sent already", "says so")
    equal(typed(boss), body, "and keeps what was typed")
    report("<img" not in boss.text, "as text", boss.text)
    push(form())
    has(boss.words(), "● ready in queue q00070", "a push without a delay")
    equal(re.search(r"Priority (\d)( Group)?", boss.words()).groups(), ("0", None), "and without a group")
    for name, values, wanted in (
            ("no JSON", {"body": "{" + HTML}, "Not pushed. The body is no JSON: "),
            ("no body", {"body": ""}, "Not pushed. The body is no JSON: "),
            ("deep JSON", {"body": "[" * 30000}, "Not pushed. The body is no JSON: "),
            ("JSON for Python alone", {"body": "NaN"}, "Not done. PostgreSQL says: invalid input"),
            ("a NUL", {"body": '"\\u0000"'}, "Not done. PostgreSQL says: "),
            ("a large body", {"body": '"' + "x" * 262144 + '"'},
             "bytes is too large."),
            ("what a browser has cut off", {"body": "x" * 400000}, "Not pushed. A body has less than"),
            ("a priority that is none", {"priority": "10"}, "Not done. PostgreSQL says: "),
            ("a delay that is none", {"delay": "soon"}, "Not done. PostgreSQL says: invalid input"),
            ("a long group key", {"group": "g" * 300}, "Not done. PostgreSQL says: ")):
        sent = form() | values
        push(sent)
        has(boss.words(), wanted, f"{name}: a sentence")
        key, value = next(iter(values.items()))
        report(typed(boss) == value if key == "body" else f'value="{value}"' in boss.text,
               f"{name}: what was typed stays", boss.words()[:900])
        has(boss.text, '<details id="push" open>', "in a form that is open")
    push(boss.form("q=q00070") | {"body": "2"})
    has(boss.words(), "was pushed to queue q00070", "which can be sent then")
    for name, headers in (("too long a form", {"Content_Length": "4000001"}),
                          ("a long one of nobody", {"Cookie": None, "Content_Length": "65537"})):
        push(form(), **headers)
        equal(boss.status, 403, f"{name} is not read")

    sent, before = form(), total()
    key = sent.pop("key")
    for name, values, headers, status in (
            ("without a key", {}, {}, 409), ("with a key of its own", {"key": "x"}, {}, 409),
            ("without a token", {"key": key, "token": ""}, {}, 403),
            ("from another site", {"key": key}, {"Origin": "http://example.org"}, 403),
            ("without an Origin", {"key": key}, {"Origin": None}, 403),
            ("without the session", {"key": key}, {"Cookie": None}, 403)):
        push(sent | values, **headers)
        equal((boss.status, total()), (status, before), f"a form to push {name}")
    push(sent | {"key": key}, q="q00071")
    equal((boss.status, total("q00071")), (409, 1), "one for another queue")
    boss.ask("POST", "/do", sent | {"key": key})
    equal((boss.status, total()), (409, before), "or in place of an answer")
    owner.get("/queue", q="q00070")
    push(owner.form("q=q00070") | {"key": key, "body": "1"}, owner)
    equal((owner.status, total()), (409, before), "or with the key of another session")
    boss.ask("GET", "/queue?" + urlencode(sent | {"key": key, "q": "q00070"}))
    equal(total(), before, "no push by a link")
    push(sent | {"key": key}, follow=False)
    equal((boss.status, total()), (303, before + 1), "the right one pushes")

    sent = form() | {"body": "[1,  2]"}
    twins = [Visitor(program.port) for _ in range(2)]
    threads = [threading.Thread(target=push, args=(sent, twin)) for twin in twins]
    for twin, thread in zip(twins, threads):
        twin.cookies = boss.cookies
        thread.start()
    for thread in threads:
        thread.join()
    equal((sorted(twin.status for twin in twins), total()), ([200, 409], before + 2),
          "of a form that is sent twice at once, one pushes")
    sql("SELECT queue_grant('q00071'::text, 'boss'::regrole, 'push'::text)")
    owner.get("/queue", q="q00071")
    push(owner.form("q=q00071") | {"body": "[1,  2]"}, owner, "q00071")
    has(owner.words(), "Not done. The role owner may not do this: it needs to own the queue, or "
        "membership in queue_producer and, where push was granted there", "a role that may not push")
    equal(typed(owner), "[1,  2]", "finds its text again")
    equal(total("q00071"), 1, "and nothing is pushed")
    sql("SELECT queue_grant('q00070'::text, 'boss'::regrole, 'claim'::text)")
    owner.get("/queue", q="q00070")
    push(owner.form("q=q00070") | {"body": "3"}, owner)
    report(re.search(r"Message \d+ was pushed to queue q00070\.", owner.words())
           and "Pause…" not in owner.text, "one that may not claim stays on the queue's page", owner.words())
    eater = Visitor(program.port)
    eater.login("eater", "eater")
    for visitor, q in (eater, "html"), (boss, "html.dead"):
        visitor.get("/queue", q=q)
        report("Push a message" not in visitor.text, f"no form to push to {q}", visitor.words())
    push({"token": eater.token(), "key": key, "body": "1"}, eater, "html")
    has(eater.words(), "Not pushed.", "a consumer is refused")
    boss.ask("GET", "/queue?q=q00072&project=other")
    equal(boss.status, 404, "no form for a queue that is not there")
    logs(program, "role 'boss': push to 'q00070' of project", "pushes are logged")
    equal("[1, 2]" in program.log(), False, "without their bodies")


def ids_of(visitor):
    return re.findall(r"/message\?q=html&amp;id=(\d+)", visitor.text)


def all_ids(visitor, page):
    ids = []
    while page:
        visitor.get(page)
        ids += ids_of(visitor)
        found = re.search(r'href="([^"]*)">(?:Next page|Older)', visitor.text)
        page = found and html.unescape(found[1])
    return ids


def test_fates(boss):
    """Each state of a message: its page, its list, and the buttons that it allows"""
    boss.get("/queue", q="fate", tab="all")
    has(boss.words(), "waits for retry due in 10 d", "a retry says when it is due")
    found = dict((m[1], m[0]) for m in re.findall(
        r'data-key="(\d+)".*?&quot;n&quot;: &quot;([a-z ]+)&quot;', boss.text, re.S))
    offered = {"free again": {"bury", "cancel"}, "delayed": {"run_now", "bury", "cancel"},
               "retried": {"run_now", "bury", "cancel"}, "claimed": {"cancel"},
               "waiting": {"cancel"}}
    for name, wanted in offered.items():
        boss.get("/message", q="fate", id=found[name])
        equal(set(re.findall(r"/ask\?action=(\w+)", boss.text)), wanted, f"{name}: its buttons")
    has(boss.text, "/batch?id=", "what waits for a batch names it")
    boss.get("/message", q="fate", id=found["claimed"])
    ends = re.search(r"claimed until in ([\d.]+) (h|min) ", boss.words())
    # The time that has passed is not known, but it is less than the claim is long.
    report(ends and 0 < float(ends[1]) * {"h": 60, "min": 1}[ends[2]] <= CLAIM / 60,
           "a claim's end", boss.words())
    has(boss.words(), "Group g", "the group")
    has(boss.words(), 'Headers { "h": 1 }', "and the headers")
    boss.get("/message", q="fate", id=found["retried"])
    for wanted in ("Retry now…", "Last error broken once", "Attempt 1", "Due in 10 d", "UTC"):
        has(boss.words(), wanted, f"a retry: {wanted}")
    boss.do("run_now", q="fate", ids=found["retried"])
    has(boss.words(), "1 message of queue fate: can be claimed now.", "is retried now")
    boss.get("/message", q="fate", id=found["retried"])
    has(boss.words(), "● ready in queue fate", "and is ready")
    boss.do("run_now", q="fate", ids=found["retried"])
    has(boss.words(), "0 messages of queue fate", "which it cannot be twice")
    boss.get("/queue", q="fate", tab="dead")
    letter = re.search(r"q=fate.dead&amp;id=(\d+)", boss.text)[1]
    boss.get("/message", q="fate.dead", id=letter)
    for wanted in ("dead letter in queue fate.dead", "Last error broken for good", "because of buried",
                   "of queue fate .", "Attempt 1", "Redrive…"):
        has(boss.words(), wanted, f"a dead letter: {wanted}")
    origin = re.search(r"/message\?q=fate&amp;id=(\d+)", boss.text)[1]
    boss.get("/message", q="fate", id=origin)
    has(boss.words(), f"It became a dead letter: message {letter} of fate.dead", "from its origin, too")
    boss.do("redrive", q="fate.dead", ids=letter)
    has(boss.words(), "1 message redriven from queue fate.dead.", "this one is redriven")
    boss.get("/queue", q="fate", tab="finished")
    has(boss.words(), '✓ completed', "what is finished")
    has(boss.words(), '{"sum": 42}', "with its result")
    done = re.search(r"/message\?q=fate&amp;id=(\d+)\"[^>]*>\d+</a></td>\s*<td[^>]*>[^✕]*?✓", boss.text)[1]
    boss.get("/message", q="fate", id=done)
    has(boss.words(), 'Result { "sum": 42 }', "on its page as well")
    boss.do("cancel", q="fate", ids=found["claimed"])
    boss.get("/message", q="fate", id=found["claimed"])
    has(boss.words(), "cancel pending", "a cancel of what is claimed is pending")
    equal(set(re.findall(r"/ask\?action=(\w+)", boss.text)), set(), "and allows nothing more")


def test_all_that_match(boss):
    """A selection, and all that match, page by page"""
    boss.get("/queue", q="many", tab="free")
    ids = re.findall(r'name="ids" value="(\d+)"', boss.text)[:3]
    boss.get("/ask?" + urlencode({"q": "many", "action": "bury", "ids": ids}, doseq=True))
    has(boss.words(), "Make 3 messages of queue many dead letters?", "the question counts a selection")
    boss.ask("POST", "/do", boss.form() | {"text": "buried by hand"})
    has(boss.words(), "3 messages of queue many: now dead letters.", "which is buried")
    boss.get("/ask", q="many", action="bury", tab="free", source="many")
    has(boss.words(), "Choose messages first", "or none was chosen")

    def sweep(wanted, **values):
        boss.get("/ask", scope="all", source="many", **values)
        becomes(lambda: boss.get("/sweep") and "counting" not in boss.words(), "it counts")
        has(boss.words(), wanted, "the question has the number")
        answer = boss.form()
        boss.yes()
        becomes(lambda: boss.get("/sweep") and re.search(": (done|failed)", boss.words()), "it is done")
        return boss.words(), answer

    words, _ = sweep("Cancel 4,499 messages of queue many?", q="many", action="cancel", tab="free",
                  find="even=true")
    has(words, "4,499 messages done.", "all that match are canceled")
    equal(sql("SELECT total FROM queue_stats('many')"), 4498, "no others")
    sweep("Make 4,498 messages of queue many dead letters?", q="many", action="bury", tab="free")
    equal(sql("SELECT total FROM queue_stats('many.dead')"), 4501, "all of a state are buried")
    boss.get("/queue", q="many", tab="dead")
    has(boss.text, "Redrive all…", "they can be redriven")
    equal(len(re.findall(r'name="ids"', boss.text)), 25, "the latest ones are shown first")
    first = int(re.search(r'name="ids" value="(\d+)"', boss.text)[1])
    equal(first, sql("SELECT newest_id FROM queue_stats('many.dead')"), "the very latest at the top")
    equal(len(set(re.findall(r'name="ids" value="(\d+)"', boss.get(html.unescape(re.search(
        r'href="([^"]*)">Older', boss.text)[1])))) & {str(first)}), 0, "older ones on the next page")
    words, answer = sweep("Redrive 4,501 messages of queue many.dead?", q="many.dead", action="redrive", tab="dead")
    has(words, "4,501 messages done.", "all are")
    equal(sql("SELECT total FROM queue_stats('many')"), 4501, "and are back")
    boss.ask("POST", "/do", answer)
    equal(boss.status, 409, "the answer does not count twice")


def test_bodies(boss):
    """Bodies and errors that are long, or run from right to left"""
    boss.get("/queue", q="odd", tab="all")
    report(len(boss.text) < 20000, "a list has the beginnings", len(boss.text))
    long = re.search(r'name="ids" value="(\d+)"', boss.text)[1]
    boss.get("/message", q="odd", id=long)
    report(100000 < len(boss.text) < 150000, "a page has much of a body", len(boss.text))
    has(boss.text, "All of it, as a file", "and a link to all of it")
    boss.get("/body", q="odd", id=long)
    equal((len(boss.text), boss.headers["content-type"]),
          (262102, "application/json; charset=utf-8"), "which has all")
    has(boss.headers["content-disposition"], "attachment", "and is no page")
    has(boss.headers["content-security-policy"], "default-src 'none'", "that could do anything")


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

    boss.get("/ask", action="pause", q="plain")
    asked = boss.form()
    restart("stop", "-m", "fast")
    boss.get("/batches")
    equal(boss.status, 503, "PostgreSQL is stopped: the page says so")
    has(boss.text, "PostgreSQL does not answer", "in words")
    boss.ask("POST", "/do", asked)
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
    rounds, keys, reads = [], [], {}
    turn, read = module.reader.Reader.turn, module.reader.Reader.round

    def timed(reader):
        """A round begins after this, and the next one is tried no sooner than it may begin."""
        begin, number = time.monotonic(), len(keys)
        turn(reader)
        if reader.role == "boss" and len(keys) > number:
            rounds.append(begin)

    def counted(reader, wanted):
        if wanted and reader.role == "boss":
            keys.append(len(wanted))
            for key in wanted:
                reads.setdefault(key, []).append(time.monotonic())
        return read(reader, wanted)

    module.reader.Reader.turn, module.reader.Reader.round = timed, counted
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
    module.reader.Reader.turn, module.reader.Reader.round = turn, read
    equal(set(pages), {200}, "twenty viewers see their pages")
    gaps = [b - a for a, b in zip(rounds, rounds[1:])]
    report(gaps and min(gaps) >= module.settings.ROUND, "rounds of reads are so far apart",
           f"{min(gaps or [0])}")
    # ten queues, and three things for the page of all queues
    report(max(keys) <= 13, "and read what twenty viewers want once", max(keys))
    twice = [(key, b - a) for key, times in reads.items() for a, b in zip(times, times[1:])
             if b - a < module.settings.FRESH and key[0] != "status"]     # plots read that, too
    equal(twice, [], "nothing is read twice while it is fresh")


def cpu_of(pid):
    with open(f"/proc/{pid}/stat", encoding="ascii") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure(program, directory, seconds=20):
    """What viewers cost, with 10,000 queues: each loads the page of queues every second."""
    os.mkdir(os.path.join(directory, "new"))
    new = Program(os.path.join(directory, "new"), "--listen", "127.0.0.1:0", SERVER)
    visitor, begin = Visitor(new.port), time.monotonic()
    visitor.login("owner", "owner")
    print(f"# a login and the first page: {1000 * (time.monotonic() - begin):.0f} ms", flush=True)
    new.stop()
    viewers = [Visitor(program.port) for _ in range(12)]
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

    for number in (0, 1, 12) * 3:
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
    module.settings.IDLE = 3
    until = time.monotonic() + TIMEOUT
    while "Log out" in visitor.text and time.monotonic() < until:
        visitor.get("/", auto=1)
        time.sleep(0.2)
    report("Log out" not in visitor.text, "a page that refreshes itself does not keep a session")
    becomes(lambda: not sql("SELECT count(*) FROM pg_stat_activity WHERE pid = %s", pid),
            "its connection is closed")
    module.settings.IDLE = 1800
    original, module.settings.SESSIONS = module.settings.SESSIONS, 3
    visitors = [Visitor(port) for _ in range(5)]
    for visitor in visitors:
        visitor.login("eater", "eater")
    equal(["Log out" in visitor.get("/ask?action=pause&q=x") for visitor in visitors],
          [False, False, True, True, True], "a role has so many sessions, the latest ones")
    module.settings.SESSIONS = original


def test_elsewhere(directory):
    for arguments, wanted in (
            ([SERVER + " user=boss"], "neither role nor password"),
            ([SERVER + " password=x"], "neither role nor password"),
            ([], "name the database"), (["--listen", "0.0.0.0:1", SERVER], "--origin"),
            (["--proxy-login", "boss", SERVER], "--proxy-login needs --role"),
            (["--proxy-login", "boss", "--role", "x", SERVER], "everyone could say who they are"),
            (["--listen", "unix:/x", SERVER], "needs --origin"), (["--prefix", "x/", SERVER], "--prefix"),
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


def test_history(module):
    """The numbers for the plots: their size, and what they say"""
    history, now = module.history, [1e9]
    kept = history.History(clock=lambda: now[0])
    rows = [{"project": "", "name": f"queue-{i:05d}", "ready": i, "oldest_ready_age": i,
             "pushed": 0, "completed": 0} for i in range(10000)]
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    for _ in range(2):
        kept.keep(rows, complete=True)
        now[0] += 2400                      # a point of each span
    size = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    equal([len(ring.pages) > 0 for ring in kept.rings.values()], [True] * 3, "all spans are kept")
    report(size <= 10e6, "of 10,000 queues in at most 10 MB", size)
    print(f"# history of 10,000 queues: {size / 1e6:.1f} MB", flush=True)

    kept, now[0] = history.History(clock=lambda: now[0]), 1e9
    row = {"project": "", "name": "q", "ready": 5, "oldest_ready_age": 7, "pushed": 0, "completed": 0}
    for i in range(8640):                   # a day
        kept.keep([row | {"pushed": 20 * i, "completed": 10 * i, "ready": 5 + (i == 8000)}],
                  complete=True)
        now[0] += 10
    for span, (_, points) in history.SPANS.items():
        ready, pushed, done = ([v for _, v in kept.points("", "q", c, span)] for c in (0, 2, 3))
        equal((len(ready), ready[-1], round(pushed[-1], 2), round(done[-1], 2)),
              (points, 5, 2, 1), f"a day of numbers: {span}")
    report(6 in [v for _, v in kept.points("", "q", 0, "1d")], "what was more for a moment is kept")
    equal(max(abs(history.decode(history.encode(n), 0) - n) for n in range(1900)), 0,
          "small numbers are exact")
    report(all(abs(history.decode(history.encode(n), 0) / n - 1) < 0.001 for n in
               (10 ** i for i in range(12))), "large ones nearly")
    kept.keep([], complete=True)
    equal(kept.points("", "q", 0), [], "a queue that is dropped is forgotten")
    clocks = module.show
    equal(clocks.clock("2026-11-29T22:07:12.1+05:30"), "2026-11-29 22:07:12 +05:30", "times have a zone")


class SocketVisitor(Visitor):
    """One who comes through a Unix socket."""

    def __init__(self, path, host):
        super().__init__(0)
        self.host, self.path = host, path

    def connection(self):
        connection = http.client.HTTPConnection("localhost", timeout=TIMEOUT)
        connection.sock = socket.socket(socket.AF_UNIX)
        connection.sock.connect(self.path)
        return connection


def test_proxy(directory):
    """Behind a proxy that says who the visitor is, mounted under a path"""
    where = os.path.join(directory, "proxy")
    os.mkdir(where)
    files = {"passwords": "*:*:*:doorman:doorman\n", "secret": "a shared secret of the two"}
    for name, text in files.items():
        with open(os.path.join(where, name), "w", encoding="ascii") as file:
            file.write(text)
        os.chmod(file.name, 0o600)
    program = Program(where, "--listen", "127.0.0.1:0", "--prefix", "/some/queues", "--role",
                      "doorman", "--proxy-login", "eater,owner,chief", "--proxy-secret",
                      os.path.join(where, "secret"), SERVER, PGPASSFILE=os.path.join(where, "passwords"))
    secret = {"X_Queue_Web_Secret": files["secret"]}
    visitor = Visitor(program.port)
    for name, headers, status in (
            ("without the secret", {"X_Remote_User": "eater"}, 403),
            ("with a wrong secret", {"X_Remote_User": "eater", "X_Queue_Web_Secret": "x"}, 403),
            ("without a role", secret, 403),
            ("a role that is not on the list", secret | {"X_Remote_User": "boss"}, 403),
            ("a role that its own cannot become", secret | {"X_Remote_User": "owner"}, 403),
            ("a superuser", secret | {"X_Remote_User": "chief"}, 403),
            ("a role on the list", secret | {"X_Remote_User": "eater"}, 200)):
        visitor.ask("GET", "/some/queues/", **headers)
        equal(visitor.status, status, f"proxy: {name}")
        report(("q00001" in visitor.text) == (status == 200), "and what it sees")
    has(visitor.words(), "Role eater", "its pages name the role")
    report("Log out" not in visitor.text, "it cannot log out")
    links = re.findall(r'(?:href|src|action)="([^"]+)"', visitor.text)
    equal([v for v in links if not v.startswith(("/some/queues/", "#", "data:"))], [],
          "all addresses are below the path")
    has(visitor.headers.get("set-cookie", "Path=/some/queues/"), "Path=/some/queues/", "the cookie, too")
    headers = secret | {"X_Remote_User": "eater"}
    visitor.ask("GET", "/some/queues/ask?action=cancel&q=html&ids=1", **headers)
    form = visitor.form()
    visitor.ask("POST", "/some/queues/do", form, **secret | {"X_Remote_User": "owner"})
    equal(visitor.status, 403, "a form of another role's session")
    visitor.ask("POST", "/some/queues/do", form, follow=False, **headers)
    equal((visitor.status, visitor.headers["location"]), (303, "/some/queues/queue?q=html"),
          "a change")
    visitor.ask("GET", "/some/queues", **headers)
    equal(visitor.status, 200, "the path without a / at its end")
    visitor.ask("GET", "/", **headers)
    equal(visitor.status, 403, "nothing is elsewhere")
    visitor.ask("POST", "/some/queues/login", {"token": "x", "user": "eater", "password": "eater"},
                **headers)
    equal(visitor.status, 403, "nobody logs in with a password")
    becomes(lambda: sql("SELECT count(*) = 2 FROM pg_stat_activity WHERE usename = 'doorman'"),
            "its own role keeps the numbers for the plots")
    program.stop()

    path = os.path.join(where, "socket")
    program = Program(where, "--listen", f"unix:{path}", "--origin", "https://queues.example.org",
                      "--role", "doorman", "--proxy-login", "eater", SERVER,
                      PGPASSFILE=os.path.join(where, "passwords"))
    becomes(lambda: os.path.exists(path), "a Unix socket")
    equal(os.stat(path).st_mode & 0o777, 0o660, "for its owner and group")
    visitor = SocketVisitor(path, "queues.example.org")
    visitor.ask("GET", "/", X_Remote_User="eater", Host="queues.example.org")
    has(visitor.words(), "Role eater", "the role that the proxy names there")
    has(visitor.headers["set-cookie"], "__Host-queue_web", "the cookie is for https alone")
    program.stop()
    report(files["secret"] not in program.log() and "Traceback" not in program.log(),
           "its log is clean", program.log())


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
        """What must hold for every page, in both schemes."""
        for scheme in "light", "dark":
            self.size(width, scheme)
            self.look(f"{name}, {width} pixels, {scheme}", width)

    def look(self, name, width):
        wrong = self.run("""
            const wrong = [];
            if (innerWidth !== arguments[0] || document.documentElement.scrollWidth > innerWidth)
                wrong.push('width ' + document.documentElement.scrollWidth);
            for (const e of document.querySelectorAll(
                    'script:not([src$="/static/page.js"]), iframe, object, embed, img, i, [onerror], [style]'))
                wrong.push(e.outerHTML);
            for (const e of document.querySelectorAll(
                    'input:not([type=hidden]), select, textarea, button'))
                if (!e.textContent.trim() && !e.labels.length || e.type !== 'hidden' &&
                        e.tagName !== 'BUTTON' && !e.labels.length)
                    wrong.push('no label: ' + e.outerHTML);
            for (const e of document.querySelectorAll('svg'))
                if (!['img', 'slider'].includes(e.getAttribute('role')) || !e.getAttribute('aria-label'))
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
        report(not wrong, name, wrong)
        if AXE:
            found = self.driver.execute_cdp_cmd("Runtime.evaluate", {
                "expression": AXE + """; axe.run(document, {runOnly: ["wcag2a", "wcag2aa",
                    "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]}).then(r => JSON.stringify(
                    r.violations.map(v => [v.id, v.nodes[0].html, v.nodes[0].failureSummary])))""",
                "awaitPromise": True, "returnByValue": True})["result"].get("value")
            equal(found, "[]", f"axe finds nothing: {name}")

    def console(self):
        return [e["message"] for e in self.driver.get_log("browser")
                if e["level"] in ("SEVERE", "WARNING")]


def log_in(browser, program, user="boss", password=PASSWORD):
    from selenium.webdriver.common.keys import Keys

    browser.driver.delete_all_cookies()
    browser.driver.get(f"http://127.0.0.1:{program.port}/")
    browser.tab_to("user")
    browser.press(user, Keys.TAB, password)
    browser.enter("Log in")
    has(browser.driver.title, "Queues", f"{user} logs in with the keyboard")


def test_browser(browser, program, width):
    """Every page in one width and both schemes, with the keyboard alone"""
    from selenium.webdriver.common.keys import Keys

    base = f"http://127.0.0.1:{program.port}"
    browser.size(width, "light")
    browser.driver.delete_all_cookies()
    browser.driver.get(base + "/")
    browser.examine("the login form", width)
    log_in(browser, program)
    browser.examine("the queues", width)
    report(not browser.run("return document.cookie"), "no script could read the cookie")
    where = browser.run("return document.getElementById('where').innerText")
    report(all(w in where for w in ("postgres", "PostgreSQL 1", "boss")),
           "database, server and role are named", where)
    if width < 500:
        rows = browser.run("""return [...document.querySelectorAll('.list tbody tr')].map(
            e => e.getBoundingClientRect().height)""")
        report(len(rows) == 50 and max(rows) <= 64, "ten queues are on a screen of a phone", rows)
    browser.tab_to("find")
    browser.press("tml")
    browser.enter("Show")
    has(browser.text(), "1 queue", "a filter")
    has(browser.text(), "html.dead", "with its dead letters beside it")
    browser.enter("/queue?q=html")
    browser.examine("a queue", width)
    browser.enter("All")
    browser.examine("messages that are HTML", width)
    has(browser.run("return document.body.textContent"), "<script>alert(1)</script>", "are text")
    if width < 500:
        rows = browser.run("""return [...document.querySelectorAll('.list tbody tr')].map(
            e => e.getBoundingClientRect().height)""")
        report(len(rows) == 25 and max(rows) <= 64, "ten messages are on a screen of a phone", rows)
    if browser.tab_to("no such element", 20):
        report(False, "tab_to fails")
    browser.run("document.activeElement.blur()")
    for tab, wanted in (("Groups", "<img src=x"), ("Failures", "<h1>"), ("Dead letters", "<h1>"),
                        ("Finished", "keeps no history"), ("Delayed", "waits for retry")):
        browser.driver.get(f"{base}/queue?q=html")
        browser.enter("/queue?q=html&tab=" + tab.lower().replace(" letters", ""))
        has(browser.run("return document.body.textContent"), wanted, f"{tab} are text")
        browser.examine(f"{tab} that are HTML", width)
    browser.enter(browser.run("return document.querySelector('.list .first a').textContent"))
    browser.examine("a message", width)
    for label in ("Jobs", "Batches", "Schedules", "Queues"):
        browser.enter(label)
        browser.examine(label, width)
    for name, path in (("a long body", "/queue?q=odd&tab=all"), ("a search", "/queue?q=fate&tab=all&find=n%3Ddelayed"),
                       ("finished jobs", "/queue?q=fate&tab=finished"), ("a wrong search", "/queue?q=fate&tab=all&find=%5B"),
                       ("nothing", "/queue?q=nope"), ("a message that is gone", "/message?q=odd&id=1")):
        browser.driver.get(base + path)
        browser.examine(name, width)
        if name == "a long body":
            browser.enter(browser.run("return document.querySelector('.list .first a').textContent"))
            browser.examine("a body of 256 kB", width)
            browser.driver.back()
            browser.enter(browser.run("return document.querySelectorAll('.list .first a')[1].textContent"))
            browser.examine("a body that runs from right to left", width)
    browser.driver.get(base + "/")
    browser.enter("Next page")
    browser.enter("/queue?q=q00060")
    browser.enter("Purge…")
    browser.examine("a question", width)
    equal(sql("SELECT total FROM queue_stats('q00060')"), 1, "it is only asked so far")
    browser.enter("No, go back")
    equal(sql("SELECT total FROM queue_stats('q00060')"), 1, "the answer was no")
    browser.enter("Purge…")
    browser.enter("Yes: Purge")
    has(browser.text(), "Queue q00060 is purged: 1 message removed.", "the answer was yes")
    equal(sql("SELECT total FROM queue_stats('q00060')"), 0, "it is purged")
    sql("SELECT queue_push('q00060', '1'::jsonb)")
    test_refresh(browser, base)
    test_push_form(browser, base, width)
    test_states(browser, base, width)
    equal([e for e in browser.console() if not re.search("status of (404|409)", e)], [], "the console has no errors")
    equal([o for o in browser.outlines if o[0] == "none" or o[1] == "0px"], [],
          "one sees where the focus is")


def test_push_form(browser, base, width):
    """A message is pushed with the keyboard alone"""
    from selenium.webdriver.common.keys import Keys

    browser.driver.get(base + "/queue?q=q00062")
    report(not browser.run("return document.getElementById('body').checkVisibility()"),
           "the form to push is closed")
    browser.tab_to("Push a message")
    browser.press(Keys.ENTER)
    browser.examine("the form to push", width)
    browser.tab_to("body")
    browser.press('{"n": 1')
    key = browser.run("return document.querySelector('#push [name=key]').value")
    read = browser.run("return document.getElementById('read').textContent")
    becomes(lambda: browser.run("return document.getElementById('read').textContent") != read,
            "the page is read again")
    equal(browser.run("""return [document.getElementById('push').open, document.activeElement.id,
        document.activeElement.value, document.querySelector('#push [name=key]').value]"""),
          [True, "body", '{"n": 1', key], "the form is open, with what was typed")
    browser.enter("Push")
    has(browser.text(), "Not pushed. The body is no JSON:", "no JSON")
    browser.examine("what was refused", width)
    equal(browser.run("return [document.activeElement.id, document.activeElement.value]"),
          ["body", '{"n": 1'], "what was typed is there to be corrected")
    browser.press(Keys.END, "}")
    for field, value in ("priority", "8"), ("delay", "864000"), ("group", "<b>g</b>"):
        browser.tab_to(field)
        browser.press(value)
    browser.enter("Push")
    has(browser.text(), "was pushed to queue q00062", "it is pushed")
    has(browser.text(), "in 10 d", "and its page is there")
    browser.examine("what was pushed", width)
    equal(sql("SELECT array[body = '{\"n\": 1}', priority = 8, group_key = '<b>g</b>'] FROM"
              " queue_browse('q00062'::text, 'delayed'::text)"), [True] * 3, "as typed")
    browser.driver.refresh()
    equal(sql("SELECT queue_purge('q00062')"), 2, "once")
    sql("SELECT queue_push('q00062', '1'::jsonb)")


def test_refresh(browser, base):
    """A page that is read again keeps what a person has done there"""
    from selenium.webdriver.common.keys import Keys

    browser.driver.get(base + "/queue?q=q00061")
    browser.run("document.getElementById('metadata').open = true")
    browser.run("document.querySelector('#metadata summary').focus(); scrollTo(0, 100)")
    before = browser.run("return [scrollY, document.getElementById('read').textContent]")
    sql("SELECT queue_push('q00061', '1'::jsonb)")
    becomes(lambda: browser.run("return [...document.querySelectorAll('.numbers dd')]"
                                ".map(e => e.innerText.trim())[2]") == "2",
            "the page shows a new number by itself")
    sql("SELECT queue_pop('q00061')")
    report(browser.run("return document.getElementById('metadata').open"), "what was open stays open")
    equal(browser.run("return document.activeElement.textContent"), "Settings of the queue",
          "the focus stays")
    equal(browser.run("return scrollY"), before[0], "and the page stays where it was")
    becomes(lambda: browser.run("return document.querySelectorAll('.plot .point').length") >= 1,
            "a plot has a point")
    browser.run("document.querySelector('.plot svg').focus()")
    browser.press(Keys.HOME)
    has(browser.run("return document.querySelector('.plot svg').getAttribute('aria-valuetext')"),
        "UTC: ", "the keyboard reads values of a plot")
    browser.driver.get(base + "/queue?q=many&tab=free")
    browser.run("document.querySelector('[name=ids]').click()")
    read = browser.run("return document.getElementById('read').textContent")
    becomes(lambda: browser.run("return document.getElementById('read').textContent") != read,
            "a list is read again")
    report(browser.run("return document.querySelector('[name=ids]').checked"), "what was ticked stays")
    browser.run("document.querySelector('#live button').click()")
    has(browser.text(), "Refresh goes on", "it can be stopped")
    browser.run("document.querySelector('#live button').click()")


def test_states(browser, base, width):
    """The other states of a message, a queue and an action"""
    for state in "free", "claimed", "delayed", "waiting", "canceled":
        found = sql("SELECT id FROM queue_browse('fate'::text, %s::text)", state)
        if found:
            browser.driver.get(f"{base}/message?q=fate&id={found}")
            browser.examine(f"a message: {state}", width)
    for name, path in (
            ("a message that is finished", "/message?q=fate&id="
             + str(sql("SELECT id FROM queue_finished('fate') WHERE outcome = 'completed'"))),
            ("a dead letter", "/message?q=html.dead&id="
             + str(sql("SELECT id FROM queue_dead_letters('html.dead')"))),
            ("a queue of dead letters", "/queue?q=html.dead"), ("an hour", "/queue?q=html&span=1h"),
            ("a day", "/queue?q=html&span=1d"), ("a queue that is paused", "/queue?q=halted"),
            ("a handler that is stopped", "/queue?q=stopped"), ("one that runs", "/queue?q=work"),
            ("what needs a person", "/?only=trouble&sort=dead_letters"),
            ("no queue like this", "/?find=none-such"), ("a page that is not there", "/nope"),
            ("a project that runs from right to left", "/?" + urlencode({"project": RTL})),
            ("groups that do", "/queue?q=odd&tab=groups"),
            ("a batch that does", "/batch?id="
             + str(sql("SET ROLE boss; SELECT max(batch) FROM batch_list()"))),
            ("a question about all that match",
             "/ask?q=html.dead&source=html&tab=dead&scope=all&action=redrive"),
            ("a question with a field", "/ask?q=fate&action=bury&ids=1&ids=2")):
        browser.driver.get(base + path)
        if "scope=all" in path:
            becomes(lambda: "counting" not in browser.driver.title and browser.text(), name)
        browser.examine(name, width)
    form = browser.run("return document.querySelector('.card').outerHTML")
    browser.enter("Yes: Make dead letter")
    browser.examine("what was done", width)
    browser.run("document.getElementById('main').innerHTML = arguments[0];"
                " document.querySelector('.card').submit()", form)
    becomes(lambda: "This was answered already" in browser.driver.title,
            "an answer that comes twice is refused")
    browser.examine("an answer that comes twice", width)
    browser.driver.get(f"{base}/ask?q=plain&source=plain&tab=free&scope=all&action=bury&find=x%3D0")
    becomes(lambda: "No message matches" in browser.text(), "nothing matches")
    browser.examine("nothing matches", width)


def test_little(browser, program, width):
    """The pages of a role that may do nothing, a wrong password, a database that is lost"""
    base = f"http://127.0.0.1:{program.port}"
    log_in(browser, program, "stranger", "stranger")
    for path in "/", "/queue?q=html", "/queue?q=html&tab=all", "/message?q=html&id=1", "/jobs", "/batches":
        browser.driver.get(base + path)
        browser.examine(f"a role that may do nothing: {path}", width)
        has(browser.text(), "stranger may not see this", "reads a sentence")
    sql("ALTER ROLE stranger CONNECTION LIMIT 0")
    sql("SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE usename = 'stranger'")
    until = time.monotonic() + TIMEOUT
    while "does not answer" not in browser.driver.title and time.monotonic() < until:
        browser.driver.get(base + "/schedules")
    browser.examine("a database that is lost", width)
    sql("ALTER ROLE stranger CONNECTION LIMIT -1")
    browser.driver.delete_all_cookies()
    browser.driver.get(base + "/")
    browser.tab_to("user")
    from selenium.webdriver.common.keys import Keys
    browser.press("boss", Keys.TAB, "wrong")
    browser.enter("Log in")
    has(browser.text(), "password authentication failed", "a wrong password")
    browser.examine("a wrong password", width)
    browser.console()


def test_clicks(browser, program):
    """From the first page: the failing queue, its error, retry one, redrive the rest"""
    base = f"http://127.0.0.1:{program.port}"
    sql("SELECT count(messages_bury('many'::text, (SELECT array_agg(id) FROM (SELECT id FROM "
        "queue_browse('many'::text, 'free'::text, NULL::jsonb, NULL::bigint, 40)) AS b), 'SMTP: 450'::text))")
    browser.size(1280, "light")
    log_in(browser, program)
    until = time.monotonic() + TIMEOUT
    while "many" not in browser.run("return document.querySelector('.needs')?.innerText || ''"):
        if time.monotonic() > until:
            break
        browser.driver.get(base + "/")
    clicks = []

    def click(selector, text=""):
        browser.run("window.old = true; [...document.querySelectorAll(arguments[0])].find("
                    "e => e.textContent.includes(arguments[1])).click()", selector, text)
        clicks.append(text)
        becomes(lambda: browser.run("return !window.old && document.readyState === 'complete'"),
                f"a click: {text}")

    click(".needs a", "many")
    has(browser.text(), "SMTP: 450", "the error is seen")
    click(".list .first a")
    has(browser.text(), "Attempts that failed", "with every attempt, on the page of the message")
    click(".buttons a", "Redrive")
    click("button", "Yes")
    has(browser.text(), "1 message redriven", "one is retried")
    click(".buttons a", "Redrive all")
    becomes(lambda: "Redrive 39 messages" in browser.text(), "the question says how many")
    click("button", "Yes")
    becomes(lambda: "39 messages done" in browser.text(), "the rest is redriven")
    report(len(clicks) <= 6, f"{len(clicks)} clicks", clicks)


def test_without_script(browser, program):
    """The same without JavaScript"""
    from selenium.common.exceptions import StaleElementReferenceException
    from selenium.webdriver.common.keys import Keys

    browser.driver.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    base = f"http://127.0.0.1:{program.port}"
    browser.size(1280, "light")
    browser.driver.delete_all_cookies()
    browser.driver.get(base + "/")

    def gone(element):
        try:
            element.is_enabled()
        except StaleElementReferenceException:
            return True
        return False

    def submit(selector, **values):
        for name, value in values.items():
            browser.driver.find_element("css selector", f"[name={name}]").send_keys(value)
        old = browser.driver.find_element("css selector", selector)
        old.click()
        becomes(lambda: gone(old), f"without JavaScript: {selector} leads to a page")

    submit("button", user="boss", password=PASSWORD)
    has(browser.driver.title, "Queues", "without JavaScript: a login")
    browser.driver.get(base + "/queue?q=many&tab=free")
    has(browser.driver.page_source, ">every 5 seconds</a>", "a page can be read again by itself")
    browser.driver.find_element("css selector", "[name=ids]").click()
    submit("[name=action][value=bury]")
    submit(".card button", text="by hand")
    has(browser.driver.page_source, "1 message of queue many: now dead letters.", "a selection")
    browser.driver.get(base + "/queue?q=many&tab=dead")
    submit(".buttons a.main")
    becomes(lambda: "Redrive 1 message of" in browser.driver.page_source, "all that match: counted")
    submit(".card button")
    becomes(lambda: "1 message done." in browser.driver.page_source, "and done")
    browser.driver.get(base + "/queue?q=q00060")
    has(browser.driver.page_source, "These numbers as a table", "plots have a table")
    browser.driver.find_element("css selector", "#push summary").click()
    submit("#push button", body="[")
    submit("#push button", body=Keys.END + "]")
    has(browser.driver.page_source, "was pushed to queue q00060", "a push")
    browser.driver.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})


def test_attacker(browser, program):
    """A page on another port, which for cookies is the same site."""
    base = f"http://127.0.0.1:{program.port}"
    token = "0" * 64
    page = (f'<form id=f method=post action="{base}/do">'
            + "".join(f'<input name="{k}" value="{v}">' for k, v in (
                ("token", token), ("key", "x"))) + f'</form><iframe id=i src="{base}/"></iframe>')

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
        for width in 360, 1280, 1920:
            test_browser(browser, program, width)
            test_little(browser, program, width)
        test_clicks(browser, program)
        test_without_script(browser, program)
        test_attacker(browser, program)
    finally:
        browser.driver.quit()


def test_demo(directory):
    """The demonstration; in the long form for two minutes, with pictures for the manual."""
    os.mkdir(os.path.join(directory, "demo"))
    program = Program(os.path.join(directory, "demo"), "--demo", "--listen", "127.0.0.1:0")
    becomes(lambda: "its database:" in program.log(), "the demonstration starts")
    passwords = dict(re.findall(r"log in as (\w+), password (\S+)", program.log()))
    guest, visitor = Visitor(program.port), Visitor(program.port)
    guest.login("guest", passwords["guest"])
    has(guest.text, "q=mail&amp;tab=dead", "it has queues")
    visitor.login("demo", passwords["demo"])

    def completed():
        visitor.get("/queue", q="mail")
        return int(re.search(r"Completed ([0-9,]+)", visitor.words())[1].replace(",", ""))

    first = completed()
    becomes(lambda: completed() > first, "which change")
    where = re.search(r"psql -h (\S+)", program.log())[1]
    with psycopg.connect(host=where, port=5432, dbname="postgres", user="demo",
                         password=passwords["demo"]) as db:
        db.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                   "WHERE query ~ 'demo_tick' AND pid <> pg_backend_pid()")
    becomes(lambda: "the load has lost its connection" in program.log(), "the load is cut off")
    first = completed()
    becomes(lambda: completed() > first, "and goes on")
    if LONG:
        time.sleep(150)
        browser = Browser(directory)
        try:
            browser.driver.get(f"http://127.0.0.1:{program.port}/")
            browser.driver.add_cookie({"name": next(iter(visitor.cookies)),
                                       "value": next(iter(visitor.cookies.values()))})
            visitor.get("/queue", q="mail", tab="dead")
            dead = re.findall(r'href="(/message[^"]*)"', visitor.text.replace("&amp;", "&"))
            for width, path, name in ((1280, "/", "web-queues"),
                                      (360, "/queue?q=mail", "web-queue"),
                                      (1280, dead[0], "web-dead")):
                browser.size(width, "light", 640)
                browser.driver.get(f"http://127.0.0.1:{program.port}{path}")
                browser.driver.save_screenshot(os.path.join(
                    os.environ.get("TMPDIR", directory), name + ".png"))
        finally:
            browser.driver.quit()
    equal(program.stop(), 0, "SIGTERM ends it")
    report(not os.path.exists(where), "and nothing of it is left")
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
        test_proxy(directory)
        program = Program(directory, "--listen", "127.0.0.1:0", SERVER)
        module = load()
        server = module.server.make_server(SERVER, "127.0.0.1", 0)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            test_history(module)
            boss = test_login(program)
            test_forged(program, boss)
            owner = test_rights(program)
            test_queue(boss, owner)
            test_push(program, boss, owner)
            test_fates(boss)
            test_all_that_match(boss)
            test_bodies(boss)
            test_strangers(module, server.server_port)
            test_reads(module, server.server_port, 5)
            if LONG:
                measure(program, directory)
            test_idle(module, server.server_port)
            if LONG:
                test_pages(directory, program)
            test_lost(program, boss, owner)
            test_secrets(program, (boss, owner))
        finally:
            equal(program.stop(), 0, "SIGTERM ends it")


if __name__ == "__main__":
    main()
