"""Every name that leaves this process: topics, consumer groups, jobs, folders. Nothing else formats one."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass

from tocsin.declare.model.job_kinds import KINDS

INGEST = "ingest"
FLOW = "flow"
DETECTOR = "detector"
COMPUTE = "compute"
VIEW = "view"
TABLE = "table"
INDEXER = "indexer"
NOTIFIER = "notifier"
DRAIN = "drain"
WEB = "web"
EXPORTER = "exporter"
PLATFORM_DAG = "platform"
MAILS_DAG = "mails"
_LONGEST = 200
_DECLARED = re.compile(r"[a-z][a-z0-9_]{0,63}")


@dataclass(frozen=True)
class JobName:
    """The name of a job: "kind:name" as text, or "kind" where one job is all there is of its kind."""

    kind: str
    name: str = ""

    @classmethod
    def parse(cls, job: str) -> JobName:
        """Read the name from its text."""
        kind, _, name = job.partition(":")
        return cls(kind, name)

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}" if self.name else self.kind


def valid_name(name: str) -> str:
    """Return `name` if a detector may be called so, else the nearest ASCII identifier in lower case.

    It becomes part of command lines, folders, consumer groups and DAG ids.
    """
    if _DECLARED.fullmatch(name):
        return name
    plain = re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")[:60] or "detector"
    return plain if plain[0].isalpha() else f"n{plain}"


def ingest_job(source: str) -> str:
    """The job that parses and checks the records of `source`."""
    return str(JobName(INGEST, source))


def detector_job(detector: str) -> str:
    """The job that runs `detector` on its stream."""
    return str(JobName(DETECTOR, detector))


def flow_job(flow: str) -> str:
    """The job that writes what `flow` makes of its source."""
    return str(JobName(FLOW, flow))


def compute_job(view: str) -> str:
    """The job that computes the rows of `view` and writes them to its topic."""
    return str(JobName(COMPUTE, view))


def view_job(view: str, reader: int | None = None) -> str:
    """The job that applies the rows of `view` to its sink; with a number, one of several that share this work."""
    return str(JobName(VIEW, view if reader is None else f"{view}.{reader}"))


def table_job(table: str) -> str:
    """The job that keeps the versions of the rows of `table`."""
    return str(JobName(TABLE, table))


def landing_job(source: str) -> str:
    """The batch that brings events of `source` from Kafka, or from files, into landing."""
    return str(JobName("land", source))


def sealing_job(source: str) -> str:
    """The batch that seals and publishes days of `source`."""
    return str(JobName("seal", source))


def refresh_job(table: str) -> str:
    """The batch that makes the versions of a table that is made of history."""
    return str(JobName("refresh", table))


def backfill_job(detector: str) -> str:
    """The batch that runs `detector` over days of history and publishes what it finds there."""
    return str(JobName("backfill", detector))


def rebuild_job(view: str) -> str:
    """The batch that computes the rows of `view` over days of history, for a new build."""
    return str(JobName("rebuild", view))


def parity_job(detector: str) -> str:
    """The batch that recomputes windows of `detector` in which the stream and a backfill differ."""
    return str(JobName("parity", detector))


def evaluation_job(detector: str) -> str:
    """The batch that runs `detector` over days of history and keeps nothing."""
    return str(JobName("evaluate", detector))


def dag_of(job: str) -> str:
    """The DAG in whose runs `job` is handled: each detector, flow and view has its own, all other jobs share one."""
    own = JobName.parse(job)
    switch = KINDS[own.kind].dag if own.kind in KINDS else ""
    return _dag(str(JobName(switch, own.name))) if switch else PLATFORM_DAG


def history_dag(source: str) -> str:
    """The DAG that lands and seals the events of `source`."""
    return _dag(str(JobName("history", source)))


def backfill_dag(detector: str) -> str:
    """The DAG that backfills `detector`."""
    return _dag(backfill_job(detector))


def rebuild_dag(view: str) -> str:
    """The DAG that computes `view` anew over days of history; the dot keeps it apart from that of any detector."""
    return _dag(backfill_job(f"{VIEW}.{view}"))


def _dag(job: str) -> str:
    """Airflow takes no other characters; two jobs never share a DAG, also where a file has a name that is not valid."""
    name = file_name(job)
    plain = re.sub(r"[^A-Za-z0-9_.-]", "_", name)
    return plain if plain == name else f"{plain}-{_mark(job)}"


def file_name(job: str) -> str:
    """`job` as the name of a file or folder: no colon, so that it is portable, and not too long for a suffix."""
    name = job.replace(":", "__")
    return name if len(name.encode()) <= _LONGEST else f"{name[:40]}-{_mark(job)}"


def _mark(job: str) -> str:
    return hashlib.sha256(job.encode()).hexdigest()[:8]


@dataclass(frozen=True)
class Names:
    """Topics and consumer groups behind one prefix, empty by default; it lets several installations share a broker."""

    prefix: str = ""

    def raw(self, source: str) -> str:
        """Records as they arrived."""
        return f"{self.prefix}raw.{source}"

    def events(self, source: str) -> str:
        """Parsed and checked events of `source`."""
        return f"{self.prefix}events.{source}"

    def quarantine(self, source: str) -> str:
        """Records of `source` that cannot be used, with their reasons."""
        return f"{self.prefix}quarantine.{source}"

    def view(self, view: str) -> str:
        """Name the topic of the rows of `view`, keyed by their identity."""
        return f"{self.prefix}views.{view}"

    def rebuild(self, view: str, build: str) -> str:
        """Name the topic of the events of history that `build` of `view` reads besides those of the stream.

        No view's name has a dot, so with an empty `build` it is how those of all builds begin.
        """
        return f"{self.prefix}rebuild.{view}.{build}"

    @property
    def findings(self) -> str:
        """Name the topic of all findings, keyed by finding_id."""
        return f"{self.prefix}findings"

    @property
    def job_metrics(self) -> str:
        """Progress and lag of every job, keyed by job."""
        return f"{self.prefix}job-metrics"

    def group(self, job: str) -> str:
        """The consumer group of `job`: real for the indexer, a shadow for Spark jobs (they commit none)."""
        return f"{self.prefix}tocsin.{job}"
