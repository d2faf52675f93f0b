"""Where the AppCDS archive of Spark's classes lies. `tocsin.spark.archive` makes it; every JVM of Spark may use it."""

from __future__ import annotations

import hashlib
from pathlib import Path

from tocsin.provision.paths import Paths


def archive_path(paths: Paths, java_home: Path) -> Path:
    """The archive for this Java, Spark and connector, made or not.

    A JVM ignores an archive that does not fit its version or class path, without a word; so the name is a hash of both.

    Raises:
        ConfigError: PySpark is not installed.
    """
    spark = paths.package("pyspark")
    jars = [*paths.jars("spark").glob("*.jar"), *(spark / "jars").glob("*.jar"), *java_home.glob("bin/java")]
    places = map(str, (java_home, spark))
    parts = [*places, *(f"{jar}:{jar.stat().st_size}:{jar.stat().st_mtime_ns}" for jar in sorted(jars))]
    return paths.home / "archive" / f"{hashlib.sha256('|'.join(parts).encode()).hexdigest()[:16]}.jsa"


def use(archive: Path) -> list[str]:
    """The JVM options that use `archive`; none while it is not made."""
    return [f"-XX:SharedArchiveFile={archive}"] if archive.exists() else []
