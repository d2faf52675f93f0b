import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml  # type: ignore[import-untyped]

from tests.rig.stack import ROOT
from tocsin.declare.blocks.runner_settings import SUPERVISOR_POD, PodSettings, RunnerSettings
from tocsin.declare.blocks.spark_settings import SparkSettings
from tocsin.declare.model.errors import ConfigError
from tocsin.declare.setting_blocks import AlertSettings, DrainSettings, KafkaSettings
from tocsin.declare.settings import Settings, load_settings
from tocsin.supervise.runners.cluster_manifests import manifests
from tocsin.supervise.runners.job_pod import Slot, slot_names, stateful_set
from tocsin.supervise.runners.process_labels import Labels, instance_of
from tocsin.supervise.runners.runner import Launch

VERSIONS = ("1.36", "1.37")
RUNNER = {"kind": "kubernetes", "image": "registry.example.com/tocsin:1", "secret": "tocsin-secrets"}
OPEN = DrainSettings(host="0.0.0.0", certificate_file=Path("drain.pem"), key_file=Path("drain.key"))


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
    settings = settings_of(tmp_path, drain=OPEN)
    written = [*manifests(settings, storage_class="nfs"), set_of_job(settings)]
    assert "Service" in {manifest["kind"] for manifest in written}
    for manifest in written:
        kubernetes_validate.validate(manifest, version, strict=True)
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(
            {**written[-1], "spec": {**written[-1]["spec"], "replica": 1}}, version, strict=True
        )


def test_a_server_that_listens_beyond_loopback_has_a_service_that_finds_its_pod(tmp_path: Path) -> None:
    settings = settings_of(tmp_path, drain=OPEN)
    (service,) = [one for one in manifests(settings) if one["kind"] == "Service"]
    assert (service["metadata"]["name"], service["spec"]["ports"][0]["targetPort"]) == ("tocsin-drain", 8430)
    in_the_image = settings.model_copy(update={"state": Path("/var/lib/tocsin")})
    labels = set_of_job(in_the_image, "drain")["spec"]["template"]["metadata"]["labels"]
    assert service["spec"]["selector"].items() <= labels.items()
    others = set_of_job(in_the_image, "web")["spec"]["template"]["metadata"]["labels"]
    assert not service["spec"]["selector"].items() <= others.items()


def test_the_command_prints_yaml_that_a_linter_and_a_reader_take(tmp_path: Path) -> None:
    lines = ['instance = "shop"', "[kafka]", 'bootstrap_servers = "kafka:9092"', "[runner]"]
    lines += [f'{key} = "{value}"' for key, value in RUNNER.items()]
    (tmp_path / "tocsin.toml").write_text("\n".join(lines), encoding="utf-8")
    command = [sys.executable, "-m", "tocsin.cli", "k8s", "render", "--storage", "5Gi"]
    environment = {**os.environ, "TOCSIN_PROJECT": str(tmp_path), "TOCSIN_STATE": str(tmp_path / "state")}
    done = subprocess.run(command, capture_output=True, check=True, env=environment)
    (tmp_path / "all.yaml").write_bytes(done.stdout)
    subprocess.run([sys.executable, "-m", "yamllint", "-c", ROOT / ".yamllint.yaml", tmp_path / "all.yaml"], check=True)
    asked = settings_of(tmp_path, state=tmp_path / "state")
    assert list(yaml.safe_load_all(done.stdout)) == manifests(asked, storage="5Gi")


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
    written = manifests(settings)
    for manifest in (made, *written):
        kubernetes_validate.validate(manifest, VERSIONS[-1], strict=True)
    pod = made["spec"]["template"]["spec"]
    fields = [one["valueFrom"]["fieldRef"]["fieldPath"] for one in pod["containers"][0]["env"] if "valueFrom" in one]
    assert fields == variables
    assert pod["automountServiceAccountToken"] is token


@pytest.mark.parametrize(
    "address",
    [
        "postgresql://tocsin:hunter2@db/tocsin",
        "postgresql://tocsin@db/tocsin?password=hunter2",
    ],
)
def test_all_that_does_not_fit_a_cluster_is_said_at_once(tmp_path: Path, address: str) -> None:
    alerts = AlertSettings(database=address)
    wrong = {"instance": "local", "kafka": KafkaSettings(), "runner": RunnerSettings(), "alerts": alerts}
    with pytest.raises(ConfigError) as error:
        manifests(settings_of(tmp_path, **wrong))
    keys = {fault.key for fault in error.value.faults}
    assert keys == {"runner.kind", "kafka.bootstrap_servers", "instance", "alerts.database"}
    assert "hunter2" not in str(error.value)


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
        (SUPERVISOR_POD, None, ("250m", "900M", "3600M")),
    ],
)
def test_a_pod_requests_what_its_kind_takes_and_the_kernel_ends_it_only_after_supervision(
    tmp_path: Path, job: str, restarted_at: int | None, expected: tuple[str, str, str]
) -> None:
    asked = {"ingest": ("3", 1500), "flow": (None, 2000), "view": ("0.5", 300), SUPERVISOR_POD: (None, 900)}
    pods = {kind: PodSettings(cpu=cpu, memory_mb=memory) for kind, (cpu, memory) in asked.items()}
    settings = settings_of(tmp_path, runner=RunnerSettings(**RUNNER, pods=pods))
    made = manifests(settings)[-1] if job == SUPERVISOR_POD else set_of_job(settings, job, memory_bytes=restarted_at)
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
