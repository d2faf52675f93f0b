"""The pages about alerts, asked for as a browser does: who may do what, and what they say when they may not."""

import asyncio
import hashlib
import hmac
import importlib
import json
import pkgutil
import re
import shutil
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import HTTPException
from starlette.testclient import TestClient

from tests.rig.samples.models import SCORE, TEXT, TRAIN, add_model
from tests.rig.samples.project import copy_project
from tests.unit.alerts.scene import SECOND, finding, index, show
from tocsin.alerts import actions
from tocsin.alerts.actions import Actor
from tocsin.alerts.alert_states import Verdict, end_quietly
from tocsin.alerts.evidence.alert_evidence import (
    AlertEvidence,
    SourceEvidence,
    UnusualColumn,
    ValueShare,
    store_evidence,
)
from tocsin.alerts.links import LinkAction, Links
from tocsin.alerts.notify.channel import AlertFacts
from tocsin.alerts.store.alert_rows import AlertDetails
from tocsin.alerts.store.database import Database
from tocsin.declare.blocks.web_settings import WebSettings, WebUser
from tocsin.declare.catalog import read_catalog
from tocsin.declare.model.alert_matcher import AlertMatcher
from tocsin.declare.setting_blocks import TlsSettings
from tocsin.declare.settings import Settings
from tocsin.spark.tables.dated_versions import DatedVersions
from tocsin.views.rest.view_api import OpenViews
from tocsin.web import passwords
from tocsin.web.access import Rights
from tocsin.web.pages import __path__ as all_pages
from tocsin.web.server import application
from tocsin.web.site import Site

NOW = datetime.now(UTC)
EVIL = "<script>alert(1)</script>\u202e\"'&[x]"
PASSWORDS = {"ann": "correct horse", "bob": "battery staple", "eve": "just looking"}
ROLES: Any = {"ann": "operate", "bob": "answer", "eve": "read"}


class Pages:
    """The application of an installation with an alert about `mallory`, one about `trudy` and one about `EVIL`."""

    def __init__(self, settings: Settings) -> None:
        self.settings, self.database = settings, Database(settings.alerts_database)
        self.app = application(settings, OpenViews(settings))
        for score, user in ((60, "mallory"), (130, "trudy"), (99, EVIL)):
            at = NOW - timedelta(minutes=10)
            one = finding(score, user=user, at=at, context={EVIL: EVIL}, evidence=[EVIL])
            index(self.database, [one], now=at + 8 * SECOND)

    def client(self, **headers: str) -> TestClient:
        made = TestClient(self.app, base_url="http://127.0.0.1:8431", follow_redirects=False)
        made.headers.update({"Accept": "text/html"} | headers)
        return made

    def log_in(self, name: str) -> TestClient:
        client = self.client()
        answer = post(client, "/login", "/login", name=name, password=PASSWORDS[name], next="/alerts")
        assert (answer.status_code, answer.headers["location"]) == (303, "/alerts")
        assert answer.headers["set-cookie"].endswith("httponly; samesite=lax")
        return client

    def alert(self, number: int = 1) -> AlertDetails:
        return show(self.database, number)

    def link(self, action: LinkAction, *, alert: int = 1, who: str = "ann@example.com") -> str:
        return Links(self.settings).answer(alert, action, who, NOW)


def csrf(client: TestClient, page: str) -> str:
    """The token of a form on `page`."""
    (token, *_) = re.findall('name="csrf" value="([^"]+)"', client.get(page).text)
    return str(token)


def post(client: TestClient, page: str, to: str, **fields: Any) -> Any:
    """Send the form that is on `page`."""
    return client.post(to, data={"csrf": csrf(client, page)} | fields)


@pytest.fixture(scope="module")
def hashed() -> dict[str, WebUser]:
    return {
        name: WebUser(password=passwords.hash_password(password), role=ROLES[name])
        for name, password in PASSWORDS.items()
    }


@pytest.fixture
def pages(tmp_path: Path, migrated_file: Path, hashed: dict[str, WebUser]) -> Iterator[Pages]:
    copy_project(tmp_path)
    (tmp_path / "secret").write_text("s3cret")
    ops = {"routing_key_file": tmp_path / "key", "webhook_secret_file": tmp_path / "secret"}
    settings = Settings(
        project=tmp_path, state=tmp_path / "state", web=WebSettings(users=hashed), receivers={"pagerduty": {"ops": ops}}
    )
    settings.state.mkdir()
    shutil.copy(migrated_file, settings.state / "alerts.db")
    made = Pages(settings)
    with closing(made.database):
        yield made


