"""Hosts with kinds of alerts that seldom come: the bits of surprise of all kinds that a host has in ten minutes.

Catches: several steps of one attack, be they single alerts. Misses: attacks of kinds that come every day.
When it fires, look first at: which of the kinds is new.
"""

from math import log2
from typing import Any

import pandas as pd
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from tocsin import Levels, Model, detector


@detector(source="siem", entity=["network", "host"], window="10 minutes", levels=Levels(email=40),
          model=Model(days=60, every="1 week"),
          owner="security@example.com", runbook="https://example.com", stage="draft")  # fmt: skip
def detect(events: DataFrame) -> DataFrame:
    kinds = F.concat_ws(" ", F.array_sort(F.collect_set("short")))
    return events.groupBy("window", "network", "host").agg(kinds.alias("kinds"))


def train(features: pd.DataFrame) -> dict[str, Any]:
    kinds = features["kinds"].str.split(" ").explode()
    return {"windows": len(features), "with": kinds.value_counts().to_dict()}


def score(features: pd.DataFrame, model: dict[str, Any]) -> pd.Series:
    def bits(kinds: str) -> float:
        return sum(log2((model["windows"] + 1) / (model["with"].get(kind, 0) + 1)) for kind in kinds.split(" "))

    return features["kinds"].map(bits)
