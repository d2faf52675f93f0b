"""docker-compose.yml and Dockerfile, checked without a container engine: schema, linters, and what neither knows."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]  # comes with yamllint; its stubs are one more package for one call

from tocsin.catalog import read_catalog
from tocsin.names import INDEXER, NOTIFIER, detector_job, ingest_job
from tocsin.settings import Settings

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docker-compose.yml").read_text(encoding="utf-8")
COMPOSE: dict[str, Any] = yaml.safe_load(TEXT)
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")
JOBS = {name: service for name, service in SERVICES.items() if "build" in service and name != "topics"}


def run(*command: str) -> None:
    tool = Path(sys.executable).parent / command[0]
    done = subprocess.run([str(tool), *command[1:]], cwd=ROOT, capture_output=True, check=False)
    assert done.returncode == 0, (done.stdout + done.stderr).decode()


def test_it_follows_the_compose_schema() -> None:
    run("check-jsonschema", "--builtin-schema", "vendor.compose-spec", "docker-compose.yml")


def test_the_schema_would_catch_a_misspelt_key(tmp_path: Path) -> None:
    broken = tmp_path / "docker-compose.yml"
    broken.write_text(TEXT.replace("healthcheck:", "healtcheck:"), encoding="utf-8")
    with pytest.raises(AssertionError, match="healtcheck"):
        run("check-jsonschema", "--builtin-schema", "vendor.compose-spec", str(broken))


def test_the_linters_are_content() -> None:
    run("yamllint", "--strict", "docker-compose.yml")
    run("hadolint", "Dockerfile")


def test_what_is_waited_for_exists_and_can_become_true() -> None:
    for name, service in SERVICES.items():
        for needed, how in service.get("depends_on", {}).items():
            assert needed in SERVICES, f"{name} waits for {needed}"
            if how["condition"] == "service_healthy":
                assert "healthcheck" in SERVICES[needed], f"{name} waits until {needed} is healthy"
            if how["condition"] == "service_completed_successfully":
                assert SERVICES[needed]["restart"] == "no", f"{name} waits until {needed} has ended"


def test_whatever_runs_on_is_watched_and_limited() -> None:
    for name, service in SERVICES.items():
        assert {"cpus", "memory"} <= service["deploy"]["resources"]["limits"].keys(), name
        assert "healthcheck" in service or service["restart"] == "no", name


def test_every_image_has_a_version_and_it_is_the_locked_one() -> None:
    jars = tomllib.loads((ROOT / "locks" / "jars.toml").read_text(encoding="utf-8"))["broker"]
    kafka = next(coordinates.rsplit(":", 1)[1] for coordinates in jars if ":kafka_2.13:" in coordinates)
    npm = json.loads((ROOT / "locks" / "npm" / "package-lock.json").read_text(encoding="utf-8"))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    images = {name: service["image"] for name, service in SERVICES.items()}
    assert images["kafka"] == f"apache/kafka:{kafka}"
    assert images["mail"] == f"maildev/maildev:{npm['packages']['node_modules/maildev']['version']}"
    assert {images[name] for name in [*JOBS, "topics"]} == {f"tocsin:{project['version']}"}
    assert all(re.search(r":[\w.-]*\d", image) for image in images.values())
    python = re.findall(r"^FROM python:(\d+\.\d+)\.\d+-\S+", DOCKERFILE, re.MULTILINE)
    assert set(python) == {project["requires-python"].removeprefix(">=")}
    assert f"/lib/python{python[0]}/" in DOCKERFILE


def test_every_variable_has_a_default_and_is_explained() -> None:
    example = (ROOT / ".env.example").read_text(encoding="utf-8")
    explained = dict(re.findall(r"^([A-Z_]+)=(.*)$", example, re.MULTILINE))
    used = re.findall(r"\$\{([A-Z_]+)(:-([^}]*))?\}", TEXT)
    assert {name for name, _, _ in used} == explained.keys()
    for name, given, default in used:
        assert given, name
        assert explained[name] == default, name


def test_every_port_is_open_on_loopback_alone() -> None:
    ports = [port for service in SERVICES.values() for port in service.get("ports", [])]
    assert ports
    assert [port for port in ports if not port.startswith("127.0.0.1:")] == []


def test_it_holds_no_password() -> None:
    for name, service in SERVICES.items():
        for variable, value in service.get("environment", {}).items():
            assert not re.search("PASSWORD|SECRET|TOKEN", variable) or variable.endswith("_FILE"), (name, value)


def test_every_job_that_should_run_has_its_container() -> None:
    catalog = read_catalog(ROOT)
    wanted = {ingest_job(name) for name in catalog.sources} | {INDEXER, NOTIFIER}
    wanted |= {detector_job(name) for name, spec in catalog.detectors.items() if spec.stage.runs}
    assert {service["healthcheck"]["test"][-1] for service in JOBS.values()} == wanted
    started = {tuple(service["command"]) for service in JOBS.values()}
    assert ("python", "spark_jobs/ingest.py", "logins") in started
    assert ("python", "-m", "tocsin.alerts", "indexer") in started
    assert len(started) == len(JOBS)


def test_every_setting_that_is_given_exists(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, service in JOBS.items():
        for variable, value in service["environment"].items():
            monkeypatch.setenv(variable, re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", value))
        settings = Settings()
        assert settings.kafka.bootstrap_servers == "kafka:19092", name
        assert (settings.smtp.host, settings.smtp.port) == ("mail", 1025), name
        assert settings.state == Path("/var/lib/tocsin"), name
        for variable in service["environment"]:
            block, _, key = variable.removeprefix("TOCSIN_").lower().partition("__")
            known = Settings.model_fields if not key else type(getattr(settings, block)).model_fields
            assert not variable.startswith("TOCSIN_") or (key or block) in known, variable


def test_what_the_image_copies_exists_and_reaches_the_build() -> None:
    let_in = re.findall(r"^!(\S+)$", (ROOT / ".dockerignore").read_text(encoding="utf-8"), re.MULTILINE)
    copied = [words.split()[:-1] for words in re.findall(r"^COPY (?!--from)(.*)$", DOCKERFILE, re.MULTILINE)]
    for name in (name for names in copied for name in names):
        assert (ROOT / name).exists(), name
        assert name in let_in, name


def test_the_papers_say_that_it_was_not_run() -> None:
    assert "was not run" in TEXT
    for paper in ("README.md", "ARCHITECTURE.md"):
        text = " ".join((ROOT / paper).read_text(encoding="utf-8").split())
        assert re.search(r"docker-compose\.yml`.*?(never|not) run", text), paper
