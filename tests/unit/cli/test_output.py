import json
import time
from datetime import UTC, datetime, timedelta, timezone
from io import StringIO

import pytest
from rich.console import Console

from tocsin.cli import output
from tocsin.declare.model.durations import span
from tocsin.declare.model.sizes import printable
from tocsin.dev.diagnosis import Diagnosis
from tocsin.platform.progress import report_progress
from tocsin.supervise.job_status import Severity

HOSTILE = "mal\x1b[2Jlory\x07\x9b31m\u202e [bold red]x[/] :bomb:\r\nroot"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("mallory", "mallory"),
        ("Zoë 中文 🙂", "Zoë 中文 🙂"),
        ("\x1b]0;owned\x07", "\\x1b]0;owned\\x07"),
        ("a\x9b31mb", "a\\x9b31mb"),
        ("a\r\nb\tc", "a\\r\\nb\\tc"),
        ("user\u202egpj", "user\\u202egpj"),
        ("zero\u200bwidth", "zero\\u200bwidth"),
        ("line\u2028break", "line\\u2028break"),
        ("\ud800", "\\ud800"),
        ("noncharacter\ufffe", "noncharacter\\ufffe"),
        (None, "None"),
    ],
)
def test_what_could_act_on_a_terminal_is_shown_as_an_escape(text: object, shown: str) -> None:
    assert printable(text) == shown


def test_a_table_shows_hostile_text_as_it_is_and_reads_no_markup(capsys: pytest.CaptureFixture[str]) -> None:
    output.table(("USER", "NOTE"), [(HOSTILE, None)], empty="nobody")
    written = capsys.readouterr().out
    assert "[bold red]x[/] :bomb:" in written
    assert not any(character in written for character in "\x1b\x07\x9b\u202e\r")
    assert len(written.splitlines()) == 2


def test_lines_and_notes_are_made_printable_too(capsys: pytest.CaptureFixture[str]) -> None:
    output.line(HOSTILE)
    output.note(f"{HOSTILE}\nsecond")
    written = capsys.readouterr()
    for text in (written.out, written.err):
        assert "[bold red]x[/]" in text
        assert "\x1b" not in text
    assert written.err.endswith("second\n")


def test_a_table_that_is_piped_is_neither_cut_nor_wrapped(capsys: pytest.CaptureFixture[str]) -> None:
    output.table(("A", "B"), [("x" * 300, "y" * 300)], empty="none")
    assert f"{'x' * 300}  {'y' * 300}" in capsys.readouterr().out


def test_an_empty_table_is_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    output.table(("A",), [], empty="nothing yet")
    assert capsys.readouterr().out == "nothing yet\n"


def test_json_holds_nothing_but_ascii(capsys: pytest.CaptureFixture[str]) -> None:
    output.as_json([Diagnosis(name=HOSTILE, standing=Severity.OK, what="ü")])
    written = capsys.readouterr().out
    assert written.isascii()
    assert "\x1b" not in written
    assert json.loads(written) == [{"name": HOSTILE, "standing": "ok", "what": "ü", "advice": ""}]


def test_times_are_utc() -> None:
    paris = datetime(2026, 7, 1, 2, 30, tzinfo=timezone(timedelta(hours=2)))
    assert output.utc(paris) == "2026-07-01 00:30:00Z"
    assert output.utc(datetime(2026, 1, 1, tzinfo=UTC)) == "2026-01-01 00:00:00Z"
    assert output.utc(None) == ""


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (None, ""),
        (0.0, "0.0 s"),
        (9.94, "9.9 s"),
        (9.96, "10 s"),
        (119, "119 s"),
        (120, "2 min"),
        (3599, "60 min"),
        (3600, "1 h"),
        (90_000, "1 d"),
    ],
)
def test_spans_are_short(seconds: float | None, shown: str) -> None:
    assert span(seconds) == shown


def test_progress_is_a_line_now_and_then_on_standard_error(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    report_progress("days sealed", 0, 3)
    monkeypatch.setattr(time, "monotonic", lambda: 0.0)
    with output.progress():
        report_progress("days sealed", 0, 3)
        with output.progress():
            monkeypatch.setattr(time, "monotonic", lambda: 11.0)
            report_progress("days sealed", 1_000, 3_000)
            report_progress("days sealed", 2_000, 3_000)
        monkeypatch.setattr(time, "monotonic", lambda: 22.0)
        report_progress("rows read of a\x1b.log", 50_000)
    report_progress("days sealed", 3, 3)
    written = capsys.readouterr()
    assert (written.out, written.err) == (
        "",
        "days sealed: 1,000 of 3,000\nrows read of a\\x1b.log: 50,000\n",
    )


def test_progress_on_a_terminal_is_a_line_that_goes_away(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Console(file=StringIO(), force_terminal=True, width=60)
    monkeypatch.setattr(output, "console", lambda *, error: screen)
    with output.progress():
        report_progress("days sealed", 1, 3)
        time.sleep(0.3)
    assert isinstance(screen.file, StringIO)
    assert "days sealed: 1 of 3" in screen.file.getvalue()
    assert screen.file.getvalue().endswith("\x1b[2K")
