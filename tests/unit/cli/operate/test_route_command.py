"""`tocsin alerts route`: what it says, and the test messages that it sends."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.rig.command_line import invoke
from tests.rig.samples.project import copy_project
from tests.rig.web_receiver import WebReceiver, web_receiver
from tests.unit.alerts.scene import NOON, RULES, finding
from tocsin.alerts.recording import record
from tocsin.alerts.store.database import Database

ROUTES = """
[[route]]
match.entity.user_id = "root"
to = "webhook:siem"
continue = true

[[route]]
hours = "08:00-18:00"
to = ["webhook:siem", "webhook:gone"]
"""


@pytest.fixture
def receiver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[WebReceiver]:
    copy_project(tmp_path)
    monkeypatch.setenv("TOCSIN_PROJECT", str(tmp_path))
    with web_receiver() as server, web_receiver() as gone:
        blocks = {"siem": server.url, "gone": gone.url}
        (tmp_path / "secret").write_text("s3cret")
        (tmp_path / "tocsin.toml").write_text("".join(
            f"[receivers.webhook.{name}]\nurl = '{url}'\nsecret_file = '{tmp_path}/secret'\n"
            for name, url in blocks.items()
        ))  # fmt: skip
        (tmp_path / "routes.toml").write_text(ROUTES)
        gone.status = lambda _: 404
        yield server


def call(*words: str, code: int = 0) -> str:
    done = invoke(["alerts", "route", *words])
    assert done.exit_code == code, done.output
    return done.stdout


@pytest.mark.usefixtures("receiver")
def test_each_route_says_why_it_takes_an_alert_or_not() -> None:
    words = ("--detector", "failed_logins", "--entity", "user_id=eve", "--at", "2026-11-27T20:00")
    told = json.loads(call(*words, "--json"))
    assert (told["level"], told["owner"], told["entity"]) == ("urgent", "security@example.com", {"user_id": "eve"})
    assert [(each["route"], each["takes"]) for each in told["tried"]] == [
        ("route 1", False),
        ("route 2", False),
        ("after the last route, if urgent", True),
    ]
    assert told["to"] == [
        {"recipient": "security@example.com", "route": "after the last route, if urgent", "outcome": ""}
    ]
    shown = call(*words, "--level", "email")
    for part in ("takes only user_id root", "but only every day 08:00-18:00 UTC", "security@example.com"):
        assert part in shown


@pytest.mark.usefixtures("receiver")
@pytest.mark.parametrize(
    ("key", "why"),
    [('stage="shadow"', "its stage is shadow"), ('stage="live", notify=False', "it declares notify=False")],
)
def test_a_detector_that_notifies_nobody_says_why(tmp_path: Path, key: str, why: str) -> None:
    file = tmp_path / "detectors" / "failed_logins.py"
    file.write_text(file.read_text().replace('stage="live"', key))
    assert f"failed_logins notifies nobody now: {why}" in call("--detector", "failed_logins")


def test_a_finding_goes_its_way_and_a_test_message_to_each_receiver(tmp_path: Path, receiver: WebReceiver) -> None:
    database = Database(f"sqlite:///{tmp_path}/.tocsin/state/alerts.db")
    database.migrate()
    found = finding(60, user="root")
    with database.write() as connection:
        record(connection, [found], RULES, NOON)
    database.close()
    told = json.loads(call(found.finding_id[:12], "--at", "2026-11-27T09:00", "--send", "--json", code=1))
    assert (told["level"], told["entity"]) == ("email", {"user_id": "root"})
    assert [(to["recipient"], to["route"], to["outcome"][:30]) for to in told["to"]] == [
        ("webhook:siem", "route 1", "sent"),
        ("webhook:gone", "route 2", "refused: 127.0.0.1 answers 404"),
    ]
    (taken,) = receiver.taken
    assert json.loads(taken.body)["subject"].startswith("[test] webhook:siem gets the email alert of failed_logins")


@pytest.mark.usefixtures("receiver")
@pytest.mark.parametrize(
    "words",
    [(), ("ab", "--detector", "failed_logins"), ("--detector", "failed_logins", "--entity", "eve")],
)
def test_what_names_no_alert_is_a_usage_error(words: tuple[str, ...]) -> None:
    call(*words, code=2)


def test_a_finding_that_is_not_there_is_told() -> None:
    assert "no finding has an id that begins so" in str(invoke(["alerts", "route", "0000"]).exception)
