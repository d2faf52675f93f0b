"""Batches that spark-submit starts, as Airflow does, share one engine; each has its own findings and its own output."""

import shutil
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psutil
import pytest

from tests.rig.samples.project import copy_project
from tests.rig.samples.sealed_days import seal_day
from tests.rig.waiting import await_that
from tests.spark.sealing import login
from tocsin.declare.settings import Settings
from tocsin.history.backfill.backfill_ledger import Backfills
from tocsin.platform import fork_server
from tocsin.setup.java import find_java
from tocsin.setup.paths import here
from tocsin.supervise.installed_jobs import job_environment

DAY = datetime.now(UTC).date() - timedelta(days=2)
EACH = '''"""Each login."""
import sys
from dataclasses import dataclass

from tocsin import Event, Levels, StepFinding, detector


@dataclass(frozen=True)
class Seen:
    count: int = 0


@detector(source="logins", entity="user_id", window=None, forget_after="1 hour", levels=Levels(email=0),
          owner="a@example.com", runbook="r", stage="live")
def step(key: str, state: Seen, event: Event) -> tuple[Seen, list[StepFinding]]:
    print(f"NAME saw {key}", file=sys.stderr, flush=True)
    return state, [StepFinding(1, {})]
'''


@pytest.mark.long  # tests/browser has a night, whose programs share one as well
def test_programs_side_by_side_start_one_engine_and_keep_their_output(tmp_path: Path) -> None:
    settings, jobs = Settings(project=tmp_path / "project", state=tmp_path / "state"), here().root / "spark_jobs"
    copy_project(settings.project, "sources")
    (settings.project / "detectors").mkdir(exist_ok=True)
    seal_day(settings, DAY, [login(1, 60, day=DAY, user_id="ann")])
    names = ("first", "second", "third")
    for name in names:
        (settings.project / "detectors" / f"{name}.py").write_text(EACH.replace("NAME", name))
    environment = job_environment(settings, find_java().home)
    environment[fork_server.VARIABLE] = str(settings.state / fork_server.FOLDERS)

    def start(name: str, **more: str) -> subprocess.Popen[str]:
        jars = ",".join(map(str, sorted(here().jars("spark").glob("*.jar"))))
        options = ["--master", "local[2]", "--jars", jars]
        command = [str(jobs / "submit.sh"), *options, str(jobs / "backfill.py"), name]
        return subprocess.Popen(command, env=environment | more, stdout=-1, stderr=subprocess.STDOUT, text=True)

    programs = {name: start(name) for name in names[:2]}
    said = {name: program.communicate()[0] for name, program in programs.items()}
    (log,) = (settings.state / fork_server.FOLDERS).glob("*/engine.log")
    await_that((log.parent / fork_server.SOCKET).exists, 60)
    without_spark = {"SPARK_HOME": "/nowhere"}  # spark-submit ends at once
    programs["third"] = start("third", **without_spark)
    said["third"] = programs["third"].communicate()[0]
    assert [program.returncode for program in programs.values()] == [0, 0, 0], said
    assert {name: f"{name} saw ann" in text for name, text in said.items()} == dict.fromkeys(names, True), said
    for name in names:
        backfills = Backfills(settings, name)
        assert [one.score for one in backfills.findings(DAY, backfills.read().published[DAY])] == [1]
    assert log.read_text().count("job attached") == 3
    other = start("third", **without_spark, TOCSIN_SPARK__SHUFFLE_PARTITIONS="3")
    assert "/nowhere" in other.communicate()[0], "an engine of other settings is not for it"
    shutil.rmtree(log.parent)
    await_that(lambda: not _engines(settings), 60)


def _engines(settings: Settings) -> list[int]:
    """Those of the project: each ends when its folder is gone."""
    lines = [(process.pid, process.info["cmdline"] or []) for process in psutil.process_iter(["cmdline"])]
    return [pid for pid, words in lines if "tocsin.spark.batch_engine" in words and str(settings.project) in words]
