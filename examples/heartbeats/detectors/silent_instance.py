"""Instances that send too few heartbeats, or none (crashed, hung, cut off from the network).

Catches: fewer than five heartbeats of an expected instance in a minute, also when nobody sends anything.
Misses: instances that are not listed here, and those that answer no request but send heartbeats.
When it fires, look first at: whether the instance runs, and then whether its network does.
"""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from tocsin import Case, Entities, Levels, Timeline, at, detector, email, tick, urgent


@detector(source="heartbeats", entity="instance", window="1 minute", levels=Levels(email=0, urgent=4),
          expect=Entities(["web.1", "web.2", "worker.1"], minimum=5), owner="platform@example.com",
          runbook="docs/runbooks/silent_instance.md", stage="live")  # fmt: skip
def detect(events: DataFrame) -> DataFrame:
    return events.groupBy("window", "instance").agg(F.count("*").alias("score"))


def beats(instance: str, start: str = "12:00:00", times: int = 5) -> Timeline:
    return at(start, instance=instance).repeat(times, every="10 seconds")


ALL = ["web.1", "web.2", "worker.1"]
CASES = [
    Case(
        "all are there",
        events=beats("web.1").then(beats("web.2")).then(beats("worker.1")).then(beats("stranger", times=1)),
        expect=[],
    ),
    Case(
        "one misses a beat, one nearly stops",
        events=beats("worker.1", start="11:59:00")
        .then(beats("web.1"))
        .then(beats("web.2", times=4))
        .then(beats("worker.1", times=1)),
        expect=[
            *[urgent(instance=name, window="11:59:00", score=5) for name in ALL[:2]],
            email(instance="web.2", window="12:00:00", score=1),
            email(instance="worker.1", window="12:00:00", score=4),
        ],
    ),
    Case(
        "nobody sends anything for two minutes",
        events=tick("12:00:00").then(tick("12:02:00")),
        expect=[urgent(instance=name, window=start) for name in ALL for start in ("12:00:00", "12:01:00")],
    ),
    Case(
        "silence, and all are back",
        events=tick("11:59:00").then(beats("web.1")).then(beats("web.2")).then(beats("worker.1")),
        expect=[urgent(instance=name, window="11:59:00") for name in ALL],
    ),
]
