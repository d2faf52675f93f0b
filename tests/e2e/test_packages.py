"""A detector in an environment of its own: locked, installed without a network, and used by driver and workers."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tocsin.setup import install_stamp, python_env
from tocsin.setup.paths import Paths, here

ROOT = Path(__file__).parents[2]
NAME = f"test-{os.getpid()}"
DETECTOR = f'''"""Bursts, marked by a package of its own."""

import tiny
from lib.marks import marked
from pyspark.sql import functions as F

from tocsin import Case, Levels, at, detector, email


@F.udf("string")
def mark(user):
    import sys

    return marked(tiny.VERSION, sys.prefix)


@detector(source="logins", entity="user_id", window="10 seconds", levels=Levels(email=2), owner="a@example.com",
          runbook="docs/r.md", stage="shadow", environment="{NAME}")
def detect(events):
    ours = events.withColumn("mark", mark("user_id")).where(F.col("mark").endswith("7 {NAME}"))
    return ours.groupBy("window", "user_id").agg(F.count("*").alias("score"))


CASES = [
    Case("burst", events=at("12:00:00", user_id="a", action="login failed").repeat(3, every="1 second"),
         expect=[email(user_id="a", window="12:00:00", score=3)]),
]
'''
MARKS = "def marked(version, prefix):\n    return f\"{version} {prefix.rpartition('/')[2]}\"\n"


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Path]:
    files = {
        "detectors/marked.py": DETECTOR,
        "lib/marks.py": MARKS,
        f"environments/{NAME}.in": "./tiny-1.7-py3-none-any.whl\n",
        "sources/logins.toml": (ROOT / "sources" / "logins.toml").read_text(),
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    info = "tiny-1.7.dist-info"
    with zipfile.ZipFile(tmp_path / "tiny-1.7-py3-none-any.whl", "w") as wheel:
        wheel.writestr("tiny/__init__.py", "VERSION = 1.7\n")
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny\nVersion: 1.7\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", f"tiny/__init__.py,,\n{info}/METADATA,,\n{info}/WHEEL,,\n{info}/RECORD,,\n")
    yield tmp_path
    shutil.rmtree(here().environment(NAME), ignore_errors=True)


def test_a_detector_runs_in_an_environment_of_its_own(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UV_OFFLINE", "1")

    def tocsin(*words: str) -> tuple[int, str]:
        variables = os.environ | {"TOCSIN_PROJECT": str(project), "TOCSIN_STATE": str(project / "state")}
        command = [sys.executable, "-m", "tocsin.cli", *words]
        done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout + done.stderr

    test = ("test", "marked", "--ways", "batch,one-batch", "--fresh")
    code, said = tocsin(*test)
    assert (code, f"has no {NAME}.txt; run: tocsin packages lock" in said) == (2, True)
    assert tocsin("packages", "lock")[0] == 0
    code, said = tocsin(*test)
    assert (code, "is not installed here; run: tocsin packages install" in said) == (2, True)
    with install_stamp.alone(here().home):  # not of the project: this environment is that of all tests
        paths = Paths(here().root, here().home, project)
        python_env.install_environment(paths, NAME, project / "environments" / f"{NAME}.txt")
    code, said = tocsin(*test)
    assert code == 0, said
