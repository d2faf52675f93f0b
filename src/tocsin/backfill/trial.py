"""A detector over days of history, for nobody but who asks: nothing is judged, published or kept."""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import date

from tocsin.backfill.backfill_planning import chunks, made_of
from tocsin.backfill.spark.day_findings import ROWS_AT_ONCE, Days, Found
from tocsin.model.detector import DetectorSpec
from tocsin.model.errors import ConfigError
from tocsin.model.finding import Finding
from tocsin.model.names import backtest_job
from tocsin.model.source import Source
from tocsin.project.settings import Settings
from tocsin.sparkjob.session import running_batch, scratch_folder

RUN_ID = "backtest"


@dataclass
class Trial:
    """What one version of a detector finds.

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


def try_out(settings: Settings, source: Source, specs: Sequence[DetectorSpec], most_days: int) -> list[Trial]:
    """What each of `specs` finds on the latest `most_days` published days that all of them can be computed for.

    Raises:
        ConfigError: there is no such day, or a query is not one that runs, or not on days.
        TransientError: the catalogue of history does not answer; a retry helps.
        TocsinError: there are more findings than can be handled; fewer days, or higher limits, help.
    """
    days = Days(settings, source)
    able = [day for day in days.versions if all(made_of(day, spec, days.versions) for spec in specs)][-most_days:]
    if not able:
        what = "no day is published that it could be run on; `tocsin history list` shows what days wait for"
        raise ConfigError.one(specs[0].name, what)
    job = backtest_job(specs[0].name)
    try:
        with running_batch(settings, job) as spark:
            trials = [Trial(spec) for spec in specs]
            for chunk in chunks(able, days.rows, ROWS_AT_ONCE):
                for trial in trials:
                    began = time.monotonic()
                    _take(trial, days, days.findings(spark, trial.spec, chunk, RUN_ID))
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


def _take(trial: Trial, days: Days, found: Found) -> None:
    trial.found |= found.by_day
    trial.events |= {day: days.rows[day] for day in found.by_day}
    trial.cpu_seconds += found.cpu_seconds
