"""Kills -9 of Airflow, of its parts and of the jobs that it keeps running, and JVMs that hang, under load.

`python -m tests.faults.platform_kills --rounds 50` kills something at random in each round, and compares all findings
in the end. `--recoveries 20` kills a detect job so often, and as often an engine, and tells how soon that is noticed
and how soon all that it ran finds again.
"""

import argparse
import math
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain, cycle, islice
from pathlib import Path
from statistics import median

import psutil

from tests.faults.findings import Differences, Follower, Verdict, judge
from tests.faults.kills import settle
from tests.faults.platform import AIRFLOW, ALL_OF_AIRFLOW, DETECTORS, ENGINES, JOBS, SHADOWS, Platform
from tests.faults.watch import Watch
from tests.rig.load import Load
from tests.rig.observed import INGEST, SOURCE
from tests.rig.waiting import await_that
from tocsin.declare.model.names import INDEXER, detector_job

# A look that is killed keeps the next one waiting for a minute, until its silence is noticed.
ROUND_SECONDS = 300.0
ANY_DETECTOR, TWO = "a detector", "two at once"
VICTIMS = (*AIRFLOW, ALL_OF_AIRFLOW, ANY_DETECTOR, *ENGINES, INGEST, INDEXER, TWO)
NO_LOOK = "no supervisor has looked"
# It looks by itself each minute; asked by hand it looks sooner.
_PATIENCE_SECONDS = 10.0
# Each look reads the whole process list; what is measured here is dated by others.
_EVERY_SECONDS = 0.5
# With the bursts 290 lines a second.
_NOISE = 240


@dataclass(frozen=True)
class Round:
    """One round.

    Attributes:
        killed: what was, in words.
        seconds: until all ran again and each detector had found something that happened after the kill.
        faults: what else should have stayed as it was, as sentences.
    """

    killed: str
    seconds: float
    faults: list[str]

    def __str__(self) -> str:
        return f"{self.killed}: all well after {self.seconds:.1f} s{''.join(f'; {fault}' for fault in self.faults)}"


@dataclass(frozen=True)
class Recovery:
    """One kill of a detect job or an engine.

    Attributes:
        noticed: seconds until its next process was started.
        back: seconds until all that it ran had found something that happened after the kill.
    """

    job: str
    noticed: float
    back: float

    def __str__(self) -> str:
        return f"{self.job}: started again after {self.noticed:.1f} s, finds after {self.back:.1f} s"


@dataclass(frozen=True)
class Outcome:
    """A whole run.

    Attributes:
        rounds, recoveries: what was done.
        doubles: moments at which a job ran twice.
        looks: how often that was looked for.
        verdict: on the findings of the detector that notifies, and on its notifications.
        of_shadows: on the findings of the others.
    """

    rounds: list[Round]
    recoveries: list[Recovery]
    doubles: list[str]
    looks: int
    verdict: Verdict
    of_shadows: dict[str, Differences]

    @property
    def faults(self) -> list[str]:
        """Everything that is not as it should be, in words."""
        found = [fault for one in self.rounds for fault in one.faults] + self.doubles + self.verdict.faults
        for name, differences in self.of_shadows.items():
            told = [*(f"lost: {window}" for window in differences.lost), *differences.wrong, *differences.unfinished]
            found += [f"{name}: {fault}" for fault in told]
        return found


def victims(chance: random.Random) -> Iterator[tuple[str, ...]]:
    """What to kill, for ever: all kinds in an order of their own, then again in another."""
    while True:
        for kind in chance.sample(VICTIMS, len(VICTIMS)):
            if kind == TWO:
                yield tuple(chance.sample([*AIRFLOW, ALL_OF_AIRFLOW, *JOBS], 2))
            else:
                yield (detector_job(chance.choice(DETECTORS)) if kind == ANY_DETECTOR else kind,)


