"""The committed locks: everything in them has a hash, nothing an address, and they agree with each other."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from tocsin.setup.jars import CONFIGURATIONS, LOCK, read_lock
from tocsin.setup.paths import here

LOCKS = here().locks
REQUIREMENTS = sorted(LOCKS.glob("*.txt"))


def pins(path: Path) -> dict[str, list[str]]:
    """Versions of each package in a lock; more than one when it depends on the Python."""
    found: dict[str, list[str]] = {}
    for name, version in re.findall(r"^([\w.-]+)==([^\s;]+)", path.read_text(), re.MULTILINE):
        found.setdefault(name, []).append(version)
    return found


@pytest.mark.parametrize("path", REQUIREMENTS, ids=lambda path: path.name)
def test_each_requirement_is_pinned_and_has_hashes(path: Path) -> None:
    text = re.sub(r"\\\n", " ", path.read_text())
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    assert lines
    pinned = re.compile(r"[\w.\[\]-]+==\S+ (;.*? )?( *--hash=sha256:[0-9a-f]{64})+ *")
    assert [line for line in lines if not pinned.fullmatch(line)] == []


@pytest.mark.parametrize("path", REQUIREMENTS, ids=lambda path: path.name)
def test_what_is_asked_for_is_locked(path: Path) -> None:
    asked = re.findall(r"^([A-Za-z][\w.-]*)", path.with_suffix(".in").read_text(), re.MULTILINE)
    assert asked
    assert [name for name in asked if name.lower() not in pins(path)] == []


def test_no_lock_holds_an_address() -> None:
    address = re.compile(r"--(extra-)?index-url|--find-links|@ (https?|file):|^-[if] ", re.MULTILINE)
    assert [path.name for path in [*REQUIREMENTS, *LOCKS.glob("*.in")] if address.search(path.read_text())] == []
    assert "://" not in (LOCKS / LOCK).read_text()


def test_the_two_locks_of_one_environment_agree() -> None:
    runtime, tools = pins(LOCKS / "python.txt"), pins(LOCKS / "dev.txt")
    assert {name: tools[name] for name in tools.keys() & runtime.keys() if tools[name] != runtime[name]} == {}


def test_what_builds_tocsin_is_locked() -> None:
    project = tomllib.loads((LOCKS.parent / "pyproject.toml").read_text())
    built_with = pins(LOCKS / "build.txt")
    assert project["build-system"]["requires"] == [f"setuptools=={version}" for version in built_with["setuptools"]]


@pytest.mark.parametrize(
    ("package", "holder", "others"),
    [
        ("pyspark-client", "airflow.txt", ("python.txt", "dev.txt")),  # Spark's, which would overwrite parts of pyspark
        ("pyspark", "python.txt", ("airflow.txt",)),
        ("quixstreams", "bench.txt", ("python.txt",)),
    ],
)
def test_what_must_not_meet_is_apart(package: str, holder: str, others: tuple[str, ...]) -> None:
    assert package in pins(LOCKS / holder)
    assert [name for name in others if package in pins(LOCKS / name)] == []


def test_each_archive_has_a_hash_and_no_two_share_a_file() -> None:
    locked = read_lock(LOCKS / LOCK)
    assert set(locked) == set(CONFIGURATIONS)
    for jars in locked.values():
        assert [str(jar) for jar in jars if not jar.sha256] == []
        assert len({jar.file for jar in jars}) == len(jars)


def test_the_broker_can_log() -> None:
    broker = {jar.artifact: jar.version for jar in read_lock(LOCKS / LOCK)["broker"]}
    versions = {broker[name] for name in ("log4j-api", "log4j-core", "log4j-slf4j-impl")}
    assert len(versions) == 1
    assert broker["slf4j-api"].startswith("1."), "log4j-slf4j-impl speaks slf4j 1; for 2 it is log4j-slf4j2-impl"
