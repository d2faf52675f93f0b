"""Java archives by their lock, and what all committed locks hold: hashes, no address, and nothing that contradicts."""

import hashlib
import re
import tomllib
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from tocsin.declare.model.errors import ConfigError
from tocsin.setup import jars
from tocsin.setup.jars import CONFIGURATIONS, LOCK, Jar, read_lock
from tocsin.setup.paths import Paths, here
from tocsin.setup.process import Command

CONTENT = b"an archive"
SHA = hashlib.sha256(CONTENT).hexdigest()
CLIENT = Jar("org.example", "client", "1.0", SHA)
OTHER = Jar("org.example", "other_2.13", "2.0-preview1", SHA)


class Repository:
    """Stands in for Ivy: serves archives, and keeps a copy in the cache as Ivy does."""

    def __init__(self, paths: Paths, monkeypatch: pytest.MonkeyPatch) -> None:
        self.paths, self.runs, self.content = paths, 0, {CLIENT.file: CONTENT, OTHER.file: CONTENT}
        java = type("Java", (), {"executable": Path("java")})
        monkeypatch.setattr(jars, "find_java", lambda paths: java)
        monkeypatch.setattr(jars, "run", self.run)
        package = paths.venv / "lib" / "python3.11" / "site-packages" / "pyspark" / "jars"
        package.mkdir(parents=True)
        (package / "ivy-2.5.3.jar").touch()

    def run(self, command: Command, what: str) -> str:
        self.runs += 1
        for asked in ET.parse(command[command.index("-ivy") + 1]).getroot().iter("dependency"):
            configuration = asked.attrib["conf"].split("->")[0]
            name = f"{asked.attrib['name']}-{asked.attrib['rev']}.jar"
            cache = self.paths.ivy / "cache" / asked.attrib["org"] / asked.attrib["name"] / "jars"
            for folder in (self.paths.ivy / "fetched" / configuration, cache):
                folder.mkdir(parents=True, exist_ok=True)
                (folder / name).write_bytes(self.content[name])
        return ""


@pytest.fixture
def repository(paths: Paths, monkeypatch: pytest.MonkeyPatch) -> Repository:
    lock(paths, spark=[CLIENT], broker=[CLIENT, OTHER])
    return Repository(paths, monkeypatch)


def lock(paths: Paths, **sections: list[Jar]) -> None:
    lines = [
        line for name, of in sections.items() for line in (f"[{name}]", *(f'"{jar}" = "{jar.sha256}"' for jar in of))
    ]
    (paths.locks / jars.LOCK).write_text("\n".join(lines))


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("*.jar"))


def test_archives_come_into_the_folder_of_their_configuration_and_once(paths: Paths, repository: Repository) -> None:
    assert jars.install(paths, ["spark", "broker"]) == ["broker", "spark"]
    assert names(paths.jars("spark")) == ["client-1.0.jar"]
    assert names(paths.jars("broker")) == ["client-1.0.jar", "other_2.13-2.0-preview1.jar"]
    assert jars.install(paths, ["spark", "broker"]) == []
    assert repository.runs == 1


def test_only_what_changed_in_the_lock_is_fetched(paths: Paths, repository: Repository) -> None:
    jars.install(paths, ["spark", "broker"])
    lock(paths, spark=[OTHER], broker=[CLIENT, OTHER])
    assert jars.install(paths, ["spark", "broker"]) == ["spark"]
    assert names(paths.jars("spark")) == ["other_2.13-2.0-preview1.jar"]


def test_a_removed_archive_is_noticed(paths: Paths, repository: Repository) -> None:
    jars.install(paths, ["spark", "broker"])
    (paths.jars("broker") / CLIENT.file).unlink()
    assert jars.install(paths, ["spark", "broker"]) == ["broker"]
    assert CLIENT.file in names(paths.jars("broker"))


def test_a_wrong_archive_is_refused_by_name_and_removed_everywhere(paths: Paths, repository: Repository) -> None:
    repository.content[OTHER.file] = b"something else"
    with pytest.raises(
        ConfigError, match=r"jars\.toml: org\.example:other_2\.13:2\.0-preview1: is not what was"
    ) as error:
        jars.install(paths, ["spark", "broker"])
    assert len(error.value.faults) == 1
    assert SHA in str(error.value)
    assert hashlib.sha256(b"something else").hexdigest() in str(error.value)
    assert not paths.jars("broker").exists()
    assert [path for path in paths.root.rglob("*.jar") if path.read_bytes() == b"something else"] == []
    repository.content[OTHER.file] = CONTENT
    assert jars.install(paths, ["spark", "broker"]) == ["broker", "spark"]


def test_an_archive_that_was_never_locked_is_refused(paths: Paths, repository: Repository) -> None:
    lock(paths, spark=[Jar("org.example", "client", "1.0", "")], broker=[OTHER])
    with pytest.raises(ConfigError, match=r"org\.example:client:1\.0: has no sha256; run: make lock"):
        jars.install(paths, ["spark", "broker"])
    assert repository.runs == 0


def test_all_faults_of_a_lock_are_told_at_once(paths: Paths) -> None:
    path = paths.locks / jars.LOCK
    path.write_text('[sparc]\n[spark]\n"a:b" = ""\n"a:b:1" = "0"\n"a/../b:c:1" = ""\n')
    with pytest.raises(ConfigError) as error:
        jars.read_lock(path)
    assert {fault.key for fault in error.value.faults} == {"sparc", "a:b", "a:b:1", "a/../b:c:1"}


def test_ivy_is_asked_for_exactly_the_archives_and_nothing_behind_them() -> None:
    module = ET.fromstring(jars.ivy_module({"spark": [CLIENT], "broker": [CLIENT, OTHER]}))
    assert [conf.attrib["name"] for conf in module.iter("conf")] == ["spark", "broker"]
    asked = [dict(dependency.attrib) for dependency in module.iter("dependency")]
    assert [(each["conf"], each["name"], each["rev"]) for each in asked] == [
        ("spark->default", "client", "1.0"),
        ("broker->default", "client", "1.0"),
        ("broker->default", "other_2.13", "2.0-preview1"),
    ]
    assert {each["transitive"] for each in asked} == {"false"}
    assert [conflict.attrib for conflict in module.iter("conflict")] == [{"manager": "all"}]


def test_ivy_is_given_no_address(paths: Paths, repository: Repository) -> None:
    jars.install(paths, ["spark"])
    settings = (paths.ivy / "settings.xml").read_text()
    assert 'usepoms="false"' in settings
    assert "://" not in settings
    assert "root=" not in settings


# --- the committed locks ----------------------------------------------------------------------------------------------


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
    for archives in locked.values():
        assert [str(jar) for jar in archives if not jar.sha256] == []
        assert len({jar.file for jar in archives}) == len(archives)


def test_the_broker_can_log() -> None:
    broker = {jar.artifact: jar.version for jar in read_lock(LOCKS / LOCK)["broker"]}
    versions = {broker[name] for name in ("log4j-api", "log4j-core", "log4j-slf4j-impl")}
    assert len(versions) == 1
    assert broker["slf4j-api"].startswith("1."), "log4j-slf4j-impl speaks slf4j 1; for 2 it is log4j-slf4j2-impl"
