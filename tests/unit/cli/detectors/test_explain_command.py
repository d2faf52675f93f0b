import json
from datetime import timedelta
from pathlib import Path

import pytest

from tests.rig.command_line import invoke
from tests.rig.samples.project import copy_project
from tocsin.declare.model.detector import DetectorSpec
from tocsin.declare.model.durations import exact_text, parse_duration
from tocsin.detect.explanation import keyword_meanings


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
