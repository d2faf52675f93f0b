"""`python3 -m tocsin.setup [VERB]`: what `make setup`, its kin and the Dockerfile call."""

from __future__ import annotations

import argparse
import errno
import os
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tocsin.declare.model.errors import ConfigError, TocsinError
from tocsin.setup import install_stamp, jars, java, project_packages, python_env
from tocsin.setup.paths import PROJECT, Paths, here
from tocsin.setup.process import DISK_FULL, READABLE, Command

_SILENT_SECONDS = 1.0
_LOCKS = ("uv", "build", "python", "dev", "airflow", "bench", "containers")
"""Python before dev, which is constrained by it."""


def main(arguments: list[str] | None = None) -> int:
    """Run one verb; returns the exit code: 0 done, 1 may go well when tried again, 2 something must be fixed first."""
    parser = argparse.ArgumentParser(prog="tocsin.setup", description="Bring what Tocsin needs into the checkout.")
    verbs = parser.add_subparsers(dest="verb")
    verbs.add_parser("install", help="everything that Tocsin runs on (the default)")
    verbs.add_parser("bench", help="the peers that `make bench` measures, in a folder of their own")
    verbs.add_parser("s3", help="the Java archives of checkpoints in an object store")
    verbs.add_parser("packages", help="Python packages alone, those of the project, too")
    verbs.add_parser("image", help="what an image holds: no tools for tests; all of it from the locks")
    classes = verbs.add_parser("classes", help="the archive of Spark's classes, which takes all of Tocsin to make")
    classes.add_argument("--kept", type=Path, required=True, help="folder that holds it from one image to the next")
    verbs.add_parser("lock", help="write the locks anew").add_argument("--upgrade", action="store_true")
    options = parser.parse_args(arguments)
    paths = here()
    os.umask(READABLE)
    try:
        with install_stamp.alone(paths.home):
            _DO.get(options.verb, _install)(paths, options)
    except TocsinError as error:
        print(error, file=sys.stderr)
        return 2 if isinstance(error, ConfigError) else 1
    except OSError as error:
        print(f"Set-up: {DISK_FULL if error.errno == errno.ENOSPC else error}; then run: make setup", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("\nSet-up was broken off; to resume: make setup", file=sys.stderr)
        return 130
    return 0


def _install(paths: Paths, options: argparse.Namespace) -> None:
    started = time.monotonic()
    done = [_step("uv", lambda: python_env.install_uv(paths), "a few seconds")]
    with ThreadPoolExecutor(1) as beside:
        airflow = beside.submit(_step, "Airflow", lambda: python_env.install_airflow(paths), "up to half a minute")
        done += _install_spark(paths)
    done.append(airflow.result())
    if options.verb == "bench":
        done.append(_step("the peers' Python packages", lambda: python_env.install_bench(paths)))
        done.append(_step("the peers' Java archives", lambda: bool(jars.install(paths, ["bench"]))))
    found = java.find_java(paths)
    state_of_it = "done" if any(done) else "nothing to do"
    print(f"Set-up: {state_of_it} ({time.monotonic() - started:.1f} s; Java {found.version} from {found.origin})")


def _install_spark(paths: Paths) -> list[bool]:
    return [
        _step("Python packages", lambda: project_packages.install(paths), "up to a minute"),
        _step(
            "Java archives of Spark and Kafka",
            lambda: bool(jars.install(paths, ["spark", "broker"])),
            "about 15 seconds",
        ),
        _step(
            "the archive of Spark's classes",
            lambda: java.install_archive(paths),
            "one to two minutes; jobs start faster with it",
        ),
    ]


def _install_archives(paths: Paths, options: argparse.Namespace) -> None:
    done = _step(f"Java archives of {options.verb}", lambda: bool(jars.install(paths, [options.verb])))
    print(f"Set-up: {'done' if done else 'nothing to do'}")


def _install_image(paths: Paths, _: argparse.Namespace) -> None:
    _step("Python packages", lambda: project_packages.install(paths, with_tools=False))
    _step("Airflow", lambda: python_env.install_airflow(paths))
    _step("Java archives", lambda: bool(jars.install(paths, ["spark", "broker", "s3"])))


def _install_packages(paths: Paths) -> None:
    """Install as `_install` does, with tools for tests if they are there, and remember whose packages these are."""
    with_tools = (paths.venv / "bin" / "pytest").exists()
    done = _step("Python packages", lambda: project_packages.install(paths, with_tools=with_tools))
    (paths.home / PROJECT).write_text(str(paths.project), encoding="utf-8")
    print(f"Set-up: {'done' if done else 'nothing to do'}")


def _install_classes(paths: Paths, options: argparse.Namespace) -> None:
    _step("the archive of Spark's classes", lambda: java.install_archive(paths, options.kept))


_DO: dict[str, Callable[[Paths, argparse.Namespace], None]] = {
    "classes": _install_classes,
    "image": _install_image,
    "packages": lambda paths, _: _install_packages(paths),
    "lock": lambda paths, options: _write_locks(paths, options.upgrade),
    "s3": _install_archives,
}


def _write_locks(paths: Paths, upgrade: bool) -> None:
    """Write all locks; those that exist keep their versions unless `upgrade`. Errors keep the locks done so far."""
    _lock_python(paths, upgrade)
    python_env.install(paths)
    _lock_jars(paths)


def _lock_python(paths: Paths, upgrade: bool) -> None:
    options: Command = [*python_env.LOCKING, *(["--upgrade"] if upgrade else [])]
    for name in _LOCKS:
        python_env.run_uv(paths, ["pip", "compile", *options, f"{name}.in", "-o", f"{name}.txt"], f"locking of {name}")


def _lock_jars(paths: Paths) -> None:
    """Fill in each sha256 that is missing, with what the download has now."""
    path = paths.locks / jars.LOCK
    unlocked = {name: [jar for jar in locked if not jar.sha256] for name, locked in jars.read_lock(path).items()}
    unlocked = {name: wanted for name, wanted in unlocked.items() if wanted}
    if not unlocked:
        return
    fetched = jars.fetch(paths, unlocked)
    text = path.read_text(encoding="utf-8")
    for name, wanted in unlocked.items():
        for jar in wanted:
            text = text.replace(f'"{jar}" = ""', f'"{jar}" = "{jars.sha256_of(fetched / name / jar.file)}"')
    path.write_text(text, encoding="utf-8")


def _step(what: str, install: Callable[[], bool], usual: str = "") -> bool:
    """Run one step; if it takes long, say how long it `usual`ly takes. One that finds nothing to do says nothing."""
    started = time.monotonic()
    begun = f"Set-up: {what} ...{f' ({usual})' if usual else ''}"
    notice = threading.Timer(_SILENT_SECONDS, lambda: print(begun, flush=True))
    notice.daemon = True
    notice.start()
    try:
        changed = install()
    finally:
        notice.cancel()
    if changed:
        print(f"Set-up: {what}, {time.monotonic() - started:.1f} s", flush=True)
    return changed


if __name__ == "__main__":
    sys.exit(main())
