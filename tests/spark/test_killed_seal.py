"""A seal that is killed between any two of its steps, and one whose disk is full: published is nothing or all.

`kill -9` runs no code of ours, so the state folder as it is at that moment is all that is left of the process.
"""

import shutil
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.rig.small_disk import small_disk
from tests.spark.sealing import DAY, History, Judge, login
from tocsin.declare.setting_blocks import StorageSettings
from tocsin.declare.settings import Settings
from tocsin.history import sealing
from tocsin.history.care import verify
from tocsin.history.day_rows import DayRows
from tocsin.history.day_table import DayTable
from tocsin.history.places import Places
from tocsin.history.spark import seal
from tocsin.platform.process_exit import ExitCode

STEPS = ["written", "described", "judged", "severity", "published", "noted"]


def published(history: History) -> tuple[str | None, int]:
    """The version that counts, and the events of its files as the table holds them."""
    with history.table() as table:
        name, rows = table.published().get(DAY), sum(table.files().values())
    if name is not None:
        assert history.version(DAY, name).facts.rows == rows
    return name, rows


def test_a_seal_that_is_killed_anywhere_publishes_nothing_or_all(
    spark: SparkSession, starts: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    history, left = History(tmp_path / "state"), tmp_path / "left"
    history.land([login(n, seconds=n) for n in range(10)])
    before = history.seal(spark).version.version
    history.land([login(n, seconds=n) for n in range(10, 15)])

    def kept(act: Callable[..., Any]) -> Callable[..., Any]:
        def step(*given: Any) -> Any:
            done = act(*given)
            shutil.copytree(history.settings.state, left / str(len(list(left.glob("*")))))
            return done

        return step

    steps = ((seal.Sealer, "_write"), (DayRows, "write"), (Judge, "judge"), (DayTable, "publish_all"))
    for owner, name in steps:
        monkeypatch.setattr(owner, name, kept(getattr(owner, name)))
    sealed = history.seal(spark).version.version
    monkeypatch.undo()
    assert sorted(path.name for path in left.iterdir()) == [str(number) for number in range(len(STEPS))]
    for number, step in enumerate(STEPS):
        shutil.rmtree(history.settings.state)
        shutil.copytree(left / str(number), history.settings.state)
        expected = (sealed, 15) if step in ("published", "noted") else (before, 10)
        assert published(history) == expected, step
        assert verify(history.settings, history.source, checksums=True) == [], step
    monkeypatch.setattr(sealing, "DayGate", lambda *_: Judge())
    for step in ("written", "judged", "published"):
        shutil.rmtree(history.settings.state)
        shutil.copytree(left / str(STEPS.index(step)), history.settings.state)
        assert sealing.seal(history.settings, history.source, [DAY]).code == 0
        again, rows = published(history)
        assert rows == 15, step
        assert again in [folder for day, folder, _ in history.places.version_folders() if day == DAY]
        assert verify(history.settings, history.source, checksums=True) == [], step
        with history.table() as table:
            assert table.audits() == set(), "what the killed seal has staged is dropped"


def test_a_full_disk_while_sealing_publishes_nothing_and_says_so(
    starts: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sealing, "DayGate", lambda *_: Judge())
    history, before = History(tmp_path / "state"), DAY - timedelta(days=1)
    with small_disk(tmp_path / "disk", 8) as disk:
        settings = Settings(
            state=tmp_path / "state",
            instance="full",
            storage=StorageSettings(history=f"file:{disk.folder / 'history'}"),
        )
        history.settings, history.places = settings, Places.of(settings, "logins")
        history.land([login(n, seconds=n) for n in range(200)])
        with history.table() as table:
            table.publish(before, "v0", [], {})
        disk.fill()
        assert sealing.seal(settings, history.source, [DAY]).code == ExitCode.UNWRITABLE
        assert "seal failed" in "".join(capsys.readouterr())
        with history.table() as table:
            assert table.published() == {before: "v0"}
        disk.make_room()
        assert not list(history.places.version_folders())
        assert sealing.seal(settings, history.source, [DAY]).code == ExitCode.OK
        assert published(history)[1] == 200
