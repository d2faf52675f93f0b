"""Define the JSON of the verbs (`--json`): the shapes that programs may rely on.

Fields are added, but never renamed or removed within a major version. Times are UTC in ISO 8601; what is not known is
null.
"""

from __future__ import annotations

from datetime import datetime

from pydantic import BaseModel

from tocsin.model.job_report import JobReport
from tocsin.supervision.health import Standing


class JobStatus(JobReport):
    """One job, as `tocsin status` shows it: its last report and what follows from it.

    Attributes:
        standing: ok, warning (it waits or starts), problem (failed, stopped, silent, missing, in a crash loop or the
            like) or off (it need not run).
        health: the same in a word or two, such as running, crash loop or silent; the pages show this word.
        age_seconds: since the job last gave a sign of life; null when it never did.
        last_finding_at: when a finding of the detector last arrived; null when none did.
        beside: the last report of the process that is to take over from this one; null when there is none.
        fault: the first fault of the file that declares the job; null when it can be read.
    """

    standing: Standing
    health: str
    age_seconds: float | None = None
    last_finding_at: datetime | None = None
    beside: JobReport | None = None
    fault: str | None = None


class DetectorShape(BaseModel, frozen=True):
    """One declared detector.

    Attributes:
        name: the file name without `.py`.
        title: first line of its docstring.
        stage: draft, shadow, live or retired.
        source: whose events it reads.
        entity: columns that say whom a finding is about.
        window_seconds: length of the window; null for a detector of single events.
        email, urgent: the limits, which a score must exceed; null where there is none.
        owner: address that alerts go to.
        runbook: what to do when it fires.
        notify: false for a detector whose findings never notify.
        memory_bytes: what its job may hold resident before it is restarted; null for no limit.
        version: of code, source, window and limits.
        path: the file.
    """

    name: str
    title: str
    stage: str
    source: str
    entity: list[str]
    window_seconds: float | None
    email: float | None
    urgent: float | None
    owner: str
    runbook: str
    notify: bool
    memory_bytes: int | None
    version: str
    path: str


class FaultShape(BaseModel, frozen=True):
    """One fault in a file or setting.

    Attributes:
        where: the file or variable.
        line: in the file; null when unknown.
        key: at fault; null when the whole file is.
        what: what is wrong and what to write instead.
        nearest: the valid name closest to the one written; null when none is close.
    """

    where: str
    line: int | None
    key: str | None
    what: str
    nearest: str | None


class VersionShape(BaseModel, frozen=True):
    """A version of a detector that ran here.

    Attributes:
        version: see `DetectorShape`.
        fingerprint: of its checkpoint; versions that differ in their limits alone share one.
        first_at, last_at: when it was started first, and last.
        in_force: whether it is the one that is to run.
        rolled_back: whether that is so although it is not the one of the detector's file.
    """

    version: str
    fingerprint: str
    first_at: datetime
    last_at: datetime
    in_force: bool
    rolled_back: bool
