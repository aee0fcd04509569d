"""Connections to the database, and what PostgreSQL refuses, as sentences.

Others may be able to create functions in the schema of the extension.  So each value in a
call has a cast: no function with other types is chosen in place of the extension's.  All
names are qualified: "@" in a statement stands for that schema, and search_path has none but
pg_catalog.
"""
import json
import os
import re
import time
from typing import NamedTuple

import psycopg

from .settings import REFUSED, site

# What a login as a role needs, and what its pages say of it
ABOUT = """
    SELECT replace(quote_ident(n.nspname), '%', '%%') || '.',
        has_schema_privilege(d.oid, 'USAGE') AND has_table_privilege(c.oid, 'SELECT'),
        has_schema_privilege(n.oid, 'USAGE') AND has_function_privilege(f.oid, 'EXECUTE'),
        current_database(), split_part(current_setting('server_version'), ' ', 1),
        pg_is_in_recovery(), current_user,
        (SELECT rolsuper FROM pg_roles WHERE rolname = current_user),
        (SELECT rolsuper FROM pg_roles WHERE rolname = session_user)
    FROM pg_extension JOIN pg_namespace AS n ON n.oid = extnamespace
        JOIN pg_namespace AS d ON d.nspname = 'queue_data'
        JOIN pg_class AS c ON c.relnamespace = d.oid AND relname = 'queue_status'
        JOIN pg_proc AS f ON f.pronamespace = n.oid AND proname = 'queue_browse'
        JOIN pg_depend AS e ON e.objid = f.oid AND e.deptype = 'e' AND e.refobjid = pg_extension.oid
    WHERE extname = 'queue'"""

# What PostgreSQL says of a failed connection, where the password is not at fault
PASSING = "too many|connection slots|starting up|shutting down|recovery"


class Ended(Exception):
    """PostgreSQL has refused the role; its sessions end."""


class Rows(list):
    """Rows as dicts.  "why" is a sentence where they could not be read; "now" the
    server's clock."""
    why = now = None


class Login(NamedTuple):
    """A role, and its password.  Without one, the proxy has named the role."""
    role: str
    password: str | None = None


class Database:
    """A connection of a role."""

    def __init__(self, db, role):
        self.db, self.role = db, role
        self.refused = {}           # by statement and values: (why, until)
        self.status = None          # what data.status() has read last
        found = db.execute(ABOUT).fetchone()
        if not found:
            raise Ended('This database has no extension "queue".')
        (self.schema, self.monitor, self.calls, self.name, self.version, self.standby,
         current, self.superuser, self.own_superuser) = found
        if current != role:
            raise Ended(f"PostgreSQL has not admitted the role {role}.")
        host = db.info.host
        self.server = "local socket" if host.startswith("/") else f"{host}:{db.info.port}"

    @property
    def closed(self):
        return self.db.closed

    def close(self):
        self.db.close()

    def project(self, name):
        """What is read from now on is of this project."""
        self.db.execute("SELECT set_config('queue.project', %s::text, false)", [name])

    def value(self, sql, **values):
        """One value; errors are raised."""
        row = self.db.execute("SELECT " + sql.replace("@", self.schema), values).fetchone()
        return row and row[0]

    def rows(self, sql, needs="", **values):
        """Rows as dicts; none, with "why", where the role may not, or it takes too long.

        All rows are one value in JSON, which is read faster than their columns.  What was
        refused is not tried again for a while: PostgreSQL writes a line to its log each time.
        """
        rows, mark = Rows(), (sql, str(values))
        if "@" in sql and not self.calls:
            rows.why = may_not(self.role, needs)
            return rows
        if mark in self.refused and self.refused[mark][1] > time.monotonic():
            rows.why = self.refused[mark][0]
            return rows
        try:
            answer = json.loads(self.db.execute(
                "SELECT json_build_object('now', clock_timestamp(), 'rows',"
                " coalesce(json_agg(r), '[]'))::text FROM (%s) AS r"
                % sql.replace("@", self.schema), values).fetchone()[0])
            rows += answer["rows"]
            rows.now = answer["now"]
        except psycopg.Error as error:
            if self.db.closed or not error.sqlstate:
                raise
            rows.why = sentence(error, self.role, needs)
            if len(self.refused) > 1000:
                self.refused.clear()
            self.refused[mark] = rows.why, time.monotonic() + REFUSED
        return rows


def connect(login, write=False):
    """A connection for this login."""
    db = as_visitor(login) if login.password is not None else as_own(login.role)
    try:
        db.execute("SET search_path = pg_catalog, pg_temp; SET lock_timeout = '2s'; "
                   + ("SET statement_timeout = '60s'" if write else
                      "SET statement_timeout = '5s'; SET default_transaction_read_only = on"))
        database = Database(db, login.role)
        if login.password is None and (database.superuser or database.own_superuser):
            raise Ended("Behind a proxy's login, neither the role nor that of queue_web itself"
                        " may be a superuser.")
        return database
    except BaseException:
        db.close()
        raise


def as_visitor(login):
    """A connection of the role itself.

    Only a role that gives a password is admitted: with "trust" or "peer" in pg_hba.conf, or
    a certificate of this process, anyone could be any role.
    """
    try:
        db = opened(user=login.role, password=login.password, passfile=os.devnull)
    except psycopg.Error as error:
        # It does not tell the SQLSTATE.  In another language, what will pass ends sessions, too.
        if error.pgconn and error.pgconn.used_password and not re.search(PASSING, str(error)):
            raise Ended(f"PostgreSQL refuses the role: {error}") from None
        raise
    if not db.pgconn.used_password:
        db.close()
        raise Ended("PostgreSQL has not asked for the password, so it would admit anyone "
                    'as this role: see "pg_hba.conf" in the README of queue_web')
    return db


def as_own(role):
    """A connection of the role of queue_web itself, which becomes this one."""
    db = opened(user=site.own_role)
    if role != site.own_role:
        try:
            db.execute(psycopg.sql.SQL("SET ROLE {}").format(psycopg.sql.Identifier(role)))
        except psycopg.Error as error:
            db.close()
            raise Ended(f"The role of queue_web cannot become {role}: "
                        f"{error.diag.message_primary}.") from None
    return db


def opened(**options):
    return psycopg.connect(site.dsn, connect_timeout=5, application_name="queue_web",
                           client_encoding="utf8", autocommit=True, prepare_threshold=None,
                           **options)


def may_not(role, needs):
    return f"The role {role} may not see this." + (f" It needs {needs}." if needs else "")


def sentence(error, role, needs=""):
    """What PostgreSQL has refused, for a person."""
    state = error.sqlstate or ""
    said = (error.diag.message_primary or str(error)).strip()
    if state == "42501":
        return may_not(role, needs)
    if state == "57014":
        return "PostgreSQL took too long for this, so it was stopped. Less at a time may work."
    if state == "55P03":
        return "Another session locks what this needs. Try again."
    if state in ("42725", "42883"):
        return ("This database has other functions of the same name beside the extension's, so"
                " PostgreSQL does not know which one is meant. Give the extension a schema of its"
                " own.")
    if state == "25006":
        return "This server is a standby: nothing can be changed here."
    return f"PostgreSQL says: {said}."
