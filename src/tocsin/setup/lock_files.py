"""Rewrite the locks from their inputs: locks/*.in, and archives without a sha256.

Locks carry no address: uv is told to leave out where it found a package.
"""

from __future__ import annotations

from tocsin.setup import jars, python_env
from tocsin.setup.paths import Paths
from tocsin.setup.process import Command

# python before dev, which is constrained by it
_PYTHON = ("uv", "build", "python", "dev", "airflow", "bench", "containers")


def lock(paths: Paths, upgrade: bool) -> None:
    """Write all locks; those that exist keep their versions unless `upgrade`.

    Raises:
        ConfigError, TransientError: what is asked for cannot be had; the locks done so far are kept.
    """
    _lock_python(paths, upgrade)
    python_env.install(paths)
    _lock_jars(paths)


def _lock_python(paths: Paths, upgrade: bool) -> None:
    options: Command = ["--generate-hashes", "--universal", "--python-version", "3.11", "--quiet"]
    options += ["--no-emit-index-url", "--no-emit-find-links", "--no-header", *(["--upgrade"] if upgrade else [])]
    for name in _PYTHON:
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