def test_nobody_sees_anything_and_is_led_back_after_the_login(pages: Pages) -> None:
    client = pages.client()
    answer = client.get("/alerts?state=all")
    assert (answer.status_code, answer.headers["location"]) == (303, "/login?next=/alerts%3Fstate%3Dall")
    for path in ("/alerts/1", "/jobs", "/silences", "/nothing", "/alerts/events"):
        assert client.get(path, headers={"Accept": "*/*"}).json() == {"detail": "Not authenticated"}
    assert client.post("/alerts/1", data={"action": "acknowledge"}).status_code == 401
    assert client.get("/views", headers={"Accept": "*/*"}).status_code == 401
    assert pages.log_in("eve").get("/views").status_code == 200


@pytest.mark.parametrize("place", ["https://evil.example.com", "//evil.example.com", "/\\evil.example.com"])
def test_a_login_leads_to_no_other_site(pages: Pages, place: str) -> None:
    client = pages.client()
    answer = post(client, "/login", "/login", name="ann", password=PASSWORDS["ann"], next=place)
    assert answer.headers["location"] == "/alerts"


def test_a_wrong_password_is_refused_and_guesses_are_bounded(pages: Pages, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tocsin.web.login.is_password", lambda password, _: password == "right")
    client = pages.client()

    def guess(name: str, password: str) -> int:
        status: int = post(client, "/login", "/login", name=name, password=password).status_code
        return status

    assert [guess("nobody", "right"), guess("ann", "wrong")] == [401, 401], "a name that is not known is not said"
    assert [guess("ann", "wrong") for _ in range(passwords.GUESSES)][-1] == 429
    assert guess("ann", "right") == 429
    assert guess("bob", "right") == 429, "from this address"
    monkeypatch.setattr(passwords, "WINDOW_SECONDS", 0.0)
    assert guess("ann", "right") == 303


def test_of_guesses_that_come_together_no_more_are_looked_at(pages: Pages, monkeypatch: pytest.MonkeyPatch) -> None:
    now: list[int] = []
    most: list[int] = []

    def is_password(*_: str) -> bool:
        now.append(1)
        most.append(len(now))
        time.sleep(0.05)
        now.pop()
        return False

    monkeypatch.setattr("tocsin.web.login.is_password", is_password)
    fields = {"csrf": csrf(pages.client(), "/login"), "name": "ann", "password": "wrong"}
    transport = httpx.ASGITransport(pages.app)

    async def guess() -> list[int]:
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8431") as client:
            answers = await asyncio.gather(*(client.post("/login", data=fields) for _ in range(30)))
            return [answer.status_code for answer in answers]

    assert Counter(asyncio.run(guess())) == {401: passwords.GUESSES, 429: 30 - passwords.GUESSES}
    assert (len(most), max(most)) == (passwords.GUESSES, 2)


def test_a_session_ends_with_the_password_that_began_it(pages: Pages, hashed: dict[str, WebUser]) -> None:
    client = pages.log_in("ann")
    for users, status in ((hashed, 200), (hashed | {"ann": hashed["bob"]}, 303)):
        settings = pages.settings.model_copy(update={"web": WebSettings(users=users)})
        restarted = TestClient(
            application(settings, OpenViews(settings)), base_url="http://127.0.0.1:8431", follow_redirects=False
        )
        restarted.headers.update({"Accept": "text/html", "Cookie": f"tocsin={client.cookies['tocsin']}"})
        assert restarted.get("/alerts").status_code == status


@pytest.mark.parametrize(
    ("web", "secure"),
    [
        ({}, False),
        ({"address": "https://tocsin.example.com"}, True),
        ({"host": "0.0.0.0"}, True),
    ],
)
def test_the_session_is_for_https_alone_where_that_is_spoken(
    pages: Pages, hashed: dict[str, WebUser], web: Any, secure: bool
) -> None:
    tls = TlsSettings(certificate_file=Path("c"), key_file=Path("k")) if "host" in web else TlsSettings()
    settings = pages.settings.model_copy(update={"web": WebSettings(users=hashed, **web), "tls": tls})
    client = TestClient(application(settings, OpenViews(settings)), follow_redirects=False)
    answer = post(client, "/login", "/login", name="ann", password=PASSWORDS["ann"])
    assert ("; secure" in answer.headers["set-cookie"]) == secure


def test_what_is_sent_is_bounded(pages: Pages) -> None:
    for path in ("/login", "/receivers/pagerduty"):
        for content in (b"a=" + b"x" * 300_000, (b"&a=" + b"x" * 10_000 for _ in range(40))):
            client = pages.client(**{"Content-Type": "application/x-www-form-urlencoded"})
            assert client.post(path, content=content).status_code == 413


def test_what_nobody_foresaw_is_said_with_the_headers_of_every_page(
    pages: Pages, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tocsin.web.pages.jobs.count_alerts", lambda database: 1 / 0)
    client = TestClient(pages.app, "http://127.0.0.1:8431", raise_server_exceptions=False)
    client.cookies = pages.log_in("eve").cookies
    answer = client.get("/detectors", headers={"Accept": "text/html"})
    assert (answer.status_code, "ZeroDivisionError" in answer.text) == (500, True)
    assert answer.headers["content-security-policy"].startswith("default-src 'none'")
    assert answer.headers["cache-control"] == "no-store"


@pytest.mark.parametrize("token", ["", "forged", "of another"])
def test_a_form_of_another_site_or_user_does_nothing(pages: Pages, token: str) -> None:
    client = pages.log_in("bob")
    if token == "of another":
        token = csrf(pages.log_in("ann"), "/alerts/1")
    fields = {"csrf": token, "action": "acknowledge", "hours": "4"}
    assert client.post("/alerts/1", data=fields).status_code == 403
    answer = client.post("/login/out", headers={"Sec-Fetch-Site": "cross-site"})
    assert answer.json() == {"detail": "This was sent by a page of another site."}
    assert pages.alert().alert.state == "open"


def test_a_session_ends_with_the_log_out_and_a_forged_one_is_none(pages: Pages) -> None:
    client = pages.log_in("eve")
    cookie = client.cookies["tocsin"]
    assert post(client, "/alerts", "/login/out").status_code == 303
    assert client.get("/alerts").status_code == 303
    for copy in (cookie, f"{cookie[:-4]}AAAA"):
        assert pages.client(Cookie=f"tocsin={copy}").get("/alerts").status_code == 303


def test_every_route_asks_for_a_login_and_every_action_for_a_role(pages: Pages) -> None:
    modules = [importlib.import_module(f"tocsin.web.pages.{one.name}") for one in pkgutil.iter_modules(all_pages)]
    routes = {(route.path, *route.methods) for module in modules for route in module.routes.routes}
    reader, actions = pages.log_in("eve"), 0
    for pattern, method in sorted(routes):
        path = re.sub(r"\{[^}]*\}", "1", pattern)
        if not path.startswith(("/static/", "/answer/", "/receivers/")):
            assert (path, pages.client(Accept="*/*").request(method, path).status_code) == (path, 401)
            if method != "GET":
                actions += 1
                assert (path, post(reader, "/alerts", path).status_code) == (path, 403)
    assert actions == 4
    assert {reader.head(path).status_code for path in ("/alerts", "/static/page.css", "/views", "/login")} == {200}
    assert {method for _, method in routes} == {"GET", "POST"}
    files = ("app.py", "..%2fapp.py", "%2e%2e/app.py", "..%2f..%2f..%2fsettings.py", "/etc/passwd")
    assert {pages.log_in("ann").get(f"/static/{file}").status_code for file in files} == {404}


ACTIONS = [
    ({"action": "acknowledge", "hours": "8", "why": "mine"}, "acknowledged", "acknowledged"),
    ({"action": "resolve", "verdict": "false"}, "resolved", "resolved"),
    ({"action": "silence", "hours": "1", "why": "noisy", "scope": "entity"}, "open", "silenced"),
]


@pytest.mark.parametrize(("fields", "state", "badge"), ACTIONS)
def test_who_may_answer_acts_on_an_alert_and_who_reads_does_not(
    pages: Pages, fields: dict[str, str], state: str, badge: str
) -> None:
    reader = pages.log_in("eve")
    assert "<form method" not in reader.get("/alerts/1").text.partition("<main")[2]
    assert post(reader, "/alerts/1", "/alerts/1", **fields).status_code == 403
    client = pages.log_in("bob")
    assert post(client, "/alerts/1", "/alerts/1", **fields).status_code == 303
    page = client.get("/alerts/1").text
    assert pages.alert().alert.state == state
    assert re.search(rf'class="badge[^"]*">{badge}<', page)
    assert re.search("(Acknowledged|Resolved|Silenced) by bob", page)


def test_the_second_of_two_who_act_is_told_what_the_first_has_done(pages: Pages) -> None:
    client = pages.log_in("bob")
    client.get("/alerts/1")
    with pages.database.write() as connection:
        actions.resolve(connection, [1], Actor("ann", NOW), Verdict.TRUE)
    answer = post(client, "/alerts/1", "/alerts/1", action="acknowledge", hours="4")
    assert (answer.status_code, "Nothing was done: it is resolved by ann (true)" in answer.text) == (409, True)
    bulk = post(client, "/alerts", "/alerts", alert="1", hours="4")
    assert (bulk.status_code, "alert 1: it is resolved by ann" in bulk.text) == (409, True)


@pytest.mark.parametrize(
    ("query", "shown"),
    [
        ("", ["mallory", "trudy", "&lt;script&gt;"]),
        ("level=urgent", ["trudy"]),
        ("entity=ALLO", ["mallory"]),
        ("entity=%25", []),
        ("state=resolved", []),
        ("state=acknowledged", ["trudy"]),
        ("silenced=yes", ["mallory"]),
        ("silenced=no&state=open", ["&lt;script&gt;"]),
        ("detector=none", []),
        ("page=2", []),
    ],
)
def test_the_list_has_what_was_asked_for(pages: Pages, query: str, shown: list[str]) -> None:
    with pages.database.write() as connection:
        actions.silence(
            connection, AlertMatcher(entity={"user_id": ("mall*",)}), Actor("ann", NOW, "why"), in_an_hour()
        )
        actions.acknowledge(connection, [2], Actor("ann", NOW))
    page = pages.log_in("eve").get(f"/alerts?{query}").text
    assert [name for name in ("mallory", "trudy", "&lt;script&gt;") if f">{name}" in page] == shown


def in_an_hour() -> datetime:
    return NOW + timedelta(hours=1)


@pytest.mark.parametrize("number", ["99", "9" * 18, str(2**63), "9" * 5000])
def test_a_number_that_no_alert_or_silence_has_is_not_found(pages: Pages, number: str) -> None:
    client = pages.log_in("ann")
    assert client.get(f"/alerts/{number}").status_code == 404
    for path in (f"/alerts/{number}", f"/silences/{number}/end"):
        assert post(client, "/silences", path, action="resolve", verdict="true").status_code == 404
    many = post(client, "/alerts", "/alerts", alert=number, hours="4")
    assert many.status_code == (303 if len(number) <= 18 else 422)


def test_many_are_acknowledged_at_once_and_the_list_is_as_it_was(pages: Pages) -> None:
    answer = post(pages.log_in("bob"), "/alerts", "/alerts", alert=["1", "2"], hours="24", back="level=email")
    assert (answer.status_code, answer.headers["location"]) == (303, "/alerts?level=email")
    assert [pages.alert(number).alert.state for number in (1, 2, 3)] == ["acknowledged", "acknowledged", "open"]


def test_an_event_is_sent_when_an_alert_or_a_silence_changes(pages: Pages, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tocsin.web.pages.alerts._STREAM_SECONDS", 0.5)
    monkeypatch.setattr("tocsin.web.pages.alerts._LOOK_SECONDS", 0.01)
    monkeypatch.setattr(pages.app.state.site.version, "_seconds", 0.01)
    client = pages.log_in("eve")
    told = [client.get("/alerts/events").text]
    with pages.database.write() as connection:
        actions.acknowledge(connection, [1], Actor("ann", NOW))
    told.append(client.get("/alerts/events").text)
    with pages.database.write() as connection:
        actions.silence(connection, AlertMatcher(detector=("a",)), Actor("ann", NOW, "why"), in_an_hour())
    told.append(client.get("/alerts/events").text)
    assert [text.count("data: ") for text in told] == [1, 1, 1]
    assert len(set(told)) == 3


def test_of_all_who_wait_for_changes_one_asks_the_database(pages: Pages, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tocsin.web.pages.alerts._STREAM_SECONDS", 0.1)
    asked: list[float] = []

    def read_slowly() -> str:
        asked.append(time.monotonic())
        time.sleep(0.3)
        return ""

    monkeypatch.setattr(pages.app.state.site.version, "_get", read_slowly)
    client, begun = pages.log_in("eve"), time.monotonic()
    with ThreadPoolExecutor(10) as threads:
        for answer in threads.map(client.get, ["/alerts/events"] * 20):
            assert answer.text == "retry: 1000\n\n"
    assert (len(asked) <= 2, time.monotonic() - begun < 20 * 0.3) == (True, True)


def test_who_may_not_see_a_detector_sees_and_answers_none_of_its_alerts(
    pages: Pages, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = pages.log_in("ann")
    nothing = Rights(frozenset(), frozenset(), runs=False)
    monkeypatch.setattr("tocsin.web.login.LoginAccess.rights", lambda self, user, dags: nothing)
    assert "No alert fits" in client.get("/alerts?state=all").text
    assert "failed_logins" not in client.get("/alerts").text + client.get("/detectors").text
    assert (client.get("/alerts/1").status_code, client.get("/runbooks/failed_logins").status_code) == (403, 404)
    fields = {"action": "acknowledge", "hours": "4"}
    with pages.database.write() as connection:
        for name in ("failed_*", "other"):
            actions.silence(connection, AlertMatcher(detector=(name,)), Actor("bob", NOW, f"{name} why"), in_an_hour())
    shown = client.get("/silences").text
    assert ("failed_* why" in shown, "other why" in shown) == (False, True)
    for detector, status in (("other", 303), ("failed_*", 403), ("", 403)):
        new = {"detector": detector, "level": "email", "hours": "1", "why": "why"}
        assert post(client, "/silences", "/silences", **new).status_code == status
    assert post(client, "/silences", "/silences/1/end").status_code == 403
    with pages.database.read() as connection:
        assert [one.id for one in actions.list_silences(connection, NOW)] == [1, 2, 3], "none was ended"
    assert post(client, "/silences", "/alerts/1", **fields).status_code == 403
    assert post(client, "/silences", "/alerts", alert="1", hours="4").status_code == 303
    assert pages.alert().alert.state == "open"


def test_what_comes_from_logs_is_text_on_every_page(pages: Pages) -> None:
    client = pages.log_in("ann")
    link = pages.link(LinkAction.ACKNOWLEDGE, alert=3, who=EVIL)
    fields = {"action": "silence", "hours": "1", "why": EVIL}
    assert post(client, "/alerts/3", "/alerts/3", **fields).status_code == 303
    assert "Silenced by ann" in client.get("/alerts/3").text, "its entity is no pattern"
    for path in ("/alerts", "/alerts/3", "/silences", link, "/alerts?entity=" + EVIL, "/login?next=/" + EVIL):
        page = client.get(path).text
        assert "alert(1)" in page or "login" in path
        assert "<script>alert" not in page
        assert "\u202e" not in page
        assert client.get(path).headers["content-security-policy"].startswith("default-src 'none'; script-src 'self';")


def test_a_silence_of_everything_is_asked_back_and_is_on_every_page(pages: Pages) -> None:
    client = pages.log_in("ann")
    for wide in ({"level": "email, urgent"}, {"detector": "**"}, {"owner": "?*"}, {"entity": "user_id=*"}):
        answer = post(pages.log_in("bob"), "/silences", "/silences", hours="1", why="moving", **wide)
        assert (answer.status_code, "Yes, mute every alert" in answer.text) == (422, True)
    fields = {"hours": "1", "why": "moving", "detector": "*"}
    asked = post(client, "/silences", "/silences", **fields)
    assert (asked.status_code, "Yes, mute every alert" in asked.text, 'value="moving"' in asked.text) == (
        422,
        True,
        True,
    )
    refused = post(pages.log_in("bob"), "/silences", "/silences", **fields, everything="yes")
    assert (refused.status_code, "needs the role operate" in refused.text) == (403, True)
    assert post(client, "/silences", "/silences", **fields, everything="yes").status_code == 303
    eve = pages.log_in("eve")
    for path in ("/alerts", "/alerts/1", "/detectors", "/jobs", "/silences"):
        assert "Every alert is muted until" in eve.get(path).text
    assert post(client, "/silences", "/silences/1/end").status_code == 303
    assert "Every alert is muted" not in eve.get("/alerts").text


def test_a_silence_that_mutes_nothing_says_so(pages: Pages) -> None:
    client = pages.log_in("bob")
    assert post(client, "/silences", "/silences", detector="failed_logns", hours="1", why="typed").status_code == 303
    assert "did you mean &#39;failed_logins&#39;?" in client.get("/silences").text


@pytest.mark.parametrize(
    ("fields", "fault"),
    [
        ({"entity": "mallory"}, "Entity: write column=value, not mallory"),
        ({"entity": "=mallory"}, "Entity: write column=value, not =mallory"),
        ({"level": "high"}, "Level: "),
        ({"detector": "a", "hours": "0"}, "0 hours: must be more than 0"),
        ({"detector": "a", "why": " "}, "A silence needs an owner and a reason"),
        ({"detector": "a", "hours": "soon"}, "Could not convert string to float"),
    ],
)
def test_a_silence_that_says_nothing_useful_is_refused_with_the_reason(
    pages: Pages, fields: dict[str, str], fault: str
) -> None:
    answer = post(pages.log_in("bob"), "/silences", "/silences", **({"hours": "1", "why": "because"} | fields))
    assert (answer.status_code, fault in answer.text) == (422, True)


LINKS = [
    (LinkAction.ACKNOWLEDGE, "Acknowledge for 4 hours", "acknowledged", "acknowledged by ann@example.com at"),
    (LinkAction.SILENCE_HOUR, "Silence for 1 hour", "open", "silenced by ann@example.com until"),
    (LinkAction.FALSE_ALARM, "Resolve as a false alarm", "resolved", "resolved by ann@example.com at"),
]


@pytest.mark.parametrize(("action", "button", "state", "already"), LINKS)
def test_a_link_in_a_mail_acts_once_on_its_button_alone_and_without_a_login(
    pages: Pages, action: LinkAction, button: str, state: str, already: str
) -> None:
    client, link = pages.client(), pages.link(action)
    for _ in range(2):
        page = client.get(link)
        assert (page.status_code, button in page.text) == (200, True)
    assert (pages.alert().alert.state, len(pages.alert().history)) == ("open", 1), "a scanner of mails changes nothing"
    assert "Done: " in client.post(link).text
    assert pages.alert().alert.state == state
    before = pages.alert()
    for again in (client.get(link), client.post(link), client.post(pages.link(action, who="bob@example.com"))):
        assert f"already {already}" in again.text
        assert button not in again.text.partition("<main")[2]
    assert pages.alert() == before


def test_a_link_overrides_nobody_who_has_resolved_the_alert(pages: Pages) -> None:
    with pages.database.write() as connection:
        actions.resolve(connection, [1], Actor("bob", NOW), Verdict.TRUE)
    for action in LinkAction:
        assert "already resolved by bob at" in pages.client().post(pages.link(action)).text
    assert pages.alert().alert.verdict == "true"


def test_a_link_of_an_alert_that_has_ended_answers_the_one_in_which_it_goes_on(pages: Pages) -> None:
    index(pages.database, [finding(60, user="mallory", at=NOW + timedelta(hours=1))], now=NOW)
    ended = end_quietly(actions.status_of(pages.alert().alert.model_dump()))
    assert ended is not None
    with pages.database.write() as connection:
        actions.write_changes(connection, {1: ended}, NOW)
    for action in (LinkAction.ACKNOWLEDGE, LinkAction.FALSE_ALARM):
        assert "Done: " in pages.client().post(pages.link(action)).text
    answered = [pages.alert(number).alert for number in (1, 4)]
    assert [(alert.state, alert.verdict) for alert in answered] == [("resolved", "false"), ("acknowledged", "")]


def test_of_two_who_answer_at_once_the_second_waits_and_is_told_what_the_first_has_done(pages: Pages) -> None:
    with ThreadPoolExecutor(1) as threads:
        with pages.database.write() as connection:
            second = threads.submit(pages.client().post, pages.link(LinkAction.SILENCE_HOUR))
            time.sleep(0.3)  # it waits for the lock by now
            matcher = AlertMatcher(detector=("failed_logins",))
            actions.silence(connection, matcher, Actor("bob", datetime.now(UTC), "why"), in_an_hour())
        assert "already silenced by bob until" in second.result().text
    with pages.database.read() as connection:
        assert len(actions.list_silences(connection, NOW)) == 1


def test_an_expired_or_forged_link_says_what_to_do(pages: Pages) -> None:
    old = Links(pages.settings).answer(1, "acknowledge", "ann@example.com", NOW - timedelta(days=8))
    for link, text in ((old, "expired"), (f"{old[:-4]}AAAA", "was not made here")):
        for answer in (pages.client().get(link), pages.client().post(link)):
            assert (answer.status_code, text in answer.text, "og in" in answer.text) == (410, True, True)
    gone = pages.client().post(pages.link(LinkAction.ACKNOWLEDGE, alert=99))
    assert (gone.status_code, "so old that it was removed" in gone.text) == (410, True)


def test_pagerduty_reports_what_was_done_to_an_incident(pages: Pages) -> None:
    details = pages.alert()
    key = AlertFacts.of(details, details.notifications[0], NOW).key
    event = {"event_type": "incident.acknowledged", "data": {"incident_key": key}}
    event["agent"] = {"type": "user_reference", "summary": "Ann"}
    body = json.dumps({"event": event}).encode()
    own = {"X-PagerDuty-Signature": f"v1={hmac.new(b's3cret', body, hashlib.sha256).hexdigest()}"}
    for headers, content, status in (({}, body, 403), (own, b"{}", 403), (own, b"x" * 300_000, 413)):
        assert pages.client(**headers).post("/receivers/pagerduty", content=content).status_code == status
    assert pages.alert().alert.state == "open"
    assert [pages.client(**own).post("/receivers/pagerduty", content=body).status_code for _ in range(2)] == [204, 204]
    alert = pages.alert().alert
    assert (alert.state, alert.acknowledged_by) == ("acknowledged", "Ann")


def test_evidence_of_an_alert_is_on_its_page(pages: Pages) -> None:
    source = SourceEvidence(
        source="logins",
        count=60,
        before=20,
        since=NOW,
        events=[{"event_time": "2026-01-31T12:00:00Z", "ip": "10.0.0.1", "agent": EVIL}],
        unusual=[UnusualColumn(column="ip", difference=1, values=[ValueShare(value="10.0.0.1", share=1, usual=0.25)])],
    )
    with pages.database.write() as connection:
        store_evidence(connection, 1, AlertEvidence(finding_id="f", sources=[source]), NOW)
    page = pages.log_in("eve").get("/alerts/1").text
    assert re.search(r"<td>ip</td><td>10\.0\.0\.1</td>.*100 %</td><td class=\"number\">25 %</td>", page)
    assert "<td>&lt;script&gt;alert(1)" in page


def test_without_its_database_a_page_says_so_and_comes_back_by_itself(
    pages: Pages, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Site] = []
    check = Site._check_database

    def count(site: Site) -> None:
        asked.append(site)
        check(site)

    client = pages.log_in("ann")
    (pages.settings.state / "alerts.db").rename(pages.settings.state / "moved")
    monkeypatch.setattr(Site, "_check_database", count)
    answer = client.get("/alerts")
    assert len(asked) == 1, "the page that says so does not wait for it once more, and with it the event loop"
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "10")
    assert "There is no alerts DB yet" in answer.text
    assert '<meta http-equiv="refresh" content="10">' in answer.text
    assert not (pages.settings.state / "alerts.db").exists(), "looking makes none"
    assert client.get("/jobs").status_code == 200


def test_pages_of_jobs_do_not_each_wait_for_a_database_that_hangs(
    pages: Pages, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, answered = [], threading.Event()

    def hang() -> list[Any]:
        asked.append(1)
        answered.wait(60)
        return []

    monkeypatch.setattr(pages.app.state.site.mutes_all, "_get", hang)
    monkeypatch.setattr("tocsin.web.pages.jobs._PATIENCE_SECONDS", 0.01)
    client = pages.log_in("eve")
    try:
        assert [client.get("/jobs").status_code for _ in range(5)] == [200] * 5
        assert asked == [1]
    finally:
        answered.set()


def test_the_pages_of_jobs_have_those_that_the_user_may_see_and_only_their_logs(
    pages: Pages, monkeypatch: pytest.MonkeyPatch
) -> None:
    pages.settings.log("notifier").parent.mkdir()
    pages.settings.log("notifier").write_text(f"a line\n{EVIL}\n")
    client = pages.log_in("eve")
    assert re.findall('data-job="([^"]+)"', client.get("/jobs?find=LIVE+detector:").text) == ["detector:failed_logins"]
    assert 'data-job="engine:live-1"' in client.get("/job?dag_id=platform").text, "the first unless another is named"
    page = client.get("/job?dag_id=platform&job=notifier&find=SCRIPT").text
    assert ("a line" in page, r"&lt;script&gt;alert(1)&lt;/script&gt;\u202e" in page) == (False, True)
    for job in ("detector:failed_logins", "..%2f..%2falerts.db", "airflow-api-server"):
        assert client.get(f"/job?dag_id=platform&job={job}").status_code == 404
    beside = client.get("/job?dag_id=history__logins").text
    assert "No job belongs to this DAG" in beside
    assert "/job?dag_id=platform&amp;job=ingest%3Alogins" in beside

    def check(self: object, request: object, user: object, *, logs: bool = False) -> None:
        if logs:
            raise HTTPException(403)

    monkeypatch.setattr("tocsin.web.login.LoginAccess.check", check)
    page = client.get("/job?dag_id=platform&job=notifier").text
    assert ("You may not see its log" in page, "a line" in page) == (True, False)
    nothing = Rights(frozenset(["platform"]), frozenset(), runs=False)
    monkeypatch.setattr("tocsin.web.login.LoginAccess.rights", lambda self, user, dags: nothing)
    assert "failed_logins" not in client.get("/jobs").text
    assert "failed_logins" not in client.get("/job?dag_id=history__logins").text


@pytest.mark.parametrize(
    ("paused", "runs", "buttons"),
    [
        (False, True, ["Pause detector", "Restart detector", "Restart ingest"]),
        (True, True, ["Unpause detector", "Restart ingest"]),
        (False, False, ["Pause detector"]),
    ],
)
def test_in_airflow_the_buttons_of_a_job_call_its_api(
    pages: Pages, monkeypatch: pytest.MonkeyPatch, paused: bool, runs: bool, buttons: list[str]
) -> None:
    dag = "detector__failed_logins"
    rights = Rights(frozenset([dag, "platform"]), frozenset([dag, "platform"]), runs=runs)
    monkeypatch.setattr("tocsin.web.login.LoginAccess.rights", lambda self, user, dags: rights)
    monkeypatch.setattr("tocsin.web.login.LoginAccess.switches", lambda self, dags: {dag: paused})
    monkeypatch.setattr("tocsin.web.login.LoginAccess.is_airflow", True)
    page = pages.log_in("bob").get("/jobs?find=logins").text
    found = re.findall(r'<button[^>]*aria-label="(\w+ \w+)', page)
    assert found == buttons
    assert f'data-call="PATCH /../api/v2/dags/{dag}"' in page
    assert f"""data-body='{{"is_paused": {str(not paused).lower()}}}'""" in page
    assert ("""{"action": "restart", "job": "ingest:logins"}""" in page) == runs
    assert f'href="/../dags/{dag}/plugin/job" data-airflow' in page


def test_the_page_of_detectors_has_verdicts_and_a_runbook_is_rendered_without_its_html(pages: Pages) -> None:
    with pages.database.write() as connection:
        for alert, verdict in ((1, "true"), (2, "false")):
            actions.resolve(connection, [alert], Actor("ann", NOW), Verdict(verdict))
    client = pages.log_in("eve")
    assert "50 % true of 2" in client.get("/detectors").text
    runbook = pages.settings.project / "docs" / "runbooks" / "failed_logins.md"
    assert "cannot be read" in client.get("/runbooks/failed_logins").text
    runbook.parent.mkdir(parents=True)
    runbook.write_text(
        "# Look\n\n<script>alert(1)</script> [x](javascript:alert(1))\n\n| a | b |\n|---|---|\n| 1 | 2 |\n"
    )
    page = client.get("/runbooks/failed_logins").text
    assert "<h1>Look</h1>" in page
    assert "<td>2</td>" in page
    assert "<script>alert" not in page
    assert 'href="javascript' not in page
    assert client.get("/runbooks/none").status_code == 404


def test_the_page_of_a_detector_has_its_models_and_why_others_were_refused(
    pages: Pages, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = pages.settings.project
    client = pages.log_in("eve")
    assert "Models</h2>" not in client.get("/job?dag_id=detector__failed_logins").text
    text = TEXT.format(more=", model=Model()", functions=TRAIN + SCORE, window='"1 hour"')
    (project / "detectors" / "made.py").write_text(text)
    monkeypatch.setattr("tocsin.web.page_data._LOOK_SECONDS", 0)
    monkeypatch.setattr("tocsin.web.page_data._USAGE_SECONDS", 0)
    address = "/job?dag_id=detector__made&job=detector:made"
    assert "tocsin model train made" in client.get(address).text
    table = read_catalog(project).table("model.made")
    for number, old in ((1, None), (2, 1234)):
        add_model(pages.settings, table, NOW.date() - timedelta(days=9 - number), 7000 + number, old)
    DatedVersions(pages.settings, table).refuse(NOW.date(), f"drifted {EVIL}", NOW)
    page = client.get(address).text
    cells = re.findall("<td[^>]*>([^<]*)</td>", page.partition("Models</h2>")[2].partition("</section>")[0])
    assert cells[1].startswith("refused: drifted &lt;script&gt;")
    assert [cells[2:][at : at + 5][2:] for at in (0, 5)] == [
        ["7,002", "7,002", "1,234"],
        ["7,001", "7,001", "\N{EN DASH}"],
    ]


def test_without_users_there_is_one_with_a_password_that_was_made(tmp_path: Path, migrated_file: Path) -> None:
    settings = Settings(project=tmp_path, state=tmp_path / "state")
    settings.state.mkdir()
    shutil.copy(migrated_file, settings.state / "alerts.db")
    client = TestClient(application(settings, OpenViews(settings)), base_url="http://127.0.0.1:8431")
    file = settings.state / "web.password"
    assert file.stat().st_mode & 0o777 == 0o600
    answer = post(client, "/login", "/login", name="operator", password=file.read_text().strip())
    assert (answer.status_code, answer.url.path) == (200, "/alerts")
