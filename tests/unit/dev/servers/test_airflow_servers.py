"""How Airflow is started, also as the main process of a container: its environment, its secrets, what it waits for."""

import base64
import json
import os
import stat
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from tocsin.declare.model.errors import ConfigError
from tocsin.declare.setting_blocks import AirflowSettings, SmtpSettings
from tocsin.declare.settings import Settings
from tocsin.dev import container
from tocsin.dev.servers.airflow_servers import COMPONENTS, Airflow
from tocsin.dev.servers.ports import free_ports
from tocsin.setup.paths import here

BEGAN = datetime(2026, 1, 1, 12, tzinfo=UTC)


class Health(BaseHTTPRequestHandler):
    told: dict[str, Any] = {}  # noqa: RUF012 - set by each test

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(self.told).encode())

    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""


@pytest.fixture
def api() -> Iterator[int]:
    with HTTPServer(("127.0.0.1", 0), Health) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


@pytest.fixture
def airflow(tmp_path: Path) -> Airflow:
    settings = Settings(state=tmp_path, smtp=SmtpSettings(host="127.0.0.1", port=2525))
    return Airflow(settings, 8088, Path("/java"), BEGAN)


def test_secrets_and_passwords_are_for_this_user_alone_and_made_once(airflow: Airflow) -> None:
    airflow.prepare()
    made = {path: path.read_text() for path in airflow.folder.iterdir()}
    assert {path.name for path in made} == {"jwt.secret", "fernet.secret", "session.secret", "passwords.json"}
    assert {stat.S_IMODE(path.stat().st_mode) for path in made} == {0o600}
    assert len(base64.urlsafe_b64decode(made[airflow.folder / "fernet.secret"])) == 32
    assert json.loads(airflow.passwords.read_text()).keys() == {"admin", "operator", "viewer"}
    airflow.prepare()
    assert {path: path.read_text() for path in airflow.folder.iterdir()} == made


def test_a_new_user_gets_a_password_and_the_others_keep_theirs(airflow: Airflow) -> None:
    airflow.prepare()
    before = json.loads(airflow.passwords.read_text())
    settings = airflow.settings.model_copy(update={"airflow": AirflowSettings(users={"admin": "admin", "ann": "user"})})
    Airflow(settings, 8088, Path("/java")).prepare()
    after = json.loads(airflow.passwords.read_text())
    assert {name: after[name] for name in before} == before
    assert after["ann"] not in before.values()


