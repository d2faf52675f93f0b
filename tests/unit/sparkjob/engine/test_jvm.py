"""A JVM ends by itself when its time is over, without anything of Python."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pyspark
import pytest
from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway

from tests.rig.waiting import patient
from tocsin.provision.java import find_java
from tocsin.sparkjob.engine import jvm


@pytest.fixture
def process(monkeypatch: pytest.MonkeyPatch) -> Iterator[subprocess.Popen[bytes]]:
    """A JVM without Spark, which is the one of this process meanwhile."""
    (archive,) = (Path(pyspark.__file__).parent / "jars").glob("py4j-*.jar")
    java = str(find_java().home / "bin" / "java")
    port, token, started = launch_gateway(
        jarpath=str(archive), java_path=java, die_on_exit=True, enable_auth=True, return_proc=True
    )
    gateway = JavaGateway(gateway_parameters=GatewayParameters(port=port, auth_token=token))
    monkeypatch.setattr(jvm, "SparkContext", SimpleNamespace(_jvm=gateway.jvm, _gateway=gateway))
    yield started
    gateway.close()
    started.kill()
    started.communicate()


def test_it_ends_when_nobody_sets_its_time_anew(process: subprocess.Popen[bytes]) -> None:
    jvm.end_after(0.3)
    assert process.wait(patient(10)) == 1


def test_its_time_can_be_set_anew_again_and_again(process: subprocess.Popen[bytes]) -> None:
    for _ in range(12):
        jvm.end_after(patient(3))
        time.sleep(0.3)
    assert process.poll() is None


def test_without_one_there_is_nothing_to_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jvm, "SparkContext", SimpleNamespace(_jvm=None, _gateway=None))
    jvm.end_after(0)
