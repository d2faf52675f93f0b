"""Write what `tocsin demo` announces and what happens: each finding, each mail, and the lines in quarantine."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from tocsin.alerts.finding_merging import StoredFinding
from tocsin.declare.model.finding_text import entity_text, number
from tocsin.declare.model.sizes import printable
from tocsin.dev.servers.mail_sink import Mail

EMAIL_USER, URGENT_USER = "mallory", "trudy"
BURSTS = {EMAIL_USER: 60, URGENT_USER: 120}
BAD_LINES = 8
_MARGIN = " " * 10 + "|"


def announcement(seconds: float) -> str:
    """Announce what will happen `seconds` from now."""
    email, urgent = BURSTS[EMAIL_USER], BURSTS[URGENT_USER]
    return f"""in {seconds:.0f} seconds or a little more:
  {EMAIL_USER} fails {email} times within one window of ten seconds; above 50, so one e-mail once that has closed,
    and 30 seconds after the last message of the detector (what comes together leaves together)
  {URGENT_USER} fails {urgent} times; above 100, so one urgent message at once, and no e-mail after it
  {BAD_LINES} unusable lines arrive and go to quarantine"""


def closing_text(state: str, mails: str, pages: str, login: str) -> str:
    """Say that all has happened, and what to try next."""
    return f"""everything happened as announced: one e-mail, one urgent message, no duplicates
the mails are on {mails}
answer the alerts on {pages} ({login}), or by the buttons in the mails
in another terminal, after export TOCSIN_STATE={state}, try:
  tocsin status
  tocsin alerts
  tocsin send --burst user=eve,n=75
Ctrl-C stops everything"""


@dataclass
class DemoReport:
    """The events of the demo so far; each is written once.

    Attributes:
        say: writes a sentence for people, with the time.
        show: writes text as it is, without the time.
        seconds: since the demo was called.
        mails: that were written.
        quarantined: how many lines were in quarantine at the last look.
    """

    say: Callable[[str], None]
    show: Callable[[str], None]
    seconds: Callable[[], float]
    mails: list[Mail] = field(default_factory=list)
    quarantined: int = 0
    _levels: dict[str, str] = field(default_factory=dict)

    def add_findings(self, findings: Sequence[StoredFinding]) -> None:
        """Write each finding when it appears and when it reaches a higher level; `findings` has the newest first."""
        for stored in reversed(findings):
            finding = stored.finding
            before = self._levels.get(finding.finding_id)
            if before == finding.level:
                continue
            self._levels[finding.finding_id] = finding.level
            subject = "a finding" if before is None else "the finding was updated"
            score = f"{number(finding.score)} is above {number(finding.limit)}"
            self.say(f"{subject}: {printable(entity_text(finding.entity))}, {score}, so its level is {finding.level}")

    def count_quarantined(self, count: int) -> None:
        """Write how many lines are in quarantine if they have become more."""
        if count > self.quarantined:
            self.say(f"{count} of the {BAD_LINES} broken lines are in quarantine, with their reasons")
        self.quarantined = count

    def add_mails(self, mails: Sequence[Mail]) -> None:
        """Write each new mail as its reader sees it."""
        for mail in mails[len(self.mails) :]:
            if not self.mails:
                self.say(f"the first mail, {self.seconds():.0f} seconds after the start")
            self.mails.append(mail)
            self.say(f"a mail for {printable(mail.to)}; with its chart on {mail.page}")
            self.show("\n".join(_mail_lines(mail)))

    @property
    def is_complete(self) -> bool:
        """True once all that was announced is there; more than that may still come."""
        return self.quarantined >= BAD_LINES and all(self._mails_about(user) for user in BURSTS)

    def faults(self) -> list[str]:
        """List what did not happen as announced; mails about other users do not count."""
        faults = []
        for user, kind in ((EMAIL_USER, "e-mail"), (URGENT_USER, "urgent message")):
            about = self._mails_about(user)
            if len(about) != 1:
                faults.append(f"{len(about)} mails about {user} instead of one {kind}")
            elif about[0].subject.startswith("[URGENT]") is not (user == URGENT_USER):
                faults.append(f"the mail about {user} is not an {kind}: {about[0].subject}")
        if self.quarantined != BAD_LINES:
            faults.append(f"{self.quarantined} lines in quarantine instead of {BAD_LINES}")
        return faults

    def _mails_about(self, user: str) -> list[Mail]:
        return [mail for mail in self.mails if user in mail.subject]


def _mail_lines(mail: Mail) -> Iterator[str]:
    yield f"{_MARGIN} Subject: {printable(mail.subject)}"
    yield _MARGIN
    for text in mail.text.splitlines():
        yield f"{_MARGIN} {printable(text)}".rstrip()
