"""Run the tasks of a job on executors of a cluster: what they need, and how many have come.

The driver stays with the job, so locks, reports and supervision are the same as without a cluster.
"""

from __future__ import annotations

import os
import socket
import time
import zipfile
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from tocsin.declare.blocks.spark_settings import LOCAL, ResourceSettings, SparkSettings
from tocsin.declare.model.errors import ConfigError, TransientError
from tocsin.declare.settings import PROJECT_FILE

_ANSWER_SECONDS = 2.0
_REMOVAL_SECONDS = 5.0
_ROOM_SECONDS = 60.0
# A task that exchanges records with one on the lost executor may be the first to fail. So does a task whose other end
# fails for a reason of its own.
_BROKEN = ("streaming shuffle", "ClosedChannelException", "Connection reset", "Connection refused")


class ClusterLost(TransientError):
    """The cluster has ended the session, or gives it no executors: only a new session helps."""


def with_executors(options: dict[str, str], spark: SparkSettings, resources: ResourceSettings) -> dict[str, str]:
    """Add to the `options` of a session what executors with `resources` need, and the user's own.

    The archives of the Kafka connector, on the class path of the driver, are sent to them, as are any in `spark.jars`.
    Raises a ConfigError if the user sets an option that Tocsin sets.
    """
    connector = options["spark.driver.extraClassPath"].split(os.pathsep)
    options = options | {
        "spark.driver.host": spark.driver_host,
        "spark.driver.bindAddress": spark.driver_host,
        "spark.jars": ",".join([*connector, *filter(None, [options.get("spark.jars")])]),
        "spark.executor.instances": str(resources.executors),
        "spark.executor.cores": str(resources.cores),
        "spark.executor.memory": f"{resources.memory // 2**20}m",
        "spark.cores.max": str(resources.slots),  # a standalone master counts cores, and would give all it has
    }
    if both := sorted(options.keys() & spark.conf.keys()):
        raise ConfigError.one(PROJECT_FILE, f"{both[0]} is set by Tocsin; leave it out", key="spark.conf")
    return options | spark.conf


def begin(session: SparkSession, folder: Path) -> None:
    """Send this version of Tocsin to the Python workers of the executors; `folder` keeps the archive meanwhile.

    Other packages must be installed there. A declared file needs nothing: its functions travel with the plan.
    """
    package, archive = Path(__file__).parents[2], folder / "tocsin.zip"
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as file:
        for path in sorted(package.rglob("*.py")):
            file.write(path, path.relative_to(package.parent))
    session.sparkContext.addPyFile(str(archive))


def refusal_of_masters(spark: SparkSettings) -> str | None:
    """Say that no master answers, or the API of Kubernetes; None when one does, or where Spark itself must ask."""
    faults = []
    for host, port in spark.masters:
        try:
            socket.create_connection((host, port), _ANSWER_SECONDS).close()
        except OSError as error:
            what = "the API of Kubernetes" if spark.is_on_kubernetes else "the Spark master"
            faults.append(f"{what} at {host}:{port} cannot be reached: {error.strerror or error}")
        else:
            return None
    return "; ".join(faults) or None


def await_executor(session: SparkSession, spark: SparkSettings) -> None:
    """Wait for the first executor; more may come later. Raises a TransientError if none has come within a minute."""
    deadline = time.monotonic() + _ROOM_SECONDS
    while not executors_of(session):
        if time.monotonic() > deadline:
            what = f"{session.sparkContext.master} gave no executor within {_ROOM_SECONDS:.0f} s"
            if spark.master == LOCAL:  # spark-submit has said what one gets
                raise TransientError(f"{what}: stop what fills it, or add a worker")
            executor = f"{spark.resources.cores} free cores and {spark.resources.memory // 2**20} MB for an executor"
            raise TransientError(
                f"{what}: it needs {executor}; stop what fills it, add a worker, or lower spark.resources"
            )
        time.sleep(0.1)


def executors_of(session: SparkSession) -> frozenset[str]:
    """List the ids of the executors that are there; none is used twice. Raises ClusterLost if the session has ended."""
    if is_lost(session):
        raise ClusterLost("the cluster has ended the session")
    return frozenset(filter(None, str(_context(session).getExecutorIds().mkString(",")).split(",")))


def is_lost(session: SparkSession) -> bool:
    """Return whether the session has ended by itself, as when the master removes the application."""
    return bool(_context(session).isStopped())


def has_lost_executor(session: SparkSession, before: frozenset[str], error: str) -> bool:
    """Return whether `error` comes of losing an executor of `before`, which ends a query: real-time tasks run once."""
    if "ExecutorLostFailure" in error:
        return True
    # The driver learns of the loss some time after the tasks at the other ends of its connections.
    deadline = time.monotonic() + (_REMOVAL_SECONDS if any(text in error for text in _BROKEN) else 0.0)
    while not (has_lost := is_lost(session) or not before <= executors_of(session)) and time.monotonic() < deadline:
        time.sleep(0.1)
    return has_lost


def _context(session: SparkSession) -> Any:
    return session.sparkContext._jsc.sc()
