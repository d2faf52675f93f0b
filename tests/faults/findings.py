"""What the detectors have written, beside what they should have, and who was told."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from confluent_kafka import Message

from bench.tail import Tail
from tests.rig.load import URGENT, Truth, Window, level, rung_below
from tests.rig.observed import DETECT, DETECTOR, INGEST, SOURCE, Observed
from tocsin.alerts.store.queries import AlertFilter, list_alerts, open_store, show_alert
from tocsin.declare.model.finding import Finding, finding_id

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def window_of(finding: Finding) -> Window:
    """User and window start of a finding of failed logins."""
    assert finding.window_start is not None
    return finding.entity["user_id"], (finding.window_start - _EPOCH) // timedelta(microseconds=1)


class Follower(Tail):
    """Reads the findings topic from its beginning in a background thread, inside a `with` block.

    Attributes:
        findings: all records, in the order of reading.
        appended: when each was appended, seconds since the epoch.
    """

    def __init__(self, observed: Observed) -> None:
        self.findings: list[Finding] = []
        self.appended: list[float] = []
        super().__init__(observed.settings.kafka.for_librdkafka(), observed.settings.names.findings)

    def take(self, message: Message) -> None:
        place = (message.topic() or "", message.partition() or 0, message.offset() or 0)
        self.findings.append(Finding.from_record(message.value(), *place))
        self.appended.append(message.timestamp()[1] / 1000)

    def back_at(self, killed_at: float, detector: str = DETECTOR) -> float | None:
        """When the first finding on an event later than `killed_at` was appended; None while there is none."""
        later = _EPOCH + timedelta(seconds=killed_at)
        for finding, appended in zip(self.findings.copy(), self.appended, strict=False):
            mine = finding.detector == detector
            if mine and finding.event_time_max is not None and finding.event_time_max > later:
                return appended
        return None

    def of(self, detector: str = DETECTOR) -> list[Finding]:
        return [finding for finding in self.findings.copy() if finding.detector == detector]

    def windows(self, detector: str = DETECTOR) -> set[Window]:
        return {window_of(finding) for finding in self.of(detector)}


@dataclass(frozen=True)
class Differences:
    """Between the findings and the truth; all empty when they agree.

    Attributes:
        lost: windows without their finding.
        wrong: records that say what is not true, as sentences.
        unfinished: windows whose best record is below what must have been told, as sentences.
    """

    lost: list[Window]
    wrong: list[str]
    unfinished: list[str]

    @classmethod
    def between(cls, truth: Truth, findings: list[Finding]) -> Differences:
        """Compare every record, and the best one of each window."""
        expected = truth.findings()
        best: dict[Window, float] = defaultdict(float)
        for finding in findings:
            best[window_of(finding)] = max(best[window_of(finding)], finding.score)
        return cls(
            lost=sorted(expected.keys() - best.keys()),
            wrong=sorted({fault for finding in findings for fault in _faults(finding, truth)}),
            unfinished=[
                f"{window}: {best[window]:g} of {count}"
                for window, count in expected.items()
                if window in best and best[window] < (count if count <= URGENT else rung_below(count))
            ],
        )


@dataclass(frozen=True)
class Verdict:
    """What was, beside what should have been.

    Attributes:
        differences: of the findings.
        unquarantined: bad lines that are not in quarantine, or good ones that are.
        dropped_late: events that a detector left out as late. No fault by itself: what a crash writes a second time may
            come late, and a late event that was not there before is missing in a score.
        twice: users who were notified of more than once, and ids of mails that arrived twice.
        untold: users of whom nobody was told what should have been.
        findings, notifications: how many there should be.
    """

    differences: Differences
    unquarantined: int
    dropped_late: int
    twice: list[str]
    untold: list[str]
    findings: int
    notifications: int

    @property
    def faults(self) -> list[str]:
        """Everything that is not as it should be, in words."""
        found = [f"lost: {window}" for window in self.differences.lost]
        found += [*self.differences.wrong, *self.differences.unfinished]
        found += [f"{self.unquarantined} lines not exactly in quarantine"] if self.unquarantined else []
        return found + [f"told twice: {who}" for who in self.twice] + [f"not told: {who}" for who in self.untold]


def judge(observed: Observed, truth: Truth, findings: list[Finding]) -> Verdict:
    """Compare everything that was written with `truth`; `findings` of one detector, about which people are told."""
    expected = truth.findings()
    told = Told.of(observed)
    wanted = expected_notifications(expected)
    return Verdict(
        differences=Differences.between(truth, findings),
        unquarantined=_unquarantined(observed, truth),
        dropped_late=sum(_dropped(observed, job) for job in (DETECT, INGEST)),
        twice=told.twice(),
        untold=sorted(user for user, kind in wanted.items() if told.sent.get(user) != [kind]),
        findings=len(expected),
        notifications=len(wanted),
    )


def expected_notifications(expected: dict[Window, int]) -> dict[str, str]:
    """User to the one kind of notification about them: the highest level, once."""
    users: dict[str, int] = defaultdict(int)
    for (user, _), count in expected.items():
        users[user] = max(users[user], count)
    return {user: kind for user, count in users.items() if (kind := level(count)) is not None}


_TOLD = ("sent", "leaving", "pending", "waiting")


@dataclass
class Told:
    """Who was told what.

    Attributes:
        sent: kinds of the notifications in `states`: that left, leave, or wait for their group's next message, by user.
        mails: how often the mail server got each message, by its id.
    """

    sent: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    mails: Counter[str] = field(default_factory=Counter)

    @classmethod
    def of(cls, observed: Observed, states: tuple[str, ...] = _TOLD) -> Told:
        """What the alerts DB knows of the detector that notifies, and the mail server of all."""
        told = cls(mails=Counter(observed.message_ids()))
        store = open_store(observed.settings)
        try:
            for alert in list_alerts(store, AlertFilter(detector=DETECTOR, limit=100_000)):
                details = show_alert(store, alert.id)
                assert details is not None
                kinds = [n.kind for n in details.notifications if n.state in states]
                told.sent[alert.entity["user_id"]] += kinds
        finally:
            store.close()
        return told

    def twice(self) -> list[str]:
        """Users of two notifications, and ids of mails that arrived twice."""
        users = [user for user, kinds in self.sent.items() if len(kinds) > 1]
        return users + [identity for identity, count in self.mails.items() if count > 1]


def _faults(finding: Finding, truth: Truth) -> list[str]:
    """What one record says that is not true."""
    user, start = window_of(finding)
    opened = _EPOCH + timedelta(microseconds=start)
    count = truth.failed[user, start]
    identity = finding_id(finding.detector, {"user_id": user}, opened, opened + timedelta(seconds=10))
    faults = {
        f"has score {finding.score:g} of {count}": finding.score > count,
        f"has level {finding.level} at {finding.score:g}": finding.level != level(finding.score),
        f"has id {finding.finding_id}": finding.finding_id != identity,
    }
    return [f"{user} at {opened:%H:%M:%S} {what}" for what, is_so in faults.items() if is_so]


def _unquarantined(observed: Observed, truth: Truth) -> int:
    names = observed.settings.names
    origins = {(m.partition(), m.offset()) for m in observed.read(names.raw(SOURCE)) if m.value() in truth.bad}
    kept = {(v["origin"]["partition"], v["origin"]["offset"]) for v in observed.values(names.quarantine(SOURCE))}
    return len(origins ^ kept)


def _dropped(observed: Observed, job: str) -> int:
    by_process: dict[int, int] = {}
    for report in observed.reports(job):
        by_process[report.pid] = report.rows_dropped_late
    return sum(by_process.values())
