"""What Zaqar's tests leave out."""

import logging
import os
import select
import threading
import unittest
import uuid

from oslo_config import cfg
import psycopg2
from zaqar.common import errors
from zaqar.conf import default
from zaqar.storage import errors as storage_errors

from zaqar_postgresql import driver


def start(uri='postgresql://'):
    conf = cfg.ConfigOpts()
    conf(args=[], project='zaqar')
    conf.register_opts(default.ALL_OPTS)
    conf.register_opts(driver.OPTIONS, group=driver.GROUP)
    conf.set_override('uri', uri, group=driver.GROUP)
    return driver.DataDriver(conf, None, None)


def superuser(sql):
    connection = psycopg2.connect('', options='-c default_transaction_read_only=off')
    with connection, connection.cursor() as cursor:
        cursor.execute(sql)
    connection.close()


class DriverTest(unittest.TestCase):

    def setUp(self):
        self.driver = start()
        self.queues = self.driver.queue_controller
        self.messages = self.driver.message_controller
        self.claims = self.driver.claim_controller
        self.queues.create('q')
        self.addCleanup(self.driver.close)
        self.addCleanup(self.queues.delete, 'q')

    def post(self, count=1, **fields):
        return self.messages.post('q', [{'body': n, 'ttl': 600, **fields}
                                        for n in range(count)], uuid.uuid4())

    def test_uri(self):
        with self.assertRaises(errors.ConfigurationError) as raised:
            start('mongodb://zaqar:secret@host/db')
        self.assertNotIn('secret', str(raised.exception))

    def test_no_extension(self):
        other = start('postgresql:///template1?options=')
        with self.assertLogs(level=logging.ERROR) as logs:
            self.assertFalse(other.is_alive())
        self.assertIn('the database does not have the extension "queue"',
                      logs.output[0])

    def test_no_privilege(self):
        superuser('CREATE ROLE zaqar_nothing; GRANT zaqar_nothing TO CURRENT_USER')
        self.addCleanup(superuser, 'DROP ROLE zaqar_nothing')
        other = start('postgresql:///?options=-c%20role%3Dzaqar_nothing')
        self.addCleanup(other.close)
        with self.assertLogs(level=logging.ERROR) as logs:
            with self.assertRaises(storage_errors.ExceptionBase) as raised:
                other.queue_controller.exists('q')
        self.assertIn('role "zaqar_nothing" needs USAGE', logs.output[0])
        self.assertEqual('', str(raised.exception))

    def test_search_path(self):
        superuser('''CREATE FUNCTION public.queue_exists(q text) RETURNS boolean
            LANGUAGE sql RETURN false;
            ALTER DATABASE zaqar_test SET search_path = public, queue''')
        self.addCleanup(superuser, '''DROP FUNCTION public.queue_exists;
            ALTER DATABASE zaqar_test RESET search_path''')
        other = start()
        self.addCleanup(other.close)
        self.assertTrue(other.queue_controller.exists('q'))

    def test_projects(self):
        ids = self.post()
        self.assertEqual([], list(self.messages.bulk_get('q', ids, 'other')))
        self.messages.bulk_delete('q', ids, 'other')
        self.assertEqual([], self.messages.pop('q', 10, 'other'))
        self.assertEqual(1, len(self.messages.pop('q', 10)))

    def test_fork(self):
        self.post()
        child = os.fork()
        if not child:
            ok = self.messages.pop('q', 1)[0]['body'] == 0
            os._exit(0 if ok else 1)
        self.assertEqual(0, os.waitpid(child, 0)[1])
        self.assertEqual(1, len(self.driver.database._idle))
        with self.assertNoLogs(level=logging.WARNING):
            self.assertEqual([], self.messages.pop('q', 1))

    def test_connection_ended(self):
        self.post()
        connection, = self.driver.database._idle
        superuser('SELECT pg_terminate_backend(%d)' % connection.info.backend_pid)
        poll = select.poll()
        poll.register(connection.fileno(), select.POLLIN)
        self.assertTrue(poll.poll(10000))
        with self.assertLogs(level=logging.WARNING) as logs:
            self.assertEqual(1, len(self.messages.pop('q', 10)))
        self.assertEqual(1, len(logs.output))
        self.assertIn('terminating connection due to administrator command', logs.output[0])

    def test_read_only(self):
        # as after a failover, when the server is a standby
        superuser('ALTER DATABASE zaqar_test SET default_transaction_read_only = on')
        other = start()
        self.addCleanup(other.close)
        with self.assertLogs(level=logging.ERROR) as logs:
            with self.assertRaises(storage_errors.ConnectionError):
                other.message_controller.pop('q', 1)
        self.assertIn('in a read-only transaction', logs.output[0])
        superuser('ALTER DATABASE zaqar_test RESET default_transaction_read_only')
        self.assertEqual([], other.message_controller.pop('q', 1))

    def test_threads(self):
        def pop():
            for _ in range(25):
                popped.extend(self.messages.pop('q', 1))

        self.post(200)
        popped = []
        threads = [threading.Thread(target=pop) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(list(range(200)), sorted(m['body'] for m in popped))
        self.assertLessEqual(len(self.driver.database._idle), 8)

    def test_delete_again(self):
        ids = self.post(2)
        claim, _ = self.claims.create('q', {'ttl': 60, 'grace': 60})
        for number in ids + ids:
            self.messages.delete('q', number, claim=claim)
        self.assertEqual(0, self.queues.stats('q')['messages']['total'])

    def test_delete_without_claim(self):
        number, = self.post()
        self.claims.create('q', {'ttl': 60, 'grace': 60})
        for claim in None, '', 'x', '\0':
            with self.assertRaises((storage_errors.NotPermitted,
                                    storage_errors.ClaimDoesNotExist)):
                self.messages.delete('q', number, claim=claim)

    def test_delete_with_claim_ids(self):
        ids = self.post(20)
        claims = [self.claims.create('q', {'ttl': 60, 'grace': 60})[0] for _ in range(2)]
        with self.assertRaises(storage_errors.ClaimDoesNotMatch):
            self.messages.bulk_delete('q', ids, claim_ids=claims[:1])
        self.messages.bulk_delete('q', ids[:5] + ids[15:], claim_ids=claims)
        self.assertEqual(10, self.queues.stats('q')['messages']['total'])
        self.claims.delete('q', claims[0])
        with self.assertRaises(storage_errors.MessageNotClaimed):
            self.messages.bulk_delete('q', ids, claim_ids=claims)

    def test_ids(self):
        ids = self.post()
        for number in '', 'x', '-1', '1e3', '9' * 19, '9' * 30, '\u0663':
            self.messages.delete('q', number)
            self.messages.bulk_delete('q', [number])
            with self.assertRaises(storage_errors.MessageDoesNotExist):
                self.messages.get('q', number)
        self.assertEqual(ids, [self.messages.first('q')['id']])

    def test_messages_of_sql(self):
        for headers in 'NULL', '\'{"checksum": 1}\'', '\'"checksum"\'':
            superuser("SELECT queue.queue_push('q', '1', headers => %s)" % headers)
        found = next(self.messages.list('q'))
        self.assertEqual([None, 1, None], [m.get('checksum') for m in found])

    def test_bodies_that_python_does_not_read(self):
        # SQL can push them.  They do not keep anybody from the other messages.
        bodies = 3000 * '[' + 3000 * ']', 5000 * '1'
        for body in bodies + ('"other"',):
            superuser("SELECT queue.queue_push('q', '%s'::jsonb)" % body)
        found = [*bodies, 'other']
        claim, claimed = self.claims.create('q', {'ttl': 60, 'grace': 60})
        self.assertEqual(found, [m['body'] for m in claimed])
        self.claims.delete('q', claim)
        self.assertEqual(found, [m['body'] for m in self.messages.pop('q', 10)])

    def test_list_filtered(self):
        for n in range(25):
            self.queues.create('many%02d' % n, {'odd': n % 2}, 'lists')
            self.addCleanup(self.queues.delete, 'many%02d' % n, 'lists')
        names, marker = [], None
        while True:
            page = self.queues.list('lists', {'odd': 1}, marker, 5, name='many')
            found = [queue['name'] for queue in next(page)]
            if not found:
                break
            names += found
            marker = next(page)
        self.assertEqual(['many%02d' % n for n in range(1, 25, 2)], names)
        self.assertEqual(25, self.queues.calculate_resource_count('lists'))
        self.assertEqual([], next(self.queues.list('lists', name='.*')))

    def test_push_to_unknown_queue(self):
        # A push of the first version of Zaqar's API creates no queue.
        with self.assertRaises(storage_errors.QueueDoesNotExist):
            self.messages.post('unknown', [{'body': 1, 'ttl': 60}], uuid.uuid4())
        self.assertFalse(self.queues.exists('unknown'))
