"""A detector in an environment of its own: locked, installed without a network, and used by driver and workers."""

import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.rig.broker import Broker
from tests.rig.detect_job import Topic
from tests.rig.installation import Installation
from tests.rig.samples.sealed_days import events, seal_day
from tests.rig.spark_cluster import SparkCluster
from tests.rig.waiting import await_that
from tocsin.declare.catalog import read_catalog
from tocsin.declare.model.finding import Finding
from tocsin.declare.settings import Settings
from tocsin.history.backfill.backfill_ledger import Backfills
from tocsin.setup import install_stamp, python_env
from tocsin.setup.java import find_java
from tocsin.setup.paths import Paths, here
from tocsin.spark.tables.dated_versions import DatedVersions
from tocsin.supervise.installed_jobs import job_environment

ROOT = Path(__file__).parents[2]
NAME = f"test-{os.getpid()}"
DAY = datetime.now(UTC).date() - timedelta(days=2)
DETECTOR = '''"""Bursts, marked by a package of its own."""

import IMPORTED
from lib.marks import marked
from pyspark.sql import functions as F

from tocsin import Case, Levels, at, detector, email


@F.udf("string")
def mark(user):
    import sys

    return marked(VERSION, sys.prefix)


@detector(source="logins", entity="mark", window="10 seconds", levels=Levels(email=2), owner="a@example.com",
          runbook="docs/r.md", stage="live"ENVIRONMENT)
def detect(events):
    return events.withColumn("mark", mark("user_id")).groupBy("window", "mark").agg(F.count("*").alias("score"))


CASES = [
    Case("burst", events=at("12:00:00", user_id="a", action="login failed").repeat(3, every="1 second"),
         expect=[email(mark="MARK", window="12:00:00", score=3)]),
]
'''
TRAINED = '''"""Hours of a user by a model that only the environment can make and load."""

import tiny
from pyspark.sql import functions as F

from tocsin import Levels, Model, detector


@detector(source="logins", entity="user_id", window="1 hour", levels=Levels(email=0), owner="a@example.com",
          model=Model(days=7, min_rows=1), runbook="docs/r.md", stage="live", environment="ENVIRONMENT")
def detect(events):
    return events.groupBy("window", "user_id").agg(F.count("*").alias("logins"))


def train(features):
    return tiny.Version()


def score(features, model):
    return 0 * features["logins"] + model.number


CASES = []
'''
MARKS = "def marked(version, prefix):\n    return f\"{version} {prefix.rpartition('/')[2]}\"\n"
THERE, HERE = f"1.7 {NAME}", f"none {Path(sys.prefix).name}"


def _detector(imported: str, version: str, environment: str, mark: str) -> str:
    pairs = {"IMPORTED": imported, "VERSION": version, "ENVIRONMENT": environment, "MARK": mark}
    text = DETECTOR
    for word, value in pairs.items():
        text = text.replace(word, value)
    return text


