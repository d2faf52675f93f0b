"""From the raw line to the finding: the ingest job and a detect job behind each other."""

from __future__ import annotations

import time

from bench.figures import Goal, Spread, table
from bench.latency import DETECTOR, RATE, Plan, Timed, add, detector_file, wait_for
from bench.load import Sender, Stream
from bench.outputs import Outputs
from bench.processes import await_that
from bench.rig import Rig
from tocsin.declare.model.names import detector_job, ingest_job


def measure(rig: Rig, plan: Plan) -> Timed:
    """Times from the append of a raw line to the append of its finding."""
    site = rig.site("pipeline", {DETECTOR: detector_file()})
    stream = Stream(Sender(rig.servers), site.names.raw(site.source), RATE, as_lines=True)
    timed = Timed([], [])
    with (
        rig.job(site, ingest_job(site.source)) as ingest,
        rig.job(site, detector_job(DETECTOR)) as detect,
        Outputs(rig.servers, site.names.findings) as outputs,
    ):
        jobs = (ingest_job(site.source), detector_job(DETECTOR))
        await_that(lambda: site.runs(*jobs), 120, "both jobs", ingest, detect)
        stream.start()
        try:
            await_that(lambda: outputs.appends, 120, "the first finding", ingest, detect)
            time.sleep(plan.warm_up)
            first = len(stream.sent)
            time.sleep(plan.measured)
            last = len(stream.sent)
            timed.memory = detect.memory()
        finally:
            stream.stop()
        wanted = [(DETECTOR, login) for login in stream.sent[first:last]]
        wait_for(outputs, wanted)
    add(timed, outputs, stream, wanted)
    return timed


def report(timed: Timed) -> tuple[str, list[Goal]]:
    """The table, and the goals."""
    spread = Spread.of(timed.appended)
    row = {"from": "raw line to finding", "p50": spread.p50, "p95": spread.p95, "p99": spread.p99, "max": spread.worst}
    row |= {"events": spread.count, "missing": timed.missing}
    return table([row]), [Goal("raw line to finding, p50", spread.p50, 30, " ms")]
