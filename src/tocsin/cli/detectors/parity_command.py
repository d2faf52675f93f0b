"""`tocsin parity`: whether the stream of a detector and its backfill have found the same on a day, and why not."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from tocsin.cli import options
from tocsin.cli.detectors.findings_command import named
from tocsin.cli.output import as_json, counted, line, number, table, utc
from tocsin.model.errors import ConfigError

if TYPE_CHECKING:
    from tocsin.alerts.store.alert_rows import StoredFinding
    from tocsin.backfill.backfill_ledger import Published
    from tocsin.backfill.parity.comparison import Difference, Streamed, Told
    from tocsin.backfill.parity.parity_report import ParityReport
    from tocsin.backfill.parity.reasons import Circumstances
    from tocsin.project.catalog import Catalog
    from tocsin.project.settings import Settings

_Detector = Annotated[str, typer.Option("--detector", help="Its name.")]
_Day = Annotated[
    datetime | None,
    typer.Option(
        "--day", formats=["%Y-%m-%d"], metavar="DAY", help="UTC; the latest that is backfilled when left out."
    ),
]

_MOST = 100_000
"""So many quarantined records are looked at, the newest."""


def parity(detector: _Detector, day: _Day = None, json: options.Json = False) -> None:
    """Compare what the stream and the backfill of a detector have found on a day, with a reason for each difference.

    Takes a Spark session where a reason has to be proved. Exit code 1 when a difference is left unexplained.
    """
    from tocsin.backfill.parity.parity_report import keep
    from tocsin.project.settings import load_settings
    from tocsin.runtime.detector_versions import catalog_in_force

    settings = load_settings()
    report = _compared(settings, catalog_in_force(settings), detector, None if day is None else day.date())
    keep(settings.state, report)
    if json:
        as_json(report)
    else:
        _show(report)
    if report.unexplained:
        raise typer.Exit(1)


def _compared(settings: Settings, catalog: Catalog, name: str, day: date | None) -> ParityReport:
    from tocsin.backfill.backfill_ledger import Backfills
    from tocsin.backfill.parity.comparison import compare
    from tocsin.backfill.parity.parity_report import ParityReport, summed
    from tocsin.backfill.parity.reasons import explained, unexplained

    catalog.detector(name)
    backfills = Backfills(settings, name)
    day, published = _chosen(settings, catalog, name, day)
    comparison = compare(_streamed(settings, name, day), backfills.findings(day, published))
    differences: list[Difference] = list(comparison.differences)
    if differences:
        differences = explained(differences, _circumstances(settings, catalog, name, published))
    if unexplained(differences):
        differences = _proved(settings, catalog, name, published, differences)
    return ParityReport(
        detector=name,
        day=day,
        run=published.run,
        version=published.made.version,
        compared_at=datetime.now(UTC),
        **summed(comparison, differences),
    )


def _chosen(settings: Settings, catalog: Catalog, name: str, day: date | None) -> tuple[date, Published]:
    """The day to compare, the latest that is backfilled when None, and what its backfill has published."""
    from tocsin.backfill.backfill_ledger import Backfills
    from tocsin.history.day_status import published_days, why_not

    known, source = Backfills(settings, name).read().published, catalog.source(catalog.detector(name).source)
    day = max(known, default=None) if day is None else day
    if day is None:
        raise ConfigError.one(
            name, f"no day of {name} has been backfilled; `tocsin backfill --detector {name}` does it"
        )
    if day not in known:
        does = f"`tocsin backfill --detector {name} --from {day} --to {day}` does it"
        what = does if day in published_days(settings, source) else f"it {why_not(settings, source)(day)}"
        raise ConfigError.one(name, f"{day} of {name} has not been backfilled: {what}")
    return day, known[day]


def _streamed(settings: Settings, name: str, day: date) -> list[Streamed]:
    """What the stream said last of each of its findings of `day`, superseded or replaced ones included."""
    from tocsin.alerts.store.queries import findings_of_day, open_store

    database = open_store(settings)
    try:
        found = [_as_streamed(one) for one in findings_of_day(database, name, day)]
    finally:
        database.close()
    return [one for one in found if one is not None]


def _as_streamed(stored: StoredFinding) -> Streamed | None:
    from tocsin.backfill.parity.comparison import Streamed, Told
    from tocsin.model.finding import Origin

    if stored.finding.origin is not Origin.BACKFILL:
        return Streamed(stored.finding, Told.of(stored.finding))
    if stored.stream is None:
        return None
    return Streamed(stored.finding, Told.model_validate(stored.stream, from_attributes=True))


def _circumstances(settings: Settings, catalog: Catalog, name: str, published: Published) -> Circumstances:
    from tocsin.backfill.parity.evidence import inputs, lacks
    from tocsin.backfill.parity.reasons import Circumstances
    from tocsin.backfill.spark.recompute import stream_lacks
    from tocsin.history.land.landing_ledger import read_ledger
    from tocsin.history.places import Places
    from tocsin.runtime.detector_versions import kept_versions

    spec, ran = catalog.detector(name), kept_versions(settings, name)
    source = catalog.source(spec.source)
    places = Places.of(settings, source.name)
    history = lacks(read_ledger(places), source, inputs(places, published))
    return Circumstances(
        version=published.made.version,
        ran=ran,
        windowed=spec.window is not None,
        watermark=_watermark(settings, name),
        lacks=[*stream_lacks(settings, spec, ran), *history],
    )


def _watermark(settings: Settings, name: str) -> datetime | None:
    """Up to where the detector's job and the indexer have come; None when one of them does not say."""
    from tocsin.cli.reported_jobs import reports
    from tocsin.model.names import INDEXER, detector_job
    from tocsin.runtime.heartbeat import read_beat

    jobs = (detector_job(name), INDEXER)
    told, _ = reports(settings, jobs)
    # Kafka may have forgotten what a job said that was paused long ago.
    beats = {job: beat.report for job in jobs if (beat := read_beat(settings.state, job)) is not None}
    known = beats | told
    marks = [known[job].watermark for job in jobs if job in known]
    there = [mark for mark in marks if mark is not None]
    return min(there) if len(there) == len(jobs) else None


