"""People who look at the pages of a running stack with a browser."""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from playwright.sync_api import Browser, ConsoleMessage, FrameLocator, Page, Request, StorageState

from tests.rig.samples.findings import NOON, V1, found, streamed
from tests.rig.stack import Stack
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


class Running:
    """A stack that is up, and how to log in."""

    def __init__(self, stack: Stack) -> None:
        self.stack = stack
        self.url: str = json.loads((stack.state / "stack.json").read_text())["airflow_url"]
        self.passwords = stack.state / "airflow" / "passwords.json"
        self.logins: dict[str, StorageState] = {}  # what the browser of each user keeps

    def password(self, user: str) -> str:
        found: str = json.loads(self.passwords.read_text())[user]
        return found


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
        frame = self.page.frame_locator("iframe")
        frame.locator("html[data-theme] #freshness", has_text="updated").wait_for()
        return frame

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
            visit.log_in(user, self._running.password(user))
            logins[user] = visit.page.context.storage_state()
        visit.watch()
        return visit

    def anonymous(self) -> Visit:
        """A visit of nobody in particular."""
        return self._visit("light", None)

    def _visit(self, theme: str, login: StorageState | None) -> Visit:
        context = self._browser.new_context(viewport={"width": 1280, "height": 900}, storage_state=login)
        context.add_init_script(f"localStorage.setItem('theme', '{theme}')")
        context.set_default_timeout(180_000)
        self.made.append(Visit(context.new_page(), self._running.url))
        return self.made[-1]


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
