from __future__ import annotations

import warnings
from typing import Any

from django.apps import AppConfig
from django.db import Error, connections, transaction
from django.db.models.signals import post_migrate


class QueueConfig(AppConfig):           # type: ignore[misc]
    name = "pg_claim_queue.django"
    label = "pg_claim_queue"
    verbose_name = "Queues"

    def ready(self) -> None:
        post_migrate.connect(create_queues, sender=self)


def create_queues(using: str, **kwargs: Any) -> None:
    """The queues of TASKS, with a history for get_result().  One that is there stays as
    it is."""
    from . import backends
    for backend in backends(using):
        try:
            with transaction.atomic(using):
                for name in sorted(backend.queues):
                    if not exists(using, name):
                        backend.queue.create(name, backend.metadata, tx=connections[using])
        except Error as error:
            warnings.warn(f"queues of the task backend {backend.alias!r}: {error}")


def exists(using: str, name: str) -> bool:
    with connections[using].cursor() as cursor:
        cursor.execute("SELECT queue_exists(%s::text)", [name])
        return bool(cursor.fetchone()[0])
