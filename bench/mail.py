"""From the end of a window and its lateness to the e-mail about it: all jobs, and a mail server that notes the time."""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from datetime import timedelta

from aiosmtpd.controller import Controller
from aiosmtpd.smtp import SMTP, Envelope, Session

from bench.figures import Goal, Spread, table
from bench.load import WINDOW_MICROS, Login, Sender, Stream
from bench.processes import Program, await_that
from bench.rig import Rig, Site
from tocsin.declare.catalog import read_catalog
from tocsin.declare.model.names import INDEXER, NOTIFIER, detector_job, ingest_job
from tocsin.declare.setting_blocks import SmtpSettings
from tocsin.dev.servers.ports import free_ports
from tocsin.setup.paths import here

_DETECTOR = "failed_logins"
_BURST = 60
_RATES = (20, 0)
_EVERY_SECONDS = 37
"""Bursts fall on all parts of a batch, and each has a window and a message of its own."""


@dataclass
class Mails:
    """An SMTP server: user to the time at which the mail about it was accepted, seconds since the epoch."""

    accepted: dict[str, float] = field(default_factory=dict)

    async def handle_DATA(self, server: SMTP, session: Session, envelope: Envelope) -> str:
        """A mail has come."""
        content = envelope.content or b""
        text = content if isinstance(content, bytes) else content.encode()
        subject = next(line for line in text.decode(errors="replace").splitlines() if line.startswith("Subject:"))
        self.accepted[subject.removeprefix("Subject: ").partition(":")[0]] = time.time()
        return "250 OK"


@dataclass
class Waited:
    """What was measured.

    Attributes:
        after: logins a second beside the bursts to milliseconds from window end and lateness to the mail.
        cores: of ingest and detector, while nothing but one login a second comes in.
    """

    after: dict[int, list[float]] = field(default_factory=dict)
    cores: dict[str, float] = field(default_factory=dict)


def measure(rig: Rig, seconds: float) -> Waited:
    """Bursts of which each calls for an e-mail, in the midst of other logins and alone."""
    waited = Waited()
    text = (here().root / "detectors" / f"{_DETECTOR}.py").read_text(encoding="utf-8")
    (port,) = free_ports(1)
    site = rig.site("mail", {_DETECTOR: text})
    alerts = site.settings.alerts.model_copy(update={"group_interval": timedelta(seconds=1)})
    site = replace(site, settings=site.settings.model_copy(update={"smtp": SmtpSettings(port=port), "alerts": alerts}))
    mails = Mails()
    server = Controller(mails, hostname="127.0.0.1", port=port)
    server.start()
    jobs = (ingest_job(site.source), detector_job(_DETECTOR), INDEXER, NOTIFIER)
    with ExitStack() as stack:
        stack.callback(server.stop)
        programs = {job: stack.enter_context(rig.job(site, job)) for job in jobs}
        await_that(lambda: site.runs(*jobs), 180, "all jobs", *programs.values())
        for rate in _RATES:
            waited.after[rate] = _bursts(rig, site, mails, rate, seconds)
        waited.cores = _cores(rig, site, programs, seconds)
    return waited


def _bursts(rig: Rig, site: Site, mails: Mails, rate: int, seconds: float) -> list[float]:
    """Milliseconds of each burst."""
    lateness = read_catalog(site.settings.project).source(site.source).lateness.total_seconds()
    raw, sender = site.names.raw(site.source), Sender(rig.servers)
    stream = Stream(Sender(rig.servers), raw, rate or 1, as_lines=True, failing=0.0)
    due: dict[str, float] = {}
    if rate:
        stream.start()
    try:
        for number in range(1 + max(1, int(seconds // _EVERY_SECONDS))):
            now = time.time_ns() // 1000
            for one in range(_BURST):
                login = Login(f"burst{rate}-{number}", now + one, True, number % 2)
                sender.send(raw, login, login.as_line(), remember=False)
            sender.flush()
            if number:  # the first finds all jobs cold
                due[login.user] = (login.window + WINDOW_MICROS) / 1e6 + lateness
            time.sleep(_EVERY_SECONDS)
        await_that(lambda: due.keys() <= mails.accepted.keys(), 180, "the mails")
    finally:
        if rate:
            stream.stop()
    return [(mails.accepted[user] - moment) * 1000 for user, moment in due.items()]


def _cores(rig: Rig, site: Site, programs: dict[str, Program], seconds: float) -> dict[str, float]:
    stream = Stream(Sender(rig.servers), site.names.raw(site.source), 1, as_lines=True, failing=0.0)
    stream.start()
    try:
        time.sleep(60)  # the last burst waits no more, and start-up is over
        began, before = time.monotonic(), {job: program.cpu_seconds() for job, program in programs.items()}
        time.sleep(seconds)
        took = time.monotonic() - began
        return {job: (program.cpu_seconds() - before[job]) / took for job, program in programs.items()}
    finally:
        stream.stop()


def report(waited: Waited) -> tuple[str, list[Goal]]:
    """The tables, and the goals."""
    rows, goals = [], []
    for rate, times in waited.after.items():
        spread = Spread.of(times)
        row = {"from": f"window end + lateness to mail, {rate} other logins a second", "p50 ms": spread.p50}
        rows.append(row | {"p95 ms": spread.p95, "max ms": spread.worst, "mails": spread.count})
        goals.append(Goal(f"window end + lateness to mail, {rate}/s, p95", spread.p95 / 1000, 3, " s"))
    used = [{"job at one login a second": job, "% of a core": 100 * cores} for job, cores in waited.cores.items()]
    return f"{table(rows)}\n\n{table(used)}", goals
