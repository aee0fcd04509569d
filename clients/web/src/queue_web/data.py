"""Reads: what the pages show, as rows.

Each function has a connection (database.Database), and what it reads depends on nothing but
its arguments, so the results are shared by all sessions of a role (reader.Reader).  Names of
columns are those that templates know.  "needs" is what a role needs that may not read it.
"""
import re

from .settings import QUEUES, ROWS

CLAIM = "the privilege to claim from the queue"
ADMIN = "to own the queue, or admin on it"
PUSH = ("to own the queue, or membership in queue_producer and, where push was granted there, to be"
        " one of the roles named")
MONITOR = "membership in queue_monitor"
MEMBER = "membership in queue_consumer, queue_producer or queue_admin"

# Queues with numbers, for roles that cannot read queue_status
COUNTED = """
    SELECT l.name, l.paused, d.free AS ready, d.claimed, d.delayed, d.dead_letters,
        d.oldest_age AS oldest_ready_age, NULL AS pushed, j.completed, NULL AS handler_state,
        NULL AS is_dead_letter_queue, left(j.last_error, 300) AS last_error, j.last_error_at
    FROM (%s) AS l CROSS JOIN LATERAL @job_stats(l.name) AS j
        LEFT JOIN @queue_depth(NULL::text) AS d ON d.queue = l.name"""

# What the pages call the states and the ends of messages
STATES = {"free": "Ready", "claimed": "Claimed", "delayed": "Delayed", "waiting": "Waiting",
          "canceled": "Cancel pending"}
OUTCOMES = {"completed": "completed", "dead": "dead letter", "expired": "expired",
            "canceled": "canceled", "duplicate": "duplicate", "deleted": "deleted"}


def status(db, _):
    """All queues of all projects.  10,000 take PostgreSQL a tenth of a second or more."""
    db.status = db.rows("""
        SELECT project, name, paused, ready, claimed, delayed, dead_letters, retried, abandoned,
            oldest_ready_age, pushed, completed, handler_state, is_dead_letter_queue
        FROM queue_data.queue_status ORDER BY project, name""", MONITOR)
    return db.status


def names(db, _, find, after):
    """A page of queues, by name; for roles that cannot read queue_status."""
    some = """SELECT name, paused FROM @queue_list(NULL::text, 10000, %(find)s::text)
        LIMIT %(rows)s::bigint OFFSET %(after)s::bigint"""
    values = {"find": re.sub(r"([.^$*+?()\[\]{}|\\])", r"\\\1", find),
              "rows": QUEUES + 1, "after": after}
    rows = db.rows(COUNTED % some, MEMBER, **values)
    return rows if not rows.why else db.rows(some, MEMBER, **values)


def failing(db, project):
    """The last errors of those 500 queues of which most attempts have failed."""
    failed = [row for row in db.status or status(db, project)
              if row["project"] == project and (row["retried"] or row["abandoned"])]
    failed.sort(key=lambda row: (row["abandoned"], row["retried"]), reverse=True)
    return db.rows("""
        SELECT n AS name, left(last_error, 300) AS last_error, last_error_at
        FROM unnest(%(names)s::text[]) AS n CROSS JOIN LATERAL @job_stats(n)
        WHERE last_error IS NOT NULL""", MEMBER, names=[row["name"] for row in failed[:500]])


def sources(db, _):
    """The queues that name a dead letter queue, and that one."""
    return db.rows("""
        SELECT name, metadata->>'_dead_letter_queue' AS dead
        FROM @queue_list(NULL::text, 10000) WHERE metadata ? '_dead_letter_queue'""", MEMBER)


def queue(db, _, name):
    """A queue: its metadata, its dead letter queue, its numbers, and its last failed job."""
    found = db.rows("""
        SELECT created_at, jsonb_pretty(metadata) AS metadata, paused,
            metadata ? '_keep_finished' AS keeps, pg_has_role('queue_producer', 'USAGE') AS pushes
        FROM @queue_get(%(q)s::text)""", MEMBER, q=name)
    if not found:
        return {"queue": found}
    jobs = db.rows("""
        SELECT queue, state, running, concurrency, reason, message_id AS message, pid,
            running_since, progress, handler FROM @job_list(%(q)s::text)""", ADMIN, q=name)
    return {"queue": found, "dead": letters_of(db, name), "jobs": jobs, "admin": not jobs.why,
            "depth": db.rows("""
                SELECT queue AS name, free AS ready, claimed, delayed, dead_letters,
                    oldest_age AS oldest_ready_age, paused, left(last_error, 2000) AS error,
                    last_error_at AS at
                FROM @queue_depth(%(q)s::text)""", CLAIM, q=name),
            "counted": db.rows("""
                SELECT claimed, completed, retried, abandoned, duplicates, expired, since
                FROM @job_stats(%(q)s::text)""", MEMBER, q=name),
            "failed": not jobs.why and db.rows("""
                SELECT message_id AS message, attempt, at, left(error, 2000) AS error
                FROM @job_errors(%(q)s::text, 1)""", ADMIN, q=name)}


