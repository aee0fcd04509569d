"""Connections to PostgreSQL, and calls of the functions of the extension."""

import json
import os
import select

from oslo_log import log as logging
import psycopg2
from psycopg2 import errorcodes
from psycopg2 import extras
from zaqar.storage import errors
from zaqar.transport import validation

LOG = logging.getLogger(__name__)

# The settings hold for one call only: a connection serves all projects, and may
# go through PgBouncer.  Nothing but the schema of the extension is searched, and each
# value in a call has a cast, so that no other function is called in place of ours.
SETTINGS = """SELECT pg_catalog.set_config('search_path', %s::text, true),
    pg_catalog.set_config('queue.project', %s::text, true),
    pg_catalog.set_config('queue.client_id', %s::text, true);
"""

SCHEMA = """SELECT pg_catalog.quote_ident(nspname) || ', pg_temp',
    pg_catalog.has_schema_privilege(n.oid, 'USAGE'), current_user
FROM pg_catalog.pg_extension AS e
JOIN pg_catalog.pg_namespace AS n ON n.oid = e.extnamespace
WHERE extname = 'queue'"""

ANSWERS = ('QU001', 'QU002', 'QU003', 'QU004', errorcodes.UNDEFINED_OBJECT)


class Answer(Exception):
    """An error of the database for which Zaqar has one, too."""

    def __init__(self, code):
        super().__init__(code)
        self.code = code


class Failure(errors.ExceptionBase):
    """Any other error.  Clients do not learn what it is; the log says it."""


class Connection(psycopg2.extensions.connection):
    search_path = None
    process = None


def loads(text):
    """A value of type jsonb.

    One that SQL has pushed may be nested too deep for Python, or have a number with too
    many digits.  It stays text: an error would lose the other messages of the call.
    """
    try:
        return json.loads(text)
    except (RecursionError, ValueError):
        return text


def line(error):
    return ' '.join(str(error).split())


def invalid(text):
    return validation.ValidationFailed('{0}', text)


def code(error):
    return getattr(error, 'pgcode', None) or ''


def translated(error):
    """The error of Zaqar for one of the database."""
    if isinstance(error, ValueError):   # a NUL character
        return invalid(error)
    if code(error) in ANSWERS:
        return Answer(code(error))
    if code(error).startswith('22') or code(error) == errorcodes.PROGRAM_LIMIT_EXCEEDED:
        # Zaqar answers 400, and not 503, after which clients try again.
        return invalid('. '.join(filter(None, (error.diag.message_primary,
                                               error.diag.message_detail))))
    LOG.error('error of PostgreSQL: %s', line(error))
    return Failure()


class Database:

    def __init__(self, uri):
        # What the URI says takes precedence.
        self._parameters = {
            'connect_timeout': 10,
            'fallback_application_name': 'zaqar',
            **psycopg2.extensions.parse_dsn(uri),
            'client_encoding': 'UTF8',
        }
        self._idle = []

    def close(self):
        idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def value(self, sql, *arguments, **settings):
        return self.rows(sql, *arguments, **settings)[0][0]

    def rows(self, sql, *arguments, project=None, client=None):
        """The result of one statement, which is a transaction of its own."""
        connection = self._take()
        settings = (connection.search_path, project or '', str(client or ''))
        try:
            with connection.cursor() as cursor:
                cursor.execute(SETTINGS + sql, settings + arguments)
                rows = cursor.fetchall()
            error = None
        except (psycopg2.Error, ValueError) as raised:
            error = raised
        if connection.closed or code(error) == errorcodes.READ_ONLY_SQL_TRANSACTION:
            # The outcome of the call is not known, or the server is a standby
            # now.  The next call connects again; this one is not repeated.
            connection.close()
            LOG.error('lost the connection to PostgreSQL during a call: %s', line(error))
            raise errors.ConnectionError()
        self._idle.append(connection)
        if error:
            raise translated(error)
        return rows

    def _take(self):
        while True:
            try:
                connection = self._idle.pop()
            except IndexError:
                break
            # A process that was forked leaves the connections to its parent.
            if connection.process == os.getpid() and self._alive(connection):
                return connection
        return self._connect()

    def _alive(self, connection):
        """Whether an idle connection can be used.

        When the server ends a connection, its last words are waiting here.  They
        are read before the call, so that no call is lost.
        """
        poll = select.poll()
        poll.register(connection.fileno(), select.POLLIN)
        if not poll.poll(0):
            return True
        try:
            del connection.notices[:]
            while poll.poll(0):
                connection.poll()
            with connection.cursor() as cursor:
                cursor.execute('SELECT')
            return True
        except psycopg2.Error as error:
            reason = line(''.join(connection.notices) or error)
        LOG.warning('PostgreSQL has ended the connection: %s', reason)
        connection.close()
        return False

    def _connect(self):
        found, reason = None, 'the database does not have the extension "queue"'
        try:
            connection = psycopg2.connect(connection_factory=Connection,
                                          **self._parameters)
            connection.autocommit = True
            extras.register_default_jsonb(connection, loads=loads)
            with connection.cursor() as cursor:
                cursor.execute(SCHEMA)
                found = cursor.fetchone()
        except psycopg2.Error as error:
            reason = line(error)
        if found and found[1]:
            connection.search_path, connection.process = found[0], os.getpid()
            return connection
        if found:
            reason = ('role "%s" needs USAGE on the schema of the extension "queue",'
                      ' queue_producer and queue_consumer' % found[2])
        LOG.error('cannot connect to PostgreSQL: %s', reason)
        raise errors.ConnectionError()
