"""The pages as an operator and a viewer have them; what they click happens to real processes."""

import json
import os
import re
import signal
import time
from contextlib import closing

import pytest
from playwright.sync_api import FrameLocator, Locator, expect

from tests.browser.visiting import BROKEN, DRAFTS, RUN, Visits, compared, find, shot, updated
from tests.rig.airflow_api import Api
from tests.rig.under_airflow import Running
from tests.rig.waiting import await_that, patient
from tocsin.alerts.store.database import Database

DETECTOR = "detector:failed_logins"
DAG = "detector__failed_logins"
PLATFORM = ["engine:live-1", "indexer", "ingest:logins", "notifier", "web"]
RUNNING = [DETECTOR, *PLATFORM]
SECONDS = 60
PAGE_SECONDS = 20

pytestmark = pytest.mark.usefixtures("all_read")


def row(frame: FrameLocator, job: str) -> Locator:
    return frame.locator(f'tr[data-job="{job}"]')


def await_state(frame: FrameLocator, job: str, state: str) -> None:
    expect(row(frame, job).locator(".how .badge")).to_have_text(state)


def await_pid(running: Running, job: str, old: int | None) -> None:
    """Wait for another process of `job` than `old`; None waits for any."""
    await_that(lambda: running.stack.pid(job) not in (None, old), SECONDS)


def fits(frame: FrameLocator) -> bool:
    """Whether nothing of the page reaches beyond its right edge."""
    found: bool = frame.locator("html").evaluate("page => page.scrollWidth <= page.clientWidth")
    return found


def test_it_shows_all_jobs_and_what_status_knows_of_them_soon_also_with_many_detectors(
    running: Running, visits: Visits
) -> None:
    visit = visits.of("viewer")
    began = time.monotonic()
    frame = visit.detectors()
    expect(frame.locator("tr[data-job]")).to_have_count(len(DRAFTS) + 2 + len(PLATFORM))
    assert time.monotonic() - began < patient(PAGE_SECONDS)
    for job in RUNNING:
        await_state(frame, job, "running")
    told = {one["job"]: one for one in json.loads(running.stack.tocsin("status", "--json").stdout)}
    assert {*RUNNING, f"detector:{BROKEN}"} <= told.keys()
    for job in RUNNING:
        expect(row(frame, job).locator(".how")).to_contain_text(told[job]["mode"])
        expect(row(frame, job).locator('[data-label="Memory"]')).to_have_text(re.compile(r"^\d+ MB"))
        expect(row(frame, job).locator('[data-label="CPU"]')).to_have_text(re.compile(r"^\d+ %"))
    expect(row(frame, f"detector:{DRAFTS[7]}").locator(".badge.off")).to_have_text("draft")
    assert frame.locator("tr[data-job]").first.get_attribute("data-job") == f"detector:{BROKEN}", (
        "what is broken is first"
    )
    expect(frame.locator("#problem .badge.problem")).to_have_text("broken")
    expect(frame.locator("#problem")).to_contain_text(f"detectors/{BROKEN}.py:1")
    expect(row(frame, "indexer").locator('[data-label^="Today"]')).to_contain_text("CPU")
    shot(visit.page, "many")


@pytest.mark.long
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_it_looks_like_the_airflow_around_it_and_fits(visits: Visits, theme: str) -> None:
    visit = visits.of("viewer", theme=theme)
    for path, name in (("plugin/jobs", "jobs"), (f"dags/{DAG}/plugin/job", "job")):
        frame = visit.open(path)
        assert frame.locator("html").get_attribute("data-theme") == theme
        for width in (1280, 800):
            visit.page.set_viewport_size({"width": width, "height": 900})
            assert fits(frame), f"{name} at {width}"
            ours = frame.locator("body").evaluate("body => getComputedStyle(body).backgroundColor")
            assert ours == visit.page.evaluate("getComputedStyle(document.documentElement).backgroundColor")
            shot(visit.page, f"{name}-{theme}-{width}")


def test_pause_stops_and_unpause_starts_by_keyboard_too(running: Running, visits: Visits) -> None:
    frame = visits.of("operator").detectors()
    others = {job: running.stack.pid(job) for job in PLATFORM}
    row(frame, DETECTOR).get_by_role("button", name="Pause").click()
    await_that(lambda: running.stack.pid(DETECTOR) is None, SECONDS)
    await_state(frame, DETECTOR, "paused")
    desired = json.loads((running.stack.state / "supervision" / "desired.json").read_text())
    assert desired["off"][DAG] is True
    expect(row(frame, DETECTOR).get_by_role("button")).to_have_count(1)
    button = row(frame, DETECTOR).get_by_role("button", name="Unpause")
    button.focus()
    button.press("Enter")
    await_pid(running, DETECTOR, None)
    assert {job: running.stack.pid(job) for job in PLATFORM} == others


