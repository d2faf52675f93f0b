"""Compare what the stream and the backfill of a detector found on one day, and give a reason for each difference."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, date, datetime

from tocsin.declare.catalog import Catalog, read_catalog
from tocsin.declare.model.errors import ConfigError, TransientError
from tocsin.declare.model.names import INDEXER, detector_job
from tocsin.declare.model.source import Source
from tocsin.declare.settings import Settings
from tocsin.history.backfill.backfill_ledger import Backfills, Published
from tocsin.history.backfill.parity.comparison import Difference, DifferenceReason, Streamed, compare
from tocsin.history.backfill.parity.parity_report import ParityReport, keep, summed
from tocsin.history.backfill.parity.reasons import Circumstances, HeldModel, Lack, explained, proved, unexplained
from tocsin.history.backfill.spark.recompute import Doubt, Identity, recompute, stream_lacks
from tocsin.history.day_rows import DayRows
from tocsin.history.day_status import published_days, why_not
from tocsin.history.day_versions import BrokenVersion, DayVersion
from tocsin.history.landing_ledger import LandingLedger, read_ledger
from tocsin.history.model_versions import model_versions
from tocsin.history.places import Places, begin, end
from tocsin.ingest.quarantine import Selection, list_quarantined
from tocsin.platform.code_versions import kept_versions
from tocsin.platform.heartbeat import read_beat
from tocsin.platform.kafka.reporter import read_reports

_MOST = 100_000
"""Look at this many quarantined records, the newest."""


def compare_day(
    settings: Settings, name: str, day: date | None, streamed: Callable[[date], Sequence[Streamed]]
) -> ParityReport:
    """Compare `day` of the detector `name`, the latest day with a backfill if None, and keep the report.

    Starts Spark only if a reason has to be proved by recomputing. `streamed` gives what the stream found on a day.

    Raises:
        ConfigError: the detector is not declared, or the day has no backfill that can be read; says what to do.
        TransientError: Kafka or the catalogue of history does not answer; a retry helps.
        LockHeld: another comparison of this detector recomputes; a retry helps once it has ended.
    """
    catalog = read_catalog(settings.project)
    catalog.detector(name)
    backfills = Backfills(settings, name)
    day, published = _backfilled(settings, catalog, name, day)
    comparison = compare(streamed(day), backfills.findings(day, published))
    differences: list[Difference] = list(comparison.differences)
    if differences:
        differences = explained(differences, _circumstances(settings, catalog, name, published))
    if unexplained(differences):
        differences = _prove(settings, catalog, name, published, differences)
    report = ParityReport(
        detector=name,
        day=day,
        run=published.run,
        version=published.made.version,
        compared_at=datetime.now(UTC),
        **summed(comparison, differences),
    )
    keep(settings.state, report)
    return report


def _backfilled(settings: Settings, catalog: Catalog, name: str, day: date | None) -> tuple[date, Published]:
    published, source = Backfills(settings, name).read().published, catalog.history_source(catalog.detector(name))
    day = max(published, default=None) if day is None else day
    if day is None:
        raise ConfigError.one(name, f"no day of {name} has been backfilled; run `tocsin backfill --detector {name}`")
    if day not in published:
        does = f"run `tocsin backfill --detector {name} --from {day} --to {day}`"
        what = does if day in published_days(settings, source) else f"it {why_not(settings, source)(day)}"
        raise ConfigError.one(name, f"{day} of {name} has not been backfilled: {what}")
    return day, published[day]


def _circumstances(settings: Settings, catalog: Catalog, name: str, published: Published) -> Circumstances:
    source = catalog.history_source(catalog.detector(name))
    places = Places.of(settings, source.name)
    history = lacks(read_ledger(places), source, inputs(settings, source, published))
    return circumstances(settings, catalog, name, published.made.version, history)


def circumstances(
    settings: Settings, catalog: Catalog, name: str, version: str, lacks: Iterable[Lack]
) -> Circumstances:
    """Gather what is known of the stream of `name`; `version` made the other side, which `lacks` events."""
    spec, ran = catalog.detector(name), kept_versions(settings, detector_job(name))
    return Circumstances(
        version=version,
        ran=ran,
        windowed=spec.window is not None,
        watermark=_watermark(settings, name),
        lacks=[*stream_lacks(settings, spec, ran), *lacks],
        models=_models(settings, catalog, name),
    )


def _models(settings: Settings, catalog: Catalog, name: str) -> list[HeldModel]:
    if catalog.detector(name).model is None:
        return []
    known = model_versions(settings, catalog.table(catalog.detector(name).model_table))
    return [HeldModel(one.text, one.since, one.until, one.version.made_at) for one in known]


def _watermark(settings: Settings, name: str) -> datetime | None:
    """Find up to where both the detector's job and the indexer have come; None if one of them does not say."""
    jobs = (detector_job(name), INDEXER)
    # Kafka may be away, or may have forgotten what a job reported that was paused long ago.
    reports = {job: beat.report for job in jobs if (beat := read_beat(settings.state, job)) is not None}
    with contextlib.suppress(TransientError):
        reports |= read_reports(settings)
    marks = [reports[job].watermark if job in reports else None for job in jobs]
    return None if None in marks else min(mark for mark in marks if mark is not None)


