"""`tocsin test` and pytest: one Spark session and one broker for all detectors and ways; no log is shown."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from tests.rig.tutorial_steps import follow
from tests.rig.waiting import await_that, patient

ROOT = Path(__file__).parents[2]
SHIPPED = [ROOT, *sorted(place.parent for place in ROOT.glob("examples/*/detectors"))]
TEST_FILE = """
import pytest
from tocsin.testing import DetectorCase, RunCase, detector_cases, run_case


@pytest.mark.parametrize("case", detector_cases("single"), ids=str)
def test_single(case: DetectorCase, run_case: RunCase) -> None:
    run_case(case)
"""
SINGLE = '''"""Logins of one user."""
from pyspark.sql import functions as F

from tocsin import Case, Levels, at, detector, urgent


@detector(source="logins", entity="user_id", window=None, levels=Levels(urgent=1), owner="a@example.com", runbook="r",
          stage="draft")
def detect(events):
    return events.select("*", F.when(F.col("user_id") == "root", 2).otherwise(1).alias("score"))


COLUMNS = {"ip_address": "192.0.2.1", "action": "login failed"}
CASES = [
    Case("root", events=at("12:00:00", user_id="root", **COLUMNS), expect=[urgent(user_id="root")]),
    Case("wrong", events=at("12:00:00", user_id="alice", **COLUMNS), expect=[urgent(user_id="alice")]),
]
'''
LOCAL_DAY = '''"""Logins of a day in Berlin."""
from pyspark.sql import functions as F

from tocsin import Case, Levels, at, detector, email


@detector(source="logins", entity="user_id", window="1 day", time_zone="Europe/Berlin", levels=Levels(email=2),
          owner="a@example.com", runbook="r", stage="draft")
def detect(events):
    return events.groupBy("window", "user_id").agg(F.count("*").alias("score"))


def day(first, last, beyond):
    one = {"user_id": "ann", "ip_address": "192.0.2.1", "action": "login"}
    return at(first, **one).repeat(2, every="1 second").then(at(last, **one)).then(at(beyond, **one))


CASES = [
    Case("23 hours", events=day("2026-03-28 23:00:00", "2026-03-29 21:59:59.999", "2026-03-29 22:00:00"),
         expect=[email(user_id="ann", window="2026-03-28 23:00:00", score=3)]),
    Case("25 hours", events=day("2026-10-24 22:00:00", "2026-10-25 22:59:59.999", "2026-10-25 23:00:00"),
         expect=[email(user_id="ann", window="2026-10-24 22:00:00", score=3)]),
]
'''


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project with a folder for temporary files of its own."""
    folder = tmp_path_factory.mktemp("cases")
    for name in ("sources", "detectors"):
        shutil.copytree(ROOT / name, folder / name)
    (folder / "tmp").mkdir()
    return folder


@pytest.fixture(autouse=True)
def _nothing_is_left(project: Path) -> Iterator[None]:
    yield
    tmp = project / "tmp"
    await_that(lambda: not [*tmp.iterdir()], 20, lambda: str([*tmp.iterdir()]))  # an engine that was ended removes it
    assert [
        one for one in psutil.process_iter(["cmdline"]) if str(project / "tmp") in " ".join(one.info["cmdline"] or [])
    ] == []


def start(project: Path, *words: str, of: Path | None = None, engine: bool = False) -> subprocess.Popen[str]:
    environment = os.environ | {"TOCSIN_PROJECT": str(of or project), "TMPDIR": str(project / "tmp")}
    environment["TOCSIN_KAFKA__BOOTSTRAP_SERVERS"] = "127.0.0.1:1"  # the broker of the installation is never asked
    environment["TOCSIN_ENGINE__ENABLED"] = str(engine)
    environment["PYTHONPATH"] = str(ROOT)  # for tests.rig
    return subprocess.Popen(
        [sys.executable, "-m", *words], env=environment, cwd=project, text=True, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )  # fmt: skip


def run(project: Path, *words: str, of: Path | None = None, engine: bool = False) -> subprocess.CompletedProcess[str]:
    with start(project, *words, of=of, engine=engine) as started:
        output, errors = started.communicate(timeout=500)
    return subprocess.CompletedProcess(words, started.returncode, output, errors)


def test_real_time_mode_agrees_and_a_case_that_fails_is_shown(project: Path) -> None:
    file = project / "detectors" / "failed_logins.py"
    file.write_text(file.read_text().replace("email=50", "email=70"))
    done = run(project, "tocsin.cli", "test", "failed_logins", "--ways", "batch,real-time")
    assert (done.returncode, done.stderr) == (1, "")
    lines = done.stdout.splitlines()
    assert lines[0].startswith("FAILED failed_logins: 60 failures of one user in six seconds (")
    assert lines[1:] == [
        "  events   12:00:00  user_id='mallory', action='login failed'  x 60 every 0.1 s until 12:00:05.9",
        "  windows  12:00:00 to 12:00:10  60 events",
        "  batch, real-time:",
        "    expected email  user_id=mallory  window at 12:00:00  score 60",
        "    found    nothing; the highest score is 60, user_id=mallory  12:00:00 to 12:00:10",
        "failed_logins: 9 of 10 cases passed, 6 of them made from the limits; batch, real-time",
        lines[-1],
    ]
    assert lines[-1].startswith("10 cases of 1 detector, 1 failed, in ")


