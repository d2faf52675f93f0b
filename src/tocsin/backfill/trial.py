"""Run a detector on days of history for the caller alone: judge, publish and keep nothing."""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import date, timedelta
from pathlib import Path

from tocsin.backfill.backfill_planning import chunks, made_of
from tocsin.backfill.backfill_status import declared
from tocsin.backfill.spark.day_findings import ROWS_AT_ONCE, Days
from tocsin.backfill.trial_report import Backtest, Diff, changes, day_counts, top_entities
from tocsin.model.detector import DetectorSpec
from tocsin.model.errors import ConfigError
from tocsin.model.finding import Finding
from tocsin.model.names import backtest_job
from tocsin.model.source import Source
from tocsin.project.declaration import read_spec
from tocsin.project.settings import Settings
from tocsin.runtime.detector_versions import kept_spec, kept_versions
from tocsin.sparkjob.session import running_batch, scratch_folder

RUN_ID = "backtest"


@dataclass
class DetectorTrial:
    """The findings of one version of a detector.

    Attributes:
        spec: of the detector.
        found: the findings of each day.
        events: of each day.
        cpu_seconds, seconds: that it took, without the start of Spark.
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


def backtest(
    settings: Settings, name: str, most_days: int, count_alerts: Callable[[list[Finding], timedelta], dict[date, int]]
) -> Backtest:
    """Run the detector `name` on history; errors as for `try_out`.

    `count_alerts` counts, by day, the alerts that findings would open if alerts last so long.
    """
    source, (spec,) = declared(settings, [name])
    (trial,) = try_out(settings, source, [spec], most_days)
    return Backtest(
        detector=name,
        version=spec.version,
        days=day_counts(trial.found, trial.events, count_alerts(trial.findings, spec.dedup_period)),
        top=top_entities(trial.findings),
        cpu_seconds=round(trial.cpu_seconds, 2),
        seconds=round(trial.seconds, 2),
    )


def compare_versions(settings: Settings, name: str, other: str | None, most_days: int) -> Diff:
    """Compare what the file of the detector `name` finds on history with what another version finds.

    Args:
        settings: of the installation.
        name: of the detector.
        other: a file, or a version that ran here; None for the version that ran before.
        most_days: run on so many days, the latest that are published.

    Raises:
        ConfigError: there is no such version, or it reads another source. And errors as for `try_out`.
    """
    source, (spec,) = declared(settings, [name])
    before = _other(settings, spec, other)
    old, new = try_out(settings, source, [before, spec], most_days)
    same, found = changes(old.findings, new.findings)
    return Diff(detector=name, before=before.version, after=spec.version, days=len(new.found), same=same, changes=found)


def _other(settings: Settings, spec: DetectorSpec, other: str | None) -> DetectorSpec:
    """Read the version to compare with: a file, a kept version, or by default the latest kept version but this."""
    if other is not None and Path(other).suffix == ".py":
        found = read_spec(Path(other))
    elif other is not None:
        found = kept_spec(settings, spec.name, other)
    else:
        earlier = [one for one in kept_versions(settings, spec.name) if one.version != spec.version]
        if not earlier:
            what = "no other version of it ran here; name a file: --with FILE"
            raise ConfigError.one(spec.name, what)
        found = kept_spec(settings, spec.name, max(earlier, key=lambda one: one.last_at).version)
    if found.source != spec.source:
        raise ConfigError.one(found.path, f"reads {found.source}, and {spec.name} reads {spec.source}", key="source")
    return found


def try_out(settings: Settings, source: Source, specs: Sequence[DetectorSpec], most_days: int) -> list[DetectorTrial]:
    """Run each of `specs` on the latest `most_days` published days that all of them can be computed for.

    Raises:
        ConfigError: there is no such day, or a query is not one that runs, or not on days.
        TransientError: the catalogue of history does not answer; a retry helps.
        TocsinError: there are more findings than can be handled; fewer days, or higher limits, help.
    """
    days = Days(settings, source)
    able = [day for day in days.versions if all(made_of(day, spec, days.versions) for spec in specs)][-most_days:]
    if not able:
        what = "no published day can run; `tocsin history list` says what the days wait for"
        raise ConfigError.one(specs[0].name, what)
    job = backtest_job(specs[0].name)
    try:
        with running_batch(settings, job) as spark:
            trials = [DetectorTrial(spec) for spec in specs]
            for chunk in chunks(able, days.rows, ROWS_AT_ONCE):
                for trial in trials:
                    began = time.monotonic()
                    found = days.findings(spark, trial.spec, chunk, RUN_ID)
                    trial.found |= found.by_day
                    trial.events |= {day: days.rows[day] for day in found.by_day}
                    trial.cpu_seconds += found.cpu_seconds
                    trial.seconds += time.monotonic() - began
    finally:
        _leave_nothing(settings, job)
    return trials


def _leave_nothing(settings: Settings, job: str) -> None:
    """Remove the scratch of this process, and the folders around it unless another trial of the detector uses them."""
    scratch = scratch_folder(settings, job)
    shutil.rmtree(scratch, ignore_errors=True)
    with contextlib.suppress(OSError):
        scratch.parent.rmdir()
        scratch.parent.parent.rmdir()
