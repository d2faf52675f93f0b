"""The report of a job about itself: one record on `job-metrics`, keyed by job.

Written after each batch, and every 5 seconds while the job lives.
"""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum

from pydantic import BaseModel, Field

SILENT_SECONDS = 20.0
"""A job that has reported nothing for so long is silent: it reports every 5 seconds, and two may be lost."""

OVERDUE_SECONDS = 7.0
"""A report that is older no longer tells how far behind its job is: the next one should have come after 5 seconds."""

BUSY_CORES = 0.9
"""A job that keeps so many cores busy stands out: on a machine of a few cores it leaves too little for the others."""

MUCH_QUARANTINED = 0.05
"""A source of which a larger share of the latest records went to quarantine may have changed its format."""

MUCH_IGNORED = 0.99
"""A source of which a larger share of the latest records is ignored may have a pattern to ignore that is too wide."""


TOPICS_RECREATED = "topics_recreated"
"""Of the counts of a job: how often a topic that it reads was deleted and created again, since its process began."""

ISOLATED = "isolated"
"""Of the counts of a job: 1 while it has a JVM of its own because engines have died with it."""

REFUSED_RECIPIENTS = "refused_recipients"
"""Of the counts of the notifier: how many recipients refused their last message for good."""

UNDECLARED_DETECTORS = "undeclared_detectors"
"""Of the counts of the indexer: of how many detectors that no file declares it has stored findings."""

LONG_WAIT_SECONDS = 600.0
"""A job that waits for so long waits for what hardly comes back by itself."""


class JobState(StrEnum):
    """The present activity of a job."""

    STARTING = "starting"
    WAITING = "waiting"
    """Something outside is missing (Kafka, SMTP, the database); `reason` says what, and the job goes on by itself."""
    DRAINING = "draining"
    RUNNING = "running"
    READY = "ready"
    """Can take over from the process that leads this job, and does as soon as that one has ended."""
    STOPPING = "stopping"
    STOPPED = "stopped"
    FAILED = "failed"


class FailureCause(BaseModel, frozen=True, extra="ignore"):
    """The cause of a failure, as near to its origin as is known.

    Attributes:
        file: the declared file in which it arose, relative to the project; empty if in none.
        event: one on which it arises, as `topic/partition/offset`; empty when unknown.
    """

    what: str
    file: str = ""
    line: int | None = None
    event: str = ""

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}" if self.line is not None else self.file
        sentence = f"{place}: {self.what}" if place else self.what
        return f"{sentence}, on event {self.event}" if self.event else sentence


class JobReport(BaseModel, frozen=True, extra="ignore"):
    """The state and progress of one job at one moment.

    Attributes:
        waiting_seconds: for how long its process has waited for something outside, and not worked in between.
        mode: "real-time", "micro-batch", or empty for jobs without Spark.
        stalled_seconds: for how long, while it leads and runs, it has had unread records and finished no batch;
            while it starts, since it last told something; of the notifier: since it began its last round, or mail.
        rows_in: records read since the process began, without ticks.
        rows_out: records written since the process began. Of a detector each is an update of a finding, and a burst
            makes many of one finding; `tocsin status --usage` counts the findings.
        rows_dropped_late: by the watermark since the process began; what the nightly batch will add.
        lag_seconds: since the append of the oldest unread record; 0 when there is none.
        watermark: of the job, UTC; None before the first batch and for stateless jobs. Of the indexer: every finding
            that was appended before it is stored.
        complete_through: told between the boundaries of batches, UTC; None when unknown. Of an ingest: all that
            was appended before it is in the events topic. Of a detector in real-time mode with rising scores: what it
            finds in windows that ended by then is in the findings topic; told while somebody may wait for it. Likely,
            not certain, so an e-mail may leave because of it, and nothing may be dropped.
        delay_seconds: watermark delay now in force (widened while draining).
        build: of a compute job: the build of its view that it runs (`ViewRow.build`), reported before its first row.
        is_build_complete: that build has written the rows of all events that there were when the job started. Who has
            read the topic of the view up to the end that it had then has the whole build.
    """

    job: str
    instance: str = ""
    at: datetime
    started_at: datetime | None = None
    pid: int = 0
    state: JobState
    reason: str = ""
    cause: FailureCause | None = None
    waiting_seconds: float = 0.0
    mode: str = ""
    version: str = ""
    batch_id: int | None = None
    stalled_seconds: float = 0.0
    rows_in: int = 0
    rows_out: int = 0
    rows_dropped_late: int = 0
    lag_records: int = 0
    lag_seconds: float = 0.0
    watermark: datetime | None = None
    complete_through: datetime | None = None
    delay_seconds: float | None = None
    build: str = ""
    is_build_complete: bool = False
    cpu_seconds: float = 0.0
    rss_bytes: int = 0
    counts: dict[str, float] = Field(default_factory=dict)

    @property
    def has_lag(self) -> bool:
        """Return whether `lag_records` and `lag_seconds` were measured: a job that starts or waits measures nothing."""
        return self.state in (JobState.RUNNING, JobState.DRAINING)

    def lag_after(self, age_seconds: float) -> float:
        """Return the seconds that the job is behind at most, as far as this report tells `age_seconds` later."""
        return self.lag_seconds + (age_seconds if age_seconds > OVERDUE_SECONDS else 0.0)

    @property
    def bad_ratio(self) -> float:
        """Of the job of a source: the share of its latest 1,000 records or more that went to quarantine; 0 before."""
        return self.counts.get("bad_ratio", 0.0)

    @property
    def ignored_ratio(self) -> float:
        """Of the job of a source: the share of its latest records that was ignored; 0 while there are too few."""
        return self.counts.get("ignored_ratio", 0.0)

    @property
    def waits_long(self) -> bool:
        """Return whether it has waited for so long that somebody should look at what is missing."""
        return self.waiting_seconds >= LONG_WAIT_SECONDS

    @property
    def works(self) -> bool:
        """Return whether the job does its work, or would if there were any."""
        return self.state in (JobState.RUNNING, JobState.DRAINING)

    @property
    def is_unproven(self) -> bool:
        """Return whether its process has not shown yet that it gets on: a batch is due, and none has finished."""
        return self.batch_id is None and self.lag_records > 0 if self.works else self.state is not JobState.READY
