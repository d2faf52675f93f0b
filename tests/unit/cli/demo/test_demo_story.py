from datetime import UTC, datetime, timedelta

import pytest

from tocsin.alerts.store.alert_rows import StoredFinding
from tocsin.cli.demo.demo_story import BAD_LINES, MANY, MORE, Story
from tocsin.dev.servers.mailbox import Mail
from tocsin.model.finding import Finding

START = datetime(2026, 1, 1, tzinfo=UTC)
EMAIL = Mail(
    "1", "a@example.com", f"{MANY}: 60 (limit 50) - Bursts", "text of\nthe mail", "http://127.0.0.1:1/#/email/1"
)
URGENT = Mail(
    "2", "a@example.com", f"[URGENT] {MORE}: 101+ (limit 100) - Bursts", "text", "http://127.0.0.1:1/#/email/2"
)


@pytest.fixture
def told() -> list[str]:
    return []


@pytest.fixture
def story(told: list[str]) -> Story:
    return Story(told.append, told.append, lambda: 42.4)


def stored(user: str, score: int, level: str) -> StoredFinding:
    finding = Finding(
        finding_id=user,
        detector="failed_logins",
        version="v",
        entity={"user_id": user},
        window_start=START,
        window_end=START + timedelta(seconds=10),
        level=level,
        score=score,
        limit=100 if level == "urgent" else 50,
    )
    return StoredFinding(finding=finding, first_detected_at=START, alert=1, trajectory=[])


def test_a_finding_is_told_when_it_appears_and_when_it_rises_and_not_again(story: Story, told: list[str]) -> None:
    story.tell_findings([stored(MORE, 51, "email")])
    story.tell_findings([stored(MORE, 70, "email")])
    story.tell_findings([stored(MORE, 101, "urgent"), stored("x\x1b[2J", 51, "email")])
    story.tell_findings([stored(MORE, 120, "urgent")])
    assert told == [
        "a finding: trudy, 51 is above 50, so its level is email",
        "a finding: x\\x1b[2J, 51 is above 50, so its level is email",
        "the finding has risen: trudy, 101 is above 100, so its level is urgent",
    ]


def test_a_mail_is_shown_as_a_reader_sees_it(story: Story, told: list[str]) -> None:
    story.tell_mails([EMAIL])
    story.tell_mails([EMAIL])
    assert told == [
        "the first mail, 42 seconds after the start",
        "a mail for a@example.com; with its chart on http://127.0.0.1:1/#/email/1",
        "          | Subject: mallory: 60 (limit 50) - Bursts\n          |\n          | text of\n          | the mail",
    ]


def test_a_mail_cannot_act_on_the_terminal(story: Story, told: list[str]) -> None:
    story.tell_mails([Mail("1", "a\x1b[2J", "b\x9bm", "c\x1b[2J\nd\x07", "http://127.0.0.1:1/#/email/1")])
    assert not any(character in "".join(told) for character in "\x1b\x9b\x07")


def test_it_is_complete_when_both_mails_and_all_bad_lines_are_there(story: Story) -> None:
    story.tell_mails([URGENT])
    story.tell_quarantined(BAD_LINES)
    assert not story.is_complete
    story.tell_mails([URGENT, EMAIL])
    assert story.is_complete
    assert story.faults() == []


def test_what_somebody_else_sends_meanwhile_is_no_fault(story: Story) -> None:
    story.tell_mails([URGENT, Mail("3", "", "eve: 75 (limit 50)", "", ""), EMAIL])
    story.tell_quarantined(BAD_LINES)
    assert story.is_complete
    assert story.faults() == []


@pytest.mark.parametrize(
    ("mails", "quarantined", "fault"),
    [
        ([EMAIL], 8, "0 mails about trudy instead of one urgent message"),
        ([URGENT, EMAIL, EMAIL], 8, "2 mails about mallory instead of one e-mail"),
        ([URGENT, EMAIL, Mail("3", "", f"{MORE}: 120 (limit 50)", "", "")], 8, "2 mails about trudy"),
        ([EMAIL, Mail("3", "", f"{MORE}: 120 (limit 50)", "", "")], 8, "the mail about trudy is not an urgent message"),
        ([URGENT, EMAIL], 7, "7 lines in quarantine instead of 8"),
        ([URGENT, EMAIL], 9, "9 lines in quarantine instead of 8"),
    ],
)
def test_what_was_promised_and_did_not_happen_is_a_fault(
    story: Story, mails: list[Mail], quarantined: int, fault: str
) -> None:
    story.tell_mails(mails)
    story.tell_quarantined(quarantined)
    assert any(one.startswith(fault) for one in story.faults())
