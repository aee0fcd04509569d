"""Tests of the library by itself.  PGHOST and so on name a database with the extension,
as a superuser, with queue.min_claim_ttl = 1."""
import asyncio
import contextlib
import dataclasses
import io
import logging
import os
import threading
import time
import unittest
from datetime import datetime, timedelta, timezone

import psycopg

from pg_claim_queue import (ClaimLost, Job, JobCanceled, JobFailed, JobTimeout, Message,
                            PermanentError, Queue, Retry, Snooze)
from pg_claim_queue.__main__ import main
from pg_claim_queue.job import error_text
from pg_claim_queue.worker import Worker

os.environ.pop("PGAPPNAME", None)           # that of the tests of PostgreSQL
logging.disable(logging.CRITICAL)
WAIT = float(os.environ.get("WAIT", 180))       # seconds, of what comes soon


@dataclasses.dataclass
class Mail:
    to: str


class QueueTest(unittest.TestCase):
    def setUp(self):
        self.admin = psycopg.connect("", autocommit=True)
        self.addCleanup(self.admin.close)
        for name in self.values("SELECT name FROM queue_list(\"limit\" => 1000)"
                                " ORDER BY name ~ '\\.dead$'"):
            self.value("SELECT queue_drop(%s)", name)
        self.queue = Queue("")
        self.addCleanup(lambda: self.queue.close())
        self.seen = []

    def values(self, sql, *args):
        return [row[0] for row in self.admin.execute(sql, args).fetchall()]

    def value(self, sql, *args):
        return self.values(sql, *args)[0]

    def messages(self, name="mail"):
        return self.admin.execute(
            "SELECT body, claim_count FROM queue_messages(%s, include_delayed => true,"
            " include_claimed => true) ORDER BY id", (name,)).fetchall()

    def becomes(self, condition):
        until = time.monotonic() + WAIT
        while not condition():
            self.assertLess(time.monotonic(), until, "it takes too long")
            time.sleep(0.01)

    @contextlib.contextmanager
    def worker(self, **options):
        """One that works meanwhile."""
        self.worker_ = None
        error = []

        async def work():
            self.worker_ = Worker(self.queue, **options)
            await self.worker_.run()

        def run():
            try:
                asyncio.run(work())
            except BaseException as problem:
                error.append(problem)

        thread = threading.Thread(target=run)
        thread.start()
        try:
            yield
        finally:
            self.becomes(lambda: self.worker_ and hasattr(self.worker_, "ended"))
            self.worker_.loop.call_soon_threadsafe(self.worker_.stop)
            thread.join(WAIT)
        self.assertEqual(error, [])


