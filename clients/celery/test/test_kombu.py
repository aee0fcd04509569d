"""Kombu's own integration tests, of a checkout of its repository, over this transport.

    git clone -b v5.2.4 https://github.com/celery/kombu && mkdir tests && mv kombu/t tests
    PYTHONPATH=..:tests BROKER=queue+postgresql:///mydb python3 -m pytest test_kombu.py

The role needs queue_admin, for topics, and the server queue.min_message_ttl = 1.  Kombu's
failover does not understand URLs with parameters, so PGHOST and so on name the server.
"""
import os

import kombu
import pytest
from t.integration import common

import kombu_queue

URL = os.environ['BROKER']


@pytest.fixture
def connection():
    return kombu.Connection(URL)


@pytest.fixture
def invalid_connection():
    return kombu.Connection('queue+postgresql://localhost:1/nowhere')


@pytest.fixture
def failover_connection():
    return kombu.Connection(['queue+postgresql://localhost:1/nowhere', URL],
                            failover_strategy='round-robin')


class TestBasicFunctionality(common.BasicFunctionality):
    def test_failed_connection_is_a_connection_error(self, invalid_connection):
        with pytest.raises(kombu_queue.Transport.connection_errors):
            invalid_connection.connection


class TestExchangeTypes(common.BaseExchangeTypes):
    pass


class TestTimeToLive(common.BaseTimeToLive):
    pass


class TestPriority(common.BasePriority):
    def test_publish_consume(self, connection):
        """As there, but drain_events() delivers one message, as in all virtual transports."""
        received = []

        def receive(body, message):
            received.append(body)
            message.ack()

        with connection as conn:
            queue = kombu.Queue('priority_test', routing_key='priority_test', max_priority=10)
            producer = conn.Producer()
            for body, priority in ([2], 3), ([1], 6), ([3], 3):
                producer.publish(body, routing_key='priority_test', declare=[queue],
                                 priority=priority)
            with conn.Consumer([queue], callbacks=[receive]):
                while len(received) < 3:
                    conn.drain_events(timeout=5)
        assert received == [[1], [2], [3]]


class TestMessage(common.BaseMessage):
    pass


class TestFailover(common.BaseFailover):
    pass
