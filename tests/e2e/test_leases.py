"""Two machines of one installation: who leads is decided by leases, whatever is cut off or stands still.

Both run on this machine. Each has a state folder, so lock files, of its own; the query's checkpoint is shared.
"""

from __future__ import annotations

import contextlib
import itertools
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.rig.broker import Broker
from tests.rig.checkpoints import Logs
from tests.rig.detect_job import JOB, READY_SECONDS, DetectJob, Topic
from tests.rig.installation import MailSink, jvms_of
from tests.rig.sink_servers import emptied, running
from tests.rig.tcp_proxy import TcpProxy, tcp_proxy
from tests.rig.waiting import await_that, patient, repeated
from tocsin.alerts.store.queries import AlertFilter, list_alerts, open_store
from tocsin.model.job_report import JobReport, JobState
from tocsin.model.names import INDEXER, NOTIFIER
from tocsin.model.view import SinkKind
from tocsin.project.blocks.lease_settings import LeaseSettings
from tocsin.project.setting_blocks import AlertSettings, KafkaSettings, SmtpSettings
from tocsin.runtime.heartbeat import read_beat

LENGTH, SHORT = 20.0, 15.0
PLAIN = (INDEXER, NOTIFIER)


class NoBroker(Broker):
    """A Kafka that is away."""

    def __init__(self) -> None:
        return

    @property
    def kafka(self) -> KafkaSettings:
        return KafkaSettings(bootstrap_servers="127.0.0.1:1")


class Machine(DetectJob):
    """One machine: its detect job, indexer and notifier, and its way to the database."""

    def __init__(self, folder: Path, broker: Broker, address: str, proxy: TcpProxy, **more: Any) -> None:
        super().__init__(folder, broker)
        self.proxy, length = proxy, timedelta(seconds=more.pop("length", LENGTH))
        head, _, tail = address.rpartition(":")
        own = f"{head}:{proxy.port}/{tail.partition('/')[2]}"
        self.settings = self.settings.model_copy(
            update={
                "instance": "prod",
                "kafka": broker.kafka.model_copy(update={"topic_prefix": "leases."}),
                "leases": LeaseSettings(database=own, length=length),
                "alerts": AlertSettings(database=own),
                **more,
            }
        )
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def start_all(self) -> None:
        self.processes[JOB] = self.start()
        for job in PLAIN:
            self.start_plain(job)

    def start_plain(self, job: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "tocsin.alerts", job]
        self.processes[job] = subprocess.Popen(command, env=self._environment(), stdout=self._log, stderr=self._log)
        self._processes.append(self.processes[job])
        return self.processes[job]

    def share_checkpoint_of(self, other: Machine) -> None:
        """Let the query write the checkpoint of `other`, by a link: the locks beside it stay this machine's own."""
        for start in other.settings.checkpoint(JOB).glob("*/start.json"):
            folder = self.settings.checkpoint(JOB) / start.parent.name
            folder.mkdir(parents=True)
            (folder / start.name).write_bytes(start.read_bytes())
            (folder / "query").symlink_to(start.parent / "query")

    def beat(self, job: str, *, beside: bool = False) -> JobReport | None:
        """What the process of `job` that was started last says of itself."""
        beat = read_beat(self.settings.state, job, beside=beside)
        return beat.report if beat is not None and beat.report.pid == self.processes[job].pid else None

    def leads(self, job: str) -> bool:
        report = self.beat(job)
        return report is not None and report.state is JobState.RUNNING

    def awaits_database(self, job: str) -> bool:
        report = self.beat(job, beside=True)
        return report is not None and report.state is JobState.WAITING and "the lease database" in report.reason

    def stands_by(self, job: str) -> bool:
        report = self.beat(job, beside=True)
        return report is not None and report.state is JobState.READY and "leads prod/" in report.reason

    def all_of(self, job: str) -> list[psutil.Process]:
        leader = psutil.Process(self.processes[job].pid)
        return [leader, *jvms_of(leader)]

    def _environment(self) -> dict[str, str]:
        settings = self.settings
        return super()._environment() | {
            "TOCSIN_INSTANCE": settings.instance,
            "TOCSIN_LEASES__DATABASE": settings.leases.database or "",
            "TOCSIN_LEASES__LENGTH": f"{settings.leases.length.total_seconds():g} seconds",
            "TOCSIN_ALERTS__DATABASE": settings.alerts.database or "",
            "TOCSIN_SMTP__PORT": str(settings.smtp.port),
        }