def letters_of(db, name):
    """The queue that has the dead letters of this one; None if there is none."""
    found = db.rows("""
        SELECT dead FROM (
            SELECT left(coalesce(metadata->>'_dead_letter_queue', name || '.dead'), 64) AS dead
            FROM @queue_get(%(q)s::text)) AS q
        WHERE @queue_exists(dead)""", MEMBER, q=name)
    return found[0]["dead"] if found else None


#
# Lists of one queue
#

def messages(db, _, name, state, find, after):
    """Messages in a state, by id.  The last one may have only its id: the list goes on there."""
    return db.rows("""
        SELECT id, state, claim_count AS attempts, priority, group_key AS "group", created_at,
            due_at, claimed_until, left(last_error, 300) AS error, left(body::text, 300) AS body
        FROM @queue_browse(%(q)s::text, %(state)s::text, %(find)s::jsonb, %(after)s::bigint,
            %(rows)s::int)""", CLAIM, q=name, state=state, find=find, after=after, rows=ROWS + 1)


def dead_letters(db, _, name, find, before):
    """Dead letters of a queue, the latest first; those whose body contains something, the oldest
    first."""
    name = letters_of(db, name) or name
    columns = """id, origin_queue, origin_id, reason, left(last_error, 300) AS error,
        claim_count AS attempts, died_at, left(body::text, 300) AS body"""
    if find:
        return db.rows(f"""
            SELECT b.id, b.state, d.origin_queue, d.origin_id, d.reason, d.attempts, d.died_at,
                coalesce(d.error, left(b.last_error, 300)) AS error, left(b.body::text, 300) AS body
            FROM @queue_browse(%(q)s::text, NULL::text, %(find)s::jsonb, %(before)s::bigint,
                    %(rows)s::int) AS b
                LEFT JOIN LATERAL (SELECT {columns} FROM @queue_dead_letters(%(q)s::text, 1,
                    b.id - 1)) AS d ON d.id = b.id""", CLAIM,
                       q=name, find=find, before=before, rows=ROWS + 1)
    return latest(db, f"SELECT {columns} FROM @queue_dead_letters(%(q)s::text, %(limit)s::int,"
                  " %(after)s::bigint)", CLAIM, before, q=name)


def finished(db, _, name, outcome, before):
    """What has become of messages, the latest first."""
    return latest(db, """
        SELECT id, outcome, attempts, group_key AS "group", pushed_at, finished_at,
            left(result::text, 300) AS result, left(error, 300) AS error
        FROM @queue_finished(%(q)s::text, %(after)s::bigint, %(limit)s::int, %(outcome)s::text)""",
                  CLAIM + ", or to push, with _results_for_producers", before, q=name,
                  outcome=outcome or None)


def latest(db, sql, needs, before, **values):
    """The last rows before an id (0: of all), of a function that reads by id after another one.

    A first read halves the numbers until it has found the last id.  Then the rows after a
    lower and lower id are read, until there are enough.
    """
    if not before:
        found = db.rows(f"""
            WITH RECURSIVE half (low, high) AS (
                SELECT 0::bigint, 4611686018427387904
                UNION ALL
                SELECT CASE WHEN more THEN middle ELSE low END,
                    CASE WHEN more THEN high ELSE middle END
                FROM half CROSS JOIN LATERAL (SELECT low + (high - low) / 2) AS m (middle)
                    CROSS JOIN LATERAL (SELECT EXISTS (
                        {sql.replace('%(after)s::bigint', 'middle')})) AS e (more)
                WHERE high - low > 1)
            SELECT max(low) + 2 AS id FROM half WHERE high - low = 1""", needs,
                        limit=1, **values)
        if found.why:
            return found
        before = found[0]["id"]
    span, most = 8 * ROWS, None
    while True:
        rows = db.rows(f"SELECT * FROM ({sql}) AS f WHERE id < %(before)s::bigint ORDER BY id DESC",
                       needs, limit=10 * ROWS, after=max(0, before - span), before=before, **values)
        if rows.why or len(rows) <= 10 * ROWS - 1 and (len(rows) > ROWS or span >= before):
            del rows[ROWS + 1:]
            return rows
        if len(rows) == 10 * ROWS:          # the limit may have cut off the last ones
            most, span = span, span // 2
        else:
            span = min(span * 4, most - 1) if most else span * 4


