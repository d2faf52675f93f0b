"""What a launcher does about processes that another one left behind."""

from __future__ import annotations

import threading
from pathlib import Path
from unittest.mock import MagicMock

import pytest

from tests.unit.supervise.dummies import SLEEP, launch
from tocsin.declare.model.errors import ConfigError
from tocsin.declare.settings import Settings
from tocsin.dev.launcher import Options, servers_instance, sweep, up
from tocsin.supervise.runners.local import LocalRunner
from tocsin.supervise.runners.runner import Labels, instance_of


@pytest.mark.parametrize("jobs", [True, False])
def test_jobs_are_left_to_be_adopted_and_servers_are_not(tmp_path: Path, *, jobs: bool) -> None:
    settings = Settings(state=tmp_path)
    runners = {name: LocalRunner(name, settings.log) for name in (servers_instance(settings), instance_of(settings))}
    for name, runner in runners.items():
        runner.start(launch(tmp_path, Labels(name, "kafka" if "servers" in name else "notifier", "v1"), SLEEP))
    try:
        assert sweep(settings, jobs=jobs) == (2 if jobs else 1)
        assert [len(runner.list()) for runner in runners.values()] == [0, 0 if jobs else 1]
    finally:
        sweep(settings)
        for runner in runners.values():
            assert not runner.list()


@pytest.mark.parametrize(
    ("key", "lines"),
    [
        ("storage.checkpoints", 'instance = "prod"\n[storage]\ncheckpoints = "file:/mnt/shared"'),
        ("spark.master", '[spark]\nmaster = "spark://one:7077"\ndriver_host = "jobs"'),
        ("runner.kind", '[runner]\nkind = "kubernetes"\nimage = "tocsin"'),
    ],
)
def test_a_stack_touches_nothing_that_machines_share(tmp_path: Path, key: str, lines: str) -> None:
    (tmp_path / "tocsin.toml").write_text(lines)
    with pytest.raises(ConfigError, match=f"{key}: must be"):
        up(tmp_path, Options(reset=True), MagicMock(), threading.Event())
    assert not (tmp_path / ".tocsin").exists()
