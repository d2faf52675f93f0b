"""`python -m tocsin.metrics exporter`: the job `exporter`."""

from __future__ import annotations

import asyncio
import sys
import threading

import structlog
from fastapi import FastAPI, Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from tocsin.kafka.plain_job import run_program
from tocsin.kafka.reporter import Reporter
from tocsin.metrics.scrape import Scrape
from tocsin.model.job_report import JobState
from tocsin.model.names import EXPORTER
from tocsin.project.settings import Settings
from tocsin.runtime.http_server import serve_until_stopped

_REPORT_SECONDS = 2.0


def exporter_api(scrape: Scrape) -> FastAPI:
    """Describe the application: `GET /metrics`."""
    api, one_at_a_time = FastAPI(openapi_url=None), threading.Lock()

    @api.get("/metrics")
    def metrics() -> Response:
        with one_at_a_time:
            return Response(generate_latest(scrape), media_type=CONTENT_TYPE_LATEST)

    return api


def serve(settings: Settings, reporter: Reporter, stop: threading.Event) -> None:
    """Answer until SIGTERM.

    Raises:
        ConfigError: the files for TLS are faulty.
        OSError: the port is taken.
    """
    listen = settings.metrics
    structlog.get_logger().info("listening", host=listen.host, port=listen.port)
    serve_until_stopped(exporter_api(Scrape(settings)), listen, settings.project, _report(reporter, stop))
    stop.set()


async def _report(reporter: Reporter, stop: threading.Event) -> None:
    while not stop.is_set():
        reporter.update(state=JobState.RUNNING)
        await asyncio.sleep(_REPORT_SECONDS)


def main(arguments: list[str] | None = None) -> int:
    """Run the job until SIGTERM; returns its `ExitCode`."""
    return run_program("tocsin.metrics", {EXPORTER: serve}, arguments, is_server=True)


if __name__ == "__main__":
    sys.exit(main())
