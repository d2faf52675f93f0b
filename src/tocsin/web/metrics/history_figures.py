"""Figures from files: days of history and of backfills, parity, views."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime

from prometheus_client.core import Metric

from tocsin.declare.catalog import Catalog
from tocsin.declare.settings import Settings
from tocsin.history.backfill import backfill_status
from tocsin.history.backfill.parity.comparison import DifferenceReason
from tocsin.history.day_status import DayState, list_days
from tocsin.views.row_query import Freshness
from tocsin.views.view_summary import summarise
from tocsin.web.metrics.families import Sample, gauge, moments
from tocsin.web.parity_page import Comparisons


class DayFigures:
    """Reads the days of history and of backfills, and their comparison with the stream. For one thread."""

    def __init__(self, settings: Settings) -> None:
        self._settings, self._comparisons = settings, Comparisons(settings.state)

    def families(self, catalog: Catalog) -> Iterator[Metric]:
        """Read them.

        Raises:
            BrokenLedger: an entry of a ledger cannot be read.
            TransientError: the catalogue of history does not answer; a retry helps.
        """
        history: list[Sample] = []
        newest = []
        for name, source in catalog.sources.items():
            days = list_days(self._settings, source)
            # A day is refused also while an earlier version of it counts.
            counts = Counter(DayState.REFUSED if day.refused else day.state for day in days)
            history += [((name, str(state)), counts[state]) for state in DayState]
            published = [day.day for day in days if day.version is not None]
            newest += [((name,), datetime.combine(max(published), datetime.min.time(), UTC))] if published else []
        yield gauge("tocsin_history_dates", "Days of each source, by their state", ("source", "state"), history)
        text = "Start of the newest day that is published"
        yield moments("tocsin_history_newest_day_timestamp_seconds", text, ("source",), newest)
        yield gauge("tocsin_backfill_dates", "Days of each detector, by their state", ("detector", "state"),
                    self._backfills(catalog))  # fmt: skip
        yield from self._parity(catalog)

    def _backfills(self, catalog: Catalog) -> Iterator[Sample]:
        by_source: dict[str, list[str]] = {}
        for name, spec in catalog.detectors.items():
            if spec.stage.runs and not spec.stream_only:  # others have no backfills
                by_source.setdefault(spec.sources[0], []).append(name)
        for names in by_source.values():
            days = backfill_status.list_days(self._settings, names, catalog=catalog)
            counts = Counter((day.detector, day.state) for day in days)
            yield from (
                ((name, str(state)), counts[name, state]) for name in names for state in backfill_status.BackfillState
            )

    def _parity(self, catalog: Catalog) -> Iterator[Metric]:
        results: list[Sample] = []
        compared = []
        for name in catalog.detectors:
            if reports := self._comparisons.of(name).reports:
                counts = Counter({"same": sum(report.same for report in reports)})
                for report in reports:
                    counts.update(report.reasons)
                results += [((name, result), counts[result]) for result in ("same", *map(str, DifferenceReason))]
                compared.append(((name,), max(report.compared_at for report in reports)))
        text = "Findings of the days compared last: the same on the stream and in the backfill, or why not"
        yield gauge("tocsin_parity_findings", text, ("detector", "result"), results)
        text = "When a day was compared last"
        yield moments("tocsin_parity_compared_timestamp_seconds", text, ("detector",), compared)


def view_families(settings: Settings, catalog: Catalog) -> Iterator[Metric]:
    """Read how fresh each view that runs is, if it has rows; raises TransientError if its file cannot be read now."""
    fresh: dict[tuple[str], Freshness] = {}
    for name, spec in catalog.views.items():
        freshness = summarise(settings, spec).freshness if spec.stage.runs else None
        fresh |= {} if freshness is None else {(name,): freshness}
    seconds = [(key, freshness.lag_seconds) for key, freshness in fresh.items()]
    records = [(key, freshness.lag_records) for key, freshness in fresh.items() if freshness.lag_records is not None]
    yield gauge("tocsin_view_lag_seconds", "Age of the oldest record that is not in its rows", ("view",), seconds)
    yield gauge("tocsin_view_lag_records", "Records that are not in its rows yet", ("view",), records)
    rebuilding = [(key, float(freshness.rebuilding)) for key, freshness in fresh.items()]
    yield gauge("tocsin_view_rebuilding", "Whether another build is filling", ("view",), rebuilding)
    closed = [(key, freshness.watermark) for key, freshness in fresh.items() if freshness.watermark is not None]
    yield moments("tocsin_view_watermark_timestamp_seconds", "Windows before it are final", ("view",), closed)
