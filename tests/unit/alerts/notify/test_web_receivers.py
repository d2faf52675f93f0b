"""Receivers that are reached over HTTP, each against a real server that answers, refuses, hangs and hangs up."""

import hashlib
import hmac
import json
import logging
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import timedelta
from io import StringIO
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.rig.mail_server import MailServer
from tests.rig.samples.project import copy_project
from tests.rig.web_receiver import DROPS, HANGS, WebReceiver, web_receiver
from tests.unit.alerts.notifier_scene import Scene
from tests.unit.alerts.scene import NOON, RULES, finding, index, show
from tocsin.alerts.actions import Actor, acknowledge
from tocsin.alerts.alert_states import Action
from tocsin.alerts.notify.channel import Channels, Message, Result
from tocsin.alerts.notify.mail import chart, compose
from tocsin.alerts.notify.mail.compose import Envelope
from tocsin.alerts.notify.receivers import messenger, named_target, pagerduty, webhook
from tocsin.alerts.notify.receivers.pagerduty import Answered, WebhookRefused, read_any_webhook, read_webhook
from tocsin.alerts.store import queries
from tocsin.alerts.store.database import Database
from tocsin.alerts.store.queries import AlertFilter
from tocsin.declare.model.errors import ConfigError
from tocsin.declare.setting_blocks import SmtpSettings
from tocsin.declare.settings import Settings, load_settings

# Apprise loads all its services, one of which imports a module that Python will lose.
pytestmark = pytest.mark.filterwarnings("ignore:'imghdr' is deprecated:DeprecationWarning")
ROOT = Path(__file__).parents[4]
KINDS = ("webhook:siem", "pagerduty:ops", "apprise:chat")
SECRET, ROUTING_KEY = "s3cret", "R" * 32
HOSTILE = 'mallory\r\nX-Evil: 1 <script>"\u202e\U0001f600 \u05e9\u05dc\u05d5\u05dd'


@pytest.fixture
def receiver() -> Iterator[WebReceiver]:
    with web_receiver() as server:
        yield server


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chart, "draw", lambda _: b"\x89PNG\r\n\x1a\n")
    monkeypatch.setattr(named_target, "_TIMEOUT", httpx.Timeout(0.3))
    monkeypatch.setattr(messenger, "_SECONDS", 0.3)


@pytest.fixture
def settings(tmp_path: Path, receiver: WebReceiver) -> Settings:
    return installation(tmp_path, receiver.url)


def installation(project: Path, url: str) -> Settings:
    copy_project(project)
    files = {
        "secret": SECRET,
        "routing_key": ROUTING_KEY,
        "chat": url.replace("http", "json") + "/chat?rto=0.3&cto=0.3",
    }
    for name, text in files.items():
        (project / name).write_text(f"{text}\n")
        (project / name).chmod(0o600)
    (project / "tocsin.toml").write_text(
        f"[receivers.webhook.siem]\nurl = '{url}/hook?token=hidden'\nsecret_file = '{project}/secret'\n"
        f"[receivers.pagerduty.ops]\nurl = '{url}/v2/enqueue'\nrouting_key_file = '{project}/routing_key'\n"
        f"webhook_secret_file = '{project}/secret'\n[receivers.apprise.chat]\nurl_file = '{project}/chat'\n"
    )
    return load_settings(project)


def composed(database: Database, recipient: str, **changes: Any) -> Message:
    """The message about an urgent alert."""
    index(database, [finding(120, **changes)])
    details = show(database)
    envelope = Envelope(recipient=recipient, message_id="<1@tocsin.example.com>", date=NOON)
    return compose.alert_mail(details, details.notifications[0], envelope)


def plain(recipient: str) -> Message:
    """A message about no alert."""
    return Message(id="<1@\u00fc\r\n>", recipient=recipient, subject="failed", text="Why.", html="<p>Why.", date=NOON)


@dataclass(frozen=True)
class Answer:
    """What a receiver answers, and what follows."""

    status: int
    result: Result
    header: tuple[str, str] | None = None
    after: float | None = None


