"""What looks at a running stack from outside: people with a browser, and what takes its metrics."""

import json
import os
import re
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import urlsplit

from playwright.sync_api import Browser, ConsoleMessage, FrameLocator, Page, Request

from tests.rig.samples.findings import NOON, V1, found, streamed
from tests.rig.under_airflow import Running
from tocsin.alerts.alert_policy import DetectorFacts
from tocsin.alerts.recording import Rules, record
from tocsin.alerts.store.database import Database
from tocsin.declare.catalog import read_catalog
from tocsin.declare.model.finding import Finding, finding_id
from tocsin.declare.settings import Settings
from tocsin.history.backfill.parity.comparison import DifferenceReason, compare
from tocsin.history.backfill.parity.parity_report import ParityReport, keep, summed

DRAFTS = [f"draft_{number:02}" for number in range(15)]
BROKEN = "worse"
DETECTOR, DAY, RUN = "failed_logins", date(2026, 1, 31), "20260201T020000Z"
"""Of what there is a report."""


class Metrics(BaseHTTPRequestHandler):
    """Takes what OpenTelemetry exports: a protobuf, in which names stand as they are."""

    names: ClassVar[set[bytes]] = set()

    def do_POST(self) -> None:
        Metrics.names.update(re.findall(rb"airflow\.[a-z_.]+", self.rfile.read(int(self.headers["Content-Length"]))))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@dataclass
class Visit:
    """What one person with a browser sees, and what the browser complained about."""

    page: Page
    url: str
    faults: list[str] = field(default_factory=list)
    hosts: set[str | None] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.page.on("request", self._asked)

    def log_in(self, user: str, password: str) -> None:
        """From Airflow's first page through its login, and back."""
        self.page.goto(self.url)
        self.page.wait_for_url(re.compile("/auth/login"))
        self.page.fill('input[name="username"]', user)
        self.page.fill('input[name="password"]', password)
        self.page.click('button[type="submit"]')
        self.page.wait_for_url(lambda url: "/auth/" not in url)

    def watch(self) -> None:
        """Note from now on what the browser complains about."""
        self.page.on("console", self._said)
        self.page.on("pageerror", lambda error: self.faults.append(str(error)))

    def open(self, path: str) -> FrameLocator:
        """One of our pages inside Airflow, once it knows something."""
        self.page.goto(f"{self.url}/{path}")
        return updated(self.page)

    def detectors(self) -> FrameLocator:
        """The page of all jobs."""
        return self.open("plugin/jobs")

    def job(self, dag: str) -> FrameLocator:
        """The tab of one DAG."""
        return self.open(f"dags/{dag}/plugin/job")

    def _said(self, message: ConsoleMessage) -> None:
        if message.type == "error":
            self.faults.append(f"{message.text} ({message.location.get('url')})")

    def _asked(self, request: Request) -> None:
        parts = urlsplit(request.url)
        if parts.scheme in ("http", "https", "ws", "wss"):
            self.hosts.add(parts.hostname)


class Visits:
    """Opens visits, each in a window of its own."""

    def __init__(self, browser: Browser, running: Running) -> None:
        self._browser, self._running = browser, running
        self.made: list[Visit] = []

    def of(self, user: str, *, theme: str = "light") -> Visit:
        """A visit of `user`, who has chosen `theme` in Airflow, and logs in if nobody has as this user before."""
        logins = self._running.logins
        visit = self._visit(theme, logins.get(user))
        if user not in logins:
            visit.log_in(user, json.loads(self._running.passwords.read_text())[user])
            logins[user] = visit.page.context.storage_state()
        visit.watch()
        return visit

    def anonymous(self) -> Visit:
        """A visit of nobody in particular."""
        return self._visit("light", None)

    def _visit(self, theme: str, login: Any) -> Visit:
        context = self._browser.new_context(viewport={"width": 1280, "height": 900}, storage_state=login)
        context.add_init_script(f"localStorage.setItem('theme', '{theme}')")
        context.set_default_timeout(180_000)
        self.made.append(Visit(context.new_page(), self._running.url))
        return self.made[-1]


def updated(page: Page) -> FrameLocator:
    """The frame of ours in a page of Airflow, once it knows something."""
    frame = page.frame_locator("iframe")
    frame.locator("html[data-theme] #freshness", has_text="updated").wait_for()
    return frame


def shot(page: Page, name: str) -> None:
    """Keep a picture where TOCSIN_SHOTS says, if it says so, to look at."""
    if folder := os.environ.get("TOCSIN_SHOTS"):
        page.screenshot(path=Path(folder) / f"{name}.png")


def compared(state: Path) -> ParityReport:
    """A day on which one finding agrees, one was late, and nobody knows why the stream has not found a third one."""
    comparison = compare(
        [streamed(60), streamed(70, 10, user="late")],
        [found(60), found(90, 10, user="late"), found(110, 20, user="<img src=x>")],
    )
    late, hidden = comparison.differences
    differences = [
        late.because(DifferenceReason.LATE, "late"),
        hidden.because(DifferenceReason.UNEXPLAINED, "no event was late"),
    ]
    about = {"detector": DETECTOR, "day": NOON.date(), "run": "r", "version": V1, "compared_at": datetime.now(UTC)}
    report = ParityReport(**about, **summed(comparison, differences))
    keep(state, report)
    return report


def find(settings: Settings, database: Database, highest: int, about: dict[str, Any]) -> None:
    """Let the detector find a burst of failures ten minutes ago, of an `entity`, that rises to `highest`."""
    start = datetime.now(UTC) - timedelta(minutes=10)
    end = start + timedelta(seconds=10)
    facts = DetectorFacts.of(read_catalog(settings.project).detector(DETECTOR))
    about = about | {"detector": DETECTOR, "version": facts.version, "window_start": start, "window_end": end}
    about["finding_id"] = finding_id(DETECTOR, about["entity"], start, end)
    rising = [
        Finding(
            **about,
            score=score,
            level="urgent" if score > 100 else "email",
            limit=100 if score > 100 else 50,
            event_time_max=start + timedelta(seconds=score / 20),
            detected_at=end,
        )
        for score in range(51, highest + 1)
    ]
    with database.write() as connection:
        record(connection, rising, Rules(facts={DETECTOR: facts}, domain="example.com"), end)
