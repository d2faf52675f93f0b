"""The pages about alerts in a real browser, without Airflow: two clicks from a mail, by keyboard, narrow and dark."""

import re
import shutil
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from playwright.sync_api import Browser, Page, expect

from tests.browser.visiting import compared, find, shot
from tests.rig.samples.project import copy_project
from tests.rig.waiting import await_that
from tocsin.alerts import actions
from tocsin.alerts.actions import Actor
from tocsin.alerts.links import LinkAction, Links
from tocsin.alerts.store.database import Database
from tocsin.declare.blocks.web_settings import WebSettings
from tocsin.declare.model.job_report import JobReport, JobState
from tocsin.declare.settings import Settings
from tocsin.dev.servers.ports import free_ports
from tocsin.platform.heartbeat import beat
from tocsin.supervise.incidents.event_log import EventKind, JobEvent, record
from tocsin.supervise.runners.local import LocalRunner
from tocsin.supervise.runners.runner import Labels, Launch, instance_of
from tocsin.views.rest.view_api import OpenViews
from tocsin.web.passwords import first_password_file
from tocsin.web.server import application

NOW = datetime.now(UTC)
JOB, JOB_PAGE = "detector:failed_logins", "/job?dag_id=detector__failed_logins"
EVIL = "<img src=x onerror=\"document.title='taken over'\">" + "x" * 200
# Moves everything into the page that a reader would see jump.
SHIFTS = """new PerformanceObserver(list => { for (const one of list.getEntries())
  if (!one.hadRecentInput) window.shifted = (window.shifted ?? 0) + one.value; })
  .observe({ type: "layout-shift", buffered: true });"""

UNREADABLE = Path(__file__).with_name("unreadable.js").read_text(encoding="utf-8")


@dataclass
class Web:
    """The application on a port of its own, with four alerts."""

    settings: Settings
    database: Database
    faults: list[str] = field(default_factory=list)

    @property
    def url(self) -> str:
        return self.settings.web_address

    def open(self, page: Page, path: str) -> None:
        page.on("console", lambda message: self.faults.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: self.faults.append(str(error)))
        page.goto(path if path.startswith("http") else self.url + path)

    def log_in(self, page: Page) -> None:
        file = first_password_file(self.settings)
        assert file is not None
        self.open(page, "/alerts")
        page.get_by_label("Password").fill(file.read_text().strip())
        page.keyboard.press("Enter")
        expect(page.get_by_role("heading", name="Alerts")).to_be_visible()

    def find(self, highest: int, user: str, **changes: Any) -> None:
        find(self.settings, self.database, highest, {"entity": {"user_id": user}} | changes)


def work(settings: Settings, runner: LocalRunner) -> None:
    """Let the detector run, once it has crashed several times; what it logs is not nice."""
    labels = Labels(instance_of(settings), JOB, "v1")
    command = (sys.executable, "-c", "import time; time.sleep(600)", *labels.arguments())
    started = Launch(labels=labels, command=command, environment={}, directory=settings.state, log=settings.log(JOB))
    pid = runner.start(started)
    crash: dict[str, Any] = {"what": EventKind.END, "reason": EVIL, "exit_code": -9, "ran_seconds": 5, "failed": True}
    record(settings.state, [(JOB, JobEvent(at=NOW.timestamp() - 600 + at, **crash)) for at in range(9)])
    about: dict[str, Any] = {"pid": pid, "started_at": NOW, "mode": "real-time", "rss_bytes": 10**9, "cpu_seconds": 9}
    beat(settings.state, JobReport(job=JOB, state=JobState.RUNNING, at=datetime.now(UTC), lag_records=7, **about))
    with settings.log(JOB).open("a") as log:
        log.writelines(f"line {number} {EVIL}\x1b[31m\n" for number in range(300))


