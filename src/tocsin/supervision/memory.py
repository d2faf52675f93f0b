"""Keep the memory of supervision between two calls, as a JSON file: it must outlive the process that supervises."""

from __future__ import annotations

from pathlib import Path

from tocsin.runtime import state_file
from tocsin.supervision.job_states import History


def memory_of(state: Path, charge: str) -> Path:
    """Return the file that holds what supervision remembers of one charge."""
    return state / "supervision" / f"{charge}.json"


def read_history(path: Path) -> History:
    """Read the memory in `path`; empty if it is missing or broken: a forgotten back-off does no harm."""
    return state_file.read(path, History, History())


def write_history(path: Path, history: History) -> None:
    """Remember `history` in `path`, at once or not at all.

    Raises:
        OSError: the disk is full or the folder cannot be written.
    """
    state_file.write(path, History, history)