@pytest.mark.long
def test_the_tab_tells_how_it_was_killed_and_shows_its_log_as_text(running: Running, visits: Visits) -> None:
    visit = visits.of("viewer")
    await_state(visit.detectors(), DETECTOR, "running")
    old = running.stack.pid(DETECTOR)
    assert old is not None
    os.kill(old, signal.SIGKILL)
    await_pid(running, DETECTOR, old)
    frame = visit.job(DAG)
    newest = frame.locator("#crash-rows tr").first
    expect(newest.locator(".cause")).to_have_text(re.compile("^ended without an exit code"))
    expect(newest.locator("td").nth(2)).to_have_text("none")
    expect(newest.locator("td").nth(3)).to_have_text(re.compile(r"\d+ (s|min)|\d\.\d s"))
    expect(newest.locator("td").nth(5)).not_to_have_text("not yet")
    with running.stack.settings.log(DETECTOR).open("a") as log:  # now, or what a JVM says as it dies pushes it out
        log.write("<img src=x onerror=\"document.title='taken over'\"> \x1b[31m\n")
    expect(frame.locator("#lines")).to_contain_text("<img src=x onerror=")
    expect(frame.locator("#lines")).to_contain_text(r"\x1b[31m")
    assert frame.locator("#lines *").count() == 0
    expect(frame.locator("#facts")).to_contain_text("e-mail above 50, urgent above 100")
    shot(visit.page, "killed")


@pytest.mark.long
def test_restart_replaces_the_process_and_tells_why_it_ended(running: Running, visits: Visits) -> None:
    visit = visits.of("operator")
    frame = visit.detectors()
    await_state(frame, DETECTOR, "running")
    others = {one: running.stack.pid(one) for one in RUNNING if one != "notifier"}
    old = running.stack.pid("notifier")
    row(frame, "notifier").get_by_role("button", name="Restart").click()
    await_pid(running, "notifier", old)
    expect(row(frame, "notifier").locator(".why")).to_contain_text("a restart was asked for")
    assert {one: running.stack.pid(one) for one in others} == others
    frame = visit.job("platform")
    frame.get_by_role("link", name="notifier").click()
    expect(frame.locator("#lines")).not_to_be_empty()
    expect(frame.locator("main"), "it did not crash").not_to_contain_text("a restart was asked for")


def test_a_viewer_finds_a_job_and_has_nothing_to_press_and_is_refused(running: Running, visits: Visits) -> None:
    visit = visits.of("viewer")
    frame = visit.detectors()
    search = frame.get_by_label("Filter jobs")
    search.fill("draft 13")
    expect(frame.locator("tr[data-job]")).to_have_count(1)
    search.fill("nothing like this")
    expect(frame.locator("#empty")).to_have_text("No job matches the filter.")
    search.fill("")
    await_state(frame, DETECTOR, "running")
    assert frame.locator("tr[data-job] button").count() == 0
    row(frame, DETECTOR).get_by_role("link").click()
    visit.page.wait_for_url(re.compile(f"/dags/{DAG}/plugin/job"))
    frame = updated(visit.page)
    expect(frame.locator("h1")).to_have_text("failed_logins")
    assert frame.locator("button").count() == 0
    viewer = Api(running.url, running.passwords, "viewer")
    assert viewer.refusal("PATCH", f"/api/v2/dags/{DAG}", {"is_paused": True}) == 403
    assert viewer.refusal("POST", f"/api/v2/dags/{DAG}/dagRuns", {"logical_date": None, "conf": {}}) == 403


def test_an_operator_answers_an_alert_and_a_viewer_reads_who_did(running: Running, visits: Visits) -> None:
    settings = running.stack.settings
    with closing(Database(settings.alerts_database)) as database:
        find(settings, database, 60, {"entity": {"user_id": "trudy"}})
    visit = visits.of("operator")
    visit.page.goto(f"{visit.url}/plugin/alerts")
    frame = visit.page.frame_locator("iframe")
    frame.get_by_role("link", name="trudy").click()
    expect(frame.get_by_role("heading", name="trudy")).to_be_visible()
    frame.get_by_label("Why").first.fill("looking")
    frame.get_by_role("button", name="Acknowledge").click()
    expect(frame.locator(".note").first).to_contain_text("Acknowledged by operator")
    shot(visit.page, "answered-in-airflow")
    viewer = visits.of("viewer")
    viewer.page.goto(f"{viewer.url}/plugin/alerts")
    frame = viewer.page.frame_locator("iframe")
    frame.get_by_role("link", name="trudy").click()
    expect(frame.locator(".timeline")).to_contain_text("looking")
    assert frame.get_by_role("button", name="Acknowledge").count() == 0


