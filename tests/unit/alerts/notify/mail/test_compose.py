import email
import re
import struct
from datetime import timedelta
from email.message import EmailMessage
from email.policy import default
from html.parser import HTMLParser
from pathlib import Path
from typing import cast

import pytest

from tests.unit.alerts.scene import FACTS, MINUTE, NOON, SECOND, WINDOW, burst, finding, index, show
from tocsin.alerts.evidence.alert_evidence import AlertEvidence, SourceEvidence, UnusualColumn, ValueShare
from tocsin.alerts.links import LinkAction, Links
from tocsin.alerts.notify.channel import AlertFacts, Message, find_by_key
from tocsin.alerts.notify.mail import chart, compose, letter
from tocsin.alerts.notify.mail.chart import draw
from tocsin.alerts.notify.mail.compose import Envelope, Notice
from tocsin.alerts.notify.outbox import Overview
from tocsin.alerts.notify.smtp import as_mail
from tocsin.alerts.store.alert_rows import AlertDetails
from tocsin.alerts.store.database import Database
from tocsin.declare.blocks.web_settings import WebSettings
from tocsin.declare.model.finding import Finding
from tocsin.declare.setting_blocks import SmtpSettings
from tocsin.declare.settings import Settings

HOSTILE = [
    "<script>alert(1)</script>",
    "mallory\r\nBcc: boss@example.com",
    "mallory\nSubject: all is well",
    "\u202egnp.exe\u2066",
    "a\x00b\x1b[31mc\x7f",
    "x" * 1_000_000,
    "=?utf-8?q?=0D=0ABcc:_boss=40example.com?=",
    '"><img src=x onerror=alert(1)>',
    "{{ 7 * 7 }}",
    "\u2028\u2029\ufeff\u200b",
    "M\u00fcller \U0001f600 \u05e9\u05dc\u05d5\u05dd",
    "\u00fc " * 15,
    "",
]


@pytest.fixture(autouse=True)
def picture(monkeypatch: pytest.MonkeyPatch) -> None:
    """No chart: drawing takes longer than all the rest of a mail."""
    monkeypatch.setattr(chart, "draw", lambda _: b"\x89PNG\r\n\x1a\n")


HOUR = timedelta(hours=1)


def details_of(database: Database, findings: list[Finding]) -> AlertDetails:
    index(database, findings)
    return show(database)


def envelope(after: timedelta = MINUTE, links: Links | None = None) -> Envelope:
    return Envelope(
        recipient="security@example.com",
        message_id="<1@tocsin.example.com>",
        date=NOON + after,
        links=links,
    )


def sent(message: Message) -> EmailMessage:
    """The mail as its receiver parses it."""
    mail = as_mail(message, SmtpSettings(sender="tocsin@tocsin.example.com"))
    return email.message_from_bytes(mail.as_bytes(), policy=default)


def alert_mail(details: AlertDetails, *, incomplete: str = "", after: timedelta = MINUTE) -> EmailMessage:
    notification = details.notifications[0].model_copy(update={"incomplete": incomplete})
    return sent(compose.alert_mail(details, notification, envelope(after)))


def parts(mail: EmailMessage) -> tuple[str, str, bytes]:
    """Text, HTML and picture, from where they belong."""
    assert mail.get_content_type() == "multipart/alternative"
    text, related = cast(list[EmailMessage], list(mail.iter_parts()))
    assert (text.get_content_type(), related.get_content_type()) == ("text/plain", "multipart/related")
    html, picture = cast(list[EmailMessage], list(related.iter_parts()))
    assert (html.get_content_type(), picture.get_content_type()) == ("text/html", "image/png")
    assert f'src="cid:{str(picture["Content-ID"]).strip("<>")}"' in html.get_content()
    return text.get_content(), html.get_content(), picture.get_content()


class _Page(HTMLParser):
    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[str] = []
        self.words = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [name for name, _ in attrs]

    def handle_data(self, data: str) -> None:
        self.words += data


FACTS_TOLD = [
    "mallory",
    "Bursts of failed logins by one user",
    "120",
    "100",
    "2026-11-21 12:00:00 to 12:00:10 UTC (10 s)",
    "2026-11-21 12:00:00 UTC",
    "security@example.com",
    "docs/runbooks/failed_logins.md",
    "203.0.113.7",
    "addresses",
    "17",
    "tocsin alerts",
    "failed_logins",
]


