"""Watches the process list for what must never be there, all the time."""

import threading
import time
from collections import Counter
from typing import Self

from tocsin.supervise.runners.local import LocalRunner

_EVERY_SECONDS = 0.25


class Watch:
    """Looks four times a second for a second copy of a job, inside a `with` block.

    A copy is a leading process of the same job from the same spec: a version that takes over from another one runs
    beside it for a while, and its label says another spec.

    Attributes:
        doubles: what was there twice, as sentences.
        looks: how often it has looked.
        together: the highest number of processes of one job that were there at once, by job.
    """

    def __init__(self, runner: LocalRunner) -> None:
        self._runner = runner
        self.doubles: list[str] = []
        self.looks = 0
        self.together: Counter[str] = Counter()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(_EVERY_SECONDS):
            leaders = [process for process in self._runner.list() if process.leader]
            self.together |= Counter(process.labels.job for process in leaders)
            copies = Counter((process.labels.job, process.labels.spec) for process in leaders)
            for (job, spec), count in copies.items():
                if count > 1:
                    pids = [process.pid for process in leaders if process.labels.job == job]
                    self.doubles.append(f"at {time.time():.1f} {job} ran {count} times from {spec}: {pids}")
            self.looks += 1