def test_a_component_gets_loopback_the_stacks_settings_and_nothing_of_the_callers(
    airflow: Airflow, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW__CORE__DAGS_FOLDER", "/elsewhere")
    monkeypatch.setenv("PYTHONPATH", "/elsewhere")
    launches = [component.launch("here.servers") for component in airflow.components()]
    assert [launch.command[-1] for launch in launches] == list(COMPONENTS)
    for launch in launches:
        environment = launch.environment
        assert environment["AIRFLOW__API__HOST"] == "127.0.0.1"
        assert environment["AIRFLOW__CORE__DAGS_FOLDER"] == str(here().root / "dags")
        assert environment["TOCSIN_STATE"] == str(airflow.settings.state)
        assert environment["JAVA_HOME"] == "/java"
        away = int(environment["AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT"])
        assert away >= 240, "a batch outlives an API server that is away for four minutes"
        assert int(environment["AIRFLOW__WORKERS__MAX_FAILED_HEARTBEATS"]) * 5 * 12 > away
        assert "PYTHONPATH" not in environment
        assert environment["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"] == f"sqlite:///{airflow.folder / 'airflow.db'}"


def test_a_component_is_started_from_another_spec_when_its_environment_changes(airflow: Airflow) -> None:
    def spec(one: Airflow) -> str:
        return one.components()[0].launch("here.servers").labels.spec

    assert spec(airflow) == spec(airflow)
    assert spec(airflow) != spec(Airflow(airflow.settings, 8089, Path("/java"), BEGAN))


def test_the_metadata_db_may_be_elsewhere(airflow: Airflow, tmp_path: Path) -> None:
    address = tmp_path / "address"
    address.write_text("postgresql+psycopg2://airflow:secret@db/airflow\n")
    settings = airflow.settings.model_copy(update={"airflow": AirflowSettings(database_file=address)})
    elsewhere = Airflow(settings, 8088, Path("/java"))
    elsewhere.prepare()
    assert elsewhere.environment()["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"] == address.read_text().strip()
    address.unlink()
    with pytest.raises(ConfigError, match=r"airflow\.database_file"):
        elsewhere.environment()


def test_its_metrics_go_nowhere_unless_asked(airflow: Airflow) -> None:
    airflow.prepare()
    assert not [name for name in airflow.environment() if name.startswith("OTEL_") or "METRICS__" in name]


@pytest.mark.parametrize("address", ["prometheus:9090", "http://prometheus:9090", "ftp://prometheus/metrics", ""])
def test_an_address_of_metrics_is_a_url_with_a_path(address: str) -> None:
    with pytest.raises(ValidationError, match="metrics_url"):
        AirflowSettings(metrics_url=address)


def test_what_each_component_waits_for(airflow: Airflow, api: int) -> None:
    before, after = ((BEGAN + timedelta(seconds=seconds)).isoformat() for seconds in (-1, 1))
    Health.told = {
        "scheduler": {"status": "healthy", "latest_scheduler_heartbeat": after},
        "dag_processor": {"status": "healthy", "latest_dag_processor_heartbeat": before},
        "triggerer": {"status": None, "latest_triggerer_heartbeat": None},
    }
    serving = Airflow(airflow.settings, api, Path("/java"), BEGAN)
    waits = {component.component: component.waiting_for() for component in serving.components()}
    beat = "its first heartbeat"
    assert waits == {"api-server": None, "scheduler": None, "dag-processor": beat, "triggerer": beat}


def test_without_an_answer_all_wait_for_the_api(airflow: Airflow) -> None:
    silent = Airflow(airflow.settings, free_ports(1)[0], Path("/java"), BEGAN)
    waits = {component.component: component.waiting_for() for component in silent.components()}
    assert waits["api-server"] == "its API"
    assert set(waits.values()) == {"its API", "the API server"}


# --- in a container ---------------------------------------------------------------------------------------------------


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TOCSIN_PROJECT", str(tmp_path))
    monkeypatch.setenv("TOCSIN_STATE", str(tmp_path / "state"))
    return tmp_path / "state"


def test_it_becomes_the_component_and_the_containers_word_to_airflow_counts(
    state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    became: list[tuple[list[str], dict[str, str]]] = []
    monkeypatch.setattr(os, "execve", lambda _, words, environment: became.append((words, environment)))
    monkeypatch.setenv("AIRFLOW__API__HOST", "0.0.0.0")
    monkeypatch.setenv("SECRET_OF_ANOTHER", "x")
    container.main(["scheduler"])
    ((words, environment),) = became
    assert words[1:] == ["-m", "tocsin.airflow.component", "scheduler"]
    assert environment["AIRFLOW__API__HOST"] == "0.0.0.0"
    assert environment["AIRFLOW__CORE__LOAD_EXAMPLES"] == "False"
    assert environment["AIRFLOW_HOME"] == str(state / "airflow")
    assert "SECRET_OF_ANOTHER" not in environment
    assert (state / "airflow" / "jwt.secret").exists()


@pytest.mark.usefixtures("state")
def test_a_component_that_is_silent_for_a_minute_does_not_work(
    api: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for port, seconds, code in ((api, 5, 0), (api, 90, 1), (free_ports(1)[0], 5, 1)):
        beat = (datetime.now(UTC) - timedelta(seconds=seconds)).isoformat()
        monkeypatch.setattr(Health, "told", {"triggerer": {"latest_triggerer_heartbeat": beat}})
        monkeypatch.setenv("AIRFLOW__CORE__EXECUTION_API_SERVER_URL", f"http://127.0.0.1:{port}/execution/")
        assert container.main(["triggerer", "--check"]) == code
    assert capsys.readouterr().out.endswith("waits for the API server\n")


@pytest.mark.usefixtures("state")
def test_a_wrong_setting_is_told(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("TOCSIN_AIRFLOW__DATABASE_FILE", "/not/there")
    assert container.main(["scheduler"]) == 2
    assert "airflow.database_file" in capsys.readouterr().err