def failures(db, _, name, before):
    """Attempts that failed, the latest first."""
    return db.rows("""
        SELECT message_id AS message, attempt, at, left(error, 300) AS error
        FROM @job_errors(%(q)s::text, %(rows)s::int, %(before)s::timestamptz)""", ADMIN,
                   q=name, before=before or None, rows=ROWS + 1)


def groups(db, _, name, after):
    return db.rows("""
        SELECT group_key AS "group", free AS ready, claimed, delayed, oldest_age AS oldest
        FROM @queue_groups(%(q)s::text, %(after)s::text, %(rows)s::int)""",
                   CLAIM + ", or admin on it", q=name, after=after or None, rows=ROWS + 1)


#
# One message
#

def message(db, _, name, number):
    """All that is known of a message, wherever it is now."""
    values = {"q": name, "id": number}
    found = {"rows": db.rows("""
        SELECT id, state, priority, group_key AS "group", dedup_key, batch::text, after::text,
            claim_count AS attempts, created_at, due_at, claimed_until, expires_at,
            left(last_error, 10000) AS error, length(body::text) AS size,
            left(jsonb_pretty(headers), 100000) AS headers,
            left(jsonb_pretty(body), 100000) AS body
        FROM @queue_browse(%(q)s::text, NULL::text, NULL::jsonb, %(id)s::bigint - 1, 1)
        WHERE id = %(id)s::bigint AND state IS NOT NULL""", CLAIM, **values)}
    if found["rows"].why:
        return found
    if found["rows"]:
        found["dead"] = db.rows("""
            SELECT origin_queue, origin_id, reason, left(last_error, 10000) AS error,
                claim_count AS attempts, died_at
            FROM @queue_dead_letters(%(q)s::text, 1, %(id)s::bigint - 1)
            WHERE id = %(id)s::bigint""", CLAIM, **values)
    else:
        found["finished"] = db.rows("""
            SELECT id, outcome AS state, batch::text, group_key AS "group", attempts, pushed_at,
                finished_at, left(error, 10000) AS error,
                left(jsonb_pretty(result), 100000) AS result,
                length(body::text) AS size, left(jsonb_pretty(body), 100000) AS body
            FROM @message_finished(%(q)s::text, %(id)s::bigint)""", CLAIM, **values)
        dead = letters_of(db, name)
        found["died"] = dead and db.rows("""
            SELECT id, %(dead)s::text AS queue FROM @queue_dead_letters(%(dead)s::text, 10000)
            WHERE origin_id = %(id)s::bigint AND origin_queue = %(q)s::text""", CLAIM, dead=dead,
                                         **values)
    letter = found.get("dead") and found["dead"][0]
    if letter and letter["origin_queue"]:
        values = {"q": letter["origin_queue"], "id": letter["origin_id"]}
    found["attempts"] = db.rows("""
        SELECT attempt, at, left(error, 10000) AS error FROM @job_errors(%(q)s::text, 10000)
        WHERE message_id = %(id)s::bigint LIMIT 100""", ADMIN, **values)
    found["runs"] = db.rows("""
        SELECT handler, pid, running_since, progress FROM @job_list(%(q)s::text)
        WHERE message_id = %(id)s::bigint""", ADMIN, **values)
    return found


def body(db, _, name, number):
    """All of a body, as it is."""
    return db.rows("""
        SELECT body::text AS body
        FROM @queue_browse(%(q)s::text, NULL::text, NULL::jsonb, %(id)s::bigint - 1, 1)
        WHERE id = %(id)s::bigint AND state IS NOT NULL""", CLAIM, q=name, id=number)


#
# Jobs, batches, schedules
#

def jobs(db, _):
    """Handlers, the processes that run jobs, and the worker of this database."""
    handlers = db.rows("""
        SELECT queue, state, running, concurrency, reason, message_id AS message, pid,
            running_since, progress FROM @job_list() LIMIT 500""", MEMBER)
    runners = db.rows("""
        SELECT pid, role::text, state, since, project, queue AS queue_name,
            message_id AS message FROM queue_data.queue_runners LIMIT 500""", MONITOR)
    workers = db.rows("""
        SELECT pid, state, last_run, next_run, rounds, last_error AS error, last_error_at
        FROM queue_data.queue_workers WHERE database = current_database()""", MONITOR)
    return {"handlers": handlers, "runners": runners, "workers": workers}


