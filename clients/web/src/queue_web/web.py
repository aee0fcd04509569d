"""What all pages share: values of a request, who it is from, and the frame of a page."""
import functools
import os
import re
import secrets
import time

import bottle
import psycopg
from bottle import HTTPError, request, response

from . import actions, plots, sessions, show
from .database import Ended, Login, connect
from .settings import PUSH, REFRESH, log, site
from .show import Html, url

app = bottle.Bottle()
bottle.BaseRequest.MEMFILE_MAX = PUSH      # longer ones never come here (server.py)
TEMPLATES = [os.path.join(os.path.dirname(os.path.abspath(__file__)), "templates")]
PAGES = (("/", "Queues"), ("/jobs", "Jobs"), ("/batches", "Batches"), ("/schedules", "Schedules"))
SECTIONS = {"jobs": "Jobs", "batches": "Batches", "batch": "Batches", "schedules": "Schedules"}


def arg(name):
    """A value of the form or the URL; without what is no text for PostgreSQL."""
    return (request.params.getunicode(name) or "").replace("\0", "")


def number(name):
    if not re.fullmatch("[0-9]{0,18}", arg(name)):
        raise HTTPError(404, "There is no such number.")
    return int(arg(name) or 0)


def here(**values):
    """The address of this page, with other values.  Only what is typed into URLs is in it."""
    kept = {k: request.query.getunicode(k) for k in request.query
            if k not in ("auto", "self", "path")}
    return url(request.path, **kept | values)


def go_to(address):
    """A redirection that trusts no header of the request."""
    response.status = 303
    response.set_header("Location", address)
    return ""


#
# Cookies and tokens
#

def set_cookie(name, value, **options):
    response.set_cookie(name, value, path=site.cookie_path, httponly=True, samesite="strict",
                        secure=site.secure, **options)


def new_cookie():
    value = request.environ["queue_web.cookie"] = secrets.token_urlsafe(32)
    set_cookie(site.cookie, value)
    return value


def token():
    """What a form carries, so that no other site can send it."""
    value = request.environ.get("queue_web.cookie") or request.get_cookie(site.cookie)
    return sessions.token(value or new_cookie())


@app.hook("before_request")
def check():
    if request.method == "POST" and not sessions.same(arg("token"), token()):
        log("refused a form without the token of its session")
        raise HTTPError(403, "This form is too old, or comes from another site.")
    if len(arg("project").encode()) > 256:
        raise HTTPError(404, "There is no such project.")


#
# Who a request is from
#

def for_role(view):
    """A page that needs a session."""
    @functools.wraps(view)
    def page(*values):
        sessions.expire()
        session = None
        try:
            session = sessions.sessions.get(request.get_cookie(site.cookie))
            if site.proxy_roles:
                session = of_proxy(session)
            if not session:
                return login_page()
            if "auto" not in request.query:     # no visitor has asked for those
                session.seen = time.monotonic()
            if session.reader.ended:
                raise Ended(session.reader.ended)
            return view(session, *values)
        except Ended as error:
            end_session()
            return login_page(f"Your session has ended. {error}")
        except psycopg.Error as error:
            response.status = 503
            return render("PostgreSQL does not answer", "error", session, error=error)
    return page


def of_proxy(session):
    """The session of the role that the proxy has named: this one, or a new one."""
    role = request.environ.get("HTTP_" + site.proxy_header.upper().replace("-", "_"), "")
    if role not in site.proxy_roles:
        log(f"refused the role {role!r}, which the proxy has named")
        raise HTTPError(403, f"The proxy has named the role “{role}”, which is not on the list"
                        " of queue_web." if role else "The proxy has named no role.")
    if session and session.reader.role == role:
        return session
    if request.method == "POST":
        raise HTTPError(403, "This form belongs to another session.")
    login = Login(role)
    log(f"login of role {role!r} by the proxy")
    return sessions.begin(login, connect(login), new_cookie())


def end_session():
    with sessions.lock:
        sessions.end(request.get_cookie(site.cookie))


def visitor_address(environ):
    """Behind a proxy, what that has added to X-Forwarded-For."""
    given = environ.get("HTTP_X_FORWARDED_FOR", "") if site.forwarded else ""
    return (re.sub("[^0-9A-Fa-f:.]", "", given.rpartition(",")[2])[:45]
            or environ["REMOTE_ADDR"] or "a local socket")


def login_page(error="", status=403):
    response.status = status if error else 200
    wanted = arg("wanted") or (f"{request.fullpath}?{request.query_string}"
                               if request.method == "GET" else "")
    return render("Log in", "login", None, error=error, wanted=wanted, proxy=bool(site.proxy_roles))


@app.post("/login")
def login():
    if site.proxy_roles:
        raise HTTPError(403, "The proxy says who you are.")
    role, password = arg("user"), arg("password")
    address = visitor_address(request.environ)
    mark = f"queue_web_known_{site.cookie[-5:]}"
    attempt = sessions.may_try(role, address, request.get_cookie(mark) or "")
    if not attempt:
        return login_page("Too many failed logins. Wait for a minute.", 429)
    said = f"login of role {role!r} from {address}"
    try:
        if not role or not password:
            raise Ended("A role and its password are needed.")
        wanted = Login(role, password)
        db = connect(wanted)
    except (Ended, psycopg.Error) as error:
        log(f"{said} failed: {error}")
        return login_page(error)
    log(said)
    sessions.succeeded(attempt)
    set_cookie(mark, sessions.known_browser(role), max_age=90 * 86400)
    sessions.begin(wanted, db, new_cookie())
    back = arg("wanted")
    safe = re.fullmatch(r"/[a-z]*\?[!-~]*", back.removeprefix(site.prefix))
    return go_to(back if safe and back.startswith(site.prefix + "/") else url("/"))


@app.post("/logout")
def logout():
    end_session()
    new_cookie()
    return go_to(url("/"))


#
# The frame
#

def template(name, /, **values):
    return bottle.template(name, template_lookup=TEMPLATES, show=show, plots=plots, url=project_url,
                           link=project_link, counted=actions.counted, **values)


def project_url(path, /, **values):
    return url(path, **{"project": arg("project")} | values)


def project_link(label, path, /, **values):
    return show.link(label, path, **{"project": arg("project")} | values)


def render(title, body, session, /, refresh=REFRESH, **values):
    """A page: the template "body" in the frame."""
    every = arg("every") == str(REFRESH)
    if session and refresh and request.method == "GET" and body == "sweep":
        response.set_header("Refresh", str(refresh))    # there is nothing that would lose focus
    frame = {"token": token(), "title": title, "session": session, "here": here,
             "project": arg("project"), "notice": session and session.notice}
    if session:
        session.notice = None
    content = Html(template(body, **frame | values))
    return template("base", **frame, body=content, refresh=session and refresh, every=every,
                    pages=PAGES, section=SECTIONS.get(body, "Queues"), prefix=site.prefix,
                    now=time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime()))


def error_page(error):
    return template("base", title=error.status_line, session=None, notice=None, refresh=0,
                    every=False, here=here, token="", project="", prefix=site.prefix,
                    body=Html(template("error", error=error.body or "")))


app.default_error_handler = error_page
