"""The job `web`: serves the pages to people who log in, and rows of views over REST."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from pathlib import Path

import structlog
from fastapi import FastAPI, Request, Response

from tocsin.declare.model.errors import ConfigError
from tocsin.declare.model.job_report import JobState
from tocsin.declare.settings import Settings
from tocsin.job import Job
from tocsin.platform import private
from tocsin.platform.http_server import serve_until_stopped
from tocsin.platform.kafka.reporter import Reporter
from tocsin.platform.state_file import read_or_make_secret
from tocsin.views.rest.view_api import Followers, OpenViews, view_api
from tocsin.web.app import pages
from tocsin.web.login import LoginAccess, add_login
from tocsin.web.site import Here

_REPORT_SECONDS = 2.0


def token_file(settings: Settings) -> Path:
    """Name the file that holds the token of readers."""
    return settings.web.token_file or settings.state / "web.token"


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
        private.refuse_shared(path, "web.token_file")
        token = path.read_text(encoding="utf-8").strip()
    except OSError as error:
        raise ConfigError.one(path, f"cannot be read: {error.strerror}", key="web.token_file") from error
    if not token:
        raise ConfigError.one(path, "is empty: it must hold the token", key="web.token_file")
    return token


def page_address(settings: Settings) -> str:
    """Return the address of the page of views, with the token behind the `#`, which browsers keep to themselves.

    Errors as of `read_token`.
    """
    return f"{settings.local_web_address}/views.html#token={read_token(settings)}"


def application(settings: Settings, views: OpenViews) -> FastAPI:
    """Put the pages and the answers about views together; errors as of `read_token` and `LoginAccess`."""
    access = LoginAccess(settings)

    async def is_user(request: Request) -> bool:
        return await access.user(request) is not None

    rest = view_api(views, read_token(settings), is_user)
    app = pages(settings, access, opened=("/views", "/openapi.json"))
    app.state.site.has_views, app.state.followers = True, rest.state.followers
    app.add_api_route("/views.html", _views_page, methods=["GET"])
    add_login(app, settings)
    app.mount("", rest)
    return app


def _views_page(request: Request, site: Here) -> Response:
    """The page that shows views with their numbers moving. It holds no data: its script asks for that."""
    return site.page(request, "views.html")


def run(job: Job) -> None:
    """Answer until SIGTERM; ConfigError if a secret or the files for TLS are faulty, OSError if the port is taken."""
    settings, reporter, stop = job.settings, job.reporter, job.stop
    with contextlib.closing(OpenViews(settings)) as views:
        app = application(settings, views)
        structlog.get_logger().info("listening", host=settings.web.host, port=settings.web.port)
        serve_until_stopped(app, settings, settings.web, _report(reporter, app.state.followers, stop))
    stop.set()


async def _report(reporter: Reporter, followers: Followers, stop: threading.Event) -> None:
    try:
        while not stop.is_set():
            reporter.update(state=JobState.RUNNING, reason="", counts={"followers": float(followers.count)})
            await asyncio.sleep(_REPORT_SECONDS)
    finally:
        followers.stopping = True
