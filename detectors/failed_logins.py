"""Bursts of failed logins by one user (credential stuffing, password guessing).

Catches: one account tried many times within ten seconds, from any number of addresses.
Misses: slow guessing spread over minutes, and many accounts tried once each from one address.
When it fires, look first at: the addresses of the attempts, and whether one of them then succeeded.
"""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from tocsin import Levels, detector


@detector(
    source="logins",
    entity="user_id",
    window="10 seconds",
    levels=Levels(email=50, urgent=100),
    owner="security@example.com",
    runbook="docs/runbooks/failed_logins.md",
    stage="live",
)
def detect(events: DataFrame) -> DataFrame:
    failures = events.where("action = 'login failed'")
    return failures.groupBy("window", "user_id").agg(
        F.count("*").alias("score"),
        F.max("event_time").alias("event_time_max"),
    )
