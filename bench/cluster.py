"""A detector and a backfill on a standalone Spark cluster on this machine, beside the same in threads of their job.

All executors share the cores of the machine. So the figures say what executors cost, a record and an event, and that
nothing is lost or wrong; how far more machines would carry they cannot say.
"""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import psutil

from bench import drain, latency
from bench.backfill import count_wrong
from bench.figures import Goal, Spread, table
from bench.load import Backlog
from bench.past import Past, day_before, expected
from bench.processes import await_that, cpu_seconds
from bench.rig import Rig, Site
from bench.sealed import seal_past
from bench.spent import Spent, spent_by
from bench.systems import System
from tests.rig.spark_cluster import SparkCluster, spark_cluster
from tocsin.declare.blocks.spark_settings import ResourceSettings, SparkSettings
from tocsin.declare.catalog import read_catalog
from tocsin.declare.model.names import detector_job
from tocsin.declare.settings import Settings
from tocsin.history.backfill.backfill_ledger import Backfills
from tocsin.setup.java import find_java
from tocsin.setup.paths import here
from tocsin.supervise.installed_jobs import job_environment

_PARTITIONS, _SHUFFLE = 16, 4
_SLOTS = _PARTITIONS + 2 * _SHUFFLE
# Two tasks read, one drops duplicates, one counts: on two executors with two slots each records must cross. With more
# partitions of state those of a user overtake each other, and an output names the latest event alone.
_LIVE_SHUFFLE, _LIVE_CORES = 1, 2
_MEMORY = 512 * 2**20
_END_SECONDS = 30.0
HERE = "threads of the job"
_GOOD = (0, 10)


def on(executors: int) -> str:
    """Name the place of a run on so many executors."""
    return f"{executors} executor{'' if executors == 1 else 's'}"


@dataclass(frozen=True)
class Sizes:
    """How much is read.

    Attributes:
        records: of the topic that is drained.
        keys: users in it.
        rows: of the sealed days together.
        days: how many these are.
    """

    records: int
    keys: int
    rows: int
    days: int


@dataclass(frozen=True)
class Filled:
    """Backfill of all days in one place.

    Attributes:
        spent: by the program without executors.
        query: seconds from the start of its query until the first day is published.
        executors_cpu: seconds of its executors and of what starts them.
        wrong: findings missing, wrong or too many.
    """

    spent: Spent
    query: float
    executors_cpu: float
    wrong: int


@dataclass(frozen=True)
class OnCluster:
    """What was measured, each by the name of its place.

    Attributes:
        live: a steady stream.
        backlog: what was drained.
        keys: users with a failure in a window, on average.
        drains: what draining took.
        past: what was filled.
        fills: what filling took.
    """

    live: dict[str, latency.Timed]
    backlog: Backlog
    keys: float
    drains: dict[str, drain.Drained]
    past: Past
    fills: dict[str, Filled]


@dataclass(frozen=True)
class _Place:
    """Where the tasks of a job run: the settings that say it, and the processes that do it."""

    name: str
    spark: SparkSettings
    executors: Callable[[], list[psutil.Process]] = list

    def settings(self, settings: Settings) -> Settings:
        """Give `settings` of another installation that runs its tasks here."""
        state = settings.state.with_name(f"state-{self.name.replace(' ', '-')}")
        return settings.model_copy(update={"spark": self.spark, "state": state})

    def site(self, site: Site) -> Site:
        """Give `site` with its jobs here."""
        return replace(site, settings=self.settings(site.settings))

    def system(self, detector: str) -> System:
        """Give the job of `detector` here."""
        return System(
            self.name, lambda rig, site: rig.job(site, detector_job(detector), others=self.executors), detector
        )


