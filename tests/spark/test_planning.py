"""`tocsin check --plan`: what Spark would refuse is told before any job starts. Each call has a JVM of its own."""

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.rig.samples.project import copy_project

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
    (project / "docs" / "runbooks").mkdir(parents=True)
    (project / "docs" / "runbooks" / "failed_logins.md").touch()
    (project / "own").mkdir()
    (project / "own" / "found_by_nobody_else.py").touch()
    environment = os.environ | {"TOCSIN_PROJECT": str(project), "TOCSIN_STATE": str(project / "state")}
    environment["PYTHONPATH"] = str(project / "own")
    command = [sys.executable, "-m", "tocsin.cli", "check", "--plan", *options]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600, check=False)


def test_what_is_right_is_told_with_its_mode_and_kind_of_score(tmp_path: Path) -> None:
    copy_project(tmp_path)
    done = check(tmp_path)
    assert (done.returncode, done.stderr) == (0, ""), "no word of Spark or Java"
    assert (
        "failed_logins: real-time (every operator of the plan runs in real-time mode); the score is rising"
        in done.stdout
    )
    assert "; findings come about 100 ms after the event\n" in done.stdout
    assert done.stdout.endswith("1 source and 1 detector well declared\n")
    assert not (tmp_path / "state").exists()


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
    assert (done.returncode, done.stderr) == (1, "")
    faults = {(Path(fault["where"]).name, fault["key"]): fault["what"] for fault in json.loads(done.stdout)}
    assert "is not a Java regular expression: Unknown inline modifier" in faults["codes.toml", "pattern"]
    assert "acton" in faults["unknown.py", "detect"]
    assert "neither rising nor final" in faults["unkind.py", "score"]
    assert "is not a Java regular expression: Illegal repetition" in faults["logins.rows.json", "action_matches.regex"]
    assert "No module named 'found_by_nobody_else'" in faults["lost.py", None]
    assert len(faults) == 5


def write_suite(project: Path, regex: str) -> None:
    (project / "expectations").mkdir()
    rule = {"type": "expect_column_values_to_match_regex", "kwargs": {"column": "action", "regex": regex}}
    suite = {"name": "logins.rows", "expectations": [rule]}
    (project / "expectations/logins.rows.json").write_text(json.dumps(suite))
