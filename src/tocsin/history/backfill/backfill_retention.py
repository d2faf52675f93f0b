"""Retention of what is kept beside history: verdicts, backfills, comparisons, and what deleted detectors left."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta

import structlog

from tocsin.declare.catalog import Catalog, read_catalog
from tocsin.declare.model.errors import TransientError
from tocsin.declare.model.names import backfill_job, sealing_job
from tocsin.declare.model.source import Source
from tocsin.declare.settings import Settings
from tocsin.history.backfill.backfill_ledger import Backfills, Made, Published, folder
from tocsin.history.backfill.deleted_detectors import forget_deleted
from tocsin.history.backfill.parity.parity_report import forget
from tocsin.history.day_status import kept_from
from tocsin.history.verdict_index import write_index
from tocsin.job import Batch
from tocsin.platform.lock import LockHeld, try_lead
from tocsin.quality.data_drift import WEEKS
from tocsin.quality.verdict_files import Records, detector_of, subject_of

log = structlog.get_logger()


def run_seal(batch: Batch) -> int:
    """Seal the days of `batch`, then tidy up; returns the `ExitCode` of the worst day."""
    from tocsin.history import sealing  # noqa: PLC0415 - what else is here needs no Spark

    return sealing.run(batch, tidy_after_sealing)


def tidy_after_sealing(settings: Settings, source: Source) -> None:
    """Remove what is older than the history of `source` (see `tidy_beside`), unless a sealing runs: it will."""
    try:
        with try_lead(settings, settings.checkpoint(sealing_job(source.name)) / "lock"):
            tidy_beside(settings, source, read_catalog(settings.project), datetime.now(UTC))
    except (LockHeld, TransientError) as error:
        log.info("clean-up deferred", source=source.name, reason=str(error))


def tidy_beside(settings: Settings, source: Source, catalog: Catalog, now: datetime) -> None:
    """Remove what is older than the history of `source`; of detectors that do not run, than any source's in `catalog`.

    Verdicts on events stay for eight weeks more, because drift in the oldest day is seen beside the days before it.
    Only for the holder of the sealing lock of `source`; `now` is UTC. What a backfill works on, and what cannot be
    removed now, is left to the next time.
    """
    records, first = Records(settings.state), kept_from(settings, source, now)
    longest = min([first, *(kept_from(settings, one, now) for one in catalog.sources.values())])
    before = {spec.name: first for spec in catalog.detectors_of(source.name)}
    before |= dict.fromkeys(_idle(settings, catalog, records), longest)
    try:
        records.forget(source.name, first - timedelta(weeks=WEEKS))
        for detector, day in before.items():
            _tidy(settings, records, detector, day)
        forget_deleted(settings, catalog, now.date())
        write_index(settings)
    except (OSError, TransientError) as error:
        log.warning("clean-up failed", error=str(error))


def retract_days(settings: Settings, source: Source, catalog: Catalog, days: Sequence[date]) -> None:
    """Publish that detectors of `source` found nothing on `days`, which are no longer history; they run once they are.

    A retry helps after each error: LockHeld if a backfill of one of the detectors runs, OSError if the disk is full or
    cannot be written.
    """
    for spec in [one for one in catalog.detectors.values() if source.name in one.sources]:
        backfills = Backfills(settings, spec.name)
        known = backfills.read().published
        if not (own := [day for day in days if day in known]):
            continue
        with try_lead(settings, settings.checkpoint(backfill_job(spec.name)) / "lock"):
            for day in own:
                made = Made(version=known[day].made.version, inputs={})
                empty = Published(
                    run=backfills.next_run(day), run_id="withdrawn", made=made, at=datetime.now(UTC), severity="pass"
                )
                backfills.publish(day, [], empty)


def _tidy(settings: Settings, records: Records, detector: str, before: date) -> None:
    try:
        with try_lead(settings, settings.checkpoint(backfill_job(detector)) / "lock"):
            records.forget(subject_of(detector), before)
            Backfills(settings, detector).forget(before)
            forget(settings.state, detector, before)
    except (LockHeld, TransientError) as error:
        log.info("clean-up deferred", detector=detector, reason=str(error))


def _idle(settings: Settings, catalog: Catalog, records: Records) -> set[str]:
    """List detectors of which something is kept and that do not run: deleted, retired, or a draft again."""
    judged = {name for subject in records.subjects() if (name := detector_of(subject)) is not None}
    published = {path.name for path in folder(settings).glob("*") if path.is_dir()}
    running = {spec.name for spec in catalog.detectors.values() if spec.stage.runs}
    # a file that cannot be read says nothing about its detector
    broken = {name for name in judged | published if f"detectors/{name}" in catalog.broken}
    return (judged | published) - running - broken