def _prove(
    settings: Settings, catalog: Catalog, name: str, published: Published, differences: Sequence[Difference]
) -> list[Difference]:
    spec, version = catalog.detector(name), published.made.version
    if spec.version != version:
        why = f"the backfill used version {version}, the detector is now {spec.version}: backfill the day again"
        return [
            one.because(DifferenceReason.UNEXPLAINED, why) if one.reason is DifferenceReason.UNEXPLAINED else one
            for one in differences
        ]
    source, left = catalog.history_source(spec), unexplained(differences)
    doubt = Doubt(
        spec=spec,
        source=source,
        days=inputs(settings, source, published),
        differences=left,
        quarantined=quarantined(settings, source, min(one.start for one in left)),
    )
    whole, trials = recompute(settings, doubt)
    return proved(differences, whole, trials)


def quarantined(settings: Settings, source: Source, since: datetime) -> list[Identity]:
    """List the identities of records quarantined at `since` or later, as far as quarantine still has them."""
    found = list_quarantined(settings, source, Selection(since=since - source.max_ahead, limit=_MOST))
    return [one.identity for one in found]


def inputs(settings: Settings, source: Source, published: Published) -> dict[date, DayVersion]:
    """Return the versions of the days that a backfill has read.

    ConfigError if one is gone or cannot be read; a retry helps once the day has been backfilled again.
    """
    rows = DayRows(settings, source.name)
    rows.prepare()
    try:
        return {day: rows.version(day, name) for day, name in published.made.inputs.items()}
    except BrokenVersion as error:
        what = f"the files that the backfill read are gone ({error}); backfill the day again"
        raise ConfigError.one(f"parity of {published.run_id}", what) from error


def lacks(ledger: LandingLedger, source: Source, read: dict[date, DayVersion]) -> Iterator[Lack]:
    """Events that the backfill did not have because they are not in the versions that it has `read`."""
    for partition, hole in ledger.holes():
        # Offsets that Kafka never gave to a consumer (aborted, compacted) the stream did not get either.
        if hole.removed:
            what = f"partition {partition} of Kafka's topic: {hole.sentence}"
            since = None if hole.after is None else hole.after - source.lateness
            until = None if hole.before is None else hole.before + source.max_ahead
            yield Lack(since, until, f"{what}, so history lacks them")
    for day, version in read.items():
        new = ledger.runs(day) - version.runs
        if new:
            what = f"more events landed for {day} after the version that the backfill read was sealed"
            yield Lack(begin(day), end(day), f"{what}; it will be sealed and backfilled again")
