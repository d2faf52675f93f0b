"""A stack with Airflow in which one detector runs and many are declared, and a browser that looks at it."""

import json
import os
import shutil
import threading
from collections.abc import Iterator
from http.server import ThreadingHTTPServer

import pytest
from playwright.sync_api import Browser, expect, sync_playwright

from tests.browser.visiting import BROKEN, DAY, DETECTOR, DRAFTS, RUN, Metrics, Visits
from tests.rig.sink_servers import emptied
from tests.rig.sink_servers import running as running_server
from tests.rig.stack import Stack
from tests.rig.under_airflow import Running
from tests.rig.waiting import await_that
from tocsin.declare.catalog import read_catalog
from tocsin.history.verdict_index import write_index
from tocsin.quality.judging import FindingGate, FoundOn
from tocsin.supervise.switches import ask_switches

# tests/browser/setup.sh looks for the same.
BROWSERS = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome")
LOOPBACK = {"127.0.0.1", "localhost"}
DAG, DAG_SECONDS = "detector__failed_logins", 120
WAIT_SECONDS = 180


@pytest.fixture(scope="package")
def metrics_url() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Metrics) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/api/v1/otlp/v1/metrics"
        server.shutdown()


@pytest.fixture(scope="package")
def running(tmp_path_factory: pytest.TempPathFactory, metrics_url: str) -> Iterator[Running]:
    """At its first start it meets a detector that is switched off and a file that is not Python."""
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
        places = f'database_file = "{file}"\nmetrics_url = "{metrics_url}"\n'
        (stack.project / "tocsin.toml").write_text(f"[airflow]\n{places}")
        ask_switches(stack.state, [DAG], lambda _: True)
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
    """Airflow has read the DAG of each detector, and the one that may run does."""

    def read() -> bool:
        total: int = running.admin.call("GET", "/api/v2/dags?tags=detector&limit=1")["total_entries"]
        return total == len(DRAFTS) + 2

    await_that(read, DAG_SECONDS)
    running.admin.pause(DAG, False)
