from datetime import UTC, datetime
from pathlib import Path

import pytest
from typer import BadParameter

from tests.rig.command_line import invoke
from tests.rig.samples.project import copy_project
from tocsin.cli import options

NOW = datetime(2026, 1, 31, 12, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("30s", 30), ("15m", 900), ("1h", 3600), ("2d", 172_800), ("1w", 604_800), ("250ms", 0.25), ("10 seconds", 10)],
)
def test_spans_in_short_and_in_words(text: str, seconds: float) -> None:
    assert options.span(text, "--for") == seconds


@pytest.mark.parametrize("text", ["", "soon", "1", "h", "-1h", "1y", "10 parsecs", "9" * 400 + "h"])
def test_what_is_no_span_is_refused_with_the_form(text: str) -> None:
    with pytest.raises(BadParameter, match="is not a span of time; write a span such as 30s, 15m, 1h or 2d") as refused:
        options.span(text, "--for")
    assert refused.value.param_hint == "'--for'"


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("1h", datetime(2026, 1, 31, 11, 0, tzinfo=UTC)),
        ("2026-01-30T10:00:00Z", datetime(2026, 1, 30, 10, 0, tzinfo=UTC)),
        ("2026-01-30T10:00:00+02:00", datetime(2026, 1, 30, 8, 0, tzinfo=UTC)),
        ("2026-01-30T10:00", datetime(2026, 1, 30, 10, 0, tzinfo=UTC)),
        ("2026-01-30", datetime(2026, 1, 30, tzinfo=UTC)),
    ],
)
def test_since_is_a_span_back_or_a_moment(text: str, moment: datetime) -> None:
    assert options.moment(text, "--since", NOW) == moment


def test_since_is_never_ahead() -> None:
    with pytest.raises(BadParameter, match=r"'2999-01-01T14:00' lies ahead: it is 2.*, and a time without an offset"):
        options.since("2999-01-01T14:00")


@pytest.mark.parametrize("text", ["yesterday", "999999999w", "0001-01-01T00:00+14:00", "9999-12-31T23:59-14:00"])
def test_what_is_neither_is_refused(text: str) -> None:
    with pytest.raises(BadParameter, match="neither a span nor a moment") as refused:
        options.moment(text, "--since", NOW)
    assert refused.value.param_hint == "'--since'"


@pytest.mark.parametrize(
    "words",
    [
        "findings --rejected --since 1h",
        "view --prefix x",
        "view route_metrics key --prefix x",
        "table foo",
        "table --refresh --json",
        "parity --detector failed_logins --today --day 2026-01-01",
        "status --usage 3 --watch",
        "quarantine logins/0/1 --source logins",
        "quality --metric rows",
        "quality logins --days 3",
        "quality logins 2026-01-01 --figures",
        "explain failed_logins --events 3",
        "explain abcd --plan",
        "explain failed_logins --versions --plan",
        "alerts silences --end 1 --ended",
    ],
)
def test_what_would_be_ignored_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str) -> None:
    copy_project(tmp_path)
    monkeypatch.setenv("TOCSIN_PROJECT", str(tmp_path))
    done = invoke(words.split())
    assert (done.exit_code, "means nothing with" in done.stderr) == (2, True)
