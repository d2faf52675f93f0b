"""The job `exporter`: answers Prometheus."""

from __future__ import annotations

import asyncio
import hmac
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from importlib.metadata import version
from typing import Annotated

import structlog
from fastapi import FastAPI, Header, Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from tocsin.declare.catalog import Catalog
from tocsin.declare.model.job_report import JobState
from tocsin.declare.model.names import INDEXER
from tocsin.declare.setting_blocks import secret_in
from tocsin.declare.settings import Settings
from tocsin.job import Job
from tocsin.platform.background_value import BackgroundValue
from tocsin.platform.code_versions import FollowedCatalog
from tocsin.platform.http_server import serve_until_stopped
from tocsin.platform.kafka.reporter import Reporter, ReportReader
from tocsin.web.metrics.alert_figures import AlertFigures
from tocsin.web.metrics.job_figures import DayFigures, JobFigures, counter, gauge, view_families
from tocsin.web.metrics.reported_jobs import StatusReader

_REPORT_SECONDS = 2.0


def exporter_api(scrape: Scrape, token: str | None) -> FastAPI:
    """Describe the application: `GET /metrics`, for who sends the `token` if there is one."""
    api, one_at_a_time = FastAPI(openapi_url=None), threading.Lock()

    @api.get("/metrics")
    def metrics(authorization: Annotated[str, Header()] = "") -> Response:
        if token is not None and not hmac.compare_digest(authorization.encode(), f"Bearer {token}".encode()):
            return Response("send the token of metrics.token_file", 401, {"WWW-Authenticate": "Bearer"})
        with one_at_a_time:
            return Response(generate_latest(scrape), media_type=CONTENT_TYPE_LATEST)

    return api


def run(job: Job) -> None:
    """Answer until SIGTERM; raises ConfigError for a faulty token or TLS file, OSError if the port is taken."""
    settings, listen = job.settings, job.settings.metrics
    token = _token(settings)
    structlog.get_logger().info("listening", host=listen.host, port=listen.port)
    serve_until_stopped(exporter_api(Scrape(settings), token), settings, listen, _report(job.reporter, job.stop))
    job.stop.set()


def _token(settings: Settings) -> str | None:
    file = settings.metrics.token_file
    return None if file is None else secret_in(file, "metrics.token_file")


async def _report(reporter: Reporter, stop: threading.Event) -> None:
    while not stop.is_set():
        reporter.update(state=JobState.RUNNING)
        await asyncio.sleep(_REPORT_SECONDS)


# A scrape waits so long in all: Prometheus waits 10 s by default.
_PATIENCE_SECONDS, _KAFKA_SECONDS = 7.0, 2.0
# So often a kind of figures is read at most. Days change a few times a day, and their ledgers are many files.
_SECONDS, _DAY_SECONDS = 2.0, 60.0
# Figures that are so many periods old are none of now.
_OLD = 2
_KAFKA = "kafka"
_WHAT = ("what",)

log = structlog.get_logger()


class _Part:
    """One kind of figures; what cannot be read is logged once, until it can be again."""

    def __init__(self, what: str, read: Callable[[], Iterable[Metric]], seconds: float) -> None:
        self.what, self._seconds, self._logged = what, seconds, ""
        self._read = BackgroundValue(lambda: list(read()), seconds)
        self._asked_at = 0.0
        self.read_at: float | None = None

    def request(self) -> None:
        """Begin to read, if it is time."""
        self._asked_at = time.time()
        self._read.known()

    def families(self, deadline: float) -> list[Metric] | None:
        """Return the figures of now, waiting for them until the `deadline`; None if they cannot be had."""
        got = self._read.known(max(0.0, deadline - time.monotonic()))
        self.read_at = got.at
        is_old = got.at is None or got.at < self._asked_at - _OLD * self._seconds
        error = got.error or ("no answer in time" if is_old else "")
        if error != self._logged:
            self._logged = error
            if error:
                log.warning("figures not readable", what=self.what, error=error)
        return None if error else got.value


class Scrape(Collector):
    """Collects all figures; for one scrape at a time."""

    def __init__(self, settings: Settings) -> None:
        self._followed, self._catalog = FollowedCatalog(settings), Catalog()
        self._stored_until: datetime | None = None
        self._kafka_away = ""
        reports = ReportReader(settings, timeout_seconds=_KAFKA_SECONDS)
        self._statuses, self._jobs = StatusReader(settings, reports.latest, lambda: self._catalog), JobFigures()
        alerts, days = AlertFigures(settings, lambda: self._stored_until), DayFigures(settings)
        self._parts = [
            _Part("jobs", self._read_jobs, _SECONDS),
            _Part("alerts", lambda: alerts.families(self._catalog.detectors), _SECONDS),
            _Part("views", lambda: view_families(settings, self._catalog), _SECONDS),
            _Part("days", lambda: days.families(self._catalog), _DAY_SECONDS),
        ]
        self._errors = dict.fromkeys([_KAFKA, *(part.what for part in self._parts)], 0)

    def collect(self) -> Iterator[Metric]:
        """Read everything at once, and give what could be read."""
        deadline = time.monotonic() + _PATIENCE_SECONDS
        # Here and not in the threads of the parts: Python 3.11's parser fails when two threads parse at a time.
        self._catalog = self._followed.read()
        for part in self._parts:
            part.request()
        for part in self._parts:
            families = part.families(deadline)
            self._errors[part.what] += families is None
            yield from families or ()
        self._errors[_KAFKA] += bool(self._kafka_away)
        errors = [((what,), float(count)) for what, count in self._errors.items()]
        yield counter("tocsin_scrape_errors", "Scrapes in which this could not be read", _WHAT, errors)
        read = [((part.what,), part.read_at) for part in self._parts if part.read_at is not None]
        yield gauge("tocsin_scrape_read_timestamp_seconds", "When this was read last", _WHAT, read)
        yield gauge("tocsin_build_info", "1, with the version of Tocsin", ("version",), [((version("tocsin"),), 1)])

    def _read_jobs(self) -> Iterator[Metric]:
        reading = self._statuses.read()
        if reading.kafka_away != self._kafka_away and reading.kafka_away:
            log.warning("Kafka away, heartbeats of this machine read", error=reading.kafka_away)
        self._kafka_away = reading.kafka_away
        self._stored_until = next((job.watermark for job in reading.jobs if job.job == INDEXER), None)
        return self._jobs.families(reading.jobs)
