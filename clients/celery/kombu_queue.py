"""A transport of Kombu, so of Celery, over the PostgreSQL extension "queue".

    import kombu_queue
    app = Celery(broker='queue+postgresql://app@localhost/mydb')

A consumer claims messages, and the transport renews the claims until each message is
acknowledged, which deletes it under its claim.  If the process ends, its claims expire,
and the messages are delivered again.  A queue of Kombu is a queue of the extension, and
a binding of an exchange is a topic.  README.md has the rest.
"""
import logging
import os
import re
import select
import socket
import threading
from collections import deque
from contextlib import suppress
from datetime import datetime, timezone
from hashlib import md5
from math import ceil
from time import monotonic

import psycopg2
from amqp.exceptions import RecoverableConnectionError
from amqp.protocol import queue_declare_ok_t
from kombu.exceptions import ChannelError
from kombu.transport import TRANSPORT_ALIASES, virtual
from kombu.transport.base import to_rabbitmq_queue_arguments
from kombu.utils.json import dumps, loads
from kombu.utils.uuid import uuid
from psycopg2 import errors

__version__ = '1.0'

LIMIT = 10          # messages in a claim, at most
# Each value has a cast, so that no function with other types is called in place of ours.
DELETE = 'SELECT message_delete(%s::text, %s::bigint, %s::text)'
RETRY = 'SELECT message_retry(%s::text, %s::bigint, %s::text, delay => 0)'
BURY = 'SELECT message_bury(%s::text, %s::bigint, %s::text, %s::text)'
ENDED = ('QU001', 'QU002', 'QU004')     # the claim has expired, or the message was canceled

logger = logging.getLogger('kombu_queue')

# The claims of connections that were lost: the next connection of this process to the
# same database gives them back.
lost = {}


class ClaimEnded(RecoverableConnectionError):
    """The message was not acknowledged, since its claim has ended.

    It is a connection error, so that Celery logs it and goes on: as with AMQP, the
    message does not belong to this consumer any more.
    """


class Refused(ChannelError):
    """The server refuses the message, and would do so again."""


def one_line(error):
    return ' '.join(str(error).split())


def escape(name, allowed='/-'):
    """Spell a name with the characters that queues and topics allow."""
    return re.sub('[^A-Za-z0-9_%s]' % allowed,
                  lambda match: ''.join(':%02x' % byte for byte in match[0].encode()), name)


def queue_name(queue):
    """Return the name that a queue of Kombu has in the extension."""
    name = escape(queue, './-')
    if len(name) > 64:
        name = name[:30] + '::' + md5(name.encode(), usedforsecurity=False).hexdigest()
    return name


def topic_name(exchange, routing_key, kind=None):
    """Return the topic of a message, or the pattern of a binding to an exchange of a kind.

    The exchange is the first word, so a dot in its name becomes a slash.
    """
    words = [escape(exchange, '-').replace(':2e', '/')]
    if kind == 'fanout':
        words.append('#')
    elif routing_key:
        words += [word if kind == 'topic' and word in '*#' and word else escape(word) or ':'
                  for word in routing_key.split('.')]
    return '.'.join(words)


class QoS(virtual.QoS):
    """The messages of a channel that are not acknowledged."""

    def ack(self, delivery_tag):
        self._end(delivery_tag, DELETE)

    def reject(self, delivery_tag, requeue=False):
        if requeue:
            self._end(delivery_tag, RETRY)
        else:
            self._end(delivery_tag, BURY, 'rejected')

    def _end(self, delivery_tag, *statement):
        try:
            self.channel.end(delivery_tag, *statement)
        finally:
            super().ack(delivery_tag)

    def restore_unacked(self):
        self._flush()
        self._delivered.clear()
        self.channel.give_back()
        return []

    def restore_unacked_once(self, stderr=None):
        """At the end of the process, without the line that Kombu prints."""
        self.restore_unacked()


