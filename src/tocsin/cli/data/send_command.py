"""`tocsin send`: lines of a file, of standard input or of the generator into the raw topic of a source."""

from __future__ import annotations

import itertools
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from tocsin.cli import options
from tocsin.cli.output import bar, counted, line, note
from tocsin.cli.project import load_project
from tocsin.declare.model.sizes import RAW_BYTES
from tocsin.platform.process_exit import on_signals

if TYPE_CHECKING:
    from tocsin.dev.generator import Burst

GENERATED = "logins"
_ONLY_GENERATED = f"only events of {GENERATED} can be generated; name a file, or - for standard input"
_Item = TypeVar("_Item")

_File = Annotated[
    str | None,
    typer.Argument(help="Lines, or for JSON also CSV or Parquet, as its name says; - for lines of standard input."),
]
_Source = Annotated[str, typer.Option(help="The source to send to.")]
_Rate = Annotated[float | None, typer.Option(min=0, help="Lines per second; default: a file as fast as possible.")]
_Bursts = Annotated[
    list[str] | None,
    typer.Option("--burst", metavar="user=U,n=N[,at=S]", help="N failed logins of U within one window; repeatable."),
]
_Duration = Annotated[str | None, typer.Option(metavar="SPAN", help="Stop after this long, such as 30s or 5m.")]
_Count = Annotated[int | None, typer.Option(min=1, help="Stop after this many lines.")]
_AsNow = Annotated[bool, typer.Option("--as-now", help="Move the times of the events: the first one happens now.")]
_Speed = Annotated[
    float | None, typer.Option(min=0.001, max=1e6, help="With --as-now: pass the times so many times as fast.")
]
Lines = Iterator[tuple[bytes, float]]
"""Lines, and by how much each advances the bar."""


def send(
    file: _File = None,
    source: _Source = GENERATED,
    rate: _Rate = None,
    burst: _Bursts = None,
    duration: _Duration = None,
    count: _Count = None,
    as_now: _AsNow = False,
    speed: _Speed = None,
) -> None:
    """Send lines of a file, or generated logins, and report how many arrived.

    Without a file, logins of 200 users at the rate (20 per second; none if there are only bursts), in real time,
    until the duration or the count is reached, or Ctrl-C. Exit code 1 when Kafka refused lines or cannot be reached.

    With --as-now a file is sent at the pace at which its events came, each with the present time in place of its event
    time. With --speed 4 the time between two events is a quarter of what it was, so windows hold four times as many:
    what is ahead of its time would go to quarantine. A line whose time cannot be rewritten is reported, not sent.
    """
    _refuse(
        (file is not None and burst, "--burst", "needs generated logins, not a file"),
        (file is None and source != GENERATED, "--source", _ONLY_GENERATED),
        (file is None and as_now, "--as-now", "needs a file; generated logins happen now"),
        (speed is not None and not as_now, "--speed", "needs --as-now"),
        (rate is not None and as_now, "--rate", "is not for --as-now, where the events' own times say it"),
    )
    seconds = None if duration is None else options.span(duration, "--duration")
    if file is None:
        _send_generated(rate, burst or [], seconds, count)
    else:
        _send_file(file, source, rate or 0.0, seconds, count, speed or 1.0 if as_now else None)


def _refuse(*mistakes: tuple[object, str, str]) -> None:
    for is_wrong, option, what in mistakes:
        if is_wrong:
            raise typer.BadParameter(what, param_hint=f"'{option}'")


def _send_generated(rate: float | None, bursts: list[str], seconds: float | None, count: int | None) -> None:
    stop = threading.Event()
    on_signals(stop, interactive=True)
    lines, total = _generate(rate, _parse_bursts(bursts), seconds, stop)
    _send(GENERATED, itertools.islice(lines, count), count or total)


def _send_file(
    file: str,
    source: str,
    rate: float,
    seconds: float | None,
    count: int | None,
    speed: float | None,
) -> None:
    stop = threading.Event()
    on_signals(stop, interactive=True)
    records, size = _records(file, source)
    with _stopped_after(seconds, stop):
        lines: Lines = ((record, len(record) + 1.0) for record in limit_rate(records, rate, stop))
        if speed is not None:
            lines = _shift(lines, source, speed, stop)
        _send(source, itertools.islice(lines, count), None if count else size)


