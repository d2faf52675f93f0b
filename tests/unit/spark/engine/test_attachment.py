"""Attach to engines that a test plays: which one is chosen, and what is refused."""

import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark import SparkContext

from tests.rig.waiting import await_that
from tocsin.declare.model.errors import TransientError
from tocsin.declare.settings import Settings
from tocsin.platform.fork_server import short_path
from tocsin.platform.lock import LockHeld
from tocsin.spark.engine import attachment
from tocsin.spark.engine.attachment import Attachment, Line, attach, engine_code
from tocsin.spark.engine.deaths import FOLDER

JOB = "detector:failed_logins"


class FakeEngine:
    """Greets, takes one job, and answers each claim; it ends with `close`."""

    def __init__(self, settings: Settings, name: str, **greeting: Any) -> None:
        self.declared, self.asked = list[dict[str, Any]](), list[dict[str, Any]]()
        self.held = False
        own = {"engine": f"engine:{name}", "jobs": 0, "code": engine_code(settings)}
        self._greeting = own | {"instance": settings.installation_id} | greeting
        self._server, self._lines = socket.socket(socket.AF_UNIX), list[Line]()
        folder = settings.state / FOLDER
        folder.mkdir(parents=True, exist_ok=True)
        with short_path(folder / f"{name}.{os.getpid()}.sock") as path:
            self._server.bind(path)
        self._server.listen()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        with suppress(OSError):  # closed
            while True:
                connection, _ = self._server.accept()
                self._lines.append(Line(connection))
                with closing(self._lines[-1]) as line:
                    self._talk(line)

    def _talk(self, line: Line) -> None:
        line.send(**self._greeting)
        if (declared := line.receive()) is not None:
            self.declared.append(declared)
            line.send(port=1, secret="s", session="key", costs="/nowhere")
            while (asked := line.receive()) is not None:
                self.asked.append(asked)
                if "claim" in asked:
                    line.send(held=self.held)

    def close(self) -> None:
        with suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)  # ends a call of accept
        self._server.close()
        for line in self._lines:
            with suppress(OSError):  # the other end has gone
                line.connection.shutdown(socket.SHUT_RDWR)
        self._thread.join()


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    deep = tmp_path / ("deep" * 40)  # longer than the name of a socket may be
    return Settings(project=tmp_path, state=deep)


@pytest.fixture(autouse=True)
def no_jvm(monkeypatch: pytest.MonkeyPatch) -> None:
    context = SimpleNamespace(environment={})
    monkeypatch.setattr(attachment, "_session", lambda _: SimpleNamespace(sparkContext=context))


@pytest.fixture
def engine(settings: Settings) -> Iterator[Callable[..., FakeEngine]]:
    """Starts engines, which end with the test."""
    with ExitStack() as stack:

        def start(name: str, **greeting: Any) -> FakeEngine:
            started = FakeEngine(settings, name, **greeting)
            stack.callback(started.close)
            return started

        yield start


@pytest.fixture
def attached(settings: Settings, engine: Callable[..., FakeEngine]) -> Iterator[tuple[FakeEngine, Attachment]]:
    its = engine("live-1")
    with closing(attach(settings, JOB, "live", "v1")) as attachment:
        yield its, attachment


Start = Callable[..., FakeEngine]


def test_a_job_attaches_to_the_engine_with_the_fewest_jobs(settings: Settings, engine: Start) -> None:
    full, empty = engine("live-1", jobs=3), engine("live-2", jobs=2)
    with closing(attach(settings, JOB, "live", "v1")) as attached:
        assert attached.engine == "engine:live-2"
        assert (full.declared, empty.declared) == ([], [{"job": JOB, "version": "v1"}])
        environment = {"TOCSIN_SESSION": "key", "TOCSIN_LOG": str(settings.log(JOB))}
        assert attached.session.sparkContext.environment == environment
        assert attached.cost() == (0.0, 0), "the engine has not counted yet"


