"""The job `web`: answers questions about views over HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from pathlib import Path

import structlog

from tocsin.declare.model.errors import ConfigError
from tocsin.declare.model.job_report import JobState
from tocsin.declare.settings import Settings
from tocsin.job import Job
from tocsin.platform.http_server import serve_until_stopped
from tocsin.platform.kafka.reporter import Reporter
from tocsin.platform.state_file import read_or_make_secret
from tocsin.views.rest.event_stream import Followers
from tocsin.views.rest.open_views import OpenViews
from tocsin.views.rest.view_api import view_api

_REPORT_SECONDS, _OTHERS = 2.0, 0o077


def token_file(settings: Settings) -> Path:
    """Name the file that holds the token of readers."""
    file = settings.web.token_file
    return settings.state / "web.token" if file is None else settings.project / file


def read_token(settings: Settings) -> str:
    """Read the token of readers; without `web.token_file`, one is made.

    Raises:
        ConfigError: the file cannot be read, is empty, or others can read it.
        OSError: none can be made.
    """
    path = token_file(settings)
    if settings.web.token_file is None and not path.exists():
        read_or_make_secret(path)
    try:
        if path.stat().st_mode & _OTHERS:
            raise ConfigError.one(path, f"can be read by others; run: chmod 600 {path}", key="web.token_file")
        token = path.read_text(encoding="utf-8").strip()
    except OSError as error:
        raise ConfigError.one(path, f"cannot be read: {error.strerror}", key="web.token_file") from error
    if not token:
        raise ConfigError.one(path, "is empty: it must hold the token", key="web.token_file")
    return token


def page_address(settings: Settings) -> str:
    """Return the address of the page, with the token behind the `#`, which browsers keep; errors as of `read_token`."""
    web = settings.web
    return f"{'https' if web.certificate_file else 'http'}://{web.host}:{web.port}/#token={read_token(settings)}"


def run(job: Job) -> None:
    """Answer until SIGTERM; ConfigError if the token or the files for TLS are faulty, OSError if the port is taken."""
    settings, reporter, stop = job.settings, job.reporter, job.stop
    with contextlib.closing(OpenViews(settings)) as views:
        api = view_api(views, read_token(settings))
        structlog.get_logger().info("listening", host=settings.web.host, port=settings.web.port)
        report = _report(reporter, api.state.followers, stop)
        serve_until_stopped(api, settings.web, settings.project, report)
    stop.set()


async def _report(reporter: Reporter, followers: Followers, stop: threading.Event) -> None:
    try:
        while not stop.is_set():
            reporter.update(state=JobState.RUNNING, reason="", counts={"followers": float(followers.count)})
            await asyncio.sleep(_REPORT_SECONDS)
    finally:
        followers.stopping = True
