"""Several detectors at once, each a job of its own, on one stream of raw lines.

Each failed login is a finding of all of them, so that it can be timed. With six, and one login of ten, that is 174
findings a second, far more than detectors at work have.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from bench.figures import Goal, Spread, table
from bench.latency import Plan, Timed, add, detector_file, wait_for
from bench.load import Sender, Stream
from bench.outputs import Outputs
from bench.processes import Memory, await_that
from bench.rig import Rig
from tocsin.declare.model.names import detector_job, ingest_job

_APART_SECONDS = 4.0
INGEST, BROKER = "ingest", "broker"


@dataclass(frozen=True)
class Burden:
    """What the machine has to do.

    Attributes:
        detectors: how many.
        rate: lines a second.
        failing: share of them that each detector finds.
    """

    detectors: int = 6
    rate: int = 290
    failing: float = 0.1

    @property
    def names(self) -> list[str]:
        """Of the detectors."""
        return [f"every_failure_{number}" for number in range(self.detectors)]


SIX = Burden()


def measure(rig: Rig, plan: Plan, burden: Burden = SIX) -> dict[str, Timed]:
    """Each detector's times from the raw line on, once all are warm; of ingest and broker what they take, no times."""
    names = burden.names
    site = rig.site(f"at_once_{burden.detectors}_{burden.rate}", dict.fromkeys(names, detector_file()))
    sender = Sender(rig.servers)
    stream = Stream(sender, site.names.raw(site.source), burden.rate, as_lines=True, failing=burden.failing)
    jobs = {INGEST: ingest_job(site.source)} | {name: detector_job(name) for name in names}
    with ExitStack() as stack:
        outputs = stack.enter_context(Outputs(rig.servers, site.names.findings))
        programs = {BROKER: rig.broker}
        for name, job in jobs.items():
            programs[name] = stack.enter_context(rig.job(site, job))
            time.sleep(_APART_SECONDS)
        await_that(lambda: site.runs(*jobs.values()), 240, "all jobs", *programs.values())
        stream.start()
        try:
            await_that(lambda: _all_speak(outputs, names), 240, "a finding of each detector", *programs.values())
            time.sleep(plan.warm_up)
            first, cpu = len(stream.sent), {name: program.cpu_seconds() for name, program in programs.items()}
            time.sleep(plan.measured)
            last = len(stream.sent)
            found = {
                name: Timed([], [], 0, (program.cpu_seconds() - cpu[name]) / plan.measured, program.memory())
                for name, program in programs.items()
            }
        finally:
            stream.stop()
        counted = stream.sent[first:last]
        wait_for(outputs, [(detector, login) for detector in names for login in counted])
    for detector in names:
        add(found[detector], outputs, stream, [(detector, login) for login in counted])
    return found


def _all_speak(outputs: Outputs, names: Sequence[str]) -> bool:
    return {detector for detector, _ in list(outputs.first)} == set(names)


def report(found: dict[str, Timed]) -> tuple[str, list[Goal]]:
    """The table of six, and the goals."""
    jobs = {name: timed for name, timed in found.items() if name != BROKER}
    all_times = [time for timed in jobs.values() for time in timed.appended]
    together = Timed(all_times, [], sum(timed.missing for timed in jobs.values()), sum(t.cpu for t in jobs.values()))
    memory = [timed.memory for timed in jobs.values()]
    together.memory = Memory(sum(held.rss for held in memory), sum(held.pss for held in memory))
    rows = []
    for name, timed in [*((name, found[name]) for name in SIX.names), ("all six, and the ingest", together)]:
        spread = Spread.of(timed.appended)
        rows.append(
            {
                "detector": name, "p50": spread.p50, "p95": spread.p95, "p99": spread.p99, "max": spread.worst,
                "missing": timed.missing, "CPU %": 100 * timed.cpu,
                "RSS MB": timed.memory.rss / 1e6, "PSS MB": timed.memory.pss / 1e6,
            }
        )  # fmt: skip
    return table(rows), [Goal("six detectors at once, raw line to finding, p95", Spread.of(all_times).p95, 200, " ms")]
