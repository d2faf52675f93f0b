"""What the folder of a test means: its marker, its time limit, and what it is run together with."""

import gc
import os
import sys
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from xdist.scheduler import LoadScopeScheduling

from tests.rig.broker import broker

__all__ = ["broker"]

TESTS = Path(__file__).parent

# PySpark takes a main module without a file, as xdist's processes have it, for a doctest of its own, and exits.
if not hasattr(sys.modules["__main__"], "__file__"):
    sys.modules["__main__"].__file__ = pytest.__file__

# Batches of tests are small: the optimising compiler would take twice the CPU time of all the rest. Without it Java
# keeps 48 MB of compiled code, which hundreds of tests fill: it then sweeps and compiles anew all the time.
os.environ.setdefault("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=160m")

# A stack may run beside on the default ports: what has no address of its own finds nobody, here and in child processes.
os.environ |= {
    "DEFAULT_TOCSIN_KAFKA__BOOTSTRAP_SERVERS": "127.0.0.1:1",
    "DEFAULT_TOCSIN_SMTP__PORT": "1",
    "DEFAULT_TOCSIN_AIRFLOW__PORT": "1",
    "DEFAULT_TOCSIN_DRAIN__PORT": "1",
}

# The clock of a busy machine says nothing about one example.
hypothesis.settings.register_profile("tests", deadline=None)
hypothesis.settings.load_profile("tests")

# Their tests take long.
FOLDERS = ("spark", "airflow", "e2e", "browser", "faults", "kubernetes", "containers")
# They build what they need for minutes, if the machine has what that takes: `make test` leaves them out.
LONG = ("kubernetes", "containers")
# Seconds after which one of them hangs, on the busiest machine (pyproject.toml has the limit of unit tests). What is
# expected within a test has a limit of its own, which grows with what runs beside (tests/rig/waiting.py).
TIME_LIMIT, TIME_LIMIT_OF_LONG = 600, 2100
# Their tests share what is expensive to start: one process runs them all.
TOGETHER = ("spark", "browser")
# What takes longest begins first, behind the unit tests, so that both processes end together.
LONGEST = (
    *("browser", "spark", "e2e/test_ingest.py", "e2e/test_detect.py"),
    *("e2e/test_detect_gaps.py", "e2e/test_hand_over.py"),
    *("faults/test_kills.py", "e2e/test_parity.py", "faults/test_bad_input.py"),
    *("e2e/test_stack.py", "e2e/test_views.py", "faults/test_history.py", "airflow"),
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        folder = folder_of(item)
        if folder not in FOLDERS:
            continue
        item.add_marker(folder)
        if folder in LONG:
            item.add_marker("long")
        if item.get_closest_marker("timeout") is None:
            is_long = item.get_closest_marker("long") is not None
            item.add_marker(pytest.mark.timeout(TIME_LIMIT_OF_LONG if is_long else TIME_LIMIT))
    items.sort(key=lambda item: (folder_of(item) in FOLDERS, place_of(item)))


def pytest_collection_finish() -> None:
    """Spare the garbage collector what lives as long as the process: it would take part of the time."""
    gc.freeze()
    gc.set_threshold(10_000, 20, 20)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    return Scheduling(config, log)


class Scheduling(LoadScopeScheduling):  # type: ignore[misc]  # xdist ships no types
    """The tests of a file, or of a folder of TOGETHER, go to one of the processes, in the order given above."""

    def _split_scope(self, nodeid: str) -> str:
        folder, file = Path(nodeid.partition("::")[0]).parts[1:3]
        return folder if folder in TOGETHER else f"{folder}/{file}"


def place_of(item: pytest.Item) -> int:
    """Where its file or folder stands in LONGEST, or behind all of them."""
    names = (folder_of(item), str(item.path.relative_to(TESTS)))
    return next((place for place, name in enumerate(LONGEST) if name in names), len(LONGEST))


def folder_of(item: pytest.Item) -> str:
    """The folder under tests/ that a test lies in."""
    return item.path.relative_to(TESTS).parts[0]