def test_text_and_html_each_carry_the_whole_decision_beside_the_chart(
    sqlite: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chart, "draw", draw)
    known = finding(120, evidence=[{"ip_address": "203.0.113.7"}], context={"addresses": 17})
    mail = alert_mail(details_of(sqlite, [known]))
    text, html, png = parts(mail)
    assert pixels(png) == (900, 450)
    for one in FACTS_TOLD:
        assert one in text, one
        assert one in _Page(html).words, one


def test_the_headers_of_an_urgent_mail_and_of_one_that_is_not_important(sqlite: Database) -> None:
    details = details_of(sqlite, burst(120))
    mail = alert_mail(details)
    assert mail["Subject"] == "[URGENT] mallory: 120 (limit 100) - Bursts of failed logins by one user"
    assert mail["From"] == "Tocsin <tocsin@tocsin.example.com>"
    assert (mail["To"], mail["Message-ID"]) == ("security@example.com", "<1@tocsin.example.com>")
    assert mail["Auto-Submitted"] == "auto-generated"
    assert mail["List-Id"] == "<failed_logins.tocsin.tocsin.example.com>"
    assert (mail["X-Priority"], mail["Importance"]) == ("1 (Highest)", "high")
    assert mail["Date"].datetime == NOON + MINUTE
    assert mail["References"] == mail["In-Reply-To"] != mail["Message-ID"]
    email = alert_mail(details_of(sqlite, burst(60, user="trent")))
    assert email["Subject"] == "trent: 60 (limit 50) - Bursts of failed logins by one user"
    assert (email["X-Priority"], email["Importance"]) == (None, None)


def test_all_mails_of_one_alert_are_one_thread(sqlite: Database) -> None:
    first = alert_mail(details_of(sqlite, burst(60)))
    escalated = alert_mail(details_of(sqlite, burst(120, at=NOON + WINDOW)))
    other = alert_mail(details_of(sqlite, burst(60, user="trent")))
    assert first["References"] == escalated["References"] != other["References"]


def test_a_window_that_is_still_open_gives_a_lower_bound(sqlite: Database) -> None:
    details = details_of(sqlite, burst(105))
    early = alert_mail(details, after=8 * SECOND)
    assert "105+ (limit 100)" in early["Subject"]
    assert "at least 105" in parts(early)[0]
    assert "still open" in parts(early)[0]
    assert "105 (limit 100)" in alert_mail(details, after=11 * SECOND)["Subject"]


def test_a_mail_that_may_be_incomplete_says_so_and_why(sqlite: Database) -> None:
    text, html, _ = parts(alert_mail(details_of(sqlite, burst(60)), incomplete="the detector's job has not reported"))
    assert "May be incomplete: the detector's job has not reported" in text
    assert "May be incomplete: the detector's job has not reported" in _Page(html).words


