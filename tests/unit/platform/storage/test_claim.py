"""One installation has a folder of checkpoints; one that is refused leaves nothing there."""

from __future__ import annotations

from pathlib import Path

import pytest

from tocsin.declare.model.errors import ConfigError
from tocsin.declare.setting_blocks import StorageSettings
from tocsin.declare.settings import Settings
from tocsin.platform import state_file
from tocsin.platform.storage.job_folders import claim


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
