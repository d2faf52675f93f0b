"""Starts of the stack that go wrong or are cut short; without sources, so that no Spark job is started."""

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.rig.stack import Stack
from tests.rig.waiting import await_that, patient


@pytest.fixture
def stack(tmp_path: Path) -> Iterator[Stack]:
    one = Stack(tmp_path, sources=False)
    yield one
    one.end()


def test_a_signal_in_the_middle_of_the_start_leaves_nothing(stack: Stack) -> None:
    stack.up("--free-ports")
    await_that(lambda: stack.pid("kafka") is not None or stack.ended(), 60)
    assert stack.send(signal.SIGINT) == 0, stack.said()
    assert stack.processes() == []
    assert stack.said().splitlines()[-1].endswith("stopped")


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the next start sweeps")
def test_killing_the_launcher_in_the_middle_of_the_start_leaves_nothing(stack: Stack) -> None:
    stack.up("--free-ports")
    await_that(lambda: stack.pid("mail") is not None or stack.ended(), 60)
    stack.send(signal.SIGKILL)
    await_that(lambda: not stack.processes(), 5)


@pytest.mark.long
def test_kafka_with_broken_data_is_a_clear_error_reset_helps_and_a_second_signal_ends_all_by_force(
    stack: Stack,
) -> None:
    stack.up("--free-ports")
    stack.ready()
    assert stack.send(signal.SIGHUP) == 0
    (stack.state / "kafka" / "data" / "meta.properties").write_text("version=1\nnode.id=7\ncluster.id=another\n")
    stack.up("--free-ports")
    await_that(stack.ended, 120)
    assert stack.launcher is not None
    assert stack.launcher.returncode == 1
    assert "kafka does not start: 4 failures" in stack.said()
    assert "Stored node id 7 doesn't match" in stack.said()
    assert stack.processes() == []
    stack.up("--free-ports", "--reset")
    stack.ready()
    kafka = stack.pid("kafka")
    assert kafka is not None
    assert stack.launcher is not None
    os.kill(kafka, signal.SIGSTOP)  # it will not obey
    stack.launcher.send_signal(signal.SIGTERM)
    await_that(lambda: "stopping the servers" in stack.said(), 30)
    stack.launcher.send_signal(signal.SIGTERM)
    assert stack.launcher.wait(patient(10)) == 0
    assert "killing everything that is left" in stack.said()
    assert stack.processes() == []


def test_a_reset_never_touches_a_folder_that_is_not_ours(stack: Stack) -> None:
    stack.state.mkdir()
    (stack.state / "thesis.txt").write_text("years of work")
    stack.up("--free-ports", "--reset")
    await_that(stack.ended, 30)
    assert stack.launcher is not None
    assert stack.launcher.returncode == 2
    assert "is not empty and not a state folder" in stack.said()
    assert (stack.state / "thesis.txt").exists()
