"""A small source and a detector of it, for tests of cases."""

from datetime import timedelta
from pathlib import Path

from tocsin.declare.model.detector import DetectorSpec, Levels, Stage
from tocsin.declare.model.source import Source

SOURCE = Source(
    name="logins", title="t", owner="o@example.com", formats=("json",), key="user_id", event_time="timestamp",
    columns={"user_id": "string", "timestamp": "timestamp", "action": "string", "amount": "double", "tries": "int",
             "ok": "boolean", "seen": "timestamp"},
    optional=frozenset({"amount", "seen"}),
)  # fmt: skip
SPEC = DetectorSpec(
    name="d", path=Path("detectors/d.py"), sources=("logins",), entity=("user_id",), window=timedelta(seconds=10),
    levels=Levels(email=50), owner="o@example.com", runbook="r", stage=Stage.LIVE, title="t", doc="t", version="v",
)  # fmt: skip