def _declare(project: Path) -> None:
    files = {
        "detectors/marked.py": _detector("tiny", "tiny.VERSION", f', environment="{NAME}"', THERE),
        "detectors/plain.py": _detector("sys", "'none'", "", HERE),
        "detectors/trained.py": TRAINED.replace("ENVIRONMENT", NAME),
        "lib/marks.py": MARKS,
        f"environments/{NAME}.in": "./tiny-1.7-py3-none-any.whl\n",
        "sources/logins.toml": (ROOT / "sources" / "logins.toml").read_text(),
    }
    for name, text in files.items():
        (project / name).parent.mkdir(exist_ok=True, parents=True)
        (project / name).write_text(text)
    info = "tiny-1.7.dist-info"
    with zipfile.ZipFile(project / "tiny-1.7-py3-none-any.whl", "w") as wheel:
        wheel.writestr("tiny/__init__.py", "VERSION = 1.7\nclass Version:\n    number = VERSION\n")
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny\nVersion: 1.7\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", f"tiny/__init__.py,,\n{info}/METADATA,,\n{info}/WHEEL,,\n{info}/RECORD,,\n")


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("packages")
    _declare(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("UV_OFFLINE", "1")
        yield folder
    shutil.rmtree(here().environment(NAME), ignore_errors=True)


def _tocsin(project: Path, *words: str) -> tuple[int, str]:
    variables = os.environ | {"TOCSIN_PROJECT": str(project), "TOCSIN_STATE": str(project / "state")}
    command = [sys.executable, "-m", "tocsin.cli", *words]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def _install(project: Path) -> None:
    """Install what is locked, but for that of the project: this environment is that of all tests."""
    with install_stamp.alone(here().home):
        paths = Paths(here().root, here().home, project)
        python_env.install_environment(paths, NAME, project / "environments" / f"{NAME}.txt")


def test_a_detector_runs_in_an_environment_of_its_own(project: Path) -> None:
    test = ("test", "marked", "--ways", "batch,one-batch", "--fresh")
    code, said = _tocsin(project, *test)
    assert (code, f"has no {NAME}.txt; run: tocsin packages" in said) == (2, True)
    assert _tocsin(project, "packages", "--lock-only")[0] == 0
    code, said = _tocsin(project, *test)
    assert (code, "is not installed here; run: tocsin packages" in said) == (2, True)
    _install(project)
    code, said = _tocsin(project, *test)
    assert code == 0, said


@pytest.fixture
def installed(project: Path) -> Path:
    _tocsin(project, "packages", "--lock-only")
    _install(project)
    return project


@pytest.mark.long
@pytest.mark.parametrize("where", ["on an engine", "on a cluster"])
def test_batches_of_airflow_train_and_run_each_detector_in_its_environment(
    installed: Path, tmp_path: Path, where: str
) -> None:
    settings, jobs = Settings(project=installed, state=tmp_path / "state"), here().root / "spark_jobs"
    jars = ",".join(map(str, sorted(here().jars("spark").glob("*.jar"))))
    for day in (DAY - timedelta(days=2), DAY):
        seal_day(settings, day, events(4, day).to_pylist())
    with ExitStack() as stack:
        master = "local[2]"
        if where == "on a cluster":
            cluster = SparkCluster(tmp_path)
            stack.callback(cluster.stop)
            cluster.start()
            master = cluster.master
        for program in (["refresh_tables.py", "logins"], ["backfill.py", "marked", "plain", "trained", f"--day={DAY}"]):
            command = [f"{jobs}/submit.sh", "--master", master, "--jars", jars, f"{jobs}/{program[0]}", *program[1:]]
            environment = job_environment(settings, find_java().home)
            done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stdout + done.stderr

    def found(name: str) -> list[Finding]:
        backfills = Backfills(settings, name)
        return list(backfills.findings(DAY, backfills.read().published[DAY]))

    today = datetime.now(UTC).date()
    known = DatedVersions(settings, read_catalog(installed).table("model.trained")).read()
    assert {version.day for version in known} >= {today, today + timedelta(days=1)}
    assert {finding.entity["mark"] for finding in found("marked")} == {THERE}
    assert {finding.entity["mark"] for finding in found("plain")} == {HERE}
    assert {finding.score for finding in found("trained")} == {1.7}
    for log in (settings.state / "batches").glob("*/engine.log"):
        assert "job attached" in log.read_text()
        shutil.rmtree(log.parent)  # it ends
    assert (settings.state / "batches").exists() == (where == "on an engine")


@pytest.mark.long
def test_a_stream_runs_in_its_environment(installed: Path, broker: Broker, tmp_path: Path) -> None:
    with Installation(tmp_path, broker) as one:
        shutil.copytree(installed, one.settings.project, dirs_exist_ok=True, ignore=shutil.ignore_patterns("state"))
        one.make_topics()
        one.start("detector:marked")
        one.await_ready("detector:marked")
        topic = Topic(one.settings)
        topic.burst("a", 4)
        topic.tick(datetime.now(UTC) + timedelta(minutes=1))
        topic.flush()
        await_that(lambda: one.values(one.settings.names.findings), 60)
        assert {finding["entity"]["mark"] for finding in one.values(one.settings.names.findings)} == {THERE}
