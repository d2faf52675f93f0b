"""Hosts with an unusual mix of alerts: an isolation forest of their numbers and kinds in ten minutes.

Catches: mixes that are far from all others. Misses: a single alert of a new kind.
When it fires, look first at: which kinds of alerts they are.
"""

import numpy as np
import pandas as pd
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from sklearn.ensemble import IsolationForest

from tocsin import Levels, Model, detector

COLUMNS = ["alerts", "kinds", "of_Wazuh", "of_Suricata", "of_AMiner", "kinds_of_Wazuh", "kinds_of_AMiner"]


@detector(source="siem", entity=["network", "host"], window="10 minutes", levels=Levels(email=0.74),
          model=Model(days=60, every="1 week"),
          owner="security@example.com", runbook="https://example.com", stage="draft")  # fmt: skip
def detect(events: DataFrame) -> DataFrame:
    tools = ("Wazuh", "Suricata", "AMiner")
    of = {name: F.when(F.col("short").startswith(name[0]), F.col("short")) for name in tools}
    numbers = [F.count(kind).alias(f"of_{name}") for name, kind in of.items()]
    kinds = [F.size(F.collect_set(kind)).alias(f"kinds_of_{name}") for name, kind in of.items()]
    every = [F.count("*").alias("alerts"), F.size(F.collect_set("short")).alias("kinds")]
    return events.groupBy("window", "network", "host").agg(*every, *numbers, *kinds)


def train(features: pd.DataFrame) -> IsolationForest:
    return IsolationForest(random_state=0).fit(np.log1p(features[COLUMNS]))


def score(features: pd.DataFrame, model: IsolationForest) -> pd.Series:
    return pd.Series(-model.score_samples(np.log1p(features[COLUMNS])))
