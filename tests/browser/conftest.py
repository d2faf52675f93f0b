"""A stack with Airflow in which one detector runs and many are declared, and a browser that looks at it."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, expect, sync_playwright

from tests.browser.visiting import BROKEN, DAY, DETECTOR, DRAFTS, RUN, Running, Visits
from tests.rig.airflow_api import Api
from tests.rig.sink_servers import emptied
from tests.rig.sink_servers import running as running_server
from tests.rig.stack import Stack
from tests.rig.waiting import await_that
from tocsin.declare.catalog import read_catalog
from tocsin.history.verdict_index import write_index
from tocsin.quality.judging import FindingGate, FoundOn

# tests/browser/setup.sh looks for the same.
BROWSERS = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome")
LOOPBACK = {"127.0.0.1", "localhost"}
DAG_SECONDS = 120
WAIT_SECONDS = 180


@pytest.fixture(scope="package")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """Its metadata is in PostgreSQL, as anything that is kept should have it."""
    parent = tmp_path_factory.mktemp("pages")
    stack = Stack(parent)
    folder = stack.project / "detectors"
    text = (folder / "failed_logins.py").read_text()
    for name in DRAFTS:
        (folder / f"{name}.py").write_text(text.replace('stage="live"', 'stage="draft"'))
    (folder / f"{BROKEN}.py").write_text("def detect(:")
    with running_server("postgres") as server:
        file = parent / "address"
        file.write_text(emptied(server.address).replace("postgresql://", "postgresql+psycopg2://"))
        (stack.project / "tocsin.toml").write_text(f'[airflow]\ndatabase_file = "{file}"\n')
        try:
            stack.up("--free-ports", "--airflow")
            stack.ready()
            _judge(stack)
            yield Running(stack)
        finally:
            stack.end()


def _judge(stack: Stack) -> None:
    """A report that fails, for the pages to show."""
    rule = {"type": "expect_table_row_count_to_be_between", "kwargs": {"min_value": 1}, "severity": "critical"}
    suite = {"name": "logins.findings", "expectations": [rule | {"meta": {"name": "some"}}]}
    file = stack.project / "expectations" / "logins.findings.json"
    file.parent.mkdir()
    file.write_text(json.dumps(suite))
    source = read_catalog(stack.project).source("logins")
    gate = FindingGate(stack.settings, source)
    verdict = gate.judge(FoundOn(DETECTOR, DAY, RUN, []))
    write_index(stack.settings)
    assert not verdict.publishable


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    path = next(filter(None, map(shutil.which, BROWSERS)), None)
    if path is None:
        pytest.fail("no browser is installed, so the pages cannot be looked at; run: make setup-browser")
    expect.set_options(timeout=WAIT_SECONDS * 1000)
    alone = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=path, args=alone)
        yield found
        found.close()


@pytest.fixture
def visits(browser: Browser, running: Running) -> Iterator[Visits]:
    """Visits of one test; in the end none may have met an error or left this machine."""
    made = Visits(browser, running)
    yield made
    for visit in made.made:
        visit.page.context.close()
    assert [fault for visit in made.made for fault in visit.faults] == []
    assert set().union(*(visit.hosts for visit in made.made)) <= LOOPBACK


@pytest.fixture(scope="package")
def all_read(running: Running) -> None:
    """Airflow has read the DAG of each detector."""
    api = Api(running.url, running.passwords, "viewer")

    def read() -> bool:
        total: int = api.call("GET", "/api/v2/dags?tags=detector&limit=1")["total_entries"]
        return total == len(DRAFTS) + 2

    await_that(read, DAG_SECONDS)
