"""Jobs and workers over the PostgreSQL extension queue."""
from .calls import BatchStatus, Connection, DeadLetter, Depth, Finished, Message
from .job import (ClaimLost, Job, JobAborted, JobCanceled, JobTimeout, PermanentError,
                  Retry, Snooze, WorkerStopped, current_job)
from .queue import Event, JobFailed, JobType, Queue

__version__ = "2.0.0"

__all__ = [
    "BatchStatus", "ClaimLost", "Connection", "DeadLetter", "Depth", "Event", "Finished",
    "Job", "JobAborted", "JobCanceled", "JobFailed", "JobTimeout", "JobType", "Message",
    "PermanentError", "Queue", "Retry", "Snooze", "WorkerStopped", "current_job",
    "__version__",
]
