"""The DAG files, read by Airflow itself."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tocsin.provision.paths import here

ROOT = here().root
DAGS = ROOT / "dags"
OURS = {"batch", "detector__failed_logins", "history__logins", "housekeeping", "platform", "supervisor"}
HEAVY = {"confluent_kafka", "detectors", "failed_logins", "great_expectations", "numpy", "pandas", "pyarrow", "pyspark"}


class Project:
    """Our sources and detectors, as an installation of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for kind in ("sources", "detectors"):
            shutil.copytree(ROOT / kind, folder / kind, ignore=shutil.ignore_patterns("__pycache__"))

    def declare(self, name: str, old: str = "", new: str = "") -> None:
        text = (self.folder / "detectors" / "failed_logins.py").read_text()
        assert old in text
        (self.folder / "detectors" / f"{name}.py").write_text(text.replace(old, new))

    def read(self, *arguments: str) -> dict[str, Any]:
        """What Airflow finds."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("AIRFLOW", "TOCSIN"))}
        own = {
            "AIRFLOW_HOME": str(self.folder / "airflow"),
            "AIRFLOW__CORE__DAGS_FOLDER": str(DAGS),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "TOCSIN_PROJECT": str(self.folder),
            "TOCSIN_STATE": str(self.folder / "state"),
        }
        python = here().airflow_venv / "bin" / "python"
        command = [str(python), str(Path(__file__).with_name("read_dags.py")), str(DAGS), *arguments]
        done = subprocess.run(command, env=kept | own, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr
        found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return found


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return Project(tmp_path_factory.mktemp("project")).read()


def test_the_dags_are_there_without_an_error(found: dict[str, Any]) -> None:
    assert found["errors"] == {}
    assert set(found["dags"]) == OURS


def test_nothing_heavy_is_imported_to_read_them(found: dict[str, Any]) -> None:
    assert HEAVY & set(found["modules"]) == set()
    assert "tocsin" in found["modules"]


def test_each_says_what_it_is_and_whose(found: dict[str, Any]) -> None:
    for name, dag in found["dags"].items():
        assert dag["tags"], name
        assert dag["description"], name
        assert len(dag["doc"]) > 100, name
        assert Path(dag["file"]).parent == DAGS, name
        assert not dag["paused"], name
    detector = found["dags"]["detector__failed_logins"]
    assert detector["owner"] == "security@example.com"
    assert detector["mail"] == ["security@example.com"]
    assert found["dags"]["platform"]["mail"] == ["platform@example.com"]
    assert detector["tags"] == ["detector", "live", "logins"]
    assert "Misses: slow guessing" in detector["doc"]
    assert detector["schedule"] == "None"


def test_the_form_of_a_detector_offers_what_can_be_done(found: dict[str, Any]) -> None:
    params = found["dags"]["detector__failed_logins"]["params"]
    assert list(params) == ["action", "version"]
    actions = ["restart", "status", "roll back", "roll forward"]
    assert (params["action"]["default"], params["action"]["enum"]) == ("restart", actions)
    assert found["dags"]["platform"]["params"]["job"]["enum"] == ["ingest:logins", "indexer", "notifier"]


def test_the_supervisor_is_alone_and_never_tried_again(found: dict[str, Any]) -> None:
    supervisor = found["dags"]["supervisor"]
    assert supervisor["max_active_runs"] == 1
    assert supervisor["retries"] == {"look": 0, "tell": 0}
    assert supervisor["pools"] == ["default_pool", "supervision"]


def test_history_is_landed_each_hour_and_its_source_owner_hears_of_a_failure(found: dict[str, Any]) -> None:
    history = found["dags"]["history__logins"]
    assert history["schedule"] != "None"
    assert (history["max_active_runs"], history["mail"]) == (1, ["platform@example.com"])
    assert history["retries"] == {"land": 2, "is_night": 0, "seal": 1}
    assert history["pools"] == ["backfill", "default_pool"]


def test_a_broken_detector_is_shown_as_such_and_hides_nothing(project: Project) -> None:
    project.declare("other", '"10 seconds"', '"ten seconds"')
    project.declare("raises", "from pyspark", "raise SystemExit('imported')  # from pyspark")
    (project.folder / "detectors" / "worse.py").write_text("def detect(:")
    found = project.read()
    assert found["errors"] == {}
    assert set(found["dags"]) == OURS | {f"detector__{name}" for name in ("other", "raises", "worse")}
    broken = {name for name, dag in found["dags"].items() if "broken" in dag["tags"]}
    assert broken == {"detector__other", "detector__worse"}, "one that raises is not imported, so it looks well"
    assert "ten seconds" in found["dags"]["detector__other"]["doc"]


def test_a_task_reads_its_own_dag_alone(project: Project) -> None:
    project.declare("other")
    found = project.read("detector__other")
    assert {name for name in found["dags"] if name.startswith("detector__")} == {"detector__other"}


def test_thirty_detectors_are_read_in_a_moment(project: Project) -> None:
    for number in range(29):
        project.declare(f"light_{number}")
    found = project.read()
    assert len(found["dags"]) == len(OURS) + 29
    assert found["seconds"] < 10, "Airflow reads them again every few seconds"
