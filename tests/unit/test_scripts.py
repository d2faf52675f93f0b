"""Scripts of the shell: `spark_jobs/submit.sh`, and that of `make setup-browser`."""

import subprocess
import sys
from pathlib import Path

import pytest

from tocsin.setup.paths import here

JOBS = here().root / "spark_jobs"


def test_nothing_of_airflow_reaches_a_batch(tmp_path: Path) -> None:
    script = tmp_path / "spark_jobs" / "submit.sh"
    script.parent.mkdir()
    script.write_bytes((JOBS / "submit.sh").read_bytes())
    program = tmp_path / ".venv" / "bin" / "spark-submit"
    program.parent.mkdir(parents=True)
    program.with_name("python").symlink_to(sys.executable)
    (tmp_path / "src").symlink_to(here().root / "src")
    program.write_text('#!/bin/sh\necho "$@"\nenv\n')
    for path in (script, program):
        path.chmod(0o755)
    secrets = {"AIRFLOW__CORE__FERNET_KEY": "s", "AIRFLOW_CONN_X": "s", "_AIRFLOW_Y": "s", "PYTHONPATH": "s"}
    kept = {"PATH": "/usr/bin:/bin", "TOCSIN_STATE": "/state", "AIR": "a\nAIRFLOW_IN_TEXT=b"}
    done = subprocess.run([script, "a", "b c"], env=secrets | kept, capture_output=True, text=True, check=True)
    words, *variables = done.stdout.splitlines()
    assert words == "a b c"
    assert {"TOCSIN_STATE=/state", "AIR=a"} <= set(variables)
    assert not [line for line in variables if line.split("=")[0] in secrets]


SCRIPT = Path(__file__).parents[1] / "browser" / "setup.sh"


def set_up(folder: Path, *programs: str, user: int = 0, brings: str = "chromium") -> tuple[int, str, list[str]]:
    """Run it; returns the exit code, what it printed, and the commands that it ran as root."""
    bring = f'[ "$1" = update ] || [ -z "{brings}" ] || cp {folder}/id {folder}/{brings}'
    bodies = {
        "id": f"echo {user}",
        "apt-get": f'echo "$@" >> {folder}/ran; {bring}',
        "sudo": 'shift; "$@"',
        "env": 'shift; "$@"',
    }
    for name in ("id", "env", *programs):
        file = folder / name
        file.write_text(f"#!/bin/sh\nPATH=$PATH:/bin:/usr/bin\n{bodies.get(name, '')}\n")
        file.chmod(0o755)
    done = subprocess.run(["/bin/sh", SCRIPT], env={"PATH": str(folder)}, capture_output=True, text=True, check=False)
    ran = folder / "ran"
    return done.returncode, done.stdout + done.stderr, ran.read_text().splitlines() if ran.exists() else []


@pytest.mark.parametrize("name", ["chromium", "chromium-browser", "google-chrome"])
def test_a_browser_that_is_there_is_taken(tmp_path: Path, name: str) -> None:
    assert set_up(tmp_path, name, "apt-get") == (0, f"The tests look at pages in {tmp_path / name}\n", [])


@pytest.mark.parametrize(("programs", "user"), [(("apt-get",), 0), (("apt-get", "sudo"), 1000)])
def test_else_debians_is_installed(tmp_path: Path, programs: tuple[str, ...], user: int) -> None:
    code, _, ran = set_up(tmp_path, *programs, user=user)
    assert (code, ran) == (0, ["update --quiet", "install --yes --no-install-recommends chromium"])


@pytest.mark.parametrize(("programs", "user"), [((), 0), (("apt-get",), 1000)])
def test_where_none_can_be_installed_it_says_what_to_do(tmp_path: Path, programs: tuple[str, ...], user: int) -> None:
    code, said, ran = set_up(tmp_path, *programs, user=user)
    assert (code, ran) == (2, [])
    assert "then run: make setup-browser" in said


def test_a_package_that_brings_none_is_reported(tmp_path: Path) -> None:
    code, said, _ = set_up(tmp_path, "apt-get", brings="")
    assert code == 2
    assert "though the package chromium was installed" in said
