"""The versioned checkpoints of one detector: one folder per fingerprint, `<checkpoint>/<fingerprint>/`.

State is upgraded, never guessed: a plan whose fingerprint is new gets a new folder and never reads an old one.
`start.json` says where it began; it is written before its query first runs, and never changes.
"""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from tocsin.spark.topic import Offsets, Topic

_START = "start.json"


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """The state of one fingerprint.

    Attributes:
        folder: `<checkpoint>/<fingerprint>`.
        offsets: where its first batch began.
        publish_from: windows that start earlier were not read whole, and are not published; None when all were.
    """

    folder: Path
    offsets: Offsets
    publish_from: datetime | None

    @property
    def query(self) -> Path:
        """Spark's own checkpoint."""
        return self.folder / "query"

    def start(self, partitions: int) -> Offsets:
        """Where the first batch reads each of `partitions` from: added ones from their first record (-2 for Spark)."""
        return {partition: self.offsets.get(partition, -2) for partition in range(partitions)}

    def position(self, topic: str, partitions: int) -> Offsets:
        """The next offset of each partition of `topic`: as committed, else where it begins (0 for an added one)."""
        known = committed(self.query, topic) or self.offsets
        return {partition: known.get(partition, 0) for partition in range(partitions)}


def open_checkpoint(base: Path, fingerprint: str, topic: Topic, memory: timedelta) -> Checkpoint:
    """The checkpoint of `fingerprint` below `base`; a new one begins so that no window is lost.

    Args:
        base: the job's checkpoint folder.
        fingerprint: of the plan.
        topic: what the job reads.
        memory: the longest window and the lateness together.

    A new one begins `memory` before the place that the last one had reached, or at the beginning of the topic if
    there is none. OSError: the folder cannot be written. TransientError: Kafka cannot be reached, try again.
    """
    folder = base / fingerprint
    if not (folder / _START).exists():
        last = _last_position(base, topic.name)
        offsets, since = _beginning(topic) if last is None else _warm_up(topic, last, memory)
        _write(folder, offsets, since)
    _forget_first_batch(folder / "query")
    start = json.loads((folder / _START).read_text(encoding="utf-8"))
    since = start["publish_from"]
    return Checkpoint(
        folder=folder,
        offsets={int(partition): offset for partition, offset in start["offsets"].items()},
        publish_from=None if since is None else datetime.fromisoformat(since),
    )


def committed(query: Path, topic: str) -> Offsets | None:
    """The next offset of each partition after the last committed batch of Spark's checkpoint; None before one."""
    batches = _batches(query / "commits") & _batches(query / "offsets")
    if not batches:
        return None
    lines = (query / "offsets" / str(max(batches))).read_text(encoding="utf-8").splitlines()
    found: Offsets = {}
    for line in lines[2:]:  # version, metadata, then one line for each source
        if line.startswith("{"):
            found |= {int(p): offset for p, offset in json.loads(line).get(topic, {}).items()}
    return found


def _batches(folder: Path) -> set[int]:
    return {int(path.name) for path in folder.glob("[0-9]*") if path.name.isdigit()}


def _forget_first_batch(query: Path) -> None:
    """Remove the state of a first batch that was broken off before Spark wrote down its offsets.

    Nothing of it counts, and Spark refuses to begin over it (STATE_STORE_CHECKPOINT_LOCATION_NOT_EMPTY).
    """
    if not _batches(query / "offsets"):
        for part in ("state", "offsets"):  # a kill while offsets were written leaves a draft of them
            shutil.rmtree(query / part, ignore_errors=True)


def _last_position(base: Path, topic: str) -> Offsets | None:
    """What the most recently used checkpoint below `base` had reached."""
    reached = [(path.stat().st_mtime, path.parent.parent) for path in base.glob("*/query/commits")]
    return committed(max(reached)[1], topic) if reached else None


def _beginning(topic: Topic) -> tuple[Offsets, datetime | None]:
    """From the first record on. Where retention has removed records, windows that began before it are not whole."""
    first, ends = topic.bounds()
    cut = [topic.appended_at(p, offset, ends[p]) for p, offset in first.items() if offset > 0]
    moments = [moment for moment in cut if moment is not None]
    return first, max(moments, default=None)


def _warm_up(topic: Topic, last: Offsets, memory: timedelta) -> tuple[Offsets, datetime]:
    """From `memory` before the first record that the last checkpoint had not read."""
    _, ends = topic.bounds()
    moments = [topic.appended_at(p, last.get(p, 0), end) for p, end in ends.items()]
    reached = min((moment for moment in moments if moment is not None), default=datetime.now(UTC))
    since = reached - memory
    return topic.since(since), since


def _write(folder: Path, offsets: Offsets, since: datetime | None) -> None:
    """Write `start.json` whole or not at all, whenever the machine stops."""
    folder.mkdir(parents=True, exist_ok=True)
    draft = folder / f".{_START}"
    text = json.dumps({"offsets": offsets, "publish_from": None if since is None else since.isoformat()})
    with draft.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(folder / _START)
