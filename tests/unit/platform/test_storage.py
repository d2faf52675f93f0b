"""Checkpoints elsewhere: in an object store, in a folder that installations share; and many reads of one place."""

import os
import threading
from pathlib import Path
from unittest.mock import Mock

import pytest

from tocsin.declare.model.errors import ConfigError, TransientError
from tocsin.declare.setting_blocks import StorageSettings
from tocsin.declare.settings import Settings
from tocsin.platform import state_file
from tocsin.platform.storage.job_folders import claim
from tocsin.platform.storage.s3_store import CREDENTIALS, VARIABLES, prepare_s3a, read_credentials
from tocsin.platform.storage.stored_path import ObjectPath, read_each

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


# --- a shared folder --------------------------------------------------------------------------------------------------


def named(folder: Path, instance: str) -> Settings:
    storage = StorageSettings(checkpoints=f"file:{folder}/shared")
    return Settings(project=folder, state=folder / instance, instance=instance, storage=storage)


def test_who_is_refused_writes_no_mark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    claim(named(tmp_path, "mine"))
    with (
        monkeypatch.context() as patched,
        pytest.raises(ConfigError, match=r"belongs to installation 'mine' .*or remove .*mine\.json"),
    ):
        patched.setattr(state_file, "write", lambda *_: pytest.fail("it may not write"))
        claim(named(tmp_path, "theirs"))
    claim(named(tmp_path, "mine"))


def test_a_trial_shares_nothing(tmp_path: Path) -> None:
    trial = named(tmp_path, "mine").apart(tmp_path / "trial")
    claim(trial)
    assert not (tmp_path / "shared").exists()
    assert trial.storage.checkpoints is None


# --- reading ----------------------------------------------------------------------------------------------------------


STORE = ObjectPath(Mock(), "bucket/folder")


def test_a_store_is_asked_for_several_at_once_and_answers_in_order() -> None:
    together = threading.Barrier(4)

    def read(number: int) -> int:
        together.wait(timeout=30)
        return 10 * number

    assert read_each(read, range(8), STORE) == [0, 10, 20, 30, 40, 50, 60, 70]


def test_a_store_that_is_away_is_told() -> None:
    with pytest.raises(TransientError, match="did not answer"):
        read_each(Mock(side_effect=TransientError("it did not answer")), range(3), STORE)


def test_a_disk_is_read_one_by_one(tmp_path: Path) -> None:
    assert {*read_each(lambda _: threading.current_thread(), range(4), tmp_path)} == {threading.current_thread()}
