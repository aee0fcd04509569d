"""The Celery app of the tests: each start and end of a task is a row of a table."""
import os
import time

import psycopg2
from celery import Celery

import kombu_queue  # noqa: F401

app = Celery('app', broker=os.environ['BROKER'])
app.conf.update(
    task_acks_late=True, task_ignore_result=True, worker_prefetch_multiplier=1,
    broker_connection_max_retries=None,
    broker_transport_options={'visibility_timeout': int(os.environ.get('TTL', 60))})


def record(sql, *args):
    """Write over a connection of its own, again and again until the server answers."""
    while True:
        try:
            conn = psycopg2.connect(os.environ['DSN'])
            with conn, conn.cursor() as cursor:
                cursor.execute(sql, args)
            return conn.close()
        except psycopg2.OperationalError:
            time.sleep(0.1)


@app.task(bind=True)
def work(self, n, seconds, once=True):
    """Take so long, if it is the first time or not once."""
    again = bool(self.request.delivery_info['redelivered'])
    record('INSERT INTO started VALUES (%s, %s, %s)', n, os.getpid(), again)
    if not (again and once):
        time.sleep(seconds)
    record('INSERT INTO done VALUES (%s)', n)


@app.task
def nothing():
    pass
