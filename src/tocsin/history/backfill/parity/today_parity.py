"""Compare what the stream of a detector has found today with a run over today's events, as far as windows are closed.

Today has no backfill yet, with which `day_parity` compares the other days. The report is not kept.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, date, datetime

from tocsin.declare.catalog import read_catalog
from tocsin.declare.model.detector import DetectorSpec
from tocsin.declare.model.errors import ConfigError
from tocsin.declare.model.finding import Finding
from tocsin.declare.model.names import parity_job
from tocsin.declare.settings import Settings
from tocsin.history.backfill.parity.comparison import Difference, Streamed, compare
from tocsin.history.backfill.parity.day_parity import circumstances, quarantined
from tocsin.history.backfill.parity.parity_report import ParityReport, summed
from tocsin.history.backfill.parity.reasons import explained, proved, unexplained
from tocsin.history.backfill.spark.day_findings import Days
from tocsin.history.backfill.spark.recompute import Doubt, recomputed
from tocsin.history.backfill.trial_report import OpenPart
from tocsin.history.spark.open_day import OpenDay
from tocsin.history.spark.shared_scratch import shared_scratch
from tocsin.platform.lock import try_lead
from tocsin.spark.batch_session import running_batch


def compare_today(settings: Settings, name: str, streamed: Callable[[date], Sequence[Streamed]]) -> ParityReport:
    """Compare the windows of the current day that are closed; see `compare_day`.

    Raises:
        ConfigError: the detector is not declared, does not run on days, or needs a day that is not published.
        TransientError: Kafka or the catalogue of history does not answer; a retry helps.
        LockHeld: another comparison of this detector recomputes; a retry helps once it has ended.
    """
    catalog = read_catalog(settings.project)
    spec = catalog.detector(name)
    days, job = Days(settings, catalog.history_source(spec)), parity_job(name)
    with (
        try_lead(settings, settings.checkpoint(job) / "lock"),
        running_batch(settings, job) as spark,
        shared_scratch(spark, settings, job) as folder,
    ):
        part = _part(days.read_today(spark, folder), days, spec)
        batch = days.findings(spark, spec, [part.day], "parity").by_day[part.day]
        comparison = compare([one for one in streamed(part.day) if _is_in(one.finding, part)], batch)
        differences: list[Difference] = list(comparison.differences)
        if differences:
            known = circumstances(settings, catalog, name, spec.version, ())
            # Without windows, too, the stream may not have come as far as what was read of today.
            differences = explained(differences, replace(known, windowed=True))
        if left := unexplained(differences):
            doubt = _doubt(settings, days, spec, left)
            doubt = replace(doubt, events=days.events(spark, spec, [part.day]))
            differences = proved(differences, *recomputed(spark, settings, doubt))
    return ParityReport(
        detector=name,
        day=part.day,
        run="",
        version=spec.version,
        compared_at=datetime.now(UTC),
        open=part,
        **summed(comparison, differences),
    )


def _part(today: OpenDay, days: Days, spec: DetectorSpec) -> OpenPart:
    if lacking := [day for day in days.sealed_inputs(today.day, spec) if day not in days.versions]:
        seal = f"run: tocsin history seal --source {spec.sources[0]}"
        what = f"cannot be compared: it needs {lacking[0]}, which is not published; {seal}"
        raise ConfigError.one(f"{today.day} of {spec.name}", what)
    return OpenPart(day=today.day, since=today.since, until=today.until)


def _doubt(settings: Settings, days: Days, spec: DetectorSpec, differences: Sequence[Difference]) -> Doubt:
    assert days.open is not None
    return Doubt(
        spec=spec,
        source=days.source,
        days=days.read_of([days.open.day], spec),
        differences=differences,
        quarantined=quarantined(settings, days.source, min(one.start for one in differences)),
    )


def _is_in(finding: Finding, part: OpenPart) -> bool:
    if finding.window_end is None:
        return part.since <= finding.moment < part.until
    return part.since <= finding.moment and finding.window_end <= part.until
