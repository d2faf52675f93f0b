"""State is for the user who runs Tocsin alone: it holds events, findings and addresses of databases.

Standard library only.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

UMASK = 0o077
_PATTERNS = ("alerts.db*", "airflow/airflow.db*")


def protect(state: Path) -> None:
    """Let no other user read what this process and its children write, nor the folder `state` and the DBs in it.

    What belongs to another user stays as it is.
    """
    os.umask(UMASK)
    databases = (path for pattern in _PATTERNS for path in state.glob(pattern))
    for path, mode in [(state, 0o700), *((path, 0o600) for path in databases)]:
        with contextlib.suppress(OSError):
            path.chmod(mode)
