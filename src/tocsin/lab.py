"""The workbench, for notebooks and shells: events of history, and what a detector makes of them.

::

    from tocsin import lab

    lab.events("logins", days=7).toPandas()          # or lab.dataset("logins", days=7), for DuckDB and Polars
    lab.run("failed_logins", days=14)                # its findings
    scores = lab.scores("failed_logins", days=14)    # every score, whatever its limits are
    scores.plot()                                    # beside its limits, and the alerts a day of each limit

Days are UTC days of sealed history: the latest, or those from `first` to `last`. The project is that of the current
folder, or `TOCSIN_PROJECT`; its files are read at each call, so an edited detector is the one that runs. Nothing is
stored. The first call that needs Spark starts it, which takes seconds; it stays until `close`, or the process ends.

Functions raise a ConfigError if a name, a file or the choice of days is wrong, where a retry does not help, and a
TransientError if the catalogue of history does not answer, where it does.
"""

from __future__ import annotations

import atexit
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from tocsin.declare.model.errors import ConfigError

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa
    from PIL.Image import Image
    from pyarrow.dataset import Dataset
    from pyspark.sql import DataFrame

    from tocsin.alerts.evaluation.scoring import LimitQuality, ScoredWindow
    from tocsin.alerts.evidence.finding_explanation import FindingExplanation
    from tocsin.declare.model.detector import DetectorSpec
    from tocsin.declare.model.finding import Finding
    from tocsin.declare.model.source import Source
    from tocsin.declare.settings import Settings
    from tocsin.history.backfill.trial import DayChoice
    from tocsin.history.day_versions import DayVersion
    from tocsin.spark.batch_session import SharedSession

__all__ = ["Scores", "close", "dataset", "events", "explain", "run", "scores"]


def events(source: str, *, days: int = 7, first: date | None = None, last: date | None = None) -> DataFrame:
    """Give the events of `source` as a DataFrame of Spark: event_time, what it declares, and where they come from."""
    from tocsin.history.places import Places
    from tocsin.history.spark.sealed_days import sealed_events
    from tocsin.spark.batch_session import running_batch, shared_session

    settings, declared, versions = _sealed(source, days, first, last)
    with shared_session(_session(settings)), running_batch(settings, _JOB) as spark:
        return sealed_events(spark, Places.of(settings, source), declared, versions)


def dataset(source: str, *, days: int = 7, first: date | None = None, last: date | None = None) -> Dataset:
    """Give the events of `source` as a dataset of Arrow, for DuckDB, pandas and Polars; needs no Spark.

    It reads the sealed Parquet files, also in an object store, and of these the columns and rows that a query asks for.
    """
    import pyarrow as pa
    from pyarrow import dataset as datasets
    from pyarrow import parquet

    from tocsin.history.day_versions import paths
    from tocsin.history.places import Places
    from tocsin.platform.storage.stored_path import ObjectPath, open_stored

    settings, _, versions = _sealed(source, days, first, last)
    files = [file for day, version in versions.items() for file in paths(Places.of(settings, source), day, version)]
    schemas = []
    for file in files:
        with open_stored(file) as opened:
            schemas.append(parquet.read_schema(opened))
    schema = pa.unify_schemas(schemas, promote_options="permissive") if schemas else pa.schema([])
    remote = files[0] if files and isinstance(files[0], ObjectPath) else None
    names = [file.key if isinstance(file, ObjectPath) else str(file) for file in files]
    return datasets.dataset(names, schema, format="parquet", filesystem=remote and remote.store.files)


def run(detector: str, *, days: int = 14, first: date | None = None, last: date | None = None) -> list[Finding]:
    """Run a detector on history; returns its findings, the earliest day first."""
    from tocsin.declare.settings import load_settings
    from tocsin.history.backfill.backfill_status import declared
    from tocsin.history.backfill.trial import try_out
    from tocsin.spark.batch_session import shared_session

    settings = load_settings()
    source, specs = declared(settings, [detector])
    with shared_session(_session(settings)):
        (trial,) = try_out(settings, source, specs, _choice(days, first, last)).trials
    return trial.findings


