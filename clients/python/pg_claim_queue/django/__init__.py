"""Django's tasks (DEP 14) over the PostgreSQL extension queue.

    INSTALLED_APPS = [..., "pg_claim_queue.django"]
    TASKS = {"default": {"BACKEND": "pg_claim_queue.django.Backend"}}

Options: database, the alias of the database (default); attempts, how often a task that
raises is run (1); metadata, with which queues are created; atomic, whether a task runs in
a transaction of that database which its completion commits with (False).
"""
from __future__ import annotations

import contextlib
import json
import os
import socket
from collections.abc import Iterable, Mapping
from datetime import datetime, timezone
from typing import Any

from django.core import checks
from django.db import DEFAULT_DB_ALIAS, close_old_connections, connections, transaction
from django.utils.module_loading import import_string
from psycopg.conninfo import make_conninfo
from psycopg.pq import Conninfo

from ..calls import Finished, loads
from ..job import Job, PermanentError, class_path, error_text
from ..queue import Queue

try:
    from django import tasks as django_tasks
    from django.tasks.backends.base import BaseTaskBackend
    from django.tasks.base import TaskContext, TaskError, TaskResult, TaskResultStatus
    from django.tasks.exceptions import TaskResultDoesNotExist
    from django.tasks.signals import task_enqueued, task_finished, task_started
except ImportError:
    import django_tasks
    from django_tasks.backends.base import BaseTaskBackend
    from django_tasks.base import TaskContext, TaskError, TaskResult, TaskResultStatus
    from django_tasks.exceptions import TaskResultDoesNotExist
    from django_tasks.signals import task_enqueued, task_finished, task_started

__all__ = ["Backend", "backends", "django_tasks"]

METADATA = {"_keep_finished": 7 * 86400, "_keep_body": True, "_max_claim_count": 12,
            "_results_for_producers": True}
KEYWORDS = {option.keyword.decode() for option in Conninfo.get_defaults()}