def test_a_mail_shows_events_what_is_unusual_about_them_or_why_there_are_none(sqlite: Database) -> None:
    details, samples = (
        details_of(sqlite, burst(60)),
        [{"event_time": "2026-11-21T12:00:01.250+00:00", "ip": "203.0.113.7"}],
    )
    column = UnusualColumn(column="ip", difference=0.9, values=[ValueShare(value="203.0.113.7", share=0.9, usual=None)])
    usual = column.model_copy(update={"values": [ValueShare(value="203.0.113.7", share=0.9, usual=0.1)]})
    one = SourceEvidence(source="logins", count=60, events=samples, before=40, since=NOON - MINUTE, unusual=[usual])
    told = {
        "Latest 1 of 60 events of logins": one,
        "12:00:01.25": one,
        "203.0.113.7": one,
        "90 %, usually 10 %": one,
        "usually: of the 40 before it, from 2026-11-21 11:59:00 UTC on": one,
        "Latest 1 event before the window of logins": one.model_copy(update={"count": 0}),
        "Most frequent values": one.model_copy(update={"unusual": [column]}),
        "The same in all: app web.": one.model_copy(update={"events": [{"ip": n, "app": "web"} for n in "12"]}),
        "2026-11-21 (UTC)": one,
        "2026-11-20 23:59:59.5": one.model_copy(
            update={"events": [{"event_time": "2026-11-20T23:59:59.500+00:00"}, *samples]}
        ),
        "The same in all: a 1.": one.model_copy(update={"events": [{"ip": n, "a": 1, "none": None} for n in "12"]}),
        "no column x": one.model_copy(update={"events": [], "note": "no column x"}),
    }
    for words, source in told.items():
        evidence = AlertEvidence(finding_id="x", sources=[source])
        text, html, _ = parts(alert_mail(details.model_copy(update={"evidence": evidence})))
        assert words in text
        assert words in _Page(html).words.replace("\xa0", " ")
    nothing = AlertEvidence(finding_id="x", note="Kafka is away")
    text, html, _ = parts(alert_mail(details.model_copy(update={"evidence": nothing})))
    assert "No events shown: Kafka is away" in text
    assert "No events shown: Kafka is away" in html


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_name_stays_text_in_one_line(sqlite: Database, name: str) -> None:
    hostile = finding(120, user=name, evidence=[name, {name: name}], context={name[:100] or "x": name})
    share = ValueShare(value=name, share=1, usual=0)
    source = SourceEvidence(
        source=name, count=1, events=[{"event_time": name, name: name, "a": None}, {}], note=name, since=NOON,
        unusual=[UnusualColumn(column=name, difference=1, values=[share])],
    )  # fmt: skip
    evidence = AlertEvidence(finding_id="x", sources=[source], note=name)
    mail = alert_mail(details_of(sqlite, [hostile]).model_copy(update={"evidence": evidence}))
    expected_headers = {
        "From", "To", "Subject", "Date", "Message-ID", "Auto-Submitted", "References", "In-Reply-To", "List-Id",
        "Importance", "X-Priority", "MIME-Version", "Content-Type",
    }  # fmt: skip
    assert set(mail.keys()) == expected_headers
    assert all(len(mail.get_all(header, [])) == 1 for header in expected_headers)
    assert len(mail["Subject"]) < 250
    assert "\u00fc" not in name or letter.plain(name, 60) in mail["Subject"]
    text, html, _ = parts(mail)
    page = _Page(html)
    assert "script" not in page.tags
    assert page.tags.count("img") == 1
    assert not [attribute for attribute in page.attributes if attribute.startswith("on")]
    for shown in (mail["Subject"], re.sub(r"\r?\n", "", text), re.sub(r"\r?\n", "", page.words)):
        assert not re.search(r"[\x00-\x1f\x7f\u200b\u202a-\u202e\u2028\u2029\u2066-\u2069\ufeff]", shown)
    assert len(mail.as_bytes()) < 150_000
    assert all(len(line) <= 998 for line in mail.as_bytes().splitlines())


def test_a_readable_name_is_shown_as_it_is() -> None:
    assert letter.plain("M\u00fcller \U0001f600 O'Neil <x>") == "M\u00fcller \U0001f600 O'Neil <x>"
    assert letter.plain("a\tb\u202e") == "a\\tb\\u202e"
    assert letter.plain("x" * 300, 10) == "xxxxxxxxxx… (300 characters)"
    assert letter.named({"path": "x" * 300, "service": "web"}, 20) == "path=xxxxxxxxxx…, service=web"


@pytest.mark.parametrize("runbook", ["javascript:alert(1)", "docs/runbooks/x.md"])
def test_only_web_addresses_become_links(sqlite: Database, runbook: str) -> None:
    details = details_of(sqlite, burst(60))
    hostile = details.model_copy(update={"alert": details.alert.model_copy(update={"runbook": runbook})})
    _, html, _ = parts(alert_mail(hostile))
    assert "href" not in _Page(html).attributes


def test_a_mail_names_false_positives_and_the_entities_that_share_the_alert(sqlite: Database) -> None:
    details = details_of(sqlite, burst(60))
    assert "false positives" not in "".join(str(part) for part in parts(alert_mail(details))).lower()
    other = details.highest.finding.model_copy(update={"finding_id": "x", "entity": {"user_id": "trent"}})
    shared = details.model_copy(
        update={
            "alert": details.alert.model_copy(update={"false_positives": "A <scanner> of ours."}),
            "findings": [*details.findings, details.highest.model_copy(update={"finding": other})],
        }
    )
    text, html, _ = parts(alert_mail(shared))
    assert "false positives A <scanner> of ours." in text.replace("\r", "")
    assert "A &lt;scanner&gt; of ours." in html
    assert ", trent" in text.split("Other windows")[1]


