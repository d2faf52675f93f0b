import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.rig.samples.project import copy_project
from tocsin.declare.blocks.spark_settings import EngineSettings, SparkSettings
from tocsin.declare.catalog import read_catalog
from tocsin.declare.setting_blocks import DrainSettings, KafkaSettings, PodSettings, RunnerSettings, SmtpSettings
from tocsin.declare.settings import Settings
from tocsin.supervise.job_kinds import desired_jobs
from tocsin.supervise.job_states import UNREADABLE, Desired
from tocsin.supervise.job_status import look
from tocsin.supervise.planning.job_inputs import changed_inputs

ROOT = Path(__file__).resolve().parents[3]
INGEST, DETECTOR, ENGINE = "ingest:logins", "detector:failed_logins", "engine:live-1"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    copy_project(tmp_path)
    second = (tmp_path / "detectors" / "failed_logins.py").read_text()
    (tmp_path / "detectors" / "second.py").write_text(second)
    return tmp_path


def _jobs(project: Path, settings: Settings | None = None) -> dict[str, Desired]:
    return desired_jobs(read_catalog(project), settings or Settings(project=project))


def _changed(before: dict[str, Desired], after: dict[str, Desired]) -> set[str]:
    return {job for job in before.keys() | after.keys() if before.get(job) != after.get(job)}


def _edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def test_the_jobs_in_the_order_of_the_flow(project: Path) -> None:
    assert list(_jobs(project)) == [ENGINE, INGEST, DETECTOR, "detector:second", "indexer", "notifier", "web"]


