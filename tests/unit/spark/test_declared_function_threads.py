"""A declared function that several threads call: standard output is as before afterwards."""

import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tocsin.declare.model.errors import ConfigError
from tocsin.spark.declared_function import DeclaredFunction


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
