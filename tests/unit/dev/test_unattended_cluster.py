import threading
from pathlib import Path

import pytest

from tests.rig.kube_client import SETS
from tests.rig.kube_server import write_kubeconfig
from tests.rig.played_kubernetes import PlayedKubernetes
from tocsin.cli.output import console
from tocsin.dev.crew import Crew
from tocsin.dev.launcher import Options, up
from tocsin.dev.startup_progress import Plain
from tocsin.model.errors import ConfigError
from tocsin.project.catalog import Catalog
from tocsin.project.settings import load_settings
from tocsin.supervision.health import health
from tocsin.supervision.runners.runner_choice import process_reader
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
        played.refused.add(("GET", "statefulsets"))
        Crew(load_settings(project), tmp_path).tick(start=False)  # whoever only looks asks no API


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
