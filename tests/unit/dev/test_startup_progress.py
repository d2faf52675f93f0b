import io

from rich.console import Console

from tocsin.dev.startup_progress import Part, Plain, Redrawn, progress

WAITING = Part("kafka", False, "waiting for port 9092")
READY = Part("kafka", True, "ready")


def _sentences(stream: io.StringIO) -> list[str]:
    return [line.split(" s  ", 1)[1] for line in stream.getvalue().splitlines()]


def test_without_a_terminal_each_change_is_one_line() -> None:
    stream = io.StringIO()
    shown = progress(stream)
    assert isinstance(shown, Plain)
    for lines in ([WAITING], [WAITING], [READY], [READY]):
        shown.show(lines)
    shown.say("ready after 12 s\nCtrl-C stops everything")
    assert _sentences(stream) == [
        "kafka: waiting for port 9092",
        "kafka: ready",
        "ready after 12 s",
        "Ctrl-C stops everything",
    ]


def test_nothing_in_a_reason_acts_on_the_terminal() -> None:
    stream = io.StringIO()
    Plain(Console(file=stream, highlight=False)).show([Part("notifier", False, "\x1b]0;owned\x07 a\nb \u202e")])
    assert _sentences(stream) == [r"notifier: \x1b]0;owned\x07 a\nb \u202e"]


def test_on_a_terminal_a_table_goes_over_into_lines_of_what_changed_after() -> None:
    stream = io.StringIO()
    shown = Redrawn(Console(file=stream, force_terminal=True, width=80, highlight=False))
    shown.show([WAITING])
    shown.show([READY])
    shown.settle()
    shown.settle()
    before = len(stream.getvalue())
    shown.show([READY])
    assert len(stream.getvalue()) == before
    shown.show([WAITING])
    assert "kafka: waiting for port 9092" in stream.getvalue()[before:]
