from __future__ import annotations

import logging
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from ... import django_tasks, Backend


class Command(BaseCommand):             # type: ignore[misc]
    help = "Runs the tasks of a backend, until SIGTERM or SIGINT."

    def add_arguments(self, parser: Any) -> None:
        parser.add_argument("--backend", default="default", help="its name in TASKS")
        parser.add_argument("--queues", help="only these, with commas between them")
        parser.add_argument("--concurrency", type=int, default=4,
                            help="tasks of each queue at a time (4)")
        parser.add_argument("--timeout", type=float, help="seconds for each task")
        parser.add_argument("--stop-timeout", type=float, default=30,
                            help="seconds that tasks have to end in (30)")

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            backend = django_tasks.task_backends[options["backend"]]
        except Exception as error:
            raise CommandError(str(error)) from error
        if not isinstance(backend, Backend):
            raise CommandError(f"{options['backend']} is no pg_claim_queue.django.Backend")
        if not logging.getLogger("pg_claim_queue").hasHandlers():
            logging.basicConfig(level=logging.INFO,
                                format="%(asctime)s %(levelname)s %(message)s")
        queues = options["queues"].split(",") if options["queues"] else None
        backend.work_on(queues, options["concurrency"], options["timeout"])
        backend.queue.run(queues, stop_timeout=options["stop_timeout"])