class Pair:
    """Two machines, and the topic that they read."""

    def __init__(self, a: Machine, b: Machine, sink: MailSink, address: str) -> None:
        self.a, self.b, self.sink, self.address = a, b, sink, address
        self.topic: Topic = a.make_topics()
        self.faults = 0

    def load(self) -> contextlib.AbstractContextManager[None]:
        counts, numbers = itertools.cycle((40, 50, 51, 100, 101, 130)), itertools.count()
        run = datetime.now(UTC).timestamp()

        def burst() -> None:
            number = next(numbers)
            self.topic.burst(f"user{run}-{number}", next(counts), partition=number % 2)
            self.topic.tick(datetime.now(UTC))
            self.topic.flush()

        return repeated(burst, 0.5)

    def await_lead(self, machine: Machine, *jobs: str) -> None:
        await_that(lambda: all(map(machine.leads, jobs)), READY_SECONDS, lambda: machine.log.read_text()[-6000:])

    def await_stand_by(self, machine: Machine, *jobs: str) -> None:
        await_that(lambda: all(map(machine.stands_by, jobs)), READY_SECONDS, lambda: machine.log.read_text()[-6000:])

    def check(self) -> None:
        """Findings are exact, the checkpoint has one lineage, and each urgent alert was mailed once."""
        truth = self.topic.truth
        self.a.await_truth(truth)
        logs = Logs.of(self.a.settings.checkpoint(JOB))
        assert logs is not None
        batches = sorted(int(path.name) for path in (logs.query / "commits").iterdir() if path.name.isdigit())
        assert batches == [*range(batches[0], batches[-1] + 1)]
        urgent = {user for (user, _), count in truth.failed.items() if count > 100}
        await_that(lambda: len(set(self._urgent())) >= len(urgent), 60, self._urgent)
        mails = Counter(self._urgent())
        assert len(mails) == len(urgent), "one notification for each alert"
        # One that was accepted when the notifier lost the DB is not marked as sent: it leaves again, as after a crash.
        assert mails.total() <= len(urgent) + self.faults
        store = open_store(self.a.settings.model_copy(update={"alerts": AlertSettings(database=self.address)}))
        try:
            found = [one for one in list_alerts(store, AlertFilter(limit=10_000))]
            assert len([one for one in found if one.level == "urgent"]) == len(urgent)
        finally:
            store.close()

    def _urgent(self) -> list[str]:
        return [mail["Message-ID"] for mail in self.sink.mails if "urgent" in str(mail["Subject"]).lower()]


