"""Bursts of failed logins by one user (credential stuffing, password guessing).

Catches: one account tried many times within ten seconds, from any number of addresses.
Misses: slow guessing spread over minutes, and many accounts tried once each from one address.
When it fires, look first at: the addresses of the attempts, and whether one of them then succeeded.
"""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from tocsin import Case, Levels, at, detector, email, urgent


@detector(
    source="logins",
    entity="user_id",
    window="10 seconds",
    levels=Levels(email=50, urgent=100),
    owner="security@example.com",
    runbook="docs/runbooks/failed_logins.md",
    false_positives="A script or an app with an old password, from the user's own address.",
    tags=["account-takeover", "credential-stuffing"],
    references=["T1110.001", "T1110.004"],
    stage="live",
)
def detect(events: DataFrame) -> DataFrame:
    failures = events.where("action = 'login failed'")
    return failures.groupBy("window", "user_id").agg(
        F.count("*").alias("score"),
        F.max("event_time").alias("event_time_max"),
    )


CASES = [
    Case(
        "60 failures of one user in six seconds",
        events=at("12:00:00", user_id="mallory", action="login failed").repeat(60, every="100 ms"),
        expect=[email(user_id="mallory", window="12:00:00", score=60)],
    ),
    Case(
        "150 failures are urgent",
        events=at("12:00:00", user_id="mallory", action="login failed").repeat(150, every="50 ms"),
        expect=[urgent(user_id="mallory", window="12:00:00", score=150)],
    ),
    Case(
        "a forgotten password",
        events=at("12:00:00", user_id="alice", action="login failed")
        .repeat(3, every="2 seconds")
        .then(after="3 seconds", action="login succeeded"),
        expect=[],
    ),
    Case(
        "many logins that succeed",
        events=at("12:00:00", user_id="robot", action="login succeeded").repeat(120, every="50 ms"),
        expect=[],
    ),
]
