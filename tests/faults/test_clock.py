"""The clock of the machine jumps, ahead and back, while jobs work."""

import glob
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from tests.faults.findings import Differences, Told, expected_notifications
from tests.faults.scene import under_load
from tests.rig.broker import Broker
from tests.rig.installation import Installation
from tests.rig.waiting import await_that
from tocsin.declare.model.names import INDEXER, NOTIFIER
from tocsin.supervise.job_states import Start
from tocsin.supervise.runners.runner import Launch

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]
# The JVM of a Spark job reads the clock in ways of its own, which the library does not all change.
PYTHON_JOBS = (INDEXER, NOTIFIER)
# What their Python runs first: libfaketime 0.9.10 answers EINVAL to `clock_nanosleep`, by which it sleeps.
_SITE = "import select, time\ntime.sleep = lambda seconds: select.select([], [], [], seconds)\n"
LIBRARY = next(iter(glob.glob("/usr/lib/*/faketime/libfaketimeMT.so.1")), "")


class FalseClocks(Installation):
    """Indexer and notifier read the time from a clock that the test sets; all others have the true one."""

    def set_ahead(self, seconds: int) -> None:
        """Let them read a time that is so far from the true one."""
        self._offset.write_text(f"{seconds:+d}\n")

    @property
    def _offset(self) -> Path:
        return self.settings.state / "clock"

    def launch(self, start: Start) -> Launch:
        launch = super().launch(start)
        if start.job not in PYTHON_JOBS:
            return launch
        (self.settings.state / "sitecustomize.py").write_text(_SITE)
        environment = {
            **{**launch.environment, "PYTHONPATH": str(self.settings.state), "LD_PRELOAD": LIBRARY},
            **{"FAKETIME_TIMESTAMP_FILE": str(self._offset), "FAKETIME_NO_CACHE": "1"},
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }
        # `-u` changes nothing, but no server of jobs takes the command: its children have the libraries that it has.
        return replace(launch, command=(launch.command[0], "-u", *launch.command[1:]), environment=environment)


def _more_mails(installation: Installation, before: int) -> bool:
    return len(installation.sink.mails) > before


@pytest.mark.skipif(not LIBRARY, reason="needs libfaketime; run: apt-get install faketime")
def test_a_clock_that_jumps_changes_no_finding_and_keeps_nobody_from_being_told(broker: Broker, tmp_path: Path) -> None:
    with FalseClocks(tmp_path / "clock", broker) as one:
        assert isinstance(one, FalseClocks)
        one.settings.state.mkdir(parents=True)
        one.set_ahead(0)
        with under_load(one) as scene:
            processes = scene.processes()
            for seconds in (3600, 0, -3600, 0):
                one.set_ahead(seconds)
                mails = len(one.sink.mails)
                scene.await_findings()
                await_that(
                    partial(_more_mails, one, mails), 40, lambda: one.log(INDEXER)[-2000:] + one.log(NOTIFIER)[-2000:]
                )
            assert scene.processes() == processes
            verdict = scene.verdict()
        assert verdict.differences == Differences([], [], []), verdict.faults
        told, wanted = Told.of(one).sent, expected_notifications(scene.load.truth.findings())
        # What waits for a few seconds, lest a page follows the mail, does not wait when the clock jumps ahead; and what
        # is then an hour old is late, and in the summary.
        summary = (["delayed"], ["email", "delayed"])
        ways = {kind: ([kind], ["email", kind], ["delayed", kind], *summary) for kind in wanted.values()}
        assert {user: told[user] for user, kind in wanted.items() if told[user] not in ways[kind]} == {}