def _records(file: str, source: str) -> tuple[Iterator[bytes], float | None]:
    """Read `file` as the records that `tocsin run` finds in it, and its size where that is theirs."""
    from tocsin.declare.model.source import Format
    from tocsin.ingest.files.past_rows import FileForm, form_of, read_lines, read_records

    formats, path, size = load_project()[1].recorded_source(source).formats, Path(file), 0.0
    records: Iterator[bytes]
    if file == "-":
        records = read_lines(sys.stdin.buffer, RAW_BYTES)
    else:
        form = form_of(path) if Format.JSON in formats else FileForm.LINES
        records = read_records(path, form, RAW_BYTES)
        first = list(itertools.islice(records, 1))  # what is wrong with the file is said before Kafka is asked
        records = itertools.chain(first, records)
        size = float(path.stat().st_size) if form is FileForm.LINES and path.suffix != ".gz" else 0.0
    return (record.removesuffix(b"\r") for record in records), size or None


def _shift(lines: Lines, source: str, speed: float, stop: threading.Event) -> Lines:
    from tocsin.ingest.replay.shifted_lines import ShiftedLines

    shifted = ShiftedLines(load_project()[1].recorded_source(source), speed, stop)

    def pass_on() -> Lines:
        try:
            yield from shifted.shift(lines)
        finally:
            for reason, left in shifted.left_out.items():
                note(f"not sent: {counted(left.count, 'line')}, line {left.first} first: {reason}", style="yellow")

    return pass_on()


def _send(source: str, lines: Lines, total: float | None) -> None:
    from tocsin.ingest.producer import LineProducer

    settings, catalog = load_project()
    began = time.monotonic()
    with LineProducer(settings, catalog.recorded_source(source)) as producer, bar("sending", total) as advance:
        for value, step in lines:
            producer.send(value)
            advance(step)
    seconds = max(time.monotonic() - began, 1e-3)
    topic, rate = settings.names.raw(source), producer.delivered / seconds
    line(f"sent {counted(producer.delivered, 'line')} to {topic} in {seconds:.1f} s ({rate:,.0f} per second)")
    if producer.refused:
        note(f"Kafka refused {counted(producer.refused, 'line')}: {producer.error}", style="red")
        raise typer.Exit(1)


def _parse_bursts(texts: list[str]) -> tuple[Burst, ...]:
    from tocsin.dev.generator import parse_burst

    try:
        return tuple(map(parse_burst, texts))
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="'--burst'") from None


def _generate(
    rate: float | None, bursts: tuple[Burst, ...], seconds: float | None, stop: threading.Event
) -> tuple[Lines, float | None]:
    from datetime import UTC, datetime

    from tocsin.dev.generator import Traffic, wait_for_times

    rate = (0.0 if bursts else 20.0) if rate is None else rate
    # Another seed each time: the same people do not log in again in the same order.
    traffic = Traffic(start=datetime.now(UTC), seconds=seconds, rate=rate, bursts=bursts, seed=time.time_ns())
    lines = ((sent.value, 1.0) for sent in wait_for_times(traffic.lines(), stop))
    endless = rate > 0 and seconds is None
    return lines, None if endless else rate * (seconds or 0.0) + sum(burst.n for burst in bursts)


@contextmanager
def _stopped_after(seconds: float | None, stop: threading.Event) -> Iterator[None]:
    """Set `stop` after so many seconds, if any: it ends each wait for the next line too."""
    timer = threading.Timer(seconds or 0.0, stop.set)
    timer.daemon = True
    if seconds is not None:
        timer.start()
    try:
        yield
    finally:
        timer.cancel()


def limit_rate(items: Iterable[_Item], rate: float, stop: threading.Event) -> Iterator[_Item]:
    """Yield `rate` items per second, without a limit if it is 0, until `stop` is set."""
    began = time.monotonic()
    for number, item in enumerate(items):
        ahead = began + number / rate - time.monotonic() if rate > 0 else 0.0
        if stop.wait(ahead) if ahead > 0 else stop.is_set():
            return
        yield item
