"""What an engine does with connections that are none of a job, and with memory that it must not take."""

import os
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

from tests.rig.waiting import await_that
from tocsin.declare.settings import Settings
from tocsin.job import Job
from tocsin.platform.fork_server import short_path
from tocsin.spark.engine import engine_job, jvm
from tocsin.spark.engine.attachment import Line
from tocsin.spark.engine.deaths import FOLDER, EngineMemory, isolation
from tocsin.spark.engine.engine_job import Engine
from tocsin.spark.session import EXHAUSTED

Connect = Callable[[], socket.socket]


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    """An engine that listens, with a JVM that answers anything."""
    monkeypatch.setattr(engine_job, "_workers", dict)
    made = Engine(Settings(project=tmp_path, state=tmp_path / "state"), "live-1", MagicMock())
    with made.listen():
        yield made


@pytest.fixture
def connect(engine: Engine, tmp_path: Path) -> Connect:
    def connect() -> socket.socket:
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(10)
        with short_path(tmp_path / "state" / FOLDER / f"live-1.{os.getpid()}.sock") as name:
            connection.connect(name)
        return connection

    return connect


@pytest.mark.parametrize(
    "sent", [b"", b"{}\n", b"[]\n", b"\xff\n", b'{"job": "detector:a"}\n', b"x" * 100_000 + b"\n"], ids=range(6)
)
def test_a_client_that_does_not_say_who_it_is_is_disconnected(
    engine: Engine, connect: Connect, monkeypatch: pytest.MonkeyPatch, sent: bytes
) -> None:
    monkeypatch.setattr(engine_job, "_DECLARE_SECONDS", 0.2)
    with closing(connect()) as connection, connection.makefile("rb") as answers:
        connection.sendall(sent)
        assert b'"engine": "engine:live-1"' in answers.readline()
        assert answers.read() == b"", "it is the end"
    assert engine.jobs == 0


def test_another_user_learns_nothing(connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    with closing(connect()) as connection, connection.makefile("rb") as answers:
        assert answers.read() == b""


def test_a_disk_without_room_refuses_a_job_and_leaves_nothing_of_it(
    engine: Engine, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(EngineMemory, "_write", MagicMock(side_effect=OSError(28, "No space left")))
    line = Line(connect())
    with closing(line):
        line.receive()
        line.send(job="detector:a", version="v1")
        assert line.receive() is None
    await_that(lambda: engine.jobs == 0, 5)


@pytest.mark.parametrize(
    ("failed", "alone"), [([], []), (["a"], ["a"]), (["a", "b"], [])], ids=["none", "one", "several"]
)
def test_the_only_job_whose_task_finds_no_room_in_the_heap_is_isolated(
    engine: Engine, connect: Connect, monkeypatch: pytest.MonkeyPatch, failed: list[str], alone: list[str]
) -> None:
    monkeypatch.setattr(engine_job, "_BLAME_SECONDS", 0.5)
    folder = engine._folder
    with ExitStack() as stack:
        for job in ("a", "b"):
            line = stack.enter_context(closing(Line(connect())))
            line.receive()
            line.send(job=job, version="v1")
            line.receive()
            if job in failed:
                line.send(failed="java.lang.OutOfMemoryError")
        os.kill(os.getpid(), EXHAUSTED)  # as the JVM does
        await_that(lambda: engine.unfit, 5)
        assert engine.unfit == "its heap ran out"
        life = folder / f"live-1.{os.getpid()}.json"
        life.rename(life.with_name(f"live-1.{2**22 + 1}.json"))  # as if it had ended
    EngineMemory(folder, "live-1")
    assert [job for job in ("a", "b") if isolation(folder.parent, job, "v1")] == alone


def test_an_engine_over_its_limit_ends_as_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    settings, reporter = Settings(), MagicMock(leads=True)
    job = Job("live-1", settings, reporter, Event())
    engine: Any = SimpleNamespace(unfit="", jobs=1, count_costs=lambda: None)
    monkeypatch.setattr(engine_job, "_COUNT_SECONDS", 0.0)
    monkeypatch.setattr(engine_job, "_LOOK_SECONDS", 0.01)
    monkeypatch.setattr(jvm, "is_alive", lambda: True)
    reporter.report.side_effect = [
        SimpleNamespace(rss_bytes=(settings.engine.most_mb + more) * 1_000_000) for more in (-1, 1)
    ]
    with pytest.raises(RuntimeError, match=r"memory limit: takes \d+ MB of 6112 MB"):
        engine_job._watch(job, engine)
    assert reporter.report.call_count == 2