ANSWERS = [
    Answer(200, Result.SENT),
    Answer(302, Result.REFUSED, ("Location", "/elsewhere")),
    Answer(400, Result.REFUSED),
    Answer(500, Result.POSTPONED),
    Answer(429, Result.POSTPONED, ("Retry-After", "17"), 17),
    Answer(503, Result.POSTPONED, ("Retry-After", "Fri, 27 Nov 1998 12:00:00 GMT"), 0),
    Answer(408, Result.POSTPONED, ("Retry-After", "soon")),
    Answer(HANGS, Result.FAILED),
    Answer(DROPS, Result.FAILED),
]


@pytest.mark.parametrize("recipient", [*KINDS, "webhook:http"])
@pytest.mark.parametrize("answer", ANSWERS, ids=lambda answer: str(answer.status))
def test_each_answer_says_what_to_do_with_the_message(
    settings: Settings, receiver: WebReceiver, recipient: str, answer: Answer
) -> None:
    recipient = f"webhook:{receiver.url}/hook?token=hidden" if recipient == "webhook:http" else recipient
    receiver.status, receiver.answer_headers = lambda _: answer.status, dict([answer.header] if answer.header else [])
    with Channels(settings) as channels:
        delivery = channels.send(plain(recipient))
    assert "/elsewhere" not in [taken.path for taken in receiver.taken]
    if recipient.startswith("apprise") and answer.result is not Result.SENT:
        assert delivery.result is Result.FAILED
    else:
        assert (delivery.result, delivery.retry_after) == (answer.result, answer.after)
    assert (delivery.reason == "") is (answer.result is Result.SENT)
    assert all(b"failed" in taken.body and b"Why." in taken.body for taken in receiver.taken)
    assert "hidden" not in delivery.reason
    assert delivery.reason.isprintable()


@pytest.mark.parametrize("recipient", KINDS)
def test_a_receiver_that_is_not_there_is_away_or_has_failed(tmp_path: Path, recipient: str) -> None:
    with web_receiver() as gone:
        url = gone.url
    with Channels(installation(tmp_path, url)) as channels:
        delivery = channels.send(plain(recipient))
    assert delivery.result is (Result.FAILED if recipient.startswith("apprise") else Result.AWAY)
    assert delivery.reason


@pytest.mark.parametrize("recipient", KINDS)
@pytest.mark.parametrize("is_there", [True, False])
def test_a_secret_that_cannot_be_read_keeps_the_message_and_says_where(
    settings: Settings, receiver: WebReceiver, recipient: str, is_there: bool
) -> None:
    for name in ("secret", "routing_key", "chat"):
        (settings.project / name).write_text("\n") if is_there else (settings.project / name).unlink()
    with Channels(settings) as channels:
        delivery = channels.send(plain(recipient))
        unknown = channels.send(plain(f"{recipient}x"))
    assert (delivery.result, unknown.result, receiver.taken) == (Result.POSTPONED, Result.REFUSED, [])
    assert f"receivers.{recipient.replace(':', '.')}" in delivery.reason


def test_a_webhook_is_signed_json_of_the_facts(settings: Settings, sqlite: Database, receiver: WebReceiver) -> None:
    evidence = [{"line": "x" * 4000, "said": HOSTILE} for _ in range(10)]
    context = {f"column_{number}": "\u202e" * 1300 for number in range(240)}  # some 1 MB
    message = composed(sqlite, "webhook:siem", user=HOSTILE, evidence=evidence, context=context)
    with Channels(settings) as channels:
        assert channels.send(message).result is Result.SENT
    (taken,) = receiver.taken
    assert "x-evil" not in taken.headers
    assert taken.headers["idempotency-key"] == message.id
    page: dict[str, Any] = {}
    exec((ROOT / "docs/run/alerts.md").read_text().split("```python\n")[1].split("```")[0], page)
    header = taken.headers["x-tocsin-signature"]
    checks = [(SECRET, header, taken.body), ("other", header, taken.body), (SECRET, header, taken.body + b" ")]
    checks.append((SECRET, f"t=1,{header.partition(',')[2]}", taken.body))
    assert [page["is_ours"](*check) for check in checks] == [True, False, False, False]
    content = json.loads(taken.body)
    assert content["alert"]["entity"] == {"user_id": HOSTILE}
    assert (content["alert"]["evidence"], content["alert"]["context"]) == (evidence, context)
    assert (content["id"], content["urgent"], content["alert"]["happened"]) == (message.id, True, "opened")
    assert len(taken.body) > 900_000


