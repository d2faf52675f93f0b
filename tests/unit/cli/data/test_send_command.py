import gzip
import re
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, ClassVar

import pytest
from typer.testing import Result

from tests.rig.command_line import invoke
from tocsin.cli.data import send_command
from tocsin.cli.data.send_command import limit_rate
from tocsin.declare.model.sizes import RAW_BYTES
from tocsin.dev import generator
from tocsin.dev.generator import Line, window_start
from tocsin.ingest import producer

TIME = re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+Z")
ROOT = Path(__file__).resolve().parents[4]


class Sent:
    """Stands for Kafka: takes lines, and refuses those that are too long."""

    lines: ClassVar[list[bytes]] = []

    def __init__(self, settings: object, source: object) -> None:
        self.refused, self.error = 0, "too large"
        Sent.lines = []

    def send(self, line: bytes) -> None:
        if len(line) > RAW_BYTES:
            self.refused += 1
        else:
            Sent.lines.append(line)

    @property
    def delivered(self) -> int:
        return len(Sent.lines)

    def __enter__(self) -> "Sent":
        return self

    def __exit__(self, *error: object) -> None:
        return


@pytest.fixture(autouse=True)
def kafka(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOCSIN_PROJECT", str(ROOT))
    monkeypatch.setattr(producer, "LineProducer", Sent)
    monkeypatch.setattr(send_command, "on_signals", lambda stop, **_: None)


def call(*words: str, given: bytes = b"") -> Result:
    return invoke(["send", *words], input=given)


def test_lines_of_a_file_go_as_they_are(tmp_path: Path) -> None:
    file = tmp_path / "lines"
    file.write_bytes(b"one\ntwo\r\n\nb\xff\x00d\n  three ")
    done = call(str(file))
    assert done.exit_code == 0
    assert Sent.lines == [b"one", b"two", b"", b"b\xff\x00d", b"  three "]
    assert done.stdout.startswith("sent 5 lines to raw.logins in ")


@pytest.mark.parametrize(
    ("name", "content", "sent"),
    [
        ("a.log.gz", gzip.compress(b"one\ntwo\n"), [b"one", b"two"]),
        ("a.csv", b"user;n\nu;1\n", [b'{"user": "u", "n": "1"}']),
    ],
)
def test_a_file_is_read_as_by_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, content: bytes, sent: list[bytes]
) -> None:
    monkeypatch.setenv("TOCSIN_PROJECT", str(ROOT / "examples" / "statistics"))
    (tmp_path / name).write_bytes(content)
    assert call(str(tmp_path / name), "--source", "commands").exit_code == 0
    assert Sent.lines == sent
    (tmp_path / "utf16").write_text("one", "utf-16")
    assert "UTF-16" in str(call(str(tmp_path / "utf16"), "--source", "commands").exception)


def test_lines_of_standard_input() -> None:
    assert call("-", given=b"one\ntwo\n").exit_code == 0
    assert Sent.lines == [b"one", b"two"]


