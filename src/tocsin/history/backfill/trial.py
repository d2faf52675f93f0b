"""Run a detector on days of history for the caller alone: judge, publish and keep nothing."""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

from tocsin.declare.catalog import read_catalog
from tocsin.declare.declaration import read_spec
from tocsin.declare.feeding import models_table
from tocsin.declare.model.detector import DetectorSpec
from tocsin.declare.model.errors import ConfigError
from tocsin.declare.model.finding import Finding
from tocsin.declare.model.names import detector_job, evaluation_job
from tocsin.declare.model.source import Source
from tocsin.declare.settings import Settings
from tocsin.detect.spark.findings import SCORE_TIMES
from tocsin.history.backfill.backfill_planning import Sealed, obstacle
from tocsin.history.backfill.backfill_status import declared, without_table
from tocsin.history.backfill.spark.day_findings import ROWS_AT_ONCE, Days, blaming
from tocsin.history.backfill.trial_report import Diff, OpenPart, changes
from tocsin.history.day_status import why_not
from tocsin.history.seal_planning import chunks
from tocsin.history.spark.open_day import OpenDay
from tocsin.history.spark.shared_scratch import shared_scratch
from tocsin.platform.code_versions import kept_detector, kept_versions
from tocsin.platform.storage.stored_path import StoredPath, find_all, open_stored
from tocsin.spark.batch_session import running_batch
from tocsin.spark.session import scratch_folder

RUN_ID = "trial"


@dataclass(frozen=True)
class DayChoice:
    """Choice of the days of a trial, in UTC; None leaves a side open, and without both, the latest `most` that can run.

    With `today` also what is closed of the current day, read from Kafka; so too if `first` and `last` include it.
    """

    first: date | None = None
    last: date | None = None
    most: int = 60
    today: bool = False

    def __post_init__(self) -> None:
        """Raise ConfigError if there can be no such day."""
        if self.most < 1:
            raise ConfigError.one("days", f"{self.most} is no number of days")
        if self.first and self.last and self.first > self.last:
            raise ConfigError.one("--from", f"{self.first} is after {self.last}")

    @property
    def wants_today(self) -> bool:
        """Return whether the current day is among them."""
        today = datetime.now(UTC).date()
        return self.today or ((self.first or today) <= today <= (self.last or self.first or date.min))


@dataclass
class DetectorTrial:
    """The findings of one version of a detector, and the events, of each day.

    The seconds are those it took, without the start of Spark.
    """

    spec: DetectorSpec
    found: dict[date, list[Finding]] = field(default_factory=dict)
    events: dict[date, int] = field(default_factory=dict)
    cpu_seconds: float = 0.0
    seconds: float = 0.0

    @property
    def findings(self) -> list[Finding]:
        """All findings, the earliest day first."""
        return [one for day in sorted(self.found) for one in self.found[day]]


@dataclass
class TrialRun:
    """The trials of some versions on the same days.

    Attributes:
        left_out: days that were asked for and cannot run, and why.
        open: which part of the current day is among them; None if none.
    """

    trials: list[DetectorTrial]
    left_out: dict[date, str]
    open: OpenPart | None = None


@dataclass
class _Opened:
    """What a run over days goes by; `parts` are the days of one query each."""

    spark: Any
    days: Days
    parts: list[tuple[date, ...]]
    run: TrialRun
    folder: StoredPath


def score_days(settings: Settings, name: str, choice: DayChoice, target: Path) -> TrialRun:
    """Write each score of the detector `name` on history to the Parquet file `target`, whatever its limits are.

    See `tocsin.detect.spark.findings.make_scores` for the columns. The trial that is returned has no findings. Errors
    as for `try_out`, and OSError if the file cannot be written.
    """
    source, (declared_spec,) = declared(settings, [name])
    spec = declared_spec.without_limits()
    with _opened(settings, source, [spec], choice) as opened, ScoreFile(target, spec.entity) as file:
        (trial,) = opened.run.trials
        trial.spec = declared_spec
        for number, chunk in enumerate(opened.parts):
            began, folder = time.monotonic(), opened.folder / f"scores-{number}"
            with blaming(spec):
                trial.cpu_seconds += opened.days.write_scores(opened.spark, spec, chunk, folder)
            file.add(folder)
            trial.events |= {day: opened.days.rows[day] for day in chunk}
            trial.seconds += time.monotonic() - began
    return opened.run