@pytest.fixture(scope="module")
def web(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Web]:
    folder, (port,) = tmp_path_factory.mktemp("web"), free_ports(1)
    copy_project(folder)
    shutil.copytree(Path(__file__).parents[2] / "docs" / "runbooks", folder / "docs" / "runbooks")
    settings = Settings(project=folder, state=folder / "state", web=WebSettings(port=port))
    with closing(Database(settings.alerts_database)) as database:
        database.migrate()
        made = Web(settings, database)
        for score, user in ((60, "mallory"), (130, "trudy"), (99, EVIL)):
            made.find(score, user)
        runner = LocalRunner(instance_of(settings), settings.log)
        work(settings, runner)
        compared(settings.state)
        app = application(settings, OpenViews(settings))
        server = uvicorn.Server(uvicorn.Config(app, port=port, log_level="error", lifespan="off"))
        thread = threading.Thread(target=server.run)
        thread.start()
        while not server.started:
            time.sleep(0.02)
        try:
            yield made
        finally:
            server.should_exit = True
            thread.join()
            for process in runner.list():
                runner.stop(process, force=True)
            await_that(lambda: runner.list() == [])
    assert made.faults == []


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    with closing(browser.new_page(viewport={"width": 1280, "height": 900})) as made:
        yield made


def test_from_a_mail_to_an_acknowledgement_it_is_one_page_and_one_click(web: Web, page: Page) -> None:
    link = Links(web.settings).answer(1, LinkAction.ACKNOWLEDGE, "ann@example.com", NOW)
    web.open(page, link)
    expect(page.get_by_role("heading", name="mallory")).to_be_visible()
    page.get_by_role("button", name="Acknowledge for 4 hours").click()
    expect(page.get_by_role("status")).to_have_text("Done: the alert is acknowledged, as ann@example.com.")
    shot(page, "answered")


def test_an_alert_is_found_and_resolved_by_keyboard_alone(web: Web, page: Page) -> None:
    web.find(70, "keyboard")
    web.log_in(page)
    page.get_by_label("Entity").focus()
    page.keyboard.type("keyb")
    page.keyboard.press("Enter")
    expect(page.locator("tbody tr")).to_have_count(1)
    page.get_by_role("link", name="keyboard").focus()
    page.keyboard.press("Enter")
    page.locator("summary", has_text="Resolve").focus()
    page.keyboard.press("Enter")
    page.get_by_label("a false alarm").focus()
    page.keyboard.press("Space")
    page.keyboard.press("Tab")
    page.keyboard.type("a load test")
    page.keyboard.press("Enter")
    expect(page.locator(".note")).to_have_text("Resolved by operator: false.")
    expect(page.locator(".timeline")).to_contain_text("false: a load test")


def test_the_list_follows_what_happens_and_takes_no_tick_away(web: Web, page: Page) -> None:
    web.log_in(page)
    expect(page.get_by_role("link", name="newcomer")).to_have_count(0)
    page.wait_for_timeout(500)  # the stream says first what is there already
    web.find(80, "newcomer")
    expect(page.get_by_role("link", name="newcomer")).to_have_count(1)
    page.get_by_label("All on this page").check()
    web.find(80, "another")
    page.wait_for_timeout(3000)
    expect(page.get_by_role("link", name="another")).to_have_count(0)
    page.get_by_role("button", name="Acknowledge").click()
    expect(page.get_by_role("link", name="another")).to_have_count(1)
    expect(page.locator("tr", has_text="newcomer")).to_contain_text("acknowledged")


def test_a_job_is_followed_and_its_log_searched_while_one_types_and_nothing_moves(web: Web, page: Page) -> None:
    page.add_init_script(SHIFTS)
    web.log_in(page)
    web.open(page, JOB_PAGE)
    lines, search = page.locator("#lines"), page.get_by_label("Search the log")
    expect(lines).to_contain_text("line 299 <img src=x onerror=")
    expect(lines).to_contain_text(r"\x1b[31m")
    assert lines.locator("*").count() == 0
    assert page.locator(".log").evaluate("log => log.scrollTop === 0 && log.scrollHeight > log.clientHeight"), "its end"
    search.press_sequentially("line 29")
    expect(lines).not_to_contain_text("line 280")
    expect(lines).to_contain_text("line 290")
    with web.settings.log(JOB).open("a") as log:
        log.write("line 29, a later one\n")
    expect(lines).to_contain_text("a later one")
    expect(search).to_be_focused()
    expect(search).to_have_value("line 29")
    expect(page.locator("#crash-rows tr")).to_have_count(5)
    assert page.evaluate("window.shifted ?? 0") < 0.1
    page.get_by_role("link", name="Show all 9").click()
    expect(page.locator("#crash-rows tr")).to_have_count(9)


