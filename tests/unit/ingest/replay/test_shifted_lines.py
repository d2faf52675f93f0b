"""Old lines happen now: distances shrink by the speed, none is ahead of its time, what cannot be shifted is told."""

from __future__ import annotations

import json
import threading
import time
from datetime import UTC, datetime, timedelta

from tocsin.declare.model.source import Format, Source
from tocsin.ingest.replay.shifted_lines import ShiftedLines

OLD = datetime(2025, 1, 1, tzinfo=UTC)
SOURCE = Source(name="s", title="t", owner="o", formats=(Format.JSON,), key="k", event_time="at",
                columns={"at": "timestamp", "k": "string"}, ignore=("nothing", r"\p{Alpha}"))  # fmt: skip


def lines(*seconds: float) -> list[tuple[bytes, int]]:
    return [(json.dumps({"at": (OLD + timedelta(seconds=at)).isoformat(timespec="microseconds"), "k": n}).encode(), n)
            for n, at in enumerate(seconds)]  # fmt: skip


def test_the_first_event_is_now_and_the_others_follow_at_the_speed() -> None:
    shifted = ShiftedLines(SOURCE, 10, threading.Event())
    given = [(b"no time", 7), *lines(0, 1, 0.5, 3), (b"no time", 8), (b"nothing to see", 9)]
    began, got = datetime.now(UTC), []
    for line, beside in shifted.shift(given):
        got.append((line, beside, datetime.now(UTC)))
    assert [beside for _, beside, _ in got] == [0, 1, 2, 3, 9]
    assert got[-1][0] == b"nothing to see"
    times = [datetime.fromisoformat(json.loads(line)["at"]) for line, _, _ in got[:-1]]
    assert times[0] >= began
    assert [round((at - times[0]).total_seconds(), 3) for at in times] == [0, 0.1, 0.05, 0.3]
    assert all(at <= sent for at, (_, _, sent) in zip(times, got, strict=False))
    assert {reason: (one.count, one.first) for reason, one in shifted.left_out.items()} == {
        "no at is found in it": (2, 1)
    }


def test_a_line_of_the_future_holds_up_no_other() -> None:
    shifted = ShiftedLines(SOURCE, 10, threading.Event())
    ahead = (datetime.now(UTC) - OLD + timedelta(days=1)).total_seconds()
    assert [beside for _, beside in shifted.shift(lines(0, ahead, 1))] == [0, 2]
    assert {reason: one.count for reason, one in shifted.left_out.items()} == {"its time is still to come": 1}


def test_a_stop_ends_the_waiting() -> None:
    stop = threading.Event()
    threading.Timer(0.2, stop.set).start()
    began = time.monotonic()
    assert len(list(ShiftedLines(SOURCE, 1, stop).shift(lines(0, 3600)))) == 1
    assert time.monotonic() - began < 10
