"""`tocsin replay`: events of a range of time again, to a staging host or to a topic."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tocsin.cli import options
from tocsin.cli.output import as_json, counted, line, note, table, utc
from tocsin.cli.project import load_project
from tocsin.declare.model.errors import ConfigError, Fault, nearest
from tocsin.platform.process_exit import on_signals

if TYPE_CHECKING:
    from tocsin.declare.catalog import Catalog
    from tocsin.declare.model.source import Source
    from tocsin.declare.settings import Settings
    from tocsin.ingest.replay.pace import ReplayPace
    from tocsin.ingest.replay.replay_run import Counted, Progress, Replay, ReplayReport, Target

_Source = Annotated[str, typer.Argument(help="The source whose events are sent again.")]
_From = Annotated[str, typer.Option("--from", metavar="SPAN|TIME", help="Event times from here, such as 1h or a time.")]
_To = Annotated[str, typer.Option("--to", metavar="SPAN|TIME", help="Up to here, in the same way.")]
_Speed = Annotated[float, typer.Option(min=0, help="So many times as fast as they came; 0 for as fast as it goes.")]
_Rate = Annotated[float, typer.Option(min=0, help="At most so many per second; 0 for no limit.")]
_Url = Annotated[str | None, typer.Option("--to-url", help="Send each as a request to this server.")]
_Topic = Annotated[str | None, typer.Option("--to-topic", help="Write each as JSON to this topic.")]
_Allow = Annotated[list[str] | None, typer.Option("--allow", metavar="METHOD", help="Send these too, not GET alone.")]
_Path = Annotated[str, typer.Option("--path-column", help="The column with the path of a request.")]
_Connections = Annotated[int, typer.Option(min=1, max=256, help="Requests that are under way at once.")]
_Timeout = Annotated[str, typer.Option(metavar="SPAN", help="How long an answer may take.")]
_DryRun = Annotated[bool, typer.Option("--dry-run", help="Count what would be sent, and send nothing.")]
_Restart = Annotated[bool, typer.Option("--restart", help="Begin anew, where the same call was broken off.")]


def replay(
    source: _Source,
    start: _From,
    end: _To = "0s",
    speed: _Speed = 1.0,
    rate: _Rate = 0.0,
    to_url: _Url = None,
    to_topic: _Topic = None,
    allow: _Allow = None,
    path_column: _Path = "path",
    connections: _Connections = 16,
    timeout: _Timeout = "10s",
    dry_run: _DryRun = False,
    restart: _Restart = False,
    json: options.Json = False,
) -> None:
    """Send events of a source again, at their own pace, and report what became of them.

    They are counted first. Other readers of the source notice nothing. A replay that was broken off goes on with the
    same call. Exit code 1 when one had no answer, or one of 500 or more, or could not be written.
    """
    from tocsin.ingest.replay.pace import ReplayPace
    from tocsin.ingest.replay.replay_run import Progress, Replay, name_of

    if (to_url is None) == (to_topic is None):
        raise typer.BadParameter("give one of --to-url and --to-topic")
    (settings, catalog), progress = load_project(), Progress()
    declared, name = catalog.source(source), name_of(source, start, end, to_url or to_topic or "")
    with Replay(settings, declared, name, _span(start, end), restart=restart) as run:
        if to_topic is not None:
            target: Target = _topic_target(settings, catalog, declared, (to_topic, name), progress)
        else:
            methods = frozenset({"GET", *(method.upper() for method in allow or [])})
            seconds = options.span(timeout, "--timeout")
            requests = {"path": path_column, "allowed": methods, "connections": connections, "timeout_seconds": seconds}
            target = _http_target(declared, to_url or "", requests, progress)
        _send(run, target, ReplayPace(speed=speed, rate=rate), progress, dry_run=dry_run, json=json)


def _send(run: Replay, target: Target, pace: ReplayPace, progress: Progress, *, dry_run: bool, json: bool) -> None:
    planned, is_done, stop = run.count(target, pace), False, threading.Event()
    if not json:
        _tell_count(planned, run, target)
    on_signals(stop, interactive=True)
    try:
        is_done = not dry_run and run.run(target, pace, progress, stop)
    finally:
        report = progress.report(planned, is_done=is_done)
        if json:
            as_json(report)
        elif not dry_run:
            _tell(report)
    if report.has_failed:
        raise typer.Exit(1)


def _span(start: str, end: str) -> tuple[datetime, datetime]:
    now = datetime.now(UTC)
    first, last = options.moment(start, "--from", now), options.moment(end, "--to", now)
    if first >= last:
        raise typer.BadParameter("is not before --to", param_hint="'--from'")
    return first, last


def _topic_target(
    settings: Settings, catalog: Catalog, source: Source, topic_and_name: tuple[str, str], progress: Progress
) -> Target:
    from tocsin.ingest.replay.replay_run import TopicTarget
    from tocsin.platform.kafka.topics import wanted_topics

    others = {settings.names.raw(name) for name in catalog.sources if name != source.name}
    own = frozenset(wanted_topics(settings, catalog)) - others
    return TopicTarget(settings, source, topic_and_name, own, progress)


def _http_target(source: Source, url: str, requests: dict[str, Any], progress: Progress) -> Target:
    from tocsin.ingest.replay.replay_run import HttpTarget, Requests

    path = requests["path"]
    if path not in source.columns:
        what = f"source '{source.name}' has no column '{path}' to make a request of"
        raise ConfigError([Fault("--path-column", what, nearest=nearest(path, source.columns))])
    return HttpTarget(url, Requests(**requests), progress)


def _tell_count(count: Counted, run: Replay, target: Target) -> None:
    what = "left of it" if run.resumed else "in it"
    note(f"from {utc(run.range.start)} up to {utc(run.range.end)}: {counted(count.events, 'event')} {what}")
    for reason, number in sorted(count.left_out.items()):
        note(f"left out, {reason}: {number:,}")
    note(f"sending to {target.name} takes {timedelta(seconds=round(count.seconds))}")


def _tell(report: ReplayReport) -> None:
    table(["result", "events"], sorted(report.outcomes.items()), empty="nothing was sent")
    if report.latency is not None:
        times = ", ".join(f"{name} {1000 * seconds:,.1f} ms" for name, seconds in report.latency.items())
        line(f"latency: {times}")
    if report.failure:
        line(f"the last failure: {report.failure}")
    if not report.done:
        line("broken off; the same call goes on from here")