def measure(rig: Rig, plan: latency.Plan, sizes: Sizes) -> OnCluster:
    """Measure all three on one cluster of two workers."""
    shutil.rmtree(folder := rig.folder / "cluster", ignore_errors=True)
    backlog = Backlog(sizes.records, sizes.records / 1000, _PARTITIONS, sizes.keys, alpha=0.2)
    past = Past(day_before(datetime.now(UTC), sizes.days), sizes.days, sizes.rows // sizes.days)
    with spark_cluster(folder, cores=_SLOTS) as cluster:
        live = _live(rig, plan, cluster)
        keys, drains = _drains(rig, backlog, cluster)
        fills = _fills(rig.folder / "past", past, cluster)
    return OnCluster(live, backlog, keys, drains, past, fills)


def _places(cluster: SparkCluster, cores: Mapping[int, int], shuffle: int) -> list[_Place]:
    """List the threads of the job, and numbers of executors with so many `cores` each."""
    places = [_Place(HERE, SparkSettings(shuffle_partitions=shuffle))]
    for executors, each in cores.items():
        resources = ResourceSettings(executors=executors, cores=each, memory=_MEMORY)
        spark = SparkSettings(master=cluster.master, resources=resources, shuffle_partitions=shuffle)
        places.append(_Place(on(executors), spark, cluster.executors))
    return places


def _live(rig: Rig, plan: latency.Plan, cluster: SparkCluster) -> dict[str, latency.Timed]:
    """Each place in turn, forth and then back."""
    places = _places(cluster, {2: _LIVE_CORES}, _LIVE_SHUFFLE)
    found = {place.name: latency.Timed([], []) for place in places}
    for number in range(plan.rounds):
        for place in places if number % 2 == 0 else reversed(places):
            name = f"live{number}{places.index(place)}"
            site = place.site(rig.site(name, {latency.DETECTOR: latency.detector_file()}))
            latency.run_round(rig, site, place.system(latency.DETECTOR), plan, found[place.name])
    return found


def _drains(rig: Rig, backlog: Backlog, cluster: SparkCluster) -> tuple[float, dict[str, drain.Drained]]:
    """Drain one topic from its beginning in each place; returns the users in a window, too."""
    text = (here().root / "detectors" / f"{drain.DETECTOR}.py").read_text(encoding="utf-8")
    site = rig.site("cluster", {drain.DETECTOR: text}, source=rig.source(_PARTITIONS), lies_in_the_past=True)
    truth = drain.fill(rig, site, backlog)
    found = {
        place.name: drain.drained(rig, place.site(site), place.system(drain.DETECTOR), backlog, truth)
        for place in _places(cluster, {count: _SLOTS // count for count in (1, 2, 4)}, _SHUFFLE)
    }
    return len(truth) / len({window for _, window in truth}), found


def _fills(folder: Path, past: Past, cluster: SparkCluster) -> dict[str, Filled]:
    """Fill the same days in each place."""
    shutil.rmtree(folder, ignore_errors=True)
    settings, found = Settings(project=here().root, state=folder / "state"), {}
    try:
        seal_past(settings, read_catalog(settings.project).source("logins"), past)
        for place in _places(cluster, {1: 1, 2: 1}, 1):
            found[place.name] = _fill(settings.model_copy(update={"spark": place.spark}), past, cluster)
            print(f"backfill, {place.name}: {found[place.name]}", flush=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return found


def _fill(settings: Settings, past: Past, cluster: SparkCluster) -> Filled:
    """Run all days, though another place has published them."""
    program = here().root / "spark_jobs" / "backfill.py"
    days = [f"--day={day}" for day in past.dates]
    command: list[str | Path] = [sys.executable, program, drain.DETECTOR, "--run-id", "bench", *days]
    log, before = settings.state.parent / "backfill.log", cpu_seconds(cluster.workers())
    log.unlink(missing_ok=True)
    spent = spent_by(command, log, job_environment(settings, find_java().home), here().root)
    if spent.code not in _GOOD:
        raise RuntimeError(f"ended with {spent.code}; {log} ends:\n{log.read_text(errors='replace')[-3000:]}")
    await_that(lambda: not cluster.executors(), _END_SECONDS, "the end of the executors")
    elsewhere = cpu_seconds(cluster.workers()) - before  # of executors, too, once they have ended
    wrong = count_wrong(Backfills(settings, drain.DETECTOR), expected(past))
    return Filled(spent, _logged(log, "day published") - _logged(log, "backfill started"), elsewhere, wrong)


def _logged(log: Path, event: str) -> float:
    """Tell when `event` is first logged, seconds since the epoch."""
    found = re.search(rf'^time=(\S+) .*event="{event}"', log.read_text(errors="replace"), re.MULTILINE)
    if found is None:
        raise RuntimeError(f"{log} does not say {event!r}")
    return datetime.fromisoformat(found[1]).timestamp()


def report(found: OnCluster) -> tuple[str, list[Goal]]:
    """The tables, and the goals."""
    rows = found.past.rows * found.past.days
    texts = [
        "### A steady stream, in real-time mode",
        latency.table_of(found.live),
        f"### {found.backlog.count:,} records in {_PARTITIONS} partitions, {found.keys:,.0f} users in a window",
        table([_drain_row(name, drained, found.backlog.count) for name, drained in found.drains.items()]),
        f"### Backfill of {rows:,} rows in {found.past.days} days, one core for each executor",
        table([_fill_row(name, filled, rows, found.fills[on(1)]) for name, filled in found.fills.items()]),
    ]
    p95 = {name: Spread.of(timed.appended).p95 for name, timed in found.live.items()}
    cpu = {name: drained.cpu - drained.cpu_of_start for name, drained in found.drains.items()}
    fills = {count: found.fills[on(count)].query for count in (1, 2)}
    wrong = sum(one.wrong for one in found.drains.values()) + sum(one.wrong for one in found.fills.values())
    goals = [
        Goal("p95 on 2 executors beside threads", p95[on(2)] / p95[HERE], 2, " x"),
        Goal("CPU of a record on 1 executor beside threads", cpu[on(1)] / cpu[HERE], 1.5, " x"),
        Goal("CPU of a record on 4 executors beside 1", cpu[on(4)] / cpu[on(1)], 1.5, " x"),
        Goal("query of a backfill on 2 executors", fills[1] / fills[2], 1.5, " x", at_least=True),
        Goal("events without an output on the cluster", sum(timed.missing for timed in found.live.values()), 0),
        Goal("windows and findings wrong", wrong, 0),
    ]
    return "\n\n".join(texts), goals


def _drain_row(name: str, drained: drain.Drained, records: int) -> dict[str, object]:
    seconds, cpu = drained.seconds - drained.start, drained.cpu - drained.cpu_of_start
    return {
        "place": name, "start s": drained.start, "seconds": seconds, "records/s": round(records / seconds),
        "CPU s of start": drained.cpu_of_start, "CPU s": cpu, "records per CPU s": round(records / cpu),
        "RSS MB": round(drained.memory.rss / 1e6), "windows wrong": drained.wrong,
    }  # fmt: skip


def _fill_row(name: str, filled: Filled, rows: int, alone: Filled) -> dict[str, object]:
    return {
        "place": name, "seconds": filled.spent.seconds, "to the first day": filled.query,
        "beside 1 executor": f"{alone.query / filled.query:.2f} x",
        "CPU s": filled.spent.cpu + filled.executors_cpu, "of executors": filled.executors_cpu,
        "rows per CPU s": round(rows / (filled.spent.cpu + filled.executors_cpu)), "wrong": filled.wrong,
    }  # fmt: skip
