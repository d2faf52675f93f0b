"""A launcher: processes that another one left behind, what it shows while it starts, and how others see it."""

import io
import threading
import time
from pathlib import Path
from unittest.mock import MagicMock

import pytest
from rich.console import Console

from tests.unit.supervise.dummies import SLEEP, launch
from tocsin.declare.model.errors import ConfigError
from tocsin.declare.settings import Settings
from tocsin.dev import control, state_folder
from tocsin.dev.launcher import Options, servers_instance, sweep, up
from tocsin.dev.startup_progress import Part, Plain, Redrawn, progress
from tocsin.dev.state_folder import Running, announce
from tocsin.platform import state_file
from tocsin.platform.heartbeat import note_look
from tocsin.platform.lock import hold
from tocsin.supervise.runners.local import LocalRunner
from tocsin.supervise.runners.runner import Labels, instance_of
from tocsin.supervise.switches import Switches


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


WAITING = Part("kafka", False, "waiting for port 9092")
READY = Part("kafka", True, "ready")


def _sentences(stream: io.StringIO) -> list[str]:
    return [line.split(" s  ", 1)[1] for line in stream.getvalue().splitlines()]


def test_without_a_terminal_each_change_is_one_line() -> None:
    stream = io.StringIO()
    shown = progress(stream)
    assert isinstance(shown, Plain)
    for lines in ([WAITING], [WAITING], [READY], [READY]):
        shown.show(lines)
    shown.say("ready after 12 s\nCtrl-C stops everything")
    assert _sentences(stream) == [
        "kafka: waiting for port 9092",
        "kafka: ready",
        "ready after 12 s",
        "Ctrl-C stops everything",
    ]


def test_nothing_in_a_reason_acts_on_the_terminal() -> None:
    stream = io.StringIO()
    Plain(Console(file=stream, highlight=False)).show([Part("notifier", False, "\x1b]0;owned\x07 a\nb \u202e")])
    assert _sentences(stream) == [r"notifier: \x1b]0;owned\x07 a\nb \u202e"]


def test_on_a_terminal_a_table_goes_over_into_lines_of_what_changed_after() -> None:
    stream = io.StringIO()
    shown = Redrawn(Console(file=stream, force_terminal=True, width=80, highlight=False))
    shown.show([WAITING])
    shown.show([READY])
    shown.settle()
    shown.settle()
    before = len(stream.getvalue())
    shown.show([READY])
    assert len(stream.getvalue()) == before
    shown.show([WAITING])
    assert "kafka: waiting for port 9092" in stream.getvalue()[before:]


# --- seen by others ---------------------------------------------------------------------------------------------------


ROOT = Path(__file__).resolve().parents[3]


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


@pytest.mark.parametrize(("ago", "is_wanted"), [(60, False), (200, True)])
def test_a_detector_that_is_paused_in_airflow_need_not_run_while_airflow_supervises(
    tmp_path: Path, ago: int, is_wanted: bool
) -> None:
    """Airflow reads the switches at each look; whoever looked last long after they were read does without them."""
    settings = Settings(project=ROOT, state=tmp_path)
    switches = Switches(off={"detector__failed_logins": True}, read_at=time.time() - ago)
    state_file.write(tmp_path / "supervision" / "desired.json", Switches, switches)
    note_look(tmp_path, "jobs")
    assert ("detector:failed_logins" in control.wanted_jobs(settings)) == is_wanted
    assert "ingest:logins" in control.wanted_jobs(settings)
