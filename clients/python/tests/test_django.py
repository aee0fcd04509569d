"""Tests of pg_claim_queue.django.  PGHOST and so on name a server, as a superuser; the
tests make a database of their own, as Django does.  In Python 3.12 and later with Django
6, or with django-tasks."""
import os
import unittest
from datetime import timedelta
from unittest import mock

import django
from asgiref.sync import async_to_sync
from django.conf import settings

settings.configure(
    SECRET_KEY="x", USE_TZ=True,
    DATABASES={"default": {
        "ENGINE": "django.db.backends.postgresql", "NAME": "library",
        "HOST": os.environ["PGHOST"], "PORT": os.environ.get("PGPORT", ""),
        "USER": os.environ.get("PGUSER", "")}},
    INSTALLED_APPS=["pg_claim_queue.django"]
    + ([] if django.VERSION >= (6,) else ["django_tasks"]),
    TASKS={
        "default": {"BACKEND": "pg_claim_queue.django.Backend", "QUEUES": ["default", "mail"]},
        "again": {"BACKEND": "pg_claim_queue.django.Backend", "QUEUES": [],
                  "OPTIONS": {"atomic": True, "attempts": 2, "metadata": {
                      "_retry_delay": 0, "_retry_backoff": 1}}},
        "many": {"BACKEND": "pg_claim_queue.django.Backend",
                 "QUEUES": ["many"], "OPTIONS": {"metadata": {"_max_claim_count": 3}}}})
django.setup()

from django.core.management import CommandError, call_command  # noqa: E402
from django.db import connection, transaction               # noqa: E402
from django.test import TransactionTestCase                 # noqa: E402
from django.test.runner import DiscoverRunner               # noqa: E402
from django.utils import timezone                           # noqa: E402

from pg_claim_queue.django import (TaskResultDoesNotExist, TaskResultStatus, django_tasks,
                                   task_enqueued, task_finished, task_started)

task = django_tasks.task
runs = []


@task
def add(a, b):
    runs.append((a, b))
    return {"sum": a + b}


@task
async def add_async(a, b):
    return a + b


@task
def fail(text):
    raise ZeroDivisionError(text + "\0")


@task(queue_name="mail", priority=50, takes_context=True)
def with_context(context, value):
    return [context.attempt, context.task_result.id, value]


@task
def nothing_that_json_has():
    return object()


@task(backend="again")
def note(text, fails):
    with connection.cursor() as cursor:
        cursor.execute("INSERT INTO note VALUES (%s)", [text])
    runs.append(text)
    if len(runs) <= fails:
        raise ValueError(text)


