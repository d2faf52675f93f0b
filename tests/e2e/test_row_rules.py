"""Rules for rows in the ingest job as it is run: real-time mode takes them, and what is mended can be replayed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.rig.broker import Broker
from tests.rig.ingest_topics import WAIT, Topics
from tests.rig.installation import READY_SECONDS, Installation
from tests.rig.observed import INGEST
from tests.rig.samples.project import copy_project
from tests.rig.waiting import await_that
from tocsin.dev.generator import Line
from tocsin.ingest.quarantine import Selection, list_quarantined, replay
from tocsin.sparkjob.query.work import REAL_TIME


@pytest.fixture
def installation(tmp_path: Path, broker: Broker) -> Iterator[Installation]:
    with Installation(tmp_path, broker) as one:
        copy_project(one.settings.project, "expectations")
        yield one


def test_critical_rules_refuse_others_warn_and_a_mended_rule_takes_the_replay(installation: Installation) -> None:
    topics, settings = Topics(installation), installation.settings
    source, at = installation.catalog.source("logins"), datetime.now(UTC)
    installation.make_topics()
    installation.start(INGEST)
    installation.await_ready(INGEST)

    def line(user: str, action: str = "login failed", address: str = "192.0.2.1") -> Line:
        text = f"user_id: {user} | timestamp: {at:%Y-%m-%dT%H:%M:%S.%fZ} | ip_address: {address} | action: {action}"
        return Line(at, text.encode())

    long = "x" * 257
    topics.send(
        [line("ann"), line("bob", action="password reset"), line(long), line("eve", address="-"), line("v" * 256)]
    )
    topics.await_all()
    assert sorted(event["user_id"] for event in topics.events()) == sorted(["ann", "bob", "eve", "v" * 256])
    refused = list_quarantined(settings, source, Selection())
    assert [record.reasons for record in refused] == [("rule:user_id_length",)]
    assert list_quarantined(settings, source, Selection(reason="rule")) == refused
    wanted = {"records": 5, "quarantined": 1, "rule": 1, "warned_known_action": 1, "warned_ip_address_form": 1}

    def counts() -> dict[str, float]:
        report = installation.report(INGEST)
        return {} if report is None else {name: report.counts.get(name, 0) for name in wanted}

    await_that(lambda: counts() == wanted, WAIT, counts)
    report = installation.report(INGEST)
    assert report is not None
    assert report.mode == REAL_TIME
    assert installation.stop(INGEST) == 0

    path = settings.project / "expectations/logins.rows.json"
    suite = json.loads(path.read_text())
    suite["expectations"][0]["kwargs"]["max_value"] = 300
    path.write_text(json.dumps(suite))
    assert replay(settings, source, refused).changed == {"expectations"}
    installation.start(INGEST)
    await_that(lambda: long in {event["user_id"] for event in topics.events()}, WAIT, topics.events)
    assert installation.stop(INGEST) == 0

    path.write_text("{")
    installation.start(INGEST)
    await_that(lambda: installation.runner.exit_code(INGEST) is not None, READY_SECONDS)
    installation.await_end(INGEST)
    assert installation.runner.exit_code(INGEST) == 2
    assert "logins.rows.json" in installation.log(INGEST)


QUOTED = r"""
format = "regex"
pattern = '(?<timestamp>[^ ]+) (?<ip_address>[^ ]+) "(?<user_id>[^"]*)" "(?<action>(?:[^"\\]|\\.)*)"'
"""


def test_a_pattern_that_a_line_can_stop_is_refused_and_a_possessive_one_takes_any_line(
    installation: Installation,
) -> None:
    topics, path = Topics(installation), installation.settings.project / "sources/logins.toml"
    (installation.settings.project / "expectations/logins.rows.json").unlink()
    declared = path.read_text().replace('format = ["key-value", "json"]', QUOTED)
    path.write_text(declared)
    installation.make_topics()
    installation.start(INGEST)
    await_that(lambda: installation.runner.exit_code(INGEST) is not None, READY_SECONDS)
    installation.await_end(INGEST)
    assert installation.runner.exit_code(INGEST) == 2
    assert "overflows Java's stack" in installation.log(INGEST)
    path.write_text(declared.replace(".)*)", ".)*+)"))
    installation.start(INGEST)
    at = datetime.now(UTC)
    longest = installation.catalog.source("logins").max_bytes
    head = f'{at:%Y-%m-%dT%H:%M:%S.%fZ} 192.0.2.1 "ann" '
    lengths = [5, 2_000, 50_000, longest - len(head) - 2]
    topics.send([Line(at, f'{head}"{chr(97) * length}"'.encode()) for length in (*lengths, longest)])
    topics.await_all()
    assert sorted(len(event["action"]) for event in topics.events()) == lengths
    (refused,) = list_quarantined(installation.settings, installation.catalog.source("logins"), Selection())
    assert refused.reasons == ("too_long",)
    report = installation.report(INGEST)
    assert report is not None
    assert report.mode == REAL_TIME
    assert installation.stop(INGEST) == 0