def test_pagerduty_gets_one_event_of_the_alert_within_its_limits(
    settings: Settings, sqlite: Database, receiver: WebReceiver
) -> None:
    context = {f"column_{number}": "\u202e" * 1300 for number in range(240)}
    message = composed(sqlite, "pagerduty:ops", user=HOSTILE + "y" * 400, context=context, evidence=[{"a": 1}])
    message = message.model_copy(update={"subject": "\n" * 2000})
    with Channels(settings) as channels:
        assert channels.send(message).result is Result.SENT
    (taken,) = receiver.taken
    assert len(taken.body) < 512_000
    event = json.loads(taken.body)
    assert message.facts is not None
    assert (event["routing_key"], event["event_action"]) == (ROUTING_KEY, "trigger")
    assert (event["dedup_key"], len(event["dedup_key"]) <= 255) == (message.facts.key, True)
    assert (event["payload"]["severity"], len(event["payload"]["summary"])) == ("critical", 1024)
    assert event["payload"]["summary"].isprintable()
    assert event["payload"]["source"].isprintable()
    details = event["payload"]["custom_details"]
    assert (details["cut_for_length"], details["score"]) == (["gathered", "evidence", "context"], 120)
    assert not {"evidence", "context"} & details.keys()


@pytest.mark.parametrize(
    ("happened", "state", "action"),
    [
        (Action.OPENED, "open", "trigger"), (Action.RAISED, "open", "trigger"), (Action.REOPENED, "open", "trigger"),
        (Action.EXPIRED, "open", "trigger"), (Action.ACKNOWLEDGED, "acknowledged", "acknowledge"),
        (Action.RESOLVED, "resolved", "resolve"), (Action.QUIET, "resolved", "resolve"),
        (Action.RETURNED, "open", "resolve"), (Action.OPENED, "resolved", "resolve"),
    ],
)  # fmt: skip
def test_pagerduty_follows_the_alert_by_one_key(sqlite: Database, happened: Action, state: str, action: str) -> None:
    message = composed(sqlite, "pagerduty:ops")
    assert message.facts is not None
    facts = message.facts.model_copy(
        update={"happened": happened, "state": state, "links": {"alert": "https://x.example.com/alerts/1"}}
    )
    event = pagerduty.event_of(message.model_copy(update={"facts": facts}))
    assert (event["event_action"], event["dedup_key"]) == (action, facts.key)
    assert event["client_url"] == "https://x.example.com/alerts/1"
    assert event["links"] == [{"href": "https://x.example.com/alerts/1", "text": "alert"}]


@pytest.mark.parametrize(("alerts", "events", "urgent"), [(2, 2, True), (9, 2, True), (2, 2, False)])
def test_of_a_message_about_several_alerts_each_is_an_incident_that_ends_with_it(
    sqlite: Database, alerts: int, events: int, urgent: bool
) -> None:
    message = composed(sqlite, "pagerduty:ops")
    assert message.facts is not None
    facts = [
        message.facts.model_copy(update={"key": key, "level": level, "entity": {"user_id": user}, "score": score})
        for key, level, user, score in (("a", "urgent", "mallory", 120), ("b", "email", "", 1_234_567))
    ]
    grouped = message.model_copy(update={"facts": None, "several": tuple(facts), "alerts": alerts, "urgent": urgent})
    sent = pagerduty.events_of(grouped)
    assert [(event["dedup_key"], event["payload"]["severity"]) for event in sent[:2]] == [
        ("a", "critical" if urgent else "warning"),
        ("b", "warning"),
    ], "a summary pages nobody"
    assert len(sent) == events
    assert sent[1]["payload"]["summary"].startswith("(empty): at least 1,234,567 (limit 100) - ")
    assert sent[1]["payload"]["source"] == "(empty)"
    assert ["more alerts]" in event["payload"]["summary"] for event in sent] == [alerts > 2, False]
    body = webhook.body_of(grouped)
    assert (body["alert"], body["alerts"]) == (None, alerts)
    assert [each["key"] for each in json.loads(json.dumps(body))["several"]] == ["a", "b"]


