"""What `tocsin demo` tells: what it sends, and each finding, each quarantined line and each mail as it appears."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from tocsin.alerts.store.alert_rows import StoredFinding
from tocsin.cli.detectors.findings_command import named
from tocsin.cli.output import number
from tocsin.dev.servers.mailbox import Mail
from tocsin.model.printable import printable

MANY, MORE = "mallory", "trudy"
BURSTS = {MANY: 60, MORE: 120}
BAD_LINES = 8
_MARGIN = " " * 10 + "|"


def plan(seconds: float) -> str:
    """What will happen `seconds` from now."""
    return f"""in {seconds:.0f} seconds or a little more:
  {MANY} fails {BURSTS[MANY]} times within one window of ten seconds; above 50, so one e-mail once that has closed
  {MORE} fails {BURSTS[MORE]} times; above 100, so one urgent message at once, and no e-mail after it
  {BAD_LINES} lines arrive that nobody can use; they wait in quarantine"""


def ending(state: str, mails: str) -> str:
    """What is said when all has happened."""
    return f"""all has happened as announced: one e-mail, one urgent message, and nothing twice
the mails are on {mails}
in another terminal, after export TOCSIN_STATE={state}, try:
  tocsin status
  tocsin alerts list
  tocsin send --burst user=eve,n=75
Ctrl-C stops everything"""


@dataclass
class Story:
    """Remembers what was told, so that each thing is told once.

    Attributes:
        say: writes sentences for people, with the time.
        show: writes what people should read, without.
        seconds: since the demo was called.
        mails: those that were told.
        quarantined: how many lines were last seen in quarantine.
    """

    say: Callable[[str], None]
    show: Callable[[str], None]
    seconds: Callable[[], float]
    mails: list[Mail] = field(default_factory=list)
    quarantined: int = 0
    _levels: dict[str, str] = field(default_factory=dict)

    def tell_findings(self, found: Sequence[StoredFinding]) -> None:
        """Tell a finding when it appears and when it reaches a higher level; `found` has the newest window first."""
        for stored in reversed(found):
            finding = stored.finding
            before = self._levels.get(finding.finding_id)
            if before == finding.level:
                continue
            self._levels[finding.finding_id] = finding.level
            what = "a finding" if before is None else "the finding has risen"
            score = f"{number(finding.score)} is above {number(finding.limit)}"
            self.say(f"{what}: {printable(named(finding.entity))}, {score}, so its level is {finding.level}")

    def tell_quarantined(self, count: int) -> None:
        """Tell how many lines wait in quarantine, when these have become more."""
        if count > self.quarantined:
            self.say(f"{count} of the {BAD_LINES} broken lines are in quarantine now, with their reasons")
        self.quarantined = count

    def tell_mails(self, mails: Sequence[Mail]) -> None:
        """Show each new mail as a reader would see it."""
        for mail in mails[len(self.mails) :]:
            if not self.mails:
                self.say(f"the first mail, {self.seconds():.0f} seconds after the start")
            self.mails.append(mail)
            self.say(f"a mail for {printable(mail.to)}; with its chart on {mail.page}")
            self.show("\n".join(_letter(mail)))

    @property
    def is_complete(self) -> bool:
        """Whether all that was promised to come has come; that nothing else comes needs time to show."""
        return self.quarantined >= BAD_LINES and all(self.mails_about(user) for user in (MANY, MORE))

    def mails_about(self, user: str) -> list[Mail]:
        """The mails about one user."""
        return [mail for mail in self.mails if user in mail.subject]

    def faults(self) -> list[str]:
        """What was promised and did not happen as promised; what others send meanwhile is their business."""
        faults = []
        for user, kind in ((MANY, "e-mail"), (MORE, "urgent message")):
            about = self.mails_about(user)
            if len(about) != 1:
                faults.append(f"{len(about)} mails about {user} instead of one {kind}")
            elif is_urgent(about[0]) is not (user == MORE):
                faults.append(f"the mail about {user} is not an {kind}: {about[0].subject}")
        if self.quarantined != BAD_LINES:
            faults.append(f"{self.quarantined} lines in quarantine instead of {BAD_LINES}")
        return faults


def is_urgent(mail: Mail) -> bool:
    """Whether its subject calls a mail urgent."""
    return mail.subject.startswith("[URGENT]")


def _letter(mail: Mail) -> Iterator[str]:
    yield f"{_MARGIN} Subject: {printable(mail.subject)}"
    yield _MARGIN
    for line in mail.text.splitlines():
        yield f"{_MARGIN} {printable(line)}".rstrip()
