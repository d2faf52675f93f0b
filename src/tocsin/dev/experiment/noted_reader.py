"""`python -m tocsin.dev.experiment.noted_reader <view>.<n>`: the job of a view, which notes what it is given to apply.

A note is written before anything is done with the records, so a reader that is killed has noted what it had.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

from confluent_kafka import Message

from tocsin.declare.model.names import VIEW
from tocsin.declare.settings import Settings
from tocsin.dev.experiment.rescale_figures import HandOut
from tocsin.job import Job, main
from tocsin.views.view_applier_job import ViewApplierJob
from tocsin.views.view_topic import SharedViewTopic


class NotedTopic(SharedViewTopic):
    """The topic of a view, with a note about each reading."""

    def __init__(self, settings: Settings, reader: str) -> None:
        """Follow the topic of the view that `reader` names; see `ViewTopic`."""
        super().__init__(settings, reader.partition(".")[0])
        path = notes_path(settings, reader)
        path.parent.mkdir(exist_ok=True)
        self._notes = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def poll(self, count: int, wait_seconds: float) -> list[Message]:
        """See `ViewTopic`."""
        messages = super().poll(count, wait_seconds)
        lines = [f"{time.time():.6f} {p} {first} {last}\n" for p, first, last in _ranges(messages)]
        if lines:
            os.write(self._notes, "".join(lines).encode())
        return messages


def notes_path(settings: Settings, reader: str) -> Path:
    """Name the file with the notes of `reader`."""
    return settings.state / "notes" / reader


def read_notes(settings: Settings, reader: str) -> list[HandOut]:
    """Read what `reader` noted; nothing if it was given nothing."""
    path = notes_path(settings, reader)
    if not path.exists():
        return []
    lines = [text.split() for text in path.read_text(encoding="ascii").splitlines()]
    return [HandOut(reader, float(at), int(p), int(first), int(last)) for at, p, first, last in lines]


def _ranges(messages: list[Message]) -> Iterator[tuple[int, int, int]]:
    places = sorted((message.partition() or 0, message.offset() or 0) for message in messages)
    for partition, found in groupby(places, key=lambda place: place[0]):
        offsets = [offset for _, offset in found]
        yield partition, offsets[0], offsets[-1]


def _apply(job: Job) -> None:
    topic = NotedTopic(job.settings, job.name)
    ViewApplierJob(job.settings, job.name, job.reporter, job.stop, topic).run()


if __name__ == "__main__":
    sys.exit(main([VIEW, *sys.argv[1:]], run=_apply))
