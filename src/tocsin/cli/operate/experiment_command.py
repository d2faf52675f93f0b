"""`tocsin experiment`: try on a real broker what Tocsin promises."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tocsin.cli import options
from tocsin.cli.output import as_json, line, note, table
from tocsin.platform.process_exit import on_signals

if TYPE_CHECKING:
    from tocsin.declare.settings import Settings
    from tocsin.dev.experiment.rescale_figures import RescaleReport
    from tocsin.dev.experiment.rescale_run import RescalePlan

_MOST_JOBS = 8
_Records = Annotated[int, typer.Option(min=1, max=100_000_000, help="Send so many, about the same share in each step.")]
_Jobs = Annotated[str, typer.Option(metavar="N,N,...", help="Readers in each step, 1 to 8.")]
_Rate = Annotated[float, typer.Option(min=1, help="Send so many per second.")]
_Kill = Annotated[bool, typer.Option("--kill", help="Remove readers with kill -9.")]
_Plot = Annotated[Path | None, typer.Option(metavar="FILE.png", help="Draw how late records were shown.")]

app = typer.Typer(help="Try on a real broker what Tocsin promises.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    """Keep `rescale` a verb of its own: a group of one verb would be that verb."""


@app.command()
def rescale(
    records: _Records = 1_000_000,
    jobs: _Jobs = "1,2,1",
    rate: _Rate = 5_000,
    kill: _Kill = False,
    plot: _Plot = None,
    json: options.Json = False,
) -> None:
    """Send records to a view while its readers become more and fewer, and count what was lost or shown twice.

    On the project's Kafka if it answers, else on a broker of its own; its topics, its group and its folder are removed
    at the end. Exit code 1 when a record was lost or shown twice.
    """
    from tocsin.declare.settings import load_settings
    from tocsin.dev.experiment.rescale_run import RescalePlan

    plan = RescalePlan(records=records, jobs=_numbers(jobs), rate=rate, kills=kill)
    if plot is not None and not plot.resolve().parent.is_dir():
        raise typer.BadParameter(f"there is no folder {plot.resolve().parent}", param_hint="'--plot'")
    stop = threading.Event()
    on_signals(stop, interactive=True)
    report = _run(load_settings(), plan, plot, stop)
    if json:
        as_json(report)
    else:
        _tell(report)
    if report.has_failed:
        raise typer.Exit(1)


def _run(settings: Settings, plan: RescalePlan, plot: Path | None, stop: threading.Event) -> RescaleReport:
    from tocsin.dev.experiment.rehearsal import kafka_of, rehearsal, scratch
    from tocsin.dev.experiment.rescale_chart import draw_rescale
    from tocsin.dev.experiment.rescale_run import Interrupted, RescaleRun

    try:
        with scratch(settings) as folder, kafka_of(settings, folder / "kafka") as (kafka, is_own):
            note(f"on {'a broker of its own' if is_own else 'Kafka'} at {kafka.bootstrap_servers}")
            with rehearsal(settings, kafka, folder / "project") as made, RescaleRun(made, plan, stop, note) as run:
                report = run.run()
                if plot is not None:
                    draw_rescale(plot, run.changes, run.rows)
                return report
    except Interrupted:
        raise typer.Exit(130) from None


def _numbers(text: str) -> tuple[int, ...]:
    try:
        found = tuple(int(word) for word in text.split(","))
    except ValueError:
        found = ()
    if not found or not all(1 <= number <= _MOST_JOBS for number in found):
        raise typer.BadParameter(f"'{text}' is not a list such as 1,2,1", param_hint="'--jobs'")
    return found


def _tell(report: RescaleReport) -> None:
    columns = ["readers", "records", "partitions moved", "first again", "last again", "p50", "p99", "max"]
    rows = [
        [
            f"{step.jobs} ({step.action})",
            f"{step.records:,}",
            step.partitions_moved,
            *map(_time, (step.first_seconds, step.last_seconds, step.p50_seconds, step.p99_seconds, step.max_seconds)),
        ]
        for step in report.steps
    ]
    table(columns, rows, empty="")
    counts = f"lost {report.lost:,}, shown twice {report.shown_twice:,}, processed twice {report.processed_twice:,}"
    line(f"{report.records:,} records in {report.seconds:,.0f} s: {counts}")


def _time(seconds: float | None) -> str:
    if seconds is None:
        return ""
    return f"{1000 * seconds:,.0f} ms" if seconds < 1 else f"{seconds:,.1f} s"