class Pushes(QueueTest):
    def test_arguments(self):
        at = datetime.now(timezone.utc) + timedelta(hours=2)
        for q, options in (("a", {"at": at}), ("b", {"delay": 7199.5}), ("c", {"ttl": 99})):
            self.queue.push(q, {"n": 1}, priority=3, group_key="g", headers={"x": 1},
                            dedup_key="k", **options)
            self.assertIsNone(self.queue.push(q, {"n": 2}, dedup_key="k"))
        rows = self.admin.execute(
            "SELECT priority, group_key, headers, ttl < 100 FROM unnest('{a,b,c}'::text[]) q,"
            " queue_messages(q, include_delayed => true) ORDER BY q").fetchall()
        self.assertEqual(rows, [(3, "g", {"x": 1}, False)] * 2 + [(3, "g", {"x": 1}, True)])
        self.assertEqual(self.value("SELECT sum(delayed)::int FROM queue_stats('a'),"
                                    " LATERAL (VALUES (delayed)) v"), 1)

    def test_replace(self):
        id = self.queue.push("a", 1, dedup_key="k")
        self.assertEqual(self.queue.push("a", 2, dedup_key="k", dedup="replace"), id)
        self.assertEqual(self.messages("a"), [(2, 0)])

    def test_many_are_pushed_or_none(self):
        ids = self.queue.push_many([Message("a", None), Message("b", 2, dedup_key="k"),
                                    Message("b", 2, dedup_key="k")])
        self.assertEqual([id is None for id in ids], [False, False, True])
        with self.assertRaises(psycopg.Error):
            self.queue.push_many([Message("a", 1), Message("no queue!", 1)])
        self.assertEqual(self.messages("a"), [(None, 0)])

    def test_in_the_callers_transaction(self):
        conn = psycopg.connect("")
        self.queue.push("a", 1, tx=conn)
        self.queue.push_many([Message("a", 2)], tx=conn)
        conn.rollback()
        self.queue.push("a", 3, tx=conn)
        conn.commit()
        conn.close()
        self.assertEqual(self.messages("a"), [(3, 0)])

    def test_in_the_callers_asynchronous_transaction(self):
        async def push():
            async with await psycopg.AsyncConnection.connect("") as conn:
                await self.queue.apush("a", 1, tx=conn)
                await conn.rollback()
                await self.queue.apush("a", 2, tx=conn)
            return await self.queue.apush("a", 3)
        for _ in range(2):      # also from another loop
            self.assertIsInstance(asyncio.run(push()), int)
        self.assertEqual([body for body, _ in self.messages("a")], [2, 3, 2, 3])

    def test_after_a_lost_connection(self):
        self.queue.push("a", 1)
        self.value("SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity"
                   " WHERE pid <> pg_backend_pid() AND datname = current_database()"
                   " AND query LIKE '%%queue_post%%'")
        self.queue.push("a", 2)
        self.assertEqual(len(self.messages("a")), 2)

    def test_in_a_child_process(self):
        self.queue.push("a", 1)
        with self.queue.connection() as conn:
            pid = conn.info.backend_pid
        if not (child := os.fork()):
            self.queue.push("a", 2)
            with self.queue.connection() as conn:
                os._exit(conn.info.backend_pid == pid)
        self.assertEqual(os.waitpid(child, 0)[1], 0)
        self.queue.push("a", 3)
        self.assertEqual([body for body, _ in self.messages("a")], [1, 2, 3])

    def test_batch(self):
        with self.queue.connection() as conn, conn.transaction():
            batch = self.queue.batch("all", tx=conn)
            self.queue.push("mail", 1, batch=batch, tx=conn)
            self.queue.push("mail", 2, after=batch, tx=conn)
        self.queue.job("mail", concurrency=3)(lambda job: self.seen.append(job.body))
        self.queue.run_waiting()
        self.becomes(lambda: self.queue.run_waiting() is not None and len(self.seen) == 2)
        self.assertEqual(self.seen, [1, 2])
        status = self.queue.batch_status(batch)
        self.assertEqual((status.name, status.members, status.completed), ("all", 1, 1))

    def test_outcome(self):
        self.queue.create("mail", {"_keep_finished": 1000, "_keep_body": True})
        id = self.queue.push("mail", 1)
        self.assertIsNone(self.queue.outcome("mail", id, 0))
        self.assertIsNone(self.queue.finished("mail", id))
        self.queue.job("mail")(lambda job: {"sent": job.body})
        self.queue.run_waiting()
        self.assertEqual(self.queue.outcome("mail", id, WAIT).result, {"sent": 1})
        finished = self.queue.finished("mail", id)
        self.assertEqual((finished.outcome, finished.attempts, finished.body),
                         ("completed", 1, 1))

    def test_cancel_dead_letters_and_redrive(self):
        self.assertEqual(self.queue.cancel("mail", self.queue.push("mail", 1)), "canceled")
        self.queue.push("mail", {"n": 2})

        @self.queue.job("mail")
        def job(job):
            raise PermanentError("no such user")
        with self.assertRaises(JobFailed) as caught:
            self.queue.run_waiting()
        self.assertIsInstance(caught.exception.__cause__, PermanentError)
        letter, = self.queue.dead_letters("mail.dead")
        self.assertEqual((letter.body, letter.origin_queue), ({"n": 2}, "mail"))
        self.assertIn("no such user", letter.last_error)
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            main(["redrive", "mail.dead"])
            main(["status"])
        self.assertRegex(out.getvalue(), r"^1\nqueue +free .*\n(.*\n)*mail  ")


