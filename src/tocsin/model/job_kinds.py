"""The kinds of jobs and batches. A new kind is one record here, and the room with its code."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class JobKind:
    """One kind of job: a process that runs until it is asked to stop.

    Attributes:
        word: the kind in the names of its jobs, and in `python -m tocsin.job WORD NAME`.
        run: `module:function` with the code of its jobs, which gets a `tocsin.job.Job`.
        is_named: whether there are several, each with a name of its own.
        server: the block of the settings that says where its jobs listen; empty if they do not.
        is_spark: whether its jobs run a query of Spark.
    """

    word: str
    run: str
    is_named: bool = False
    server: str = ""
    is_spark: bool = False


@dataclass(frozen=True, kw_only=True)
class BatchKind:
    """One kind of batch: a program of Spark that works on history, and ends.

    Attributes:
        word: the kind, as for a `JobKind`.
        run: `module:function` that gets a `tocsin.job.Batch` and returns the exit code.
        argument: what its arguments name.
        options: those of `tocsin.job` that it takes.
        takes_several: whether it takes more than one name.
    """

    word: str
    run: str
    argument: str
    options: tuple[str, ...] = ()
    takes_several: bool = False


KINDS = {
    kind.word: kind
    for kind in (
        JobKind(word="ingest", run="tocsin.ingest.spark.ingestion:run", is_named=True, is_spark=True),
        JobKind(word="table", run="tocsin.tables.file_table_job:run", is_named=True),
        JobKind(word="flow", run="tocsin.flows.spark.flow_run:run", is_named=True, is_spark=True),
        JobKind(word="detector", run="tocsin.detect.spark.detection:run", is_named=True, is_spark=True),
        JobKind(word="compute", run="tocsin.views.spark.computation:run", is_named=True, is_spark=True),
        JobKind(word="view", run="tocsin.views.view_applier_job:run", is_named=True),
        JobKind(word="indexer", run="tocsin.alerts.indexer:run"),
        JobKind(word="notifier", run="tocsin.alerts.notify.notifier_job:run"),
        JobKind(word="drain", run="tocsin.log_drain.server:run", server="drain"),
        JobKind(word="web", run="tocsin.views.rest.server:run", server="web"),
        JobKind(word="exporter", run="tocsin.metrics.exporter:run", server="metrics"),
    )
}
"""By their words, in the order of their start."""

BATCHES = {
    kind.word: kind
    for kind in (
        BatchKind(
            word="seal", run="tocsin.backfill.backfill_retention:run_seal", argument="source", options=("day", "run-id")
        ),
        BatchKind(word="refresh", run="tocsin.history.table_refresh:run", argument="source"),
        BatchKind(
            word="backfill",
            run="tocsin.backfill.spark.backfill_run:run",
            argument="detector",
            options=("day", "run-id"),
            takes_several=True,
        ),
        BatchKind(word="rebuild", run="tocsin.backfill.spark.view_rebuild:run", argument="view", options=("missing",)),
    )
}
