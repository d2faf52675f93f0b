"""The watch sees what it must see, and nothing else."""

import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.faults.watch import Watch
from tests.rig.waiting import await_that
from tocsin.supervise.runners.local import LocalRunner
from tocsin.supervise.runners.runner import Labels

INSTANCE = f"watched-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def start() -> Iterator[Callable[[str, str], None]]:
    """Starts a process of a job from a spec."""
    children = []

    def started(job: str, spec: str) -> None:
        labels = Labels(INSTANCE, job, spec).arguments()
        children.append(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)", *labels]))

    yield started
    for child in children:
        child.kill()
        child.wait()


def test_two_of_the_same_spec_are_a_copy_and_two_versions_are_none(
    start: Callable[[str, str], None], tmp_path: Path
) -> None:
    start("detector:a", "old")
    start("detector:a", "new")
    start("notifier", "old")
    with Watch(LocalRunner(INSTANCE, lambda job: tmp_path / job)) as watch:
        await_that(lambda: watch.together["detector:a"] == 2 and watch.together["notifier"] == 1, 10)
        assert watch.doubles == []
        start("notifier", "old")
        await_that(lambda: watch.doubles != [], 10)
    assert "notifier ran 2 times from old" in watch.doubles[0]