class Tasks(TransactionTestCase):
    def setUp(self):
        runs.clear()
        self.backend = django_tasks.task_backends["default"]
        self.addCleanup(self.backend.queue.close)
        self.sql("SELECT queue_purge(name) FROM queue_list()")

    def test_a_nul_is_refused(self):
        with self.assertRaises(Exception):
            add.enqueue("\0", "")

    def sql(self, statement, *args):
        with connection.cursor() as cursor:
            cursor.execute(statement, args)
            return cursor.fetchall() if cursor.description else None

    def test_queues_are_created_by_migrate(self):
        rows = dict(self.sql("SELECT name, metadata->'_max_claim_count' FROM queue_list()"
                             " WHERE name !~ 'dead'"))
        self.assertEqual({name: int(count) for name, count in rows.items()
                          if name in ("default", "mail", "many")},
                         {"default": 12, "mail": 12, "many": 3})

    def test_enqueue_is_part_of_the_transaction(self):
        with self.assertRaises(KeyError), transaction.atomic():
            gone = add.enqueue(1, 2)
            raise KeyError
        with transaction.atomic():
            result = add.enqueue(3, b=4)
            self.assertEqual(self.backend.run_waiting(), 0)
        self.assertEqual(self.backend.run_waiting(), 1)
        self.assertEqual(runs, [(3, 4)])
        self.assertEqual(result.status, TaskResultStatus.READY)
        result.refresh()
        self.assertEqual((result.status, result.return_value, result.attempts),
                         (TaskResultStatus.SUCCESSFUL, {"sum": 7}, 1))
        self.assertTrue(result.enqueued_at <= result.started_at <= result.finished_at)
        self.assertEqual((result.args, result.kwargs), ([3], {"b": 4}))
        with self.assertRaises(TaskResultDoesNotExist):
            gone.refresh()

    def test_results(self):
        result = add.enqueue(1, 2)
        self.assertEqual(add.get_result(result.id).status, TaskResultStatus.READY)
        self.sql("SELECT queue_claim('default')")
        self.assertEqual(add.get_result(result.id).status, TaskResultStatus.RUNNING)
        for wrong in "x", "default:x", "default:1", "none:1", f"default:{2 ** 64}", "":
            with self.assertRaises(TaskResultDoesNotExist):
                self.backend.get_result(wrong)
        with self.assertRaises(Exception) as caught:
            fail.get_result(result.id)
        self.assertEqual(type(caught.exception).__name__, "TaskResultMismatch")

    def test_failure(self):
        result = fail.enqueue("oh")
        self.assertEqual(self.backend.run_waiting(), 0)
        result.refresh()
        self.assertEqual(result.status, TaskResultStatus.FAILED)
        self.assertEqual(result.errors[0].exception_class, ZeroDivisionError)
        self.assertIn("test_django.py", result.errors[0].traceback)
        with self.assertRaises(ValueError):
            result.return_value
        result = nothing_that_json_has.enqueue()
        self.backend.run_waiting()
        result.refresh()
        self.assertEqual(result.status, TaskResultStatus.FAILED)

    def test_attempts_and_atomic(self):
        backend = django_tasks.task_backends["again"]
        self.sql("DROP TABLE IF EXISTS note; CREATE TABLE note (text text)")
        self.sql("SELECT queue_drop(q) FROM unnest('{again,again.dead}'::text[]) q")
        backend.queue.create("again", backend.metadata, tx=connection)
        backend.work_on(["again"])
        for fails, status, rows in ((1, TaskResultStatus.SUCCESSFUL, [("a",)]),
                                    (2, TaskResultStatus.FAILED, [("a",)])):
            runs.clear()
            result = note.using(queue_name="again").enqueue("a", fails)
            backend.queue.run_waiting(raise_errors=False)
            result.refresh()
            self.assertEqual((result.status, result.attempts), (status, 2))
            self.assertEqual(self.sql("SELECT * FROM note"), rows)

    def test_run_after_and_priority(self):
        later = add.using(run_after=timezone.now() + timedelta(hours=1)).enqueue(1, 1)
        self.assertEqual(self.backend.run_waiting(), 0)
        later.refresh()
        self.assertEqual(later.status, TaskResultStatus.READY)
        order = list(range(-100, 101, 20)) + [99, 0]
        for priority in order:
            add.using(priority=priority).enqueue(priority, 0)
        self.backend.run_waiting()
        done = [a for a, _ in runs]
        self.assertEqual([(a + 100) * 10 // 201 for a in done],
                         sorted([(a + 100) * 10 // 201 for a in done], reverse=True))
        self.assertEqual((done[0], done[-2:]), (100, [-100, -80]))
        self.assertEqual(len(done), len(order))

    def test_async_and_context(self):
        async def enqueue():
            return await add_async.aenqueue(1, 2), await with_context.aenqueue(value=[None])
        first, second = async_to_sync(enqueue)()
        self.assertEqual(self.backend.run_waiting(), 2)
        async_to_sync(first.arefresh)()
        second.refresh()
        self.assertEqual(first.return_value, 3)
        self.assertEqual(second.return_value, [1, second.id, [None]])
        self.assertEqual(second.task.priority, 50)

    def test_signals(self):
        seen = []
        for signal in task_enqueued, task_started, task_finished:
            def receiver(sender, task_result, signal=signal, **kwargs):
                seen.append(task_result.status)
            signal.connect(receiver, weak=False)
            self.addCleanup(signal.disconnect, receiver)
        add.enqueue(1, 2)
        self.backend.run_waiting()
        self.assertEqual(seen, ["READY", "RUNNING", "SUCCESSFUL"])

    def test_only_tasks_can_be_called(self):
        self.backend.queue.push("default", {"task": "os.getcwd", "args": [], "kwargs": {}})
        self.backend.queue.push("default", ["no task"])
        self.assertEqual(self.backend.run_waiting(), 0)

    def test_what_is_wrong(self):
        with self.assertRaises(Exception):
            add.using(queue_name="none").enqueue(1, 2)
        with self.assertRaises(Exception):
            add.using(priority=101)
        with self.assertRaises(TypeError):
            add.enqueue(object(), 1)
        with mock.patch.object(connection, "vendor", "sqlite"):
            self.assertEqual([error.id for error in self.backend.check()],
                             ["pg_claim_queue.E001"])

    def test_worker(self):
        with self.assertRaises(CommandError):
            call_command("queue_worker", backend="none")
        with mock.patch("pg_claim_queue.queue.Queue.run") as run:
            call_command("queue_worker", queues="mail", stop_timeout=3)
        run.assert_called_once_with(["mail"], stop_timeout=3)


if __name__ == "__main__":
    runner = DiscoverRunner(verbosity=0)
    old = runner.setup_databases()
    try:
        result = unittest.TextTestRunner().run(
            unittest.defaultTestLoader.loadTestsFromTestCase(Tasks))
    finally:
        runner.teardown_databases(old)
    raise SystemExit(not result.wasSuccessful())