def test_dark_mode_and_phones_are_served_and_nothing_is_loaded_from_elsewhere(sqlite: Database) -> None:
    _, html, _ = parts(alert_mail(details_of(sqlite, burst(60))))
    assert "prefers-color-scheme: dark" in html
    assert "max-width: 480px" in html
    assert "http" not in html
    assert re.search(r'class="headline"[^>]* style="[^"]*font-size: 26px', html)


@pytest.mark.parametrize("can_sign", [True, False])
def test_text_and_html_lead_to_the_pages_and_the_answers(sqlite: Database, tmp_path: Path, can_sign: bool) -> None:
    if not can_sign:
        (tmp_path / "web.secret").mkdir()
    web = WebSettings(address="https://tocsin.example.com")
    links = Links(Settings(project=tmp_path, state=tmp_path, web=web))
    details = details_of(sqlite, burst(120))
    guide = {"references": ("T1110.001",), "tags": ("account-takeover",)}
    details = details.model_copy(update={"alert": details.alert.model_copy(update=guide)})
    text, html, _ = parts(sent(compose.alert_mail(details, details.notifications[0], envelope(links=links))))
    found = [links.alert(1), links.runbook("failed_logins"), "https://attack.mitre.org/techniques/T1110/001/"]
    if can_sign:
        found += [links.answer(1, action, "security@example.com", NOON + MINUTE) for action in LinkAction]
    for address in found:
        assert address in text
        assert f'href="{address}"' in html
    assert html.count("height: 44px") >= len(found) - 2
    assert ("/answer/" in text) is can_sign
    assert "account-takeover" in text
    facts = compose.alert_mail(details, details.notifications[0], envelope(links=links)).facts
    assert facts is not None
    assert set(found) - {"https://attack.mitre.org/techniques/T1110/001/"} <= set(facts.links.values())


def pixels(png: bytes) -> tuple[int, int]:
    assert png.startswith(b"\x89PNG\r\n\x1a\n")
    width, height = struct.unpack(">II", png[16:24])
    return width, height


@pytest.mark.parametrize(
    "findings",
    [
        burst(120),
        burst(60) + burst(120, at=NOON + 2 * WINDOW),
        [one for minute in range(60) for one in burst(55, at=NOON + minute * MINUTE)],
        [finding(60, window_start=None, window_end=None, event_time_max=NOON)],
        [finding(51)],
        [finding(10**12)],
        [finding(120, event_time_max=None)],
    ],
)
def test_the_chart_is_a_small_png_for_one_window_for_many_and_for_none(
    sqlite: Database, findings: list[Finding]
) -> None:
    png = draw(details_of(sqlite, findings))
    assert pixels(png) == (900, 450)
    assert len(png) < 100_000


def test_the_chart_shows_what_the_entity_scored_in_earlier_alerts(sqlite: Database) -> None:
    details_of(sqlite, burst(60))
    details_of(sqlite, burst(70, user="trent"))
    details_of(sqlite, burst(80, at=NOON + 2 * HOUR))
    last = details_of(sqlite, burst(90, at=NOON + 4 * HOUR))
    assert [(earlier.moment, earlier.score) for earlier in last.earlier] == [(NOON, 60), (NOON + 2 * HOUR, 80)]
    assert draw(last) != draw(last.model_copy(update={"earlier": last.earlier[1:]}))


def test_the_chart_shows_the_rise_of_the_score(sqlite: Database) -> None:
    """The same windows with other trajectories give other pictures."""
    low, high = details_of(sqlite, burst(60, user="trent")), details_of(sqlite, burst(120))
    same = low.model_copy(update={"alert": high.alert, "findings": high.findings, "highest": high.highest})
    assert draw(same) == draw(high) != draw(low)


