"""The pages to look at.  Each reads (data.py), and gives rows to a template."""
import os
import re

from bottle import HTTPError, response, static_file

from . import actions
from .data import OUTCOMES, STATES
from .history import COLUMNS, LABELS
from .settings import BODY, QUEUES, REFRESH, ROWS
from .show import filter_of, old
from .web import app, arg, for_role, number, render

STATIC = os.path.join(os.path.dirname(os.path.abspath(__file__)), "static")
TROUBLES = 6                        # of the list above that of all queues

# The parts of a queue's page: lists of messages by state, and others
TABS = {"": "Overview", "all": "All"} | STATES | {
    "dead": "Dead letters", "finished": "Finished", "failures": "Failures", "groups": "Groups"}


@app.get("/static/<name:re:[a-z.]+>")
def static(name):
    return static_file(name, root=STATIC)


#
# Queues
#

@app.get("/")
@for_role
def queues_page(session):
    """All queues; what needs a person is first."""
    project, find, only, sort, after = (arg("project"), arg("find"), arg("only"), arg("sort"),
                                        number("after"))
    reader = session.reader
    rows, projects, named, errors = all_queues(reader, project, find, after)
    own = [row for row in rows if not letters(row)]     # dead letters are counted with their queues
    troubles = sorted(filter(trouble, own), key=trouble, reverse=True)
    totals = summed(own)
    if reader.db.monitor:
        shown, targets = beside(named, rows)
        shown = [r for r in shown if find in r["name"] and chosen(r, only)]
        if sort in ("dead_letters", "oldest_ready_age", "ready", "claimed", "delayed"):
            shown.sort(key=lambda r: -(r[sort] or 0))
        shown, count = shown[after:], len(shown)
    else:
        shown, count, targets = rows, None, {}
    more = len(shown) > QUEUES and after + QUEUES
    return render("Queues", "queues", session, monitor=reader.db.monitor, why=rows.why,
                  rows=shown[:QUEUES], count=count, more=more, totals=totals, errors=errors,
                  targets=targets, troubles=troubles[:TROUBLES],
                  hidden=max(0, len(troubles) - TROUBLES),
                  projects=projects, find=find, only=only, sort=sort, history=reader.history,
                  numbers=not rows or "ready" in rows[0])


def all_queues(reader, project, find, after):
    """The queues of the project, all projects, the dead letter queues that are named, and last
    errors by queue, where the role may see them."""
    if not reader.db.monitor:
        own, = reader.get(("names", project, find, after))
        return own, [project], [], {row["name"]: row.get("last_error") for row in own}
    rows, named, failing = reader.get(("status", ""), ("sources", project), ("failing", project))
    own = type(rows)(row for row in rows if row["project"] == project)
    own.why = rows.why
    return (own, sorted({row["project"] for row in rows} | {project}), named,
            {row["name"]: row["last_error"] for row in failing})


def beside(named, rows):
    """The queues but for those that have the dead letters of another one; and for each queue
    the one that has its own."""
    known = {row["name"] for row in rows}
    targets = {row["name"]: row["dead"] for row in named if row["dead"] in known}
    for row in rows:
        source = row["name"].removesuffix(".dead")
        if source != row["name"] and source in known and letters(row):
            targets.setdefault(source, row["name"])
    hidden = set(targets.values())
    return [row for row in rows if row["name"] not in hidden], targets


def letters(row):
    """Whether a queue has the dead letters of others."""
    known = row.get("is_dead_letter_queue")
    return row["name"].endswith(".dead") if known is None else known


def trouble(row):
    """How much a queue needs a person: 0 if it does not."""
    stopped = row.get("handler_state") == "stopped"
    waits = row.get("oldest_ready_age") or 0
    return (stopped * 10 ** 12 + (row.get("dead_letters") or 0) * 10 ** 3
            + (waits if old(waits) else 0))


def chosen(row, only):
    return (only == "" or only == "trouble" and (trouble(row) or row["paused"])
            or only == "waiting" and any(row[k] for k in ("ready", "claimed", "delayed")))


