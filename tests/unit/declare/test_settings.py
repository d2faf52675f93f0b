"""Where settings come from, which one wins, and how they are translated for each Kafka client."""

import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest
from pydantic import BaseModel

from tocsin.declare.model.errors import ConfigError
from tocsin.declare.setting_blocks import DrainSettings, KafkaSettings, SmtpSettings, StorageSettings, TlsSettings
from tocsin.declare.settings import Settings, load_settings


@pytest.fixture(autouse=True)
def _no_settings_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    import os  # noqa: PLC0415 - only to clear it

    for name in [name for name in os.environ if name.startswith("TOCSIN_")]:
        monkeypatch.delenv(name)


def test_defaults_lie_in_the_project(tmp_path: Path) -> None:
    settings = load_settings(tmp_path)
    assert settings.project == tmp_path
    assert settings.state == tmp_path / ".tocsin/state"
    assert settings.alerts_database == f"sqlite:///{tmp_path}/.tocsin/state/alerts.db"
    assert settings.checkpoint("detector:x") == tmp_path / ".tocsin/state/checkpoints/detector__x"
    assert settings.log("ingest:y") == tmp_path / ".tocsin/state/logs/ingest__y.log"


def test_later_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tocsin.toml").write_text(
        '[kafka]\nbootstrap_servers = "file:1"\ntopic_prefix = "p."\n[smtp]\nport = 1\n'
    )
    assert load_settings(tmp_path).kafka.bootstrap_servers == "file:1"
    state = tmp_path / "elsewhere"
    state.mkdir()
    (state / "running.toml").write_text('[kafka]\nbootstrap_servers = "running:2"\n')
    monkeypatch.setenv("TOCSIN_STATE", str(state))
    monkeypatch.setenv("TOCSIN_SMTP__PORT", "3")
    settings = load_settings(tmp_path)
    assert (settings.kafka.bootstrap_servers, settings.kafka.topic_prefix) == ("running:2", "p.")
    assert (settings.state, settings.smtp.port) == (state, 3)
    assert settings.names.events("logins") == "p.events.logins"
    monkeypatch.setenv("TOCSIN_KAFKA__BOOTSTRAP_SERVERS", "environment:4")
    assert load_settings(tmp_path).kafka.bootstrap_servers == "environment:4"


@pytest.mark.parametrize(
    ("name", "value", "what"),
    [
        ("TOCSIN_SMPT__HOST", "mail.example.com", "smpt: is not a setting.*smtp"),
        ("TOCSIN_SMTP_HOST", "mail.example.com", "TOCSIN_SMTP_HOST: is not a setting.*TOCSIN_SMTP__HOST"),
        ("TOCSIN_ALERTS__URGENT_RECIPIENTS", "a@example.com", "TOCSIN_ALERTS__URGENT_RECIPIENTS: must be JSON"),
    ],
)
def test_a_variable_that_sets_nothing_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: str, what: str
) -> None:
    monkeypatch.setenv("TOCSIN_WEB_PORT", "tcp://10.0.0.1:8431")  # Kubernetes sets it for a service `tocsin-web`
    load_settings(tmp_path)
    monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match=what):
        load_settings(tmp_path)


def test_paths_begin_in_the_project(tmp_path: Path) -> None:
    """Jobs run in another folder than commands."""
    text = '[smtp]\npassword_file = "a/smtp"\n[views]\nredis_file = "redis"\n[tls]\ncertificate_file = "/c"\n'
    text += 'key_file = "k"\n[receivers.webhook.x]\nurl = "https://example.com"\nsecret_file = "secret"\n'
    (tmp_path / "tocsin.toml").write_text(text)
    (tmp_path / "redis").write_text("redis://host:6379/0")
    found = load_settings(tmp_path)
    assert (found.smtp.password_file, found.views.address("redis")) == (tmp_path / "a" / "smtp", "redis://host:6379/0")
    assert (found.tls.certificate_file, found.tls.key_file) == (Path("/c"), tmp_path / "k")
    assert found.receivers["webhook"]["x"].secret_file == tmp_path / "secret"


def test_nothing_in_the_tests_reaches_a_default_port(tmp_path: Path) -> None:
    """In this process and in its children; a stack of a person may serve there."""
    code = "from tocsin.declare.settings import *; s = load_settings(); print(s.kafka.bootstrap_servers, s.smtp.port)"
    child = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    settings = load_settings(tmp_path)
    assert f"{settings.kafka.bootstrap_servers} {settings.smtp.port}\n" == child.stdout == "127.0.0.1:1 1\n"
    assert (settings.airflow.port, settings.drain.port) == (1, 1)


