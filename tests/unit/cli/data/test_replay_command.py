"""`tocsin replay`: what is said before anything is read or sent."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.rig.command_line import invoke
from tests.rig.played_kafka import played_kafka
from tocsin.declare.model.errors import ConfigError
from tocsin.ingest.replay.replay_run import ReplayReport
from tocsin.platform.kafka.reader import TopicReader

ROOT = Path(__file__).parents[4]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    (tmp_path / "sources").mkdir()
    for path in (ROOT / "sources/logins.toml", ROOT / "examples/routes/sources/router.toml"):
        (tmp_path / "sources" / path.name).write_bytes(path.read_bytes())
    with played_kafka("events.router", "events.logins") as kafka:
        monkeypatch.setenv("TOCSIN_PROJECT", str(tmp_path))
        monkeypatch.setenv("TOCSIN_KAFKA__BOOTSTRAP_SERVERS", kafka.bootstrap_servers)
        monkeypatch.setattr(TopicReader, "since", lambda self, moment: self.bounds()[0])
        yield tmp_path


def test_a_dry_run_counts_and_sends_nothing(project: Path) -> None:
    dry = ["replay", "router", "--from", "1h", "--to-url", "http://127.0.0.1:1", "--dry-run"]
    told = invoke(dry)
    pattern = r"^from \S+ \S+Z up to \S+ \S+Z: 0 events in it\nsending to http://127.0.0.1:1 takes 0:00:00$"
    assert (told.exit_code, bool(re.search(pattern, told.output.strip()))) == (0, True), told.output
    report = ReplayReport.model_validate_json(invoke([*dry, "--json"]).output)
    assert (report.planned.events, report.done, report.outcomes) == (0, False, {})
    assert not (project / ".tocsin/state/replays").exists()


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["router", "--from", "1h"], "give one of --to-url and --to-topic"),
        (["router", "--from", "1h", "--to", "2h", "--to-url", "http://a"], "is not before --to"),
        (["router", "--from", "soon", "--to-url", "http://a"], "'soon' is neither a span nor a moment"),
    ],
)
def test_a_call_that_cannot_be_meant_is_refused(project: Path, arguments: list[str], told: str) -> None:
    result = invoke(["replay", *arguments])
    assert (result.exit_code, told in result.output) == (2, True), result.output


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["logins", "--to-url", "http://a"], "source 'logins' has no column 'path'"),
        (["router", "--to-url", "http://a", "--path-column", "pat"], "has no column 'pat' to make a request of; did"),
        (["router", "--to-topic", "raw.router"], "is a topic of this installation"),
        (["router", "--to-topic", "findings"], "is a topic of this installation"),
        (["rooter", "--to-topic", "x"], "did you mean 'router'?"),
    ],
)
def test_a_target_that_does_not_fit_is_refused(project: Path, arguments: list[str], told: str) -> None:
    result = invoke(["replay", "--from", "1h", *arguments])
    assert isinstance(result.exception, ConfigError)
    assert told in str(result.exception)
