"""The kinds of jobs and batches. A new kind is one record here, and the room with its code."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

# Fields of a block of the settings that change nothing for a job: none of them, those that sealing alone
# reads, or those about logins at the pages.
_Left = frozenset[str]
_ALL: _Left = frozenset()
_SEALED = frozenset({"grace"})
_LOGINS = frozenset({"token_file", "users", "oidc"})
_DESIRED = "tocsin.supervise.planning.desired_inputs"
# Code that every job with Spark runs, and every one that uses the alerts DB.
_SPARK = ("quality", "spark", "ingest/*.py", "ingest/spark")
_ALERTS = ("quality", "history", "alerts")


@dataclass(frozen=True, kw_only=True)
class JobKind:
    """One kind of job: a process that runs until it is asked to stop.

    Functions of other rooms are given as `module:function`, since this room imports none.

    Attributes:
        word: the kind in the names of its jobs, and in `python -m tocsin.job WORD NAME`; its role on Kafka; the kind of
            its pods.
        rooms: rooms of `tocsin`, or folders and files in them (`*` as in a shell), with the code that its jobs run,
            besides what every job runs.
        desired: gets this record, the catalog, the settings and the hash of the code; returns the readable jobs that
            should run, by name. A kind without declared files has one job, called "".
        dag: the word of the DAGs that switch its jobs; empty if nobody switches them.
        settings: the blocks of the settings that its jobs read besides that of Kafka, each with the fields that they do
            not. A change there replaces them, and only they are told its addresses, which may hold passwords.
        server: the block that says where its jobs listen; if that has `enabled`, it says whether they run.
        reads, writes: topics of a job without Spark, by `tocsin.declare.model.names.Names` and its name. A query
            of Spark knows its own.
        are_named: whether it may have several jobs although no file declares them.
    """

    word: str
    run: str
    rooms: tuple[str, ...] = ()
    desired: str = f"{_DESIRED}:one_job"
    title: str = ""
    folder: str = ""
    dag: str = ""
    settings: Mapping[str, _Left] = field(default_factory=dict)
    server: str = ""
    reads: Callable[[Any, str], tuple[str, ...]] = lambda names, name: ()
    writes: Callable[[Any, str], tuple[str, ...]] = lambda names, name: ()
    is_spark: bool = False
    has_executors: bool = False
    hands_over: bool = False
    are_named: bool = False

    def job(self, name: str) -> str:
        """Name one of its jobs."""
        return f"{self.word}:{name}" if name else self.word

    def file(self, name: str) -> str:
        """Name the file of the project that declares one of its jobs."""
        return f"{self.folder}/{name}.{'toml' if self.folder in ('sources', 'tables') else 'py'}"


@dataclass(frozen=True, kw_only=True)
class BatchKind:
    """One kind of batch: a program of Spark that works on history, and ends.

    Attributes:
        run: `module:function` that gets a `tocsin.job.Batch` and returns the exit code.
    """

    word: str
    run: str
    argument: str
    options: tuple[str, ...] = ()
    takes_several: bool = False


KINDS = {
    kind.word: kind
    for kind in (
        JobKind(
            word="engine",
            run="tocsin.spark.engine.engine_job:run",
            rooms=("spark",),
            desired=f"{_DESIRED}:engines",
            title="The JVM that detectors, flows and views share",
            is_spark=True,
            hands_over=True,
            are_named=True,
        ),
        JobKind(
            word="ingest",
            run="tocsin.ingest.spark.ingestion:run",
            rooms=_SPARK,
            desired=f"{_DESIRED}:ingests",
            folder="sources",
            is_spark=True,
        ),
        JobKind(
            word="table",
            run="tocsin.spark.tables.file_table_job:run",
            rooms=("spark/tables",),
            desired=f"{_DESIRED}:tables",
            folder="tables",
        ),
        JobKind(
            word="flow",
            run="tocsin.ingest.flows.spark.flow_run:run",
            rooms=(*_SPARK, "ingest/flows"),
            desired=f"{_DESIRED}:queries",
            folder="flows",
            dag="flow",
            is_spark=True,
            hands_over=True,
        ),
        JobKind(
            word="detector",
            run="tocsin.detect.spark.detection:run",
            rooms=(*_SPARK, "detect"),
            desired=f"{_DESIRED}:queries",
            folder="detectors",
            dag="detector",
            is_spark=True,
            has_executors=True,
            hands_over=True,
        ),
        JobKind(
            word="compute",
            run="tocsin.views.spark.computation:run",
            rooms=(*_SPARK, "views/spark", "views/rebuild"),
            desired=f"{_DESIRED}:queries",
            folder="views",
            dag="view",
            is_spark=True,
            has_executors=True,
        ),
        JobKind(
            word="view",
            run="tocsin.views.view_applier_job:run",
            rooms=("views",),
            desired=f"{_DESIRED}:views",
            folder="views",
            dag="view",
            settings={"views": _ALL},
            reads=lambda names, name: (names.view(name),),
            writes=lambda names, name: (names.view(name),),
        ),
        JobKind(
            word="indexer",
            run="tocsin.alerts.indexer:run",
            rooms=_ALERTS,
            title="Merges findings into alerts",
            settings={"alerts": frozenset({"history_days"}), "history": _SEALED},  # the notifier removes old findings
            reads=lambda names, name: (names.findings,),
        ),
        JobKind(
            word="notifier",
            run="tocsin.alerts.notify.notifier_job:run",
            rooms=(*_ALERTS, "ingest/*.py", "ingest/replay"),
            title="Sends what is due",
            settings={"alerts": _ALL, "history": _SEALED, "smtp": _ALL, "receivers": _ALL, "web": _LOGINS, "tls": _ALL},
        ),
        JobKind(
            word="drain",
            run="tocsin.ingest.log_drain.server:run",
            rooms=("quality", "ingest/*.py", "ingest/log_drain"),
            desired=f"{_DESIRED}:drain",
            title="Takes lines over HTTP",
            settings={"drain": _ALL, "tls": _ALL},
            server="drain",
        ),
        JobKind(
            word="web",
            run="tocsin.web.server:run",
            rooms=(*_ALERTS, "views", "detect", "spark/tables", "supervise", "dev", "web"),
            title="Serves the pages, and rows of views",
            settings={"web": _ALL, "tls": _ALL, "alerts": frozenset({"history_days"}), "history": _SEALED},
            server="web",
        ),
        JobKind(
            word="exporter",
            run="tocsin.web.metrics.exporter:run",
            rooms=(*_ALERTS, "views", "detect", "spark/tables", "supervise", "dev", "web"),
            title="Answers Prometheus",
            settings={"metrics": _ALL, "tls": _ALL, "alerts": _ALL, "history": _ALL},
            server="metrics",
        ),
    )
}
"""By their words, in the order of their start."""

BATCHES = {
    kind.word: kind
    for kind in (
        BatchKind(
            word="seal",
            run="tocsin.history.backfill.backfill_retention:run_seal",
            argument="source",
            options=("day", "run-id"),
        ),
        BatchKind(word="refresh", run="tocsin.history.table_refresh:run", argument="source"),
        BatchKind(
            word="backfill",
            run="tocsin.history.backfill.spark.backfill_run:run",
            argument="detector",
            options=("day", "run-id"),
            takes_several=True,
        ),
        BatchKind(word="rebuild", run="tocsin.views.spark.view_rebuild:run", argument="view", options=("missing",)),
    )
}
