"""A backlog of a million events: how long it takes, what it costs, and whether the findings are right."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from bench.figures import Goal, table
from bench.load import Backlog, Sender, counts, end_user
from bench.outputs import Outputs
from bench.processes import Memory, await_that
from bench.rig import Rig, Site
from bench.systems import AT_LEAST_ONCE, EXACTLY_ONCE, QUIX, TOCSIN, System, peers, tocsin
from tocsin.declare.model.names import detector_job
from tocsin.setup.paths import here

LOWEST, HIGHEST = 50, 100
DETECTOR = "failed_logins"
_LIMIT_SECONDS = 900


@dataclass
class Drained:
    """What one system took.

    Attributes:
        seconds: from the start of the process to the last finding.
        start: those of them before it began to read (a peer: before its first finding).
        cpu: seconds of all its processes.
        cpu_of_start: those of them that passed before it began to read.
        memory: at the end.
        outputs: records it wrote.
        wrong: windows whose finding is missing, has a wrong score, or should not be.
    """

    seconds: float
    start: float
    cpu: float
    cpu_of_start: float
    memory: Memory
    outputs: int
    wrong: int


def measure(rig: Rig, backlog: Backlog) -> dict[str, Drained]:
    """Each system drains a backlog of its own; all of them are the same but for the times."""
    text = (here().root / "detectors" / f"{DETECTOR}.py").read_text(encoding="utf-8")
    found = {}
    for number, system in enumerate([tocsin(DETECTOR), *peers(LOWEST, HIGHEST)]):
        site = rig.site(f"drain{number}", {DETECTOR: text}, lies_in_the_past=True)
        found[system.name] = drained(rig, site, system, backlog, fill(rig, site, backlog))
    return found


def drained(rig: Rig, site: Site, system: System, backlog: Backlog, truth: Counter[tuple[str, int]]) -> Drained:
    """Let `system` drain a topic that was filled with `backlog`, perhaps after others did; prints what that took."""
    ends = {user: count for (user, _), count in truth.items() if user in map(end_user, range(backlog.partitions))}
    outputs = Outputs(rig.servers, site.names.findings, since=time.time() * 1000)
    with outputs, system.start(rig, site) as program:

        def done() -> bool:
            best = {user: score for (_, user, _), score in outputs.best.copy().items() if user in ends}
            return best == ends

        started = partial(_has_started, system, site, outputs)
        await_that(started, _LIMIT_SECONDS, f"the first finding of {system.name}", program)
        start, cpu_of_start = time.time() - program.started_at, program.cpu_seconds()
        await_that(done, _LIMIT_SECONDS, f"{system.name} to drain {backlog.count} events", program)
        cpu, memory, now = program.cpu_seconds(), program.memory(), time.time()
        time.sleep(2)
        seconds = now - program.started_at
        outcome = (len(outputs.appends), wrong(truth, outputs.best))
    found = Drained(seconds, start, cpu, cpu_of_start, memory, *outcome)
    print(f"{system.name}: {found}", flush=True)
    return found


def _has_started(system: System, site: Site, outputs: Outputs) -> bool:
    return site.works(detector_job(system.detector)) if system.detector else bool(outputs.appends)


def fill(rig: Rig, site: Site, backlog: Backlog) -> Counter[tuple[str, int]]:
    """Write the backlog into the events topic of `site`; returns the truth."""
    topic = site.names.events(site.source)
    bulk = {"linger.ms": 50, "compression.type": "lz4", "queue.buffering.max.messages": 500_000}
    sender = Sender(rig.servers, **bulk)
    logins = list(backlog)
    for number, login in enumerate(logins):
        sender.send(topic, login, login.as_event(site.names.raw(site.source), number), remember=False)
    sender.flush()
    return counts(logins)


def wrong(truth: Mapping[tuple[str, int], int], best: Mapping[tuple[str, str, int], float]) -> int:
    """Windows whose best score is not the truth: exactly up to the highest limit, within one rung above it."""
    found = {(user, window): score for (_, user, window), score in best.items()}
    expected = {window: count for window, count in truth.items() if count > LOWEST}

    def right(score: float, count: int) -> bool:
        return score == count if count <= HIGHEST else rung_below(count) <= score <= count

    return len(found.keys() ^ expected.keys()) + sum(
        not right(found[window], count) for window, count in expected.items() if window in found
    )


def rung_below(count: int) -> int:
    """The highest score up to `count`, itself above the highest limit, that must have been emitted."""
    rung = HIGHEST + 1
    while (above := max(rung + 1, rung + rung // 10)) <= count:
        rung = above
    return rung


def report(found: dict[str, Drained], backlog: Backlog) -> tuple[str, list[Goal]]:
    """The table, and the goals."""
    rows = [
        {
            "system": name,
            "seconds": drained.seconds,
            "CPU s": drained.cpu,
            "records per CPU s": round(backlog.count / drained.cpu),
            "the same without the start": round(backlog.count / (drained.cpu - drained.cpu_of_start)),
            "RSS MB": drained.memory.rss / 1e6,
            "outputs": drained.outputs,
            "windows wrong": drained.wrong,
        }
        for name, drained in found.items()
    ]
    ours = found[TOCSIN]
    goals = [
        Goal(f"records per CPU s beside {peer}", found[peer].cpu / ours.cpu, 1, " x", at_least=True)
        for peer in (AT_LEAST_ONCE, EXACTLY_ONCE, QUIX)
    ]
    return table(rows), [*goals, Goal("windows wrong after a drain", ours.wrong, 0)]
