"""Who logs errors while a JVM is stopped."""

from __future__ import annotations

import logging
from unittest.mock import MagicMock

import pytest
from py4j import clientserver
from pyspark import SparkContext

from tocsin.spark.engine import jvm


def test_neither_spark_nor_py4j_logs_errors_of_what_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    context = MagicMock()
    monkeypatch.setattr(SparkContext, "_active_spark_context", context)
    jvm.log_errors(wanted=False)
    context.setLogLevel.assert_not_called()  # the JVM is an engine's, and logs for others, too
    monkeypatch.setattr(SparkContext, "_gateway", MagicMock())
    jvm.log_errors(wanted=False)
    context.setLogLevel.assert_called_once_with("OFF")
    assert not clientserver.logger.isEnabledFor(logging.ERROR)
    jvm.log_errors(wanted=True)
    context.setLogLevel.assert_called_with("WARN")
    assert clientserver.logger.isEnabledFor(logging.ERROR)


def test_a_jvm_that_has_ended_is_silenced_without_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    context = MagicMock()
    context.setLogLevel.side_effect = ConnectionRefusedError
    monkeypatch.setattr(SparkContext, "_gateway", MagicMock())
    monkeypatch.setattr(SparkContext, "_active_spark_context", context)
    jvm.log_errors(wanted=False)
    jvm.log_errors(wanted=True)