class ScoreFile:
    """One Parquet file of what Spark writes as many; it is there once the block has ended without an error."""

    def __init__(self, target: Path, entity: Sequence[str]) -> None:
        self._target, self._entity = target, entity

    def __enter__(self) -> ScoreFile:
        """Open it beside its place."""
        import pyarrow as pa
        from pyarrow import parquet

        fields = [(name, pa.string()) for name in self._entity]
        fields += [(name, pa.timestamp("us", "UTC")) for name in SCORE_TIMES]
        self._part = self._target.with_name(f".{self._target.name}.part")
        self._writer = parquet.ParquetWriter(self._part, pa.schema([*fields, ("score", pa.float64())]))
        return self

    def add(self, folder: StoredPath) -> None:
        """Append the files in `folder`."""
        from pyarrow import parquet

        for path in find_all(folder, "*.parquet"):
            with open_stored(path) as file:
                for batch in parquet.ParquetFile(file).iter_batches():
                    self._writer.write_batch(batch.cast(self._writer.schema))

    def __exit__(self, kind: object, *_: object) -> None:
        """Put it in its place, or remove it."""
        self._writer.close()
        if kind is None:
            self._part.replace(self._target)
        else:
            self._part.unlink()


def compare_versions(settings: Settings, name: str, other: str | None, choice: DayChoice) -> Diff:
    """Compare what the file of the detector `name` finds on history with what another version finds.

    `other` is a file, the draft of a version to come; or a version that ran here; None for the one that ran before.
    ConfigError if there is no such version, or it reads another source. And errors as for `try_out`.
    """
    source, (spec,) = declared(settings, [name])
    found = _other(settings, spec, other)
    before, after = (spec, found) if _is_file(other) else (found, spec)
    run = try_out(settings, source, [before, after], choice)
    by_day, changed = changes(*(trial.found for trial in run.trials))
    return Diff(
        detector=name,
        before=before.version,
        after=after.version,
        days=len(by_day),
        by_day=by_day,
        open=run.open,
        left_out=run.left_out,
        same=sum(one.same for one in by_day),
        changes=changed,
    )


def _is_file(other: str | None) -> bool:
    return other is not None and Path(other).suffix == ".py"


def _other(settings: Settings, spec: DetectorSpec, other: str | None) -> DetectorSpec:
    """Read the version to compare with: a file, a kept version, or by default the latest kept version but this."""
    if other is not None and _is_file(other):
        found = read_spec(Path(other))
    elif other is not None:
        found = kept_detector(settings, spec.name, other)
    else:
        earlier = [one for one in kept_versions(settings, detector_job(spec.name)) if one.version != spec.version]
        if not earlier:
            what = "no other version of it ran here; name a file: --against FILE"
            raise ConfigError.one(spec.name, what)
        found = kept_detector(settings, spec.name, max(earlier, key=lambda one: one.last_at).version)
    if found.sources != spec.sources:
        raise ConfigError.one(
            found.path,
            f"reads {', '.join(found.sources)}, and {spec.name} reads {', '.join(spec.sources)}",
            key="source",
        )
    if found.model is not None:
        catalog = read_catalog(settings.project)
        table = catalog.tables.get(found.model_table)
        if table is None or table.made_by != models_table(found, catalog.sources).made_by:
            what = "would be judged by models that another version has trained; to compare it, put it into detectors/"
            raise ConfigError.one(found.path, f'{what} under a name of its own, with stage="draft"', key="model")
    return found


