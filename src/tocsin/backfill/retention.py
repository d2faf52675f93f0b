"""Retention of what is kept beside history.

That is verdicts on its days, what backfills have published for them, and how that compares with the stream.
"""

from __future__ import annotations

from datetime import date, datetime, timedelta

import structlog

from tocsin.backfill.ledger import Backfills, folder
from tocsin.catalog import Catalog
from tocsin.history.planning import oldest_kept
from tocsin.lock import LockHeld, hold
from tocsin.names import backfill_job
from tocsin.parity.report import forget
from tocsin.quality.drift import WEEKS
from tocsin.quality.page import index_page
from tocsin.quality.records import Records, detector_of, subject_of
from tocsin.settings import Settings
from tocsin.source import Source

log = structlog.get_logger()


def tidy_beside(settings: Settings, source: Source, catalog: Catalog, now: datetime) -> None:
    """Remove what is older than the history of `source`; of detectors that do not run, than any source's in `catalog`.

    Verdicts on events stay for eight weeks more, because drift in the oldest day is seen beside the days before it.
    Only for the holder of the sealing lock of `source`; `now` is UTC. What a backfill works on, and what cannot be
    removed now, is left to the next time.
    """
    records, kept_from = Records(settings.state), _kept_from(source, now)
    longest = min([kept_from, *(_kept_from(one, now) for one in catalog.sources.values())])
    before = {spec.name: kept_from for spec in catalog.detectors_of(source.name)}
    before |= dict.fromkeys(_idle(settings, catalog, records), longest)
    try:
        records.forget(source.name, kept_from - timedelta(weeks=WEEKS))
        for detector, day in before.items():
            _tidy(settings, records, detector, day)
        records.write_index(index_page(records))
    except OSError as error:
        log.warning("what is old cannot be removed now", error=str(error))


def _tidy(settings: Settings, records: Records, detector: str, before: date) -> None:
    try:
        with hold(settings.checkpoint(backfill_job(detector)) / "lock"):
            records.forget(subject_of(detector), before)
            Backfills(settings, detector).forget(before)
            forget(settings.state, detector, before)
    except LockHeld:
        log.info("a backfill runs; what is old is removed the next time", detector=detector)


def _kept_from(source: Source, now: datetime) -> date:
    return oldest_kept(now, timedelta(days=source.history_days)).date()


def _idle(settings: Settings, catalog: Catalog, records: Records) -> set[str]:
    """Detectors of which something is kept and that do not run: deleted, retired, or a draft again.

    A file that cannot be read says nothing about its detector.
    """
    judged = {name for subject in records.subjects() if (name := detector_of(subject)) is not None}
    published = {path.name for path in folder(settings).glob("*") if path.is_dir()}
    running = {spec.name for spec in catalog.detectors.values() if spec.stage.runs}
    broken = {name for name in judged | published if f"detectors/{name}" in catalog.broken}
    return (judged | published) - running - broken
