"""The detector failed_logins for Quix Streams, in an environment of its own (locks/bench.txt).

Failed logins per user and 10 seconds of event time, one output for each value of the count above the limit. Unlike
Tocsin it does not drop duplicates, and it trusts its input's partitioning by user.

Arguments: bootstrap-servers topic-in topic-out consumer-group lowest-limit highest-limit state-folder.
Runs until SIGTERM.
"""

import sys
from datetime import UTC, datetime
from typing import Any

from quixstreams import Application  # type: ignore[import-not-found]  # in the benches' own environment
from quixstreams.dataframe.windows import Count, Max  # type: ignore[import-not-found]  # in the benches' own environment

_WINDOW_MS = 10_000
_LATENESS_MS = 10_000
_LARGEST_RUNG = 10**9


def main() -> None:
    """Count until told to stop."""
    servers, topic_in, topic_out, group, lowest, highest, folder = sys.argv[1:]
    application = Application(
        broker_address=servers,
        consumer_group=group,
        auto_offset_reset="earliest",
        producer_extra_config={"linger.ms": 0},
        state_dir=folder,
        loglevel="WARNING",
    )
    events = application.topic(topic_in, value_deserializer="json", timestamp_extractor=_event_time)
    findings = application.topic(topic_out, value_serializer="json")
    logins = application.dataframe(events)
    counts = (
        logins[logins.apply(lambda event: event.get("action") == "login failed")]
        .tumbling_window(_WINDOW_MS, grace_ms=_LATENESS_MS)
        .agg(score=Count(), event_time_max=Max("event_time"))
        .current()
    )
    limits, told = (int(lowest), int(highest)), _rungs(int(highest))
    emitted = counts[counts.apply(lambda count: limits[0] < count["score"] <= limits[1] or count["score"] in told)]
    emitted.apply(_finding, metadata=True).to_topic(findings)
    application.run()


def _event_time(value: dict[str, Any], headers: object, timestamp: float, timestamp_type: object) -> int:
    """Milliseconds since the epoch, as Quix Streams wants them."""
    return int(datetime.fromisoformat(value["event_time"]).timestamp() * 1000)


def _rungs(highest: int) -> set[int]:
    """The scores above `highest` that are emitted: the first, then each about 10 % above the last."""
    rungs, rung = set(), highest + 1
    while rung <= _LARGEST_RUNG:
        rungs.add(rung)
        rung = max(rung + 1, rung + rung // 10)
    return rungs


def _finding(count: dict[str, Any], key: bytes | str, timestamp: int, headers: object) -> dict[str, Any]:
    user = key.decode() if isinstance(key, bytes) else key
    return {
        "entity": {"user_id": user},
        "window_start": datetime.fromtimestamp(count["start"] / 1000, UTC).isoformat(),
        "score": count["score"],
        "event_time_max": count["event_time_max"],
    }


if __name__ == "__main__":
    main()
