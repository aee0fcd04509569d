"""Tests of what this transport does beyond Kombu's own tests.

    export DSN=postgresql://app@…/mydb ADMIN=postgresql://postgres@…/mydb
    python3 -m unittest test_transport.py

app is a member of queue_producer and queue_consumer.  The server needs
queue.min_claim_ttl = 1 and queue.min_message_ttl = 1.
"""
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest
from datetime import datetime, timedelta, timezone

import psycopg2
from kombu import Connection, Exchange, Queue
from kombu.asynchronous import Hub

import kombu_queue

DSN, ADMIN = os.environ['DSN'], os.environ['ADMIN']


def query(sql, *args):
    conn = psycopg2.connect(ADMIN)
    conn.autocommit = True
    with conn.cursor() as cursor:
        cursor.execute(sql, args)
        rows = cursor.fetchall() if cursor.description else []
    conn.close()
    return rows


class TestTransport(unittest.TestCase):
    def setUp(self):
        query('SELECT queue_drop(name) FROM queue_list("limit" => 1000) WHERE name !~ %s', 'dead$')
        query('SELECT queue_drop(name) FROM queue_list("limit" => 1000)')
        self.received = []
        self.connections = []

    def tearDown(self):
        for connection in self.connections:
            connection.release()

    def connect(self, dsn=DSN, ttl=60):
        connection = Connection('queue+' + dsn, transport_options={
            'visibility_timeout': ttl, 'polling_interval': 0.5})
        self.connections.append(connection)
        return connection

    def consume(self, connection, queue='q', prefetch=None, **kwargs):
        consumer = connection.Consumer(
            [queue if isinstance(queue, Queue) else Queue(queue)], prefetch_count=prefetch,
            callbacks=[lambda body, message: self.received.append(message)], **kwargs)
        consumer.consume()
        return consumer

    def drain(self, connection, count=1, timeout=180):
        """Deliver until there are so many messages; return the bodies."""
        end = time.monotonic() + timeout
        while len(self.received) < count:
            connection.drain_events(timeout=max(0, end - time.monotonic()))
        return [message.payload for message in self.received]

    def publish(self, connection, *bodies, queue='q', **kwargs):
        for body in bodies:
            connection.Producer().publish(body, routing_key=queue, **kwargs)

    def nothing_comes(self, connection, timeout=0):
        with self.assertRaises(socket.timeout):
            connection.drain_events(timeout=timeout)

    def stats(self, queue='q'):
        return query('SELECT free, claimed, delayed FROM queue_stats(%s)', queue)[0]

    def test_ack_deletes(self):
        connection = self.connect()
        self.publish(connection, 1, 2)
        self.consume(connection)
        self.drain(connection, 2)
        self.assertEqual(self.stats(), (0, 2, 0))
        self.received[0].ack()
        self.assertEqual(self.stats(), (0, 1, 0))
        self.received[1].ack()
        self.assertEqual(self.stats(), (0, 0, 0))

    def test_bodies(self):
        connection = self.connect()
        bodies = ['text', 'nul \0', b'\xff\0', {'a': [1, 'ä']}, None]
        for body, serializer in zip(bodies, (None, None, None, 'json', 'json')):
            self.publish(connection, body, serializer=serializer)
        self.consume(connection, accept=['json', 'text/plain', 'application/data'])
        self.assertEqual(self.drain(connection, 5), bodies)

    def test_waits_until_a_message_comes(self):
        connection = self.connect()
        self.consume(connection)
        connection.transport.polling_interval = 600
        self.nothing_comes(connection, 0.1)
        timer = threading.Timer(0.3, self.publish, (self.connect(), 'late'))
        timer.start()
        self.assertEqual(self.drain(connection), ['late'])
        timer.join()

    def test_time_to_poll_comes_before_the_wait(self):
        connection = self.connect()
        self.consume(connection)
        deliver = connection.transport.deliver

        def deliver_late():
            delivered = deliver()
            connection.transport.next_poll = 0
            return delivered

        connection.transport.deliver = deliver_late
        begin = time.monotonic()
        self.nothing_comes(connection, 0.3)
        self.assertGreaterEqual(time.monotonic() - begin, 0.3)

    def test_priorities(self):
        connection = self.connect()
        for priority in (0, 9, 5, 42, -1):
            self.publish(connection, priority, priority=priority)
        self.consume(connection)
        self.assertEqual(self.drain(connection, 5), [9, 42, 5, 0, -1])

    def test_prefetch(self):
        connection = self.connect()
        self.publish(connection, *range(30))
        self.consume(connection, prefetch=2)
        self.drain(connection, 2)
        self.nothing_comes(connection, 0.1)
        self.assertEqual(self.stats(), (28, 2, 0))
        self.received[0].ack()
        self.assertEqual(self.drain(connection, 3), [0, 1, 2])

    def test_delays(self):
        connection = self.connect()
        self.consume(connection)
        begin = time.monotonic()
        self.publish(connection, 'delay', delay=1)
        now = datetime.now(timezone.utc)
        self.publish(connection, 'eta', headers={'eta': (now + timedelta(seconds=2)).isoformat()})
        self.publish(connection, 'far', headers={'eta': (now + timedelta(days=100)).isoformat()})
        self.publish(connection, 'past', headers={'eta': (now - timedelta(days=1)).isoformat()})
        self.publish(connection, 'naive', headers={'eta': '2999-01-01T00:00:00'})
        self.assertEqual(self.stats(), (2, 0, 3))
        self.drain(connection, 4)
        self.assertGreaterEqual(time.monotonic() - begin, 2)
        self.assertEqual([message.payload for message in self.received],
                         ['past', 'naive', 'delay', 'eta'])
        self.assertEqual(self.stats(), (0, 4, 1))

    def test_arguments_of_push(self):
        connection = self.connect()
        self.publish(connection, 1, group_key='g', dedup_key='d', expiration=100)
        self.publish(connection, 2, group_key='g', dedup_key='d')
        rows = query("SELECT group_key, ttl FROM queue_messages('q', echo => true)")
        self.assertEqual(rows, [('g', 100)])

    def test_too_large(self):
        connection = self.connect()
        with self.assertRaisesRegex(kombu_queue.Refused, 'too large'):
            self.publish(connection, 'x' * 300000)
        self.publish(connection, 'small', retry=True)
        self.assertEqual(self.stats(), (1, 0, 0))

    def test_claims_are_renewed(self):
        connection = self.connect(ttl=4)
        self.publish(connection, 1, 2, 3)
        self.consume(connection, prefetch=3)
        self.drain(connection, 1)       # two more are claimed, and not delivered
        time.sleep(5)
        self.assertEqual(self.stats(), (0, 3, 0))
        self.received[0].ack()
        self.drain(connection, 3)
        self.assertEqual([m.delivery_info['redelivered'] for m in self.received], [False] * 3)

    def test_ack_is_fenced(self):
        connection, other = self.connect(ttl=1), self.connect()
        connection.transport.renew = lambda: None
        self.publish(connection, 1, 2)
        self.consume(connection)
        self.drain(connection, 2)
        first = self.received[0]
        time.sleep(1.2)
        self.received = []
        self.consume(other)
        self.assertEqual(self.drain(other, 2), [1, 2])
        self.assertTrue(self.received[0].delivery_info['redelivered'])
        with self.assertRaisesRegex(kombu_queue.ClaimEnded, 'claim is not live'):
            first.ack()
        self.assertEqual(self.stats(), (0, 2, 0))
        self.received[0].ack()

    def test_ack_fails(self):
        connection = self.connect(DSN + '&options=-c%20lock_timeout%3D200ms', ttl=60)
        self.publish(connection, 1)
        self.consume(connection)
        self.drain(connection)
        other = psycopg2.connect(ADMIN)
        with other.cursor() as cursor:
            cursor.execute('SELECT claim_renew(%s, %s, 60)',
                           ('q', self.received[0].delivery_tag.rpartition('/')[0]))
        with self.assertRaises(psycopg2.errors.LockNotAvailable):
            self.received[0].ack()
        other.close()
        self.received[0].ack()          # it is still claimed
        self.assertEqual(self.stats(), (0, 0, 0))

    def test_renewal_notices_that_a_claim_has_ended(self):
        connection = self.connect(ttl=3)
        self.publish(connection, 1)
        self.consume(connection)
        self.drain(connection)
        query("SELECT queue_purge('q')")
        with self.assertLogs('kombu_queue', 'WARNING') as log:
            connection.transport.renew()
        self.assertIn('1 messages of queue q are not claimed any more', log.output[0])
        with self.assertRaises(kombu_queue.ClaimEnded):
            self.received[0].ack()

    def test_canceled(self):
        connection = self.connect(ttl=30)
        self.publish(connection, 1)
        self.consume(connection)
        self.drain(connection)
        query("SELECT message_cancel('q', id)"
              " FROM queue_messages('q', include_claimed => true, echo => true)")
        with self.assertRaisesRegex(kombu_queue.ClaimEnded, 'canceled'):
            self.received[0].ack()
        self.assertEqual(self.stats(), (0, 0, 0))

    def test_reject(self):
        connection = self.connect()
        self.publish(connection, 1, 2)
        self.consume(connection)
        self.drain(connection, 2)
        self.received[0].reject()
        self.assertEqual(query("SELECT last_error FROM queue_dead_letters('q.dead')"),
                         [('rejected',)])
        self.received[1].requeue()
        self.assertEqual(self.drain(connection, 3)[2], 2)
        self.assertTrue(self.received[2].delivery_info['redelivered'])

    def test_close_gives_back(self):
        connection = self.connect(ttl=60)
        self.publish(connection, *range(5))
        consumer = self.consume(connection, prefetch=4)
        self.drain(connection, 1)
        self.assertEqual(self.stats(), (1, 4, 0))
        consumer.cancel()               # what was not delivered
        self.assertEqual(self.stats(), (4, 1, 0))
        connection.release()
        self.assertEqual(self.stats(), (5, 0, 0))
        with self.assertRaises(connection.connection_errors):
            self.received[0].ack()
        self.received = []
        other = self.connect()
        self.consume(other)
        self.drain(other, 1)            # it was delivered, so it may have run
        self.assertTrue(self.received[0].delivery_info['redelivered'])

    def test_what_is_given_back_is_no_attempt(self):
        """Only what the callback of a consumer has got may have failed; Celery's loop
        gets more than it begins."""
        for in_loop in False, True:
            connection = self.connect(ttl=60)
            self.publish(connection, *range(4))
            self.consume(connection, prefetch=4)
            self.drain(connection, 2)
            if in_loop:
                connection.transport.register_with_event_loop(connection.connection, Hub())
            connection.release()
            count = 0 if in_loop else 1
            self.assertEqual(query("SELECT claim_count FROM queue_messages('q')"),
                             [(count,), (count,), (0,), (0,)])
            query("SELECT queue_purge('q')")
            self.received = []

    def test_cancel_before_delivery_is_no_attempt(self):
        connection = self.connect(ttl=60)
        self.publish(connection, *range(4))
        consumer = self.consume(connection)
        channel = consumer.channel
        channel.buffer.extend(channel._claim('queue_claim(%s::text, %s::int)', 'q'))
        self.assertEqual(self.stats(), (0, 4, 0))
        consumer.cancel()
        self.assertEqual(query("SELECT claim_count FROM queue_messages('q')"), [(0,)] * 4)

    def test_basic_get_and_no_ack(self):
        connection = self.connect()
        self.publish(connection, 1, 2)
        channel = connection.channel()
        self.assertEqual(channel.basic_get('q', no_ack=True).payload, 1)
        self.assertEqual(self.stats(), (1, 0, 0))
        self.consume(connection, no_ack=True)
        self.drain(connection)
        self.received[0].ack()          # is not needed, and does nothing
        self.assertEqual(self.stats(), (0, 0, 0))
        self.assertIsNone(channel.basic_get('q'))

    def test_basic_get_beside_a_consumer(self):
        connection = self.connect()
        self.publish(connection, 1, 2)
        consumer = self.consume(connection)
        self.drain(connection)
        Queue('other', channel=consumer.channel).declare()
        self.assertIsNone(consumer.channel.basic_get('other'))
        self.assertEqual(self.drain(connection, 2), [1, 2])

    def test_no_ack_of_a_message_that_was_canceled(self):
        connection = self.connect(ttl=60)
        self.publish(connection, 1, 2)
        self.consume(connection, no_ack=True)
        self.drain(connection)
        query("SELECT message_cancel('q', id) FROM queue_messages('q', include_claimed => true)")
        connection.drain_events(timeout=1)
        self.nothing_comes(connection, 0.1)
        self.assertEqual([message.payload for message in self.received], [1])
        self.assertEqual(self.stats(), (0, 0, 0))

    def test_messages_that_are_not_of_kombu(self):
        connection = self.connect(ttl=60)
        self.consume(connection)
        for body in '1', '[]', '{}', '{"body": "", "properties": 1}', \
                '{"body": "", "headers": []}', \
                '{"body": "", "properties": {"delivery_info": 1}}', \
                '{"body": "+", "properties": {"body_encoding": "base64"}}', \
                '{"body": "x", "properties": {"body_encoding": "none"}}', \
                '{"body": %s1%s}' % (3000 * '[', 3000 * ']'):
            query("SELECT queue_push('q', %s::jsonb)", body)
        query("SELECT queue_push('q', %s::jsonb)",
              '{"body": [[2], {}], "content-type": "application/json",'
              ' "content-encoding": "utf-8", "headers": {"task": "t"}}')
        with self.assertLogs('kombu_queue', 'ERROR') as log:
            self.assertEqual(self.drain(connection), [[[2], {}]])
        self.assertEqual(len(log.output), 9)
        self.assertEqual(self.stats('q.dead'), (9, 0, 0))
        self.received[0].ack()

    def test_text_and_bytes(self):
        """A text is not made longer."""
        connection = self.connect()
        self.consume(connection, accept=['text/plain', 'application/data'])
        bodies = ['\xe4' + 200000 * 'a', 'a NUL: \0', b'bytes', b'\xff']
        for body in bodies:
            self.publish(connection, body, serializer='raw' if isinstance(body, bytes) else None)
        self.assertEqual(self.drain(connection, 4), bodies)

    def test_long_name_with_fips(self):
        with tempfile.NamedTemporaryFile('w', suffix='.cnf') as conf:
            conf.write('openssl_conf = a\n[a]\nalg_section = b\n[b]\n'
                       'default_properties = fips=yes\n')
            conf.flush()
            name = subprocess.check_output(
                [sys.executable, '-c', "import kombu_queue; print(kombu_queue.queue_name(70 * 'a'))"],
                env=dict(os.environ, OPENSSL_CONF=conf.name), text=True)
        self.assertEqual(name, 30 * 'a' + '::0f5c6c4e740bfcc08c3c26ccb2673d46\n')

    def test_topics(self):
        admin, app = self.connect(ADMIN), self.connect()
        news = Exchange('a.b', type='topic')
        self.consume(admin, Queue('x@y', news, routing_key='*.#'))
        self.publish(app, 1, queue='k@1.k', exchange='a.b')
        self.publish(app, 2, queue='', exchange='a.b')
        self.publish(app, 3, queue='.k', exchange='a.b')
        self.assertEqual(self.drain(admin, 2), [1, 3])
        self.assertEqual(query('SELECT pattern, queue FROM topic_list()'), [('a/b.*.#', 'x:40y')])

    def test_topics_without_privilege(self):
        app = self.connect()
        everyone = Exchange('everyone', type='fanout')
        with self.assertLogs('kombu_queue', 'WARNING') as log:
            self.consume(app, Queue('mine', everyone))
        statement = log.output[0].split('bind it: ')[1]
        self.assertEqual(statement, "SELECT topic_bind('everyone.#', 'mine')")
        self.publish(self.connect(), 'lost', queue='', exchange='everyone')
        self.nothing_comes(app, 0.1)
        query(statement)
        self.publish(self.connect(), 'all', queue='', exchange='everyone')
        self.publish(app, 'here', queue='', exchange='everyone')
        self.assertEqual(self.drain(app, 2), ['all', 'here'])
        with self.assertNoLogs('kombu_queue', 'WARNING'):       # it is bound now
            self.connect().channel().queue_declare('mine')
            Queue('mine', everyone)(self.connect().channel()).declare()

    def test_direct_exchange_without_privilege(self):
        app = self.connect()
        queue = Queue('mine', Exchange('e', type='direct'), routing_key='k')
        with self.assertNoLogs('kombu_queue', 'WARNING'):
            self.publish(app, 1, exchange='e', queue='k', declare=[queue])
        self.assertEqual(self.stats('mine'), (1, 0, 0))

    def test_auto_delete(self):
        admin = self.connect(ADMIN)
        queue = Queue('temporary', Exchange('t', type='fanout'), auto_delete=True, message_ttl=5)
        consumer = self.consume(admin, queue)
        self.assertEqual(query("SELECT metadata FROM queue_get('temporary')"),
                         [({'_default_message_ttl': 5},)])
        consumer.cancel()
        self.assertEqual(query("SELECT queue_exists('temporary')"), [(False,)])

    def test_names(self):
        self.assertEqual(kombu_queue.queue_name('celery@host.celery.pidbox'),
                         'celery:40host.celery.pidbox')
        name = kombu_queue.queue_name('x' * 65)
        self.assertEqual(len(name), 64)
        self.assertNotEqual(name, kombu_queue.queue_name('x' * 66))
        self.publish(self.connect(), 1, queue='Schlüssel 1 ' + 'x' * 65)

    def test_passwords_are_not_shown(self):
        for url in ('queue+postgresql://a:se%2Fcret@h1:1,h2:2/d', 'queue://a:secret@h/d',
                    'queue+postgresql://h/d?user=a&password=secret&sslmode=require'):
            shown = Connection(url).as_uri()
            self.assertNotIn('cret', shown)
            self.assertTrue(shown.startswith(url[:url.index('://')]), shown)

    def test_terminated(self):
        connection = self.connect(ttl=60)
        self.publish(connection, *range(3))
        self.consume(connection, prefetch=3)
        self.drain(connection, 1)
        query("SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity"
              " WHERE usename = 'app' AND datname = current_database()")
        with self.assertRaisesRegex(connection.connection_errors, 'terminating connection'):
            self.drain(connection, 4)
        with self.assertLogs('kombu_queue', 'WARNING') as log:
            connection.collect()
        self.assertIn('claims are given back at the next connection', log.output[0])
        self.assertEqual(self.stats(), (0, 3, 0))
        self.consume(connection)
        self.received = []
        self.assertEqual(self.drain(connection, 3), [0, 1, 2])

    def test_child(self):
        connection = self.connect(ttl=60)
        self.publish(connection, 1, 2)
        self.consume(connection, prefetch=1)
        self.drain(connection)
        pid = os.fork()
        if not pid:
            try:
                self.publish(connection.clone(), 3)
                connection.release()
            finally:
                os._exit(0)
        os.waitpid(pid, 0)
        self.assertEqual(self.stats(), (2, 1, 0))
        self.received[0].ack()
        self.assertEqual(self.drain(connection, 2), [1, 2])


if __name__ == '__main__':
    unittest.main()
