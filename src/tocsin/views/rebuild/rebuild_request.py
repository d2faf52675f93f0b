"""Requests to compute a view anew, as one file for each view: `<state>/views/<name>.rebuild.json`.

The file stays: what it says is part of the name of the build that its compute job runs (`ViewRow.build`). So a request
that is made twice, or while no job runs, loses nothing, and no job has to take it away.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import structlog

from tocsin.kafka.topic_set import Position
from tocsin.model.errors import TocsinError, TransientError
from tocsin.runtime import state_file
from tocsin.storage.stored_path import StoredPath
from tocsin.views.rebuild.rebuild_draft import Draft, read_draft

FROM_HISTORY = "history-"
"""How the name of a build begins of which a part is computed from sealed days: its rows come before its job does."""

_BEGUN = "history.json"
_log = structlog.get_logger()


@dataclass(frozen=True)
class HistoryPart:
    """The part of a build that is made of sealed days: rows on the topic of the view, or events on one of the build.

    Attributes:
        build: its name.
        since: windows that start from then on, or the events of then on if there are none, are the stream's; UTC.
        offsets: from which on Kafka held all of them.
        events_from: no event on the topic of the build (see `Names.rebuild`) is older, UTC; None if history gave rows.
    """

    build: str
    since: datetime
    offsets: Position
    events_from: datetime | None = None


@dataclass(frozen=True)
class Rebuild:
    """The latest request: its id, when it was made, UTC, and what of the build is there already, if anything is."""

    id: str = field(default_factory=lambda: uuid.uuid4().hex[:12])
    asked_at: datetime = field(default_factory=lambda: datetime.now(UTC))
    history: HistoryPart | None = None


def ask_rebuild(state: Path, view: str, rebuild: Rebuild | None = None) -> Rebuild:
    """Let `view` be computed anew; readers see the old rows until then. Without a part from history, by Kafka alone.

    Raises:
        OSError: the state folder cannot be written.
    """
    asked = rebuild or Rebuild()
    state_file.write(_path(state, view), Rebuild, asked)
    return asked


def read_rebuild(state: Path, view: str) -> Rebuild | None:
    """Read the latest request to compute `view` anew; None if there was none, or the file cannot be read."""
    return state_file.read(_path(state, view), Rebuild, None)


def is_asked(state: Path, view: str, draft: Draft) -> bool:
    """Return whether the latest request is for `draft` already: its run ended just before it would have removed it."""
    asked = read_rebuild(state, view)
    return asked is not None and asked.id == draft.request


def build_name(version: str, fingerprint: str, rebuild: str, *, from_history: bool = False) -> str:
    """Name the build of a view.

    Args:
        version: of the view.
        fingerprint: of the plan of its query.
        rebuild: id of the latest request; empty without one.
        from_history: whether a part of it is computed from sealed days.
    """
    text = "\n".join([version, fingerprint, rebuild])
    return (FROM_HISTORY if from_history else "") + hashlib.sha256(text.encode()).hexdigest()[:16]


def next_build(base: StoredPath, version: str, fingerprint: str, rebuild: Rebuild | None) -> str:
    """Name the build that the job with its checkpoints in `base` runs now; see `build_name`.

    It has a part from history if that was computed for this very view. Once another build has taken its place, the rows
    of that part are removed, so it never comes back.
    """
    if rebuild is not None and rebuild.history is not None:
        name = build_name(version, fingerprint, rebuild.id, from_history=True)
        if rebuild.history.build == name and _may_run(base, name):
            return name
    return build_name(version, fingerprint, "" if rebuild is None else rebuild.id)


def note_begun(base: StoredPath, build: str) -> None:
    """Note that the job with its checkpoints in `base` has begun `build`, which has a part from history."""
    state_file.write(base / _BEGUN, str, build)


def coming_builds(state: Path, base: StoredPath, view: str) -> set[str]:
    """Name the builds of `view` that history is giving a part of, or has given, and that no other has replaced.

    Args:
        state: folder of the installation.
        base: folder of the checkpoints of the job that computes the view.
        view: name of the view.
    """
    draft, asked = read_draft(state, view), read_rebuild(state, view)  # in this order: one becomes the other
    found = {draft.build} if draft is not None else set()
    if asked is not None and asked.history is not None:
        found.add(asked.history.build)
    return {build for build in found if _may_run(base, build)}


def _may_run(base: StoredPath, build: str) -> bool:
    """Return whether a build with a part from history was not begun yet, or is the one that the job has."""
    return state_file.read(base / _BEGUN, str, "") != build or (base / build).exists()


def _path(state: Path, view: str) -> Path:
    return state / "views" / f"{view}.rebuild.json"


@contextmanager
def unless_refused() -> Iterator[None]:
    """Go on where Kafka refuses to remove what nobody reads any more, as without the right to it: the view is right."""
    try:
        yield
    except TransientError:
        raise
    except TocsinError as error:
        _log.warning("events of history left on Kafka", reason=str(error))
