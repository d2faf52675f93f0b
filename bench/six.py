"""Several detectors at once, each a job of its own, on one stream of raw lines, in an engine or in JVMs of their own.

Each failed login is a finding of all of them, so that it can be timed. With six, and one login of ten, that is 174
findings a second, far more than detectors at work have.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from itertools import product

import psutil

from bench.figures import Goal, Spread, table
from bench.latency import Plan, Timed, add, detector_file, wait_for
from bench.load import Sender, Stream
from bench.outputs import Outputs
from bench.processes import Memory, await_that
from bench.rig import Rig
from tocsin.declare.model.names import detector_job, ingest_job

_APART_SECONDS = {True: 1.0, False: 4.0}
"""Between two starts, with an engine and without, so that a machine with two cores gets along."""
INGEST, BROKER, ENGINE = "ingest", "broker", "engine"
_ENGINE_JOB = "engine:shadow-1"


@dataclass(frozen=True)
class Burden:
    """What the machine has to do.

    Attributes:
        detectors: how many.
        rate: lines a second.
        failing: share of them that each detector finds.
        engine: whether they share one.
        latency: of `tocsin.declare.blocks.spark_settings.LATENCIES`.
        partitions: of the topics.
    """

    detectors: int = 6
    rate: int = 290
    failing: float = 0.1
    engine: bool = True
    latency: str = "100 ms"
    partitions: int = 2

    @property
    def names(self) -> list[str]:
        """Of the detectors."""
        return [f"every_failure_{number}" for number in range(self.detectors)]


SIX = (Burden(engine=False, latency="10 ms"), Burden(latency="10 ms"), Burden())


@dataclass(frozen=True)
class Carried:
    """How it went.

    Attributes:
        timed: by detector its times from the raw line on, once all are warm; of ingest, broker and engine what they
            take, no times.
        ready_seconds: from the first start until all run.
    """

    timed: dict[str, Timed]
    ready_seconds: float


Found = dict[Burden, list[Carried]]


def measure(rig: Rig, plan: Plan, burdens: Sequence[Burden] = SIX) -> Found:
    """Carry each burden in each round, one after the other."""
    found: Found = {burden: [] for burden in burdens}
    for _, burden in product(range(plan.rounds), burdens):
        found[burden].append(carry(rig, plan, burden))
        print(_row(burden, found[burden][-1:]), flush=True)
    return found


def carry(rig: Rig, plan: Plan, burden: Burden) -> Carried:
    """Carry `burden` for the time of one round."""
    names = burden.names
    files = dict.fromkeys(names, detector_file())
    way = f"{'engine' if burden.engine else 'own'}_{burden.latency.replace(' ', '')}"
    name = f"at_once_{burden.detectors}_{burden.rate}_{burden.partitions}_{way}"
    source = rig.source(burden.partitions)
    site = rig.site(name, files, source=source, engine=burden.engine, latency=burden.latency)
    topic, sender = site.names.raw(site.source), Sender(rig.servers)
    stream = Stream(sender, topic, burden.rate, burden.partitions, as_lines=True, failing=burden.failing)
    jobs = {ENGINE: _ENGINE_JOB} if burden.engine else {}
    jobs |= {INGEST: ingest_job(site.source)} | {name: detector_job(name) for name in names}
    with ExitStack() as stack:
        outputs = stack.enter_context(Outputs(rig.servers, site.names.findings))
        programs, began = {BROKER: rig.broker}, time.monotonic()
        for name, job in jobs.items():
            programs[name] = stack.enter_context(rig.job(site, job, _servers if name == ENGINE else list))
            time.sleep(_APART_SECONDS[burden.engine])
        await_that(lambda: site.runs(*jobs.values()), 240, "all jobs", *programs.values())
        ready_seconds = time.monotonic() - began
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
    return Carried(found, ready_seconds)


def _servers() -> list[psutil.Process]:
    """What jobs share without an engine: the process that has imported their modules."""
    found = []
    for child in psutil.Process().children():
        with suppress(psutil.NoSuchProcess):  # one that has ended and was not waited for has no command
            found += [child] if "tocsin.spark.engine.job_server" in child.cmdline() else []
    return found


def _all_speak(outputs: Outputs, names: Sequence[str]) -> bool:
    return {detector for detector, _ in list(outputs.first)} == set(names)


def _row(burden: Burden, carried: Sequence[Carried]) -> dict[str, object]:
    """One line of the table: times of all rounds together, and means."""
    times = Spread.of([time for one in carried for name in burden.names for time in one.timed[name].appended])

    def mean(of: Callable[[Timed], float], *names: str) -> float:
        return sum(of(one.timed[name]) for one in carried for name in names if name in one.timed) / len(carried)

    own = [*burden.names, ENGINE]
    return {
        "detectors": burden.detectors, "JVM": "one" if burden.engine else "own", "latency": burden.latency,
        "run after s": sum(one.ready_seconds for one in carried) / len(carried),
        "p50": times.p50, "p95": times.p95, "p99": times.p99, "max": times.worst,
        "missing": mean(lambda timed: timed.missing, *burden.names),
        "CPU % each": 100 * mean(lambda timed: timed.cpu, *own) / burden.detectors,
        "ingest": 100 * mean(lambda timed: timed.cpu, INGEST), "broker": 100 * mean(lambda timed: timed.cpu, BROKER),
        "all": 100 * mean(lambda timed: timed.cpu, *own, INGEST, BROKER),
        "PSS MB each": mean(lambda timed: timed.memory.pss, *own) / burden.detectors / 1e6,
    }  # fmt: skip


def memory(carried: Carried, burden: Burden) -> Memory:
    """Add up what the detectors and their engine hold."""
    held = [carried.timed[name].memory for name in (*burden.names, ENGINE) if name in carried.timed]
    return Memory(sum(one.rss for one in held), sum(one.pss for one in held))


def report(found: Found) -> tuple[str, list[Goal]]:
    """The table, and the goal of each: nine of ten findings within half as much again as the latency asked for."""
    rows = {burden: _row(burden, carried) for burden, carried in found.items()}
    goals = [
        Goal(f"{burden.detectors} detectors in an engine, {burden.latency}: p95", float(str(row["p95"])), bound, " ms")
        for burden, row in rows.items()
        if burden.engine and (bound := {"10 ms": 40, "100 ms": 150}.get(burden.latency))
    ]
    return table(list(rows.values())), goals
