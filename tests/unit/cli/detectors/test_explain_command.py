import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.rig.command_line import invoke
from tests.rig.played_kafka import played_kafka
from tests.rig.samples.project import copy_project
from tests.rig.samples.sealed_days import seal_day
from tests.unit.alerts.scene import FACTS, WINDOW, burst
from tocsin.alerts.alert_policy import DetectorFacts
from tocsin.alerts.evidence import event_search
from tocsin.alerts.recording import Rules, record
from tocsin.alerts.store.database import Database
from tocsin.declare.declaration import read_spec
from tocsin.declare.model.detector import DetectorSpec
from tocsin.declare.model.durations import exact_text, parse_duration
from tocsin.declare.model.finding import Finding
from tocsin.declare.settings import Settings, load_settings
from tocsin.detect.explanation import keyword_meanings
from tocsin.platform.kafka.reader import TopicReader
from tocsin.platform.kafka.record_writer import PROMPT, RecordWriter


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    copy_project(tmp_path)
    monkeypatch.setenv("TOCSIN_PROJECT", str(tmp_path))
    return tmp_path


def explained(name: str) -> dict[str, tuple[str, str]]:
    done = invoke(["explain", name, "--json"])
    assert done.exit_code == 0, done.output
    return {one["key"]: (one["value"], one["origin"]) for one in json.loads(done.stdout)["keys"]}


@pytest.mark.usefixtures("project")
def test_each_keyword_is_shown_as_it_is_declared_or_by_its_default() -> None:
    found = explained("failed_logins")
    assert {one.name for one in keyword_meanings()} <= found.keys()
    assert found["levels"] == ("Levels(email=50, urgent=100)", "declared")
    assert found["window"] == ("10 seconds", "declared")
    assert found["dedup_period"] == (exact_text(DetectorSpec.dedup_period), "default")
    assert found["lateness"] == ("10 seconds (logins)", "derived")
    assert found["state"][0] == "the open windows"
    assert found["memory limit"] == ("2,012 MB", "derived")
    assert found["state after a change"] == ("from the last 10 seconds", "derived")


def test_what_holds_follows_the_file(project: Path) -> None:
    file = project / "detectors" / "failed_logins.py"
    text = file.read_text()
    file.write_text(text.replace('window="10 seconds"', 'window=None, dedup_period="90 minutes"'))
    file.write_text(file.read_text().replace("dedup_period", 'memory="1 GB", dedup_period'))
    found = explained("failed_logins")
    assert found["memory limit"][0] == "1,000 MB"
    assert (found["window"], found["dedup_period"]) == (("None", "declared"), ("90 minutes", "declared"))
    assert found["state"][0] == "none"
    assert "state after a change" not in found


@pytest.mark.usefixtures("project")
def test_people_get_the_docstring_and_a_table() -> None:
    shown = invoke(["explain", "failed_logins"]).stdout
    assert "Misses: slow guessing" in shown
    assert "add --plan" in shown


def test_an_unknown_and_a_broken_detector_are_named(project: Path) -> None:
    unknown = invoke(["explain", "failed_login"])
    assert "did you mean 'failed_logins'" in str(unknown.exception)
    (project / "detectors" / "failed_logins.py").write_text("detect(")
    assert "is not Python" in str(invoke(["explain", "failed_logins"]).exception)


def test_each_keyword_has_a_form_and_a_meaning() -> None:
    assert [one.name for one in keyword_meanings() if not one.form or not one.meaning] == []


@pytest.mark.parametrize("text", ["1 hour", "90 minutes", "30 days", "1 second", "250 ms", "0.5 ms"])
def test_a_duration_is_written_as_one_would_declare_it(text: str) -> None:
    assert exact_text(parse_duration(text)) == text
    assert parse_duration(exact_text(timedelta(days=1))) == timedelta(days=1)


START = datetime.now(UTC).replace(hour=12, minute=0, second=0, microsecond=0) - timedelta(days=2)
MALLORY = [(offset, "mallory", timedelta(milliseconds=100 * offset)) for offset in range(60)]
OTHERS = [(100, "trent", timedelta(0)), (101, "mallory", WINDOW), (102, "mallory", -timedelta(microseconds=1))]


def login(offset: int, user: str, after: timedelta) -> dict[str, Any]:
    at = START + after
    known = {"raw_topic": "raw.logins", "raw_partition": 0, "source": "logins", "schema_version": 1}
    return known | {"raw_offset": offset, "event_time": at, "ingested_at": at, "user_id": user, "ip": "192.0.2.1"}


EVENTS = [login(*one) for one in [*OTHERS, *MALLORY]]


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Settings]:
    """A project whose Kafka is played."""
    copy_project(tmp_path)
    monkeypatch.setenv("TOCSIN_PROJECT", str(tmp_path))
    with played_kafka("events.logins") as kafka:
        monkeypatch.setenv("TOCSIN_KAFKA__BOOTSTRAP_SERVERS", kafka.bootstrap_servers)
        # The played Kafka finds no offsets by time.
        monkeypatch.setattr(TopicReader, "since", lambda self, moment: self.bounds()[moment > START])
        yield load_settings()