STATUS = """
    SELECT b.batch, name, created_at, closed_at, finished_at, members, unfinished, completed,
        failed, waiting
    FROM unnest(%(ids)s::bigint[]) WITH ORDINALITY AS b (batch, n)
        CROSS JOIN LATERAL @batch_status(b.batch) ORDER BY n"""


def batches(db, _, after):
    """The batches of the role, the latest first, and which ones wait for others."""
    ids, read = [0], [None] * 10000
    while len(read) == 10000:
        read = db.rows("SELECT batch FROM @batch_list(%(last)s::bigint, 10000)", MEMBER,
                       last=ids[-1])
        if read.why:
            return {"rows": read, "edges": []}
        ids += [row["batch"] for row in read]
    rows = db.rows(STATUS, MEMBER, ids=ids[:0:-1][after:after + ROWS + 1])
    return {"rows": rows, "edges": edges(db) if any(r["waiting"] for r in rows) else []}


def edges(db):
    """Messages that wait for a batch, by that and their own batch; of twenty queues, a
    thousand of each."""
    found = db.rows("""
        SELECT queue, batch, after, count(*) AS messages
        FROM (SELECT queue FROM @queue_depth(NULL::text) WHERE delayed IS DISTINCT FROM 0
              LIMIT 20) AS d
            CROSS JOIN LATERAL @queue_browse(d.queue, 'waiting'::text, NULL::jsonb, NULL::bigint,
                1000) AS b
        WHERE after IS NOT NULL GROUP BY 1, 2, 3 ORDER BY 3, 2, 1""", MEMBER)
    return found


def batch(db, _, number):
    """A batch: its numbers, its members that are not finished, and what waits for it."""
    rows = db.rows(STATUS, "to own the batch, or membership in the role that does", ids=[number])
    if not rows:
        return {"rows": rows}
    return {"rows": rows, "messages": db.rows("""
        SELECT queue, id, state, batch, after, claim_count AS attempts,
            left(body::text, 300) AS body
        FROM (SELECT queue FROM @queue_depth(NULL::text) WHERE free + claimed + delayed > 0
              LIMIT 20) AS d
            CROSS JOIN LATERAL @queue_browse(d.queue, NULL::text, NULL::jsonb, NULL::bigint,
                10000) AS b
        WHERE batch = %(id)s::bigint OR after = %(id)s::bigint LIMIT 200""", MEMBER, id=number)}


def schedules(db, _):
    """The jobs of pg_cron, with their last runs.

    Only tables that are the extension's own: those of another schema "cron" may be views, whose
    functions would be called by the role that looks.
    """
    here = db.rows("""
        SELECT relname, has_schema_privilege(relnamespace, 'USAGE')
                AND has_table_privilege(c.oid, 'SELECT') AS readable
        FROM pg_class AS c JOIN pg_depend AS d ON d.objid = c.oid AND d.deptype = 'e'
                AND d.classid = 'pg_class'::regclass
            JOIN pg_extension AS e ON e.oid = d.refobjid AND extname = 'pg_cron'
        WHERE relnamespace = to_regnamespace('cron') AND relkind = 'r'""")
    readable = {row["relname"] for row in here if row["readable"]}
    if not here or "job" not in readable:
        here.clear()
        here.why = ("This database has no extension pg_cron." if not readable and not here.why
                    else None)
        return here
    runs = """LEFT JOIN LATERAL (SELECT status, start_time, left(return_message, 300) AS said
        FROM cron.job_run_details AS d WHERE d.jobid = j.jobid ORDER BY runid DESC LIMIT 1)
        AS r ON true""" if "job_run_details" in readable else """
        CROSS JOIN (SELECT NULL AS status, NULL AS start_time, NULL AS said) AS r"""
    return db.rows(f"""
        SELECT j.jobid, j.jobname AS name, j.schedule, left(j.command, 1000) AS command,
            j.username AS role, j.active, r.start_time AS last_run, r.status, r.said
        FROM cron.job AS j {runs}
        WHERE j.database = current_database() ORDER BY j.jobid LIMIT 500""",
                   "the privilege to read cron.job")


READS = {function.__name__: function for function in (
    status, names, failing, sources, queue, messages, dead_letters, finished, failures, groups,
    message, body, jobs, batches, batch, schedules)}
