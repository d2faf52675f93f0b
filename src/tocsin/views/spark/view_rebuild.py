"""Compute a view anew: rows of sealed days first, as those of a new build, then the stream from there.

Without windows the state of the query has to see each event, so the events of these days are written instead, to a
topic of the build that its query reads besides the stream.

The view runs on meanwhile: its job begins the new build when all days are on the topic. Days are read a few at a time,
in order. A run that was killed goes on behind the last that it had noted; rows that are written twice are the same, and
events that are written twice have one identity.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import date

import structlog
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tocsin.declare.model.errors import TocsinError, TransientError
from tocsin.declare.model.names import rebuild_job
from tocsin.declare.model.sizes import EVENT_BYTES
from tocsin.declare.settings import Settings
from tocsin.history.backfill.backfill_planning import inputs
from tocsin.history.backfill.spark.day_findings import ROWS_AT_ONCE
from tocsin.history.places import Places, begin, end
from tocsin.history.seal_planning import chunks
from tocsin.history.spark.sealed_days import sealed_events, with_tick
from tocsin.history.spark.table_versions import tables_of_days
from tocsin.job import Batch
from tocsin.platform.failures import Unwritable, in_a_line, is_disk, is_kafka
from tocsin.platform.kafka.topics import ensure_event_topic
from tocsin.platform.process_exit import ExitCode
from tocsin.spark.batch_session import running_batch
from tocsin.spark.columns import JSON_TIMES
from tocsin.spark.declared_function import DeclaredFunction
from tocsin.spark.events import no_records, optimize, parse_events, prepare_events, used_columns
from tocsin.spark.session import kafka_sink
from tocsin.spark.tables.spark.joined_tables import open_tables
from tocsin.views.rebuild.rebuild_request import (
    Draft,
    HistoryPart,
    Rebuild,
    build_name,
    is_requested,
    read_draft,
    remove_draft,
    request_rebuild,
    write_draft,
)
from tocsin.views.rebuild.rebuild_status import (
    RebuildLook,
    RebuildPlan,
    give_up,
    lock_rebuild,
    look_at,
    rebuild_by_kafka,
)
from tocsin.views.spark.view_plan import FUNCTION, make_rows, read_plan

log = structlog.get_logger()


@dataclass(frozen=True)
class RebuiltDays:
    """Days that are on the topic now, computed together from so many `events`; `done` of `total` days are there."""

    first: date
    last: date
    events: int
    done: int
    total: int


def rebuild_from_history(
    settings: Settings, name: str, report: Callable[[RebuiltDays], None], *, incomplete: bool = False
) -> RebuildPlan:
    """Rebuild the view `name` by what there is now, and return the plan; `report` is called after each query.

    When this returns, the rows of history are on the topic, and the job of the view has been asked for the rest.
    `incomplete` leaves out what is neither in history nor in Kafka.

    Raises:
        ConfigError: there is no such view, or its query does not run.
        LockHeld: it is being rebuilt; a retry helps once that has ended.
        TransientError: Kafka or the catalogue of history is away, or history or the view has changed; a retry helps.
        Unwritable: the disk is full.
        TocsinError: days are missing, or the query has failed.
    """
    with lock_rebuild(settings, name):
        look = look_at(settings, name)
        check(look, incomplete=incomplete)
        if look.plan.days:
            with running_batch(settings, rebuild_job(name)) as spark:
                try:
                    return _Drafting(settings, spark, look, incomplete=incomplete).run(report)
                except OSError as error:
                    if is_disk(error):
                        what = f"{settings.state} cannot be written ({error.strerror}); make room and run it again"
                        raise Unwritable(f"{what}: it goes on where it was") from error
                    raise
    rebuild_by_kafka(settings, name)
    return look.plan


def check(look: RebuildLook, *, incomplete: bool) -> None:
    """Check that the view lacks no day, unless `incomplete`; a TocsinError says which, why, and what can be done."""
    if look.plan.lacking and not incomplete:
        days = "\n".join(f"  {day}: {why}" for day, why in look.plan.lacking.items())
        what = "cannot be rebuilt whole: these days are neither in history nor in Kafka"
        raise TocsinError(f"{look.spec.name} {what}; --incomplete leaves them out\n{days}")


class _Drafting:
    """One run: computes the days that are not on the topic yet, and asks for the rest."""

    def __init__(self, settings: Settings, spark: SparkSession, look: RebuildLook, *, incomplete: bool) -> None:
        self._settings, self._spark, self._look, self._incomplete = settings, spark, look, incomplete
        spec = look.spec
        self._call = DeclaredFunction(spec.path, FUNCTION)
        self._used: frozenset[str] = frozenset()
        self._draft = self._begin_draft()

    def run(self, report: Callable[[RebuiltDays], None]) -> RebuildPlan:
        """Compute all days, and ask for the rest; what is sealed meanwhile is computed as well."""
        name, state = self._look.spec.name, self._settings.state
        while todo := [day for day in self._look.plan.days if day not in self._draft.days]:
            chunk = next(chunks(todo, self._look.rows, ROWS_AT_ONCE, neighbours=True))
            self._write(chunk)
            days = {day: self._look.plan.days[day] for day in chunk}
            self._draft = replace(self._draft, days=self._draft.days | days)
            write_draft(state, name, self._draft)
            events = sum(self._look.rows[day] for day in chunk)
            log.info("days on the topic", view=name, build=self._draft.build, first=str(chunk[0]), last=str(chunk[-1]))
            total = len(self._look.plan.days)
            report(RebuiltDays(chunk[0], chunk[-1], events, total - len(todo) + len(chunk), total))
            self._look = self._look_again()
        since = self._look.plan.since
        assert since is not None, "history computes days"
        events_from = None if self._look.spec.computed.window is not None else begin(min(self._draft.days))
        part = HistoryPart(self._draft.build, since, self._look.offsets, events_from)
        request_rebuild(state, name, Rebuild(id=self._draft.request, history=part))
        remove_draft(state, name)
        return self._look.plan

    def _begin_draft(self) -> Draft:
        """Go on with the draft of an earlier run, if what it was made of is as it was; else begin another."""
        spec, plan = self._look.spec, self._look.plan
        events = prepare_events(
            parse_events(no_records(self._spark), self._look.source), spec.computed, self._look.source.lateness
        )
        rows = self._call(events, open_tables(self._spark, self._settings, spec.tables, spec.path))  # as its job plans
        fingerprint = read_plan(rows, spec, [self._look.source]).fingerprint
        self._used = used_columns(optimize(make_rows(rows, spec, "")), [self._look.source])[self._look.source.name]

        def name_build(request: str) -> str:
            return build_name(spec.version, fingerprint, request, from_history=True)

        state = self._settings.state
        draft = read_draft(state, spec.name)
        fits = draft is not None and draft.build == name_build(draft.request) and draft.continues(plan.days)
        if draft is None or not fits or is_requested(state, spec.name, draft):
            give_up(self._settings, spec.name)
            request = Rebuild().id
            draft = Draft(request, name_build(request))
            write_draft(state, spec.name, draft)
        else:
            log.info("going on", view=spec.name, build=draft.build, days=len(draft.days))
        if spec.computed.window is None:
            ensure_event_topic(self._settings, self._events_topic(draft), self._look.source.partitions)
        return draft

    def _events_topic(self, draft: Draft) -> str:
        return self._settings.names.rebuild(self._look.spec.name, draft.build)

    def _look_again(self) -> RebuildLook:
        look = look_at(self._settings, self._look.spec.name)
        if look.spec.version != self._look.spec.version:
            raise TransientError(f"{look.spec.path} has changed meanwhile; run it again, and it begins anew")
        check(look, incomplete=self._incomplete)
        if not look.plan.days or not self._draft.continues(look.plan.days):
            raise TransientError("days of history have changed meanwhile; run it again, and it begins anew")
        return look

    def _write(self, days: Sequence[date]) -> None:
        """Write the rows of `days`, neighbours in order; without windows, their events."""
        spec, names = self._look.spec, self._settings.names
        try:
            if spec.computed.window is None:
                write_records(self._settings, self._events_topic(self._draft), self._events(days))
            else:
                write_records(
                    self._settings, names.view(spec.name), make_rows(self._rows(days), spec, self._draft.build)
                )
        except Exception as error:
            what = f"{days[0]} to {days[-1]}: {in_a_line(error)}"
            if is_disk(error):
                raise Unwritable(what) from error
            raise (TransientError if is_kafka(str(error)) else TocsinError)(what) from error

    def _events(self, days: Sequence[date]) -> DataFrame:
        read = {day: self._look.sealed[day] for day in days}
        events = sealed_events(self._spark, Places.of(self._settings, self._look.source.name), self._look.source, read)
        columns = [F.col(f"`{name}`") for name in events.columns if name in self._used]
        return events.select(F.to_json(F.struct(*columns), JSON_TIMES).alias("value"))

    def _rows(self, days: Sequence[date]) -> DataFrame:
        """Make the rows of the windows that start on `days`; without windows, of the events of these days."""
        look, places = self._look, Places.of(self._settings, self._look.source.name)
        read = {other: look.sealed[other] for day in days for other in inputs(day, look.spec)}
        events = with_tick(sealed_events(self._spark, places, look.source, read))
        window, last = look.spec.window, end(days[-1])
        if window is not None and len(read) > len(days):
            events = events.where(F.col("event_time") < F.lit(last + window))
        tables = tables_of_days(self._spark, self._settings, look.spec, read)
        rows = self._call(prepare_events(events, look.spec.computed, None), tables)
        if window is None:
            return rows
        start = F.col("window.start")
        return rows.where((start >= F.lit(begin(days[0]))) & (start < F.lit(last)))


def write_records(settings: Settings, topic: str, records: DataFrame) -> None:
    """Write `records` to `topic`; when this returns, Kafka has them."""
    records.write.format("kafka").options(**kafka_sink(settings, topic, EVENT_BYTES)).save()


def run(batch: Batch) -> int:
    """Rebuild the view of `batch`; returns OK. Errors as of `rebuild_from_history`."""
    plan = rebuild_from_history(batch.settings, batch.name, lambda _: None, incomplete=batch.leave_out)
    log.info("rest asked of the stream", view=batch.name, days=len(plan.days), since=plan.since, why_none=plan.why_none)
    for day, why in plan.lacking.items():
        log.warning("day left out", day=str(day), why=why)
    return ExitCode.OK
