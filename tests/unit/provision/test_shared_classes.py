"""The name of the archive of classes: another one for whatever it would not fit."""

from __future__ import annotations

from pathlib import Path

import pytest

from tocsin.model.errors import ConfigError
from tocsin.provision.java import archive_path, use_archive
from tocsin.provision.paths import Paths


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


def test_one_that_is_not_made_is_not_used(paths: Paths, tmp_path: Path) -> None:
    path = archive_path(paths, tmp_path / "java")
    assert use_archive(path) == []
    path.parent.mkdir()
    path.touch()
    assert use_archive(path) == [f"-XX:SharedArchiveFile={path}"]


def test_without_spark_there_is_none(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="pyspark"):
        archive_path(Paths(tmp_path, tmp_path), tmp_path)
