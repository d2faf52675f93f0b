"""The file of a detector with a model, to be filled in; and models of it."""

from datetime import UTC, date, datetime

import pyarrow as pa

from tocsin.declare.model.table import TableSpec
from tocsin.declare.settings import Settings
from tocsin.spark.tables.dated_versions import DatedVersions
from tocsin.spark.tables.model_files import Findings, ModelFacts, ModelFiles

TEXT = '''"""Doc."""
from tocsin import Entities, Levels, Model, detector
@detector(source="logins", entity="user_id", window={window}, levels=Levels(email=1), owner="o@example.com",
          runbook="r", stage="draft"{more})
def detect(events):
    return events
{functions}
'''
TRAIN, SCORE = "def train(features):\n    return 1\n", "def score(features, model):\n    return 1\n"


def add_model(settings: Settings, table: TableSpec, day: date, rows: int, old: int | None = None) -> str:
    """Add a model of `day`, of so many rows and findings beside `old` ones; returns its hash, not that of its file."""
    digest, now = f"{rows:064x}"[::-1], datetime.now(UTC)
    facts = ModelFacts(
        hash=digest, day=day, first=day, last=day, days=1, rows=rows, code="", version="v", packages={}, seconds=1,
        memory=1, bytes=1, findings=Findings(days=7, new=rows, old=old), trained_at=now,
    )  # fmt: skip
    ModelFiles.of(settings, table.trains).add(b"", digest, facts)
    row = pa.table({"detector": [table.trains], "day": [str(day)], "hash": [digest]})
    DatedVersions(settings, table).add(day, row, [day], now)
    return digest