class Backend(BaseTaskBackend):                 # type: ignore[misc]
    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    def __init__(self, alias: str, params: Mapping[str, Any]):
        super().__init__(alias, params)
        self.database: str = self.options.get("database", DEFAULT_DB_ALIAS)
        self.attempts: int = self.options.get("attempts", 1)
        self.atomic: bool = self.options.get("atomic", False)
        self.metadata = {**METADATA, **self.options.get("metadata", {})}
        self.worker_id = f"{socket.gethostname()}:{os.getpid()}"
        self.queue = Queue(self.conninfo)

    def conninfo(self) -> str:
        """Of Django's database, a test database too, for the worker's connections."""
        params = connections[self.database].get_connection_params()
        params["dbname"] = params.pop("database", params.get("dbname"))     # psycopg2
        return make_conninfo("", **{name: value for name, value in params.items()
                                    if name in KEYWORDS and value not in (None, "")})

    def check(self, **kwargs: Any) -> Iterable[checks.CheckMessage]:
        if connections[self.database].vendor != "postgresql":
            yield checks.Error(f"The database {self.database!r} of the task backend"
                               f" {self.alias!r} is no PostgreSQL database.",
                               id="pg_claim_queue.E001")

    # --- Enqueue ---

    def enqueue(self, task: Any, args: Any, kwargs: Any) -> Any:
        """In the transaction that is open in this backend's database."""
        self.validate_task(task)
        body = {"task": task.module_path, "args": list(args), "kwargs": kwargs}
        if task.priority:
            body["priority"] = task.priority
        result = self.result("", task, body)
        id = self.queue.push(
            task.queue_name, {**body, "args": result.args, "kwargs": result.kwargs},
            priority=(task.priority + 100) * 10 // 201, at=task.run_after,
            tx=connections[self.database])
        change(result, id=f"{task.queue_name}:{id}", enqueued_at=now())
        task_enqueued.send(type(self), task_result=result)
        return result

    def result(self, id: str, task: Any, body: dict[str, Any], **values: Any) -> Any:
        fields: dict[str, Any] = {
            "status": TaskResultStatus.READY, "enqueued_at": None, "started_at": None,
            "last_attempted_at": None, "finished_at": None, "errors": [],
            "worker_ids": [], **values}
        return TaskResult(id=id, task=task, args=body["args"], kwargs=body["kwargs"],
                          backend=self.alias, **fields)

    def task_of(self, queue: str, body: dict[str, Any]) -> Any:
        """The task that a body names.  It must be one: a role that may push cannot have
        other functions called."""
        task = import_string(body["task"])
        if not isinstance(task, self.task_class):
            raise PermanentError(f"{body['task']} is no task")
        return task.using(priority=body.get("priority", 0), queue_name=queue,
                          backend=self.alias)

    # --- Results ---

    def get_result(self, result_id: str) -> Any:
        queue, _, number = str(result_id).rpartition(":")
        if not queue or not number.isdecimal() or int(number) >= 2 ** 63:
            raise TaskResultDoesNotExist(result_id)
        tx = connections[self.database]
        with tx.cursor() as cursor:
            cursor.execute("SELECT body::text, created_at, claim_id, claim_count"
                           " FROM message_get(%s::text, %s::bigint)", [queue, number])
            waiting = cursor.fetchone()
        if waiting:
            body = loads(waiting[0])
            status = TaskResultStatus.RUNNING if waiting[2] else TaskResultStatus.READY
            return self.result(result_id, self.task_of(queue, body), body, status=status,
                               enqueued_at=waiting[1], worker_ids=["?"] * waiting[3])
        finished = self.queue.finished(queue, int(number), tx=tx)
        if not finished or not isinstance(finished.body, dict):
            raise TaskResultDoesNotExist(result_id)
        return self.finished_result(result_id, queue, finished)

    def finished_result(self, id: str, queue: str, finished: Finished) -> Any:
        kept = finished.result if isinstance(finished.result, dict) else {}
        started = kept.get("started_at") and datetime.fromisoformat(kept["started_at"])
        result = self.result(
            id, self.task_of(queue, finished.body), finished.body,
            status=(TaskResultStatus.SUCCESSFUL if finished.outcome == "completed"
                    else TaskResultStatus.FAILED),
            enqueued_at=finished.pushed_at, finished_at=finished.finished_at,
            started_at=started, last_attempted_at=started,
            worker_ids=[kept.get("worker", "?")] * (finished.attempts or 0))
        if finished.outcome == "completed":
            change(result, _return_value=kept.get("return_value"))
        else:
            text = finished.error or f"builtins.Exception: {finished.outcome}"
            path = text.split(":")[0].strip()
            result.errors.append(TaskError(
                exception_class_path=path if "." in path else f"builtins.{path}",
                traceback=text))
        return result

    # --- Work ---

    def work_on(self, queues: Iterable[str] | None = None, concurrency: int = 1,
                timeout: float | None = None) -> None:
        """Makes tasks the jobs of these queues, or of the backend's QUEUES."""
        for name in sorted(self.queues if queues is None else queues):
            if name not in self.queue.jobs:
                self.queue.job(name, concurrency=concurrency, timeout=timeout)(self.execute)

    def run_waiting(self) -> int:
        """For tests whose transactions commit: runs the tasks that are waiting now."""
        self.work_on()
        return self.queue.run_waiting(raise_errors=False)

    def execute(self, job: Job[Any]) -> Any:
        """A task, in a thread of the worker."""
        close_old_connections()
        task = self.task_of(job.queue, job.body)
        result = self.result(
            f"{job.queue}:{job.id}", task, job.body, status=TaskResultStatus.RUNNING,
            enqueued_at=job.created_at, started_at=now(), last_attempted_at=now(),
            worker_ids=["?"] * (job.attempt - 1) + [self.worker_id])
        task_started.send(type(self), task_result=result)
        try:
            with (transaction.atomic(self.database) if self.atomic
                  else contextlib.nullcontext()):
                context = [TaskContext(task_result=result)] if task.takes_context else []
                change(result, _return_value=task.call(*context, *result.args,
                                                       **result.kwargs))
                kept = {"return_value": json.loads(json.dumps(result._return_value)),
                        "started_at": result.started_at.isoformat(),
                        "worker": self.worker_id}
                if self.atomic:
                    job.complete(kept, tx=connections[self.database])
        except BaseException as error:
            change(result, finished_at=now(), status=TaskResultStatus.FAILED)
            result.errors.append(TaskError(exception_class_path=full_path(error),
                                           traceback=error_text(error)))
            if job.aborted:
                raise
            if job.attempt < self.attempts and not isinstance(error, PermanentError):
                raise
            task_finished.send(type(self), task_result=result)
            raise PermanentError() from error
        else:
            change(result, finished_at=now(), status=TaskResultStatus.SUCCESSFUL)
            task_finished.send(type(self), task_result=result)
            return None if self.atomic else kept
        finally:
            close_old_connections()


def now() -> datetime:
    return datetime.now(timezone.utc)


def change(result: Any, **values: Any) -> None:
    for name, value in values.items():      # a result is frozen
        object.__setattr__(result, name, value)


def full_path(error: BaseException) -> str:
    path = class_path(error)
    return path if "." in path else f"builtins.{path}"


def backends(database: str | None = None) -> list[Backend]:
    """The backends of TASKS that are ours."""
    return [backend for backend in (django_tasks.task_backends[alias]
                                    for alias in django_tasks.task_backends)
            if isinstance(backend, Backend) and database in (None, backend.database)]
