import threading
from pathlib import Path

import pytest

from tocsin.cli.output import console
from tocsin.declare.catalog import Catalog
from tocsin.declare.model.errors import ConfigError
from tocsin.declare.settings import load_settings
from tocsin.dev.launcher import Options, up
from tocsin.dev.startup_progress import Plain
from tocsin.supervise.installed_jobs import process_reader
from tocsin.supervise.job_status import look


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "tocsin.toml").write_text('[runner]\nkind = "kubernetes"\nimage = "tocsin:1"\n', encoding="utf-8")
    return tmp_path


def test_a_reader_of_a_cluster_asks_no_api_and_goes_by_reports(project: Path) -> None:
    settings = load_settings(project)
    snapshot = look(settings, Catalog(), process_reader(settings)())
    assert snapshot.facts("indexer").processes is None
    assert snapshot.status("indexer").health == "missing"


def test_a_stack_refuses_jobs_that_could_not_reach_it(project: Path) -> None:
    with pytest.raises(ConfigError, match=r'runner\.kind: must be "local" for a stack'):
        up(project, Options(), Plain(console()), threading.Event())
