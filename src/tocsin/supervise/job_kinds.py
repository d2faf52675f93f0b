"""Desire the jobs of each kind of `tocsin.declare.model.job_kinds`, by what is declared."""

from __future__ import annotations

import ast
import contextlib
import functools
import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from pkgutil import resolve_name

from tocsin.declare.catalog import Catalog, Declared
from tocsin.declare.code.python_syntax import parse
from tocsin.declare.model.errors import ConfigError
from tocsin.declare.model.job_kinds import KINDS, JobKind
from tocsin.declare.settings import Settings
from tocsin.platform import state_file
from tocsin.setup.paths import here
from tocsin.supervise.job_states import UNREADABLE, Desired
from tocsin.supervise.planning.job_inputs import with_pod


def declared(kind: JobKind, catalog: Catalog) -> Mapping[str, Declared]:
    """Return what is declared of each job of `kind` by a file that can be read; nothing of a job without a file."""
    found: Mapping[str, Declared] = getattr(catalog, kind.folder) if kind.folder else {}
    if kind.folder == "sources":
        return {name: source for name, source in catalog.sources.items() if not source.is_derived}
    return catalog.kept_tables if kind.folder == "tables" else found


def broken(kind: JobKind, catalog: Catalog) -> dict[str, ConfigError]:
    """Return the faults of the files that cannot be read, by the name of the job that each declares."""
    prefix = f"{kind.folder}/"
    return {place.removeprefix(prefix): e for place, e in catalog.broken.items() if place.startswith(prefix)}


def names(kind: JobKind, catalog: Catalog) -> list[str]:
    """List all jobs of a `kind` with files: those in a stage that does not run, and with a broken file, included."""
    return sorted([*declared(kind, catalog), *broken(kind, catalog)])


def broken_jobs(catalog: Catalog) -> dict[str, ConfigError]:
    """Return the faults of the files that cannot be read, by the job that each declares."""
    return {kind.job(name): error for kind in KINDS.values() for name, error in broken(kind, catalog).items()}


# Rooms with code that every job runs.
_CORE = ("declare", "platform", "setup", "stats", "job.py")


def desired_jobs(catalog: Catalog, settings: Settings) -> dict[str, Desired]:
    """Return every job that should run, in the order of its start.

    One for each source with records of its own, table, flow, detector and view in a stage that runs, and those of the
    platform; the log drain where somebody may send. A job whose file cannot be read now is left alone until it can.
    """
    jobs: dict[str, Desired] = {}
    for kind in KINDS.values():
        desired = _desired(kind, catalog, settings, _code(kind.rooms, settings.state))
        jobs |= {kind.job(name): with_pod(job, settings, kind.word) for name, job in desired.items()}
        jobs |= {kind.job(name): UNREADABLE for name in broken(kind, catalog)}
    return jobs


def known_jobs(catalog: Catalog, settings: Settings) -> list[tuple[JobKind, list[str]]]:
    """List each kind with its jobs: those of declared files, and of other kinds what the settings ask for."""
    return [
        (kind, names(kind, catalog) if kind.folder else [*_desired(kind, catalog, settings, "")])
        for kind in KINDS.values()
    ]


def _desired(kind: JobKind, catalog: Catalog, settings: Settings, code: str) -> Mapping[str, Desired]:
    # With the login that its jobs are started with: that of another kind is none of their inputs.
    own = settings.model_copy(update={"kafka": settings.kafka.for_role(kind.word)})
    desired: Mapping[str, Desired] = resolve_name(kind.desired)(kind, catalog, own, code)
    return desired


def forget_code() -> None:
    """Read the platform's code again at the next call: for a process that lives longer than one deployment."""
    _code.cache_clear()


@functools.cache
def _code(rooms: tuple[str, ...], state: Path) -> str:
    """Hash the platform's code of one kind of job, read once in the life of this process."""
    root = here().root
    places = [place for room in (*_CORE, *rooms) for place in sorted((root / "src" / "tocsin").glob(room))]
    files = [path for place in places for path in ([place] if place.is_file() else sorted(place.rglob("*.py")))]
    return code_identity(files, root, state)


_FILE = "code.json"
# Some 400 files are hashed for all kinds of jobs; those of the releases before are forgotten at last.
_MOST = 4000
_PARSED: dict[str, str] = {}
"""The hash of the statements, by the hash of the file: of what this process has parsed or read."""


def code_identity(files: Sequence[Path], root: Path, state: Path) -> str:
    """Hash the names below `root` and the statements of `files`.

    To parse them all takes 1.2 s, so the hash of each file's statements is kept in `state` by the hash of the file, for
    the next process. Without that note, or if it cannot be written, the result is the same. Raises OSError if a file of
    the code cannot be read.
    """
    note, digest = state / _FILE, hashlib.sha256()
    known = state_file.read(note, dict[str, str], {})
    _PARSED.update(known)
    contents = [(path, path.read_bytes()) for path in files]
    owns = [hashlib.sha256(content).hexdigest() for _, content in contents]
    for (path, content), own in zip(contents, owns, strict=True):
        if own not in _PARSED:
            _PARSED[own] = _statements(content)
        digest.update(f"{path.relative_to(root)}\0{_PARSED[own]}\0".encode())
    if state.is_dir() and not known.keys() >= {*owns}:
        with contextlib.suppress(OSError):
            others = known if len(known) < _MOST else {}
            state_file.write(note, dict[str, str], others | {own: _PARSED[own] for own in owns})
    return digest.hexdigest()


def _statements(content: bytes) -> str:
    """Hash the statements of a file of Python, or the file if it is none."""
    try:
        tree = parse(content)
    except (SyntaxError, ValueError):
        return hashlib.sha256(content).hexdigest()
    for node in ast.walk(tree):
        for field in ("body", "orelse", "finalbody"):
            if isinstance(block := getattr(node, field, None), list):
                # A text alone is a docstring, of a module, function or class or of the name above it: it does nothing.
                setattr(node, field, [statement for statement in block if not _is_text(statement)])
    return hashlib.sha256(ast.dump(tree).encode()).hexdigest()


def _is_text(statement: ast.stmt) -> bool:
    value = statement.value if isinstance(statement, ast.Expr) else None
    return isinstance(value, ast.Constant) and isinstance(value.value, str)
