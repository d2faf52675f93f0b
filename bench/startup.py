"""How long a detect job takes from its start to its first finding, the first time and later."""

from __future__ import annotations

import time
from statistics import median

from bench.figures import Goal, table
from bench.latency import DETECTOR, RATE, detector_file
from bench.load import Sender, Stream
from bench.outputs import Outputs
from bench.processes import Program, await_that
from bench.rig import Rig
from tocsin.declare.model.names import detector_job

_RUNS = 4
_AT_WORK_SECONDS = 25.0


def measure(rig: Rig) -> list[float]:
    """Seconds to the first finding of each run: on a new checkpoint, and then on the one that is there.

    Events go on all the time; what arrived between the runs is less than the lateness of the source.
    """
    site = rig.site("startup", {DETECTOR: detector_file()})
    stream = Stream(Sender(rig.servers), site.names.events(site.source), RATE)
    found = []
    with Outputs(rig.servers, site.names.findings) as outputs:
        stream.start()
        try:
            for _ in range(_RUNS):
                with rig.job(site, detector_job(DETECTOR)) as program:
                    found.append(_first_finding(outputs, program) - program.started_at)
                    time.sleep(_AT_WORK_SECONDS)
        finally:
            stream.stop()
    return found


def _first_finding(outputs: Outputs, program: Program) -> float:
    """When the first finding since the start of `program` was appended, seconds since the epoch."""

    def later() -> list[float]:
        return [moment / 1000 for moment in outputs.appends if moment / 1000 > program.started_at]

    await_that(later, 120, "the first finding", program)
    return later()[0]


def report(found: list[float]) -> tuple[str, list[Goal]]:
    """The table, and the goals."""
    rows = [
        {"start": f"restart {number}" if number else "on a new checkpoint", "seconds to the first finding": seconds}
        for number, seconds in enumerate(found)
    ]
    return table(rows), [Goal("start to first finding, median of the restarts", median(found[1:]), 10, " s")]
