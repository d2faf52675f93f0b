import base64
import json
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from typer.testing import Result

from tests.rig.command_line import invoke
from tests.rig.samples.project import copy_project
from tocsin.declare.model.errors import ConfigError
from tocsin.declare.model.source import Source
from tocsin.declare.settings import Settings
from tocsin.ingest import quarantine
from tocsin.ingest.quarantine import ReplayResult, Selection
from tocsin.ingest.quarantined_record import QuarantinedRecord

NOW = datetime.now(UTC).replace(microsecond=0)


def record(number: int, payload: bytes, *reasons: str) -> QuarantinedRecord:
    return QuarantinedRecord.model_validate(
        {
            "id": f"logins/0/{number}",
            "quarantined_at": NOW - timedelta(days=number),
            "payload": base64.b64encode(payload),
            "payload_length": len(payload),
            "payload_sha256": "0" * 64,
            "reasons": reasons,
            "origin": {"topic": "raw.logins", "partition": 1, "offset": number, "timestamp": NOW},
            "source": "logins",
            "schema_version": 1,
            "rules_version": "abc",
        }
    )


RECORDS = [record(1, b"mall\xf6ry\x1b[2J\n", "not_utf8"), record(2, b"x" * 200, "missing:user_id", "missing:action")]


@pytest.fixture(autouse=True)
def kafka(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Stands for the topics: holds RECORDS, and remembers what was replayed."""
    replayed: list[str] = []

    def every(settings: Settings, source: Source, selection: Selection) -> Iterator[QuarantinedRecord]:
        return (one for one in RECORDS if selection.takes(one))

    def found(settings: Settings, source: Source, record_id: str) -> QuarantinedRecord:
        for one in RECORDS:
            if one.id == record_id:
                return one
        raise ConfigError.one(record_id, "is not in quarantine")

    def replay(settings: Settings, source: Source, records: Iterable[QuarantinedRecord]) -> ReplayResult:
        result = ReplayResult(changed={"schema"})
        for one in records:
            if one.id == "logins/0/2":
                result.skipped[one.id] = "only its first bytes were kept"
            else:
                result.replayed.append(one.id)
        replayed.extend(result.replayed)
        return result

    copy_project(tmp_path, "sources", "expectations")
    monkeypatch.setenv("TOCSIN_PROJECT", str(tmp_path))
    monkeypatch.setattr(quarantine, "all_quarantined", every)
    monkeypatch.setattr(quarantine, "find_quarantined", found)
    monkeypatch.setattr(quarantine, "replay", replay)
    return replayed


def call(*words: str) -> Result:
    return invoke(["quarantine", *words])


def test_records_are_listed_with_their_reasons_and_cannot_act_on_the_terminal() -> None:
    done = call()
    rows = done.stdout.splitlines()
    assert done.exit_code == 0
    assert rows[1].split()[:1] == ["logins/0/1"]
    assert "not_utf8" in rows[1]
    assert "mall\\xf6ry\\x1b[2J\\n" in rows[1]
    assert "missing:user_id, missing:action" in rows[2]
    assert f"{'x' * 80}..." in rows[2]
    assert "2 records; by reason: missing:action 1, missing:user_id 1, not_utf8 1" in done.stdout
    assert "\x1b" not in done.stdout


def test_the_total_is_of_all_that_the_options_choose_however_many_are_shown() -> None:
    said = call("--limit", "1").stdout
    assert len(said.splitlines()) == 4
    assert "\n1 of 2 records shown; by reason: missing:action 1, missing:user_id 1, not_utf8 1\n" in said
    assert "\n1 record; by reason: not_utf8 1\n" in call("--limit", "1", "--reason", "not_utf8").stdout


@pytest.mark.parametrize(
    ("options", "ids"),
    [
        ((), ["logins/0/1", "logins/0/2"]),
        (("--reason", "missing"), ["logins/0/2"]),
        (("--reason", "missing:user_id"), ["logins/0/2"]),
        (("--since", "36h"), ["logins/0/1"]),
        (("--limit", "1"), ["logins/0/1"]),
        (("--source", "logins"), ["logins/0/1", "logins/0/2"]),
    ],
)
def test_records_can_be_chosen_and_read_by_programs(options: tuple[str, ...], ids: list[str]) -> None:
    done = call("--json", *options)
    assert [one["id"] for one in json.loads(done.stdout)] == ids
    assert all(QuarantinedRecord.model_validate(one) in RECORDS for one in json.loads(done.stdout))
    assert ("the newest 1 are taken; --limit takes more" in done.stderr) == ("--limit" in options)
    assert call("--exit-code", *options).exit_code == 1


def test_one_record_is_shown_whole() -> None:
    done = call("logins/0/2")
    assert done.exit_code == 0
    assert "x" * 200 in done.stdout
    assert "came from raw.logins/1/2" in done.stdout
    assert "200 bytes" in done.stdout
    assert "\x1b" not in call("logins/0/1").stdout


def test_what_is_not_there_is_named() -> None:
    assert isinstance(call("logins/0/9").exception, ConfigError)
    assert "no source 'login'" in str(call("login/0/1").exception)


def test_a_replay_says_what_it_did_and_what_has_changed(kafka: list[str]) -> None:
    done = call("--replay", "logins/0/1")
    assert (done.exit_code, kafka) == (0, ["logins/0/1"])
    assert "replayed 1 record\n" in done.stdout
    assert "changed in the rules since they were quarantined: schema" in done.stdout


def test_a_replay_that_leaves_one_out_says_which_and_leaves_with_1(kafka: list[str]) -> None:
    done = call("--replay", "--all")
    assert (done.exit_code, kafka) == (1, ["logins/0/1"])
    assert "not logins/0/2: only its first bytes were kept" in done.stderr


def test_all_are_more_than_a_thousand(kafka: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{__name__}.RECORDS", [record(number, b"{", "malformed") for number in range(3, 2003)])
    done = call("--replay", "--all")
    assert (done.exit_code, len(kafka), done.stderr) == (0, 2000, "")


def test_a_dry_run_does_nothing(kafka: list[str]) -> None:
    done = call("--replay", "--all", "--dry-run")
    assert (done.exit_code, kafka) == (0, [])
    assert "logins/0/1" in done.stdout


@pytest.mark.parametrize("words", [(), ("logins/0/1", "--all")])
def test_a_replay_takes_names_or_all_and_not_both(words: tuple[str, ...], kafka: list[str]) -> None:
    done = call("--replay", *words)
    assert (done.exit_code, kafka) == (2, [])
