"""Bring into the alerts DB what backfills have published and it does not hold.

The DB is compared with the ledgers, so a new one is filled again and nothing is lost when the indexer stops anywhere.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Generator, Iterator
from datetime import UTC, date, datetime

import structlog
from sqlalchemy import exc

from tocsin.alerts import finding_merging
from tocsin.alerts.backfilled import published_day
from tocsin.alerts.backfilled.published_day import BackfilledDay, StoredDays, UnusableDay
from tocsin.alerts.finding_merging import StoredFinding
from tocsin.alerts.recording import Recorded
from tocsin.alerts.store.database import Database
from tocsin.alerts.store.queries import FindingFilter
from tocsin.declare.model.errors import TransientError
from tocsin.declare.model.finding import Finding
from tocsin.declare.settings import Settings
from tocsin.history.backfill.backfill_ledger import Backfills, BrokenFindings, Published, backfilled

_LOOK_SECONDS = 1.0
_TROUBLE_SECONDS = 5.0
_log = structlog.get_logger()

_ENDED = object()

_Due = tuple[date, str, Published]
"""Day, detector, and what is published; sorts by day."""


class FollowedBackfills:
    """Brings published days into the alerts DB, one at a time. For one thread."""

    def __init__(
        self,
        settings: Settings,
        database: Database,
        days: StoredDays,
        apply: Callable[[BackfilledDay], Generator[None, None, Recorded]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Follow the ledgers of `settings`; `apply` stores a day in `database`, `days` settles one that was left."""
        self._settings, self._database, self._clock = settings, database, clock
        self._days, self._apply = days, apply
        self._steps: Iterator[None] = days.settle()
        self._seen: dict[str, tuple[int, int, int]] = {}
        self._due: list[_Due] = []
        self._unusable: set[tuple[str, date, str]] = set()
        self._rest_until = 0.0
        self._trouble = ""

    def step(self) -> bool:
        """Bring one day that is due into the DB, or a part of a large one, the newest first; True when more is due now.

        Trouble with disk or DB is logged once and tried again after some seconds. A day that cannot be used is logged
        once and left out until it is published anew. Neither raises. ConfigError if the file of the DB is no alerts DB.
        """
        if self._clock() < self._rest_until:
            return False
        try:
            if self._advance():
                return True
            if not self._due:
                self._look()
            if not self._due:
                self._rest_until = self._clock() + _LOOK_SECONDS
                return False
            self._steps = self._bring(*self._due.pop())
            if self._advance():
                return True
        except (TransientError, OSError) as error:
            self._rest(str(error))
            return False
        if self._trouble:
            _log.info("backfills resumed", after=self._trouble)
            self._trouble = ""
        return bool(self._due)

    def _advance(self) -> bool:
        return next(self._steps, _ENDED) is not _ENDED

    def _look(self) -> None:
        for detector in backfilled(self._settings):
            ledger = Backfills(self._settings, detector)
            status = ledger.file.stat()
            stamp = (status.st_mtime_ns, status.st_size, status.st_ino)
            if self._seen.get(detector) == stamp:
                continue
            for day, published in _missing(ledger, self._database, detector):
                if (detector, day, published.run) not in self._unusable:
                    self._due.append((day, detector, published))
            self._seen[detector] = stamp
        self._due.sort(key=lambda due: due[:2])

    def _bring(self, day: date, detector: str, published: Published) -> Iterator[None]:
        ledger = Backfills(self._settings, detector)
        try:
            found = published_day.read_day(detector, day, published, list(ledger.findings(day, published)))
            done = yield from self._apply(found)
        except BrokenFindings as error:
            # Published anew meanwhile: its file has changed, and so has the ledger's, at which the next look looks.
            if ledger.read().published.get(day) == published:
                self._leave_out(detector, day, published, error)
        except (UnusableDay, exc.StatementError, ValueError, OverflowError) as error:
            self._leave_out(detector, day, published, error)
        else:
            counts = {"findings": len(found.findings), "new": done.findings, "superseded": done.superseded}
            _log.info("backfilled day stored", detector=detector, day=str(day), **counts, alerts=done.alerts)

    def _leave_out(self, detector: str, day: date, published: Published, error: Exception) -> None:
        self._unusable.add((detector, day, published.run))
        _log.error(
            "findings of a backfilled day unusable, day unchanged",
            detector=detector, day=str(day), error=str(error)[:500],
        )  # fmt: skip

    def _rest(self, trouble: str) -> None:
        if trouble != self._trouble:
            _log.warning("backfills waiting", reason=trouble)
        self._trouble = trouble
        # How far the day had come is in the DB: what is shown is merged, anything else is due again.
        self._steps = self._days.settle()
        self._due.clear()
        self._seen.clear()
        self._rest_until = self._clock() + _TROUBLE_SECONDS


def list_waiting(settings: Settings, database: Database, wanted: FindingFilter) -> list[StoredFinding]:
    """List findings of readable days that are published and not in the DB yet, the newest window first.

    Errors as for `Database.is_ready`.
    """
    found = [finding for finding in _waiting(settings, database) if _is_wanted(finding, wanted)]
    found.sort(key=lambda finding: (finding.moment, finding.finding_id), reverse=True)
    return [finding_merging.first(finding, None, None, datetime.now(UTC)) for finding in found[: wanted.limit]]


def _waiting(settings: Settings, database: Database) -> Iterator[Finding]:
    for detector in backfilled(settings):
        ledger = Backfills(settings, detector)
        for day, published in _missing(ledger, database, detector):
            with contextlib.suppress(BrokenFindings, UnusableDay):
                yield from published_day.read_day(
                    detector, day, published, list(ledger.findings(day, published))
                ).findings


def _missing(ledger: Backfills, database: Database, detector: str) -> Iterator[tuple[date, Published]]:
    applied: dict[date, str] = {}
    if database.is_ready():
        with database.read() as connection:
            applied = published_day.applied_runs(connection, detector)
    for day, published in ledger.read().published.items():
        if applied.get(day) != published.run:
            yield day, published


def _is_wanted(finding: Finding, wanted: FindingFilter) -> bool:
    return (
        wanted.detector in (None, finding.detector)
        and (wanted.entity is None or wanted.entity in finding.entity.values())
        and (wanted.since is None or finding.moment >= wanted.since)
        and wanted.level in (None, finding.level)
    )