def test_an_installation_is_known_by_its_name_or_else_by_its_folder(tmp_path: Path) -> None:
    one, other = Settings(state=tmp_path / "one"), Settings(state=tmp_path / "other")
    assert one.installation_id != other.installation_id
    assert one.installation_id == Settings(state=tmp_path / "x" / ".." / "one").installation_id
    named = [Settings(state=tmp_path / name, instance="prod") for name in ("one", "other")]
    assert [settings.installation_id for settings in named] == ["prod", "prod"], "jobs may run on several machines"


def test_durations_are_words(tmp_path: Path) -> None:
    (tmp_path / "tocsin.toml").write_text('[conditions]\nlag = "3 minutes"\n')
    assert load_settings(tmp_path).conditions.lag == timedelta(minutes=3)


def test_all_faults_are_told_at_once_with_the_nearest_key(tmp_path: Path) -> None:
    text = 'instance = "No!"\n[kafka]\nbootstrap_server = 1\n[spark]\ntrigger_seconds = 1\n'
    (tmp_path / "tocsin.toml").write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_settings(tmp_path)
    faults = {fault.key: fault for fault in caught.value.faults}
    assert faults.keys() == {"instance", "kafka.bootstrap_server", "spark.trigger_seconds"}
    assert faults["kafka.bootstrap_server"].nearest == "bootstrap_servers"
    assert all("tocsin.toml" in fault.where for fault in faults.values())


@pytest.mark.parametrize(
    ("text", "what"), [(b"=", "is not TOML"), (b"# \xf6", "is not TOML"), (b'project = "x"', "project: is the folder")]
)
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, text: bytes, what: str) -> None:
    (file := tmp_path / "tocsin.toml").write_bytes(text)
    with pytest.raises(ConfigError, match=rf"tocsin\.toml: {what}"):
        load_settings(tmp_path)
    file.write_bytes(b"\xef\xbb\xbfinstance = 'shop'")
    assert load_settings(tmp_path).instance == "shop"


def test_one_kafka_block_serves_every_client(tmp_path: Path) -> None:
    (tmp_path / "password").write_text('s"e\\cret\n')
    (tmp_path / "cert.pem").write_text("CERT")
    (tmp_path / "key.pem").write_text("KEY")
    kafka = KafkaSettings(
        bootstrap_servers="k:1",
        security_protocol="SASL_SSL",
        sasl_mechanism="SCRAM-SHA-512",
        sasl_username="me",
        sasl_password_file=tmp_path / "password",
        ssl_ca_file=tmp_path / "ca.pem",
        ssl_certificate_file=tmp_path / "cert.pem",
        ssl_key_file=tmp_path / "key.pem",
    )
    assert kafka.for_librdkafka() == {
        "bootstrap.servers": "k:1", "security.protocol": "SASL_SSL", "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "me", "sasl.password": 's"e\\cret', "ssl.ca.location": str(tmp_path / "ca.pem"),
        "ssl.certificate.location": str(tmp_path / "cert.pem"), "ssl.key.location": str(tmp_path / "key.pem"),
        "log_level": 0, "socket.timeout.ms": 10_000, "reconnect.backoff.max.ms": 2_000,
    }  # fmt: skip
    java = kafka.for_java()
    assert java["sasl.jaas.config"] == (
        'org.apache.kafka.common.security.scram.ScramLoginModule required username="me" password="s\\"e\\\\cret";'
    )
    assert (java["ssl.truststore.type"], java["ssl.truststore.location"]) == ("PEM", str(tmp_path / "ca.pem"))
    assert (java["ssl.keystore.certificate.chain"], java["ssl.keystore.key"]) == ("CERT", "KEY")


@pytest.mark.parametrize(
    ("block", "values", "what"),
    [
        (KafkaSettings, {"security_protocol": "SASL_SSL"}, "needs sasl_mechanism, sasl_username, sasl_password_file"),
        (KafkaSettings, {"ssl_key_file": "k"}, "go together"),
        (TlsSettings, {"key_file": "k"}, "go together"),
        (Settings, {"drain": {"host": "0.0.0.0"}}, "drain.host: one other than 127.0.0.1 needs a certificate"),
        (StorageSettings, {"checkpoints": "checkpoints"}, "must begin with s3a:// or file:/"),
        (StorageSettings, {"checkpoints": "s3://bucket/tocsin"}, "must begin with s3a:// or file:/, not 's3'"),
        (StorageSettings, {"checkpoints": "s3a://ab/tocsin"}, "names no bucket"),
        (StorageSettings, {"checkpoints": "s3a://key:secret@bucket/tocsin"}, "names no bucket"),
        (StorageSettings, {"checkpoints": "s3a://bucket"}, "needs a prefix behind the bucket"),
        (StorageSettings, {"checkpoints": "s3a://bucket/a/../b"}, "needs a prefix behind the bucket"),
        (StorageSettings, {"checkpoints": "s3a://bucket/a b"}, "needs a prefix behind the bucket"),
    ],
)
def test_a_block_that_cannot_be_is_refused(block: type[BaseModel], values: dict[str, str], what: str) -> None:
    with pytest.raises(ValueError, match=what):
        block.model_validate(values)