def summed(rows):
    """The numbers of all queues, and those that need a person."""
    def total(key):
        return sum(row.get(key) or 0 for row in rows)

    oldest = max(rows, key=lambda r: r.get("oldest_ready_age") or -1, default=None)
    return {"ready": total("ready"), "claimed": total("claimed"), "delayed": total("delayed"),
            "dead_letters": total("dead_letters"),
            "dead_queues": sum(1 for r in rows if r.get("dead_letters")),
            "stopped": [r["name"] for r in rows if r.get("handler_state") == "stopped"],
            "paused": [r["name"] for r in rows if r.get("paused")],
            "oldest": oldest if oldest and oldest.get("oldest_ready_age") is not None else None}


@app.get("/queue")
@for_role
def queue_page(session):
    return show_queue(session)


def show_queue(session, refused=""):
    """A queue: its numbers, and one of its lists.  Where a push was refused, it says why, and the
    form has what was typed."""
    reader, project, name = session.reader, arg("project"), arg("q")
    tab = arg("tab") if arg("tab") in TABS else ""
    key, wrong = list_key(project, name, tab)
    found, *others = reader.get(("queue", project, name), *[key] * bool(key),
                                *[("status", "")] * bool(reader.db.monitor))
    row = number_row(reader, project, name, found, others[-1] if reader.db.monitor else ())
    if not row and not found["queue"] and not found["queue"].why:
        raise HTTPError(404, "There is no such queue.")
    span = arg("span") if arg("span") in LABELS else "5m"
    points = [reader.history.points(project, name, c, span) for c in range(len(COLUMNS))]
    rows = others[0] if key else []
    shown, more = cut(rows, tab)
    source = source_of(reader, project, name, row)
    pushes = (found["queue"] and not tab and not source
              and (found["admin"] or found["queue"][0]["pushes"]))
    return render(f"Queue {name}", "queue", session, refresh=0 if refused else REFRESH,
                  refused=refused, typed=arg if refused else {"priority": 0}.get,
                  key=session.form(project, name) if pushes else None, longest=BODY,
                  name=name, row=row, found=found, tabs=TABS,
                  tab=tab, rows=shown, more=more, wrong=wrong, why=getattr(rows, "why", None),
                  read_at=getattr(rows, "now", None), letters=found.get("dead") or name,
                  offered=offered_in(tab), span=span, spans=LABELS, points=points,
                  outcomes=OUTCOMES,
                  source=source, actions=actions, find=arg("find"),
                  outcome=arg("outcome"))


def number_row(reader, project, name, found, status):
    """The numbers of a queue, from where the role can read them."""
    row = next((r for r in status if (r["project"], r["name"]) == (project, name)), None)
    if not row and found.get("depth"):
        counted = found["counted"][0] if found["counted"] else {}
        row = found["depth"][0] | {"completed": counted.get("completed"), "pushed": None}
        reader.history.keep([row], project)
    return row


def source_of(reader, project, name, row):
    """The queue that sends its dead letters here."""
    if name.endswith(".dead"):
        return name.removesuffix(".dead")
    if not row or not row.get("is_dead_letter_queue"):
        return None
    named, = reader.get(("sources", project))
    return next((r["name"] for r in named if r["dead"] == name), None)


def list_key(project, name, tab):
    """What the reader is asked for a list, and what is wrong with what was typed."""
    find, wrong = arg("find").strip(), ""
    try:
        find = filter_of(find) if find else None
    except ValueError as error:
        find, wrong = None, str(error)
    if tab == "dead":
        return ("dead_letters", project, name, find, number("after")), wrong
    if tab == "finished":
        return ("finished", project, name, arg("outcome"), number("after")), wrong
    if tab == "failures":
        after = arg("after") if re.fullmatch(r"[0-9T:.+-]{0,40}", arg("after")) else ""
        return ("failures", project, name, after), wrong
    if tab == "groups":
        return ("groups", project, name, arg("after")), wrong
    state = tab if tab in STATES else None
    return (("messages", project, name, state, find, number("after")) if tab else None), wrong


