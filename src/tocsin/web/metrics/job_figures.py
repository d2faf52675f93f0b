"""Figures of jobs, from what `tocsin status` shows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from tocsin.declare.catalog import Catalog
from tocsin.declare.model.job_report import SILENT_SECONDS, TOPICS_RECREATED, JobState
from tocsin.declare.model.names import JobName
from tocsin.declare.settings import Settings
from tocsin.history.backfill import backfill_status
from tocsin.history.backfill.parity.comparison import DifferenceReason
from tocsin.history.day_status import DayState, list_days
from tocsin.supervise.job_status import JobStatus, Severity
from tocsin.views.row_query import Freshness
from tocsin.views.view_summary import summarise
from tocsin.web.parity_page import Comparisons

_JOB = ("job",)
_ENDED = (JobState.STOPPED, JobState.FAILED)
_GAUGES: dict[str, tuple[str, Callable[[JobStatus], float]]] = {
    "tocsin_job_lag_records": ("Unread records up to the end of its topics", lambda job: job.lag_records),
    "tocsin_job_lag_seconds": ("Since the append of the oldest unread record; 0 without any", lambda j: j.lag_seconds),
    "tocsin_job_stalled_seconds": (
        "For how long it has had records and finished no batch",
        lambda j: j.stalled_seconds,
    ),
    "tocsin_job_resident_memory_bytes": ("Of the process and all below it", lambda job: job.rss_bytes),
}
_COUNTERS: dict[str, tuple[str, Callable[[JobStatus], float]]] = {
    "tocsin_job_cpu_seconds": ("CPU time of the process and all below it", lambda job: job.cpu_seconds),
    "tocsin_job_records_in": ("Records read, without ticks", lambda job: job.rows_in),
    "tocsin_job_records_out": ("Records written", lambda job: job.rows_out),
    "tocsin_job_late_records_dropped": ("Records behind the watermark", lambda job: job.rows_dropped_late),
}
_MOMENTS: dict[str, tuple[str, Callable[[JobStatus], datetime | None]]] = {
    "tocsin_job_watermark_timestamp_seconds": ("Its watermark, event time", lambda job: job.watermark),
    "tocsin_job_start_timestamp_seconds": ("Start of its process", lambda job: job.started_at),
}
# Of the further figures of a job, those that count records, and the shares of the latest ones.
_COUNTED = {
    "quarantined": "Records that went to quarantine",
    "ignored": "Records that `ignore` left out",
    "set_aside": "Records that are not read any more, because the query fails on them",
    "removed_unread": "Records that retention removed before the job read them",
}
_RECREATED = "tocsin_job_topics_recreated", "Topics that were deleted and created again since it had read them"
_SHARES = {
    "bad_ratio": ("tocsin_job_quarantine_ratio", "Share of the latest 1,000 or more records that went to quarantine"),
    "ignored_ratio": ("tocsin_job_ignored_ratio", "Share of the latest 1,000 or more records that was ignored"),
}
_Process = tuple[int, datetime | None]


class JobFigures:
    """Makes the families; remembers what counters have reached."""

    def __init__(self) -> None:
        self._reached: dict[tuple[str, str], tuple[_Process, float]] = {}

    def families(self, jobs: Sequence[JobStatus]) -> Iterator[Metric]:
        """Make the families of `jobs`. What a job said that is silent or has ended is no figure of now."""
        alive = [job for job in jobs if _is_fresh(job)]
        yield from _states(jobs)
        for name, (text, of) in _GAUGES.items():
            measured = [job for job in alive if job.has_lag or "_lag_" not in name]
            yield gauge(name, text, _JOB, [((job.job,), of(job)) for job in measured])
        for name, (text, of) in _COUNTERS.items():
            yield self._counter(name, text, [(job, of(job)) for job in alive])
        for key, text in _COUNTED.items():
            figures = [(job, job.counts[key]) for job in alive if key in job.counts]
            yield self._counter(f"tocsin_job_records_{key}", text, figures)
        recreated = [(job, job.counts[TOPICS_RECREATED]) for job in alive if TOPICS_RECREATED in job.counts]
        yield self._counter(*_RECREATED, recreated)
        for key, (name, text) in _SHARES.items():
            yield gauge(name, text, _JOB, [((job.job,), job.counts[key]) for job in alive if key in job.counts])
        for name, (text, at) in _MOMENTS.items():
            yield moments(name, text, _JOB, [((job.job,), moment) for job in alive if (moment := at(job)) is not None])

    def _counter(self, name: str, text: str, figures: Iterable[tuple[JobStatus, float]]) -> Metric:
        return counter(name, text, _JOB, [self._highest(name, job, figure) for job, figure in figures])

    def _highest(self, name: str, job: JobStatus, figure: float) -> Sample:
        """A child that ends takes its CPU seconds away, which Prometheus would take for a restart."""
        process = (job.pid, job.started_at)
        before, reached = self._reached.get((name, job.job), (process, figure))
        figure = max(figure, reached) if before == process else figure
        self._reached[name, job.job] = (process, figure)
        return (job.job,), figure


def _is_fresh(job: JobStatus) -> bool:
    is_young = job.age_seconds is not None and job.age_seconds <= SILENT_SECONDS
    return is_young and job.state not in _ENDED


def _states(jobs: Sequence[JobStatus]) -> Iterator[Metric]:
    info = ("job", "kind", "health", "mode", "version")
    yield gauge(
        "tocsin_job_info",
        "1 for each job: what it does, as `tocsin status` shows it",
        info,
        [((job.job, JobName.parse(job.job).kind, job.health, job.mode, job.version), 1) for job in jobs],
    )
    yield gauge(
        "tocsin_job_standing",
        "1 for the standing of each job, 0 for the others",
        ("job", "standing"),
        [((job.job, str(severity)), float(job.standing is severity)) for job in jobs for severity in Severity],
    )
    yield moments(
        "tocsin_job_report_timestamp_seconds",
        "When it last gave a sign of life",
        _JOB,
        [((job.job,), job.at) for job in jobs if job.age_seconds is not None],
    )
    text = "Failures after which it was started again, as supervision remembers"
    yield counter("tocsin_job_restarts", text, _JOB, [((job.job,), job.restarts) for job in jobs])
    looked = max((job.supervised_at for job in jobs if job.supervised_at is not None), default=None)
    text = "When the supervisor last looked at the jobs"
    yield moments("tocsin_supervisor_look_timestamp_seconds", text, (), [] if looked is None else [((), looked)])


Sample = tuple[Sequence[str], float]  # the values of the labels, and the figure


def gauge(name: str, text: str, labels: Sequence[str], samples: Iterable[Sample]) -> Metric:
    """Make a family of figures that rise and fall."""
    family = GaugeMetricFamily(name, text, labels=labels)
    for values, figure in samples:
        family.add_metric(values, figure)
    return family


def counter(name: str, text: str, labels: Sequence[str], samples: Iterable[Sample]) -> Metric:
    """Make a family of figures that only rise; `name` is without `_total`."""
    family = CounterMetricFamily(name, text, labels=labels)
    for values, figure in samples:
        family.add_metric(values, figure)
    return family


def moments(name: str, text: str, labels: Sequence[str], samples: Iterable[tuple[Sequence[str], datetime]]) -> Metric:
    """Make a family of moments, in seconds since 1970; their age is `time()` minus that."""
    return gauge(name, text, labels, ((values, moment.timestamp()) for values, moment in samples))


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
