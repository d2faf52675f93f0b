"""Users whose password was guessed at and whose account was changed within an hour (a taken over account).

Catches: findings of failed_logins and of account_changes about one user in one hour. Misses: a thief who knew the
password, or waits. When it fires, look first at: what was bought or read since.
"""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from tocsin import Levels, Sources, detector


@detector(
    source=["findings.failed_logins", "findings.account_changes"],
    entity="user_id",
    window="1 hour",
    levels=Levels(urgent=1),
    score="rising",
    owner="security@example.com",
    runbook="docs/runbooks/takeover.md",
    false_positives="A user who forgot the password, and changed it once in.",
    tags="account-takeover",
    references=["T1078", "T1110"],
    stage="live",
)
def detect(events: Sources) -> DataFrame:
    columns = ("event_time", "user_id", "detector")
    both = events["findings.failed_logins"].select(*columns)
    both = both.unionByName(events["findings.account_changes"].select(*columns))
    findings: DataFrame = events.with_window(both)
    return findings.groupBy("window", "user_id").agg(F.size(F.collect_set("detector")).alias("score"))