class Jobs(QueueTest):
    def test_payload_types(self):
        @self.queue.job("mail")
        def mail(job: Job[Mail]) -> None:
            self.seen.append(job.body)

        @self.queue.job("other", payload=lambda value: value["n"] + 1)
        async def other(job: Job[int]) -> None:
            self.seen.append(job.body)
        mail.push(Mail("ann"))
        self.queue.push("other", {"n": 1})
        self.queue.run_waiting(["mail"])
        self.queue.run_waiting(["other"])
        self.assertEqual(self.seen, [Mail("ann"), 2])
        self.queue.push("mail", {"from": "bob"})
        with self.assertRaises(JobFailed):
            self.queue.run_waiting(["mail"])

    def test_what_a_job_pushes_runs_too_and_carries_its_trace(self):
        @self.queue.job("mail")
        def mail(job):
            self.queue.push("next", 1, headers={"a": 1})

        @self.queue.job("next")
        async def then(job):
            self.seen.append(job.headers)
        self.queue.push("mail", 1, headers={"traceparent": "00-1-1-01"})
        self.assertEqual(self.queue.run_waiting(), 2)
        self.assertEqual(self.seen, [{"a": 1, "traceparent": "00-1-1-01"}])
        self.queue.traceparent = lambda: "mine"
        self.queue.push("none", 1)
        self.assertEqual(self.value("SELECT headers FROM queue_messages('none')"),
                         {"traceparent": "mine"})

    def test_hooks(self):
        @self.queue.hook
        def hook(event):
            self.seen.append((event.name, event.progress and event.progress["done"]))
            raise ValueError("of a hook")

        @self.queue.job("mail")
        def mail(job):
            job.progress(3, 4)
        mail.push(1)
        self.queue.run_waiting()
        self.assertEqual([name for name in self.seen if name[0] in
                          ("start", "progress", "complete")],
                         [("start", None), ("progress", 3), ("complete", None)])

    def test_retry_has_a_delay(self):
        @self.queue.job("mail")
        def mail(job):
            raise Retry(3600)
        mail.push(1)
        self.queue.run_waiting(raise_errors=False)
        self.assertEqual(self.messages(), [(1, 1)])
        self.assertEqual(self.value("SELECT delayed FROM queue_stats('mail')"), 1)

    def test_snooze_among_others(self):
        @self.queue.job("mail", concurrency=4)
        async def mail(job):
            if job.body:
                raise Snooze(job.body)
            await asyncio.sleep(0.3)        # the last one of the claim
        self.queue.push_many([Message("mail", n) for n in (0, 3600, 3600, 0)])
        self.queue.run_waiting()
        self.assertEqual(self.messages(), [(3600, 0)] * 2)
        self.queue.push_many([Message("mail", n) for n in (0, 7200, 7000)])
        self.queue.run_waiting()
        self.assertEqual(self.messages(), [(3600, 0), (3600, 0), (7200, 0), (7000, 1)])

    def test_an_error_that_is_none(self):
        class Odd(Exception):
            def __str__(self):
                raise ValueError
        self.assertIn("Odd", error_text(Odd()))
        self.assertEqual(error_text(ValueError("\0\ud800" + "x" * 9000))[:14],
                         "ValueError: \ufffd?")
        for problem in (SystemExit(), KeyboardInterrupt(), Odd(), asyncio.CancelledError()):
            def raising(job):
                raise problem

            async def raising_async(job):
                raise problem
            for n, function in enumerate((raising, raising_async)):
                if n and isinstance(problem, (SystemExit, KeyboardInterrupt)):
                    continue        # asyncio itself ends the loop with these
                queue = Queue("")
                queue.job("mail")(function)
                queue.push("mail", 1)
                queue.run_waiting(raise_errors=False)
                queue.close()
                self.assertEqual(self.messages(), [(1, 1)])
                self.value("SELECT queue_purge('mail')")

    def test_transaction(self):
        self.queue.create("mail", {"_retry_delay": 0, "_retry_backoff": 1})
        with self.admin.transaction():
            self.admin.execute("DROP TABLE IF EXISTS effect")
            self.admin.execute("CREATE TABLE effect (kind text, attempt int)")

        @self.queue.job("mail", concurrency=2)
        def mail(job):
            job.tx().execute("INSERT INTO effect VALUES ('sync', %s)", (job.attempt,))
            with self.assertRaises(psycopg.Error):
                job.tx().commit()
            if job.attempt == 1:
                raise ValueError

        @self.queue.job("amail", concurrency=2)
        async def amail(job):
            conn = await job.atx()
            await conn.execute("INSERT INTO effect VALUES ('async', %s)", (job.attempt,))
            if job.attempt == 1:
                raise Retry(0)
            return 1

        @self.queue.job("own")
        def own(job):
            with psycopg.connect("") as conn:
                conn.execute("INSERT INTO effect VALUES ('own', %s)", (job.attempt,))
                job.complete({"a": 1}, tx=conn)

        @self.queue.job("both")
        def both(job):
            job.tx().execute("INSERT INTO effect VALUES ('both', %s)", (job.attempt,))
            job.complete(tx=job.tx())
            return 1
        self.queue.hook(lambda event: self.seen.append(event.name))
        for n in range(3):
            both.push(n)
            mail.push(n)
            amail.push(n)
            own.push(n)
        self.queue.run_waiting(raise_errors=False)
        rows = self.admin.execute("SELECT kind, attempt, count(*) FROM effect GROUP BY 1, 2"
                                  " ORDER BY 1").fetchall()
        self.assertEqual(rows, [("async", 2, 3), ("both", 1, 3), ("own", 1, 3),
                                ("sync", 2, 3)])
        self.assertEqual({name: self.seen.count(name) for name in ("complete", "retry", "lost")},
                         {"complete": 12, "retry": 6, "lost": 0})

    def test_prefetch(self):
        @self.queue.job("mail", prefetch=40)
        def mail(job):
            self.seen.append(job.claim_id)
        self.queue.push_many([Message("mail", n) for n in range(80)])
        self.assertEqual(self.queue.run_waiting(), 80)
        self.assertLess(len(set(self.seen)), 10)


    def test_short_jobs_are_claimed_together(self):
        @self.queue.job("mail")
        async def mail(job):
            self.seen.append(job.claim_id)
        self.queue.push_many([Message("mail", n) for n in range(400)])
        self.assertEqual(self.queue.run_waiting(), 400)
        self.assertLess(len(set(self.seen)), 300)

    def test_long_jobs_after_short_ones_run_at_once(self):
        together = threading.Barrier(4)

        @self.queue.job("mail", concurrency=4)
        def mail(job):
            if job.body >= 200:
                together.wait(WAIT)
        for n in range(0, 200, 100):        # in order, and so in few claims
            self.queue.push_many([Message("mail", n + m) for m in range(100)])
        self.queue.push_many([Message("mail", n) for n in range(200, 204)])
        self.assertEqual(self.queue.run_waiting(), 204)

    def test_what_waits_behind_a_long_job_is_given_back(self):
        gate = threading.Event()
        self.addCleanup(gate.set)

        @self.queue.job("mail")
        def mail(job):
            if job.body == 300:
                gate.wait(WAIT)
            self.seen.append(job.body)
        self.queue.push_many([Message("mail", n) for n in range(400)])
        with self.worker():
            self.becomes(lambda: len(self.seen) == 300 and self.value(
                "SELECT claimed FROM queue_stats('mail')") == 1)
            gate.set()
            self.becomes(lambda: len(self.seen) == 400)
        self.assertEqual(len(set(self.seen)), 400)
        self.assertEqual(len(self.seen), 400)