def test_a_summary_lists_what_was_found_late(sqlite: Database) -> None:
    alerts = [details_of(sqlite, [finding(120, user=f"user{n}")]) for n in range(compose.SUMMARY_LINES)]
    overview = Overview(alerts=6_000, urgent=60, detectors=[FACTS.name], highest=[], summary=True)
    mail = sent(compose.summary_mail(alerts, overview, envelope()))
    text_part, html_part = cast(list[EmailMessage], list(mail.iter_parts()))
    assert mail["Subject"] == "[summary] 6,000 alerts of failed_logins"
    for words in (text_part.get_content(), _Page(html_part.get_content()).words):
        assert "user0" in words
        assert "user49" in words
        assert "and 5,950 more: tocsin alerts --detector failed_logins --limit 6000" in words
        assert "urgent of failed_logins: Bursts of failed logins" in words
    assert FACTS.title[:20] in text_part.get_content()


@pytest.mark.parametrize("hostile", HOSTILE)
def test_a_hostile_reason_in_a_notice_stays_text_in_one_line(hostile: str) -> None:
    told = Notice(
        subject=f"[tocsin] {hostile}", paragraphs=(hostile, "one", "two"), commands=(hostile,),
        output=(hostile, "the end"), output_of="The end of its log", days=[(("logins", hostile), "http://airflow/report")],
    )  # fmt: skip
    mail = sent(compose.notice_mail(told, envelope()))
    assert mail["Bcc"] is None
    text_part, html_part = cast(list[EmailMessage], list(mail.iter_parts()))
    page = _Page(html_part.get_content())
    assert {"script", "img"}.isdisjoint(page.tags)
    for shown in (
        str(mail["Subject"]),
        re.sub(r"\r?\n", "", text_part.get_content()),
        re.sub(r"\r?\n", "", page.words),
    ):
        assert not re.search(r"[\x00-\x1f\x7f\u200b\u202a-\u202e\u2028\u2029\u2066-\u2069\ufeff]", shown)
    assert "the end" in page.words
    assert "one\r\n\r\ntwo\r\n\r\n- logins" in text_part.get_content()
    assert "http://airflow/report" in text_part.get_content()


def test_a_message_carries_the_facts_of_its_alert_and_its_key_leads_back(database: Database) -> None:
    details = details_of(database, [finding(120, evidence=[{"ip": "10.0.0.1"}], context={"hosts": 3})])
    at_once = compose.alert_mail(details, details.notifications[0], envelope(SECOND)).facts
    later = compose.return_mail(details, details.notifications[0].model_copy(update={"kind": "returned"}), envelope())
    assert at_once is not None
    assert later.facts is not None
    assert (at_once.happened, later.facts.happened) == ("opened", "returned")
    assert (at_once.detector, at_once.entity, at_once.owner) == ("failed_logins", {"user_id": "mallory"}, FACTS.owner)
    assert (at_once.score, at_once.at_least, at_once.is_window_open, at_once.limit) == (120, True, True, 100)
    assert (later.facts.at_least, later.facts.window_end) == (False, NOON + WINDOW)
    assert (at_once.evidence, at_once.context) == ([{"ip": "10.0.0.1"}], {"hosts": 3})
    assert AlertFacts.model_validate_json(at_once.model_dump_json()) == at_once
    assert at_once.key == later.facts.key
    with database.read() as connection:
        keys = (at_once.key, at_once.key[:-1] + "x", "7" + at_once.key, "x", "", "9" * 30 + "-1", "\u00b2-1")
        assert [find_by_key(connection, key) for key in keys] == [details.alert.id, *[None] * 6]


def test_an_email_that_becomes_urgent_is_raised_and_one_that_returns_is_opened_again(database: Database) -> None:
    details = details_of(database, [finding(60)])
    (first,) = details.notifications
    urgent = first.model_copy(update={"kind": "urgent", "revision": 3})
    steps = [("email", "sent", "raised"), ("email", "replaced", "opened"), ("returned", "sent", "opened")]
    for kind, state, happened in steps:
        before = [
            first.model_copy(update={"state": "sent"}),
            first.model_copy(update={"kind": kind, "revision": 2, "state": state}),
        ]
        before = before[1:] if state == "replaced" else before
        known = details.model_copy(update={"notifications": [*before, urgent]})
        assert AlertFacts.of(known, urgent, NOON).happened == happened
