import threading
from pathlib import Path

import pytest

from tests.rig.kube_client import SETS
from tests.rig.kube_server import write_kubeconfig
from tests.rig.played_kafka import played_kafka
from tests.rig.played_kubernetes import PlayedKubernetes
from tests.rig.waiting import await_that
from tocsin.cli.output import console
from tocsin.dev import state_folder
from tocsin.dev.crew import Crew
from tocsin.dev.launcher import Options, up
from tocsin.dev.startup_progress import Plain
from tocsin.model.errors import ConfigError
from tocsin.project.catalog import Catalog
from tocsin.project.settings import load_settings
from tocsin.runtime.heartbeat import read_beat
from tocsin.supervision.health import health
from tocsin.supervision.runners.runner_choice import process_reader, runner_of
from tocsin.supervision.snapshot import look


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "tocsin.toml").write_text('[runner]\nkind = "kubernetes"\nimage = "tocsin:1"\n', encoding="utf-8")
    return tmp_path


def test_the_jobs_of_a_cluster_outlive_their_supervisor(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with PlayedKubernetes(tmp_path / "node") as played:
        played.node.is_away = True
        monkeypatch.setenv("KUBECONFIG", str(write_kubeconfig(tmp_path / "config.json", played.client.url, "jobs")))
        crew = Crew(load_settings(project), tmp_path)
        assert not crew.tick(start=True), "no job has reported yet"
        crew.stop()
        assert _jobs(played) == ["indexer", "notifier"]
        with played.refusing("list", "statefulsets"):
            Crew(load_settings(project), tmp_path).tick(start=False)  # whoever only looks asks no API


def test_a_real_job_is_known_by_the_number_that_it_reports(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with played_kafka("job-metrics", "findings") as kafka, PlayedKubernetes(tmp_path / "node") as played:
        monkeypatch.setenv("KUBECONFIG", str(write_kubeconfig(tmp_path / "config.json", played.client.url, "jobs")))
        settings = load_settings(project).model_copy(update={"kafka": kafka})
        state_folder.prepare(settings.state)
        crew, runner = Crew(settings, tmp_path), runner_of(settings)

        def numbers() -> set[int]:
            crew.tick(start=True)
            beats = [read_beat(settings.state, job) for job in ("indexer", "notifier")]
            return {beat.report.pid for beat in beats if beat is not None}

        await_that(lambda: numbers() == {process.pid for process in runner.list()}, 60)
        for process in runner.list():
            runner.stop(process)
        await_that(lambda: not runner.list(), 40)
        assert {runner.exit_code(job) for job in ("indexer", "notifier")} == {0}
        crew.stop()


def _jobs(played: PlayedKubernetes) -> list[str]:
    return sorted(one["metadata"]["annotations"]["tocsin/job"] for one in played.client.items(SETS))


def test_a_reader_of_a_cluster_asks_no_api_and_goes_by_reports(project: Path) -> None:
    settings = load_settings(project)
    snapshot = look(settings, Catalog(), process_reader(settings)())
    assert snapshot.facts("indexer").processes is None
    assert health(snapshot.facts("indexer")).word == "missing"


def test_a_stack_refuses_jobs_that_could_not_reach_it(project: Path) -> None:
    with pytest.raises(ConfigError, match=r'runner\.kind: must be "local" for a stack'):
        up(project, Options(), Plain(console()), threading.Event())
