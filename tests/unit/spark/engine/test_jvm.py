"""A JVM ends by itself when its time is over, without anything of Python."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pyspark
import pytest
from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway

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
    """That JVM."""
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
