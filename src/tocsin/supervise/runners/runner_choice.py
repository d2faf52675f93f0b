"""Choose the runner that the settings ask for."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tocsin.declare.settings import Settings
from tocsin.supervise.runners.local import LocalRunner
from tocsin.supervise.runners.process_labels import instance_of
from tocsin.supervise.runners.runner import Process, Runner


def runner_of(settings: Settings, *, tethered: bool = False) -> Runner:
    """Return what runs the jobs of `settings`; `tethered`, see `LocalRunner`, means nothing to a cluster."""
    if settings.runner.kind == "local":
        return LocalRunner(instance_of(settings), settings.log, tethered=tethered)
    from tocsin.supervise.runners.cluster_runner import ClusterRunner  # noqa: PLC0415 - most installations have no cluster

    return ClusterRunner(settings)


def process_reader(settings: Settings) -> Callable[[], Sequence[Process] | None]:
    """Return what lists the live processes for a reader.

    None if a cluster runs them: whoever only reads goes by what jobs report, and needs no account of the cluster.
    """
    return runner_of(settings).list if settings.runner.kind == "local" else lambda: None
