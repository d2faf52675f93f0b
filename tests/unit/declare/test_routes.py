"""Routes: who gets which alert, when, and which routes are faults."""

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.rig.samples.project import copy_project
from tocsin.declare.catalog import read_catalog
from tocsin.declare.model.alert_matcher import AlertLabels, AlertMatcher
from tocsin.declare.routes import faults_of_routes, parse_routes

ROOT = Path(__file__).parents[3]
FRIDAY = datetime(2026, 11, 27, tzinfo=UTC)
OWNER, PAGED = "ann@example.com", "pager@example.com"
ROUTES = """
[[route]]
name = "copy"
match = { detector = "failed_*" }
to = "siem@example.com"
continue = true

[[route]]
name = "night"
match = { level = "urgent", tags = ["credential", "theft"] }
hours = "22:00-06:00"
days = ["fri", "sat"]
timezone = "Europe/Berlin"
to = ["urgent_recipients", "duty@example.com"]

[[route]]
match = { owner = "ann@*", entity = { user_id = ["root", "svc_*"] } }
to = ["owner", "admins@example.com"]

[[route]]
match = { detector = ["slow_routes"] }
hours = "08:00-17:30"
to = "web@example.com"
"""
ROUTE = "[[route]]\nto = 'owner'\n"
COPY, DUTY, ADMINS, WEB = (f"{name}@example.com" for name in ("siem", "duty", "admins", "web"))


def labels(detector: str = "failed_logins", level: str = "email", user: str = "eve", tag: str = "") -> AlertLabels:
    return AlertLabels(detector, OWNER, level, {"user_id": user}, (tag,) if tag else ())


@pytest.mark.parametrize(
    ("alert", "at", "to"),
    [
        # detector, level, user, tag      UTC      in this order
        (labels("logs"), "Fri 12:00", [OWNER]),
        (labels("logs", "urgent"), "Fri 12:00", [OWNER, PAGED]),
        (labels(), "Fri 12:00", [COPY, OWNER]),
        (labels(level="urgent"), "Fri 12:00", [COPY, OWNER, PAGED]),
        (labels(user="root"), "Fri 12:00", [COPY, OWNER, ADMINS]),
        (labels("logs", user="svc_7"), "Fri 12:00", [OWNER, ADMINS]),
        (labels("logs", user="SVC_7"), "Fri 12:00", [OWNER]),
        (labels("logs", "urgent", tag="theft"), "Fri 20:59", [OWNER, PAGED]),
        (labels("logs", "urgent", tag="theft"), "Fri 21:00", [PAGED, DUTY]),
        (labels("logs", "urgent", tag="theft"), "Sat 04:59", [PAGED, DUTY]),
        (labels("logs", "urgent", tag="theft"), "Sat 05:00", [OWNER, PAGED]),
        (labels("logs", "urgent", tag="theft"), "Sun 04:59", [PAGED, DUTY]),
        (labels("logs", "urgent", tag="theft"), "Sun 21:00", [OWNER, PAGED]),
        (labels("logs", "urgent", tag="theft"), "Fri 04:59", [OWNER, PAGED]),
        (labels("logs", "email", tag="theft"), "Fri 21:00", [OWNER]),
        (labels("logs", "urgent", tag="noise"), "Fri 21:00", [OWNER, PAGED]),
        (labels("slow_routes"), "Sun 08:00", [WEB]),
        (labels("slow_routes"), "Sun 17:30", [OWNER]),
        (labels("slow_routes", user="root"), "Sun 08:00", [OWNER, ADMINS]),
    ],
)
def test_the_first_route_that_takes_an_alert_says_where_it_goes(alert: AlertLabels, at: str, to: list[str]) -> None:
    day, _, clock = at.partition(" ")
    hour, minute = map(int, clock.split(":"))
    now = FRIDAY.replace(day=27 + ("Fri", "Sat", "Sun").index(day), hour=hour, minute=minute)
    routes = parse_routes(ROUTES, Path("routes.toml"))
    assert [target.recipient for target in routes.recipients(alert, now, (PAGED,))] == to


def test_hours_follow_the_clock_of_their_zone() -> None:
    routes = parse_routes(ROUTES, Path("routes.toml"))
    urgent = labels("logs", "urgent", tag="theft")
    summer = datetime(2026, 7, 17, 20, 0, tzinfo=UTC)  # a Friday
    assert [target.recipient for target in routes.recipients(urgent, summer, (PAGED,))] == [PAGED, DUTY]