def test_an_empty_file_sends_nothing_and_is_no_fault(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    done = call(str(tmp_path / "empty"))
    assert (done.exit_code, Sent.lines) == (0, [])
    assert done.stdout.startswith("sent 0 lines")


def test_a_line_that_no_topic_takes_is_told_and_the_others_arrive(tmp_path: Path) -> None:
    file = tmp_path / "lines"
    file.write_bytes(b"one\n" + b"x" * (3 * RAW_BYTES) + b"\ntwo\n")
    done = call(str(file))
    assert done.exit_code == 1
    assert Sent.lines == [b"one", b"two"]
    assert "refused 1 line: too large" in done.stderr


def test_a_count_ends_it(tmp_path: Path) -> None:
    file = tmp_path / "lines"
    file.write_bytes(b"one\ntwo\nthree\n")
    assert call(str(file), "--count", "2").exit_code == 0
    assert Sent.lines == [b"one", b"two"]


@pytest.mark.parametrize("pace", [["--rate", "0.001"], ["--as-now"]])
def test_a_duration_ends_the_wait_for_the_next_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pace: list[str]
) -> None:
    """Between the two lines lie a thousand seconds, or an hour."""
    monkeypatch.setenv("TOCSIN_PROJECT", str(ROOT / "examples" / "heartbeats"))
    file = tmp_path / "lines"
    lines = [f"instance: web.1 | timestamp: 2026-01-01T{hour}:00:00Z\n" for hour in (10, 11)]
    file.write_text("".join(lines))
    began = time.monotonic()
    done = call(str(file), "--source", "heartbeats", "--duration", "0.2s", *pace)
    assert (done.exit_code, len(Sent.lines)) == (0, 1)
    assert time.monotonic() - began < 60


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines leave before their time: it is the lines that count here, and TestPacing looks at the time."""
    monkeypatch.setattr(generator, "wait_for_times", lambda lines, stop: lines)


@pytest.mark.usefixtures("at_once")
def test_a_burst_lies_in_one_window_and_is_all_there_is() -> None:
    done = call("--burst", "user=mallory,n=7", "--burst", "user=trudy,n=5")
    assert done.exit_code == 0
    for user, count in (("mallory", 7), ("trudy", 5)):
        own = [line for line in Sent.lines if user.encode() in line]
        times = [datetime.fromisoformat(found) for line in own for found in TIME.findall(line.decode())]
        assert len(own) == len(times) == count
        assert len({window_start(moment) for moment in times}) == 1
        assert all(b"login failed" in line for line in own)
    assert len(Sent.lines) == 12


@pytest.mark.usefixtures("at_once")
def test_generated_logins_come_at_their_rate() -> None:
    done = call("--rate", "50", "--duration", "1s")
    assert done.exit_code == 0
    assert len(Sent.lines) == 50


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("lines", "--burst", "user=a,n=1"), "needs generated logins"),
        (("--source", "requests"), "only events of logins can be generated"),
        (("--burst", "mallory"), "is not a burst"),
        (("--burst", "user=mallory,n=0"), "is not a burst"),
        (("--duration", "soon"), "is not a span of time"),
        (("--count", "0"), "greater than or equal to 1"),
        (("--rate", "-1"), "greater than or equal to 0"),
    ],
)
def test_calls_that_make_no_sense_are_usage_errors(words: tuple[str, ...], why: str) -> None:
    done = call(*words)
    assert done.exit_code == 2
    assert why in " ".join(done.stderr.replace("│", "").split())


def test_a_file_that_is_not_there_and_a_source_that_is_not_there_are_named() -> None:
    assert "cannot be read: No such file" in str(call("no-such-file").exception)
    assert "did you mean 'logins'?" in str(call("-", "--source", "login").exception)


class TestPacing:
    @pytest.fixture
    def slept(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[float]]:
        """Waiting moves a clock of our own."""
        now = [1000.0]
        waits: list[float] = []

        class Clock(datetime):
            @classmethod
            def now(cls, tz: Any = None) -> "Clock":
                return cls.fromtimestamp(now[0], tz)

        def wait(self: threading.Event, seconds: float | None = None) -> bool:
            waits.append(round(seconds or 0.0, 6))
            now[0] += seconds or 0.0
            return self.is_set()

        monkeypatch.setattr(generator, "datetime", Clock)
        monkeypatch.setattr(time, "monotonic", lambda: now[0])
        monkeypatch.setattr(threading.Event, "wait", wait)
        yield waits

    def test_at_a_rate(self, slept: list[float]) -> None:
        assert list(limit_rate("abcd", 10.0, threading.Event())) == list("abcd")
        assert slept == [pytest.approx(0.1)] * 3

    def test_without_a_rate_nothing_is_waited_for(self, slept: list[float]) -> None:
        assert list(limit_rate("abcd", 0.0, threading.Event())) == list("abcd")
        assert slept == []

    def test_in_their_time(self, slept: list[float]) -> None:
        start = datetime.fromtimestamp(1000, UTC)
        lines = [Line(start + timedelta(seconds=s), b"") for s in (-5, 0, 1, 1, 3)]
        assert list(generator.wait_for_times(lines, threading.Event())) == lines
        assert slept == [1.0, 2.0]

    def test_a_stop_ends_it(self) -> None:
        stop = threading.Event()
        taken = []
        for item in limit_rate(range(9), 0.0, stop):
            taken.append(item)
            if item == 2:
                stop.set()
        assert taken == [0, 1, 2]


def test_an_old_file_is_sent_as_if_it_happened_now(tmp_path: Path) -> None:
    old, began = datetime(2025, 1, 31, 14, tzinfo=UTC), datetime.now(UTC)
    times = [old, old + timedelta(seconds=1.2)]
    lines = [f"user_id: a | timestamp: {at:%Y-%m-%dT%H:%M:%S.%f}Z | action: x" for at in times]
    path = tmp_path / "old.log"
    path.write_text("\n".join([lines[0], "no login", lines[1], "no login"]))
    result = call(str(path), "--as-now", "--speed", "4")
    assert result.exit_code == 0, result.output
    assert "not sent: 2 lines, line 2 first: no timestamp is found in it" in result.stderr
    first, second = (datetime.fromisoformat(TIME.findall(one.decode())[0]) for one in Sent.lines)
    assert (second - first, second <= datetime.now(UTC)) == (timedelta(seconds=0.3), True)
    assert began <= first
    assert [TIME.sub("T", one.decode()) for one in Sent.lines] == [TIME.sub("T", one) for one in lines]


@pytest.mark.parametrize(
    "words",
    [
        ["--as-now"],
        ["-", "--speed", "4"],
        ["-", "--as-now", "--rate", "1"],
        ["-", "--as-now", "--speed", "0"],
    ],
)
def test_options_that_do_not_go_together_are_refused(words: list[str]) -> None:
    assert call(*words).exit_code == 2
