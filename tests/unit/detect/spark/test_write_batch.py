"""What a batch that fails in Python tells Spark."""

import traceback
from typing import Any
from unittest.mock import MagicMock

import pytest
from py4j.protocol import Py4JJavaError

from tocsin.detect.spark.detection import Detection


class Interrupted(Py4JJavaError):  # type: ignore[misc]  # py4j has no types
    """As py4j raises it; its text comes from the JVM."""

    def __init__(self) -> None:
        self.java_exception = None

    def __str__(self) -> str:
        return "An error occurred while calling o38.count.\n: java.lang.InterruptedException\n" + "\tat x\n" * 500


def test_an_error_of_java_reaches_spark_without_the_name_behind_which_its_pattern_overflows() -> None:
    detection: Any = object.__new__(Detection)
    closed, rows = MagicMock(), MagicMock()
    closed.make_findings.side_effect = Interrupted()
    with pytest.raises(RuntimeError, match="InterruptedException") as caught:
        detection._write_batch(closed, {}, rows, 7)
    assert "py4j.protocol.Py4JJavaError" not in "".join(traceback.format_exception(caught.value))
    rows.persist.return_value.unpersist.assert_called_once()
