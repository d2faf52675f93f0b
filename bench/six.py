"""Six detectors at once, each a job of its own, on one stream of raw lines.

One login of ten fails, and each failure is a finding of all six, so that it can be timed: 174 findings a second, far
more than detectors at work have.
"""

from __future__ import annotations

import time
from contextlib import ExitStack

from bench.figures import Goal, Spread, table
from bench.latency import Plan, Timed, add, detector_file, wait_for
from bench.load import Sender, Stream
from bench.outputs import Outputs
from bench.processes import Memory, Program, await_that
from bench.rig import Rig
from tocsin.model.names import detector_job, ingest_job

_DETECTORS = [f"every_failure_{number}" for number in range(6)]
_APART_SECONDS = 4.0
_RATE = 290
_FAILING = 0.1
_INGEST = "ingest"


def measure(rig: Rig, plan: Plan) -> dict[str, Timed]:
    """Each detector's times from the raw line on, once all are warm; of the ingest what it takes, without times."""
    site = rig.site("six", dict.fromkeys(_DETECTORS, detector_file()))
    stream = Stream(Sender(rig.servers), site.names.raw(site.source), _RATE, as_lines=True, failing=_FAILING)
    jobs = {_INGEST: ingest_job(site.source)} | {name: detector_job(name) for name in _DETECTORS}
    with ExitStack() as stack:
        outputs = stack.enter_context(Outputs(rig.servers, site.names.findings))
        programs: dict[str, Program] = {}
        for name, job in jobs.items():
            programs[name] = stack.enter_context(rig.job(site, job))
            time.sleep(_APART_SECONDS)
        await_that(lambda: site.runs(*jobs.values()), 240, "all jobs", *programs.values())
        stream.start()
        try:
            await_that(lambda: _all_speak(outputs), 240, "a finding of each detector", *programs.values())
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
        wait_for(outputs, [(detector, login) for detector in _DETECTORS for login in counted])
    for detector in _DETECTORS:
        add(found[detector], outputs, stream, [(detector, login) for login in counted])
    return found


def _all_speak(outputs: Outputs) -> bool:
    return {detector for detector, _ in list(outputs.first)} == set(_DETECTORS)


def report(found: dict[str, Timed]) -> tuple[str, list[Goal]]:
    """The table, and the goals."""
    all_times = [time for timed in found.values() for time in timed.appended]
    together = Timed(all_times, [], sum(timed.missing for timed in found.values()), sum(t.cpu for t in found.values()))
    memory = [timed.memory for timed in found.values()]
    together.memory = Memory(sum(held.rss for held in memory), sum(held.pss for held in memory))
    rows = []
    for name, timed in [*((name, found[name]) for name in _DETECTORS), ("all six, and the ingest", together)]:
        spread = Spread.of(timed.appended)
        rows.append(
            {
                "detector": name, "p50": spread.p50, "p95": spread.p95, "p99": spread.p99, "max": spread.worst,
                "missing": timed.missing, "CPU %": 100 * timed.cpu,
                "RSS MB": timed.memory.rss / 1e6, "PSS MB": timed.memory.pss / 1e6,
            }
        )  # fmt: skip
    return table(rows), [Goal("six detectors at once, raw line to finding, p95", Spread.of(all_times).p95, 200, " ms")]
