"""The name of the archive of classes: another one for whatever it would not fit."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from tocsin.declare.model.errors import ConfigError, TransientError
from tocsin.setup import java as provided
from tocsin.setup.java import Java, archive_path, use_archive
from tocsin.setup.paths import Paths


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    made = Paths(tmp_path / "checkout", tmp_path / "home")
    spark = made.venv / "lib" / "python3.11" / "site-packages" / "pyspark" / "jars"
    for jar in (spark / "spark-core.jar", made.jars("spark") / "kafka.jar", tmp_path / "java" / "bin" / "java"):
        jar.parent.mkdir(parents=True)
        jar.write_text("1")
    return made


def test_it_is_the_same_as_long_as_nothing_changes_and_another_for_any_change(paths: Paths, tmp_path: Path) -> None:
    java = tmp_path / "java"
    known = [archive_path(paths, java)]
    assert archive_path(paths, java) == known[0]
    for changed in (java / "bin" / "java", paths.package("pyspark") / "jars" / "spark-core.jar"):
        changed.write_text("another")
        known.append(archive_path(paths, java))
    (paths.jars("spark") / "more.jar").touch()
    known += [archive_path(paths, java), archive_path(paths, tmp_path / "other")]
    assert len(set(known)) == len(known)


@pytest.fixture
def java(paths: Paths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The home of the Java that set-up finds and jobs run on."""
    found = Java(tmp_path / "java", tmp_path / "java" / "bin" / "java", "17.0.1", "PATH", tmp_path / "java")
    monkeypatch.setattr(provided, "find_java", lambda _: found)
    monkeypatch.setenv("JAVA_HOME", str(found.home))
    return found.home


def test_it_is_made_once_and_used_from_then_on(paths: Paths, java: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = archive_path(paths, java)
    long_unused, young = path.with_name("long_unused.jsa"), path.with_name("young.jsa")
    path.parent.mkdir()
    for other, days in ((long_unused, 8), (young, 6)):
        other.touch()
        os.utime(other, (0, time.time() - days * 86_400))

    def make(command: list[Path], _: str, env: dict[str, str]) -> None:
        assert env == {"JAVA_HOME": str(java)}
        command[-1].touch(0o400)

    monkeypatch.setattr(provided, "run", make)
    assert use_archive(paths) == []
    assert provided.install_archive(paths)
    assert use_archive(paths) == [f"-XX:SharedArchiveFile={path}"]
    assert path.stat().st_mode & 0o777 == 0o644
    assert young.exists(), "another Java may be in use in turn with this one"
    assert not long_unused.exists()
    assert not provided.install_archive(paths)


def test_the_next_image_takes_the_one_that_was_kept(
    paths: Paths, java: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (kept := tmp_path / "kept").mkdir()
    made: list[str] = []

    def make(command: list[Path], _: str, env: dict[str, str]) -> None:
        made.append(command[-1].name)
        command[-1].write_text("classes")

    monkeypatch.setattr(provided, "run", make)
    for _ in range(2):
        assert provided.install_archive(paths, kept)
        assert archive_path(paths, java).read_text() == "classes"
        archive_path(paths, java).unlink()
    assert len(made) == 1


def test_what_a_failure_leaves_is_removed(paths: Paths, java: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(command: list[Path], _: str, env: dict[str, str]) -> None:
        command[-1].touch()
        raise TransientError("no")

    monkeypatch.setattr(provided, "run", fail)
    with pytest.raises(TransientError):
        provided.install_archive(paths)
    assert list(archive_path(paths, java).parent.iterdir()) == []


def test_without_spark_there_is_none(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="pyspark"):
        archive_path(Paths(tmp_path, tmp_path), tmp_path)
