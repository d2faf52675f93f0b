import os
from pathlib import Path

import pytest

from tocsin.declare.blocks.spark_settings import SparkSettings
from tocsin.declare.setting_blocks import (
    AlertSettings,
    KafkaSettings,
    SmtpSettings,
    StorageSettings,
    ViewSettings,
)
from tocsin.declare.settings import Settings, load_settings
from tocsin.supervise.installed_jobs import job_environment, job_launch
from tocsin.supervise.runners.runner import Labels, of_command, of_environment


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(
        project=tmp_path / "project",
        state=tmp_path / "state",
        instance="shop",
        kafka=KafkaSettings(bootstrap_servers="127.0.0.1:19092", topic_prefix="x."),
        smtp=SmtpSettings(port=2525),
        alerts=AlertSettings(urgent_recipients=("a@example.com",), history_days=90),
        receivers={
            "webhook": {"siem": {"url": "https://siem.example.com/in", "secret_file": str(tmp_path / "secret")}}
        },
        spark=SparkSettings(heap_mb=700, shuffle_partitions=2, conf={"spark.a": "b"}),
    )


def test_a_job_reads_exactly_the_settings_of_whoever_started_it(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = job_environment(settings, Path("/java"))
    for name in list(os.environ):
        monkeypatch.delenv(name)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    settings.state.mkdir()
    (settings.state / "running.toml").write_text('[kafka]\nbootstrap_servers = "127.0.0.1:1"\n')
    assert load_settings() == settings


def test_nothing_of_airflow_python_or_another_spark_reaches_a_job(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    foreign = ("AIRFLOW_HOME", "AIRFLOW__CORE__X", "PYTHONPATH", "PYTHONSTARTUP", "SPARK_CONF_DIR", "JAVA_TOOL_OPTIONS")
    for name in (*foreign, "TOCSIN_KAFKA__BOOTSTRAP_SERVERS"):
        monkeypatch.setenv(name, "x")
    monkeypatch.setenv("SPARK_HOME", "/another/spark")
    monkeypatch.setenv("HADOOP_CONF_DIR", "/etc/hadoop")
    environment = job_environment(settings, Path("/java"))
    on_yarn = settings.model_copy(update={"spark": SparkSettings(master="yarn", driver_host="jobs")})
    assert job_environment(on_yarn, Path("/java")).get("HADOOP_CONF_DIR") == "/etc/hadoop"
    assert "HADOOP_CONF_DIR" not in environment
    assert not {*foreign, "TOCSIN_KAFKA__BOOTSTRAP_SERVERS"} & environment.keys()
    assert environment["SPARK_HOME"].endswith("/pyspark")
    assert environment["JAVA_HOME"] == "/java"


def test_a_job_finds_the_role_for_its_object_store_and_no_other_does(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = {"AWS_ROLE_ARN", "AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_CONTAINER_CREDENTIALS_FULL_URI", "AWS_PROFILE"}
    for name in (*names, "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "x")
    stored = [StorageSettings(**{name: "s3a://bucket/prefix"}) for name in ("checkpoints", "history")]
    forms = [settings, *(settings.model_copy(update={"storage": one}) for one in stored)]
    found = [{name for name in job_environment(one, Path("/java")) if "AWS" in name} for one in forms]
    assert found == [set(), names, names]


@pytest.mark.parametrize(
    ("job", "words"),
    [
        ("ingest:logins", ["ingest", "logins"]),
        ("detector:failed_logins", ["detector", "failed_logins"]),
        ("indexer", ["indexer"]),
        ("notifier", ["notifier"]),
    ],
)
def test_each_job_has_its_command_its_labels_and_its_log(settings: Settings, job: str, words: list[str]) -> None:
    labels = Labels("shop-1", job, "abc")
    launch = job_launch(settings, labels, Path("/java"))
    assert launch.command[1:3] == ("-m", "tocsin.job")
    assert " ".join(launch.command).split(" --label")[0].endswith(" ".join(words))
    assert of_command(launch.command) == labels
    assert launch.log == settings.log(job)


def test_only_jobs_that_use_an_address_are_told_it(settings: Settings) -> None:
    settings = settings.model_copy(update={"views": ViewSettings(postgres="postgresql://tocsin:hunter2@db/views")})
    for job in ("ingest:logins", "detector:failed_logins", "view:counts", "compute:counts", "indexer", "notifier"):
        environment = job_launch(settings, Labels("shop-1", job, "abc"), Path("/java")).environment
        assert any("hunter2" in value for value in environment.values()) is (job == "view:counts"), job


LABELS = Labels("local-1a2b", "detector:failed_logins", "abc123")


def test_labels_are_read_back_from_each_place_they_are_written_to() -> None:
    assert of_command(["python", "spark_jobs/detect.py", "failed_logins", *LABELS.arguments()]) == LABELS
    assert of_command(["java", "-Xmx1g", LABELS.java_property(), "kafka.Kafka", "server.properties"]) == LABELS
    assert of_environment({"PATH": "/bin", **LABELS.variable()}) == LABELS


def test_a_name_with_spaces_is_read_back_too() -> None:
    odd = Labels("local-1a2b", "detector:failed logins=50% é", "abc123")
    assert of_environment(odd.variable()) == of_command([odd.java_property()]) == odd
    assert of_command(odd.arguments()) == odd


def test_what_carries_no_or_few_labels_is_not_ours() -> None:
    assert of_command([]) is None
    assert of_command(["vim", "--label"]) is None
    assert of_command(["python", "--label", "job=x", "--label", "instance=y"]) is None
    assert of_environment({}) is None
