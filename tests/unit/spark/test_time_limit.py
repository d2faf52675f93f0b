"""A declared file that does not come to an end is told with its line. There is no JVM here."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

from tocsin.declare.model.errors import ConfigError
from tocsin.spark.declared_function import DeclaredFunction

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


@pytest.fixture(autouse=True)
def limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tocsin.platform.time_limit.LONGEST_SECONDS", 0.6)
    monkeypatch.setattr("tocsin.platform.time_limit._AGAIN_SECONDS", 0.01)


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


def test_a_plan_that_is_never_made_is_told_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "endless.py"
    path.write_text("def detect(events):\n    while True:\n        pass\n")
    nothing: Any = None
    with pytest.raises(ConfigError, match=r"endless\.py:[23]: did not finish within"):
        DeclaredFunction(path, "detect")(nothing)