def test_an_alert_that_names_nobody_goes_to_its_owner() -> None:
    routes = parse_routes('[[route]]\nto = "urgent_recipients"', Path("routes.toml"))
    assert [target.recipient for target in routes.recipients(labels(), FRIDAY)] == [OWNER]


def test_each_route_that_was_tried_says_why() -> None:
    tried = parse_routes(ROUTES, Path("routes.toml")).tried(labels(level="urgent", tag="theft"), FRIDAY)
    assert [(each.route, each.takes, each.why) for each in tried] == [
        ("route 1 (copy)", True, "takes detector failed_*, and continues"),
        ("route 2 (night)", False, "takes level urgent, tags credential or theft, but only fri sat 22:00-06:00 "
         "Europe/Berlin"),
        ("route 3", False, "takes only user_id root or svc_*"),
        ("route 4", False, "takes only detector slow_routes"),
        ("after the last route, if urgent", True, "takes level urgent"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "faults"),
    [
        (ROUTE + "hour = '8'", [":3: route 1, hour: is not a key of it; did you mean 'hours'?"]),
        ("[[route]]\nmatch = {}", [":1: route 1, to: is missing"]),
        ("[[route]]\nto = []", [":2: route 1, to: must not be empty"]),
        (
            ROUTE + "[[route]]\nto = ['owner', 'pager:x']",
            [":4: route 2, to: 'pager' in 'pager:x' is no kind of receiver (", ")"],
        ),
        ("[[route]]\nto = 'anne'", [":2: route 1, to: must be one e-mail address, not 'anne'"]),
        (ROUTE + "hours = '8-18'", [":3: route 1, hours: must be hours such as '08:00-18:00'"]),
        (ROUTE + "hours = '08:00-08:00'", [":3: route 1, hours: is an empty span"]),
        (ROUTE + "timezone = 'Berlin'", [":3: route 1, timezone: 'Berlin' is no time zone"]),
        (ROUTE + "days = ['friday']", [":3: route 1, days: must be 'mon', 'tue'", "did you mean 'fri'?"]),
        (ROUTE + "[route.match]\nlevel = 'high'", [":3: route 1, match.level: must be 'email'"]),
        ("[[route]\n", [": is not TOML"]),
        # what no alert ever finds
        (
            ROUTE + "[[route]]\nto = 'owner'",
            [":3: route 2: never matches: route 1 takes all its alerts before it"],
        ),
        (
            ROUTE + "match.detector = 'failed_*'\n" + ROUTE + "match = { detector = 'failed_log*', level = 'urgent' }",
            [":4: route 2: never matches: route 1 takes all its alerts before it"],
        ),
        (
            ROUTE + "match = { detector = 'failed_logns' }",
            ["route 1, match: never matches: no declared detector has the detector 'failed_logns'; did you mean"],
        ),
        (ROUTE + "match = { tags = 'x' }", [":3: route 1, match: never matches", "the tag 'x'"]),
        (ROUTE + "match = { owner = 'x' }", ["the owner 'x'"]),
        (ROUTE + "match.entity.user = 'x'", ["the entity column 'user'; did you mean 'user_id'?"]),
        ("[[inhibit]]\nwider = {}\nnarrower = { detector = 'x' }", [":3: inhibit 1, narrower: never matches"]),
        ("[[inhibit]]\nwider = {}\nnarrower = {}\nsame = ['x']", [":4: inhibit 1, same: never matches"]),
    ],
)  # fmt: skip
def test_faults_say_where_and_what_to_do(tmp_path: Path, text: str, faults: list[str]) -> None:
    copy_project(tmp_path, "sources", "detectors")
    (tmp_path / "routes.toml").write_text(text)
    broken = read_catalog(tmp_path).broken
    assert broken.keys() == {"routes.toml"}
    assert len(broken["routes.toml"].faults) == 1
    for part in faults:
        assert part in str(broken["routes.toml"])


@pytest.mark.parametrize(
    "text",
    [
        ROUTES.replace(', tags = ["credential", "theft"]', "").replace("slow_routes", "failed_logins"),
        ROUTE + "continue = true\n[[route]]\nto = 'owner'",
        ROUTE + "hours = '00:00-12:00'\n[[route]]\nto = 'owner'",
        ROUTE + "match.entity.user_id = '*'\n[[route]]\nto = 'owner'",
        "[[inhibit]]\nwider = { level = 'urgent' }\nnarrower = { level = 'email' }\nsame = ['user_id']",
    ],
)
def test_routes_that_may_match_are_no_faults(tmp_path: Path, text: str) -> None:
    copy_project(tmp_path, "sources", "detectors")
    (tmp_path / "routes.toml").write_text(text.replace("ann@*", "*"))
    assert read_catalog(tmp_path).broken == {}


