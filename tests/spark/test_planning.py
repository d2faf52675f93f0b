"""`tocsin check --plan`: what Spark would refuse is told before any job starts."""

import json
import os
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.rig.command_line import call
from tests.rig.samples.project import copy_project
from tocsin.spark import session

DETECTOR = '''"""Logins of one user. Which ones, the test says."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from tocsin import Levels, detector


@detector(
    source="logins",
    entity="user_id",
    window="10 seconds",
    levels=Levels(email=50),
    owner="security@example.com",
    runbook="docs/runbooks/failed_logins.md",
    stage="draft",
)
def detect(events: DataFrame) -> DataFrame:
    return events.where("{condition}").groupBy("window", "user_id").agg({score}.alias("score"))
'''
CODES = """title = "Codes"
format = "regex"
pattern = '(?<code>[A-Z]+)(?(1) ok| failed) (?<at>.*)'
event_time = "at"
key = "code"
lateness = "10 seconds"
owner = "ops@example.com"

[schema]
code = "string"
at = "timestamp"
"""


def check(project: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Check `project`, as somebody would whose PYTHONPATH holds modules that no job finds."""
    write_runbook(project)
    (project / "own").mkdir()
    (project / "own" / "found_by_nobody_else.py").touch()
    environment = os.environ | {"TOCSIN_PROJECT": str(project), "TOCSIN_STATE": str(project / "state")}
    environment["PYTHONPATH"] = str(project / "own")
    command = [sys.executable, "-m", "tocsin.cli", "check", "--plan", *options]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600, check=False)


def write_runbook(project: Path) -> None:
    (project / "docs" / "runbooks").mkdir(parents=True)
    (project / "docs" / "runbooks" / "failed_logins.md").touch()


def test_what_is_right_is_told_with_its_mode_and_kind_of_score(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy_project(tmp_path)
    write_runbook(tmp_path)
    monkeypatch.setenv("TOCSIN_PROJECT", str(tmp_path))
    monkeypatch.setattr(session, "planning_session", lambda _: nullcontext(spark))
    code, said = call("check", "--plan")
    assert code == 0
    assert "failed_logins: real-time (every operator of the plan runs in real-time mode); the score is rising" in said
    assert "; findings come about 100 ms after the event\n" in said
    assert said.endswith("1 source and 1 detector well declared\n")


def test_what_spark_and_java_refuse_is_told_all_at_once(tmp_path: Path) -> None:
    copy_project(tmp_path, "sources")
    (tmp_path / "sources" / "codes.toml").write_text(CODES)
    (tmp_path / "detectors").mkdir()
    made = {"unknown": ("acton = 'x'", 'F.count("*")'), "unkind": ("1 = 1", 'F.sum("schema_version")')}
    for name, (condition, score) in made.items():
        text = DETECTOR.replace("{condition}", condition).replace("{score}", score)
        (tmp_path / "detectors" / f"{name}.py").write_text(text)
    write_suite(tmp_path, r"^a{,3}$")
    text = (tmp_path / "detectors" / "unkind.py").read_text()
    lost = text.replace("from tocsin import", "import found_by_nobody_else\nfrom tocsin import")
    (tmp_path / "detectors" / "lost.py").write_text(lost)
    done = check(tmp_path, "--json")
    assert (done.returncode, done.stderr) == (1, ""), "no word of Spark or Java"
    faults = {(Path(fault["where"]).name, fault["key"]): fault["what"] for fault in json.loads(done.stdout)}
    assert "is not a Java regular expression: Unknown inline modifier" in faults["codes.toml", "pattern"]
    assert "acton" in faults["unknown.py", "detect"]
    assert "neither rising nor final" in faults["unkind.py", "score"]
    assert "is not a Java regular expression: Illegal repetition" in faults["logins.rows.json", "action_matches.regex"]
    assert "No module named 'found_by_nobody_else'" in faults["lost.py", None]
    assert len(faults) == 5
    assert not (tmp_path / "state").exists()


def write_suite(project: Path, regex: str) -> None:
    (project / "expectations").mkdir()
    rule = {"type": "expect_column_values_to_match_regex", "kwargs": {"column": "action", "regex": regex}}
    suite = {"name": "logins.rows", "expectations": [rule]}
    (project / "expectations/logins.rows.json").write_text(json.dumps(suite))