@dataclass(frozen=True)
class Scores:
    """Every score of a detector on some days: a row for each window and entity, or event and entity.

    Attributes:
        table: the columns of the entity, as text; `window_start` and `window_end`, without windows both the time of the
            event; `score`.
        left_out: days that were asked for and cannot run, and why.
    """

    detector: DetectorSpec
    table: pa.Table
    days: Sequence[date]
    left_out: dict[date, str]

    def to_pandas(self) -> pd.DataFrame:
        """Give all of them as a DataFrame of pandas."""
        frame: pd.DataFrame = self.table.to_pandas()
        return frame

    def limits(self, labels: str | Path | None = None) -> pd.DataFrame:
        """Say what each limit of a ladder would be worth, a row each; `labels` is as for `tocsin evaluate`.

        Verdicts that people gave on alerts do not count here.
        """
        import pandas as pd

        return pd.DataFrame([rung.model_dump() for rung in self._ladder(self._highest(), labels)])

    def plot(self, labels: str | Path | None = None) -> Image:
        """Draw the scores beside the limits over time, and the alerts a day above each limit; notebooks show it."""
        from tocsin.alerts.evaluation.evaluation_run import draw_evaluation
        from tocsin.history.backfill.trial_report import declared_limits

        highest = self._highest()
        if not highest:
            raise ConfigError.one(self.detector.name, "has no score on these days, so there is nothing to draw")
        return draw_evaluation(highest, declared_limits(self.detector.levels), self._ladder(highest, labels))

    def _highest(self) -> list[ScoredWindow]:
        from tocsin.alerts.evaluation.evaluation_run import highest_scores

        return highest_scores(self.table, self.detector)

    def _ladder(self, highest: list[ScoredWindow], labels: str | Path | None) -> list[LimitQuality]:
        from tocsin.alerts.evaluation.evaluation_run import is_within, read_incidents
        from tocsin.alerts.evaluation.scoring import Labels, evaluate, ladder_of
        from tocsin.history.backfill.trial_report import declared_limits

        incidents = [] if labels is None else read_incidents(Path(labels), self.detector)
        known = Labels([one for one in incidents if is_within(one, self.days)], labels is not None)
        ladder = ladder_of([window.score for window in highest], declared_limits(self.detector.levels).values())
        return evaluate(highest, known, ladder, self.detector.dedup_period, len(self.days))


def scores(detector: str, *, days: int = 14, first: date | None = None, last: date | None = None) -> Scores:
    """Run a detector on history; returns every score, whatever its limits are."""
    from pyarrow import parquet

    from tocsin.declare.settings import load_settings
    from tocsin.history.backfill.trial import score_days
    from tocsin.spark.batch_session import shared_session

    settings = load_settings()
    with tempfile.TemporaryDirectory(prefix="tocsin-") as own, shared_session(_session(settings)):
        path = Path(own) / "scores.parquet"
        done = score_days(settings, detector, _choice(days, first, last), path)
        (trial,) = done.trials
        return Scores(trial.spec, parquet.read_table(path), sorted(trial.events), done.left_out)


def explain(finding: Finding | str, *, events: int = 10) -> FindingExplanation:
    """Explain a finding of `run`, or a stored one by how its id begins.

    What other limits would change, the latest events of its entity in its window, and the mail about it.
    """
    from tocsin.alerts.evidence.finding_explanation import explain_finding
    from tocsin.declare.settings import load_settings

    return explain_finding(load_settings(), finding, events)


def close() -> None:
    """Stop Spark; the next call that needs it starts it again, and DataFrames of before are of no use."""
    if _new_session.cache_info().currsize:
        _new_session().close()


_JOB = "lab"


@cache
def _new_session() -> SharedSession:
    from tocsin.spark.batch_session import SharedSession

    atexit.register(close)
    return SharedSession()


def _session(settings: Settings) -> SharedSession:
    """Give the session of this process, which has begun: one that a batch begins would lose its files with that."""
    from tocsin.spark.batch_session import running_batch, shared_session

    session = _new_session()
    with shared_session(session), running_batch(settings, _JOB):
        return session


def _choice(days: int, first: date | None, last: date | None) -> DayChoice:
    from tocsin.history.backfill.trial import DayChoice

    return DayChoice(first=first, last=last, most=days)


def _sealed(
    name: str, days: int, first: date | None, last: date | None
) -> tuple[Settings, Source, dict[date, DayVersion]]:
    """Find the settings, the source, and its published days that are wanted, of which there is one at least."""
    from tocsin.declare.catalog import load_project
    from tocsin.history.day_status import published_days, why_not

    settings, catalog = load_project()
    source, choice = catalog.source(name), _choice(days, first, last)
    published = published_days(settings, source)
    if first is None and last is None:
        wanted = sorted(published)[-choice.most :]
    else:
        begin = first or min([*published, last or date.max])
        end = last or max([*published, begin])
        wanted = [begin + timedelta(days=number) for number in range((end - begin).days + 1)]
    if lacking := [day for day in wanted if day not in published]:
        raise ConfigError.one(f"{name} {lacking[0]}", why_not(settings, source)(lacking[0]))
    if not wanted:
        raise ConfigError.one(name, "no day of it is sealed; `tocsin history list` says what the days wait for")
    return settings, source, {day: published[day] for day in wanted}