HIDING = "days = ['mon', 'tue']\nhours = '08:00-12:00'\n"


@pytest.mark.parametrize(
    ("earlier", "later", "hides"),
    [
        ("", HIDING, True),
        (HIDING, "", False),
        (HIDING, "days = 'mon'\nhours = '08:00-12:00'", True),
        (HIDING, "days = ['mon', 'wed']\nhours = '08:00-12:00'", False),
        (HIDING, "days = 'mon'", False),
        ("days = 'mon'", HIDING.replace(", 'tue'", ""), True),
        ("days = 'mon'", "days = 'mon'\ntimezone = 'Europe/Berlin'", False),
        ("days = ['mon', 'tue', 'wed', 'thu', 'fri', 'sat', 'sun']", "timezone = 'Europe/Berlin'", True),
    ],
)
def test_a_route_is_hidden_by_one_that_is_on_whenever_it_is(earlier: str, later: str, hides: bool) -> None:
    first, second = parse_routes(f"{ROUTE}{earlier}\n{ROUTE}{later}", Path("routes.toml")).route
    assert first.hides(second) is hides


@pytest.mark.parametrize(
    ("match", "fault"),
    [
        ("{ detector = 'password_spraying', entity = { user_id = 'x' } }", True),
        ("{ detector = 'failed_logins', level = 'urgent' }", True),
        ("{ detector = 'failed_logins', tags = 'account-takeover' }", True),
        ("{ detector = ['failed_logins', 'taken_over'], tags = 'account-takeover' }", False),
        ("{ entity = { session = 'x' } }", True),
    ],
)
def test_a_route_must_fit_one_detector_in_all(match: str, fault: bool) -> None:
    """The last one fits a column of the entity that alerts have not got, because of `dedup`."""
    detectors = read_catalog(ROOT / "examples/takeover").detectors
    sessions = replace(detectors["failed_logins"], entity=("user_id", "session"), dedup=("user_id",))
    routes = parse_routes(f"{ROUTE}match = {match}", Path("routes.toml"))
    found = faults_of_routes(routes, Path(), [*detectors.values(), sessions], set())
    assert ["never matches" in one.what for one in found] == [True] * fault


def test_a_broken_detector_makes_no_route_wrong(tmp_path: Path) -> None:
    copy_project(tmp_path, "sources", "detectors")
    (tmp_path / "detectors" / "failed_logins.py").write_text("(")
    (tmp_path / "routes.toml").write_text(ROUTE + "match = { detector = 'failed_logins', tags = 'x' }")
    assert read_catalog(tmp_path).broken.keys() == {"detectors/failed_logins"}


@pytest.mark.parametrize(
    ("wide", "narrow", "includes"),
    [
        ({}, {"detector": "a"}, True),
        ({"detector": "a"}, {}, False),
        ({"detector": "a*"}, {"detector": ["ab*", "ac"]}, True),
        ({"detector": "a*"}, {"detector": ["ab", "b"]}, False),
        ({"detector": "a?"}, {"detector": "a*"}, False),
        ({"level": ["email", "urgent"]}, {}, True),
        ({"level": "urgent"}, {}, False),
        ({"entity": {"user": "*"}}, {}, False),
        ({"entity": {"user": "a*"}}, {"entity": {"user": "ab", "host": "h"}}, True),
        ({"tags": ["a", "b"]}, {"tags": "b"}, True),
    ],
)
def test_a_matcher_includes_another(wide: dict[str, object], narrow: dict[str, object], includes: bool) -> None:
    assert AlertMatcher.model_validate(wide).includes(AlertMatcher.model_validate(narrow)) is includes


@pytest.mark.parametrize(
    ("pattern", "value", "takes"),
    [("[::1]", "[::1]", True), ("a?[b]*", "a?[b]*", True), ("[ab]", "a", True), ("", "", True), ("", "a", False)],
)
def test_a_pattern_also_takes_its_own_text(pattern: str, value: str, takes: bool) -> None:
    matcher = AlertMatcher.model_validate({"entity": {"user_id": pattern}})
    assert (matcher.matches(labels(user=value)), matcher.text) == (takes, f"user_id {pattern or repr(pattern)}")


def test_the_examples_of_the_page_are_routes() -> None:
    blocks = [part.split("```")[0] for part in (ROOT / "docs/run/alerts.md").read_text().split("```toml\n")[1:3]]
    routes = parse_routes("".join(blocks), Path("routes.toml"))
    assert (len(routes.route), len(routes.inhibit)) == (3, 1)
