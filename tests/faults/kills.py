"""Kills -9 of the detect and the ingest job, and of an engine, under load, at chosen moments."""

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import cycle, islice
from pathlib import Path
from statistics import median

from tests.faults.findings import Follower, Told, Verdict, expected_notifications, judge
from tests.rig.broker import Broker
from tests.rig.checkpoints import Logs, await_moment
from tests.rig.installation import Installation
from tests.rig.load import Load
from tests.rig.observed import DETECT, DETECTOR, INGEST, SOURCE, Observed
from tests.rig.waiting import await_that, awaited
from tocsin.declare.model.job_report import JobState
from tocsin.declare.model.names import INDEXER, NOTIFIER
from tocsin.spark.engine.deaths import FOLDER

DOWN_SECONDS = 15.0  # longer than the lateness: what has come in meanwhile is a backlog
BACK_SECONDS = 240.0
END_SECONDS = 240.0
ENGINE = "engine:live-1"
_AIM_SECONDS = 60.0
_TRIES = 10


class Point(StrEnum):
    """When a job is killed."""

    BEFORE_FLUSH = "before a sink flush"
    BEFORE_COMMIT = "between flush and commit"
    IN_DRAIN = "in the middle of a drain"


@dataclass(frozen=True)
class Kill:
    """One kill -9.

    Attributes:
        job: that was killed.
        point: that was aimed at.
        what: which of its processes: "all", "python" or "jvm".
        hit: whether the job stood where it was aimed at, as its checkpoint shows.
        back_seconds: from the kill to the first finding on an event later than it.
    """

    job: str
    point: Point
    what: str
    hit: bool
    back_seconds: float

    def __str__(self) -> str:
        hit = "" if self.hit else " (missed)"
        return f"{self.job}, {self.point}{hit}, {self.what}: back after {self.back_seconds:.1f} s"


def plan(job: str, count: int, whats: Sequence[str] = ("all", "python", "all", "jvm")) -> list[tuple[str, Point, str]]:
    """`count` kills of `job`: two of five before a flush, two before a commit, one in a drain."""
    points = [Point.BEFORE_COMMIT, Point.BEFORE_FLUSH, Point.IN_DRAIN, Point.BEFORE_COMMIT, Point.BEFORE_FLUSH]
    return [(job, point, what) for point, what in zip(islice(cycle(points), count), cycle(whats), strict=False)]


class Killer:
    """Kills the jobs of one installation."""

    def __init__(self, installation: Installation, follower: Follower, seed: int = 1) -> None:
        self._installation, self._follower, self._chance = installation, follower, random.Random(seed)

    def kill(self, job: str, point: Point, what: str) -> Kill:
        """Kill `job` at `point`, start it again at once, and wait until it is back."""
        self._await_calm()
        aims = {
            Point.BEFORE_FLUSH: self._before_flush,
            Point.BEFORE_COMMIT: self._before_commit,
            Point.IN_DRAIN: self._in_drain,
        }
        # A busy machine lets moments go by; nothing is killed then, and the next one is aimed at.
        hit = any(aims[point](job, what) for _ in range(_TRIES))
        if not hit:
            self._installation.kill(job, what)
        killed_at = time.time()
        self._installation.await_end(job)
        self._start(job)
        await_that(
            lambda: self._follower.back_at(killed_at) is not None,
            BACK_SECONDS,
            lambda: f"{job} did not come back; its log ends:\n{self._installation.log(job)[-3000:]}",
        )
        return Kill(job, point, what, hit, (self._follower.back_at(killed_at) or 0.0) - killed_at)

    def _await_calm(self) -> None:
        """Wait until no job drains any longer, so that a kill hits what it aims at."""
        await_that(
            lambda: {self._installation.state(job) for job in (INGEST, DETECT)} == {JobState.RUNNING},
            BACK_SECONDS,
            lambda: f"still not calm: {self._installation.report(INGEST)}, {self._installation.report(DETECT)}",
        )

    def _fall_behind(self, job: str) -> None:
        self._installation.kill(job)
        self._installation.await_end(job)
        time.sleep(DOWN_SECONDS)
        self._start(job)

    def _start(self, job: str) -> None:
        """Start `job`; of an engine each death is the first, or it would isolate its only job, and kills would miss."""
        if job == ENGINE:
            (self._installation.settings.state / FOLDER / f"{ENGINE.partition(':')[2]}.json").unlink(missing_ok=True)
        self._installation.start(job)

    def _logs(self, job: str) -> Logs:
        logs = Logs.of(self._installation.settings.checkpoint(DETECT if job == ENGINE else job))
        assert logs is not None, f"{job} has no checkpoint yet"
        return logs

    def _before_flush(self, job: str, what: str) -> bool:
        """Within a batch, at any time of it: what it has read is neither flushed nor planned nor committed."""
        logs = self._logs(job)
        before = logs.committed()
        await_moment(lambda: logs.committed() > before, _AIM_SECONDS)
        time.sleep(self._chance.uniform(0.2, 4.5))
        return self._installation.kill_if(lambda: not logs.is_pending(), job, what)

    def _before_commit(self, job: str, what: str) -> bool:
        """The batch's offsets are written and its commit is not: all it has written is flushed."""
        logs = self._logs(job)
        return self._installation.kill_if(logs.is_pending, job, what, lambda: logs.await_flushed(_AIM_SECONDS))

    def _in_drain(self, job: str, what: str) -> bool:
        """While it drains: the detect job after a batch of its drain, the ingest, which drains in one, within that."""
        self._await_calm()
        self._fall_behind(job)
        logs, installation = self._logs(job), self._installation
        before = logs.committed()
        reads = DETECT if job == ENGINE else job
        await_moment(lambda: installation.state(reads) is JobState.DRAINING, _AIM_SECONDS)
        if reads == DETECT:
            await_moment(lambda: logs.committed() > before, 10.0)
        else:
            time.sleep(self._chance.uniform(0.2, 1.5))
        return installation.kill_if(lambda: installation.state(reads) is JobState.DRAINING, job, what)


