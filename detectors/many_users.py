"""Many users whose logins fail from one address (password spraying, a list of stolen passwords).

Catches: few passwords tried on each of many accounts within a minute, which no limit on one account notices.
Misses: an attacker with an address for each try, and fewer than twenty users a minute.
When it fires, look first at: whether the address then logged in to one of the accounts.

The number of users is an estimate, by 2 % off.
"""

from functools import reduce

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from tocsin import Case, Levels, at, detector, email, urgent


@detector(
    source="logins",
    entity="ip_address",
    window="1 minute",
    levels=Levels(email=20, urgent=50),
    owner="security@example.com",
    runbook="docs/runbooks/many_users.md",
    false_positives="A gateway behind which many people sit, while a directory is down or after a holiday.",
    tags=["account-takeover", "password-spraying"],
    references="T1110.003",
    stage="shadow",
)
def detect(events: DataFrame) -> DataFrame:
    failures = events.where("action = 'login failed'")
    return failures.groupBy("window", "ip_address").agg(
        F.approx_count_distinct("user_id", 0.02).alias("score"), F.count("*").alias("failures")
    )


FIRST = at("12:00:00", ip_address="203.0.113.9", user_id="user-0", action="login failed")
TWENTY = reduce(lambda tries, number: tries.then(after="1 second", user_id=f"user-{number}"), range(1, 20), FIRST)
FIFTY = reduce(lambda tries, number: tries.then(after="100 ms", user_id=f"user-{number}"), range(20, 50), TWENTY)
CASES = [
    Case("twenty users, twice", events=TWENTY.repeat(2, every="30 seconds"), expect=[]),
    Case(
        "21 users",
        events=TWENTY.then(after="1 second", user_id="ann"),
        expect=[email(ip_address="203.0.113.9", window="12:00:00", score=21)],
    ),
    Case("fifty users", events=FIFTY, expect=[email(ip_address="203.0.113.9", window="12:00:00", score=50)]),
    Case(
        "51 users",
        events=FIFTY.then(after="1 second", user_id="ann"),
        expect=[urgent(ip_address="203.0.113.9", window="12:00:00", score=51)],
    ),
    Case(
        "one of them logs in", events=TWENTY.then(user_id="ann", action="login succeeded", after="1 second"), expect=[]
    ),
    Case("one user again and again", events=FIRST.repeat(60, every="500 ms"), expect=[]),
    Case("another address", events=TWENTY.then(after="1 second", user_id="ann", ip_address="192.0.2.7"), expect=[]),
    Case("in the next minute", events=TWENTY.then(after="41 seconds", user_id="ann"), expect=[]),
]
