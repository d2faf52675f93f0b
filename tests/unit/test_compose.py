"""docker-compose.yml and Dockerfile, checked without a container engine: schema, linters, and what neither knows."""

import importlib.util
import re
import shutil
import stat
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import typer.main
import yaml  # type: ignore[import-untyped]  # comes with yamllint; its stubs are one more package for one call

from tocsin.cli.app import app
from tocsin.declare.blocks.spark_settings import ResourceSettings, SparkSettings
from tocsin.declare.catalog import read_catalog
from tocsin.declare.settings import Settings, load_settings
from tocsin.dev.servers.airflow_servers import COMPONENTS
from tocsin.platform.storage.s3_store import read_credentials
from tocsin.setup.paths import here

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docker-compose.yml").read_text(encoding="utf-8")
COMPOSE: dict[str, Any] = yaml.safe_load(TEXT)
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")
OURS = {name: service for name, service in SERVICES.items() if "build" in service}
AIRFLOW = {name: service for name, service in OURS.items() if service.get("profiles") == ["airflow"]}
WAYS = {profile for service in SERVICES.values() for profile in service.get("profiles", [])}


OPTIONAL = ("flows", "views", "tables", "lib")
"""Folders that a project need not have."""


def run(*command: str) -> None:
    tool = Path(sys.executable).parent / command[0]
    done = subprocess.run([str(tool), *command[1:]], cwd=ROOT, capture_output=True, check=False)
    assert done.returncode == 0, (done.stdout + done.stderr).decode()


def test_it_follows_the_compose_schema_which_would_catch_a_misspelt_key(tmp_path: Path) -> None:
    broken = tmp_path / "broken.yml"
    broken.write_text(TEXT.replace("healthcheck:", "healtcheck:"), encoding="utf-8")
    with pytest.raises(AssertionError, match="healtcheck") as raised:
        run("check-jsonschema", "--builtin-schema", "vendor.compose-spec", "docker-compose.yml", str(broken))
    assert "docker-compose.yml::" not in str(raised.value)


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
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    images = {name: service["image"] for name, service in SERVICES.items()}
    assert images["kafka"] == f"apache/kafka:{kafka}"
    assert {images[name] for name in OURS} == {f"tocsin:{project['version']}"}
    assert all(re.search(r":v?\d+(\.\d+)+$", image) for image in images.values())
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


