"""Hosts with many alerts of intrusion detection systems: a plain count.

Catches: scans and brute force. Misses: whatever makes few alerts.
When it fires, look first at: which kinds of alerts they are.
"""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from tocsin import Levels, detector


@detector(source="siem", entity=["network", "host"], window="10 minutes", levels=Levels(email=500),
          owner="security@example.com", runbook="https://example.com", stage="draft")  # fmt: skip
def detect(events: DataFrame) -> DataFrame:
    return events.groupBy("window", "network", "host").agg(F.count("*").alias("score"))
