"""The job `exporter`: answers Prometheus."""

from __future__ import annotations

import asyncio
import hmac
import threading
from typing import Annotated

import structlog
from fastapi import FastAPI, Header, Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from tocsin.declare.model.errors import ConfigError
from tocsin.declare.model.job_report import JobState
from tocsin.declare.setting_blocks import secret_in
from tocsin.declare.settings import Settings
from tocsin.job import Job
from tocsin.platform.http_server import serve_until_stopped
from tocsin.platform.kafka.reporter import Reporter
from tocsin.web.metrics.scrape import Scrape

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
    serve_until_stopped(
        exporter_api(Scrape(settings), token), listen, settings.project, _report(job.reporter, job.stop)
    )
    job.stop.set()


def _token(settings: Settings) -> str | None:
    file = settings.metrics.token_file
    token = None if file is None else secret_in(settings.project / file, "metrics.token_file")
    if token == "":
        raise ConfigError.one(str(file), "is empty: it must hold the token", key="metrics.token_file")
    return token


async def _report(reporter: Reporter, stop: threading.Event) -> None:
    while not stop.is_set():
        reporter.update(state=JobState.RUNNING)
        await asyncio.sleep(_REPORT_SECONDS)