@pytest.mark.parametrize(
    ("service", "page"),
    [("supervisor", ""), ("cluster-supervisor", ""), ("scheduler", "/tocsin"), ("api-server", "/tocsin")],
)
def test_the_pages_are_published_where_links_in_mails_lead(
    service: str, page: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = yaml.safe_load(re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", TEXT))["services"]
    for name, value in given[service]["environment"].items():
        if name.startswith("TOCSIN_WEB__"):
            monkeypatch.setenv(name, value)
    settings = load_settings()
    assert settings.web_address.endswith(page)
    published = {port.rpartition(":")[0]: port for one in given.values() for port in one.get("ports", [])}
    port = published[settings.web_address.removesuffix(page).removeprefix("http://")]
    assert port.endswith(":8080" if page else f":{settings.web.port}")
    assert page or (settings.web.host == "0.0.0.0" and port in given[service]["ports"])


def test_it_holds_no_password() -> None:
    for name, service in SERVICES.items():
        for variable, value in service.get("environment", {}).items():
            assert not re.search("PASSWORD|SECRET|TOKEN", variable) or variable.endswith("_FILE"), (name, value)


def test_what_a_service_waits_for_is_there_in_each_way_of_running_it() -> None:
    for name, service in SERVICES.items():
        for profile in service.get("profiles", WAYS):
            running = {profile, "jobs"} if profile == "observability" else {profile}
            for needed in service.get("depends_on", {}):
                assert not running.isdisjoint(SERVICES[needed].get("profiles", WAYS)), (name, needed, profile)


def test_every_component_of_airflow_has_its_container_and_says_itself_whether_it_works() -> None:
    start = ["python", "-m", "tocsin.dev.container"]
    assert {name: AIRFLOW[name]["command"] for name in COMPONENTS} == {name: [*start, name] for name in COMPONENTS}
    for name in COMPONENTS:
        assert AIRFLOW[name]["healthcheck"]["test"] == ["CMD", *start, name, "--check"]
        assert AIRFLOW[name]["depends_on"]["prepare"] == {"condition": "service_completed_successfully"}
    assert AIRFLOW["prepare"]["command"] == [*start, "prepare"]


def test_who_looks_at_processes_sees_those_of_the_scheduler() -> None:
    """It runs the tasks, and with them the jobs; none of the three owns the list, which would end with its owner."""
    joined = {name for name, service in SERVICES.items() if service.get("pid") == "service:processes"}
    assert joined == {"scheduler", "api-server", "triggerer"}
    assert SERVICES["processes"]["init"], "it reaps what tasks leave behind"
    assert not any(SERVICES[name]["init"] for name in joined), "an init must be the first process of its list"


def test_every_command_exists() -> None:
    commands = [service["command"] for service in OURS.values()]
    commands += [service["healthcheck"]["test"][1:] for service in OURS.values() if "healthcheck" in service]
    known = typer.main.get_command(app).commands  # type: ignore[attr-defined]  # a group has them
    for program, *words in commands:
        if program == "tocsin":
            assert words[0] in known, words
        elif words and words[0] == "-c":
            compile(words[1], program, "exec")
        elif words and words[0] == "-m":
            assert program == "python" and importlib.util.find_spec(words[1]), words
        elif program == "python":
            assert (ROOT / words[0]).exists(), words
        else:
            assert program in {"/bin/sh", "sleep", "spark-class", "true"}, program


def test_every_volume_is_declared_and_every_folder_of_the_checkout_is_there_and_read_only() -> None:
    used = [str(volume).split(":") for service in SERVICES.values() for volume in service.get("volumes", [])]
    assert {name for name, *_ in used if not name.startswith(".")} == COMPOSE["volumes"].keys()
    for name, place, *how in used:
        is_other = name.startswith("./docs/run/observability")  # for images that are not ours
        assert not name.startswith(".") or (
            (name[2:] in OPTIONAL or (ROOT / name).exists()) and (is_other or place == f"/opt/tocsin/{name[2:]}")
        ), name
        assert not name.startswith(".") or how == ["ro"], name
    declared = {"./detectors", "./expectations", "./sources", *(f"./{name}" for name in OPTIONAL)}
    for name in (*COMPONENTS, "supervisor", "cluster-supervisor"):
        assert declared <= {volume.split(":")[0] for volume in SERVICES[name]["volumes"]}, name


def test_secrets_are_made_once_and_for_their_user_alone(tmp_path: Path) -> None:
    shell, options, script = SERVICES["secrets"]["command"]
    script = script.replace("$$", "$").replace("/run/tocsin", str(tmp_path))
    for _ in range(2):
        subprocess.run([shell, options, script], check=True)
        made = {path.name: path.read_text() for path in tmp_path.iterdir()}
        assert made.keys() == {"password", "database", "tables", "s3-key", "s3"}
        assert {*re.findall(r"/run/tocsin/([\w/-]+)", TEXT)} == made.keys(), "services read what is made, and all of it"
        assert re.fullmatch("[0-9a-f]{48}", made["password"])
        assert made["s3-key"] != made["password"]
        server = f"airflow:{made['password']}@postgres:5432"
        assert made["database"] == f"postgresql+psycopg2://{server}/airflow\n"
        assert made["tables"] == f"postgresql+psycopg://{server}/postgres\n"
        assert read_credentials(tmp_path / "s3") == {"access_key": "tocsin", "secret_key": made["s3-key"]}
        assert {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()} == {0o600}
        for name in ("database", "tables", "s3"):
            (tmp_path / name).unlink()
    assert {name: (tmp_path / name).read_text() for name in ("password", "s3-key")}.items() <= made.items()


def test_a_detector_on_the_cluster_has_a_slot_for_each_task() -> None:
    """Two partitions, and a partition of state behind each of two shuffles; half of them on each executor."""
    (source,) = read_catalog(ROOT).sources.values()
    given = SERVICES["cluster-supervisor"]["environment"]
    resources = ResourceSettings.model_validate_json(given["TOCSIN_SPARK__RESOURCES"])
    assert resources.slots == source.partitions + 2 * SparkSettings().shuffle_partitions
    assert resources.executors == sum(name.startswith("spark-worker") for name in SERVICES)


def test_one_container_runs_all_that_is_declared_and_prometheus_is_in_its_network() -> None:
    """No service names a source or a detector: a file that is mounted is enough."""
    (supervisor,) = [name for name, service in SERVICES.items() if service.get("profiles") == ["jobs"]]
    names = {*(catalog := read_catalog(ROOT)).sources, *catalog.detectors}
    assert not [name for name in names if re.search(rf"\b{name}\b", TEXT)]
    beside = {name for name, service in SERVICES.items() if service.get("network_mode") == f"service:{supervisor}"}
    assert beside == {name for name, service in SERVICES.items() if service.get("profiles") == ["observability"]}
    assert SERVICES[supervisor]["environment"]["TOCSIN_METRICS__ENABLED"] == "true"


def test_no_container_needs_more_cores_than_two_and_fewer_can_be_asked_for() -> None:
    """Docker refuses to start a container whose limit is above what the machine has."""
    cpus = [str(service["deploy"]["resources"]["limits"]["cpus"]) for service in SERVICES.values()]
    assert set(cpus) == {"1", "${CPUS:-2}"}


def test_every_setting_that_is_given_exists(monkeypatch: pytest.MonkeyPatch) -> None:
    airflow = next((here().airflow_venv / "lib").glob("python3.*/site-packages/airflow"))
    options = yaml.safe_load((airflow / "config_templates" / "config.yml").read_text(encoding="utf-8"))
    for name, service in OURS.items():
        for variable, value in service["environment"].items():
            monkeypatch.setenv(variable, re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", value))
            if variable.startswith("AIRFLOW__"):
                section, _, key = variable.removeprefix("AIRFLOW__").lower().partition("__")
                assert key in options[section]["options"], variable
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
    optional = {f"{name[:-1]}[{name[-1]}]": name for name in (*OPTIONAL, "environments", "wheels", "routes.toml")}
    optional["requirements.[it][nx]*"] = "requirements.in"
    assert all(["LICENSE", pattern] in copied and name in let_in for pattern, name in optional.items())
    for name in (name for names in copied for name in names if name not in optional):
        assert (ROOT / name).exists(), name
        assert any(f"{name}/".startswith(f"{folder}/") for folder in let_in), name


def test_set_up_starts_on_what_the_image_has_of_src_before_it(tmp_path: Path) -> None:
    """So no other change of src installs anything anew."""
    before, _, _ = DOCKERFILE.partition("tocsin.setup image")
    for source, target in re.findall(r"^COPY (src/\S+) (\S+)$", before, re.MULTILINE):
        is_folder = (ROOT / source).is_dir()
        copy = shutil.copytree if is_folder else shutil.copy
        (folder := tmp_path / target).parent.mkdir(parents=True, exist_ok=True)
        if not is_folder:
            folder.mkdir()
        copy(ROOT / source, folder)
    command = [sys.executable, "-S", "-m", "tocsin.setup", "--help"]
    done = subprocess.run(command, env={"PYTHONPATH": str(tmp_path / "src")}, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
