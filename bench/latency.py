"""Kafka-to-Kafka latency at a steady rate, each system alone on the machine and all on one broker."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from bench.figures import Goal, Spread, table
from bench.load import Login, Sender, Stream
from bench.outputs import Outputs
from bench.processes import Memory, await_that
from bench.rig import Rig, Site
from bench.systems import AT_LEAST_ONCE, EVERYTHING, EXACTLY_ONCE, TOCSIN, System, floor, peers, tocsin

RATE = 200
DETECTOR = "every_failure"
DETECTOR_FILE = '''"""Counts failed logins and emits every value, so that each event has an output to be timed."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from tocsin import Levels, detector


@detector(
    source="logins",
    entity="user_id",
    window="10 seconds",
    levels=Levels(email=0, urgent={urgent}),
    owner="bench@example.com",
    runbook="docs/runbooks/failed_logins.md",
    stage="shadow",
)
def detect(events: DataFrame) -> DataFrame:
    failures = events.where("action = 'login failed'")
    return failures.groupBy("window", "user_id").agg(
        F.count("*").alias("score"),
        F.max("event_time").alias("event_time_max"),
    )
'''


@dataclass(frozen=True)
class Plan:
    """How long one round takes, in seconds; what happens in `warm_up` is not counted."""

    warm_up: float = 60.0
    measured: float = 120.0
    rounds: int = 2


@dataclass
class Timed:
    """What was measured of one system, over all rounds.

    Attributes:
        appended: milliseconds from the append of an event to the append of its output.
        seen: milliseconds until a reader that skips uncommitted records had it.
        missing: events without an output.
        cpu: seconds per second, while measured.
        memory: at the end.
    """

    appended: list[float]
    seen: list[float]
    missing: int = 0
    cpu: float = 0.0
    memory: Memory = field(default_factory=lambda: Memory(0, 0))


def detector_file() -> str:
    """A detector that emits every count."""
    return DETECTOR_FILE.format(urgent=EVERYTHING)


def measure(rig: Rig, plan: Plan) -> dict[str, Timed]:
    """Each system in turn, forth and then back, so that a machine that grows slower favours nobody."""
    systems = [tocsin(DETECTOR), *peers(0, EVERYTHING), floor()]
    found = {system.name: Timed([], []) for system in systems}
    for number in range(plan.rounds):
        for place, system in enumerate(systems if number % 2 == 0 else reversed(systems)):
            site = rig.site(f"latency{number}{place}", {DETECTOR: detector_file()})
            run_round(rig, site, system, plan, found[system.name])
    return found


def run_round(rig: Rig, site: Site, system: System, plan: Plan, timed: Timed) -> None:
    """Put what `system` does with a steady stream in one round into `timed`."""
    stream = Stream(Sender(rig.servers), site.names.events(site.source), RATE)
    with system.start(rig, site) as program, Outputs(rig.servers, site.names.findings) as outputs:
        await_that(lambda: system.is_ready(site), 120, f"{system.name} to run", program)
        stream.start()
        try:
            await_that(lambda: outputs.appends, 120, f"the first output of {system.name}", program)
            time.sleep(plan.warm_up)
            first, cpu, began = len(stream.sent), program.cpu_seconds(), time.monotonic()
            time.sleep(plan.measured)
            last = len(stream.sent)
            timed.cpu += (program.cpu_seconds() - cpu) / (time.monotonic() - began) / plan.rounds
            timed.memory = program.memory()
        finally:
            stream.stop()
        counted = stream.sent[first:last]
        wait_for(outputs, [(system.detector, login) for login in counted])
        program.check()
    before = len(timed.appended)
    add(timed, outputs, stream, [(system.detector, login) for login in counted])
    spread = Spread.of(timed.appended[before:])
    print(f"{system.name}: p50 {spread.p50:.0f}, p95 {spread.p95:.0f}, p99 {spread.p99:.0f} ms", flush=True)


def wait_for(outputs: Outputs, wanted: Sequence[tuple[str, Login]]) -> None:
    """Wait until every output is there; those that are still missing after 20 seconds are counted as missing."""
    for _ in range(200):
        if all((detector, login.cause) in outputs.first for detector, login in wanted):
            return
        time.sleep(0.1)


def add(timed: Timed, outputs: Outputs, stream: Stream, wanted: Sequence[tuple[str, Login]]) -> None:
    """Put the times of `wanted` outputs into `timed`."""
    for detector, login in wanted:
        output, appended = outputs.first.get((detector, login.cause)), stream.sender.appended[login.cause]
        if output is None:
            timed.missing += 1
        else:
            timed.appended.append(output.appended - appended)
            timed.seen.append(output.seen - appended)


def table_of(found: dict[str, Timed]) -> str:
    """The times and the costs of each system."""
    rows = []
    for name, timed in found.items():
        appended, seen = Spread.of(timed.appended), Spread.of(timed.seen)
        rows.append(
            {
                "system": name, "p50": appended.p50, "p95": appended.p95, "p99": appended.p99, "max": appended.worst,
                "seen p50": seen.p50, "seen p95": seen.p95, "seen p99": seen.p99, "events": appended.count,
                "missing": timed.missing, "CPU %": 100 * timed.cpu,
                "RSS MB": timed.memory.rss / 1e6, "PSS MB": timed.memory.pss / 1e6,
            }
        )  # fmt: skip
    return table(rows)


def report(found: dict[str, Timed]) -> tuple[str, list[Goal]]:
    """The table, and the goals."""
    ours, theirs = found[TOCSIN], found[AT_LEAST_ONCE]
    appended, other = Spread.of(ours.appended), Spread.of(theirs.appended)
    seen, other_seen, exact = Spread.of(ours.seen), Spread.of(theirs.seen), Spread.of(found[EXACTLY_ONCE].seen)
    goals = [
        Goal("p95 beside Kafka Streams at least once (append)", appended.p95 / other.p95, 2, " x"),
        Goal("p95 beside Kafka Streams at least once (seen)", seen.p95 / other_seen.p95, 2, " x"),
        Goal("p50 beside Kafka Streams exactly once (seen)", seen.p50 / exact.p50, 0.1, " x"),
        Goal("p99 of Tocsin (append)", appended.p99, 100, " ms"),
        Goal("memory of a detect job, RSS", ours.memory.rss / 1e9, 0.6, " GB"),
    ]
    return table_of(found), goals
