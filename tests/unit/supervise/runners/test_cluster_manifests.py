import subprocess
import sys
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest

from tests.rig.kube_server import MANIFESTS, read_manifests
from tests.rig.stack import ROOT
from tocsin.declare.blocks.spark_settings import SparkSettings
from tocsin.declare.model.errors import ConfigError
from tocsin.declare.setting_blocks import (
    CONTAINER_SECURITY,
    POD_SECURITY,
    STATE_CLAIM,
    KafkaSettings,
    PodSettings,
    RunnerSettings,
)
from tocsin.declare.settings import Settings, load_settings
from tocsin.supervise.runners.cluster_runner import Slot, slot_names, stateful_set
from tocsin.supervise.runners.runner import Labels, Launch, instance_of

VERSIONS = ("1.36", "1.37")
RUNNER = {"kind": "kubernetes", "image": "registry.example.com/tocsin:1", "secret": "tocsin-secrets"}


def settings_of(tmp_path: Path, **fields: Any) -> Settings:
    kafka = KafkaSettings(bootstrap_servers="kafka:9092")
    own: dict[str, Any] = {"instance": "shop", "kafka": kafka, "runner": RunnerSettings(**RUNNER)}
    return Settings(**{"state": tmp_path, **own, **fields})


def set_of_job(settings: Settings, job: str = "detector:failed_logins", **more: Any) -> Any:
    labels = Labels(instance_of(settings), job, "v1")
    more |= {"command": ("python",), "environment": {"TZ": "UTC"}}
    launch = Launch(labels=labels, directory=settings.state, log=settings.log(job), **more)
    return stateful_set(launch, settings, Slot(name=slot_names(labels)[0], number=7, at=1.5))


@pytest.mark.parametrize("version", VERSIONS)
def test_two_versions_of_kubernetes_know_every_field(tmp_path: Path, version: str) -> None:
    written = [*read_manifests(), set_of_job(settings_of(tmp_path))]
    for manifest in written:
        kubernetes_validate.validate(manifest, version, strict=True)
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(
            {**written[-1], "spec": {**written[-1]["spec"], "replica": 1}}, version, strict=True
        )


def test_what_is_to_be_applied_fits_the_settings_that_it_gives_and_the_pods_of_jobs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    subprocess.run([sys.executable, "-m", "yamllint", "-c", ROOT / ".yamllint.yaml", MANIFESTS], check=True)
    found = {manifest["kind"]: manifest for manifest in read_manifests()}
    for name, value in found["ConfigMap"]["data"].items():
        monkeypatch.setenv(name, value)
    settings = load_settings()
    assert (settings.runner.kind, settings.alerts.database_file) == (
        "kubernetes",
        Path("/etc/tocsin/secrets/alerts-db"),
    )
    assert found["Namespace"]["metadata"]["name"] == settings.runner.namespace
    assert found["PersistentVolumeClaim"]["metadata"]["name"] == STATE_CLAIM
    pod = found["StatefulSet"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert (pod["volumes"], container["volumeMounts"]) == settings.runner.volumes(str(settings.state))
    assert (pod["securityContext"], container["securityContext"]) == (POD_SECURITY, CONTAINER_SECURITY)
    assert container["image"] == settings.runner.image
    selector = found["Service"]["spec"]["selector"]
    for job, is_found in (("web", True), ("drain", False)):
        labels = set_of_job(settings, job)["spec"]["template"]["metadata"]["labels"]
        assert (selector.items() <= labels.items()) is is_found
    assert found["Service"]["spec"]["ports"][0]["targetPort"] == settings.web.port


@pytest.mark.parametrize(
    ("master", "job", "variables", "token"),
    [
        ("local", "detector:failed_logins", [], False),
        ("spark://master:7077", "detector:failed_logins", ["status.podIP"], False),
        ("k8s://https://api", "detector:failed_logins", ["status.podIP"], True),
        ("k8s://https://api", "compute:counts", ["status.podIP"], True),
        ("k8s://https://api", "ingest:logins", [], False),
        ("k8s://https://api", "indexer", [], False),
    ],
)
def test_a_driver_knows_its_address_and_has_a_token_only_where_its_executors_are_pods(
    tmp_path: Path, master: str, job: str, variables: list[str], *, token: bool
) -> None:
    settings = settings_of(tmp_path, spark=SparkSettings(master=master))
    made = set_of_job(settings, job)
    kubernetes_validate.validate(made, VERSIONS[-1], strict=True)
    pod = made["spec"]["template"]["spec"]
    fields = [one["valueFrom"]["fieldRef"]["fieldPath"] for one in pod["containers"][0]["env"] if "valueFrom" in one]
    assert fields == variables
    assert pod["automountServiceAccountToken"] is token


def resources(stateful_set: Any) -> tuple[str, str, str]:
    """CPU and memory that a pod requests, and the most memory that it may hold. Of CPU there is no limit."""
    (container,) = stateful_set["spec"]["template"]["spec"]["containers"]
    (requested, (limit,)) = (container["resources"][key].values() for key in ("requests", "limits"))
    return (*requested, limit)


@pytest.mark.parametrize(
    ("job", "restarted_at", "expected"),
    [
        ("detector:failed_logins", 2_012_000_000, ("250m", "1012M", "2515M")),
        ("detector:failed_logins", 900_000_000, ("250m", "900M", "1125M")),  # memory="900 MB"
        ("ingest:logins", 1_600_000_001, ("3", "1500M", "2001M")),
        ("flow:words", 1_000_000_000, ("250m", "2000M", "2000M")),  # more than it may hold is requested
        ("indexer", None, ("50m", "250M", "1000M")),
        ("view:counts", None, ("0.5", "300M", "1200M")),
    ],
)
def test_a_pod_requests_what_its_kind_takes_and_the_kernel_ends_it_only_after_supervision(
    tmp_path: Path, job: str, restarted_at: int | None, expected: tuple[str, str, str]
) -> None:
    asked = {"ingest": ("3", 1500), "flow": (None, 2000), "view": ("0.5", 300)}
    pods = {kind: PodSettings(cpu=cpu, memory_mb=memory) for kind, (cpu, memory) in asked.items()}
    settings = settings_of(tmp_path, runner=RunnerSettings(**RUNNER, pods=pods))
    made = set_of_job(settings, job, memory_bytes=restarted_at)
    assert resources(made) == expected
    kubernetes_validate.validate(made, VERSIONS[-1], strict=True)


def test_a_larger_heap_is_requested(tmp_path: Path) -> None:
    settings = settings_of(tmp_path, spark=SparkSettings(heap_mb=4000))
    made = set_of_job(settings, memory_bytes=5_500_000_000)
    assert resources(made)[1:] == ("4500M", "6875M")


def test_a_kind_of_pod_that_does_not_exist_is_a_fault_that_names_the_kinds(tmp_path: Path) -> None:
    (tmp_path / "tocsin.toml").write_text('[runner.pods.detectors]\ncpu = "1"\n')
    with pytest.raises(ConfigError, match=r"pods\.detectors: no kind of job; the kinds are compute, detector, drain, "):
        load_settings(tmp_path)


def test_names_are_short_and_differ_for_each_job_and_installation(tmp_path: Path) -> None:
    jobs = ("detector:a_b", "detector:a-b", f"detector:{'x' * 60}y", f"detector:{'x' * 60}z")
    names = {name for job in jobs for one in ("shop", "other") for name in slot_names(Labels(one, job, "v1"))}
    assert len(names) == 16
    assert max(map(len, names)) <= 52