def test_of_two_processes_of_an_engine_the_newer_is_the_one_that_stays(settings: Settings, engine: Start) -> None:
    """Also when it has more jobs already: the older one hands over, and each job there attaches a second time."""
    older, newer = engine("live-1"), engine("live-1.new", engine="engine:live-1", jobs=2)
    os.utime(settings.state / FOLDER / f"live-1.{os.getpid()}.sock", (0, 0))
    with closing(attach(settings, JOB, "live", "v1")):
        assert (len(older.declared), len(newer.declared)) == (0, 1)


@pytest.mark.parametrize("other", [{"code": "older"}, {"instance": "another"}])
def test_an_engine_of_another_code_or_installation_is_none(
    settings: Settings, engine: Start, other: dict[str, str]
) -> None:
    engine("live-1", **other)
    with pytest.raises(TransientError, match="of 1 running here none has the code and settings of this job"):
        attach(settings, JOB, "live", "v1")


def test_a_job_waits_for_an_engine_of_its_own_pool(settings: Settings, engine: Start) -> None:
    engine("live-1").close()  # its socket is left
    engine("shadow-1")
    engine("live_10ms-1")
    with pytest.raises(TransientError, match="waits for an engine of pool live: none runs here"):
        attach(settings, JOB, "live", "v1")


def test_a_checkpoint_is_claimed_once_nobody_writes_it(attached: tuple[FakeEngine, Attachment], tmp_path: Path) -> None:
    engine, attachment = attached
    engine.held = True
    with pytest.raises(LockHeld):
        attachment.claim(tmp_path)
    engine.held = False
    attachment.claim(tmp_path)


def test_an_engine_hears_of_runs_and_of_those_that_found_no_room_in_its_heap(
    attached: tuple[FakeEngine, Attachment],
) -> None:
    engine, attachment = attached
    attachment.note_start("one")
    attachment.note_failure("java.lang.StackOverflowError")
    attachment.note_failure("Job aborted: java.lang.OutOfMemoryError: Java heap space")
    attachment.note_failure("Java heap space")
    await_that(lambda: len(engine.asked) > 2, 5)
    assert engine.asked == [{"run": "one"}, *[{"failed": "java.lang.OutOfMemoryError"}] * 2]


def test_the_end_of_the_engine_is_seen_and_no_other_error_is_taken_for_it(
    attached: tuple[FakeEngine, Attachment], tmp_path: Path
) -> None:
    engine, own = attached
    assert not own.is_lost(0.2)
    engine.close()
    assert own.is_lost()
    with pytest.raises(TransientError, match="engine:live-1 has ended"):
        own.claim(tmp_path)


def test_an_engine_that_ends_while_a_job_attaches_is_none_and_pyspark_forgets_it(
    settings: Settings, engine: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine("live-1")

    def session(_: object) -> None:
        monkeypatch.setattr(SparkContext, "_gateway", "half")
        raise ConnectionRefusedError("nobody listens")

    monkeypatch.setattr(attachment, "_session", session)
    with pytest.raises(TransientError, match="engine:live-1 has ended: nobody listens"):
        attach(settings, JOB, "live", "v1")
    assert SparkContext._gateway is None


def test_code_settings_and_spark_make_the_identity_of_an_engine(settings: Settings) -> None:
    other = settings.model_copy(update={"spark": settings.spark.model_copy(update={"shuffle_partitions": 2})})
    assert engine_code(settings) != engine_code(other)


@pytest.mark.parametrize(
    ("block", "change"), [("spark", {"heap_mb": 600}), ("engine", {"heap_mb": 600}), ("storage", {"history": "/h"})]
)
def test_an_engine_stays_that_of_jobs_that_a_change_does_not_replace(
    settings: Settings, block: str, change: dict[str, Any]
) -> None:
    same = settings.model_copy(update={block: getattr(settings, block).model_copy(update=change)})
    assert engine_code(settings) == engine_code(same)
