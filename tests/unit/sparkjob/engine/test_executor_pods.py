"""Executors as pods: what Spark is told about them, how one begins, and what the API's answers become."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError

from tests.rig.stack import ROOT
from tocsin.project.blocks.runner_settings import RunnerSettings
from tocsin.project.blocks.spark_settings import ResourceSettings, SparkSettings
from tocsin.project.settings import Settings
from tocsin.sparkjob.engine import executor_pods
from tocsin.sparkjob.engine.executor_pods import pod_options, refusal, shortage

TEMPLATE = "spark.kubernetes.executor.podTemplateFile"
TRACE = "\n\tat io.fabric8.kubernetes.client.dsl.internal.BaseOperation.create(BaseOperation.java:98)"
FORBIDDEN = (
    "An error occurred while calling o1.raw.\n: io.fabric8.kubernetes.client.KubernetesClientException: Failure "
    "executing: POST at: https://api:6443/api/v1/namespaces/tocsin/pods?dryRun=All. Message: pods is forbidden: no. "
    "Received status: Status(apiVersion=v1, code=403)." + TRACE
)
ON_WEBSOCKET = (
    "x\n: io.fabric8.kubernetes.client.KubernetesClientException: Received 403 on websocket. Failure executing: GET "
    "at: https://api:6443/api/v1/namespaces/tocsin/pods?watch=true. Message: Forbidden." + TRACE
)
NO_DRIVER = (
    "x\n: org.apache.spark.SparkException: External scheduler cannot be instantiated\n\tat a.b\nCaused by: "
    "org.apache.spark.SparkException: No pod was found named x\n\tat org.apache.spark.scheduler.cluster.k8s.A.b(A:1)"
)


class ErrorOfJava(Py4JJavaError):  # type: ignore[misc]  # py4j ships no types
    def __init__(self, text: str) -> None:
        self.text = text

    def __str__(self) -> str:
        return self.text


def options_of(folder: Path, runner: RunnerSettings | None = None, **spark: Any) -> tuple[dict[str, str], Any]:
    """The options, and the spec of the template that they name."""
    image = {"spark.kubernetes.container.image": "x"}
    given = {"master": "k8s://https://api:6443", "driver_host": "jobs", "conf": image}
    settings = Settings(state=folder, runner=runner or RunnerSettings(), spark=SparkSettings(**{**given, **spark}))
    options = pod_options(settings, "detector:x", ResourceSettings(cores=4), folder)
    return options, json.loads(Path(options[TEMPLATE]).read_text())["spec"]


def test_of_a_job_outside_the_cluster_the_user_names_place_and_image(tmp_path: Path) -> None:
    options, spec = options_of(tmp_path)
    assert not {"spark.kubernetes.namespace", "spark.kubernetes.container.image"} & options.keys()
    assert (spec["automountServiceAccountToken"], spec["securityContext"]["runAsNonRoot"]) == (False, True)
    assert "volumes" not in spec
    assert options["spark.executor.memoryOverhead"] == "900m"


def test_executors_of_a_job_that_is_a_pod_share_its_image_its_folders_and_its_end(tmp_path: Path) -> None:
    runner = RunnerSettings(kind="kubernetes", image="shop:1", namespace="shop", secret="keys")
    options, spec = options_of(tmp_path, runner, driver_pod="tocsin-x-0", conf={})
    assert options["spark.kubernetes.container.image"] == "shop:1"
    assert options["spark.kubernetes.namespace"] == "shop"
    assert options["spark.kubernetes.driver.pod.name"] == "tocsin-x-0"
    mounted = [one["mountPath"] for one in spec["containers"][0]["volumeMounts"]]
    assert mounted == [str(tmp_path.resolve()), "/etc/tocsin/secrets"]


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (FORBIDDEN, "POST https://api:6443/api/v1/namespaces/tocsin/pods: pods is forbidden: no"),
        (ON_WEBSOCKET, "GET https://api:6443/api/v1/namespaces/tocsin/pods: Forbidden"),
        (NO_DRIVER, "org.apache.spark.SparkException: No pod was found named x"),
        ("x\n: java.lang.OutOfMemoryError: heap\n\tat org.apache.spark.SparkContext.<init>", ""),
    ],
)
def test_what_the_api_refuses_is_told_without_the_trace_and_nothing_else_is_a_refusal(error: str, told: str) -> None:
    assert refusal(ErrorOfJava(error)) == told


@pytest.mark.parametrize(
    ("pods", "told"),
    [
        ([{}], ""),
        ([{"containerStatuses": [{"state": {"running": {}}}]}], ""),
        (
            [{"containerStatuses": [{"state": {"waiting": {"reason": "ErrImagePull", "message": "no x"}}}]}],
            "ErrImagePull: no x",
        ),
        (
            [{}, {"conditions": [{"status": "True"}, {"status": "False", "reason": "Unschedulable", "message": "no"}]}],
            "Unschedulable: no",
        ),
        (
            [{"containerStatuses": [{"state": {"terminated": {"exitCode": 1}}}]}],
            "an executor has ended with code 1; can it reach the job at spark.driver_host?",
        ),
        (
            [
                {"containerStatuses": [{"state": {"terminated": {"exitCode": 137}}}]},
                {"containerStatuses": [{"state": {"waiting": {"reason": "ErrImagePull"}}}]},
            ],
            "ErrImagePull: ",
        ),
        ([], "POST https://api:6443/api/v1/namespaces/tocsin/pods: pods is forbidden: no"),
    ],
)
def test_executors_are_missing_for_what_their_pods_wait_for_or_why_none_is_taken(
    tmp_path: Path, pods: list[Any], told: str
) -> None:
    options, _ = options_of(tmp_path)
    tried: list[Any] = []

    def raw(path: str, method: str = "GET", body: str = "") -> str:
        if method == "POST":
            tried.append(json.loads(body))
            raise ErrorOfJava(FORBIDDEN)
        assert path == "/api/v1/namespaces/default/pods?labelSelector=spark-app-selector%3Dspark-1"
        return json.dumps({"items": [{"status": status} for status in pods]})

    conf = SimpleNamespace(get=lambda key, other="": options.get(key, other), getSizeAsMb=lambda _: 500)
    backend = SimpleNamespace(kubernetesClient=lambda: SimpleNamespace(raw=raw))
    context = SimpleNamespace(conf=lambda: conf, schedulerBackend=lambda: backend)
    session = SimpleNamespace(
        sparkContext=SimpleNamespace(applicationId="spark-1", _jsc=SimpleNamespace(sc=lambda: context))
    )
    assert shortage(session) == told  # type: ignore[arg-type]
    assert [one["spec"]["containers"][0]["resources"]["requests"] for one in tried] == (
        [] if pods else [{"cpu": "250m", "memory": "1000Mi"}]
    )


def test_the_image_starts_an_executor_by_its_one_word_with_the_options_in_their_order(tmp_path: Path) -> None:
    script = Path(executor_pods.__file__).with_name("executor.sh")
    assert f"ln -s /opt/tocsin/{script.relative_to(ROOT)} /usr/local/bin/executor" in (ROOT / "Dockerfile").read_text()
    (java := tmp_path / "bin" / "java").parent.mkdir()
    java.write_text('#!/bin/sh\nprintf "%s\\n" "$@" "$PWD"\n')
    java.chmod(0o755)
    (tmp_path / "executor").symlink_to(script)
    names = ("DRIVER_URL", "EXECUTOR_ID", "EXECUTOR_CORES", "APPLICATION_ID", "RESOURCE_PROFILE_ID")
    told = {f"SPARK_{name}": name.lower() for name in (*names, "EXECUTOR_POD_IP", "EXECUTOR_POD_NAME")}
    told |= {f"SPARK_JAVA_OPT_{number}": f"-Da={number} '$x" for number in range(11)}
    told |= {
        "SPARK_LOCAL_DIRS": f"{tmp_path}/a,{tmp_path}/b",
        "SPARK_EXECUTOR_MEMORY": "488m",
        "JAVA_HOME": str(tmp_path),
        "SPARK_HOME": "/spark",
    }
    done = subprocess.run(
        ["executor"], env={**told, "PATH": f"{tmp_path}{os.pathsep}/usr/bin:/bin"}, stdout=-1, check=True, text=True
    )
    *words, place = done.stdout.splitlines()
    assert place.startswith(f"{tmp_path}/a/"), "the folder of the image is not its user's"
    assert words[:11] == [f"-Da={number} '$x" for number in range(11)]
    assert words[11:14] == ["-Xmx488m", "-cp", "/spark/jars/*"]
    given = dict(zip(words[15::2], words[16::2], strict=True))
    assert given == {
        "--driver-url": "driver_url", "--executor-id": "executor_id", "--cores": "executor_cores",
        "--app-id": "application_id", "--resourceProfileId": "resource_profile_id",
        "--hostname": "executor_pod_ip", "--podName": "executor_pod_name",
    }  # fmt: skip
