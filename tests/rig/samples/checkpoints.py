"""Checkpoints as Spark's queries leave them."""

import json
from pathlib import Path

from tocsin.platform.kafka.topic_set import place_of
from tocsin.platform.storage.stored_path import StoredPath

TOPIC = "events.logins"
P0, P1 = (place_of(TOPIC, partition) for partition in range(2))


def batch(query: StoredPath, number: int, offsets: dict[str, dict[str, int]], *, done: bool = True) -> None:
    assert isinstance(query, Path)
    for folder in ("offsets", "commits"):
        (query / folder).mkdir(parents=True, exist_ok=True)
    (query / "offsets" / str(number)).write_text("v1\n{}\n" + json.dumps(offsets))
    (query / "offsets" / f".{number}.crc").write_text("x")
    if done:
        (query / "commits" / str(number)).write_text("v1\n{}")