class Channel(virtual.Channel):
    """A channel: declares, publishes and consumes."""

    QoS = QoS
    supports_fanout = True

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.callbacks = {}         # queue of the extension: callback, no_ack
        self.buffer = deque()       # rows that are claimed and not delivered
        self.claims = {}            # claim id: queue, ids that are not acknowledged
        self.auto_delete = set()    # queues to drop when they are no longer consumed

    def call(self, sql, *args):
        if self.connection is None:
            raise RecoverableConnectionError('the channel is closed')
        return self.connection.call(sql, *args)

    # Queues, exchanges and bindings

    def prepare_queue_arguments(self, arguments, **kwargs):
        return to_rabbitmq_queue_arguments(arguments, **kwargs)

    def queue_declare(self, queue=None, passive=False, **kwargs):
        if passive:
            return super().queue_declare(queue, passive, **kwargs)
        queue = queue or f'amq.gen-{uuid()}'
        self._new_queue(queue, **kwargs)
        return queue_declare_ok_t(queue, 0, 0)      # counting would read the queue

    def _new_queue(self, queue, auto_delete=False, arguments=None, **kwargs):
        if auto_delete:
            self.auto_delete.add(queue)
        metadata = {}
        ttl = (arguments or {}).get('x-message-ttl')
        if ttl is not None:
            metadata['_default_message_ttl'] = self.connection.ttl(int(ttl) / 1000)
        self.call('SELECT CASE WHEN queue_exists(%s::text) THEN false'
                  ' ELSE queue_create(%s::text, %s::jsonb) END',
                  queue_name(queue), queue_name(queue), dumps(metadata))

    def _has_queue(self, queue, **kwargs):
        return self.call('SELECT queue_exists(%s::text)', queue_name(queue))[0][0]

    def _size(self, queue):
        return self.call('SELECT free FROM queue_stats(%s::text)', queue_name(queue))[0][0]

    def _purge(self, queue):
        return self.call('SELECT queue_purge(%s::text)', queue_name(queue))[0][0]

    def queue_delete(self, queue, if_unused=False, if_empty=False, **kwargs):
        if if_empty and self._size(queue):
            return
        for binding in list(self.state.queue_bindings(queue)):
            super().queue_unbind(queue, *binding)
        self.state.queue_bindings_delete(queue)
        self.auto_delete.discard(queue)
        self.call('SELECT queue_drop(%s::text)', queue_name(queue))

    def exchange_delete(self, exchange, **kwargs):
        for binding in list(self.state.bindings):
            if binding.exchange == exchange:
                self.queue_unbind(*binding)
        self.state.exchanges.pop(exchange, None)

    def queue_bind(self, queue, exchange=None, routing_key='', arguments=None, **kwargs):
        exchange = exchange or 'amq.direct'
        if self.state.has_binding(queue, exchange, routing_key):
            return
        super().queue_bind(queue, exchange, routing_key, arguments)
        kind = self.typeof(exchange).type
        pattern, name = topic_name(exchange, routing_key, kind), queue_name(queue)
        try:
            self.call('SELECT CASE WHEN EXISTS (SELECT FROM topic_list("limit" => 10000,'
                      ' q => %s::text) WHERE pattern = %s::text) THEN false'
                      ' ELSE topic_bind(%s::text, %s::text) END',
                      name, pattern, pattern, name)
        except (errors.InsufficientPrivilege, errors.FeatureNotSupported) as error:
            # Publishers of remote control find its queues by their names.
            if exchange.endswith('.pidbox'):
                return
            # Other processes do not know of this binding.  A direct exchange works
            # without, if publishers declare its queues.
            self.connection.known_here.add(exchange)
            if kind != 'direct':
                logger.warning(
                    'Queue %s gets no messages that other processes publish to exchange %s: %s. '
                    "A member of queue_admin can bind it: SELECT topic_bind('%s', '%s')",
                    queue, exchange, error.diag.message_primary, pattern, name)

    def _queue_bind(self, exchange, *meta):
        pass

    def queue_unbind(self, queue, exchange=None, routing_key='', arguments=None, **kwargs):
        exchange = exchange or 'amq.direct'
        kind = self.typeof(exchange).type
        super().queue_unbind(queue, exchange, routing_key, arguments)
        if exchange not in self.connection.known_here:
            self.call('SELECT topic_unbind(%s::text, %s::text)',
                      topic_name(exchange, routing_key, kind), queue_name(queue))

    # Publishing

    def basic_publish(self, message, exchange, routing_key, **kwargs):
        properties = message['properties']
        body = message['body']
        properties['body_encoding'] = None
        if isinstance(body, bytes) and message.get('content-encoding') == 'utf-8':
            with suppress(UnicodeDecodeError):      # base64 is a third longer
                body = message['body'] = body.decode()
        if not isinstance(body, str) or '\0' in body:
            message['body'], properties['body_encoding'] = self.encode_body(body, 'base64')
        properties.setdefault('delivery_info', {}).update(
            exchange=exchange, routing_key=routing_key)
        properties['priority'] = self._get_message_priority(message)
        queues = [routing_key] if not exchange else []
        if exchange in self.connection.known_here:
            queues = self._lookup(exchange, routing_key)
        for queue in queues:
            self._publish('queue_push', queue_name(queue), message)
        if queues or self._publish('topic_publish', topic_name(exchange, routing_key), message):
            return
        if exchange.endswith('.pidbox'):
            for queue in self._control_queues(exchange, routing_key):
                self._publish('queue_push', queue, message)

    def _control_queues(self, exchange, routing_key):
        """Return the queues of remote control that no topic reaches, since the role of their
        consumer may not bind them.

        Their names are a node, or the routing key of an answer, and the exchange.
        """
        suffix = queue_name(f'.{exchange}')
        pattern = re.escape(suffix)
        if self.typeof(exchange).type != 'fanout':
            pattern = '^' + re.escape(queue_name(routing_key)) + pattern
        names = self.call('SELECT name FROM queue_list("limit" => 10000, pattern => %s::text)',
                          pattern + '$')
        # The queues for answers have the exchange "reply.…", whose name ends the same.
        return [name for name, in names if not name.endswith(f'.reply{suffix}')]

    def _publish(self, function, to, message):
        properties, headers = message['properties'], message['headers']
        ttl, delay = properties.get('expiration'), properties.get('delay')
        if headers.get('expires'):      # a task: the worker notices, and stores that
            ttl = None
        if ttl is not None:
            ttl = self.connection.ttl(int(ttl) / 1000)
        if delay is None:
            delay = self.connection.seconds_until(headers.get('eta'))
        if delay and ttl is None:
            ttl = self.connection.ttl(delay + self.connection.default_ttl)
        try:
            return self.call(
                f'SELECT {function}(%s::text, %s::jsonb, ttl => %s::int, delay => %s::int,'
                ' priority => %s::int, group_key => %s::text, dedup_key => %s::text)',
                to, dumps(message), ttl, delay, properties['priority'],
                properties.get('group_key'), properties.get('dedup_key'))[0][0]
        except errors.ProgramLimitExceeded as error:
            raise Refused(error.diag.message_primary) from error

    # Consuming

    def basic_consume(self, queue, no_ack, callback, consumer_tag, **kwargs):
        super().basic_consume(queue, no_ack, callback, consumer_tag, **kwargs)
        self.callbacks[queue_name(queue)] = callback, no_ack
        self.connection.listen(queue_name(queue))

    def basic_cancel(self, consumer_tag):
        queue = self._tag_to_queue.get(consumer_tag)
        super().basic_cancel(consumer_tag)
        if queue is None or queue in self._active_queues:
            return
        name = queue_name(queue)
        self.callbacks.pop(name, None)
        if self.connection.alive:
            rows = [row for row in self.buffer if row[0] == name]
            for claim_id in {row[2] for row in rows}:
                ids = {row[1] for row in rows if row[2] == claim_id}
                if ids == self.claims[claim_id][1]:     # none was delivered: no attempt
                    self.connection.release([self.claims.pop(claim_id)[:1] + (claim_id,)])
                    rows = [row for row in rows if row[2] != claim_id]
            self.buffer = deque(row for row in self.buffer if row[0] != name)
            for row in rows:
                self.end(f'{row[2]}/{row[1]}', RETRY)
            if queue in self.auto_delete:
                self.queue_delete(queue)

    def basic_get(self, queue, no_ack=False, **kwargs):
        rows = self._claim('queue_claim(%s::text, %s::int, "limit" => 1)', queue_name(queue))
        return self._message(rows[0], no_ack) if rows else None

    def deliver(self):
        """Deliver a message, if there is one."""
        if not self.qos.can_consume():
            return False
        ready = self.connection.ready
        names = [name for name in self.callbacks if name in ready]
        with self.connection.lock:      # to renew may change the buffer
            if names and not self.buffer:
                self.buffer.extend(self._claim(
                    'queue_claim_any(%s::text[], %s::int, "limit" => %s::int)', names,
                    min(self.qos.can_consume_max_estimate() or LIMIT, LIMIT)))
                if not self.buffer:
                    ready.difference_update(names)
            if not self.buffer:
                return False
            row = self.buffer.popleft()
        callback, no_ack = self.callbacks[row[0]]
        message = self._message(row, no_ack)
        if message:
            callback(message)
        return True

    def _claim(self, function, queues, *limit):
        with self.connection.lock:
            rows = self.call('SELECT queue, id, claim_id, claim_count, body::text FROM '
                             + function, queues, self.connection.claim_ttl, *limit)
            if rows:
                self.claims[rows[0][2]] = rows[0][0], {row[1] for row in rows}
                self.connection.start_renewing()
        return rows

    def _message(self, row, no_ack):
        """Make a message of a row; with no_ack, delete it.

        Any role that may push could have made it: if it is not one of Kombu, it becomes a
        dead letter.
        """
        queue, message_id, claim_id, claim_count, body = row
        tag = f'{claim_id}/{message_id}'
        try:
            payload = loads(body)
            properties = payload.setdefault('properties', {})
            properties['delivery_tag'] = '' if no_ack else tag
            properties.setdefault('delivery_info', {'exchange': '', 'routing_key': queue})
            properties['delivery_info']['redelivered'] = claim_count > 1
            payload.setdefault('headers', {}).keys()
            if not isinstance(payload['body'], str):
                payload['body'] = dumps(payload['body'])
            message = self.Message(payload, channel=self)
        except Exception as error:      # of any kind: a body nested too deep, for one
            logger.error('Message %s of queue %s is not one of Kombu: %r', message_id, queue, error)
            self.end(tag, BURY, f'not of Kombu: {error!r}')
            return None
        if not no_ack:
            self.qos.append(message, tag)
            return message
        try:
            self.end(tag, DELETE)
        except ClaimEnded:          # another consumer has it, or it was canceled
            return None
        return message

    def end(self, delivery_tag, sql, *args):
        """End the claim of a message."""
        if not delivery_tag:        # of a message with no_ack
            return
        claim_id, _, message_id = delivery_tag.rpartition('/')
        if self.connection is None:
            raise ClaimEnded('the message was given back when its channel was closed')
        with self.connection.lock:
            queue, ids = self.claims.get(claim_id, (None, ()))
            if int(message_id) not in ids:
                raise ClaimEnded(f'the claim of message {message_id} has ended')
            ended = False
            try:
                self.call(sql, queue, int(message_id), claim_id, *args)
                ended = True
            except psycopg2.Error as error:
                ended = error.pgcode in ENDED
                if not ended:           # it is renewed, and given back at last
                    raise
                if len(ids) == 1:       # if it was canceled, this removes it
                    self.connection.release([(queue, claim_id)])
                raise ClaimEnded(f'message {message_id} of queue {queue}: '
                                 f'{error.diag.message_primary}') from error
            finally:
                if ended and self.connection.alive:
                    ids.discard(int(message_id))
                    if not ids:
                        del self.claims[claim_id]
        self.connection.wake()

    def give_back(self):
        """Give back what is claimed and not acknowledged."""
        transport = self.connection
        if transport is None or not transport.here:
            return
        with transport.lock:
            claims, self.claims = self.claims, {}
            buffered = {row[1] for row in self.buffer}
            self.buffer.clear()
            if not claims:
                return
            delivered = [(queue, message_id, claim_id) for claim_id, (queue, ids) in claims.items()
                         for message_id in ids - buffered]
            claims = [(queue, claim_id) for claim_id, (queue, ids) in claims.items()]
            try:
                # What Celery's loop has received has not begun, or is acknowledged.  The
                # callback of another consumer may have failed: that was an attempt.
                for message in delivered if transport.loop is None else ():
                    try:
                        self.call(RETRY, *message)
                    except psycopg2.Error as error:
                        if error.pgcode not in ENDED:
                            raise
                transport.release(claims)
            except transport.connection_errors as error:
                lost.setdefault(transport.dsn, []).extend(claims)
                logger.warning('%d claims are given back at the next connection, or expire: %s',
                               len(claims), one_line(error))

    def close(self):
        if not self.closed:
            self.qos.restore_unacked()
        super().close()