class Aborted(QueueTest):
    """What ends a job from outside, in a thread and in a task."""

    def job(self, **options):
        def wait(job):
            try:
                self.seen.append(job.id)
                while True:
                    job.check()
                    time.sleep(0.01)
            except BaseException as error:
                self.seen.append(type(error))
                raise

        async def await_(job):
            self.seen.append(job.id)
            try:
                await asyncio.sleep(1000)
            except BaseException:
                self.seen.append(type(job.aborted))
                raise
        for function in wait, await_:
            yield self.queue.job("mail", **options)(function)
            self.queue.close()
            self.queue, self.seen = Queue(""), []

    def test_canceled(self):
        for job in self.job(concurrency=2, claim_ttl=60):
            other = job.push(1)
            id = job.push(2)
            with self.worker(stop_timeout=0):
                self.becomes(lambda: len(self.seen) == 2)
                self.assertEqual(self.queue.cancel("mail", id), "pending")
                self.becomes(lambda: JobCanceled in self.seen)
                self.assertEqual(self.seen.count(JobCanceled), 1)
            self.assertEqual(self.values("SELECT id FROM queue_messages('mail',"
                                         " include_claimed => true)"), [other])
            self.value("SELECT queue_purge('mail')")

    def test_lost(self):
        for job in self.job():
            job.push(1)
            with self.worker(stop_timeout=0):
                self.becomes(lambda: self.seen)
                self.value("SELECT claim_release('mail', claim_id) FROM"
                           " queue_messages('mail', include_claimed => true)")
                self.becomes(lambda: ClaimLost in self.seen)
            self.value("SELECT queue_purge('mail')")

    def test_lost_or_canceled_at_the_end(self):
        for name, sql in (("lost", "SELECT claim_release('mail', %s)"),
                          ("canceled", "SELECT message_cancel('mail', %s)")):
            queue = Queue("")
            queue.hook(lambda event: self.seen.append(event.name))

            @queue.job("mail")
            def mail(job):
                if job.body == 1 and job.attempt == 1 and name not in self.seen:
                    self.value(sql, job.id if name == "canceled" else job.claim_id)
            queue.push_many([Message("mail", 1), Message("mail", 2)])
            queue.run_waiting()
            queue.close()
            self.assertIn(name, self.seen)
            self.assertEqual(self.messages(), [])

    def test_timeout(self):
        self.queue.create("mail", {"_retry_delay": 3600})
        for job in self.job(timeout=0.1):
            job.push(1)
            with self.worker():
                self.becomes(lambda: self.value(
                    "SELECT delayed FROM queue_stats('mail')") == 1)
            self.assertEqual(self.seen[1:], [JobTimeout])
            self.value("SELECT queue_purge('mail')")

    def test_stop_gives_back(self):
        for job in self.job(prefetch=3):
            for n in range(6):
                job.push(n)
            with self.worker(stop_timeout=0.1):
                self.becomes(lambda: self.seen)
            self.assertEqual(self.messages(), [(n, 0) for n in range(6)])
            self.value("SELECT queue_purge('mail')")

    def test_a_thread_that_does_not_end(self):
        gate = threading.Event()
        self.addCleanup(gate.set)

        @self.queue.job("mail")
        def mail(job):
            self.seen.append(job.id)
            gate.wait(WAIT)
        mail.push(1)
        with self.worker(stop_timeout=0.1):
            self.becomes(lambda: self.seen)
        self.assertEqual(self.value("SELECT free FROM queue_stats('mail')"), 1)

    def test_a_job_that_waits_for_a_connection(self):
        gate = threading.Event()
        self.addCleanup(gate.set)

        @self.queue.job("mail", concurrency=2)
        def mail(job):
            try:
                job.tx()
                self.seen.append(job.id)
                gate.wait(WAIT)
            except JobCanceled as error:
                self.seen.append(JobCanceled)
                raise
        ids = [mail.push(1), mail.push(2)]
        with self.worker(pool=2):
            self.becomes(lambda: self.seen and self.value(
                "SELECT claimed FROM queue_stats('mail')") == 2)
            waiting, = set(ids) - set(self.seen)
            self.queue.cancel("mail", waiting)
            self.becomes(lambda: JobCanceled in self.seen)
            gate.set()
            self.becomes(lambda: self.messages() == [])
            mail.push(3)
            self.becomes(lambda: len(self.seen) == 3)

    def test_a_statement_of_a_job_is_canceled(self):
        @self.queue.job("mail", timeout=0.5)
        def mail(job):
            self.seen.append(1)
            job.tx().execute("SELECT pg_sleep(1000)")
        mail.push(1)
        with self.worker():
            self.becomes(lambda: self.messages() == [(1, 1)] and self.value(
                "SELECT delayed FROM queue_stats('mail')") == 1)