def try_out(settings: Settings, source: Source, specs: Sequence[DetectorSpec], choice: DayChoice) -> TrialRun:
    """Run each of `specs` on the days of `choice` that all of them can be computed for.

    Raises:
        ConfigError: there is no such day, or a query is not one that runs, or not on days.
        TransientError: the catalogue of history, or Kafka for the current day, does not answer; a retry helps.
        TocsinError: the detector's code fails on these events, or there are more findings than can be handled; fewer
            days, or higher limits, help.
    """
    with _opened(settings, source, specs, choice) as opened:
        for chunk in opened.parts:
            for trial in opened.run.trials:
                began = time.monotonic()
                with blaming(trial.spec):
                    found = opened.days.findings(opened.spark, trial.spec, chunk, RUN_ID)
                trial.found |= found.by_day
                trial.events |= {day: opened.days.rows[day] for day in found.by_day}
                trial.cpu_seconds += found.cpu_seconds
                trial.seconds += time.monotonic() - began
    return opened.run


@contextlib.contextmanager
def _opened(settings: Settings, source: Source, specs: Sequence[DetectorSpec], choice: DayChoice) -> Iterator[_Opened]:
    """Run the block with a session, the days of `choice` that all of `specs` can run, and a folder for its files."""
    days = Days(settings, source)
    able, left_out = _chosen(settings, source, days, specs, choice)
    is_open = choice.wants_today and datetime.now(UTC).date() not in left_out
    if not able and not is_open:
        lost = [f"{day} {why}" for day, why in left_out.items()]
        why = "; ".join(lost) or "`tocsin history list` says what the days wait for"
        raise ConfigError.one(specs[0].name, f"no published day can run; {why}")
    job = evaluation_job(specs[0].name)
    run = TrialRun([DetectorTrial(spec) for spec in specs], left_out)
    try:
        with running_batch(settings, job) as spark, shared_scratch(spark, settings, job) as folder:
            parts = list(chunks(able, days.rows, ROWS_AT_ONCE, neighbours=True))
            if is_open:
                parts += _today(days.read_today(spark, folder), days, run)
            if not parts:
                raise ConfigError.one(specs[0].name, "; ".join(f"{day} {why}" for day, why in left_out.items()))
            yield _Opened(spark, days, parts, run, folder)
    finally:
        _leave_nothing(settings, job)


def _chosen(
    settings: Settings, source: Source, days: Days, specs: Sequence[DetectorSpec], choice: DayChoice
) -> tuple[list[date], dict[date, str]]:
    """Choose the published days that all of `specs` can run, and say why others that were asked for cannot."""
    no_table, today = without_table(settings), datetime.now(UTC).date()
    sealed = Sealed(days.versions, days.rows, why_not(settings, source), no_table)
    able = [day for day in days.versions if not any(obstacle(day, spec, sealed) for spec in specs)]
    asked = able[-choice.most :] or [*days.versions][-1:]
    if choice.first is not None or choice.last is not None:
        first = choice.first or min([*days.versions, choice.last or date.max])
        last = min(choice.last or max([*days.versions, first]), today - timedelta(days=1))
        asked = [first + timedelta(days=number) for number in range((last - first).days + 1)]
    lost = {
        day: next(filter(None, (obstacle(day, spec, sealed) for spec in specs))) for day in asked if day not in able
    }
    tables = {name for spec in specs for name in spec.tables}
    if choice.wants_today and (why := " and ".join(filter(None, (no_table(name, today) for name in sorted(tables))))):
        lost[today] = why
    return [day for day in asked if day in able], lost


def _today(today: OpenDay, days: Days, run: TrialRun) -> list[tuple[date, ...]]:
    """Take note of the current day in `run`; returns it if all trials can run it."""
    run.open = OpenPart(day=today.day, since=today.since, until=today.until)
    needed = {day for trial in run.trials for day in days.sealed_inputs(today.day, trial.spec)} - days.versions.keys()
    if needed:
        run.open = None
        seal = f"tocsin history seal --source {run.trials[0].spec.sources[0]}"
        run.left_out[today.day] = f"needs {', '.join(map(str, sorted(needed)))}, not published: {seal}"
    return [] if needed else [(today.day,)]


def _leave_nothing(settings: Settings, job: str) -> None:
    scratch = scratch_folder(settings, job)
    shutil.rmtree(scratch, ignore_errors=True)
    with contextlib.suppress(OSError):
        scratch.parent.rmdir()
        scratch.parent.parent.rmdir()