def test_apprise_gets_title_text_and_kind(settings: Settings, sqlite: Database, receiver: WebReceiver) -> None:
    message = composed(sqlite, "apprise:chat", user=HOSTILE)
    message = message.model_copy(update={"text": message.text + "x" * 100_000})
    with Channels(settings) as channels:
        assert channels.send(message).result is Result.SENT
    content = json.loads(receiver.taken[0].body)
    assert (content["title"], content["type"]) == (message.subject, "failure")
    assert "failed_logins" in content["message"]
    assert len(content["message"]) < 40_000, "a service refuses what is too long"
    assert receiver.taken[0].path.startswith("/chat")


@pytest.mark.parametrize(
    ("text", "fault"),
    [("json://127.0.0.1:1/a\njson://127.0.0.1:1/b", "must hold one URL"), ("what://x", "must hold one URL")],
)
def test_a_file_of_apprise_holds_one_url_for_its_owner_alone(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, text: str, fault: str
) -> None:
    lines = StringIO()  # of a job: pytest also captures what does not reach the root
    monkeypatch.setattr(logging.getLogger(), "handlers", [logging.StreamHandler(lines)])
    (settings.project / "chat").write_text(text)
    message = plain("apprise:chat")
    with Channels(settings) as channels:
        assert fault in channels.send(message).reason
        (settings.project / "chat").chmod(0o644)
        assert "can be read by others" in channels.send(message).reason
    assert "://" not in lines.getvalue(), "the URL is a secret"


@pytest.mark.parametrize(
    ("lines", "fault"),
    [
        ("[receivers.webhook.a]\nurl = 'http://siem.example.com/x'\nsecret_file = 's'", "must begin with https://"),
        ("[receivers.webhook.a]\nurl = 'https://u:p@siem.example.com'\nsecret_file = 's'", "without a login"),
        ("[receivers.webhook.a]\nurl = 'https://siem.example.com'", "secret_file"),
        (
            "[receivers.webhook]\nurl = 'https://siem.example.com'",
            r"must be a block \[receivers.webhook.url\]",
        ),
        ("[receivers.apprise.a]\nurl = 'json://x'", "url_file"),
        ("[alerts]\nurgent_recipients = ['webhook:http://siem.example.com']", "must begin with https://"),
        ("[alerts]\nurgent_recipients = ['pagerduty:Ops team']", "must be the name of a block"),
        ("[alerts]\nurgent_recipients = ['pagerdty:ops']", "did you mean 'pagerduty'"),
    ],
)
def test_wrong_settings_are_named(tmp_path: Path, lines: str, fault: str) -> None:
    (tmp_path / "tocsin.toml").write_text(lines)
    with pytest.raises(ConfigError, match=fault):
        load_settings(tmp_path)


def event(kind: str = "incident.acknowledged", key: str = "1-x", agent: str | None = "user_reference") -> bytes:
    who = None if agent is None else {"type": agent, "summary": "Ann \u00c4hm"}
    return json.dumps({"event": {"event_type": kind, "agent": who, "data": {"incident_key": key}}}).encode()


def signed(body: bytes, secret: str = SECRET) -> dict[str, str]:
    others = "v1=" + "0" * 64
    own = hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()
    return {"X-PagerDuty-Signature": f"{others},v1={own}"}


@pytest.mark.parametrize(
    ("body", "answers"),
    [
        (event(), [Answered("1-x", "acknowledge", "Ann \u00c4hm")]),
        (event("incident.resolved"), [Answered("1-x", "resolve", "Ann \u00c4hm")]),
        (event("incident.annotated"), []),
        (event("incident.resolved", agent="integration_reference"), []),
        (event("incident.resolved", agent=None), []),
    ],
)
def test_answers_in_pagerduty_are_read(body: bytes, answers: list[Answered]) -> None:
    assert read_webhook(signed(body), body, SECRET) == answers