def test_the_list_of_jobs_is_filtered_while_one_types_and_says_when_it_is_out_of_date(web: Web, page: Page) -> None:
    web.log_in(page)
    web.open(page, "/jobs")
    rows, search = page.locator("tr.job"), page.get_by_label("Filter jobs")
    expect(rows).to_have_count(6)
    search.press_sequentially("bursts live")
    expect(rows).to_have_count(1)
    search.fill("nothing like this")
    expect(page.locator("#empty")).to_have_text("No job matches the filter.")
    page.context.set_offline(True)
    expect(page.locator("#stale")).to_contain_text("The server does not answer; the jobs keep running.")
    page.context.set_offline(False)
    expect(page.locator("#stale")).to_be_hidden()
    web.faults[:] = [fault for fault in web.faults if "ERR_INTERNET_DISCONNECTED" not in fault]
    page.context.clear_cookies()
    expect(page.locator("#stale")).to_contain_text("Your login has expired. Log in again.")


@pytest.mark.parametrize(
    ("theme", "width"),
    [
        *(("light", 400), ("dark", 1280)),
        *(pytest.param(*more, marks=pytest.mark.long) for more in [("light", 1280), ("dark", 400)]),
    ],
)
def test_every_page_fits_and_nothing_in_it_jumps(web: Web, browser: Browser, theme: str, width: int) -> None:
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=theme)  # type: ignore[arg-type]
    context.add_init_script(SHIFTS)
    web.find(99, EVIL, context={EVIL: EVIL}, evidence=[EVIL])
    with web.database.write() as connection:
        actions.acknowledge(connection, [2], Actor("ann@example.com", datetime.now(UTC)))
    with closing(context):
        page = context.new_page()
        web.open(page, "/login")
        assert page.evaluate(UNREADABLE) == []
        web.log_in(page)
        places: tuple[str, ...] = ("alerts", "alerts/2", "alerts/3", "silences", "detectors", "jobs", "views.html")
        places += ("runbooks/failed_logins", "job?dag_id=platform", "job?dag_id=history__logins", JOB_PAGE[1:])
        for path in places:
            page.goto(f"{web.url}/{path}")
            page.wait_for_timeout(300)
            assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth"), path
            assert page.evaluate("window.shifted ?? 0") < 0.1, path
            assert (path, page.evaluate(UNREADABLE)) == (path, [])
            assert page.title().endswith("Tocsin")
            assert (page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)") == (
                theme == "light"
            )
            shot(page, f"{path.replace('?dag_id=', '-').replace('/', '-')}-{theme}-{width}")


SHOWN_VALUES = {
    "9007199254740993": "9007199254740993", "0.00123": "0.00123", "1234567.891": "1,234,567.89", "-0.5": "-0.5",
    '"007"': "007", '"3.10"': "3.10", '"2020-02-03T04:05:06.789Z"': "2020-02-03 04:05:06Z", "null": "", "true": "true",
    '"2020-99-99T00:00:00Z"': "2020-99-99T00:00:00Z", '"2020-02-03T04:05:06"': "2020-02-03T04:05:06",
}  # fmt: skip


def test_a_view_shows_each_value_as_it_is(web: Web, page: Page) -> None:
    values = ", ".join(f'"v{place}": {value}' for place, value in enumerate(SHOWN_VALUES))
    row = f'{{"name": "x", "key": {{"id": 9007199254740995}}, "window_start": null, "values": {{{values}}}}}'
    fresh = '{"watermark": "2020-02-03T04:05:06Z", "lag_records": 0, "lag_seconds": 0, "version": 1}'
    view = f'{{"name": "w", "title": "W", "window": null, "sink": "sqlite", "reason": "", "freshness": {fresh}}}'
    web.log_in(page)
    page.route(re.compile("/views$"), lambda route: route.fulfill(body=f'{{"views": [{view}]}}'))
    rows = f'{{"rows": [{row}], "next": null, "freshness": {fresh}}}'
    page.route(re.compile("/views/w"), lambda route: route.fulfill(body=rows))
    page.goto(f"{web.url}/views.html")
    expect(page.locator("#facts")).to_contain_text("complete until 2020-02-03 04:05:06Z")
    expect(page.locator("tbody td")).to_have_text(["9007199254740995", *SHOWN_VALUES.values()])
