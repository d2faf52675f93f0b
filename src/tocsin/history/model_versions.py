"""The models of a detector: which hold when, which were refused; hold, and go back to, one."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, date, datetime

from tocsin.declare.catalog import Catalog
from tocsin.declare.model.errors import ConfigError
from tocsin.declare.model.names import refresh_job
from tocsin.declare.model.table import TableSpec
from tocsin.declare.settings import Settings
from tocsin.platform.lock import try_lead
from tocsin.spark.tables.dated_versions import DatedVersion, DatedVersions
from tocsin.spark.tables.model_files import ModelFacts, ModelFiles
from tocsin.spark.tables.published_table import read_rows_of


@dataclass(frozen=True)
class ModelVersion:
    """A model and the windows that it judges: those that begin from `since` up to `until`, UTC; None for all later.

    Attributes:
        day: the first day that it was trained for, which differs from that of `version` where it was put back.
        facts: None where they are gone.
    """

    version: DatedVersion
    day: date
    hash: str
    since: datetime
    until: datetime | None
    facts: ModelFacts | None

    @property
    def text(self) -> str:
        """Name it as findings do."""
        return f"{self.day} {self.hash[:12]}"


def models_of(catalog: Catalog, detector: str) -> TableSpec:
    """Find the table of the models of `detector`; ConfigError if it has none."""
    spec = catalog.detector(detector)
    if spec.model is None:
        raise ConfigError.one(spec.path, "has no model; docs/write/models.md tells how to give it one", key="model")
    return catalog.table(spec.model_table)


def model_versions(settings: Settings, table: TableSpec) -> list[ModelVersion]:
    """List the models of `table`, the oldest first. TransientError if they cannot be read."""
    versions, files = DatedVersions(settings, table), ModelFiles.of(settings, table.trains)
    found = []
    for version, until in versions.spans():
        (row,) = read_rows_of(versions.place(version)).to_pylist()
        facts, day = files.facts(row["hash"]), date.fromisoformat(row["day"])
        found.append(ModelVersion(version, day, row["hash"], version.holds_from, until, facts))
    return found


def _is_before(model: ModelVersion, last: ModelVersion) -> bool:
    """Return whether `model` was trained before `last`: what `last` was put back for was in force before, too."""
    is_older = model.facts is None or last.facts is None or model.facts.trained_at < last.facts.trained_at
    return is_older and model.hash != last.hash


def revert(settings: Settings, table: TableSpec, reason: str) -> ModelVersion:
    """Put the model before the one in force in its place, from now on, and hold it; returns it.

    ConfigError if there is none before; LockHeld while one is trained, where a retry helps.
    """
    now = datetime.now(UTC)
    with try_lead(settings, settings.checkpoint(refresh_job(table.name)) / "lock"):
        known = model_versions(settings, table)
        in_force = [model for model in known if model.since <= now]
        others = [model for model in in_force if _is_before(model, in_force[-1])]
        if not others:
            raise ConfigError.one(table.trains, "there is no model before the one in force; train another")
        ModelFiles.of(settings, table.trains).read(others[-1].hash)
        versions = DatedVersions(settings, table)
        versions.put_back(others[-1].version, now)
        versions.hold(reason, now)
        versions.publish()
        return model_versions(settings, table)[-1]