class Transport(virtual.Transport):
    """A connection to a database, and the claims made over it."""

    Channel = Channel

    can_parse_url = True
    driver_type = 'sql'
    driver_name = 'psycopg2'
    polling_interval = 5.0

    implements = virtual.Transport.implements.extend(
        asynchronous=True, exchange_type=frozenset(['direct', 'topic', 'fanout']))

    # A server that has become a standby refuses writes.
    connection_errors = virtual.Transport.connection_errors + (
        psycopg2.OperationalError, psycopg2.InterfaceError, errors.ReadOnlySqlTransaction)
    recoverable_connection_errors = connection_errors
    recoverable_channel_errors = ()

    def __init__(self, client, **kwargs):
        super().__init__(client, **kwargs)
        self.claim_ttl = client.transport_options.get('visibility_timeout', 60)
        self.pg = None
        self.loop = None
        self.turn = 0

    def driver_version(self):
        return psycopg2.__version__

    def as_uri(self, uri, include_password=False, mask='**'):
        if self.client.uri_prefix:
            uri = f'{self.client.uri_prefix}+{uri}'
        if not include_password:
            uri = re.sub('(//[^/@:]*):[^/@]*@', rf'\1:{mask}@', uri)
            uri = re.sub('([?&]password=)[^&]*', rf'\1{mask}', uri)
        return uri

    # The connection

    def _dsn(self):
        client = self.client
        if client.hostname and '://' in client.hostname:
            return re.sub('^queue://', 'postgresql://', client.hostname)
        return psycopg2.extensions.make_dsn(
            host=client.hostname, port=client.port, user=client.userid, password=client.password,
            dbname=client.virtual_host.strip('/') or None)

    def establish_connection(self):
        self.dsn = self._dsn()
        self.lock = threading.RLock()
        self.pid = os.getpid()
        try:
            self.pg = psycopg2.connect(self.dsn, fallback_application_name='kombu',
                                       connect_timeout=ceil(self.client.connect_timeout or 5))
        except psycopg2.OperationalError as error:
            raise psycopg2.OperationalError(one_line(error)) from None
        self.pg.autocommit = True
        self.known_here = set()     # exchanges with bindings that the server does not have
        self.listening = set()
        self.ready = set()          # queues that may have something to claim
        self.next_poll = 0
        self.renewer = None
        self.stopped = threading.Event()
        self.awake, self.waker = socket.socketpair()
        self.awake.setblocking(False)
        self.waker.setblocking(False)
        # Nothing but the schema of the extension is searched.
        self.call('SET search_path = pg_catalog, pg_temp')
        self.call("SELECT set_config('search_path', quote_ident(nspname) || ', pg_temp', false)"
                  ' FROM pg_extension JOIN pg_namespace AS n ON n.oid = extnamespace'
                  " WHERE extname IN ('queue', 'queue_proxy')")
        self.call("SELECT queue_channel('-'::text)")      # loads the library, which has the settings
        settings = dict(self.call("SELECT name, setting::int FROM pg_settings"
                                  " WHERE name ~ '^queue[.].*_message_(ttl|delay)$'"))
        self.min_ttl, self.max_ttl, self.default_ttl, self.max_delay = (
            settings[f'queue.{name}'] for name in (
                'min_message_ttl', 'max_message_ttl', 'default_message_ttl', 'max_message_delay'))
        if self.dsn in lost:
            self.release(lost.pop(self.dsn))
        return super().establish_connection()

    def close_connection(self, connection):
        if self.pg is None:
            return
        if not self.here:           # a child must not end the session of its parent
            self.pg = None
            return
        self.stopped.set()
        super().close_connection(connection)
        with self.lock:
            if self.loop:
                self.loop.on_tick.discard(self.on_tick)
                self.loop.remove_reader(self.pg_fd)
                self.loop.remove_reader(self.awake)
                self.loop = None
            self.pg.close()
            self.pg = None
            self.awake.close()
            self.waker.close()

    def verify_connection(self, connection):
        return self.alive

    @property
    def here(self):
        return self.pid == os.getpid()

    @property
    def alive(self):
        return self.pg is not None and not self.pg.closed and self.here

    def call(self, sql, *args):
        """Run a statement in a transaction of its own."""
        if self.pg is None or not self.here:
            raise RecoverableConnectionError('not connected')
        with self.lock:
            with self.pg.cursor() as cursor:
                cursor.execute(sql, args)
                rows = cursor.fetchall() if cursor.description else []
            del self.pg.notices[:]
            if self.pg.notifies:
                self.wake()
        return rows

    def ttl(self, seconds):
        """Return a lifetime that the server accepts."""
        return max(self.min_ttl, min(ceil(seconds), self.max_ttl))

    def seconds_until(self, eta):
        """Return the delay of a task with this ETA, in whole seconds.

        If that is too far away, Celery itself waits for the rest: the message must live
        longer than its delay.
        """
        try:
            eta = datetime.fromisoformat(eta.replace('Z', '+00:00'))
            delay = ceil((eta - datetime.now(timezone.utc)).total_seconds())
        except (AttributeError, TypeError, ValueError):     # none, or without a time zone
            return None
        return max(0, min(delay, self.max_delay, self.max_ttl // 2)) or None

    # Claims

    def release(self, claims):
        """Give back what is left of these claims.  This is no attempt at it."""
        self.call('SELECT claim_release(queue, claim_id)'
                  ' FROM unnest(%s::text[], %s::text[]) AS u(queue, claim_id)',
                  *map(list, zip(*claims)))

    def start_renewing(self):
        if self.renewer is None:
            self.renewer = threading.Thread(target=self._renew_until_stopped, daemon=True)
            self.renewer.start()

    def _renew_until_stopped(self):
        while not self.stopped.wait(self.claim_ttl / 3):
            try:
                self.renew()
            except psycopg2.Error as error:
                if self.stopped.is_set():
                    return
                logger.warning('Claims were not renewed: %s', one_line(error))
                if not self.alive:
                    return self.wake()

    def renew(self):
        """Renew all claims of the connection."""
        with self.lock:
            claims = {claim_id: (queue, channel) for channel in self.channels
                      for claim_id, (queue, ids) in channel.claims.items()}
            if not claims:
                return
            rows = self.call('SELECT claim_id, claim_renew(queue, claim_id, %s::int)'
                             ' FROM unnest(%s::text[], %s::text[]) AS u(queue, claim_id)',
                             self.claim_ttl, [queue for queue, _ in claims.values()], list(claims))
            for claim_id, renewed in rows:
                if renewed is None:
                    queue, channel = claims[claim_id]
                    ids = channel.claims.pop(claim_id)[1]
                    channel.buffer = deque(row for row in channel.buffer if row[2] != claim_id)
                    logger.warning('%d messages of queue %s are not claimed any more: their claim'
                                   ' has expired, or they were canceled', len(ids), queue)

    # Waiting

    def listen(self, name):
        if name not in self.listening:
            self.call('LISTEN "%s"' % self.call('SELECT queue_channel(%s::text)', name)[0][0])
            self.listening.add(name)
        self.ready.add(name)        # after LISTEN, so that nothing is missed

    def wake(self):
        """Wake the thread that consumes."""
        try:
            self.waker.send(b'.')
        except OSError:             # full: it will wake; or closed
            pass

    def deliver(self):
        """Deliver a message to a consumer, if there is one."""
        with self.lock:
            if self.pg is None:
                raise RecoverableConnectionError('not connected')
            try:
                self.pg.poll()
            except psycopg2.OperationalError as error:
                # What the server has said before it ended the session is a notice.
                reason = one_line(''.join(self.pg.notices) or error)
                raise psycopg2.OperationalError(reason) from None
            while self.pg.notifies:
                self.ready.add(self.pg.notifies.pop().payload)
            if self.next_poll <= monotonic():
                self.next_poll = monotonic() + self.polling_interval
                self.ready |= self.listening
        self.turn += 1
        channels = len(self.channels)
        return any(self.channels[(self.turn + i) % channels].deliver() for i in range(channels))

    def drain_events(self, connection, timeout=None):
        end = None if timeout is None else monotonic() + timeout
        while not self.deliver():
            now = monotonic()
            if end is not None and now >= end:
                raise socket.timeout('timed out')
            wait = max(0, (self.next_poll if end is None else min(self.next_poll, end)) - now)
            poll = select.poll()
            poll.register(self.pg, select.POLLIN)
            poll.register(self.awake, select.POLLIN)
            poll.poll(wait * 1000)
            self._clear_awake()

    def _clear_awake(self):
        try:
            self.awake.recv(4096)
        except OSError:             # nothing to read
            pass

    def register_with_event_loop(self, connection, loop):
        self.loop, self.pg_fd = loop, self.pg.fileno()
        loop.add_reader(self.pg_fd, lambda: None)       # on_tick reads
        loop.add_reader(self.awake, self._clear_awake)
        loop.on_tick.add(self.on_tick)
        # Celery hands tasks whose ETA has come to its pool in the next tick.
        loop.call_repeatedly(1.0, self.wake)

    def on_tick(self):
        delivered = 0
        while delivered < LIMIT and self.pg is not None and self.deliver():
            delivered += 1
        if delivered:
            self.wake()             # others, such as a pool, go on in the next tick


TRANSPORT_ALIASES['queue'] = TRANSPORT_ALIASES['queue+postgresql'] = 'kombu_queue:Transport'
