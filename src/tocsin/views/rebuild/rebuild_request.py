"""Requests to compute a view anew, as one file for each view: `<state>/views/<name>.rebuild.json`.

The file stays: what it says is part of the name of the build that its compute job runs (`ViewRow.build`). So a request
that is made twice, or while no job runs, loses nothing, and no job has to take it away.
"""

from __future__ import annotations

import hashlib
import itertools
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from pathlib import Path

import structlog

from tocsin.declare.model.errors import TocsinError, TransientError
from tocsin.platform import state_file
from tocsin.platform.kafka.topic_set import Position
from tocsin.platform.storage.stored_path import StoredPath

FROM_HISTORY = "history-"
"""Prefix of the name of a build of which a part is computed from sealed days: its rows come before its job does."""

_BEGUN = "history.json"
_log = structlog.get_logger()


@dataclass(frozen=True)
class HistoryPart:
    """The part of a build that is made of sealed days: rows on the topic of the view, or events on one of the build.

    Attributes:
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


@dataclass(frozen=True)
class Draft:
    """A build that is being computed from history: `<state>/views/<name>.draft.json` says which days are on its topic.

    A run that was killed goes on behind the last day that it noted. What was made of another version of the view, or
    of other versions of its days, never gets into the same build: `days` has the versions that each was made of, in
    order. Once all are there, the rebuild with the id `request` is asked for.
    """

    request: str
    build: str
    days: dict[date, str] = field(default_factory=dict)

    def continues(self, days: Mapping[date, str]) -> bool:
        """Return whether it has a beginning of `days`; what was dropped before them does not matter."""
        first = min(days, default=date.max)
        done = [(day, version) for day, version in self.days.items() if day >= first]
        return done == list(itertools.islice(days.items(), len(done)))


def request_rebuild(state: Path, view: str, rebuild: Rebuild | None = None) -> Rebuild:
    """Let `view` be computed anew, by Kafka alone without a part from history.

    Readers see the old rows until then. OSError if the state folder cannot be written.
    """
    request = rebuild or Rebuild()
    state_file.write(_path(state, view), Rebuild, request)
    return request


def read_rebuild(state: Path, view: str) -> Rebuild | None:
    """Read the latest request to compute `view` anew; None if there was none, or the file cannot be read."""
    return state_file.read(_path(state, view), Rebuild, None)


def read_draft(state: Path, view: str) -> Draft | None:
    """Read the draft of `view`; None if there is none, or it cannot be read."""
    return state_file.read(_draft_path(state, view), Draft, None)


def write_draft(state: Path, view: str, draft: Draft) -> None:
    """Replace the draft of `view`; after an OSError (the state folder cannot be written) it is as before."""
    state_file.write(_draft_path(state, view), Draft, draft)


def remove_draft(state: Path, view: str) -> None:
    """Remove the draft of `view`: it is asked for, or nobody wants it any more."""
    _draft_path(state, view).unlink(missing_ok=True)


def is_requested(state: Path, view: str, draft: Draft) -> bool:
    """Return whether the latest request is for `draft` already: its run ended just before it would have removed it."""
    request = read_rebuild(state, view)
    return request is not None and request.id == draft.request


def build_name(version: str, fingerprint: str, rebuild: str, *, from_history: bool = False) -> str:
    """Name a build by the version of the view, its plan's fingerprint and the id of the latest request, if any."""
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


def record_begin(base: StoredPath, build: str) -> None:
    """Note that the job with its checkpoints in `base` has begun `build`, which has a part from history."""
    state_file.write(base / _BEGUN, str, build)


def pending_builds(state: Path, base: StoredPath, view: str) -> set[str]:
    """Name the builds of `view` that history is giving a part of, or has given, and that no other has replaced.

    `base` is the folder of the checkpoints of the job that computes the view.
    """
    draft, request = read_draft(state, view), read_rebuild(state, view)  # in this order: one becomes the other
    found = {draft.build} if draft is not None else set()
    if request is not None and request.history is not None:
        found.add(request.history.build)
    return {build for build in found if _may_run(base, build)}


def _may_run(base: StoredPath, build: str) -> bool:
    """Return whether a build with a part from history was not begun yet, or is the one that the job has."""
    return state_file.read(base / _BEGUN, str, "") != build or (base / build).exists()


def _path(state: Path, view: str) -> Path:
    return state / "views" / f"{view}.rebuild.json"


@contextmanager
def log_refusal() -> Iterator[None]:
    """Go on where Kafka refuses to remove what nobody reads any more, as without the right to it: the view is right."""
    try:
        yield
    except TransientError:
        raise
    except TocsinError as error:
        _log.warning("events of history left on Kafka", reason=str(error))


def _draft_path(state: Path, view: str) -> Path:
    return state / "views" / f"{view}.draft.json"
