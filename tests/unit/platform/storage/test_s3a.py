"""What a Spark session is started with so that its checkpoint may lie in an object store."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tocsin.declare.model.errors import ConfigError
from tocsin.declare.setting_blocks import StorageSettings
from tocsin.platform.storage.s3_store import CREDENTIALS, VARIABLES, prepare_s3a, read_credentials

CLASS_PATH = "SPARK_DIST_CLASSPATH"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where set-up has put nothing yet; the environment is as before afterwards."""
    monkeypatch.setenv("TOCSIN_HOME", str(tmp_path))
    for name in VARIABLES:
        monkeypatch.setenv(name, "")
    return tmp_path


def test_a_checkpoint_on_a_disk_needs_nothing(home: Path) -> None:
    for uri in (None, "file:/mnt/shared"):
        assert prepare_s3a(StorageSettings(checkpoints=uri), uri, home) == {}


def test_missing_archives_are_said_with_what_to_run(home: Path) -> None:
    uri = "s3a://bucket/tocsin"
    for name in ("checkpoints", "history"):
        with pytest.raises(ConfigError, match=rf"storage.{name}: holds no archives of s3a; run: make setup-s3"):
            prepare_s3a(StorageSettings(**{name: uri}), uri, home)


def test_keys_reach_the_jvm_by_the_path_of_their_file(home: Path, tmp_path: Path) -> None:
    (archives := home / "jars" / "s3").mkdir(parents=True)
    for name in ("b.jar", "a.jar"):
        (archives / name).touch()
    keys = tmp_path / "credentials"
    keys.write_text("[default]\naws_access_key_id = one\naws_secret_access_key = hush\n")
    storage = StorageSettings(
        checkpoints="s3a://bucket/tocsin", s3_endpoint="http://127.0.0.1:9000", s3_credentials_file=keys
    )
    options = prepare_s3a(storage, storage.checkpoints, tmp_path)
    assert options["spark.hadoop.fs.s3a.endpoint"] == "http://127.0.0.1:9000"
    assert options["spark.hadoop.fs.s3a.buffer.dir"] == str(tmp_path / "s3a")
    assert not [value for value in options.values() if value in ("one", "hush")]
    assert os.environ[CREDENTIALS] == str(keys)
    assert os.environ[CLASS_PATH] == f"{archives / 'a.jar'}:{archives / 'b.jar'}"
    assert read_credentials(keys) == {"access_key": "one", "secret_key": "hush"}
    assert not options.keys() & {"spark.jars", f"spark.executorEnv.{CREDENTIALS}"}

    more = prepare_s3a(storage, storage.checkpoints, tmp_path, has_executors=True)
    assert more["spark.jars"] == f"{archives / 'a.jar'},{archives / 'b.jar'}"
    assert more[f"spark.executorEnv.{CREDENTIALS}"] == str(keys)
    assert str(tmp_path) not in more["spark.hadoop.fs.s3a.buffer.dir"], "no folder of the driver's machine"
    assert not [value for value in more.values() if value in ("one", "hush")]


@pytest.mark.parametrize("text", ["", "[default]\naws_access_key_id = one\n", "no section"])
def test_half_a_file_of_credentials_says_what_it_must_hold(text: str, tmp_path: Path) -> None:
    (keys := tmp_path / "credentials").write_text(text)
    with pytest.raises(ConfigError, match=r"storage.s3_credentials_file: must hold \[default\]"):
        read_credentials(keys)
    with pytest.raises(ConfigError, match="cannot be read"):
        read_credentials(tmp_path / "absent")
