"""Tell what each job takes in a JVM that it shares: the engine counts, and each job adds its part to its report.

CPU of tasks is Spark's own metric, by the query of the stage; Python workers are processes of one session alone. What
remains of the JVM, such as planning and its collector, is shared, and stays in the engine's own report. So the sum over
the reports of all is what the machine spent.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import psutil
from pyspark.sql import SparkSession

from tocsin.platform import state_file

_RUN = re.compile(r"runId = ([0-9a-f-]+)")


class Cost(NamedTuple):
    """CPU seconds since the session began, and bytes resident now."""

    cpu_seconds: float = 0.0
    rss_bytes: int = 0


class Costs:
    """Counts what each session takes."""

    def __init__(self, spark: SparkSession) -> None:
        java: Any = spark._jvm
        self._store = spark.sparkContext._jsc.sc().statusStore()
        self._defaults = [getattr(self._store, f"stageList$default${place}")() for place in (4, 5)]
        self._mapper = java.com.fasterxml.jackson.databind.ObjectMapper()
        self._mapper.registerModule(java.com.fasterxml.jackson.module.scala.DefaultScalaModule())
        self._seen: dict[object, float] = {}
        self._cpu: dict[str, float] = {}

    def look(self, session_of: Mapping[str, str], workers: Mapping[str, Sequence[psutil.Process]]) -> dict[str, Cost]:
        """Count what came since the last look, and return the costs of all sessions since they began.

        Args:
            session_of: by the id of a run of a query, which Spark writes into the description of its stages.
            workers: by session, its Python processes.
        """
        seen = {}
        for stage in json.loads(self._mapper.writeValueAsString(self._stages())):
            run = _RUN.search(stage["description"] or "")
            if run and (session := session_of.get(run[1])):
                seen[stage["stageId"]] = session, int(stage["executorCpuTime"]) / 1e9
        rss: dict[str, int] = {}
        for session, processes in workers.items():
            for process in processes:
                with contextlib.suppress(psutil.Error):  # it has ended
                    times = process.cpu_times()
                    seen[process] = session, times.user + times.system
                    rss[session] = rss.get(session, 0) + process.memory_info().rss
        for what, (session, seconds) in seen.items():
            self._cpu[session] = self._cpu.get(session, 0.0) + seconds - self._seen.get(what, 0.0)
        self._seen = {what: seconds for what, (_, seconds) in seen.items()}
        return {session: Cost(round(self._cpu.get(session, 0.0), 2), rss.get(session, 0)) for session in workers}

    @property
    def cpu_seconds(self) -> float:
        """What all sessions have taken, those that ended included."""
        return sum(self._cpu.values())

    def _stages(self) -> Any:
        """List the stages that Spark knows: those that run, and some hundred that have ended."""
        return self._store.stageList(None, False, False, *self._defaults)


def write_costs(path: Path, costs: Mapping[str, Cost]) -> None:
    """Write the costs by session, for the jobs. Raises an OSError if it cannot be written."""
    state_file.write(path, dict[str, Cost], dict(costs))


def read_cost(path: Path, session: str) -> Cost:
    """Read what `session` has taken; nothing before the engine has first counted."""
    return state_file.read(path, dict[str, Cost], {}).get(session, Cost())