@dataclass(frozen=True)
class Outcome:
    """A whole run: its kills, and what they did."""

    kills: list[Kill]
    verdict: Verdict


def run(folder: Path, broker: Broker, kills: Sequence[tuple[str, Point, str]]) -> Outcome:
    """A load with `kills` in it, and the verdict once all has been processed and everybody told."""
    done, engine = [], any(job == ENGINE for job, _, _ in kills)
    with Installation(folder, broker, engine=engine, drain_offsets_per_trigger=1000) as installation:
        installation.make_topics()
        installation.start(*([ENGINE] if engine else []), INGEST, DETECT, INDEXER, NOTIFIER)
        installation.await_ready(INGEST, DETECT, INDEXER, NOTIFIER)
        kafka, raw = installation.settings.kafka.for_librdkafka(), installation.settings.names.raw(SOURCE)
        with Follower(installation) as follower, Load(kafka, raw) as load:
            await_that(lambda: bool(follower.findings), BACK_SECONDS, lambda: installation.log(DETECT)[-3000:])
            killer = Killer(installation, follower)
            for job, point, what in kills:
                done.append(killer.kill(job, point, what))
                print(f"{len(done)}/{len(kills)} {done[-1]}", flush=True)
            load.stop()
            settle(installation, follower, load, DETECTOR)
            return Outcome(done, judge(installation, load.truth, follower.of()))


def settle(observed: Observed, follower: Follower, load: Load, *detectors: str) -> None:
    """Wait until each of `detectors` has found each window and all are told; the verdict says what did not come."""
    expected = load.truth.findings()
    wanted = expected_notifications(expected)

    def all_told() -> bool:
        told = {user for user, kinds in Told.of(observed).sent.items() if kinds}
        return all(expected.keys() <= follower.windows(name) for name in detectors) and wanted.keys() <= told

    if awaited(all_told, END_SECONDS, every=1):
        time.sleep(3)  # what would now come is too much


def report(outcome: Outcome) -> str:
    verdict, lines = outcome.verdict, [str(kill) for kill in outcome.kills]
    for job in (DETECT, INGEST, ENGINE):
        back = [kill.back_seconds for kill in outcome.kills if kill.job == job]
        if back:
            lines.append(
                f"{job}: {len(back)} kills, back after {median(back):.1f} s (median), {max(back):.1f} s (longest)"
            )
    differences = verdict.differences
    lines += [
        f"findings: {verdict.findings} expected, {len(differences.lost)} lost, {len(differences.wrong)} wrong",
        f"findings told below what they must be: {len(differences.unfinished)}",
        f"events dropped as late (repeated ones, if no score is wrong): {verdict.dropped_late}",
        f"notifications: {verdict.notifications} expected, {len(verdict.untold)} missing or of a wrong kind",
        f"notified twice: {len(verdict.twice)}",
        f"bad lines not exactly in quarantine: {verdict.unquarantined}",
    ]
    return "\n".join([*lines, *verdict.faults[:50]])
