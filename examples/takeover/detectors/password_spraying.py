"""Many users under attack within ten minutes (a list of stolen passwords is tried).

Catches: findings of failed_logins about many users at a time. Misses: attacks that fail less often for each user.
When it fires, look first at: what the attempts have in common, such as their network.
"""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from tocsin import Case, Levels, at, detector, urgent


@detector(
    source="findings.failed_logins",
    entity="detector",
    window="10 minutes",
    levels=Levels(urgent=4),
    score="rising",
    owner="security@example.com",
    runbook="docs/runbooks/takeover.md",
    false_positives="An outage of the login service, which lets all users fail.",
    tags=["account-takeover", "password-spraying"],
    references="T1110.003",
    stage="live",
)
def detect(events: DataFrame) -> DataFrame:
    users = F.collect_set("user_id")
    return events.groupBy("window", "detector").agg(F.size(users).alias("score"), users.alias("users"))


ANN = at("12:00:00", finding_id="1", detector="failed_logins", level="email", user_id="ann")
FOUR = (
    ANN.then(after="1 minute", finding_id="2", user_id="bob")
    .then(after="1 minute", finding_id="3", user_id="carol")
    .then(after="1 minute", finding_id="4", user_id="dave")
)
CASES = [
    Case(
        "five users in five minutes",
        events=FOUR.then(after="1 minute", finding_id="5", user_id="erin"),
        expect=[urgent(detector="failed_logins", window="12:00:00", score=5)],
    ),
    Case("four users", events=FOUR, expect=[]),
    Case(
        "a fifth in the next ten minutes",
        events=FOUR.then(after="9 minutes", finding_id="5", user_id="erin"),
        expect=[],
    ),
    Case("one user again and again", events=FOUR.then(after="1 minute", finding_id="5", user_id="ann"), expect=[]),
]