class Workers(QueueTest):
    def test_two_connections_wait_for_all_queues(self):
        for n in range(20):
            self.queue.job(f"q{n}")(lambda job: self.seen.append(job.queue))
        for n in range(20):
            self.queue.push(f"q{n}", 1)
        with self.worker():
            self.becomes(lambda: len(self.seen) == 20)
            self.becomes(lambda: self.value("SELECT sum(total)::int FROM queue_list("
                                            "\"limit\" => 100) q, queue_stats(q.name)") == 0)
            self.becomes(lambda: (
                self.queue.close(1), self.value(
                    "SELECT count(*) FROM pg_stat_activity"
                    " WHERE application_name = 'pg_claim_queue'"
                    " AND datname = current_database()"))[1] == 2)
            self.queue.push("q7", 1)
            self.becomes(lambda: len(self.seen) == 21)

    def test_in_a_program_with_a_loop(self):
        @self.queue.job("mail")
        async def mail(job):
            self.seen.append(job.body)

        async def program():
            task = asyncio.create_task(self.queue.work())
            await mail.apush(1)
            while not self.seen:
                await asyncio.sleep(0.01)
            task.cancel()
            with self.assertRaises(asyncio.CancelledError):
                await task
        asyncio.run(program())

    def test_mistakes(self):
        with self.assertRaises(ValueError):
            Worker(self.queue)
        self.queue.job("mail")(print)
        for wrong in (lambda: self.queue.job("mail")(print),
                      lambda: self.queue.job("x", concurrency=0),
                      lambda: Worker(self.queue, ["fax"]),
                      lambda: asyncio.run(self.queue.work(pool=1))):
            with self.assertRaises(ValueError):
                wrong()


if __name__ == "__main__":
    unittest.main()
