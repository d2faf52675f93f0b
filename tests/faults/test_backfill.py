"""Kills -9 of a backfill, while it publishes and at random: no day is half published, and the findings are the same."""

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path

import pytest

from bench.past import Expected, Past, day_before, expected
from bench.sealed import seal_past
from tests.rig.waiting import patient
from tocsin.declare.settings import Settings
from tocsin.declare.source_file import read_source
from tocsin.history.backfill.backfill_ledger import Backfills, BrokenFindings
from tocsin.setup.java import find_java
from tocsin.setup.paths import here
from tocsin.supervise.installed_jobs import job_environment

DETECTOR = "failed_logins"
DAYS = 12
_GOOD = (0, 10)
_END_SECONDS = 600.0
_EVERY_SECONDS = 0.005


@dataclass(frozen=True)
class Round:
    """One round: all days were sealed again with other events, and the backfill over them was killed.

    Attributes:
        aim: when it was to be killed, in words.
        killed: whether it had not ended before.
        anew: days that it had published.
        faults: what is not as it should be, as sentences.
    """

    aim: str
    killed: bool
    anew: int
    faults: list[str]

    def __str__(self) -> str:
        what = "killed" if self.killed else "ended before it could be killed"
        return f"{what} ({self.aim}), {self.anew} of {DAYS} days published: {'; '.join(self.faults) or 'all well'}"


class Rounds:
    """A history whose days change with each round, and the backfill over it."""

    def __init__(self, folder: Path, seed: int = 1) -> None:
        self._settings = Settings(project=here().root, state=folder / "state")
        self._source = read_source(here().root / "sources" / "logins.toml")
        self._backfills = Backfills(self._settings, DETECTOR)
        self._chance, self._log = random.Random(seed), folder / "backfill.log"
        self._truths: dict[str, Expected] = {}  # by sealed version
        self._latest: dict[date, str] = {}
        self._round, self._usual = 0, 0.0

    def killed(self) -> Round:
        """One round: the first and every other one is killed while it publishes, the rest at any time before that."""
        self._seal()
        before, began = self._backfills.read().published, time.monotonic()
        runs = self._runs()
        if self._round % 2:
            count = self._chance.randint(1, DAYS - 1)
            aim, pause = f"after {count} days", self._chance.uniform(0, 0.05)
            code = self._run(lambda: len(self._runs() - runs) >= count, pause)
            self._usual = time.monotonic() - began
        else:
            pause = self._chance.uniform(0.1, 1.1) * self._usual
            aim, code = f"after {pause:.1f} s", self._run(lambda: True, pause)
        faults = [] if code in (*_GOOD, -signal.SIGKILL) else [f"ended with {code}: {self.said()}"]
        if not before.keys() <= self._backfills.read().published.keys():
            faults.append("days that were published are so no more")
        return Round(aim, code == -signal.SIGKILL, len(self._runs() - runs), faults + list(self._faults()))

    def whole(self) -> None:
        """An undisturbed run, after which each day has the findings of what is sealed for it now."""
        code = self._run(None)
        assert code in _GOOD, self.said()
        published = self._backfills.read().published
        assert {day: one.made.inputs[day] for day, one in published.items()} == self._latest
        assert not list(self._faults())
        known = {self._backfills.folder / f"dt={day}" / f"{one.run}.jsonl.gz" for day, one in published.items()}
        lying = {path for path in self._backfills.folder.glob("dt=*/*") if path.suffix == ".gz"}
        assert lying == known, "nothing that counts no more is left behind"

    def again(self) -> None:
        """One more run, which has nothing to do."""
        before = self._backfills.file.read_bytes()
        code = self._run(None)
        assert code == 0, self.said()
        assert self._backfills.file.read_bytes() == before

    def said(self) -> str:
        """The end of what the backfills have said."""
        return self._log.read_text(errors="replace")[-3000:]

    def _seal(self) -> None:
        """Publish new versions of all days, with bursts of their own."""
        self._round += 1
        past = Past(day_before(datetime.now(UTC), DAYS), DAYS, 2_000, users=300, bursts=5, seed=self._round)
        truth = expected(past)
        for day, version in zip(past.dates, seal_past(self._settings, self._source, past), strict=True):
            self._latest[day] = version.version
            self._truths[f"{day} {version.version}"] = {key: n for key, n in truth.items() if key[1].date() == day}

    def _runs(self) -> set[str]:
        return {f"{day} {one.run}" for day, one in self._backfills.read().published.items()}

    def _faults(self) -> Iterator[str]:
        """Published days whose findings are not those of the sealed version that they say they are made of."""
        for day, one in self._backfills.read().published.items():
            truth = self._truths[f"{day} {one.made.inputs[day]}"]
            try:
                findings = list(self._backfills.findings(day, one))
            except BrokenFindings as error:
                yield str(error)
                continue
            found = {(each.entity["user_id"], each.window_start): each.score for each in findings}
            if found != truth or len(findings) != one.findings:
                yield f"{day}: {len(found.items() ^ truth.items())} findings differ"

    def _run(self, kill_when: Callable[[], bool] | None, pause: float = 0.0) -> int:
        """Exit code of a backfill; killed as a crash does, with all its children, so long after `kill_when()` holds."""
        command = [sys.executable, str(here().root / "spark_jobs" / "backfill.py"), DETECTOR, "--run-id", "test"]
        environment = job_environment(self._settings, find_java().home)
        begun = time.monotonic()
        self._log.parent.mkdir(parents=True, exist_ok=True)
        with self._log.open("ab") as log:
            process = subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)
        try:
            while process.poll() is None and not (kill_when is not None and kill_when()):
                assert time.monotonic() - begun < patient(_END_SECONDS), (
                    f"still runs after {_END_SECONDS:.0f} s; its log ends:\n{self.said()}"
                )
                time.sleep(_EVERY_SECONDS)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(pause)
            code = process.poll()
            return -signal.SIGKILL if code is None else code
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


@pytest.mark.long
def test_a_backfill_that_is_killed_anywhere_half_publishes_no_day(tmp_path: Path, rounds: int) -> None:
    backfills = Rounds(tmp_path)
    done = [backfills.killed() for _ in range(rounds or 4)]
    assert [fault for one in done for fault in one.faults] == []
    assert any(one.killed for one in done)
    backfills.whole()
    backfills.again()