@pytest.mark.long
def test_the_tab_of_the_platform_has_all_its_jobs_and_a_dag_without_jobs_says_so(visits: Visits) -> None:
    visit = visits.of("viewer")
    frame = visit.job("platform")
    for job in PLATFORM:
        frame.get_by_role("link", name=job).click()
        expect(frame.locator("h1")).to_have_text(job)
        expect(frame.locator("#about-log")).to_contain_text(f"{job.replace(':', '__')}.log")
    expect(frame.locator("#parity")).to_have_count(0)
    visit.page.goto(f"{visit.url}/dags/supervisor/plugin/job")
    empty = visit.page.frame_locator("iframe").locator("#empty")
    expect(empty).to_have_text("No job belongs to this DAG. All jobs are on Jobs.")
    visit.page.goto(f"{visit.url}/dags/backfill__failed_logins/plugin/job")
    what = "Its batches work on what these do: detector:failed_logins. All jobs are on Jobs."
    expect(empty).to_have_text(f"No job belongs to this DAG. {what}")


@pytest.mark.long
def test_the_tab_tells_whether_stream_and_backfill_agree_and_the_page_marks_what_is_unexplained(
    running: Running, visits: Visits
) -> None:
    visit = visits.of("viewer")
    frame = visit.job(DAG)
    expect(frame.locator("#about-parity")).to_contain_text("No day has been compared yet")
    expect(frame.locator("#days")).to_have_count(0)
    report = compared(running.stack.state)
    frame = visit.job(DAG)
    day = frame.locator("#days tr")
    expect(day).to_have_class("failed")
    expect(day.locator("td").first).to_have_text(str(report.day))
    expect(day.locator('[data-label="Agree"]')).to_have_text("1")
    expect(day.locator('[data-label="Reasons"]')).to_have_text("1 unexplained 1 late")
    unlike = frame.locator("#unlike tr")
    expect(unlike.locator(".cause").first).to_have_text("<img src=x>")
    expect(unlike.locator('[data-label="Stream"]')).to_have_text("nothing")
    expect(unlike.locator('[data-label="Backfill"]')).to_have_text("urgent 110")
    shot(visit.page, "parity-light-1280")
    expect(row(visit.detectors(), DETECTOR).locator('[data-label="Findings"] .mark')).to_have_text("1 unexplained")
    dark = visits.of("viewer", theme="dark")
    expect(dark.job(DAG).locator("#unlike tr")).to_have_count(1)
    dark.page.set_viewport_size({"width": 800, "height": 1200})
    assert fits(dark.page.frame_locator("iframe"))
    shot(dark.page, "parity-dark-800")


@pytest.mark.long
def test_when_kafka_does_not_answer_the_page_says_so_and_goes_on(running: Running, visits: Visits) -> None:
    frame = visits.of("operator").detectors()
    await_state(frame, DETECTOR, "running")
    assert frame.locator(".note").count() == 0
    kafka = running.stack.pid("kafka")
    assert kafka is not None
    os.kill(kafka, signal.SIGSTOP)
    try:
        expect(frame.locator(".note.problem")).to_contain_text("Kafka", timeout=60_000)
        expect(row(frame, DETECTOR)).to_be_visible()
        expect(frame.locator("#freshness")).to_have_text(re.compile(r"updated (just now|\d s ago)"))
    finally:
        os.kill(kafka, signal.SIGCONT)
    expect(frame.locator(".note")).to_have_count(0)


def test_who_is_nobody_is_sent_to_the_login(running: Running, visits: Visits) -> None:
    visit = visits.anonymous()
    visit.page.goto(f"{visit.url}/plugin/jobs")
    visit.page.wait_for_url(re.compile("/auth/login"))
    visit.page.goto(f"{visit.url}/tocsin/jobs")  # as a link in a mail does
    visit.page.wait_for_url(re.compile(r"/auth/login\?next=%2Ftocsin%2Fjobs"))
    assert "failed_logins" not in visit.page.content()


def test_the_page_of_quality_leads_to_the_report_of_a_day(visits: Visits) -> None:
    visit = visits.of("viewer")
    visit.page.goto(f"{visit.url}/plugin/quality")
    frame = visit.page.frame_locator("iframe")
    frame.locator(f'a[href*="{RUN}"]').first.click()
    expect(frame.locator("h1")).to_contain_text("31 January 2026")
    expect(frame.locator(".failed h3")).to_have_text("some")
    margin = frame.locator("body").evaluate("body => getComputedStyle(body).margin")
    assert margin == "0px", "its style is not refused"
