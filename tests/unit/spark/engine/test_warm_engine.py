"""Attach to an engine that is started for it, and end one that nobody uses."""

import os
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tocsin.declare.model.errors import TransientError
from tocsin.declare.settings import Settings
from tocsin.platform import fork_server
from tocsin.platform.lock import hold
from tocsin.platform.process_exit import ExitCode
from tocsin.spark.engine import warm_engine
from tocsin.spark.engine.warm_engine import Programs, attach_or_start

# It ends as one does that meets another, then as one that cannot start.
STARTS = """
import os, pathlib, sys
assert "TOCSIN_LABELS" not in os.environ, "supervision would end it with the job that has started it"
starts = pathlib.Path(sys.argv[1])
starts.write_text(starts.read_text() + "x" if starts.exists() else "x")
print("there is no Java")
sys.exit(3 if len(starts.read_text()) < 3 else 2)
"""


@pytest.fixture
def own(tmp_path: Path) -> Settings:
    return Settings(project=tmp_path, state=tmp_path / "users" / "engine")


@pytest.mark.parametrize("attaches", [True, False])
def test_an_engine_is_started_until_one_runs_or_one_cannot(
    own: Settings, monkeypatch: pytest.MonkeyPatch, *, attaches: bool
) -> None:
    starts = own.project / "starts"

    def attach(*_: object) -> object:
        if attaches and starts.exists() and len(starts.read_text()) == 2:
            return "attached"
        raise TransientError("none runs here")

    monkeypatch.setattr(warm_engine, "attach", attach)
    monkeypatch.setenv("TOCSIN_LABELS", "instance=local job=airflow-scheduler spec=1")
    command = [sys.executable, "-c", STARTS, str(starts)]
    if attaches:
        assert attach_or_start(own, "test", "cases", command) == cast(Any, "attached")
    else:
        with pytest.raises(TransientError, match="the engine does not start: there is no Java"):
            attach_or_start(own, "test", "cases", command)
        assert starts.read_text() == "xxx"
    assert [folder.stat().st_mode & 0o777 for folder in (own.state.parent, own.state)] == [0o700] * 2
    assert own.log("cases").parent.is_dir(), "where Python workers write"


def test_a_folder_that_others_can_read_is_refused(own: Settings) -> None:
    own.state.parent.mkdir(mode=0o755)
    own.state.parent.chmod(0o755)
    with pytest.raises(PermissionError, match="users must be a folder of this user alone"):
        attach_or_start(own, "test", "cases", ["/nowhere"])


def test_what_killed_engines_have_left_goes_and_not_what_runs_or_is_about_to(tmp_path: Path) -> None:
    for name in ("killed", "runs", "starts"):
        (tmp_path / name / "checkpoints").mkdir(parents=True)
    (tmp_path / "killed" / "lock").touch()
    with hold(tmp_path / "runs" / "lock"):
        warm_engine.remove_dead(tmp_path)
    assert {folder.name for folder in tmp_path.iterdir()} == {"runs", "starts"}


def test_it_is_idle_when_no_program_came_for_the_time_and_does_not_outlive_its_jvm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks, clock = iter([1, 1, 1, 0, 0, 0, 0]), iter(range(0, 1000, 10))

    class Used:
        unfit = ""
        jobs = property(lambda _: next(looks))

    engine = cast(Any, Used())
    monkeypatch.setattr(warm_engine, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    monkeypatch.setattr(warm_engine, "_LOOK_SECONDS", 0.0)
    monkeypatch.setattr(warm_engine, "jvm", SimpleNamespace(is_alive=lambda: True))
    warm_engine._await_idle(engine, tmp_path, threading.Event(), 35.0)
    assert list(looks) == [0]
    monkeypatch.setattr(warm_engine, "jvm", SimpleNamespace(is_alive=lambda: False))
    with pytest.raises(RuntimeError, match="the JVM has ended"):
        warm_engine._await_idle(engine, tmp_path, threading.Event(), 35.0)
    monkeypatch.setattr(warm_engine, "jvm", SimpleNamespace(is_alive=lambda: True))
    with pytest.raises(RuntimeError, match="gone has been removed"):
        warm_engine._await_idle(engine, tmp_path / "gone", threading.Event(), 35.0)


def test_programs_run_in_children_as_long_as_the_code_is_what_was_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, served, programs = ["old"], [], Programs(["json"], lambda command: command)
    monkeypatch.setattr(warm_engine, "_code", lambda: code[0])
    monkeypatch.setattr(warm_engine, "prepare_python", lambda: None)
    monkeypatch.setattr(warm_engine, "gc", SimpleNamespace(freeze=lambda: None))
    monkeypatch.setattr(fork_server, "serve", lambda listener, choose, parent: served.append(choose))
    assert warm_engine._serve(tmp_path, programs, "older", 0) == ExitCode.FAILED, "it has changed while it was imported"
    assert served == []
    assert warm_engine._serve(tmp_path, programs, "old", 0) == ExitCode.OK
    assert served[0](["backfill"]).args == (["backfill"],)
    code[0] = "new"
    assert served[0](["backfill"]) is None


def test_the_code_of_programs_is_all_modules_and_what_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (module := tmp_path / "src" / "tocsin" / "history" / "seal.py").parent.mkdir(parents=True)
    (packages := tmp_path / "packages").mkdir()
    monkeypatch.setattr(warm_engine, "here", lambda: SimpleNamespace(root=tmp_path, package=packages.joinpath))
    codes = [warm_engine._code()]
    module.write_text("seal")
    codes.append(warm_engine._code())
    os.utime(packages, (1, 1))
    codes.append(warm_engine._code())
    assert len(set(codes)) == 3
