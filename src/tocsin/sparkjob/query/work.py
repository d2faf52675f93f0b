"""What a job must bring, to be kept alive by `tocsin.sparkjob.query.query_loop`."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Protocol

from confluent_kafka import Message
from pyspark.sql.streaming.query import StreamingQuery

from tocsin.model.job_report import JobState
from tocsin.sparkjob.query.progress import Progress

if TYPE_CHECKING:
    from tocsin.sparkjob.query.query_loop import Run

REAL_TIME, MICRO_BATCH = "real-time", "micro-batch"


@dataclass(frozen=True, kw_only=True)
class Started:
    """A query that `Work.start` has started.

    Attributes:
        query: the running query.
        mode: "real-time" or "micro-batch".
        reason: why this mode and state, one sentence.
        state: RUNNING or DRAINING.
        batch_seconds: length of a real-time batch; 0 in micro-batch mode.
        delay_seconds: watermark delay in force; None without a watermark.
    """

    query: StreamingQuery
    mode: str
    reason: str
    state: JobState = JobState.RUNNING
    batch_seconds: float = 0.0
    delay_seconds: float | None = None


class Work(Protocol):
    """What a job does, apart from staying alive. All is called on the job's main thread."""

    job: str
    version: str
    """Of what a user has written, for reports; empty where nothing has one."""
    reads: str
    """The topic whose partitions decide the slots."""
    writes: tuple[str, ...]
    """Topics that must exist as well before the query starts."""

    def slots(self, partitions: int) -> int:
        """Task slots needed for `partitions` partitions of the topic that is read."""

    def start(self, run: Run) -> Started | None:
        """Start the query; called again after each stop. None when the job was asked to stop before it could.

        Raises:
            TransientError: Kafka went away, try again.
        """

    def progressed(self, progress: Progress) -> dict[str, Any]:
        """A batch has finished; returns further fields of the report."""

    def poll(self, run: Run) -> str | None:
        """Called about four times a second; returns a reason to stop the query and start it again, or None."""

    def failed(self, error: str) -> bool:
        """The query has failed with `error`; True when starting it again will go another way."""

    def appended_at(self, message: Message) -> datetime | None:
        """When the record behind `message` came into the platform, UTC: `lag_seconds` is counted from it."""
