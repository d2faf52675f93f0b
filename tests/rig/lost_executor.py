"""A detector whose executors run on a cluster, whichever it is, loses one of them."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import psutil

from tests.rig.detect_job import LiveJob, ticking


@contextmanager
def losing_an_executor(live: LiveJob, executors: Callable[[], list[psutil.Process]]) -> Iterator[list[psutil.Process]]:
    """Kill one of the executors behind the block, in mid-window: all is found, and the process stays the same."""
    live.await_live()
    with ticking(live.topic):
        live.topic.burst("before", 120)
        live.topic.burst("other", 60, partition=1)
        live.job.await_truth(live.topic.truth)
        yield (found := executors())
        live.topic.burst("during", 40)
        live.await_live()
        found[0].kill()
        live.topic.burst("during", 80)
        live.job.await_truth(live.topic.truth)
        counted = live.job.await_report(lambda r: r.counts.get("executors_lost") == 1)
    assert counted.pid == live.process.pid
