"""Zaqar's tests of storage drivers."""

import contextlib
import time
from unittest import mock

from zaqar.storage import sqlalchemy
from zaqar.tests.unit.storage import base

from zaqar_postgresql import controllers
from zaqar_postgresql import driver


class Mixin:
    config_file = 'wsgi_mongodb.conf'
    driver_class = driver.DataDriver
    control_driver_class = sqlalchemy.ControlDriver

    def _purge_databases(self):
        queues = self.driver.queue_controller
        for project in None, self.project:
            for queue in list(next(queues.list(project, limit=1000))):
                queues.delete(queue['name'], project)
        self.driver.close()


class QueueTest(Mixin, base.QueueControllerTest):
    controller_class = controllers.QueueController


class MessageTest(Mixin, base.MessageControllerTest):
    controller_class = controllers.MessageController
    gc_interval = 1


class ClaimTest(Mixin, base.ClaimControllerTest):
    controller_class = controllers.ClaimController

    def test_delete_message_expired_claim(self):
        # Zaqar's test sets its own clock two seconds ahead.  Here the server's
        # clock counts, so let these two seconds pass.
        @contextlib.contextmanager
        def wait(name):
            time.sleep(2.1)
            yield mock.Mock()

        with mock.patch.object(base.mock, 'patch', wait):
            super().test_delete_message_expired_claim()