class Killer:
    """Kills on one platform, and waits until all is well again."""

    def __init__(self, platform: Platform, follower: Follower, chance: random.Random) -> None:
        self._platform, self._follower, self._chance = platform, follower, chance

    def round(self, names: Sequence[str]) -> Round:
        """Kill `names` at one moment; fails when not all is well again in time."""
        time.sleep(self._chance.uniform(0, 3))
        before, began = self._platform.pids(), time.time()
        killed = " and ".join([self._platform.kill(name, self._chance) for name in names])
        at = time.time()
        self._await_well(at, killed)
        seconds, after = time.time() - at, self._platform.pids()
        others = [job for job in JOBS if job not in names and before[job] != after[job]]
        told = [f"after {killed}: {job} was not left alone ({self._platform.told_of(job, began)})" for job in others]
        return Round(killed, seconds, told)

    def recovery(self, job: str) -> Recovery:
        """Kill all of a detect job or an engine that has not failed lately, as far as supervision knows."""
        detectors, before = ENGINES.get(job, (job.partition(":")[2],)), self._platform.pids()[job]
        self._platform.forgive(job)
        time.sleep(self._chance.uniform(0, 3))
        self._platform.kill(job)
        at = time.time()  # not before: what was found until then was found by the process that ended
        await_that(lambda: self._platform.pids().get(job, before) != before, ROUND_SECONDS)
        noticed = psutil.Process(self._platform.pids()[job]).create_time() - at
        self._await_well(at, job)
        return Recovery(job, noticed, max(self._follower.back_at(at, name) or at for name in detectors) - at)

    def _await_well(self, at: float, killed: str) -> None:
        """Wait until nothing lacks, a supervisor has looked since `at`, and each detector has found what came later."""
        asked = time.time()

        def lacks() -> list[str]:
            found = self._platform.lacks()
            found += [f"{name} finds nothing" for name in DETECTORS if self._follower.back_at(at, name) is None]
            return found + ([] if self._platform.looked_at() > at else [NO_LOOK])

        def is_well() -> bool:
            nonlocal asked
            found = lacks()
            if found == [NO_LOOK] and time.time() - asked > _PATIENCE_SECONDS:
                asked = time.time()
                with suppress(OSError):  # the API server may be on its way
                    self._platform.api.trigger("supervisor")
            return not found

        await_that(is_well, ROUND_SECONDS, lambda: f"after {killed}: {lacks()}", every=_EVERY_SECONDS)


def run(folder: Path, rounds: int, recoveries: int, seed: int, within: float = math.inf) -> Outcome:
    """A load with so many rounds and recoveries in it, and what came of it; none begins after `within` seconds."""
    chance, done, back, end = random.Random(seed), list[Round](), list[Recovery](), time.monotonic() + within
    with Platform(folder, short_batches=rounds > 0) as platform:
        kafka, raw = platform.settings.kafka.for_librdkafka(), platform.settings.names.raw(SOURCE)
        with Follower(platform) as follower, Watch(platform.runner) as watch, Load(kafka, raw, seed, _NOISE) as load:
            await_that(lambda: all(follower.of(name) for name in DETECTORS), 120, platform.lacks)
            killer, order = Killer(platform, follower, chance), victims(chance)
            while len(done) < rounds and time.monotonic() < end:
                done.append(killer.round(next(order)))
                print(f"{len(done)}/{rounds} {done[-1]}", flush=True)
            jobs = zip(cycle(map(detector_job, DETECTORS)), cycle(ENGINES))
            for job in islice(chain.from_iterable(jobs), 2 * recoveries):
                if time.monotonic() < end:
                    back.append(killer.recovery(job))
                    print(f"{len(back)}/{2 * recoveries} {back[-1]}", flush=True)
            load.stop()
            print(f"{load.truth.sent} lines were sent; waiting for all findings and mails", flush=True)
            settle(platform, follower, load, *DETECTORS)
            verdict = judge(platform, load.truth, follower.of())
            of_shadows = {name: Differences.between(load.truth, follower.of(name)) for name in SHADOWS}
        return Outcome(done, back, watch.doubles, watch.looks, verdict, of_shadows)


def report(outcome: Outcome) -> str:
    lines = [f"jobs that ran twice: {len(outcome.doubles)} (looked {outcome.looks} times)"]
    figures = {"rounds, all well": [one.seconds for one in outcome.rounds]}
    for kind in ("detector", "engine"):
        recoveries = [one for one in outcome.recoveries if one.job.startswith(kind)]
        figures[f"recoveries of a {kind}, started again"] = [one.noticed for one in recoveries]
        figures[f"recoveries of a {kind}, found again"] = [one.back for one in recoveries]
    for what, took in figures.items():
        if took:
            lines.append(f"{len(took)} {what} after {median(took):.1f} s (median), {max(took):.1f} s (longest)")
    verdict = outcome.verdict
    lines += [
        f"findings: {verdict.findings} expected of each of {len(DETECTORS)} detectors",
        f"notifications: {verdict.notifications} expected, {len(verdict.untold)} missing or of a wrong kind",
        f"notified twice: {len(verdict.twice)}",
        f"faults: {len(outcome.faults)}",
    ]
    return "\n".join([*lines, *outcome.faults[:50]])


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults.platform_kills", description=__doc__)
    parser.add_argument("--rounds", type=int, default=0, help="rounds of random kills")
    parser.add_argument("--recoveries", type=int, default=0, help="timed kills of a detect job and an engine")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="for the same kills again")
    parser.add_argument("--within", type=float, default=math.inf, help="seconds after which nothing more is killed")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # an exit unwinds, and what was started is stopped
    print(f"seed {given.seed}, load {os.getloadavg()[0]:.1f}", flush=True)
    with tempfile.TemporaryDirectory() as scratch:
        outcome = run(Path(scratch), given.rounds, given.recoveries, given.seed, given.within)
    print(report(outcome))
    return 1 if outcome.faults else 0


if __name__ == "__main__":
    raise SystemExit(main())
