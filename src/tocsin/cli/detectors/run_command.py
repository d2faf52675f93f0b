"""`tocsin run`: the findings of a detector on a file."""

from __future__ import annotations

import shutil
import sys
import tempfile
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tocsin.cli import options
from tocsin.cli.detectors.backfill_command import together
from tocsin.cli.output import as_text, counted, line, note, table, utc, write
from tocsin.cli.project import load_project
from tocsin.declare.model.errors import ConfigError
from tocsin.declare.model.sizes import entity_text, number, score_text

if TYPE_CHECKING:
    from tocsin.cases.case_report import FileReport
    from tocsin.declare.model.finding import Finding

_SHOWN_SAMPLES = 3
_Detector = Annotated[str, typer.Argument(help="Its name; in any stage.")]
_File = Annotated[
    str, typer.Argument(help="Lines as they are sent, CSV or Parquet, as its name says; - for lines of standard input.")
]
_Events = Annotated[bool, typer.Option("--events", help="The lines are records of the events topic, as JSON.")]
_Limit = Annotated[int, typer.Option("--limit", min=1, max=10_000, help="Show at most so many findings.")]


def run(
    detector: _Detector,
    file: _File,
    events: _Events = False,
    records: options.Records = "",
    limit: _Limit = 50,
    json: options.Json = False,
) -> None:
    """Show what a detector finds in a file, as a backfill of its events would. Needs no Kafka, and stores nothing.

    If flows make the events of its source, the lines are those of the source with which they begin. Rows that would be
    ignored or go to quarantine are counted, with their numbers.
    """
    from tocsin.cases.case_report import FileRequest
    from tocsin.platform.environments import go_on_by_its_python

    settings, catalog = load_project()
    spec = catalog.detector(detector)
    go_on_by_its_python(settings, detector)
    source = catalog.only_source(spec)
    with tempfile.TemporaryDirectory(prefix="tocsin-") if file == "-" else nullcontext("") as own:
        path = _spooled(Path(own)) if own else _readable(Path(file).absolute())
        is_events = events or bool(spec.read_detectors)
        if not is_events:
            catalog.origin(source.name, records)  # what is wrong is said before Spark starts
        request = FileRequest(detector, path, limit, is_events=is_events, records=records)
        from tocsin.cases.spark.case_lab import open_lab

        with open_lab() as lab:
            report = lab.run_on_file(settings, request, note)
    write(report, _show, json=json)


def _readable(path: Path) -> Path:
    try:
        path.open("rb").close()
    except OSError as error:
        raise ConfigError.one(path, f"cannot be read: {error.strerror}") from error
    return path


def _spooled(folder: Path) -> Path:
    path = folder / "stdin"
    with path.open("wb") as target:
        shutil.copyfileobj(sys.stdin.buffer, target)
    return path


def _show(report: FileReport) -> None:
    times = f", from {utc(report.first)} to {utc(report.last)}" if report.events else ""
    line(f"{counted(report.rows, 'row')}, {counted(report.events, 'event')} of {report.source}{times}")
    for left in report.left_out:
        more = ", ..." if left.count > len(left.rows) else ""
        line(
            f"  left out, {left.reason}: {counted(left.count, 'row')} ({', '.join(map(str, left.rows))}{more})",
            "yellow",
        )
    for sentence in together(("  left out", day, why) for day, why in report.days_left_out.items()):
        line(sentence, style="yellow")
    if report.failed_in_step:
        line(f"  step failed on {counted(report.failed_in_step, 'event')}; tocsin test names the line", style="red")
    columns = ("WINDOW", "ENTITY", "LEVEL", "SCORE", "LIMIT", "CONTEXT")
    table(columns, map(_row, report.findings), empty="no findings")
    if report.findings:
        rest = report.total - len(report.findings)
        more = f"; {rest:,} more: --limit" if rest else ""
        line(f"{counted(report.total, 'finding')}, {report.urgent:,} of them urgent{more}, in {report.seconds:.1f} s")


def _row(found: Finding) -> tuple[object, ...]:
    window = found.window_end - found.window_start if found.window_start and found.window_end else None
    start = utc(found.moment) + (f" +{window.total_seconds():g} s" if window else "")
    context = [f"{name}={as_text(value)}" for name, value in found.context.items()]
    context += [f"event {as_text(sample)}" for sample in found.evidence[:_SHOWN_SAMPLES]]
    rest = len(found.evidence) - _SHOWN_SAMPLES
    context += [f"and {counted(rest, 'more event')}"] if rest > 0 else []
    score = score_text(found.score, at_least=found.at_least, limit=found.limit)
    return (start, entity_text(found.entity), found.level, score, number(found.limit), "; ".join(context))
