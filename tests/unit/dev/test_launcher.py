"""What a launcher does about processes that another one left behind, and what it shows while it starts."""

from __future__ import annotations

import io
import threading
from pathlib import Path
from unittest.mock import MagicMock

import pytest
from rich.console import Console

from tests.unit.supervise.dummies import SLEEP, launch
from tocsin.declare.model.errors import ConfigError
from tocsin.declare.settings import Settings
from tocsin.dev.launcher import Options, servers_instance, sweep, up
from tocsin.dev.startup_progress import Part, Plain, Redrawn, progress
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
