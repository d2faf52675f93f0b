"""Decide which jobs should run for what is declared, and from which spec each."""

from __future__ import annotations

import functools
import hashlib

from tocsin.project.catalog import Catalog
from tocsin.project.settings import Settings
from tocsin.provision.paths import here
from tocsin.supervision.job_kinds import KINDS
from tocsin.supervision.job_states import UNREADABLE, Desired

# Rooms with code that every job runs.
_CORE = ("model", "project", "runtime")


def desired_jobs(catalog: Catalog, settings: Settings) -> dict[str, Desired]:
    """Return every job that should run, in the order of its start.

    One ingest for each declared source, one job for each detector in a stage that runs, the indexer and the notifier. A
    job whose file cannot be read now is unreadable: left alone until it can be.
    """
    jobs: dict[str, Desired] = {}
    for kind in KINDS.values():
        desired = kind.desired(catalog, settings, _code(kind.program, kind.rooms))
        jobs |= {kind.job(name): one for name, one in desired.items()}
        jobs |= {kind.job(name): UNREADABLE for name in kind.broken(catalog)}
    return jobs


def forget_code() -> None:
    """Read the platform's code again at the next call: for a process that lives longer than one deployment."""
    _code.cache_clear()


@functools.cache
def _code(program: str, rooms: tuple[str, ...]) -> str:
    """Hash the platform's code of one kind of job, read once in the life of this process."""
    root, digest = here().root, hashlib.sha256()
    files = [path for room in (*_CORE, *rooms) for path in sorted((root / "src" / "tocsin" / room).rglob("*.py"))]
    for path in [*files, *([root / program] if program.endswith(".py") else [])]:
        digest.update(f"{path.relative_to(root)}\0".encode() + path.read_bytes() + b"\0")
    return digest.hexdigest()
