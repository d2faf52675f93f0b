"""Define the JSON of the pages.

Times are epoch seconds, those of a `JobStatus` ISO 8601; what is not known is null.
Text that comes from logs, files or errors has passed `printable`; the pages show it as text and never as markup.
"""

from __future__ import annotations

from pydantic import BaseModel

from tocsin.supervise.incidents.process_ends import ProcessEnd, Restart
from tocsin.supervise.job_status import JobStatus, Severity


class Today(BaseModel, frozen=True):
    """The resources that the job took today, UTC, as far as the alerts DB knows."""

    cpu_seconds: float
    rows_in: int
    rows_out: int
    findings: int
    restarts: int


class JobRow(JobStatus):
    """One job: its status, and what the pages know besides.

    Attributes:
        name: of the file that declares it, such as failed_logins; its kind for a job of the platform.
        stage: of a detector, a flow or a view; empty for other jobs, and for a file that cannot be read.
        declared_bytes: the most memory that its file allows.
        over_memory: whether it holds more than that.
        cores, cores_seconds: how many it keeps busy, on average over that time.
        busy: whether it uses a core.
        today, today_at: null when not known; read from the alerts DB at that time.
        last_restart: null for none.
        unexplained: findings of which its stream and its backfill say something else, without a reason, on the days
            that were compared last.
        off: whether its switch is off; null for a job without one, or when it is not known.
        may_switch, may_restart: what makes sense for it now, and the user who asks may do.
    """

    name: str
    kind: str
    title: str
    dag: str
    stage: str
    declared_bytes: int | None = None
    over_memory: bool = False
    cores: float | None = None
    cores_seconds: float | None = None
    busy: bool = False
    today: Today | None = None
    today_at: float | None = None
    last_restart: Restart | None = None
    unexplained: int = 0
    off: bool | None = None
    may_switch: bool = False
    may_restart: bool = False


class Note(BaseModel, frozen=True):
    """Something about the whole: what is not known, and why."""

    severity: Severity
    text: str


class JobList(BaseModel, frozen=True):
    """All jobs, at one moment.

    Attributes:
        now: the clock of the server.
        looked_at: when files and processes were looked at with success; null for never.
        rows: problems first, then detectors, then the jobs of the platform, then what its stage keeps from running.
    """

    now: float
    looked_at: float | None
    notes: list[Note]
    rows: list[JobRow]


class Fact(BaseModel, frozen=True):
    """One thing that the file of a detector declares."""

    name: str
    text: str


class JobDetails(BaseModel, frozen=True):
    """One job in detail; `crashes` are the newest first, without hand-overs and stops that somebody asked for."""

    row: JobRow
    crashes: list[ProcessEnd]
    facts: list[Fact]


class JobPlace(BaseModel, frozen=True):
    """A job, and the DAG on whose page it is."""

    job: str
    dag: str


class JobPage(BaseModel, frozen=True):
    """The jobs of one DAG; none for a DAG that handles no job, then those that it works `beside`."""

    now: float
    looked_at: float | None
    notes: list[Note]
    jobs: list[JobDetails]
    beside: list[JobPlace] = []


class ReportedSide(BaseModel, frozen=True):
    """The word of one side on a finding; `at_least` marks a lower bound."""

    level: str
    score: float
    at_least: bool


class ParityDifference(BaseModel, frozen=True):
    """One finding of which stream and backfill say something else, and nobody knows why.

    Attributes:
        day: UTC.
        entity: as `entity_text` writes it.
        start, end: of its window; both the time of its event for a detector without windows.
        stream, batch: what they say; null where it is not.
        why: what was looked at in vain.
    """

    day: str
    entity: str
    start: float
    end: float
    stream: ReportedSide | None
    batch: ReportedSide | None
    why: str


class ComparedDay(BaseModel, frozen=True):
    """The comparison of stream and backfill on one UTC day.

    Attributes:
        same: findings on which they agree.
        reasons: how many differ, by reason.
        unexplained: how many differ without a reason.
        compared_at: null when the stored comparison cannot be read.
        fault: why not; empty else.
    """

    day: str
    same: int = 0
    reasons: dict[str, int] = {}
    unexplained: int = 0
    compared_at: float | None = None
    fault: str = ""


class Parity(BaseModel, frozen=True):
    """The comparison of the findings of stream and backfill of a detector.

    Attributes:
        detector: empty for a DAG that handles none.
        days: those that were compared last, the last one first; none when none was.
        earlier: how many more are stored.
        unexplained: some of the differences without a reason, of these days.
        fault: why nothing can be read; empty else.
    """

    now: float
    detector: str
    days: list[ComparedDay] = []
    earlier: int = 0
    unexplained: list[ParityDifference] = []
    fault: str = ""


class LogTail(BaseModel, frozen=True):
    """The end of the log of a job; `cut` if there is more in the file.

    `lines` are oldest first, the very long ones cut; `written_at` is null when there is no file.
    """

    now: float
    path: str
    lines: list[str]
    written_at: float | None
    cut: bool
