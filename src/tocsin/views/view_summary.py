"""Summarise a view: where it is kept and how fresh it is, or why there is nothing to read yet."""

from __future__ import annotations

import contextlib

from pydantic import BaseModel

from tocsin.declare.model.job_report import SILENT_SECONDS, JobState
from tocsin.declare.model.names import compute_job, view_job
from tocsin.declare.model.view import ViewSpec
from tocsin.declare.settings import Settings
from tocsin.platform.heartbeat import read_beat
from tocsin.views.row_query import Freshness, ViewReader
from tocsin.views.row_store import store_path


class ViewSummary(BaseModel, frozen=True):
    """One view.

    Attributes:
        window: length of its windows in seconds; null without windows.
    """

    name: str
    title: str
    source: str
    owner: str
    stage: str
    key: tuple[str, ...]
    window: float | None
    sink: str
    freshness: Freshness | None
    reason: str


def summarise(settings: Settings, spec: ViewSpec) -> ViewSummary:
    """Summarise the view `spec`; TransientError while its file cannot be read."""
    freshness = None
    with (
        contextlib.suppress(FileNotFoundError),
        contextlib.closing(ViewReader(store_path(settings, spec.name))) as reader,
    ):
        freshness = reader.freshness()
    return ViewSummary(
        name=spec.name,
        title=spec.title,
        source=", ".join(spec.sources),
        owner=spec.owner,
        stage=spec.stage.value,
        key=spec.key,
        window=None if spec.window is None else spec.window.total_seconds(),
        sink=spec.sink,
        freshness=freshness,
        reason=reason_of(settings, spec.name) if freshness is None else _reason(settings, spec.name),
    )


def reason_of(settings: Settings, view: str) -> str:
    """Say why there is nothing to read of `view` yet."""
    return _reason(settings, view) or "its first rows are still to come"


def _reason(settings: Settings, view: str) -> str:
    for job in (view_job(view), compute_job(view)):
        beat = read_beat(settings.state, job)
        if beat is None or beat.age_seconds > SILENT_SECONDS:
            return f"{job} does not run"
        # A compute job that runs says why its mode is what it is.
        if beat.report.reason and (job == view_job(view) or beat.report.state is not JobState.RUNNING):
            return f"{job}: {beat.report.reason}"
    return ""
