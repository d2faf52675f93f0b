from pathlib import Path

import pytest

from tocsin.cli.demo_run import BAD_LINES, EMAIL_USER, EXAMPLES, URGENT_USER, DemoReport
from tocsin.declare.catalog import read_catalog
from tocsin.dev.servers.mail_sink import Mail
from tocsin.ingest.producer import key_reader

FOLDER = Path(__file__).resolve().parents[3] / "examples"
EMAIL = Mail(
    "1", "a@example.com", f"{EMAIL_USER}: 60 (limit 50) - Bursts", "text of\nthe mail", "http://127.0.0.1:1/mail/1"
)
URGENT = Mail(
    "2", "a@example.com", f"[URGENT] {URGENT_USER}: 101+ (limit 100) - Bursts", "text", "http://127.0.0.1:1/mail/2"
)


@pytest.fixture
def told() -> list[str]:
    return []


@pytest.fixture
def report(told: list[str]) -> DemoReport:
    return DemoReport(told.append, told.append, lambda: 42.4)


def test_a_mail_is_shown_as_a_reader_sees_it(report: DemoReport, told: list[str]) -> None:
    report.add_mails([EMAIL])
    report.add_mails([EMAIL])
    assert told == [
        "the first mail, 42 seconds after the start",
        "a mail for a@example.com; with its chart on http://127.0.0.1:1/mail/1",
        "          | Subject: mallory: 60 (limit 50) - Bursts\n          |\n          | text of\n          | the mail",
    ]


def test_a_mail_cannot_act_on_the_terminal(report: DemoReport, told: list[str]) -> None:
    report.add_mails([Mail("1", "a\x1b[2J", "b\x9bm", "c\x1b[2J\nd\x07", "http://127.0.0.1:1/mail/1")])
    assert not any(character in "".join(told) for character in "\x1b\x9b\x07")


def test_it_is_complete_when_both_mails_and_all_bad_lines_are_there(report: DemoReport) -> None:
    report.add_mails([URGENT])
    report.count_quarantined(BAD_LINES)
    assert not report.is_complete
    report.add_mails([URGENT, EMAIL])
    assert report.is_complete
    assert report.faults() == []


def test_what_somebody_else_sends_meanwhile_is_no_fault(report: DemoReport) -> None:
    report.add_mails([URGENT, Mail("3", "", "eve: 75 (limit 50)", "", ""), EMAIL])
    report.count_quarantined(BAD_LINES)
    assert report.is_complete
    assert report.faults() == []


@pytest.mark.parametrize(
    ("mails", "quarantined", "fault"),
    [
        ([EMAIL], 8, "0 mails about trudy instead of one urgent message"),
        ([URGENT, EMAIL, EMAIL], 8, "2 mails about mallory instead of one e-mail"),
        ([URGENT, EMAIL, Mail("3", "", f"{URGENT_USER}: 120 (limit 50)", "", "")], 8, "2 mails about trudy"),
        (
            [EMAIL, Mail("3", "", f"{URGENT_USER}: 120 (limit 50)", "", "")],
            8,
            "the mail about trudy is not an urgent",
        ),
        ([URGENT, EMAIL], 7, "7 lines in quarantine instead of 8"),
        ([URGENT, EMAIL], 9, "9 lines in quarantine instead of 8"),
    ],
)
def test_what_was_promised_and_did_not_happen_is_a_fault(
    report: DemoReport, mails: list[Mail], quarantined: int, fault: str
) -> None:
    report.add_mails(mails)
    report.count_quarantined(quarantined)
    assert any(one.startswith(fault) for one in report.faults())


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_example_has_lines_with_keys_and_a_view(name: str) -> None:
    catalog, (source, view) = read_catalog(FOLDER / name), EXAMPLES[name]
    lines = (FOLDER / name / "sample.txt").read_bytes().splitlines()
    assert len(lines) >= 40
    assert all(b"TIME" in line and key_reader(catalog.source(source))(line) for line in lines)
    assert catalog.view(view).stage.runs
