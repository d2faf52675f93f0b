"""A JVM ends by itself when its time is over, without anything of Python, and nobody logs errors meanwhile."""

import logging
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import MagicMock

import pyspark
import pytest
from py4j import clientserver
from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway
from pyspark import SparkContext

from tests.rig.waiting import patient
from tocsin.setup.java import find_java
from tocsin.spark.engine import jvm


@pytest.fixture
def gateway(monkeypatch: pytest.MonkeyPatch) -> Iterator[JavaGateway]:
    """To a JVM without Spark, which is the one of this process meanwhile."""
    (archive,) = (Path(pyspark.__file__).parent / "jars").glob("py4j-*.jar")
    java = str(find_java().home / "bin" / "java")
    port, token, started = launch_gateway(
        jarpath=str(archive), java_path=java, die_on_exit=True, enable_auth=True, return_proc=True
    )
    gateway = JavaGateway(gateway_parameters=GatewayParameters(port=port, auth_token=token))
    gateway.proc = started
    monkeypatch.setattr(jvm, "SparkContext", SimpleNamespace(_jvm=gateway.jvm, _gateway=gateway))
    with started:
        yield gateway
        gateway.close()
        started.kill()


@pytest.fixture
def process(gateway: JavaGateway) -> subprocess.Popen[bytes]:
    return gateway.proc  # type: ignore[no-any-return]  # as PySpark names it


def test_it_halts_with_us_though_its_parts_take_their_time_to_stop(
    gateway: JavaGateway, process: subprocess.Popen[bytes]
) -> None:
    java = gateway.jvm.java
    form = java.lang.invoke.MethodType.fromMethodDescriptorString("()V", None)
    latch, handles = java.util.concurrent.CountDownLatch(1), java.lang.invoke.MethodHandles.publicLookup()
    wait = handles.findVirtual(latch.getClass(), "await", form).bindTo(latch)
    runnable = java.lang.Class.forName("java.lang.Runnable")
    task = java.lang.invoke.MethodHandleProxies.asInterfaceInstance(runnable, wait)
    java.lang.Runtime.getRuntime().addShutdownHook(java.lang.Thread(task))
    for _ in range(2):  # of two sessions
        jvm.halt_at_end()
    assert process.stdin is not None
    process.stdin.close()  # as it is when this process ends
    assert process.wait(patient(10)) == 1


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