@pytest.mark.long
def test_the_first_tutorial_can_be_followed_up_to_the_stream(project: Path) -> None:
    """Without Kafka."""
    folder = project / "shop"
    folder.mkdir()
    variables = {"TMPDIR": str(project / "tmp"), "TOCSIN_PROJECT": str(folder), "TOCSIN_ENGINE__ENABLED": "false"}
    told = follow(range(1, 6), folder, variables)
    assert re.search(r"^server_errors: (\d+) of \1 cases passed", told, re.MULTILINE)
    assert re.search(r"^  (\d+) of \1 mutants noticed", told, re.MULTILINE)
    assert "1,201 rows, 1,200 events of requests" in told
    assert "left out, not_json: 1 row (1201)" in told
    found = re.findall(r"^\S+ \S+ \+30 s +(\S+) +(\S+) +(\d+)", told, re.MULTILINE)
    lines = [json.loads(line) for line in (folder / "requests.jsonl").read_text().splitlines()[:-1]]
    errors = Counter((one["route"], one["at"][14:16], int(one["at"][17:19]) // 30)
                     for one in lines if one["status"] >= 500)  # fmt: skip
    assert found == [(route, "email", str(count)) for (route, *_), count in errors.items() if count > 20]
    assert len(found) == 1


@pytest.mark.long
def test_runs_share_an_engine_and_one_that_loses_it_goes_on_alone(project: Path) -> None:
    words = ("tocsin.cli", "test", "new_network", "--json")

    def engine() -> psutil.Process:
        (lock,) = (project / "tmp").glob("tocsin-*/*/lock")
        return psutil.Process(int(lock.read_text()))

    def is_attached() -> bool:
        return any("cases" in life.read_text() for life in (project / "tmp").glob("tocsin-*/*/engines/test-1.*.json"))

    with ThreadPoolExecutor() as threads:
        both = [threads.submit(run, project, *words, engine=True) for _ in range(2)]
        done = [one.result() for one in both]
        assert [(one.returncode, one.stderr) for one in done] == [(0, "")] * 2, [one.stdout for one in done]
        first, (folder,) = engine(), (project / "tmp").iterdir()  # and no files of the runs
        assert folder.stat().st_mode & 0o777 == 0o700
        beside = threads.submit(run, project, *words, "--ways", "batch,each-event", engine=True)
        interrupted = start(project, *words, engine=True)
        await_that(lambda: [*(project / "tmp").glob("tocsin-*/run-1/shuffled*")])  # the other one has no such way
        interrupted.send_signal(signal.SIGINT)
        assert "Traceback" not in interrupted.communicate()[1]
        assert interrupted.returncode != 0
        assert beside.result().returncode == 0
        await_that(lambda: not is_attached())
        cut = threads.submit(run, project, *words, "--ways", "batch,each-event", engine=True)
        await_that(is_attached)
        first.kill()
        assert cut.result().returncode == 0, cut.result().stderr
    assert run(project, *words, "--ways", "batch", engine=True).returncode == 0
    second = engine()
    assert second != first
    second.terminate()
    psutil.wait_procs([second], patient(20))


def test_pytest_has_a_test_for_each_case(project: Path) -> None:
    (project / "detectors" / "single.py").write_text(SINGLE)
    (project / "test_single.py").write_text(TEST_FILE)
    strict = ("-W", "error", "-W", "ignore::ResourceWarning")  # py4j leaves its sockets to the garbage collector
    done = run(project, "pytest", "-q", "-p", "no:cacheprovider", *strict, "test_single.py")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "1 failed, 2 passed" in done.stdout
    assert "FAILED single: wrong (" in done.stdout
    assert "batch, one-batch, each-event, shuffled, restarted, real-time:" in done.stdout
    assert "Traceback" not in done.stdout


@pytest.mark.long
@pytest.mark.parametrize("shipped", SHIPPED, ids=lambda place: place.name)
def test_shipped_detectors_agree_in_all_ways_on_timelines_made_at_random(project: Path, shipped: Path) -> None:
    done = run(project, "tests.rig.random_timelines", str(shipped), "8", of=shipped)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found
    assert found == {detector: [] for detector in found}


@pytest.mark.long
def test_days_of_a_place_agree_in_all_ways(project: Path) -> None:
    """Those on which the clock of Berlin changes."""
    (project / "detectors" / "local_day.py").write_text(LOCAL_DAY)
    done = run(project, "tocsin.cli", "test", "local_day", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    (outcome,) = json.loads(done.stdout)["detectors"]
    assert [way["skipped"] for way in outcome["ways"]] == [""] * 6
    written = [case for case in outcome["cases"] if not case["is_generated"]]
    assert [case["windows"][0].split("  ")[0] for case in written] == [
        "2026-03-28 23:00:00 to 2026-03-29 22:00:00",
        "2026-10-24 22:00:00 to 2026-10-25 23:00:00",
    ]
