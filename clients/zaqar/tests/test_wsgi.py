"""Zaqar's tests of its HTTP interface, with this driver in place of MongoDB's.

The files in etc/ have the names of those that the tests ask for.
"""

import importlib
import os
import pkgutil
import unittest

from oslo_db.sqlalchemy import engines
import psycopg2
from zaqar.common import decorators
from zaqar.storage import mongodb
from zaqar.storage.mongodb import driver as mongodb_driver
from zaqar.storage.mongodb import messages as mongodb_messages
from zaqar.storage.sqlalchemy import driver as sqlalchemy_driver
from zaqar.storage.sqlalchemy import tables

from zaqar_postgresql import controllers
from zaqar_postgresql import driver


def engine(self):
    """Zaqar's management store, in memory."""
    engine = engines.create_engine('sqlite://', sqlite_fk=True)
    tables.metadata.create_all(engine)
    return engine


class Everything:
    """What a test drops when it ends: all queues of all projects."""

    def drop_database(self, name):
        connection = psycopg2.connect('', options='')
        with connection, connection.cursor() as cursor:
            cursor.execute(
                "SELECT queue.queue_drop(name) FROM queue_data.queue,"
                " LATERAL set_config('queue.project', project, true)")
        connection.close()


sqlalchemy_driver.ControlDriver.engine = decorators.lazy_property(write=False)(engine)
sqlalchemy_driver.ControlDriver.queues_database = None
sqlalchemy_driver.ControlDriver.topics_database = None
driver.DataDriver.connection = Everything()
driver.DataDriver.message_databases = ()

# Some tests replace a method of the driver.
mongodb.driver.DataDriver = mongodb_driver.DataDriver = driver.DataDriver
mongodb_messages.MessageController = controllers.MessageController


# What the driver leaves to others.
SUBSCRIPTIONS = 'the driver has no subscriptions'
TOPICS = 'the management store "sqlalchemy" has no topics'
NAMES = 'Zaqar 15 names capabilities by numbers with Python 3.11'
SAME_URI = 'the management store "sqlalchemy" fails with 500 for an URI that it has'
LEFT_OUT = {
    'test_subscriptions': SUBSCRIPTIONS,
    'test_subscription_ttl': SUBSCRIPTIONS,
    'test_purge_by_default': SUBSCRIPTIONS,
    'test_purge_particular_resource': SUBSCRIPTIONS,
    'TestTopicLifecycleMongoDB': TOPICS,
    'TestFlavorsMongoDB.test_detailed_listing_works': NAMES,
    'TestFlavorsMongoDB.test_get_works': NAMES,
    'TestFlavorsMongoDB.test_patch_works': NAMES,
    'test_put_same_database_uri': SAME_URI,
}


def tests_in(suite):
    for test in suite:
        if isinstance(test, unittest.TestSuite):
            yield from tests_in(test)
        else:
            yield test


def load_tests(loader, standard, pattern):
    wanted = os.environ.get('ZAQAR_TEST_VERSIONS', 'v1 v1_1 v2_0').split()
    for version in wanted:
        package = importlib.import_module('zaqar.tests.unit.transport.wsgi.' + version)
        for module in pkgutil.iter_modules(package.__path__, package.__name__ + '.'):
            standard.addTests(loader.loadTestsFromName(module.name))
    return unittest.TestSuite(
        test for test in tests_in(standard)
        if not any(name in test.id() for name in LEFT_OUT))