def test_another_process_comes_to_the_same(project: Path) -> None:
    """Sets have another order in each process."""
    with (project / "sources" / "logins.toml").open("a") as source:
        source.writelines(f'{name} = "string"\n' for name in ("country", "device", "session", "tenant", "browser"))
    code = (
        "import sys; from pathlib import Path; from tocsin.declare.catalog import read_catalog;"
        "from tocsin.declare.settings import Settings; from tocsin.supervise.job_kinds import desired_jobs;"
        "p = Path(sys.argv[1]); print(desired_jobs(read_catalog(p), Settings(project=p)))"
    )
    said = {
        subprocess.run(
            [sys.executable, "-c", code, str(project)],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(said) == 1
    assert said.pop().count("ingest:logins") == 1


@pytest.mark.parametrize("stage", ["draft", "retired"])
def test_a_detector_that_does_not_run_has_no_job(project: Path, stage: str) -> None:
    _edit(project / "detectors" / "second.py", 'stage="live"', f'stage="{stage}"')
    assert "detector:second" not in _jobs(project)


SECOND, SOURCE = "detectors/second.py", "sources/logins.toml"


@pytest.mark.parametrize(
    ("file", "old", "new", "concerned"),
    [
        (SECOND, "urgent=100", "urgent=101", {"detector:second"}),
        (SECOND, "security@example.com", "other@example.com", set()),  # does not touch findings
        (SECOND, 'stage="live"', 'stage="shadow"', {"detector:second", "engine:shadow-1"}),
        (SECOND, 'stage="live"', 'stage="live", latency="100 ms"', {"detector:second"}),
        (SECOND, 'stage="live"', 'stage="live", latency="10 ms"', {"detector:second", "engine:live_10ms-1"}),
        (SECOND, 'stage="live"', 'stage="live", isolation=True', {"detector:second"}),
        (SOURCE, 'lateness = "10 seconds"', 'lateness = "11 seconds"', {INGEST, DETECTOR, "detector:second"}),
    ],
)
def test_an_edit_concerns_the_jobs_whose_results_it_may_change(
    project: Path, file: str, old: str, new: str, concerned: set[str]
) -> None:
    before = _jobs(project)
    _edit(project / file, old, new)
    assert _changed(before, _jobs(project)) == concerned


@pytest.mark.parametrize(
    ("engine", "engines"),
    [
        ({}, ["engine:live-1"]),
        ({"jobs": 1}, ["engine:live-1", "engine:live-2"]),
        ({"enabled": False}, []),
    ],
)
def test_as_many_engines_as_the_jobs_need(project: Path, engine: dict[str, Any], engines: list[str]) -> None:
    jobs = _jobs(project, Settings(project=project, engine=EngineSettings(**engine)))
    assert [job for job in jobs if job.startswith("engine")] == engines


def test_jobs_elsewhere_share_no_engine(project: Path) -> None:
    for elsewhere in (
        Settings(project=project, spark=SparkSettings(master="spark://127.0.0.1:1")),
        Settings(project=project, runner=RunnerSettings(kind="kubernetes", image="shop:1")),
    ):
        assert not [job for job in _jobs(project, elsewhere) if job.startswith("engine")]


def test_a_declared_memory_is_a_limit_and_replaces_nothing(project: Path) -> None:
    before = _jobs(project)["detector:second"]
    _edit(project / "detectors" / "second.py", 'stage="live"', 'stage="live", memory="900 MB"')
    after = _jobs(project)["detector:second"]
    assert (before.memory_bytes, after.memory_bytes) == (2_012_000_000, 900_000_000)
    assert after.spec == before.spec


def test_in_a_cluster_what_a_pod_gets_is_an_input_of_its_job(project: Path) -> None:
    def jobs(**pods: PodSettings) -> dict[str, Desired]:
        runner = RunnerSettings(kind="kubernetes", image="shop:1", pods=pods)
        return _jobs(project, Settings(project=project, runner=runner))

    before = jobs()
    assert _changed(before, jobs(indexer=PodSettings(memory_mb=300))) == {"indexer"}
    assert _changed(before, jobs(detector=PodSettings(cpu="2"))) == {DETECTOR, "detector:second"}
    _edit(project / "detectors" / "second.py", 'stage="live"', 'stage="live", memory="1 GB"')
    after = jobs()
    assert _changed(before, after) == {"detector:second"}
    old, new = before["detector:second"], after["detector:second"]
    assert changed_inputs(old.inputs, new.inputs) == ["its pod.requested memory", "its pod.memory limit"]


def test_a_job_with_many_partitions_may_have_as_many_workers_of_python(project: Path) -> None:
    path = project / "sources" / "logins.toml"
    _edit(path, "partitions = 2", "partitions = 20")
    wanted = _jobs(project)
    assert {wanted[job].memory_bytes for job in ("ingest:logins", "detector:second")} == {(2012 + 13 * 150) * 1_000_000}


@pytest.mark.parametrize(
    ("line", "concerned"),
    [
        ('title = "Other"', set()),
        ('owner = "other@example.com"', set()),
        ("history_days = 3", set()),
        ("partitions = 3", set()),
        ("max_bytes = 1000", {INGEST}),
        ('max_ahead = "1 second"', {INGEST}),
        ("schema_version = 2", {INGEST}),
    ],
)
def test_a_line_of_a_source_concerns_the_jobs_that_use_it(project: Path, line: str, concerned: set[str]) -> None:
    before, path = _jobs(project), project / "sources" / "logins.toml"
    key = line.partition(" ")[0]
    path.write_text("".join(one for one in path.read_text().splitlines(keepends=True) if not one.startswith(key)))
    _edit(path, "[schema]", f"{line}\n\n[schema]")
    assert _changed(before, _jobs(project)) == concerned


def test_a_broken_detector_is_left_alone_and_so_are_the_others(project: Path) -> None:
    before = _jobs(project)
    (project / "detectors" / "second.py").write_text("def (")
    after = _jobs(project)
    assert after["detector:second"] == UNREADABLE
    assert _changed(before, after) == {"detector:second"}


def test_a_broken_source_leaves_all_that_hangs_on_it_alone(project: Path) -> None:
    (project / "sources" / "logins.toml").write_text("= broken")
    after = _jobs(project)
    assert {job for job, wanted in after.items() if not wanted.readable} == {INGEST, DETECTOR, "detector:second"}


SPARK = {INGEST, DETECTOR, "detector:second"}


@pytest.mark.parametrize(
    ("change", "concerned"),
    [
        (
            lambda s: {"kafka": KafkaSettings(bootstrap_servers="127.0.0.1:2")},
            SPARK | {ENGINE, "indexer", "notifier", "web"},
        ),
        (lambda s: {"spark": SparkSettings(heap_mb=600)}, SPARK),
        (lambda s: {"spark": SparkSettings(master="spark://127.0.0.1:1")}, SPARK - {INGEST} | {ENGINE}),
        (lambda s: {"spark": SparkSettings(driver_host="jobs", conf={"spark.a": "b"})}, set()),
        (lambda s: {"smtp": SmtpSettings(port=26)}, {"notifier"}),
    ],
)
def test_a_setting_concerns_the_jobs_that_use_it(
    project: Path, change: Callable[[Settings], dict[str, object]], concerned: set[str]
) -> None:
    settings = Settings(project=project)
    after = settings.model_copy(update=change(settings))
    assert _changed(_jobs(project, settings), _jobs(project, after)) == concerned


def test_there_is_a_log_drain_where_somebody_may_send(project: Path) -> None:
    passwords = project / "passwords"
    settings = Settings(project=project, drain=DrainSettings(credentials_file=Path("passwords")))
    assert "drain" not in _jobs(project)
    without = _jobs(project, settings)
    passwords.write_text("logins:a")
    assert _changed(without, _jobs(project, settings)) == {"drain"}
    for one, shown in ((Settings(project=project), False), (settings, True)):
        assert ("drain" in look(one, read_catalog(project), []).jobs) == shown


def test_other_passwords_and_sources_concern_the_log_drain(project: Path) -> None:
    passwords = project / "passwords"
    passwords.write_text("logins:a")
    settings = Settings(project=project, drain=DrainSettings(credentials_file=passwords))
    before = _jobs(project, settings)
    os.utime(passwords, (1, 1))
    assert _changed(before, _jobs(project, settings)) == {"drain"}
    before = _jobs(project, settings)
    _edit(project / "sources" / "logins.toml", 'lateness = "10 seconds"', 'lateness = "20 seconds"')
    assert {"drain", INGEST} <= _changed(before, _jobs(project, settings))


def test_a_changed_flow_hands_over(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "examples" / "words", tmp_path, dirs_exist_ok=True)
    before = _jobs(tmp_path)
    assert before["flow:words"].hands_over
    _edit(tmp_path / "flows" / "words.py", "word != ''", "word != 'a'")
    assert _changed(before, _jobs(tmp_path)) == {"flow:words"}


def test_a_cluster_concerns_no_flow_and_takes_the_hand_over_from_detectors(project: Path, tmp_path: Path) -> None:
    shutil.copytree(ROOT / "examples" / "words", tmp_path / "words")
    spark, alone = SparkSettings(master="spark://127.0.0.1:1"), EngineSettings(enabled=False)
    here = Settings(project=tmp_path / "words", engine=alone)
    on_cluster = here.model_copy(update={"spark": spark})
    assert "flow:words" not in _changed(_jobs(tmp_path / "words", here), _jobs(tmp_path / "words", on_cluster))
    assert _jobs(tmp_path / "words", on_cluster)["flow:words"].hands_over
    assert _jobs(project)[DETECTOR].hands_over
    assert not _jobs(project, Settings(project=project, spark=spark))[DETECTOR].hands_over


def test_the_address_of_the_supervisors_pod_replaces_no_job_that_is_a_pod(project: Path) -> None:
    """The settings of a supervisor on Kubernetes carry it, and another one each time that it starts."""
    runner = RunnerSettings(kind="kubernetes", image="shop:1")

    def jobs(address: str, **more: Any) -> dict[str, Desired]:
        spark = SparkSettings(master="k8s://https://api", driver_host=address, **more)
        return _jobs(project, Settings(project=project, runner=runner, spark=spark))

    assert _changed(jobs("10.0.0.1"), jobs("10.0.0.2")) == set()
    assert _changed(jobs("10.0.0.1"), jobs("10.0.0.1", conf={"spark.a": "b"})) == {DETECTOR, "detector:second"}


def test_a_changed_view_replaces_the_job_that_computes_it_and_another_owner_does_not(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "examples" / "inventory", tmp_path, dirs_exist_ok=True)
    before, path = _jobs(tmp_path), tmp_path / "views" / "inventory.py"
    assert (before["compute:inventory"].heavy, before["compute:inventory"].hands_over) == (True, False)
    _edit(path, "platform@example.com", "stores@example.com")
    assert "compute:inventory" not in _changed(before, _jobs(tmp_path))
    _edit(path, "-F.col", "-2 * F.col")
    assert "compute:inventory" in _changed(before, _jobs(tmp_path))
    _edit(path, 'stage="live"', 'stage="draft"')
    assert "compute:inventory" not in _jobs(tmp_path)
