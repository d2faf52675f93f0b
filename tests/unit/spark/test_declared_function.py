"""What a file does wrong when it is run is told with its line, and harms nothing but itself. There is no JVM here."""

import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tocsin.declare.model.errors import ConfigError
from tocsin.spark.declared_function import DeclaredFunction, load_declared

DETECT = "def detect(events):\n    return helper(events)\n\n\ndef helper(events):\n    "
IMPORTS = {
    "import missing_in_every_place\n": (1, "cannot be imported: ModuleNotFoundError: No module named 'missing_in_"),
    "LIMITS = {}\nLIMIT = LIMITS['x']\n": (2, "cannot be imported: KeyError: 'x'"),
    "import sys\n\nsys.exit(0)\n": (3, "cannot be imported: SystemExit: 0"),
}
CALLS = {
    "raise ValueError('no')": "fails: ValueError: no",
    "import missing_in_every_place": "fails: ModuleNotFoundError: No module named",
    "raise SystemExit(0)": "fails: SystemExit: 0",
}
NOTHING: Any = None


@pytest.mark.parametrize("code", IMPORTS)
def test_a_file_that_cannot_be_run_is_told_with_its_line(tmp_path: Path, code: str) -> None:
    line, what = IMPORTS[code]
    path = tmp_path / "broken.py"
    path.write_text(code + DETECT + "pass\n")
    with pytest.raises(ConfigError) as told:
        DeclaredFunction(path, "detect")
    assert str(told.value).startswith(f"{path}:{line}: {what}")


def test_a_mistake_in_a_case_does_not_keep_a_job_from_running_the_file(tmp_path: Path) -> None:
    path = tmp_path / "cased.py"
    path.write_text(DETECT + "pass\n\n\nCASES = [1 / 0]\n")
    DeclaredFunction(path, "detect")
    with pytest.raises(ConfigError, match="cannot be imported: ZeroDivisionError"):
        load_declared(path, "CASES")


@pytest.mark.parametrize("code", CALLS)
def test_a_function_that_fails_is_told_with_the_line_that_did(tmp_path: Path, code: str) -> None:
    path = tmp_path / "broken.py"
    path.write_text(DETECT + code + "\n")
    with pytest.raises(ConfigError) as told:
        DeclaredFunction(path, "detect")(NOTHING)
    assert str(told.value).startswith(f"{path}:6: detect: {CALLS[code]}")


def test_what_a_file_prints_is_no_output_of_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "chatty.py"
    path.write_text("print('at import')\n" + DETECT + "print('in the call')\n")
    with pytest.raises(ConfigError, match="must return a DataFrame"):
        DeclaredFunction(path, "detect")(NOTHING)
    told = capsys.readouterr()
    assert (told.out, told.err) == ("", "at import\nin the call\n")


def test_the_text_that_was_read_first_is_run_whatever_the_file_holds_by_then(tmp_path: Path) -> None:
    path = tmp_path / "changed.py"
    path.write_text("raise ValueError('the new one')\n")
    with pytest.raises(ConfigError, match="the old one"):
        DeclaredFunction(path, "detect", b"raise ValueError('the old one')")


def test_threads_that_overlap_leave_standard_output_as_it_was(tmp_path: Path) -> None:
    path, before, running = tmp_path / "f.py", sys.stdout, []
    function = DeclaredFunction(path, "detect", b"def detect(events):\n    return events()")

    def work() -> None:
        running.append(1)
        at_once.append(len(running))
        time.sleep(0.02)
        running.pop()

    at_once: list[int] = []
    events: Any = work

    def call(_: int) -> None:
        with pytest.raises(ConfigError, match="must return a DataFrame"):
            function(events)

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(call, range(8)))
    assert at_once == [1] * 8
    assert sys.stdout is before


CODE = "def detect(events):\n    return events\n"
ENDLESS = {
    "a loop": ("count = 0\nwhile True:\n    count += 1\n", (2, 3)),
    "a loop that catches all": (
        "while True:\n    try:\n        x = 1\n    except Exception:\n        pass\n",
        (1, 2, 3),
    ),
    "a wait": ("import time\n\ntime.sleep(100)\n", (3,)),
    "a wait in a call": ("import time\n\ndef wait():\n    time.sleep(100)\n\nwait()\n", (4,)),
}


@pytest.fixture
def limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tocsin.platform.time_limit.LONGEST_SECONDS", 0.6)
    monkeypatch.setattr("tocsin.platform.time_limit._AGAIN_SECONDS", 0.01)


@pytest.mark.usefixtures("limit")
@pytest.mark.parametrize("case", ENDLESS)
def test_an_import_that_does_not_end_is_told_with_its_line(tmp_path: Path, case: str) -> None:
    code, lines = ENDLESS[case]
    path = tmp_path / "endless.py"
    path.write_text(code + CODE)
    before = signal.getsignal(signal.SIGALRM)
    with pytest.raises(ConfigError, match="did not finish within") as told:
        DeclaredFunction(path, "detect")
    (fault,) = told.value.faults
    assert (fault.where, fault.line in lines) == (str(path), True), str(told.value)
    assert signal.getsignal(signal.SIGALRM) is before


@pytest.mark.usefixtures("limit")
def test_a_plan_that_is_never_made_is_told_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "endless.py"
    path.write_text("def detect(events):\n    while True:\n        pass\n")
    with pytest.raises(ConfigError, match=r"endless\.py:[23]: did not finish within"):
        DeclaredFunction(path, "detect")(NOTHING)