@pytest.mark.parametrize(
    ("headers", "body", "secret"),
    [
        ({}, event(), SECRET),
        (signed(event(), "other"), event(), SECRET),
        (signed(event()), event("incident.resolved"), SECRET),
        ({"X-PagerDuty-Signature": "v1=\u00e9"}, event(), SECRET),
        (signed(event(), ""), event(), ""),
        (signed(b"[]"), b"[]", SECRET),
        (signed(b'{"event": {"event_type": "incident.resolved", "agent": 7}}'),
         b'{"event": {"event_type": "incident.resolved", "agent": 7}}', SECRET),
        (signed(b"\xff"), b"\xff", SECRET),
    ],
)  # fmt: skip
def test_what_pagerduty_has_not_signed_is_refused(headers: dict[str, str], body: bytes, secret: str) -> None:
    with pytest.raises(WebhookRefused):
        read_webhook(headers, body, secret)


def test_an_answer_in_pagerduty_shows_here(settings: Settings, database: Database) -> None:
    message = composed(database, "pagerduty:ops")
    assert message.facts is not None
    alert, now = message.facts.alert, NOON + timedelta(minutes=1)

    def take(kind: str, key: str) -> list[str]:
        body = event(kind, key)
        with database.write() as connection:
            done = pagerduty.act(connection, read_any_webhook(settings, signed(body), body), now)
        return [one.refused or one.state for one in done]

    assert take("incident.acknowledged", message.facts.key) == ["acknowledged"]
    assert take("incident.resolved", f"{alert}-{'0' * 32}") == []
    assert take("incident.resolved", message.facts.key) == ["resolved"]
    (again,) = take("incident.resolved", message.facts.key)
    assert "it is resolved by Ann \u00c4hm (no verdict) already" in again
    assert [(line.who, line.action, line.why) for line in show(database, alert).history][-2:] == [
        ("Ann \u00c4hm", "acknowledged", "in PagerDuty"),
        ("Ann \u00c4hm", "resolved", "in PagerDuty"),
    ]
    with pytest.raises(WebhookRefused, match="has a webhook_secret_file"):
        read_any_webhook(settings.model_copy(update={"receivers": {}}), signed(event()), event())


def test_an_incident_follows_its_alert_from_the_first_notification_to_the_end(
    settings: Settings, sqlite: Database, server: MailServer, receiver: WebReceiver
) -> None:
    smtp = SmtpSettings(port=server.port, sender="tocsin@tocsin.example.com")
    scene = Scene(sqlite, server, settings.model_copy(update={"smtp": smtp}))
    receiver.status, receiver.answer_headers = lambda _: 429, {"Retry-After": "120"}
    scene.index(120, rules=replace(RULES, paged=("pagerduty:ops",)))
    scene.send()
    scene.send_later(timedelta(seconds=119))
    assert len(receiver.taken) == 1, "it is not tried again before the receiver asks for it"
    receiver.status = lambda _: 202
    scene.send_later(timedelta(seconds=1))
    (alert,) = queries.list_alerts(sqlite, AlertFilter())
    with sqlite.write() as connection:
        acknowledge(
            connection, [alert.id], Actor("ann@example.com", scene.now, "on it"), scene.now + timedelta(minutes=5)
        )
    scene.send()
    scene.now += timedelta(hours=2)
    for _ in range(2):  # the acknowledgement expires; then nothing more was found
        scene.notifier.tidy()
        scene.send()
    events = [json.loads(taken.body) for taken in receiver.taken]
    details = [event["payload"]["custom_details"] for event in events]
    assert [(event["event_action"], own["happened"]) for event, own in zip(events, details, strict=True)] == [
        ("trigger", "opened"),
        ("trigger", "opened"),
        ("acknowledge", "acknowledged"),
        ("trigger", "expired"),
        ("resolve", "quiet"),
    ]
    assert len({event["dedup_key"] for event in events}) == 1
    assert (details[2]["who"], details[2]["why"]) == ("ann@example.com", "on it")
    assert len(server.mails) == 2, "people get no mail of each answer"