def offered_in(tab):
    """The actions below a list."""
    if tab == "all":
        return [name for name in actions.OF_MESSAGES if name != "redrive"]
    return actions.offered(tab)


def cut(rows, tab):
    """The rows of a page, and the value of "after" for the next one."""
    key = {"failures": "at", "groups": "group"}.get(tab, "id")
    if rows and "state" in rows[-1] and rows[-1]["state"] is None:
        return rows[:-1], rows[-1]["id"]        # the function has read enough
    if len(rows) <= ROWS:
        return list(rows), None
    return rows[:ROWS], rows[ROWS - 1][key]


#
# One message
#

@app.get("/message")
@for_role
def message_page(session):
    found, = session.reader.get(("message", arg("project"), arg("q"), number("id")))
    row, letter, state = None, None, "gone"
    if found["rows"]:
        row = found["rows"][0]
        letter = found["dead"][0] if found["dead"] else None
        state = "dead" if letter and row["state"] in ("free", "delayed") else row["state"]
        if letter:
            row["error"] = letter["error"] or row["error"]
    elif found.get("finished"):
        row = found["finished"][0]
        state = row["state"]
    where = arg("q"), number("id")      # of the message that the buttons are for
    if not found["rows"]:
        died = found.get("died")
        where = (died[0]["queue"], died[0]["id"]) if died else None
        state = "dead" if died else state
    back = {"tab": "message"}           # where the answer leads
    if state == "dead":
        back = {"tab": "dead", "source": letter and letter["origin_queue"] or arg("q")}
    return render(f"Message {number('id')}", "message", session, name=arg("q"),
                  number=number("id"), row=row, state=state, found=found, where=where,
                  actions=actions, back=back,
                  offered=actions.offered(state) if where else ())


@app.get("/body")
@for_role
def body_page(session):
    """All of a body, as a file: it is not shown by the browser."""
    rows, = session.reader.get(("body", arg("project"), arg("q"), number("id")))
    if not rows:
        raise HTTPError(404, rows.why or "There is no such message any more.")
    response.content_type = "application/json; charset=utf-8"
    response.set_header("Content-Disposition",
                        f'attachment; filename="message-{number("id")}.json"')
    return rows[0]["body"]


#
# Jobs, batches, schedules
#

@app.get("/jobs")
@for_role
def jobs_page(session):
    found, = session.reader.get(("jobs", arg("project")))
    return render("Jobs", "jobs", session, **found)


@app.get("/batches")
@for_role
def batches_page(session):
    found, = session.reader.get(("batches", "", number("after")))
    rows = found["rows"]
    more = len(rows) > ROWS and number("after") + ROWS
    tree = tree_of(rows[:ROWS], found["edges"])
    return render("Batches", "batches", session, tree=tree, why=rows.why, now=rows.now, more=more)


def tree_of(rows, edges):
    """The batches with their depth: below each one, those with messages that wait for it."""
    known = {row["batch"]: row for row in rows}
    below, steps = {}, {}
    for edge in edges:
        if edge["batch"] in known and edge["after"] in known:
            below.setdefault(edge["after"], []).append(edge["batch"])
        else:
            steps.setdefault(edge["after"], []).append(edge)
    lower = {batch for batches in below.values() for batch in batches}
    tree, seen = [], set()

    def add(batch, depth):
        again = batch in seen
        tree.append((depth, known[batch], again, steps.get(batch, ())))
        seen.add(batch)
        for other in () if again else below.get(batch, ()):
            add(other, depth + 1)

    for batch in known:
        if batch not in lower:
            add(batch, 0)
    return tree


@app.get("/batch")
@for_role
def batch_page(session):
    found, = session.reader.get(("batch", arg("project"), number("id")))
    return render(f"Batch {number('id')}", "batch", session, number=number("id"),
                  row=found["rows"][0] if found["rows"] else None, why=found["rows"].why,
                  now=found["rows"].now, messages=found.get("messages", []))


@app.get("/schedules")
@for_role
def schedules_page(session):
    rows, = session.reader.get(("schedules", ""))
    return render("Schedules", "schedules", session, rows=rows, why=rows.why)