@pytest.mark.long
def test_a_light_job_goes_from_machine_to_machine(tmp_path: Path) -> None:
    """Kafka is away, which does not concern the notifier."""
    with running(SinkKind.POSTGRES) as server, contextlib.ExitStack() as ends:
        address, machines = emptied(server.address), []
        for name in ("a", "b"):
            (folder := tmp_path / name).mkdir()
            proxy = ends.enter_context(tcp_proxy(server.port))
            machines.append(Machine(folder, NoBroker(), address, proxy, length=SHORT))
            ends.callback(machines[-1].close)
        a, b = machines
        first = a.start_plain(NOTIFIER)
        await_that(lambda: a.leads(NOTIFIER))
        second = b.start_plain(NOTIFIER)
        await_that(lambda: b.stands_by(NOTIFIER))

        a.proxy.cut()
        await_that(lambda: has_ended_before([psutil.Process(first.pid)], b, NOTIFIER))
        assert first.wait() == 1
        await_that(lambda: b.leads(NOTIFIER))

        third = a.start_plain(NOTIFIER)
        await_that(lambda: a.awaits_database(NOTIFIER))
        a.proxy.heal()
        await_that(lambda: a.stands_by(NOTIFIER))

        second.send_signal(signal.SIGSTOP)
        await_that(lambda: a.leads(NOTIFIER))
        second.send_signal(signal.SIGCONT)
        assert second.wait(patient(15)) == 1

        third.kill()
        third.wait()
        begun = time.monotonic()
        a.start_plain(NOTIFIER)
        await_that(lambda: a.leads(NOTIFIER))
        assert time.monotonic() - begun < patient(SHORT), "the lock of its file tells that nobody else is left"


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory, broker: Broker) -> Iterator[Pair]:
    sink = MailSink()
    sink.start()
    smtp = SmtpSettings(port=sink.port)
    with running(SinkKind.POSTGRES) as server, contextlib.ExitStack() as ends:
        address = emptied(server.address)
        machines = []
        for name in ("a", "b"):
            proxy = ends.enter_context(tcp_proxy(server.port))
            machines.append(Machine(tmp_path_factory.mktemp(name), broker, address, proxy, smtp=smtp))
            ends.callback(machines[-1].close)
        a, b = machines
        yield Pair(a, b, sink, address)
    sink.stop()


def has_ended_before(processes: list[psutil.Process], other: Machine, job: str) -> bool:
    """Whether all of `processes` have ended; fails if the `other` machine leads and one has not."""
    leads, left = other.leads(job), [one for one in processes if not is_gone(one)]
    assert not (leads and left), f"both lead {job}: {left}"
    return not left


def is_gone(process: psutil.Process) -> bool:
    return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE


@pytest.mark.long
def test_a_leader_that_is_cut_off_has_ended_before_the_next_one_leads(pair: Pair) -> None:
    a, b = pair.a, pair.b
    a.start_all()
    pair.await_lead(a, JOB, *PLAIN)
    await_that(lambda: a.committed_batches() > 0, READY_SECONDS)
    b.share_checkpoint_of(a)
    with pair.load():
        b.start_all()
        pair.await_stand_by(b, JOB, *PLAIN)
        a.proxy.cut()
        pair.faults += 1
        watched = {job: a.all_of(job) for job in a.processes}
        for job in (*PLAIN, JOB):
            await_that(lambda job=job: has_ended_before(watched[job], b, job), LENGTH * 2)  # type: ignore[misc]
            assert a.processes[job].wait() == 1
        pair.await_lead(b, JOB, *PLAIN)
    pair.check()
    assert "its lease could not be renewed" in a.log.read_text()


@pytest.mark.long
def test_who_comes_back_stands_by(pair: Pair) -> None:
    """While the database is away it says so; then it learns that another one leads."""
    a = pair.a
    a.start_all()
    await_that(lambda: a.awaits_database(JOB))
    a.proxy.heal()
    pair.await_stand_by(a, JOB, *PLAIN)


@pytest.mark.long
def test_a_leader_that_stood_still_commits_nothing_when_it_goes_on(pair: Pair) -> None:
    a, b = pair.a, pair.b
    with pair.load():
        frozen = [one for job in b.processes for one in b.all_of(job)]
        for one in frozen:
            one.suspend()
        pair.faults += 1
        pair.await_lead(a, JOB, *PLAIN)
        for one in frozen:
            one.resume()
        for process in b.processes.values():
            assert process.wait(patient(15)) == 1
        await_that(lambda: all(map(is_gone, frozen)))
    pair.check()


@pytest.mark.long
def test_a_jvm_whose_python_stands_still_ends_by_itself(pair: Pair) -> None:
    """Nobody tells it; it counts the time of the lease itself."""
    a, b = pair.a, pair.b
    b.start_all()
    pair.await_stand_by(b, JOB)
    python, jvm = a.all_of(JOB)
    python.suspend()
    try:
        await_that(lambda: has_ended_before([jvm], b, JOB), LENGTH * 1.5)
        with pair.load():
            pair.await_lead(b, JOB)
    finally:
        python.resume()
    pair.check()
