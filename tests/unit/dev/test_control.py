from pathlib import Path

import pytest

from tocsin.declare.model.errors import ConfigError
from tocsin.declare.settings import Settings
from tocsin.dev import control, state_folder
from tocsin.dev.state_folder import Running, announce
from tocsin.platform.lock import hold
from tocsin.supervise.switches import ask_switches

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(project=tmp_path, state=tmp_path / "state")


def test_without_a_stack_there_are_no_servers_and_there_is_nothing_to_stop(settings: Settings) -> None:
    assert control.launcher_pid(settings) is None
    assert not control.down(settings)
    assert control.servers(settings) == []
    assert not settings.state.exists(), "looking makes nothing"


def test_servers_are_listed_while_a_launcher_runs_here(settings: Settings) -> None:
    with hold(settings.state / state_folder.LOCK):
        announce(settings.state, Running(1, 9092, 1025, 8430, 8431, 8435, "http://127.0.0.1:1080", None))
        found = control.servers(settings)
    assert [(server.job, server.runs, server.standing) for server in found] == [
        ("kafka", False, "warning"),
        ("mail", False, "warning"),
    ]


def test_the_holder_of_the_lock_is_the_launcher(settings: Settings) -> None:
    with hold(settings.state / state_folder.LOCK):
        assert control.launcher_pid(settings) is not None
    assert control.launcher_pid(settings) is None


def test_an_unknown_component_is_told_the_nearest(settings: Settings) -> None:
    assert control.component_log(settings, "kafka") == str(settings.log("kafka"))
    with pytest.raises(ConfigError, match="did you mean 'notifier'"):
        control.component_log(settings, "notifer")


@pytest.mark.parametrize("airflow", ["http://127.0.0.1:8080", None])
def test_a_detector_that_is_paused_in_airflow_need_not_run_while_airflow_does(
    tmp_path: Path, airflow: str | None
) -> None:
    settings = Settings(project=ROOT, state=tmp_path)
    ask_switches(settings.state, ["detector__failed_logins"], lambda _: True)
    announce(settings.state, Running(1, 9092, 1025, 8430, 8431, 8435, "http://127.0.0.1:1080", airflow))
    assert ("detector:failed_logins" in control.wanted_jobs(settings)) == (airflow is None)
    assert "ingest:logins" in control.wanted_jobs(settings)