def test_a_drain_beyond_loopback_is_encrypted_or_said_not_to_be() -> None:
    tls, drain = TlsSettings(certificate_file=Path("c"), key_file=Path("k")), DrainSettings(host="0.0.0.0")
    assert (given := Settings(tls=tls, drain=drain)).has_tls(given.drain)
    plain = DrainSettings(host="0.0.0.0", plain_http=True)
    assert not Settings(tls=tls, drain=plain).has_tls(Settings(drain=plain).drain)


def test_checkpoints_elsewhere_need_the_name_of_the_installation(tmp_path: Path) -> None:
    (tmp_path / "tocsin.toml").write_text('[storage]\ncheckpoints = "s3a://bucket/tocsin/"\n')
    with pytest.raises(ConfigError, match=r"storage.checkpoints needs `instance`"):
        load_settings(tmp_path)
    (tmp_path / "tocsin.toml").write_text('instance = "prod"\n[storage]\ncheckpoints = "s3a://bucket/tocsin/"\n')
    assert load_settings(tmp_path).storage.checkpoints == "s3a://bucket/tocsin"


def test_a_history_in_a_store_needs_what_goes_with_it(tmp_path: Path) -> None:
    (file := tmp_path / "tocsin.toml").write_text('instance = "prod"\n[storage]\nhistory = "s3a://b-1/h"\n')
    with pytest.raises(ConfigError, match="needs a catalogue that all machines share, in PostgreSQL"):
        load_settings(tmp_path)
    file.write_text('[storage]\nhistory = "s3a://bucket/h"\n')
    with pytest.raises(ConfigError, match=r"storage.history needs `instance`"):
        load_settings(tmp_path)


def test_history_on_a_disk_may_be_named_by_a_uri(tmp_path: Path) -> None:
    for uri in ("file:/data/history", "file:///data/history/"):
        (tmp_path / "tocsin.toml").write_text(f'instance = "prod"\n[storage]\nhistory = "{uri}"\n')
        found = load_settings(tmp_path)
        assert found.history_folder == Path("/data/history")
        assert found.history_catalog == "sqlite:////data/history/catalog.db"


def test_a_secret_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"absent: smtp\.password_file: cannot be read"):
        SmtpSettings(password_file=tmp_path / "absent").password()


def test_the_address_of_the_alerts_db_may_be_in_a_file(tmp_path: Path) -> None:
    (tmp_path / "address").write_text("postgresql://tocsin:secret@db/alerts\n")
    (tmp_path / "tocsin.toml").write_text(f'[alerts]\ndatabase_file = "{tmp_path / "address"}"\n')
    assert load_settings(tmp_path).alerts_database == "postgresql://tocsin:secret@db/alerts"
    for text in ("", "DB=postgresql://u:secret@db/a", "postgresql://u:secret@db:port/a", "mysql://u:secret@db/a"):
        (tmp_path / "address").write_text(text)
        with pytest.raises(ConfigError, match=r"database_file: (is empty|must hold an address such as)") as caught:
            _ = load_settings(tmp_path).alerts_database
        assert "secret" not in str(caught.value)
    (tmp_path / "address").unlink()
    with pytest.raises(ConfigError, match=r"alerts\.database_file: cannot be read"):
        _ = load_settings(tmp_path).alerts_database


def test_a_fault_of_a_setting_says_what_was_written(tmp_path: Path) -> None:
    (tmp_path / "tocsin.toml").write_text(
        '[alerts]\nurgent_recipients = ["a@example.com", "b@"]\n[smtp]\ntls = "ssl"\n'
    )
    with pytest.raises(ConfigError) as caught:
        load_settings(tmp_path)
    assert [(fault.key, fault.what) for fault in caught.value.faults] == [
        ("smtp.tls", "must match pattern '^(none|starttls|implicit)$', not 'ssl'"),
        ("alerts.urgent_recipients", "must be one e-mail address, not 'b@'"),
    ]
