"""Questions, and what is done when the answer is yes.

A question and its values are kept in the session; the form that answers it has only its key,
which is used once.  So a form that is sent again, or with other values, changes nothing.  A push
asks no question, and its form has such a key, too.
"""
import json

import psycopg
from bottle import HTTPError, request, response

from .actions import ACTIONS, OF_MESSAGES, counted, label, push, run
from .data import PUSH, STATES
from .database import Ended, connect, sentence
from .pages import show_queue
from .settings import BODY, log
from .show import filter_of, url
from .sweep import Sweep
from .web import app, arg, for_role, go_to, number, render

MOST = 1000                         # messages that can be chosen at once


def values_of(action):
    """What a page names: the values of the action, and the page to go back to."""
    values = {"project": arg("project"), "q": arg("q"), "id": number("id"), "ids": chosen_ids(),
              "text": None}
    if action == "cancel_batch":
        return values, url("/batch", project=arg("project"), id=values["id"])
    if arg("tab") == "message":     # of which it was asked
        return values, url("/message", project=arg("project"), q=arg("q"), id=max(values["ids"], default=0))
    back = {"project": arg("project"), "q": arg("source") or arg("q"), "tab": arg("tab")}
    return values, url("/queue", **back, find=arg("find"))


def chosen_ids():
    ids = request.query.getall("ids")
    if len(ids) > MOST or not all(i.isdecimal() and i.isascii() and len(i) < 19 for i in ids):
        raise HTTPError(404, "There are no such messages.")
    return sorted({int(i) for i in ids})


@app.get("/ask")
@for_role
def ask_page(session):
    """The question before a change."""
    name = arg("action")
    if name not in ACTIONS:
        raise HTTPError(404, "There is no such action.")
    action = ACTIONS[name]
    values, back = values_of(name)
    if name in OF_MESSAGES and arg("scope") == "all":
        return begin_sweep(session, name, values, back)
    if name in OF_MESSAGES and not values["ids"]:
        session.notice = "Choose messages first, or “all that match”."
        return go_to(back)
    ids = values["ids"]
    what = f"message {ids[0]}" if len(ids) == 1 else counted(len(ids))
    key = session.ask((name, values, back))
    return render(action.question.format(what=what, **values), "ask", session, refresh=0,
                  action=action, yes=f"Yes: {label(name)}", key=key, back=back, ids=ids,
                  q=values["q"])


@app.post("/do")
@for_role
def do(session):
    """On a connection of its own, so PostgreSQL checks the password again."""
    asked = session.answer(arg("key"))
    if not asked:
        response.status = 409
        return render("This was answered already", "answered", session, refresh=0)
    name, values, back = asked
    if isinstance(values, Sweep):
        values.values["text"] = arg("text")[:1000] or None
        values.state = "acting"
        values.start(values.act)
        return go_to(url("/sweep"))
    values["text"] = arg("text")[:1000] or None
    done, why = changed(session, values["project"], ACTIONS[name].needs,
                        lambda db: run(db, name, values))
    session.notice = result = done or why
    log(f"role {session.reader.role!r}: {name} {values!r}: {result}")
    session.reader.forget()
    return go_to(back)


@app.post("/queue")
@for_role
def push_form(session):
    """Pushes what was typed; if that is refused, it is shown again."""
    project, q = arg("project"), arg("q")
    values = {"q": q, "body": arg("body"), "priority": arg("priority") or "0",
              "delay": arg("delay") or None, "group": arg("group") or None}
    if len(values["body"]) >= BODY:     # browsers have cut it off there
        return show_queue(session, f"Not pushed. A body has less than {BODY:,} characters here.")
    try:
        json.loads(values["body"])
    except (ValueError, RecursionError) as error:
        return show_queue(session, f"Not pushed. The body is no JSON: {error}.")
    if not session.sent(arg("key"), project, q):
        response.status = 409
        return show_queue(session, "Not pushed. This form was sent already, or is too old. Push"
                          " again if you mean another message.")
    id_, why = changed(session, project, PUSH, lambda db: push(db, values))
    log(f"role {session.reader.role!r}: push to {q!r} of project {project!r}: message {id_}")
    session.reader.forget()
    if not id_:
        return show_queue(session, why or "Not pushed. The queue was dropped.")
    session.notice = f"Message {id_} was pushed to queue {q}."
    found, = session.reader.get(("queue", project, q))
    if not found.get("depth"):      # a role that may push need not see messages
        return go_to(url("/queue", project=project, q=q))
    return go_to(url("/message", project=project, q=q, id=id_))


def changed(session, project, needs, call):
    """What the call gives, with a connection, and None; or None, and why it was not done."""
    reader = session.reader
    try:
        db = connect(reader.login, write=True)
    except Ended as error:
        reader.end(error)
        raise
    try:
        db.project(project)
        return call(db), None
    except psycopg.Error as error:
        if not error.sqlstate or error.sqlstate.startswith("57P"):
            return None, f"The connection was lost: look whether it was done. {error}"
        if error.sqlstate == "42501":
            return None, f"Not done. The role {reader.role} may not do this: it needs {needs}."
        return None, f"Not done. {sentence(error, reader.role, needs)}"
    finally:
        db.close()


#
# All that match
#

def begin_sweep(session, name, values, back):
    """Counts what matches; the page of the sweep asks when it has."""
    tab, find = arg("tab"), arg("find").strip()
    try:
        find = filter_of(find) if find else None
    except ValueError as error:
        session.notice = str(error)
        return go_to(back)
    if session.sweep:
        session.sweep.stop()
    session.sweep = Sweep(session.reader.login, name, values | {
        "state": tab if tab in STATES else None, "find": find, "dead": tab == "dead", "back": back})
    session.sweep.start(session.sweep.count)
    return go_to(url("/sweep"))


@app.get("/sweep")
@for_role
def sweep_page(session):
    """How far an action on all that match is; its question when all are counted."""
    sweep = session.sweep
    if not sweep:
        return go_to(url("/"))
    values, key = sweep.values, None
    sweep.wait(0.3)                 # a short one is over by then
    question = sweep.action.question.format(what=counted(sweep.total), **values)
    title = {"counting": f"{sweep.action.label}: counting what matches",
             "asks": question if sweep.total else "No message matches",
             "acting": f"{sweep.action.label}: under way"}.get(
                 sweep.state, f"{sweep.action.label}: {sweep.state}")
    if sweep.state == "asks" and sweep.total:
        key = session.ask((sweep.name, sweep, values["back"]))
    if sweep.state in ("done", "stopped", "failed"):
        session.reader.forget()
    return render(title, "sweep", session, sweep=sweep, key=key, q=values["q"], back=values["back"],
                  refresh=1 if sweep.state in ("counting", "acting") else 0)


@app.post("/stop")
@for_role
def stop(session):
    if session.sweep:
        session.sweep.stop()
    return go_to(url("/sweep"))
