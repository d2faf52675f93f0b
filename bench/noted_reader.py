"""`python -m bench.noted_reader <view>.<n>`: the job of a view, which notes what it is given to apply.

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
from tocsin.declare.settings import Settings, load_settings
from tocsin.job import main
from tocsin.platform.kafka.topic_follower import TopicFollower

_read = TopicFollower.poll


def notes_path(settings: Settings, reader: str) -> Path:
    """Name the file with the notes of `reader`."""
    return settings.state / "notes" / reader


def _poll(topic: TopicFollower, count: int, wait_seconds: float) -> list[Message]:
    """Poll `topic`, and note what came."""
    messages = _read(topic, count, wait_seconds)
    lines = [f"{time.time():.6f} {p} {first} {last}\n" for p, first, last in _ranges(messages)]
    if lines:
        os.write(_NOTES, "".join(lines).encode())
    return messages


def _ranges(messages: list[Message]) -> Iterator[tuple[int, int, int]]:
    places = sorted((message.partition() or 0, message.offset() or 0) for message in messages)
    for partition, found in groupby(places, key=lambda place: place[0]):
        offsets = [offset for _, offset in found]
        yield partition, offsets[0], offsets[-1]


if __name__ == "__main__":
    notes = notes_path(load_settings(), sys.argv[1])
    notes.parent.mkdir(exist_ok=True)
    _NOTES = os.open(notes, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    TopicFollower.poll = _poll  # type: ignore[assignment, method-assign]  # the job is what runs elsewhere, but for this
    sys.exit(main([VIEW, *sys.argv[1:]]))
