"""python -m pg_claim_queue app:queue: a worker; also status and redrive."""
from __future__ import annotations

import argparse
import importlib
import logging
import os
import sys

from .queue import Queue


def load(name: str) -> Queue:
    """module:variable"""
    module, _, variable = name.partition(":")
    sys.path.insert(0, os.getcwd())
    found: object = importlib.import_module(module)
    for part in (variable or "queue").split("."):
        found = getattr(found, part)
    if not isinstance(found, Queue):
        raise SystemExit(f"{name} is no Queue")
    return found


def main(argv: list[str] | None = None) -> None:
    argv = list(sys.argv[1:] if argv is None else argv)
    if argv and argv[0] not in ("work", "status", "redrive", "-h", "--help"):
        argv.insert(0, "work")
    parser = argparse.ArgumentParser(
        prog="python -m pg_claim_queue",
        description="For status and redrive, PGHOST, PGDATABASE and so on name the database.")
    commands = parser.add_subparsers(dest="command", required=True)
    work = commands.add_parser("work", help="run the jobs of an application's Queue")
    work.add_argument("app", help="module:variable, such as app:queue")
    work.add_argument("--queues", help="only these, with commas between them")
    work.add_argument("--pool", type=int, default=10, help="connections for the work (10)")
    work.add_argument("--stop-timeout", type=float, default=30,
                      help="seconds that jobs have to end in (30)")
    commands.add_parser("status", help="what is in the queues")
    redrive = commands.add_parser("redrive", help="move dead letters back")
    redrive.add_argument("queue", help="such as mail.dead")
    args = parser.parse_args(argv)

    if args.command == "work":
        logging.basicConfig(level=logging.INFO,
                            format="%(asctime)s %(levelname)s %(message)s")
        load(args.app).run(args.queues.split(",") if args.queues else None,
                           pool=args.pool, stop_timeout=args.stop_timeout)
        return
    queue = Queue()
    if args.command == "redrive":
        print(queue.redrive(args.queue))
    else:
        head = ("free", "claimed", "delayed", "dead", "oldest s")
        print(f"{'queue':32}", *(f"{name:>9}" for name in head))
        for row in queue.status():
            counts = (row.free, row.claimed, row.delayed, row.dead_letters, row.oldest_age)
            print(f"{row.queue:32}", *(f"{'' if n is None else n:>9}" for n in counts),
                  "paused" if row.paused else "")
    queue.close()


if __name__ == "__main__":
    main()