def _proved(
    settings: Settings, catalog: Catalog, name: str, published: Published, differences: Sequence[Difference]
) -> list[Difference]:
    """The differences with the reasons that only recomputing can prove."""
    from tocsin.backfill.parity.comparison import Reason
    from tocsin.backfill.parity.evidence import inputs
    from tocsin.backfill.parity.reasons import proved, unexplained
    from tocsin.backfill.spark.recompute import Doubt, recompute
    from tocsin.history.places import Places

    spec = catalog.detector(name)
    if spec.version != published.made.version:
        why = f"the backfill is of version {published.made.version}, now it is {spec.version}: backfill the day again"
        return [
            one.because(Reason.UNEXPLAINED, why) if one.reason is Reason.UNEXPLAINED else one for one in differences
        ]
    source, left = catalog.source(spec.source), unexplained(differences)
    doubt = Doubt(
        spec=spec,
        source=source,
        days=inputs(Places.of(settings, source.name), published),
        differences=left,
        quarantined=_quarantined(settings, catalog, spec.source, min(one.start for one in left)),
    )
    whole, trials = recompute(settings, doubt)
    return proved(differences, whole, trials)


def _quarantined(settings: Settings, catalog: Catalog, source: str, since: datetime) -> list[tuple[str, int, int]]:
    """Identities of raw records that were quarantined at `since` or later, as far as quarantine still has them."""
    from tocsin.ingest.quarantine import Selection, list_quarantined

    declared = catalog.source(source)
    wanted = Selection(since=since - declared.max_ahead, limit=_MOST)
    found = list_quarantined(settings, declared, wanted)
    return [(one.origin.topic, one.origin.partition, one.origin.offset) for one in found]


def _show(report: ParityReport) -> None:
    head = f"{report.detector} {report.day}: {report.same:,} findings agree"
    if not report.differing:
        line(f"{head}; stream and backfill have found the same", style="green")
        return
    reasons = ", ".join(f"{count:,} {reason}" for reason, count in report.reasons.items())
    line(f"{head}, {report.differing:,} differ: {reasons}", style="red" if report.unexplained else "yellow")
    columns = ("WINDOW", "ENTITY", "WHERE", "STREAM", "BATCH", "REASON", "WHY")
    table(columns, map(_row, report.differences), empty="")
    if report.differing > len(report.differences):
        line(f"and {counted(report.differing - len(report.differences), 'more difference')}")


def _row(one: Difference) -> tuple[object, ...]:
    where = (utc(one.start), named(one.entity), one.side)
    return (*where, _said(one.stream), _said(one.batch), one.reason, one.why)


def _said(told: Told | None) -> str | None:
    return None if told is None else f"{told.level} {'at least ' if told.at_least else ''}{number(told.score)}"