def stored(settings: Settings, batch: list[Finding], facts: DetectorFacts = FACTS) -> str:
    """Keep `batch` as the indexer does; returns the id of the last."""
    settings.state.mkdir(parents=True, exist_ok=True)
    database = Database(settings.alerts_database)
    database.migrate()
    with database.write() as connection:
        record(connection, batch, Rules(facts={FACTS.name: facts}), START + timedelta(minutes=1))
    database.close()
    return batch[-1].finding_id


def explained_finding(identity: str, *options: str) -> dict[str, Any]:
    done = invoke(["explain", identity, "--json", *options])
    assert done.exit_code == 0, f"{done.output}{done.exception!r}"
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def produce(settings: Settings, events: list[dict[str, Any]]) -> None:
    with RecordWriter(settings, 4_000_000, config=PROMPT) as writer:
        for number, one in enumerate(events):
            times = {name: one[name].isoformat().replace("+00:00", "Z") for name in ("event_time", "ingested_at")}
            writer.write("events.logins", json.dumps(one | times).encode(), partition=number % 2)


def test_events_come_from_history_where_it_holds_the_window(settings: Settings) -> None:
    identity = stored(settings, burst(60, at=START))
    seal_day(settings, START.date(), EVENTS)
    found = explained_finding(identity[:12], "--events", "3")
    (events,) = found["events"]
    assert (events["place"], events["count"], events["note"]) == ("history", len(MALLORY), "")
    assert [one["raw_offset"] for one in events["events"]] == [57, 58, 59]
    assert found["alert"]["id"] == found["stored"]["alert"]
    assert [one["kind"] for one in found["notifications"]] == ["email"]
    assert found["mail_subject"].startswith("mallory: 60 (limit 50)")
    assert "above the limit of 50" in found["mail_text"]
    assert found["otherwise"] == [
        "with an urgent limit below 60 it would be urgent",
        "with the limit at 60 or more it would be no finding",
    ]


def test_events_come_from_kafka_where_history_lacks_the_day_each_once(settings: Settings) -> None:
    identity = stored(settings, burst(60, at=START))
    produce(settings, EVENTS)
    produce(settings, EVENTS[:10])
    (events,) = explained_finding(identity, "--events", "0")["events"]
    assert (events["place"], events["count"], events["events"]) == ("Kafka", len(MALLORY), [])


def test_a_finding_of_a_shadow_detector_shows_the_mail_that_it_would_send(settings: Settings) -> None:
    file = settings.project / "detectors" / "failed_logins.py"
    file.write_text(file.read_text().replace('stage="live"', 'stage="shadow"'))
    identity = stored(settings, burst(120, at=START), FACTS.model_copy(update={"live": False}))
    found = explained_finding(identity)
    assert found["alert"] is None
    assert found["mail_subject"].startswith("[URGENT] mallory: 120")
    assert found["version_in_force"] == read_spec(file).version != found["stored"]["finding"]["version"]
    assert found["otherwise"][0] == "with an urgent limit of 120 or more it would be email"


def test_without_kafka_all_but_the_events_is_shown(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    identity = stored(settings, burst(60, at=START))
    monkeypatch.setenv("TOCSIN_KAFKA__BOOTSTRAP_SERVERS", "127.0.0.1:9")
    monkeypatch.setattr(event_search, "TopicReader", partial(TopicReader, timeout_seconds=0.1))
    done = invoke(["explain", identity])
    assert done.exit_code == 0, f"{done.output}{done.exception!r}"
    assert "127.0.0.1:9" in done.stdout
    assert "Subject: mallory: 60 (limit 50)" in done.stdout


def test_hostile_values_reach_no_terminal(settings: Settings) -> None:
    identity = stored(settings, burst(60, user="\x1b[2J\u202e", at=START))
    seal_day(settings, START.date(), [login(0, "\x1b[2J\u202e", timedelta(0))])
    shown = invoke(["explain", identity]).stdout
    assert "1 event of logins about it, from history" in shown
    assert not {"\x1b", "\u202e"} & set(shown)


def test_a_finding_whose_detector_is_gone_still_shows(settings: Settings) -> None:
    identity = stored(settings, burst(60, at=START))
    (settings.project / "detectors" / "failed_logins.py").unlink()
    found = explained_finding(identity)
    assert (found["version_in_force"], found["limits"], found["events"]) == (None, None, [])
    assert found["mail_subject"].startswith("mallory: 60")


@pytest.mark.parametrize("beginning", ["abcdef", "0" * 32])
def test_an_id_that_nobody_knows_is_named(settings: Settings, beginning: str) -> None:
    assert "no finding has an id that begins so" in str(invoke(["explain", beginning]).exception)
    stored(settings, burst(60, at=START))
    assert "no finding has an id that begins so" in str(invoke(["explain", beginning]).exception)


def test_a_beginning_of_several_ids_lists_them(settings: Settings) -> None:
    batch = [
        one.model_copy(update={"finding_id": f"abcd{number}"})
        for number, one in enumerate(burst(60, at=START)[:2] + burst(61, user="trent", at=START)[:1])
    ]
    stored(settings, batch)
    error = str(invoke(["explain", "abcd"]).exception)
    assert "3 findings begin so: abcd0, abcd1, abcd2" in error
